"""Scores of classes: by probability, by the most probable class, at a threshold, and calibration.

``measure`` functions call scikit-learn. ``resample`` functions compute the same numbers in whole arrays for many draws
of the subjects, because a thousand calls of scikit-learn would take minutes. ``predictions.estimates`` checks at every
use that both agree.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAMES = ("balanced_accuracy", "accuracy", "auroc", "aupr_macro", "aupr_positive", "f1_weighted", "kappa")
"""Two classes have all of them; more have no positive class and no ``aupr_positive``."""
_CELLS = 1 << 17  # windows times draws at a time: they stay in a processor's cache


def measure(truth: NDArray[np.int64], output: NDArray[np.float32]) -> dict[str, float | None]:
    """Return every number of ``NAMES`` that so many classes have; None for one that the truth leaves undefined."""
    found = {**count(truth, output), **rank(truth, output)}
    return {name: found[name] for name in NAMES if name in found}


def count(truth: NDArray[np.int64], output: NDArray[np.float32]) -> dict[str, float | None]:
    """Return the numbers that depend on the most probable class only; of equal ones the first is taken."""
    from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, recall_score

    predicted, classes = output.argmax(1), np.arange(output.shape[1])
    present = np.unique(truth)
    decided = len(present) > 1 or bool((predicted != present[0]).any())
    return {
        # Balanced accuracy is the mean recall of the classes that occur. Naming them avoids a warning for missing ones.
        "balanced_accuracy": float(recall_score(truth, predicted, labels=present, average="macro", zero_division=0.0)),
        "accuracy": float(accuracy_score(truth, predicted)),
        "f1_weighted": float(f1_score(truth, predicted, labels=classes, average="weighted", zero_division=0.0)),
        "kappa": float(cohen_kappa_score(truth, predicted, labels=classes)) if decided else None,
    }


def rank(truth: NDArray[np.int64], output: NDArray[np.float32]) -> dict[str, float | None]:
    """Return AUROC and AUPR: the mean of each class that occurs against the rest (macro).

    The AUROC of two classes is that of the last, which is the same for either. Their AUPR is not: it depends on which
    class is looked for and how rare it is. So two classes have both, the mean and that of the last, positive class.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    two, present = output.shape[1] == 2, np.unique(truth).tolist()
    if len(present) < 2:
        return dict.fromkeys(_rank_names(two))
    areas = {k: float(roc_auc_score(truth == k, output[:, k])) for k in ([1] if two else present)}
    precisions = {k: float(average_precision_score(truth == k, output[:, k])) for k in present}
    found: dict[str, float | None] = {
        "auroc": float(np.mean(list(areas.values()))),
        "aupr_macro": float(np.mean(list(precisions.values()))),
    }
    return {**found, "aupr_positive": precisions[1]} if two else found


def _rank_names(two: bool) -> tuple[str, ...]:
    return ("auroc", "aupr_macro", "aupr_positive") if two else ("auroc", "aupr_macro")


