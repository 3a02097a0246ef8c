"""Pretrain: learn from the windows of one or several stores by reconstructing masked patches.

``pretrain`` goes from stores to weights and resumes a run that was stopped. ``MaskedTask`` gives the training loop the
micro-batches and their losses. ``validate`` measures the error on windows that are not trained on.

Legend: **B** windows, **R** rows, **N** tokens of a row.
"""

import contextlib
import dataclasses
import time
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
from cerebro_eeg.model.masked import MaskedCerebro, Reconstruction
from cerebro_eeg.model.masks import token_counts
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.results import PretrainResult
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.snapshot import describe_weights, usable_weights
from cerebro_eeg.runs.training import (
    Say,
    Tell,
    TrainingPlan,
    begin_run,
    choose_arithmetic,
    fit_batch,
    gathered,
    plan_length,
    training_processes,
    training_steps,
)
from cerebro_eeg.runs.windows import (
    check_signal,
    name_windows,
    note_seen,
    open_stores,
    pretrain_sources,
    read_alone,
    read_steps,
    signal_of,
    training_record,
)
from cerebro_eeg.schema import to_dict
from cerebro_eeg.train import loop, random_numbers
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.log import read_lines
from cerebro_eeg.train.optim import group_parameters
from cerebro_eeg.train.state import RunProgress

Sources = Sequence[tuple[Store, Windows]]


@dataclass(frozen=True)
class PretrainOptions:
    """The flags of ``pretrain`` that change what is learned, beside the preset; ``commands/pretrain.py`` explains them.

    ``run.json`` keeps them, and a resumed run must have the same.
    """

    seed: int = 0
    seconds: float | None = None
    stride: float | None = None
    weights: tuple[float, ...] | None = None
    without: tuple[str, ...] = ()
    steps: int | None = None
    paper: bool = False
    rate: str = "error"


