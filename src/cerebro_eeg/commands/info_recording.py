"""``cerebro-eeg info FILE``: what prepare would make of one recording, without making it.

Samples are read once from start to end, in blocks; a recording of 24 hours needs no more memory than a short one.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import CerebroError, ChannelError, ConfigError, InputError, RecordingError
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    import mne

    from cerebro_eeg.data.filtering.plan import FilterPlan
    from cerebro_eeg.data.reading.arrays import ArrayFacts
    from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording

LONGEST = 120.0  # seconds in a picture; more would be a smear
_SHOWN = 8  # faults of one kind, gaps and event names that are listed


@dataclass(frozen=True)
class ChannelInfo:
    """One label of the file: the channel it stands for, and the faults of that channel."""

    index: int
    label: str
    outcome: str
    channel: str | None
    note: str
    quality: dict[str, Any] | None
    """Counts of ``ChannelQuality``; None if the label is not a channel."""
    faults: tuple[str, ...]
    """flat, clipped, disconnected, scaled, missing."""


@dataclass(frozen=True)
class PlanInfo:
    """How prepare would filter the recording."""

    text: str
    low_hz: float
    high_hz: float
    notch_hz: float | None
    mains_hz: float | None
    """Estimated from the signal; None if neither 50 nor 60 Hz stands out."""
    rate_hz: float
    up: int
    down: int
    stretches: int
    """Pieces that are filtered separately: segments, cut at missing samples."""
    short_stretches: int
    """Stretches that are shorter than the filter; their windows are flagged."""
    filter_seconds: float
    bytes: int
    """Size of the samples in a store."""


@dataclass(frozen=True, repr=False)
class RecordingSummary(Shown):
    """One recording, as it was read. It holds no path, no date and, unless asked for, no names of events."""

    format: str
    tested: str
    array: str | None
    """Shape of an array, and which of its axes was taken for time; None for other files."""
    unit: str
    """How the unit of the samples was decided."""
    sfreq: float
    seconds: float
    """Length of the signal; gaps do not count."""
    segments: int
    gaps: tuple[tuple[float, float], ...]
    """(start, length) in seconds."""
    summary: str
    """Which channels the labels stand for, in one line."""
    channels: tuple[ChannelInfo, ...]
    events: int
    event_names: int
    events_by_name: dict[str, int] | None
    """None unless names may be shown."""
    faults: tuple[tuple[str, str], ...]
    """(code, note)"""
    plan: PlanInfo | None
    """None if the filters do not fit the recording; ``refused`` says why."""
    refused: str | None
    """Why prepare would skip the recording; the other fields then leave out the labels that it refuses."""
    plot: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.refused is None else InputError.exit_code

    def to_dict(self) -> dict[str, object]:
        gaps = [{"at": at, "seconds": length} for at, length in self.gaps]
        faults = [{"code": code, "note": note} for code, note in self.faults]
        return {"kind": "recording", **asdict(self), "gaps": gaps, "faults": faults}

    def text(self) -> str:
        return recording_text(self)

    @property
    def trouble(self) -> str | None:
        """Why prepare would skip the recording; None if it would not."""
        return None if self.refused is None else f"the recording is refused as it is: {self.refused}"

    def _headline(self) -> str:
        kept = sum(channel.channel is not None for channel in self.channels)
        return f"{self.format}, {kept} channels at {self.sfreq:g} Hz, {_duration_words(self.seconds)}"

    def _facts(self) -> Mapping[str, object]:
        plan = {} if self.plan is None else {"prepare": self.plan.text}
        return {"channels": self.summary, "quality": _quality_line(self), "events": _event_words(self), **plan}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per label of the file."""
        return by_column(
            {
                "label": channel.label,
                "channel": channel.channel,
                "outcome": channel.outcome,
                "rms_uV": None if channel.quality is None else channel.quality["rms"],
                "faults": ", ".join(channel.faults),
                "note": channel.note,
            }
            for channel in self.channels
        )

    def _notes(self) -> Sequence[str]:
        return [*filter(None, [self.trouble]), *(f"{code}: {note}" for code, note in self.faults)]


