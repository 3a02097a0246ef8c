"""Pictures of a recording: some seconds as prepare would store them, and the whole with a model's prediction.

``plot_signal`` draws every channel and the spectrum; a strip above shows signal, gaps and events of the recording.
``plot_prediction`` draws some channels as an envelope: the lowest and highest value per column of the picture. The
envelope is collected while the recording is read, so 24 hours need no more memory than a short recording.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.filtering.plan import FilterPlan, reach
from cerebro_eeg.data.preprocess import Preprocessed
from cerebro_eeg.data.reading.recording import Recording, Samples, Segment
from cerebro_eeg.errors import InputError
from cerebro_eeg.report.figures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    STRETCH_SECONDS,
    density,
    draw_spectrum,
    drawing,
    finish_spectrum,
    quartiles,
    write_in_panel,
)
from cerebro_eeg.runs.decisions import HALF, Prediction

if TYPE_CHECKING:  # the module of Signal may load torch, which `info FILE --plot` does not need
    from matplotlib.axes import Axes

    from cerebro_eeg.data.filtering.half import FilteredPiece
    from cerebro_eeg.runs.signals import Signal

_STRETCHES = 64  # stretches that the spectrum is made of
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_COLUMNS = 1500  # columns of the envelope
_CHANNELS = 8  # channels of the envelope
_GAP = "#F3D9CC"  # colour of gaps
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, DARK, GREY)
Excerpt = tuple[NDArray[np.float64], Samples]
"""Seconds from the start of the recording, and (time, channel) microvolts; without a gap inside."""


def plot_signal(
    prepared: Preprocessed,
    stretches: Sequence[Segment],
    faults: Sequence[Sequence[str]],
    path: Path,
    *,
    start: float | None,
    seconds: float,
) -> None:
    """Draw ``seconds`` from ``start`` (None: the middle of the longest stretch); ``faults`` are those per channel."""
    recording, plan = prepared.recording, prepared.plan
    begin = _middle(recording, stretches, seconds) if start is None else start
    end = stretches[-1].onset + (stretches[-1].stop - stretches[-1].start) / recording.sfreq if stretches else 0.0
    pieces = excerpt(prepared, begin, seconds)
    if not pieces:
        raise InputError(
            f"there is no signal from {begin:g} to {begin + seconds:g} s; the recording goes from 0 to {end:.1f} s, "
            "less its gaps: choose another --start"
        )
    names = recording.match.names
    with drawing(path, 13, min(3 + 0.24 * len(names), 16) + 0.8) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=[1, 3 + 2 * len(names)], width_ratios=[2.3, 1])
        _draw_strip(figure.add_subplot(grid[0, :]), recording, stretches, begin, seconds, end)
        _draw_traces(figure.add_subplot(grid[1, 0]), pieces, names, faults, begin, seconds)
        _draw_spectra(figure.add_subplot(grid[1, 1]), recording, plan, stretches, faults)


def excerpt(prepared: Preprocessed, begin: float, seconds: float) -> list[Excerpt]:
    """Return the filtered signal of some seconds, in pieces without a gap, as prepare would store it.

    The filters also read the samples around it, as far as they reach, so it equals a part of the filtered whole.
    """
    plan = prepared.plan
    around = (reach(plan) + 1) / plan.rate
    near = []
    for segment in prepared.recording.segments:
        first = max(0, int((begin - around - segment.onset) * plan.rate))
        last = min(segment.stop - segment.start, int((begin + seconds + around - segment.onset) * plan.rate) + 1)
        first -= first % plan.down  # whole periods of the resampling, so that samples lie where prepare puts them
        if first < last:
            onset = segment.onset + first / plan.rate
            near.append(Segment(segment.start + first, segment.start + last, onset))
    found: dict[int, list[Excerpt]] = {}
    for block in prepared.blocks(near):
        times = block.onset + (block.start + np.arange(len(block.signal))) / plan.new_rate
        inside = (times >= begin) & (times <= begin + seconds)
        if inside.any():
            found.setdefault(block.stretch, []).append((times[inside], block.signal[inside]))
    return [
        (np.concatenate([times for times, _ in parts]), np.concatenate([signal for _, signal in parts]))
        for parts in found.values()
    ]


def _middle(recording: Recording, stretches: Sequence[Segment], seconds: float) -> float:
    longest = max(stretches, key=lambda s: s.stop - s.start, default=Segment(0, 0, 0.0))
    return longest.onset + max(0.0, (longest.stop - longest.start) / recording.sfreq - seconds) / 2


def _draw_strip(
    axes: "Axes", recording: Recording, stretches: Sequence[Segment], begin: float, seconds: float, end: float
) -> None:
    unit, name = (3600.0, "h") if end > 7200 else (60.0, "min") if end > 300 else (1.0, "s")
    spans = [(s.onset / unit, (s.stop - s.start) / recording.sfreq / unit) for s in stretches]
    axes.axhspan(0, 1, color=_GAP, linewidth=0)
    axes.broken_barh(spans, (0, 1), color=BLUE, alpha=0.55, linewidth=0)
    axes.broken_barh([(begin / unit, seconds / unit)], (0, 1), color=DARK, alpha=0.6, linewidth=0.8)
    if recording.events:
        axes.vlines([event.onset / unit for event in recording.events], 1.0, 1.5, color=GREEN, linewidth=0.8)
    axes.set_xlim(0, end / unit)
    axes.set_ylim(0, 1.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    gaps = len(stretches) - 1
    axes.set_title(
        f"The whole recording ({name}): signal blue, drawn below dark, gaps light ({gaps:,}), "
        f"events green ({len(recording.events):,})",
        fontsize=9,
    )


def _draw_traces(
    axes: "Axes",
    pieces: Sequence[Excerpt],
    names: Sequence[str],
    faults: Sequence[Sequence[str]],
    begin: float,
    seconds: float,
) -> None:
    shown = _sound(faults)
    spread = [np.percentile(np.abs(signal - np.median(signal, axis=0)), 97, axis=0)[shown] for _, signal in pieces]
    wanted = 2 * float(np.median(spread))
    step = float(next((value for value in _STEPS if value >= wanted), _STEPS[-1]))
    cut = 0
    for times, signal in pieces:
        centred = (signal - np.median(signal, axis=0)) / step
        cut += int((np.abs(centred) > 1.5).sum())
        for column in range(len(names)):
            colour = ORANGE if faults[column] else BLUE
            axes.plot(times, np.clip(centred[:, column], -1.5, 1.5) - column, color=colour, linewidth=0.6)
    edges = [begin, *(edge for times, _ in pieces for edge in (times[0], times[-1])), begin + seconds]
    for left, right in zip(edges[::2], edges[1::2], strict=True):
        if right - left > 0.02:
            axes.axvspan(left, right, color=_GAP, linewidth=0)
            axes.text((left + right) / 2, 0.9, "gap", ha="center", va="center", fontsize=8, color=ORANGE)
    labels = [f"{name} ({', '.join(bad)})" if bad else name for name, bad in zip(names, faults, strict=True)]
    axes.set_yticks([-column for column in range(len(names))], labels, fontsize=8 if len(names) <= 40 else 6)
    for label, bad in zip(axes.get_yticklabels(), faults, strict=True):
        label.set_color(ORANGE if bad else DARK)
    axes.set_xlim(begin, begin + seconds)
    axes.set_ylim(-len(names) - 0.2, 1.6)
    x = begin + 0.985 * seconds
    axes.plot([x, x], [-len(names) + 0.1, -len(names) + 1.1], color=DARK, linewidth=2.5, solid_capstyle="butt")
    axes.text(
        x - 0.01 * seconds,
        -len(names) + 0.55,
        f"{step:g} µV",
        ha="right",
        va="center",
        fontsize=8,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
    )
    axes.set_title("As prepare would store it" + (f"; waves beyond ±{1.5 * step:g} µV are cut" if cut else ""))
    axes.set_xlabel("seconds from the start of the recording")


def _draw_spectra(
    axes: "Axes",
    recording: Recording,
    plan: FilterPlan,
    stretches: Sequence[Segment],
    faults: Sequence[Sequence[str]],
) -> None:
    axes.set_title("Spectrum as recorded")
    sound = _sound(faults)
    powers = []
    for first, last in _spread(stretches, recording.sfreq):
        powers.append(density(recording.read(first, last)[:, sound], recording.sfreq))
    spectrum = quartiles(powers)
    if not np.isfinite(spectrum).any():
        write_in_panel(axes, "no stretch of a second\nor more that moves")
        return
    words = f"{len(sound)} sound channels" if any(not bad for bad in faults) else "all channels, all bad"
    draw_spectrum(axes, spectrum, BLUE, f"median and quartiles, {words}")
    axes.axvspan(
        plan.low, plan.high, color=GREY, alpha=0.12, linewidth=0, label=f"kept: {plan.low:g} to {plan.high:g} Hz"
    )
    names = {line: f"mains {line:g} Hz" for line in (50.0, 60.0) if line < recording.sfreq / 2}
    if plan.notch is not None:
        names = {plan.notch: f"mains {plan.notch:g} Hz, taken out"}
    axes.set_xlim(1 / STRETCH_SECONDS, recording.sfreq / 2)
    finish_spectrum(axes, names)


def _sound(faults: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that set the scale: those without a fault, or all if every one has a fault."""
    return [column for column, bad in enumerate(faults) if not bad] or list(range(len(faults)))


