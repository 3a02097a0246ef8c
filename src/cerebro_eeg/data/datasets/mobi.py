"""``mobi``: EEG and joint angles of 8 people who walk on a treadmill, three trials each; where are the legs?

After He et al., "A mobile brain-body imaging dataset recorded during treadmill walking with a brain-computer interface"
(Scientific Data 5, 180074) and public code that reads it; docs/corpora/mobi.md has the sources and the points that
could not be confirmed.

- ``SL01-T01/`` to ``SL08-T03/``: a folder per trial, with ``eeg.txt``, ``joints.txt`` and ``impedances-before.txt``.
- 64 channels at 100 Hz, in microvolts. Four of them are at the eyes (``EYES``), two at other places than their names
  say (``MOVED``).
- 12 angles: six measured by goniometers and six that a decoder predicted during the trial.

An interval of 50 ms has the angles of its last sample. So windows of 2 s every 50 ms, read with ``labels="last"``, get
exactly the angles of their own last sample. Angles are scaled to 0 ... 1 by the least and the greatest of the same
person's first trial, which trains; values beyond stay beyond.

The text files are read strictly. Public code skips rows that it cannot read; here such a row is refused, because
leaving it out would shift everything behind it. Errors name the row and never quote it.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault, Recording, Segment
from cerebro_eeg.data.reading.tables import ArraySamples, timeline
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task, refuse
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import ConfigError, InputError, RecordingError

RATE = 100.0
CHANNELS = 64
JOINTS = tuple("GHR GKR GAR GHL GKL GAL PHR PKR PAR PHL PKL PAL".split())
"""G: measured by a goniometer, P: predicted by the decoder; hip, knee, ankle; right, left."""
_LINES = 1 << 14  # parsed at a time
_MOST_LINE = 1 << 14


@dataclass(frozen=True)
class SampleRows:
    """A table with one row per sample."""

    stamps: NDArray[np.float64]
    values: NDArray[np.float64]
    segments: tuple[Segment, ...]
    faults: tuple[Fault, ...]


def read_eeg(path: Path) -> SampleRows:
    """Read ``eeg.txt``: a line ``64 channels``, then time in seconds and 64 microvolts per row."""
    head, table = _read(path, 1, CHANNELS + 1)
    if head[0].split() != [str(CHANNELS), "channels"]:
        raise RecordingError("columns", f"eeg.txt does not begin with the line '{CHANNELS} channels'; copy it anew")
    return _rows(table)


def read_joints(path: Path) -> SampleRows:
    """Read ``joints.txt``: a line of names in brackets, a line of factors, then seconds and 12 angles per row."""
    head, table = _read(path, 2, len(JOINTS) + 1)
    names = re.search(r"\(([^)]*)\)", head[0])
    if names is None or tuple(names[1].split()) != JOINTS:
        raise RecordingError("columns", f"joints.txt does not name the angles ({' '.join(JOINTS)}); copy it anew")
    return _rows(table)


def read_channels(path: Path) -> list[str]:
    """Read the names of the 64 channels from the table of ``impedances-before.txt``, without reference and ground."""
    names, inside = [], False
    for line in _lines(path):
        fields = [field.strip() for field in line.split("\t") if field.strip()]
        if line.startswith("Phys. Chn."):
            inside = True
        elif inside and len(fields) > 1 and fields[0].startswith("#") and fields[1] not in ("Ref", "Gnd"):
            names.append(fields[1])
    if len(names) != CHANNELS:
        raise RecordingError(
            "columns", f"impedances-before.txt names {len(names)} channels; expected {CHANNELS}; copy it anew"
        )
    return names


def _rows(table: NDArray[np.float64]) -> SampleRows:
    stamps = table[:, 0]
    segments, faults = timeline(stamps, RATE, len(table))
    return SampleRows(stamps, table[:, 1:], segments, faults)


def _read(path: Path, heads: int, width: int) -> tuple[list[str], NDArray[np.float64]]:
    """Read the first lines of a file, and the numbers below them."""
    lines = _lines(path)
    head = list(islice(lines, heads))
    parts: list[NDArray[np.float64]] = []
    done = heads
    while block := [line.removesuffix("\t") for line in islice(lines, _LINES)]:  # many rows end with a tabulator
        for number, line in enumerate(block, done + 1):
            if line.count("\t") != width - 1:
                raise RecordingError(
                    "columns",
                    f"line {number} of {path.name} has {line.count(chr(9)) + 1} values; expected {width}; copy it anew",
                )
        try:
            parts.append(np.loadtxt(block, np.float64, comments=None, delimiter="\t", ndmin=2))
        except ValueError:
            raise RecordingError(
                "number", f"{path.name}: a value in lines {done + 1} to {done + len(block)} is not a number; mend it"
            ) from None
        done += len(block)
    if not parts:
        raise RecordingError("empty", f"{path.name} has no rows of numbers; copy it anew")
    return head, np.concatenate(parts)


def _lines(path: Path) -> Iterator[str]:
    with opened(path):  # a file that is missing, a folder or a pipe ends here
        pass
    with path.open("rb") as file:
        while data := file.readline(_MOST_LINE):
            if len(data) >= _MOST_LINE and not data.endswith(b"\n"):
                raise RecordingError("text", f"{path.name} has a line without an end; this is no table")
            yield data.decode("latin-1").rstrip("\r\n")


EYES = ("TP9", "TP10", "FT9", "FT10")
MOVED = {"T7": "FCz", "T8": "AFz"}
SPLITS = {"T01": "train", "T02": "val", "T03": "test"}
TASKS = {"joints": JOINTS, "goniometers": JOINTS[:6]}
"""Targets by task: all 12 angles of the files, as in the paper, or the six that were measured."""
STEP = 5
"""Samples of an interval: 50 ms."""
_DIGITS = 4  # of a scaled angle: finer than any goniometer, and the store keeps numbers as text
_TRIAL = re.compile(r"(SL\d\d)-(T\d\d)")
_FILES = ("eeg.txt", "joints.txt", "impedances-before.txt")


def mobi(folder: Path, *, task: str = "joints") -> Recipe:
    """Make the recipe; ``task`` "joints" has all 12 angles, "goniometers" the six that were measured."""
    if task not in TASKS:
        raise ConfigError(f"task is {task!r}; use one of {', '.join(map(repr, TASKS))}")
    return Recipe(
        "mobi",
        "MoBI: EEG and joint angles of 8 people who walk on a treadmill",
        functools.partial(_find, _trials(folder), task),
        signal=SignalConfig(sfreq=RATE),
        mains=60.0,
        split_unit="trial",
        tasks={task: Task("regression", TASKS[task], 2.0, STEP / RATE, labels="last")},
        own_ids=True,
    )


def open_mobi(folder: Path, policy: ChannelPolicy) -> Recording:
    """Open one trial; its EEG and its angles must have the same times."""
    labels = read_channels(folder / "impedances-before.txt")
    eeg, joints = read_eeg(folder / "eeg.txt"), read_joints(folder / "joints.txt")
    if not np.array_equal(eeg.stamps, joints.stamps):
        raise RecordingError(
            "stamps",
            f"eeg.txt has {len(eeg.stamps)} rows and joints.txt {len(joints.stamps)}, or their times differ; expected "
            "the same time in each row of both; copy them anew",
        )
    kinds = ["eog" if label in EYES else "eeg" for label in labels]
    match = policy.match([MOVED.get(label, label) for label in labels], None, kinds)
    signal = ArraySamples(np.ascontiguousarray(eeg.values[:, list(match.index)], np.float32))
    recording = Recording(RATE, match, eeg.segments, signal)
    return replace(recording, faults=(*eeg.faults, *amplitude_faults(recording)))


@dataclass(frozen=True)
class Angles(Mapping[str, tuple[Interval, ...]]):
    """The labels of a trial, read on demand: those of all trials together would fill the memory."""

    joints: Path
    training: Path
    """The angles of the trial that scales the person's angles."""
    split: str
    task: str

    def __getitem__(self, task: str) -> tuple[Interval, ...]:
        if task != self.task:
            raise KeyError(task)
        return self._intervals()

    def __iter__(self) -> Iterator[str]:
        return iter((self.task,))

    def __len__(self) -> int:
        return 1

    def _intervals(self) -> tuple[Interval, ...]:
        rows, width = read_joints(self.joints), len(TASKS[self.task])
        training = rows.values if self.training == self.joints else read_joints(self.training).values
        scaled = _scaled(rows.values[:, :width], training[:, :width]).round(_DIGITS).tolist()
        intervals = []
        for segment in rows.segments:
            for first in range(segment.start, segment.stop - STEP + 1, STEP):
                start = segment.onset + (first - segment.start) / RATE
                values = scaled[first + STEP - 1]
                if any(map(math.isnan, values)):  # no place for it in a store: an interval without a target
                    values = []
                stop = start + STEP / RATE
                intervals.append(Interval(round(start, 6), round(stop, 6), self.split, None, tuple(values)))
        return tuple(intervals)


