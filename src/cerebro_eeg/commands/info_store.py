"""``cerebro-eeg info STORE``: what a store holds, how it was made, and what was left out of it."""

import contextlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cerebro_eeg.errors import CerebroError

if TYPE_CHECKING:
    from cerebro_eeg.data.batching.window_labels import LabelRule
    from cerebro_eeg.data.storing.records import StoredRecording
    from cerebro_eeg.data.storing.store import Store

SECONDS = 5.0  # of a window, for tasks that do not say
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Amount:
    """How much there is of something."""

    recordings: int
    hours: float


@dataclass(frozen=True)
class SplitInfo:
    """One split of a task, with windows as the task cuts them unless training says otherwise."""

    recordings: int
    subjects: int
    windows: int
    seconds: float
    """Of labelled time that was recorded; where intervals overlap it counts twice."""
    labels: dict[str, int]
    """Windows by class; none for targets."""


@dataclass(frozen=True)
class TaskInfo:
    """What the store has for one task."""

    kind: str
    """classification, regression, or none: time without labels, as for pre-training."""
    names: tuple[str, ...]
    window_seconds: float
    stride_seconds: float
    splits: dict[str, SplitInfo]
    problem: str | None
    """Why windows cannot be cut, or that splits share what they must not; None: neither."""


@dataclass(frozen=True)
class StoreSummary:
    """A store in numbers. Ids of subjects and recordings stay in the store."""

    dataset: str
    settings: dict[str, Any]
    own_ids: bool
    """Ids are the corpus's own; otherwise keyed hashes."""
    hash: str
    bytes: int
    total: Amount
    subjects: int
    without_subject: int
    """Recordings whose subject is not known."""
    segments: int
    short_segments: int
    """Shorter than the filter: their windows are flagged."""
    short_hours: float
    channel_counts: dict[int, Amount]
    montages: tuple[tuple[tuple[str, ...], Amount], ...]
    """Electrode sets, in any order of channels, the most common first."""
    native_rates: dict[float, Amount]
    rates: dict[float, Amount]
    notched: dict[str, int]
    """Recordings by the mains frequency that was taken out; "none" where none was."""
    tasks: dict[str, TaskInfo]
    faults: dict[str, int]
    """Recordings by code."""
    quality: dict[str, tuple[int, int]]
    """(how many, in how many recordings): channels that are flat, clipped, ...; samples that were not finite, ..."""
    skipped: dict[str, int]
    """Sources by reason."""
    parts: tuple[int, tuple[int, ...]] | None
    """How many parts the work was divided into, and which have written nothing; None: it was not divided."""
    unfinished: str | None
    """Why what is here may not be all; None: nothing speaks for that."""
    plot: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.unfinished is None else 5

    def to_dict(self) -> dict[str, object]:
        montages = [{"channels": list(names), **asdict(amount)} for names, amount in self.montages]
        quality = {name: {"count": n, "recordings": of} for name, (n, of) in self.quality.items()}
        parts = None if self.parts is None else {"count": self.parts[0], "wrote_nothing": list(self.parts[1])}
        return {"kind": "store", **asdict(self), "montages": montages, "quality": quality, "parts": parts}

    def text(self) -> str:
        from cerebro_eeg.commands.info_store_text import store_text

        return store_text(self)


def info_store(folder: Path, plot: Path | None = None) -> StoreSummary:
    """Read all that a store says of its recordings; samples only for a picture, and of these a sample.

    A store that is damaged raises a StoreError. One that is not finished, or being written to, is described as far as
    it goes, and ``exit_code`` is 5.
    """
    from cerebro_eeg.data.storing.store import Store

    if plot is not None:
        from cerebro_eeg.report.picture import check_picture

        check_picture(plot)
    store = Store(folder)
    labelled = _Labelled()
    # Without labels and events, which may be very many; windows are found from the store itself.
    records = [replace(labelled.add(record), labels={}, events=()) for record in store.recordings]
    if plot is not None:
        from cerebro_eeg.report.store_plot import plot_store

        plot_store(store, plot)
    short = [(s.stop - s.start) / r.sfreq for r in records for s in r.segments if s.short]
    skipped = store.skipped()
    return StoreSummary(
        dataset=store.info.dataset,
        settings=store.info.settings,
        own_ids=store.info.key_check is None,
        hash=store.hash(),
        bytes=sum(record.bytes for record in records),
        total=Amount(len(records), sum(record.seconds for record in records) / 3600),
        subjects=len({record.subject for record in records} - {None}),
        without_subject=sum(record.subject is None for record in records),
        segments=sum(len(record.segments) for record in records),
        short_segments=len(short),
        short_hours=sum(short) / 3600,
        channel_counts=_amounts((len(record.channels), record) for record in records),
        montages=_montages(records),
        native_rates=_amounts((record.native_sfreq, record) for record in records),
        rates=_amounts((record.sfreq, record) for record in records),
        notched=dict(Counter("none" if r.mains is None else f"{r.mains:g}" for r in records).most_common()),
        tasks=_tasks(store, labelled),
        faults=dict(sorted(Counter(code for record in records for code in record.faults).items())),
        quality=_quality(records),
        skipped=dict(sorted(Counter(skipped.values()).items())),
        parts=_parts(folder),
        unfinished=_unfinished(folder),
        plot=None if plot is None else str(plot),
    )


