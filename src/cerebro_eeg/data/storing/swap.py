"""Swap: several files of a store are replaced together; no kill leaves a mixture of old and new that can be read.

The new files are written into ``.change`` inside the store, which no reader looks at. Then ``store.json`` becomes a
note of which files move in and which go. From there on the store cannot be opened, and whoever finds the note ends the
swap. The new ``store.json`` moves in last. Each step may be repeated, so a kill between two of them does no harm.

Nobody may write recordings meanwhile, so the names of all writers are claimed. A writer that begins later finds another
``store.json`` than its job expects, and refuses (``workers.py``).
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from cerebro_eeg.data.storing.shards import claim, disk_errors, point, sync_folder
from cerebro_eeg.data.storing.store_info import NAME, ChangingStoreError, changing_text, read_changing, read_info
from cerebro_eeg.errors import StoreBusyError, StoreError
from cerebro_eeg.files import write_text

STAGE = ".change"
LOCK = "change.lock"
_CLAIMED = (".lock", ".skipped.csv")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a store may come from elsewhere: no path leads out of it


class Swap:
    """A store that nobody else changes, with a stage for new files. ``alone`` makes it."""

    def __init__(self, folder: Path, locks: contextlib.ExitStack) -> None:
        self._folder, self._locks = folder, locks
        self._claimed: set[str] = set()
        self.stage = folder / STAGE

    def claim_writers(self) -> None:
        """Claim the names of all writers that were not claimed yet; a writer at work is an error."""
        with disk_errors("read"):
            names = {name for name in os.listdir(self._folder) if name.endswith(_CLAIMED)} - {LOCK} - self._claimed
        for name in sorted(names):
            try:
                self._locks.callback(os.close, claim(self._folder / name))
            except StoreBusyError:
                raise StoreBusyError(
                    "another process writes recordings to this store, so it cannot be changed now; wait for it to end"
                ) from None
            self._claimed.add(name)

    def begin(self) -> None:
        """Make an empty stage."""
        with disk_errors():
            self.clear()
            self.stage.mkdir()

    def commit(self, put: Iterable[str], remove: Iterable[str]) -> None:
        """Move files of the stage into the store and delete others; ``store.json`` must be in the stage."""
        path = self._folder / NAME
        with disk_errors():
            sync_folder(self.stage)
            before = path.read_text("utf-8")
            point("swap", "staged")
            write_text(path, changing_text(sorted(set(put) - {NAME}), sorted(set(remove))))
        point("swap", "noted")
        try:
            self.claim_writers()  # one may have begun before the note was there
        except StoreBusyError:
            with disk_errors():
                write_text(path, before)
            raise
        self.finish()

    def finish(self) -> None:
        """Do what the note says, from whichever step it was interrupted at."""
        note = read_changing(self._folder)
        put, remove = note or ([""], [])
        if not all(_PLAIN.fullmatch(name) for name in (*put, *remove)):
            raise StoreError(f"{NAME} of the store is damaged; restore it from a copy, or prepare anew")
        with disk_errors():
            for name in put:
                if (self.stage / name).exists():
                    os.replace(self.stage / name, self._folder / name)
                    point("swap", "put")
            point("swap", "all-put")
            for name in remove:
                (self._folder / name).unlink(missing_ok=True)
                point("swap", "removed")
            sync_folder(self._folder)
            point("swap", "all-removed")
            if not (self.stage / NAME).exists():
                raise StoreError("the store was copied while it was changed; copy it again, or prepare anew")
            os.replace(self.stage / NAME, self._folder / NAME)
            sync_folder(self._folder)
            point("swap", "done")
            self.clear()

    def give_up(self) -> None:
        """Remove the stage after an error, unless the note is there: then the change goes on with the next command."""
        with contextlib.suppress(OSError, StoreError):
            if read_changing(self._folder) is None:
                self.clear()

    def clear(self) -> None:
        """Remove the stage."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.stage)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Swap]:
    """Keep everybody else from changing a store; a change that is under way is waited for."""
    with contextlib.ExitStack() as locks:
        with disk_errors():
            locks.callback(os.close, claim(folder / LOCK, wait=True))
        yield Swap(folder, locks)


def end_interrupted(folder: Path) -> None:
    """End a swap that a kill has interrupted, and remove what was staged for one that never began."""
    try:
        read_info(folder)
    except ChangingStoreError:
        with alone(folder) as swap:
            if read_changing(folder) is not None:  # another process may have ended it
                swap.claim_writers()
                swap.finish()
    except StoreError:
        return  # said by whoever opens the store
    if (folder / STAGE).exists():
        with contextlib.suppress(StoreBusyError), contextlib.ExitStack() as locks:
            locks.callback(os.close, claim(folder / LOCK))  # busy: somebody fills it just now
            if read_changing(folder) is None:
                shutil.rmtree(folder / STAGE, ignore_errors=True)
