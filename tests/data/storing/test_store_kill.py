"""Writers that are killed, at random moments and at named points: nothing lost, nothing twice, the same store hash.

The processes are real ones and die by SIGKILL, or by ``os._exit`` at a point of ``writer.py``. One process (``main``
below) forks them all, because starting Python anew for each would take most of the time, and the process of the tests
may have threads.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.data.storing.skip_log import SkipLog, read_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter

CHANNELS = ("Fp1", "Fp2", "Cz", "O1-O2")
SHARD = 60_000  # bytes: a few recordings, so that shards follow one another, too
POINTS = (
    "block",
    "after-payload",
    "after-payload-sync",
    "after-sums",
    "after-sums-sync",
    "after-line",
    "after-line-sync",
)
KILLS = 40


def ids(count):
    return [f"r{number:03d}" for number in range(count)]


def is_skipped(id):
    """Every seventh source cannot be read."""
    return int(id[1:]) % 7 == 3


def write(folder, writer, wanted, slow=False):
    """What a worker of a preparation does: leave out what is done, add the rest."""
    with ShardWriter(folder, writer, shard_bytes=SHARD) as shard, SkipLog(folder, writer) as log:
        for id in wanted:
            rng = np.random.default_rng(int(id[1:]))
            if is_skipped(id):
                log.add(id, "not-edf")
            elif id not in shard.ids:
                with shard.recording(id, CHANNELS, 256.0) as draft:
                    for onset in (0.0, 10.0):
                        draft.segment(onset)
                        for _ in range(3):
                            block = rng.normal(0, 30, (int(rng.integers(1, 600)), 4))
                            block[rng.integers(len(block))] = np.nan
                            draft.write(block)
                            time.sleep(0.001 if slow else 0)
                    draft.commit(native_sfreq=250.0, subject=f"s{id}")


def start(folder, writer, wanted, slow=False, fault=None):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["CEREBRO_FAULT"] = fault or ""
            write(folder, writer, wanted, slow)
            code = 0
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def end(pid, sig=None):
    if sig is not None:
        os.kill(pid, sig)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def missing(folder, wanted):
    """What is still to do; on the way, the store must be sound."""
    store = Store(folder)
    store.verify(full=True)
    found = [record.id for record in store.recordings]
    assert sorted(set(found)) == found
    return [id for id in wanted if id not in found and id not in store.skipped()], set(found)


def kill_at_random(folder, seed):
    """Start one to four writers on what is missing and kill them, again and again, until the last may end.

    Where they are done before all kills are dealt, because a busy machine let this process wait, there is more to do.
    """
    rng = random.Random(seed)
    count, kills, partial, before = 120, 0, 0, set()
    for turn in itertools.count():
        wanted = ids(count)
        todo, found = missing(folder, wanted)
        assert before <= found  # nothing that was seen is ever gone
        partial += before < found
        before = found
        if not todo and kills == KILLS:
            return {"count": count, "partial": partial}
        if not todo:
            count += 120
            continue
        writers = rng.randint(1, 4)
        rng.shuffle(todo)
        pids = [start(folder, f"w{n}", todo[n::writers], slow=True) for n in range(writers)]
        _wait_for_lines(folder, min(len(before) + turn % 4, sum(not is_skipped(id) for id in wanted)))
        time.sleep(rng.uniform(0, 0.015))
        for pid in pids:
            if kills < KILLS:
                kills += end(pid, signal.SIGKILL) == -signal.SIGKILL
            else:
                assert end(pid) == 0


def _wait_for_lines(folder, count):
    deadline = time.monotonic() + 300
    while sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def kill_at_points(folder):
    """A kill at every point, twice, each in the recording behind the one of the kill before; then the rest."""
    wanted = ids(24)
    stored = [id for id in wanted if not is_skipped(id)]
    exits, grown = [], []
    for id, point in zip(stored, POINTS * 2, strict=False):
        exits.append(end(start(folder, "a", wanted, fault=f"{point}:{id}")))
        grown.append(len(missing(folder, wanted)[1]))
    last = stored[len(exits) + 1]
    exits.append(end(start(folder, "a", wanted, fault=f"block:{last}")))
    for point in ("between-cuts", "after-sums-cut"):  # killed while it mends
        exits.append(end(start(folder, "a", wanted, fault=f"{point}:a")))
    exits.append(end(start(folder, "a", wanted)))
    return {"exits": exits, "grown": grown}


def kill_between_shards(folder):
    wanted = ids(24)
    exits = [end(start(folder, "a", wanted, fault=f"between-files:a-{number:04d}")) for number in (0, 1, 2)]
    return {"exits": [*exits, end(start(folder, "a", wanted))]}


def claims(folder):
    """A claim ends with its process, and not before."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with ShardWriter(folder, "a"):
            os.write(writer, b"x")
            time.sleep(600)
        os._exit(0)
    os.read(reader, 1)
    refused = end(start(folder, "a", ids(3)))
    end(pid, signal.SIGKILL)
    return {"refused": refused, "after": end(start(folder, "a", ids(3)))}


