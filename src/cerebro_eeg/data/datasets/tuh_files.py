"""The files of a Temple corpus: recordings by their names, and annotations.

A recording is called aaaaaaaa_s001_t000.edf, by subject, session and token; before TUEG v2.0.0 subjects had eight
digits. Its folders differ between corpora and versions, so recipes ask which names are among them, not where. Folders
of sessions carry a date (s001_2015), which never leaves this module.

Annotations are ``.csv`` and ``.csv_bi``, and the older ``.tse``, ``.tse_bi``, ``.tse_agg``. A ``.csv`` file begins with
comments (``# version = csv_v1.0.0`` among them) and the line ``COLUMNS``. Each row labels a stretch of one channel, or
of all channels where the channel is TERM. A ``.tse`` file begins with ``version = tse_v1.0.0``; each row labels a
stretch of all channels: start, stop, label, probability. Times are seconds from the start of the recording. Time
without a row is unknown, not background.

After the AAREADME files of TUSZ v1.5.0 and v2.0.3 (https://isip.piconepress.com/projects/nedc/html/tuh_eeg/) and public
code that reads these files; ``docs/corpora/tusz.md`` lists the sources.
"""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, NoReturn

from cerebro_eeg.errors import InputError, RecordingError

SUBJECT = re.compile(r"[a-z]{8}|[0-9]{8}")
_NAME = re.compile(r"([a-z]{8}|[0-9]{8})(_s[0-9]{3}(?:_t[0-9]{3})?(?:_[0-9]{1,3})*)")
_SESSION = re.compile(r"s[0-9]{3}(?:_[0-9]{4}(?:_[0-9]{2}_[0-9]{2})?)?")
_MONTAGE = re.compile(r"0[1-4]_tcp_[a-z_]+")


@dataclass(frozen=True)
class TempleFile:
    """One recording of a tree."""

    path: Path
    folders: tuple[str, ...]
    """Names of the folders between the tree's and the file's."""
    id: str
    subject: str | None
    """None where the names do not tell; ``problem`` says why."""
    problem: str = ""
    """Why the file cannot be used, in one line; empty where it can."""


def find_files(folder: Path) -> tuple[TempleFile, ...]:
    """Find all EDF files of a tree by id; the tree is that of a corpus, with or without the folder ``edf`` on top."""
    files = [_read_names(path, folder) for path in _walk(folder)]
    if not any(file.subject for file in files):
        raise InputError(
            f"of {len(files)} .edf files in the folder none has a name like aaaaaaaa_s001_t000.edf; "
            "give the folder that holds a Temple corpus"
        )
    count = Counter(file.id for file in files)
    # Older releases of TUSZ have sessions in two montages, token by token alike.
    unique = [file if count[file.id] == 1 else replace(file, id="-".join((file.id, *_montage(file)))) for file in files]
    return tuple(sorted(unique, key=lambda file: (file.id, file.path)))


def find_annotation(file: TempleFile, suffixes: tuple[str, ...]) -> Path | None:
    """Find the first annotation beside a recording, under its name or its id, with one of these suffixes."""
    for suffix in suffixes:
        for stem in (file.path.stem, file.id):
            path = file.path.with_name(stem + suffix)
            if path.is_file():
                return path
    return None


def _walk(folder: Path) -> Iterator[Path]:
    # Links are followed: the corpora are distributed as links to TUEG, and people link folders to where there is space.
    met: set[tuple[int, int]] = set()  # a link to a folder above would lead around for ever
    for top, inside, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        inside.sort()
        status = os.stat(top)
        if (status.st_dev, status.st_ino) in met:
            inside.clear()
            continue
        met.add((status.st_dev, status.st_ino))
        for name in names:
            if name.casefold().endswith(".edf") and not name.startswith("."):
                yield Path(top, name)


def _refuse_folder(error: OSError) -> NoReturn:
    raise InputError(
        f"the folder, or one inside it, cannot be read ({type(error).__name__}); give the folder that holds the corpus"
    ) from error


def _read_names(path: Path, top: Path) -> TempleFile:
    folders = path.relative_to(top).parts[:-1]
    name = _NAME.fullmatch(path.stem)
    if name is None:
        hashed = hashlib.sha256(path.relative_to(top).as_posix().encode("utf-8", "surrogateescape")).hexdigest()
        problem = "the file's name is not like aaaaaaaa_s001_t000.edf, so its subject is not known; rename it"
        return TempleFile(path, folders, f"unnamed-{hashed[:16]}", None, problem)
    subject, rest = name.groups()
    owner = _owner(folders) or subject
    if owner != subject and owner.isdigit() == subject.isdigit():
        problem = "the file's name says one subject and its folder another; move or rename it"
        return TempleFile(path, folders, path.stem, None, problem)
    return TempleFile(path, folders, owner + rest, owner)  # TUSL v2 has files with old numbers in folders of new ids


