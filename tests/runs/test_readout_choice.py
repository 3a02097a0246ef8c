"""Read-outs chosen by cross-validation over subjects: what is chosen, what is saved, and what evaluate makes of it."""

import dataclasses
import json
from inspect import signature
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import train_stores
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig, ReadoutConfig
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model import small_nets
from cerebro_eeg.model.bands import learned_bands
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import Readout
from cerebro_eeg.runs import finetune, linear_models
from cerebro_eeg.runs.evaluate import evaluate
from cerebro_eeg.runs.linear_models import LabelledFeatures, fit_chosen, groups_of, score, subject_folds
from cerebro_eeg.runs.readout_choice import (
    AUTO,
    READOUTS,
    STACKS,
    WIDE,
    BandLearner,
    ReadoutName,
    fit_readout,
    fitting_names,
    head_outputs,
    install,
    members,
    raw_features,
    readout_config,
)
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.predictions import Predictions, headline
from cerebro_eeg.train.distributed import process_group
from train_stores import make_store
from train_worker import MODEL

PRESET = Preset(MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, warmup_epochs=1, epochs=2))
ENGINE = Engine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readouts") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1"), ("O1", "Fp1", "Cz", "Pz")])
        make_store(folder, subjects=24, seconds=8)
    return folder


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Bands learn in few steps here; their own tests have them all."""
    monkeypatch.setattr(small_nets, "_BAND_STEPS", 30)


def train(store, out, task="alpha", lines=None, start=None, **changes):
    options = finetune.FinetuneOptions(task, **{"freeze": True, "readout": "auto", "untrained": "as_is", **changes})
    say = (lambda line: None) if lines is None else lines.append
    (one,) = finetune.finetune(store, out, PRESET, options, ENGINE, start, say=say).trained
    return one


def weights_of(one):
    return Path(one.folder) / "model.safetensors"


# Linear models


def made(n_subjects=12, each=20, classes=2, shift=0.0, regression=False):
    """Features of two parts; the first one carries the label, and each subject has an offset of its own."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(n_subjects), each)
    label = np.tile(np.arange(each) % classes, n_subjects)
    offset = shift * rng.normal(size=(n_subjects, 3))[group]
    good = 2.0 * np.eye(classes)[label][:, :1] + offset + rng.normal(size=(len(label), 3))
    raw = np.concatenate([good, rng.normal(size=(len(label), 5))], 1).astype(np.float32)
    target = raw[:, :2] @ np.array([[1.0, 0.5], [-1.0, 2.0]], np.float32) if regression else None
    return LabelledFeatures(raw, {"power": 3, "tangent": 5}, label, target, 2 if regression else classes, group)


def centred(x, group):
    return x - np.stack([x[group == g].mean(0) for g in group])


def test_the_part_that_knows_is_chosen_and_held_out_outputs_are_of_models_without_the_subject():
    data = made()
    found = fit_chosen(data, {"noise": ("tangent",), "good": ("power",)})
    assert found.name == "good"
    raw = data.raw_BP[:, :3]
    x = (raw - raw.mean(0)) / raw.std(0) / np.sqrt(3)
    x = centred(x, data.group_B) if found.centred else x
    again = np.zeros(len(raw))
    for fitted, held in subject_folds(data):
        assert not set(data.group_B[fitted]) & set(data.group_B[held])
        model = LogisticRegression(C=found.strength).fit(x[fitted], data.label_B[fitted])
        again[held] = model.decision_function(x[held])
    np.testing.assert_allclose(found.own_held_out[:, 1] - found.own_held_out[:, 0], again, rtol=0.03, atol=0.02)


def test_centring_is_chosen_where_subjects_differ_and_never_for_a_trait():
    assert fit_chosen(made(shift=8.0), {"good": ("power",)}).centred
    trait = dataclasses.replace(made(shift=8.0), label_B=made().group_B % 2)
    assert not fit_chosen(trait, {"good": ("power",)}).centred
    assert not fit_chosen(made(shift=8.0), {"good": ("power",)}, centring=False).centred


