"""The store gives back what was written, says what it could not hold, and never takes damage for data."""

import errno
import fcntl
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.storing.records import Interval, StoredSegment, StoreError, check, decode, split_line, to_line
from cerebro_eeg.data.storing.skip_log import SkipLog, parse, read_reasons, read_skipped, write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store, read_info, to_text
from cerebro_eeg.data.storing.writer import KEPT_ROWS, ScaleSample, ShardWriter, robust_scale
from cerebro_eeg.errors import CerebroError, ConfigError, InputError, RecordingError

SETTINGS = {"signal": {"high": 75.0, "low": 0.1, "notch": 50.0}, "reference": "as_recorded", "recipe": 1}
CHANNELS = ("Fp1", "Cz", "Fp1-F7")


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """Thousands of stores; the order of what goes to the disk has a test of its own, and real kills a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def make(folder):
    create_store(folder, "test", SETTINGS, "abcd")
    return folder


def signal(id, samples=40):
    """What the recording with this id consists of: always the same."""
    return np.random.default_rng(int.from_bytes(id.encode(), "big")).normal(0, 30, (samples, 3)).astype(np.float32)


def add(writer, id, x=None, blocks=1, **details):
    x = signal(id) if x is None else x
    with writer.recording(id, CHANNELS[: x.shape[1]], 64.0) as draft:
        draft.segment(0.0)
        for block in np.array_split(x, blocks):
            draft.write(block)
        return draft.commit(**{"native_sfreq": 250.0, "subject": f"s{id}", **details})


def filled(folder, count=3, writer="w0", **options):
    """A store of the recordings r0, r1, ..."""
    with ShardWriter(make(folder), writer, **options) as shard:
        for number in range(count):
            add(shard, f"r{number}")
    return folder


def message(call, kind=CerebroError):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert "/" not in text  # no path
    return text


# What goes in comes out.

VALUES = [0.0, -0.0, 1e-9, 12.34, -65504.0, 65504.0, 65505.0, -70000.0, 70000.0, np.nan, np.inf, -np.inf]
BLOCKS = st.lists(st.lists(st.tuples(*[st.sampled_from(VALUES)] * 2), max_size=6), min_size=1, max_size=4)


def plain_segments(segments, sfreq):
    """The same by one row after the other."""
    rows, found, counts = [], [], {"not_finite": 0, "too_large": 0}
    for onset, blocks in segments:
        joined = False
        for position, row in enumerate([row for block in blocks for row in block]):
            if all(abs(value) <= 65504 for value in row):
                if not joined:
                    found.append([len(rows), len(rows), onset + position / sfreq])
                rows.append(row)
                found[-1][1] += 1
                joined = True
            else:
                counts["too_large" if np.isfinite(row).all() else "not_finite"] += 1
                joined = False
    return np.array(rows, np.float32).reshape(-1, 2).astype(np.float16), found, counts


@given(recordings=st.lists(st.lists(BLOCKS, max_size=3), min_size=1, max_size=4), sfreq=st.sampled_from([64.0, 200.5]))
def test_round_trip(tmp_path_factory, recordings, sfreq):
    folder = make(tmp_path_factory.mktemp("store"))
    expected = {}
    with ShardWriter(folder, "w", shard_bytes=20) as writer:
        for number, segments in enumerate(recordings):
            timed = [(100.0 * place, blocks) for place, blocks in enumerate(segments)]
            x, found, counts = plain_segments(timed, sfreq)
            with writer.recording(f"r{number}", ("C3", "C4"), sfreq) as draft:
                for place, (onset, blocks) in enumerate(timed):
                    draft.segment(onset, short=place % 2 == 1)
                    for block in blocks:
                        draft.write(np.array(block, np.float32).reshape(-1, 2))
                if len(x):
                    expected[f"r{number}"] = x, found, counts, draft.commit(native_sfreq=100.0)
                else:
                    with pytest.raises(RecordingError) as caught:
                        draft.commit(native_sfreq=100.0)
                    assert caught.value.code == "empty"
    store = Store(folder)
    store.verify(full=True)
    assert [record.id for record in store.recordings] == sorted(expected)
    for record in store.recordings:
        x, found, counts, returned = expected[record.id]
        assert record == returned
        assert [[s.start, s.stop, s.onset] for s in record.segments] == found
        assert all(s.short == (s.onset % 200 >= 100) for s in record.segments)
        assert record.quality == counts
        got = store.read(record, 0, record.samples)
        assert got.tobytes() == x.tobytes()  # also the sign of a zero
        start, stop = len(x) // 3, len(x) - len(x) // 4
        assert np.array_equal(store.read(record, start, stop), x[start:stop])
        buffer = np.zeros((stop - start, 2), np.float16)
        store.read_into(store.number(record.id), start, stop, buffer)
        assert np.array_equal(buffer, x[start:stop])


@given(st.lists(st.integers(1, 99), max_size=5))
def test_blocks_leave_no_trace(tmp_path_factory, cuts):
    x = signal("r", 100)
    x[[17, 60, 61], 1] = np.nan, 1e5, np.inf
    with (
        ShardWriter(make(tmp_path_factory.mktemp("store")), "w") as writer,
        writer.recording("r", CHANNELS, 64) as draft,
    ):
        draft.segment(3.0)
        for block in np.split(x, sorted(cuts)):
            draft.write(block)
        record = draft.commit(native_sfreq=64.0)
    assert [(s.start, s.stop, s.onset) for s in record.segments] == [
        (0, 17, 3.0),
        (17, 59, 3 + 18 / 64),
        (59, 97, 3 + 62 / 64),
    ]
    assert record.quality == {"not_finite": 2, "too_large": 1}


def test_every_field_comes_back(tmp_path):
    details = {
        "native_sfreq": 32.0,
        "subject": "sub-01",
        "events": (Event(0.25, 0.0, "left fist"), Event(0.5, 0.125, "µ ✓")),
        "labels": {
            "task": (Interval(0.0, 0.5, "train", "seiz"), Interval(0.5, 0.625)),
            "angles": (Interval(0.1, 0.2, "test", None, (0.1, -2.0)),),
        },
        "mains": 50.0,
        "faults": ("last-record-cut",),
        "quality": {"flat": 2, "not_finite": 5},
        "source_bytes": 12345,
    }
    with ShardWriter(make(tmp_path), "w") as writer:
        written = add(writer, "r", **details)
    (record,) = Store(tmp_path).recordings
    assert record == written
    assert {name: getattr(record, name) for name in details} == {
        **details,
        "quality": {"flat": 2, "not_finite": 5, "too_large": 0},
    }
    assert (record.channels, record.sfreq, record.samples, record.upsampled) == (CHANNELS, 64.0, 40, True)
    assert (record.seconds, record.bytes) == (0.625, 240)
    line = (tmp_path / "w-0000.jsonl").read_bytes()
    assert json.loads(line)["recording"]["labels"]["task"][0]["label"] == "seiz"  # plain JSON for other tools
    assert read_info(tmp_path) == Store(tmp_path).info
    assert (read_info(tmp_path).dataset, read_info(tmp_path).settings) == ("test", SETTINGS)


def test_float16_is_half_a_step_from_what_came(tmp_path):
    x = np.random.default_rng(0).normal(0, 100, (500, 3)).astype(np.float32)
    with ShardWriter(make(tmp_path), "w") as writer:
        record = add(writer, "r", x)
    found = Store(tmp_path).read(record, 0, 500)
    assert (np.abs(found.astype(np.float64) - x) <= np.spacing(np.abs(found)).astype(np.float64) / 2).all()


# The hash.


def test_hash_is_the_same_for_any_writers_shards_and_order(tmp_path):
    rng = random.Random(0)
    ids = [f"r{number}" for number in range(12)]
    hashes, orders = set(), set()
    for case in range(12):
        folder = make(tmp_path / str(case))
        rng.shuffle(ids)
        count = 1 + case % 4
        for number in range(count):
            with ShardWriter(folder, f"w{number}", shard_bytes=rng.choice([1, 500, 1 << 30])) as writer:
                for id in ids[number::count]:
                    add(writer, id, blocks=rng.randint(1, 5))
        store = Store(folder)
        store.verify(full=True)
        hashes.add(store.hash())
        orders.add(tuple(record.id for record in store.recordings))
    assert len(hashes) == len(orders) == 1


def test_hash_does_not_see_the_order_of_names(tmp_path):
    for folder, tasks in (("one", ("a", "b")), ("two", ("b", "a"))):
        with ShardWriter(make(tmp_path / folder), "w") as writer:
            add(writer, "r", labels={task: (Interval(0, 1, task),) for task in tasks}, quality=dict.fromkeys(tasks, 1))
    assert Store(tmp_path / "one").hash() == Store(tmp_path / "two").hash()


def test_hash_sees_every_field_and_every_sample(tmp_path):
    hashes = []
    x = signal("r")
    other = x.copy()
    other[20, 1] += 1
    variants = [{}, {"x": other}, {"mains": 50.0}, {"labels": {"t": (Interval(0, 1),)}}, {"subject": "t"}]
    for number, details in enumerate(variants):
        with ShardWriter(make(tmp_path / str(number)), "w") as writer:
            add(writer, "r", **details)
        hashes.append(Store(tmp_path / str(number)).hash())
    assert len(set(hashes)) == len(hashes)


def test_a_part_that_ran_twice_counts_once(tmp_path):
    filled(tmp_path)
    alone = Store(tmp_path).hash()
    filled(tmp_path, writer="w1")
    assert Store(tmp_path).hash() == alone
    assert len(Store(tmp_path).recordings) == 3


def test_two_contents_of_one_id_are_refused(tmp_path):
    filled(tmp_path)
    with ShardWriter(tmp_path, "w1") as writer:
        add(writer, "r1", signal("another"))
    assert "'r1' is in the store twice with different content, again in w1-0000" in message(lambda: Store(tmp_path))


# Damage.


def test_a_crash_at_every_byte_leaves_a_prefix_and_the_next_writer_goes_on(tmp_path):
    whole = filled(tmp_path / "whole")
    payload, sums, lines = ((whole / f"w0-0000{end}").read_bytes() for end in (".bin", ".sums", ".jsonl"))
    assert len(sums) == 12
    line_ends = [0, *(i + 1 for i, byte in enumerate(lines) if byte == 10)]
    states = []  # what a crash can leave: samples, sums or the line of a recording up to a byte, and what comes before
    for done in range(3):
        states += [(size, 4 * done, line_ends[done], done) for size in range(240 * done, 240 * done + 240)]
        states += [(240 * done + 240, size, line_ends[done], done) for size in range(4 * done, 4 * done + 4)]
        states += [
            (240 * done + 240, 4 * done + 4, size, done + (size == line_ends[done + 1]))
            for size in range(line_ends[done], line_ends[done + 1] + 1)
        ]
    expected = Store(whole).hash()
    folder = make(tmp_path / "crashed")
    resumed = 0
    for state, (size, sum_size, line_size, done) in enumerate(states):
        contents = {".bin": payload[:size], ".sums": sums[:sum_size], ".jsonl": lines[:line_size]}
        for end, content in contents.items():
            path = folder / f"w0-0000{end}"
            path.unlink(missing_ok=True)  # some file systems flush a file that is emptied and filled again
            path.write_bytes(content)
        store = Store(folder)
        assert [record.id for record in store.recordings] == ["r0", "r1", "r2"][:done]
        if state % 11 == 0 or (size % 240 == 0 and line_size in line_ends):
            with ShardWriter(folder, "w0") as writer:
                assert sorted(writer.ids) == ["r0", "r1", "r2"][:done]
                assert (folder / "w0-0000.bin").stat().st_size == 240 * done
                assert (folder / "w0-0000.sums").stat().st_size == 4 * done
                assert (folder / "w0-0000.jsonl").stat().st_size == line_ends[done]
                for number in range(done, 3):
                    add(writer, f"r{number}")
            store = Store(folder)
            store.verify(full=True)
            assert store.hash() == expected
            assert (folder / "w0-0000.bin").read_bytes() == payload
            assert (folder / "w0-0000.sums").read_bytes() == sums
            resumed += 1
    assert len(states) > 2000
    assert resumed > 150


def test_samples_that_are_gone_are_an_error(tmp_path):
    """No crash does this: samples are on the disk before their line. So it is damage, and nothing may be cut off."""
    filled(tmp_path)
    payload = (tmp_path / "w0-0000.bin").read_bytes()
    for size in sorted({*range(0, 720, 9), 1, 239, 241, 479, 481, 719}):
        (tmp_path / "w0-0000.bin").write_bytes(payload[:size])
        text = message(lambda: Store(tmp_path), StoreError)
        assert f"w0-0000.bin ends before the samples of line {size // 240 + 1} of w0-0000.jsonl" in text
    message(lambda: ShardWriter(tmp_path, "w0"), StoreError)
    assert (tmp_path / "w0-0000.bin").stat().st_size == size
    (tmp_path / "w0-0000.bin").unlink()
    assert "line 1 of" in message(lambda: Store(tmp_path), StoreError)


def test_a_damaged_line_is_an_error_that_names_it(tmp_path):
    filled(tmp_path)
    path = tmp_path / "w0-0000.jsonl"
    good = path.read_bytes()
    starts = [0, *(i + 1 for i, byte in enumerate(good) if byte == 10)]
    for number in (1, 2, 3):
        start, stop = starts[number - 1], starts[number]
        for place in (*range(start, stop, 1 if number == 2 else 5), stop - 1):  # also its line feed
            bad = bytearray(good)
            bad[place] ^= 1 << random.Random(place).randrange(7)
            path.write_bytes(bad)
            assert f"line {number} of w0-0000.jsonl is damaged" in message(lambda: Store(tmp_path), StoreError)
    path.write_bytes(good[: starts[1]] + good[starts[2] :])  # a line that is gone
    assert "line 2 of w0-0000.jsonl is damaged" in message(lambda: Store(tmp_path), StoreError)
    assert "line 2 of w0-0000.jsonl is damaged" in message(lambda: ShardWriter(tmp_path, "w0"), StoreError)
    assert path.read_bytes() == good[: starts[1]] + good[starts[2] :]  # the writer has cut nothing
    path.write_bytes(good)
    Store(tmp_path).verify(full=True)


def test_zeros_of_a_power_cut_are_no_line(tmp_path):
    filled(tmp_path, 2)
    path = tmp_path / "w0-0000.jsonl"
    good = path.read_bytes()
    for tail in (b"\0" * 700, b"\0" * 300 + good[-400:]):
        path.write_bytes(good + tail)
        assert len(Store(tmp_path).recordings) == 2
        with ShardWriter(tmp_path, "w0"):
            assert path.read_bytes() == good


def test_verify_finds_a_changed_sample(tmp_path):
    filled(tmp_path, 4)
    store = Store(tmp_path)
    with open(tmp_path / "w0-0000.bin", "r+b") as file:
        for place in (250, 800):
            file.seek(place)
            file.write(b"\x55")
    store.verify()
    assert "2 of 4 recordings are damaged (r1, r3)" in message(lambda: store.verify(full=True), StoreError)


def test_verify_finds_a_line_that_we_would_not_write(tmp_path):
    filled(tmp_path)
    path = tmp_path / "w0-0000.jsonl"
    lines = path.read_bytes().splitlines()
    entry = split_line(lines[1])
    wrong = replace(decode(entry), sfreq=-1.0)
    path.write_bytes(lines[0] + b"\n" + to_line(wrong, entry.offset) + lines[2] + b"\n")
    assert "1 of 3 recordings are damaged (r1)" in message(Store(tmp_path).verify, StoreError)
    text = to_line(decode(entry), entry.offset).decode()
    for old, new in (('"sfreq"', '"rate"'), ('"events":[]', '"events":[3]'), ('"channels":[', '"channels":7,"x":[')):
        rest = text.replace(old, new)[len('{"crc":"00000000",') : -1].encode()
        foreign = b'{"crc":"%08x",%s\n' % (zlib.crc32(rest), rest)
        path.write_bytes(lines[0] + b"\n" + foreign + lines[2] + b"\n")
        store = Store(tmp_path)
        assert "recording 'r1'" in message(lambda store=store: store.recordings[1], StoreError)
        assert "(r1)" in message(store.verify, StoreError)


# Writing.


def test_nothing_stays_of_what_is_not_committed(tmp_path):
    filled(tmp_path)
    before = Store(tmp_path).hash()
    with ShardWriter(tmp_path, "w0") as writer:

        def fail():
            with writer.recording("x", CHANNELS, 64.0) as draft:
                draft.segment(0.0)
                draft.write(signal("x"))
                raise KeyError("boom")

        with pytest.raises(KeyError, match="boom"):
            fail()
        assert (tmp_path / "w0-0000.bin").stat().st_size == 720
        with writer.recording("y", CHANNELS, 64.0) as draft:
            draft.segment(0.0)
            draft.write(signal("y"))
        assert Store(tmp_path).hash() == before
        message(lambda: draft.write(signal("y")), InputError)
        message(lambda: draft.commit(native_sfreq=1.0), InputError)
        add(writer, "r3")
    filled(tmp_path / "other", 4)
    assert Store(tmp_path).hash() == Store(tmp_path / "other").hash()


def test_mistakes_of_the_caller(tmp_path):
    with ShardWriter(filled(tmp_path), "w0") as writer:
        assert writer.ids == {"r0", "r1", "r2"}
        assert "'r1' is already in the shards" in message(lambda: add(writer, "r1"), ConfigError)
        add(writer, "r3")
        assert "'r3' is already in the shards" in message(lambda: add(writer, "r3"), ConfigError)
        with writer.recording("a", CHANNELS, 64.0) as draft:
            message(lambda: draft.write(signal("a")), InputError)  # no segment
            draft.segment(0.0)
            message(lambda: draft.write(signal("a")[:, :2]), InputError)
            message(lambda: draft.write(signal("a")[0]), InputError)
            assert "one recording at a time" in message(lambda: add(writer, "b"), ConfigError)
    message(lambda: add(writer, "c"), StoreError)  # closed
    message(lambda: ShardWriter(tmp_path, "w.0"), ConfigError)
    assert "store.json is missing" in message(lambda: ShardWriter(tmp_path / "none", "w"), StoreError)
    assert [record.id for record in Store(tmp_path).recordings] == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "a/b"}, "id"),
        ({"id": ""}, "id"),
        ({"subject": "Jane Doe"}, "subject"),
        ({"channels": ("Cz", "Cz", "Pz")}, "channels"),
        ({"channels": ()}, "channels"),
        ({"channels": ("EEG Fp1-REF",)}, "Fp1"),
        ({"sfreq": 0.0}, "sfreq"),
        ({"native_sfreq": float("nan")}, "native_sfreq"),
        ({"samples": 0}, "samples"),
        ({"samples": 41}, "segments"),
        ({"segments": ()}, "segments"),
        ({"segments": (StoredSegment(0, 30, 0.0, False), StoredSegment(31, 40, 1.0, False))}, "segments"),
        ({"segments": (StoredSegment(0, 0, 0.0, False), StoredSegment(0, 40, 1.0, False))}, "segments"),
        ({"segments": (StoredSegment(0, 30, 5.0, False), StoredSegment(30, 40, 1.0, False))}, "onsets"),
        ({"events": (Event(0.0, -1.0, "x"),)}, "events"),
        ({"labels": {"t": (Interval(2.0, 1.0),)}}, "labels"),
        ({"labels": {"t": (Interval(0.0, 1.0, values=("a",)),)}}, "values"),
        ({"faults": ("Recorded by Dr Who",)}, "faults"),
        ({"quality": {"flat": -1}}, "quality"),
        ({"quality": {"flat": 1.5}}, "quality"),
        ({"scale": float("inf")}, "scale"),
        ({"source_bytes": -1}, "source_bytes"),
        ({"sha256": "x"}, "sha256"),
    ],
)
def test_values_without_sense_are_refused_by_name(tmp_path, change, field):
    record = Store(filled(tmp_path, 1)).recordings[0]
    check(record)
    assert field in message(lambda: check(replace(record, **change)))


def test_shards_follow_one_another(tmp_path):
    for ids in (("r0", "r1", "r2"), ("r3", "r4")):
        with ShardWriter(make(tmp_path), "w", shard_bytes=300) as writer:
            for id in ids:
                add(writer, id)
    sizes = {name: (tmp_path / name).stat().st_size for name in sorted(os.listdir(tmp_path)) if name.endswith(".bin")}
    assert sizes == {"w-0000.bin": 480, "w-0001.bin": 480, "w-0002.bin": 240}
    filled(tmp_path / "other", 5)
    assert Store(tmp_path).hash() == Store(tmp_path / "other").hash()


def test_rolling_keeps_no_old_files_open(tmp_path):
    with ShardWriter(make(tmp_path), "w", shard_bytes=1) as writer:
        add(writer, "r0")
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
        for number in range(1, 20):
            add(writer, f"r{number}")
        if before is not None:
            assert len(os.listdir("/proc/self/fd")) == before
    assert len(Store(tmp_path).recordings) == 20


def test_samples_are_on_the_disk_before_their_line_is_begun(tmp_path, monkeypatch):
    calls = []
    with ShardWriter(make(tmp_path), "w") as writer:
        names = {writer._payload: "samples", writer._sums: "sums", writer._lines: "line"}
        pwrite = os.pwrite
        monkeypatch.setattr(
            os, "pwrite", lambda f, data, at: (calls.append(f"write {names[f]}"), pwrite(f, data, at))[1]
        )
        monkeypatch.setattr(os, "fsync", lambda f: calls.append(f"flush {names[f]}"))
        add(writer, "r0", blocks=2)
    samples = ["write samples", "write samples", "flush samples"]
    assert calls == [*samples, "write sums", "flush sums", "write line", "flush line"]


def test_two_writers_of_one_name_are_refused(tmp_path):
    code = (
        "import sys; from pathlib import Path; from cerebro_eeg.data.storing.writer import ShardWriter\n"
        "try: ShardWriter(Path(sys.argv[1]), 'w0')\n"
        "except ValueError as error: print(error)"
    )
    with ShardWriter(make(tmp_path), "w0") as writer, ShardWriter(tmp_path, "w1") as other:
        assert "w0.lock is in use by another process" in message(lambda: ShardWriter(tmp_path, "w0"), StoreError)
        done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        assert "w0.lock is in use by another process" in done.stdout
        add(writer, "r0")
        add(other, "r1")
        reader = Store(tmp_path)  # opening and closing the files of a shard must not end the claim
        reader.read(0, 0, 40)
        del reader
        message(lambda: ShardWriter(tmp_path, "w0"), StoreError)
    with ShardWriter(tmp_path, "w0") as writer:
        assert writer.ids == {"r0"}


def test_a_file_system_without_locks_is_said_and_can_be_used(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    make(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "lock=False" in message(lambda: ShardWriter(tmp_path, "w0"), StoreError)
    with ShardWriter(tmp_path, "w0", lock=False) as writer:
        add(writer, "r0")
    assert len(Store(tmp_path).recordings) == 1


def test_a_writer_is_not_inherited(tmp_path, monkeypatch):
    with ShardWriter(make(tmp_path), "w0") as writer:
        real = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: real + 1)
            assert "belongs to another process" in message(lambda: add(writer, "r0"), StoreError)
        add(writer, "r0")


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import add
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.writer import ShardWriter
folder, limit = Path(sys.argv[1]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
writer = ShardWriter(folder, "w")
count = 0
try:
    for count in range(40):
        add(writer, f"r{count}")
except Exception as error:
    print(type(error).__name__, error)
Store(folder).verify(full=True)
print(count, len(Store(folder).recordings))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with ShardWriter(folder, "w") as writer:
    for number in range(count, 40):
        add(writer, f"r{number}")
"""


