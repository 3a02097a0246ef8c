"""ShardWriter: writes recordings into a store, block by block, whole or not at all.

Samples and the sums of their blocks are appended to the writer's own shard and flushed, and then the line that commits
them. A writer that is killed at any byte and opened again continues behind the last whole line. No other process may
use its name meanwhile.

``ScaleSample`` computes the scale of a recording in microvolts, one robust number, from blocks that are never in memory
together.
"""

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.filtering.half import FilteredPiece, HalfSplitter
from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.storing.block_sums import BlockSummer
from cerebro_eeg.data.storing.fingerprint import is_fingerprint
from cerebro_eeg.data.storing.records import Interval, StoredRecording, StoredSegment, check, to_line
from cerebro_eeg.data.storing.shards import claim, disk_errors, point, read_shard, shard_names, sync_folder, write_all
from cerebro_eeg.data.storing.store_info import read_info
from cerebro_eeg.errors import ConfigError, InputError, RecordingError, StoreError

KEPT_ROWS = 1 << 15
_GOLDEN = np.uint32(2654435769)  # 2^32 / golden ratio: its multiples fill the range evenly and never fall into step


def robust_scale(signal: NDArray[np.floating]) -> float:
    """Return 1.4826 x the median over channels of the median absolute deviation of (time, channel).

    The lower of two middle values counts, as in ``torch.median``, so that a model which scales an array itself agrees.
    """
    rows = np.ascontiguousarray(signal.T, dtype=np.float32)
    deviations = _lower_median(np.abs(rows - _lower_median(rows)[:, None]))
    return float(np.float32(1.4826) * _lower_median(deviations[None])[0])


