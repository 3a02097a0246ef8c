"""Curves of a run: loss, validation, learning rate and gradient norm, from the lines of its metrics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.report.picture import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, plain, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", DARK, GREY)
_POINTS = 1500  # of a curve; more would only make the file large

Lines = Sequence[Mapping[str, Any]]


def column(lines: Lines, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values of one measure; lines without it, or where it was not a number, are left out."""
    found = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, np.float64), np.array(values, np.float64)


def smooth(values: NDArray[np.float64], share: float = 0.02) -> NDArray[np.float64]:
    """The mean of the values about each, over a share of them all."""
    half = int(share * len(values)) // 2
    total = np.cumsum(np.append(0.0, values))
    place = np.arange(len(values))
    first, last = np.maximum(place - half, 0), np.minimum(place + half + 1, len(values))
    found: NDArray[np.float64] = (total[last] - total[first]) / (last - first)
    return found


def draw_curves(figure: "Figure", runs: Mapping[str, Lines], measures: Sequence[tuple[str, str]]) -> None:
    """Loss with the first measures of validation; then the others, learning rate and gradient norm.

    ``measures`` are names of lines of validation and whether they share the "loss" panel or have their "own".
    """
    left, right, rate, norm = figure.subplots(2, 2).flat
    _draw_loss(left, runs, [name for name, where in measures if where == "loss"])
    own = [name for name, where in measures if where == "own"]
    _draw_own(right, runs, own)
    for axes, name, title in ((rate, "lr", "Learning rate"), (norm, "norm", "Gradient norm, before clipping")):
        axes.set_title(title)
        for (label, lines), colour in zip(runs.items(), _colours(runs), strict=True):
            steps, values = _thin(*column(lines, name))
            axes.plot(steps, values, color=colour, linewidth=1.2 if name == "lr" else 0.7, label=label)
        axes.set_xlabel("step")
        _no_lines(axes)
    _logarithmic(norm)
    if left.lines:  # a first validation after many steps would otherwise look like a beginning
        right.set_xlim(left.get_xlim())


def _draw_loss(axes: "Axes", runs: Mapping[str, Lines], measures: Sequence[str]) -> None:
    axes.set_title("Loss")
    for (label, lines), colour in zip(runs.items(), _colours(runs), strict=True):
        steps, values = column(lines, "loss")
        if not len(steps):
            continue
        if len(runs) == 1:
            axes.plot(*_thin(steps, values), color=colour, linewidth=0.6, alpha=0.35)
        axes.plot(*_thin(steps, smooth(values)), color=colour, linewidth=1.5, label=label or "training")
        for name, other in zip(measures, (ORANGE, GREEN, PURPLE), strict=False):
            _marked(axes, *column(lines, name), other, name.replace("_", " "))
    axes.set_xlabel("step")
    if not axes.lines:
        _no_lines(axes)
        return
    _logarithmic(axes)
    axes.grid(True, which="both", color=GREY, alpha=0.2, linewidth=0.5)
    axes.legend(frameon=False, fontsize=8)


def _draw_own(axes: "Axes", runs: Mapping[str, Lines], names: Sequence[str]) -> None:
    words = ", ".join(name.removeprefix("validation_").replace("_", " ") for name in names)
    axes.set_title(f"Validation: {words}" if names else "Validation")
    for (label, lines), colour in zip(runs.items(), _colours(runs), strict=True):
        for number, name in enumerate(names):
            colour = colour if len(runs) > 1 else (ORANGE, GREEN, PURPLE)[number % 3]
            _marked(axes, *column(lines, name), colour, label or name.removeprefix("validation_"))
    axes.set_xlabel("step")
    axes.grid(True, color=GREY, alpha=0.2, linewidth=0.5)
    if not axes.lines:
        say(axes, "nothing was validated")
        return
    axes.legend(frameon=False, fontsize=8)
    low, high = axes.get_ylim()
    least = 0.02 * max(abs(low), abs(high))  # a change that nobody would call one should not fill the panel
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _marked(axes: "Axes", steps: NDArray[np.float64], values: NDArray[np.float64], colour: str, label: str) -> None:
    if len(steps):
        axes.plot(*_thin(steps, values), color=colour, marker="o", markersize=3, linewidth=1.2, label=label)


def _thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    kept = np.linspace(0, max(0, len(steps) - 1), min(len(steps), _POINTS)).astype(int)
    return steps[kept], values[kept]


def _colours(runs: Mapping[str, Lines]) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(runs))]


def _logarithmic(axes: "Axes") -> None:
    """Where all values allow it; ticks at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator, NullLocator

    values = np.concatenate([np.empty(0), *(np.asarray(line.get_ydata(), np.float64) for line in axes.lines)])
    if not len(values) or values.min() <= 0:
        return
    axes.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if values.max() / values.min() > 5 else tuple(np.arange(1.0, 10.0))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plain)


def _no_lines(axes: "Axes") -> None:
    if not axes.lines:
        say(axes, "no steps were logged")
