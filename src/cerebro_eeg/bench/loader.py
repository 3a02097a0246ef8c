"""The cost of reading windows: steps of the loader and single windows, against bare reads of the same bytes.

``compare_steps`` reads windows of a store in the order of training. For each number of threads, the same steps are read
by threads that only call ``os.preadv`` on a list of places made before, and by ``Loader.stream``, with and without a
process per thread. It measures wall-clock time. Everything is read once before, so a store that fits is in the page
cache. The forms "first epoch" also check the sums of the blocks that they touch, as every process does once.

``compare_reads`` reads single windows in random places by ``Store.read`` and ``Store.read_into``, against bare reads.
The forms take turns every few windows, and each form reads all windows. It measures the thread's CPU time, because a
read from a warm cache waits for nothing.
"""

import contextlib
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cerebro_eeg.bench.clock import Turns, of_this_thread, on_host, take_turns
from cerebro_eeg.bench.noise_store import write_index, write_noise
from cerebro_eeg.bench.options import LoaderBench as Options
from cerebro_eeg.bench.options import PretrainBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, series_of
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError

TURN = 100  # windows that one form reads before the next one does: a shared machine slows down for longer than that
READ_COLUMNS: dict[str, str | None] = {
    "form": "",
    "us_per_window": ".2f",
    "spread": ".0%",
    "gb_per_s": ".2f",
    "over_bare": ".3fx",
}
BARE = {"os.pread": "os.pread", "Store.read": "os.pread", "Store.read, by recording": "os.pread"}
BARE |= {"os.preadv": "os.preadv", "Store.read_into": "os.preadv"}


