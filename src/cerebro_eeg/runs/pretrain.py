"""Pretrain: learn from the windows of one or several stores by reconstructing masked patches.

``pretrain`` goes from stores to weights and resumes a run that was stopped. ``MaskedTask`` gives the training loop the
micro-batches and their losses. ``Validation`` measures the error on windows that are not trained on.

Legend: **B** windows, **R** rows, **N** tokens of a row.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, onto
from cerebro_eeg.config import ModelConfig, ObjectiveConfig, Preset, SignalConfig
from cerebro_eeg.data.batching.filling import Filling, apart, together
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step, in_order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.fast import Capture
from cerebro_eeg.model import checkpoint, further_targets
from cerebro_eeg.model.masked import MaskedCerebro, Reconstruction
from cerebro_eeg.model.masks import token_counts
from cerebro_eeg.model.views import has_views, kept_counts, make_view
from cerebro_eeg.runs.folder import RunFolder, given_names
from cerebro_eeg.runs.kept_batches import KeptBatches, LaidOut
from cerebro_eeg.runs.results import PretrainResult
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.snapshot import describe_weights, usable_weights
from cerebro_eeg.runs.training import (
    Say,
    Tell,
    TrainingPlan,
    begin_run,
    choose_arithmetic,
    fill_batches,
    fit_batch,
    gathered,
    plan_length,
    steps_within,
    time_limit,
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
from cerebro_eeg.train.step import autocast_to

Sources = Sequence[tuple[Store, Windows]]
FIT_WINDOWS = 1024
"""Training windows that standardise the further targets of the objective."""
FIT_AT_ONCE = 64
"""Of these, windows that are read at once."""


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
    minutes: float | None = None


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
    folder, given = RunFolder(out), given_names(folders, start)
    with training_processes(folder, engine, say, tell) as (processes, say, tell):
        stores = open_stores(folders)
        with contextlib.nullcontext() if start is None else usable_weights(start, say) as weights:
            return _pretrain(processes, stores, folder, preset, options, engine, weights, given, say, tell)


def _pretrain(
    processes: ProcessGroup,
    stores: list[Store],
    folder: RunFolder,
    preset: Preset,
    options: PretrainOptions,
    engine: Engine,
    start: Path | None,
    given: Mapping[str, Any],
    say: Say,
    tell: Tell,
) -> PretrainResult:
    began, limit = time.monotonic(), time_limit(options.minutes, options.steps)
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
    every, plain = [windows for _, windows in sources], None
    if model.objective.style == "vitmae" and config.attention == "standard":
        plain = "standard attention over visible patches has another shape in every step"
    arithmetic = choose_arithmetic(engine, processes, folder, config, every, batch, plain)
    micro, dtype = arithmetic.micro_batches, arithmetic.signal_dtype
    settings = {
        "model": to_dict(config),
        "objective": checkpoint.early_fields(model.objective),
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

    cuda = processes.device.type == "cuda"
    with Loader(sources, threads=engine.readers, processes=cuda, pin=cuda) as loader:
        fit_further_targets(model, loader, counts)
        filling = fill_batches(every, batch, arithmetic)
        task = MaskedTask(
            sources, order, loader, config, model.objective, options.seed, processes, micro, dtype, filling
        )
        fixed = options.steps
        if limit is not None:
            fixed = steps_within(limit, task, model, arithmetic, processes, folder, say)
        length = plan_length(
            order, table.peak_lr, table.min_lr, table.max_epochs, table.stop_epoch, table.warmup_epochs, fixed
        )
        steps_words = f"{length.steps:,} steps of {batch:,} in {micro} on {processes.device}"
        say(f"{sum(counts):,} windows of {seconds:g} s; {steps_words}")
        groups = group_parameters(model, table.weight_decay)

        def about(progress: RunProgress) -> dict[str, Any]:
            return describe_weights(record(progress), length.steps)

        facts = {"given": given}
        plan = TrainingPlan(
            "pretrain", model, task, groups, table.betas, table.clip, length, settings, about, limit, facts
        )
        run = begin_run(plan, folder, engine, arithmetic, processes, say)
        precision, graphs = arithmetic.precision, arithmetic.graphs
        validate = Validation(model, run.wrapped, validation, processes, at_once, dtype, precision, graphs)
        with training_steps(run, folder, engine, batch, tell, limit) as (steps, log):
            for step in steps:
                if validation and (length.ends_epoch(step.step) or run.progress.notes.get("finished")):
                    values = validate()
                    run.progress.notes["validation"] = values
                    log.write(step.step, **values)
                    error = values["validation_masked"]
                    say(f"step {step.step:,}: validation masked error {error:.4f} (lower is better)")
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


def fit_further_targets(model: MaskedCerebro, loader: Loader, counts: Sequence[int]) -> None:
    """Standardise the further targets of new layers by windows that are spread evenly over all; nothing is drawn."""
    further = model.further
    new = model.load_report is None or any(name.startswith("further.") for name in model.load_report.missing)
    if further is None or not new:
        return
    everything = next(in_order(counts, sum(counts)))
    chosen = np.unique(np.linspace(0, len(everything) - 1, FIT_WINDOWS).astype(np.int64))
    step = Step(everything.source[chosen], everything.window[chosen], everything.epoch[chosen])
    parts = -(-len(step) // FIT_AT_ONCE)
    further.fit(lay_out(loader.read(step.part(number, parts)), "cpu") for number in range(parts))


def _write_weights(run: loop.TrainingRun, folder: RunFolder, model: MaskedCerebro, header: checkpoint.Header) -> str:
    """Write the weights with the record of their training, and return their SHA-256."""
    tensors = gathered(model)
    if run.processes.first:
        checkpoint.save_tensors(folder.model, tensors, header)
    run.processes.barrier()
    return checkpoint.hash_tensors(tensors)


@dataclass(frozen=True)
class MaskedMicroBatch:
    """Windows of a step that are computed together, and the counts of the whole step."""

    raw: RawStep
    counts: dict[str, int]
    """Errors of each part of the loss, over all processes."""
    inputs: loop.Inputs | None = None
    """Inputs that are already on the device. Only the first micro-batch of a step has them, to save memory."""


class MaskedTask:
    """Masked reconstruction as a task of the training loop."""

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
        filling: Filling | None = None,
    ) -> None:
        self._windows, self._filling = [windows for _, windows in sources], filling
        self._order, self._loader, self._seed = order, loader, seed
        self._config, self._objective = config, objective
        self._processes, self._micro_batches, self._dtype = processes, micro_batches, dtype
        self.names: tuple[str, ...] = ("masked", "visible", *further_targets.weights(objective))
        self._tokens = config.patches.count(max(windows.samples for windows in self._windows))

    def micro_batches(self, first: int, last: int) -> Iterator[Sequence[MaskedMicroBatch]]:
        for step, raws in read_steps(self._order, self._loader, self._processes, self._micro_batches, first, last):
            counts = self._counts(step)
            yield [
                MaskedMicroBatch(raw, counts, None if place else self._inputs(raw, counts))
                for place, raw in enumerate(raws)
            ]

    def inputs(self, micro_batch: MaskedMicroBatch) -> loop.Inputs:
        return micro_batch.inputs or self._inputs(micro_batch.raw, micro_batch.counts)

    def share(self, module: nn.Module, inputs: loop.Inputs) -> tuple[Tensor, Tensor]:
        found, count_V = self._reconstruct(module, inputs), inputs.tensors[-1]
        assert count_V is not None
        masked_count, visible_count, *further_counts = count_V.unbind()
        masked, visible = found.masked_sum / masked_count, found.visible_sum / visible_count
        further = [term.sum / count for term, count in zip(found.further, further_counts, strict=True)]
        loss = masked + self._objective.alpha * visible
        for term, value in zip(found.further, further, strict=True):
            loss = loss + term.weight * value
        return loss, torch.stack([masked, visible, *further]).detach()

    def window_names(self, micro_batch: MaskedMicroBatch) -> list[str]:
        return name_windows(self._windows, micro_batch.raw.step)

    def window_losses(self, module: nn.Module, micro_batch: MaskedMicroBatch) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, self._windows, micro_batch.raw.step):
            yield name, self._reconstruct(module, self._inputs(raw, micro_batch.counts)).loss

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, self._windows, self._order.step(step - 1))

    def _reconstruct(self, module: nn.Module, inputs: loop.Inputs) -> Reconstruction:
        *of_batch, key_B, _ = inputs.tensors
        assert key_B is not None
        batch = together(inputs.form, of_batch)
        found: Reconstruction = module(batch, mask_noise(self._config, batch, key_B))
        return found

    def _inputs(self, raw: RawStep, counts: dict[str, int]) -> loop.Inputs:
        """Lay the windows out on the device. The loop fetches the next step while the device computes the last one."""
        device, key_B, epoch_B = self._processes.device, raw.key_B, raw.epoch_B
        batch, rows = lay_out(raw, device, self._dtype), raw.kept_counts()
        if has_views(self._objective):
            noise_B3, view_B = view_noise(self._seed, raw.key_B, raw.epoch_B)
            row_R = torch.cat([torch.arange(count) for count in raw.counts])
            view_R = torch.from_numpy(np.repeat(view_B.numpy(), raw.counts))
            noise_R = random_numbers.uniform(view_R, 3 + row_R)
            batch = make_view(batch, raw.counts, self._objective, noise_B3, noise_R)
            if self._objective.keep_channels < 1:
                rows = kept_counts(raw.counts, noise_B3[:, 0], self._objective)
        if self._filling is not None:
            batch = self._filling.fill(batch, rows)
            key_B, epoch_B = self._filling.extend(key_B), self._filling.extend(epoch_B)
        key_B = onto(mask_keys(self._seed, key_B, epoch_B), device)
        form, tensors = apart(batch)
        dtype = torch.promote_types(self._dtype, torch.float32)
        count_V = torch.tensor([max(1, counts[name]) for name in self.names], dtype=dtype)
        return loop.Inputs(form, (*tensors, key_B, onto(count_V, device)))

    def _counts(self, step: Step) -> dict[str, int]:
        """Return the number of errors of each part of the loss in a step, over all processes."""
        channels, key = np.empty(len(step), np.int64), np.empty(len(step), np.int64)
        for number, windows in enumerate(self._windows):
            mine = step.source == number
            channels[mine] = windows.channels[step.window[mine]]
            key[mine] = windows.keys(step.window[mine])
        kept = channels.tolist()
        if self._objective.keep_channels < 1:
            noise_B3, _ = view_noise(self._seed, torch.from_numpy(key), torch.from_numpy(step.epoch.copy()))
            kept = kept_counts(kept, noise_B3[:, 0], self._objective)
        rows = [count * self._config.patches.rows for count in kept]
        masked, visible = token_counts(rows, self._tokens, self._objective.mask_ratio)
        return {"masked": masked, "visible": visible, **further_targets.counts(rows, masked)}


def mask_keys(seed: int, key_B: Tensor, epoch_B: Tensor) -> Tensor:
    """Return the keys of the numbers that choose the masked tokens of windows."""
    return random_numbers.window_keys(seed, key_B, epoch_B, random_numbers.MASK)


def mask_noise(config: ModelConfig, batch: Batch, key_B: Tensor) -> Tensor:
    """Return uniform numbers (R, N) that choose the masked tokens, from the keys of the windows on the batch's device.

    The numbers of a window depend on the window alone, not on the process or the micro-batch that computes it.
    """
    layout, device, tokens = batch.layout, batch.signal_RT.device, config.patches.count(batch.signal_RT.shape[1])
    if config.patches.phase != "none":
        layout, _ = layout.doubled(config.patches.phase == "separated", device)
    if layout.slot_R is None:
        row_R = torch.arange(layout.windows * layout.width, device=device) % max(1, layout.width)
    else:
        row_R = layout.slot_R % layout.width
    place_RN = row_R[:, None] * tokens + torch.arange(tokens, device=device)
    return random_numbers.uniform(layout.per_row(key_B)[:, None], place_RN)


def view_noise(seed: int, key_B: Tensor, epoch_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return three uniform numbers for each window, which decide on its view, and the keys of further ones."""
    view_B = random_numbers.window_keys(seed, key_B, epoch_B, random_numbers.VIEW)
    return random_numbers.uniform(view_B[:, None], torch.arange(3)), view_B


