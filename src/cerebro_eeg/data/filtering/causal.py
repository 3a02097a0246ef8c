"""Causal filtering and resampling of one segment, for streams: later samples never change earlier output.

The filters are Butterworth second-order sections of order 4, with the edges and the notch of the plan at -3 dB, in
float64. Their state is kept, so portions of any size give bitwise the same result. The first sample of a segment counts
as its past, so an offset makes no step.

Then the rate changes by polyphase filtering with the window of ``scipy.signal.resample_poly``. Its latest tap falls on
the latest sample that has arrived, which costs 10 samples of the lower rate (40 ms from 250 to 256 Hz).

The output is late by ``delay``, which depends on the frequency. Time stamps are not corrected for it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from cerebro_eeg.data.filtering import plan as fir
from cerebro_eeg.data.filtering.plan import FilterPlan
from cerebro_eeg.data.reading.recording import Samples

ORDER = 4


def sections(plan: FilterPlan) -> NDArray[np.float64]:
    """Return band-pass and notch as second-order sections at the native rate."""
    if plan.low:
        parts = [signal.butter(ORDER, (plan.low, plan.high), "bandpass", output="sos", fs=plan.rate)]
    else:
        parts = [signal.butter(ORDER, plan.high, "lowpass", output="sos", fs=plan.rate)]
    if plan.notch is not None:
        edges = plan.notch - plan.notch_width / 2, plan.notch + plan.notch_width / 2
        parts.append(signal.butter(ORDER, edges, "bandstop", output="sos", fs=plan.rate))
    return np.concatenate(parts)


def delay(plan: FilterPlan, frequency: float) -> float:
    """Return the group delay in seconds of a wave of ``frequency`` Hz, through the filters and the change of rate."""
    near = np.array([frequency * (1 - 1e-4), frequency * (1 + 1e-4)])
    _, response = signal.freqz_sos(sections(plan), near, fs=plan.rate)
    turned = float(np.angle(response[0] * np.conj(response[1]))) / (2 * np.pi * (near[1] - near[0]))
    return turned + (0.0 if plan.up == plan.down else 10 * max(plan.up, plan.down) / (plan.up * plan.rate))


class Causal:
    """Filters one segment: ``push`` its samples in any portions, then ``finish``; both return what is ready."""

    def __init__(self, plan: FilterPlan, channels: int) -> None:
        self.plan = plan
        self._sections = sections(plan)
        self._rest = signal.sosfilt_zi(self._sections)[:, :, None]
        self._state = np.zeros((len(self._sections), 2, channels))
        self._phases = np.ones((1, 1))
        if plan.up != plan.down:
            taps = fir.anti_alias(plan.up, plan.down)
            each = -(-len(taps) // plan.up)
            # Row p: the taps for an output that lies p / up of a native sample after the latest one, latest first.
            self._phases = np.pad(taps, (0, each * plan.up - len(taps))).reshape(each, plan.up).T.copy()
        self._past = np.zeros((self._phases.shape[1] - 1, channels))
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Iterator[Samples]:
        """Take the next (time, channel) samples and yield the output that they determine."""
        if not len(samples):
            return
        if self._taken == 0:
            self._state = self._rest * samples[0]
        smooth, self._state = signal.sosfilt(self._sections, samples, axis=0, zi=self._state)
        if self._taken == 0:
            self._past[:] = smooth[0]
        known = np.concatenate([self._past, smooth])
        before = self._taken - len(self._past)  # number of the native sample that is known[0]
        self._taken += len(samples)
        times = np.arange(self._given, self.plan.count(self._taken), dtype=np.int64) * self.plan.down
        latest, phase = times // self.plan.up - before, times % self.plan.up
        result = np.zeros((len(times), samples.shape[1]))
        for late in range(self._phases.shape[1]):  # in this order for any portion: sums round the same
            result += self._phases[phase, late, None] * known[latest - late]
        self._past = known[len(known) - len(self._past) :]
        self._given += len(times)
        if len(result):
            yield result.astype(np.float32)

    def finish(self) -> Iterator[Samples]:
        """Yield nothing: a causal filter holds nothing back."""
        yield from ()
