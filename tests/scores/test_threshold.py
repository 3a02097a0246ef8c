"""Scores of evaluate at the threshold follow predict's rule; they equal numbers by hand and those of scikit-learn."""

import json
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk

from cerebro_eeg.errors import InputError
from cerebro_eeg.runs.decisions import Prediction
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores import classification, tables
from cerebro_eeg.scores.classification import THRESHOLD_NAMES
from cerebro_eeg.scores.predictions import Predictions, draw, headline, score, threshold_level


def binary(probability, truth, recording=None, subject=None):
    """Predictions of open and closed eyes from the probability of closed ones."""
    p = np.asarray(probability, np.float32)
    recording = [f"r{k}" for k in range(len(p))] if recording is None else recording
    subject = recording if subject is None else subject
    return Predictions(
        "classification",
        ("open", "closed"),
        np.stack([1 - p, p], 1),
        np.asarray(truth, np.int64),
        np.array(recording),
        np.array(subject),
        np.arange(len(p), dtype=np.float64),
        5.0,
    )


def randomly(seed, n=300, subjects=7, by_recording=False):
    """All probabilities above one half, so that the most probable class says nothing and a threshold may."""
    rng = np.random.default_rng(seed)
    recording = rng.integers(0, 3 * subjects, n)
    truth = (recording % 2) if by_recording else rng.integers(0, 2, n)
    p = np.clip(rng.normal(0.6 + 0.1 * truth, 0.1), 0.51, 0.99)
    return binary(p, truth, [f"r{k}" for k in recording], [f"s{k // 3}" for k in recording])


def values(scores, level="window"):
    return {name: of.value for name, of in scores.at_threshold.levels[level].values.items()}


def by_scikit_learn(truth, said):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            sk.balanced_accuracy_score(truth, said),
            sk.recall_score(truth, said),
            sk.recall_score(truth, said, pos_label=0),
            sk.precision_score(truth, said),
            sk.f1_score(truth, said),
        )


def means(given):
    """Truth, mean probability and subject of each recording, the long way."""
    rows = {}
    for p, true, recording, subject in zip(
        given.output[:, 1].tolist(), given.truth, given.recording, given.subject, strict=True
    ):
        rows.setdefault(str(recording), ([], true, str(subject)))[0].append(p)
    return [(true, sum(ps) / len(ps), subject) for ps, true, subject in rows.values()]


def test_numbers_by_hand():
    # By the most probable class all are closed. At 0.6: found 3 of 4, one missed; of 5 open ones 2 are called closed.
    p = [0.55, 0.7, 0.8, 0.9, 0.51, 0.55, 0.59, 0.65, 0.95]
    found = score(binary(p, [1, 1, 1, 1, 0, 0, 0, 0, 0]), threshold=0.6, chosen_on="window", resamples=100)
    assert found.confusion == ((0, 5), (0, 4))
    assert found.levels["window"].values["balanced_accuracy"].value == pytest.approx(0.5)
    assert found.at_threshold.levels["window"].confusion == ((3, 2), (1, 3))
    expected = {"sensitivity": 3 / 4, "specificity": 3 / 5, "precision": 3 / 5, "f1": 2 * 3 / (4 + 5)}
    assert values(found) == pytest.approx({"balanced_accuracy": (3 / 4 + 3 / 5) / 2, **expected})
    assert (found.at_threshold.threshold, found.at_threshold.positive) == (0.6, "closed")
    text = found.text()
    assert "at the threshold chosen on validation (0.600, over windows); positive: closed" in text
    assert text.index("Cohen's kappa") < text.index("at the threshold") < text.index("sensitivity")
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("by_recording", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.65, 0.7])
def test_all_numbers_are_scikit_learns(by_recording, threshold):
    given = randomly(1, by_recording=by_recording)
    found = score(given, threshold=threshold, resamples=20)
    said = (given.output[:, 1].astype(np.float64) >= threshold).astype(int)
    assert list(values(found).values()) == pytest.approx(by_scikit_learn(given.truth, said))
    assert list(found.at_threshold.levels) == (["window", "recording"] if by_recording else ["window"])
    if by_recording:
        truth, mean = np.array([row[0] for row in means(given)]), np.array([row[1] for row in means(given)])
        assert list(values(found, "recording").values()) == pytest.approx(by_scikit_learn(truth, mean >= threshold))
        counts = found.at_threshold.levels["recording"].confusion
        assert np.array_equal(counts, sk.confusion_matrix(truth, mean >= threshold))


