"""The loop: steps of one or many processes, each made of pieces, until the last step, a signal or a mistake.

What is trained comes as a :class:`Task`: it yields the pieces of every step and gives each piece's *share* of the
step's loss. Shares are divided by counts over all processes, which every process knows beforehand, so their plain sum
is the loss, whatever the number of processes and pieces. The loop has no random state: where a run stands is a step
number, and ``state.py`` keeps the rest.
"""

import contextlib
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import onto
from cerebro_eeg.errors import StoppedError, TrainingError
from cerebro_eeg.train import state
from cerebro_eeg.train.distributed import ProcessGroup, syncing, whole
from cerebro_eeg.train.optim import Schedule
from cerebro_eeg.train.state import RunProgress

Precision = Literal["fp32", "bf16", "fp64"]
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
"""What asks a run to save and stop; Slurm sends the last one before its time is up."""


P = TypeVar("P")


class TrainingTask(Protocol[P]):
    """What is trained, as the loop sees it."""

    names: tuple[str, ...]
    """Of what ``share`` reports beside the loss: sums over all pieces and processes."""

    def pieces(self, first: int, last: int) -> Iterator[Sequence[P]]:
        """The pieces of this process for each step from ``first`` up to ``last``; as many on every process."""

    def share(self, module: nn.Module, piece: P) -> tuple[Tensor, Tensor]:
        """A piece's share of the step's loss, and its values (K,) for ``names``, without gradient."""

    def windows(self, piece: P) -> list[str]:
        """What the windows of a piece are called."""

    def alone(self, module: nn.Module, piece: P) -> Iterator[tuple[str, Tensor]]:
        """The loss of each window of a piece by itself, to find the one that is not a number."""

    def note(self, step: int, notes: dict[str, Any]) -> None:
        """Keep what it wants of step ``step`` in the notes of the state, while that step is being computed."""


@dataclass
class TrainingRun:
    """One training: what is trained, and with what."""

    task: TrainingTask[Any]
    module: nn.Module
    """As it is saved; its parameters are those of ``wrapped``."""
    wrapped: nn.Module
    optimizer: torch.optim.AdamW
    schedule: Schedule
    steps: int
    clip: float
    world: ProcessGroup
    path: Path
    """Of the state."""
    precision: Precision = "fp32"
    save_seconds: float = 600.0
    progress: RunProgress = field(default_factory=RunProgress)


@dataclass(frozen=True)
class StepReport:
    """A step that is done, as it is shown and logged."""

    step: int
    """From 1."""
    loss: float
    values: dict[str, float]
    norm: float
    """Of the gradient, before clipping."""
    lr: float
    seconds: float


def train(
    run: TrainingRun, *, report: Callable[[StepReport], None], after: Callable[[int], bool] | None = None
) -> Literal["done", "stopped"]:
    """Train until the last step, or until a signal; the state is saved at the end, at a signal and now and then.

    ``report`` is told of every step; ``after``, too, and says whether to stop for good (early stopping); what it keeps
    must lie in ``run.progress.notes``, where "save" asks for the state to be saved now.
    """
    world = run.world
    saved = time.monotonic()
    with _asked_to_stop() as asked, contextlib.closing(run.task.pieces(run.progress.step, run.steps)) as stream:  # type: ignore[type-var]
        ahead = _Prefetch(stream)

        def meanwhile() -> None:
            run.task.note(run.progress.step + 1, run.progress.notes)
            ahead.fetch()

        while run.progress.step < run.steps and not run.progress.notes.get("finished"):
            began = time.monotonic()
            due = world.first and began - saved > run.save_seconds
            loss, values, norm, flags = _step(run, ahead.take(), (asked.is_set(), due), meanwhile)
            run.progress.step += 1
            lr = run.schedule(run.progress.step - 1)
            report(StepReport(run.progress.step, loss, values, norm, lr, time.monotonic() - began))
            if after is not None and after(run.progress.step):
                run.progress.notes["finished"] = True
            asked_for = run.progress.notes.pop("save", False)
            done = run.progress.step == run.steps or run.progress.notes.get("finished")
            if flags[0] or flags[1] or asked_for or done:
                save(run)
                saved = time.monotonic()
            if flags[0] and run.progress.step < run.steps:
                return "stopped"
    return "done"


def save(run: TrainingRun) -> None:
    """Write the state."""
    state.save(run.path, run.module, run.optimizer, run.progress, run.world)


def resume(run: TrainingRun) -> bool:
    """Go on from the state where there is one; whether there was."""
    state.fill_moments(run.optimizer)
    if not run.path.exists():
        return False
    run.progress = state.load(run.path, run.module, run.optimizer)
    return True


