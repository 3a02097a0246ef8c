"""``cerebro-eeg prepare``: the recordings of a corpus into a store, with what it will take said before it starts."""

import contextlib
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import did_you_mean

if TYPE_CHECKING:
    from cerebro_eeg.data.storing.recipe import Item, Recipe

SPEED = 7e6  # stored values a second and core: the open-EEG pack, 326 million values, took 24 s with 2 workers
PROBES = 5  # recordings that are opened for the estimate


@dataclass(frozen=True)
class PrepareResult:
    """What the store holds now, and what was left out."""

    dataset: str
    part: str
    recordings: int
    hours: float
    montages: dict[int, int]
    """Recordings by number of channels."""
    skipped: dict[str, int]
    """Sources by reason."""
    hash: str
    done: int
    """Recordings that this run stored or skipped."""
    done_before: int
    paths: dict[str, str] | None
    """Reason by name of a skipped source; None unless paths may be shown."""

    @property
    def exit_code(self) -> int:
        return 6 if self.skipped else 0

    def to_dict(self) -> dict[str, object]:
        shown = {} if self.paths is None else {"skipped_paths": self.paths}
        return {
            "dataset": self.dataset,
            "part": self.part,
            "recordings": self.recordings,
            "hours": self.hours,
            "montages": {str(channels): count for channels, count in self.montages.items()},
            "skipped": self.skipped,
            **shown,
            "hash": self.hash,
            "done": self.done,
            "done_before": self.done_before,
        }

    def text(self) -> str:
        part = "" if self.part == "1/1" else f" of part {self.part}"
        if self.done:
            did = f"{_counted(self.done)}{part} done now, {self.done_before:,} before"
        else:
            did = f"nothing to do: {_counted(self.done_before)}{part} had been stored or skipped before"
        montages = ", ".join(f"{channels} ({count:,})" for channels, count in self.montages.items())
        lines = [
            f"{self.dataset}: {did}",
            f"  store     {_counted(self.recordings)}, {self.hours:,.2f} h",
            f"  channels  {montages or 'none'}",
            f"  hash      {self.hash}",
        ]
        if self.skipped:
            reasons = ", ".join(f"{code} {count:,}" for code, count in self.skipped.items())
            lines.append(f"  skipped   {sum(self.skipped.values()):,}: {reasons} (skipped.csv in the store lists them)")
        lines += [f"    {code}  {name}" for name, code in (self.paths or {}).items()]
        return "\n".join(lines)


def prepare(
    dataset: str,
    source: Path,
    /,
    *,
    out: Path,
    workers: int = -1,
    part: str = "1/1",
    mains: float | None = None,
    quality: Literal["keep", "drop", "refuse"] = "keep",
    key: Path | None = None,
    show_paths: bool = False,
) -> PrepareResult:
    """Filter, notch, resample and store every recording of a corpus; what cannot be used is listed with its reason.

    Interrupted or killed, start it again with the same arguments: it goes on, and ends with the same store.
    The exit code is 6 where recordings were skipped.

    Try, for example:
      cerebro-eeg prepare openeeg path/to/pack --out my-store
      cerebro-eeg prepare openeeg path/to/pack --out my-store --part 3/100

    Args:
        dataset: What the source is: the name of a recipe, such as openeeg.
        source: The folder that holds the corpus; nothing is written to it.
        out: The folder of the store; made where there is none, gone on with where there is one.
        workers: Processes to use; -1 for one a core, 0 for none but this one.
        part: k/n, to prepare the k-th of n parts, each by a job of its own, at any time and into one store.
        mains: Mains frequency in Hz; otherwise the corpus's own, or estimated for each recording.
        quality: Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording.
        key: The file with the key that ids are made with, where a corpus does not keep its own; made where there is
            none. Without it, the one in your config folder.
        show_paths: Name the skipped sources; their paths may say who was recorded.
    """
    from cerebro_eeg.data.datasets import RECIPES
    from cerebro_eeg.data.storing import prepare as preparation
    from cerebro_eeg.data.storing.job import Choices

    if dataset not in RECIPES:
        raise ConfigError(
            f"there is no recipe {dataset!r}{did_you_mean(dataset, RECIPES)}; the recipes are {', '.join(RECIPES)}"
        )
    if workers < -1:
        raise ConfigError(f"workers is {workers}; expected -1 (one a core), 0 (this process alone) or more")
    if mains is not None and not 0 < mains < 1000:
        raise ConfigError(f"mains is {mains:g}; expected a frequency in Hz, such as 50 or 60")
    count = len(os.sched_getaffinity(0)) if workers == -1 and hasattr(os, "sched_getaffinity") else workers
    count = count if count >= 0 else os.cpu_count() or 1
    choices = Choices(mains=mains, quality=quality)
    numbers = _read_part(part)
    recipe = RECIPES[dataset](source)
    report = _Report(recipe, count)
    try:
        found = preparation.prepare(
            recipe,
            out,
            choices,
            workers=count,
            part=numbers,
            key_file=key,
            before=report.before,
            progress=report.progress,
        )
    finally:
        report.end()
    return PrepareResult(
        dataset=dataset,
        part=part,
        recordings=found.recordings,
        hours=found.hours,
        montages=found.montages,
        skipped=dict(sorted(Counter(found.skipped.values()).items())),
        hash=found.hash,
        done=report.done,
        done_before=found.done_before,
        paths={name: found.skipped[id] for id, name in found.sources.items()} if show_paths else None,
    )


