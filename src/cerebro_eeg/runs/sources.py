"""Sources: the windows of stores that a run trains, validates or tests on, checked against each other and the model."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cerebro_eeg.config import ModelConfig, SignalConfig, Source
from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.schema import from_dict

VALIDATION = ("val", "validation")
"""What the split to select on may be called."""
PRETRAIN = "pretrain"
"""The task of a store that says what to pre-train on."""


def open_stores(folders: Sequence[Path]) -> list[Store]:
    """The stores, each once."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("a store is given twice; give each once, with --weights for its share")
    return [Store(folder) for folder in folders]


def splits_of(store: Store, task: str) -> list[str]:
    """The splits of a task, sorted."""
    found = {i.split for record in store.recordings for i in record.labels.get(task, ()) if i.split is not None}
    return sorted(found)


def validation_split(store: Store, task: str) -> str | None:
    """What a task's validation split is called; None where it has none."""
    return next((name for name in VALIDATION if name in splits_of(store, task)), None)


def pretrain_windows(
    store: Store, seconds: float, stride: float | None, without: Sequence[str] = ()
) -> tuple[Windows, Windows | None]:
    """What to pre-train on, and what to validate with: the splits of the store's own pretrain task, or all of it.

    ``without`` lists "task:split", or "STORE:task:split" of another store; every subject of those splits is left out,
    and every recording without a subject.
    """
    has_task = any(PRETRAIN in record.labels for record in store.recordings)
    if has_task:
        name = validation_split(store, PRETRAIN)
        train = find_windows(store, seconds=seconds, stride=stride, task=PRETRAIN, split="train")
        validation = None if name is None else find_windows(store, seconds=seconds, task=PRETRAIN, split=name)
    else:
        train, validation = find_windows(store, seconds=seconds, stride=stride), None
    banned = _subjects(store, without)
    if banned:
        numbers = [n for n, name in enumerate(train.facts.subjects) if name in banned]
        train = train.take(~np.isin(train.subject, [-1, *numbers]))
    if validation is not None:
        assert_disjoint({"train": train, "validation": validation})
    return train, validation


def _subjects(store: Store, without: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for text in without:
        *other, task, split = text.rsplit(":", 2) if ":" in text else ("", "")
        if not task or not split:
            raise ConfigError(f"without is {text!r}; expected task:split, such as eyes:test, or STORE:task:split")
        place = Store(Path(other[0])) if other else store
        if place.info.key_check != store.info.key_check:
            raise InputError(
                "the two stores were made with different keys, so the same subject has another id in each; prepare "
                "both with one key (--key FILE)"
            )
        records = [r for r in place.recordings if any(i.split == split for i in r.labels.get(task, ()))]
        if not records:
            raise InputError(f"no recording of the store has task {task!r} with split {split!r}; see info STORE")
        if any(record.subject is None for record in records):
            raise InputError(
                f"recordings of {text} have no subject, so it cannot be left out; give subjects to prepare"
            )
        found |= {record.subject for record in records if record.subject is not None}
    return found


def signal_of(store: Store) -> SignalConfig:
    """What the signal of a store is, as it was prepared."""
    return from_dict(SignalConfig, store.info.settings["signal"])


def check_signal(stores: Sequence[Store], config: ModelConfig, rate: str = "error") -> list[str]:
    """Refuse another rate than the model's unless ``rate`` is as_is; other differences come back in words."""
    notes = []
    for store in stores:
        signal = signal_of(store)
        if signal.sfreq != config.signal.sfreq and rate != "as_is":
            raise InputError(
                f"the store of {store.info.dataset} has {signal.sfreq:g} Hz and the model expects "
                f"{config.signal.sfreq:g}; prepare it so, or say --rate as_is to feed the samples as they are"
            )
        for field in dataclasses.fields(SignalConfig):
            old, new = getattr(config.signal, field.name), getattr(signal, field.name)
            if old != new:
                notes.append(f"{store.info.dataset}: {field.name} is {new} and the weights were trained with {old}")
    return notes


def describe_source(store: Store, windows: Windows, hash: str) -> Source:
    """What a checkpoint says of data that it was trained on."""
    hours = len(windows) * windows.samples / max(windows.sfreq, 1) / 3600
    return Source(store.info.dataset, len(windows), round(hours, 4), hash)
