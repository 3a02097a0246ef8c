"""SkipLog: the sources that are not in a store, each with its reason in one word.

Each writer appends to a file of its own, ``<writer>.skipped.csv``. The skipped sources of a store are the union of
these files, less the stored ones. ``skipped.csv`` is that union, written for people at the end of a run. A source that
is to be tried again gets one more line in each file that has it, after which it counts as not tried.
"""

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from cerebro_eeg.data.storing.records import is_code, is_id
from cerebro_eeg.data.storing.shards import claim, disk_errors, write_all
from cerebro_eeg.errors import ConfigError, StoreBusyError, StoreError
from cerebro_eeg.files import write_text

_END = ".skipped.csv"
_FORGOTTEN = "forgotten"
TRANSIENT = frozenset(("unreadable", "changed", "reader_oserror", "reader_memoryerror"))
"""Reasons that may lie with a disk, a network or a busy machine; every run tries such sources again."""


class SkipLog:
    """The skipped sources of one writer. Each addition is on the disk at once; repeating it changes nothing."""

    def __init__(self, folder: Path, writer: str) -> None:
        path = folder / f"{writer}{_END}"
        with disk_errors():
            self._file = claim(path)
            try:
                data = path.read_bytes()
                self._codes = _parse(data, path.name)
                self._end = data.rfind(b"\n") + 1
                os.ftruncate(self._file, self._end)  # a line that a kill cut short
            except BaseException:
                os.close(self._file)
                raise

    def add(self, id: str, code: str) -> None:
        """Record that a source was left out; the last reason counts."""
        if not is_id(id) or not is_code(code) or code == _FORGOTTEN:
            raise ConfigError(f"a skipped source needs an id and a reason in one word, got {id!r} and {code!r}")
        if self._codes.get(id) != code:
            self._append(f"{id},{code}\n")
            self._codes[id] = code

    def forget(self, ids: Collection[str]) -> None:
        """Let these sources count as not tried."""
        known = sorted(self._codes.keys() & set(ids))
        if known:
            self._append("".join(f"{id},{_FORGOTTEN}\n" for id in known))
        for id in known:
            del self._codes[id]

    def close(self) -> None:
        """Release the name for another process."""
        os.close(self._file)

    def _append(self, text: str) -> None:
        with disk_errors():  # half a line that a full disk leaves is written over, or cut off on opening
            end = write_all(self._file, text.encode(), self._end)
            os.fsync(self._file)
        self._end = end

    def __enter__(self) -> "SkipLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_skipped(folder: Path, stored: Collection[str] = ()) -> dict[str, str]:
    """Return the reason by id, sorted, of all sources that any writer skipped and that are not stored."""
    found: dict[str, str] = {}
    for name in _logs(folder):
        for id, code in _parse((folder / name).read_bytes(), name).items():
            found[id] = min(code, found.get(id, code))  # two writers may have met it: any order must give one answer
    return {id: found[id] for id in sorted(found.keys() - set(stored))}


def forget(folder: Path, ids: Collection[str]) -> None:
    """Let sources count as not tried, in the files of all idle writers; those at work have just tried theirs."""
    with disk_errors("read"):
        names = _logs(folder) if ids else []
    for name in names:
        with contextlib.suppress(StoreBusyError), SkipLog(folder, name.removesuffix(_END)) as log:
            log.forget(ids)


def write_skipped(folder: Path, skipped: Mapping[str, str]) -> None:
    """Write ``skipped.csv``."""
    text = "".join(["id,reason\n", *(f"{id},{code}\n" for id, code in skipped.items())])
    with disk_errors():
        write_text(folder / "skipped.csv", text)


def _logs(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(_END))


def _parse(data: bytes, name: str) -> dict[str, str]:
    codes: dict[str, str] = {}
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        id, comma, code = line.decode("ascii", "replace").partition(",")
        if not comma or not is_id(id) or not is_code(code):
            raise StoreError(f"line {number} of {name} is damaged; remove the file, and its sources are tried again")
        if code == _FORGOTTEN:
            codes.pop(id, None)
        else:
            codes[id] = code
    return codes
