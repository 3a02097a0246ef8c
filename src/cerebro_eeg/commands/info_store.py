"""``cerebro-eeg info STORE``: what a store holds, how it was made, and which sources it lacks."""

import contextlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.errors import CerebroError
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.progress import counted
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from cerebro_eeg.data.batching.window_labels import LabelRule
    from cerebro_eeg.data.storing.records import StoredRecording
    from cerebro_eeg.data.storing.store import Store

PAGE = ".html"
"""What the name of a picture ends in for a page with tables around it."""
SECONDS = 5.0  # length of a window, for tasks that do not say
_SETS = 5  # electrode sets that are named
_NAMES = 10  # electrodes of a set that are named
_CLASSES = 8  # classes of a task that are named
_SAMPLES = ("not_finite", "too_large")  # the counts of quality that are samples; the others are channels
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Amount:
    """Number and length of some recordings."""

    recordings: int
    hours: float


@dataclass(frozen=True)
class SplitInfo:
    """One split of a task, with windows of the length and stride that the task suggests."""

    recordings: int
    subjects: int
    windows: int
    seconds: float
    """Labelled time that was recorded; where intervals overlap it counts twice."""
    labels: dict[str, int]
    """Windows by class; empty for a regression."""


@dataclass(frozen=True)
class TaskInfo:
    """The windows and labels of one task."""

    kind: str
    """classification, regression, or none: time without labels, as for pre-training."""
    names: tuple[str, ...]
    window_seconds: float
    stride_seconds: float
    splits: dict[str, SplitInfo]
    problem: str | None
    """Why windows cannot be cut, or which splits overlap; None if all is well."""


