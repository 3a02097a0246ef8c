"""The estimators of scikit-learn keep their contract on windows, and answer as the command line does.

``check_estimator`` of scikit-learn has no check for input of three axes, so the contract is written out here.
"""

import copy
import dataclasses
import io
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import joblib
import mne
import numpy as np
import pytest
import sklearn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import butter, sosfiltfilt
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import cerebro_eeg
from cerebro_eeg import Cerebro, CerebroClassifier, CerebroError, CerebroFeatures, CerebroRegressor, estimators
from cerebro_eeg.cli import main
from cerebro_eeg.config import PRESETS, FinetuneConfig, ModelConfig, SignalConfig, Training
from cerebro_eeg.data.batching.arrays import ArrayTask, array_windows
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ChannelError, ConfigError, InputError, StoppedError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.runs.finetune import FinetuneOptions, train_split
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import Split, find_splits, read_task
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.predictions import Predictions

NAMES = ["C3", "Cz", "C4", "O1"]
WINDOWS, SUBJECTS, RATE = 48, 6, 256
GROUPS = np.repeat([f"s{number}" for number in range(SUBJECTS)], WINDOWS // SUBJECTS)
Y = np.array(["open", "closed"])[np.arange(WINDOWS) % 2]
VALUES = 5.0 * (np.arange(WINDOWS) % 2) + 100


def made_windows(seed=0, alpha=8):
    """Windows of a second; those of "closed" have more alpha. Filtered from 2 to 40 Hz, in microvolts."""
    rng = np.random.default_rng(seed)
    sos = butter(2, [2, 40], "bandpass", fs=RATE, output="sos")
    x = 15 * sosfiltfilt(sos, rng.normal(size=(WINDOWS, len(NAMES), 3 * RATE)))[..., RATE : 2 * RATE]
    phase = rng.uniform(0, 6, (WINDOWS, 1, 1))
    wave = np.sin(2 * np.pi * 10 * np.arange(RATE) / RATE + phase)
    return x + alpha * (Y == "closed")[:, None, None] * wave


X = made_windows()


def made_model(n_outputs=None, **record):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Cerebro(n_outputs, config=ModelConfig(depth=2, width=16, heads=2, window=RATE))
    model.training_record = Training(5, 100, dict.fromkeys([*NAMES, "Fz"], 100))
    return model.eval()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return made_model().save_pretrained(tmp_path_factory.mktemp("weights") / "model")


def features(weights, **changes):
    return CerebroFeatures(weights, **{"ch_names": NAMES, **changes})


def probe(weights, **changes):
    return CerebroClassifier(weights, **{"readout": "moments", "C": 2.5, "ch_names": NAMES, **changes})


def tuned(weights, **changes):
    given = {"freeze": False, "steps": 4, "learning_rate": 1e-2, "ch_names": NAMES}
    return CerebroClassifier(weights, **{**given, **changes})


def ridge(weights, **changes):
    return CerebroRegressor(weights, **{"readout": "moments", "C": 2.5, "ch_names": NAMES, **changes})


def tuned_values(weights, **changes):
    return CerebroRegressor(weights, **{"freeze": False, "steps": 4, "ch_names": NAMES, **changes})


TRAINED = [probe, tuned, ridge, tuned_values]
ALL = [features, *TRAINED]


def truth(make):
    return VALUES if make in (ridge, tuned_values) else Y


def fitted(make, weights, x=X, **changes):
    if make is features:
        return make(weights, **changes).fit(x)
    return make(weights, **changes).fit(x, truth(make), groups=GROUPS)


def answers(estimator, x=X, **given):
    if isinstance(estimator, CerebroFeatures):
        return estimator.transform(x)
    if isinstance(estimator, CerebroRegressor):
        return estimator.predict(x, groups=GROUPS, **given)
    return estimator.predict_proba(x, groups=GROUPS, **given)


@contextmanager
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# The contract of an estimator


@pytest.mark.parametrize("make", ALL)
def test_parameters_are_kept_as_given_and_cloned(make, weights):
    estimator = make(weights, unknown="drop", random_state=7)
    shown = estimator.get_params()
    assert shown["unknown"] == "drop"
    assert shown["model"] is weights
    twin = clone(estimator)
    assert twin.get_params() == shown
    assert {name for name in vars(twin) if name.endswith("_")} == set()
    assert twin.set_params(unknown="error").unknown == "error"
    assert "small-open" in repr(make("small-open")) or make("small-open").model == "small-open"
    assert vars(type(estimator)()).keys() == shown.keys()  # nothing but parameters before fit


@pytest.mark.parametrize("make", ALL)
def test_clone_shares_a_model_and_fit_leaves_it_alone(make):
    model = made_model()
    before = copy.deepcopy(model.state_dict())
    policies, outputs = model.policies, model.n_outputs
    estimator = make(model, device="cpu")
    assert clone(estimator).model is model
    assert clone(make_pipeline(estimator)).steps[0][1].model is model
    found = fitted(make, model)
    assert clone(found).model is model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.policies, model.n_outputs, model.channels, model.training) == (policies, outputs, None, False)
    assert found.model_ is not model


