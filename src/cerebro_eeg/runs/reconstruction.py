"""Reconstruction: how well a model fills masked patches in, beside baselines that need no model, on the same patches.

All are scored on the model's own target. The error is the squared difference, averaged over the values of masked
patches. The target is z-scored unless the config says otherwise, so 1 is the variance of a channel within its window.
The masks are those of validation, which never change.

Legend: **B** windows, **C** rows of a window, **N** patches, **L** values in a patch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch, onto
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Step
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import mask_tokens
from cerebro_eeg.model.patches import make_patches
from cerebro_eeg.runs.baselines import (
    MaskedWindows,
    Montage,
    Ridge,
    band_energy,
    band_limits,
    divide_windows,
    fit_ridge,
    interpolate,
    spread,
)
from cerebro_eeg.runs.pretrain import Sources, mask_keys, mask_noise
from cerebro_eeg.runs.windows import dataset_of
from cerebro_eeg.train.loop import evaluating

BATCH = 32
"""Windows that are computed at once."""
PHASE = " (phase)"
"""Suffix of a channel's name for the row that holds its phase."""
TellPart = Callable[[str, int, int], None]
"""Is called with what is done next, and how much of how many is done."""
TINY = float(np.finfo(np.float64).tiny)


# Windows with masked patches


@torch.no_grad()
def mask_windows(
    config: ModelConfig,
    objective: ObjectiveConfig,
    sources: Sources,
    chosen: Sequence[NDArray[np.int64]],
    device: torch.device,
    model: MaskedCerebro | None = None,
) -> Iterator[MaskedWindows]:
    """Yield the chosen windows of each store with the masks of validation and, with a model, its reconstruction.

    Tensors lie on the device, but on the CPU in place of MPS, which has no float64 for what comes next.
    """
    for source, (store, windows) in enumerate(sources):
        steps = _steps(windows.facts.montage[windows.recording[chosen[source]]], chosen[source])
        with Loader([(store, windows)], threads=2) as loader:
            for raw in loader.stream(steps):
                batch = lay_out(raw, device)
                noise_RN = mask_noise(config, batch, onto(mask_keys(0, raw.key_B, raw.epoch_B), device))
                if model is None:
                    patches = make_patches(batch, config)
                    target, predicted = patches.values_RNL, None
                    masked = mask_tokens(noise_RN, patches, config, objective)
                else:
                    found = model(batch, noise_RN)
                    target, predicted, masked = found.target_RNL, found.predicted_RNL, found.masked_RN
                montage = _montage(config, batch)
                if device.type == "mps":
                    target, masked = target.cpu(), masked.cpu()
                    predicted = None if predicted is None else predicted.cpu()
                shape = (len(raw.counts), len(montage), *target.shape[1:])
                yield MaskedWindows(
                    source,
                    raw.step.window,
                    montage,
                    target.reshape(shape),
                    masked.reshape(shape[:3]),
                    None if predicted is None else predicted.reshape(shape),
                )


def spread_windows(sources: Sources, limit: int | None) -> list[NDArray[np.int64]]:
    """Choose up to ``limit`` windows of all stores together, spread evenly; return their numbers per store."""
    counts = np.array([len(windows) for _, windows in sources], np.int64)
    places = spread(np.arange(counts.sum(), dtype=np.int64), limit)
    first = np.cumsum(counts) - counts
    return [places[(places >= a) & (places < a + n)] - a for a, n in zip(first.tolist(), counts.tolist(), strict=True)]


def _steps(montage: NDArray[np.int32], chosen: NDArray[np.int64]) -> Iterator[Step]:
    """Yield steps of windows that share a montage, so that their rows form a grid."""
    for number in np.unique(montage).tolist():
        mine = chosen[montage == number]
        for first in range(0, len(mine), BATCH):
            part = mine[first : first + BATCH]
            yield Step(np.zeros_like(part), part, np.zeros_like(part))


def _montage(config: ModelConfig, batch: Batch) -> Montage:
    """Return the names of the rows of each window in the batch; a model that reads phase has two rows per channel."""
    names = [
        "-".join(VOCABULARY[id - 1] for id in pair if id)
        for pair in batch.channels_R2[: batch.layout.width].cpu().tolist()
    ]
    if config.patches.phase == "interleaved":
        return tuple(row for name in names for row in (name, name + PHASE))
    if config.patches.phase == "separated":
        return (*names, *(name + PHASE for name in names))
    return tuple(names)


