"""A run is scored as its trainings really predict, on its own test windows, and the first score stays the first."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from cerebro_eeg import cli
from cerebro_eeg.commands.evaluate import evaluate
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig, SignalConfig
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import CerebroError, ChannelError, CheckpointError, ConfigError, InputError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import evaluate as scoring
from cerebro_eeg.runs import finetune
from cerebro_eeg.runs.evaluate import TrainedModel, _event_threshold
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.results import FinetuneResult, TrainedResult
from cerebro_eeg.runs.score_record import read_record, summarise
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.store_predictions import start_times
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.predictions import Predictions, headline, score
from train_stores import make_store
from train_worker import MODEL

PRESET = Preset(
    MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, peak_lr=3e-3, warmup_epochs=1, epochs=2)
)


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store and runs on it, each made once; tests score copies."""
    folder = tmp_path_factory.mktemp("made")
    make_store(folder / "store", subjects=12, seconds=8)
    for name, choices in {
        "alpha": finetune.FinetuneOptions("alpha", seeds=(0, 1), steps=3),
        "folded": finetune.FinetuneOptions("folded", seeds=(0,), folds=3, steps=2),
        "level": finetune.FinetuneOptions("level", seeds=(0,), steps=2),
    }.items():
        train(folder / "store", folder / name, choices)
    return folder


def train(store, out, choices):
    finetune.finetune(store, out, PRESET, choices, Engine(device="cpu", readers=0))


@pytest.fixture
def run(made, tmp_path):
    """A copy of a run, and how to evaluate it."""

    def copy(name="alpha"):
        shutil.copytree(made / name, tmp_path / "run")
        return tmp_path / "run", made / "store"

    return copy


def judge(run, store, **options):
    return evaluate(run, store, **{"device": "cpu", "resamples": 100, **options})


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert issubclass(kind, CerebroError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


# What is scored.


def test_scores_are_of_what_the_weights_say_of_the_test_windows(run):
    folder, store = run()
    found = judge(folder, store)
    windows = find_windows(Store(store), seconds=1.0, task="alpha", split="test")
    for number, training in enumerate(found.trainings):
        model = Cerebro.from_pretrained(folder / f"seed-{number}" / "model.safetensors").eval()
        opened, said = Store(store), []
        for id in ("s10", "s4"):  # one recording at a time, with channels by name: another way through the model
            recording = opened.recordings[opened.number(id)]
            x = opened.read(recording, 0, recording.samples).T.astype(np.float32)
            alone = Cerebro.from_pretrained(
                folder / f"seed-{number}" / "model.safetensors", ch_names=recording.channels
            )
            with torch.no_grad():
                said += [*alone.eval()(torch.tensor(np.stack(np.split(x, 8, axis=1)))).softmax(-1).numpy()]
        kept = Predictions.load(folder / f"seed-{number}" / "test.npz")
        assert model.head.names == kept.names == ("slow", "fast")
        np.testing.assert_allclose(kept.output, np.stack(said), atol=2e-4)
        assert kept.truth.tolist() == windows.label.tolist() == [0, 1, 0, 1, 0, 1, 0, 1] * 2
        assert set(kept.subject) == {"sub4", "sub10"}
        assert kept.start.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] * 2
        limit = {"threshold": model.head.threshold, "chosen_on": model.head.threshold_level}
        assert training["scores"] == json.loads(json.dumps(score(kept, **limit, resamples=100).to_dict()))
    each = [t["scores"]["levels"]["window"]["values"]["auroc"]["value"] for t in found.trainings]
    of = found.summary["levels"]["window"]["values"]["auroc"]
    assert of["mean"] == pytest.approx(np.mean(each))
    assert of["std"] == pytest.approx(np.std(each, ddof=1))
    text = found.text()
    assert "2 seeds" in text
    assert "share no subject" in text
    json.dumps(found.to_dict(), allow_nan=False)


