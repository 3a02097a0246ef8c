"""``bids``: EEG in the Brain Imaging Data Structure, ``sub-*/[ses-*/]eeg/*_eeg.{edf,vhdr,set,bdf}``.

``*_eeg.json`` states the mains frequency, ``*_channels.tsv`` which channels are no EEG, ``*_events.tsv`` the events and
``participants.tsv`` the subjects. Folders beside the subjects, such as derivatives and sourcedata, are left out.

The recording's own file decides about its samples. Sidecars are believed where the file is silent: a missing unit, the
type of a channel, events. Where they contradict the file, the file is believed and a fault noted: ``units_differ``,
``rate_differs``, ``channels_differ``. Channels with the status bad are left out, with the fault ``bads``. A recording
whose sidecars cannot be read is skipped as ``sidecar``.
"""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cerebro_eeg.channels.names import clean
from cerebro_eeg.channels.report import listed
from cerebro_eeg.data.datasets.bids_tree import BidsFile, find_bids, nearest, sidecar
from cerebro_eeg.data.datasets.folder_table import (
    check_unit,
    describe,
    read_number,
    read_rows,
    say_made,
    say_splits,
    split_of,
    with_positive,
)
from cerebro_eeg.data.reading.edf_header import read_header, text
from cerebro_eeg.data.reading.edf_samples import UNITS, opened
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Fault, Recording, bad_faults
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task
from cerebro_eeg.data.storing.records import WHOLE, Interval, is_id
from cerebro_eeg.errors import ConfigError, InputError, PassingFault, RecordingError
from cerebro_eeg.terminal import one_line

MISSING = ("n/a", "")
ENTITIES = {"task": "task", "session": "ses", "ses": "ses", "run": "run", "acquisition": "acq", "acq": "acq"}
"""What label may be beside a column: a part of the names of files, by its word or by its key in BIDS."""
_KEYS = ("ses", "acq")
_EEG = "EEG"


@dataclass(frozen=True)
class Sidecars:
    """The contents of the files beside a recording."""

    kinds: Mapping[str, str]
    """Type by cleaned label."""
    units: Mapping[str, str]
    """Unit by cleaned label, of EEG channels whose unit is a voltage."""
    bad: tuple[str, ...]
    rate: float | None
    mains: float | None
    events: tuple[Event, ...] | None
    """The listed events; None where there is no table of events."""
    broken: str | None = None
    """Why the sidecars cannot be used."""
    passing: bool = False
    """Whether that may pass: a disk or a network failed."""


def read_sidecars(file: BidsFile, events: Sequence[str]) -> Sidecars:
    """Read the sidecars of a recording, with the wanted events."""
    try:
        return _read(file, events)
    except InputError as error:  # one bad table must not stop the others
        return Sidecars({}, {}, (), None, None, None, str(error), isinstance(error, PassingFault))


def _read(file: BidsFile, events: Sequence[str]) -> Sidecars:
    values = sidecar(file, "eeg")
    table = nearest(file, "channels")
    rows = read_rows(table, "a channels.tsv", "\t", ["name"])[1] if table is not None else []
    kinds = {clean(row["name"]): row.get("type", _EEG).upper() for row in rows}
    units = {
        clean(row["name"]): row["units"]
        for row in rows
        if row.get("units") in UNITS and kinds[clean(row["name"])] == _EEG
    }
    bad = tuple(clean(row["name"]) for row in rows if row.get("status", "").casefold() == "bad")
    where = nearest(file, "events")
    return Sidecars(
        kinds,
        units,
        bad,
        _positive(values.get("SamplingFrequency")),
        _positive(values.get("PowerLineFrequency")),
        None if where is None else _read_events(where, events),
    )


