"""The processes that do a job: each owns a shard, none outlives the first one, and one bad file stops none of them."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from cerebro_eeg.data.storing.job import Job, store_one
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.skipped import SkipLog
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ChannelError, InputError, RecordingError, StoreBusyError, StoreError

_worker: tuple[Job, ShardWriter, SkipLog] | None = None


def run_all(job: Job, mine: list[tuple[str, Item]], workers: int, part: tuple[int, int]) -> Iterator[int]:
    """Do the work; yields the source bytes of each recording that is stored or skipped."""
    if not mine:
        return
    if workers == 0:
        with _opened(job.folder, part) as (writer, log):
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


@contextlib.contextmanager
def _opened(folder: Path, part: tuple[int, int]) -> Iterator[tuple[ShardWriter, SkipLog]]:
    """A shard and a skip log of our own, closed at the end."""
    writer, log = _claim(folder, part)
    try:
        yield writer, log
    finally:
        writer.close()
        log.close()


def _claim(folder: Path, part: tuple[int, int]) -> tuple[ShardWriter, SkipLog]:
    """The shard and skip log with the first number that no living process holds."""
    for number in range(1000):
        name = f"part{part[0]}of{part[1]}-{number}"
        with contextlib.suppress(StoreBusyError):
            return ShardWriter(folder, name), SkipLog(folder, name)
    raise StoreError("a thousand writers are at work on this store; wait for some to end")


def _start(job: Job, part: tuple[int, int]) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the first process to tell, in one line
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = job, *_claim(job.folder, part)


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