@dataclass(frozen=True, repr=False)
class StoreSummary(Shown):
    """A store in numbers, without ids of subjects or recordings."""

    dataset: str
    settings: dict[str, Any]
    own_ids: bool
    """Whether ids are those of the corpus; otherwise they are keyed hashes."""
    hash: str
    bytes: int
    total: Amount
    subjects: int
    without_subject: int
    """Recordings whose subject is unknown."""
    segments: int
    short_segments: int
    """Segments that are shorter than the filter; their windows are flagged."""
    short_hours: float
    channel_counts: dict[int, Amount]
    montages: tuple[tuple[tuple[str, ...], Amount], ...]
    """Electrode sets (the order of channels does not count), the most common first."""
    native_rates: dict[float, Amount]
    rates: dict[float, Amount]
    notched: dict[str, int]
    """Recordings by the mains frequency that was filtered out, or "none"."""
    mains: str | None
    """How the mains frequency was decided, in words; None where the corpus or the user states it."""
    tasks: dict[str, TaskInfo]
    faults: dict[str, int]
    """Recordings by code."""
    quality: dict[str, tuple[int, int]]
    """(how many, in how many recordings): channels that are flat, clipped, ...; samples that were not finite, ..."""
    skipped: dict[str, int]
    """Sources by reason."""
    parts: tuple[int, tuple[int, ...]] | None
    """Number of parts that the work was divided into (``--part``), and those that wrote nothing; None if undivided."""
    unfinished: str | None
    """Why the store may be incomplete; None if it seems complete."""
    format: int = 3
    """Before format 3, blocks of samples have no sums, and reading does not notice damage."""
    plot: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.unfinished is None else 5

    def to_dict(self) -> dict[str, object]:
        montages = [{"channels": list(names), **asdict(amount)} for names, amount in self.montages]
        quality = {name: {"count": n, "recordings": of} for name, (n, of) in self.quality.items()}
        parts = None if self.parts is None else {"count": self.parts[0], "wrote_nothing": list(self.parts[1])}
        remedies = {code: remedy_of(code) for code in self.skipped}
        return {
            "kind": "store",
            **asdict(self),
            "remedies": remedies,
            "montages": montages,
            "quality": quality,
            "parts": parts,
        }

    def text(self) -> str:
        return store_text(self)

    @property
    def trouble(self) -> str | None:
        """Why the store may be incomplete; None if it seems complete."""
        return None if self.unfinished is None else f"the store is unfinished: {self.unfinished}"

    def _headline(self) -> str:
        total = self.total
        return (
            f"store of {self.dataset}: {counted(total.recordings, 'recording')}, {total.hours:,.2f} h, "
            f"{counted(self.subjects, 'subject')}"
        )

    def _facts(self) -> Mapping[str, object]:
        counts = {n: of.recordings for n, of in self.channel_counts.items()}
        return {
            "channels": ", ".join(f"{n} ({of:,})" for n, of in counts.items()),
            "notch": ", ".join(f"{rate} ({n:,})" for rate, n in self.notched.items()),
            "skipped": ", ".join(f"{code} {n:,}" for code, n in self.skipped.items()) or "none",
        }

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per task, split and class."""
        return by_column(
            {
                "task": task,
                "split": split,
                "label": label,
                "windows": windows,
                "recordings": of.recordings,
                "subjects": of.subjects,
            }
            for task, about in self.tasks.items()
            for split, of in about.splits.items()
            for label, windows in (of.labels or {"": of.windows}).items()
        )

    def _notes(self) -> Sequence[str]:
        problems = [f"task {task}: {about.problem}" for task, about in self.tasks.items() if about.problem]
        return [*filter(None, [self.trouble]), *problems]


def _sums_lines(found: "StoreSummary") -> list[str]:
    if found.format >= 3:
        return []
    return [f"sums        no sums of blocks (format {found.format}): only cerebro-eeg verify notices damaged samples"]


def store_text(found: "StoreSummary") -> str:
    """Return the summary as text, the most wanted facts first."""
    lines = [] if found.unfinished is None else [f"UNFINISHED: {found.unfinished}", ""]
    ids = "the corpus's own ids" if found.own_ids else "ids are keyed hashes"
    lines += [
        f"store of {found.dataset} ({ids})",
        "",
        f"recordings  {found.total.recordings:,}, {found.total.hours:,.2f} h, {found.bytes / 1e6:,.0f} MB of samples",
        f"subjects    {found.subjects:,}{_unknown_subject_words(found)}",
        f"channels    {_amount_words(found.channel_counts)}",
        f"rates       {_amount_words(found.rates, ' Hz')} stored; "
        f"recorded at {_amount_words(found.native_rates, ' Hz')}",
        f"segments    {found.segments:,}; {_short_words(found)}",
        f"signal      {_signal_words(found)}",
        f"hash        {found.hash}",
        *_sums_lines(found),
        "",
        *_montage_lines(found),
        "",
        *_task_lines(found),
        "",
        *_trouble_lines(found),
    ]
    if found.plot is not None:
        lines += ["", "picture     written"]
    return "\n".join(lines)


def _unknown_subject_words(found: "StoreSummary") -> str:
    return f"; {found.without_subject:,} recordings without one" if found.without_subject else ""


def _amount_words(amounts: "dict[int, Amount] | dict[float, Amount]", unit: str = "") -> str:
    items = [f"{key:g}{unit} ({a.recordings:,}, {a.hours:,.2f} h)" for key, a in amounts.items()]
    return ", ".join(items) or "none"


def _short_words(found: "StoreSummary") -> str:
    if not found.short_segments:
        return "all longer than the filter"
    return (
        f"{found.short_segments:,} ({found.short_hours:,.2f} h) shorter than the filter: their windows are flagged, "
        "and used like all others"
    )


def _signal_words(found: "StoreSummary") -> str:
    signal = found.settings.get("signal")
    if not isinstance(signal, dict):
        return "the settings name no signal"
    notched = ", ".join(f"{line}{'' if line == 'none' else ' Hz'} ({n:,})" for line, n in found.notched.items())
    recipe = f"recipe {found.settings.get('recipe', found.dataset)}, version {found.settings.get('version', '?')}"
    return (
        f"{signal.get('highpass', '?')} to {signal.get('lowpass', '?')} Hz, {signal.get('filter_phase', '?')} phase, "
        f"reference {str(signal.get('reference', '?')).replace('_', ' ')}; {recipe}\n"
        f"            notch {notched or 'none'}; bad channels: {found.settings.get('quality', '?')}"
        f"{'' if found.mains is None else f'{chr(10)}            {found.mains}'}"
    )


def _montage_lines(found: "StoreSummary") -> Iterator[str]:
    count = len(found.montages)
    yield f"electrode sets: {count:,}{f', the {_SETS} most common' if count > _SETS else ''}"
    for names, amount in found.montages[:_SETS]:
        more = f" ... {len(names) - _NAMES} more" if len(names) > _NAMES + 1 else ""
        shown = " ".join(names[:_NAMES] if more else names)
        yield f"  {amount.recordings:>7,} recordings {amount.hours:>9,.2f} h  {len(names):>3}: {shown}{more}"


def _task_lines(found: "StoreSummary") -> Iterator[str]:
    unit = found.settings.get("split_unit", "subject")
    if not found.tasks:
        yield "tasks: none"
        return
    yield (
        f"tasks (no {unit} may be in two splits)" if unit != "none" else "tasks (splits may share anything but windows)"
    )
    wide = max(len(split) for task in found.tasks.values() for split in (*task.splits, ""))
    for name, task in found.tasks.items():
        windows = f"windows of {task.window_seconds:g} s every {task.stride_seconds:g} s"
        yield f"  {one_line(name)}: {_kind_words(task)}, {windows}"
        for split, part in task.splits.items():
            labels = list(part.labels.items())
            shown = ", ".join(f"{one_line(label)} {count:,}" for label, count in labels[:_CLASSES])
            more = f" and {len(labels) - _CLASSES} more classes" if len(labels) > _CLASSES else ""
            yield (
                f"    {one_line(split):{wide}}  {part.windows:>8,} windows {part.seconds / 3600:>9,.2f} h "
                f"{part.subjects:>6,} subjects {part.recordings:>7,} recordings  {shown}{more}"
            ).rstrip()
        if not task.splits:
            yield "    no recording has it"
        if task.problem is not None:
            yield f"    PROBLEM: {task.problem}"


def _kind_words(task: "TaskInfo") -> str:
    if task.kind == "regression":
        return f"regression of {len(task.names)} target{'' if len(task.names) == 1 else 's'}"
    return f"{len(task.names)} classes" if task.kind == "classification" else "no labels"


def quality_words(quality: Mapping[str, tuple[int, int]]) -> str:
    """Return words such as '2 flat channels in 1 recording; ...'; empty when nothing was counted."""
    return "; ".join(
        f"{counted(count, name.replace('_', ' ') + (' sample' if name in _SAMPLES else ' channel'))} in "
        f"{counted(of, 'recording')}"
        for name, (count, of) in quality.items()
        if count
    )


def _trouble_lines(found: "StoreSummary") -> Iterator[str]:
    total = sum(found.skipped.values())
    yield f"skipped     {f'{total:,} sources (skipped.csv has a sentence for each)' if total else 'none'}"
    wide = max((len(code) for code in found.skipped), default=0)
    for code, count in found.skipped.items():
        yield f"  {count:>7,} {code:{wide}}  {remedy_of(code)}"
    faults = ", ".join(f"{code} {count:,}" for code, count in found.faults.items())
    yield f"faults      {f'mended or lived with, in recordings: {faults}' if faults else 'none'}"
    yield f"quality     {quality_words(found.quality) or 'no bad channel was counted'}"
    if found.parts is not None:
        count, silent = found.parts
        words = f"{count - len(silent):,} of {count:,} have written"
        if silent:
            named = ", ".join(map(str, silent[:10])) + (", ..." if len(silent) > 10 else "")
            words += f"; not {named} (not run yet, or without recordings of their own)"
        yield f"parts       {words}"


def info_store(folder: Path, plot: Path | None = None) -> StoreSummary:
    """Describe a store from the records of its recordings; samples are read only for a picture, and only some.

    A damaged store raises a StoreError. A store that is unfinished or still written to is described as far as it goes,
    and ``exit_code`` is 5.
    """
    from cerebro_eeg.data.storing.mains import read_table
    from cerebro_eeg.data.storing.store import Store

    if plot is not None:
        from cerebro_eeg.report.figures import KINDS, check_picture

        check_picture(plot, (*KINDS, PAGE))
    store = Store(folder)
    labelled = _Labelled()
    # Drop labels and events, of which there may be very many; windows are found from the store itself.
    records = [replace(labelled.add(record), labels={}, events=()) for record in store.recordings]
    if plot is not None and plot.suffix.casefold() != PAGE:
        from cerebro_eeg.report.store import plot_store

        plot_store(store, plot)
    short = [(s.stop - s.start) / r.sfreq for r in records for s in r.segments if s.short]
    skipped = store.skipped()
    mains = read_table(folder)
    found = StoreSummary(
        dataset=store.info.dataset,
        settings=store.info.settings,
        own_ids=store.info.key_check is None,
        format=store.info.format,
        hash=store.hash(),
        bytes=sum(record.bytes for record in records),
        total=Amount(len(records), sum(record.seconds for record in records) / 3600),
        subjects=len({record.subject for record in records} - {None}),
        without_subject=sum(record.subject is None for record in records),
        segments=sum(len(record.segments) for record in records),
        short_segments=len(short),
        short_hours=sum(short) / 3600,
        channel_counts=_amounts((len(record.channels), record) for record in records),
        montages=_montages(records),
        native_rates=_amounts((record.native_sfreq, record) for record in records),
        rates=_amounts((record.sfreq, record) for record in records),
        notched=dict(Counter("none" if r.mains is None else f"{r.mains:g}" for r in records).most_common()),
        mains=None if mains is None else mains.text(),
        tasks=_tasks(store, labelled),
        faults=dict(sorted(Counter(code for record in records for code in record.faults).items())),
        quality=_quality(records),
        skipped=dict(sorted(Counter(skipped.values()).items())),
        parts=_parts(folder),
        unfinished=_unfinished(folder),
    )
    if plot is None:
        return found
    if plot.suffix.casefold() == PAGE:
        from cerebro_eeg.report.store_page import report_store

        report_store(store, found.to_dict(), found.text(), plot)
    return replace(found, plot=str(plot))


def _amounts(pairs: "Iterator[tuple[_Number, StoredRecording]]") -> "dict[_Number, Amount]":
    found: defaultdict[_Number, list[float]] = defaultdict(list)
    for key, record in pairs:
        found[key].append(record.seconds / 3600)
    return {key: Amount(len(found[key]), sum(found[key])) for key in sorted(found)}


def _montages(records: "Sequence[StoredRecording]") -> tuple[tuple[tuple[str, ...], Amount], ...]:
    first: dict[frozenset[str], tuple[str, ...]] = {}
    hours: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for record in records:
        key = frozenset(record.channels)
        first.setdefault(key, record.channels)
        hours[key].append(record.seconds / 3600)
    ordered = sorted(hours, key=lambda key: (-len(hours[key]), -sum(hours[key]), first[key]))
    return tuple((first[key], Amount(len(hours[key]), sum(hours[key]))) for key in ordered)


def _quality(records: "Sequence[StoredRecording]") -> dict[str, tuple[int, int]]:
    total: Counter[str] = Counter()
    touched: Counter[str] = Counter()
    for record in records:
        total.update(record.quality)
        touched.update(name for name, count in record.quality.items() if count)
    return {name: (total[name], touched[name]) for name in sorted(total)}


@dataclass(frozen=True)
class _Labelled:
    """Sums over all recordings, per task and split; the split "" stands for none."""

    seconds: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    recordings: Counter[tuple[str, str]] = field(default_factory=Counter)
    subjects: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, record: "StoredRecording") -> "StoredRecording":
        """Add the labels of a recording, and return it."""
        from cerebro_eeg.data.batching.window_labels import LabelRun, pieces

        for task, intervals in record.labels.items():
            for interval in intervals:
                run = LabelRun(0, interval.start, interval.stop, (interval,))
                samples = sum(piece.stop - piece.start for piece in pieces(record, run))
                self.seconds[task, interval.split or ""] += samples / record.sfreq
            for split in {interval.split or "" for interval in intervals}:
                self.recordings[task, split] += 1
                if record.subject is not None:
                    self.subjects[task, split].add(record.subject)
        return record


def _tasks(store: "Store", labelled: _Labelled) -> dict[str, TaskInfo]:
    declared = store.info.settings.get("tasks", {})
    names = sorted({task for task, _ in labelled.recordings} | set(declared))
    return {name: _task(store, labelled, name, declared.get(name)) for name in names}


def _task(store: "Store", labelled: _Labelled, name: str, declared: dict[str, Any] | None) -> TaskInfo:
    """Describe one task; windows are found as training finds them, so the numbers are those of training."""
    from cerebro_eeg.data.batching.splits import assert_disjoint
    from cerebro_eeg.data.batching.windows import find_windows

    length = float(declared["seconds"]) if declared else SECONDS
    stride = float(declared["stride"]) if declared else SECONDS
    classes = tuple(declared["names"]) if declared else ()
    kind = str(declared["kind"]) if declared else "none"
    way: LabelRule = declared.get("labels", "interval") if declared else "interval"
    splits, found, problem = {}, {}, None
    for split in sorted((split for task, split in labelled.recordings if task == name), key=_split_order):
        counted: dict[str, int] = {}
        try:
            windows = find_windows(store, seconds=length, stride=stride, task=name, split=split or None, labels=way)
            found[split] = windows
            if kind == "classification":
                counted = {label: int((windows.label == number).sum()) for number, label in enumerate(classes)}
        except CerebroError as error:
            problem = str(error)
        splits[split or "no split"] = SplitInfo(
            recordings=labelled.recordings[name, split],
            subjects=len(labelled.subjects[name, split]),
            windows=len(found[split]) if split in found else 0,
            seconds=labelled.seconds[name, split],
            labels=counted,
        )
    if problem is None and len(found) > 1:
        try:
            assert_disjoint(found)
        except CerebroError as error:
            problem = str(error)
    return TaskInfo(kind, classes, length, stride, splits, problem)


def _split_order(name: str) -> tuple[int, str]:
    known = ("train", "val", "test")
    return (known.index(name) if name in known else len(known), name)


def _parts(folder: Path) -> tuple[int, tuple[int, ...]] | None:
    """Read the parts from writer names, such as ``part3of100-0``; of several divisions the finest counts."""
    found = [re.match(r"part([0-9]+)of([0-9]+)-", name) for name in os.listdir(folder)]
    pairs = {(int(match[2]), int(match[1])) for match in found if match}
    count = max((n for n, _ in pairs), default=1)
    if count == 1 or any(n == 1 for n, _ in pairs):
        return None
    return count, tuple(k for k in range(1, count + 1) if (count, k) not in pairs)


def _unfinished(folder: Path) -> str | None:
    busy = sum(_is_locked(folder / name) for name in os.listdir(folder) if name.endswith(".lock"))
    if busy:
        return f"{busy} writer{'s are' if busy > 1 else ' is'} at work on this store; look again when prepare has ended"
    if not (folder / "skipped.csv").is_file():
        return "prepare has not ended on this store (it has no skipped.csv); run the same command again, it goes on"
    return None


def _is_locked(path: Path) -> bool:
    """Return whether a living process holds the lock of a writer; False where the system cannot tell."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:  # no right to ask, or a file system without locks
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
