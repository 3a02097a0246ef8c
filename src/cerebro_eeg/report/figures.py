"""Figures: what all pictures share (colours, a file), and the plots that several reports draw: curves, heads, spectra.

Matplotlib is an optional package, imported when a picture is asked for. Its ``Figure`` is used without ``pyplot``, so
nothing opens a window and no state is left behind.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import POSITIONS
from cerebro_eeg.errors import ConfigError, import_trouble
from cerebro_eeg.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the palette of Okabe and Ito, which is safe for the common kinds of colour blindness.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, DARK = "#9A9A9A", "#333333"
KINDS = (".png", ".svg")
_STYLE: Any = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DARK,
    "svg.hashsalt": "cerebro-eeg",  # the same picture gets the same bytes
    "svg.fonttype": "none",
    "text.parse_math": False,  # labels of files may contain dollar signs
}


def check_picture(path: Path, kinds: Sequence[str] = KINDS) -> None:
    """Refuse a path that cannot become a picture, before any work is done for it."""
    if path.suffix.casefold() not in kinds:
        raise ConfigError(f"a picture ends in {' or '.join(kinds)}; give such a file name after --plot")
    if path.is_dir():
        raise ConfigError("--plot names a folder; give the name of a file in it, such as picture.png")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"a picture cannot be made: {import_trouble(error, 'matplotlib')}") from None


def import_ahead() -> None:
    """Import what draws and saves figures, which takes a second, while a command waits for something else.

    Any error appears again in the report, which says what is wrong.
    """
    with contextlib.suppress(Exception):
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """Yield an empty figure of this size in inches; it is saved at ``path`` when the block ends without an error."""
    with sketching(width, height) as figure:
        yield figure
        save(figure, path)


@contextlib.contextmanager
def sketching(width: float, height: float) -> Iterator["Figure"]:
    """Yield an empty figure of this size in inches, in our style, and save it nowhere."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a letter that the font lacks becomes a box
        figure = Figure((width, height), dpi=150, layout="constrained")
        yield figure


def save(figure: "Figure", path: Path) -> None:
    """Save a figure; equal figures give equal bytes."""
    kind = path.suffix.casefold().removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=metadata)


def plain_tick(value: float, _: float) -> str:
    """Format a tick of a logarithmic axis; matplotlib's own format needs the mathematics that we switched off."""
    return f"{value:g}"


def write_in_panel(axes: "Axes", words: str) -> None:
    """Write words in the middle of a panel that has nothing to show."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


# Curves of a run

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#E69F00", "#56B4E9", DARK, GREY)
_POINTS = 1500  # points per curve; more would only make the file larger
PALE = 0.25
"""Opacity of a curve among more than have a colour and a name of their own."""

Lines = Sequence[Mapping[str, Any]]


def column(lines: Lines, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return steps and values of one measure of a log; lines without a number for it are left out."""
    found = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return np.array(steps, np.float64), np.array(values, np.float64)


def smooth(values: NDArray[np.float64], share: float = 0.02) -> NDArray[np.float64]:
    """Return a moving average over this share of all values."""
    half = int(share * len(values)) // 2
    total = np.cumsum(np.append(0.0, values))
    place = np.arange(len(values))
    first, last = np.maximum(place - half, 0), np.minimum(place + half + 1, len(values))
    found: NDArray[np.float64] = (total[last] - total[first]) / (last - first)
    return found


def curves_figure(runs: Mapping[str, Lines], measures: Sequence[tuple[str, str]], figure: Callable[..., str]) -> str:
    """Return the curves of one or more runs as a picture of a page; ``figure`` is that of ``page``."""
    names = ["loss", *(["validation"] if _validated(runs, measures) else []), "learning rate and gradient norm"]
    words = f"Curves of {', '.join(names)} over the steps"
    return figure(lambda canvas: draw_curves(canvas, runs, measures), 9, 6 if len(names) == 3 else 3.1, words)


