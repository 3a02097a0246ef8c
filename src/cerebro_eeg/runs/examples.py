"""Examples: a few windows to look at, chosen by their place alone: the middle one of each dataset."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs.baselines import Montage
from cerebro_eeg.runs.filling import mask_windows, spread
from cerebro_eeg.runs.pretrain import Sources
from cerebro_eeg.runs.reconstruction import dataset_of
from cerebro_eeg.train.loop import evaluating


@dataclass(frozen=True)
class Example:
    """The model's target, what it makes of it, and where it saw nothing."""

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
    """One window of each of up to ``count`` datasets."""
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