# Errors


@dataclass(frozen=True)
class Errors:
    """Mean squared error over masked patches: of the model and of each baseline."""

    windows: int
    patches: int
    model: float
    mean: float
    """Error of predicting zero, the mean of a channel in its window."""
    interpolation: float
    """Error of interpolation in time, within the channel."""
    ridge: float
    """Error of ridge regression from the other channels at the same instant."""


RIVALS = tuple(field.name for field in fields(Errors))[2:]


@dataclass(frozen=True)
class GroupErrors:
    """Errors over the windows of one dataset and montage."""

    dataset: str
    montage: Montage
    errors: Errors
    fitted_on: int
    """Training windows of this montage; 0 if its covariance was estimated from other montages."""
    ridge_term: float


@dataclass(frozen=True)
class ChannelErrors:
    """Errors over all patches of one channel."""

    channel: str
    errors: Errors


@dataclass(frozen=True)
class BandErrors:
    """Error within a frequency band, as a share of the target's energy there: 1 is as good as predicting zero."""

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
    """How well a model and the baselines filled masked patches in."""

    available: int
    """Windows of which ``total`` may be a sample."""
    total: Errors
    groups: tuple[GroupErrors, ...]
    channels: tuple[ChannelErrors, ...]
    bands: tuple[BandErrors, ...]
    subjects: tuple[Errors, ...] = ()
    """Errors of each subject, without their names; a recording of nobody known is one. Earlier releases kept none."""

    def by_dataset(self) -> dict[str, Errors]:
        """Return the errors of each dataset over all its montages."""
        found: dict[str, list[Errors]] = {}
        for group in self.groups:
            found.setdefault(group.dataset, []).append(group.errors)
        return {dataset: _join(parts) for dataset, parts in sorted(found.items())}


def reconstruct(
    model: MaskedCerebro,
    train: Sources,
    validation: Sources,
    device: torch.device | str,
    limit_windows: int | None = None,
    group: Callable[[Store, str], str] = dataset_of,
    tell: TellPart = lambda part, done, total: None,
) -> Reconstructed:
    """Measure the model and the baselines on windows of ``validation``; ridge is fitted on windows of ``train``.

    With ``limit_windows`` that many windows are used, spread evenly over all.
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
    most, aside = divide_windows(train, needed)

    def told(
        part: str, numbers: Sequence[NDArray[np.int64]], found: Iterator[MaskedWindows]
    ) -> Iterator[MaskedWindows]:
        done, total = 0, sum(map(len, numbers))
        for one in found:
            tell(part, done, total)
            yield one
            done += len(one.window)

    fitted = fit_ridge(
        told("windows for the ridge baseline", most, mask_windows(config, objective, train, most, device)),
        told("windows for its strength", aside, mask_windows(config, objective, train, aside, device)),
    )
    tally = _Tally(config)
    with evaluating(model.to(device)):
        filling = mask_windows(config, objective, validation, chosen, device, model)
        for part in told("windows with masked patches", chosen, filling):
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
            who = [(part.source, *_person(windows, number)) for number in windows.recording[part.window].tolist()]
            tally.add(part.montage, datasets, who, values, masked, rivals)
    return tally.finish(available, fitted)


def _person(windows: Windows, recording: int) -> tuple[str, int]:
    """Return what tells the subject of a recording from others; of an unknown one, the recording itself."""
    subject = int(windows.facts.subject[recording])
    return ("recording", recording) if subject < 0 else ("subject", subject)


class _Tally:
    """Sums of squared errors, one per rival in the order of ``RIVALS``."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._groups: dict[tuple[str, Montage], NDArray[np.float64]] = {}
        self._channels: dict[str, NDArray[np.float64]] = {}
        self._subjects: dict[tuple[int, str, int], NDArray[np.float64]] = {}
        self._bands = np.zeros((1 + len(RIVALS), len(band_limits(config))))

    def add(
        self,
        montage: Montage,
        datasets: Sequence[str],
        who: Sequence[tuple[int, str, int]],
        values_BCNL: Tensor,
        masked_BCN: Tensor,
        rivals: Sequence[Tensor],
    ) -> None:
        """Add windows of one montage, with dataset and subject of each window and the reconstruction by each rival."""
        errors = [rival_BCNL - values_BCNL for rival_BCNL in rivals]
        squares_EBC = torch.stack([e.square().mean(-1).masked_fill(~masked_BCN, 0).sum(-1).double() for e in errors])
        count_BC = masked_BCN.sum(-1)
        # Columns: windows, patches, then one per rival. All sums below add up rows of this table.
        table_BCE = (
            torch.cat([torch.ones_like(count_BC)[None], count_BC[None], squares_EBC]).permute(1, 2, 0).cpu().numpy()
        )
        names = np.array(datasets)
        for dataset in np.unique(names).tolist():
            mine = table_BCE[names == dataset].sum((0, 1))
            mine[0] /= len(montage)
            _put(self._groups, (dataset, montage), mine)
        for person, sums in zip(who, table_BCE.sum(1), strict=True):
            sums[0] = 1
            _put(self._subjects, person, sums)
        for row, name in enumerate(montage):
            _put(self._channels, name.removesuffix(PHASE), table_BCE[:, row].sum(0))
        plain = torch.tensor([not name.endswith(PHASE) for name in montage], device=values_BCNL.device)
        hidden_RN = masked_BCN[:, plain].flatten(0, 1)
        signals = [found[:, plain].flatten(0, 1) for found in (values_BCNL, *errors)]
        self._bands += band_energy(signals, hidden_RN, self._config).numpy()

    def finish(self, available: int, fitted: Ridge) -> Reconstructed:
        """Divide the sums by their counts."""
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
        subjects = tuple(_errors(sums) for _, sums in sorted(self._subjects.items()))
        return Reconstructed(available, _join([group.errors for group in groups]), groups, channels, bands, subjects)


