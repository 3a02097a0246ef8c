# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""Triton kernel of the gradients of a narrow linear layer: of its weight and, from the same tiles, of its bias.

It uses Hopper's matrix units, which read tiles from shared memory. The sum for the bias is a product with ones, so that
it also reads them from there. Blocks are 192 = 128 + 64 columns wide, because the sides of tiles are powers of two.

Legend: **T** rows (tokens), **F** columns of the gradient, **D** the 192 columns of the input.
"""

import triton
import triton.language as tl

WIDTH = tl.constexpr(192)


@triton.jit(do_not_specialize=["rows", "chunk"], repr=lambda _: "cerebro_narrow_backward")
def backward(
    d_wide,
    d_slim,
    x_wide,
    x_slim,
    products,
    sums,
    rows,
    chunk,
    F: tl.constexpr,
    BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write d^T x and the sums of d. Program (f, p) takes 192 columns of d from 192 f on and chunk p of the rows.

    Descriptors read blocks of ``BLOCK_T`` rows and 128 (wide) or 64 (slim) columns, with zeros after the last row. A
    chunk is a multiple of ``BLOCK_T`` rows, so no block reaches into the next chunk.
    """
    column = tl.program_id(0) * WIDTH
    part = tl.program_id(1).to(tl.int64)
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, rows)
    ww = tl.zeros((128, 128), tl.float32)
    ws = tl.zeros((128, 64), tl.float32)
    sw = tl.zeros((64, 128), tl.float32)
    ss = tl.zeros((64, 64), tl.float32)
    ones = tl.full((BLOCK_T, 16), 1.0, d_wide.dtype)
    sum_w = tl.zeros((128, 16), tl.float32)
    sum_s = tl.zeros((64, 16), tl.float32)
    for row in tl.range(first, last, BLOCK_T, num_stages=STAGES):
        d_w = d_wide.load([row, column]).T
        d_s = d_slim.load([row, column + 128]).T
        x_w = x_wide.load([row, 0])
        x_s = x_slim.load([row, 128])
        ww = tl.dot(d_w, x_w, ww)
        ws = tl.dot(d_w, x_s, ws)
        sw = tl.dot(d_s, x_w, sw)
        ss = tl.dot(d_s, x_s, ss)
        sum_w = tl.dot(d_w, ones, sum_w)
        sum_s = tl.dot(d_s, ones, sum_s)
    products += part * (F * WIDTH)
    at_w, at_s = column + tl.arange(0, 128), column + 128 + tl.arange(0, 64)
    to_w, to_s = tl.arange(0, 128), 128 + tl.arange(0, 64)
    tl.store(products + at_w[:, None] * WIDTH + to_w[None, :], ww)
    tl.store(products + at_w[:, None] * WIDTH + to_s[None, :], ws)
    tl.store(products + at_s[:, None] * WIDTH + to_w[None, :], sw)
    tl.store(products + at_s[:, None] * WIDTH + to_s[None, :], ss)
    sums += part * F
    one = (tl.arange(0, 16) == 0)[None, :]  # all 16 columns are the same
    tl.store(sums + at_w[:, None] + tl.zeros((128, 16), tl.int32), sum_w, one)
    tl.store(sums + at_s[:, None] + tl.zeros((64, 16), tl.int32), sum_s, one)
