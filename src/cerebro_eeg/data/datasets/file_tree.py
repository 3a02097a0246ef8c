"""Finds the recordings in a tree of files: each once, however many files it has, sorted by name.

BrainVision's ``.eeg`` belongs to the ``.vhdr`` beside it, EEGLAB's ``.fdt`` to the ``.set``, Persyst's ``.dat`` to the
``.lay``, and the parts of a split FIF file to its first; an EGI ``.mff`` is a folder. A text table is a recording if
its columns are those of a headset. An array of numbers is one if its rate is known. Hidden files and other kinds are
passed over. Links are followed, but no folder is entered twice.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.data.reading.arrays import (
    ARRAYS,
    NO_FACTS,
    ArrayFacts,
    is_none,
    is_plain,
    may_be_recording,
    says_rate,
)
from cerebro_eeg.data.reading.formats import suffixes
from cerebro_eeg.data.reading.header_checks import check_fif
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.tables import is_headset
from cerebro_eeg.errors import InputError, RecordingError
from cerebro_eeg.files import real

_TABLES = (".csv", ".txt", ".csv.gz", ".txt.gz")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".tar", ".tgz", ".rar")
_SAME_STEM = (".vhdr", ".set", ".lay")  # their samples lie in other files of the same name
_PART = re.compile(r"-\d+(?=\.fif(?:\.gz)?$)|(?<=_split-)\d+(?=_)", re.IGNORECASE)


@dataclass(frozen=True)
class SourceFile:
    """A recording in a tree."""

    path: Path
    name: str
    """Its path below the tree, with slashes, in one form of Unicode, so that it is equal on every machine."""
    size: int
    """Bytes of all its files."""
    files: tuple[Path, ...]
    """All its files; the one that is opened comes first."""


@dataclass(frozen=True)
class PassedOver:
    """Number of files of a tree that belong to no recording, without hidden ones."""

    files: int
    packed: int
    """Those of them that may hold recordings and must be unpacked first."""
    arrays: tuple[str, ...] = ()
    """Names of those that look like recordings and do not say their rate."""


def find_sources(folder: Path, leave_out: Path | None = None, arrays: ArrayFacts = NO_FACTS) -> tuple[SourceFile, ...]:
    """Find all recordings below a folder, sorted by name; ``leave_out`` is a table that is no recording.

    An array of numbers is one if its rate is known: from ``arrays``, or from itself or the file beside it.
    """
    if not folder.is_dir():
        raise InputError("the source is not a folder; give the folder that holds the EEG files")
    other = real(leave_out) if leave_out is not None else None
    found = []
    for where, names in _folders(folder):
        for name, parts in sorted(_recordings(where, names, arrays).items()):
            path = where / name
            if other is None or real(path) != other:
                name_below = plain_name(path.relative_to(folder))
                found.append(SourceFile(path, name_below, sum(map(_size, parts)), tuple(parts)))
    if not found:
        waiting = len(passed_over(folder, (), leave_out).arrays)
        if waiting:
            what = "the 1 array of numbers there does" if waiting == 1 else f"the {waiting} arrays of numbers there do"
            raise InputError(
                f"the folder has no EEG file, and {what} not tell the rate; say the real one, such as sfreq=256"
            )
        raise InputError(f"the folder has no EEG file; expected some that end in {', '.join(suffixes())}")
    return tuple(sorted(found, key=lambda source: source.name))


def files_of(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Return the files of each recording as ``find_sources`` finds them, the one that is opened first."""
    listed: dict[Path, list[str]] = {}
    found = []
    for path in paths:
        files: tuple[Path, ...] = (path,)
        if path.name.casefold().endswith((*_SAME_STEM, ".fif", ".fif.gz")):
            if path.parent not in listed:
                try:
                    listed[path.parent] = sorted(name for name in os.listdir(path.parent) if not name.startswith("."))
                except OSError:  # the file is refused with the reason when it is opened
                    listed[path.parent] = []
            stem, whole = f"{path.stem.casefold()}.", _PART.sub("", path.name)
            near = [n for n in listed[path.parent] if n.casefold().startswith(stem) or _PART.sub("", n) == whole]
            files = tuple(_recordings(path.parent, near).get(path.name, files))
        found.append(files)
    return found


