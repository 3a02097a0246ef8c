"""Makes a Recording of a Raw or an Epochs object of MNE, the user's own or one read from a file.

MNE has volts; they become microvolts here, once. A channel type other than EEG is believed: a channel with the label of
an electrode and another type is left out, with a Fault, because MNE scales only EEG to volts. The type EEG proves
nothing, since most readers give it to all channels; then the label decides.

Segments are cut at joins and pauses, and samples that MNE filled in for unrecorded time are left out. Joins have no
length in MNE's time.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cerebro_eeg.channels.names import biosemi_blocks, clean, read_label
from cerebro_eeg.channels.report import ChannelMatch, listed
from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.edf_samples import UNITS
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Fault, Recording, Samples, Segment, bad_faults
from cerebro_eeg.errors import InputError, RecordingError, offered

_BLOCK = 1 << 22  # numbers that MNE gives at a time; they are float64
_VOLT, _HEAD = 107, 4  # FIFF_UNIT_V, FIFFV_COORD_HEAD
# Where neighbours in the file are not neighbours in time: joins of MNE and Nihon Kohden, EEGLAB's cuts
# (https://eeglab.org/tutorials/ConceptsGuide/Data_Structures.html#eegevent), pauses of BrainVision's recorder.
_JOINS = ("bad boundary", "edge boundary", "boundary", "new segment/")
_SKIP = "bad_acq_skip"  # MNE filled the time in which nothing was recorded with zeros

Scales = Sequence[float | None]


def from_raw(
    raw: Any,
    policy: ChannelPolicy,
    unit: str | None = None,
    *,
    scales: Scales | None = None,
    joins: Sequence[int] = (),
    faults: Sequence[Fault] = (),
) -> Recording:
    """Make a Recording of an ``mne.io.BaseRaw``; samples stay where they are until they are read.

    Parameters
    ----------
    scales : factor from MNE's numbers to microvolts for each channel; None where the file does not say.
    joins : samples, beside those that annotations mark, that do not follow the one before.
    """
    with quietly() as warned:
        match, found = _match(raw, policy)
        scale, unit_faults = _scales(raw, match, unit, scales)
        sfreq, count = float(raw.info["sfreq"]), len(raw.times)
        events = _events(raw.annotations, float(raw.first_time))
        pieces = _pieces(raw, events, sfreq, count, joins)
    if not pieces:
        raise RecordingError("empty", "not one sample")
    segments, first = [], 0
    for start, stop in pieces:
        segments.append(Segment(first, first + stop - start, start / sfreq))
        first += stop - start
    return _checked(
        Recording(
            sfreq,
            match,
            tuple(segments),
            RawSamples(raw, match.index, scale, pieces),
            events,
            (*faults, *warned, *found, *unit_faults),
        )
    )


def from_epochs(epochs: Any, policy: ChannelPolicy, unit: str | None = None, faults: Sequence[Fault] = ()) -> Recording:
    """Make a Recording of ``mne.BaseEpochs``; each epoch is a segment with one event over all of it that has its name.

    Epochs follow each other in a time of their own, because events of decimated epochs no longer tell when they were.
    """
    with quietly() as warned:
        if not epochs._bad_dropped:
            epochs = epochs.copy().drop_bad(verbose="warning")  # the caller's object stays as it is
        match, found = _match(epochs, policy)
        scale, unit_faults = _scales(epochs, match, unit, None)
        sfreq, length, count = float(epochs.info["sfreq"]), len(epochs.times), len(epochs)
        names = {code: str(name) for name, code in epochs.event_id.items()}
        labels = [names.get(int(code), str(int(code))) for code in epochs.events[:, 2]]
    if not count:
        raise RecordingError("empty", "not one epoch is left")
    span = length / sfreq
    return _checked(
        Recording(
            sfreq,
            match,
            tuple(Segment(i * length, (i + 1) * length, i * span) for i in range(count)),
            EpochSamples(epochs, match.index, scale, length, count),
            tuple(Event(i * span, span, label) for i, label in enumerate(labels)),
            (*faults, *warned, *found, *unit_faults),
        )
    )


def _checked(recording: Recording) -> Recording:
    return replace(recording, faults=(*recording.faults, *amplitude_faults(recording)))


def _match(source: Any, policy: ChannelPolicy) -> tuple[ChannelMatch, tuple[Fault, ...]]:
    labels, kinds = list(source.ch_names), list(source.get_channel_types())
    positions = [tuple(ch["loc"][:3]) if ch["coord_frame"] == _HEAD else None for ch in source.info["chs"]]
    match = policy.match(labels, positions, kinds, source.info["bads"])
    meant = policy.named(labels)
    blocks = biosemi_blocks(meant)
    faults = []
    lost = {
        clean(label): kind
        for label, name, kind in zip(labels, meant, kinds, strict=True)
        if kind != "eeg" and read_label(name, blocks, policy.bipolar_ears).channel is not None
    }
    if lost:
        named = listed(list(lost), lost)
        faults.append(Fault("kind", f"labels of electrodes whose type is another than eeg were left out: {named}"))
    return match, (*faults, *bad_faults(match))


def _scales(
    source: Any, match: ChannelMatch, unit: str | None, scales: Scales | None
) -> tuple[list[float], tuple[Fault, ...]]:
    """Return the factor from MNE's numbers to microvolts for each column."""
    found, assumed = [], []
    for index in match.index:
        channel = source.info["chs"][index]
        known = scales[index] if scales is not None else 1e6
        if known is None or channel["unit"] != _VOLT or channel["unit_mul"] != 0:
            assumed.append(match.rows[index].label)
            known = float(UNITS[unit]) if unit is not None else None
        found.append(known or 0.0)
    if assumed and unit is None:
        raise RecordingError(
            "unit",
            f"the unit of {len(assumed)} channels is blank or no voltage: {listed(assumed)}; expected one of uV, nV, "
            "mV, V" + ("; say what it is with unit='uV', if that is certain" if offered("unit") else ""),
        )
    note = f"{len(assumed)} channels have no unit that we know; taken as {unit}, as asked for"
    return found, (Fault("unit", note),) if assumed else ()


