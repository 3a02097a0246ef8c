"""Training: what every training run shares: the batch size, the schedule, going on, logging, and its mistakes."""

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.errors import CerebroError, ConfigError, StoppedError, TrainingError
from cerebro_eeg.model.encoder import Block
from cerebro_eeg.progress import unheard
from cerebro_eeg.runs import engine as engines
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train import loop
from cerebro_eeg.train.distributed import World, at_rest, meet, whole, wrap
from cerebro_eeg.train.log import Log
from cerebro_eeg.train.optim import Group, Schedule, adamw

STEPS_AN_EPOCH = 20
"""A batch so large that an epoch has fewer steps than this is made smaller."""
SMALLEST = 32

Say = Callable[[str], None]
"""Told of things in words."""
Tell = Callable[[loop.Report, int, int], None]
"""Told of a step, of how many there are, and of the windows of each."""


@dataclass(frozen=True)
class Length:
    """How long a run trains, and how its learning rate goes."""

    steps: int
    schedule: Schedule
    an_epoch: int
    """Steps of an epoch, rounded up."""


@dataclass(frozen=True)
class Plan:
    """A training before it begins: what is trained, how, and what ``run.json`` will say of it."""

    verb: str
    model: nn.Module
    groups: tuple[Group, ...]
    betas: tuple[float, float]
    clip: float
    length: Length
    batch: int
    pieces: int
    """That a process cuts its part of a step into."""
    settings: Mapping[str, Any]
    make_task: Callable[[int, torch.dtype], loop.Task[Any]]
    """From the pieces that the run keeps to, and the type of the signal."""
    after: Callable[[loop.Run, int], tuple[dict[str, float], bool]]
    """After each step: what was measured, to be logged, and whether to stop for good."""


@contextlib.contextmanager
def together(folder: RunFolder, engine: Engine, say: Say, tell: Tell) -> Iterator[tuple[World, Say, Tell]]:
    """The processes of a run meet, and the first holds its folder; that one alone says and tells anything."""
    with (
        mistakes(),
        loop.stoppable(),
        engines.in_force(engine),
        meet(engine.device, engine.strategy) as world,
        folder.held() if world.first else unheard(),
    ):
        if not world.first:
            say, tell = lambda line: None, lambda report, steps, batch: None
        yield world, say, tell


def begin(folder: RunFolder, verb: str, settings: Mapping[str, Any], engine: Mapping[str, Any], say: Say) -> None:
    """Begin a run or go on with it, and say so where another one made room for it."""
    if (line := folder.begin(verb, settings, engine)) is not None:
        say(f"note: {line}")


