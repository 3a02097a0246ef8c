"""Job: what is to be done with every recording of a corpus, and how one of them is done."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cerebro_eeg.data.filtering import references
from cerebro_eeg.data.filtering.filters import run
from cerebro_eeg.data.filtering.mains import estimate_mains
from cerebro_eeg.data.filtering.plan import plan_filters
from cerebro_eeg.data.filtering.quality import Policy, Thresholds, choose, count
from cerebro_eeg.data.filtering.quality_meter import measure
from cerebro_eeg.data.reading.edf import late_faults
from cerebro_eeg.data.reading.recording import Event, Recording
from cerebro_eeg.data.storing import keys
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.stored import is_id
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import InputError, RecordingError
from cerebro_eeg.schema import to_dict

RECIPE_VERSION = 1
"""Raised when the same files would be stored differently: stores of other versions are refused."""


@dataclass(frozen=True)
class Choices:
    """What a user may choose about a preparation; it all goes into ``store.json``."""

    mains: float | None = None
    """Mains frequency in Hz; None: the corpus's own, or estimated for each recording."""
    quality: Policy = "keep"
    """What becomes of channels that are flat, clipped, disconnected or absurdly scaled."""
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know; it travels to other processes."""

    folder: Path
    recipe: Recipe
    choices: Choices
    key: bytes | None
    """None where the corpus keeps its own ids."""


def settings(job: Job) -> dict[str, Any]:
    """What a store was made with; two stores with equal settings and equal files are equal."""
    policy = {name: value for name, value in vars(job.recipe.policy).items() if name != "trained"}
    return {
        "version": RECIPE_VERSION,
        "recipe": job.recipe.name,
        "signal": to_dict(job.recipe.signal),
        "channels": {name: _plain(value) for name, value in policy.items()},
        "mains": job.choices.mains if job.choices.mains is not None else job.recipe.mains,
        "quality": job.choices.quality,
        "thresholds": to_dict(job.choices.thresholds),
        "split_unit": job.recipe.split_unit,
        "tasks": {name: to_dict(task) for name, task in sorted(job.recipe.tasks.items())},
    }


def _plain(value: Any) -> Any:
    """As JSON has it; a set in an order that does not change from process to process."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def name_of(job: Job, item: Item) -> str:
    """The id of a recording: its own, or a keyed hash of its name."""
    if job.key is not None:
        return keys.make_id(job.key, "recording", item.name)
    if not is_id(item.name):
        raise InputError(f"the corpus has a recording whose id cannot be used: {item.name!r:.60}")
    return item.name


def store_one(job: Job, writer: ShardWriter, id: str, item: Item) -> None:
    """Read, check, filter and store one recording; a RecordingError or ChannelError says why it cannot be."""
    opened = item.open(job.recipe.policy)
    measured = measure(opened, job.choices.thresholds)
    columns = choose(opened.match.channels, measured, job.choices.thresholds, job.choices.quality)
    recording = with_columns(opened, columns)
    kept = recording.match.channels
    mains = _mains(job, item, recording)
    plan = plan_filters(recording.sfreq, job.recipe.signal, mains)
    kind = job.recipe.signal.reference
    _, names = references.rereference(recording.read(0, 0), kept, kind)
    with writer.recording(id, [channel.name for channel in names], plan.new_rate) as draft:
        stretch = -1
        for block in run(recording, plan):
            if block.stretch != stretch:
                draft.segment(block.onset, short=block.short)
                stretch = block.stretch
            draft.write(references.rereference(block.signal, kept, kind)[0])
        draft.commit(
            native_sfreq=recording.sfreq,
            subject=_subject(job, item),
            events=[Event(e.onset, e.duration, e.name) for e in recording.events if e.name in item.events],
            labels=item.labels,
            mains=plan.notch,
            faults=sorted({fault.code for fault in (*opened.faults, *late_faults(opened))}),
            quality=count(measured, job.choices.thresholds),
            source_bytes=item.size,
        )


def with_columns(recording: Recording, columns: Sequence[int]) -> Recording:
    """The recording with some of its channels."""
    if len(columns) == len(recording.match.channels):
        return recording
    chosen = list(columns)
    kept = {recording.match.index[column] for column in chosen}
    rows = tuple(
        row
        if row.channel is None or row.index in kept
        else replace(row, channel=None, outcome="dropped", note="flat, clipped, disconnected or scaled")
        for row in recording.match.rows
    )
    return replace(
        recording,
        match=replace(recording.match, rows=rows),
        read=lambda start, stop: recording.read(start, stop)[:, chosen],
    )


def _mains(job: Job, item: Item, recording: Recording) -> float | None:
    for known in (job.choices.mains, item.mains, job.recipe.mains):
        if known is not None:
            return known
    return estimate_mains(recording)


def _subject(job: Job, item: Item) -> str | None:
    if item.subject is not None and job.key is not None:
        return keys.make_id(job.key, "subject", item.subject)
    if item.subject is not None and not is_id(item.subject):
        raise RecordingError("subject", "the corpus's name of the subject cannot be used as an id; mend it")
    return item.subject
