"""All blocks of an encoder as a plain sequence of kernel launches, for inference in half precision on CUDA.

Calls of modules and operators, and the checks before every layer, take the host longer than the launches. Modules also
need eight to nine times the memory of the tokens, because a caller may still use their inputs. Here the checks run once
for all blocks, kernels are launched without operators, and each block overwrites the tokens of the block before it. At
its peak a block needs five times its tokens (x, its norm, q, k and v). With few tokens it needs six times as much (x,
its norm and the hidden layer). Blocks that ``compile.py`` has compiled run this way, too.

The arithmetic is that of the modules except for the residual additions. Products add to the tokens themselves, which
saves a pass over memory and a rounding. The tokens then lack the biases of these products, and the following norms add
all missing biases.

Legend: **R** rows, **N** tokens of a row, **D** width, **B** windows, **H** hidden width, **T** tokens of all rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import attention, compile, eligible, mlp_layer, norm
from cerebro_eeg.fast.block_parts import BlockParts, parts_of
from cerebro_eeg.fast.norm import MissingBiases

HALVED = 192 * 2**20
"""The size in bytes of a hidden layer from which on the MLP computes the tokens in two halves, one after the other.

The hidden layer is four times as wide as the tokens. Half of it needs less memory than q, k and v, the peak of a block.
More parts would only cost launches, and small layers are not worth one.
"""
ROWS = 128
"""Tokens per tile of the MLP's kernels. A half is a multiple of it, so that it begins at the border of a tile."""


class TokenShape(NamedTuple):
    """Shape, precision and layout of the tokens, the same for all blocks of a run."""

    shape: torch.Size
    """(R, N, D)."""
    dtype: torch.dtype
    device: torch.device
    width: int
    """Rows of the widest window."""
    first_B: Tensor | None
    """The first row of each window, and the number of rows, if windows have different widths."""


def run_blocks(
    blocks: Sequence[nn.Module],
    last: nn.Module | None,
    x_RND: Tensor,
    layout: Layout,
    dtype: torch.dtype,
    own: bool,
) -> Tensor | None:
    """Return the tokens after all blocks and the ``last`` norm in ``dtype``; None where modules must run.

    With ``own`` the first block overwrites ``x_RND``, which then no other code may use.
    """
    of = read_shape(x_RND, layout)
    if of is None:
        return None
    steps = [make_step(block, of) for block in blocks]
    if any(step is None for step in steps):
        return None
    norm_D = None if last is None else _norm(last, of)
    if last is not None and (norm_D is None or eligible.watched(last)):
        return None
    missing = MissingBiases()
    for step in steps:
        assert step is not None
        x_RND, missing = step(x_RND, missing, own)
        own = True  # no other code can have the result of a block
    if norm_D is None:
        return missing.added_to(x_RND).to(dtype)
    out_RND = torch.empty_like(x_RND, dtype=dtype)  # explicit: autocast would choose by device
    norm.run_add_norm(x_RND, None, missing, *norm_D, out_RND, None)
    return out_RND


