"""Store: recordings on disk as float16 microvolts, time-major, the union of its shards. Any window is one read.

Opening reads the lines of all shards and no sample. Reading uses ``pread``, which has no file position, so threads and
forked processes share descriptors without a lock. A process checks a block of samples when it first reads from it
(``block_sums.py``), and damage is an error. Nothing here writes.
"""

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.block_sums import BLOCK, SUM, CheckedBlocks, SumsPlace
from cerebro_eeg.data.storing.records import ShardLine, StoredRecording, check, decode
from cerebro_eeg.data.storing.shards import MEND, disk_errors, read_shard, shard_names, sums_size
from cerebro_eeg.data.storing.skip_log import read_skipped
from cerebro_eeg.data.storing.store_info import mark, read_info
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

    def __init__(self, folder: Path | str, *, max_open: int = 128, without: Collection[str] = ()) -> None:
        """``without`` leaves shards out, which ``verify`` found to be damaged."""
        self._folder = Path(folder).absolute()
        before = mark(self._folder)
        self.info = read_info(self._folder)
        self._max_open = max_open
        self._open: dict[int, _Descriptor] = {}
        found: dict[str, tuple[int, ShardLine, int]] = {}
        with disk_errors("read"):
            self._shards = [name for name in shard_names(self._folder) if name not in without]
            shards = [read_shard(self._folder, name) for name in self._shards]
        if mark(self._folder) != before:  # some lines may be those of before
            raise StoreError("the options of the store were changed while it was opened; open it again")
        for number, shard in enumerate(shards):
            sums_at = 0
            for entry in shard.entries:
                if entry.id not in found:
                    found[entry.id] = number, entry, sums_at
                elif found[entry.id][1].body != entry.body:  # an equal one is a part that ran twice: the first counts
                    raise StoreError(
                        f"recording {entry.id!r} is in the store twice with different content, again in {shard.name}; "
                        "its source has changed or the recipe has chance in it: prepare into an empty folder"
                    )
                sums_at += sums_size(entry)
        ordered = [found[id] for id in sorted(found)]
        self._entries = [entry for _, entry, _ in ordered]
        self.recordings = Recordings(self._entries)
        self._numbers = {entry.id: number for number, entry in enumerate(self._entries)}
        spots = [(number, entry.offset, entry.channels, entry.samples) for number, entry, _ in ordered]
        self._spots = np.array(spots, np.int64).reshape(-1, 4)  # to look many up at once
        sums = [SumsPlace(number, sums_at, entry.sums) for number, entry, sums_at in ordered]
        self._blocks = CheckedBlocks(2 * self._spots[:, 2] * self._spots[:, 3], sums)
        self._places = [(*spot, first) for spot, first in zip(spots, self._blocks.first, strict=False)]

    def number(self, id: str) -> int:
        """Return the place in ``recordings`` of the recording with this id."""
        try:
            return self._numbers[id]
        except KeyError:
            raise _unknown(id) from None

    def read(self, recording: StoredRecording | int, start: int, stop: int) -> NDArray[np.float16]:
        """Return samples ``start`` to ``stop`` (exclusive) as (time, channel), read-only; also across gaps.

        The recording is one of ``recordings`` or its number there. Damaged samples raise a StoreError.
        """
        try:
            number = self._numbers[recording.id] if isinstance(recording, StoredRecording) else recording
            shard, offset, channels, samples, first = self._places[number]
        except LookupError:
            raise _unknown(recording) from None
        if not 0 <= start <= stop <= samples:
            raise _out_of_range(self._entries[number], start, stop)
        begin, size = 2 * channels * start, 2 * channels * (stop - start)
        first += begin // BLOCK
        last = first + (begin % BLOCK + size - 1) // BLOCK
        if self._blocks.flags.find(0, first, last + 1) >= 0:
            self._check(number, first, last)
        data = self._bytes(shard, offset + begin, size)
        return np.ndarray((stop - start, channels), _SAMPLE, data)

    def read_into(self, recording: StoredRecording | int, start: int, stop: int, buffer: NDArray[Any]) -> None:
        """Read the same samples into contiguous memory of exactly their size, such as a part of a large batch."""
        try:
            number = self._numbers[recording.id] if isinstance(recording, StoredRecording) else recording
            shard, offset, channels, samples, first = self._places[number]
        except LookupError:
            raise _unknown(recording) from None
        if not 0 <= start <= stop <= samples:
            raise _out_of_range(self._entries[number], start, stop)
        begin, size = 2 * channels * start, 2 * channels * (stop - start)
        if buffer.nbytes != size:
            raise InputError(f"{stop - start} samples of {channels} channels do not fit {buffer.nbytes} bytes exactly")
        first += begin // BLOCK
        last = first + (begin % BLOCK + size - 1) // BLOCK
        if self._blocks.flags.find(0, first, last + 1) >= 0:
            self._check(number, first, last)
        descriptor = self._open.get(shard) or self._descriptor(shard)
        offset += begin
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

    def unchecked(
        self, recordings: NDArray[np.int64], starts: NDArray[np.int64], samples: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of windows that nobody has checked yet, and (blocks, 4): file, offset, size and CRC-32.

        Call ``mark_checked`` with the blocks once their sums were found right.
        """
        blocks = self._blocks
        width = 2 * self._spots[recordings, 2]
        first = blocks.firsts[recordings]
        found = blocks.unchecked(first + width * starts // BLOCK, first + (width * (starts + samples) - 1) // BLOCK)
        if not len(found):
            return found, np.empty((0, 4), np.int64)
        number = np.searchsorted(blocks.firsts, found, "right") - 1
        for one in np.unique(number).tolist():
            self._load_sums(one)
        shard, offset, channels, length = self._spots[number].T
        begin = (found - blocks.firsts[number]) * BLOCK
        size = np.minimum(BLOCK, 2 * channels * length - begin)
        return found, np.stack([shard, offset + begin, size, blocks.values[found].astype(np.int64)], 1)

    def mark_checked(self, blocks: NDArray[np.int64]) -> None:
        """Remember that these blocks are sound."""
        self._blocks.mark(blocks)

    @property
    def sums(self) -> int:
        """The number of blocks of samples that have a sum."""
        places, first = self._blocks.places, self._blocks.first
        return sum(first[number + 1] - first[number] for number, place in enumerate(places) if place.crc)

    @property
    def without_sums(self) -> int:
        """The number of recordings whose blocks have no sums, as in stores of formats 1 and 2."""
        return sum(not place.crc for place in self._blocks.places)

    def forget_checks(self) -> None:
        """Let every block be checked again when it is read next, as in a new process."""
        self._blocks.forget()

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
        """Check every field of every recording, and with ``full`` every sample against its sums and its SHA-256."""
        wrong = [entry.id for number, entry in enumerate(self._entries) if any(self.faults_of(number, full))]
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

    def faults_of(self, number: int, full: bool, done: Callable[[int], None] = lambda size: None) -> Iterator[str]:
        """Yield everything that is wrong with a recording; ``done`` is called with the bytes that were checked."""
        entry, place = self._entries[number], self._blocks.places[number]
        shard = self._shards[place.shard]
        try:
            record = check(decode(entry))
            if (record.id, len(record.channels), record.samples) != (entry.id, entry.channels, entry.samples):
                raise StoreError("the front of a line contradicts its recording")
        except CerebroError:
            yield f"the line of recording {entry.id!r} in {shard}.jsonl has no sense"
            return
        if not full:
            return
        sums = None
        if entry.sums:
            try:
                sums = self._load_sums(number)
            except StoreError:
                yield f"the sums of recording {entry.id!r} in {shard}.sums are damaged"
        found = hashlib.sha256()
        for begin in range(0, entry.bytes, _PIECE):  # whole blocks
            data = self._bytes(place.shard, entry.offset + begin, min(_PIECE, entry.bytes - begin))
            found.update(data)
            for start in range(0, len(data) if sums is not None else 0, BLOCK):
                block = (begin + start) // BLOCK
                if sums is not None and zlib.crc32(data[start : start + BLOCK]) != sums[block]:
                    yield self._damage(number, block)
            done(len(data))
        if found.hexdigest() != record.sha256:
            yield f"the samples of recording {entry.id!r} in {shard}.bin do not match their SHA-256"

    def _check(self, number: int, first: int, last: int) -> None:
        """Check the blocks ``first`` to ``last`` of a recording that were not checked yet."""
        number %= len(self._places)
        blocks, (shard, offset, channels, samples, before) = self._blocks, self._places[number]
        sums, size = self._load_sums(number), 2 * channels * samples
        while (block := blocks.flags.find(0, first, last + 1)) >= 0:
            begin = (block - before) * BLOCK
            data = self._bytes(shard, offset + begin, min(BLOCK, size - begin))
            if zlib.crc32(data) != sums[block - before]:
                raise StoreError(f"{self._damage(number, block - before)}; {MEND}")
            blocks.flags[block] = 1
            first = block + 1

    def _load_sums(self, number: int) -> NDArray[np.uint32]:
        """Return the sums of a recording, which must match their own sum in its line."""
        blocks, place = self._blocks, self._blocks.places[number]
        sums: NDArray[np.uint32] = blocks.values[blocks.first[number] : blocks.first[number + 1]]
        if not blocks.loaded[number]:
            name = f"{self._shards[place.shard]}.sums"
            with disk_errors("read"), (self._folder / name).open("rb", buffering=0) as file:
                file.seek(place.offset)
                data = file.read(sums.nbytes)
            if f"{zlib.crc32(data):08x}" != place.crc or len(data) != sums.nbytes:
                raise StoreError(f"{name} of the store is damaged: the sums of its blocks are not its own; {MEND}")
            sums[:] = np.frombuffer(data, SUM)
            blocks.loaded[number] = 1
        return sums

    def _damage(self, number: int, block: int) -> str:
        """Say which samples a damaged block holds."""
        entry = self._entries[number]
        record, name = decode(entry), self._shards[self._blocks.places[number].shard]
        start = block * BLOCK // (2 * entry.channels)
        stop = min(-(-(block + 1) * BLOCK // (2 * entry.channels)), entry.samples)
        begin = entry.offset + block * BLOCK
        return (
            f"samples of recording {entry.id!r} are damaged, from {_second(record, start):.2f} to "
            f"{_second(record, stop - 1) + 1 / record.sfreq:.2f} s ({name}.bin from byte {begin})"
        )

    def _bytes(self, shard: int, offset: int, size: int) -> bytes:
        """Read bytes of a shard."""
        descriptor = self._open.get(shard) or self._descriptor(shard)
        data = os.pread(descriptor.number, size, offset)
        if len(data) != size:  # one call gives at most 2 GiB
            rest = bytearray(size - len(data))
            _fill(descriptor, memoryview(rest), offset + len(data))
            data += rest
        return data

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


def _second(record: StoredRecording, sample: int) -> float:
    """Return the second of the recording in which a stored sample was taken."""
    segment = next(segment for segment in reversed(record.segments) if segment.start <= sample)
    return segment.onset + (sample - segment.start) / record.sfreq


def _unknown(recording: StoredRecording | str | int) -> InputError:
    name = recording.id if isinstance(recording, StoredRecording) else recording
    return InputError(f"the store has no recording {name!r}; expected one of `recordings`, its id or its number")


def _out_of_range(entry: ShardLine, start: int, stop: int) -> InputError:
    return InputError(
        f"samples {start} to {stop} of recording {entry.id!r} were asked for; it has samples 0 to {entry.samples}"
    )
