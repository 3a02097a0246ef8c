"""A look at a recording: some seconds of every channel as prepare would store them, and the spectrum of all of it.

Above them a strip shows the whole recording: where there is signal, where gaps, where events, and which part is drawn.
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
from cerebro_eeg.report.picture import BLUE, DARK, GREEN, GREY, ORANGE, drawing, say
from cerebro_eeg.report.spectrum import SECONDS, density, draw_spectrum, finish_spectrum, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STRETCHES = 64  # for the spectrum
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
Piece = tuple[NDArray[np.float64], Samples]
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
    """Draw ``seconds`` from ``start`` (None: the middle of the longest stretch); ``faults``: those of each channel."""
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


def excerpt(prepared: Preprocessed, begin: float, seconds: float) -> list[Piece]:
    """The filtered signal of some seconds, in pieces without a gap: what prepare would store there.

    The filters get what lies around it, as far as they reach, so that cutting out and filtering can be exchanged.
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
    found: dict[int, list[Piece]] = {}
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
    axes.axhspan(0, 1, color="#F3D9CC", linewidth=0)
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
    pieces: Sequence[Piece],
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
            axes.axvspan(left, right, color="#F3D9CC", linewidth=0)
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
        say(axes, "no stretch of a second\nor more that moves")
        return
    words = f"{len(sound)} sound channels" if any(not bad for bad in faults) else "all channels, all bad"
    draw_spectrum(axes, spectrum, BLUE, f"median and quartiles, {words}")
    axes.axvspan(
        plan.low, plan.high, color=GREY, alpha=0.12, linewidth=0, label=f"kept: {plan.low:g} to {plan.high:g} Hz"
    )
    names = {line: f"mains {line:g} Hz" for line in (50.0, 60.0) if line < recording.sfreq / 2}
    if plan.notch is not None:
        names = {plan.notch: f"mains {plan.notch:g} Hz, taken out"}
    axes.set_xlim(1 / SECONDS, recording.sfreq / 2)
    finish_spectrum(axes, names)


def _sound(faults: Sequence[Sequence[str]]) -> list[int]:
    """The columns that a scale is taken from: those without a fault, or all where there are none."""
    return [column for column, bad in enumerate(faults) if not bad] or list(range(len(faults)))


def _spread(stretches: Sequence[Segment], sfreq: float) -> list[tuple[int, int]]:
    """Up to 64 stretches of 4 s, evenly over the recording, each inside one that has no gap; at least a second long."""
    size = round(SECONDS * sfreq)
    places = [
        (first, min(first + size, stretch.stop))
        for stretch in stretches
        for first in range(stretch.start, stretch.stop, size)
        if min(first + size, stretch.stop) - first >= max(sfreq, 8)
    ]
    chosen = np.linspace(0, len(places) - 1, min(len(places), _STRETCHES)).astype(int).tolist()
    return [places[place] for place in chosen]
