"""What so few subjects can show: published and hand-computed widths, and what has none."""

import numpy as np
import pytest

from cerebro_eeg.scores.expected import auroc_variance, half_width

TWO, THREE = ("no", "yes"), ("a", "b", "c")


def test_the_variance_of_hanley_and_mcneil_is_that_of_exponential_scores():
    """Their formula is exact there; an AUROC of 0.75 belongs to means of 3 and 1."""
    rng = np.random.default_rng(0)
    positive, negative = rng.exponential(3.0, (20_000, 9)), rng.exponential(1.0, (20_000, 6))
    found = (positive[:, :, None] > negative[:, None, :]).mean((1, 2))
    assert found.mean() == pytest.approx(0.75, abs=0.005)
    assert auroc_variance(0.75, 9, 6) == pytest.approx(found.var(), rel=0.03)


def test_a_trait_counts_subjects_of_each_class_however_many_windows_they_have():
    subject = np.repeat(np.arange(12), 50)
    trait = (subject % 3 == 0).astype(np.int64)
    assert half_width("classification", TWO, trait, subject) == pytest.approx(
        1.96 * auroc_variance(0.75, 4, 8) ** 0.5, 1e-4
    )
    third = subject % 3
    assert half_width("classification", THREE, third, subject) == pytest.approx(1.96 * (2 / 9 / 4 / 3) ** 0.5, 1e-4)


def test_a_state_counts_subjects_and_a_quarter_of_the_width_needs_sixteen_times_as_many():
    widths = []
    for count in (6, 96):
        subject = np.repeat(np.arange(count), 10)
        widths.append(half_width("classification", TWO, np.tile([0, 1], 5 * count), subject))
    assert widths[0] == pytest.approx(1.96 * 0.12 / 6**0.5, 1e-4)
    assert widths[0] / widths[1] == pytest.approx(4)


def test_the_width_of_r2_is_that_of_many_small_samples():
    """R2 of 25 pairs whose squared correlation is 0.5 spreads as much, by simulation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 25))
    y = x + rng.normal(size=x.shape)
    found = [np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(x, y, strict=True)]
    expected = half_width("regression", ("value",), rng.normal(size=(25, 1)), np.arange(25))
    assert expected == pytest.approx(1.96 * np.std(found), rel=0.1)


def test_nothing_is_expected_of_one_subject_or_without_a_class():
    assert half_width("classification", TWO, np.array([0, 1, 1]), np.zeros(3)) is None
    assert half_width("classification", TWO, np.zeros(4, np.int64), np.arange(4)) is None