def _spread(stretches: Sequence[Segment], sfreq: float) -> list[tuple[int, int]]:
    """Choose up to 64 stretches of 4 s (at least 1 s), evenly over the recording and without gaps."""
    size = round(STRETCH_SECONDS * sfreq)
    places = [
        (first, min(first + size, stretch.stop))
        for stretch in stretches
        for first in range(stretch.start, stretch.stop, size)
        if min(first + size, stretch.stop) - first >= max(sfreq, 8)
    ]
    chosen = np.linspace(0, len(places) - 1, min(len(places), _STRETCHES)).astype(int).tolist()
    return [places[place] for place in chosen]


# The prediction under the signal


class Envelope:
    """Lowest and highest value of some channels in each column of a picture."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.low: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self.high = self.low
        self.end = 0.0
        self._columns: list[int] = []

    def watch(self, signal: "Signal", piece: "FilteredPiece") -> None:
        """Add a block of filtered samples."""
        if not self.names:
            count = min(_CHANNELS, len(signal.names))
            chosen = np.linspace(0, len(signal.names) - 1, count).round().astype(int).tolist()
            self.names = tuple(signal.names[place] for place in chosen)
            self._columns = [signal.columns[place] for place in chosen]
            self.end = signal.end
            columns = max(1, min(_COLUMNS, int(self.end * signal.plan.new_rate / 2)))  # none without a sample
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
    """Draw the signal, and under it the model's answer for every window."""
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
    """Shade columns without a sample; a single one may be the edge of a pixel."""
    edges = np.flatnonzero(np.diff(~seen, prepend=False, append=False))
    for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - first > 1:
            axes.axvspan(first * end / len(seen), stop * end / len(seen), color=_GAP, linewidth=0)


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
    """Draw a level over the time of each window, until the next one begins; nothing where there is no window."""
    start, stop = prediction.start, prediction.stop.copy()
    stop[:-1] = np.minimum(stop[:-1], start[1:])
    times = np.stack([start, stop, stop], 1).ravel() / unit
    levels = np.stack([values, values, np.full(len(values), np.nan)], 1).ravel()
    joined = np.append(np.abs(start[1:] - stop[:-1]) < 1e-6, False)
    levels[2::3][joined] = values[joined]
    axes.plot(times, levels, color=colour, linewidth=1.2, label=label)
