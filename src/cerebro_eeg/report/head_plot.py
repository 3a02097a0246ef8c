"""Head: numbers of channels, drawn where their electrodes sit, seen from above with the nose up."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import POSITIONS
from cerebro_eeg.report.picture import DARK, GREY, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_REACH = 0.4  # a colour is not carried farther from an electrode than this share of the head's radius
_OUTER = 1.3  # electrodes on cheek and neck, beyond this, are not drawn
_RIM = 1.08  # where the sheet of colours ends; electrodes farther out are dots of their own
_NAMES = 64  # more electrodes than this are drawn without their names


def place(channel: str) -> tuple[float, float] | None:
    """Where a channel is on a disc whose rim is the ring through forehead and ears; a difference is half-way.

    Distances from the vertex are true along the scalp. None: a name that has no place, or one far below the ring.
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


def draw_head(axes: "Axes", values: Mapping[str, float], title: str, low: float, high: float) -> Any:
    """One map; returns what a colour bar needs, None where no channel has a place."""
    from matplotlib.patches import Circle

    found = {name: spot for name in values if (spot := place(name)) is not None}
    axes.set_title(title)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.35, 1.35)
    axes.set_ylim(-1.35, 1.35)
    if not found:
        say(axes, "no channel with a place on the head")
        return None
    at = np.array(list(found.values()))
    each = np.array([values[name] for name in found])
    style: dict[str, Any] = {"cmap": "viridis", "vmin": low, "vmax": high}
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
    """Several maps on one scale of colours."""
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
    """A smooth sheet through the values, near electrodes only; None for too few of them to span one."""
    from scipy.interpolate import RBFInterpolator

    # Two channels at one place (a difference and its mirror) would have no sheet through both: their mean.
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
