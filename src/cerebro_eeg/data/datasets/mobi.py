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

The protocol ``biofoundation`` does what the script of the paper's group does, so that numbers can be compared: each
trial is cut into 10, 5 and 5 minutes behind its first two; an interval has the mean of its angles, divided by 90; T7
and T8 keep their names.

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
STRETCHES = {"train": (2, 12), "val": (12, 17), "test": (17, 22)}
"""Minutes of each trial by the protocol ``biofoundation``; the first two, without walking, are left out."""
DEGREES = 90.0
"""What the protocol divides angles by."""
ORDER = tuple(
    "Fp1 Fp2 F7 F3 Fz F4 F8 FC5 FC1 FC2 FC6 T7 C3 Cz C4 T8 TP9 CP5 CP1 CP2 CP6 TP10 P7 P3 Pz P4 P8 PO9 O1 Oz O2 PO10 "
    "AF7 AF3 AF4 AF8 F5 F1 F2 F6 FT9 FT7 FC3 FC4 FT8 FT10 C5 C1 C2 C6 TP7 CP3 CPz CP4 TP8 P5 P1 P2 P6 PO7 PO3 POz PO4 "
    "PO8".split()
)
"""The columns of ``eeg.txt`` as the protocol's script names them, without a look at ``impedances-before.txt``."""
_DIGITS = 4  # of a scaled angle: finer than any goniometer, and the store keeps numbers as text
_TRIAL = re.compile(r"(SL\d\d)-(T\d\d)")
_FILES = ("eeg.txt", "joints.txt", "impedances-before.txt")


def mobi(folder: Path, *, task: str = "joints", protocol: str | None = None) -> Recipe:
    """Make the recipe; ``task`` "joints" has all 12 angles, "goniometers" the six that were measured.

    ``protocol`` "biofoundation" has other splits, targets and names of channels, only to reproduce numbers.
    """
    if task not in TASKS:
        raise ConfigError(f"task is {task!r}; use one of {', '.join(map(repr, TASKS))}")
    if protocol not in (None, "biofoundation"):
        raise ConfigError(f"protocol is {protocol!r}; use 'biofoundation', or leave it out for ours")
    about = "MoBI: EEG and joint angles of 8 people who walk on a treadmill"
    if protocol:
        about += "; BioFoundation's protocol: the splits are minutes of the same recordings"
    name = f"{task}_{protocol}" if protocol else task
    return Recipe(
        "mobi",
        about,
        functools.partial(_find, _trials(folder), task, name, protocol is not None),
        signal=SignalConfig(sfreq=RATE),
        mains=60.0,
        split_unit="trial",
        tasks={name: Task("regression", TASKS[task], 2.0, STEP / RATE, labels="last")},
        own_ids=True,
        options={"protocol": protocol} if protocol else {},
    )


def open_mobi_as_named(folder: Path, policy: ChannelPolicy) -> Recording:
    """Open one trial by the protocol: all names stay, and another order of the columns than its list is a fault."""
    recording = open_mobi(folder, policy, moved={})
    if tuple(row.label for row in recording.match.rows) == ORDER:
        return recording
    note = "impedances-before.txt names the columns in another order than the protocol, and its names were taken"
    return replace(recording, faults=(*recording.faults, Fault("other_columns", note)))


def open_mobi(folder: Path, policy: ChannelPolicy, moved: Mapping[str, str] = MOVED) -> Recording:
    """Open one trial; its EEG and its angles must have the same times. ``moved`` renames channels."""
    labels = read_channels(folder / "impedances-before.txt")
    eeg, joints = read_eeg(folder / "eeg.txt"), read_joints(folder / "joints.txt")
    if not np.array_equal(eeg.stamps, joints.stamps):
        raise RecordingError(
            "stamps",
            f"eeg.txt has {len(eeg.stamps)} rows and joints.txt {len(joints.stamps)}, or their times differ; expected "
            "the same time in each row of both; copy them anew",
        )
    kinds = ["eog" if label in EYES else "eeg" for label in labels]
    match = policy.match([moved.get(label, label) for label in labels], None, kinds)
    signal = ArraySamples(np.ascontiguousarray(eeg.values[:, list(match.index)], np.float32))
    recording = Recording(RATE, match, eeg.segments, signal)
    return replace(recording, faults=(*eeg.faults, *amplitude_faults(recording)))


