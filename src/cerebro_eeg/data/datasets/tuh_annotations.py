"""The annotations of the Temple corpora: ``.csv`` and ``.csv_bi``, and the older ``.tse``, ``.tse_bi``, ``.tse_agg``.

A ``.csv`` file begins with comments (``# version = csv_v1.0.0`` among them) and the line ``COLUMNS``; each row labels a
stretch of one channel, or of all of them where the channel is TERM. A ``.tse`` file begins with ``version =
tse_v1.0.0``; each row labels a stretch of all channels: start, stop, label, probability. Times are seconds from the
start of the recording. What no row names is not known: it is nothing, not background.

After the AAREADME files of TUSZ v1.5.0 and v2.0.3 (https://isip.piconepress.com/projects/nedc/html/tuh_eeg/) and public
code that reads these files; ``docs/corpora/tusz.md`` lists the sources.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cerebro_eeg.errors import RecordingError

COLUMNS = "channel,start_time,stop_time,label,confidence"
_CSV_VERSION = re.compile(r"#\s*version\s*=\s*csv_v1\.")
_TSE_VERSION = re.compile(r"version\s*=\s*tse_v1\.")


class Stretch(NamedTuple):
    """Seconds ``start`` to ``stop`` with a label."""

    start: float
    stop: float
    label: str


def read_annotation(path: Path, known: Collection[str]) -> list[Stretch]:
    """The rows of an annotation, of all channels; a label that is not known refuses it."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise _broken(f"cannot be read ({type(error).__name__})") from error
    rows = _csv_rows(lines) if path.suffix.startswith(".csv") else _tse_rows(lines)
    stretches = [_stretch(*row) for row in rows]
    unknown = sorted({found.label for found in stretches} - set(known))
    if unknown:
        raise _broken(f"has {len(unknown)} labels that this recipe does not know; expected {', '.join(known)}")
    if not stretches:
        raise _broken("has no rows")
    return stretches


def label_time(rows: Collection[Stretch], choose: Callable[[frozenset[str]], str | None]) -> list[Stretch]:
    """Each moment that a row names, by what ``choose`` makes of all its labels (None: nothing); equal neighbours join.

    Channels differ in when a seizure begins and ends, and sometimes in its type, so a moment may have several labels.
    """
    starting: dict[float, list[str]] = {}
    ending: dict[float, list[str]] = {}
    for row in rows:
        starting.setdefault(row.start, []).append(row.label)
        ending.setdefault(row.stop, []).append(row.label)
    times = sorted(starting.keys() | ending.keys())
    active: Counter[str] = Counter()
    found: list[Stretch] = []
    for time, following in pairwise(times):
        active.update(starting.get(time, ()))
        active.subtract(ending.get(time, ()))
        labels = frozenset(label for label, count in active.items() if count > 0)
        label = choose(labels) if labels else None
        if label is not None and found and found[-1].stop == time and found[-1].label == label:
            found[-1] = found[-1]._replace(stop=following)
        elif label is not None:
            found.append(Stretch(time, following, label))
    return found


def _csv_rows(lines: list[str]) -> list[tuple[str, str, str]]:
    if not any(_CSV_VERSION.match(line) for line in lines):
        raise _broken("has no line '# version = csv_v1.0.0'")
    head, *body = [line for line in lines if line and not line.startswith("#")] or [""]
    if head != COLUMNS:
        raise _broken(f"does not have the columns {COLUMNS}")
    fields = [line.split(",") for line in body]
    if any(len(row) != 5 for row in fields):
        raise _broken("has a row without 5 fields")
    return [(row[1], row[2], row[3]) for row in fields]


def _tse_rows(lines: list[str]) -> list[tuple[str, str, str]]:
    if not any(_TSE_VERSION.match(line) for line in lines):
        raise _broken("has no line 'version = tse_v1.0.0'")
    fields = [line.split() for line in lines if line and not line.startswith("#") and not _TSE_VERSION.match(line)]
    if any(len(row) != 4 for row in fields):
        raise _broken("has a row without 4 fields")
    return [(row[0], row[1], row[2]) for row in fields]


def _stretch(start: str, stop: str, label: str) -> Stretch:
    try:
        found = Stretch(float(start), float(stop), label.strip().lower())
    except ValueError as error:
        raise _broken("has a time that is not a number") from error
    if not 0 <= found.start <= found.stop < math.inf:  # false for NaN, too
        raise _broken("has a row that does not go from a start to a later stop")
    return found


def _broken(what: str) -> RecordingError:
    return RecordingError("annotation", f"the recording's annotation {what}; copy it anew from the corpus")
