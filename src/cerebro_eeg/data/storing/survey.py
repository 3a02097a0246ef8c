"""Survey: what ``prepare`` would make of every source, found by its own steps from heads alone, without a store.

``look`` does with one source what ``store_one`` does before it writes (``job.plan_one``), so its verdict and its
sentence are those of ``skipped.csv``. Where a source would be skipped, it opens the file again with other options, and
names the first that help. An option that nothing can try (a map of names, a rate) is named as well, and marked.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from cerebro_eeg.channels.names import parse
from cerebro_eeg.data.preprocess import Preprocessed
from cerebro_eeg.data.reading.arrays import MatrixSamples
from cerebro_eeg.data.reading.formats import short_name
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.job import Job, plan_one
from cerebro_eeg.data.storing.recipe import Item
from cerebro_eeg.data.storing.workers import CRASHED, reason_of
from cerebro_eeg.errors import ChannelError, RecordingError

_VALUES = {"sfreq": "HZ", "unit": "uV", "channels_from": "names.txt", "rename": "map.csv"}
_SHORT = 5.0  # seconds of a window of all presets


@dataclass(frozen=True)
class Remedy:
    """Options with which a source could be used."""

    options: Mapping[str, str]
    """Values by the names of options in Python."""
    tried: bool
    """Whether the file was opened with them; others need a file or a number that only the user has."""
    channels: int | None = None
    """How many channels it would have."""

    def text(self) -> str:
        """Return the options as they are given on the command line."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())


@dataclass(frozen=True)
class Looked:
    """What prepare would make of one source."""

    id: str
    name: str
    """Its path, or the corpus's own id; a path may say who was recorded."""
    format: str
    code: str = ""
    """Why it would be skipped, in a word; "" where it would be stored."""
    why: str = ""
    """The same in a sentence, as ``skipped.csv`` has it."""
    detail: str = ""
    """The sentence with the labels of the file."""
    labels: int | None = None
    """Signals in the file, whatever they are."""
    channels: int | None = None
    """Channels that would be stored; None where that is not known."""
    sfreq: float | None = None
    seconds: float | None = None
    longest: float | None = None
    """Seconds of its longest stretch without a gap that the head tells of."""
    notes: tuple[str, ...] = ()
    """Faults that would be mended or tolerated, in a word, and points to look at."""
    lost: tuple[str, ...] = ()
    """Labels that are not understood."""
    all_labels: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = field(default=(), repr=False)
    """The channels that would be stored."""
    remedies: tuple[Remedy, ...] = ()
    values: int = 0
    """Numbers that would be stored."""
    size: int = field(default=0, repr=False)

    @property
    def usable(self) -> bool:
        return not self.code


