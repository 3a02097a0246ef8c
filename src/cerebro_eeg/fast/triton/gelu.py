# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""Triton kernels of GELU, forward and backward: bound by memory, where the library's erf is bound by arithmetic.

Both need one exponential and one reciprocal a value. The error of the normal distribution below is at most 1e-7, far
below the rounding of half precision; ``mlp.py`` sends float32 elsewhere.

Legend: **T** rows (tokens), **H** columns.
"""

import triton
import triton.language as tl

DENSITY = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
HALF_LOG2E = tl.constexpr(0.7213475204444817)


@triton.jit
def _normal(x):
    """The normal distribution below x, and exp(-x^2 / 2) (Abramowitz and Stegun, 7.1.26)."""
    bell = tl.exp2(x * x * -HALF_LOG2E)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * bell
    return tl.where(x >= 0, 1.0 - tail, tail), bell


# With a code of its own for a count that divides by 16: else the mask keeps loads one value wide.
@triton.jit(repr=lambda _: "cerebro_gelu_forward")
def forward(x, out, count, BLOCK: tl.constexpr):
    """x times the normal distribution below x."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x + place, place < count, 0.0).to(tl.float32)
    below, _ = _normal(x)
    tl.store(out + place, (x * below).to(out.dtype.element_ty), place < count)


@triton.jit(do_not_specialize=["rows"], repr=lambda _: "cerebro_gelu_backward")
def backward(x, d_out, d_x, sums, rows, H, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, STEPS: tl.constexpr):
    """The gradient, and its sum over the ``STEPS`` x ``BLOCK_T`` rows of each program."""
    at_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    sum_TH = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
    for step in range(STEPS):
        row_T = (tl.program_id(0).to(tl.int64) * STEPS + step) * BLOCK_T + tl.arange(0, BLOCK_T)
        there_TH = (row_T < rows)[:, None] & (at_H < H)[None, :]
        place_TH = row_T[:, None] * H + at_H[None, :]
        x_TH = tl.load(x + place_TH, there_TH, 0.0).to(tl.float32)
        d_TH = tl.load(d_out + place_TH, there_TH, 0.0).to(tl.float32)
        below_TH, bell_TH = _normal(x_TH)
        d_TH = (d_TH * (below_TH + x_TH * bell_TH * DENSITY)).to(d_x.dtype.element_ty)
        tl.store(d_x + place_TH, d_TH, there_TH)
        sum_TH += d_TH.to(tl.float32)
    tl.store(sums + tl.program_id(0).to(tl.int64) * H + at_H, tl.sum(sum_TH, 0), at_H < H)
