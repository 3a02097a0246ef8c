"""SkipLog: the sources that are not in a store, each with its reason in one word and in a sentence.

Each writer appends to a file of its own, ``<writer>.skipped.csv``. The skipped sources of a store are the union of
these files, less the stored ones. ``skipped.csv`` is that union, written for people at the end of a run, with what they
can do. A source that is to be tried again gets one more line in each file that has it, after which it counts as not
tried. Sentences name no path and nobody who was recorded. A line ends in the CRC-32 of what stands before; lines of
earlier releases have none, and no sentence.
"""

import contextlib
import io
import os
import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from cerebro_eeg.data.storing.records import is_code, is_id
from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.data.storing.shards import claim, disk_errors, write_all
from cerebro_eeg.errors import ConfigError, StoreBusyError, StoreError
from cerebro_eeg.files import write_text
from cerebro_eeg.terminal import CsvWriter

_END = ".skipped.csv"
_FORGOTTEN = "forgotten"
_SUM = re.compile(rb",#([0-9a-f]{8})$")
TRANSIENT = frozenset(("unreadable", "changed", "reader_oserror", "reader_memoryerror"))
"""Reasons that may lie with a disk, a network or a busy machine; every run tries such sources again."""


class Skip(NamedTuple):
    """Why a source is not in a store."""

    code: str
    why: str = ""
    """A sentence; empty in stores of older versions."""


class SkipLog:
    """The skipped sources of one writer. Each addition is on the disk at once; repeating it changes nothing."""

    def __init__(self, folder: Path, writer: str) -> None:
        path = folder / f"{writer}{_END}"
        with disk_errors():
            self._file = claim(path)
            try:
                data = path.read_bytes()
                self._found = parse(data, path.name)
                self._end = data.rfind(b"\n") + 1
                os.ftruncate(self._file, self._end)  # a line that a kill cut short
            except BaseException:
                os.close(self._file)
                raise

    def add(self, id: str, code: str, why: str = "") -> None:
        """Record that a source was left out; the last reason counts."""
        if not is_id(id) or not is_code(code) or code == _FORGOTTEN:
            raise ConfigError(f"a skipped source needs an id and a reason in one word, got {id!r} and {code!r}")
        new = Skip(code, _one_line(why))
        if self._found.get(id) != new:
            self._append(_line(id, code, new.why))
            self._found[id] = new

    def forget(self, ids: Collection[str]) -> None:
        """Let these sources count as not tried."""
        known = sorted(self._found.keys() & set(ids))
        if known:
            self._append("".join(_line(id, _FORGOTTEN) for id in known))
        for id in known:
            del self._found[id]

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
    """Return the reason by id, in a word, of all sources that any writer skipped and that are not stored; sorted."""
    return {id: skip.code for id, skip in read_reasons(folder, stored).items()}


def read_reasons(folder: Path, stored: Collection[str] = ()) -> dict[str, Skip]:
    """Return the same with the sentences."""
    found: dict[str, Skip] = {}
    for name in _logs(folder):
        for id, skip in parse((folder / name).read_bytes(), name).items():
            found[id] = min(skip, found.get(id, skip))  # two writers may have met it: any order must give one answer
    return {id: found[id] for id in sorted(found.keys() - set(stored))}


def forget(folder: Path, ids: Collection[str]) -> None:
    """Let sources count as not tried, in the files of all idle writers; those at work have just tried theirs."""
    with disk_errors("read"):
        names = _logs(folder) if ids else []
    for name in names:
        with contextlib.suppress(StoreBusyError), SkipLog(folder, name.removesuffix(_END)) as log:
            log.forget(ids)


def write_skipped(folder: Path, skipped: Mapping[str, Skip]) -> None:
    """Write ``skipped.csv``: id, reason in a word, the sentence, and what to do."""
    with disk_errors():
        write_text(folder / "skipped.csv", skipped_text(skipped))


def skipped_text(skipped: Mapping[str, Skip]) -> str:
    """Return what ``skipped.csv`` says."""
    text = io.StringIO()
    table = CsvWriter(text)
    table.writerow(("id", "reason", "why", "remedy"))
    table.writerows((id, skip.code, skip.why, remedy_of(skip.code)) for id, skip in skipped.items())
    return text.getvalue()


def _logs(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(_END))


def _line(id: str, code: str, why: str = "") -> str:
    text = f"{id},{code},{why}" if why else f"{id},{code}"
    return f"{text},#{zlib.crc32(text.encode()):08x}\n"


def parse(data: bytes, name: str) -> dict[str, Skip]:
    """Return reason and sentence by id of the lines of one file; a StoreError names the line that is damaged."""
    found: dict[str, Skip] = {}
    *lines, rest = data.split(b"\n")
    if _SUM.search(rest[:-1]) and _split(rest[:-1]) is not None:  # whole, with another byte than a line feed
        lines.append(b"")
    for number, line in enumerate(lines, 1):
        id, code, why = _split(line) or ("", "", "")
        if not id:
            raise StoreError(f"line {number} of {name} is damaged; remove the file, and its sources are tried again")
        if code == _FORGOTTEN:
            found.pop(id, None)
        else:
            found[id] = Skip(code, why)
    return found


def _split(line: bytes) -> tuple[str, str, str] | None:
    """Return id, reason and sentence of a line; None where it is damaged. A line without a sum has no sentence."""
    sum = _SUM.search(line)
    text = line[: sum.start()] if sum else line
    id, code, why = (*text.decode("utf-8", "replace").split(",", 2), "", "")[:3]
    sound = is_id(id) and is_code(code) and (int(sum[1], 16) == zlib.crc32(text) if sum else text.count(b",") == 1)
    return (id, code, why) if sound else None


def _one_line(text: str) -> str:
    """Return a sentence without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