def _owner(folders: tuple[str, ...]) -> str | None:
    """Return the subject by the folder above that of the session; "abnormal" and "epilepsy" have eight letters, too."""
    for above, below in pairwise(folders):
        if SUBJECT.fullmatch(above) and _SESSION.fullmatch(below):
            return above
    return None


def _montage(file: TempleFile) -> list[str]:
    return [name for name in file.folders if _MONTAGE.fullmatch(name)]


COLUMNS = "channel,start_time,stop_time,label,confidence"
_CSV_VERSION = re.compile(r"#\s*version\s*=\s*csv_v1\.")
_TSE_VERSION = re.compile(r"version\s*=\s*tse_v1\.")


class Stretch(NamedTuple):
    """Seconds ``start`` to ``stop`` with a label."""

    start: float
    stop: float
    label: str


def read_annotation(path: Path, known: Collection[str]) -> list[Stretch]:
    """Read the rows of an annotation, for all channels; an unknown label is refused."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except OSError as error:  # a disk or a network: the recording is tried again, not stored without these labels
        raise RecordingError(
            "unreadable", f"the recording's annotation cannot be read now ({type(error).__name__}); start again"
        ) from error
    except UnicodeDecodeError as error:
        raise _broken(f"cannot be read ({type(error).__name__})") from error
    rows = _csv_rows(lines) if path.suffix.startswith(".csv") else _tse_rows(lines)
    stretches = [_stretch(*row) for row in rows]
    unknown = sorted({found.label for found in stretches} - set(known))
    if unknown:
        raise _broken(f"has {len(unknown)} labels that this recipe does not know; expected {', '.join(known)}")
    if not stretches:
        raise _broken("has no rows")
    return stretches


def label_time(rows: Collection[Stretch], choose: Callable[[frozenset[str]], str | None]) -> list[Stretch]:
    """Label each moment by what ``choose`` makes of all its labels (None: nothing); equal neighbours join.

    Channels differ in when a seizure begins and ends, and sometimes in its type, so a moment may have several labels.
    """
    starting: dict[float, list[str]] = {}
    ending: dict[float, list[str]] = {}
    for row in rows:
        starting.setdefault(row.start, []).append(row.label)
        ending.setdefault(row.stop, []).append(row.label)
    times = sorted(starting.keys() | ending.keys())
    active: Counter[str] = Counter()
    found: list[Stretch] = []
    for time, following in pairwise(times):
        active.update(starting.get(time, ()))
        active.subtract(ending.get(time, ()))
        labels = frozenset(label for label, count in active.items() if count > 0)
        label = choose(labels) if labels else None
        if label is not None and found and found[-1].stop == time and found[-1].label == label:
            found[-1] = found[-1]._replace(stop=following)
        elif label is not None:
            found.append(Stretch(time, following, label))
    return found


def _csv_rows(lines: list[str]) -> list[tuple[str, str, str]]:
    if not any(_CSV_VERSION.match(line) for line in lines):
        raise _broken("has no line '# version = csv_v1.0.0'")
    head, *body = [line for line in lines if line and not line.startswith("#")] or [""]
    if head != COLUMNS:
        raise _broken(f"does not have the columns {COLUMNS}")
    fields = [line.split(",") for line in body]
    if any(len(row) != 5 for row in fields):
        raise _broken("has a row without 5 fields")
    return [(row[1], row[2], row[3]) for row in fields]


def _tse_rows(lines: list[str]) -> list[tuple[str, str, str]]:
    if not any(_TSE_VERSION.match(line) for line in lines):
        raise _broken("has no line 'version = tse_v1.0.0'")
    fields = [line.split() for line in lines if line and not line.startswith("#") and not _TSE_VERSION.match(line)]
    if any(len(row) != 4 for row in fields):
        raise _broken("has a row without 4 fields")
    return [(row[0], row[1], row[2]) for row in fields]


def _stretch(start: str, stop: str, label: str) -> Stretch:
    try:
        found = Stretch(float(start), float(stop), label.strip().lower())
    except ValueError as error:
        raise _broken("has a time that is not a number") from error
    if not 0 <= found.start <= found.stop < math.inf:  # false for NaN, too
        raise _broken("has a row that does not go from a start to a later stop")
    return found


def _broken(what: str) -> RecordingError:
    return RecordingError("annotation", f"the recording's annotation {what}; copy it anew from the corpus")