def pretrain(
    folders: Sequence[Path],
    out: Path,
    preset: Preset,
    options: PretrainOptions,
    engine: Engine,
    start: Path | None = None,
    *,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> PretrainResult:
    """Pre-train on the windows of stores, from the weights of ``start`` or from new ones."""
    folder = RunFolder(out)
    with training_processes(folder, engine, say, tell) as (processes, say, tell):
        stores = open_stores(folders)
        with contextlib.nullcontext() if start is None else usable_weights(start, say) as weights:
            return _pretrain(processes, stores, folder, preset, options, engine, weights, say, tell)


def _pretrain(
    processes: ProcessGroup,
    stores: list[Store],
    folder: RunFolder,
    preset: Preset,
    options: PretrainOptions,
    engine: Engine,
    start: Path | None,
    say: Say,
    tell: Tell,
) -> PretrainResult:
    began = time.monotonic()
    hashes = [store.hash() for store in stores]
    model = _make_model(preset, options.seed, start, signal_of(stores[0]), say)
    config, table = model.config, preset.pretrain
    for line in check_signal(stores, config, options.rate):
        say(f"note: {line}")
    seconds = config.window / config.signal.sfreq if options.seconds is None else options.seconds
    sources, validation = pretrain_sources(stores, seconds, options.stride, options.without)
    counts = [len(windows) for _, windows in sources]
    batch = fit_batch(table.batch_size, sum(counts), options.paper, say)
    order = Order(options.seed, counts, batch, options.weights)
    length = plan_length(
        order, table.peak_lr, table.min_lr, table.max_epochs, table.stop_epoch, table.warmup_epochs, options.steps
    )
    arithmetic = choose_arithmetic(engine, processes, folder, config, [windows for _, windows in sources], batch)
    micro, dtype = arithmetic.micro_batches, arithmetic.signal_dtype
    steps_words = f"{length.steps:,} steps of {batch:,} in {micro} on {processes.device}"
    say(f"{sum(counts):,} windows of {seconds:g} s; {steps_words}")
    settings = {
        "model": to_dict(config),
        "objective": to_dict(model.objective),
        "pretrain": to_dict(table) | {"batch_size": batch},
        "choices": to_dict(options),
        "from": None if start is None else checkpoint.hash_tensors(dict(model.state_dict())),
        "stores": [{"dataset": s.info.dataset, "sha256": h} for s, h in zip(stores, hashes, strict=True)],
        "windows": counts,
    }
    at_once = max(1, batch // (micro * processes.size))

    def record(progress: RunProgress) -> checkpoint.Header:
        training = training_record(model.training_record, progress.notes, sources, hashes, progress.step)
        return dataclasses.replace(model.header, training=training)

    def about(progress: RunProgress) -> dict[str, Any]:
        return describe_weights(record(progress), length.steps)

    cuda = processes.device.type == "cuda"
    with Loader(sources, threads=engine.readers, processes=cuda, pin=cuda) as loader:
        task = MaskedTask(sources, order, loader, config, model.objective, options.seed, processes, micro, dtype)
        groups = group_parameters(model, table.weight_decay)
        plan = TrainingPlan("pretrain", model, task, groups, table.betas, table.clip, length, settings, about)
        run = begin_run(plan, folder, engine, arithmetic, processes, say)
        with training_steps(run, folder, engine, batch, tell) as (steps, log):
            for step in steps:
                if validation and length.ends_epoch(step.step):
                    with loop.autocast(run):
                        values = validate(model, run.wrapped, validation, processes, at_once, dtype)
                    run.progress.notes["validation"] = values
                    log.write(step.step, **values)
    sha256 = _write_weights(run, folder, model, record(run.progress))
    losses = [line["loss"] for line in read_lines(folder.metrics) if "loss" in line] if processes.first else [0.0]
    done = run.progress.step
    return PretrainResult(
        str(folder.path),
        done,
        order.epochs(done),
        order.windows,
        batch,
        losses[-1],
        run.progress.notes.get("validation", {}),
        sha256,
        time.monotonic() - began,
        processes.first,
    )


def _make_model(preset: Preset, seed: int, start: Path | None, signal: SignalConfig, say: Say) -> MaskedCerebro:
    """Return a model with new weights, the same for a seed on every process, or the model of a checkpoint."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if start is None:
            return MaskedCerebro(dataclasses.replace(preset.model, signal=signal), preset.objective)
        model = MaskedCerebro.from_pretrained(start)  # parts that the checkpoint lacks are new, from the seed
    say("the model is the checkpoint's; the preset gives the hyper-parameters of training")
    return model


def _write_weights(run: loop.TrainingRun, folder: RunFolder, model: MaskedCerebro, header: checkpoint.Header) -> str:
    """Write the weights with the record of their training, and return their SHA-256."""
    tensors = gathered(model)
    if run.processes.first:
        checkpoint.save_tensors(folder.model, tensors, header)
    run.processes.barrier()
    return checkpoint.hash_tensors(tensors)


MaskedInputs = tuple[Batch, Tensor]
"""The arguments of the model: windows on the device, and the noise that chooses their masked tokens."""


@dataclass(frozen=True)
class MaskedMicroBatch:
    """Windows of a step that are computed together, and the token counts of the whole step."""

    raw: RawStep
    masked: int
    visible: int
    inputs: MaskedInputs | None = None
    """Inputs that are already on the device. Only the first micro-batch of a step has them, to save memory."""


class MaskedTask:
    """Masked reconstruction as a task of the training loop."""

    names: tuple[str, ...] = ("masked", "visible")

    def __init__(
        self,
        sources: Sources,
        order: Order,
        loader: Loader,
        config: ModelConfig,
        objective: ObjectiveConfig,
        seed: int,
        processes: ProcessGroup,
        micro_batches: int,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._windows = [windows for _, windows in sources]
        self._order, self._loader, self._seed = order, loader, seed
        self._config, self._objective = config, objective
        self._processes, self._micro_batches, self._dtype = processes, micro_batches, dtype
        self._tokens = config.patches.count(max(windows.samples for windows in self._windows))
        self._rows = [windows.channels.astype(np.int64) * config.patches.rows for windows in self._windows]

    def micro_batches(self, first: int, last: int) -> Iterator[Sequence[MaskedMicroBatch]]:
        for step, raws in read_steps(self._order, self._loader, self._processes, self._micro_batches, first, last):
            masked, visible = self._token_counts(step)
            yield [
                MaskedMicroBatch(raw, masked, visible, None if place else self._inputs(raw))
                for place, raw in enumerate(raws)
            ]

    def share(self, module: nn.Module, micro_batch: MaskedMicroBatch) -> tuple[Tensor, Tensor]:
        found = self._reconstruct(module, micro_batch.raw, micro_batch.inputs)
        masked = found.masked_sum / max(1, micro_batch.masked)
        visible = found.visible_sum / max(1, micro_batch.visible)
        return masked + self._objective.alpha * visible, torch.stack([masked, visible]).detach()

    def window_names(self, micro_batch: MaskedMicroBatch) -> list[str]:
        return name_windows(self._windows, micro_batch.raw.step)

    def window_losses(self, module: nn.Module, micro_batch: MaskedMicroBatch) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, self._windows, micro_batch.raw.step):
            yield name, self._reconstruct(module, raw).loss

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, self._windows, self._order.step(step - 1))

    def _reconstruct(self, module: nn.Module, raw: RawStep, inputs: MaskedInputs | None = None) -> Reconstruction:
        found: Reconstruction = module(*(inputs or self._inputs(raw)))
        return found

    def _inputs(self, raw: RawStep) -> MaskedInputs:
        """Lay the windows out on the device. The loop fetches the next step while the device computes the last one."""
        device = self._processes.device
        batch = lay_out(raw, device, self._dtype)
        noise_RN = mask_noise(self._config, batch.layout, raw.key_B, raw.epoch_B, self._seed, self._tokens, device)
        return batch, noise_RN

    def _token_counts(self, step: Step) -> tuple[int, int]:
        """Return the masked and the visible tokens of a step, over all processes."""
        rows = np.empty(len(step), np.int64)
        for number, of_source in enumerate(self._rows):
            mine = step.source == number
            rows[mine] = of_source[step.window[mine]]
        return token_counts(rows.tolist(), self._tokens, self._objective.mask_ratio)


def mask_noise(
    config: ModelConfig, layout: Layout, key_B: Tensor, epoch_B: Tensor, seed: int, tokens: int, device: torch.device
) -> Tensor:
    """Return uniform numbers (R, N) that choose the masked tokens.

    The numbers of a window depend on the window alone, not on the process or the micro-batch that computes it.
    """
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
    processes: ProcessGroup,
    batch: int,
    dtype: torch.dtype = torch.float16,
) -> dict[str, float]:
    """Return the masked and the visible error over all windows of the sources, with masks that never change."""
    counts = [len(windows) for _, windows in sources]
    if sum(counts) == 0:
        return {}
    config, objective = model.config, model.objective
    everything = next(in_order(counts, sum(counts)))
    size = processes.size
    # Every process computes the same number of parts, because a sharded forward pass needs all processes.
    shared = len(everything) >= size
    mine = everything.part(processes.rank, size) if shared else everything
    parts = max(1, min(-(-len(everything) // (size * batch)), len(everything) // (size if shared else 1)))
    totals = torch.zeros(4, dtype=torch.float64, device=processes.device)
    with loop.evaluating(module), Loader(sources, threads=2) as loader:
        for raw in loader.stream(mine.part(number, parts) for number in range(parts)):
            laid_out = lay_out(raw, processes.device, dtype)
            tokens = config.patches.count(raw.samples)
            noise_RN = mask_noise(config, laid_out.layout, raw.key_B, raw.epoch_B, 0, tokens, processes.device)
            found = module(laid_out, noise_RN)
            totals += torch.stack([found.masked_sum, found.masked_count, found.visible_sum, found.visible_count])
    masked, masked_count, visible, visible_count = (processes.sum(totals) if shared else totals).tolist()
    masked, visible = masked / max(1.0, masked_count), visible / max(1.0, visible_count)
    return {
        "validation_masked": masked,
        "validation_visible": visible,
        "validation_loss": masked + objective.alpha * visible,
    }
