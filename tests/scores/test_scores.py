"""Scores have the values that one gets by hand, say what they cannot know, and do not depend on order."""

import json
import warnings

import hypothesis
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import settings
from hypothesis import strategies as st

from cerebro_eeg.errors import InputError
from cerebro_eeg.scores import classification, regression, tables
from cerebro_eeg.scores.predictions import Predictions, choose_threshold, draw, headline, missing, score
from cerebro_eeg.scores.seizures import (
    COLUMNS,
    TimeLine,
    find_events,
    lay_out,
    score_events,
    seizure_class,
    write_events,
)


def binary(probability, truth, recording=None, subject=None, names=("no", "yes")):
    """Predictions of two classes from the probability of the second."""
    p = np.asarray(probability, np.float32)
    n = len(p)
    recording = [f"r{k}" for k in range(n)] if recording is None else recording
    subject = recording if subject is None else subject
    return Predictions(
        "classification",
        names,
        np.stack([1 - p, p], 1),
        np.asarray(truth, np.int64),
        np.array(recording),
        np.array(subject),
        np.arange(n, dtype=np.float64),
        5.0,
    )


def randomly(seed=0, n=200, classes=3, subjects=8, by_subject=False):
    """Predictions that are better than chance, with ties among them."""
    rng = np.random.default_rng(seed)
    subject = rng.integers(0, subjects, n)
    truth = subject % classes if by_subject else rng.integers(0, classes, n)
    output = np.round(rng.dirichlet(np.ones(classes), n) + np.eye(classes)[truth], 1)
    return Predictions(
        "classification",
        tuple(f"class {k}" for k in range(classes)),
        (output / output.sum(1, keepdims=True)).astype(np.float32),
        truth,
        np.array([f"r{s}-{k}" for s, k in zip(subject, rng.integers(0, 2, n), strict=True)]),
        np.array([f"s{s}" for s in subject]),
        rng.permutation(n).astype(np.float64),
        5.0,
    )


def continuous(truth, output, subject=None):
    truth, output = np.atleast_2d(np.float32(truth).T).T, np.atleast_2d(np.float32(output).T).T
    n, k = truth.shape
    subject = [f"s{i}" for i in range(n)] if subject is None else subject
    names = tuple(f"t{i}" for i in range(k))
    return Predictions(
        "regression", names, output, truth, np.array(subject), np.array(subject), np.arange(n) * 1.0, 2.0
    )


def values(scores, level="window"):
    return {name: estimate.value for name, estimate in scores.levels[level].values.items()}


# Numbers by hand.


