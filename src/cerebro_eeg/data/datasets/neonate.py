"""``neonate``: EEG of 79 newborns at the Helsinki University Hospital, with the seizures that three experts marked.

After Stevenson et al., "A dataset of neonatal EEG recordings with seizure annotations" (Scientific Data 6, 190039) and
public code that reads it; docs/corpora/neonate.md has the sources and the points that could not be confirmed.

- ``eeg1.edf`` to ``eeg79.edf``: 19 electrodes at 256 Hz, and ECG and respiration, which are left out.
- ``annotations_2017_A_fixed.csv`` (before Zenodo's record 4940267: ``_A.csv``), ``_B``, ``_C``: the first row has the
  numbers of the newborns, each further row is a second: 1 seizure, 0 none, blank or NaN behind the end of a recording.

A second is seizure when all three experts agree. Windows of 5 s take the label of most of their own seconds
(``labels="majority"``).

The protocol ``biofoundation`` does what the script of the paper's group does, with its slips, so that numbers can be
compared: the majority of the experts, pairs of electrodes, fixed splits, and window k with the mark of second k - 1.
"""

import csv
import functools
import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.reading.edf import fit
from cerebro_eeg.data.reading.edf_header import TICKS, read_header
from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task, refuse
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import ConfigError, InputError, RecordingError

ELECTRODES = tuple("Fp1 Fp2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 Fz Cz Pz".split())
EXPERTS = ("A", "B", "C")
CLASSES = ("background", "seizure")
FOLDS = 5
SECONDS = 5
VALIDATION = frozenset((1, 3, 24, 32, 34, 42, 46, 69))
TEST = frozenset((7, 11, 27, 39, 47, 53, 57, 59, 68, 79))
"""Newborns that validate and test by the protocol ``biofoundation``; the other 61 train."""
NEWBORNS = 79
_FILE = re.compile(r"eeg([1-9]\d*)\.edf")

Marks = list[bool | None]
"""Whether each second is a seizure; None where it is not marked."""


def neonate(folder: Path, *, legacy: bool = False, protocol: str | None = None) -> Recipe:
    """Make the recipe.

    ``legacy`` labels window k by second k, as published code does; ``protocol`` "biofoundation" does all that another
    public script does. Both only serve to reproduce numbers.
    """
    if protocol not in (None, "biofoundation"):
        raise ConfigError(f"protocol is {protocol!r}; use 'biofoundation', or leave it out for ours")
    if protocol and legacy:
        raise ConfigError("--legacy and --protocol were both given, and each labels windows in its own way; give one")
    files = _files(folder)
    tables = [_table(folder, expert) for expert in EXPERTS]
    experts = [_read_marks(path) for path in tables]
    if protocol:
        return _biofoundation(files, experts)
    task = "seizure_legacy" if legacy else "seizure"
    consensus = {
        number: _consensus([marks[number] for marks in experts])
        for number in files
        if all(number in marks for marks in experts)
    }
    return Recipe(
        "neonate",
        "Helsinki: EEG of newborns with the seizures that three experts marked",
        functools.partial(_find, files, consensus, task),
        policy=ChannelPolicy(keep=ELECTRODES),
        mains=50.0,
        tasks={task: Task("classification", CLASSES, float(SECONDS), float(SECONDS), labels="majority")},
        own_ids=True,
    )


def _biofoundation(files: dict[int, Path], experts: Sequence[dict[int, Marks]]) -> Recipe:
    task = "seizure_biofoundation"
    return Recipe(
        "neonate",
        "Helsinki: EEG of newborns with seizures; BioFoundation's protocol: window k has the mark of second k - 1",
        functools.partial(_find_biofoundation, files, _majority(experts), task),
        signal=SignalConfig(reference="double_banana"),
        policy=ChannelPolicy(keep=ELECTRODES),
        mains=50.0,
        tasks={task: Task("classification", CLASSES, float(SECONDS), float(SECONDS))},
        own_ids=True,
        options={"protocol": "biofoundation"},
    )


def fold_of(number: int) -> str:
    """Return the fold of a newborn: numbers 1, 6, 11, ... are fold1, and so on, whatever files are there."""
    return f"fold{(number - 1) % FOLDS + 1}"


def _files(folder: Path) -> dict[int, Path]:
    """Find the recordings by number, in order."""
    there = list(folder.iterdir()) if folder.is_dir() else []  # glob would find nothing where a folder cannot be read
    matches = [(_FILE.fullmatch(path.name), path) for path in there]
    files = {int(match[1]): path for match, path in matches if match is not None}
    if not files:
        raise InputError("no eeg1.edf ... eeg79.edf is there; give the folder with these and annotations_2017_A.csv")
    return dict(sorted(files.items()))


def _table(folder: Path, expert: str) -> Path:
    """Find the table of an expert; the version that its authors mended comes before the one that they withdrew."""
    mended = folder / f"annotations_2017_{expert}_fixed.csv"
    return mended if mended.exists() else folder / f"annotations_2017_{expert}.csv"


