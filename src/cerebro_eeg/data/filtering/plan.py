"""FilterPlan: what is done to a recording of one rate, decided before a sample is read.

A plan is a value that can be printed, compared and written into a store. Everything else about filters follows from it.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering import fir
from cerebro_eeg.errors import RecordingError

RATES = (1.0, 20_000.0)  # Hz; outside of it a rate is a mistake, and the filters would not fit into memory
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
    """The new rate is ``up / down`` of the native one, in lowest terms."""
    down: int
    low: float
    """Lower edge of the pass-band in Hz; 0 for none."""
    high: float
    notch: float | None
    """Mains frequency in Hz where it is taken out; None where it is unknown or above the pass-band."""
    notch_width: float
    phase: Literal["zero", "causal"]

    @property
    def upsampled(self) -> bool:
        """The new rate is higher: the signal gains samples, not information."""
        return self.up > self.down

    @property
    def length(self) -> int:
        """Native samples that the zero-phase filters span together; a shorter segment is flagged."""
        return 2 * reach(self) + 1

    def count(self, samples: int) -> int:
        """Samples at the new rate that a segment of native ``samples`` gives."""
        return -(-samples * self.up // self.down)

    def text(self) -> str:
        """One line for a person."""
        notch = "no notch" if self.notch is None else f"notch {self.notch:g} Hz ({self.notch_width:g} Hz wide)"
        kind = "zero-phase FIR" if self.phase == "zero" else "causal Butterworth"
        rate = f"{self.rate:g} Hz kept" if self.up == self.down else f"{self.rate:g} to {self.new_rate:g} Hz"
        return f"{self.low:g}-{self.high:g} Hz, {notch}, {kind}, {rate}{' (upsampled)' if self.upsampled else ''}"


def plan_filters(sfreq: float, config: SignalConfig, mains: float | None) -> FilterPlan:
    """The plan for a recording of ``sfreq`` Hz; ``mains`` is its mains frequency, None when there is none to remove."""
    if not RATES[0] <= sfreq <= RATES[1]:
        raise RecordingError("rate", f"the sampling rate is {sfreq:g} Hz; expected {RATES[0]:g} to {RATES[1]:g} Hz")
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
        side = config.notch_width / 2 + fir.NOTCH_TRANSITION
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
    """Native samples before and after a moment that the zero-phase result there depends on."""
    result = len(fir.band_pass(plan.rate, plan.low, plan.high)) // 2
    if plan.notch is not None:
        result += len(fir.notch(plan.rate, plan.notch, plan.notch_width)) // 2
    if plan.up != plan.down:
        result += math.ceil(10 * max(plan.up, plan.down) / plan.up)
    return result
