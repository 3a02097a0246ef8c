"""What reading windows costs: steps of the loader, and single windows, beside bare preads of the same bytes.

Windows of a store, whatever its montages, in the order of training. For each number of threads the same steps are read
by as many threads that do nothing but ``os.preadv`` into one buffer a step, from a list of places that was made before,
and by ``Loader.stream``, also with a process behind each thread; wall-clock time. Everything is read once before, so a
store that fits lies in the page cache.
"""

import contextlib
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cerebro_eeg.bench.clock import Turns, on_host, take_turns
from cerebro_eeg.bench.noise_store import write_index, write_noise
from cerebro_eeg.bench.options import Loader as Options
from cerebro_eeg.bench.options import Pretrain
from cerebro_eeg.bench.reads import compare_reads
from cerebro_eeg.bench.table import Cell, Panel, Rows, Table, series_of
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError

Place = tuple[int, int, int, int]  # file, bytes, offset in the file, offset in the buffer
COLUMNS: dict[str, str | None] = {
    "threads": "",
    "form": "",
    "windows_per_s": ",.0f",
    "spread": ".0%",
    "gb_per_s": ".2f",
    "over_bare": ".2fx",
}


def run(options: Options, say: Callable[[str], None]) -> list[Table]:
    """Steps by number of threads, and single windows."""
    with stored(options) as folder:
        store = Store(folder)
        windows = find_windows(store, seconds=options.seconds)
        if len(windows) == 0:
            raise InputError(f"the store has no window of {options.seconds:g} s; give another --store or --seconds")
        tables = [compare_steps(options, folder, store, windows, say), compare_reads(options, folder, store)]
    return tables


@contextlib.contextmanager
def stored(options: Options | Pretrain) -> Iterator[Path]:
    """The store that was given, or one of noise for as long as the block lasts."""
    if options.store is not None:
        yield options.store
        return
    with tempfile.TemporaryDirectory() as folder:
        write_noise(Path(folder), options.recordings, round(60 * options.minutes))
        yield Path(folder)


def compare_steps(options: Options, folder: Path, store: Store, windows: Windows, say: Callable[[str], None]) -> Table:
    order = Order(0, [len(windows)], min(options.batch, len(windows)))
    steps = [order.step(number) for number in range(options.steps)]
    count = sum(len(step.window) for step in steps)
    files: dict[str, int] = {}
    rows = Rows(COLUMNS, say)
    try:
        listed = [places(folder, store, windows, step, files) for step in steps]
        size = sum(entry[1] for step in listed for entry in step)
        for threads in options.threads:
            turns = _turns(options, store, windows, steps, listed, threads)
            for form, timing in turns.timings.items():
                found: list[Cell] = [threads, form, count / timing.seconds, timing.spread, size / timing.seconds / 1e9]
                rows.append([*found, turns.times(form, "preadv")])
    finally:
        for file in files.values():
            os.close(file)
    notes = _beside(store, windows, steps[0]) + (_index(options.index) if options.index else ())
    kib = size / count / 1024
    title = f"Loader, {options.steps} steps of {len(steps[0].window)} windows, {kib:.0f} KiB a window, warm cache"
    return Table("loader", title, COLUMNS, rows, [Panel("windows/s", "threads", series_of(rows, 2))], notes)


def places(folder: Path, store: Store, windows: Windows, step: Step, files: dict[str, int]) -> list[Place]:
    """Where the bytes of a step lie; files are opened into ``files``."""
    found, end = [], 0
    for window in step.window.tolist():
        shard, offset, channels, _ = store._places[int(windows.recording[window])]
        name = store._shards[shard]
        if name not in files:
            files[name] = os.open(folder / f"{name}.bin", os.O_RDONLY)
        size = 2 * channels * windows.samples
        found.append((files[name], size, offset + 2 * channels * int(windows.start[window]), end))
        end += size
    return found


def bare(pool: ThreadPoolExecutor, threads: int, steps: list[list[Place]]) -> None:
    """The same bytes, by threads that do nothing else."""

    def fill(view: memoryview, part: list[Place]) -> None:
        for file, size, offset, place in part:
            os.preadv(file, [view[place : place + size]], offset)

    for step in steps:
        view = np.empty(step[-1][3] + step[-1][1], np.uint8).data
        cuts = [len(step) * part // threads for part in range(threads + 1)]
        for done in [pool.submit(fill, view, step[cuts[k] : cuts[k + 1]]) for k in range(threads)]:
            done.result()


def _turns(
    options: Options, store: Store, windows: Windows, steps: list[Step], listed: list[list[Place]], threads: int
) -> Turns:
    sources = [(store, windows)]
    with (
        ThreadPoolExecutor(threads) as pool,
        Loader(sources, threads=threads) as loader,
        Loader(sources, threads=threads, processes=True) as processes,
    ):
        forms = {
            "preadv": lambda: bare(pool, threads, listed),
            "Loader": lambda: deque(loader.stream(steps), maxlen=0),
            "Loader, processes": lambda: deque(processes.stream(steps), maxlen=0),
        }
        return take_turns(forms, options.rounds, on_host, warm=1)


def _beside(store: Store, windows: Windows, step: Step) -> tuple[str, ...]:
    """What a step costs beside its reading."""
    large = Order(0, [15_800_000], 4096)
    numbers = iter(range(1000))
    with Loader([(store, windows)], threads=0) as loader:
        raw = loader.read(step)
        parts = {
            "plan": lambda: loader._plan(step),
            "laid out on this CPU": lambda: lay_out(raw, "cpu"),
            "order, 4,096 of 15.8 million windows": lambda: large.step(next(numbers)),
        }
        turns = take_turns(parts, 9, on_host)
    words = ", ".join(f"{name} {1e3 * timing.seconds:.2f} ms" for name, timing in turns.timings.items())
    return (f"beside the reading, a step: {words}",)


def _index(count: int) -> tuple[str, ...]:
    """What opening, hashing and decoding a large index costs."""
    with tempfile.TemporaryDirectory() as folder:
        size = write_index(Path(folder), count)
        opened = take_turns({"open": lambda: Store(Path(folder))}, 3, on_host, warm=1).timings["open"]
        store = Store(Path(folder))
        start = time.perf_counter()
        store.hash()
        hashed = time.perf_counter() - start
        start = time.perf_counter()
        subjects = {record.subject for record in store.recordings}
        decoded = time.perf_counter() - start
    return (
        f"an index of {count:,} recordings ({size / 1e6:.0f} MB): opened in {opened.seconds:.2f} s, "
        f"hashed in {hashed:.2f} s, decoded in {decoded:.2f} s ({len(subjects):,} subjects)",
    )