def resample(
    truth: NDArray[np.int64], output: NDArray[np.float32], unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Return the numbers of ``measure`` for each row of ``weights`` (draws, units); NaN if one is undefined.

    Return also whether a draw has every class that the truth has.
    """
    drawn = draw_confusions(truth, output.argmax(1), unit, weights, output.shape[1])
    right, occurs, predicted = drawn.diagonal(axis1=1, axis2=2), drawn.sum(2), drawn.sum(1)
    total = occurs.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = right.sum(1) / total
        recall = np.where(occurs > 0, right / occurs, 0.0)
        f1 = np.where(occurs + predicted > 0, 2 * right / (occurs + predicted), 0.0)
        by_chance = (occurs * predicted).sum(1) / total**2
        found = {
            "balanced_accuracy": recall.sum(1) / (occurs > 0).sum(1),
            "accuracy": accuracy,
            "f1_weighted": (f1 * occurs).sum(1) / total,
            "kappa": np.where(by_chance < 1, (accuracy - by_chance) / (1 - by_chance), np.nan),
        }
    found |= _resample_ranks(truth, output, unit, weights)
    whole = (occurs[:, np.unique(truth)] > 0).all(1)
    return {name: found[name] for name in NAMES if name in found}, whole


def draw_confusions(
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
    unit: NDArray[np.intp],
    weights: NDArray[np.float64],
    classes: int,
) -> NDArray[np.float64]:
    """Return the confusion of every draw (draws, true classes, predicted classes)."""
    units = weights.shape[1]
    confusions = np.zeros((units, classes, classes))
    np.add.at(confusions, (unit, truth, predicted), 1.0)
    drawn: NDArray[np.float64] = (weights @ confusions.reshape(units, -1)).reshape(-1, classes, classes)
    return drawn


def threshold(truth: NDArray[np.int64], probability: NDArray[np.float32]) -> float:
    """Return the threshold with the best balanced accuracy, or 0.5 if the truth has one class only.

    Of equally good ones it is the middle of the widest gap between two probabilities.
    """
    if len(np.unique(truth)) < 2:
        return 0.5
    values, place = np.unique(probability.astype(np.float64), return_inverse=True)
    if len(values) < 2:
        return 0.5
    positive = np.bincount(place, truth == 1, len(values))
    negative = np.bincount(place, truth == 0, len(values))
    # Threshold i lies between values i and i + 1; windows above it are called positive.
    sensitivity = 1 - np.cumsum(positive)[:-1] / positive.sum()
    specificity = np.cumsum(negative)[:-1] / negative.sum()
    balanced = (sensitivity + specificity) / 2
    gap = np.where(balanced >= balanced.max() - 1e-12, np.diff(values), -1.0)
    best = int(gap.argmax())
    if balanced[best] <= 0.5:  # no better than one answer for all
        return 0.5
    return float((values[best] + values[best + 1]) / 2)


def confusion(truth: NDArray[np.int64], output: NDArray[np.float32]) -> tuple[tuple[int, ...], ...]:
    """Return the number of windows by true class (rows) and most probable class (columns)."""
    from sklearn.metrics import confusion_matrix

    found = confusion_matrix(truth, output.argmax(1), labels=np.arange(output.shape[1]))
    return tuple(tuple(row) for row in found.tolist())


def _resample_ranks(
    truth: NDArray[np.int64], output: NDArray[np.float32], unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Return the numbers of ``rank`` for every draw, averaged over the classes that the draw has."""
    areas: list[NDArray[np.float64]] = []
    precisions: list[NDArray[np.float64]] = []
    two, present = output.shape[1] == 2, np.unique(truth).tolist()
    if len(present) < 2:
        return dict.fromkeys(_rank_names(two), np.full(len(weights), np.nan))
    for k in present:
        order = np.argsort(-output[:, k], kind="stable")
        values, true = output[order, k], truth[order] == k
        last = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)  # the end of each run of equal values
        rows = max(1, _CELLS // len(values))
        parts = [_areas(weights[at : at + rows, unit[order]], true, last) for at in range(0, len(weights), rows)]
        areas.append(np.concatenate([area for area, _ in parts]))
        precisions.append(np.concatenate([precision for _, precision in parts]))
    found = {"auroc": areas[1] if two else _mean(areas), "aupr_macro": _mean(precisions)}
    return {**found, "aupr_positive": precisions[1]} if two else found


def _areas(
    weight: NDArray[np.float64], true: NDArray[np.bool_], last: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the areas under both curves for rows of weights; the windows are sorted by falling probability."""
    hits = np.cumsum(weight * true, axis=1)[:, last]
    alarms = np.cumsum(weight * ~true, axis=1)[:, last]
    before_hits, new_alarms = np.pad(hits, ((0, 0), (1, 0)))[:, :-1], np.diff(alarms, axis=1, prepend=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (new_alarms * (hits + before_hits) / 2).sum(1) / (hits[:, -1] * alarms[:, -1])
        precision = np.where(hits > 0, hits / (hits + alarms), 0.0)
        average = ((hits - before_hits) * precision).sum(1) / hits[:, -1]
    return area, np.where(np.isnan(area), np.nan, average)


def _mean(columns: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean without NaN, or NaN if there is no other value."""
    stacked = np.stack(columns)
    counted = np.isfinite(stacked)
    total = np.where(counted, stacked, 0.0).sum(0)
    return np.where(counted.any(0), total / np.maximum(counted.sum(0), 1), np.nan)


# Two classes decided by a threshold, as ``predict`` decides. The positive class is the last one.

THRESHOLD_NAMES = ("balanced_accuracy", "sensitivity", "specificity", "precision", "f1")
_ONE_HOT = np.eye(2, dtype=np.float32)


def decide(output: NDArray[np.floating], threshold: float) -> NDArray[np.int64]:
    """Return the class of each row of two probabilities: the last one from ``threshold`` on.

    This is the one rule, which ``predict`` uses as well.
    """
    return (output[:, 1].astype(np.float64) >= threshold).astype(np.int64)  # in float32 the threshold would be rounded


def measure_decided(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> dict[str, float | None]:
    """Return every number of ``THRESHOLD_NAMES``; None if its denominator is zero."""
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, _ = precision_recall_fscore_support(truth, predicted, labels=[0, 1], zero_division=np.nan)
    found = (recall[1], recall[0], precision[1], f1[1])
    balanced = count(truth, _ONE_HOT[predicted])["balanced_accuracy"]
    values = [balanced, *(float(value) if np.isfinite(value) else None for value in found)]
    return dict(zip(THRESHOLD_NAMES, values, strict=True))


def resample_decided(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Return every number of ``THRESHOLD_NAMES`` for each row of ``weights`` (draws, units); NaN if it is undefined.

    Return also whether a draw has every class that the truth has.
    """
    drawn = draw_confusions(truth, predicted, unit, weights, 2)
    right, occurs, called = drawn.diagonal(axis1=1, axis2=2), drawn.sum(2), drawn.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = right / occurs
        precision = right[:, 1] / called[:, 1]
        f1 = 2 * right[:, 1] / (occurs[:, 1] + called[:, 1])
    balanced = np.where(occurs > 0, recall, 0.0).sum(1) / (occurs > 0).sum(1)
    values = (balanced, recall[:, 1], recall[:, 0], precision, f1)
    return dict(zip(THRESHOLD_NAMES, values, strict=True)), (occurs[:, np.unique(truth)] > 0).all(1)


# Calibration: whether events of probability 80 % happen in 80 % of the windows.

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Windows whose probability lies between ``low`` and ``high``."""

    low: float
    high: float
    windows: int
    said: float
    """Mean probability."""
    true: float
    """Share of windows in which it happened."""


@dataclass(frozen=True)
class CalibrationCurve:
    """Bins that have windows, and the expected calibration error."""

    bins: tuple[Bin, ...]
    error: float


def calibrate(truth: NDArray[np.int64], output: NDArray[np.float32]) -> CalibrationCurve:
    """Return the calibration of windows in ten bins of equal width.

    For two classes, the probability of the last one is compared with its share. For more, the probability of the most
    probable class is compared with the share of right answers. The error is the mean distance, weighted by windows:
    the expected calibration error of Guo et al., "On Calibration of Modern Neural Networks" (2017),
    https://arxiv.org/abs/1706.04599.
    """
    from sklearn.calibration import calibration_curve

    two = output.shape[1] == 2
    probability = np.clip(output[:, 1] if two else output.max(1), 0.0, 1.0).astype(np.float64)
    happened = (truth == (1 if two else output.argmax(1))).astype(np.int64)
    true, predicted = calibration_curve(happened, probability, n_bins=BINS, strategy="uniform", pos_label=1)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    place = np.searchsorted(edges[1:-1], probability)  # as scikit-learn does
    used, windows = np.unique(place, return_counts=True)
    rows = zip(used.tolist(), windows.tolist(), predicted.tolist(), true.tolist(), strict=True)
    bins = tuple(Bin(round(k / BINS, 6), round((k + 1) / BINS, 6), n, p, t) for k, n, p, t in rows)
    return CalibrationCurve(bins, float(np.abs(true - predicted) @ windows / len(truth)))
