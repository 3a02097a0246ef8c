"""``cerebro-eeg info FOLDER`` and ``prepare --dry-run``: a table of all recordings, with what keeps each from a store.

The verdicts come from ``survey`` of ``data/storing/prepare.py``, which takes the steps of ``prepare`` itself.
"""

import contextlib
import io
import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.errors import ChannelError, ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.progress import Progress, counted, in_bytes, in_time, time_left
from cerebro_eeg.terminal import CsvWriter, one_line

if TYPE_CHECKING:
    from cerebro_eeg.data.storing.job import PrepareChoices
    from cerebro_eeg.data.storing.recipe import Recipe
    from cerebro_eeg.data.storing.survey import Looked
    from cerebro_eeg.model.cerebro import Cerebro
    from cerebro_eeg.runs.predict import Reader
    from cerebro_eeg.runs.settings import Untrained

UNREAD = (
    "heads were read, not samples: damage in the middle of a file, flat or clipped channels, and a recording without "
    "one finite sample show only in prepare"
)
READ = "all samples were read; damage that comes later shows only in prepare"
_SHOWN = 12  # labels that a line lists
_ROWS = 50  # recordings that the printed table has
_COLUMNS = (
    *("number", "recording", "format", "labels", "channels", "sfreq", "seconds", "longest_stretch", "reason", "why"),
    *("options", "tried", "channels_then", "other_options", "notes", "labels_not_understood"),
)


