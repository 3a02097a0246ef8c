"""Loader: reads the windows of a step into one flat float16 buffer, which the device turns into rows.

Windows of a batch may have different channels. Their blocks (time, channel) lie one behind the other as in the store,
one ``pread`` each. Nothing is padded, transposed or converted on the CPU; ``lay_out`` makes rows on the device by one
gather. The content of a step depends on the step alone. Threads only share the reading, or have reader processes do it
(``reader_pool.py``).

Legend: **B** windows, **R** rows, **T** samples, **K** targets.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.data.batching.order import Step
from cerebro_eeg.data.batching.reader_pool import ReaderPool
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError

SMALL = 1 << 20
"""Bytes of a part that are worth handing over to a thread."""


@dataclass(frozen=True)
class RawStep:
    """The windows of a step as they were read, on the CPU."""

    flat: Tensor
    """float16 microvolts: blocks (T, channels of the window), one behind the other."""
    samples: int
    """T."""
    counts: tuple[int, ...]
    """Channels of each window."""
    channels_R2: Tensor
    """Electrode ids, in the form of ``Batch``."""
    scale_B: Tensor
    """Scale of each window's recording in microvolts."""
    label_B: Tensor
    """Class numbers; -1 for none."""
    target_BK: Tensor | None
    """Targets for regression; NaN for none."""
    key_B: Tensor
    """int64: random draws for a window are keyed by this number and the epoch."""
    epoch_B: Tensor
    step: Step
    """The windows of this step."""

    def kept_counts(self) -> list[int]:
        """Return how many channels of each window a batch has; channels of no electrode are left out."""
        kept_R = self.channels_R2[:, 0].numpy() != 0
        if kept_R.all():
            return list(self.counts)
        window_R = np.repeat(np.arange(len(self.counts)), self.counts)
        counts: list[int] = np.bincount(window_R[kept_R], minlength=len(self.counts)).tolist()
        return counts


def lay_out(raw: RawStep, device: torch.device | str, dtype: torch.dtype = torch.float16) -> Batch:
    """Make a batch of the step on the device; float16 stays, since the model's patches promote it themselves.

    From pinned memory the copy does not wait for running work of a GPU, so the next step may be laid out meanwhile.
    """
    device = torch.device(device)
    flat = raw.flat.to(device, non_blocking=True).to(dtype)
    layout = Layout.ragged(raw.counts, device)
    windows, size = len(raw.counts), raw.samples
    if layout.slot_R is None:  # all of one width: a transposition, without an index
        signal_RT = flat.view(windows, size, layout.width).transpose(1, 2).reshape(-1, size)
    else:
        # Sample t of row c of a window with n rows is at first + t n + c. 32 bits halve the memory of the index.
        whole = torch.int32 if raw.flat.numel() < 2**31 else torch.int64
        counts_B = np.array(raw.counts, np.int64)
        first_B = (counts_B.cumsum() - counts_B) * size
        of_window_B2 = onto(torch.from_numpy(np.stack([first_B, counts_B], 1)), device)
        first_R, step_R = layout.per_row(of_window_B2).unbind(1)
        row_R = layout.slot_R % layout.width + first_R
        time_T = torch.arange(size, device=device, dtype=whole)
        index_RT = row_R.to(whole)[:, None] + step_R.to(whole)[:, None] * time_T
        signal_RT = flat.index_select(0, index_RT.flatten()).view(-1, size)
    channels_R2 = raw.channels_R2.to(device, non_blocking=True)
    scale_R = layout.per_row(raw.scale_B.to(device, non_blocking=True))
    kept_R = raw.channels_R2[:, 0] != 0
    if bool(kept_R.all()):  # on the CPU: no waiting for the device
        return Batch(signal_RT, channels_R2, layout, scale_R)
    index_R = onto(kept_R.nonzero().flatten(), device)
    kept = Layout.ragged(raw.kept_counts(), device)
    return Batch(signal_RT[index_R], channels_R2[index_R], kept, scale_R[index_R])