def _put(table: dict[Any, NDArray[np.float64]], key: Any, sums: NDArray[np.float64]) -> None:
    table[key] = table[key] + sums if key in table else sums


def _errors(sums: NDArray[np.float64]) -> Errors:
    windows, patches, *squares = sums.tolist()
    return Errors(round(windows), round(patches), *(square / max(patches, 1) for square in squares))


def _join(parts: Sequence[Errors]) -> Errors:
    """Return the mean over the patches of all parts."""
    patches = sum(part.patches for part in parts)
    means = [sum(getattr(part, name) * part.patches for part in parts) / max(patches, 1) for name in RIVALS]
    return Errors(sum(part.windows for part in parts), patches, *means)


# Examples to look at


@dataclass(frozen=True)
class Example:
    """One window to look at: the model's target, its reconstruction, and the masked patches."""

    dataset: str
    recording: str
    start: float
    """Seconds from the start of the stored recording."""
    montage: Montage
    target_CNL: NDArray[np.float32]
    predicted_CNL: NDArray[np.float32]
    masked_CN: NDArray[np.bool_]


def find_examples(
    model: MaskedCerebro,
    sources: Sources,
    device: torch.device | str,
    count: int = 3,
    group: Callable[[Store, str], str] = dataset_of,
) -> tuple[Example, ...]:
    """Return one window, the middle one, of each of up to ``count`` datasets; chosen by place alone, not by quality."""
    device = torch.device(device)
    members: dict[str, list[tuple[int, int]]] = {}
    for source, (store, windows) in enumerate(sources):
        datasets = [group(store, id) for id in windows.facts.ids]
        for number, recording in enumerate(windows.recording.tolist()):
            members.setdefault(datasets[recording], []).append((source, number))
    names = sorted(members)
    kept = [names[place] for place in spread(np.arange(len(names)), count).tolist()]
    places = [(name, *members[name][len(members[name]) // 2]) for name in kept]
    chosen = [
        np.array([number for _, source, number in places if source == one], np.int64) for one in range(len(sources))
    ]
    found = []
    with evaluating(model.to(device)):
        for part in mask_windows(model.config, model.objective, sources, chosen, device, model):
            assert part.predicted_BCNL is not None
            store, windows = sources[part.source]
            for place, (id, start) in enumerate(windows.ids(part.window)):
                found.append(
                    Example(
                        group(store, id),
                        id,
                        start / windows.sfreq,
                        part.montage,
                        part.target_BCNL[place].float().cpu().numpy(),
                        part.predicted_BCNL[place].float().cpu().numpy(),
                        part.masked_BCN[place].cpu().numpy(),
                    )
                )
    return tuple(sorted(found, key=lambda example: example.dataset))
