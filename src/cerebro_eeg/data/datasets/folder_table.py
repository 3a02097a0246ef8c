"""The table of labels that goes with a folder of recordings: which file, whose, in which split, labelled how and when.

Columns: ``file`` and any of ``subject``, ``split``, ``label``, ``start``, ``stop``, or ``target``, ``target2``,
``target_age``, ... One or several rows a file.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro_eeg.data.datasets.file_tree import Source, plain_name
from cerebro_eeg.data.datasets.user_tables import Row, read_number, read_rows
from cerebro_eeg.data.storing.stored import WHOLE, Interval, is_id
from cerebro_eeg.errors import InputError

TABLE = "the table of labels"
_COLUMNS = ("file", "subject", "split", "label", "start", "stop", "target")
_SPLITS = ("train", "val", "test")
_MISSING = ("nan", "na", "n/a", "#n/a", "null")
_TARGET = re.compile(r"target[0-9]*|target_[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Table:
    """What the table says, by the name of a recording."""

    task: str | None = None
    """None where it has neither labels nor targets nor splits."""
    subjects: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    has_subjects: bool = False
    has_splits: bool = False
    has_labels: bool = False
    unused: int = 0


def read_labels(path: Path, sources: Sequence[Source]) -> Table:
    columns, rows = read_rows(path, TABLE, ",", ["file"])
    targets = tuple(column for column in columns if _TARGET.fullmatch(column))
    others = [column for column in columns if column not in _COLUMNS and column not in targets]
    for column in others:
        absent = [name for name in _COLUMNS if name not in columns]
        for meant in difflib.get_close_matches(column.casefold(), absent, n=1, cutoff=0.75):
            raise InputError(f"{TABLE} has a column that is almost called {meant}; rename or remove it")
    has = {name: name in columns for name in _COLUMNS}
    if has["label"] and targets:
        raise InputError(f"{TABLE} has label and {targets[0]}; classes or targets: one task a table")
    if has["start"] != has["stop"]:
        raise InputError(f"{TABLE} has only one of start and stop; give both, in seconds")
    if not is_id(path.stem):
        raise InputError("the table's name is the task's name; rename it: letters, digits and _ only")
    names = {source.name for source in sources}
    subjects: dict[str, str] = {}
    intervals: dict[str, list[tuple[int, Interval]]] = defaultdict(list)
    lost = []
    for number, row in enumerate(rows, 1):
        name = plain_name(row["file"])
        if name not in names:
            lost.append(number)
            continue
        who = row.get("subject", "")
        if who and subjects.setdefault(name, who) != who:
            raise InputError(f"row {number} of {TABLE} has another subject than an earlier row of the same file")
        interval = _interval(row, targets, number)
        if interval is not None:
            intervals[name].append((number, interval))
    if lost:
        raise InputError(
            f"{len(lost)} rows of {TABLE} name no EEG file of the folder, first row {lost[0]}"
            f"{_why(plain_name(rows[lost[0] - 1]['file']), names)}; expected the path below the folder, of several "
            "files of a recording the one that is opened (.vhdr, .set, .lay, the first .fif)"
        )
    for found in intervals.values():
        _check_overlap(found)
    return Table(
        path.stem if has["label"] or targets or has["split"] else None,
        subjects,
        {name: tuple(interval for _, interval in found) for name, found in intervals.items()},
        targets,
        has["subject"],
        has["split"],
        has["label"] or bool(targets),
        len(others),
    )


def _why(lost: str, names: Collection[str]) -> str:
    """A guess why a name is not found, without repeating it: it may say who was recorded."""
    if lost.startswith("/") or lost[1:3] == ":/":
        return " (it begins at the root)"
    if lost.casefold() in (name.casefold() for name in names):
        return " (its case differs)"
    if any(name.startswith(f"{lost}.") for name in names):
        return " (its suffix is missing)"
    if any(name.endswith(f"/{lost}") for name in names):
        return " (its folders are missing)"
    return ""


def _interval(row: Row, targets: Sequence[str], number: int) -> Interval | None:
    """What a row labels; None where it has neither label nor targets nor, in a table without these, a split."""
    where = f"of row {number} of {TABLE}"
    start, stop = 0.0, WHOLE
    if row.get("start") or row.get("stop"):
        start, stop = read_number(row["start"], f"start {where}"), read_number(row["stop"], f"stop {where}")
        if not 0 <= start < stop or stop - start < 0.001:
            raise InputError(
                f"start and stop {where} are {start:g} and {stop:g} s; expected 0 <= start < stop, a millisecond apart"
            )
    split = row.get("split") or None
    if split is not None and split not in _SPLITS and split.casefold() in (*_SPLITS, "validation", "valid", "dev"):
        raise InputError(f"the split {where} is {split}; the splits are called train, val and test")
    if split is not None and not is_id(split):
        raise InputError(f"the split {where} is not a plain word; expected one such as train, val or test")
    if targets:
        values = [row[name] for name in targets]
        if not any(values):
            return None
        read = tuple(read_number(text, f"{name} {where}") for name, text in zip(targets, values, strict=True))
        return Interval(start, stop, split, None, read)
    if "label" in row:
        return Interval(start, stop, split, check_label(row["label"], where)) if row["label"] else None
    return Interval(start, stop, split) if split else None


def check_label(text: str, where: str) -> str:
    if len(text) > 64 or not text.isprintable():
        raise InputError(f"the label {where} is no short text; expected the name of a class, at most 64 letters")
    if text.casefold() in _MISSING:
        raise InputError(f"the label {where} is {text}, which is no class; leave it blank where there is no label")
    return text


def _check_overlap(rows: Sequence[tuple[int, Interval]]) -> None:
    """Refuse rows of one file that repeat each other, or that say different things of one moment."""
    seen: dict[Interval, int] = {}
    # Of the intervals so far: the one that reaches furthest, and the furthest of those that say something else.
    reach: list[tuple[float, int, Interval]] = []
    for number, new in sorted(rows, key=lambda row: (row[1].start, row[0])):
        if new in seen:
            raise InputError(f"row {number} of {TABLE} says the same as row {seen[new]}; remove one")
        seen[new] = number
        for stop, earlier, old in reach:
            if new.start < stop and _said(old) != _said(new):
                first, second = sorted((earlier, number))
                raise InputError(
                    f"rows {first} and {second} of {TABLE} overlap and differ in label, target or split; mend one"
                )
        reach = sorted([*reach, (new.stop, number, new)], key=lambda entry: -entry[0])
        other = next((entry for entry in reach[1:] if _said(entry[2]) != _said(reach[0][2])), None)
        reach = [reach[0]] if other is None else [reach[0], other]


def _said(interval: Interval) -> tuple[object, ...]:
    return interval.label, interval.values, interval.split