def test_outputs_of_the_fitted_model_are_those_of_centred_features():
    data = made(shift=8.0)
    found = fit_chosen(data, {"good": ("power",)})
    raw = data.raw_BP[:, :3]
    x = centred((raw - found.shift_P) * found.scale_P, data.group_B)
    np.testing.assert_allclose(found.outputs(raw, data.group_B), x @ found.weight_KP.T + found.bias_K, atol=1e-3)


@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_a_stack_is_the_weighted_sum_and_one_linear_model(shift):
    data, parts = made(shift=shift), {"a": ("power",), "b": ("tangent",)}
    found = fit_chosen(data, parts, {"both": ("a", "b")}, only=["both"], centring=False)
    assert (found.name, found.parts, found.strength) == ("both", ("power", "tangent"), None)
    blend = next(one.blend for one in found.tried if one.name == "both")
    alone = {name: fit_chosen(data, {name: of}, centring=False) for name, of in parts.items()}
    summed = blend * alone["a"].outputs(data.raw_BP[:, :3], data.group_B)
    summed += (1 - blend) * alone["b"].outputs(data.raw_BP[:, 3:], data.group_B)
    np.testing.assert_allclose(found.outputs(data.raw_BP, data.group_B), summed, atol=1e-4)
    held = blend * alone["a"].own_held_out + (1 - blend) * alone["b"].own_held_out
    np.testing.assert_allclose(found.own_held_out, held, atol=1e-5)


def test_a_stack_may_be_part_of_a_stack_and_its_shares_multiply():
    data = made()
    data = dataclasses.replace(data, sizes={"power": 2, "spectrum": 1, "tangent": 5})
    parts = {"a": ("power",), "b": ("spectrum",), "c": ("tangent",)}
    stacks = {"inner": ("a", "b"), "outer": ("c", "inner")}
    found = fit_chosen(data, parts, stacks, only=["outer"], centring=False)
    assert (found.name, found.parts) == ("outer", ("tangent", "power", "spectrum"))
    blend = {one.name: one.blend for one in found.tried}
    share = {"c": blend["outer"], "a": (1 - blend["outer"]) * blend["inner"]}
    share["b"] = 1 - share["c"] - share["a"]
    alone = {name: fit_chosen(data, {name: of}, centring=False) for name, of in parts.items()}
    outputs = {name: one.outputs(data.features(parts[name]), data.group_B) for name, one in alone.items()}
    summed = sum(share[name] * output for name, output in outputs.items())
    np.testing.assert_allclose(found.outputs(data.features(found.parts), data.group_B), summed, atol=1e-4)
    held = sum(share[name] * one.own_held_out for name, one in alone.items())
    np.testing.assert_allclose(found.own_held_out, held, atol=1e-5)


def test_learned_features_are_learned_anew_without_the_subjects_of_each_fold():
    """The learner here knows the truth of what it is fitted on, and nothing of other windows."""
    data, asked = made(), []

    def learner(fitted):
        asked.append(set(data.group_B[fitted]))
        known = np.zeros((len(data.label_B), 5), np.float32)
        known[fitted, 0] = data.label_B[fitted]
        return known

    data.raw_BP[:, 3] = data.label_B  # as all windows have taught it
    found = fit_chosen(dataclasses.replace(data, learners={"tangent": learner}), {"learned": ("tangent",)})
    assert len(asked) == 5
    assert all(len(groups) in (9, 10) for groups in asked)  # of 12 subjects, in five folds
    assert found.score < 0.6
    outputs = found.outputs(data.raw_BP[:, 3:], data.group_B)
    assert score(data, outputs) > 0.99


def test_wide_features_are_fitted_on_their_principal_axes_with_the_same_result(monkeypatch):
    data = made()
    wide = (data.raw_BP[:, :3] @ np.random.default_rng(1).normal(size=(3, 40))).astype(np.float32)
    data = LabelledFeatures(wide, {"power": 40}, data.label_B, None, 2, data.group_B)
    whole = fit_chosen(data, {"good": ("power",)})
    monkeypatch.setattr(linear_models, "AXES", 8)
    turned = fit_chosen(data, {"good": ("power",)})
    assert whole.score == pytest.approx(turned.score, abs=0.005)
    first, second = (one.outputs(wide, data.group_B)[:, 1] for one in (whole, turned))
    assert np.corrcoef(first, second)[0, 1] > 0.999


