"""Finetune: train a labelled task, once for each seed and fold, each in a folder of its own.

``finetune`` trains by gradient steps, or fits a linear probe on frozen features. ``LabelTask`` gives the training loop
the micro-batches and their losses, with the paper's augmentation, label smoothing and drop path.

Legend: **B** windows, **R** rows, **T** samples, **K** outputs.
"""

import contextlib
import dataclasses
import functools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.batch import Batch, onto
from cerebro_eeg.config import FinetuneConfig, HeadConfig, Preset, Training
from cerebro_eeg.data.batching.filling import Filling, apart, together
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.window_labels import LabelRule
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import add_noise, constant
from cerebro_eeg.files import parse_json, remove, write_text
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import few_subjects
from cerebro_eeg.runs.external_record import training_data, write_training_data
from cerebro_eeg.runs.fold_features import FoldFeatures, fold_features
from cerebro_eeg.runs.folder import RunFolder, given_names
from cerebro_eeg.runs.gpu_sharing import shared_gpu
from cerebro_eeg.runs.packages import is_installed, require_packages
from cerebro_eeg.runs.probe import fit_probe, one_for_all, seeds_that_differ
from cerebro_eeg.runs.provenance import SeenBefore, seen_before
from cerebro_eeg.runs.readout_choice import (
    READOUTS,
    FittedReadout,
    ReadoutName,
    ask_readout,
    fit_readout,
    fitting_names,
    head_outputs,
    readout_config,
    shared_channels,
    start_readout,
)
from cerebro_eeg.runs.results import FinetuneResult, TrainedResult
from cerebro_eeg.runs.rivals import (
    AskedOfRivals,
    Control,
    Ours,
    RivalsAhead,
    compare_with_rivals,
    control_readout,
    kept_rivals,
)
from cerebro_eeg.runs.settings import Engine, Untrained
from cerebro_eeg.runs.side_by_side import (
    ProcessPlan,
    can_train_side_by_side,
    end,
    plan_processes,
    train_side_by_side,
)
from cerebro_eeg.runs.snapshot import describe_weights, usable_weights
from cerebro_eeg.runs.store_predictions import BatchOutputs, features, predict_windows, to_predictions
from cerebro_eeg.runs.training import (
    Say,
    Tell,
    TrainingPlan,
    begin_folder,
    begin_run,
    choose_arithmetic,
    fill_batches,
    fit_batch,
    gathered,
    memory_room,
    plan_length,
    steps_within,
    time_limit,
    training_processes,
    training_steps,
)
from cerebro_eeg.runs.training_processes import SeedAndFold, TrainingProcesses
from cerebro_eeg.runs.windows import (
    Electrodes,
    LabelledTask,
    Split,
    check_signal,
    electrodes_of,
    find_splits,
    name_windows,
    note_seen,
    read_alone,
    read_steps,
    read_task,
    signal_of,
    subjects_line,
    training_record,
    untrained_electrodes,
)
from cerebro_eeg.schema import from_dict, require, to_dict
from cerebro_eeg.scores import seizures
from cerebro_eeg.scores.predictions import Predictions, choose_threshold, headline, threshold_level
from cerebro_eeg.scores.tables import positive_of
from cerebro_eeg.train import loop, random_numbers
from cerebro_eeg.train.distributed import ProcessGroup, copy_into, resharded
from cerebro_eeg.train.optim import group_parameters
from cerebro_eeg.train.state import RunProgress

SAVE_SECONDS = 20.0
"""The state is saved with the best weights so far, unless it was saved less than so many seconds ago."""
FEATURES = ".features-"
"""Beginning of the name of the folder with features that processes share, while they train."""
RESAMPLES = 1000
"""Draws of subjects for the paired differences between our validation scores and those of the rivals."""


@dataclass(frozen=True)
class FinetuneOptions:
    """The flags of ``finetune`` that change what is learned, beside the preset; ``commands/finetune.py`` explains them.

    ``run.json`` keeps them, and a resumed run must have the same.
    """

    task: str
    seeds: tuple[int, ...] = (0,)
    folds: int | None = None
    freeze: bool = False
    solver: Literal["exact", "adamw"] = "exact"
    balanced: bool = False
    seconds: float | None = None
    stride: float | None = None
    labels: LabelRule | None = None
    patience: int = 10
    steps: int | None = None
    minutes: float | None = None
    paper: bool = False
    rate: Literal["error", "as_is"] = "error"
    untrained: Untrained = "error"
    lora: int | None = None
    few: bool | None = None
    """True or None and never False, so that runs of older releases, which lack it, can be resumed."""
    readout: ReadoutName | None = None
    """None is the paper's mean."""
    centring: bool | None = None
    """False never centres features per subject; None and never True, for runs of older releases."""
    strength: float | None = None
    """Inverse regularisation of an exact probe with a read-out; None chooses it. Python's estimators alone give it."""


