"""Zero-phase filtering and resampling of one segment, in blocks of bounded size: overlap-save in float32.

Edges: a segment continues beyond its ends by odd reflection, ``2 x[0] - x[k]``, as MNE's ``reflect_limited`` does. A
symmetric filter keeps that symmetry, so that one pass with all filters equals one after the other, each with its own
reflection. Where a segment is shorter than the reach of the filters MNE goes on with zeros, a step as high as the
offset of the channel; here the reflection is repeated, which continues the trend instead.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from cerebro_eeg.data.filtering.kernels import Kernel, fold, kernel, margin, sizes, step
from cerebro_eeg.data.filtering.plan import FilterPlan, reach
from cerebro_eeg.data.reading.recording import Samples

BLOCK = 16  # reaches of the filters in a block: an eighth of it is computed in vain; longer ones leave the cache
LANES = 4  # channels in a transform: those of one SIMD register, always full, so that channels cannot influence another
OFFSET = 250.0  # microvolts; smaller offsets cost float32 less than 1e-4 microvolts and may stay
WHOLE = np.float32(1 << 23)  # microvolts; up to here float32 adds whole numbers without rounding


class ZeroPhase:
    """Filters one segment: ``push`` its samples in any portions, then ``finish``; both give what is ready.

    Results do not depend on the portions, and on ``block`` only by rounding.
    """

    def __init__(self, plan: FilterPlan, channels: int, block: int = BLOCK) -> None:
        self.plan = plan
        self._channels = channels
        self._sizes = sizes(plan, block)
        self._reach, self._margin = reach(plan), margin(plan)
        self._lead = self._margin // plan.down * plan.up
        rows = -(-channels // LANES) * LANES
        # Not a power of two: rows that start one apart share cache lines.
        columns = (self._sizes[-1] + self._reach) // 32 * 32 + 48
        self._buffer = np.zeros((rows, columns), np.float32)
        self._rows = np.empty((channels, kernel(plan, self._sizes[-1]).new_size // 32 * 32 + 48), np.float32)
        # Whole microvolts that were taken off each channel, so that an offset does not cost the digits of the signal.
        self._offset = np.zeros(channels, np.float32)
        self._filled = self._margin
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Iterator[Samples]:
        """Take (time, channel) samples that follow the ones before; give blocks that are ready."""
        if self._taken == 0 and len(samples):
            self._offset[:] = np.clip(np.rint(samples[0]), -WHOLE, WHOLE)
        whole = self._sizes[-1]
        while len(samples):
            portion = samples[: whole - self._filled]
            stop = self._filled + len(portion)
            into = self._buffer[: self._channels, self._filled : stop]
            np.subtract(portion.T, self._offset[:, None], out=into)
            self._filled, self._taken = stop, self._taken + len(portion)
            samples = samples[len(portion) :]
            if stop == whole:
                if self._given == 0:
                    self._reflect_left()
                yield self._turn(kernel(self.plan, whole), self.plan.count(self._taken))

    def finish(self) -> Iterator[Samples]:
        """The segment ends here: give the rest of it."""
        total = self.plan.count(self._taken)
        if self._taken and self._given == 0:
            self._reflect_left()
        if self._given < total:
            self._reflect_right()
        while self._given < total:
            need = total - self._given
            fits = (size for size in self._sizes if step(self.plan, size) * self.plan.up >= need * self.plan.down)
            yield self._turn(kernel(self.plan, next(fits, self._sizes[-1])), total)

    def _reflect_left(self) -> None:
        start, size = self._margin, self._reach
        rows = self._buffer[: self._channels]
        inside = rows[:, start : self._filled]
        if inside.shape[1] > size:
            rows[:, start - size : start] = 2 * inside[:, :1] - inside[:, size:0:-1]
        else:
            rows[:, start - size : start] = np.pad(inside, ((0, 0), (size, 0)), "reflect", reflect_type="odd")[:, :size]

    def _reflect_right(self) -> None:
        stop, size = self._filled, self._reach
        rows = self._buffer[: self._channels]
        inside = rows[:, self._margin if self._given == 0 else 0 : stop]
        if inside.shape[1] > size:
            rows[:, stop : stop + size] = 2 * inside[:, -1:] - inside[:, -2 : -size - 2 : -1]
        else:
            rows[:, stop : stop + size] = np.pad(inside, ((0, 0), (0, size)), "reflect", reflect_type="odd")[:, -size:]
        self._filled += size

    def _turn(self, kernel: Kernel, total: int) -> Samples:
        """Filter the block at the start of the buffer and move the buffer on; ``total`` ends the segment's output."""
        window = self._buffer[: self._channels, : kernel.size]
        window[:, self._filled :] = 0
        self._centre(window)
        count = min(kernel.step // self.plan.down * self.plan.up, total - self._given)
        for first in range(0, self._channels, LANES):
            spectrum = fft.rfft(self._buffer[first : first + LANES, : kernel.size], axis=1, workers=1)
            new = fft.irfft(fold(spectrum, kernel), kernel.new_size, axis=1, overwrite_x=True, workers=1)
            last = min(LANES, self._channels - first)
            self._rows[first : first + last, :count] = new[:last, self._lead : self._lead + count]
        result = np.ascontiguousarray(self._rows[:, :count].T)
        if not self.plan.low:
            result += self._offset  # as it was: resample_poly would make ripples of it
        left = max(self._filled - kernel.step, 0)
        self._buffer[:, :left] = self._buffer[:, kernel.step : kernel.step + left]
        self._filled, self._given = left, self._given + count
        return result

    def _centre(self, window: NDArray[np.float32]) -> None:
        middle = np.rint(np.median(window[:, ::256], axis=1)).astype(np.float32)
        middle = np.clip(middle, -WHOLE - self._offset, WHOLE - self._offset)
        middle[np.abs(middle) < OFFSET] = 0
        if middle.any():
            self._buffer[: self._channels, : self._filled] -= middle[:, None]
            self._offset += middle
