"""Bands: how much of a signal's masked patches lies in each band of frequencies, and how much of an error does.

A waveform's masked patches are cut out with a taper and transformed as they lie in the window; neighbours that are
both masked are cut out as one. Without a taper the edges of the cuts would spread slow waves, which are strong, over
the fast bands, which are weak. A cut of a quarter of a second still blurs by some 4 Hz: delta and theta are told apart
only so far. The bins of a spectrogram have frequencies of their own.

Legend: **R** rows, **N** patches, **L** values in a patch, **F** features, **T** instants, **K** frequencies.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.runs.baselines import hidden_series, neighbours, to_series

EDGES = {"delta": 0.0, "theta": 4.0, "alpha": 8.0, "beta": 13.0, "gamma": 30.0}
"""Where each band begins (Hz); the last ends at the low-pass of the signal."""


def band_limits(config: ModelConfig) -> dict[str, tuple[float, float]]:
    """First frequency and end of the bands that a signal can have."""
    top = min(config.signal.lowpass, config.signal.sfreq / 2)
    ends = [*list(EDGES.values())[1:], math.inf]
    return {
        name: (low, min(end, top)) for (name, low), end in zip(EDGES.items(), ends, strict=True) if low < min(end, top)
    }


def band_energy(signals_RNL: Sequence[Tensor], masked_RN: Tensor, config: ModelConfig) -> Tensor:
    """(signals, bands): energy of the masked patches, summed over rows; only ratios between signals have a meaning."""
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
    """Hann's window over each stretch of hidden instants, zero elsewhere."""
    before_RFT, after_RFT = neighbours(hidden_RFT)
    place_T = torch.arange(hidden_RFT.shape[-1], device=hidden_RFT.device)
    size_RFT = (after_RFT - before_RFT - 1).clamp_min(1)
    phase_RFT = (place_T - before_RFT - 0.5) / size_RFT
    return (math.pi * phase_RFT).sin().square().masked_fill(~hidden_RFT, 0)
