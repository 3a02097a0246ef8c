"""The paired difference of two models on the same windows, with its interval over subjects.

Both models answer the same windows, so each draw of subjects gives one difference. Subjects that are hard for both
then cancel, and the interval is narrower than those of the two scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import InputError
from cerebro_eeg.scores.predictions import Predictions, _measure, _resample, _table, draw, headline, interval

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
    """Limits of the 95 % interval of the difference; None below six subjects, and without draws."""
    high: float | None
    above: float | None
    """Share of the draws in which we are ahead; None below six subjects, and without draws."""
    below: float | None
    """Share of the draws in which the rival is ahead; the rest are ties."""


@dataclass(frozen=True, eq=False)
class DrawnScores:
    """A model's score on all subjects, and on draws of as many subjects with replacement."""

    metric: str
    value: float
    subjects: int
    draws: NDArray[np.float64]
    """NaN where a draw lacks a class."""
    windows: tuple[NDArray[np.str_], NDArray[Any]]
    """Recording and truth of each window, to tell that two models answered the same ones."""

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The 95 % interval over subjects; None below six of them."""
        return interval(self.draws, self.subjects) if self.subjects >= FEWEST else (None, None)


def draw_scores(
    predictions: Sequence[Predictions], metric: str | None = None, *, resamples: int = 1000, seed: int = 0
) -> DrawnScores:
    """Return the scores of one or several seeds, averaged, on the same draws of subjects for every model.

    The metric is the one that selects on validation, unless another is given, such as "auroc" for several classes.
    """
    metric = headline(predictions[0])[0] if metric is None else metric
    tables = [_table(one) for one in predictions]
    subjects, unit = np.unique(tables[0].subject, return_inverse=True)
    weights = np.vstack([np.ones((1, len(subjects))), draw(len(subjects), resamples, seed)])
    drawn: list[NDArray[np.float64]] = []
    for one in tables:
        found, usable = _resample(one, unit, weights)
        drawn.append(np.where(usable, found[metric], np.nan))
    mean = float(np.mean([value(one, metric) for one in predictions]))
    windows = tables[0].recording, tables[0].truth
    return DrawnScores(metric, mean, len(subjects), np.mean(drawn, axis=0)[1:], windows)


def difference(ours: DrawnScores, rival: DrawnScores) -> Paired:
    """Return our score minus that of a rival on the same windows, with its interval over subjects."""
    if not all(np.array_equal(one, other) for one, other in zip(ours.windows, rival.windows, strict=True)):
        raise InputError("two models are compared on different windows; give predictions of the same ones")
    draws = ours.draws - rival.draws
    known = draws[np.isfinite(draws)]
    enough = ours.subjects >= FEWEST and len(known) > 0
    low, high = interval(draws, ours.subjects) if enough else (None, None)
    above, below = (float((known > 0).mean()), float((known < 0).mean())) if enough else (None, None)
    gap = ours.value - rival.value
    return Paired(ours.metric, ours.subjects, ours.value, rival.value, gap, low, high, above, below)


def paired(ours: Sequence[Predictions], rival: Predictions, *, resamples: int = 1000, seed: int = 0) -> Paired:
    """Compare predictions of one or several seeds, whose scores are averaged, with those of a rival."""
    return paired_with_all(ours, [rival], resamples=resamples, seed=seed)[0]


def paired_with_all(
    ours: Sequence[Predictions], rivals: Sequence[Predictions], *, resamples: int = 1000, seed: int = 0
) -> list[Paired]:
    """Compare predictions with those of each rival; our own scores are drawn once.

    Without draws (``resamples`` 0) there is no interval.
    """
    own: dict[str, DrawnScores] = {}
    found = []
    for rival in rivals:
        metric = headline(rival)[0]
        if metric not in own:
            own[metric] = draw_scores(ours, metric, resamples=resamples, seed=seed)
        found.append(difference(own[metric], draw_scores([rival], metric, resamples=resamples, seed=seed)))
    return found


def value(predictions: Predictions, metric: str) -> float:
    """Return a score of all windows; one that the truth leaves undefined is that of a guess, as in ``headline``."""
    name, found = headline(predictions)
    if name == metric:
        return found
    measured = _measure(_table(predictions))[metric]
    return (0.5 if metric == "auroc" else 0.0) if measured is None else measured
