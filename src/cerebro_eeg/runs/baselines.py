"""Baselines: ways to fill masked patches in without a model, which a model has to beat.

Interpolation draws straight lines in time within a channel. Ridge regression predicts a channel from the other channels
at the same instant. Both see what the model sees, the visible patches as the model's config makes them, and are scored
on the model's target. The energy of masked patches by frequency band is measured here as well.

Legend: **B** windows, **C** rows of a window, **R** rows, **N** patches, **L** values in a patch. A series has **F**
features (1 for a waveform, one per frequency for a spectrogram) at **T** instants. **K** frequencies.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.config import ModelConfig, PatchConfig
from cerebro_eeg.runs.pretrain import Sources

Montage = tuple[str, ...]
"""Names of the rows of a window, in order."""
TERMS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridge terms to choose from, as shares of the mean variance of a row."""
FALLBACK = 0.01
"""The ridge term when no window could choose one."""
FIT_WINDOWS = 256
"""Training windows per montage, spread evenly, from which its covariance is computed."""
HELD_OUT = 8
"""One in so many of these windows chooses the ridge term; the others give the covariance that it is tried with."""
TRIED = 8
"""Windows, of each batch that was set aside, that the ridge terms are tried on."""
BANDS = {"delta": 0.0, "theta": 4.0, "alpha": 8.0, "beta": 13.0, "gamma": 30.0}
"""Frequency at which each band begins (Hz); the last band ends at the low-pass of the signal."""


@dataclass(frozen=True)
class MaskedWindows:
    """Windows of one montage of one store, with their masks and maybe with a model's reconstruction."""

    source: int
    """Number of the store."""
    window: NDArray[np.int64]
    """Numbers of the windows in that store."""
    montage: Montage
    """Names of the C rows."""
    target_BCNL: Tensor
    masked_BCN: Tensor
    predicted_BCNL: Tensor | None
    """The model's reconstruction; None without a model."""