def read_shape(x_RND: Tensor, layout: Layout) -> TokenShape | None:
    """Return the shape of the tokens if they may run without modules, else None."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not eligible.on_gpu(x_RND) or eligible.recorded():
        return None
    if not eligible.TRITON or not eligible.ours_for_attention() or torch.version.hip is not None:
        return None
    dtype, width = x_RND.dtype, x_RND.shape[-1]
    if dtype not in eligible.DTYPES or eligible.compute_dtype(x_RND) != dtype or layout.real_R is not None:
        return None
    if x_RND.numel() == 0 or width > norm.MOST or type(x_RND) is not Tensor or not x_RND.is_contiguous():
        return None
    return TokenShape(x_RND.shape, dtype, x_RND.device, layout.width, layout.first_rows())


class LinearWeights(NamedTuple):
    """The weights of a linear layer."""

    weight: Tensor
    bias: Tensor | None


class NormWeights(NamedTuple):
    """The weights of a LayerNorm."""

    weight_D: Tensor
    bias_D: Tensor
    eps: float


class CudaBlock(NamedTuple):
    """A block with pre-norm and attention along one axis, with its present weights.

    It overwrites only tokens that an earlier block of the same run has made (``own``). A hook, an adapter or a caller
    may still use other tokens.
    """

    of: TokenShape
    norm1: NormWeights
    qkv: LinearWeights
    across: bool
    heads: int
    out: LinearWeights
    norm2: NormWeights
    up: LinearWeights
    down: LinearWeights

    def __call__(self, x_RND: Tensor, missing: MissingBiases, own: bool) -> tuple[Tensor, MissingBiases]:
        """Return the tokens after attention and MLP, and the biases that they still lack."""
        qkv, qkv_bias, out, up, up_bias, down = self._cast()
        y_RND = torch.empty_like(x_RND)
        before_D = norm.run_add_norm(x_RND, None, missing, *self.norm1, y_RND, None)
        qkv_RND = functional.linear(y_RND, qkv, qkv_bias)
        first_B = self.of.first_B if self.across else None
        attention.run_attend(qkv_RND, y_RND, self.heads, self.across, self.of.width, first_B)
        del qkv_RND
        x_TD, y_TD = x_RND.view(-1, x_RND.shape[-1]), y_RND.view(-1, x_RND.shape[-1])
        x_TD = torch.addmm(x_TD, y_TD, out.t(), out=x_TD if own else torch.empty_like(x_TD))
        x_RND = x_TD.view(self.of.shape)
        missing = MissingBiases(self.out.bias, before_D)
        before_D = norm.run_add_norm(x_RND, None, missing, *self.norm2, y_RND, None)
        _feed_forward(x_TD, y_TD, up, up_bias, down)
        return x_RND, MissingBiases(self.down.bias, before_D)

    def _cast(self) -> list[Any]:
        """Return weights and biases of the products in the precision of the tokens, cast by one launch.

        They are not cached, because a CUDA graph must cast them in every replay.
        """
        given = self.qkv.weight, self.qkv.bias, self.out.weight, self.up.weight, self.up.bias, self.down.weight
        cast = {i: x for i, x in enumerate(given) if x is not None and x.dtype != self.of.dtype}
        room = {i: torch.empty_like(x, dtype=self.of.dtype) for i, x in cast.items()}
        if room:
            torch._foreach_copy_(list(room.values()), list(cast.values()))
        return [room.get(i, x) for i, x in enumerate(given)]


def _feed_forward(x_TD: Tensor, y_TD: Tensor, up_HD: Tensor, up_H: Tensor | None, down_DH: Tensor) -> None:
    """Add the MLP of y, without its last bias, to x in place."""
    tokens = len(y_TD)
    whole = tokens * len(up_HD) * up_HD.element_size() < HALVED
    size = tokens if whole else -(-tokens // (2 * ROWS)) * ROWS
    for to_TD, of_TD in zip(x_TD.split(size), y_TD.split(size), strict=True):
        to_TD.addmm_(mlp_layer.run_hidden(of_TD, up_HD, up_H, keep=False)[0], down_DH.t())


def make_step(block: nn.Module, of: TokenShape) -> CudaBlock | None:
    """Return a block without its modules; None if a part has a hook, was replaced or does not fit the kernels."""
    parts = parts_of(block)
    if parts is None or parts.axis == "all" or not _are_ours(parts):
        return None
    _, tokens, width = of.shape
    across = parts.axis == "channels"
    if not attention.fits(of.dtype, tokens, width, parts.heads, of.width if across else tokens):
        return None
    norm1, norm2 = _norm(parts.norm1, of), _norm(parts.norm2, of)
    qkv, out, up, down = (_linear(layer, of) for layer in (parts.qkv, parts.out, parts.up, parts.down))
    if norm1 is None or norm2 is None or qkv is None or out is None or up is None or down is None:
        return None
    hidden = len(up.weight)
    shapes = (3 * width, width), (width, width), (hidden, width), (width, hidden)
    if tuple(tuple(layer.weight.shape) for layer in (qkv, out, up, down)) != shapes:
        return None
    return CudaBlock(of, norm1, qkv, across, parts.heads, out, norm2, up, down)


def _are_ours(parts: BlockParts) -> bool:
    """Return whether block, attention and MLP are unchanged; only ``compile.py`` may have compiled the block."""
    (block, kind), *others = parts.owners
    if not eligible.weights_stay(block, kind) or block._backward_hooks or block._backward_pre_hooks:
        return False
    if not compile.uncompiled_or_ours(block):
        return False
    return all(eligible.unhooked(module, its) for module, its in others)


def _norm(layer: nn.Module | None, of: TokenShape) -> NormWeights | None:
    if not eligible.unhooked(layer, nn.LayerNorm):
        return None
    weight_D, bias_D = layer._parameters.get("weight"), layer._parameters.get("bias")
    if not (_is_near(weight_D, of) and _is_near(bias_D, of) and layer.normalized_shape == of.shape[-1:]):
        return None
    return NormWeights(weight_D, bias_D, layer.eps)


def _linear(layer: nn.Module | None, of: TokenShape) -> LinearWeights | None:
    """Return the weights of a plain layer whose product has the precision of the tokens, else None."""
    if not eligible.unhooked(layer, nn.Linear) or layer._parameters.keys() != {"weight", "bias"}:
        return None
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    if not _is_near(weight, of) or eligible.compute_dtype(weight) != of.dtype:
        return None
    if bias is not None and (not _is_near(bias, of) or eligible.compute_dtype(bias) != of.dtype):
        return None
    return LinearWeights(weight, bias)


def _is_near(weight: Tensor | None, of: TokenShape) -> TypeGuard[Tensor]:
    """Return whether a weight is an ordinary parameter on the device of the tokens."""
    return type(weight) is nn.Parameter and weight.device == of.device
