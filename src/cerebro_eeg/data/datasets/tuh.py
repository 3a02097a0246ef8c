"""The corpora of Temple University Hospital: ``tueg``, and its labelled subsets ``tuab``, ``tusz``, ``tuep``, ``tusl``.

Their pages in ``docs/corpora`` give layouts, labels and splits, with sources. The subsets share the subject ids of
TUEG, so recordings and subjects keep their ids and an overlap between corpora can be seen. Where a corpus has no split
of its own, a hash of the subject's id draws it. So a subject who validates in one corpus validates in all of them,
whatever was downloaded.

``tueg`` has all EEG, unlabelled, for pre-training. It includes the subjects of the labelled corpora. A model that was
pre-trained on a subject of TUAB's test set is not tested by it, so the user must say whom to exclude.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cerebro_eeg.data.datasets.tuh_files import (
    SUBJECT,
    TempleFile,
    find_annotation,
    find_files,
    label_time,
    read_annotation,
)
from cerebro_eeg.data.reading.edf import fit
from cerebro_eeg.data.reading.edf_header import TICKS, read_header
from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault, Recording
from cerebro_eeg.data.storing.recipe import Item, Recipe, Task, refuse
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import ConfigError, InputError, RecordingError

CHANNELS = tuple("FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2".split())
TYPES = ("fnsz", "gnsz", "spsz", "cpsz", "absz", "tnsz", "cnsz", "tcsz", "atsz", "mysz", "nesz")
"""Seizure types of the multi-class annotations; ``seiz`` is a seizure whose type is not given."""
MAINS = 60.0
_POLICY = ChannelPolicy(keep=CHANNELS, duplicates="equal")
SECONDS = 5.0

_TUAB_SPLITS = {"train": "train", "eval": "test"}
_TUAB_LABELS = {"normal": "normal", "abnormal": "abnormal"}
_TUSZ_SPLITS = {"train": "train", "dev": "val", "eval": "test", "dev_test": "test"}  # dev_test: v1.5.0
_TUEP_LABELS = {
    "00_epilepsy": "epilepsy",
    "01_no_epilepsy": "no_epilepsy",
    "epilepsy": "epilepsy",  # v1
    "no_epilepsy": "no_epilepsy",
}
_TUSL_LABELS = {"bckg": "background", "seiz": "seizure", "slow": "slowing"}
_BINARY, _MULTI, _SLOWING = (".csv_bi", ".tse_bi"), (".csv", ".tse"), (".tse_agg", ".csv")

LabelsByTask = dict[str, tuple[Interval, ...]]
LabelReaders = dict[str, Callable[[], tuple[Interval, ...]]]
"""Reads the labels of each task of one recording; tasks with files of their own fail each for itself."""


def tuab(folder: Path) -> Recipe:
    """Make the recipe: normal or abnormal, by recording; ``eval`` tests, a fifth of ``train``'s subjects validates."""
    files = find_files(folder)
    _check_folders("TUAB", files, _TUAB_SPLITS, _TUAB_LABELS)
    tasks = {"abnormal": _task("normal", "abnormal")}
    return _labelled("tuab", "EEG of the Temple University Hospital, normal or abnormal", files, _label_tuab, tasks)


def tusz(folder: Path) -> Recipe:
    """Make the recipe: tasks ``seizure`` (in time) and ``seizure_type``; ``dev`` validates, ``eval`` tests."""
    files = find_files(folder)
    _check_folders("TUSZ", files, _TUSZ_SPLITS)
    _check_annotations("TUSZ", files, (*_BINARY, *_MULTI))
    tasks = {"seizure": _task("background", "seizure"), "seizure_type": _task(*TYPES)}
    return _labelled("tusz", "EEG of the Temple University Hospital with seizures", files, _label_tusz, tasks)


def tuep(folder: Path) -> Recipe:
    """Make the recipe: subjects with epilepsy or without, by recording; our split."""
    files = find_files(folder)
    _check_folders("TUEP", files, _TUEP_LABELS)
    tasks = {"epilepsy": _task("no_epilepsy", "epilepsy")}
    about = "EEG of the Temple University Hospital, subjects with epilepsy or without"
    return _labelled("tuep", about, files, _label_tuep, tasks)


def tusl(folder: Path) -> Recipe:
    """Make the recipe: short stretches of background, seizure and slowing; our split."""
    files = find_files(folder)
    _check_foreign("TUSL", files, _TUSZ_SPLITS, _TUEP_LABELS)  # they have .csv files, too, with other labels
    _check_annotations("TUSL", files, _SLOWING)
    tasks = {"slowing": _task(*_TUSL_LABELS.values())}
    return _labelled("tusl", "EEG of the Temple University Hospital with slowing", files, _label_tusl, tasks)


