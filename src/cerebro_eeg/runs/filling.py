"""Filling: windows with the masked patches of validation, montage by montage, filled in by a model or still open.

Legend: **B** windows, **C** rows of a window, **N** patches, **L** values in a patch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Step
from cerebro_eeg.model.masked import MaskedCerebro, choose_masked
from cerebro_eeg.model.patches import make_patches
from cerebro_eeg.runs.baselines import Montage
from cerebro_eeg.runs.pretrain import Sources, mask_noise

BATCH = 32
PHASE = " (phase)"
"""Behind the name of a channel, for the row that has its phase."""


@dataclass(frozen=True)
class Masked:
    """Windows of one montage of one source; on the CPU where the device has no float64 for what comes next."""

    source: int
    window: NDArray[np.int64]
    """Their numbers in the source."""
    montage: Montage
    """Names of the C rows."""
    target_BCNL: Tensor
    masked_BCN: Tensor
    predicted_BCNL: Tensor | None
    """What a model makes of them; None without one."""


@torch.no_grad()
def mask_windows(
    config: ModelConfig,
    objective: ObjectiveConfig,
    sources: Sources,
    chosen: Sequence[NDArray[np.int64]],
    device: torch.device,
    model: MaskedCerebro | None = None,
) -> Iterator[Masked]:
    """The chosen windows of each source with the masks that validation gives them, and what the model says of them."""
    for source, (store, windows) in enumerate(sources):
        steps = _steps(windows.facts.montage[windows.recording[chosen[source]]], chosen[source])
        with Loader([(store, windows)], threads=2) as loader:
            for raw in loader.stream(steps):
                batch = lay_out(raw, device)
                noise_RN = mask_noise(
                    config, batch.layout, raw.key_B, raw.epoch_B, 0, config.patches.count(raw.samples), device
                )
                if model is None:
                    patches = make_patches(batch, config)
                    target, predicted = patches.values_RNL, None
                    masked = choose_masked(noise_RN, patches.layout, objective.mask_ratio)
                else:
                    found = model(batch, noise_RN)
                    target, predicted, masked = found.target_RNL, found.predicted_RNL, found.masked_RN
                montage = _montage(config, batch)
                if device.type == "mps":
                    target, masked = target.cpu(), masked.cpu()
                    predicted = None if predicted is None else predicted.cpu()
                shape = (len(raw.counts), len(montage), *target.shape[1:])
                yield Masked(
                    source,
                    raw.step.window,
                    montage,
                    target.reshape(shape),
                    masked.reshape(shape[:3]),
                    None if predicted is None else predicted.reshape(shape),
                )


def spread_windows(sources: Sources, limit: int | None) -> list[NDArray[np.int64]]:
    """Numbers of up to ``limit`` windows of all sources together, spread evenly."""
    counts = np.array([len(windows) for _, windows in sources], np.int64)
    places = spread(np.arange(counts.sum(), dtype=np.int64), limit)
    first = np.cumsum(counts) - counts
    return [places[(places >= a) & (places < a + n)] - a for a, n in zip(first.tolist(), counts.tolist(), strict=True)]


def spread(numbers: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    """Up to ``limit`` of them, spread evenly."""
    if limit is None or len(numbers) <= limit:
        return numbers
    return numbers[np.arange(limit) * len(numbers) // limit]


def _steps(montage: NDArray[np.int32], chosen: NDArray[np.int64]) -> Iterator[Step]:
    """Steps of windows that share a montage: their rows form a grid."""
    for number in np.unique(montage).tolist():
        mine = chosen[montage == number]
        for first in range(0, len(mine), BATCH):
            part = mine[first : first + BATCH]
            yield Step(np.zeros_like(part), part, np.zeros_like(part))


def _montage(config: ModelConfig, batch: Batch) -> Montage:
    """Names of the rows that the patches of every window of a batch have; with phase, two rows a channel."""
    names = [
        "-".join(VOCABULARY[id - 1] for id in pair if id)
        for pair in batch.channels_R2[: batch.layout.width].cpu().tolist()
    ]
    if config.patches.phase == "interleaved":
        return tuple(row for name in names for row in (name, name + PHASE))
    if config.patches.phase == "separated":
        return (*names, *(name + PHASE for name in names))
    return tuple(names)
