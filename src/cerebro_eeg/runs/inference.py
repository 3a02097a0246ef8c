"""Inference: recordings to what a model says of them, window by window, without a store and in bounded memory.

``predict`` and ``embed`` take a file or an object of MNE and a checkpoint: features of a recording in one line. Windows
lie within stretches without a gap, as those of a store do, and hold the very samples that a store would.

Legend: **B** windows, **C** channels, **T** samples, **N** patches, **D** width, **K** outputs.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import HeadConfig, ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.filtering.quality import Policy
from cerebro_eeg.errors import CheckpointError, ConfigError, RecordingError
from cerebro_eeg.fast import packed
from cerebro_eeg.model import inputs
from cerebro_eeg.model.cerebro import Cerebro, Level
from cerebro_eeg.runs.cutting import Cut, Watch, cut_windows, longest
from cerebro_eeg.runs.decisions import Prediction, softmax
from cerebro_eeg.runs.electrodes import Electrodes, electrode_ids
from cerebro_eeg.runs.inputs import find_checkpoint
from cerebro_eeg.runs.settings import Handling, TooMany, Unknown, Untrained
from cerebro_eeg.runs.signals import Signal, open_signal
from cerebro_eeg.train.loop import evaluating

if TYPE_CHECKING:
    from cerebro_eeg.runs.signals import Source

BATCH = 64
"""Windows that are computed at once, at most."""
BATCH_BYTES = 256 << 20
"""Activations that are held at once, about."""
Tell = Callable[[float, float], None]
"""Told how many seconds of the recording are done, and of how many."""


@dataclass(frozen=True)
class Reader:
    """A model that is ready to read recordings, and the windows that it reads."""

    model: Cerebro
    electrodes: Electrodes
    samples: int
    """Of a window."""
    stride: int
    """Samples from window to window."""
    handling: Handling

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def text(self) -> str:
        """How recordings are prepared and cut, in a line."""
        signal = self.config.signal
        kind = "zero-phase" if signal.filter_phase == "zero" else "causal"
        notch = f", notch {signal.notch_width:g} Hz wide" if signal.notch_width else ", no notch"
        return (
            f"recordings are prepared as the weights expect: {signal.sfreq:g} Hz, {signal.highpass:g} to "
            f"{signal.lowpass:g} Hz ({kind}{notch}), reference {signal.reference}; windows of "
            f"{self.samples / signal.sfreq:g} s every {self.stride / signal.sfreq:g} s"
        )


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features of one recording."""

    features: NDArray[np.float32]
    """(windows, D), (windows, channels, D) or (windows, channels, patches, D)."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording to each window."""
    seconds: float
    """Of a window."""
    channels: tuple[str, ...]
    """In the order of the features; a model that sees phase has rows for it, called "Cz phase"."""


def make_reader(
    model: Cerebro, *, seconds: float | None = None, stride: float | None = None, handling: Handling = Handling()
) -> Reader:
    """A reader of windows of the model's own length, or of ``seconds``; side by side unless ``stride`` is given."""
    rate = model.config.signal.sfreq
    own = model.head.samples if model.head is not None else None
    samples = own or model.n_times or model.config.window
    if seconds is not None:
        samples = math.floor(_length("seconds", seconds) * rate + 0.5)
    if model.config.patches.count(samples) < 1:
        raise ConfigError(
            f"windows of {samples / rate:g} s are too short for a patch; at {rate:g} Hz it needs "
            f"{model.config.patches.shortest() / rate:.3g} s"
        )
    step = samples if stride is None else max(1, math.floor(_length("stride", stride) * rate + 0.5))
    return Reader(model, _electrodes(model, handling), samples, step, handling)


def load_model(model: "Cerebro | Path | str") -> Cerebro:
    """The model itself, or the one in a checkpoint, the folder of a training, or on the Hub."""
    return model if isinstance(model, Cerebro) else Cerebro.from_pretrained(find_checkpoint(model))


