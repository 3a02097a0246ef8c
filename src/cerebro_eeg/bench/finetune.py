"""A fine-tuning step, ours and of four models of braindecode, and a whole run of ours from a store.

A step of ours is that of ``finetune`` itself: its task, optimizer and :class:`StepComputer`, on one batch of a store
whose inputs are on the device. It computes gradients, clips them, waits for the loss and updates the weights. The forms
are *plain*, *compiled* and *captured*. Rivals run in a plain loop, which does not read its loss, and as
one CUDA graph captured by hand. All of them take turns.

*whole* is a run of ``finetune`` from the store. A step of it is timed from one report to the next over its second half,
without the gaps in which it validates. It takes turns with the fastest form of our step, and is compared with that.
"""

import contextlib
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import torch._dynamo

from cerebro_eeg.bench import braindecode_rivals
from cerebro_eeg.bench.braindecode_rivals import MODELS, captured_step, plain_step
from cerebro_eeg.bench.clock import Call, Timing, failure, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.noise_store import TASK, write_labelled_noise
from cerebro_eeg.bench.options import FinetuneBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes
from cerebro_eeg.bench.train import profiled
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import Preset, preset
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, StoppedError, TrainingError
from cerebro_eeg.fast import capturing
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import finetune
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import (
    TrainingPlan,
    begin_run,
    choose_arithmetic,
    choose_precision,
    fill_batches,
    plan_length,
)
from cerebro_eeg.runs.windows import LabelledTask, Split, find_splits, read_task, signal_of, splits_of
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.distributed import choose_device as engine_device
from cerebro_eeg.train.loop import StepReport
from cerebro_eeg.train.optim import group_parameters
from cerebro_eeg.train.step import StepComputer, StepResult

OURS = "CEReBrO"
STEPS = ("plain", "compiled", "captured")
FORMS = (*STEPS, "whole")
TURN = 10
"""Steps of a turn on a GPU, one right after the other: a step alone would also count its first launches."""
WARM = 5
"""Free calls of each form: the first captured steps are plain, recorded, and compared with a plain one."""
GRAPHS = 64
"""Graphs that torch may compile of one block: here every size and run has some, which is no sign of a mistake."""
COLUMNS: dict[str, str | None] = {
    "preset": "",
    "rival": "",
    "form": "",
    "windows": "",
    "channels": "",
    "samples": "",
    "parameters": ",",
    "ms": ".3f",
    "spread": ".1%",
    "windows_per_s": ",.0f",
    "times": ".2fx",
    "kernels_ms": ".3f",
    "over_kernels": ".2fx",
    "run_s": ".2f",
}


@dataclass(frozen=True)
class LabelledStore:
    """A store with the windows of its task, and one number of channels that stands for all of them."""

    folder: Path
    store: Store
    task: LabelledTask
    split: Split
    channels: int

    @property
    def seconds(self) -> float:
        return self.task.seconds


@dataclass(frozen=True)
class MeasuredStep:
    """A step that takes turns."""

    rival: str
    form: str
    call: Call
    samples: int
    parameters: int

    @property
    def label(self) -> str:
        return f"{self.rival}, {self.form}"


