"""Prepare: every recording of a recipe is read, checked, filtered, resampled and stored, or skipped with a reason.

Work is divided by recording. A worker owns a shard, so there are no locks to wait for and nothing to merge; killed at
any moment and started again, it goes on where the store ends, and the store's hash does not depend on how the work was
divided. One bad file never stops the run.
"""

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cerebro_eeg.data.filtering import references
from cerebro_eeg.data.filtering.filters import run
from cerebro_eeg.data.filtering.mains import estimate_mains
from cerebro_eeg.data.filtering.plan import plan_filters
from cerebro_eeg.data.filtering.quality import Policy, Thresholds, choose, count
from cerebro_eeg.data.filtering.quality_meter import measure
from cerebro_eeg.data.reading.edf import late_faults
from cerebro_eeg.data.reading.recording import Event, Recording
from cerebro_eeg.data.storing import keys
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.skipped import SkipLog, write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.stored import is_id
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ChannelError, ConfigError, InputError, RecordingError, StoreBusyError, StoreError
from cerebro_eeg.schema import to_dict

RECIPE_VERSION = 1
"""Raised when the same files would be stored differently: stores of other versions are refused."""


@dataclass(frozen=True)
class Choices:
    """What a user may choose about a preparation; it all goes into ``store.json``."""

    mains: float | None = None
    """Mains frequency in Hz; None: the corpus's own, or estimated for each recording."""
    quality: Policy = "keep"
    """What becomes of channels that are flat, clipped, disconnected or absurdly scaled."""
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; it travels to other processes."""

    folder: Path
    recipe: Recipe
    choices: Choices
    key: bytes | None
    """None where the corpus keeps its own ids."""


@dataclass(frozen=True)
class Prepared:
    """What came of a preparation: what the store holds now, and how much of it was there before."""

    recordings: int
    hours: float
    montages: dict[int, int]
    """Recordings by number of channels."""
    skipped: dict[str, str]
    """Reason by id."""
    sources: dict[str, str] = field(repr=False)
    """Names of the skipped sources by id; they may tell who was recorded, so show them only to who asks."""
    hash: str
    done_before: int


def prepare(
    recipe: Recipe,
    folder: Path,
    choices: Choices | None = None,
    *,
    workers: int = 0,
    part: tuple[int, int] = (1, 1),
    key_file: Path | None = None,
    before: Callable[[Sequence[Item], int], None] | None = None,
    progress: Callable[[int, int, int, int], None] | None = None,
) -> Prepared:
    """Prepare ``part`` (k of n) of a corpus into a store, with ``workers`` processes or, for 0, in this one.

    ``before`` is told, before anything is read, the items to do and how many of the part are stored or skipped already;
    ``progress`` is told (recordings done, recordings in all, bytes done, bytes in all) after each recording.
    """
    if not 1 <= part[0] <= part[1]:
        raise ConfigError(f"part is {part[0]}/{part[1]}; expected k/n with 1 <= k <= n")
    if workers < 0:
        raise ConfigError(f"workers is {workers}; expected 0 (this process) or more")
    key = None if recipe.own_ids else keys.read_key(key_file or keys.default_key_file())
    job = Job(folder, recipe, choices or Choices(), key)
    create_store(folder, recipe.name, settings(job), None if key is None else keys.key_check(key))
    store = Store(folder)
    finished = {record.id for record in store.recordings} | set(store.skipped())
    items = _find(job)
    part_ids = [id for id in items if _belongs(id, part)]
    mine = [(id, items[id]) for id in part_ids if id not in finished]
    done_before = len(part_ids) - len(mine)
    if before is not None:
        before([item for _, item in mine], done_before)
    total, bytes_total = len(mine), sum(item.size for _, item in mine)
    done = bytes_done = 0
    for size in _run(job, mine, workers, part):
        done, bytes_done = done + 1, bytes_done + size
        if progress is not None:
            progress(done, total, bytes_done, bytes_total)
    store = Store(folder)
    skipped = store.skipped()
    write_skipped(folder, skipped)
    shapes = [(len(record.channels), record.seconds) for record in store.recordings]
    return Prepared(
        recordings=len(shapes),
        hours=sum(seconds for _, seconds in shapes) / 3600,
        montages=dict(sorted(Counter(channels for channels, _ in shapes).items())),
        skipped=skipped,
        sources={id: items[id].name for id in skipped if id in items},
        hash=store.hash(),
        done_before=done_before,
    )


def settings(job: Job) -> dict[str, Any]:
    """What a store was made with; two stores with equal settings and equal files are equal."""
    policy = {name: value for name, value in vars(job.recipe.policy).items() if name != "trained"}
    return {
        "version": RECIPE_VERSION,
        "recipe": job.recipe.name,
        "signal": to_dict(job.recipe.signal),
        "channels": {name: _plain(value) for name, value in policy.items()},
        "mains": job.choices.mains if job.choices.mains is not None else job.recipe.mains,
        "quality": job.choices.quality,
        "thresholds": to_dict(job.choices.thresholds),
        "split_unit": job.recipe.split_unit,
        "tasks": {name: to_dict(task) for name, task in sorted(job.recipe.tasks.items())},
    }


def _plain(value: Any) -> Any:
    """As JSON has it; a set in an order that does not change from process to process."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _find(job: Job) -> dict[str, Item]:
    """All items of the corpus by id."""
    items: dict[str, Item] = {}
    for item in job.recipe.find():
        id = name_of(job, item)
        if id in items:  # one of the two would be lost without a word
            raise InputError(f"{job.recipe.name} finds two recordings with the id {id!r}; give each a name of its own")
        items[id] = item
    if not items:
        raise InputError(f"{job.recipe.name} finds no recording there; check the folder")
    return items


