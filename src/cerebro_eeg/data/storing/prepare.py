"""Prepare: reads, checks, filters, resamples and stores every recording of a recipe, or skips it with a reason.

Work is divided by recording. A worker owns a shard, so it waits for no lock and nothing must be merged. A run that is
killed at any moment and started again continues where the store ends. The store's hash does not depend on how the work
was divided. One bad file never stops the run.

``Prepared`` counts the result over the whole store, with the points that its owner should look at.
"""

import contextlib
import functools
import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing import privacy
from cerebro_eeg.data.storing.change import Changed, change_store
from cerebro_eeg.data.storing.dask import run_on_dask
from cerebro_eeg.data.storing.ids import make_ids
from cerebro_eeg.data.storing.job import Job, PrepareChoices, settings, with_choices
from cerebro_eeg.data.storing.mains import NAME as MAINS
from cerebro_eeg.data.storing.mains import Vote, find_table, look_at
from cerebro_eeg.data.storing.privacy import add_to_map, read_map, warn_of_alike
from cerebro_eeg.data.storing.recipe import Item, Recipe, refuse, source_errors
from cerebro_eeg.data.storing.records import WHOLE, StoredRecording, is_id
from cerebro_eeg.data.storing.resume import check_same, check_sources
from cerebro_eeg.data.storing.shards import claim, disk_errors
from cerebro_eeg.data.storing.skip_log import TRANSIENT, Skip, forget, read_reasons, write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import NAME, create_store, mark
from cerebro_eeg.data.storing.survey import Looked, crashed, look
from cerebro_eeg.data.storing.workers import check_start, each_apart, finished, in_own_process, run_all
from cerebro_eeg.errors import ConfigError, InputError, StoreError
from cerebro_eeg.files import absent, remove_empty

ENOUGH = 20  # recordings in a row that cannot be read: no accident
NEARLY_ALL = 0.95


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation: the contents of the store now, and how much of it was there before."""

    recordings: int
    hours: float
    montages: dict[int, int]
    """Recordings by number of channels."""
    mains: dict[str, int]
    """Recordings by mains frequency, given or estimated; "none" where none was found or filtered."""
    upsampled: int
    """Recordings whose rate was lower than the store's."""
    faults: dict[str, int]
    """Recordings by the fault of their file that was mended or tolerated."""
    quality: dict[str, tuple[int, int]]
    """Channels or samples by fault (``scaled``, ``too_large``, ...), and the number of recordings with it."""
    copies: int
    """Recordings with the samples of another one: a copied file, or one that is linked twice."""
    outside: int
    """Recordings with a label that lies mostly in unrecorded time."""
    skipped: dict[str, str]
    """Reason by id."""
    why: dict[str, str] = field(repr=False)
    """The reason in a sentence by id, where there is one."""
    passing: int
    """Skipped sources whose reason may pass; every run tries them again."""
    sources: dict[str, str] = field(repr=False)
    """Names of the skipped sources by id; they may tell who was recorded, so print them only on request."""
    hash: str
    done_before: int
    changed: Changed | None = None
    """What other options have changed; None where they are those of before."""


def summarise(
    store: Store,
    skipped: Mapping[str, Skip],
    names: Mapping[str, str],
    done_before: int,
    changed: Changed | None = None,
) -> Prepared:
    """Count over the lines of a store in one pass; ``names`` are those of the sources by id."""
    seconds, upsampled, outside = 0.0, 0, 0
    montages, mains, faults = Counter[int](), Counter[str](), Counter[str]()
    total, touched = Counter[str](), Counter[str]()
    samples = Counter[tuple[str, tuple[str, ...]]]()
    for record in store.recordings:
        seconds += record.seconds
        upsampled += record.upsampled
        outside += _has_labels_outside(record)
        montages[len(record.channels)] += 1
        mains["none" if record.mains is None else f"{record.mains:g}"] += 1
        faults.update(record.faults)
        total.update(record.quality)
        touched.update(name for name, count in record.quality.items() if count)
        samples[record.sha256, record.channels] += 1
    return Prepared(
        recordings=montages.total(),
        hours=seconds / 3600,
        montages=dict(sorted(montages.items())),
        mains=dict(sorted(mains.items())),
        upsampled=upsampled,
        faults=dict(sorted(faults.items())),
        quality={name: (total[name], touched[name]) for name in sorted(touched)},
        copies=montages.total() - len(samples),
        outside=outside,
        skipped={id: skip.code for id, skip in skipped.items()},
        why={id: skip.why for id, skip in skipped.items() if skip.why},
        passing=sum(skip.code in TRANSIENT for skip in skipped.values()),
        sources={id: names[id] for id in skipped if id in names},
        hash=store.hash(),
        done_before=done_before,
        changed=changed,
    )


