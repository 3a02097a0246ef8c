"""Filters a recording as a stream: blocks at the new rate, stretch by stretch, in bounded memory.

A stretch is a segment, or a part of it between NaNs and infinities. Each stretch is filtered on its own, so nothing
leaks over a gap. Sample k of a stretch lies at its onset + k / new rate, and n native samples give ceil(n * up / down)
new ones. A causal filter gives its output late (``causal.py``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cerebro_eeg.data.filtering.causal import Causal
from cerebro_eeg.data.filtering.plan import FilterPlan
from cerebro_eeg.data.filtering.zero_phase import ZeroPhase
from cerebro_eeg.data.reading.recording import Recording, Samples, Segment

CHUNK = 1 << 20  # values asked of a reader at a time: 4 MiB


@dataclass(frozen=True)
class FinitePiece:
    """Finite samples that follow each other; many make a stretch."""

    begins: bool
    """Whether a new stretch begins with this piece."""
    start: int
    """Number of its first sample in the recording."""
    onset: float
    """Seconds from the start of the recording to its first sample."""
    samples: Samples


@dataclass(frozen=True)
class FilteredBlock:
    """Some samples of one stretch at the new rate; the blocks of a stretch follow each other."""

    stretch: int
    """Number of the stretch, from 0."""
    onset: float
    """Seconds from the start of the recording to the first sample of the *stretch*."""
    start: int
    """Samples of the stretch that came before this block."""
    signal: Samples
    """(time, channel) microvolts."""
    short: bool
    """The stretch is shorter than the zero-phase filters: reflected edges reach all of it; its windows get a flag.
    """


def filter_recording(recording: Recording, plan: FilterPlan, *, chunk: int = CHUNK) -> Iterator[FilteredBlock]:
    """Filter, notch and resample a recording as the plan says.

    The reference does not change here (``references.py`` does that). ``chunk`` does not change the result.
    """
    stretch: _Stretch | None = None
    for piece in pieces(recording, chunk):
        if stretch is None or piece.begins:
            if stretch is not None:
                yield from stretch.finish()
            number = 0 if stretch is None else stretch.number + 1
            stretch = _Stretch(plan, len(recording.match.channels), number, piece.onset)
        yield from stretch.push(piece.samples)
    if stretch is not None:
        yield from stretch.finish()


def pieces(recording: Recording, chunk: int = CHUNK) -> Iterator[FinitePiece]:
    """Yield all samples that are finite in every channel, in order, about ``chunk`` values at a time."""
    rows = max(1, chunk // max(1, len(recording.match.channels)))
    for segment in recording.segments:
        begins = True
        for start in range(segment.start, segment.stop, rows):
            samples = recording.read(start, min(start + rows, segment.stop))
            for first, stop in _finite(samples):
                onset = segment.onset + (start + first - segment.start) / recording.sfreq
                yield FinitePiece(begins or first > 0, start + first, onset, samples[first:stop])
                begins = False
            begins = begins or not np.isfinite(samples[-1]).all()


def finite_runs(recording: Recording, chunk: int = CHUNK) -> tuple[Segment, ...]:
    """Return the stretches of a recording: its segments, cut at every NaN and infinity. Reads it once, in pieces."""
    found: list[Segment] = []
    for piece in pieces(recording, chunk):
        stop = piece.start + len(piece.samples)
        if piece.begins:
            found.append(Segment(piece.start, stop, piece.onset))
        else:
            found[-1] = Segment(found[-1].start, stop, found[-1].onset)
    return tuple(found)


def _finite(samples: Samples) -> Iterable[tuple[int, int]]:
    """Return first and last (exclusive) rows of every run of rows without NaN and infinity."""
    with np.errstate(all="ignore"):
        if len(samples) and np.isfinite(np.add.reduce(samples, axis=None)):  # one bad value spoils a sum
            return [(0, len(samples))]
    good = np.isfinite(samples).all(axis=1)
    steps = np.flatnonzero(np.diff(good, prepend=False, append=False)).tolist()
    return zip(steps[::2], steps[1::2], strict=True)


class _Stretch:
    """Passes one stretch through its filter and numbers the output."""

    def __init__(self, plan: FilterPlan, channels: int, number: int, onset: float) -> None:
        self.number = number
        self._onset = onset
        self._plan = plan
        self._filter = ZeroPhase(plan, channels) if plan.phase == "zero" else Causal(plan, channels)
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Iterator[FilteredBlock]:
        self._taken += len(samples)
        return self._numbered(self._filter.push(samples))

    def finish(self) -> Iterator[FilteredBlock]:
        return self._numbered(self._filter.finish())

    def _numbered(self, signals: Iterator[Samples]) -> Iterator[FilteredBlock]:
        # A zero-phase filter gives nothing of a stretch before it has more than its own length, or all of it.
        short = self._plan.phase == "zero" and self._taken < self._plan.length
        for signal in signals:
            yield FilteredBlock(self.number, self._onset, self._given, signal, short)
            self._given += len(signal)
