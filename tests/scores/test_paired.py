"""The paired difference of two models: known answers, and no interval where there are too few subjects."""

from dataclasses import replace

import numpy as np
import pytest

from cerebro_eeg.errors import InputError
from cerebro_eeg.scores import paired as module
from cerebro_eeg.scores.paired import paired, paired_with_all
from cerebro_eeg.scores.predictions import Predictions, headline


def predictions(noise: float, seed: int = 0, subjects: int = 12) -> Predictions:
    """Two classes; the less noise, the better."""
    rng = np.random.default_rng(7)
    subject = np.repeat(np.arange(subjects), 20)
    truth = rng.integers(0, 2, len(subject))
    logit = truth - 0.5 + noise * np.random.default_rng(seed).normal(size=len(truth))
    probability = (1 / (1 + np.exp(-logit))).astype(np.float32)
    names = np.array([f"s{n:02}" for n in subject])
    return Predictions(
        "classification",
        ("a", "b"),
        np.stack([1 - probability, probability], 1),
        truth,
        names,
        names,
        np.tile(np.arange(20.0), subjects),
        1.0,
    )


def test_the_better_model_is_ahead_in_all_draws() -> None:
    good, bad = predictions(0.2), predictions(5.0, 1)
    found = paired([good], bad)
    assert found.metric == "auroc"
    assert (found.ours, found.rival) == (headline(good)[1], headline(bad)[1])
    assert found.difference == pytest.approx(found.ours - found.rival)
    assert found.above == 1.0
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < found.difference < found.high
    turned = paired([bad], good)
    assert (turned.above, turned.below) == (0.0, 1.0)
    assert turned.low == pytest.approx(-found.high)


def test_a_model_against_itself_is_no_difference() -> None:
    one = predictions(1.0)
    found = paired([one], one)
    assert (found.difference, found.low, found.high, found.above, found.below) == (0.0, 0.0, 0.0, 0.0, 0.0)


def test_pairing_is_narrower_than_two_intervals() -> None:
    """Both models fail for the same subjects: the difference hardly varies, although each score does."""
    one = predictions(1.0)
    logit = np.log(one.output[:, 1] / one.output[:, 0]) + 0.05 * np.random.default_rng(3).normal(size=len(one))
    probability = (1 / (1 + np.exp(-logit))).astype(np.float32)
    close = replace(one, output=np.stack([1 - probability, probability], 1))
    alike, unlike = paired([one], close), paired([one], predictions(1.0, 5))
    assert alike.low is not None
    assert alike.high is not None
    assert unlike.low is not None
    assert unlike.high is not None
    assert alike.high - alike.low < (unlike.high - unlike.low) / 3


def test_seeds_are_averaged_and_the_order_of_windows_says_nothing() -> None:
    a, b, rival = predictions(1.0, 1), predictions(1.0, 2), predictions(2.0, 3)
    order = np.random.default_rng(0).permutation(len(a))
    fields = ("output", "truth", "recording", "subject", "start")
    mixed = replace(a, **{name: getattr(a, name)[order] for name in fields})
    found = paired([mixed, b], rival)
    assert found.ours == pytest.approx((headline(a)[1] + headline(b)[1]) / 2)
    assert found == paired([a, b], rival)


def test_five_subjects_have_no_interval() -> None:
    found = paired([predictions(0.2, subjects=5)], predictions(2.0, 1, subjects=5))
    assert (found.low, found.high, found.above, found.below) == (None, None, None, None)
    assert found.difference > 0


def test_other_windows_are_refused() -> None:
    one = predictions(1.0)
    with pytest.raises(InputError, match="different windows"):
        paired([one], replace(one, truth=1 - one.truth))


def test_several_rivals_are_each_compared_as_if_alone(monkeypatch):
    """Our own draws are made once for all of them."""
    ours = [predictions(0.4, seed) for seed in (1, 2)]
    rivals = [predictions(0.2, 3), predictions(1.0, 4), predictions(2.0, 5)]
    alone = [paired(ours, rival) for rival in rivals]
    drawn, draw_scores = [], module.draw_scores

    def noted(given, *more, **how):
        drawn.append(given)
        return draw_scores(given, *more, **how)

    monkeypatch.setattr(module, "draw_scores", noted)
    assert paired_with_all(ours, rivals) == alone
    assert drawn == [ours, [rivals[0]], [rivals[1]], [rivals[2]]]


def test_without_draws_there_is_a_difference_and_no_interval():
    ours, rival = predictions(0.4, 1), predictions(1.0, 4)
    found, whole = paired_with_all([ours], [rival], resamples=0)[0], paired([ours], rival)
    assert (found.difference, found.ours, found.rival) == (whole.difference, whole.ours, whole.rival)
    assert whole.low is not None
    assert (found.low, found.high, found.above, found.below) == (None,) * 4
