"""The sentence at the top of a page: known rows give known words, and few data never give a number."""

import numpy as np
import pytest

from cerebro_eeg.report.pretrain import beside_best
from cerebro_eeg.report.verdicts import (
    FillingIn,
    Found,
    Verdict,
    disagreement,
    not_tested,
    of_comparison,
    of_filling_in,
    of_scores,
    of_task,
)
from cerebro_eeg.runs.reconstruction import Errors, Reconstructed


def found(value=0.868, subjects=12, rarest=100, part="test", low=0.8, high=0.92, chance=0.5):
    return Found(part, "AUROC", value, low, high, chance, 2 * rarest, rarest, subjects)


def row(name, rival, above, low, high, ours=0.868, encoder=True):
    return {
        "name": name, "metric": "auroc", "subjects": 12, "ours": ours, "rival": rival, "difference": ours - rival,
        "low": low, "high": high, "above": above, "below": None if above is None else 1 - above, "encoder": encoder,
        "centred": False,
    }  # fmt: skip


GUESS = row("chance", 0.5, 1.0, 0.3, 0.4)


def test_a_win_says_by_how_much_and_on_how_many():
    said = of_scores(
        found(), [row("band power", 0.748, 0.97, 0.05, 0.19), row("covariance", 0.7, 1.0, 0.1, 0.2), GUESS]
    )
    assert said.state == "wins"
    assert said.sentence == (
        "This model wins against the best simple rival, band power: AUROC 0.868 against 0.748, +0.120 "
        "(95 %: +0.050 to +0.190) on 12 test subjects."
    )
    assert said.below == ("Higher is better: 1 is perfect, and a guess has 0.500.",)
    assert not said.warnings


def test_a_loss_names_the_winner():
    said = of_scores(found(0.8), [row("band power", 0.857, 0.02, -0.1, -0.01, ours=0.8), GUESS])
    assert said.state == "loses"
    assert said.sentence == (
        "A simple rival wins, band power with a linear model: this model has AUROC 0.800 against 0.857, -0.057 "
        "(95 %: -0.100 to -0.010) on 12 test subjects."
    )
    assert "Prefer the simple rival" in said.below[0]


def test_a_tie_has_no_winner():
    said = of_scores(found(), [row("band power", 0.86, 0.6, -0.05, 0.06), GUESS])
    assert said.state == "tied"
    assert said.sentence.startswith("No winner between this model and the best simple rival, band power: AUROC 0.868")
    assert said.below[0].startswith("12 test subjects cannot tell this difference from chance.")
    same = of_scores(found(), [{**row("band power", 0.868, 0.0, 0.0, 0.0), "below": 0.0}, GUESS])
    assert "Both score the same." in same.below[0]


@pytest.mark.parametrize("change", [{"subjects": 5}, {"rarest": 9}, {"value": None}])
def test_few_data_have_no_number_in_the_sentence(change):
    said = of_scores(found(**change), [row("band power", 0.748, 0.97, 0.05, 0.19), GUESS])
    assert said.state == "few"
    assert not said.carries
    assert said.sentence.startswith("Too few test data to say how good this model is: ")
    assert "0." not in said.sentence
    assert "Luck decides" in said.below[0] or "one class only" in said.below[0]


def test_the_newcomer_is_warned():
    """The numbers of the README's example: validation 0.458, test 0.900, 11 windows of one subject."""
    test, validation = found(0.9, 1, 5, low=None, high=None), found(0.458, 1, 5, "validation", None, None)
    assert of_scores(test, None).state == "few"
    assert disagreement(validation, test) == (
        "Validation and test disagree: AUROC 0.458 on 1 validation subject and 0.900 on 1 test subject. "
        "With so few subjects both are luck."
    )
    over = disagreement(found(0.95, part="validation"), found(0.7))
    assert over is not None
    assert "did not carry over" in over
    assert disagreement(found(0.9, part="validation"), found(0.8)) is None
    assert disagreement(None, found()) is None


def test_a_model_like_a_guess_or_like_random_weights_is_warned_of():
    near = row("chance", 0.5, 0.7, -0.02, 0.06, ours=0.52)
    control = row("random weights", 0.51, 0.6, -0.02, 0.06, ours=0.52)
    said = of_scores(found(0.52), [row("band power", 0.45, 0.95, 0.01, 0.1, ours=0.52), near, control])
    assert said.state == "wins"
    assert [words.split(":")[0] for words in said.warnings] == [
        "This model is not clearly better than a guess, which has 0.500.",
        "A head on random weights does as well",
    ]


@pytest.mark.parametrize(
    ("low", "high", "state", "words"),
    [(0.6, 0.9, "wins", "Better than a guess"), (0.4, 0.7, "tied", "Not clearly better"), (0.2, 0.4, "loses", "Worse")],
)
def test_without_a_simple_rival_a_guess_is_the_measure(low, high, state, words):
    said = of_scores(found(low=low, high=high), [GUESS])
    assert (said.state, said.sentence[: len(words)]) == (state, words)
    assert "could be scored" in said.below[0]
    assert "was scored" in of_scores(found(low=low, high=high), None).below[0]


def test_folds_have_no_interval_and_no_winner():
    said = of_scores(found(), [row("band power", 0.9, None, None, None), GUESS])
    assert said.state == "tied"
    assert "behind the best simple rival, band power: AUROC 0.868 against 0.900, -0.032" in said.sentence


def test_a_head_without_the_encoder_is_told():
    said = of_scores(found(), [row("band power", 0.748, 0.97, 0.05, 0.19, encoder=False), GUESS])
    assert "reads simple features alone" in said.below[0]