def _has_labels_outside(record: StoredRecording) -> bool:
    """Return whether a label lies mostly outside, as milliseconds taken for seconds do.

    A label may end a little late, and one for the whole recording has no end.
    """
    last = record.segments[-1]
    end = last.onset + (last.stop - last.start) / record.sfreq
    return any(
        2 * (min(i.stop, end) - max(i.start, 0.0)) < i.stop - i.start
        for intervals in record.labels.values()
        for i in intervals
        if i.stop < WHOLE
    )


def prepare(
    recipe: Recipe,
    folder: Path,
    choices: PrepareChoices | None = None,
    *,
    workers: int = 0,
    dask: str | None = None,
    part: tuple[int, int] = (1, 1),
    retry: bool = False,
    anew: bool = False,
    key_file: Path | None = None,
    map_file: Path | None = None,
    comparing: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
    before: Callable[[Sequence[Item], int], None] | None = None,
    progress: Callable[[int, int, int, int], None] | None = None,
) -> Prepared:
    """Prepare ``part`` (k of n) of a corpus into a store, with ``workers`` processes or, for 0, in this one.

    ``dask`` is the address of a Dask cluster that does the work instead. ``retry`` also tries skipped sources again;
    those skipped for a reason that a disk or a network may cause are always tried again. A store that was made with
    other options is changed (``change.py``), with ``anew`` also where most of it must be prepared again. Ids are made
    with the key in ``key_file``; ``map_file`` receives the names behind the ids.

    ``comparing`` is called with the number and the bytes of stored sources that were touched since and must be read to
    compare, and ``say`` with lines for the user. ``before`` is called before anything is prepared, with the items to do
    and the number of recordings done before. ``progress`` is called after each recording with (recordings done,
    recordings in all, bytes done, bytes in all).
    """
    if not 1 <= part[0] <= part[1]:
        raise ConfigError(f"part is {part[0]}/{part[1]}; expected k/n with 1 <= k <= n")
    if workers < 0:
        raise ConfigError(f"workers is {workers}; expected 0 (this process) or more")
    if workers:
        check_start()
    choices = choices or PrepareChoices()
    job = Job(folder, with_choices(recipe, choices), choices)
    key = _key(recipe, folder, key_file, map_file)
    items, sources = _find(recipe, key)
    check = None if key is None else privacy.key_check(key)
    name = f"part{part[0]}of{part[1]}"
    made = absent(folder)
    new = part[1] == 1 and not (folder / NAME).exists()  # several parts share a store: it may belong to others
    look = look_at if workers == 0 and dask is None else _look_apart
    changed: Changed | None = None
    try:
        wanted = settings(job, items.values())
        if (folder / NAME).exists():
            changed = change_store(
                job,
                items,
                wanted,
                check,
                privacy.seal(key),
                left_out=lambda: _ids_left_out(recipe, key),
                anew=anew,
                look=look,
                apart=look is not look_at,
                workers=workers,
                comparing=comparing,
                say=say,
            )
        info = create_store(folder, recipe.name, wanted, check)
        job = replace(job, seal=privacy.seal(key) if info.format > 1 else None, mark=mark(folder))
        store = Store(folder)
        check_same(store, items)
        part_ids = [id for id in items if _belongs(id, part)]
        if job.seal is not None and changed is None:  # a change has looked at all of them
            check_sources(store, {id: items[id] for id in part_ids}, job.seal, comparing)
        if map_file is not None:
            add_to_map(map_file, sources)
        skipped = store.skipped()
        again = {id for id in part_ids if id in skipped and (retry or skipped[id] in TRANSIENT)}
        forget(folder, again | (set(skipped) - set(items)))  # the latter were moved away, or mended and have new ids
        finished = ({record.id for record in store.recordings} | set(skipped)) - again
        mine = [(id, items[id]) for id in part_ids if id not in finished]
        done_before = len(part_ids) - len(mine)
        if before is not None:
            before([item for _, item in mine], done_before)
        if mine and choices.mains is None and recipe.mains is None and any(i.mains is None for i in items.values()):
            decided = find_table(folder, items, job.recipe.policy, look)
            job = replace(job, mains=decided)
            if say is not None:
                say(decided.text())
        total, bytes_total = len(mine), sum(item.size for _, item in mine)
        done = bytes_done = passing = 0
        work = run_all(job, mine, workers, name) if dask is None else run_on_dask(job, mine, dask, name)
        with contextlib.closing(work):
            for outcome in work:
                done, bytes_done, passing = done + 1, bytes_done + outcome.size, passing + outcome.passing
                if progress is not None:
                    progress(done, total, bytes_done, bytes_total)
                _check_passing(passing, done, total)
    except Exception:
        if new:
            _remove_unused(folder, name, made)
        raise
    store = Store(folder)
    with disk_errors("read"):
        reasons = read_reasons(folder, {record.id for record in store.recordings})
    write_skipped(folder, reasons)
    return summarise(store, reasons, sources["recordings"], done_before, changed)


