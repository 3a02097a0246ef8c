"""Prepare: every recording of a recipe is read, checked, filtered, resampled and stored, or skipped with a reason.

Work is divided by recording. A worker owns a shard, so there are no locks to wait for and nothing to merge; killed at
any moment and started again, it goes on where the store ends, and the store's hash does not depend on how the work was
divided. One bad file never stops the run.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cerebro_eeg.data.storing import keys
from cerebro_eeg.data.storing.job import Choices, Job, name_of, settings
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.skipped import write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.workers import run_all
from cerebro_eeg.errors import ConfigError, InputError


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
    for size in run_all(job, mine, workers, part):
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


def _belongs(id: str, part: tuple[int, int]) -> bool:
    """Whether a recording belongs to a part; by its id, so that every machine divides alike."""
    return int(hashlib.sha256(id.encode()).hexdigest()[:12], 16) % part[1] == part[0] - 1