@pytest.mark.parametrize("make", ALL)
def test_fitted_twice_and_pickled_it_answers_the_same(make, weights):
    estimator = fitted(make, weights)
    first = answers(estimator)
    assert np.array_equal(answers(fitted(make, weights)), first)
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    assert np.array_equal(answers(joblib.load(file)), first)
    before = estimator.get_params()
    if make is not features:
        assert np.array_equal(answers(estimator.fit(X, truth(make), groups=GROUPS)), first)
    assert estimator.get_params() == before


@pytest.mark.parametrize("make", ALL)
def test_not_fitted(make, weights):
    with pytest.raises(NotFittedError):
        answers(make(weights))
    with pytest.raises(NotFittedError):
        make(weights).get_feature_names_out() if make is features else make(weights).save("nowhere")


@pytest.mark.parametrize("make", ALL)
def test_float32_is_float64_and_each_window_stands_alone(make, weights):
    plain = X.astype(np.float32)
    estimator = fitted(make, weights, plain, **({} if make is features else {"centring": False}))
    first = answers(estimator, plain)
    again = fitted(make, weights, plain.astype(np.float64), **({} if make is features else {"centring": False}))
    assert np.array_equal(answers(again, plain.astype(np.float64)), first)
    turned = plain[::-1].copy()
    found = answers(estimator, turned) if make is features else _ask(estimator, turned, GROUPS[::-1])
    np.testing.assert_allclose(found[::-1], first, rtol=1e-4, atol=1e-5)


def _ask(estimator, x, groups):
    ask = estimator.predict if isinstance(estimator, CerebroRegressor) else estimator.predict_proba
    return ask(x, groups=groups)


