"""What reading from a store costs: random windows against a bare pread of the same bytes, and opening a large index.

    python benchmarks/store.py [--windows 4000 --rounds 9] [--index 100000]

A store of recordings with 20 to 36 channels is written and read once, so that it lies in the page cache. Then windows
of 1,280 samples in random places are read by `os.pread` alone, by `Store.read`, by `os.preadv` into a buffer and by
`Store.read_into`; they take turns every 100 windows, each comes to all windows, and medians are compared.
The index is one of recordings with 23 channels, three labelled intervals each.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cerebro_eeg.channels import VOCABULARY
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.stored import Interval, StoredRecording, StoredSegment, to_line
from cerebro_eeg.data.storing.writer import ShardWriter

WINDOW = 1280
TURN = 100  # windows that one form reads before the next one does: shorter than the moods of a shared machine


def fill(folder: Path, recordings: int, seconds: int) -> None:
    """A store of noise in four shards."""
    create_store(folder, "benchmark", {})
    rng = np.random.default_rng(0)
    block = rng.normal(0, 30, (seconds * 256, 36)).astype(np.float32)
    for number in range(recordings):
        with ShardWriter(folder, f"w{number % 4}") as writer:
            count = 20 + number % 17
            with writer.recording(f"r{number:05d}", VOCABULARY[:count], 256.0) as draft:
                draft.segment(0.0)
                draft.write(block[:, :count])
                draft.commit(native_sfreq=256.0)


def compare_reads(folder: Path, windows: int, rounds: int) -> None:
    store = Store(folder)
    rng = random.Random(0)
    chosen = []
    for _ in range(windows):
        number = rng.randrange(len(store.recordings))
        shard, offset, channels, samples = store._places[number]
        start = rng.randrange(samples - WINDOW)
        name = folder / f"{store._shards[shard]}.bin"
        chosen.append((number, start, name, offset + 2 * channels * start, 2 * channels * WINDOW))
    files = {name: os.open(name, os.O_RDONLY) for name in {entry[2] for entry in chosen}}
    bare = [(files[name], size, offset) for _, _, name, offset, size in chosen]
    ours = [(number, start, start + WINDOW) for number, start, *_ in chosen]
    decoded = list(store.recordings)
    records = [decoded[number] for number, *_ in chosen]
    buffer = np.empty((WINDOW, 36), np.float16)
    pieces = [buffer.reshape(-1)[: size // 2] for _, size, _ in bare]

    def pread(part: slice) -> None:
        for file, size, offset in bare[part]:
            os.pread(file, size, offset)

    def read(part: slice) -> None:
        for number, start, stop in ours[part]:
            store.read(number, start, stop)

    def read_record(part: slice) -> None:
        for record, (_, start, stop) in zip(records[part], ours[part], strict=True):
            store.read(record, start, stop)

    def preadv(part: slice) -> None:
        for (file, _, offset), piece in zip(bare[part], pieces[part], strict=True):
            os.preadv(file, [piece.data], offset)

    def read_into(part: slice) -> None:
        for (number, start, stop), piece in zip(ours[part], pieces[part], strict=True):
            store.read_into(number, start, stop, piece)

    forms: dict[str, Callable[[slice], None]] = {
        "os.pread": pread,
        "Store.read": read,
        "  by recording": read_record,
        "os.preadv": preadv,
        "Store.read_into": read_into,
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form(slice(None))
    for turn in range(windows // TURN * rounds):
        for place, name in enumerate(forms):
            # Each reads other windows, or the first would fetch them into the CPU's cache for the next; in time, each
            # reads all of them.
            first = (turn + place * windows // TURN // len(forms)) * TURN % windows
            start = time.thread_time()  # of the CPU: a warm read waits for nothing, and others may use this machine
            forms[name](slice(first, first + TURN))
            times[name].append((time.thread_time() - start) / TURN)
    mean = statistics.mean(size for _, size, _ in bare)
    print(f"{windows} windows of {WINDOW} samples x 20-36 channels, {mean / 1024:.0f} KiB on average, warm cache")
    print(f"{'form':18}{'us/window':>11}{'quartiles':>18}{'GB/s':>7}{'/ bare':>9}")
    for name, seconds in times.items():
        low, median, high = (1e6 * value for value in statistics.quantiles(seconds, n=4))
        bare_median = 1e6 * statistics.median(
            times["os.preadv" if name in ("os.preadv", "Store.read_into") else "os.pread"]
        )
        quartiles = f"{low:.2f} to {high:.2f}"
        print(f"{name:18}{median:>11.2f}{quartiles:>18}{mean / median / 1e3:>7.1f}{median / bare_median:>9.3f}")


def open_index(folder: Path, count: int) -> None:
    create_store(folder, "benchmark", {})
    intervals = tuple(Interval(20.0 * i, 20.0 * i + 20, "train", "bckg") for i in range(3))
    record = StoredRecording(
        id="r",
        subject="s",
        channels=VOCABULARY[:23],
        sfreq=256.0,
        samples=1,
        segments=(StoredSegment(0, 1, 0.0, True),),
        events=(),
        labels={"task": intervals},
        native_sfreq=250.0,
        mains=60.0,
        faults=("last-record-cut",),
        quality={"flat": 0, "clipped": 3, "not_finite": 0, "too_large": 0},
        scale=12.5,
        source_bytes=1_000_000,
        sha256="0" * 64,
    )
    for shard in range(8):
        offset = 0
        with open(folder / f"w{shard}-0000.jsonl", "wb") as lines:
            for number in range(shard, count, 8):
                lines.write(to_line(replace(record, id=f"r{number:07d}", subject=f"s{number // 7}"), offset))
                offset += record.bytes
        with open(folder / f"w{shard}-0000.bin", "wb") as payload:
            payload.truncate(offset)
    size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        store = Store(folder)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    store.hash()
    hashed = time.perf_counter() - start
    start = time.perf_counter()
    subjects = {record.subject for record in store.recordings}
    decoded = time.perf_counter() - start
    print(
        f"opening {len(store.recordings)} recordings in 8 shards ({size / 1e6:.0f} MB of lines): "
        f"{min(seconds):.2f} to {max(seconds):.2f} s, {min(seconds) / count * 1e6:.1f} us each; hash {hashed:.2f} s; "
        f"decoding all, one after the other, {decoded:.2f} s ({len(subjects)} subjects)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--recordings", type=int, default=68)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--index", type=int, default=100_000)
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), args.recordings, args.seconds)
        compare_reads(Path(folder), args.windows, args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        open_index(Path(folder), args.index)


if __name__ == "__main__":
    main()