def test_values_are_fitted_by_ridge_regression():
    data = made(regression=True)
    found = fit_chosen(data, {"good": ("power",)}, centring=False)
    assert found.metric == "r2"
    assert found.score > 0.95
    x = (data.raw_BP[:, :3] - found.shift_P) * found.scale_P
    ridge = Ridge(alpha=1 / found.strength).fit(x, data.target_BK)
    np.testing.assert_allclose(found.outputs(data.raw_BP[:, :3], data.group_B), ridge.predict(x), atol=1e-3)


def test_a_class_that_is_missing_in_a_fold_is_never_predicted_there():
    data = made(classes=3)
    rare = np.where((data.label_B == 2) & (data.group_B > 0), 1, data.label_B)
    data = dataclasses.replace(data, label_B=rare)
    found = fit_chosen(data, {"good": ("power",)})
    assert np.isfinite(found.own_held_out).all()
    assert found.own_held_out.shape == (len(rare), 3)
    assert found.own_held_out[data.group_B == 0].argmax(1).max() < 2
    assert 0.5 < score(data, found.own_held_out) <= 1


def test_two_subjects_allow_no_choice():
    found = fit_chosen(made(n_subjects=2), {"noise": ("tangent",), "good": ("power",)})
    assert (found.name, found.subjects, found.score, found.own_held_out) == ("good", 0, None, None)


# In finetune and evaluate


def test_auto_says_what_it_tried_and_evaluate_scores_what_was_chosen(store, tmp_path):
    lines = []
    one = train(store, tmp_path / "run", lines=lines)
    said = next(line for line in lines if line.startswith("read-outs by cross-validation over 20 subjects (AUROC): "))
    assert all(f"{name} 0." in said or f"{name} 1." in said for name in AUTO)
    kept = json.loads((Path(one.folder) / "probe.json").read_text(encoding="utf-8"))
    assert {row["name"] for row in kept["tried"]} == set(AUTO)
    assert said.split("chosen: ")[1].split(",")[0] == kept["name"]
    model = Cerebro.from_pretrained(weights_of(one))
    assert model.head.readout.parts == tuple(kept["parts"])
    assert model.head.centred == kept["centred"]
    found = evaluate(tmp_path / "run", store, device="cpu")
    assert found.summary["levels"]["window"]["values"]["auroc"]["mean"] > 0.9
    assert any("centred per subject" in note for note in found.notes) == model.head.centred
    assert train(store, tmp_path / "run") == one  # finished, and read again


def test_validation_answers_are_of_models_that_had_not_seen_the_subject(store, tmp_path):
    """The saved head has seen the validation subjects and gives other numbers."""
    one = train(store, tmp_path / "run", readout="simple")
    kept = Predictions.load(Path(one.folder) / "validation.npz")
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    with process_group("cpu") as processes:
        seen = head_outputs(Cerebro.from_pretrained(weights_of(one)), opened, split.validation, processes)
    assert headline(kept)[1] == pytest.approx(one.validation)
    assert not np.allclose(seen[:, 1] - seen[:, 0], np.log(kept.output[:, 1] / kept.output[:, 0]), atol=1e-3)


@pytest.mark.parametrize("name", [name for name in READOUTS if name != "mean"])
def test_every_named_read_out_is_saved_whole(store, tmp_path, name):
    one = train(store, tmp_path / "run", readout=name)
    model = Cerebro.from_pretrained(weights_of(one))
    assert set(model.head.readout.parts) == set(READOUTS[name])
    if name not in ("moments", "attention"):
        assert set(model.head.readout.channels) == {"Fp1", "Cz", "O1"}
    assert evaluate(tmp_path / "run", store, device="cpu", rivals=False).summary["seeds"] == [0]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("name", ["mean", "moments"])
