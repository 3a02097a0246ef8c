"""Pre-training with further targets, blocks and views: it stops and goes on bitwise, and the preset open runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro, MaskedCerebro
from cerebro_eeg.cli import main
from cerebro_eeg.config import ObjectiveConfig, preset
from cerebro_eeg.data.batching.filling import together
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import StoppedError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.runs import pretrain
from cerebro_eeg.runs.pretrain import MaskedTask, mask_noise
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import pretrain_windows
from cerebro_eeg.train import loop
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.log import read_lines
from train_stores import make_store
from train_worker import preset as tiny

ENGINE = Engine(device="cpu", readers=0, threads=1)
CHOICES = pretrain.PretrainOptions(steps=8, seconds=1.0, paper=True)
ALL = {
    "masking": "blocks",
    "spectrum": 1.0,
    "statistics": 0.5,
    "keep_channels": 0.5,
    "rereference": 0.5,
    "hide_amplitude": 0.5,
}
PRESET = tiny({"objective": ALL, "model": {"amplitude": True}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objective") / "store"
    make_store(folder, 6, 8, pretrain=True)
    return folder


def test_a_stopped_run_ends_bitwise_as_one_that_never_was(folder, tmp_path, monkeypatch):
    whole = pretrain.pretrain([folder], tmp_path / "whole", PRESET, CHOICES, ENGINE)
    begin = loop.StepComputer.begin

    def interrupted(computer, micro_batches, asked, rate):
        begin(computer, micro_batches, (computer._run.progress.step == 3, False), rate)

    monkeypatch.setattr(loop.StepComputer, "begin", interrupted)
    with pytest.raises(StoppedError):
        pretrain.pretrain([folder], tmp_path / "cut", PRESET, CHOICES, ENGINE)
    monkeypatch.setattr(loop.StepComputer, "begin", begin)
    cut = pretrain.pretrain([folder], tmp_path / "cut", PRESET, CHOICES, ENGINE)
    assert cut.sha256 == whole.sha256
    lines, others = (
        [
            {name: value for name, value in line.items() if name != "seconds"}
            for line in read_lines(path / "metrics.jsonl")
        ]
        for path in (tmp_path / "whole", tmp_path / "cut")
    )
    assert lines == others
    assert {"masked", "visible", "spectrum", "power", "coupling"} <= lines[0].keys()
    validated = [line for line in lines if "validation_loss" in line][-1]
    expected = validated["validation_masked"] + 0.1 * validated["validation_visible"] + validated["validation_spectrum"]
    expected += 0.5 * (validated["validation_power"] + validated["validation_coupling"])
    assert validated["validation_loss"] == pytest.approx(expected)


def test_going_on_from_weights_keeps_the_standardisation_of_their_layers(folder, tmp_path):
    """Of another store the targets have other means; the layers would no longer fit."""
    first = pretrain.pretrain([folder], tmp_path / "first", PRESET, replace(CHOICES, steps=2), ENGINE)
    other = tmp_path / "other"
    make_store(other, 5, 8, "another")
    more = pretrain.pretrain([other], tmp_path / "more", PRESET, replace(CHOICES, steps=2), ENGINE, Path(first.folder))
    old, new = (MaskedCerebro.from_pretrained(found.folder).state_dict() for found in (first, more))
    kept = [name for name in old if name.endswith(("shift_K", "scale_K"))]
    assert len(kept) == 6
    for name in kept:
        assert torch.equal(old[name], new[name])
        assert old[name].abs().min() > 0
    assert not torch.equal(old["further.targets.power.layer.weight"], new["further.targets.power.layer.weight"])


def test_counts_of_a_step_are_those_of_its_micro_batches(folder):
    """Every process divides by these numbers, so they must be known before any window is read."""
    store = Store(folder)
    windows, _ = pretrain_windows(store, 1.0, None)
    order, model = Order(0, [len(windows)], 12), MaskedCerebro(PRESET.model, PRESET.objective).eval()
    views = set()
    with Loader([(store, windows)], threads=0) as loader, torch.no_grad():
        task = MaskedTask(
            [(store, windows)], order, loader, model.config, model.objective, 3, ProcessGroup(), 4, torch.float64
        )
        for pieces in task.micro_batches(0, 5):
            found = [task._reconstruct(model, task.inputs(piece)) for piece in pieces]
            counted = {
                "masked": sum(int(one.masked_count) for one in found),
                "visible": sum(int(one.visible_count) for one in found),
            }
            for place, name in enumerate(("spectrum", "power", "coupling")):
                counted[name] = sum(one.further[place].count.item() for one in found)
            assert counted == pytest.approx(pieces[0].counts)
            views.add(counted["power"])
    assert len(views) > 1  # windows keep other channels from step to step


def test_a_view_depends_on_seed_epoch_and_window_alone(folder):
    """The same window in another micro-batch is the same; in the next epoch, or with another seed, it is not."""
    store = Store(folder)
    windows, _ = pretrain_windows(store, 1.0, None)
    order = Order(0, [len(windows)], 12)

    def signals(seed, pieces, steps):
        found = {}
        with Loader([(store, windows)], threads=0) as loader:
            config, objective = PRESET.model, PRESET.objective
            task = MaskedTask([(store, windows)], order, loader, config, objective, seed, ProcessGroup(), pieces)
            for micro_batches in task.micro_batches(*steps):
                for piece in micro_batches:
                    inputs = task.inputs(piece)
                    *of_batch, key_B, _ = inputs.tensors
                    batch = together(inputs.form, of_batch)
                    noise_RN = mask_noise(config, batch, key_B)
                    counts = batch.layout.counts(torch.device("cpu")).tolist()
                    parts = zip(batch.signal_RT.split(counts), noise_RN.split(counts), strict=True)
                    step = piece.raw.step
                    for window, epoch, part in zip(step.window.tolist(), step.epoch.tolist(), parts, strict=True):
                        found[window, epoch] = np.concatenate([one.numpy().ravel() for one in part])
        return found

    epochs = order.steps(2)
    once, again, other = signals(0, 1, (0, epochs)), signals(0, 5, (0, epochs)), signals(1, 1, (0, epochs))
    assert once.keys() == again.keys() == other.keys()
    assert all(np.array_equal(once[key], again[key]) for key in once)
    differ = [not np.array_equal(once[window, 0], once[window, 1]) for window, epoch in once if epoch == 1]
    assert np.mean(differ) > 0.9
    assert np.mean([not np.array_equal(once[key], other[key]) for key in once]) > 0.9


def test_the_preset_open_runs_from_the_command_line(folder, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["pretrain", str(folder), "--preset", "open", "--seconds", "1", "--steps", "2", "--batch-size", "4"]
    assert main([*command, "--paper", "--device", "cpu", "--threads", "1", "--readers", "0", "--out", str(out)]) == 0
    settings = json.loads((out / "run.json").read_text())["settings"]
    assert settings["objective"] == checkpoint.early_fields(preset("open").objective)
    assert MaskedCerebro.from_pretrained(out).objective == preset("open").objective != ObjectiveConfig()
    assert (out / "report.html").exists()
    assert Cerebro.from_pretrained(out, 2).config.depth == 8
    capsys.readouterr()
    assert main(["info", "open"]) == 0
    words = capsys.readouterr().out
    assert "8 blocks, width 192" in words
    assert "objective   simmim, 50% masked, alpha 0.1, spectrum 1\n" in words
    assert main(["info", "small"]) == 0
    assert "objective" not in capsys.readouterr().out