def test_validation_is_not_counted_and_agrees_with_finetune(run):
    folder, store = run()
    before = files(folder)
    found = judge(folder, store, split="validation")
    assert files(folder) == before
    assert found.scorings == 0
    for number, training in enumerate(found.trainings):
        kept = Predictions.load(folder / f"seed-{number}" / "validation.npz")
        value = training["scores"]["levels"]["window"]["values"]["auroc"]["value"]
        assert value == pytest.approx(headline(kept)[1])
        assert value == pytest.approx(
            json.loads((folder / f"seed-{number}" / "finished.json").read_text())["validation"]
        )


def test_folds_and_values(run, made, tmp_path):
    folder, store = run("folded")
    assert "never saw" in message(lambda: judge(folder, store), ChannelError)  # each fold has a montage of its own
    found = judge(folder, store, untrained="as_is")
    assert found.summary["folds"] == ["fold-1", "fold-2", "fold-3"]
    tested = [set(Predictions.load(folder / f / "seed-0" / "test.npz").subject) for f in found.summary["folds"]]
    assert sum(map(len, tested)) == len(set.union(*tested)) == 12  # every subject in just one test fold
    assert "1 seed of 3 folds" in found.text()
    shutil.copytree(made / "level", tmp_path / "values")
    values = judge(tmp_path / "values", store)
    assert values.trainings[0]["scores"]["kind"] == "regression"
    assert "R2" in values.text()
    kept = Predictions.load(tmp_path / "values" / "seed-0" / "test.npz")
    assert 90 < kept.output[:, 0].mean() < 115  # in the unit of the targets, which are 100 or 105


def test_means_over_seeds_and_folds_by_hand():
    def training(fold, seed, value):
        number = {"value": value, "low": None, "high": None}
        level = {"count": 5, "values": {"accuracy": number}, "chance": {"accuracy": 0.5}}
        scores = {"levels": {"window": level}, "notes": ["n"], "at_threshold": None}
        return {"fold": fold, "seed": seed, "events": None, "scores": scores}

    found = summarise([training(f"fold-{f}", s, v) for f, s, v in ((1, 0, 0.5), (2, 0, 0.7), (1, 1, 0.7), (2, 1, 0.9))])
    of = found["levels"]["window"]["values"]["accuracy"]
    assert of["mean"] == pytest.approx(0.7)
    assert of["std"] == pytest.approx(np.std([0.6, 0.8], ddof=1))  # of the seeds' means over folds
    assert of["std_over_folds"] == pytest.approx(np.std([0.6, 0.8], ddof=1))
    assert found["notes"] == ["n"]
    alone = summarise([training("", 0, None)])["levels"]["window"]["values"]["accuracy"]
    assert (alone["mean"], alone["std"], alone["chance"]) == (None, None, 0.5)


# An exact probe, whose seeds change nothing.


@pytest.fixture(scope="module")
def weights(made):
    """Of an encoder that was trained on all of the electrodes."""
    return made / "alpha" / "seed-0" / "model.safetensors"


def probe(made, out, start, **changes):
    lines = []
    choices = finetune.FinetuneOptions("alpha", **{"seeds": (3, 4, 5), "freeze": True, **changes})
    found = finetune.finetune(
        made / "store", out, PRESET, choices, Engine(device="cpu", readers=0), start, say=lines.append
    )
    return found, [line for line in lines if "draws nothing at random" in line]


def test_an_exact_probe_is_trained_once_for_all_seeds(made, weights, tmp_path):
    found, lines = probe(made, tmp_path / "run", weights)
    assert [one.seed for one in found.trained] == [3]
    assert sorted(path.name for path in (tmp_path / "run").glob("seed-*")) == ["seed-3"]
    assert lines == [f"note: {found.one_for_all}"]
    assert found.one_for_all.startswith("3 seeds were asked for, but the exact probe draws nothing at random: seed 3")
    scored = judge(tmp_path / "run", made / "store")
    assert [one["seed"] for one in scored.trainings] == scored.summary["seeds"] == [3]
    assert {of["std"] for of in scored.summary["levels"]["window"]["values"].values()} == {None}
    assert scored.text().count("one result and no deviation over seeds") == 1
    assert "  trainings  1 seed in " in scored.text()
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("one result and no deviation over seeds") == 1
    assert "1 seed: 1 training." in page
    assert judge(tmp_path / "run", made / "store").notes == scored.notes  # also when it is told again
    found, lines = probe(made, tmp_path / "run", weights)  # the same command finds its run
    assert [one.seed for one in found.trained] == [3]


