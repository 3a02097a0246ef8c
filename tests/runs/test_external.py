"""Data from elsewhere: another store is scored as itself, once, with every difference and every overlap named."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import train_stores
from cerebro_eeg import cli
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig, SignalConfig
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import CerebroError, ChannelError, ConfigError, InputError, StoreError
from cerebro_eeg.report.finetune import report_finetune
from cerebro_eeg.runs import evaluate as scoring
from cerebro_eeg.runs import finetune
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.verify import verify
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.predictions import Predictions
from train_stores import RATE, TASKS, make_store
from train_worker import MODEL

ROOT = Path(__file__).parent.parent.parent
PRESET = Preset(
    MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, peak_lr=3e-3, warmup_epochs=1, epochs=2)
)
THREE = ("Fp1", "Cz", "O1")


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with one montage, and runs on it, each made once; tests score copies."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stores, "MONTAGES", [THREE])
        make_store(folder / "store", subjects=36, seconds=4)
    for name, choices in {
        "alpha": finetune.FinetuneOptions("alpha", seeds=(0, 1), steps=3),
        "level": finetune.FinetuneOptions("level", steps=2),
        "folded": finetune.FinetuneOptions("folded", folds=3, steps=1),
    }.items():
        train(folder / "store", folder / name, choices)
    weights = folder / "alpha" / "seed-0" / "model.safetensors"
    train(
        folder / "store", folder / "hybrid", finetune.FinetuneOptions("alpha", freeze=True, readout="hybrid"), weights
    )
    train(
        folder / "store", folder / "simple", finetune.FinetuneOptions("alpha", freeze=True, readout="simple"), weights
    )
    return folder


def train(store, out, choices, start=None, rivals=False):
    finetune.finetune(store, out, PRESET, choices, Engine(device="cpu", readers=0), start, rivals=rivals)


@pytest.fixture
def run(made, tmp_path):
    """A copy of a run."""

    def copy(name="alpha"):
        shutil.copytree(made / name, tmp_path / "run")
        return tmp_path / "run"

    return copy


def judge(run, store, **options):
    return scoring.evaluate(run, store, **{"device": "cpu", "resamples": 100, "rivals": False, **options})


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    assert issubclass(kind, CerebroError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def copied(source, folder, only, *, tasks=TASKS, key=None, dataset="elsewhere", names=None, renamed=None, keep=None):
    """A store with some recordings of another, sample by sample: other ids and class names on request."""
    old = Store(source)
    create_store(
        folder,
        dataset,
        {"tasks": tasks, "split_unit": "subject", "signal": to_dict(SignalConfig()), "recipe": "made"},
        key,
    )
    with ShardWriter(folder, "w") as writer:
        for record in old.recordings:
            if not only(record):
                continue
            id, subject = (record.id, record.subject) if names is None else names(record)
            chosen = range(len(record.channels)) if keep is None else [record.channels.index(c) for c in keep(record)]
            with writer.recording(id, tuple(record.channels[c] for c in chosen), record.sfreq) as draft:
                draft.segment(0.0)
                draft.write(old.read(record, 0, record.samples)[:, list(chosen)].astype(np.float32))
                labels = {
                    task: [
                        Interval(i.start, i.stop, i.split, (renamed or {}).get(i.label, i.label), i.values) for i in of
                    ]
                    for task, of in record.labels.items()
                }
                draft.commit(native_sfreq=record.native_sfreq, subject=subject, labels=labels)
    return folder


def of_split(*splits):
    return lambda record: record.labels["alpha"][0].split in splits


def stranger(folder, *, names=THREE, classes=("slow", "fast"), kind="classification", subjects=4, rate=RATE, **more):
    """A store of other people: seconds of 6 Hz and of 12 Hz in turns, labelled by ``classes``."""
    tasks = {"alpha": {"kind": kind, "names": list(classes), "seconds": 1.0, "stride": 1.0, **more.pop("declared", {})}}
    signal = {**to_dict(SignalConfig()), "sfreq": rate, **more.pop("signal", {})}
    create_store(folder, "clinic", {"tasks": tasks, "split_unit": "subject", "signal": signal}, more.pop("key", None))
    loud, length, native = more.pop("loud", 1.0), more.pop("length", 1.0), more.pop("native", rate)
    assert not more
    with ShardWriter(folder, "w") as writer:
        for number in range(subjects):
            montage = names[number % len(names)] if isinstance(names[0], tuple) else names
            rng, time = np.random.default_rng([9, number]), np.arange(int(6 * rate)) / rate
            fast = time.astype(int) % 2 == 1
            x = 20 * np.sin(2 * np.pi * np.where(fast, 12.0, 6.0) * time)[:, None] + rng.normal(0, 4, (len(time), 1))
            x = loud * (x * rng.uniform(0.5, 1.5, len(montage)) + rng.normal(0, 4, (len(time), len(montage))))
            with writer.recording(f"c{number}", montage, rate) as draft:
                draft.segment(0.0)
                draft.write(x.astype(np.float32))
                spans = [
                    Interval(float(k), k + length, ("a", "b")[number % 2], classes[k % len(classes)]) for k in range(6)
                ]
                draft.commit(native_sfreq=native, subject=f"clinic{number}", labels={"alpha": spans})
    return folder


# What is scored


@pytest.mark.parametrize("name", ["alpha", "level", "hybrid"])
def test_a_store_of_the_own_test_subjects_gives_exactly_the_own_test_score(run, made, tmp_path, name):
    folder = run(name)
    other = copied(made / "store", tmp_path / "other", of_split("test"))
    found, own = judge(folder, other), judge(folder, made / "store")
    assert list(found.trainings) == list(own.trainings)
    assert found.summary == own.summary
    assert (found.external["overlap"]["certain"], own.external) == (0, None)
    for place in folder.glob("external/*/seed-*"):
        kept, mine = (Predictions.load(of / "test.npz") for of in (place, folder / place.name))
        np.testing.assert_array_equal(kept.output, mine.output)
    assert f"external data elsewhere ({Store(other).hash()[:8]}), task " in found.text()
    json.dumps(found.to_dict(), allow_nan=False)


def test_classes_are_matched_by_name_and_by_what_the_user_says(run, made, tmp_path):
    folder = run()
    own = judge(folder, made / "store")
    turned = {"alpha": {**TASKS["alpha"], "names": ["fast", "slow"]}}
    for number, (tasks, renamed, classes) in enumerate(
        [
            (turned, {}, ()),
            ({"alpha": {**TASKS["alpha"], "names": ["lent", "rapid"]}}, {"slow": "lent", "fast": "rapid"}, None),
        ]
    ):
        tasks = {**TASKS, **tasks}
        other = copied(made / "store", tmp_path / f"o{number}", of_split("test"), tasks=tasks, renamed=renamed)
        if classes is None:
            said = message(lambda store=other: judge(folder, store), InputError)
            assert "has no class of the run: it has lent, rapid and the run has slow, fast" in said
            classes = ("lent=slow", "rapid=fast")
        found = judge(folder, other, classes=classes)
        assert list(found.trainings) == list(own.trainings)
        assert (
            found.external["classes"] == {"fast": "fast", "slow": "slow"}
            if not renamed
            else {
                "lent": "slow",
                "rapid": "fast",
            }
        )
        text = found.text()
        assert "fast stays the positive one" in text if not renamed else "classes: lent as slow, rapid as fast" in text


def test_classes_that_the_run_does_not_know_have_to_be_named(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other", classes=("slow", "Fast", "noise"))
    said = message(lambda: judge(folder, store), InputError)
    assert (
        "16 windows of clinic, task alpha, all splits are of classes that the run does not know (Fast, noise)" in said
    )
    assert "--classes Fast=fast noise=..., or Fast= to leave them out" in said
    for wrong, words in {
        "Fast": "takes THEIRS=OURS",
        "quick=fast": "the store has no 'quick'",
        "Fast=quick": "the run has no 'quick'; its classes are slow, fast",
    }.items():
        assert words in message(lambda one=wrong: judge(folder, store, classes=[one]), ConfigError)
    assert "twice" in message(lambda: judge(folder, store, classes=["Fast=fast", "Fast="]), ConfigError)
    found = judge(folder, store, classes=["Fast=fast", "noise="])
    assert found.trainings[0]["scores"]["windows"] == 4 * 4  # of six seconds two are noise
    assert "windows of noise are left out" in found.text()
    both = judge(folder, store, classes=["Fast=fast", "noise=fast"], again=True)
    assert [row["windows"] for row in both.trainings[0]["scores"]["classes"]] == [8, 16]


def test_a_missing_class_leaves_scores_out_and_says_so(run, tmp_path):
    found = judge(run(), stranger(tmp_path / "other", classes=("slow",)))
    values = found.summary["levels"]["window"]["values"]
    assert values["auroc"]["mean"] is None
    assert values["accuracy"]["mean"] is not None
    assert "classes: no window is of fast; scores that need it are n/a or leave it out" in found.text()


def test_targets_are_matched_by_name_in_the_units_of_the_run(run, made, tmp_path):
    folder = run("level")
    own = judge(folder, made / "store")
    declared = {"kind": "regression", "names": ["z", "Y"], "seconds": 1.0, "stride": 1.0}
    other = copied(made / "store", tmp_path / "other", of_split("test"), tasks={**TASKS, "level": declared})
    assert "has no target of the run" in message(lambda: judge(folder, other), InputError)
    found = judge(folder, other, classes=["Y=y"])  # the second of two, as in the run
    mine, theirs = (of.summary["levels"]["window"]["values"] for of in (own, found))
    for name in ("mean", "low", "high", "chance"):
        assert theirs["rmse y"][name] == pytest.approx(mine["rmse y"][name], rel=1e-12)
    assert "rmse x" not in theirs
    text = found.text()
    assert "the store has no x, so the run's answers for it are not scored" in text
    assert "the run does not answer z" in text
    assert "in the run's units" in text


def test_splits_of_the_other_store(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other", subjects=5)
    assert judge(folder, store).trainings[0]["scores"]["subjects"] == 5
    part = judge(folder, store, split="b")
    assert part.trainings[0]["scores"]["subjects"] == 2
    assert "split b" in part.text()
    assert "no split 'test'; expected one of a, b, all" in message(
        lambda: judge(folder, store, split="test"), InputError
    )
    assert sorted(p.name.split("-", 1)[1] for p in (folder / "external").iterdir()) == ["alpha-all", "alpha-b"]
    assert "scored on 1 other external set, too" in part.text()


def test_every_fold_answers_for_all_of_the_other_store(run, tmp_path):
    store = stranger(tmp_path / "other")
    found = judge(run("folded"), store, task="alpha")
    assert found.summary["folds"] == ["fold-1", "fold-2", "fold-3"]
    assert {one["scores"]["windows"] for one in found.trainings} == {24}


def test_another_task_of_the_own_store_is_external_and_leaves_out_who_was_learned_from(run, made):
    folder = run()
    said = message(lambda: judge(folder, made / "store", task="third"), InputError)
    assert "has no class of the run" in said
    found = judge(folder, made / "store", task="third", classes=["a=slow", "b=fast", "c="])
    assert found.external["overlap"]["left_out"] == 30  # of 36 subjects six are for testing
    assert set(Predictions.load(next(folder.glob("external/*/seed-0/test.npz"))).subject) == {
        f"sub{k}" for k in range(4, 36, 6)
    }
    assert "is a regression and the run learned a classification" in message(
        lambda: judge(folder, made / "store", task="level"), InputError
    )


def test_options_for_other_stores_are_refused_for_the_own_one(run, made, tmp_path):
    folder, store = run(), made / "store"
    assert "expected test or validation" in message(lambda: judge(folder, store, split="train"), ConfigError)
    assert "are for others" in message(lambda: judge(folder, store, new_subjects=True), ConfigError)
    assert "leave it out" in message(lambda: judge(folder, store, trained_on=store), ConfigError)
    other = stranger(tmp_path / "other")
    said = message(lambda: judge(folder, other, trained_on=other), InputError)
    assert Store(other).hash()[:16] in said
    assert Store(store).hash()[:16] in said
    assert "no task 'eyes'; its tasks are: alpha" in message(lambda: judge(folder, other, task="eyes"), InputError)
    assert not (folder / "external").exists()


# Differences


def test_differences_are_said_before_anything_is_scored(run, tmp_path, monkeypatch):
    store = stranger(
        tmp_path / "other",
        names=("Fp1", "Cz", "C4"),
        signal={"lowpass": 40.0, "reference": "average"},
        declared={"seconds": 2.0, "labels": "majority"},
        loud=1000.0,
        native=64.0,
    )
    lines = []
    monkeypatch.setattr(scoring, "predict_training", lambda *_: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception, match="stop here"):
        judge(run(), store, untrained="as_is", say=lines.append)
    for words in (
        "windows: 1 s as in the run; the task of the store has 2 s",
        "labelled by 'majority', as the store says; in the run by 'interval'",
        "lowpass is 40 here and 75 in training",
        "reference is average here and as_recorded in training",
        "recorded at 64 Hz here and at 256 Hz in training, so some signals end at 28.8 Hz",
        "is the unit right?",
        "1 of the 3 of training are missing: O1",
        "1 that no training recording had: C4",
    ):
        assert any(words in line for line in lines), words


def test_no_difference_is_invented(run, tmp_path):
    assert judge(run(), stranger(tmp_path / "other")).external["differences"] == []


def test_another_rate_and_windows_that_are_too_long_are_refused(run, tmp_path):
    folder = run()
    said = message(lambda: judge(folder, stranger(tmp_path / "slow", rate=128.0)), InputError)
    assert "has 128 Hz and the run was trained at 256; prepare it at 256 Hz" in said
    said = message(lambda: judge(folder, stranger(tmp_path / "short", length=0.5)), InputError)
    assert "no labelled window of 1 s, the length of the run's windows, is in clinic" in said


def test_electrodes_that_no_window_trained_need_a_policy(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other", names=("Fp1", "Cz", "C4"))
    assert "C4" in message(lambda: judge(folder, store), ChannelError)
    assert not list(folder.glob("external/*"))  # nothing was looked at
    assert judge(folder, store, untrained="drop").trainings[0]["scores"]["windows"] == 24
    told = judge(folder, store, untrained="as_is")  # the first score stays
    assert not told.fresh
    assert "untrained was drop and is now as_is; this score is the first one" in told.text()


def test_a_head_of_fixed_channels_needs_them(run, tmp_path):
    folder = run("hybrid")
    said = message(lambda: judge(folder, stranger(tmp_path / "none", names=("Fp1", "O1"))), InputError)
    assert "the head reads 3 channels, and no recording of clinic has all of them; missing: Cz" in said
    assert "mean or moments" in said
    some = stranger(tmp_path / "some", names=(THREE, ("Fp1", "O1")), subjects=6)
    found = judge(folder, some)
    assert found.exit_code == 6
    assert found.external["unreadable"] == 3
    assert "3 of 6 recordings are left out, because they lack channels that the head reads: Cz of its 3" in found.text()
    assert found.trainings[0]["scores"]["subjects"] == 3
    whole = judge(folder, stranger(tmp_path / "whole", names=("Cz", "O1", "Fp1")))
    assert whole.exit_code == 0


def test_a_head_without_encoder_takes_further_electrodes(run, tmp_path):
    store = stranger(tmp_path / "other", names=("C4", *THREE))
    found = judge(run("simple"), store)
    plain = judge(tmp_path / "run", stranger(tmp_path / "plain"))
    assert "1 that no training recording had: C4" in found.text()
    assert plain.trainings[0]["scores"]["windows"] == found.trainings[0]["scores"]["windows"]


# Once


def test_each_store_is_scored_once_and_the_own_test_is_untouched(run, made, tmp_path, monkeypatch):
    folder, store = run(), stranger(tmp_path / "other")
    judge(folder, made / "store")
    own = files(folder)
    first = judge(folder, store)
    assert (first.scorings, first.fresh) == (1, True)
    assert {name: data for name, data in files(folder).items() if not name.startswith("external")} == own
    before = files(folder)
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "predict_training", lambda *_: pytest.fail("it was looked at again"))
        told = judge(folder, store, resamples=500)
        assert (told.scorings, told.fresh, told.summary, told.external) == (1, False, first.summary, first.external)
        assert "first score, unchanged" in told.text()
        assert files(folder) == before
    shutil.copy(folder / "seed-1" / "model.safetensors", folder / "seed-0" / "model.safetensors")  # other weights
    later = judge(folder, store, again=True)
    assert (later.scorings, later.first) == (2, first.summary)
    assert later.summary != first.summary
    assert judge(folder, store).summary == first.summary
    assert "weights of seed-0 have changed" in judge(folder, store).text()
    other = judge(folder, stranger(tmp_path / "third", subjects=5))
    assert (other.scorings, other.fresh) == (1, True)  # another store is not this one


def test_a_kill_between_predictions_and_record_goes_on_with_the_first_predictions(run, tmp_path, monkeypatch):
    folder, store = run(), stranger(tmp_path / "other", classes=("slow", "Fast"))
    with monkeypatch.context() as patch:

        def killed(*_):
            raise KeyboardInterrupt

        patch.setattr(scoring, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            judge(folder, store, classes=["Fast=fast"])
    (place,) = (folder / "external").iterdir()
    assert sorted(p.name for p in (place / "seed-0").iterdir()) == ["SHA256SUMS", "test.npz"]
    seen = (place / "seed-0" / "test.npz").read_bytes()
    assert not verify([folder]).exit_code
    said = message(lambda: judge(folder, store, classes=["Fast=slow"]), ConfigError)
    assert "was begun and stopped: classes was slow=slow Fast=fast and is now slow=slow Fast=slow" in said
    real, asked = scoring.predict_training, []

    def predict(scorer, training):
        asked.append(training.place)
        return real(scorer, training)

    monkeypatch.setattr(scoring, "predict_training", predict)
    found = judge(folder, store, classes=["Fast=fast"])
    assert (found.scorings, asked) == (1, ["seed-1"])
    assert (place / "seed-0" / "test.npz").read_bytes() == seen
    assert not verify([folder]).exit_code
    assert report_finetune(folder).exists()


def test_events_are_written_beside_the_external_score(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other")
    found = judge(folder, store, events=True)
    assert found.trainings[0]["events"]["name"] == "fast"
    written = sorted(p.relative_to(folder).parts[2:] for p in folder.rglob("*_events.tsv"))
    assert written == [(f"seed-{s}", "test-events", f"c{n}_events.tsv") for s in (0, 1) for n in range(4)]
    assert not [line for line in verify([folder]).things[0].uncovered if "external" in line]


def test_records_are_covered_by_sums_and_damage_is_found(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other")
    first = judge(folder, store)
    (place,) = (folder / "external").iterdir()
    checked = verify([folder]).things[0]
    assert not checked.damaged
    assert not [line for line in checked.uncovered if "external" in line]
    listed = dict(reversed(line.split("  ")) for line in (place / "SHA256SUMS").read_text().splitlines()[1:])
    assert set(listed) == {"about.json", "test.json"}
    assert listed["test.json"] == hashlib.sha256((place / "test.json").read_bytes()).hexdigest()
    (place / "test.json").unlink()
    assert judge(folder, store).summary == first.summary  # made again from the trainings' records
    (place / "test.json").write_text("{}")
    assert verify([folder]).exit_code == 9
    assert "damaged" in message(lambda: judge(folder, store, again=True), ConfigError)
    (place / "about.json").write_text("{")
    assert "about.json" in message(lambda: judge(folder, store), ConfigError)


def test_a_damaged_or_deleted_store_leaves_no_score(run, tmp_path):
    folder, store = run(), stranger(tmp_path / "other")
    path = next(store.glob("*.bin"))
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert "damaged" in message(lambda: judge(folder, store), StoreError)
    assert not list(folder.glob("external/**/test.*"))
    data[1000] ^= 1
    path.write_bytes(data)
    assert judge(folder, store).scorings == 1  # the same command goes on
    shutil.rmtree(store)
    assert "does not exist" in message(lambda: judge(folder, store), StoreError)


# Who was learned from


def test_recordings_that_were_learned_from_are_recognised_by_their_samples(run, made, tmp_path):
    """Another key, other names, another data set: the samples are the same."""
    folder = run()
    other = copied(
        made / "store",
        tmp_path / "other",
        lambda record: record.id in ("s0", "s3", "s4", "s10"),  # train, validation, test, test
        key="ab" * 12,
        names=lambda record: (f"n{record.id}", f"p{record.id}"),
    )
    found = judge(folder, other)
    assert found.split == "all-new"
    assert (found.external["overlap"]["certain"], found.external["overlap"]["left_out"]) == (2, 2)
    assert set(Predictions.load(next(folder.glob("external/*/seed-0/test.npz"))).subject) == {"ps4", "ps10"}
    assert "2 of 4 subjects of the external data were, or may have been, learned from, and are left out" in found.text()
    lines = []
    whole = judge(folder, other, split="all", say=lines.append)
    assert whole.trainings[0]["scores"]["subjects"] == 4
    warning = "WARNING: 2 of 4 subjects of the external data were learned from in this fine-tuning"
    assert warning in whole.text()
    assert any(line.startswith(warning) for line in lines)
    mine = copied(made / "store", tmp_path / "mine", of_split("train", "val"), key="ab" * 12)
    assert "learned from every subject" in message(lambda: judge(folder, mine), InputError)


def test_equal_ids_of_one_key_are_a_warning_and_can_be_left_out(made, tmp_path):
    """Ids are made from names, so two data sets may use one id for two people."""
    create = {"key": "cd" * 12}
    a = copied(made / "store", tmp_path / "a", lambda record: True, **create)
    train(a, tmp_path / "run", finetune.FinetuneOptions("alpha", steps=1))
    b = stranger(tmp_path / "b", **create)
    assert judge(tmp_path / "run", b).external["overlap"]["text"].startswith("none of 4 subjects")
    alike = {"clinic0": "sub0", "clinic1": "sub1", "clinic2": "sub4"}  # the last one is for testing

    def names(record):
        return record.id, alike.get(record.subject, record.subject)

    c = copied(b, tmp_path / "c", lambda record: True, names=names, tasks={"alpha": TASKS["alpha"]}, **create)
    found = judge(tmp_path / "run", c)
    assert found.trainings[0]["scores"]["subjects"] == 4
    assert "WARNING: 2 of 4 subjects of the external data have ids of subjects that the run learned" in found.text()
    new = judge(tmp_path / "run", c, new_subjects=True)
    assert new.trainings[0]["scores"]["subjects"] == 2
    assert "WARNING" not in new.text()
    few = {"tasks": {"alpha": TASKS["alpha"]}, "key": "ef" * 12}
    d = copied(b, tmp_path / "d", lambda record: record.id != "c3", names=names, **few)
    assert "ids of different keys" in judge(tmp_path / "run", d).external["overlap"]["text"]


def test_a_run_of_an_earlier_release_does_not_know_and_the_store_tells(run, made, tmp_path):
    folder = run()
    other = copied(made / "store", tmp_path / "other", of_split("val", "test"))
    kept = (folder / "learned.json").read_bytes()
    (folder / "learned.json").unlink()
    assert "does not record it (an earlier release); see --trained-on" in judge(folder, other).text()
    found = judge(folder, other, trained_on=made / "store")
    assert (found.split, found.external["overlap"]["left_out"]) == ("all-new", 6)
    train(made / "store", folder, finetune.FinetuneOptions("alpha", seeds=(0, 1), steps=3))  # the same command
    assert (folder / "learned.json").read_bytes() == kept
    (folder / "learned.json").write_text("{}")
    assert "damaged" in message(lambda: judge(folder, other), ConfigError)


def test_learned_json_names_nobody(made):
    text = (made / "alpha" / "learned.json").read_text()
    learned = json.loads(text)["learned"]
    assert [len(learned[name]) for name in ("subjects", "recordings", "contents")] == [30, 30, 30]
    assert not re.search(r'"s(ub)?\d+"', text)


# Rivals


def test_rivals_on_the_own_test_subjects_are_those_of_the_own_test(run, made, tmp_path):
    folder = run("hybrid")
    other = copied(made / "store", tmp_path / "other", of_split("test"))
    own = judge(folder, made / "store", rivals=True)
    alone = judge(folder, other, rivals=True)
    assert alone.rivals is None
    assert "--trained-on STORE, the one of the run, adds them without a new scoring" in alone.text()
    found = judge(folder, other, rivals=True, trained_on=made / "store")
    assert (found.scorings, found.fresh) == (1, False)
    assert found.rivals == own.rivals
    assert "beside rivals on the same external windows" in found.text()
    assert judge(folder, other, rivals=True).rivals == found.rivals  # kept
    page = report_finetune(folder).read_text()
    section = page[page.index("<h2>External data") : page.index("<h2>Validation")]
    assert section.count("<h3>elsewhere") == 1
    assert "Scored once, on 24 windows of 6 subjects: all labelled windows." in section


def test_rivals_are_fitted_anew_on_shared_channels_and_the_saved_one_stands_alone(made, tmp_path, monkeypatch):
    folder, other = tmp_path / "run", stranger(tmp_path / "other", names=("Fp1", "O1"), subjects=8)
    weights = made / "alpha" / "seed-0" / "model.safetensors"
    choices = finetune.FinetuneOptions("alpha", freeze=True, readout="mean", untrained="as_is")
    monkeypatch.setattr("cerebro_eeg.runs.rivals.rival_wins", lambda row: True)  # so that it is saved
    train(made / "store", folder, choices, weights, rivals=True)
    assert (folder / "simple" / "model.safetensors").exists()
    lacking = judge(folder, other, rivals=True)
    assert lacking.rivals is None
    assert "reads 1 channel that some recordings lack (Cz)" in lacking.text()
    found = judge(folder, other, rivals=True, trained_on=made / "store")
    assert len(found.rivals) == 5
    assert "fitted anew on the 2 channels that the external recordings share with those of the run, without Cz" in (
        found.text()
    )
    whole = stranger(tmp_path / "whole", subjects=8)
    (row,) = judge(folder, whole, rivals=True).rivals
    rows = judge(folder, whole, rivals=True, trained_on=made / "store").rivals
    same = next(one for one in rows if one["name"] == row["name"])
    assert row["rival"] == pytest.approx(same["rival"], abs=1e-6)
    assert row["subjects"] == 8
    assert row["low"] is not None


# On the command line


@pytest.mark.docs
def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """Two simulated sites with other devices: the commands of docs/training.md, as they are."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    section = page[page.index("### Data from elsewhere") :]
    block = section[section.index("```sh\n") + 6 :]
    lines = [line.partition("#")[0].split() for line in block[: block.index("```")].splitlines()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert len(lines) > 6
    for words in lines:
        assert words[0] == "cerebro-eeg"
        alone = ["--workers", "0"] * (words[1] == "prepare")  # faster than processes for so little
        assert cli.main([*words[1:], *alone]) == 0, words
    said = capsys.readouterr().out
    assert "external data" in said
    assert "before: this is the first score, unchanged" in said
