"""The mains frequency of a recording, estimated from its spectrum."""

import numpy as np
from scipy import signal

from cerebro_eeg.data.reading.recording import Recording, Samples

MAINS = (50.0, 60.0)  # Hz; the world has no other
PROBES = 8  # places that are listened to, spread over the recording
SECONDS = 16.0  # at each of them
RATIO = 4.0  # power of a line over its neighbourhood, below which there is none
QUIET = 1e-6  # squared microvolts per Hz: less is rounding, not mains


def estimate_mains(recording: Recording) -> float | None:
    """50.0, 60.0, or None where neither stands out (also where the rate is too low to tell, and such a notch is moot).

    A line is the power within 0.5 Hz over the median power from 1.5 to 4 Hz to either side; the median over channels
    keeps one bad electrode from deciding.
    """
    ratios = {line: _prominence(recording, line) for line in MAINS if line + 4 < recording.sfreq / 2}
    best = max(ratios, key=lambda line: ratios[line], default=None)
    return best if best is not None and ratios[best] >= RATIO else None


def _prominence(recording: Recording, line: float) -> float:
    found = []
    for samples in _probes(recording):
        size = min(len(samples), round(4 * recording.sfreq))
        frequencies, power = signal.welch(samples, recording.sfreq, nperseg=size, axis=0)
        away = np.abs(frequencies - line)
        near, around = power[away <= 0.5], power[(away >= 1.5) & (away <= 4)]
        if len(near) and len(around):
            found.append(np.median(near.max(axis=0) / (np.median(around, axis=0) + QUIET)))
    return float(np.median(found)) if found else 0.0


def _probes(recording: Recording) -> list[Samples]:
    """Stretches of at least 2 s, spread evenly over the recording, of the channels that are finite there."""
    length, least = round(SECONDS * recording.sfreq), round(2 * recording.sfreq)
    found = []
    for place in sorted(set(np.linspace(0, max(recording.samples - length, 0), PROBES).astype(int).tolist())):
        for segment in recording.segments:
            start, stop = max(place, segment.start), min(place + length, segment.stop)
            if stop - start < least:
                continue
            samples = recording.read(start, stop)
            finite = np.isfinite(samples).all(axis=0)
            if finite.any():
                found.append(samples[:, finite])
    return found
