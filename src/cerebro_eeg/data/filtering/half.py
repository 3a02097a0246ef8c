"""float32 to float16, twice as fast as NumPy's own conversion and with the same bits.

Integer arithmetic on whole arrays instead of one value after the other; what it does not cover goes to NumPy.
"""

import numpy as np
from numpy.typing import NDArray

STEP = 1 << 15  # values at a time: temporaries stay in the cache
SMALLEST, LARGEST = 0x38800000, 0x477FEFFF  # bits of 2 ** -14 and of the last float32 that rounds to 65504


def to_half(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round to nearest, ties to even, as ``astype`` does (its warnings included)."""
    flat = np.ascontiguousarray(values).reshape(-1)
    result = np.empty(flat.shape, np.float16)
    size, tie = np.empty(STEP, np.uint32), np.empty(STEP, np.uint32)
    for start in range(0, len(flat), STEP):
        bits = flat[start : start + STEP].view(np.uint32)
        part, u, v = result[start : start + STEP], size[: len(bits)], tie[: len(bits)]
        np.bitwise_and(bits, 0x7FFFFFFF, out=u)
        if u.min() < SMALLEST or u.max() > LARGEST:  # subnormal in half precision, too large for it, or not a number
            part[:] = flat[start : start + STEP]
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
