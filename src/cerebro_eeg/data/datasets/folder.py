"""``folder``: any tree of EEG files. Labels, subjects and splits come from a CSV table, or from the paths.

The table has a column ``file`` (the path below the folder) and any of ``subject``, ``split``, ``label``, ``start`` and
``stop`` in seconds, blank for the whole recording. For a regression it has ``target``, ``target2``, ``target_age``, ...
Its name is the name of the task, and a file may have many rows.

From the path, a subject or a label is ``parent`` (the folder that holds the file), ``top`` (the first folder), or the
group of that name in a regular expression. docs/corpora/folder.md has examples.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from cerebro_eeg.data.datasets.file_tree import SourceFile, find_sources, passed_over
from cerebro_eeg.data.datasets.folder_table import (
    TABLE,
    LabelTable,
    check_label,
    check_unit,
    describe,
    read_labels,
    say_classes,
    say_made,
    say_splits,
    split_of,
    with_positive,
)
from cerebro_eeg.data.reading.arrays import ArrayFacts, check_needed, told
from cerebro_eeg.data.reading.edf_samples import UNITS
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.name_map import read_channel_list
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.recipe import Item, Recipe, SplitUnit, Task
from cerebro_eeg.data.storing.records import WHOLE, Interval
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.progress import counted
from cerebro_eeg.terminal import one_line

_UNITS: dict[str, SplitUnit] = {"subject": "subject", "recording": "recording", "trial": "trial", "none": "subject"}


def folder(
    folder: Path,
    *,
    labels: Path | None = None,
    label: str | None = None,
    subject: str | None = None,
    split: str | None = None,
    events: tuple[str, ...] = (),
    unit: str | None = None,
    sfreq: float | None = None,
    channels_from: Path | None = None,
    positive: str | None = None,
) -> Recipe:
    """Make the recipe of one such tree.

    Parameters
    ----------
    labels : the table.
    label, subject : where they are in the path of a file: "parent", "top", or an expression with a group of that name.
    split : the unit that no two splits may share: "subject" (also for None), "recording" or "trial". Where the table
        has no splits, "subject" and "recording" make some: 60, 20 and 20 of 100, by a hash. None does, too, where all
        subjects are known; "none" makes none.
    events : names of events of the files that may go into the store.
    unit : "uV", "nV", "mV" or "V", for channels whose own unit is blank or unknown, and for tables of headsets, which
        have none; without it such channels are refused, and tables are in microvolts.
    sfreq : samples per second of arrays of numbers that do not say it; without it such arrays are passed over.
    channels_from : a list with the channel names of arrays that do not say them, one a line.
    positive : the class of two that is looked for, which comes last; None takes the last by the alphabet or by value.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit={unit!r} is not a unit of voltage; use one of 'uV', 'nV', 'mV', 'V'")
    check_unit(split, tuple(_UNITS))
    arrays = ArrayFacts(sfreq, () if channels_from is None else read_channel_list(channels_from))
    sources = find_sources(folder, labels, arrays)
    check_needed(arrays, [source.path for source in sources])
    table = read_labels(labels, sources) if labels is not None else LabelTable()
    subjects = {**table.subjects, **_subjects(sources, subject, table)}
    found, task = _with_path_labels(sources, label, table)
    if task is not None and not found:
        raise InputError(f"{TABLE} has no row with a label, a target or a split; give one that labels something")
    if labels is not None and task is None and not table.subjects:
        raise InputError(
            f"{TABLE} has no column whose meaning is known beside the files; expected label (or targets, or subject): "
            "name the column with the classes label"
        )
    shared = _UNITS[split or "subject"]
    notes, hints = [], []
    if table.has_splits:
        if split == "none":
            raise ConfigError(f"--split none was given, and {TABLE} has splits; leave one of them out")
        _check_splits(found, subjects, shared)
    elif split is None and found:
        unknown = sum(name not in subjects for name in found)
        if unknown:
            hints.append(
                f"no splits were made: of {unknown:,} of {len(found):,} labelled recordings the subject is not known; "
                "give subjects (--subject, or a column of the table), or --split recording if nobody is in two of them"
            )
        else:
            found, _ = _with_hash_splits(found, subjects, "subject")
            hints.append(say_made({who: split_of(who) for who in {subjects[name] for name in found}}))
    elif split is not None and split != "none":
        found, note = _with_hash_splits(found, subjects, shared)
        notes.append(note)
    described = describe((i for intervals in found.values() for i in intervals), table.targets)
    if task is not None and found and len(found) < len(sources):
        notes.append(
            f"{len(sources) - len(found)} of {len(sources)} recordings are not labelled and are stored without"
        )
    if task is not None and found:
        notes.append(say_classes(task, found))
    if table.taken:
        words = [f"{one_line(name)} for {ours}" for name, ours in table.taken.items()]
        notes.append(f"columns of the table are taken by their meaning: {', '.join(words)}")
    if table.unused:
        notes.append(f"{table.unused} columns of the table are not used")
    others = passed_over(folder, sources, labels)
    if others.files:
        packed = f", {others.packed} of them packed: unpack what holds EEG" if others.packed else ""
        notes.append(f"{others.files} files that are no EEG by their suffix or columns passed over{packed}")
    if others.arrays:
        count = len(others.arrays)
        hints.append(
            f"{counted(count, 'array')} of numbers {'is' if count == 1 else 'are'} passed over, since nothing says the "
            "rate: --sfreq makes recordings of them (and --unit, --channels-from), if they are EEG"
        )
    tasks: dict[str, Task] = {task: described} if task is not None and described is not None else {}
    return Recipe(
        "folder",
        "; ".join(["a tree of EEG files", *notes]),
        functools.partial(_find, sources, subjects, {} if task is None else {task: found}, events, unit, arrays),
        split_unit=shared,
        tasks=with_positive(tasks, positive),
        one_corpus=False,
        positive_by="--positive",
        hints=tuple(hints),
        waiting=others.arrays,
        options=_options(unit, arrays),
    )