def draw_curves(figure: "Figure", runs: Mapping[str, Lines], measures: Sequence[tuple[str, str]]) -> None:
    """Draw loss, validation, learning rate and gradient norm over the steps of one or more runs.

    ``measures`` are names of validation measures, each with its panel: "loss" (shared with the loss) or "own". If
    nothing was validated there are three panels.
    """
    if _validated(runs, measures):
        left, right, rate, norm = figure.subplots(2, 2).flat
        _draw_own(right, runs, [name for name, where in measures if where == "own"])
    else:
        left, rate, norm = figure.subplots(1, 3)
        right = None
    _draw_loss(left, runs, [name for name, where in measures if where == "loss"])
    for axes, name, title in ((rate, "lr", "Learning rate"), (norm, "norm", "Gradient norm, before clipping")):
        axes.set_title(title)
        _draw_runs(axes, {run: column(lines, name) for run, lines in runs.items()}, 1.2 if name == "lr" else 0.7)
        axes.set_xlabel("step")
        _no_lines(axes)
    _logarithmic(norm)
    if right is not None and left.lines:  # otherwise a first validation after many steps would seem to be at the start
        right.set_xlim(left.get_xlim())


def _validated(runs: Mapping[str, Lines], measures: Sequence[tuple[str, str]]) -> bool:
    """Return whether any run has a value of a measure that gets a panel of its own."""
    names = [name for name, where in measures if where == "own"]
    return any(len(column(lines, name)[0]) for lines in runs.values() for name in names)


def _draw_loss(axes: "Axes", runs: Mapping[str, Lines], measures: Sequence[str]) -> None:
    axes.set_title("Loss")
    found = {run: column(lines, "loss") for run, lines in runs.items()}
    found = {run: one for run, one in found.items() if len(one[0])}
    for one in found.values() if len(runs) == 1 else ():
        axes.plot(*_thin(*one), color=BLUE, linewidth=0.6, alpha=0.35)
    _draw_runs(axes, {run: (steps, smooth(values)) for run, (steps, values) in found.items()}, 1.5)
    for lines in runs.values():
        for name, other in zip(measures, (ORANGE, GREEN, PURPLE), strict=False):
            _marked(axes, *column(lines, name), other, name.replace("_", " "))
    axes.set_xlabel("step")
    if not axes.lines:
        _no_lines(axes)
        return
    _logarithmic(axes)
    axes.grid(True, which="both", color=GREY, alpha=0.2, linewidth=0.5)
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_own(axes: "Axes", runs: Mapping[str, Lines], names: Sequence[str]) -> None:
    words = ", ".join(name.removeprefix("validation_").replace("_", " ") for name in names)
    axes.set_title(f"Validation: {words}" if names else "Validation")
    for number, name in enumerate(names):
        found = {run: column(lines, name) for run, lines in runs.items()}
        if len(runs) > 1:
            _draw_runs(axes, found, 1.2, marker="o")
            continue
        for run, (steps, values) in found.items():
            _marked(axes, steps, values, (ORANGE, GREEN, PURPLE)[number % 3], run or name.removeprefix("validation_"))
    axes.set_xlabel("step")
    axes.grid(True, color=GREY, alpha=0.2, linewidth=0.5)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    low, high = axes.get_ylim()
    least = 0.02 * max(abs(low), abs(high))  # a negligible change should not fill the panel
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def _marked(axes: "Axes", steps: NDArray[np.float64], values: NDArray[np.float64], colour: str, label: str) -> None:
    if len(steps):
        axes.plot(*_thin(steps, values), color=colour, marker="o", markersize=3, linewidth=1.2, label=label)


