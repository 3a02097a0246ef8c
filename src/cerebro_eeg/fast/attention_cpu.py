"""Attention along one short axis of the token grid on a CPU, in float32, forward and backward.

The tiles of torch's own kernel are mostly empty for a short axis. Here the sequences of all rows and heads are folded
into one batch of small products. The softmax takes powers of two of all scores at once, and divides by their sums when
the result is unfolded. :func:`can_attend` accepts the axes for which this was faster in both directions
(benchmarks/README.md).

Legend: **R** rows, **N** tokens of a row, **D** width, **H** heads, **E** head dimension, **S** length of the axis,
**P** sequences of all heads. Folded, the axes are (row, H) along time or (window, N, H) across channels, then S, E.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cerebro_eeg.fast import eligible

# torch multiplies matrices with fewer multiplications than this in a slow loop over single numbers.
_LEAST_WORK = 400
# Sums of powers of two in this range cannot overflow or underflow in float32, neither forward nor backward.
_SAFE = 2.0**-40, 2.0**40


def can_attend(qkv_RND: Tensor, heads: int, length: int) -> bool:
    """Return whether an axis is faster here: 5 to 40 tokens with heads of 16 dimensions, 4 to 24 tokens with 32."""
    dim = qkv_RND.shape[-1] // (3 * heads)
    enough = length * length * dim >= _LEAST_WORK and qkv_RND.numel() > 0
    return enough and dim <= 32 and length <= (40 if dim <= 16 else 24) and eligible.eager_on_cpu(qkv_RND)


def attend(qkv_RND: Tensor, heads: int, across: bool, width: int) -> Tensor:
    """Return attention (R, N, D) of packed q, k, v (R, N, 3 D) along time, or ``across`` each ``width`` rows."""
    if torch.is_grad_enabled() and qkv_RND.requires_grad:
        out_RND: Tensor = _Attention.apply(qkv_RND, heads, across, width)  # type: ignore[no-untyped-call]
        return out_RND
    return _forward(qkv_RND, heads, across, width)[0]


class _Attention(torch.autograd.Function):
    """Attention with its gradient, which needs the result, the folded q, k, v, the powers and their sums."""

    @staticmethod
    def forward(ctx: Any, qkv_RND: Tensor, heads: int, across: bool, width: int) -> Tensor:
        out_RND, *kept = _forward(qkv_RND, heads, across, width)
        ctx.save_for_backward(out_RND, *kept)
        ctx.heads, ctx.across, ctx.width = heads, across, width
        return out_RND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_RND: Tensor) -> tuple[Tensor, None, None, None]:
        out_RND, qkv_3PSE, power_PSS, sum_PS1 = ctx.saved_tensors
        d_qkv_RND = _backward(d_out_RND, out_RND, qkv_3PSE, power_PSS, sum_PS1, ctx.heads, ctx.across, ctx.width)
        return d_qkv_RND, None, None, None


def _forward(qkv_RND: Tensor, heads: int, across: bool, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the result (R, N, D), folded q, k, v (3, P, S, E), powers (P, S, S) and their sums (P, S, 1)."""
    folded = _fold(qkv_RND, 3, heads, across, width)
    qkv_3PSE = folded.contiguous().flatten(1, -3)
    q_PSE, k_PSE, v_PSE = qkv_3PSE
    power_PSS = _scores(q_PSE, k_PSE).exp2_()
    sum_PS1 = _sums(power_PSS)
    low, high = torch.aminmax(sum_PS1)
    if not (low.item() > _SAFE[0] and high.item() < _SAFE[1]):  # also for NaN; slow, but rarely needed
        score_PSS = _scores(q_PSE, k_PSE)
        power_PSS = score_PSS.sub_(score_PSS.amax(-1, keepdim=True)).exp2_()
        sum_PS1 = _sums(power_PSS)
    mixed_PSE = torch.bmm(power_PSS, v_PSE)
    out_RND = qkv_RND.new_empty(*qkv_RND.shape[:2], qkv_RND.shape[2] // 3)
    unfolded = _fold(out_RND, 1, heads, across, width)[0]
    torch.div(mixed_PSE.view(unfolded.shape), sum_PS1.view(*unfolded.shape[:-1], 1), out=unfolded)
    return out_RND, qkv_3PSE, power_PSS, sum_PS1


def _backward(
    d_out_RND: Tensor,
    out_RND: Tensor,
    qkv_3PSE: Tensor,
    power_PSS: Tensor,
    sum_PS1: Tensor,
    heads: int,
    across: bool,
    width: int,
) -> Tensor:
    """Return the gradient of packed q, k, v (R, N, 3 D). It is linear in d_out / sums, so powers are never divided."""
    q_PSE, k_PSE, v_PSE = qkv_3PSE
    d_PSE, out_PSE = (_fold(x, 1, heads, across, width)[0].reshape(q_PSE.shape) for x in (d_out_RND, out_RND))
    d_PSE = d_PSE / sum_PS1
    d_score_PSS = _product(d_PSE, v_PSE.transpose(1, 2))
    d_score_PSS.sub_((d_PSE * out_PSE).sum(-1, keepdim=True)).mul_(power_PSS)
    scale = q_PSE.shape[-1] ** -0.5
    d_qkv_RND = d_out_RND.new_empty(*d_out_RND.shape[:2], 3 * d_out_RND.shape[2])
    d_q, d_k, d_v = _fold(d_qkv_RND, 3, heads, across, width)
    d_q.copy_(_product(d_score_PSS, k_PSE, scale).view(d_q.shape))
    d_k.copy_(_product(d_score_PSS.transpose(1, 2), q_PSE, scale).view(d_k.shape))
    d_v.copy_(_product(power_PSS.transpose(1, 2), d_PSE).view(d_v.shape))
    return d_qkv_RND


def _scores(q_PSE: Tensor, k_PSE: Tensor) -> Tensor:
    return _product(q_PSE, k_PSE.transpose(1, 2), math.log2(math.e) * q_PSE.shape[-1] ** -0.5)


def _sums(x_PSS: Tensor) -> Tensor:
    """Return sums along the last axis, (P, S, 1), by a product with ones, which is twice as fast as torch's sum."""
    length = x_PSS.shape[-1]
    return torch.mv(x_PSS.view(-1, length), x_PSS.new_ones(length)).view(-1, length, 1)


def _fold(x_RND: Tensor, parts: int, heads: int, across: bool, width: int) -> Tensor:
    """Return a view of the ``parts`` x H heads of each token, with parts first and the attended axis next to last.

    It uses ``view``, because ``unflatten`` has no rule for the batched gradients of a vectorized Jacobian.
    """
    rows, tokens, size = x_RND.shape
    dim = size // (parts * heads)
    if across:
        return x_RND.view(rows // width, width, tokens, parts, heads, dim).permute(3, 0, 2, 4, 1, 5)
    return x_RND.view(rows, tokens, parts, heads, dim).permute(2, 0, 3, 1, 4)


def _product(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)
