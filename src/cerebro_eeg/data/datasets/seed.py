"""``seed``: the SJTU Emotion EEG Dataset: 15 people, 3 sessions each, 15 film clips per session; which emotion was it?

The layout is that of the corpus's own page (bcmi.sjtu.edu.cn/~seed/seed.html) and of public code that reads it
(torcheeg's SEEDDataset); docs/corpora/seed.md has the sources and the points that could not be confirmed.

- ``Preprocessed_EEG/`` holds ``SUBJECT_DATE.mat``, 45 of them, and ``label.mat`` for all.
- a session's file has 15 arrays ``..._eeg1`` to ``..._eeg15``, 62 channels by samples at 200 Hz. The letters before
  ``_eeg`` are initials of a person; like the date, they are not stored.
- ``label.mat``: 15 values: 1 positive, 0 neutral, -1 negative.

A session is one recording and each trial a segment of it: no window and no filter reaches from one into the next.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.reading.amplitude import amplitude_faults
from cerebro_eeg.data.reading.mat import check_mat5, mat_shapes
from cerebro_eeg.data.reading.passing_faults import passing_fault, passing_faults
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording, Samples, Segment
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task, refuse
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import ConfigError, InputError, PassingFault, RecordingError

CHANNELS = tuple(
    "FP1 FPZ FP2 AF3 AF4 F7 F5 F3 F1 FZ F2 F4 F6 F8 FT7 FC5 FC3 FC1 FCZ FC2 FC4 FC6 FT8 T7 C5 C3 C1 CZ C2 C4 C6 T8 TP7 "
    "CP5 CP3 CP1 CPZ CP2 CP4 CP6 TP8 P7 P5 P3 P1 PZ P2 P4 P6 P8 PO7 PO5 PO3 POZ PO4 PO6 PO8 CB1 O1 OZ O2 CB2".split()
)
"""The rows of every array, in the order of the corpus's ``channel-order.xlsx``."""
RATE = 200.0
SUBJECTS, SESSIONS, TRIALS = 15, 3, 15
EMOTIONS = {-1: "negative", 0: "neutral", 1: "positive"}
PAUSE = 60.0
"""Seconds between two trials. The files do not state the length of the pauses; this value is ours."""
_SESSION = re.compile(r"(\d{1,2})_(\d{8})\.mat")
_TRIAL = re.compile(r".*_eeg(\d{1,2})", re.DOTALL)


def seed(folder: Path, *, split: str = "trials") -> Recipe:
    """Make the recipe. ``split`` "trials": trials 1-9, 10-12, 13-15 of each session; "subject": a fold per person."""
    if split not in ("trials", "subject"):
        raise ConfigError(f"split is {split!r}; use 'trials' (1-9 / 10-12 / 13-15 of each session) or 'subject'")
    files = folder / "Preprocessed_EEG" if (folder / "Preprocessed_EEG").is_dir() else folder
    return Recipe(
        "seed",
        "SEED: EEG of 15 people who watch film clips, with the emotion of each clip",
        functools.partial(_find, _sessions(files), _emotions(files / "label.mat"), split),
        signal=SignalConfig(sfreq=RATE),
        mains=50.0,
        split_unit="trial" if split == "trials" else "subject",
        tasks={"emotion": Task("classification", tuple(EMOTIONS.values()), 1.0, 1.0)},
        own_ids=True,
    )


def open_seed(path: Path, policy: ChannelPolicy) -> Recording:
    """Open one session: 15 segments, read one trial at a time."""
    check_mat5(path)
    trials = _trials(path)
    match, segments = policy.match(CHANNELS), _segments(trials)
    read = _Reader(path, trials, segments, match.index)
    recording = Recording(RATE, match, segments, read)
    return replace(recording, faults=amplitude_faults(recording))


def _trials(path: Path) -> tuple[tuple[str, int], ...]:
    """Return name and samples of the 15 arrays of a session, in the order of the clips."""
    found: dict[int, tuple[str, int]] = {}
    for name, shape in mat_shapes(path).items():
        match = _TRIAL.fullmatch(name)
        if match is None:
            continue
        if len(shape) != 2 or shape[0] != len(CHANNELS) or shape[1] < 1:
            size = " x ".join(map(str, shape))
            raise RecordingError(
                "channels", f"trial {int(match[1])} is {size}; expected {len(CHANNELS)} channels x samples"
            )
        if int(match[1]) in found:
            raise RecordingError("trials", f"trial {int(match[1])} is there twice; copy the file anew")
        found[int(match[1])] = (name, shape[1])
    if sorted(found) != list(range(1, TRIALS + 1)):
        raise RecordingError(
            "trials", f"{len(found)} arrays are called ..._eegN; expected {TRIALS}, N from 1 to {TRIALS}"
        )
    return tuple(found[number] for number in range(1, TRIALS + 1))


def _segments(trials: tuple[tuple[str, int], ...]) -> tuple[Segment, ...]:
    segments, start = [], 0
    for number, (_, samples) in enumerate(trials):
        segments.append(Segment(start, start + samples, start / RATE + number * PAUSE))
        start += samples
    return tuple(segments)


