"""The report of a match: the channel or the reason for every label of a recording, as rows, a line or a table.

It covers every label of the file. Standard library only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.channels.names import Channel, parse
from cerebro_eeg.errors import ChannelError

KEPT = ("matched", "renamed", "reference", "bipolar", "nearest", "untrained")
OUTCOMES = (*KEPT, "not_eeg", "bad", "dropped", "duplicate", "not_picked", "too_many")
_NOT_KEPT = {
    "not_eeg": "not EEG",
    "bad": "marked as bad",
    "dropped": "dropped",
    "duplicate": "duplicate",
    "not_picked": "not picked",
    "too_many": "left out as too many",
}


def as_labels(what: str, labels: Sequence[str]) -> list[str]:
    """Return the labels as a list of texts; raise an error that names anything else."""
    if isinstance(labels, str | bytes):
        raise ChannelError(f"{what} must be a list of names, got the single text {labels!r}; write [{labels!r}]")
    found = [str(label) if isinstance(label, str) else label for label in labels]
    for label in found:
        if not isinstance(label, str):
            raise ChannelError(f"{what} must be text, got {label!r} of type {type(label).__name__}")
    if not found:
        raise ChannelError(f"{what} is empty; give at least one name")
    return found


def listed(names: Sequence[str], hints: Mapping[str, str] | None = None) -> str:
    """Return names as a list for a message; a hint stands once, behind all names that share it."""
    hints = hints or {}
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(hints.get(name, ""), []).append(repr(name))
    return ", ".join(", ".join(group) + (f" ({hint})" if hint else "") for hint, group in groups.items())


def suggest(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return, for each name that is close to a known one, the question whether that was meant."""
    import difflib  # needed only after a mistake, and slow to import

    choices = {name.upper(): name for name in known}
    found = {name: difflib.get_close_matches(name.upper(), choices, n=1, cutoff=0.6) for name in names}
    return {name: f"did you mean {choices[close[0]]}?" for name, close in found.items() if close}


def _bare(label: str) -> str:
    """Return a label without ``EEG `` in front and ``-REF`` or ``-LE`` behind, for short lists."""
    text = label[4:] if label[:4].upper() in ("EEG ", "POL ") else label
    for end in ("-REF", "-LE"):
        text = text[: -len(end)] if text.upper().endswith(end) and len(text) > len(end) else text
    return text or "''"


@dataclass(frozen=True)
class LabelMatch:
    """The result for one label: ``outcome`` is one of ``OUTCOMES``; ``channel`` is None if the label was not kept."""

    index: int
    label: str
    outcome: str
    channel: Channel | None = None
    reference: str | None = None
    note: str = ""
    twin: int | None = None
    """Of a duplicate, the index of the label that means the same channel."""


@dataclass(frozen=True)
class ChannelMatch:
    """The report: one row per label, in the order of the file. The kept channels have the same order."""

    rows: tuple[LabelMatch, ...]

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels that were kept."""
        return tuple(row.channel for row in self.rows if row.channel is not None)

    @property
    def index(self) -> tuple[int, ...]:
        """Places of the kept channels among the labels, for ``data[list(match.index)]``."""
        return tuple(row.index for row in self.rows if row.channel is not None)

    @property
    def ids(self) -> list[tuple[int, int]]:
        """Electrode ids of the kept channels: (electrode, the one subtracted from it or 0)."""
        return [channel.ids for channel in self.channels]

    @property
    def names(self) -> list[str]:
        """Canonical names of the kept channels."""
        return [channel.name for channel in self.channels]

    def missing(self, expected: Sequence[str]) -> list[str]:
        """Return the canonical names of the expected channels (any spelling) that were not kept."""
        readings = [parse(name) for name in as_labels("expected", expected)]
        strange = [reading.label for reading in readings if reading.channel is None]
        if strange:
            hints = suggest(strange, VOCABULARY)
            raise ChannelError(f"expected names must be electrodes or pairs of them, got {listed(strange, hints)}")
        here = set(self.channels)
        return [r.channel.name for r in readings if r.channel is not None and r.channel not in here]

    def summary(self) -> str:
        """Return one line: how many labels have each outcome, with the names of those that are not plainly matched."""
        counts = Counter(row.outcome for row in self.rows)
        kept = []
        for outcome in KEPT:
            rows = [row for row in self.rows if row.outcome == outcome]
            if outcome == "reference":
                against = ", ".join(dict.fromkeys(row.reference for row in rows if row.reference))
                names = f"to {against}"
            elif outcome == "untrained":
                names = ", ".join(row.channel.name for row in rows if row.channel is not None)
            else:
                names = ", ".join(f"{_bare(row.label)}={row.channel.name}" for row in rows if row.channel is not None)
            plain = outcome in ("matched", "bipolar")
            if rows:
                kept.append(f"{counts[outcome]} {outcome}" + ("" if plain else f" ({names})"))
        parts = [f"{len(self.channels)} channels" + (": " + ", ".join(kept) if kept else "")]
        for outcome, words in _NOT_KEPT.items():
            labels = [_bare(row.label) for row in self.rows if row.outcome == outcome]
            if labels:
                parts.append(f"{len(labels)} {words} ({', '.join(labels)})")
        return "; ".join(parts)

    def table(self) -> str:
        """Return aligned text, one line per label."""
        lines = [("#", "label", "channel", "outcome", "note")]
        for row in self.rows:
            channel = row.channel.name if row.channel else "-"
            lines.append((str(row.index), row.label or "''", channel, row.outcome.replace("_", " "), row.note))
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        return "\n".join(
            "  ".join([line[0].rjust(widths[0]), *(line[c].ljust(widths[c]) for c in (1, 2, 3)), line[4]]).rstrip()
            for line in lines
        )
