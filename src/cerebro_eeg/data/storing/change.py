"""Change: a store goes on with other options, and only the recordings that these concern are prepared again.

For each stored recording it is decided whether a fresh preparation with the new options would store the same samples:

- labels, splits, subjects, events and the description of tasks concern no sample: lines are written anew;
- options of channels and ``unit``: the source is opened with the old and with the new ones, without reading its
  samples, and the columns that it would give are compared;
- the policy for bad channels concerns recordings that have some; the mains frequency those with another notch;
- everything else, such as the pass-band, concerns all.

The recordings that are not kept leave the store, together with the list of what was skipped, in one step that a kill
cannot halve (``swap.py``). What is left is an unfinished store with the new options, and ``prepare`` goes on with it.
So the result is bit for bit the store that a fresh preparation makes. Where more than half of the samples would go,
the change is refused unless the user has asked for it.
"""

import contextlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from cerebro_eeg.data.filtering.plan import plan_filters
from cerebro_eeg.data.filtering.quality import FAULTS
from cerebro_eeg.data.reading.arrays import is_plain
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.job import (
    LABELS_OUTSIDE,
    RECIPE_VERSION,
    Job,
    label_faults,
    mains_of,
    subject_of,
    wanted_events,
)
from cerebro_eeg.data.storing.mains import NAME as MAINS
from cerebro_eeg.data.storing.mains import Look, decide, table_text
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.records import StoredRecording, check
from cerebro_eeg.data.storing.resume import (
    GONE,
    OTHER_SUBJECT,
    REPLACED,
    Changes,
    check_sources,
    find_changes,
    refuse_changes,
)
from cerebro_eeg.data.storing.rewrite import stage_shards
from cerebro_eeg.data.storing.skip_log import TRANSIENT
from cerebro_eeg.data.storing.speed import SPEED
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import (
    FORMAT,
    NAME,
    StoreInfo,
    info_text,
    list_differences,
    read_info,
    this_transforms,
)
from cerebro_eeg.data.storing.swap import Swap, alone, end_interrupted
from cerebro_eeg.data.storing.workers import in_own_process, reason_of
from cerebro_eeg.errors import ConfigError, StoreError
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import counted, in_bytes, in_time

_ARRAYS = ("sfreq", "channels_from")  # options that concern arrays of numbers alone
_LINES = ("split_unit", "tasks", "events")  # settings that concern no sample
_SHOWN = 3
_ONE_SIDED = re.compile(
    r"tasks\.(\S+) is (?:(absent) in the store, .* was asked for|.* in the store, absent was asked for)"
)


@dataclass(frozen=True)
class Changed:
    """What a change of options has done to a store, before anything was prepared again."""

    differences: tuple[str, ...]
    """What is different, in words."""
    recordings: int
    """Recordings that the store had."""
    again: dict[str, int]
    """Recordings whose samples are prepared again, by the reason."""
    left: int
    """Recordings that the new options leave out."""
    rewritten: int
    """Recordings whose samples stay, and whose labels, subject or events are new."""
    hash_before: str = field(repr=False)

    @property
    def kept(self) -> int:
        """Recordings whose samples stay."""
        return self.recordings - sum(self.again.values()) - self.left

    def text(self) -> str:
        """Return it in one line."""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.again.items())
        words = [f"{self.kept:,} of {counted(self.recordings, 'stored recording')} keep their samples"]
        words += [f"{self.rewritten:,} of them get other labels, subjects or events"] if self.rewritten else []
        words += [f"{sum(self.again.values()):,} prepared again ({reasons})"] if self.again else []
        words += [f"{self.left:,} left out"] if self.left else []
        return "; ".join(words)


@dataclass(frozen=True)
class Inquiry:
    """What must be looked at to know whether a recording would be the same; it travels to another process."""

    job: Job
    everything: bool
    """Whether all samples would be others."""
    before: ChannelPolicy | None
    """The policy that the store was made with, where it was another one."""
    unit: bool
    arrays: bool
    """Whether what was said about arrays of numbers is another."""
    quality: bool
    mains: bool
    events: bool
    vote: bool
    """Whether a setting differs that may change what recordings show of the mains."""


