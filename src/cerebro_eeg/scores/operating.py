"""Operating: two classes decided by a threshold, as ``predict`` decides: what is found, missed and falsely called.

The positive class is the last one. ``measure`` calls scikit-learn, ``resample`` computes the same for many draws of the
subjects; ``levels.estimates`` holds the two equal on every use.
"""

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.scores import classification
from cerebro_eeg.scores.levels import Table, estimates
from cerebro_eeg.scores.tables import Decided

NAMES = ("balanced_accuracy", "sensitivity", "specificity", "precision", "f1")
_ONE_HOT = np.eye(2, dtype=np.float32)


def decide(output: NDArray[np.floating], threshold: float) -> NDArray[np.int64]:
    """The class of each row of two probabilities: the last one from ``threshold`` on. The one rule, also of predict."""
    return (output[:, 1].astype(np.float64) >= threshold).astype(np.int64)  # float32 would round the threshold, too


def measure(truth: NDArray[np.int64], said: NDArray[np.int64]) -> dict[str, float | None]:
    """Every number of ``NAMES``; None where nothing is true, or nothing was said, that it could be a share of."""
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, _ = precision_recall_fscore_support(truth, said, labels=[0, 1], zero_division=np.nan)
    found = (recall[1], recall[0], precision[1], f1[1])
    balanced = classification.count(truth, _ONE_HOT[said])["balanced_accuracy"]
    values = [balanced, *(float(value) if np.isfinite(value) else None for value in found)]
    return dict(zip(NAMES, values, strict=True))


def resample(
    truth: NDArray[np.int64], said: NDArray[np.int64], unit: NDArray[np.intp], weights: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Every number of ``NAMES`` for every row of ``weights`` (draws, units), NaN where it is undefined.

    Also whether a draw has every class that the truth has.
    """
    drawn = classification.draw_confusions(truth, said, unit, weights, 2)
    right, occurs, called = drawn.diagonal(axis1=1, axis2=2), drawn.sum(2), drawn.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = right / occurs
        precision = right[:, 1] / called[:, 1]
        f1 = 2 * right[:, 1] / (occurs[:, 1] + called[:, 1])
    balanced = np.where(occurs > 0, recall, 0.0).sum(1) / (occurs > 0).sum(1)
    values = (balanced, recall[:, 1], recall[:, 0], precision, f1)
    return dict(zip(NAMES, values, strict=True)), (occurs[:, np.unique(truth)] > 0).all(1)


def operate(table: Table, unit: NDArray[np.intp], weights: NDArray[np.float64], threshold: float) -> Decided:
    """Every number at the threshold with its interval over the units, and the confusion."""
    said = decide(table.output, threshold)
    drawn, usable = resample(table.truth, said, unit, np.vstack([np.ones((1, weights.shape[1])), weights]))
    values = estimates(measure(table.truth, said), drawn, usable, weights.shape[1])
    return Decided(len(table), int(usable[1:].sum()), values, classification.confusion(table.truth, _ONE_HOT[said]))
