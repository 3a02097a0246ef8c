"""The table of a task in ``compare``: scores with intervals, differences from our default, and who wins in a sentence.

Everything is computed from predictions that are kept. The score is AUROC (the mean of each class against the rest), or
R2 for values. The best simple rival is the one that cross-validation prefers, so the test split chooses nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cerebro_eeg.runs.windows import LabelledTask
from cerebro_eeg.scores.paired import FEWEST, DrawnScores, Paired, difference, draw_scores
from cerebro_eeg.scores.predictions import Predictions, score

WIN = 0.9
"""Share of the draws of subjects in which a model must be ahead to win."""
DEFAULT = "default"
FIRST_METRICS = {"classification": ("auroc", "balanced_accuracy"), "regression": ("r2", "rmse")}
LEVELS = ("window", "recording", "subject")


@dataclass(frozen=True, eq=False)
class Row:
    """The kept answers of a method to a task."""

    record: Mapping[str, Any]
    """What ``row.json`` holds."""
    held_out: Predictions
    tests: tuple[Predictions, ...]
    scorings: int


@dataclass(frozen=True)
class TaskTable:
    """The table of a task, as values that JSON can hold."""

    task: str
    kind: str
    names: tuple[str, ...]
    metric: str
    seconds: float
    """Length of a window."""
    known: Mapping[str, int]
    """Windows and subjects to learn from."""
    test: Mapping[str, int] | None
    rows: tuple[Mapping[str, Any], ...]
    best_simple: str | None
    """The simple rival that cross-validation prefers."""
    verdict: Mapping[str, Any] | None
    """How our default stands beside that rival: on the test split or, without one, by cross-validation."""


def summarise_task(task: LabelledTask, rows: Sequence[Row], *, resamples: int) -> TaskTable:
    """Return the table of a task from the answers of its methods."""
    metric = FIRST_METRICS[task.kind][0]
    crossed = {row.record["name"]: draw_scores([row.held_out], metric, resamples=resamples) for row in rows}
    tested = {row.record["name"]: draw_scores(row.tests, metric, resamples=resamples) for row in rows if row.tests}
    simple = [row.record for row in rows if row.record["family"] == "simple"]
    best = max(simple, key=lambda record: record["score"])["name"] if simple else None
    found = []
    for row in rows:
        name = row.record["name"]
        entry: dict[str, Any] = {key: value for key, value in row.record.items() if key != "format"}
        entry |= {"cv": _estimate(crossed[name]), "test": None, "scorings": row.scorings}
        entry["minus"] = {"cv": _minus(crossed, name), "test": _minus(tested, name)}
        if name in tested:
            entry["test"] = _estimate(tested[name]) | _levels(row.tests, task.kind)
            if tested[name].subjects < FEWEST:
                entry["test"]["by_subject"] = _by_subject(row.tests, metric)
        found.append(entry)
    first = rows[0]
    return TaskTable(
        task.task,
        task.kind,
        task.names,
        metric,
        task.seconds,
        _counts(first.held_out),
        _counts(first.tests[0]) if first.tests else None,
        tuple(found),
        best,
        _verdict(crossed, tested, best),
    )


def _counts(predictions: Predictions) -> dict[str, int]:
    return {"windows": len(predictions), "subjects": len(np.unique(_subjects(predictions)))}


def _subjects(predictions: Predictions) -> Any:
    """Return the subject of each window; a recording without a known subject is its own."""
    unknown = predictions.subject == ""
    return np.where(unknown, np.char.add("recording ", predictions.recording), predictions.subject)


def _estimate(drawn: DrawnScores) -> dict[str, Any]:
    low, high = drawn.limits
    return {"value": drawn.value, "low": low, "high": high, "subjects": drawn.subjects}


def _minus(drawn: Mapping[str, DrawnScores], name: str) -> dict[str, Any] | None:
    """Return our default minus a method; None for the default itself, or where one has no answer."""
    if name == DEFAULT or DEFAULT not in drawn or name not in drawn:
        return None
    return asdict(difference(drawn[DEFAULT], drawn[name]))


def _levels(tests: Sequence[Predictions], kind: str) -> dict[str, Any]:
    """Return the scores by window, recording and subject: means over seeds, and their deviation."""
    scored = [score(one, resamples=100).levels for one in tests]
    found: dict[str, Any] = {}
    for level in LEVELS:
        if level in scored[0]:
            values = {metric: [one[level].values[metric].value for one in scored] for metric in FIRST_METRICS[kind]}
            found[level] = {metric: _mean(of) for metric, of in values.items()}
    seeds = [one["window"].values[FIRST_METRICS[kind][0]].value for one in scored]
    known = [value for value in seeds if value is not None]
    return {"levels": found, "std": float(np.std(known, ddof=1)) if len(known) == len(seeds) > 1 else None}


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean over seeds; None if the truth leaves the number undefined."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _by_subject(tests: Sequence[Predictions], metric: str) -> list[dict[str, Any]]:
    """Return the score of each subject, the mean over seeds; None where its windows have one class."""
    found: dict[str, list[float | None]] = {}
    for one in tests:
        for row in score(one, resamples=100).by_subject:
            found.setdefault(row.subject, []).append(row.values.get(metric))
    return [{"subject": subject, "value": _mean(values)} for subject, values in found.items()]


def _verdict(
    crossed: Mapping[str, DrawnScores], tested: Mapping[str, DrawnScores], best: str | None
) -> dict[str, Any] | None:
    """Return how our default stands beside the best simple rival, with a sentence."""
    on = "test" if DEFAULT in tested else "cv"
    drawn = tested if on == "test" else crossed
    if best is None or DEFAULT not in drawn or best not in drawn:
        return None
    found = difference(drawn[DEFAULT], drawn[best])
    return {**asdict(found), "rival_name": best, "on": on, "state": state_of(found), "text": sentence(found, best, on)}


def state_of(found: Paired) -> str:
    """Return "wins", "loses", or "tied"; below six subjects, "ahead" or "behind", which proves nothing."""
    if found.above is None or found.below is None:
        return "ahead" if found.difference >= 0 else "behind"
    return "wins" if found.above >= WIN else "loses" if found.below >= WIN else "tied"


def sentence(found: Paired, rival: str, on: str) -> str:
    """Return one sentence on our default beside a simple rival."""
    where = f"{found.subjects} test subjects" if on == "test" else f"{found.subjects} cross-validated subjects"
    size = f"{abs(found.difference):.3f}"
    words = {
        "wins": f"our default wins: {size} above the best simple rival, {rival}, over {where}",
        "loses": f"{rival} wins: our default is {size} below it over {where}; prefer the simple model",
        "tied": f"no winner: our default minus {rival} is {found.difference:+.3f}, which {where} cannot tell from 0",
        "ahead": f"our default is {size} above {rival}, and {where} are too few for an interval",
        "behind": f"our default is {size} below {rival}, and {where} are too few for an interval",
    }
    return words[state_of(found)]


@dataclass(frozen=True)
class Overall:
    """What holds over all tasks."""

    means: Mapping[str, Mapping[str, float | None]]
    """By method: the mean score over the tasks with classes, cross-validated and on the test split."""
    tasks: tuple[str, ...]
    not_beaten: int
    """Tasks where no simple rival is ahead of our default in nine of ten draws of test subjects."""
    wins: int
    """Tasks where our default is ahead of every simple rival in nine of ten draws."""
    judged: int


def overall(tables: Sequence[TaskTable]) -> Overall:
    """Return means over tasks with classes, of methods that answered all of them, and how often our default wins."""
    classes = [table for table in tables if table.kind == "classification"]
    named = [{row["name"]: row for row in table.rows} for table in classes]
    means: dict[str, dict[str, float | None]] = {}
    for name in named[0] if named else ():
        if all(name in rows for rows in named):
            tests = [rows[name]["test"] for rows in named]
            crossed = float(np.mean([rows[name]["cv"]["value"] for rows in named]))
            test = None if None in tests else float(np.mean([one["value"] for one in tests]))
            means[name] = {"cv": crossed, "test": test}
    beaten = wins = judged = 0
    for table in tables:
        pairs = [row["minus"]["test"] for row in table.rows if row["family"] == "simple"]
        if pairs and all(pair is not None and pair["above"] is not None for pair in pairs):
            judged += 1
            beaten += any(pair["below"] >= WIN for pair in pairs)
            wins += all(pair["above"] >= WIN for pair in pairs)
    return Overall(means, tuple(table.task for table in classes), judged - beaten, wins, judged)