Verdict = StoredRecording | str | None
"""None for a recording that stays as it is, its new line, or in one word why it is prepared again."""


def change_store(
    job: Job,
    items: Mapping[str, Item],
    wanted: Mapping[str, Any],
    key_check: str | None,
    seal: bytes,
    *,
    left_out: Callable[[], Collection[str]],
    anew: bool,
    look: Look,
    apart: bool,
    workers: int,
    comparing: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Changed | None:
    """Change a store that was made with other options; None where nothing differs, or where a change is not possible.

    ``left_out`` finds the ids of recordings that the options leave out. With ``apart`` sources are opened in another
    process. Sources that are gone or replaced are refused, as ever.
    """
    folder = job.folder
    end_interrupted(folder)
    asked = StoreInfo(job.recipe.name, json.loads(json.dumps(wanted, allow_nan=False)), key_check)
    with contextlib.suppress(StoreError):  # another process may be about to change it: then wait, and look again
        if not can_change(read_info(folder), asked) or not _find(folder, asked, items, left_out):
            return None
    with alone(folder) as swap:
        if not can_change(read_info(folder), asked) or not _find(folder, asked, items, left_out):
            return None
        swap.claim_writers()
        found = _find(folder, asked, items, left_out)  # with everything that they have stored
        if found is None:
            return None
        store, differences, left, changes = found
        check_sources(store, {id: item for id, item in items.items() if id not in left}, seal, comparing)
        return _change(swap, store, job, items, asked, differences, left, changes, anew, look, apart, workers, say)


def can_change(found: StoreInfo, asked: StoreInfo) -> bool:
    """Return whether a store is of this release, corpus and key; others are continued as they are, or not at all."""
    versions = {found.settings.get("version"), asked.settings["version"], RECIPE_VERSION}
    same = (found.dataset, found.key_check) == (asked.dataset, asked.key_check)
    return same and found.format == FORMAT and len(versions) == 1


def _find(
    folder: Path, asked: StoreInfo, items: Mapping[str, Item], left_out: Callable[[], Collection[str]]
) -> tuple[Store, list[str], set[str], Changes] | None:
    """Find what differs between a store and what is asked for; None for nothing."""
    store = Store(folder)
    differences = list(list_differences("", store.info.settings, asked.settings))
    changes = find_changes(store, items)
    left: set[str] = set()
    if changes.get(GONE):
        there = {id.partition(".")[0] for id in left_out()}
        left = {id for id in changes[GONE] if id.partition(".")[0] in there}  # of copies one has .2 behind its id
        changes[GONE] = [id for id in changes[GONE] if id not in left]
    refused = {kind: ids for kind, ids in changes.items() if kind in REPLACED and ids}
    if refused:
        refuse_changes(refused)
    changes = {kind: ids for kind, ids in changes.items() if ids}
    return (store, differences, left, changes) if differences or left or changes else None


def _change(
    swap: Swap,
    store: Store,
    job: Job,
    items: Mapping[str, Item],
    asked: StoreInfo,
    differences: Sequence[str],
    left: set[str],
    changes: Changes,
    anew: bool,
    look: Look,
    apart: bool,
    workers: int,
    say: Callable[[str], None] | None,
) -> Changed:
    words = [*map(_short, differences), *(f"{kind} ({len(ids):,})" for kind, ids in changes.items())]
    words += [f"left out ({len(left):,})"] if left else []
    inquiry = _ask(job, store.info.settings, asked.settings)
    if inquiry.everything and not anew and store.recordings:
        count, size = len(store.recordings), sum(record.bytes for record in store.recordings)
        _refuse(words, count, count, size, workers)  # before anything is read
    if say is not None and not inquiry.everything:
        say(f"other options than the store has: {_some(words)}; finding out which recordings they concern")
    put: dict[str, str] = {}
    remove: list[str] = []
    if inquiry.vote or left or OTHER_SUBJECT in changes:
        voting = job.choices.mains is None and job.recipe.mains is None
        table = None
        if voting and any(item.mains is None for item in items.values()):
            made = decide({id: item for id, item in items.items() if item.mains is None}, job.recipe.policy, look)
            table = made if any(choice.votes for choice in made.sets.values()) else None
            job = replace(job, mains=made)
        put.update({MAINS: table_text(table)} if table is not None else {})
        remove += [MAINS] if table is None else []
        inquiry = replace(inquiry, job=job, mains=True)
    records = [record for record in store.recordings if record.id not in left]
    pairs = [(record, items[record.id]) for record in records]
    verdicts = dict(zip((r.id for r in records), (_judge_apart if apart else judge)(inquiry, pairs), strict=True))
    new: dict[str, StoredRecording | None] = dict.fromkeys(left)
    new.update({id: None if isinstance(v, str) else v for id, v in verdicts.items() if v is not None})
    changed = Changed(
        differences=tuple(words),
        recordings=len(store.recordings),
        again=dict(sorted(Counter(v for v in verdicts.values() if isinstance(v, str)).items())),
        left=len(left),
        rewritten=sum(isinstance(v, StoredRecording) for v in verdicts.values()),
        hash_before=store.hash(),
    )
    lost = sum(record.bytes for record in store.recordings if record.id in new and new[record.id] is None)
    total = sum(record.bytes for record in store.recordings)
    if 2 * lost > total and not anew:
        _refuse(words, changed.recordings - changed.kept, changed.recordings, lost, workers)
    if say is not None:
        say(f"{changed.text()}; the hash of the store was {changed.hash_before}")
    swap.begin()
    try:
        shards, gone = stage_shards(job.folder, swap.stage, new)
        for name, text in put.items():
            write_text(swap.stage / name, text)
        info = replace(store.info, settings=asked.settings)
        if not changed.kept:
            info = replace(info, transforms=this_transforms())
        write_text(swap.stage / NAME, info_text(info))
        logs = [path.name for path in job.folder.glob("*.skipped.csv")]  # all are tried again, with the new options
        swap.commit([*shards, *put], [*gone, *remove, *logs, "skipped.csv"])
    except BaseException:
        swap.give_up()
        raise
    return changed


def _ask(job: Job, old: Mapping[str, Any], new: Mapping[str, Any]) -> Inquiry:
    """Compare settings; a field that is not known here concerns everything."""

    def differing(name: str) -> bool:
        return bool(old.get(name) != new.get(name)) or (name in old) != (name in new)

    names = {name for name in old.keys() | new.keys() if differing(name)}
    options = {
        k for k in old["options"].keys() | new["options"].keys() if old["options"].get(k) != new["options"].get(k)
    }
    known = {field.name for field in fields(ChannelPolicy)}
    before = None
    everything = bool(names - {*_LINES, "channels", "mains", "quality", "options"} or options - {"unit", *_ARRAYS})
    if "channels" in names:
        everything |= not old["channels"].keys() <= known
        before = replace(job.recipe.policy, **old["channels"]) if not everything else None
    return Inquiry(
        job,
        everything,
        before,
        unit="unit" in options,
        arrays=bool(options & {"unit", *_ARRAYS}),
        quality="quality" in names,
        mains="mains" in names,
        events="events" in names,
        vote=bool(names - {*_LINES, "quality"}),
    )


def judge(asked: Inquiry, pairs: Sequence[tuple[StoredRecording, Item]]) -> list[Verdict]:
    """Decide about each stored recording."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
        return [_judge(asked, record, item) for record, item in pairs]


def _judge(asked: Inquiry, record: StoredRecording, item: Item) -> Verdict:
    if asked.everything:
        return "all samples"
    if asked.quality and any(record.quality.get(fault) for fault in FAULTS):
        return "bad channels"
    opened = _Opened(item, asked.job.recipe.policy)
    try:
        if asked.arrays and item.files and is_plain(item.files[0]):
            return "arrays"
        if asked.unit and ("unit" in record.faults or any(fault.code == "unit" for fault in opened().faults)):
            return "unit"
        if asked.before is not None and not _gives_the_same(item.open(asked.before), opened()):
            return "channels"
        if asked.mains:
            mains = mains_of(asked.job, item, opened)
            notch = None if mains is None else plan_filters(record.native_sfreq, asked.job.recipe.signal, mains or None)
            if notch is None or notch.notch != record.mains:
                return "mains"
        new = _new_line(asked, record, item, opened)
        return None if new == record else new
    except StoreError:
        raise
    except Exception as error:
        skip = reason_of(error)
        if skip.code in TRANSIENT:
            raise StoreError(
                f"the source of a stored recording cannot be read at present ({skip.why}), so nothing was changed; see "
                "that disk and network are there, then run the same command again"
            ) from None
        return skip.code


class _Opened:
    """Opens a source once, when it is asked for."""

    def __init__(self, item: Item, policy: ChannelPolicy) -> None:
        self._item, self._policy = item, policy
        self._recording: Recording | None = None

    def __call__(self) -> Recording:
        self._recording = self._recording or self._item.open(self._policy)
        return self._recording


def _gives_the_same(before: Recording, now: Recording) -> bool:
    """Return whether two openings of one file read the same samples: equal columns of it, under equal names."""
    one, other = (
        (r.sfreq, r.segments, r.match.index, r.match.channels, sorted({fault.code for fault in r.faults}))
        for r in (before, now)
    )
    return one == other


def _new_line(asked: Inquiry, record: StoredRecording, item: Item, opened: _Opened) -> StoredRecording:
    """Return the line of a recording whose samples stay, as a fresh preparation would write it."""
    labels = {task: tuple(intervals) for task, intervals in dict(item.labels).items()}
    faults = set(record.faults)
    if labels != record.labels:
        last = record.segments[-1]
        end = last.onset + (last.stop - last.start) / record.sfreq - 1.0  # the last second may have rounded
        if label_faults(labels, end):
            end = opened().end
        faults = faults - {LABELS_OUTSIDE} | label_faults(labels, end)
    events = record.events
    if item.stated is not None:
        events = tuple(wanted_events(item, item.stated))
    elif asked.events:
        events = tuple(wanted_events(item, opened().events)) if item.events is None or item.events else ()
    return check(replace(record, subject=subject_of(item), labels=labels, events=events, faults=tuple(sorted(faults))))


def _judge_apart(asked: Inquiry, pairs: Sequence[tuple[StoredRecording, Item]]) -> list[Verdict]:
    """Decide in a process of its own; a source that ends it is found by halves, and prepared again."""
    if not pairs:
        return []
    found = in_own_process(judge, asked, pairs)
    if found is not None:
        return found
    half = len(pairs) // 2
    return _judge_apart(asked, pairs[:half]) + _judge_apart(asked, pairs[half:]) if half else ["crash"]


def _refuse(words: Sequence[str], count: int, total: int, lost: int, workers: int) -> NoReturn:
    seconds = lost / 2 / SPEED / max(1, workers)
    raise ConfigError(
        f"other options than the store has: {_some(words)}; they concern the samples of {count:,} of "
        f"{counted(total, 'stored recording')}, {in_bytes(lost)} that take about {in_time(seconds)} to "
        "prepare again: give --anew to do so in this folder, prepare into another folder to keep this store, or ask "
        "for the same as before"
    )


def _short(difference: str) -> str:
    """Leave out how a task is described that only one side has."""
    return _ONE_SIDED.sub(lambda found: f"task {found[1]} is {'new' if found[2] else 'gone'}", difference)


def _some(words: Sequence[str]) -> str:
    more = f"; and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more
