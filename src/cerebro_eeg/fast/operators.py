"""Registration of operators of torch that cost the host little time per call.

``torch.library.custom_op`` does the same, but its Python costs more per call. A compiled step calls our operators
several dozen times, and on a fast GPU it waits for the host. ``custom_op`` checks in every call that no result shares
memory with an argument. Here the tests check it (``torch.library.opcheck``), and a result must never do so. An operator
that computes gradients has no gradient itself, and so needs no Python for autograd: see :func:`last`.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cerebro_eeg.errors import InputError

Function = TypeVar("Function", bound=Callable[..., object])


def operator(name: str) -> Callable[[Callable[..., object]], Any]:
    """Register a function as an operator of torch for every device, by its annotations. It must not change arguments.

    The operator is opaque to ``torch.compile``, also when it is called outside of a compiled graph.
    """

    def register(function: Callable[..., object]) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(name, "default", torch._disable_dynamo(_Untraced(function)))  # type: ignore[attr-defined]
        namespace, own = name.split("::")
        return getattr(getattr(torch.ops, namespace), own).default

    return register


class _Untraced:
    """A function that ``torch.compile`` must not look into.

    ``torch._disable_dynamo``, which ``torch.library.register_kernel`` uses, imports the compiler in the first call.
    This takes seconds. Before, it looks for an attribute ``__dynamo_disable`` with the function to call instead. As
    long as nobody has imported the compiler, this attribute is the function itself.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *args: object) -> object:
        return self._function(*args)

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name != "__dynamo_disable":
            raise AttributeError(name)
        disable: Any = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        if disable is None:
            return self._function
        found: Callable[..., object] = disable(self._function)
        self.__dict__[name] = found
        return found


def fake(of: Any) -> Callable[[Function], Function]:
    """Register a function that returns the shapes and types of an operator's results, for ``torch.compile``."""
    register: Callable[[Function], Function] = torch.library.register_fake(of)
    return register


def last(*gradients: Tensor) -> tuple[Tensor, ...]:
    """Return gradients unchanged, but make a second derivative raise an error; without this it would be zero.

    Every gradient that one of our operators computes must pass through this function.
    """
    apply: Callable[..., tuple[Tensor, ...]] = _Last.apply
    return apply(*gradients) if torch.is_grad_enabled() else gradients


class _Last(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise InputError(
            'our kernels have no second derivative; use --kernels stock, or cerebro_eeg.fast.choose("stock")'
        )
