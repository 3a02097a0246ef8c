"""Rules that decide where our own code may compute a layer instead of the layer's ``forward``.

Our code reads the weights of a layer and does not call its ``forward``. That is wrong where the layer has hooks, or
where its ``forward`` or class was replaced: adapters, quantised layers and shards must run themselves. It is also wrong
where torch records, transforms or differentiates operators in a way that our operators do not support.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Literal, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Module = TypeVar("Module", bound=nn.Module)
Choice = Literal["auto", "stock attention", "stock"]

TRITON = importlib.util.find_spec("triton") is not None
"""Triton comes with torch for CUDA on Linux. Elsewhere torch computes attention, norms and linear layers."""
DTYPES = (torch.bfloat16, torch.float16)
"""The half precisions of our kernels."""
_choice: Choice = "auto"


# The switch


def choose(choice: Choice) -> None:
    """Set the switch: ``"auto"`` uses our code by the rules here, ``"stock"`` only torch's, also just for attention."""
    global _choice
    _choice = choice


@contextlib.contextmanager
def use(choice: Choice) -> Iterator[None]:
    """Set the switch for the duration of a ``with`` block."""
    before = _choice
    choose(choice)
    try:
        yield
    finally:
        choose(before)


def ours() -> bool:
    """Return whether the switch allows any code of our own."""
    return _choice != "stock"


def ours_for_attention() -> bool:
    """Return whether the switch allows our code for attention."""
    return _choice == "auto"


# Modules


def untouched(module: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Return whether a module is exactly of this class, is not compiled, and has the ``forward`` of its class.

    Adapters and offloaders put another ``forward`` there.
    """
    if type(module) is not kind:
        return False
    return "forward" not in module.__dict__ and module.__dict__.get("_compiled_call_impl") is None


def watched(module: nn.Module) -> bool:
    """Return whether the module, a part of it, or all modules of torch have a forward hook."""
    if _has_any_global_hook():
        return True
    left: list[nn.Module | None] = [module]
    while left:  # four times as fast as .modules()
        part = left.pop()
        if part is not None:
            if part._forward_hooks or part._forward_pre_hooks:
                return True
            left += part._modules.values()
    return False


def unhooked(module: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Return whether a module is :func:`untouched` and has no backward hooks.

    It does not look for forward hooks; :func:`watched` finds those of a whole model at once.
    """
    return untouched(module, kind) and not module._backward_hooks and not module._backward_pre_hooks


def plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer of this class is as torch made it, without hooks, and its weights are not shards."""
    if not unhooked(layer, kind) or watched(layer):
        return False
    return not any(is_traceable_wrapper_subclass(weight) for weight in layer._parameters.values())


def plain_on_cpu(layer: nn.Module | None, kind: type[Module]) -> TypeGuard[Module]:
    """Return whether a layer is an :func:`untouched` one of this class with an ordinary float32 weight on the CPU."""
    # _parameters is several times as fast as .weight
    weight = layer._parameters.get("weight") if untouched(layer, kind) else None
    return type(weight) is nn.Parameter and weight.is_cpu and weight.dtype == torch.float32


# Tensors and modes of torch


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the precision of a product of ``x``: that of autocast, which does not change float64, or its own."""
    cast = torch.is_autocast_enabled("cuda") and x.dtype != torch.float64
    return torch.get_autocast_dtype("cuda") if cast else x.dtype


def transformed() -> bool:
    """Return whether ``torch.func`` or forward-mode derivatives are active. Our operators support neither.

    A forward-mode derivative through them would be zero without an error.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def recorded() -> bool:
    """Return whether torch records, counts or replaces operators. It would miss a kernel launched without one."""
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return modes > 0 or torch._C._get_tracing_state() is not None or transformed()


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU, where our kernels run."""
    return x.is_cuda


def half_on_cuda(x: Tensor, layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether our kernels may compute a :func:`plain` layer of this class, in half precision on CUDA."""
    if not x.is_cuda or not TRITON or not ours() or compute_dtype(x) not in DTYPES:
        return False
    return not transformed() and plain(layer, kind)


def eager_on_cpu(x: Tensor) -> bool:
    """Return whether ``x`` is an ordinary float32 tensor on a CPU in ordinary eager code.

    Code that is compiled, exported, traced, autocast or differentiated forward keeps the operators that torch knows.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.is_cpu
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch._C._get_tracing_state() is None
        and not transformed()
    )


def cpu_inference(x: Tensor) -> bool:
    """Return whether this is inference in float32 on a CPU, with a torch that has oneDNN, by our own code."""
    return (
        not torch.is_grad_enabled()
        and eager_on_cpu(x)
        and ours()
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


# Biases


def may_defer_bias(branch: nn.Module, last: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether the norm after a branch may add the bias of the branch's ``last`` linear layer.

    Branch and layer must be unchanged: a hook or an adapter would expect the bias in the output.
    """
    return type(branch) in kinds and plain(branch, type(branch)) and plain(last, nn.Linear)


def weights_stay(block: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the weights of a block still exist after its call, so that the next block may add its last bias.

    Code that frees the weights of a block after its call (FSDP, offloading) must make this function return False. Such
    tools add hooks to the block, make it a subclass or replace its ``forward``, which this function notices.
    """
    return type(block) is kind and "forward" not in block.__dict__ and not watched(block)
