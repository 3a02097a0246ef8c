"""Fingerprints of sources: they show a preparation that continues whether a file was replaced by another.

A fingerprint is two keyed hashes, ``<look>.<content>``. The first covers sizes and times of the files, the second all
their bytes. An unchanged look vouches for a source. A changed look only means that the bytes must be read, because
copying changes times.

The fingerprint stands in the line that commits a recording but outside the store's hash, since times differ from
machine to machine. Its key is derived from the user's and cannot be turned back. Without the key neither a time nor a
content can be guessed and tried. The id in each hash makes equal sources look different. A corpus that keeps its own
ids has no key, because its files are public.
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
    """Take the fingerprint of a source: its files or folders of files, and what tables tell about its samples.

    An OSError of the system is passed on, with a path in it.
    """
    return f"{look(seal, id, files, told)}.{content(seal, id, files, told)}"


def look(seal: bytes, id: str, files: Sequence[Path], told: str) -> str:
    """Hash the first half: sizes and times of the files."""
    found = _begin(seal, "look", id, told)
    for path in _all(files):
        status = path.stat()
        found.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:32]


def content(seal: bytes, id: str, files: Sequence[Path], told: str) -> str:
    """Hash the second half: every byte of the files."""
    found = _begin(seal, "content", id, told)
    for path in _all(files):
        with path.open("rb", buffering=0) as file:
            found.update(f"{os.fstat(file.fileno()).st_size}\n".encode())
            while piece := file.read(_PIECE):
                found.update(piece)
    return found.hexdigest()[:32]


def halves(text: str) -> tuple[str, str]:
    """Split a fingerprint into its two halves."""
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
