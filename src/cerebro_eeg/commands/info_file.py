"""``cerebro-eeg info FILE``: what prepare would make of one recording, without making it.

Samples are read once from start to end, in blocks; a recording of 24 hours needs no more memory than a short one.
"""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import CerebroError, ChannelError, ConfigError, InputError, RecordingError

if TYPE_CHECKING:
    import mne

    from cerebro_eeg.data.filtering.plan import FilterPlan
    from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording

LONGEST = 120.0  # seconds in a picture; more would be a smear


@dataclass(frozen=True)
class ChannelInfo:
    """What became of one label, and for a channel what is wrong with it."""

    index: int
    label: str
    outcome: str
    channel: str | None
    note: str
    quality: dict[str, Any] | None
    """Counts of ``ChannelQuality``; None where the label is no channel."""
    faults: tuple[str, ...]
    """flat, clipped, disconnected, scaled, missing."""


@dataclass(frozen=True)
class PlanInfo:
    """What prepare would do."""

    text: str
    low_hz: float
    high_hz: float
    notch_hz: float | None
    mains_hz: float | None
    """As estimated from the signal; None where neither 50 nor 60 Hz stands out."""
    rate_hz: float
    up: int
    down: int
    stretches: int
    """Pieces that are filtered each by itself: segments, cut at missing samples."""
    short_stretches: int
    """Shorter than the filter, so flagged."""
    filter_seconds: float
    bytes: int
    """Of samples in the store."""


@dataclass(frozen=True)
class RecordingSummary:
    """One recording, as read. Holds no path, no date and, unless they were asked for, no names of events."""

    format: str
    tested: str
    unit: str
    """How it was decided what the numbers are."""
    sfreq: float
    seconds: float
    """Of signal; gaps do not count."""
    segments: int
    gaps: tuple[tuple[float, float], ...]
    """(where, how long) in seconds."""
    summary: str
    """What became of the labels, in a line."""
    channels: tuple[ChannelInfo, ...]
    events: int
    event_names: int
    events_by_name: dict[str, int] | None
    """None unless names may be shown."""
    faults: tuple[tuple[str, str], ...]
    """(code, note)"""
    plan: PlanInfo | None
    """None where the filters do not fit the recording; ``refused`` says why."""
    refused: str | None
    """Why prepare would skip the recording as it is; the rest then leaves out the labels in question."""
    plot: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.refused is None else InputError.exit_code

    def to_dict(self) -> dict[str, object]:
        gaps = [{"at": at, "seconds": length} for at, length in self.gaps]
        faults = [{"code": code, "note": note} for code, note in self.faults]
        return {"kind": "recording", **asdict(self), "gaps": gaps, "faults": faults}

    def text(self) -> str:
        from cerebro_eeg.commands.info_file_text import recording_text

        return recording_text(self)


def info_file(
    source: "Path | str | Recording | mne.io.BaseRaw | mne.BaseEpochs",
    *,
    unknown: str = "error",
    unit: str | None = None,
    show_events: bool = False,
    plot: Path | None = None,
    start: float | None = None,
    seconds: float = 10.0,
) -> RecordingSummary:
    """Describe a file, a Recording or an object of MNE, and with ``plot`` draw some seconds of it.

    Labels that prepare would refuse do not end it: they are named, left out, and ``exit_code`` is 3. A file that cannot
    be read truthfully raises a RecordingError, whose code is what ``skipped.csv`` would say.
    """
    from cerebro_eeg.config import SignalConfig
    from cerebro_eeg.data.filtering.filters import finite_runs
    from cerebro_eeg.data.preprocess import check_recording, plan_recording
    from cerebro_eeg.data.reading.amplitude import amplitude_faults

    if plot is not None:
        from cerebro_eeg.report.picture import check_picture

        check_picture(plot)
        if not 0 < seconds <= LONGEST:
            raise ConfigError(f"--seconds is {seconds:g}; a picture shows more than 0 and up to {LONGEST:g} seconds")
    recording, refused = _open(source, unknown, unit)
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
        from cerebro_eeg.report.signal_plot import plot_signal

        if prepared is None:
            raise InputError(f"no picture can be made: {refused}")
        plot_signal(prepared, stretches, verdicts, plot, start=start, seconds=seconds)
    names = Counter(event.name for event in recording.events)
    columns = {index: column for column, index in enumerate(recording.match.index)}
    name, tested = _format(source)
    return RecordingSummary(
        format=name,
        tested=tested,
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
        event_names=len(names),
        events_by_name=dict(names.most_common()) if show_events else None,
        faults=tuple((fault.code, fault.note) for fault in faults),
        plan=None
        if prepared is None
        else _plan(prepared.plan, checked.mains, [s.stop - s.start for s in stretches], len(columns)),
        refused=refused,
        plot=None if plot is None else str(plot),
    )


def _open(source: Any, unknown: str, unit: str | None) -> "tuple[Recording, str | None]":
    """The recording, and why its labels would be refused; then it is without the labels that nobody understands."""
    from cerebro_eeg.data.reading.formats import open_recording
    from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording

    if isinstance(source, Recording):
        return source, None

    def opened(policy: "ChannelPolicy") -> "Recording":
        try:
            return open_recording(source, policy, unit=unit)
        except RecordingError as error:
            raise RecordingError(error.code, f"prepare would skip this recording as {error.code!r}: {error}") from error

    policy = ChannelPolicy(unknown=unknown)
    try:
        return opened(policy), None
    except ChannelError as error:
        lenient = replace(policy, unknown="drop", duplicates="first", too_many="nearest")
        with contextlib.suppress(ChannelError):
            return opened(lenient), str(error)
        raise


def _format(source: Any) -> tuple[str, str]:
    """What the suffix says the file is, and on what our reader of it was tried."""
    from cerebro_eeg.data.reading.formats import FORMATS

    if not isinstance(source, str | Path):
        return f"an object, {type(source).__name__}", "as given"
    name = Path(source).name.casefold()
    found = [format for format in FORMATS if name.endswith(format.suffixes)]
    tested = {"real": "tested on real files", "written": "tested on files written for it", "untested": "untested"}
    return " or ".join(f.name for f in found), ", ".join(dict.fromkeys(tested[f.tested] for f in found))


def _unit(source: Any, recording: "Recording", unit: str | None) -> str:
    """How it was decided. The unit of a header is free text: only those we know are shown."""
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
    if _format(source)[0].startswith(("Muse", "OpenBCI")):
        return "microvolts, as the maker documents" if unit is None else f"{unit}, as asked for"
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
