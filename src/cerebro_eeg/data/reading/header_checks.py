"""Checks of FIF, GDF and BrainVision files that MNE does not make before it reads them.

FIF: MNE follows the chain of tags for ever where it runs in a circle. A tag has four big-endian numbers: kind, type,
bytes of its data, and the place of the next tag (0: behind the data, -1: none), as in mne/_fiff/tag.py. A chain with
more tags than the file has room for is a circle.

GDF: MNE takes every unit that it does not know as volts, also a blank one, and upsamples slow channels without a word.
So unit, range and rate of each channel are read here. After the GDF specification (A. Schloegl, "GDF - A general data
format for biosignals", arXiv:cs/0608052); unit codes are those of ISO 11073-10101: 4256 V, 4274 mV, 4275 uV, 4276 nV.
"""

import gzip
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from cerebro_eeg.data.reading.edf_header import ReadBytes
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.passing_faults import passing_faults
from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import RecordingError

_FILE_ID = 100
_MOST = 1 << 40


def check_fif(path: Path) -> None:
    """Raise RecordingError unless all tags lie in the file, one after the other, and the chain ends."""
    with opened(path) as (read, stamp):
        packed = read(0, min(2, stamp.size)) == b"\x1f\x8b"
    try:
        with passing_faults(), gzip.open(path) if packed else path.open("rb") as file:
            _follow(file, _MOST if packed else stamp.size)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise RecordingError("damaged", "its compressed data is damaged or cut; copy the file anew") from None


def _follow(file: "IO[bytes] | gzip.GzipFile", size: int) -> None:
    place, tags = 0, 0
    while True:
        file.seek(place)
        head = file.read(16)
        if not head and tags:
            return  # without a last tag: the recorder was stopped hard, what came before is whole
        if len(head) < 16:
            raise RecordingError("truncated", "a FIF file that is cut in mid-tag; copy it anew")
        kind, _, length, following = struct.unpack(">iiii", head)
        if not tags and kind != _FILE_ID:
            raise RecordingError("format", "no FIF file: it does not begin with a file id")
        tags += 1
        if length < 0 or place + 16 + length > size:
            raise RecordingError("truncated", "a FIF file with a tag that reaches beyond its end; copy it anew")
        if following == -1:
            return
        if following < 0 or tags > size // 16 or following > size:
            raise RecordingError("damaged", "a FIF file whose chain of tags leads nowhere; copy it anew")
        # In a compressed file going back is slow, and no recorder writes such a chain.
        if following and following <= place and isinstance(file, gzip.GzipFile):
            raise RecordingError("damaged", "a FIF file whose chain of tags leads nowhere; copy it anew")
        place = following or place + 16 + length


_CODES = {4256: "V", 4274: "mV", 4275: "uV", 4276: "nV"}
_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 8, 8: 8, 16: 4, 17: 8}  # by the code of a type
_MOST_CHANNELS = 4096


@dataclass(frozen=True)
class GdfChannels:
    """Values from the header of each channel."""

    scales: tuple[float | None, ...]
    """Factor from the numbers that MNE returns to microvolts; None where the unit is blank or no voltage."""
    sound: tuple[bool, ...]
    """Whether minimum and maximum are numbers that differ."""
    samples: tuple[int, ...]
    """Samples per record."""
    bytes: tuple[int, ...]
    """Bytes per sample."""


def read_gdf_channels(path: Path) -> GdfChannels:
    """Read the headers of the channels of a GDF file, version 1 or 2."""
    with opened(path) as (read, stamp):
        if stamp.size < 256:
            raise RecordingError("format", f"no GDF file: {stamp.size} bytes are fewer than its header has")
        start = read(0, 256)
        if start[:4] != b"GDF ":
            raise RecordingError("format", "no GDF file: it does not begin with GDF")
        try:
            version = float(start[4:8])
        except ValueError:
            raise RecordingError("format", "no GDF file: its version is not a number") from None
        new = version >= 1.9
        count = int.from_bytes(start[252:254] if new else start[252:256], "little")
        if not 1 <= count <= _MOST_CHANNELS or stamp.size < 256 * (count + 1):
            raise RecordingError("header", f"the header says {count} channels, which do not fit into the file")
        channels = _read_channels(read, count, new)
        records = int.from_bytes(start[236:244], "little", signed=True)
        # MNE believes these numbers and would ask for memory of that size.
        needed = records * sum(n * size for n, size in zip(channels.samples, channels.bytes, strict=True))
        if records < 1 or not needed or 256 * (count + 1) + needed > stamp.size:
            raise RecordingError("truncated", f"the header says {records} records, which do not fit into the file")
        if not _ends_in_events(read, 256 * (count + 1) + needed, stamp.size, new):
            raise RecordingError(
                "header",
                f"by the header {needed} bytes of samples are followed by a table of events, but the file's size does "
                "not fit that; a wrong number would shift every channel; export it anew",
            )
        return channels


