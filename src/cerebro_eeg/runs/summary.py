"""Summary: the scores of a run's trainings as one: mean and standard deviation over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Score = Mapping[str, Any]
"""What a training's score is in JSON: fold, seed, scores and, for seizures, events."""


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
