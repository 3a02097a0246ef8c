"""Single windows in random places of a store: ``Store.read`` and ``Store.read_into`` against bare reads of the bytes.

Forms take turns every few windows, each comes to all of them; CPU time of the thread, since a read from a warm cache
waits for nothing.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cerebro_eeg.bench.clock import of_this_thread, take_turns
from cerebro_eeg.bench.options import Loader as Options
from cerebro_eeg.bench.table import Cell, Panel, Series, Table
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError

TURN = 100  # windows that one form reads before the next one does: shorter than the moods of a shared machine
COLUMNS: dict[str, str | None] = {
    "form": "",
    "us_per_window": ".2f",
    "spread": ".0%",
    "gb_per_s": ".2f",
    "over_bare": ".3fx",
}
BARE = {"os.pread": "os.pread", "Store.read": "os.pread", "Store.read, by recording": "os.pread"}
BARE |= {"os.preadv": "os.preadv", "Store.read_into": "os.preadv"}


def compare_reads(options: Options, folder: Path, store: Store) -> Table:
    """Microseconds a window, in CPU time."""
    rng = random.Random(0)
    samples = round(options.seconds * 256)
    fitting = [number for number, place in enumerate(store._places) if place[3] > samples]
    if not fitting:
        raise InputError(f"no recording of the store is longer than {options.seconds:g} s; give another --store")
    chosen, files = [], {}
    for _ in range(max(TURN, options.windows)):
        number = rng.choice(fitting)
        shard, offset, channels, length = store._places[number]
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
    return Table("reads", title, COLUMNS, rows, [Panel("time over a bare read", "", series, 1.0)])


def _parts(form: Callable[[slice], None], place: int, windows: int) -> Callable[[], None]:
    """A call that reads the next windows each time; forms start apart, or one would warm the cache for the next."""
    turn = -1

    def call() -> None:
        nonlocal turn
        turn += 1
        first = (turn + place * windows // TURN // len(BARE)) * TURN % (windows // TURN * TURN)
        form(slice(first, first + TURN))

    return call


def _number(cell: Cell) -> float | None:
    return cell if isinstance(cell, float) else None