def _thin(steps: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    kept = np.linspace(0, max(0, len(steps) - 1), min(len(steps), _POINTS)).astype(int)
    return steps[kept], values[kept]


def _draw_runs(
    axes: "Axes",
    runs: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    width: float,
    marker: str | None = None,
) -> None:
    """Draw the steps and values of each run, with a colour and a name; of many runs pale lines and their median."""
    runs = {name: found for name, found in runs.items() if len(found[0])}
    if len(runs) <= len(COLOURS):
        for (name, found), colour in zip(runs.items(), COLOURS, strict=False):
            label = name or "training"
            axes.plot(*_thin(*found), color=colour, linewidth=width, marker=marker, markersize=3, label=label)
        return
    for found in runs.values():
        axes.plot(*_thin(*found), color=BLUE, linewidth=0.7, alpha=PALE)
    axes.plot(*_thin(*_median(list(runs.values()))), color=DARK, linewidth=2, label=f"median of {len(runs)} trainings")


def _median(
    runs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median over runs, interpolated between steps, from where all have begun to where half have ended."""
    every = np.unique(np.concatenate([steps for steps, _ in runs]))
    lines = np.stack([np.interp(every, steps, values, right=np.nan) for steps, values in runs])
    begun = every >= max(steps[0] for steps, _ in runs)
    kept = begun & (2 * np.isfinite(lines).sum(0) >= len(runs))
    return every[kept], np.nanmedian(lines[:, kept], 0)


def _logarithmic(axes: "Axes") -> None:
    """Make the y axis logarithmic if all values are positive, with ticks at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator, NullLocator

    values = np.concatenate([np.empty(0), *(np.asarray(line.get_ydata(), np.float64) for line in axes.lines)])
    if not len(values) or values.min() <= 0:
        return
    axes.set_yscale("log")
    subs = (1.0, 2.0, 5.0) if values.max() / values.min() > 5 else tuple(np.arange(1.0, 10.0))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(plain_tick)


def _no_lines(axes: "Axes") -> None:
    if not axes.lines:
        write_in_panel(axes, "no steps were logged")


# Values on a head, seen from above

_REACH = 0.4  # farthest distance from an electrode that is coloured, as a share of the head's radius
_OUTER = 1.3  # electrodes beyond this radius (cheek and neck) are not drawn
_RIM = 1.08  # radius where the coloured surface ends; electrodes farther out are single dots
_NAMES = 64  # more electrodes than this are drawn without their names


def place(channel: str) -> tuple[float, float] | None:
    """Return where a channel lies on a disc seen from above, nose up; its rim passes through forehead and ears.

    A difference of two electrodes lies half-way between them. Distances from the vertex are true along the scalp. None
    is returned for a name without a position, and for electrodes far below the rim.
    """
    parts = [POSITIONS.get(name) for name in channel.split("-")]
    known = [point for point in parts if point is not None]
    if len(known) < len(parts):
        return None
    x, y, z = (sum(point[axis] for point in known) / len(known) for axis in range(3))
    flat = math.hypot(x, y)
    radius = math.atan2(flat, z) / (math.pi / 2)
    if radius > _OUTER:
        return None
    return (0.0, 0.0) if flat == 0 else (radius * x / flat, radius * y / flat)


def draw_head(
    axes: "Axes", values: Mapping[str, float], title: str, low: float, high: float, colours: str = "viridis"
) -> Any:
    """Draw one map of values by channel; return what a colour bar needs, None if no channel has a position."""
    from matplotlib.patches import Circle

    found = {name: spot for name in values if (spot := place(name)) is not None}
    axes.set_title(title)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.35, 1.35)
    axes.set_ylim(-1.35, 1.35)
    if not found:
        write_in_panel(axes, "no channel with a place on the head")
        return None
    at = np.array(list(found.values()))
    each = np.array([values[name] for name in found])
    style: dict[str, Any] = {"cmap": colours, "vmin": low, "vmax": high}
    surface = _surface(at, each)
    if surface is not None:
        sheet = axes.contourf(*surface, levels=np.linspace(low, high, 17), extend="both", **style)
        sheet.set_clip_path(Circle((0, 0), _RIM, transform=axes.transData))
    angle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(angle), np.sin(angle), color=DARK, linewidth=1.2)
    axes.plot([-0.12, 0, 0.12], [0.993, 1.14, 0.993], color=DARK, linewidth=1.2)
    for side in (-1, 1):
        axes.plot(side * (1 + 0.07 * np.sin(angle[:100])), 0.18 * np.cos(angle[:100]), color=DARK, linewidth=1.2)
    points = axes.scatter(at[:, 0], at[:, 1], c=each, s=26, edgecolors=DARK, linewidths=0.6, zorder=3, **style)
    if len(found) <= _NAMES:
        for name, (x, y) in found.items():
            axes.annotate(
                name,
                (x, y),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=6,
                color=DARK,
                bbox={"facecolor": "white", "alpha": 0.55, "linewidth": 0, "pad": 0.4},
            )
    return points


def draw_heads(
    axes: Sequence["Axes"], maps: Sequence[tuple[str, Mapping[str, float]]], label: str, caption_axes: Any
) -> None:
    """Draw several maps on one scale of colours."""
    all_values = [value for _, values in maps for name, value in values.items() if place(name) is not None]
    low, high = (min(all_values), max(all_values)) if all_values else (0.0, 1.0)
    if high - low < 1e-6:
        low, high = low - 0.5e-6, high + 0.5e-6
    shown = [draw_head(one, values, title, low, high) for one, (title, values) in zip(axes, maps, strict=True)]
    points = next((found for found in shown if found is not None), None)
    if points is not None:
        bar = caption_axes.colorbar(points, ax=list(axes), shrink=0.7)
        bar.set_label(label)
        bar.outline.set_edgecolor(GREY)


