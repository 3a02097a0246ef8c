"""The noise of fine-tuning in one kernel. By torch's operators it is fifty-five, which a GPU waits for.

Legend: **R** rows, **T** samples.
"""

import torch
from torch import Tensor

from cerebro_eeg.batch import onto
from cerebro_eeg.fast import eligible

MOST = 8192  # samples of a row, which all stay in registers
WARPS = 8


def add_noise(signal_RT: Tensor, rows_R2: Tensor, ratio: float) -> Tensor | None:
    """Return a signal with noise in float32; None where torch's operators must compute it.

    ``rows_R2`` is on the CPU: the key of the window of each row, and its channel there, or -1 for a row without noise.
    """
    if not can_add_noise(signal_RT):
        return None
    out_RT = torch.empty(signal_RT.shape, dtype=torch.float32, device=signal_RT.device)
    if len(out_RT):
        launch(signal_RT.contiguous(), onto(rows_R2, signal_RT.device), out_RT, ratio)
    return out_RT


def can_add_noise(signal_RT: Tensor) -> bool:
    """Return whether the kernel may compute the noise of a signal."""
    fits = signal_RT.dtype in (*eligible.DTYPES, torch.float32) and 0 < signal_RT.shape[1] <= MOST
    return fits and signal_RT.is_cuda and eligible.TRITON and eligible.ours() and not eligible.recorded()


def launch(signal_RT: Tensor, rows_R2: Tensor, out_RT: Tensor, ratio: float) -> None:
    """Run the kernel, a program per row."""
    from cerebro_eeg.fast.triton import noise

    rows, samples = signal_RT.shape
    block = max(128, 1 << (samples - 1).bit_length())
    with torch.cuda.device_of(signal_RT):  # Triton launches on the current device
        noise.add_noise[(rows,)](signal_RT, rows_R2, out_RT, samples, ratio, BLOCK_T=block, num_warps=WARPS)
