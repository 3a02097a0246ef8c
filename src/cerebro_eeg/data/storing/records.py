"""StoredRecording: the metadata of one recording in a store, and the JSON line that commits it.

It has no path, no date and no free text: only ids, canonical channel names, numbers, one-word codes, and the labels and
event names that a recipe or the user has listed. A line has one canonical form, so equal recordings have equal bytes,
and a checksum that shows damage. Offsets, the fingerprint of the source and the sums of blocks are not part of the
hash.
"""

import json
import re
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from cerebro_eeg.channels.match import Channel
from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.errors import ConfigError, StoreError
from cerebro_eeg.files import parse_json
from cerebro_eeg.schema import from_dict, to_dict

WHOLE = 1e9
"""Seconds: the end of a label that holds for a whole recording, whose length no table states."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,199}")  # no slash: an id is not a path; no comma: it stands in a CSV
_CODE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_HEAD = re.compile(
    rb'\{"crc":"([0-9a-f]{8})","id":"([^"\\]+)","offset":([0-9]{1,18}),"channels":([0-9]{1,9}),"samples":([0-9]{1,18}),'
    rb'(?:"source":"([0-9a-f.]+)",)?(?:"sums":"([0-9a-f]{8})",)?"recording":'
)
_CHECKED_FROM = len(b'{"crc":"00000000",')


@dataclass(frozen=True)
class StoredSegment:
    """Samples ``start`` to ``stop`` (exclusive) of a stored recording, without a gap between them."""

    start: int
    stop: int
    onset: float
    """Seconds from the start of the recording to the first of them; more than ``start / sfreq`` behind a gap."""
    short: bool
    """Shorter than the filter, so filtered with reflected edges."""


@dataclass(frozen=True)
class Interval:
    """A stretch of a recording that a task can use: its split, and its label or its target values or neither."""

    start: float
    """Seconds from the start of the recording."""
    stop: float
    split: str | None = None
    label: str | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class StoredRecording:
    """One recording of a store; equal recordings are equal in every field, wherever their samples lie."""

    id: str
    subject: str | None
    channels: tuple[str, ...]
    """Canonical names, the columns of the samples: Fp1, or Fp1-F7 for a difference."""
    sfreq: float
    samples: int
    segments: tuple[StoredSegment, ...]
    events: tuple[Event, ...]
    labels: dict[str, tuple[Interval, ...]]
    """Intervals by task."""
    native_sfreq: float
    mains: float | None
    """The frequency that the notch removed; None where there was no notch."""
    faults: tuple[str, ...]
    """Codes of faults of the file that were mended or tolerated."""
    quality: dict[str, int]
    """Counts; ``not_finite`` and ``too_large`` are the samples that became gaps on writing."""
    scale: float
    """Microvolts, by ``writer.robust_scale``."""
    source_bytes: int
    sha256: str
    """Hash of the samples as they are stored."""

    @property
    def upsampled(self) -> bool:
        return self.native_sfreq < self.sfreq

    @property
    def bytes(self) -> int:
        """The size of the samples."""
        return 2 * len(self.channels) * self.samples

    @property
    def seconds(self) -> float:
        """Seconds of signal; gaps do not count."""
        return self.samples / self.sfreq


class ShardLine(NamedTuple):
    """The line of a recording, not yet decoded. It is a tuple, because a large store has very many."""

    id: str
    offset: int
    channels: int
    samples: int
    source: str
    """The fingerprint of the source (``fingerprint.py``); empty where none was taken."""
    sums: str
    """The CRC-32 of the sums of its blocks (``block_sums.py``); empty where it has none."""
    body: bytes
    """The recording as canonical JSON."""

    @property
    def stop(self) -> int:
        """The byte of the shard where its samples end."""
        return self.offset + self.bytes

    @property
    def bytes(self) -> int:
        """The size of the samples."""
        return 2 * self.channels * self.samples


def is_id(text: str) -> bool:
    """Return whether a text can name a recording or a subject."""
    return _ID.fullmatch(text) is not None


def is_code(text: str) -> bool:
    """Return whether a text can be the code of a fault, a count or a reason."""
    return _CODE.fullmatch(text) is not None


def check(record: StoredRecording) -> StoredRecording:
    """Check every field of a record by type and meaning; a ConfigError names the wrong one."""
    record = from_dict(StoredRecording, to_dict(record))
    edges = [0, *(edge for s in record.segments for edge in (s.start, s.stop)), record.samples]
    wrong = {
        "id": not is_id(record.id),
        "subject": record.subject is not None and not is_id(record.subject),
        "channels": not record.channels or len(set(record.channels)) < len(record.channels),
        "sfreq": not record.sfreq > 0 or not record.native_sfreq > 0,
        "samples": record.samples < 1,
        # Stored samples have no holes: each segment begins where the one before it ends, and none is empty.
        "segments": edges[::2] != edges[1::2] or any(s.start >= s.stop for s in record.segments),
        "onsets": any(before.onset >= after.onset for before, after in pairwise(record.segments)),
        "events": any(e.duration < 0 for e in record.events),
        "labels": any(i.stop < i.start for intervals in record.labels.values() for i in intervals),
        "faults": not all(map(is_code, record.faults)),
        "quality": not all(is_code(name) and count >= 0 for name, count in record.quality.items()),
        "scale": not record.scale >= 0,
        "source_bytes": record.source_bytes < 0,
        "sha256": re.fullmatch(r"[0-9a-f]{64}", record.sha256) is None,
    }
    for name in record.channels:
        Channel(*name.split("-"))  # its own error names the electrode
    found = [name for name, bad in wrong.items() if bad]
    if found:
        raise ConfigError(f"the recording to store has a value without sense in {', '.join(found)}; mend the recipe")
    return record


def to_line(record: StoredRecording, offset: int, source: str = "", sums: str = "") -> bytes:
    """Make the line that commits a recording whose samples begin at byte ``offset`` of the shard.

    The fields that an index needs come first, so that a store opens without decoding the rest.
    """
    body = json.dumps(to_dict(record), sort_keys=True, separators=(",", ":"), allow_nan=False)
    entry = ShardLine(record.id, offset, len(record.channels), record.samples, source, sums, body.encode())
    return join_line(entry)


def join_line(entry: "ShardLine") -> bytes:
    """Make a line of its parts; ``split_line`` takes it apart."""
    head = f'"id":"{entry.id}","offset":{entry.offset},"channels":{entry.channels},"samples":{entry.samples}'
    mark = (f',"source":"{entry.source}"' if entry.source else "") + (f',"sums":"{entry.sums}"' if entry.sums else "")
    rest = f'{head}{mark},"recording":'.encode() + entry.body + b"}"
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(rest), rest)


def split_line(line: bytes) -> ShardLine | None:
    """Parse a line (without its line feed); return None for a damaged one."""
    head = _HEAD.match(line)
    if head is None or int(head[1], 16) != zlib.crc32(line[_CHECKED_FROM:]):
        return None
    source, sums = (head[6] or b"").decode(), (head[7] or b"").decode()
    numbers = int(head[3]), int(head[4]), int(head[5])
    return ShardLine(head[2].decode(), *numbers, source, sums, line[head.end() : -1])


def decode(entry: ShardLine) -> StoredRecording:
    """Decode the recording of a line; its checksum vouches for the checks on writing, so only types are restored."""
    try:
        values = parse_json(entry.body)
        values["channels"] = tuple(values["channels"])
        values["segments"] = tuple(StoredSegment(**segment) for segment in values["segments"])
        values["events"] = tuple(Event(**event) for event in values["events"])
        values["labels"] = {task: tuple(map(_interval, found)) for task, found in values["labels"].items()}
        values["faults"] = tuple(values["faults"])
        return StoredRecording(**values)
    except (ValueError, TypeError, KeyError, AttributeError):  # a good checksum, but not a line that we wrote
        raise StoreError(f"what the store says of recording {entry.id!r} has no sense; prepare it anew") from None


def _interval(values: dict[str, Any]) -> Interval:
    return Interval(**{**values, "values": tuple(values["values"])})
