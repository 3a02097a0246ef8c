"""ROC curves on one grid: how many windows of a class are found, at each share of false alarms.

All curves have the same grid of false alarms, so those of seeds and folds can be averaged (vertical averaging: Fawcett,
"An introduction to ROC analysis", Pattern Recognition Letters 27, 2006). The band holds 95 % of the draws of subjects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.scores.predictions import CONFIDENCE, Predictions, _table, draw

GRID = np.linspace(0.0, 1.0, 201)
"""Shares of false alarms at which every curve is known."""
FEWEST = 6
"""Below so many subjects there is no band."""
_CELLS = 1 << 17  # windows times draws at a time: they stay in a processor's cache


@dataclass(frozen=True, eq=False)
class Curve:
    """The curve of one class against all others: the share that is found, at each share of false alarms of ``GRID``."""

    found: NDArray[np.float64]
    low: NDArray[np.float64] | None
    """Lower limit over subjects; None below six of them."""
    high: NDArray[np.float64] | None


def curve(predictions: Sequence[Predictions], place: int, *, resamples: int = 200, seed: int = 0) -> Curve | None:
    """Return the mean curve of one class over trainings; None if a truth has only this class or lacks it.

    The band is drawn over subjects, the same for all trainings on the same windows. Trainings on other windows, as
    folds have, give a mean curve without a band.
    """
    tables = [_table(one) for one in predictions]
    if any((one.truth == place).all() or not (one.truth == place).any() for one in tables):
        return None
    rates = [_rates(one.truth == place, one.output[:, place], np.ones((1, len(one)))) for one in tables]
    mean = np.mean([one[0] for one in rates], axis=0)
    same = all(np.array_equal(one.recording, tables[0].recording) for one in tables)
    subjects, unit = np.unique(tables[0].subject, return_inverse=True)
    if not same or len(subjects) < FEWEST:
        return Curve(mean, None, None)
    weights_DW = draw(len(subjects), resamples, seed)[:, unit]
    drawn = np.mean([_rates(one.truth == place, one.output[:, place], weights_DW) for one in tables], axis=0)
    known = drawn[np.isfinite(drawn).all(1)]
    if 2 * len(known) < resamples:
        return Curve(mean, None, None)
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Curve(mean, low, high)


def _rates(
    positive_W: NDArray[np.bool_], score_W: NDArray[np.floating], weights_DW: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the curves (draws, grid) of weighted windows; NaN where a draw lacks one of the two kinds.

    Windows of one score are passed together, so a tie is a straight line, as for scikit-learn.
    """
    order = np.argsort(-score_W, kind="stable")
    positive, score = positive_W[order], score_W[order]
    last = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)  # the last window of each score
    found = np.full((len(weights_DW), len(GRID)), np.nan)
    step = max(1, _CELLS // max(1, len(score)))
    for first in range(0, len(weights_DW), step):
        weights = weights_DW[first : first + step, order]
        true = np.cumsum(weights * positive, axis=1)[:, last]
        false = np.cumsum(weights * ~positive, axis=1)[:, last]
        for row in range(len(weights)):
            if true[row, -1] > 0 and false[row, -1] > 0:
                x, y = np.append(0.0, false[row] / false[row, -1]), np.append(0.0, true[row] / true[row, -1])
                found[first + row] = np.interp(GRID, x, y)
    return found
