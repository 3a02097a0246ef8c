"""Columns of tables with other names than ours: which are taken by their meaning, and what a table lacks, in words.

``meanings`` takes a column for another one only where nobody can mean anything else. ``lacking`` says the columns that
a table has, those it needs, and which of the first may be meant.

The names of columns are shown only if the first line is plainly a header. A table without one would show its first row,
which may say who was recorded.
"""

from collections.abc import Collection, Sequence

from cerebro_eeg.schema import did_you_mean
from cerebro_eeg.terminal import one_line

# Usual names of columns, by the name that we know.
MEANT = {
    "file": ("filename", "file_name", "fname", "path", "filepath", "file_path", "recording", "edf", "files"),
    "subject": ("subject_id", "subjectid", "sub", "patient", "patient_id", "participant", "participant_id", "subjects"),
    "label": ("labels", "class", "condition", "diagnosis", "group", "category", "y", "outcome", "event", "trial_type"),
    "split": ("set", "fold", "partition", "subset", "splits"),
    "start": ("onset", "begin", "start_time", "t0", "from"),
    "stop": ("end", "offset", "stop_time", "t1", "to"),
    "target": ("targets", "value", "score", "age"),
    "participant_id": ("participant", "subject", "subject_id"),
    "onset": ("start", "begin"),
    "duration": ("length", "stop", "end"),
    "name": ("channel", "label", "electrode"),
}
_USUAL = {
    *MEANT,
    *(other for others in MEANT.values() for other in others),
    "sex",
    "gender",
    "hand",
    "handedness",
    "id",
}
# Those of them that are taken without asking, beside our names with capital letters.
_TAKEN = {
    "file": ("filename", "file_name", "fname", "path", "filepath", "file_path", "files"),
    "subject": ("subject_id", "subjectid", "subjects", "patient", "patient_id", "participant", "participant_id"),
    "label": ("labels", "class", "condition", "diagnosis", "category"),
    "split": ("splits", "partition", "subset"),
    "start": ("onset", "begin", "start_time"),
    "stop": ("end", "end_time", "stop_time"),
}
_SHOWN = 12  # columns that a line lists
_LONGEST = 30  # letters of a name that are shown


def meanings(columns: Sequence[str]) -> dict[str, str]:
    """Return our name of each column that has another name and one meaning; the order is that of the columns.

    A column is not taken where ours is there, or where two may be meant. Labels are not taken beside targets, nor a
    start without a stop.
    """
    found: dict[str, str] = {}
    for ours, others in _TAKEN.items():
        meant = [name for name in columns if name.casefold() in (ours, *others)]
        if ours not in columns and len(meant) == 1:
            found[meant[0]] = ours
    there = {*columns, *found.values()}
    if any(name.casefold().startswith("target") for name in columns):
        found = {name: ours for name, ours in found.items() if ours != "label"}
    if not {"start", "stop"} <= there:
        found = {name: ours for name, ours in found.items() if ours not in ("start", "stop")}
    return {name: found[name] for name in columns if name in found}


def lacking(columns: Sequence[str], needed: Collection[str]) -> str:
    """Return words for the columns of a table that lacks some of those it needs."""
    if not columns:
        return "it is empty"
    if not _USUAL.intersection(map(str.casefold, columns)):
        count = "1 value" if len(columns) == 1 else f"{len(columns)} values"
        return f"its first line has {count} and no usual name of a column; does it lack a line with the names"
    shown = [one_line(name[:_LONGEST]) or "(blank)" for name in columns[:_SHOWN]]
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    guesses = [f"{name}{guess}" for name in needed if name not in columns and (guess := _guess(name, columns))]
    return f"it has the columns {', '.join(shown)}{more}" + (f" and no {' and no '.join(guesses)}" if guesses else "")


def _guess(needed: str, columns: Sequence[str]) -> str:
    """Return which column may be meant by one that is missing."""
    others = {name.casefold(): name for name in columns}
    for usual in (needed, *MEANT.get(needed, ())):
        if usual.casefold() in others:
            return f" (did you mean {one_line(others[usual.casefold()])!r}? Rename it)"
    return did_you_mean(needed, columns)
