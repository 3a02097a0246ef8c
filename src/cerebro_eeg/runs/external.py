"""External data: windows of another store than the one that a run was trained on, as the run's heads can answer them.

``evaluate`` scores them. Here it is decided which windows these are, what their classes mean to the run, and whether
the run had learned from their subjects. Every difference between the two data sets is a line, which is printed before
anything is scored and kept with the score.
"""

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model.checkpoint import Header
from cerebro_eeg.model.readouts import common_channels
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.external_record import FOLDER, TrainingData, native_rates
from cerebro_eeg.runs.provenance import LearnedOverlap, overlap_with
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.runs.windows import (
    Electrodes,
    LabelledTask,
    electrodes_of,
    labelled_windows,
    needs_encoder,
    plain_electrodes,
    read_task,
    signal_of,
    splits_of,
)

Say = Callable[[str], None]
ALL = "all"
"""The split that is all labelled windows."""
NEW = "new"
"""Stands behind the name of a split of which subjects were left out, because the run had learned from them."""
_LOUD = 5.0
"""Amplitudes that differ by this factor are mentioned."""
_NAMED = 6  # names in a line; more are counted


# What is asked of the external store


@dataclass(frozen=True)
class ExternalChoices:
    """The options of ``evaluate`` for external data."""

    task: str | None = None
    """None is the task of the run."""
    split: str | None = None
    """None is all labelled windows of subjects that the run is not known to have learned from."""
    classes: tuple[str, ...] = ()
    """THEIRS=OURS: what a class or target of the store is called in the run; THEIRS= leaves its windows out."""
    new_subjects: bool = False
    """Leave out all subjects whose ids the run learned from."""


@dataclass(frozen=True, eq=False)
class ExternalData:
    """The windows of an external store that are scored, with the run's names of classes or targets."""

    store: Store
    sha256: str
    task: LabelledTask
    """The task of the store, cut and named as in the run."""
    split: str
    """The name of the split, or "all"; with "-new" behind it if subjects were left out."""
    windows: Windows
    classes: Mapping[str, str]
    """What each class of the store is called in the run; empty for one whose windows are left out."""
    differences: tuple[str, ...]
    overlap: LearnedOverlap
    unreadable: int
    """Recordings that lack channels of the run's heads, and are left out."""
    untrained: Untrained

    @property
    def dataset(self) -> str:
        return self.store.info.dataset

    def place(self, run: Path) -> Path:
        """Return the folder of the run for this store, task and split."""
        return run / FOLDER / "-".join([self.sha256[:8], *map(_plain, (self.task.task, self.split))])

    def about(self) -> dict[str, Any]:
        """Return what is scored as JSON values."""
        return {
            "dataset": self.dataset,
            "sha256": self.sha256,
            "task": self.task.task,
            "split": self.split,
            "classes": dict(self.classes),
            "untrained": self.untrained,
            "windows": len(self.windows),
            "recordings": len(np.unique(self.windows.recording)),
            "unreadable": self.unreadable,
            "differences": list(self.differences),
            "overlap": self.overlap.to_dict(),
        }


def is_external(store: Store, hash: str, settings: Mapping[str, Any], choices: ExternalChoices) -> bool:
    """Return whether a store and task are others than those that the run was trained on.

    Raises an error where they are the run's own, and the options are for others.
    """
    own_task = settings["task"]["task"]
    if hash != settings["store"]["sha256"] or choices.task not in (None, own_task):
        return True
    if choices.split not in (None, "test", "validation"):
        raise ConfigError(
            f"split is {choices.split!r}, and this is the store that the run was trained on; expected test or "
            "validation"
        )
    if choices.classes or choices.new_subjects:
        raise ConfigError(
            "this is the store and the task that the run was trained on; --classes and --new-subjects are for others"
        )
    return False


