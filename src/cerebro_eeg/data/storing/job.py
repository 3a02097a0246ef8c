"""Job: the settings for all recordings of a corpus, and ``store_one``, which prepares one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cerebro_eeg.channels.match import check_policies
from cerebro_eeg.data.filtering import references
from cerebro_eeg.data.filtering.quality import Policy, Thresholds
from cerebro_eeg.data.preprocess import Preprocessed, plan_unread, preprocess
from cerebro_eeg.data.reading.recording import Event, Recording
from cerebro_eeg.data.storing import fingerprint
from cerebro_eeg.data.storing.mains import MainsTable
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.records import Interval, is_id
from cerebro_eeg.data.storing.store_info import mark
from cerebro_eeg.data.storing.writer import NO_SAMPLE, ShardWriter
from cerebro_eeg.errors import RecordingError, StoreError
from cerebro_eeg.schema import to_dict

RECIPE_VERSION = 3
"""Raised when the same files would be stored differently; stores of other versions are read, but not continued."""


@dataclass(frozen=True)
class PrepareChoices:
    """The choices of a user about a preparation; all of them go into ``store.json``."""

    mains: float | None = None
    """Mains frequency in Hz; None takes the corpus's own, or lets recordings vote (``mains.py``)."""
    quality: Policy = "keep"
    """What becomes of channels that are flat, clipped, disconnected or absurdly scaled."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    reference: references.Reference | None = None
    """The reference of the channels; None takes the recipe's."""
    causal: bool = False
    """Use filters that never look ahead, for streams, instead of the recipe's."""
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None = None
    """What becomes of channels whose labels are not understood; None takes the recipe's rule."""
    too_many: Literal["error", "nearest"] | None = None
    """What becomes of a recording with more than ``max_channels``; None takes the recipe's rule."""
    max_channels: int | None = None
    names: Mapping[str, str] | None = None
    """The electrode by a channel's name in the files, "" for channels that are left out; None takes the recipe's."""


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to know; it travels to other processes."""

    folder: Path
    recipe: Recipe
    choices: PrepareChoices
    seal: bytes | None = None
    """Key for the fingerprints of sources; None where the store has none."""
    mains: MainsTable | None = None
    """The decisions for recordings whose mains frequency nobody states."""
    mark: str = ""
    """The hash of the store.json that the work is for; empty for any."""

    def check_mark(self) -> None:
        """Refuse to write to a store whose options another process has changed."""
        if self.mark and mark(self.folder) != self.mark:
            raise StoreError("another prepare has changed the options of this store; what was stored is safe")


def with_choices(recipe: Recipe, choices: PrepareChoices) -> Recipe:
    """Return the recipe with the user's choices in the place of its own, so that the settings include them."""
    signal, policy = recipe.signal, recipe.policy
    if choices.reference is not None:
        signal = replace(signal, reference=choices.reference)
    if choices.causal:
        signal = replace(signal, filter_phase="causal")
    if choices.unknown is not None:
        policy = replace(policy, unknown=choices.unknown)
    if choices.too_many is not None:
        policy = replace(policy, too_many=choices.too_many)
    if choices.max_channels is not None:
        policy = replace(policy, max_channels=choices.max_channels)
    if choices.names is not None:
        policy = replace(policy, names={**(policy.names or {}), **choices.names})
    check_policies(policy.unknown, policy.untrained, policy.duplicates, policy.too_many, policy.max_channels)
    return replace(recipe, signal=signal, policy=policy)