def test_binary_numbers_by_hand():
    # Said yes from 0.5 on: windows 3 (wrong), 4, 5 (right); windows 0, 1 right no, window 2 a missed yes.
    found = score(binary([0.1, 0.2, 0.3, 0.6, 0.8, 0.9], [0, 0, 1, 0, 1, 1]), resamples=100)
    got = values(found)
    assert got["accuracy"] == pytest.approx(4 / 6)
    assert got["balanced_accuracy"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert got["auroc"] == pytest.approx(8 / 9)  # of 9 pairs only (0.3 yes, 0.6 no) is the wrong way round
    assert got["aupr_positive"] == pytest.approx((1 / 1 + 2 / 2 + 3 / 4) / 3)  # precision where each yes is found
    assert got["aupr_macro"] == pytest.approx(
        (11 / 12 + (1 / 1 + 2 / 2 + 3 / 4) / 3) / 2
    )  # and each no, from the other end
    assert got["f1_weighted"] == pytest.approx(2 / 3)
    assert got["kappa"] == pytest.approx((4 / 6 - 0.5) / 0.5)
    assert found.confusion == ((2, 1), (1, 2))
    assert [(c.name, c.windows, c.recordings, c.subjects) for c in found.classes] == [("no", 3, 3, 3), ("yes", 3, 3, 3)]


def test_the_last_name_is_the_positive_class():
    p, truth = [0.1, 0.9, 0.8, 0.7], [0, 0, 1, 1]
    turned = binary(1 - np.float32(p), 1 - np.array(truth), names=("yes", "no"))
    assert values(score(binary(p, truth)))["auroc"] == pytest.approx(0.5)
    found, other = values(score(binary(p, truth))), values(score(turned))
    assert found["aupr_positive"] != pytest.approx(other["aupr_positive"])
    assert found["aupr_macro"] == pytest.approx(other["aupr_macro"])


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_all_numbers_are_scikit_learns(classes):
    given = randomly(3, classes=classes)
    truth, output, said = given.truth, given.output, given.output.argmax(1)
    got = values(score(given, resamples=20))
    assert got["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(truth, said))
    assert got["f1_weighted"] == pytest.approx(sk.f1_score(truth, said, average="weighted"))
    assert got["kappa"] == pytest.approx(sk.cohen_kappa_score(truth, said))
    if classes == 2:
        assert got["auroc"] == pytest.approx(sk.roc_auc_score(truth, output[:, 1]))
        assert got["aupr_positive"] == pytest.approx(sk.average_precision_score(truth, output[:, 1]))
        assert abs(got["aupr_positive"] - got["aupr_macro"]) > 1e-5
    else:
        assert got["auroc"] == pytest.approx(sk.roc_auc_score(truth, output, multi_class="ovr", average="macro"))
        assert "aupr_positive" not in got
    onehot = np.eye(classes)[truth]
    assert got["aupr_macro"] == pytest.approx(sk.average_precision_score(onehot, output, average="macro"))
    assert got["auroc"] == pytest.approx(sk.roc_auc_score(onehot, output, average="macro"), abs=1e-6)
    assert set(got) <= set(tables.TITLES)


def test_the_numbers_of_values_are_scikit_learns():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(50, 3)).astype(np.float32)
    output = (truth + rng.normal(size=(50, 3)) * [0.1, 1, 3]).astype(np.float32)
    got = values(score(continuous(truth, output), resamples=20))
    assert got["r2"] == pytest.approx(sk.r2_score(truth, output))
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(truth, output), abs=1e-6)


def test_a_number_whose_meaning_depends_on_the_task_has_no_bare_name():
    """The AUPR of one class and the mean over classes differ, so the text says which of them it is."""
    for classes in (2, 3):
        text = score(randomly(3, classes=classes), resamples=20).text()
        said = {line.split("  ")[1] for line in text.splitlines() if "AUPR" in line}
        assert said == {"AUPR (macro)"} | ({"AUPR (positive class)"} if classes == 2 else set())


def test_chance_knows_the_shares_and_nothing_else():
    given = binary(np.linspace(0.1, 0.9, 10), [0] * 7 + [1] * 3)
    chance = score(given, resamples=10).levels["window"].chance
    assert chance["accuracy"] == pytest.approx(0.7)
    assert chance["balanced_accuracy"] == pytest.approx(0.5)
    assert chance["auroc"] == pytest.approx(0.5)
    assert chance["aupr_positive"] == pytest.approx(0.3)
    assert chance["aupr_macro"] == pytest.approx(0.5)
    assert chance["kappa"] == pytest.approx(0.0)
    of_values = score(continuous([1.0, 2.0, 3.0], [1.0, 2.0, 2.0]), resamples=10).levels["window"].chance
    assert of_values["r2"] == pytest.approx(0.0)
    assert of_values["rmse"] == pytest.approx(np.std([1, 2, 3]))


def test_regression_by_hand():
    given = continuous([[1, 10], [2, 20], [3, 30]], [[1, 10], [2, 20], [4, 30]])
    got = values(score(given, resamples=50))
    assert got["r2 t0"] == pytest.approx(1 - 1 / 2)
    assert got["r2 t1"] == pytest.approx(1.0)
    assert got["r2"] == pytest.approx(0.75)
    assert got["rmse t0"] == pytest.approx(np.sqrt(1 / 3))
    assert got["rmse"] == pytest.approx(np.sqrt(1 / 3) / 2)
    assert headline(given) == ("r2", pytest.approx(0.75))


