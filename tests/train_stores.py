"""Small stores to train on: a few montages and subjects, signals with structure, tasks with splits."""

import os
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.schema import to_dict

MONTAGES = [("Fp1", "Cz", "O1"), ("Fp1", "Fp2", "C3", "C4", "O1"), ("Fp1-F7", "Pz")]
RATE = 256.0
SPLITS = ("train", "train", "train", "val", "test", "train")
TASKS = {
    "alpha": {"kind": "classification", "names": ["slow", "fast"], "seconds": 1.0, "stride": 1.0},
    "third": {"kind": "classification", "names": ["a", "b", "c"], "seconds": 1.0, "stride": 1.0},
    "level": {"kind": "regression", "names": ["x", "y"], "seconds": 1.0, "stride": 1.0},
    "folded": {"kind": "classification", "names": ["slow", "fast"], "seconds": 1.0, "stride": 1.0},
}


def make_store(
    folder: Path,
    subjects: int = 6,
    seconds: int = 8,
    name: str = "s",
    pretrain: bool = False,
    dataset: str = "made",
    prefixes: tuple[str, ...] = ("",),
) -> Store:
    """A subject a recording; every other second oscillates at 6 Hz, the others at 12 Hz: task ``alpha``.

    Ids of recordings begin with the prefixes in turns, as data sets of the open-EEG pack do: ``("gb_", "muse_")``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        signal = to_dict(SignalConfig())
        create_store(folder, dataset, {"tasks": TASKS, "split_unit": "subject", "signal": signal, "recipe": "made"})
        with ShardWriter(folder, "w") as writer:
            for number in range(subjects):
                rng = np.random.default_rng([number, len(name)])
                names = MONTAGES[number % len(MONTAGES)]
                time = np.arange(int(seconds * RATE)) / RATE
                fast = time.astype(int) % 2 == 1
                wave = np.sin(2 * np.pi * np.where(fast, 12.0, 6.0) * time + rng.uniform(0, 6))
                mixing = rng.uniform(0.5, 1.5, len(names))
                x = 20 * wave[:, None] * mixing + rng.normal(0, 4, (len(time), len(names)))
                id = f"{prefixes[number % len(prefixes)]}{name}{number}"
                with writer.recording(id, names, RATE) as draft:
                    draft.segment(0.0)
                    draft.write(x.astype(np.float32))
                    draft.commit(
                        native_sfreq=RATE, subject=f"{name}ub{number}", labels=_labels(number, seconds, pretrain)
                    )
    return Store(folder)


def _labels(number: int, seconds: int, pretrain: bool) -> dict[str, list[Interval]]:
    split = SPLITS[number % len(SPLITS)]
    spans = [(float(k), k + 1.0) for k in range(seconds)]
    labels = {
        "alpha": [Interval(a, b, split, ("slow", "fast")[int(a) % 2]) for a, b in spans],
        "third": [Interval(a, b, split, "abc"[int(a) % 3]) for a, b in spans],
        "level": [Interval(a, b, split, None, (5.0 * (int(a) % 2) + 100, float(int(a) % 4))) for a, b in spans],
        "folded": [Interval(a, b, f"fold{number % 3 + 1}", ("slow", "fast")[int(a) % 2]) for a, b in spans],
    }
    if pretrain:
        labels["pretrain"] = [Interval(0.0, float(seconds), "val" if split == "val" else "train")]
    return labels
