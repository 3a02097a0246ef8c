"""The mains frequency of a data set: decided once, from a look at recordings spread over its subjects.

A single recording may show no line, or another one by chance. So the recordings looked at vote, and the outcome holds
for all. Where subjects plainly differ, as in a corpus of several sites, each subject has its own, and a recording that
shows nothing gets that of the majority. The decision lies in ``mains.json`` of the store, published once, so that
every worker, part and later run takes the same.
"""

import contextlib
import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cerebro_eeg.data.filtering.plan import MAINS, vote_mains
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.shards import disk_errors
from cerebro_eeg.data.storing.store_info import to_text, without_sum
from cerebro_eeg.errors import StoreError
from cerebro_eeg.files import parse_json, write_once
from cerebro_eeg.progress import counted

NAME = "mains.json"
LOOKS = 48  # recordings that are looked at first
_EACH = 3  # of a subject, where subjects differ
_RARE = 0.1  # of the votes: so few contradict by chance
_TORN = 0.2  # of the subjects: if more show both frequencies, subjects do not explain the difference

Vote = float | None
"""50.0, 60.0, or None for a recording that shows neither."""


@dataclass(frozen=True)
class MainsChoice:
    """The decision for one data set, and the votes that it rests on."""

    common: float | None
    """Hz: for all recordings or, where subjects differ, for those that show nothing; None where nobody shows a line."""
    votes: dict[str, int]
    """Recordings looked at, by what they show: "50", "60" or "none"."""
    mixed: bool = False
    """Whether subjects differ. Recordings of nobody known, and of subjects who came later, are decided one by one."""
    subjects: dict[str, float] = field(default_factory=dict)

    def of(self, subject: str | None, opened: Callable[[], Recording]) -> float:
        """Return the mains frequency of a recording, 0 for none; it is opened only where the decision needs it."""
        if not self.mixed:
            return self.common or 0.0
        own = self.subjects.get(subject) if subject is not None else None
        return own or vote_mains(opened()) or self.common or 0.0

    def text(self) -> str:
        """Return the decision in one line, with how sure it is."""
        total = sum(self.votes.values())
        if not total:
            return "mains: no recording could be looked at, so each is decided by itself"
        shown = {f"{line:g}": self.votes.get(f"{line:g}", 0) for line in MAINS}
        if self.common is None:
            return (
                f"mains: none of {counted(total, 'recording')} looked at shows a line at 50 or 60 Hz; no notch: give "
                "--mains where you know it"
            )
        other = next(f"{line:g}" for line in MAINS if line != self.common)
        count = f"{shown[f'{self.common:g}']:,} of {counted(total, 'recording')} looked at"
        if self.mixed:
            return (
                f"mains differs by subject: {count} show {self.common:g} Hz, {shown[other]:,} show {other} Hz; each "
                f"subject gets its own, and {self.common:g} Hz where nothing is seen; --mains takes one for all"
            )
        against = f"{shown[other]:,} {'shows' if shown[other] == 1 else 'show'}" if shown[other] else "none shows"
        sure = "" if shown[other] <= _RARE * sum(shown.values()) else "; they contradict each other: check with --mains"
        shows = "shows" if shown[f"{self.common:g}"] == 1 else "show"
        return f"mains {self.common:g} Hz: {count} {shows} it, {against} {other} Hz{sure}"

    def short(self) -> str:
        """Return the decision in a few words."""
        total = sum(self.votes.values())
        if self.common is None:
            return f"none ({total:,} looked at)"
        by = " or the other, by subject" if self.mixed else ""
        return f"{self.common:g} Hz{by} ({self.votes[f'{self.common:g}']:,} of {total:,} show it)"


@dataclass(frozen=True)
class MainsTable:
    """The decisions for a source, by the name of the data set in it; most sources are one, which has no name."""

    sets: dict[str, MainsChoice]

    def of(self, item: Item, opened: Callable[[], Recording]) -> float:
        """Return the mains frequency of a recording, 0 for none; it is opened only where the decision needs it."""
        return self.sets.get(item.part_of, _NOTHING).of(item.subject, opened)

    def text(self) -> str:
        """Return all decisions in one line."""
        if set(self.sets) <= {""}:
            return self.sets.get("", _NOTHING).text()
        return "mains by data set: " + "; ".join(f"{name} {choice.short()}" for name, choice in self.sets.items())


_NOTHING = MainsChoice(None, {}, mixed=True)  # a data set that came later: each recording is decided by itself


def find_table(folder: Path, items: Mapping[str, Item], policy: ChannelPolicy, look: "Look") -> MainsTable:
    """Return the decisions of a store, made now if there are none."""
    known = read_table(folder)
    if known is not None:
        return known
    made = decide({id: item for id, item in items.items() if item.mains is None}, policy, look)
    if not any(choice.votes for choice in made.sets.values()):
        return made  # nothing could be read, perhaps for a reason that passes: the next run decides
    with disk_errors():
        write_once(folder / NAME, table_text(made))  # a faster process may have decided for all
    return read_table(folder) or made


