"""Stored windows as arrays: ``X, y, groups, info = cerebro_eeg.open_store("my-store").arrays("eyes")``.

The windows, their labels and their order are those of ``finetune``. Samples are float32 microvolts.

Legend: **B** windows, **C** channels, **T** samples.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.match import match
from cerebro_eeg.data.batching.window_labels import LabelRule
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, warn_caller
from cerebro_eeg.notebook import InFolder, by_column
from cerebro_eeg.progress import counted, in_bytes
from cerebro_eeg.runs.features import TARGET
from cerebro_eeg.runs.store_predictions import start_times
from cerebro_eeg.runs.windows import read_task, splits_of

SHARE = 0.8
"""The most of the free memory that arrays may take."""
SECONDS = 5.0
"""Length of a window without a task."""
_NAMED = 12


class StoreArrays(NamedTuple):
    """Windows of a store, as scikit-learn and PyTorch take them."""

    X: NDArray[np.float32]
    """(windows, channels, samples) microvolts."""
    y: NDArray[Any] | None
    """The class of each window as text, or values as (windows,) or (windows, targets); None without a task."""
    groups: NDArray[np.str_]
    """The subject of each window; a recording without a known subject is its own."""
    info: "WindowInfo"
    """Where each window is from."""


@dataclass(frozen=True, eq=False, repr=False)
class WindowInfo(InFolder):
    """Where windows are from: one row per window, and what all of them share."""

    folder: str
    """The store."""
    task: str | None
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    channels: tuple[str, ...]
    """The channels of X, in order."""
    sfreq: float
    seconds: float
    """Length of a window."""
    recording: NDArray[np.str_]
    """Ids, as ``predict`` and ``embed`` give them to the same files."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording."""
    split: NDArray[np.object_]
    """train, val, test or another word; None for windows outside of splits."""
    subject: NDArray[np.object_]
    """None where the store does not know it."""
    answers: NDArray[Any] | None = None
    """The y of the windows."""

    def __len__(self) -> int:
        return len(self.start)

    def _headline(self) -> str:
        of = "" if self.task is None else f" of {self.task}"
        return (
            f"{len(self):,} windows{of}, {counted(len(self.channels), 'channel')}, {self.seconds:g} s at "
            f"{self.sfreq:g} Hz"
        )

    def _facts(self) -> Mapping[str, object]:
        return {"channels": ", ".join(self.channels)}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        columns: dict[str, Any] = {"recording": self.recording, "start": self.start, "subject": self.subject}
        if self.task is not None:
            columns["split"] = self.split
        if self.answers is not None and self.answers.dtype.kind == "U":
            columns["label"] = self.answers
        elif self.answers is not None:
            targets = self.answers.reshape(len(self), -1).T
            columns |= dict(zip((TARGET + name for name in self.names), targets, strict=True))
        return columns


