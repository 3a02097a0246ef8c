"""Undo: a preparation that fails before anything is stored or skipped leaves nothing behind.

Of a store that was there before, of one that holds something and of one that others may be adding to (``--part``)
nothing is taken away.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from cerebro_eeg.data.storing.shards import claim
from cerebro_eeg.data.storing.store_info import NAME
from cerebro_eeg.errors import StoreError
from cerebro_eeg.files import absent, remove_empty

_HELD = (".lock", ".skipped.csv")  # whoever writes holds these
_TOLD = (".jsonl", ".skipped.csv")  # whatever is stored or skipped has a line in one of these


@contextlib.contextmanager
def undone(folder: Path, name: str) -> Iterator[None]:
    """Where the block fails, a store that it made and that holds nothing goes again; ``name`` begins its shards."""
    made, new = absent(folder), not (folder / NAME).exists()
    try:
        yield
    except Exception:
        if new:
            with contextlib.suppress(OSError, StoreError):  # in use, or not ours to change: then it stays
                _take_away(folder, name)
                remove_empty(made)
        raise


def _take_away(folder: Path, name: str) -> None:
    files = sorted(folder.glob(f"{name}-*"))
    with contextlib.ExitStack() as held:
        for path in files:
            if path.name.endswith(_HELD):
                held.callback(os.close, claim(path))
        if any(path.stat().st_size for path in files if path.name.endswith(_TOLD)):
            return
        for path in (*files, folder / NAME):  # its name last: a kill in between leaves an empty store
            path.unlink(missing_ok=True)
