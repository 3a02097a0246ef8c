"""The way of a recording: what is done to it between opening and the model, in one place for every caller.

``prepare``, ``predict``, ``embed``, ``info`` and the pictures of a recording all call this file. The steps, in order:
count what is wrong with each channel, choose channels, find the mains frequency, plan the filters, filter and resample,
apply the reference, round to half precision. Opening the file and matching its channel names comes first
(``reading/formats.py``, or the recipe of a corpus).

Samples come in blocks, so a recording of 24 hours needs no more memory than a short one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering.filters import FilteredBlock, filter_recording
from cerebro_eeg.data.filtering.half import FilteredPiece, HalfSplitter
from cerebro_eeg.data.filtering.plan import FilterPlan, estimate_mains, plan_filters
from cerebro_eeg.data.filtering.quality import ChannelQuality, Policy, Thresholds, choose, count, measure
from cerebro_eeg.data.filtering.quality import faults as channel_faults
from cerebro_eeg.data.filtering.references import Reference, rereference
from cerebro_eeg.data.reading.edf import late_faults
from cerebro_eeg.data.reading.recording import Fault, Recording, Segment


@dataclass(frozen=True, eq=False)
class CheckedRecording:
    """An open recording after its quality check: all samples were read once, and the channels are chosen."""

    opened: Recording
    """The recording with every channel that its reader matched."""
    recording: Recording
    """The same recording with the channels that the quality policy keeps."""
    thresholds: Thresholds
    quality: tuple[ChannelQuality, ...]
    """Counts for each channel of ``opened``."""
    faults: tuple[Fault, ...]
    """What is wrong with the file. Some faults of EDF files are known only after all samples were read."""
    mains: float | None
    """Mains frequency in Hz, given or estimated; None where neither 50 nor 60 Hz stands out."""

    @property
    def channel_faults(self) -> list[tuple[str, ...]]:
        """The faults of each channel of ``opened``."""
        return [channel_faults(channel, self.thresholds) for channel in self.quality]

    def count_faults(self) -> dict[str, int]:
        """Count the channels of ``opened`` that have each fault."""
        return count(self.quality, self.thresholds)


@dataclass(frozen=True, eq=False)
class Preprocessed:
    """A recording and all decisions about it; ``blocks`` and ``pieces`` compute its filtered samples."""

    checked: CheckedRecording
    plan: FilterPlan
    reference: Reference
    channels: tuple[Channel, ...]
    """The columns of the filtered samples; the reference may have made pairs of electrodes."""

    @property
    def recording(self) -> Recording:
        return self.checked.recording

    def blocks(self, segments: Sequence[Segment] | None = None) -> Iterator[FilteredBlock]:
        """Filter, resample and re-reference the recording, or only some ``segments`` of it."""
        recording = self.recording if segments is None else replace(self.recording, segments=tuple(segments))
        for block in filter_recording(recording, self.plan):
            signal, _ = rereference(block.signal, recording.match.channels, self.reference)
            yield replace(block, signal=signal)

    def pieces(self) -> Iterator[FilteredPiece]:
        """Round the blocks to half precision, which makes gaps of values that it cannot hold.

        These are the very samples and the very gaps of a store, because its writer splits in the same way.
        """
        splitter, stretch = HalfSplitter(self.plan.new_rate), -1
        for block in self.blocks():
            if block.stretch != stretch:
                splitter.begin(block.onset, short=block.short)
                stretch = block.stretch
            yield from splitter.push(block.signal)


def preprocess(
    opened: Recording,
    config: SignalConfig,
    *,
    thresholds: Thresholds | None = None,
    quality: Policy = "keep",
    mains: float | None = None,
) -> Preprocessed:
    """Decide everything about an open recording; a RecordingError or a ChannelError says why it cannot be used.

    ``mains`` is the mains frequency in Hz, 0 for none; it is estimated where it is None.
    """
    plan_filters(opened.sfreq, config, None)  # a rate that does not fit is refused before all samples are read
    return plan_recording(check_recording(opened, thresholds=thresholds, quality=quality, mains=mains), config)


def plan_unread(opened: Recording, config: SignalConfig, *, mains: float | None = None) -> Preprocessed:
    """Decide what can be decided before a sample is read: all but which channels are bad, as if none was.

    Errors are those of ``preprocess`` with the policy "keep", but for what only samples show.
    """
    unread = CheckedRecording(opened, opened, Thresholds(), (), opened.faults, mains or None)
    return plan_recording(unread, config)


def check_recording(
    opened: Recording, *, thresholds: Thresholds | None = None, quality: Policy = "keep", mains: float | None = None
) -> CheckedRecording:
    """Read all samples once, count what is wrong with each channel, choose channels and find the mains frequency."""
    limits = thresholds or Thresholds()
    measured = measure(opened, limits)
    recording = with_columns(opened, choose(opened.match.channels, measured, limits, quality))
    return CheckedRecording(
        opened=opened,
        recording=recording,
        thresholds=limits,
        quality=measured,
        faults=(*opened.faults, *late_faults(opened)),
        mains=estimate_mains(recording) if mains is None else mains or None,
    )


def plan_recording(checked: CheckedRecording, config: SignalConfig) -> Preprocessed:
    """Plan the filters and name the channels after the reference; a rate that does not fit is a RecordingError."""
    recording = checked.recording
    plan = plan_filters(recording.sfreq, config, checked.mains)
    nothing = np.empty((0, len(recording.match.channels)), np.float32)
    _, channels = rereference(nothing, recording.match.channels, config.reference)
    return Preprocessed(checked, plan, config.reference, channels)


def with_columns(recording: Recording, columns: Sequence[int]) -> Recording:
    """Return the recording with some of its channels; the others count as dropped."""
    if len(columns) == len(recording.match.channels):
        return recording
    chosen = list(columns)
    kept = {recording.match.index[column] for column in chosen}
    rows = tuple(
        row
        if row.channel is None or row.index in kept
        else replace(row, channel=None, outcome="dropped", note="flat, clipped, disconnected or scaled")
        for row in recording.match.rows
    )
    return replace(
        recording,
        match=replace(recording.match, rows=rows),
        read=lambda start, stop: recording.read(start, stop)[:, chosen],
    )
