"""When samples were taken, from the time stamps or counters that a device wrote beside them: segments, gaps, the rate.

Stamps are taken by a computer and jitter, most when samples arrive in packets; the device's own clock does not. So time
within a segment runs at the device's nominal rate, and stamps only show where samples are missing, and how many.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d

from cerebro_eeg.data.reading.recording import Fault, Segment
from cerebro_eeg.errors import RecordingError

RATE_TOLERANCE = 0.005  # clocks differ by far less, and a stream that lost more samples than this is not to be trusted
_HALF = 0.5  # samples: as in EDF+, a time that is off by less is no gap


def steps(counter: NDArray[np.float64], cycle: int) -> NDArray[np.int64]:
    """How many samples later each sample is than the one before, by a counter that goes 0 ... cycle - 1, 0 ..."""
    if not np.isfinite(counter).all() or (counter != np.round(counter)).any():
        raise RecordingError("counter", "the counter of samples has values that are not whole numbers; export it anew")
    found: NDArray[np.int64] = np.mod(np.diff(counter.astype(np.int64)), cycle)
    if (found == 0).any():  # the sample came twice, or a whole round is missing; nobody can tell
        raise RecordingError("counter", "the counter of samples stands still; were the same samples written twice?")
    return found


def timeline(
    stamps: NDArray[np.float64] | None, rate: float, count: int, later: NDArray[np.int64] | None = None
) -> tuple[tuple[Segment, ...], tuple[Fault, ...]]:
    """Segments of ``count`` samples at ``rate``, and faults.

    Parameters
    ----------
    stamps : seconds, one a sample, never falling.
    later : from ``steps``: a 1 where a sample follows the one before.
    """
    if count == 0:
        raise RecordingError("empty", "not one sample")
    later = np.ones(count - 1, np.int64) if later is None else later
    missing = (later - 1).astype(np.float64)  # in samples, in front of each sample but the first
    cuts = missing > 0
    faults: tuple[Fault, ...] = ()
    if stamps is not None:
        jumps, jitter = _jumps(_checked(stamps), np.concatenate([[0], np.cumsum(later)]), rate)
        missing += jumps
        cuts |= jumps > 0
        _check_rate(stamps, missing, rate)
        if jitter > 2:
            note = f"time stamps jitter by {1000 * jitter / rate:.0f} ms; gaps shorter than that cannot be seen"
            faults = (Fault("jitter", note),)
    edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), count]
    segments, onset = [], 0.0
    for start, stop in pairwise(edges):
        onset += float(missing[start - 1]) / rate if start else 0.0
        segments.append(Segment(start, stop, onset))
        onset += (stop - start) / rate
    if len(segments) > 1:
        lost = float(missing[cuts].sum()) / rate
        faults = (Fault("lost", f"samples are missing at {len(segments) - 1} places, {lost:.3g} s in all"), *faults)
    return tuple(segments), faults


def _checked(stamps: NDArray[np.float64]) -> NDArray[np.float64]:
    bad = int((~np.isfinite(stamps)).sum())
    if bad:
        raise RecordingError("stamps", f"{bad} of {len(stamps)} time stamps are missing or no numbers; export it anew")
    back = int((np.diff(stamps) < 0).sum())
    if back:
        raise RecordingError(
            "stamps", f"time runs backwards at {back} of {len(stamps)} samples; sort or export the file anew"
        )
    return stamps


def _jumps(stamps: NDArray[np.float64], number: NDArray[np.int64], rate: float) -> tuple[NDArray[np.float64], float]:
    """Samples missing in front of each sample but the first, 0 where none is; and the jitter in samples.

    The delay of a stamp behind its sample wanders. A gap is where every delay of the second behind is larger than every
    delay of the second before: packets that arrive late go back to the old delay, lost samples never do.
    """
    delay = (stamps - stamps[0]) * rate - number
    if len(delay) < 2:
        return np.zeros(0), 0.0
    width = max(2, min(round(rate), len(delay)))
    # Windows that end at a sample, and that begin at one: SciPy's are centred, ``origin`` shifts them.
    ends, begins = (width - 1) // 2, -(width // 2)
    before = maximum_filter1d(delay, width, mode="nearest", origin=ends)
    behind = minimum_filter1d(delay, width, mode="nearest", origin=begins)
    sure = behind[1:] - before[:-1]
    jumps = np.zeros(len(sure))
    for place in np.flatnonzero(sure > _HALF):
        # The typical delays on both sides measure the gap better than the two stamps at it.
        typical = np.median(delay[place + 1 : place + 17]) - np.median(delay[max(0, place - 15) : place + 1])
        jumps[place] = max(sure[place], typical)
    spread = before - minimum_filter1d(delay, width, mode="nearest", origin=ends)
    return jumps, float(np.median(spread[width - 1 :]))


def _check_rate(stamps: NDArray[np.float64], missing: NDArray[np.float64], rate: float) -> None:
    """The stamps must agree with the nominal rate, once what is missing is taken out."""
    if len(stamps) < 4 * rate:  # too short to tell
        return
    span = stamps[-1] - stamps[0]
    found = (len(stamps) - 1 + float(missing.sum())) / span if span > 0 else np.inf
    if abs(found / rate - 1) > RATE_TOLERANCE:
        raise RecordingError(
            "rate",
            f"the time stamps say {found:.6g} Hz, the device has {rate:g} Hz; samples were lost and their "
            "stamps evened out, or it is another device",
        )
