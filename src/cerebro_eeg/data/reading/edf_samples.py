"""Reads the samples of an EDF or BDF file as float32 microvolts, time-major, in blocks of whole records.

Only a few numbers are held between two reads. Each read opens the file and refuses it when it has changed.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.names import clean
from cerebro_eeg.data.reading.edf_header import EdfHeader, EdfSignal, ReadBytes, integer, number, text
from cerebro_eeg.data.reading.passing_faults import passing_faults
from cerebro_eeg.data.reading.recording import Fault, Samples
from cerebro_eeg.errors import InputError, RecordingError, offered

# Both signs for micro (U+00B5, U+03BC). UV is how machines without small letters write it (ISO 2955), and has no other
# meaning; MV could be milli- or megavolts and is refused.
UNITS = {
    "uV": Fraction(1),
    "µV": Fraction(1),
    "μV": Fraction(1),
    "UV": Fraction(1),
    "uv": Fraction(1),
    "nV": Fraction(1, 1000),
    "mV": Fraction(1000),
    "V": Fraction(1_000_000),
}
_BLOCK = 1 << 22  # bytes of the file that are in memory at a time
_FLOAT32_MOST = Fraction(float(np.finfo(np.float32).max))

Counts = NDArray[np.int32] | NDArray[np.int16]


@contextlib.contextmanager
def opened(path: Path, same: "Stamp | None" = None) -> Iterator[tuple[ReadBytes, "Stamp"]]:
    """Yield a function that reads bytes of the file, and its stamp; raises where the stamp is not ``same``."""
    with passing_faults():
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would wait for its writer
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordingError("unreadable", "is a folder, a pipe or a device; give a file")
            stamp = Stamp(status.st_size, status.st_mtime_ns)
            if same is not None and stamp != same:
                raise RecordingError("changed", "the file was changed after it was opened; open it again")
            yield lambda place, count: _read_bytes(descriptor, place, count), stamp
        finally:
            os.close(descriptor)


def _read_bytes(descriptor: int, place: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.pread(descriptor, count, place)  # may give less than asked for, most at 2 GiB
        if not part:
            raise RecordingError("changed", "the file became shorter while it was read; open it again")
        parts.append(part)
        place += len(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def calibrate(signal: EdfSignal, width: int, unit: str | None) -> "EdfScaling":
    """Find how counts of a signal become microvolts; ``unit`` is used where the file's own unit is blank or unknown."""
    name = f"channel {clean(signal.label)!r}"
    own = text(signal.unit)
    if own not in UNITS and unit is None:
        known = "uV, nV, mV, V"
        raise RecordingError(
            "unit",
            f"{name}: its unit is {'blank' if not own else 'not one we know'}; expected one of {known}"
            + ("; say what it is with unit='uV', if that is certain" if offered("unit") else ""),
        )
    scale = UNITS[own if own in UNITS or unit is None else unit]
    low, high = integer(signal.digital[0]), integer(signal.digital[1])
    most = 1 << (8 * width - 1)
    if low is None or high is None or not -most <= low < high <= most:  # a maximum one too large is common, harmless
        raise RecordingError(
            "digital_range",
            f"{name}: digital minimum and maximum must be whole numbers, the first the smaller, of {8 * width} bits; "
            "without them counts cannot become microvolts",
        )
    bottom, top = number(signal.physical[0]), number(signal.physical[1])
    if bottom is None or top is None or bottom == top:
        what = "equal" if bottom is not None and bottom == top else "not both numbers"
        raise RecordingError(
            "physical_range",
            f"{name}: physical minimum and maximum are {what}; without them counts cannot become microvolts",
        )
    gain = (top - bottom) / (high - low) * scale
    offset = bottom * scale - low * gain
    if max(abs(gain * most + offset), abs(offset - gain * most)) > _FLOAT32_MOST:
        raise RecordingError("calibration", f"{name}: its physical range is beyond any voltage; mend the header")
    commas = sum(b"," in field for field in signal.physical + signal.digital)
    return EdfScaling(float(gain), float(offset), low, high, assumed=own not in UNITS, commas=commas)


