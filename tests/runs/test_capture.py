"""Steps as CUDA graphs: batches are filled up to few shapes and learn the same; on a GPU, graphs give the same bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.config import ObjectiveConfig
from cerebro_eeg.data.batching.filling import Filling
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train import loop
from cerebro_eeg.train.log import read_lines
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0, threads=1, precision="fp64")
PRETRAIN = pretrain.PretrainOptions(steps=4, seconds=1.0, paper=True)
FINETUNE = finetune.FinetuneOptions(task="alpha", steps=4, seconds=1.0, paper=True)
FURTHER = {"masking": "blocks", "spectrum": 1.0, "statistics": 0.5, "keep_channels": 0.5, "rereference": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "store"
    make_store(folder, 6, 8)
    return folder


def losses(run):
    return [line["loss"] for line in read_lines(Path(run) / "metrics.jsonl") if "loss" in line]


def filled(monkeypatch, shapes, one_shape):
    """Fill up every batch of the next runs, and note the shapes that steps have."""

    def fill(windows, batch, arithmetic, processes):
        channels = np.concatenate([of_source.channels for of_source in windows])
        filling = Filling.choose(channels, batch, one_shape)
        assert filling is not None  # the windows of the store have different channels
        return filling

    plain = loop.StepComputer.begin

    def begin(computer, micro_batches, asked):
        shapes.add(tuple(computer._run.task.inputs(one).tensors[0].shape for one in micro_batches))
        plain(computer, micro_batches, asked)

    for verb in (pretrain, finetune):
        monkeypatch.setattr(verb, "fill_batches", fill)
    monkeypatch.setattr(loop.StepComputer, "begin", begin)


@pytest.mark.parametrize("one_shape", [True, False], ids=["one shape", "few shapes"])
@pytest.mark.parametrize("objective", [{}, {"style": "vitmae"}, FURTHER], ids=["simmim", "vitmae", "further"])
def test_a_pre_training_of_filled_batches_learns_the_same(folder, tmp_path, monkeypatch, objective, one_shape):
    chosen = preset({"objective": objective})
    plain = pretrain.pretrain([folder], tmp_path / "plain", chosen, PRETRAIN, ENGINE)
    shapes = set()
    filled(monkeypatch, shapes, one_shape)
    full = pretrain.pretrain([folder], tmp_path / "full", chosen, PRETRAIN, ENGINE)
    assert losses(full.folder) == pytest.approx(losses(plain.folder), rel=1e-9)
    if chosen.objective.keep_channels == ObjectiveConfig().keep_channels and one_shape:
        assert len(shapes) == 1


def test_a_fine_tuning_of_filled_batches_learns_the_same(folder, tmp_path, monkeypatch):
    chosen = preset({"finetune": {"drop_path": 0.2}})
    finetune.finetune(folder, tmp_path / "plain", chosen, FINETUNE, ENGINE, None)
    shapes = set()
    filled(monkeypatch, shapes, True)
    finetune.finetune(folder, tmp_path / "full", chosen, FINETUNE, ENGINE, None)
    plain, other = (losses(next((tmp_path / name).rglob("metrics.jsonl")).parent) for name in ("plain", "full"))
    assert len(plain) == 4
    assert other == pytest.approx(plain, rel=1e-9)
    assert len(shapes) == 1


def test_filling_makes_every_batch_a_multiple_and_leaves_equal_windows_alone():
    rng = np.random.default_rng(0)
    channels = rng.integers(3, 20, 500)
    filling = Filling.choose(channels, 64)
    for _ in range(100):
        counts = rng.choice(channels, 64).tolist()
        empty = filling.counts(counts)
        assert (sum(counts) + sum(empty)) % filling.rows == 0
        assert len(empty) == filling.windows
        assert max(empty) <= filling.width
    assert Filling.choose(np.full(10, 14), 64) is None


@pytest.mark.gpu
def test_captured_steps_give_the_bits_of_plain_ones(folder, tmp_path):
    """In deterministic mode; also after a stop."""
    engine = Engine(device="cuda", deterministic=True, readers=2, compile="no")
    options = replace(PRETRAIN, steps=12)
    plain = pretrain.pretrain([folder], tmp_path / "plain", preset({}), options, engine)
    lines: list[str] = []
    captured = pretrain.pretrain(
        [folder], tmp_path / "captured", preset({}), options, replace(engine, capture=True), say=lines.append
    )
    assert not any("not captured" in line for line in lines)
    assert losses(captured.folder) == pytest.approx(losses(plain.folder), rel=1e-3)  # filled up, so rounded otherwise
    again = pretrain.pretrain([folder], tmp_path / "again", preset({}), options, replace(engine, capture=True))
    assert again.sha256 == captured.sha256
