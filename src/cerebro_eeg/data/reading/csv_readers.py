"""The tables that headsets write: Muse (muse-lsl), Emotiv EPOC (its SDK) and OpenBCI (its GUI, version 5).

Which one it is, the columns say; any other table is refused. A text cannot be read from its middle, so its EEG columns
are held in memory as float32 (Muse: 14 MB an hour; opening takes 100 MB an hour for a moment, measured on 4 h). The
units are the devices' own, as documented:

Muse: microvolts, "12 bits on a 2 mVpp range", 256 Hz (github.com/alexandrebarachant/muse-lsl, muselsl/muse.py and
constants.py). Emotiv: "expressed in microvolts but converted directly from a 14-bit unsigned integer", with a floating
level of about 4200 uV that stays in the samples (emotiv.com/knowledge-base/what-do-the-values-from-the-sensors-mean-2,
emotiv.gitbook.io/emotivpro-v3); EPOC 128 Hz, COUNTER goes from 0 to 128. OpenBCI: microvolts, the rate in the head
(docs.openbci.com/Software/OpenBCISoftware/GUIDocs, "%Other Columns = EEG data in microvolts" in older files); Cyton's
Sample Index goes from 0 to 255. Its channels have numbers, not places: ``ChannelPolicy.names`` must say what they are.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.clock import steps, timeline
from cerebro_eeg.data.reading.edf_samples import UNITS
from cerebro_eeg.data.reading.policy import ChannelPolicy
from cerebro_eeg.data.reading.recording import Event, Fault, Recording, Samples, Segment
from cerebro_eeg.data.reading.table import Head, opened_table
from cerebro_eeg.errors import InputError, RecordingError

_MUSE = ("TP9", "AF7", "AF8", "TP10")
_EPOC = ("AF3", "AF4", "F3", "F4", "F7", "F8", "FC5", "FC6", "O1", "O2", "P7", "P8", "T7", "T8")
_EXG = re.compile(r"EXG Channel \d+", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """What a head says of its table. Columns are numbers; -1 where there is none."""

    eeg: tuple[int, ...]
    rate: float
    stamps: int = -1
    counter: int = -1
    cycles: tuple[int, ...] = ()
    """How far the counter may count; the one that fits is taken."""
    marker: int = -1
    interpolated: int = -1


def open_csv(path: Path, policy: ChannelPolicy, unit: str | None = None) -> Recording:
    """Open the table of a Muse, an Emotiv EPOC or an OpenBCI board. ``unit`` replaces the device's own, microvolts."""
    with opened_table(path) as (head, read):
        device = recognise(head)
        kinds = ["eeg" if column in device.eeg else "another column" for column in range(len(head.columns))]
        match = policy.match(list(head.columns), None, kinds)
        extra = [c for c in (device.stamps, device.counter, device.marker, device.interpolated) if c >= 0]
        table = read(match.index, extra)
    beside = {number: table.exact[:, place] for place, number in enumerate(extra)}
    counter, interpolated = beside.get(device.counter), beside.get(device.interpolated)
    later = None if counter is None else steps(counter, _cycle(counter, device.cycles))
    segments, faults = timeline(beside.get(device.stamps), device.rate, len(table.samples), later)
    faults = (*table.faults, *faults)
    if interpolated is not None and (interpolated > 0).any():
        count = int((interpolated > 0).sum())
        faults += (Fault("interpolated", f"{count} samples were lost and interpolated by the device; kept"),)
    samples = table.samples
    if unit not in (None, "uV"):
        samples = samples * np.float32(UNITS[unit])
        faults += (Fault("unit", f"taken as {unit}, as asked for; the device documents uV"),)
    events = _events(beside.get(device.marker), segments, device.rate)
    recording = Recording(device.rate, match, segments, ArraySamples(samples), events, faults)
    return replace(recording, faults=(*faults, *amplitude_faults(recording)))


def recognise(head: Head) -> Device:
    """Whose table it is, by its head."""
    for what in (_muse, _emotiv, _openbci):
        device = what(head)
        if device is not None:
            return device
    raise RecordingError(
        "columns",
        f"the {len(head.columns)} columns of this table are not those of Muse (timestamps, TP9, AF7, AF8, TP10), "
        "Emotiv EPOC (AF3 ... T8, COUNTER) or OpenBCI (%OpenBCI; Sample Index, EXG Channel 0 ...); write EDF from it",
    )


