"""Baselines: what can be said of masked patches without a model: interpolation in time, ridge from other channels.

Both see what the model sees, the visible patches as the model's config makes them, and are judged on its target.

Legend: **B** windows, **C** rows of a window, **R** rows, **N** patches, **L** values in a patch; a series has **F**
features (1 for a waveform, a frequency each for a spectrogram) at **T** instants.
"""

import torch
from torch import Tensor

from cerebro_eeg.config import PatchConfig

Montage = tuple[str, ...]
"""Names of the rows of a window, in order."""
TERMS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridge terms to choose from, as shares of the mean variance of a row."""


def to_series(values_RNL: Tensor, config: PatchConfig) -> Tensor:
    """Patches laid out in time, (R, F, T); samples between patches that leave gaps are zeros."""
    rows, patches, size = values_RNL.shape
    if config.kind == "time_bins":
        return values_RNL.transpose(1, 2)
    if config.kind == "squares":
        side, bands = config.square, config.bands
        grid = values_RNL.reshape(rows, patches // bands, bands, side, side)  # frames of a square before its bins
        return grid.permute(0, 2, 4, 1, 3).reshape(rows, bands * side, -1)
    if config.stride == size:
        return values_RNL.reshape(rows, 1, -1)
    place_NL = torch.arange(patches)[:, None] * config.stride + torch.arange(size)
    place_RM = place_NL.flatten().to(values_RNL.device).expand(rows, -1)
    empty_RT = values_RNL.new_zeros(rows, (patches - 1) * config.stride + size)
    # Where patches overlap, any of them that is visible shows the sample; the values there are equal.
    found_RT = empty_RT.scatter_reduce(1, place_RM, values_RNL.flatten(1), "amax", include_self=False)
    return found_RT[:, None]


def to_patches(series_RFT: Tensor, config: PatchConfig) -> Tensor:
    """A series cut back into patches (R, N, L)."""
    if config.kind == "waveform":
        return series_RFT[:, 0].unfold(-1, config.length, config.stride)
    if config.kind == "time_bins":
        return series_RFT.transpose(1, 2)
    rows, side, bands = len(series_RFT), config.square, config.bands
    grid = series_RFT.reshape(rows, bands, side, -1, side)
    return grid.permute(0, 3, 1, 4, 2).reshape(rows, -1, side * side)


def hidden_series(masked_RN: Tensor, config: PatchConfig) -> Tensor:
    """(R, F, T): the instants that no visible patch shows."""
    visible_RNL = (~masked_RN).to(torch.float32)[..., None].expand(-1, -1, config.size)
    return to_series(visible_RNL, config) == 0


def neighbours(hidden_RFT: Tensor) -> tuple[Tensor, Tensor]:
    """The last visible instant up to each one (-1: none) and the first from it on (T: none)."""
    size = hidden_RFT.shape[-1]
    place_T = torch.arange(size, device=hidden_RFT.device)
    before_RFT = torch.where(hidden_RFT, -1, place_T).cummax(-1).values
    after_RFT = torch.where(hidden_RFT, size, place_T).flip(-1).cummin(-1).values.flip(-1)
    return before_RFT, after_RFT


def interpolate(values_RNL: Tensor, masked_RN: Tensor, config: PatchConfig) -> Tensor:
    """Straight lines between the nearest visible values of the same row; held at the edges, zero without any."""
    series_RFT, hidden_RFT = to_series(values_RNL, config), hidden_series(masked_RN, config)
    size = series_RFT.shape[-1]
    before_RFT, after_RFT = neighbours(hidden_RFT)
    left_RFT = series_RFT.gather(-1, before_RFT.clamp_min(0))
    right_RFT = series_RFT.gather(-1, after_RFT.clamp_max(size - 1))
    place_T = torch.arange(size, device=series_RFT.device)
    share_RFT = (place_T - before_RFT).to(left_RFT) / (after_RFT - before_RFT).clamp_min(1)
    found_RFT = left_RFT + share_RFT * (right_RFT - left_RFT)
    found_RFT = torch.where(before_RFT < 0, right_RFT, found_RFT)
    found_RFT = torch.where(after_RFT >= size, left_RFT, found_RFT)
    none_RFT = (before_RFT < 0) & (after_RFT >= size)
    return to_patches(found_RFT.masked_fill(none_RFT, 0), config)


def ridge(values_BCNL: Tensor, masked_BCN: Tensor, covariance_CC: Tensor, term: float) -> Tensor:
    """The mean of each row given the visible rows at the same instant, for rows that vary as the covariance says.

    What is visible differs from patch to patch, so there is one linear system a patch for all its instants; masked rows
    are cut out of it by putting the identity in their place. The covariance decides the precision.
    """
    seen_BNC = (~masked_BCN).transpose(1, 2).to(covariance_CC.dtype)
    size = covariance_CC.diagonal().mean().clamp_min(torch.finfo(covariance_CC.dtype).tiny)
    matrix_BNCC = covariance_CC * seen_BNC[..., :, None] * seen_BNC[..., None, :]
    matrix_BNCC = matrix_BNCC + torch.diag_embed(torch.where(seen_BNC > 0, term * size, 1.0))
    # The inverse, because a patch has more instants than rows, and LAPACK is slow at many right-hand sides.
    weights_BNCC = covariance_CC @ torch.cholesky_inverse(torch.linalg.cholesky(matrix_BNCC))
    right_BNCL = values_BCNL.transpose(1, 2).to(covariance_CC.dtype) * seen_BNC[..., None]
    return (weights_BNCC @ right_BNCL).transpose(1, 2)


class Covariances:
    """How the rows of each montage vary together, summed over training windows."""

    def __init__(self) -> None:
        self._sums: dict[Montage, Tensor] = {}
        self._counts: dict[Montage, int] = {}
        self.windows: dict[Montage, int] = {}

    def add(self, montage: Montage, values_BCNL: Tensor) -> None:
        """Windows of one montage."""
        rows_CM = values_BCNL.transpose(0, 1).flatten(1).double()
        self._sums[montage] = self._sums.get(montage, 0) + rows_CM @ rows_CM.T
        self._counts[montage] = self._counts.get(montage, 0) + rows_CM.shape[1]
        self.windows[montage] = self.windows.get(montage, 0) + len(values_BCNL)

    def merge(self, other: "Covariances") -> None:
        """Add the windows of another."""
        for montage, sums in other._sums.items():
            self._sums[montage] = self._sums.get(montage, 0) + sums
            self._counts[montage] = self._counts.get(montage, 0) + other._counts[montage]
            self.windows[montage] = self.windows.get(montage, 0) + other.windows[montage]

    def of(self, montage: Montage) -> Tensor:
        """(C, C) of a montage; where no window had it, what the windows of all others say of each pair of its rows."""
        if montage in self._sums:
            return self._sums[montage] / self._counts[montage]
        total, count = torch.zeros(2, len(montage), len(montage), dtype=torch.float64)
        for other, sums in self._sums.items():
            pairs = [(here, other.index(name)) for here, name in enumerate(montage) if name in other]
            if not pairs:
                continue
            here, there = (torch.tensor(places) for places in zip(*pairs, strict=True))
            total[here[:, None], here] += sums.cpu()[there[:, None], there]
            count[here[:, None], here] += self._counts[other]
        found = total / count.clamp_min(1)
        variance = found.diagonal()
        typical = variance[variance > 0].mean() if bool((variance > 0).any()) else torch.tensor(1.0)
        found += torch.diag(torch.where(variance > 0, 0, typical).to(found))
        values, vectors = torch.linalg.eigh(found)  # pairs from different windows need not fit together
        return (vectors * values.clamp_min(0)) @ vectors.T