def _read_part(text: str) -> tuple[int, int]:
    first, slash, second = text.partition("/")
    if not slash or not first.isdecimal() or not second.isdecimal():
        raise ConfigError(f"part is {text!r}; expected k/n, such as 3/100")
    return int(first), int(second)


def _estimate(items: "Sequence[Item]", recipe: "Recipe", workers: int) -> str:
    """Disk and time. A few recordings of middling size are opened: what they will take, by the bytes of all."""
    size = sum(item.size for item in items)
    ordered = sorted(items, key=lambda item: item.size)
    values = probed = opened = 0
    places = sorted({(2 * step + 1) * len(ordered) // (2 * PROBES) for step in range(PROBES)})
    for item in (ordered[place] for place in places):
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # a bad file's turn to be skipped comes later
            warnings.simplefilter("ignore")
            recording = item.open(recipe.policy)
            values += round(len(recording.match.channels) * recording.seconds * recipe.signal.sfreq)
            probed, opened = probed + item.size, opened + 1
    if not probed:
        return f"disk and time cannot be estimated: none of the {len(places)} tried can be read"
    total = values * size / probed
    processes = "1 process" if workers < 2 else f"{workers} processes"
    return (
        f"about {_bytes(2 * total)} of disk and {_time(total / SPEED / max(1, workers))} with {processes} "
        f"(from {opened} of the recordings, by size; 2 bytes a value at "
        f"{recipe.signal.sfreq:g} Hz, {SPEED / 1e6:g} million values a second and core)"
    )


class _Report:
    """Says on stderr what will be done and how far it is: one line that changes, or in a log one now and then."""

    def __init__(self, recipe: "Recipe", workers: int) -> None:
        self._recipe, self._workers = recipe, workers
        self._live = sys.stderr.isatty()
        self._every = 0.2 if self._live else 5.0
        self._start = self._last = time.monotonic()
        self.done = 0

    def before(self, items: "Sequence[Item]", done_before: int) -> None:
        if not self._recipe.tried_on_real_files:
            self._say(f"{self._recipe.name} was never run on the real corpus, only on files made after its description")
        size = sum(item.size for item in items)
        self._say(
            f"{self._recipe.name} ({self._recipe.about}): {_counted(len(items))} to prepare, {_bytes(size)}; "
            f"{done_before:,} done before"
        )
        if items:
            self._say(_estimate(items, self._recipe, self._workers))
        self._start = self._last = time.monotonic()

    def progress(self, done: int, total: int, bytes_done: int, bytes_total: int) -> None:
        self.done = done
        now = time.monotonic()
        if now - self._last < self._every and done < total:
            return
        self._last = now
        rate = bytes_done / max(now - self._start, 1e-9)
        left = _time((bytes_total - bytes_done) / rate) if rate else "?"
        line = f"{done:,}/{total:,} recordings, {_bytes(bytes_done)} of {_bytes(bytes_total)}, {_bytes(rate)}/s, "
        line += f"{left} left"
        if self._live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            self._say(line)

    def end(self) -> None:
        if self._live and self.done:
            print(file=sys.stderr)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _counted(count: int) -> str:
    return f"{count:,} recording{'' if count == 1 else 's'}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
