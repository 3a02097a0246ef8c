"""Seizure events: how many were found, and how many false alarms there were per day, as SzCORE defines both.

Windows are laid out on each recording's time line, one value per second; overlapping windows give their mean, weighted
by overlap. Package ``timescoring`` merges events less than 90 s apart and splits those longer than 5 minutes. It counts
an event as found if a detection overlaps it, from 30 s before its start to 60 s after its end. These are the
parameters of SzCORE: Dan et al., "SzCORE: Seizure Community Open-source Research Evaluation framework for the
validation of EEG-based automated seizure detection algorithms", https://arxiv.org/abs/2402.13005, and
https://eslweb.epfl.ch/epilepsybenchmarks/framework. Counts are summed over the recordings of a subject, and SzCORE
reports the mean over subjects. Seconds without a window hold no event and do not count as time without an alarm.

``write_events`` writes detections as SzCORE's TSV: one file per recording, one row per detected seizure, with columns
after HED-SCORE for BIDS. The columns and their order are those of https://epilepsybenchmarks.com/contribute and of
package ``epilepsy2bids``. A recording without a detection has one row ``bckg`` over its whole length. All recordings
have the same neutral date: stores know no dates, and none should come back this way.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.files import write_text
from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.predictions import draw, interval
from cerebro_eeg.scores.tables import Estimate

TOLERANCE_BEFORE, TOLERANCE_AFTER = 30.0, 60.0
OVERLAP = 0.0
"""Any overlap counts."""
LONGEST = 300.0
NEAREST = 90.0
NAMES = ("sensitivity", "precision", "f1", "false_alarms_per_day")
_NOT = re.compile(r"(^|[^a-z])(no|non|not|without|inter)([^a-z]|$)|free")


@dataclass(frozen=True, eq=False)
class TimeLine:
    """One recording with a value per second; NaN for seconds without a window."""

    subject: str
    truth: NDArray[np.float64]
    """Share of the windows of each second whose class is seizure."""
    probability: NDArray[np.float64]


@dataclass(frozen=True)
class EventScores:
    """Event-level scores, as SzCORE defines them."""

    name: str
    """The class of the events."""
    threshold: float
    seizures: int
    found: int
    false_alarms: int
    hours: float
    subjects: int
    pooled: Mapping[str, Estimate]
    """Numbers from counts over all recordings, with 95 % intervals over subjects."""
    by_subject: Mapping[str, float | None]
    """Means over the subjects that have a value, as SzCORE reports them."""

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def text(self) -> str:
        lines = [
            f"events of {self.name} (SzCORE), at a probability of {self.threshold:.2f} or more: {self.found:,} of "
            f"{self.seizures:,} found, {self.false_alarms:,} false alarms in {self.hours:,.1f} hours",
            "  over all recordings; 95 % interval over subjects; mean over subjects",
        ]
        for name, estimate in self.pooled.items():
            between = "n/a" if estimate.low is None else f"{estimate.low:.3f} to {estimate.high:.3f}"
            value, mean = ("n/a" if v is None else f"{v:.3f}" for v in (estimate.value, self.by_subject[name]))
            lines.append(f"  {name.replace('_', ' '):<20} {value:>7}   {between:<16} {mean:>7}")
        return "\n".join(lines)


def seizure_class(names: Sequence[str]) -> int | None:
    """Return the place of the one class of two that is called a seizure; None if there is none."""
    called = [k for k, name in enumerate(names) if "seiz" in name.lower() and not _NOT.search(name.lower())]
    return called[0] if len(names) == 2 and len(called) == 1 else None


def lay_out(
    start: NDArray[np.float64], seconds: float, values: NDArray[np.floating[Any]], length: int
) -> NDArray[np.float64]:
    """Return the values of windows as one per second: the mean, weighted by overlap; NaN without a window."""
    total, weight = np.zeros(length), np.zeros(length)
    first = np.floor(start).astype(np.int64)
    for step in range(int(np.ceil(seconds)) + 1):
        place = first + step
        overlap = np.minimum(start + seconds, place + 1.0) - np.maximum(start, place)
        there = (overlap > 1e-9) & (place >= 0) & (place < length)
        np.add.at(total, place[there], overlap[there] * values[there])
        np.add.at(weight, place[there], overlap[there])
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)


def score_events(
    lines: Mapping[str, TimeLine], name: str, *, threshold: float = 0.5, resamples: int = 1000, seed: int = 0
) -> EventScores:
    """Score the time lines of recordings.

    A true event is where the truth is at least one half, a detection where the probability reaches the threshold.
    """
    subjects = sorted({line.subject for line in lines.values()})
    counts = np.zeros((len(subjects), 4))
    for line in lines.values():
        counts[subjects.index(line.subject)] += _count(line, threshold)
    each = np.array([_compute(row) for row in counts])
    drawn = np.array([_compute(row) for row in draw(len(subjects), resamples, seed) @ counts])
    pooled = {}
    for k, (metric, value) in enumerate(zip(NAMES, _compute(counts.sum(0)), strict=True)):
        low, high = interval(drawn[:, k], len(subjects)) if np.isfinite(value) else (None, None)
        pooled[metric] = Estimate(_known(value), low, high)
    means = [_known(float(np.mean(of[np.isfinite(of)]))) if np.isfinite(of).any() else None for of in each.T]
    found, alarms, seizures, time = counts.sum(0).tolist()
    return EventScores(
        name,
        threshold,
        int(seizures),
        int(found),
        int(alarms),
        time / 3600,
        len(subjects),
        pooled,
        dict(zip(NAMES, means, strict=True)),
    )


def _count(line: TimeLine, threshold: float) -> NDArray[np.float64]:
    """Return the events found, the false alarms, the events, and the seconds with a window."""
    from timescoring.annotations import Annotation
    from timescoring.scoring import EventScoring

    parameters = EventScoring.Parameters(TOLERANCE_BEFORE, TOLERANCE_AFTER, OVERLAP, LONGEST, NEAREST)
    covered = np.isfinite(line.probability)
    truth = Annotation(np.where(covered, line.truth, 0.0) >= 0.5, 1)
    predicted = Annotation(covered & (np.where(covered, line.probability, 0.0) >= threshold), 1)
    scored = EventScoring(truth, predicted, parameters)
    return np.array([scored.tp, scored.fp, scored.refTrue, covered.sum()], np.float64)


def _compute(row: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the package's own formulas on sums of its counts; the package itself takes one recording only."""
    from timescoring.scoring import EventScoring

    total = EventScoring.__new__(EventScoring)
    total.tp, total.fp, total.refTrue, total.numSamples = row.tolist()
    total.fs = 1
    total.computeScores()
    return float(total.sensitivity), float(total.precision), float(total.f1), float(total.fpRate)


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


