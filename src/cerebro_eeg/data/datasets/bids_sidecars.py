"""What the files beside a BIDS recording say of it: channels that are no EEG, units, rate, mains frequency, events.

The recording's own file has the last word on its samples: on units and rate the sidecars only bear witness, and a
contradiction is a fault. They are believed where the file is silent: a unit that it lacks, what a label is, events.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cerebro_eeg.channels.names import clean
from cerebro_eeg.channels.report import listed
from cerebro_eeg.data.datasets.bids_tree import BidsFile, nearest, sidecar
from cerebro_eeg.data.datasets.user_tables import read_number, read_rows
from cerebro_eeg.data.reading.edf_header import read_header, text
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.policy import ChannelPolicy
from cerebro_eeg.data.reading.readers import open_recording
from cerebro_eeg.data.reading.recording import Event, Fault, Recording
from cerebro_eeg.errors import InputError, RecordingError

MISSING = ("n/a", "")
_EEG = "EEG"


@dataclass(frozen=True)
class Sidecars:
    """What the files beside a recording say of it."""

    kinds: Mapping[str, str]
    """Type by cleaned label."""
    units: Mapping[str, str]
    """Unit by cleaned label, of EEG channels whose unit is a voltage."""
    bad: tuple[str, ...]
    rate: float | None
    mains: float | None
    events: tuple[Event, ...] | None
    """The listed ones; None where there is no table of events."""
    broken: str | None = None
    """Why they cannot be used."""


def read_sidecars(file: BidsFile, events: Sequence[str]) -> Sidecars:
    """All that is said of a recording, with those events that are wanted."""
    try:
        return _read(file, events)
    except InputError as error:  # one bad table must not stop the others
        return Sidecars({}, {}, (), None, None, None, str(error))


def _read(file: BidsFile, events: Sequence[str]) -> Sidecars:
    values = sidecar(file, "eeg")
    table = nearest(file, "channels")
    rows = read_rows(table, "a channels.tsv", "\t", ["name"])[1] if table is not None else []
    kinds = {clean(row["name"]): row.get("type", _EEG).upper() for row in rows}
    units = {
        clean(row["name"]): row["units"]
        for row in rows
        if row.get("units") in UNITS and kinds[clean(row["name"])] == _EEG
    }
    bad = tuple(clean(row["name"]) for row in rows if row.get("status", "").casefold() == "bad")
    where = nearest(file, "events")
    return Sidecars(
        kinds,
        units,
        bad,
        _positive(values.get("SamplingFrequency")),
        _positive(values.get("PowerLineFrequency")),
        None if where is None else _read_events(where, events),
    )


def _positive(value: Any) -> float | None:
    """A frequency; None for "n/a" and for what has no sense."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e6 else None


def _read_events(path: Path, wanted: Sequence[str]) -> tuple[Event, ...]:
    columns, rows = read_rows(path, "an events.tsv", "\t", ["onset", "duration"])
    if "trial_type" not in columns and "value" not in columns:
        return ()
    found = []
    for number, row in enumerate(rows, 1):
        name = next((row[c] for c in ("trial_type", "value") if row.get(c, "n/a") not in MISSING), None)
        if name is None or name not in wanted:
            continue
        where = f"of row {number} of an events.tsv"
        onset = read_number(row["onset"], f"onset {where}")
        duration = 0.0 if row["duration"] in MISSING else read_number(row["duration"], f"duration {where}")
        if duration < 0:
            raise InputError(f"the duration {where} is {duration:g} s; expected 0 or more")
        found.append(Event(onset, duration, name))
    return tuple(sorted(found, key=lambda event: (event.onset, event.name, event.duration)))


def open_bids(path: Path, beside: Sidecars, policy: ChannelPolicy) -> Recording:
    """One recording, with what its sidecars say of channels and events."""
    if beside.broken:
        raise RecordingError("sidecar", beside.broken)
    not_eeg = {name: "MISC" for name, kind in beside.kinds.items() if kind != _EEG}
    policy = replace(policy, names={**(policy.names or {}), **not_eeg})
    try:
        recording = open_recording(path, policy)
    except RecordingError as error:
        units = {UNITS[unit] for unit in beside.units.values()}
        # V proves nothing: published tables have it after the unit that MNE computes in, whatever the file has.
        if error.code != "unit" or len(units) != 1 or units == {UNITS["V"]}:
            raise
        recording = open_recording(path, policy, unit=next(iter(beside.units.values())))
    events = recording.events if beside.events is None else beside.events
    return replace(recording, events=events, faults=(*recording.faults, *_faults(path, beside, recording)))


def _faults(path: Path, beside: Sidecars, recording: Recording) -> Iterator[Fault]:
    kept = [row.label for row in recording.match.rows if row.channel is not None]
    bad = [name for name in kept if name in beside.bad]
    if bad:
        yield Fault("bads", f"{len(bad)} channels are marked as bad and were kept: {listed(bad)}")
    lost = [name for name in kept if name not in beside.kinds]
    if lost and beside.kinds:
        yield Fault("channels_differ", f"{len(lost)} channels are not in channels.tsv: {listed(lost)}; kept")
    if beside.rate is not None and abs(beside.rate / recording.sfreq - 1) > 1e-3:
        yield Fault(
            "rate_differs", f"the sidecar says {beside.rate:g} Hz, the file {recording.sfreq:g} Hz, which holds"
        )
    own = _edf_units(path) if path.suffix.casefold() in (".edf", ".bdf") else {}
    differ = [
        name for name in kept if name in beside.units and own.get(name) in UNITS
        and UNITS[own[name]] != UNITS[beside.units[name]]
    ]  # fmt: skip
    if differ:
        yield Fault(
            "units_differ", f"channels.tsv has another unit than the file for {listed(differ)}; the file's holds"
        )


def _edf_units(path: Path) -> dict[str, str]:
    with opened(path) as (read, stamp):
        header = read_header(read, stamp.size)
    return {clean(signal.label): text(signal.unit) for signal in header.signals}
