"""What a table lacks, in words: the columns that it has, those it needs, and which of the first may be meant.

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
_SHOWN = 12  # columns that a line lists
_LONGEST = 30  # letters of a name that are shown


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
