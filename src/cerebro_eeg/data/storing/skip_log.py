"""SkipLog: the sources that are not in a store, each with its reason in one word.

Each writer appends to a file of its own, ``<writer>.skipped.csv``. The skipped sources of a store are the union of
these files, less the stored ones. ``skipped.csv`` is that union, written for people at the end of a run. A source that
is to be tried again gets one more line in each file that has it, after which it counts as not tried. A line ends in the
CRC-32 of what stands before; lines of earlier releases have none.
"""

import contextlib
import os
import zlib
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
                self._codes = parse(data, path.name)
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
            self._append(_line(id, code))
            self._codes[id] = code

    def forget(self, ids: Collection[str]) -> None:
        """Let these sources count as not tried."""
        known = sorted(self._codes.keys() & set(ids))
        if known:
            self._append("".join(_line(id, _FORGOTTEN) for id in known))
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
        for id, code in parse((folder / name).read_bytes(), name).items():
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
    with disk_errors():
        write_text(folder / "skipped.csv", skipped_text(skipped))


def skipped_text(skipped: Mapping[str, str]) -> str:
    """Return what ``skipped.csv`` says."""
    return "".join(["id,reason\n", *(f"{id},{code}\n" for id, code in skipped.items())])


def _logs(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(_END))


def _line(id: str, code: str) -> str:
    text = f"{id},{code}"
    return f"{text},#{zlib.crc32(text.encode()):08x}\n"


def parse(data: bytes, name: str) -> dict[str, str]:
    """Return the reason by id of the lines of one file; a StoreError names the line that is damaged."""
    codes: dict[str, str] = {}
    *lines, rest = data.split(b"\n")
    if rest[:-1].count(b",#") and _split(rest[:-1]) is not None:  # whole, with another byte than a line feed
        lines.append(b"")
    for number, line in enumerate(lines, 1):
        id, code = _split(line) or ("", "")
        if not id:
            raise StoreError(f"line {number} of {name} is damaged; remove the file, and its sources are tried again")
        if code == _FORGOTTEN:
            codes.pop(id, None)
        else:
            codes[id] = code
    return codes


def _split(line: bytes) -> tuple[str, str] | None:
    """Return id and reason of a line; None where it is damaged. Neither can have a #, so no sum is taken for one."""
    text = line.decode("ascii", "replace")
    id, _, rest = text.partition(",")
    code, comma, _ = rest.partition(",")
    sound = is_id(id) and is_code(code) and (not comma or _line(id, code) == f"{text}\n")
    return (id, code) if sound else None
