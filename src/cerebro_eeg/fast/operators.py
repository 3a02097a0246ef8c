"""Operators of torch that cost the host little at every call.

``torch.library.custom_op`` does the same with more Python in between: a compiled step calls ours several dozen times,
and on a fast GPU it is the host that such a step waits for. What that checks at every call is left to the tests
(``torch.library.opcheck``): no result shares memory with what an operator was given. An operator that computes
gradients has none itself, and hence no Python for autograd around it: see :func:`last`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cerebro_eeg.errors import InputError

Function = TypeVar("Function", bound=Callable[..., object])


def operator(name: str) -> Callable[[Callable[..., object]], Any]:
    """Make a function an operator of torch by its annotations, for every device; it must change nothing it is given.

    It is opaque to ``torch.compile``, also from outside of a graph: torch sees to that where a kernel is registered.
    """

    def register(function: Callable[..., object]) -> Any:
        schema = torch.library.infer_schema(function, mutates_args=())
        torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
        torch.library.register_kernel(name, None, function)
        namespace, own = name.split("::")
        return getattr(getattr(torch.ops, namespace), own).default

    return register


def fake(of: Any) -> Callable[[Function], Function]:
    """Make a function say what results an operator would give, for those who compute nothing: ``torch.compile``."""
    register: Callable[[Function], Function] = torch.library.register_fake(of)
    return register


def last(*gradients: Tensor) -> tuple[Tensor, ...]:
    """Results of an operator without a gradient: who asks for a second derivative is told so, not given zeros."""
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