def _counts(raw: NDArray[np.uint8], width: int) -> Counts:
    """Decode little-endian two's complement of 16 or 24 bits, from bytes (..., n * width) to numbers (all,)."""
    if width == 2:
        return np.ascontiguousarray(raw).view("<i2").reshape(-1)
    wide = np.zeros((raw.size // 3, 4), np.uint8)
    wide[:, 1:] = raw.reshape(-1, 3)
    # The three bytes are the upper ones of 32 bits, so that the shift back carries the sign along.
    return wide.view("<i4").reshape(-1) >> 8


@dataclass(frozen=True)
class Stamp:
    """Size and time of a file; another stamp means that the file has changed."""

    size: int
    modified: int


@dataclass(frozen=True)
class EdfScaling:
    """How counts become microvolts: count * gain + offset; counts beyond ``low`` and ``high`` should not occur."""

    gain: float
    offset: float
    low: int
    high: int
    assumed: bool
    """The unit is not the file's own."""
    commas: int


class EdfSamples:
    """The ``read`` function of an EDF or BDF Recording; counts the samples that leave their digital range."""

    def __init__(
        self, path: Path, stamp: Stamp, header: EdfHeader, signals: tuple[EdfSignal, ...], how: tuple[EdfScaling, ...]
    ) -> None:
        self._path, self._stamp, self._header = path, stamp, header
        self._columns = tuple(zip(signals, how, strict=True))
        self._per_record = signals[0].samples
        self._counted = 0  # samples in front of this one are not counted again
        self._beyond = [0] * len(signals)

    def __call__(self, start: int, stop: int) -> Samples:
        """Return samples ``start`` to ``stop`` (exclusive) as they lie in the file; gaps are in the segments."""
        most = self._header.records * self._per_record
        if not 0 <= start <= stop <= most:
            raise InputError(f"samples {start} to {stop} were asked for; the recording has 0 to {most}")
        out = np.empty((stop - start, len(self._columns)), np.float32)
        if start == stop:
            return out
        with opened(self._path, self._stamp) as (read, _):
            if self._header.record_bytes <= _BLOCK:
                self._read_records(read, start, stop, out)
            else:
                self._read_pieces(read, start, stop, out)
        self._counted = max(self._counted, stop)
        return out

    def _read_records(self, read: ReadBytes, start: int, stop: int, out: Samples) -> None:
        length, n = self._header.record_bytes, self._per_record
        last, together = -(-stop // n), _BLOCK // length
        for record in range(start // n, last, together):
            count = min(together, last - record)
            data = np.frombuffer(read(self._header.start + record * length, count * length), np.uint8)
            a, b = max(start, record * n), min(stop, (record + count) * n)
            for column, (signal, _) in enumerate(self._columns):
                raw = data.reshape(count, length)[:, signal.offset : signal.offset + n * self._header.width]
                counts = _counts(raw, self._header.width)[a - record * n : b - record * n]
                self._put(column, counts, a, out[a - start : b - start])

    def _read_pieces(self, read: ReadBytes, start: int, stop: int, out: Samples) -> None:
        """Read signal by signal, where a record is too large for memory."""
        n, width = self._per_record, self._header.width
        for record in range(start // n, -(-stop // n)):
            place = self._header.start + record * self._header.record_bytes
            first, end = max(start, record * n), min(stop, (record + 1) * n)
            for a in range(first, end, _BLOCK // width):
                b = min(end, a + _BLOCK // width)
                for column, (signal, _) in enumerate(self._columns):
                    data = read(place + signal.offset + (a - record * n) * width, (b - a) * width)
                    counts = _counts(np.frombuffer(data, np.uint8), width)
                    self._put(column, counts, a, out[a - start : b - start])

    def _put(self, column: int, counts: Counts, first: int, out: Samples) -> None:
        how = self._columns[column][1]
        np.add(np.multiply(counts, how.gain, dtype=np.float64), how.offset, out=out[:, column], casting="same_kind")
        new = counts[max(0, self._counted - first) :]
        if new.size and (new.min() < how.low or new.max() > how.high):
            self._beyond[column] += int(((new < how.low) | (new > how.high)).sum())

    def faults(self) -> tuple[Fault, ...]:
        """Return the faults among the samples read so far, which are all after a read from start to end."""
        channels = sum(count > 0 for count in self._beyond)
        if not channels:
            return ()
        note = (
            f"{sum(self._beyond)} samples of {channels} channels lie outside the digital range of their channel; kept"
        )
        return (Fault("out_of_range", note),)