def test_a_saved_head_answers_as_the_linear_model_that_was_chosen(store, name, centred):
    """The paper's mean keeps its standardisation in the weights, whose bias must survive centring."""
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    model = Cerebro(2, config=MODEL, n_times=split.train.samples)
    with process_group("cpu") as processes:
        found = fit_readout(model, opened, split, name, processes).model
        found = dataclasses.replace(found, centred=centred, shift_P=found.shift_P + 3.0)
        readout = Readout(ReadoutConfig(READOUTS[name]), model.config)
        raw_BP = raw_features(model, readout, opened, split.train, processes, None, None)
        install(model, found, readout, split)
        answered = head_outputs(model, opened, split.train, processes)
    np.testing.assert_allclose(answered, found.outputs(raw_BP, groups_of(split.train)), atol=1e-3)


@pytest.mark.parametrize("name", ["narrow", "everything", "attention"])
def test_the_saved_head_gives_the_outputs_of_the_fitted_model(store, tmp_path, name):
    """Features of the windows are computed once more by the loaded model, live and by batch."""
    one = train(store, tmp_path / "run", readout=name)
    loaded, opened = Cerebro.from_pretrained(weights_of(one)), Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    with process_group("cpu") as processes:
        fresh = Cerebro.from_pretrained(weights_of(one))
        fitted = fit_readout(fresh, opened, split, name, processes)
        for value, other in zip(fresh.state_dict().values(), loaded.state_dict().values(), strict=True):
            assert torch.equal(value, other)  # nothing is drawn at random
        raw = raw_features(loaded, loaded.readout, opened, split.test, processes, None, None)
        expected = fitted.model.outputs(raw, groups_of(split.test))
        found = head_outputs(loaded, opened, split.test, processes)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    if "bands" in READOUTS[name]:
        assert not torch.allclose(loaded.readout.bands.log_centre_K, learned_bands().log_centre_K, atol=0.01)


def test_learned_features_are_those_that_the_head_reads(store):
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    model = Cerebro(2, config=MODEL, n_times=split.train.samples)
    readout = Readout(readout_config(["bands"], ["Fp1", "Cz", "O1"]), model.config)
    rows = np.arange(0, len(split.train), 2)
    with process_group("cpu") as processes:
        learner = BandLearner(readout, opened, [split.train], processes, None, False)
        readout.bands.load_state_dict(learner.fitted(rows).state_dict())
        raw = raw_features(model, readout, opened, split.train, processes, None, None)
    np.testing.assert_allclose(learner(rows), raw, atol=1e-4)


def test_many_shared_channels_leave_narrow_bands_out_of_the_choice():
    few, many = ([f"c{number}" for number in range(count)] for count in (WIDE - 1, WIDE))
    lines = []
    assert fitting_names("auto", few, lines.append) == AUTO
    assert fitting_names("whole", many, lines.append) == ("whole",)
    assert not lines
    assert not {"narrow", "fine", "signal", "whole"} & set(fitting_names("auto", many, lines.append))
    assert lines[0].startswith(f"note: the windows share {WIDE} channels, so narrow bands are not tried")


def test_the_parts_of_a_stack_are_those_of_its_members():
    for name, pair in STACKS.items():
        assert set(READOUTS[name]) == {part for one in pair for part in READOUTS[one]}
        candidates, stacks = members([name])
        assert list(stacks)[-1] == name
        assert set(candidates) | set(stacks) >= set(pair)


def test_without_centring_neither_ours_nor_a_rival_is_centred(store, tmp_path):
    found = finetune.finetune(
        store,
        tmp_path / "run",
        PRESET,
        finetune.FinetuneOptions("alpha", freeze=True, readout="auto", centring=False, untrained="as_is"),
        ENGINE,
    )
    probe = json.loads((Path(found.trained[0].folder) / "probe.json").read_text(encoding="utf-8"))
    assert not any(one["centred"] for one in probe["tried"])
    assert found.rivals
    assert not any(row["centred"] for row in found.rivals)
    scored = evaluate(tmp_path / "run", store, device="cpu")
    assert not any(row["centred"] for row in scored.rivals)


