"""Predictions with their truth, the metric that selects, the threshold, and all scores of a test split.

``Predictions`` is what a model predicts for windows. ``headline`` selects on validation, ``choose_threshold`` chooses
on it, and ``score`` scores a test by window, recording and subject. The formulas are scikit-learn's. This module
decides which metric selects, over which units intervals are taken, and what happens if a class is missing. It does not
load torch.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import InputError
from cerebro_eeg.files import replacing
from cerebro_eeg.progress import counted
from cerebro_eeg.scores import classification, regression
from cerebro_eeg.scores.classification import calibrate
from cerebro_eeg.scores.tables import (
    AtThreshold,
    ClassCount,
    Decided,
    Estimate,
    LevelScores,
    Scores,
    SubjectRow,
    positive_of,
)

# The bootstrap. Windows of one subject are alike, so an interval over windows would be far too narrow. Subjects are
# therefore drawn, with replacement; a draw is a row of weights.

CONFIDENCE = 0.95


def draw(units: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return how often each unit is in each draw of as many units (resamples, units)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.multinomial(units, np.full(units, 1 / units), size=resamples).astype(np.float64)


def interval(values: NDArray[np.float64], units: int) -> tuple[float | None, float | None]:
    """Return the percentiles that hold 95 % of the draws; None for one unit, or if most draws have no value."""
    known = values[np.isfinite(values)]
    if units < 2 or not len(values) or 2 * len(known) < len(values):
        return None, None
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high


@dataclass(frozen=True, eq=False)
class OutputTable:
    """Outputs with the truth; a row is a window, a recording or a subject."""

    kind: str
    names: tuple[str, ...]
    output: NDArray[np.float32]
    truth: NDArray[Any]
    recording: NDArray[np.str_]
    subject: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.output)


def group(table: OutputTable, by: NDArray[np.str_]) -> OutputTable | None:
    """Return one row per value of ``by`` with the mean output; None if rows of one value differ in their truth."""
    _, first, place, count = np.unique(by, return_index=True, return_inverse=True, return_counts=True)
    if not np.array_equal(table.truth, table.truth[first][place]):
        return None
    sums = np.zeros((len(first), table.output.shape[1]))
    np.add.at(sums, place, table.output)
    return replace(
        table,
        output=(sums / count[:, None]).astype(np.float64),
        truth=table.truth[first],
        recording=table.recording[first],
        subject=table.subject[first],
    )


def level(table: OutputTable, unit: NDArray[np.intp], weights: NDArray[np.float64]) -> LevelScores:
    """Return every number with its interval over the units, and the numbers of a guess from the class shares."""
    values = _measure(table)
    drawn, usable = _resample(table, unit, np.vstack([np.ones((1, weights.shape[1])), weights]))
    found = estimates(values, drawn, usable, weights.shape[1])
    return LevelScores(len(table), int(usable[1:].sum()), found, _measure(_guess(table)))


def level_at_threshold(
    table: OutputTable, unit: NDArray[np.intp], weights: NDArray[np.float64], threshold: float
) -> Decided:
    """Return every number at the threshold with its interval over the units, and the confusion."""
    predicted = classification.decide(table.output, threshold)
    drawn, usable = classification.resample_decided(
        table.truth, predicted, unit, np.vstack([np.ones((1, weights.shape[1])), weights])
    )
    values = estimates(classification.measure_decided(table.truth, predicted), drawn, usable, weights.shape[1])
    return Decided(
        len(table),
        int(usable[1:].sum()),
        values,
        classification.confusion(table.truth, np.eye(2, dtype=np.float32)[predicted]),
    )


def estimates(
    values: Mapping[str, float | None], drawn: Mapping[str, NDArray[np.float64]], usable: NDArray[np.bool_], units: int
) -> dict[str, Estimate]:
    """Return each number with its interval over the usable draws.

    The first draw must have every unit once: its numbers are checked against those of scikit-learn.
    """
    found = {}
    for name, value in values.items():
        again = drawn[name][0]
        assert np.isnan(again) if value is None else abs(again - value) < 1e-6 * max(1.0, abs(value)), name
        within = np.where(usable[1:], drawn[name][1:], np.nan)
        low, high = (None, None) if value is None else interval(within, units)
        found[name] = Estimate(value, low, high)
    return found


def subject_rows(table: OutputTable) -> tuple[SubjectRow, ...]:
    """Return every number for each subject alone, by window; None if its windows do not suffice."""
    subjects, unit, windows = np.unique(table.subject, return_inverse=True, return_counts=True)
    drawn, _ = _resample(table, unit, np.eye(len(subjects)))
    pairs = np.unique(np.stack([table.subject, table.recording]), axis=1)[0]
    recordings = dict(zip(*np.unique(pairs, return_counts=True), strict=True))
    return tuple(
        SubjectRow(
            str(subject),
            int(recordings[subject]),
            int(windows[k]),
            {name: float(of[k]) if np.isfinite(of[k]) else None for name, of in drawn.items()},
        )
        for k, subject in enumerate(subjects)
    )


def class_counts(table: OutputTable) -> tuple[ClassCount, ...]:
    """Return the number of windows, recordings and subjects of each class."""
    found = []
    for k, name in enumerate(table.names):
        has = table.truth == k
        recordings, subjects = np.unique(table.recording[has]), np.unique(table.subject[has])
        found.append(ClassCount(name, int(has.sum()), len(recordings), len(subjects)))
    return tuple(found)


def _guess(table: OutputTable) -> OutputTable:
    """Return a guess that is the same for all rows: the shares of the classes, or the means of the targets."""
    if table.kind == "regression":
        constant = table.truth.astype(np.float64).mean(0)
    else:
        constant = np.bincount(table.truth, minlength=len(table.names)) / len(table)
    return replace(table, output=np.tile(constant, (len(table), 1)))


def _measure(table: OutputTable) -> dict[str, float | None]:
    if table.kind == "regression":
        return regression.measure(table.truth, table.output, table.names)
    return classification.measure(table.truth, table.output)


def _resample(
    table: OutputTable, unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    if table.kind == "regression":
        return regression.resample(table.truth, table.output, unit, weights, table.names)
    return classification.resample(table.truth, table.output, unit, weights)


KINDS = ("classification", "regression")
_FEW = 10  # below so many subjects a note says that percentile intervals are too narrow (docs/training.md)
FIELDS = ("kind", "names", "output", "truth", "recording", "subject", "start", "seconds")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Outputs of a model for windows, and the truth. Arrays have one entry per window."""

    kind: str
    """classification or regression."""
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    output: NDArray[np.float32]
    """(windows, names): probabilities, or values."""
    truth: NDArray[Any]
    """(windows,): places in ``names``; or (windows, names): values."""
    recording: NDArray[np.str_]
    subject: NDArray[np.str_]
    """Empty if it is not known."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording."""
    seconds: float
    """Length of a window."""

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.output)

    def joined(self, other: "Predictions") -> "Predictions":
        """Return these predictions and those of further windows."""
        arrays = ("output", "truth", "recording", "subject", "start")
        both: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in arrays}
        return replace(self, **both)

    def save(self, path: Path) -> None:
        """Write them as .npz, atomically."""
        arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in FIELDS}
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @staticmethod
    def load(path: Path) -> "Predictions":
        """Read them with every field checked; no code in the file can run."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in FIELDS}
        except FileNotFoundError as error:
            raise InputError(f"there are no predictions at {path}; evaluate or finetune writes them") from error
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path.name} does not hold predictions, or is damaged; make it again") from error
        shapes = {name: found[name].ndim for name in ("kind", "names", "seconds")}
        if shapes != {"kind": 0, "names": 1, "seconds": 0} or found["seconds"].dtype.kind not in "fiu":
            raise InputError(f"{path.name} does not hold predictions, or is damaged; make it again")
        found["kind"], found["seconds"] = str(found["kind"]), float(found["seconds"])
        found["names"] = tuple(str(name) for name in found["names"])
        return Predictions(**found)


def headline(predictions: Predictions) -> tuple[str, float]:
    """Return the metric that selects on validation, and its value; larger is better.

    Two classes have AUROC, which is 0.5 if the truth has only one of them. More classes have balanced accuracy over
    the classes of the truth. Regression has R2, averaged over the targets, with 0 for a target that does not vary.
    ``missing`` returns the classes or targets that the truth lacks.
    """
    if predictions.kind == "regression":
        found = regression.measure(predictions.truth, predictions.output, predictions.names)
        each = [found[f"r2 {name}"] for name in predictions.names]
        return "r2", float(np.mean([0.0 if value is None else value for value in each]))
    if len(predictions.names) == 2:
        ranked = classification.rank(predictions.truth, predictions.output)
        return "auroc", 0.5 if ranked["auroc"] is None else ranked["auroc"]
    counted = classification.count(predictions.truth, predictions.output)
    assert counted["balanced_accuracy"] is not None
    return "balanced_accuracy", counted["balanced_accuracy"]


def missing(predictions: Predictions) -> tuple[str, ...]:
    """Return the classes that the truth lacks, or the targets that do not vary in it; no score covers them."""
    if predictions.kind == "classification":
        count = np.bincount(predictions.truth, minlength=len(predictions.names))
        return tuple(name for name, n in zip(predictions.names, count, strict=True) if not n)
    still = np.ptp(predictions.truth, axis=0) == 0
    return tuple(name for name, constant in zip(predictions.names, still, strict=True) if constant)


def choose_threshold(predictions: Predictions) -> float:
    """Return the probability from which on a recording is called the last of two classes; chosen on validation.

    It maximises balanced accuracy over recordings, each with its mean probability. Of equally good ones it is the
    middle of the widest gap between two probabilities. If recordings hold windows of both classes, windows are used
    instead. It is 0.5 if the truth has one class only, or if no threshold is better than one answer for all.
    """
    if predictions.kind != "classification" or len(predictions.names) != 2:
        raise InputError(
            f"a threshold was asked for {predictions.kind} with {len(predictions.names)} outputs; it needs two classes"
        )
    table = _table(predictions)
    table = group(table, table.recording) or table
    return classification.threshold(table.truth, table.output[:, 1])


def threshold_level(predictions: Predictions) -> Literal["recording", "window"]:
    """Return what ``choose_threshold`` chooses over: recordings, or windows if a recording holds both classes."""
    table = _table(predictions)
    return "window" if group(table, table.recording) is None else "recording"


def score(
    predictions: Predictions,
    *,
    threshold: float | None = None,
    chosen_on: str = "unknown",
    resamples: int = 1000,
    seed: int = 0,
) -> Scores:
    """Return all scores: by window, as in the paper, by recording and by subject, with intervals over subjects.

    A recording or subject has the mean of its windows' outputs, if all its windows have one truth. The 95 % intervals
    are percentiles over ``resamples`` draws of as many subjects, with replacement. A draw without one of the classes
    does not count, and intervals need two subjects. Windows without a known subject count by recording. The order of
    the windows changes nothing. A ``threshold``, which validation chose for two classes over ``chosen_on`` (window or
    recording), adds the scores of deciding by it, as ``predict`` does.
    """
    if threshold is not None and positive_of(predictions.kind, predictions.names) is None:
        raise InputError(
            f"a threshold of {threshold:g} was given for {predictions.kind} with {len(predictions.names)} outputs; it "
            "needs two classes"
        )
    table = _table(predictions)
    units, unit = np.unique(table.subject, return_inverse=True)
    weights = draw(len(units), resamples, seed)
    notes = []
    lost = missing(predictions)
    if lost:
        what = "has no window of" if predictions.kind == "classification" else "does not vary in"
        notes.append(f"the truth {what} {', '.join(lost)}; scores that need it are n/a or leave it out")
    if (predictions.subject == "").any():
        notes.append("some subjects are not known; each of their recordings counts as a subject")
    if len(units) < 2:
        notes.append("intervals need two subjects, and there is one")
    counts = class_counts(table) if predictions.kind == "classification" else ()
    few = [f"{counted(of.subjects, 'subject')} of {of.name}" for of in counts if 0 < of.subjects < _FEW]
    if 2 <= len(units) < _FEW or (len(units) >= 2 and few):
        who = ", ".join(few) or counted(len(units), "subject")
        notes.append(
            f"intervals over so few ({who}) are too narrow: those of 5 subjects hold in 84 of 100 cases, not 95"
        )
    levels = {"window": level(table, unit, weights)}
    decided = {} if threshold is None else {"window": level_at_threshold(table, unit, weights, threshold)}
    for name, of_window in (("recording", table.recording), ("subject", table.subject)):
        grouped = group(table, of_window)
        if grouped is None:
            notes.append(f"windows of one {name} differ in their truth, so there is no score by {name}")
        else:
            unit_of = np.searchsorted(units, grouped.subject)
            levels[name] = level(grouped, unit_of, weights)
            if threshold is not None and name == "recording":
                decided[name] = level_at_threshold(grouped, unit_of, weights, threshold)
    classes = predictions.kind == "classification"
    return Scores(
        kind=predictions.kind,
        names=predictions.names,
        windows=len(table),
        recordings=len(np.unique(table.recording)),
        subjects=len(units),
        resamples=resamples,
        seed=seed,
        levels=levels,
        classes=counts,
        confusion=classification.confusion(table.truth, table.output) if classes else None,
        calibration=calibrate(table.truth, table.output) if classes else None,
        by_subject=subject_rows(table),
        notes=tuple(notes),
        at_threshold=None if threshold is None else AtThreshold(threshold, chosen_on, predictions.names[-1], decided),
    )


def _table(predictions: Predictions) -> OutputTable:
    """Return the windows sorted by recording and start; a recording without a known subject is its own subject."""
    order = np.lexsort((predictions.start, predictions.recording))
    recording, subject = predictions.recording[order], predictions.subject[order]
    known = np.where(subject == "", np.char.add("recording ", recording), subject)
    return OutputTable(
        predictions.kind, predictions.names, predictions.output[order], predictions.truth[order], recording, known
    )


def _check(given: Predictions) -> None:
    """Raise an error for predictions that cannot be scored truthfully."""
    if given.kind not in KINDS:
        raise InputError(f"kind is {given.kind!r}; expected {' or '.join(KINDS)}")
    n, k = len(given.output), len(given.names)
    classes = given.kind == "classification"
    if n == 0:
        raise InputError("there is no window to score; expected at least one")
    if k < (2 if classes else 1) or len(set(given.names)) < k:
        raise InputError(
            f"names are {list(given.names)}; expected the {'classes' if classes else 'targets'}, each once"
        )
    wanted = {"output": (n, k), "truth": (n,) if classes else (n, k)}
    wanted |= dict.fromkeys(("recording", "subject", "start"), (n,))
    kinds = {"output": "f", "truth": "iu" if classes else "f", "recording": "U", "subject": "U", "start": "f"}
    for name, shape in wanted.items():
        array = getattr(given, name)
        if array.shape != shape or array.dtype.kind not in kinds[name]:
            raise InputError(f"{name} has shape {array.shape} and type {array.dtype}; expected {shape} for {n} windows")
        array.flags.writeable = False
    if not (np.isfinite(given.seconds) and given.seconds > 0 and np.isfinite(given.start).all()):
        raise InputError("the times of windows are not numbers; expected a start and a length above 0 in seconds")
    finite = np.isfinite(given.output).all(1)
    if not finite.all():
        raise InputError(
            f"the output is not a number for {(~finite).sum():,} of {n:,} windows, the first of recording "
            f"{given.recording[~finite][0]}; the weights or the signal are broken"
        )
    if not classes:
        if not np.isfinite(given.truth).all():
            raise InputError("the truth is not a number for some windows; score labelled windows only")
        return
    if given.truth.min() < 0 or given.truth.max() >= k:
        raise InputError(f"the truth has classes {given.truth.min()} to {given.truth.max()}; expected 0 to {k - 1}")
    if given.output.min() < 0 or np.abs(given.output.sum(1, dtype=np.float64) - 1).max() > 1e-3:
        raise InputError("the output of a classification is not probabilities that sum to one; give it a softmax")
