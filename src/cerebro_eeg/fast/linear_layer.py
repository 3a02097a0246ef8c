"""Linear layers: ``layer(x)``, faster where that is possible.

For inference in float32 on a CPU, oneDNN computes the product where torch would use MKL. oneDNN comes with torch, is
faster for the tall, narrow products of a small Transformer, and adds bias and GELU on the way. :func:`packed` keeps
copies of the weights in the order that oneDNN reads.

On Hopper in half precision, the gradients of weight and bias of a layer with 192 inputs are computed in one pass
(``fused_gradient``). Such a layer has few weights and very many tokens. Reading the tokens limits its speed, and
reading them again for the bias would take almost as long. Each program sums over a part of the tokens, and torch sums
over the parts. There are no atomic additions, so every run gives the same bits.

Legend: **R** rows, **N** tokens of a row, **D** width, **F** outputs, **T** all tokens, **P** parts of them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from cerebro_eeg.fast import eligible, hopper
from cerebro_eeg.fast.operators import fake, last, operator

WIDTH = 192  # inputs of the layer, and outputs per program
BLOCK_T, WARPS, STAGES = 64, 8, 3  # the best of a sweep on an H200 (benchmarks/README.md)
PACKED_ROWS = 1536
"""The number of rows for which oneDNN packs weights, that of a piece of ``inference_cpu.py``."""


def linear(layer: nn.Module, x: Tensor, fused_gradient: bool = False, gelu: bool = False) -> Tensor:
    """Return ``layer(x)``, or GELU of it. A layer of another class, or one with hooks, is called itself."""
    if fused_gradient and torch.is_grad_enabled() and can_fuse_gradient(layer, x):
        return narrow_linear(*cast(x, layer))
    if eligible.cpu_inference(x) and x.numel() > 0 and not eligible.watched(layer):
        behind = operands(layer, gelu)
        if behind is not None:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, *behind)
            return found
    plain: Tensor = layer(x)
    return functional.gelu(plain) if gelu else plain


def cast(x: Tensor, layer: nn.Linear) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ``x``, the weight and the bias in the precision of their product."""
    dtype = eligible.compute_dtype(x)
    return x.to(dtype), layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype)


# A CPU


@dataclass(frozen=True)
class _PackedWeight:
    """A copy of a weight in the order that oneDNN reads, and the weight itself."""

    weight: Tensor
    source: Tensor
    version: int
    values: Tensor
    """The values of the source. This reference keeps their memory from being reused, so addresses can be compared."""


_NOTHING: Mapping[nn.Module, _PackedWeight] = {}
_packed: ContextVar[Mapping[nn.Module, _PackedWeight]] = ContextVar("packed", default=_NOTHING)


def operands(layer: nn.Module | None, gelu: bool = False) -> tuple[Any, ...] | None:
    """Return the arguments of oneDNN's product after its input; None unless the layer is a plain linear one."""
    if not eligible.plain_on_cpu(layer, nn.Linear):
        return None
    weight: Tensor | None = layer._parameters["weight"]
    bias = layer._parameters["bias"]
    copy = _packed.get().get(layer)
    if copy is not None and _is_same(copy, weight):
        weight = copy.weight
    return (weight, bias, "gelu", [], "none") if gelu else (weight, bias, "none", [], "")


@contextlib.contextmanager
def packed(module: nn.Module) -> Iterator[None]:
    """Keep copies of the weights of ``module`` in oneDNN's order for the duration of a ``with`` block.

    The copies take half the time of one window and save 3 % of each window, so use them for many windows. The change
    of a weight by an optimizer, ``load_state_dict`` or ``to`` is noticed, and its copy is no longer used. A change in
    place through ``.data`` or shared memory is not noticed; packing is therefore never automatic.
    """
    found: dict[nn.Module, _PackedWeight] = {}
    if torch.backends.mkldnn.is_available():
        for layer in module.modules():
            if eligible.plain_on_cpu(layer, nn.Linear) and not layer.weight.is_inference():
                weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PACKED_ROWS)
                found[layer] = _PackedWeight(weight, layer.weight, layer.weight._version, layer.weight.detach())
    before = _packed.set({**_packed.get(), **found})
    try:
        yield
    finally:
        _packed.reset(before)


def _is_same(copy: _PackedWeight, weight: Tensor | None) -> bool:
    source = copy.source
    return source is weight and copy.version == source._version and copy.values.data_ptr() == source.data_ptr()


# A GPU


def can_fuse_gradient(layer: nn.Module, x_RND: Tensor) -> TypeGuard[nn.Linear]:
    """Return whether the kernel fits: on Hopper, for a plain layer with 192 inputs, a bias and a weight that learns."""
    if not eligible.half_on_cuda(x_RND, layer, nn.Linear) or not isinstance(layer, nn.Linear) or layer.bias is None:
        return False
    outputs, inputs = layer.weight.shape
    return inputs == WIDTH and outputs % WIDTH == 0 and layer.weight.requires_grad and hopper.is_hopper(x_RND.device)


@operator("cerebro_eeg::narrow_linear")
def narrow_linear(x_RND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """Return x W + b."""
    return functional.linear(x_RND, weight_FD, bias_F)


@fake(narrow_linear)
def _(x_RND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    return x_RND.new_empty(*x_RND.shape[:-1], weight_FD.shape[0])


@operator("cerebro_eeg::narrow_linear_backward")
def narrow_linear_backward(d_out_RNF: Tensor, x_RND: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weight (F, D) and of the bias (F,) in float32."""
    outputs = d_out_RNF.shape[-1]
    if not d_out_RNF.numel():
        return x_RND.new_zeros(outputs, WIDTH, dtype=torch.float32), x_RND.new_zeros(outputs, dtype=torch.float32)
    from cerebro_eeg.fast.triton import linear as linear_kernels

    d_TF, x_TD = hopper.aligned(d_out_RNF).view(-1, outputs), hopper.aligned(x_RND).view(-1, WIDTH)
    blocks = outputs // WIDTH
    parts, chunk = split(len(d_TF), hopper.processors(d_TF.device) // blocks)
    products_PFD = x_TD.new_empty(parts, outputs, WIDTH, dtype=torch.float32)
    sums_PF = x_TD.new_empty(parts, outputs, dtype=torch.float32)
    with torch.cuda.device_of(d_TF):
        linear_kernels.backward[(blocks, parts)](
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
    """Return the number of parts, at most ``most``, and the rows per part, a multiple of ``BLOCK_T``."""
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
    """Return the operations of the product for torch's counter, which counts the gradient of the input itself."""
    return 2 * x_shape.numel() * weight_shape[0]


@register_flop_formula(torch.ops.cerebro_eeg.narrow_linear_backward)
def _backward_flops(d_out_shape: torch.Size, x_shape: torch.Size, *others: Any, out_shape: Any = None) -> int:
    """Return the operations of the product for the weight; sums do not count."""
    return 2 * x_shape.numel() * d_out_shape[-1]
