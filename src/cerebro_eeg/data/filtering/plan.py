"""FilterPlan: the filters for a recording of one rate, decided before a sample is read.

A plan is a value that can be printed, compared and written into a store. All other code of this package follows it.

The coefficients of the zero-phase filters equal the designs of MNE and SciPy but need no MNE. ``band_pass`` and
``notch`` are those of ``mne.filter.create_filter`` and ``mne.filter.notch_filter`` with a Hamming window and automatic
transition bands. ``anti_alias`` is the window of ``scipy.signal.resample_poly``. All are symmetric and of odd length,
so that centred on a sample they do not move a wave in time.

``estimate_mains`` finds the mains frequency of a recording in its spectrum; for a data set, see ``storing/mains.py``.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.reading.recording import RATES, Recording, Samples, rate_words
from cerebro_eeg.errors import RecordingError

UPPER = 0.45  # of the native rate: the highest upper edge that leaves room for a transition below half the rate
LARGEST_RATIO = 100_000  # numerator and denominator of new rate over old
RATIO_ERROR = 1e-9  # relative: 0.1 ms in 24 h


@dataclass(frozen=True)
class FilterPlan:
    """Band-pass, notch and change of rate for one native rate."""

    rate: float
    """Native rate in Hz; the filters run at it."""
    new_rate: float
    up: int
    """The new rate is ``up / down`` times the native one, in lowest terms."""
    down: int
    low: float
    """Lower edge of the pass-band in Hz; 0 for none."""
    high: float
    notch: float | None
    """Mains frequency in Hz where it is removed; None where it is unknown or above the pass-band."""
    notch_width: float
    phase: Literal["zero", "causal"]

    @property
    def upsampled(self) -> bool:
        """Whether the new rate is higher, so that the signal gains samples but no information."""
        return self.up > self.down

    @property
    def length(self) -> int:
        """Native samples that the zero-phase filters span together; shorter stretches are flagged."""
        return 2 * reach(self) + 1

    def count(self, samples: int) -> int:
        """Return how many samples at the new rate a segment of native ``samples`` gives."""
        return -(-samples * self.up // self.down)

    def text(self) -> str:
        """Return the plan as one line for a person."""
        notch = "no notch" if self.notch is None else f"notch {self.notch:g} Hz ({self.notch_width:g} Hz wide)"
        kind = "zero-phase FIR" if self.phase == "zero" else "causal Butterworth"
        rate = f"{self.rate:g} Hz kept" if self.up == self.down else f"{self.rate:g} to {self.new_rate:g} Hz"
        return f"{self.low:g}-{self.high:g} Hz, {notch}, {kind}, {rate}{' (upsampled)' if self.upsampled else ''}"


def plan_filters(sfreq: float, config: SignalConfig, mains: float | None) -> FilterPlan:
    """Plan the filters for a recording of ``sfreq`` Hz; ``mains`` is the frequency to remove, or None."""
    if not RATES[0] <= sfreq <= RATES[1]:
        raise RecordingError("rate", rate_words(sfreq))
    exact = Fraction(config.sfreq) / Fraction(sfreq)
    ratio = exact.limit_denominator(LARGEST_RATIO)
    if not 0 < ratio.numerator <= LARGEST_RATIO or abs(ratio / exact - 1) > RATIO_ERROR:
        raise RecordingError(
            "rate",
            f"{sfreq!r} Hz cannot be resampled to {config.sfreq:g} Hz: no ratio of whole numbers up to {LARGEST_RATIO} "
            "is near enough; resample the recording first",
        )
    high = min(config.lowpass, UPPER * sfreq)
    if high <= config.highpass:
        raise RecordingError(
            "rate", f"{sfreq:g} Hz leaves no pass-band above {config.highpass:g} Hz; use a recording of a higher rate"
        )
    notch = mains if mains is not None and config.notch_width > 0 and mains < high else None
    if notch is not None:
        side = config.notch_width / 2 + NOTCH_TRANSITION
        if notch - side <= 0 or notch + side >= sfreq / 2:
            raise RecordingError(
                "rate", f"a notch {config.notch_width:g} Hz wide at {notch:g} Hz does not fit below {sfreq / 2:g} Hz"
            )
    return FilterPlan(
        rate=sfreq,
        new_rate=config.sfreq,
        up=ratio.numerator,
        down=ratio.denominator,
        low=config.highpass,
        high=high,
        notch=notch,
        notch_width=config.notch_width,
        phase=config.filter_phase,
    )


@functools.lru_cache(maxsize=8)
def reach(plan: FilterPlan) -> int:
    """Return how many native samples before and after a moment the zero-phase result there depends on."""
    result = len(band_pass(plan.rate, plan.low, plan.high)) // 2
    if plan.notch is not None:
        result += len(notch(plan.rate, plan.notch, plan.notch_width)) // 2
    if plan.up != plan.down:
        result += math.ceil(10 * max(plan.up, plan.down) / plan.up)
    return result


Taps = NDArray[np.float64]

HAMMING = 3.3  # length of a Hamming filter times its transition band (Ifeachor and Jervis), as MNE has it
NOTCH_TRANSITION = 0.5  # Hz on either side: MNE's trans_bandwidth of 1 Hz, half of it for each


def transitions(sfreq: float, low: float, high: float) -> tuple[float, float]:
    """Return MNE's automatic transition bands in Hz, below ``low`` and above ``high``."""
    return min(max(0.25 * low, 2.0), low), min(max(0.25 * high, 2.0), sfreq / 2 - high)


