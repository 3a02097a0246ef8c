"""A sample of a store: the same few hundred stretches every time, spread evenly over its hours."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.report.spectrum import SECONDS, density, quartiles

STRETCHES = 512
SHORTEST = 1.0  # seconds; segments below it say too little


@dataclass(frozen=True)
class StoreSample:
    """Amplitude and spectrum of the sample; each channel of each stretch counts once."""

    stretches: int
    recordings: int
    """How many recordings they come from."""
    deviations: NDArray[np.float64]
    """Robust standard deviation (1.4826 x the median absolute deviation) in microvolts, above 0."""
    flat: int
    """Channels of stretches that have no deviation at all."""
    spectrum: NDArray[np.float64]
    """(3, bin) quartiles of the power density, see ``spectrum.quartiles``."""


def choose(store: Store, most: int = STRETCHES) -> list[tuple[int, int, int]]:
    """(recording number, first sample, end) of up to ``most`` stretches: by the clock, no chance involved.

    All segments of a second or more are laid end to end; at evenly spaced moments the stretch around each is taken.
    """
    segments = [
        (number, segment.start, segment.stop, record.sfreq)
        for number, record in enumerate(store.recordings)
        for segment in record.segments
        if segment.stop - segment.start >= SHORTEST * record.sfreq
    ]
    if not segments:
        return []
    ends = np.cumsum([(stop - start) / sfreq for _, start, stop, sfreq in segments])
    moments = (np.arange(most) + 0.5) * ends[-1] / most
    found: dict[tuple[int, int, int], None] = {}
    for moment, place in zip(moments, np.searchsorted(ends, moments, "right").tolist(), strict=True):
        number, start, stop, sfreq = segments[place]
        size = min(round(SECONDS * sfreq), stop - start)
        passed = int((moment - (ends[place] - (stop - start) / sfreq)) * sfreq)
        first = min(start + passed // size * size, stop - size)
        found[number, first, first + size] = None  # a small store has fewer stretches than moments
    return list(found)


def sample_store(store: Store, most: int = STRETCHES) -> StoreSample:
    """Read the sample and measure it; at most ``most`` stretches of 4 s are read, however large the store."""
    chosen = choose(store, most)
    powers, deviations = [], []
    for number, start, stop in chosen:
        samples = store.read(number, start, stop).astype(np.float32)
        powers.append(density(samples, store.recordings[number].sfreq))
        deviations.append(1.4826 * np.median(np.abs(samples - np.median(samples, axis=0)), axis=0))
    pooled = np.concatenate(deviations).astype(np.float64) if deviations else np.empty(0)
    return StoreSample(
        stretches=len(chosen),
        recordings=len({number for number, _, _ in chosen}),
        deviations=pooled[pooled > 0],
        flat=int((pooled == 0).sum()),
        spectrum=quartiles(powers),
    )
