"""Going on with a store: what it holds must be what the recipe would store today.

A recording is stored once and never read again, so a table of labels that was edited meanwhile, other subjects or a
file that was replaced would show in the new recordings only. That is refused instead.
"""

from collections import defaultdict
from collections.abc import Mapping

from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError

_SHOWN = 3


def check_same(store: Store, items: Mapping[str, Item]) -> None:
    """Refuse to go on where labels, subjects, sizes or the list of sources differ from what was stored."""
    changes: dict[str, list[str]] = defaultdict(list)  # ids by what has changed
    for record in store.recordings:
        item = items.get(record.id)
        if item is None:
            changes["the source is not found any more"].append(record.id)
            continue
        for task in sorted(set(record.labels) | set(item.labels)):
            if record.labels.get(task) != (tuple(item.labels[task]) if task in item.labels else None):
                changes[f"other labels of task {task!r}"].append(record.id)
        if record.subject != item.subject:
            changes["another subject"].append(record.id)
        if item.stated is not None and record.events != item.stated:
            changes["other events"].append(record.id)
        if item.size and record.source_bytes != item.size:
            changes["another size of the source"].append(record.id)
    if changes:
        listed = "; ".join(
            f"{what} ({len(ids):,}: {', '.join(ids[:_SHOWN])}{', ...' if len(ids) > _SHOWN else ''})"
            for what, ids in changes.items()
        )
        raise ConfigError(
            f"what the store holds differs from what would be stored now: {listed}; give it the files, tables and "
            "options that it was made with, or prepare into another folder"
        )
