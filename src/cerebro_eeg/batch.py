"""Batch, the one type that data and model share, and Layout, which tells which rows form a window.

Windows of one batch may have different numbers of channels. A batch therefore stacks the channels of all windows as R
rows, without pads. Only attention across channels and pooling need to know which rows form a window. For them
:class:`Layout` arranges the rows as a (B, C) grid and back; for windows with equally many channels the grid is a view.
The paper's padded windows are a batch, too: its layout marks the real rows. Both forms give the same outputs.

Legend: **B** windows, **C** channels of the widest window, **R** rows, **T** samples. The name of a tensor ends with
its axes: ``signal_RT`` has the shape (R, T).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def onto(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor to a device. A copy from ordinary memory would wait for all work of a GPU; page-locked does not."""
    if device is None or device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph cannot repeat a copy from the host")
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Layout:
    """The map from R rows to B windows.

    For example, windows of 2 and 3 rows form a grid of 2 x 3 places, and ``slot_R`` is 0, 1, 3, 4, 5.
    """

    windows: int
    """The number of windows, B."""
    width: int
    """The number of rows of the widest window, C."""
    slot_R: Tensor | None = None
    """The place of each row in the flattened (B, C) grid; None if every window has ``width`` rows."""
    real_R: Tensor | None = None
    """True for channels and false for pads, in padded windows; None if there are no pads."""
    present_BC: Tensor | None = None
    """True where the grid holds a channel; None if it does everywhere."""
    filled: int = 0
    """How many windows, the last ones, only fill up the rows and count for nothing."""

    @staticmethod
    def uniform(windows: int, width: int) -> "Layout":
        """Return the layout of ``windows`` windows of ``width`` rows each."""
        return Layout(windows, width)

    @staticmethod
    def ragged(counts: Sequence[int], device: torch.device | None = None, width: int = 0, filled: int = 0) -> "Layout":
        """Return the layout of windows of ``counts[0]``, ``counts[1]``, ... rows, in a grid of at least ``width``."""
        width = max(width, *counts, 0)
        if not filled and all(n == width for n in counts):
            return Layout(len(counts), width)
        counts_B = np.array(counts, np.int64)  # NumPy: torch would wake its threads for this, which can take 5 ms
        shift_R = np.repeat(np.arange(len(counts)) * width - (counts_B.cumsum() - counts_B), counts_B)
        slot_R = torch.from_numpy(shift_R + np.arange(len(shift_R)))
        present_BC = torch.from_numpy(np.arange(width) < counts_B[:, None])
        return Layout(len(counts), width, onto(slot_R, device), None, onto(present_BC, device), filled)

    @staticmethod
    def padded(real_BC: Tensor) -> "Layout":
        """Return the layout of windows padded to the same width; ``real_BC`` is false for pads."""
        return Layout(real_BC.shape[0], real_BC.shape[1], None, real_BC.flatten(), real_BC)

    def grid(self, x_R: Tensor) -> Tensor:
        """Arrange rows (R, ...) as a grid (B, C, ...), with zeros where a ragged window has no row."""
        shape = (self.windows, self.width, *x_R.shape[1:])
        if self.slot_R is None:
            return x_R.reshape(shape)
        flat = x_R.new_zeros(self.windows * self.width, *x_R.shape[1:])
        return flat.index_copy_(0, self.slot_R, x_R).reshape(shape)

    def rows(self, x_BC: Tensor) -> Tensor:
        """Return the rows (R, ...) of a grid (B, C, ...)."""
        return x_BC.flatten(0, 1) if self.slot_R is None else x_BC.flatten(0, 1).index_select(0, self.slot_R)

    def per_row(self, x_B: Tensor) -> Tensor:
        """Repeat the value of each window for all of its rows: (B, ...) to (R, ...)."""
        if self.slot_R is None:
            return x_B.repeat_interleave(self.width, 0)
        return x_B.index_select(0, self.slot_R // self.width)

    def counts(self, device: torch.device) -> Tensor:
        """Return the number of real rows of each window, (B,)."""
        if self.present_BC is None:
            return torch.full((self.windows,), self.width, device=device)
        return functional.pad(self.present_BC[: self.windows - self.filled].sum(1), (0, self.filled))

    def counted(self) -> Tensor | None:
        """Return true for the rows that count, (R,): neither pads nor rows that only fill up; None if all count."""
        real = (self.windows - self.filled) * self.width
        return self.slot_R < real if self.filled and self.slot_R is not None else self.real_R

    def first_rows(self) -> Tensor | None:
        """Return the first row of each ragged window and the number of all rows, (B + 1,); None for equal windows."""
        if self.slot_R is None or self.present_BC is None:
            return None
        return functional.pad(self.present_BC.sum(1).cumsum(0), (1, 0))

    def doubled(self, separated: bool, device: torch.device) -> tuple["Layout", Tensor]:
        """Return the layout of two rows per channel, for magnitude and phase, and the source of each row.

        Rows 2 r and 2 r + 1 of the source belong to channel r. They stay side by side. If ``separated``, the second
        rows of a window follow all of its first rows.
        """
        source_R = torch.arange(self._rows() * 2, device=device)
        if separated:  # a stable sort by (window, first or second) keeps the order of the channels
            window_R = self.per_row(torch.arange(self.windows, device=device)).repeat_interleave(2)
            source_R = (window_R * 2 + source_R % 2).argsort(stable=True)
        if self.slot_R is not None:
            slot_R = torch.stack([self._double_slot() + k for k in (0, 1)], 1).flatten()
            assert self.present_BC is not None
            present_BC = self.present_BC.repeat_interleave(2, 1)
            return replace(self, width=2 * self.width, slot_R=slot_R, present_BC=present_BC), source_R
        if self.real_R is None:
            return Layout.uniform(self.windows, 2 * self.width), source_R
        real_R = self.real_R[source_R // 2]
        return Layout.padded(real_R.reshape(self.windows, 2 * self.width)), source_R

    def _rows(self) -> int:
        return self.windows * self.width if self.slot_R is None else len(self.slot_R)

    def _double_slot(self) -> Tensor:
        """Return the first of the two places that a row gets in the grid of twice the width."""
        assert self.slot_R is not None
        return self.slot_R // self.width * (2 * self.width) + self.slot_R % self.width * 2


@dataclass(frozen=True)
class Batch:
    """Windows of EEG in microvolts, with the electrode of every row."""

    signal_RT: Tensor
    """Samples of every channel of every window."""
    channels_R2: Tensor
    """Ids of the electrode of every row, and of the electrode subtracted from it (0 if none). A pad has 0, 0."""
    layout: Layout
    """The rows of each window."""
    scale_R: Tensor | None = None
    """The scale of each row's recording in microvolts, for model configs that ask for it."""

    @staticmethod
    def dense(signal_BCT: Tensor, channels: Tensor, scale: Tensor | None = None) -> "Batch":
        """Make a batch of windows with equally many rows; ids are (C, 2), or (B, C, 2) with 0, 0 for pads.

        Pads stay in the batch, as in the paper; :meth:`packed` removes them.
        """
        windows, width = signal_BCT.shape[:2]
        channels_BC2 = channels.to(signal_BCT.device).expand(windows, width, 2)
        layout = Layout.uniform(windows, width)
        if channels.dim() == 3:  # a montage that all windows share has no pads
            layout = Layout.padded(channels_BC2[..., 0] != 0)
        scale_R = None
        if scale is not None:
            scale_B1 = scale.to(signal_BCT).reshape(-1, 1) if scale.dim() < 2 else scale.to(signal_BCT)
            scale_R = scale_B1.expand(windows, width).flatten()
        return Batch(signal_BCT.flatten(0, 1), channels_BC2.flatten(0, 1), layout, scale_R)

    @staticmethod
    def ragged(windows: Sequence[Tensor], channels: Sequence[Tensor], scale: Tensor | None = None) -> "Batch":
        """Make a batch of one or more windows (C_i, T) of any numbers of channels, each with its ids (C_i, 2)."""
        signal_RT = torch.cat(list(windows))
        layout = Layout.ragged([len(w) for w in windows], signal_RT.device)
        scale_R = None if scale is None else layout.per_row(scale.to(signal_RT))
        ids_R2 = torch.cat([ids.reshape(-1, 2).to(signal_RT.device, torch.int64) for ids in channels])
        return Batch(signal_RT, ids_R2, layout, scale_R)

    def packed(self) -> "Batch":
        """Return the same windows without their pads."""
        if (keep_R := self.layout.real_R) is None:
            return self
        counts = keep_R.reshape(self.layout.windows, self.layout.width).sum(1).tolist()
        layout = Layout.ragged(counts, keep_R.device)
        scale_R = None if self.scale_R is None else self.scale_R[keep_R]
        return Batch(self.signal_RT[keep_R], self.channels_R2[keep_R], layout, scale_R)
