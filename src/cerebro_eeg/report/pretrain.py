"""The report of a pre-training run: ``report.html`` with curves, masked patches filled in, and their errors.

It is made when the run ends, or later from the folder of the run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.progress import in_time
from cerebro_eeg.report import figures
from cerebro_eeg.report.again import again
from cerebro_eeg.report.figures import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, draw_heads, place
from cerebro_eeg.report.page import (
    Tell,
    check_packages,
    facts,
    figure,
    heading,
    page,
    paragraph,
    provenance,
    short_id,
    silent,
    table,
    telling,
    verdict_box,
)
from cerebro_eeg.report.verdicts import FillingIn, Verdict, of_filling_in
from cerebro_eeg.runs.baselines import hidden_series, spread, to_series
from cerebro_eeg.runs.folder import RunFolder, history_words
from cerebro_eeg.runs.pretrain import Sources
from cerebro_eeg.runs.reconstruction import (
    RIVALS,
    BandErrors,
    ChannelErrors,
    Errors,
    Example,
    Reconstructed,
    find_examples,
    reconstruct,
)
from cerebro_eeg.runs.windows import open_stores, pretrain_sources
from cerebro_eeg.schema import from_dict, to_dict
from cerebro_eeg.scores.paired import FEWEST
from cerebro_eeg.scores.predictions import draw, interval
from cerebro_eeg.train.log import read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOWS = 512
"""Validation windows that a report uses, spread evenly over all."""
_HEAD_WORDS = (
    "Dark is better. Electrodes are of the data sets that have them, so a map also shows which data are hard. Colour "
    "is not carried far from electrodes."
)
LOOKS = {  # colour, marker and label
    "model": (BLUE, "o", "model"),
    "mean": (GREY, "|", "mean"),
    "interpolation": (PURPLE, "^", "interpolation in time"),
    "ridge": (GREEN, "s", "ridge from other channels"),
}
_RESAMPLES = 1000  # draws of subjects for the interval of the headline
_CHANNELS = 8  # channels that are drawn
_STEP = 5.0  # distance between channels, in standard deviations


def report_pretrain(
    folder: Path,
    stores: Sequence[Path] = (),
    device: torch.device | str = "cpu",
    limit_windows: int | None = WINDOWS,
    *,
    tell: Tell = silent,
) -> Path:
    """Write the report of a pre-training run.

    With its stores, masked patches of validation windows are filled in, and the errors are kept in
    ``reconstruction.json``. Without stores, the errors of an earlier report on the same weights are shown again.
    """
    check_packages("matplotlib")
    run = RunFolder(folder)
    described = run.read()
    config = from_dict(ModelConfig, described["settings"]["model"])
    found: tuple[Reconstructed, bool] | None = None
    examples: tuple[Example, ...] = ()
    if stores and run.model.exists():
        found, examples = _measure(run, described["settings"], stores, device, limit_windows, tell)
    elif run.model.exists():
        found = _kept(run)
    with telling(tell):
        write_text(run.report, _page(run, described, config, found, examples))
    return run.report


def _page(
    run: RunFolder,
    described: Mapping[str, Any],
    config: ModelConfig,
    found: tuple[Reconstructed, bool] | None,
    examples: Sequence[Example],
) -> str:
    lines = read_lines(run.metrics)
    measures = [("validation_loss", "loss"), ("validation_masked", "own")]
    parts = [
        verdict_box(_headline(found)),
        *_summary(described["settings"], lines, found),
        *([] if (words := history_words(described)) is None else [paragraph(f"The {words}.")]),
        *_reconstruction(config, found, examples),
        heading("Training"),
        figures.curves_figure({"": lines}, measures, figure),
        *provenance(described, run.model if run.model.exists() else None, again(described)),
    ]
    return page("Pre-training", parts)


def _headline(found: tuple[Reconstructed, bool] | None) -> Verdict:
    if found is None:
        why = "The stores were not at hand, so hidden patches were not filled in. Report again with them to see it."
        return Verdict("open", "Not judged yet: nothing was put beside the baselines.", (why,))
    verdict = of_filling_in(beside_best(*found))
    return replace(verdict, below=(_against_all(found[0]), *verdict.below))


def beside_best(found: Reconstructed, held_out: bool) -> FillingIn:
    """Return how the model stands beside the best baseline, with the interval over subjects."""
    name = min(RIVALS[1:], key=lambda name: float(getattr(found.total, name)))
    model, rival = found.total.model, float(getattr(found.total, name))
    count = len(found.subjects)
    limits: tuple[float | None, float | None, float | None] = (None, None, None)
    if count >= FEWEST:
        patches = np.array([one.patches for one in found.subjects], np.float64)
        gap = np.array([one.model - getattr(one, name) for one in found.subjects])
        drawn = draw(count, _RESAMPLES, 0)
        total = drawn @ patches
        draws = (drawn @ (gap * patches)) / np.maximum(total, 1)
        low, high = interval(draws, count)
        limits = (low, high, float((draws < 0).mean()))
    return FillingIn(model, rival, LOOKS[name][2], count, model - rival, *limits, held_out)


def _measure(
    run: RunFolder,
    settings: dict[str, Any],
    folders: Sequence[Path],
    device: torch.device | str,
    limit: int | None,
    tell: Tell,
) -> tuple[tuple[Reconstructed, bool], tuple[Example, ...]]:
    """Fill masked patches in, and write the errors beside the weights, with the hash of these weights."""
    train, validation = _sources(settings, folders)
    held_out = bool(validation)
    model = MaskedCerebro.from_pretrained(run.model)
    shown = validation if held_out else train
    found = reconstruct(model, train, shown, device, limit, tell=tell)
    tell("examples to look at", 0, 0)
    examples = find_examples(model, shown, device)
    kept = {"weights": _weights(run), "held_out": held_out, "found": to_dict(found)}
    write_text(run.path / "reconstruction.json", json.dumps(kept, allow_nan=False) + "\n")
    return (found, held_out), examples


def _sources(settings: dict[str, Any], folders: Sequence[Path]) -> tuple[Sources, Sources]:
    """Return the windows that the run trained on and validated with, from the same stores."""
    stores, choices, model = open_stores(folders), settings["choices"], settings["model"]
    if [store.hash() for store in stores] != [store["sha256"] for store in settings["stores"]]:
        raise InputError("the stores are not those that the run was trained on; give the same ones in the same order")
    seconds = choices["seconds"] or model["window"] / model["signal"]["sfreq"]
    return pretrain_sources(stores, seconds, choices["stride"], choices["without"])


def _weights(run: RunFolder) -> str:
    return checkpoint.hash_tensors(checkpoint.read(run.model)[1])


def _kept(run: RunFolder) -> tuple[Reconstructed, bool] | None:
    """Return the errors of an earlier report, if they are of these weights."""
    try:
        kept = parse_json((run.path / "reconstruction.json").read_text(encoding="utf-8"))
        if kept["weights"] != _weights(run):
            return None
        found = {"subjects": [], **kept["found"]}  # earlier releases kept none
        return from_dict(Reconstructed, found), bool(kept["held_out"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"reconstruction.json of {run.path} is damaged; delete it, and report again") from error


def _summary(
    settings: dict[str, Any], lines: list[dict[str, Any]], found: tuple[Reconstructed, bool] | None
) -> list[str]:
    model, objective = settings["model"], settings["objective"]
    names = " + ".join(dict.fromkeys(str(store["dataset"]) for store in settings["stores"]))
    seconds = settings["choices"]["seconds"] or model["window"] / model["signal"]["sfreq"]
    words = (
        f"An encoder of {model['depth']} blocks of width {model['width']} with {model['attention']} attention, trained "
        f"to fill in {objective['mask_ratio']:.0%} masked {model['patches']['kind']} patches ({objective['style']}) of "
        f"{sum(settings['windows']):,} windows of {seconds:g} s. Data: {names}."
    )
    steps, losses = figures.column(lines, "loss")
    numbers = []
    if found is not None and len(found[0].subjects) >= FEWEST:
        best = beside_best(*found)
        numbers += [(f"{best.model:.3f}", "error of the model on hidden patches (lower is better)")]
        numbers += [(f"{best.rival:.3f}", f"error of the best baseline, {best.name}")]
        numbers += [(f"{best.difference:+.3f}", "model minus baseline; negative is good")]
    if len(steps):
        _, times = figures.column(lines, "seconds")
        words += f" It took {int(steps[-1]):,} steps in {in_time(times.sum())}; the loss of the last is "
        words += f"{losses[-1]:.4f}."
    _, masked = figures.column(lines, "validation_masked")
    if len(masked):
        words += f" The masked error on all validation windows is {masked[-1]:.4f}."
    return [facts(numbers) if numbers else "", paragraph(words, soft=True)]


def _reconstruction(
    config: ModelConfig, given: tuple[Reconstructed, bool] | None, examples: Sequence[Example]
) -> list[str]:
    if given is None:
        return []
    found, held_out = given
    whose = "validation windows, which were not trained on" if held_out else "windows that were also trained on"
    how_many = f"{found.total.windows:,} of {found.available:,}" if found.total.windows < found.available else "all"
    unit = "; 1 is the variance of a channel within its window" if config.normalization == "zscore" else ""
    datasets = found.by_dataset()
    parts = [
        heading("Masked patches, filled in"),
        paragraph(
            f"The error is the squared difference from the model's own target, averaged over the values of masked "
            f"patches{unit}. Everything below is of {how_many} {whose}, on the same {found.total.patches:,} patches."
        ),
        _error_table(found),
        paragraph(
            "Mean: says zero. Interpolation: straight lines in time between visible samples of the channel. Ridge: the "
            "other channels at the same instant, with a covariance of training windows for each montage.",
            soft=True,
        ),
    ]
    if len(datasets) > 1:  # one row of marks would say no more than the table
        drawn = _wide_figure(lambda c: draw_datasets(c, datasets), 1.4 + 0.35 * len(datasets), "Errors by data set")
        parts.append(drawn)
    parts += [
        _wide_figure(_draw_example(one, config), 5.5, f"Signal and reconstruction of a window of {one.dataset}")
        for one in examples
    ]
    parts += [
        heading("By frequency"),
        _wide_figure(lambda c: draw_bands(c, found.bands), 3.2, "Error by band of frequencies"),
        paragraph(
            "Error in a band over the energy that masked patches have there; 1 is as good as saying nothing. Patches "
            "are short, so neighbouring slow bands blur into each other.",
            soft=True,
        ),
        heading("By electrode"),
    ]
    both = len({"-" in one.channel for one in found.channels})
    heads = figure(lambda c: draw_channels(c, found.channels), 9, 4.2 * both, "Error by electrode, on a head")
    return [*parts, heads, paragraph(_HEAD_WORDS, soft=True)]


def _wide_figure(draw: Callable[[Any], None], height: float, words: str) -> str:
    return figure(draw, 9, height, words)


def _draw_example(example: Example, config: ModelConfig) -> Callable[[Any], None]:
    return lambda canvas: draw_signals(canvas, example, config)


def _against_all(found: Reconstructed) -> str:
    """Say in words whether the model beats the baselines."""
    model = found.total.model
    beaten = [LOOKS[name][2] for name in RIVALS[1:] if model < getattr(found.total, name)]
    ahead = [LOOKS[name][2] for name in RIVALS[1:] if model >= getattr(found.total, name)]
    if not ahead:
        return "The model does better than all three baselines."
    if not beaten:
        return (
            "The model does no better than any baseline: it has not learned to fill patches in, or not for long enough."
        )
    return f"The model does better than {' and '.join(beaten)}, and not better than {' and '.join(ahead)}."


def _error_table(found: Reconstructed) -> str:
    rows, best = [], []
    head = ["data set", "channels", "windows", "patches", *(LOOKS[name][2] for name in RIVALS)]
    for group in found.groups:
        rows.append([group.dataset, str(len(group.montage)), *_error_cells(group.errors)])
        best.append(_best_column(group.errors))
    if len(found.groups) > 1:
        rows.append(["all", "", *_error_cells(found.total)])
        best.append(_best_column(found.total))
    return table(head, rows, best)


def _error_cells(errors: Errors) -> list[str]:
    return [f"{errors.windows:,}", f"{errors.patches:,}", *(f"{getattr(errors, name):.4f}" for name in RIVALS)]


def _best_column(errors: Errors) -> int:
    return 4 + min(range(len(RIVALS)), key=lambda place: float(getattr(errors, RIVALS[place])))


# Pictures


def draw_signals(figure: "Figure", example: Example, config: ModelConfig) -> None:
    """Draw a few channels of a window: the signal and, in shaded masked patches, the model's reconstruction."""
    import torch

    target_CFT, filled_CFT = (
        to_series(torch.from_numpy(values), config.patches).numpy()
        for values in (example.target_CNL, example.predicted_CNL)
    )
    hidden_CFT = hidden_series(torch.from_numpy(example.masked_CN), config.patches).numpy()
    if config.patches.kind == "waveform":
        rows = spread(np.arange(len(example.montage)), _CHANNELS)
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
    short = short_id(example.recording)
    return f"{example.dataset}: recording {short if isinstance(short, str) else short.text}, from {example.start:g} s"


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
        # Clip, so that an artefact does not cover the neighbouring channels.
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
    """Draw bars by frequency band; the line at 1 is predicting zero."""
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
    """Draw a line per dataset with a mark per rival; left is better."""
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
    """Draw head maps of the errors of the model and of ridge, on one scale; bipolar channels have maps of their own."""
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