@pytest.mark.parametrize("make", [probe, ridge])
def test_the_order_of_samples_does_not_matter_to_an_exact_head(make, weights):
    order = np.random.default_rng(1).permutation(WINDOWS)
    first = fitted(make, weights, readout="simple")
    found = make(weights, readout="simple").fit(X[order], truth(make)[order], groups=GROUPS[order])
    np.testing.assert_allclose(answers(found), answers(first), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", ALL)
def test_wrong_windows_are_refused_in_one_line(make, weights):
    estimator = fitted(make, weights)
    broken = X.copy()
    broken[3, 1, 7] = np.nan
    wrong = {
        "5 channels, but 4 are named": np.concatenate([X, X[:, :1]], 1),
        "holds NaN or infinity, first in window 3, channel 'Cz', sample 7": broken,
        r"X has the shape \(48, 1024\)": X.reshape(WINDOWS, -1),
        r"the array is empty": X[:0],
    }
    for words, x in wrong.items():
        with pytest.raises(InputError, match=words) as caught:
            answers(estimator, x)
        assert "\n" not in str(caught.value)
        if make is not features or "channels" in words:
            with pytest.raises(InputError, match=words):
                fitted(make, weights, x)
    with pytest.raises(InputError, match="the channels are not named"):
        fitted(make, weights, ch_names=None)
    with pytest.raises(ChannelError, match="Quatsch"):
        fitted(make, weights, ch_names=["C3", "Cz", "C4", "Quatsch"])
    with pytest.raises(ChannelError, match="P3"):  # no window has trained it
        answers(fitted(make, weights, ch_names=["C3", "Cz", "C4", "P3"], **({} if make is features else _FROZEN)))


_FROZEN = {"freeze": True, "readout": "moments"}


@pytest.mark.parametrize("make", TRAINED)
def test_wrong_answers_groups_and_lengths_are_refused(make, weights):
    estimator, y = make(weights), truth(make)
    with pytest.raises(InputError, match="48 windows and 47 values of y"):
        estimator.fit(X, y[:-1], groups=GROUPS)
    with pytest.raises(InputError, match="groups has the shape"):
        estimator.fit(X, y, groups=GROUPS[:-1])
    with pytest.raises(InputError, match="groups holds missing"):
        estimator.fit(X, y, groups=[None, *GROUPS[1:]])
    estimator.fit(X, y, groups=GROUPS)
    with pytest.raises(InputError, match="192 samples, and those of fit had 256"):
        estimator.predict(X[..., :192], groups=GROUPS)
    with pytest.raises(ConfigError, match="unit is 'nV'"):
        estimator.predict(X, groups=GROUPS, unit="nV")


def test_wrong_classes_and_values_are_refused(weights):
    with pytest.raises(InputError, match="y has 1 class; expected two or more"):
        probe(weights).fit(X, ["open"] * WINDOWS, groups=GROUPS)
    with pytest.raises(ValueError, match="continuous"):
        probe(weights).fit(X, np.linspace(0, 1, WINDOWS), groups=GROUPS)
    with pytest.raises(InputError, match="NaN or infinity"):
        ridge(weights).fit(X, [np.nan] * WINDOWS, groups=GROUPS)
    with pytest.raises(InputError, match="needs numbers"):
        ridge(weights).fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"readout": "momemts"}, "did you mean 'moments'"),
        ({"lora": 2}, "lora=2 trains adapters in the encoder, and freeze=True keeps it"),
        ({"few": True}, "few=True trains adapters"),
        ({"C": 0.0}, "C is 0.0"),
        ({"validation_fraction": 1.5}, "validation_fraction is 1.5"),
        ({"few": True, "freeze": False, "validation_fraction": None}, "few=True needs held-out windows"),
        ({"class_weight": {"open": 2}}, "choose None or 'balanced'"),
        ({"model": 3}, "model is a int"),
        ({"model": "tiny", "freeze": False, "lora": 2}, "tiny is a preset, which has none"),
        ({"rate": "wrong"}, "choose one of error, resample, as_is"),
    ],
)
def test_wrong_parameters_are_refused_at_fit(weights, changes, words):
    with pytest.raises(ConfigError, match=words):
        probe(weights).set_params(**changes).fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize("kind", [CerebroFeatures, CerebroClassifier, CerebroRegressor])
def test_the_checks_of_scikit_learn_that_need_no_data(kind):
    for check in (
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
    ):
        check(kind.__name__, kind())


# Classes and outputs


def test_classes_are_the_users(weights):
    estimator = fitted(probe, weights)
    assert estimator.classes_.tolist() == ["closed", "open"]
    assert estimator.n_features_in_ == len(NAMES)
    assert estimator.model_.head.names == ("closed", "open")
    probability, margin = answers(estimator), estimator.decision_function(X, groups=GROUPS)
    np.testing.assert_allclose(probability.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-margin.astype(np.float64))), rtol=1e-5)
    found = estimator.predict(X, groups=GROUPS)
    assert np.array_equal(found, estimator.classes_[(margin > 0).astype(int)])
    assert estimator.score(X, Y, groups=GROUPS) == np.mean(found == Y) > 0.9
    numbers = np.where(Y == "open", 7, -1)
    again = fitted_on(probe(weights), numbers).predict(X, groups=GROUPS)
    assert np.array_equal(again, np.where(found == "open", 7, -1))


def fitted_on(estimator, y, groups=GROUPS):
    return estimator.fit(X, y, groups=groups)


def test_three_classes_and_balanced_ones(weights):
    y = np.array(["a", "b", "c"])[np.arange(WINDOWS) % 3]
    estimator = fitted_on(probe(weights, class_weight="balanced"), y)
    assert estimator.decision_function(X, groups=GROUPS).shape == (WINDOWS, 3)
    rare = np.where((np.arange(WINDOWS) % 8 == 1), "closed", "open")
    plain, balanced = (fitted_on(probe(weights, C=0.1, class_weight=how), rare) for how in (None, "balanced"))
    assert answers(balanced)[:, 0].mean() > answers(plain)[:, 0].mean() + 0.1


def test_values_of_one_and_of_two_targets(weights):
    one = fitted(ridge, weights, readout="simple")
    assert one.predict(X, groups=GROUPS).shape == (WINDOWS,)
    assert one.score(X, VALUES, groups=GROUPS) > 0.8
    both = np.stack([VALUES, -VALUES], 1)
    two = fitted_on(ridge(weights, readout="simple"), both)
    np.testing.assert_allclose(two.predict(X, groups=GROUPS)[:, 1], -two.predict(X, groups=GROUPS)[:, 0], rtol=1e-3)


