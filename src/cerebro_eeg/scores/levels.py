"""Levels: the same windows judged one by one, by recording and by subject, each number with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.scores import classification, regression
from cerebro_eeg.scores.bootstrap import interval
from cerebro_eeg.scores.tables import ClassCount, Estimate, Level, SubjectRow


@dataclass(frozen=True, eq=False)
class Table:
    """Outputs beside the truth, one row a window, recording or subject."""

    kind: str
    names: tuple[str, ...]
    output: NDArray[np.float32]
    truth: NDArray[Any]
    recording: NDArray[np.str_]
    subject: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.output)


def group(table: Table, by: NDArray[np.str_]) -> Table | None:
    """One row for each of ``by`` with the mean output; None where rows of one differ in their truth."""
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


def level(table: Table, unit: NDArray[np.intp], weights: NDArray[np.float64]) -> Level:
    """Every number with its interval over the units, and what one would get who knows only how often each class is."""
    values = _measure(table)
    drawn, usable = _resample(table, unit, np.vstack([np.ones((1, weights.shape[1])), weights]))
    found = estimates(values, drawn, usable, weights.shape[1])
    return Level(len(table), int(usable[1:].sum()), found, _measure(_guess(table)))


def estimates(
    values: Mapping[str, float | None], drawn: Mapping[str, NDArray[np.float64]], usable: NDArray[np.bool_], units: int
) -> dict[str, Estimate]:
    """Each number with its interval over the draws that are usable; the first draw must have every unit once."""
    found = {}
    for name, value in values.items():
        again = drawn[name][0]  # scikit-learn's own number
        assert np.isnan(again) if value is None else abs(again - value) < 1e-6 * max(1.0, abs(value)), name
        within = np.where(usable[1:], drawn[name][1:], np.nan)
        low, high = (None, None) if value is None else interval(within, units)
        found[name] = Estimate(value, low, high)
    return found


def subject_rows(table: Table) -> tuple[SubjectRow, ...]:
    """Every number for each subject alone, by window; None where its windows do not suffice."""
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


def class_counts(table: Table) -> tuple[ClassCount, ...]:
    """Windows, recordings and subjects that have each class."""
    found = []
    for k, name in enumerate(table.names):
        has = table.truth == k
        recordings, subjects = np.unique(table.recording[has]), np.unique(table.subject[has])
        found.append(ClassCount(name, int(has.sum()), len(recordings), len(subjects)))
    return tuple(found)


def _guess(table: Table) -> Table:
    """Always the shares of the classes, or the means of the targets: it knows the test set but not the windows."""
    if table.kind == "regression":
        constant = table.truth.astype(np.float64).mean(0)
    else:
        constant = np.bincount(table.truth, minlength=len(table.names)) / len(table)
    return replace(table, output=np.tile(constant, (len(table), 1)))


def _measure(table: Table) -> dict[str, float | None]:
    if table.kind == "regression":
        return regression.measure(table.truth, table.output, table.names)
    return classification.measure(table.truth, table.output)


def _resample(
    table: Table, unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    if table.kind == "regression":
        return regression.resample(table.truth, table.output, unit, weights, table.names)
    return classification.resample(table.truth, table.output, unit, weights)
