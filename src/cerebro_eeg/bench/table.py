"""Table: the results of a benchmark as columns for the terminal, as CSV, and as a plot."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro_eeg.bench.machine import Where
from cerebro_eeg.files import write_text
from cerebro_eeg.report.figures import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, drawing, plain_tick
from cerebro_eeg.report.figures import write_in_panel as write_on
from cerebro_eeg.terminal import CsvWriter

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Cell = str | int | float | None
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", DARK, GREY)
MISSING = "-"


@dataclass(frozen=True)
class Series:
    """Points of one colour; a point without a value (None) is left out."""

    label: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    style: str = "-"
    """A line style of matplotlib; a style other than "-" takes the colour of the series before it."""


@dataclass(frozen=True)
class Panel:
    """One of a table's plots: lines where x has numbers, bars with their values where x has words."""

    title: str
    x: str
    series: Sequence[Series]
    mark: float | None = None
    """Height of a horizontal line at the expected value, such as 1 for "as fast as the rival"."""
    logarithmic: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of measurements."""

    name: str
    """Name of its files."""
    title: str
    columns: Mapping[str, str | None]
    """Name and number format of each column; an "x" behind the format marks a ratio, None a column of the CSV only."""
    rows: Sequence[Sequence[Cell]]
    panels: Sequence[Panel]
    notes: Sequence[str] = ()
    """Lines below the table: ceilings, means, rivals that fail."""
    shown: Sequence[int] | None = field(default=None)
    """Rows for the terminal; None: all."""

    def text(self, where: Where) -> str:
        """Return the table as text for a terminal."""
        names = [name for name, form in self.columns.items() if form is not None]
        places = [list(self.columns).index(name) for name in names]
        chosen = self.rows if self.shown is None else [self.rows[number] for number in self.shown]
        lines = [names]
        lines += [
            [show(row[place], self.columns[name]) for name, place in zip(names, places, strict=True)] for row in chosen
        ]
        words = {number for number in range(len(names)) if any(isinstance(row[places[number]], str) for row in chosen)}
        widths = [max(len(line[number]) for line in lines) for number in range(len(names))]
        body = [
            "  ".join(
                cell.ljust(width) if number in words else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, where.line(), *body, *self.notes])

    def csv(self, where: Where) -> str:
        """Return every number in full, with machine and date in every row."""
        text = io.StringIO()
        writer = CsvWriter(text)
        about = where.to_dict()
        writer.writerow([*self.columns, *about])
        for row in self.rows:
            writer.writerow([*("" if cell is None else cell for cell in row), *about.values()])
        return text.getvalue()

    def write(self, folder: Path, where: Where) -> tuple[str, ...]:
        """Write NAME.csv, NAME.txt and, where there is something to draw, NAME.png; return the names."""
        write_text(folder / f"{self.name}.csv", self.csv(where))
        write_text(folder / f"{self.name}.txt", self.text(where) + "\n")
        if not self.panels:
            return f"{self.name}.csv", f"{self.name}.txt"
        draw(folder / f"{self.name}.png", self.title, self.panels)
        return f"{self.name}.csv", f"{self.name}.txt", f"{self.name}.png"


class TableRows(list[list[Cell]]):
    """Rows of a table that are printed as they come, so that a run that is cut off has shown its results."""

    def __init__(self, columns: Mapping[str, str | None], say: Callable[[str], None]) -> None:
        super().__init__()
        self._columns, self._say = columns, say

    def append(self, row: list[Cell]) -> None:
        super().append(row)
        shown = zip(row, self._columns.items(), strict=True)
        self._say(
            "  ".join(
                f"{name} {show(cell, form)}" if form else show(cell, form)
                for cell, (name, form) in shown
                if form is not None
            )
        )


def show(cell: Cell, form: str | None) -> str:
    """Return a cell as text for the terminal."""
    if cell is None:
        return MISSING
    if isinstance(cell, str) or not form:
        return str(cell)
    return f"{cell:{form[:-1]}}x" if form.endswith("x") else f"{cell:{form}}"


def series_of(rows: Iterable[Sequence[Cell]], place: int) -> list[Series]:
    """Return the numbers of a column over the words of the first column, one series per word of the second."""
    listed = list(rows)
    return [
        Series(
            label,
            [str(row[0]) for row in listed if str(row[1]) == label],
            [value if isinstance(value := row[place], float) else None for row in listed if str(row[1]) == label],
        )
        for label in dict.fromkeys(str(row[1]) for row in listed)
    ]


def failing_notes(failures: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return one line per (rival, error) pair, with the number of times that it occurred."""
    counts: dict[tuple[str, str], int] = {}
    for found in failures:
        counts[found] = counts.get(found, 0) + 1
    return tuple(
        f"fails: {rival}{f' ({count} times)' if count > 1 else ''}: {error}" for (rival, error), count in counts.items()
    )


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw all panels in one picture, three in a row, with one legend below for all lines."""
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    with drawing(path, 4.2 * across + 1, 3.2 * down + 0.4) as figure:
        figure.suptitle(title, fontsize=10)
        lines: dict[tuple[str, str], Artist] = {}
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(down, across, place + 1)
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x)
            if not any(value is not None for series in panel.series for value in series.y):
                write_on(axes, "not measured here")
                continue
            bars = isinstance(panel.series[0].x[0], str)
            if bars:
                _bars(axes, panel.series)
            else:
                lines |= _lines(axes, panel.series)
            if panel.logarithmic:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(plain_tick)
                axes.yaxis.set_minor_formatter(lambda value, _: "")
            if panel.mark is not None:
                axes.axhline(panel.mark, color=GREY, linewidth=0.8)
            if len(panel.series) > 1 and bars:  # below: bars leave no room
                axes.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        if len(lines) > 1:
            labels = [label for label, _ in lines]
            figure.legend(lines.values(), labels, frameon=False, fontsize=8, ncols=6, loc="outside lower center")


def _lines(axes: "Axes", series: Sequence[Series]) -> "dict[tuple[str, str], Artist]":
    """Draw lines and return them by label and style; the first, which is ours, is drawn above the others."""
    drawn: dict[tuple[str, str], Artist] = {}
    colour = -1
    for one in series:
        colour += one.style == "-" or colour < 0
        known = [(float(x), y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
        (drawn[one.label, one.style],) = axes.plot(
            [x for x, _ in known],
            [y for _, y in known],
            one.style,
            color=COLOURS[colour % len(COLOURS)],
            label=one.label,
            linewidth=1.2,
            alpha=1.0 if one.style == "-" else 0.6,
            marker="o" if one.style == "-" else None,
            markersize=2.5,
            zorder=2 if drawn else 3,
        )
    return drawn


def _bars(axes: "Axes", series: Sequence[Series]) -> None:
    names = list(dict.fromkeys(str(x) for one in series for x in one.x))
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        known = [(names.index(str(x)), y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
        places = [place + (number - (len(series) - 1) / 2) * width for place, _ in known]
        found = axes.bar(places, [y for _, y in known], width, color=COLOURS[number % len(COLOURS)], label=one.label)
        axes.bar_label(found, [f"{y:,.0f}" if y >= 100 else f"{y:.3g}" for _, y in known], fontsize=6)
    axes.set_xticks(range(len(names)), names, fontsize=7, rotation=30 if len(names) > 4 else 0)