def test_values_keep_their_unit(store, tmp_path):
    one = train(store, tmp_path / "run", "level", readout="simple")
    evaluate(tmp_path / "run", store, device="cpu", rivals=False)
    kept = Predictions.load(Path(one.folder) / "test.npz")
    assert np.abs(kept.output.mean(0) - kept.truth.mean(0)).max() < 2 * kept.truth.std(0).max()


def test_windows_without_common_channels_fall_back_with_a_line(tmp_path):
    make_store(tmp_path / "mixed", subjects=12, seconds=8)
    lines = []
    one = train(tmp_path / "mixed", tmp_path / "run", lines=lines)
    assert any(line.startswith("note: the windows have no channel in common") for line in lines)
    readout = Cerebro.from_pretrained(weights_of(one)).head.readout
    assert readout in (ReadoutConfig(), ReadoutConfig(("moments",)))


@pytest.mark.parametrize("changes", [{"freeze": False}, {"freeze": True, "solver": "adamw"}])
def test_gradient_steps_train_a_head_on_a_read_out(store, tmp_path, changes):
    one = train(store, tmp_path / "run", readout="hybrid", steps=3, **changes)
    model = Cerebro.from_pretrained(weights_of(one))
    assert model.head.readout.parts == READOUTS["hybrid"]
    assert float((model.readout.scale_P - 1).abs().max()) > 0
    assert not model.head.centred
    with pytest.raises(ConfigError, match="auto chooses among exact probes"):
        train(store, tmp_path / "other", readout="auto", steps=3, **changes)


@pytest.mark.parametrize("changes", [{"freeze": False}, {"freeze": True, "solver": "adamw"}])
def test_gradient_steps_move_the_bands_and_save_them(store, tmp_path, changes):
    one = train(store, tmp_path / "run", readout="bands", steps=3, **changes)
    model, start = Cerebro.from_pretrained(weights_of(one)), learned_bands()
    for found, before in zip(model.readout.bands.numbers(), start.numbers(), strict=True):
        assert not torch.equal(found, before)


@pytest.mark.parametrize("changes", [{"freeze": False}, {"freeze": True, "solver": "adamw"}, {"lora": 2}])
def test_gradient_steps_move_the_queries_of_attention_and_save_them(store, tmp_path, changes):
    start = weights_of(train(store, tmp_path / "start", readout="mean"))
    one = train(store, tmp_path / "run", start=start, **{"freeze": False, **changes}, readout="attention", steps=3)
    query_QD = Cerebro.from_pretrained(weights_of(one)).readout.query_QD
    assert not torch.allclose(query_QD[0::2], -query_QD[1::2], atol=1e-4)


def test_folds_fit_the_queries_of_attention_on_their_own_training_windows(store, tmp_path):
    start = weights_of(train(store, tmp_path / "start", readout="mean"))  # folds share the features of given weights
    options = finetune.FinetuneOptions("alpha", freeze=True, readout="attention", untrained="as_is", folds=3)
    finetune.finetune(store, tmp_path / "run", PRESET, options, ENGINE, start, rivals=False)
    heads = [Cerebro.from_pretrained(tmp_path / "run" / f"fold-{k}" / "seed-0").readout.query_QD for k in (1, 2)]
    assert heads[0].abs().max() > 0
    assert not torch.allclose(*heads)


def test_adapters_begin_with_the_read_outs_probe_and_are_not_worse_on_validation(store, tmp_path):
    start = weights_of(train(store, tmp_path / "start", readout="mean"))
    one = train(store, tmp_path / "few", start=start, freeze=False, few=True, readout="encoder", steps=20)
    lines = [json.loads(line) for line in (Path(one.folder) / "metrics.jsonl").read_text().splitlines()]
    first = next(line["validation_auroc"] for line in lines if line["step"] == 0)
    assert one.validation >= first > 0.6
    assert Cerebro.from_pretrained(weights_of(one)).head.readout.parts == READOUTS["encoder"]


def test_the_command_and_the_library_know_the_same_read_outs():
    from cerebro_eeg.commands.finetune import finetune

    asked, _ = get_args(signature(finetune, eval_str=True).parameters["readout"].annotation)
    assert get_args(asked) == get_args(ReadoutName)
