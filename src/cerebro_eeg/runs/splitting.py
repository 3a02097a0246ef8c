"""Splitting: what a run trains, selects and tests on: the task's own splits, its own folds, or folds by subject."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.batching.splits import assert_disjoint, folds
from cerebro_eeg.data.batching.window_labels import LabelRule
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.runs.sources import splits_of, validation_split


@dataclass(frozen=True)
class Split:
    """One division of a task's windows."""

    name: str
    """"" for the task's own splits, "fold-1" and so on for folds."""
    unit: str
    """What no two parts share."""
    train: Windows
    validation: Windows | None
    test: Windows | None


@dataclass(frozen=True)
class Cut:
    """How windows are cut from a task."""

    task: str
    kind: str
    """classification or regression."""
    names: tuple[str, ...]
    seconds: float
    stride: float
    labels: LabelRule


def read_cut(store: Store, task: str, seconds: float | None, stride: float | None, labels: LabelRule | None) -> Cut:
    """The task's own length, stride and way of labelling, unless others are asked for."""
    tasks = store.info.settings.get("tasks", {})
    if task not in tasks:
        known = ", ".join(sorted(tasks)) or "none"
        raise InputError(f"the store has no task {task!r}; its tasks are: {known}")
    declared = tasks[task]
    length = declared["seconds"] if seconds is None else seconds
    step = stride if stride is not None else declared["stride"] if seconds is None else length
    way = labels if labels is not None else declared.get("labels", "interval")
    return Cut(task, declared["kind"], tuple(declared["names"]), length, step, way)


def find_splits(store: Store, cut: Cut, n_folds: int | None = None, seed: int = 0) -> Iterator[Split]:
    """The task's own division; with ``n_folds``, folds: the corpus's own where it has them, else by subject."""
    classes = tuple(store.info.settings["tasks"][cut.task]["names"])
    if classes != cut.names:  # the hash of a store does not tell: their order is no part of any recording
        raise InputError(
            f"the classes of {cut.task!r} are {', '.join(classes)} here and {', '.join(cut.names)} in the run; "
            "give the store that it was trained on"
        )
    names = splits_of(store, cut.task)
    own = sorted((name for name in names if re.fullmatch(r"fold[0-9]+", name)), key=lambda name: int(name[4:]))
    if n_folds is None and own:
        raise ConfigError(f"task {cut.task!r} is divided into {len(own)} folds; say --folds {len(own)}")
    if n_folds is None:
        yield _checked("", _own(store, cut, names))
        return
    if own:
        if n_folds != len(own):
            raise ConfigError(f"{n_folds} folds were asked for, and task {cut.task!r} has {len(own)} of its own")
        parts = [_find(store, cut, [name]) for name in own]
        for k in range(n_folds):
            others = [name for number, name in enumerate(own) if number not in (k, (k + 1) % n_folds)]
            train = _find(store, cut, others)
            yield _checked(f"fold-{k + 1}", (train, parts[(k + 1) % n_folds], parts[k]))
        return
    everything = _find(store, cut, None)
    fold = folds(everything, n_folds, seed)
    if n_folds < 3:
        raise ConfigError(f"{n_folds} folds leave nothing to train on beside test and validation; take 3 or more")
    for k in range(n_folds):
        after = (k + 1) % n_folds
        chosen = [everything.take(np.isin(fold, which)) for which in (_others(n_folds, k, after), [after], [k])]
        yield _checked(f"fold-{k + 1}", (chosen[0], chosen[1], chosen[2]))


def _others(n: int, *left: int) -> list[int]:
    return [number for number in range(n) if number not in left]


def _own(store: Store, cut: Cut, names: list[str]) -> tuple[Windows, Windows | None, Windows | None]:
    if "train" not in names:
        listed = ", ".join(names) or "none"
        raise InputError(f"task {cut.task!r} has no split called train (its splits: {listed}); say --folds N")
    validation = validation_split(store, cut.task)
    return (
        _find(store, cut, ["train"]),
        None if validation is None else _find(store, cut, [validation]),
        _find(store, cut, ["test"]) if "test" in names else None,
    )


def _find(store: Store, cut: Cut, splits: list[str] | None) -> Windows:
    found = find_windows(store, seconds=cut.seconds, stride=cut.stride, task=cut.task, split=splits, labels=cut.labels)
    labelled: NDArray[np.bool_] = found.label >= 0
    if found.target is not None:
        labelled = np.isfinite(found.target).min(1)
    return found if labelled.all() else found.take(labelled)


def _checked(name: str, parts: tuple[Windows, Windows | None, Windows | None]) -> Split:
    """No unit on two sides; nothing to train on is an error."""
    named = dict(zip(("train", "validation", "test"), parts, strict=True))
    present = {key: windows for key, windows in named.items() if windows is not None}
    if not len(parts[0]):
        raise InputError("there is no window to train on: intervals may be shorter than a window; see info STORE")
    return Split(name, assert_disjoint(present), *parts)
