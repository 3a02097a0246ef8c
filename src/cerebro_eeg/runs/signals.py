"""Signal: a recording as a model wants it, block by block, without a store.

Epochs of MNE are taken as they are: only rate, reference and channels are made the model's. Of all else
``data/preprocess.py`` does what ``prepare`` would do, by the checkpoint's own ``SignalConfig``: the file is prepared as
the windows were that trained the weights. Electrodes that no window trained are dealt with last, because they belong to
an average reference, too.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.filtering.half import FilteredPiece
from cerebro_eeg.data.filtering.plan import FilterPlan
from cerebro_eeg.data.filtering.references import rereference
from cerebro_eeg.data.preprocess import Preprocessed, preprocess
from cerebro_eeg.data.reading.arrays import check_needed
from cerebro_eeg.data.reading.formats import open_recording, reader_code
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording, Samples, Segment
from cerebro_eeg.data.storing.writer import ScaleSample
from cerebro_eeg.errors import CerebroError, ChannelError, RecordingError
from cerebro_eeg.model.inputs import resample, say
from cerebro_eeg.runs.epochs import EpochKeys, EpochLength, band_words, is_epochs, keys_of, pass_band
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.windows import Electrodes

if TYPE_CHECKING:
    import mne

    Source: TypeAlias = Path | str | mne.io.BaseRaw | mne.BaseEpochs


@dataclass(frozen=True, eq=False)
class Signal:
    """A preprocessed recording, and the channels of it that a model is given."""

    prepared: Preprocessed
    names: tuple[str, ...]
    """The channels that the model is given."""
    columns: tuple[int, ...]
    """Where they are in the rows of a piece."""
    ids: NDArray[np.int64]
    """(channels, 2): their electrodes, as ``Batch`` has them."""
    scale: float | None
    """Microvolts: the scale of the whole recording, where the model asks for it."""
    epochs: EpochKeys | None = None
    """The epochs that these are, taken as they are; None for a recording."""
    band_told: bool = False
    """Whether a line said that the pass-band is not the one that the weights expect."""

    @property
    def plan(self) -> FilterPlan:
        return self.prepared.plan

    @property
    def end(self) -> float:
        """Seconds from the start of the recording to its last sample; gaps count."""
        return self.prepared.recording.end

    @property
    def faults(self) -> tuple[str, ...]:
        """One word for each fault of the file, and for each fault of channels with their number."""
        checked = self.prepared.checked
        bad = [f"{name}:{number}" for name, number in checked.count_faults().items() if number]
        return (*sorted({fault.code for fault in checked.faults}), *bad)

    def pieces(self) -> Iterator[FilteredPiece]:
        """Compute all filtered samples, all channels, in bounded memory."""
        return _guarded(self.prepared.pieces() if self.epochs is None else _as_they_are(self.prepared))

    def text(self) -> str:
        """Return in one line what was done to the signal."""
        if self.epochs is None:
            return self.plan.text()
        plan = self.plan
        rate = f"{plan.rate:g} Hz kept" if plan.up == plan.down else f"{plan.rate:g} to {plan.new_rate:g} Hz"
        return f"epochs as they are ({plan.low:g} to {plan.high:g} Hz by their info), {rate}"


def open_signal(
    source: "Source",
    config: ModelConfig,
    electrodes: Electrodes,
    handling: Handling,
    *,
    scaled: bool = False,
    policies: Mapping[str, Any] | None = None,
    length: EpochLength | None = None,
) -> Signal:
    """Open a file or an object of MNE as a model of this config wants it; an InputError says why it cannot be.

    ``electrodes`` gives the ids of channels by their names; 0, 0 leaves a channel out. ``scaled`` says that the
    head reads the scale of the recording, which takes one more pass over the file. ``policies`` are further fields of
    ``ChannelPolicy``. ``length`` says how much of each of MNE's Epochs is used.
    """
    policy = replace(policy_of(handling, config), **(policies or {}))
    arrays, given = handling.arrays(), is_epochs(source)
    with reader_errors():
        opened = open_recording(source, policy, unit=handling.unit, arrays=arrays)
        if not opened.samples:
            raise RecordingError("empty", "the recording has no samples; expected some")
        if given:
            prepared, keys = _prepare_epochs(source, opened, config, handling, length)
        else:
            prepared = preprocess(opened, config.signal, quality=handling.quality, mains=handling.mains)
            keys = None
        names = tuple(channel.name for channel in prepared.channels)
        ids = electrodes(names)
        kept = tuple(np.flatnonzero(ids[:, 0]).tolist())
        if not kept:
            raise ChannelError(f"no window trained any of the {len(names)} channels; use --untrained nearest or as_is")
        needs = scaled or config.normalization == "recording" or config.amplitude
        scale = _scale(prepared, given) if needs else None
    for fault in opened.faults:
        if fault.code == "bads":
            say(logging.WARNING, fault.note)
    info = getattr(source, "info", None)
    words = None if info is None else band_words(info, config.signal, epochs=given)
    if words is not None:
        say(logging.WARNING, words)
    if length is not None and length.told is not None:
        say(logging.INFO, length.told)
    signal = Signal(prepared, tuple(names[column] for column in kept), kept, ids[list(kept)], scale)
    return replace(signal, epochs=keys, band_told=words is not None)


def check_facts(source: "Source", handling: Handling) -> None:
    """Refuse a rate or names for a recording that has its own, since they would have no effect."""
    check_needed(handling.arrays(), [Path(source)] if isinstance(source, str | Path) else [])


def policy_of(handling: Handling, config: ModelConfig) -> ChannelPolicy:
    """Return the policy for the channels of new recordings; electrodes that no window trained come later."""
    return ChannelPolicy(
        unknown=handling.unknown, too_many=handling.too_many, max_channels=config.max_channels, names=handling.names()
    )


@contextlib.contextmanager
def reader_errors() -> Iterator[None]:
    """Refuse a file that breaks its reader in an unforeseen way in one line, which quotes nothing of the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
            yield
    except CerebroError:
        raise
    except Exception as error:
        said = f"cannot be read ({type(error).__name__}); try `cerebro-eeg info` on it"
        raise RecordingError(reader_code(error), said) from error


