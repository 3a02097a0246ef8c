"""Fingerprints of sources: by what a preparation that goes on notices that a file was replaced by another.

A fingerprint is two keyed hashes, ``<look>.<content>``: one of what a look at the files tells, their sizes and times,
and one of all their bytes. Times change when files are copied or touched and can be set back, so a look that is
unchanged vouches for a source, and one that has changed only means that the bytes must be read.

It stands in the line that commits a recording but outside of what a store's hash covers, since times differ from
machine to machine. The key is made from the user's and cannot be turned back into it; without it neither a time nor a
content can be guessed and tried, and the id in each hash keeps equal sources apart. Where a corpus keeps its own ids
there is no key: its files are public.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_FORM = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{32}")
_PIECE = 1 << 20  # bytes that are hashed at a time


def take(seal: bytes, id: str, files: Sequence[Path], told: str) -> str:
    """The fingerprint of a source: its files, each by itself or a folder of them, and what tables tell of its samples.

    An OSError of the system leaves, with a path in it.
    """
    return f"{look(seal, id, files, told)}.{content(seal, id, files, told)}"


def look(seal: bytes, id: str, files: Sequence[Path], told: str) -> str:
    """The first half: sizes and times of the files."""
    found = _begin(seal, "look", id, told)
    for path in _all(files):
        status = path.stat()
        found.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:32]


def content(seal: bytes, id: str, files: Sequence[Path], told: str) -> str:
    """The second half: every byte of the files."""
    found = _begin(seal, "content", id, told)
    for path in _all(files):
        with path.open("rb", buffering=0) as file:
            found.update(f"{os.fstat(file.fileno()).st_size}\n".encode())
            while piece := file.read(_PIECE):
                found.update(piece)
    return found.hexdigest()[:32]


def halves(text: str) -> tuple[str, str]:
    """The two halves of a fingerprint."""
    first, _, second = text.partition(".")
    return first, second


def is_fingerprint(text: str) -> bool:
    return _FORM.fullmatch(text) is not None


def _begin(seal: bytes, half: str, id: str, told: str) -> hmac.HMAC:
    return hmac.new(seal, f"{half}\0{id}\0{len(told)}\0{told}".encode("utf-8", "surrogateescape"), hashlib.sha256)


def _all(files: Sequence[Path]) -> Iterator[Path]:
    for path in files:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file())
        else:
            yield path
