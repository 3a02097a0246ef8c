"""Windows: the stretches of a store that a model is shown, found at training time with any length, stride and label.

A window lies within one segment, so it never spans a gap. With a task it lies within labelled time of the wanted split.
Windows begin on a grid that starts where that time and the segment begin.

Seconds become samples once, by rounding. The first sample of an interval is the one nearest to its start, and every
sample of a window comes before the interval's stop. The label of a window follows from its own samples
(``window_labels.py``).
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.batching.window_labels import (
    Asked,
    LabelledPiece,
    LabelRule,
    LabelRun,
    answer,
    pieces,
    read_task,
    runs,
    to_sample,
)
from cerebro_eeg.data.storing.records import StoredRecording
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import StoreInfo
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.hashing import mix64


@dataclass(frozen=True)
class Facts:
    """Facts about the recordings of a store that windows need; arrays by recording number."""

    ids: tuple[str, ...]
    subject: NDArray[np.int32]
    """Place in ``subjects``; -1 where the store does not know it."""
    subjects: tuple[str, ...]
    montage: NDArray[np.int32]
    """Place in ``montages``."""
    montages: tuple[tuple[str, ...], ...]
    scale: NDArray[np.float32]
    """Scale of each recording in microvolts."""


class WindowArrays(NamedTuple):
    """The arrays of ``Windows``, with the same meaning, while windows are still being collected."""

    recording: NDArray[np.int32]
    start: NDArray[np.int64]
    label: NDArray[np.int64]
    target: NDArray[np.float32] | None
    short: NDArray[np.bool_]
    trial: NDArray[np.int32]


def none(targets: int | None) -> WindowArrays:
    """Return arrays without windows; ``targets`` is None for a task without targets."""
    return WindowArrays(
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        None if targets is None else np.empty((0, targets), np.float32),
        np.empty(0, np.bool_),
        np.empty(0, np.int32),
    )


def join(parts: Sequence[WindowArrays]) -> WindowArrays:
    """Join parts one behind the other; at least one, and all with targets or none."""
    targets = [part.target for part in parts if part.target is not None]
    return WindowArrays(
        np.concatenate([part.recording for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.label for part in parts]),
        np.concatenate(targets) if targets else None,
        np.concatenate([part.short for part in parts]),
        np.concatenate([part.trial for part in parts]),
    )


def take(found: WindowArrays, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> WindowArrays:
    """Return some of the windows, by a mask or by numbers."""
    return WindowArrays(
        found.recording[chosen],
        found.start[chosen],
        found.label[chosen],
        None if found.target is None else found.target[chosen],
        found.short[chosen],
        found.trial[chosen],
    )


def tidy(id: str, parts: Sequence[WindowArrays]) -> WindowArrays:
    """Sort the windows of one recording by start, each once; parts must agree on a window that both have."""
    found = join(parts)
    found = take(found, np.argsort(found.start, kind="stable"))
    again = np.append(False, found.start[1:] == found.start[:-1])
    if again.any():
        other = np.flatnonzero(again)
        differs = found.label[other] != found.label[other - 1]
        if found.target is not None:
            a, b = found.target[other], found.target[other - 1]
            differs |= ~((a == b) | (np.isnan(a) & np.isnan(b))).all(1)
        if differs.any():
            raise InputError(
                f"recording {id!r} has {int(differs.sum())} windows with two different labels, because intervals or "
                "events overlap; choose fewer names, or labels='majority'"
            )
    return take(found, ~again)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one store, by recording and start; arrays have one entry per window."""

    info: StoreInfo
    facts: Facts
    task: str | None
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    sfreq: float
    samples: int
    """Samples of each window."""
    recording: NDArray[np.int32]
    """Number of the recording in its store."""
    start: NDArray[np.int64]
    """First sample, numbered as in the store."""
    label: NDArray[np.int64]
    """Place in ``names``; -1 for none."""
    target: NDArray[np.float32] | None
    """(windows, targets) for regression; NaN for none."""
    short: NDArray[np.bool_]
    """Whether its segment is shorter than the filter."""
    trial: NDArray[np.int32]
    """The interval of its task, or the first of the run of intervals, that the window was cut from; -1 for none."""

    def __post_init__(self) -> None:
        for array in (self.recording, self.start, self.label, self.target, self.short, self.trial):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.start)

    @property
    def channels(self) -> NDArray[np.int16]:
        """Return the channel count of each window."""
        counts = np.array([len(names) for names in self.facts.montages], np.int16)
        return counts[self.facts.montage[self.recording]]

    @property
    def subject(self) -> NDArray[np.int32]:
        """Return the place of each window's subject in ``facts.subjects``; -1 where it is unknown."""
        return self.facts.subject[self.recording]

    def take(self, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> "Windows":
        """Return some of the windows, by a mask or by numbers."""
        arrays = WindowArrays(self.recording, self.start, self.label, self.target, self.short, self.trial)
        return replace(self, **take(arrays, chosen)._asdict())

    def joined(self, other: "Windows") -> "Windows":
        """Return these windows and further ones of the same store and task."""
        parts = [WindowArrays(w.recording, w.start, w.label, w.target, w.short, w.trial) for w in (self, other)]
        return replace(self, **join(parts)._asdict())

    def ids(self, chosen: Sequence[int] | NDArray[np.integer]) -> list[tuple[str, int]]:
        """Return (recording id, start sample), the names of these windows."""
        return [(self.facts.ids[self.recording[n]], int(self.start[n])) for n in chosen]

    def keys(self, chosen: NDArray[np.integer] | slice = slice(None)) -> NDArray[np.int64]:
        """Return the names as one number each, the same on every machine; random draws for a window are keyed by it."""
        recording, start = self.recording[chosen], self.start[chosen]
        used, place = np.unique(recording, return_inverse=True)
        hashes = [hashlib.blake2b(self.facts.ids[n].encode(), digest_size=8).digest() for n in used.tolist()]
        hashed = np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)[place]
        return mix64(hashed ^ mix64(start.astype(np.uint64))).view(np.int64)


