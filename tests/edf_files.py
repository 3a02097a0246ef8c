"""Writes EDF, EDF+, BDF and BDF+ files byte by byte, right or wrong in any field. Knows nothing of our reader.

After the specifications at edfplus.info and biosemi.com/faq/file_format.htm. A field is given as text, bytes or a
number and padded with blanks; bytes go in as they are, so that a test can write what no writer should.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Field = str | bytes | int | float


def padded(value: Field, width: int) -> bytes:
    data = value if isinstance(value, bytes) else str(value).encode("latin-1")
    assert len(data) <= width, (value, width)
    return data.ljust(width, b" ")


def tal(onset: str, *texts: str | bytes, duration: str = "") -> bytes:
    """One time-stamped annotation list; without a text it says when its record began."""
    data = onset.encode() + (b"\x15" + duration.encode() if duration else b"") + b"\x14"
    for text in texts or ("",):
        data += (text if isinstance(text, bytes) else text.encode("utf-8")) + b"\x14"
    return data + b"\x00"


@dataclass
class Wave:
    """A signal with its header fields. ``counts`` are all its samples, record after record."""

    label: Field = "Fp1"
    counts: Sequence[int] | np.ndarray = ()
    samples: int = 4
    """In each record."""
    unit: Field = "uV"
    pmin: Field = -100
    pmax: Field = 100
    dmin: Field = -2048
    dmax: Field = 2047
    transducer: Field = "AgAgCl electrode"
    prefilter: Field = "HP:0.1Hz LP:75Hz"
    stated_samples: Field | None = None
    reserved: Field = ""

    def record(self, index: int, width: int) -> bytes:
        data = b""
        for count in self.counts[index * self.samples : (index + 1) * self.samples]:
            data += int(count).to_bytes(width, "little", signed=True)
        return data


@dataclass
class Notes:
    """An annotation signal: for each record its bytes, padded with NUL."""

    records: Sequence[bytes] = ()
    samples: int = 20
    label: Field = "EDF Annotations"
    unit: Field = ""
    pmin: Field = -1
    pmax: Field = 1
    dmin: Field = -32768
    dmax: Field = 32767
    transducer: Field = ""
    prefilter: Field = ""
    stated_samples: Field | None = None
    reserved: Field = ""

    def record(self, index: int, width: int) -> bytes:
        assert len(self.records[index]) <= self.samples * width, "annotations do not fit"
        return self.records[index].ljust(self.samples * width, b"\0")


@dataclass
class File:
    """A whole file; ``bytes()`` of it is what lies on the disk. ``None`` means: as it should be."""

    signals: Sequence[Wave | Notes] = field(default_factory=list)
    kind: str = "EDF"
    records: int = 3
    """How many are written."""
    duration: Field = 1
    version: Field | None = None
    patient: Field = "X X X X"
    recording: Field = "Startdate X X X X"
    date: Field = "01.01.85"
    time: Field = "00.00.00"
    header_bytes: Field | None = None
    reserved: Field | None = None
    stated_records: Field | None = None
    stated_signals: Field | None = None
    gap: bytes = b""
    """Between header and records."""

    def __bytes__(self) -> bytes:
        count = len(self.signals)
        bdf = self.kind.startswith("BDF")
        plain = {"EDF": "", "BDF": "24BIT"}
        parts = [
            padded((b"\xffBIOSEMI" if bdf else "0") if self.version is None else self.version, 8),
            padded(self.patient, 80),
            padded(self.recording, 80),
            padded(self.date, 8),
            padded(self.time, 8),
            padded(256 * (1 + count) if self.header_bytes is None else self.header_bytes, 8),
            padded(plain.get(self.kind, self.kind) if self.reserved is None else self.reserved, 44),
            padded(self.records if self.stated_records is None else self.stated_records, 8),
            padded(self.duration, 8),
            padded(count if self.stated_signals is None else self.stated_signals, 4),
        ]
        parts += [padded(s.label, 16) for s in self.signals]
        parts += [padded(s.transducer, 80) for s in self.signals]
        parts += [padded(s.unit, 8) for s in self.signals]
        parts += [padded(s.pmin, 8) for s in self.signals]
        parts += [padded(s.pmax, 8) for s in self.signals]
        parts += [padded(s.dmin, 8) for s in self.signals]
        parts += [padded(s.dmax, 8) for s in self.signals]
        parts += [padded(s.prefilter, 80) for s in self.signals]
        parts += [padded(s.samples if s.stated_samples is None else s.stated_samples, 8) for s in self.signals]
        parts += [padded(s.reserved, 32) for s in self.signals]
        parts += [self.gap]
        for record in range(self.records):
            parts += [s.record(record, 3 if bdf else 2) for s in self.signals]
        return b"".join(parts)


def microvolts(counts: Sequence[int] | np.ndarray, low: float, high: float, dmin: int, dmax: int) -> list[float]:
    """The formula of the specification; ``low`` and ``high`` are the physical minimum and maximum in microvolts."""
    return [low + (int(count) - dmin) * (high - low) / (dmax - dmin) for count in counts]


def ramp(n: int, start: int = -2048, seed: int = 0) -> np.ndarray:
    """Counts from -2048 to 2047, different for each seed, with both ends among them."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(-2048, 2048, n)
    counts[:2] = [-2048, 2047][: min(n, 2)]
    return np.maximum(counts, start)


def timekeeping(onsets: Sequence[str], more: dict[int, bytes] | None = None) -> list[bytes]:
    """The annotation bytes of records that begin at these onsets, and what else is in some of them."""
    return [tal(onset) + (more or {}).get(index, b"") for index, onset in enumerate(onsets)]