def tuab_subjects(folder: Path) -> frozenset[str]:
    """Return all subjects of TUAB, with those of its test set."""
    files = find_files(folder)
    _check_folders("TUAB", files, _TUAB_SPLITS, _TUAB_LABELS)
    if not any("eval" in file.folders for file in files):
        raise InputError("the TUAB to exclude has no folder eval, whose subjects are the test set; give all of it")
    return frozenset(file.subject for file in files if file.subject is not None)


def draw_split(subject: str, *, test: bool) -> str:
    """Draw the split of a subject by the hash of its id: a fifth validates and, without a test set, a fifth tests."""
    place = int.from_bytes(hashlib.sha256(subject.encode()).digest()[:8], "big") / 2**64
    return "val" if place < 0.2 else "test" if test and place >= 0.8 else "train"


def find_items(files: Sequence[TempleFile], label: Callable[[TempleFile, str], LabelReaders]) -> Iterator[Item]:
    """Yield an item per file; one with an unusable name, or without any sound annotation, raises on opening."""
    for file in files:
        labels: LabelsByTask = {}
        try:
            if file.subject is None:
                raise RecordingError("name", file.problem)
            labels, faults = _read_tasks(label(file, file.subject))
            opening: Callable[[ChannelPolicy], Recording] = functools.partial(_open, file.path, faults)
        except RecordingError as error:
            opening = functools.partial(refuse, error.code, str(error))
        size = file.path.stat().st_size if file.path.is_file() else 0
        yield Item(file.id, opening, file.subject, labels, size=size, files=(file.path,))


def _read_tasks(readers: LabelReaders) -> tuple[LabelsByTask, tuple[Fault, ...]]:
    """Read the labels of each task from its own file; a task whose file is missing or broken has none, and says so.

    The others keep the recording, so that a test set does not shrink with the annotations of another task.
    """
    labels: LabelsByTask = {}
    failed: dict[str, RecordingError] = {}
    for task, read in readers.items():
        try:
            labels[task] = read()
        except RecordingError as error:
            if error.code != "annotation":  # the recording itself, or a disk that may answer next time
                raise
            failed[task] = error
    if failed and not labels:
        raise next(iter(failed.values()))
    return labels, tuple(Fault(f"no_{task}_labels", str(error)) for task, error in failed.items())


def _open(path: Path, faults: tuple[Fault, ...], policy: ChannelPolicy) -> Recording:
    recording = open_recording(path, policy)
    return replace(recording, faults=(*recording.faults, *faults))


def _labelled(
    name: str,
    about: str,
    files: tuple[TempleFile, ...],
    label: Callable[[TempleFile, str], LabelReaders],
    tasks: Mapping[str, Task],
) -> Recipe:
    find = functools.partial(find_items, files, label)
    return Recipe(name, about, find, policy=_POLICY, mains=MAINS, tasks=tasks, own_ids=True)


def _task(*names: str) -> Task:
    return Task("classification", names, SECONDS, SECONDS)


def _label_tuab(file: TempleFile, subject: str) -> LabelReaders:
    split = _among(file, _TUAB_SPLITS)
    if split == "train":
        split = draw_split(subject, test=False)
    return {"abnormal": functools.partial(_whole, file, split, _among(file, _TUAB_LABELS))}


def _label_tusz(file: TempleFile, subject: str) -> LabelReaders:
    read = functools.partial(_read_labels, file, _among(file, _TUSZ_SPLITS))
    return {
        "seizure": functools.partial(read, _BINARY, ("bckg", "seiz"), _any_seizure),
        "seizure_type": functools.partial(read, _MULTI, ("bckg", "seiz", *TYPES), _only_type),
    }


def _label_tuep(file: TempleFile, subject: str) -> LabelReaders:
    return {"epilepsy": functools.partial(_whole, file, draw_split(subject, test=True), _among(file, _TUEP_LABELS))}


def _label_tusl(file: TempleFile, subject: str) -> LabelReaders:
    read = functools.partial(_read_labels, file, draw_split(subject, test=True))
    return {"slowing": functools.partial(read, _SLOWING, tuple(_TUSL_LABELS), _only_state)}


def _any_seizure(labels: frozenset[str]) -> str:
    return "seizure" if "seiz" in labels else "background"


def _only_type(labels: frozenset[str]) -> str | None:
    """Return the type of a moment whose channels agree on it; a moment of two types has none."""
    types = labels.intersection(TYPES)
    return next(iter(types)) if len(types) == 1 else None


def _only_state(labels: frozenset[str]) -> str | None:
    return _TUSL_LABELS[next(iter(labels))] if len(labels) == 1 else None