@pytest.mark.parametrize(
    ("changes", "start"),
    [({"solver": "adamw", "steps": 1}, True), ({"freeze": False, "steps": 1}, True), ({"untrained": "as_is"}, False)],
    ids=["gradient steps", "all of the model", "random weights"],
)
def test_seeds_that_matter_are_all_trained(made, weights, tmp_path, changes, start):
    found, lines = probe(made, tmp_path / "run", weights if start else None, seeds=(3, 4), **changes)
    assert [one.seed for one in found.trained] == [3, 4]
    assert lines == []
    assert found.one_for_all is None
    hashes = {
        checkpoint.hash_tensors(checkpoint.read(Path(one.folder) / "model.safetensors")[1]) for one in found.trained
    }
    assert len(hashes) == 2


def test_one_seed_is_nothing_to_speak_of(made, weights, tmp_path):
    found, lines = probe(made, tmp_path / "run", weights, seeds=(3,))
    assert (len(found.trained), lines, found.one_for_all) == (1, [], None)


def test_copies_that_an_earlier_release_scored_are_no_spread(made, weights, tmp_path):
    """It trained and scored every seed of an exact probe; its first score is told as the one result that it is."""
    folder, store = tmp_path / "run", made / "store"
    probe(made, folder, weights)
    judge(folder, store)
    record = json.loads((folder / "test.json").read_text())
    for key in ("first", "last"):
        (one,) = record[key]["trainings"]
        copies = [{**one, "seed": seed} for seed in (3, 4, 5)]
        record[key] = {"summary": summarise(copies), "trainings": copies}
    assert record["first"]["summary"]["levels"]["window"]["values"]["auroc"]["std"] == 0
    (folder / "test.json").write_text(json.dumps(record))
    for number in (4, 5):
        shutil.copytree(folder / "seed-3", folder / f"seed-{number}")
    before = (folder / "test.json").read_bytes()
    found = judge(folder, store)
    assert not found.fresh
    assert found.summary["seeds"] == [3]
    assert found.summary["levels"]["window"]["values"]["auroc"]["std"] is None
    assert len(found.trainings) == 1
    assert json.loads((folder / "test.json").read_bytes()) == json.loads(before)  # the record itself stays
    page = (folder / "report.html").read_text()
    assert "seed 4" not in page
    assert "\u00b1 0.000" not in page


def test_the_result_of_finetune_says_that_one_stands_for_all(tmp_path):
    one = TrainedResult(str(tmp_path), "", 0, 0, "auroc", 0.8, 0.5)
    result = FinetuneResult(str(tmp_path), "eyes", "subject", (one,), 1.0, "open", "3 seeds were asked for, but ...")
    assert "  3 seeds were asked for, but ..." in result.text().splitlines()
    assert result.to_dict()["one_for_all"] == "3 seeds were asked for, but ..."


# At the threshold that predict decides by.


def decide_at(folder, *limits, level="window"):
    """The run with these thresholds in the weights of its trainings."""
    for number, limit in enumerate(limits):
        path = folder / f"seed-{number}" / "model.safetensors"
        header, tensors = checkpoint.read(path)
        head = replace(header.head, threshold=limit, threshold_level=level)
        checkpoint.save_tensors(path, tensors, replace(header, head=head))


def test_the_threshold_of_the_weights_is_scored_beside_the_most_probable_class(run):
    folder, store = run()
    limits = []
    for number in (0, 1):  # such that some are above and some below
        said = Predictions.load(folder / f"seed-{number}" / "validation.npz").output[:, 1]
        limits.append(float(np.median(said)))
    decide_at(folder, *limits)
    found = judge(folder, store)
    each = []
    for number, limit in enumerate(limits):
        kept = Predictions.load(folder / f"seed-{number}" / "test.npz")
        said = kept.output[:, 1].astype(np.float64) >= limit
        at = found.trainings[number]["scores"]["at_threshold"]
        assert (at["threshold"], at["chosen_on"], at["positive"]) == (limit, "window", "fast")
        assert at["levels"]["window"]["confusion"] == sk.confusion_matrix(kept.truth, said).tolist()
        each.append(sk.recall_score(kept.truth, said))
    of = found.summary["at_threshold"]
    assert of["thresholds"] == limits
    assert list(of["levels"]) == ["window"]  # recordings have windows of both classes
    assert of["levels"]["window"]["values"]["sensitivity"]["mean"] == pytest.approx(np.mean(each))
    text = found.text()
    span = " to ".join(sorted({f"{limit:.3f}" for limit in limits}))
    assert f"at the threshold chosen on validation ({span}, over windows); positive: fast" in text
    assert text.index("Cohen's kappa") < text.index("at the threshold") < text.index("sensitivity")
    assert "positive:  fast" in text


