"""The table of labels beside a folder of recordings, and helpers for other recipes of a user's own data.

The columns are ``file`` and any of ``subject``, ``split``, ``label``, ``start``, ``stop``, or ``target``, ``target2``,
``target_age``, ... A file has one or several rows. The helpers read strict tables, put classes in order and split by a
hash.

Messages give row numbers and known columns and never quote a table, because it may say who was recorded.
"""

import csv
import difflib
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cerebro_eeg.data.datasets.column_names import lacking, meanings
from cerebro_eeg.data.datasets.file_tree import SourceFile, plain_name
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import WHOLE, Interval, is_id
from cerebro_eeg.errors import ConfigError, InputError, PassingFault
from cerebro_eeg.schema import did_you_mean
from cerebro_eeg.terminal import one_line

_MOST = 12  # classes or splits that a line lists
SECONDS = 5.0  # of a window, unless labelled intervals are shorter

TableRow = dict[str, str]


def read_rows(
    path: Path,
    what: str,
    separator: str,
    needed: Collection[str],
    also: str = "",
    meant: Callable[[Sequence[str]], Mapping[str, str]] | None = None,
) -> tuple[tuple[str, ...], list[TableRow]]:
    """Read the columns and the rows of a table in UTF-8, with or without a byte-order mark; strips blanks.

    ``also`` are words for columns that are not always needed, for the error of a table that lacks others. ``meant``
    returns our names of columns that have others.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, delimiter=separator, strict=separator == ","))
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8; save it as text, as CSV in UTF-8 (an Excel workbook is none)") from None
    except csv.Error:
        raise InputError(f"{what} cannot be read: a quote is not closed, or it is no text; give a text table") from None
    except OSError as error:
        raise PassingFault(
            f"{what} cannot be read: {error.strerror}; name a file that is there and may be read"
        ) from None
    lines = [[field.strip() for field in line] for line in lines if any(field.strip() for field in line)]
    written = tuple(lines[0]) if lines else ()
    ours = {} if meant is None else meant(written)
    columns = tuple(ours.get(name, name) for name in written)
    if not set(needed) <= set(columns):
        other = next((name for name, mark in _SEPARATORS.items() if columns and mark in columns[0]), None)
        cased = [name for name in needed if name not in columns and name in map(str.casefold, columns)]
        hint = f"its values are separated by {other}" if other else lacking(written, needed)
        if cased and not other:
            hint = f"it has {', '.join(cased)} with capital letters"
        expected = f"columns {', '.join(needed)}, separated by {_name(separator)}{also}"
        raise InputError(f"{what} lacks what it needs: {hint}; expected {expected}")
    if len(set(columns)) < len(columns):
        raise InputError(f"{what} has two columns with one name; rename one")
    for number, line in enumerate(lines[1:], 1):
        if len(line) != len(columns):
            raise InputError(
                f"row {number} of {what} has {len(line)} values, the first line names {len(columns)}; a decimal comma, "
                "or a comma in a text without quotes?"
            )
    return columns, [dict(zip(columns, line, strict=True)) for line in lines[1:]]


_SEPARATORS = {"semicolons": ";", "tabs": "\t", "commas": ","}


def _name(separator: str) -> str:
    return next(name for name, mark in _SEPARATORS.items() if mark == separator)


def read_number(text: str, where: str) -> float:
    """Read a finite number; ``where`` names it and its row in the error."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        comma = "; write a decimal point, not a comma" if "," in text else ""
        raise InputError(f"{where} is not a finite number{comma or '; mend it'}")
    return value


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the classes of these labels: by value where all are whole numbers, else by the alphabet."""
    found = sorted(set(labels))
    if len({" ".join(label.casefold().split()) for label in found}) < len(found):
        raise InputError("two labels differ in case or blanks alone, such as Rest and rest; write each in one way")
    try:
        values = [float(label) for label in found]
    except ValueError:
        return tuple(found)
    if any(not value.is_integer() for value in values):
        raise InputError(
            f"the {len(found)} labels are numbers that are not whole; for a regression name the column target"
        )
    if len(set(values)) < len(values):
        raise InputError("two labels are one number written differently, such as 1 and 1.0; write each in one way")
    return tuple(sorted(found, key=float))


def describe(intervals: Iterable[Interval], targets: tuple[str, ...] = ()) -> Task | None:
    """Make the task of labelled intervals: windows as long as the shortest, at most 5 s; None without labels."""
    found = [interval for interval in intervals if interval.label is not None or interval.values]
    if not found:
        return None
    seconds = min([SECONDS, *(round(interval.stop - interval.start, 3) for interval in found)])
    if targets:
        return Task("regression", targets, seconds, seconds)
    classes = in_order(interval.label for interval in found if interval.label is not None)
    return Task("classification", classes, seconds, seconds)


def with_positive(tasks: Mapping[str, Task], positive: str | None) -> dict[str, Task]:
    """Return the tasks with this class last wherever it is one of two; AUPR, threshold and events refer to the last."""
    if positive is None:
        return dict(tasks)
    classes = {name: task.names for name, task in tasks.items() if task.kind == "classification"}
    if not classes:
        raise ConfigError(f"positive={positive!r} was given, and there are no classes; leave it out, or give labels")
    having = {name: names for name, names in classes.items() if positive in names}
    if not having:
        known = sorted({one for names in classes.values() for one in names})
        listed = ", ".join(known[:_MOST]) + (", ..." if len(known) > _MOST else "")
        raise ConfigError(f"positive={positive!r} is no class{did_you_mean(positive, known)}; the classes are {listed}")
    if all(len(names) != 2 for names in having.values()):
        name, names = next(iter(having.items()))
        raise ConfigError(
            f"positive={positive!r} was given, and the number of classes of {name} is {len(names)}; only of two one "
            "is positive: leave it out"
        )
    return {
        name: replace(task, names=(*(one for one in task.names if one != positive), positive))
        if len(having.get(name, ())) == 2
        else task
        for name, task in tasks.items()
    }


def split_of(name: str) -> str:
    """Return train, val or test, 60, 20 and 20 of 100, by the name alone: a later subject moves no other."""
    place = int(hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12], 16) % 100
    return "train" if place < 60 else "val" if place < 80 else "test"


def say_classes(task: str, intervals: Mapping[str, Collection[Interval]]) -> str:
    """Print the labelled recordings by class and by split, so that a slip of the pen shows here and not in training."""
    found = [{(i.label, i.split) for i in labelled} for labelled in intervals.values()]
    labels = Counter(label for pairs in found for label in {label for label, _ in pairs} if label is not None)
    splits = Counter(split or "no split" for pairs in found for split in {split for _, split in pairs})
    words = [f"task {task}"]
    if labels:
        words.append(f"{len(labels)} {'class' if len(labels) == 1 else 'classes'}")
        words[-1] += f" ({', '.join(f'{name} {count}' for name, count in sorted(labels.items())[:_MOST])}"
        words[-1] += ", ...)" if len(labels) > _MOST else ")"
    if set(splits) != {"no split"}:
        words.append("splits " + ", ".join(f"{name} {count}" for name, count in sorted(splits.items())[:_MOST]))
    return ": ".join([words[0], "; ".join(words[1:])]) if words[1:] else words[0]


def say_splits(units: Mapping[str, str], unit: str) -> str:
    """Print how many units came into each split."""
    counts = Counter(units.values())
    return f"{unit}s by hash: " + ", ".join(f"{counts[name]} {name}" for name in ("train", "val", "test"))


def say_made(units: Mapping[str, str]) -> str:
    """Print that splits were made although nobody asked, and whether one is empty."""
    empty = [name for name in _SPLITS if name not in units.values()]
    few = f"; {' and '.join(empty)} got none: give splits of your own, or train with --folds" if empty else ""
    return f"no splits were given, so they were made, {say_splits(units, 'subject')}{few} (--split none makes none)"


def check_unit(split: str | None, units: Collection[str]) -> None:
    """Refuse an unknown unit of splits."""
    if split is not None and split not in units:
        raise ConfigError(f"split={split!r} is not a way to split here; use one of {', '.join(units)}")


TABLE = "the table of labels"
_COLUMNS = ("file", "subject", "split", "label", "start", "stop", "target")
_ALSO = "; beside it label or target, and subject, split, start and stop if there are any"
_SPLITS = ("train", "val", "test")
_MISSING = ("nan", "na", "n/a", "#n/a", "null")
_TARGET = re.compile(r"target[0-9]*|target_[A-Za-z0-9_]+")


@dataclass(frozen=True)
class LabelTable:
    """The contents of the table, by the name of a recording."""

    task: str | None = None
    """None where the table has neither labels nor targets nor splits."""
    subjects: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    has_subjects: bool = False
    has_splits: bool = False
    has_labels: bool = False
    unused: int = 0
    taken: Mapping[str, str] = field(default_factory=dict)
    """Our name of each column that has another one."""


def read_labels(path: Path, sources: Sequence[SourceFile]) -> LabelTable:
    taken: dict[str, str] = {}

    def take(columns: Sequence[str]) -> Mapping[str, str]:
        taken.update(meanings(columns))
        return taken

    columns, rows = read_rows(path, TABLE, ",", ["file"], _ALSO, take)
    targets = tuple(column for column in columns if _TARGET.fullmatch(column))
    others = [column for column in columns if column not in _COLUMNS and column not in targets]
    for column in others:
        absent = [name for name in _COLUMNS if name not in columns]
        for meant in difflib.get_close_matches(column.casefold(), absent, n=1, cutoff=0.75):
            raise InputError(
                f"{TABLE} has a column {one_line(column)!r}, which is almost called {meant}; rename or remove it"
            )
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
    return LabelTable(
        path.stem if has["label"] or targets or has["split"] else None,
        subjects,
        {name: tuple(interval for _, interval in found) for name, found in intervals.items()},
        targets,
        has["subject"],
        has["split"],
        has["label"] or bool(targets),
        len(others),
        taken,
    )


def _why(lost: str, names: Collection[str]) -> str:
    """Guess why a name is not found, without repeating it: it may say who was recorded."""
    if lost.startswith("/") or lost[1:3] == ":/":
        return " (it begins at the root)"
    if lost.casefold() in (name.casefold() for name in names):
        return " (its case differs)"
    if any(name.startswith(f"{lost}.") for name in names):
        return " (its suffix is missing)"
    if any(name.endswith(f"/{lost}") for name in names):
        return " (its folders are missing)"
    return ""


def _interval(row: TableRow, targets: Sequence[str], number: int) -> Interval | None:
    """Return the interval of a row; None without label, targets or, in a table without these, a split."""
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
    """Refuse rows of one file that repeat each other, or that contradict each other about one moment."""
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