def find_windows(
    store: Store,
    *,
    seconds: float,
    stride: float | None = None,
    task: str | None = None,
    split: str | Sequence[str] | None = None,
    flagged: Literal["keep", "drop"] = "keep",
    labels: LabelRule = "interval",
) -> Windows:
    """Find every window of ``seconds``, one every ``stride`` seconds (None: side by side).

    Parameters
    ----------
    task : cut windows only in its intervals, which label them; None cuts everywhere, without labels.
    split : one of the task's splits or several; None takes all.
    flagged : whether windows of segments shorter than the filter count.
    labels : "interval": a window lies in one interval and has its label or values. The other rules let windows cross
        from interval to interval where these touch. "majority": the label of most of its samples, of equals the one
        that comes first in the window; "last": the label of the interval with its last sample; "mean": the mean of the
        values over its samples.
    """
    asked = read_task(store, task, split, labels)
    stride = seconds if stride is None else stride
    if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(stride) and stride > 0):
        raise ConfigError(f"seconds is {seconds:g} and stride {stride:g}; expected lengths above 0")

    def cut(record: StoredRecording, size: int) -> Iterator[_Cut]:
        step = max(1, round(stride * record.sfreq))
        for run in runs(record, asked):
            for piece in pieces(record, run):
                yield _Cut(run, piece, np.arange(piece.start, piece.stop - size + 1, step, dtype=np.int64), None)

    return _collect(store, asked, seconds, flagged, cut)


def find_event_windows(
    store: Store,
    *,
    t0: float,
    t1: float,
    names: Sequence[str],
    task: str | None = None,
    split: str | Sequence[str] | None = None,
    flagged: Literal["keep", "drop"] = "keep",
) -> Windows:
    """Find a window from ``t0`` to ``t1`` seconds about every event with one of these names, the classes in order.

    With a task, only windows within one of its intervals, of the wanted split, are found; the label is the event's.
    """
    if not (math.isfinite(t0) and math.isfinite(t1) and t0 < t1):
        raise ConfigError(f"t0 is {t0:g} and t1 {t1:g}; expected seconds about the event, t0 before t1")
    asked = read_task(store, task, split, "interval")
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"names are {list(names)}; expected the names of events, each once")
    asked = replace(asked, names=tuple(names), kind="classification")
    classes = {name: number for number, name in enumerate(names)}

    def cut(record: StoredRecording, size: int) -> Iterator[_Cut]:
        events = [event for event in record.events if event.name in classes]
        for run in runs(record, asked) if events else ():
            for piece in pieces(record, run):
                found = [
                    (start, classes[event.name])
                    for event in events
                    for start in [to_sample(event.onset + t0, piece.segment, record.sfreq)]
                    if piece.start <= start and start + size <= piece.stop
                ]
                starts = np.array([start for start, _ in found], np.int64)
                yield _Cut(run, piece, starts, np.array([label for _, label in found], np.int64))

    return _collect(store, asked, t1 - t0, flagged, cut)