def test_recordings_and_subjects_are_judged_by_mean_probability():
    # r0 of s0: mean 0.6, though one of three windows says yes; r1 of s0: 0.3; r2 of s1: 0.4; s0: 0.525.
    given = binary([0.4, 0.4, 1.0, 0.3, 0.4], [1, 1, 1, 1, 0], ["r0", "r0", "r0", "r1", "r2"], ["s0"] * 4 + ["s1"])
    found = score(given, resamples=10)
    assert values(found, "recording")["accuracy"] == pytest.approx(2 / 3)
    assert values(found, "subject")["accuracy"] == pytest.approx(1.0)
    assert found.levels["recording"].count == 3


def test_a_recording_with_windows_of_both_classes_has_no_truth_of_its_own():
    found = score(binary([0.2, 0.8, 0.3], [0, 1, 0], ["a", "a", "b"]), resamples=10)
    assert set(found.levels) == {"window"}
    assert "no score by recording" in " ".join(found.notes)


def test_calibration_by_hand():
    # Bin 0.2-0.3: said 0.25, true 0.5. Bin 0.9-1.0: said 0.95, true 1.
    found = score(binary([0.25, 0.25, 0.95, 0.95], [0, 1, 1, 1]), resamples=10).calibration
    assert [(b.low, b.high, b.windows) for b in found.bins] == [(0.2, 0.3, 2), (0.9, 1.0, 2)]
    assert [b.true for b in found.bins] == [0.5, 1.0]
    assert found.error == pytest.approx((0.25 + 0.05) / 2, abs=1e-6)
    sure = score(randomly(1, classes=3), resamples=10).calibration
    assert sum(b.windows for b in sure.bins) == 200
    assert min(b.low for b in sure.bins) >= 0.3  # the most probable of three has at least a third


# What cannot be known.


def test_one_class_in_the_truth():
    given = binary([0.2, 0.4, 0.9], [1, 1, 1])
    assert missing(given) == ("no",)
    assert headline(given) == ("auroc", 0.5)
    assert choose_threshold(given) == 0.5
    found = score(given, resamples=50)
    got = values(found)
    assert (got["auroc"], got["aupr_macro"], got["aupr_positive"]) == (None, None, None)
    assert got["balanced_accuracy"] == pytest.approx(1 / 3)
    assert "has no window of no" in " ".join(found.notes)
    assert (
        json.loads(json.dumps(found.to_dict(), allow_nan=False))["levels"]["window"]["values"]["auroc"]["low"] is None
    )
    assert values(score(binary([0.9, 0.8], [1, 1]), resamples=10))["kappa"] is None
    assert "n/a" in found.text()


def test_a_class_of_three_that_is_missing_is_left_out():
    output = np.float32([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.4, 0.1]])
    ids = np.array(["a", "b", "c"])
    given = Predictions("classification", ("x", "y", "z"), output, np.array([0, 1, 1]), ids, ids, np.zeros(3), 1.0)
    assert headline(given) == ("balanced_accuracy", pytest.approx((1 + 1 / 2) / 2))
    assert values(score(given, resamples=50))["auroc"] == pytest.approx(1.0)
    assert missing(given) == ("z",)


def test_targets_that_do_not_vary():
    given = continuous([[1, 5], [2, 5]], [[1, 5], [2, 6]])
    assert headline(given) == ("r2", pytest.approx(0.5))  # 1 for the first, 0 for the one that cannot be known
    got = values(score(given, resamples=20))
    assert (got["r2"], got["r2 t1"]) == (pytest.approx(1.0), None)
    assert headline(continuous([3.0], [3.0])) == ("r2", 0.0)
    score(continuous([3.0], [3.0]), resamples=20).text()


@pytest.mark.parametrize(
    ("subjects", "said"),
    [(["s", "t", "t"], "(1 subject of no, 1 subject of yes)"), ([f"s{k}" for k in range(40)], None)],
)
def test_few_subjects_of_a_class_are_told(subjects, said):
    truth = [int(k > 0) for k in range(3)] if said else [k % 2 for k in range(40)]
    found = score(binary([0.1 + 0.4 * y for y in truth], truth, subjects, subjects), resamples=50)
    told = [note for note in found.notes if "too narrow" in note]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]