def band_pass(sfreq: float, low: float, high: float) -> Taps:
    """Return a filter that passes ``low`` to ``high`` Hz; a ``low`` of 0 makes a low-pass."""
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
    """Return a filter that stops ``width`` Hz around ``frequency``, with half a Hz of transition on either side."""
    low, high = frequency - width / 2, frequency + width / 2
    side = NOTCH_TRANSITION
    edges = [(0.0, 1), (low - side, 1), (low, 0), (high, 0), (high + side, 1), (sfreq / 2, 1)]
    return _windowed(sfreq, edges, side)


def anti_alias(up: int, down: int) -> Taps:
    """Return the low-pass between raising the rate ``up`` times and lowering it ``down`` times, at the raised rate."""
    widest = max(up, down)
    taps: Taps = signal.firwin(20 * widest + 1, 1 / widest, window=("kaiser", 5.0)) * up
    return taps


def _windowed(sfreq: float, edges: list[tuple[float, int]], narrowest: float) -> Taps:
    """Add and subtract low-passes, one for each change of the gain, each as long as its transition needs."""
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


MAINS = (50.0, 60.0)  # Hz; there are no others in the world
PROBES = 8  # places that are analysed, spread over the recording
LOOK = 4  # of them, for a quick look
SECONDS = 16.0  # analysed at each place
RATIO = 4.0  # power of a line over its neighbourhood, below which there is none
QUIET = 1e-6  # squared microvolts per Hz: less is rounding, not mains


def estimate_mains(recording: Recording) -> float | None:
    """Return 50.0, 60.0, or None where neither stands out.

    It is also None where the rate is too low to tell; a notch would then lie above the pass-band. The prominence of a
    line is the power within 0.5 Hz over the median power from 1.5 to 4 Hz to either side. The median over channels
    keeps one bad electrode from deciding.
    """
    ratios = _ratios(recording, PROBES)
    best = max(ratios, key=lambda line: ratios[line], default=None)
    return best if best is not None and ratios[best] >= RATIO else None


def vote_mains(recording: Recording) -> float | None:
    """Return 50.0 or 60.0 where a minute of the recording shows one of them plainly, and None otherwise.

    It is stricter than ``estimate_mains``: the line must also stand out twice as far as the other one.
    """
    ratios = _ratios(recording, LOOK)
    best = max(ratios, key=lambda line: ratios[line], default=None)
    others = (ratio for line, ratio in ratios.items() if line != best)
    return best if best is not None and ratios[best] >= max(RATIO, 2 * max(others, default=0.0)) else None


def _ratios(recording: Recording, probes: int) -> dict[float, float]:
    lines = [line for line in MAINS if line + 4 < recording.sfreq / 2]
    stretches = _probes(recording, probes) if lines else []
    return {line: _prominence(stretches, recording.sfreq, line) for line in lines}


def _prominence(stretches: list[Samples], sfreq: float, line: float) -> float:
    found = []
    for samples in stretches:
        size = min(len(samples), round(4 * sfreq))
        frequencies, power = signal.welch(samples, sfreq, nperseg=size, axis=0)
        away = np.abs(frequencies - line)
        near, around = power[away <= 0.5], power[(away >= 1.5) & (away <= 4)]
        if len(near) and len(around):
            found.append(np.median(near.max(axis=0) / (np.median(around, axis=0) + QUIET)))
    return float(np.median(found)) if found else 0.0


def _probes(recording: Recording, probes: int) -> list[Samples]:
    """Return stretches of at least 2 s, spread evenly over the recording, with the channels that are finite there."""
    length, least = round(SECONDS * recording.sfreq), round(2 * recording.sfreq)
    found = []
    for place in sorted(set(np.linspace(0, max(recording.samples - length, 0), probes).astype(int).tolist())):
        for segment in recording.segments:
            start, stop = max(place, segment.start), min(place + length, segment.stop)
            if stop - start < least:
                continue
            samples = recording.read(start, stop)
            finite = np.isfinite(samples).all(axis=0)
            if finite.any():
                found.append(samples[:, finite])
    return found
