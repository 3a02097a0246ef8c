"""Reads a table of numbers from a text file (CSV, also gzipped): header, then columns, strictly.

A value that is missing becomes NaN, one that is no number is refused; so is a row with another number of columns, but
for a last one that was cut. Semicolons and tabs separate as well, and with them a decimal comma is read as what it is.
The text is read in blocks; only the columns that are asked for are kept. Errors say row and column, not what is there.
"""

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import RecordingError

_LINES = 1 << 15  # parsed at a time
_MOST_TEXT = 1 << 32  # bytes of text: 24 h of 16 channels at 256 Hz have 3 GB; a small .gz may unpack to anything
_MOST_LINE = 1 << 16
_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


@dataclass(frozen=True)
class Head:
    """What comes in front of the numbers."""

    comments: tuple[str, ...]
    """Lines that begin with %, without it."""
    columns: tuple[str, ...]
    separator: str


Columns = Callable[[Sequence[int], Sequence[int]], "Table"]


@dataclass(frozen=True)
class Table:
    """The columns that were asked for, (row, column)."""

    samples: NDArray[np.float32]
    exact: NDArray[np.float64]
    faults: tuple[Fault, ...]


@contextlib.contextmanager
def opened_table(path: Path) -> Iterator[tuple[Head, Columns]]:
    """The head of a table, and a function that reads columns: those with samples, and those that need 64 bits."""
    with opened(path):  # a folder, a pipe or a file that cannot be read ends here
        pass
    packed = False
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            lines = _lines(file)
            head = _head(lines)
            yield head, lambda samples, exact: _body(lines, head, list(samples), list(exact))
    except (OSError, EOFError, zlib.error) as error:
        why = "its compressed data is damaged or cut" if packed else "cannot be read"
        raise RecordingError("unreadable", f"{why} ({type(error).__name__}); copy the file anew") from None


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[str]:
    total, number = 0, 0
    while data := file.readline(_MOST_LINE):
        number += 1
        total += len(data)
        if total > _MOST_TEXT:
            raise RecordingError("too_large", f"more than {_MOST_TEXT >> 30} GiB of text; split the file")
        if len(data) >= _MOST_LINE and not data.endswith(b"\n"):
            raise RecordingError("text", f"line {number} has no end within {_MOST_LINE} bytes; this is no table")
        if b"\0" in data:
            raise RecordingError("text", f"line {number} has bytes that no text has; expected a table in UTF-8")
        try:
            yield data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise RecordingError("text", f"line {number} is no UTF-8; expected a table in UTF-8") from None


def _head(lines: Iterator[str]) -> Head:
    comments = []
    for line in lines:
        text = line.strip()
        if text.startswith("%"):
            comments.append(text[1:].strip())
        elif text:
            separator = max(",;\t", key=text.count)
            columns = tuple(field.strip().strip('"').strip() for field in text.split(separator))
            return Head(tuple(comments), columns, separator)
    raise RecordingError("empty", "no line that names columns")


def _body(lines: Iterator[str], head: Head, samples: list[int], exact: list[int]) -> Table:
    parts: list[tuple[NDArray[np.float32], NDArray[np.float64]]] = []
    faults: list[Fault] = []
    done, commas = 0, 0
    block = list(islice(lines, _LINES))
    while block:
        following = list(islice(lines, _LINES))
        if not following:
            block, cut = _without_cut_row(block, head)
            faults += [Fault("truncated", "the last row is cut; left out")] if cut else []
        if head.separator != ",":
            commas += sum(line.count(",") for line in block)
            block = [line.replace(",", ".") for line in block]
        if block:
            values = _parsed(block, head, samples + exact, done)
            with np.errstate(over="ignore"):  # a number beyond float32 is no voltage: infinite, and left out later
                parts.append((values[:, : len(samples)].astype(np.float32), values[:, len(samples) :].copy()))
        done += len(block)
        block = following
    if commas:
        faults.append(Fault("decimal_comma", f"{commas} numbers have a comma; read as a decimal point"))
    if not done:
        raise RecordingError("empty", "columns, but not one row of numbers")
    return Table(np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts]), tuple(faults))


def _without_cut_row(block: list[str], head: Head) -> tuple[list[str], bool]:
    while block and not block[-1].strip():
        block = block[:-1]
    # A last line without an end may lack fields, or digits: a number of which half is missing looks like any other.
    cut = bool(block) and not block[-1].endswith("\n") and block[-1].count(head.separator) != len(head.columns) - 1
    return (block[:-1] if cut else block), cut


def _parsed(block: list[str], head: Head, wanted: Sequence[int], done: int) -> NDArray[np.float64]:
    separators = len(head.columns) - 1
    for number, line in enumerate(block):
        if line.count(head.separator) != separators:
            raise RecordingError(
                "columns",
                f"row {done + number + 1} has {line.count(head.separator) + 1} columns, the first line names "
                f"{separators + 1}; decimal commas need another separator, such as ;",
            )
    try:
        return np.loadtxt(
            block, np.float64, comments=None, delimiter=head.separator, usecols=list(wanted), ndmin=2, quotechar='"'
        )
    except ValueError:
        return _parsed_slowly(block, head, wanted, done)


def _parsed_slowly(block: list[str], head: Head, wanted: Sequence[int], done: int) -> NDArray[np.float64]:
    out = np.empty((len(block), len(wanted)))
    for number, line in enumerate(block):
        fields = [field.strip().strip('"').strip() for field in line.split(head.separator)]
        for place, column in enumerate(wanted):
            text = fields[column]
            try:
                if "_" in text:
                    raise ValueError
                out[number, place] = np.nan if text.casefold() in _MISSING else float(text)
            except ValueError:
                raise RecordingError(
                    "number", f"row {done + number + 1}, column {column + 1}: not a number; mend or remove the row"
                ) from None
    return out
