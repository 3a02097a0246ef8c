"""The record that a test split was scored, and the summary of a run's trainings.

The record exists so that the first score stays the one that is reported. ``test.json`` of a training has the number of
scorings, the first score and the last; ``test.npz`` has the predictions of the first. ``test.json`` of the run has the
same for all trainings, with their summary. A deleted record is made again: the run's from its trainings', a training's
from its predictions. A user who deletes all files, or copies the run beforehand, starts anew. The record guards
against habit, not against fraud.

Older records are read, too. Format 1 has no scores at the threshold. Formats 1 and 2 have one AUPR, called "aupr": that
of the positive of two classes, or the mean over more. It gets the name that it has now.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text

FORMAT = 3
READS = (1, 2, 3)
Score = Mapping[str, Any]
"""The score of one training in JSON: fold, seed, scores and, for seizures, events."""


@dataclass(frozen=True)
class ScoreRecord:
    """The contents of ``test.json``."""

    scorings: int
    first: dict[str, Any]
    last: dict[str, Any]


def read_record(folder: Path) -> ScoreRecord | None:
    """Return the record of a folder, or None if there is none."""
    try:
        found = parse_json((folder / "test.json").read_text(encoding="utf-8"))
        if found["format"] in READS and found["scorings"] >= 1 and found["first"] and found["last"]:
            return ScoreRecord(int(found["scorings"]), _completed(found["first"]), _completed(found["last"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(f"test.json of {folder} is damaged, so its first score cannot be told; bring it back from a copy")


def _completed(score: dict[str, Any]) -> dict[str, Any]:
    """Return a score of a training or a run with the keys and the names of today's format."""
    two = False
    for one in score.get("trainings", [score]):
        scores = one["scores"]
        scores.setdefault("at_threshold", None)
        two = len(scores["names"]) == 2
        for level in scores["levels"].values():
            level["values"], level["chance"] = _named(level["values"], two), _named(level["chance"], two)
        for row in scores["by_subject"]:
            row["values"] = _named(row["values"], two)
    for level in score.get("summary", {}).get("levels", {}).values():
        level["values"] = _named(level["values"], two)
    return score


def _named(values: dict[str, Any], two: bool) -> dict[str, Any]:
    """Return the numbers of a record with AUPR under the name that says which it is."""
    return {("aupr_positive" if two else "aupr_macro") if name == "aupr" else name: of for name, of in values.items()}


def write_record(folder: Path, record: ScoreRecord) -> None:
    """Write the record atomically."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=2, allow_nan=False)
    write_text(folder / "test.json", text + "\n")


def summarise(scores: Sequence[Score]) -> dict[str, Any]:
    """Return mean and deviation of every number, by level; a seed's number is the mean over its folds.

    ``low`` and ``high`` are the means of the trainings' interval bounds.
    """
    found: dict[str, Any] = {
        "seeds": sorted({score["seed"] for score in scores}),
        "folds": [fold for fold in dict.fromkeys(score["fold"] for score in scores) if fold],
        "levels": _levels([(score, score["scores"]["levels"]) for score in scores]),
        "notes": list(dict.fromkeys(note for score in scores for note in score["scores"]["notes"])),
    }
    if all(score["events"] for score in scores):
        events = [score["events"] for score in scores]
        found["events"] = {
            metric: _spread(scores, [{**event["pooled"][metric], "chance": None} for event in events])
            for metric in events[0]["pooled"]
        }
    decided = [(score, at) for score in scores if (at := score["scores"]["at_threshold"])]
    if decided:
        found["at_threshold"] = {
            "thresholds": [at["threshold"] for _, at in decided],
            "chosen_on": [at["chosen_on"] for _, at in decided],
            "positive": decided[0][1]["positive"],
            "levels": _levels([(score, at["levels"]) for score, at in decided]),
        }
    return found


def of_seeds(scores: Mapping[str, Any], seeds: Sequence[int]) -> Mapping[str, Any]:
    """Return the scores without trainings of other seeds; earlier releases also scored copies of a probe."""
    kept = [score for score in scores["trainings"] if score["seed"] in seeds]
    return scores if len(kept) == len(scores["trainings"]) else {"summary": summarise(kept), "trainings": kept}


def _levels(scores: Sequence[tuple[Score, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return each level over the trainings that have it. Scores at a threshold have no chance level."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(level for _, levels in scores for level in levels):
        having = [(score, levels[name]) for score, levels in scores if name in levels]
        of = [level for _, level in having]
        found[name] = {
            "trainings": len(having),
            "count": [level["count"] for level in of],
            "values": {
                metric: _spread(
                    [score for score, _ in having],
                    [{**level["values"][metric], "chance": level.get("chance", {}).get(metric)} for level in of],
                )
                for metric in of[0]["values"]
                if all(metric in level["values"] for level in of)  # earlier releases scored fewer
            },
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
    """Return the mean value of each seed or fold, without those that have no value."""
    values: dict[Any, list[float]] = {}
    for score, number in zip(scores, numbers, strict=True):
        if (value := number["value"]) is not None:
            values.setdefault(score[key], []).append(value)
    return [statistics.fmean(of) for of in values.values()]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