class Loader:
    """Reads steps from one or several stores.

    Parameters
    ----------
    sources : stores with their windows, in the order that the steps number them; all windows of one length and rate.
    threads : number of reading threads; 0 reads in the caller's own.
    processes : each thread has a reader process read. Use it while a GPU trains, whose launches need Python's lock.
    ahead : steps that are being read while one is used; memory holds so many and two more.
    pin : page-locked memory, from which a GPU copies without waiting.
    electrodes : returns the ids (channels, 2) of a recording's channels from their names; 0, 0 leaves a channel out.
        None uses the ids of the names.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Store, Windows]],
        *,
        threads: int = 4,
        processes: bool = False,
        ahead: int = 2,
        pin: bool = False,
        electrodes: Callable[[tuple[str, ...]], NDArray[np.int64]] | None = None,
    ) -> None:
        if threads < 0 or ahead < 1:
            raise ConfigError(f"threads is {threads} and ahead {ahead}; expected at least 0 and at least 1")
        if pin and not torch.cuda.is_available():
            raise ConfigError("pin=True needs a GPU, and this machine has none that torch can use; leave pin out")
        _check(sources)
        self._stores = [store for store, _ in sources]
        self._windows = [windows for _, windows in sources]
        self._samples = max(windows.samples for windows in self._windows)  # 0 where there are none
        self._pin, self._threads, self._ahead = pin, threads, ahead
        self._pool = ThreadPoolExecutor(threads, "cerebro-eeg-loader") if threads else None
        self._ids = [_ids_of(windows, electrodes or _electrodes) for windows in self._windows]
        files = [store.files for store in self._stores]
        self._first_file = np.cumsum([0, *map(len, files)])
        every = [file for of_store in files for file in of_store]
        # Windows in memory have no files that another process could read.
        self._readers = ReaderPool(every, threads) if processes and threads and every else None

    def read(self, step: Step) -> RawStep:
        """Read the windows of one step."""
        return self._begin(step).finish()

    def stream(self, steps: Iterable[Step]) -> Iterator[RawStep]:
        """Yield the windows of these steps in order, while the next ones are read."""
        waiting: deque[_Reading] = deque()
        try:
            for step in steps:
                waiting.append(self._begin(step))
                if len(waiting) > (self._ahead if self._pool else 0):
                    yield waiting.popleft().finish()
            while waiting:
                yield waiting.popleft().finish()
        finally:
            for reading in waiting:
                reading.cancel()

    def close(self) -> None:
        """End the threads and processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._readers is not None:
            self._readers.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, step: Step) -> "_Reading":
        """Allocate a step's buffer and hand its reading to the threads."""
        raw, jobs = self._plan(step)
        if self._pool is None:
            self._fill(raw.flat.numpy(), jobs)
            return _Reading(raw, [])
        # Parts of equal size to a thread, two each, so that one that waits for the disk does not hold up the step.
        # A small step has fewer, because handing a part over takes time, too.
        parts = min(len(jobs), 2 * self._threads, max(1, raw.flat.nbytes // SMALL))
        cuts = [len(jobs) * part // parts for part in range(parts + 1)] if parts else [0]
        flat = raw.flat.numpy()
        futures = [self._pool.submit(self._fill, flat, jobs[a:b]) for a, b in pairwise(cuts)]
        return _Reading(raw, futures)

    def _plan(self, step: Step) -> tuple[RawStep, NDArray[np.int64]]:
        """Return a step without its samples, and the reads that fill it."""
        count = len(step)
        recording, start, label = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
        montage, scale, key = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count, np.int64)
        first = self._windows[0].target
        target = None if first is None else np.empty((count, first.shape[1]), np.float32)
        for number in np.unique(step.source).tolist():
            mine, windows = np.flatnonzero(step.source == number), self._windows[number]
            chosen = step.window[mine]
            recording[mine], start[mine], label[mine] = (
                windows.recording[chosen],
                windows.start[chosen],
                windows.label[chosen],
            )
            montage[mine] = windows.facts.montage[recording[mine]]
            scale[mine], key[mine] = windows.facts.scale[recording[mine]], windows.keys(chosen)
            if target is not None and windows.target is not None:
                target[mine] = windows.target[chosen]
        ids = [self._ids[source][place] for source, place in zip(step.source.tolist(), montage.tolist(), strict=True)]
        counts = tuple(len(rows) for rows in ids)
        ends = np.cumsum(np.array(counts, np.int64)) * self._samples
        size = int(ends[-1]) if count else 0
        raw = RawStep(
            torch.empty(size, dtype=torch.float16, pin_memory=self._pin),
            self._samples,
            counts,
            self._tensor(np.concatenate(ids) if ids else np.empty((0, 2), np.int64)),
            self._tensor(scale),
            self._tensor(label),
            None if target is None else self._tensor(target),
            self._tensor(key),
            self._tensor(step.epoch),
            step,
        )
        return raw, np.stack([step.source, recording, start, np.array(counts, np.int64), ends], 1)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        found = torch.from_numpy(np.array(array))
        return found.pin_memory() if self._pin else found

    def _fill(self, flat: NDArray[np.float16], jobs: NDArray[np.int64]) -> None:
        """Read windows (source, recording, start, channels, end in the buffer), which lie one behind the other."""
        if self._readers is not None and self._fill_elsewhere(self._readers, flat, jobs):
            return
        size, stores = self._samples, self._stores
        for source, recording, start, count, end in jobs.tolist():
            stores[source].read_into(recording, start, start + size, flat[end - size * count : end])

    def _fill_elsewhere(self, readers: ReaderPool, flat: NDArray[np.float16], jobs: NDArray[np.int64]) -> bool:
        """Let a reader process read the same windows, if it can."""
        pieces = np.empty((len(jobs), 3), np.int64)
        blocks, checks = [], []
        for number in np.unique(jobs[:, 0]).tolist():
            mine = np.flatnonzero(jobs[:, 0] == number)
            store, place = self._stores[number], (jobs[mine, 1], jobs[mine, 2], self._samples)
            pieces[mine] = store.pieces(*place)
            pieces[mine, 0] += self._first_file[number]
            found, sums = store.unchecked(*place)
            sums[:, 0] += self._first_file[number]
            blocks.append((store, found))
            checks.append(sums.tobytes())
        end = int(jobs[-1, 4])
        into = flat[end - self._samples * int(jobs[:, 3].sum()) : end].view(np.uint8).data
        done = into.nbytes == pieces[:, 2].sum() and readers.read(pieces.tobytes(), b"".join(checks), into)
        for store, found in blocks if done else ():
            store.mark_checked(found)
        return done


@dataclass(frozen=True)
class _Reading:
    """A step whose samples are being read."""

    raw: RawStep
    parts: Sequence[Future[None]]

    def finish(self) -> RawStep:
        for part in self.parts:
            part.result()
        return self.raw

    def cancel(self) -> None:
        for part in self.parts:
            part.cancel()


def _ids_of(windows: Windows, electrodes: Callable[[tuple[str, ...]], NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return the ids of every montage that has a window; a store may hold others, which need not be readable."""
    used = set(np.unique(windows.facts.montage[windows.recording]).tolist())
    nothing = np.zeros((0, 2), np.int64)
    return [electrodes(names) if n in used else nothing for n, names in enumerate(windows.facts.montages)]


def _electrodes(names: Sequence[str]) -> NDArray[np.int64]:
    """Return the ids (channels, 2) of the columns of a recording."""
    return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)


def _check(sources: Sequence[tuple[Store, Windows]]) -> None:
    """Refuse sources that one batch cannot hold, and windows that belong to another store."""
    if not sources:
        raise InputError("there is no store to read from; expected at least one with its windows")
    kinds = {(windows.samples, windows.sfreq) for _, windows in sources if len(windows)}
    if len(kinds) > 1:
        listed = ", ".join(f"{samples} samples at {rate:g} Hz" for samples, rate in sorted(kinds))
        raise InputError(f"the sources have windows of {listed}; a batch needs one length and rate: find them so")
    if len({None if windows.target is None else windows.target.shape[1] for _, windows in sources}) > 1:
        raise InputError("some sources have targets and others none, or another number; train on tasks of one kind")
    for store, windows in sources:
        ids = [windows.facts.ids[number] for number in np.unique(windows.recording).tolist()]
        numbers = {id: number for number, id in enumerate(windows.facts.ids)}
        if any(store.number(id) != numbers[id] for id in ids):
            raise InputError(
                "the store has other recordings than when its windows were found; open it once, and find them in it"
            )
