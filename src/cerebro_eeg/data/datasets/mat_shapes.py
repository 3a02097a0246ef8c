"""The names and shapes of the arrays in a MATLAB file (version 5 to 7.2), from their headers alone.

A recipe must know how long the trials in a file of hundreds of megabytes are without reading them. SciPy's ``whosmat``
would do, but SciPy's reader crashes on damaged files and the check for that (``reading/mat5.py``) reads all of them.
After "MAT-File Format" of The MathWorks.
"""

import struct
import zlib
from pathlib import Path

from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.errors import RecordingError

_MATRIX, _COMPRESSED = 14, 15
_HEAD = 1 << 12  # bytes that hold flags, dimensions and name of an array


def mat_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape by name, in the order of the file; a RecordingError where it is not such a file."""
    shapes: dict[str, tuple[int, ...]] = {}
    with opened(path) as (read, stamp):
        start = read(0, min(128, stamp.size))
        if len(start) < 128 or start[126:128] not in (b"IM", b"MI"):
            raise RecordingError("format", "no MATLAB file of version 5 to 7.2; save it with -v6 or -v7")
        order = "<" if start[126:128] == b"IM" else ">"
        place = 128
        while place + 8 <= stamp.size:
            kind, size = struct.unpack(order + "II", read(place, 8))
            if kind not in (_MATRIX, _COMPRESSED) or place + 8 + size > stamp.size:
                raise _damaged()
            head = read(place + 8, min(size, _HEAD))
            if kind == _COMPRESSED:
                head = _inflated(head)[8:]  # without the tag of the matrix inside
            name, shape = _name_and_shape(head, order)
            shapes[name] = shape
            place += 8 + size
    return shapes


def _inflated(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, _HEAD)
    except zlib.error:
        raise _damaged() from None


def _name_and_shape(head: bytes, order: str) -> tuple[str, tuple[int, ...]]:
    """What follows the tag of a matrix: 16 bytes of flags, the dimensions, the name."""
    try:
        kind, size = struct.unpack_from(order + "II", head, 16)
        if kind != 5 or not 8 <= size <= 128 or size % 4:
            raise _damaged()
        shape = struct.unpack_from(f"{order}{size // 4}i", head, 24)
        place = 24 + size + -size % 8
        kind, size = struct.unpack_from(order + "II", head, place)
    except struct.error:
        raise _damaged() from None
    place += 8
    if kind >> 16:  # a short name lies in the tag itself
        place, size = place - 4, kind >> 16
    name = head[place : place + size]
    if len(name) < size or min(shape) < 0:
        raise _damaged()
    return name.decode("latin-1"), shape


def _damaged() -> RecordingError:
    return RecordingError("damaged", "a MATLAB file whose elements do not fit into each other; copy or save it anew")
