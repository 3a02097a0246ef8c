"""The arithmetic of chance: the finaliser of SplitMix64, in NumPy, for the order and the random numbers of windows.

It is our own arithmetic, because the streams of NumPy's and torch's generators may change from version to version.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN, ONE, TWO = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble each number, one to one: a counter in, random bits out. A single number would make NumPy warn."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(ONE)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(TWO)
    return x ^ (x >> np.uint64(31))
