"""Doubts whether windows were filtered as the weights expect, from their means and spectra.

Arrays come to ``embed`` as they are. Only what is plain raises a doubt: a mains line in a third of the channels and
windows, an offset or drift that dwarfs the EEG, or much energy above the low-pass. Data of a narrower band, such as 8
to 30 Hz, is as quiet there as data of the expected band, so it raises none. The limits were set on prepared and on raw
recordings of the open-EEG pack, on which ``tests/model/test_preparation.py`` tries them.

Legend: **B** windows, **C** channels, **T** samples, **F** frequencies.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cerebro_eeg.config import SignalConfig

Band = Callable[[float, float], Tensor]
WINDOWS = 32
"""The number of windows that are looked at."""
MAINS = (50.0, 60.0)
"""Mains frequencies in Hz."""
LINE = 0.05
"""Power of a strong line, as a share of the power from 1 to 40 Hz."""
PROMINENCE = 10.0
"""Power of a strong line over that of an equal band beside it."""
ABOVE = 0.01
"""Power above the low-pass that matters, as a share of the power from 1 to 40 Hz."""
SLOPE = 0.05
"""Density above the low-pass over the density below it, from which nothing has been filtered there."""
WHITE = 0.5
"""Density above the low-pass over that from 8 to 30 Hz, from which the windows are noise and no EEG."""
SHARE = 1 / 3
"""The share of windows and channels that must agree."""


def doubts(x_BCT: Tensor, rate: float, signal: SignalConfig) -> list[str]:
    """Return in words what shows that windows at ``rate`` Hz were not filtered as ``signal`` says; usually nothing."""
    if x_BCT.shape[-1] < rate:  # less than a second says too little
        return []
    x_BCT = x_BCT[:: max(1, len(x_BCT) // WINDOWS)].detach().double()
    band = _spectrum(x_BCT, rate)
    words = [f"a strong line at {line:g} Hz" for line in (_lines(band, rate) if signal.notch_width > 0 else ())]
    if signal.highpass > 0 and _drifts(x_BCT, rate, signal.highpass):
        words.append(f"an offset or drift below {signal.highpass:g} Hz")
    if _above(band, rate, signal):
        words.append(f"energy above {signal.lowpass:g} Hz")
    return words


def doubt_line(x_BCT: Tensor, rate: float, signal: SignalConfig) -> str | None:
    """Return a line for windows that plainly were not filtered as ``signal`` says; None for others."""
    found = doubts(x_BCT, rate, signal)
    if not found:
        return None
    return (
        f"the windows have {' and '.join(found)}, but the weights expect {signal.highpass:g} to "
        f"{signal.lowpass:g} Hz{' with a notch at the mains' if signal.notch_width else ''}; filter them so "
        "first, or call cerebro_eeg.embed(raw, model), which does it"
    )


def line_left(x_BCT: Tensor, rate: float) -> float | None:
    """Return the mains frequency whose line is strong in these windows; None if there is none."""
    if x_BCT.shape[-1] < rate:
        return None
    band = _spectrum(x_BCT[:: max(1, len(x_BCT) // WINDOWS)].double(), rate)
    return next(iter(_lines(band, rate)), None)


def _lines(band: Band, rate: float) -> list[float]:
    eeg_BC = band(1, 40).sum(-1)
    found = []
    for line in MAINS:
        if line + 6 < rate / 2:
            near_BCF = band(line - 1, line + 1)
            beside_BC = torch.cat([band(line - 6, line - 2), band(line + 2, line + 6)], -1).median(-1).values
            power_BC = near_BCF.sum(-1)
            strong_BC = (power_BC > LINE * eeg_BC) & (power_BC > PROMINENCE * near_BCF.shape[-1] * beside_BC)
            if _agree(strong_BC):
                found.append(line)
    return found


def _drifts(x_BCT: Tensor, rate: float, highpass: float) -> bool:
    """Return whether means of windows are larger than slow waves at half of the high-pass could make them."""
    if len(x_BCT) * x_BCT.shape[-1] < 10 * rate:  # a slow artefact may fill a few seconds of sound data
        return False
    mean_BC, var_BC = x_BCT.mean(-1), x_BCT.var(-1, correction=0)
    square_C, var_C = mean_BC.square().median(0).values, var_BC.median(0).values
    # A wave at this frequency has the mean sinc(...) in a window, and the rest is its deviation from the mean.
    sinc = float(torch.sinc(torch.tensor(highpass / 2 * x_BCT.shape[-1] / rate)))
    limit = 1.5 * max(1.0, sinc / math.sqrt(max(1 - sinc**2, 1e-12)))
    moving_C = var_C > 0
    return bool(moving_C.any()) and float((square_C / var_C)[moving_C].median()) > limit**2


def _above(band: Band, rate: float, signal: SignalConfig) -> bool:
    low, high = 1.25 * signal.lowpass, min(rate, signal.sfreq) / 2 - 1  # from the end of the filter's transition on
    if high - low < 5 or signal.lowpass < 45:
        return False
    above_BCF, below_BC = band(low, high), band(0.8 * signal.lowpass, signal.lowpass).mean(-1)
    much_BC = above_BCF.sum(-1) > ABOVE * band(1, 40).sum(-1)
    white_BC = above_BCF.mean(-1) > WHITE * band(8, 30).mean(-1)
    return _agree(much_BC & (above_BCF.mean(-1) > SLOPE * below_BC) & ~white_BC)


def _spectrum(x_BCT: Tensor, rate: float) -> Band:
    """Return a function for the power of every window and channel from one frequency to another, (B, C, F)."""
    samples = x_BCT.shape[-1]
    hann_T = torch.hann_window(samples, periodic=True, dtype=x_BCT.dtype, device=x_BCT.device)
    power_BCF = torch.fft.rfft((x_BCT - x_BCT.mean(-1, keepdim=True)) * hann_T).abs().square()

    def band(low: float, high: float) -> Tensor:
        first, last = math.ceil(low * samples / rate), math.floor(high * samples / rate)
        return power_BCF[..., first : last + 1]

    return band


def _agree(yes_BC: Tensor) -> bool:
    return float(yes_BC.double().mean()) >= SHARE
