"""Scores as pictures: confusion, calibration, subjects. Scores are as ``test.json`` has them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.report.curve_plots import COLOURS
from cerebro_eeg.report.picture import BLUE, DARK, GREY, ORANGE, say
from cerebro_eeg.scores.tables import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 40  # more subjects than this are drawn without their names


def draw_confusions(figure: "Figure", found: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> None:
    """Counts by true and predicted class, side by side under their titles."""
    for place, (title_of, counts) in enumerate(found.items()):
        axes: Axes = figure.add_subplot(1, len(found), place + 1)
        axes.set_title(title_of, fontsize=9)
        _draw_confusion(axes, counts, names)


def _draw_confusion(axes: "Axes", counts: NDArray[np.int64], names: Sequence[str]) -> None:
    """The colour is the share of the true class."""
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
    """Said against come true, one line a training; the size of a mark is the share of windows."""
    axes: Axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="as said, so it is")
    for number, (name, calibration) in enumerate(found.items()):
        colour = COLOURS[number % len(COLOURS)]
        said, true, windows = (
            np.array([one[key] for one in calibration["bins"]]) for key in ("said", "true", "windows")
        )
        axes.plot(said, true, color=colour, linewidth=1, label=f"{name}: error {calibration['error']:.3f}")
        axes.scatter(said, true, s=8 + 120 * windows / max(windows.sum(), 1), color=colour, alpha=0.8)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("probability that the model says")
    axes.set_ylabel("share that came true")
    axes.legend(frameon=False, fontsize=8)


def draw_subjects(figure: "Figure", rows: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> None:
    """A mark for each subject and training, subjects sorted by their mean; the line is the mean over subjects."""
    axes: Axes = figure.subplots()
    values: dict[str, list[float]] = {}
    for training in rows:
        for row in training:
            value = row["values"].get(metric)
            if value is not None:
                values.setdefault(row["subject"], []).append(value)
    if not values:
        say(axes, "no subject has enough windows of each kind for this score")
        return
    means = {subject: float(np.mean(found)) for subject, found in values.items()}
    order = sorted(means, key=lambda subject: (means[subject], subject))
    for place, subject in enumerate(order):
        axes.plot([place] * len(values[subject]), values[subject], "o", color=BLUE, alpha=0.45, markersize=4)
    axes.plot(range(len(order)), [means[subject] for subject in order], "_", color=DARK, markersize=9)
    mean = float(np.mean(list(means.values())))
    axes.axhline(mean, color=ORANGE, linewidth=1.2, label=f"mean over {len(order):,} subjects {mean:.3f}")
    if len(order) <= _NAMED:
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
    else:
        axes.set_xlabel("subjects, sorted")
    axes.set_ylabel(title(metric))
    axes.legend(frameon=False, fontsize=8)