def _scaled(values: NDArray[np.float64], training: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale angles: 0 is the least of the training trial, 1 the greatest; an angle without movement is only shifted."""
    finite = np.where(np.isfinite(training), training, np.nan)
    if np.isnan(finite).all(0).any():
        raise RecordingError("empty", "an angle of the training trial has no values to scale by; copy joints.txt anew")
    low, high = np.nanmin(finite, 0), np.nanmax(finite, 0)
    result = (values - low) / np.where(high > low, high - low, 1.0)
    return np.where(np.isfinite(result), result, np.nan)


def _trials(folder: Path) -> dict[str, Path]:
    """Find the folders of the trials by name, in order, each with its files."""
    trials = (
        {path.name: path for path in sorted(folder.iterdir()) if _TRIAL.fullmatch(path.name)} if folder.is_dir() else {}
    )
    if not trials:
        raise InputError("no folder SL01-T01 ... SL08-T03 is there; give the folder that holds the trials of MoBI")
    for name in trials:
        trial = name.split("-")[1]
        if trial not in SPLITS:
            raise InputError(f"there is a trial {name}; expected {', '.join(SPLITS)} of each subject")
    return trials


def _lacks(name: str, trials: dict[str, Path]) -> str | None:
    """Name what a trial lacks; None if nothing."""
    training = f"{name.split('-')[0]}-T01"
    if training not in trials:
        return f"{training} is missing, which the angles of {name} are scaled by; copy it there"
    if not (trials[training] / "joints.txt").is_file():
        return f"{training} has no joints.txt, which the angles of {name} are scaled by; copy it there"
    missing = [file for file in _FILES if not (trials[name] / file).is_file()]
    return f"{name} has no {', '.join(missing)}; copy the trial anew" if missing else None


def _find(trials: dict[str, Path], task: str) -> Iterator[Item]:
    for name, path in trials.items():
        subject, trial = name.split("-")
        if lack := _lacks(name, trials):
            yield Item(f"mobi_{name}", functools.partial(refuse, "missing", lack), f"mobi_{subject}")
            continue
        training = trials[f"{subject}-T01"] / "joints.txt"
        yield Item(
            f"mobi_{name}",
            functools.partial(open_mobi, path),
            f"mobi_{subject}",
            Angles(path / "joints.txt", training, SPLITS[trial], task),
            size=sum((path / file).stat().st_size for file in _FILES),
            files=tuple(path / file for file in _FILES),
        )
