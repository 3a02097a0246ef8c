"""The feed-forward part of a block as one operator of torch: linear layer, GELU, linear layer.

On a Hopper GPU in half precision, GELU and its gradient are computed on the tiles of the adjacent products. The hidden
layer is then not read again from memory. On other GPUs GELU is a pass of its own (``mlp_launch.py``), and torch
computes the products.

Legend: **R** rows, **N** tokens of a row, **D** width, **H** hidden width, **T** tokens of all rows.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from cerebro_eeg.fast import eligible, hopper, mlp_launch
from cerebro_eeg.fast import mlp_launch as gelu
from cerebro_eeg.fast.linear_layer import cast, linear
from cerebro_eeg.fast.operators import fake, last, operator


def can_fuse(x_RND: Tensor, up: nn.Linear, down: nn.Linear) -> bool:
    """Return whether the operator may compute these layers: plain ones, whose output is as wide as their input."""
    plain = eligible.half_on_cuda(x_RND, up, nn.Linear) and eligible.plain(down, nn.Linear)
    return plain and up.in_features == down.out_features


def mlp(x_RND: Tensor, up: nn.Linear, down: nn.Linear, bias: bool = True) -> Tensor:
    """Return ``down(gelu(up(x)))``, or without the bias of ``down`` where the next norm adds it (``residual.py``)."""
    if can_fuse(x_RND, up, down):
        return _by_operator(x_RND, up, down, down.bias if bias else None)
    hidden_RNH = linear(up, x_RND, gelu=True)
    return linear(down, hidden_RNH) if bias else functional.linear(hidden_RNH, down.weight)


def _by_operator(x_RND: Tensor, up: nn.Linear, down: nn.Linear, bias_D: Tensor | None) -> Tensor:
    x_RND, up_HD, up_H = cast(x_RND, up)
    down_DH = down.weight.to(x_RND.dtype)
    down_D = None if bias_D is None else bias_D.to(x_RND.dtype)
    if not torch.is_grad_enabled():  # with the second product outside, compiled code can free x first
        return functional.linear(hidden_layer(x_RND, up_HD, up_H), down_DH, down_D)
    return mlp_op(x_RND, up_HD, up_H, down_DH, down_D)[0]


def fuses(x: Tensor, width: int, hidden: int) -> bool:
    """Return whether fused kernels are used: on Hopper in half precision, if rows begin at multiples of 16 bytes."""
    if x.dtype not in eligible.DTYPES or width % 8 or hidden % 8:
        return False
    return not x.is_cuda or _is_hopper(x.device)  # on a CPU the interpreter runs them


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    """Return the cached :func:`hopper.is_hopper`, which is not cached itself because ``torch.compile`` traces it."""
    return hopper.is_hopper(device)


def run_hidden(x_RND: Tensor, weight_HD: Tensor, bias_H: Tensor | None, keep: bool) -> tuple[Tensor, Tensor]:
    """Return GELU of x W + b and, with ``keep``, the tensor that :func:`mlp_backward` needs: GELU's slope or input."""
    hidden, width = weight_HD.shape
    if not fuses(x_RND, width, hidden):
        before_RNH = functional.linear(x_RND, weight_HD, bias_H)
        out_RNH = torch.empty_like(before_RNH) if keep else before_RNH
        gelu.run_gelu(before_RNH, out_RNH)
        return out_RNH, before_RNH
    x_RND, weight_HD = hopper.aligned(x_RND), hopper.aligned(weight_HD)
    out_RNH = x_RND.new_empty(*x_RND.shape[:-1], hidden)
    slope_RNH = torch.empty_like(out_RNH) if keep else out_RNH
    if out_RNH.numel():
        slope_TH = slope_RNH.flatten(0, -2) if keep else None
        mlp_launch.up(x_RND.flatten(0, -2), weight_HD, bias_H, slope_TH, out_RNH.flatten(0, -2))
    return out_RNH, slope_RNH


@operator("cerebro_eeg::hidden_layer")
def hidden_layer(x_RND: Tensor, up_HD: Tensor, up_H: Tensor | None) -> Tensor:
    """Return GELU of x W + b, without keeping anything for a gradient."""
    return run_hidden(x_RND, up_HD, up_H, keep=False)[0]


