# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index, attr-defined, assignment"
"""Triton kernels of attention along a short axis, forward and backward: all keys of a head stay on chip.

A *sequence* is a set of tokens that attend to each other: a row of N tokens (along time), or the rows of a window at
one patch (across channels). A program keeps all keys and values of ``GROUP`` heads of a sequence on chip. It does so
``TURNS`` times, and reads the next heads meanwhile. If sequences are shorter than the smallest matrix tile, a tile has
``PACK`` neighbouring sequences, a *bunch*, and a mask separates them.

The sides of blocks are powers of two. The keys of a tile may therefore lie in several *parts* of ``PART`` slots: three
parts of 16 make a tile of 48. In the backward pass the columns of a head may lie in two *pieces*: 48 is 32 and 16.
Tuples have one entry per part or per piece. Packed q, k, v are read in place, and every token is read and written once.

The backward pass computes the scores again. The forward pass may keep only the logarithm (to the base 2) of each
query's sum of exponentials, which makes the weights 2^(c q k - log). There are no atomic additions, so equal inputs
give equal bits. ``fast/attention.py`` chooses the constants and launches the kernels.

Triton's interpreter accepts code that its compiler refuses, such as a function with results of two types.
``test_every_kind_of_tile_compiles`` guards against that.

Legend: **G** heads of a program (no such axis for one head, whose rows the warps then share), **T** slots of a part
(keys), **Q** slots of a block of queries, **S** slots of either, **E** head dimension.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

COUNTS = ["tokens", "width", "sequences"]  # the kernels are not compiled again for a number that is 1 or divides by 16
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LOG2E = tl.constexpr(1.4426950408889634)
SHORT = tl.constexpr(8)  # up to this length the rounding of the few weights would be visible in the result


def _turning(registers: int) -> tuple[str, str]:
    """Return assembly that transposes square scores in so many registers, and its operands."""
    swapped = {4: (0, 2, 1, 3), 16: tuple(8 * (i >> 2 & 1) + 4 * (i >> 3) + (0, 2, 1, 3)[i & 3] for i in range(16))}
    turns = (f"movmatrix.sync.aligned.m8n8.trans.b16 ${i}, ${registers + j};" for i, j in enumerate(swapped[registers]))
    return " ".join(turns), ",".join(["=&r"] * registers + ["r"] * registers)


TURN_16, TURN_32 = tl.constexpr(_turning(4)), tl.constexpr(_turning(16))


@triton.jit
def _sequence(bunch, first, tokens, width, ACROSS: tl.constexpr, RAGGED: tl.constexpr, PACK: tl.constexpr):
    """Return row and token of the first sequence of a bunch, and its length; the token is 0 along time."""
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
    PACK: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Return the row and the place of the token of every slot, and whether the slot has a token.

    A place is the number of a token in memory, in 64 bit. With ``NEAR`` it counts from the first token of the bunch, in
    32 bit.
    """
    at_S, part_S = slot_S, tl.zeros_like(slot_S)
    if PACK > 1:
        at_S, part_S = slot_S % SLOTS, slot_S // SLOTS
    row, token, length = _sequence(bunch, first, tokens, width, ACROSS, RAGGED, PACK)
    if ACROSS:
        row_S, token_S = row + at_S, token + part_S
        there_S = (at_S < length) & (token_S < tokens)
        near_S = at_S * tokens + part_S
    else:
        row_S, token_S = row + part_S, at_S
        there_S = (row_S < sequences) & (at_S < tokens)
        near_S = part_S * tokens + at_S
    if NEAR:
        return row_S, near_S, there_S
    else:
        return row_S, row_S * tokens + token_S, there_S


