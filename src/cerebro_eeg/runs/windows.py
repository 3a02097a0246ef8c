"""The windows of a run: which ones it trains, validates and tests on, what they are called, and their electrodes.

Pre-training reads the windows of one or several stores. A labelled task is divided into splits, or into folds by
subject. Both read their windows step by step, count them for the record in the weights, and name them in errors.
"""

import dataclasses
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import IDS
from cerebro_eeg.channels.match import Channel, match
from cerebro_eeg.config import ModelConfig, SignalConfig, Training
from cerebro_eeg.data.batching.loader import Loader, RawStep
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.splits import assert_disjoint, folds
from cerebro_eeg.data.batching.window_labels import LabelRule
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError, ConfigError, InputError
from cerebro_eeg.files import real
from cerebro_eeg.model.checkpoint import Header
from cerebro_eeg.model.readouts import layers_of
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.linear_models import groups_of
from cerebro_eeg.runs.provenance import describe_source
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.schema import from_dict
from cerebro_eeg.scores.expected import half_width
from cerebro_eeg.scores.tables import primary, title
from cerebro_eeg.train.distributed import ProcessGroup

VALIDATION = ("val", "validation")
"""Names that the validation split of a task may have."""
PRETRAIN = "pretrain"
"""The task of a store whose splits say what to pre-train on."""


# Pre-training: windows of stores


def open_stores(folders: Sequence[Path]) -> list[Store]:
    """Open the stores; raise an error if one is given twice."""
    if len({real(folder) for folder in folders}) < len(folders):
        raise ConfigError("a store is given twice; give each once, with --weights for its share")
    return [Store(folder) for folder in folders]


def pretrain_sources(
    stores: Sequence[Store], seconds: float, stride: float | None, without: Sequence[str] = ()
) -> tuple[list[tuple[Store, Windows]], list[tuple[Store, Windows]]]:
    """Return each store with its windows to pre-train on, and each that has windows to validate with.

    ``without`` lists splits, as ``pretrain_windows`` takes them, and data sets of any of the stores.
    """
    datasets = _check_datasets(stores, without)
    splits = [text for text in without if ":" in text]
    found = [_pretrain_windows(store, seconds, stride, splits, datasets) for store in stores]
    train = [(store, windows) for store, (windows, _) in zip(stores, found, strict=True)]
    return train, [(store, v) for store, (_, v) in zip(stores, found, strict=True) if v is not None and len(v)]


def pretrain_windows(
    store: Store, seconds: float, stride: float | None, without: Sequence[str] = ()
) -> tuple[Windows, Windows | None]:
    """Return the windows to pre-train on and to validate with: splits of the store's pretrain task, or all windows.

    ``without`` lists "task:split", "STORE:task:split" of another store, or a data set of the store. Of a split every
    subject is left out, and every recording without a subject. Of a data set all recordings are left out, also from
    the validation.
    """
    datasets = _check_datasets([store], without)
    return _pretrain_windows(store, seconds, stride, [text for text in without if ":" in text], datasets)


def dataset_of(store: Store, id: str) -> str:
    """Return the dataset of a recording: its id names it in the open-EEG pack, otherwise its store does."""
    return id.partition("_")[0] if store.info.dataset == "openeeg" else store.info.dataset


def _check_datasets(stores: Sequence[Store], without: Sequence[str]) -> set[str]:
    """Return the data sets that are left out; raise an error for one that no store has, or that is all of a store."""
    asked = [text for text in without if ":" not in text]
    if not asked:
        return set()
    known = [{dataset_of(store, record.id) for record in store.recordings} for store in stores]
    names = sorted(set().union(*known))
    for text in asked:
        if text not in names:
            some = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            raise ConfigError(
                f"without is {text!r}; expected a data set ({some}), task:split such as eyes:test, or STORE:task:split"
            )
    for number, of_store in enumerate(known, 1):
        if of_store <= set(asked):
            raise ConfigError(
                f"without is {', '.join(sorted(of_store))}, which leaves nothing of store {number}; keep a data set "
                "of it, or do not give that store"
            )
    return set(asked)


def _pretrain_windows(
    store: Store, seconds: float, stride: float | None, splits: Sequence[str], datasets: set[str]
) -> tuple[Windows, Windows | None]:
    has_task = any(PRETRAIN in record.labels for record in store.recordings)
    if has_task:
        name = validation_split(store, PRETRAIN)
        train = find_windows(store, seconds=seconds, stride=stride, task=PRETRAIN, split="train")
        validation = None if name is None else find_windows(store, seconds=seconds, task=PRETRAIN, split=name)
    else:
        train, validation = find_windows(store, seconds=seconds, stride=stride), None
    if datasets:
        train = _without_datasets(store, train, datasets)
        validation = None if validation is None else _without_datasets(store, validation, datasets)
    banned = _subjects_of(store, splits)
    if banned:
        numbers = [n for n, name in enumerate(train.facts.subjects) if name in banned]
        train = train.take(~np.isin(train.subject, [-1, *numbers]))
    if validation is not None:
        assert_disjoint({"train": train, "validation": validation})
    return train, validation