def _muse(head: Head) -> Device | None:
    if not {"timestamps", *_MUSE} <= set(head.columns):
        return None
    marker = next((i for i, name in enumerate(head.columns) if re.fullmatch(r"Marker\d*", name)), -1)
    return Device(tuple(_one(head, name) for name in _MUSE), 256.0, stamps=_one(head, "timestamps"), marker=marker)


def _emotiv(head: Head) -> Device | None:
    if not {*_EPOC, "COUNTER"} <= set(head.columns):
        return None
    interpolated = _one(head, "INTERPOLATED") if "INTERPOLATED" in head.columns else -1
    return Device(
        tuple(_one(head, name) for name in _EPOC),
        128.0,
        counter=_one(head, "COUNTER"),
        cycles=(129, 128),
        interpolated=interpolated,
    )


def _openbci(head: Head) -> Device | None:
    if not any(line.casefold().startswith("openbci") for line in head.comments):
        return None
    eeg = tuple(i for i, name in enumerate(head.columns) if _EXG.fullmatch(name))
    rates = [found[1] for line in head.comments if (found := re.fullmatch(r"Sample Rate = ([\d.]+) ?Hz,*", line))]
    if not eeg or len(rates) != 1 or "Timestamp" not in head.columns or "Sample Index" not in head.columns:
        raise RecordingError(
            "columns",
            "an OpenBCI table without a line that names its columns (Sample Index, EXG Channel 0 ..., Timestamp) or "
            "without one Sample Rate; export it with version 5 of the GUI",
        )
    try:
        rate = float(rates[0])
    except ValueError:
        rate = math.nan
    if not 1 <= rate <= 100_000:
        raise RecordingError("rate", "the Sample Rate of an OpenBCI table must be a number of Hz; mend its head")
    # A Daisy board and Ganglion count otherwise; their gaps show in the time stamps only.
    board = next((line for line in head.comments if line.startswith("Board")), "")
    cyton = "Cyton" in board and "Daisy" not in board
    marker = next((i for i, name in enumerate(head.columns) if name == "Marker Channel"), -1)
    return Device(
        eeg,
        rate,
        stamps=_one(head, "Timestamp"),
        counter=_one(head, "Sample Index") if cyton else -1,
        cycles=(256,),
        marker=marker,
    )


def _one(head: Head, name: str) -> int:
    if head.columns.count(name) != 1:
        raise RecordingError("columns", f"the column {name} is there {head.columns.count(name)} times; keep one")
    return head.columns.index(name)


def _cycle(counter: NDArray[np.float64], cycles: Sequence[int]) -> int:
    """The cycle that the highest count is the last of, or the first one where the recording is shorter than one."""
    highest = float(np.nanmax(counter, initial=0.0))
    if highest >= max(cycles) or np.nanmin(counter, initial=0.0) < 0:
        raise RecordingError(
            "counter", f"the counter of samples goes beyond {max(cycles) - 1}; another device, whose rate is not known"
        )
    return next((cycle for cycle in cycles if cycle == highest + 1), cycles[0])


def _events(marker: NDArray[np.float64] | None, segments: Sequence[Segment], rate: float) -> tuple[Event, ...]:
    """Where the marker changes to another number than 0."""
    if marker is None:
        return ()
    value = np.nan_to_num(marker)
    before = np.concatenate([[0.0], value[:-1]])
    starts = np.array([segment.start for segment in segments])
    events = []
    for place in np.flatnonzero((value != 0) & (value != before)):
        segment = segments[int(np.searchsorted(starts, place, side="right")) - 1]
        events.append(Event(segment.onset + float(place - segment.start) / rate, 0.0, f"{value[place]:g}"))
    return tuple(events)


class ArraySamples:
    """``read`` of a Recording whose samples (time, channel) are in memory."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __call__(self, start: int, stop: int) -> Samples:
        """Samples ``start`` to ``stop`` (exclusive), a copy."""
        if not 0 <= start <= stop <= len(self._samples):
            raise InputError(f"samples {start} to {stop} were asked for; the recording has 0 to {len(self._samples)}")
        return self._samples[start:stop].copy()
