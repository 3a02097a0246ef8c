"""Scored: the scores of a run's trainings as one, and the record that a test set was scored.

The record is kept so that the first score stays the one that is told. ``test.json`` of a training has the number of
scorings, the first score and the last; ``test.npz`` the predictions of the first. The run's own ``test.json`` has the
same of all its trainings with their summary. What is deleted is made again from what is left: the run's record from its
trainings', a training's from its predictions. Who deletes all of it, or copies the run before, starts anew: this guards
against habit, not against fraud.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text

FORMAT = 1
Score = Mapping[str, Any]
"""What a training's score is in JSON: fold, seed, scores and, for seizures, events."""


@dataclass(frozen=True)
class Record:
    """What ``test.json`` says."""

    scorings: int
    first: dict[str, Any]
    last: dict[str, Any]


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None where there is none."""
    try:
        found = json.loads((folder / "test.json").read_text(encoding="utf-8"))
        if found["format"] == FORMAT and found["scorings"] >= 1 and found["first"] and found["last"]:
            return Record(int(found["scorings"]), found["first"], found["last"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"test.json of {folder} is damaged, so its first score cannot be told; bring it back from a copy")


def write_record(folder: Path, record: Record) -> None:
    """Whole or not at all."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=2, allow_nan=False)
    write_text(folder / "test.json", text + "\n")


def summarise(scores: Sequence[Score]) -> dict[str, Any]:
    """Mean and deviation of every number, by level; a seed's number is the mean over its folds.

    ``low`` and ``high`` are the means of the trainings' interval bounds.
    """
    levels: dict[str, Any] = {}
    for name in dict.fromkeys(level for score in scores for level in score["scores"]["levels"]):
        having = [score for score in scores if name in score["scores"]["levels"]]
        of = [score["scores"]["levels"][name] for score in having]
        levels[name] = {
            "trainings": len(having),
            "count": [level["count"] for level in of],
            "values": {
                metric: _spread(
                    having, [{**level["values"][metric], "chance": level["chance"][metric]} for level in of]
                )
                for metric in of[0]["values"]
            },
        }
    found: dict[str, Any] = {
        "seeds": sorted({score["seed"] for score in scores}),
        "folds": [fold for fold in dict.fromkeys(score["fold"] for score in scores) if fold],
        "levels": levels,
        "notes": list(dict.fromkeys(note for score in scores for note in score["scores"]["notes"])),
    }
    if all(score["events"] for score in scores):
        events = [score["events"] for score in scores]
        found["events"] = {
            metric: _spread(scores, [{**event["pooled"][metric], "chance": None} for event in events])
            for metric in events[0]["pooled"]
        }
    return found


def _spread(scores: Sequence[Score], numbers: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    by_seed = _means(scores, numbers, "seed")
    by_fold = _means(scores, numbers, "fold")
    return {
        "mean": statistics.fmean(by_seed) if by_seed else None,
        "std": statistics.stdev(by_seed) if len(by_seed) > 1 else None,
        "std_over_folds": statistics.stdev(by_fold) if len(by_fold) > 1 else None,
        **{key: _mean([number[key] for number in numbers]) for key in ("low", "high", "chance")},
    }


def _means(scores: Sequence[Score], numbers: Sequence[Mapping[str, float | None]], key: str) -> list[float]:
    """The mean value for each seed or fold; those without a value are left out."""
    values: dict[Any, list[float]] = {}
    for score, number in zip(scores, numbers, strict=True):
        if (value := number["value"]) is not None:
            values.setdefault(score[key], []).append(value)
    return [statistics.fmean(of) for of in values.values()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
