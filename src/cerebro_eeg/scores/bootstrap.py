"""Bootstrap: draws of subjects with replacement, as weights, and the interval that they give.

Windows of one subject are alike, so an interval over windows would be far too narrow: subjects are what is drawn.
"""

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


def draw(units: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """(resamples, units): how often each unit is in each draw of as many units."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.multinomial(units, np.full(units, 1 / units), size=resamples).astype(np.float64)


def interval(values: NDArray[np.float64], units: int) -> tuple[float | None, float | None]:
    """The percentiles that hold 95 % of the draws; none for one unit, or where most draws are without a value."""
    known = values[np.isfinite(values)]
    if units < 2 or not len(values) or 2 * len(known) < len(values):
        return None, None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high
