"""Scores on draws of subjects, for tables whose differences have an interval: other scripts here import it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def subject_draws(group_B: NDArray[np.int64], draws: int, seed: int) -> Floats:
    """Return how often each window counts: once, then in draws of subjects with replacement, (draws + 1, B)."""
    _, place_B = np.unique(group_B, return_inverse=True)
    count = int(place_B.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
    weights: Floats = np.vstack([np.ones((1, count)), drawn])[:, place_B].astype(np.float64)
    return weights


def drawn_auroc(label_B: NDArray[np.int64], output_BK: NDArray[np.float32], weight_DB: Floats) -> Floats:
    """Return the mean AUROC of each class against the rest, for each row of weights; ties count half.

    A class that a draw lacks is left out of its mean; a draw with less than two classes is NaN.
    """
    from cerebro_eeg.runs.decisions import softmax

    probability_BK = softmax(output_BK)
    outputs, found = output_BK.shape[1], []
    for place in range(1 if outputs == 2 else 0, outputs):
        value_B, is_B = probability_BK[:, place], label_B == place
        order = np.argsort(value_B, kind="stable")
        rises = np.append(True, np.diff(value_B[order]) > 0)
        right_DT, wrong_DT = (
            np.add.reduceat(weight_DB[:, order] * side[order], np.flatnonzero(rises), axis=1) for side in (is_B, ~is_B)
        )
        below_DT = np.cumsum(wrong_DT, 1) - wrong_DT / 2
        pairs_D = right_DT.sum(1) * wrong_DT.sum(1)
        found.append(
            np.divide((right_DT * below_DT).sum(1), pairs_D, out=np.full(len(pairs_D), np.nan), where=pairs_D > 0)
        )
    known = np.isfinite(found)
    total, count = np.where(known, found, 0).sum(0), known.sum(0)
    mean: Floats = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return mean


def drawn_mean(gaps: Sequence[Floats], seed: int = 0) -> tuple[float, float, float, float]:
    """Return the mean of values by repetition and draw, its 95 % interval, and the share of draws above 0.

    Each of ``gaps`` belongs to one task: (repetitions, draws + 1), the first column for all subjects. Repetitions are
    drawn again as well as subjects, and tasks weigh the same.
    """
    rng, middle, drawn = np.random.default_rng(seed), [], []
    for gap in gaps:
        middle.append(np.nanmean(gap[:, 0]))
        count, draws = gap.shape[0], gap.shape[1] - 1
        again = rng.integers(count, size=(draws, count))
        chosen = gap[:, 1:].T[np.arange(draws)[:, None], again]
        known = np.isfinite(chosen)
        total = np.where(known, chosen, 0).sum(1)
        drawn.append(np.divide(total, known.sum(1), out=np.full(draws, np.nan), where=known.any(1)))
    whole = np.mean(drawn, axis=0)
    whole = whole[np.isfinite(whole)]
    low, high = np.quantile(whole, [0.025, 0.975])
    return float(np.mean(middle)), float(low), float(high), float((whole > 0).mean())
