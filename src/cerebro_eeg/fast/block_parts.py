"""BlockParts: the layers of a Transformer block, for runs that leave its modules aside."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

Attend = Callable[..., Tensor]
"""``attend(qkv, layout, axis, heads)``: the model's own attention with packed q, k, v."""


class BlockParts(NamedTuple):
    """A block with pre-norm and attention along one axis: ``x + out(attend(qkv(norm1(x))))``, then the MLP alike."""

    owners: tuple[tuple[nn.Module, type[nn.Module]], ...]
    """The modules that are left aside, each with the class that it must be of: block, attention, MLP."""
    norm1: nn.Module
    qkv: nn.Module
    attend: Attend
    axis: str
    heads: int
    out: nn.Module
    norm2: nn.Module
    up: nn.Module
    down: nn.Module


def parts_of(block: nn.Module) -> BlockParts | None:
    """Return the layers of a block, from its method ``parts``; None for a block that has no such parts."""
    found = getattr(block, "parts", None)
    parts = found() if callable(found) else None
    return parts if isinstance(parts, BlockParts) else None
