# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""Triton kernels of a residual addition and the LayerNorm behind it, forward and backward, each one pass over memory.

Legend: **T** rows (tokens) of a program, **D** width.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def forward(
    x, late, late_bias, weight, bias, total, out, mean, scale, rows, eps, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, KEEP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """total = x + late (+ its bias); out = LayerNorm(total); where kept, each row's mean and 1 / standard deviation."""
    row_T = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    at_D = tl.arange(0, BLOCK_D)
    there_TD = (row_T < rows)[:, None] & (at_D < D)[None, :]
    place_TD = row_T[:, None] * D + at_D[None, :]
    x_TD = tl.load(x + place_TD, there_TD, 0.0).to(tl.float32) + tl.load(late + place_TD, there_TD, 0.0).to(tl.float32)
    if BIAS:
        x_TD += tl.load(late_bias + at_D, at_D < D, 0.0).to(tl.float32)[None, :]
    x_TD = x_TD.to(total.dtype.element_ty)
    tl.store(total + place_TD, x_TD, there_TD)
    x_TD = x_TD.to(tl.float32)  # as rounded: what the backward pass will see
    mean_T = tl.sum(x_TD, 1) / D
    x_TD = tl.where(there_TD, x_TD - mean_T[:, None], 0.0)
    scale_T = tl.rsqrt(tl.sum(x_TD * x_TD, 1) / D + eps)
    weight_D = tl.load(weight + at_D, at_D < D, 0.0)
    bias_D = tl.load(bias + at_D, at_D < D, 0.0)
    y_TD = x_TD * scale_T[:, None] * weight_D[None, :] + bias_D[None, :]
    tl.store(out + place_TD, y_TD.to(out.dtype.element_ty), there_TD)
    if KEEP:
        tl.store(mean + row_T, mean_T, row_T < rows)
        tl.store(scale + row_T, scale_T, row_T < rows)


@triton.jit(do_not_specialize=["rows", "steps"])
def backward(
    d_total, d_out, total, weight, mean, scale, d_x, sums, rows, steps, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """The gradient of both summands, and of each program the sums for weight, bias and, if asked for, late's bias."""
    at_D = tl.arange(0, BLOCK_D)
    weight_D = tl.load(weight + at_D, at_D < D, 0.0)
    d_weight_TD = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    d_bias_TD = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    if LATE:
        d_late_TD = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for step in range(steps):
        row_T = (tl.program_id(0).to(tl.int64) * steps + step) * BLOCK_T + tl.arange(0, BLOCK_T)
        there_TD = (row_T < rows)[:, None] & (at_D < D)[None, :]
        place_TD = row_T[:, None] * D + at_D[None, :]
        mean_T = tl.load(mean + row_T, row_T < rows, 0.0)
        scale_T = tl.load(scale + row_T, row_T < rows, 0.0)
        x_TD = tl.load(total + place_TD, there_TD, 0.0).to(tl.float32)
        y_TD = tl.load(d_out + place_TD, there_TD, 0.0).to(tl.float32)
        sum_TD = tl.load(d_total + place_TD, there_TD, 0.0).to(tl.float32)
        x_TD = tl.where(there_TD, (x_TD - mean_T[:, None]) * scale_T[:, None], 0.0)
        d_weight_TD += y_TD * x_TD
        d_bias_TD += y_TD
        y_TD *= weight_D[None, :]
        shift_T = tl.sum(y_TD, 1) / D
        slope_T = tl.sum(y_TD * x_TD, 1) / D
        sum_TD += (y_TD - shift_T[:, None] - x_TD * slope_T[:, None]) * scale_T[:, None]
        tl.store(d_x + place_TD, sum_TD.to(d_x.dtype.element_ty), there_TD)
        if LATE:
            d_late_TD += sum_TD
    place_D = tl.program_id(0).to(tl.int64) * ((3 if LATE else 2) * D) + at_D
    tl.store(sums + place_D, tl.sum(d_weight_TD, 0), at_D < D)
    tl.store(sums + D + place_D, tl.sum(d_bias_TD, 0), at_D < D)
    if LATE:
        tl.store(sums + 2 * D + place_D, tl.sum(d_late_TD, 0), at_D < D)
