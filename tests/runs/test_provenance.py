"""What a run tells of itself: subjects that weights may have seen, and a repetition that is no longer exact."""

import contextlib
import html
import json
import shutil
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cerebro_eeg import Cerebro
from cerebro_eeg.commands import finetune as commands
from cerebro_eeg.config import Training
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import to_text
from cerebro_eeg.errors import InputError, StoreError
from cerebro_eeg.fast import eligible
from cerebro_eeg.model import checkpoint
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.runs import evaluate, finetune, pretrain
from cerebro_eeg.runs.provenance import seen_before, subject_marks
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import engine_changes
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.train import loop, step
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0)
CHOICES = pretrain.PretrainOptions(steps=2, seconds=1.0, paper=True)
NOT_KNOWN = "whether the 1 test subjects were in the pre-training data is not known: the weights "


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Two stores that call different people by the same ids, and weights that learned from the first."""
    folder = tmp_path_factory.mktemp("here")
    make_store(folder / "one")
    make_store(folder / "other", seconds=6, dataset="other")
    pretrain.pretrain([folder / "one"], folder / "all", preset({}), CHOICES, ENGINE)
    choices = replace(CHOICES, without=("alpha:test",))
    pretrain.pretrain([folder / "one"], folder / "without", preset({}), choices, ENGINE)
    forgetful = Cerebro(config=preset({}).model)
    forgetful.training_record = Training(4, 40, {}, ())
    forgetful.save_pretrained(folder / "forgetful")
    # The subjects of the test split of one fold are those that train another one.
    tune(folder / "one", folder / "folds", folder / "all", task="folded", folds=3)
    (folder / "labels").symlink_to(folder / "folds" / "fold-3" / "seed-0")
    with_older_record(folder / "all" / "model.safetensors", folder / "older.safetensors")
    return folder


def tune(store, out, start, **choices):
    chosen = finetune.FinetuneOptions(steps=2, paper=True, **{"task": "alpha", **choices})
    lines = []
    return finetune.finetune(store, out, preset({}), chosen, ENGINE, start, say=lines.append), lines


def with_older_record(path, copy):
    """The checkpoint as a release before the marks of subjects wrote it: version 3."""
    header, tensors = checkpoint.read(path)
    text = json.loads(json.dumps(header.to_dict()))
    for source in text["training"]["data"]:
        for name in checkpoint.SOURCES:
            del source[name]
    text = json.dumps(text, sort_keys=True)
    digests = {"config_sha256": sha256(text.encode()).hexdigest(), "tensors_sha256": checkpoint.hash_tensors(tensors)}
    save_file(tensors, copy, {"format": "cerebro-eeg", "version": "3", "config": text, **digests})


SEEN = {
    "none": ("one", None, "new", "none of 1 test subjects was seen before: the weights were new"),
    "without": ("one", "without", "none", "none of 1 test subjects was in the data that the weights were trained on"),
    "all": ("one", "all", "some", "1 of 1 test subjects were in the pre-training data (signals without labels)"),
    "probe": ("one", "all", "some", "1 of 1 test subjects were in the pre-training data (signals without labels)"),
    "labels": ("one", "labels", "labels", "WARNING: the labels (folded) of 1 of 1 test subjects were learned in an"),
    "another": ("other", "all", "unknown", f"{NOT_KNOWN}learned from another store (made), where an id may be"),
    "older": ("one", "older.safetensors", "unknown", f"{NOT_KNOWN}learned from made by a release that did not record"),
    "forgetful": ("one", "forgetful", "unknown", f"{NOT_KNOWN}do not say what they learned from"),
}


@pytest.mark.parametrize("case", SEEN)
def test_whether_test_subjects_were_learned_from_is_said_everywhere(here, tmp_path, case):
    """In the lines and the result of finetune, in the result of evaluate, and in the report."""
    store, start, state, words = SEEN[case]
    freeze = {"freeze": True, "untrained": "as_is"} if case == "probe" else {}
    result, lines = tune(here / store, tmp_path / "run", start and here / start, **freeze)
    assert len([line for line in lines if words in line]) == 1
    assert result.seen["state"] == state
    assert words in result.text()
    assert json.loads(json.dumps(result.to_dict()))["seen"]["subjects"] == 1
    scored = evaluate.evaluate(tmp_path / "run", here / store, device="cpu", untrained="as_is", resamples=100)
    assert json.loads(json.dumps(scored.to_dict()))["seen"] == result.seen
    assert f"before     {scored.seen['text']}" in scored.text()
    if case in ("all", "labels"):
        assert words[1:] in html.unescape(report_finetune(tmp_path / "run").read_text())


def test_labels_of_an_earlier_fine_tuning_are_louder_than_signals(here):
    """The same subjects in both: what was learned of them is told apart."""
    training = checkpoint.read_header(here / "labels" / "model.safetensors").training
    assert [source.task for source in training.data] == ["", "folded"]
    store = Store(here / "one")
    (split,) = find_splits(store, read_task(store, "alpha", None, None, None))
    seen = seen_before(training.data, True, store.hash(), [split.train], "train")
    assert (seen.subjects, seen.signals, seen.loud) == (4, 4, True)
    assert 0 < seen.labels < 4


def test_marks_name_nobody_and_hold_for_one_store(here):
    source = checkpoint.read_header(here / "all" / "model.safetensors").training.data[0]
    assert len(source.subjects) == 6
    assert not any("sub" in mark for mark in source.subjects)
    windows = find_windows(Store(here / "one"), seconds=1.0)
    assert set(source.subjects) == subject_marks(windows)
    keyed = replace(windows, info=replace(windows.info, key_check="k"))
    assert not set(source.subjects) & subject_marks(keyed)
    facts = replace(windows.facts, subject=np.full_like(windows.facts.subject, -1))
    nobody = seen_before([source], True, "another", [replace(windows, facts=facts)], "test")
    assert (nobody.state, nobody.subjects) == ("unknown", 6)
    same = seen_before([replace(source, name="made")], True, "prepared anew", [windows], "test")
    assert (same.state, same.signals) == ("some", 6)  # a documented corpus keeps its ids
    other = seen_before([replace(source, name="tueg")], True, "another", [windows], "test")
    assert other.state == "unknown"
    assert "(it has 6 of these subjects' ids, too)" in other.text()


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
    common |= {"kernels": "ours", "compiled": False, "captured": False, "deterministic": False}
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
    monkeypatch.setattr(step, "gradients", watching(step.gradients))
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