def test_auto_compares_all_read_outs(weights):
    train = GROUPS < "s3"
    estimator = CerebroClassifier(weights, ch_names=NAMES).fit(X[train], Y[train], groups=GROUPS[train])
    tried = {one["name"]: one["score"] for one in estimator.choice_["tried"]}
    assert {"mean", "simple", "hybrid", "whole"} <= set(tried)
    assert estimator.choice_["score"] == max(tried.values()) > 0.9
    assert estimator.choice_["subjects"] == 3
    assert estimator.score(X[~train], Y[~train], groups=GROUPS[~train]) > 0.8


# Groups


def test_early_stopping_never_splits_a_group(weights, monkeypatch):
    seen = []

    def spy(store, task, split, *given, **more):
        sides = [set(part.subject.tolist()) for part in (split.train, split.validation)]
        assert not sides[0] & sides[1]
        assert len(split.train) + len(split.validation) == WINDOWS
        seen.append(sides[1])
        return original(store, task, split, *given, **more)

    original = estimators.train_split
    monkeypatch.setattr(estimators, "train_split", spy)
    for seed in range(4):
        estimator = tuned(weights, steps=1, random_state=seed).fit(X, Y, groups=GROUPS)
        assert estimator.validation_score_ is not None
    assert len(set(map(frozenset, seen))) > 1  # the seed chooses

    def leaky(windows, group_B, share, seed):
        return np.arange(len(windows)) % 5 == 0

    monkeypatch.setattr(estimators, "hold_out", leaky)
    with pytest.raises(InputError, match="share 6 subjects"):
        tuned(weights, steps=1).fit(X, Y, groups=GROUPS)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=2, max_size=40),
    st.floats(0.05, 0.6),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_hold_out_takes_whole_groups_and_keeps_every_class(rows, share, seed, regression):
    label, group = np.array(rows, np.int64).T
    kind = "regression" if regression else "classification"
    target = label[:, None].astype(np.float32) if regression else None
    task = ArrayTask(kind, ("y",) if regression else ("a", "b", "c"), None if regression else label, target)
    _, windows = array_windows(np.zeros((len(rows), 1, 4)) + 1.0, ["Cz"], 256.0, SignalConfig(), task, group_B=group)
    held = estimators.hold_out(windows, group, share, seed)
    if held is None:
        assert regression <= (len(set(group)) < 2)
        return
    assert held.any()
    assert not held.all()
    assert not set(group[held]) & set(group[~held])
    if not regression:
        assert set(label[~held]) == set(label)


def test_what_groups_would_have_told_is_warned_of(weights):
    with pytest.warns(UserWarning, match="no groups were given, so the read-out and its strength are chosen"):
        probe(weights, C=None).fit(X, Y)
    with pytest.warns(UserWarning, match="no groups were given, so the end of training is chosen"):
        tuned(weights).fit(X, Y)
    with pytest.warns(UserWarning, match="groups has 2 subjects, and cross-validation needs 3"):
        probe(weights, C=None).fit(X, Y, groups=GROUPS > "s2")
    with pytest.warns(UserWarning, match="no subjects can be held out"):
        alone = tuned(weights).fit(X, Y, groups=np.zeros(WINDOWS))
    assert alone.validation_score_ is None
    probe(weights).fit(X, Y)  # nothing is chosen, so nothing is warned of
    assert tuned(weights, validation_fraction=None).fit(X, Y).best_step_ is None


