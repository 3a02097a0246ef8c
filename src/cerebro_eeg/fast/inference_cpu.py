"""All blocks of an encoder as plain operators, on pieces that stay in the caches, for inference in float32 on a CPU.

Calls of modules, checks before every layer, and additions that are not in place take some 3 % of the time of one small
window (benchmarks/README.md). Here the checks run once for all blocks, and additions are in place. A batch runs through
all blocks a few windows at a time, which is possible because windows are independent. A piece has no pads, and each
block reads the output of the block before it from a cache.

Legend: **R** rows, **N** tokens of a row, **D** width.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import eligible
from cerebro_eeg.fast.block_parts import Attend, parts_of
from cerebro_eeg.fast.linear_layer import PACKED_ROWS, operands
from cerebro_eeg.fast.residual import Residual

PIECE = PACKED_ROWS
"""Tokens of a piece per thread: enough for products at full speed, and few enough for the caches."""
Finish = Callable[[Residual, Layout], Tensor]
"""Adds the last branch and applies the last norm."""
Operands = tuple[Any, ...]
"""The arguments of an operator that follow the tokens."""


def run_blocks(
    blocks: Sequence[nn.Module], last: nn.Module | None, x_RND: Tensor, layout: Layout, finish: Finish
) -> Tensor | None:
    """Return the tokens after all blocks and ``finish``, a few windows at a time; None where hooks wait for all of
    them.

    ``finish`` applies the ``last`` norm. A block that cannot run without its modules runs as a module, on the pieces.
    """
    if not eligible.cpu_inference(x_RND):
        return None
    if any(eligible.watched(it) for it in (*blocks, last) if it is not None):
        return None
    steps = [_make_step(block) or block for block in blocks]

    def run(piece_RND: Tensor, its: Layout) -> Tensor:
        stream = Residual(piece_RND)
        for step in steps:
            stream = step(stream, its)
        return finish(stream, its)

    return by_pieces(run, x_RND, layout)


class CpuBlock(NamedTuple):
    """A block with pre-norm and attention along one axis, with its present weights."""

    norm1: Operands
    qkv: Operands
    attend: Attend
    axis: str
    heads: int
    out: Operands
    norm2: Operands
    up: Operands
    down: Operands

    def __call__(self, stream: Residual, layout: Layout) -> Residual:
        """Return ``x + attention(norm1(x))`` with ``mlp(norm2(...))`` added. Nothing is pending."""
        norm, linear = torch.layer_norm, torch.ops.mkldnn._linear_pointwise.default
        x_RND = stream.total()
        # All branches have one name, so that a used one is free for the next, and still in a cache.
        branch = linear(norm(x_RND, *self.norm1), *self.qkv)
        branch = self.attend(branch, layout, self.axis, self.heads)
        x_RND = linear(branch, *self.out).add_(x_RND)
        branch = linear(norm(x_RND, *self.norm2), *self.up)
        return Residual(linear(branch, *self.down).add_(x_RND))


def _make_step(block: nn.Module) -> CpuBlock | None:
    """Return the block without its modules; None if a part was replaced or has another precision or device."""
    parts = parts_of(block)
    if parts is None or not all(eligible.untouched(module, kind) for module, kind in parts.owners):
        return None
    norm1, norm2 = _norm(parts.norm1), _norm(parts.norm2)
    qkv, out = operands(parts.qkv), operands(parts.out)
    up, down = operands(parts.up, gelu=True), operands(parts.down)
    if norm1 is None or norm2 is None or qkv is None or out is None or up is None or down is None:
        return None
    return CpuBlock(norm1, qkv, parts.attend, parts.axis, parts.heads, out, norm2, up, down)


def _norm(norm: nn.Module | None) -> Operands | None:
    if not eligible.plain_on_cpu(norm, nn.LayerNorm):
        return None
    return norm.normalized_shape, norm._parameters["weight"], norm._parameters["bias"], norm.eps


def by_pieces(run: Callable[[Tensor, Layout], Tensor], x_RND: Tensor, layout: Layout) -> Tensor:
    """Call ``run`` for a few windows of equally many rows at a time. Pads are left out and become zeros."""
    _keep_freed_memory()
    if layout.real_R is not None:
        out_RND = torch.zeros_like(x_RND)
        counts = layout.counts(x_RND.device).tolist()
        out_RND[layout.real_R] = by_pieces(run, x_RND[layout.real_R], Layout.ragged(counts))
        return out_RND
    done, first = [], 0
    for windows, width in _pieces(layout, x_RND.shape[1]):
        last = first + windows * width
        done.append(run(x_RND[first:last], Layout.uniform(windows, width)))
        first = last
    return torch.cat(done) if done else x_RND


def _pieces(layout: Layout, tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of windows and of rows per window of each piece.

    Neighbours with equally many rows form pieces of about the same size.
    """
    for width, same in itertools.groupby(layout.counts(torch.device("cpu")).tolist()):
        windows = len(list(same)) if width else 0
        most = max(1, PIECE * torch.get_num_threads() // max(1, width * tokens))
        size = -(-windows // max(1, -(-windows // most)))
        for first in range(0, windows, max(1, size)):
            yield min(size, windows - first), width


@functools.cache
def _keep_freed_memory() -> None:
    """Allocate nearly 32 MB once and free them, without touching the memory.

    glibc then keeps freed blocks of up to that size. Otherwise it returns large ones to the system again and again, and
    clearing fresh pages took a tenth of the time of a window. Other C libraries are not affected.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8)