class _Prefetch:
    """The next item of a stream, fetched before it is taken; what went wrong with it shows when it is taken."""

    def __init__(self, stream: Iterator[P]) -> None:
        self._stream = stream
        self._waiting: list[Any] = []
        self._error: Exception | None = None

    def fetch(self) -> None:
        try:
            self._waiting.extend(itertools.islice(self._stream, 1))
        except Exception as error:
            self._error = error

    def take(self) -> Any:
        if not self._waiting and self._error is None:
            self.fetch()
        if self._error is not None:
            raise self._error
        return self._waiting.pop()


def _step(
    run: TrainingRun, pieces: Sequence[Any], asked: tuple[bool, bool], meanwhile: Callable[[], None]
) -> tuple[float, dict[str, float], float, tuple[bool, bool]]:
    """One update; also what other processes ask for. ``meanwhile`` is called while a GPU still computes."""
    world, task = run.world, run.task
    names = task.names
    totals = torch.zeros(len(names) + 3, dtype=torch.float64 if world.device.type != "mps" else torch.float32)
    totals[-2:] = torch.tensor([float(flag) for flag in asked])
    totals = onto(totals, world.device)
    losses = []
    for number, piece in enumerate(pieces):
        with syncing(run.wrapped, number == len(pieces) - 1):
            with autocast(run):
                share, values = task.share(run.wrapped, piece)
            (share * world.size).backward()  # both strategies divide the sum of gradients by the number of processes
        losses.append(share.detach())
        totals[0] += share.detach()
        totals[1:-2] += values
    world.sum(totals)
    norm = torch.nn.utils.clip_grad_norm_(run.module.parameters(), run.clip)
    meanwhile()
    loss, *rest, size = torch.cat([totals, whole(norm).reshape(1).to(totals)]).tolist()  # the one wait of a step
    if not (math.isfinite(loss) and math.isfinite(size)):
        _raise_not_finite(run, pieces, losses)
    for group in run.optimizer.param_groups:
        group["lr"] = run.schedule(run.progress.step) * group["factor"]
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    return loss, dict(zip(names, rest[:-2], strict=True)), size, (rest[-2] > 0, rest[-1] > 0)


@contextlib.contextmanager
def deterministic(on: bool = True) -> Iterator[None]:
    """Ask torch for the same bits in every repetition, on a GPU, too, for as long as the block lasts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    filling = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(on)
    # It would also fill every new tensor, which takes time; nothing here reads what it has not written.
    filling.fill_uninitialized_memory = not on  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        filling.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def autocast(run: TrainingRun) -> contextlib.AbstractContextManager[None]:
    """The precision of the arithmetic."""
    if run.precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(run.world.device.type, torch.bfloat16)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module not training; afterwards its parts train again as they did."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _raise_not_finite(run: TrainingRun, pieces: Sequence[Any], losses: Sequence[Tensor]) -> None:
    """Say which windows made the loss or its gradient something that is not a number; nothing was updated."""
    bad = [piece for piece, loss in zip(pieces, losses, strict=True) if not math.isfinite(loss.item())]
    found: list[str] = []
    for piece in bad:
        if (
            run.world.strategy == "fsdp" and run.world.size > 1
        ):  # its forward needs all processes, and each has other windows to try
            found += run.task.windows(piece)
            continue
        with torch.no_grad(), autocast(run):
            alone = [name for name, loss in run.task.alone(run.module, piece) if not math.isfinite(loss.item())]
        found += alone or run.task.windows(piece)
    listed = [name for part in run.world.gather(found) for name in part]
    where = f"windows {', '.join(listed[:8])}" + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    if not listed:
        where = "the gradient, though every loss is a number"
    raise TrainingError(
        f"step {run.progress.step + 1} is not a number: {where}; nothing was updated and the last state is intact. "
        "Lower the learning rate, or look at these windows"
    )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Outside of the steps, too, the signals end a run in good order: what was saved is whole, the rest is undone."""
    before: dict[signal.Signals, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedError("stopped between two steps; what was saved is whole, and the same command goes on")

    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            if hasattr(signal, name):
                before[signal.Signals[name]] = signal.signal(signal.Signals[name], stop)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """An event that the signals set, for as long as the block lasts; a second one is obeyed at once."""
    asked = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is threading.main_thread():
        for name in SIGNALS:
            if hasattr(signal, name):
                which = signal.Signals[name]
                before[which] = signal.signal(which, ask)
    try:
        yield asked
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