def _amounts(pairs: "Iterator[tuple[_Number, StoredRecording]]") -> "dict[_Number, Amount]":
    found: defaultdict[_Number, list[float]] = defaultdict(list)
    for key, record in pairs:
        found[key].append(record.seconds / 3600)
    return {key: Amount(len(found[key]), sum(found[key])) for key in sorted(found)}


def _montages(records: "Sequence[StoredRecording]") -> tuple[tuple[tuple[str, ...], Amount], ...]:
    first: dict[frozenset[str], tuple[str, ...]] = {}
    hours: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for record in records:
        key = frozenset(record.channels)
        first.setdefault(key, record.channels)
        hours[key].append(record.seconds / 3600)
    ordered = sorted(hours, key=lambda key: (-len(hours[key]), -sum(hours[key]), first[key]))
    return tuple((first[key], Amount(len(hours[key]), sum(hours[key]))) for key in ordered)


def _quality(records: "Sequence[StoredRecording]") -> dict[str, tuple[int, int]]:
    total: Counter[str] = Counter()
    touched: Counter[str] = Counter()
    for record in records:
        total.update(record.quality)
        touched.update(name for name, count in record.quality.items() if count)
    return {name: (total[name], touched[name]) for name in sorted(total)}


@dataclass(frozen=True)
class _Labelled:
    """What one pass over the recordings says of tasks and their splits; "" is no split."""

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    recordings: Counter[tuple[str, str]] = field(default_factory=Counter)
    subjects: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, record: "StoredRecording") -> "StoredRecording":
        from cerebro_eeg.data.batching.window_labels import LabelRun, pieces

        for task, intervals in record.labels.items():
            for interval in intervals:
                run = LabelRun(0, interval.start, interval.stop, (interval,))
                samples = sum(piece.stop - piece.start for piece in pieces(record, run))
                self.seconds[task, interval.split or ""] += samples / record.sfreq
            for split in {interval.split or "" for interval in intervals}:
                self.recordings[task, split] += 1
                if record.subject is not None:
                    self.subjects[task, split].add(record.subject)
        return record


def _tasks(store: "Store", labelled: _Labelled) -> dict[str, TaskInfo]:
    declared = store.info.settings.get("tasks", {})
    names = sorted({task for task, _ in labelled.recordings} | set(declared))
    return {name: _task(store, labelled, name, declared.get(name)) for name in names}


def _task(store: "Store", labelled: _Labelled, name: str, declared: dict[str, Any] | None) -> TaskInfo:
    """Windows are found as training finds them, so that these are its numbers."""
    from cerebro_eeg.data.batching.splits import assert_disjoint
    from cerebro_eeg.data.batching.windows import find_windows

    length = float(declared["seconds"]) if declared else SECONDS
    stride = float(declared["stride"]) if declared else SECONDS
    classes = tuple(declared["names"]) if declared else ()
    kind = str(declared["kind"]) if declared else "none"
    way: LabelRule = declared.get("labels", "interval") if declared else "interval"
    splits, found, problem = {}, {}, None
    for split in sorted((split for task, split in labelled.recordings if task == name), key=_split_order):
        counted: dict[str, int] = {}
        try:
            windows = find_windows(store, seconds=length, stride=stride, task=name, split=split or None, labels=way)
            found[split] = windows
            if kind == "classification":
                counted = {label: int((windows.label == number).sum()) for number, label in enumerate(classes)}
        except CerebroError as error:
            problem = str(error)
        splits[split or "no split"] = SplitInfo(
            recordings=labelled.recordings[name, split],
            subjects=len(labelled.subjects[name, split]),
            windows=len(found[split]) if split in found else 0,
            seconds=labelled.seconds[name, split],
            labels=counted,
        )
    if problem is None and len(found) > 1:
        try:
            assert_disjoint(found)
        except CerebroError as error:
            problem = str(error)
    return TaskInfo(kind, classes, length, stride, splits, problem)


def _split_order(name: str) -> tuple[int, str]:
    known = ("train", "val", "test")
    return (known.index(name) if name in known else len(known), name)


def _parts(folder: Path) -> tuple[int, tuple[int, ...]] | None:
    """From the names of the writers, ``part3of100-0``; of several divisions the finest."""
    found = [re.match(r"part([0-9]+)of([0-9]+)-", name) for name in os.listdir(folder)]
    pairs = {(int(match[2]), int(match[1])) for match in found if match}
    count = max((n for n, _ in pairs), default=1)
    if count == 1 or any(n == 1 for n, _ in pairs):
        return None
    return count, tuple(k for k in range(1, count + 1) if (count, k) not in pairs)


def _unfinished(folder: Path) -> str | None:
    busy = sum(_is_locked(folder / name) for name in os.listdir(folder) if name.endswith(".lock"))
    if busy:
        return f"{busy} writer{'s are' if busy > 1 else ' is'} at work on this store; look again when prepare has ended"
    if not (folder / "skipped.csv").is_file():
        return "prepare has not ended on this store (it has no skipped.csv); run the same command again, it goes on"
    return None


def _is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of a writer."""
    import fcntl

    with contextlib.suppress(OSError), path.open("rb") as file:  # no right to ask, or a file system without locks
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
