"""Rivals: simple features with logistic regression, on the same windows and splits as the model that is scored.

A foundation model is of use only where it beats what takes seconds. So every score stands beside log band power, log
covariances in a filter bank, and both together. They use no encoder. A linear model is fitted on the training windows,
and validation chooses its strength, as for our own frozen probe.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import ModelConfig, ReadoutConfig, ReadoutPart
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import Readout, common_channels, widths
from cerebro_eeg.runs.probe import fit_probe
from cerebro_eeg.runs.store_predictions import predict_windows, to_predictions
from cerebro_eeg.runs.windows import Split, signal_of
from cerebro_eeg.scores.paired import Paired, paired
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.scores.tables import title
from cerebro_eeg.train.distributed import ProcessGroup

SIMPLE: tuple[ReadoutPart, ...] = ("power", "tangent")
RIVALS: dict[str, tuple[ReadoutPart, ...]] = {
    "band power": ("power",),
    "filter-bank covariance": ("tangent",),
    "both together": SIMPLE,
}
FILE = "rivals.json"
WIN = 0.9
"""Share of the draws of subjects in which a model must be ahead to win."""


@dataclass(frozen=True)
class SimpleFeatures:
    """The features of all rivals, by split, and the number of features of each part."""

    by_split: Mapping[str, NDArray[np.float32]]
    sizes: Mapping[str, int]

    def of(self, split: str, parts: Sequence[str]) -> NDArray[np.float32]:
        """Return the features of some parts; in each, all features together have the same variance."""
        found, first = [], 0
        for part, size in self.sizes.items():
            if part in parts:
                found.append(self.by_split[split][:, first : first + size])
            first += size
        return np.concatenate(found, 1)


def shared_channels(split: Split) -> tuple[str, ...]:
    """Return the channels that all windows of a split have."""
    parts = [part for part in (split.train, split.validation, split.test) if part is not None]
    montages = {part.facts.montages[n] for part in parts for n in np.unique(part.facts.montage[part.recording])}

    def ids(names: tuple[str, ...]) -> NDArray[np.int64]:
        return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)

    return common_channels(sorted(montages), ids)


def simple_features(store: Store, split: Split, processes: ProcessGroup) -> SimpleFeatures | None:
    """Compute the features of the rivals for all windows of a split; None if its windows share no channels."""
    channels = shared_channels(split)
    if not channels:
        return None
    model = ModelConfig(signal=signal_of(store), window=max(split.train.samples, 64))
    config = ReadoutConfig(SIMPLE, channels)
    readout = Readout(config, model).to(processes.device)

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Readout)
        return module.raw(batch, cast(Encoder, None))  # these parts need no encoder

    parts: dict[str, Windows | None] = {"train": split.train, "validation": split.validation, "test": split.test}
    found = {
        name: predict_windows(readout, store, windows, processes, read=read)
        for name, windows in parts.items()
        if windows is not None
    }
    return SimpleFeatures(found, dict(zip(SIMPLE, widths(config, model), strict=True)))


def rival_predictions(
    store: Store, split: Split, processes: ProcessGroup, *, balanced: bool = False
) -> dict[str, Predictions]:
    """Return what each rival predicts for the test windows of a split; nothing if its windows share no channels."""
    features = simple_features(store, split, processes)
    if features is None or split.test is None:
        return {}
    found = {}
    for name, parts in RIVALS.items():
        probe = fit_probe(
            store,
            split.train,
            features.of("train", parts),
            split.validation,
            None if split.validation is None else features.of("validation", parts),
            balanced=balanced,
            blocks=[features.sizes[part] for part in parts],
        )
        output = (features.of("test", parts) @ probe.weight_KD.T + probe.bias_K).astype(np.float32)
        found[name] = to_predictions(store, split.test, output)
    return found


# Beside the scores of a run


def compare_with_rivals(
    run: Path,
    store: Store,
    splits: Sequence[Split],
    predictions: Mapping[str, Sequence[Predictions]],
    processes: ProcessGroup,
    *,
    balanced: bool,
    resamples: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return how a run stands beside the rivals, and keep it in ``rivals.json``; ``predictions`` are by fold."""
    say("simple rivals on the same windows: band power, filter-bank covariance, both together")
    of_folds: dict[str, list[Paired]] = {}
    for split in splits:
        for name, found in rival_predictions(store, split, processes, balanced=balanced).items():
            of_folds.setdefault(name, []).append(paired(predictions[split.name], found, resamples=resamples))
    rows = [{"name": name, **_mean(of)} for name, of in of_folds.items()]
    write_text(run / FILE, json.dumps({"format": 1, "rivals": rows}, indent=2, allow_nan=False) + "\n")
    return rows


def read_rivals(run: Path) -> list[dict[str, Any]] | None:
    """Return the kept comparison of a run; None if there is none."""
    try:
        found = parse_json((run / FILE).read_text(encoding="utf-8"))
        if found["format"] == 1 and isinstance(found["rivals"], list):
            return list(found["rivals"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"{FILE} of {run} is damaged; delete it and evaluate again")


def _mean(folds: Sequence[Paired]) -> dict[str, Any]:
    """Return the means over folds. With several folds there is no interval, because each has a model of its own."""
    first = asdict(folds[0])
    if len(folds) == 1:
        return first
    values = {key: float(np.mean([getattr(of, key) for of in folds])) for key in ("ours", "rival", "difference")}
    return {**first, **values, "subjects": sum(of.subjects for of in folds), "low": None, "high": None, "above": None}


def rival_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of rivals as text, and the sentence on who wins."""
    if not rows:
        return ["", "simple rivals: none, because the windows have no channel in common"]
    metric = title(rows[0]["metric"])
    lines = ["", f"simple rivals on the same windows ({metric} by window; ours {rows[0]['ours']:.3f})"]
    lines.append(f"  {'':<24} {'rival':>7} {'ours -':>7}   95 % over subjects")
    for row in rows:
        between = "n/a" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
        lines.append(f"  {row['name']:<24} {row['rival']:>7.3f} {row['difference']:>+7.3f}   {between}")
    return [*lines, f"  {verdict(rows)}"]


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one sentence on who wins: a win is a difference above 0 in nine of ten draws of subjects."""
    best = max(rows, key=lambda row: row["rival"])
    size, name, above = abs(best["difference"]), best["name"], best["above"]
    who = f"{best['subjects']} subjects"
    if above is None:
        side = "ahead of" if best["difference"] > 0 else "behind"
        return f"this model is {size:.3f} {side} the best rival, {name}; {who} and folds allow no interval here"
    if above >= WIN:
        return f"this model wins: {size:.3f} ahead of the best rival, {name}, over {who}"
    if above <= 1 - WIN:
        return f"{name} with a linear model wins by {size:.3f} over {who}: prefer it, it takes seconds"
    return (
        f"no winner: this model and the best rival, {name}, differ by {size:.3f}, which {who} cannot tell from chance"
    )
