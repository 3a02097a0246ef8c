"""Inputs: the recordings and the checkpoint that a command line names, before any of them is read.

A recording is known by its id, a keyed hash of its path below the folder that was given (as ``prepare folder`` has it),
or of the path of a file as it was given. Names of files may say who was recorded: they stay here and in the private
map.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.data.datasets.file_tree import find_sources, plain_name
from cerebro_eeg.data.storing import privacy
from cerebro_eeg.data.storing.privacy import add_to_map
from cerebro_eeg.errors import ConfigError, InputError

_TRAINING = re.compile(r"(seed|fold)-\d+")


@dataclass(frozen=True)
class Input:
    """A recording that was asked for."""

    number: int
    """From 1, in the order given; folders in the order of their names."""
    path: Path
    name: str
    id: str
    size: int
    """Bytes; 0 where nobody knows."""


def find_inputs(files: Sequence[Path], key_file: Path | None, out: Path | None = None) -> list[Input]:
    """The recordings that files and folders stand for, each once. What lies in the folder ``out`` is ours: left out."""
    if not files:
        raise ConfigError("no recording was given; expected EEG files, or folders that hold some")
    if not any(map(os.path.lexists, files)):
        what = "the file or folder given does" if len(files) == 1 else f"all {len(files)} files and folders given do"
        raise InputError(f"{what} not exist; expected EEG files, or folders that hold some: check the path")
    ours = None if out is None else out.resolve()
    named: dict[Path, tuple[Path, str, int]] = {}
    for given in files:
        if given.is_dir() and given.suffix.casefold() != ".mff":
            found = [(source.path, source.name, source.size) for source in find_sources(given)]
        else:
            found = [(given, plain_name(Path(os.path.normpath(given))), _size(given))]
        for path, name, size in found:
            whole = path.resolve()
            if ours is None or not whole.is_relative_to(ours):
                named.setdefault(whole, (path, name, size))
    key = privacy.read_key(privacy.default_key_file() if key_file is None else key_file)
    inputs = [
        Input(number, path, name, privacy.make_id(key, "recording", name), size)
        for number, (path, name, size) in enumerate(named.values(), 1)
    ]
    if len({one.id for one in inputs}) < len(inputs):
        raise ConfigError("two folders hold recordings of one name, which would get one id; give the folder above them")
    return inputs


def tell_map(map_file: Path | None, inputs: Sequence[Input]) -> None:
    """Add to the private map which path each id stands for, where a map was asked for."""
    if map_file is not None:
        add_to_map(map_file, {"recordings": {one.id: one.name for one in inputs}, "subjects": {}})


def find_checkpoint(model: Path | str) -> Path | str:
    """The checkpoint that is meant: itself, or the one training of a run."""
    path = Path(model).expanduser()
    if not path.exists() and _TRAINING.fullmatch(path.name):  # or it would be looked for on the Hub
        raise ConfigError(f"there is no training {model}; give a checkpoint, or the folder of a training")
    if not path.is_dir() or (path / "model.safetensors").exists() or not (path / "run.json").exists():
        return model  # loading it says what is wrong with it
    trained = sorted([*path.glob("seed-*/model.safetensors"), *path.glob("fold-*/seed-*/model.safetensors")])
    if not trained:
        raise ConfigError(f"no training of {model} is finished; start the same command again that began it")
    if len(trained) > 1:
        some = ", ".join(one.parent.relative_to(path).as_posix() for one in trained[:4])
        raise ConfigError(
            f"{model} holds {len(trained)} trainings ({some}{', ...' if len(trained) > 4 else ''}); give the folder of "
            "one of them"
        )
    return trained[0]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # its turn to be refused, with the reason, comes later