@fake(hidden_layer)
def _(x_RND: Tensor, up_HD: Tensor, up_H: Tensor | None) -> Tensor:
    return x_RND.new_empty(*x_RND.shape[:-1], up_HD.shape[0])


@operator("cerebro_eeg::mlp")
def mlp_op(
    x_RND: Tensor, up_HD: Tensor, up_H: Tensor | None, down_DH: Tensor, down_D: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and, for the backward pass, the hidden layer and GELU's slope (GELU's input if not fused)."""
    out_RNH, kept_RNH = run_hidden(x_RND, up_HD, up_H, keep=True)
    return functional.linear(out_RNH, down_DH, down_D), out_RNH, kept_RNH


@fake(mlp_op)
def _(
    x_RND: Tensor, up_HD: Tensor, up_H: Tensor | None, down_DH: Tensor, down_D: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    wide = *x_RND.shape[:-1], up_HD.shape[0]
    return x_RND.new_empty(*x_RND.shape[:-1], down_DH.shape[0]), x_RND.new_empty(wide), x_RND.new_empty(wide)


@operator("cerebro_eeg::mlp_backward")
def mlp_backward(d_y_RND: Tensor, down_DH: Tensor, kept_RNH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of GELU's input, and its sum over all tokens in float32."""
    width, hidden = down_DH.shape
    if not fuses(kept_RNH, width, hidden):
        return gelu.run_gelu_backward(kept_RNH, d_y_RND @ down_DH)
    d_y_RND, down_DH, kept_RNH = (hopper.aligned(x) for x in (d_y_RND, down_DH, kept_RNH))
    d_before_RNH = torch.empty_like(kept_RNH)
    if not kept_RNH.numel():
        return d_before_RNH, kept_RNH.new_zeros(hidden, dtype=torch.float32)
    d_y_TD, kept_TH, d_before_TH = (x.flatten(0, -2) for x in (d_y_RND, kept_RNH, d_before_RNH))
    return d_before_RNH, mlp_launch.down_backward(d_y_TD, down_DH, kept_TH, d_before_TH).sum(0)


@fake(mlp_backward)
def _(d_y_RND: Tensor, down_DH: Tensor, kept_RNH: Tensor) -> tuple[Tensor, Tensor]:
    like = torch.empty_like(kept_RNH, memory_format=torch.contiguous_format)
    return like, kept_RNH.new_empty(down_DH.shape[1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x_RND, up_HD, _, down_DH, _ = inputs
    _, out_RNH, kept_RNH = output
    needs = ctx.needs_input_grad
    ctx.set_materialize_grads(False)  # the hidden layer is used only here, so it needs no zero gradients
    ctx.save_for_backward(x_RND if needs[1] else None, up_HD, down_DH, out_RNH if needs[3] else None, kept_RNH)


def _gradient(ctx: Any, d_y_RND: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    x_RND, up_HD, down_DH, out_RNH, kept_RNH = ctx.saved_tensors
    needs = ctx.needs_input_grad
    d_before_RNH, d_up_H = last(*mlp_backward(d_y_RND, down_DH, kept_RNH))
    d_y_TD, d_before_TH = d_y_RND.flatten(0, -2), d_before_RNH.flatten(0, -2)
    return (
        d_before_RNH @ up_HD if needs[0] else None,
        d_before_TH.T @ x_RND.flatten(0, -2) if needs[1] else None,
        d_up_H.to(up_HD.dtype) if needs[2] else None,
        d_y_TD.T @ out_RNH.flatten(0, -2) if needs[3] else None,
        d_y_TD.sum(0, dtype=torch.float32).to(down_DH.dtype) if needs[4] else None,
    )


torch.library.register_autograd(mlp_op, _gradient, setup_context=_keep)


@register_flop_formula(torch.ops.cerebro_eeg.mlp)
def _flops(x_shape: torch.Size, up_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Return the operations of both products, for torch's counter."""
    return 4 * x_shape.numel() * up_shape[0]


@register_flop_formula(torch.ops.cerebro_eeg.hidden_layer)
def _flops_hidden(x_shape: torch.Size, up_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Return the operations of the first product."""
    return 2 * x_shape.numel() * up_shape[0]


@register_flop_formula(torch.ops.cerebro_eeg.mlp_backward)
def _flops_backward(d_y_shape: torch.Size, down_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Return the operations of the one product in this operator; torch counts the other three."""
    return 2 * d_y_shape.numel() * down_shape[1]
