"""The worker processes of a preparation: each owns a shard, none outlives the main process, no bad file stops them.

A file can also end the process that reads it, by a fault in a library or for want of memory. Then the pool is gone. The
recordings that may have been at work are tried one at a time in a process of their own. So the one to blame is found
and skipped with the reason ``crash``, and the others continue in a new pool.

A process that starts runs the main script of its parent once more. A script without ``if __name__ == "__main__"`` would
start processes there, which Python forbids, so each of them dies. ``check_start`` notices that, and one line says so.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, TypeVar

from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.data.reading.formats import reader_code
from cerebro_eeg.data.reading.passing_faults import passing_fault
from cerebro_eeg.data.storing.job import Job, store_one
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.skip_log import TRANSIENT, Skip, SkipLog
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ChannelError, InputError, RecordingError, StoreBusyError, StoreError

T = TypeVar("T")


class Outcome(NamedTuple):
    """What became of a recording."""

    size: int
    """Bytes of its source."""
    passing: bool = False
    """Whether it was skipped for a reason that may pass."""


Pair = tuple[str, Item]
CRASHED = "the process that read it died, also when it read nothing else: a fault in a library, or too little memory"
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""")
_job: tuple[Job, str] | None = None
_shard: tuple[ShardWriter, SkipLog] | None = None


