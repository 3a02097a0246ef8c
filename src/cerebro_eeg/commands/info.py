"""``cerebro-eeg info``: describes a preset, a checkpoint, a store, a recording or a folder; each has its own module."""

import sys
from pathlib import Path
from typing import Literal

from cerebro_eeg.commands.info_folder import FolderSurvey, check_table, survey_folder
from cerebro_eeg.commands.info_model import ModelInfo, info_model
from cerebro_eeg.commands.info_recording import RecordingSummary, info_recording
from cerebro_eeg.commands.info_store import StoreSummary, info_store
from cerebro_eeg.config import PRESETS
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError, StoreError, called_in_python
from cerebro_eeg.model.shipped import SHIPPED, is_shipped, shipped_names
from cerebro_eeg.progress import counted, unheard
from cerebro_eeg.schema import did_you_mean

Kind = Literal["preset", "checkpoint", "store", "recording", "folder of recordings"]
_MODEL: tuple[Kind, ...] = ("preset", "checkpoint")
_EEG: tuple[Kind, ...] = ("recording", "folder of recordings")
# The targets that each option is meant for; with any other it is an error, because it would have no effect.
_MEANT: dict[str, tuple[Kind, ...]] = {
    "channels": _MODEL,
    "seconds": (*_MODEL, "recording"),
    "plot": ("store", "recording"),
    "start": ("recording",),
    "unknown": _EEG,
    "unit": _EEG,
    "rename": _EEG,
    "sfreq": _EEG,
    "channels_from": _EEG,
    "show_events": ("recording",),
    "table": ("folder of recordings",),
    "model": ("folder of recordings",),
    "show_paths": ("folder of recordings",),
    "key": ("folder of recordings",),
}


def info(
    target: str,
    /,
    *,
    channels: int | None = None,
    seconds: float | None = None,
    plot: Path | None = None,
    start: float | None = None,
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None = None,
    unit: Literal["uV", "nV", "mV", "V"] | None = None,
    rename: Path | None = None,
    sfreq: float | None = None,
    channels_from: Path | None = None,
    show_events: bool = False,
    table: Path | None = None,
    model: str | None = None,
    show_paths: bool = False,
    key: Path | None = None,
) -> ModelInfo | StoreSummary | RecordingSummary | FolderSurvey:
    """What a preset, a checkpoint, a store, an EEG file or a folder of EEG files is.

    Of a model: dimensions, parameters by part, tokens, FLOPs and memory. Of a store: hours, subjects, montages, rates,
    labels by split, what was skipped and why. Of an EEG file: what prepare would make of it. Of a folder: the same for
    each of its recordings, from their heads, with the option that would help. The exit code is 6 where prepare would
    skip some.

    Try, for example:
      cerebro-eeg info large --channels 64 --seconds 10
      cerebro-eeg info my-model/model.safetensors --json
      cerebro-eeg info my-store --plot store.png
      cerebro-eeg info night.edf --unknown drop --plot look.png --start 60
      cerebro-eeg info path/to/files --table files.csv

    Args:
        target: A preset (tiny, small, base, large, open), the weights small-open that come with the package, or on this
            disk a checkpoint (a .safetensors file or its folder), the folder of a store, an EEG file, or a folder of
            EEG files.
        channels: Of a model: channels of the window whose cost is printed; 19 unless given.
        seconds: Of a model: seconds of that window, 5 unless given. Of an EEG file: seconds in the picture, 10 unless
            given.
        plot: A picture to write (.png or .svg) of a store (channel counts, subjects, amplitude, spectrum; with .html a
            page with its tables, too) or of an EEG file (signal and spectrum).
        start: Of an EEG file: where the picture begins, in seconds; the middle of its longest stretch unless given.
        unknown: Of EEG files: what becomes of channel labels that are not understood; an error unless given.
        unit: Of EEG files: the unit of channels whose own is blank or unknown; these are refused unless given.
        rename: Of EEG files: a table of two columns: a channel's name in the files, and its electrode, or nothing to
            leave it out.
        sfreq: Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second.
        channels_from: Of arrays that do not say them: a text file with the names of the channels, one a line.
        show_events: Of an EEG file: print the names of its events; they are free text and may say who was recorded.
        table: Of a folder: a CSV file to write, with a row for each recording.
        model: Of a folder: a checkpoint, the folder of a run, or small-open, to see what predict and embed would make
            of the recordings with it instead; electrodes that it never saw count then, too.
        show_paths: Of a folder: name recordings by their paths; they may say who was recorded.
        key: Of a folder: the file with the key that ids are made with; otherwise the one in your config folder.
    """
    kind = _find(target)
    given = {
        "channels": channels,
        "seconds": seconds,
        "plot": plot,
        "start": start,
        "unknown": unknown,
        "unit": unit,
        "rename": rename,
        "sfreq": sfreq,
        "channels_from": channels_from,
        "show_events": show_events or None,
        "table": table,
        "model": model,
        "show_paths": show_paths or None,
        "key": key,
    }
    for name, value in given.items():
        if value is not None and kind not in _MEANT[name]:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} was given with a {kind}; it is for a {' or a '.join(_MEANT[name])}: leave it out"
            )
    if kind == "store":
        return info_store(Path(target), plot)
    if kind == "recording":
        return info_recording(
            Path(target),
            unknown=unknown or "error",
            unit=unit,
            rename=rename,
            sfreq=sfreq,
            channels_from=channels_from,
            show_events=show_events,
            plot=plot,
            start=start,
            seconds=10.0 if seconds is None else seconds,
        )
    if kind == "folder of recordings":
        return _info_folder(Path(target), unknown, unit, rename, sfreq, channels_from, table, model, show_paths, key)
    return info_model(target, 19 if channels is None else channels, 5.0 if seconds is None else seconds)


