"""Attention along one short axis of the token grid, as an operator of torch, with the rules for its use and its tiles.

On CUDA the kernels of ``triton/attention.py`` read packed q, k, v in place. They get the number of rows of every window
instead of masks. :func:`can_attend` tells where they are used; elsewhere :func:`attend` returns None and the formulas
of ``model/attention.py`` run. The operator is opaque to ``torch.compile`` and ``torch.export``, so one graph serves
every mixture of windows. It can be captured in a CUDA graph. Tiles come from a rule, never from measured times, so that
equal shapes always run equal code. If a gradient may follow, the operator keeps the logarithm of each query's sum of
exponentials. The backward pass then computes the weights without a second search for the highest score.

Legend: **R** rows, **N** tokens of a row, **D** width, **B** windows, **L** tokens x heads.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from cerebro_eeg.batch import Layout
from cerebro_eeg.errors import InputError
from cerebro_eeg.fast import attention_cpu, eligible
from cerebro_eeg.fast.operators import fake, last, operator

FILLING = 2048
"""The number of warps that keep a GPU busy. With fewer, each program takes one turn, by the same arithmetic."""
KEPT = 16
"""The longest axis without logarithms: so short an axis only costs reading and writing."""
LAYOUTS = ("3.6.", "3.7.")
"""Versions of Triton whose layout of registers ``_turn_in_registers`` of ``triton/attention.py`` relies on."""
_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def attend(qkv_RND: Tensor, layout: Layout, axis: str, heads: int, keys_RN: Tensor | None = None) -> Tensor | None:
    """Return multi-head attention of packed q, k, v along ``axis``, (R, N, D); None where torch's must be used.

    ``keys_RN`` marks the tokens that may be attended to.
    """
    if axis == "all":
        return None
    across = axis == "channels"
    length = layout.width if across else qkv_RND.shape[1]
    if can_attend(qkv_RND, heads, length):
        first_B = layout.first_rows() if across else None
        return attend_short_axis(qkv_RND, heads, across, layout.width, first_B, layout.real_R, keys_RN)
    unmasked = keys_RN is None and (not across or layout.present_BC is None)
    if unmasked and eligible.ours_for_attention() and attention_cpu.can_attend(qkv_RND, heads, length):
        return attention_cpu.attend(qkv_RND, heads, across, layout.width)
    return None


def can_attend(qkv_RND: Tensor, heads: int, length: int) -> bool:
    """Return whether the kernels can compute an axis of ``length`` tokens: CUDA, and all keys of a head fit on chip.

    The limits are 256 tokens with heads of up to 64 dimensions, and 128 tokens with heads of up to 128. float32 is
    exact (no TF32) and therefore uses no matrix units; its limits are 64 tokens and 64 dimensions. AMD is excluded,
    because Triton compiles only some of the kernels for it.
    """
    if torch.version.hip is not None:
        return False
    if not qkv_RND.is_cuda or not eligible.TRITON or not eligible.ours_for_attention():
        return False
    if qkv_RND.dtype not in _TYPES or eligible.transformed():
        return False
    _, tokens, size = qkv_RND.shape
    return fits(qkv_RND.dtype, tokens, size // 3, heads, length)


def fits(dtype: torch.dtype, tokens: int, width: int, heads: int, length: int) -> bool:
    """Return whether keys and values of one head fit on chip, and offsets within a sequence fit into 32 bits."""
    dim = width // heads
    if length * tokens * 3 * width >= 2**31:
        return False
    if dtype == torch.float32:
        return bool(dim <= 64 and length <= 64)
    return bool(length <= 256 if dim <= 64 else dim <= 128 and length <= 128)


@dataclass(frozen=True)
class AttentionTile:
    """The work of one program of ``triton/attention.py``.

    It must fit into shared memory: 227 KiB on Hopper, 99 KiB on consumer GPUs. ``metadata.shared`` of a compilation
    without a GPU tells its size.
    """

    slots: int
    """Slots of a sequence in a tile, a power of two or 48; slots beyond the tokens of the sequence are empty."""
    pack: int
    """Sequences in a tile."""
    dim: int
    """Columns of a head, or of its first piece, rounded up to a power of two."""
    part: int
    """Slots of each part of the tile; the sides of a part are powers of two."""
    queries: int
    """Queries at a time; the last block of 48 slots may have fewer."""
    group: int
    """Heads at a time."""
    turns: int
    """Groups of heads that a program computes one after the other, while it reads the next group."""
    warps: int
    rest: int = 0
    """Columns of a second piece in the backward pass, or 0."""
    keys_first: bool = False
    """Backward, scores have keys in rows, which takes fewer registers; else sums over keys stay within a warp."""
    in_registers: bool = False
    """Backward, a warp transposes its scores without shared memory (``_turn_in_registers``)."""
    stored: int = 0
    """Backward, the values that a thread writes at once, 0 for as many as it can (``_store_piece``)."""
    registers: int | None = None
    """The limit of registers per thread across rows, where a few more for addresses would cost a parallel program."""


def tile(length: int, heads: int, dim: int, backward: bool, exact: bool) -> AttentionTile:
    """Return the tile of a program by :func:`_rule`."""
    return _rule(length, heads, dim, backward, exact, turns_in_registers())


@functools.cache
def _rule(length: int, heads: int, dim: int, backward: bool, exact: bool, in_registers: bool) -> AttentionTile:
    """Use one warp per head if scores and sums fit into its registers, and else several warps per head.

    Narrow heads share a program, so that memory is read in whole lines. The numbers were the best of sweeps on an H200
    with heads of 16, 48 and 64 dimensions (benchmarks/README.md). Those for 128 slots backward have the fewest
    instructions.
    """
    slots, block = _power(length), max(16, _power(dim))
    most = (48 if in_registers else 32) if backward else 64
    if 32 < length <= 48 and (exact or dim <= most):
        slots = 48
    pack = max(1, 16 // slots)
    size = slots * pack
    part = 16 if slots == 48 else size
    if exact:
        return AttentionTile(slots, pack, block, part, 16, 1, 1, 4, keys_first=backward)
    if backward and 16 < size <= 48:
        return _tile_of_warps(length, heads, dim, slots, part, in_registers)
    queries, group, turns = size, 1, 1
    if size == 16:
        group = 4 if block == 16 else 2
        turns = 1 if backward else 3 if block == 16 else 2
    elif size == 32 and length <= 24:
        turns = 4
        if block == 16:
            group, turns, part = 2, 3, 16
    elif size == 32:
        group, turns = (4, 4) if block == 16 else (1, 2)
    elif size == 48:
        queries = 16
        group = 2 if block == 16 else 1
        turns = 6 if length <= 40 else 3  # more turns are slower: the L2 cache may lose lines
    elif size == 64 and backward:
        turns = 12 if length <= 48 or block == 16 else 4
    elif size == 64 and dim == 16 and heads % 2 == 0:
        return AttentionTile(slots, pack, block, 32, 32, 2, _fitting(3, heads // 2, block), 2, registers=168)
    elif size == 64:
        turns = 4 if block == 16 else 1
    elif size == 128:
        queries = 128 if backward else 64
    else:
        queries = 32 if backward else 64
    while group > 1 and (block != dim or heads % group):  # only heads without a gap between them can be read at once
        group //= 2
    warps = 4
    if size == 16:
        warps = min(group, 2)
    elif size <= 48:
        warps = group
    elif size == 64:
        warps = 2 if backward and block == 16 else 4
    elif backward and (size == 128 or block > 32):
        warps = 8
    keys_first = backward and (size > 128 or (size == 16 and block > 16))
    turns = _fitting(turns, heads // group, block)
    return AttentionTile(slots, pack, block, part, queries, group, turns, warps, keys_first=keys_first)


def _tile_of_warps(length: int, heads: int, dim: int, slots: int, part: int, in_registers: bool) -> AttentionTile:
    """Return the backward tile for 17 to 48 tokens: one warp per head, or two for long axes with wide heads.

    One warp transposes scores in its registers. The number of turns is chosen such that lines of memory stay in the L2
    cache until their last head has been read. That depends on how many warps fit on a multiprocessor.
    """
    block, rest = _columns(dim)
    warps, turns, stored = 1, 4, 4
    if block == 16:
        turns, stored = 6 if length <= 20 or 32 < length <= 40 else 4, 2
    elif slots == 48:
        turns, stored = (2, 0) if rest else (4, 4)
    elif length > 24 or dim > 64 or not in_registers:
        warps, block, rest = 2, _power(dim), 0
    return AttentionTile(
        slots,
        1,
        block,
        part,
        queries=16 if slots == 48 else slots,
        group=1,
        turns=_fitting(turns, heads, block),
        warps=warps,
        rest=rest,
        keys_first=True,
        in_registers=warps == 1 and in_registers,
        stored=stored,
    )


def _columns(dim: int) -> tuple[int, int]:
    """Return the columns of a head as one power of two, or as two pieces if these are fewer: 48 is 32 and 16."""
    whole = max(16, _power(dim))
    first, rest = whole // 2, max(16, _power(dim - whole // 2))
    return (whole, 0) if rest >= first else (first, rest)


def _fitting(turns: int, groups: int, block: int) -> int:
    """Return the most turns that divide the groups of heads; 1 if reading ahead would not fit into shared memory."""
    while turns > 1 and (block > 64 or groups % turns):
        turns -= 1
    return turns


@functools.cache
def turns_in_registers() -> bool:
    """Return whether Triton is installed in a version whose layouts are known (``test_turn_in_registers.py``)."""
    if not eligible.TRITON:
        return False
    import triton

    return bool(triton.__version__.startswith(LAYOUTS))


def _power(n: int) -> int:
    """Return the smallest power of two that is not below a number."""
    return 1 << max(0, n - 1).bit_length()


def attend_short_axis(
    qkv_RND: Tensor,
    heads: int,
    across: bool,
    width: int,
    first_B: Tensor | None = None,
    real_R: Tensor | None = None,
    keys_RN: Tensor | None = None,
) -> Tensor:
    """Return attention (R, N, D) of packed q, k, v (R, N, 3 D) along time, or ``across`` the rows of each window.

    A window has ``width`` rows, or at most ``width`` if ``first_B`` (B + 1 row numbers of 64 bit) gives the first row
    of each window. ``real_R`` marks rows that are not pads, and ``keys_RN`` tokens that may be attended to. Pads, and
    tokens that may attend to nothing, return zeros with zero gradient.
    """
    return attend_op(qkv_RND, heads, across, width, first_B, real_R, keys_RN, torch.is_grad_enabled())[0]


@operator("cerebro_eeg::short_axis_attention")
def attend_op(
    qkv_RND: Tensor,
    heads: int,
    across: bool,
    width: int,
    first_B: Tensor | None,
    real_R: Tensor | None,
    keys_RN: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Return attention and, with ``keep``, the logarithms to the base 2, ordered by sequence, head and query."""
    out_RND, log_L = _new(qkv_RND, heads, keep)
    _launch("forward", [qkv_RND.contiguous(), out_RND, log_L], heads, across, width, first_B, real_R, keys_RN)
    return out_RND, log_L


