"""Scores of values: scikit-learn's R2 and RMSE, per target and averaged, and the same for thousands of draws."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def measure(truth: NDArray[np.float32], output: NDArray[np.float32], names: Sequence[str]) -> dict[str, float | None]:
    """Return R2 and RMSE: the means over the targets, then each target.

    R2 is None for a target that does not vary, which is left out of the mean.
    """
    from sklearn.metrics import r2_score, root_mean_squared_error

    true, predicted = truth.astype(np.float64), output.astype(np.float64)
    varies = np.ptp(true, axis=0) > 0
    r2: list[float | None] = [None] * len(names)
    if varies.any():
        found = r2_score(true, predicted, multioutput="raw_values").tolist()
        r2 = [value if there else None for value, there in zip(found, varies, strict=True)]
    rmse = root_mean_squared_error(true, predicted, multioutput="raw_values").tolist()
    known = [value for value in r2 if value is not None]
    return {
        "r2": float(np.mean(known)) if known else None,
        "rmse": float(np.mean(rmse)),
        **{f"r2 {name}": value for name, value in zip(names, r2, strict=True)},
        **{f"rmse {name}": value for name, value in zip(names, rmse, strict=True)},
    }


def resample(
    truth: NDArray[np.float32],
    output: NDArray[np.float32],
    unit: NDArray[np.intp],
    weights: NDArray[np.float64],
    names: Sequence[str],
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Return the same for each row of ``weights`` (draws, units), NaN if undefined; and whether all targets vary."""
    true = truth.astype(np.float64)
    centred = true - true.mean(0)  # otherwise sums of squares of large values cancel
    error = np.square(true - output)

    def drawn(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.zeros((weights.shape[1], values.shape[1]))
        np.add.at(sums, unit, values)
        return np.asarray(weights @ sums)

    total = drawn(np.ones((len(true), 1)))
    squares, spread = drawn(error), drawn(np.square(centred)) - drawn(centred) ** 2 / total
    varies = np.ptp(true, axis=0) > 0
    usable = varies & (spread > 1e-12 * np.square(centred).sum(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        r2 = np.where(usable, 1 - squares / spread, np.nan)
        rmse = np.sqrt(squares / total)
        mean = np.where(usable, r2, 0.0).sum(1) / usable.sum(1)
    found = {"r2": mean, "rmse": rmse.mean(1)}
    found |= {f"r2 {name}": r2[:, k] for k, name in enumerate(names)}
    found |= {f"rmse {name}": rmse[:, k] for k, name in enumerate(names)}
    return found, usable[:, varies].all(1)
