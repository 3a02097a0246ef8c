"""Machine: on what, with what and when something was measured; no path, no name of a host or a person."""

import dataclasses
import datetime
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from cerebro_eeg.errors import InputError
from cerebro_eeg.progress import counted


@dataclass(frozen=True)
class Where:
    """What stands over every table and in every row of its CSV."""

    machine: str
    torch: str
    date: str
    command: str

    def line(self) -> str:
        return f"{self.machine}, torch {self.torch}, {self.date}: {self.command}"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def where(options: object) -> Where:
    """This machine, today, and the command that these options stand for."""
    device = choose_device(getattr(options, "device", "cpu"), type(options).__name__.lower())
    found = cpu() + busy() if device.type != "cuda" else f"{torch.cuda.get_device_name(device)}, {cpu()}"
    return Where(found, torch.__version__, datetime.date.today().isoformat(), command(options))


def command(options: object) -> str:
    """The command line with every option that is not the default; a folder's name is nobody's business."""
    words = ["cerebro-eeg", "bench", type(options).__name__.lower()]
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        value = getattr(options, field.name)
        if value == field.default:
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is True:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [field.name.upper() if isinstance(one, Path) else str(one) for one in values]
    return " ".join(words)


def cpu() -> str:
    """The processor and the cores that this process may use."""
    name = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor that says nothing of itself
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{name} ({cores} cores)"


def busy() -> str:
    """Said where others keep more than all cores at work: that is in every number, and no ratio can be believed."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f", BUSY: load {load:.1f}" if load > (os.cpu_count() or 1) else ""


def choose_device(name: str, what: str) -> torch.device:
    """The device by its name; auto: a GPU where there is one. One line where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device is {name!r}; expected cuda, cuda:1, cpu or auto")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            f"bench {what} measures a CUDA GPU, and torch sees none here; run it where there is one "
            "(--device cpu only shows that it runs)"
        )
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise InputError(f"device is {name!r}; torch sees {counted(torch.cuda.device_count(), 'GPU')} here")
    return device