COLUMNS = ("onset", "duration", "eventType", "confidence", "channels", "dateTime", "recordingDuration")
DATE = "2000-01-01 00:00:00"


def find_events(
    probability: NDArray[np.float64], threshold: float, duration: float
) -> list[tuple[float, float, float]]:
    """Return onset, duration and mean probability of the stretches at or above the threshold."""
    predicted = np.concatenate([[False], np.nan_to_num(probability, nan=-1.0) >= threshold, [False]])
    edges = np.flatnonzero(np.diff(predicted.astype(np.int8)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(float(a), min(float(b), duration) - a, float(probability[a:b].mean())) for a, b in pairs]


def write_events(path: Path, probability: NDArray[np.float64], threshold: float, duration: float) -> None:
    """Write the detections of one recording that lasts ``duration`` seconds."""
    rows = [("\t".join(COLUMNS))]
    for onset, length, confidence in find_events(probability, threshold, duration):
        rows.append(_row(onset, length, "sz", f"{confidence:.2f}", duration))
    if len(rows) == 1:
        rows.append(_row(0.0, duration, "bckg", "n/a", duration))
    write_text(path, "\n".join(rows) + "\n")


def _row(onset: float, length: float, event: str, confidence: str, duration: float) -> str:
    return f"{onset:.2f}\t{length:.2f}\t{event}\t{confidence}\tn/a\t{DATE}\t{duration:.2f}"
