"""Finetuning: classes or values of labelled windows, with the paper's augmentation, smoothing and drop path.

Legend: **B** windows, **R** rows, **T** samples, **K** outputs.

Finetune: trainings of a labelled task, one for each seed and fold, each in a folder of its own.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.batch import Batch, onto
from cerebro_eeg.config import FinetuneConfig, HeadConfig, Preset
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.window_labels import Labels
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import training as engines
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.probe import fit_probe, one_for_all, seeds_that_differ
from cerebro_eeg.runs.settings import Engine, Untrained
from cerebro_eeg.runs.store_predictions import features, predict_windows, to_predictions
from cerebro_eeg.runs.training import (
    Say,
    Tell,
    TrainingPlan,
    begin,
    carry_out,
    fit_batch,
    gathered,
    plan_length,
    training_processes,
)
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
    record,
    signal_of,
    unknown_overlap,
    untrained_electrodes,
)
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.predictions import Predictions, choose_threshold, headline, threshold_level
from cerebro_eeg.train import loop, random_numbers
from cerebro_eeg.train.distributed import ProcessGroup, at_rest, put
from cerebro_eeg.train.optim import group

LabelledInputs = tuple[Batch, Tensor]
"""Windows on the device, with noise, and the numbers that decide drop path."""


@dataclass(frozen=True)
class LabelledMicroBatch:
    """Windows of a step that are computed at once, and what the whole step's windows weigh together."""

    raw: RawStep
    weight: float
    ready: LabelledInputs | None = None
    """Of a step's first piece: the others would fill the device."""


@dataclass(frozen=True)
class Scaling:
    """Targets of a regression as the head learns them: zero mean and unit deviation over the training windows."""

    mean_K: NDArray[np.float64]
    std_K: NDArray[np.float64]


def scaling_of(windows: Windows) -> Scaling:
    """Of the training windows."""
    assert windows.target is not None
    target = windows.target.astype(np.float64)
    std = target.std(0)
    return Scaling(target.mean(0), np.where(std > 0, std, 1.0))


def class_weights(windows: Windows, balanced: bool) -> NDArray[np.float64]:
    """One for each class; balanced: so that all classes weigh the same over the training windows."""
    count = np.bincount(windows.label, minlength=len(windows.names)).astype(np.float64)
    if not balanced:
        return np.ones_like(count)
    present = count > 0
    weights = np.zeros_like(count)
    weights[present] = count.sum() / (present.sum() * count[present])
    return weights


