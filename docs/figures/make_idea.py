"""Draw docs/figures/idea.svg: how the model sees a window of EEG. The traces are synthetic.

    python docs/figures/make_idea.py [OUTPUT]

The picture has no input and no random state, so the same matplotlib version writes the same bytes.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

# Colours of the palette of Okabe and Ito, which is safe for the common kinds of colour blindness.
BLUE, GREEN, ORANGE, GREY, DARK = "#0072B2", "#007F5C", "#D55E00", "#C4C4C4", "#333333"
ELECTRODES = ("Fp1", "F3", "C3", "P3", "O1")
PATCHES = 8
SAMPLES = 40  # drawn points per patch
QUERY = (2, 4)  # row and column of the token whose attention is shown
MASKED = {
    (0, 1),
    (0, 5),
    (0, 6),
    (1, 3),
    (1, 4),
    (2, 0),
    (2, 4),
    (2, 7),
    (3, 1),
    (3, 2),
    (3, 6),
    (4, 0),
    (4, 3),
    (4, 5),
}
MASKED |= {(0, 3), (1, 0), (1, 7), (2, 2), (3, 4), (4, 7)}  # 20 of 40: half of the patches
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "svg.hashsalt": "cerebro-eeg",
    "svg.fonttype": "path",  # the letters look the same on every machine
}


def make_traces() -> np.ndarray:
    """A smooth signal per electrode that shares a rhythm with its neighbours; shape (electrodes, samples)."""
    time = np.arange(PATCHES * SAMPLES) / SAMPLES
    envelope = 0.65 + 0.35 * np.sin(2 * np.pi * (time / 7.0 + 0.1))
    rows = []
    for row in range(len(ELECTRODES)):
        alpha = (0.35 + 0.16 * row) * envelope * np.sin(2 * np.pi * (2.1 * time - 0.06 * row))
        slow = (0.55 - 0.07 * row) * np.sin(2 * np.pi * (0.37 * time + 0.13 * row))
        fast = 0.16 * np.sin(2 * np.pi * (5.3 * time + 0.31 * row * row))
        rows.append(alpha + slow + fast)
    return np.array(rows)


def draw_frame(axes: Axes, title: str, colour: str = DARK) -> None:
    """Prepare an empty grid with one row per electrode and one column per patch."""
    axes.set_xlim(-0.05, PATCHES + 0.05)
    axes.set_ylim(len(ELECTRODES) + 0.05, -0.05)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(title, color=colour, fontsize=11, fontweight="bold", pad=7, linespacing=1.25)


def draw_cells(axes: Axes, faces: dict[tuple[int, int], str]) -> None:
    """Draw every patch as a square; the default face is white."""
    for row in range(len(ELECTRODES)):
        for column in range(PATCHES):
            face = faces.get((row, column), "white")
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor="#8A8A8A", linewidth=0.7))


def draw_window(axes: Axes, traces: np.ndarray, filled: bool) -> None:
    """Draw the traces; masked patches are grey and empty, or filled with the reconstruction."""
    hidden = "#FBE9DF" if filled else GREY
    draw_cells(axes, dict.fromkeys(MASKED, hidden))
    for row in range(len(ELECTRODES)):
        for column in range(PATCHES):
            part = slice(column * SAMPLES, (column + 1) * SAMPLES + (column + 1 < PATCHES))
            x = np.arange(part.start, part.stop) / SAMPLES
            y = row + 0.5 - 0.36 * traces[row, part]
            masked = (row, column) in MASKED
            if masked and not filled:
                continue
            colour, width = (ORANGE, 1.6) if masked else (DARK, 1.0)
            axes.plot(x, y, color=colour, linewidth=width, solid_capstyle="round")


def draw_attention(axes: Axes, along_time: bool) -> None:
    """Colour the tokens that the query token attends to, and mark the query with a dot."""
    colour, light = (GREEN, "#A6DCCB") if along_time else (BLUE, "#A9CFE8")
    row, column = QUERY
    if along_time:
        seen = {(row, other) for other in range(PATCHES)}
        corner, width, height = (0, row), PATCHES, 1
        ends = (0.12, row + 0.5), (PATCHES - 0.12, row + 0.5)
    else:
        seen = {(other, column) for other in range(len(ELECTRODES))}
        corner, width, height = (column, 0), 1, len(ELECTRODES)
        ends = (column + 0.5, 0.12), (column + 0.5, len(ELECTRODES) - 0.12)
    draw_cells(axes, dict.fromkeys(MASKED, GREY) | dict.fromkeys(seen, light))
    for cell in sorted(MASKED & seen):
        hatch = Rectangle((cell[1], cell[0]), 1, 1, facecolor="none", edgecolor="#8A8A8A", hatch="////", linewidth=0)
        axes.add_patch(hatch)
    axes.add_patch(Rectangle(corner, width, height, facecolor="none", edgecolor=colour, linewidth=2.4))
    axes.add_patch(
        FancyArrowPatch(*ends, arrowstyle="<|-|>", mutation_scale=13, shrinkA=0, shrinkB=0, color=colour, linewidth=2)
    )
    dot = {"markersize": 10, "color": colour, "markeredgecolor": "white", "markeredgewidth": 1.6}
    axes.plot(column + 0.5, row + 0.5, "o", zorder=5, **dot)


def name_rows(axes: Axes) -> None:
    for row, name in enumerate(ELECTRODES):
        axes.text(-0.2, row + 0.5, name, ha="right", va="center", fontsize=10, color=DARK)


def note(axes: Axes, words: str) -> None:
    middle = PATCHES / 2
    axes.text(middle, len(ELECTRODES) + 0.35, words, ha="center", va="top", fontsize=10, color=DARK, linespacing=1.35)


def draw(path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure((10.6, 3.3), dpi=150, facecolor="white")
        traces = make_traces()
        width, gap, left = 0.2, 0.045, 0.046
        panels = [figure.add_axes((left + place * (width + gap), 0.3, width, 0.52)) for place in range(4)]

        draw_frame(panels[0], "Cut and mask")
        draw_window(panels[0], traces, filled=False)
        name_rows(panels[0])
        note(panels[0], "patches of 0.25 s;\nhalf are hidden (grey)")

        draw_frame(panels[1], "Odd layers:\nacross channels", BLUE)
        draw_attention(panels[1], along_time=False)
        note(panels[1], "all channels\nat the same time")

        draw_frame(panels[2], "Even layers:\nalong time", GREEN)
        draw_attention(panels[2], along_time=True)
        note(panels[2], "one channel\nat all times")

        draw_frame(panels[3], "Reconstruct")
        draw_window(panels[3], traces, filled=True)
        note(panels[3], "hidden patches,\nfilled in by the model")

        def arrow(start: tuple[float, float], end: tuple[float, float], colour: str, **look: float | str) -> None:
            place = {"transform": figure.transFigure, "arrowstyle": "-|>", "mutation_scale": 17, "linewidth": 2}
            figure.add_artist(FancyArrowPatch(start, end, color=colour, **(place | look)))

        for place in range(3):
            start = left + place * (width + gap) + width
            arrow((start + 0.004, 0.56), (start + gap - 0.004, 0.56), DARK)
        second, third = (left + place * (width + gap) + width / 2 for place in (1, 2))
        arrow((third, 0.115), (second, 0.115), "#666666", linewidth=1.5, mutation_scale=14)
        middle = (second + third) / 2
        figure.text(
            middle, 0.075, "repeated, 8 to 12 layers in all", ha="center", va="top", fontsize=10, color="#555555"
        )
        kind = path.suffix.removeprefix(".")
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, format=kind, metadata=metadata, facecolor="white")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("idea.svg"))