def _check_passing(passing: int, done: int, total: int) -> None:
    """Stop where nearly everything fails for a reason that may pass: the disk or the network is gone."""
    if passing >= ENOUGH and passing >= NEARLY_ALL * done and done < total:
        raise StoreError(
            f"{passing:,} of the first {done:,} recordings cannot be read at present, so prepare stops; see that disk "
            "and network are there, then run the same command again: what was stored is safe"
        )


def _remove_unused(folder: Path, name: str, made: Sequence[Path]) -> None:
    """Delete the store that a failed call has made, unless it holds something or another process writes to it."""
    with contextlib.suppress(OSError, StoreError), contextlib.ExitStack() as locks:
        for lock in folder.glob(f"{name}-*.lock"):
            locks.callback(os.close, claim(lock))
        if not finished(folder):
            for path in (
                *folder.glob(f"{name}-*"),
                folder / MAINS,
                folder / NAME,
            ):  # its name last: a kill leaves an empty store
                path.unlink(missing_ok=True)
            remove_empty(made)


def _look_apart(items: Sequence[Item], policy: ChannelPolicy) -> list[Vote | str]:
    """Look at recordings in a process of its own; one that ends it is found by halves and has no vote."""
    if not items:
        return []
    found = in_own_process(look_at, items, policy)
    if found is not None:
        return found
    half = len(items) // 2
    return ["unread"] if not half else _look_apart(items[:half], policy) + _look_apart(items[half:], policy)


def _key(recipe: Recipe, folder: Path, key_file: Path | None, map_file: Path | None) -> bytes | None:
    """Return the key, where the corpus needs one, and check the private files before anything is made."""
    if recipe.own_ids:
        if map_file is not None:
            raise ConfigError(f"{recipe.name} keeps the corpus's own ids, so there is nothing to map; leave --map out")
        if key_file is not None:
            raise ConfigError(
                f"{recipe.name} keeps the corpus's own ids, so no key hides them; leave --key out, or use folder or "
                "bids if its ids must be hidden"
            )
        return None
    if map_file is not None:
        privacy.check_outside(map_file, folder, "map of ids")
        read_map(map_file)
    key_file = key_file or privacy.default_key_file()
    privacy.check_outside(key_file, folder, "key")
    return privacy.read_key(key_file)


