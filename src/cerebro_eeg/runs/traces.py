"""Traces: whether a run left anything in its folder that is worth keeping.

A run writes ``run.json`` before its first step. One that fails between the two (memory, an electrode that nobody
trained) has nothing but settings to show, and must not keep the corrected command out of its folder. Whatever is not
known here counts as worth keeping. Standard library only.
"""

from collections.abc import Iterator
from pathlib import Path

from cerebro_eeg.runs import lock

_LOG = "metrics.jsonl"
_LOGGERS = ("tensorboard", "wandb", "wandb-id")  # they are told what the log is told
_KNOWN = ("run.json", _LOG, *_LOGGERS)


def is_untouched(folder: Path) -> bool:
    """Whether no step was completed in this folder, nor in the trainings inside of it."""
    return has_no_result(folder) and not any(map(_logged, _trainings(folder)))


def has_no_result(folder: Path) -> bool:
    """Whether there is nothing but settings and what was logged."""
    inside = list(_trainings(folder))
    if any(one.is_symlink() or not one.is_dir() for one in inside[1:]):
        return False
    found = [path for one in inside for path in one.iterdir() if path not in inside and path != folder / lock.NAME]
    return all(path.name in _KNOWN or (path.name[0] == "." and path.suffix == ".tmp") for path in found)


def clear(folder: Path) -> None:
    """Take the trainings inside of an untouched folder away; ``run.json`` of the folder itself is yet to be replaced.

    One that a logger wrote to stays, as it does for a training of that name.
    """
    for one in reversed(list(_trainings(folder))[1:]):
        left = list(one.iterdir())
        if not any(path.is_dir() or path.name in _LOGGERS for path in left):
            for path in left:
                path.unlink()
            one.rmdir()


def _trainings(folder: Path) -> Iterator[Path]:
    """The folder itself, then those of folds and seeds, the inner ones last."""
    yield folder
    for pattern in ("fold-*", "seed-*", "fold-*/seed-*"):
        yield from folder.glob(pattern)


def _logged(folder: Path) -> bool:
    log = folder / _LOG
    return log.exists() and log.stat().st_size > 0
