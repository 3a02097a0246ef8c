"""Clock: how long rivals take that run turn by turn, so that a slow minute of the machine meets all of them alike.

A ratio is only ever formed of medians of one such run. A rival that fails, before or during its turns, is out, and the
first line of its error stays.
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


class Clock(Protocol):
    """A way to time."""

    def __call__(self, call: Call, repeats: int) -> float:
        """Seconds of one call, from ``repeats`` of them."""


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
        """From the fastest turn to the slowest, over the median."""
        return (max(self.turns) - min(self.turns)) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Turns:
    """What became of the rivals."""

    timings: Mapping[str, Timing]
    failing: Mapping[str, str]
    """The first line of the error of each that failed."""

    def seconds(self, name: str) -> float | None:
        """The median of a rival; None where it failed."""
        return self.timings[name].seconds if name in self.timings else None

    def best(self, *without: str) -> str | None:
        """The fastest rival but for these; None where none runs."""
        left = {name: timing.seconds for name, timing in self.timings.items() if name not in without}
        return min(left, key=lambda name: left[name]) if left else None

    def times(self, rival: str | None, ours: str) -> float | None:
        """How many times as long as ours the rival takes; None where one of them failed."""
        if rival is None or rival not in self.timings or ours not in self.timings:
            return None
        return self.timings[rival].seconds / self.timings[ours].seconds


def take_turns(rivals: Mapping[str, Call], rounds: int, clock: Clock, repeats: int = 1, warm: int = 2) -> Turns:
    """Time rivals in turns, ``rounds`` each, every other round from last to first; ``warm`` calls before are free."""
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
    """The first line of what went wrong; an error after which the GPU cannot be used any more is raised again."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]  # further lines of every CUDA error name assertions
    if "illegal memory access" in line or "device-side assert" in line:
        raise error
    error.__traceback__ = None  # its frames hold the tensors of a rival that ran out of memory
    if isinstance(error, torch.OutOfMemoryError):
        gc.collect()
        torch.cuda.empty_cache()
    return " ".join(line.split())[:160]


def on_host(call: Call, repeats: int) -> float:
    """Wall clock, for work on the CPU."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def of_all_threads(call: Call, repeats: int) -> float:
    """CPU time of the whole process: others may use the machine."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def of_this_thread(call: Call, repeats: int) -> float:
    """CPU time of the thread: a read from a warm cache waits for nothing."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats


def on_device(call: Call, repeats: int) -> float:
    """Wall clock until the GPU is done: launches are part of a step, and of a latency."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def of_kernels(call: Call, repeats: int) -> float:
    """The GPU's own clock while the host is ahead of it: launches are not what is timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(LEAD_CYCLES)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1e3


def step_clock(device: torch.device) -> Clock:
    """For whole steps and passes."""
    return on_device if device.type == "cuda" else on_host


def kernel_clock(device: torch.device) -> Clock:
    """For single operators."""
    return of_kernels if device.type == "cuda" else on_host