@pytest.mark.parametrize("limit", [100, 240, 5000])
def test_a_full_disk_is_one_line_and_what_is_committed_stays(tmp_path, limit):
    """Lines are longer than samples here: only at 100 bytes do the samples not fit, else a line is cut short."""
    make(tmp_path)
    lines = (filled(tmp_path / "other", 40) / "w0-0000.jsonl").read_bytes()
    kept = lines[:limit].count(b"\n")
    assert (kept == 0) == (limit < 5000)
    command = [sys.executable, "-c", FULL, tmp_path, os.path.dirname(__file__), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    error, counts = done.stdout.splitlines()
    assert error.startswith("StoreError the store could not be written: File too large; see to the disk")
    assert counts == f"{kept} {kept}"
    assert Store(tmp_path).hash() == Store(tmp_path / "other").hash()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_disk_that_fails_ends_the_writer(tmp_path, monkeypatch, call, at):
    filled(tmp_path)
    before = Store(tmp_path).hash()
    failing = ShardWriter(tmp_path, "w0")
    real, calls = getattr(os, call), []

    def fail(*args):
        calls.append(args)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert "No space left on device" in message(lambda: add(failing, "r3"), StoreError)
    message(lambda: add(failing, "r3"), StoreError)
    assert Store(tmp_path).hash() == before
    with ShardWriter(tmp_path, "w0") as writer:
        add(writer, "r3")
    assert Store(tmp_path).hash() == Store(filled(tmp_path / "other", 4)).hash()


def test_a_disk_that_takes_little_at_a_time(tmp_path, monkeypatch):
    real = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, offset: real(file, data[:7], offset))
        filled(tmp_path)
    Store(tmp_path).verify(full=True)
    assert Store(tmp_path).hash() == Store(filled(tmp_path / "other")).hash()


