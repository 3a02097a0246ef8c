"""RunFolder: the folder of a run. The same command resumes it; another command is refused, with the differences.

``run.json`` holds the settings (what is trained, and on which data), the engine (how it was last computed) and the
versions. ``state.safetensors`` is what a resume loads, ``metrics.jsonl`` the log, ``model.safetensors`` the weights
and ``report.html`` the page to look at. Trainings of seeds and folds have folders like this one inside of it.
"""

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebro_eeg import __version__
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.files import SUMS, absent, begin_sums, parse_json, remove, remove_empty, write_text
from cerebro_eeg.terminal import has_controls

FORMAT = 1
LOCK = ".lock"
_LOG = "metrics.jsonl"
_LOGGERS = ("tensorboard", "wandb", "wandb-id")
_WITHOUT_RESULT = ("run.json", SUMS, _LOG, *_LOGGERS)
"""Files of a run that are no result. A file with any other name is kept."""
LENGTH = frozenset(
    (
        "steps",
        "choices.steps",
        "choices.minutes",
        *(f"pretrain.{name}" for name in ("max_epochs", "stop_epoch", "warmup_epochs")),
        *(f"finetune.{name}" for name in ("epochs", "warmup_epochs")),
    )
)
"""Settings of the length of a run, which a resumed run may change."""
_ANOTHER = "give a folder for --out"


