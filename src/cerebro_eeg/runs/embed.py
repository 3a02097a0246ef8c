"""Embed: features of recordings, on the same path as ``runs/predict.py``, for any model with or without a head."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import packed
from cerebro_eeg.model.cerebro import Cerebro, Level
from cerebro_eeg.model.readouts import width_of
from cerebro_eeg.runs.predict import (
    OnProgress,
    Reader,
    RecordingWindows,
    compute,
    load_model,
    make_reader,
    warn_random,
)
from cerebro_eeg.runs.settings import Handling, Quality, TooMany, Unknown, Untrained
from cerebro_eeg.runs.signals import Signal, check_facts, open_signal

if TYPE_CHECKING:
    from cerebro_eeg.runs.signals import Source


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features of one recording."""

    features: NDArray[np.float32]
    """(windows, width), (windows, channels, width) or (windows, channels, patches, width)."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording to each window."""
    seconds: float
    """Length of a window."""
    channels: tuple[str, ...]
    """Names in the order of the features; a model that reads phase has extra rows, such as "Cz phase"."""


def embed(
    source: "Source",
    model: Cerebro | Path | str,
    *,
    level: Level = "window",
    layer: int | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    unknown: Unknown = "error",
    untrained: Untrained = "error",
    too_many: TooMany = "error",
    quality: Quality = "keep",
    mains: float | None = None,
    unit: str | None = None,
    rename: Path | str | None = None,
    sfreq: float | None = None,
    channels_from: Path | str | None = None,
) -> Embedding:
    """Return the features of a recording: a file, or an MNE ``Raw`` or ``Epochs`` object.

    ``level`` is "window", "channel" or "token"; ``layer`` is the number of blocks to run, None for all of them. The
    recording is filtered, referenced and resampled as the checkpoint says. It is cut into windows of the model's length
    or of ``seconds``, one every ``stride`` seconds. The other arguments are those of ``Handling``.
    """
    tables = [None if table is None else Path(table) for table in (rename, channels_from)]
    handling = Handling(unknown, untrained, too_many, quality, mains, unit, tables[0], sfreq, tables[1])
    check_facts(source, handling)
    tokens = reads_tokens(level, layer)
    reader = make_reader(load_model(model), seconds=seconds, stride=stride, handling=handling, tokens=tokens)
    reader = replace(reader, warns=True)
    check_level(reader.config, level, layer)
    warn_random(reader.model, tokens)
    signal = open_signal(source, reader.config, reader.electrodes, handling, scaled=reader.model.needs_scale)
    with packed(reader.model):
        parts = [(windows.start_B, features) for windows, features in embed_windows(reader, signal, level, layer)]
    start, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Embedding(features, start, reader.seconds, row_names(reader.config, signal.names))


def embed_windows(
    reader: Reader, signal: Signal, level: Level, layer: int | None, progress: OnProgress = lambda seconds, of: None
) -> Iterator[tuple[RecordingWindows, NDArray[np.float32]]]:
    """Yield windows with their features, some at a time."""
    check_level(reader.config, level, layer)

    def features(model: Cerebro, batch: Batch) -> Tensor:
        return model.at_level(batch, level, layer)

    return compute(reader, signal, features, progress)


def check_level(config: ModelConfig, level: str, layer: int | None) -> None:
    """Refuse features that the model does not have."""
    if level not in ("window", "channel", "token"):
        raise ConfigError(f"level is {level!r}; choose window, channel or token")
    if layer is not None and not 0 <= layer <= config.depth:
        raise ConfigError(f"layer is {layer}; the encoder has layers 0 (embeddings) to {config.depth}")


def reads_tokens(level: str, layer: int | None) -> bool:
    """Return whether features of this level are tokens of the encoder, and not what the head reads."""
    return level != "window" or layer is not None


def feature_shape(reader: Reader, level: Level, layer: int | None = None) -> tuple[int, ...]:
    """Return the shape of the features of one window, or of one channel of a window."""
    width = reader.config.width
    if level == "window" and layer is None and reader.model.readout is not None:
        return (width_of(reader.model.readout.config, reader.config),)
    return (reader.config.patches.count(reader.samples), width) if level == "token" else (width,)


def row_names(config: ModelConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the rows of features by channel: the channels and, for a model that reads phase, theirs."""
    phases = tuple(f"{name} phase" for name in names)
    if config.patches.phase == "none":
        return names
    if config.patches.phase == "separated":
        return (*names, *phases)
    return tuple(name for pair in zip(names, phases, strict=True) for name in pair)
