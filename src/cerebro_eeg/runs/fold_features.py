"""FoldFeatures: what heads read of a frozen encoder, for all folds of a task, from one pass over the windows.

Folds share most of their windows, and a frozen encoder gives each window the same tokens in every fold. Only the
principal components of tokens differ, because each fold fits them on its own training windows. The covariances that
need them are computed for every fold in the same pass. So the features of a fold are those that it would compute alone.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ReadoutPart
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import Readout, tokens_after, widths
from cerebro_eeg.runs.readout_choice import MOST_WINDOWS, Say, fit_token_components, readout_config
from cerebro_eeg.runs.store_predictions import KeptFeatures, predict_windows
from cerebro_eeg.runs.windows import Electrodes, Split
from cerebro_eeg.train.distributed import ProcessGroup

FITTED: ReadoutPart = "covariance"
"""The part with numbers of its own in every fold."""


class FoldFeatures:
    """Raw features of a read-out for the windows of several folds; each window is computed once."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self._splits = splits
        self._kept: KeptFeatures | None = None
        self._fitted: dict[str, dict[str, torch.Tensor]] = {}
        """The numbers of the part that is fitted, of each fold."""

    def means(self, compute: Callable[[Windows], NDArray[np.float32]]) -> Callable[[Windows], NDArray[np.float32]]:
        """Return a function for the means of the last tokens, which ``compute`` computes once for each window.

        These are the paper's read-out. Use one object for means or for ``features``, not for both.
        """
        self._kept = self._kept or KeptFeatures(compute)
        return self._kept.of

    def save(self, folder: Path) -> None:
        """Write the features of all windows so far to a folder, for other processes of this machine."""
        assert self._kept is not None
        self._kept.save(folder)
        for number, split in enumerate(self._splits):
            if split.name in self._fitted:
                save_file(self._fitted[split.name], folder / f"fold-{number}.safetensors")

    @staticmethod
    def load(folder: Path, splits: Sequence[Split]) -> "FoldFeatures":
        """Return features that another process has saved, for the same splits."""
        found = FoldFeatures(splits)
        found._kept = KeptFeatures.load(folder)
        files = {split.name: folder / f"fold-{number}.safetensors" for number, split in enumerate(splits)}
        found._fitted = {name: load_file(path) for name, path in files.items() if path.exists()}
        return found

    def features(
        self,
        readout: Readout,
        model: Cerebro,
        store: Store,
        fold: str,
        used: Mapping[str, Windows],
        processes: ProcessGroup,
        electrodes: Electrodes | None,
        say: Say,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the features of a fold's windows by split, and set the components of its read-out.

        Every call must have the same encoder and the same parts.
        """
        if self._kept is None:
            self._kept = self._begin(readout, model, store, processes, electrodes, say)
        if fold in self._fitted:
            readout.centre_D.copy_(self._fitted[fold]["centre_D"])
            readout.components_DK.copy_(self._fitted[fold]["components_DK"])
        columns = self._columns(readout, fold)
        return {part: self._kept.of(windows)[:, columns] for part, windows in used.items()}

    def _begin(
        self,
        readout: Readout,
        model: Cerebro,
        store: Store,
        processes: ProcessGroup,
        electrodes: Electrodes | None,
        say: Say,
    ) -> KeptFeatures:
        """Fit the components of every fold, and return features that are computed when they are asked for."""
        parts, channels = readout.config.parts, readout.config.channels
        of_folds: list[Readout] = []
        if FITTED in parts:
            for split in self._splits:
                found = Readout(readout_config((FITTED,), channels), model.config).to(processes.device)
                fit_token_components(found, model, store, split.train, processes, electrodes)
                of_folds.append(found)
                fitted = {"centre_D": found.centre_D, "components_DK": found.components_DK}
                self._fitted[split.name] = {name: value.contiguous() for name, value in fitted.items()}
        alike = tuple(part for part in parts if part != FITTED)
        readouts = [Readout(readout_config(alike, channels), model.config).to(processes.device)] if alike else []
        readouts += of_folds
        layers = readout.layers()

        def read(module: nn.Module, batch: Batch) -> torch.Tensor:
            assert isinstance(module, Cerebro)
            tokens = tokens_after(module.encoder, batch, layers) if layers else {}
            return torch.cat([one.read(batch, tokens) for one in readouts], 1)

        def compute(windows: Windows) -> NDArray[np.float32]:
            return predict_windows(model, store, windows, processes, electrodes=electrodes, read=read, say=say)

        return KeptFeatures(compute)

    def _columns(self, readout: Readout, fold: str) -> NDArray[np.intp]:
        """Return where the features of a fold are among the kept ones, in the order of its parts."""
        sizes = dict(zip(readout.config.parts, widths(readout.config, readout.model), strict=True))
        first = 0
        found: dict[str, NDArray[np.intp]] = {}
        for part in (part for part in readout.config.parts if part != FITTED):
            found[part] = np.arange(first, first + sizes[part])
            first += sizes[part]
        if FITTED in sizes:
            first += list(self._fitted).index(fold) * sizes[FITTED]
            found[FITTED] = np.arange(first, first + sizes[FITTED])
        return np.concatenate([found[part] for part in readout.config.parts])


def fold_features(splits: Sequence[Split]) -> FoldFeatures | None:
    """Return shared features of several folds; None for one split, or where windows are too many to be kept."""
    parts = [part for part in (splits[0].train, splits[0].validation, splits[0].test) if part is not None]
    return FoldFeatures(splits) if len(splits) > 1 and sum(map(len, parts)) <= MOST_WINDOWS else None
