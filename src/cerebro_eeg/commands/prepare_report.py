"""What ``prepare`` says on stderr: what there is to do, the disk and time it will take, and how far it is."""

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence

from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.workers import in_own_process
from cerebro_eeg.progress import Progress, counted, in_bytes, in_time, time_left

SPEED = 7e6  # stored values a second and core: the open-EEG pack, 326 million values, took 24 s with 2 workers
PROBES = 5  # recordings that are opened for the estimate


class PrepareReport:
    """Told by ``prepare`` what it will do and what it has done. ``workers``: None where nobody knows how many."""

    def __init__(self, recipe: Recipe, workers: int | None) -> None:
        self._recipe, self._workers = recipe, workers
        self._line = Progress()
        self._start = time.monotonic()
        self.done = 0

    def comparing(self, count: int, size: int) -> None:
        self._line.say(
            f"{counted(count, 'stored recording')} {'has' if count == 1 else 'have'} a source that was copied or "
            f"touched since; reading {in_bytes(size)} to see whether it is the same"
        )

    def before(self, items: Sequence[Item], done_before: int) -> None:
        name, say = self._recipe.name, self._line.say
        if self._recipe.one_corpus and not self._recipe.tried_on_real_files:
            say(f"{name} was never run on the real corpus, only on files made after its description")
        size = sum(item.size for item in items)
        say(
            f"{name} ({self._recipe.about}): {counted(len(items), 'recording')} to prepare, {in_bytes(size)}; "
            f"{done_before:,} done before"
        )
        for line in _say_positive(self._recipe):
            say(line)
        units = {task: found.split_unit or self._recipe.split_unit for task, found in self._recipe.tasks.items()}
        for unit in sorted(set(units.values()) - {"subject"}):
            tasks = ", ".join(task for task in units if units[task] == unit)
            say(f"splits of {tasks} are disjoint by {unit}, not by subject")
        if items:
            say(_estimate(items, self._recipe, self._workers))
        self._start = time.monotonic()

    def progress(self, done: int, total: int, bytes_done: int, bytes_total: int) -> None:
        self.done = done
        if not self._line.due() and done < total:
            return
        seconds = max(time.monotonic() - self._start, 1e-9)
        self._line.show(
            f"{done:,}/{total:,} recordings, {in_bytes(bytes_done)} of {in_bytes(bytes_total)}, "
            f"{in_bytes(bytes_done / seconds)}/s, {time_left(bytes_done, bytes_total, seconds)} left"
        )

    def end(self) -> None:
        self._line.end()


def _say_positive(recipe: Recipe) -> Iterator[str]:
    """Which of two classes scores, thresholds and events are about: nobody should learn it from a result."""
    for name, task in recipe.tasks.items():
        if task.kind == "classification" and len(task.names) == 2:
            other = f" (choose another with {recipe.positive_by})" if recipe.positive_by else ""
            yield f"classes of {name}: {', '.join(task.names)}; positive: {task.names[-1]}{other}"


def _estimate(items: Sequence[Item], recipe: Recipe, workers: int | None) -> str:
    """Disk and time. A few recordings of middling size are opened: what they will take, by the bytes of all."""
    ordered = sorted(items, key=lambda item: item.size)
    places = sorted({(2 * step + 1) * len(ordered) // (2 * PROBES) for step in range(PROBES)})
    probes = [ordered[place] for place in places]
    # A file can end the process that opens it, and that must not be this one.
    found = _probe(probes, recipe.policy) if workers == 0 else in_own_process(_probe, probes, recipe.policy)
    opened, probed, seconds = found or (0, 0, 0.0)
    if not probed:
        return f"disk and time cannot be estimated: none of the {len(places)} tried can be read"
    total = seconds * recipe.signal.sfreq * sum(item.size for item in items) / probed
    processes = f"{workers} processes" if workers and workers > 1 else "1 process"
    return (
        f"about {in_bytes(2 * total)} of disk and {in_time(total / SPEED / max(1, workers or 1))} with {processes} "
        f"(from {opened} of the recordings, by size; 2 bytes a value at "
        f"{recipe.signal.sfreq:g} Hz, {SPEED / 1e6:g} million values a second and core)"
    )


def _probe(items: Sequence[Item], policy: ChannelPolicy) -> tuple[int, int, float]:
    """How many of them open, their bytes, and the seconds of all their channels."""
    opened, size, seconds = 0, 0, 0.0
    for item in items:
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # a bad file's turn to be skipped comes later
            warnings.simplefilter("ignore")
            recording = item.open(policy)
            seconds += len(recording.match.channels) * recording.seconds
            opened, size = opened + 1, size + item.size
    return opened, size, seconds
