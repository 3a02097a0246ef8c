"""Files: every file that the package writes is written here, completely or not at all. Standard library only.

A file is written to a hidden sibling, flushed to the disk and renamed over the target. So no reader, crash or full disk
leaves half a file. POSIX and Windows both replace atomically within one folder.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write to; it replaces ``path`` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name if len(os.fsencode(path.name)) < 200 else "long"  # the longer name must fit, too
    temporary = path.with_name(f".{name}.{secrets.token_hex(8)}.tmp")
    temporary.touch(exist_ok=False)  # not mkstemp, because the file should get the permissions that `open` gives
    permissions = temporary.stat().st_mode
    try:
        yield temporary
        # safetensors replaces the file by a new one with mode 0600: restore the permissions.
        temporary.chmod(permissions)
        _flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the file is in place; some file systems cannot flush a folder
        _flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """Return the values of a JSON text; a ValueError for any text that is not JSON, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def real(path: Path) -> Path:
    """Return the path without links. A link that leads back to itself stays; ``Path.resolve`` would raise an error."""
    return Path(os.path.realpath(path))


def absent(folder: Path) -> list[Path]:
    """Return the folders that making this one would create, innermost first."""
    return [one for one in (folder, *folder.parents) if not one.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the folders that are empty, in this order."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not empty, or does not exist
            folder.rmdir()


def _flush(path: Path) -> None:
    """Flush a file, or on POSIX the entries of a folder, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder, and renames durably without it
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
