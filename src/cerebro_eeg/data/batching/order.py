"""Order: the windows of training step s, as a pure function of (seed, s). Nothing is stored or drawn.

So the state to resume is a step number. Any number of processes, workers or threads sees the same stream, because each
takes its part of the same step.

An epoch is a permutation of all windows, computed window by window: a Feistel network over the next power of two,
repeated until the result lies inside. So a corpus of any size costs no memory and no waiting. A step that an epoch does
not fill continues with the next: within an epoch no window is lost and none comes twice.

The arithmetic is our own, because the streams of NumPy's generators may change from version to version.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.hashing import mix64

_ROUNDS = 8
_CYCLE = 1 << 16  # weights are kept to this many windows exactly, and then the pattern of sources begins again
_KEPT = 8  # steps of an order
_TOGETHER = 4096  # windows whose places are computed at once: NumPy takes as long for a few of them


def permute(position: NDArray[np.int64], size: int, key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return where each position below ``size`` goes in the permutation of its key; keys differ by epoch."""
    bits = max(2, (size - 1).bit_length())
    low_bits, high_bits = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    low_mask, high_mask = np.uint64((1 << int(low_bits)) - 1), np.uint64((1 << int(high_bits)) - 1)
    found = position.astype(np.uint64)
    todo = np.arange(len(found))
    while len(todo):
        x, k = found[todo], key[todo]
        high, low = x >> low_bits, x & low_mask
        for turn in range(0, 2 * _ROUNDS, 2):
            high ^= mix64(k + low + np.uint64(turn << 48)) & high_mask
            low ^= mix64(k + high + np.uint64((turn + 1) << 48)) & low_mask
        found[todo] = (high << low_bits) | low
        todo = todo[found[todo] >= np.uint64(size)]  # outside: its image's image, which is one to one on the inside
    return found.astype(np.int64)