@pytest.mark.parametrize("level", ["window", "recording"])
def test_intervals_are_over_subjects(level):
    given = randomly(2, n=120, subjects=5, by_recording=True)
    found = score(given, threshold=0.65, resamples=60, seed=3).at_threshold.levels[level]
    rows = means(given)
    if level == "window":
        rows = list(zip(given.truth, given.output[:, 1].tolist(), given.subject.tolist(), strict=True))
    subjects = sorted(set(given.subject.tolist()))
    drawn = []
    for times in draw(len(subjects), 60, 3):  # every row of a subject as often as the subject was drawn
        of = [
            row for n, who in zip(times, subjects, strict=True) for row in rows if row[2] == who for _ in range(int(n))
        ]
        truth, said = np.array([row[0] for row in of]), np.array([row[1] >= 0.65 for row in of])
        if len(set(truth.tolist())) == 2:
            drawn.append(by_scikit_learn(truth, said))
    assert found.draws == len(drawn)
    for name, column in zip(THRESHOLD_NAMES, np.array(drawn).T, strict=True):
        estimate = found.values[name]
        assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(column, [0.025, 0.975]))), name


@pytest.mark.parametrize(
    ("truth", "threshold", "expected"),
    [
        ([0, 0, 1], 0.99, (0.5, 0.0, 1.0, None, 0.0)),  # nothing is called closed: there is no precision
        ([0, 0, 1], 0.0, (0.5, 1.0, 0.0, 1 / 3, 0.5)),
        ([0, 0, 0], 0.99, (1.0, None, 1.0, None, None)),  # nothing is closed, and nothing is said to be
        ([0, 0, 0], 0.45, (1 / 3, None, 1 / 3, 0.0, 0.0)),
        ([1, 1, 1], 0.45, (2 / 3, 2 / 3, None, 1.0, 4 / 5)),
    ],
)
def test_what_cannot_be_known_is_not_made_up(truth, threshold, expected):
    found = score(binary([0.4, 0.5, 0.6], truth), threshold=threshold, resamples=50)
    assert tuple(values(found).values()) == (pytest.approx(expected) if None not in expected else expected)
    for estimate in found.at_threshold.levels["window"].values.values():
        assert estimate.value is not None or (estimate.low, estimate.high) == (None, None)


def test_the_rule_is_that_of_predict():
    given = randomly(5, by_recording=True)
    for threshold in (0.6, 0.65, float(given.output[7, 1])):
        found = score(given, threshold=threshold, resamples=20).at_threshold
        by_window, by_recording = np.zeros((2, 2), int), np.zeros((2, 2), int)
        for recording in np.unique(given.recording):
            here = given.recording == recording
            said = Prediction(
                "classification", given.names, threshold, given.output[here], given.start[here], 5.0,
                np.zeros(here.sum(), np.int64), np.zeros(here.sum(), bool), 1e3, ("Cz",), (), "",
            )  # fmt: skip
            true = given.truth[here]
            by_recording[true[0], given.names.index(said.decision.answer)] += 1
            np.add.at(by_window, (true, said.classes), 1)
        assert np.array_equal(found.levels["window"].confusion, by_window)
        assert np.array_equal(found.levels["recording"].confusion, by_recording)


def test_a_threshold_is_not_rounded_to_the_precision_of_the_probabilities():
    below = binary([0.7, 0.7], [0, 1])  # 0.7 as float32 is 0.69999999
    assert score(below, threshold=0.7, resamples=5).at_threshold.levels["window"].confusion == ((1, 0), (1, 0))