def table_text(table: MainsTable) -> str:
    """Return mains.json as a text."""
    return to_text(asdict(table))


def read_table(folder: Path) -> MainsTable | None:
    """Read the decisions of a store; None where it has none, as where the corpus or the user states the frequency."""
    with disk_errors("read"):
        try:
            data = (folder / NAME).read_bytes()
        except FileNotFoundError:
            return None
    try:
        sets = without_sum(parse_json(data))["sets"]
        return MainsTable({str(name): _read_choice(values) for name, values in sets.items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreError(f"{NAME} of the store is damaged; restore it from a copy, or prepare anew") from None


def _read_choice(values: dict[str, Any]) -> MainsChoice:
    return MainsChoice(
        None if values["common"] is None else float(values["common"]),
        {str(name): int(count) for name, count in values["votes"].items()},
        bool(values["mixed"]),
        {str(name): float(line) for name, line in values["subjects"].items()},
    )


Look = Callable[[Sequence[Item], ChannelPolicy], list[Vote | str]]
"""A function that returns the vote of each recording, or a text where it cannot be read."""


def look_at(items: Sequence[Item], policy: ChannelPolicy) -> list[Vote | str]:
    """Open each recording, and see which line stands out in a minute of it."""
    found: list[Vote | str] = []
    for item in items:
        vote: Vote | str = "unread"
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # it is skipped later, with its reason
            warnings.simplefilter("ignore")
            vote = vote_mains(item.open(policy))
        found.append(vote)
    return found


def decide(items: Mapping[str, Item], policy: ChannelPolicy, look: Look = look_at) -> MainsTable:
    """Let recordings of each data set vote, and more of them where its subjects differ."""
    names = sorted({item.part_of for item in items.values()})
    orders = {name: _spread({id: item for id, item in items.items() if item.part_of == name}) for name in names}
    looks = LOOKS if len(names) == 1 else LOOKS // 2
    first = {name: [id for id, _ in order[:looks]] for name, order in orders.items()}
    voters: dict[str, dict[str, list[Vote]]] = {name: defaultdict(list) for name in names}

    def ask(ids: Sequence[str]) -> None:
        for id, vote in zip(ids, look([items[id] for id in ids], policy), strict=True):
            if not isinstance(vote, str):
                voters[items[id].part_of][_voter(id, items[id])].append(vote)

    ask([id for name in names for id in first[name]])
    for turn in range(_EACH):  # one more of each subject that is not decided yet
        ask(
            [
                id
                for name in names
                if not _one_sided(_count(voters[name].values()))
                for id, number in orders[name]
                if number == turn and id not in first[name] and items[id].subject is not None
                and _majority(voters[name].get(_voter(id, items[id]), ())) is None
            ]
        )  # fmt: skip
    return MainsTable({name: _outcome(voters[name]) for name in names})


def _voter(id: str, item: Item) -> str:
    """Return the subject, or the recording itself where the subject is unknown."""
    return item.subject or f"\0{id}"


def _outcome(voters: Mapping[str, Sequence[Vote]]) -> MainsChoice:
    votes = _count(voters.values())
    shown = {"none" if line is None else f"{line:g}": votes[line] for line in (*MAINS, None) if votes[line]}
    lines = [line for line in MAINS if votes[line]]
    if not lines:
        return MainsChoice(None, shown, mixed=not shown)
    common = max(lines, key=lambda line: votes[line])
    if _one_sided(votes):
        return MainsChoice(common, shown)
    decided = [cast for cast in voters.values() if any(vote is not None for vote in cast)]
    torn = sum(len(set(cast) - {None}) > 1 for cast in decided)
    if torn > _TORN * len(decided):
        return MainsChoice(common, shown)
    own = {who: _majority(cast) or common for who, cast in voters.items() if who[0] != "\0"}
    return MainsChoice(common, shown, True, dict(sorted(own.items())))


def _one_sided(votes: Mapping[Vote, int]) -> bool:
    """Return whether all agree, but for a few that a chance may explain."""
    counts = [votes.get(line, 0) for line in MAINS]
    return min(counts) <= _RARE * sum(counts)


def _count(cast: Iterable[Iterable[Vote]]) -> Counter[Vote]:
    return Counter(vote for votes in cast for vote in votes)


def _majority(cast: Iterable[Vote]) -> Vote:
    votes = Counter(vote for vote in cast if vote is not None)
    ranked = votes.most_common(2)
    return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None


def _spread(items: Mapping[str, Item]) -> list[tuple[str, int]]:
    """Return all ids, first one of each subject, then a second one, ...; in an order that every machine finds."""
    groups: dict[str, list[str]] = defaultdict(list)
    for id in sorted(items, key=lambda id: hashlib.sha256(id.encode()).digest()):
        groups[_voter(id, items[id])].append(id)
    turns = [(number, id) for ids in groups.values() for number, id in enumerate(ids)]
    return [(id, number) for number, id in sorted(turns, key=lambda turn: turn[0])]