def _events(annotations: Any, first_time: float) -> tuple[Event, ...]:
    durations = np.nan_to_num(np.asarray(annotations.duration, float), nan=0.0, posinf=0.0)
    return tuple(
        Event(float(onset) - first_time, float(duration), str(name))
        for onset, duration, name in zip(annotations.onset, durations, annotations.description, strict=True)
    )


def _pieces(
    raw: Any, events: Sequence[Event], sfreq: float, count: int, joins: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the stretches of samples without a join, a pause or unrecorded time."""
    cuts, holes = set(joins), []
    gdf = type(raw).__name__ == "RawGDF"
    for event in events:
        name, place = event.name.casefold(), event.onset * sfreq
        if name == _SKIP:
            holes.append((round(place), round(place + event.duration * sfreq)))
        elif name.startswith(_JOINS) or (gdf and name == "32766"):  # 0x7ffe of GDF: a new segment begins
            cuts.add(int(np.ceil(place - 1e-3)))  # a join lies in front of a sample, or half a sample before
    # Parts of a file that was split go on where the one before ends; those of joined files do not.
    parts = list(zip(raw._first_samps, raw._last_samps, strict=True))
    length = 0
    for (first, last), (following, _) in pairwise(parts):
        length += int(last - first) + 1
        if following != last + 1:
            cuts.add(length)
    edges = sorted({0, count, *(cut for cut in cuts if 0 < cut < count)})
    edges = sorted({*edges, *(min(max(edge, 0), count) for hole in holes for edge in hole)})
    return tuple(
        (start, stop)
        for start, stop in pairwise(edges)
        if not any(first <= start and stop <= last for first, last in holes)
    )


def _check_range(start: int, stop: int, most: int) -> None:
    if not 0 <= start <= stop <= most:
        raise InputError(f"samples {start} to {stop} were asked for; the recording has 0 to {most}")


class RawSamples:
    """The ``read`` function of a Recording of an MNE Raw object."""

    def __init__(
        self, raw: Any, index: Sequence[int], scales: Sequence[float], pieces: Sequence[tuple[int, int]]
    ) -> None:
        self._raw, self._index, self._pieces = raw, list(index), tuple(pieces)
        self._scales = np.array(scales)
        self._count = sum(stop - start for start, stop in pieces)

    def __call__(self, start: int, stop: int) -> Samples:
        """Return samples ``start`` to ``stop`` (exclusive), counted over the pieces."""
        _check_range(start, stop, self._count)
        out = np.empty((stop - start, len(self._index)), np.float32)
        rows = max(1, _BLOCK // len(self._raw.ch_names))
        first = 0  # of the piece, in our count
        with quietly():
            for begin, end in self._pieces:
                a, b = max(start, first), min(stop, first + end - begin)
                for at in range(a, b, rows):
                    to = min(at + rows, b)
                    place = begin + at - first
                    block = self._raw.get_data(self._index, place, place + to - at, verbose="warning")
                    if block.shape[1] != to - at:
                        raise RecordingError("changed", "the file is shorter than its header says; copy it anew")
                    np.multiply(block.T, self._scales, out=out[at - start : to - start], casting="same_kind")
                first += end - begin
        return out


class EpochSamples:
    """The ``read`` function of a Recording of MNE Epochs, which follow each other."""

    def __init__(self, epochs: Any, index: Sequence[int], scales: Sequence[float], length: int, count: int) -> None:
        self._epochs, self._index, self._length, self._count = epochs, list(index), length, count
        self._scales = np.array(scales)

    def __call__(self, start: int, stop: int) -> Samples:
        """Return samples ``start`` to ``stop`` (exclusive), counted over all epochs."""
        _check_range(start, stop, self._count * self._length)
        n = self._length
        out = np.empty((stop - start, len(self._index)), np.float32)
        together = max(1, _BLOCK // (len(self._epochs.ch_names) * n))
        with quietly():
            for first in range(start // n, -(-stop // n), together):
                last = min(first + together, -(-stop // n))
                data = self._epochs.get_data(self._index, item=slice(first, last), verbose="warning")
                block = data.transpose(0, 2, 1).reshape(-1, len(self._index))
                a, b = max(start, first * n), min(stop, last * n)
                part = block[a - first * n : b - first * n]
                np.multiply(part, self._scales, out=out[a - start : b - start], casting="same_kind")
        return out
