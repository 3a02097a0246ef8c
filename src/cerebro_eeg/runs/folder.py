"""RunFolder: where a run lives. The same command finds it again; another command is refused, naming the differences.

``run.json`` says what is trained and on what (settings), with how many processes (engine) and by which versions.
``state.safetensors`` is what the run goes on from, ``metrics.jsonl`` what was measured, ``model.safetensors`` the
weights and ``report.html`` the page to look at.
"""

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg import __version__
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.runs import lock, traces

FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @property
    def state(self) -> Path:
        return self.path / "state.safetensors"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def read(self) -> dict[str, Any]:
        """``run.json``."""
        try:
            found = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"{self.path} is not the folder of a run: it has no run.json") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"run.json of {self.path} cannot be read ({type(error).__name__})") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ConfigError(f"{self.path} is a run of another release of cerebro-eeg; use that one")
        return found

    def begin(self, verb: str, settings: Mapping[str, Any], engine: Mapping[str, Any]) -> str | None:
        """Start the run, or go on with it if it is the same; a line to say where another one made room for it.

        Only a run that never completed a step makes room: nothing is lost with it. Whoever begins holds the folder.
        """
        described = {"format": FORMAT, "verb": verb, "settings": settings, "engine": engine, "versions": versions()}
        described = json.loads(json.dumps(described))
        told = None
        if (self.path / "run.json").exists():
            old = self.read()
            wanted = {"verb": verb, "settings": described["settings"]}
            found = list(differences("", {"verb": old["verb"], "settings": old["settings"]}, wanted))
            words = "; ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")
            if found and not traces.is_untouched(self.path):
                unsaved = ", or delete that folder: it logged steps and saved none" * traces.has_no_result(self.path)
                raise ConfigError(
                    f"{self.path} holds another run: {words}; use another --out, or the same settings{unsaved}"
                )
            if found:
                told = f"{self.path} held a run that never completed a step, which makes room for this one: {words}"
                traces.clear(self.path)
        elif self.path.is_dir() and any(name != lock.NAME for name in os.listdir(self.path)):
            raise ConfigError(f"{self.path} is not empty and holds no run; give an empty or new folder for --out")
        self.path.mkdir(parents=True, exist_ok=True)
        for stray in self.path.glob(".*.tmp"):  # of a write that was killed
            stray.unlink(missing_ok=True)
        write_text(self.path / "run.json", json.dumps(described, indent=2) + "\n")
        return told

    def held(self) -> contextlib.AbstractContextManager[None]:
        """No other process trains in this folder for as long as the block lasts. Without a run nothing of it stays."""
        return lock.held(self.path, (self.path / "run.json").exists)


def versions() -> dict[str, str]:
    """What a result may depend on besides its settings."""
    import numpy
    import torch

    return {
        "cerebro_eeg": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }


def differences(where: str, old: Any, new: Any) -> Iterator[str]:
    """Where two JSON values differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from differences(f"{where}.{name}".lstrip("."), old.get(name), new.get(name))
    elif old != new:
        yield f"{where.removeprefix('settings.')} was {_short(old)} and is now {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