def spread(numbers: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    """Return up to ``limit`` of the numbers, spread evenly."""
    if limit is None or len(numbers) <= limit:
        return numbers
    return numbers[np.arange(limit) * len(numbers) // limit]


# Patches in time


def to_series(values_RNL: Tensor, config: PatchConfig) -> Tensor:
    """Lay patches out in time, (R, F, T); samples between patches that leave gaps are zeros."""
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
    """Cut a series back into patches (R, N, L)."""
    if config.kind == "waveform":
        return series_RFT[:, 0].unfold(-1, config.length, config.stride)
    if config.kind == "time_bins":
        return series_RFT.transpose(1, 2)
    rows, side, bands = len(series_RFT), config.square, config.bands
    grid = series_RFT.reshape(rows, bands, side, -1, side)
    return grid.permute(0, 3, 1, 4, 2).reshape(rows, -1, side * side)


def hidden_series(masked_RN: Tensor, config: PatchConfig) -> Tensor:
    """Return (R, F, T): True at the instants that no visible patch shows."""
    visible_RNL = (~masked_RN).to(torch.float32)[..., None].expand(-1, -1, config.size)
    return to_series(visible_RNL, config) == 0


def neighbours(hidden_RFT: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each instant, the last visible one up to it (-1: none) and the first from it on (T: none)."""
    size = hidden_RFT.shape[-1]
    place_T = torch.arange(size, device=hidden_RFT.device)
    before_RFT = torch.where(hidden_RFT, -1, place_T).cummax(-1).values
    after_RFT = torch.where(hidden_RFT, size, place_T).flip(-1).cummin(-1).values.flip(-1)
    return before_RFT, after_RFT


# Interpolation and ridge regression


def interpolate(values_RNL: Tensor, masked_RN: Tensor, config: PatchConfig) -> Tensor:
    """Draw straight lines between the nearest visible values of a row; edges are held, a row without any is zero."""
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
    """Return the mean of each row given the visible rows at the same instant, for rows with this covariance.

    The visible rows differ from patch to patch, so each patch has one linear system for all its instants. Masked rows
    are taken out of it by putting the identity in their place. The result has the precision of the covariance.
    """
    seen_BNC = (~masked_BCN).transpose(1, 2).to(covariance_CC.dtype)
    size = covariance_CC.diagonal().mean().clamp_min(torch.finfo(covariance_CC.dtype).tiny)
    matrix_BNCC = covariance_CC * seen_BNC[..., :, None] * seen_BNC[..., None, :]
    matrix_BNCC = matrix_BNCC + torch.diag_embed(torch.where(seen_BNC > 0, term * size, 1.0))
    # The inverse, because a patch has more instants than rows and LAPACK is slow at many right-hand sides.
    weights_BNCC = covariance_CC @ torch.cholesky_inverse(torch.linalg.cholesky(matrix_BNCC))
    right_BNCL = values_BCNL.transpose(1, 2).to(covariance_CC.dtype) * seen_BNC[..., None]
    return (weights_BNCC @ right_BNCL).transpose(1, 2)


class Covariances:
    """Covariances of the rows of each montage, summed over training windows."""

    def __init__(self) -> None:
        self._sums: dict[Montage, Tensor] = {}
        self._counts: dict[Montage, int] = {}
        self.windows: dict[Montage, int] = {}

    def add(self, montage: Montage, values_BCNL: Tensor) -> None:
        """Add windows of one montage."""
        rows_CM = values_BCNL.transpose(0, 1).flatten(1).double()
        self._sums[montage] = self._sums.get(montage, 0) + rows_CM @ rows_CM.T
        self._counts[montage] = self._counts.get(montage, 0) + rows_CM.shape[1]
        self.windows[montage] = self.windows.get(montage, 0) + len(values_BCNL)

    def merge(self, other: "Covariances") -> None:
        """Add the windows of another sum."""
        for montage, sums in other._sums.items():
            self._sums[montage] = self._sums.get(montage, 0) + sums
            self._counts[montage] = self._counts.get(montage, 0) + other._counts[montage]
            self.windows[montage] = self.windows.get(montage, 0) + other.windows[montage]

    def of(self, montage: Montage) -> Tensor:
        """Return the covariance (C, C) of a montage.

        If no window had the montage, each pair of its rows is estimated from the windows of all other montages.
        """
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
        values, vectors = torch.linalg.eigh(
            found
        )  # pairs from different windows need not fit together: make it positive
        return (vectors * values.clamp_min(0)) @ vectors.T


class Ridge:
    """Ridge regression from the visible channels at the same instant, fitted per montage."""

    def __init__(self, covariances: Covariances, terms: dict[Montage, float]) -> None:
        self._covariances, self._terms = covariances, terms

    def term(self, montage: Montage) -> float:
        """Return the ridge term, a share of the mean variance; a montage without one gets the median of the others."""
        known = sorted(self._terms.values())
        return self._terms.get(montage, known[len(known) // 2] if known else FALLBACK)

    def windows(self, montage: Montage) -> int:
        """Return how many training windows had exactly this montage."""
        return self._covariances.windows.get(montage, 0)

    def predict(self, montage: Montage, values_BCNL: Tensor, masked_BCN: Tensor) -> Tensor:
        """Predict all rows from the visible ones."""
        covariance = self._covariances.of(montage).to(values_BCNL.device)
        return ridge(values_BCNL, masked_BCN, covariance, self.term(montage))


def fit_ridge(most: Iterable[MaskedWindows], aside: Iterable[MaskedWindows]) -> Ridge:
    """Fit covariances on ``most`` windows, choose the ridge terms on those set ``aside``, then add these as well."""
    fitted, tried = Covariances(), Covariances()
    for part in most:
        fitted.add(part.montage, part.target_BCNL)
    errors: dict[Montage, NDArray[np.float64]] = {}
    for part in aside:
        values, masked = part.target_BCNL, part.masked_BCN
        tried.add(part.montage, values)
        covariance = fitted.of(part.montage).to(values.device)
        some = spread(np.arange(len(values)), TRIED)  # all terms on all windows would be most of the time of a report
        values, masked = values[some], masked[some]
        found = [(ridge(values, masked, covariance, term) - values)[masked].square().sum().item() for term in TERMS]
        errors[part.montage] = errors.get(part.montage, np.zeros(len(TERMS))) + found
    fitted.merge(tried)
    return Ridge(fitted, {montage: TERMS[int(found.argmin())] for montage, found in errors.items()})


def divide_windows(train: Sources, needed: set[Montage]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """Choose, per store, the windows for the covariances of the ``needed`` montages and those set aside for the terms.

    If the stores lack one of these montages, its covariance is estimated from windows of all montages.
    """
    known = {names for _, windows in train for names in windows.facts.montages}
    montages = needed if needed <= known else known
    most, aside = [], []
    for _, windows in train:
        montage = windows.facts.montage[windows.recording]
        places = [place for place, names in enumerate(windows.facts.montages) if names in montages]
        numbers = [spread(np.flatnonzero(montage == place), FIT_WINDOWS) for place in places]
        most.append(_concatenate([part[np.arange(len(part)) % HELD_OUT != HELD_OUT - 1] for part in numbers]))
        aside.append(_concatenate([part[HELD_OUT - 1 :: HELD_OUT] for part in numbers]))
    return most, aside


def _concatenate(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])


# Bands of frequencies


def band_limits(config: ModelConfig) -> dict[str, tuple[float, float]]:
    """Return the first and last frequency of each band that the signal can have."""
    top = min(config.signal.lowpass, config.signal.sfreq / 2)
    ends = [*list(BANDS.values())[1:], math.inf]
    return {
        name: (low, min(end, top)) for (name, low), end in zip(BANDS.items(), ends, strict=True) if low < min(end, top)
    }


def band_energy(signals_RNL: Sequence[Tensor], masked_RN: Tensor, config: ModelConfig) -> Tensor:
    """Return (signals, bands): the energy of masked patches, summed over rows; only ratios between signals are meant.

    The masked patches of a waveform are cut out with a taper and transformed where they lie in the window; neighbours
    that are both masked are cut out together. Without a taper the edges would spread strong slow waves over the weak
    fast bands. A cut of a quarter of a second still blurs by about 4 Hz, so delta and theta are hard to separate. The
    bins of a spectrogram have frequencies of their own.
    """
    patches, sfreq = config.patches, config.signal.sfreq
    hidden_RFT = hidden_series(masked_RN, patches)
    weight_RFT = taper(hidden_RFT) if patches.kind == "waveform" else hidden_RFT
    found = []
    for values_RNL in signals_RNL:
        cut_RFT = to_series(values_RNL, patches) * weight_RFT.to(values_RNL)
        if patches.kind == "waveform":
            found.append(torch.fft.rfft(cut_RFT[:, 0]).abs().square().sum(0, dtype=torch.float64))
        else:
            found.append(cut_RFT.square().sum((0, 2), dtype=torch.float64))
    if patches.kind == "waveform":
        hertz_K = torch.fft.rfftfreq(weight_RFT.shape[-1], 1 / sfreq)
    else:
        hertz_K = torch.arange(1, weight_RFT.shape[1] + 1) * sfreq / patches.n_fft
    inside = torch.stack([(hertz_K >= low) & (hertz_K < end) for low, end in band_limits(config).values()])
    energy = torch.stack(found).cpu()
    return energy @ inside.to(energy).T


def taper(hidden_RFT: Tensor) -> Tensor:
    """Return a Hann window over each stretch of hidden instants, zero elsewhere."""
    before_RFT, after_RFT = neighbours(hidden_RFT)
    place_T = torch.arange(hidden_RFT.shape[-1], device=hidden_RFT.device)
    size_RFT = (after_RFT - before_RFT - 1).clamp_min(1)
    phase_RFT = (place_T - before_RFT - 0.5) / size_RFT
    return (math.pi * phase_RFT).sin().square().masked_fill(~hidden_RFT, 0)
