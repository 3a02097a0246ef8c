"""Recording: what every reader gives, whatever the file was. Microvolts, time-major, with its gaps, events and faults.

A recording is read in pieces, because a file of 24 hours need not fit into memory. Samples are numbered as they lie in
the file; a segment is a stretch of them without a gap, and only within one are neighbours a sampling interval apart.

ChannelPolicy: how the labels of a recording become channels, as one value that every reader takes.

Its fields are the arguments of ``channels.match.match``, where they are explained, and ``keep`` and ``names``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.match import NEAREST_MM, ChannelMatch, match
from cerebro_eeg.channels.names import biosemi_blocks, clean, parse, read_label
from cerebro_eeg.channels.report import listed
from cerebro_eeg.errors import ChannelError

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


@dataclass(frozen=True)
class ChannelPolicy:
    """The policies of ``channels.match``; the defaults refuse whatever is not understood."""

    unknown: str = "error"
    untrained: str = "error"
    trained: Mapping[str, int] | None = None
    bipolar_ears: bool = False
    duplicates: str = "error"
    pick: Sequence[str] | None = None
    """Labels or channels that the recording must have; all others are left out."""
    keep: Collection[str] | None = None
    """Channels to keep where the recording has them, in any spelling; the others are left out, and one must stay."""
    max_channels: int = 64
    too_many: str = "error"
    limit_mm: float = NEAREST_MM
    names: Mapping[str, str] | None = None
    """What labels mean that say nothing themselves: {"EXG Channel 0": "Fp1"}; used before any other rule."""

    def __post_init__(self) -> None:
        if self.pick is not None and self.keep is not None:
            raise ChannelError("pick and keep were both given; use pick (all must be there) or keep (those that are)")
        if isinstance(self.keep, str):
            raise ChannelError(f"keep must be a list of names, got the single text {self.keep!r}")

    def match(
        self,
        labels: Sequence[str],
        positions: Sequence[Sequence[float] | None] | None = None,
        kinds: Sequence[str | None] | None = None,
    ) -> ChannelMatch:
        """Match the labels of one recording by this policy; ``positions`` and ``kinds`` as in ``channels.match``."""
        meant = self._named(labels)
        found = match(
            meant,
            positions=positions,
            kinds=kinds,
            unknown=self.unknown,
            untrained=self.untrained,
            trained=self.trained,
            bipolar_ears=self.bipolar_ears,
            duplicates=self.duplicates,
            pick=self.pick if self.keep is None else self._present(meant, self.keep),
            max_channels=self.max_channels,
            too_many=self.too_many,
            limit_mm=self.limit_mm,
        )
        if meant == list(labels):
            return found
        rows = [
            row if name == label else replace(row, label=clean(label), note=f"named {clean(name)} by the caller")
            for row, name, label in zip(found.rows, meant, labels, strict=True)
        ]
        return ChannelMatch(tuple(rows))

    def _named(self, labels: Sequence[str]) -> list[str]:
        names = {clean(label): name for label, name in (self.names or {}).items()}
        return [names.get(clean(label), label) for label in labels]

    def _present(self, labels: Sequence[str], keep: Collection[str]) -> list[str]:
        readings = [parse(name, bipolar_ears=self.bipolar_ears) for name in keep]
        strange = [reading.label for reading in readings if reading.channel is None]
        if strange:
            raise ChannelError(f"keep must name electrodes or pairs of them, got {listed(strange)}; mend these names")
        wanted = {reading.channel for reading in readings}
        blocks = biosemi_blocks(labels)
        present = [label for label in labels if read_label(label, blocks, self.bipolar_ears).channel in wanted]
        if not present:
            raise ChannelError(
                f"none of the {len(wanted)} channels to keep is among the {len(labels)} labels; add some"
            )
        return present
