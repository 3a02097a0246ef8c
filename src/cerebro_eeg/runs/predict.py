"""Predict: from EEG files to a model's answer for each of their windows, without a store and in bounded memory.

The path of a recording, in the order of this file: ``find_inputs`` lists the files, ``make_reader`` readies the model,
``cut_windows`` cuts the filtered signal, ``compute`` runs the model on the windows, ``predict`` collects the answers.
``embed`` (in ``runs/embed.py``) takes the same path and collects features instead.

Windows never span a gap, and they hold exactly the samples that a store made by ``prepare`` would hold.

Legend: **B** windows, **C** channels, **T** samples.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import HeadConfig, ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.datasets.file_tree import files_of, find_sources, plain_name
from cerebro_eeg.data.filtering.half import FilteredPiece
from cerebro_eeg.data.reading.arrays import NO_FACTS, ArrayFacts, check_needed
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.name_map import labels_of, unmet, unmet_words
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing import privacy
from cerebro_eeg.data.storing.ids import make_ids
from cerebro_eeg.data.storing.mains import decide
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError, RecordingError
from cerebro_eeg.fast import on_its_way, one_behind, packed
from cerebro_eeg.files import real
from cerebro_eeg.model import inputs
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.preparation import doubts, line_left
from cerebro_eeg.model.tensor_list import check_results
from cerebro_eeg.runs.decisions import Prediction, bias_of, centre, softmax
from cerebro_eeg.runs.epochs import fit_length, is_epochs
from cerebro_eeg.runs.settings import Handling, Quality, TooMany, Unknown, Untrained
from cerebro_eeg.runs.signals import Signal, check_facts, open_signal, policy_of
from cerebro_eeg.runs.snapshot import is_unfinished, usable_weights
from cerebro_eeg.runs.windows import Electrodes, electrode_ids
from cerebro_eeg.train.distributed import choose_device
from cerebro_eeg.train.loop import evaluating

if TYPE_CHECKING:
    from cerebro_eeg.runs.signals import Source

BATCH = 64
"""The most windows that are computed at once."""
BATCH_BYTES = 256 << 20
"""About the most memory that the activations of these windows may take."""
OnProgress = Callable[[float, float], None]
"""A function that is called with the seconds of a recording that are done, and its length in seconds."""
Watch = Callable[[Signal, FilteredPiece], None]
"""A function that is called with every block of filtered samples, for example to draw them."""
_TRAINING = re.compile(r"(seed|fold)-\d+")


# The recordings and the checkpoint that a command line names


@dataclass(frozen=True)
class Input:
    """A recording that the user asked for.

    Its ``id`` is a keyed hash of its content, the same as in a store that ``prepare folder`` or ``prepare bids`` makes
    of it. A file name may reveal who was recorded, so only this class and the private map hold names.
    """

    number: int
    """Counts from 1 in the order given; the files of a folder are in the order of their names."""
    path: Path
    name: str
    id: str
    size: int
    """Bytes; 0 when the size cannot be read."""


def find_inputs(
    files: Sequence[Path], key_file: Path | None, out: Path | None = None, arrays: ArrayFacts = NO_FACTS
) -> list[Input]:
    """List the recordings in these files and folders, each once; files inside our own folder ``out`` are left out.

    ``arrays`` is what the user said about arrays of numbers; without a rate those of a folder are passed over.
    """
    if not files:
        raise ConfigError("no recording was given; expected EEG files, or folders that hold some")
    if not any(map(os.path.lexists, files)):
        what = "the file or folder given does" if len(files) == 1 else f"all {len(files)} files and folders given do"
        raise InputError(f"{what} not exist; expected EEG files, or folders that hold some: check the path")
    ours = None if out is None else real(out)
    named: dict[Path, tuple[Path, str, int, tuple[Path, ...]]] = {}
    for given in files:
        if given.is_dir() and given.suffix.casefold() != ".mff":
            found = [
                (source.path, source.name, source.size, source.files) for source in find_sources(given, None, arrays)
            ]
        else:
            found = [(given, plain_name(Path(os.path.normpath(given))), _size(given), ())]
        for path, name, size, parts in found:
            whole = real(path)
            if ours is None or not whole.is_relative_to(ours):
                named.setdefault(whole, (path, name, size, parts))
    check_needed(arrays, [path for path, *_ in named.values()])
    alone = [path for path, _, _, parts in named.values() if not parts]
    beside = dict(zip(alone, files_of(alone), strict=True))
    key = privacy.read_key(privacy.default_key_file() if key_file is None else key_file)
    ids = make_ids(key, [parts or beside[path] for path, _, _, parts in named.values()])
    return [
        # A file that cannot be read is refused when it is opened; until then its name stands for its content.
        Input(number, path, name, privacy.make_id(key, "recording", name) if isinstance(id, OSError) else id, size)
        for number, ((path, name, size, _), id) in enumerate(zip(named.values(), ids, strict=True), 1)
    ]


def write_map(map_file: Path | None, recordings: Sequence[Input]) -> None:
    """Add to the private map which path each id stands for; do nothing without a map."""
    if map_file is not None:
        privacy.add_to_map(map_file, {"recordings": {one.id: one.name for one in recordings}, "subjects": {}})


def with_common_mains(handling: Handling, given: Sequence[Input], config: ModelConfig) -> tuple[Handling, str | None]:
    """Let several recordings vote for one mains frequency; return the handling with it, and a line that says so.

    A single recording is decided by itself, and so is each where they plainly differ.
    """
    if handling.mains is not None or len(given) < 2:
        return handling, None
    opening = partial(_open_with, unit=handling.unit, arrays=handling.arrays())
    items = {one.id: Item(one.name, partial(opening, one.path)) for one in given}
    choice = decide(items, policy_of(handling, config)).sets[""]
    if choice.mixed:
        counts = ", ".join(f"{count:,} {line} Hz" for line, count in choice.votes.items() if line != "none")
        return handling, f"mains: some show {counts}; each recording is decided by itself, --mains takes one for all"
    return handling if choice.common is None else replace(handling, mains=choice.common), choice.text()


def _open_with(path: Path, policy: ChannelPolicy, *, unit: str | None, arrays: ArrayFacts) -> Recording:
    return open_recording(path, policy, unit=unit, arrays=arrays)


def unmet_names(given: Sequence[Input], handling: Handling, config: ModelConfig) -> str | None:
    """Return a line on names of ``rename`` that no file has, after a look at all headers; None where there is none."""
    names = handling.names()
    if names is None:
        return None
    opening = partial(_open_with, unit=handling.unit, arrays=handling.arrays())
    labels = labels_of([partial(opening, one.path) for one in given], policy_of(handling, config))
    absent = unmet(names, labels)
    return unmet_words(absent, labels) if absent else None


def find_checkpoint(model: Path | str) -> Path | str:
    """Return the checkpoint that is meant: ``model`` itself, or the single training inside the folder of a run."""
    path = Path(model).expanduser()
    if not path.exists() and _TRAINING.fullmatch(path.name):  # otherwise it would be looked up on the Hub
        raise ConfigError(f"there is no training {model}; give a checkpoint, or the folder of a training")
    if not path.is_dir() or (path / "model.safetensors").exists() or not (path / "run.json").exists():
        return model  # if something is wrong with it, loading it raises an error that says so
    if is_unfinished(path):
        return model
    trained = sorted([*path.glob("seed-*/model.safetensors"), *path.glob("fold-*/seed-*/model.safetensors")])
    if not trained:  # the folders of trainings that were stopped have weights to use, too
        begun = [*path.glob("seed-*/state.safetensors"), *path.glob("fold-*/seed-*/state.safetensors")]
        trained = sorted(one.parent / "model.safetensors" for one in begun)
    if not trained:
        raise ConfigError(f"no training of {model} has saved weights; start the same command again that began it")
    if len(trained) > 1:
        some = ", ".join(one.parent.relative_to(path).as_posix() for one in trained[:4])
        raise ConfigError(
            f"{model} holds {len(trained)} trainings ({some}{', ...' if len(trained) > 4 else ''}); give the folder of "
            "one of them"
        )
    return trained[0] if trained[0].exists() else trained[0].parent


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # the file is refused with the reason when it is opened


# The model


@dataclass(frozen=True)
class Reader:
    """A model that is ready to read recordings, with the windows that it reads."""

    model: Cerebro
    electrodes: Electrodes
    samples: int
    """Length of a window."""
    stride: int
    """Samples from the start of one window to the start of the next."""
    handling: Handling
    warns: bool = False
    """Whether to warn of a mains line that is still there after filtering."""

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def seconds(self) -> float:
        """Length of a window."""
        return self.samples / self.config.signal.sfreq

    @property
    def policies(self) -> dict[str, Any]:
        """The rules for channel names that a model was made with and that ``Handling`` does not have."""
        own = self.model.policies
        return {name: own[name] for name in ("pick", "duplicates", "max_channels", "bipolar_ears")}

    def open(self, source: "Source", *, whole: bool = False) -> tuple["Reader", Signal]:
        """Open a recording or Epochs of MNE. With ``whole``, Epochs of another length are one window each.

        The reader that is returned has their length.
        """
        reader, length = self, None
        if is_epochs(source):
            length = fit_length(source, self.model, self.samples, whole=whole)
            if length.samples != self.samples:
                reader = replace(self, samples=length.samples, stride=length.samples)
        signal = open_signal(
            source,
            self.config,
            self.electrodes,
            self.handling,
            scaled=self.model.needs_scale,
            policies=self.policies,
            length=length,
        )
        return reader, signal

    def text(self) -> str:
        """Describe in one line how recordings are filtered and cut."""
        signal = self.config.signal
        kind = "zero-phase" if signal.filter_phase == "zero" else "causal"
        notch = f", notch {signal.notch_width:g} Hz wide" if signal.notch_width else ", no notch"
        return (
            f"recordings are prepared as the weights expect: {signal.sfreq:g} Hz, {signal.highpass:g} to "
            f"{signal.lowpass:g} Hz ({kind}{notch}), reference {signal.reference}; windows of "
            f"{self.seconds:g} s every {self.stride / signal.sfreq:g} s"
        )


def make_reader(
    model: Cerebro,
    *,
    seconds: float | None = None,
    stride: float | None = None,
    handling: Handling = Handling(),
    tokens: bool = False,
) -> Reader:
    """Return a reader of windows of ``seconds`` (default: the model's own), one every ``stride`` seconds.

    Without ``stride`` the windows lie side by side. ``tokens`` says that the encoder's tokens are asked for, whatever
    the head reads.
    """
    rate = model.config.signal.sfreq
    own = model.head.samples if model.head is not None else None
    samples = own or model.n_times or model.config.window
    if seconds is not None:
        samples = math.floor(_positive("seconds", seconds) * rate + 0.5)
    if model.config.patches.count(samples) < 1:
        raise ConfigError(
            f"windows of {samples / rate:g} s are too short for a patch; at {rate:g} Hz it needs "
            f"{model.config.patches.shortest() / rate:.3g} s"
        )
    step = samples if stride is None else max(1, math.floor(_positive("stride", stride) * rate + 0.5))
    return Reader(model, _electrodes(model, handling, tokens), samples, step, handling)


def load_model(model: "Cerebro | Path | str") -> Cerebro:
    """Return the model itself, or load it from a checkpoint, the folder of a training, or the Hub."""
    if isinstance(model, Cerebro):
        return model
    found = find_checkpoint(model)
    if not is_unfinished(Path(found).expanduser()):
        return Cerebro.from_pretrained(found)
    with usable_weights(Path(found).expanduser(), lambda line: inputs.say(logging.WARNING, line)) as weights:
        return Cerebro.from_pretrained(weights)


def load_model_on(model: "Cerebro | Path | str", device: str) -> Cerebro:
    """Load a model onto a device; a model that is in memory already stays where it is."""
    chosen = choose_device(device)
    if not isinstance(model, Cerebro):
        return load_model(model).to(chosen)
    if device != "auto":
        raise ConfigError(
            f"device is {device!r}, and the model is in memory already; move it with model.to, and leave device out"
        )
    return model


def random_words(model: Cerebro, tokens: bool = False) -> str | None:
    """Return a line that says that the weights record no training; None for trained weights.

    Random weights are a fair baseline, but a user must not take them for a trained model. A head that reads simple
    features alone has no use for them, unless ``tokens`` are asked for.
    """
    record = model.training_record
    if record.windows or record.steps or not (tokens or model.needs_encoder):
        return None
    known = "the checkpoint records no training" if model.load_report else "the model was neither loaded nor trained"
    return (
        f"{known}, so the weights of its encoder are random, unless you set them yourself: what comes of them is a "
        "baseline (Cerebro.from_pretrained loads trained ones)"
    )


def warn_random(model: Cerebro, tokens: bool = False) -> None:
    """Log the line of ``random_words`` as a warning, if there is one."""
    if (line := random_words(model, tokens)) is not None:
        inputs.say(logging.WARNING, line)


def check_head(model: Cerebro) -> HeadConfig:
    """Return the head; raise for a model that answers nothing, before any recording is read."""
    head = model.head
    if head is None:
        raise CheckpointError(
            "the checkpoint has no head, so it answers no question; give one that finetune made, or use embed"
        )
    if head.task == "classification" and head.n_outputs == 1:
        raise CheckpointError("the checkpoint has a single class, so it decides nothing; give one with two or more")
    return head


def output_names(head: HeadConfig) -> tuple[str, ...]:
    """Return the names of classes or targets; they are numbered when the checkpoint does not name them."""
    return head.names or tuple(f"output {number}" for number in range(head.n_outputs))


def _electrodes(model: Cerebro, handling: Handling, tokens: bool) -> Electrodes:
    # In a new model all electrodes are equally untrained, and without the encoder no row of theirs is read.
    if model.load_report is None or not (tokens or model.needs_encoder):

        def named(names: tuple[str, ...]) -> NDArray[np.int64]:
            return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)

        return named
    return electrode_ids(model.training_record.electrode_windows, handling.untrained)


def _positive(name: str, seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"{name} is {seconds:g}; expected a positive number of seconds")
    return seconds


# The windows of a recording


@dataclass(frozen=True, eq=False)
class RecordingWindows:
    """Some consecutive windows of one recording."""

    signal_BTC: NDArray[np.float16] | NDArray[np.float32]
    start_B: NDArray[np.float64]
    """Seconds from the start of the recording."""
    stretch_B: NDArray[np.int64]
    """Number of the stretch (time without a gap) that each window lies in."""
    short_B: NDArray[np.bool_]
    """Whether that stretch is shorter than the filter."""


def cut_windows(
    signal: Signal, samples: int, stride: int, size: int, watch: Watch | None = None
) -> Iterator[RecordingWindows]:
    """Yield the windows of a recording, ``size`` at a time.

    A window begins where its stretch begins and then every ``stride`` samples, as in a store. None leaves its stretch.
    """
    rate = signal.plan.new_rate
    columns = list(signal.columns)
    held: NDArray[np.float16] | NDArray[np.float32] = np.empty((0, len(columns)), np.float16)
    place = wanted = 0  # samples of the stretch before `held`, and before the next window
    stretch, onset = -1, 0.0
    found: list[tuple[NDArray[Any], float, int, bool]] = []
    for piece in signal.pieces():
        if watch is not None:
            watch(signal, piece)
        if piece.begins:
            held, place, wanted, stretch, onset = held[:0], 0, 0, stretch + 1, piece.onset
        held = np.concatenate([held, piece.rows[:, columns]])
        while wanted + samples <= place + len(held):
            rows = held[wanted - place : wanted - place + samples]
            found.append((rows.copy(), onset + wanted / rate, stretch, piece.short))  # a view would keep all of `held`
            wanted += stride
            if len(found) == size:
                yield _stack(found)
                found = []
        gone = min(wanted - place, len(held))
        held, place = held[gone:], place + gone
    if found:
        yield _stack(found)


def _stack(found: list[tuple[NDArray[Any], float, int, bool]]) -> RecordingWindows:
    rows, start, stretch, short = zip(*found, strict=True)
    return RecordingWindows(np.stack(rows), np.array(start), np.array(stretch, np.int64), np.array(short, np.bool_))


def longest_stretch(signal: Signal) -> float:
    """Return the length of the longest stretch without a gap, in seconds."""
    lengths = [0]
    for piece in signal.pieces():
        if piece.begins:
            lengths.append(0)
        lengths[-1] += len(piece.rows)
    return max(lengths) / signal.plan.new_rate


# The model on the windows


def compute(
    reader: Reader,
    signal: Signal,
    read: Callable[[Cerebro, Batch], Tensor],
    progress: OnProgress = lambda seconds, of: None,
    watch: Watch | None = None,
) -> Iterator[tuple[RecordingWindows, NDArray[np.float32]]]:
    """Yield windows with the output of ``read`` for them, some at a time; a recording without a window is an error.

    A GPU computes some windows while the next ones are read and filtered.
    """
    model, none = reader.model, True
    needed = cost(reader.config, len(signal.ids), reader.samples).forward_bytes
    size = min(BATCH, max(1, BATCH_BYTES // max(1, needed)))

    def begun() -> Iterator[tuple[RecordingWindows, Callable[[], Tensor]]]:
        for number, windows in enumerate(cut_windows(signal, reader.samples, reader.stride, size, watch)):
            if reader.warns and number == 0 and signal.epochs is None:
                _warn_line(windows, signal)
            elif reader.warns and number == 0:
                _doubt_epochs(windows, signal, reader.config)
            with evaluating(model), torch.no_grad():
                output = read(model, make_batch(windows, signal, model.encoder.positions.device))
            yield windows, on_its_way(output.float())

    for windows, output in one_behind(begun()):
        none, results = False, np.asarray(output.numpy(), np.float32)
        check_results(results, model)
        yield windows, results
        progress(float(windows.start_B[-1]), signal.end)
    if none:
        raise nothing_fits(reader, signal)


def nothing_fits(reader: Reader, signal: Signal) -> RecordingError:
    """Return the error for a recording without a whole window."""
    return RecordingError(
        "too_short",
        f"has no window: its longest stretch without a gap is {longest_stretch(signal):.3g} s, and a window of "
        f"this model is {reader.seconds:g} s; give a longer recording",
    )


def _warn_line(windows: RecordingWindows, signal: Signal) -> None:
    """Warn of a strong mains line in filtered windows: the notch was at another frequency, or there was none."""
    plan = signal.plan
    line = line_left(torch.from_numpy(windows.signal_BTC).transpose(1, 2), plan.new_rate)
    if line is not None and plan.notch_width > 0:
        notch = "no notch was applied" if plan.notch is None else f"the notch was at {plan.notch:g} Hz"
        inputs.warn(f"the filtered recording still has a strong line at {line:g} Hz ({notch}); pass mains={line:g}")


def _doubt_epochs(windows: RecordingWindows, signal: Signal, config: ModelConfig) -> None:
    """Warn of epochs that plainly were not filtered as the weights expect, where their info does not tell of it."""
    x_BCT = torch.from_numpy(windows.signal_BTC).transpose(1, 2)
    words = doubts(x_BCT, signal.plan.new_rate, config.signal)
    if signal.band_told:  # then only the notch is unknown
        words = [word for word in words if "line at" in word]
    if words:
        inputs.warn(
            f"the epochs have {' and '.join(words)}, and they are taken as they are; filter the Raw before you cut it, "
            "or give the Raw, which is filtered as the weights expect"
        )


def make_batch(windows: RecordingWindows, signal: Signal, device: torch.device) -> Batch:
    """Lay the windows out as ``loader.lay_out`` does: samples stay float16, and the model's patches promote them."""
    x_BTC = onto(torch.from_numpy(windows.signal_BTC), device)
    count, size, width = x_BTC.shape
    ids_C2 = onto(torch.from_numpy(signal.ids), device)
    scale_R = None if signal.scale is None else torch.full((count * width,), signal.scale, device=device)
    return Batch(
        x_BTC.transpose(1, 2).reshape(-1, size), ids_C2.repeat(count, 1), Layout.uniform(count, width), scale_R
    )


# Predictions


def predict(
    source: "Source",
    model: Cerebro | Path | str,
    *,
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
) -> Prediction:
    """Return the answers of a fine-tuned model for a recording: a file, or an MNE ``Raw`` or ``Epochs`` object.

    ``model`` is a Cerebro with a head, a checkpoint, or the folder of a training. The recording is filtered, referenced
    and resampled as the checkpoint says. Epochs are not filtered (docs/mne.md). The other arguments are those of
    ``Handling``.
    """
    tables = [None if table is None else Path(table) for table in (rename, channels_from)]
    handling = Handling(unknown, untrained, too_many, quality, mains, unit, tables[0], sfreq, tables[1])
    check_facts(source, handling)
    reader = replace(make_reader(load_model(model), stride=stride, handling=handling), warns=True)
    check_head(reader.model)
    warn_random(reader.model)
    with packed(reader.model):
        return predict_recording(reader, source)


def predict_recording(
    reader: Reader, source: "Source", *, progress: OnProgress = lambda seconds, of: None, watch: Watch | None = None
) -> Prediction:
    """Do ``predict`` with a reader that was made before."""
    head = check_head(reader.model)
    _, signal = reader.open(source)
    found = [
        (windows.start_B, windows.stretch_B, windows.short_B, output)
        for windows, output in compute(reader, signal, _outputs, progress, watch)
    ]
    start, stretch, short, output = (np.concatenate(column) for column in zip(*found, strict=True))
    if head.centred:
        output = centre(output, np.zeros(len(output), np.int64), bias_of(reader.model))
    kind = head.task
    return Prediction(
        kind=kind,
        names=output_names(head),
        threshold=head.threshold if kind == "classification" and head.n_outputs == 2 else None,
        output=softmax(output) if kind == "classification" else output,
        start=start,
        seconds=reader.seconds,
        stretch=stretch,
        short=short,
        end=signal.end,
        channels=signal.names,
        faults=signal.faults,
        plan=signal.text(),
        epochs=signal.epochs,
    )


def _outputs(model: Cerebro, batch: Batch) -> Tensor:
    output = model(batch)
    assert isinstance(output, Tensor)
    return output