@triton.jit
def _load(
    start, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, REST: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Return the tokens of all slots, with their columns in one or two pieces, (G, S, E) each."""
    x = (_load_piece(start, place_S, there_S, D, E if REST == 0 else BLOCK_E, BLOCK_E, GROUP),)
    if REST > 0:
        x += (_load_piece(start + BLOCK_E, place_S, there_S, D, E - BLOCK_E, REST, GROUP),)
    return x


@triton.jit
def _load_piece(start, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr):
    """Return one piece of columns; adjacent heads are read at once."""
    x_SE = tl.arange(0, GROUP * BLOCK_E)[None, :]
    x = tl.load(start + (place_S * D)[:, None] + x_SE, there_S[:, None] & (x_SE < GROUP * E), 0.0)
    if GROUP > 1:
        x = tl.permute(tl.reshape(x, (place_S.shape[0], GROUP, BLOCK_E)), (1, 0, 2))
    return x


@triton.jit
def _zeros(like):
    """Return zeros, to start sums with, for each piece of columns."""
    sums = ()
    for j in tl.static_range(len(like)):
        sums += (tl.zeros(like[j].shape, tl.float32),)
    return sums


@triton.jit
def _store(
    start, x, factor, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, REST: tl.constexpr,
    GROUP: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """Write tokens times a factor, in one or two pieces; the reverse of _load."""
    _store_piece(
        start, x[0] * factor, place_S, there_S, D, E if REST == 0 else BLOCK_E, BLOCK_E, GROUP, STORED
    )  # fmt: skip
    if REST > 0:
        _store_piece(start + BLOCK_E, x[1] * factor, place_S, there_S, D, E - BLOCK_E, REST, GROUP, STORED)


@triton.jit
def _store_piece(
    start, x, place_S, there_S, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, GROUP: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    """Write one piece. A thread writes ``STORED`` values at once, or as many as it can if that is 0.

    After a product a thread has two adjacent values. For four, lanes of a warp exchange values; for eight, values pass
    through shared memory.
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
def _turn_in_registers(x):
    """Transpose the 16 x 16 or 32 x 32 scores of one warp without shared memory.

    In each 8 x 8 block of a product, lane 4 i + j has the values at (i, 2 j) and (i, 2 j + 1) in one register, and
    ``movmatrix`` transposes the block. The registers of a thread run through the blocks of a 16 x 16 square by rows,
    then columns, and through the squares by columns, then rows. The assembly therefore exchanges blocks as well. For
    Triton, the values stay where they are.

    This relies on the registers in which Triton keeps a product, which no interface of Triton documents. ``LAYOUTS`` of
    ``fast/attention.py`` names the checked versions. ``tests/fast/test_turn_in_registers.py`` reads the layouts of
    compiled kernels without a GPU.
    """
    # Do not mark this assembly as pure. With byte masks the compiler would move it behind a change of layout, and it
    # would transpose the wrong numbers.
    if INTERPRETED:
        return tl.trans(x)
    elif x.shape[0] == 16:
        return tl.inline_asm_elementwise(TURN_16[0], TURN_16[1], [x], x.dtype, is_pure=False, pack=8)
    else:
        return tl.inline_asm_elementwise(TURN_32[0], TURN_32[1], [x], x.dtype, is_pure=False, pack=32)


@triton.jit
def _first(parts, AXIS: tl.constexpr, WANTED: tl.constexpr, IN_REGISTERS: tl.constexpr):
    """Return scores whose keys lie along ``AXIS`` with their keys along ``WANTED``: as they are, or transposed."""
    if AXIS == WANTED:
        return parts
    else:
        turned = ()
        for i in tl.static_range(len(parts)):
            turned += (_turn_in_registers(parts[i]) if IN_REGISTERS else _turn(parts[i]),)
        return turned


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """Return a b. In float32 it adds sums of 16 products each, because one long sum would round more often."""
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
    """Return the products of every query with every key; keys lie along ``AXIS``."""
    a, b = (queries, keys) if AXIS == -1 else (keys, queries)
    s = _dot(a[0], _turn(b[0]), PRECISION)
    for j in tl.static_range(1, len(a)):
        s = _more(s, a[j], _turn(b[j]), PRECISION)
    return s


@triton.jit
def _more(sums, a, b, PRECISION: tl.constexpr):
    """Return sums + a b."""
    if PRECISION == "ieee":
        return sums + _dot(a, b, PRECISION)
    else:
        return tl.dot(a, b, sums)


@triton.jit
def _added(sums, weights, x, PRECISION: tl.constexpr):
    """Return sums + weights x; weights may be a tuple of summands."""
    for i in tl.static_range(len(weights)):
        sums = _more(sums, weights[i], x, PRECISION)
    return sums


@triton.jit
def _add(sums, weights, x, PRECISION: tl.constexpr):
    """Return sums + weights x for each piece of columns."""
    more = ()
    for j in tl.static_range(len(x)):
        more += (_added(sums[j], weights, x[j], PRECISION),)
    return more


@triton.jit
def _sum(parts, AXIS: tl.constexpr):
    """Return the sum over the keys of all parts."""
    whole = parts[0]
    for i in tl.static_range(1, len(parts)):
        whole += parts[i]
    return tl.sum(whole, AXIS)


@triton.jit
def _scores(
    q_GQE, k, hidden, slot_Q, slot, AXIS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return q k for each part, -infinity for keys that a query may not attend to."""
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
    """Return the addresses of the logarithms of a block of queries, (G, Q)."""
    at = logs + head * length + log_Q
    if GROUP > 1:
        at = at[None, :] + (tl.arange(0, GROUP) * length)[:, None]
    return at


@triton.jit
def _log2(x):
    """Return the logarithm by the GPU's instruction, with an error of 2^-22, which the interpreter does not have."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return libdevice.fast_log2f(x)


@triton.jit
def _powers(
    q_GQE, k, hidden, slot_Q, slot, c, AXIS: tl.constexpr, SEEN: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return 2^(c q k) for each part, relative to the highest score of a query; 1 over their sum; and its logarithm.

    Hidden keys give 0. ``SEEN`` means that every query has a key. In float32, scores are subtracted before they are
    scaled, because differences of large scores are exact and round less that way.
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
    """Return two numbers of half precision whose sum is x: the leading bits of x, and the rest.

    The leading bits are cut off, not rounded. A rounded number would have to be converted back, which is as slow as an
    exponential. Numbers that were cut are converted in pairs.
    """
    KEPT: tl.constexpr = -(1 << 16) if dtype == tl.bfloat16 else -(1 << 13)
    high = (x.to(tl.int32, bitcast=True) & KEPT).to(tl.float32, bitcast=True)
    return high.to(dtype), (x - high).to(dtype)


@triton.jit
def _weights(p, dtype: tl.constexpr, SLOTS: tl.constexpr, PRECISION: tl.constexpr):
    """Return weights in the precision of a product, rounded; on short axes as two halves, so that nothing is lost."""
    if SLOTS <= SHORT and PRECISION != "ieee":
        return _halves(p, dtype)
    else:
        return (p.to(dtype),)


@triton.jit
def _keys(
    bunch, first, real, keys, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    KEYS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, PART: tl.constexpr, LEAST: tl.constexpr,
    NEAR: tl.constexpr,
):  # fmt: skip
    """Return for each part of the tile: slots, places, whether a slot has a token, whether it is no pad, and the mask.

    The mask is 0 or -infinity and is added to scores. At least ``LEAST`` tokens exist, whose part needs no mask.
    """
    slot, place, there, used, hidden = (), (), (), (), ()
    for i in tl.static_range(SLOTS * PACK // PART):
        slot_T = i * PART + tl.arange(0, PART)
        row_T, place_T, there_T = _place(
            bunch, slot_T, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK, NEAR
        )
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
    HEADS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, Q: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Return the same for a block of queries, without a mask; the places of their logarithms; and the length."""
    row, token, length = _sequence(bunch, first, tokens, width, ACROSS, RAGGED, PACK)
    slot_Q = query + tl.arange(0, Q)
    row_Q, place_Q, there_Q = _place(bunch, slot_Q, first, tokens, width, sequences, ACROSS, RAGGED, SLOTS, PACK, NEAR)
    real_Q = there_Q
    if REAL:
        real_Q = there_Q & (tl.load(real + row_Q, there_Q, 0) != 0)
    log_Q = (row * tokens + token * length) * HEADS + (slot_Q // SLOTS * (HEADS * length) + slot_Q % SLOTS)
    return slot_Q, place_Q, there_Q, real_Q, log_Q, length


@triton.jit
def _blocks(
    bunch, first, real, tokens, width, sequences, ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr, BLOCK_Q: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Return :func:`_queries` of all blocks of queries in a tile; the last block may be smaller."""
    blocks = ()
    for query in tl.static_range(0, SLOTS * PACK, BLOCK_Q):
        block = _queries(
            query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK,
            min(BLOCK_Q, SLOTS * PACK - query), NEAR,
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
    """Write softmax(q k' / sqrt(E)) v for ``GROUP`` x ``TURNS`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    SEEN: tl.constexpr = LEAST > 0 and not REAL and not KEYS
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    at = _keys(
        bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK, PART, LEAST, False
    )
    WRITTEN_OUT: tl.constexpr = SLOTS <= 64 and PRECISION != "ieee"  # few blocks of queries: all are read ahead
    if WRITTEN_OUT:
        blocks = _blocks(
            bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK, BLOCK_Q, False
        )
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=3 if TURNS > 1 else 1):
        k, v = (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, 0, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, 0, GROUP),)
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
                    BLOCK_Q, False,
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
    """Write the outputs of a block of queries."""
    slot_Q, place_Q, there_Q, real_Q, log_Q, length = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, 0, GROUP)
    powers, share_GQ, log_GQ = _powers(q_GQE, k, at[4], slot_Q, at[0], scale * LOG2E, -1, SEEN, SLOTS, PACK, PRECISION)
    if KEEP:
        tl.store(_logs_at(logs, head, log_Q, length, GROUP), log_GQ, there_Q)
    if REAL:
        share_GQ = tl.where(real_Q, share_GQ, 0.0)
    o_GQE = _zeros(q_GQE)
    for i in tl.static_range(len(k)):
        o_GQE = _add(o_GQE, _weights(powers[i], q_GQE[0].dtype, SLOTS, PRECISION), v[i], PRECISION)
    _store(out, o_GQE, tl.expand_dims(share_GQ, -1), place_Q, there_Q, D, E, BLOCK_E, 0, GROUP, 0)


@triton.jit
def _backward(
    qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, REST: tl.constexpr, SLOTS: tl.constexpr,
    PACK: tl.constexpr, PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr,
    KEYS_FIRST: tl.constexpr, IN_REGISTERS: tl.constexpr, STORED: tl.constexpr, PRECISION: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q, k and v for ``GROUP`` x ``TURNS`` heads of a bunch of sequences."""
    D: tl.constexpr = HEADS * E
    SEEN: tl.constexpr = LEAST > 0 and not REAL and not KEYS
    EARLY: tl.constexpr = qkv.dtype.element_ty == tl.bfloat16  # fp16 would lose small gradients
    AXIS: tl.constexpr = -2 if KEYS_FIRST else -1
    length = min(width, SLOTS * PACK) if ACROSS else tokens
    bunch = tl.program_id(0) // (HEADS // (GROUP * TURNS))
    start = tl.program_id(0) % (HEADS // (GROUP * TURNS)) * (TURNS * GROUP * E)
    if IN_REGISTERS:  # registers are scarce, so places are counted from here in 32 bit
        row, token, _ = _sequence(bunch, first, tokens, width, ACROSS, RAGGED, PACK)
        place = row * tokens + token
        qkv, d_qkv, d_out, keys = qkv + place * (3 * D), d_qkv + place * (3 * D), d_out + place * D, keys + place
    WRITTEN_OUT: tl.constexpr = SLOTS <= 64 and PRECISION != "ieee"  # few blocks of queries: all are read ahead
    late = 1.0 if EARLY else scale
    STAGES: tl.constexpr = 3 if TURNS > 1 else 1
    # Narrow heads, and heads that several warps share, compute all sums at once; others one after the other, so that
    # fewer registers are in use.
    WHOLE: tl.constexpr = SLOTS * PACK == PART and PART == BLOCK_Q
    SUMS_FIRST: tl.constexpr = WHOLE and (BLOCK_E == 16 or not IN_REGISTERS)
    SCARCE: tl.constexpr = SLOTS == 48 and REST > 0  # few registers: compute places again in every turn
    for column in tl.range(start, start + TURNS * GROUP * E, GROUP * E, num_stages=STAGES, disable_licm=SCARCE):
        at = _keys(
            bunch, first, real, keys, tokens, width, sequences, ACROSS, RAGGED, REAL, KEYS, SLOTS, PACK, PART, LEAST,
            IN_REGISTERS,
        )  # fmt: skip
        if WRITTEN_OUT:
            blocks = _blocks(
                bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK, BLOCK_Q,
                IN_REGISTERS,
            )  # fmt: skip
        k, v = (), ()
        for i in tl.static_range(len(at[0])):
            k += (_load(qkv + column + D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, REST, GROUP),)
            v += (_load(qkv + column + 2 * D, at[1][i], at[3][i], 3 * D, E, BLOCK_E, REST, GROUP),)
        if WRITTEN_OUT:
            found = ()
            for i in tl.static_range(len(blocks)):
                block = _attend_backward(
                    qkv + column, d_out + column, logs, column // E, k, v, blocks[i], at, scale, AXIS, KEEP, SEEN, D, E,
                    BLOCK_E, REST, SLOTS, PACK, GROUP, EARLY, SUMS_FIRST, IN_REGISTERS, PRECISION,
                )  # fmt: skip
                found += (block,)
            for piece in tl.static_range(len(k[0])):
                _write(
                    d_qkv + column, found, k, blocks, at, late, piece, D, E, BLOCK_E, REST, GROUP, AXIS, SUMS_FIRST,
                    IN_REGISTERS, STORED, PRECISION,
                )  # fmt: skip
        else:
            dk, dv = (), ()
            for i in tl.static_range(len(k)):
                dk += (_zeros(k[i]),)
                dv += (_zeros(k[i]),)
            for query in range(0, SLOTS * PACK if BLOCK_Q == SLOTS * PACK else length, BLOCK_Q):
                block = _queries(
                    query, bunch, first, real, tokens, width, sequences, ACROSS, RAGGED, REAL, HEADS, SLOTS, PACK,
                    BLOCK_Q, IN_REGISTERS,
                )  # fmt: skip
                q_GQE, do_GQE, weights, slopes = _attend_backward(
                    qkv + column, d_out + column, logs, column // E, k, v, block, at, scale, AXIS, KEEP, SEEN, D, E,
                    BLOCK_E, REST, SLOTS, PACK, GROUP, EARLY, False, IN_REGISTERS, PRECISION,
                )  # fmt: skip
                more_dk, more_dv, dq_GQE = (), (), _zeros(q_GQE)
                for i in tl.static_range(len(k)):
                    more_dv += (_add(dv[i], weights[i], do_GQE, PRECISION),)
                    more_dk += (_add(dk[i], _first(slopes[i], AXIS, -2, IN_REGISTERS), q_GQE, PRECISION),)
                    dq_GQE = _add(dq_GQE, _first(slopes[i], AXIS, -1, IN_REGISTERS), k[i], PRECISION)
                dk, dv = more_dk, more_dv
                _store(d_qkv + column, dq_GQE, late, block[1], block[2], 3 * D, E, BLOCK_E, REST, GROUP, STORED)
            for i in tl.static_range(len(k)):
                _store(d_qkv + column + D, dk[i], late, at[1][i], at[2][i], 3 * D, E, BLOCK_E, REST, GROUP, STORED)
                _store(d_qkv + column + 2 * D, dv[i], 1.0, at[1][i], at[2][i], 3 * D, E, BLOCK_E, REST, GROUP, STORED)


@triton.jit
def _attend_backward(
    q, d_out, logs, head, k, v, block, at, scale, AXIS: tl.constexpr, KEEP: tl.constexpr, SEEN: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, REST: tl.constexpr, SLOTS: tl.constexpr,
    PACK: tl.constexpr, GROUP: tl.constexpr, EARLY: tl.constexpr, SUMS_FIRST: tl.constexpr, IN_REGISTERS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a block of queries, the gradients of their outputs, weights, and gradients of scores.

    With ``SUMS_FIRST`` it returns the gradients of values instead of weights, because they are summed before anything
    else. Gradients of scores go through the matrix units as two halves, the leading bits and the rest. Without the rest
    the error is up to 8 times that of torch's best kernel. With ``EARLY`` they are scaled already.
    """
    slot_Q, place_Q, there_Q, real_Q, log_Q, length = block
    q_GQE = _load(q, place_Q, real_Q, 3 * D, E, BLOCK_E, REST, GROUP)
    do_GQE = _load(d_out, place_Q, real_Q, D, E, BLOCK_E, REST, GROUP)
    c = scale * LOG2E
    if KEEP:
        log_GQ = tl.load(_logs_at(logs, head, log_Q, length, GROUP), there_Q, 0.0)
        scores = _scores(q_GQE, k, at[4], slot_Q, at[0], AXIS, SLOTS, PACK, PRECISION)
    else:
        powers, share_GQ, _ = _powers(q_GQE, k, at[4], slot_Q, at[0], c, AXIS, SEEN, SLOTS, PACK, PRECISION)
    p, dp, dv, means, weights, slopes = (), (), (), (), (), ()
    for i in tl.static_range(len(k)):
        if KEEP:
            p += (tl.exp2(scores[i] * c - tl.expand_dims(log_GQ, AXIS)),)
        else:
            p += (powers[i] * tl.expand_dims(share_GQ, AXIS),)
        dp += (_products(do_GQE, v[i], AXIS, PRECISION),)
        weights += (_first(_weights(p[i], k[i][0].dtype, SLOTS, PRECISION), AXIS, -2, IN_REGISTERS),)
        if SUMS_FIRST:
            dv += (_add(_zeros(v[i]), weights[i], do_GQE, PRECISION),)
        means += (p[i] * dp[i],)
    early = scale if EARLY else 1.0
    mean_GQ = _sum(means, AXIS) * early
    for i in tl.static_range(len(k)):
        ds = p[i] * (dp[i] * early - tl.expand_dims(mean_GQ, AXIS))
        slopes += ((ds,) if PRECISION == "ieee" else _halves(ds, k[i][0].dtype),)
    return q_GQE, do_GQE, dv if SUMS_FIRST else weights, slopes


@triton.jit
def _write(
    d_qkv, found, k, blocks, at, late, PIECE: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr,
    REST: tl.constexpr, GROUP: tl.constexpr, AXIS: tl.constexpr, SUMS_FIRST: tl.constexpr, IN_REGISTERS: tl.constexpr,
    STORED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one piece of columns, from the results of all blocks of queries."""
    WIDE: tl.constexpr = BLOCK_E if PIECE == 0 else REST
    USED: tl.constexpr = E if REST == 0 else min(E - PIECE * BLOCK_E, WIDE)
    d_qkv += PIECE * BLOCK_E
    if SUMS_FIRST:
        q_GQE, _, dv, slopes = found[0]
        zeros = tl.zeros(q_GQE[PIECE].shape, tl.float32)
        dk = _added(zeros, _first(slopes[0], AXIS, -2, IN_REGISTERS), q_GQE[PIECE], PRECISION)
        dq = _added(zeros, _first(slopes[0], AXIS, -1, IN_REGISTERS), k[0][PIECE], PRECISION)
        _store_piece(d_qkv, dq * late, blocks[0][1], blocks[0][2], 3 * D, USED, WIDE, GROUP, STORED)
        _store_piece(d_qkv + D, dk * late, at[1][0], at[2][0], 3 * D, USED, WIDE, GROUP, STORED)
        _store_piece(d_qkv + 2 * D, dv[0][PIECE], at[1][0], at[2][0], 3 * D, USED, WIDE, GROUP, STORED)
    else:
        for i in tl.static_range(len(k)):
            dv = tl.zeros(k[i][PIECE].shape, tl.float32)
            for b in tl.static_range(len(blocks)):
                _, do_GQE, weights, _ = found[b]
                dv = _added(dv, weights[i], do_GQE[PIECE], PRECISION)
            _store_piece(d_qkv + 2 * D, dv, at[1][i], at[2][i], 3 * D, USED, WIDE, GROUP, STORED)
            dk = tl.zeros(k[i][PIECE].shape, tl.float32)
            for b in tl.static_range(len(blocks)):
                q_GQE, _, _, slopes = found[b]
                dk = _added(dk, _first(slopes[i], AXIS, -2, IN_REGISTERS), q_GQE[PIECE], PRECISION)
            _store_piece(d_qkv + D, dk * late, at[1][i], at[2][i], 3 * D, USED, WIDE, GROUP, STORED)
        for b in tl.static_range(len(blocks)):
            q_GQE, _, _, slopes = found[b]
            dq = tl.zeros(q_GQE[PIECE].shape, tl.float32)
            for i in tl.static_range(len(k)):
                dq = _added(dq, _first(slopes[i], AXIS, -1, IN_REGISTERS), k[i][PIECE], PRECISION)
            _store_piece(d_qkv, dq * late, blocks[b][1], blocks[b][2], 3 * D, USED, WIDE, GROUP, STORED)


@triton.jit(do_not_specialize=COUNTS, repr=lambda _: "cerebro_attention_forward")
def forward(
    qkv, out, logs, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, SLOTS: tl.constexpr, PACK: tl.constexpr,
    PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write attention. In a mixture of windows, those that fit into a smaller tile use it."""
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


@triton.jit(do_not_specialize=COUNTS, repr=lambda _: "cerebro_attention_backward")
def backward(
    qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale,
    ACROSS: tl.constexpr, RAGGED: tl.constexpr, REAL: tl.constexpr, KEYS: tl.constexpr, KEEP: tl.constexpr,
    HEADS: tl.constexpr, E: tl.constexpr, BLOCK_E: tl.constexpr, REST: tl.constexpr, SLOTS: tl.constexpr,
    PACK: tl.constexpr, PART: tl.constexpr, BLOCK_Q: tl.constexpr, GROUP: tl.constexpr, TURNS: tl.constexpr,
    KEYS_FIRST: tl.constexpr, IN_REGISTERS: tl.constexpr, STORED: tl.constexpr, TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of attention, with tiles as in the forward pass.

    ``TOKENS`` is the number of tokens of a row as a constant for the compiler, or 0. The distances between rows of a
    window are then constants, which take no registers.
    """
    if TOKENS > 0:
        tokens = TOKENS
    LESS: tl.constexpr = 32 if SLOTS == 48 else SLOTS // 2  # a sequence is longer, or would have a smaller tile
    LESS_Q: tl.constexpr = LESS if SLOTS == 48 else min(BLOCK_Q, LESS)
    if RAGGED and SLOTS > 16:  # then a tile holds one sequence
        window = tl.program_id(0) // (HEADS // (GROUP * TURNS)) // tokens
        if tl.load(first + window + 1) - tl.load(first + window) <= LESS:
            _backward(
                qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                KEEP, HEADS, E, BLOCK_E, REST, LESS, PACK, LESS, LESS_Q, GROUP, TURNS, KEYS_FIRST, IN_REGISTERS, STORED,
                PRECISION, 0,
            )  # fmt: skip
        else:
            _backward(
                qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
                KEEP, HEADS, E, BLOCK_E, REST, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, KEYS_FIRST, IN_REGISTERS,
                STORED, PRECISION, LESS,
            )  # fmt: skip
    else:
        _backward(
            qkv, d_out, logs, d_qkv, first, real, keys, tokens, width, sequences, scale, ACROSS, RAGGED, REAL, KEYS,
            KEEP, HEADS, E, BLOCK_E, REST, SLOTS, PACK, PART, BLOCK_Q, GROUP, TURNS, KEYS_FIRST, IN_REGISTERS, STORED,
            PRECISION, 0 if RAGGED or PACK > 1 else LESS,
        )  # fmt: skip