def test_the_aupr_of_an_earlier_release_gets_the_name_of_what_it_is(run):
    """It had one name for the AUPR of the positive of two classes and for the mean over more."""
    folder, store = run()
    first = judge(folder, store)
    older = lambda values: {"aupr" if k == "aupr_positive" else k: v for k, v in values.items() if k != "aupr_macro"}  # noqa: E731
    for path in (folder / "test.json", *folder.glob("seed-*/test.json")):
        record = json.loads(path.read_text())
        record["format"] = 2
        for kept in (record["first"], record["last"]):
            for one in kept.get("trainings", [kept]):
                for level in one["scores"]["levels"].values():
                    level.update(values=older(level["values"]), chance=older(level["chance"]))
                for row in one["scores"]["by_subject"]:
                    row["values"] = older(row["values"])
            for level in kept.get("summary", {"levels": {}})["levels"].values():
                level["values"] = older(level["values"])
        path.write_text(json.dumps(record))
    told = judge(folder, store)
    now, then = (found.summary["levels"]["window"]["values"] for found in (first, told))
    assert then == {name: of for name, of in now.items() if name != "aupr_macro"}
    assert "AUPR (positive class)" in told.text()
    assert "AUPR (positive class)" in (folder / "report.html").read_text()
    assert [line for line in told.text().splitlines() if "AUPR " in line and "AUPR (" not in line] == []
    # A training that is scored now beside one that was scored then: only numbers that both have are averaged.
    (folder / "test.json").unlink()
    (folder / "seed-1" / "test.json").unlink()
    assert "aupr_macro" not in judge(folder, store).summary["levels"]["window"]["values"]
    assert "aupr_macro" in judge(folder, store, again=True).summary["levels"]["window"]["values"]


def test_weights_without_a_threshold_are_scored_as_before(run):
    folder, store = run()
    decide_at(folder, None, None)
    found = judge(folder, store)
    assert "at_threshold" not in found.summary
    assert "at the threshold" not in found.text()
    assert "older than scores" not in judge(folder, store).text()


def test_a_score_of_the_first_format_is_still_the_first_score(run, monkeypatch):
    folder, store = run()
    first = judge(folder, store)
    for path in (folder, folder / "seed-0", folder / "seed-1"):
        record = json.loads((path / "test.json").read_text())
        record["format"] = 1
        for kept in (record["first"], record["last"]):
            kept.get("summary", {}).pop("at_threshold", None)
            for one in kept.get("trainings", [kept]):
                del one["scores"]["at_threshold"]
        (path / "test.json").write_text(json.dumps(record))
    monkeypatch.setattr(scoring, "predict_training", lambda *_: pytest.fail("the test set was looked at again"))
    told = judge(folder, store)
    assert (told.scorings, told.fresh) == (1, False)
    assert told.summary == {name: value for name, value in first.summary.items() if name != "at_threshold"}
    assert "older than scores at the threshold" in told.text()
    assert judge(folder, store).text() == told.text()
    monkeypatch.undo()
    later = judge(folder, store, again=True)
    assert later.summary["at_threshold"] == first.summary["at_threshold"]
    assert "at_threshold" not in later.first
    assert judge(folder, store).summary == told.summary


# Once.


def test_the_test_set_is_scored_once(run, monkeypatch):
    folder, store = run()
    first = judge(folder, store)
    assert (first.scorings, first.fresh) == (1, True)
    before = files(folder)
    monkeypatch.setattr(scoring, "predict_training", lambda *_: pytest.fail("the test set was looked at again"))
    second = judge(folder, store, resamples=500)  # another way of scoring changes nothing either
    assert (second.scorings, second.fresh) == (1, False)
    assert "first score, unchanged" in second.text()
    assert (second.summary, list(second.trainings)) == (first.summary, list(first.trainings))
    assert files(folder) == before


