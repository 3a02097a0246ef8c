"""The training loop: steps of one or many processes, each made of micro-batches.

A :class:`TrainingTask` yields the micro-batches of every step and returns the *share* of each in the step's loss.
Shares are divided by counts over all processes, which every process knows beforehand. Their plain sum is therefore
the loss, whatever the number of processes and micro-batches. The loop has no random state: the position of a run is a
step number, and ``state.py`` keeps the rest. ``step.py`` computes a step, on a GPU as a CUDA graph.
"""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from cerebro_eeg.errors import StoppedError, TrainingError
from cerebro_eeg.train import state
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.optim import Schedule
from cerebro_eeg.train.state import RunProgress
from cerebro_eeg.train.step import Inputs, Precision, StepComputer, autocast

__all__ = ["Inputs", "Precision", "autocast"]  # of step.py, for those who write a task

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
"""Signals that ask a run to save and stop; Slurm sends the last one before its time is up."""


M = TypeVar("M")


class TrainingTask(Protocol[M]):
    """What is trained: the loop asks it for micro-batches and for their losses."""

    names: tuple[str, ...]
    """Names of the values that ``share`` returns beside the loss; the loop sums them over a step."""

    def micro_batches(self, first: int, last: int) -> Iterator[Sequence[M]]:
        """Yield this process's micro-batches of each step from ``first`` up to ``last``; as many on every process."""

    def inputs(self, micro_batch: M) -> Inputs:
        """Return what a micro-batch's share is computed from, on the device."""

    def share(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return a micro-batch's share of the step's loss, and its values (K,) for ``names``, without gradient.

        It depends on weights and inputs alone, so that a CUDA graph can repeat it.
        """

    def window_names(self, micro_batch: M) -> list[str]:
        """Return the names of a micro-batch's windows, for errors."""

    def window_losses(self, module: nn.Module, micro_batch: M) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the loss of each window by itself, to find the one whose loss is not a number."""

    def note(self, step: int, notes: dict[str, Any]) -> None:
        """Add to the notes of the state what the task keeps of step ``step``, while that step is being computed."""


@dataclass
class TrainingRun:
    """One training: the task, the module, and everything that a step needs."""

    task: TrainingTask[Any]
    module: nn.Module
    """The module as it is saved; its parameters are those of ``wrapped``."""
    wrapped: nn.Module
    optimizer: torch.optim.AdamW
    schedule: Schedule
    steps: int
    clip: float
    processes: ProcessGroup
    path: Path
    """File of the state."""
    precision: Precision = "fp32"
    save_seconds: float = 600.0
    progress: RunProgress = field(default_factory=RunProgress)
    saved: float = field(default_factory=time.monotonic)
    """When the state was last saved."""
    saved_notes: Mapping[str, Any] = field(default_factory=dict)
    """The notes of the state on the disk."""
    about: Callable[[RunProgress], Mapping[str, Any]] | None = None
    """Describes the weights for those who use them before the run has ended; the state keeps it."""
    captures: bool = False
    """Lay steps out for CUDA graphs and, where ``fast.capturing`` allows it, repeat them so; for one process."""
    say: Callable[[str], None] = lambda line: None
    """Prints a line."""


@dataclass(frozen=True)
class StepReport:
    """A finished step, as it is shown and logged."""

    step: int
    """Number of the step, from 1."""
    loss: float
    values: dict[str, float]
    norm: float
    """Norm of the gradient, before clipping."""
    lr: float
    seconds: float


def train(run: TrainingRun) -> Iterator[StepReport]:
    """Train until the last step or a signal, and yield a report after every step.

    The caller works between two steps: it may log, validate, and write to ``run.progress.notes``, which the state
    keeps. The note "save" asks for the state to be saved now, and "finished" ends the run early. The state is also
    saved at the end, at a signal and every ``save_seconds``. A signal raises StoppedError once the state is saved.
    Close the iterator (``contextlib.closing``), so that an error between two steps gives the signals back as well.
    """
    processes, progress = run.processes, run.progress
    run.saved = time.monotonic()
    batches = run.task.micro_batches(progress.step, run.steps)
    with _asked_to_stop() as asked, contextlib.closing(batches):  # type: ignore[type-var]
        ahead, computer, told = _Prefetch(batches), StepComputer(run), False
        while progress.step < run.steps and not progress.notes.get("finished"):
            began = time.monotonic()
            due = processes.first and began - run.saved > run.save_seconds
            micro_batches, rate = ahead.take(), run.schedule(progress.step)
            computer.begin(micro_batches, (asked.is_set(), due), rate)
            run.task.note(progress.step + 1, progress.notes)
            ahead.fetch()  # while a GPU still computes this step
            found = computer.finish()
            if not (math.isfinite(found.loss) and math.isfinite(found.norm)):
                _raise_not_finite(run, micro_batches, found.losses)
            computer.update()
            progress.step += 1
            if computer.refused is not None and not told:
                told = True
                run.say(
                    f"note: steps are not captured as a CUDA graph ({computer.refused}), so small steps wait for Python"
                )
            values = dict(zip(run.task.names, found.values, strict=True))
            yield StepReport(progress.step, found.loss, values, found.norm, rate, time.monotonic() - began)
            asked_for = progress.notes.pop("save", False)
            done = progress.step == run.steps or progress.notes.get("finished")
            stop, save_now = found.flags
            if stop or save_now or asked_for or done:
                save(run)
            if stop and progress.step < run.steps:
                raise StoppedError(f"stopped after step {progress.step:,} of {run.steps:,}; the same command goes on")


def save(run: TrainingRun) -> None:
    """Write the state."""
    about = None if run.about is None else run.about(run.progress)
    state.save(run.path, run.module, run.optimizer, run.progress, run.processes, about)
    run.saved, run.saved_notes = time.monotonic(), dict(run.progress.notes)


def resume(run: TrainingRun) -> bool:
    """Load the state if there is one, and return whether there was."""
    state.fill_moments(run.optimizer)
    if not run.path.exists():
        return False
    run.progress = state.load(run.path, run.module, run.optimizer)
    run.saved_notes = dict(run.progress.notes)
    return True


class _Prefetch:
    """Holds the next item of a stream before it is taken; an error in fetching it is raised when it is taken."""

    def __init__(self, stream: Iterator[M]) -> None:
        self._stream = stream
        self._waiting: list[Any] = []
        self._error: Exception | None = None

    def fetch(self) -> None:
        """Fetch the next item."""
        try:
            self._waiting.extend(itertools.islice(self._stream, 1))
        except Exception as error:
            self._error = error

    def take(self) -> Any:
        """Return the item that was fetched, or fetch it now."""
        if not self._waiting and self._error is None:
            self.fetch()
        if self._error is not None:
            raise self._error
        return self._waiting.pop()


@contextlib.contextmanager
def deterministic(on: bool = True) -> Iterator[None]:
    """Ask torch for the same bits in every repetition, also on a GPU, while the block lasts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filling = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(on)
    # Torch would also fill every new tensor, which is slow. Our code reads no memory that it has not written.
    filling.fill_uninitialized_memory = not on  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        filling.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module into evaluation mode while the block lasts; each part then gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _raise_not_finite(run: TrainingRun, micro_batches: Sequence[Any], losses: Sequence[float]) -> None:
    """Raise an error that names the windows whose loss or gradient is not a number. The weights were not updated."""
    bad = [item for item, loss in zip(micro_batches, losses, strict=True) if not math.isfinite(loss)]
    found: list[str] = []
    for item in bad:
        if run.processes.strategy == "fsdp" and run.processes.size > 1:
            # A sharded forward pass needs all processes, and each has other windows to try.
            found += run.task.window_names(item)
            continue
        with torch.no_grad(), autocast(run):
            alone = [name for name, loss in run.task.window_losses(run.module, item) if not math.isfinite(loss.item())]
        found += alone or run.task.window_names(item)
    listed = [name for part in run.processes.gather(found) for name in part]
    where = f"windows {', '.join(listed[:8])}" + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    if not listed:
        where = "the gradient, though every loss is a number"
    raise TrainingError(
        f"step {run.progress.step + 1} is not a number: {where}; nothing was updated and the last state is intact. "
        "Lower the learning rate, or look at these windows"
    )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turn the stop signals into StoppedError while the block lasts, for the time outside of the steps.

    The error leaves the block in good order, so saved files are whole and unfinished ones are removed.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError("stopped between two steps; what was saved is whole, and the same command goes on")

    with _handling_signals(stop):
        yield


@contextlib.contextmanager
def patiently() -> Iterator[None]:
    """Let the stop signals do nothing while the block lasts, for what must end in good order; Ctrl-C interrupts."""

    def ignore(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    with _handling_signals(ignore):
        yield


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Yield an event that the stop signals set. A second SIGINT interrupts at once."""
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    with _handling_signals(ask):
        yield asked


@contextlib.contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler for the stop signals while the block lasts. Python allows this in the main thread only."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            if hasattr(signal, name):
                which = signal.Signals[name]
                before[which] = signal.signal(which, handler)
    try:
        yield
    finally:
        for which, old in before.items():
            signal.signal(which, old)
