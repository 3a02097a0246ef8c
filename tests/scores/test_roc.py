"""ROC curves on a grid agree with scikit-learn's, and their band is over subjects."""

import numpy as np
import pytest

from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.scores.roc import FEWEST, GRID, curve


def made(subjects=8, windows=30, seed=0, shift=1.0, ties=False):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, subjects * windows)
    score = rng.normal(shift * truth, 1.0)
    probability = 1 / (1 + np.exp(-score))
    if ties:
        probability = probability.round(1)
    who = np.repeat(np.arange(subjects), windows)
    names = np.array([f"s{k}" for k in who])
    output = np.stack([1 - probability, probability], 1).astype(np.float32)
    start = np.tile(np.arange(windows, dtype=float), subjects)
    return Predictions("classification", ("a", "b"), output, truth, names, names, start, 1.0)


@pytest.mark.parametrize("ties", [False, True])
def test_a_curve_is_that_of_scikit_learn(ties):
    from sklearn.metrics import roc_auc_score, roc_curve

    one = made(ties=ties)
    found = curve([one], 1)
    false, true, _ = roc_curve(one.truth, one.output[:, 1], drop_intermediate=False)
    np.testing.assert_allclose(found.found, np.interp(GRID, false, true), atol=1e-12)
    area = float(np.trapezoid(found.found, GRID))
    assert area == pytest.approx(roc_auc_score(one.truth, one.output[:, 1]), abs=0.01)


def test_known_curves():
    perfect, guess = made(), made(shift=0.0)
    perfect = Predictions(**{**vars(perfect), "output": np.eye(2, dtype=np.float32)[perfect.truth]})
    np.testing.assert_array_equal(curve([perfect], 1).found, 1.0)
    same = Predictions(**{**vars(guess), "output": np.full((len(guess), 2), 0.5, np.float32)})
    np.testing.assert_allclose(curve([same], 1).found, GRID)  # ties of all windows are the diagonal
    one_class = Predictions(**{**vars(guess), "truth": np.zeros(len(guess), np.int64)})
    assert curve([one_class], 1) is None


def test_the_band_needs_subjects_and_holds_the_curve():
    found = curve([made(20)], 1)
    assert (found.low <= found.found + 1e-9).all()
    assert (found.high >= found.found - 1e-9).all()
    assert (found.high - found.low).max() > 0.05
    wider = curve([made(6)], 1)
    assert (wider.high - wider.low).mean() > (found.high - found.low).mean()
    assert curve([made(FEWEST - 1)], 1).low is None


def test_seeds_are_averaged_and_folds_have_no_band():
    one, other = made(), made()
    other = Predictions(**{**vars(other), "output": made(seed=1, shift=0).output})
    both = curve([one, other], 1)
    np.testing.assert_allclose(both.found, (curve([one], 1).found + curve([other], 1).found) / 2)
    assert both.low is not None
    assert curve([one, made(9)], 1).low is None  # other windows


def test_a_draw_counts_windows_as_often_as_it_has_their_subject():
    """The band of a model whose subjects are all alike is narrow; that of unlike subjects is not."""
    alike = made(1, 200)
    copies = [alike] * 10
    arrays = ("output", "truth", "start")
    names = np.repeat([f"s{k}" for k in range(10)], 200)
    many = {name: np.concatenate([getattr(one, name) for one in copies]) for name in arrays}
    same = Predictions(**{**vars(alike), **many, "recording": names, "subject": names})
    found = curve([same], 1)
    np.testing.assert_allclose(found.low, found.found, atol=1e-9)
    np.testing.assert_allclose(found.high, found.found, atol=1e-9)
