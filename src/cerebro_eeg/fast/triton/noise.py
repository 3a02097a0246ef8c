# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""A Triton kernel of the noise of fine-tuning: random numbers, deviation and sum of a row, in one pass over memory.

Legend: **R** rows, **T** samples.
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """Scramble each number (the finaliser of SplitMix64)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _unit(key, place):
    """Return the number of a key and a place in [0, 1), of 24 bits."""
    return (_mix(_mix(place) ^ key) >> 40).to(tl.float32) * (1.0 / (1 << 24))


@triton.jit(repr=lambda _: "cerebro_add_noise")
def add_noise(signal_RT, rows_R2, out_RT, samples, ratio, BLOCK_T: tl.constexpr):
    """Write a row as float32, with normal numbers times ``ratio`` and its deviation unless its channel is -1."""
    row = tl.program_id(0).to(tl.int64)
    time_T = tl.arange(0, BLOCK_T)
    there_T = time_T < samples
    x_T = tl.load(signal_RT + row * samples + time_T, there_T, 0.0).to(tl.float32)
    channel = tl.load(rows_R2 + 2 * row + 1)
    if channel >= 0:
        key = tl.load(rows_R2 + 2 * row).to(tl.uint64, bitcast=True)
        centred_T = tl.where(there_T, x_T - tl.sum(x_T) / samples, 0.0)
        size = ratio * tl.sqrt(tl.sum(centred_T * centred_T) / samples)
        place_T = (2 * (channel * samples + time_T)).to(tl.uint64)
        radius_T = tl.sqrt(-2.0 * tl.log(1.0 - _unit(key, place_T)))
        x_T += size * radius_T * tl.cos(6.283185307179586 * _unit(key, place_T + 1))
    tl.store(out_RT + row * samples + time_T, x_T, there_T)
