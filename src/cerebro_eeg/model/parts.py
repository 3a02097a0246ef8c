"""Parts of a model that are compiled on their own: quick to start, and one compilation serves all that are alike."""

from typing import Any

import torch
from torch import nn

COMPILATIONS = 64


class Parted(nn.Module):
    """A module with methods that ``compile_parts`` compiles."""

    parts: tuple[str, ...] = ()

    def compile_parts(self, dynamic: bool | None = True) -> None:
        """Compile the methods named in ``parts``, each on its own.

        There are more variants than torch allows by itself, beyond which it would run the rest uncompiled: the first
        block, those along time and those across channels, each for equal and for mixed windows, with pads or without,
        with and without gradients, hidden keys and drop path.
        """
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILATIONS)
        for name in self.parts:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=dynamic))

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are not compiled: what is compiled here is bound to this module and its weights."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if not (name in self.parts and _is_compiled(value))}


def _is_compiled(function: object) -> bool:
    """Whether ``torch.compile`` made it; what somebody else has put in place of a method stays."""
    return hasattr(function, "_torchdynamo_orig_callable")


def compile_all(model: nn.Module, dynamic: bool | None = True) -> None:
    """Compile the parts of a model and of all that it is made of."""
    for module in model.modules():
        if isinstance(module, Parted):
            module.compile_parts(dynamic)
