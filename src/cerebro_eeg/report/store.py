"""A picture of a store: channel counts, signal per subject, amplitudes and spectrum.

Amplitudes and spectrum come from a sample: up to 512 stretches, spread evenly over the hours, the same every time.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.report.figures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    STRETCH_SECONDS,
    density,
    draw_spectrum,
    drawing,
    finish_spectrum,
    plain_tick,
    quartiles,
    write_in_panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRETCHES = 512
SHORTEST = 1.0  # seconds; shorter segments are not sampled
SIZE = (11.0, 7.5)
"""Width and height of the picture, in inches."""
_BARS = 16  # more channel counts than this are drawn on a numeric axis, without a label on each bar


@dataclass(frozen=True)
class StoreSample:
    """Amplitudes and spectrum of the sampled stretches; each channel of each stretch counts once."""

    stretches: int
    recordings: int
    """Number of recordings that they come from."""
    deviations: NDArray[np.float64]
    """Robust standard deviation (1.4826 x the median absolute deviation) in microvolts, above 0."""
    flat: int
    """Channels of stretches without any deviation."""
    spectrum: NDArray[np.float64]
    """(3, bin) quartiles of the power density, see ``figures.quartiles``."""


def plot_store(store: Store, path: Path) -> StoreSample:
    """Write the picture, and return the sample that amplitudes and spectrum are drawn from."""
    sample = sample_store(store)
    with drawing(path, *SIZE) as figure:
        draw_store(figure, store, sample)
    return sample


def draw_store(figure: "Figure", store: Store, sample: StoreSample) -> None:
    """Draw channel counts, signal per subject, amplitudes and spectrum."""
    recordings: Counter[int] = Counter()
    hours: defaultdict[int, float] = defaultdict(float)
    subjects: defaultdict[str, float] = defaultdict(float)
    notches: Counter[float] = Counter()
    for record in store.recordings:
        recordings[len(record.channels)] += 1
        hours[len(record.channels)] += record.seconds / 3600
        if record.subject is not None:
            subjects[record.subject] += record.seconds / 3600
        if record.mains is not None:
            notches[record.mains] += 1
    total = sum(recordings.values())
    axes = figure.subplots(2, 2)
    who = f", {len(subjects):,} subjects" if subjects else ""
    figure.suptitle(f"{store.info.dataset}: {total:,} recordings, {sum(hours.values()):,.1f} h{who}", x=0.01, ha="left")
    _draw_counts(axes[0, 0], recordings, hours)
    _draw_subjects(axes[0, 1], list(subjects.values()))
    _draw_amplitudes(axes[1, 0], sample)
    _draw_spectrum(axes[1, 1], sample, notches, total)


def choose_stretches(store: Store, most: int = STRETCHES) -> list[tuple[int, int, int]]:
    """Choose up to ``most`` stretches without chance; return (recording number, first sample, end) of each.

    All segments of a second or more are laid end to end; the stretch around each of evenly spaced moments is taken.
    """
    segments = [
        (number, segment.start, segment.stop, record.sfreq)
        for number, record in enumerate(store.recordings)
        for segment in record.segments
        if segment.stop - segment.start >= SHORTEST * record.sfreq
    ]
    if not segments:
        return []
    ends = np.cumsum([(stop - start) / sfreq for _, start, stop, sfreq in segments])
    moments = (np.arange(most) + 0.5) * ends[-1] / most
    found: dict[tuple[int, int, int], None] = {}
    for moment, place in zip(moments, np.searchsorted(ends, moments, "right").tolist(), strict=True):
        number, start, stop, sfreq = segments[place]
        size = min(round(STRETCH_SECONDS * sfreq), stop - start)
        passed = int((moment - (ends[place] - (stop - start) / sfreq)) * sfreq)
        first = min(start + passed // size * size, stop - size)
        found[number, first, first + size] = None  # a small store has fewer stretches than moments
    return list(found)


def sample_store(store: Store, most: int = STRETCHES) -> StoreSample:
    """Read the sample and measure it; at most ``most`` stretches of 4 s are read, however large the store."""
    chosen = choose_stretches(store, most)
    powers, deviations = [], []
    for number, start, stop in chosen:
        samples = store.read(number, start, stop).astype(np.float32)
        powers.append(density(samples, store.recordings[number].sfreq))
        deviations.append(1.4826 * np.median(np.abs(samples - np.median(samples, axis=0)), axis=0))
    pooled = np.concatenate(deviations).astype(np.float64) if deviations else np.empty(0)
    return StoreSample(
        stretches=len(chosen),
        recordings=len({number for number, _, _ in chosen}),
        deviations=pooled[pooled > 0],
        flat=int((pooled == 0).sum()),
        spectrum=quartiles(powers),
    )


def _draw_counts(axes: "Axes", recordings: Counter[int], hours: dict[int, float]) -> None:
    axes.set_title("Channel counts")
    counts = sorted(recordings)
    if not counts:
        write_in_panel(axes, "no recordings")
        return
    heights = [recordings[count] for count in counts]
    if len(counts) > _BARS:
        axes.bar(counts, heights, width=0.9, color=BLUE)
    else:
        bars = axes.bar(range(len(counts)), heights, width=0.7, color=BLUE)
        axes.bar_label(bars, [_time(hours[count]) for count in counts], padding=2, fontsize=8, color=DARK)
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.margins(y=0.12)
    axes.set_xlabel("channels of a recording")
    axes.set_ylabel("recordings")


def _time(hours: float) -> str:
    return f"{hours:,.3g} h" if hours >= 1 else f"{60 * hours:.2g} min"


def _draw_subjects(axes: "Axes", hours: list[float]) -> None:
    from matplotlib.ticker import NullFormatter

    axes.set_title("Signal of each subject")
    if not hours:
        write_in_panel(axes, "the store does not know its subjects")
        return
    minutes = 60 * np.sort(np.array(hours))[::-1]
    axes.fill_between(np.arange(len(minutes) + 1), np.append(minutes, minutes[-1]), step="post", color=GREEN, alpha=0.7)
    axes.set_xlim(0, len(minutes))
    axes.set_ylim(0, None)
    if minutes[0] > 20 * np.median(minutes):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(plain_tick)
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(minutes[minutes > 0].min() / 2, None)
    half = int(np.searchsorted(np.cumsum(minutes), minutes.sum() / 2)) + 1
    axes.axvline(half, color=DARK, linestyle=":", linewidth=1)
    words = f"{half:,} of {len(minutes):,} subjects\nhave half of the signal"
    right = half > 0.6 * len(minutes)
    axes.annotate(
        words,
        (half, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if right else 5, 0),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
        fontsize=8,
        color=DARK,
    )
    axes.set_xlabel("subjects, the longest recorded first")
    axes.set_ylabel("minutes of signal")


def _draw_amplitudes(axes: "Axes", sample: StoreSample) -> None:
    axes.set_title("Amplitude")
    if not len(sample.deviations):
        write_in_panel(axes, "no segment of a second or more that moves")
        return
    low, high = np.log10([sample.deviations.min(), sample.deviations.max()])
    bins = np.logspace(np.floor(10 * low) / 10, np.floor(10 * high) / 10 + 0.1, 60)
    share = np.full(len(sample.deviations), 100 / (len(sample.deviations) + sample.flat))
    axes.hist(sample.deviations, bins.tolist(), weights=share, color=BLUE, alpha=0.85)
    quarter, middle, three = np.percentile(sample.deviations, [25, 50, 75])
    axes.axvline(middle, color=ORANGE, linewidth=1.2, label=f"median {middle:.3g} µV")
    axes.axvspan(quarter, three, color=ORANGE, alpha=0.15, label=f"quartiles {quarter:.3g} to {three:.3g} µV")
    if sample.flat:
        axes.plot([], [], " ", label=f"{100 * sample.flat / (sample.flat + len(sample.deviations)):.2g} % are flat")
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(plain_tick)
    axes.xaxis.set_minor_formatter(NullFormatter())  # its own text needs the mathematics that we switched off
    axes.set_xlabel("robust standard deviation (1.4826 × MAD) of a channel, up to 4 s each (µV)")
    axes.set_ylabel("share (%)")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_spectrum(axes: "Axes", sample: StoreSample, notches: Counter[float], total: int) -> None:
    axes.set_title("Spectrum")
    if not np.isfinite(sample.spectrum).any():
        write_in_panel(axes, "no segment of a second or more that moves")
        return
    words = f"median and quartiles, {sample.stretches:,} stretches of {sample.recordings:,} recordings"
    draw_spectrum(axes, sample.spectrum, BLUE, words)
    none = total - sum(notches.values())
    names = {line: f"mains {line:g} Hz taken out of {count:,} recordings" for line, count in notches.items()}
    finish_spectrum(axes, names)
    if none:
        axes.plot([], [], " ", label=f"no mains taken out of {none:,}")
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    for line in (50.0, 60.0):
        if line not in notches:
            axes.axvline(line, color=GREY, linestyle=":", linewidth=0.8)