@dataclass(frozen=True)
class Step:
    """The windows of one step, in order."""

    source: NDArray[np.int64]
    window: NDArray[np.int64]
    """Number of the window in its source."""
    epoch: NDArray[np.int64]
    """Number of completed passes through its source; with the window's key it determines a random draw."""

    def __len__(self) -> int:
        return len(self.window)

    def frozen(self) -> "Step":
        """Return the same step with arrays that cannot be changed."""
        for numbers in (self.source, self.window, self.epoch):
            numbers.flags.writeable = False
        return self

    def part(self, number: int, of: int) -> "Step":
        """Return part ``number`` (from 0) of ``of`` parts, which together are the step; sizes differ by one at most.

        Ranks, workers and micro-batches each take a part; a part of a part is a part again.
        """
        if not 0 <= number < of:
            raise ConfigError(f"part {number} of {of} was asked for; parts are 0 to {of - 1}")
        part = slice(len(self) * number // of, len(self) * (number + 1) // of)
        return Step(self.source[part], self.window[part], self.epoch[part])


class Order:
    """The order of windows from one or several sources.

    Parameters
    ----------
    seed : a whole number of at least 0.
    counts : how many windows each source has.
    batch_size : windows of a step over all processes.
    weights : the share of each source in the stream, in any unit; each source then has epochs of its own.
        None: all sources are one, and an epoch has every window once.
    """

    def __init__(
        self, seed: int, counts: Sequence[int], batch_size: int, weights: Sequence[float] | None = None
    ) -> None:
        if seed < 0 or batch_size < 1:
            raise ConfigError(f"seed is {seed} and batch_size {batch_size}; expected at least 0 and at least 1")
        if not counts or min(counts) < 0 or sum(counts) == 0:
            raise InputError(f"there are {list(counts)} windows in the sources; expected some to train on")
        self.counts, self.batch_size = tuple(int(n) for n in counts), batch_size
        self._seed = _hash_seed(seed)
        self._first = np.cumsum([0, *self.counts])
        self._kept: dict[int, Step] = {}
        self._pattern: NDArray[np.int64] | None = None
        if weights is not None:
            self._shares = _shares(self.counts, weights)
            # The k-th of a source's c windows of a cycle stands at (k + 1/2) / c of it: evenly, so in every step.
            source = np.repeat(np.arange(len(self.counts)), self._shares)
            rank = np.concatenate([np.arange(n) for n in self._shares])
            place = np.lexsort((source, (rank + 0.5) / self._shares[source]))
            self._pattern, self._rank = source[place], rank[place]

    @property
    def windows(self) -> int:
        """Windows of an epoch; with weights, as many as all sources have together."""
        return sum(self.counts)

    def steps(self, epochs: float) -> int:
        """Return the steps after which all windows were shown at least ``epochs`` times."""
        return math.ceil(Fraction(epochs).limit_denominator(1_000_000) * self.windows / self.batch_size)

    def epochs(self, steps: int) -> float:
        """Return how often all windows were shown after so many steps."""
        return steps * self.batch_size / self.windows

    def step(self, number: int) -> Step:
        """Return the windows of step ``number``, from 0; the last ones are kept, because each is asked for twice.

        Steps are computed some at a time, those of a multiple of ``_TOGETHER // batch_size`` on.
        """
        if number < 0:
            raise ConfigError(f"step {number} was asked for; steps begin at 0")
        if number not in self._kept:
            together = max(1, _TOGETHER // self.batch_size)
            first = number // together * together
            made = self._make(first * self.batch_size, together * self.batch_size).frozen()
            self._kept.update((first + place, made.part(place, together)) for place in range(together))
            while len(self._kept) > max(_KEPT, 2 * together):
                self._kept.pop(next(iter(self._kept)))
        return self._kept[number]

    def _make(self, first: int, count: int) -> Step:
        """Return so many windows of the stream, from place ``first`` on."""
        place = first + np.arange(count, dtype=np.int64)
        if self._pattern is None:
            epoch, position = np.divmod(place, self.windows)
            found = permute(position, self.windows, self._keys(0, epoch))
            source = np.searchsorted(self._first, found, "right") - 1
            return Step(source, found - self._first[source], epoch)
        cycle, inside = np.divmod(place, _CYCLE)
        source = self._pattern[inside]
        shown = cycle * self._shares[source] + self._rank[inside]
        window, epoch = np.empty_like(place), np.empty_like(place)
        for number_of_source in np.unique(source).tolist():
            mine = source == number_of_source
            size = self.counts[number_of_source]
            epoch[mine], position = np.divmod(shown[mine], size)
            window[mine] = permute(position, size, self._keys(1 + number_of_source, epoch[mine]))
        return Step(source, window, epoch)

    def _keys(self, stream: int, epoch: NDArray[np.int64]) -> NDArray[np.uint64]:
        return mix64(mix64(self._seed ^ np.uint64(stream)) ^ epoch.astype(np.uint64))


def in_order(counts: Sequence[int], batch_size: int) -> Iterator[Step]:
    """Yield every window of every source once, in order, for evaluation; the last step may be smaller."""
    first = np.cumsum([0, *counts])
    for start in range(0, int(first[-1]), batch_size):
        place = np.arange(start, min(start + batch_size, int(first[-1])), dtype=np.int64)
        source = np.searchsorted(first, place, "right") - 1
        yield Step(source, place - first[source], np.zeros_like(place))


def _hash_seed(seed: int) -> NDArray[np.uint64]:
    """Hash a seed of any size to 64 bits, in an array of one; a chain keeps seed and epoch from being exchanged."""
    words = [seed >> shift & (1 << 64) - 1 for shift in range(0, max(1, seed.bit_length()), 64)]
    found = np.array([len(words)], np.uint64)
    for word in words:
        found = mix64(found ^ np.uint64(word))
    return found


def _shares(counts: Sequence[int], weights: Sequence[float]) -> NDArray[np.int64]:
    """Return the windows of each source in a cycle: the weights, rounded by largest remainder."""
    given = np.asarray(weights, np.float64)
    if given.shape != (len(counts),) or not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise ConfigError(f"weights are {list(weights)}; expected {len(counts)} numbers of at least 0, not all 0")
    exact = given / given.sum() * _CYCLE
    shares: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: _CYCLE - int(shares.sum())]] += 1
    for number, (count, weight, share) in enumerate(zip(counts, given.tolist(), shares.tolist(), strict=True)):
        if weight > 0 and (count == 0 or share == 0):
            what = "no windows" if count == 0 else f"less than 1 of {_CYCLE} windows"
            raise ConfigError(f"source {number} with weight {weight:g} has {what}; leave it out, or weigh it otherwise")
    return shares
