"""A block as a plain sequence of launches, for inference in half precision on CUDA.

Calling a block's modules and operators, and asking before every layer who may have it, takes the host longer than the
launches themselves; and a block whose inputs belong to its caller needs eight to nine times the memory of its tokens.
Here that is asked once for a whole block, kernels are launched without operators around them, and what an earlier lean
block has made is overwritten in place: at its peak a block needs five times its tokens (x, its norm, q, k and v), or,
where there are few, six (x, its norm and the hidden layer). Nothing needs a compiler: blocks that ``compile_parts`` has
compiled go this way, too.

The arithmetic is that of the block but for the residual additions: products add to the tokens themselves, which saves
a pass over memory and a rounding. Their biases are not in the tokens then; the norms that follow add all that are owed.

Legend: **R** rows, **N** tokens of a row, **D** width, **B** windows, **H** hidden width, **T** tokens of all rows.
"""

from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import attention as short_axis
from cerebro_eeg.fast import cpu, half, mlp, norm
from cerebro_eeg.fast.inference_cpu import Part
from cerebro_eeg.fast.norm import Late, Owed
from cerebro_eeg.model.attention import AxisAttention, first_rows

HALVED = 192 * 2**20
"""Bytes of a hidden layer from which on the MLP takes one half of the tokens after the other.

The layer, four times as wide as they are, then needs no more memory than q, k and v, in which a block's peak is. More
parts would only cost launches, and small layers are not worth one.
"""
ROWS = 128
"""Tokens of a tile of the MLP's kernels; a half is a multiple, and so begins where a tile may begin."""


class Grid(NamedTuple):
    """What all blocks of a run have in common."""

    shape: torch.Size
    """R, N, D."""
    dtype: torch.dtype
    device: torch.device
    width: int
    """Rows of the widest window."""
    first_B: Tensor | None
    """Where windows of different widths begin and end."""

    def takes(self, x_RND: Tensor, late: Late | None) -> bool:
        """Whether tokens that a lean block has not made are like those that one makes."""
        if late is None:
            return self._is_like(x_RND)
        bias_D = late.bias_D
        there = bias_D is None or bias_D.device == self.device
        return there and self._is_like(x_RND) and self._is_like(late.branch_RND)

    def _is_like(self, x_RND: Tensor) -> bool:
        plain = type(x_RND) is Tensor and x_RND.is_contiguous() and x_RND.shape == self.shape
        return plain and x_RND.dtype == self.dtype and x_RND.device == self.device


def make_grid(x_RND: Tensor, layout: Layout) -> Grid | None:
    """For tokens that may go through lean blocks; None where they may not, or where somebody else is to be asked."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not is_there(x_RND) or _looked_at():
        return None
    if not short_axis.TRITON or not short_axis.ours_for_attention() or torch.version.hip is not None:
        return None
    dtype, width = x_RND.dtype, x_RND.shape[-1]
    if dtype not in half.DTYPES or half.dtype_of(x_RND) != dtype or layout.real_R is not None:
        return None
    if x_RND.numel() == 0 or width > norm.MOST:
        return None
    found = Grid(x_RND.shape, dtype, x_RND.device, layout.width, None)
    return found._replace(first_B=first_rows(layout)) if found.takes(x_RND, None) else None


def is_there(x: Tensor) -> bool:
    """Whether a tensor lies where the kernels run."""
    return x.is_cuda


def _looked_at() -> bool:
    """Whether operators are recorded, counted or replaced by others, none of which would see a launch."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return modes > 0 or torch._C._get_tracing_state() is not None or short_axis.transformed()


