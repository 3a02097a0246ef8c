"""Calibration: one number that makes a model's probabilities as sure as they should be.

A model that was chosen for its ranking may be far too sure, or not sure enough. Temperature scaling divides its outputs
by one number before the softmax (Guo et al., ICML 2017, arXiv:1706.04599). The number is chosen where the model is not
asked about what it has seen: on outputs from cross-validation.
"""

import numpy as np
from numpy.typing import NDArray

LIMITS = (-5.0, 5.0)
"""Limits of the temperature's logarithm. A model that is never wrong would have none below."""


def temperature(output_BK: NDArray[np.floating], truth_B: NDArray[np.int64]) -> float:
    """Return the temperature with the least mean negative log-likelihood of the true classes."""
    from scipy.optimize import minimize_scalar

    scaled_BK = np.asarray(output_BK, np.float64)

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(scaled_BK / np.exp(log_temperature), truth_B)

    return float(np.exp(minimize_scalar(loss, bounds=LIMITS, method="bounded").x))


def negative_log_likelihood(output_BK: NDArray[np.floating], truth_B: NDArray[np.int64]) -> float:
    """Return the mean of minus the logarithm of the probability that each true class gets from a softmax."""
    shifted_BK = output_BK - output_BK.max(1, keepdims=True)
    log_sum_B = np.log(np.exp(shifted_BK).sum(1))
    return float(np.mean(log_sum_B - shifted_BK[np.arange(len(truth_B)), truth_B]))
