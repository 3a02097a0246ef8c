"""Adapters in ``finetune --lora``, and the recipe ``--few``: exact resume, plain files, never worse than the probe."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro, MaskedCerebro
from cerebro_eeg.cli import main
from cerebro_eeg.commands import finetune as commands
from cerebro_eeg.config import PRESETS
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError
from cerebro_eeg.model import checkpoint, lora
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.runs import evaluate, few_subjects, finetune, pretrain
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.predict import load_model
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.store_predictions import predict_windows, to_predictions
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.scores.predictions import Predictions, headline
from cerebro_eeg.train import loop, state
from cerebro_eeg.train.averaging import add_average, average_of, averaged
from cerebro_eeg.train.distributed import process_group
from cerebro_eeg.train.log import read_lines
from predict_files import edf
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0, threads=1, save_minutes=1e-9)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few") / "store"
    make_store(folder, 6, 8, pretrain=True)
    return folder


@pytest.fixture(scope="module")
def pretrained(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("few-pretrained") / "run"
    options = pretrain.PretrainOptions(steps=40, seconds=1.0, paper=True)
    pretrain.pretrain([store], out, preset({}), options, ENGINE)
    return out


def tune(store, out, start, *, lr=3e-3, engine=ENGINE, say=lambda line: None, **choices):
    table = replace(preset({}).finetune, peak_lr=lr, layer_decay=1.0)
    chosen = finetune.FinetuneOptions(**{"task": "alpha", "paper": True, **choices})
    return finetune.finetune(store, out, replace(preset({}), finetune=table), chosen, engine, start, say=say)


@contextlib.contextmanager
def killed_after(*steps):
    """End a run right after the state of one of these steps is saved."""
    save = loop.save

    def stop(run):
        save(run)
        if run.progress.step in steps:
            raise KeyboardInterrupt

    loop.save = stop
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        loop.save = save


def weights(folder):
    return checkpoint.read(Path(folder) / "model.safetensors")[1]


WAYS = {"lora": {"lora": 4, "steps": 40}, "few": {"few": True, "lora": 4, "steps": 40}}


# Files and scores


@pytest.mark.parametrize(("way", "task"), [("lora", "alpha"), ("lora", "level"), ("few", "level")])
def test_what_is_saved_is_plain_and_answers_as_validation_saw_it(store, pretrained, tmp_path, way, task):
    choices = {"lora": 4, "steps": 40} if way == "lora" else {"few": True}
    found = tune(store, tmp_path / "run", pretrained, task=task, **choices).trained[0]
    start, tensors = MaskedCerebro.from_pretrained(pretrained).encoder.state_dict(), weights(found.folder)
    plain = Cerebro(2, config=preset({}).model).state_dict()
    assert tensors.keys() == plain.keys()
    changed = {name for name, value in start.items() if not torch.equal(value, tensors[f"encoder.{name}"])}
    assert found.chosen > 0
    assert changed == {
        f"blocks.{block}.{part}.weight"
        for block in (0, 1)
        for part in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    }
    kept = Predictions.load(Path(found.folder) / "validation.npz")
    lines = [line for line in read_lines(Path(found.folder) / "metrics.jsonl") if f"validation_{found.metric}" in line]
    scores = {line["step"]: line[f"validation_{found.metric}"] for line in lines}
    assert headline(kept)[1] == found.validation == pytest.approx(scores[found.chosen], abs=1e-6)
    assert found.validation == pytest.approx(max(scores.values()), abs=1e-6)
    again = evaluate.evaluate(tmp_path / "run", store, split="validation", device="cpu", resamples=100)
    of_window = again.summary["levels"]["window"]["values"][found.metric]["mean"]
    assert of_window == pytest.approx(found.validation, abs=1e-6)
    report_finetune(tmp_path / "run")
    assert f"with adapters of rank {4 if way == 'lora' else 8}" in (tmp_path / "run" / "report.html").read_text()
    assert json.loads((Path(found.folder) / "finished.json").read_text())["chosen"] == found.chosen


@pytest.mark.parametrize("flags", [["--lora", "2"], ["--few"]])
def test_the_command_leaves_a_checkpoint_like_any_other(store, pretrained, tmp_path, flags, capsys):
    """A new model from it answers as the one that was trained, and predict, embed and evaluate take it."""
    run, record = str(tmp_path / "run"), str(edf(tmp_path / "a.edf", ("Fp1", "Cz", "O1")))
    command = ["finetune", str(store), "--task", "alpha", "--from", str(pretrained), "--out", run, "--steps", "12"]
    assert main([*command, *flags, "--lr", "3e-3", "--device", "cpu", "--readers", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["trained"][0]
    assert 0 <= found["chosen"] <= found["steps"] <= 12  # patience may end it before
    model = Cerebro.from_pretrained(found["folder"])
    kept, opened = Predictions.load(Path(found["folder"]) / "validation.npz"), Store(store)
    split = next(iter(find_splits(opened, read_task(opened, "alpha", None, None, None), None)))
    with process_group("cpu") as processes:
        output = predict_windows(model, opened, split.validation, processes)
    assert np.allclose(to_predictions(opened, split.validation, output).output, kept.output, rtol=0, atol=1e-6)
    assert main(["predict", run, record, "--out", str(tmp_path / "said")]) == 0
    assert main(["embed", run, record, "--out", str(tmp_path / "features.npz")]) == 0
    assert main(["evaluate", run, str(store), "--device", "cpu"]) == 0
    assert main(["verify", run]) == 0


def test_adapters_do_not_train_the_rows_of_electrodes(store, pretrained, tmp_path):
    """The record of the weights knows the new data and labels, but no electrode that was not trained before."""
    found = tune(store, tmp_path / "run", pretrained, lora=2, steps=3).trained[0]
    before = checkpoint.read_header(pretrained / "model.safetensors").training
    after = checkpoint.read_header(Path(found.folder) / "model.safetensors").training
    assert after.electrode_windows == before.electrode_windows
    assert len(after.data) == len(before.data) + 1
    header, tensors = checkpoint.read(pretrained / "model.safetensors")
    known = {name: n for name, n in before.electrode_windows.items() if name != "Pz"}
    header = replace(header, training=replace(header.training, electrode_windows=known))
    checkpoint.save_tensors(tmp_path / "model.safetensors", tensors, header)
    with pytest.raises(ChannelError, match="Pz"):
        tune(store, tmp_path / "other", tmp_path / "model.safetensors", lora=2, steps=3)
    tune(store, tmp_path / "other", tmp_path / "model.safetensors", lora=2, steps=3, untrained="drop")


# Resume


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_a_killed_run_ends_bitwise_equal(store, pretrained, tmp_path, way, precision):
    """Adapters, averages and moments, and then the weights that are made of them."""
    engine, choices = replace(ENGINE, precision=precision), WAYS[way] | {"steps": 12, "task": "level"}
    for name, stops in (("whole", (12,)), ("cut", (1, 5, 12))):
        for stop in stops:
            with killed_after(stop):
                tune(store, tmp_path / name, pretrained, engine=engine, **choices)
    states = [state.read(tmp_path / name / "seed-0" / "state.safetensors")[1] for name in ("whole", "cut")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    whole = tune(store, tmp_path / "whole", pretrained, engine=engine, **choices).trained[0]
    said = []
    cut = tune(store, tmp_path / "cut", pretrained, engine=engine, say=said.append, **choices).trained[0]
    assert "going on after step 12 of 12" in said
    files = [Path(one.folder) / "model.safetensors" for one in (whole, cut)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (whole.validation, whole.chosen) == (cut.validation, cut.chosen)
    logs = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_lines(file.with_name("metrics.jsonl"))]
        for file in files
    ]
    assert logs[0] == logs[1]
    assert logs[0][0]["step"] == (0 if way == "few" else 1)


def test_a_run_killed_before_its_first_save_begins_with_the_probe_again(store, pretrained, tmp_path):
    whole = tune(store, tmp_path / "whole", pretrained, few=True, steps=3).trained[0]
    with patch.object(loop.StepComputer, "begin", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        tune(store, tmp_path / "cut", pretrained, few=True, steps=3)
    assert (tmp_path / "cut" / "seed-0" / "best-0.safetensors").exists()
    assert [line["step"] for line in read_lines(tmp_path / "cut" / "seed-0" / "metrics.jsonl")] == [0]
    cut = tune(store, tmp_path / "cut", pretrained, few=True, steps=3).trained[0]
    files = [Path(one.folder) / "model.safetensors" for one in (whole, cut)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [line["step"] for line in read_lines(tmp_path / "cut" / "seed-0" / "metrics.jsonl")] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_can_be_used_merged(store, pretrained, tmp_path, way, caplog):
    with killed_after(5):
        tune(store, tmp_path / "run", pretrained, **WAYS[way])
    held = state.read_weights(tmp_path / "run" / "seed-0" / "state.safetensors")[2]
    assert any(name.endswith("lora_a") for name in held)
    assert any(name.startswith("average.") for name in held) == (way == "few")
    model = load_model(tmp_path / "run")
    assert "after step 5 of 40" in caplog.text
    wanted = lora.merged(averaged(held))
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    evaluate.evaluate(tmp_path / "run", store, split="validation", device="cpu", resamples=100)


# The recipe


def test_the_average_follows_slowly_and_begins_where_it_is_told():
    layer = torch.nn.Linear(2, 2).double()
    first = layer.weight.detach().clone()
    layer.bias.requires_grad_(False)
    add_average(layer, 0.9)
    assert set(layer.state_dict()) == {"weight", "bias", "average.weight"}
    with torch.no_grad():
        layer.weight += 1
    average_of(layer).update(layer)
    assert torch.allclose(averaged(layer.state_dict())["weight"], first + 0.1)
    average_of(layer).update(layer, decay=0.0)
    assert torch.equal(averaged(layer.state_dict())["weight"], layer.weight)
    assert set(averaged(layer.state_dict())) == {"weight", "bias"}
    assert average_of(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("task", ["alpha", "third", "level"])
def test_training_that_harms_gives_the_probe_itself(store, pretrained, tmp_path, task):
    probe = tune(store, tmp_path / "probe", pretrained, task=task, freeze=True).trained[0]
    found = tune(store, tmp_path / "few", pretrained, task=task, few=True, lr=3.0, steps=12)
    one = found.trained[0]
    lines = [line for line in read_lines(Path(one.folder) / "metrics.jsonl") if f"validation_{one.metric}" in line]
    scores = {line["step"]: line[f"validation_{one.metric}"] for line in lines}
    assert scores[0] == pytest.approx(probe.validation, abs=1e-6)
    assert scores[12] < scores[0]
    assert (one.chosen, one.validation) == (0, pytest.approx(probe.validation, abs=1e-6))
    assert all(torch.equal(value, weights(one.folder)[name]) for name, value in weights(probe.folder).items())
    assert "none better than the probe" in found.text()
    tried = [(Path(folder) / "probe.json").read_text() for folder in (probe.folder, one.folder)]
    assert tried[0] == tried[1]


def test_the_recipe_learns_what_a_probe_cannot(store, pretrained, tmp_path):
    found = tune(store, tmp_path / "few", pretrained, task="level", few=True, seeds=(0, 1))
    probe = tune(store, tmp_path / "probe", pretrained, task="level", freeze=True).trained[0]
    assert min(one.validation for one in found.trained) > probe.validation + 0.001
    assert min(one.chosen for one in found.trained) > 0
    assert found.trained[0].validation != found.trained[1].validation
    kept = RunFolder(tmp_path / "few").read()["settings"]["choices"]
    assert (kept["few"], kept["lora"], kept["steps"]) == (True, 8, 200)


@pytest.mark.parametrize("lr", [*(pytest.param(lr, marks=pytest.mark.soak) for lr in (1e-4, 3e-2)), 1.0])
def test_the_recipe_is_never_worse_on_validation_than_its_probe(store, pretrained, tmp_path, lr):
    for task in ("alpha", "third", "level"):
        probe = tune(store, tmp_path / f"{task}-probe", pretrained, task=task, freeze=True).trained[0]
        few = tune(store, tmp_path / task, pretrained, task=task, few=True, steps=45, seeds=(0, 1), lr=lr)
        assert min(one.validation for one in few.trained) >= probe.validation - 1e-6


def test_the_recipe_validates_by_steps_and_not_by_epochs(store, pretrained, tmp_path):
    """An epoch of these windows has three steps."""
    found = tune(store, tmp_path / "few", pretrained, few=True, steps=50).trained[0]
    lines = [line for line in read_lines(Path(found.folder) / "metrics.jsonl") if "validation_auroc" in line]
    assert [(line["step"], line["epoch"]) for line in lines] == [(0, 0), (20, 7), (40, 14), (50, 17)]


def test_folds_and_seeds_have_a_probe_each(store, pretrained, tmp_path):
    found = tune(store, tmp_path / "run", pretrained, task="folded", folds=3, seeds=(0, 1), few=True, steps=2)
    assert [(one.fold, one.seed) for one in found.trained] == [
        (f"fold-{k}", seed) for k in (1, 2, 3) for seed in (0, 1)
    ]
    assert all((Path(one.folder) / "probe.json").exists() for one in found.trained)
    assert tune(store, tmp_path / "run", pretrained, task="folded", folds=3, seeds=(0, 1), few=True, steps=2) == found


# Flags


def test_the_command_fills_in_the_recipe_unless_the_user_does(store, tmp_path, monkeypatch):
    model = Cerebro(config="tiny")
    model.save_pretrained(tmp_path / "weights")
    seen = []

    def look(folder, out, chosen, options, engine, start, **_):
        seen.append((chosen.finetune, few_subjects.settle(options, start, engine)))
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune, "finetune", look)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"finetune": {"peak_lr": 7e-5}}))
    ways = (
        {"few": True},
        {"few": True, "lr": 3e-3, "steps": 9, "lora": 2},
        {"few": True, "config": file},
        {"lora": 3},
        {},
    )
    for given in ways:
        with pytest.raises(KeyboardInterrupt):
            commands.finetune(store, task="alpha", from_=str(tmp_path / "weights"), out=tmp_path / "run", **given)
    table = PRESETS["tiny"].finetune
    assert [(one.peak_lr, one.layer_decay, options.lora, options.steps, options.few) for one, options in seen] == [
        (1e-4, 1.0, 8, 200, True),
        (3e-3, 1.0, 2, 9, True),
        (7e-5, 1.0, 8, 200, True),
        (table.peak_lr, table.layer_decay, 3, None, None),
        (table.peak_lr, table.layer_decay, None, None, None),
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lora", "0"], "lora is 0; expected a rank of at least 1, such as 8"),
        (["--lora", "99"], "lora is 99; expected a rank from 1 to 16, the width of these weights"),
        (["--lora", "4", "--freeze"], "--lora trains adapters in the encoder and --freeze keeps it as it is"),
        (["--few", "--freeze"], "--few trains adapters in the encoder and --freeze keeps it as it is"),
        (["--lora", "4", "--from", "none"], "--lora adapts pre-trained weights, and --from none has none"),
        (["--few", "--from", "none"], "--few adapts pre-trained weights, and --from none has none"),
        (["--few", "--strategy", "fsdp"], "--few does not work with --strategy fsdp"),
        (["--few", "--epochs", "3"], "--few counts steps and not epochs; say --steps"),
        (["--untrained", "nearest"], "--untrained is for --freeze, --lora and --few"),
    ],
)
def test_what_does_not_go_together_is_one_line(store, pretrained, tmp_path, capsys, flags, words):
    start = [] if "--from" in flags else ["--from", str(pretrained)]
    command = ["finetune", str(store), "--task", "alpha", *start, "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main([*command, *flags]) == 2
    assert_one_error(capsys.readouterr().err, words)


def assert_one_error(text, words):
    errors = [line for line in text.splitlines() if "error" in line]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in text


def test_the_recipe_needs_validation(pretrained, tmp_path, capsys):
    store = tmp_path / "store"
    make_store(store, 3, 8)  # all of them train
    command = ["finetune", str(store), "--task", "alpha", "--from", str(pretrained), "--out", str(tmp_path / "run")]
    assert main([*command, "--few", "--device", "cpu"]) == 2
    assert_one_error(capsys.readouterr().err, "--few needs validation windows")
    found = tune(store, tmp_path / "run", pretrained, lora=2, steps=2).trained[0]  # adapters alone do not
    assert (found.validation, found.chosen) == (None, None)
    assert not any("lora" in name for name in weights(found.folder))


def test_a_run_of_an_older_release_is_gone_on_with(store, pretrained, tmp_path):
    """Its settings do not know the new flags."""
    with killed_after(2):
        tune(store, tmp_path / "run", pretrained, steps=4)
    path = tmp_path / "run" / "run.json"
    described = json.loads(path.read_text())
    for name in ("lora", "few"):
        del described["settings"]["choices"][name]
    path.write_text(json.dumps(described))
    said = []
    tune(store, tmp_path / "run", pretrained, steps=4, say=said.append)
    assert "going on after step 2 of 4" in said
    assert np.isfinite(read_lines(tmp_path / "run" / "seed-0" / "metrics.jsonl")[-1]["step"])
