"""The private map: which source an id stands for. The one file with names in it, for its owner alone, in no store.

JSON: ``{"recordings": {id: path in the corpus}, "subjects": {id: name}}``. Each run adds what it knows and forgets
nothing, so one file can serve several stores.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from cerebro_eeg.data.storing.keys import private_draft
from cerebro_eeg.errors import InputError

Names = Mapping[str, Mapping[str, str]]
KINDS = ("recordings", "subjects")


def read_map(path: Path) -> dict[str, dict[str, str]]:
    """What the file holds, nothing where there is none; a file that others may read, or of another kind, is refused."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise InputError(f"the map file has mode {mode:04o}: others can read it; chmod 600 it, or name another")
        values = json.loads(path.read_bytes())
        if set(values) != set(KINDS) or not all(isinstance(names, dict) for names in values.values()):
            raise ValueError
        return {kind: {str(id): str(name) for id, name in values[kind].items()} for kind in KINDS}
    except FileNotFoundError:
        return found
    except InputError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"the map file cannot be used ({type(error).__name__}); give one that cerebro-eeg made, or a new name"
        ) from None  # the error of the system would name a path


def add_to_map(path: Path, names: Names) -> None:
    """Add to the file, whole or not at all."""
    found = read_map(path)
    merged = {kind: dict(sorted({**found[kind], **names[kind]}.items())) for kind in KINDS}
    if merged == found and path.exists():
        return
    try:
        with private_draft(path, json.dumps(merged, indent=1) + "\n") as draft:
            os.replace(draft, path)
    except OSError as error:
        raise InputError(f"the map file cannot be written: {error.strerror}; name another") from None
