"""Seen: the windows of a run's steps: read, counted for the record of its weights, named for errors."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cerebro_eeg.config import Training
from cerebro_eeg.data.batching.loader import Loader, RawStep
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.runs.sources import describe_source
from cerebro_eeg.train.distributed import World


def read_steps(
    order: Order, loader: Loader, world: World, pieces: int, first: int, last: int
) -> Iterator[tuple[Step, list[RawStep]]]:
    """Each step from ``first`` up to ``last``, and this process's windows of it in so many pieces."""
    steps: deque[Step] = deque()  # those that the loader has asked for

    def asked() -> Iterator[Step]:
        for number in range(first, last):
            steps.append(order.step(number))
            mine = steps[-1].part(world.rank, world.size)
            yield from (mine.part(part, pieces) for part in range(pieces))

    raws = loader.stream(asked())
    for _ in range(first, last):
        found = [next(raws) for _ in range(pieces)]
        yield steps.popleft(), found


def read_alone(loader: Loader, windows: Sequence[Windows], step: Step) -> Iterator[tuple[str, RawStep]]:
    """The name of each window of a step, and that window by itself."""
    for number, name in enumerate(name_windows(windows, step)):
        yield name, loader.read(step.part(number, len(step)))


def note_seen(notes: dict[str, Any], windows: Sequence[Windows], done: Step) -> None:
    """Count the windows of a step by montage, in the notes of a state."""
    seen = notes.setdefault("seen", [[0] * len(of_source.facts.montages) for of_source in windows])
    for number, of_source in enumerate(windows):
        chosen = done.window[done.source == number]
        montages, counts = np.unique(of_source.facts.montage[of_source.recording[chosen]], return_counts=True)
        for montage, count in zip(montages.tolist(), counts.tolist(), strict=True):
            seen[number][montage] += count


def record(
    before: Training, notes: dict[str, Any], sources: Sequence[tuple[Store, Windows]], hashes: Sequence[str], steps: int
) -> Training:
    """What weights were trained on, after a run of ``steps`` steps."""
    seen = notes.get("seen", [[0] * len(windows.facts.montages) for _, windows in sources])
    electrodes = dict(before.electrode_windows)
    for (_, windows), counts in zip(sources, seen, strict=True):
        for name, count in electrode_windows(windows, counts).items():
            electrodes[name] = electrodes.get(name, 0) + count
    data = [describe_source(store, windows, hash) for (store, windows), hash in zip(sources, hashes, strict=True)]
    shown = sum(sum(counts) for counts in seen)
    return Training(before.steps + steps, before.windows + shown, electrodes, (*before.data, *data))


def electrode_windows(windows: Windows, seen: Sequence[int]) -> dict[str, int]:
    """Windows that trained each electrode's row, from the windows of each montage."""
    found: dict[str, int] = {}
    for names, count in zip(windows.facts.montages, seen, strict=True):
        for electrode in {part for name in names for part in name.split("-")} if count else ():
            found[electrode] = found.get(electrode, 0) + count
    return found


def unknown_overlap(training: Training, store: str) -> str | None:
    """What a score on the store of this hash leaves open, in one line: weights name their stores, not the subjects.

    None where they learned from that store alone, or from nothing yet.
    """
    others = list(dict.fromkeys(source.name for source in training.data if source.sha256 != store))
    if not others and (training.data or not training.windows):
        return None
    what = "do not say what they learned from"
    if others:
        what = f"learned from another store ({', '.join(others)}) and do not say from which subjects"
    return f"whether the test subjects were pre-trained on is not known: the weights {what} (see docs/data.md)"


def name_windows(windows: Sequence[Windows], step: Step) -> list[str]:
    """Recording and start in seconds of the windows of a step, as errors name them."""
    found = []
    for source, window in zip(step.source.tolist(), step.window.tolist(), strict=True):
        ((id, start),) = windows[source].ids([window])
        found.append(f"{id}@{start / windows[source].sfreq:g}s")
    return found
