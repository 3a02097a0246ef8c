"""Inference on a CPU in float32: oneDNN's matrix products, and batches in pieces that stay in the caches.

torch takes MKL for linear layers. oneDNN, which comes with torch as well, is faster for the tall, narrow products of a
small Transformer, and adds bias and GELU on the way. A batch runs through all blocks a few windows at a time: windows
know nothing of each other, a piece has no pads, and what a block writes is still in a cache when the next one reads
it. Whatever needs a gradient, and every other device or precision, takes torch's own operators.

Legend: **R** rows, **N** tokens of a row, **D** width.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from cerebro_eeg.batch import Layout
from cerebro_eeg.fast import attention, attention_cpu

Module = TypeVar("Module", bound=nn.Module)

PIECE = 1536
"""Tokens of a piece for each thread: enough for products at full speed, few enough for the caches."""


@dataclass(frozen=True)
class _Packed:
    """A weight in the order in which oneDNN reads it, and of which weight."""

    weight: Tensor
    source: Tensor
    version: int
    values: Tensor
    """Where the source kept its numbers; held, so that nothing else comes to lie there."""


_NOTHING: Mapping[nn.Module, _Packed] = {}
_packed: ContextVar[Mapping[nn.Module, _Packed]] = ContextVar("packed", default=_NOTHING)


def suits(x: Tensor) -> bool:
    """Whether this is inference in float32 on a CPU, with a torch that has oneDNN, and not asked to be stock."""
    return (
        not torch.is_grad_enabled()
        and attention_cpu.is_plain(x)
        and attention.ours()
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


def watched(module: nn.Module) -> bool:
    """Whether a hook waits for what goes through the module or a part of it, or through all modules."""
    if _has_any_global_hook():
        return True
    left: list[nn.Module | None] = [module]
    while left:  # four times quicker than .modules()
        part = left.pop()
        if part is not None:
            if part._forward_hooks or part._forward_pre_hooks:
                return True
            left += part._modules.values()
    return False


def linear(layer: nn.Module, x: Tensor, gelu: bool = False) -> Tensor:
    """``layer(x)``, or GELU of it, by oneDNN where that suits; a layer of another class or with hooks runs itself."""
    behind = operands(layer, gelu) if suits(x) and x.numel() > 0 and not watched(layer) else None
    if behind is None:
        plain: Tensor = layer(x)
        return functional.gelu(plain) if gelu else plain
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, *behind)
    return found


def operands(layer: nn.Module | None, gelu: bool = False) -> tuple[Any, ...] | None:
    """What oneDNN's product takes for a layer besides its input; None for what is not a plain linear layer."""
    if not is_plain(layer, nn.Linear):
        return None
    weight: Tensor | None = layer._parameters["weight"]
    bias = layer._parameters["bias"]
    held = _packed.get().get(layer)
    if held is not None and _is_same(held, weight):
        weight = held.weight
    return (weight, bias, "gelu", [], "none") if gelu else (weight, bias, "none", [], "")


@contextlib.contextmanager
def packed(module: nn.Module) -> Iterator[None]:
    """Keep copies of the weights of ``module`` in oneDNN's order for as long as the block lasts.

    Making them takes half as long as one window and saves 3 % of each: for many windows, also one at a time. A weight
    that an optimizer, ``load_state_dict`` or ``to`` changes meanwhile is noticed and taken as it is; one that changes
    behind torch's back (in place through ``.data``, shared memory) is not, which is why this is not done unasked.
    """
    found: dict[nn.Module, _Packed] = {}
    if torch.backends.mkldnn.is_available():
        for layer in module.modules():
            if is_plain(layer, nn.Linear) and not layer.weight.is_inference():
                weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PIECE)
                found[layer] = _Packed(weight, layer.weight, layer.weight._version, layer.weight.detach())
    before = _packed.set({**_packed.get(), **found})
    try:
        yield
    finally:
        _packed.reset(before)


def _is_same(held: _Packed, weight: Tensor | None) -> bool:
    source = held.source
    return source is weight and held.version == source._version and held.values.data_ptr() == source.data_ptr()


def is_untouched(module: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Whether a module is exactly of this class, is not compiled, and has the forward of its class.

    Adapters and offloaders put another one there.
    """
    if type(module) is not kind:
        return False
    return "forward" not in module.__dict__ and module.__dict__.get("_compiled_call_impl") is None


def is_plain(layer: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Whether a layer is an untouched one of this class with an ordinary float32 weight on the CPU."""
    weight = (
        layer._parameters.get("weight") if is_untouched(layer, kind) else None
    )  # several times quicker than .weight
    return type(weight) is nn.Parameter and weight.is_cpu and weight.dtype == torch.float32


def by_pieces(run: Callable[[Tensor, Layout], Tensor], x_RND: Tensor, layout: Layout) -> Tensor:
    """``run`` on a few windows of equally many rows at a time. Pads are left out and come back as zeros."""
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
    """Numbers of windows and of their rows: neighbours with equally many rows, in pieces of about the same size."""
    for width, same in itertools.groupby(layout.counts(torch.device("cpu")).tolist()):
        windows = len(list(same)) if width else 0
        most = max(1, PIECE * torch.get_num_threads() // max(1, width * tokens))
        size = -(-windows // max(1, -(-windows // most)))
        for first in range(0, windows, max(1, size)):
            yield min(size, windows - first), width


@functools.cache
def _keep_freed_memory() -> None:
    """Ask once for nearly 32 MB and give them back, untouched.

    glibc learns from it to keep freed blocks of up to that size. Otherwise it returns the larger ones to the system
    again and again, and clearing the fresh pages took a tenth of the time of a window. Other C libraries do not mind.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8)
