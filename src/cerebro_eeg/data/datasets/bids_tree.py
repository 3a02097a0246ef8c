"""Finds the EEG recordings of a BIDS tree and their sidecar files, by the inheritance principle.

A name is a chain of ``key-value`` entities, a suffix and an extension. A sidecar in the folder of a recording or above
it applies if the recording has all of its entities. JSON sidecars add up, and the nearer one wins; of tables only the
nearest applies (BIDS specification, https://bids-specification.readthedocs.io, "The inheritance principle" and
"Electroencephalography").
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg.data.datasets.file_tree import plain_name
from cerebro_eeg.errors import InputError, PassingFault
from cerebro_eeg.files import parse_json

EXTENSIONS = (".edf", ".vhdr", ".set", ".bdf")  # all that BIDS allows for EEG
_DATA = (".eeg", ".fdt", ".vmrk", ".json")  # further files of such a recording


@dataclass(frozen=True)
class BidsFile:
    """One recording."""

    path: Path
    name: str
    """Its path below the tree, with slashes."""
    subject: str
    """sub-<label>"""
    entities: frozenset[str]
    folders: tuple[Path, ...]
    """The folders from the top of the tree to the one that holds it."""
    size: int
    files: tuple[Path, ...]

    @property
    def task(self) -> str | None:
        """The label of its task entity."""
        return self.entity("task")

    def entity(self, key: str) -> str | None:
        """Return the label of an entity of its name, such as "rest" for task-rest; None where it has none."""
        return next((pair[len(key) + 1 :] for pair in self.entities if pair.startswith(f"{key}-")), None)


def find_bids(top: Path) -> tuple[tuple[BidsFile, ...], int]:
    """Find all EEG recordings, sorted by name, and count the ``_eeg`` files in a format that BIDS does not allow."""
    found, strange = [], 0
    for subject in _inside(top, "sub-"):
        for session in (None, *_inside(subject, "ses-")):
            eeg = (session or subject) / "eeg"
            folders = (top, subject, *((session,) if session else ()), eeg)
            for path in sorted(eeg.iterdir()) if eeg.is_dir() else ():
                stem, extension = _split(path.name)
                if path.name.startswith(".") or not stem.endswith("_eeg") or extension in _DATA:
                    continue
                entities = frozenset(stem.split("_")[:-1])
                if extension not in EXTENSIONS or subject.name not in entities:
                    strange += 1
                    continue
                beside = [eeg / f"{stem}{end}" for end in _DATA[:2]]
                data = (path, *(file for file in beside if file.is_file()))
                name = plain_name(path.relative_to(top))
                who, size = plain_name(subject.name), sum(map(_size, data))
                found.append(BidsFile(path, name, who, entities, folders, size, data))
    return tuple(sorted(found, key=lambda file: file.name)), strange


def sidecar(file: BidsFile, suffix: str) -> dict[str, Any]:
    """Return the values of all JSON files with this suffix that apply to a recording."""
    values: dict[str, Any] = {}
    for folder in file.folders:
        path = _of_folder(file, folder, suffix, ".json")
        if path is not None:
            values.update(read_json(path))
    return values


def nearest(file: BidsFile, suffix: str) -> Path | None:
    """Return the table with this suffix that applies to a recording."""
    for folder in reversed(file.folders):
        path = _of_folder(file, folder, suffix, ".tsv")
        if path is not None:
            return path
    return None


def read_json(path: Path) -> Mapping[str, Any]:
    """Read the values of a JSON file."""
    try:
        values = parse_json(path.read_text("utf-8-sig"))
    except OSError as error:
        raise PassingFault(
            f"a JSON file of the BIDS folder cannot be read: {error.strerror or type(error).__name__}; try again"
        ) from None
    except ValueError as error:
        raise InputError(f"a JSON file of the BIDS folder cannot be read ({type(error).__name__}); mend it") from None
    if not isinstance(values, dict):
        raise InputError("a JSON file of the BIDS folder is no object with named values; mend it")
    return values


def _of_folder(file: BidsFile, folder: Path, suffix: str, extension: str) -> Path | None:
    """Return the file of one folder that applies to the recording; two equally near ones are a mistake."""
    best: list[Path] = []
    most = -1
    for name in sorted(os.listdir(folder)):
        stem, end = _split(name)
        *entities, last = stem.split("_")
        if end == extension and last == suffix and set(entities) <= file.entities and len(entities) >= most:
            best = [*best, folder / name] if len(entities) == most else [folder / name]
            most = len(entities)
    if len(best) > 1:
        raise InputError(f"{len(best)} files *_{suffix}{extension} of one folder speak of one recording; keep one")
    return best[0] if best else None


def _inside(folder: Path, start: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.startswith(start) and path.is_dir())


def _split(name: str) -> tuple[str, str]:
    stem, dot, extension = name.partition(".")
    return stem, dot + extension.casefold()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
