"""``moabb``: a dataset of MOABB, by the name of its class, from the folder where MOABB keeps its downloads.

MOABB reads the files and finds the trials. Its runs become recordings, and its trials labelled intervals: from the
event plus the start of the dataset's interval to the event plus its end, as MOABB annotates them.

MOABB downloads files that it does not find. So it runs without network here: any connection is refused, and the user is
told to download first. Trials can lie in a channel of the samples, so finding recordings means loading them.
"""

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cerebro_eeg.data.datasets.folder_table import check_unit
from cerebro_eeg.data.reading.mne_reader import from_raw
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import ConfigError, InputError, RecordingError, import_trouble
from cerebro_eeg.schema import did_you_mean

_FOLDERS = re.compile(r"MNE_DATASETS_.*_PATH")


def moabb(
    folder: Path,
    *,
    task: str | None = None,
    subject: str | None = None,
    split: str | None = None,
    events: tuple[str, ...] = (),
) -> Recipe:
    """Make the recipe of one dataset.

    Parameters
    ----------
    folder : where MOABB keeps its data, MNE_DATA.
    task : the class of the dataset, such as BNCI2014_001; the store's task has this name, too.
    subject : numbers of the subjects to take, with commas; None takes all.
    split : "subject": 60, 20 and 20 of 100 subjects train, validate and test, in an order by hash; "session": the last
        session of each subject tests, the others train; None makes no splits.
    events : the classes to take, in this order; without any, all of the dataset.
    """
    check_unit(split, ("subject", "session"))
    if not folder.is_dir():
        raise InputError("the source is not a folder; give the one where MOABB keeps its data (MNE_DATA)")
    dataset = _make(task)
    classes = _classes(dataset, events)
    everyone = [str(number) for number in dataset.subject_list]
    chosen = _chosen(everyone, subject)
    splits = _split_subjects(everyone) if split == "subject" else {}
    seconds = float(dataset.interval[1]) - float(dataset.interval[0])
    return Recipe(
        "moabb",
        f"{task} of MOABB; {len(chosen)} of {len(everyone)} subjects",
        functools.partial(_find, folder, str(task), chosen, classes, splits, split == "session"),
        split_unit="recording" if split == "session" else "subject",
        tasks={str(task): Task("classification", classes, seconds, seconds)},
        own_ids=True,  # public data sets, with numbers for subjects
        one_corpus=False,
        positive_by="the order of --events",
    )


def _find(
    folder: Path,
    task: str,
    subjects: tuple[str, ...],
    classes: tuple[str, ...],
    splits: Mapping[str, str],
    by_session: bool,
) -> Iterator[Item]:
    for subject in subjects:
        code, sessions, _ = _load(folder, task, subject)
        ordered = sorted(sessions, key=_number)
        if by_session and len(ordered) < 2:
            raise InputError(f"split='session', and subject {subject} has {len(ordered)} session; expected 2 or more")
        for session in ordered:
            split = splits.get(subject)
            if by_session:
                split = "test" if session == ordered[-1] else "train"
            for run in sorted(sessions[session], key=_number):
                raw = sessions[session][run]
                yield Item(
                    f"{code}_{subject}_{session}_{run}",
                    functools.partial(_open, folder, task, subject, session, run),
                    f"{code}_{subject}",
                    {task: _trials(raw, classes, split)},
                    classes,
                    raw.info["line_freq"],
                    8 * len(raw.ch_names) * len(raw.times),  # in memory: MOABB does not say which file a run is from
                )


def _open(folder: Path, task: str, subject: str, session: str, run: str, policy: ChannelPolicy) -> Recording:
    _, sessions, scale = _load(folder, task, subject)
    raw = sessions[session][run]
    return from_raw(raw, policy, scales=[scale] * len(raw.ch_names))


def _trials(raw: Any, classes: tuple[str, ...], split: str | None) -> tuple[Interval, ...]:
    notes = raw.annotations
    found = []
    for onset, duration, name in zip(notes.onset, notes.duration, notes.description, strict=True):
        start = float(onset) - float(raw.first_time)
        if str(name) in classes:
            found.append(Interval(start, start + float(duration), split, str(name)))
    return tuple(found)


