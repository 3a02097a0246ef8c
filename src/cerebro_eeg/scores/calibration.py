"""Calibration: whether what is said with 80 % comes true in 80 % of the windows.

For two classes the probability of the last one against its share; for more, the probability of the most probable class
against the share that is right. Ten bins of equal width. The error is the mean distance of the two, weighted by the
windows of a bin: the expected calibration error of Guo et al., "On Calibration of Modern Neural Networks" (2017),
https://arxiv.org/abs/1706.04599.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Windows whose probability is from ``low`` to ``high``."""

    low: float
    high: float
    windows: int
    said: float
    """Mean probability."""
    true: float
    """Share that came true."""


@dataclass(frozen=True)
class Calibration:
    """Bins that have windows, and the expected calibration error."""

    bins: tuple[Bin, ...]
    error: float


def calibrate(truth: NDArray[np.int64], output: NDArray[np.float32]) -> Calibration:
    """Of windows."""
    from sklearn.calibration import calibration_curve

    two = output.shape[1] == 2
    probability = np.clip(output[:, 1] if two else output.max(1), 0.0, 1.0).astype(np.float64)
    happened = (truth == (1 if two else output.argmax(1))).astype(np.int64)
    true, said = calibration_curve(happened, probability, n_bins=BINS, strategy="uniform", pos_label=1)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    place = np.searchsorted(edges[1:-1], probability)  # as scikit-learn does
    used, windows = np.unique(place, return_counts=True)
    rows = zip(used.tolist(), windows.tolist(), said.tolist(), true.tolist(), strict=True)
    bins = tuple(Bin(round(k / BINS, 6), round((k + 1) / BINS, 6), n, p, t) for k, n, p, t in rows)
    return Calibration(bins, float(np.abs(true - said) @ windows / len(truth)))
