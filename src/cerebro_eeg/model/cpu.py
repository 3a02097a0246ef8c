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

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from cerebro_eeg.batch import Layout
from cerebro_eeg.model import short_axis
from cerebro_eeg.model.short_axis_cpu import is_plain

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
        and is_plain(x)
        and short_axis.ours()
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


def watched(module: nn.Module) -> bool:
    """Whether a hook waits for what goes through the module or a part of it, or through all modules."""
    if _has_any_global_hook():
        return True
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def linear(layer: nn.Module, x: Tensor, gelu: bool = False) -> Tensor:
    """``layer(x)``, or GELU of it, by oneDNN where that suits; a layer of another class or with hooks runs itself."""
    if not (suits(x) and x.numel() > 0 and type(layer) is nn.Linear and _is_plain(layer) and not watched(layer)):
        plain: Tensor = layer(x)
        return functional.gelu(plain) if gelu else plain
    weight: Tensor = layer.weight
    held = _packed.get().get(layer)
    if held is not None and _is_same(held, weight):
        weight = held.weight
    operation = ("gelu", "none") if gelu else ("none", "")
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, layer.bias, operation[0], [], operation[1])
    return found


@contextlib.contextmanager
def packed(module: nn.Module, tokens: int) -> Iterator[None]:
    """Keep the weights of ``module`` in oneDNN's order for as long as the block lasts: for windows one at a time.

    That order is the best one for calls of ``tokens`` tokens. A weight that an optimizer, ``load_state_dict`` or ``to``
    changes meanwhile is noticed and taken as it is; one that changes behind torch's back (in place through ``.data``,
    shared memory) is not.
    """
    found: dict[nn.Module, _Packed] = {}
    if torch.backends.mkldnn.is_available():
        for layer in module.modules():
            if type(layer) is nn.Linear and _is_plain(layer) and not layer.weight.is_inference():
                weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), tokens)
                found[layer] = _Packed(weight, layer.weight, layer.weight._version, layer.weight.detach())
    before = _packed.set({**_packed.get(), **found})
    try:
        yield
    finally:
        _packed.reset(before)


def _is_same(held: _Packed, weight: Tensor) -> bool:
    same = held.source is weight and held.version == weight._version
    return same and held.values.data_ptr() == weight.data_ptr()


def _is_plain(layer: nn.Linear) -> bool:
    weight = layer.weight
    if "forward" in vars(layer):  # somebody put another one there, as adapters and offloaders do
        return False
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
