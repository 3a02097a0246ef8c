"""The paired difference of two models on the same windows, with its interval over subjects.

Both models answer the same windows, so each draw of subjects gives one difference. Subjects that are hard for both
then cancel, and the interval is narrower than those of the two scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import InputError
from cerebro_eeg.scores.predictions import Predictions, _resample, _table, draw, headline, interval

FEWEST = 6
"""Below so many subjects there is no interval."""


@dataclass(frozen=True)
class Paired:
    """The score of a rival, and ours minus the rival's."""

    metric: str
    subjects: int
    ours: float
    rival: float
    difference: float
    low: float | None
    """Limits of the 95 % interval of the difference; None below six subjects."""
    high: float | None
    above: float | None
    """Share of the draws in which we are ahead; None below six subjects."""
    below: float | None
    """Share of the draws in which the rival is ahead; the rest are ties."""


def paired(ours: Sequence[Predictions], rival: Predictions, *, resamples: int = 1000, seed: int = 0) -> Paired:
    """Compare predictions of one or several seeds, whose scores are averaged, with those of a rival."""
    metric = headline(rival)[0]
    tables = [_table(one) for one in (*ours, rival)]
    for one in tables[:-1]:
        if not np.array_equal(one.recording, tables[-1].recording) or not np.array_equal(one.truth, tables[-1].truth):
            raise InputError("two models are compared on different windows; give predictions of the same ones")
    subjects, unit = np.unique(tables[-1].subject, return_inverse=True)
    weights = np.vstack([np.ones((1, len(subjects))), draw(len(subjects), resamples, seed)])
    drawn: list[NDArray[np.float64]] = []
    for one in tables:
        found, usable = _resample(one, unit, weights)
        drawn.append(np.where(usable, found[metric], np.nan))
    mean = np.mean(drawn[:-1], axis=0)
    difference = mean - drawn[-1]
    known = difference[1:][np.isfinite(difference[1:])]
    enough = len(subjects) >= FEWEST and len(known) > 0
    low, high = interval(difference[1:], len(subjects)) if enough else (None, None)
    above, below = (float((known > 0).mean()), float((known < 0).mean())) if enough else (None, None)
    ours_value = float(np.mean([headline(one)[1] for one in ours]))
    rival_value = headline(rival)[1]
    return Paired(metric, len(subjects), ours_value, rival_value, ours_value - rival_value, low, high, above, below)
