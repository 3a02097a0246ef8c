"""Pretraining: reconstruct masked patches of the windows of one or several stores.

Legend: **B** windows, **R** rows, **N** tokens of a row.

Pretrain: one run of masked pre-training, from stores to weights, that goes on where it was stopped.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.config import ModelConfig, ObjectiveConfig, Preset, SignalConfig
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step, in_order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.masked import MaskedCerebro, Reconstruction, token_counts
from cerebro_eeg.runs import training as engines
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import (
    Say,
    Tell,
    TrainingPlan,
    carry_out,
    fit_batch,
    gathered,
    plan_length,
    signal_type,
    training_processes,
)
from cerebro_eeg.runs.windows import (
    check_signal,
    name_windows,
    note_seen,
    open_stores,
    pretrain_windows,
    read_alone,
    read_steps,
    record,
    signal_of,
)
from cerebro_eeg.schema import to_dict
from cerebro_eeg.train import loop, random_numbers
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.log import read_lines
from cerebro_eeg.train.loop import evaluating
from cerebro_eeg.train.optim import group

Sources = Sequence[tuple[Store, Windows]]
MaskedInputs = tuple[Batch, Tensor]
"""Windows on the device, and the numbers that choose their masked tokens."""


@dataclass(frozen=True)
class MaskedMicroBatch:
    """Windows of a step that are computed at once, and the tokens of the whole step."""

    raw: RawStep
    masked: int
    visible: int
    ready: MaskedInputs | None = None
    """Of a step's first piece: the others would fill the device."""


class MaskedTask:
    """Masked reconstruction, as the loop wants it."""

    names: tuple[str, ...] = ("masked", "visible")

    def __init__(
        self,
        sources: Sources,
        order: Order,
        loader: Loader,
        config: ModelConfig,
        objective: ObjectiveConfig,
        seed: int,
        world: ProcessGroup,
        pieces: int,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._windows = [windows for _, windows in sources]
        self._order, self._loader, self._seed = order, loader, seed
        self._config, self._objective = config, objective
        self._world, self._pieces, self._dtype = world, pieces, dtype
        self._tokens = config.patches.count(max(windows.samples for windows in self._windows))
        self._rows = [windows.channels.astype(np.int64) * config.patches.rows for windows in self._windows]

    def pieces(self, first: int, last: int) -> Iterator[Sequence[MaskedMicroBatch]]:
        for step, raws in read_steps(self._order, self._loader, self._world, self._pieces, first, last):
            masked, visible = self._counts(step)
            yield [
                MaskedMicroBatch(raw, masked, visible, None if place else self._prepare(raw))
                for place, raw in enumerate(raws)
            ]

    def share(self, module: nn.Module, piece: MaskedMicroBatch) -> tuple[Tensor, Tensor]:
        found = self._reconstruct(module, piece.raw, piece.ready)
        masked = found.masked_sum / max(1, piece.masked)
        visible = found.visible_sum / max(1, piece.visible)
        return masked + self._objective.alpha * visible, torch.stack([masked, visible]).detach()

    def windows(self, piece: MaskedMicroBatch) -> list[str]:
        return name_windows(self._windows, piece.raw.step)

    def alone(self, module: nn.Module, piece: MaskedMicroBatch) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, self._windows, piece.raw.step):
            yield name, self._reconstruct(module, raw).loss

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, self._windows, self._order.step(step - 1))

    def _reconstruct(self, module: nn.Module, raw: RawStep, ready: MaskedInputs | None = None) -> Reconstruction:
        found: Reconstruction = module(*(ready or self._prepare(raw)))
        return found

    def _prepare(self, raw: RawStep) -> MaskedInputs:
        """What the model is called with. The loop asks for the next step while the device computes the one before."""
        device = self._world.device
        batch = lay_out(raw, device, self._dtype)
        noise_RN = mask_noise(self._config, batch.layout, raw.key_B, raw.epoch_B, self._seed, self._tokens, device)
        return batch, noise_RN

    def _counts(self, step: Step) -> tuple[int, int]:
        """Masked and visible tokens of all processes."""
        rows = np.empty(len(step), np.int64)
        for number, of_source in enumerate(self._rows):
            mine = step.source == number
            rows[mine] = of_source[step.window[mine]]
        return token_counts(rows.tolist(), self._tokens, self._objective.mask_ratio)


