"""Electrodes: the channels of a store as a model's weights know them; what was never trained needs a policy."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import IDS
from cerebro_eeg.channels.match import match
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import ChannelError
from cerebro_eeg.runs.settings import Untrained

Electrodes = Callable[[tuple[str, ...]], NDArray[np.int64]]
"""From the names of a montage's channels to their ids; 0, 0 leaves a channel out."""


def untrained_electrodes(parts: Sequence[Windows], trained: Mapping[str, int]) -> list[str]:
    """Electrodes that the windows have and whose rows no window has trained, sorted."""
    used = {part for names in _montages(parts) for name in names for part in name.split("-")}
    return sorted(name for name in used if not trained.get(name))


def electrodes_of(parts: Sequence[Windows], trained: Mapping[str, int], untrained: Untrained) -> Electrodes | None:
    """How the channels of these windows are read; None: as they are, because all of them were trained."""
    if not untrained_electrodes(parts, trained):
        return None
    ids = electrode_ids(trained, untrained)
    for names in _montages(parts):
        ids(names)  # a policy that cannot be kept is an error now, not in the middle of the work
    return ids


def _montages(parts: Sequence[Windows]) -> list[tuple[str, ...]]:
    """Of recordings that have windows; a store may have others."""
    return sorted({w.facts.montages[n] for w in parts for n in np.unique(w.facts.montage[w.recording]).tolist()})


def electrode_ids(trained: Mapping[str, int], untrained: Untrained) -> Electrodes:
    """The ids of a montage's channels under a policy for what was never trained; 0, 0 for those that are dropped."""
    known = {name: count for name, count in trained.items() if count and name in IDS}
    if not known and untrained != "as_is":
        raise ChannelError(
            "the checkpoint records no training, so the row of every electrode is random; train it first, or say "
            "--untrained as_is"
        )

    def ids(names: tuple[str, ...]) -> NDArray[np.int64]:
        found = match(names, trained=known, untrained=untrained, bipolar_ears=True, max_channels=len(names))
        result = np.zeros((len(names), 2), np.int64)
        for place, pair in zip(found.index, found.ids, strict=True):
            result[place] = pair
        return result

    return ids
