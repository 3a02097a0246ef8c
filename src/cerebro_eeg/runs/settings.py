"""Settings: a preset, changed by a JSON file, changed by flags: what comes later wins, and every field is checked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cerebro_eeg.config import Preset, preset
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import from_dict


def choose(name: str, file: Path | None, flags: Mapping[str, Any], changes: Sequence[str]) -> Preset:
    """The preset ``name``, with what a file, flags ("model.depth": 4, None for not given) and "a.b=c" texts change."""
    chosen = preset(name)
    if file is not None:
        chosen = from_dict(Preset, _read(file), chosen)
    given = {path: value for path, value in flags.items() if value is not None}
    chosen = from_dict(Preset, _nested(given), chosen)
    return from_dict(Preset, _nested(dict(_parse(text) for text in changes)), chosen)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the config file {file} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ConfigError(f"the config file {file} is not JSON ({error})") from error


def _parse(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes name=value, such as model.depth=6; got {text!r}")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        inside = found
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[last] = value
    return found
