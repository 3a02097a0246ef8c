"""The zero-phase filters of a preparation, as coefficients: the designs of MNE and SciPy, made without MNE.

``band_pass`` and ``notch`` equal ``mne.filter.create_filter`` and ``mne.filter.notch_filter`` with a Hamming window and
automatic transition bands; ``anti_alias`` is the window of ``scipy.signal.resample_poly``. All are symmetric and of odd
length, so that centred on a sample they do not move a wave in time.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Taps = NDArray[np.float64]

HAMMING = 3.3  # length of a Hamming filter times its transition band (Ifeachor and Jervis), as MNE has it
NOTCH_TRANSITION = 0.5  # Hz on either side: MNE's trans_bandwidth of 1 Hz, half of it for each


def transitions(sfreq: float, low: float, high: float) -> tuple[float, float]:
    """MNE's automatic transition bands in Hz, below ``low`` and above ``high``."""
    return min(max(0.25 * low, 2.0), low), min(max(0.25 * high, 2.0), sfreq / 2 - high)


def band_pass(sfreq: float, low: float, high: float) -> Taps:
    """Pass ``low`` to ``high`` Hz; a ``low`` of 0 is a low-pass."""
    below, above = transitions(sfreq, low, high)
    edges = (
        [(low - below, 0), (low, 1), (high, 1), (high + above, 0)] if low else [(0.0, 1), (high, 1), (high + above, 0)]
    )
    if edges[0][0] != 0:
        edges.insert(0, (0.0, 0))
    if edges[-1][0] != sfreq / 2:
        edges.append((sfreq / 2, 0))
    return _windowed(sfreq, edges, min(below, above) if low else above)


def notch(sfreq: float, frequency: float, width: float) -> Taps:
    """Stop ``width`` Hz around ``frequency``, with half a Hz of transition on either side."""
    low, high = frequency - width / 2, frequency + width / 2
    side = NOTCH_TRANSITION
    edges = [(0.0, 1), (low - side, 1), (low, 0), (high, 0), (high + side, 1), (sfreq / 2, 1)]
    return _windowed(sfreq, edges, side)


def anti_alias(up: int, down: int) -> Taps:
    """What stands between raising the rate ``up`` times and lowering it ``down`` times; at the raised rate."""
    widest = max(up, down)
    taps: Taps = signal.firwin(20 * widest + 1, 1 / widest, window=("kaiser", 5.0)) * up
    return taps


def _windowed(sfreq: float, edges: list[tuple[float, int]], narrowest: float) -> Taps:
    """Sums and differences of low-passes, one for each change of the gain, each as long as its transition needs."""
    length = max(math.ceil(HAMMING / narrowest * sfreq), 1)
    length += (length - 1) % 2
    taps = np.zeros(length)
    points = [(frequency / (sfreq / 2), gain) for frequency, gain in edges]
    if points[-1][1] == 1:
        taps[length // 2] = 1.0
    for (left, before), (right, after) in zip(points[-2::-1], points[:0:-1], strict=True):
        if before == after:
            continue
        needed = round(HAMMING / ((right - left) / 2))
        needed = min(needed + 1 - needed % 2, length)
        part = signal.firwin(needed, (left + right) / 2, window="hamming", pass_zero=True, fs=2.0)
        side = (length - needed) // 2
        taps[side : length - side] += part if before else -part
    return taps
