"""Cutting: an open recording into windows, in bounded memory. None leaves its stretch, so none spans a gap.

A window begins where its stretch begins, and then every ``stride`` samples, as those of a store do.

Legend: **B** windows, **C** channels, **T** samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.filtering.half import FilteredPiece
from cerebro_eeg.runs.signals import Signal

Watch = Callable[[Signal, FilteredPiece], None]
"""Shown every piece that goes by."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Some windows of a recording."""

    signal_BTC: NDArray[np.float16]
    start_B: NDArray[np.float64]
    """Seconds from the start of the recording."""
    stretch_B: NDArray[np.int64]
    """Number of the stretch that each lies in."""
    short_B: NDArray[np.bool_]
    """Of a stretch shorter than the filter."""


def cut_windows(signal: Signal, samples: int, stride: int, size: int, watch: Watch | None = None) -> Iterator[Cut]:
    """The windows of a recording, ``size`` at a time; each stretch begins with one."""
    rate = signal.plan.new_rate
    columns = list(signal.columns)
    held = np.empty((0, len(columns)), np.float16)
    place = wanted = 0  # samples of the stretch before `held`, and before the next window
    stretch, onset = -1, 0.0
    found: list[tuple[NDArray[np.float16], float, int, bool]] = []
    for piece in signal.pieces():
        if watch is not None:
            watch(signal, piece)
        if piece.begins:
            held, place, wanted, stretch, onset = held[:0], 0, 0, stretch + 1, piece.onset
        held = np.concatenate([held, piece.rows[:, columns]])
        while wanted + samples <= place + len(held):
            rows = held[wanted - place : wanted - place + samples]
            found.append((rows.copy(), onset + wanted / rate, stretch, piece.short))  # a view would keep all of it
            wanted += stride
            if len(found) == size:
                yield _join(found)
                found = []
        gone = min(wanted - place, len(held))
        held, place = held[gone:], place + gone
    if found:
        yield _join(found)


def _join(found: list[tuple[NDArray[np.float16], float, int, bool]]) -> Cut:
    rows, start, stretch, short = zip(*found, strict=True)
    return Cut(np.stack(rows), np.array(start), np.array(stretch, np.int64), np.array(short, np.bool_))


def longest(signal: Signal) -> float:
    """Seconds of the longest stretch."""
    lengths = [0]
    for piece in signal.pieces():
        if piece.begins:
            lengths.append(0)
        lengths[-1] += len(piece.rows)
    return max(lengths) / signal.plan.new_rate