def _without_datasets(store: Store, windows: Windows, datasets: set[str]) -> Windows:
    """Return the windows of recordings of all other data sets."""
    numbers = [n for n, id in enumerate(windows.facts.ids) if dataset_of(store, id) in datasets]
    return windows.take(~np.isin(windows.recording, numbers))


def _subjects_of(store: Store, without: Sequence[str]) -> set[str]:
    """Return the subjects of splits, each given as "task:split" or "STORE:task:split"."""
    found: set[str] = set()
    for text in without:
        *other, task, split = text.rsplit(":", 2)
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
    """Return how the signal of a store was prepared."""
    return from_dict(SignalConfig, store.info.settings["signal"])


def check_signal(stores: Sequence[Store], config: ModelConfig, rate: str = "error") -> list[str]:
    """Raise an error for another sampling rate than the model's, unless ``rate`` is "as_is".

    All other differences between the signals of stores and model are returned in words.
    """
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


# Labelled tasks: splits and folds


@dataclass(frozen=True)
class LabelledTask:
    """A task of a store, and how its windows are cut and labelled."""

    task: str
    kind: str
    """classification or regression."""
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    seconds: float
    stride: float
    labels: LabelRule


@dataclass(frozen=True)
class Split:
    """One division of a task's windows."""

    name: str
    """Empty for the task's own splits; "fold-1" and so on for folds."""
    unit: str
    """The unit that no two parts share: subject or recording."""
    train: Windows
    validation: Windows | None
    test: Windows | None


def read_task(
    store: Store, task: str, seconds: float | None, stride: float | None, labels: LabelRule | None
) -> LabelledTask:
    """Return a task with its own length, stride and way of labelling, unless others are given."""
    tasks = store.info.settings.get("tasks", {})
    if task not in tasks:
        known = ", ".join(sorted(tasks)) or "none"
        raise InputError(f"the store has no task {task!r}; its tasks are: {known}")
    declared = tasks[task]
    length = declared["seconds"] if seconds is None else seconds
    step = stride if stride is not None else declared["stride"] if seconds is None else length
    way = labels if labels is not None else declared.get("labels", "interval")
    return LabelledTask(task, declared["kind"], tuple(declared["names"]), length, step, way)


def splits_of(store: Store, task: str) -> list[str]:
    """Return the names of a task's splits, sorted."""
    found = {i.split for record in store.recordings for i in record.labels.get(task, ()) if i.split is not None}
    return sorted(found)


def validation_split(store: Store, task: str) -> str | None:
    """Return the name of a task's validation split, or None if it has none."""
    return next((name for name in VALIDATION if name in splits_of(store, task)), None)


def find_splits(store: Store, task: LabelledTask, n_folds: int | None = None, seed: int = 0) -> Iterator[Split]:
    """Yield the task's own division or, with ``n_folds``, the folds.

    Folds are the corpus's own if it has any, and otherwise divide its subjects. Each fold is tested once, while the
    next one validates.
    """
    classes = tuple(store.info.settings["tasks"][task.task]["names"])
    if classes != task.names:  # the hash of a store does not cover their order, which no recording depends on
        raise InputError(
            f"the classes of {task.task!r} are {', '.join(classes)} here and {', '.join(task.names)} in the run; "
            "give the store that it was trained on"
        )
    names = splits_of(store, task.task)
    own = sorted((name for name in names if re.fullmatch(r"fold[0-9]+", name)), key=lambda name: int(name[4:]))
    if n_folds is None and own:
        raise ConfigError(f"task {task.task!r} is divided into {len(own)} folds; say --folds {len(own)}")
    if n_folds is None:
        yield _checked_split("", _own_splits(store, task, names))
        return
    if own:
        if n_folds != len(own):
            raise ConfigError(f"{n_folds} folds were asked for, and task {task.task!r} has {len(own)} of its own")
        parts = [labelled_windows(store, task, [name]) for name in own]
        for k in range(n_folds):
            others = [name for number, name in enumerate(own) if number not in (k, (k + 1) % n_folds)]
            train = labelled_windows(store, task, others)
            yield _checked_split(f"fold-{k + 1}", (train, parts[(k + 1) % n_folds], parts[k]))
        return
    everything = labelled_windows(store, task, None)
    fold = folds(everything, n_folds, seed)
    if n_folds < 3:
        raise ConfigError(f"{n_folds} folds leave nothing to train on beside test and validation; take 3 or more")
    for k in range(n_folds):
        after = (k + 1) % n_folds
        rest = [number for number in range(n_folds) if number not in (k, after)]
        chosen = [everything.take(np.isin(fold, which)) for which in (rest, [after], [k])]
        yield _checked_split(f"fold-{k + 1}", (chosen[0], chosen[1], chosen[2]))


