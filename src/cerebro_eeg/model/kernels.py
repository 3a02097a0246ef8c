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
def _scores(q_GQE, k, hidden, slot_Q, slot_T, SLOTS: tl.constexpr, PACK: tl.constexpr, PRECISION: tl.constexpr):
    """Products of queries and keys, part by part, and -inf where a query must not look."""
    scores = ()
    for i in tl.static_range(len(k)):
        s_GQT = tl.dot(q_GQE, _turn(k[i]), input_precision=PRECISION) + hidden[i]  # where the matrix units start from
        if PACK > 1:
            s_GQT = tl.where((slot_Q // SLOTS)[:, None] == (slot_T[i] // SLOTS)[None, :], s_GQT, float("-inf"))
        scores += (s_GQT,)
    return scores


@triton.jit
def _powers(scores, c, SEEN: tl.constexpr, PRECISION: tl.constexpr):
    """2^(c s) relative to each query's highest, and 1 over their sum; ``SEEN``: every query sees a key.

    In float32, scores are subtracted before they are scaled: differences of large ones are exact and round less so.
    """
    most_GQT = scores[0]
    for i in tl.static_range(1, len(scores)):
        most_GQT = tl.maximum(most_GQT, scores[i])
    most_GQ = tl.max(most_GQT, -1)
    if not SEEN:
        most_GQ = tl.where(most_GQ == float("-inf"), 0.0, most_GQ)
    powers = ()
    for i in tl.static_range(len(scores)):
        if PRECISION == "ieee":
            powers += (tl.exp2((scores[i] - tl.expand_dims(most_GQ, -1)) * c),)
        else:
            powers += (tl.exp2(scores[i] * c - tl.expand_dims(most_GQ * c, -1)),)
    sum_GQ = _sum(powers)
    if not SEEN:
        sum_GQ = tl.where(sum_GQ > 0, sum_GQ, 1.0)
    return powers, 1.0 / sum_GQ


@triton.jit
def _sum(parts):
    """Over the keys of all parts."""
    sum_GQT = parts[0]
    for i in tl.static_range(1, len(parts)):
        sum_GQT += parts[i]
    return tl.sum(sum_GQT, -1)


@triton.jit
def _halves(x, dtype: tl.constexpr):
    """Two numbers of half precision that add up to x: what fits the first without rounding, and the rest.

    Bits are cut off because converting to half precision and back for every number is eight times as slow.
    """
    KEPT: tl.constexpr = -(1 << 16) if dtype == tl.bfloat16 else -(1 << 13)
    high = (x.to(tl.int32, bitcast=True) & KEPT).to(tl.float32, bitcast=True)
    return high.to(dtype), (x - high).to(dtype)


@triton.jit
def _keys(
    bunch, first, real, keys, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    KEYS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """For each part of the tile: its slots, their places, whether there is a token, a real one, and what hides it."""
    PARTS: tl.constexpr = 3 if SLOTS == 48 else 1
    T: tl.constexpr = SLOTS * PACK // PARTS
    slot, place, there, used, hidden = (), (), (), (), ()
    for i in tl.static_range(PARTS):
        slot_T = i * T + tl.arange(0, T)
        row_T, place_T, there_T = _place(bunch, slot_T, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
        real_T = there_T
        if REAL:
            real_T = there_T & (tl.load(real + row_T, there_T, 0) != 0)
        seen_T = real_T
        if KEYS:
            seen_T = real_T & (tl.load(keys + place_T, real_T, 0) != 0)
        if i < PARTS - 1 and not REAL and not KEYS:  # only the last part is ever short of tokens
            hidden_T = tl.zeros((T,), tl.float32)
        else:
            hidden_T = tl.where(seen_T, 0.0, float("-inf"))
        slot += (slot_T,)
        place += (place_T,)
        there += (there_T,)
        used += (real_T,)
        hidden += (hidden_T[None, :],)
    return slot, place, there, used, hidden


@triton.jit
def _queries(
    query, bunch, first, real, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    SLOTS: tl.constexpr, PACK: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """The same of a block of queries, which nothing hides."""
    slot_Q = query + tl.arange(0, Q)
    row_Q, place_Q, there_Q = _place(bunch, slot_Q, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
    real_Q = there_Q
    if REAL:
        real_Q = there_Q & (tl.load(real + row_Q, there_Q, 0) != 0)
    return slot_Q, place_Q, there_Q, real_Q


@triton.jit
def _forward(
    qkv, out, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """softmax(q k / sqrt(E)) v for ``GROUP`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    at = _keys(bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK)
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        k, v = (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
        if BLOCK_Q == SLOTS * PACK:
            for i in tl.static_range(len(at[0])):
                block = _queries(
                    i * at[0][0].shape[0], bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, SLOTS,
                    PACK, at[0][0].shape[0],
                )  # fmt: skip
                _attend(
                    qkv + column, out + column, k, v, block, at, scale, REAL, KEYS, D, E, BLOCK_E, SLOTS, PACK, GROUP,
                    PRECISION,
                )  # fmt: skip
        else:
            for query in range(0, length, BLOCK_Q):
                block = _queries(
                    query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, SLOTS, PACK, BLOCK_Q
                )
                _attend(
                    qkv + column, out + column, k, v, block, at, scale, REAL, KEYS, D, E, BLOCK_E, SLOTS, PACK, GROUP,
                    PRECISION,
                )  # fmt: skip


@triton.jit
def _attend(
    q, out, k, v, block, at, scale, REAL: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of a block of queries."""
    slot_Q, place_Q, there_Q, real_Q = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
    scores = _scores(q_GQE, k, at[4], slot_Q, at[0], SLOTS, PACK, PRECISION)
    powers, share_GQ = _powers(scores, scale * LOG2E, PACK == 1 and not REAL and not KEYS, PRECISION)
    if REAL:
        share_GQ = tl.where(real_Q, share_GQ, 0.0)
    o_GQE = tl.zeros(q_GQE.shape, tl.float32)
    for i in tl.static_range(len(k)):
        if SLOTS <= SHORT and PRECISION != "ieee":
            high_GQT, low_GQT = _halves(powers[i], q_GQE.dtype)
            o_GQE = tl.dot(high_GQT, v[i], o_GQE)
            o_GQE = tl.dot(low_GQT, v[i], o_GQE)
        else:
            o_GQE = tl.dot(powers[i].to(q_GQE.dtype), v[i], o_GQE, input_precision=PRECISION)
    _store(out, o_GQE * tl.expand_dims(share_GQ, -1), place_Q, there_Q, D, E, BLOCK_E, GROUP)


@triton.jit
def _backward(
    qkv, d_out, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, HEADS: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
    GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k and v for ``GROUP`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    at = _keys(bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK)
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        k, v, dk, dv = (), (), (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            dk += (tl.zeros(k[i].shape, tl.float32),)
            dv += (tl.zeros(k[i].shape, tl.float32),)
        if BLOCK_Q == SLOTS * PACK:
            for i in tl.static_range(len(at[0])):
                block = _queries(
                    i * at[0][0].shape[0], bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, SLOTS,
                    PACK, at[0][0].shape[0],
                )  # fmt: skip
                dk, dv = _attend_backward(
                    qkv + column, d_out + column, d_qkv + column, k, v, dk, dv, block, at, scale, REAL, KEYS, D, E,
                    BLOCK_E, SLOTS, PACK, GROUP, PRECISION,
                )  # fmt: skip
        else:
            for query in range(0, length, BLOCK_Q):
                block = _queries(
                    query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, SLOTS, PACK, BLOCK_Q
                )
                dk, dv = _attend_backward(
                    qkv + column, d_out + column, d_qkv + column, k, v, dk, dv, block, at, scale, REAL, KEYS, D, E,
                    BLOCK_E, SLOTS, PACK, GROUP, PRECISION,
                )  # fmt: skip
        for i in tl.static_range(len(at[0])):
            _store(d_qkv + column + D, dk[i] * scale, at[1][i], at[2][i], 3 * D, E, BLOCK_E, GROUP)
            _store(d_qkv + column + 2 * D, dv[i], at[1][i], at[2][i], 3 * D, E, BLOCK_E, GROUP)


@triton.jit
def _attend_backward(
    q, d_out, dq, k, v, dk, dv, block, at, scale, REAL: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries; those of keys and values, with what it adds to them.

    In half precision the gradients of scores go through the matrix units in two parts, rounded and what rounding took
    away; without the second the error is up to 8 times that of the best stock backend.
    """
    slot_Q, place_Q, there_Q, real_Q = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
    do_GQE = _load(d_out, place_Q, real_Q, D, E, BLOCK_E, GROUP)
    scores = _scores(q_GQE, k, at[4], slot_Q, at[0], SLOTS, PACK, PRECISION)
    powers, share_GQ = _powers(scores, scale * LOG2E, PACK == 1 and not REAL and not KEYS, PRECISION)
    weights, slopes, products, new_dk, new_dv = (), (), (), (), ()
    for i in tl.static_range(len(k)):
        p_GQT = powers[i] * tl.expand_dims(share_GQ, -1)
        if SLOTS <= SHORT and PRECISION != "ieee":
            high_GQT, low_GQT = _halves(p_GQT, q_GQE.dtype)
            dv_GTE = tl.dot(_turn(high_GQT), do_GQE, dv[i])
            new_dv += (tl.dot(_turn(low_GQT), do_GQE, dv_GTE),)
        else:
            new_dv += (tl.dot(_turn(p_GQT.to(q_GQE.dtype)), do_GQE, dv[i], input_precision=PRECISION),)
        dp_GQT = tl.dot(do_GQE, _turn(v[i]), input_precision=PRECISION)
        weights += (p_GQT,)
        slopes += (dp_GQT,)
        products += (p_GQT * dp_GQT,)
    mean_GQ = _sum(products)
    dq_GQE = tl.zeros(q_GQE.shape, tl.float32)
    for i in tl.static_range(len(k)):
        ds_GQT = weights[i] * (slopes[i] - tl.expand_dims(mean_GQ, -1))
        if PRECISION != "ieee":
            high_GQT, low_GQT = _halves(ds_GQT, q_GQE.dtype)
            dk_GTE = tl.dot(_turn(high_GQT), q_GQE, dk[i])
            new_dk += (tl.dot(_turn(low_GQT), q_GQE, dk_GTE),)
            dq_GQE = tl.dot(high_GQT, k[i], dq_GQE)
            dq_GQE = tl.dot(low_GQT, k[i], dq_GQE)
        else:
            new_dk += (tl.dot(_turn(ds_GQT), q_GQE, dk[i], input_precision=PRECISION),)
            dq_GQE = tl.dot(ds_GQT, k[i], dq_GQE, input_precision=PRECISION)
    _store(dq, dq_GQE * scale, place_Q, there_Q, 3 * D, E, BLOCK_E, GROUP)
    return new_dk, new_dv


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