def test_a_run_that_was_not_tested_says_so_first():
    rows = [row("band power", 0.748, 0.97, 0.05, 0.19), GUESS]
    said = not_tested(found(part="validation"), rows, True)
    assert said.state == "open"
    assert said.sentence.startswith("Not tested yet. Validation: this model wins against the best simple rival")
    assert "Weights were chosen on these subjects, which flatters them." in said.below
    assert not_tested(found(part="validation", subjects=1), None, False).state == "few"
    assert not_tested(None, None, False).sentence == "Not tested yet, and nothing was validated."


# Pre-training


def filling(model=0.3, rival=0.36, low=-0.08, high=-0.04, better=1.0, subjects=8, held_out=True):
    return FillingIn(model, rival, "ridge from other channels", subjects, model - rival, low, high, better, held_out)


def test_lower_errors_win():
    said = of_filling_in(filling())
    assert said.state == "wins"
    assert said.sentence == (
        "The model fills hidden patches in better than the best baseline, ridge from other channels: error 0.300 "
        "against 0.360, -0.060 (95 %: -0.080 to -0.040) on windows of 8 held-out subjects."
    )
    assert any("Lower is better" in line for line in said.below)
    lost = of_filling_in(filling(0.63, 0.43, 0.1, 0.3, 0.0))
    assert (lost.state, "worse than the best baseline" in lost.sentence) == ("loses", True)
    assert of_filling_in(filling(better=0.7)).state == "tied"
    assert of_filling_in(filling(held_out=False)).state == "tied"  # on windows that it learned from
    assert of_filling_in(filling(subjects=2, low=None, high=None, better=None)).state == "few"


def test_the_interval_of_errors_is_over_subjects():
    """Every subject has the same difference but one: the mean weighs by patches, and the limits hold it."""
    subjects = tuple(Errors(4, 10 * (k + 1), 0.3 + 0.01 * k, 1.0, 0.8, 0.36) for k in range(8))
    patches = np.array([one.patches for one in subjects])
    model = float(np.average([one.model for one in subjects], weights=patches))
    total = Errors(32, int(patches.sum()), model, 1.0, 0.8, 0.36)
    said = beside_best(Reconstructed(32, total, (), (), (), subjects), True)
    assert said.name == "ridge from other channels"
    assert said.difference == pytest.approx(model - 0.36)
    assert said.low < said.difference < said.high
    assert said.low >= 0.3 - 0.36
    assert said.high <= 0.37 - 0.36
    few = beside_best(Reconstructed(32, total, (), (), (), subjects[:5]), True)
    assert few.low is few.high is few.better is None


# A comparison


def task(state, difference, above, subjects=12, family="simple"):
    below = None if above is None else 1 - above
    minus = {"difference": difference, "low": -0.1, "high": 0.1, "above": above, "below": below}
    value = {"value": 0.8, "low": 0.7, "high": 0.9, "subjects": subjects}
    rival = {"rival_name": "band power", "ours": 0.8, "rival": 0.8 - difference, "state": state, "on": "test", **minus}
    rows = [
        {"name": "chance", "family": "chance", "cv": {"value": 0.5}, "test": {"value": 0.5}, "minus": {}},
        {"name": "band power", "family": family, "cv": value, "test": value, "minus": {"cv": minus, "test": minus}},
        {"name": "default", "family": "ours", "cv": value, "test": value, "minus": {"cv": None, "test": None}},
    ]
    return {"task": "eyes", "metric": "auroc", "rows": rows, "verdict": rival, "best_simple": "band power"}


@pytest.mark.parametrize(
    ("state", "difference", "above", "words"),
    [
        ("wins", 0.1, 0.95, "Our default wins against the best simple rival, band power: AUROC 0.800 against 0.700"),
        ("loses", -0.1, 0.01, "A simple rival wins, band power: our default has AUROC 0.800 against 0.900"),
        ("tied", 0.01, 0.6, "No winner between our default and the best simple rival, band power"),
        ("behind", -0.1, None, "Too few test data to say who wins: 3 test subjects."),
    ],
)
def test_a_task_of_a_comparison(state, difference, above, words):
    said = of_task(task(state, difference, above, 3 if above is None else 12), "AUROC")
    assert said.state == ("few" if above is None else state)
    assert said.sentence.startswith(words)
    assert of_comparison([("eyes", said)], {}, None) == said


def test_several_tasks_are_counted():
    wins, loses, few = (Verdict(state, state) for state in ("wins", "loses", "few"))
    means = {"default": {"test": 0.8, "cv": 0.85}, "band power": {"test": 0.78, "cv": 0.8}}
    said = of_comparison([("a", wins), ("b", wins), ("c", loses), ("d", few)], means, "band power")
    assert said.sentence == ("Our default wins on 2 of 3 tasks against the best simple rival; it loses on 1 (c).")
    assert said.state == "wins"
    assert "0.800 against 0.780 of band power" in said.below[0]
    assert "Too few test data on d." in said.below
    assert of_comparison([("a", few), ("b", few)], means, None).state == "few"


def test_a_control_that_does_as_well_is_a_warning():
    one = task("wins", 0.1, 0.95)
    minus = {"difference": 0.0, "low": -0.1, "high": 0.1, "above": 0.4, "below": 0.6}
    value = {"value": 0.8, "low": 0.7, "high": 0.9, "subjects": 12}
    control = {"name": "random", "family": "control", "cv": value, "test": value, "minus": {"cv": minus, "test": minus}}
    one["rows"].append(control)
    assert of_task(one, "AUROC").warnings == (
        "The control without pre-training, random, does as well: pre-training does not show here.",
    )