def fit_batch(batch: int, windows: int, paper: bool, say: Say) -> int:
    """The batch size, lowered to the power of two that gives 20 steps an epoch, unless the paper's is wanted."""
    if paper or batch <= SMALLEST or windows // batch >= STEPS_AN_EPOCH:
        return batch
    power = 1 << max(0, (windows // STEPS_AN_EPOCH).bit_length() - 1)
    fitted = min(batch, max(SMALLEST, power))
    if fitted != batch:
        say(f"batch size {fitted} instead of {batch:,}: {windows // fitted} steps an epoch (--paper keeps it)")
    return fitted


def plan_length(
    order: Order, peak: float, floor: float, epochs: int, stop: int, warmup: int, steps: int | None
) -> Length:
    """The schedule over epochs or, where ``steps`` says so, over that many steps with the same share of warm-up."""
    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}; expected at least 1")
    an_epoch = order.steps(1)
    if steps is not None:
        return Length(steps, Schedule(peak, floor, round(steps * warmup / stop), steps), an_epoch)
    return Length(order.steps(stop), Schedule(peak, floor, order.steps(warmup), order.steps(epochs)), an_epoch)


def carry_out(plan: Plan, folder: RunFolder, engine: Engine, world: World, say: Say, tell: Tell) -> loop.Run:
    """Begin the run or go on with it, and train to the end; a signal ends it with a StoppedError."""
    precision = engines.choose_precision(engine, world.device)
    pieces, threads = world.gather(_kept(plan, folder, engine, world) if world.first else None)[0]
    torch.set_num_threads(threads)
    now = engines.describe(engine, world, pieces, precision)
    before = _engine(folder) or now if world.first else now
    if world.first:
        begin(folder, plan.verb, plan.settings, now, say)
    model = plan.model.to(world.device, torch.float64 if precision == "fp64" else torch.float32)
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    engines.prepare(engine, world, model)
    wrapped = wrap(model, blocks, world).train()
    optimizer = adamw(model, plan.groups, plan.betas, fused=world.device.type == "cuda")
    run = loop.Run(
        plan.make_task(pieces, signal_type(precision)),
        model,
        wrapped,
        optimizer,
        plan.length.schedule,
        plan.length.steps,
        plan.clip,
        world,
        folder.state,
        precision,
        engine.save_minutes * 60,
    )
    if loop.resume(run):
        say(f"going on after step {run.progress.step:,} of {run.steps:,}")
        changes = engines.changes(before, now)
        if changes and run.progress.step < run.steps:
            say(
                f"note: going on with {', '.join(changes)}, which rounds otherwise: the end will not be bitwise that "
                "of a run that was never stopped"
            )
    log = Log(folder.path, run.progress.step, engine.loggers) if world.first else None

    def report(step: loop.Report) -> None:
        tell(step, run.steps, plan.batch)
        if log is not None:
            log.write(step.step, loss=step.loss, **step.values, norm=step.norm, lr=step.lr, seconds=step.seconds)

    def after(step: int) -> bool:
        values, finished = plan.after(run, step)
        if log is not None and values:
            log.write(step, **values)
        return finished

    with log if log is not None else contextlib.nullcontext():
        if loop.train(run, report=report, after=after) == "stopped":
            raise StoppedError(f"stopped after step {run.progress.step:,} of {run.steps:,}; the same command goes on")
    return run


def _engine(folder: RunFolder) -> dict[str, Any]:
    """What the run was last computed with; nothing where it has no state yet."""
    found: dict[str, Any] = folder.read()["engine"] if folder.state.exists() else {}
    return found


def _kept(plan: Plan, folder: RunFolder, engine: Engine, world: World) -> tuple[int, int]:
    """Pieces and threads: as asked for, or those that the run has so far, or what fits here."""
    before = _engine(folder)
    if before.get("processes") != world.size:
        before = {}
    pieces = plan.pieces if engine.micro_batch is not None else before.get("pieces", plan.pieces)
    return pieces, engine.threads or before.get("threads") or torch.get_num_threads()


def signal_type(precision: loop.Precision) -> torch.dtype:
    """What the model is given: the store's float16, unless all is float64."""
    return torch.float64 if precision == "fp64" else torch.float16


def gathered(module: nn.Module) -> dict[str, Tensor]:
    """All tensors of a module, whole and on the CPU; every process must ask."""
    return {name: whole(value).cpu() for name, value in at_rest(module).state_dict().items()}


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """What goes wrong in the middle of a training, in one line each; the last state stays."""
    try:
        yield
    except CerebroError:
        raise
    except torch.OutOfMemoryError as error:
        raise TrainingError(f"out of memory on the device; {_LESS}") from error
    except MemoryError as error:
        raise TrainingError(f"out of memory; {_LESS}") from error
    except SafetensorError as error:  # its way to say that the disk is full
        raise TrainingError(
            f"the state or weights cannot be written ({' '.join(str(error).split())}); the last state is intact: make "
            "room, and the same command goes on"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TrainingError(
                f"the run cannot be written ({error.strerror}); the last state is intact: make room, and the same "
                "command goes on"
            ) from error
        raise
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if isinstance(error, torch.distributed.DistBackendError) or any(word in text for word in _GONE):
            raise TrainingError(
                f"another process of the run is gone, and says why if it could ({text.split('] ')[-1][:80]}); the last "
                "state is intact, the same command goes on"
            ) from error
        if "allocate memory" in text or "not enough memory" in text:
            raise TrainingError(f"out of memory; {_LESS}") from error
        raise


_LESS = "the last state is intact; say --micro-batch with fewer windows, or --recompute"
_GONE = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
