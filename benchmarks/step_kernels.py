"""Which kernels does a captured fine-tuning step consist of, and how long does each take?

    python benchmarks/step_kernels.py [--sizes small:64:14 small:512:14 small:64:32]

A size is a preset, the windows of a step and the channels of a window. The step is that of ``bench finetune``, on a
batch of noise that is on the GPU. Compare 64 with 512 windows: kernels that take as long for both wait for something
other than arithmetic, and eight trainings that shared every kernel would take as long as the larger one.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.finetune import of_size, open_labelled, our_step
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.noise_store import TASK, write_labelled_noise
from cerebro_eeg.bench.table import ResultTable, TableRows
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import require

WARM, STEPS, PROFILED = 8, 30, 10
SECONDS = 5.0
"""Length of a window."""
COLUMNS: dict[str, str | None] = {"size": "", "kernel": "", "us": ".1f", "calls": ".0f"}


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a captured fine-tuning step, by name (GPU)."""

    sizes: tuple[str, ...] = ("small:64:14", "small:512:14", "small:64:32")
    """Preset, windows and channels."""
    most: int = 30
    """Kernels that are listed, the longest first."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""

    def __post_init__(self) -> None:
        require(self.most >= 1, f"--most is {self.most}; expected at least 1")


def run(options: StepKernels, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure every size."""
    device = choose_device(options.device, "benchmarks/step_kernels.py")
    rows, notes = TableRows(COLUMNS, say), []
    for size in options.sizes:
        notes.append(measure(size, options.most, device, rows))
        say(notes[-1])
    return [ResultTable("step_kernels", "Kernels of a fine-tuning step", COLUMNS, rows, (), tuple(notes))]


def measure(size: str, most: int, device: torch.device, rows: TableRows) -> str:
    """Add the kernels of a size to the rows, and return a line about the whole step."""
    name, *numbers = size.split(":")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--sizes has {size!r}; expected preset:windows:channels, such as small:64:14")
    windows, channels = map(int, numbers)
    cuda = device.type == "cuda"
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryDirectory() as folder:
        write_labelled_noise(Path(store), channels, SECONDS, windows * 2)
        labelled = open_labelled(Path(store), TASK, windows)
        step = our_step(of_size(name, windows), labelled, "captured" if cuda else "plain", Path(folder), device)
        for _ in range(WARM if cuda else 1):
            step.call()
        began = time.perf_counter()
        for _ in range(STEPS if cuda else 1):  # each waits for its loss
            step.call()
        ms = 1e3 * (time.perf_counter() - began) / (STEPS if cuda else 1)
        steps = PROFILED if cuda else 1
        with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
            for _ in range(steps):
                step.call()
    taken: dict[str, list[float]] = {}
    for event in profiler.events():
        if not cuda or event.device_type.name == "CUDA":
            taken.setdefault(event.name, []).append(event.time_range.elapsed_us() / steps)
    for kernel, each in sorted(taken.items(), key=lambda found: -sum(found[1]))[:most]:
        rows.append([size, kernel[:100], sum(each), len(each) / steps])
    total, calls = sum(map(sum, taken.values())) / 1e3, sum(map(len, taken.values())) / steps
    return f"{size}: {ms:.2f} ms a step, {calls:.0f} kernels of {total:.2f} ms"


if __name__ == "__main__":
    sys.exit(main_of(StepKernels, run))