def test_one_subject_has_no_interval():
    found = score(binary([0.1, 0.9, 0.4], [0, 1, 1], ["a", "b", "c"], ["s"] * 3), resamples=100)
    assert all(e.low is None and e.high is None for e in found.levels["window"].values.values())
    assert "intervals need two subjects" in " ".join(found.notes)


def test_unknown_subjects_count_by_recording():
    given = binary([0.1, 0.9, 0.4, 0.6], [0, 1, 1, 0], ["a", "a", "b", "c"], ["", "", "", "s"])
    found = score(given, resamples=20)
    assert found.subjects == 3
    assert "not known" in " ".join(found.notes)


# Intervals.


def test_intervals_are_over_subjects_and_not_over_windows():
    """Two hundred windows of each subject, all alike: an interval over windows would be ten times narrower."""
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(20), 200)
    right = (rng.random(20) < 0.7)[subject]  # a subject is right in all its windows or in none
    truth = np.tile([0, 1], 2000)
    given = binary(np.where(right == (truth == 1), 0.9, 0.1), truth, [f"s{s}" for s in subject])
    estimate = score(given, resamples=1000).levels["window"].values["accuracy"]
    p = right.mean()
    by_theory = 2 * 1.96 * np.sqrt(p * (1 - p) / 20)
    assert estimate.high - estimate.low == pytest.approx(by_theory, rel=0.15)


def test_an_interval_equals_that_of_repeated_windows_and_scikit_learn():
    """The plain way: for each draw, put the windows of the drawn subjects together, and ask scikit-learn."""
    given = randomly(5, n=60, classes=2, subjects=6)
    subjects, unit = np.unique(given.subject, return_inverse=True)
    weights = draw(len(subjects), 30, seed=0)
    drawn, whole = classification.resample(given.truth, given.output, unit, weights)
    assert whole.all()
    for number, weight in enumerate(weights):
        rows = np.concatenate([np.tile(np.flatnonzero(unit == u), int(w)) for u, w in enumerate(weight)])
        plain = classification.measure(given.truth[rows], given.output[rows])
        assert {name: drawn[name][number] for name in plain} == pytest.approx(plain)
    estimate = score(given, resamples=30).levels["window"].values["auroc"]
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(drawn["auroc"], [0.025, 0.975])))


@settings(max_examples=40, deadline=None)
@hypothesis.given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 5))
def test_draws_of_any_kind_agree_with_scikit_learn(seed, classes, subjects):
    given = randomly(seed, n=25, classes=classes, subjects=subjects)
    names, unit = np.unique(given.subject, return_inverse=True)
    weight = np.random.default_rng(seed).integers(0, 3, (1, len(names))).astype(float)
    rows = np.repeat(np.arange(25), weight[0, unit].astype(int))
    if not len(rows) or len(np.unique(given.truth[rows])) != len(np.unique(given.truth)):
        return
    drawn, _ = classification.resample(given.truth, given.output, unit, weight)
    for name, value in classification.measure(given.truth[rows], given.output[rows]).items():
        assert drawn[name][0] == pytest.approx(np.nan if value is None else value, nan_ok=True)


@settings(max_examples=25, deadline=None)
@hypothesis.given(st.integers(0, 10_000))
def test_draws_of_values_agree_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(1000, 1, (20, 2)).astype(np.float32)
    output = (truth + rng.normal(0, 1, (20, 2))).astype(np.float32)
    unit, weight = rng.integers(0, 4, 20), rng.integers(0, 3, (1, 4)).astype(float)
    rows = np.repeat(np.arange(20), weight[0, unit].astype(int))
    if len(np.unique(rows)) < 2:
        return
    drawn, _ = regression.resample(truth, output, unit, weight, ("a", "b"))
    plain = regression.measure(truth[rows], output[rows], ("a", "b"))
    assert {name: of[0] for name, of in drawn.items()} == pytest.approx(plain, rel=1e-5)


