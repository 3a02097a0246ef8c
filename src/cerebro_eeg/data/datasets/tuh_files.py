"""The recordings of a Temple corpus: which files a tree holds, what they are called and whose they are.

Only names are looked at. A file is called aaaaaaaa_s001_t000.edf, by subject, session and token; before TUEG v2.0.0
subjects had eight digits. Its folders differ from corpus to corpus and from version to version, so recipes ask which
names are among them, not where. Folders of sessions carry a date (s001_2015), which goes no further than this module.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from cerebro_eeg.errors import InputError

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
    """None where the names do not say: see ``problem``."""
    problem: str = ""
    """Why it cannot be used, in one line; empty where it can."""


def find_files(folder: Path) -> tuple[TempleFile, ...]:
    """All EDF files of a tree, by id. The tree is that of a corpus, with or without the folder ``edf`` on top."""
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
    """The first annotation that lies beside a recording, under its name or its id, with one of these suffixes."""
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
    """The subject by the folder above that of the session; "abnormal" and "epilepsy" have eight letters, too."""
    for above, below in pairwise(folders):
        if SUBJECT.fullmatch(above) and _SESSION.fullmatch(below):
            return above
    return None


def _montage(file: TempleFile) -> list[str]:
    return [name for name in file.folders if _MONTAGE.fullmatch(name)]
