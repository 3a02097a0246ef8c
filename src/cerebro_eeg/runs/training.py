"""What follows from an ``Engine``: precision, pieces that fit into memory, kernels and compilation.

Training: what every training run shares: the batch size, the schedule, going on, logging, and its mistakes.
"""

import contextlib
import errno
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import CerebroError, ConfigError, StoppedError, TrainingError
from cerebro_eeg.fast import attention
from cerebro_eeg.fast.compile import compile_all
from cerebro_eeg.model.encoder import Block, Stack
from cerebro_eeg.progress import counted, unheard
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train import loop
from cerebro_eeg.train.distributed import ProcessGroup, at_rest, choose_threads, process_group, whole, wrap
from cerebro_eeg.train.log import Log
from cerebro_eeg.train.loop import Precision, deterministic
from cerebro_eeg.train.optim import Group, Schedule, adamw

SPARE = 0.6
"""Share of the free memory of a GPU that kept activations may take; the rest is for gradients and what is in flight."""
CPU_BYTES = 2 << 30
"""Kept activations on a CPU, whose caches make larger pieces no faster."""


def choose_precision(engine: Engine, device: torch.device) -> Precision:
    """bf16 where it was asked for, or where the GPU has it."""
    if engine.precision != "auto":
        return engine.precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def count_micro_batches(
    engine: Engine, world: ProcessGroup, config: ModelConfig, channels: int, samples: int, batch: int
) -> int:
    """Pieces that each process cuts its part of a step into; all have at least one window in each."""
    if batch < world.size:
        raise ConfigError(
            f"a batch of {batch} cannot be shared by {world.size} processes; use fewer, or a larger batch"
        )
    micro = engine.micro_batch
    if micro is None:
        free = CPU_BYTES
        if world.device.type == "cuda":
            free = int(SPARE * torch.cuda.mem_get_info(world.device)[0])
        kept = cost(config, channels, samples)
        needed = kept.forward_bytes if engine.recompute else kept.forward_bytes + kept.backward_bytes
        if choose_precision(engine, world.device) == "bf16":  # most of what is kept is then half as large
            needed = needed * 2 // 3
        micro = max(1, free // max(1, needed))
    most = -(-batch // world.size)
    return min(-(-most // micro), batch // world.size)


@contextlib.contextmanager
def applied(engine: Engine) -> Iterator[None]:
    """Kernels, determinism and threads, which hold for all of the process: afterwards they are what they were."""
    threads = torch.get_num_threads()
    kernels: attention.Choice = "auto" if engine.kernels == "ours" else "stock"
    with attention.use(kernels), deterministic() if engine.deterministic else contextlib.nullcontext():
        choose_threads(engine.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def prepare_model(engine: Engine, world: ProcessGroup, model: nn.Module) -> None:
    """Set a model's checkpointing, precision between blocks and compilation, which must be before the first step."""
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = engine.recompute
            part.wide = engine.residual == "fp32"
    if _compiles(engine, world):
        compile_all(model)


def _compiles(engine: Engine, world: ProcessGroup) -> bool:
    return engine.compile == "yes" or (engine.compile == "auto" and world.device.type == "cuda")


def describe_engine(engine: Engine, world: ProcessGroup, pieces: int, precision: str) -> dict[str, Any]:
    """What ``run.json`` keeps of it: a bitwise repetition needs the same."""
    return {
        "processes": world.size,
        "strategy": world.strategy,
        "device": world.device.type,
        "pieces": pieces,
        "precision": precision,
        "residual": engine.residual if precision == "bf16" else precision,
        "threads": torch.get_num_threads(),
        "deterministic": engine.deterministic,
        "kernels": engine.kernels,
        "compiled": _compiles(engine, world),
    }


def engine_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What rounds otherwise than where a run was before, in words; with other processes everything does."""
    if before.get("processes") != now["processes"]:
        return []
    found = []
    if before.get("threads", now["threads"]) != now["threads"]:
        found.append(f"{counted(now['threads'], 'thread')} after {before['threads']}")
    # Before there was a choice, blocks added in the precision of the weights.
    old = {"residual": "fp64" if before.get("precision") == "fp64" else "fp32", **before}
    for name in ("device", "precision", "residual", "kernels", "compiled", "deterministic"):
        if name in old and old[name] != now[name]:
            found.append(f"{name} {_word(now[name])} after {_word(old[name])}")
    return found


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def usual_channels(windows: Sequence[Windows]) -> int:
    """Channels of a window, for how much memory a piece needs: the mean of 32 windows is hardly ever above it."""
    counts = np.concatenate([of_source.channels for of_source in windows]).astype(np.float64)
    return min(int(counts.max()), math.ceil(counts.mean() + 4 * counts.std() / math.sqrt(32)))


STEPS_AN_EPOCH = 20
"""A batch so large that an epoch has fewer steps than this is made smaller."""
SMALLEST = 32

Say = Callable[[str], None]
"""Told of things in words."""
Tell = Callable[[loop.StepReport, int, int], None]
"""Told of a step, of how many there are, and of the windows of each."""


@dataclass(frozen=True)
class Length:
    """How long a run trains, and how its learning rate goes."""

    steps: int
    schedule: Schedule
    an_epoch: int
    """Steps of an epoch, rounded up."""


@dataclass(frozen=True)
class TrainingPlan:
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
    make_task: Callable[[int, torch.dtype], loop.TrainingTask[Any]]
    """From the pieces that the run keeps to, and the type of the signal."""
    after: Callable[[loop.TrainingRun, int], tuple[dict[str, float], bool]]
    """After each step: what was measured, to be logged, and whether to stop for good."""


@contextlib.contextmanager
def training_processes(
    folder: RunFolder, engine: Engine, say: Say, tell: Tell
) -> Iterator[tuple[ProcessGroup, Say, Tell]]:
    """The processes of a run meet, and the first holds its folder; that one alone says and tells anything."""
    with (
        clear_errors(),
        loop.stoppable(),
        applied(engine),
        process_group(engine.device, engine.strategy) as world,
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


def carry_out(
    plan: TrainingPlan, folder: RunFolder, engine: Engine, world: ProcessGroup, say: Say, tell: Tell
) -> loop.TrainingRun:
    """Begin the run or go on with it, and train to the end; a signal ends it with a StoppedError."""
    precision = choose_precision(engine, world.device)
    pieces, threads = world.gather(_kept(plan, folder, engine, world) if world.first else None)[0]
    torch.set_num_threads(threads)
    now = describe_engine(engine, world, pieces, precision)
    before = _engine(folder) or now if world.first else now
    if world.first:
        begin(folder, plan.verb, plan.settings, now, say)
    model = plan.model.to(world.device, torch.float64 if precision == "fp64" else torch.float32)
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    prepare_model(engine, world, model)
    wrapped = wrap(model, blocks, world).train()
    optimizer = adamw(model, plan.groups, plan.betas, fused=world.device.type == "cuda")
    run = loop.TrainingRun(
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
        changes = engine_changes(before, now)
        if changes and run.progress.step < run.steps:
            say(
                f"note: going on with {', '.join(changes)}, which rounds otherwise: the end will not be bitwise that "
                "of a run that was never stopped"
            )
    log = Log(folder.path, run.progress.step, engine.loggers) if world.first else None

    def report(step: loop.StepReport) -> None:
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


def _kept(plan: TrainingPlan, folder: RunFolder, engine: Engine, world: ProcessGroup) -> tuple[int, int]:
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
def clear_errors() -> Iterator[None]:
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