# store.json


def test_other_settings_are_refused_with_every_difference(tmp_path):
    make(tmp_path)
    assert make(tmp_path) == tmp_path  # the same again is fine
    other = {"signal": {"high": 75, "low": 0.5, "zero_phase": True}, "reference": "average", "recipe": True}
    text = message(lambda: create_store(tmp_path, "tuab", other, "ef01"), ConfigError)
    for part in (
        "dataset is 'test' in the store, 'tuab' was asked for",
        "its ids were made with another key (give --key",
        "reference is 'as_recorded' in the store, 'average' was asked for",
        "signal.low is 0.1 in the store, 0.5 was asked for",
        "signal.notch is 50.0 in the store, absent was asked for",
        "signal.zero_phase is absent in the store, True was asked for",
    ):
        assert part in text
    assert "high" not in text  # 75 is 75.0
    assert "recipe is 1 in the store, True was asked for" in text
    assert read_info(tmp_path).settings == SETTINGS
    message(lambda: create_store(tmp_path / "new", "t", {"a": float("nan")}), ConfigError)
    message(lambda: create_store(tmp_path / "new", "t", {"a": object()}), ConfigError)


def test_of_many_that_make_a_store_at_once_one_does(tmp_path):
    for case in range(10):
        folder, refused, barrier = tmp_path / str(case), [], threading.Barrier(8)

        def start(number, folder=folder, refused=refused, barrier=barrier):
            barrier.wait()
            try:
                create_store(folder, "test", {"notch": number % 2})
            except ConfigError:
                refused.append(number % 2)

        threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == [1 - read_info(folder).settings["notch"]] * 4
        assert os.listdir(folder) == ["store.json"]


