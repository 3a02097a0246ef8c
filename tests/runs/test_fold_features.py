"""Folds share the features of a frozen encoder: the same numbers, and each window goes through the encoder once."""

from pathlib import Path

import numpy as np
import pytest

import train_stores
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import Readout
from cerebro_eeg.runs import finetune, fold_features
from cerebro_eeg.runs.readout_choice import (
    READOUTS,
    fit_token_components,
    parts_to_fit,
    raw_features,
    readout_config,
    shared_channels,
)
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.train.distributed import process_group
from train_stores import make_store
from train_worker import MODEL

PRESET = Preset(MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, warmup_epochs=1, epochs=2))
ENGINE = Engine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stores, "MONTAGES", [("Fp1", "Cz", "O1"), ("O1", "Fp1", "Cz", "Pz")])
        make_store(folder, subjects=12, seconds=8)
    return folder


def counted(monkeypatch):
    """The keys of all windows whose shared features are computed."""
    asked = []
    plain = fold_features.predict_windows

    def count(model, opened, windows, *rest, **options):
        asked.extend(windows.keys().tolist())
        return plain(model, opened, windows, *rest, **options)

    monkeypatch.setattr(fold_features, "predict_windows", count)
    return asked


@pytest.mark.parametrize("parts", [READOUTS["hybrid"], ("covariance", "mean"), ("power",)])
def test_features_and_components_are_those_of_each_fold_alone(store, monkeypatch, parts):
    asked, opened = counted(monkeypatch), Store(store)
    splits = list(find_splits(opened, read_task(opened, "folded", None, None, None), 3))
    shared = fold_features.fold_features(splits)
    model = Cerebro(2, config=MODEL).eval()
    config = readout_config(parts, shared_channels(splits[0]))
    with process_group("cpu") as processes:
        for split in splits:
            used = parts_to_fit(split, True, lambda line: None)
            ours, alone = Readout(config, MODEL), Readout(config, MODEL)
            found = shared.features(ours, model, opened, split.name, used, processes, None, lambda line: None)
            fit_token_components(alone, model, opened, split.train, processes, None)
            for part, windows in used.items():
                expected = raw_features(model, alone, opened, windows, processes, None, None)
                np.testing.assert_allclose(found[part], expected, rtol=1e-4, atol=1e-4)
            for name, value in alone.state_dict().items():
                np.testing.assert_allclose(ours.state_dict()[name], value, atol=1e-6, err_msg=name)
    assert len(asked) == len(set(asked)) == 12 * 8


def test_a_frozen_probe_over_folds_computes_each_window_once_and_answers_as_before(store, tmp_path, monkeypatch):
    start = Cerebro(2, config=MODEL).save_pretrained(tmp_path / "start")
    asked = counted(monkeypatch)
    options = finetune.FinetuneOptions("folded", folds=3, freeze=True, readout="encoder", untrained="as_is")

    def run(name):
        trained = finetune.finetune(store, tmp_path / name, PRESET, options, ENGINE, start, rivals=False).trained
        return [Predictions.load(Path(one.folder) / "validation.npz").output for one in trained]

    shared = run("shared")
    assert len(asked) == len(set(asked)) == 12 * 8
    monkeypatch.setattr(finetune, "fold_features", lambda splits: None)
    alone = run("alone")
    assert len(asked) == 12 * 8
    for one, other in zip(shared, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_one_split_and_too_many_windows_share_nothing(store, monkeypatch):
    opened = Store(store)
    assert fold_features.fold_features(list(find_splits(opened, read_task(opened, "alpha", None, None, None)))) is None
    folds = list(find_splits(opened, read_task(opened, "folded", None, None, None), 3))
    assert fold_features.fold_features(folds) is not None
    monkeypatch.setattr(fold_features, "MOST_WINDOWS", 90)
    assert fold_features.fold_features(folds) is None
