"""Provenance: all that a result came from: data, settings, versions, and the command that would do it again."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebro_eeg.config import Training
from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.model.checkpoint import read_header
from cerebro_eeg.report.page import folded, heading, paragraph, preformatted, subheading, table


def provenance(run: Mapping[str, Any], weights: Path | None) -> list[str]:
    """The last part of a report, from ``run.json`` and the training record of the weights."""
    settings = run["settings"]
    stores: Sequence[Mapping[str, str]] = settings.get("stores") or [settings["store"]]
    rows = [[str(store["dataset"]), str(store["sha256"])] for store in stores]
    parts = [
        heading("Where it comes from"),
        subheading("Data"),
        table(["data set", "SHA-256 of the store"], rows),
        subheading("To do it again"),
        preformatted(command(run)),
        folded("config.json", preformatted(json.dumps(_config(settings), indent=2))),
        subheading("Versions"),
        table([], [[str(name), str(version)] for name, version in run["versions"].items()]),
        folded("How it was carried out", preformatted(json.dumps(run["engine"], indent=2))),
        folded("run.json, all of it", preformatted(json.dumps(run, indent=2))),
    ]
    training = read_training(weights)
    return parts + (_record(training) if training is not None else [])


def command(run: Mapping[str, Any]) -> str:
    """A command with these settings; stores and folders have names of the reader's choice."""
    settings, verb = run["settings"], run["verb"]
    choices = dict(settings["choices"])
    stores = settings.get("stores") or [settings["store"]]
    words = ["cerebro-eeg", verb, *(f"{store['dataset']}-store" for store in stores), "--out", "my-run"]
    words += ["--config", "config.json"]
    if verb == "finetune":
        words += ["--task", choices.pop("task")]
        words += ["--from", "none" if settings["from"] is None else "checkpoint.safetensors"]
        seeds = choices.pop("seeds")
        choices.update(seeds=len(seeds), seed=min(seeds))
    else:
        words += [] if settings["from"] is None else ["--from", "checkpoint.safetensors"]
        choices["paper"] = True  # the batch size in config.json is the one that was fitted
    for name, value in choices.items():
        if value is None or value is False or value in ([], "error"):  # what is so without being said
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return shlex.join(words)


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ("model", "objective", "pretrain", "finetune")
    return {name: settings[name] for name in names if settings.get(name) is not None}


def read_training(weights: Path | None) -> Training | None:
    """The record of the weights; none where they are not here, or of another release."""
    try:
        return None if weights is None else read_header(weights).training
    except CheckpointError:
        return None


def _record(training: Training) -> list[str]:
    data = [[one.name, f"{one.windows:,}", f"{one.hours:,.2f}", one.sha256] for one in training.data]
    electrodes = sorted(training.electrode_windows.items(), key=lambda item: (-item[1], item[0]))
    return [
        subheading("What the weights have seen"),
        paragraph(f"{training.steps:,} steps, {training.windows:,} windows, repetitions counted."),
        table(["data set", "windows", "hours", "SHA-256"], data) if data else "",
        folded(
            f"Windows of each of {len(electrodes):,} electrodes",
            table(["electrode", "windows"], [[name, f"{count:,}"] for name, count in electrodes]),
        ),
    ]
