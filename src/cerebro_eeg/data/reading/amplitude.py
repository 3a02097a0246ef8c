"""Checks whether the amplitude is that of EEG; where it is not, the unit is likely wrong, and a Fault says so.

A file or an MNE object may hold microvolts that it declares as volts. Nothing is corrected here. The check reads a few
seconds spread over the recording, so that opening a long file stays quick.
"""

import math

import numpy as np

from cerebro_eeg.channels.report import listed
from cerebro_eeg.data.reading.recording import Fault, Recording, Segment

PLAUSIBLE_UV = (0.1, 1000.0)
_STRETCHES = 32
_MOST = 4096  # samples of a stretch
_TYPICAL_UV = 20.0
_LIKELY = {
    -6: "as if volts were taken as microvolts",
    -3: "as if millivolts were taken as microvolts",
    3: "as if microvolts were taken as millivolts",
    6: "as if microvolts were taken as volts",
    9: "as if nanovolts were taken as volts",
}


def amplitude_faults(recording: Recording) -> tuple[Fault, ...]:
    """Return a Fault ``amplitude`` for channels whose robust deviation within a second is beyond 0.1 to 1000 uV.

    The deviation is taken within a second because a drift of millivolts is common and harmless. A constant channel has
    no deviation and is left to ``quality``. A stretch with NaN is passed over.
    """
    found: list[list[float]] = [[] for _ in recording.match.channels]
    for stretch in _stretches(recording):
        samples = recording.read(stretch.start, stretch.stop).astype(np.float64)
        good = np.isfinite(samples).all(axis=0)
        samples[:, ~good] = 0.0
        deviations = 1.4826 * np.median(np.abs(samples - np.median(samples, axis=0)), axis=0)
        for column in np.flatnonzero(deviations > 0):
            found[column].append(float(deviations[column]))
    strange: dict[int, list[str]] = {}
    rows = [row for row in recording.match.rows if row.channel is not None]
    for row, deviations_uv in zip(rows, found, strict=True):
        deviation = float(np.median(deviations_uv)) if deviations_uv else _TYPICAL_UV
        if not PLAUSIBLE_UV[0] <= deviation <= PLAUSIBLE_UV[1]:
            power = min(_LIKELY, key=lambda p: abs(math.log10(deviation / _TYPICAL_UV) - p))
            strange.setdefault(power, []).append(row.label)
    return tuple(
        Fault(
            "amplitude",
            f"{len(labels)} of {len(rows)} channels have about 10^{power} times the amplitude of EEG, {_LIKELY[power]}"
            f": {listed(labels)}; kept as they are",
        )
        for power, labels in sorted(strange.items())
    )


def _stretches(recording: Recording) -> list[Segment]:
    """Choose up to 32 seconds, spread evenly over the segments that are long enough, or over all where none is."""
    length = max(2, min(round(recording.sfreq), _MOST))
    long = [s for s in recording.segments if s.stop - s.start >= length] or list(recording.segments)
    chosen = long if len(long) >= _STRETCHES else [s for s in long for _ in range(math.ceil(_STRETCHES / len(long)))]
    chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, min(len(chosen), _STRETCHES)).astype(int)]
    stretches = []
    for number, segment in enumerate(chosen):
        free = max(0, segment.stop - segment.start - length)
        same = [place for place, other in enumerate(chosen) if other is segment]
        start = segment.start + round(free * (same.index(number) + 0.5) / len(same))
        stretches.append(Segment(start, min(start + length, segment.stop), segment.onset))
    return list(dict.fromkeys(stretches))
