"""What a run keeps for data from elsewhere: what it learned from itself, and what was scored on each external store.

``learned.json`` of a run describes its training and validation windows; finetune writes it. Each external store has a
folder of its own in the run, ``external/<hash>-<task>-<split>``, and ``about.json`` in it says what was scored. The
records of the scores beside it have the form of the run's own (``score_record.py``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json, write_text
from cerebro_eeg.runs.provenance import Learned, learned_from
from cerebro_eeg.runs.windows import Split, signal_of

FOLDER = "external"
"""The folder of a run that holds a folder for each external store."""
FORMAT = 1
_ABOUT, _LEARNED = "about.json", "learned.json"


# What a run learned from, as it was: ``learned.json``, which finetune writes


@dataclass(frozen=True)
class TrainingData:
    """The data that a run was trained and validated on, to compare other data with."""

    learned: Learned
    signal: Mapping[str, Any]
    """How the store was prepared."""
    channels: tuple[str, ...]
    """The channels of all its recordings that were learned from, sorted."""
    native: tuple[float, ...]
    """The rates in Hz at which they were recorded, sorted."""
    scale: float
    """Median scale of the recordings in microvolts."""


def training_data(store: Store, hash: str, splits: Sequence[Split]) -> TrainingData:
    """Describe the training and validation windows of all splits or folds."""
    parts = [part for split in splits for part in (split.train, split.validation) if part is not None]
    used = np.unique(np.concatenate([part.recording for part in parts]))
    facts = parts[0].facts
    channels = {name for number in used.tolist() for name in facts.montages[facts.montage[number]]}
    return TrainingData(
        learned_from(store, hash, parts),
        asdict(signal_of(store)),
        tuple(sorted(channels)),
        native_rates(store, used),
        float(np.median(facts.scale[used])),
    )


def write_training_data(run: Path, data: TrainingData) -> None:
    """Write ``learned.json`` of a run, unless it says this already."""
    found = {"format": FORMAT, **asdict(data), "learned": data.learned.to_dict()}
    text = json.dumps(found, indent=1) + "\n"
    path = run / _LEARNED
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def read_training_data(run: Path) -> TrainingData | None:
    """Return what a run learned from; None for a run of an earlier release, or one that has not ended."""
    try:
        found = parse_json((run / _LEARNED).read_text(encoding="utf-8"))
        if found["format"] == FORMAT:
            return TrainingData(
                Learned.from_dict(found["learned"]),
                dict(found["signal"]),
                tuple(map(str, found["channels"])),
                tuple(map(float, found["native"])),
                float(found["scale"]),
            )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(
        f"{_LEARNED} of {run} is damaged, so whom it learned from cannot be told; start the same finetune command again"
    )


def native_rates(store: Store, used: NDArray[np.integer]) -> tuple[float, ...]:
    return tuple(sorted({store.recordings[number].native_sfreq for number in used.tolist()}))


# The record of what was scored


def read_about(place: Path) -> dict[str, Any] | None:
    """Return what was scored first on an external store, or begun to be; None if nothing was."""
    try:
        found = parse_json((place / _ABOUT).read_text(encoding="utf-8"))
        if found["format"] == FORMAT and {"sha256", "task", "split", "classes", "overlap"} <= set(found["first"]):
            return dict(found["first"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise ConfigError(f"{_ABOUT} of {place} is damaged, so what was scored cannot be told; bring it back from a copy")


def write_about(place: Path, first: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    """Write what was scored first, and what last."""
    write_text(place / _ABOUT, json.dumps({"format": FORMAT, "first": first, "last": last}, indent=2) + "\n")


def external_places(run: Path) -> list[Path]:
    """Return the folders of a run for external stores that something was scored on, sorted by name."""
    return sorted(path.parent for path in (run / FOLDER).glob(f"*/{_ABOUT}") if (path.parent / "test.json").exists())


def choices_differ(first: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return in words what was chosen otherwise at the first scoring; None if nothing was."""
    changed = [
        f"{name} was {_said(first[name])} and is now {_said(now[name])}"
        for name in ("classes", "untrained")
        if first.get(name) != now[name]
    ]
    return "; ".join(changed) or None


def _said(value: Any) -> str:
    return " ".join(f"{a}={b}" for a, b in value.items()) if isinstance(value, dict) else str(value)