def name_of(job: Job, item: Item) -> str:
    """The id of a recording: its own, or a keyed hash of its name."""
    if job.key is not None:
        return keys.make_id(job.key, "recording", item.name)
    if not is_id(item.name):
        raise InputError(f"the corpus has a recording whose id cannot be used: {item.name!r:.60}")
    return item.name


def store_one(job: Job, writer: ShardWriter, id: str, item: Item) -> None:
    """Read, check, filter and store one recording; a RecordingError or ChannelError says why it cannot be."""
    opened = item.open(job.recipe.policy)
    measured = measure(opened, job.choices.thresholds)
    columns = choose(opened.match.channels, measured, job.choices.thresholds, job.choices.quality)
    recording = with_columns(opened, columns)
    kept = recording.match.channels
    mains = _mains(job, item, recording)
    plan = plan_filters(recording.sfreq, job.recipe.signal, mains)
    kind = job.recipe.signal.reference
    _, names = references.rereference(recording.read(0, 0), kept, kind)
    with writer.recording(id, [channel.name for channel in names], plan.new_rate) as draft:
        stretch = -1
        for block in run(recording, plan):
            if block.stretch != stretch:
                draft.segment(block.onset, short=block.short)
                stretch = block.stretch
            draft.write(references.rereference(block.signal, kept, kind)[0])
        draft.commit(
            native_sfreq=recording.sfreq,
            subject=_subject(job, item),
            events=[Event(e.onset, e.duration, e.name) for e in recording.events if e.name in item.events],
            labels=item.labels,
            mains=plan.notch,
            faults=sorted({fault.code for fault in (*opened.faults, *late_faults(opened))}),
            quality=count(measured, job.choices.thresholds),
            source_bytes=item.size,
        )