def random_words(model: Cerebro) -> str | None:
    """A line on weights that nobody trained, as far as they record it; None for others.

    A baseline may well be random, but nobody should take it for a trained model.
    """
    record = model.training_record
    if record.windows or record.steps:
        return None
    known = "the checkpoint records no training" if model.load_report else "the model was neither loaded nor trained"
    return (
        f"{known}, so the weights of its encoder are random, unless you set them yourself: what comes of them is a "
        "baseline (Cerebro.from_pretrained loads trained ones)"
    )


def predict(
    source: "Source",
    model: Cerebro | Path | str,
    *,
    stride: float | None = None,
    unknown: Unknown = "error",
    untrained: Untrained = "error",
    too_many: TooMany = "error",
    quality: Policy = "keep",
    mains: float | None = None,
    unit: str | None = None,
) -> Prediction:
    """What a fine-tuned model says of a recording: a file, or an MNE ``Raw`` or ``Epochs`` object.

    ``model`` is a Cerebro with a head, a checkpoint, or the folder of a training. The recording is prepared as the
    checkpoint says; the other arguments are those of ``Handling``.
    """
    handling = Handling(unknown, untrained, too_many, quality, mains, unit)
    reader = make_reader(load_model(model), stride=stride, handling=handling)
    check_head(reader.model)
    _say_random(reader.model)
    with packed(reader.model):
        return predict_recording(reader, source)


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
    quality: Policy = "keep",
    mains: float | None = None,
    unit: str | None = None,
) -> Embedding:
    """Features of a recording: a file, or an MNE ``Raw`` or ``Epochs`` object.

    ``level`` is "window", "channel" or "token"; ``layer`` the number of blocks to run, None for all of them. The
    recording is filtered, referenced and resampled as the checkpoint says, and cut into windows of the model's length,
    or of ``seconds``, one every ``stride`` seconds. The other arguments are those of ``Handling``.
    """
    handling = Handling(unknown, untrained, too_many, quality, mains, unit)
    reader = make_reader(load_model(model), seconds=seconds, stride=stride, handling=handling)
    check_level(reader.config, level, layer)
    _say_random(reader.model)
    signal = open_signal(source, reader.config, reader.electrodes, handling)
    with packed(reader.model):
        parts = [(cut.start_B, found) for cut, found in embed_windows(reader, signal, level, layer)]
    start, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Embedding(
        features,
        start,
        reader.samples / reader.config.signal.sfreq,
        row_names(reader.config, signal.names),
    )


def predict_recording(
    reader: Reader, source: "Source", *, tell: Tell = lambda seconds, of: None, watch: Watch | None = None
) -> Prediction:
    """``predict`` with a reader that was made before."""
    head = check_head(reader.model)
    signal = open_signal(source, reader.config, reader.electrodes, reader.handling)
    found = [
        (cut.start_B, cut.stretch_B, cut.short_B, output)
        for cut, output in compute(reader, signal, _outputs, tell, watch)
    ]
    start, stretch, short, output = (np.concatenate(column) for column in zip(*found, strict=True))
    kind = head.task
    return Prediction(
        kind=kind,
        names=names_of(head),
        threshold=head.threshold if kind == "classification" and head.n_outputs == 2 else None,
        output=softmax(output) if kind == "classification" else output,
        start=start,
        seconds=reader.samples / reader.config.signal.sfreq,
        stretch=stretch,
        short=short,
        end=signal.end,
        channels=signal.names,
        faults=signal.faults,
        plan=signal.plan.text(),
    )


def embed_windows(
    reader: Reader, signal: Signal, level: Level, layer: int | None, tell: Tell = lambda seconds, of: None
) -> Iterator[tuple[Cut, NDArray[np.float32]]]:
    """Windows and their features, some at a time."""
    check_level(reader.config, level, layer)

    def features(model: Cerebro, batch: Batch) -> Tensor:
        tokens = model.encode(batch, layer)
        if level == "window":
            return tokens.per_window()
        return tokens.per_channel() if level == "channel" else tokens.layout.grid(tokens.x_RND)

    return compute(reader, signal, features, tell)