def test_finetune_says_of_a_scored_run_nothing_that_is_no_longer_true(run):
    folder, store = run()
    trained = TrainedResult("seed-0", "", 0, 3, "auroc", 0.75, 0.593)
    result = FinetuneResult(str(folder), "alpha", "subject", (trained,), 1.0, "fast")
    assert "validation auroc 0.7500, threshold 0.593, 3 steps" in result.text()
    assert "positive: fast" in result.text()
    assert "was not looked at" in result.text()
    judge(folder, store)
    assert "was not looked at" not in result.text()


def test_again_is_counted_and_the_first_score_stays(run):
    folder, store = run()
    first = judge(folder, store)
    kept = (folder / "seed-0" / "test.npz").read_bytes()
    shutil.copy(folder / "seed-1" / "model.safetensors", folder / "seed-0" / "model.safetensors")  # other weights
    noticed = judge(folder, store)
    assert noticed.summary == first.summary
    assert "weights of seed-0 have changed" in noticed.text()
    later = judge(folder, store, again=True)
    assert (later.scorings, later.fresh) == (2, True)
    assert "2 times" in later.text()
    assert later.first == first.summary
    assert later.summary != first.summary
    assert (folder / "seed-0" / "test.npz").read_bytes() == kept
    record = json.loads((folder / "test.json").read_text())
    assert (record["scorings"], record["first"]["summary"]) == (2, first.summary)
    told = judge(folder, store)
    assert (told.summary, told.scorings, told.fresh) == (first.summary, 2, False)
    assert "2 scorings so far" in told.text()


def test_stopping_halfway_does_not_hide_a_scoring(run, monkeypatch):
    folder, store = run()
    real, stop_at = scoring.predict_training, 1

    def stops(judged, training):
        if training.seed == stop_at:
            raise KeyboardInterrupt
        return real(judged, training)

    monkeypatch.setattr(scoring, "predict_training", stops)
    with pytest.raises(KeyboardInterrupt):
        judge(folder, store)
    scored = (folder / "seed-0" / "test.json").read_bytes()
    monkeypatch.setattr(scoring, "predict_training", real)
    whole = judge(folder, store)  # goes on where it was stopped: the first scoring comes to its end
    assert (whole.scorings, whole.fresh) == (1, True)
    assert (folder / "seed-0" / "test.json").read_bytes() == scored
    monkeypatch.setattr(scoring, "predict_training", stops)
    stop_at = 0
    with pytest.raises(KeyboardInterrupt):
        judge(folder, store, again=True)
    assert judge(folder, store).scorings == 2  # whatever was seen of it
    assert judge(folder, store).summary == whole.summary


def test_deleted_records_come_back_from_what_is_left(run, monkeypatch):
    folder, store = run()
    first = judge(folder, store)
    monkeypatch.setattr(scoring, "predict_training", lambda *_: pytest.fail("the test set was looked at again"))
    (folder / "test.json").unlink()
    told = judge(folder, store)
    assert (told.summary, told.fresh) == (first.summary, False)
    for path in (folder, folder / "seed-0", folder / "seed-1"):
        (path / "test.json").unlink()
    told = judge(folder, store)  # from test.npz
    assert told.summary == first.summary
    assert "seed-0 had test.npz but no test.json" in told.text()
    for path in (folder / "seed-0", folder / "seed-1"):
        (path / "test.json").unlink()
        (path / "test.npz").unlink()
    assert judge(folder, store).summary == first.summary  # the run's record alone


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1, "scorings": 0, "first": {}, "last": {}}'])
def test_a_damaged_record_is_no_licence_to_score(run, text):
    folder, store = run()
    judge(folder, store)
    (folder / "test.json").write_text(text)
    assert "damaged" in message(lambda: judge(folder, store), ConfigError)
    assert "damaged" in message(lambda: judge(folder, store, again=True), ConfigError)


# What is refused.


