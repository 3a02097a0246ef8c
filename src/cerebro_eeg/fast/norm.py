"""A residual addition with the following LayerNorm, as an operator of torch with one pass over memory per direction.

It is used for tokens in half precision on CUDA, unless the user chooses stock kernels. Statistics and sums are float32.
The backward pass returns the gradients of the summands, of the weight and of the bias at once. The norm may also add
the bias of the linear layer before it, and multiply by the factors of drop path. The gradient of that bias and the
products then cost no further pass over memory.

Under autocast torch computes ``layer_norm`` in float32 between two casts, at a fifth of a copy's speed for 192 columns.
The kernel avoids both casts. Autocast differs by device: norms stay in half precision on a CPU and become float32 on
CUDA. Code here therefore states the type of its output explicitly.

Legend: **R** rows, **N** tokens of a row, **D** width, **P** programs, **S** sums.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cerebro_eeg.fast import eligible
from cerebro_eeg.fast.operators import fake, last, operator

MOST = 1024  # largest width: all values of a token stay in registers
Kind = Literal["forward", "alone", "backward"]
"""The norm of a sum, the norm of tokens without an addition, and the gradient of the first."""
HELD = 1152  # values of each of three inputs and three sums in the registers of a warp, backward: 36 per thread


@dataclass(frozen=True)
class NormTile:
    """The work of one program of ``triton/norm.py``."""

    rows: int
    """Tokens per step."""
    columns: tuple[int, int]
    """Columns of the two blocks that hold a token, powers of two."""
    warps: int
    stages: int
    """Steps that are loaded or computed at the same time."""
    programs: int
    """Programs that keep a GPU busy; with more tokens each takes several steps. 0 means one step per program."""

    def steps(self, rows: int) -> int:
        """Return the number of steps of each program."""
        return max(1, -(-rows // (self.rows * self.programs))) if self.programs else 1


@functools.cache
def tile(width: int, kind: Kind) -> NormTile:
    """Return the tile for a width. Programs with little to read, or with many sums, get few warps and read ahead.

    For 192, 576 and 768 columns the numbers were the best of sweeps on an H200 (forward 192 and 576). A tile must fit
    into registers and shared memory: 227 KiB on Hopper, 99 KiB on consumer GPUs. ``metadata.shared`` of a compilation
    without a GPU tells its size.
    """
    first = _power(max(1, width - 1))
    columns = first, 1 << (width - first - 1).bit_length() if width > first else 1
    if kind == "alone":
        return NormTile(16, columns, 2, 3, 1056) if width <= 256 else NormTile(2, columns, 1, 3, 1056)
    if kind == "forward":
        return NormTile(8, columns, 4, 1, 0) if width <= 256 else NormTile(4, columns, 2, 1, 0)
    held = sum(columns)
    if held > HELD // 2:
        return NormTile(1, columns, 2, 3, 1056)
    return NormTile(min(16, _power(HELD // held)), columns, 1, 3, 2048 if held <= 256 else 1056)


def _power(x: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << (x.bit_length() - 1)


def can_fuse(x: Tensor, pending: Tensor, norm: nn.Module) -> bool:
    """Return whether the kernels may add and normalise these tokens: half precision, and a plain norm with a bias."""
    if not eligible.half_on_cuda(x, norm, nn.LayerNorm) or not isinstance(norm, nn.LayerNorm):
        return False
    there = norm.weight is not None and norm.bias is not None
    alike = x.dtype == pending.dtype and x.shape == pending.shape
    return there and alike and x.dtype in eligible.DTYPES and x.shape[-1] <= MOST


class MissingBiases(NamedTuple):
    """Biases that must still be added to tokens: that of the last linear layer, and the sum of those before it.

    Only ``inference_cuda.py`` has such tokens. No other code may see them before the biases are added.
    """

    bias_D: Tensor | None = None
    before_D: Tensor | None = None

    def added_to(self, x_RND: Tensor) -> Tensor:
        """Return the tokens with their biases."""
        biases = [bias_D.float() for bias_D in self if bias_D is not None]
        return x_RND + torch.stack(biases).sum(0).to(x_RND.dtype) if biases else x_RND


@operator("cerebro_eeg::add_norm")
def add_norm_op(
    x_RND: Tensor,
    pending_RND: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    keep: bool,
    pending_bias_D: Tensor | None,
    factor_R: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + pending + bias, its norm and, for the gradient, mean and 1 / deviation of each token (2, R, N).

    The sum is x + factor (pending + bias) if each row has a factor. Factors have no gradient. The sum is empty if it
    would be x itself, without a gradient: no result may share memory with an argument.
    """
    x_RND = x_RND.contiguous()
    pending_RND = None if pending_RND is None else pending_RND.contiguous()
    out_RND, total_RND, kept_2RN = _results(x_RND, pending_RND, keep)
    wanted_RND, wanted_2RN = total_RND if pending_RND is not None or keep else None, kept_2RN if keep else None
    missing = MissingBiases(None if pending_RND is None else pending_bias_D)
    run_add_norm(x_RND, pending_RND, missing, weight_D, bias_D, eps, out_RND, wanted_RND, wanted_2RN, factor_R)
    return total_RND, out_RND, kept_2RN


