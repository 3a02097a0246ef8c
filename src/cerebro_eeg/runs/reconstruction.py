"""Reconstruction: how well a model fills masked patches in, beside what needs no model, on the very same patches.

Every rival is judged on the model's own target. Its error is the squared difference, averaged over the values of masked
patches; the target is z-scored unless the config says otherwise, so 1 is the variance of a channel within its window.
Masks are those of validation, which never change.

Legend: **B** windows, **C** rows of a window, **N** patches, **L** values in a patch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs.bands import band_energy, band_limits
from cerebro_eeg.runs.baselines import Montage, interpolate
from cerebro_eeg.runs.filling import PHASE, mask_windows, spread_windows
from cerebro_eeg.runs.pretrain import Sources
from cerebro_eeg.runs.ridge_fit import Ridge, fit_ridge
from cerebro_eeg.train.loop import evaluating

TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Errors:
    """Mean squared error over masked patches, of the model and of each baseline."""

    windows: int
    patches: int
    model: float
    mean: float
    """Of saying zero, the mean of a channel in its window."""
    interpolation: float
    """In time, within the channel."""
    ridge: float
    """From the other channels at the same instant."""


RIVALS = tuple(field.name for field in fields(Errors))[2:]


@dataclass(frozen=True)
class GroupErrors:
    """Of the windows of one dataset and montage."""

    dataset: str
    montage: Montage
    errors: Errors
    fitted_on: int
    """Training windows of this montage; 0: its covariance is pieced together from those of others."""
    ridge_term: float


@dataclass(frozen=True)
class ChannelErrors:
    """Of all patches of one channel."""

    channel: str
    errors: Errors


@dataclass(frozen=True)
class BandErrors:
    """Error within a band of frequencies, as a share of the target's energy there: 1 is as good as saying zero."""

    band: str
    low: float
    high: float
    energy: float
    """Share of the target's energy that lies in the band."""
    model: float
    interpolation: float
    ridge: float


@dataclass(frozen=True)
class Reconstructed:
    """How well masked patches were filled in."""

    available: int
    """Windows that could have been looked at."""
    total: Errors
    groups: tuple[GroupErrors, ...]
    channels: tuple[ChannelErrors, ...]
    bands: tuple[BandErrors, ...]

    def by_dataset(self) -> dict[str, Errors]:
        """The errors of each dataset over all its montages."""
        found: dict[str, list[Errors]] = {}
        for group in self.groups:
            found.setdefault(group.dataset, []).append(group.errors)
        return {dataset: _join(parts) for dataset, parts in sorted(found.items())}


def dataset_of(store: Store, id: str) -> str:
    """The dataset that a recording belongs to: of the open-EEG pack by its id, otherwise that of its store."""
    return id.partition("_")[0] if store.info.dataset == "openeeg" else store.info.dataset


def reconstruct(
    model: MaskedCerebro,
    train: Sources,
    validation: Sources,
    device: torch.device | str,
    limit_windows: int | None = None,
    group: Callable[[Store, str], str] = dataset_of,
) -> Reconstructed:
    """Errors of the model and of the baselines on windows of ``validation``; ridge is fitted on windows of ``train``.

    ``limit_windows`` takes that many, spread evenly over all.
    """
    device, config, objective = torch.device(device), model.config, model.objective
    available = sum(len(windows) for _, windows in validation)
    if not available:
        raise InputError("there is no window to reconstruct; give a store with windows that the model can be tried on")
    chosen = spread_windows(validation, limit_windows)
    needed = {
        windows.facts.montages[place]
        for (_, windows), numbers in zip(validation, chosen, strict=True)
        for place in np.unique(windows.facts.montage[windows.recording[numbers]]).tolist()
    }
    fitted = fit_ridge(config, objective, train, needed, device)
    tally = _Tally(config)
    with evaluating(model.to(device)):
        for part in mask_windows(config, objective, validation, chosen, device, model):
            assert part.predicted_BCNL is not None
            values, masked = part.target_BCNL, part.masked_BCN
            filled = interpolate(values.flatten(0, 1), masked.flatten(0, 1), config.patches).reshape(values.shape)
            rivals = (
                part.predicted_BCNL,
                torch.zeros_like(values),
                filled,
                fitted.predict(part.montage, values, masked).to(values),
            )
            store, windows = validation[part.source]
            datasets = [group(store, id) for id, _ in windows.ids(part.window)]
            tally.add(part.montage, datasets, values, masked, rivals)
    return tally.finish(available, fitted)


