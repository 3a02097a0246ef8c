"""Random numbers as arithmetic: each is a pure function of (seed, epoch, window key, purpose, place).

No generator has a state, so a resumed run, or one on another number of processes, draws the same numbers. The bits
come from SplitMix64's finaliser over counters, in int64, which torch has on every device. The generators of torch were
no choice, because their streams differ between devices and versions. Never draw from a generator in a training loop.

Legend: **B** windows, **M** numbers of a window.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.hashing import GOLDEN, ONE, TWO, mix64

MASK, DROP_PATH, NOISE, NOISE_CHOICE, VIEW = range(5)
"""Purposes; each has a stream of its own."""

_GOLDEN, _ONE, _TWO = (value - (1 << 64) for value in (GOLDEN, ONE, TWO))


def window_keys(seed: int, key_B: Tensor, epoch_B: Tensor, purpose: int) -> Tensor:
    """Return the keys (B,), in int64, of these windows' numbers for one purpose. All is on the CPU."""
    start = np.uint64((seed ^ (purpose + 1) * 0xD1B54A32D192ED03) & (1 << 64) - 1)
    key, epoch = (x_B.numpy().view(np.uint64) for x_B in (key_B, epoch_B))
    return torch.from_numpy(mix64(mix64(mix64(key ^ start) ^ epoch) ^ start).view(np.int64))


def uniform(key: Tensor, place: Tensor) -> Tensor:
    """Return float32 numbers of 24 bits in [0, 1); key and place are broadcast against each other."""
    return _unit(_mix(_mix(place) ^ key))


def uniform_on_cpu(key: Tensor, place: NDArray[np.int64]) -> Tensor:
    """Return the same numbers on the CPU by NumPy, whose operators begin sooner than torch's: for few numbers."""
    bits = mix64(mix64(place.view(np.uint64)) ^ key.numpy().view(np.uint64))
    return torch.from_numpy((bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))


def scrambled(place: Tensor) -> tuple[Tensor, Tensor]:
    """Return what :func:`normal` needs of places; windows and steps with the same places can share it."""
    return _mix(2 * place), _mix(2 * place + 1)


def normal(key: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
    """Return standard normal numbers in float32, by the cosine of Box and Muller, for ``scrambled`` places."""
    first, second = (_unit(_mix(place ^ key)) for place in places)
    radius = (1 - first).log_().mul_(-2).sqrt_()
    return second.mul_(2 * math.pi).cos_().mul_(radius)


def _unit(bits: Tensor) -> Tensor:
    """Return the highest 24 bits as a number in [0, 1)."""
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * (2.0**-24)


def _mix(x: Tensor) -> Tensor:
    """Scramble each number, one to one."""
    x = x + _GOLDEN  # new memory; what follows may change it in place, which moves half as much of it
    x.bitwise_xor_(_right(x, 30)).mul_(_ONE)
    x.bitwise_xor_(_right(x, 27)).mul_(_TWO)
    return x.bitwise_xor_(_right(x, 31))


def _right(x: Tensor, bits: int) -> Tensor:
    """Shift right and bring in zeros; torch's own shift brings in the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)
