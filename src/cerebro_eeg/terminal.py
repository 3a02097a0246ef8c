"""Text from data, made safe to show in a terminal, in one line or in a cell of a table. Standard library only.

Channel labels, classes, events and file names are written by others. A control character among them could clear the
screen, forge a line or turn the direction of writing; a cell that begins with ``=`` is a formula for a spreadsheet.
"""

import csv
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def visible(text: str) -> str:
    r"""Return lines for a terminal: a character that is not seen becomes its code, such as ``\x1b``; line ends stay.

    These are control characters, those that turn the direction of writing, those without width, and halves of a pair.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or not _unseen(c) else _code(c) for c in text)


def one_line(text: str) -> str:
    r"""Return a name as one line without unseen characters; a line end becomes ``\n``."""
    return visible(text).replace("\n", "\\n")


def has_controls(text: str) -> bool:
    """Return whether a name holds a control character, a line end or a turn of direction, which no name needs."""
    return any(c in _TURNING or unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs") for c in text)


def cell(value: Any) -> Any:
    """Return a value as a cell of a table: no formula, and nothing unseen. Numbers stay as they are, also as text."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    formula = len(value) > 1 and value.startswith(_FORMULA) and not _is_number(value)
    return f"'{text}" if formula else text


class CsvWriter:
    """Writes the rows of a CSV file, each cell made safe by ``cell``."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")

    def writerow(self, row: Iterable[Any]) -> None:
        self._writer.writerow([cell(value) for value in row])

    def writerows(self, rows: Iterable[Iterable[Any]]) -> None:
        for row in rows:
            self.writerow(row)


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()
