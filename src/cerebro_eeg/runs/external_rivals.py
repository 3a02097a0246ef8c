"""Rivals on external data: the simple features that a run stands beside, fitted on the run's own subjects.

They are fitted anew on the store that the run was trained on, which the user names. Where the external recordings lack
channels, they are fitted on the channels that both data sets have, and a line says so. Without that store, the simple
rival that won on validation stands alone: it is saved in the run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import common_channels
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.external import ExternalData
from cerebro_eeg.runs.readout_choice import READOUTS, head_outputs, shared_channels
from cerebro_eeg.runs.rivals import (
    CHANCE,
    FILE,
    FORMAT,
    RANDOM,
    RIVALS,
    SAVED,
    Ours,
    RivalAnswers,
    SimpleFeatures,
    chance_predictions,
    control_of,
    joined_rows,
    random_predictions,
    rival_predictions,
)
from cerebro_eeg.runs.store_predictions import to_predictions
from cerebro_eeg.runs.windows import LabelledTask, Split, find_splits, pick_targets, plain_electrodes
from cerebro_eeg.scores.paired import Paired, paired_with_all
from cerebro_eeg.train.distributed import ProcessGroup

Say = Callable[[str], None]
_HOW = "--trained-on STORE, the one of the run, adds them without a new scoring"


@dataclass(frozen=True)
class _KeptRivals:
    """The comparison that the folder of an external store keeps."""

    rows: list[dict[str, Any]]
    notes: list[str]
    fitted: bool
    """Whether rivals were fitted on the store of the run; otherwise only the saved one is there."""


def external_rivals(
    run: Path,
    place: Path,
    data: ExternalData,
    ours: Mapping[str, Sequence[Ours]] | None,
    processes: ProcessGroup,
    settings: Mapping[str, Any],
    learned_store: Store | None,
    *,
    random_weights: bool,
    resamples: int,
    say: Say,
) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """Return how the first predictions stand beside the rivals, with notes; None if there is no rival.

    The comparison is made once and kept in ``rivals.json``. The store of the run, given later, adds what was left out.
    """
    kept = _read(place)
    if random_weights and learned_store is None:
        say("note: a head on random weights is fitted on the store of the run, which --trained-on names")
    random_weights = random_weights or processes.device.type == "cuda"
    lacks = kept is not None and random_weights and not any(row["name"] == RANDOM for row in kept.rows)
    if kept is not None and (learned_store is None or (kept.fitted and not lacks)):
        return kept.rows, kept.notes
    if ours is None or any(_others(one, data) for trained in ours.values() for one in trained):
        return (None, []) if kept is None else (kept.rows, kept.notes)
    if learned_store is None:
        found, notes = _saved_alone(run, data, ours, processes, resamples, say)
    else:
        found, notes = _fitted(
            learned_store, data, ours, processes, settings, random_weights=random_weights, resamples=resamples, say=say
        )
    if not found:
        return None, notes
    _write(place, _KeptRivals(found, notes, learned_store is not None))
    return found, notes


def read_external_rivals(place: Path) -> list[dict[str, Any]] | None:
    """Return the comparison that the folder of an external store keeps; None if there is none."""
    kept = _read(place)
    return None if kept is None else kept.rows


def _others(one: Ours, data: ExternalData) -> bool:
    """Return whether predictions are of other windows or classes than these, by an earlier choice of the user."""
    truth = data.windows.label if data.windows.target is None else data.windows.target
    return not np.array_equal(one.predictions.truth, truth)


def _fitted(
    store: Store,
    data: ExternalData,
    ours: Mapping[str, Sequence[Ours]],
    processes: ProcessGroup,
    settings: Mapping[str, Any],
    *,
    random_weights: bool,
    resamples: int,
    say: Say,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Fit the rivals on the run's training and validation subjects, and compare their answers with ours."""
    own, balanced = settings["task"], bool(settings["choices"]["balanced"])
    task = LabelledTask(**{**own, "names": tuple(own["names"])})
    centring = settings["choices"].get("centring") is not False
    features: SimpleFeatures | None = None
    notes: list[str] = []
    of_folds: dict[str, list[Paired]] = {}
    answers: dict[str, list[RivalAnswers]] = {}
    for before in find_splits(store, task, settings["choices"]["folds"]):
        split = _with_external(before, data)
        if features is None:
            features = SimpleFeatures(store, split, processes, asked=data.store)
            say("simple rivals on the same windows: " + (", ".join(features.rivals) or "none"))
            notes = _channel_notes(shared_channels(before), shared_channels(split))
        trained = ours[split.name]
        found = rival_predictions(store, split, processes, balanced=balanced, centring=centring, features=features)
        found[CHANCE] = chance_predictions(data.store, split, "test")
        if random_weights:
            say(f"a head on random weights{f', {split.name}' if split.name else ''}")
            found[RANDOM] = random_predictions(
                store,
                split,
                processes,
                trained[0].header.model,
                readout=control_of(trained),
                balanced=balanced,
                centring=centring,
                asked_store=data.store,
                say=say,
            )
        _add(of_folds, answers, found, trained, resamples)
    return joined_rows(of_folds, answers, [one for trained in ours.values() for one in trained]), notes