def find_external(
    store: Store,
    hash: str,
    settings: Mapping[str, Any],
    trained: TrainingData | None,
    headers: Sequence[Header],
    choices: ExternalChoices,
    untrained: Untrained,
    say: Say,
) -> ExternalData:
    """Return the windows that a run's heads are scored on, and print how their data differ from the run's.

    Raises an error where they cannot be scored: another kind of task or rate, no common class, missing electrodes.
    """
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        say(f"note: {line}")

    task = _task_in(store, settings, choices)
    kind = "classes" if task.kind == "classification" else "targets"
    split = _split_in(store, task.task, choices.split)
    found = labelled_windows(store, task, None if split == ALL else [split])
    where = f"{store.info.dataset}, task {task.task}, " + ("all splits" if split == ALL else f"split {split}")
    if not len(found):
        raise InputError(
            f"no labelled window of {task.seconds:g} s, the length of the run's windows, is in {where}; its intervals "
            "may be shorter (see info STORE)"
        )
    _check_rate(found, settings, trained, headers[0])
    ours = tuple(settings["task"]["names"])
    classes = _mapping(task.names, ours, choices.classes, kind)
    windows = _renamed(found, ours, classes, where)
    for line in (*_name_lines(task.names, windows, ours, classes, kind), *_cut_lines(store, task, settings)):
        tell(line)
    overlap, out = overlap_with(
        None if trained is None else trained.learned,
        store,
        hash,
        windows,
        split=choices.split,
        new_subjects=choices.new_subjects,
    )
    if out:
        windows = windows.take(~np.isin(windows.recording, sorted(out)))
        if not len(windows):
            raise InputError(
                f"the run learned from every subject of {where}, so there is no external subject to score; say --split "
                "all or name a split to score them all the same"
            )
    for line in _data_lines(store, windows, trained, headers):
        tell(line)
    say(overlap.text() if overlap.scored else f"note: {overlap.text()}")
    windows, unreadable, lacking = _readable(windows, headers, untrained)
    if lacking is not None:
        tell(lacking)
    label = f"{split}-{NEW}" if out else split
    return ExternalData(
        store,
        hash,
        dataclasses.replace(task, names=windows.names),
        label,
        windows,
        classes,
        tuple(lines),
        overlap,
        unreadable,
        untrained,
    )


def head_electrodes(header: Header, windows: Windows, untrained: Untrained) -> Electrodes | None:
    """Return how the channels of windows are read for a head; a head that reads no encoder takes any electrode."""
    if not needs_encoder(header):
        return None
    return electrodes_of([windows], header.training.electrode_windows, untrained)


def _plain(name: str) -> str:
    """Return a name that can be a part of a file name; a hash tells names apart that become alike."""
    text = re.sub(r"[^A-Za-z0-9._+-]", "_", name)[:40]
    return text if text == name else f"{text}~{hashlib.sha256(name.encode()).hexdigest()[:6]}"


# Task, split and rate


def _task_in(store: Store, settings: Mapping[str, Any], choices: ExternalChoices) -> LabelledTask:
    """Return the task of the store, with windows as the run has them."""
    own, asked = settings["task"], settings["task"]["task"] if choices.task is None else choices.task
    known = store.info.settings.get("tasks", {})
    if asked not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(f"the store has no task {asked!r}; its tasks are: {listed}; name one with --task")
    chosen = settings["choices"].get("labels")
    task = read_task(store, asked, own["seconds"], own["stride"], chosen)
    if task.kind != own["kind"]:
        raise InputError(
            f"task {asked!r} of {store.info.dataset} is a {task.kind} and the run learned a {own['kind']}; "
            "give a task of the same kind with --task"
        )
    return task


def _split_in(store: Store, task: str, split: str | None) -> str:
    """Return the split to score, or "all"."""
    known = splits_of(store, task)
    if split is None:
        return ALL
    if split not in known:
        if split == ALL:
            return ALL
        also = str({"validation": "val", "val": "validation"}.get(split))
        if also in known:
            return also
        listed = ", ".join([*known, ALL])
        raise InputError(f"task {task!r} of {store.info.dataset} has no split {split!r}; expected one of {listed}")
    return split


def _check_rate(windows: Windows, settings: Mapping[str, Any], trained: TrainingData | None, header: Header) -> None:
    """Raise an error for another sampling rate than the run's windows had."""
    wanted = header.model.signal.sfreq
    if settings["choices"]["rate"] == "as_is" and trained is not None:
        wanted = float(trained.signal["sfreq"])
    elif settings["choices"]["rate"] == "as_is":
        return
    if windows.sfreq != wanted:
        raise InputError(
            f"the store of {windows.info.dataset} has {windows.sfreq:g} Hz and the run was trained at {wanted:g}; "
            f"prepare it at {wanted:g} Hz, as prepare does by itself"
        )


# Classes and targets


