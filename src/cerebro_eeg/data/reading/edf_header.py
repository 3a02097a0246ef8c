"""Reads the header of an EDF, EDF+, BDF or BDF+ file: where the records lie, and what a record holds.

Patient, recording and date fields are skipped and never decoded. A message names a field that was not understood and
never quotes it: in a damaged header any field may hold the patient's name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import RecordingError

# The fixed part has 256 bytes, then each field lies there once for every signal before the next field begins.
_FIXED = {"header bytes": (184, 192), "reserved": (192, 236), "records": (236, 244), "duration": (244, 252)}
_SIGNALS = (252, 256)
_FIELDS = {
    "label": 16,
    "transducer": 80,
    "unit": 8,
    "physical minimum": 8,
    "physical maximum": 8,
    "digital minimum": 8,
    "digital maximum": 8,
    "prefilter": 80,
    "samples": 8,
    "reserved": 32,
}
_OTHERS = {
    b"\x1f\x8b": "gzip",
    b"PK": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"GDF ": "GDF",
    b"\x89HDF": "HDF5",
    b"MATLAB": "MATLAB",
    b"version http": "Git LFS pointer",
}
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+[.,]?[0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
TICKS = 10**15  # times are counted in femtoseconds, whole numbers, so that no rounding can make or hide a gap

ReadBytes = Callable[[int, int], bytes]
"""Reads bytes: from a place in the file, as many as asked for."""


def read_header(read: ReadBytes, size: int) -> "EdfHeader":
    """Read the header of a file of ``size`` bytes; ``records`` is still the number that the header states."""
    if size < 256:
        raise RecordingError("format", f"is not EDF or BDF: it has {size} bytes, a header has at least 256")
    fixed = read(0, 256)
    width = _sample_width(fixed)
    count = integer(fixed[slice(*_SIGNALS)])
    if count is None or count < 0:
        raise RecordingError(
            "header", "the number of signals in the header is not a whole number; export the file anew"
        )
    if count == 0:
        raise RecordingError("no_signal", "the header says that the file has no signals")
    if 256 * (1 + count) > size:
        raise RecordingError(
            "header",
            f"the header says {count} signals, which needs {256 * (1 + count)} bytes of header; the file has {size}; "
            "copy or export it anew",
        )
    signals = _signals(read(256, 256 * count), count, width)
    fields = {name: fixed[slice(*place)] for name, place in _FIXED.items()}
    reserved = fields["reserved"].strip(b" \0").upper()
    if width == 2 and reserved.startswith((b"BDF", b"24BIT")):
        raise RecordingError("format", "the header says both EDF (16 bits) and BDF (24 bits); export the file anew")
    return EdfHeader(
        width=width,
        start=256 * (1 + count),
        stated_start=integer(fields["header bytes"]),
        records=_records(fields["records"]),
        record_bytes=sum(signal.samples for signal in signals) * width,
        duration=_duration(fields["duration"], signals),
        discontinuous=reserved[:5] in (b"EDF+D", b"BDF+D"),
        signals=signals,
        commas=int(b"," in fields["duration"]),
    )


def number(field: bytes) -> Fraction | None:
    """Return the exact number in a field, or None. Blanks and NULs are padding, and a comma is a decimal point."""
    text = field.strip(b" \0")
    if not _NUMBER.fullmatch(text):
        return None
    return Fraction(text.replace(b",", b".").decode("ascii"))


def integer(field: bytes) -> int | None:
    """Return the whole number in a field (``256`` or ``256.0``), or None."""
    value = number(field)
    return int(value) if value is not None and value.denominator == 1 else None


def text(field: bytes) -> str:
    """Return the text of a field, decoded as UTF-8 where that is valid, else as Latin-1."""
    stripped = field.strip(b" \0")
    try:
        return stripped.decode("utf-8")
    except UnicodeDecodeError:
        return stripped.decode("latin-1")


def _sample_width(fixed: bytes) -> int:
    """Return the bytes of one sample, by the first eight bytes of the file."""
    if fixed[:8] == b"\xffBIOSEMI":
        return 3
    if fixed[:8].strip(b" \0") == b"0":
        return 2
    found = next((f" (it looks like {name})" for magic, name in _OTHERS.items() if fixed.startswith(magic)), "")
    raise RecordingError("format", f"is not EDF or BDF{found}: the first 8 bytes are neither '0' nor 255 'BIOSEMI'")


def _signals(header: bytes, count: int, width: int) -> tuple["EdfSignal", ...]:
    columns: dict[str, list[bytes]] = {}
    place = 0
    for name, length in _FIELDS.items():
        columns[name] = [header[place + i * length : place + (i + 1) * length] for i in range(count)]
        place += count * length
    signals, offset = [], 0
    for index, field in enumerate(columns["samples"]):
        samples = integer(field)
        if samples is None or samples < 0:
            raise RecordingError(
                "header",
                f"signal {index + 1} of {count}: its samples per record are not a whole number, so no signal can be "
                "found in a record; export the file anew",
            )
        signals.append(
            EdfSignal(
                label=text(columns["label"][index]),
                unit=columns["unit"][index],
                physical=(columns["physical minimum"][index], columns["physical maximum"][index]),
                digital=(columns["digital minimum"][index], columns["digital maximum"][index]),
                samples=samples,
                offset=offset,
            )
        )
        offset += samples * width
    return tuple(signals)


def _records(field: bytes) -> int:
    records = integer(field)
    if records is None or records < -1:
        raise RecordingError(
            "header", "the number of records in the header is not a whole number; export the file anew"
        )
    return records


def _duration(field: bytes, signals: tuple["EdfSignal", ...]) -> int:
    """Return the ticks of one record."""
    if all(signal.is_annotation or not signal.samples for signal in signals):
        raise RecordingError("no_signal", "has no samples of any signal, annotations at most")
    duration = number(field)
    ticks = None if duration is None else duration * TICKS
    if ticks is None or ticks <= 0 or ticks.denominator != 1:
        raise RecordingError(
            "duration",
            "the duration of a record in the header is not a number of seconds above 0, so the rate is unknown; export "
            "the file anew",
        )
    return int(ticks)


@dataclass(frozen=True)
class EdfSignal:
    """One signal as the header describes it; fields that matter only for EEG are still bytes."""

    label: str
    unit: bytes
    physical: tuple[bytes, bytes]
    digital: tuple[bytes, bytes]
    samples: int
    """Samples in each record."""
    offset: int
    """Bytes from the start of a record to its first sample."""

    @property
    def is_annotation(self) -> bool:
        return self.label.casefold() in ("edf annotations", "bdf annotations")


@dataclass(frozen=True)
class EdfHeader:
    """The fields of the header; ``edf.fit`` has corrected ``records``, ``start`` and ``faults``."""

    width: int
    """Bytes of one sample: 2 in EDF, 3 in BDF."""
    start: int
    """Where the first record begins."""
    stated_start: int | None
    """Where the header says that the first record begins."""
    records: int
    record_bytes: int
    duration: int
    """Ticks of one record."""
    discontinuous: bool
    """EDF+D or BDF+D: records need not follow each other in time."""
    signals: tuple[EdfSignal, ...]
    commas: int
    """How many numbers so far had a decimal comma."""
    faults: tuple[Fault, ...] = ()
