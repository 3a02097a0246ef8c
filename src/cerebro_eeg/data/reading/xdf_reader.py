"""Opens XDF, the files of Lab Streaming Layer, through ``pyxdf`` where it is installed. Not tested on a real file.

The one stream of type EEG is the recording; streams of type Markers are its events. pyxdf reads a file whole. Labels
and units are in the stream's description (github.com/sccn/xdf/wiki/EEG-Meta-Data).
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Fault, Recording
from cerebro_eeg.data.reading.tables import ArraySamples, timeline
from cerebro_eeg.errors import RecordingError, import_trouble, offered

_WORDS = {"microvolts": "uV", "microvolt": "uV", "millivolts": "mV", "nanovolts": "nV", "volts": "V"}


def open_xdf(path: Path, policy: ChannelPolicy, unit: str | None = None) -> Recording:
    """Open an XDF file; the package pyxdf must be installed."""
    with opened(path) as (read, stamp):
        if stamp.size < 4 or read(0, 4) != b"XDF:":
            raise RecordingError("format", "no XDF file: it does not begin with XDF:")
    try:
        pyxdf = importlib.import_module("pyxdf")
    except ImportError as error:
        raise RecordingError("missing_package", f"XDF cannot be read: {import_trouble(error, 'pyxdf')}") from None
    with quietly() as warned:
        streams = pyxdf.load_xdf(str(path), verbose=False)[0]
        eeg = [stream for stream in streams if _text(stream["info"], "type").casefold() == "eeg"]
        if len(eeg) != 1:
            raise RecordingError(
                "streams", f"{len(eeg)} of {len(streams)} streams are EEG; expected one, split the file"
            )
        info = eeg[0]["info"]
        rate = float(_text(info, "nominal_srate") or 0)
        stamps = np.asarray(eeg[0]["time_stamps"], np.float64)
        samples = np.asarray(eeg[0]["time_series"], np.float32)
        described = _channels(info)
        marks = [stream for stream in streams if _text(stream["info"], "type").casefold() == "markers"]
        events = [(float(t), str(v[0])) for m in marks for t, v in zip(m["time_stamps"], m["time_series"], strict=True)]
    if not rate > 0:
        raise RecordingError("rate", "the EEG stream has no nominal rate; write EDF or FIF from it")
    if samples.ndim != 2 or len(described) != samples.shape[1]:
        raise RecordingError("columns", f"{len(described)} channels are described, but not as many recorded")
    kinds = [_text(c, "type").casefold() or None for c in described]
    match = policy.match([_text(c, "label") for c in described], None, kinds)
    scales, assumed = [], 0
    for index in match.index:
        own = _text(described[index], "unit")
        own = _WORDS.get(own.casefold(), own)
        assumed += own not in UNITS
        if own not in UNITS and unit is None:
            raise RecordingError(
                "unit",
                f"channel {match.rows[index].label!r}: its unit is blank or not one we know; expected one of uV, nV, "
                "mV, V" + ("; say what it is with unit='uV', if that is certain" if offered("unit") else ""),
            )
        scales.append(float(UNITS[own if own in UNITS else unit or "uV"]))
    segments, found = timeline(stamps, rate, len(samples))
    faults = (*warned, *found)
    if assumed:
        faults += (Fault("unit", f"{assumed} channels have no unit that we know; taken as {unit}, as asked for"),)
    data = samples[:, list(match.index)] * np.array(scales, np.float32)
    marked = tuple(Event(t - float(stamps[0]), 0.0, name) for t, name in sorted(events))
    recording = Recording(rate, match, segments, ArraySamples(data), marked, faults)
    return replace(recording, faults=(*faults, *amplitude_faults(recording)))


def _text(node: Mapping[str, Any], key: str) -> str:
    """Return the text of an element; pyxdf gives every element of its XML as a list of one."""
    value = node.get(key)
    while isinstance(value, list):
        value = value[0] if value else None
    return "" if value is None else str(value).strip()


def _channels(info: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    try:
        found: Sequence[Mapping[str, Any]] = info["desc"][0]["channels"][0]["channel"]
    except (KeyError, TypeError, IndexError):
        raise RecordingError("columns", "the EEG stream does not say what its channels are") from None
    return found