def test_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    make(tmp_path)
    assert os.listdir(tmp_path) == ["store.json"]
    assert read_info(tmp_path).key_check == "abcd"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (None, "not a store"),
        ("", "damaged"),
        ("[]", "damaged"),
        ("\0\xff", "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 2}', "damaged"),
        ('{"format": 3}', "damaged"),
        ('{"format": 4, "new": 1}', "format 4, this version reads 1, 2, 3"),
    ],
)
def test_what_is_not_a_store_is_refused(tmp_path, text, part):
    if text is not None:
        (tmp_path / "store.json").write_text(text)
    assert part in message(lambda: Store(tmp_path), StoreError)


def test_a_disk_that_refuses_is_one_line_without_a_path(tmp_path, monkeypatch):
    filled(tmp_path)

    def refuse(*args):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert "Read-only file system" in message(lambda: ShardWriter(tmp_path, "w1"), StoreError)
        assert "Read-only file system" in message(lambda: SkipLog(tmp_path, "w1"), StoreError)
        assert "Read-only file system" in message(lambda: create_store(tmp_path / "new", "test", {}), StoreError)
        assert "Read-only file system" in message(lambda: write_skipped(tmp_path, {}), StoreError)
    (tmp_path / "w2-0000.jsonl").mkdir()
    assert "could not be read: Is a directory" in message(lambda: Store(tmp_path), StoreError)


