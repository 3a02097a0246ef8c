"""Rivals: simple features on the windows of a run, who wins in a sentence, and a comparison that is made once."""

import json

import numpy as np
import pytest

import train_stores
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.runs import finetune, rivals
from cerebro_eeg.runs.evaluate import evaluate
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.predictions import headline
from cerebro_eeg.train.distributed import process_group
from train_stores import make_store
from train_worker import MODEL

PRESET = Preset(MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, warmup_epochs=1, epochs=2))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rivals") / "store"
    with pytest.MonkeyPatch.context() as patch:  # rivals need channels that all windows share
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1")])
        make_store(folder, subjects=36, seconds=8)
    return folder


def train(store, out, task="alpha", **changes):
    options = finetune.FinetuneOptions(task, steps=2, **changes)
    finetune.finetune(store, out, PRESET, options, Engine(device="cpu", threads=1))
    return out


def test_rivals_find_alpha_in_new_subjects_and_are_scored_on_the_runs_windows(store):
    opened = Store(store)
    (split,) = find_splits(opened, read_task(opened, "alpha", None, None, None))
    with process_group("cpu") as processes:
        found = rivals.rival_predictions(opened, split, processes)
    assert list(found) == ["band power", "filter-bank covariance", "both together", "with narrow bands"]
    for predictions in (rival.predictions for rival in found.values()):
        assert len(predictions) == len(split.test)
        np.testing.assert_array_equal(predictions.truth, split.test.label)
    assert headline(found["band power"].predictions)[1] > 0.9


def test_evaluate_puts_rivals_beside_the_score_once(store, tmp_path, monkeypatch):
    run = train(store, tmp_path / "run", seeds=(0, 1))
    first = evaluate(run, store, device="cpu")
    assert [row["name"] for row in first.rivals] == list(rivals.RIVALS)
    mean = first.summary["levels"]["window"]["values"]["auroc"]["mean"]
    for row in first.rivals:
        assert row["ours"] == pytest.approx(mean)
        assert row["difference"] == pytest.approx(row["ours"] - row["rival"])
    assert rivals.verdict(first.rivals) in first.text()
    assert first.to_dict()["rivals"] == first.rivals

    def never(*_, **__):
        raise AssertionError("the test split was looked at again")

    monkeypatch.setattr(rivals, "rival_predictions", never)
    assert evaluate(run, store, device="cpu").rivals == first.rivals


def test_no_rivals_and_validation_have_none(store, tmp_path):
    run = train(store, tmp_path / "run")
    assert evaluate(run, store, device="cpu", split="validation").rivals is None
    found = evaluate(run, store, device="cpu", rivals=False)
    assert found.rivals is None
    assert "simple rivals" not in found.text()
    assert not (run / rivals.FILE).exists()


@pytest.mark.parametrize(("task", "folds"), [("folded", 3), ("level", None)])
def test_folds_and_values_have_rivals(store, tmp_path, task, folds):
    run = train(store, tmp_path / "run", task, folds=folds)
    found = evaluate(run, store, device="cpu")
    assert {row["metric"] for row in found.rivals} == {"r2" if task == "level" else "auroc"}
    assert all((row["low"] is None) == (folds is not None) for row in found.rivals)
    assert rivals.verdict(found.rivals) in found.text()


def test_a_damaged_comparison_is_said(store, tmp_path):
    run = train(store, tmp_path / "run")
    (run / rivals.FILE).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rivals\.json of .* is damaged; delete it"):
        evaluate(run, store, device="cpu")


def row(difference, above, name="band power", rival=0.8):
    return {
        "name": name, "metric": "auroc", "subjects": 12, "ours": rival + difference, "rival": rival,
        "difference": difference, "low": -0.1, "high": 0.1, "above": above,
    }  # fmt: skip


def test_the_verdict_is_of_the_best_rival():
    weak, strong = row(0.2, 1.0, "weak", 0.6), row(-0.05, 0.02, "strong", 0.85)
    assert rivals.verdict([weak, strong]).startswith("strong with a linear model wins by 0.050 over 12 subjects")
    assert rivals.verdict([weak]).startswith("this model wins: 0.200 ahead of the best rival, weak")
    assert rivals.verdict([row(0.01, 0.6)]).startswith("no winner")
    assert "allow no interval" in rivals.verdict([{**row(0.01, None), "low": None, "high": None}])


def test_windows_without_common_channels_are_said():
    assert "no channel in common" in "\n".join(rivals.rival_lines([]))


def test_the_comparison_is_plain_json(store, tmp_path):
    run = train(store, tmp_path / "run")
    found = evaluate(run, store, device="cpu")
    kept = json.loads((run / rivals.FILE).read_text(encoding="utf-8"))
    assert kept == {"format": 1, "rivals": list(found.rivals)}
    assert all(row["centred"] in (True, False) for row in kept["rivals"])
