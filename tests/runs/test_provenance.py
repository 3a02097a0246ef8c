"""What a run tells of itself: subjects that weights may have seen, and a repetition that is no longer exact."""

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cerebro_eeg.commands import finetune as commands
from cerebro_eeg.config import Source, Training
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import to_text
from cerebro_eeg.errors import InputError, StoreError
from cerebro_eeg.fast import eligible
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.runs import evaluate, finetune, pretrain
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import engine_changes
from cerebro_eeg.runs.windows import find_splits, read_task, unknown_overlap
from cerebro_eeg.train import loop
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0)
CHOICES = pretrain.PretrainOptions(steps=2, seconds=1.0, paper=True)
NOT_KNOWN = "whether the test subjects were pre-trained on is not known: the weights "


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (Training(), None),
        (Training(4, 40, {}, (Source("mine", sha256="a"),)), None),
        (Training(4, 40, {}, ()), "do not say what they learned from"),
        (Training(4, 40, {}, (Source("tueg", sha256="b"),)), "learned from another store (tueg) and do not say"),
        (
            Training(4, 40, {}, (Source("tueg", sha256="b"), Source("mine", sha256="a"), Source("x", sha256="c"))),
            "learned from another store (tueg, x) and do not say from which subjects",
        ),
        (Training(4, 40, {}, (Source("mine", sha256="c"),)), "learned from another store (mine)"),  # prepared anew
    ],
)
def test_what_is_not_known_of_an_overlap(training, words):
    line = unknown_overlap(training, "a")
    assert line is None if words is None else line.startswith(NOT_KNOWN + words)


def test_finetuning_says_what_is_not_known_of_its_test_subjects(tmp_path):
    """The same recordings under other ids: nothing in the weights could tell."""
    one, other = tmp_path / "one", tmp_path / "other"
    make_store(one)
    make_store(other, name="t")
    pretrain.pretrain([one], tmp_path / "pretrained", preset({}), CHOICES, ENGINE)

    def told(store, start, **choices):
        lines = []
        chosen = finetune.FinetuneOptions(task="alpha", steps=2, paper=True, **choices)
        out = tmp_path / f"{store.name}-{'none' if start is None else start.parent.name}-{len(choices)}"
        trained = finetune.finetune(store, out, preset({}), chosen, ENGINE, start, say=lines.append).trained
        return Path(trained[0].folder), [line for line in lines if "pre-trained on" in line]

    start = tmp_path / "pretrained" / "model.safetensors"
    here = "note: the weights were pre-trained on this store, except what its pretrain split or --without left out"
    not_known = f"note: {NOT_KNOWN}learned from another store (made) and do not say from which subjects"
    assert told(one, None)[1] == []
    assert told(one, start)[1] == [here]
    tuned, lines = told(other, start)
    assert [line.split(" (see")[0] for line in lines] == [not_known]
    probe, lines = told(other, start, freeze=True)
    assert [line.split(" (see")[0] for line in lines] == [not_known]
    hash = RunFolder(tuned.parent).read()["settings"]["store"]["sha256"]
    for folder in (tuned, probe):  # the weights that came of it still tell, for evaluate and the report
        assert unknown_overlap(finetune.hub.load(folder)[0].training, hash) is not None
    for run, store, expected in ((tuned.parent, other, True), (tmp_path / "one-pretrained-0", one, False)):
        notes = evaluate.evaluate(run, store, device="cpu", say=lambda line: None).notes
        assert any(NOT_KNOWN in note for note in notes) == expected
        assert (NOT_KNOWN[1:] in report_finetune(run).read_text()) == expected


def test_model_fields_that_a_checkpoint_overrides_are_said(tmp_path, capsys):
    """One file may serve a tuned model and one from scratch, so it is no mistake; but it must not pass unseen."""
    store, file = tmp_path / "store", tmp_path / "settings.json"
    make_store(store)
    start = tmp_path / "pretrained"
    pretrain.pretrain([store], start, preset({}), CHOICES, ENGINE)
    file.write_text('{"model": {"depth": 4}, "finetune": {"drop_path": 0.1}}')
    options = {"task": "alpha", "config": file, "steps": 2, "paper": True, "preset": "tiny", "engine": ENGINE}
    for start_from, said in ((str(start), True), ("none", False)):
        commands.finetune(store, out=tmp_path / f"run-{said}", from_=start_from, **options)
        note = "note: model.depth is not used with --from: the model is the checkpoint's"
        assert (note in capsys.readouterr().err) == said


def test_a_store_with_its_classes_the_other_way_round_is_told_from_the_runs(tmp_path):
    """Its recordings are the same, so its hash is."""
    one, other = make_store(tmp_path / "one"), tmp_path / "other"
    shutil.copytree(tmp_path / "one", other)
    text = (other / "store.json").read_text()
    turned = json.loads(text)
    turned["settings"]["tasks"]["alpha"]["names"].reverse()
    del turned["sha256"]
    (other / "store.json").write_text(to_text(turned))
    assert Store(other).hash() == one.hash()
    cut = read_task(one, "alpha", None, None, None)
    assert len(list(find_splits(one, cut))) == 1
    with pytest.raises(InputError, match="are fast, slow here and slow, fast in the run"):
        next(find_splits(Store(other), cut))