def _own_splits(store: Store, task: LabelledTask, names: list[str]) -> tuple[Windows, Windows | None, Windows | None]:
    if "train" not in names:
        listed = ", ".join(names) or "none"
        raise InputError(f"task {task.task!r} has no split called train (its splits: {listed}); say --folds N")
    validation = validation_split(store, task.task)
    return (
        labelled_windows(store, task, ["train"]),
        None if validation is None else labelled_windows(store, task, [validation]),
        labelled_windows(store, task, ["test"]) if "test" in names else None,
    )


def labelled_windows(store: Store, task: LabelledTask, splits: list[str] | None) -> Windows:
    """Return the windows of some splits, or of all, without those that have no label."""
    found = find_windows(
        store, seconds=task.seconds, stride=task.stride, task=task.task, split=splits, labels=task.labels
    )
    labelled: NDArray[np.bool_] = found.label >= 0
    if found.target is not None:
        labelled = np.isfinite(found.target).min(1)
    return found if labelled.all() else found.take(labelled)


def _checked_split(name: str, parts: tuple[Windows, Windows | None, Windows | None]) -> Split:
    """Return the parts as a split; raise an error if two share a unit, or if there is no window to train on."""
    named = dict(zip(("train", "validation", "test"), parts, strict=True))
    present = {key: windows for key, windows in named.items() if windows is not None}
    if not len(parts[0]):
        raise InputError("there is no window to train on: intervals may be shorter than a window; see info STORE")
    return Split(name, assert_disjoint(present), *parts)


def subjects_line(splits: Sequence[Split]) -> str:
    """Return a line on the number of subjects, and on what so few of them can show, before anything is trained.

    Folds are described by the first one. The interval to be expected is that of the test split or, without one, of the
    validation split.
    """
    first = splits[0]
    parts = {"train": first.train, "validation": first.validation, "test": first.test}
    present = {name: windows for name, windows in parts.items() if windows is not None and len(windows)}
    units = {name: groups_of(windows) for name, windows in present.items()}
    counts = ", ".join(f"{len(np.unique(of))} {name}" for name, of in units.items())
    line = f"{first.unit}s{f' of {first.name}' if first.name else ''}: {counts}"
    if "test" not in present and "validation" not in present:
        return line
    name = "test" if "test" in present else "validation"
    asked = present[name]
    kind = "classification" if asked.target is None else "regression"
    truth = asked.label if asked.target is None else asked.target
    half = half_width(kind, asked.names, truth, units[name])
    who = counted(len(np.unique(units[name])), f"{name} {first.unit}")
    if half is None:
        return f"{line}; no interval is possible with {who}: a second one is missing, or one of each class"
    score = title(primary(kind, asked.names))
    return (
        f"{line}; with {who} expect 95 % intervals of about ±{half:.2f} {score}: much smaller differences stay unseen"
    )


# Steps: the windows as they are read


def read_steps(
    order: Order, loader: Loader, processes: ProcessGroup, micro_batches: int, first: int, last: int
) -> Iterator[tuple[Step, list[RawStep]]]:
    """Yield each step from ``first`` up to ``last``, with this process's windows of it in so many micro-batches."""
    requested: deque[Step] = deque()

    def requests() -> Iterator[Step]:
        for number in range(first, last):
            requested.append(order.step(number))
            mine = requested[-1].part(processes.rank, processes.size)
            yield from (mine.part(part, micro_batches) for part in range(micro_batches))

    raws = loader.stream(requests())
    for _ in range(first, last):
        found = [next(raws) for _ in range(micro_batches)]
        yield requested.popleft(), found


def read_alone(loader: Loader, windows: Sequence[Windows], step: Step) -> Iterator[tuple[str, RawStep]]:
    """Yield the name of each window of a step, and that window by itself."""
    for number, name in enumerate(name_windows(windows, step)):
        yield name, loader.read(step.part(number, len(step)))


def name_windows(windows: Sequence[Windows], step: Step) -> list[str]:
    """Return recording and start in seconds of the windows of a step, for errors."""
    found = []
    for source, window in zip(step.source.tolist(), step.window.tolist(), strict=True):
        ((id, start),) = windows[source].ids([window])
        found.append(f"{id}@{start / windows[source].sfreq:g}s")
    return found


