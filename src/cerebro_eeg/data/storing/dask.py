"""Prepares a corpus on a Dask cluster: any number of machines that see store and sources under the same paths.

A task is one recording. While it runs, it owns a shard whose name begins with its machine, so file locks need not work
between machines. It first checks whether a worker that died has stored the recording already. Errors are returned and
not raised, because a worker would log the arguments of the task, and those have paths.

Dask replaces a worker that dies and gives its task to another. A recording whose workers die each time, also when it
runs alone, is skipped with the reason ``crash``.
"""

import asyncio
import contextlib
import functools
import hashlib
import logging
import queue
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from cerebro_eeg import __version__
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.job import Job
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.records import split_line
from cerebro_eeg.data.storing.shards import shard_names
from cerebro_eeg.data.storing.store_info import NAME
from cerebro_eeg.data.storing.workers import CRASHED, Outcome, Pair, do_one, in_own_process, opened_shard
from cerebro_eeg.errors import CerebroError, ConfigError, InputError, StoreError, import_trouble


@dataclass(frozen=True)
class DaskTask:
    """The message to a worker with each recording: the job without the function that finds recordings."""

    job: Job
    name: str
    run: str
    """Differs for each run. A worker remembers facts of one run only, because a store may be removed and made anew."""
    version: str
    probe: Item | None
    """A small recording that could be read on the machine that distributes the work."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a task."""

    outcome: Outcome
    refusal: str | None = None
    """Why the run must stop: every other task would end in the same way."""


_one_at_a_time = threading.Lock()  # a worker may have several threads; a shard has one writer
_checked: set[str] = set()  # runs


def do_task(task: DaskTask, id: str, item: Item) -> Answer:
    """Store or skip one recording, unless that was done before."""
    try:
        with _one_at_a_time:
            _check(task)
            if id in _stored(task.job.folder, task.run).look():  # by a worker that died before it could say so
                return Answer(Outcome(item.size))
            with opened_shard(task.job, shard_name(task.name)) as (writer, log):
                return Answer(do_one(task.job, writer, log, id, item))
    except CerebroError as error:
        return Answer(Outcome(0), str(error))
    except OSError as error:
        return Answer(
            Outcome(0), f"a Dask worker cannot read or write the store: {error.strerror}; what was stored is safe"
        )
    except Exception as error:
        return Answer(Outcome(0), f"a Dask worker failed ({type(error).__name__}); what was stored is safe")


def shard_name(name: str) -> str:
    """Return the name of a shard, with a hash of this machine's name, which itself may say whose machine it is."""
    return f"{name}-dask{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}"


def _check(task: DaskTask) -> None:
    """Check once per process that program, store and sources are those of the run."""
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
    """The ids in a store, by any writer; each look reads only the lines that are new since the last."""

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


# Dask is an extra and only half typed, so it is imported by name where it is used.
Client = Any
Future = Any

WAIT = 10.0  # seconds for an answer of the cluster, and for its first worker
PATIENCE = 600.0  # seconds without any worker
_AHEAD = 1000  # tasks that the scheduler knows at a time: enough for any cluster, and little to cancel
_PROBES = 5


def run_on_dask(job: Job, mine: Sequence[Pair], address: str, name: str) -> Generator[Outcome, None, None]:
    """Do the work on a cluster; yield the outcome for each recording that is stored or skipped."""
    if not mine:
        return
    with _connected(address) as client:
        sent = replace(job, folder=job.folder.absolute(), recipe=replace(job.recipe, find=_nothing, others=None))
        ordered = sorted(mine, key=lambda pair: -pair[1].size)
        smallest = [item for _, item in ordered[-_PROBES:]]
        task = DaskTask(
            sent, name, secrets.token_hex(8), __version__, in_own_process(_readable, smallest, job.recipe.policy)
        )
        blamed = []
        for pair, outcome in _share(client, task, ordered):
            if outcome is None:  # perhaps for another recording that the same worker held
                blamed.append(pair)
            else:
                yield outcome
        for pair in blamed:
            (again,) = [outcome for _, outcome in _share(client, task, [pair])]
            if again is None:
                with opened_shard(job, shard_name(name)) as (_, log):
                    log.add(pair[0], "crash", CRASHED)
            yield again or Outcome(pair[1].size)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise ConfigError("--dask: " + import_trouble(error, "distributed", "'cerebro-eeg[dask]'")) from error
    with _quiet():
        try:
            # A Client without an answer complains once more when it is garbage collected, so a plain connection asks
            # first: in a thread, because a notebook has an event loop of its own.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, _ask(address)).result()
            client = distributed.Client(address, timeout=WAIT, set_as_default=False)
        except Exception as error:  # OSError, ValueError, and what comes of other servers that listen there
            raise InputError(
                f"no Dask scheduler answers at {address!r} ({type(error).__name__}); give its address, such as "
                "tcp://host:8786"
            ) from None
        try:
            with contextlib.suppress(TimeoutError):
                client.wait_for_workers(1, timeout=WAIT)
            if not client.scheduler_info()["workers"]:
                raise InputError("the Dask cluster has no workers; start some, then run the same command again")
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's client, which would log tracebacks where we print one line."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _ask(address: str) -> None:
    comm = await asyncio.wait_for(import_module("distributed.comm").connect(address, timeout=WAIT), WAIT)
    await comm.close()


def _readable(items: Sequence[Item], policy: ChannelPolicy) -> Item | None:
    """Return the first item that opens here; a worker that cannot open it lacks the folder."""
    for item in items:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            item.open(policy)
            return item
    return None


def _share(client: Client, task: DaskTask, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Outcome | None]]:
    """Yield each recording when it is done, with its outcome; None where its workers died."""
    waiting, given = iter(pairs), dict[str, tuple[Future, Pair]]()
    done: queue.SimpleQueue[Future] = queue.SimpleQueue()
    label = secrets.token_hex(4)  # Dask remembers the fate of a key

    def give(count: int) -> None:
        for pair in islice(waiting, count):
            future = client.submit(do_task, task, *pair, key=f"prepare-{pair[0]}-{label}", pure=False)
            given[future.key] = future, pair
            future.add_done_callback(done.put)

    try:
        give(_AHEAD)
        seen = time.monotonic()
        while given:
            try:
                future = done.get(timeout=1.0)
            except queue.Empty:
                if client.status != "running":
                    raise _gone("the Dask scheduler") from None
                if client.scheduler_info()["workers"]:
                    seen = time.monotonic()
                elif time.monotonic() - seen > PATIENCE:
                    raise _gone("the last Dask worker") from None
                continue
            seen = time.monotonic()
            outcome = _outcome(future)
            yield given.pop(future.key)[1], outcome
            give(1)
    finally:
        if given:
            client.cancel([future for future, _ in given.values()], force=True)


def _outcome(future: Future) -> Outcome | None:
    if future.status not in ("finished", "error"):
        raise _gone("the Dask scheduler")
    try:
        answer: Answer = future.result(timeout=60)
    except import_module("distributed").KilledWorker:
        return None
    except Exception as error:
        raise StoreError(
            f"the Dask workers cannot do the work ({type(error).__name__}); what was stored is safe: install the same "
            "cerebro-eeg and Dask on all of them, and run the same command again"
        ) from None
    if answer.refusal is not None:
        raise StoreError(answer.refusal)
    return answer.outcome


def _gone(who: str) -> StoreError:
    return StoreError(f"{who} is gone; what was stored is safe: run the same command again when the cluster is back")


def _nothing() -> Iterator[Item]:
    return iter(())