def test_another_store_is_not_taken_for_the_own_test(run, tmp_path):
    folder, _ = run()
    make_store(tmp_path / "other", subjects=6)
    found = judge(folder, tmp_path / "other")
    assert found.external["sha256"] == Store(tmp_path / "other").hash()
    assert (found.external["overlap"]["certain"], found.trainings[0]["scores"]["subjects"]) == (5, 1)
    assert not (folder / "test.json").exists()


def test_unfinished_trainings_are_named(run):
    folder, store = run()
    (folder / "seed-1" / "model.safetensors").unlink()
    text = message(lambda: judge(folder, store), ConfigError)
    assert "1 of 2 trainings have saved no weights (seed-1)" in text
    assert not list(folder.rglob("test.*"))


def test_what_is_no_run_of_finetune_is_refused(run, tmp_path):
    folder, store = run()
    weights = folder / "seed-0" / "model.safetensors"
    assert "is a checkpoint" in message(lambda: judge(weights, store), ConfigError)
    (tmp_path / "weights").mkdir()
    shutil.copy(weights, tmp_path / "weights")
    assert "is a checkpoint" in message(lambda: judge(tmp_path / "weights", store), ConfigError)
    assert "no run.json" in message(lambda: judge(tmp_path / "nothing", store), ConfigError)
    assert "one training of a run" in message(lambda: judge(folder / "seed-0", store), ConfigError)
    described = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**described, "verb": "pretrain", "settings": {}}))
    assert "pre-training run" in message(lambda: judge(folder, store), ConfigError)


def test_a_task_without_test_windows_and_other_counts(run):
    folder, store = run()
    described = json.loads((folder / "run.json").read_text())
    described["settings"]["windows"] = [[64, 16, 17]]
    (folder / "run.json").write_text(json.dumps(described))
    assert "had 17 when the run was trained" in message(lambda: judge(folder, store), InputError)


def test_weights_that_answer_something_else_are_refused(run, made):
    folder, store = run()
    shutil.copy(made / "level" / "seed-0" / "model.safetensors", folder / "seed-0" / "model.safetensors")
    assert "do not answer slow, fast" in message(lambda: judge(folder, store), CheckpointError)


def test_few_resamples_and_events_of_values_are_refused(run):
    folder, store = run("level")
    assert "at least 100" in message(lambda: judge(folder, store, resamples=10), ConfigError)
    assert "two classes" in message(lambda: judge(folder, store, events=True, split="validation"), ConfigError)


# Seizures.


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    """Recordings of seizures, which are large, all with a gap; the fifth and the sixth have a channel of their own."""
    folder = tmp_path_factory.mktemp("clinic")
    task = {"kind": "classification", "names": ["background", "seizure"], "seconds": 5.0, "stride": 5.0}
    settings = {"split_unit": "subject", "signal": to_dict(SignalConfig()), "recipe": "made"}
    settings["tasks"] = {"seizure": task, "odd": task}
    create_store(folder / "store", "clinic", settings)
    rng = np.random.default_rng(0)
    with ShardWriter(folder / "store", "w") as writer:
        for number, split in enumerate(("train", "train", "val", "test", "test", None)):
            names = {4: ("Fp1", "C1"), 5: ("Fp1", "Oz")}.get(number, ("Fp1", "Cz"))
            with writer.recording(f"rec{number}", names, 256.0) as draft:
                for onset, seconds in ((0.0, 100), (400.0, 100)):  # five minutes between are lost
                    draft.segment(onset)
                    time = np.arange(seconds * 256) / 256
                    x = rng.normal(0, 5, (len(time), len(names)))
                    x[(time >= 40) & (time < 60)] += 80 * np.sin(2 * np.pi * 3 * time[(time >= 40) & (time < 60), None])
                    draft.write(x.astype(np.float32))
                spans = [(a + o, b + o, n) for o in (0, 400) for a, b, n in ((0, 40, 0), (40, 60, 1), (60, 100, 0))]
                labels = [Interval(a, b, split, task["names"][n]) for a, b, n in spans]
                tasks = {4: ("seizure",), 5: ()}.get(number, ("seizure", "odd"))
                draft.commit(native_sfreq=256.0, subject=f"s{number}", labels=dict.fromkeys(tasks, labels))
    train(folder / "store", folder / "odd", finetune.FinetuneOptions("odd", steps=4))
    return folder