def settings(job: Job, items: Iterable[Item]) -> dict[str, Any]:
    """Return the settings of a store; two stores with equal settings and equal files are equal."""
    listed = [item.events for item in items]
    events = "all" if None in listed else sorted({name for names in listed for name in names or ()})
    policy = {name: value for name, value in vars(job.recipe.policy).items() if name not in ("trained", "bads")}
    return {
        "version": RECIPE_VERSION,
        "recipe": job.recipe.name,
        "signal": to_dict(job.recipe.signal),
        "channels": {name: _plain(value) for name, value in policy.items()},
        "mains": job.choices.mains if job.choices.mains is not None else job.recipe.mains,
        "quality": job.choices.quality,
        "thresholds": to_dict(job.choices.thresholds),
        "split_unit": job.recipe.split_unit,
        "tasks": {
            name: to_dict(replace(task, split_unit=task.split_unit or job.recipe.split_unit))
            for name, task in sorted(job.recipe.tasks.items())
        },
        "events": events,
        "options": dict(sorted(job.recipe.options.items())),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; a set becomes sorted, the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def store_one(job: Job, writer: ShardWriter, id: str, item: Item) -> None:
    """Read, check, filter and store one recording; a RecordingError or ChannelError says why it cannot be.

    The item's subject is the id that the store shows.
    """
    before = _look(job, id, item)
    opened = item.open(job.recipe.policy)
    prepared = preprocess(
        opened,
        job.recipe.signal,
        thresholds=job.choices.thresholds,
        quality=job.choices.quality,
        mains=mains_of(job, item, lambda: opened),
    )
    recording, plan = prepared.recording, prepared.plan
    labels = dict(item.labels)  # some recipes read them now
    with writer.recording(id, [channel.name for channel in prepared.channels], plan.new_rate) as draft:
        stretch = -1
        for block in prepared.blocks():
            if block.stretch != stretch:
                draft.segment(block.onset, short=block.short)
                stretch = block.stretch
            draft.write(block.signal)
        codes = {fault.code for fault in prepared.checked.faults}
        job.check_mark()
        draft.commit(
            native_sfreq=recording.sfreq,
            subject=subject_of(item),
            events=wanted_events(item, recording.events),
            labels=labels,
            mains=plan.notch,
            faults=sorted(codes | label_faults(labels, recording.end)),
            quality=prepared.checked.count_faults(),
            source_bytes=item.size,
            source=_fingerprint(job, id, item, before),
        )


def plan_one(job: Job, item: Item) -> Preprocessed:
    """Do what ``store_one`` does before it writes, with the same errors, and read samples only where it takes some.

    Only a quality policy that drops or refuses takes samples. What else only samples show is not checked: damage in
    the middle of a file, and a recording without one finite sample.
    """
    opened = item.open(job.recipe.policy)
    mains = mains_of(replace(job, mains=None), item, lambda: opened) or 0.0  # no vote is held for a look
    if job.choices.quality == "keep":
        prepared = plan_unread(opened, job.recipe.signal, mains=mains)
    else:
        thresholds, quality = job.choices.thresholds, job.choices.quality
        prepared = preprocess(opened, job.recipe.signal, thresholds=thresholds, quality=quality, mains=mains)
    dict(item.labels)
    subject_of(item)
    if not opened.samples:
        raise RecordingError("empty", NO_SAMPLE)
    return prepared


def _look(job: Job, id: str, item: Item) -> str | None:
    """Look at the files before they are read; None where that fails, since opening will raise the reason."""
    if job.seal is None or not item.files:
        return None
    try:
        return fingerprint.look(job.seal, id, item.files, item.told)
    except OSError:
        return None


def _fingerprint(job: Job, id: str, item: Item, before: str | None) -> str:
    """Return the fingerprint of the files just read, mostly still in memory; empty where there is none."""
    if job.seal is None or before is None:
        return ""
    found = fingerprint.take(job.seal, id, item.files, item.told)
    after = fingerprint.look(job.seal, id, item.files, item.told)
    if not before == after == fingerprint.halves(found)[0]:
        raise RecordingError("changed", "the source was changed while it was read; it is tried again by the next run")
    return found


def mains_of(job: Job, item: Item, opened: Callable[[], Recording]) -> float | None:
    """Return the mains frequency of a recording, 0 for none; None where the recording itself must show it.

    ``opened`` is called only where the decision needs the recording.
    """
    for known in (job.choices.mains, item.mains, job.recipe.mains):
        if known is not None:
            return known
    return None if job.mains is None else job.mains.of(item, opened)


def wanted_events(item: Item, events: Iterable[Event]) -> list[Event]:
    """Return the events that may go into the store."""
    return [event for event in events if item.events is None or event.name in item.events]


LABELS_OUTSIDE = "labels_outside"


def label_faults(labels: Mapping[str, Sequence[Interval]], end: float) -> set[str]:
    """Return ``labels_outside`` where a label lies wholly in unrecorded time, as milliseconds taken for seconds do."""
    outside = any(i.start >= end or i.stop <= 0 for intervals in labels.values() for i in intervals)
    return {LABELS_OUTSIDE} if outside else set()


def subject_of(item: Item) -> str | None:
    """Return the subject of a recording as the store will show it."""
    if item.subject is not None and not is_id(item.subject):
        raise RecordingError("subject", "the corpus's name of the subject cannot be used as an id; mend it")
    return item.subject