class Affine(NamedTuple):
    """The weights of a linear layer."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """The weights of a LayerNorm."""

    weight_D: Tensor
    bias_D: Tensor
    eps: float


class LeanHalf(NamedTuple):
    """What a block with pre-norm and attention along one axis computes, with the weights that it has now."""

    grid: Grid
    norm1: Norm
    qkv: Affine
    across: bool
    heads: int
    out: Affine
    norm2: Norm
    up: Affine
    down: Affine

    def __call__(self, x_RND: Tensor, late: Late | Owed | None) -> tuple[Tensor, Owed]:
        """As a block's. Tokens that only owe biases were made by a lean block just before, and are overwritten."""
        qkv, qkv_bias, out, up, up_bias, down = self._cast()
        _, _, _, width, first_B = self.grid
        owned, y_RND = late is not None, torch.empty_like(x_RND)
        if isinstance(late, Late):
            given_RND, x_RND = x_RND, torch.empty_like(x_RND)
            norm.run_add_norm(given_RND, late, *self.norm1, y_RND, x_RND)
            before_D = None
            del given_RND, late
        else:
            before_D = norm.run_add_norm(x_RND, late or Owed(), *self.norm1, y_RND, None)
        qkv_RND = functional.linear(y_RND, qkv, qkv_bias)
        short_axis.run_attend(qkv_RND, y_RND, self.heads, self.across, width, first_B if self.across else None)
        del qkv_RND
        x_TD, y_TD = x_RND.view(-1, x_RND.shape[-1]), y_RND.view(-1, x_RND.shape[-1])
        x_TD = torch.addmm(x_TD, y_TD, out.t(), out=x_TD if owned else torch.empty_like(x_TD))
        x_RND = x_TD.view(self.grid.shape)
        before_D = norm.run_add_norm(x_RND, Owed(self.out.bias, before_D), *self.norm2, y_RND, None)
        _feed_forward(x_TD, y_TD, up, up_bias, down)
        return x_RND, Owed(self.down.bias, before_D)

    def _cast(self) -> list[Any]:
        """What products take besides tokens, in their precision, cast by one launch.

        It is not kept for the next call: a CUDA graph must cast anew.
        """
        given = self.qkv.weight, self.qkv.bias, self.out.weight, self.up.weight, self.up.bias, self.down.weight
        cast = {i: x for i, x in enumerate(given) if x is not None and x.dtype != self.grid.dtype}
        room = {i: torch.empty_like(x, dtype=self.grid.dtype) for i, x in cast.items()}
        if room:
            torch._foreach_copy_(list(room.values()), list(cast.values()))
        return [room.get(i, x) for i, x in enumerate(given)]


def _feed_forward(x_TD: Tensor, y_TD: Tensor, up_HD: Tensor, up_H: Tensor | None, down_DH: Tensor) -> None:
    """Add the MLP of y but for its last bias to x."""
    tokens = len(y_TD)
    whole = tokens * len(up_HD) * up_HD.element_size() < HALVED
    size = tokens if whole else -(-tokens // (2 * ROWS)) * ROWS
    for to_TD, of_TD in zip(x_TD.split(size), y_TD.split(size), strict=True):
        to_TD.addmm_(mlp.run_hidden(of_TD, up_HD, up_H, keep=False)[0], down_DH.t())


def finish(of: Grid, x_RND: Tensor, late: Owed, last: nn.Module, dtype: torch.dtype) -> Tensor | None:
    """The norm behind all blocks, in any precision; None where it is of another class, touched or watched."""
    found = None if cpu.watched(last) else _norm(last, of)
    if found is None:
        return None
    out_RND = torch.empty_like(x_RND, dtype=dtype)
    norm.run_add_norm(x_RND, late, *found, out_RND, None)
    return out_RND


def lean_half(of: Grid, norm1: Part, attention: Part, norm2: Part, up: Part, down: Part) -> LeanHalf | None:
    """A block of these parts, which nobody watches; None where one is of another class, touched or does not suit."""
    if not half.is_bare(attention, AxisAttention) or attention.axis == "all":
        return None
    _, tokens, width = of.shape
    across, heads = attention.axis == "channels", attention.heads
    if not short_axis.fits(of.dtype, tokens, width, heads, of.width if across else tokens):
        return None
    before, between = _norm(norm1, of), _norm(norm2, of)
    qkv, out = _affine(attention._modules["qkv"], of), _affine(attention._modules["out"], of)
    hidden, last = _affine(up, of), _affine(down, of)
    if before is None or between is None or qkv is None or out is None or hidden is None or last is None:
        return None
    wide = len(hidden.weight)
    shapes = (3 * width, width), (width, width), (wide, width), (width, wide)
    if tuple(tuple(layer.weight.shape) for layer in (qkv, out, hidden, last)) != shapes:
        return None
    return LeanHalf(of, before, qkv, across, heads, out, between, hidden, last)


def _norm(part: Part, of: Grid) -> Norm | None:
    if not half.is_bare(part, nn.LayerNorm):
        return None
    weight_D, bias_D = part._parameters.get("weight"), part._parameters.get("bias")
    if not (_is_near(weight_D, of) and _is_near(bias_D, of) and part.normalized_shape == of.shape[-1:]):
        return None
    return Norm(weight_D, bias_D, part.eps)


def _affine(part: Part, of: Grid) -> Affine | None:
    """The weights of a layer that computes in the precision of the tokens."""
    if not half.is_bare(part, nn.Linear) or part._parameters.keys() != {"weight", "bias"}:
        return None
    weight, bias = part._parameters["weight"], part._parameters["bias"]
    if not _is_near(weight, of) or half.dtype_of(weight) != of.dtype:
        return None
    if bias is not None and (not _is_near(bias, of) or half.dtype_of(bias) != of.dtype):
        return None
    return Affine(weight, bias)


def _is_near(weight: Tensor | None, of: Grid) -> TypeGuard[Tensor]:
    """Whether a weight is an ordinary one, where the tokens are."""
    return type(weight) is nn.Parameter and weight.device == of.device
