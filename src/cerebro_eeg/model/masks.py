"""The random masks of pre-training, which hide a fixed share of the tokens of each window.

The paper masks tokens anywhere. A model can then fill many of them in from a neighbour in time or on the head. Blocks
cover neighbouring electrodes for a second or two, so that less is left to copy. Both masks hide the same number of
tokens, which training must know beforehand.

Legend: **B** windows, **C** rows of a window, **R** rows of all windows, **N** tokens of a row, **M** tokens of a
window, **T** instants of tokens.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from cerebro_eeg.batch import Layout
from cerebro_eeg.channels.electrodes import HEAD_MM, POSITIONS
from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.model.patches import Patches


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


def mask_tokens(noise_RN: Tensor, patches: Patches, config: ModelConfig, objective: ObjectiveConfig) -> Tensor:
    """Mask the tokens with the smallest noise or, in blocks, those nearest to the smallest noise."""
    if objective.masking == "blocks":
        noise_RN = grow_blocks(noise_RN, patches, config, objective)
    return choose_masked(noise_RN, patches.layout, objective.mask_ratio)


def grow_blocks(noise_RN: Tensor, patches: Patches, config: ModelConfig, objective: ObjectiveConfig) -> Tensor:
    """Return noise that is equal within blocks: each token gets the smallest noise of all blocks that cover it.

    Every token is the centre of a block. The last channel that would be masked at an instant gets 1 more, so never all
    channels are masked at once, unless the ratio leaves no choice. A window of one channel has blocks in time alone.
    Noise is expected to lie in [0, 1).
    """
    layout, bands = patches.layout, config.patches.bands
    span = max(1, round(objective.block_seconds * config.signal.sfreq / config.patches.step))
    lowest_RT = noise_RN.unflatten(1, (-1, bands)).amin(-1)
    padded_RT = functional.pad(lowest_RT, (span // 2, (span - 1) // 2), value=torch.inf)
    grid_BCT = layout.grid(padded_RT.unfold(-1, span, 1).amin(-1))
    near_BCC = neighbours(layout.grid(patches.channels_R2), objective.block_mm)
    if layout.present_BC is not None:  # places without a channel may hold anything
        near_BCC = near_BCC & layout.present_BC[:, None]
    grown_BCT = torch.where(near_BCC[..., None], grid_BCT[:, None], torch.inf).amin(2)
    if layout.present_BC is not None:
        grown_BCT = grown_BCT.masked_fill(~layout.present_BC[..., None], -torch.inf)
    place_C1 = torch.arange(layout.width, device=noise_RN.device)[:, None]
    last_BCT = place_C1 == grown_BCT.argmax(1, keepdim=True)
    return layout.rows(grown_BCT + last_BCT.to(grown_BCT.dtype)).repeat_interleave(bands, 1)


def neighbours(channels_BC2: Tensor, limit_mm: float) -> Tensor:
    """Return (B, C, C): whether two channels are at most so many millimetres apart along the scalp.

    A bipolar channel lies halfway between its electrodes. Electrodes opposite to each other have no halfway point; such
    a channel is the neighbour of itself alone.
    """
    sum_BC3 = _directions(channels_BC2.device)[channels_BC2].sum(2)
    size_BC1 = sum_BC3.norm(dim=-1, keepdim=True)
    direction_BC3 = torch.where(size_BC1 > 0.01, sum_BC3 / size_BC1, 0.0)
    cosine_BCC = direction_BC3 @ direction_BC3.transpose(1, 2)
    itself_CC = torch.eye(channels_BC2.shape[1], dtype=torch.bool, device=channels_BC2.device)
    # The table of positions has four digits.
    return itself_CC | (cosine_BCC >= math.cos(min(limit_mm / HEAD_MM, math.pi)) - 1e-4)


@functools.cache
def _directions(device: torch.device) -> Tensor:
    """Return the direction of every electrode, in the order of ids; zeros for 0, which is no electrode."""
    with torch.inference_mode(False):
        return torch.tensor([(0.0, 0.0, 0.0), *POSITIONS.values()], dtype=torch.float32, device=device)