def test_other_threads_end_the_promise_of_equal_bits(tmp_path, monkeypatch):
    make_store(tmp_path / "store")
    save, count = loop.save, torch.get_num_threads()

    def stop(run):
        save(run)
        raise KeyboardInterrupt

    def told(threads, steps=4):
        lines = []
        engine = replace(ENGINE, save_minutes=1e-9, threads=threads)
        try:
            choices = replace(CHOICES, steps=steps)
            pretrain.pretrain([tmp_path / "store"], tmp_path / "run", preset({}), choices, engine, say=lines.append)
        except KeyboardInterrupt:
            pass
        assert torch.get_num_threads() == count
        return [line for line in lines if "bitwise" in line]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", stop)
        assert told(1) == []
        assert told(None) == []  # keeps to one
        (line,) = told(2)
        assert line.startswith("note: going on with 2 threads after 1, ")
        assert told(2) == []
    assert told(None) == []
    assert told(1) == []  # done: nothing is left to differ


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {}, []),
        ({"residual": "fp32"}, {}, ["residual bf16 after fp32"]),
        ({"residual": None}, {}, ["residual bf16 after fp32"]),  # a run from before there was a choice
        ({"residual": None, "precision": "fp32"}, {"residual": "fp32", "precision": "fp32"}, []),
        ({"residual": None, "precision": "fp64"}, {"residual": "fp64", "precision": "fp64"}, []),
        ({"threads": 1, "kernels": "stock"}, {}, ["2 threads after 1", "kernels ours after stock"]),
        ({"compiled": None}, {}, []),
        ({"compiled": True, "deterministic": True}, {}, ["compiled off after on", "deterministic off after on"]),
        ({"processes": 2, "threads": 7, "device": "cuda"}, {}, []),
    ],
)
def test_what_rounds_otherwise(before, now, words):
    """None: the field was not there yet."""
    common = {"processes": 1, "threads": 2, "device": "cpu", "precision": "bf16", "residual": "bf16"}
    common |= {"kernels": "ours", "compiled": False, "deterministic": False}
    there = {name: value for name, value in (common | before).items() if value is not None}
    assert engine_changes(there, common | now) == words


def test_a_run_from_before_the_choice_of_precision_between_blocks_goes_on_and_says_so(tmp_path, monkeypatch):
    make_store(tmp_path / "store")
    save = loop.save

    def stop(run):
        save(run)
        raise KeyboardInterrupt

    def told(**engine):
        lines = []
        chosen = replace(ENGINE, save_minutes=1e-9, precision="bf16", **engine)
        with contextlib.suppress(KeyboardInterrupt):
            pretrain.pretrain(
                [tmp_path / "store"], tmp_path / "run", preset({}), replace(CHOICES, steps=4), chosen, say=lines.append
            )
        return [line for line in lines if "bitwise" in line]

    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", stop)
        assert told(residual="fp32") == []
        path = tmp_path / "run" / "run.json"
        described = json.loads(path.read_text())
        del described["engine"]["residual"], described["engine"]["compiled"]
        path.write_text(json.dumps(described))
        assert told(residual="fp32") == []
        del described["engine"]["threads"]
        path.write_text(json.dumps(described))
        (line,) = told()
    assert line.startswith("note: going on with residual bf16 after fp32, ")


def test_a_run_leaves_the_process_as_it_was(tmp_path, monkeypatch):
    """Other runs and models may follow in it; and what was asked for holds for a linear probe, too."""
    make_store(tmp_path / "store")
    seen = []

    def state():
        filled = torch.utils.deterministic.fill_uninitialized_memory
        return eligible._choice, torch.are_deterministic_algorithms_enabled(), filled, torch.get_num_threads()

    def watching(function):
        return lambda *given, **named: (seen.append(state()), function(*given, **named))[1]

    monkeypatch.setattr(finetune, "fit_probe", watching(finetune.fit_probe))
    monkeypatch.setattr(loop, "_step", watching(loop._step))
    before = state()
    engine = replace(ENGINE, kernels="stock", deterministic=True, threads=before[-1] + 1)
    pretrain.pretrain([tmp_path / "store"], tmp_path / "run", preset({}), CHOICES, engine)
    assert state() == before
    start = tmp_path / "run" / "model.safetensors"
    choices = finetune.FinetuneOptions(task="alpha", freeze=True, paper=True)
    finetune.finetune(tmp_path / "store", tmp_path / "probe", preset({}), choices, engine, start)
    assert state() == before
    assert set(seen) == {("stock", True, False, before[-1] + 1)}
    assert len(seen) == 3
    with pytest.raises(StoreError):
        pretrain.pretrain([tmp_path / "none"], tmp_path / "other", preset({}), CHOICES, engine)
    assert state() == before
