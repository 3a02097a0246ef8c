"""How results show themselves in a notebook: one line of text, a small table in HTML, a pandas frame. Stdlib only.

Names of classes, channels and files are written by others, so every text that enters the HTML is escaped here.
"""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import ConfigError, import_trouble, python_words
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    import pandas

ROWS, COLUMNS = 12, 12
"""How much of a table a notebook shows; the frame has all of it."""
_WIDTH = 200
"""The most characters of a cell or of a line."""


class Shown:
    """A result that a notebook shows: subclasses say what it is in a line, and give their table by columns."""

    def _headline(self) -> str:
        """Return one short line on the result."""
        raise NotImplementedError

    def _facts(self) -> Mapping[str, object]:
        """Return a few facts by name, which the notebook shows above the table."""
        return {}

    def _notes(self) -> Sequence[str]:
        """Return lines that a reader must not miss."""
        return ()

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return the table: equally long columns by name."""
        return {}

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table as a DataFrame of pandas."""
        return frame_of(self._columns())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {_short(self._headline())}>"

    def _repr_html_(self) -> str:
        return page(type(self).__name__, self._headline(), self._facts(), self._columns(), self._notes())


class InFolder(Shown):
    """A result that lies in a folder: it can be given wherever a path is expected, such as ``Path(result)``."""

    folder: str

    def __fspath__(self) -> str:
        return os.fspath(self.folder)


def frame_of(columns: Mapping[str, Sequence[Any]]) -> "pandas.DataFrame":
    """Return columns as a DataFrame; a ConfigError says what to install where pandas is missing."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(f"no frame can be made: {import_trouble(error, 'pandas')}") from None
    return pandas.DataFrame(dict(columns))


def by_column(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns; what a row lacks is None."""
    kept = list(rows)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: [row.get(name) for row in kept] for name in names}


def column_names(names: Sequence[str], prefix: str = "") -> list[str]:
    """Return names as columns of a table: letters, digits and ``_`` alone, so that ``frame.name`` works, each once."""
    found: list[str] = []
    for name in names:
        plain = "".join(c if c.isalnum() else "_" for c in name).strip("_") or "unnamed"
        base = f"{prefix}_{plain}" if prefix else plain
        number, column = 1, base
        while column in found:  # "eyes open" and "eyes_open"
            number += 1
            column = f"{base}_{number}"
        found.append(column)
    return found


def page(
    kind: str,
    headline: str,
    facts: Mapping[str, object],
    columns: Mapping[str, Sequence[Any]],
    notes: Sequence[str],
) -> str:
    """Return a result as HTML without style sheets or scripts; every text is escaped."""
    parts = [f"<div><p><b>{_text(kind)}</b>: {_text(headline)}</p>"]
    if facts:
        parts.append("<p>" + "<br>".join(f"{_text(name)}: {_text(value)}" for name, value in facts.items()) + "</p>")
    parts += _table(columns)
    if notes:
        parts.append("<ul>" + "".join(f"<li>{_text(python_words(note))}</li>" for note in notes) + "</ul>")
    return "".join([*parts, "</div>"])


def _table(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    names = list(columns)[:COLUMNS]
    total = min((len(columns[name]) for name in names), default=0)
    if not total:
        return []
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    rows = [
        "<tr>" + "".join(f"<td>{_text(columns[name][place])}</td>" for name in names) + "</tr>"
        for place in range(min(total, ROWS))
    ]
    more = []
    if total > ROWS:
        more.append(f"{total - ROWS:,} more rows")
    if len(columns) > COLUMNS:
        more.append(f"{len(columns) - COLUMNS:,} more columns")
    found = [f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"]
    return [*found, f"<p>{' and '.join(more)}: to_frame() has all</p>"] if more else found


def _text(value: object) -> str:
    """Return a value as escaped text in one line; a number with five digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str | bool) or not hasattr(value, "__float__"):
        return html.escape(_short(str(value)))
    number = float(value)
    return f"{number:,.0f}" if number.is_integer() else f"{number:.5g}"


def _short(text: str) -> str:
    line = one_line(" ".join(text.split()))
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
