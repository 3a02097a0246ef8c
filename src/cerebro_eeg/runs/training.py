"""What ``pretrain`` and ``finetune`` share: batch size, schedule, engine, resume, log, and errors in one line.

A verb chooses its windows and its task. It then calls ``choose_arithmetic``, ``begin_run`` and ``training_steps``, in
this order, and does its own work between the steps.
"""

import contextlib
import contextvars
import errno
import gc
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.batching.filling import Filling
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import CerebroError, ConfigError, TrainingError
from cerebro_eeg.fast import Capture, can_capture, capturing, compile_model, has_graphs, use
from cerebro_eeg.model.encoder import Block, Stack
from cerebro_eeg.progress import counted, unheard
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.packages import require_packages
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train import loop
from cerebro_eeg.train.distributed import ProcessGroup, choose_threads, process_group, resharded, whole, wrap
from cerebro_eeg.train.log import Log
from cerebro_eeg.train.optim import ParameterGroup, Schedule, adamw
from cerebro_eeg.train.state import RunProgress, steps_done
from cerebro_eeg.train.step import autocast_to

TIMED_STEPS = 3
"""Steps that are timed for ``--minutes``, after a first one."""
TIMED_GRAPHS = 24
"""Where steps are CUDA graphs, more are timed: each shape is computed plainly, then recorded, and then repeated."""
FOR_TIMING = 0.05
"""Share of ``--minutes`` after which no more steps are timed."""
FOR_STEPS = 0.85
"""Share of ``--minutes`` for the steps; the rest is for updates of the weights and validation."""
STEPS_PER_EPOCH = 20
"""Least number of steps per epoch; a larger batch is made smaller."""
SMALLEST_BATCH = 32
GPU_SHARE = 0.6
"""Share of a GPU's memory that kept activations may take; the rest is for gradients and temporary tensors."""
GPU_PARTS = 16
"""The memory that a run may take is rounded down to this part of the GPU, so that small tensors change nothing."""
CPU_BYTES = 2 << 30
"""Memory for kept activations on a CPU, whose caches make larger micro-batches no faster."""

Say = Callable[[str], None]
"""Prints a line."""
Tell = Callable[[loop.StepReport, int, int], None]
"""Shows a step, with the number of all steps and the windows per step."""


# The processes of a run


@contextlib.contextmanager
def training_processes(
    folder: RunFolder | None, engine: Engine, say: Say, tell: Tell
) -> Iterator[tuple[ProcessGroup, Say, Tell]]:
    """Join the process group of a run and lock its folder, if it is not locked yet. Only the first process prints."""
    require_packages(*engine.loggers, why="--loggers")
    with (
        clear_errors(),
        loop.stoppable(),
        _engine_settings(engine),
        process_group(engine.device, engine.strategy) as processes,
        _locked(folder) if processes.first else unheard(),
    ):
        if not processes.first:
            say, tell = lambda line: None, lambda report, steps, batch: None
        yield processes, say, tell


