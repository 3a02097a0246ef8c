"""Pretrain: one run of masked pre-training, from stores to weights, that goes on where it was stopped."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from cerebro_eeg.config import Preset, SignalConfig
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs import engine as engines
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.pretraining import MaskedTask, validate
from cerebro_eeg.runs.seen import record
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.sources import check_signal, open_stores, pretrain_windows, signal_of
from cerebro_eeg.runs.training import (
    Plan,
    Say,
    Tell,
    carry_out,
    fit_batch,
    gathered,
    plan_length,
    signal_type,
    together,
)
from cerebro_eeg.schema import to_dict
from cerebro_eeg.train import loop
from cerebro_eeg.train.distributed import World
from cerebro_eeg.train.log import read_lines
from cerebro_eeg.train.optim import group


@dataclass(frozen=True)
class Choices:
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
    choices: Choices,
    engine: Engine,
    start: Path | None = None,
    *,
    say: Say = lambda line: None,
    tell: Tell = lambda report, steps, batch: None,
) -> Pretrained:
    """Pre-train on the windows of stores, from the weights of ``start`` or from new ones."""
    folder = RunFolder(out)
    with together(folder, engine, say, tell) as (world, say, tell):
        return _pretrain(world, open_stores(folders), folder, preset, choices, engine, start, say, tell)


def _pretrain(
    world: World,
    stores: list[Store],
    folder: RunFolder,
    preset: Preset,
    choices: Choices,
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
    pieces = engines.choose_pieces(engine, world, config, channels, samples, batch)
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

    def after(run: loop.Run, step: int) -> tuple[dict[str, float], bool]:
        if not held_out or (step % length.an_epoch and step != length.steps):
            return {}, False
        with loop.autocast(run):
            values = validate(model, run.wrapped, held_out, world, at_once, signal_type(run.precision))
        run.progress.notes["validation"] = values
        return values, False

    cuda = world.device.type == "cuda"
    with Loader(sources, threads=engine.readers, processes=cuda, pin=cuda) as loader:

        def make_task(pieces: int, dtype: torch.dtype) -> MaskedTask:
            return MaskedTask(sources, order, loader, config, model.objective, choices.seed, world, pieces, dtype)

        groups = group(model, table.weight_decay)
        plan = Plan(
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
    run: loop.Run,
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
