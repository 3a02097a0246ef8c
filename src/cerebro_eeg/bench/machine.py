"""Machine: the processor, torch and date of a measurement, without paths and without names of hosts or persons."""

import dataclasses
import datetime
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cerebro_eeg.bench.options import name_of
from cerebro_eeg.errors import InputError
from cerebro_eeg.progress import counted


@dataclass(frozen=True)
class Where:
    """The line above every table, and the last columns of its CSV."""

    machine: str
    torch: str
    date: str
    command: str

    def line(self) -> str:
        return f"{self.machine}, torch {self.torch}, {self.date}: {self.command}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def where(options: object) -> Where:
    """Describe this machine, the date and the command of these options."""
    device = choose_device(getattr(options, "device", "cpu"), " ".join(words(options)[1:]))
    found = cpu() + busy() if device.type != "cuda" else f"{torch.cuda.get_device_name(device)}, {cpu()}"
    return Where(found, torch.__version__, datetime.date.today().isoformat(), command(options))


def command(options: object) -> str:
    """Return the command line with every option that is not the default; a word stands for a path, which is private."""
    found = words(options)
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        value = getattr(options, field.name)
        if value == field.default:
            continue
        found.append(f"--{field.name.replace('_', '-')}")
        if value is True:
            continue
        values = value if isinstance(value, tuple) else (value,)
        found += [field.name.upper() if isinstance(one, Path) else str(one) for one in values]
    return " ".join(found)


def words(options: object) -> list[str]:
    """Return the words that start the benchmark of these options, in the package or in the folder ``benchmarks``."""
    name = name_of(type(options))
    if type(options).__module__.startswith("cerebro_eeg."):
        return ["cerebro-eeg", "bench", name]
    return ["python", f"benchmarks/{name}.py"]


def cpu() -> str:
    """Return the processor's name and the number of cores that this process may use."""
    name = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor that says nothing of itself
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name} ({cores} cores)"


def busy() -> str:
    """Return a warning if other programs keep all cores busy: then no number and no ratio can be trusted."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f", BUSY: load {load:.1f}" if load > (os.cpu_count() or 1) else ""


def choose_device(name: str, what: str) -> torch.device:
    """Return the device of this name; auto is a GPU where there is one. Raise an error where the device is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device is {name!r}; expected cuda, cuda:1, cpu or auto")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            f"{what} measures a CUDA GPU, and torch sees none here; run it where there is one "
            "(--device cpu only shows that it runs)"
        )
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise InputError(f"device is {name!r}; torch sees {counted(torch.cuda.device_count(), 'GPU')} here")
    return device
