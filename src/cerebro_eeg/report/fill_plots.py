"""How masked patches were filled in, as pictures: signals, bands of frequencies, datasets, the head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.report.head_plot import draw_heads, place
from cerebro_eeg.report.picture import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE
from cerebro_eeg.runs.baselines import hidden_series, spread, to_series
from cerebro_eeg.runs.reconstruction import RIVALS, BandErrors, ChannelErrors, Errors, Example

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = {
    "model": (BLUE, "o", "model"),
    "mean": (GREY, "|", "mean"),
    "interpolation": (PURPLE, "^", "interpolation in time"),
    "ridge": (GREEN, "s", "ridge from other channels"),
}
CHANNELS = 8
_STEP = 5.0  # standard deviations from channel to channel


def draw_signals(figure: "Figure", example: Example, config: ModelConfig) -> None:
    """A few channels of a window: the signal and, in shaded patches that were hidden, what the model put there."""
    import torch

    target_CFT, filled_CFT = (
        to_series(torch.from_numpy(values), config.patches).numpy()
        for values in (example.target_CNL, example.predicted_CNL)
    )
    hidden_CFT = hidden_series(torch.from_numpy(example.masked_CN), config.patches).numpy()
    if config.patches.kind == "waveform":
        rows = spread(np.arange(len(example.montage)), CHANNELS)
        names = [example.montage[row] for row in rows]
        axes: Axes = figure.subplots()
        _draw_waveforms(axes, names, config.signal.sfreq, target_CFT[rows, 0], filled_CFT[rows, 0], hidden_CFT[rows, 0])
        axes.set_title(_title(example))
        return
    rows = spread(np.arange(len(example.montage)), 3)
    figure.suptitle(_title(example), x=0.01, ha="left", fontsize=10)
    for line, row in zip(figure.subplots(len(rows), 3, squeeze=False), rows.tolist(), strict=True):
        seen = np.where(hidden_CFT[row], np.nan, target_CFT[row])
        images = (target_CFT[row], seen, np.where(hidden_CFT[row], filled_CFT[row], target_CFT[row]))
        for panel, image, words in zip(line, images, ("original", "what the model saw", "filled in"), strict=True):
            panel.imshow(image, aspect="auto", origin="lower", cmap="viridis", vmin=-2.5, vmax=2.5)
            panel.set_title(f"{example.montage[row]}, {words}", fontsize=8)
            panel.set_xticks([])
            panel.set_yticks([])


def _title(example: Example) -> str:
    return f"{example.dataset}: {example.recording}, from {example.start:g} s"


def _draw_waveforms(
    axes: "Axes",
    names: Sequence[str],
    sfreq: float,
    target_CT: NDArray[np.float32],
    filled_CT: NDArray[np.float32],
    hidden_CT: NDArray[np.bool_],
) -> None:
    time = np.arange(target_CT.shape[1]) / sfreq
    for line in range(len(names)):
        middle, hidden = -_STEP * line, hidden_CT[line]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], hidden, [0]]).astype(np.int8))).reshape(-1, 2)
        spans = [(first / sfreq, (last - first) / sfreq) for first, last in edges.tolist()]
        axes.broken_barh(spans, (middle - _STEP / 2, _STEP), color=ORANGE, alpha=0.13, linewidth=0)
        # Cut, so that an artefact does not cover the neighbours.
        axes.plot(time, middle + np.clip(target_CT[line], -_STEP, _STEP), color=DARK, linewidth=0.7)
        filled = np.where(hidden, np.clip(filled_CT[line], -_STEP, _STEP), np.nan)
        axes.plot(time, middle + filled, color=ORANGE, linewidth=1.4)
    axes.set_yticks([-_STEP * line for line in range(len(names))], names)
    axes.set_xlim(0, len(time) / sfreq)
    axes.set_ylim(-_STEP * (len(names) - 0.4), 0.6 * _STEP)
    axes.set_xlabel("seconds")
    axes.plot([], [], color=DARK, linewidth=0.7, label="original, as the model's target")
    axes.plot([], [], color=ORANGE, linewidth=1.4, label="model, in masked patches (shaded)")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))


def draw_bands(figure: "Figure", bands: Sequence[BandErrors]) -> None:
    """Bars by band; the line at 1 is saying nothing."""
    axes: Axes = figure.subplots()
    rivals = ("model", "interpolation", "ridge")
    for number, rival in enumerate(rivals):
        colour, _, label = LOOKS[rival]
        values = [getattr(band, rival) for band in bands]
        axes.bar(np.arange(len(bands)) + 0.27 * (number - 1), values, 0.25, color=colour, label=label)
    axes.axhline(1, color=DARK, linewidth=1, linestyle=":", label="mean: says nothing")
    axes.set_xticks(
        range(len(bands)),
        [f"{one.band}\n{one.low:g} to {one.high:g} Hz\n{one.energy:.0%} of energy" for one in bands],
    )
    axes.set_ylabel("error / energy in the band")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def draw_datasets(figure: "Figure", found: Mapping[str, Errors]) -> None:
    """A line for each dataset with a mark for each rival; left is better."""
    axes: Axes = figure.subplots()
    names = list(found)
    for rival in RIVALS:
        colour, marker, label = LOOKS[rival]
        values = [getattr(found[name], rival) for name in names]
        size = 11 if rival == "mean" else 7
        axes.plot(values, range(len(names)), marker, color=colour, markersize=size, label=label)
    axes.set_yticks(range(len(names)), [f"{name} ({found[name].windows:,} windows)" for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, None)
    axes.grid(True, axis="both", color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_xlabel("error of masked patches (left is better)")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))


def draw_channels(figure: "Figure", channels: Sequence[ChannelErrors]) -> None:
    """Maps of the model's error and of ridge's, on one scale; differences of two electrodes apart from single ones."""
    kinds = {
        name: [one for one in channels if ("-" in one.channel) == two and place(one.channel) is not None]
        for name, two in (("electrodes", False), ("differences, half-way between their electrodes", True))
    }
    shown = {name: found for name, found in kinds.items() if found}
    panels = figure.subplots(max(1, len(shown)), 2, squeeze=False)
    maps = [
        (f"{LOOKS[rival][2]}: {name}", {one.channel: float(getattr(one.errors, rival)) for one in found})
        for name, found in shown.items()
        for rival in ("model", "ridge")
    ]
    draw_heads(list(panels.flat)[: len(maps)], maps, "error of masked patches", figure)
