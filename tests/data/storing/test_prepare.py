"""Preparation: the same store however the work is divided or killed, every source accounted for, nobody named."""

import csv
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.channels.match import match
from cerebro_eeg.data.datasets import RECIPES, options_of
from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Recording, Segment
from cerebro_eeg.data.storing import privacy, workers
from cerebro_eeg.data.storing.job import Job, PrepareChoices, settings
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.records import Interval, StoredSegment
from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.data.storing.skip_log import SkipLog, forget, read_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, RecordingError, StoreError
from openeeg_files import CODES, RECORDS, write_lines, write_pack, write_record

TESTS = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))  # this file and what builds files
PATHS = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
KILLS = 12
CANARY = "CANARY"


# A corpus with a bad file of each kind


def add_record(pack, record, subject="s", **changes):
    """One more recording, of a_01's kind; its file with other fields."""
    path = pack / "data" / f"{record}.npz"
    write_record(path, **changes)
    with (pack / "index.csv").open("a") as file:
        file.write(f"{record},data/{record}.npz,more,{subject},train\n")
    return path


def write_bad_pack(folder):
    """The tiny pack, and what must be skipped of it."""
    pack = write_pack(folder)
    cut = add_record(pack, "bad_cut")
    cut.write_bytes(cut.read_bytes()[:1000])
    add_record(pack, "bad_gone").write_bytes(b"")
    add_record(pack, "bad_channels", ch_std=np.array(["Fp1", "Fp2", "Nose"]))
    add_record(pack, "bad_unit", meta=np.array('{"unit": "mV"}'))
    add_record(pack, "bad_rate", sfreq=np.float64(0.5))
    add_record(pack, "bad_subject", subject="Jane Doe")
    add_record(pack, "bad_scale", scale=np.full(3, 1e30, np.float32))
    for number in range(6):
        counts = np.random.default_rng(number).integers(0, 256, (3, 400), dtype=np.uint8)
        add_record(pack, f"more_{number}", lo=counts, hi=counts * 0, events=np.zeros((0, 3), np.int32))
    return pack


SKIPPED = {
    "bad_channels": "channels",
    "bad_cut": "format",
    "bad_gone": "format",
    "bad_rate": "rate",
    "bad_scale": "empty",
    "bad_subject": "subject",
    "bad_unit": "unit",
}
STORED = {*(row[0] for row in RECORDS), *(f"more_{number}" for number in range(6))}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_bad_pack(tmp_path_factory.mktemp("corpus") / "pack")


@pytest.fixture(scope="module")
def whole(pack, tmp_path_factory):
    """A store made in one go by one process, and what came of it."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    return folder, prepare(openeeg(pack), folder)


def listing(folder):
    """Every file with its content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The same store


def test_every_source_is_stored_or_skipped(whole):
    folder, found = whole
    store = Store(folder)
    store.verify(full=True)
    assert {record.id for record in store.recordings} == STORED
    assert found.skipped == store.skipped() == SKIPPED
    rows = list(csv.DictReader((folder / "skipped.csv").read_text().splitlines()))
    assert {row["id"]: row["reason"] for row in rows} == SKIPPED
    assert all(row["why"] and row["remedy"] for row in rows)
    assert (found.recordings, found.done_before, found.hash) == (len(STORED), 0, store.hash())
    assert found.hours == pytest.approx(sum(record.seconds for record in store.recordings) / 3600)
    assert found.montages == {2: 3, 3: 8}
    assert found.sources == {id: id for id in SKIPPED}
    assert "sources" not in repr(found)


@pytest.mark.parametrize(
    "runs",
    [
        [(1, (1, 1))],
        [(2, (1, 1))],
        [(0, (1, 3)), (0, (2, 3)), (0, (3, 3))],
        [(0, (3, 3)), (2, (1, 3)), (0, (2, 3))],
        [(0, (2, 2)), (0, (1, 1))],
        [(0, (5, 100)), (0, (1, 1))],
    ],
    ids=str,
)
def test_any_division_gives_the_same_store(pack, whole, tmp_path, runs):
    seen = []
    for processes, part in runs:
        counts = []
        found = prepare(openeeg(pack), tmp_path, workers=processes, part=part, progress=lambda *c: counts.append(c))  # noqa: B023
        assert [c[0] for c in counts] == list(range(1, len(counts) + 1))
        assert all(c[1] == len(counts) for c in counts)
        if counts:
            assert counts[-1][2] == counts[-1][3] > 0
        seen.append(len(counts))
    assert sum(seen) == len(STORED) + len(SKIPPED)
    assert found.hash == whole[1].hash
    assert found.skipped == SKIPPED
    assert (tmp_path / "skipped.csv").read_bytes() == (whole[0] / "skipped.csv").read_bytes()
    Store(tmp_path).verify(full=True)


def test_a_second_run_does_nothing(pack, whole):
    folder, first = whole
    before, told = listing(folder), []
    found = prepare(
        openeeg(pack), folder, before=lambda items, done: told.append((items, done)), progress=lambda *_: told.append(_)
    )
    assert told == [([], len(STORED) + len(SKIPPED))]
    assert (found.hash, found.done_before) == (first.hash, len(STORED) + len(SKIPPED))
    assert listing(folder) == before


