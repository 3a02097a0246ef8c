"""Parts of a model that are compiled on their own: quick to start, and one compilation serves all that are alike."""

from typing import Any

import torch
from torch import Tensor, nn

COMPILATIONS = 256  # of one part; a new length of windows takes up to ten


class Parted(nn.Module):
    """A module with methods that ``compile_parts`` compiles."""

    parts: tuple[str, ...] = ()
    by_parts = False
    """Whether they are compiled."""

    def compile_parts(self, dynamic: bool | None = True) -> None:
        """Compile the methods named in ``parts``, each on its own.

        There are more variants than torch allows by itself, beyond which it would run the rest uncompiled: the first
        block, those along time and those across channels, each for equal and for mixed windows, with pads or without,
        with and without gradients, hidden keys and drop path.
        """
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILATIONS)
        self.by_parts = True
        for name in self.parts:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=dynamic))

    def settle(self, x: Tensor, *axes: int) -> None:
        """Compile the part that calls this for the sizes that ``x`` has along ``axes``, and again for others.

        Windows have one length in a run, or a few, and code that knows it reads whole lines of memory. A model that is
        exported or compiled as a whole, and what is not compiled, stays free.
        """
        if self.by_parts and torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            for axis in axes:
                torch._dynamo.mark_static(x, axis)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles are not compiled: what is compiled here is bound to this module and its weights."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        state.pop("by_parts", None)
        return {name: value for name, value in state.items() if not (name in self.parts and _is_compiled(value))}


def _is_compiled(function: object) -> bool:
    """Whether ``torch.compile`` made it; what somebody else has put in place of a method stays."""
    return hasattr(function, "_torchdynamo_orig_callable")


def compile_all(model: nn.Module, dynamic: bool | None = True) -> None:
    """Compile the parts of a model and of all that it is made of."""
    for module in model.modules():
        if isinstance(module, Parted):
            module.compile_parts(dynamic)
