"""Embed: features of recordings, on the same path as ``runs/predict.py``, for any model with or without a head."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import packed
from cerebro_eeg.model.cerebro import Cerebro, Level
from cerebro_eeg.model.readouts import width_of
from cerebro_eeg.notebook import Shown
from cerebro_eeg.runs.epochs import EpochKeys, metadata
from cerebro_eeg.runs.features import feature_columns
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
from cerebro_eeg.runs.signals import Signal, check_facts

if TYPE_CHECKING:
    from cerebro_eeg.runs.signals import Source


@dataclass(frozen=True, eq=False, repr=False)
class Embedding(Shown):
    """Features of one recording."""

    features: NDArray[np.float32]
    """(windows, width), (windows, channels, width) or (windows, channels, patches, width)."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording to each window."""
    seconds: float
    """Length of a window."""
    channels: tuple[str, ...]
    """Names in the order of the features; a model that reads phase has extra rows, such as "Cz phase"."""
    epoch: NDArray[np.int64] | None = None
    """The place of each window's epoch among the Epochs that were given; None for a recording."""
    epochs: EpochKeys | None = None
    """Which epochs these are; None for a recording."""

    def metadata(self, epochs: Any = None) -> Any:
        """Return a row of features for each epoch, for ``epochs.metadata = found.metadata(epochs)`` in MNE.

        It is a DataFrame or, without pandas, a list of dicts, with columns ``feature_000`` and so on. Windows of one
        epoch give their mean. With ``epochs`` the rows are those of that object, whose own metadata stay: rows of
        epochs that were dropped since are left out. Without it there is a row for each epoch that was given.
        """
        if self.features.ndim != 2:
            raise InputError("metadata have one row an epoch; embed with level='window'")
        digits = max(3, len(str(self.features.shape[1] - 1)))
        columns = {f"feature_{number:0{digits}d}": values for number, values in enumerate(self.features.T)}
        return metadata(columns, np.zeros(0, np.int64) if self.epoch is None else self.epoch, self.epochs, epochs)

    def _headline(self) -> str:
        shape = " x ".join(map(str, self.features.shape[1:]))
        return f"{len(self.start):,} windows of {self.seconds:g} s, {shape} features each"

    def _facts(self) -> Mapping[str, object]:
        return {"channels": ", ".join(self.channels)}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per window, or per channel of a window, with a column f0, f1, ... per number."""
        features, start = self.features, self.start
        names: dict[str, Any] = {}
        if features.ndim > 2:
            names = {"channel": np.tile(np.array(self.channels, np.object_), len(start))}
            start, features = start.repeat(len(self.channels)), features.reshape(-1, *features.shape[2:])
        return {**names, "start": start, **feature_columns(features)}


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

    Epochs are taken as they are: they are not filtered, and a line says if their pass-band is not the weights'. Each
    gives one row where the model takes windows of their length.
    """
    tables = [None if table is None else Path(table) for table in (rename, channels_from)]
    handling = Handling(unknown, untrained, too_many, quality, mains, unit, tables[0], sfreq, tables[1])
    check_facts(source, handling)
    tokens = reads_tokens(level, layer)
    reader = make_reader(load_model(model), seconds=seconds, stride=stride, handling=handling, tokens=tokens)
    reader = replace(reader, warns=True)
    check_level(reader.config, level, layer)
    warn_random(reader.model, tokens)
    reader, signal = reader.open(source, whole=seconds is None and stride is None)
    found = []
    with packed(reader.model):
        for windows, features in embed_windows(reader, signal, level, layer):
            found.append((windows.start_B, windows.stretch_B, features))
    start, stretch, features = (np.concatenate(column) for column in zip(*found, strict=True))
    names, epoch = row_names(reader.config, signal.names), None if signal.epochs is None else stretch
    return Embedding(features, start, reader.seconds, names, epoch, signal.epochs)


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