def run_attend(
    qkv_RND: Tensor, out_RND: Tensor, heads: int, across: bool, width: int, first_B: Tensor | None = None
) -> None:
    """Write attention without pads, hidden keys or a gradient into ``out_RND``; both tensors are contiguous."""
    nothing_L = qkv_RND.new_empty(0, dtype=torch.float32)
    _launch("forward", [qkv_RND, out_RND, nothing_L], heads, across, width, first_B, None, None)


def _new(qkv_RND: Tensor, heads: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Allocate the output and the logarithms, also for short axes, because compiled code does not know the length.

    float32 has no logarithms: its backward pass computes the softmax again, which is more exact.
    """
    rows, tokens, size = qkv_RND.shape
    logs = rows * tokens * heads if keep and qkv_RND.dtype != torch.float32 else 0
    return qkv_RND.new_empty(rows, tokens, size // 3), qkv_RND.new_empty(logs, dtype=torch.float32)


@fake(attend_op)
def _(qkv_RND: Tensor, heads: int, *others: Any) -> tuple[Tensor, Tensor]:
    return _new(qkv_RND, heads, others[-1])


@operator("cerebro_eeg::short_axis_attention_backward")
def attend_backward(
    qkv_RND: Tensor,
    d_out_RND: Tensor,
    log_L: Tensor,
    heads: int,
    across: bool,
    width: int,
    first_B: Tensor | None,
    real_R: Tensor | None,
    keys_RN: Tensor | None,
) -> Tensor:
    """Return the gradient of packed q, k, v (R, N, 3 D) from that of the output."""
    d_qkv_RND = torch.empty_like(qkv_RND, memory_format=torch.contiguous_format)
    tensors = [qkv_RND.contiguous(), d_out_RND.contiguous(), log_L, d_qkv_RND]
    _launch("backward", tensors, heads, across, width, first_B, real_R, keys_RN)
    return d_qkv_RND


@fake(attend_backward)
def _(qkv_RND: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(qkv_RND, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv_RND, ctx.heads, ctx.across, ctx.width, first_B, real_R, keys_RN, _ = inputs
    ctx.set_materialize_grads(False)  # the logarithms are used only here, so they need no zero gradient
    ctx.save_for_backward(qkv_RND, output[1], first_B, real_R, keys_RN)


def _gradient(ctx: Any, d_out_RND: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    qkv_RND, log_L, *layout = ctx.saved_tensors
    (d_qkv_RND,) = last(attend_backward(qkv_RND, d_out_RND, log_L, ctx.heads, ctx.across, ctx.width, *layout))
    return d_qkv_RND, None, None, None, None, None, None, None


torch.library.register_autograd(attend_op, _gradient, setup_context=_keep)


@register_flop_formula(torch.ops.cerebro_eeg.short_axis_attention)
def _flops(qkv_shape: torch.Size, heads: int, across: bool, width: int, *layout: Any, out_shape: Any = None) -> int:
    """Return the operations of two products over all pairs of tokens, as if all windows were the widest."""
    rows, tokens, size = qkv_shape
    return 2 * 2 * rows * tokens * (width if across else tokens) * (size // 3)


@register_flop_formula(torch.ops.cerebro_eeg.short_axis_attention_backward)
def _backward_flops(
    qkv_shape: torch.Size,
    d_out_shape: torch.Size,
    log_shape: torch.Size,
    heads: int,
    across: bool,
    width: int,
    *layout: Any,
    out_shape: Any = None,
) -> int:
    """Return the operations of five such products."""
    return _flops(qkv_shape, heads, across, width) * 5 // 2


def _launch(
    kernel: Literal["forward", "backward"],
    tensors: list[Tensor],
    heads: int,
    across: bool,
    width: int,
    first_B: Tensor | None,
    real_R: Tensor | None,
    keys_RN: Tensor | None,
) -> None:
    qkv_RND, _, log_L = tensors[:3]
    if qkv_RND.numel() == 0:
        return
    from cerebro_eeg.fast.triton import attention as kernels

    if qkv_RND.is_cuda:
        _check(qkv_RND.device)
    rows, tokens = qkv_RND.shape[:2]
    dim, length = qkv_RND.shape[2] // (3 * heads), width if across else tokens
    exact = qkv_RND.dtype == torch.float32
    t = tile(length, heads, dim, kernel == "backward", exact)
    if across:
        sequences = rows // width if first_B is None else len(first_B) - 1
        bunches = sequences * -(-tokens // t.pack)
    else:
        sequences = rows
        bunches = -(-rows // t.pack)
    programs = bunches * (heads // t.group)
    turns = t.turns if programs * t.warps >= t.turns * FILLING else 1
    with torch.cuda.device_of(qkv_RND):  # Triton launches on the current device
        getattr(kernels, kernel)[(programs // turns,)](
            *tensors,
            qkv_RND if first_B is None else first_B,
            qkv_RND if real_R is None else real_R.contiguous(),
            qkv_RND if keys_RN is None else keys_RN.contiguous(),
            tokens,
            width,
            sequences,
            dim**-0.5,
            ACROSS=across,
            RAGGED=across and first_B is not None,
            REAL=real_R is not None,
            KEYS=keys_RN is not None,
            KEEP=log_L.numel() > 0 and length > KEPT,
            HEADS=heads,
            E=dim,
            BLOCK_E=t.dim,
            SLOTS=t.slots,
            PACK=t.pack,
            PART=t.part,
            BLOCK_Q=t.queries,
            GROUP=t.group,
            TURNS=turns,
            **(_more_of(t, tokens if across else 0) if kernel == "backward" else {}),
            PRECISION="ieee" if exact else "tf32",
            num_warps=t.warps,
            maxnreg=t.registers if across else None,
        )


@functools.cache
def _check(device: torch.device) -> None:
    """Raise for a GPU that is too old; the result for other GPUs is cached."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise InputError(
            "the kernels of attention need a GPU of compute capability 8.0 or newer; use --kernels stock, or "
            'cerebro_eeg.fast.choose("stock")'
        )


def _more_of(t: AttentionTile, tokens: int) -> dict[str, int]:
    """Return further constants of the backward kernel.

    ``tokens`` is the number of tokens of a row if sequences lie across rows, else 0. If one warp computes a head of
    more than 16 dimensions, the kernel is compiled for this number: a constant distance between rows saves registers.
    """
    return {
        "REST": t.rest,
        "KEYS_FIRST": t.keys_first,
        "IN_REGISTERS": t.in_registers,
        "STORED": t.stored,
        "TOKENS": tokens if t.in_registers and t.dim + t.rest > 16 else 0,
    }