def mask_noise(
    config: ModelConfig, layout: Layout, key_B: Tensor, epoch_B: Tensor, seed: int, tokens: int, device: torch.device
) -> Tensor:
    """(R, N) uniform numbers that choose the masked tokens: of each window its own, wherever it is computed."""
    if config.patches.phase != "none":
        layout, _ = layout.doubled(config.patches.phase == "separated", device)
    key_B = onto(random_numbers.window_keys(seed, key_B, epoch_B, random_numbers.MASK), device)
    if layout.slot_R is None:
        row_R = torch.arange(layout.windows * layout.width, device=device) % max(1, layout.width)
    else:
        row_R = layout.slot_R % layout.width
    place_RN = row_R[:, None] * tokens + torch.arange(tokens, device=device)
    return random_numbers.uniform(layout.per_row(key_B)[:, None], place_RN)


@torch.no_grad()
def validate(
    model: MaskedCerebro,
    module: nn.Module,
    sources: Sources,
    world: ProcessGroup,
    batch: int,
    dtype: torch.dtype = torch.float16,
) -> dict[str, float]:
    """Masked and visible error over all windows of the sources, with masks that never change."""
    counts = [len(windows) for _, windows in sources]
    if sum(counts) == 0:
        return {}
    config, objective = model.config, model.objective
    whole = next(in_order(counts, sum(counts)))
    # Every process computes the same number of pieces, because a sharded forward pass needs all of them.
    shared = len(whole) >= world.size
    mine = whole.part(world.rank, world.size) if shared else whole
    pieces = max(1, min(-(-len(whole) // (world.size * batch)), len(whole) // world.size if shared else len(whole)))
    totals = torch.zeros(4, dtype=torch.float64, device=world.device)
    with evaluating(module), Loader(sources, threads=2) as loader:
        for raw in loader.stream(mine.part(number, pieces) for number in range(pieces)):
            layout_batch = lay_out(raw, world.device, dtype)
            tokens = config.patches.count(raw.samples)
            noise_RN = mask_noise(config, layout_batch.layout, raw.key_B, raw.epoch_B, 0, tokens, world.device)
            found = module(layout_batch, noise_RN)
            totals += torch.stack([found.masked_sum, found.masked_count, found.visible_sum, found.visible_count])
    masked, masked_count, visible, visible_count = (world.sum(totals) if shared else totals).tolist()
    masked, visible = masked / max(1.0, masked_count), visible / max(1.0, visible_count)
    return {
        "validation_masked": masked,
        "validation_visible": visible,
        "validation_loss": masked + objective.alpha * visible,
    }


@dataclass(frozen=True)
class PretrainOptions:
    """What a pre-training run is besides the configs of its preset."""

    seed: int = 0
    seconds: float | None = None
    """Of a window; none: the model's."""
    stride: float | None = None
    """Seconds from window to window; none: side by side."""
    weights: tuple[float, ...] | None = None
    """Share of each store; none: by its windows."""
    without: tuple[str, ...] = ()
    """task:split, whose subjects are left out."""
    steps: int | None = None
    """Instead of epochs."""
    paper: bool = False
    """Keep the batch size, however few steps an epoch has."""
    rate: str = "error"
    """as_is: take another rate than the model's as it is."""


@dataclass(frozen=True)
class Pretrained:
    """What came of a run."""

    folder: Path
    steps: int
    epochs: float
    windows: int
    """In an epoch."""
    batch_size: int
    loss: float
    """Of the last step."""
    validation: dict[str, float]
    """The last one; empty without."""
    sha256: str
    """Of the weights."""
    first: bool = True
    """Whether this process speaks for all."""


def pretrain(
    folders: Sequence[Path],
    out: Path,
    preset: Preset,
    choices: PretrainOptions,
    engine: Engine,
    start: Path | None = None,
    *,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> Pretrained:
    """Pre-train on the windows of stores, from the weights of ``start`` or from new ones."""
    folder = RunFolder(out)
    with training_processes(folder, engine, say, tell) as (world, say, tell):
        return _pretrain(world, open_stores(folders), folder, preset, choices, engine, start, say, tell)


def _pretrain(
    world: ProcessGroup,
    stores: list[Store],
    folder: RunFolder,
    preset: Preset,
    choices: PretrainOptions,
    engine: Engine,
    start: Path | None,
    say: Say,
    tell: Tell,
) -> Pretrained:
    hashes = [store.hash() for store in stores]
    model = _model(preset, choices.seed, start, signal_of(stores[0]), say)
    config, table = model.config, preset.pretrain
    for line in check_signal(stores, config, choices.rate):
        say(f"note: {line}")
    seconds = config.window / config.signal.sfreq if choices.seconds is None else choices.seconds
    found = [pretrain_windows(store, seconds, choices.stride, choices.without) for store in stores]
    sources = [(store, windows) for store, (windows, _) in zip(stores, found, strict=True)]
    held_out = [(store, v) for store, (_, v) in zip(stores, found, strict=True) if v is not None and len(v)]
    counts = [len(windows) for _, windows in sources]
    batch = fit_batch(table.batch_size, sum(counts), choices.paper, say)
    order = Order(choices.seed, counts, batch, choices.weights)
    length = plan_length(
        order, table.peak_lr, table.min_lr, table.max_epochs, table.stop_epoch, table.warmup_epochs, choices.steps
    )
    samples = max(windows.samples for _, windows in sources)
    channels = engines.usual_channels([windows for _, windows in sources])
    pieces = engines.count_micro_batches(engine, world, config, channels, samples, batch)
    say(f"{sum(counts):,} windows of {seconds:g} s; {length.steps:,} steps of {batch:,} in {pieces} on {world.device}")
    settings = {
        "model": to_dict(config),
        "objective": to_dict(model.objective),
        "pretrain": to_dict(table) | {"batch_size": batch},
        "choices": to_dict(choices),
        "from": None if start is None else checkpoint.hash_tensors(dict(model.state_dict())),
        "stores": [{"dataset": s.info.dataset, "sha256": h} for s, h in zip(stores, hashes, strict=True)],
        "windows": counts,
    }

    at_once = max(1, batch // (pieces * world.size))

    def after(run: loop.TrainingRun, step: int) -> tuple[dict[str, float], bool]:
        if not held_out or (step % length.an_epoch and step != length.steps):
            return {}, False
        with loop.autocast(run):
            values = validate(model, run.wrapped, held_out, world, at_once, signal_type(run.precision))
        run.progress.notes["validation"] = values
        return values, False

    cuda = world.device.type == "cuda"
    with Loader(sources, threads=engine.readers, apart=cuda, pin=cuda) as loader:

        def make_task(pieces: int, dtype: torch.dtype) -> MaskedTask:
            return MaskedTask(sources, order, loader, config, model.objective, choices.seed, world, pieces, dtype)

        groups = group(model, table.weight_decay)
        plan = TrainingPlan(
            "pretrain", model, groups, table.betas, table.clip, length, batch, pieces, settings, make_task, after
        )
        run = carry_out(plan, folder, engine, world, say, tell)
    sha256 = _write(run, folder, model, sources, hashes)
    losses = [line["loss"] for line in read_lines(folder.metrics) if "loss" in line] if world.first else [0.0]
    done = run.progress.step
    validation = run.progress.notes.get("validation", {})
    epochs, first = order.epochs(done), world.first
    return Pretrained(folder.path, done, epochs, order.windows, batch, losses[-1], validation, sha256, first)


def _write(
    run: loop.TrainingRun,
    folder: RunFolder,
    model: MaskedCerebro,
    sources: Sequence[tuple[Store, Windows]],
    hashes: Sequence[str],
) -> str:
    """The weights with the record of what they were trained on; returns their sum."""
    training = record(model.training_record, run.progress.notes, sources, hashes, run.progress.step)
    tensors = gathered(model)
    if run.world.first:
        checkpoint.save_tensors(folder.model, tensors, dataclasses.replace(model.header, training=training))
    run.world.wait()
    return checkpoint.hash_tensors(tensors)


def _model(preset: Preset, seed: int, start: Path | None, signal: SignalConfig, say: Say) -> MaskedCerebro:
    """New weights, for a seed the same on every process; or those of a checkpoint, whose model config then holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if start is None:
            return MaskedCerebro(dataclasses.replace(preset.model, signal=signal), preset.objective)
        model = MaskedCerebro.from_pretrained(start)  # a checkpoint with another head gets new parts from the seed
    say("the model is the checkpoint's; the preset gives the hyper-parameters of training")
    return model
