"""One recording on a Dask worker.

While it runs, a task owns a shard whose name begins with its machine, so file locks need not work from one machine to
another. It first looks whether a worker that died has stored the recording already. What goes wrong is returned, not
raised: a worker would log the arguments of the task, and those have paths.
"""

import functools
import hashlib
import socket
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg import __version__
from cerebro_eeg.data.storing.job import Job
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.shards import shard_names
from cerebro_eeg.data.storing.store_info import NAME
from cerebro_eeg.data.storing.stored import split_line
from cerebro_eeg.data.storing.workers import do_one, opened_shard
from cerebro_eeg.errors import CerebroError, StoreError


@dataclass(frozen=True)
class Task:
    """What a worker is sent with each recording: the job without what only finding its recordings needs."""

    job: Job
    name: str
    run: str
    """Another one for each run: what a worker remembers is of one run, because a store may be removed and made anew."""
    version: str
    probe: Item | None
    """A small recording that could be read where the work was given out."""


@dataclass(frozen=True)
class Answer:
    """How a task ended."""

    size: int
    refusal: str | None = None
    """Why the run must stop: every other task would end alike."""


_one_at_a_time = threading.Lock()  # a worker may have several threads; a shard has one writer
_checked: set[str] = set()  # runs


def do_task(task: Task, id: str, item: Item) -> Answer:
    """Store or skip one recording, unless that was done."""
    try:
        with _one_at_a_time:
            _check(task)
            if id in _stored(task.job.folder, task.run).look():  # by a worker that died before it could say so
                return Answer(item.size)
            with opened_shard(task.job.folder, shard_name(task.name)) as (writer, log):
                return Answer(do_one(task.job, writer, log, id, item))
    except CerebroError as error:
        return Answer(0, str(error))
    except OSError as error:
        return Answer(0, f"a Dask worker cannot read or write the store: {error.strerror}; what was stored is safe")
    except Exception as error:
        return Answer(0, f"a Dask worker failed ({type(error).__name__}); what was stored is safe")


def shard_name(name: str) -> str:
    """With a hash of this machine's name; the name itself may say whose it is."""
    return f"{name}-dask{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}"


def _check(task: Task) -> None:
    """Once in each process: the same program, the store, and the sources."""
    if task.version != __version__:
        raise StoreError(
            f"a Dask worker has cerebro-eeg {__version__}, this is {task.version}; install the same on all"
        )
    if task.run in _checked:
        return
    if not (task.job.folder / NAME).is_file():
        raise StoreError("a Dask worker does not see the store; put it where all see it under the same path")
    try:
        if task.probe is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                task.probe.open(task.job.recipe.policy)
    except Exception as error:
        raise StoreError(
            f"a Dask worker cannot read a recording that can be read here ({type(error).__name__}); put the source "
            "where all see it under the same path, and install the same packages"
        ) from None
    _checked.add(task.run)


class _Stored:
    """The ids in a store, by whichever writer. A look reads only the lines that are new since the last."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = folder, set[str]()
        self._ends: dict[str, int] = {}

    def look(self) -> set[str]:
        for name in shard_names(self._folder):
            end = self._ends.get(name, 0)
            with (self._folder / f"{name}.jsonl").open("rb") as file:
                file.seek(end)
                whole = file.read().rpartition(b"\n")[0]
            entries = [split_line(line) for line in whole.split(b"\n")] if whole else []
            self._ids.update(entry.id for entry in entries if entry is not None)
            self._ends[name] = end + len(whole) + (1 if whole else 0)
        return self._ids


@functools.lru_cache(4)
def _stored(folder: Path, run: str) -> _Stored:
    return _Stored(folder)
