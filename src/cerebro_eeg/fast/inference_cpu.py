"""A block as a plain sequence of operators, for inference on a CPU.

Calling a block's modules, asking before every layer whether oneDNN may have it, and adding out of place take some 3 %
of the time of one small window (benchmarks/README.md). Here that is asked once for a whole block, and additions are in
place.

Legend: **R** rows, **N** tokens of a row, **D** width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import cpu
from cerebro_eeg.fast.norm import Late, joined
from cerebro_eeg.model.attention import Axis, AxisAttention, attend

Step = Callable[..., tuple[Tensor, Late | None]]
"""A block, or what computes the same."""
Part = nn.Module | None
"""As ``_modules`` has them, which is several times quicker than an attribute."""
Operands = tuple[Any, ...]
"""What an operator takes behind the tokens."""


@dataclass(frozen=True)
class LeanBlock:
    """What a block with pre-norm and attention along one axis computes, with the weights that it has now."""

    norm1: Operands
    qkv: Operands
    axis: Axis
    heads: int
    out: Operands
    norm2: Operands
    up: Operands
    down: Operands

    def __call__(
        self, x_RND: Tensor, late: Late | None, layout: Layout, keys_RN: None = None, keep_2B: None = None
    ) -> tuple[Tensor, None]:
        """As a block's, for all keys and without drop path; nothing is left to be added."""
        norm, linear = torch.layer_norm, torch.ops.mkldnn._linear_pointwise.default
        x_RND = joined(x_RND, late)
        # One name for all branches: what has been used is free for the next one, and still in a cache.
        branch = linear(norm(x_RND, *self.norm1), *self.qkv)
        branch = attend(branch, layout, self.axis, self.heads)
        x_RND = linear(branch, *self.out).add_(x_RND)
        branch = linear(norm(x_RND, *self.norm2), *self.up)
        return linear(branch, *self.down).add_(x_RND), None


def lean(norm1: Part, attention: Part, norm2: Part, up: Part, down: Part) -> LeanBlock | None:
    """A block of these parts; None where one is of another class, touched, or of another precision or device."""
    if not cpu.is_untouched(attention, AxisAttention):
        return None
    before, between = _norm(norm1), _norm(norm2)
    qkv, out = cpu.operands(attention._modules["qkv"]), cpu.operands(attention._modules["out"])
    hidden, last = cpu.operands(up, gelu=True), cpu.operands(down)
    if before is None or between is None or qkv is None or out is None or hidden is None or last is None:
        return None
    return LeanBlock(before, qkv, attention.axis, attention.heads, out, between, hidden, last)


def _norm(norm: Part) -> Operands | None:
    if not cpu.is_plain(norm, nn.LayerNorm):
        return None
    return norm.normalized_shape, norm._parameters["weight"], norm._parameters["bias"], norm.eps
