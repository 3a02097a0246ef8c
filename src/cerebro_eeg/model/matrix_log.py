"""The logarithm of covariance matrices, with a gradient that is also finite where eigenvalues are equal.

The gradient that torch derives for ``eigh`` divides by the differences of eigenvalues, so it is NaN at the identity.
The logarithm itself is smooth there. Its derivative, by Daleckii and Krein, needs only *divided differences* of the
logarithm, (log a - log b) / (a - b), which tend to 1 / a for b towards a.

Legend: **C** channels; any axes may come before them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def matrix_log(covariance: Tensor) -> Tensor:
    """Return the logarithm (..., C, C) of symmetric positive definite matrices (..., C, C).

    Only the symmetric part of a matrix counts. An eigenvalue that rounding has made zero or negative is raised to the
    largest one times the machine epsilon. Shrink matrices of low rank beforehand, because their gradient is huge.
    """
    log_CC: Tensor = _MatrixLog.apply(covariance)  # type: ignore[no-untyped-call]
    return log_CC


class _MatrixLog(torch.autograd.Function):
    """The logarithm by eigenvalues, with the derivative of Daleckii and Krein."""

    @staticmethod
    def forward(ctx: Any, matrix_CC: Tensor) -> Tensor:
        value_C, vector_CC = torch.linalg.eigh((matrix_CC + matrix_CC.mT) / 2)
        kind = torch.finfo(value_C.dtype)
        value_C = torch.maximum(value_C, (value_C[..., -1:] * kind.eps).clamp_min(kind.tiny))
        ctx.save_for_backward(value_C, vector_CC)
        return (vector_CC * value_C.log().unsqueeze(-2)) @ vector_CC.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log_CC: Tensor) -> Tensor:
        value_C, vector_CC = ctx.saved_tensors
        inner_CC = divided_differences(value_C) * (vector_CC.mT @ d_log_CC @ vector_CC)
        d_matrix_CC = vector_CC @ inner_CC @ vector_CC.mT
        return (d_matrix_CC + d_matrix_CC.mT) / 2


def divided_differences(value_C: Tensor) -> Tensor:
    """Return (log a - log b) / (a - b) for all pairs of positive eigenvalues, (..., C, C); 1 / a where they are equal.

    With h = (a - b) / (a + b), log a - log b is 2 artanh(h). This form keeps all digits where a and b are close, where
    the plain quotient loses them. The plain quotient is right where they are far apart and h would round to 1.
    """
    a_CC, b_CC = value_C.unsqueeze(-1), value_C.unsqueeze(-2)
    sum_CC, difference_CC = a_CC + b_CC, a_CC - b_CC
    h_CC = difference_CC / sum_CC
    close_CC, equal_CC = h_CC.abs() < 0.5, h_CC == 0
    h_CC = h_CC.masked_fill(equal_CC | ~close_CC, 0.25)  # any number whose quotient is finite; it is not used
    near_CC = (torch.atanh(h_CC) / h_CC).masked_fill(equal_CC, 1) * 2 / sum_CC
    far_CC = (a_CC.log() - b_CC.log()) / difference_CC.masked_fill(close_CC, 1)
    return torch.where(close_CC, near_CC, far_CC)
