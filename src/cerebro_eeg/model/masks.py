"""The random masks of pre-training, which hide a fixed share of the tokens of each window.

Legend: **B** windows, **C** rows of a window, **R** rows of all windows, **N** tokens of a row, **M** tokens of a
window.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cerebro_eeg.batch import Layout


def token_counts(rows: Sequence[int], tokens: int, ratio: float) -> tuple[int, int]:
    """Return the numbers of masked and of visible tokens of windows with these numbers of rows."""
    masked = sum(round(ratio * (count * tokens)) for count in rows)
    return masked, sum(rows) * tokens - masked


def choose_masked(noise_RN: Tensor, layout: Layout, ratio: float) -> Tensor:
    """Mask ``round(ratio * tokens)`` tokens of each window, those with the smallest noise; pads do not count.

    The count is computed in float64, because a float32 product may round a half differently from Python's ``round``.
    """
    tokens, device = noise_RN.shape[1], noise_RN.device
    noise_BCN = layout.grid(noise_RN)
    if layout.present_BC is not None:  # places without a channel may hold anything, NaN too: fill them
        noise_BCN = noise_BCN.masked_fill(~layout.present_BC[..., None], torch.inf)
    rank_BM = noise_BCN.flatten(1).argsort(dim=1, stable=True).argsort(dim=1)
    real_B = layout.counts(device) * tokens
    real_B = real_B.cpu() if device.type == "mps" else real_B  # MPS has no float64
    masked_BM = rank_BM < (real_B.double() * ratio).round().to(device, torch.int64)[:, None]
    return layout.rows(masked_BM.reshape(noise_BCN.shape))
