"""Continuing a store: it must hold what the recipe would store today.

A recording is stored once and never read again. So an edited table of labels, other subjects or a replaced file would
show in the new recordings only. ``change.py`` writes the lines anew where labels, subjects or events differ. Replaced
files are refused, and in stores of earlier releases all of these. A source that was moved or renamed is found by its
content, unless the corpus keeps its own ids.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NoReturn

from cerebro_eeg.data.storing import fingerprint
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError

_SHOWN = 3

Changes = dict[str, list[str]]
"""Ids by the kind of change."""


GONE = "the source is not there any more, or holds something else"
OTHER_SUBJECT = "another subject"
_SIZE = "another size of the source"
REPLACED = (GONE, _SIZE)
"""The changes after which a recording cannot be made again; the others concern its line alone."""


def check_same(store: Store, items: Mapping[str, Item]) -> None:
    """Refuse to continue where labels, subjects, sizes or the list of sources differ from the stored ones."""
    changes = find_changes(store, items)
    if changes:
        refuse_changes(changes)


def find_changes(store: Store, items: Mapping[str, Item]) -> Changes:
    """Find stored recordings whose labels, subject, events, size or source differ from those of the items."""
    changes: Changes = defaultdict(list)
    for record in store.recordings:
        item = items.get(record.id)
        if item is None:
            changes[GONE].append(record.id)
            continue
        for task in sorted(set(record.labels) | set(item.labels)):
            if record.labels.get(task) != (tuple(item.labels[task]) if task in item.labels else None):
                changes[f"other labels of task {task!r}"].append(record.id)
        if record.subject != item.subject:
            changes[OTHER_SUBJECT].append(record.id)
        if item.stated is not None and record.events != item.stated:
            changes["other events"].append(record.id)
        if item.size and record.source_bytes != item.size:
            changes[_SIZE].append(record.id)
    return changes


def check_sources(
    store: Store, items: Mapping[str, Item], seal: bytes, comparing: Callable[[int, int], None] | None = None
) -> None:
    """Refuse to continue where the source of one of these recordings has other bytes than the stored one.

    Only sources whose sizes or times have changed are read; ``comparing`` is called with their number and their bytes.
    """
    touched: dict[str, str] = {}  # what the content was, by id
    changes: Changes = defaultdict(list)
    for record in store.recordings:
        item, known = items.get(record.id), store.fingerprint(record.id)
        if item is None or not item.files or not known:
            continue
        look, content = fingerprint.halves(known)
        try:
            if fingerprint.look(seal, record.id, item.files, item.told) != look:
                touched[record.id] = content
        except OSError:
            changes["the source cannot be read any more"].append(record.id)
    if touched and comparing is not None:
        comparing(len(touched), sum(items[id].size for id in touched))
    for id, content in touched.items():
        try:
            if fingerprint.content(seal, id, items[id].files, items[id].told) != content:
                changes["another source in the place of the one that was stored"].append(id)
        except OSError:
            changes["the source cannot be read any more"].append(id)
    if changes:
        refuse_changes(changes)


def refuse_changes(changes: Mapping[str, list[str]]) -> NoReturn:
    """Raise an error that lists the changes, with a few ids of each."""
    listed = "; ".join(
        f"{what} ({len(ids):,}: {', '.join(ids[:_SHOWN])}{', ...' if len(ids) > _SHOWN else ''})"
        for what, ids in changes.items()
    )
    raise ConfigError(
        f"what the store holds differs from what would be stored now: {listed}; give it the files, tables and "
        "options that it was made with, or prepare into another folder"
    )