def _locked(folder: RunFolder | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if folder is None else folder.locked()


@contextlib.contextmanager
def _engine_settings(engine: Engine) -> Iterator[None]:
    """Set kernels, determinism and threads, which are global to the process, and restore them afterwards."""
    threads = torch.get_num_threads()
    with (
        use("auto" if engine.kernels == "ours" else "stock"),
        capturing(engine.capture),
        loop.deterministic() if engine.deterministic else contextlib.nullcontext(),
    ):
        choose_threads(engine.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


# Batch size and schedule


@dataclass(frozen=True)
class TrainingLength:
    """The number of steps of a run, and its learning rates."""

    steps: int
    schedule: Schedule
    epoch: int
    """Steps per epoch, rounded up."""

    def ends_epoch(self, step: int) -> bool:
        """Return whether an epoch, or the run, ends with this step."""
        return step % self.epoch == 0 or step == self.steps


def fit_batch(batch: int, windows: int, paper: bool, say: Say) -> int:
    """Return the batch size, lowered to the power of two that gives 20 steps per epoch, unless ``paper`` keeps it."""
    if paper or batch <= SMALLEST_BATCH or windows // batch >= STEPS_PER_EPOCH:
        return batch
    power = 1 << max(0, (windows // STEPS_PER_EPOCH).bit_length() - 1)
    fitted = min(batch, max(SMALLEST_BATCH, power))
    if fitted != batch:
        say(f"batch size {fitted} instead of {batch:,}: {windows // fitted} steps an epoch (--paper keeps it)")
    return fitted


def plan_length(
    order: Order, peak: float, floor: float, epochs: int, stop: int, warmup: int, steps: int | None
) -> TrainingLength:
    """Return the schedule over epochs or, if ``steps`` is given, over so many steps with the same share of warm-up."""
    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}; expected at least 1")
    epoch = order.steps(1)
    if steps is not None:
        return TrainingLength(steps, Schedule(peak, floor, round(steps * warmup / stop), steps), epoch)
    return TrainingLength(order.steps(stop), Schedule(peak, floor, order.steps(warmup), order.steps(epochs)), epoch)


# Arithmetic: what rounding depends on


@dataclass(frozen=True)
class Arithmetic:
    """Choices that change the rounding of a run: a bitwise equal repetition needs the same ones."""

    precision: loop.Precision
    micro_batches: int
    """Micro-batches that each process splits its part of a step into."""
    before: Mapping[str, Any]
    """The engine in ``run.json`` of a run that is resumed; empty for a new run."""
    graphs: bool = False
    """Whether steps are laid out for CUDA graphs: in batches of few shapes, without compilation.

    They are so with ``--no-capture``, too. Captured steps therefore have the same bits as plain ones.
    """
    plain: str | None = None
    """Why steps cannot be CUDA graphs on any GPU."""

    @property
    def signal_dtype(self) -> torch.dtype:
        """The type of the signal that the model gets: the store's float16, unless all is float64."""
        return torch.float64 if self.precision == "fp64" else torch.float16


def choose_arithmetic(
    engine: Engine,
    processes: ProcessGroup,
    folder: RunFolder,
    config: ModelConfig,
    windows: Sequence[Windows],
    batch: int,
    plain: str | None = None,
) -> Arithmetic:
    """Choose precision, micro-batches and threads: as asked for, or as the run had them, or as they fit here.

    The first process decides for all. This sets the threads of the process. ``plain`` says why the steps of the model
    cannot be CUDA graphs.
    """
    samples = max(of_source.samples for of_source in windows)
    micro_batches = count_micro_batches(engine, processes, config, usual_channels(windows), samples, batch)
    before: dict[str, Any] = {}
    threads = torch.get_num_threads()
    if processes.first:
        before = folder.read()["engine"] if folder.state.exists() else {}
        same = before if before.get("processes") == processes.size else {}
        if engine.micro_batch is None:
            micro_batches = same.get("pieces", micro_batches)
        threads = engine.threads or same.get("threads") or threads
    micro_batches, threads = processes.gather((micro_batches, threads))[0]
    torch.set_num_threads(threads)
    if processes.size > 1 or processes.strategy != "ddp":
        plain = "they take one process that holds all weights"
    graphs = plain is None and has_graphs(processes.device)
    return Arithmetic(choose_precision(engine, processes.device), micro_batches, before, graphs, plain)


def choose_precision(engine: Engine, device: torch.device) -> loop.Precision:
    """Return the precision that was asked for; "auto" is bf16 on a GPU that has it."""
    if engine.precision != "auto":
        return engine.precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def count_micro_batches(
    engine: Engine, processes: ProcessGroup, config: ModelConfig, channels: int, samples: int, batch: int
) -> int:
    """Return how many micro-batches fit the memory. Each has at least one window on every process."""
    if batch < processes.size:
        raise ConfigError(
            f"a batch of {batch} cannot be shared by {processes.size} processes; use fewer, or a larger batch"
        )
    micro = engine.micro_batch
    if micro is None:
        needed = kept_bytes(engine, processes.device, config, channels, samples)
        micro = max(1, room_for_activations(processes.device) // max(1, needed))
    most = -(-batch // processes.size)
    return min(-(-most // micro), batch // processes.size)


def kept_bytes(engine: Engine, device: torch.device, config: ModelConfig, channels: int, samples: int) -> int:
    """Return the bytes that a window needs on a device in a training step."""
    kept = cost(config, channels, samples)
    needed = kept.forward_bytes if engine.recompute else kept.forward_bytes + kept.backward_bytes
    if choose_precision(engine, device) == "bf16":  # most of the kept tensors are then half as large
        needed = needed * 2 // 3
    return needed


def room_for_activations(device: torch.device) -> int:
    """Return the bytes that the kept activations of a step may take."""
    if (given := _room.get()) is not None:
        return given
    return _gpu_room(device) if device.type == "cuda" else CPU_BYTES


_room = contextvars.ContextVar[int | None]("room", default=None)


@contextlib.contextmanager
def memory_room(bytes: int | None) -> Iterator[None]:
    """Let kept activations take so many bytes while the block lasts: those of a training that is alone on its GPU.

    Trainings side by side then take as many micro-batches as one after the other, and their weights are the same bits.
    """
    token = _room.set(bytes)
    try:
        yield
    finally:
        _room.reset(token)


def _gpu_room(device: torch.device) -> int:
    """Return the bytes of a GPU that kept activations may take, once this process has let go of what it can."""
    gc.collect()  # the model of an earlier run may hang in a cycle
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return activation_room(total, free, torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device))


def activation_room(total: int, free: int, reserved: int, allocated: int) -> int:
    """Return the bytes that kept activations may take, of a GPU with so many bytes in all and free.

    What this process has ``reserved`` and not ``allocated`` to tensors is its cache, which the run can use again. So a
    run takes as many micro-batches after another run as before it.
    """
    ours = min(total, free + max(0, reserved - allocated))
    rounded = (ours * GPU_PARTS // max(1, total)) * total // GPU_PARTS
    return int(GPU_SHARE * (rounded or ours))


def usual_channels(windows: Sequence[Windows]) -> int:
    """Return a number of channels that the mean of 32 windows hardly ever exceeds, to estimate memory."""
    counts = np.concatenate([of_source.channels for of_source in windows]).astype(np.float64)
    return min(int(counts.max()), math.ceil(counts.mean() + 4 * counts.std() / math.sqrt(32)))


def describe_engine(engine: Engine, processes: ProcessGroup, arithmetic: Arithmetic) -> dict[str, Any]:
    """Return the engine as ``run.json`` keeps it: a bitwise equal repetition needs the same."""
    precision = arithmetic.precision
    return {
        "processes": processes.size,
        "strategy": processes.strategy,
        "device": processes.device.type,
        "pieces": arithmetic.micro_batches,
        "precision": precision,
        "residual": engine.residual if precision == "bf16" else precision,
        "threads": torch.get_num_threads(),
        "deterministic": engine.deterministic,
        "kernels": engine.kernels,
        "compiled": _compiles(engine, processes, arithmetic),
        "captured": arithmetic.graphs,
    }


def fill_batches(windows: Sequence[Windows], batch: int, arithmetic: Arithmetic) -> Filling | None:
    """Return how micro-batches are filled up to few shapes, for CUDA graphs; None where they are not or need not be."""
    if not arithmetic.graphs:
        return None
    channels = np.concatenate([of_source.channels for of_source in windows])
    pieces = arithmetic.micro_batches
    return Filling.choose(channels, -(-batch // pieces), one_shape=pieces > 1)


def engine_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words what rounds otherwise than before; nothing for another number of processes, which changes all."""
    if before.get("processes") != now["processes"]:
        return []
    found = []
    if before.get("threads", now["threads"]) != now["threads"]:
        found.append(f"{counted(now['threads'], 'thread')} after {before['threads']}")
    # Runs of older releases have no "residual": their blocks added in the precision of the weights.
    old = {"residual": "fp64" if before.get("precision") == "fp64" else "fp32", **before}
    for name in ("device", "precision", "residual", "kernels", "compiled", "captured", "deterministic"):
        if name in old and old[name] != now[name]:
            found.append(f"{name} {_word(now[name])} after {_word(old[name])}")
    return found


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


# Time instead of steps


@dataclass(frozen=True)
class TimeLimit:
    """The time that ``--minutes`` gives to one training."""

    minutes: float
    began: float
    """Reading of ``time.monotonic`` when its time began."""

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.began + 60 * self.minutes - time.monotonic()


def time_limit(minutes: float | None, steps: int | None, trainings: int = 1) -> TimeLimit | None:
    """Return the limit of one of several trainings; None without ``minutes``."""
    if minutes is None:
        return None
    if steps is not None:
        raise ConfigError(f"minutes is {minutes:g} and steps is {steps}; give one of them")
    if not minutes > 0:
        raise ConfigError(f"minutes is {minutes:g}; expected more than 0")
    return TimeLimit(minutes / trainings, time.monotonic())


def steps_within(
    limit: TimeLimit,
    task: loop.TrainingTask[Any],
    model: nn.Module,
    arithmetic: Arithmetic,
    processes: ProcessGroup,
    folder: RunFolder,
    say: Say,
) -> int:
    """Return how many steps fit into the time that is left, by the pace of the first ones. Nothing is learned here.

    A run that goes on keeps the number that it has planned, unless it gets another limit. Part of the time is kept for
    validation.
    """
    done = steps_done(folder.state) or 0
    found = 0
    if processes.first and done and (before := folder.read()).get("minutes") == limit.minutes:
        found = int(before["steps"])
    elif processes.first or not done:
        pace = _seconds_per_step(task, model, arithmetic, processes, limit)
        found = done + max(1, int(FOR_STEPS * limit.left() / pace))
        say(f"{limit.minutes:.3g} minutes: {found:,} steps at {pace:.3g} s each (--steps {found} repeats them)")
    steps: int = processes.gather(found)[0]
    return steps


def _seconds_per_step(
    task: loop.TrainingTask[Any],
    model: nn.Module,
    arithmetic: Arithmetic,
    processes: ProcessGroup,
    limit: TimeLimit,
) -> float:
    """Return the seconds of reading a step and computing its gradients: the median of some, after the first ones."""
    model.to(processes.device, torch.float64 if arithmetic.precision == "fp64" else torch.float32).train()

    def compute(form: Hashable, tensors: Sequence[Tensor | None]) -> Tensor:
        with autocast_to(arithmetic.precision, processes.device):
            share, _ = task.share(model, loop.Inputs(form, tuple(tensors)))
        share.backward()
        return share.detach()

    graphs = arithmetic.graphs and can_capture(processes.device)
    call = Capture(compute, processes.device) if graphs else compute
    timed = TIMED_GRAPHS if graphs else TIMED_STEPS
    seconds: list[float] = []
    first = began = time.monotonic()
    with contextlib.closing(task.micro_batches(0, timed + 1)) as batches:  # type: ignore[type-var]
        for micro_batches in batches:
            for micro_batch in micro_batches:
                inputs = task.inputs(micro_batch)
                call(inputs.form, inputs.tensors)
            if processes.device.type == "cuda":
                torch.cuda.synchronize(processes.device)
            seconds.append(time.monotonic() - began)
            began = time.monotonic()
            if len(seconds) > TIMED_STEPS and began - first > FOR_TIMING * 60 * limit.minutes:
                break
    model.zero_grad(set_to_none=True)
    return statistics.median(seconds[len(seconds) // 2 if graphs else 1 :] or seconds)


# A run from its beginning to its last step


@dataclass(frozen=True)
class TrainingPlan:
    """A training before it begins: what is trained, how, and the settings for ``run.json``."""

    verb: str
    model: nn.Module
    task: loop.TrainingTask[Any]
    groups: tuple[ParameterGroup, ...]
    betas: tuple[float, float]
    clip: float
    length: TrainingLength
    settings: Mapping[str, Any]
    about: Callable[[RunProgress], Mapping[str, Any]]
    """Describes the weights for those who use them before the run has ended."""
    limit: TimeLimit | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What ``run.json`` also says, and what may differ when the run is resumed."""


def begin_folder(
    folder: RunFolder,
    verb: str,
    settings: Mapping[str, Any],
    engine: Mapping[str, Any],
    say: Say,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write ``run.json``, and print a note if it was begun with other settings."""
    if (line := folder.begin(verb, settings, engine, facts, steps_done(folder.state))) is not None:
        say(f"note: {line}")


def begin_run(
    plan: TrainingPlan, folder: RunFolder, engine: Engine, arithmetic: Arithmetic, processes: ProcessGroup, say: Say
) -> loop.TrainingRun:
    """Begin the run or resume it: write ``run.json``, set the model up for training, and load the state."""
    now = describe_engine(engine, processes, arithmetic)
    if processes.first:
        timed = {} if plan.limit is None else {"minutes": plan.limit.minutes}
        facts = {"steps": plan.length.steps, **timed, **plan.facts}
        begin_folder(folder, plan.verb, plan.settings, now, say, facts)
    precision = arithmetic.precision
    model = plan.model.to(processes.device, torch.float64 if precision == "fp64" else torch.float32)
    blocks: list[nn.Module] = [part for part in model.modules() if isinstance(part, Block)]
    _prepare_model(engine, model, _compiles(engine, processes, arithmetic))
    wrapped = wrap(model, blocks, processes).train()
    cuda = processes.device.type == "cuda"
    if cuda and engine.capture and arithmetic.plain is not None and processes.first:
        say(f"note: steps are not captured as CUDA graphs: {arithmetic.plain}")
    optimizer = adamw(model, plan.groups, plan.betas, fused=cuda, capturable=cuda and arithmetic.graphs)
    run = loop.TrainingRun(
        plan.task,
        model,
        wrapped,
        optimizer,
        plan.length.schedule,
        plan.length.steps,
        plan.clip,
        processes,
        folder.state,
        precision,
        engine.save_minutes * 60,
        about=plan.about,
        captures=arithmetic.graphs,
        say=say,
    )
    if loop.resume(run):
        say(f"going on after step {run.progress.step:,} of {run.steps:,}")
        if run.progress.step > run.steps:
            say(f"note: {run.progress.step:,} steps are done already, so the run ends here, as it is")
        changes = engine_changes(arithmetic.before or now, now)
        if changes and run.progress.step < run.steps:
            say(
                f"note: going on with {', '.join(changes)}, which rounds otherwise: the end will not be bitwise that "
                "of a run that was never stopped"
            )
    return run


def _prepare_model(engine: Engine, model: nn.Module, compiles: bool) -> None:
    """Set checkpointing, the precision of the residual and compilation, all of which must precede the first step."""
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = engine.recompute
            part.float32_residual = engine.residual == "fp32"
    if compiles:
        compile_model(model)


def _compiles(engine: Engine, processes: ProcessGroup, arithmetic: Arithmetic) -> bool:
    """Return whether blocks are compiled. By default they are on a GPU whose steps cannot be CUDA graphs."""
    alone = processes.device.type == "cuda" and not arithmetic.graphs
    return engine.compile == "yes" or (engine.compile == "auto" and alone)


@contextlib.contextmanager
def training_steps(
    run: loop.TrainingRun, folder: RunFolder, engine: Engine, batch: int, tell: Tell, limit: TimeLimit | None = None
) -> Iterator[tuple[Iterator[loop.StepReport], Log]]:
    """Yield the steps of a run and its log. Each step is shown and logged before the caller gets it.

    Where the time is up before the last step, the run ends there. Several processes would have to agree, so they end
    with the planned number of steps alone.
    """
    with (
        Log(folder.path, run.progress.step, engine.loggers, run.processes.first) as log,
        contextlib.closing(loop.train(run)) as steps,  # type: ignore[type-var]
    ):

        def logged() -> Iterator[loop.StepReport]:
            for step in steps:
                tell(step, run.steps, batch)
                log.write(step.step, loss=step.loss, **step.values, norm=step.norm, lr=step.lr, seconds=step.seconds)
                if limit is not None and limit.left() < 0 and run.processes.size == 1 and step.step < run.steps:
                    run.say(f"the time is up after step {step.step:,} of {run.steps:,}, so training ends here")
                    run.progress.notes["finished"] = True
                yield step

        yield logged(), log


def gathered(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a module, whole and on the CPU. All processes must call this together."""
    return {name: whole(value).cpu() for name, value in resharded(module).state_dict().items()}


# Errors


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """Turn errors in the middle of a training into one clear line each. The last state stays intact."""
    try:
        yield
    except CerebroError:
        raise
    except torch.OutOfMemoryError as error:
        raise TrainingError(f"out of memory on the device; {_LESS}") from error
    except MemoryError as error:
        raise TrainingError(f"out of memory; {_LESS}") from error
    except SafetensorError as error:  # safetensors raises this when the disk is full
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
    except torch.AcceleratorError as error:
        raise TrainingError(
            f"the GPU reports an error ({' '.join(str(error).split())[:160]}); the last state is intact: the same "
            "command with --no-capture goes on without CUDA graphs, with the same bits"
        ) from error
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