# Reading.


def test_ranges_and_ids_that_do_not_exist(tmp_path):
    store = Store(filled(tmp_path))
    record = store.recordings[1]
    for start, stop in ((-1, 3), (3, 2), (0, 41), (41, 41)):
        assert "'r1'" in message(lambda start=start, stop=stop: store.read(record, start, stop), InputError)
        buffer = np.zeros((max(stop - start, 0), 3), np.float16)
        message(lambda start=start, stop=stop, b=buffer: store.read_into(record, start, stop, b), InputError)
    message(lambda: store.read_into(record, 0, 3, np.zeros((4, 3), np.float16)), InputError)
    message(lambda: store.read(replace(record, id="other"), 0, 1), InputError)
    message(lambda: store.number("other"), InputError)
    assert "no recording 3" in message(lambda: store.read(3, 0, 1), InputError)
    message(lambda: store.read_into(3, 0, 1, np.zeros((1, 3), np.float16)), InputError)
    assert store.read(record, 7, 7).shape == (0, 3)
    assert store.read(record, 40, 40).shape == (0, 3)
    store.read_into(record, 7, 7, np.zeros((0, 3), np.float16))
    assert not store.read(record, 0, 5).flags.writeable
    assert np.array_equal(store.read(np.int64(1), 3, 9), store.read(record, 3, 9))
    assert [r.id for r in store.recordings[1:]] == ["r1", "r2"]
    assert store.recordings[-1].id == "r2"
    with pytest.raises(IndexError):
        store.recordings[3]