def compare_reads(options: Options, folder: Path, store: Store) -> ResultTable:
    """Measure the CPU time of single windows."""
    rng = random.Random(0)
    samples = round(options.seconds * 256)
    fitting = [number for number, place in enumerate(store._places) if place[3] > samples]
    if not fitting:
        raise InputError(f"no recording of the store is longer than {options.seconds:g} s; give another --store")
    chosen, files = [], {}
    for _ in range(max(TURN, options.windows)):
        number = rng.choice(fitting)
        shard, offset, channels, length, _ = store._places[number]
        start = rng.randrange(length - samples)
        name = store._shards[shard]
        if name not in files:
            files[name] = os.open(folder / f"{name}.bin", os.O_RDONLY)
        chosen.append((number, start, files[name], offset + 2 * channels * start, 2 * channels * samples))
    records = list(store.recordings)
    buffer = np.empty(max(entry[4] for entry in chosen) // 2, np.float16)

    def pread(part: slice) -> None:
        for _, _, file, offset, size in chosen[part]:
            os.pread(file, size, offset)

    def read(part: slice) -> None:
        for number, start, *_ in chosen[part]:
            store.read(number, start, start + samples)

    def read_record(part: slice) -> None:
        for number, start, *_ in chosen[part]:
            store.read(records[number], start, start + samples)

    def preadv(part: slice) -> None:
        for _, _, file, offset, size in chosen[part]:
            os.preadv(file, [buffer[: size // 2].data], offset)

    def read_into(part: slice) -> None:
        for number, start, _, _, size in chosen[part]:
            store.read_into(number, start, start + samples, buffer[: size // 2])

    forms = dict(zip(BARE, (pread, read, read_record, preadv, read_into), strict=True))
    try:
        for form in forms.values():
            form(slice(None))
        calls = {name: _parts(form, place, len(chosen)) for place, (name, form) in enumerate(forms.items())}
        turns = take_turns(calls, options.rounds * (len(chosen) // TURN), of_this_thread, warm=0)
    finally:
        for file in files.values():
            os.close(file)
    mean = sum(entry[4] for entry in chosen) / len(chosen)
    rows: list[list[Cell]] = []
    for name, timing in turns.timings.items():
        each = timing.seconds / TURN
        found: list[Cell] = [name, 1e6 * each, timing.spread, mean / each / 1e9 if each else None]
        rows.append([*found, turns.times(name, BARE[name]) if turns.timings[BARE[name]].seconds else None])
    title = f"Single windows of {options.seconds:g} s, {mean / 1024:.0f} KiB on average, warm cache, CPU time"
    series = [Series("over bare", [str(row[0]) for row in rows], [_number(row[4]) for row in rows])]
    return ResultTable("reads", title, READ_COLUMNS, rows, [Panel("time over a bare read", "", series, 1.0)])


def _parts(form: Callable[[slice], None], place: int, windows: int) -> Callable[[], None]:
    """Return a call that reads the next windows each time.

    The forms start at different windows; otherwise one form would warm the cache for the next.
    """
    turn = -1

    def call() -> None:
        nonlocal turn
        turn += 1
        first = (turn + place * windows // TURN // len(BARE)) * TURN % (windows // TURN * TURN)
        form(slice(first, first + TURN))

    return call


def _number(cell: Cell) -> float | None:
    return cell if isinstance(cell, float) else None


Place = tuple[int, int, int, int]  # file, bytes, offset in the file, offset in the buffer
COLUMNS: dict[str, str | None] = {
    "threads": "",
    "form": "",
    "windows_per_s": ",.0f",
    "spread": ".0%",
    "gb_per_s": ".2f",
    "over_bare": ".2fx",
}


def run(options: Options, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure steps by number of threads, and single windows."""
    with stored(options) as folder:
        store = Store(folder)
        windows = find_windows(store, seconds=options.seconds)
        if len(windows) == 0:
            raise InputError(f"the store has no window of {options.seconds:g} s; give another --store or --seconds")
        tables = [compare_steps(options, folder, store, windows, say), compare_reads(options, folder, store)]
    return tables


@contextlib.contextmanager
def stored(options: Options | PretrainBench) -> Iterator[Path]:
    """Yield the given store, or a store of noise that exists for as long as the block lasts."""
    if options.store is not None:
        yield options.store
        return
    with tempfile.TemporaryDirectory() as folder:
        write_noise(Path(folder), options.recordings, round(60 * options.minutes))
        yield Path(folder)


def compare_steps(
    options: Options, folder: Path, store: Store, windows: Windows, say: Callable[[str], None]
) -> ResultTable:
    order = Order(0, [len(windows)], min(options.batch, len(windows)))
    steps = [order.step(number) for number in range(options.steps)]
    count = sum(len(step.window) for step in steps)
    files: dict[str, int] = {}
    rows = TableRows(COLUMNS, say)
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
    return ResultTable("loader", title, COLUMNS, rows, [Panel("windows/s", "threads", series_of(rows, 2))], notes)


def places(folder: Path, store: Store, windows: Windows, step: Step, files: dict[str, int]) -> list[Place]:
    """Find the place of every window of a step; add the files that it opens to ``files``."""
    found, end = [], 0
    for window in step.window.tolist():
        shard, offset, channels, _, _ = store._places[int(windows.recording[window])]
        name = store._shards[shard]
        if name not in files:
            files[name] = os.open(folder / f"{name}.bin", os.O_RDONLY)
        size = 2 * channels * windows.samples
        found.append((files[name], size, offset + 2 * channels * int(windows.start[window]), end))
        end += size
    return found


def bare(pool: ThreadPoolExecutor, threads: int, steps: list[list[Place]]) -> None:
    """Read the same bytes by threads that do nothing else."""

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

        def first_epoch(loader: Loader) -> None:
            store.forget_checks()
            deque(loader.stream(steps), maxlen=0)

        forms = {
            "preadv": lambda: bare(pool, threads, listed),
            "Loader, first epoch": lambda: first_epoch(loader),
            "Loader": lambda: deque(loader.stream(steps), maxlen=0),
            "Loader, processes, first epoch": lambda: first_epoch(processes),
            "Loader, processes": lambda: deque(processes.stream(steps), maxlen=0),
        }
        return take_turns(forms, options.rounds, on_host, warm=1)


def _beside(store: Store, windows: Windows, step: Step) -> tuple[str, ...]:
    """Measure the other costs of a step: its plan, its layout and its order."""
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
    """Measure the time to open, hash and decode a large index."""
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
