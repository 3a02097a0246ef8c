"""What ``repair`` returns: a recording with channels filled in, what that cost, and the files that hold it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.data.reading.edf_writer import write_recording
from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.errors import ConfigError, InputError, RecordingError, import_trouble
from cerebro_eeg.files import replacing
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.progress import counted

AUTO = "auto"
METHODS = ("splines", "both", "model")
SAID = {
    "model": "the model",
    "splines": "spherical splines",
    "both": "the mean of model and splines",
    "none": "nothing",
}
LARGEST = 2_000_000_000
"""Bytes of samples that one FIF file may hold."""


@dataclass(frozen=True, eq=False)
class FilledStretch:
    """Samples without a gap."""

    onset: float
    """Seconds from the start of the recording to the first sample."""
    data_TC: NDArray[np.float32]
    """Microvolts."""


@dataclass(frozen=True)
class FilledChannel:
    """A channel that was filled in."""

    name: str
    reason: str
    """Why: named by the user, marked as bad, not recorded, or the faults of its samples."""


@dataclass(frozen=True)
class HiddenChannel:
    """A good channel that was hidden, and the error of each method as a share of its variance; None where it could not.

    Ridge regression learned from the channel itself, in the first half of the recording.
    """

    name: str
    model: float | None
    splines: float | None
    both: float | None
    ridge: float | None
    windows: int


def median_errors(hidden: Sequence[HiddenChannel]) -> dict[str, float]:
    """Return the median error of each method that has one.

    Not the mean, because a quiet channel beside loud ones can have an error of many times its variance.
    """
    found = {}
    for name in (*METHODS, "ridge"):
        values = [value for one in hidden if (value := getattr(one, name)) is not None]
        if values:
            found[name] = float(np.median(values))
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Repaired(Shown):
    """A recording with its bad and missing channels filled in: microvolts at the rate and in the band of the model."""

    channels: tuple[str, ...]
    """In the order of the file; those that were not recorded come last."""
    filled: tuple[FilledChannel, ...]
    method: str
    """What filled them in: model, splines or both; none where no channel was bad."""
    asked: str
    """What was asked for; auto lets the hidden channels decide."""
    model: str
    sfreq: float
    stretches: tuple[FilledStretch, ...]
    """The samples between gaps, (time, channel)."""
    hidden: tuple[HiddenChannel, ...]
    plan: str
    """How the recording was filtered."""
    band: tuple[float, float, float | None]
    """Lower and upper edge of the pass-band and the notch, in Hz."""
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> NDArray[np.float32]:
        """Microvolts (channels, samples) from the first sample on; NaN in gaps, which stay gaps."""
        first = self.start
        size = max(self._place(one.onset - first) + len(one.data_TC) for one in self.stretches)
        found = np.full((len(self.channels), size), np.nan, np.float32)
        for one in self.stretches:
            place = self._place(one.onset - first)
            found[:, place : place + len(one.data_TC)] = one.data_TC.T
        return found

    @property
    def start(self) -> float:
        """Seconds from the start of the recording to the first sample."""
        return self.stretches[0].onset

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """Onset and duration in seconds of each gap, from the first sample on."""
        found, first = [], self.start
        for one, other in zip(self.stretches, self.stretches[1:], strict=False):
            stop = self._place(one.onset - first) + len(one.data_TC)
            if (size := self._place(other.onset - first) - stop) > 0:
                found.append((stop / self.sfreq, size / self.sfreq))
        return tuple(found)

    def _place(self, seconds: float) -> int:
        return round(seconds * self.sfreq)

    @property
    def errors(self) -> dict[str, float]:
        """The error of each method, a share of the variance: the median over the hidden channels."""
        return median_errors(self.hidden)

    @property
    def verdict(self) -> str:
        """One sentence on who fills in hidden channels best, and one on ridge regression."""
        found = self.errors
        rivals = sorted((name for name in METHODS if name in found), key=lambda name: found[name])
        if not rivals:
            return "no error was measured: no good channel was hidden"
        count = len(self.hidden)
        best, *others = rivals
        said = ", ".join(f"{SAID[name]} {found[name]:.3f}" for name in others)
        line = f"on {counted(count, 'hidden channel')} the smallest median error is {found[best]:.3f} of the variance, "
        line += f"by {SAID[best]}"
        if others:
            nearer = sum((getattr(one, best) or 0.0) < (getattr(one, others[0]) or 0.0) for one in self.hidden)
            line += f" ({said}). It is nearer than {SAID[others[0]]} on {nearer} of {count}"
        if "ridge" in found:
            line += (
                f". Ridge regression learned from the hidden channel itself and has {found['ridge']:.3f}; "
                "a channel that was never good cannot have it"
            )
        return line

    def raw(self) -> Any:
        """Return a ``Raw`` of MNE, in volts, with places on the head; gaps are zeros under ``BAD_ACQ_SKIP``."""
        try:
            import mne
        except ImportError as error:
            raise ConfigError(f"no Raw can be made: {import_trouble(error, 'mne')}") from None
        low, high, _ = self.band
        info = mne.create_info(list(self.channels), self.sfreq, "eeg", verbose="error")
        info["description"] = self.description()
        with info._unlock():
            info["highpass"], info["lowpass"] = float(low), float(high)
        data = np.nan_to_num(self.data.astype(np.float64) * 1e-6, nan=0.0)
        raw = mne.io.RawArray(data, info, verbose="error")
        if all(name in VOCABULARY for name in self.channels):
            raw.set_montage("standard_1005", on_missing="ignore", match_alias=True, verbose="error")
        onsets, durations = [gap[0] for gap in self.gaps], [gap[1] for gap in self.gaps]
        names = ["BAD_ACQ_SKIP"] * len(onsets)
        for event in self._own_events():
            onsets.append(event.onset)
            durations.append(event.duration)
            names.append(event.name)
        raw.set_annotations(mne.Annotations(onsets, durations, names), verbose="error")
        return raw

    def description(self) -> str:
        """Return what a file says about itself: what was filled in, by what, and the band."""
        if not self.filled:
            return f"cerebro-eeg repair: no channel was filled in; {self.plan}"
        names = ", ".join(one.name for one in self.filled)
        weights = "" if self.method == "splines" else f" ({self.model})"
        return f"cerebro-eeg repair: filled in {names} by {SAID[self.method]}{weights}; {self.plan}"

    def save(self, path: Path | str) -> Path:
        """Write ``.edf`` or ``.fif``; nothing is overwritten, and no file names a person or a date."""
        target = Path(path).expanduser()
        if target.exists() or target.is_symlink():
            raise ConfigError("a file of that name is there; nothing is overwritten: choose another name")
        if target.suffix.casefold() not in _WRITERS:
            raise ConfigError(f"the name ends in {target.suffix or 'nothing'}; expected .edf or .fif")
        self.write(target)
        return target

    def write(self, path: Path) -> None:
        """Write ``.edf`` or ``.fif`` in place of what stands there; ``save`` never does."""
        _WRITERS[path.suffix.casefold()](self, path)

    def _own_events(self) -> list[Event]:
        """Return the events that were asked for, from the first sample on."""
        moved = [Event(event.onset - self.start, event.duration, event.name) for event in self.events]
        end = self.data.shape[1] / self.sfreq
        return [event for event in moved if 0 <= event.onset < end]

    def _headline(self) -> str:
        by = f" by {SAID[self.method]}" if self.filled else ""
        return f"{len(self.channels)} channels, of which {len(self.filled)} filled in{by}"

    def _facts(self) -> Mapping[str, object]:
        return {
            "filled in": ", ".join(f"{one.name} ({one.reason})" for one in self.filled),
            "signal": self.plan,
            "error": self.verdict,
        }

    def _notes(self) -> Sequence[str]:
        return self.notes

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per hidden channel with the error of each method, and the medians at the end."""
        rows: list[dict[str, Any]] = [asdict(one) for one in self.hidden]
        for row in rows:
            row["hidden"] = row.pop("name")
        names = ("hidden", *METHODS, "ridge", "windows")
        totals = {"hidden": "median", **self.errors, "windows": self.hidden[0].windows} if rows else {}
        return by_column({name: row.get(name) for name in names} for row in [*rows, *([totals] if totals else [])])

    def to_dict(self) -> dict[str, object]:
        """Return all but the samples as JSON values."""
        return {
            "channels": list(self.channels),
            "filled": [asdict(one) for one in self.filled],
            "method": self.method,
            "asked": self.asked,
            "model": self.model,
            "sfreq": self.sfreq,
            "start": self.start,
            "seconds": round(sum(len(one.data_TC) for one in self.stretches) / self.sfreq, 6),
            "gaps": [list(gap) for gap in self.gaps],
            "filters": self.plan,
            "errors": self.errors,
            "hidden": [asdict(one) for one in self.hidden],
            "verdict": self.verdict,
            "notes": list(self.notes),
        }


