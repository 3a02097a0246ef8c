"""Pictures of scores: differences from rivals, ROC curves, confusion, calibration and subjects.

``carries`` functions say how many windows or subjects a picture needs: with fewer a page has a sentence in its place.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.report.figures import BLUE, COLOURS, DARK, GREEN, GREY, ORANGE, PALE, write_in_panel
from cerebro_eeg.runs.rivals import WIN, Rows
from cerebro_eeg.scores.roc import GRID, Curve
from cerebro_eeg.scores.tables import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_CALIBRATION = 100
"""Windows that a calibration curve needs: ten for each of its bins."""
LEAST_SUBJECTS = 3
"""Subjects with a score of their own that a picture of them needs."""
MOST_CURVES = 8
"""Most classes that have a panel of ROC curves."""
_NAMED = 40  # more subjects than this are drawn without their names
_LINES = ((BLUE, "-"), (ORANGE, "-"), (GREEN, "--"), (DARK, ":"))


def draw_rivals(figure: "Figure", rows: Rows) -> None:
    """Draw ours minus each rival's score as a dot with its interval; colours tell who wins."""
    axes: Axes = figure.subplots()
    axes.axvline(0, color=GREY, linewidth=1)
    for place, row in enumerate(rows):
        above, below, at = row["above"], row["below"], len(rows) - 1 - place
        colour = GREY if above is None else BLUE if above >= WIN else ORANGE if below >= WIN else GREY
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [at, at], color=colour, linewidth=2, solid_capstyle="round")
        axes.plot(row["difference"], at, "o", color=colour if above is not None else DARK, markersize=7)
    axes.set_yticks(range(len(rows)), [f"{row['name']}  {row['rival']:.3f}" for row in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"this model ({rows[0]['ours']:.3f}) minus rival, {title(rows[0]['metric'])}")


def draw_confusions(figure: "Figure", found: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> None:
    """Draw counts by true and predicted class, side by side under their titles."""
    for place, (title_of, counts) in enumerate(found.items()):
        axes: Axes = figure.add_subplot(1, len(found), place + 1)
        axes.set_title(title_of, fontsize=9)
        _draw_confusion(axes, counts, names)


def _draw_confusion(axes: "Axes", counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """Draw one matrix of counts; the colour is the share of the true class."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for row in range(len(names)):
        for column in range(len(names)):
            axes.text(
                column,
                row,
                f"{share[row, column]:.0%}\n{counts[row, column]:,}",
                ha="center",
                va="center",
                fontsize=9 if len(names) <= 6 else 6,
                color="white" if share[row, column] > 0.6 else DARK,
            )
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) <= 4 else 45)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def draw_calibration(figure: "Figure", found: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw predicted probability against observed share, one line per training; larger marks have more windows.

    Of many trainings there are pale lines, and marks for all of them together.
    """
    axes: Axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="as said, so it is")
    lines = {name: (_bins(one["bins"]), f"{name}: error {one['error']:.3f}") for name, one in found.items()}
    if len(found) > len(COLOURS):
        for (said, true, _), _ in lines.values():
            axes.plot(said, true, color=BLUE, linewidth=0.7, alpha=PALE)
        errors = [one["error"] for one in found.values()]
        words = f"all {len(found)} trainings: errors {min(errors):.3f} to {max(errors):.3f}"
        lines = {"": (pooled_bins([bins for bins, _ in lines.values()]), words)}
    for ((said, true, windows), label), colour in zip(lines.values(), COLOURS, strict=False):
        axes.plot(said, true, color=colour, linewidth=1, label=label)
        axes.scatter(said, true, s=8 + 120 * windows / max(windows.sum(), 1), color=colour, alpha=0.8)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("probability that the model says")
    axes.set_ylabel("share that came true")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


Bins = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Probability that is said, share that came true, and windows, of each bin."""


def _bins(rows: Sequence[Mapping[str, float]]) -> Bins:
    said, true, windows = (np.array([one[key] for one in rows], np.float64) for key in ("said", "true", "windows"))
    return said, true, windows


def pooled_bins(trainings: Sequence[Bins], count: int = 10) -> Bins:
    """Return the bins of several trainings put together by what they say, weighted by their windows."""
    said, true, windows = (np.concatenate(column) for column in zip(*trainings, strict=True))
    place = np.minimum((said * count).astype(np.intp), count - 1)
    total: NDArray[np.float64] = np.bincount(place, windows, count).astype(np.float64)
    full = total > 0
    of_said, of_true = (np.bincount(place, windows * x, count)[full] / total[full] for x in (said, true))
    return of_said, of_true, total[full]


def draw_subjects(
    figure: "Figure", rows: Sequence[Sequence[Mapping[str, Any]]], metric: str, names: Mapping[str, str]
) -> None:
    """Draw a mark per subject and training, subjects sorted by mean; the line is the mean over subjects.

    ``names`` has the number that a subject has on the page.
    """
    axes: Axes = figure.subplots()
    values = subject_values(rows, metric)
    if not values:
        write_in_panel(axes, "no subject has enough windows of each kind for this score")
        return
    means = {subject: float(np.mean(found)) for subject, found in values.items()}
    order = sorted(means, key=lambda subject: (means[subject], subject))
    for place, subject in enumerate(order):
        axes.plot([place] * len(values[subject]), values[subject], "o", color=BLUE, alpha=0.45, markersize=4)
    axes.plot(range(len(order)), [means[subject] for subject in order], "_", color=DARK, markersize=9)
    mean = float(np.mean(list(means.values())))
    axes.axhline(mean, color=ORANGE, linewidth=1.2, label=f"mean over {len(order):,} subjects {mean:.3f}")
    if len(order) <= _NAMED:
        axes.set_xticks(range(len(order)), [names[subject] for subject in order])
        axes.set_xlabel("number of the subject, as in the table; the best is on the right")
    else:
        axes.set_xlabel("subjects, sorted; the best is on the right")
    axes.set_ylabel(title(metric))
    lowest, highest = min(map(min, values.values())), max(map(max, values.values()))
    if lowest >= 0 and highest <= 1:  # most scores end at 1
        axes.set_ylim(max(-0.03, lowest - 0.08), 1.04)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def subject_values(rows: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> dict[str, list[float]]:
    """Return the values of a measure that each subject has in the trainings."""
    found: dict[str, list[float]] = {}
    for training in rows:
        for row in training:
            if (value := row["values"].get(metric)) is not None:
                found.setdefault(row["subject"], []).append(value)
    return found


def draw_roc(figure: "Figure", panels: Mapping[str, Sequence[tuple[str, Curve]]]) -> None:
    """Draw a panel per class with the curves of this model and its rivals; the first curve has its band."""
    columns = min(4, len(panels))
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, curves) in zip(grid.flat, panels.items(), strict=False):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="a guess")
        for number, (label, curve) in enumerate(curves):
            colour, line = _LINES[number % len(_LINES)]
            if not number and curve.low is not None and curve.high is not None:
                axes.fill_between(GRID, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
            steps = np.append(0.0, GRID), np.append(0.0, curve.found)
            width = 1.8 if not number else 1.2
            axes.plot(*steps, color=colour, linestyle=line, linewidth=width, label=label, zorder=5 - number)
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(-0.01, 1.02)
        axes.set_aspect("equal")
        axes.set_title(name)
        axes.set_xlabel("share of false alarms")
        axes.set_ylabel("share that is found")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