def _info_folder(
    folder: Path,
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None,
    unit: str | None,
    rename: Path | None,
    sfreq: float | None,
    channels_from: Path | None,
    table: Path | None,
    model: str | None,
    show_paths: bool,
    key: Path | None,
) -> FolderSurvey:
    """Look at the recordings of a folder as ``prepare folder`` would, or ``prepare bids`` where it is a BIDS folder."""
    from cerebro_eeg.data.datasets import make_recipe
    from cerebro_eeg.data.reading.name_map import read_names
    from cerebro_eeg.data.storing.job import PrepareChoices
    from cerebro_eeg.data.storing.workers import cores

    check_table(table)
    name = "bids" if (folder / "dataset_description.json").is_file() else "folder"
    offered = {"unit": unit, "sfreq": sfreq, "channels_from": channels_from}
    names = None if rename is None else read_names(rename)
    given = {option: value for option, value in offered.items() if value is not None}
    try:
        recipe = make_recipe(name, folder.absolute(), given)
    except InputError as error:
        raise InputError(
            "this folder is neither a store (it has no store.json) nor a checkpoint (it has no model.safetensors), and "
            f"its recordings cannot be listed: {error}"
        ) from None
    choices = PrepareChoices(unknown=unknown, names=names)
    loaded = None
    if model is not None:
        from cerebro_eeg.runs.predict import load_model

        with unheard():
            loaded = load_model(model)
    workers = 0 if _in_script() else cores()
    return survey_folder(recipe, choices, workers=workers, key=key, show_paths=show_paths, table=table, model=loaded)


def _in_script() -> bool:
    """Return whether a user's script has called. Processes would run it again, and a look is not worth a guard."""
    return called_in_python() and hasattr(sys.modules["__main__"], "__file__")


def _find(target: str) -> Kind:
    """Return the kind of the target. Errors do not repeat a missing path, which may reveal who was recorded."""
    if target in PRESETS:
        return "preset"
    if is_shipped(target):
        return "checkpoint"
    path = Path(target)
    if target.endswith(".safetensors"):
        if not path.exists():
            raise CheckpointError(
                f"there is no checkpoint {target}; give a .safetensors file or a folder that holds one"
            )
        return "checkpoint"
    if not target or not path.exists():
        if path.name == target and "." not in target:
            raise ConfigError(
                f"{target!r} is neither a preset nor a file{did_you_mean(target, [*PRESETS, *SHIPPED])}; presets are "
                f"{', '.join(PRESETS)}, and weights come with the package under {shipped_names()}; otherwise give a "
                "checkpoint, a store or an EEG file on this disk"
            )
        raise InputError(
            "there is no such file or folder; give a preset, a checkpoint, a store, an EEG file or a folder of them"
        )
    if path.is_dir() and path.suffix.casefold() != ".mff":
        return _find_in(path)
    from cerebro_eeg.data.reading.formats import suffixes

    if not path.name.casefold().endswith(suffixes()):
        raise InputError(
            "this file is neither a checkpoint (.safetensors) nor an EEG file that we read "
            f"({', '.join(suffixes())}); of a store give the folder"
        )
    return "recording"


def _find_in(folder: Path) -> Kind:
    if (folder / "store.json").is_file():
        return "store"
    if any(folder.glob("*.safetensors")) or (folder / "config.json").is_file():
        return "checkpoint"
    trainings = sorted(path.parent.name for path in folder.glob("*/model.safetensors"))
    if trainings and (folder / "run.json").is_file():
        raise InputError(
            f"this is a run of {counted(len(trainings), 'training')} ({', '.join(trainings)}); give the folder of one "
            "of them"
        )
    if any(folder.glob("*-[0-9][0-9][0-9][0-9].jsonl")):
        raise StoreError("this folder has shards of a store but no store.json; restore it from a copy, or prepare anew")
    return "folder of recordings"
