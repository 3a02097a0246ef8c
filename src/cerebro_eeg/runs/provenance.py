"""What weights learned from, and whether the subjects that are tested were among it.

A checkpoint records each store that its weights learned from, with a mark for every subject, and with the task if
labels were learned. A mark is a hash of the store's own id for the subject, so it names nobody. Marks of one store, or
of two preparations of one documented corpus, stand for the same people. Other stores may call different people by one
id, or one person by two, so an overlap with them is not known.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from cerebro_eeg.config import Source, Training
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.progress import counted

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
    return set(marks_by_recording(windows).values())


def marks_by_recording(windows: Windows) -> dict[int, str]:
    """Return the mark of the subject of each recording that has windows, by the recording's number in its store."""
    facts, found = windows.facts, {}
    for number in np.unique(windows.recording).tolist():
        subject = int(facts.subject[number])
        if subject < 0:
            found[number] = _mark(windows, RECORDING, "recording", facts.ids[number])
        else:
            found[number] = _mark(windows, "s", "subject", facts.subjects[subject])
    return found


def _mark(windows: Windows, letter: str, kind: str, name: str) -> str:
    return letter + hashlib.sha256(f"{_ids(windows)}\0{kind}\0{name}".encode()).hexdigest()[:11]


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


# What a fine-tuning itself learned from, to compare with data from elsewhere


@dataclass(frozen=True)
class Learned:
    """Marks of the subjects and recordings that a fine-tuning trained or validated on. None of them names anybody."""

    dataset: str
    sha256: str
    """Hash of the store."""
    ids: str
    """What made its ids: a key, by its check, or "own" for the corpus itself."""
    subjects: tuple[str, ...]
    recordings: tuple[str, ...]
    """Marks of the ids of recordings, which are made of the content of their files."""
    contents: tuple[str, ...]
    """Marks of the samples of recordings, which do not depend on a key."""

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(found: dict[str, Any]) -> "Learned":
        lists = (tuple(map(str, found[name])) for name in ("subjects", "recordings", "contents"))
        return Learned(str(found["dataset"]), str(found["sha256"]), str(found["ids"]), *lists)


def learned_from(store: Store, hash: str, parts: Iterable[Windows]) -> Learned:
    """Return the marks of these windows' subjects and recordings: those of training and validation, of all folds."""
    subjects: set[str] = set()
    recordings: set[str] = set()
    contents: set[str] = set()
    ids = store.info.key_check or OWN
    for windows in parts:
        subjects |= subject_marks(windows)
        for own, content in recording_marks(store, windows).values():
            recordings.add(own)
            contents.add(content)
    return Learned(store.info.dataset, hash, ids, *(tuple(sorted(of)) for of in (subjects, recordings, contents)))


def recording_marks(store: Store, windows: Windows) -> dict[int, tuple[str, str]]:
    """Return for each recording that has windows a mark of its id, and one of its samples."""
    found = {}
    for number in np.unique(windows.recording).tolist():
        content = hashlib.sha256(f"samples\0{store.recordings[number].sha256}".encode()).hexdigest()
        found[number] = _mark(windows, RECORDING, "recording", windows.facts.ids[number]), f"x{content[:11]}"
    return found


@dataclass(frozen=True)
class LearnedOverlap:
    """How many subjects of external windows the fine-tuning itself had learned from, by training or by validation."""

    subjects: int
    """Subjects of the external windows, before any was left out; a recording without a subject counts as one."""
    certain: int
    """Subjects that were learned from for sure: by the same recording, or the same subject of the same corpus."""
    possible: int
    """Further subjects whose ids were learned from, in a store with the same key. Data sets may use a name twice."""
    left_out: int
    """Subjects of these that are left out of the scores."""
    why: str = ""
    """Why further overlap is not known; empty if it is."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "text": self.text()}

    @property
    def scored(self) -> int:
        """Subjects that were or may have been learned from, and are scored all the same."""
        return self.certain + self.possible - self.left_out

    def text(self) -> str:
        """Return one line for readers of the scores."""
        of, parts = f"{counted(self.subjects, 'subject')} of the external data", []
        certain = self.certain if not self.left_out else 0
        if self.left_out:
            parts.append(f"{self.left_out:,} of {of} were, or may have been, learned from, and are left out")
        if certain:
            parts.append(
                f"WARNING: {certain:,} of {of} were learned from in this fine-tuning (training or validation), so "
                "these are no scores of new subjects"
            )
        if possible := self.scored - certain:
            parts.append(
                f"WARNING: {possible:,} of {of} have ids of subjects that the run learned from (same key): the same "
                "people, unless the data sets give one name to different people; --new-subjects leaves them out"
            )
        if self.why:
            parts.append(f"whether {'more of ' if parts else ''}the {of} were learned from is not known: {self.why}")
        return "; ".join(parts) or f"none of {of} was learned from in this fine-tuning"


def overlap_with(
    learned: Learned | None, store: Store, hash: str, windows: Windows, *, split: str | None, new_subjects: bool
) -> tuple[LearnedOverlap, set[int]]:
    """Return how windows of another store overlap with what was learned from, and the recordings to leave out.

    Without a ``split`` that was named, subjects that were surely learned from are left out; with ``new_subjects`` also
    those that only have the same id.
    """
    subject_of = marks_by_recording(windows)
    people = set(subject_of.values())
    if learned is None:
        return LearnedOverlap(
            len(people), 0, 0, 0, "the run does not record it (an earlier release); see --trained-on"
        ), set()
    ids = _ids(windows)
    comparable = learned.ids == ids
    same_corpus = comparable and (learned.sha256 == hash or (ids == OWN and learned.dataset == store.info.dataset))
    same_files = comparable and (same_corpus or ids != OWN)  # ids of recordings that a key made are of their content
    known = people.intersection(learned.subjects) if same_corpus else set()
    for number, (own, content) in recording_marks(store, windows).items():
        if content in learned.contents or (same_files and own in learned.recordings):
            known.add(subject_of[number])
    alike = people.intersection(learned.subjects) - known if comparable and not same_corpus and ids != OWN else set()
    why = ""
    if not comparable:
        why = "the stores have ids of different keys, and no recording with equal samples tells"
    elif not same_corpus and ids == OWN:
        why = "ids of two corpora cannot be compared, and no recording with equal samples tells"
    elif any(mark.startswith(RECORDING) for mark in people - known):
        why = "some recordings have no subject"
    out = known | alike if new_subjects else known if split is None else set()
    numbers = {number for number, mark in subject_of.items() if mark in out}
    return LearnedOverlap(
        len(people), len(known), len(alike), len(out), "" if why and not people - known else why
    ), numbers
