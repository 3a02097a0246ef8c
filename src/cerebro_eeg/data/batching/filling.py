"""Batches of few shapes: windows with different channels are filled up to a round number of rows.

A CUDA graph holds for one shape, and the windows of every step have another number of channels together. A few empty
windows at the end of a batch make up the difference. Their rows are zeros, and they count for nothing
(``Layout.filled``).

Legend: **B** windows, **R** rows (channels of all windows), **T** samples.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cerebro_eeg.batch import Batch, Layout

LARGEST = 4.0
"""Deviations above the mean number of rows that one common shape has room for."""


@dataclass(frozen=True)
class Filling:
    """How batches are filled up."""

    rows: int
    """The number of rows becomes a multiple of this one."""
    width: int
    """Rows of the widest window of all batches."""

    @staticmethod
    def choose(channels: NDArray[np.integer], windows: int, one_shape: bool = False) -> "Filling | None":
        """Return how to fill batches of so many windows that are drawn from ``channels``; None if all are alike.

        The sum of the channels of a batch has a deviation, and batches become a multiple of it: about five shapes, and
        less than one deviation of empty rows. With ``one_shape`` there is almost always one, with more empty rows.
        """
        lowest, width = int(channels.min()), int(channels.max())
        if lowest == width:
            return None
        deviation = float(channels.std()) * windows**0.5
        if one_shape:
            return Filling(min(windows * width, round(float(channels.mean()) * windows + LARGEST * deviation)), width)
        return Filling(1 << max(3, round(np.log2(max(1.0, deviation)))), width)

    @property
    def windows(self) -> int:
        """The number of empty windows that every batch gets."""
        return -(-(self.rows - 1) // self.width)

    def counts(self, counts: Sequence[int]) -> list[int]:
        """Return the rows of the empty windows for a batch of windows with these rows."""
        left = -sum(counts) % self.rows
        return [min(self.width, max(0, left - place * self.width)) for place in range(self.windows)]

    def fill(self, batch: Batch, counts: Sequence[int]) -> Batch:
        """Return a batch of windows with these rows, filled up."""
        empty = self.counts(counts)
        more = sum(empty)
        layout = Layout.ragged([*counts, *empty], batch.signal_RT.device, self.width, len(empty))
        scale_R = batch.scale_R
        return Batch(
            functional.pad(batch.signal_RT, (0, 0, 0, more)),
            functional.pad(batch.channels_R2, (0, 0, 0, more)),
            layout,
            None if scale_R is None else functional.pad(scale_R, (0, more), value=1.0),
        )

    def extend(self, x_B: Tensor, value: float = 0) -> Tensor:
        """Return a value for every window, with ``value`` for the empty ones."""
        return functional.pad(x_B, (0, self.windows), value=value)


def apart(batch: Batch) -> tuple[tuple[int, ...], tuple[Tensor | None, ...]]:
    """Return the form of a batch and its tensors, from which :func:`together` makes the batch again."""
    layout = batch.layout
    tensors = batch.signal_RT, batch.channels_R2, batch.scale_R, layout.slot_R, layout.real_R, layout.present_BC
    return (layout.windows, layout.width, layout.filled), tensors


def together(form: Hashable, tensors: Sequence[Tensor | None]) -> Batch:
    """Return the batch of a form and its tensors."""
    signal_RT, channels_R2, scale_R, slot_R, real_R, present_BC = tensors
    assert signal_RT is not None
    assert channels_R2 is not None
    assert isinstance(form, tuple)
    windows, width, filled = form
    return Batch(signal_RT, channels_R2, Layout(windows, width, slot_R, real_R, present_BC, filled), scale_R)
