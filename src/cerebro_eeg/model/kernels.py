# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index, attr-defined"
"""Triton kernels of short-axis attention: one axis of the token grid stays on chip, forward and backward.

A *sequence* is what attends to itself: a row of N tokens (along time), or the rows of a window at one patch (across
channels). A program takes ``GROUP`` heads of a sequence and keeps all their keys and values on chip, ``TURNS`` times,
and reads the next heads meanwhile; where a sequence is shorter than the smallest matrix tile, ``PACK`` neighbouring
sequences share a tile and a mask keeps them apart.
Packed q, k, v are read in place and every token is read and written once, so nothing is folded, copied or padded in
memory; the backward pass computes the scores again instead of keeping them. No atomics: the same inputs give the same
bits. ``short_axis.py`` chooses the constants and launches.

Legend: **G** heads of a program (an axis that is not there for one head, whose rows the warps then share), **T** slots
of a tile (keys), **Q** slots of a block of queries, **E** head dimension.
"""

import triton
import triton.language as tl

COUNTS = ["tokens", "width", "sequences"]  # no code of its own for a number that is 1 or divides by 16
LOG2E = tl.constexpr(1.4426950408889634)
SHORT = tl.constexpr(8)  # tokens of an axis whose weights are few enough for their rounding to be seen


