"""Layers in half precision on CUDA: which of them our operators may take over, and in which precision they compute.

An operator that takes a layer's weights and leaves its ``forward`` aside must not do so where somebody looks into the
layer or has replaced it: adapters, hooks, quantised layers and shards run themselves.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cerebro_eeg.fast import attention, cpu

DTYPES = (torch.bfloat16, torch.float16)


def dtype_of(x: Tensor) -> torch.dtype:
    """The precision in which a product of ``x`` is computed: autocast's, which leaves float64 alone, or its own."""
    cast = torch.is_autocast_enabled("cuda") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cuda") if cast else x.dtype


def suits(x: Tensor, layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``layer`` is a plain one of its kind, to be computed in half precision on CUDA by kernels of our own."""
    if not x.is_cuda or not attention.TRITON or not attention.ours() or dtype_of(x) not in DTYPES:
        return False
    return not attention.transformed() and is_plain(layer, kind)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether nobody has replaced or watches a layer of this class, and its weights are plain numbers, not shards."""
    if not is_bare(layer, kind) or cpu.watched(layer):
        return False
    return not any(is_traceable_wrapper_subclass(held) for held in layer._parameters.values())


def is_bare(layer: nn.Module | None, kind: type[cpu.Module]) -> TypeGuard[cpu.Module]:
    """The same but for hooks forward, which may be asked for once for several layers, and for the weights."""
    return cpu.is_untouched(layer, kind) and not layer._backward_hooks and not layer._backward_pre_hooks


def parts(x: Tensor, linear: nn.Linear) -> tuple[Tensor, Tensor, Tensor | None]:
    """``x``, the weight and the bias in the precision of their product."""
    dtype = dtype_of(x)
    return x.to(dtype), linear.weight.to(dtype), None if linear.bias is None else linear.bias.to(dtype)
