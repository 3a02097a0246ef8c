# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""Triton kernels of an MLP: GELU as a pass of its own, and GELU computed on the tiles of the adjacent products.

As a pass of its own, GELU is limited by memory in both directions, while the library's erf is limited by arithmetic.
Each value needs one exponential and one reciprocal. The error of the normal distribution is at most 1e-7, far below the
rounding of half precision. float32 does not come here (``mlp_layer.py``).

On the tiles of a product, GELU is limited by instructions. The normal distribution is therefore a polynomial there,
with an error of at most 1.3e-5 (``benchmarks/gelu_fit.py``). The forward pass keeps GELU's slope instead of its input,
so that the backward pass only multiplies. The tensor memory accelerator of Hopper loads and stores the tiles, and clips
them at the borders.

Legend: **T** rows (tokens) of a tile, **H** its columns of the hidden layer, **K** the axis that a product sums over.
"""

import triton
import triton.language as tl

DENSITY = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
HALF_LOG2E = tl.constexpr(0.7213475204444817)


@triton.jit
def _normal(x):
    """Return the normal distribution function of x, and exp(-x^2 / 2) (Abramowitz and Stegun, 7.1.26)."""
    bell = tl.exp2(x * x * -HALF_LOG2E)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * bell
    return tl.where(x >= 0, 1.0 - tail, tail), bell


# ``count`` is specialised on purpose: if it divides by 16, loads are wide despite the mask.
@triton.jit(repr=lambda _: "cerebro_gelu_forward")
def gelu(x, out, count, BLOCK: tl.constexpr):
    """Write x times the normal distribution function of x."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x + place, place < count, 0.0).to(tl.float32)
    below, _ = _normal(x)
    tl.store(out + place, (x * below).to(out.dtype.element_ty), place < count)


@triton.jit(do_not_specialize=["rows"], repr=lambda _: "cerebro_gelu_backward")
def gelu_backward(x, d_out, d_x, sums, rows, H, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, STEPS: tl.constexpr):
    """Write the gradient, and its sum over the ``STEPS`` x ``BLOCK_T`` rows of each program."""
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


# 1/2 + x p(x^2) is the normal distribution function of x, for |x| up to P_END.
P0 = tl.constexpr(0.3989074230194092)
P1 = tl.constexpr(-0.06636036932468414)
P2 = tl.constexpr(0.009830130264163017)
P3 = tl.constexpr(-0.001114147948101163)
P4 = tl.constexpr(9.457438136450946e-05)
P5 = tl.constexpr(-5.760766725870781e-06)
P6 = tl.constexpr(2.343672491633697e-07)
P7 = tl.constexpr(-5.633312039066141e-09)
P8 = tl.constexpr(5.998059687817303e-11)
P_END = tl.constexpr(4.2)
LOG2_DENSITY = tl.constexpr(-1.3257480647361593)  # log2(1 / sqrt(2 pi))


@triton.jit
def _below(x):
    """Return the normal distribution function of x by the polynomial."""
    t = tl.minimum(x * x, P_END * P_END)
    p = ((((((((P8 * t + P7) * t + P6) * t + P5) * t + P4) * t + P3) * t + P2) * t + P1) * t + P0) * x + 0.5
    return tl.minimum(tl.maximum(p, 0.0), 1.0)


@triton.jit
def _finish(y_TH, bias, slope, out, row, column, H, BLOCK_H: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr):
    """Add the bias to one piece of a tile, and write GELU and, with KEEP, GELU's slope."""
    if BIAS:
        at_H = column + tl.arange(0, BLOCK_H)
        y_TH += tl.load(bias + at_H, at_H < H, 0.0).to(tl.float32)[None, :]
    below_TH = _below(y_TH)
    out.store([row, column], (y_TH * below_TH).to(out.dtype))
    if KEEP:
        slope_TH = below_TH + y_TH * tl.exp2(y_TH * y_TH * -HALF_LOG2E + LOG2_DENSITY)
        slope.store([row, column], slope_TH.to(slope.dtype))


@triton.jit(do_not_specialize=["rows"], repr=lambda _: "cerebro_mlp_up")
def up(
    x, weight, bias, slope, out, rows, H, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Write GELU of x W + b. All tensors but ``bias`` are descriptors; the weight is (H, K).

    Every program computes many tiles and reads the next tile ahead. A tile is written in two halves, the second of
    which is computed while the first is being stored.
    """
    columns = tl.cdiv(H, BLOCK_H)
    tiles = tl.cdiv(rows, BLOCK_T) * columns
    half: tl.constexpr = BLOCK_H // 2
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row = tile // columns * BLOCK_T
        column = tile % columns * BLOCK_H
        y_TH = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
        for k in range(0, K, BLOCK_K):
            y_TH = tl.dot(x.load([row, k]), weight.load([column, k]).T, y_TH)
        left_TH, right_TH = tl.split(tl.permute(tl.reshape(y_TH, (BLOCK_T, 2, half)), (0, 2, 1)))
        _finish(left_TH, bias, slope, out, row, column, H, half, BIAS, KEEP)
        _finish(right_TH, bias, slope, out, row, column + half, H, half, BIAS, KEEP)


@triton.jit(repr=lambda _: "cerebro_mlp_down_backward")
def down_backward(
    d_y, weight, slope, d_before, sums, H, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write (d_y W) times GELU's slope, and its sum over the rows of each tile; the weight is (K, H)."""
    columns = tl.cdiv(H, BLOCK_H)
    block = tl.program_id(0) // columns
    row, column = block * BLOCK_T, tl.program_id(0) % columns * BLOCK_H
    d_TH = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        d_TH = tl.dot(d_y.load([row, k]), weight.load([k, column]), d_TH)
    d_TH *= slope.load([row, column]).to(tl.float32)
    at_H = column + tl.arange(0, BLOCK_H)
    tl.store(sums + block.to(tl.int64) * H + at_H, tl.sum(d_TH, 0), at_H < H)
    d_before.store([row, column], d_TH.to(d_before.dtype))
