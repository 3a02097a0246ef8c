"""``openeeg``: any folder in the format of the open-EEG pack. All facts come from its files.

- ``index.csv`` lists the recordings: record, file, subject, ...
- ``pretrain.csv``, if it exists, lists those for pre-training, with a split.
- ``tasks/<task>.csv`` holds labelled intervals: record, split, t0, t1, label, label_name and further ``label2``, ...
  A task is a regression where one name stands for many labels, else a classification; a blank name is the label. Its
  split unit is the strictest that holds: a task of one subject can only be split by recording or by trial.
- a recording is an ``.npz`` file without pickles: the zig-zag coded first difference of integer counts in two bytes
  (``lo``, ``hi``), microvolts per count (``scale``), ``ch_std`` names, ``sfreq``, ``events`` and JSON ``meta``.
  Events are numbers, named by ``event_codes`` in ``meta`` where it has them. The format is for public data, so all
  events go into the store.

Windows that a source cut out and joined are not consecutive in time. The events show this: all of one length, one after
the other, from the first sample to the last. Each is then a segment of its own.
"""

import csv
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.passing_faults import passing_fault
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Recording, Samples, Segment
from cerebro_eeg.data.storing.recipe import Item, Recipe, SplitUnit, Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import InputError, RecordingError
from cerebro_eeg.files import parse_json

PackTable = list[dict[str, str]]
TASK = ("record", "split", "t0", "t1", "label", "label_name")
SECONDS = 5.0  # of a window, where labelled intervals are as long as that


def openeeg(folder: Path) -> Recipe:
    """Make the recipe of one such folder."""
    tables = {path.stem: _read_table(path, TASK) for path in _task_files(folder)}
    rows = _read_table(folder / "index.csv", ("record", "file", "subject"))
    subjects = {row["record"]: _subject(row) for row in rows}
    return Recipe(
        "openeeg",
        "open EEG recordings with labelled tasks, in the format of the open-EEG pack",
        functools.partial(_find, folder, rows, tables),
        policy=ChannelPolicy(bipolar_ears=True),  # ch_std names pairs as pairs
        tasks={name: _describe(name, table, subjects) for name, table in tables.items()},
        own_ids=True,
        tried_on_real_files=True,
    )


def read_npz(path: Path, policy: ChannelPolicy) -> Recording:
    """Open one recording of such a folder."""
    counts_CT, scale_C, meta, sfreq, labels, events_E3 = _load(path)
    if meta.get("unit") != "uV":
        raise RecordingError(
            "unit", "the recording is not in microvolts: its meta has another unit than uV; convert it"
        )
    match = policy.match(labels)
    index = list(match.index)
    signal_TC = np.ascontiguousarray((counts_CT[index].astype(np.float32) * scale_C[index, None]).T)
    total = len(signal_TC)
    codes = meta.get("event_codes")
    names = codes if isinstance(codes, dict) else {}
    events = tuple(
        Event(start / sfreq, length / sfreq, str(names.get(str(code), code)))
        for start, length, code in events_E3.tolist()
    )

    def read(start: int, stop: int) -> Samples:
        return signal_TC[start:stop]

    return Recording(sfreq, match, _segments(events_E3, total, sfreq), read, events)


