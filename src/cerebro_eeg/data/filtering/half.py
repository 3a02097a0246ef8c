"""Half precision: float32 microvolts to float16, and gaps where float16 cannot hold them.

Stores hold float16, and a model that reads a file directly must see the same bits and the same gaps. So the writer of a
store and the direct way (``preprocess.py``) both use ``HalfSplitter``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 65504.0
"""Microvolts: the largest float16."""
_STEP = 1 << 15  # values at a time: temporaries stay in the cache
_SMALLEST_BITS, _LARGEST_BITS = 0x38800000, 0x477FEFFF  # of 2 ** -14 and of the last float32 that rounds to 65504


@dataclass(frozen=True)
class FilteredPiece:
    """Filtered samples that follow each other without a gap."""

    begins: bool
    """The piece does not continue the piece before it: a gap lies between them."""
    onset: float
    """Seconds from the start of the recording to its first sample."""
    short: bool
    """Its stretch is shorter than the filter."""
    rows: NDArray[np.float16] | NDArray[np.float32]
    """(time, channel) microvolts, all channels; in half precision as in a store, but for epochs as they are."""


class HalfSplitter:
    """Rounds a recording to half precision, block by block; rows that do not fit become gaps and are counted.

    Call ``begin`` for each stretch, then ``push`` its blocks in order.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._onset, self._short = 0.0, False
        self._position = 0  # rows of the stretch before the next block, with those that became a gap
        self._joined = False  # the next row continues the last piece
        self.not_finite = 0
        """Rows with a NaN or an infinity so far."""
        self.too_large = 0
        """Rows with a value beyond the largest float16 so far."""

    def begin(self, onset: float, *, short: bool = False) -> None:
        """Begin a stretch ``onset`` seconds after the start of the recording."""
        self._onset, self._short, self._position, self._joined = float(onset), short, 0, False

    def push(self, block: NDArray[np.floating]) -> Iterator[FilteredPiece]:
        """Split the next (time, channel) microvolts of the stretch; each piece counts once it is taken."""
        for first, stop in self._fitting(block):
            joined = self._joined and first == 0
            onset = self._onset + (self._position + first) / self._rate
            yield FilteredPiece(not joined, onset, self._short, to_half(block[first:stop]))
            self._joined = stop == len(block)
        self._position += len(block)

    def _fitting(self, block: NDArray[np.floating]) -> list[tuple[int, int]]:
        """Return first and last (exclusive) row of every run of rows that half precision can hold."""
        if not len(block):
            return []
        with np.errstate(invalid="ignore"):
            if block.min() >= -LARGEST and block.max() <= LARGEST:  # false for NaN, too
                return [(0, len(block))]
        finite = np.isfinite(block).all(1)
        fits = (np.abs(block) <= LARGEST).all(1)
        self.not_finite += int((~finite).sum())
        self.too_large += int((finite & ~fits).sum())
        if not fits[0]:
            self._joined = False
        edges = np.flatnonzero(np.diff(fits, prepend=False, append=False)).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))


def to_half(values: NDArray[np.floating]) -> NDArray[np.float16]:
    """Round to the nearest float16, ties to even: the bits and the warnings of ``astype``, in half the time.

    Integer arithmetic works on whole arrays of float32, where NumPy converts one value after the other. Blocks with
    values that it does not cover (subnormal, too large, not a number), and other types, go to NumPy.
    """
    if values.dtype != np.float32:
        return np.ascontiguousarray(values, np.float16)
    flat = np.ascontiguousarray(values).reshape(-1)
    result = np.empty(flat.shape, np.float16)
    size, tie = np.empty(_STEP, np.uint32), np.empty(_STEP, np.uint32)
    for start in range(0, len(flat), _STEP):
        bits = flat[start : start + _STEP].view(np.uint32)
        part, u, v = result[start : start + _STEP], size[: len(bits)], tie[: len(bits)]
        np.bitwise_and(bits, 0x7FFFFFFF, out=u)
        if u.min() < _SMALLEST_BITS or u.max() > _LARGEST_BITS:
            part[:] = flat[start : start + _STEP]
            continue
        np.right_shift(u, 13, out=v)
        np.bitwise_and(v, 1, out=v)
        u += v
        u -= (112 << 23) - 0xFFF  # the exponents' different offsets, and half a step less one
        np.right_shift(u, 13, out=u)
        np.right_shift(bits, 16, out=v)
        np.bitwise_and(v, 0x8000, out=v)
        u |= v
        part.view(np.uint16)[:] = u
    return result.reshape(values.shape)