def _mapping(theirs: Sequence[str], ours: Sequence[str], given: Sequence[str], kind: str) -> dict[str, str]:
    """Return what each class or target of the store is called in the run; empty for one that is left out.

    Those that have no name in the run are missing.
    """
    found = {name: name for name in theirs if name in ours}
    named: set[str] = set()
    for text in given:
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise ConfigError(
                f"--classes takes THEIRS=OURS, such as awake=open, or THEIRS= to leave windows out; got {text!r}"
            )
        if old not in theirs:
            raise ConfigError(f"--classes {text}: the store has no {old!r}; its {kind} are {', '.join(theirs)}")
        if new and new not in ours:
            raise ConfigError(f"--classes {text}: the run has no {new!r}; its {kind} are {', '.join(ours)}")
        if old in named:
            raise ConfigError(f"--classes names {old!r} twice; name each once")
        named.add(old)
        found[old] = new
    if kind == "targets":
        used = [new for new in found.values() if new]
        if len(set(used)) < len(used):
            raise ConfigError("--classes gives one target of the run to several of the store; expected one for each")
    return found


def _renamed(windows: Windows, ours: tuple[str, ...], classes: Mapping[str, str], where: str) -> Windows:
    """Return the windows with labels or targets of the run; an error for windows that have no class of it."""
    theirs = windows.names
    if windows.target is not None:
        taken = {classes[name]: place for place, name in enumerate(theirs) if classes.get(name)}
        names = tuple(name for name in ours if name in taken)
        if not names:
            raise InputError(_nothing_common(theirs, ours, where, "target"))
        return dataclasses.replace(windows, names=names, target=windows.target[:, [taken[name] for name in names]])
    place = np.array([ours.index(new) if (new := classes.get(name)) else -1 for name in theirs], np.int64)
    count = np.bincount(windows.label, minlength=len(theirs))
    if not count[place >= 0].sum():
        raise InputError(_nothing_common(theirs, ours, where, "class"))
    unknown = [name for name, n in zip(theirs, count.tolist(), strict=True) if n and name not in classes]
    if unknown:
        near = [(name, _near(name, ours)) for name in unknown]
        example = " ".join(f"{name}={new}" for name, new in near)
        windows_of = sum(int(count[theirs.index(name)]) for name in unknown)
        raise InputError(
            f"{counted(windows_of, 'window')} of {where} are of classes that the run does not know "
            f"({_listed(unknown)}); it knows {', '.join(ours)}; say what they are with --classes {example}, or "
            f"{unknown[0]}= to leave them out"
        )
    label = place[windows.label]
    return dataclasses.replace(windows, names=ours, label=label).take(label >= 0)


def _nothing_common(theirs: Sequence[str], ours: Sequence[str], where: str, kind: str) -> str:
    example = " ".join(f"{name}={_near(name, ours)}" for name in theirs[:2])
    return (
        f"{where} has no {kind} of the run: it has {', '.join(theirs)} and the run has {', '.join(ours)}; say which is "
        f"which with --classes {example}"
    )


def _near(name: str, ours: Sequence[str]) -> str:
    """Return the run's name that is most like a name of the store; dots where none is, because a guess may be wrong."""
    folded = {one.casefold(): one for one in ours}
    found = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[found[0]] if found else "..."


def _name_lines(
    theirs: Sequence[str], windows: Windows, ours: Sequence[str], classes: Mapping[str, str], kind: str
) -> list[str]:
    """Say how the classes or targets of the store differ from those of the run."""
    found = []
    if renamed := [f"{old} as {new}" for old, new in classes.items() if new and new != old]:
        found.append(f"{kind}: {', '.join(renamed)}")
    if dropped := [old for old, new in classes.items() if not new]:
        found.append(f"{kind}: windows of {_listed(dropped)} are left out" if kind == "classes" else "")
    if kind == "classes":
        has = np.bincount(windows.label, minlength=len(ours)) > 0
        if absent := [name for name, known in zip(ours, has.tolist(), strict=True) if not known]:
            found.append(f"classes: no window is of {_listed(absent)}; scores that need it are n/a or leave it out")
    else:
        if absent := [name for name in ours if name not in windows.names]:
            found.append(f"targets: the store has no {_listed(absent)}, so the run's answers for it are not scored")
        if more := [name for name in theirs if not classes.get(name)]:
            found.append(f"targets: the run does not answer {_listed(more)}")
        found.append("targets: values are in the run's units, without any new scaling")
    order = [classes[name] for name in theirs if classes.get(name)]
    if order != sorted(order, key=list(ours).index):
        last = f", and {ours[-1]} stays the positive one" if kind == "classes" and len(ours) == 2 else ""
        found.append(f"{kind}: the store has another order; they were matched by name{last}")
    return [line for line in found if line]


