"""``bids``: a folder in the Brain Imaging Data Structure with EEG, ``sub-*/[ses-*/]eeg/*_eeg.{edf,vhdr,set,bdf}``.

``*_eeg.json`` says the mains frequency, ``*_channels.tsv`` what is no EEG, ``*_events.tsv`` what happened when and
``participants.tsv`` who the subjects are. Where they contradict a file, the file's own word is taken and a fault noted:
``units_differ``, ``rate_differs``, ``channels_differ``; channels with the status bad are kept: ``bads``. A recording
whose sidecars cannot be read is skipped: ``sidecar``. What lies in derivatives, sourcedata and other folders beside the
subjects is left out.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cerebro_eeg.data.datasets.bids_sidecars import MISSING, Sidecars, open_bids, read_sidecars
from cerebro_eeg.data.datasets.bids_tree import BidsFile, find_bids
from cerebro_eeg.data.datasets.user_tables import check_unit, describe, read_rows, say_splits, split_of, with_positive
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task
from cerebro_eeg.data.storing.stored import WHOLE, Interval, is_id
from cerebro_eeg.errors import ConfigError, InputError

_LEFT_OUT = ("derivatives", "sourcedata")


def bids(
    folder: Path,
    *,
    task: str | None = None,
    label: str | None = None,
    split: str | None = None,
    events: tuple[str, ...] = (),
    positive: str | None = None,
) -> Recipe:
    """The recipe of one such folder.

    Parameters
    ----------
    task : of which task (``task-<label>`` in the names) recordings are taken; None: all.
    label : the column of participants.tsv whose values are the classes of a task of that name.
    split : "subject" splits by a hash of the subject, 60, 20 and 20 of 100; None: no splits.
    events : values of trial_type (or of value, where there is no trial_type) that go into the store as events; those
        that last are the labelled intervals of the task "events" as well, whose classes they are.
    positive : of two classes the one that is looked for, which comes last; None: the last by the alphabet or by value,
        of events the last that is listed.
    """
    check_unit(split, ("subject",))
    files, strange = _find_files(folder, task)
    sidecars = {file.name: read_sidecars(file, events) for file in files}
    groups = _read_groups(folder, label) if label is not None else {}
    subjects = sorted({file.subject for file in files})
    splits = {name: split_of(name) for name in subjects} if split is not None else {}
    labels: dict[str, dict[str, tuple[Interval, ...]]] = {file.name: {} for file in files}
    for file in files:
        where = splits.get(file.subject)
        if label is not None and file.subject in groups:
            labels[file.name][label] = (Interval(0.0, WHOLE, where, groups[file.subject]),)
        lasting = [event for event in sidecars[file.name].events or () if event.duration > 0]
        if lasting:
            labels[file.name]["events"] = tuple(
                Interval(event.onset, event.onset + event.duration, where, event.name) for event in lasting
            )
    _check_found(events, sidecars, label, groups, subjects)
    if splits and not any(labels.values()):
        raise ConfigError("split was given, and nothing is labelled; splits belong to tasks: give label or events")
    notes = [f"{name} left out" for name in _LEFT_OUT if (folder / name).is_dir()]
    notes += [f"{strange} files that are no EEG by BIDS left out"] if strange else []
    cased = [p for p in folder.iterdir() if p.name.casefold().startswith("sub-") and not p.name.startswith("sub-")]
    notes += [f"{len(cased)} folders called sub- with capital letters left out: rename them"] if cased else []
    broken = [beside.broken for beside in sidecars.values() if beside.broken]
    notes += [f"{len(broken)} recordings will be skipped: {broken[0]}"] if broken else []
    torn = sum(map(_overlap_and_differ, (found.get("events", ()) for found in labels.values())))
    notes += [f"of {torn} recordings events overlap and differ: list fewer, or use labels='majority'"] if torn else []
    notes += [say_splits(splits, "subject")] if splits else []
    without = sum(name not in groups for name in subjects) if label is not None else 0
    notes += [f"{without} of {len(subjects)} subjects have no {label} and are stored without"] if without else []
    return Recipe(
        "bids",
        "; ".join(["EEG in the Brain Imaging Data Structure", *notes]),
        functools.partial(_find, files, sidecars, labels, events),
        tasks=with_positive(_tasks(labels, events), positive),
        one_corpus=False,
        positive_by="--positive",
    )


def _find(
    files: Sequence[BidsFile],
    sidecars: Mapping[str, Sidecars],
    labels: Mapping[str, Mapping[str, tuple[Interval, ...]]],
    events: tuple[str, ...],
) -> Iterator[Item]:
    for file in files:
        beside = sidecars[file.name]
        yield Item(
            file.name,
            functools.partial(open_bids, file.path, beside),
            file.subject,
            labels[file.name],
            events,
            beside.mains,
            file.size,
            beside.events,
            file.files,
            repr((sorted(beside.kinds.items()), sorted(beside.units.items()), beside.mains)),
        )


def _find_files(folder: Path, task: str | None) -> tuple[tuple[BidsFile, ...], int]:
    if not folder.is_dir():
        raise InputError("the source is not a folder; give the folder that holds dataset_description.json")
    if not (folder / "dataset_description.json").is_file():
        raise InputError("the folder has no dataset_description.json; give the top folder of a BIDS dataset")
    files, strange = find_bids(folder)
    if not files:
        raise InputError("the folder has no EEG; expected sub-*/[ses-*/]eeg/*_eeg with .edf, .vhdr, .set or .bdf")
    chosen = tuple(file for file in files if task is None or file.task == task)
    if not chosen:
        tasks = {file.task for file in files}
        raise InputError(
            f"no recording has task-{task} in its name; the {len(files)} there have {len(tasks)} other tasks"
        )
    return chosen, strange


def _read_groups(folder: Path, label: str) -> dict[str, str]:
    """The class of each participant that has one."""
    path = folder / "participants.tsv"
    if not path.is_file():
        raise InputError("label was given, and the folder has no participants.tsv; labels of subjects come from there")
    _, rows = read_rows(path, "participants.tsv", "\t", ["participant_id", label])
    if not is_id(label) or label == "events":
        raise ConfigError("label names a column of participants.tsv: letters, digits and _, and not 'events'")
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if row["participant_id"] in found:
            raise InputError(f"row {number} of participants.tsv has a participant that an earlier row has; remove one")
        if row[label] not in MISSING:
            found[row["participant_id"]] = row[label]
    return found


def _overlap_and_differ(intervals: Sequence[Interval]) -> bool:
    """Whether a moment has two labels; intervals are in the order of their starts."""
    reach: dict[str | None, float] = {}
    for new in intervals:
        if any(stop > new.start for label, stop in reach.items() if label != new.label):
            return True
        reach[new.label] = max(new.stop, reach.get(new.label, new.stop))
    return False


def _check_found(
    events: Sequence[str],
    sidecars: Mapping[str, Sidecars],
    label: str | None,
    groups: Mapping[str, str],
    subjects: Sequence[str],
) -> None:
    """What was asked for and is nowhere is a slip of the pen."""
    tables = [beside.events for beside in sidecars.values() if beside.events is not None]
    there = {event.name for found in tables for event in found}
    absent = [name for name in events if name not in there]
    if tables and absent:
        raise InputError(f"no events.tsv has {', '.join(map(repr, absent))} as trial_type or value; check the names")
    if label is not None and not any(name in groups for name in subjects):
        raise InputError(f"no subject with EEG has a value of {label!r} in participants.tsv; are its ids sub-...?")


def _tasks(labels: Mapping[str, Mapping[str, tuple[Interval, ...]]], events: Sequence[str]) -> dict[str, Task]:
    names = sorted({name for found in labels.values() for name in found})
    tasks = {}
    for name in names:
        task = describe(interval for found in labels.values() for interval in found.get(name, ()))
        assert task is not None
        # Events are classes in the order in which the user lists them.
        tasks[name] = task if name != "events" else replace(task, names=tuple(n for n in events if n in task.names))
    return tasks