def test_draws_without_a_class_do_not_count_and_it_is_said():
    given = binary([0.1, 0.2, 0.9], [0, 0, 1], subject=["a", "b", "c"])
    level = score(given, resamples=1000).levels["window"]
    missing_share = (2 / 3) ** 3 + (1 / 3) ** 3  # c not drawn, or only c
    assert level.draws / 1000 == pytest.approx(1 - missing_share, abs=0.05)
    assert f"{level.draws:,} of 1,000 draws" in score(given, resamples=1000).text()


# Properties.


@settings(max_examples=15, deadline=None)
@hypothesis.given(st.integers(0, 10_000), st.booleans())
def test_the_order_of_windows_changes_nothing(seed, by_subject):
    rng = np.random.default_rng(seed)
    groups = [f"s{k % 3}" for k in range(40)]
    values = continuous(rng.normal(size=(40, 2)), rng.normal(size=(40, 2)), groups)
    order = rng.permutation(40)
    for given in (randomly(seed, n=40, by_subject=by_subject), values):
        arrays = {name: getattr(given, name)[order] for name in ("output", "truth", "recording", "subject", "start")}
        turned = Predictions(given.kind, given.names, **arrays, seconds=given.seconds)
        assert score(turned, resamples=50).to_dict() == score(given, resamples=50).to_dict()


def test_by_subject_table():
    given = binary([0.2, 0.8, 0.3, 0.6], [0, 1, 1, 1], ["a", "a", "b", "c"], ["s", "s", "t", "t"])
    rows = {row.subject: row for row in score(given, resamples=10).by_subject}
    assert (rows["s"].windows, rows["s"].recordings, rows["t"].recordings) == (2, 1, 2)
    assert rows["s"].values["auroc"] == 1.0
    assert rows["t"].values["auroc"] is None
    assert rows["t"].values["accuracy"] == 0.5


# The threshold.


@pytest.mark.parametrize(
    ("probability", "truth", "expected"),
    [
        ([0.1, 0.2, 0.6, 0.9], [0, 0, 1, 1], 0.4),  # the middle of the only perfect gap
        ([0.1, 0.2, 0.3, 0.8], [0, 1, 0, 1], 0.55),  # 0.1|0.2 and 0.3|0.8 both give 0.75: the wider gap
        ([0.9, 0.8, 0.2, 0.1], [0, 0, 1, 1], 0.5),  # nothing better than calling all alike
        ([0.4, 0.4], [0, 1], 0.5),
    ],
)
def test_thresholds_by_hand(probability, truth, expected):
    assert choose_threshold(binary(probability, truth)) == pytest.approx(expected, abs=1e-6)


def test_a_threshold_is_chosen_over_recordings():
    # By window the best cut would be another: recording means are 0.3, 0.4 (no) and 0.5, 0.7 (yes).
    given = binary([0.1, 0.5, 0.4, 0.5, 0.7], [0, 0, 0, 1, 1], ["a", "a", "b", "c", "d"])
    assert choose_threshold(given) == pytest.approx(0.45, abs=1e-6)
    mixed = binary([0.1, 0.5, 0.6, 0.7], [0, 0, 1, 1], ["a", "a", "a", "b"])  # recordings have no truth: windows
    assert choose_threshold(mixed) == pytest.approx(0.55, abs=1e-6)
    with pytest.raises(InputError, match="needs two classes"):
        choose_threshold(randomly(0, classes=3))


@settings(max_examples=50, deadline=None)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=2, max_size=12))
def test_no_cut_is_better(rows):
    probability, truth = np.array([p / 20 for p, _ in rows]), np.array([int(t) for _, t in rows])
    if len(set(truth.tolist())) < 2:
        return

    def balanced(cut):
        return sk.balanced_accuracy_score(truth, (probability.astype(np.float32) >= cut).astype(int))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = max(balanced(cut) for cut in np.arange(-0.025, 1.05, 0.025))
        found = choose_threshold(binary(probability, truth))
        assert balanced(found) == pytest.approx(best) or (best == pytest.approx(0.5) and found == 0.5)


