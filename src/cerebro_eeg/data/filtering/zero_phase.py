"""Zero-phase filtering and resampling of one segment, in blocks of bounded size: overlap-save in float32.

``Kernel`` is band-pass, notch and change of rate as one spectrum of weights for blocks of one size. A block is
transformed, multiplied and transformed back with another length, which changes the rate. An upsampled spectrum repeats
itself and a downsampled one folds over; ``SpectrumPart`` is one such copy. The window of ``resample_poly`` leaves weak
copies. Those below ``NEGLIGIBLE`` are left out, which changes a wave by less than 1e-4 of its amplitude.

A segment continues beyond its ends by odd reflection, ``2 x[0] - x[k]``, as MNE's ``reflect_limited`` does. A symmetric
filter keeps that symmetry, so one pass with all filters equals several passes, each with its own reflection. Where a
segment is shorter than the reach of the filters, MNE continues with zeros, a step as high as the offset of the channel.
Here the reflection is repeated, which continues the trend instead.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal

from cerebro_eeg.data.filtering import plan as fir
from cerebro_eeg.data.filtering.plan import FilterPlan, reach
from cerebro_eeg.data.reading.recording import Samples

NEGLIGIBLE = 2e-5  # of the pass-band's gain
LARGEST = 1 << 18  # native samples in a block, unless the filters need more
GRID = 2.0**-28  # weights are whole multiples of it: what processors round otherwise in sines does not reach a store
LADDER = 1.3  # from one size of block to the next smaller one, for short segments and ends


@dataclass(frozen=True)
class SpectrumPart:
    """Bins ``source`` of the native spectrum that are added to bins ``target`` of the new one."""

    source: slice
    target: slice
    mirrored: bool
    """The source stands for negative frequencies, so the target is filled backwards, with the conjugate."""
    weights: NDArray[np.float32]
    """Weights in the order of the source, each twice: for the real and the imaginary part."""


@dataclass(frozen=True)
class Kernel:
    """A plan for blocks of one size."""

    size: int
    """Native samples per block, of which ``step`` are new."""
    new_size: int
    step: int
    pieces: tuple[SpectrumPart, ...]


def margin(plan: FilterPlan) -> int:
    """Native samples of a block before the first one that it computes: the reach, up to where both rates meet."""
    return -(-reach(plan) // plan.down) * plan.down


def step(plan: FilterPlan, size: int) -> int:
    """Native samples whose output a block of ``size`` computes."""
    return (size - margin(plan) - reach(plan)) // plan.down * plan.down


@functools.lru_cache(maxsize=8)
def sizes(plan: FilterPlan, block: int) -> tuple[int, ...]:
    """Return sizes of blocks, ascending; the last is normal, the others are for short segments and ends."""
    least = margin(plan) + reach(plan) + plan.down
    found = [_fast(plan, max(min(block * reach(plan), LARGEST), 2 * least))]
    while found[-1] > LADDER * least:
        size = _fast(plan, max(least, int(found[-1] / LADDER)))
        if size >= found[-1]:
            break
        found.append(size)
    return tuple(found[::-1])


def _fast(plan: FilterPlan, least: int) -> int:
    """Return the next size from ``least`` that divides at both rates and has small factors, if one is near."""
    first = -(-least // plan.down)
    return plan.down * int(fft.next_fast_len(first, real=True))


@functools.lru_cache(maxsize=32)
def kernel(plan: FilterPlan, size: int) -> Kernel:
    """Compute the weights of all filters for blocks of ``size`` native samples."""
    new_size = size // plan.down * plan.up
    native = _response(fir.band_pass(plan.rate, plan.low, plan.high), size)
    if plan.notch is not None:
        native *= _response(fir.notch(plan.rate, plan.notch, plan.notch_width), size)
    # Bin q of the raised rate is native bin q mod size and new bin q mod new_size; beyond 3.5 native rates all is weak.
    last = min(size * plan.up // 2, size * 7 // 2) if plan.up > 1 else size // 2
    if plan.up == plan.down:
        raised = np.ones(last + 1)
    else:
        taps = fir.anti_alias(plan.up, plan.down) / plan.down
        raised = signal.zoom_fft(taps, [0, 2 * (last + 1)], last + 1, fs=2 * size * plan.up)
        raised = (raised * np.exp(2j * np.pi * np.arange(last + 1) * (len(taps) // 2) / (size * plan.up))).real
    bins = np.arange(-last, last + 1)
    if plan.up == 1 and size % 2 == 0:
        bins = bins[1:]  # half the native rate is one bin, not two
    folded = np.abs((bins + size // 2) % size - size // 2)
    weights = native[folded] * raised[np.abs(bins)]
    # Copies that an upsampled spectrum has beyond the native one fade out where they are weak: a cliff in the spectrum
    # would ring further than the margins of a block.
    beyond = np.abs(bins) > size // 2
    weights[beyond] *= 1 - (NEGLIGIBLE / np.maximum(np.abs(weights[beyond]), NEGLIGIBLE)) ** 4
    weights = np.rint(weights / GRID) * GRID
    return Kernel(size, new_size, step(plan, size), _pieces(bins, weights, size, new_size))


def _response(taps: fir.Taps, size: int) -> NDArray[np.float64]:
    """Return the real spectrum of a symmetric filter that is centred on a sample."""
    centred = np.zeros(size)
    half = len(taps) // 2
    centred[: half + 1] = taps[half:]
    centred[size - half :] = taps[:half]
    return fft.rfft(centred).real


def _pieces(
    bins: NDArray[np.int64], weights: NDArray[np.float64], size: int, new_size: int
) -> tuple[SpectrumPart, ...]:
    """Cut the raised spectrum wherever source or target wrap around, and keep the parts whose weights matter."""
    source, target = bins % size, bins % new_size
    mirrored = source > size // 2
    wanted = target <= new_size // 2  # the other half follows from the symmetry of a real signal
    cuts = np.flatnonzero((np.diff(mirrored) != 0) | (np.diff(wanted) != 0) | (np.diff(target) != 1) | (bins[1:] == 0))
    pieces = []
    for part in np.split(np.arange(len(bins)), cuts + 1):
        heavy = np.flatnonzero(np.abs(weights[part]) > NEGLIGIBLE / 20)
        if not wanted[part[0]] or np.abs(weights[part]).max() < NEGLIGIBLE:
            continue
        part = part[heavy[0] : heavy[-1] + 1]
        first, final = int(source[part[0]]), int(source[part[-1]])
        to = slice(int(target[part[0]]), int(target[part[-1]]) + 1)
        twice = np.repeat(weights[part], 2).astype(np.float32)
        if mirrored[part[0]]:
            twice = twice[::-1].copy()
            twice[1::2] *= -1
            pieces.append(SpectrumPart(slice(size - final, size - first + 1), to, True, twice))
        else:
            pieces.append(SpectrumPart(slice(first, final + 1), to, False, twice))
    return tuple(sorted(pieces, key=lambda piece: -float(np.abs(piece.weights).max())))


def fold(spectrum: NDArray[np.complex64], kernel: Kernel) -> NDArray[np.complex64]:
    """Weight the native spectrum and add its copies."""
    result = np.empty((len(spectrum), kernel.new_size // 2 + 1), np.complex64)
    main, *others = kernel.pieces
    first, stop = main.target.start, main.target.stop
    result[:, :first] = 0
    result[:, stop:] = 0
    np.multiply(spectrum[:, main.source].view(np.float32), main.weights, out=result[:, first:stop].view(np.float32))
    for piece in others:
        part = np.empty((len(spectrum), len(piece.weights) // 2), np.complex64)
        np.multiply(spectrum[:, piece.source].view(np.float32), piece.weights, out=part.view(np.float32))
        if piece.mirrored:
            result[:, piece.target] += part[:, ::-1]
        else:
            sums = result[:, piece.target].view(np.float32)
            sums += part.view(np.float32)
    return result


BLOCK = 16  # reaches of the filters in a block: an eighth of it is computed in vain; longer ones leave the cache
LANES = 4  # channels in a transform: those of one SIMD register, always full, so that channels cannot influence another
OFFSET = 250.0  # microvolts; smaller offsets cost float32 less than 1e-4 microvolts and may stay
WHOLE = np.float32(1 << 23)  # microvolts; up to here float32 adds whole numbers without rounding


class ZeroPhase:
    """Filters one segment: ``push`` its samples in any portions, then ``finish``; both return what is ready.

    Results do not depend on the portions, and depend on ``block`` only by rounding.
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
        """Take the next (time, channel) samples and yield the blocks that are ready."""
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
        """End the segment and yield the rest of it."""
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
        """Filter the block at the start of the buffer and advance the buffer; ``total`` ends the segment's output."""
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
