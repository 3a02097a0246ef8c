"""``cerebro-eeg prepare``: the recordings of a corpus into a store; disk and time are estimated before it starts."""

import contextlib
import dataclasses
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro_eeg.commands.info_folder import FolderSurvey, survey_folder
from cerebro_eeg.commands.info_store import quality_words
from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.data.storing.speed import SPEED
from cerebro_eeg.errors import ConfigError, without_options
from cerebro_eeg.notebook import InFolder, by_column
from cerebro_eeg.progress import Progress, counted, in_bytes, in_time, time_left
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from cerebro_eeg.data.reading.recording import ChannelPolicy
    from cerebro_eeg.data.storing.change import Changed
    from cerebro_eeg.data.storing.prepare import Prepared
    from cerebro_eeg.data.storing.recipe import Item, Recipe
    from cerebro_eeg.runs.stored import OpenStore, StoreArrays

PROBES = 5  # recordings that are opened to estimate disk and time


@dataclass(frozen=True, repr=False)
class PrepareResult(InFolder):
    """What the store holds now, and which sources were skipped."""

    dataset: str
    part: str
    found: "Prepared"
    done: int
    """Recordings that this run stored or skipped."""
    show_paths: bool
    """Whether skipped sources may be named; a name may reveal who was recorded."""
    folder: str = field(compare=False)
    """The store."""

    def open(self) -> "OpenStore":
        """Open the store, to read windows from it."""
        from cerebro_eeg.runs.stored import open_store

        return open_store(self.folder)

    def arrays(self, task: str | None = None, **choices: Any) -> "StoreArrays":
        """Return the windows of the store as arrays: ``X, y, groups, info``. ``OpenStore.arrays`` has the choices."""
        return self.open().arrays(task, **choices)

    @property
    def trouble(self) -> str | None:
        """A line on what was skipped; None if nothing was."""
        if not self.skipped:
            return None
        codes = ", ".join(f"{code} {count:,}" for code, count in self.skipped.items())
        total = counted(sum(self.skipped.values()), "recording")
        return f"{total} skipped ({codes}); to_frame() and skipped.csv in the store have a sentence for each"

    def _headline(self) -> str:
        found = self.found
        return f"{self.folder}: {counted(found.recordings, 'recording')}, {found.hours:,.2f} h"

    def _facts(self) -> Mapping[str, object]:
        found = self.found
        return {
            "channels": ", ".join(f"{n} ({count:,})" for n, count in found.montages.items()) or "none",
            "notch": ", ".join(f"{rate} ({count:,})" for rate, count in found.mains.items()) or "none",
            "hash": found.hash,
        }

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per recording of the store, and one per source that was skipped, with the reason."""
        found = self.found
        rows: list[dict[str, Any]] = [{**row, "skipped": None, "why": None} for row in self.open().rows()]
        named = found.sources if self.show_paths else {}
        rows += [
            {
                "recording": id,
                "skipped": code,
                "why": found.why.get(id, remedy_of(code)),
                **({"path": named.get(id)} if named else {}),
            }
            for id, code in found.skipped.items()
        ]
        return by_column(rows)

    def _notes(self) -> Sequence[str]:
        return [line for line in (self.trouble, *(" ".join(line.split()) for line in self._to_look_at())) if line]

    @property
    def skipped(self) -> dict[str, int]:
        """Sources by reason."""
        return dict(sorted(Counter(self.found.skipped.values()).items()))

    @property
    def paths(self) -> dict[str, str]:
        """Reason by name of a skipped source; empty unless names may be shown."""
        return {name: self.found.skipped[id] for id, name in self.found.sources.items()} if self.show_paths else {}

    @property
    def exit_code(self) -> int:
        return 6 if self.skipped else 0

    def to_dict(self) -> dict[str, object]:
        found = self.found
        why = {name: found.why[id] for id, name in found.sources.items() if id in found.why}
        shown = {"skipped_paths": self.paths, "skipped_why": why} if self.show_paths else {}
        return {
            "dataset": self.dataset,
            "part": self.part,
            "recordings": found.recordings,
            "hours": found.hours,
            "montages": {str(channels): count for channels, count in found.montages.items()},
            "mains": found.mains,
            "upsampled": found.upsampled,
            "faults": found.faults,
            "quality": {name: {"count": count, "recordings": of} for name, (count, of) in found.quality.items()},
            "copies": found.copies,
            "labels_outside": found.outside,
            "skipped": self.skipped,
            "remedies": {code: remedy_of(code) for code in self.skipped},
            "tried_again_next_time": found.passing,
            **shown,
            "changed": None if found.changed is None else _changed_dict(found.changed),
            "hash": found.hash,
            "done": self.done,
            "done_before": found.done_before,
        }

    def text(self) -> str:
        found = self.found
        part = "" if self.part == "1/1" else f" of part {self.part}"
        if self.done:
            did = f"{counted(self.done, 'recording')}{part} done now, {found.done_before:,} before"
        else:
            did = f"nothing to do: {counted(found.done_before, 'recording')}{part} had been stored or skipped before"
            if self.skipped:
                did += f" (--retry tries the {sum(self.skipped.values()):,} skipped ones again)"
        notch = ", ".join(
            f"{rate} Hz ({n:,})" if rate != "none" else f"none ({n:,})" for rate, n in found.mains.items()
        )
        montages = ", ".join(f"{channels} ({count:,})" for channels, count in found.montages.items())
        lines = [
            f"{self.dataset}: {did}",
            f"  store     {counted(found.recordings, 'recording')}, {found.hours:,.2f} h",
            f"  channels  {montages or 'none'}",
            f"  notch     {notch or 'none'}",
            *([f"  upsampled {counted(found.upsampled, 'recording')}"] if found.upsampled else []),
            *self._to_look_at(),
            f"  hash      {found.hash}",
            *_changed_lines(found.changed, found.hash),
        ]
        if self.skipped:
            lines.append(
                f"  skipped   {sum(self.skipped.values()):,} (skipped.csv in the store has a sentence for each)"
            )
            lines += [f"    {code} {count:,}: {remedy_of(code)}" for code, count in self.skipped.items()]
        for id, name in found.sources.items() if self.show_paths else ():
            lines.append(f"    {one_line(name)}: {found.skipped[id]}{f': {found.why[id]}' if id in found.why else ''}")
        if found.passing:
            lines.append(
                f"  again     {counted(found.passing, 'recording')} could not be read this time; run the same command "
                "again, and it tries them"
            )
        return "\n".join(lines)

    def _to_look_at(self) -> Iterator[str]:
        found = self.found
        if found.faults:
            codes = ", ".join(f"{code} {count:,}" for code, count in found.faults.items())
            yield f"  faults    mended or lived with, in recordings: {codes}"
        if found.quality:
            yield f"  quality   {quality_words(found.quality)}"
        if found.copies:
            yield (
                f"  copies    {counted(found.copies, 'recording')} with the samples of another: splits may share them; "
                "remove the copies"
            )
        if found.outside:
            yield (
                f"  labels    of {counted(found.outside, 'recording')} lie mostly in time that was not recorded; are "
                "they in seconds?"
            )


GROUPS = {
    "first look": ("dry_run", "table"),
    "signals and channels": (
        *("mains", "reference", "causal", "quality", "unknown", "rename", "too_many", "max_channels"),
        *("unit", "sfreq", "channels_from"),
    ),
    "labels and splits": ("labels", "label", "subject", "split", "events", "positive", "task"),
    "privacy": ("key", "map", "show_paths"),
    "how it is carried out": ("out", "workers", "part", "dask", "retry", "anew"),
    "single corpora": ("exclude", "legacy", "protocol"),
}
"""The groups of the help."""


def _changed_dict(changed: "Changed") -> dict[str, object]:
    return {**dataclasses.asdict(changed), "kept": changed.kept}


def _changed_lines(changed: "Changed | None", hash: str) -> Iterator[str]:
    """Say what other options have changed, and what that means for runs that learned from the store."""
    if changed is None:
        return
    yield f"  changed   {changed.text()}"
    if changed.hash_before != hash:
        yield (
            f"  before    the hash was {changed.hash_before}; runs of that store neither go on nor are scored with "
            "this one: the earlier options make it again"
        )


def prepare(
    dataset: str,
    source: Path,
    /,
    *,
    out: Path | None = None,
    dry_run: bool = False,
    table: Path | None = None,
    workers: int = -1,
    part: str = "1/1",
    dask: str | None = None,
    retry: bool = False,
    anew: bool = False,
    mains: float | None = None,
    reference: Literal["as_recorded", "average", "linked_ears", "tcp", "double_banana"] | None = None,
    causal: bool = False,
    quality: Literal["keep", "drop", "refuse"] = "keep",
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None = None,
    too_many: Literal["error", "nearest"] | None = None,
    max_channels: int | None = None,
    rename: Path | None = None,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    exclude: str | None = None,
    labels: Path | None = None,
    label: str | None = None,
    subject: str | None = None,
    split: str | None = None,
    events: tuple[str, ...] = (),
    unit: Literal["uV", "nV", "mV", "V"] | None = None,
    sfreq: float | None = None,
    channels_from: Path | None = None,
    positive: str | None = None,
    task: str | None = None,
    legacy: bool = False,
    protocol: Literal["biofoundation"] | None = None,
) -> PrepareResult | FolderSurvey:
    """Filter, notch, resample and store every recording of a corpus; what cannot be used is listed with its reason.

    Interrupted or killed, start it again with the same arguments: it goes on, and ends with the same store. With other
    options it prepares again what they concern. The exit code is 6 where recordings were skipped.

    Try, for example:
      cerebro-eeg prepare openeeg path/to/pack --out my-store
      cerebro-eeg prepare folder path/to/files --dry-run
      cerebro-eeg prepare folder path/to/files --out my-store --labels table.csv --map names.json
      cerebro-eeg prepare tueg path/to/tueg --out my-store --exclude path/to/tuab --part 3/100

    Args:
        dataset: What the source is: openeeg, folder, bids, moabb, tueg, tuab, tusz, tuep, tusl, seed, neonate or mobi.
        source: The folder that holds the corpus; nothing is written to it.
        out: The folder of the store; made where there is none, gone on with where there is one.
        dry_run: Only say what would be made of each recording, from file headers, and which option would help
            those that would be skipped; nothing is stored.
        table: With dry-run: a CSV file to write, with a row for each recording.
        workers: Processes to use; -1 for one a core, 0 for none but this one.
        part: k/n, to prepare the k-th of n parts, each by a job of its own, at any time and into one store.
        dask: The address of a Dask scheduler, such as tcp://host:8786, to do the work on its cluster instead.
        retry: Try again what was skipped before. Without it only what a disk or a network may be to blame for is.
        anew: Change the options of a store also where that concerns most of its samples, which are then deleted and
            prepared again. Options that concern fewer are changed without it.
        mains: Mains frequency in Hz; otherwise the corpus's own, or what a look at some recordings shows.
        reference: What the channels are measured against; otherwise as the recipe says, mostly as recorded.
        causal: Filters that never look ahead, for models that will run on streams; otherwise zero-phase ones.
        quality: Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording.
        unknown: Channels whose labels are not understood: refuse the recording, drop them, or take the nearest
            electrode where the file has positions; otherwise as the recipe says.
        too_many: A recording with more than max-channels: refuse it, or keep the channels nearest to as many electrodes
            spread over the head.
        max_channels: The most channels of a recording; otherwise as the recipe says, mostly 64.
        rename: A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out.
        key: The file with the key that ids are made with, where a corpus does not keep its own; made where there is
            none. Without it, the one in your config folder.
        map: A private file, outside of the store, that is told which path and subject each id stands for.
        show_paths: Name the skipped sources; their paths may say who was recorded.
        exclude: tueg: whom to leave out: the folder of TUAB, a file with a subject a line, or none.
        labels: folder: the table with labels and subjects.
        label: folder: where in a path the label is: parent, top, or an expression with a group; bids: the column of
            participants.tsv, or task, session, run or acquisition of the names.
        subject: folder: where in a path the subject is: parent, top, or an expression with a group; moabb: numbers of
            the subjects to take, with commas.
        split: What no two splits share. seed: trials or subject; folder: subject, recording or trial; bids: subject;
            moabb: subject or session. Without it, folder and bids make splits by subject where labels have none; none
            makes none.
        events: folder, bids: names of events that may go into the store; moabb: the classes to take.
        unit: folder: the unit of channels whose own is blank or unknown, which are refused otherwise, and of tables
            of headsets, which have none.
        sfreq: folder: samples per second of arrays (.npy, .mat, tables of numbers) that do not say it; without it they
            are passed over.
        channels_from: folder: a text file with the channel names of arrays that do not say them, one a line.
        positive: folder, bids: of two classes the one that is looked for, such as sick of sick and well: AUPR (positive
            class), threshold, decisions and events are about it. Otherwise the last by the alphabet, or the larger
            number.
        task: bids: the task of the recordings to take; mobi: joints or goniometers; moabb: the class of the dataset.
        legacy: neonate: label window k with second k, as published code does.
        protocol: neonate, mobi: labels, splits and channels as in the scripts of the paper's group, to compare with
            their numbers; otherwise ours.
    """
    from cerebro_eeg.data.datasets import make_recipe, options_of
    from cerebro_eeg.data.reading.name_map import read_names
    from cerebro_eeg.data.storing import prepare as preparation
    from cerebro_eeg.data.storing.job import PrepareChoices
    from cerebro_eeg.data.storing.workers import check_start

    if workers:
        check_start()
    if workers < -1:
        raise ConfigError(f"workers is {workers}; expected -1 (one a core), 0 (this process alone) or more")
    if mains is not None and not 0 < mains < 1000:
        raise ConfigError(f"mains is {mains:g}; expected a frequency in Hz, such as 50 or 60")
    if out is None and not dry_run:
        raise ConfigError("--out is missing; name the folder of the store, or say --dry-run to look without storing")
    if table is not None and not dry_run:
        raise ConfigError("--table was given without --dry-run, whose table it is; leave it out")
    choices = PrepareChoices(
        mains=mains,
        quality=quality,
        reference=reference,
        causal=causal,
        unknown=unknown,
        too_many=too_many,
        max_channels=max_channels,
        names=None if rename is None else read_names(rename),
    )
    numbers = _read_part(part)
    offered = {
        "exclude": exclude,
        "labels": labels,
        "label": label,
        "subject": subject,
        "split": split,
        "events": events or None,
        "unit": unit,
        "sfreq": sfreq,
        "channels_from": channels_from,
        "positive": positive,
        "task": task,
        "legacy": legacy or None,
        "protocol": protocol,
    }
    given = {name: value for name, value in offered.items() if value is not None}
    recipe = make_recipe(dataset, source.absolute(), given)  # absolute: for workers on other machines
    lacking = [name for name in offered if name not in options_of(dataset)]
    count = _read_workers(workers)
    if dry_run or out is None:
        with without_options(lacking):
            return survey_folder(
                recipe, choices, workers=count, part=numbers, key=key, show_paths=show_paths, table=table
            )
    report = PrepareProgress(recipe, None if dask else count, choices.names)
    try:
        with without_options(lacking):
            found = preparation.prepare(
                recipe,
                out,
                choices,
                workers=count,
                dask=dask,
                part=numbers,
                retry=retry,
                anew=anew,
                key_file=key,
                map_file=map,
                comparing=report.comparing,
                say=report.say,
                before=report.before,
                progress=report.progress,
            )
    finally:
        report.end()
    return PrepareResult(dataset, part, found, report.done, show_paths, str(out))


def usage_hint(args: Sequence[str]) -> str | None:
    """Return what to say if the source was given without a word for what it is."""
    if not args or not Path(args[0]).is_dir() or (len(args) > 1 and not args[1].startswith("-")):
        return None
    folder = Path(args[0])
    if (folder / "store.json").is_file():
        return "a store was given, which prepare has made; cerebro-eeg info describes it"
    bids = (folder / "dataset_description.json").is_file()
    return (
        f"a folder was given, and not what it is; for {'a BIDS folder' if bids else 'any folder of EEG files'} say: "
        f"cerebro-eeg prepare {'bids' if bids else 'folder'} {shlex.join(args)}"
    )


def _read_workers(workers: int) -> int:
    from cerebro_eeg.data.storing.workers import cores

    return workers if workers >= 0 else cores()


def _read_part(text: str) -> tuple[int, int]:
    first, slash, second = text.partition("/")
    if not slash or not first.isdecimal() or not second.isdecimal():
        raise ConfigError(f"part is {text!r}; expected k/n, such as 3/100")
    return int(first), int(second)


# Lines on stderr


class PrepareProgress:
    """Prints what there is to do, the disk and time it will take, and how far it is.

    ``workers`` is None on a cluster, whose size is unknown.
    """

    def __init__(self, recipe: "Recipe", workers: int | None, names: "Mapping[str, str] | None" = None) -> None:
        self._recipe, self._workers, self._names = recipe, workers, names
        self._line = Progress()
        self._start = time.monotonic()
        self._first: tuple[float, int] | None = None
        self.done = 0

    def comparing(self, count: int, size: int) -> None:
        """Print that sources with a new date are read again, to compare them with what is stored."""
        self._line.say(
            f"{counted(count, 'stored recording')} {'has' if count == 1 else 'have'} a source that was copied or "
            f"touched since; reading {in_bytes(size)} to see whether it is the same"
        )

    def say(self, text: str) -> None:
        """Print a line; the clock of the work starts anew."""
        self._line.say(text)
        self._start = time.monotonic()

    def before(self, items: "Sequence[Item]", done_before: int) -> None:
        """Print what there is to do."""
        name, say = self._recipe.name, self._line.say
        if self._recipe.one_corpus and not self._recipe.tried_on_real_files:
            say(f"{name} was never run on the real corpus, only on files made after its description")
        size = sum(item.size for item in items)
        say(
            f"{name} ({self._recipe.about}): {counted(len(items), 'recording')} to prepare, {in_bytes(size)}; "
            f"{done_before:,} done before"
        )
        for hint in (*self._recipe.hints, *_say_positive(self._recipe)):
            say(hint)
        units = {task: found.split_unit or self._recipe.split_unit for task, found in self._recipe.tasks.items()}
        for unit in sorted(set(units.values()) - {"subject"}):
            tasks = ", ".join(task for task in units if units[task] == unit)
            say(f"splits of {tasks} are disjoint by {unit}, not by subject")
        if items and self._names and (line := _unmet(items, self._recipe, self._names, self._workers)) is not None:
            say(line)
        if items:
            say(_estimate(items, self._recipe, self._workers))
        self._start = time.monotonic()

    def progress(self, done: int, total: int, bytes_done: int, bytes_total: int) -> None:
        """Print how far it is."""
        self.done = done
        now = time.monotonic()
        # The pace counts from the first recording on: before it processes start, which is no part of the work.
        since, before = self._first = self._first or (now, bytes_done)
        if not self._line.due() and done < total:
            return
        left = "?" if done < total else in_time(0)
        if bytes_done > before and done < total:
            left = time_left(bytes_done - before, bytes_total - before, now - since)
        speed = bytes_done / max(now - self._start, 1e-9)
        self._line.show(
            f"{done:,}/{total:,} recordings, {in_bytes(bytes_done)} of {in_bytes(bytes_total)}, {in_bytes(speed)}/s, "
            f"{left} left"
        )

    def end(self) -> None:
        self._line.end()


def _say_positive(recipe: "Recipe") -> Iterator[str]:
    """Name the positive class of each task with two classes, so that users know it before they see a result."""
    for name, task in recipe.tasks.items():
        if task.kind == "classification" and len(task.names) == 2:
            other = f" (choose another with {recipe.positive_by})" if recipe.positive_by else ""
            yield f"classes of {name}: {', '.join(task.names)}; positive: {task.names[-1]}{other}"


def _unmet(items: "Sequence[Item]", recipe: "Recipe", names: "Mapping[str, str]", workers: int | None) -> str | None:
    """Return a line on names of --rename that no file has, after a look at the heads of all that are to be done."""
    from cerebro_eeg.data.reading.name_map import labels_of, unmet, unmet_words
    from cerebro_eeg.data.storing.workers import in_own_process

    policy = replace(recipe.policy, names=dict(names))
    openers = [item.open for item in items]
    labels = labels_of(openers, policy) if workers == 0 else in_own_process(labels_of, openers, policy)
    if labels is None:  # a file ended the process; it is skipped later
        return None
    absent = unmet(names, labels)
    return unmet_words(absent, labels) if absent else None


def _estimate(items: "Sequence[Item]", recipe: "Recipe", workers: int | None) -> str:
    """Estimate disk and time: open a few recordings of all sizes, and scale what they need by the bytes of all."""
    from cerebro_eeg.data.storing.workers import in_own_process

    ordered = sorted(items, key=lambda item: item.size)
    places = sorted({(2 * step + 1) * len(ordered) // (2 * PROBES) for step in range(PROBES)})
    probes = [ordered[place] for place in places]
    # A broken file can crash the process that opens it, which must not be this one.
    found = _probe(probes, recipe.policy) if workers == 0 else in_own_process(_probe, probes, recipe.policy)
    opened, probed, seconds = found or (0, 0, 0.0)
    if not probed:
        return f"disk and time cannot be estimated: none of the {len(places)} tried can be read"
    total = seconds * recipe.signal.sfreq * sum(item.size for item in items) / probed
    processes = f"{workers} processes" if workers and workers > 1 else "1 process"
    return (
        f"about {in_bytes(2 * total)} of disk and {in_time(total / SPEED / max(1, workers or 1))} with {processes} on "
        f"idle cores (from {opened} of the recordings, by size; 2 bytes a value at "
        f"{recipe.signal.sfreq:g} Hz, {SPEED / 1e6:g} million values a second and core)"
    )


def _probe(items: "Sequence[Item]", policy: "ChannelPolicy") -> tuple[int, int, float]:
    """Return how many of them can be opened, their bytes, and the seconds of all their channels."""
    opened, size, seconds = 0, 0, 0.0
    for item in items:
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # a bad file is skipped later, with its reason
            warnings.simplefilter("ignore")
            recording = item.open(policy)
            seconds += len(recording.match.channels) * recording.seconds
            opened, size = opened + 1, size + item.size
    return opened, size, seconds