# The file.


def test_a_file_comes_back_as_it_was(tmp_path):
    for given in (randomly(1), continuous([[1, 2], [3, 5]], [[1, 2], [3, 4]])):
        given.save(tmp_path / "test.npz")
        again = Predictions.load(tmp_path / "test.npz")
        assert (again.kind, again.names, again.seconds) == (given.kind, given.names, given.seconds)
        for name in ("output", "truth", "recording", "subject", "start"):
            assert np.array_equal(getattr(again, name), getattr(given, name))
            assert getattr(again, name).dtype == getattr(given, name).dtype
    assert [p.name for p in tmp_path.iterdir()] == ["test.npz"]


def test_damaged_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "test.npz"
    with pytest.raises(InputError, match="no predictions"):
        Predictions.load(path)
    randomly(1).save(path)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match="damaged"):
            Predictions.load(path)
    fields = dict(np.load(_written(path, whole)))
    del fields["start"]
    np.savez(path, **fields)
    with pytest.raises(InputError, match="damaged"):
        Predictions.load(path)
    np.savez(path, **{**fields, "start": np.array([{}], object)})  # an object array is a pickle
    with pytest.raises(InputError, match="damaged"):
        Predictions.load(path)


def _written(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "clustering"}, "expected classification or regression"),
        ({"names": ("a", "a")}, "each once"),
        ({"output": np.float32([[0.5, 0.5]])}, "shape"),
        (
            {"output": np.float32([[0.5, np.nan], [0.5, 0.5]])},
            "not a number for 1 of 2 windows, the first of recording r0",
        ),
        ({"output": np.float32([[3.0, -1.0], [0.5, 0.5]])}, "softmax"),
        ({"truth": np.array([0, 2])}, "expected 0 to 1"),
        ({"truth": np.array([0.0, 1.0])}, "type float64"),
        ({"start": np.array([0.0, np.inf])}, "times"),
        ({"seconds": 0.0}, "above 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(change, words):
    fields = vars(binary([0.4, 0.6], [0, 1]))
    with pytest.raises(InputError, match=words) as caught:
        Predictions(**{**fields, **change})
    assert "\n" not in str(caught.value)


def test_no_window_is_refused():
    with pytest.raises(InputError, match="no window"):
        binary([], [])


# Seizures.


def test_the_class_that_is_a_seizure():
    assert seizure_class(("background", "seizure")) == 1
    assert seizure_class(("Seizure", "non-seizure")) == 0
    assert seizure_class(("seizure-free", "seiz")) == 1
    assert seizure_class(("no_epilepsy", "epilepsy")) is None
    assert seizure_class(("background", "seizure", "artifact")) is None


def test_windows_on_a_time_line():
    got = lay_out(np.array([0.0, 1.0, 2.5]), 2.0, np.array([0.0, 1.0, 0.5]), 6)
    # Second 1 has half of each of two windows; second 2 all of window 1 and half a second of window 2; 5 has none.
    assert got[:5] == pytest.approx([0, 0.5, (1 + 0.25) / 1.5, 0.5, 0.5])
    assert np.isnan(got[5])
    assert lay_out(np.array([4.0]), 5.0, np.array([1.0]), 6)[4:].tolist() == [1, 1]  # cut at the end


def line(subject, seconds, truth=(), said=()):
    """A time line with events (start, stop)."""
    values = []
    for events in (truth, said):
        mask = np.zeros(seconds)
        for start, stop in events:
            mask[start:stop] = 1
        values.append(mask)
    return TimeLine(subject, *values)


@pytest.mark.parametrize(
    ("truth", "said", "found", "alarms"),
    [
        ([(100, 160)], [(120, 130)], 1, 0),
        ([(100, 160)], [(75, 80)], 1, 0),  # within 30 s before
        ([(100, 160)], [(60, 69)], 0, 1),  # sooner than that
        ([(100, 160)], [(215, 219)], 1, 0),  # within 60 s after
        ([(100, 160)], [(221, 230)], 0, 1),  # later than that
        ([(100, 160)], [(110, 120), (190, 200)], 1, 0),  # less than 90 s apart: one detection
        ([(100, 160)], [(110, 120), (300, 310)], 1, 1),
        ([(100, 160), (200, 230)], [(205, 210)], 1, 0),  # two seizures less than 90 s apart are one
        ([(100, 800)], [(100, 110)], 1, 0),  # 700 s are three events of at most 300 s
        ([], [(10, 20), (500, 510)], 0, 2),
        ([(0, 1000)], [(0, 1000)], 4, 0),
        ([], [], 0, 0),
    ],
)
def test_events_as_szcore_counts_them(truth, said, found, alarms):
    got = score_events({"r": line("s", 1000, truth, said)}, "seizure", resamples=10)
    assert (got.found, got.false_alarms) == (found, alarms)
    assert got.pooled["false_alarms_per_day"].value == pytest.approx(alarms / (1000 / 86400))
    assert got.hours == pytest.approx(1000 / 3600)
    seizures = {0: 0, 60: 1, 90: 1, 700: 3, 1000: 4}[sum(stop - start for start, stop in truth)]
    assert got.seizures == seizures
    assert got.pooled["sensitivity"].value == (pytest.approx(found / seizures) if seizures else None)
    got.text()
    json.dumps(got.to_dict(), allow_nan=False)


def test_event_scores_over_subjects():
    lines = {
        "a": line("s", 1000, [(100, 160)], [(110, 120)]),
        "b": line("s", 1000, [(100, 160)], []),
        "c": line("t", 500, [(100, 160)], [(110, 120), (400, 410)]),
    }
    got = score_events(lines, "seizure", resamples=200)
    assert got.pooled["sensitivity"].value == pytest.approx(2 / 3)
    assert got.by_subject["sensitivity"] == pytest.approx((1 / 2 + 1) / 2)
    assert got.pooled["precision"].value == pytest.approx(2 / 3)
    assert got.by_subject["precision"] == pytest.approx((1 + 1 / 2) / 2)
    assert (got.pooled["sensitivity"].low, got.pooled["sensitivity"].high) == (0.5, 1.0)  # s twice, or t twice


def test_seconds_without_a_window_are_no_time_without_alarms():
    given = line("s", 1000, [], [(10, 20)])
    probability = given.probability.copy()
    probability[500:] = np.nan
    got = score_events({"r": TimeLine("s", given.truth, probability)}, "seizure", resamples=10)
    assert got.pooled["false_alarms_per_day"].value == pytest.approx(86400 / 500)


def test_the_tsv_has_szcores_columns_and_no_date(tmp_path):
    probability = np.array([0.1, 0.8, 0.6, np.nan, 0.2, 0.9])
    assert find_events(probability, 0.5, 5.5) == [(1.0, 2.0, pytest.approx(0.7)), (5.0, 0.5, pytest.approx(0.9))]
    write_events(tmp_path / "r_events.tsv", probability, 0.5, 5.5)
    rows = [row.split("\t") for row in (tmp_path / "r_events.tsv").read_text().splitlines()]
    assert rows[0] == "onset duration eventType confidence channels dateTime recordingDuration".split() == [*COLUMNS]
    assert rows[1] == ["1.00", "2.00", "sz", "0.70", "n/a", "2000-01-01 00:00:00", "5.50"]
    assert len(rows) == 3
    write_events(tmp_path / "r_events.tsv", probability * 0, 0.5, 5.5)
    rows = [row.split("\t") for row in (tmp_path / "r_events.tsv").read_text().splitlines()]
    assert [row[:4] for row in rows[1:]] == [["0.00", "5.50", "bckg", "n/a"]]


def test_every_kind_of_scores_can_be_read():
    for given in (randomly(0, by_subject=True), continuous([1.0, 2.0], [1.0, 3.0]), binary([0.2, 0.7], [0, 1])):
        found = score(given, resamples=20)
        assert all(name in found.text() for name in (f"{found.windows:,} windows", "95 %", "chance"))