def test_centring_takes_the_groups_or_all_windows_together(weights):
    """Every subject has a large offset of its own in power, which only centring removes."""
    gain = np.repeat([0.4, 2.0, 0.6, 1.6, 0.9, 1.2], WINDOWS // SUBJECTS) * np.where(Y == "open", 1.0, 1.2)
    loud = made_windows(alpha=0) * gain[:, None, None]
    scale = np.full(WINDOWS, 10.0)
    estimator = probe(weights, readout="power").fit(loud, Y, groups=GROUPS, scale=scale)
    assert estimator.choice_["centred"]
    assert estimator.score(loud, Y, groups=GROUPS, scale=scale) > 0.9
    one = slice(0, 8)
    alone = estimator.predict_proba(loud[one], scale=scale[one])
    grouped = estimator.predict_proba(loud, groups=GROUPS, scale=scale)[one]
    np.testing.assert_allclose(alone, grouped, rtol=1e-4)  # without groups, the windows are of one subject
    with pytest.warns(UserWarning, match="48 of 48 subjects have a single window"):
        estimator.predict(loud, groups=np.arange(WINDOWS), scale=scale)
    never = probe(weights, readout="power", centring=False).fit(loud, Y, groups=GROUPS, scale=scale)
    assert not never.choice_["centred"]
    np.testing.assert_allclose(
        never.predict_proba(loud[:1], scale=scale[:1]), never.predict_proba(loud, scale=scale)[:1], rtol=1e-4
    )


def test_seeds_are_reproducible_and_matter(weights):
    first, again, other = (answers(fitted(tuned, weights, random_state=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    one, two = (answers(fitted(tuned, weights, random_state=np.random.RandomState(5))) for _ in range(2))
    assert np.array_equal(one, two)


# Fine-tuning


def test_fine_tuning_learns_and_tells(weights, caplog):
    estimator = fitted(tuned, weights, steps=40, verbose=True)
    assert "batch size 32 instead of 64" in caplog.text
    assert estimator.n_iter_ <= 40
    assert estimator.score(X, Y, groups=GROUPS) > 0.75
    losses = [line["loss"] for line in estimator.history_ if "loss" in line]
    scores = [line["validation_auroc"] for line in estimator.history_ if "validation_auroc" in line]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert estimator.validation_score_ == pytest.approx(max(scores))
    caplog.clear()
    fitted(tuned, weights, steps=2)
    assert caplog.messages == []


def test_adapters_and_the_recipe_for_few_subjects(weights):
    lora = fitted(tuned, weights, lora=2)
    assert not any("lora" in name for name, _ in lora.model_.named_parameters())
    with pytest.raises(InputError, match="few=True needs subjects to hold out"):
        tuned(weights, few=True).fit(X, Y, groups=np.zeros(WINDOWS))
    assert fitted(tuned, weights, readout="hybrid", steps=2).predict(X).shape == (WINDOWS,)
    few = fitted(tuned, weights, few=True, steps=20)
    scores = [line["validation_auroc"] for line in few.history_ if "validation_auroc" in line]
    assert few.validation_score_ >= scores[0] - 1e-9  # the probe, step 0, is a candidate


def test_a_preset_has_random_weights_and_says_so(caplog):
    estimator = CerebroClassifier("tiny", readout="moments", C=1.0, ch_names=NAMES).fit(X, Y, groups=GROUPS)
    assert "tiny is a preset" in caplog.text
    assert estimator.predict(X).shape == (WINDOWS,)
    one, two, three = (CerebroFeatures("tiny", ch_names=NAMES, random_state=k).fit_transform(X) for k in (0, 0, 1))
    assert np.array_equal(one, two)
    assert not np.allclose(one, three)


# The same answers elsewhere


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The windows X as a store: a recording a subject; the last two subjects are the test."""
    folder = tmp_path_factory.mktemp("store") / "store"
    task = {"kind": "classification", "names": ["closed", "open"], "seconds": 1.0, "stride": 1.0}
    settings = {"tasks": {"eyes": task}, "split_unit": "subject", "signal": to_dict(SignalConfig()), "recipe": "made"}
    create_store(folder, "made", settings)
    with ShardWriter(folder, "w") as writer:
        for subject in dict.fromkeys(GROUPS.tolist()):
            mine = subject == GROUPS
            with writer.recording(subject, tuple(NAMES), float(RATE)) as draft:
                draft.segment(0.0)
                draft.write(X[mine].transpose(0, 2, 1).reshape(-1, len(NAMES)).astype(np.float32))
                split = "test" if subject in ("s4", "s5") else "train"
                labels = [Interval(float(k), k + 1.0, split, str(of)) for k, of in enumerate(Y[mine])]
                draft.commit(native_sfreq=float(RATE), subject=subject, labels={"eyes": labels})
    return folder


def test_a_probe_answers_as_the_command_line(store, weights, tmp_path, capsys):
    """The same windows through ``finetune --freeze`` and ``evaluate``, and through the estimator."""
    run = tmp_path / "run"
    line = ["finetune", str(store), "--task", "eyes", "--from", str(weights), "--freeze", "--readout", "hybrid"]
    assert main([*line, "--out", str(run)]) == 0, capsys.readouterr().err
    assert main(["evaluate", str(run), str(store)]) == 0, capsys.readouterr().err
    theirs = Predictions.load(run / "seed-0" / "test.npz")
    train = ~np.isin(GROUPS, ["s4", "s5"])
    estimator = probe(weights, readout="hybrid", C=None).fit(X[train], Y[train], groups=GROUPS[train])
    ours = estimator.predict_proba(X[~train], groups=GROUPS[~train])
    order = np.lexsort((theirs.start, theirs.subject))
    assert theirs.names == tuple(estimator.classes_)
    np.testing.assert_allclose(ours, theirs.output[order], atol=1e-6)
    scale = {record.subject: record.scale for record in Store(store).recordings}
    known = np.array([scale[subject] for subject in GROUPS])
    again = probe(weights, readout="hybrid", C=None).fit(X[train], Y[train], groups=GROUPS[train], scale=known[train])
    given = again.predict_proba(X[~train], groups=GROUPS[~train], scale=known[~train])
    np.testing.assert_allclose(given, ours, atol=1e-6)  # the scale of a group is that of its recording


def test_gradient_steps_on_an_array_are_those_on_a_store(store, weights, tmp_path):
    """Without augmentation, whose draws depend on the ids of recordings."""
    opened = Store(store)
    task = read_task(opened, "eyes", None, None, None)
    (split,) = find_splits(opened, task)
    kept = ~np.isin(GROUPS, ["s4", "s5"])
    label = (Y[kept] == "open").astype(np.int64)
    group = np.unique(GROUPS[kept], return_inverse=True)[1]
    asked = ArrayTask("classification", task.names, label, name="eyes")
    inside, windows = array_windows(X[kept], NAMES, 256.0, SignalConfig(), asked, group_B=group)
    table = FinetuneConfig(batch_size=32, noise_ratio=0.0, drop_path=0.0, peak_lr=1e-3)
    given = dataclasses.replace(PRESETS["tiny"], finetune=table), FinetuneOptions("eyes", steps=3), Engine("cpu")
    found = []
    for place, (source, part) in enumerate([(opened, split.train), (inside, windows)]):
        out = tmp_path / str(place)
        train_split(source, task, Split("", "subject", part, None, None), out, *given, weights)
        found.append(checkpoint.read(out / "model.safetensors")[1])
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    assert not torch.equal(found[0]["final_layer.weight"], torch.zeros_like(found[0]["final_layer.weight"]))


@pytest.mark.parametrize("make", [probe, tuned])
def test_a_saved_classifier_is_a_checkpoint(make, weights, tmp_path, capsys):
    secret = [f"secret-{subject}" for subject in GROUPS]
    estimator = make(weights, **({"centring": False} if make is probe else {})).fit(X, Y, groups=secret)
    folder = estimator.save(tmp_path / "saved")
    assert all(b"secret" not in path.read_bytes() for path in folder.iterdir())
    model = Cerebro.from_pretrained(folder, ch_names=NAMES)
    logits = model(torch.tensor(X, dtype=torch.float32)).detach()
    np.testing.assert_allclose(logits.softmax(1).numpy(), answers(estimator), atol=2e-3)  # ours are float16 first
    raw = mne.io.RawArray(
        1e-6 * X.transpose(1, 0, 2).reshape(len(NAMES), -1), mne.create_info(NAMES, RATE, "eeg"), verbose="error"
    )
    raw.save(tmp_path / "made_raw.fif", verbose="error")
    out = tmp_path / "out"
    assert main(["predict", str(folder), str(tmp_path / "made_raw.fif"), "--out", str(out)]) == 0, capsys.readouterr()
    assert "probability closed" in (out / "predictions.csv").read_text()
    assert cerebro_eeg.predict(raw, folder).output.shape == (WINDOWS, 2)


def test_features_are_those_of_embed(weights):
    model = Cerebro.from_pretrained(weights, ch_names=NAMES)
    for level in ("window", "channel", "token"):
        for layer in (None, 1):
            estimator = features(weights, level=level, layer=layer).fit(X)
            found = estimator.transform(X)
            wanted = model.embed(X, level=level, layer=layer)
            assert np.array_equal(found, wanted.reshape(WINDOWS, -1))
            names = estimator.get_feature_names_out()
            assert len(set(names)) == found.shape[1]
    assert names[0] == "C3_t0_cerebro0"
    assert names[-1] == "O1_t3_cerebro15"
    turned = features(weights).fit(X).transform(X[:, ::-1], ch_names=NAMES[::-1])
    np.testing.assert_allclose(turned, model.embed(X), rtol=1e-3, atol=1e-5)  # channels are known by name
    with pytest.raises(InputError, match=r"48 features, and those of fit had 64"):
        features(weights, level="channel").fit(X).transform(X[:, :3], ch_names=NAMES[:3])


# Epochs of MNE


def made_epochs(bads=(), extra=False):
    info = mne.create_info([*NAMES, *(["EOG1"] if extra else [])], RATE, ["eeg"] * 4 + ["eog"] * extra)
    data = 1e-6 * (np.concatenate([X, X[:, :1]], 1) if extra else X)
    events = np.stack([np.arange(WINDOWS), np.zeros(WINDOWS), np.where(Y == "open", 2, 1)], 1).astype(int)
    found = mne.EpochsArray(data, info, events, event_id={"closed": 1, "open": 2}, verbose="error")
    found.info["bads"] = list(bads)
    return found


@pytest.mark.parametrize("make", ALL)
def test_epochs_are_the_array(make, weights, caplog):
    epochs = made_epochs(extra=True)
    estimator = fitted(make, weights, epochs, ch_names=None)
    np.testing.assert_allclose(answers(estimator, epochs), answers(fitted(make, weights)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(answers(estimator, X), answers(estimator, epochs), rtol=1e-3, atol=1e-4)
    parts = [epochs[k] for k in range(WINDOWS)]  # what scikit-learn makes of Epochs
    assert np.array_equal(answers(estimator, parts), answers(estimator, epochs))
    assert caplog.messages == []
    assert estimator.n_features_in_ == 4


def test_bad_channels_are_left_out_and_said(weights, caplog):
    found = CerebroFeatures(weights).fit_transform(made_epochs(bads=["Cz"]))
    assert caplog.messages == ["1 channel is marked as bad and was left out: 'Cz'"]
    keep = [0, 2, 3]
    wanted = CerebroFeatures(weights, ch_names=[NAMES[k] for k in keep]).fit_transform(X[:, keep])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_what_epochs_know_is_not_overruled(weights):
    epochs = made_epochs()
    with pytest.raises(ConfigError, match="sfreq is 128"):
        CerebroFeatures(weights, sfreq=128).fit(epochs)
    with pytest.raises(ConfigError, match="name different channels"):
        CerebroFeatures(weights, ch_names=["C3"]).fit(epochs)
    raw = mne.io.RawArray(1e-6 * X[0], mne.create_info(NAMES, RATE, "eeg"), verbose="error")
    with pytest.raises(InputError, match="X is a RawArray; cut it into Epochs"):
        CerebroFeatures(weights).fit(raw)


def test_another_band_of_epochs_is_said(weights, caplog):
    epochs = made_epochs()
    with epochs.info._unlock():
        epochs.info["highpass"], epochs.info["lowpass"] = 8.0, 30.0
    CerebroFeatures(weights).fit_transform(epochs)
    (line,) = caplog.messages
    assert "the Epochs have a band of 8 to 30 Hz, and the weights learned from 0.1 to 75 Hz" in line


# Units and rates


@pytest.mark.parametrize("make", ALL)
def test_units_and_rates_are_those_of_the_model_or_refused(make, weights):
    estimator = fitted(make, weights)
    np.testing.assert_allclose(
        answers(fitted(make, weights, X * 1e-6, unit="V"), X * 1e-6), answers(estimator), rtol=1e-3, atol=1e-4
    )
    with pytest.warns(UserWarning, match=r"check the unit .it looks like V"):
        answers(estimator, X * 1e-6)
    with pytest.raises(InputError, match='made for 256 Hz; resample them first, or ask for rate="resample"'):
        fitted(make, weights, sfreq=128)


@pytest.mark.parametrize("make", [features, probe])
def test_another_rate_on_request(make, weights):
    for rate in ("resample", "as_is"):
        other = fitted(make, weights, X[..., ::2], sfreq=128, rate=rate)
        found = answers(other, X[..., ::2])
        assert np.isfinite(found).all()
        assert len(found) == WINDOWS
        if make is features:
            assert found.shape[1] == len(other.get_feature_names_out())


def test_other_plain_faults_of_signals_are_warned_of(weights):
    drift = X + 5000
    for make in (features, probe):
        with pytest.warns(UserWarning, match="an offset or drift below 0.1 Hz"):
            answers(fitted(make, weights, drift), drift)
    with pytest.warns(UserWarning, match="check the unit"), pytest.raises(InputError, match="values above 65,504 uV"):
        fitted(probe, weights, X * 1e5)


# Inside of scikit-learn


def test_in_cross_validation_with_routed_groups_and_names(weights):
    with routing():
        given = {"groups": GROUPS, "ch_names": NAMES}
        estimator = probe(weights, ch_names=None, readout="simple")
        scores = cross_val_score(estimator, X, Y, cv=GroupKFold(2), params=given)
        assert scores.shape == (2,)
        assert scores.mean() > 0.8
        both = cross_val_score(estimator, X, Y, cv=GroupKFold(2), params=given, n_jobs=2)
        np.testing.assert_array_equal(scores, both)
        pipe = make_pipeline(features(weights, ch_names=None), LogisticRegression())
        found = cross_validate(pipe, X, Y, cv=GroupKFold(2), params=given, error_score="raise")
        assert found["test_score"].shape == (2,)
        assert pipe.fit(X, Y, ch_names=NAMES).predict(X).shape == (WINDOWS,)
        epochs = made_epochs()
        on_epochs = cross_val_score(
            clone(estimator), epochs, Y, cv=GroupKFold(2), params={"groups": GROUPS}, error_score="raise"
        )
        np.testing.assert_allclose(on_epochs, scores, atol=0.05)


def test_in_cross_validation_without_routing(weights):
    """Groups then reach the folds alone; a head of fixed strength needs none."""
    estimator = probe(weights, C=1.0, centring=False)
    found = cross_val_predict(estimator, X, Y, groups=GROUPS, cv=GroupKFold(3), method="predict_proba")
    assert found.shape == (WINDOWS, 2)


def test_in_grid_searches(weights):
    with routing():
        grid = [{"readout": ["mean", "simple"], "C": [5.0]}, {"freeze": [False], "steps": [1]}]
        search = GridSearchCV(probe(weights), grid, cv=GroupKFold(2), error_score="raise")
        search.fit(X, Y, groups=GROUPS)
        assert len(search.cv_results_["params"]) == 3
        assert search.best_params_["readout"] == "simple"
        assert search.best_estimator_.choice_["strength"] == search.best_params_["C"]
    pipe = make_pipeline(features(made_model()), LogisticRegression())
    layers = GridSearchCV(pipe, {"cerebrofeatures__layer": [1, 2]}, cv=GroupKFold(2), error_score="raise")
    assert layers.fit(X, Y, groups=GROUPS).best_estimator_[0].model is pipe[0].model


def test_an_interrupt_ends_a_grid_search(weights, monkeypatch):
    """Training answers signals by an error of its own, which scikit-learn would take for a failed fit."""

    def interrupted(*given, **more):
        raise StoppedError("stopped between two steps")

    monkeypatch.setattr(estimators, "train_split", interrupted)
    search = GridSearchCV(probe(weights, centring=False), {"C": [1.0, 2.0]}, cv=GroupKFold(2))
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, Y, groups=GROUPS)


def test_output_in_a_frame(weights):
    pandas = pytest.importorskip("pandas")
    frame = features(weights).set_output(transform="pandas").fit_transform(X)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame)[:2] == ["cerebro0", "cerebro1"]


def test_tags_say_what_the_input_is(weights):
    for make in ALL:
        tags = make(weights).__sklearn_tags__().input_tags
        assert (tags.three_d_array, tags.two_d_array, tags.allow_nan) == (True, False, False)


def test_errors_are_ours(weights):
    """So that one ``except`` catches what a user can mend."""
    assert issubclass(InputError, CerebroError)
    with pytest.raises(CerebroError, match="no checkpoint"):
        CerebroClassifier("no-such-model", ch_names=NAMES).fit(X, Y, groups=GROUPS)


@pytest.mark.docs
def test_the_page_runs(tmp_path):
    """Every block of docs/scikit-learn.md, one after the other, in a process of its own."""
    page = (Path(__file__).parent.parent / "docs" / "scikit-learn.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == page.count("```python") > 7
    command = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(48, 192)" in done.stdout
    assert (tmp_path / "my-classifier" / "model.safetensors").exists()
