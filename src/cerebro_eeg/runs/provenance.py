"""What weights learned from, and whether the subjects that are tested were among it.

A checkpoint records each store that its weights learned from, with a mark for every subject, and with the task if
labels were learned. A mark is a hash of the store's own id for the subject, so it names nobody. Marks of one store, or
of two preparations of one documented corpus, stand for the same people. Other stores may call different people by one
id, or one person by two, so an overlap with them is not known.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from cerebro_eeg.config import Source, Training
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store

OWN = "own"
"""The ids of a documented corpus, which no key has changed."""
RECORDING = "r"
"""First letter of the mark of a recording whose subject is not known."""


def describe_source(store: Store, windows: Windows, hash: str, task: str = "") -> Source:
    """Return the entry of a store in the record of weights that learned from these windows of it."""
    hours = len(windows) * windows.samples / max(windows.sfreq, 1) / 3600
    marks = tuple(sorted(subject_marks(windows)))
    return Source(store.info.dataset, len(windows), round(hours, 4), hash, "", marks, _ids(windows), task)


def subject_marks(windows: Windows) -> set[str]:
    """Return a mark for each subject of the windows, and for each recording whose subject is not known."""
    facts, found = windows.facts, set()
    for number in np.unique(windows.recording).tolist():
        subject = int(facts.subject[number])
        kind, name = ("recording", facts.ids[number]) if subject < 0 else ("subject", facts.subjects[subject])
        digest = hashlib.sha256(f"{_ids(windows)}\0{kind}\0{name}".encode()).hexdigest()
        found.add(RECORDING + digest[:11] if subject < 0 else f"s{digest[:11]}")
    return found


def _ids(windows: Windows) -> str:
    """Return what made the ids of a store: a key, by its check, or the corpus itself."""
    return windows.info.key_check or OWN


State = Literal["new", "none", "some", "labels", "unknown"]


@dataclass(frozen=True)
class SeenBefore:
    """How many of the tested subjects the weights had learned from before a fine-tuning."""

    state: State
    """new: the weights were new; labels: they had learned the labels of some; some: only the signals of some; none: of
    no subject; unknown: the records cannot tell."""
    part: str
    """What is tested: test or validation."""
    subjects: int
    """Subjects that are tested; a recording whose subject is not known counts as one."""
    signals: int = 0
    """Subjects that pre-training learned from, without labels."""
    labels: int = 0
    """Subjects whose labels an earlier fine-tuning learned."""
    tasks: tuple[str, ...] = ()
    """The tasks of these labels."""
    why: str = ""
    """Why the rest is not known; empty if it is."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tasks": list(self.tasks), "text": self.text()}

    def text(self) -> str:
        """Return one line for readers of the scores."""
        of = f"{self.subjects:,} {self.part} subjects"
        if self.state == "new":
            return f"none of {of} was seen before: the weights were new"
        if self.state == "none":
            return f"none of {of} was in the data that the weights were trained on before"
        parts = []
        if self.labels:
            parts.append(
                f"WARNING: the labels ({', '.join(self.tasks)}) of {self.labels:,} of {of} were learned in an earlier "
                "fine-tuning, so these are no scores of new subjects"
            )
        if self.signals:
            parts.append(f"{self.signals:,} of {of} were in the pre-training data (signals without labels)")
        if self.why:
            whether = f"whether {'more of ' if parts else ''}the {of} were in the pre-training data"
            parts.append(f"{whether} is not known: the weights {self.why} (see docs/data.md)")
        return "; ".join(parts)

    @property
    def loud(self) -> bool:
        """Whether labels of tested subjects were learned, which spoils the scores."""
        return self.labels > 0


def seen_before(before: Sequence[Source], learned: bool, hash: str, parts: Sequence[Windows], part: str) -> SeenBefore:
    """Return how many subjects of the windows are in the data ``before``, for windows of the store with this hash.

    ``learned`` says that the weights have seen windows at all. The parts are the test windows of all folds.
    """
    wanted: set[str] = set().union(*(subject_marks(windows) for windows in parts))
    if not learned and not before:
        return SeenBefore("new", part, len(wanted))
    known = [one for one in before if one.ids and _same_people(one, hash, parts)]
    signals: set[str] = set().union(*(wanted.intersection(one.subjects) for one in known if not one.task))
    labelled = [one for one in known if one.task and wanted.intersection(one.subjects)]
    labels: set[str] = set().union(*(wanted.intersection(one.subjects) for one in labelled))
    why = _why_unknown(before, known, wanted - signals - labels, parts)
    state: State = "labels" if labels else "some" if signals else "unknown" if why else "none"
    tasks = tuple(dict.fromkeys(one.task for one in labelled))
    return SeenBefore(state, part, len(wanted), len(signals), len(labels), tasks, why)


def _same_people(source: Source, hash: str, parts: Sequence[Windows]) -> bool:
    """Return whether equal marks of source and windows are the same people, and others are others."""
    if source.sha256 == hash:
        return True
    return all(source.ids == _ids(windows) == OWN and source.name == windows.info.dataset for windows in parts)


def _why_unknown(before: Sequence[Source], known: Sequence[Source], rest: set[str], parts: Sequence[Windows]) -> str:
    """Return why it is not known whether the remaining subjects were learned from; empty if it is known."""
    if not before:
        return "do not say what they learned from"
    others = [one for one in before if one not in known]
    if old := list(dict.fromkeys(one.name for one in others if not one.ids)):
        return f"learned from {', '.join(old)} by a release that did not record the subjects"
    if others:
        names = ", ".join(dict.fromkeys(one.name for one in others))
        ids = {_ids(windows) for windows in parts}
        shared = {mark for one in others if one.ids in ids for mark in one.subjects if mark in rest}
        alike = f" (it has {len(shared):,} of these subjects' ids, too)" if shared else ""
        return f"learned from another store ({names}), where an id may be another person's{alike}"
    if any(mark.startswith(RECORDING) for one in known for mark in one.subjects) or any(
        mark.startswith(RECORDING) for mark in rest
    ):
        return "learned from this store, and recordings without a subject may be of anybody"
    return ""


def data_before(training: Training, frozen: bool) -> Sequence[Source]:
    """Return the data that fine-tuned weights had learned from before their fine-tuning.

    A fine-tuning adds itself at the end of the record, unless the encoder was frozen.
    """
    return training.data if frozen else training.data[:-1]
