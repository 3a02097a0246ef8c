"""Events as SzCORE's TSV: one file a recording, one row a detected seizure, columns after HED-SCORE for BIDS.

The columns and their order are those of https://epilepsybenchmarks.com/contribute and of package ``epilepsy2bids``. A
recording without a detection has one row ``bckg`` over its whole length. The date is a neutral one for every recording:
stores know no dates, and none should come back this way.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.files import write_text

COLUMNS = ("onset", "duration", "eventType", "confidence", "channels", "dateTime", "recordingDuration")
DATE = "2000-01-01 00:00:00"


def find_events(
    probability: NDArray[np.float64], threshold: float, duration: float
) -> list[tuple[float, float, float]]:
    """Onset, duration and mean probability of the stretches at or above the threshold; one value a second."""
    said = np.concatenate([[False], np.nan_to_num(probability, nan=-1.0) >= threshold, [False]])
    edges = np.flatnonzero(np.diff(said.astype(np.int8)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(float(a), min(float(b), duration) - a, float(probability[a:b].mean())) for a, b in pairs]


def write_events(path: Path, probability: NDArray[np.float64], threshold: float, duration: float) -> None:
    """Write the detections of one recording that lasts ``duration`` seconds."""
    rows = [("\t".join(COLUMNS))]
    for onset, length, confidence in find_events(probability, threshold, duration):
        rows.append(_row(onset, length, "sz", f"{confidence:.2f}", duration))
    if len(rows) == 1:
        rows.append(_row(0.0, duration, "bckg", "n/a", duration))
    write_text(path, "\n".join(rows) + "\n")


def _row(onset: float, length: float, event: str, confidence: str, duration: float) -> str:
    return f"{onset:.2f}\t{length:.2f}\t{event}\t{confidence}\tn/a\t{DATE}\t{duration:.2f}"
