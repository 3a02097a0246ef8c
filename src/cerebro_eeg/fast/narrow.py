"""A linear layer of 192 inputs as an operator of torch: the gradients of its weight and of its bias in one pass.

Such a product has few numbers and very many tokens: it is bound by reading them, and reading them once more for the
bias takes almost as long. On Hopper in half precision, where our kernels are asked for and there are gradients, one
kernel gives both; everything else is torch's. Each program sums over a part of the tokens, and torch over the parts:
no atomic additions, the same bits in every run.

Legend: **R** rows, **N** tokens of a row, **D** width, **F** outputs, **T** all tokens, **P** parts of them.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from cerebro_eeg.fast import cpu, half, hopper
from cerebro_eeg.fast.operators import fake, last, operator

WIDTH = 192  # inputs, and outputs of a program
BLOCK_T, WARPS, STAGES = 64, 8, 3  # the best of a sweep on an H200 (benchmarks/README.md)


def linear(layer: nn.Module, x_RND: Tensor) -> Tensor:
    """``layer(x)``, (R, N, F)."""
    if not torch.is_grad_enabled() or not suits(layer, x_RND):
        return cpu.linear(layer, x_RND)
    return narrow_linear(*half.parts(x_RND, layer))


def suits(layer: nn.Module, x_RND: Tensor) -> TypeGuard[nn.Linear]:
    """Whether the kernel is used: for a plain layer of 192 inputs whose weight learns, with a bias, on Hopper."""
    if not half.suits(x_RND, layer, nn.Linear) or not isinstance(layer, nn.Linear) or layer.bias is None:
        return False
    outputs, inputs = layer.weight.shape
    return inputs == WIDTH and outputs % WIDTH == 0 and layer.weight.requires_grad and hopper.is_hopper(x_RND.device)


@operator("cerebro_eeg::narrow_linear")
def narrow_linear(x_RND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """x W + b."""
    return functional.linear(x_RND, weight_FD, bias_F)


@fake(narrow_linear)
def _(x_RND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    return x_RND.new_empty(*x_RND.shape[:-1], weight_FD.shape[0])


@operator("cerebro_eeg::narrow_linear_backward")
def narrow_linear_backward(d_out_RNF: Tensor, x_RND: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the weight (F, D) and of the bias (F,) in float32."""
    outputs = d_out_RNF.shape[-1]
    if not d_out_RNF.numel():
        return x_RND.new_zeros(outputs, WIDTH, dtype=torch.float32), x_RND.new_zeros(outputs, dtype=torch.float32)
    from cerebro_eeg.fast.triton import linear as narrow_kernels

    d_TF, x_TD = hopper.aligned(d_out_RNF).view(-1, outputs), hopper.aligned(x_RND).view(-1, WIDTH)
    blocks = outputs // WIDTH
    parts, chunk = split(len(d_TF), hopper.processors(d_TF.device) // blocks)
    products_PFD = x_TD.new_empty(parts, outputs, WIDTH, dtype=torch.float32)
    sums_PF = x_TD.new_empty(parts, outputs, dtype=torch.float32)
    with torch.cuda.device_of(d_TF):
        narrow_kernels.backward[(blocks, parts)](
            *(hopper.tiles(t, BLOCK_T, columns) for t in (d_TF, x_TD) for columns in (128, 64)),
            products_PFD,
            sums_PF,
            len(d_TF),
            chunk,
            F=outputs,
            BLOCK_T=BLOCK_T,
            STAGES=STAGES,
            num_warps=WARPS,
        )
    return products_PFD.sum(0), sums_PF.sum(0)


def split(rows: int, most: int) -> tuple[int, int]:
    """Into how many parts rows are split, and how many rows each but the last one has: a multiple of ``BLOCK_T``."""
    blocks = -(-rows // BLOCK_T)
    chunk = -(-blocks // max(1, most))
    return -(-blocks // chunk), chunk * BLOCK_T


@fake(narrow_linear_backward)
def _(d_out_RNF: Tensor, x_RND: Tensor) -> tuple[Tensor, Tensor]:
    outputs = d_out_RNF.shape[-1]
    return x_RND.new_empty(outputs, WIDTH, dtype=torch.float32), x_RND.new_empty(outputs, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradient(ctx: Any, d_out_RNF: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x_RND, weight_FD = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    d_x_RND, d_weight_FD, d_bias_F = d_out_RNF @ weight_FD if of_x else None, None, None
    if of_weight:
        d_weight_FD, d_bias_F = (d.to(weight_FD.dtype) for d in last(*narrow_linear_backward(d_out_RNF, x_RND)))
    elif of_bias:
        d_bias_F = d_out_RNF.sum_to_size(weight_FD.shape[:1])
    return d_x_RND, d_weight_FD, d_bias_F if of_bias else None


torch.library.register_autograd(narrow_linear, _gradient, setup_context=_keep)


@register_flop_formula(torch.ops.cerebro_eeg.narrow_linear)
def _flops(x_shape: torch.Size, weight_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Of the product, for torch's counter; that of the input's gradient is torch's own."""
    return 2 * x_shape.numel() * weight_shape[0]


@register_flop_formula(torch.ops.cerebro_eeg.narrow_linear_backward)
def _backward_flops(d_out_shape: torch.Size, x_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Of one product more; sums do not count."""
    return 2 * x_shape.numel() * d_out_shape[-1]
