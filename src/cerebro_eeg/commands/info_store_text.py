"""A summary of a store as text for people."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cerebro_eeg.progress import counted

if TYPE_CHECKING:
    from cerebro_eeg.commands.info_store import Amount, StoreSummary, TaskInfo

_SETS = 5  # electrode sets that are named
_NAMES = 10  # electrodes of a set that are named
_CLASSES = 8  # classes of a task that are named
_SAMPLES = ("not_finite", "too_large")  # the counts of quality that are samples; the others are channels


def store_text(found: "StoreSummary") -> str:
    """The summary, most wanted first."""
    lines = [] if found.unfinished is None else [f"UNFINISHED: {found.unfinished}", ""]
    ids = "the corpus's own ids" if found.own_ids else "ids are keyed hashes"
    lines += [
        f"store of {found.dataset} ({ids})",
        "",
        f"recordings  {found.total.recordings:,}, {found.total.hours:,.2f} h, {found.bytes / 1e6:,.0f} MB of samples",
        f"subjects    {found.subjects:,}{_unknown_subjects(found)}",
        f"channels    {_joined(found.channel_counts)}",
        f"rates       {_joined(found.rates, ' Hz')} stored; recorded at {_joined(found.native_rates, ' Hz')}",
        f"segments    {found.segments:,}; {_short(found)}",
        f"signal      {_settings(found)}",
        f"hash        {found.hash}",
        "",
        *_montages(found),
        "",
        *_tasks(found),
        "",
        *_troubles(found),
    ]
    if found.plot is not None:
        lines += ["", "picture     written"]
    return "\n".join(lines)


def _unknown_subjects(found: "StoreSummary") -> str:
    return f"; {found.without_subject:,} recordings without one" if found.without_subject else ""


def _joined(amounts: "dict[int, Amount] | dict[float, Amount]", unit: str = "") -> str:
    items = [f"{key:g}{unit} ({a.recordings:,}, {a.hours:,.2f} h)" for key, a in amounts.items()]
    return ", ".join(items) or "none"


def _short(found: "StoreSummary") -> str:
    if not found.short_segments:
        return "all longer than the filter"
    return (
        f"{found.short_segments:,} ({found.short_hours:,.2f} h) shorter than the filter: their windows are flagged"
        " (flagged='drop' leaves them out)"
    )


def _settings(found: "StoreSummary") -> str:
    signal = found.settings.get("signal")
    if not isinstance(signal, dict):
        return "the settings name no signal"
    notched = ", ".join(f"{line}{'' if line == 'none' else ' Hz'} ({n:,})" for line, n in found.notched.items())
    recipe = f"recipe {found.settings.get('recipe', found.dataset)}, version {found.settings.get('version', '?')}"
    return (
        f"{signal.get('highpass', '?')} to {signal.get('lowpass', '?')} Hz, {signal.get('filter_phase', '?')} phase, "
        f"reference {str(signal.get('reference', '?')).replace('_', ' ')}; {recipe}\n"
        f"            notch {notched or 'none'}; bad channels: {found.settings.get('quality', '?')}"
    )


def _montages(found: "StoreSummary") -> Iterator[str]:
    count = len(found.montages)
    yield f"electrode sets: {count:,}{f', the {_SETS} most common' if count > _SETS else ''}"
    for names, amount in found.montages[:_SETS]:
        more = f" ... {len(names) - _NAMES} more" if len(names) > _NAMES + 1 else ""
        shown = " ".join(names[:_NAMES] if more else names)
        yield f"  {amount.recordings:>7,} recordings {amount.hours:>9,.2f} h  {len(names):>3}: {shown}{more}"


def _tasks(found: "StoreSummary") -> Iterator[str]:
    unit = found.settings.get("split_unit", "subject")
    if not found.tasks:
        yield "tasks: none"
        return
    yield (
        f"tasks (no {unit} may be in two splits)" if unit != "none" else "tasks (splits may share anything but windows)"
    )
    wide = max(len(split) for task in found.tasks.values() for split in (*task.splits, ""))
    for name, task in found.tasks.items():
        yield f"  {name}: {_kind(task)}, windows of {task.window_seconds:g} s every {task.stride_seconds:g} s"
        for split, part in task.splits.items():
            labels = list(part.labels.items())
            shown = ", ".join(f"{label} {count:,}" for label, count in labels[:_CLASSES])
            more = f" and {len(labels) - _CLASSES} more classes" if len(labels) > _CLASSES else ""
            yield (
                f"    {split:{wide}}  {part.windows:>8,} windows {part.seconds / 3600:>9,.2f} h "
                f"{part.subjects:>6,} subjects {part.recordings:>7,} recordings  {shown}{more}"
            ).rstrip()
        if not task.splits:
            yield "    no recording has it"
        if task.problem is not None:
            yield f"    PROBLEM: {task.problem}"


def _kind(task: "TaskInfo") -> str:
    if task.kind == "regression":
        return f"regression of {len(task.names)} target{'' if len(task.names) == 1 else 's'}"
    return f"{len(task.names)} classes" if task.kind == "classification" else "no labels"


def quality_words(quality: Mapping[str, tuple[int, int]]) -> str:
    """'2 flat channels in 1 recording; ...'; nothing where nothing was counted."""
    return "; ".join(
        f"{counted(count, name.replace('_', ' ') + (' sample' if name in _SAMPLES else ' channel'))} in "
        f"{counted(of, 'recording')}"
        for name, (count, of) in quality.items()
        if count
    )


def _troubles(found: "StoreSummary") -> Iterator[str]:
    skipped = ", ".join(f"{code} {count:,}" for code, count in found.skipped.items())
    total = sum(found.skipped.values())
    yield f"skipped     {f'{total:,} sources: {skipped} (skipped.csv lists them)' if total else 'none'}"
    faults = ", ".join(f"{code} {count:,}" for code, count in found.faults.items())
    yield f"faults      {f'mended or lived with, in recordings: {faults}' if faults else 'none'}"
    yield f"quality     {quality_words(found.quality) or 'no bad channel was counted'}"
    if found.parts is not None:
        count, silent = found.parts
        words = f"{count - len(silent):,} of {count:,} have written"
        if silent:
            named = ", ".join(map(str, silent[:10])) + (", ..." if len(silent) > 10 else "")
            words += f"; not {named} (not run yet, or without recordings of their own)"
        yield f"parts       {words}"
