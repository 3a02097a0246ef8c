"""Recording: what every reader gives, whatever the file was. Microvolts, time-major, with its gaps, events and faults.

A recording is read in pieces, because a file of 24 hours need not fit into memory. Samples are numbered as they lie in
the file; a segment is a stretch of them without a gap, and only within one are neighbours a sampling interval apart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.match import ChannelMatch

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Segment:
    """Samples ``start`` to ``stop`` (exclusive), one sampling interval apart from each to the next."""

    start: int
    stop: int
    onset: float
    """Seconds from the start of the recording to the first of them."""


@dataclass(frozen=True)
class Event:
    """Something that was marked: an annotation, a trigger, a label."""

    onset: float
    """Seconds from the start of the recording."""
    duration: float
    """Seconds; 0 for a moment."""
    name: str


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a file and was mended or lived with; what cannot be is a RecordingError."""

    code: str
    """One word, the same for the same fault in every file."""
    note: str
    """One line for a person; names no patient, no path."""


@dataclass(frozen=True)
class Recording:
    """An open recording. ``read(start, stop)`` gives samples (time, channel) as float32 microvolts."""

    sfreq: float
    match: ChannelMatch
    """What became of every label; ``match.channels`` are the columns."""
    segments: tuple[Segment, ...]
    read: Callable[[int, int], Samples]
    events: tuple[Event, ...] = ()
    faults: tuple[Fault, ...] = ()
    subject: str | None = None
    """As the recipe or the user says; never read from a header."""

    @property
    def samples(self) -> int:
        """All samples, over all segments."""
        return self.segments[-1].stop if self.segments else 0

    @property
    def seconds(self) -> float:
        """Seconds of signal; gaps do not count."""
        return sum(s.stop - s.start for s in self.segments) / self.sfreq
