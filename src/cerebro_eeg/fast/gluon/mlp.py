# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc, operator, index, attr-defined, arg-type"
"""Gluon kernels of the two products of an MLP that are adjacent to GELU, for Hopper: two groups of warps take turns.

``triton/mlp.py`` has the same products in Triton. There all warps first multiply and then compute GELU, while the
matrix units are idle. Here a program has two *consumers* of four warps each, with their own tiles of 64 rows. While one
consumer computes GELU, the other one multiplies. *Producers* of one warp load the next data. Every program computes a
fixed set of columns of the hidden layer for many rows. There are two forms:

- The weight of these columns stays in shared memory (tokens of up to 576 values). Only rows are read, and consumers
  take turns.
- ``SHARED``, for wider tokens: the weight is read again for every tile of 128 rows, which both consumers share.

Data is read in *chunks* of 64 values of K through a ring of places with a few chunks each. The barrier ``ready`` means
that a place is full, ``free`` that its data was used, and ``turn`` which consumer multiplies next. A barrier knows only
the parity of its round. A group of warps that waits more than one round ahead passes at once and reads garbage. The
turns prevent that.

Legend: **T** rows (tokens) of a tile, **H** its columns of the hidden layer, **K** the axis that a product sums over,
**W** warps, **L** lanes of a warp that have rows of their own.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cerebro_eeg.fast.triton.mlp import HALF_LOG2E, LOG2_DENSITY, P0, P1, P2, P3, P4, P5, P6, P7, P8, P_END

ROWS = gl.constexpr(64)  # rows of a consumer's tile, which four warps multiply at once
DEEP = gl.constexpr(64)  # values of K per chunk
WIDE = gl.constexpr(64)  # columns of a piece; a tile is written piece by piece
# Registers per thread at run time. ptxas compiles all groups of warps for the launch's `maxnreg`, not for these.
REGISTERS = gl.constexpr(232)  # of a consumer
FEW = gl.constexpr(24)  # of a producer


@gluon.jit
def _barriers(N: gl.constexpr, COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(N):
        mbarrier.init(bars.index(n), count=COUNT)
    return bars


@gluon.jit
def _ring(x, weight, TURNED: gl.constexpr, SHARED: gl.constexpr, K: gl.constexpr, COLUMNS: gl.constexpr,
          STAGES: gl.constexpr, PARTS: gl.constexpr):  # fmt: skip
    """Allocate places in shared memory for rows and weight, and their barriers."""
    tiles: gl.constexpr = 2 if SHARED else 1
    held: gl.constexpr = STAGES if SHARED else K // DEEP
    x_places = gl.allocate_shared_memory(x.dtype, [STAGES * PARTS * tiles, ROWS, DEEP], x.layout)
    shape: gl.constexpr = [held, COLUMNS, DEEP] if TURNED else [held, DEEP, COLUMNS]
    weights = gl.allocate_shared_memory(x.dtype, shape, weight.layout)
    return x_places, weights, _barriers(STAGES, 1), _barriers(STAGES, tiles), _barriers(1, 1), _barriers(2, 1)


@gluon.jit
def _way(rows, slabs, SHARED: gl.constexpr):
    """Return the number of tiles (or of pairs) of this program, the first one, and the step to the next."""
    first = gl.program_id(0) // slabs
    step = gl.num_programs(0) // slabs
    return gl.cdiv(gl.cdiv(rows, ROWS * 2 if SHARED else ROWS) - first, step), first, step


@gluon.jit
def _load_weight(weight, column, k, bar, place, TURNED: gl.constexpr):
    if TURNED:
        tma.async_copy_global_to_shared(weight, [column, k], bar, place)
    else:
        tma.async_copy_global_to_shared(weight, [k, column], bar, place)


@gluon.jit
def _produce(x, weight, ring, rows, slabs, TURNED: gl.constexpr, SHARED: gl.constexpr, K: gl.constexpr,
             COLUMNS: gl.constexpr):  # fmt: skip
    """Load rows, and the weight once or with every tile. With ``TURNED`` the weight is (H, K), else (K, H)."""
    x_places, weights, ready, free, loaded, turn = ring
    tiles: gl.constexpr = 2 if SHARED else 1
    stages: gl.constexpr = ready.type.shape[0]
    parts: gl.constexpr = x_places.type.shape[0] // (stages * tiles)
    chunks: gl.constexpr = K // (DEEP * parts)
    column = gl.program_id(0) % slabs * COLUMNS
    count, first, step = _way(rows, slabs, SHARED)
    mbarrier.arrive(turn.index(0), count=1)
    if not SHARED:
        mbarrier.expect(loaded.index(0), COLUMNS * K * 2)
        for c in gl.static_range(K // DEEP):
            _load_weight(weight, column, c * DEEP, loaded.index(0), weights.index(c), TURNED)
    for n in range(count * chunks):
        stage = n % stages
        row = (first + n // chunks * step) * (tiles * ROWS)
        mbarrier.wait(free.index(stage), n // stages & 1 ^ 1)
        mbarrier.expect(ready.index(stage), (tiles * ROWS * parts + (COLUMNS if SHARED else 0)) * DEEP * 2)
        for p in gl.static_range(parts):
            k = (n % chunks * parts + p) * DEEP
            for t in gl.static_range(tiles):
                place = x_places.index((stage * parts + p) * tiles + t)
                tma.async_copy_global_to_shared(x, [row + t * ROWS, k], ready.index(stage), place)
        if SHARED:
            _load_weight(weight, column, n % chunks * DEEP, ready.index(stage), weights.index(stage), TURNED)


@gluon.jit
def _product(ring, which, i, TURNED: gl.constexpr, SHARED: gl.constexpr, K: gl.constexpr, COLUMNS: gl.constexpr):
    """Return tile i of this program times the weight of its columns.

    A place becomes free when the product of the chunk after it has started. ``turn`` keeps a consumer from waiting more
    than one round ahead.
    """
    x_places, weights, ready, free, _, turn = ring
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    stages: gl.constexpr = ready.type.shape[0]
    parts: gl.constexpr = 1 if SHARED else x_places.type.shape[0] // stages
    chunks: gl.constexpr = K // (DEEP * parts)
    takes_turns: gl.constexpr = chunks > 1 and not SHARED
    y_TH = gl.zeros((ROWS, COLUMNS), gl.float32, layout)
    if takes_turns:
        mbarrier.wait(turn.index(which), i // 2 & 1)
    for c in gl.static_range(chunks):
        n = i * chunks + c
        stage = n % stages
        mbarrier.wait(ready.index(stage), n // stages & 1)
        for p in gl.static_range(parts):
            x_TK = x_places.index(stage * 2 + which if SHARED else stage * parts + p)
            weight_KH = weights.index(stage if SHARED else c * parts + p)
            if TURNED:
                weight_KH = weight_KH.permute((1, 0))
            y_TH = warpgroup_mma(x_TK, weight_KH, y_TH, use_acc=c + p > 0, is_async=True)
        if c > 0:
            y_TH = warpgroup_mma_wait(parts, deps=(y_TH,))
            mbarrier.arrive(free.index((n - 1) % stages), count=1)
    if takes_turns:
        mbarrier.arrive(turn.index(1 - which), count=1)
    y_TH = warpgroup_mma_wait(0, deps=(y_TH,))
    mbarrier.arrive(free.index((i * chunks + chunks - 1) % stages), count=1)
    return y_TH


@gluon.jit
def _halves(x_TH, COLUMNS: gl.constexpr):
    return x_TH.reshape((ROWS, 2, COLUMNS // 2)).permute((0, 2, 1)).split()


@gluon.jit
def _below(x):
    """Return the normal distribution function of x by the polynomial of ``triton/mlp.py``."""
    t = gl.minimum(x * x, P_END * P_END)
    p = ((((((((P8 * t + P7) * t + P6) * t + P5) * t + P4) * t + P3) * t + P2) * t + P1) * t + P0) * x + 0.5
    return gl.minimum(gl.maximum(p, 0.0), 1.0)


@gluon.jit
def _put(x_TH, out, places, which, n: gl.constexpr, row, column):
    """Write a piece to memory through a place in shared memory, after the previous piece has left that place."""
    count: gl.constexpr = places.type.shape[0] // 2
    place = places.index(which * count + n % count)
    tma.store_wait(count - 1)
    place.store(x_TH.to(out.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, column], place)


@gluon.jit
def _finish(y_TH, bias, slope, out, places, which, n: gl.constexpr, row, column, BIAS: gl.constexpr,
            KEEP: gl.constexpr):  # fmt: skip
    """Add the bias to piece n of a tile, and write GELU and, with KEEP, GELU's slope."""
    column += n * WIDE
    if BIAS:
        at_H = column + gl.arange(0, WIDE, layout=gl.SliceLayout(0, y_TH.type.layout))
        y_TH += gl.load(bias + at_H).to(gl.float32)[None, :]
    below_TH = _below(y_TH)
    _put(y_TH * below_TH, out, places, which, 2 * n if KEEP else n, row, column)
    if KEEP:
        slope_TH = below_TH + y_TH * gl.exp2(y_TH * y_TH * -HALF_LOG2E + LOG2_DENSITY)
        _put(slope_TH, slope, places, which, 2 * n + 1, row, column)


