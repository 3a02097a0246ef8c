"""The report of a run: ``report.html``, one page to look at, made when a run ends, or later from its folder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.files import write_text
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.report import curve_plots, fill_plots
from cerebro_eeg.report.finetune_report import finetune_page
from cerebro_eeg.report.page import check_packages, facts, figure, heading, page, paragraph, table
from cerebro_eeg.report.provenance import provenance
from cerebro_eeg.runs.examples import Example, find_examples
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.pretrain import Sources
from cerebro_eeg.runs.reconstruction import RIVALS, Errors, Reconstructed, reconstruct
from cerebro_eeg.runs.windows import open_stores, pretrain_windows
from cerebro_eeg.schema import from_dict, to_dict
from cerebro_eeg.train.log import read_lines

WINDOWS = 512
"""Validation windows that a report looks at, spread evenly over all."""
_HEAD_WORDS = (
    "Dark is better. Electrodes are of the data sets that have them, so a map also shows which data are hard. Colour "
    "is not carried far from electrodes."
)


def write_report(folder: Path, stores: Sequence[Path] = (), device: torch.device | str = "cpu") -> Path:
    """The report of any run, from its folder, and for a pre-training with signals where its stores are at hand."""
    if RunFolder(folder).read()["verb"] == "pretrain":
        return report_pretrain(folder, stores, device)
    return report_finetune(folder)


def report_finetune(folder: Path) -> Path:
    """Write the report of a fine-tuning run, with its test scores where evaluate has made them."""
    check_packages("matplotlib", "sklearn")
    run = RunFolder(folder)
    described = run.read()
    if "choices" not in described["settings"]:
        raise ConfigError(f"{folder} is one training of a run; give the folder of the run that it lies in")
    write_text(run.report, finetune_page(folder, described))
    return run.report


def report_pretrain(
    folder: Path,
    stores: Sequence[Path] = (),
    device: torch.device | str = "cpu",
    limit_windows: int | None = WINDOWS,
) -> Path:
    """Write the report of a pre-training run.

    With its stores, masked patches of validation windows are filled in and kept as ``reconstruction.json``; without,
    what an earlier report found for the same weights is shown again, without signals.
    """
    check_packages("matplotlib")
    run = RunFolder(folder)
    described = run.read()
    config = from_dict(ModelConfig, described["settings"]["model"])
    found: tuple[Reconstructed, bool] | None = None
    examples: tuple[Example, ...] = ()
    if stores and run.model.exists():
        found, examples = _measure(run, described["settings"], stores, device, limit_windows)
    elif run.model.exists():
        found = _kept(run)
    lines = read_lines(run.metrics)
    parts = [
        *_summary(described["settings"], lines, found),
        heading("Training"),
        figure(
            lambda canvas: curve_plots.draw_curves(
                canvas, {"": lines}, [("validation_loss", "loss"), ("validation_masked", "own")]
            ),
            9,
            6,
            "Curves of loss, validation, learning rate and gradient norm over the steps",
        ),
        *_reconstruction(config, found, examples),
        *provenance(described, run.model if run.model.exists() else None),
    ]
    write_text(run.report, page("Pre-training", parts))
    return run.report


def _measure(
    run: RunFolder, settings: dict[str, Any], folders: Sequence[Path], device: torch.device | str, limit: int | None
) -> tuple[tuple[Reconstructed, bool], tuple[Example, ...]]:
    """Fill masked patches in, and keep the numbers beside the weights that they are of."""
    train, validation = _sources(settings, folders)
    held_out = bool(validation)
    model = MaskedCerebro.from_pretrained(run.model)
    shown = validation if held_out else train
    found = reconstruct(model, train, shown, device, limit)
    examples = find_examples(model, shown, device)
    kept = {"weights": _weights(run), "held_out": held_out, "found": to_dict(found)}
    write_text(run.path / "reconstruction.json", json.dumps(kept, allow_nan=False) + "\n")
    return (found, held_out), examples


def _sources(settings: dict[str, Any], folders: Sequence[Path]) -> tuple[Sources, Sources]:
    """The windows that the run trained on and validated with, in the stores that it had."""
    stores, choices, model = open_stores(folders), settings["choices"], settings["model"]
    if [store.hash() for store in stores] != [store["sha256"] for store in settings["stores"]]:
        raise InputError("the stores are not those that the run was trained on; give the same ones in the same order")
    seconds = choices["seconds"] or model["window"] / model["signal"]["sfreq"]
    found = [pretrain_windows(store, seconds, choices["stride"], choices["without"]) for store in stores]
    train = [(store, windows) for store, (windows, _) in zip(stores, found, strict=True)]
    validation = [(store, v) for store, (_, v) in zip(stores, found, strict=True) if v is not None and len(v)]
    return train, validation


def _weights(run: RunFolder) -> str:
    return checkpoint.hash_tensors(checkpoint.read(run.model)[1])


def _kept(run: RunFolder) -> tuple[Reconstructed, bool] | None:
    """What an earlier report found, if it was for these weights."""
    try:
        kept = json.loads((run.path / "reconstruction.json").read_text(encoding="utf-8"))
        if kept["weights"] != _weights(run):
            return None
        return from_dict(Reconstructed, kept["found"]), bool(kept["held_out"])
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
    steps, losses = curve_plots.column(lines, "loss")
    _, masked = curve_plots.column(lines, "validation_masked")
    numbers = []
    if len(steps):
        numbers += [(f"{int(steps[-1]):,}", "steps"), (f"{losses[-1]:.4f}", "loss of the last step")]
        _, times = curve_plots.column(lines, "seconds")
        numbers.append((f"{times.sum() / 60:,.1f} min", "in steps"))
    if len(masked):
        numbers.append((f"{masked[-1]:.4f}", "masked error, all validation windows"))
    if found is not None:
        rival = min(RIVALS[1:], key=lambda name: float(getattr(found[0].total, name)))
        numbers.append((f"{getattr(found[0].total, rival):.4f}", f"best baseline ({fill_plots.LOOKS[rival][2]})"))
    return [paragraph(words), facts(numbers) if numbers else ""]


def _reconstruction(
    config: ModelConfig, given: tuple[Reconstructed, bool] | None, examples: Sequence[Example]
) -> list[str]:
    if given is None:
        words = "The stores were not at hand, so masked patches were not filled in. Report again with them to see it."
        return [heading("Masked patches, filled in"), paragraph(words, soft=True)]
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
        paragraph(_verdict(found)),
        _table(found),
        paragraph(
            "Mean: says zero. Interpolation: straight lines in time between visible samples of the channel. Ridge: the "
            "other channels at the same instant, with a covariance of training windows for each montage.",
            soft=True,
        ),
        _picture(lambda c: fill_plots.draw_datasets(c, datasets), 1.4 + 0.35 * len(datasets), "Errors by data set"),
    ]
    parts += [
        _picture(_signals(one, config), 5.5, f"Signal and reconstruction of a window of {one.dataset}")
        for one in examples
    ]
    parts += [
        heading("By frequency"),
        _picture(lambda c: fill_plots.draw_bands(c, found.bands), 3.2, "Error by band of frequencies"),
        paragraph(
            "Error in a band over the energy that masked patches have there; 1 is as good as saying nothing. Patches "
            "are short, so neighbouring slow bands blur into each other.",
            soft=True,
        ),
        heading("By electrode"),
    ]
    both = len({"-" in one.channel for one in found.channels})
    heads = figure(
        lambda c: fill_plots.draw_channels(c, found.channels), 9, 4.2 * both, "Error by electrode, on a head"
    )
    return [*parts, heads, paragraph(_HEAD_WORDS, soft=True)]


def _picture(draw: Callable[[Any], None], height: float, words: str) -> str:
    return figure(draw, 9, height, words)


def _signals(example: Example, config: ModelConfig) -> Callable[[Any], None]:
    return lambda canvas: fill_plots.draw_signals(canvas, example, config)


def _verdict(found: Reconstructed) -> str:
    """In words, so that nobody has to read it out of the table."""
    model = found.total.model
    beaten = [fill_plots.LOOKS[name][2] for name in RIVALS[1:] if model < getattr(found.total, name)]
    ahead = [fill_plots.LOOKS[name][2] for name in RIVALS[1:] if model >= getattr(found.total, name)]
    if not ahead:
        return "The model does better than all three baselines."
    if not beaten:
        return (
            "The model does no better than any baseline: it has not learned to fill patches in, or not for long enough."
        )
    return f"The model does better than {' and '.join(beaten)}, and not better than {' and '.join(ahead)}."


def _table(found: Reconstructed) -> str:
    rows, best = [], []
    head = ["data set", "channels", "windows", "patches", *(fill_plots.LOOKS[name][2] for name in RIVALS)]
    for group in found.groups:
        rows.append([group.dataset, str(len(group.montage)), *_numbers(group.errors)])
        best.append(_best(group.errors))
    rows.append(["all", "", *_numbers(found.total)])
    best.append(_best(found.total))
    return table(head, rows, best)


def _numbers(errors: Errors) -> list[str]:
    return [f"{errors.windows:,}", f"{errors.patches:,}", *(f"{getattr(errors, name):.4f}" for name in RIVALS)]


def _best(errors: Errors) -> int:
    return 4 + min(range(len(RIVALS)), key=lambda place: float(getattr(errors, RIVALS[place])))