def recording_text(found: "RecordingSummary") -> str:
    """Return the summary as text: the recording, what prepare would do, and last the table of channels."""
    lines = [] if found.refused is None else [f"REFUSED as it is: {found.refused}", "Without what is refused:", ""]
    kept = sum(channel.channel is not None for channel in found.channels)
    lines += [
        f"{found.format} ({found.tested})",
        "",
        f"signal      {kept} channels at {found.sfreq:g} Hz, {_duration_words(found.seconds)}, {_segment_words(found)}",
        *([] if found.array is None else [f"array       {found.array}"]),
        f"unit        {found.unit}",
        f"channels    {found.summary}",
        f"quality     {_quality_line(found)}",
        f"events      {_event_words(found)}",
        *_fault_lines(found),
        *_plan_lines(found, kept),
        "",
        *_channel_table(found),
    ]
    if found.plot is not None:
        lines += ["", "picture     written"]
    return "\n".join(lines)


def _duration_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.2f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60:02d} min {rest % 60:02d} s" if hours else f"{rest // 60} min {rest % 60:02d} s"


def _segment_words(found: "RecordingSummary") -> str:
    if not found.gaps:
        return "no gap" if found.segments == 1 else f"{found.segments:,} segments"
    longest = sorted(found.gaps, key=lambda gap: -gap[1])[:_SHOWN]
    listed = ", ".join(f"{length:g} s at {at:g} s" for at, length in sorted(longest))
    more = f"; the {_SHOWN} longest: " if len(found.gaps) > _SHOWN else ": "
    return f"{found.segments:,} segments with {len(found.gaps):,} gap{'s' if len(found.gaps) > 1 else ''}{more}{listed}"


def _quality_line(found: "RecordingSummary") -> str:
    kept = [channel for channel in found.channels if channel.channel is not None]
    bad = [f"{channel.channel} ({', '.join(channel.faults)})" for channel in kept if channel.faults]
    return (
        f"{len(bad)} of {len(kept)} channels are bad: {', '.join(bad)}"
        if bad
        else f"all {len(kept)} channels are sound"
    )


def _event_words(found: "RecordingSummary") -> str:
    if not found.events:
        return "none"
    total = f"{found.events:,} with {found.event_names:,} different name{'' if found.event_names == 1 else 's'}"
    if found.events_by_name is None:
        return f"{total} (--show-events prints them; they may say who was recorded)"
    listed = list(found.events_by_name.items())
    more = f" and {len(listed) - 3 * _SHOWN} more names" if len(listed) > 3 * _SHOWN else ""
    return f"{total}: " + ", ".join(f"{name!r} {count:,}" for name, count in listed[: 3 * _SHOWN]) + more


def _fault_lines(found: "RecordingSummary") -> Iterator[str]:
    if not found.faults:
        yield "faults      none"
    for number, (code, note) in enumerate(found.faults):
        yield f"{'faults' if number == 0 else '':10}  {code}: {note}"


def _plan_lines(found: "RecordingSummary", kept: int) -> Iterator[str]:
    plan = found.plan
    if plan is None:
        yield "prepare     cannot filter it"
        return
    yield f"prepare     {plan.text}"
    mains = "neither 50 nor 60 Hz stands out" if plan.mains_hz is None else f"{plan.mains_hz:g} Hz stands out"
    resampled = "" if plan.up == plan.down else f"resampled by {plan.up}/{plan.down}; "
    yield f"            mains: {mains}; {resampled}{plan.bytes / 1e6:,.3g} MB in a store"
    if plan.short_stretches:
        yield (
            f"            {plan.short_stretches:,} of {plan.stretches:,} stretches are shorter than the filter "
            f"({plan.filter_seconds:.3g} s): their windows will be flagged"
        )


def _channel_table(found: "RecordingSummary") -> Iterator[str]:
    rows = [("#", "label", "channel", "outcome", "rms uV", "quality", "note")]
    for channel in found.channels:
        quality = channel.quality
        rms = "" if quality is None else _two_digits(quality["rms"])
        verdict = "" if quality is None else ", ".join(channel.faults) or "sound"
        rows.append(
            (
                str(channel.index),
                one_line(channel.label) or "''",
                channel.channel or "-",
                channel.outcome.replace("_", " "),
                rms,
                verdict,
                one_line(channel.note),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        cells = [row[0].rjust(widths[0]), *(row[c].ljust(widths[c]) for c in (1, 2, 3)), row[4].rjust(widths[4])]
        yield "  ".join([*cells, row[5].ljust(widths[5]), row[6]]).rstrip()
    yield ""
    yield "rms uV: within a second, median of all seconds, to about 6 %; slow drifts and rare artefacts are not in it"


def _two_digits(value: float) -> str:
    """Format 12345.6 as '12,000', because the meter is accurate to two digits only."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def info_recording(
    source: "Path | str | Recording | mne.io.BaseRaw | mne.BaseEpochs",
    *,
    unknown: str = "error",
    unit: str | None = None,
    rename: Path | None = None,
    sfreq: float | None = None,
    channels_from: Path | None = None,
    show_events: bool = False,
    plot: Path | None = None,
    start: float | None = None,
    seconds: float = 10.0,
) -> RecordingSummary:
    """Describe a file, a Recording or an object of MNE, and with ``plot`` draw some seconds of it.

    Labels that prepare would refuse raise no error: they are named and left out, and ``exit_code`` is 3. A file that
    cannot be read truthfully raises a RecordingError with the code that ``skipped.csv`` would give.
    """
    from cerebro_eeg.config import SignalConfig
    from cerebro_eeg.data.filtering.filters import finite_runs
    from cerebro_eeg.data.preprocess import check_recording, plan_recording
    from cerebro_eeg.data.reading.amplitude import amplitude_faults
    from cerebro_eeg.data.reading.arrays import ArrayFacts, MatrixSamples, check_needed
    from cerebro_eeg.data.reading.name_map import read_channel_list, read_names, unmet, unmet_words
    from cerebro_eeg.data.reading.recording import Fault, Recording

    if plot is not None:
        from cerebro_eeg.report.figures import check_picture

        check_picture(plot)
        if not 0 < seconds <= LONGEST:
            raise ConfigError(f"--seconds is {seconds:g}; a picture shows more than 0 and up to {LONGEST:g} seconds")
    names = None if rename is None else read_names(rename)
    arrays = ArrayFacts(sfreq, () if channels_from is None else read_channel_list(channels_from))
    if not isinstance(source, Recording):
        check_needed(arrays, [Path(source)] if isinstance(source, str | Path) else [])
    recording, refused = _open(source, unknown, unit, names, arrays)
    absent = unmet(names or {}, [row.label for row in recording.match.rows])
    if not recording.samples:
        raise InputError("the recording has no samples; give one that has some")
    checked = check_recording(recording)
    faults, measured, verdicts = [*checked.faults], checked.quality, checked.channel_faults
    if not any(fault.code == "amplitude" for fault in faults):
        faults += amplitude_faults(recording)
    prepared = None
    try:
        prepared = plan_recording(checked, SignalConfig())
    except RecordingError as error:
        refused = refused or str(error)
    missing = any(channel.missing for channel in measured)
    stretches = finite_runs(recording) if missing else recording.segments
    if plot is not None:
        from cerebro_eeg.report.recording import plot_signal

        if prepared is None:
            raise InputError(f"no picture can be made: {refused}")
        plot_signal(prepared, stretches, verdicts, plot, start=start, seconds=seconds)
    if absent:
        faults.append(Fault("names", unmet_words(absent, [row.label for row in recording.match.rows])))
    found = Counter(event.name for event in recording.events)
    columns = {index: column for column, index in enumerate(recording.match.index)}
    name, tested = _format(source)
    return RecordingSummary(
        format=name,
        tested=tested,
        array=recording.read.layout if isinstance(recording.read, MatrixSamples) else None,
        unit=_unit(source, recording, unit),
        sfreq=recording.sfreq,
        seconds=recording.seconds,
        segments=len(recording.segments),
        gaps=_gaps(recording),
        summary=recording.match.summary(),
        channels=tuple(
            ChannelInfo(
                index=row.index,
                label=row.label,
                outcome=row.outcome,
                channel=None if row.channel is None else row.channel.name,
                note=row.note,
                quality=asdict(measured[columns[row.index]]) if row.index in columns else None,
                faults=verdicts[columns[row.index]] if row.index in columns else (),
            )
            for row in recording.match.rows
        ),
        events=len(recording.events),
        event_names=len(found),
        events_by_name=dict(found.most_common()) if show_events else None,
        faults=tuple((fault.code, fault.note) for fault in faults),
        plan=None
        if prepared is None
        else _plan(prepared.plan, checked.mains, [s.stop - s.start for s in stretches], len(columns)),
        refused=refused,
        plot=None if plot is None else str(plot),
    )


def _open(
    source: Any, unknown: str, unit: str | None, names: "Mapping[str, str] | None", arrays: "ArrayFacts"
) -> "tuple[Recording, str | None]":
    """Open the recording; if its labels would be refused, return why, and the recording without those labels."""
    from cerebro_eeg.data.reading.formats import open_recording
    from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording

    if isinstance(source, Recording):
        return source, None

    def opened(policy: "ChannelPolicy") -> "Recording":
        try:
            return open_recording(source, policy, unit=unit, arrays=arrays)
        except RecordingError as error:
            raise RecordingError(error.code, f"prepare would skip this recording as {error.code!r}: {error}") from error

    policy = ChannelPolicy(unknown=unknown, names=names)
    try:
        return opened(policy), None
    except ChannelError as error:
        lenient = replace(policy, unknown="drop", duplicates="first", too_many="nearest")
        with contextlib.suppress(ChannelError):
            return opened(lenient), str(error)
        raise


def _format(source: Any) -> tuple[str, str]:
    """Return the format by the suffix of the file, and how our reader of that format was tested."""
    from cerebro_eeg.data.reading.arrays import TABLES, is_plain
    from cerebro_eeg.data.reading.formats import FORMATS

    if not isinstance(source, str | Path):
        return f"an object, {type(source).__name__}", "as given"
    name = Path(source).name.casefold()
    found = [format for format in FORMATS if name.endswith(format.suffixes)]
    if len(found) > 1 and name.endswith(TABLES):
        plain = is_plain(Path(source))
        found = [format for format in found if (format.name == "table of numbers") == plain]
    tested = {"real": "tested on real files", "written": "tested on files written for it", "untested": "untested"}
    return " or ".join(f.name for f in found), ", ".join(dict.fromkeys(tested[f.tested] for f in found))


def _unit(source: Any, recording: "Recording", unit: str | None) -> str:
    """Say how the unit was decided. A header's unit is free text, so only known units are shown."""
    from cerebro_eeg.data.reading.arrays import is_plain
    from cerebro_eeg.data.reading.edf_header import read_header, text
    from cerebro_eeg.data.reading.edf_samples import UNITS, EdfSamples, opened

    if not isinstance(source, str | Path):
        return "microvolts, as the object says"
    if isinstance(recording.read, EdfSamples):
        with contextlib.suppress(CerebroError), opened(Path(source)) as (read, stamp):
            signals = read_header(read, stamp.size).signals
            own = Counter(text(signals[index].unit) for index in recording.match.index)
            said = [f"{name} ({n})" if name in UNITS else f"none that we know ({n})" for name, n in own.items()]
            asked = f", where taken as {unit}" if any(name not in UNITS for name in own) else ""
            return f"from each channel's header: {', '.join(said)}{asked}"
    if _format(source)[0].startswith(("Muse", "OpenBCI")) and not is_plain(Path(source)):
        return "microvolts, as the maker documents" if unit is None else f"{unit}, as asked for"
    if is_plain(Path(source)):
        return f"{unit}, as asked for, unless a file beside it says another" if unit else "as a file beside it says"
    return "as the file says, through its reader"


def _gaps(recording: "Recording") -> tuple[tuple[float, float], ...]:
    ends = [(s.onset + (s.stop - s.start) / recording.sfreq, s.onset) for s in recording.segments]
    return tuple((round(end, 6), round(begin - end, 6)) for (end, _), (_, begin) in pairwise(ends))


def _plan(plan: "FilterPlan", mains: float | None, lengths: Sequence[int], channels: int) -> PlanInfo:
    return PlanInfo(
        text=plan.text(),
        low_hz=plan.low,
        high_hz=plan.high,
        notch_hz=plan.notch,
        mains_hz=mains,
        rate_hz=plan.new_rate,
        up=plan.up,
        down=plan.down,
        stretches=len(lengths),
        short_stretches=sum(length < plan.length for length in lengths),
        filter_seconds=plan.length / plan.rate,
        bytes=2 * channels * sum(map(plan.count, lengths)),
    )