def run_all(job: Job, mine: Sequence[Pair], workers: int, name: str) -> Generator[Outcome, None, None]:
    """Do the work, in shards that begin with ``name``; yield the outcome for each recording stored or skipped."""
    if workers == 0 and mine:
        with opened_shard(job, name) as (writer, log):
            for id, item in mine:
                yield do_one(job, writer, log, id, item)
        return
    check_start()
    left = sorted(mine, key=lambda pair: -pair[1].size)  # largest first: no worker is left alone with a long one
    while left:
        done: set[str] = set()
        try:
            with _pool(job, name, min(workers, len(left))) as pool:
                for id, outcome in _share(pool, left):
                    done.add(id)
                    yield outcome
            return
        except BrokenProcessPool:
            left = [pair for pair in left if pair[0] not in done]
            if not done:  # perhaps none could begin, or memory was too small for so many
                _check_that_processes_start()
                workers = max(1, workers // 2)
        except (
            OSError
        ) as error:  # errors of a file are skipped or a StoreError, so this one comes from the processes themselves
            raise _no_processes(error) from None
        told = finished(job.folder)  # a worker may have died between the end of its work and saying so
        yield from (Outcome(item.size) for id, item in left if id in told)
        left = [pair for pair in left if pair[0] not in told]
        near = 2 * workers + 1  # at work or handed out: in order, one ahead for each worker and one more
        yield from _one_by_one(job, name, left[:near])
        left = left[near:]


def cores() -> int:
    """Return how many processes this machine, or the job on it, can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_own_process(function: Callable[..., T], *args: object) -> T | None:
    """Return the result of a function of a module in a process of its own; None where the process dies of it."""
    check_start()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        begun = False
        try:
            with _starting():
                first = pool.submit(os.getpid)
            first.result()
            begun = True
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            if not begun:
                _check_that_processes_start()
            return None
        except OSError as error:
            raise _no_processes(error) from None


def each_apart(
    function: Callable[..., T], calls: Sequence[tuple[object, ...]], workers: int
) -> Generator[tuple[int, T | None], None, None]:
    """Yield number and result of each call of a function of a module, in processes of their own and in any order.

    A call that ends its process has the result None; the others go on.
    """
    check_start()
    left = list(enumerate(calls))
    while left:
        done: set[int] = set()
        try:
            with ProcessPoolExecutor(min(workers, len(left)), multiprocessing.get_context("spawn")) as pool:
                try:
                    with _starting():
                        futures = {pool.submit(function, *given): number for number, given in left}
                    for future in as_completed(futures):
                        result = future.result()
                        done.add(futures[future])
                        yield futures[future], result
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            return
        except BrokenProcessPool:
            if not done:
                _check_that_processes_start()
        except OSError as error:
            raise _no_processes(error) from None
        left = [call for call in left if call[0] not in done]
        near = 2 * workers + 1  # those that were at work or handed out: one of them is to blame
        for number, given in left[:near]:
            yield number, in_own_process(function, *given)
        left = left[near:]


_STARTING = "CEREBRO_EEG_STARTS_A_PROCESS"
_NO_GUARD = 77
_PATIENCE = 120.0  # seconds for one process to start
_ADVICE = 'call prepare under `if __name__ == "__main__":` in a file of its own, or use no workers (workers 0)'


def check_start() -> None:
    """Refuse to work in a process that is just starting, where a script without a guard runs for a second time."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python itself asks it
        if os.environ.get(_STARTING):
            os._exit(_NO_GUARD)  # one of ours: its parent says why, once
        raise StoreError(f"a process that is just starting runs this script once more; {_ADVICE}") from None


def _check_that_processes_start() -> None:
    """Start one process that does nothing; a StoreError says why it dies."""
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    try:
        with _starting():
            process.start()
    except OSError as error:
        raise _no_processes(error) from None
    process.join(_PATIENCE)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    if code == _NO_GUARD:
        raise StoreError(f"worker processes run the calling script again and would start others; {_ADVICE}") from None
    if code != 0:
        ended = f"signal {-code}; is memory short?" if code is not None and code < 0 else f"exit code {code}"
        raise StoreError(
            f"worker processes die before they begin ({ended}); what was stored is safe: {_ADVICE}"
        ) from None


def finished(folder: Path) -> set[str]:
    """Return the ids of everything that is stored or skipped."""
    store = Store(folder)
    return {record.id for record in store.recordings} | set(store.skipped())


@contextlib.contextmanager
def opened_shard(job: Job, name: str) -> Iterator[tuple[ShardWriter, SkipLog]]:
    """Yield a shard and a skip log of our own, closed at the end."""
    writer, log = _claim(job, name)
    try:
        yield writer, log
    finally:
        log.close()
        writer.close()


def do_one(job: Job, writer: ShardWriter, log: SkipLog, id: str, item: Item) -> Outcome:
    """Store or skip one recording; only a store that cannot be written is an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
            store_one(job, writer, id, item)
        return Outcome(item.size)
    except StoreError:
        raise  # the disk or the store itself: no file can be blamed
    except Exception as error:  # a file that breaks a reader in an unforeseen way must not stop the others
        skip = reason_of(error)
        log.add(id, *skip)
        return Outcome(item.size, skip.code in TRANSIENT)


def reason_of(error: Exception) -> Skip:
    """Return why a recording is skipped; a fault of disk, network or memory is none of the file."""
    if isinstance(error, RecordingError):
        return Skip(error.code, _public(str(error)))
    if isinstance(error, ChannelError):
        return Skip("channels", _public(str(error)).partition(": ")[0])  # labels follow; `info FILE` shows them
    passing = passing_fault(error)
    if passing is not None:
        return Skip(passing.code, str(passing))
    if isinstance(error, InputError):
        return Skip("input", _public(str(error)))
    kind = type(error).__name__  # its text may quote the file
    return Skip("reader_oserror" if isinstance(error, OSError) else reader_code(error), f"the reader failed ({kind})")


def _public(text: str) -> str:
    """Return a sentence without the names that it quotes from a file, except electrodes: a store is passed on."""
    return _QUOTED.sub(lambda found: found[0] if found[0][1:-1] in VOCABULARY else "...", text)


def _pool(job: Job, name: str, workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (job, name))


def _share(pool: ProcessPoolExecutor, pairs: Sequence[Pair]) -> Iterator[tuple[str, Outcome]]:
    try:
        with _starting():
            futures = [pool.submit(_work, pair) for pair in pairs]
        for future in as_completed(futures):
            yield future.result()
    except BaseException:  # a worker ends the recording that it has begun; no other is begun
        pool.shutdown(cancel_futures=True)
        raise


def _one_by_one(job: Job, name: str, suspects: Sequence[Pair]) -> Iterator[Outcome]:
    """Try each recording alone; a process that has lived takes the next, and only the end of a fresh one is blamed."""
    pool: ProcessPoolExecutor | None = None
    try:
        for id, item in suspects:
            lived = pool is not None and _lives(pool, (id, item))
            if not lived and id not in finished(job.folder):
                pool = _fresh(job, name)
                lived = _lives(pool, (id, item))
            if not lived:
                pool = None
                if id not in finished(job.folder):
                    with opened_shard(job, name) as (_, log):
                        log.add(id, "crash", CRASHED)
            yield Outcome(item.size)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _fresh(job: Job, name: str) -> ProcessPoolExecutor:
    """Return a pool of one process that has shown that it works; otherwise a file would be blamed for its failure."""
    pool = _pool(job, name, 1)
    try:
        with _starting():
            first = pool.submit(os.getpid)
        first.result()
    except BrokenProcessPool as error:
        _check_that_processes_start()
        raise StoreError("worker processes die before they begin; what was stored is safe: try --workers 0") from error
    return pool


def _no_processes(error: OSError) -> StoreError:
    return StoreError(
        f"worker processes cannot be started: {error.strerror or type(error).__name__}; what was stored is safe: try "
        "fewer --workers, or 0"
    )


def _lives(pool: ProcessPoolExecutor, pair: Pair) -> bool:
    """Return whether the process outlives this recording; the pool is closed when it does not."""
    try:
        pool.submit(_work, pair).result()
    except BrokenProcessPool:
        pool.shutdown()
        return False
    return True


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Block interrupts in processes that are started here, and let them know that they are ours.

    The main process prints the one line about an interrupt. A worker could ignore the signal only once it is up, and
    would die with a traceback before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.environ[_STARTING] = "1"
    try:
        yield
    finally:
        os.environ.pop(_STARTING, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # an interrupt that came meanwhile arrives now


def _claim(job: Job, name: str) -> tuple[ShardWriter, SkipLog]:
    """Claim the shard and skip log with the first number that no living process holds."""
    for number in range(1000):
        with contextlib.suppress(StoreBusyError), contextlib.ExitStack() as stack:
            writer = stack.enter_context(ShardWriter(job.folder, f"{name}-{number}"))
            log = stack.enter_context(SkipLog(job.folder, f"{name}-{number}"))
            job.check_mark()  # with the names claimed, nobody can change the store any more
            stack.pop_all()  # both are ours: they stay open
            return writer, log
    raise StoreError("a thousand writers are at work on this store; wait for some to end")


def _start(job: Job, name: str) -> None:
    """Start a worker; this must not fail, because the pool would not say why."""
    global _job
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _job = job, name


def _end_with_parent() -> None:
    """End with the main process; a worker would otherwise wait for work for ever and hold its shard."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)  # like a kill: what is committed stays


def _work(pair: Pair) -> tuple[str, Outcome]:
    global _shard
    assert _job is not None
    job, name = _job
    _shard = _shard or _claim(job, name)
    return pair[0], do_one(job, *_shard, *pair)
