"""BlockParts, the layers of a Transformer block for code that does not call its modules."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

Attend = Callable[..., Tensor]
"""The model's own attention with packed q, k, v: ``attend(qkv, layout, axis, heads)``."""


class BlockParts(NamedTuple):
    """A block with pre-norm and attention along one axis.

    It computes ``x = x + out(attend(qkv(norm1(x))))`` and then ``x = x + down(gelu(up(norm2(x))))``.
    """

    owners: tuple[tuple[nn.Module, type[nn.Module]], ...]
    """The modules that are not called (block, attention, MLP), each with the class that it must have."""
    norm1: nn.Module | None
    qkv: nn.Module | None
    attend: Attend
    axis: str
    heads: int
    out: nn.Module | None
    norm2: nn.Module | None
    up: nn.Module | None
    down: nn.Module | None


def parts_of(block: nn.Module) -> BlockParts | None:
    """Return the layers of a block from its method ``parts``; None if it has no such method or no such layers."""
    found = getattr(block, "parts", None)
    parts = found() if callable(found) else None
    return parts if isinstance(parts, BlockParts) else None
