"""The linear probe: scikit-learn fits a linear model on the pooled features of a frozen encoder."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store

STRENGTHS = tuple(10.0**power for power in range(-5, 4))
"""Inverse regularisations that validation chooses from."""
DEFAULT_STRENGTH = 0.01
"""Inverse regularisation without validation windows."""


@dataclass(frozen=True)
class Probe:
    """A linear head, and the validation scores that chose it."""

    weight_KD: NDArray[np.float64]
    bias_K: NDArray[np.float64]
    strength: float
    scores: dict[str, float]
    """Validation score of every strength."""


def seeds_that_differ(settings: Mapping[str, Any]) -> list[int]:
    """Return the seeds of a fine-tuning that have results of their own, from its settings in ``run.json``.

    The exact probe of given weights draws no random number, so its first seed stands for all. A probe of new weights
    depends on the seed, which draws the weights.
    """
    choices = settings["choices"]
    seeds = list(choices["seeds"])
    alike = choices["freeze"] and choices["solver"] == "exact" and settings["from"] is not None
    return seeds[:1] if alike else seeds


def one_for_all(settings: Mapping[str, Any]) -> str | None:
    """Return a sentence if one training stands for several seeds, and None otherwise."""
    asked, trained = settings["choices"]["seeds"], seeds_that_differ(settings)
    if len(trained) == len(asked):
        return None
    return (
        f"{len(asked)} seeds were asked for, but the exact probe draws nothing at random: seed {trained[0]} stands for "
        "all, so there is one result and no deviation over seeds"
    )


def fit_probe(
    store: Store,
    train: Windows,
    features_BD: NDArray[np.float32],
    validation: Windows | None,
    validation_BD: NDArray[np.float32] | None,
    *,
    balanced: bool = False,
    blocks: Sequence[int] = (),
) -> Probe:
    """Fit logistic or ridge regression on standardised features; validation chooses the strength.

    The standardisation is folded into weights and bias, so the head takes features as the encoder returns them. With
    several ``blocks`` of so many features, the features of each block have the same variance together.
    """
    from cerebro_eeg.runs.store_predictions import to_predictions
    from cerebro_eeg.scores.predictions import headline

    mean_D, std_D = features_BD.mean(0, dtype=np.float64), features_BD.std(0, dtype=np.float64)
    std_D = np.where(std_D > 1e-12, std_D, 1.0)
    if len(blocks) > 1:
        std_D = std_D * np.sqrt(np.repeat(blocks, blocks) / np.mean(blocks))
    scaled_BD = (features_BD - mean_D) / std_D
    tried: dict[float, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    scores: dict[float, float] = {}
    for strength in STRENGTHS if validation is not None else (DEFAULT_STRENGTH,):
        weight_KD, bias_K = _fit(train, scaled_BD, strength, balanced)
        weight_KD = weight_KD / std_D
        bias_K = bias_K - weight_KD @ mean_D
        tried[strength] = weight_KD, bias_K
        if validation is not None and validation_BD is not None:
            output = (validation_BD @ weight_KD.T + bias_K).astype(np.float32)
            scores[strength] = headline(to_predictions(store, validation, output))[1]
    best = max(tried, key=lambda strength: (scores.get(strength, 0.0), -strength))
    return Probe(*tried[best], best, {f"{strength:g}": score for strength, score in scores.items()})


def _fit(
    train: Windows, scaled_BD: NDArray[np.float64], strength: float, balanced: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights (K, D) and biases (K,) for all classes, also for those without a training window."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if train.target is not None:
        ridge: Any = Ridge(alpha=1 / strength).fit(scaled_BD, train.target)
        return np.atleast_2d(ridge.coef_), np.atleast_1d(ridge.intercept_)
    count = len(train.names)
    weight_KD, bias_K = (
        np.zeros((count, scaled_BD.shape[1])),
        np.full(count, -30.0),
    )  # a class without windows is never predicted
    present = np.unique(train.label)
    if len(present) == 1:
        bias_K[present] = 0.0
        return weight_KD, bias_K
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak ones may stop early; validation decides
        fitted: Any = LogisticRegression(C=strength, max_iter=300, class_weight="balanced" if balanced else None).fit(
            scaled_BD, train.label
        )
    if len(present) == 2:  # scikit-learn has one row: the second class against the first
        weight_KD[present[1]], bias_K[present] = fitted.coef_[0], [0.0, fitted.intercept_[0]]
    else:
        weight_KD[present], bias_K[present] = fitted.coef_, fitted.intercept_
    return weight_KD, bias_K