def check_level(config: ModelConfig, level: str, layer: int | None) -> None:
    """Refuse features that the model does not have."""
    if level not in ("window", "channel", "token"):
        raise ConfigError(f"level is {level!r}; choose window, channel or token")
    if layer is not None and not 0 <= layer <= config.depth:
        raise ConfigError(f"layer is {layer}; the encoder has layers 0 (embeddings) to {config.depth}")


def names_of(head: HeadConfig) -> tuple[str, ...]:
    """What the outputs stand for; numbered where the checkpoint does not say."""
    return head.names or tuple(f"output {number}" for number in range(head.n_outputs))


def row_names(config: ModelConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """What the rows of features by channel are: the channels and, with phase, theirs as well."""
    phases = tuple(f"{name} phase" for name in names)
    if config.patches.phase == "none":
        return names
    if config.patches.phase == "separated":
        return (*names, *phases)
    return tuple(name for pair in zip(names, phases, strict=True) for name in pair)


def check_head(model: Cerebro) -> HeadConfig:
    """The head; a model that answers nothing is refused before any recording is read."""
    head = model.head
    if head is None:
        raise CheckpointError(
            "the checkpoint has no head, so it answers no question; give one that finetune made, or use embed"
        )
    if head.task == "classification" and head.n_outputs == 1:
        raise CheckpointError("the checkpoint has a single class, so it decides nothing; give one with two or more")
    return head


def compute(
    reader: Reader,
    signal: Signal,
    read: Callable[[Cerebro, Batch], Tensor],
    tell: Tell = lambda seconds, of: None,
    watch: Watch | None = None,
) -> Iterator[tuple[Cut, NDArray[np.float32]]]:
    """Windows and what ``read`` gives for them, some at a time; a recording without a window is an error."""
    model, some = reader.model, False
    needed = cost(reader.config, len(signal.ids), reader.samples).forward_bytes
    size = min(BATCH, max(1, BATCH_BYTES // max(1, needed)))
    for cut in cut_windows(signal, reader.samples, reader.stride, size, watch):
        some = True
        with evaluating(model), torch.no_grad():
            output = read(model, _batch(cut, signal, model.encoder.positions.device))
        yield cut, np.asarray(output.float().cpu().numpy(), np.float32)
        tell(float(cut.start_B[-1]), signal.end)
    if not some:
        raise RecordingError(
            "too_short",
            f"has no window: its longest stretch without a gap is {longest(signal):.3g} s, and a window of this model "
            f"is {reader.samples / reader.config.signal.sfreq:g} s; give a longer recording",
        )


def _say_random(model: Cerebro) -> None:
    if (line := random_words(model)) is not None:
        inputs.say(logging.WARNING, line)


def _batch(cut: Cut, signal: Signal, device: torch.device) -> Batch:
    """As ``loader.lay_out`` has it: float16 stays what it is, and the model's patches promote it."""
    x_BTC = torch.from_numpy(cut.signal_BTC).to(device)
    windows, size, width = x_BTC.shape
    ids_C2 = torch.from_numpy(signal.ids).to(device)
    scale_R = None if signal.scale is None else torch.full((windows * width,), signal.scale, device=device)
    return Batch(
        x_BTC.transpose(1, 2).reshape(-1, size), ids_C2.repeat(windows, 1), Layout.uniform(windows, width), scale_R
    )


def _outputs(model: Cerebro, batch: Batch) -> Tensor:
    output = model(batch)
    assert isinstance(output, Tensor)
    return output


def _electrodes(model: Cerebro, handling: Handling) -> Electrodes:
    if model.load_report is None:  # a new model has no trained rows to tell from others

        def named(names: tuple[str, ...]) -> NDArray[np.int64]:
            return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)

        return named
    return electrode_ids(model.training_record.electrode_windows, handling.untrained)


def _length(name: str, seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"{name} is {seconds:g}; expected a positive number of seconds")
    return seconds