class LabelTask:
    """Classification or regression, as the loop wants it."""

    def __init__(
        self,
        windows: Windows,
        order: Order,
        loader: Loader,
        config: FinetuneConfig,
        depth: int,
        balanced: bool,
        seed: int,
        world: ProcessGroup,
        pieces: int,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._windows, self._order, self._loader = windows, order, loader
        self._config, self._depth, self._seed = config, depth, seed
        self._world, self._pieces, self._dtype = world, pieces, dtype
        self._scaling = None if windows.target is None else scaling_of(windows)
        self._weights = np.ones(1) if windows.target is not None else class_weights(windows, balanced)
        self.names: tuple[str, ...] = ("accuracy",) if windows.target is None else ()

    def pieces(self, first: int, last: int) -> Iterator[Sequence[LabelledMicroBatch]]:
        for step, raws in read_steps(self._order, self._loader, self._world, self._pieces, first, last):
            weight = self._weigh(step)
            yield [
                LabelledMicroBatch(raw, weight, None if place else self._prepare(raw)) for place, raw in enumerate(raws)
            ]

    def share(self, module: nn.Module, piece: LabelledMicroBatch) -> tuple[Tensor, Tensor]:
        output_BK = self._forward(module, piece.ready or self._prepare(piece.raw))
        loss, right = self._errors(output_BK, piece.raw)
        values = torch.stack([right / self._order.batch_size]) if self.names else output_BK.new_zeros(0)
        return loss / piece.weight, values.detach()

    def windows(self, piece: LabelledMicroBatch) -> list[str]:
        return name_windows([self._windows], piece.raw.step)

    def alone(self, module: nn.Module, piece: LabelledMicroBatch) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, [self._windows], piece.raw.step):
            yield name, self._errors(self._forward(module, self._prepare(raw)), raw)[0]

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, [self._windows], self._order.step(step - 1))

    def _prepare(self, raw: RawStep) -> LabelledInputs:
        """What the model is called with. The loop asks for the next step while the device computes the one before."""
        device = self._world.device
        batch = self._noisy(lay_out(raw, device, self._dtype), raw)
        drop_B = self._keys(raw, random_numbers.DROP_PATH)
        place_K2 = torch.arange(2 * self._depth, device=device).reshape(self._depth, 2, 1)
        return batch, random_numbers.uniform(drop_B, place_K2)

    def _forward(self, module: nn.Module, ready: LabelledInputs) -> Tensor:
        batch, noise_K2B = ready
        output: Tensor = module(batch, noise_K2B=noise_K2B)
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output

    def _keys(self, raw: RawStep, purpose: int) -> Tensor:
        """Made on the CPU: dozens of operations on a few numbers, each of which would be a kernel."""
        return onto(random_numbers.window_keys(self._seed, raw.key_B, raw.epoch_B, purpose), self._world.device)

    def _noisy(self, batch: Batch, raw: RawStep) -> Batch:
        """Gaussian noise, in proportion to each channel's deviation, on a share of the windows."""
        if self._config.noise_ratio == 0 or self._config.noise_probability == 0:
            return batch
        choice_B = self._keys(raw, random_numbers.NOISE_CHOICE)
        noisy_B = random_numbers.uniform(choice_B, torch.zeros_like(choice_B)) < self._config.noise_probability
        layout, signal_RT = batch.layout, batch.signal_RT
        noise_B = self._keys(raw, random_numbers.NOISE)
        rows, samples = signal_RT.shape
        width = max(1, layout.width)
        slot_R = torch.arange(rows, device=noise_B.device) if layout.slot_R is None else layout.slot_R
        place_RT = (slot_R % width)[:, None] * samples + torch.arange(samples, device=noise_B.device)
        noise_RT = random_numbers.normal(layout.per_row(noise_B)[:, None], place_RT)
        full_RT = signal_RT.to(torch.promote_types(signal_RT.dtype, torch.float32))
        size_R1 = (
            self._config.noise_ratio * full_RT.std(-1, correction=0, keepdim=True) * layout.per_row(noisy_B)[:, None]
        )
        return dataclasses.replace(batch, signal_RT=full_RT + size_R1 * noise_RT)

    def _errors(self, output_BK: Tensor, raw: RawStep) -> tuple[Tensor, Tensor]:
        """The sum of the windows' losses, each with its weight, and the number of right answers."""
        if self._scaling is None:
            label_B = raw.label_B.to(output_BK.device, non_blocking=True)
            weight_K = onto(torch.tensor(self._weights, dtype=output_BK.dtype), output_BK.device)
            loss = functional.cross_entropy(
                output_BK, label_B, weight_K, reduction="sum", label_smoothing=self._config.label_smoothing
            )
            return loss, (output_BK.argmax(1) == label_B).sum()
        assert raw.target_BK is not None
        mean_K, std_K = (torch.tensor(x, dtype=output_BK.dtype) for x in (self._scaling.mean_K, self._scaling.std_K))
        wanted_BK = onto((raw.target_BK - mean_K) / std_K, output_BK.device).to(output_BK.dtype)
        loss = (output_BK - wanted_BK).square().mean(1).sum()
        return loss, loss.new_zeros(())

    def _weigh(self, step: Step) -> float:
        if self._scaling is not None:
            return float(len(step))
        return float(max(self._weights[self._windows.label[step.window]].sum(), 1e-12))


@dataclass(frozen=True)
class FinetuneOptions:
    """What a fine-tuning is besides the configs of its preset."""

    task: str
    seeds: tuple[int, ...] = (0,)
    folds: int | None = None
    """None: the task's own splits."""
    freeze: bool = False
    """Linear probing."""
    solver: Literal["exact", "adamw"] = "exact"
    """Of the probe: scikit-learn's, or gradient steps as in the paper."""
    balanced: bool = False
    """All classes weigh the same."""
    seconds: float | None = None
    stride: float | None = None
    labels: Labels | None = None
    patience: int = 10
    """Epochs without a better validation score after which training stops."""
    steps: int | None = None
    """Instead of epochs."""
    paper: bool = False
    rate: Literal["error", "as_is"] = "error"
    untrained: Untrained = "error"
    """For a frozen encoder: electrodes that its weights never saw."""


@dataclass(frozen=True)
class Trained:
    """One training: of a seed, and a fold where there are folds."""

    folder: Path
    fold: str
    seed: int
    steps: int
    metric: str
    """What validation was judged by."""
    validation: float | None
    """The best score; none without validation data."""
    threshold: float | None