def _positive(value: Any) -> float | None:
    """Read a frequency; None for "n/a" and for numbers without sense."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e6 else None


def _read_events(path: Path, wanted: Sequence[str]) -> tuple[Event, ...]:
    columns, rows = read_rows(path, "an events.tsv", "\t", ["onset", "duration"])
    if "trial_type" not in columns and "value" not in columns:
        return ()
    found = []
    for number, row in enumerate(rows, 1):
        name = next((row[c] for c in ("trial_type", "value") if row.get(c, "n/a") not in MISSING), None)
        if name is None or name not in wanted:
            continue
        where = f"of row {number} of an events.tsv"
        onset = read_number(row["onset"], f"onset {where}")
        duration = 0.0 if row["duration"] in MISSING else read_number(row["duration"], f"duration {where}")
        if duration < 0:
            raise InputError(f"the duration {where} is {duration:g} s; expected 0 or more")
        found.append(Event(onset, duration, name))
    return tuple(sorted(found, key=lambda event: (event.onset, event.name, event.duration)))


def open_bids(path: Path, beside: Sidecars, policy: ChannelPolicy) -> Recording:
    """Open one recording, with channels and events as its sidecars state them."""
    if beside.broken:
        raise PassingFault(beside.broken) if beside.passing else RecordingError("sidecar", beside.broken)
    not_eeg = {name: "MISC" for name, kind in beside.kinds.items() if kind != _EEG}
    policy = replace(policy, names={**(policy.names or {}), **not_eeg}, bads=(*policy.bads, *beside.bad))
    try:
        recording = open_recording(path, policy)
    except RecordingError as error:
        units = {UNITS[unit] for unit in beside.units.values()}
        # V proves nothing: published tables have it after the unit that MNE computes in, whatever the file has.
        if error.code != "unit" or len(units) != 1 or units == {UNITS["V"]}:
            raise
        recording = open_recording(path, policy, unit=next(iter(beside.units.values())))
    events = recording.events if beside.events is None else beside.events
    return replace(recording, events=events, faults=(*recording.faults, *_faults(path, beside, recording)))


def _faults(path: Path, beside: Sidecars, recording: Recording) -> Iterator[Fault]:
    kept = [row.label for row in recording.match.rows if row.channel is not None]
    if not any(fault.code == "bads" for fault in recording.faults):  # MNE's readers have said it
        yield from bad_faults(recording.match)
    lost = [name for name in kept if name not in beside.kinds]
    if lost and beside.kinds:
        yield Fault("channels_differ", f"{len(lost)} channels are not in channels.tsv: {listed(lost)}; kept")
    if beside.rate is not None and abs(beside.rate / recording.sfreq - 1) > 1e-3:
        yield Fault(
            "rate_differs", f"the sidecar says {beside.rate:g} Hz, the file {recording.sfreq:g} Hz, which holds"
        )
    own = _edf_units(path) if path.suffix.casefold() in (".edf", ".bdf") else {}
    differ = [
        name for name in kept if name in beside.units and own.get(name) in UNITS
        and UNITS[own[name]] != UNITS[beside.units[name]]
    ]  # fmt: skip
    if differ:
        yield Fault(
            "units_differ", f"channels.tsv has another unit than the file for {listed(differ)}; the file's holds"
        )


def _edf_units(path: Path) -> dict[str, str]:
    with opened(path) as (read, stamp):
        header = read_header(read, stamp.size)
    return {clean(signal.label): text(signal.unit) for signal in header.signals}


_LEFT_OUT = ("derivatives", "sourcedata")
_MOST = 12  # columns or values that a line lists
_LONGEST = 30  # letters of a name that are shown


def bids(
    folder: Path,
    *,
    task: str | None = None,
    label: str | None = None,
    split: str | None = None,
    events: tuple[str, ...] = (),
    positive: str | None = None,
) -> Recipe:
    """Make the recipe of one such folder.

    Parameters
    ----------
    task : take only recordings of this task (``task-<label>`` in the names); None takes all.
    label : the column of participants.tsv whose values are the classes of a task of that name; or "task", "session",
        "run" or "acquisition", whose values in the names of files are the classes.
    split : "subject" (also for None) splits what is labelled by a hash of the subject, 60, 20 and 20 of 100; "none"
        makes no splits.
    events : values of trial_type (or of value, where there is no trial_type) that go into the store as events. Those
        with a duration are also the labelled intervals of the task "events", whose classes they are.
    positive : the class of two that is looked for, which comes last; None takes the last by the alphabet or by value,
        or the last listed event.
    """
    check_unit(split, ("subject", "none"))
    files, others, strange = _find_files(folder, task)
    sidecars = {file.name: read_sidecars(file, events) for file in files}
    groups = _classes(folder, files, label) if label is not None else {}
    subjects = sorted({file.subject for file in files})
    splits = {name: split_of(name) for name in subjects} if split != "none" else {}
    labels: dict[str, dict[str, tuple[Interval, ...]]] = {file.name: {} for file in files}
    for file in files:
        where = splits.get(file.subject)
        if label is not None and file.name in groups:
            labels[file.name][label] = (Interval(0.0, WHOLE, where, groups[file.name]),)
        lasting = [event for event in sidecars[file.name].events or () if event.duration > 0]
        if lasting:
            labels[file.name]["events"] = tuple(
                Interval(event.onset, event.onset + event.duration, where, event.name) for event in lasting
            )
    _check_found(events, sidecars)
    if split == "subject" and not any(labels.values()):
        raise ConfigError("split was given, and nothing is labelled; splits belong to tasks: give label or events")
    notes = [f"{name} left out" for name in _LEFT_OUT if (folder / name).is_dir()]
    notes += [f"{strange} files that are no EEG by BIDS left out"] if strange else []
    cased = [p for p in folder.iterdir() if p.name.casefold().startswith("sub-") and not p.name.startswith("sub-")]
    notes += [f"{len(cased)} folders called sub- with capital letters left out: rename them"] if cased else []
    broken = [beside.broken for beside in sidecars.values() if beside.broken]
    notes += [f"{len(broken)} recordings will be skipped: {broken[0]}"] if broken else []
    torn = sum(map(_overlap_and_differ, (found.get("events", ()) for found in labels.values())))
    if torn:
        notes.append(f"of {torn} recordings events overlap and differ: list fewer, or use finetune --labels majority")
    notes += [say_splits(splits, "subject")] if split == "subject" else []
    used = {file.subject: splits[file.subject] for file in files if splits and labels[file.name]}
    unlabelled = [file for file in files if label is not None and file.name not in groups]
    if label in ENTITIES:
        notes += [f"{len(unlabelled)} of {len(files)} recordings have no {label}, stored without"] if unlabelled else []
    else:
        without = len({file.subject for file in unlabelled})
        notes += [f"{without} of {len(subjects)} subjects have no {label} and are stored without"] if without else []
    return Recipe(
        "bids",
        "; ".join(["EEG in the Brain Imaging Data Structure", *notes]),
        functools.partial(_find, files, sidecars, labels, events),
        others=functools.partial(_list, others),
        tasks=with_positive(_tasks(labels, events), positive),
        one_corpus=False,
        positive_by="--positive",
        hints=(say_made(used),) if split is None and used else (),
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
            repr((sorted(beside.kinds.items()), sorted(beside.units.items()), beside.mains, *beside.bad)),
        )


def _list(files: Sequence[BidsFile]) -> Iterator[Item]:
    """Yield recordings that are not wanted, of which only the ids are asked for."""
    for file in files:
        yield Item(file.name, functools.partial(open_recording, file.path), files=file.files)


def _find_files(folder: Path, task: str | None) -> tuple[tuple[BidsFile, ...], tuple[BidsFile, ...], int]:
    """Find the recordings of a task, those of others, and the number of files that are no EEG by BIDS."""
    if not folder.is_dir():
        raise InputError("the source is not a folder; give the folder that holds dataset_description.json")
    if not (folder / "dataset_description.json").is_file():
        there = any(folder.glob("sub-*"))
        hint = "; sub- folders are there: copy that file to them (with EEGDash: download_all)" if there else ""
        raise InputError(f"the folder has no dataset_description.json; give the top folder of a BIDS dataset{hint}")
    files, strange = find_bids(folder)
    if not files:
        raise InputError("the folder has no EEG; expected sub-*/[ses-*/]eeg/*_eeg with .edf, .vhdr, .set or .bdf")
    chosen = tuple(file for file in files if task is None or file.task == task)
    if not chosen:
        tasks = {file.task for file in files}
        raise InputError(
            f"no recording has task-{task} in its name; the {len(files)} there have {len(tasks)} other tasks: "
            f"{_some(tasks)}"
        )
    return chosen, tuple(file for file in files if file.task != task and task is not None), strange


def _classes(folder: Path, files: Sequence[BidsFile], label: str) -> dict[str, str]:
    """Return the class of each recording that has one, by its name: of its participant, or a part of its name."""
    key = ENTITIES.get(label)
    own = {file.name: value for file in files if key is not None and (value := file.entity(key)) is not None}
    if key is None or (not own and _has_column(folder, label)):
        groups = _read_groups(folder, files, label)
        found = {file.name: groups[file.subject] for file in files if file.subject in groups}
        if not found:
            raise InputError(
                f"no subject with EEG has a value of {label!r} there: they are n/a, or are its ids sub-...?"
            )
        return found
    if own and _has_column(folder, label):
        raise ConfigError(
            f"label={label!r} is a column of participants.tsv and a part of the names ({key}-...); rename the column"
            + (f", or give label={key!r} for the names" if label != key else " to have it, or remove it for the names")
        )
    if len(set(own.values())) < 2:
        value = f"task-{own[files[0].name]}" if own and key == "task" else f"one value of {key}-"
        only = f"the {len(own)} recordings that have it have {value}" if own else f"no name of a recording has {key}-"
        raise InputError(f"label={label!r} makes no two classes: {only}; {_offer(folder, files)}")
    return own


def _offer(folder: Path, files: Sequence[BidsFile]) -> str:
    """Return what may be a label here: columns of participants.tsv, and parts of names that differ."""
    columns = [name for name in _columns(folder) if name != "participant_id"]
    shown = f"columns of participants.tsv: {', '.join(columns[:_MOST])}{', ...' if len(columns) > _MOST else ''}; "
    return f"what may be a label here: {shown if columns else ''}{_offer_parts(files)}"


def _offer_parts(files: Sequence[BidsFile]) -> str:
    """Return the parts of names that have two values or more; a session may be a date, so only tasks are quoted."""
    found = []
    for word, key in ENTITIES.items():
        values = {value for file in files if (value := file.entity(key)) is not None}
        if len(values) > 1 and word not in _KEYS:
            found.append(f"{word} ({_some(values) if key == 'task' else f'{len(values)} values'})")
    return f"parts of names: {', '.join(found) or 'none has two values'}"


def _columns(folder: Path) -> tuple[str, ...]:
    """Return the columns of participants.tsv; () where there is none, or where it lacks a line with names."""
    path = folder / "participants.tsv"
    columns = read_rows(path, "participants.tsv", "\t", ())[0] if path.is_file() else ()
    return tuple(one_line(name[:_LONGEST]) for name in columns) if "participant_id" in columns else ()


def _has_column(folder: Path, label: str) -> bool:
    return label in _columns(folder)


def _some(values: Collection[str | None]) -> str:
    found = sorted(str(value) for value in values)
    return ", ".join(found[:_MOST]) + (", ..." if len(found) > _MOST else "")


def _read_groups(folder: Path, files: Sequence[BidsFile], label: str) -> dict[str, str]:
    """Read the class of each participant that has one."""
    path = folder / "participants.tsv"
    if not path.is_file():
        raise InputError(
            f"label={label!r} was given, and the folder has no participants.tsv with such a column; "
            f"{_offer(folder, files)}"
        )
    also = f"; or give label one of the {_offer_parts(files)}"
    _, rows = read_rows(path, "participants.tsv", "\t", ["participant_id", label], also)
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
    """Return whether a moment has two labels; intervals are sorted by their starts."""
    reach: dict[str | None, float] = {}
    for new in intervals:
        if any(stop > new.start for label, stop in reach.items() if label != new.label):
            return True
        reach[new.label] = max(new.stop, reach.get(new.label, new.stop))
    return False


def _check_found(events: Sequence[str], sidecars: Mapping[str, Sidecars]) -> None:
    """Refuse an event that is nowhere: it is a slip of the pen."""
    tables = [beside.events for beside in sidecars.values() if beside.events is not None]
    there = {event.name for found in tables for event in found}
    absent = [name for name in events if name not in there]
    if tables and absent:
        raise InputError(f"no events.tsv has {', '.join(map(repr, absent))} as trial_type or value; check the names")


def _tasks(labels: Mapping[str, Mapping[str, tuple[Interval, ...]]], events: Sequence[str]) -> dict[str, Task]:
    names = sorted({name for found in labels.values() for name in found})
    tasks = {}
    for name in names:
        task = describe(interval for found in labels.values() for interval in found.get(name, ()))
        assert task is not None
        # Events are classes in the order in which the user lists them.
        tasks[name] = task if name != "events" else replace(task, names=tuple(n for n in events if n in task.names))
    return tasks