def _lower_median(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    middle = (rows.shape[1] - 1) // 2
    return np.partition(rows, middle, axis=1)[:, middle]


class ScaleSample:
    """Rows of a recording that arrives in blocks, enough for its scale: all up to 32,768, else about half of that.

    The choice of rows depends on their number alone, not on the blocks. Multiples of the golden ratio choose them,
    because every n-th row would make a steady oscillation look constant.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._limit = 1 << 32
        self._rows: list[NDArray[np.floating]] = []
        self._marks: list[NDArray[np.uint32]] = []
        self._kept = 0

    def add(self, block: NDArray[np.floating]) -> None:
        """Add the next rows (time, channel)."""
        marks = np.arange(self._seen, self._seen + len(block), dtype=np.uint64).astype(np.uint32) * _GOLDEN
        self._seen += len(block)
        chosen = marks < self._limit
        self._rows.append(block[chosen])
        self._marks.append(marks[chosen])
        self._kept += int(chosen.sum())
        while self._kept > KEPT_ROWS:
            self._limit //= 2
            rows, marks = np.concatenate(self._rows), np.concatenate(self._marks)
            chosen = marks < self._limit
            self._rows, self._marks, self._kept = [rows[chosen]], [marks[chosen]], int(chosen.sum())

    def scale(self) -> float:
        """Return the scale of the rows so far, exactly ``robust_scale`` where no row was left out."""
        return robust_scale(np.concatenate(self._rows)) if self._kept else 0.0


SHARD_BYTES = 1 << 30


class ShardWriter:
    """Appends recordings to the shards of one writer; after ``shard_bytes`` it begins a new shard."""

    def __init__(self, folder: Path, writer: str, *, shard_bytes: int = SHARD_BYTES, lock: bool = True) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", writer):
            raise ConfigError(f"a writer is named by letters, digits, - and _, got {writer!r}")
        with disk_errors("read"):
            there = (folder / "store.json").is_file()
        if not there:
            raise StoreError("there is no store here to write to: store.json is missing; make it with create_store")
        self._folder, self._writer, self._shard_bytes = folder, writer, shard_bytes
        self._has_sums = read_info(folder).has_sums  # a store goes on in the format that it was begun in
        self._pid = os.getpid()
        self._ids: set[str] = set()
        self._number = self._payload_end = self._sums_end = self._lines_end = 0
        self._closed = self._busy = False
        self._lock, self._files = contextlib.ExitStack(), contextlib.ExitStack()
        try:
            with disk_errors():
                if lock:
                    self._lock.callback(os.close, claim(folder / f"{writer}.lock"))
                for name in shard_names(folder, writer):
                    shard = read_shard(folder, name)
                    self._ids.update(entry.id for entry in shard.entries)
                    self._number = int(name.removeprefix(f"{writer}-"))
                    self._payload_end, self._sums_end = shard.payload_bytes, shard.sum_bytes
                    self._lines_end = shard.line_bytes
                self._open_shard()
        except BaseException:
            self.close()
            raise

    @property
    def ids(self) -> frozenset[str]:
        """The recordings that this writer has committed, now or in an earlier run."""
        return frozenset(self._ids)

    @contextlib.contextmanager
    def recording(self, id: str, channels: Sequence[str], sfreq: float) -> Iterator["Draft"]:
        """Yield a recording to write; ``commit`` it before the block ends, or nothing of it stays."""
        if self._closed or os.getpid() != self._pid:
            raise StoreError("this writer is closed, or belongs to another process; open one here")
        if id in self._ids:
            raise ConfigError(f"recording {id!r} is already in the shards of this writer; leave out what is in `ids`")
        if self._busy:
            raise ConfigError("a writer writes one recording at a time; commit the first, or open another writer")
        if self._payload_end >= self._shard_bytes:
            self._roll()
        self._busy, draft = True, Draft(self, id, tuple(channels), sfreq)
        try:
            yield draft
        finally:
            self._busy = draft._open = False
            if not self._closed and draft._end > self._payload_end:
                with self._writing():
                    self._cut()

    def close(self) -> None:
        """Release the name for another process."""
        self._closed = True
        self._files.close()
        self._lock.close()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_shard(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        name = f"{self._writer}-{self._number:04d}"
        self._payload = os.open(self._folder / f"{name}.bin", flags, 0o666)
        self._files.callback(os.close, self._payload)
        if self._has_sums:
            self._sums = os.open(self._folder / f"{name}.sums", flags, 0o666)
            self._files.callback(os.close, self._sums)
        point("between-files", name)
        self._lines = os.open(self._folder / f"{name}.jsonl", flags, 0o666)
        self._files.callback(os.close, self._lines)
        self._cut()
        sync_folder(self._folder)

    def _roll(self) -> None:
        with self._writing():
            self._files.close()
            self._number += 1
            self._payload_end = self._sums_end = self._lines_end = 0
            self._open_shard()

    def _cut(self) -> None:
        """Shorten the files to their committed parts."""
        os.ftruncate(self._lines, self._lines_end)
        point("between-cuts", self._writer)
        if self._has_sums:
            os.ftruncate(self._sums, self._sums_end)
            point("after-sums-cut", self._writer)
        os.ftruncate(self._payload, self._payload_end)

    def _commit(self, record: StoredRecording, end: int, source: str, sums: bytes) -> None:
        mark = f"{zlib.crc32(sums):08x}" if self._has_sums else ""
        line = to_line(record, self._payload_end, source, mark)
        sums_end = self._sums_end
        with self._writing():
            point("after-payload", record.id)
            os.fsync(self._payload)
            point("after-payload-sync", record.id)
            if self._has_sums:
                sums_end = write_all(self._sums, sums, self._sums_end)
                point("after-sums", record.id)
                os.fsync(self._sums)
                point("after-sums-sync", record.id)
            lines_end = write_all(self._lines, line, self._lines_end)
            point("after-line", record.id)
            os.fsync(self._lines)
            point("after-line-sync", record.id)
        self._payload_end, self._sums_end, self._lines_end = end, sums_end, lines_end
        self._ids.add(record.id)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """End the writer when the disk fails; opening it anew finds out what the files hold."""
        try:
            with disk_errors():
                yield
        except StoreError:
            with contextlib.suppress(OSError):
                self._cut()
            self.close()
            raise


NO_SAMPLE = "no sample of this recording can be stored; expected at least one"


class Draft:
    """A recording on its way into a shard: ``segment``, ``write`` its blocks, the next ``segment``, ``commit``."""

    def __init__(self, writer: ShardWriter, id: str, channels: tuple[str, ...], sfreq: float) -> None:
        self._writer, self._id, self._channels, self._sfreq = writer, id, channels, float(sfreq)
        self._end = writer._payload_end
        self._open = True
        self._hash = hashlib.sha256()
        self._sums = BlockSummer()
        self._sample = ScaleSample()
        self._segments: list[StoredSegment] = []
        self._samples = 0
        self._splitter = HalfSplitter(self._sfreq)
        self._begun = False

    def segment(self, onset: float, *, short: bool = False) -> None:
        """Begin a segment ``onset`` seconds after the start of the recording."""
        self._splitter.begin(onset, short=short)
        self._begun = True

    def write(self, block: NDArray[np.floating]) -> None:
        """Write the next (time, channel) microvolts of the segment; samples that float16 cannot hold become a gap."""
        if not self._open or not self._begun:
            raise InputError("samples come after `segment` and before `commit`; begin a segment first")
        if block.ndim != 2 or block.shape[1] != len(self._channels):
            raise InputError(f"a block is (time, {len(self._channels)} channels), got shape {block.shape}")
        for piece in self._splitter.push(block):
            self._put(piece)

    def commit(
        self,
        *,
        native_sfreq: float,
        subject: str | None = None,
        events: Sequence[Event] = (),
        labels: Mapping[str, Sequence[Interval]] | None = None,
        mains: float | None = None,
        faults: Sequence[str] = (),
        quality: Mapping[str, int] | None = None,
        source_bytes: int = 0,
        source: str = "",
    ) -> StoredRecording:
        """Make the recording part of the store; ``quality`` counts are added to those of samples that became gaps.

        ``source`` is the fingerprint of the source, if one was taken.
        """
        if source and not is_fingerprint(source):
            raise InputError("source is no fingerprint; expected what fingerprint.take gives, or nothing")
        if not self._open:
            raise InputError("a recording is committed once, inside its block")
        if not self._samples:
            raise RecordingError("empty", NO_SAMPLE)
        counts = {"not_finite": self._splitter.not_finite, "too_large": self._splitter.too_large}
        given = dict(quality or {})
        record = check(
            StoredRecording(
                id=self._id,
                subject=subject,
                channels=self._channels,
                sfreq=self._sfreq,
                samples=self._samples,
                segments=tuple(self._segments),
                events=tuple(events),
                labels={task: tuple(intervals) for task, intervals in (labels or {}).items()},
                native_sfreq=native_sfreq,
                mains=mains,
                faults=tuple(faults),
                quality={name: given.get(name, 0) + counts.get(name, 0) for name in {**given, **counts}},
                scale=self._sample.scale(),
                source_bytes=source_bytes,
                sha256=self._hash.hexdigest(),
            )
        )
        self._open = False
        self._writer._commit(record, self._end, source, self._sums.finish())
        return record

    def _put(self, piece: FilteredPiece) -> None:
        """Store a piece, as part of the stored segment so far or as a new one."""
        stored = piece.rows.astype("<f2", copy=False)
        before = None if piece.begins else self._segments.pop()
        start, onset = (before.start, before.onset) if before else (self._samples, piece.onset)
        self._samples += len(stored)
        self._segments.append(StoredSegment(start, self._samples, onset, piece.short))
        self._hash.update(stored.data)
        self._sums.add(stored.data)
        self._sample.add(stored)
        with self._writer._writing():
            self._end = write_all(self._writer._payload, stored.data, self._end)
        point("block", self._id)
