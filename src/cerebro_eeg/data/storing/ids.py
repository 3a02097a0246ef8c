"""Ids of recordings: keyed hashes of what is in their files, so a file has one id wherever it lies.

``prepare``, ``predict`` and ``embed`` therefore agree about a file, and their results can be joined. The id covers the
file that is opened and the further files with its samples. Marker files and tables beside them do not count. Neither do
the lines of a header that name other files, so a renamed recording keeps its id.

A large file is not read whole: its size, its first and last 64 KiB and some blocks between them stand for it. Two files
that are equal there get one id, and the second in the order of a listing gets ``.2`` behind it. They are mostly copies.
"""

import hashlib
import os
import re
import stat
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cerebro_eeg.data.storing import privacy
from cerebro_eeg.progress import counted

_BLOCK = 1 << 16  # bytes
_BETWEEN = 4  # blocks between the first and the last
_HEADERS = (".vhdr", ".lay")  # text that names the files beside it
_LARGEST = 1 << 20  # bytes of such a header; a larger file is none
_NAMES = re.compile(rb"^[ \t]*(?:(?:DataFile|File)[ \t]*=[ \t]*([^\r\n]*)|MarkerFile[ \t]*=[^\r\n]*)", re.I | re.M)
_SAMPLES = (".eeg", ".dat", ".fdt", ".fif", ".fif.gz")
_THREADS = 16  # a file server answers many at once


def make_ids(key: bytes, sources: Sequence[Sequence[Path]]) -> list[str | OSError]:
    """Make the id of each recording from its files, the one that is opened first; return the error where that fails.

    Of equal ids the second gets ``.2`` behind it, and so on, and a warning says how many there are.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(_digest, sources))
    found: list[str | OSError] = []
    met, copies = Counter[str](), 0
    for digest in digests:
        if isinstance(digest, OSError):
            found.append(digest)
            continue
        text, empty = digest
        met[text] += 1
        copies += met[text] > 1 and not empty
        id = privacy.make_id(key, "recording", text)
        found.append(id if met[text] == 1 else f"{id}.{met[text]}")
    if copies:
        warnings.warn(
            f"{counted(copies, 'recording')} {'has' if copies == 1 else 'have'} the content of another one here (all "
            "or most bytes), so the id ends in .2, .3 and so on; remove the copies, which two splits may share",
            stacklevel=2,
        )
    return found


def _digest(files: Sequence[Path]) -> tuple[str, bool] | OSError:
    """Hash the files of a recording; also return whether they are all empty."""
    found, total = hashlib.sha256(), 0
    try:
        for path in _with_samples(files):
            size, blocks = _blocks(path)
            total += size
            found.update(f"{size}\n".encode())
            for block in blocks:
                found.update(hashlib.sha256(block).digest())
    except OSError as error:
        return error
    return found.hexdigest(), total == 0


def _with_samples(files: Sequence[Path]) -> list[Path]:
    """Return the file that is opened, or what is in it if it is a folder, and the further files with samples."""
    main, others = files[0], [path for path in files[1:] if path.name.casefold().endswith(_SAMPLES)]
    if main.is_dir():
        inside = [path for path in main.rglob("*") if path.is_file() and not path.name.startswith(".")]
        return sorted(inside, key=lambda path: path.relative_to(main).as_posix())
    if main.name.casefold().endswith(_HEADERS):
        names = [match[1] for match in _NAMES.finditer(main.read_bytes()[:_LARGEST]) if match[1]]
        named = [main.parent / os.fsdecode(name.strip()).replace("\\", "/").rpartition("/")[2] for name in names]
        others = [path for path in named if path.is_file()] or others
    elif not main.name.casefold().endswith(
        (".fif", ".fif.gz")
    ):  # parts of a split FIF file are in the order of reading
        others = sorted(others, key=lambda path: path.suffix.casefold())
    return [main, *others]


def _blocks(path: Path) -> tuple[int, list[bytes]]:
    """Return the size of a file, and the blocks that stand for it."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise OSError(0, "it is no ordinary file")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if path.name.casefold().endswith(_HEADERS) and size <= _LARGEST:
            text = _NAMES.sub(b"", file.read())
            return len(text), [text]
        most = (_BETWEEN + 2) * _BLOCK
        if size <= most:
            return size, [file.read(size)]
        blocks = []
        for number in range(_BETWEEN + 2):
            file.seek(number * (size - _BLOCK) // (_BETWEEN + 1))
            blocks.append(file.read(_BLOCK))
        return size, blocks
