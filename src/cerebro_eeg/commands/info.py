"""``cerebro-eeg info``: describes a preset, a checkpoint, a store or a recording; each has a module of its own."""

from pathlib import Path
from typing import Literal

from cerebro_eeg.commands.info_model import ModelInfo, info_model
from cerebro_eeg.commands.info_recording import RecordingSummary, info_recording
from cerebro_eeg.commands.info_store import StoreSummary, info_store
from cerebro_eeg.config import PRESETS
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError, StoreError
from cerebro_eeg.model.shipped import SHIPPED, is_shipped, shipped_names
from cerebro_eeg.progress import counted
from cerebro_eeg.schema import did_you_mean

Kind = Literal["preset", "checkpoint", "store", "recording"]
_MODEL: tuple[Kind, ...] = ("preset", "checkpoint")
# The targets that each option is meant for; with any other it is an error, because it would have no effect.
_MEANT: dict[str, tuple[Kind, ...]] = {
    "channels": _MODEL,
    "seconds": (*_MODEL, "recording"),
    "plot": ("store", "recording"),
    "start": ("recording",),
    "unknown": ("recording",),
    "unit": ("recording",),
    "show_events": ("recording",),
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
    show_events: bool = False,
) -> ModelInfo | StoreSummary | RecordingSummary:
    """What a preset, a checkpoint, a store or an EEG file is.

    Of a model: dimensions, parameters by part, tokens, FLOPs and memory. Of a store: hours, subjects, montages, rates,
    labels by split, what was skipped and why. Of an EEG file: what prepare would make of it.

    Try, for example:
      cerebro-eeg info large --channels 64 --seconds 10
      cerebro-eeg info my-model/model.safetensors --json
      cerebro-eeg info my-store --plot store.png
      cerebro-eeg info night.edf --unknown drop --plot look.png --start 60

    Args:
        target: A preset (tiny, small, base, large, open), the weights small-open that come with the package, or on this
            disk a checkpoint (a .safetensors file or its folder), the folder of a store, or an EEG file.
        channels: Of a model: channels of the window whose cost is printed; 19 unless given.
        seconds: Of a model: seconds of that window, 5 unless given. Of an EEG file: seconds in the picture, 10 unless
            given.
        plot: A picture to write (.png or .svg) of a store (channel counts, subjects, amplitude, spectrum; with .html a
            page with its tables, too) or of an EEG file (signal and spectrum).
        start: Of an EEG file: where the picture begins, in seconds; the middle of its longest stretch unless given.
        unknown: Of an EEG file: what becomes of channel labels that are not understood; an error unless given.
        unit: Of an EEG file: the unit of channels whose own is blank or unknown; these are refused unless given.
        show_events: Of an EEG file: print the names of its events; they are free text and may say who was recorded.
    """
    kind = _find(target)
    given = {
        "channels": channels,
        "seconds": seconds,
        "plot": plot,
        "start": start,
        "unknown": unknown,
        "unit": unit,
        "show_events": show_events or None,
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
            show_events=show_events,
            plot=plot,
            start=start,
            seconds=10.0 if seconds is None else seconds,
        )
    return info_model(target, 19 if channels is None else channels, 5.0 if seconds is None else seconds)


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
        raise InputError("there is no such file or folder; give a preset, a checkpoint, a store or an EEG file")
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
    raise InputError(
        "this folder is neither a store (it has no store.json) nor a checkpoint (it has no model.safetensors); of "
        "recordings give one file, or make a store of them with cerebro-eeg prepare"
    )