# Recordings: windows, preparation, channels


def _cut_lines(store: Store, task: LabelledTask, settings: Mapping[str, Any]) -> list[str]:
    """Say how windows would be cut if the store had its own way."""
    declared, own = store.info.settings["tasks"][task.task], settings["task"]
    found = []
    if declared["seconds"] != task.seconds:
        found.append(f"windows: {task.seconds:g} s as in the run; the task of the store has {declared['seconds']:g} s")
    if task.labels != own["labels"]:
        found.append(
            f"labels: a window is labelled by {task.labels!r}, as the store says; in the run by {own['labels']!r}"
        )
    return found


def _data_lines(store: Store, windows: Windows, trained: TrainingData | None, headers: Sequence[Header]) -> list[str]:
    """Say how recordings differ from those of the run: preparation, rates, amplitudes, channels."""
    signal, used = asdict(signal_of(store)), np.unique(windows.recording)
    before = asdict(headers[0].model.signal) if trained is None else trained.signal
    found = [
        f"preparation: {name.replace('_', ' ')} is {value:g} here and {before[name]:g} in training"
        if isinstance(value, float) and isinstance(before.get(name), (int, float))
        else f"preparation: {name.replace('_', ' ')} is {value} here and {before.get(name)} in training"
        for name, value in signal.items()
        if value != before.get(name)
    ]
    facts = windows.facts
    montages = [facts.montages[n] for n in np.unique(facts.montage[used]).tolist()]
    here: set[str] = set().union(*montages)
    if trained is not None:
        native = native_rates(store, used)
        if native != trained.native:
            rates = [", ".join(f"{rate:g}" for rate in of[:_NAMED]) for of in (native, trained.native)]
            low = min(signal["lowpass"], 0.45 * native[0])
            cut = (
                f", so some signals end at {low:.3g} Hz"
                if low < min(before["lowpass"], 0.45 * trained.native[0])
                else ""
            )
            found.append(f"rates: recorded at {rates[0]} Hz here and at {rates[1]} Hz in training{cut}")
        scale = float(np.median(facts.scale[used]))
        ratio = scale / max(trained.scale, 1e-9)
        if ratio > _LOUD or ratio < 1 / _LOUD:
            found.append(
                f"amplitudes: typically {scale:.3g} uV here and {trained.scale:.3g} uV in training; is the unit right?"
            )
        channels = set(trained.channels)
        everywhere = set(montages[0]).intersection(*montages)
        if some := sorted((channels & here) - everywhere):
            found.append(f"channels: {len(some)} of those of training are not in every recording: {_listed(some)}")
        if lost := sorted(channels - here):
            found.append(f"channels: {len(lost)} of the {len(channels)} of training are missing: {_listed(lost)}")
        if more := sorted(here - channels):
            found.append(f"channels: {len(more)} that no training recording had: {_listed(more)}")
    if len(montages) > 1:
        found.append(f"channels: {len(montages)} montages, of {min(map(len, montages))} to {max(map(len, montages))}")
    return found


def _readable(windows: Windows, headers: Sequence[Header], untrained: Untrained) -> tuple[Windows, int, str | None]:
    """Return the windows of recordings that have all channels that the heads read, and a line on the others."""
    facts, used = windows.facts, np.unique(windows.recording)
    lacking: dict[int, set[str]] = {}
    ways = [head_electrodes(header, windows, untrained) for header in headers]
    for number in np.unique(facts.montage[used]).tolist():
        for header, way in zip(headers, ways, strict=True):
            wanted = () if header.head is None else header.head.readout.channels
            given = set(common_channels([facts.montages[number]], way or plain_electrodes))
            if missing := set(wanted) - given:
                lacking.setdefault(number, set()).update(missing)
    without = used[np.isin(facts.montage[used], sorted(lacking))]
    if not len(without):
        return windows, 0, None
    heads = max(len(header.head.readout.channels) for header in headers if header.head is not None)
    names = sorted(set().union(*lacking.values()))
    if len(without) == len(used):
        raise InputError(
            f"the head reads {heads} channels, and no recording of {windows.info.dataset} has all of them; missing: "
            f"{_listed(names)}; a head of finetune --readout mean or moments takes any montage"
        )
    line = (
        f"channels: {len(without)} of {counted(len(used), 'recording')} are left out, because they lack channels that "
        f"the head reads: {_listed(names)} of its {heads}"
    )
    return windows.take(~np.isin(windows.recording, without)), len(without), line


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