def test_start_times_count_gaps(clinic):
    store = Store(clinic / "store")
    windows = find_windows(store, seconds=5.0, task="odd", split="test")
    times = start_times(store, windows)
    assert times.tolist() == [*range(0, 100, 5), *range(400, 500, 5)]
    assert windows.start.max() / 256 == 195  # the store itself has no gap


def test_events_of_a_seizure_task(clinic, tmp_path):
    shutil.copytree(clinic / "odd", tmp_path / "run")
    found = judge(tmp_path / "run", clinic / "store")
    events = found.trainings[0]["events"]
    assert (events["name"], events["seizures"]) == ("seizure", 2)  # more than 90 s apart, because of the gap
    assert events["hours"] == pytest.approx(200 / 3600)  # what was lost is no time without alarms
    kept = Predictions.load(tmp_path / "run" / "seed-0" / "test.npz")
    threshold = events["threshold"]
    chosen = Predictions.load(tmp_path / "run" / "seed-0" / "validation.npz")
    truth, probability = chosen.truth == 1, chosen.output[:, 1]
    youden = [(probability[truth] >= t).mean() - (probability[~truth] >= t).mean() for t in probability]
    best = (probability[truth] >= threshold).mean() - (probability[~truth] >= threshold).mean()
    assert best == pytest.approx(max(0.0, *youden))  # what separates the validation windows best
    detected = (kept.output[:, 1] >= threshold).any()
    rows = (tmp_path / "run" / "seed-0" / "test-events" / "rec3_events.tsv").read_text().splitlines()
    assert rows[1].split("\t")[2] == ("sz" if detected else "bckg")
    assert all(row.endswith("2000-01-01 00:00:00\t500.00") for row in rows[1:])
    text = found.text()
    assert threshold == found.trainings[0]["scores"]["at_threshold"]["threshold"]  # one is enough: predict's
    value = found.summary["levels"]["window"]["values"]["auroc"]["mean"]
    assert f"  primary    AUROC by window: {value:.3f}, without a threshold\n" in text
    blocks = {block.splitlines()[0]: block for block in text.split("\n\n")[1:]}
    rules = [
        "without a threshold",
        "by the most probable class (a threshold of 0.5)",
        f"as predict decides, at the threshold chosen on validation ({threshold:.3f}, over windows); positive: seizure",
        f"events of seizure (SzCORE), at the same threshold ({threshold:.3f})",
    ]
    assert list(blocks)[:-1] == rules
    assert list(blocks)[-1].startswith("beside rivals on the same test windows (AUROC by window; ours ")
    held = [[n for n in ("AUROC", "kappa", "specificity", "false alarms") if n in block] for block in blocks.values()]
    assert held == [["AUROC"], ["kappa"], ["specificity"], ["false alarms"], ["AUROC"]]
    page = (tmp_path / "run" / "report.html").read_text()
    test = page[page.index("<h2>Test") : page.index("<h2>Validation")]
    heads = re.findall(r"<h3>(.*?)</h3>", test)
    assert heads[:4] == ["Beside simple features", "Confusion", "Subjects", "All scores"]
    said = [f"{head[0].lower()}{head[1:]}" for head in heads[4:]]
    assert said == [rule.split("; positive")[0] for rule in rules[2:]]
    for rule in rules[:2]:
        assert f": {rule};" in test.partition("All scores")[2]
    assert "at the threshold chosen on validation" in test.partition("<h3>Confusion</h3>")[2]  # over its second matrix
    asked = judge(tmp_path / "run", clinic / "store", split="validation")
    assert asked.trainings[0]["events"]["seizures"] == 2


