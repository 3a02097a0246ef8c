"""Shards: the files of a store, as a reader finds them at any moment, also beside a working writer or after a kill.

A shard is ``<writer>-<number>.bin``, samples one recording after the other, ``<writer>-<number>.sums``, the sums of
their blocks (``block_sums.py``), and ``<writer>-<number>.jsonl``, one line per recording. The line is the commit
record: its samples and sums were on the disk before it was begun, and without its line feed it does not count. Samples
without a whole line are ignored here, and the next writer cuts them off (``writer.py``).
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.data.storing.block_sums import SUM, block_count
from cerebro_eeg.data.storing.records import ShardLine, split_line
from cerebro_eeg.errors import StoreBusyError, StoreError

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)-([0-9]{4,})\.jsonl")
MEND = "restore it from a copy, or remove all files of this shard and prepare again: only its recordings are made anew"


@dataclass(frozen=True)
class Shard:
    """The committed part of a shard: its lines, and their number of bytes in each of its files."""

    name: str
    entries: tuple[ShardLine, ...]
    line_bytes: int
    payload_bytes: int
    sum_bytes: int


def shard_names(folder: Path, writer: str | None = None) -> list[str]:
    """List the shards of a folder, or of one writer, in the order of writer and number."""
    found = (_NAME.fullmatch(name) for name in os.listdir(folder))
    keys = sorted((match[1], int(match[2]), match[0]) for match in found if match and writer in (None, match[1]))
    return [name.removesuffix(".jsonl") for _, _, name in keys]


def read_shard(folder: Path, name: str) -> Shard:
    """Read everything that is committed in a shard; a StoreError names the line that is damaged."""
    data = (folder / f"{name}.jsonl").read_bytes()  # before the size of the .bin: a writer may add to both meanwhile
    *lines, rest = data.split(b"\n")
    entries: list[ShardLine] = []
    line_bytes = payload_bytes = sum_bytes = 0
    for number, line in enumerate(lines, 1):
        entry = split_line(line)
        if entry is None and number == len(lines) and b"\0\0" in line:
            break  # a power cut can leave zeros where a last line was going to be; one flipped bit makes one at most
        if entry is None or entry.offset != payload_bytes:
            raise StoreError(f"line {number} of {name}.jsonl is damaged; {MEND}")
        entries.append(entry)
        line_bytes += len(line) + 1
        payload_bytes = entry.stop
        sum_bytes += sums_size(entry)
    if rest and split_line(rest[:-1]) is not None:  # whole, with another byte in the place of its line feed
        raise StoreError(f"line {len(lines) + 1} of {name}.jsonl is damaged; {MEND}")
    size = _size(folder / f"{name}.bin")
    if size < payload_bytes:
        number = next(number for number, entry in enumerate(entries, 1) if entry.stop > size)
        raise StoreError(f"{name}.bin ends before the samples of line {number} of {name}.jsonl; {MEND}")
    if sum_bytes and _size(folder / f"{name}.sums") < sum_bytes:
        raise StoreError(f"{name}.sums is missing or ends before the sums of all recordings of {name}.jsonl; {MEND}")
    return Shard(name, tuple(entries), line_bytes, payload_bytes, sum_bytes)


def sums_size(entry: ShardLine) -> int:
    """Return the bytes that the sums of a recording take in its shard."""
    return SUM.itemsize * block_count(entry.bytes) if entry.sums else 0


def point(name: str, where: str) -> None:
    """End the process here, as a kill would, for a test that sets CEREBRO_FAULT=name:where."""
    if os.environ.get("CEREBRO_FAULT") == f"{name}:{where}":
        os._exit(9)


def claim(path: Path, *, wait: bool = False) -> int:
    """Open a file that only one process may write; the claim ends with the process, however that ends.

    With ``wait`` it waits until another process releases the file. Returns the descriptor that holds the claim. A child
    made by fork shares it, so open writers after forking.
    """
    try:
        import fcntl  # here and not above: Windows has none, and reading a store needs none
    except ImportError:
        raise StoreError("stores are written on Linux and macOS, whose file locks Windows has not; use WSL") from None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise StoreBusyError(f"{path.name} is in use by another process; name each writer differently") from None
        raise StoreError(
            f"the file system of the store has no file locks ({error.strerror}); mount it with them (Lustre: flock), "
            "or give each writer a name of its own and open it with lock=False"
        ) from None
    return descriptor


@contextlib.contextmanager
def disk_errors(what: str = "written") -> Iterator[None]:
    """Turn errors of the disk into one line; the error of the system would name a path."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the store could not be {what}: {error.strerror}; see to the disk and its permissions and start again, "
            "what is committed stays"
        ) from None


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> int:
    """Write all bytes at ``offset`` and return where they end; the system may take them in parts."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
    return offset


def sync_folder(folder: Path) -> None:
    """Flush the names of new files to the disk, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
