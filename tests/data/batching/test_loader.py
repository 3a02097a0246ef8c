"""The loader returns what the store holds, laid out as plain loops would, with any number of threads or processes."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.match import VOCABULARY, Channel
from cerebro_eeg.data.batching import reader_pool
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step, in_order
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ConfigError, InputError

MONTAGES = [("Fp1", "Cz"), ("Fp1-F7", "O2", "T7", "Fp1"), ("Pz",), VOCABULARY[:32]]
TASKS = {
    "state": {"kind": "classification", "names": ["rest", "work"], "seconds": 1.0, "stride": 1.0},
    "angle": {"kind": "regression", "names": ["knee"], "seconds": 1.0, "stride": 1.0},
}


def fill(folder, recordings, name="r", rate=64.0, **details):
    """A store of noise; montages take turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        create_store(folder, "test", {"tasks": TASKS, "split_unit": "subject"}, "abcd")
        rng = np.random.default_rng(len(name))
        with ShardWriter(folder, "w", shard_bytes=20_000) as writer:
            for number in range(recordings):
                names = MONTAGES[number % len(MONTAGES)]
                with writer.recording(f"{name}{number}", names, rate) as draft:
                    draft.segment(0.0)
                    draft.write(rng.normal(0, 10 + number, (400, len(names))).astype(np.float32))
                    labels = {
                        "state": [Interval(k, k + 1.0, "train", ("rest", "work")[k % 2]) for k in range(6)],
                        "angle": [Interval(k, k + 1.0, "train", None, (k + number / 10,)) for k in range(6)],
                    }
                    draft.commit(native_sfreq=rate, subject=f"s{number}", labels=labels, **details)
    return Store(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two stores and their windows."""
    first = fill(tmp_path_factory.mktemp("first"), 9)
    second = fill(tmp_path_factory.mktemp("second"), 5, "other")
    return [(store, find_windows(store, seconds=1, task="state")) for store in (first, second)]


def plain(sources, step):
    """The batch by loops over windows, channels and samples."""
    rows, ids, scales, counts = [], [], [], []
    for source, window in zip(step.source.tolist(), step.window.tolist(), strict=True):
        store, windows = sources[source]
        record = store.recordings[int(windows.recording[window])]
        start = int(windows.start[window])
        x = store.read(record, start, start + windows.samples)
        for column, name in enumerate(record.channels):
            rows.append([x[t, column] for t in range(len(x))])
            ids.append(Channel(*name.split("-")).ids)
            scales.append(record.scale)
        counts.append(len(record.channels))
    return np.array(rows, np.float16), np.array(ids), np.array(scales, np.float32), counts


def same(a, b):
    """Whether two steps hold the same, bit by bit."""
    tensors = "flat channels_R2 scale_B label_B key_B epoch_B".split()
    return a.counts == b.counts and all(torch.equal(getattr(a, name), getattr(b, name)) for name in tensors)


@pytest.mark.parametrize(("threads", "processes"), [(0, False), (1, False), (3, False), (1, True), (3, True)])
def test_a_batch_equals_loops(two, threads, processes):
    order = Order(0, [len(windows) for _, windows in two], 13)
    with Loader(two, threads=threads, processes=processes) as loader:
        for number in range(4):
            step = order.step(number)
            raw = loader.read(step)
            batch = lay_out(raw, "cpu")
            rows, ids, scales, counts = plain(two, step)
            assert batch.signal_RT.dtype == torch.float16
            assert batch.signal_RT.numpy().tobytes() == rows.tobytes()
            assert batch.channels_R2.tolist() == ids.tolist()
            assert batch.channels_R2.dtype == torch.int64
            assert batch.scale_R.numpy().tolist() == scales.tolist()
            assert raw.counts == tuple(counts)
            expected = Layout.ragged(counts)
            assert (batch.layout.windows, batch.layout.width) == (expected.windows, expected.width)
            assert torch.equal(batch.layout.slot_R, expected.slot_R)
            assert torch.equal(batch.layout.present_BC, expected.present_BC)


@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=8), size=st.integers(1, 9))
def test_lay_out_equals_loops_for_any_counts(counts, size):
    total = sum(counts) * size
    flat = torch.arange(total, dtype=torch.float32).to(torch.float16)  # small enough to be exact
    none = torch.zeros(len(counts), dtype=torch.int64)
    ids = torch.arange(1, 2 * sum(counts) + 1).reshape(-1, 2)
    scale = torch.arange(len(counts), dtype=torch.float32)
    step = Step(none.numpy(), none.numpy(), none.numpy())
    batch = lay_out(RawStep(flat, size, tuple(counts), ids, scale, none, None, none, none, step), "cpu")
    windows, first = [], 0
    for count in counts:
        windows.append(torch.tensor([[float(first + t * count + c) for t in range(size)] for c in range(count)]))
        first += count * size
    expected = Batch.ragged(windows, list(ids.split(counts)), scale)
    assert torch.equal(batch.signal_RT.float(), expected.signal_RT)
    assert torch.equal(batch.channels_R2, expected.channels_R2)
    assert torch.equal(batch.scale_R, expected.scale_R)
    assert (batch.layout.slot_R is None) == (len(set(counts)) == 1)


def test_one_montage_needs_no_index(two):
    step = Step(np.zeros(6, np.int64), np.flatnonzero(two[0][1].recording == 1)[:6], np.zeros(6, np.int64))
    with Loader(two[:1], threads=2) as loader:
        batch = lay_out(loader.read(step), "cpu")
    assert batch.layout.slot_R is None
    assert batch.signal_RT.numpy().tobytes() == plain(two, step)[0].tobytes()
    assert batch.signal_RT.is_contiguous()


def test_a_shifted_index_would_be_seen(two):
    """The reference can fail: a window one sample later is another batch."""
    step = Order(0, [len(windows) for _, windows in two], 13).step(0)
    later = Step(step.source, (step.window + 1) % [len(two[s][1]) for s in step.source.tolist()], step.epoch)
    assert plain(two, step)[0].tobytes() != plain(two, later)[0].tobytes()


def test_labels_keys_and_epochs_go_with_their_windows(two):
    order = Order(4, [len(windows) for _, windows in two], 50)
    step = order.step(3)
    with Loader(two, threads=2) as loader:
        raw = loader.read(step)
    for place, (source, window) in enumerate(zip(step.source.tolist(), step.window.tolist(), strict=True)):
        windows = two[source][1]
        assert raw.label_B[place] == windows.label[window] == windows.start[window] // 64 % 2
        assert raw.key_B[place] == windows.keys(np.array([window]))[0]
        assert raw.epoch_B[place] == step.epoch[place]
    assert set(raw.epoch_B.tolist()) == {1, 2}  # 84 windows: step 3 of 50 goes over from one epoch to the next
    assert raw.target_BK is None


def test_targets(two):
    store = two[0][0]
    windows = find_windows(store, seconds=1, task="angle")
    with Loader([(store, windows)], threads=0) as loader:
        raws = list(loader.stream(in_order([len(windows)], 7)))
    assert torch.cat([raw.target_BK for raw in raws]).tolist() == windows.target.tolist()
    assert raws[-1].target_BK.shape == (len(windows) % 7 or 7, 1)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize(("threads", "ahead"), [(0, 1), (1, 1), (2, 3), (8, 2), (3, 50)])
def test_the_stream_is_the_same_for_any_number_of_threads(two, threads, ahead, processes):
    order = Order(9, [len(windows) for _, windows in two], 17, [1, 3])
    with Loader(two, threads=0) as alone:
        expected = [alone.read(order.step(number)) for number in range(12)]
    with Loader(two, threads=threads, ahead=ahead, processes=processes) as loader:
        found = list(loader.stream(order.step(number) for number in range(12)))
    assert len(found) == 12
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_reading_ahead_is_bounded_and_ends_with_the_stream(two):
    asked = []

    def steps():
        for number in range(1000):
            asked.append(number)
            yield Order(0, [30, 30], 8).step(number)

    before = threading.active_count()
    with Loader(two, threads=3, ahead=4) as loader:
        stream = loader.stream(steps())
        next(stream)
        assert len(asked) == 5
        next(stream)
        assert len(asked) == 6
        stream.close()
        assert same(loader.read(Order(0, [30, 30], 8).step(0)), loader.read(Order(0, [30, 30], 8).step(0)))
    assert threading.active_count() == before


def test_ranks_read_the_parts_of_one_step(two):
    order = Order(2, [len(windows) for _, windows in two], 21)
    with Loader(two, threads=2) as loader:
        whole = loader.read(order.step(1))
        for world in (1, 2, 4):
            parts = [loader.read(order.step(1).part(rank, world)) for rank in range(world)]
            assert torch.equal(torch.cat([part.flat for part in parts]), whole.flat)
            assert torch.equal(torch.cat([part.key_B for part in parts]), whole.key_B)
        empty = loader.read(order.step(1).part(0, 50))
    assert empty.counts == ()
    assert empty.flat.shape == (0,)


def test_another_process_reads_the_same(two, tmp_path):
    folder = two[0][0]._folder
    code = (
        "import hashlib, sys\n"
        "from cerebro_eeg.data.batching.loader import Loader\n"
        "from cerebro_eeg.data.batching.order import Order\n"
        "from cerebro_eeg.data.storing.store import Store\n"
        "from cerebro_eeg.data.batching.windows import find_windows\n"
        "def digest(folder, threads):\n"
        "    store = Store(folder)\n"
        "    windows = find_windows(store, seconds=1, stride=0.5)\n"
        "    order, found = Order(3, [len(windows)], 16), hashlib.sha256()\n"
        "    with Loader([(store, windows)], threads=threads) as loader:\n"
        "        for raw in loader.stream(order.step(number) for number in range(9)):\n"
        "            found.update(raw.flat.numpy().tobytes() + raw.key_B.numpy().tobytes())\n"
        "    return found.hexdigest()\n"
    )
    scope = {}
    exec(code, scope)
    script = code + "print(digest(sys.argv[1], int(sys.argv[2])))\n"
    command = [sys.executable, "-c", script, str(folder), "4"]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert other == scope["digest"](folder, 0)


def test_windows_travel_to_other_processes(two):
    windows = pickle.loads(pickle.dumps(two[0][1]))  # to a process of ours; nothing of ours lies on a disk like that
    assert windows.keys().tolist() == two[0][1].keys().tolist()


def processes(loader):
    return [process._process for process in loader._readers._all]


def is_gone(number):
    """Ended, whoever is to hear of it."""
    status = Path(f"/proc/{number}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(true, seconds=300.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_processes_read_and_end_with_the_loader(two, monkeypatch):
    """They, not this process, read; closing the loader ends them, also in the middle of a stream."""
    order = Order(4, [len(windows) for _, windows in two], 16)
    with Loader(two, threads=0) as alone:
        expected = alone.read(order.step(0))
    monkeypatch.setattr(Store, "read_into", None)
    with Loader(two, threads=2, processes=True) as loader:
        started = processes(loader)
        assert len(started) == 2
        stream = loader.stream(order.step(number) for number in range(9))
        assert same(next(stream), expected)
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_processes_leave_signals_to_the_run(two, name):
    """A terminal or Slurm may send them to every process: the run still reads what it needs to end in good order."""
    order = Order(4, [len(windows) for _, windows in two], 16)
    with Loader(two, threads=1, processes=True) as loader:
        first = loader.read(order.step(0))  # it has begun
        for process in processes(loader):
            process.send_signal(getattr(signal, name))
        assert same(loader.read(order.step(0)), first)
        assert all(process.poll() is None for process in processes(loader))


def test_a_killed_process_costs_nothing_but_speed(two, caplog):
    order = Order(4, [len(windows) for _, windows in two], 16)
    with Loader(two, threads=0) as alone:
        expected = [alone.read(order.step(number)) for number in range(6)]
    with Loader(two, threads=2, processes=True) as loader:
        found = [loader.read(order.step(0))]
        for process in processes(loader):
            process.kill()
            process.wait()
        found += [loader.read(order.step(number)) for number in range(1, 6)]
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a process that read windows has ended; threads read instead"] * 2


def test_where_no_process_can_be_started_threads_read(two, monkeypatch, caplog):
    order = Order(4, [len(windows) for _, windows in two], 16)
    with Loader(two, threads=2) as threads:
        expected = threads.read(order.step(3))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with Loader(two, threads=0, processes=True) as loader:  # none is needed
        assert same(loader.read(order.step(3)), expected)
        assert loader.read(order.step(3).part(0, 50)).counts == ()
    assert not caplog.records
    with Loader(two, threads=2, processes=True) as loader:
        assert same(loader.read(order.step(3)), expected)
        assert loader.read(order.step(3).part(0, 50)).counts == ()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == "no process for reading can be started (No such file or directory); threads read instead"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a mount of /proc")
def test_processes_end_with_a_run_that_is_killed(two):
    code = (
        "import sys, time\n"
        "from cerebro_eeg.data.batching.loader import Loader\n"
        "from cerebro_eeg.data.batching.windows import find_windows\n"
        "from cerebro_eeg.data.storing.store import Store\n"
        "store = Store(sys.argv[1])\n"
        "loader = Loader([(store, find_windows(store, seconds=1))], threads=2, processes=True)\n"
        "print(*(process._process.pid for process in loader._readers._all), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(two[0][0]._folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        numbers = [int(number) for number in run.stdout.readline().split()]
        assert len(numbers) == 2
        assert not any(map(is_gone, numbers))
        run.kill()
    assert wait_until(lambda: all(map(is_gone, numbers)))


def test_a_process_that_ends_at_once_is_said(two, tmp_path, monkeypatch, caplog):
    """Whether it is gone before it is told the files, or before it is asked for the first time."""
    order = Order(4, [len(windows) for _, windows in two], 16)
    with Loader(two, threads=1) as threads:
        expected = threads.read(order.step(3))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with Loader(two, threads=1, processes=True) as loader:
        assert same(loader.read(order.step(3)), expected)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.endswith("; threads read instead")


def test_a_process_holds_few_files_open(tmp_path, monkeypatch):
    """More files than it may hold, in any order; what is read is what lies there."""
    paths = []
    for number in range(7):
        paths.append(os.fsencode(tmp_path / f"{number}.bin"))
        (tmp_path / f"{number}.bin").write_bytes(bytes(range(10 * number, 10 * number + 10)))
    monkeypatch.setattr(reader_pool, "OPEN", 3)
    pieces = [(number * 3 % 7, number % 4, 1 + number % 6) for number in range(40)]
    found, opened = bytearray(sum(size for *_, size in pieces)), {}
    reader_pool.read(paths, opened, pieces, memoryview(found))
    assert bytes(found) == b"".join(
        bytes(range(10 * file + offset, 10 * file + offset + size)) for file, offset, size in pieces
    )
    assert len(opened) == 3
    with pytest.raises(OSError, match="shorter"):
        reader_pool.read(paths, opened, [(0, 8, 5)], memoryview(bytearray(5)))
    for number in opened.values():
        os.close(number)


def test_windows_outside_a_recording_are_refused(two):
    store, windows = two[0]
    record = store.recordings[0]
    for start in (-1, record.samples - windows.samples + 1):
        with pytest.raises(InputError, match=rf"samples {start} to {start + windows.samples} of recording"):
            store.pieces(np.array([0]), np.array([start]), windows.samples)


@pytest.mark.parametrize("processes", [False, True])
def test_a_store_that_fails_says_so(two, tmp_path, processes):
    store = fill(tmp_path, 4)
    windows = find_windows(store, seconds=1)
    for path in tmp_path.glob("*.bin"):
        os.truncate(path, 10)
    loader = Loader([(store, windows)], threads=2, processes=processes)
    with loader, pytest.raises(ValueError, match="shorter") as caught:
        list(loader.stream(in_order([len(windows)], 5)))
    assert "\n" not in str(caught.value)


def test_sources_must_fit_together(two, tmp_path):
    (store, windows), (other, _) = two
    for wrong in (
        [],
        [(store, windows), (other, find_windows(other, seconds=2))],
        [(store, windows), (other, find_windows(other, seconds=1, task="angle"))],
        [(other, windows)],  # the windows of another store
    ):
        with pytest.raises(InputError):
            Loader(wrong)
    faster = fill(tmp_path / "fast", 2, rate=128.0)
    with pytest.raises(InputError, match="64 samples at 64 Hz, 64 samples at 128 Hz"):
        Loader([(store, windows), (faster, find_windows(faster, seconds=0.5))])
    grown = fill(tmp_path / "grown", 9, "q")
    stale = find_windows(grown, seconds=1)
    with pytest.raises(InputError):
        Loader([(fill(tmp_path / "shifted", 9, "p"), stale)])
    refused = [{"threads": -1}, {"ahead": 0}] + [{"pin": True}] * (not torch.cuda.is_available())
    for options in refused:
        with pytest.raises(ConfigError):
            Loader(two, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("processes", [False, True])
def test_the_device_lays_out_the_same(two, processes):
    order = Order(0, [len(windows) for _, windows in two], 40)
    with Loader(two, threads=2, processes=processes, pin=True) as loader:
        for number in range(3):
            raw = loader.read(order.step(number))
            assert raw.flat.is_pinned()
            here, there = lay_out(raw, "cpu"), lay_out(raw, "cuda")
            assert torch.equal(here.signal_RT, there.signal_RT.cpu())
            assert torch.equal(here.channels_R2, there.channels_R2.cpu())
            assert torch.equal(here.scale_R, there.scale_R.cpu())
            assert torch.equal(here.layout.slot_R, there.layout.slot_R.cpu())