_held: dict[Path, int | None] = {}
"""Folders that this process has locked, and the descriptors of the locks, where the system has such."""


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
        return self.path / _LOG

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def read(self) -> dict[str, Any]:
        """Return the contents of ``run.json``."""
        try:
            found = parse_json((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"{self.path} is not the folder of a run: it has no run.json") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"run.json of {self.path} cannot be read ({type(error).__name__})") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ConfigError(f"{self.path} is a run of another release of cerebro-eeg; use that one")
        return found

    def begin(
        self,
        verb: str,
        settings: Mapping[str, Any],
        engine: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        done: int | None = None,
    ) -> str | None:
        """Write ``run.json`` for a new run or a resumed one; return a note if it was begun with other settings.

        Another number of steps or epochs goes on from the ``done`` steps of the state, and the history keeps it. Any
        other setting is refused, unless the run never completed a step: nothing is lost with it. Such a run may have
        failed for want of memory, or because of an untrained electrode, and must not refuse the corrected command.
        ``facts`` are written beside the settings, and may differ. Call this while the folder is locked.
        """
        described = {"format": FORMAT, "verb": verb, "settings": settings, "engine": engine, "versions": versions()}
        described = json.loads(json.dumps({**described, **(facts or {})}))
        note = None
        if (self.path / "run.json").exists():
            old = self.read()
            wanted = {"verb": verb, "settings": described["settings"]}
            found = dict(differences("", {"verb": old["verb"], "settings": old["settings"]}, wanted))
            if not found and "steps" in old:  # the settings of a training of seeds or folds do not have its length
                found = dict(differences("steps", old["steps"], described.get("steps")))
            changes = list(found.values())
            words = "; ".join(changes[:6]) + (f" and {len(changes) - 6} more" if len(changes) > 6 else "")
            described["history"] = old.get("history", [])
            if found and LENGTH.issuperset(found):
                note = self._change_length(described, old, words, done)
            elif found and not self._has_no_step():
                unsaved = ", or delete that folder: it logged steps and saved none" * self._has_no_result()
                raise ConfigError(
                    f"{self.path} holds another run: {words}; use another --out, or the same settings{unsaved}"
                )
            elif found:
                note = f"{self.path} held a run that never completed a step, which makes room for this one: {words}"
                described["history"] = []
                self._remove_trainings()
        elif self.path.is_dir() and any(name != LOCK and not _is_stray(name) for name in os.listdir(self.path)):
            raise ConfigError(f"{self.path} is not empty and holds no run; give an empty or new folder for --out")
        self.path.mkdir(parents=True, exist_ok=True)
        self.remove_strays()
        write_text(self.path / "run.json", json.dumps(described, indent=2) + "\n")
        begin_sums(self.path, ["run.json"])
        return note

    def _change_length(self, described: dict[str, Any], old: Mapping[str, Any], words: str, done: int | None) -> str:
        """Add the old length to the history, and return the note. The state keeps the weights, so none are lost."""
        finished = [path.name for path in self._trainings() if (path / "finished.json").exists()]
        if finished:
            raise ConfigError(
                f"{self.path} holds finished trainings ({', '.join(finished[:6])}), whose length cannot be changed: "
                f"{words}; use another --out, or the same settings"
            )
        if done:
            described["history"] = [*described["history"], {"until": done, "steps": old.get("steps"), "changes": words}]
            if described.get("steps", 0) > done:  # these weights would be taken for those of the end
                remove(self.model)
        return f"the length of the run changes: {words}"

    def remove_strays(self) -> None:
        """Remove what killed writes have left, here and in the trainings inside. Call this while the folder is locked.

        A link is not followed out of the run.
        """
        inside = [*self._trainings(), *self.path.glob("rivals")]
        for folder in (self.path, *(path for path in inside if path.is_dir() and not path.is_symlink())):
            for name in os.listdir(folder):
                if _is_stray(name):
                    (folder / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder while the block lasts; the folder is made if absent.

        The operating system frees the lock when its process ends, also after a kill. If the block ends without a
        ``run.json``, the lock file and the new folders are removed again.
        """
        from filelock import FileLock, Timeout

        made, lock = self._make(), FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except (Timeout, FileNotFoundError, FileExistsError) as error:  # or a failing process removes the folder now
            raise ConfigError(f"another process is training in {self.path}; wait for it, or stop it") from error
        except OSError as error:
            remove_empty(made)
            raise InputError(
                f"{self.path} cannot be written ({error.strerror}); make it writable, or give another"
            ) from error
        _held[self.path.absolute()] = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
        try:
            yield
        finally:
            del _held[self.path.absolute()]
            if not (self.path / "run.json").exists():
                with contextlib.suppress(OSError):  # on Windows the lock removes its own file
                    (self.path / LOCK).unlink()
            lock.release()
            remove_empty(made)

    def lock_descriptors(self) -> tuple[int, ...]:
        """Return the descriptor of the lock that this process holds, for processes that it starts.

        A process that inherits it holds the lock, too: a killed command leaves nothing that another could disturb.
        """
        found = _held.get(self.path.absolute())
        return () if found is None or os.name != "posix" else (found,)

    def _make(self) -> list[Path]:
        """Make the folder if it is absent, and return the folders that were made, innermost first."""
        if os.path.islink(self.path) and not os.path.exists(self.path):
            raise ConfigError(f"{self.path} is a link to a folder that does not exist; {_ANOTHER}")
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise ConfigError(f"{self.path} is a file; {_ANOTHER}")
        made: list[Path] = []
        try:
            made = absent(self.path)
            with contextlib.suppress(FileNotFoundError):  # a failing process may remove a folder above just now
                self.path.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a name that is too long, a file among the folders above, no permission
            remove_empty(made)
            raise InputError(f"{self.path} cannot be made ({error.strerror}); {_ANOTHER}") from error
        return made

    def _trainings(self) -> list[Path]:
        """Return the folders of folds and seeds inside of this one, outer before inner."""
        return [path for pattern in ("fold-*", "seed-*", "fold-*/seed-*") for path in self.path.glob(pattern)]

    def _has_no_step(self) -> bool:
        """Return whether no step was completed here or in a training inside."""
        logs = [folder / _LOG for folder in (self.path, *self._trainings())]
        return self._has_no_result() and not any(log.exists() and log.stat().st_size > 0 for log in logs)

    def _has_no_result(self) -> bool:
        """Return whether there are only settings and logs. Any file of an unknown name counts as a result."""
        inside = self._trainings()
        if any(folder.is_symlink() or not folder.is_dir() for folder in inside):
            return False
        found = [path for folder in (self.path, *inside) for path in folder.iterdir()]
        others = [path for path in found if path not in inside and path != self.path / LOCK]
        return all(path.name in _WITHOUT_RESULT or _is_stray(path.name) for path in others)

    def _remove_trainings(self) -> None:
        """Remove the trainings inside of a run without a step, except those that a logger wrote to."""
        for folder in reversed(self._trainings()):
            files = list(folder.iterdir())
            if not any(path.is_dir() or path.name in _LOGGERS for path in files):
                for path in sorted(files, key=lambda path: path.name != SUMS):  # never a list of files that are gone
                    path.unlink()
                folder.rmdir()


def _is_stray(name: str) -> bool:
    """Return whether a killed write has left this file: ours are .NAME.*.tmp, and safetensors has .tmpXXXXXX."""
    return re.fullmatch(r"\..+\.tmp|\.tmp[A-Za-z0-9]{6}", name) is not None


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    import numpy
    import torch

    return {
        "cerebro_eeg": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
    }


def differences(where: str, old: Any, new: Any) -> Iterator[tuple[str, str]]:
    """Yield each place in which two JSON values differ, with a sentence about it."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from differences(f"{where}.{name}".lstrip("."), old.get(name), new.get(name))
    elif old != new:
        place = where.removeprefix("settings.")
        yield place, f"{place} was {_short(old)} and is now {_short(new)}"


def given_names(stores: Sequence[Path], start: Path | None) -> dict[str, Any]:
    """Return how stores and weights were called in a command, for ``run.json``: a report shows that command again.

    A path from the root of the disk names the machine and its user, so only its last part is kept.
    """
    paths = [*stores, *([] if start is None else [start])]
    names = [_shown_name(path) for path in paths]
    whole = [name for path, name in zip(paths, names, strict=True) if path.is_absolute()]
    return {"stores": names[: len(stores)], "from": None if start is None else names[-1], "whole": whole}


def _shown_name(path: Path) -> str:
    """Return a path as text that a shell can be given; one that cannot be read on a page gets another name."""
    text = path.name if path.is_absolute() else path.as_posix()
    return "my-folder" if has_controls(text) or not text else text


def history_words(run: Mapping[str, Any]) -> str | None:
    """Return a sentence on how often the length of a run was changed, from ``run.json``; None if it never was."""
    parts = [
        f"{'not recorded' if one['steps'] is None else format(one['steps'], ',')} until step {one['until']:,}"
        for one in run.get("history", ())
    ]
    return f"steps were {', then '.join([*parts, format(run['steps'], ',')])}" if parts else None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
