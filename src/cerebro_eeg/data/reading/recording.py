"""Recording: the value that every reader returns, whatever the file was, and the policy for its channels.

A recording has microvolts, time-major, with its gaps, events and faults. It is read in pieces, because a file of 24
hours need not fit into memory. Samples are numbered as they lie in the file. A segment is a stretch of them without a
gap; only within a segment are neighbours one sampling interval apart.

ChannelPolicy says how the labels of a recording become channels. Its fields are the arguments of
``channels.match.match``, which explains them, and ``keep`` and ``names``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.match import NEAREST_MM, ChannelMatch, LabelMatch, match
from cerebro_eeg.channels.names import biosemi_blocks, clean, parse, read_label
from cerebro_eeg.channels.report import listed
from cerebro_eeg.errors import ChannelError, RecordingError

Samples = NDArray[np.float32]
RATES = (1.0, 20_000.0)  # Hz; outside of it a rate is a mistake, and a second or the filters would not fit into memory


@dataclass(frozen=True)
class Segment:
    """Samples ``start`` to ``stop`` (exclusive), each one sampling interval after the one before."""

    start: int
    stop: int
    onset: float
    """Seconds from the start of the recording to the first of these samples."""


@dataclass(frozen=True)
class Event:
    """A marked moment or time span: an annotation, a trigger, a label."""

    onset: float
    """Seconds from the start of the recording."""
    duration: float
    """Seconds; 0 for a moment."""
    name: str


@dataclass(frozen=True)
class Fault:
    """A defect of a file that was mended or tolerated; a defect that cannot be is a RecordingError."""

    code: str
    """One word, the same for the same defect in every file."""
    note: str
    """One line for a person; names no patient, no path."""


@dataclass(frozen=True)
class Recording:
    """An open recording; ``read(start, stop)`` returns samples (time, channel) as float32 microvolts."""

    sfreq: float
    match: ChannelMatch
    """The outcome of every label; ``match.channels`` are the columns."""
    segments: tuple[Segment, ...]
    read: Callable[[int, int], Samples]
    events: tuple[Event, ...] = ()
    faults: tuple[Fault, ...] = ()
    subject: str | None = None
    """Given by the recipe or the user, never read from a header."""

    def __post_init__(self) -> None:
        """Refuse a rate that is far too high. Each step asks for memory by the second, so this comes before all."""
        if not 0 < self.sfreq <= RATES[1]:
            raise RecordingError("rate", rate_words(self.sfreq))

    @property
    def samples(self) -> int:
        """Number of samples over all segments."""
        return self.segments[-1].stop if self.segments else 0

    @property
    def seconds(self) -> float:
        """Seconds of signal; gaps do not count."""
        return sum(s.stop - s.start for s in self.segments) / self.sfreq

    @property
    def end(self) -> float:
        """Seconds from the start of the recording to its last sample; gaps count."""
        last = self.segments[-1]
        return last.onset + (last.stop - last.start) / self.sfreq


def bad_faults(match: ChannelMatch) -> tuple[Fault, ...]:
    """Return a Fault ``bads`` that names the channels which are marked as bad; () where none is."""
    bad = [row.label for row in match.rows if row.outcome == "bad"]
    if not bad:
        return ()
    what = "1 channel is marked as bad and was" if len(bad) == 1 else f"{len(bad)} channels are marked as bad and were"
    return (Fault("bads", f"{what} left out: {listed(bad)}"),)


def rate_words(sfreq: float) -> str:
    """Return the line that refuses a sampling rate."""
    return (
        f"the sampling rate is {sfreq:g} Hz; expected {RATES[0]:g} to {RATES[1]:g} Hz; mend the rate, or the duration "
        "of a record, in its header"
    )


LEFT_OUT = "MISC"  # a name that is read as no EEG


def _named_note(row: LabelMatch, name: str) -> str:
    if name == LEFT_OUT:
        return "left out by the caller"
    given = f"named {clean(name)} by the caller"
    return given if row.outcome in ("matched", "renamed", "reference", "bipolar") else f"{given}; {row.note}"


@dataclass(frozen=True)
class ChannelPolicy:
    """The policies of ``channels.match``; the defaults refuse labels that are not understood."""

    unknown: str = "error"
    untrained: str = "error"
    trained: Mapping[str, int] | None = None
    bipolar_ears: bool = False
    duplicates: str = "error"
    pick: Sequence[str] | None = None
    """Labels or channels that the recording must have; all others are left out."""
    keep: Collection[str] | None = None
    """Channels to keep where the recording has them, in any spelling; at least one must be there."""
    max_channels: int = 64
    too_many: str = "error"
    limit_mm: float = NEAREST_MM
    names: Mapping[str, str] | None = None
    """The channels that bare labels stand for, {"EXG Channel 0": "Fp1"}; used before any other rule. A channel whose
    name is "" is left out."""
    bads: Collection[str] = ()
    """Labels that a table beside the file marks as bad; they are left out, as those that the file itself marks."""

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
        bads: Collection[str] = (),
    ) -> ChannelMatch:
        """Match the labels of one recording by this policy; the other arguments are those of ``channels.match``."""
        try:
            return self._match(labels, positions, kinds, bads)
        except ChannelError as error:
            error.labels = tuple(map(clean, labels))
            raise

    def _match(
        self,
        labels: Sequence[str],
        positions: Sequence[Sequence[float] | None] | None,
        kinds: Sequence[str | None] | None,
        bads: Collection[str],
    ) -> ChannelMatch:
        meant = self.named(labels)
        if self.duplicates == "error" and meant != list(labels):
            self._check_names(labels, meant)
        marked = {clean(label) for label in (*self.bads, *bads)}
        bad = [name for name, label in zip(meant, labels, strict=True) if clean(label) in marked]
        found = match(
            meant,
            positions=positions,
            kinds=kinds,
            bads=bad,
            unknown=self.unknown,
            untrained=self.untrained,
            trained=self.trained,
            bipolar_ears=self.bipolar_ears,
            duplicates=self.duplicates,
            pick=self.pick if self.keep is None else self._present(meant, self.keep, bad),
            max_channels=self.max_channels,
            too_many=self.too_many,
            limit_mm=self.limit_mm,
        )
        if meant == list(labels):
            return found
        rows = [
            row if name == label else replace(row, label=clean(label), note=_named_note(row, name))
            for row, name, label in zip(found.rows, meant, labels, strict=True)
        ]
        return ChannelMatch(tuple(rows))

    def named(self, labels: Sequence[str]) -> list[str]:
        """Return the labels with those that have another name here under it."""
        names = {clean(label): name for label, name in (self.names or {}).items()}
        return [(names[clean(label)] or LEFT_OUT) if clean(label) in names else label for label in labels]

    def _check_names(self, labels: Sequence[str], meant: Sequence[str]) -> None:
        """Refuse a name that another channel of the file has, too; the line of ``match`` would not say who gave it."""
        readings = [parse(name, bipolar_ears=self.bipolar_ears).channel for name in meant]
        for index, (label, name, channel) in enumerate(zip(labels, meant, readings, strict=True)):
            twin = readings.index(channel) if channel in readings[:index] else index
            if channel is not None and twin < index and (name != label or meant[twin] != labels[twin]):
                raise ChannelError(
                    f"{channel.name} is the name of two channels after renaming: "
                    f"{listed([clean(labels[twin]), clean(label)])}; give them different names, or leave one out"
                )

    def _present(self, labels: Sequence[str], keep: Collection[str], bads: Collection[str]) -> list[str]:
        readings = [parse(name, bipolar_ears=self.bipolar_ears) for name in keep]
        strange = [reading.label for reading in readings if reading.channel is None]
        if strange:
            raise ChannelError(f"keep must name electrodes or pairs of them, got {listed(strange)}; mend these names")
        wanted = {reading.channel for reading in readings}
        blocks = biosemi_blocks(labels)
        there = [label for label in labels if read_label(label, blocks, self.bipolar_ears).channel in wanted]
        present = [label for label in there if label not in bads]
        if there and not present:
            raise ChannelError(f"all {len(there)} channels to keep are marked as bad: {listed(there)}; add others")
        if not present:
            raise ChannelError(
                f"none of the {len(wanted)} channels to keep is among the {len(labels)} labels; add some"
            )
        return present