@dataclass(frozen=True)
class Angles(Mapping[str, tuple[Interval, ...]]):
    """The labels of a trial, read on demand: those of all trials together would fill the memory."""

    joints: Path
    training: Path | None
    """The angles of the trial that scales the person's angles; None divides them by 90."""
    minutes: Mapping[str, tuple[float, float]]
    """The stretch of each split."""
    name: str
    """The task as the store calls it."""
    width: int
    """The number of angles."""

    def __getitem__(self, task: str) -> tuple[Interval, ...]:
        if task != self.name:
            raise KeyError(task)
        return self._intervals()

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1

    def _intervals(self) -> tuple[Interval, ...]:
        rows = read_joints(self.joints)
        targets = self._targets(rows.values).round(_DIGITS).tolist()
        intervals = []
        for split, segment, first in self._places(rows.segments):
            start = segment.onset + (first - segment.start) / RATE
            values = targets[first + STEP - 1]
            if any(map(math.isnan, values)):  # no place for it in a store: an interval without a target
                values = []
            stop = start + STEP / RATE
            intervals.append(Interval(round(start, 6), round(stop, 6), split, None, tuple(values)))
        return tuple(intervals)

    def _targets(self, angles: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the targets of the interval that ends with each row."""
        if self.training is None:
            return _means(angles[:, : self.width]) / DEGREES
        training = angles if self.training == self.joints else read_joints(self.training).values
        return _scaled(angles[:, : self.width], training[:, : self.width])

    def _places(self, segments: tuple[Segment, ...]) -> Iterator[tuple[str, Segment, int]]:
        """Yield split, segment and first row of each interval; rows are counted, as the script does, not seconds."""
        for split, limits in self.minutes.items():
            low, high = (limit * 60 * RATE for limit in limits)
            for segment in segments:
                first = max(segment.start, int(low))
                last = int(min(segment.stop, high)) - STEP
                for row in range(first, last + 1, STEP):
                    yield split, segment, row


def _means(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of each row and the rows before it that make an interval; NaN where there are too few."""
    means = np.full(angles.shape, np.nan)
    if len(angles) >= STEP:
        means[STEP - 1 :] = np.lib.stride_tricks.sliding_window_view(angles, STEP, axis=0).mean(-1)
    return np.where(np.isfinite(means), means, np.nan)


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


def _lacks(name: str, trials: dict[str, Path], scaled: bool) -> str | None:
    """Name what a trial lacks; None if nothing. Angles that are ``scaled`` need the first trial, too."""
    training = f"{name.split('-')[0]}-T01"
    if scaled and training not in trials:
        return f"{training} is missing, which the angles of {name} are scaled by; copy it there"
    if scaled and not (trials[training] / "joints.txt").is_file():
        return f"{training} has no joints.txt, which the angles of {name} are scaled by; copy it there"
    missing = [file for file in _FILES if not (trials[name] / file).is_file()]
    return f"{name} has no {', '.join(missing)}; copy the trial anew" if missing else None


def _find(trials: dict[str, Path], task: str, stored: str, protocol: bool) -> Iterator[Item]:
    for name, path in trials.items():
        subject, trial = name.split("-")
        if lack := _lacks(name, trials, scaled=not protocol):
            yield Item(f"mobi_{name}", functools.partial(refuse, "missing", lack), f"mobi_{subject}")
            continue
        yield Item(
            f"mobi_{name}",
            functools.partial(open_mobi_as_named if protocol else open_mobi, path),
            f"mobi_{subject}",
            Angles(
                path / "joints.txt",
                None if protocol else trials[f"{subject}-T01"] / "joints.txt",
                STRETCHES if protocol else {SPLITS[trial]: (0.0, math.inf)},
                stored,
                len(TASKS[task]),
            ),
            size=sum((path / file).stat().st_size for file in _FILES),
            files=tuple(path / file for file in _FILES),
        )
