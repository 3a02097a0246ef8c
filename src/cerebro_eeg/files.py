"""Files: every file that the package writes is written here, completely or not at all. Standard library only.

A file is written to a hidden sibling, flushed to the disk and renamed over the target. So no reader, crash or full disk
leaves half a file. POSIX and Windows both replace atomically within one folder.

A folder in which ``begin_sums`` was called has a ``SHA256SUMS`` in the format of ``sha256sum -c``, and every file that
is written into it here is listed there. A file is taken off the list before it is replaced and listed anew afterwards.
So a kill leaves a file without a sum at worst, never one with a wrong sum.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

SUMS = "SHA256SUMS"
MARK = "# The files that cerebro-eeg wrote here. Check them with cerebro-eeg verify, or with sha256sum -c SHA256SUMS.\n"
"""The first line of ``SHA256SUMS``. A list without it belongs to somebody else and is not touched."""
_SUM = re.compile(r"([0-9a-f]{64})  ([^\n]+)")
_PIECE = 1 << 20
_UNFLUSHED: ContextVar[bool] = ContextVar("unflushed", default=False)


@contextlib.contextmanager
def replacing(path: Path, *, summed: bool = True) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` to write to; it replaces ``path`` when the block ends without an error.

    A file that is not ``summed`` is never listed in ``SHA256SUMS``.
    """
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
        _put(temporary, path, summed)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # the file is in place; some file systems cannot flush a folder
        _flush(path.parent)


def write_text(path: Path, text: str, *, summed: bool = True) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path, summed=summed) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_once(path: Path, text: str) -> None:
    """Write a UTF-8 text file unless it is there: of several processes that do so at once, the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    write_text(draft, text)
    try:
        os.link(draft, path)  # fails where the name exists; a rename would replace it
    except FileExistsError:
        pass
    except OSError:  # no hard links on this file system
        if not path.exists():
            write_text(path, text)
    finally:
        draft.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Delete a file, if it is there, and take it off the list of sums before."""
    if _has_sums(path.parent):
        with _alone(path.parent):
            _list(path, None)
    path.unlink(missing_ok=True)


def begin_sums(folder: Path, names: Iterable[str] = ()) -> None:
    """Make ``SHA256SUMS`` in a folder, unless there is one, with these files of it."""
    if not (folder / SUMS).exists():
        with _alone(folder):
            _write_sums(folder, {name: file_sum(folder / name) for name in names})


def forget_sums(folder: Path) -> None:
    """Delete our ``SHA256SUMS`` of a folder before many files are written, which ``begin_sums`` then lists at once."""
    if _has_sums(folder):
        (folder / SUMS).unlink(missing_ok=True)


def add_sum(path: Path) -> None:
    """List a file that was not written at once, such as a log, if its folder has a list."""
    if _has_sums(path.parent):
        with _alone(path.parent):
            _list(path, file_sum(path))


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 by name of ``SHA256SUMS``; a ValueError where a line is not as we write it."""
    text = (folder / SUMS).read_bytes().decode("utf-8", "surrogateescape")
    found: dict[str, str] = {}
    if not text.startswith(MARK) or not text.endswith("\n"):
        raise ValueError("the first line or the end is not ours")
    for line in text.removeprefix(MARK).split("\n")[:-1]:
        match = _SUM.fullmatch(line)
        if match is None or match[2] in found:
            raise ValueError("a line is not ours")
        found[match[2]] = match[1]
    return found


def file_sum(path: Path, done: Callable[[int], None] = lambda size: None) -> str:
    """Return the SHA-256 of a file; ``done`` is called with the bytes of each piece."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            found.update(piece)
            done(len(piece))
    return found.hexdigest()


def seal(path: Path, mark: bytes) -> None:
    """Write a file's SHA-256 into the file itself, over the 64 zeros behind ``mark``, of which it is the sum, too."""
    place, _ = _find_seal(path, mark)
    if place < 0:
        raise ValueError("the file has no place for its sum")
    text = _sum_around(path, place)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(text.encode())


def check_seal(path: Path, mark: bytes, done: Callable[[int], None] = lambda size: None) -> bool | None:
    """Return whether a file has the SHA-256 that stands behind ``mark`` in it; None where there is none."""
    place, found = _find_seal(path, mark)
    return None if place < 0 else found == _sum_around(path, place, done).encode()


def _find_seal(path: Path, mark: bytes) -> tuple[int, bytes]:
    """Return where the sum of a file stands in it, and the sum; it stands near the end."""
    with path.open("rb") as file:
        first = max(0, file.seek(0, os.SEEK_END) - _PIECE)
        file.seek(first)
        data = file.read()
    place = data.rfind(mark) + len(mark)
    return (first + place, data[place : place + 64]) if place >= len(mark) and place + 64 <= len(data) else (-1, b"")


def _sum_around(path: Path, place: int, done: Callable[[int], None] = lambda size: None) -> str:
    """Return the SHA-256 of a file with 64 zeros at ``place``."""
    found, at = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while piece := bytearray(file.read(_PIECE)):
            first, last = max(place - at, 0), min(place + 64 - at, len(piece))
            if first < last:
                piece[first:last] = b"0" * (last - first)
            found.update(piece)
            at += len(piece)
            done(len(piece))
    return found.hexdigest()


def _put(temporary: Path, path: Path, summed: bool) -> None:
    """Replace a file and its line in the list of sums."""
    if not _has_sums(path.parent) or path.name == SUMS:
        os.replace(temporary, path)
        return
    new = file_sum(temporary) if summed else None
    with _alone(path.parent):
        _list(path, new, only_if_same=True)
        os.replace(temporary, path)
        if new is not None:
            _list(path, new)


def _list(path: Path, sum: str | None, *, only_if_same: bool = False) -> None:
    """Set the sum of a file in the list, or take it off."""
    try:
        listed = read_sums(path.parent)
    except (OSError, ValueError):
        return  # it is gone or damaged: ``verify`` says so, and writing goes on
    wanted = {name: value for name, value in listed.items() if name != path.name}
    if sum is not None and (not only_if_same or listed.get(path.name) == sum):
        wanted[path.name] = sum
    if wanted != listed:
        _write_sums(path.parent, wanted)


def _write_sums(folder: Path, sums: dict[str, str]) -> None:
    text = MARK + "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    with replacing(folder / SUMS) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


def _has_sums(folder: Path) -> bool:
    """Return whether a folder has a list that is ours."""
    try:
        with (folder / SUMS).open("rb") as file:
            return file.readline() == MARK.encode()
    except OSError:
        return False


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the list meanwhile, where the system has locks of folders."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl  # Windows has none

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


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


@contextlib.contextmanager
def unflushed() -> Iterator[None]:
    """Do not wait for the disk while the block lasts, for a temporary folder that nobody reads after a crash."""
    token = _UNFLUSHED.set(True)
    try:
        yield
    finally:
        _UNFLUSHED.reset(token)


def _flush(path: Path) -> None:
    """Flush a file, or on POSIX the entries of a folder, to the disk."""
    if _UNFLUSHED.get():
        return
    if path.is_dir() and os.name == "nt":  # Windows cannot open a folder, and renames durably without it
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
