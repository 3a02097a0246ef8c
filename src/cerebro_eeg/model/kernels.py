# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index, attr-defined, assignment"
"""Triton kernels of short-axis attention: one axis of the token grid stays on chip, forward and backward.

A *sequence* is what attends to itself: a row of N tokens (along time), or the rows of a window at one patch (across
channels). A program takes ``GROUP`` heads of a sequence and keeps all their keys and values on chip, ``TURNS`` times,
and reads the next heads meanwhile; where a sequence is shorter than the smallest matrix tile, ``PACK`` neighbouring
sequences share a tile and a mask keeps them apart. The sides of what lies on chip are powers of two, so the keys of a
tile may lie in several *parts* of ``PART`` slots: three of 16 make a tile of 48. Tuples hold what there is for each.
Packed q, k, v are read in place and every token is read and written once, so nothing is folded, copied or padded in
memory. The backward pass computes the scores again instead of keeping them; what may be kept is the logarithm (to the
base 2) of each query's sum of exponentials, which makes its weights 2^(c q k - log). No atomics: the same inputs give
the same bits. ``short_axis.py`` chooses the constants and launches.

Legend: **G** heads of a program (an axis that is not there for one head, whose rows the warps then share), **T** slots
of a part (keys), **Q** slots of a block of queries, **E** head dimension.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

COUNTS = ["tokens", "width", "sequences"]  # no code of its own for a number that is 1 or divides by 16
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LOG2E = tl.constexpr(1.4426950408889634)
SHORT = tl.constexpr(8)  # tokens of an axis whose weights are few enough for their rounding to be seen


@triton.jit
def _sequence(bunch, first, tokens, width, ACROSS: tl.constexpr, RAGGED: tl.constexpr, PACK: tl.constexpr):
    """Of the first sequence of a bunch: its row, its token where it lies across rows, and how many tokens it has."""
    row, token, length = bunch.to(tl.int64) * PACK, 0, tokens
    if ACROSS:
        bunches = (tokens + PACK - 1) // PACK
        window = bunch // bunches
        token = bunch % bunches * PACK
        row, length = window.to(tl.int64) * width, width
        if RAGGED:
            row = tl.load(first + window)
            length = (tl.load(first + window + 1) - row).to(tl.int32)
    return row, token, length


@triton.jit
def _place(
    bunch, slot_S, first, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, SLOTS: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Row and place of every slot's token, in 64 bit, and whether there is a token; for a bunch of PACK sequences."""
    at_S, part_S = slot_S, tl.zeros_like(slot_S)
    if PACK > 1:
        at_S, part_S = slot_S % SLOTS, slot_S // SLOTS
    row, token, length = _sequence(bunch, first, tokens, width, ACROSS, RAGGED, PACK)
    if ACROSS:
        row_S, token_S = row + at_S, token + part_S
        there_S = (at_S < length) & (token_S < tokens)
    else:
        row_S, token_S = row + part_S, at_S
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
def _store(
    start, x, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    """The reverse of _load; a thread writes ``STORED`` numbers at once, as many as it can where that is 0.

    Two lie side by side after a product, four are swapped within a warp; eight pass through shared memory.
    """
    x_SE = tl.arange(0, GROUP * BLOCK_E)[None, :]
    if STORED > 0:
        x_SE = tl.max_contiguous(x_SE, [1, STORED])
    x = x.to(start.dtype.element_ty)
    if GROUP > 1:
        x = tl.reshape(tl.permute(x, (1, 0, 2)), (place_S.shape[0], GROUP * BLOCK_E))
    tl.store(start + (place_S * D)[:, None] + x_SE, x, there_S[:, None] & (x_SE < GROUP * E))


@triton.jit
def _turn(x):
    """Swap the last two axes."""
    return tl.trans(x) if len(x.shape) == 2 else tl.trans(x, 0, 2, 1)


@triton.jit
def _first(x, AXIS: tl.constexpr, WANTED: tl.constexpr):
    """Scores whose keys lie along ``AXIS``, with keys along the one that is wanted."""
    return x if AXIS == WANTED else _turn(x)


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """a b. In float32, sums of 16 products each are added up: one long sum would round more often."""
    ROWS: tl.constexpr = a.shape[0]
    INNER: tl.constexpr = b.shape[0]
    if PRECISION == "ieee" and INNER > 16:
        pieces_a = tl.permute(tl.reshape(a, (ROWS, INNER // 16, 16)), (1, 0, 2))
        pieces_b = tl.reshape(b, (INNER // 16, 16, b.shape[1]))
        return tl.sum(tl.dot(pieces_a, pieces_b, input_precision=PRECISION), 0)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _products(queries, keys, AXIS: tl.constexpr, PRECISION: tl.constexpr):
    """Of every query and every key, which lie along ``AXIS``."""
    if AXIS == -1:
        return _dot(queries, _turn(keys), PRECISION)
    else:
        return _dot(keys, _turn(queries), PRECISION)


@triton.jit
def _more(sums, a, b, PRECISION: tl.constexpr):
    """Sums and a b."""
    if PRECISION == "ieee":
        return sums + _dot(a, b, PRECISION)
    else:
        return tl.dot(a, b, sums)


@triton.jit
def _sum(parts, AXIS: tl.constexpr):
    """Over the keys of all parts."""
    whole = parts[0]
    for i in tl.static_range(1, len(parts)):
        whole += parts[i]
    return tl.sum(whole, AXIS)


@triton.jit
def _scores(
    q_GQE, k, hidden, slot_Q, slot, AXIS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """q k, -infinity where a query must not look, part by part."""
    scores = ()
    for i in tl.static_range(len(k)):
        s = _products(q_GQE, k[i], AXIS, PRECISION) + tl.expand_dims(hidden[i], -3 - AXIS)
        if PACK > 1:
            same = tl.expand_dims(slot_Q // SLOTS, AXIS) == tl.expand_dims(slot[i] // SLOTS, -3 - AXIS)
            s = tl.where(same, s, float("-inf"))
        scores += (s,)
    return scores


@triton.jit
def _logs_at(logs, head, log_Q, length, GROUP: tl.constexpr):
    """Where the logarithms of a block's queries are, (G, Q)."""
    at = logs + head * length + log_Q
    if GROUP > 1:
        at = at[None, :] + (tl.arange(0, GROUP) * length)[:, None]
    return at


@triton.jit
def _log2(x):
    """By the GPU's instruction, to 2^-22; the interpreter does not know it."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return libdevice.fast_log2f(x)


@triton.jit
def _powers(
    q_GQE, k, hidden, slot_Q, slot, c, AXIS: tl.constexpr, SEEN: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """2^(c q k) relative to each query's highest, 0 where it must not look, part by part; 1 over their sum; its log.

    ``SEEN``: every query sees a key. In float32, scores are subtracted before they are scaled: differences of large
    ones are exact and round less so.
    """
    scores, powers = _scores(q_GQE, k, hidden, slot_Q, slot, AXIS, SLOTS, PACK, PRECISION), ()
    highest = scores[0]
    for i in tl.static_range(1, len(k)):
        highest = tl.maximum(highest, scores[i])
    most_GQ = tl.max(highest, AXIS)
    if not SEEN:
        most_GQ = tl.where(most_GQ == float("-inf"), 0.0, most_GQ)
    for i in tl.static_range(len(k)):
        if PRECISION == "ieee":
            powers += (tl.exp2((scores[i] - tl.expand_dims(most_GQ, AXIS)) * c),)
        else:
            powers += (tl.exp2(scores[i] * c - tl.expand_dims(most_GQ * c, AXIS)),)
    sum_GQ = _sum(powers, AXIS)
    if not SEEN:
        sum_GQ = tl.where(sum_GQ > 0, sum_GQ, 1.0)
    share_GQ = tl.div_rn(1.0, sum_GQ) if PRECISION == "ieee" else 1.0 / sum_GQ
    return powers, share_GQ, most_GQ * c + _log2(sum_GQ)


@triton.jit
def _halves(x, dtype: tl.constexpr):
    """Two numbers of half precision that add up to x: what fits the first without rounding, and the rest.

    Bits are cut off because a number that is rounded and read again takes a conversion of its own, at the rate of an
    exponential; cut ones are converted in pairs.
    """
    KEPT: tl.constexpr = -(1 << 16) if dtype == tl.bfloat16 else -(1 << 13)
    high = (x.to(tl.int32, bitcast=True) & KEPT).to(tl.float32, bitcast=True)
    return high.to(dtype), (x - high).to(dtype)


@triton.jit
def _keys(
    bunch, first, real, keys, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    KEYS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, PART: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """For each part of the tile: its slots, their places, whether there is a token, a real one, and what hides it.

    ``LEAST`` tokens are there for certain, which saves a mask; 0 where there may be none.
    """
    slot, place, there, used, hidden = (), (), (), (), ()
    for i in tl.static_range(SLOTS * PACK // PART):
        slot_T = i * PART + tl.arange(0, PART)
        row_T, place_T, there_T = _place(bunch, slot_T, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
        real_T = there_T
        if REAL:
            real_T = there_T & (tl.load(real + row_T, there_T, 0) != 0)
        seen_T = real_T
        if KEYS:
            seen_T = real_T & (tl.load(keys + place_T, real_T, 0) != 0)
        if (i + 1) * PART <= LEAST and not REAL and not KEYS:
            hidden_T = tl.zeros((PART,), tl.float32)
        else:
            hidden_T = tl.where(seen_T, 0.0, float("-inf"))
        slot += (slot_T,)
        place += (place_T,)
        there += (there_T,)
        used += (real_T,)
        hidden += (hidden_T,)
    return slot, place, there, used, hidden


@triton.jit
def _queries(
    query, bunch, first, real, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """The same of a block of queries, which nothing hides; and where their logarithms are: those of a head together."""
    slot_Q = query + tl.arange(0, Q)
    row_Q, place_Q, there_Q = _place(bunch, slot_Q, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK)
    real_Q = there_Q
    if REAL:
        real_Q = there_Q & (tl.load(real + row_Q, there_Q, 0) != 0)
    row, token, length = _sequence(bunch, first, tokens, width, ACROSS, RAGGED, PACK)
    log_Q = (row * tokens + token * length) * HEADS + (slot_Q // SLOTS * (HEADS * length) + slot_Q % SLOTS)
    return slot_Q, place_Q, there_Q, real_Q, log_Q, length


@triton.jit
def _blocks(
    bunch, first, real, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Of all blocks of queries in a tile; the last one may be smaller."""
    blocks = ()
    for query in tl.static_range(0, SLOTS * PACK, BLOCK_Q):
        block = _queries(
            query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK,
            min(BLOCK_Q, SLOTS * PACK - query),
        )  # fmt: skip
        blocks += (block,)
    return blocks


@triton.jit
def _forward(
    qkv, out, logs, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    """softmax(q k / sqrt(E)) v for ``GROUP`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    SEEN: tl.constexpr = LEAST > 0 and not REAL and not KEYS
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    at = _keys(bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK, PART, LEAST)
    WRITTEN_OUT: tl.constexpr = SLOTS <= 64 and PRECISION != "ieee"  # few blocks of queries: all are read ahead
    if WRITTEN_OUT:
        blocks = _blocks(
            bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK, BLOCK_Q
        )
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        k, v = (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
        if WRITTEN_OUT:
            for i in tl.static_range(len(blocks)):
                _attend(
                    qkv + column, out + column, logs, column // E, k, v, blocks[i], at, scale, REAL, KEEP, SEEN, D, E,
                    BLOCK_E, SLOTS, PACK, GROUP, PRECISION,
                )  # fmt: skip
        else:
            for query in range(0, SLOTS * PACK if BLOCK_Q == SLOTS * PACK else length, BLOCK_Q):
                block = _queries(
                    query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK,
                    BLOCK_Q,
                )  # fmt: skip
                _attend(
                    qkv + column, out + column, logs, column // E, k, v, block, at, scale, REAL, KEEP, SEEN, D, E,
                    BLOCK_E, SLOTS, PACK, GROUP, PRECISION,
                )  # fmt: skip


@triton.jit
def _attend(
    q, out, logs, head, k, v, block, at, scale, REAL: tl.constexpr, KEEP: tl.constexpr, SEEN: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    GROUP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of a block of queries."""
    slot_Q, place_Q, there_Q, real_Q, log_Q, length = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
    powers, share_GQ, log_GQ = _powers(q_GQE, k, at[4], slot_Q, at[0], scale * LOG2E, -1, SEEN, SLOTS, PACK, PRECISION)
    if KEEP:
        tl.store(_logs_at(logs, head, log_Q, length, GROUP), log_GQ, there_Q)
    if REAL:
        share_GQ = tl.where(real_Q, share_GQ, 0.0)
    o_GQE = tl.zeros(q_GQE.shape, tl.float32)
    for i in tl.static_range(len(k)):
        if SLOTS <= SHORT and PRECISION != "ieee":
            high_GQT, low_GQT = _halves(powers[i], q_GQE.dtype)
            o_GQE = tl.dot(high_GQT, v[i], o_GQE)
            o_GQE = tl.dot(low_GQT, v[i], o_GQE)
        else:
            o_GQE = _more(o_GQE, powers[i].to(q_GQE.dtype), v[i], PRECISION)
    _store(out, o_GQE * tl.expand_dims(share_GQ, -1), place_Q, there_Q, D, E, BLOCK_E, GROUP, 0)


@triton.jit
def _backward(
    qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr, KEYS_FIRST: tl.constexpr,
    STORED: tl.constexpr, PRECISION: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k and v for ``GROUP`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    SEEN: tl.constexpr = LEAST > 0 and not REAL and not KEYS
    EARLY: tl.constexpr = qkv.dtype.element_ty == tl.bfloat16  # fp16 would lose small gradients
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    at = _keys(bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK, PART, LEAST)
    WRITTEN_OUT: tl.constexpr = SLOTS <= 64 and PRECISION != "ieee"  # few blocks of queries: all are read ahead
    if WRITTEN_OUT:
        blocks = _blocks(
            bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK, BLOCK_Q
        )
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        k, v, dk, dv = (), (), (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, GROUP),)
            dk += (tl.zeros(k[i].shape, tl.float32),)
            dv += (tl.zeros(k[i].shape, tl.float32),)
        if WRITTEN_OUT:
            for i in tl.static_range(len(blocks)):
                dk, dv = _attend_backward(
                    qkv + column, d_out + column, logs, column // E, d_qkv + column, k, v, dk, dv, blocks[i], at, scale,
                    KEEP, SEEN, D, E, BLOCK_E, SLOTS, PACK, GROUP, KEYS_FIRST, EARLY, STORED, PRECISION,
                )  # fmt: skip
        else:
            for query in range(0, SLOTS * PACK if BLOCK_Q == SLOTS * PACK else length, BLOCK_Q):
                block = _queries(
                    query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK,
                    BLOCK_Q,
                )  # fmt: skip
                dk, dv = _attend_backward(
                    qkv + column, d_out + column, logs, column // E, d_qkv + column, k, v, dk, dv, block, at, scale,
                    KEEP, SEEN, D, E, BLOCK_E, SLOTS, PACK, GROUP, KEYS_FIRST, EARLY, STORED, PRECISION,
                )  # fmt: skip
        late = 1.0 if EARLY else scale
        for i in tl.static_range(len(at[0])):
            _store(d_qkv + column + D, dk[i] * late, at[1][i], at[2][i], 3 * D, E, BLOCK_E, GROUP, STORED)
            _store(d_qkv + column + 2 * D, dv[i], at[1][i], at[2][i], 3 * D, E, BLOCK_E, GROUP, STORED)


@triton.jit
def _attend_backward(
    q, d_out, logs, head, dq, k, v, dk, dv, block, at, scale, KEEP: tl.constexpr, SEEN: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, GROUP: tl.constexpr,
    KEYS_FIRST: tl.constexpr, EARLY: tl.constexpr, STORED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries; those of keys and values, with what it adds to them.

    In half precision the gradients of scores go through the matrix units in two halves, cut and what was cut off;
    without the second the error is up to 8 times that of the best stock backend. ``EARLY``: they are scaled already.
    """
    slot_Q, place_Q, there_Q, real_Q, log_Q, length = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, GROUP)
    do_GQE = _load(d_out, place_Q, real_Q, D, E, BLOCK_E, GROUP)
    AXIS: tl.constexpr = -2 if KEYS_FIRST else -1
    c = scale * LOG2E
    if KEEP:
        scores = _scores(q_GQE, k, at[4], slot_Q, at[0], AXIS, SLOTS, PACK, PRECISION)
        log_GQ = tl.load(_logs_at(logs, head, log_Q, length, GROUP), there_Q, 0.0)
    else:
        powers, share_GQ, _ = _powers(q_GQE, k, at[4], slot_Q, at[0], c, AXIS, SEEN, SLOTS, PACK, PRECISION)
    weights, slopes, means, new_dk, new_dv = (), (), (), (), ()
    for i in tl.static_range(len(k)):
        if KEEP:
            p = tl.exp2(scores[i] * c - tl.expand_dims(log_GQ, AXIS))
        else:
            p = powers[i] * tl.expand_dims(share_GQ, AXIS)
        dp = _products(do_GQE, v[i], AXIS, PRECISION)
        if SLOTS <= SHORT and PRECISION != "ieee":
            high, low = _halves(p, q_GQE.dtype)
            dv_GTE = tl.dot(_first(high, AXIS, -2), do_GQE, dv[i])
            new_dv += (tl.dot(_first(low, AXIS, -2), do_GQE, dv_GTE),)
        else:
            new_dv += (_more(dv[i], _first(p.to(q_GQE.dtype), AXIS, -2), do_GQE, PRECISION),)
        weights += (p,)
        slopes += (dp,)
        means += (p * dp,)
    mean_GQ = _sum(means, AXIS)
    dq_GQE = tl.zeros(q_GQE.shape, tl.float32)
    for i in tl.static_range(len(k)):
        if PRECISION == "ieee":
            ds = weights[i] * (slopes[i] - tl.expand_dims(mean_GQ, AXIS))
            new_dk += (_more(dk[i], _first(ds, AXIS, -2), q_GQE, PRECISION),)
            dq_GQE = _more(dq_GQE, _first(ds, AXIS, -1), k[i], PRECISION)
        else:
            early = scale if EARLY else 1.0
            ds = weights[i] * (slopes[i] * early - tl.expand_dims(mean_GQ * early, AXIS))
            high, low = _halves(ds, q_GQE.dtype)
            dk_GTE = tl.dot(_first(high, AXIS, -2), q_GQE, dk[i])
            new_dk += (tl.dot(_first(low, AXIS, -2), q_GQE, dk_GTE),)
            dq_GQE = tl.dot(_first(high, AXIS, -1), k[i], dq_GQE)
            dq_GQE = tl.dot(_first(low, AXIS, -1), k[i], dq_GQE)
    _store(dq, dq_GQE * (1.0 if EARLY else scale), place_Q, there_Q, 3 * D, E, BLOCK_E, GROUP, STORED)
    return new_dk, new_dv


@triton.jit(do_not_specialize=COUNTS)
def forward(
    qkv, out, logs, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention; in a mixture of windows, those that fit a smaller tile take it."""
    LESS: tl.constexpr = 32 if SLOTS == 48 else SLOTS // 2  # a sequence is longer, or would have a smaller tile
    LESS_Q: tl.constexpr = LESS if SLOTS == 48 else min(BLOCK_Q, LESS)
    if RAGGED and SLOTS > 16:  # then a tile holds one sequence
        window = tl.program_id(0) // (HEADS // (GROUP * TURNS)) // tokens
        if tl.load(first + window + 1) - tl.load(first + window) <= LESS:
            _forward(
                qkv, out, logs, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, KEEP,
                HEADS, E, BLOCK_E, LESS, PACK, LESS, LESS_Q, GROUP, TURNS, PRECISION, 0,
            )  # fmt: skip
        else:
            _forward(
                qkv, out, logs, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, KEEP,
                HEADS, E, BLOCK_E, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, PRECISION, LESS,
            )  # fmt: skip
    else:
        _forward(
            qkv, out, logs, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS, KEEP,
            HEADS, E, BLOCK_E, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, PRECISION, 0 if RAGGED or PACK > 1 else LESS,
        )  # fmt: skip


@triton.jit(do_not_specialize=COUNTS)
def backward(
    qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr, KEYS_FIRST: tl.constexpr,
    STORED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Its gradients; tiles as in the forward pass."""
    LESS: tl.constexpr = 32 if SLOTS == 48 else SLOTS // 2  # a sequence is longer, or would have a smaller tile
    LESS_Q: tl.constexpr = LESS if SLOTS == 48 else min(BLOCK_Q, LESS)
    if RAGGED and SLOTS > 16:  # then a tile holds one sequence
        window = tl.program_id(0) // (HEADS // (GROUP * TURNS)) // tokens
        if tl.load(first + window + 1) - tl.load(first + window) <= LESS:
            _backward(
                qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                KEEP, HEADS, E, BLOCK_E, LESS, PACK, LESS, LESS_Q, GROUP, TURNS, KEYS_FIRST, STORED, PRECISION, 0,
            )  # fmt: skip
        else:
            _backward(
                qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                KEEP, HEADS, E, BLOCK_E, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, KEYS_FIRST, STORED,
                PRECISION, LESS,
            )  # fmt: skip
    else:
        _backward(
            qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
            KEEP, HEADS, E, BLOCK_E, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, KEYS_FIRST, STORED, PRECISION,
            0 if RAGGED or PACK > 1 else LESS,
        )  # fmt: skip