# The record in the weights: what they were trained on


def note_seen(notes: dict[str, Any], windows: Sequence[Windows], done: Step) -> None:
    """Count the windows of a step by montage, in the notes of the state."""
    seen = notes.setdefault("seen", [[0] * len(of_source.facts.montages) for of_source in windows])
    for number, of_source in enumerate(windows):
        chosen = done.window[done.source == number]
        montages, counts = np.unique(of_source.facts.montage[of_source.recording[chosen]], return_counts=True)
        for montage, count in zip(montages.tolist(), counts.tolist(), strict=True):
            seen[number][montage] += count


def training_record(
    before: Training,
    notes: dict[str, Any],
    sources: Sequence[tuple[Store, Windows]],
    hashes: Sequence[str],
    steps: int,
    task: str = "",
) -> Training:
    """Return the record of the weights after a run of ``steps`` steps, added to their record before it.

    With a ``task`` its labels were learned.
    """
    seen = notes.get("seen", [[0] * len(windows.facts.montages) for _, windows in sources])
    electrodes = dict(before.electrode_windows)
    for (_, windows), counts in zip(sources, seen, strict=True):
        for name, count in electrode_windows(windows, counts).items():
            electrodes[name] = electrodes.get(name, 0) + count
    data = [describe_source(store, windows, hash, task) for (store, windows), hash in zip(sources, hashes, strict=True)]
    shown = sum(sum(counts) for counts in seen)
    return Training(before.steps + steps, before.windows + shown, electrodes, (*before.data, *data))


def electrode_windows(windows: Windows, seen: Sequence[int]) -> dict[str, int]:
    """Return how many windows trained each electrode's row, from the windows of each montage."""
    found: dict[str, int] = {}
    for names, count in zip(windows.facts.montages, seen, strict=True):
        for electrode in {part for name in names for part in name.split("-")} if count else ():
            found[electrode] = found.get(electrode, 0) + count
    return found


# Electrodes: the channels of a store as a model's weights know them

Electrodes = Callable[[tuple[str, ...]], NDArray[np.int64]]
"""Returns the ids of a montage's channels from their names; 0, 0 leaves a channel out."""


def untrained_electrodes(parts: Sequence[Windows], trained: Mapping[str, int]) -> list[str]:
    """Return the electrodes of the windows whose rows no window has trained, sorted."""
    used = {part for names in _montages(parts) for name in names for part in name.split("-")}
    return sorted(name for name in used if not trained.get(name))


def electrodes_of(parts: Sequence[Windows], trained: Mapping[str, int], untrained: Untrained) -> Electrodes | None:
    """Return how the channels of these windows are read; None if all were trained and are read as they are."""
    if not untrained_electrodes(parts, trained):
        return None
    ids = electrode_ids(trained, untrained)
    for names in _montages(parts):
        ids(names)  # an electrode that the policy refuses is an error now, not in the middle of the work
    return ids


def electrode_ids(trained: Mapping[str, int], untrained: Untrained) -> Electrodes:
    """Return a function for the ids of a montage's channels, under a policy for electrodes that were never trained."""
    known = {name: count for name, count in trained.items() if count and name in IDS}
    if not known and untrained != "as_is":
        raise ChannelError(
            "the checkpoint records no training, so the row of every electrode is random; train it first, or say "
            "--untrained as_is"
        )

    def ids(names: tuple[str, ...]) -> NDArray[np.int64]:
        found = match(names, trained=known, untrained=untrained, bipolar_ears=True, max_channels=len(names))
        result = np.zeros((len(names), 2), np.int64)
        for place, pair in zip(found.index, found.ids, strict=True):
            result[place] = pair
        return result

    return ids


def _montages(parts: Sequence[Windows]) -> list[tuple[str, ...]]:
    """Return the montages of recordings that have windows; other recordings of the store do not count."""
    return sorted({w.facts.montages[n] for w in parts for n in np.unique(w.facts.montage[w.recording]).tolist()})


def plain_electrodes(names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the ids of a montage's channels as they are named."""
    return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)


# Heads: what they need, and which of their answers are asked for


def needs_encoder(header: Header) -> bool:
    """Return whether the head of a checkpoint reads the encoder."""
    return header.head is None or bool(layers_of(header.head.readout, header.model.depth))


def pick_targets(output: NDArray[np.float32], ours: Sequence[str], windows: Windows) -> NDArray[np.float32]:
    """Return the outputs for the targets that windows have, which data from elsewhere may lack; all for classes."""
    if windows.target is None or tuple(ours) == windows.names:
        return output
    return output[:, [list(ours).index(name) for name in windows.names]]