def _read_marks(path: Path) -> dict[int, Marks]:
    """Read the marks of one expert by newborn."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row or [""] for row in csv.reader(file)]  # how csv says that a line is blank
    except FileNotFoundError:
        raise InputError(f"{path.name} is not beside the recordings; copy it there") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name} cannot be read ({type(error).__name__}); copy it anew") from None
    while rows and not any(rows[-1]):
        rows.pop()
    numbers = [_number(text) for text in rows[0]] if rows else []
    if not numbers or len(set(numbers)) < len(numbers) or not all(n is not None and n % 1 == 0 for n in numbers):
        raise InputError(f"the first row of {path.name} is not the numbers of the newborns, each once; copy it anew")
    marks: dict[int, Marks] = {int(n): [] for n in numbers if n is not None}
    for place, row in enumerate(rows[1:], 2):
        if len(row) != len(numbers):
            raise InputError(f"row {place} of {path.name} has {len(row)} values, the first {len(numbers)}; mend it")
        for number, text in zip(marks, row, strict=True):
            marks[number].append(_mark(text, f"row {place} of {path.name}"))
    return marks


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _mark(text: str, where: str) -> bool | None:
    if text.strip().casefold() in ("", "nan"):
        return None
    value = _number(text)
    if value not in (0, 1):
        raise InputError(f"{where} has a mark that is not 0, 1, blank or NaN; copy the file anew")
    return value == 1


def _consensus(experts: Sequence[Marks]) -> Marks:
    """Combine marks: seizure where all agree, None where one is missing; ends with the last second that all marked."""
    seconds = zip(*experts, strict=False)
    consensus = [None if None in second else all(second) for second in seconds]
    while consensus and consensus[-1] is None:  # a table is as long as its longest column
        consensus.pop()
    return consensus


def _majority(experts: Sequence[dict[int, Marks]]) -> dict[int, Marks]:
    """Combine marks as the script does: what most of the experts say who marked a second.

    Where two marked it and disagree, a coin with a seed decides, newborn by newborn and second by second.
    """
    import numpy as np

    coin = np.random.default_rng(0)

    def decide(second: tuple[bool | None, ...]) -> bool | None:
        marks = [mark for mark in second if mark is not None]
        if 2 * sum(marks) == len(marks):
            return bool(coin.integers(2)) if marks else None
        return 2 * sum(marks) > len(marks)

    shared = [number for number in experts[0] if all(number in marks for marks in experts)]
    return {number: [decide(s) for s in zip_longest(*(marks[number] for marks in experts))] for number in shared}


def _find(files: dict[int, Path], consensus: dict[int, Marks], task: str) -> Iterator[Item]:
    for number, path in files.items():
        if number not in consensus:
            yield _without_column(number, path)
            continue
        marks = consensus[number]
        if task == "seizure_legacy":  # window k, which is seconds 5k to 5k + 5, gets what second k has
            intervals = _intervals(marks[: len(marks) // SECONDS], SECONDS, fold_of(number))
        else:
            intervals = _intervals(marks, 1, fold_of(number))
        yield _item(number, path, task, intervals)


def _find_biofoundation(files: dict[int, Path], majority: dict[int, Marks], task: str) -> Iterator[Item]:
    """Yield each newborn with the labels of the script, which takes the first row of a table for a second.

    That row holds the numbers of the newborns. So window k has the mark of second k - 1. The first window of newborn 1
    is a seizure, and those of others have no label.
    """
    for number, path in files.items():
        if number not in majority:
            yield _without_column(number, path)
        elif number > NEWBORNS:
            message = f"eeg{number}.edf is none of the {NEWBORNS} newborns of the protocol; leave it out"
            yield _refused(number, path, "split", message)
        else:
            split = "val" if number in VALIDATION else "test" if number in TEST else "train"
            rows = [True if number == 1 else None, *majority[number]]
            yield _item(number, path, task, _intervals(rows[: _whole_windows(path)], SECONDS, split))


def _whole_windows(path: Path) -> int:
    """Return how many windows a recording has, by its header; none where it cannot be read, as opening will say."""
    try:
        with opened(path) as (read, stamp):
            header = fit(read_header(read, stamp.size), read, stamp.size)
    except RecordingError:
        return 0
    return int(header.records * header.duration / TICKS // SECONDS)


def _item(number: int, path: Path, task: str, intervals: tuple[Interval, ...]) -> Item:
    return Item(
        f"neonate_eeg{number}",
        functools.partial(open_recording, path),
        f"neonate_{number}",
        {task: intervals},
        size=path.stat().st_size,
        files=(path,),
    )


def _without_column(number: int, path: Path) -> Item:
    message = f"eeg{number}.edf has no column in one of the annotations; copy them anew"
    return _refused(number, path, "annotation", message)


def _refused(number: int, path: Path, code: str, message: str) -> Item:
    opening = functools.partial(refuse, code, message)
    return Item(f"neonate_eeg{number}", opening, f"neonate_{number}", size=path.stat().st_size)


def _intervals(marks: Marks, step: int, split: str) -> tuple[Interval, ...]:
    """Return an interval for each run of equal marks, ``step`` seconds per mark; none where nothing is marked."""
    intervals, start = [], 0
    for mark, run in groupby(marks):
        stop = start + step * len(list(run))
        if mark is not None:
            intervals.append(Interval(float(start), float(stop), split, CLASSES[mark]))
        start = stop
    return tuple(intervals)
