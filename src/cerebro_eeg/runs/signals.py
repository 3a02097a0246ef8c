"""Signal: a recording as a model wants it, block by block: what ``prepare`` would have stored of it, without a store.

The steps and their order are those of ``data/storing/job.py``: quality, mains, filters, reference, half precision. They
follow the checkpoint's own ``SignalConfig``, so that a file is prepared as the windows were that the weights learned
from. Electrodes that no window trained are dealt with last, because they belong to an average reference, too.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.filtering.filters import run
from cerebro_eeg.data.filtering.half import to_half
from cerebro_eeg.data.filtering.plan import FilterPlan, estimate_mains, plan_filters
from cerebro_eeg.data.filtering.quality import Thresholds, choose, count, measure
from cerebro_eeg.data.filtering.references import Reference, rereference
from cerebro_eeg.data.reading.edf import late_faults
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording, Samples
from cerebro_eeg.data.storing.job import with_columns
from cerebro_eeg.data.storing.writer import LARGEST, ScaleSample
from cerebro_eeg.errors import CerebroError, ChannelError, RecordingError
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.windows import Electrodes

if TYPE_CHECKING:
    import mne

    Source: TypeAlias = Path | str | mne.io.BaseRaw | mne.BaseEpochs


@dataclass(frozen=True)
class Piece:
    """Samples that follow each other; many make a stretch, which no window leaves."""

    begins: bool
    """A new stretch begins with it."""
    onset: float
    """Seconds from the start of the recording to its first sample."""
    short: bool
    """Its stretch is shorter than the filter."""
    rows: NDArray[np.float16]
    """(time, channel) microvolts, all channels."""


@dataclass(frozen=True, eq=False)
class Signal:
    """An open recording with all that was decided about it."""

    recording: Recording
    plan: FilterPlan
    reference: Reference
    names: tuple[str, ...]
    """The channels that the model is given."""
    columns: tuple[int, ...]
    """Where they are in the rows of a piece."""
    ids: NDArray[np.int64]
    """(channels, 2): their electrodes, as ``Batch`` has them."""
    scale: float | None
    """Microvolts: of the whole recording, where the model asks for it."""
    faults: tuple[str, ...]
    """What is wrong with the file or with some of its channels, in one word each."""

    @property
    def end(self) -> float:
        """Seconds from the start of the recording to its last sample; gaps count."""
        last = self.recording.segments[-1]
        return last.onset + (last.stop - last.start) / self.recording.sfreq

    def pieces(self) -> Iterator[Piece]:
        """All of it, in bounded memory."""
        return _pieces(self.recording, self.plan, self.reference)


def open_signal(source: "Source", config: ModelConfig, electrodes: Electrodes, handling: Handling) -> Signal:
    """Open a file or an object of MNE as a model of this config wants it; an InputError says why it cannot be.

    ``electrodes`` gives the ids of channels by their names; 0, 0 leaves a channel out.
    """
    policy = ChannelPolicy(
        unknown=handling.unknown, too_many=handling.too_many, max_channels=config.max_channels
    )  # without `trained`: see above
    with blaming():
        opened = open_recording(source, policy, unit=handling.unit)
        if not opened.samples:
            raise RecordingError("empty", "the recording has no samples; expected some")
        thresholds = Thresholds()
        measured = measure(opened, thresholds)
        columns = choose(opened.match.channels, measured, thresholds, handling.quality)
        recording = with_columns(opened, columns)
        mains = handling.mains if handling.mains is not None else estimate_mains(recording)
        plan = plan_filters(recording.sfreq, config.signal, mains)
        kind = config.signal.reference
        _, channels = rereference(recording.read(0, 0), recording.match.channels, kind)
        names = tuple(channel.name for channel in channels)
        ids = electrodes(names)
        kept = tuple(np.flatnonzero(ids[:, 0]).tolist())
        if not kept:
            raise ChannelError(f"no window trained any of the {len(names)} channels; use --untrained nearest or as_is")
        counted = count(measured, thresholds)
        faults = {fault.code for fault in (*opened.faults, *late_faults(opened))}
        bad = [f"{name}:{number}" for name, number in counted.items() if number]
        scale = None
        if config.normalization == "recording" or config.amplitude:
            scale = _scale(_pieces(recording, plan, kind))
    return Signal(
        recording,
        plan,
        kind,
        tuple(names[column] for column in kept),
        kept,
        ids[list(kept)],
        scale,
        (*sorted(faults), *bad),
    )


@contextlib.contextmanager
def blaming() -> Iterator[None]:
    """A file that breaks a reader in a way nobody foresaw is refused in one line, which quotes nothing of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
            yield
    except CerebroError:
        raise
    except Exception as error:
        name = type(error).__name__
        code = "reader_" + "".join(c if c.isalnum() else "_" for c in name.lower())
        raise RecordingError(code, f"cannot be read ({name}); try `cerebro-eeg info` on it") from error


def _pieces(recording: Recording, plan: FilterPlan, reference: Reference) -> Iterator[Piece]:
    channels = recording.match.channels
    blocks = run(recording, plan)
    stretch, joined = -1, False
    while True:
        with blaming():  # around each step, not around a yield: what the caller does is no fault of the file
            block = next(blocks, None)
            if block is None:
                return
            signal = rereference(block.signal, channels, reference)[0]
            found = list(_fitting(signal))
        joined = joined and block.stretch == stretch
        stretch = block.stretch
        for first, stop in found:
            onset = block.onset + (block.start + first) / plan.new_rate
            yield Piece(not (joined and first == 0), onset, block.short, to_half(signal[first:stop]))
            joined = stop == len(signal)
        if len(signal) and not (found and found[-1][1] == len(signal)):
            joined = False


def _fitting(signal: Samples) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) rows of every run of rows that half precision can hold; the rest are gaps."""
    if not len(signal):
        return iter(())
    if signal.min() >= -LARGEST and signal.max() <= LARGEST:  # false for NaN, too
        return iter([(0, len(signal))])
    fits = (np.abs(signal) <= LARGEST).all(1)
    edges = np.flatnonzero(np.diff(fits, prepend=False, append=False)).tolist()
    return zip(edges[::2], edges[1::2], strict=True)


def _scale(pieces: Iterator[Piece]) -> float:
    """The recording's scale as its store would have it: one more pass over the file."""
    sample = ScaleSample()
    for piece in pieces:
        sample.add(piece.rows)
    return sample.scale()
