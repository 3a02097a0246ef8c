"""A picture of a recording with the prediction under it: some channels as an envelope, and what the model says.

The envelope is taken while the recording goes by, lowest and highest value of every column of the picture, so that a
recording of 24 hours needs no more memory than a short one.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.filtering.half import FilteredPiece
from cerebro_eeg.report.picture import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, drawing
from cerebro_eeg.runs.decisions import HALF, Prediction
from cerebro_eeg.runs.signals import Signal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 1500  # of the picture
CHANNELS = 8  # that are drawn
GAP = "#F3D9CC"
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, DARK, GREY)


class Envelope:
    """Lowest and highest value of some channels in each column of a picture; ``watch`` is shown every piece."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.low: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self.high = self.low
        self.end = 0.0
        self._columns: list[int] = []

    def watch(self, signal: Signal, piece: FilteredPiece) -> None:
        if not self.names:
            count = min(CHANNELS, len(signal.names))
            chosen = np.linspace(0, len(signal.names) - 1, count).round().astype(int).tolist()
            self.names = tuple(signal.names[place] for place in chosen)
            self._columns = [signal.columns[place] for place in chosen]
            self.end = signal.end
            columns = max(1, min(COLUMNS, int(self.end * signal.plan.new_rate / 2)))  # none without a sample
            self.low = np.full((columns, count), np.inf, np.float32)
            self.high = -self.low
        times = piece.onset + np.arange(len(piece.rows)) / signal.plan.new_rate
        place = np.minimum((times / self.end * len(self.low)).astype(np.int64), len(self.low) - 1)
        firsts = np.flatnonzero(np.diff(place, prepend=-1))
        rows = piece.rows[:, self._columns].astype(np.float32)
        there = place[firsts]
        self.low[there] = np.minimum(self.low[there], np.minimum.reduceat(rows, firsts, axis=0))
        self.high[there] = np.maximum(self.high[there], np.maximum.reduceat(rows, firsts, axis=0))


def plot_prediction(envelope: Envelope, prediction: Prediction, title: str, path: Path) -> None:
    """Draw the signal, and under it what the model says of every window."""
    many = prediction.kind == "regression" and len(prediction.names) > 1
    below = len(prediction.names) if many else 1
    unit, word = (3600.0, "h") if envelope.end > 7200 else (60.0, "min") if envelope.end > 300 else (1.0, "s")
    with drawing(path, 13, 1.6 + 0.45 * len(envelope.names) + 1.6 * below) as figure:
        ratios = [0.5 + 0.45 * len(envelope.names), *[1.6] * below]
        axes = figure.subplots(1 + below, 1, sharex=True, height_ratios=ratios)
        _draw_signal(axes[0], envelope, unit)
        axes[0].set_title(title)
        if prediction.kind == "classification":
            _draw_classes(axes[1], prediction, unit)
        else:
            for place, name in enumerate(prediction.names):
                _draw_steps(axes[1 + place], prediction, prediction.output[:, place], unit, BLUE, name)
                axes[1 + place].set_ylabel(name)
        axes[-1].set_xlabel(f"time from the start of the recording ({word})")
        axes[-1].set_xlim(0, envelope.end / unit)


def _draw_signal(axes: "Axes", envelope: Envelope, unit: float) -> None:
    times = (np.arange(len(envelope.low)) + 0.5) * envelope.end / len(envelope.low) / unit
    seen = np.isfinite(envelope.low[:, 0])
    low, high = np.where(seen[:, None], envelope.low, np.nan), np.where(seen[:, None], envelope.high, np.nan)
    middle = np.nanmedian((low + high) / 2, axis=0)
    spread = np.nanpercentile(np.maximum(high - middle, middle - low), 98, axis=0)
    step = 2 * max(float(np.median(spread)), 1e-3)
    for column in range(len(envelope.names)):
        down, up = ((side[:, column] - middle[column]) / step for side in (low, high))
        axes.fill_between(times, np.clip(down, -1, 1) - column, np.clip(up, -1, 1) - column, color=BLUE, linewidth=0.5)
    _shade_gaps(axes, seen, envelope.end / unit)
    axes.set_yticks([-column for column in range(len(envelope.names))], list(envelope.names), fontsize=8)
    axes.set_ylim(-len(envelope.names) - 0.1, 1.1)
    axes.text(0.995, 0.01, f"{step:.3g} µV a line", transform=axes.transAxes, ha="right", va="bottom", fontsize=8)


def _shade_gaps(axes: "Axes", seen: NDArray[np.bool_], end: float) -> None:
    """Columns without a sample; a single one may be the edge of a pixel."""
    edges = np.flatnonzero(np.diff(~seen, prepend=False, append=False))
    for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - first > 1:
            axes.axvspan(first * end / len(seen), stop * end / len(seen), color=GAP, linewidth=0)


def _draw_classes(axes: "Axes", prediction: Prediction, unit: float) -> None:
    names = prediction.names
    shown = [1] if len(names) == 2 else list(range(len(names)))
    for place in shown:
        colour = _COLOURS[place % len(_COLOURS)] if len(shown) > 1 else ORANGE
        _draw_steps(axes, prediction, prediction.output[:, place], unit, colour, names[place])
    if len(names) == 2:
        limit = HALF if prediction.threshold is None else prediction.threshold
        axes.axhline(limit, color=DARK, linewidth=0.8, linestyle="--", label=f"threshold {limit:.2f}")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, fontsize=8, frameon=False, ncols=6)


def _draw_steps(
    axes: "Axes", prediction: Prediction, values: NDArray[np.float32], unit: float, colour: str, label: str
) -> None:
    """A level over the time that each window speaks for; nothing where there is no window."""
    start, stop = prediction.start, prediction.stop.copy()
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    times = np.stack([start, stop, stop], 1).ravel() / unit
    levels = np.stack([values, values, np.full(len(values), np.nan)], 1).ravel()
    joined = np.append(np.abs(start[1:] - stop[:-1]) < 1e-6, False)
    levels[2::3][joined] = values[joined]
    axes.plot(times, levels, color=colour, linewidth=1.2, label=label)
