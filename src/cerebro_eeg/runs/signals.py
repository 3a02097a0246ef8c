"""Signal: a recording as a model wants it, block by block, without a store.

``data/preprocess.py`` does what ``prepare`` would do, by the checkpoint's own ``SignalConfig``: the file is prepared as
the windows were that trained the weights. Electrodes that no window trained are dealt with last, because they belong to
an average reference, too.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.filtering.half import FilteredPiece
from cerebro_eeg.data.filtering.plan import FilterPlan
from cerebro_eeg.data.preprocess import Preprocessed, preprocess
from cerebro_eeg.data.reading.arrays import check_needed
from cerebro_eeg.data.reading.formats import open_recording, reader_code
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.writer import ScaleSample
from cerebro_eeg.errors import CerebroError, ChannelError, RecordingError
from cerebro_eeg.model.inputs import say
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
        return _pieces(self.prepared)


def open_signal(
    source: "Source", config: ModelConfig, electrodes: Electrodes, handling: Handling, *, scaled: bool = False
) -> Signal:
    """Open a file or an object of MNE as a model of this config wants it; an InputError says why it cannot be.

    ``electrodes`` gives the ids of channels by their names; 0, 0 leaves a channel out. ``scaled`` says that the
    head reads the scale of the recording, which takes one more pass over the file.
    """
    policy = policy_of(handling, config)
    arrays = handling.arrays()
    with reader_errors():
        opened = open_recording(source, policy, unit=handling.unit, arrays=arrays)
        if not opened.samples:
            raise RecordingError("empty", "the recording has no samples; expected some")
        prepared = preprocess(opened, config.signal, quality=handling.quality, mains=handling.mains)
        names = tuple(channel.name for channel in prepared.channels)
        ids = electrodes(names)
        kept = tuple(np.flatnonzero(ids[:, 0]).tolist())
        if not kept:
            raise ChannelError(f"no window trained any of the {len(names)} channels; use --untrained nearest or as_is")
        needs = scaled or config.normalization == "recording" or config.amplitude
        scale = _scale(prepared) if needs else None
    for fault in opened.faults:
        if fault.code == "bads":
            say(logging.WARNING, fault.note)
    return Signal(prepared, tuple(names[column] for column in kept), kept, ids[list(kept)], scale)


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


def _pieces(prepared: Preprocessed) -> Iterator[FilteredPiece]:
    pieces = prepared.pieces()
    while True:
        with reader_errors():  # around each step, not around a yield: an error of the caller is no fault of the file
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _scale(prepared: Preprocessed) -> float:
    """Return the recording's scale as its store would have it; this is one more pass over the file."""
    sample = ScaleSample()
    for piece in prepared.pieces():
        sample.add(piece.rows)
    return sample.scale()