def _read_labels(
    file: TempleFile,
    split: str,
    suffixes: tuple[str, ...],
    known: tuple[str, ...],
    choose: Callable[[frozenset[str]], str | None],
) -> tuple[Interval, ...]:
    path = find_annotation(file, suffixes)
    if path is None:
        raise RecordingError("annotation", f"the recording has no annotation ({' or '.join(suffixes)}) beside it")
    rows = label_time(read_annotation(path, known), choose)
    return tuple(Interval(row.start, row.stop, split, row.label) for row in rows)


def _whole(file: TempleFile, split: str, label: str) -> tuple[Interval, ...]:
    """Return one interval over all records, from the header alone, because there are thousands of files."""
    with opened(file.path) as (read, stamp):
        header = fit(read_header(read, stamp.size), read, stamp.size)
    return (Interval(0.0, header.records * header.duration / TICKS, split, label),)


def _among(file: TempleFile, names: Mapping[str, str]) -> str:
    """Return the meaning of the one folder of these names; ``_check_folders`` has checked that there is one."""
    return next(names[folder] for folder in file.folders if folder in names)


def _check_folders(corpus: str, files: Sequence[TempleFile], *kinds: Mapping[str, str]) -> None:
    """Check that each recording lies in one folder of each kind; else its label or its split would be a guess."""
    named = [file for file in files if file.subject is not None]
    for names in kinds:
        lost = sum(sum(folder in names for folder in file.folders) != 1 for file in named)
        if lost:
            raise InputError(
                f"{lost:,} of {len(named):,} recordings do not lie in one of the folders {', '.join(names)}; "
                f"give the folder that holds all of {corpus}"
            )


def _check_foreign(corpus: str, files: Sequence[TempleFile], *kinds: Mapping[str, str]) -> None:
    """Check that no recording lies in a folder that only other corpora of Temple have."""
    names = {name for kind in kinds for name in kind}
    found = sorted({folder for file in files for folder in file.folders} & names)
    if found:
        raise InputError(
            f"recordings lie in a folder {found[0]}, which {corpus} does not have; give the folder that holds {corpus}"
        )


def _check_annotations(corpus: str, files: Sequence[TempleFile], suffixes: tuple[str, ...]) -> None:
    if not any(find_annotation(file, suffixes) for file in files):
        raise InputError(
            f"none of {len(files):,} recordings has an annotation ({' or '.join(suffixes)}) beside it; "
            f"give the folder that holds {corpus}"
        )


_WAYS = "the folder of TUAB, a file with a subject id a line, or the word none"
_HEADINGS = ("subject", "subject_id", "id", "patient")


def tueg(folder: Path, *, exclude: str | None = None) -> Recipe:
    """Make the recipe; ``exclude`` is a folder with TUAB, a file with one subject id per line, or the word none."""
    unwanted = _read_excluded(exclude)
    files = find_files(folder)
    left = tuple(file for file in files if file.subject not in unwanted)
    here = {file.subject for file in files} & unwanted
    if unwanted and not here:
        raise InputError(
            f"none of the {len(unwanted):,} subjects to exclude is in the folder; ids are letters since TUEG v2 and "
            "TUAB v3 and were digits before: give the TUAB that belongs to this TUEG"
        )
    said = "nobody is excluded, as asked for"
    if unwanted:
        gone = len(files) - len(left)
        said = f"{len(here):,} of {len(unwanted):,} subjects to exclude are here, {gone:,} recordings left out"
    return Recipe(
        "tueg",
        f"EEG of the Temple University Hospital; {said}",
        functools.partial(find_items, left, _no_labels),
        policy=ChannelPolicy(unknown="drop", duplicates="equal"),
        mains=MAINS,
        own_ids=True,
        options={"exclude": hashlib.sha256("\n".join(sorted(unwanted)).encode()).hexdigest() if unwanted else "none"},
    )


def _no_labels(file: TempleFile, subject: str) -> LabelReaders:
    return {}


def _read_excluded(exclude: str | None) -> frozenset[str]:
    if exclude is None:
        raise ConfigError(f"TUEG holds the subjects of TUAB, so whom to exclude must be said; give exclude as {_WAYS}")
    if exclude == "none":
        return frozenset()
    return tuab_subjects(Path(exclude)) if Path(exclude).is_dir() else _read_subjects(Path(exclude))


def _read_subjects(path: Path) -> frozenset[str]:
    """Read the first column of a text file; its first line may name the columns."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"what to exclude is neither a folder nor a file that can be read ({type(error).__name__}); give {_WAYS}"
        ) from error
    ids = [line.split(",")[0].strip().strip('"') for line in lines]
    if ids and ids[0].lower() in _HEADINGS:
        ids[0] = ""
    for number, id in enumerate(ids, 1):
        if id and not SUBJECT.fullmatch(id):
            raise InputError(f"line {number} of the file to exclude is no subject id; expected one, such as aaaaaaaa")
    found = frozenset(filter(None, ids))
    if not found:
        raise InputError("the file to exclude has no subject id; expected one a line, such as aaaaaaaa")
    return found