def _guarded(pieces: Iterator[FilteredPiece]) -> Iterator[FilteredPiece]:
    while True:
        with reader_errors():  # around each step, not around a yield: an error of the caller is no fault of the file
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _scale(prepared: Preprocessed, epochs: bool) -> float:
    """Return the recording's scale as its store would have it; this is one more pass over the file."""
    sample = ScaleSample()
    for piece in _as_they_are(prepared) if epochs else prepared.pieces():
        sample.add(piece.rows)
    return sample.scale()


# Epochs of MNE

_TOGETHER = 1 << 22  # values of epochs that are read at a time


def _prepare_epochs(
    source: Any, opened: Recording, config: ModelConfig, handling: Handling, length: EpochLength | None
) -> tuple[Preprocessed, EpochKeys]:
    """Return epochs without any filter, cut to the samples that are used, and which epochs they are."""
    dropped = source if source._bad_dropped else source.copy().drop_bad(verbose="warning")
    kept = len(source.times) if length is None else length.kept
    segments = tuple(
        Segment(one.start, one.start + kept, number * kept / opened.sfreq) for number, one in enumerate(opened.segments)
    )
    _check_finite(opened)
    unfiltered = replace(config.signal, highpass=0.0, notch_width=0.0)
    prepared = preprocess(replace(opened, segments=segments), unfiltered, quality=handling.quality, mains=0.0)
    low, high = pass_band(source.info) or (0.0, opened.sfreq / 2)
    return replace(prepared, plan=replace(prepared.plan, low=low, high=high)), keys_of(dropped)


def _check_finite(opened: Recording) -> None:
    """Refuse epochs with NaN or infinity, because a row of the result belongs to every epoch."""
    for number, samples in enumerate(_epochs(opened)):
        if not np.isfinite(samples).all():
            column = int(np.flatnonzero(~np.isfinite(samples).all(0))[0])
            label = opened.match.rows[opened.match.index[column]].label
            raise RecordingError(
                "not_finite", f"epoch {number} holds NaN or infinity in channel {label!r}; drop it, or repair it"
            )


def _epochs(recording: Recording) -> Iterator[Samples]:
    """Yield the samples (time, channel) of every epoch, which are read some at a time."""
    segments = recording.segments
    size = len(recording.match.channels) * (segments[0].stop - segments[0].start)
    together = max(1, _TOGETHER // size)
    for place in range(0, len(segments), together):
        some = segments[place : place + together]
        block = recording.read(some[0].start, some[-1].stop)
        yield from (block[one.start - some[0].start : one.stop - some[0].start] for one in some)


def _as_they_are(prepared: Preprocessed) -> Iterator[FilteredPiece]:
    """Yield the epochs at the model's rate and reference, in single precision and without a filter."""
    recording, plan = prepared.recording, prepared.plan
    for segment, samples in zip(recording.segments, _epochs(recording), strict=True):
        if plan.up != plan.down:
            samples = resample(torch.from_numpy(samples.T.copy()), plan.rate, plan.new_rate).numpy().T
        rows, _ = rereference(samples, recording.match.channels, prepared.reference)
        yield FilteredPiece(True, segment.onset, False, rows)