def test_the_threshold_itself_is_positive():
    found = score(binary([0.5, 0.5, 0.4], [0, 1, 0]), threshold=0.5, resamples=5)
    assert found.at_threshold.levels["window"].confusion == ((1, 1), (0, 1))
    assert found.confusion == ((2, 0), (1, 0))  # the most probable class is the first of equals


def test_a_threshold_adds_and_changes_nothing():
    given = randomly(6, by_recording=True)
    plain, with_it = to_dict(score(given, resamples=30)), to_dict(score(given, threshold=0.65, resamples=30))
    assert plain.pop("at_threshold") is None
    assert with_it.pop("at_threshold")["chosen_on"] == "unknown"
    assert plain == with_it
    assert "at the threshold" not in score(given, resamples=5).text()


def test_more_classes_have_no_threshold():
    three = Predictions(
        "classification", ("a", "b", "c"), np.full((3, 3), 1 / 3, np.float32), np.arange(3),
        np.array(["r"] * 3), np.array(["s"] * 3), np.arange(3.0), 1.0,
    )  # fmt: skip
    with pytest.raises(InputError, match="needs two classes"):
        score(three, threshold=0.5)
    assert "positive" not in score(three, resamples=5).text()


def test_what_a_threshold_is_chosen_over():
    assert threshold_level(binary([0.1, 0.9, 0.8], [0, 1, 1], ["a", "b", "b"])) == "recording"
    assert threshold_level(binary([0.1, 0.9, 0.8], [0, 1, 0], ["a", "b", "b"])) == "window"


# By what each number was decided.

NUMBERS = classification.NAMES
RANKS = ["auroc", "aupr_macro", "aupr_positive"]


def test_every_number_has_its_rule_and_one_is_primary():
    counts = ["balanced_accuracy", "accuracy", "f1_weighted", "kappa"]
    half = "by the most probable class (a threshold of 0.5)"
    two, three = (tables.by_rule("classification", names, NUMBERS) for names in (("a", "b"), ("a", "b", "c")))
    assert list(two.items()) == [("without a threshold", RANKS), (half, counts)]
    assert list(three.items()) == [("by the most probable class", counts), ("without a threshold", RANKS)]
    assert tables.by_rule("regression", ("x",), ("r2", "rmse", "r2 x")) == {"": ["r2", "rmse", "r2 x"]}
    for kind, names, numbers in (("classification", "ab", NUMBERS), ("classification", "abc", NUMBERS)):
        first = next(iter(tables.by_rule(kind, names, numbers).values()))
        assert tables.primary(kind, names) == first[0]
    assert tables.primary("regression", ("x",)) == "r2"


def test_the_primary_number_is_what_selects():
    for given in (randomly(1), randomly(2, by_recording=True)):
        assert headline(given)[0] == tables.primary(given.kind, given.names)


def test_scores_in_words_stand_under_their_rule():
    text = score(randomly(6, by_recording=True), threshold=0.65, chosen_on="recording", resamples=5).text()
    places = [
        text.index(words)
        for words in (
            "\nwithout a threshold\n",
            "AUROC",
            "\nby the most probable class (a threshold of 0.5)\n",
            "Cohen's kappa",
            "\nat the threshold chosen on validation (0.650, over recordings)",
            "sensitivity",
        )
    ]
    assert places == sorted(places)
    assert "AUROC" not in text[places[2] :]


@pytest.mark.parametrize(
    ("limits", "decided", "words"),
    [
        ([0.2, 0.3], [0.2, 0.3], "at the same threshold (0.200 to 0.300)"),
        ([0.2], [0.4], "at a threshold of their own (0.200, chosen on validation over windows)"),
        ([0.5, 0.5], [None, None], "at a threshold of 0.500"),
    ],
)
def test_events_name_their_threshold(limits, decided, words):
    scores = [
        {
            "events": {"name": "seizure", "threshold": limit},
            "scores": {"at_threshold": at and {"threshold": at}},
        }
        for limit, at in zip(limits, decided, strict=True)
    ]
    assert tables.event_words(scores) == f"events of seizure (SzCORE), {words}"
