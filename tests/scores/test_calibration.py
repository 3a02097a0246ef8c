"""Temperature scaling: known temperatures are found, and the loss is scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from cerebro_eeg.scores.calibration import LIMITS, negative_log_likelihood, temperature


def drawn(count, classes, seed=0):
    """Logits, and classes that are drawn with exactly their probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, classes))
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return logits, (share.cumsum(1) > rng.uniform(size=(count, 1))).argmax(1)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_logits_that_are_too_large_by_a_factor_get_it_as_their_temperature(classes, factor):
    logits, truth = drawn(20_000, classes)
    assert temperature(factor * logits, truth) == pytest.approx(factor, rel=0.05)


def test_the_loss_is_that_of_scikit_learn_and_the_best_temperature_has_the_least():
    logits, truth = drawn(500, 3)
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert negative_log_likelihood(logits, truth) == pytest.approx(log_loss(truth, share), rel=1e-9)
    best = temperature(5 * logits, truth)
    losses = [negative_log_likelihood(5 * logits / t, truth) for t in (0.9 * best, best, 1.1 * best)]
    assert losses[1] == min(losses)


def test_a_model_that_is_never_wrong_or_knows_nothing_has_a_finite_temperature():
    sure = np.eye(2)[[0, 1, 1, 0]] * 3.0
    assert np.exp(LIMITS[0]) <= temperature(sure, np.array([0, 1, 1, 0])) < 0.1
    assert np.isfinite(temperature(np.zeros((4, 2)), np.array([0, 1, 1, 0])))