def _load(
    path: Path,
) -> tuple[NDArray[np.int16], NDArray[np.float32], dict[str, Any], float, list[str], NDArray[np.int64]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # np.load leaves a bad file open
            lo, hi = np.asarray(file["lo"]), np.asarray(file["hi"])
            meta = parse_json(str(file["meta"]))
            sfreq, labels = float(file["sfreq"]), [str(name) for name in file["ch_std"]]
            scale, events = file["scale"].astype(np.float32), file["events"].astype(np.int64)
    except Exception as error:  # a damaged file makes zipfile, zlib, numpy and json raise nearly anything
        passing = passing_fault(error)
        if passing is not None:
            raise passing from None
        raise RecordingError("format", f"the file is not a recording of the pack ({type(error).__name__})") from error
    if lo.dtype != np.uint8 or hi.dtype != np.uint8 or lo.ndim != 2 or lo.shape != hi.shape or not lo.size:
        raise RecordingError("format", "the file's signal is not two equal tables of bytes")
    if scale.shape != (len(lo),) or len(labels) != len(lo) or events.ndim != 2 or events.shape[1] != 3:
        raise RecordingError("format", "the file's signal, names, scales and events do not fit together")
    if not (math.isfinite(sfreq) and sfreq > 0 and np.isfinite(scale).all() and isinstance(meta, dict)):
        raise RecordingError("format", "the file's rate, scales or meta are not usable")
    zigzag = lo.astype(np.uint16) | (hi.astype(np.uint16) << 8)
    difference = (zigzag >> 1).astype(np.int16) ^ -((zigzag & 1).astype(np.int16))
    return np.cumsum(difference, axis=1, dtype=np.int16), scale, meta, sfreq, labels, events


def _segments(events_E3: NDArray[np.int64], total: int, sfreq: float) -> tuple[Segment, ...]:
    starts, lengths = events_E3[:, 0], events_E3[:, 1]
    glued = (
        len(events_E3) > 1
        and starts[0] == 0
        and (lengths == lengths[0]).all()
        and (np.diff(starts) == lengths[0]).all()
        and starts[-1] + lengths[-1] == total
    )
    if not glued:
        return (Segment(0, total, 0.0),)
    step = int(lengths[0])
    return tuple(Segment(a, a + step, a / sfreq) for a in range(0, total, step))


def _find(folder: Path, rows: PackTable, tables: dict[str, PackTable]) -> Iterator[Item]:
    labels: dict[str, dict[str, list[Interval]]] = defaultdict(lambda: defaultdict(list))
    for name, table in tables.items():
        regression = _is_regression(table)
        for row in table:
            labels[row["record"]][name].append(_interval(row, regression))
    if (folder / "pretrain.csv").exists():
        if "pretrain" in tables:
            raise InputError("there are pretrain.csv and tasks/pretrain.csv; give the task another name")
        for row in _read_table(folder / "pretrain.csv", ("record", "split", "duration_s")):
            interval = Interval(0.0, _number(row["duration_s"], "duration_s"), row["split"])
            labels[row["record"]]["pretrain"].append(interval)
    unknown = set(labels) - {row["record"] for row in rows}
    if unknown:
        raise InputError(f"{len(unknown)} records of the tasks are not in index.csv, such as {sorted(unknown)[0]!r}")
    for row in sorted(rows, key=lambda row: row["record"]):
        path = folder / row["file"]
        yield Item(
            row["record"],
            functools.partial(read_npz, path),
            _subject(row),
            {name: tuple(intervals) for name, intervals in labels[row["record"]].items()},
            events=None,
            size=path.stat().st_size if path.is_file() else 0,
            files=(path,),
            part_of=row.get("dataset") or "",
        )


def _subject(row: dict[str, str]) -> str:
    return f"{row['dataset']}_{row['subject']}" if row.get("dataset") else row["subject"]


def _interval(row: dict[str, str], regression: bool) -> Interval:
    start, stop = _number(row["t0"], "t0"), _number(row["t1"], "t1")
    if not start < stop:
        raise InputError(f"an interval of a task goes from {start:g} to {stop:g} s; expected t0 before t1")
    if not regression:
        return Interval(start, stop, row["split"], row["label_name"] or row["label"])
    return Interval(start, stop, row["split"], None, tuple(_number(row[name], name) for name in _targets(row)))


def _describe(name: str, rows: PackTable, subjects: dict[str, str]) -> Task:
    seconds = min(SECONDS, min(round(_number(r["t1"], "t1") - _number(r["t0"], "t0"), 3) for r in rows))
    if _is_regression(rows):
        return Task("regression", _targets(rows[0]), seconds, seconds, _split_unit(rows, subjects))
    pairs = {(_number(row["label"], "label"), row["label_name"] or row["label"]) for row in rows}
    names = dict(pairs)
    if not len(pairs) == len(names) == len(set(names.values())):
        raise InputError(f"task {name}: each label needs one name, and a name of its own; mend tasks/{name}.csv")
    classes = tuple(names[label] for label in sorted(names))
    return Task("classification", classes, seconds, seconds, _split_unit(rows, subjects))


def _split_unit(rows: PackTable, subjects: dict[str, str]) -> SplitUnit | None:
    """Return the strictest unit that no two splits share; None for the subject, the recipe's default."""
    if not _shared((row["split"], subjects.get(row["record"], row["record"])) for row in rows):
        return None
    return "trial" if _shared((row["split"], row["record"]) for row in rows) else "recording"


def _shared(pairs: Iterable[tuple[str, str]]) -> bool:
    """Return whether something is in two splits, from pairs (split, something)."""
    different = set(pairs)
    return len({thing for _, thing in different}) < len(different)


def _is_regression(rows: PackTable) -> bool:
    names = {row["label_name"] for row in rows}
    return len(names) == 1 and names != {""} and len({row["label"] for row in rows}) > 1


def _targets(row: dict[str, str]) -> tuple[str, ...]:
    """Return the columns label, label2, label3, ... in the order of their numbers."""
    found = [column for column in row if re.fullmatch(r"label[0-9]*", column)]
    return tuple(sorted(found, key=lambda column: int(column.removeprefix("label") or 0)))


def _task_files(folder: Path) -> list[Path]:
    if not (folder / "index.csv").is_file():
        raise InputError("the folder has no index.csv; give a folder in the format of the open-EEG pack")
    tasks = folder / "tasks"
    return sorted(path for path in tasks.iterdir() if path.suffix == ".csv") if tasks.is_dir() else []


def _read_table(path: Path, columns: tuple[str, ...]) -> PackTable:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name} cannot be read ({type(error).__name__})") from error
    if not rows or not set(columns) <= set(rows[0]):
        raise InputError(f"{path.name} has no rows or lacks one of the columns {', '.join(columns)}")
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():  # how csv says that a row is too long or too short
            raise InputError(f"row {number} of {path.name} has more or fewer fields than the first line names; mend it")
    return rows


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"{what} is {text!r:.20}; expected a number") from error
    if not math.isfinite(value):
        raise InputError(f"{what} is {text!r:.20}; expected a finite number")
    return value
