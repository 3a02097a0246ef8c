"""Store: recordings on disk as float16 microvolts, time-major, the union of its shards. Any window is one read.

Opening reads the lines of all shards and no sample. Reading uses ``pread``, which has no file position, so threads and
forked processes share descriptors without a lock. Nothing here writes.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.records import ShardLine, StoredRecording, check, decode
from cerebro_eeg.data.storing.shards import disk_errors, read_shard, shard_names
from cerebro_eeg.data.storing.skip_log import read_skipped
from cerebro_eeg.data.storing.store_info import read_info
from cerebro_eeg.errors import CerebroError, InputError, StoreError

_SAMPLE = np.dtype("<f2")
_PIECE = 1 << 23  # bytes that are hashed at a time


class Recordings(Sequence[StoredRecording]):
    """The recordings of a store, sorted by id. Each is decoded on access, because all at once would fill memory."""

    def __init__(self, entries: list[ShardLine]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, number: int) -> StoredRecording: ...
    @overload
    def __getitem__(self, number: slice) -> "Recordings": ...
    def __getitem__(self, number: int | slice) -> "StoredRecording | Recordings":
        if isinstance(number, slice):
            return Recordings(self._entries[number])
        return decode(self._entries[number])


class Store:
    """A store to read from. It shows the recordings that were committed when it was opened.

    Attributes
    ----------
    info : dataset, settings and key check, from store.json.
    recordings : sorted by id, so their order does not depend on the number of writers.
    """

    def __init__(self, folder: Path | str, *, max_open: int = 128) -> None:
        self._folder = Path(folder).absolute()
        self.info = read_info(self._folder)
        self._max_open = max_open
        self._open: dict[int, _Descriptor] = {}
        found: dict[str, tuple[int, ShardLine]] = {}
        with disk_errors("read"):
            self._shards = shard_names(self._folder)
            shards = [read_shard(self._folder, name) for name in self._shards]
        for number, shard in enumerate(shards):
            for entry in shard.entries:
                if entry.id not in found:
                    found[entry.id] = number, entry
                elif found[entry.id][1].body != entry.body:  # an equal one is a part that ran twice: the first counts
                    raise StoreError(
                        f"recording {entry.id!r} is in the store twice with different content, again in {shard.name}; "
                        "its source has changed or the recipe has chance in it: prepare into an empty folder"
                    )
        ordered = [found[id] for id in sorted(found)]
        self._entries = [entry for _, entry in ordered]
        self.recordings = Recordings(self._entries)
        self._numbers = {entry.id: number for number, entry in enumerate(self._entries)}
        self._places = [(number, entry.offset, entry.channels, entry.samples) for number, entry in ordered]
        self._spots = np.array(self._places, np.int64).reshape(-1, 4)  # the same, to look many up at once

    def number(self, id: str) -> int:
        """Return the place in ``recordings`` of the recording with this id."""
        try:
            return self._numbers[id]
        except KeyError:
            raise _unknown(id) from None

    def read(self, recording: StoredRecording | int, start: int, stop: int) -> NDArray[np.float16]:
        """Return samples ``start`` to ``stop`` (exclusive) as (time, channel), read-only; also across gaps.

        The recording is one of ``recordings`` or its number there.
        """
        try:
            number = self._numbers[recording.id] if isinstance(recording, StoredRecording) else recording
            shard, offset, channels, samples = self._places[number]
        except LookupError:
            raise _unknown(recording) from None
        if not 0 <= start <= stop <= samples:
            raise _out_of_range(self._entries[number], start, stop)
        width = 2 * channels
        size = width * (stop - start)
        descriptor = self._open.get(shard) or self._descriptor(shard)
        data = os.pread(descriptor.number, size, offset + width * start)
        if len(data) != size:  # one call gives at most 2 GiB
            rest = bytearray(size - len(data))
            _fill(descriptor, memoryview(rest), offset + width * start + len(data))
            data += rest
        return np.ndarray((stop - start, channels), _SAMPLE, data)

    def read_into(self, recording: StoredRecording | int, start: int, stop: int, buffer: NDArray[Any]) -> None:
        """Read the same samples into contiguous memory of exactly their size, such as a part of a large batch."""
        try:
            number = self._numbers[recording.id] if isinstance(recording, StoredRecording) else recording
            shard, offset, channels, samples = self._places[number]
        except LookupError:
            raise _unknown(recording) from None
        if not 0 <= start <= stop <= samples:
            raise _out_of_range(self._entries[number], start, stop)
        size = 2 * channels * (stop - start)
        if buffer.nbytes != size:
            raise InputError(f"{stop - start} samples of {channels} channels do not fit {buffer.nbytes} bytes exactly")
        descriptor = self._open.get(shard) or self._descriptor(shard)
        offset += 2 * channels * start
        count = os.preadv(descriptor.number, [buffer.data], offset)
        if count != size:
            _fill(descriptor, buffer.data.cast("B")[count:], offset + count)

    @property
    def files(self) -> list[Path]:
        """The files that hold the samples."""
        return [self._folder / f"{name}.bin" for name in self._shards]

    def pieces(self, recordings: NDArray[np.int64], starts: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
        """Return where the bytes of windows lie, (windows, 3): number in ``files``, offset and size."""
        shard, offset, channels, length = self._spots[recordings].T
        wrong = np.flatnonzero((starts < 0) | (starts + samples > length))
        if len(wrong):
            start = int(starts[wrong[0]])
            raise _out_of_range(self._entries[int(recordings[wrong[0]])], start, start + samples)
        return np.stack([shard, offset + 2 * channels * starts, 2 * channels * samples], 1)

    def hash(self) -> str:
        """Return the SHA-256 of all recordings in the order of their ids, metadata and samples.

        It does not depend on the number of writers, shards and runs. Samples enter by the SHA-256 in their metadata;
        ``verify(full=True)`` checks them against it.
        """
        found = hashlib.sha256()
        for entry in self._entries:
            found.update(hashlib.sha256(entry.body).digest())
        return found.hexdigest()

    def verify(self, *, full: bool = False) -> None:
        """Check every field of every recording, and with ``full`` every sample against its SHA-256."""
        wrong = [entry.id for number, entry in enumerate(self._entries) if not self._is_sound(number, full)]
        if wrong:
            raise StoreError(
                f"{len(wrong)} of {len(self._entries)} recordings are damaged ({', '.join(wrong[:5])}"
                f"{', ...' if len(wrong) > 5 else ''}); restore their shards from a copy, or prepare anew"
            )

    def fingerprint(self, id: str) -> str:
        """Return the fingerprint of the source of a recording; empty where none was taken."""
        return self._entries[self.number(id)].source

    def skipped(self) -> dict[str, str]:
        """Return the reason by id of the sources that are not in the store."""
        with disk_errors("read"):
            return read_skipped(self._folder, self._numbers)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned process: the same index; it opens descriptors of its own when it reads."""
        return {**self.__dict__, "_open": {}}

    def _is_sound(self, number: int, full: bool) -> bool:
        entry = self._entries[number]
        try:
            record = check(decode(entry))
        except CerebroError:
            return False
        if (record.id, len(record.channels), record.samples) != (entry.id, entry.channels, entry.samples):
            return False
        found, rows = hashlib.sha256(), max(1, _PIECE // (2 * entry.channels))
        for start in range(0, record.samples if full else 0, rows):
            found.update(self.read(number, start, min(start + rows, record.samples)).data)
        return not full or found.hexdigest() == record.sha256

    def _descriptor(self, shard: int) -> "_Descriptor":
        """Open a shard without a lock, so that a fork never inherits a held one; at worst a file is opened twice."""
        opened = _Descriptor(self._folder / f"{self._shards[shard]}.bin")
        self._open[shard] = opened
        while len(self._open) > self._max_open:
            with contextlib.suppress(StopIteration, RuntimeError):  # another thread was quicker
                self._open.pop(next(iter(self._open)), None)
        return opened


class _Descriptor:
    """An open file that is closed with its last reference: a thread may still read when the store drops it."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        try:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"{path.name} of the store cannot be opened: {error.strerror}; it was there when the store was opened"
            ) from None

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _fill(descriptor: _Descriptor, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(descriptor.number, [view], offset)
        if not count:
            raise StoreError("a shard of the store has become shorter since it was opened; open the store again")
        view, offset = view[count:], offset + count


def _unknown(recording: StoredRecording | str | int) -> InputError:
    name = recording.id if isinstance(recording, StoredRecording) else recording
    return InputError(f"the store has no recording {name!r}; expected one of `recordings`, its id or its number")


def _out_of_range(entry: ShardLine, start: int, stop: int) -> InputError:
    return InputError(
        f"samples {start} to {stop} of recording {entry.id!r} were asked for; it has samples 0 to {entry.samples}"
    )