@dataclass(frozen=True, repr=False)
class FolderSurvey(Shown):
    """What prepare would make of each recording of a folder."""

    dataset: str
    looked: "tuple[Looked, ...]"
    waiting: tuple[str, ...]
    """Arrays that are passed over, because nothing says their rate."""
    hints: tuple[str, ...]
    unmet: str | None
    """A line on names of --rename that no file has."""
    samples_read: bool
    show_paths: bool
    rate: float
    """Hz of the store."""
    table: str | None = None
    """The CSV file that was written."""
    model: bool = False
    """Whether the verdicts are those of predict and embed with a model."""

    @property
    def skipped(self) -> "list[Looked]":
        return [one for one in self.looked if not one.usable]

    @property
    def exit_code(self) -> int:
        return 6 if self.skipped else 0

    @property
    def trouble(self) -> str | None:
        """A line on the recordings that prepare would skip; None if it would take all."""
        if not self.skipped:
            return None
        return (
            f"{len(self.skipped):,} of {counted(len(self.looked), 'recording')} would be skipped; to_frame() says why"
        )

    def _headline(self) -> str:
        return f"{len(self.looked) - len(self.skipped):,} of {counted(len(self.looked), 'recording')} usable"

    def _notes(self) -> Sequence[str]:
        return [*self._groups(), *self.hints, *filter(None, [self.unmet])]

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        return by_column(self._row(number, one) for number, one in enumerate(self.looked, 1))

    @property
    def bytes(self) -> int:
        """Size of the store that prepare would make."""
        return 2 * sum(one.values for one in self.looked)

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "folder",
            "dataset": self.dataset,
            "files": len(self.looked),
            "usable": len(self.looked) - len(self.skipped),
            "hours": round(sum(one.seconds or 0.0 for one in self.looked if one.usable) / 3600, 4),
            "bytes": self.bytes,
            "skipped": dict(sorted(Counter(one.code for one in self.skipped).items())),
            "by_options": self._by_options(),
            "together": self._together(),
            "arrays_without_rate": len(self.waiting),
            **({"arrays_without_rate_paths": list(self.waiting)} if self.show_paths else {}),
            "names_not_met": self.unmet,
            "for_model": self.model,
            "samples_read": self.samples_read,
            "not_checked": READ if self.samples_read else UNREAD,
            "recordings": [self._row(number, one) for number, one in enumerate(self.looked, 1)],
            "table": self.table,
        }

    def _row(self, number: int, one: "Looked") -> dict[str, Any]:
        first = one.remedies[0] if one.remedies else None
        return {
            "number": number,
            "recording": one.id,
            **({"path": one.name} if self.show_paths else {}),
            "format": one.format,
            "labels": one.labels,
            "channels": one.channels,
            "sfreq": one.sfreq,
            "seconds": one.seconds,
            "longest_stretch": one.longest,
            "reason": one.code or None,
            "why": one.detail or None,
            "options": None if first is None else first.text(),
            "tried": None if first is None else first.tried,
            "channels_then": None if first is None else first.channels,
            "other_options": [remedy.text() for remedy in one.remedies[1:]],
            "notes": list(one.notes),
            "labels_not_understood": list(one.lost),
        }

    def csv(self) -> str:
        """Return the table as CSV, a row a recording."""
        text = io.StringIO()
        table = CsvWriter(text)
        columns = [*_COLUMNS[:2], *(("path",) if self.show_paths else ()), *_COLUMNS[2:]]
        table.writerow(columns)
        for number, one in enumerate(self.looked, 1):
            row = self._row(number, one)
            for name in ("options", "other_options"):  # a cell that begins with a dash would be a formula
                given = row[name] if isinstance(row[name], list) else [row[name]]
                row[name] = "; ".join(f"use {options}" for options in filter(None, given))
            table.writerow(_cell(row[column]) for column in columns)
        return text.getvalue()

    def text(self) -> str:
        lines = [*self._table(), ""]
        lines += self._groups()
        if self.waiting:
            names = f" ({', '.join(map(one_line, self.waiting[:_SHOWN]))})" if self.show_paths else ""
            are = "array of numbers is" if len(self.waiting) == 1 else "arrays of numbers are"
            lines.append(
                f"passed over: {len(self.waiting):,} {are} no recording without a rate{names}; if it is EEG: --sfreq "
                "HZ --unit uV --channels-from names.txt"
            )
        lines += [f"note: {line}" for line in (*self.hints, *filter(None, [self.unmet]))]
        lines += [f"not checked: {READ if self.samples_read else UNREAD}", ""]
        return "\n".join([*lines, *self._summary(), *(["the table is written"] if self.table is not None else [])])

    def _by_options(self) -> dict[str, int]:
        """Count the skipped recordings by the options that would help; "" for those that none helps."""
        counts = Counter(one.remedies[0].text() if one.remedies else "" for one in self.skipped)
        return dict(sorted(counts.items(), key=lambda pair: (not pair[0], -pair[1], pair[0])))

    def _summary(self) -> list[str]:
        usable = [one for one in self.looked if one.usable]
        parts = [f"{len(usable):,} of {counted(len(self.looked), 'recording')} usable as they are"]
        for options, count in self._by_options().items():
            if options:
                parts.append(f"{count:,} more with {options}")
            else:
                codes = Counter(one.code for one in self.skipped if not one.remedies)
                words = ", ".join(f"{code} {n}" for code, n in sorted(codes.items()))
                parts.append(f"{count:,} that no option helps ({words})")
        lines = ["; ".join(parts)]
        tried = sum(bool(one.remedies) and one.remedies[0].tried for one in self.skipped)
        if self.model and tried:
            lines.append("look again with these options: electrodes that the model never saw may show only then")
        elif len([options for options in self._by_options() if options]) > 1 and tried:
            lines.append(f"with {self._together()}: {len(usable) + tried:,} of {len(self.looked):,}")
        hours = sum(one.seconds or 0.0 for one in usable)
        size = f"{in_time(hours)} of EEG, about {in_bytes(self.bytes)} in a store" if usable else "nothing to store"
        return [*lines, f"{size} (of what is usable as it is; {self.rate:g} Hz, 2 bytes a value)"]

    def _together(self) -> str:
        from cerebro_eeg.data.storing.survey import Remedy, together

        return Remedy(together(self.looked), tried=True).text()

    def _table(self) -> list[str]:
        rows = [("#", "path" if self.show_paths else "recording", "format", "channels", "Hz", "length", "verdict")]
        numbered = list(enumerate(self.looked, 1))
        if len(numbered) > _ROWS:  # those to look at
            numbered = [(number, one) for number, one in numbered if one.notes or not one.usable][:_ROWS]
        for number, one in numbered:
            verdict = "usable" if one.usable else f"skipped: {one.code}"
            if one.notes and one.usable:
                verdict += f" ({', '.join(one.notes)})"
            if one.remedies:
                verdict += f" -> {one.remedies[0].text()}"
            kept = "-" if one.channels is None else str(one.channels)
            rows.append(
                (
                    str(number),
                    one_line(one.name) if self.show_paths else one.id,
                    one.format or "-",
                    kept if one.labels is None else f"{kept} of {one.labels}",
                    "-" if one.sfreq is None else f"{one.sfreq:g}",
                    "-" if one.seconds is None else in_time(one.seconds),
                    verdict,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        lines = []
        for row in rows:
            left = [row[0].rjust(widths[0]), row[1].ljust(widths[1]), row[2].ljust(widths[2])]
            lines.append("  ".join([*left, *(row[c].rjust(widths[c]) for c in (3, 4, 5)), row[6]]).rstrip())
        if len(numbered) < len(self.looked):
            more = len(self.looked) - len(numbered)
            lines.append(f"... and {counted(more, 'recording')} more (--table files.csv and --json have all)")
        return lines

    def _groups(self) -> list[str]:
        """Return the reasons, each once, with the numbers of its recordings and all that would help."""
        groups: dict[tuple[str, str], list[tuple[int, Looked]]] = defaultdict(list)
        for number, one in enumerate(self.looked, 1):
            if not one.usable:
                groups[one.code, one.why].append((number, one))
        lines = []
        for (code, why), members in sorted(groups.items(), key=lambda group: group[1][0][0]):
            which = ", ".join(f"#{number}" for number, _ in members[:_SHOWN])
            more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
            lines.append(f"{code} ({which}{more}): {why}")
            labels = list(dict.fromkeys(label for _, one in members for label in one.lost))
            if labels:
                shown = ", ".join(repr(one_line(label)) for label in labels[:_SHOWN])
                rest = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
                lines.append(f"    labels that are not understood: {shown}{rest}")
            lines += [f"    {line}" for line in _ways([one for _, one in members], code)]
        return lines


def _ways(members: "Sequence[Looked]", code: str) -> list[str]:
    """Return a line for each set of options that helps some of these recordings."""
    found: dict[str, list[tuple[int | None, int | None, bool]]] = defaultdict(list)
    for one in members:
        for remedy in one.remedies:
            found[remedy.text()].append((remedy.channels, one.labels, remedy.tried))
    lines = []
    for options, outcomes in found.items():
        kept = {(channels, labels) for channels, labels, _ in outcomes if channels is not None}
        words = (
            f", keeps {_range([c for c, _ in kept])} of {_range([n or 0 for _, n in kept])} channels" if kept else ""
        )
        say = "tried" + words if outcomes[0][2] else "not tried: it needs what only you know"
        lines.append(f"-> {options} ({say}{'' if len(members) == 1 else f'; {len(outcomes)} of {len(members)}'})")
    if not lines and code == "channels" and not any(one.lost for one in members):
        return ["-> no label is that of an electrode: leave the file out"]
    return lines or [f"-> {remedy_of(code)}"]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    return "" if value is None else value


def survey_folder(
    recipe: "Recipe",
    choices: "PrepareChoices",
    *,
    workers: int,
    part: tuple[int, int] = (1, 1),
    key: Path | None = None,
    show_paths: bool = False,
    table: Path | None = None,
    model: "Cerebro | None" = None,
) -> FolderSurvey:
    """Look at all recordings of a recipe, with a line of progress, and write the table as CSV where it is asked for.

    With a ``model`` the verdicts are those of predict and embed with it.
    """
    from cerebro_eeg.data.storing.prepare import survey

    check_table(table)
    if model is not None:
        recipe = for_model(recipe, model)
    progress = Progress()
    began: list[float] = []  # when the first was done: before it processes start, which happens once

    def tell(done: int, total: int) -> None:
        began[:] = began or [time.monotonic()]
        if progress.due() and done < total:
            left = time_left(done - 1, total - 1, time.monotonic() - began[0])
            progress.show(f"looked at {done:,}/{total:,} recordings, {left} left")

    try:
        looked = survey(recipe, choices, workers=workers, part=part, key_file=key, progress=tell)
    finally:
        progress.end()
    found = FolderSurvey(
        recipe.name,
        tuple(looked),
        recipe.waiting,
        tuple(hint for hint in recipe.hints if not hint.endswith("if they are EEG")),
        _unmet(choices, looked),
        choices.quality != "keep",
        show_paths,
        recipe.signal.sfreq,
        None if table is None else str(table),
    )
    found = found if model is None else with_electrodes(found, model)
    if table is not None:
        write_text(table, found.csv())
    return found


def for_model(recipe: "Recipe", model: "Cerebro") -> "Recipe":
    """Return the recipe with the signal and the number of channels that a model expects, as predict and embed take."""
    policy = replace(recipe.policy, max_channels=model.config.max_channels)
    return replace(recipe, signal=model.config.signal, policy=policy)


def with_electrodes(found: FolderSurvey, model: "Cerebro") -> FolderSurvey:
    """Return the survey with the recordings refused whose electrodes no window of a model's training had."""
    from cerebro_eeg.runs.predict import make_reader
    from cerebro_eeg.runs.settings import Handling

    ways: tuple[Untrained, ...] = ("error", "nearest", "drop")
    readers: dict[str, Reader] = {}
    for way in ways:
        with contextlib.suppress(ChannelError):  # of a model without training only as_is is left
            readers[way] = make_reader(model, handling=Handling(untrained=way))
    window = make_reader(model, handling=Handling(untrained="as_is"))
    looked = tuple(_too_short(_with_electrodes(one, readers), window) for one in found.looked)
    return replace(found, looked=looked, model=True)


def _with_electrodes(one: "Looked", readers: "Mapping[str, Reader]") -> "Looked":
    from cerebro_eeg.data.storing.survey import Remedy

    if not one.usable:
        return one
    kept: dict[str, int] = {}
    detail = "the checkpoint records no training, so the row of every electrode is random"
    for way, reader in readers.items():
        try:
            kept[way] = int((reader.electrodes(one.names)[:, 0] != 0).sum())
        except ChannelError as error:
            detail = str(error) if way == "error" else detail
    if kept.get("error"):
        return one
    remedies = [Remedy({"untrained": way}, True, count) for way, count in kept.items() if count]
    remedies = remedies or [Remedy({"untrained": "as_is"}, tried=False)]
    why = detail.partition(": ")[0]
    return replace(one, code="channels", why=why, detail=detail, channels=None, remedies=tuple(remedies), values=0)


def _too_short(one: "Looked", reader: "Reader") -> "Looked":
    """Refuse a recording without a window, by the gaps that its head tells of."""
    from cerebro_eeg.data.storing.survey import Remedy

    if not one.usable or one.longest is None:
        return one
    if math.ceil(one.longest * reader.config.signal.sfreq - 1e-6) >= reader.samples:
        return replace(one, notes=tuple(note for note in one.notes if not note.startswith("no window")))
    why = (
        f"has no window: its longest stretch without a gap is {one.longest:.3g} s, and a window of this model is "
        f"{reader.seconds:g} s; give a longer recording"
    )
    # A head reads windows of one length.
    shorter = () if reader.model.head is not None else (Remedy({"seconds": f"{one.longest:.4g}"}, tried=False),)
    return replace(one, code="too_short", why=why, detail=why, remedies=shorter, values=0)


def _unmet(choices: "PrepareChoices", looked: "Sequence[Looked]") -> str | None:
    if choices.names is None:
        return None
    from cerebro_eeg.data.reading.name_map import unmet, unmet_words

    labels = {label for one in looked for label in one.all_labels}
    absent = unmet(choices.names, labels)
    return unmet_words(absent, labels) if absent else None


def check_table(table: Path | None) -> None:
    """Refuse a table that is no CSV file, before the work."""
    if table is not None and table.suffix.casefold() != ".csv":
        raise ConfigError("--table names no CSV file; give a name that ends in .csv")