def look(job: Job, id: str, item: Item, name: str) -> Looked:
    """Find out what ``prepare`` would make of one source."""
    found = Looked(id, name, short_name(item.files[0]) if item.files else "", size=item.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's warning may quote a path or a header
        try:
            return _usable(found, job, plan_one(job, item))
        except Exception as error:  # whatever a reader raises: prepare skips the file for it
            skip = reason_of(error)
            found = replace(found, code=skip.code, why=skip.why, detail=str(error) if _ours(error) else skip.why)
            if isinstance(error, ChannelError):
                lost = _lost(job.recipe.policy, error.labels)
                found = replace(found, labels=_signals(error.labels), lost=lost, all_labels=error.labels)
            return replace(_with_head(found, job, item), remedies=tuple(_remedies(job, item, error)))


def together(looked: Sequence[Looked]) -> dict[str, str]:
    """Return one set of options for all sources that some tried options would make usable.

    Each option only allows more, so what is usable without it stays so.
    """
    found: dict[str, str] = {}
    for one in looked:
        tried = next((remedy.options for remedy in one.remedies[:1] if remedy.tried), {})
        for name, value in tried.items():
            mixed = name == "unknown" and found.get(name, value) != value
            found[name] = "nearest_or_drop" if mixed else value
    return found


def crashed(id: str, item: Item, name: str) -> Looked:
    """Return the verdict on a source that ends the process which reads it."""
    format = short_name(item.files[0]) if item.files else ""
    return Looked(id, name, format, "crash", CRASHED, CRASHED, size=item.size)


def _ours(error: Exception) -> bool:
    return isinstance(error, RecordingError | ChannelError)


def _usable(found: Looked, job: Job, prepared: Preprocessed) -> Looked:
    opened = prepared.recording
    longest = max(stretch.stop - stretch.start for stretch in opened.segments) / opened.sfreq
    notes = [opened.read.layout] if isinstance(opened.read, MatrixSamples) else []
    notes += sorted({fault.code for fault in opened.faults})
    lost = [row.label for row in opened.match.rows if row.outcome == "dropped"]
    notes += [f"{len(lost)} labels dropped"] if lost else []
    notes += [f"no window of {_SHORT:g} s"] if longest < _SHORT else []
    return replace(
        found,
        labels=_signals(_labels(opened)),
        channels=len(prepared.channels),
        sfreq=opened.sfreq,
        seconds=opened.seconds,
        longest=longest,
        notes=tuple(notes),
        lost=tuple(lost),
        all_labels=_labels(opened),
        names=tuple(channel.name for channel in prepared.channels),
        values=sum(prepared.plan.count(s.stop - s.start) for s in opened.segments) * len(prepared.channels),
    )


def _labels(opened: Recording) -> tuple[str, ...]:
    return tuple(row.label for row in opened.match.rows)


def _signals(labels: Sequence[str]) -> int | None:
    """Count the labels of signals; the annotations of EDF+ stand among them and are none."""
    return sum(label.casefold() not in ("edf annotations", "bdf annotations") for label in labels) or None


def _with_head(found: Looked, job: Job, item: Item) -> Looked:
    """Add what the head of a refused file tells nevertheless, opened with the most lenient choices."""
    try:
        opened = _open(job, item, {"unknown": "nearest_or_drop", "too_many": "nearest", "unit": "uV"})
    except ChannelError as error:
        return found if found.labels else replace(found, labels=_signals(error.labels))
    except Exception:
        return found
    return replace(found, labels=_signals(_labels(opened)), sfreq=opened.sfreq, seconds=opened.seconds)


def _lost(policy: ChannelPolicy, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels that are not understood, of all labels of a file that is refused for them."""
    try:
        rows = replace(policy, unknown="drop", duplicates="first", too_many="nearest").match(labels).rows
    except ChannelError:
        readings = zip(labels, map(parse, policy.named(labels)), strict=True)
        return tuple(label for label, reading in readings if reading.outcome in ("unknown", "positional"))
    return tuple(row.label for row in rows if row.outcome == "dropped")


def _has_twins(policy: ChannelPolicy, labels: tuple[str, ...]) -> bool:
    """Return whether two labels mean one channel."""
    channels = [channel for label in policy.named(labels) if (channel := parse(label).channel) is not None]
    return len(set(channels)) < len(channels)


# What would help


def _remedies(job: Job, item: Item, error: Exception) -> Iterator[Remedy]:
    """Yield the options that would make a source usable: the least that help first."""
    if isinstance(error, RecordingError) and error.options:
        yield Remedy({name: _VALUES[name] for name in error.options}, tried=False)
        return
    code = reason_of(error).code
    if code not in ("channels", "unit", "quality"):
        return
    helps: Remedy | None = None
    for options in _trials(job, item):
        if helps is not None and len(options) > len(helps.options):
            break
        channels = _channels_with(job, item, options)
        # Of those that drop channels, the one that keeps most.
        if channels is not None and (helps is None or channels > (helps.channels or 0)):
            helps = Remedy(options, True, channels)
        if helps is not None and "drop" not in helps.options.get("unknown", ""):
            break
    if helps is not None:
        yield helps
    lost = isinstance(error, ChannelError) and (
        _lost(job.recipe.policy, error.labels) or _has_twins(job.recipe.policy, error.labels)
    )
    if lost and (helps is None or "drop" in helps.options.get("unknown", "")):
        yield Remedy({"rename": _VALUES["rename"]}, tried=False)


def _trials(job: Job, item: Item) -> Iterator[dict[str, str]]:
    """Yield combinations of options that are not chosen yet, those with few first."""
    policy, choices = job.recipe.policy, job.choices
    unknown = ["", "nearest", "drop", "nearest_or_drop"] if policy.unknown == "error" else [""]
    many = ["", "nearest"] if policy.too_many == "error" else [""]
    unit = ["", "uV"] if item.as_unit is not None else [""]
    quality = ["", "keep"] if choices.quality != "keep" else [""]
    reference = ["", "as_recorded"] if choices.reference not in (None, "as_recorded") else [""]
    names = ("unit", "unknown", "too_many", "quality", "reference")
    every = [
        {name: value for name, value in zip(names, values, strict=True) if value}
        for values in product(unit, unknown, many, quality, reference)
    ]
    yield from sorted(filter(None, every), key=len)


def _channels_with(job: Job, item: Item, options: Mapping[str, str]) -> int | None:
    """Return how many channels would be stored with other options; None where the source would be skipped, too."""
    try:
        changed = _with_options(job, options)
        return len(plan_one(changed, _with_unit(item, options.get("unit"))).channels)
    except Exception:
        return None


def _open(job: Job, item: Item, options: Mapping[str, str]) -> Recording:
    return _with_unit(item, options.get("unit")).open(_with_options(job, options).recipe.policy)


def _with_options(job: Job, options: Mapping[str, str]) -> Job:
    policy = job.recipe.policy
    policy = replace(
        policy,
        unknown=options.get("unknown", policy.unknown),
        too_many=options.get("too_many", policy.too_many),
    )
    recipe, choices = replace(job.recipe, policy=policy), job.choices
    if "reference" in options:
        recipe = replace(recipe, signal=replace(recipe.signal, reference="as_recorded"))
    if "quality" in options:
        choices = replace(choices, quality="keep")
    return replace(job, recipe=recipe, choices=choices)


def _with_unit(item: Item, unit: str | None) -> Item:
    return item if unit is None or item.as_unit is None else replace(item, open=_Opening(item.as_unit, unit))


@dataclass(frozen=True)
class _Opening:
    """The ``open`` of an item with a unit."""

    open: Callable[[ChannelPolicy, str], Recording]
    unit: str

    def __call__(self, policy: ChannelPolicy) -> Recording:
        return self.open(policy, self.unit)
