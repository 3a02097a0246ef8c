# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index"
"""Triton kernels of a residual addition with the following LayerNorm, forward and backward, each one pass over memory.

The sides of Triton's blocks are powers of two. A row is therefore split into two blocks. The first is full, and the
second ends with the row or, if the rest is no power of two, a little after it. The usual widths, such as
192 = 128 + 64 and 768 = 512 + 256, thus use no registers for columns that do not exist.

Legend: **T** rows (tokens) of a program, **D** width, **A** columns of the first block, **B** of the second.
"""

import triton
import triton.language as tl


@triton.jit
def _in_b(there, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return a mask of the values of the second block that exist, given a mask of the rows."""
    return there if BLOCK_A + BLOCK_B == D else there & (BLOCK_A + tl.arange(0, BLOCK_B) < D)[None, :]


@triton.jit
def _load(of, row_T, rows, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return both blocks of rows as float32, with zeros for rows and columns that do not exist."""
    at_TA = of + (row_T * D)[:, None] + tl.arange(0, BLOCK_A)[None, :]
    at_TB = of + (row_T * D)[:, None] + (BLOCK_A + tl.arange(0, BLOCK_B))[None, :]
    there = (row_T < rows)[:, None]
    x_TA = tl.load(at_TA, there, 0.0)
    x_TB = tl.load(at_TB, _in_b(there, D, BLOCK_A, BLOCK_B), 0.0)
    return x_TA.to(tl.float32), x_TB.to(tl.float32)


@triton.jit
def _store(of, x_TA, x_TB, row_T, rows, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    at_TA = of + (row_T * D)[:, None] + tl.arange(0, BLOCK_A)[None, :]
    at_TB = of + (row_T * D)[:, None] + (BLOCK_A + tl.arange(0, BLOCK_B))[None, :]
    there = (row_T < rows)[:, None]
    tl.store(at_TA, x_TA.to(of.dtype.element_ty), there)
    tl.store(at_TB, x_TB.to(of.dtype.element_ty), _in_b(there, D, BLOCK_A, BLOCK_B))


@triton.jit
def _load_columns(of, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Return both blocks of a vector that is the same for all rows, as float32."""
    at_A, at_B = tl.arange(0, BLOCK_A), BLOCK_A + tl.arange(0, BLOCK_B)
    return tl.load(of + at_A).to(tl.float32)[None, :], tl.load(of + at_B, at_B < D, 0.0).to(tl.float32)[None, :]


@triton.jit
def _store_columns(of, x_TA, x_TB, D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    """Write sums over rows."""
    at_A, at_B = tl.arange(0, BLOCK_A), BLOCK_A + tl.arange(0, BLOCK_B)
    tl.store(of + at_A, tl.sum(x_TA, 0))
    tl.store(of + at_B, tl.sum(x_TB, 0), at_B < D)


@triton.jit
def _mean(x_TA, x_TB, D: tl.constexpr):
    """Return the mean of each row; columns that do not exist must be zero."""
    return ((tl.sum(x_TA, 1) + tl.sum(x_TB, 1)) / D)[:, None]


@triton.jit
def _load_factors(of, row_T, rows, tokens):
    """Return the factor of each token, which all ``tokens`` tokens of a row of the batch share.

    The division is one of 32 bits, which is much quicker. No GPU has the memory for 2^32 tokens.
    """
    at_T = row_T.to(tl.uint32) // tokens.to(tl.uint32)
    return tl.load(of + at_T, row_T < rows, 0.0)[:, None]


@triton.jit(do_not_specialize=["rows", "steps", "tokens"], repr=lambda _: "cerebro_norm_forward")
def forward(
    x, pending, pending_bias, before, factor, weight, bias, total, out, lacking, kept, rows, steps, tokens, eps,
    D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, PENDING: tl.constexpr,
    BIAS: tl.constexpr, BEFORE: tl.constexpr, FACTOR: tl.constexpr, TOTAL: tl.constexpr, KEEP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write LayerNorm(x + pending + its bias + biases before it); all summands but x are optional.

    With FACTOR, pending and its bias are multiplied by one factor per ``tokens`` tokens; there are no biases before it.
    With TOTAL, write the sum to ``total``. Else x stays without the biases, and their sum goes to ``lacking``. With
    KEEP, write the means of all rows to ``kept``, followed by 1 / standard deviation of all rows.
    """
    weight_1A, weight_1B = _load_columns(weight, D, BLOCK_A, BLOCK_B)
    bias_1A, bias_1B = _load_columns(bias, D, BLOCK_A, BLOCK_B)
    if BIAS:
        more_1A, more_1B = _load_columns(pending_bias, D, BLOCK_A, BLOCK_B)
    if BEFORE:
        before_1A, before_1B = _load_columns(before, D, BLOCK_A, BLOCK_B)
        if BIAS:
            more_1A += before_1A
            more_1B += before_1B
            if tl.program_id(0) == 0:
                _store_columns(lacking, more_1A, more_1B, D, BLOCK_A, BLOCK_B)
        else:
            more_1A, more_1B = before_1A, before_1B
    for step in tl.range(0, steps, num_stages=STAGES):
        row_T = (tl.program_id(0).to(tl.int64) * steps + step) * BLOCK_T + tl.arange(0, BLOCK_T)
        x_TA, x_TB = _load(x, row_T, rows, D, BLOCK_A, BLOCK_B)
        if PENDING:
            pending_TA, pending_TB = _load(pending, row_T, rows, D, BLOCK_A, BLOCK_B)
            if FACTOR:
                if BIAS:
                    pending_TA += more_1A
                    pending_TB += more_1B
                factor_T1 = _load_factors(factor, row_T, rows, tokens)
                pending_TA *= factor_T1
                pending_TB *= factor_T1
            x_TA += pending_TA
            x_TB += pending_TB
        if (BIAS or BEFORE) and not FACTOR:
            x_TA += more_1A
            x_TB += more_1B
        if TOTAL:
            x_TA, x_TB = x_TA.to(total.dtype.element_ty), x_TB.to(total.dtype.element_ty)
            _store(total, x_TA, x_TB, row_T, rows, D, BLOCK_A, BLOCK_B)
            x_TA, x_TB = x_TA.to(tl.float32), x_TB.to(tl.float32)  # rounded, as the backward pass will read it
        mean_T1 = _mean(x_TA, x_TB, D)
        x_TA -= mean_T1
        x_TB -= mean_T1
        if BLOCK_A + BLOCK_B != D:
            x_TB = tl.where((BLOCK_A + tl.arange(0, BLOCK_B) < D)[None, :], x_TB, 0.0)
        scale_T1 = tl.rsqrt(_mean(x_TA * x_TA, x_TB * x_TB, D) + eps)
        x_TA = x_TA * scale_T1 * weight_1A + bias_1A
        x_TB = x_TB * scale_T1 * weight_1B + bias_1B
        _store(out, x_TA, x_TB, row_T, rows, D, BLOCK_A, BLOCK_B)
        if KEEP:
            tl.store(kept + row_T[:, None], mean_T1, (row_T < rows)[:, None])
            tl.store(kept + rows + row_T[:, None], scale_T1, (row_T < rows)[:, None])


@triton.jit(do_not_specialize=["rows", "steps", "tokens"], repr=lambda _: "cerebro_norm_backward")
def backward(
    d_total, d_out, total, weight, kept, factor, d_x, d_pending, sums, rows, steps, tokens, D: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, TOTAL: tl.constexpr, PENDING: tl.constexpr,
    FACTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of both summands, and per program the sums for weight, bias and, with PENDING, pending bias.

    With FACTOR, the gradient of the second summand is another one, ``factor`` times that of x. A program takes a few
    rows at a time and reads ahead. After the last column ``y`` is zero, so sums over columns are right without a mask.
    """
    weight_1A, weight_1B = _load_columns(weight, D, BLOCK_A, BLOCK_B)
    d_weight_TA = tl.zeros((BLOCK_T, BLOCK_A), tl.float32)
    d_weight_TB = tl.zeros((BLOCK_T, BLOCK_B), tl.float32)
    d_bias_TA = tl.zeros((BLOCK_T, BLOCK_A), tl.float32)
    d_bias_TB = tl.zeros((BLOCK_T, BLOCK_B), tl.float32)
    if PENDING:
        d_more_TA = tl.zeros((BLOCK_T, BLOCK_A), tl.float32)
        d_more_TB = tl.zeros((BLOCK_T, BLOCK_B), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        row_T = (tl.program_id(0).to(tl.int64) * steps + step) * BLOCK_T + tl.arange(0, BLOCK_T)
        mean_T1 = tl.load(kept + row_T, row_T < rows, 0.0)[:, None]
        scale_T1 = tl.load(kept + rows + row_T, row_T < rows, 0.0)[:, None]
        x_TA, x_TB = _load(total, row_T, rows, D, BLOCK_A, BLOCK_B)
        y_TA, y_TB = _load(d_out, row_T, rows, D, BLOCK_A, BLOCK_B)
        if TOTAL:
            sum_TA, sum_TB = _load(d_total, row_T, rows, D, BLOCK_A, BLOCK_B)
        else:
            sum_TA, sum_TB = tl.zeros_like(x_TA), tl.zeros_like(x_TB)
        x_TA = (x_TA - mean_T1) * scale_T1
        x_TB = (x_TB - mean_T1) * scale_T1
        d_weight_TA += y_TA * x_TA
        d_weight_TB += y_TB * x_TB
        d_bias_TA += y_TA
        d_bias_TB += y_TB
        y_TA *= weight_1A
        y_TB *= weight_1B
        shift_T1 = _mean(y_TA, y_TB, D)
        slope_T1 = _mean(y_TA * x_TA, y_TB * x_TB, D)
        sum_TA += (y_TA - shift_T1 - x_TA * slope_T1) * scale_T1
        sum_TB += (y_TB - shift_T1 - x_TB * slope_T1) * scale_T1
        _store(d_x, sum_TA, sum_TB, row_T, rows, D, BLOCK_A, BLOCK_B)
        if FACTOR:
            factor_T1 = _load_factors(factor, row_T, rows, tokens)
            sum_TA *= factor_T1
            sum_TB *= factor_T1
            _store(d_pending, sum_TA, sum_TB, row_T, rows, D, BLOCK_A, BLOCK_B)
        if PENDING:
            d_more_TA += sum_TA
            d_more_TB += sum_TB
    sums += tl.program_id(0).to(tl.int64) * ((3 if PENDING else 2) * D)
    _store_columns(sums, d_weight_TA, d_weight_TB, D, BLOCK_A, BLOCK_B)
    _store_columns(sums + D, d_bias_TA, d_bias_TB, D, BLOCK_A, BLOCK_B)
    if PENDING:
        _store_columns(sums + 2 * D, d_more_TA, d_more_TB, D, BLOCK_A, BLOCK_B)