class _Cut(NamedTuple):
    run: LabelRun
    piece: LabelledPiece
    starts: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    """None where the intervals label the windows."""


_Cutter = Callable[[StoredRecording, int], Iterator[_Cut]]


def _collect(store: Store, asked: Asked, seconds: float, flagged: str, cut: _Cutter) -> Windows:
    """Find the windows of all recordings, by recording and start."""
    if flagged not in ("keep", "drop"):
        raise ConfigError(f"flagged={flagged!r} is not a choice; use 'keep' or 'drop'")
    subjects: dict[str, int] = {}
    montages: dict[tuple[str, ...], int] = {}
    table: list[tuple[str, int, int, float]] = []
    found: list[WindowArrays] = []
    rates: set[float] = set()
    tasks: set[str] = set()
    splits: set[str | None] = set()
    for number, record in enumerate(store.recordings):
        subject = -1 if record.subject is None else subjects.setdefault(record.subject, len(subjects))
        table.append((record.id, subject, montages.setdefault(record.channels, len(montages)), record.scale))
        tasks.update(record.labels)
        splits.update(interval.split for interval in record.labels.get(asked.task or "", ()))
        size = math.floor(seconds * record.sfreq + 0.5)
        if size < 1:
            raise ConfigError(f"windows of {seconds:g} s are shorter than a sample at {record.sfreq:g} Hz")
        parts = []
        for part in cut(record, size):
            rates.add(record.sfreq)
            if len(part.starts) and (flagged == "keep" or not part.piece.segment.short):
                parts.append(_label(asked, record, number, part, size))
        if parts:
            found.append(tidy(record.id, parts))
    _check_found(store, asked, tasks, splits)
    if len(rates) > 1:
        raise InputError(
            f"the recordings have rates of {', '.join(f'{rate:g}' for rate in sorted(rates))} Hz, and windows of one "
            "call share one; choose a task or a split with one rate, or prepare with one"
        )
    rate = rates.pop() if rates else 0.0
    width = len(asked.names) if asked.kind == "regression" else None
    whole = join(found) if found else none(width)
    ids, subject_of, montage_of, scale = zip(*table, strict=True) if table else ((), (), (), ())
    facts = Facts(
        ids,
        np.array(subject_of, np.int32),
        tuple(subjects),
        np.array(montage_of, np.int32),
        tuple(montages),
        np.array(scale, np.float32),
    )
    samples = math.floor(seconds * rate + 0.5)
    return Windows(store.info, facts, asked.task, asked.names, rate, samples, *whole)


def _label(asked: Asked, record: StoredRecording, number: int, part: _Cut, size: int) -> WindowArrays:
    label, target = part.labels, None
    if label is None:
        label, target = answer(asked, record, part.run, part.piece, part.starts, size)
    count = len(part.starts)
    return WindowArrays(
        np.full(count, number, np.int32),
        part.starts,
        label,
        target,
        np.full(count, part.piece.segment.short),
        np.full(count, part.run.trial, np.int32),
    )


def _check_found(store: Store, asked: Asked, tasks: set[str], splits: set[str | None]) -> None:
    """Refuse a task or split that is nowhere in the store: it is a slip of the pen, not an empty answer."""
    if asked.task is not None and asked.task not in tasks:
        known = ", ".join(sorted(tasks | set(store.info.settings.get("tasks", {})))) or "no tasks"
        raise InputError(f"no recording of the store has task {asked.task!r}; it has {known}")
    absent = sorted((asked.splits or frozenset()) - splits)
    if absent:
        known = ", ".join(sorted(split for split in splits if split)) or "no splits"
        raise InputError(f"task {asked.task!r} has no split {', '.join(absent)}; it has {known}")