def passed_over(folder: Path, sources: Sequence[SourceFile], leave_out: Path | None = None) -> PassedOver:
    """Count the other files of a tree whose recordings these are."""
    used = {file for source in sources for file in source.files}
    other = real(leave_out) if leave_out is not None else None
    paths = [where / name for where, names in _folders(folder) for name in names]
    left = [path for path in paths if path not in used and not path.is_dir() and real(path) != other]
    waiting = [path for path in left if path.name.casefold().endswith((*ARRAYS, *_TABLES)) and may_be_recording(path)]
    return PassedOver(
        len(left),
        sum(path.name.casefold().endswith(_PACKED) for path in left),
        tuple(sorted(plain_name(path.relative_to(folder)) for path in waiting)),
    )


def plain_name(relative: Path | str) -> str:
    """Return a relative path as one text: slashes, composed letters, and bytes that are no UTF-8 as ``\\x..``."""
    text = relative.as_posix() if isinstance(relative, Path) else relative.replace("\\", "/")
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text.removeprefix("./"))


def _folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder with the names in it, links followed; each once, by its identity in the file system."""
    met: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        where = waiting.pop()
        try:
            status = where.stat()
            if (status.st_dev, status.st_ino) in met:
                continue
            met.add((status.st_dev, status.st_ino))
            names = sorted(name for name in os.listdir(where) if not name.startswith("."))
        except OSError as error:
            raise InputError(
                f"a folder of the source cannot be read: {error.strerror}; see that you may read all of it, or move "
                "it away"
            ) from None
        yield where, names
        inside = [where / name for name in names if not name.casefold().endswith(".mff")]
        waiting += [path for path in reversed(inside) if path.is_dir()]


def _recordings(where: Path, names: list[str], arrays: ArrayFacts = NO_FACTS) -> dict[str, list[Path]]:
    """Yield the recordings of one folder: the name of the file to open, and all its files."""
    known = sorted(suffixes(), key=len, reverse=True)
    ends = {name: next((end for end in known if name.casefold().endswith(end)), None) for name in names}
    brainvision = ".vhdr" in ends.values()
    found: dict[str, list[Path]] = {}
    for name, end in ends.items():
        path = where / name
        if end is None or (end == ".eeg" and brainvision) or path.is_dir() != (end == ".mff"):
            continue
        if end in ARRAYS and (not _has_rate(path, arrays) or is_none(path)):
            continue
        if end in _TABLES and not is_headset(path) and not (_has_rate(path, arrays) and is_plain(path)):
            continue
        files = [name]
        if end in _SAME_STEM:
            stem = name[: -len(end)].casefold() + "."
            files += [
                other
                for other in names
                if other != name and other.casefold().startswith(stem) and ends[other] in (None, end, ".eeg")
            ]
        found[name] = [where / file for file in files]
    for first, parts in _chains(where, [name for name in found if ".fif" in name.casefold()]):
        for part in parts:
            found.pop(part, None)
        found[first] += [where / part for part in parts]
    return found


def _has_rate(path: Path, arrays: ArrayFacts) -> bool:
    return arrays.sfreq is not None or says_rate(path)


def _chains(where: Path, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Return first file and further parts of split FIF recordings; the files themselves name the next part."""
    here = set(names)
    firsts = {_PART.sub("", name) for name in names if _PART.search(name)}
    further: set[str] = set()
    for name in sorted(names, key=lambda name: (len(name), name)):
        if name in further or _PART.sub("", name) not in firsts:
            continue
        parts = [part for part in _follow(where / name) if part in here]
        further.update(parts)
        if parts:
            yield name, parts


def _follow(path: Path) -> list[str]:
    """Return the files behind the first of a split recording, as MNE reads them; none where it cannot."""
    try:
        import mne

        check_fif(path)
        with quietly():
            raw = mne.io.read_raw_fif(path, preload=False, verbose="warning")
            return [Path(file).name for file in raw.filenames[1:] if file is not None]
    except (ImportError, RecordingError):  # its turn to be skipped, with the reason, comes later
        return []


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return 0