class OpenStore(Store, InFolder):
    """A store that was opened to read windows from it; ``open_store`` makes one."""

    @property
    def folder(self) -> str:  # type: ignore[override]
        """The folder of the store."""
        return str(self._folder)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the store has labels for."""
        return tuple(self.info.settings.get("tasks", {}))

    def splits(self, task: str) -> list[str]:
        """Return the names of a task's splits."""
        return splits_of(self, task)

    def arrays(
        self,
        task: str | None = None,
        *,
        split: str | Sequence[str] | None = None,
        channels: Sequence[str] | None = None,
        seconds: float | None = None,
        stride: float | None = None,
        labels: LabelRule | None = None,
        flagged: Literal["keep", "drop"] = "keep",
    ) -> StoreArrays:
        """Return windows as arrays: ``X, y, groups, info``.

        Windows lie in recordings of one or several montages. X has the channels that all of them share, and a warning
        says which where montages differ. With ``channels`` it has these, and recordings that lack one are left out.

        Args:
            task: Which of ``tasks``; without one, all time is cut into windows and y is None.
            split: train, val, test, or several; otherwise windows of all splits.
            channels: The channels of X, in order; names as in files will do (T3 is T7).
            seconds: Length of a window; otherwise the task's, or 5.
            stride: Seconds from window to window; otherwise the task's.
            labels: How a window is labelled by the intervals that it lies in; otherwise the task's way.
            flagged: Whether windows of stretches shorter than the filter count.
        """
        windows, _ = stored_windows(
            self, task, split=split, seconds=seconds, stride=stride, labels=labels, flagged=flagged
        )
        if not len(windows):
            raise InputError("no window was found: labelled time may be shorter than a window; see cerebro_eeg.info")
        windows, names = _one_montage(windows, channels)
        count, size = len(windows), windows.samples
        _check_memory(count, len(names), size)
        X_BCT = np.empty((count, len(names), size), np.float32)
        columns = [[of.index(name) for name in names] if set(names) <= set(of) else [] for of in windows.facts.montages]
        montage_B = windows.facts.montage[windows.recording].tolist()
        places = zip(windows.recording.tolist(), windows.start.tolist(), montage_B, strict=True)
        for place, (recording, start, montage) in enumerate(places):
            X_BCT[place] = self.read(recording, start, start + size)[:, columns[montage]].T
        about = describe_windows(self, windows)
        info = WindowInfo(
            self.folder,
            task,
            windows.names,
            names,
            windows.sfreq,
            size / windows.sfreq,
            about.recording,
            about.start,
            about.split,
            about.subject,
            about.answers,
        )
        return StoreArrays(X_BCT, about.answers, about.groups, info)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each recording as a row of a table."""
        for record in self.recordings:
            yield {
                "recording": record.id,
                "subject": record.subject,
                "seconds": record.seconds,
                "channels": len(record.channels),
                "sfreq": record.sfreq,
                "native_sfreq": record.native_sfreq,
                "mains": record.mains,
                "faults": " ".join(record.faults),
                "tasks": " ".join(record.labels),
            }

    def _headline(self) -> str:
        seconds = sum(record.seconds for record in self.recordings)
        return f"{self.folder}: {counted(len(self.recordings), 'recording')}, {seconds / 3600:,.2f} h"

    def _facts(self) -> Mapping[str, object]:
        return {"tasks": ", ".join(f"{task} ({', '.join(self.splits(task))})" for task in self.tasks) or "none"}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        return by_column(self.rows())


def open_store(folder: "os.PathLike[str] | str") -> OpenStore:
    """Open a store that ``prepare`` made, to read its windows as arrays."""
    return OpenStore(Path(folder).expanduser())


def is_store(path: Path) -> bool:
    """Return whether a path is the folder of a store."""
    return (path / "store.json").is_file()


def stored_windows(
    store: Store,
    task: str | None,
    *,
    split: str | Sequence[str] | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    labels: LabelRule | None = None,
    flagged: Literal["keep", "drop"] = "keep",
    own: float = SECONDS,
) -> tuple[Windows, float]:
    """Return the labelled windows of a task or, without one, all windows; and their stride in seconds.

    ``own`` is the length of a window where neither a task nor the user says it.
    """
    if task is None:
        if split is not None or labels is not None:
            raise ConfigError("split and labels belong to a task; name the task")
        length = own if seconds is None else seconds
        step = length if stride is None else stride
        return find_windows(store, seconds=length, stride=step, flagged=flagged), step
    asked = read_task(store, task, seconds, stride, labels)
    found = find_windows(
        store,
        seconds=asked.seconds,
        stride=asked.stride,
        task=task,
        split=split,
        labels=asked.labels,
        flagged=flagged,
    )
    known: NDArray[np.bool_] = found.label >= 0 if found.target is None else np.isfinite(found.target).min(1)
    return found.take(known), asked.stride


@dataclass(frozen=True, eq=False)
class WindowFacts:
    """What a store knows of windows: arrays with one entry per window."""

    recording: NDArray[np.str_]
    start: NDArray[np.float64]
    subject: NDArray[np.object_]
    split: NDArray[np.object_]
    answers: NDArray[Any] | None
    """Classes as text, or values: (windows,) or (windows, targets); None without a task."""

    @property
    def groups(self) -> NDArray[np.str_]:
        """The subject of each window, or its recording where the subject is not known."""
        pairs = zip(self.subject.tolist(), self.recording.tolist(), strict=True)
        return np.array([recording if subject is None else subject for subject, recording in pairs], np.str_)


def describe_windows(store: Store, windows: Windows) -> WindowFacts:
    """Return id, start in seconds, subject, split and label of each window."""
    subjects = np.array([*windows.facts.subjects, None], np.object_)
    answers: NDArray[Any] | None = None
    if windows.target is not None:
        answers = windows.target[:, 0] if windows.target.shape[1] == 1 else windows.target
    elif windows.task is not None:
        answers = np.array(windows.names, np.str_)[windows.label]
    return WindowFacts(
        np.array(windows.facts.ids, np.str_)[windows.recording],
        start_times(store, windows),
        subjects[windows.subject],
        _split_of(store, windows),
        answers,
    )


def _split_of(store: Store, windows: Windows) -> NDArray[np.object_]:
    """Return the split of each window: that of the interval that it was cut from."""
    found = np.full(len(windows), None, np.object_)
    if windows.task is None:
        return found
    for number in np.unique(windows.recording).tolist():
        intervals = store.recordings[number].labels.get(windows.task, ())
        mine = windows.recording == number
        found[mine] = np.array([interval.split for interval in intervals], np.object_)[windows.trial[mine]]
    return found


def _one_montage(windows: Windows, asked: Sequence[str] | None) -> tuple[Windows, tuple[str, ...]]:
    """Return the channels that all windows share; or those that were asked for, and the windows that have them."""
    montage_B = windows.facts.montage[windows.recording]
    used = {number: windows.facts.montages[number] for number in np.unique(montage_B).tolist()}
    montages = list(used.values())
    if asked is not None:
        names = _canonical(asked, montages)
        having = [number for number, of in used.items() if set(names) <= set(of)]
        kept = np.isin(montage_B, having)
        if not having:
            rare = [name for name in names if not any(name in of for of in montages)]
            which = f"no recording has {', '.join(rare)}" if rare else "no recording has all of them"
            raise InputError(f"channels are {', '.join(names)}: {which}; the store has {_listed(_all(montages))}")
        if not kept.all():
            lost = len(np.unique(windows.recording[~kept]))
            warn_caller(
                f"{counted(lost, 'recording')} lacking one of the {len(names)} channels asked for were left out"
            )
        return windows.take(kept), names
    shared = tuple(name for name in montages[0] if all(name in of for of in montages))
    if not shared:
        raise InputError(
            f"the recordings have {len(montages)} montages that share no channel; give channels=[...]: recordings "
            f"that lack one are left out (the store has {_listed(_all(montages))})"
        )
    if len({frozenset(of) for of in montages}) > 1:
        warn_caller(
            f"the recordings have {len(montages)} montages; X has the {counted(len(shared), 'channel')} that all "
            f"share ({_listed(shared)}), and channels=[...] chooses others"
        )
    return windows, shared


def _canonical(asked: Sequence[str], montages: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names as the store has them."""
    if isinstance(asked, str):
        raise ConfigError(f"channels is {asked!r}; expected a list of names, such as ['Cz', 'Pz']")
    known = set(_all(montages))
    names = tuple(name if name in known else match([name]).channels[0].name for name in asked)
    if not names or len(set(names)) < len(names):
        raise ConfigError("channels is empty or names one twice; name each once, and at least one")
    return names


def _all(montages: Sequence[tuple[str, ...]]) -> list[str]:
    return list(dict.fromkeys(name for of in montages for name in of))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _check_memory(windows: int, channels: int, samples: int) -> None:
    """Refuse arrays that do not fit, before anything is allocated."""
    needed, free = 4 * windows * channels * samples, free_memory()
    if free is not None and needed > SHARE * free:
        raise InputError(
            f"{windows:,} windows of {channels} channels and {samples:,} samples take {in_bytes(needed)}, and "
            f"{in_bytes(free)} of memory are free; ask for one split, fewer channels or a longer stride"
        )


def free_memory() -> int | None:
    """Return the bytes of memory that a new array may take; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
