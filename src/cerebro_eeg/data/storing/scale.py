"""The scale of a recording in microvolts, one robust number, also from blocks that are never in memory together."""

import numpy as np
from numpy.typing import NDArray

KEPT_ROWS = 1 << 15
_GOLDEN = np.uint32(2654435769)  # 2^32 / golden ratio: its multiples fill the range evenly and never fall into step


def robust_scale(signal: NDArray[np.floating]) -> float:
    """1.4826 x the median over channels of the median absolute deviation of (time, channel).

    The lower of two middle values counts, as in ``torch.median``: a model that scales an array by itself agrees.
    """
    rows = np.ascontiguousarray(signal.T, dtype=np.float32)
    deviations = _lower_median(np.abs(rows - _lower_median(rows)[:, None]))
    return float(np.float32(1.4826) * _lower_median(deviations[None])[0])


def _lower_median(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    middle = (rows.shape[1] - 1) // 2
    return np.partition(rows, middle, axis=1)[:, middle]


class ScaleSample:
    """Rows of a recording that arrives in blocks, enough for its scale: all up to 32,768, of more about 16,384 or more.

    Which rows are kept depends on their number alone, not on the blocks. Multiples of the golden ratio choose them:
    every n-th row would make a steady oscillation look constant.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._limit = 1 << 32
        self._rows: list[NDArray[np.float16]] = []
        self._marks: list[NDArray[np.uint32]] = []
        self._kept = 0

    def add(self, block: NDArray[np.float16]) -> None:
        """The next rows (time, channel)."""
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
        """Of what has come so far: exactly ``robust_scale`` where no row was left out."""
        return robust_scale(np.concatenate(self._rows)) if self._kept else 0.0