def with_columns(recording: Recording, columns: Sequence[int]) -> Recording:
    """The recording with some of its channels."""
    if len(columns) == len(recording.match.channels):
        return recording
    chosen = list(columns)
    kept = {recording.match.index[column] for column in chosen}
    rows = tuple(
        row
        if row.channel is None or row.index in kept
        else replace(row, channel=None, outcome="dropped", note="flat, clipped, disconnected or scaled")
        for row in recording.match.rows
    )
    return replace(
        recording,
        match=replace(recording.match, rows=rows),
        read=lambda start, stop: recording.read(start, stop)[:, chosen],
    )


def _mains(job: Job, item: Item, recording: Recording) -> float | None:
    for known in (job.choices.mains, item.mains, job.recipe.mains):
        if known is not None:
            return known
    return estimate_mains(recording)


def _subject(job: Job, item: Item) -> str | None:
    if item.subject is not None and job.key is not None:
        return keys.make_id(job.key, "subject", item.subject)
    if item.subject is not None and not is_id(item.subject):
        raise RecordingError("subject", "the corpus's name of the subject cannot be used as an id; mend it")
    return item.subject


def _belongs(id: str, part: tuple[int, int]) -> bool:
    """Whether a recording belongs to a part; by its id, so that every machine divides alike."""
    return int(hashlib.sha256(id.encode()).hexdigest()[:12], 16) % part[1] == part[0] - 1


# ---- workers ---------------------------------------------------------------------------------------------------------

_worker: tuple[Job, ShardWriter, SkipLog] | None = None


def _run(job: Job, mine: list[tuple[str, Item]], workers: int, part: tuple[int, int]) -> Iterator[int]:
    """Do the work; yields the source bytes of each recording that is stored or skipped."""
    if not mine:
        return
    if workers == 0:
        with _open_writer(job.folder, part) as (writer, log):
            for id, item in mine:
                yield _one(job, writer, log, id, item)
        return
    largest_first = sorted(mine, key=lambda pair: -pair[1].size)  # so that no worker is left alone with a long one
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(min(workers, len(mine)), context, _start, (job, part)) as pool:
            try:
                for future in as_completed([pool.submit(_work, pair) for pair in largest_first]):
                    yield future.result()
            except BaseException:  # what a worker has begun it ends; nothing else is begun
                pool.shutdown(cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise StoreError("a worker process died; what was stored is safe: run the same command again") from error


class _open_writer:  # noqa: N801 (used as a function)
    """A shard and a skip log of our own: the first number that no living process holds."""

    def __init__(self, folder: Path, part: tuple[int, int]) -> None:
        for number in range(1000):
            name = f"part{part[0]}of{part[1]}-{number}"
            try:
                self.writer = ShardWriter(folder, name)
            except StoreBusyError:
                continue
            self.log = SkipLog(folder, name)
            return
        raise StoreError("a thousand writers are at work on this store; wait for some to end")

    def __enter__(self) -> tuple[ShardWriter, SkipLog]:
        return self.writer, self.log

    def __exit__(self, *_: object) -> None:
        self.writer.close()
        self.log.close()


def _start(job: Job, part: tuple[int, int]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the first process to tell, in one line
    threading.Thread(target=_end_with_parent, daemon=True).start()
    opened = _open_writer(job.folder, part)
    _worker = job, opened.writer, opened.log


def _end_with_parent() -> None:
    """A worker whose first process was killed would wait for work for ever, and hold its shard."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # like a kill: what is committed stays


def _work(pair: tuple[str, Item]) -> int:
    assert _worker is not None
    return _one(*_worker, *pair)


def _one(job: Job, writer: ShardWriter, log: SkipLog, id: str, item: Item) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
            store_one(job, writer, id, item)
    except RecordingError as error:
        log.add(id, error.code)
    except StoreError:
        raise  # the disk or the store itself: no file can be blamed
    except ChannelError:
        log.add(id, "channels")
    except InputError:
        log.add(id, "input")
    except Exception as error:  # a file that breaks a reader in a way nobody foresaw must not stop the others
        log.add(id, "reader_" + "".join(c if c.isalnum() else "_" for c in type(error).__name__.lower()))
    return item.size
