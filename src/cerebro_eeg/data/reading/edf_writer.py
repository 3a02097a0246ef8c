"""Writes EDF+C through edfio: simulated and repaired recordings, and annotations without a signal.

No file names a person or a date: edfio leaves the patient and the recording unknown ("X") and writes its neutral start
date of 1985. The samples are handed over as integers, so what is read again is exactly what was rounded here.

edfio puts all annotations of a file without signals into one record. Thousands of them make it longer than the 61,440
bytes that EDF recommends; the readers that we know (edfio, MNE, pyedflib) read it all the same.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cerebro_eeg.data.reading.recording import Event, Samples
from cerebro_eeg.errors import InputError
from cerebro_eeg.files import replacing

if TYPE_CHECKING:
    from edfio import EdfAnnotation

QUANTUM = 0.1  # microvolts
_MOST = 32767
_LARGEST = 999_999  # microvolts: with its sign it fits into the eight characters of the field


def write_edf(path: Path, signal_TC: Samples, labels: Sequence[str], sfreq: int, events: Sequence[Event]) -> None:
    """Write whole seconds of microvolts as 16 bits of 0.1 microvolts, with ``events`` as annotations."""
    from edfio import Edf, EdfSignal

    records, rest = divmod(len(signal_TC), sfreq)
    if rest or not records:
        raise InputError(f"{len(signal_TC)} samples at {sfreq} Hz are no whole number of seconds; EDF records are 1 s")
    counts_TC = np.rint(signal_TC / QUANTUM)
    if not np.abs(counts_TC).max() <= _MOST:  # true for NaN, too
        raise InputError(f"a sample is not a number or beyond {_MOST * QUANTUM:g} microvolts, the most that is written")
    if any(len(label) > 16 for label in labels):
        raise InputError("a channel label has more than the 16 characters that EDF has room for; shorten it")
    for event in events:
        if not 0 <= event.onset < records:
            raise InputError(f"an event begins at {event.onset:g} s of a recording of {records} s")
    limit = round(_MOST * QUANTUM, 1)  # 3276.7000000000003 would become 3276.701 in the eight characters of the field
    signals = [
        EdfSignal.from_digital(
            counts.astype(np.int16),
            sfreq,
            label=label,
            transducer_type="simulated",
            physical_dimension="uV",
            physical_range=(-limit, limit),
            digital_range=(-_MOST, _MOST),
        )
        for label, counts in zip(labels, counts_TC.T, strict=True)
    ]
    with replacing(path) as temporary:
        Edf(signals, data_record_duration=1, annotations=_annotations(events)).write(temporary)


def write_recording(
    path: Path,
    signal_TC: Samples,
    labels: Sequence[str],
    sfreq: float,
    events: Sequence[Event] = (),
    *,
    notes: Sequence[str],
    filters: str,
) -> None:
    """Write microvolts of any length as 16 bits: each channel with the finest steps that hold it.

    ``notes`` are written in the place of the transducer, one for each channel. A record lasts a quarter of a second or
    as little as the rate allows, and what is left of the last record is dropped.
    """
    from edfio import Edf, EdfSignal

    per_record = _samples_of_a_record(sfreq)
    count = len(signal_TC) // per_record * per_record
    if not count:
        raise InputError(f"{len(signal_TC)} samples at {sfreq:g} Hz are too few for a record of EDF; use FIF")
    if not np.isfinite(signal_TC).all():
        raise InputError("a sample is not a number, which EDF cannot hold; use FIF")
    if any(len(label) > 16 for label in labels):
        raise InputError("a channel label has more than the 16 characters that EDF has room for; shorten it")
    signals = []
    for label, values, note in zip(labels, signal_TC[:count].T, notes, strict=True):
        largest = max(1.0, math.ceil(float(np.abs(values).max())))  # whole microvolts fit into the field as they are
        if largest > _LARGEST:
            raise InputError(f"a channel reaches {largest:g} microvolts, more than an EDF header can say; use FIF")
        digital = np.rint(values.astype(np.float64) * (_MOST / largest)).astype(np.int16)
        signals.append(
            EdfSignal.from_digital(
                digital,
                sfreq,
                label=label,
                transducer_type=note,
                physical_dimension="uV",
                physical_range=(-largest, largest),
                digital_range=(-_MOST, _MOST),
                prefiltering=filters,
            )
        )
    kept = [event for event in events if 0 <= event.onset < count / sfreq]
    with replacing(path) as temporary:
        Edf(signals, data_record_duration=per_record / sfreq, annotations=_annotations(kept)).write(temporary)


def _samples_of_a_record(sfreq: float) -> int:
    """Return the samples of the shortest record, from a quarter second on, that EDF can say the length of."""
    for quarters in range(1, 241):
        samples = sfreq * quarters / 4
        if samples == int(samples):
            return int(samples)
    raise InputError(f"a rate of {sfreq:g} Hz has no whole number of samples in a minute, which EDF needs; use FIF")


def write_annotations(path: Path, events: Sequence[Event]) -> None:
    """Write an EDF+ file with at least one event and no signal."""
    from edfio import Edf

    with replacing(path) as temporary:
        Edf([], annotations=_annotations(events)).write(temporary)


def _annotations(events: Sequence[Event]) -> list["EdfAnnotation"]:
    """Convert events to the microsecond, which keeps binary rounding out of the text of a time."""
    from edfio import EdfAnnotation

    return [EdfAnnotation(round(e.onset, 6), round(e.duration, 6) or None, e.name) for e in events]
