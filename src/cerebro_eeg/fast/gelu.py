"""GELU and its gradient as passes over memory at the speed of a copy, in half precision on CUDA.

The backward pass also gives the sum over all tokens, which a bias before GELU needs and which would else be a pass of
its own. ``mlp.py`` takes them on GPUs where it cannot compute GELU within the products beside it.

Legend: **R** rows, **N** tokens of a row, **H** hidden width.
"""

import torch
from torch import Tensor

BLOCK = 2048  # values of a program, the best of a sweep on an H200 (benchmarks/README.md)
BLOCK_T, BLOCK_H, STEPS = 8, 128, 16


def run_gelu(x: Tensor, out: Tensor) -> None:
    """GELU of ``x`` into ``out``, which may be ``x`` itself."""
    if x.numel():
        from cerebro_eeg.fast.triton import gelu

        with torch.cuda.device_of(x):
            gelu.forward[(-(-x.numel() // BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)


def run_gelu_backward(x_RNH: Tensor, d_out_RNH: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of GELU's input, and its sum over all tokens in float32."""
    x_RNH, d_out_RNH = x_RNH.contiguous(), d_out_RNH.contiguous()
    d_x_RNH, hidden = torch.empty_like(x_RNH), x_RNH.shape[-1]
    rows = x_RNH.numel() // max(1, hidden)
    programs = -(-rows // (BLOCK_T * STEPS))
    sums_PH = x_RNH.new_empty(programs, hidden, dtype=torch.float32)
    if x_RNH.numel():
        from cerebro_eeg.fast.triton import gelu

        with torch.cuda.device_of(x_RNH):
            gelu.backward[(programs, -(-hidden // BLOCK_H))](
                x_RNH, d_out_RNH, d_x_RNH, sums_PH, rows, hidden, BLOCK_T=BLOCK_T, BLOCK_H=BLOCK_H, STEPS=STEPS
            )
    return d_x_RNH, sums_PH.sum(0)
