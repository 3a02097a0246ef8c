"""Spectra of many short stretches of signal as one picture: the median, the quartiles and where the mains is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.report.picture import GREY, ORANGE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECONDS = 4.0
"""Of the stretches: bins are 0.25 Hz wide."""
_CYCLES = 2  # a shorter stretch says nothing of slower waves than this many cycles in it
_SPAN = 1e7  # of power in a picture: what is below it is rounding


def density(samples: NDArray[Any], sfreq: float) -> NDArray[np.float32]:
    """Power of each channel of one stretch (time, channel) in squared units per Hz, in bins of ``1 / SECONDS`` Hz.

    (channel, bin), NaN in bins that the stretch is too short for. Shorter stretches are padded with zeros, so that all
    have the same bins; a straight line is taken off first, because offset and drift would leak into the slow bins.
    """
    from scipy import signal

    size = max(round(SECONDS * sfreq), len(samples))
    columns = np.ascontiguousarray(samples.T, np.float64)
    _, power = signal.welch(columns, sfreq, nperseg=len(samples), nfft=size, detrend="linear")
    power[:, np.arange(power.shape[1]) * len(samples) < _CYCLES * size] = np.nan
    return power.astype(np.float32)


def quartiles(powers: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """(3, bin): lower quartile, median and upper quartile over all channels of all stretches; NaN where none says."""
    width = max((power.shape[1] for power in powers), default=0)
    rows = [np.pad(power, ((0, 0), (0, width - power.shape[1])), constant_values=np.nan) for power in powers]
    if not rows:
        return np.empty((3, 0))
    pooled = np.concatenate(rows)
    result = np.full((3, width), np.nan)
    known = np.isfinite(pooled).any(axis=0)
    result[:, known] = np.nanpercentile(pooled[:, known], [25, 50, 75], axis=0)
    return result


def draw_spectrum(axes: "Axes", quartiles_3F: NDArray[np.float64], colour: str, label: str) -> None:
    """Median as a line, quartiles as a band, both axes logarithmic."""
    hertz = np.arange(quartiles_3F.shape[1]) / SECONDS
    shown = np.isfinite(quartiles_3F[1]) & (quartiles_3F[1] > 0) & (hertz > 0)
    low, middle, high = quartiles_3F[:, shown]
    axes.fill_between(hertz[shown], low, high, color=colour, alpha=0.22, linewidth=0)
    axes.plot(hertz[shown], middle, color=colour, linewidth=1.4, label=label)


def finish_spectrum(axes: "Axes", mains: Mapping[float, str]) -> None:
    """Axes, units and the mains lines; ``mains`` is what to call each of them."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (line, name) in enumerate(sorted(mains.items())):
        axes.axvline(line, color=ORANGE, linestyle=(0, (1, 1.5)) if number else (0, (4, 2)), linewidth=1.0, label=name)
    left, right = axes.get_xlim()
    axes.set_xticks([f for f in (0.5, 1, 2, 4, 8, 13, 30, 60, 100, 200, 500) if left < f < right])
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(plain)
    top = axes.get_ylim()[1]
    axes.set_ylim(max(axes.get_ylim()[0], top / _SPAN), top)
    axes.grid(True, which="major", color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_xlabel("frequency (Hz)")
    axes.set_ylabel("power density (µV²/Hz)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