def watch(folder):
    """Read the store over and over while two writers fill it; what is seen is whole and only grows."""
    wanted = ids(60)
    pids = [start(folder, f"w{n}", wanted[n::2], slow=True) for n in range(2)]
    seen, before = [], set()
    while len(before) + len(read_skipped(folder)) < len(wanted):
        _, found = missing(folder, wanted)
        assert before <= found
        before = found
        seen.append(len(found))
    return {"exits": [end(pid) for pid in pids], "seen": sorted(set(seen))}


def forked_readers(folder):
    """A store that was opened before a fork: both sides read from the same descriptors."""
    write(folder, "a", ids(12))
    store = Store(folder, max_open=1)
    store.verify(full=True)
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(10):
                    store.verify(full=True)
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    for _ in range(10):
        store.verify(full=True)
    return {"exits": [end(pid) for pid in pids]}


def main(case, folder, *arguments):
    print(json.dumps(globals()[case](Path(folder), *arguments)))


def run(case, folder, *arguments):
    create_store(folder, "test", {})
    command = [sys.executable, __file__, case, folder, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The hash of the first so many recordings, written without a break."""
    hashes = {}

    def get(count):
        if count not in hashes:
            folder = tmp_path_factory.mktemp("whole")
            create_store(folder, "test", {})
            write(folder, "only", ids(count))
            hashes[count] = Store(folder).hash()
        return hashes[count]

    return get


def check(folder, count, expected):
    store = Store(folder)
    store.verify(full=True)
    assert store.hash() == expected(count)
    skipped = [id for id in ids(count) if is_skipped(id)]
    assert store.skipped() == dict.fromkeys(skipped, "not-edf")
    assert len(store.recordings) + len(skipped) == count
    logs = [line for path in folder.glob("*.skipped.csv") for line in path.read_text().splitlines()]
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(set(lines)) == len(lines) == len(store.recordings)  # not even a duplicate that would not count
    assert len(logs) >= len(skipped)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(tmp_path, expected, seed):
    found = run("kill_at_random", tmp_path, seed)
    assert found["partial"] >= 5  # kills that came in the middle of the work, not before it or after it
    check(tmp_path, found["count"], expected)


def test_killed_at_every_point(tmp_path, expected):
    found = run("kill_at_points", tmp_path)
    assert found["exits"] == [9] * 17 + [0]  # 14 at points, three more
    # The recordings before it count, and itself when its line is whole.
    assert found["grown"] == [number + POINTS[number % 7].startswith("after-line") for number in range(14)]
    check(tmp_path, 24, expected)


def test_killed_between_the_files_of_a_shard(tmp_path, expected):
    assert run("kill_between_shards", tmp_path)["exits"] == [9, 9, 9, 0]
    check(tmp_path, 24, expected)


def test_a_claim_ends_with_its_process(tmp_path):
    assert run("claims", tmp_path) == {"refused": 1, "after": 0}


def test_a_reader_beside_writers_sees_what_is_committed(tmp_path, expected):
    found = run("watch", tmp_path)
    assert found["exits"] == [0, 0]
    assert len(found["seen"]) > 3  # it did look while they wrote
    check(tmp_path, 60, expected)


def test_readers_that_fork(tmp_path):
    assert run("forked_readers", tmp_path)["exits"] == [0, 0, 0]


if __name__ == "__main__":
    main(*sys.argv[1:])