def _surface(at: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[Any, Any, Any] | None:
    """Interpolate a smooth surface near the electrodes; None if there are too few to span one."""
    from scipy.interpolate import RBFInterpolator

    # Two channels at one place (a difference and its mirror) count as one with their mean value.
    spots, which = np.unique(at.round(6), axis=0, return_inverse=True)
    if len(spots) < 4 or np.linalg.matrix_rank(spots - spots.mean(0), tol=1e-3) < 2:
        return None
    means = np.bincount(which.ravel(), values) / np.bincount(which.ravel())
    sheet = RBFInterpolator(spots, means, kernel="thin_plate_spline", smoothing=1e-3)
    x, y = np.meshgrid(np.linspace(-_RIM, _RIM, 91), np.linspace(-_RIM, _RIM, 91))
    grid = np.stack([x.ravel(), y.ravel()], 1)
    near = np.sqrt(((grid[:, None] - spots[None]) ** 2).sum(-1)).min(1)
    inside = near < _REACH
    z = np.clip(sheet(grid), values.min(), values.max())
    return x, y, np.ma.masked_where(~inside.reshape(x.shape), z.reshape(x.shape))


# Spectra of many short stretches

STRETCH_SECONDS = 4.0
"""Length of the stretches that spectra are made of, so bins are 0.25 Hz wide."""
_CYCLES = 2  # bins of waves with fewer cycles than this in a stretch are left out
_SPAN = 1e7  # range of power in a picture; anything below is rounding


def density(samples: NDArray[Any], sfreq: float) -> NDArray[np.float32]:
    """Return the power density (channel, bin) of one stretch (time, channel), in squared units per Hz.

    Bins are ``1 / STRETCH_SECONDS`` Hz wide. Shorter stretches are padded with zeros so that all have the same bins;
    bins that a stretch is too short for are NaN. A straight line is subtracted first, because offset and drift would
    leak into the slow bins.
    """
    from scipy import signal

    size = max(round(STRETCH_SECONDS * sfreq), len(samples))
    columns = np.ascontiguousarray(samples.T, np.float64)
    _, power = signal.welch(columns, sfreq, nperseg=len(samples), nfft=size, detrend="linear")
    power[:, np.arange(power.shape[1]) * len(samples) < _CYCLES * size] = np.nan
    return power.astype(np.float32)


def quartiles(powers: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return (3, bin): lower quartile, median and upper quartile over all channels of all stretches; NaN if none."""
    width = max((power.shape[1] for power in powers), default=0)
    rows = [np.pad(power, ((0, 0), (0, width - power.shape[1])), constant_values=np.nan) for power in powers]
    if not rows:
        return np.empty((3, 0))
    pooled = np.concatenate(rows)
    result = np.full((3, width), np.nan)
    known = np.isfinite(pooled).any(axis=0)
    result[:, known] = np.nanpercentile(pooled[:, known], [25, 50, 75], axis=0)
    return result


def draw_spectrum(axes: "Axes", quartiles_3F: NDArray[np.float64], colour: str, label: str) -> None:
    """Draw the median as a line and the quartiles as a band."""
    hertz = np.arange(quartiles_3F.shape[1]) / STRETCH_SECONDS
    shown = np.isfinite(quartiles_3F[1]) & (quartiles_3F[1] > 0) & (hertz > 0)
    low, middle, high = quartiles_3F[:, shown]
    axes.fill_between(hertz[shown], low, high, color=colour, alpha=0.22, linewidth=0)
    axes.plot(hertz[shown], middle, color=colour, linewidth=1.4, label=label)


def finish_spectrum(axes: "Axes", mains: Mapping[float, str]) -> None:
    """Set logarithmic axes and units, and draw the mains lines; ``mains`` names each of them."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (line, name) in enumerate(sorted(mains.items())):
        axes.axvline(line, color=ORANGE, linestyle=(0, (1, 1.5)) if number else (0, (4, 2)), linewidth=1.0, label=name)
    left, right = axes.get_xlim()
    axes.set_xticks([f for f in (0.5, 1, 2, 4, 8, 13, 30, 60, 100, 200, 500) if left < f < right])
    axes.xaxis.set_major_formatter(plain_tick)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(plain_tick)
    top = axes.get_ylim()[1]
    axes.set_ylim(max(axes.get_ylim()[0], top / _SPAN), top)
    axes.grid(True, which="major", color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_xlabel("frequency (Hz)")
    axes.set_ylabel("power density (µV²/Hz)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")