def _ends_in_events(read: ReadBytes, place: int, size: int, new: bool) -> bool:
    """Return whether a file ends with its samples, or with a table of events that has the size that it states."""
    if size == place:
        return True
    if size < place + 8:
        return False
    head = read(place, 8)
    count = int.from_bytes(head[1:4] if new else head[4:8], "little")
    each = 6 + (6 if head[0] & 2 else 0) + (8 if head[0] & 4 else 0)  # place and type; channel and duration; time
    return head[0] in (1, 3, 5, 7) and 0 <= size - place - 8 - count * each < 256


def check_brainvision(path: Path) -> tuple[Fault, ...]:
    """Refuse a .vhdr whose number of channels is not that of its channel lines; MNE would shift all samples.

    Returns a Fault where the file of samples ends within a sample of all channels.
    """
    with opened(path) as (read, stamp):
        text = read(0, min(stamp.size, 1 << 24)).decode("latin-1")
    fields: dict[str, str] = {}
    section, lines = "", 0
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name.startswith("["):
            section = name.casefold()
        elif section == "[channel infos]" and re.fullmatch(r"Ch\d+", name, re.IGNORECASE):
            lines += 1
        elif section in ("[common infos]", "[binary infos]"):
            fields[name.casefold()] = value.strip()
    stated = fields.get("numberofchannels", "")
    if lines and stated.isdecimal() and int(stated) != lines:
        raise RecordingError(
            "header", f"the header says {stated} channels and describes {lines}; mend the .vhdr file, or export it anew"
        )
    width = {"int_16": 2, "uint_16": 2, "int_32": 4, "ieee_float_32": 4}.get(fields.get("binaryformat", "").casefold())
    data = path.with_name(fields.get("datafile", "").replace("$b", path.stem) or path.name)
    if width is None or not lines or data == path or not data.is_file():
        return ()  # samples as text, or a file that is not there, which MNE says
    rest = data.stat().st_size % (width * lines)
    return (Fault("truncated", f"cut: {rest} bytes behind the last whole sample left out"),) if rest else ()


def _read_channels(read: ReadBytes, count: int, new: bool) -> GdfChannels:
    def field(offset: int, kind: str) -> list[float]:
        size = np.dtype(kind).itemsize
        return np.frombuffer(read(256 + offset * count, size * count), kind).astype(float).tolist()

    if new:
        units = [_CODES.get(int(code)) for code in field(102, "<u2")]
        # MNE knows micro- and millivolts and takes every other number as it is.
        scales = [None if u is None else 1e6 if u in ("uV", "mV") else float(UNITS[u]) for u in units]
    else:
        texts = [read(256 + 96 * count + 8 * i, 8).split(b"\0")[0].decode("latin-1").strip() for i in range(count)]
        # MNE knows units that begin with uV.
        scales = [1e6 if t[:2] == "uV" else float(UNITS[t]) if t in UNITS else None for t in texts]
    low, high = field(104, "<f8"), field(112, "<f8")
    bottom, top = field(120, "<f8" if new else "<i8"), field(128, "<f8" if new else "<i8")
    physical = [bool(np.isfinite([a, b]).all()) and a != b for a, b in zip(low, high, strict=True)]
    digital = [bool(np.isfinite([a, b]).all()) and a < b for a, b in zip(bottom, top, strict=True)]
    samples = field(216, "<u4")
    return GdfChannels(
        tuple(scales),
        tuple(a and b for a, b in zip(physical, digital, strict=True)),
        tuple(int(n) for n in samples),
        tuple(_BYTES.get(int(kind), 0) for kind in field(220, "<u4")),
    )