# Files


def _write_edf(found: Repaired, path: Path) -> None:
    if found.gaps:
        raise RecordingError(
            "gaps",
            f"the recording has {counted(len(found.gaps), 'gap')}, which EDF+C cannot hold; --format fif keeps them",
        )
    low, high, notch = found.band
    filled = {one.name for one in found.filled}
    by = f"filled in: {SAID[found.method]}"
    write_recording(
        path,
        np.concatenate([one.data_TC for one in found.stretches]),
        found.channels,
        found.sfreq,
        found._own_events(),
        notes=[by if name in filled else "" for name in found.channels],
        filters=f"HP:{low:g}Hz LP:{high:g}Hz" + (f" N:{notch:g}Hz" if notch else ""),
    )


def _write_fif(found: Repaired, path: Path) -> None:
    import tempfile

    raw = found.raw()
    if raw._data.nbytes // 2 > LARGEST:
        raise InputError(f"the recording needs more than {LARGEST / 1e9:g} GB, the most of one FIF file; cut it before")
    with replacing(path) as temporary, tempfile.TemporaryDirectory(dir=path.parent, prefix=".repair-") as folder:
        whole = Path(folder) / "whole_eeg.fif"  # MNE looks at the ending of the name
        raw.save(whole, fmt="single", verbose="error")
        whole.replace(temporary)


_WRITERS = {".edf": _write_edf, ".fif": _write_fif}


def write_summary(path: Path, about: Mapping[str, object]) -> None:
    """Write ``repair.json``."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(about, indent=2, allow_nan=False) + "\n", encoding="utf-8")
