"""``mobi``: EEG and joint angles of 8 people who walk on a treadmill, three trials each; where are the legs?

After He et al., "A mobile brain-body imaging dataset recorded during treadmill walking with a brain-computer interface"
(Scientific Data 5, 180074) and public code that reads it; docs/corpora/mobi.md has the sources and what could not be
confirmed.

- ``SL01-T01/`` to ``SL08-T03/``: a folder a trial, with ``eeg.txt``, ``joints.txt`` and ``impedances-before.txt``.
- 64 channels at 100 Hz, in microvolts. Four of them are at the eyes (``EYES``), two at other places than they are
  called after (``MOVED``).
- 12 angles: six measured by goniometers and six that a decoder predicted during the trial.

An interval of 50 ms has the angles of its last sample, so windows of 2 s every 50 ms read with ``labels="last"`` get
exactly those of their own last sample. Angles are scaled to 0 ... 1 by the least and the greatest of the same person's
first trial, which trains; what lies beyond stays beyond.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.datasets.mobi_text import JOINTS, RATE, read_channels, read_eeg, read_joints
from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.csv_readers import ArraySamples
from cerebro_eeg.data.reading.policy import ChannelPolicy
from cerebro_eeg.data.reading.recording import Recording
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task, refuse
from cerebro_eeg.data.storing.stored import Interval
from cerebro_eeg.errors import ConfigError, InputError, RecordingError

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
    """The recipe; ``task`` "joints": all 12 angles; "goniometers": the six that were measured."""
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
    """One trial; its EEG and its angles must have been written at the same times."""
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
    """The labels of a trial, read when they are asked for: those of all trials together would fill the memory."""

    joints: Path
    training: Path
    """The angles of the trial that the person's angles are scaled by."""
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
    """0 is the least of the training trial, 1 the greatest; an angle that does not move there is only shifted."""
    finite = np.where(np.isfinite(training), training, np.nan)
    if np.isnan(finite).all(0).any():
        raise RecordingError("empty", "an angle of the training trial has no values to scale by; copy joints.txt anew")
    low, high = np.nanmin(finite, 0), np.nanmax(finite, 0)
    result = (values - low) / np.where(high > low, high - low, 1.0)
    return np.where(np.isfinite(result), result, np.nan)


def _trials(folder: Path) -> dict[str, Path]:
    """The folders of the trials by name, in order, each with its files."""
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
    """What a trial lacks, in words; None: nothing."""
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
