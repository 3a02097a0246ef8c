"""Lock: one process at a time in the folder of a run, and no trace of those who fail before there is a run.

The lock is a file that the kernel holds for us, so that it is free when its process ends, however it does. The file
counts the folders that were made for it: whoever fails while others come, or is killed, leaves it to them to take the
folders away. Standard library only.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import remove_empty

NAME = ".lock"
_PATIENCE = 50  # milliseconds, where the folders are not empty and nobody has the lock


@contextlib.contextmanager
def held(folder: Path, begun: Callable[[], bool]) -> Iterator[None]:
    """Hold the folder, which is made where it is absent; where the block ends and nothing has begun, undo that."""
    descriptor = _claim(folder)
    try:
        yield
    finally:
        if not begun():
            _leave(folder, descriptor)
        os.close(descriptor)


def _claim(folder: Path) -> int:
    """The lock, held; one that another process takes away while we come for it is worth nothing."""
    lock, made = folder / NAME, 0
    while True:
        with contextlib.suppress(FileNotFoundError):  # somebody takes the folder away: once more
            made = max(made, _make(folder))
            descriptor, new = _open(lock)
            if new or made:  # before it is ours: whoever holds it may be the last one here
                os.write(descriptor, _note(made))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
            except OSError:
                free = False
            if _is_there(descriptor, lock):
                if free:
                    return descriptor
                os.close(descriptor)
                raise ConfigError(f"another process is training in {folder}; wait for it, or stop it")
            os.close(descriptor)


def _leave(folder: Path, descriptor: int) -> None:
    """Take the lock away and the folders that were made for it; where another process has come by then, it will."""
    lock = folder / NAME
    if os.fstat(descriptor).st_size and not _notes(descriptor):  # a file of another program
        return
    lock.unlink(missing_ok=True)
    made = max(_notes(descriptor), default=0)  # read now: who writes later sees that the file is gone
    folders = [folder, *folder.parents][:made]
    for _ in range(_PATIENCE):
        remove_empty(folders)
        if not any(one.exists() for one in folders) or _hand_over(lock, made):
            return
        time.sleep(0.001)  # somebody is about to make a lock here


def _hand_over(lock: Path, made: int) -> bool:
    """Tell who has the lock now of the folders that were made; whether there is somebody."""
    try:
        theirs = os.open(lock, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return False
    try:
        os.write(theirs, _note(made))
        return _is_there(theirs, lock)
    finally:
        os.close(theirs)


def _make(folder: Path) -> int:
    """Make what is absent of a folder and those that it lies in; how many of them, from the innermost on, are ours."""
    made = 0
    for place, one in reversed(list(enumerate((folder, *folder.parents), 1))):
        if not one.exists():
            with contextlib.suppress(FileExistsError):
                one.mkdir()
                made = max(made, place)
    return made


def _open(lock: Path) -> tuple[int, bool]:
    """The file, and whether it is new."""
    try:
        return os.open(lock, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(lock, os.O_RDWR | os.O_APPEND), False
    except NotADirectoryError as error:
        raise ConfigError(f"{lock.parent} is a file; give a folder for --out") from error


def _is_there(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _note(made: int) -> bytes:
    return f"made {made}\n".encode()


def _notes(descriptor: int) -> list[int]:
    return [int(number) for number in re.findall(rb"^made (\d+)$", os.pread(descriptor, 1 << 16, 0), re.MULTILINE)]