def test_a_read_that_comes_in_parts(tmp_path, monkeypatch):
    store = Store(filled(tmp_path))
    expected = store.read(1, 2, 40).copy()
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 50), offset))
    monkeypatch.setattr(
        os, "preadv", lambda file, views, offset: preadv(file, [memoryview(views[0]).cast("B")[:7]], offset)
    )
    assert np.array_equal(store.read(1, 2, 40), expected)
    buffer = np.zeros((38, 3), np.float16)
    store.read_into(1, 2, 40, buffer)
    assert np.array_equal(buffer, expected)


def test_a_shard_that_shrinks_or_goes_is_an_error(tmp_path):
    store = Store(filled(tmp_path))
    os.truncate(tmp_path / "w0-0000.bin", 600)
    assert "shorter" in message(lambda: store.read(2, 0, 40), StoreError)
    assert "shorter" in message(lambda: store.read_into(2, 0, 40, np.zeros((40, 3), np.float16)), StoreError)
    os.remove(tmp_path / "w0-0000.bin")
    store = pickle.loads(pickle.dumps(store))  # as a spawned process gets it: with files of its own
    assert "w0-0000.bin of the store cannot be opened: No such file" in message(lambda: store.read(0, 0, 1), StoreError)


def test_many_threads_few_files(tmp_path):
    """Files are closed under the feet of readers; a number that is used anew must not give the samples of another."""
    filled(tmp_path, 12, shard_bytes=1)
    store = Store(tmp_path, max_open=2)
    expected = [store.read(number, 0, 40).copy() for number in range(12)]
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(400):
            number = rng.randrange(12)
            if not np.array_equal(store.read(number, 0, 40), expected[number]):
                wrong.append(number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(store._open) <= 2


def test_files_are_bounded_and_closed(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    filled(tmp_path, 12, shard_bytes=1)
    gc.collect()  # stores of other tests that are not yet collected hold files, too
    before = len(os.listdir("/proc/self/fd"))
    store = Store(tmp_path, max_open=3)
    assert len(os.listdir("/proc/self/fd")) == before  # opened when they are needed
    for number in range(12):
        store.read(number, 0, 1)
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    del store
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_folder_may_be_relative_and_change(tmp_path, monkeypatch):
    filled(tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    store = Store("s")
    monkeypatch.chdir("/")
    assert store.read(0, 0, 40).shape == (40, 3)


READ_ONLY = """
import os, sys
def watch(event, args):
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    if event == "open" and args[2] is not None and args[2] & writes or event in ("os.mkdir", "os.remove", "os.rename"):
        raise PermissionError(f"{event} {args}")
from cerebro_eeg.data.storing.store import Store
sys.dont_write_bytecode = True
sys.addaudithook(watch)
store = Store(sys.argv[1])
store.verify(full=True)
assert store.read(0, 0, 40).shape == (40, 3) and store.skipped() == {"x": "empty"}
assert not {"torch", "mne", "scipy"} & set(sys.modules)
print(store.hash())
"""


def test_reading_writes_nothing(tmp_path):
    filled(tmp_path)
    with SkipLog(tmp_path, "w0") as log:
        log.add("x", "empty")
    for path in tmp_path.iterdir():
        path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        done = subprocess.run([sys.executable, "-c", READ_ONLY, tmp_path], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == Store(tmp_path).hash()
    finally:
        tmp_path.chmod(0o755)


# What was skipped.


def test_skipped_sources_are_noted_once(tmp_path):
    make(tmp_path)
    for _ in range(2):  # the second run finds what the first has noted
        with SkipLog(tmp_path, "w0") as log, SkipLog(tmp_path, "w1") as other:
            log.add("b", "not-edf")
            log.add("a", "empty")
            other.add("a", "empty")
            other.add("c", "cut")
    assert (tmp_path / "w0.skipped.csv").read_text() == "b,not-edf,#ad38124b\na,empty,#6e2697bb\n"
    assert read_skipped(tmp_path) == {"a": "empty", "b": "not-edf", "c": "cut"}
    assert list(read_skipped(tmp_path)) == ["a", "b", "c"]
    with ShardWriter(tmp_path, "w0") as writer:
        add(writer, "c")  # mended since
    assert Store(tmp_path).skipped() == {"a": "empty", "b": "not-edf"}
    write_skipped(tmp_path, read_reasons(tmp_path, {"c"}))
    lines = (tmp_path / "skipped.csv").read_text().splitlines()
    assert lines[0] == "id,reason,why,remedy"
    assert [line.split(",")[:2] for line in lines[1:]] == [["a", "empty"], ["b", "not-edf"]]
    assert Store(tmp_path).skipped() == {"a": "empty", "b": "not-edf"}  # the summary is not a source


def test_the_last_reason_of_a_writer_counts_and_that_of_two_is_one(tmp_path):
    with SkipLog(tmp_path, "w0") as log, SkipLog(tmp_path, "w1") as other:
        log.add("a", "z-first")
        log.add("a", "m-then")
        other.add("a", "x")
        assert read_skipped(tmp_path) == {"a": "m-then"}
        for id, code in (("a b", "x"), ("a", "two words"), ("a", ""), ("", "x"), ("a,b", "x"), ("a\n", "x")):
            message(lambda id=id, code=code: log.add(id, code), ConfigError)
        assert "in use" in message(lambda: SkipLog(tmp_path, "w0"), StoreError)


def test_a_skip_log_cut_at_every_byte(tmp_path):
    path = tmp_path / "w.skipped.csv"
    whole = b"a,empty,#6e2697bb\nb,not-edf,#ad38124b\nc,cut,#bde5a7e9\n"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        done = whole[:size].count(b"\n")
        assert list(read_skipped(tmp_path)) == ["a", "b", "c"][:done]
        with SkipLog(tmp_path, "w") as log:
            for id, code in (("a", "empty"), ("b", "not-edf"), ("c", "cut")):
                log.add(id, code)
        assert path.read_bytes() == whole
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert "of w.skipped.csv is damaged" in message(lambda damaged=damaged: parse(damaged, path.name), StoreError)
    path.write_bytes(b"a,empty\nb,very-long")  # of an earlier release, without sums
    SkipLog(tmp_path, "w").close()
    assert path.read_bytes() == b"a,empty\n"
    path.write_bytes(b"a,empty\nb;not-edf\nc,cut\n")
    assert "line 2 of w.skipped.csv is damaged" in message(lambda: read_skipped(tmp_path), StoreError)
    assert "line 2 of w.skipped.csv is damaged" in message(lambda: SkipLog(tmp_path, "w"), StoreError)


# Scale.


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (5, 4), (200, 3), (201, 2)])
def test_scale_is_that_of_the_model(shape):
    import torch

    from cerebro_eeg.model.patches import robust_scale as of_the_model

    x = np.random.default_rng(0).normal(5, 30, shape).astype(np.float16)
    expected = float(of_the_model(torch.from_numpy(x.astype(np.float32).T)))
    assert robust_scale(x) == pytest.approx(expected, rel=1e-6)
    sample = ScaleSample()
    for block in np.array_split(x, 3):
        sample.add(block)
    assert sample.scale() == robust_scale(x)


def test_scale_of_a_long_recording_comes_from_some_of_its_rows():
    rng = np.random.default_rng(0)
    time = np.arange(5 * KEPT_ROWS + 11)[:, None]
    quiet = rng.normal(0, 20, (len(time), 3)) * np.where(time < len(time) / 2, 1.0, 3.0)
    in_step = 50 * np.sin(2 * np.pi * time * np.array([1 / 8, 1 / 16, 1 / 4]) + 0.3)  # every 16th sample is the same
    for x, close in ((quiet.astype(np.float16), 0.03), (in_step.astype(np.float16), 0.2)):
        sample, whole = ScaleSample(), ScaleSample()
        for block in np.array_split(x, 17):
            sample.add(block)
        whole.add(x)
        assert sample.scale() == whole.scale() == pytest.approx(robust_scale(x), rel=close)
        assert KEPT_ROWS / 2.1 < sample._kept <= KEPT_ROWS


def test_scale_knows_gaussian_noise_and_outliers():
    x = np.random.default_rng(0).normal(0, 25, (20000, 4))
    x[::50] = 5000
    assert robust_scale(x) == pytest.approx(25, rel=0.05)


def test_going_on_with_another_scipy_is_said(tmp_path):
    """Its transforms round differently, so the hash would be that of no version."""
    create_store(tmp_path, "x", {})
    path = tmp_path / "store.json"
    fields = json.loads(path.read_text())
    del fields["sha256"]
    here = fields["transforms"]
    assert here.startswith("SciPy ")
    path.write_text(to_text({**fields, "transforms": "SciPy 1.0"}))
    with pytest.warns(UserWarning, match=f"begun with SciPy 1.0 and goes on with {here}"):
        create_store(tmp_path, "x", {})
    path.write_text(to_text({**fields, "transforms": None}))  # a store from before this was kept
    create_store(tmp_path, "x", {})


def test_a_system_without_file_locks_imports_reads_and_says_why_it_cannot_write(tmp_path):
    """Windows has no fcntl."""
    with ShardWriter(make(tmp_path), "w0") as writer:
        add(writer, "r0")
    code = (
        "import sys\nsys.modules['fcntl'] = None\n"
        "import cerebro_eeg.runs.signals, cerebro_eeg.data.batching.loader, cerebro_eeg.data.storing.prepare\n"
        "from pathlib import Path\nfrom cerebro_eeg.data.storing.store import Store\n"
        "from cerebro_eeg.data.storing.writer import ShardWriter\n"
        "print(len(Store(Path(sys.argv[1])).recordings))\n"
        "try: ShardWriter(Path(sys.argv[1]), 'w1')\nexcept ValueError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [
        "1",
        "stores are written on Linux and macOS, whose file locks Windows has not; use WSL",
    ]