def run_add_norm(
    x_RND: Tensor,
    pending_RND: Tensor | None,
    missing: MissingBiases,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    out_RND: Tensor,
    total_RND: Tensor | None,
    kept_2RN: Tensor | None = None,
    factor_R: Tensor | None = None,
) -> Tensor | None:
    """Write the norm of a sum and, if the caller passes tensors for them, the sum and the statistics for a gradient.

    Tokens are contiguous. The type of ``out_RND`` decides the precision of the norm. Without ``total_RND`` there is no
    pending branch, ``x`` stays as it is, and the function returns the sum of all biases that ``x`` lacks. A factor
    needs a pending branch, and there must then be no biases from before it.
    """
    width = x_RND.shape[-1]
    rows = x_RND.numel() // width
    factor_R = None if factor_R is None or pending_RND is None else _float32(factor_R)
    both = missing.bias_D is not None and missing.before_D is not None
    lacking_D = weight_D.new_empty(width, dtype=torch.float32) if both else None
    if rows:
        from cerebro_eeg.fast.triton import norm as norm_kernels

        t = tile(width, "forward" if pending_RND is not None else "alone")
        steps = t.steps(rows)
        weight_D = weight_D.contiguous()
        with torch.cuda.device_of(x_RND):
            norm_kernels.forward[(-(-rows // (t.rows * steps)),)](
                x_RND,
                x_RND if pending_RND is None else pending_RND,
                weight_D if missing.bias_D is None else missing.bias_D.contiguous(),
                weight_D if missing.before_D is None else missing.before_D.contiguous(),
                weight_D if factor_R is None else factor_R,
                weight_D,
                bias_D.contiguous(),
                x_RND if total_RND is None else total_RND,
                out_RND,
                weight_D if lacking_D is None else lacking_D,
                x_RND if kept_2RN is None else kept_2RN,  # something to point to
                rows,
                steps,
                1 if factor_R is None else x_RND.shape[1],
                eps,
                D=width,
                BLOCK_A=t.columns[0],
                BLOCK_B=t.columns[1],
                BLOCK_T=t.rows,
                PENDING=pending_RND is not None,
                BIAS=missing.bias_D is not None,
                BEFORE=missing.before_D is not None,
                FACTOR=factor_R is not None,
                TOTAL=total_RND is not None,
                KEEP=kept_2RN is not None,
                STAGES=t.stages,
                num_warps=t.warps,
            )
    return lacking_D if both else missing.before_D if missing.bias_D is None else missing.bias_D


def _float32(factor_R: Tensor) -> Tensor:
    return factor_R.to(torch.float32).contiguous()


def _results(x_RND: Tensor, pending_RND: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the norm, the sum and the statistics for the gradient."""
    out_RND = torch.empty_like(x_RND, memory_format=torch.contiguous_format)
    total_RND = torch.empty_like(out_RND) if pending_RND is not None or keep else x_RND.new_empty(0)
    return out_RND, total_RND, x_RND.new_empty(2 if keep else 0, *x_RND.shape[:-1], dtype=torch.float32)


@fake(add_norm_op)
def _(
    x_RND: Tensor,
    pending_RND: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    keep: bool,
    pending_bias_D: Tensor | None,
    factor_R: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    out_RND, total_RND, kept_2RN = _results(x_RND, pending_RND, keep)
    return total_RND, out_RND, kept_2RN


@operator("cerebro_eeg::add_norm_backward")
def add_norm_backward(
    d_total_RND: Tensor | None,
    d_out_RND: Tensor,
    total_RND: Tensor,
    weight_D: Tensor,
    kept_2RN: Tensor,
    pending: bool,
    factor_R: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of x, that of the pending branch, and those of weight and bias in float32 (2, D).

    The second is empty without a factor, because both summands then have the same gradient. With ``pending`` the last
    ones are (3, D), with the gradient of the pending bias. ``d_total_RND`` is None where only the norm of the sum is
    used, not the sum itself: after the last norm.
    """
    d_out_RND, weight_D = d_out_RND.contiguous(), weight_D.contiguous()
    d_x_RND, d_pending_RND = _gradients(total_RND, factor_R)
    factor_R = None if factor_R is None else _float32(factor_R)
    width = total_RND.shape[-1]
    rows = total_RND.numel() // width
    t = tile(width, "backward")
    steps = t.steps(rows)
    programs = -(-rows // (t.rows * steps))
    sums_PSD = total_RND.new_empty(programs, 3 if pending else 2, width, dtype=torch.float32)
    if rows:
        from cerebro_eeg.fast.triton import norm as norm_kernels

        with torch.cuda.device_of(total_RND):
            norm_kernels.backward[(programs,)](
                d_out_RND if d_total_RND is None else d_total_RND.contiguous(),  # something to point to
                d_out_RND,
                total_RND,
                weight_D,
                kept_2RN,
                weight_D if factor_R is None else factor_R,
                d_x_RND,
                d_x_RND if factor_R is None else d_pending_RND,
                sums_PSD,
                rows,
                steps,
                1 if factor_R is None else total_RND.shape[1],
                D=width,
                BLOCK_A=t.columns[0],
                BLOCK_B=t.columns[1],
                BLOCK_T=t.rows,
                TOTAL=d_total_RND is not None,
                PENDING=pending,
                FACTOR=factor_R is not None,
                STAGES=t.stages,
                num_warps=t.warps,
            )
    return d_x_RND, d_pending_RND, sums_PSD.sum(0)


def _gradients(total_RND: Tensor, factor_R: Tensor | None) -> tuple[Tensor, Tensor]:
    """Allocate the gradients of x and of the pending branch."""
    d_x_RND = torch.empty_like(total_RND)
    return d_x_RND, total_RND.new_empty(0) if factor_R is None else torch.empty_like(total_RND)


@fake(add_norm_backward)
def _(
    d_total_RND: Tensor | None,
    d_out_RND: Tensor,
    total_RND: Tensor,
    weight_D: Tensor,
    kept_2RN: Tensor,
    pending: bool,
    factor_R: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    sums_SD = total_RND.new_empty(3 if pending else 2, total_RND.shape[-1], dtype=torch.float32)
    return *_gradients(total_RND, factor_R), sums_SD


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    total_RND, _, kept_2RN = output
    ctx.set_materialize_grads(False)  # no zeros for the gradient of an unused sum
    ctx.save_for_backward(total_RND, inputs[2], kept_2RN, None if inputs[1] is None else inputs[7])
    ctx.bias_dtype = None if inputs[6] is None else inputs[6].dtype


def _gradient(
    ctx: Any, d_total_RND: Tensor | None, d_out_RND: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    pending: bool = ctx.needs_input_grad[6]
    total_RND, weight_D, kept_2RN, factor_R = ctx.saved_tensors
    d_out_RND = torch.zeros_like(total_RND) if d_out_RND is None else d_out_RND
    given = d_total_RND, d_out_RND, total_RND, weight_D, kept_2RN, pending, factor_R
    d_x_RND, d_pending_RND, sums_SD = last(*add_norm_backward(*given))
    d_pending_RND = d_x_RND if factor_R is None else d_pending_RND
    d_pending_bias_D = sums_SD[2].to(ctx.bias_dtype) if pending else None
    needed_RND = d_pending_RND if ctx.needs_input_grad[1] else None
    return d_x_RND, needed_RND, sums_SD[0], sums_SD[1], None, None, d_pending_bias_D, None


torch.library.register_autograd(add_norm_op, _gradient, setup_context=_keep)
