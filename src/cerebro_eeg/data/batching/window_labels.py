"""The label of a window: the class or the targets of the window's own samples, and of no others.

A run is labelled time that windows may be cut from. It is one interval or, where windows may cross from one to the
next, all touching intervals of one split. A piece is the part of a run that lies in one segment; inside it, seconds are
samples.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.records import Interval, StoredRecording, StoredSegment
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError

LabelRule = Literal["interval", "majority", "last", "mean"]
TaskKind = Literal["classification", "regression", "none"]
_NOISE = 1e-6  # samples: what seconds written as decimals may be off


@dataclass(frozen=True)
class Asked:
    """The task and the splits whose windows are wanted."""

    task: str | None
    splits: frozenset[str] | None
    labels: LabelRule
    kind: TaskKind
    names: tuple[str, ...]


@dataclass(frozen=True)
class LabelRun:
    """Labelled time without a break; ``intervals`` are sorted by their starts, and empty without a task."""

    trial: int
    """Number of its first interval in the recording; -1 for none."""
    start: float
    stop: float
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class LabelledPiece:
    """Samples ``start`` to ``stop`` (exclusive) of a recording, in one segment and in one run."""

    start: int
    stop: int
    segment: StoredSegment


def read_task(store: Store, task: str | None, split: str | Sequence[str] | None, labels: LabelRule) -> Asked:
    """Check the requested task against what the store declares; a task without classes need not be declared."""
    if labels not in get_args(LabelRule):
        raise ConfigError(f"labels={labels!r} is not a way to label; use one of {', '.join(get_args(LabelRule))}")
    splits = None if split is None else frozenset([split] if isinstance(split, str) else split)
    if task is None:
        if splits is not None:
            raise ConfigError("a split was asked for without a task, and splits belong to tasks; name the task")
        return Asked(None, None, "interval", "none", ())
    declared = store.info.settings.get("tasks", {}).get(task)
    kind: TaskKind = declared["kind"] if declared else "none"
    if (labels == "majority" and kind == "regression") or (labels == "mean" and kind == "classification"):
        raise ConfigError(f"labels={labels!r} does not fit task {task!r}, which is {kind}; use 'interval' or 'last'")
    return Asked(task, splits, labels, kind, tuple(declared["names"]) if declared else ())


def runs(record: StoredRecording, asked: Asked) -> Iterator[LabelRun]:
    """Return the runs that windows may be cut from."""
    if asked.task is None:
        yield LabelRun(-1, -math.inf, math.inf, ())
        return
    found = [
        (interval.split or "", interval.start, number, interval)
        for number, interval in enumerate(record.labels.get(asked.task, ()))
        if asked.splits is None or interval.split in asked.splits
    ]
    if asked.labels == "interval":
        for _, _, number, interval in found:
            yield LabelRun(number, interval.start, interval.stop, (interval,))
        return
    found.sort(key=lambda entry: entry[:3])
    touching: list[Interval] = []
    stop, first, before = -math.inf, -1, ""
    for split, start, number, interval in found:
        if touching and (split != before or (start - stop) * record.sfreq > 0.5):  # less than half a sample is no gap
            yield LabelRun(first, touching[0].start, stop, tuple(touching))
            touching = []
        if not touching:
            first, before, stop = number, split, -math.inf
        touching.append(interval)
        stop = max(stop, interval.stop)
    if touching:
        yield LabelRun(first, touching[0].start, stop, tuple(touching))


def pieces(record: StoredRecording, run: LabelRun) -> Iterator[LabelledPiece]:
    """Return the parts of a run that lie in one segment each."""
    first = max(0, bisect_right(record.segments, run.start, key=lambda segment: segment.onset) - 1)
    for segment in record.segments[first:]:
        if segment.onset >= run.stop:
            return
        start, stop = segment.start, segment.stop
        if run.intervals:
            start = max(start, to_sample(run.start, segment, record.sfreq))
            end = segment.start + (run.stop - segment.onset) * record.sfreq
            stop = min(stop, math.ceil(end - _NOISE))  # the last sample comes before it
        if start < stop:
            yield LabelledPiece(start, stop, segment)


def to_sample(seconds: float, segment: StoredSegment, sfreq: float) -> int:
    """Return the sample nearest to this time, by the clock of the segment."""
    return segment.start + math.floor((seconds - segment.onset) * sfreq + 0.5)


def answer(
    asked: Asked, record: StoredRecording, run: LabelRun, piece: LabelledPiece, starts: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """Return class numbers (-1: none) and, for regression, targets (NaN: none) of the windows with these starts."""
    numbers, no_label = _class_numbers(asked, record, run), np.full(len(starts), -1, np.int64)
    if asked.kind == "none":
        return no_label, None
    lows, highs = _edges(record, run, piece)
    if asked.labels == "majority":
        return _majority(numbers, lows, highs, starts, size), None
    knots, owner = _owners(lows, highs)
    last = owner[np.searchsorted(knots, starts + size - 1, "right") - 1]
    if asked.kind == "classification":
        return numbers[last], None
    values = _values(asked, record, run)
    targets = _mean(values[owner], knots, starts, size) if asked.labels == "mean" else values[last]
    return no_label, targets.astype(np.float32)


def _class_numbers(asked: Asked, record: StoredRecording, run: LabelRun) -> NDArray[np.int64]:
    classes: dict[str | None, int] = {name: number for number, name in enumerate(asked.names)}
    classes[None] = -1
    for interval in run.intervals:
        if interval.label not in classes:
            raise InputError(
                f"recording {record.id!r} has the label {interval.label!r} in task {asked.task!r}, whose classes are "
                f"{', '.join(asked.names) or 'not declared'}; mend the recipe and prepare anew"
            )
    return np.array([classes[interval.label] for interval in run.intervals], np.int64)


def _values(asked: Asked, record: StoredRecording, run: LabelRun) -> NDArray[np.float64]:
    width = len(asked.names)
    for interval in run.intervals:
        if interval.values and len(interval.values) != width:
            raise InputError(
                f"recording {record.id!r} has {len(interval.values)} values in an interval of task {asked.task!r}, "
                f"which has {width} targets; mend the recipe and prepare anew"
            )
    return np.array([interval.values or (math.nan,) * width for interval in run.intervals], np.float64)


def _edges(record: StoredRecording, run: LabelRun, piece: LabelledPiece) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and end sample of every interval of the run within the piece; together they cover it."""
    edges = np.array([(interval.start, interval.stop) for interval in run.intervals])
    exact = (edges - piece.segment.onset) * record.sfreq + 0.5
    samples = np.clip(np.floor(exact) + piece.segment.start, piece.start, piece.stop).astype(np.int64)
    lows, highs = samples[:, 0], samples[:, 1]
    highs[highs == highs.max()] = piece.stop  # the piece may hold one sample more than rounding gives
    return lows, highs