class _Reader:
    """The ``read`` function of a session; the last trial stays in memory (20 MB) for the next piece."""

    def __init__(
        self, path: Path, trials: tuple[tuple[str, int], ...], segments: tuple[Segment, ...], rows: tuple[int, ...]
    ) -> None:
        self._path, self._trials, self._segments, self._rows = path, trials, segments, list(rows)
        self._number, self._samples = -1, np.empty((0, 0), np.float32)

    def __call__(self, start: int, stop: int) -> Samples:
        """Return a copy of samples ``start`` to ``stop`` (exclusive)."""
        if not 0 <= start <= stop <= self._segments[-1].stop:
            raise InputError(f"samples {start} to {stop} were asked for; there are {self._segments[-1].stop}")
        out = np.empty((stop - start, len(self._rows)), np.float32)
        for number, segment in enumerate(self._segments):
            low, high = max(start, segment.start), min(stop, segment.stop)
            if low < high:
                out[low - start : high - start] = self._trial(number)[low - segment.start : high - segment.start]
        return out

    def _trial(self, number: int) -> Samples:
        if number != self._number:
            from scipy.io import loadmat

            name, samples = self._trials[number]
            try:
                array = loadmat(self._path, appendmat=False, variable_names=[name])[name]
                signal = np.asarray(array[self._rows].T, np.float32)
            except Exception as error:  # a file that changed since it was checked may make SciPy raise anything
                passing = passing_fault(error)
                if passing is not None:
                    raise passing from None
                raise RecordingError("damaged", f"trial {number + 1} cannot be read ({type(error).__name__})") from None
            if signal.shape != (samples, len(self._rows)):
                raise RecordingError("changed", "the file was changed after it was opened; open it again")
            self._number, self._samples = number, np.ascontiguousarray(signal)
        return self._samples


def _sessions(folder: Path) -> dict[tuple[int, int], Path]:
    """Find the files by subject and session; sessions are numbered in the order of their dates."""
    there = list(folder.iterdir()) if folder.is_dir() else []  # glob would find nothing where a folder cannot be read
    mats = [path for path in there if path.suffix == ".mat" and path.name[0] != "."]
    files = sorted(path for path in mats if path.name != "label.mat")
    matches = [(_SESSION.fullmatch(path.name), path) for path in files]
    strange = sum(match is None for match, _ in matches)
    if not files or strange:
        what = f"{strange} of {len(files)} .mat files there are called otherwise" if files else "there is none"
        raise InputError(
            f"SEED's sessions are called SUBJECT_DATE.mat, such as 1_20131027.mat; {what}; check the folder"
        )
    dates: dict[int, dict[str, Path]] = defaultdict(dict)
    for match, path in matches:
        if match is not None:
            dates[int(match[1])][match[2]] = path
    for subject in sorted(dates):
        if not 1 <= subject <= SUBJECTS:
            raise InputError(f"there is a file of subject {subject}; SEED has subjects 1 to {SUBJECTS}")
    return {
        (subject, number): dates[subject][date]
        for subject in sorted(dates)
        for number, date in enumerate(sorted(dates[subject]), 1)
    }


def _emotions(path: Path) -> tuple[str, ...]:
    """Read the emotion of each of the 15 clips."""
    from scipy.io import loadmat

    if not path.is_file():
        raise InputError("label.mat is not beside the session files; copy it there, it has the emotions of the clips")
    try:
        check_mat5(path)
        values = loadmat(path, appendmat=False, variable_names=["label"])["label"].ravel().tolist()
    except Exception as error:  # as above
        raise InputError(f"label.mat cannot be read ({type(error).__name__}); copy it anew") from None
    if len(values) != TRIALS or not set(values) <= set(EMOTIONS):
        raise InputError(f"label.mat has {len(values)} values; expected {TRIALS}, each 1, 0 or -1; copy it anew")
    return tuple(EMOTIONS[int(value)] for value in values)


def _find(sessions: dict[tuple[int, int], Path], emotions: tuple[str, ...], split: str) -> Iterator[Item]:
    counts = Counter(subject for subject, _ in sessions)
    for (subject, session), path in sessions.items():
        if counts[subject] != SESSIONS:  # numbered by date: one that is missing would change the numbers of the others
            message = f"subject {subject} has {counts[subject]} sessions; expected {SESSIONS}; copy the files anew"
            opening = functools.partial(refuse, "sessions", message)
            yield Item(f"seed_{subject:02d}_{session}", opening, f"seed_{subject:02d}", size=path.stat().st_size)
            continue
        reading: Callable[[ChannelPolicy], Recording] = functools.partial(open_seed, path)
        try:
            with passing_faults():
                segments = _segments(_trials(path))
        except PassingFault as error:  # it may be readable in a moment, and would be stored without labels
            segments, reading = (), functools.partial(refuse, error.code, str(error))
        except RecordingError:  # opening it will say so, and one bad file stops nothing
            segments = ()
        intervals = tuple(
            Interval(
                segment.onset,
                segment.onset + (segment.stop - segment.start) / RATE,
                f"fold{subject}" if split == "subject" else _split(number),
                emotion,
            )
            for number, (segment, emotion) in enumerate(zip(segments, emotions, strict=False), 1)
        )
        yield Item(
            f"seed_{subject:02d}_{session}",
            reading,
            f"seed_{subject:02d}",
            {"emotion": intervals} if intervals else {},
            size=path.stat().st_size,
            files=(path,),
        )


def _split(trial: int) -> str:
    return "train" if trial <= 9 else "val" if trial <= 12 else "test"