class _Tally:
    """Sums of squared errors, one for each rival in the order of ``RIVALS``."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._groups: dict[tuple[str, Montage], NDArray[np.float64]] = {}
        self._channels: dict[str, NDArray[np.float64]] = {}
        self._bands = np.zeros((1 + len(RIVALS), len(band_limits(config))))

    def add(
        self,
        montage: Montage,
        datasets: Sequence[str],
        values_BCNL: Tensor,
        masked_BCN: Tensor,
        rivals: Sequence[Tensor],
    ) -> None:
        """Windows of one montage, the dataset of each, and what each rival says."""
        errors = [rival_BCNL - values_BCNL for rival_BCNL in rivals]
        squares_EBC = torch.stack([e.square().mean(-1).masked_fill(~masked_BCN, 0).sum(-1).double() for e in errors])
        count_BC = masked_BCN.sum(-1)
        # A column of windows, of patches, then one a rival: what all sums below are made of.
        table_BCE = (
            torch.cat([torch.ones_like(count_BC)[None], count_BC[None], squares_EBC]).permute(1, 2, 0).cpu().numpy()
        )
        names = np.array(datasets)
        for dataset in np.unique(names).tolist():
            mine = table_BCE[names == dataset].sum((0, 1))
            mine[0] /= len(montage)
            _put(self._groups, (dataset, montage), mine)
        for row, name in enumerate(montage):
            _put(self._channels, name.removesuffix(PHASE), table_BCE[:, row].sum(0))
        plain = torch.tensor([not name.endswith(PHASE) for name in montage], device=values_BCNL.device)
        hidden_RN = masked_BCN[:, plain].flatten(0, 1)
        signals = [found[:, plain].flatten(0, 1) for found in (values_BCNL, *errors)]
        self._bands += band_energy(signals, hidden_RN, self._config).numpy()

    def finish(self, available: int, fitted: Ridge) -> Reconstructed:
        """All of it as errors."""
        groups = tuple(
            GroupErrors(dataset, montage, _errors(sums), fitted.windows(montage), fitted.term(montage))
            for (dataset, montage), sums in sorted(self._groups.items())
        )
        target, model, _, interpolation, ridge = self._bands
        share = target / max(target.sum(), TINY)
        target = np.maximum(target, TINY)
        bands = tuple(
            BandErrors(name, *limits, *(float(v) for v in row))
            for (name, limits), row in zip(
                band_limits(self._config).items(),
                zip(share, model / target, interpolation / target, ridge / target, strict=True),
                strict=True,
            )
        )
        channels = tuple(ChannelErrors(name, _errors(sums)) for name, sums in sorted(self._channels.items()))
        return Reconstructed(available, _join([group.errors for group in groups]), groups, channels, bands)


def _put(table: dict[Any, NDArray[np.float64]], key: Any, sums: NDArray[np.float64]) -> None:
    table[key] = table[key] + sums if key in table else sums


def _errors(sums: NDArray[np.float64]) -> Errors:
    windows, patches, *squares = sums.tolist()
    return Errors(round(windows), round(patches), *(square / max(patches, 1) for square in squares))


def _join(parts: Sequence[Errors]) -> Errors:
    """The mean over the patches of all parts."""
    patches = sum(part.patches for part in parts)
    means = [sum(getattr(part, name) * part.patches for part in parts) / max(patches, 1) for name in RIVALS]
    return Errors(sum(part.windows for part in parts), patches, *means)