class Validation:
    """The masked and the visible error over all windows of some sources, with masks that never change.

    On a GPU batches become CUDA graphs, which are kept for the next validation of the same run.
    """

    def __init__(
        self,
        model: MaskedCerebro,
        module: nn.Module,
        sources: Sources,
        processes: ProcessGroup,
        batch: int,
        dtype: torch.dtype = torch.float16,
        precision: loop.Precision = "fp32",
        graphs: bool = False,
    ) -> None:
        self._model, self._module, self._sources, self._processes = model, module, sources, processes
        self._batch, self._dtype = batch, dtype
        self._names = ("masked", "visible", *further_targets.weights(model.objective))
        every = [windows.channels for _, windows in sources if len(windows)]
        self._filling = Filling.choose(np.concatenate(every), batch) if graphs and every else None
        compute = functools.partial(_sums, module, model.config, processes.device, precision)
        self._compute = Capture(compute, processes.device, module=module) if graphs else compute
        self._kept = KeptBatches(processes.device)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Return the errors with the present weights; nothing where there are no windows."""
        processes, counts = self._processes, [len(windows) for _, windows in self._sources]
        if sum(counts) == 0:
            return {}
        everything = next(in_order(counts, sum(counts)))
        size = processes.size
        # Every process computes the same number of parts, because a sharded forward pass needs all processes.
        shared = len(everything) >= size
        mine = everything.part(processes.rank, size) if shared else everything
        parts = max(1, min(-(-len(everything) // (size * self._batch)), len(everything) // (size if shared else 1)))
        totals = torch.zeros(2, len(self._names), dtype=torch.float64, device=processes.device)
        pin = processes.device.type == "cuda"

        def batches() -> Iterator[LaidOut]:
            with Loader(self._sources, threads=2, pin=pin) as loader:
                for raw in loader.stream(mine.part(number, parts) for number in range(parts)):
                    yield self._inputs(raw)

        with (
            loop.evaluating(self._module),
            contextlib.closing(self._kept.of(self._sources, self._batch, batches)) as laid_out,
        ):
            for one in laid_out:
                totals += self._compute(*one)
        sums_K, counts_K = processes.sum(totals) if shared else totals
        errors = dict(zip(self._names, (sums_K / counts_K.clamp_min(1)).tolist(), strict=True))
        objective = self._model.objective
        loss = errors["masked"] + objective.alpha * errors["visible"]
        loss += sum(weight * errors[name] for name, weight in further_targets.weights(objective).items())
        return {**{f"validation_{name}": value for name, value in errors.items()}, "validation_loss": loss}

    def _inputs(self, raw: RawStep) -> LaidOut:
        """Lay windows out on the device, with the numbers that choose their masked tokens."""
        device = self._processes.device
        batch, key_B, epoch_B = lay_out(raw, device, self._dtype), raw.key_B, raw.epoch_B
        if self._filling is not None:
            batch = self._filling.fill(batch, raw.kept_counts())
            key_B, epoch_B = self._filling.extend(key_B), self._filling.extend(epoch_B)
        form, tensors = apart(batch)
        return form, (*tensors, onto(mask_keys(0, key_B, epoch_B), device))


def _sums(
    module: nn.Module,
    config: ModelConfig,
    device: torch.device,
    precision: loop.Precision,
    form: Hashable,
    tensors: Sequence[Tensor | None],
) -> Tensor:
    """Return the sums of the errors, and how many they are, (2, K)."""
    *of_batch, key_B = tensors
    assert key_B is not None
    batch = together(form, of_batch)
    with autocast_to(precision, device):
        found: Reconstruction = module(batch, mask_noise(config, batch, key_B))
    sums = [found.masked_sum, found.visible_sum, *(term.sum for term in found.further)]
    counted = [found.masked_count, found.visible_count, *(term.count for term in found.further)]
    return torch.stack([torch.stack(sums), torch.stack(counted)]).double()