def _with_external(split: Split, data: ExternalData) -> Split:
    """Return a split of the run with the external windows in the place of its test windows."""
    return replace(split, test=data.windows)


def _channel_notes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    lost = [name for name in before if name not in now]
    if before and not now:
        return ["no simple rival: the external recordings share no channel with those of the run"]
    if lost:
        return [
            f"simple rivals were fitted anew on the {counted(len(now), 'channel')} that the external recordings share "
            f"with those of the run, without {', '.join(lost[:6])}{', ...' if len(lost) > 6 else ''}"
        ]
    return []


def _saved_alone(
    run: Path, data: ExternalData, ours: Mapping[str, Sequence[Ours]], processes: ProcessGroup, resamples: int, say: Say
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare with the simple rival that is saved in the run, if there is one and the channels allow it."""
    path = run / SAVED / "model.safetensors"
    if not path.exists():
        return [], [f"simple rivals were left out: they are fitted on the run's training subjects; {_HOW}"]
    header = checkpoint.read_header(path)
    assert header.head is not None
    channels = _channels_of(data)
    if lost := [name for name in header.head.readout.channels if name not in channels]:
        return [], [
            f"the simple rival that is saved in the run reads {counted(len(lost), 'channel')} that some recordings "
            f"lack ({', '.join(lost[:6])}{', ...' if len(lost) > 6 else ''}); {_HOW}, fitted on shared channels"
        ]
    say("the simple rival that is saved in the run, on the same windows")
    model = Cerebro.from_pretrained(path)  # its rate is that of the store of the run, and so is that of the windows
    output = head_outputs(model.to(processes.device), data.store, data.windows, processes, say=say)
    answer = to_predictions(data.store, data.windows, pick_targets(output, header.head.names, data.windows))
    names = {READOUTS[readout]: name for name, readout in RIVALS.items()}
    name = names.get(header.head.readout.parts, "simple rival")
    everyone = [one for trained in ours.values() for one in trained]
    of_folds: dict[str, list[Paired]] = {}
    answers: dict[str, list[RivalAnswers]] = {}
    _add(of_folds, answers, {name: RivalAnswers(answer, header.head.centred)}, everyone, resamples)
    rows = [{**row, "alone": True} for row in joined_rows(of_folds, answers, everyone)]
    return rows, [f"{name} is the one that is saved in the run; for others, {_HOW}"]


def _channels_of(data: ExternalData) -> tuple[str, ...]:
    """Return the channels that all external windows have."""
    facts = data.windows.facts
    used = np.unique(facts.montage[data.windows.recording]).tolist()
    return common_channels([facts.montages[number] for number in used], plain_electrodes)


def _add(
    of_folds: dict[str, list[Paired]],
    answers: dict[str, list[RivalAnswers]],
    found: Mapping[str, RivalAnswers],
    trained: Sequence[Ours],
    resamples: int,
) -> None:
    answered = [rival.predictions for rival in found.values()]
    pairs = paired_with_all([one.predictions for one in trained], answered, resamples=resamples)
    for (name, rival), pair in zip(found.items(), pairs, strict=True):
        of_folds.setdefault(name, []).append(pair)
        answers.setdefault(name, []).append(rival)


def _read(place: Path) -> _KeptRivals | None:
    try:
        found = parse_json((place / FILE).read_text(encoding="utf-8"))
        if found["format"] == FORMAT and isinstance(found["rivals"], list):
            return _KeptRivals(found["rivals"], [str(note) for note in found["notes"]], bool(found["fitted"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"{FILE} of {place} is damaged; delete it and run the same command again")


def _write(place: Path, kept: _KeptRivals) -> None:
    found = {"format": FORMAT, "rivals": kept.rows, "notes": kept.notes, "fitted": kept.fitted}
    write_text(place / FILE, json.dumps(found, indent=2, allow_nan=False) + "\n")