def test_without_the_package_for_events_there_are_window_scores_and_events_follow(clinic, tmp_path, monkeypatch):
    """The lack is said before training and before scoring; later the kept predictions give the events."""
    lines = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "timescoring", None)  # as if it were not installed
        chosen = finetune.FinetuneOptions("odd", steps=4)
        finetune.finetune(clinic / "store", tmp_path / "run", PRESET, chosen, Engine(device="cpu"), say=lines.append)
        need = (
            "note: evaluate needs the package timescoring to score events, which is not here; pip install timescoring"
        )
        assert need in lines
        lines.clear()
        found = scoring.evaluate(tmp_path / "run", clinic / "store", device="cpu", resamples=100, say=lines.append)
        assert lines[0].startswith("note: the scores of events are left out, for want of the package timescoring")
        assert found.trainings[0]["events"] is None
        assert any("pip install timescoring" in note for note in found.notes)
        assert "events" not in found.summary
        again = scoring.evaluate(tmp_path / "run", clinic / "store", device="cpu", resamples=100)
        assert (again.fresh, again.notes) == (False, found.notes)
        with pytest.raises(
            ConfigError, match="evaluate --events needs the package timescoring, which is not installed"
        ):
            scoring.evaluate(tmp_path / "run", clinic / "store", device="cpu", events=True)
    assert (tmp_path / "run" / "seed-0" / "test-events" / "rec3_events.tsv").exists()
    later = scoring.evaluate(tmp_path / "run", clinic / "store", device="cpu", resamples=100)
    assert (later.fresh, later.scorings, later.notes) == (False, 1, ())
    assert later.trainings[0]["scores"] == found.trainings[0]["scores"]
    shutil.copytree(clinic / "odd", tmp_path / "whole")
    whole = scoring.evaluate(tmp_path / "whole", clinic / "store", device="cpu", resamples=100)
    assert later.trainings[0] == whole.trainings[0]
    assert later.summary == whole.summary
    assert read_record(tmp_path / "run" / "seed-0").first == later.trainings[0]


@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
def test_packages_that_are_needed_late_are_looked_for_first(clinic, tmp_path, monkeypatch, verb, capsys):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command = ["finetune", "--task", "odd", "--from", "none", "--out", str(tmp_path / "run"), str(clinic / "store")]
    if verb == "evaluate":
        command = ["evaluate", str(clinic / "odd"), str(clinic / "store")]
    assert cli.main([*command, "--device", "cpu"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("note: there will be no report.html, for want of the package matplotlib")
    words = "needs the package scikit-learn, which is not installed; pip install scikit-learn"
    assert said[1] == f"cerebro-eeg: error: {verb} {words}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("why", ["chosen over recordings", "the first class", "none chosen"])
def test_events_have_a_threshold_of_their_own_where_there_is_no_other_of_windows(clinic, tmp_path, why):
    shutil.copytree(clinic / "odd", tmp_path / "run")
    path = tmp_path / "run" / "seed-0" / "model.safetensors"
    header, tensors = checkpoint.read(path)
    change = {"threshold": None} if why == "none chosen" else {"threshold": 0.987, "threshold_level": "recording"}
    if why != "the first class":
        checkpoint.save_tensors(path, tensors, replace(header, head=replace(header.head, **change)))
    training = TrainedModel(RunFolder(path.parent), path, "", 0, None)
    kept = Predictions.load(path.parent / "validation.npz")
    positive = 0 if why == "the first class" else 1
    false, true, limits = sk.roc_curve(kept.truth == positive, kept.output[:, positive], drop_intermediate=False)
    assert _event_threshold(training, kept.names, positive) == min(1.0, limits[np.argmax(true - false)])


def test_events_where_no_class_is_a_seizure(run):
    folder, store = run()
    found = judge(folder, store, split="validation")
    assert found.trainings[0]["events"] is None
    found = judge(folder, store, split="validation", events=True)
    assert found.trainings[0]["events"]["name"] == "fast"
    assert not (folder / "seed-0" / "test-events").exists()


def test_electrodes_that_no_window_trained_need_a_policy(clinic, tmp_path):
    train(
        clinic / "store", tmp_path / "run", finetune.FinetuneOptions("seizure", steps=2)
    )  # C1 is in the test windows only
    assert "C1" in message(lambda: judge(tmp_path / "run", clinic / "store"), ChannelError)
    assert not (tmp_path / "run" / "test.json").exists()
    found = judge(tmp_path / "run", clinic / "store", untrained="nearest")  # Oz, with no near one, is in none
    assert found.trainings[0]["scores"]["subjects"] == 2
