"""Block sums: they show damaged samples while a store is read, at little cost.

The samples of a recording are cut into blocks of 32 KiB, and ``<writer>-<number>.sums`` holds the CRC-32 of each block,
one recording after the other. The line that commits a recording has the CRC-32 of its sums. A process checks a block
when it first touches it and remembers that in one byte; later reads of the block cost nothing more. A change on the
disk after that is not noticed by this process.

Sums are no part of the store's hash: each recording has the SHA-256 of its samples, which ``verify`` checks.
"""

import zlib
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 15
"""Bytes. A window of 5 s has two or three; larger blocks would make random windows read more than they need."""
SUM = np.dtype("<u4")


def block_count(size: int) -> int:
    """Return the number of blocks of so many bytes."""
    return -(-size // BLOCK)


class BlockSummer:
    """Computes the sums of samples that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._sums = array("I")
        self._sum = self._filled = 0

    def add(self, data: memoryview) -> None:
        """Add the next bytes."""
        data = data.cast("B")
        while data:
            part = data[: BLOCK - self._filled]
            self._sum = zlib.crc32(part, self._sum)
            self._filled += len(part)
            if self._filled == BLOCK:
                self._end()
            data = data[len(part) :]

    def finish(self) -> bytes:
        """Return the sums of all blocks."""
        if self._filled:
            self._end()
        return np.array(self._sums, SUM).tobytes()

    def _end(self) -> None:
        self._sums.append(self._sum)
        self._sum = self._filled = 0


class SumsPlace(NamedTuple):
    """Where the sums of a recording lie."""

    shard: int
    offset: int
    """Byte in the ``.sums`` file."""
    crc: str
    """CRC-32 of the sums, as in the line; empty where the recording has none."""


class CheckedBlocks:
    """The sums of all recordings of a store, and which blocks this process has checked.

    Blocks are numbered over all recordings. Threads may use this without a lock: at worst a block is checked twice.
    """

    def __init__(self, sizes: NDArray[np.int64], places: Sequence[SumsPlace]) -> None:
        counts = -(-sizes // BLOCK)
        self.firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        """The number of the first block of each recording, and the number of all blocks."""
        self.first: list[int] = self.firsts.tolist()  # the same, because a list gives a single number faster
        self.places = places
        self._begin()

    def _begin(self) -> None:
        self.flags = bytearray(self.first[-1])
        """One byte per block: 1 where it needs no check any more."""
        self.values = np.empty(self.first[-1], SUM)
        """The sums; those of a recording are valid once it is ``loaded``."""
        self.loaded = bytearray(len(self.places))
        for number, place in enumerate(self.places):
            if not place.crc:
                first, last = self.first[number], self.first[number + 1]
                self.flags[first:last] = b"\1" * (last - first)

    def forget(self) -> None:
        """Let every block be checked again."""
        self._begin()

    def unchecked(self, first_B: NDArray[np.int64], last_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unchecked ones of many ranges of blocks (each with its last block), sorted, each once."""
        flags = np.frombuffer(self.flags, np.uint8)
        found = []
        for step in range(int((last_B - first_B).max(initial=-1)) + 1):
            block_B = np.minimum(first_B + step, last_B)
            found.append(block_B[flags[block_B] == 0])
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def mark(self, blocks: NDArray[np.int64]) -> None:
        """Remember that these blocks are sound."""
        np.frombuffer(self.flags, np.uint8)[blocks] = 1

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a spawned process, which checks for itself."""
        return {"firsts": self.firsts, "first": self.first, "places": self.places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
