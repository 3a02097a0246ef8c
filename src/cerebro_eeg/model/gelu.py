"""A linear layer with GELU behind it, as an operator of torch: what the up-projection of an MLP is.

On CUDA in half precision, where our kernels are asked for, GELU is one pass at the speed of a copy, and its backward
pass also gives the gradient of the bias, which would else be a pass of its own. Everything else is torch's.

Legend: **R** rows, **N** tokens of a row, **D** width, **H** hidden width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from cerebro_eeg.model import cpu, half

BLOCK = 2048  # values of a program, the best of a sweep on an H200 (benchmarks/README.md)
BLOCK_T, BLOCK_H, STEPS = 8, 128, 16


def linear_gelu(x_RND: Tensor, linear: nn.Linear) -> Tensor:
    """GELU of a linear layer's output, (R, N, H)."""
    if not half.suits(x_RND, linear, nn.Linear):
        return cpu.linear(linear, x_RND, gelu=True)
    if not torch.is_grad_enabled():
        return linear_gelu_once(*half.parts(x_RND, linear))
    return linear_gelu_op(*half.parts(x_RND, linear))[0]


def run_gelu(x: Tensor, out: Tensor) -> None:
    """GELU of ``x`` into ``out``, which may be ``x`` itself."""
    if x.numel():
        from cerebro_eeg.model import gelu_kernels

        with torch.cuda.device_of(x):
            gelu_kernels.forward[(-(-x.numel() // BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)


@torch.library.custom_op("cerebro_eeg::linear_gelu_once", mutates_args=())
def linear_gelu_once(x_RND: Tensor, weight_HD: Tensor, bias_H: Tensor | None) -> Tensor:
    """GELU of x W + b without a gradient: nothing has to be kept, so it takes the place of x W + b."""
    out_RNH = functional.linear(x_RND, weight_HD, bias_H)
    run_gelu(out_RNH, out_RNH)
    return out_RNH


@linear_gelu_once.register_fake
def _(x_RND: Tensor, weight_HD: Tensor, bias_H: Tensor | None) -> Tensor:
    return x_RND.new_empty(*x_RND.shape[:-1], weight_HD.shape[0])


@torch.library.custom_op("cerebro_eeg::linear_gelu", mutates_args=())
def linear_gelu_op(x_RND: Tensor, weight_HD: Tensor, bias_H: Tensor | None) -> tuple[Tensor, Tensor]:
    """GELU of x W + b, and x W + b, which the backward pass needs."""
    before_RNH = functional.linear(x_RND, weight_HD, bias_H)
    out_RNH = torch.empty_like(before_RNH)
    run_gelu(before_RNH, out_RNH)
    return out_RNH, before_RNH


@linear_gelu_op.register_fake
def _(x_RND: Tensor, weight_HD: Tensor, bias_H: Tensor | None) -> tuple[Tensor, Tensor]:
    shape = *x_RND.shape[:-1], weight_HD.shape[0]
    return x_RND.new_empty(shape), x_RND.new_empty(shape)


@torch.library.custom_op("cerebro_eeg::gelu_backward", mutates_args=())
def gelu_backward(x_RNH: Tensor, d_out_RNH: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of GELU's input, and its sum over all tokens in float32."""
    x_RNH, d_out_RNH = x_RNH.contiguous(), d_out_RNH.contiguous()
    d_x_RNH, hidden = torch.empty_like(x_RNH), x_RNH.shape[-1]
    rows = x_RNH.numel() // max(1, hidden)
    programs = -(-rows // (BLOCK_T * STEPS))
    sums_PH = torch.empty(programs, hidden, device=x_RNH.device)
    if x_RNH.numel():
        from cerebro_eeg.model import gelu_kernels

        with torch.cuda.device_of(x_RNH):
            gelu_kernels.backward[(programs, -(-hidden // BLOCK_H))](
                x_RNH, d_out_RNH, d_x_RNH, sums_PH, rows, hidden, BLOCK_T=BLOCK_T, BLOCK_H=BLOCK_H, STEPS=STEPS
            )
    return d_x_RNH, sums_PH.sum(0)


@gelu_backward.register_fake
def _(x_RNH: Tensor, d_out_RNH: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_RNH), x_RNH.new_empty(x_RNH.shape[-1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_RND, weight_HD, bias_H = inputs
    ctx.has_bias = bias_H is not None
    ctx.save_for_backward(x_RND, weight_HD, output[1])


def _gradient(ctx: Any, d_out_RNH: Tensor, _: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x_RND, weight_HD, before_RNH = ctx.saved_tensors
    d_before_RNH, d_bias_H = gelu_backward(before_RNH, d_out_RNH)
    d_x_RND = d_before_RNH @ weight_HD if ctx.needs_input_grad[0] else None
    d_weight_HD = d_before_RNH.flatten(0, -2).T @ x_RND.flatten(0, -2) if ctx.needs_input_grad[1] else None
    return d_x_RND, d_weight_HD, d_bias_H.to(weight_HD.dtype) if ctx.has_bias else None


linear_gelu_op.register_autograd(_gradient, setup_context=_keep)


@register_flop_formula([torch.ops.cerebro_eeg.linear_gelu, torch.ops.cerebro_eeg.linear_gelu_once])
def _flops(x_shape: torch.Size, weight_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Of the product, for torch's counter; those of the backward pass are torch's own."""
    return 2 * x_shape.numel() * weight_shape[0]