def _find(recipe: Recipe, key: bytes | None) -> tuple[dict[str, Item], dict[str, dict[str, str]]]:
    """Find all items of the corpus by id, with the subject as the store will show it, and the names behind the ids.

    Ids are made here, so that no worker needs the key.
    """
    items: dict[str, Item] = {}
    sources: dict[str, dict[str, str]] = {"recordings": {}, "subjects": {}}
    found = list(_finding(recipe))
    for item, id in zip(found, _ids(found, key), strict=True):
        subject = item.subject
        if key is not None and subject is not None:
            subject = privacy.make_id(key, "subject", subject)
        if key is None and not is_id(item.name):
            raise InputError(f"the corpus has a recording whose id cannot be used: {item.name!r:.60}")
        opening = item.open
        if isinstance(id, OSError):
            # Its content is not known, so neither is its id. Should it be readable in a moment, it must not be stored
            # under the id of its name.
            opening = functools.partial(refuse, "unreadable", _unreadable(id))
            id = privacy.make_id(key or b"", "recording", item.name)
        if id in items:  # one of the two would be lost without a word
            raise InputError(f"{recipe.name} finds two recordings with the id {id!r}; give each a name of its own")
        items[id] = replace(item, subject=subject, open=opening)
        sources["recordings"][id] = item.name
        if subject is not None:
            sources["subjects"][subject] = str(item.subject)
    if not items:
        raise InputError(f"{recipe.name} finds no recording there; check the folder")
    warn_of_alike({item.subject for item in found if item.subject is not None})
    return items, sources


def _ids_left_out(recipe: Recipe, key: bytes | None) -> set[str]:
    """Return the ids of recordings that the options leave out."""
    if recipe.others is None:
        return set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of copies
        return {id for id in _ids(list(recipe.others()), key) if isinstance(id, str)}


def _ids(items: Sequence[Item], key: bytes | None) -> Sequence[str | OSError]:
    """Return the ids of recordings: the corpus's own, or keyed hashes of their content."""
    if key is None:
        return [item.name for item in items]
    with_files = [number for number, item in enumerate(items) if item.files]
    found: dict[int, str | OSError] = dict(
        zip(with_files, make_ids(key, [items[number].files for number in with_files]), strict=True)
    )
    return [found.get(number, privacy.make_id(key, "recording", item.name)) for number, item in enumerate(items)]


def _unreadable(error: OSError) -> str:
    return f"the file cannot be read: {error.strerror or type(error).__name__}; the next run tries it again"


def _finding(recipe: Recipe) -> Iterator[Item]:
    with source_errors():
        yield from recipe.find()


def _belongs(id: str, part: tuple[int, int]) -> bool:
    """Return whether a recording belongs to a part; the id decides, so every machine divides alike."""
    return int(hashlib.sha256(id.encode()).hexdigest()[:12], 16) % part[1] == part[0] - 1


def survey(
    recipe: Recipe,
    choices: PrepareChoices | None = None,
    *,
    workers: int = 0,
    part: tuple[int, int] = (1, 1),
    key_file: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Looked]:
    """Return what ``prepare`` would make of each source of a part, without a store; heads are read, mostly no samples.

    With ``workers`` processes no file can end this one. ``progress`` is called with (sources done, sources in all).
    """
    choices = choices or PrepareChoices()
    job = Job(Path(), with_choices(recipe, choices), choices)
    key = None if recipe.own_ids else privacy.read_key(key_file or privacy.default_key_file())
    items, sources = _find(recipe, key)
    names = {id: sources["recordings"].get(id, id) for id in items}
    mine = [(id, items[id]) for id in items if _belongs(id, part)]
    calls = [(job, id, item, names[id]) for id, item in mine]
    results = each_apart(look, calls, workers) if workers else enumerate(look(*call) for call in calls)
    found: dict[int, Looked] = {}
    for number, looked in results:
        id, item = mine[number]
        found[number] = looked or crashed(id, item, names[id])
        if progress is not None:
            progress(len(found), len(mine))
    return [found[number] for number in sorted(found)]
