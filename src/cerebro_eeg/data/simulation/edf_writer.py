"""Writes EDF+: samples as 16 bits of 0.1 microvolts, events as annotations, nobody's name.

After the specification of EDF+ (Kemp and Olivan, "European data format 'plus' (EDF+)", Clin. Neurophysiol. 114 (2003)
1755; https://www.edfplus.info/specs/edfplus.html).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cerebro_eeg.data.reading.recording import Event, Samples
from cerebro_eeg.errors import InputError
from cerebro_eeg.files import replacing

QUANTUM = 0.1  # microvolts
_MOST = 32767


def write_edf(path: Path, signal_TC: Samples, labels: Sequence[str], sfreq: int, events: Sequence[Event]) -> None:
    """Write a whole number of seconds of microvolts; an event lies in the record of the second in which it begins."""
    records, rest = divmod(len(signal_TC), sfreq)
    if rest or not records:
        raise InputError(f"{len(signal_TC)} samples at {sfreq} Hz are no whole number of seconds; EDF records are 1 s")
    counts_TC = np.rint(signal_TC / QUANTUM)
    if not np.abs(counts_TC).max() <= _MOST:  # says so of NaN, too
        raise InputError(f"a sample is not a number or beyond {_MOST * QUANTUM:g} microvolts, the most that is written")
    notes = _annotations(events, records)
    width = max(map(len, notes))
    width += width % 2
    channels = len(labels)
    body = np.empty((records, channels * sfreq + width // 2), "<i2")
    samples_RSC = counts_TC.astype("<i2").reshape(records, sfreq, channels)
    body[:, : channels * sfreq] = samples_RSC.transpose(0, 2, 1).reshape(records, -1)
    padded = b"".join(note.ljust(width, b"\0") for note in notes)
    body[:, channels * sfreq :] = np.frombuffer(padded, "<i2").reshape(records, -1)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_header(labels, sfreq, records, width // 2))
        file.write(body.data)


def _annotations(events: Sequence[Event], records: int) -> list[bytes]:
    """The bytes of each record: when it began, then the events that begin in it."""
    notes = [f"+{record}\x14\x14\0".encode() for record in range(records)]
    for event in events:
        if not 0 <= event.onset < records:
            raise InputError(f"an event begins at {event.onset:g} s of a recording of {records} s")
        length = f"\x15{_decimal(event.duration)}" if event.duration else ""
        notes[int(event.onset)] += f"+{_decimal(event.onset)}{length}\x14{event.name}\x14\0".encode()
    return notes


def _decimal(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _header(labels: Sequence[str], sfreq: int, records: int, note_samples: int) -> bytes:
    """The fixed part, then each field once for every signal; the annotations are the last signal."""
    eeg, count = len(labels), len(labels) + 1
    fields: list[tuple[int, Sequence[object]]] = [
        (8, ["0"]),
        (80, ["X X X X"]),
        (80, ["Startdate X X X X"]),
        (8, ["01.01.85"]),
        (8, ["00.00.00"]),
        (8, [256 * (count + 1)]),
        (44, ["EDF+C"]),
        (8, [records]),
        (8, [1]),
        (4, [count]),
        (16, [*labels, "EDF Annotations"]),
        (80, [*["simulated"] * eeg, ""]),
        (8, [*["uV"] * eeg, ""]),
        (8, [*[f"{-_MOST * QUANTUM:.1f}"] * eeg, -1]),
        (8, [*[f"{_MOST * QUANTUM:.1f}"] * eeg, 1]),
        (8, [*[-_MOST] * eeg, -32768]),
        (8, [*[_MOST] * eeg, 32767]),
        (80, [""] * count),
        (8, [*[sfreq] * eeg, note_samples]),
        (32, [""] * count),
    ]
    header = b"".join(str(value).encode("ascii").ljust(size) for size, values in fields for value in values)
    if len(header) != 256 * (count + 1):
        raise InputError("a channel label has more than the 16 characters that EDF has room for; shorten it")
    return header
