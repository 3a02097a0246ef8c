"""Tiny models with a head and recordings for them, shared by the tests of predict and embed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import edfio
import numpy as np
import torch

from cerebro_eeg.config import HeadConfig, ModelConfig, Training
from cerebro_eeg.model.cerebro import Cerebro
from edf_files import File, Notes, Wave, timekeeping

ELECTRODES = ("Fp1", "Cz", "O2", "C3", "A1", "A2")


def make_model(
    folder: Path,
    *,
    outputs: int | None = 2,
    names: Sequence[str] = ("rest", "seizure"),
    threshold: float | None = 0.5,
    task: str = "classification",
    bias: Sequence[float] | None = None,
    trained: Sequence[str] = ELECTRODES,
    **config,
) -> Path:
    """A checkpoint with windows of 2 s at 256 Hz; with ``bias`` it says the same of every window."""
    torch.manual_seed(0)
    fields = {"depth": 2, "width": 12, "heads": 3, "mlp_ratio": 2.0, "window": 512, **config}
    model = Cerebro(outputs, config=ModelConfig(**fields), task=task, n_times=512 if outputs else None)
    if outputs is not None:
        model.head = HeadConfig(outputs, task, tuple(names), 512, threshold)
        with torch.no_grad():
            if bias is not None:
                model.final_layer.weight.zero_()
                model.final_layer.bias.copy_(torch.tensor(bias))
            else:
                model.final_layer.weight.mul_(5)
    model.training_record = Training(1, 1, dict.fromkeys(trained, 10))
    model.save_pretrained(folder)
    return folder


def with_threshold(folder: Path, threshold: float | None, level: str = "recording") -> Path:
    """The same checkpoint with another threshold, chosen over recordings or windows."""
    model = Cerebro.from_pretrained(folder)
    model.head = dataclasses.replace(model.head, threshold=threshold, threshold_level=level)
    model.save_pretrained(folder)
    return folder


def noise(seconds: float, channels: int, rate: float, seed: int = 0) -> np.ndarray:
    """(channels, time) microvolts: noise and 10 Hz, and a little mains."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    wave = 15 * np.sin(2 * np.pi * 10 * time) + 6 * np.sin(2 * np.pi * 50 * time)
    return rng.normal(0, 12, (channels, len(time))) + wave


def edf(
    path: Path,
    labels: Sequence[str] = ("Fp1", "Cz", "O2"),
    seconds: float = 21,
    rate: float = 250,
    seed: int = 0,
    data: np.ndarray | None = None,
    **header,
) -> Path:
    """An EDF file by edfio."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = noise(seconds, len(labels), rate, seed) if data is None else data
    signals = [
        edfio.EdfSignal(x, rate, label=label, physical_dimension="uV") for x, label in zip(data, labels, strict=True)
    ]
    edfio.Edf(signals, **header).write(path)
    return path


def edf_with_gaps(
    path: Path, onsets: Sequence[int], labels: Sequence[str] = ("Fp1", "Cz", "O2"), seed: int = 0
) -> Path:
    """EDF+D at 128 Hz with a record of a second at each of these onsets."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    waves: list[Wave | Notes] = [
        Wave(label, np.clip(rng.normal(0, 400, 128 * len(onsets)), -2000, 2000).astype(int), 128) for label in labels
    ]
    waves.append(Notes(timekeeping([f"+{onset}" for onset in onsets])))
    path.write_bytes(bytes(File(waves, kind="EDF+D", records=len(onsets))))
    return path