def finetune(
    store_folder: Path,
    out: Path,
    preset: Preset,
    options: FinetuneOptions,
    engine: Engine,
    start: Path | None = None,
    *,
    rivals: bool = True,
    random_weights: bool = False,
    at_once: int | None = None,
    others: TrainingProcesses | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> FinetuneResult:
    """Train for every fold and every seed that matters, from the weights of ``start`` or from new ones.

    With ``rivals`` simple features with a linear model are scored on the validation windows as well. On a GPU, or with
    ``random_weights``, so is a head on random weights. ``at_once`` is how many trainings run side by side; None takes
    what suits this machine. ``others`` are processes for them, if some have been started already, and ``meanwhile`` is
    called by a thread while they train.
    """
    began, folder = time.monotonic(), RunFolder(out)
    time_limit(options.minutes, options.steps)  # raises an error before any work
    require(at_once is None or at_once >= 1, f"at_once is {at_once}; expected at least 1")
    options = _settle_readout(few_subjects.settle(options, start, engine), engine)
    require_packages("sklearn", why="finetune")
    with contextlib.ExitStack() as stack:
        processes, say, tell = stack.enter_context(training_processes(folder, engine, say, tell))
        for old in out.glob(f"{FEATURES}*") if processes.first else ():  # of a command that was killed
            shutil.rmtree(old, ignore_errors=True)
        store, task, splits = _read_splits(store_folder, options)
        weights = None if start is None else stack.enter_context(usable_weights(start, say))
        alike = options.freeze and options.solver == "exact" and weights is not None  # one encoder for all folds
        folds = fold_features(splits) if alike else None
        shared = _Shared(processes, store, store.hash(), task, preset, options, engine, weights, splits, folds)
        settings, seen = shared.settings(splits), _seen(weights, shared.hash, splits)
        if processes.first:
            facts = {"seen": seen.to_dict(), "given": given_names([store_folder], start)}
            begin_folder(folder, "finetune", settings, {"processes": processes.size}, say, facts)
        processes.barrier()
        say(f"{options.task}: {task.kind}, {', '.join(task.names)}; no {splits[0].unit} is in two splits")
        say(subjects_line(splits))
        for line in filter(None, [one_for_all(settings), seen.text(), _lacks_events(task)]):
            say(f"note: {line}")
        seeds = seeds_that_differ(settings)
        trainings = [SeedAndFold(split.name, seed) for split in splits for seed in seeds]
        if at_once not in (None, 1) and len(trainings) > 1 and not can_train_side_by_side(processes):
            say("note: trainings run one after the other; --at-once takes one process that holds all weights")
        ahead = None
        if others is None:
            others = stack.enter_context(contextlib.closing(TrainingProcesses()))
        plan = _plan_side_by_side(shared, trainings, out, at_once, others.held_bytes(), say)
        if plan is not None:
            ask = functools.partial(_rivals_ahead, shared, out, random_weights, meanwhile) if rivals else None
            ahead = _train_side_by_side(plan, shared, store_folder, folder, others, ask, stack, say, tell)
        others.close()  # where nothing is trained at the same time
        trained, of_name = [], {split.name: split for split in splits}
        for one in trainings:  # what is finished is only read
            if len(trainings) > 1 and not is_finished(_folder_of(out, one)):
                say(one.name)
            trained.append(_train(shared, of_name[one.fold], one.seed, _folder_of(out, one), say, tell))
        if processes.first:
            write_training_data(out, training_data(store, shared.hash, splits))
        beside = _beside_rivals(shared, splits, seeds, out, random_weights, say, ahead) if rivals else None
        return FinetuneResult(
            str(out),
            options.task,
            splits[0].unit,
            tuple(trained),
            time.monotonic() - began,
            positive_of(task.kind, task.names),
            one_for_all(settings),
            processes.first,
            seen.to_dict(),
            beside,
        )


def _read_splits(store_folder: Path, options: FinetuneOptions) -> tuple[Store, LabelledTask, list[Split]]:
    """Return the store, the task and its splits, one for each fold."""
    store = Store(store_folder)
    task = read_task(store, options.task, options.seconds, options.stride, options.labels)
    splits = list(find_splits(store, task, options.folds))
    few_subjects.check_splits(options, splits)
    return store, task, splits


@dataclass(frozen=True)
class _SideBySide:
    """Which trainings are not finished yet, and how they are done at the same time."""

    plan: ProcessPlan
    waiting: Sequence[SeedAndFold]


def _plan_side_by_side(
    shared: "_Shared", trainings: Sequence[SeedAndFold], out: Path, at_once: int | None, held: float, say: Say
) -> _SideBySide | None:
    """Return how the trainings that are not finished yet are done at the same time; None for one after the other.

    ``held`` is the memory of processes that were started ahead.
    """
    waiting = [one for one in trainings if not is_finished(_folder_of(out, one))]
    if not waiting:
        return None
    config = shared.preset.model if shared.start is None else hub.load(shared.start)[0].model
    windows, batch = [split.train for split in shared.splits], shared.preset.finetune.batch_size
    batch = max(fit_batch(batch, len(of_split), shared.options.paper, lambda line: None) for of_split in windows)
    plan = plan_processes(at_once, len(trainings), shared.processes, shared.engine, config, windows, batch, held, say)
    return None if plan is None else _SideBySide(plan, waiting)


def _train_side_by_side(
    chosen: _SideBySide,
    shared: "_Shared",
    store_folder: Path,
    folder: RunFolder,
    others: TrainingProcesses,
    ask_rivals: Callable[[], RivalsAhead | None] | None,
    stack: contextlib.ExitStack,
    say: Say,
    tell: Tell,
) -> RivalsAhead | None:
    """Do the trainings at the same time. Meanwhile this process computes what the rivals answer.

    ``ask_rivals`` begins that. What the processes and the rivals need is given up with ``stack``: processes take a
    while to end, and this one need not wait for it here.
    """
    plan, waiting, out, device = chosen.plan, chosen.waiting, folder.path, shared.processes.device
    environment: Mapping[str, str] | None = {}
    engine = plan.engine
    with contextlib.ExitStack() as own:
        if device.type == "cuda":
            environment = own.enter_context(shared_gpu(device, say))
        if environment is None:
            return None
        environment = {**environment, **plan.thread_variables(device)}
        if "CUDA_VISIBLE_DEVICES" in environment:
            engine = dataclasses.replace(engine, device="cuda")
        say(plan.line(len(waiting)))
        features = None
        if shared.folds is not None:
            _compute_features(shared, say)
            try:
                features = Path(own.enter_context(tempfile.TemporaryDirectory(prefix=FEATURES, dir=out)))
                shared.folds.save(features)
            except OSError as error:
                say(f"note: heads are fitted one after the other: features cannot be written ({error.strerror})")
                return None
        settings = {
            "store": str(store_folder.absolute()),
            "out": str(out.absolute()),
            "preset": to_dict(shared.preset),
            "options": to_dict(shared.options),
            "engine": to_dict(engine),
            "start": None if shared.start is None else str(shared.start),
            "at_once": plan.processes,
            "features": None if features is None else str(features),
            "room": plan.room,
        }
        own.callback(end, others)
        ahead = None if ask_rivals is None else ask_rivals()
        if ahead is not None:
            own.callback(ahead.stop)
        train_side_by_side(
            settings,
            waiting,
            plan.processes,
            others,
            done=functools.partial(_line, out),
            environment=environment,
            descriptors=folder.lock_descriptors(),
            say=say,
            tell=tell,
        )
        stack.push(own.pop_all())
    return ahead


def _line(out: Path, one: SeedAndFold) -> str:
    """Return a line about a training that is finished."""
    found = _read_finished(_folder_of(out, one), one.fold, one.seed)
    if found.validation is None:
        return "trained without validation"
    return f"validation {found.metric} {found.validation:.4f}"


def _compute_features(shared: "_Shared", say: Say) -> None:
    """Compute what the heads of all folds read of the frozen encoder."""
    assert shared.folds is not None
    options, processes = shared.options, shared.processes
    model = _make_model(shared, options.seeds[0], shared.splits[0]).to(processes.device)
    for split in shared.splits:
        electrodes = _choose_electrodes(shared, model, split, say)
        if options.readout is None:
            _mean_features(shared, model, split, electrodes, say)
        else:
            asked = ask_readout(model, split, options.readout, processes, electrodes=electrodes, say=say)
            asked.features(model, shared.store, split, processes, electrodes, shared.folds, say)


@contextlib.contextmanager
def trainer(settings: Mapping[str, Any], say: Say, tell: Tell) -> Iterator[Callable[[SeedAndFold], TrainedResult]]:
    """Yield a function that does one of the trainings of a run, for a process of ``side_by_side.py``."""
    options, engine = from_dict(FinetuneOptions, settings["options"]), from_dict(Engine, settings["engine"])
    preset = from_dict(Preset, settings["preset"])
    start, features = (None if settings[name] is None else Path(settings[name]) for name in ("start", "features"))
    with training_processes(None, engine, say, tell) as (processes, say, tell), memory_room(settings["room"]):
        store, task, splits = _read_splits(Path(settings["store"]), options)
        folds = None if features is None else FoldFeatures.load(features, splits)
        shared = _Shared(
            processes,
            store,
            store.hash(),
            task,
            preset,
            options,
            engine,
            start,
            splits,
            folds,
            settings["at_once"],
            True,
        )
        by_name = {split.name: split for split in splits}
        out = Path(settings["out"])
        yield lambda one: _train(shared, by_name[one.fold], one.seed, _folder_of(out, one), say, tell)


def train_on(
    store: Store,
    task: LabelledTask,
    windows: Windows,
    out: Path,
    preset: Preset,
    options: FinetuneOptions,
    engine: Engine,
    processes: ProcessGroup,
    start: Path | None,
    *,
    say: Say = lambda line: None,
) -> Cerebro:
    """Train on windows by gradient steps, for the first seed, without any validation, and return the model.

    The length is fixed, so the last weights are taken. ``compare`` trains like this within its cross-validation.
    """
    options = _settle_readout(few_subjects.settle(options, start, engine), engine)
    seed, split = options.seeds[0], Split("", "subject", windows, None, None)
    shared = _Shared(processes, store, store.hash(), task, preset, options, engine, start, [split], None)
    model = _make_model(shared, seed, split)
    one = _OneTraining(model, split, RunFolder(out), _choose_electrodes(shared, model, split, say), seed)
    _train_by_steps(shared, one, say, lambda report, steps, batch: None)
    model.load_state_dict(_in_units(model.state_dict(), split))
    return model


def train_split(
    store: Store,
    task: LabelledTask,
    split: Split,
    out: Path,
    preset: Preset,
    options: FinetuneOptions,
    engine: Engine,
    start: Path | None,
    *,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> TrainedResult:
    """Do the training of one split, for the first seed, in a folder of its own; its weights are ``model.safetensors``.

    It is what ``finetune`` does for each seed and fold. The estimators of scikit-learn use it with a store in memory.
    """
    options = _settle_readout(few_subjects.settle(options, start, engine), engine)
    few_subjects.check_splits(options, [split])
    folder = RunFolder(out)
    with training_processes(folder, engine, say, tell) as (processes, say, tell):
        shared = _Shared(processes, store, store.hash(), task, preset, options, engine, start, [split], None)
        return _train(shared, split, options.seeds[0], folder, say, tell)


def _settle_readout(options: FinetuneOptions, engine: Engine) -> FinetuneOptions:
    """Return the options with None for the paper's mean; raise an error for what does not go together."""
    if options.readout in (None, "mean") and not (options.readout == "mean" and options.freeze):
        return dataclasses.replace(options, readout=None)
    by_steps = not options.freeze or options.solver != "exact"
    if by_steps and options.readout == "auto":
        raise ConfigError(
            "--readout auto chooses among exact probes, for --freeze; for gradient steps name one of "
            f"{', '.join(READOUTS)}"
        )
    if by_steps and engine.strategy == "fsdp":
        raise ConfigError(f"--readout {options.readout} does not work with --strategy fsdp; leave one of them out")
    return options


def _seen(start: Path | None, hash: str, splits: Sequence[Split]) -> SeenBefore:
    """Return whether the weights to start from have learned from the test subjects; without these, the validation's."""
    training = Training() if start is None else hub.load(start)[0].training
    tests = [split.test for split in splits if split.test is not None]
    held_out = tests or [split.validation for split in splits if split.validation is not None]
    part = "test" if tests else "validation"
    return seen_before(training.data, training.windows > 0, hash, held_out, part)


def _lacks_events(task: LabelledTask) -> str | None:
    """Return a line if evaluate will need a package for the events of this task that is not here."""
    if seizures.seizure_class(task.names) is None or is_installed("timescoring"):
        return None
    return "evaluate needs the package timescoring to score events, which is not here; pip install timescoring"


@dataclass(frozen=True)
class _Shared:
    """Everything that all trainings of one ``finetune`` share."""

    processes: ProcessGroup
    store: Store
    hash: str
    """Hash of the store."""
    task: LabelledTask
    preset: Preset
    options: FinetuneOptions
    engine: Engine
    start: Path | None
    splits: Sequence[Split]
    folds: FoldFeatures | None
    """Features that folds share, where the encoder is frozen and the same in all."""
    at_once: int = 1
    """How many trainings run side by side."""
    terse: bool = False
    """Whether validations are not printed, as for trainings side by side."""

    def settings(self, splits: Sequence[Split]) -> dict[str, Any]:
        """Return the settings of the run for ``run.json``."""
        start = None
        if self.start is not None:
            start = checkpoint.hash_tensors(hub.load(self.start)[1])
        return {
            "task": dataclasses.asdict(self.task),
            "unit": splits[0].unit,
            "choices": to_dict(self.options),
            "model": to_dict(self.preset.model) if self.start is None else None,
            "finetune": to_dict(self.preset.finetune),
            "from": start,
            "store": {"dataset": self.store.info.dataset, "sha256": self.hash},
            "windows": [[0 if p is None else len(p) for p in (s.train, s.validation, s.test)] for s in splits],
        }


@dataclass(frozen=True)
class _OneTraining:
    """The model, windows and folder of one training."""

    model: Cerebro
    split: Split
    folder: RunFolder
    electrodes: Electrodes | None
    seed: int


def _beside_rivals(
    shared: _Shared,
    splits: Sequence[Split],
    seeds: Sequence[int],
    out: Path,
    random_weights: bool,
    say: Say,
    ahead: RivalsAhead | None = None,
) -> list[dict[str, Any]] | None:
    """Return how the validation predictions stand beside the rivals; None without any, or in several processes."""
    processes = shared.processes
    if any(split.validation is None or not len(split.validation) for split in splits):
        return None
    if processes.size > 1:
        say("note: simple rivals are scored in one process; the same command again without torchrun adds them")
        return None
    random_weights = random_weights or processes.device.type == "cuda"
    if (kept := kept_rivals(out, "validation", random_weights)) is not None:
        return kept
    ours: dict[str, list[Ours]] = {split.name: [] for split in splits}
    for split in splits:
        for seed in seeds:
            folder = RunFolder(out / split.name / f"seed-{seed}")
            found = Ours(Predictions.load(folder.path / "validation.npz"), checkpoint.read_header(folder.model))
            ours[split.name].append(found)
    asked = _asked_of_rivals(shared, splits)
    return compare_with_rivals(
        out, asked, ours, resamples=RESAMPLES, say=say, random_weights=random_weights, ahead=ahead
    )


def _asked_of_rivals(shared: _Shared, splits: Sequence[Split]) -> AskedOfRivals:
    options = shared.options
    return AskedOfRivals(
        shared.store, splits, shared.processes, "validation", options.balanced, centring=options.centring is not False
    )


def _rivals_ahead(shared: _Shared, out: Path, random_weights: bool, then: Callable[[], None]) -> RivalsAhead | None:
    """Begin to compute what the rivals answer, unless the run keeps it or validation windows are missing."""
    if any(split.validation is None or not len(split.validation) for split in shared.splits):
        return None
    random_weights = random_weights or shared.processes.device.type == "cuda"
    if kept_rivals(out, "validation", random_weights) is not None:
        return None
    control = None
    if random_weights and not (shared.options.freeze and shared.options.readout is not None):
        config = shared.preset.model if shared.start is None else hub.load(shared.start)[0].model
        readout = control_readout(shared.options.readout)
        control = Control(
            dataclasses.replace(config, signal=signal_of(shared.store)),
            {split.name: readout for split in shared.splits},
        )
    return RivalsAhead(_asked_of_rivals(shared, shared.splits), control, then)


def _train(shared: _Shared, split: Split, seed: int, folder: RunFolder, say: Say, tell: Tell) -> TrainedResult:
    """Train one seed and fold, or return the result of a training that is finished."""
    if is_finished(folder):
        if shared.processes.first:
            _remove_unfinished(folder)
        return _read_finished(folder, split.name, seed)
    model = _make_model(shared, seed, split)
    for line in check_signal([shared.store], model.config, shared.options.rate):
        say(f"note: {line}")
    one = _OneTraining(model, split, folder, _choose_electrodes(shared, model, split, say), seed)
    fitted, steps, chosen = None, 0, None
    if shared.options.freeze and shared.options.solver == "exact":
        fitted = _train_probe(shared, one, say)
    else:
        if shared.options.readout is not None:
            _give_readout(shared, one, say)
        steps, chosen = _train_by_steps(shared, one, say, tell)
    return _finish(shared, one, steps, chosen, fitted)


def _give_readout(shared: _Shared, one: _OneTraining, say: Say) -> None:
    """Give a model a new head with the read-out that was named; its numbers are set before the first step."""
    assert shared.options.readout is not None
    names, channels = one.split.train.names, shared_channels(one.split, one.electrodes)
    (name,) = fitting_names(shared.options.readout, channels, say)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(one.seed)
        one.model.reset_head(len(names), names, readout_config(READOUTS[name], channels))
    if shared.options.freeze:
        one.model.freeze()


def _make_model(shared: _Shared, seed: int, split: Split) -> Cerebro:
    """Return the checkpoint's encoder, or a new one, with a new head; for a seed the same on every process."""
    names = split.train.names
    as_is = shared.options.rate == "as_is"
    kind: Literal["classification", "regression"] = (
        "regression" if shared.task.kind == "regression" else "classification"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if shared.start is None:
            config = dataclasses.replace(shared.preset.model, signal=signal_of(shared.store))
            model = Cerebro(len(names), config=config, task=kind, n_times=split.train.samples)
        else:
            model = Cerebro.from_pretrained(
                shared.start,
                len(names),
                task=kind,
                n_times=split.train.samples,
                sfreq=split.train.sfreq if as_is else None,
                rate="as_is" if as_is else "error",
            )
        model.head = HeadConfig(len(names), kind)
        model.reset_head(len(names), names)
    if shared.options.freeze:
        model.freeze()
    return model


def _choose_electrodes(shared: _Shared, model: Cerebro, split: Split, say: Say) -> Electrodes | None:
    """Return how channels are read: a frozen encoder needs a policy for electrodes that were never trained.

    Full fine-tuning trains their rows and needs none. Adapters leave the rows as they are.
    """
    if shared.start is None:
        return None
    read = [split] if shared.folds is None else shared.splits  # shared features need one policy for all folds
    parts = [part for one in read for part in (one.train, one.validation) if part is not None]
    trained = model.training_record.electrode_windows
    if shared.options.freeze or shared.options.lora is not None:
        return electrodes_of(parts, trained, shared.options.untrained)
    if new := untrained_electrodes(parts, trained):
        listed = ", ".join(new[:8]) + (" ..." if len(new) > 8 else "")
        say(f"{len(new)} electrodes have no training in these weights; fine-tuning trains their rows: {listed}")
    return None


def _train_probe(shared: _Shared, one: _OneTraining, say: Say) -> FittedReadout | None:
    """Fit the head with scikit-learn on frozen features, and write it into the model.

    The mean of the last tokens has its strength chosen on validation, as every release did. Other read-outs are chosen
    by cross-validation over subjects, and what that gave is returned.
    """
    processes, model, split, folder = shared.processes, one.model, one.split, one.folder
    if processes.first and not shared.options.few:  # the steps that follow have begun the folder
        begin_folder(folder, "probe", {"seed": one.seed, "fold": split.name}, {"processes": processes.size}, say)
    model.to(processes.device)
    if shared.options.readout is not None:
        return _fit_readout(shared, one, say)
    kept = _mean_features(shared, model, split, one.electrodes, say)
    probe = fit_probe(
        shared.store,
        split.train,
        kept["train"],
        split.validation,
        kept.get("validation"),
        balanced=shared.options.balanced,
    )
    layer = model.final_layer
    assert isinstance(layer, nn.Linear)
    weight_KD, bias_K = probe.weight_KD, probe.bias_K
    if split.train.target is not None:  # in the units that gradient steps learn in; _finish converts them back
        scaling = scaling_of(split.train)
        weight_KD, bias_K = weight_KD / scaling.std_K[:, None], (bias_K - scaling.mean_K) / scaling.std_K
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight_KD))
        layer.bias.copy_(torch.from_numpy(bias_K))
    if processes.first:
        write_text(folder.path / "probe.json", json.dumps({"strength": probe.strength, "scores": probe.scores}) + "\n")
    return None


def _mean_features(
    shared: _Shared, model: Cerebro, split: Split, electrodes: Electrodes | None, say: Say
) -> dict[str, NDArray[np.float32]]:
    """Return the means of the last tokens for the windows of a split; folds share them."""

    def compute(windows: Windows) -> NDArray[np.float32]:
        return predict_windows(
            model, shared.store, windows, shared.processes, electrodes=electrodes, read=features, say=say
        )

    parts = {"train": split.train, "validation": split.validation}
    of = compute if shared.folds is None else shared.folds.means(compute)
    return {name: of(part) for name, part in parts.items() if part is not None}


def _fit_readout(shared: _Shared, one: _OneTraining, say: Say) -> FittedReadout:
    """Choose and fit a read-out and its head. Before gradient steps it has no centring and leaves validation alone."""
    model, options = one.model, shared.options
    assert options.readout is not None
    first = bool(options.few)
    fitted = fit_readout(
        model,
        shared.store,
        one.split,
        options.readout,
        shared.processes,
        electrodes=one.electrodes,
        balanced=options.balanced,
        centring=not first and options.centring is not False,
        strength=options.strength,
        validate=not first,
        folds=shared.folds,
        say=say,
    )
    say(fitted.line())
    if options.freeze:
        model.freeze()
    if one.split.train.target is not None:  # in the units that gradient steps learn in; _finish converts them back
        scaling, layer = scaling_of(one.split.train), model.final_layer
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            std_K, mean_K = (torch.from_numpy(x).to(layer.weight) for x in (scaling.std_K, scaling.mean_K))
            layer.weight.div_(std_K[:, None])
            layer.bias.sub_(mean_K).div_(std_K)
    if shared.processes.first:
        write_text(one.folder.path / "probe.json", json.dumps(fitted.model.to_dict()) + "\n")
    return fitted


def _train_by_steps(shared: _Shared, one: _OneTraining, say: Say, tell: Tell) -> tuple[int, int | None]:
    """Train by gradient steps, and leave the best weights on validation in the model.

    Returns the number of steps and the step of the best weights, which is None without validation.
    """
    options, engine, processes, store = shared.options, shared.engine, shared.processes, shared.store
    split, folder, seed = one.split, one.folder, one.seed
    model = few_subjects.learner_of(one.model, options, seed)  # one.model itself, unless it gets adapters
    config, table, windows = model.config, shared.preset.finetune, split.train
    batch = fit_batch(table.batch_size, len(windows), options.paper, say)
    order = Order(seed, [len(windows)], batch)
    turns = -(-len(shared.splits) * len(options.seeds) // shared.at_once)
    limit = time_limit(options.minutes, options.steps, turns)
    plain = None if model.readout is None or not model.readout.waits else "the read-out waits for the GPU"
    arithmetic = choose_arithmetic(engine, processes, folder, config, [windows], batch, plain)
    micro, dtype = arithmetic.micro_batches, arithmetic.signal_dtype
    layer_decay = table.layer_decay if shared.start is not None else 1.0  # new lower layers must learn as fast
    model.encoder.set_drop_path(table.drop_path, table.drop_path_schedule)
    settings = {"seed": seed, "fold": split.name, "batch_size": batch, "finetune": to_dict(table)}
    before, scaling = model.training_record, None if windows.target is None else scaling_of(windows).to_dict()

    def record(progress: RunProgress) -> Training:
        if options.freeze:  # a frozen encoder learns no electrode
            return before
        sources, task = [(store, windows)], shared.task.task
        found = training_record(before, progress.notes, sources, [shared.hash], progress.step, task)
        if options.lora is not None:  # adapters do not train the rows of electrodes
            found = dataclasses.replace(found, electrode_windows=before.electrode_windows)
        return found

    cuda = processes.device.type == "cuda"
    with Loader(
        [(store, windows)], threads=engine.readers, processes=cuda, pin=cuda, electrodes=one.electrodes
    ) as loader:
        filling = fill_batches([windows], batch, arithmetic)
        task = LabelTask(
            windows, order, loader, table, config.depth, options.balanced, seed, processes, micro, dtype, filling
        )
        fixed = options.steps
        if limit is not None:
            fixed = steps_within(limit, task, model, arithmetic, processes, folder, say)
        length = plan_length(order, table.peak_lr, table.min_lr, table.epochs, table.epochs, table.warmup_epochs, fixed)
        length = few_subjects.checked_often(length) if options.few else length
        if split.validation is None:
            say(f"the task has no validation windows: {length.steps:,} steps, and the last weights are taken")

        def about(progress: RunProgress) -> dict[str, Any]:
            header = dataclasses.replace(model.header, training=record(progress))
            return describe_weights(header, length.steps, scaling)

        groups = group_parameters(model, table.weight_decay, layer_decay, config.depth)
        plan = TrainingPlan("finetune", model, task, groups, table.betas, table.clip, length, settings, about, limit)
        run = begin_run(plan, folder, engine, arithmetic, processes, say)
        few_subjects.move_like(one.model, model)
        outputs = _validation_outputs(shared, one, run)
        with training_steps(run, folder, engine, batch, tell, limit) as (steps, log):
            if options.readout is not None and not options.few and run.progress.step == 0:
                start_readout(one.model, store, windows, processes, one.electrodes)
                if model is not one.model and model.readout is not None and one.model.readout is not None:
                    model.readout.load_state_dict(one.model.readout.state_dict())
            if options.few and run.progress.step == 0:
                _train_probe(shared, one, say)
                few_subjects.begin_with_head(model, one.model)
                if split.validation is not None:
                    metric, score = _validate(shared, one, run, outputs, 0)
                    log.write(0, epoch=0, **{f"validation_{metric}": score})
            for step in steps:
                few_subjects.update_average(model)
                ends = length.ends_epoch(step.step) or run.progress.notes.get("finished")
                if split.validation is not None and ends:
                    epoch = -(-step.step // length.epoch)
                    metric, score = _validate(shared, one, run, outputs, epoch)
                    passed = -(-step.step // order.steps(1))  # another number than the epoch only with --few
                    log.write(step.step, epoch=passed, **{f"validation_{metric}": score})
                    if not shared.terse:
                        say(_validation_line(run, metric, score))
                    if epoch - run.progress.notes["best_epoch"] >= options.patience:
                        run.progress.notes["finished"] = True
    notes = run.progress.notes
    if model is not one.model:
        few_subjects.fill_plain(one.model, model)
        model = one.model
    model.training_record = record(run.progress)
    tensors = gathered(model)
    if processes.first and "best" in notes:
        tensors = checkpoint.read(_best_weights(folder, notes["best_step"]))[1]
    for name, value in resharded(model).state_dict().items():
        copy_into(processes.broadcast(tensors[name].to(processes.device)), value)
    return run.progress.step, notes.get("best_step")


def _validation_outputs(shared: _Shared, one: _OneTraining, run: loop.TrainingRun) -> BatchOutputs:
    """Return what computes the outputs of all validations of a training; CUDA graphs are then recorded once.

    Where adapters learn, what is scored is the plain model that would be saved, as it is then.
    """
    if run.module is not one.model:
        return BatchOutputs(one.model, shared.processes, at_once=shared.at_once)
    return BatchOutputs(run.wrapped, shared.processes, precision=run.precision, at_once=shared.at_once)


def _validate(
    shared: _Shared, one: _OneTraining, run: loop.TrainingRun, outputs: BatchOutputs, epoch: int
) -> tuple[str, float]:
    """Score the validation windows, keep the weights if they are the best so far, and return metric and score."""
    validation, folder, step = one.split.validation, one.folder, run.progress.step
    assert validation is not None
    if run.module is not one.model:
        few_subjects.fill_plain(one.model, run.module)
    output = head_outputs(
        outputs.model, shared.store, validation, shared.processes, electrodes=one.electrodes, outputs=outputs
    )
    metric, score = headline(to_predictions(shared.store, validation, _unscaled(output, one.split)))
    notes = run.progress.notes
    named = run.saved_notes.get("best_step", 0)  # the state on the disk names these weights, so they stay with it
    if score > notes.get("best", -np.inf):
        notes.update(best=score, best_step=step, best_epoch=epoch)
        tensors = gathered(one.model)
        if shared.processes.first:
            checkpoint.save_tensors(_best_weights(folder, step), tensors, one.model.header)
            for old in folder.path.glob("best-*.safetensors"):
                if old not in (_best_weights(folder, step), _best_weights(folder, named)):
                    remove(old)
    # Several processes save together, so no clock decides there.
    late = run.processes.size > 1 or time.monotonic() - run.saved > SAVE_SECONDS
    if late and notes["best_step"] != named:
        notes["save"] = True
    return metric, score


def _validation_line(run: loop.TrainingRun, metric: str, score: float) -> str:
    """Return the line on a validation: its score, and how far the best one is behind."""
    notes, step = run.progress.notes, run.progress.step
    best = (
        "the best so far" if notes["best_step"] == step else f"best {notes['best']:.4f} at step {notes['best_step']:,}"
    )
    return f"step {step:,}: validation {metric} {score:.4f}, {best}"


def _finish(
    shared: _Shared, one: _OneTraining, steps: int, chosen: int | None, fitted: FittedReadout | None
) -> TrainedResult:
    """Predict validation, choose the threshold on it, write the weights, and then ``finished.json``."""
    model, split, folder = one.model, one.split, one.folder
    metric, score, threshold = "", None, None
    level: Literal["recording", "window", "unknown"] = "unknown"
    if (answers := _validation_answers(shared, one, fitted)) is not None:
        found, deciding = answers
        metric, score = headline(found)
        if found.kind == "classification" and len(found.names) == 2:
            threshold, level = choose_threshold(deciding), threshold_level(deciding)
        if shared.processes.first:
            found.save(folder.path / "validation.npz")
    assert model.head is not None
    model.head = dataclasses.replace(model.head, threshold=threshold, threshold_level=level)
    tensors = _in_units(gathered(model), split)
    if shared.processes.first:
        checkpoint.save_tensors(folder.model, tensors, model.header)
        result = {"steps": steps, "metric": metric, "validation": score, "threshold": threshold, "chosen": chosen}
        write_text(folder.path / "finished.json", json.dumps(result) + "\n")
        _remove_unfinished(folder)
    shared.processes.barrier()
    return TrainedResult(str(folder.path), split.name, one.seed, steps, metric, score, threshold, chosen)


def _validation_answers(
    shared: _Shared, one: _OneTraining, fitted: FittedReadout | None
) -> tuple[Predictions, Predictions] | None:
    """Return predictions of the validation windows, and those that the threshold is chosen on; None without any.

    A head that was fitted on validation subjects as well is not asked about them. Models that had not seen their
    subjects answered in the cross-validation, for the training windows, too, and the threshold is chosen on all.
    """
    split, store = one.split, shared.store
    if fitted is not None and fitted.held_out:
        parts = {"train": split.train, "validation": split.validation}
        kept = {
            part: to_predictions(store, windows, fitted.held_out[part][fitted.model.name])
            for part, windows in parts.items()
            if windows is not None and part in fitted.held_out
        }
        if "validation" in kept:
            return kept["validation"], kept["train"].joined(kept["validation"])
        if split.validation is None:
            return None
    if split.validation is None:
        return None
    output = head_outputs(one.model, store, split.validation, shared.processes, electrodes=one.electrodes)
    found = to_predictions(store, split.validation, _unscaled(output, split))
    return found, found


def is_finished(folder: RunFolder) -> bool:
    """Return whether a training is finished."""
    return (folder.path / "finished.json").exists()


def _folder_of(out: Path, one: SeedAndFold) -> RunFolder:
    """Return the folder of a training inside of its run."""
    return RunFolder(out / one.fold / f"seed-{one.seed}")


def _remove_unfinished(folder: RunFolder) -> None:
    """Remove files that only an unfinished training needs. ``finished.json`` comes first, so a kill loses nothing."""
    for path in (folder.state, *folder.path.glob("best-*.safetensors")):
        remove(path)


def _best_weights(folder: RunFolder, step: int) -> Path:
    """Return the file of the weights that were the best on validation, after ``step`` steps."""
    return folder.path / f"best-{step}.safetensors"


def _read_finished(folder: RunFolder, fold: str, seed: int) -> TrainedResult:
    try:
        found = parse_json((folder.path / "finished.json").read_text(encoding="utf-8"))
        return TrainedResult(
            str(folder.path),
            fold,
            seed,
            found["steps"],
            found["metric"],
            found["validation"],
            found["threshold"],
            found.get("chosen"),  # older releases did not write it
        )
    except (ValueError, KeyError) as error:
        raise ConfigError(f"finished.json of {folder.path} is damaged; delete that folder and run again") from error


@dataclass(frozen=True)
class TargetScaling:
    """Mean and deviation of a regression's targets over the training windows. The head learns scaled targets."""

    mean_K: NDArray[np.float64]
    std_K: NDArray[np.float64]

    def to_dict(self) -> dict[str, list[float]]:
        return {"mean": self.mean_K.tolist(), "std": self.std_K.tolist()}


def scaling_of(windows: Windows) -> TargetScaling:
    """Return the scaling of the training windows' targets."""
    assert windows.target is not None
    target = windows.target.astype(np.float64)
    std = target.std(0)
    return TargetScaling(target.mean(0), np.where(std > 0, std, 1.0))


def _unscaled(output: Any, split: Split) -> Any:
    """Return a head's outputs in the unit of the targets."""
    if split.train.target is None:
        return output
    scaling = scaling_of(split.train)
    return (output * scaling.std_K + scaling.mean_K).astype(np.float32)


def _in_units(tensors: dict[str, Tensor], split: Split) -> dict[str, Tensor]:
    """Return the tensors with a head that gives values in the unit of the targets."""
    if split.train.target is None:
        return tensors
    scaling = scaling_of(split.train)
    weight, bias = tensors["final_layer.weight"], tensors["final_layer.bias"]
    std_K, mean_K = torch.from_numpy(scaling.std_K).to(weight), torch.from_numpy(scaling.mean_K).to(weight)
    return {**tensors, "final_layer.weight": weight * std_K[:, None], "final_layer.bias": bias * std_K + mean_K}


def class_weights(windows: Windows, balanced: bool) -> NDArray[np.float64]:
    """Return one weight per class; if ``balanced``, all classes weigh the same over the training windows."""
    count = np.bincount(windows.label, minlength=len(windows.names)).astype(np.float64)
    if not balanced:
        return np.ones_like(count)
    present = count > 0
    weights = np.zeros_like(count)
    weights[present] = count.sum() / (present.sum() * count[present])
    return weights


@dataclass(frozen=True)
class LabelledMicroBatch:
    """Windows of a step that are computed together, and the summed weight of the whole step's windows."""

    raw: RawStep
    weight: float
    inputs: loop.Inputs | None = None
    """Inputs that are already on the device. Only the first micro-batch of a step has them, to save memory."""


class LabelTask:
    """Classification or regression as a task of the training loop."""

    def __init__(
        self,
        windows: Windows,
        order: Order,
        loader: Loader,
        config: FinetuneConfig,
        depth: int,
        balanced: bool,
        seed: int,
        processes: ProcessGroup,
        micro_batches: int,
        dtype: torch.dtype = torch.float16,
        filling: Filling | None = None,
    ) -> None:
        self._windows, self._order, self._loader, self._filling = windows, order, loader, filling
        self._config, self._depth, self._seed = config, depth, seed
        self._processes, self._micro_batches, self._dtype = processes, micro_batches, dtype
        self._scaling = None if windows.target is None else scaling_of(windows)
        self._weights = np.ones(1) if windows.target is not None else class_weights(windows, balanced)
        self.names: tuple[str, ...] = ("accuracy",) if windows.target is None else ()
        self._places: tuple[Tensor, Tensor] | None = None

    def micro_batches(self, first: int, last: int) -> Iterator[Sequence[LabelledMicroBatch]]:
        for step, raws in read_steps(self._order, self._loader, self._processes, self._micro_batches, first, last):
            weight = self._weigh(step)
            yield [
                LabelledMicroBatch(raw, weight, None if place else self._inputs(raw, weight))
                for place, raw in enumerate(raws)
            ]

    def inputs(self, micro_batch: LabelledMicroBatch) -> loop.Inputs:
        return micro_batch.inputs or self._inputs(micro_batch.raw, micro_batch.weight)

    def share(self, module: nn.Module, inputs: loop.Inputs) -> tuple[Tensor, Tensor]:
        output_BK, weight = self._forward(module, inputs), inputs.tensors[-1]
        assert weight is not None
        loss, right = self._losses(output_BK, inputs)
        values = torch.stack([right / self._order.batch_size]) if self.names else output_BK.new_zeros(0)
        return loss / weight, values.detach()

    def window_names(self, micro_batch: LabelledMicroBatch) -> list[str]:
        return name_windows([self._windows], micro_batch.raw.step)

    def window_losses(self, module: nn.Module, micro_batch: LabelledMicroBatch) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, [self._windows], micro_batch.raw.step):
            inputs = self._inputs(raw, micro_batch.weight)
            yield name, self._losses(self._forward(module, inputs), inputs)[0]

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, [self._windows], self._order.step(step - 1))

    def _inputs(self, raw: RawStep, weight: float) -> loop.Inputs:
        """Lay the windows out on the device. The loop fetches the next step while the device computes the last one."""
        device = self._processes.device
        batch = self._with_noise(lay_out(raw, device, self._dtype), raw)
        drop_B = random_numbers.window_keys(self._seed, raw.key_B, raw.epoch_B, random_numbers.DROP_PATH)
        if self._filling is not None:
            batch, drop_B = self._filling.fill(batch, raw.kept_counts()), self._filling.extend(drop_B)
        place_K2 = np.arange(2 * self._depth).reshape(self._depth, 2, 1)
        noise_K2B = onto(random_numbers.uniform_on_cpu(drop_B, place_K2), device)
        weighed = torch.tensor(weight, dtype=torch.promote_types(self._dtype, torch.float32))
        form, tensors = apart(batch)
        return loop.Inputs(form, (*tensors, noise_K2B, onto(self._truth(raw), device), onto(weighed, device)))

    def _truth(self, raw: RawStep) -> Tensor:
        """Return the class of every window (B,), or its scaled targets (B, K)."""
        if self._scaling is None:
            return raw.label_B
        assert raw.target_BK is not None
        dtype = torch.promote_types(self._dtype, torch.float32)
        mean_K, std_K = (torch.tensor(x, dtype=dtype) for x in (self._scaling.mean_K, self._scaling.std_K))
        return ((raw.target_BK - mean_K) / std_K).to(dtype)

    def _forward(self, module: nn.Module, inputs: loop.Inputs) -> Tensor:
        """Return the outputs for all windows but the empty ones, which only fill up the batch."""
        *of_batch, noise_K2B, _, _ = inputs.tensors
        batch = together(inputs.form, of_batch)
        output: Tensor = module(batch, noise_K2B=noise_K2B)[: batch.layout.windows - batch.layout.filled]
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output

    def _with_noise(self, batch: Batch, raw: RawStep) -> Batch:
        """Add Gaussian noise, in proportion to each channel's deviation, to a share of the windows.

        Windows and keys are chosen on the CPU: on a GPU each of the dozens of tiny operations would be a kernel.
        """
        ratio = self._config.noise_ratio
        if ratio == 0 or self._config.noise_probability == 0:
            return batch
        choice_B, key_B = (
            random_numbers.window_keys(self._seed, raw.key_B, raw.epoch_B, purpose)
            for purpose in (random_numbers.NOISE_CHOICE, random_numbers.NOISE)
        )
        noisy_B = (
            random_numbers.uniform_on_cpu(choice_B, np.zeros(1, np.int64)).numpy() < self._config.noise_probability
        )
        count_B = np.array(raw.kept_counts())
        channel_R = np.arange(count_B.sum()) - np.repeat(count_B.cumsum() - count_B, count_B)
        noisy_R, key_R = np.repeat(noisy_B, count_B), np.repeat(key_B.numpy(), count_B)
        rows_R2 = torch.from_numpy(np.stack([key_R, np.where(noisy_R, channel_R, -1)], 1))
        signal_RT = add_noise(batch.signal_RT, rows_R2, ratio)
        if signal_RT is None:
            signal_RT = self._added_noise(batch.signal_RT, rows_R2, ratio)
        return dataclasses.replace(batch, signal_RT=signal_RT)

    def _added_noise(self, signal_RT: Tensor, rows_R2: Tensor, ratio: float) -> Tensor:
        """Return a signal with noise. A row has the key of its window and its channel there, or -1 for no noise."""
        device, samples = signal_RT.device, signal_RT.shape[1]
        noisy_M = (rows_R2[:, 1] >= 0).nonzero().flatten()  # M: rows with noise
        signal_RT = signal_RT.to(torch.promote_types(signal_RT.dtype, torch.float32), copy=True)
        if not len(noisy_M):
            return signal_RT
        (key_M, channel_M), row_M = onto(rows_R2[noisy_M], device).unbind(1), onto(noisy_M, device)
        table = self._noise_places(int(rows_R2[:, 1].max()) + 1, samples)
        noise_MT = random_numbers.normal(key_M[:, None], (table[0][channel_M], table[1][channel_M]))
        clean_MT = signal_RT.index_select(0, row_M)
        size_M1 = ratio * clean_MT.std(-1, correction=0, keepdim=True)
        return signal_RT.index_copy_(0, row_M, clean_MT + size_M1 * noise_MT)

    def _noise_places(self, width: int, samples: int) -> tuple[Tensor, Tensor]:
        """Return the scrambled places of the samples of ``width`` channels or more; steps share them."""
        if self._places is None or self._places[0].shape[1] != samples or len(self._places[0]) < width:
            channel_C1 = torch.arange(width, device=self._processes.device)[:, None]
            time_T = torch.arange(samples, device=self._processes.device)
            self._places = random_numbers.scrambled(channel_C1 * samples + time_T)
        return self._places

    def _losses(self, output_BK: Tensor, inputs: loop.Inputs) -> tuple[Tensor, Tensor]:
        """Return the sum of the windows' weighted losses, and the number of right answers."""
        truth = inputs.tensors[-2]
        assert truth is not None
        if self._scaling is None:
            weight_K = constant(tuple(self._weights.tolist()), output_BK.device, output_BK.dtype)
            loss = functional.cross_entropy(
                output_BK, truth, weight_K, reduction="sum", label_smoothing=self._config.label_smoothing
            )
            return loss, (output_BK.argmax(1) == truth).sum()
        loss = (output_BK - truth.to(output_BK.dtype)).square().mean(1).sum()
        return loss, loss.new_zeros(())

    def _weigh(self, step: Step) -> float:
        """Return the summed weight of a step's windows, over all processes."""
        if self._scaling is not None:
            return float(len(step))
        return float(max(self._weights[self._windows.label[step.window]].sum(), 1e-12))
