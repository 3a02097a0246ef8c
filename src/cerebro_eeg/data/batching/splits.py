"""Splits: no subject (or recording, or trial) on two sides, and no test subject among the pre-training data.

Messages give counts and the store's ids of recordings or subjects, never a path.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError

UNITS = ("subject", "recording", "trial", "none")
_SHOWN = 5


@dataclass(frozen=True)
class Overlap:
    """The ids that a test set shares with a pre-training set, sorted."""

    subjects: tuple[str, ...]
    recordings: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.subjects or self.recordings)


def assert_disjoint(by_split: Mapping[str, Windows], unit: str | None = None) -> str:
    """Refuse splits that share a unit; return the unit, for the report.

    None is the unit that the recipe declared for the task, the strictest of several. The units are "subject",
    "recording", "trial" (no interval, and no two samples, in two splits; one sample may be both the last of an interval
    and the nearest to the start of the next), and "none" (no window in two splits).
    """
    if unit is None:
        declared = {_declared(windows) for windows in by_split.values()}
        unit = min(declared, key=lambda name: UNITS.index(name) if name in UNITS else -1, default="subject")
    if unit not in UNITS:
        raise ConfigError(f"unit is {unit!r}; expected one of {', '.join(UNITS)}")
    for (one, a), (other, b) in combinations(by_split.items(), 2):
        _same_keys(a, b)
        shared = _shared_samples(a, b) if unit == "trial" else set()
        shared |= _units(a, unit) & _units(b, unit)
        if shared:
            what = {"subject": "subjects", "recording": "recordings", "trial": "trials", "none": "windows"}[unit]
            raise InputError(
                f"splits {one!r} and {other!r} share {len(shared)} {what} ({_listed(shared)}); the split unit is "
                f"{unit!r}: no {unit if unit != 'none' else 'window'} may be in two splits; mend the split"
            )
    return unit


def check_overlap(pretrain: Store | Windows, test: Store | Windows) -> Overlap:
    """Find subjects and recordings of a test set, a whole store or windows, that are in a pre-training set.

    The result is false where there are none. Two stores with ids made by different keys are refused. Recordings without
    a subject are refused, too, unless an overlap shows already, because it could not be ruled out.
    """
    _same_keys(pretrain, test)
    (*who, unknown), (*others, further) = _who(pretrain), _who(test)
    subjects, recordings = (a & b for a, b in zip(who, others, strict=True))
    if unknown | further and not subjects | recordings:
        raise InputError(
            f"{len(unknown | further)} recordings have no subject ({_listed(unknown | further)}), so whether the two "
            "sets share one cannot be told; give subjects when preparing"
        )
    return Overlap(tuple(sorted(subjects)), tuple(sorted(recordings)))


def folds(windows: Windows, n: int, seed: int) -> NDArray[np.int64]:
    """Return the fold (0 to n - 1) of each window: a subject lies in one fold, by id and seed; folds are equal."""
    subjects = _units(windows, "subject")
    if not 2 <= n <= len(subjects):
        raise ConfigError(f"{n} folds of {len(subjects)} subjects; expected at least 2 folds, with a subject each")
    place = {name: number for number, name in enumerate(windows.facts.subjects)}
    ordered = sorted(subjects, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).digest())
    fold = np.zeros(len(place), np.int64)
    for number, name in enumerate(ordered):
        fold[place[name]] = number % n
    return fold[windows.subject]


def _declared(windows: Windows) -> str:
    settings = windows.info.settings
    task = settings.get("tasks", {}).get(windows.task, {})
    return str(task.get("split_unit") or settings.get("split_unit", "subject"))


def _units(windows: Windows, unit: str) -> set[str]:
    """Return the unit of each window, by names that hold in every store with the same key."""
    if unit == "none":
        return {f"{id}:{start}" for id, start in windows.ids(np.arange(len(windows)))}
    if unit == "trial":
        pairs = np.unique(np.stack([windows.recording, windows.trial]), axis=1).T.tolist()
        return {f"{windows.facts.ids[recording]}:{trial}" for recording, trial in pairs if trial >= 0}
    used = np.unique(windows.recording)
    if unit == "recording":
        return {windows.facts.ids[number] for number in used.tolist()}
    unknown = used[windows.facts.subject[used] < 0]
    if len(unknown):
        raise InputError(
            f"{len(unknown)} recordings have no subject ({_listed({windows.facts.ids[n] for n in unknown.tolist()})}), "
            "so splits by subject cannot be made or checked; give subjects when preparing"
        )
    return {windows.facts.subjects[number] for number in np.unique(windows.facts.subject[used]).tolist()}


def _shared_samples(a: Windows, b: Windows) -> set[str]:
    """Count the windows of ``a`` that share two samples or more with one of ``b``."""
    numbers = {id: number for number, id in enumerate(b.facts.ids)}
    shared = set()
    for number in np.unique(a.recording).tolist():
        id = a.facts.ids[number]
        starts = np.sort(b.start[b.recording == numbers.get(id, -1)])
        mine = a.start[a.recording == number]
        # The first of b that ends at least two samples behind the start of mine: does it begin two before its end?
        following = np.append(starts, np.iinfo(np.int64).max - 2)[np.searchsorted(starts + b.samples, mine + 2)]
        shared |= {f"{id}:{start}" for start in mine[following + 2 <= mine + a.samples].tolist()}
    return shared


def _who(data: Store | Windows) -> tuple[set[str], set[str], set[str]]:
    """Return ids of subjects, of recordings, and of those recordings whose subject is unknown."""
    if isinstance(data, Windows):
        facts = data.facts
        places = [(facts.subject[n], facts.ids[n]) for n in np.unique(data.recording).tolist()]
        records = [(None if place < 0 else facts.subjects[place], id) for place, id in places]
    else:
        records = [(record.subject, record.id) for record in data.recordings]
    subjects = {subject for subject, _ in records if subject is not None}
    return subjects, {id for _, id in records}, {id for subject, id in records if subject is None}


def _same_keys(a: Store | Windows, b: Store | Windows) -> None:
    if a.info.key_check != b.info.key_check:
        raise InputError(
            "the two stores were made with different keys, so the same subject has another id in each and an overlap "
            "could not be seen; prepare both with one key (--key FILE)"
        )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
