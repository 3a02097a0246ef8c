"""A summary of a recording as text for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro_eeg.commands.info_file import RecordingSummary

_SHOWN = 8  # faults of one kind, gaps and event names that are listed


def recording_text(found: "RecordingSummary") -> str:
    """What there is, what prepare would do, and the table of channels last, because it may be long."""
    lines = [] if found.refused is None else [f"REFUSED as it is: {found.refused}", "Without what is refused:", ""]
    kept = sum(channel.channel is not None for channel in found.channels)
    lines += [
        f"{found.format} ({found.tested})",
        "",
        f"signal      {kept} channels at {found.sfreq:g} Hz, {_time(found.seconds)}, {_segments(found)}",
        f"unit        {found.unit}",
        f"channels    {found.summary}",
        f"quality     {_quality(found)}",
        f"events      {_events(found)}",
        *_faults(found),
        *_prepared(found, kept),
        "",
        *_table(found),
    ]
    if found.plot is not None:
        lines += ["", "picture     written"]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.2f} s"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60:02d} min {rest % 60:02d} s" if hours else f"{rest // 60} min {rest % 60:02d} s"


def _segments(found: "RecordingSummary") -> str:
    if not found.gaps:
        return "no gap" if found.segments == 1 else f"{found.segments:,} segments"
    longest = sorted(found.gaps, key=lambda gap: -gap[1])[:_SHOWN]
    listed = ", ".join(f"{length:g} s at {at:g} s" for at, length in sorted(longest))
    more = f"; the {_SHOWN} longest: " if len(found.gaps) > _SHOWN else ": "
    return f"{found.segments:,} segments with {len(found.gaps):,} gap{'s' if len(found.gaps) > 1 else ''}{more}{listed}"


def _quality(found: "RecordingSummary") -> str:
    kept = [channel for channel in found.channels if channel.channel is not None]
    bad = [f"{channel.channel} ({', '.join(channel.faults)})" for channel in kept if channel.faults]
    return (
        f"{len(bad)} of {len(kept)} channels are bad: {', '.join(bad)}"
        if bad
        else f"all {len(kept)} channels are sound"
    )


def _events(found: "RecordingSummary") -> str:
    if not found.events:
        return "none"
    total = f"{found.events:,} with {found.event_names:,} different name{'' if found.event_names == 1 else 's'}"
    if found.events_by_name is None:
        return f"{total} (--show-events prints them; they may say who was recorded)"
    listed = list(found.events_by_name.items())
    more = f" and {len(listed) - 3 * _SHOWN} more names" if len(listed) > 3 * _SHOWN else ""
    return f"{total}: " + ", ".join(f"{name!r} {count:,}" for name, count in listed[: 3 * _SHOWN]) + more


def _faults(found: "RecordingSummary") -> Iterator[str]:
    if not found.faults:
        yield "faults      none"
    for number, (code, note) in enumerate(found.faults):
        yield f"{'faults' if number == 0 else '':10}  {code}: {note}"


def _prepared(found: "RecordingSummary", kept: int) -> Iterator[str]:
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


def _table(found: "RecordingSummary") -> Iterator[str]:
    rows = [("#", "label", "channel", "outcome", "rms uV", "quality", "note")]
    for channel in found.channels:
        quality = channel.quality
        rms = "" if quality is None else _two_digits(quality["rms"])
        verdict = "" if quality is None else ", ".join(channel.faults) or "sound"
        rows.append(
            (
                str(channel.index),
                channel.label or "''",
                channel.channel or "-",
                channel.outcome.replace("_", " "),
                rms,
                verdict,
                channel.note,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        cells = [row[0].rjust(widths[0]), *(row[c].ljust(widths[c]) for c in (1, 2, 3)), row[4].rjust(widths[4])]
        yield "  ".join([*cells, row[5].ljust(widths[5]), row[6]]).rstrip()
    yield ""
    yield "rms uV: within a second, median of all seconds, to about 6 %; slow drifts and rare artefacts are not in it"


def _two_digits(value: float) -> str:
    """12345.6 -> '12,000'; the meter knows no more digits than two."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
