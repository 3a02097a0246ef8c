"""Quality: which channels of a recording are flat, clipped, disconnected or absurdly scaled.

``QualityMeter`` counts on the samples as they were recorded, before any filter, in one pass over pieces of any size.
``Thresholds`` turns counts into faults, and a policy (keep, drop, refuse) decides what follows from a fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.data.filtering.plan import MAINS
from cerebro_eeg.data.reading.recording import Recording, Samples
from cerebro_eeg.errors import ConfigError, RecordingError

FAULTS = ("flat", "clipped", "disconnected", "scaled", "missing")
Policy = Literal["keep", "drop", "refuse"]


@dataclass(frozen=True)
class Thresholds:
    """Where a count becomes a fault; microvolts are measured after subtracting the mean of each second."""

    flat_uv: float = 0.1
    """A second whose samples span no more than this is flat."""
    clip_run: int = 5
    """So many samples in a row, or more, at the highest or lowest value are clipped; fewer are a wave's crest.
    """
    mains_share: float = 0.99
    """A second with a larger share of its power than this at 50 or 60 Hz shows the mains and no brain."""
    quiet_uv: float = 0.3
    """A second with a lower rms shows no brain."""
    loud_uv: float = 2_000.0
    """A second with a higher rms shows no brain."""
    share: float = 0.5
    """A channel with a larger share of flat seconds is flat; of mains, quiet or loud ones, disconnected."""
    clip_share: float = 0.01
    """A channel with a larger share of clipped samples is clipped."""
    missing_share: float = 0.01
    """A channel with a larger share of NaN or infinite samples is missing."""
    scale_uv: tuple[float, float] = (0.01, 20_000.0)
    """A channel whose median rms lies outside is in another unit than its header says."""


@dataclass(frozen=True)
class ChannelQuality:
    """The counts of one channel."""

    samples: int
    missing: int
    """Samples that are NaN or infinite."""
    clipped: int
    """Samples in long runs at the highest or the lowest value."""
    seconds: int
    """Whole seconds without a missing sample; the counts below are among these."""
    flat: int
    mains: int
    quiet: int
    """Seconds that are too small but not flat."""
    loud: int
    rms: float
    """Median over the seconds that are not constant, to 6 %; 0 where all are."""


def faults(channel: ChannelQuality, thresholds: Thresholds) -> tuple[str, ...]:
    """Return the faults of a channel by name; in a wrong unit it is neither flat nor disconnected."""
    found = []
    low, high = thresholds.scale_uv
    scaled = channel.rms > 0 and not low <= channel.rms <= high
    limit = thresholds.share * channel.seconds
    if channel.flat > limit and not scaled:
        found.append("flat")
    if channel.clipped > thresholds.clip_share * channel.samples:
        found.append("clipped")
    if max(channel.mains, channel.quiet, channel.loud) > limit and not scaled:
        found.append("disconnected")
    if scaled:
        found.append("scaled")
    if channel.missing > thresholds.missing_share * channel.samples:
        found.append("missing")
    return tuple(found)


def count(channels: Sequence[ChannelQuality], thresholds: Thresholds) -> dict[str, int]:
    """Count the channels with each fault, for the store."""
    found = [faults(channel, thresholds) for channel in channels]
    return {name: sum(name in one for one in found) for name in FAULTS}


def choose(
    channels: Sequence[Channel], quality: Sequence[ChannelQuality], thresholds: Thresholds, policy: Policy
) -> tuple[int, ...]:
    """Choose columns: all (keep), those without a fault (drop), or raise an error when one has a fault (refuse)."""
    if policy not in ("keep", "drop", "refuse"):
        raise ConfigError(f"the policy for bad channels is {policy!r}; expected 'keep', 'drop' or 'refuse'")
    found = [faults(one, thresholds) for one in quality]
    good = tuple(column for column, bad in enumerate(found) if not bad)
    if policy == "keep" or len(good) == len(channels):
        return tuple(range(len(channels)))
    named = [f"{channel.name} ({', '.join(bad)})" for channel, bad in zip(channels, found, strict=True) if bad]
    if policy == "refuse" or not good:
        wanted = "none" if policy == "refuse" else "at least one good channel"
        raise RecordingError(
            "quality",
            f"{len(named)} of {len(channels)} channels are bad: {', '.join(named)}; expected {wanted}; use the policy "
            f"{'drop or keep' if policy == 'refuse' else 'keep'}",
        )
    return good


_BINS = 20  # a decade of the histogram of rms
_DECADES = (-9, 9)


def measure(recording: Recording, thresholds: Thresholds, *, chunk: int = 1 << 20) -> tuple[ChannelQuality, ...]:
    """Read a recording once, in pieces of about ``chunk`` values, and count."""
    meter = QualityMeter(recording.sfreq, len(recording.match.channels), thresholds)
    rows = max(1, chunk // max(1, len(recording.match.channels)))
    for segment in recording.segments:
        meter.begin()
        for start in range(segment.start, segment.stop, rows):
            meter.add(recording.read(start, min(start + rows, segment.stop)))
    return meter.result()


class QualityMeter:
    """Counts while samples arrive: ``begin`` each segment, ``add`` its samples in portions, then take ``result``."""

    def __init__(self, sfreq: float, channels: int, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._second = max(2, round(sfreq))
        turns = 2 * np.pi * np.arange(self._second) / sfreq
        lines = [line for line in MAINS if line < sfreq / 2]
        waves = [wave(line * turns) for line in lines for wave in (np.cos, np.sin)]
        self._waves = np.array([np.ones(self._second), *waves])
        self._samples = 0
        self._missing, self._seconds, self._flat, self._mains, self._quiet, self._loud = np.zeros(
            (6, channels), np.int64
        )
        self._rms = np.zeros((channels, (_DECADES[1] - _DECADES[0]) * _BINS), np.int64)
        self._extremes = [_Extreme(channels, thresholds.clip_run, sign) for sign in (1, -1)]
        self._rest = np.empty((0, channels), np.float32)

    def begin(self) -> None:
        """Begin a segment; its samples do not continue those before."""
        self._rest = self._rest[:0]
        for extreme in self._extremes:
            extreme.begin()

    def add(self, samples: Samples) -> None:
        """Count (time, channel) microvolts."""
        self._samples += len(samples)
        with np.errstate(all="ignore"):
            finite = bool(np.isfinite(np.add.reduce(samples, axis=None)))  # one bad value spoils a sum
        if not finite:
            self._missing += len(samples) - np.isfinite(samples).sum(axis=0)
        for extreme in self._extremes:
            extreme.add(samples, finite)
        joined = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(joined) // self._second
        self._rest = joined[whole * self._second :].copy()
        for first in range(0, whole, 16):  # a few seconds at a time: temporaries stay in the cache
            part = joined[first * self._second : min(first + 16, whole) * self._second]
            self._add_seconds(part.reshape(-1, self._second, part.shape[1]))

    def _add_seconds(self, seconds: NDArray[np.float32]) -> None:
        t = self._thresholds
        with np.errstate(all="ignore"):
            span = _along_time(np.maximum, seconds) - _along_time(np.minimum, seconds)
            finite = np.isfinite(span)
            # In float64: processors add in different orders, and no count may depend on that.
            moved = np.subtract(seconds, seconds[:, :1], dtype=np.float64)
            sums = np.matmul(self._waves, moved)
            mean = sums[:, :1] / self._second
            power = np.matmul(self._waves[:1], np.square(moved))[:, 0] / self._second - np.square(mean[:, 0])
            lines = (sums[:, 1:] - mean * self._waves[1:].sum(axis=1)[:, None]) * (2 / self._second)
            waves = np.square(lines).reshape(len(seconds), -1, 2, seconds.shape[2]).sum(axis=2) / 2
            share = waves.max(axis=1, initial=0) / np.maximum(power, 1e-30)
            rms = np.sqrt(np.maximum(power, 0))
        flat = finite & (span <= t.flat_uv)
        alive = finite & ~flat
        self._seconds += finite.sum(axis=0)
        self._flat += flat.sum(axis=0)
        self._mains += (alive & (share > t.mains_share)).sum(axis=0)
        self._quiet += (alive & (rms < t.quiet_uv)).sum(axis=0)
        self._loud += (alive & (rms > t.loud_uv)).sum(axis=0)
        times, columns = np.nonzero(finite & (span > 0))
        places = np.log10(np.maximum(rms[times, columns], 1e-30))
        bins = np.clip(((places - _DECADES[0]) * _BINS).astype(np.int64), 0, self._rms.shape[1] - 1)
        np.add.at(self._rms, (columns, bins), 1)

    def result(self) -> tuple[ChannelQuality, ...]:
        """Return the counts so far for each channel."""
        high, low = self._extremes
        constant = high.value == -low.value
        clipped = np.where(constant, 0, high.count() + low.count())
        return tuple(
            ChannelQuality(
                samples=self._samples,
                missing=int(self._missing[c]),
                clipped=int(clipped[c]),
                seconds=int(self._seconds[c]),
                flat=int(self._flat[c]),
                mains=int(self._mains[c]),
                quiet=int(self._quiet[c]),
                loud=int(self._loud[c]),
                rms=_median(self._rms[c]),
            )
            for c in range(len(self._missing))
        )


class _Extreme:
    """Counts samples of each channel in runs at its highest value (lowest for ``sign`` -1), known only at the end.

    A run of n samples holds n - run + 1 windows of ``run`` samples and one first window, so n = windows + (run - 1) *
    firsts. Counting windows and first windows is therefore enough, and both carry over from one portion to the next.
    """

    def __init__(self, channels: int, run: int, sign: int) -> None:
        self._run, self._sign = run, np.float32(sign)
        self.value = np.full(channels, -np.inf, np.float32)
        self._windows, self._firsts = np.zeros((2, channels), np.int64)
        self.begin()

    def begin(self) -> None:
        channels = len(self.value)
        self._tail = np.full((self._run - 1, channels), np.nan, np.float32)
        self._open = np.zeros((1, channels), bool)

    def add(self, samples: Samples, finite: bool) -> None:
        if not len(samples):
            return
        usable = samples if finite else np.where(np.isfinite(samples), samples, -self._sign * np.float32(np.inf))
        highest = self._sign * _along_time(np.maximum if self._sign > 0 else np.minimum, usable[None])[0]
        higher = highest > self.value
        self._windows[higher] = self._firsts[higher] = 0
        self.value = np.maximum(self.value, highest)
        there = np.flatnonzero(highest == self.value)  # elsewhere no sample is at the extreme, and no run goes on
        seen = (samples[:, there] == self._sign * self.value[there]).sum(axis=0)
        seen += (self._tail[:, there] == self._sign * self.value[there]).sum(axis=0)
        there = there[seen >= self._run]  # most extremes are one sample: no run either
        opened = np.zeros_like(self._open)
        if len(there):
            at = np.concatenate([self._tail[:, there], samples[:, there]]) == self._sign * self.value[there]
            windows = at[: len(samples)].copy()
            for later in range(1, self._run):
                windows &= at[later : later + len(samples)]
            before = np.concatenate([self._open[:, there], windows[:-1]])
            self._windows[there] += windows.sum(axis=0)
            self._firsts[there] += (windows & ~before).sum(axis=0)
            opened[:, there] = windows[-1:]
        self._open = opened
        self._tail = (
            np.concatenate([self._tail, samples[-self._run :]])[-(self._run - 1) :] if self._run > 1 else self._tail
        )

    def count(self) -> NDArray[np.int64]:
        result: NDArray[np.int64] = self._windows + (self._run - 1) * self._firsts
        return result


def _along_time(pick: np.ufunc, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reduce axis 1 by halves; NumPy's own reduction over an axis that is not the last is several times slower."""
    while x.shape[1] > 32:
        half = x.shape[1] // 2
        left = x[:, 2 * half :]
        x = pick(x[:, :half], x[:, half : 2 * half])
        if left.shape[1]:
            x[:, :1] = pick(x[:, :1], left)
    result: NDArray[np.float32] = pick.reduce(x, axis=1)
    return result


def _median(histogram: NDArray[np.int64]) -> float:
    total = int(histogram.sum())
    if not total:
        return 0.0
    middle = int(np.searchsorted(np.cumsum(histogram), (total + 1) // 2))
    return float(10 ** (_DECADES[0] + (middle + 0.5) / _BINS))