@triton.jit
def _place(
    bunch, slot_S, first, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, SLOTS: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Row and place of every slot's token, in 64 bit, and whether there is a token; for a bunch of PACK sequences."""
    at_S = slot_S % SLOTS
    part_S = slot_S // SLOTS
    if ACROSS:
        bunches = (tokens + PACK - 1) // PACK
        window = bunch // bunches
        token_S = bunch % bunches * PACK + part_S
        if RAGGED:
            start = tl.load(first + window)
            count = tl.load(first + window + 1) - start
        else:
            start = window.to(tl.int64) * width
            count = width
        row_S = start + at_S
        there_S = (at_S < count) & (token_S < tokens)
    else:
        row_S = bunch.to(tl.int64) * PACK + part_S
        token_S = at_S
        there_S = (row_S < sequences) & (at_S < tokens)
    return row_S, row_S * tokens + token_S, there_S


@triton.jit
def _load(start, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr):
    """The tokens of all slots, (G, S, E); heads that lie side by side are read in one piece."""
    x_SE = tl.arange(0, GROUP * BLOCK_E)[None, :]
    x = tl.load(start + (place_S * D)[:, None] + x_SE, there_S[:, None] & (x_SE < GROUP * E), 0.0)
    if GROUP > 1:
        x = tl.permute(tl.reshape(x, (place_S.shape[0], GROUP, BLOCK_E)), (1, 0, 2))
    return x


@triton.jit
def _store(start, x, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr):
    """The reverse of _load."""
    x_SE = tl.arange(0, GROUP * BLOCK_E)[None, :]
    x = x.to(start.dtype.element_ty)
    if GROUP > 1:
        x = tl.reshape(tl.permute(x, (1, 0, 2)), (place_S.shape[0], GROUP * BLOCK_E))
    tl.store(start + (place_S * D)[:, None] + x_SE, x, there_S[:, None] & (x_SE < GROUP * E))


@triton.jit
def _turn(x):
    """Swap the last two axes."""
    return tl.trans(x) if len(x.shape) == 2 else tl.trans(x, 0, 2, 1)


@triton.jit
def _powers(
    scores, seen_T, slot_T, slot_Q, c, axis: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """2^(c s) relative to each query's highest, 0 where it must not look; ``axis`` is that of the queries.

    In float32, scores are subtracted before they are scaled: differences of large ones are exact and round less so.
    """
    late: tl.constexpr = PRECISION == "ieee"
    scores = scores * (1.0 if late else c) + tl.expand_dims(tl.where(seen_T, 0.0, float("-inf")), axis)
    if PACK > 1:
        same = tl.expand_dims(slot_T // SLOTS, axis) == tl.expand_dims(slot_Q // SLOTS, -3 - axis)
        scores = tl.where(same, scores, float("-inf"))
    most_GQ = tl.max(scores, -3 - axis)
    most_GQ = tl.where(most_GQ == float("-inf"), 0.0, most_GQ)
    return tl.exp2((scores - tl.expand_dims(most_GQ, -3 - axis)) * (c if late else 1.0))


@triton.jit
def _forward(
    qkv, out, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """softmax(q k / sqrt(E)) v for ``GROUP`` heads of a bunch of sequences."""
    T: tl.constexpr = SLOTS * PACK
    D: tl.constexpr = HEADS * E
    length = min(width, T) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    slot_T = tl.arange(0, T)
    row_T, place_T, there_T = _place(bunch, slot_T, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
    if REAL:
        there_T = there_T & (tl.load(real + row_T, there_T, 0) != 0)
    seen_T = there_T
    if KEYS:
        seen_T = there_T & (tl.load(keys + place_T, there_T, 0) != 0)
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        q, k, v = qkv + column, qkv + column + D, qkv + column + 2 * D
        k_GTE = _load(k, place_T, there_T, 3 * D, E, BLOCK_E, GROUP)
        v_GTE = _load(v, place_T, there_T, 3 * D, E, BLOCK_E, GROUP)
        for query in range(0, T if BLOCK_Q == T else length, BLOCK_Q):
            slot_Q = query + tl.arange(0, BLOCK_Q)
            row_Q, place_Q, there_Q = _place(
                bunch, slot_Q, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK
            )
            real_Q = there_Q
            if REAL:
                real_Q = there_Q & (tl.load(real + row_Q, there_Q, 0) != 0)
            q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
            s_GQT = tl.dot(q_GQE, _turn(k_GTE), input_precision=PRECISION)
            p_GQT = _powers(s_GQT, seen_T, slot_T, slot_Q, scale * LOG2E, -2, SLOTS, PACK, PRECISION)
            sum_GQ = tl.sum(p_GQT, -1)
            share_GQ = 1.0 / tl.where(sum_GQ > 0, sum_GQ, 1.0)
            if REAL:
                share_GQ = tl.where(real_Q, share_GQ, 0.0)
            half_GQT = p_GQT.to(v_GTE.dtype)
            o_GQE = tl.dot(half_GQT, v_GTE, input_precision=PRECISION)
            if SLOTS <= SHORT and PRECISION != "ieee":
                rest_GQT = (p_GQT - half_GQT.to(tl.float32)).to(v_GTE.dtype)
                o_GQE = tl.dot(rest_GQT, v_GTE, o_GQE, input_precision=PRECISION)
            o_GQE *= tl.expand_dims(share_GQ, -1)
            _store(out + column, o_GQE, place_Q, there_Q, D, E, BLOCK_E, GROUP)


@triton.jit
def _backward(
    qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k and v for ``GROUP`` heads of a bunch of sequences.

    Scores stand with keys first: so two of the three products that need them take them as they come out of the matrix
    units, and only one needs them turned. In half precision their gradients go through the matrix units in two parts,
    rounded and what rounding took away; without the second the error is up to 8 times that of the best stock backend.
    """
    T: tl.constexpr = SLOTS * PACK
    D: tl.constexpr = HEADS * E
    length = min(width, T) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    slot_T = tl.arange(0, T)
    row_T, place_T, there_T = _place(bunch, slot_T, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
    real_T = there_T
    if REAL:
        real_T = there_T & (tl.load(real + row_T, there_T, 0) != 0)
    seen_T = real_T
    if KEYS:
        seen_T = real_T & (tl.load(keys + place_T, real_T, 0) != 0)
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        q, k, v = qkv + column, qkv + column + D, qkv + column + 2 * D
        k_GTE = _load(k, place_T, real_T, 3 * D, E, BLOCK_E, GROUP)
        v_GTE = _load(v, place_T, real_T, 3 * D, E, BLOCK_E, GROUP)
        dk_GTE = tl.zeros(k_GTE.shape, tl.float32)
        dv_GTE = tl.zeros(k_GTE.shape, tl.float32)
        for query in range(0, T if BLOCK_Q == T else length, BLOCK_Q):
            slot_Q = query + tl.arange(0, BLOCK_Q)
            row_Q, place_Q, there_Q = _place(
                bunch, slot_Q, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK
            )
            real_Q = there_Q
            if REAL:
                real_Q = there_Q & (tl.load(real + row_Q, there_Q, 0) != 0)
            q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
            do_GQE = _load(d_out + column, place_Q, real_Q, D, E, BLOCK_E, GROUP)
            s_GTQ = tl.dot(k_GTE, _turn(q_GQE), input_precision=PRECISION)
            p_GTQ = _powers(s_GTQ, seen_T, slot_T, slot_Q, scale * LOG2E, -1, SLOTS, PACK, PRECISION)
            sum_GQ = tl.sum(p_GTQ, -2)
            p_GTQ = p_GTQ * tl.expand_dims(1.0 / tl.where(sum_GQ > 0, sum_GQ, 1.0), -2)
            half_GTQ = p_GTQ.to(do_GQE.dtype)
            dv_GTE = tl.dot(half_GTQ, do_GQE, dv_GTE, input_precision=PRECISION)
            if SLOTS <= SHORT and PRECISION != "ieee":
                rest_GTQ = (p_GTQ - half_GTQ.to(tl.float32)).to(do_GQE.dtype)
                dv_GTE = tl.dot(rest_GTQ, do_GQE, dv_GTE, input_precision=PRECISION)
            dp_GTQ = tl.dot(v_GTE, _turn(do_GQE), input_precision=PRECISION)
            mean_GQ = tl.sum(p_GTQ * dp_GTQ, -2)
            full_GTQ = p_GTQ * (dp_GTQ - tl.expand_dims(mean_GQ, -2))
            half_GTQ = full_GTQ.to(k_GTE.dtype)
            dk_GTE = tl.dot(half_GTQ, q_GQE, dk_GTE, input_precision=PRECISION)
            dq_GQE = tl.dot(_turn(half_GTQ), k_GTE, input_precision=PRECISION)
            if PRECISION != "ieee":
                rest_GTQ = (full_GTQ - half_GTQ.to(tl.float32)).to(k_GTE.dtype)
                dk_GTE = tl.dot(rest_GTQ, q_GQE, dk_GTE, input_precision=PRECISION)
                dq_GQE = tl.dot(_turn(rest_GTQ), k_GTE, dq_GQE, input_precision=PRECISION)
            dq_GQE *= scale
            _store(d_qkv + column, dq_GQE, place_Q, there_Q, 3 * D, E, BLOCK_E, GROUP)
        _store(d_qkv + column + D, dk_GTE * scale, place_T, there_T, 3 * D, E, BLOCK_E, GROUP)
        _store(d_qkv + column + 2 * D, dv_GTE, place_T, there_T, 3 * D, E, BLOCK_E, GROUP)


@triton.jit(do_not_specialize=COUNTS)
def forward(
    qkv, out, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention; a window of at most half the widest one's tile takes half of it."""
    if RAGGED and SLOTS > 16:  # then a tile holds one sequence
        window = tl.program_id(0) // (HEADS // (GROUP * TURNS)) // tokens
        if tl.load(first + window + 1) - tl.load(first + window) <= SLOTS // 2:
            _forward(
                qkv, out, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, HEADS,
                E, BLOCK_E, SLOTS // 2, PACK, min(BLOCK_Q, SLOTS // 2), GROUP, TURNS, PRECISION,
            )  # fmt: skip
        else:
            _forward(
                qkv, out, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, HEADS,
                E, BLOCK_E, SLOTS, PACK, BLOCK_Q, GROUP, TURNS, PRECISION,
            )  # fmt: skip
    else:
        _forward(
            qkv, out, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, HEADS, E,
            BLOCK_E, SLOTS, PACK, BLOCK_Q, GROUP, TURNS, PRECISION,
        )  # fmt: skip


@triton.jit(do_not_specialize=COUNTS)
def backward(
    qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Its gradients; tiles as in the forward pass."""
    if RAGGED and SLOTS > 16:  # then a tile holds one sequence
        window = tl.program_id(0) // (HEADS // (GROUP * TURNS)) // tokens
        if tl.load(first + window + 1) - tl.load(first + window) <= SLOTS // 2:
            _backward(
                qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                HEADS, E, BLOCK_E, SLOTS // 2, PACK, min(BLOCK_Q, SLOTS // 2), GROUP, TURNS, PRECISION,
            )  # fmt: skip
        else:
            _backward(
                qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                HEADS, E, BLOCK_E, SLOTS, PACK, BLOCK_Q, GROUP, TURNS, PRECISION,
            )  # fmt: skip
    else:
        _backward(
            qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, HEADS, E,
            BLOCK_E, SLOTS, PACK, BLOCK_Q, GROUP, TURNS, PRECISION,
        )  # fmt: skip
