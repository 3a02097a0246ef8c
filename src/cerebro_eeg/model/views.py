"""Views: random changes of training windows that keep their meaning, so that few hours of EEG teach more.

A view of a window has fewer channels, another reference, or hides how loud it is beside the rest of its recording. All
random numbers are given by the caller, who makes them from (seed, epoch, window). None of this is the paper's.

Legend: **B** windows, **C** channels of the widest window, **R** rows, **T** samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.config import ObjectiveConfig

FEWEST = 4
"""Fewest channels whose average is a reference."""


def has_views(objective: ObjectiveConfig) -> bool:
    """Return whether training windows are changed at all."""
    return objective.keep_channels < 1 or objective.rereference > 0 or objective.hide_amplitude > 0


def kept_counts(counts: Sequence[int], noise_B: Tensor, objective: ObjectiveConfig) -> list[int]:
    """Return how many channels each window keeps: a uniform share from ``keep_channels`` to 1, rounded up.

    Training needs these numbers for all windows of a step, of other processes too. They are therefore counted alone.
    """
    least = objective.keep_channels
    share_B = least + (1 - least) * noise_B.double()
    return (torch.tensor(counts, dtype=torch.float64) * share_B).ceil().clamp_min(1).to(torch.int64).tolist()


def make_view(
    batch: Batch, counts: Sequence[int], objective: ObjectiveConfig, noise_B3: Tensor, noise_R: Tensor
) -> Batch:
    """Return a view of every window of a batch without pads.

    ``counts`` are the channels of each window. The noise is uniform, on the CPU. Its first column decides how many
    channels a window keeps, its second whether it is referenced anew, its third whether its amplitude is hidden. A
    window keeps the channels with the smallest ``noise_R``.
    """
    if objective.keep_channels < 1:
        batch = _some_channels(batch, counts, kept_counts(counts, noise_B3[:, 0], objective), noise_R)
    if objective.rereference > 0:
        batch = _average_reference(batch, onto(noise_B3[:, 1] < objective.rereference, batch.signal_RT.device))
    if objective.hide_amplitude > 0:
        batch = _without_amplitude(batch, onto(noise_B3[:, 2] < objective.hide_amplitude, batch.signal_RT.device))
    return batch


def _some_channels(batch: Batch, counts: Sequence[int], kept: Sequence[int], noise_R: Tensor) -> Batch:
    """Keep so many channels of each window, those with the smallest noise, in their order."""
    device, layout = batch.signal_RT.device, Layout.ragged(counts)
    noise_BC = layout.grid(noise_R)
    if layout.present_BC is not None:
        noise_BC = noise_BC.masked_fill(~layout.present_BC, torch.inf)
    rank_BC = noise_BC.argsort(dim=1, stable=True).argsort(dim=1)
    kept_R = layout.rows(rank_BC < torch.tensor(kept)[:, None])
    row_R = onto(kept_R.nonzero().flatten(), device)
    scale_R = None if batch.scale_R is None else batch.scale_R[row_R]
    return Batch(batch.signal_RT[row_R], batch.channels_R2[row_R], Layout.ragged(kept, device), scale_R)


def _average_reference(batch: Batch, chosen_B: Tensor) -> Batch:
    """Subtract the mean of their channels from the chosen windows.

    Bipolar channels have no common reference, and the mean of few channels is mostly one of them. Windows that have
    either stay as they are.
    """
    layout = batch.layout
    signal_RT = _at_least_float32(batch.signal_RT)
    count_B = layout.counts(signal_RT.device)
    plain_B = (layout.grid(batch.channels_R2[:, 1]) == 0).all(1)
    mean_BT = layout.grid(signal_RT).sum(1) / count_B.clamp_min(1)[:, None].to(signal_RT.dtype)
    suits_B = chosen_B & plain_B & (count_B >= FEWEST)
    signal_RT = signal_RT - layout.per_row(mean_BT * suits_B[:, None].to(mean_BT.dtype))
    return Batch(signal_RT, batch.channels_R2, layout, batch.scale_R)


def _without_amplitude(batch: Batch, chosen_B: Tensor) -> Batch:
    """Take each channel's own deviation for the scale of its recording, in the chosen windows.

    The model then sees an amplitude of 0, the logarithm of 1, which is the usual one.
    """
    assert batch.scale_R is not None
    std_R = _at_least_float32(batch.signal_RT).std(-1, correction=0)
    hidden_R = batch.layout.per_row(chosen_B) & (std_R > 0)
    return Batch(batch.signal_RT, batch.channels_R2, batch.layout, torch.where(hidden_R, std_R, batch.scale_R))


def _at_least_float32(signal_RT: Tensor) -> Tensor:
    return signal_RT.to(torch.promote_types(signal_RT.dtype, torch.float32))