@functools.lru_cache(maxsize=1)  # the runs of a subject come one after the other, and MOABB loads all of them at once
def _load(folder: Path, task: str, subject: str) -> tuple[str, dict[str, dict[str, Any]], float]:
    """Return the code of the dataset, the runs by session of one subject, and the factor to microvolts."""
    dataset = _make(task)
    number = next(number for number in dataset.subject_list if str(number) == subject)
    with _shut(folder) as tried:
        try:
            with quietly(), _imports():  # some loaders import their reader only now
                data = dataset.get_data([number])[number]
        except RecordingError as error:
            if tried:
                raise InputError(
                    f"the files of subject {subject} of {task} are not all there, and nothing is downloaded here; "
                    f"download them with moabb.datasets.{task}().download() and MNE_DATA set to this folder"
                ) from None
            raise InputError(f"MOABB cannot load subject {subject} of {task}: {error}") from None
    return str(dataset.code), data, float(getattr(dataset, "unit_factor", 1e6))


@contextlib.contextmanager
def _shut(folder: Path) -> Iterator[list[bool]]:
    """Restrict MOABB to this folder and no network; the yielded list tells whether it tried to connect."""
    from unittest.mock import patch  # it loads asyncio

    import mne

    tried: list[bool] = []

    def refuse(*_: object, **__: object) -> None:
        tried.append(True)
        raise OSError("no network here")

    kept = dict(os.environ)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # its logs name paths
    for name in {*mne.get_config(), *os.environ}:  # a folder of its own for a dataset would win over MNE_DATA
        if _FOLDERS.fullmatch(name):
            os.environ[name] = str(folder)
    os.environ["MNE_DATA"] = str(folder)
    try:
        with patch.object(socket.socket, "connect", refuse), patch.object(socket, "getaddrinfo", refuse):
            yield tried
    finally:
        os.environ.clear()
        os.environ.update(kept)
        logging.disable(level)


def _make(task: str | None) -> Any:
    """Make the dataset of MOABB with this name."""
    with _imports():
        importlib.import_module("moabb")
        module = importlib.import_module("moabb.datasets")
    # Classes alone: the loader of a module has a method get_data, too.
    found = {name: getattr(module, name) for name in dir(module)}
    names = [name for name, thing in found.items() if isinstance(thing, type) and hasattr(thing, "get_data")]
    if task not in names:
        asked = "no dataset was named" if task is None else f"MOABB has no dataset {task!r}{did_you_mean(task, names)}"
        raise ConfigError(f"{asked}; give task, the name of a class of moabb.datasets, such as BNCI2014_001")
    try:
        with quietly("make"), _imports():
            return getattr(module, task)()
    except RecordingError as error:
        raise ConfigError(f"MOABB cannot make {task}: {error}") from None


@contextlib.contextmanager
def _imports() -> Iterator[None]:
    """Turn a failed import into one line that says whether MOABB itself is missing, or what fails inside it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(import_trouble(error, "moabb", "'cerebro-eeg[moabb]'")) from None


def _classes(dataset: Any, events: tuple[str, ...]) -> tuple[str, ...]:
    known = [str(name) for name in dataset.event_id]
    for name in events:
        if name not in known:
            raise ConfigError(
                f"the dataset has no event {name!r}{did_you_mean(name, known)}; its events are {', '.join(known)}"
            )
    if len(set(events)) < len(events):
        raise ConfigError("an event is named twice; name each once")
    return events or tuple(known)


def _chosen(everyone: list[str], wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(everyone)
    names = [name.strip() for name in wanted.split(",")]
    absent = [name for name in names if name not in everyone]
    if absent or len(set(names)) < len(names):
        raise ConfigError(
            f"subject={wanted!r}: expected numbers with commas, each once, of the {len(everyone)} subjects "
            f"{everyone[0]} to {everyone[-1]}"
        )
    return tuple(name for name in everyone if name in names)


def _split_subjects(everyone: list[str]) -> dict[str, str]:
    """Split by rank, so that small datasets have all three splits; MOABB's lists do not grow, so no subject moves."""
    fifth = max(1, round(len(everyone) / 5))
    if len(everyone) < 3:
        raise ConfigError(f"split='subject', and the dataset has {len(everyone)} subjects; expected 3 or more")
    ordered = sorted(everyone, key=lambda name: hashlib.sha256(name.encode()).digest())
    names = ["test"] * fifth + ["val"] * fifth + ["train"] * (len(everyone) - 2 * fifth)
    return dict(zip(ordered, names, strict=True))


def _number(name: str) -> tuple[int, str]:
    """Return the number in the name of a session or run, "0train", "1test"."""
    digits = re.match(r"\d+", name)
    return (int(digits[0]) if digits else -1), name
