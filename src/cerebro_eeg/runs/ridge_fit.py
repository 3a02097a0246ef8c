"""Ridge, fitted: how channels vary together in training windows, and how far that is to be trusted."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.runs.baselines import TERMS, Covariances, Montage, ridge
from cerebro_eeg.runs.filling import mask_windows, spread
from cerebro_eeg.runs.pretrain import Sources

FIT_WINDOWS = 256
"""Training windows of a montage, spread evenly, that its covariance is taken from."""
HELD = 8
"""One of so many of them chooses the ridge term; the others give the covariance that it is tried with."""
FALLBACK = 0.01
"""The term where no window could choose one."""


class Ridge:
    """Ridge regression from the visible channels at the same instant, one for each montage."""

    def __init__(self, covariances: Covariances, terms: dict[Montage, float]) -> None:
        self._covariances, self._terms = covariances, terms

    def term(self, montage: Montage) -> float:
        """As a share of the mean variance; of a montage that chose none, the middle one of the others."""
        known = sorted(self._terms.values())
        return self._terms.get(montage, known[len(known) // 2] if known else FALLBACK)

    def windows(self, montage: Montage) -> int:
        """Training windows of this very montage."""
        return self._covariances.windows.get(montage, 0)

    def predict(self, montage: Montage, values_BCNL: Tensor, masked_BCN: Tensor) -> Tensor:
        """All rows, from the visible ones."""
        covariance = self._covariances.of(montage).to(values_BCNL.device)
        return ridge(values_BCNL, masked_BCN, covariance, self.term(montage))


def fit_ridge(
    config: ModelConfig, objective: ObjectiveConfig, train: Sources, needed: set[Montage], device: torch.device
) -> Ridge:
    """Fit on windows of ``train``, with the masks that validation would give them, for the montages that are needed."""
    known = {names for _, windows in train for names in windows.facts.montages}
    most, aside = _divide(train, needed if needed <= known else known)  # one that is missing is pieced together of all
    fitted, tried = Covariances(), Covariances()
    for part in mask_windows(config, objective, train, most, device):
        fitted.add(part.montage, part.target_BCNL)
    errors: dict[Montage, NDArray[np.float64]] = {}
    for part in mask_windows(config, objective, train, aside, device):
        values, masked = part.target_BCNL, part.masked_BCN
        tried.add(part.montage, values)
        covariance = fitted.of(part.montage).to(values.device)
        found = [(ridge(values, masked, covariance, term) - values)[masked].square().sum().item() for term in TERMS]
        errors[part.montage] = errors.get(part.montage, np.zeros(len(TERMS))) + found
    fitted.merge(tried)
    return Ridge(fitted, {montage: TERMS[int(found.argmin())] for montage, found in errors.items()})


def _divide(train: Sources, montages: set[Montage]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """Windows that covariances are taken from, and those set aside, of these montages of every source."""
    most, aside = [], []
    for _, windows in train:
        montage = windows.facts.montage[windows.recording]
        places = [place for place, names in enumerate(windows.facts.montages) if names in montages]
        numbers = [spread(np.flatnonzero(montage == place), FIT_WINDOWS) for place in places]
        most.append(_join([part[np.arange(len(part)) % HELD != HELD - 1] for part in numbers]))
        aside.append(_join([part[HELD - 1 :: HELD] for part in numbers]))
    return most, aside


def _join(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])