def _options(unit: str | None, arrays: ArrayFacts) -> dict[str, str]:
    found = {
        "unit": unit,
        "sfreq": None if arrays.sfreq is None else f"{arrays.sfreq:g}",
        "channels_from": ",".join(arrays.channels) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _find(
    sources: Sequence[SourceFile],
    subjects: Mapping[str, str],
    labels: Mapping[str, Mapping[str, tuple[Interval, ...]]],
    events: tuple[str, ...],
    unit: str | None,
    arrays: ArrayFacts,
) -> Iterator[Item]:
    for source in sources:
        yield Item(
            source.name,
            functools.partial(_open, source.path, unit, arrays),
            subjects.get(source.name),
            {task: found[source.name] for task, found in labels.items() if source.name in found},
            events,
            size=source.size,
            files=source.files,
            told=told(source.path),
            as_unit=functools.partial(_open_as, source.path, arrays),
        )


def _open(path: Path, unit: str | None, arrays: ArrayFacts, policy: ChannelPolicy) -> Recording:
    return open_recording(path, policy, unit=unit, arrays=arrays)


def _open_as(path: Path, arrays: ArrayFacts, policy: ChannelPolicy, unit: str) -> Recording:
    return open_recording(path, policy, unit=unit, arrays=arrays)


def _subjects(sources: Sequence[SourceFile], rule: str | None, table: LabelTable) -> dict[str, str]:
    if rule is None:
        return {}
    if table.has_subjects:
        raise ConfigError(f"subject was given, and {TABLE} has a column subject; use one of them")
    found = _from_paths(sources, rule, "subject")
    if len(found) < len(sources):
        raise InputError(
            f"subject={rule!r} finds no subject in {len(sources) - len(found)} of {len(sources)} paths; it must in each"
        )
    return found


def _with_path_labels(
    sources: Sequence[SourceFile], rule: str | None, table: LabelTable
) -> tuple[dict[str, tuple[Interval, ...]], str | None]:
    """Return the intervals by recording, and the name of their task."""
    if rule is None:
        return dict(table.intervals), table.task
    if table.has_labels or table.has_splits:
        raise ConfigError(f"label was given, and {TABLE} has labels, targets or splits; use one of them")
    found = _from_paths(sources, rule, "label")
    if not found:
        raise InputError(f"label={rule!r} finds no label in any of {len(sources)} paths")
    where = "in a path"
    return {name: (Interval(0.0, WHOLE, None, check_label(text, where)),) for name, text in found.items()}, "label"


def _from_paths(sources: Sequence[SourceFile], rule: str, group: str) -> dict[str, str]:
    """Apply the rule to the path of each recording; those without a match are missing from the result."""
    found = {}
    pattern = None if rule in ("parent", "top") else _compile(rule, group)
    for source in sources:
        folders = source.name.split("/")[:-1]
        if pattern is None:
            text = (folders[-1] if rule == "parent" else folders[0]) if folders else None
        else:
            match = pattern.search(source.name)
            text = match[group] if match else None
        if text:
            found[source.name] = text
    return found


def _compile(rule: str, group: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise ConfigError(f"{group}={rule!r} is no regular expression ({error}); mend it") from None
    if group not in pattern.groupindex:
        raise ConfigError(
            f"{group}={rule!r} is none of 'parent', 'top' and an expression with (?P<{group}>...); mend it"
        )
    return pattern


def _check_splits(found: Mapping[str, tuple[Interval, ...]], subjects: Mapping[str, str], unit: str) -> None:
    """Refuse splits of the table that share a unit, now and not when a model is trained."""
    if unit == "trial":
        return
    without = sum(name not in subjects for name in found)
    if unit == "subject" and without:
        raise InputError(
            f"{TABLE} has splits, and of {without} recordings the subject is not known; give subjects, or split="
            "'recording' if no person is in two recordings"
        )
    units: dict[str, set[str]] = defaultdict(set)
    for name, intervals in found.items():
        who = subjects[name] if unit == "subject" else name
        for interval in intervals:
            units[interval.split or ""].add(who)
    for one, other in combinations(sorted(units), 2):
        shared = units[one] & units[other]
        if shared:
            raise InputError(
                f"{counted(len(shared), unit)} {'is' if len(shared) == 1 else 'are'} in the splits {one or 'none'} and "
                f"{other or 'none'} of {TABLE}; mend it, "
                "or say what may not be shared: split='recording' or split='trial'"
            )


def _with_hash_splits(
    found: Mapping[str, tuple[Interval, ...]], subjects: Mapping[str, str], unit: SplitUnit
) -> tuple[dict[str, tuple[Interval, ...]], str]:
    if not found:
        raise ConfigError(f"split={unit!r} was given without labels, and splits belong to tasks; give labels")
    if unit == "trial":
        raise ConfigError(
            "split='trial' needs a table with a column split; without one use split='subject' or split='recording'"
        )
    without = sum(name not in subjects for name in found)
    if unit == "subject" and without:
        raise InputError(f"split='subject' needs subjects, and of {without} labelled recordings none is known")
    who = {name: subjects[name] if unit == "subject" else name for name in found}
    splits = {name: split_of(name) for name in who.values()}
    made = {
        name: tuple(Interval(i.start, i.stop, splits[who[name]], i.label, i.values) for i in intervals)
        for name, intervals in found.items()
    }
    return made, say_splits(splits, unit)
