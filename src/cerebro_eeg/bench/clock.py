"""Clock: the time of rivals that take turns, so that a slow minute of the machine slows all of them alike.

A ratio always compares medians of one such run. A rival that fails, before or during its turns, takes no further turn,
and the first line of its error is kept.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

Call = Callable[[], object]
LEAD_CYCLES = 20_000_000  # of a GPU's clock, about 10 ms


class Timer(Protocol):
    """A way to measure time."""

    def __call__(self, call: Call, repeats: int) -> float:
        """Return the seconds of one call, as the mean of ``repeats`` calls."""


@dataclass(frozen=True)
class Timing:
    """The turns of one rival."""

    turns: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median turn."""
        return statistics.median(self.turns)

    @property
    def spread(self) -> float:
        """The difference of the slowest and the fastest turn, over the median."""
        return (max(self.turns) - min(self.turns)) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Turns:
    """The timings of the rivals that ran, and the errors of the others."""

    timings: Mapping[str, Timing]
    failing: Mapping[str, str]
    """The first line of the error of each rival that failed."""

    def seconds(self, name: str) -> float | None:
        """Return the median of a rival; None where it failed."""
        return self.timings[name].seconds if name in self.timings else None

    def best(self, *without: str) -> str | None:
        """Return the fastest rival except these; None where none runs."""
        left = {name: timing.seconds for name, timing in self.timings.items() if name not in without}
        return min(left, key=lambda name: left[name]) if left else None

    def times(self, rival: str | None, ours: str) -> float | None:
        """Return how many times as long as ours the rival takes; None where one of them failed."""
        if rival is None or rival not in self.timings or ours not in self.timings:
            return None
        return self.timings[rival].seconds / self.timings[ours].seconds


def take_turns(rivals: Mapping[str, Call], rounds: int, clock: Timer, repeats: int = 1, warm: int = 2) -> Turns:
    """Time rivals in ``rounds`` turns each, every other round from last to first, after ``warm`` free calls."""
    running, failing = dict(rivals), {}
    turns: dict[str, list[float]] = {name: [] for name in rivals}
    for name, call in rivals.items():
        try:
            for _ in range(warm):
                clock(call, 1)
        except Exception as error:
            failing[name] = failure(error)
            del running[name]
    for number in range(rounds):
        for name in list(running)[:: -1 if number % 2 else 1]:
            try:
                turns[name].append(clock(running[name], repeats))
            except Exception as error:
                failing[name] = failure(error)
                del running[name]
    return Turns({name: Timing(tuple(turns[name])) for name in running}, failing)


def failure(error: Exception) -> str:
    """Return the first line of an error; raise it again if it leaves the GPU unusable."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]  # the other lines of every CUDA error name assertions
    if "illegal memory access" in line or "device-side assert" in line:
        raise error
    error.__traceback__ = None  # its frames hold the tensors of a rival that ran out of memory
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
    return " ".join(line.split())[:160]


def on_host(call: Call, repeats: int) -> float:
    """Measure wall-clock time, for work on the CPU."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def of_all_threads(call: Call, repeats: int) -> float:
    """Measure the CPU time of the whole process: other programs may use the machine."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def of_this_thread(call: Call, repeats: int) -> float:
    """Measure the CPU time of this thread: a read from a warm cache waits for nothing."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def on_device(call: Call, repeats: int) -> float:
    """Measure wall-clock time until the GPU is done: launches are part of a step and of a latency."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def of_kernels(call: Call, repeats: int) -> float:
    """Measure by the GPU's own clock while the host is ahead of it, so that launches do not count."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LEAD_CYCLES)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1e3


def step_clock(device: torch.device) -> Timer:
    """Return the timer for whole steps and passes."""
    return on_device if device.type == "cuda" else on_host


def kernel_clock(device: torch.device) -> Timer:
    """Return the timer for single operators."""
    return of_kernels if device.type == "cuda" else on_host