@gluon.jit
def _consume_up(which, bias, slope, out, ring, places, rows, slabs, BIAS: gl.constexpr, KEEP: gl.constexpr,
                SHARED: gl.constexpr, K: gl.constexpr, COLUMNS: gl.constexpr):  # fmt: skip
    column = gl.program_id(0) % slabs * COLUMNS
    count, first, step = _way(rows, slabs, SHARED)
    if not SHARED:
        mbarrier.wait(ring[4].index(0), 0)  # the weight has been loaded
    for i in range(0 if SHARED else which, count, 1 if SHARED else 2):
        block = first + i * step
        row = (block * 2 + which if SHARED else block) * ROWS
        y_TH = _product(ring, which, i, True, SHARED, K, COLUMNS)
        left_TH, right_TH = _halves(y_TH, COLUMNS)
        if SHARED:
            a_TH, b_TH = _halves(left_TH, COLUMNS // 2)
            _finish(a_TH, bias, slope, out, places, which, 0, row, column, BIAS, KEEP)
            _finish(b_TH, bias, slope, out, places, which, 1, row, column, BIAS, KEEP)
            a_TH, b_TH = _halves(right_TH, COLUMNS // 2)
            _finish(a_TH, bias, slope, out, places, which, 2, row, column, BIAS, KEEP)
            _finish(b_TH, bias, slope, out, places, which, 3, row, column, BIAS, KEEP)
        else:
            _finish(left_TH, bias, slope, out, places, which, 0, row, column, BIAS, KEEP)
            _finish(right_TH, bias, slope, out, places, which, 1, row, column, BIAS, KEEP)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows", "slabs"], repr=lambda _: "cerebro_mlp_up")
def up(
    x, weight, bias, slope, out, rows, slabs, BIAS: gl.constexpr, KEEP: gl.constexpr, SHARED: gl.constexpr,
    K: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Write GELU of x W + b; the weight is (H, K). All tensors but ``bias`` are descriptors; H is slabs x COLUMNS."""
    ring = _ring(x, weight, True, SHARED, K, COLUMNS, STAGES, PARTS)
    places = gl.allocate_shared_memory(x.dtype, [2 * PLACES, ROWS, WIDE], out.layout)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume_up, (0, bias, slope, out, ring, places, rows, slabs, BIAS, KEEP, SHARED, K, COLUMNS)),
            (_consume_up, (1, bias, slope, out, ring, places, rows, slabs, BIAS, KEEP, SHARED, K, COLUMNS)),
            (_produce, (x, weight, ring, rows, slabs, True, SHARED, K, COLUMNS)),
        ],
        [4, 1],
        [REGISTERS, FEW],
    )


@gluon.jit
def _produce_slope(which, slope, slopes, rows, slabs, SHARED: gl.constexpr, COLUMNS: gl.constexpr):
    """Load GELU's slope for the tiles of a consumer, piece by piece."""
    places, ready, free = slopes
    PLACES: gl.constexpr = places.type.shape[0] // 2
    pieces: gl.constexpr = COLUMNS // WIDE
    column = gl.program_id(0) % slabs * COLUMNS
    count, first, step = _way(rows, slabs, SHARED)
    for n in range((count if SHARED else (count + 1 - which) // 2) * pieces):
        i = n // pieces
        row = ((first + i * step) * 2 + which if SHARED else first + (i * 2 + which) * step) * ROWS
        at = which * PLACES + n % PLACES
        mbarrier.wait(free.index(at), n // PLACES & 1 ^ 1)
        mbarrier.expect(ready.index(at), ROWS * WIDE * 2)
        tma.async_copy_global_to_shared(slope, [row, column + n % pieces * WIDE], ready.index(at), places.index(at))


@gluon.jit
def _times(d_TH, d_before, slopes, which, n, row, column):
    """Multiply a piece with its slope, write it to memory from the slope's place, and return it before rounding."""
    places, ready, _ = slopes
    PLACES: gl.constexpr = places.type.shape[0] // 2
    at = which * PLACES + n % PLACES
    mbarrier.wait(ready.index(at), n // PLACES & 1)
    place = places.index(at)
    d_TH *= place.load(d_TH.type.layout).to(gl.float32)
    place.store(d_TH.to(d_before.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(d_before, [row, column], place)
    return d_TH


@gluon.jit
def _left(slopes, which, n):
    """Wait until a piece has left its place, and mark the place as free."""
    places, _, free = slopes
    PLACES: gl.constexpr = places.type.shape[0] // 2
    tma.store_wait(0)
    mbarrier.arrive(free.index(which * PLACES + n % PLACES), count=1)


@gluon.jit
def _sum_in_threads(d_TH):
    """Return sums over the rows of a piece that one thread has, (W, L, H)."""
    return gl.sum(d_TH.reshape((4, 2, 8, WIDE)), 1)


@gluon.jit
def _put_sums(sums, sum_WLH, slot, column, H):
    layout: gl.constexpr = sum_WLH.type.layout
    at_W = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    at_L = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    at_H = gl.arange(0, WIDE, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    at_WL = slot * 32 + (at_W[:, None] * 8 + at_L[None, :])
    gl.store(sums + (at_WL[:, :, None] * H + (column + at_H)[None, None, :]), sum_WLH)


@gluon.jit
def _consume_down_alone(which, d_before, sums, ring, slopes, rows, slabs, K: gl.constexpr, COLUMNS: gl.constexpr):
    """Compute with the weight in shared memory. Each thread keeps its own sums until the end: 32 rows per consumer."""
    column = gl.program_id(0) % slabs * COLUMNS
    count, first, step = _way(rows, slabs, False)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    a_TH, b_TH = _halves(gl.zeros((ROWS, COLUMNS), gl.float32, layout), COLUMNS)
    a_WLH = _sum_in_threads(a_TH)
    b_WLH = _sum_in_threads(b_TH)
    mbarrier.wait(ring[4].index(0), 0)  # the weight has been loaded
    for i in range(which, count, 2):
        row = (first + i * step) * ROWS
        n = i // 2 * 2
        d_TH = _product(ring, which, i, False, False, K, COLUMNS)
        a_TH, b_TH = _halves(d_TH, COLUMNS)
        a_WLH += _sum_in_threads(_times(a_TH, d_before, slopes, which, n, row, column))
        _left(slopes, which, n)
        b_WLH += _sum_in_threads(_times(b_TH, d_before, slopes, which, n + 1, row, column + WIDE))
        _left(slopes, which, n + 1)
    _put_sums(sums, a_WLH, first * 2 + which, column, slabs * COLUMNS)
    _put_sums(sums, b_WLH, first * 2 + which, column + WIDE, slabs * COLUMNS)


@gluon.jit
def _finish_down(d_TH, d_before, sums, slopes, which, n, row, column, H):
    """Write one piece of a shared tile. 256 columns leave no registers for sums, which go to memory, (row / 64, H)."""
    d_TH = _times(d_TH, d_before, slopes, which, n, row, column)
    at_H = column + gl.arange(0, WIDE, layout=gl.SliceLayout(0, d_TH.type.layout))
    gl.store(sums + (row // ROWS).to(gl.int64) * H + at_H, gl.sum(d_TH, 0))
    _left(slopes, which, n)


@gluon.jit
def _consume_down_shared(which, d_before, sums, ring, slopes, rows, slabs, K: gl.constexpr, COLUMNS: gl.constexpr):
    column = gl.program_id(0) % slabs * COLUMNS
    count, first, step = _way(rows, slabs, True)
    H = slabs * COLUMNS
    for i in range(count):
        row = ((first + i * step) * 2 + which) * ROWS
        n = i * 4
        d_TH = _product(ring, which, i, False, True, K, COLUMNS)
        left_TH, right_TH = _halves(d_TH, COLUMNS)
        a_TH, b_TH = _halves(left_TH, COLUMNS // 2)
        _finish_down(a_TH, d_before, sums, slopes, which, n, row, column, H)
        _finish_down(b_TH, d_before, sums, slopes, which, n + 1, row, column + WIDE, H)
        a_TH, b_TH = _halves(right_TH, COLUMNS // 2)
        _finish_down(a_TH, d_before, sums, slopes, which, n + 2, row, column + 2 * WIDE, H)
        _finish_down(b_TH, d_before, sums, slopes, which, n + 3, row, column + 3 * WIDE, H)


@gluon.jit
def _consume_down(which, d_before, sums, ring, slopes, rows, slabs, SHARED: gl.constexpr, K: gl.constexpr,
                  COLUMNS: gl.constexpr):  # fmt: skip
    if SHARED:
        _consume_down_shared(which, d_before, sums, ring, slopes, rows, slabs, K, COLUMNS)
    else:
        _consume_down_alone(which, d_before, sums, ring, slopes, rows, slabs, K, COLUMNS)


@gluon.jit(do_not_specialize=["rows", "slabs"], repr=lambda _: "cerebro_mlp_down_backward")
def down_backward(
    d_y, weight, slope, d_before, sums, rows, slabs, SHARED: gl.constexpr, K: gl.constexpr, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, PARTS: gl.constexpr, PLACES: gl.constexpr,
):  # fmt: skip
    """Write (d_y W) times GELU's slope, and its sums over parts of the rows; the weight is (K, H)."""
    ring = _ring(d_y, weight, False, SHARED, K, COLUMNS, STAGES, PARTS)
    places = gl.allocate_shared_memory(d_y.dtype, [2 * PLACES, ROWS, WIDE], slope.layout)
    slopes = (places, _barriers(2 * PLACES, 1), _barriers(2 * PLACES, 1))
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume_down, (0, d_before, sums, ring, slopes, rows, slabs, SHARED, K, COLUMNS)),
            (_consume_down, (1, d_before, sums, ring, slopes, rows, slabs, SHARED, K, COLUMNS)),
            (_produce, (d_y, weight, ring, rows, slabs, False, SHARED, K, COLUMNS)),
            (_produce_slope, (0, slope, slopes, rows, slabs, SHARED, COLUMNS)),
            (_produce_slope, (1, slope, slopes, rows, slabs, SHARED, COLUMNS)),
        ],
        [4, 1, 1, 1],
        [REGISTERS, FEW, FEW, FEW],
    )
