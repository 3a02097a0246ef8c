"""Compilation of a model in parts, which starts quickly because equal blocks share one compilation.

Each block is compiled by itself, and so is each method in :data:`PARTS`: cutting patches, embedding them, the last
norm, and the comparison with the target. A block must be a function of tensors alone. With ``dynamic=True`` twelve
blocks then share their graphs, and one graph serves every mixture of windows. The length of windows stays static,
because a run has one length or a few, and code for a known length reads whole lines of memory.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

COMPILATIONS = 256
"""The number of variants of one part that torch may compile. Its own limit is lower, and the rest runs uncompiled.

Variants are the first block, blocks along time and across channels; equal and mixed windows; with and without pads,
gradients, hidden keys and drop path. A new length of windows takes up to ten.
"""
PARTS: dict[str, Callable[..., Any] | None] = {
    "cut": lambda batch: (batch.signal_RT, 1),
    "tokens": lambda patches, *_: (patches.values_RNL, 1, 2),
    "finish": None,
    "compare": lambda patches, *_: (patches.values_RNL, 1, 2),
}
"""Methods to compile. Each value returns, from the arguments of the method, a tensor and its axes of static size."""

_ours: WeakSet[object] = WeakSet()
"""The compiled blocks' calls that this file has made."""


class Compilable(nn.Module):
    """A module whose methods of :data:`PARTS` can be compiled, each on its own."""

    def compile_parts(self, dynamic: bool | None = True) -> None:
        """Compile the methods of this module that are in :data:`PARTS`, and its blocks."""
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILATIONS)
        for name, sizes in PARTS.items():
            there = hasattr(type(self), name) and not _is_compiled(self.__dict__.get(name))
            if there and _can_compile(self, name):
                setattr(self, name, torch.compile(_settled(getattr(self, name), sizes), dynamic=dynamic))
        blocks = self._modules.get("blocks")
        for block in blocks if isinstance(blocks, nn.ModuleList) else ():
            block.compile(dynamic=dynamic)
            if "_compiled_call_impl" in block.__dict__:  # a wrapper has none of its own
                _ours.add(block._compiled_call_impl)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles without compiled methods, which are bound to this module."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if not (name in PARTS and _is_compiled(value))}


def compile_model(model: nn.Module, dynamic: bool | None = True) -> None:
    """Compile the parts of a model and of all its modules."""
    for module in model.modules():
        if isinstance(module, Compilable):
            module.compile_parts(dynamic)


def uncompiled_or_ours(block: nn.Module) -> bool:
    """Return whether a block is not compiled, or was compiled by :meth:`Compilable.compile_parts`."""
    compiled = block.__dict__.get("_compiled_call_impl")
    return compiled is None or compiled in _ours


def _can_compile(module: nn.Module, name: str) -> bool:
    """Return whether torch can compile a part. It cannot compile the complex numbers of a spectrogram."""
    return name != "cut" or module.config.patches.kind == "waveform"  # type: ignore[union-attr]


def _settled(method: Callable[..., Any], sizes: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the method for compilation with some static sizes; a new size compiles it again."""
    if sizes is None:
        return method

    def settled(*given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            x, *axes = sizes(*given)
            for axis in axes:
                torch._dynamo.mark_static(x, axis)
        return method(*given, **named)

    return settled


def _is_compiled(function: object) -> bool:
    """Return whether ``torch.compile`` made a function; a method that a user has replaced must stay."""
    return hasattr(function, "_torchdynamo_orig_callable")