def _owners(lows: NDArray[np.int64], highs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples where blocks begin, and the interval of each block; of several, the one that began last."""
    if len(lows) == 1:
        return lows, np.zeros(1, np.int64)
    edges = np.unique(np.concatenate([lows, highs]))
    knots = edges[:-1]
    owner = np.full(len(knots), -1, np.int64)
    first, end = np.searchsorted(edges, lows).tolist(), np.searchsorted(edges, highs).tolist()
    for number, (start, stop) in enumerate(zip(first, end, strict=True)):
        owner[start:stop] = number
    # Between intervals that touch, rounding may leave one sample without an interval: it goes with the block before it.
    known = np.flatnonzero(owner >= 0)
    return knots, owner[known[np.maximum(np.searchsorted(known, np.arange(len(owner)), "right") - 1, 0)]]


def _majority(
    numbers: NDArray[np.int64],
    lows: NDArray[np.int64],
    highs: NDArray[np.int64],
    starts: NDArray[np.int64],
    size: int,
) -> NDArray[np.int64]:
    """Return the label with most samples; of equals the one that comes first in the window, then the lower number."""
    present = np.unique(numbers)
    counts, firsts = [], []
    for number in present:
        low, high = _union(lows[numbers == number], highs[numbers == number])
        counts.append(_covered(low, high, starts + size) - _covered(low, high, starts))
        following = np.append(low, np.iinfo(np.int64).max)[np.searchsorted(high, starts, "right")]
        firsts.append(np.maximum(following, starts))
    best = np.lexsort((np.array(firsts), -np.array(counts)), axis=0)[0]  # stable: equals stay in the order of numbers
    return present[best]


def _union(lows: NDArray[np.int64], highs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted, disjoint and not empty intervals that cover the same; agreeing experts count once."""
    keep = lows < highs
    order = np.argsort(lows[keep], kind="stable")
    lows, reach = lows[keep][order], np.maximum.accumulate(highs[keep][order])
    new = np.append(np.full(min(1, len(lows)), True), lows[1:] > reach[:-1])
    return lows[new], reach[np.append(new[1:], np.full(min(1, len(lows)), True))]


def _covered(lows: NDArray[np.int64], highs: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the samples before ``end`` that lie in these disjoint intervals."""
    before = np.append(0, np.cumsum(highs - lows))
    begun = np.searchsorted(lows, end)
    return before[begun] - np.maximum(np.append(0, highs)[begun] - end, 0)


def _mean(
    values: NDArray[np.float64], knots: NDArray[np.int64], starts: NDArray[np.int64], size: int
) -> NDArray[np.float64]:
    """Return the mean over a window's samples of the values of each sample's block; NaN where one has none."""
    lengths = np.diff(knots)[:, None]
    missing = np.isnan(values)
    both = np.concatenate([np.where(missing, 0.0, values), missing], 1)
    before = np.concatenate([np.zeros((1, both.shape[1])), np.cumsum(both[:-1] * lengths, 0)])

    def total(end: NDArray[np.int64]) -> NDArray[np.float64]:
        block = np.searchsorted(knots, end, "right") - 1
        return before[block] + both[block] * (end - knots[block])[:, None]

    sums, gaps = np.split(total(starts + size) - total(starts), 2, axis=1)
    return np.where(gaps > 0, np.nan, sums / size)
