"""Rivals: simple features with logistic regression, on the same windows and splits as the model that is scored.

A foundation model is of use only where it beats what takes seconds. So every score stands beside log band power, log
covariances in a filter bank, both together, and these with narrower bands. They use no encoder. Cross-validation over
training and validation subjects chooses the strength of a linear model and whether features are centred per subject, as
for our own read-outs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig, ReadoutConfig
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import Readout, widths
from cerebro_eeg.runs.linear_models import fit_chosen, groups_of, labelled
from cerebro_eeg.runs.readout_choice import AUTO_WIDE, READOUTS, WIDE, members, shared_channels
from cerebro_eeg.runs.store_predictions import predict_windows, to_predictions
from cerebro_eeg.runs.windows import Split, signal_of
from cerebro_eeg.scores.paired import Paired, paired
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.scores.tables import title
from cerebro_eeg.train.distributed import ProcessGroup

RIVALS = {
    "band power": "power",
    "filter-bank covariance": "tangent",
    "both together": "simple",
    "with narrow bands": "signal",
}
"""What a rival is called, and the read-out that it is."""
FILE = "rivals.json"
FILES = {"test": FILE, "validation": "rivals-validation.json"}
"""The file of a run that keeps the comparison on a split."""
WIN = 0.9
"""Share of the draws of subjects in which a model must be ahead to win."""


@dataclass(frozen=True)
class RivalAnswers:
    """What a rival predicts for the windows of a split, and whether it was centred per subject."""

    predictions: Predictions
    centred: bool


def rival_predictions(
    store: Store,
    split: Split,
    processes: ProcessGroup,
    *,
    part: Literal["test", "validation"] = "test",
    balanced: bool = False,
) -> dict[str, RivalAnswers]:
    """Return what each rival predicts for the windows of a split; nothing if its windows share no channels.

    Training and validation subjects choose a rival's strength and centring, by cross-validation, and fit it. Its
    predictions for validation windows are those of the cross-validation.
    """
    channels, asked = shared_channels(split), split.test if part == "test" else split.validation
    if not channels or asked is None:
        return {}
    model = ModelConfig(signal=signal_of(store), window=max(split.train.samples, 64))
    names = {name: of for name, of in RIVALS.items() if of in AUTO_WIDE or len(channels) < WIDE}
    parts = tuple(dict.fromkeys(part for of in names.values() for part in READOUTS[of]))
    config = ReadoutConfig(parts, channels)
    readout = Readout(config, model).to(processes.device)

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Readout)
        return module.raw(batch, cast(Encoder, None))  # these parts need no encoder

    def raw(windows: Windows) -> NDArray[np.float32]:
        return predict_windows(readout, store, windows, processes, read=read)

    known = [windows for windows in (split.train, split.validation) if windows is not None]
    sizes = dict(zip(parts, widths(config, model), strict=True))
    data = labelled([(windows, raw(windows)) for windows in known], sizes)
    asked_BP = raw(asked) if part == "test" else None
    found = {}
    for name, of in names.items():
        candidates, stacks = members([of])
        fitted = fit_chosen(data, candidates, stacks, only=[of], balanced=balanced)
        if asked_BP is not None:
            output = fitted.outputs(asked_BP[:, data.columns(fitted.parts)], groups_of(asked))
        elif fitted.own_held_out is not None:
            output = fitted.own_held_out[len(split.train) :]
        else:
            return {}  # too few subjects
        found[name] = RivalAnswers(to_predictions(store, asked, output), fitted.centred)
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
    part: Literal["test", "validation"] = "test",
) -> list[dict[str, Any]]:
    """Return how a run stands beside the rivals, and keep it in a file of the run; ``predictions`` are by fold."""
    say("simple rivals on the same windows: " + ", ".join(RIVALS))
    of_folds: dict[str, list[Paired]] = {}
    centred: dict[str, list[bool]] = {}
    for split in splits:
        for name, found in rival_predictions(store, split, processes, part=part, balanced=balanced).items():
            pair = paired(predictions[split.name], found.predictions, resamples=resamples)
            of_folds.setdefault(name, []).append(pair)
            centred.setdefault(name, []).append(found.centred)
    rows = [{"name": name, "centred": all(centred[name]), **_mean(of)} for name, of in of_folds.items()]
    write_text(run / FILES[part], json.dumps({"format": 1, "rivals": rows}, indent=2, allow_nan=False) + "\n")
    return rows


def read_rivals(run: Path, part: str = "test") -> list[dict[str, Any]] | None:
    """Return the kept comparison of a run; None if there is none."""
    try:
        found = parse_json((run / FILES[part]).read_text(encoding="utf-8"))
        if found["format"] == 1 and isinstance(found["rivals"], list):
            return list(found["rivals"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"{FILES[part]} of {run} is damaged; delete it and run the same command again")


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
    if any(row.get("centred") for row in rows):
        names = ", ".join(row["name"] for row in rows if row.get("centred"))
        lines.append(f"  centred per subject, with all windows of a subject at once: {names}")
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