def test_labels_segments_and_subjects_survive(pack, whole):
    store = Store(whole[0])
    items = {item.name: item for item in openeeg(pack).find()}
    for record in store.recordings:
        item = items[record.id]
        assert (record.subject, record.labels) == (item.subject, dict(item.labels))
        assert (record.sfreq, record.source_bytes) == (256.0, item.size)
        expected = next(row for row in RECORDS if row[0] == record.id)[6] if "more" not in record.id else []
        rate = record.native_sfreq
        assert record.events == tuple(Event(a / rate, n / rate, CODES.get(str(c), str(c))) for a, n, c in expected)
    assert [event.name for event in store.recordings[store.number("a_01")].events] == ["rest", "13Hz", "7"]
    neonate = store.recordings[store.number("neo_1")]
    assert neonate.segments == tuple(StoredSegment(256 * i, 256 * i + 256, float(i), True) for i in range(4))
    assert (neonate.channels, neonate.native_sfreq, neonate.upsampled) == (("Fp2-F4", "F4-C4"), 64.0, True)
    long = store.recordings[store.number("a_01")]
    assert long.segments == (StoredSegment(0, 12 * 256, 0.0, True),)


# Other settings


def test_other_settings_are_named_and_followed(pack, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "store")
    with pytest.raises(ConfigError, match=r"mains is None in the store, 60\.0 was asked for"):  # nearly all: on request
        prepare(openeeg(pack), tmp_path / "store", PrepareChoices(mains=60.0))
    assert listing(tmp_path / "store") == {**listing(whole[0]), "change.lock": b""}
    found = prepare(openeeg(pack), tmp_path / "store", PrepareChoices(mains=60.0), anew=True)
    assert found.hash == prepare(openeeg(pack), tmp_path / "fresh", PrepareChoices(mains=60.0)).hash
    found = prepare(openeeg(pack), tmp_path / "store", anew=True)
    assert (found.hash, found.skipped) == (whole[1].hash, SKIPPED)


