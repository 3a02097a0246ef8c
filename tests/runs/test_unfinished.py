"""Runs that were stopped: their weights can be used, and their length can be changed."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import Cerebro, MaskedCerebro, cli
from cerebro_eeg.config import PRESETS
from cerebro_eeg.errors import CheckpointError, ConfigError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.report.pretrain import report_pretrain
from cerebro_eeg.runs import evaluate, finetune, pretrain
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.predict import load_model
from cerebro_eeg.runs.settings import Engine, preset_for
from cerebro_eeg.runs.snapshot import usable_weights
from cerebro_eeg.runs.training import activation_room, count_micro_batches
from cerebro_eeg.train import loop, state
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.log import read_lines
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0, save_minutes=1e-9)
CHOICES = pretrain.PretrainOptions(steps=12, seconds=1.0, paper=True)
TUNED = finetune.FinetuneOptions(task="alpha", steps=12, paper=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unfinished") / "store"
    make_store(folder)
    return folder


@contextlib.contextmanager
def stopped_after(step):
    """Stop a run as a signal would, once the state of this step is saved."""
    save = loop.save

    def stop(run):
        save(run)
        if run.progress.step == step:
            raise KeyboardInterrupt

    loop.save = stop
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        loop.save = save


def learn(store, out, steps=12, start=None, **more):
    lines = []
    options = replace(CHOICES, steps=steps, **more)
    pretrain.pretrain([store], out, preset({}), options, ENGINE, start, say=lines.append)
    return lines


def tune(store, out, start=None, **choices):
    lines = []
    finetune.finetune(store, out, preset({}), replace(TUNED, **choices), ENGINE, start, say=lines.append)
    return lines


def losses(run):
    return [line["loss"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]


# Weights of a run that is not finished


def test_the_weights_of_a_stopped_pretraining_are_those_of_its_last_state(store, tmp_path):
    with stopped_after(5):
        learn(store, tmp_path / "stopped")
    learn(store, tmp_path / "short", steps=5)
    lines = []
    with usable_weights(tmp_path / "stopped", lines.append) as path:
        header, tensors = checkpoint.read(path)
    assert lines == [
        f"note: {tmp_path / 'stopped'} is not finished: its weights are those of the last save, after step 5 of 12"
    ]
    assert not path.exists()
    assert sorted(one.name for one in (tmp_path / "stopped").iterdir()) == [
        ".lock",
        "SHA256SUMS",
        "metrics.jsonl",
        "run.json",
        "state.safetensors",
    ]
    whole = checkpoint.read_header(tmp_path / "short" / "model.safetensors")
    assert header.training == whole.training
    assert tensors.keys() == MaskedCerebro.from_pretrained(tmp_path / "short").state_dict().keys()
    more = learn(store, tmp_path / "more", steps=1, start=tmp_path / "stopped")
    assert any("after step 5 of 12" in line for line in more)
    assert checkpoint.read_header(tmp_path / "more" / "model.safetensors").training.steps == 6
    tuned = tune(store, tmp_path / "tuned", tmp_path / "stopped", steps=1)
    assert any("after step 5 of 12" in line for line in tuned)


@pytest.mark.parametrize("task", ["alpha", "level"])
def test_a_stopped_fine_tuning_answers(store, tmp_path, task, caplog):
    """Also in the unit of its targets; and it can be scored, with a note, and goes on as if nothing had been."""
    with stopped_after(5):
        tune(store, tmp_path / "run", task=task)
    with pytest.raises(CheckpointError, match="is not finished"):  # the model knows nothing of runs
        Cerebro.from_pretrained(tmp_path / "run" / "seed-0")
    for place in (tmp_path / "run", tmp_path / "run" / "seed-0"):
        model = load_model(place)
        assert "after step 5 of 12" in caplog.text
        caplog.clear()
    if task == "level":
        x = np.random.default_rng(0).normal(0, 20, (1, 3, 256)).astype(np.float32)
        model.set_channels(["Fp1", "Cz", "O1"])
        with torch.no_grad():
            said = model(torch.from_numpy(x))
        assert 90 < float(said[0, 0]) < 115  # the targets are 100 and 105
        return
    asked = evaluate.evaluate(tmp_path / "run", store, split="validation", device="cpu", resamples=100)
    with RunFolder(tmp_path / "run").locked():  # a run that is still training
        assert evaluate.evaluate(tmp_path / "run", store, split="validation", device="cpu", resamples=100) == asked
        with pytest.raises(ConfigError, match="another process is training"):
            evaluate.evaluate(tmp_path / "run", store, device="cpu", resamples=100)
    scored = evaluate.evaluate(tmp_path / "run", store, device="cpu", resamples=100)
    assert any("is not finished: its weights are those of the last save, after step 5 of 12" in n for n in scored.notes)
    tune(store, tmp_path / "run")
    tune(store, tmp_path / "whole")
    weights = [(tmp_path / run / "seed-0" / "model.safetensors").read_bytes() for run in ("run", "whole")]
    assert weights[0] == weights[1]
    again = evaluate.evaluate(tmp_path / "run", store, device="cpu", resamples=100)
    assert again.summary == scored.summary
    assert any("have changed since this score" in note for note in again.notes)


def test_what_has_no_weights_says_so(store, tmp_path):
    with stopped_after(2):
        learn(store, tmp_path / "old")
    keep = state.read_weights(tmp_path / "old" / "state.safetensors")
    assert keep[0].step == 2
    path = tmp_path / "old" / "state.safetensors"
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    altered = metadata | {"about": metadata["about"].replace("256", "255")}
    save_file(tensors, path, altered)
    with pytest.raises(CheckpointError, match="was altered"), usable_weights(tmp_path / "old"):
        pass
    del metadata["about"], metadata["about_sha256"]
    save_file(tensors, path, metadata)
    with pytest.raises(CheckpointError, match="a release whose unfinished runs cannot be used"):
        tune(store, tmp_path / "tuned", tmp_path / "old")
    assert "going on after step 2 of 12" in learn(store, tmp_path / "old")  # it can still be gone on with


# Another length


@pytest.mark.parametrize("steps", [8, 16])
def test_another_number_of_steps_goes_on_with_its_own_learning_rates(store, tmp_path, steps):
    with stopped_after(5):
        learn(store, tmp_path / "run")
    lines = learn(store, tmp_path / "run", steps=steps)
    assert f"note: the length of the run changes: choices.steps was 12 and is now {steps}" in lines
    assert f"going on after step 5 of {steps}" in lines
    learn(store, tmp_path / "other", steps=steps)
    learn(store, tmp_path / "whole")
    rates = {
        name: [line["lr"] for line in read_lines(tmp_path / name / "metrics.jsonl") if "loss" in line]
        for name in ("run", "other", "whole")
    }
    assert rates["run"] == rates["whole"][:5] + rates["other"][5:]
    assert losses(tmp_path / "run")[:6] == losses(tmp_path / "whole")[:6]  # the sixth has the weights of the fifth
    kept = RunFolder(tmp_path / "run").read()
    assert kept["settings"]["choices"]["steps"] == kept["steps"] == steps
    assert [(one["until"], one["steps"]) for one in kept["history"]] == [(5, 12)]
    page = report_pretrain(tmp_path / "run").read_text()
    assert f"The steps were 12 until step 5, then {steps}." in page
    assert learn(store, tmp_path / "run", steps=steps)[-1] == f"going on after step {steps} of {steps}"
    assert RunFolder(tmp_path / "run").read()["history"] == kept["history"]


def test_a_changed_length_survives_a_kill_and_unchanged_ones_are_bitwise(store, tmp_path):
    for name, stops in (("often", (3, 6, 9)), ("once", (3,))):
        with stopped_after(stops[0]):
            learn(store, tmp_path / name)
        for stop in stops[1:]:
            with stopped_after(stop):
                learn(store, tmp_path / name, steps=14)
        learn(store, tmp_path / name, steps=14)
    assert losses(tmp_path / "often") == losses(tmp_path / "once")
    files = [tmp_path / name / "model.safetensors" for name in ("often", "once")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_run_is_prolonged_and_a_length_that_is_past_ends_it(store, tmp_path):
    learn(store, tmp_path / "run", steps=6)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    lines = learn(store, tmp_path / "run", steps=4)
    assert "note: 6 steps are done already, so the run ends here, as it is" in lines
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    with stopped_after(7):
        learn(store, tmp_path / "run", steps=9)
    assert not (tmp_path / "run" / "model.safetensors").exists()  # nobody takes the old weights for the new ones
    learn(store, tmp_path / "run", steps=9)
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line] == [
        *range(1, 10)
    ]
    assert [one["until"] for one in RunFolder(tmp_path / "run").read()["history"]] == [6, 6]


def test_fine_tunings_change_their_length_until_one_is_finished(store, tmp_path):
    with stopped_after(5):
        tune(store, tmp_path / "run", seeds=(0, 1))
    lines = tune(store, tmp_path / "run", seeds=(0, 1), steps=7)
    assert "going on after step 5 of 7" in lines
    assert "seed 0: the steps were 12 until step 5, then 7." in report_finetune(tmp_path / "run").read_text()
    assert len(losses(tmp_path / "run" / "seed-1")) == 7
    with pytest.raises(ConfigError, match=r"holds finished trainings \(seed-\d, seed-\d\), whose length cannot be"):
        tune(store, tmp_path / "run", seeds=(0, 1), steps=9)


def test_anything_else_that_changes_is_refused_with_the_length(store, tmp_path):
    with stopped_after(5):
        learn(store, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"another run: choices\.seed was 0 and is now 1; choices\.steps was 12"):
        learn(store, tmp_path / "run", steps=8, seed=1)


# The preset of weights


def test_the_preset_follows_the_weights():
    for name, one in PRESETS.items():
        if name == "open":  # as large as small, and with the same hyper-parameters of training
            assert preset_for(None, one.model)[0] == "small"
            continue
        assert preset_for(None, one.model) == (name, f"hyper-parameters of {name}, the preset of these weights")
        assert preset_for(name, one.model) == (name, None)
    assert preset_for(None, None) == ("small", None)
    assert preset_for("base", None) == ("base", None)
    chosen, line = preset_for("small", PRESETS["tiny"].model)
    assert (chosen, line) == (
        "small",
        "note: the weights are of tiny; --preset small gives the hyper-parameters of training alone",
    )
    chosen, line = preset_for(None, replace(PRESETS["base"].model, depth=8))
    assert (chosen, "the preset nearest to these weights (8 blocks of width 576)" in line) == ("base", True)
    with pytest.raises(ConfigError, match="no preset 'tinny'"):
        preset_for("tinny", PRESETS["tiny"].model)


def test_fine_tuning_takes_the_preset_of_the_weights(store, tmp_path, capsys):
    model = Cerebro(config="tiny")
    model.training_record = cerebro_eeg.config.Training(
        1, 1, dict.fromkeys(("Fp1", "Fp2", "Cz", "C3", "C4", "O1", "F7", "Pz"), 1)
    )
    model.save_pretrained(tmp_path / "weights")
    command = ["finetune", str(store), "--task", "alpha", "--from", str(tmp_path / "weights"), "--freeze"]
    assert cli.main([*command, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert "hyper-parameters of tiny, the preset of these weights" in capsys.readouterr().err
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["finetune"]["batch_size"] == PRESETS["tiny"].finetune.batch_size != 4096


# Memory


def test_micro_batches_do_not_depend_on_what_the_process_did_before():
    """A run leaves a cache, and maybe a few tensors; another process's memory does count."""
    giga = 1 << 30
    fresh = activation_room(140 * giga, 139 * giga, 0, 0)
    assert fresh == int(0.6 * 131.25 * giga)
    assert activation_room(140 * giga, 60 * giga, 79 * giga, 0) == fresh
    assert activation_room(140 * giga, 60 * giga, 79 * giga, giga // 2) == fresh
    assert activation_room(140 * giga, 70 * giga, 0, 0) == int(0.6 * 70 * giga)
    assert activation_room(140 * giga, giga, 0, 0) == int(0.6 * giga)
    assert activation_room(0, 0, 0, 0) == 0


def test_micro_batches_of_a_gpu_are_those_of_its_memory(monkeypatch):
    """With the numbers of a GPU; what was cached is let go of first."""
    model, cuda, cached = PRESETS["small"].model, torch.device("cuda"), [40 << 30]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cached.__setitem__(0, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((44 << 30) - cached[0], 45 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: cached[0])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    engine = Engine(precision="bf16")
    first = count_micro_batches(engine, ProcessGroup(device=cuda), model, 23, 1280, 4096)
    cached[0] = 20 << 30
    assert count_micro_batches(engine, ProcessGroup(device=cuda), model, 23, 1280, 4096) == first > 1