@dataclass(frozen=True)
class Finetuned:
    """What came of all of them."""

    folder: Path
    unit: str
    trained: tuple[Trained, ...]
    first: bool = True
    """Whether this process speaks for all."""
    one_for_all: str | None = None
    """That one training stands for several seeds, in words."""


def finetune(
    store_folder: Path,
    out: Path,
    preset: Preset,
    choices: FinetuneOptions,
    engine: Engine,
    start: Path | None = None,
    *,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> Finetuned:
    """Train for every seed that matters and every fold, from the weights of ``start``, or from new ones (None)."""
    folder = RunFolder(out)
    with training_processes(folder, engine, say, tell) as (world, say, tell):
        store = Store(store_folder)
        cut = read_task(store, choices.task, choices.seconds, choices.stride, choices.labels)
        splits = list(find_splits(store, cut, choices.folds))
        whole = _Whole(world, store, store.hash(), cut, preset, choices, engine, start)
        settings = whole.settings(splits)
        if world.first:
            begin(folder, "finetune", settings, {"processes": world.size}, say)
        world.wait()
        say(f"{choices.task}: {cut.kind}, {', '.join(cut.names)}; no {splits[0].unit} is in two splits")
        for line in filter(None, [one_for_all(settings), *_notes(start, whole.hash)]):
            say(f"note: {line}")
        trained, seeds = [], seeds_that_differ(settings)
        for split in splits:
            for seed in seeds:
                inside = RunFolder(out / split.name / f"seed-{seed}")
                if len(splits) * len(seeds) > 1:
                    say(f"{split.name + ', ' if split.name else ''}seed {seed}")
                trained.append(_train(whole, split, seed, inside, say, tell))
        return Finetuned(out, splits[0].unit, tuple(trained), world.first, one_for_all(settings))


def _notes(start: Path | None, hash: str) -> Iterator[str]:
    """What a reader of the numbers should know."""
    if start is None:
        return
    training = hub.load(start)[0].training
    if any(source.sha256 == hash for source in training.data):
        yield "the weights were pre-trained on this store, except what its pretrain split or --without left out"
    if (line := unknown_overlap(training, hash)) is not None:
        yield line


@dataclass(frozen=True)
class _Whole:
    """What all trainings share."""

    world: ProcessGroup
    store: Store
    hash: str
    cut: LabelledTask
    preset: Preset
    choices: FinetuneOptions
    engine: Engine
    start: Path | None

    def settings(self, splits: Sequence[Split]) -> dict[str, Any]:
        start = None
        if self.start is not None:
            start = checkpoint.hash_tensors(hub.load(self.start)[1])
        return {
            "task": dataclasses.asdict(self.cut),
            "unit": splits[0].unit,
            "choices": to_dict(self.choices),
            "model": to_dict(self.preset.model) if self.start is None else None,
            "finetune": to_dict(self.preset.finetune),
            "from": start,
            "store": {"dataset": self.store.info.dataset, "sha256": self.hash},
            "windows": [[0 if p is None else len(p) for p in (s.train, s.validation, s.test)] for s in splits],
        }


@dataclass(frozen=True)
class _One:
    """One of the trainings."""

    model: Cerebro
    split: Split
    folder: RunFolder
    electrodes: Electrodes | None
    seed: int


def _train(whole: _Whole, split: Split, seed: int, folder: RunFolder, say: Say, tell: Tell) -> Trained:
    """One training, or what came of it where it is done."""
    done = folder.path / "finished.json"
    if done.exists():
        if whole.world.first:
            _tidy(folder)
        return _read_finished(folder, split.name, seed)
    model = _model(whole, seed, split)
    for line in check_signal([whole.store], model.config, whole.choices.rate):
        say(f"note: {line}")
    one = _One(model, split, folder, _electrodes(whole, model, split, say), seed)
    if whole.choices.freeze and whole.choices.solver == "exact":
        steps = _probe(whole, one, say)
    else:
        steps = _fit(whole, one, say, tell)
    return _finish(whole, one, steps)


def _probe(whole: _Whole, one: _One, say: Say) -> int:
    """Fit the head by scikit-learn on frozen features, and write it into the model."""
    world, model, split, folder = whole.world, one.model, one.split, one.folder
    if world.first:
        begin(folder, "probe", {"seed": one.seed, "fold": split.name}, {"processes": world.size}, say)
    model.to(world.device)
    kept = {
        name: predict_windows(model, whole.store, part, world, electrodes=one.electrodes, read=features, say=say)
        for name, part in (("train", split.train), ("validation", split.validation))
        if part is not None
    }
    probe = fit_probe(
        whole.store,
        split.train,
        kept["train"],
        split.validation,
        kept.get("validation"),
        balanced=whole.choices.balanced,
    )
    layer = model.final_layer
    assert isinstance(layer, nn.Linear)
    weight_KD, bias_K = probe.weight_KD, probe.bias_K
    if split.train.target is not None:  # as gradient steps would learn it; _finish goes back to the targets' unit
        scaling = scaling_of(split.train)
        weight_KD, bias_K = weight_KD / scaling.std_K[:, None], (bias_K - scaling.mean_K) / scaling.std_K
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight_KD))
        layer.bias.copy_(torch.from_numpy(bias_K))
    if world.first:
        write_text(folder.path / "probe.json", json.dumps({"strength": probe.strength, "scores": probe.scores}) + "\n")
    return 0