def test_other_tasks_are_followed(whole, tmp_path):
    pack = write_bad_pack(tmp_path / "pack")
    shutil.copytree(whole[0], tmp_path / "store")
    (pack / "tasks" / "eyes.csv").unlink()
    said = []
    found = prepare(openeeg(pack), tmp_path / "store", say=said.append)
    assert found.hash == prepare(openeeg(pack), tmp_path / "fresh").hash
    assert found.changed.again == {}
    assert said[0].startswith("other options than the store has: task eyes is gone; other labels of task 'eyes' (")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"part": (0, 3)}, "part is 0/3; expected k/n"),
        ({"part": (4, 3)}, "part is 4/3; expected k/n"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_wrong_arguments_make_no_store(pack, tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        prepare(openeeg(pack), tmp_path / "store", **arguments)
    assert not (tmp_path / "store").exists()


def test_settings_do_not_depend_on_the_order_of_a_set(pack, tmp_path):
    recipe = Recipe("x", "", lambda: iter(()), policy=ChannelPolicy(keep={"Fp1", "Cz", "O1", "O2", "Pz"}))
    made = settings(Job(tmp_path, recipe, PrepareChoices()), [])
    assert made["channels"]["keep"] == ["Cz", "Fp1", "O1", "O2", "Pz"]
    corpus = openeeg(pack)
    json.dumps(settings(Job(tmp_path, corpus, PrepareChoices()), corpus.find()), allow_nan=False)


def test_two_recordings_of_one_id_are_refused(tmp_path):
    pack = write_pack(tmp_path / "pack")
    lines = (pack / "index.csv").read_text().splitlines()
    write_lines(pack / "index.csv", [*lines, lines[1]])
    with pytest.raises(InputError, match="two recordings with the id 'neo_2'"):
        prepare(openeeg(pack), tmp_path / "store")


def test_a_corpus_without_recordings_is_refused(tmp_path):
    with pytest.raises(InputError, match="empty finds no recording there"):
        prepare(Recipe("empty", "", lambda: iter(()), own_ids=True), tmp_path)


# What a user may choose


def tcp_like(seed=1):
    """Electrodes of which two TCP pairs can be made, both ears, and the samples."""
    samples = np.random.default_rng(seed).normal(0, 20, (2000, 5)).astype(np.float32)
    labels = match(["Fp1", "F7", "T7", "A1", "A2"])
    return samples, Recording(250.0, labels, (Segment(0, len(samples), 0.0),), lambda a, b: samples[a:b])


@pytest.mark.parametrize(
    ("choices", "channels", "where", "value"),
    [
        (PrepareChoices(), ("Fp1", "F7", "T7", "A1", "A2"), ("signal", "reference"), "as_recorded"),
        (PrepareChoices(reference="average"), ("Fp1", "F7", "T7", "A1", "A2"), ("signal", "reference"), "average"),
        (
            PrepareChoices(reference="linked_ears"),
            ("Fp1", "F7", "T7", "A1", "A2"),
            ("signal", "reference"),
            "linked_ears",
        ),
        (PrepareChoices(reference="tcp"), ("Fp1-F7", "F7-T7", "A1-T7"), ("signal", "reference"), "tcp"),
        (PrepareChoices(causal=True), ("Fp1", "F7", "T7", "A1", "A2"), ("signal", "filter_phase"), "causal"),
    ],
)
def test_references_and_filters_are_chosen_and_recorded(tmp_path, choices, channels, where, value):
    recipe = recipe_of({"one": tcp_like()[1]})
    prepare(recipe, tmp_path / "plain")
    prepare(recipe, tmp_path / "store", choices)
    plain, store = Store(tmp_path / "plain"), Store(tmp_path / "store")
    assert store.recordings[0].channels == channels
    assert store.info.settings[where[0]][where[1]] == value
    x, y = (s.read(0, 0, s.recordings[0].samples).astype(np.float64) for s in (plain, store))
    if choices.causal:  # later, never earlier: an impulse at the middle shows nothing before
        assert np.abs(x - y).max() > 1
        return
    expected = {
        "as_recorded": x,
        "average": x - x.mean(1, keepdims=True),
        "linked_ears": x - x[:, 3:].mean(1, keepdims=True),
        "tcp": np.stack([x[:, 0] - x[:, 1], x[:, 1] - x[:, 2], x[:, 3] - x[:, 2]], 1),
    }[value]
    np.testing.assert_allclose(y, expected, atol=0.15)  # both were rounded to half precision


def test_causal_filters_do_not_look_ahead(tmp_path):
    samples = np.zeros((2560, 2), np.float32)
    samples[1280] = 1000.0
    recipe = recipe_of({"one": recording_of(samples, 256.0)})
    for name, choices in (("zero", PrepareChoices()), ("causal", PrepareChoices(causal=True))):
        prepare(recipe, tmp_path / name, choices)
        before = np.abs(Store(tmp_path / name).read(0, 0, 1270)).max()
        assert (before > 0.05) == (name == "zero")


def find_labelled(labels, positions=None):
    def opened(policy):
        found = policy.match(labels, positions)
        samples = np.random.default_rng(1).normal(0, 20, (2000, len(found.channels))).astype(np.float32)
        return Recording(250.0, found, (Segment(0, 2000, 0.0),), lambda a, b: samples[a:b])

    return Recipe("labelled", "", lambda: iter([Item("one", opened)]), own_ids=True, mains=50.0)


@pytest.mark.parametrize(
    ("labels", "choices", "channels"),
    [
        (["Fp1", "Nose"], PrepareChoices(), None),
        (["Fp1", "Nose"], PrepareChoices(unknown="drop"), 1),
        (["Fp1", "Cz", "O1"], PrepareChoices(max_channels=2), None),
        (["Fp1", "Cz", "O1"], PrepareChoices(max_channels=2, too_many="nearest"), 2),
    ],
)
def test_policies_of_channels_are_chosen_and_recorded(tmp_path, labels, choices, channels):
    found = prepare(find_labelled(labels), tmp_path, choices)
    assert found.skipped == ({"one": "channels"} if channels is None else {})
    assert [len(record.channels) for record in Store(tmp_path).recordings] == [channels][: channels is not None]
    recorded = Store(tmp_path).info.settings["channels"]
    assert recorded["unknown"] == (choices.unknown or "error")
    assert (recorded["max_channels"], recorded["too_many"]) == (choices.max_channels or 64, choices.too_many or "error")
    said = []
    prepare(
        find_labelled(labels), tmp_path, PrepareChoices(unknown="nearest", max_channels=3), anew=True, say=said.append
    )
    assert re.search(r"channels\.max_channels is .*; channels\.unknown is ", said[0])


# Signals


def recording_of(samples, sfreq, events=()):
    labels = match(["Fp1", "Fp2", "Cz"][: samples.shape[1]])
    return Recording(sfreq, labels, (Segment(0, len(samples), 0.0),), lambda a, b: samples[a:b], events)


def recipe_of(recordings, **fields):
    """A corpus of recordings that are there already."""
    items = [Item(name, lambda _, found=found: found, subject="s", **fields) for name, found in recordings.items()]
    return Recipe("arrays", "arrays of the tests", lambda: iter(items), own_ids=True, mains=50.0)


def test_the_store_is_a_float64_reference_rounded_to_half(tmp_path):
    import mne
    from scipy.signal import resample_poly

    rng = np.random.default_rng(3)
    t = np.arange(60 * 500) / 500
    samples = np.stack([2000 + 40 * rng.standard_normal(len(t)), np.cumsum(rng.standard_normal(len(t)))], axis=1)
    samples = (samples + 30 * np.sin(2 * np.pi * 50 * t)[:, None]).astype(np.float32)
    prepare(recipe_of({"one": recording_of(samples, 500.0)}), tmp_path)
    store = Store(tmp_path)
    record = store.recordings[0]
    found = store.read(record, 0, record.samples).astype(np.float64)

    with mne.utils.use_log_level("error"):
        wide = mne.filter.filter_data(samples.T.astype(np.float64), 500.0, 0.1, 75.0)
        wide = mne.filter.notch_filter(wide, 500.0, 50.0, notch_widths=2.0)
    expected = resample_poly(wide, 64, 125, axis=1).T
    assert expected.shape == found.shape == (60 * 256, 2)
    assert (record.mains, record.native_sfreq) == (50.0, 500.0)
    inner = slice(20 * 256, 40 * 256)
    half_a_step = np.spacing(np.abs(expected[inner]).astype(np.float16)).astype(np.float64) / 2
    off = np.abs(found[inner] - expected[inner]) - half_a_step
    assert off.max() <= 0.01  # microvolts, for the filters in float32; measured 0.0035


def flat_and_good():
    samples = np.random.default_rng(1).normal(0, 20, (2000, 3)).astype(np.float32)
    flat = samples.copy()
    flat[:, 1] = 7.0
    return {"flat": recording_of(flat, 250.0), "good": recording_of(samples, 250.0)}


@pytest.mark.parametrize(
    ("quality", "channels", "skipped"),
    [
        ("keep", {"flat": ("Fp1", "Fp2", "Cz"), "good": ("Fp1", "Fp2", "Cz")}, {}),
        ("drop", {"flat": ("Fp1", "Cz"), "good": ("Fp1", "Fp2", "Cz")}, {}),
        ("refuse", {"good": ("Fp1", "Fp2", "Cz")}, {"flat": "quality"}),
    ],
)
def test_flat_channels(tmp_path, quality, channels, skipped):
    found = prepare(recipe_of(flat_and_good()), tmp_path, PrepareChoices(quality=quality))
    store = Store(tmp_path)
    assert {record.id: record.channels for record in store.recordings} == channels
    assert found.skipped == skipped
    for record in store.recordings:
        assert record.quality["flat"] == (record.id == "flat")
    if quality == "drop":  # the columns that stay are the right ones
        both = [store.read(store.number(id), 500, 1500) for id in ("flat", "good")]
        np.testing.assert_array_equal(both[0], both[1][:, [0, 2]])


def test_only_listed_events_reach_the_store(tmp_path):
    events = (Event(1.0, 0.5, "listed"), Event(2.0, 0.0, f"{CANARY} seen by Dr Who"), Event(3.0, 0.0, "Listed"))
    samples = np.random.default_rng(1).normal(0, 20, (2000, 2)).astype(np.float32)
    prepare(recipe_of({"one": recording_of(samples, 250.0, events)}, events=("listed",)), tmp_path)
    assert Store(tmp_path).recordings[0].events == (Event(1.0, 0.5, "listed"),)
    assert CANARY not in str(listing(tmp_path))


def test_a_file_that_breaks_its_reader_stops_nothing(tmp_path):
    def broken(error, _):
        raise error

    good = flat_and_good()
    errors = {
        "a": ZeroDivisionError("x"),
        "b": RecordingError("cut", "x"),
        "c": MemoryError(),
        "d": InputError("x"),
        "e": ConfigError("x"),
    }
    items = [Item(name, partial(broken, error)) for name, error in errors.items()]
    items += [Item(name, lambda _, found=found: found) for name, found in good.items()]
    found = prepare(Recipe("mixed", "", lambda: iter(items), own_ids=True, mains=50.0), tmp_path)
    assert found.recordings == 2
    assert found.skipped == {
        "a": "reader_zerodivisionerror",
        "b": "cut",
        "c": "unreadable",
        "d": "input",
        "e": "reader_configerror",
    }


def test_a_store_that_cannot_be_written_stops_the_run(tmp_path):
    def full(_):
        raise StoreError("the disk is full")

    items = [Item("a", lambda _: flat_and_good()["good"]), Item("b", full), Item("c", full)]
    with pytest.raises(StoreError, match="the disk is full"):
        prepare(Recipe("full", "", lambda: iter(items), own_ids=True), tmp_path)
    assert [record.id for record in Store(tmp_path).recordings] == ["a"]
    assert Store(tmp_path).skipped() == {}


# Kills


def committed(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))


def living(group):
    """Processes of a group that are more than a corpse."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            found.append(path.parent.name)
    return found


def is_running(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def kill_main(pack, folder, seed):
    """Prepare and be killed, over and over; every fourth time with workers, once of these the first process alone."""
    rng = random.Random(seed)
    recipe = openeeg(Path(pack))
    folder = Path(folder)
    kill = midway = 0
    while kill < KILLS:
        workers, alone = 2 if kill % 4 == 0 else 0, kill % 8 == 4
        target = committed(folder) + (3 if alone else rng.randrange(5))  # alone: when workers are at work for certain
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                prepare(recipe, folder, workers=workers)
                code = 0
            finally:
                os._exit(code)
        os.setpgid(child, child)  # here, too: whoever comes first
        while committed(folder) < target and is_running(child):
            time.sleep(0.001)
        time.sleep(0.02 * rng.random())
        (os.kill if alone else os.killpg)(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:  # on a busy machine it may be done before the kill arrives: start again
            shutil.rmtree(folder)
            folder.mkdir()
            continue
        assert code == -signal.SIGKILL
        kill += 1
        end = time.monotonic() + 300
        while living(child):  # workers see that nobody is left to give them work
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                raise AssertionError("workers outlive the first process")
            time.sleep(0.02)
        if (folder / "store.json").exists():
            store = Store(folder)
            store.verify(full=True)
            midway += len(store.recordings) > 0
    found = prepare(recipe, folder, workers=0)
    print(json.dumps([midway, found.recordings, found.hash, found.skipped]))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.soak
def test_killed_at_random_moments(tmp_path):
    pack = tmp_path / "pack"
    rows = ["record,file,subject"]
    pack.mkdir()
    for number in range(200):
        rows.append(f"r{number},r{number}.npz,s{number}")
        counts = np.random.default_rng(number).integers(0, 256, (3, 4000), dtype=np.uint8)
        write_record(pack / f"r{number}.npz", lo=counts, hi=counts * 0)
        if number % 9 == 4:
            (pack / f"r{number}.npz").write_bytes(b"PK no zip")
    write_lines(pack / "index.csv", rows)
    expected = prepare(openeeg(pack), tmp_path / "whole")
    seed = random.randrange(1 << 30)
    store = tmp_path / "store"
    store.mkdir()
    code = f"import test_prepare; test_prepare.kill_main({str(pack)!r}, {str(store)!r}, {seed})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PATHS}
    )
    assert done.returncode == 0, (seed, done.stderr)
    midway, recordings, hash, skipped = json.loads(done.stdout.splitlines()[-1])
    assert midway > KILLS / 2, seed
    assert (recordings, hash, skipped) == (expected.recordings, expected.hash, expected.skipped), seed
    assert (store / "skipped.csv").read_bytes() == (tmp_path / "whole" / "skipped.csv").read_bytes()


def test_a_worker_that_dies_loses_nothing(pack, whole, tmp_path, monkeypatch):
    monkeypatch.setenv("CEREBRO_FAULT", "after-line:a_02")
    counts = []
    found = prepare(openeeg(pack), tmp_path, workers=1, progress=lambda *c: counts.append(c))
    assert (found.hash, found.skipped) == (whole[1].hash, SKIPPED)
    assert [c[0] for c in counts] == list(range(1, len(STORED) + len(SKIPPED) + 1))
    assert counts[-1][2] == counts[-1][3]
    assert committed(tmp_path) == len(STORED)  # nothing twice


def open_or_die(path, policy):
    if "die" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return open_edf(path, policy)


def find_deadly(folder):
    for path in sorted(folder.glob("*.edf")):
        yield Item(path.stem, partial(open_or_die, path), "s", size=path.stat().st_size)


def deadly(folder):
    return Recipe("deadly", "files that kill who reads them", partial(find_deadly, folder), own_ids=True, mains=50.0)


def test_a_file_that_kills_its_worker_is_skipped(tmp_path):
    names = ["a", "b", "die1", "c", "die2", "d", "e", "f"]
    for number, name in enumerate(names):
        write_edf(tmp_path / "files" / f"{name}.edf", "X", number)
    counts = []
    found = prepare(deadly(tmp_path / "files"), tmp_path / "store", workers=2, progress=lambda *c: counts.append(c))
    assert found.skipped == {"die1": "crash", "die2": "crash"}
    assert {record.id for record in Store(tmp_path / "store").recordings} == set("abcdef")
    assert [c[0] for c in counts] == list(range(1, len(names) + 1))
    assert committed(tmp_path / "store") == 6
    again = prepare(deadly(tmp_path / "files"), tmp_path / "store", workers=2)
    assert (again.hash, again.skipped, again.done_before) == (found.hash, found.skipped, len(names))


def test_workers_that_cannot_begin_blame_no_file(tmp_path, monkeypatch):
    write_edf(tmp_path / "files" / "a.edf", "X", 0)
    monkeypatch.setattr(workers, "_start", os.abort)
    with pytest.raises(StoreError, match="worker processes die before they begin"):
        prepare(deadly(tmp_path / "files"), tmp_path / "store", workers=1)
    assert not (tmp_path / "store").exists()  # nothing is stored, nothing skipped, nothing left


# Going on


def failing_then_not(tmp_path, error):
    """A corpus of one good file and one that fails until a flag is there."""

    def fickle(_):
        if not (tmp_path / "flag").exists():
            raise error
        return flat_and_good()["good"]

    items = [Item("good", lambda _: flat_and_good()["good"]), Item("fickle", fickle)]
    return Recipe("fickle", "", lambda: iter(items), own_ids=True, mains=50.0)


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (OSError(5, "Input/output error"), "unreadable", False),
        (PermissionError(13, "Permission denied"), "unreadable", False),
        (MemoryError(), "unreadable", False),
        (OSError("without a number"), "reader_oserror", False),
        (RecordingError("unreadable", "x"), "unreadable", False),
        (RecordingError("cut", "x"), "cut", True),
        (ZeroDivisionError(), "reader_zerodivisionerror", True),
    ],
)
def test_what_was_skipped_is_tried_again(tmp_path, error, code, retry):
    recipe, folder = failing_then_not(tmp_path, error), tmp_path / "store"
    for _ in range(2):  # a second failure is the same
        found = prepare(recipe, folder)
        assert (found.skipped, found.recordings) == ({"fickle": code}, 1)
        (row,) = csv.DictReader((folder / "skipped.csv").read_text().splitlines())
        assert (row["id"], row["reason"], row["remedy"]) == ("fickle", code, remedy_of(code))
        assert row["why"]
    (tmp_path / "flag").touch()
    found = prepare(recipe, folder)
    assert found.skipped == ({"fickle": code} if retry else {})
    assert found.done_before == (2 if retry else 1)
    found = prepare(recipe, folder, retry=True)
    assert (found.skipped, found.recordings) == ({}, 2)
    assert (folder / "skipped.csv").read_text() == "id,reason,why,remedy\n"
    (tmp_path / "flag").touch()
    assert found.hash == prepare(recipe, tmp_path / "fresh").hash


def test_a_new_reason_takes_the_place_of_the_old(tmp_path):
    errors = [RecordingError("cut", "x"), RecordingError("unit", "x")]

    def bad(_):
        raise errors[0]

    recipe = Recipe("bad", "", lambda: iter([Item("a", bad), Item("b", bad)]), own_ids=True)
    for part in ((1, 2), (2, 2)):
        prepare(recipe, tmp_path, part=part)
    del errors[0]
    assert set(prepare(recipe, tmp_path).skipped.values()) == {"cut"}
    assert set(prepare(recipe, tmp_path, retry=True).skipped.values()) == {"unit"}  # "cut" would come first by name


def test_what_is_forgotten_counts_as_not_tried(tmp_path):
    with SkipLog(tmp_path, "w0") as log, SkipLog(tmp_path, "w1") as other:
        for id in "abc":
            log.add(id, "cut")
        other.add("a", "unit")
        with pytest.raises(ConfigError):
            log.add("d", "forgotten")
    with SkipLog(tmp_path, "w1"):  # at work: what it has tried just now stays
        forget(tmp_path, {"a", "b", "x"})
    assert read_skipped(tmp_path) == {"a": "unit", "c": "cut"}
    whole = (tmp_path / "w0.skipped.csv").read_bytes()
    lines = [line.rpartition(b",#")[0] for line in whole.splitlines()]  # without their sums
    assert lines == [b"a,cut", b"b,cut", b"c,cut", b"a,forgotten", b"b,forgotten"]
    forget(tmp_path, {"b"})
    forget(tmp_path, ())
    assert (tmp_path / "w0.skipped.csv").read_bytes() == whole
    with SkipLog(tmp_path, "w0") as log:
        log.add("b", "cut")
    assert read_skipped(tmp_path) == {"a": "unit", "b": "cut", "c": "cut"}


@pytest.mark.parametrize(
    ("table", "old", "new", "words"),
    [
        ("tasks/eyes.csv", "0.0,6.0,1,closed", "0.0,6.0,0,open", "other labels of task 'eyes' (1)"),
        ("tasks/eyes.csv", "0.0,6.0", "0.0,5.5", "other labels of task 'eyes' (1)"),
        ("tasks/eyes.csv", "a_02,02,test", "a_02,02,val", "other labels of task 'eyes' (1)"),
        ("tasks/motion_reg.csv", "0.5,", "0.6,", "other labels of task 'motion_reg' (1)"),
        ("pretrain.csv", "a_01,train,12.0", "a_02,train,9.0", "other labels of task 'pretrain' (2)"),
        ("index.csv", ",neo,x2,", ",neo,x3,", "another subject (1)"),
    ],
)
def test_tables_that_were_edited_are_followed(tmp_path, table, old, new, words):
    pack = write_pack(tmp_path / "pack")
    first = prepare(openeeg(pack), tmp_path / "store")
    text = (pack / table).read_text()
    assert old in text
    (pack / table).write_text(text.replace(old, new, 1))
    said = []
    found = prepare(openeeg(pack), tmp_path / "store", say=said.append)
    assert words in said[0]
    assert (found.changed.again, found.changed.left) == ({}, 0)
    assert found.changed.rewritten == int(words.rpartition("(")[2][:-1])
    assert found.hash == prepare(openeeg(pack), tmp_path / "fresh").hash != first.hash


def test_sources_that_changed_or_went_are_noticed_and_new_ones_are_added(tmp_path):
    pack = write_pack(tmp_path / "pack")
    first = prepare(openeeg(pack), tmp_path / "store")
    add_record(pack, "more_1")
    assert prepare(openeeg(pack), tmp_path / "store").recordings == first.recordings + 1
    add_record(pack, "more_2", lo=np.ones((3, 100), np.uint8), hi=np.zeros((3, 100), np.uint8))
    path = pack / "data" / "more_1.npz"
    whole = path.read_bytes()
    path.write_bytes(whole + b"more")
    with pytest.raises(ConfigError, match=r"another size of the source \(1: more_1\)"):
        prepare(openeeg(pack), tmp_path / "store")
    path.write_bytes(whole)
    lines = [line for line in (pack / "index.csv").read_text().splitlines() if "more_1" not in line]
    write_lines(pack / "index.csv", lines)
    with pytest.raises(ConfigError, match=r"the source is not there any more, or holds something else \(1: more_1\)"):
        prepare(openeeg(pack), tmp_path / "store")


def test_other_events_are_followed(tmp_path):
    recordings = flat_and_good()
    prepare(recipe_of(recordings, events=("listed",)), tmp_path / "store")
    said = []
    found = prepare(recipe_of(recordings, events=("more", "listed")), tmp_path / "store", say=said.append)
    assert "events is ['listed'] in the store, ['listed', 'more'] was asked for" in said[0]
    assert found.hash == prepare(recipe_of(recordings, events=("more", "listed")), tmp_path / "fresh").hash


# Privacy and the command


def write_edf(path, name, seed, cut=None):
    """An EDF file with canaries wherever a header has room for one."""
    import datetime

    import edfio

    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    edfio.Edf(
        [
            edfio.EdfSignal(rng.normal(0, 30, 2000), 250, label=label, physical_dimension="uV")
            for label in ("Fp1", "Cz")
        ],
        patient=edfio.Patient(code=f"{CANARY}code", name=name, birthdate=datetime.date(1931, 3, 9)),
        recording=edfio.Recording(
            hospital_administration_code=f"{CANARY}hospital",
            investigator_technician_code=f"{CANARY}dr",
            equipment_code=f"{CANARY}amp",
            startdate=datetime.date(1999, 8, 7),
        ),
        annotations=[edfio.EdfAnnotation(1, None, "listed"), edfio.EdfAnnotation(2, None, f"{CANARY} fell asleep")],
    ).write(path)
    if cut is not None:
        path.write_bytes(path.read_bytes()[:cut])


def write_edfs(folder):
    for number in range(3):
        write_edf(folder / f"{CANARY}_doe" / f"{CANARY}_{number}.edf", f"{CANARY}_jane", number)
    write_edf(folder / f"{CANARY}_cut" / f"{CANARY}_4.edf", f"{CANARY}_cut", 4, cut=300)
    write_edf(folder / f"{CANARY}_boom" / f"{CANARY}_boom.edf", f"{CANARY}_boom", 5)
    return folder


def open_fake(path, policy):
    if "boom" in path.name:
        raise ZeroDivisionError(f"{path} of {CANARY}")
    warnings.warn(f"{path} of {CANARY}", stacklevel=1)
    return open_edf(path, policy)


def find_fake(folder):
    for path in sorted(folder.glob("**/*.edf")):
        labels = {"task": (Interval(0.0, 5.0, "train", "yes"),)}
        name = path.relative_to(folder).as_posix()
        yield Item(name, partial(open_fake, path), path.parent.name, labels, ("listed",), size=path.stat().st_size)


def fake(folder):
    """A corpus whose names must not be seen, and that nobody ran on real files."""
    return Recipe("fake", "EDF files of the tests", partial(find_fake, folder), mains=50.0)


COMMAND = """
import sys
from cerebro_eeg import cli
from cerebro_eeg.data import datasets
datasets.RECIPES["fake"] = "test_prepare:fake", "EDF files of the tests"
sys.exit(cli.main())
"""


def command(*args, home, **env):
    env = os.environ | {"PYTHONPATH": PATHS, "XDG_CONFIG_HOME": str(home)} | env
    return subprocess.run([sys.executable, "-c", COMMAND, *map(str, args)], capture_output=True, text=True, env=env)


def everything_in(folder):
    """Names and bytes of all that lies in a folder."""
    return b"\n".join(str(p).encode() + (p.read_bytes() if p.is_file() else b"") for p in folder.rglob("*"))


def test_the_command_names_nobody(tmp_path, capsys, monkeypatch):
    source, home = write_edfs(tmp_path / f"{CANARY}_source"), tmp_path / "home"
    assert CANARY.encode() in everything_in(source)
    done = command("prepare", "fake", source, "--out", tmp_path / "store", "--workers", 2, home=home)
    assert done.returncode == 6, done.stderr
    key_file = home / "cerebro-eeg" / "key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = privacy.read_key(key_file)
    for text in (done.stdout.encode(), done.stderr.encode(), everything_in(tmp_path / "store"), everything_in(home)):
        text = text.replace(str(tmp_path).encode(), b"")
        told = re.sub(rb'"crc":"[0-9a-f]{8}"|[0-9a-f]{24,}', b"", text)  # "1931" may be in a digest or a checksum
        for word in (CANARY, "jane", "doe", "boom", "1931", "1999", str(source)):
            assert word.encode() not in told, word
    assert key.hex() not in done.stdout + done.stderr
    assert key.hex().encode() not in everything_in(tmp_path / "store")
    lines = done.stderr.splitlines()
    assert lines[0] == "fake was never run on the real corpus, only on files made after its description"
    assert "5 recordings to prepare" in lines[1]
    assert "of disk and" in lines[2]
    assert lines[-1].startswith("5/5 recordings, ")
    assert "reader_zerodivisionerror 1" in done.stdout

    store = Store(tmp_path / "store")
    assert store.info.key_check == privacy.key_check(key)
    names = [f"{CANARY}_doe/{CANARY}_{number}.edf" for number in range(3)]
    assert {record.id for record in store.recordings} == {privacy.make_id(key, "recording", name) for name in names}
    assert {record.subject for record in store.recordings} == {privacy.make_id(key, "subject", f"{CANARY}_doe")}
    assert all([event.name for event in record.events] == ["listed"] for record in store.recordings)
    assert len(store.skipped()) == 2

    monkeypatch.setitem(RECIPES, "fake", ("test_prepare:fake", "EDF files of the tests"))
    monkeypatch.chdir(source)
    again = ["prepare", "fake", ".", "--out", "../store"]
    assert cli.main([*again, "--key", str(key_file), "--show-paths"]) == 6
    shown = capsys.readouterr().out
    assert f"{CANARY}_cut/{CANARY}_4.edf" in shown
    assert "nothing to do: 5 recordings had been stored or skipped before" in shown
    assert cli.main([*again, "--key", "../key2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its ids were made with another key" in line
    assert CANARY not in line


def test_two_keys_give_other_ids(tmp_path):
    source = write_edfs(tmp_path / "source")
    found = []
    for number in range(2):
        with warnings.catch_warnings():
            made = prepare(fake(source), tmp_path / f"store{number}", key_file=tmp_path / f"key{number}")
        store = Store(tmp_path / f"store{number}")
        ids = {record.id for record in store.recordings} | set(made.skipped)
        found.append((ids, {record.subject for record in store.recordings}, {store.info.key_check}))
    for one, two in zip(*found, strict=True):
        assert len(one) == len(two)
        assert not one & two


def test_what_was_notched_and_upsampled_is_counted(whole):
    """By hand, over the store: a line a recording, whatever the summary says."""
    records = Store(whole[0]).recordings if not isinstance(whole[0], Store) else whole[0].recordings
    mains, upsampled = {}, 0
    for record in records:
        name = "none" if record.mains is None else f"{record.mains:g}"
        mains[name] = mains.get(name, 0) + 1
        upsampled += record.native_sfreq < record.sfreq
    assert (whole[1].mains, whole[1].upsampled) == (mains, upsampled)


def test_the_command_as_text_and_as_json(pack, whole, tmp_path, capsys):
    done = command("prepare", "openeeg", pack, "--out", tmp_path / "store", "--workers", 0, "--json", home=tmp_path)
    assert done.returncode == 6
    assert json.loads(done.stdout) == {
        "dataset": "openeeg",
        "part": "1/1",
        "recordings": len(STORED),
        "hours": pytest.approx(whole[1].hours),
        "montages": {"2": 3, "3": 8},
        "mains": whole[1].mains,
        "upsampled": whole[1].upsampled,
        "faults": {},
        "copies": 0,
        "quality": {},
        "labels_outside": 0,
        "skipped": {"channels": 1, "empty": 1, "format": 2, "rate": 1, "subject": 1, "unit": 1},
        "remedies": {code: remedy_of(code) for code in SKIPPED.values()},
        "tried_again_next_time": 0,
        "changed": None,
        "hash": whole[1].hash,
        "done": len(STORED) + len(SKIPPED),
        "done_before": 0,
    }
    assert str(tmp_path) not in done.stdout + done.stderr
    assert not (tmp_path / "cerebro-eeg").exists()  # this corpus keeps its own ids: it needs no key

    good = str(write_pack(tmp_path / "good"))
    args = ["prepare", "openeeg", good, "--out", str(tmp_path / "fine"), "--part", "1/2", "--workers", "0"]
    assert cli.main(args) == 0
    out, err = capsys.readouterr()
    assert "of part 1/2 done now, 0 before" in out
    assert "skipped" not in out
    assert str(tmp_path) not in out + err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (
            ["openneg", "."],
            2,
            "there is no recipe 'openneg' (did you mean 'openeeg'?); the recipes are openeeg, folder, ",
        ),
        (["openeeg", "."], 3, "the folder has no index.csv"),
        (["openeeg", ".", "--part", "1of3"], 2, "part is '1of3'; expected k/n, such as 3/100"),
        (["openeeg", ".", "--workers", "-2"], 2, "workers is -2"),
        (["openeeg", ".", "--mains", "0"], 2, "mains is 0"),
        (["openeeg", ".", "--quality", "best"], 2, "see cerebro-eeg prepare --help"),
        (["openeeg", "pack", "--legacy"], 2, "recipe 'openeeg' has no option --legacy; it takes none of its own"),
        (["neonate", ".", "--subject", "top"], 2, "recipe 'neonate' has no option --subject; it takes --legacy"),
        (["tueg", ".", "--events", "a", "b"], 2, "recipe 'tueg' has no option --events; it takes --exclude"),
        (["openeeg", "pack", "--map", "map.json"], 2, "openeeg keeps the corpus's own ids, so there is nothing to map"),
        (["openeeg", "pack", "--key", "my.key"], 2, "openeeg keeps the corpus's own ids, so no key hides them"),
        (["folder", "edf", "--map", "store/map.json"], 2, "the map of ids would lie inside the store"),
        (["folder", "edf", "--key", "store/key"], 2, "the key would lie inside the store"),
        (["folder", "edf", "--map", "edf"], 3, "the map file has mode"),
        (["folder", "edf", "--max-channels", "0"], 3, "max_channels must be a whole number of at least 1"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, args, code, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_edf(tmp_path / "edf" / "a.edf", "X", 1)
    (tmp_path / "edf").chmod(0o755)  # whatever the umask
    write_pack(tmp_path / "pack")
    assert cli.main(["prepare", *args, "--out", "store"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert words in line
    assert not (tmp_path / "store").exists()


def test_help(capsys):
    assert cli.main(["prepare", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("DATASET", "SOURCE", "--out", "--part", "--workers", "--quality", "keep|drop|refuse", "--show-paths"):
        assert word in text
    for recipe in RECIPES:
        assert re.search(rf"\b{recipe}\b", text)


@pytest.mark.parametrize("name", RECIPES)
def test_every_option_of_a_recipe_is_a_flag_whose_help_names_it(name):
    from cerebro_eeg.commands.prepare import prepare as verb

    flags = inspect.signature(verb).parameters
    text = " " + " ".join(inspect.getdoc(verb).partition("Args:")[2].split())
    for option in options_of(name):
        start = text.index(f" {option}: ")
        others = [text.find(f" {flag}: ", start + 1) for flag in flags]
        help = text[start : min((place for place in others if place > 0), default=len(text))]
        assert re.search(rf"\b{name}\b", help), option


def test_a_recipe_is_imported_when_it_is_asked_for():
    code = "import sys, cerebro_eeg.data.datasets; print([m for m in sys.modules if 'data.datasets.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_options_reach_the_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for number, name in enumerate(["s1/a.edf", "s1/b.edf", "s2/c.edf"]):
        write_edf(tmp_path / "files" / name, "X", number)
    table = tmp_path / "answer.csv"
    table.write_text("file,label\ns1/a.edf,yes\ns2/c.edf,no\n")
    args = ["prepare", "folder", str(tmp_path / "files"), "--out", str(tmp_path / "store"), "--workers", "0"]
    args += ["--labels", str(table), "--subject", "parent", "--events", "listed", "--map", str(tmp_path / "map.json")]
    assert cli.main([*args, "--mains", "50", "--reference", "average", "--causal"]) == 0
    store = Store(tmp_path / "store")
    assert len({record.subject for record in store.recordings}) == 2
    assert sorted(i.label for record in store.recordings for i in record.labels.get("answer", ())) == ["no", "yes"]
    assert {event.name for record in store.recordings for event in record.events} == {"listed"}
    assert store.info.settings["events"] == ["listed"]
    assert store.info.settings["signal"]["reference"] == "average"
    assert store.info.settings["signal"]["filter_phase"] == "causal"
    names = json.loads((tmp_path / "map.json").read_text())
    assert (tmp_path / "map.json").stat().st_mode & 0o777 == 0o600
    assert sorted(names["recordings"].values()) == ["s1/a.edf", "s1/b.edf", "s2/c.edf"]
    assert {record.id for record in store.recordings} == set(names["recordings"])
    assert {names["subjects"][record.subject] for record in store.recordings} == {"s1", "s2"}
    capsys.readouterr()
    assert cli.main([*args, "--mains", "50"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "signal.filter_phase is 'causal' in the store, 'zero' was asked for" in line
    assert "signal.reference is 'average' in the store" in line


def test_other_splits_than_by_subject_are_said(tmp_path, capsys):
    pack = write_pack(tmp_path / "pack")
    assert cli.main(["prepare", "openeeg", str(pack), "--out", str(tmp_path / "store"), "--workers", "0"]) == 0
    assert "splits of motion_reg are disjoint by trial, not by subject" in capsys.readouterr().err.splitlines()


SLOW = 1000  # recordings: so many that a busy machine is not done before the interrupt comes


def open_slowly(number, policy):
    time.sleep(0.05)
    return recording_of(np.random.default_rng(number).normal(0, 20, (500, 2)).astype(np.float32), 250.0)


def find_slow():
    return (Item(f"r{number}", partial(open_slowly, number), size=10) for number in range(SLOW))


def slow(folder):
    return Recipe("slow", "takes its time", find_slow, own_ids=True, mains=50.0, tried_on_real_files=True)


def test_an_interrupt_is_one_line(tmp_path):
    code = COMMAND.replace('"fake"] = "test_prepare:fake"', '"slow"] = "test_prepare:slow"')
    args = [sys.executable, "-c", code, "prepare", "slow", ".", "--out", str(tmp_path / "store"), "--workers", "2"]
    env = os.environ | {"PYTHONPATH": PATHS}
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
        end = time.monotonic() + 300
        while committed(tmp_path / "store") < 2:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
        _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "cerebro-eeg: interrupted"
    assert "Traceback" not in said
    assert 2 <= committed(tmp_path / "store") < SLOW