def run(options: FinetuneBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per size, shape, rival and form."""
    device = engine_device(str(choose_device(options.device, "bench finetune")))  # with its number, as in a run
    if device.type == "cuda":  # otherwise the profiler and CUDA graphs crash in one process, says torch
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
    forms = chosen_forms(options, device)
    if not set(options.without) <= set(MODELS):
        raise ConfigError(f"--without has {', '.join(options.without)}; choose of {', '.join(MODELS)}")
    rivals = [name for name in MODELS if name not in options.without]
    notes = ["times: over the fastest step of ours; a graph repeats the kernels of the plain form, whose sum it has"]
    if rivals and (error := braindecode_rivals.missing()) is not None:
        rivals = []
        notes.append(f"braindecode is not here, so ours alone is measured ({error}); pip install braindecode")
        say(notes[-1])
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    with torch._dynamo.config.patch(recompile_limit=GRAPHS):
        for name in options.presets:
            for windows in options.windows:
                for labelled in labelled_stores(options, windows):
                    failures += measure(options, name, windows, labelled, forms, rivals, rows, device)
    if "whole" in forms:
        notes.append(
            "run_s: a whole run, from the call to its result: opening and hashing the store, the model, all steps with "
            "what they compile, validation, the threshold and the weights; without simple rivals and the report"
        )
    return [table(options, rows, [*notes, *failing_notes(failures)])]


def chosen_forms(options: FinetuneBench, device: torch.device) -> tuple[str, ...]:
    """Return the forms to measure: those that were asked for, or all that mean something on this device."""
    if not set(options.forms) <= set(FORMS):
        raise ConfigError(f"--forms has {', '.join(options.forms)}; choose of {', '.join(FORMS)}")
    usual = FORMS if device.type == "cuda" else ("plain", "whole")
    return tuple(form for form in FORMS if form in (options.forms or usual))


def labelled_stores(options: FinetuneBench, windows: int) -> Iterator[LabelledStore]:
    """Yield the given store, or a store of noise for each number of channels; each lasts until the next."""
    if options.store is not None:
        yield open_labelled(options.store, options.task, windows)
        return
    for channels in options.channels:
        if channels > len(VOCABULARY):
            raise ConfigError(f"{channels} channels were asked for; there are {len(VOCABULARY)} electrodes")
        with tempfile.TemporaryDirectory() as folder:
            write_labelled_noise(Path(folder), channels, options.seconds, windows * (options.steps + 1))
            yield open_labelled(Path(folder), TASK, windows)


def open_labelled(folder: Path, name: str, windows: int) -> LabelledStore:
    """Open a store with a task of classes; raise an error if it has too few windows for a step."""
    store = Store(folder)
    task = read_task(store, name, None, None, None)
    if task.kind != "classification":
        raise ConfigError(f"task {name!r} is a {task.kind}; bench finetune compares classifiers: name another task")
    if "train" not in splits_of(store, name):
        raise ConfigError(
            f"task {name!r} has no split called train, and bench finetune takes no folds: name another task"
        )
    split = next(find_splits(store, task))
    if len(split.train) < windows:
        raise InputError(f"the task has {len(split.train)} windows to train on; take fewer --windows than {windows}")
    return LabelledStore(folder, store, task, split, round(float(split.train.channels.mean())))


def measure(
    options: FinetuneBench,
    name: str,
    windows: int,
    labelled: LabelledStore,
    forms: Sequence[str],
    rivals: Sequence[str],
    rows: list[list[Cell]],
    device: torch.device,
) -> list[tuple[str, str]]:
    """Add the rows of one size and shape, and return what failed."""
    shape = f"{name}, {windows} x {labelled.channels}"
    chosen = of_size(name, windows)
    failing: dict[str, str] = {}
    repeats = TURN if device.type == "cuda" else 1
    with contextlib.ExitStack() as stack:
        steps: dict[str, MeasuredStep] = {}
        for rival, form, make in makers(options, chosen, labelled, forms, rivals, device, stack):
            try:
                found = make()
                steps[found.label] = found
            except Exception as error:
                failing[f"{rival}, {form}"] = failure(error)
        turns = take_turns(
            {label: step.call for label, step in steps.items()}, options.rounds, step_clock(device), repeats, WARM
        )
        failing |= turns.failing
        seen = [label for label in turns.timings if steps[label].form != "captured"]  # a graph repeats plain kernels
        kernels = {label: kernels_of(steps[label], device) for label in seen}
        best = min(
            (label for label in turns.timings if steps[label].rival == OURS),
            key=lambda label: turns.timings[label].seconds,
            default=None,
        )
        for label, step in steps.items():
            timing = turns.timings.get(label)
            spent = kernels.get(f"{step.rival}, plain" if step.form == "captured" else label)
            times = None if best is None else turns.times(label, best)
            rows.append(as_row(name, step, windows, labelled, timing, times, spent))
        if "whole" in forms:
            bare = None if best is None else steps[best].call
            again = None if bare is None else partial(step_clock(device), bare, repeats)
            failing |= measure_whole(options, chosen, name, labelled, forms, again, kernels, rows, device)
    return [(f"{label}, {shape}", error) for label, error in failing.items()]


def of_size(name: str, windows: int) -> Preset:
    """Return a preset with this many windows per step."""
    found = preset(name)
    return dataclasses.replace(found, finetune=dataclasses.replace(found.finetune, batch_size=windows))


def makers(
    options: FinetuneBench,
    chosen: Preset,
    labelled: LabelledStore,
    forms: Sequence[str],
    rivals: Sequence[str],
    device: torch.device,
    stack: contextlib.ExitStack,
) -> Iterator[tuple[str, str, Callable[[], MeasuredStep]]]:
    """Yield rival, form and a function that makes the step; captures come last, as one that fails may leave traces."""
    half = choose_precision(Engine(device=str(device)), device) == "bf16"
    for form in STEPS:
        if form in forms:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield OURS, form, partial(our_step, chosen, labelled, form, folder, device)
    for form in ("plain", "captured"):
        for rival in rivals if form in forms else ():
            yield rival, form, partial(rival_step, rival, form, labelled, chosen.finetune.batch_size, half, device)


def rival_step(
    rival: str, form: str, labelled: LabelledStore, windows: int, half: bool, device: torch.device
) -> MeasuredStep:
    """Return the step of a model of braindecode, on noise of the same seconds and channels."""
    names, sfreq = VOCABULARY[: labelled.channels], labelled.split.train.sfreq
    made = braindecode_rivals.make(rival, names, len(labelled.task.names), labelled.seconds, sfreq, windows, device)
    call = captured_step(made, half) if form == "captured" else plain_step(made, half)
    return MeasuredStep(rival, form, call, made.samples, made.parameters)


def engine_of(form: str, device: torch.device, readers: int = 2) -> Engine:
    """Return the settings of ``finetune`` for a form: *whole* has the defaults."""
    if form == "captured" and device.type != "cuda":
        raise RuntimeError("CUDA graphs need a CUDA device")
    if form in ("captured", "whole"):
        return Engine(device=str(device), readers=readers)
    compiled: Literal["yes", "no"] = "yes" if form == "compiled" else "no"
    return Engine(device=str(device), readers=readers, compile=compiled, capture=False)


def our_step(chosen: Preset, labelled: LabelledStore, form: str, folder: Path, device: torch.device) -> MeasuredStep:
    """Return the step of ``finetune`` on the first batch of the store, whose inputs are on the device."""
    engine = engine_of(form, device)
    settings, windows, store = chosen.finetune, labelled.split.train, labelled.store
    processes = ProcessGroup(device=device)
    torch.manual_seed(0)
    config = dataclasses.replace(chosen.model, signal=signal_of(store))
    names = labelled.task.names
    model = Cerebro(len(names), config=config, n_times=windows.samples)
    model.reset_head(len(names), names)
    model.encoder.set_drop_path(settings.drop_path, settings.drop_path_schedule)
    order = Order(0, [len(windows)], settings.batch_size)
    length = plan_length(
        order, settings.peak_lr, settings.min_lr, settings.epochs, settings.epochs, settings.warmup_epochs, 1
    )
    groups = group_parameters(model, settings.weight_decay, 1.0, config.depth)
    said: list[str] = []
    with capturing(engine.capture), Loader([(store, windows)], threads=0, pin=device.type == "cuda") as loader:
        arithmetic = choose_arithmetic(engine, processes, RunFolder(folder), config, [windows], settings.batch_size)
        filling = fill_batches([windows], settings.batch_size, arithmetic)
        micro, dtype = arithmetic.micro_batches, arithmetic.signal_dtype
        task = finetune.LabelTask(
            windows, order, loader, settings, config.depth, False, 0, processes, micro, dtype, filling
        )
        plan = TrainingPlan(
            "finetune", model, task, groups, settings.betas, settings.clip, length, {}, lambda progress: {}
        )
        run = begin_run(plan, RunFolder(folder), engine, arithmetic, processes, said.append)
        (micro_batches,) = task.micro_batches(0, 1)
        computer = StepComputer(run)

    def step() -> StepResult:
        with capturing(engine.capture):
            computer.begin(micro_batches, (False, False), settings.min_lr)
            found = computer.finish()
            computer.update()
        check_captured(said)
        if (reason := getattr(computer, "refused", None)) is not None:
            raise TrainingError(f"steps are not captured ({reason})")
        return found

    return MeasuredStep(OURS, form, step, windows.samples, sum(p.numel() for p in model.parameters()))


def check_captured(said: Sequence[str]) -> None:
    """Raise an error if a run said that it does not capture its steps: it would be measured as what it is not."""
    for line in said:
        if "not captured" in line:
            raise TrainingError(line.removeprefix("note: "))


def kernels_of(step: MeasuredStep, device: torch.device) -> float | None:
    """Return the summed seconds of the kernels of a step by torch's profiler; None on a CPU."""
    found = profiled(step.call, device, TURN)
    return None if found is None else sum(found.values()) / 1e3


def as_row(
    name: str,
    step: MeasuredStep,
    windows: int,
    labelled: LabelledStore,
    timing: Timing | None,
    times: float | None,
    kernels: float | None,
    run_seconds: float | None = None,
) -> list[Cell]:
    """Return the row of a step; without a timing it failed."""
    row: list[Cell] = [name, step.rival, step.form, windows, labelled.channels, step.samples, step.parameters]
    if timing is None:
        return [*row, *[None] * (len(COLUMNS) - len(row))]
    row += [1e3 * timing.seconds, timing.spread, windows / timing.seconds, times]
    row += [None, None] if not kernels else [1e3 * kernels, timing.seconds / kernels]
    return [*row, run_seconds]


# A whole run


def measure_whole(
    options: FinetuneBench,
    chosen: Preset,
    name: str,
    labelled: LabelledStore,
    forms: Sequence[str],
    bare: Callable[[], float] | None,
    kernels: Mapping[str, float | None],
    rows: list[list[Cell]],
    device: torch.device,
) -> Mapping[str, str]:
    """Add the rows of whole runs, which take turns with the bare step, our fastest; return what failed."""
    taken: dict[str, list[float]] = {}

    def whole(form: str) -> Callable[[], float]:
        def call() -> float:
            pace, seconds = whole_run(options, chosen, labelled, engine_of(form, device, options.readers))
            taken.setdefault(form, []).append(seconds)
            return pace

        return call

    whole_forms = ["whole", "whole, plain"] if "captured" in forms else ["whole"]
    calls: dict[str, Call] = {form: whole(form) for form in whole_forms}
    if bare is not None:
        calls["step"] = bare
    turns = take_turns(calls, options.rounds, _as_measured, warm=1)
    windows = chosen.finetune.batch_size
    model = Cerebro(len(labelled.task.names), config=chosen.model)
    parameters = sum(p.numel() for p in model.parameters())
    for form in whole_forms:
        step = MeasuredStep(OURS, form, calls[form], labelled.split.train.samples, parameters)
        seconds = statistics.median(taken[form][1:] or taken[form]) if form in taken else None
        times = turns.times(form, "step")
        spent = kernels.get(f"{OURS}, plain")
        rows.append(as_row(name, step, windows, labelled, turns.timings.get(form), times, spent, seconds))
    return {f"{OURS}, {form}": error for form, error in turns.failing.items()}


def _as_measured(call: Call, repeats: int) -> float:
    """Return what a call says: it has measured itself."""
    found = call()
    assert isinstance(found, float)
    return found


def whole_run(options: FinetuneBench, chosen: Preset, labelled: LabelledStore, engine: Engine) -> tuple[float, float]:
    """Fine-tune from the store; return the seconds of a step of the second half, and of the whole run."""
    reported: list[tuple[int, float]] = []
    said: list[str] = []

    def tell(report: StepReport, steps: int, batch: int) -> None:
        reported.append((report.step, time.monotonic()))

    choices = finetune.FinetuneOptions(labelled.task.task, steps=options.steps, paper=True, patience=options.steps)
    with tempfile.TemporaryDirectory() as out:
        began = time.monotonic()
        try:
            finetune.finetune(
                labelled.folder, Path(out) / "run", chosen, choices, engine, rivals=False, say=said.append, tell=tell
            )
        except StoppedError as error:  # a signal ends the benchmark, not only this rival
            raise KeyboardInterrupt from error
        seconds = time.monotonic() - began
    check_captured(said)
    epoch = Order(0, [len(labelled.split.train)], chosen.finetune.batch_size).steps(1)
    return pace_of(reported, epoch), seconds


def pace_of(reported: Sequence[tuple[int, float]], epoch: int) -> float:
    """Return the mean seconds between reports of the second half; behind the last step of an epoch it validates."""
    late = reported[len(reported) // 2 - 1 :]
    gaps = [after - before for (step, before), (_, after) in pairwise(late) if step % epoch]
    if not gaps:
        raise ConfigError("an epoch is one step, so the run validates after every step; take fewer --windows")
    return sum(gaps) / len(gaps)


def table(options: FinetuneBench, rows: list[list[Cell]], notes: Sequence[str]) -> ResultTable:
    """Lay out the table, with a panel for each size and shape."""
    source = "of a store" if options.store is not None else f"of {options.seconds:g} s of noise"
    shapes = list(dict.fromkeys((row[0], row[3], row[4]) for row in rows))
    panels = [
        Panel(
            f"{shape[0]}, {shape[1]} x {shape[2]}: ms",
            "",
            _series([row for row in rows if (row[0], row[3], row[4]) == shape]),
            logarithmic=True,
        )
        for shape in shapes
    ]
    return ResultTable("finetune", f"Fine-tuning step, windows {source}", COLUMNS, rows, panels, tuple(notes))


def _series(rows: Sequence[Sequence[Cell]]) -> list[Series]:
    """Return the milliseconds over the rivals, one series per form."""
    place = list(COLUMNS).index("ms")
    return [
        Series(
            form,
            [str(row[1]) for row in rows if row[2] == form],
            [value if isinstance(value := row[place], float) else None for row in rows if row[2] == form],
        )
        for form in dict.fromkeys(str(row[2]) for row in rows)
    ]
