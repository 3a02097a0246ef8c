"""Scored: the record that a test set was scored, kept so that the first score stays the one that is told.

``test.json`` of a training has the number of scorings, the first score and the last; ``test.npz`` the predictions of
the first. The run's own ``test.json`` has the same of all its trainings with their summary. What is deleted is made
again from what is left: the run's record from its trainings', a training's from its predictions. Who deletes all of
it, or copies the run before, starts anew: this guards against habit, not against fraud.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """What ``test.json`` says."""

    scorings: int
    first: dict[str, Any]
    last: dict[str, Any]


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None where there is none."""
    try:
        found = json.loads((folder / "test.json").read_text(encoding="utf-8"))
        if found["format"] == FORMAT and found["scorings"] >= 1 and found["first"] and found["last"]:
            return Record(int(found["scorings"]), found["first"], found["last"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise ConfigError(f"test.json of {folder} is damaged, so its first score cannot be told; bring it back from a copy")


def write_record(folder: Path, record: Record) -> None:
    """Whole or not at all."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=2, allow_nan=False)
    write_text(folder / "test.json", text + "\n")