def _fit(whole: _Whole, one: _One, say: Say, tell: Tell) -> int:
    """Train by gradient steps; the best weights on validation end up in the model."""
    choices, engine, world, store = whole.choices, whole.engine, whole.world, whole.store
    model, split, folder, electrodes, seed = one.model, one.split, one.folder, one.electrodes, one.seed
    table, windows = whole.preset.finetune, split.train
    batch = fit_batch(table.batch_size, len(windows), choices.paper, say)
    order = Order(seed, [len(windows)], batch)
    length = plan_length(
        order, table.peak_lr, table.min_lr, table.epochs, table.epochs, table.warmup_epochs, choices.steps
    )
    config = model.config
    channels = engines.usual_channels([windows])
    pieces = engines.count_micro_batches(engine, world, config, channels, windows.samples, batch)
    if split.validation is None:
        say(f"the task has no validation windows: {length.steps:,} steps, and the last weights are taken")
    depth = config.depth
    layer_decay = table.layer_decay if whole.start is not None else 1.0  # new lower layers must learn as fast
    model.encoder.set_drop_path(table.drop_path, table.drop_path_schedule)

    def after(run: loop.TrainingRun, step: int) -> tuple[dict[str, float], bool]:
        if split.validation is None or (step % length.an_epoch and step != length.steps):
            return {}, False
        output = predict_windows(
            run.wrapped, store, split.validation, world, electrodes=electrodes, precision=run.precision
        )
        metric, score = headline(to_predictions(store, split.validation, _unscaled(output, split)))
        notes = run.progress.notes
        epoch = -(-step // length.an_epoch)
        if score > notes.get("best", -np.inf):
            named = notes.get("best_step", 0)  # what the state on disk names, so it stays until the next one is saved
            notes.update(best=score, best_step=step, best_epoch=epoch, save=True)
            tensors = gathered(model)
            if world.first:
                checkpoint.save_tensors(_best(folder, step), tensors, model.header)
                for old in folder.path.glob("best-*.safetensors"):
                    if old not in (_best(folder, step), _best(folder, named)):
                        old.unlink(missing_ok=True)
        patient = epoch - notes["best_epoch"] < choices.patience
        return {"epoch": epoch, f"validation_{metric}": score}, not patient

    settings = {"seed": seed, "fold": split.name, "batch_size": batch, "finetune": to_dict(table)}
    cuda = world.device.type == "cuda"
    with Loader([(store, windows)], threads=engine.readers, apart=cuda, pin=cuda, electrodes=electrodes) as loader:

        def make_task(pieces: int, dtype: torch.dtype) -> LabelTask:
            return LabelTask(windows, order, loader, table, depth, choices.balanced, seed, world, pieces, dtype)

        groups = group(model, table.weight_decay, layer_decay, depth)
        plan = TrainingPlan(
            "finetune", model, groups, table.betas, table.clip, length, batch, pieces, settings, make_task, after
        )
        run = carry_out(plan, folder, engine, world, say, tell)
    if not choices.freeze:  # a frozen encoder learns no electrode
        seen, steps = run.progress.notes, run.progress.step
        model.training_record = record(model.training_record, seen, [(store, windows)], [whole.hash], steps)
    tensors = gathered(model)
    if world.first and "best" in run.progress.notes:
        tensors = checkpoint.read(_best(folder, run.progress.notes["best_step"]))[1]
    for name, value in at_rest(model).state_dict().items():
        put(world.share(tensors[name].to(world.device)), value)
    return run.progress.step


def _finish(whole: _Whole, one: _One, steps: int) -> Trained:
    """Predictions for validation, the threshold chosen on them, and the weights; then the mark that it is done."""
    model, split, folder = one.model, one.split, one.folder
    metric, score, threshold = "", None, None
    level: Literal["recording", "window", "unknown"] = "unknown"
    if split.validation is not None:
        output = predict_windows(model, whole.store, split.validation, whole.world, electrodes=one.electrodes)
        found: Predictions = to_predictions(whole.store, split.validation, _unscaled(output, split))
        metric, score = headline(found)
        if found.kind == "classification" and len(found.names) == 2:
            threshold, level = choose_threshold(found), threshold_level(found)
        if whole.world.first:
            found.save(folder.path / "validation.npz")
    assert model.head is not None
    model.head = dataclasses.replace(model.head, threshold=threshold, threshold_level=level)
    tensors = _in_units(gathered(model), split)
    if whole.world.first:
        checkpoint.save_tensors(folder.model, tensors, model.header)
        result = {"steps": steps, "metric": metric, "validation": score, "threshold": threshold}
        write_text(folder.path / "finished.json", json.dumps(result) + "\n")
        _tidy(folder)
    whole.world.wait()
    return Trained(folder.path, split.name, one.seed, steps, metric, score, threshold)


def _tidy(folder: RunFolder) -> None:
    """Away with what only an unfinished training needs; after the mark, so that a kill between costs no training."""
    for path in (folder.state, *folder.path.glob("best-*.safetensors")):
        path.unlink(missing_ok=True)


def _best(folder: RunFolder, step: int) -> Path:
    """The weights that were the best on validation, after ``step`` steps."""
    return folder.path / f"best-{step}.safetensors"


def _read_finished(folder: RunFolder, fold: str, seed: int) -> Trained:
    try:
        found = json.loads((folder.path / "finished.json").read_text(encoding="utf-8"))
        return Trained(
            folder.path, fold, seed, found["steps"], found["metric"], found["validation"], found["threshold"]
        )
    except (ValueError, KeyError) as error:
        raise ConfigError(f"finished.json of {folder.path} is damaged; delete that folder and run again") from error


def _model(whole: _Whole, seed: int, split: Split) -> Cerebro:
    """The checkpoint's encoder, or a new one, with a new head; for a seed the same on every process."""
    names, kind = split.train.names, whole.cut.kind
    as_is = whole.choices.rate == "as_is"
    task: Literal["classification", "regression"] = "regression" if kind == "regression" else "classification"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if whole.start is None:
            config = dataclasses.replace(whole.preset.model, signal=signal_of(whole.store))
            model = Cerebro(len(names), config=config, task=task, n_times=split.train.samples)
        else:
            model = Cerebro.from_pretrained(
                whole.start,
                len(names),
                task=task,
                n_times=split.train.samples,
                sfreq=split.train.sfreq if as_is else None,
                rate="as_is" if as_is else "error",
            )
        model.head = HeadConfig(len(names), task)
        model.reset_head(len(names), names)
    if whole.choices.freeze:
        model.freeze()
    return model


def _electrodes(whole: _Whole, model: Cerebro, split: Split, say: Say) -> Electrodes | None:
    """How channels are read: full fine-tuning trains rows that are new; a frozen encoder needs a policy for them."""
    if whole.start is None:
        return None
    parts = [part for part in (split.train, split.validation) if part is not None]
    trained = model.training_record.electrode_windows
    if whole.choices.freeze:
        return electrodes_of(parts, trained, whole.choices.untrained)
    if new := untrained_electrodes(parts, trained):
        listed = ", ".join(new[:8]) + (" ..." if len(new) > 8 else "")
        say(f"{len(new)} electrodes were never trained in {whole.start}; fine-tuning trains their rows: {listed}")
    return None


def _unscaled(output: Any, split: Split) -> Any:
    """Values in the unit of the targets."""
    if split.train.target is None:
        return output
    scaling = scaling_of(split.train)
    return (output * scaling.std_K + scaling.mean_K).astype(np.float32)


def _in_units(tensors: dict[str, Tensor], split: Split) -> dict[str, Tensor]:
    """The head such that it gives values in the unit of the targets."""
    if split.train.target is None:
        return tensors
    scaling = scaling_of(split.train)
    weight, bias = tensors["final_layer.weight"], tensors["final_layer.bias"]
    std_K, mean_K = torch.from_numpy(scaling.std_K).to(weight), torch.from_numpy(scaling.mean_K).to(weight)
    return {**tensors, "final_layer.weight": weight * std_K[:, None], "final_layer.bias": bias * std_K + mean_K}
