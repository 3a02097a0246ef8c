"""The tables of scores: numbers for programs, lines for people, and the words for how each number was decided.

AUROC and both AUPR need no threshold. Accuracies, F1 and kappa take the most probable class, for two classes a
threshold of 0.5. ``predict`` decides at the threshold that validation chose, and so do events. Every table names its
rule, because a number without it is easily taken for another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_eeg.schema import to_dict
from cerebro_eeg.scores.classification import CalibrationCurve

_RANKS = ("auroc", "aupr_macro", "aupr_positive")
WITHOUT_THRESHOLD = "without a threshold"


def primary(kind: str, names: Sequence[str]) -> str:
    """Return the metric that stands for a task; ``predictions.headline`` selects by it on validation."""
    if kind == "regression":
        return "r2"
    return "auroc" if len(names) == 2 else "balanced_accuracy"


def by_rule(kind: str, names: Sequence[str], metrics: Sequence[str]) -> dict[str, list[str]]:
    """Return the metrics by the rule that decided, in words; the primary metric's rule comes first.

    A regression decides nothing, so its rule is empty.
    """
    if kind == "regression":
        return {"": list(metrics)}
    most = "by the most probable class" + (" (a threshold of 0.5)" if len(names) == 2 else "")
    found = {
        WITHOUT_THRESHOLD: [name for name in metrics if name in _RANKS],
        most: [name for name in metrics if name not in _RANKS],
    }
    first = WITHOUT_THRESHOLD if primary(kind, names) in _RANKS else most
    return {words: found[words] for words in sorted(found, key=lambda words: words != first) if found[words]}


def span(thresholds: Sequence[float]) -> str:
    """Return one threshold, or the range from the lowest to the highest of several trainings."""
    low, high = f"{min(thresholds):.3f}", f"{max(thresholds):.3f}"
    return low if low == high else f"{low} to {high}"


def event_words(scores: Sequence[Mapping[str, Any]]) -> str:
    """Return the heading of events with their threshold, from scores as ``test.json`` has them."""
    events, decided = [score["events"] for score in scores], [score["scores"]["at_threshold"] for score in scores]
    limits = [event["threshold"] for event in events]
    if not all(decided):
        words = f"at a threshold of {span(limits)}"
    elif limits == [at["threshold"] for at in decided]:
        words = f"at the same threshold ({span(limits)})"
    else:
        words = f"at a threshold of their own ({span(limits)}, chosen on validation over windows)"
    return f"events of {events[0]['name']} (SzCORE), {words}"


TITLES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "aupr_macro": "AUPR (macro)",
    "aupr_positive": "AUPR (positive class)",
    "f1_weighted": "F1, weighted",
    "f1": "F1",
    "kappa": "Cohen's kappa",
    "r2": "R2",
    "rmse": "RMSE",
}


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; None if these data do not determine it."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LevelScores:
    """Numbers over windows, recordings or subjects."""

    count: int
    draws: int
    """Draws that the intervals rest on: those with every class."""
    values: Mapping[str, Estimate]
    chance: Mapping[str, float | None]
    """Numbers of a guess that always gives the class shares; for values, their mean."""


@dataclass(frozen=True)
class Decided:
    """Numbers over windows or recordings that were decided by a threshold."""

    count: int
    draws: int
    """Draws that the intervals rest on: those with every class."""
    values: Mapping[str, Estimate]
    confusion: tuple[tuple[int, ...], ...]
    """Counts by true class and predicted class."""


@dataclass(frozen=True)
class AtThreshold:
    """Two classes decided as ``predict`` decides: by the threshold that was chosen on validation."""

    threshold: float
    chosen_on: str
    """window or recording; unknown for weights that do not record it."""
    positive: str
    levels: Mapping[str, Decided]
    """window, and recording if all windows of each recording have one truth."""


@dataclass(frozen=True)
class ClassCount:
    """Windows, recordings and subjects of a class."""

    name: str
    windows: int
    recordings: int
    subjects: int


@dataclass(frozen=True)
class SubjectRow:
    """Numbers of one subject, over its windows."""

    subject: str
    recordings: int
    windows: int
    values: Mapping[str, float | None]


@dataclass(frozen=True)
class Scores:
    """All scores of some predictions."""

    kind: str
    names: tuple[str, ...]
    windows: int
    recordings: int
    subjects: int
    resamples: int
    seed: int
    levels: Mapping[str, LevelScores]
    """window, and recording and subject if all windows of each have one truth."""
    classes: tuple[ClassCount, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    """Counts of windows by true class and most probable class."""
    calibration: CalibrationCurve | None
    by_subject: tuple[SubjectRow, ...]
    notes: tuple[str, ...]
    at_threshold: AtThreshold | None = None
    """None if no threshold was chosen."""

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    def text(self) -> str:
        lines = [f"{self.windows:,} windows, {self.recordings:,} recordings, {self.subjects:,} subjects"]
        lines += [
            f"  {of.name}: {of.windows:,} windows, {of.recordings:,} recordings, {of.subjects:,} subjects"
            for of in self.classes
        ]
        if (positive := positive_of(self.kind, self.names)) is not None:
            lines.append(f"positive: {positive}")
        for rule, metrics in by_rule(self.kind, self.names, tuple(self.levels["window"].values)).items():
            lines += ["", rule] if rule else [""]
            for name, level in self.levels.items():
                lines += [f"by {name} ({level.count:,}); 95 % interval over subjects{self._less(level.draws)}; chance"]
                lines += [_line(metric, level.values[metric], shown(level.chance[metric])) for metric in metrics]
        if self.confusion is not None:
            head = "windows by true class (rows) and most probable class (columns)"
            lines += ["", head, *self._confusion(self.confusion)]
        if self.at_threshold is not None:
            lines += ["", *self._decided(self.at_threshold)]
        if self.calibration is not None:
            lines += ["", f"expected calibration error {self.calibration.error:.3f}"]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _decided(self, found: AtThreshold) -> list[str]:
        lines = [f"{at_threshold_words([found.threshold], [found.chosen_on])}; positive: {found.positive}"]
        for name, level in found.levels.items():
            lines += [f"by {name} ({level.count:,}); 95 % interval over subjects{self._less(level.draws)}"]
            lines += [_line(metric, estimate) for metric, estimate in level.values.items()]
            lines += [f"{name}s by true class (rows) and the class that was said (columns)"]
            lines += self._confusion(level.confusion)
        return lines

    def _less(self, draws: int) -> str:
        return "" if draws == self.resamples else f", from {draws:,} of {self.resamples:,} draws"

    def _confusion(self, counts: tuple[tuple[int, ...], ...]) -> list[str]:
        width = max(8, *(len(name) for name in self.names), *(len(f"{n:,}") for row in counts for n in row))
        head = "  " + " " * width + "".join(f" {name:>{width}}" for name in self.names)
        rows = zip(self.names, counts, strict=True)
        return [head, *(f"  {name:>{width}}" + "".join(f" {n:>{width},}" for n in row) for name, row in rows)]


def title(metric: str) -> str:
    """Return the usual name of a metric: "r2 knee" becomes "R2 knee"."""
    first, _, rest = metric.partition(" ")
    return f"{TITLES.get(first, first)} {rest}".rstrip()


def shown(value: float | None) -> str:
    """Return a number with three digits, or n/a."""
    return "n/a" if value is None else f"{value:.3f}"


def positive_of(kind: str, names: Sequence[str]) -> str | None:
    """Return the class that a threshold and AUPR (positive class) refer to: the last of two; None for other tasks."""
    return names[-1] if kind == "classification" and len(names) == 2 else None


def at_threshold_words(thresholds: Sequence[float], chosen_on: Sequence[str]) -> str:
    """Return words for the thresholds of one training or several."""
    return f"at the threshold chosen on validation ({span(thresholds)}, {level_words(chosen_on)})"


def level_words(chosen_on: Sequence[str]) -> str:
    """Return words for the level, windows or recordings, over which thresholds were chosen."""
    return " or ".join("unknown level" if of == "unknown" else f"over {of}s" for of in dict.fromkeys(chosen_on))


def _line(metric: str, estimate: Estimate, chance: str = "") -> str:
    between = "n/a" if estimate.low is None else f"{shown(estimate.low)} to {shown(estimate.high)}"
    return f"  {title(metric):<21} {shown(estimate.value):>7}   {between:<16} {chance:>7}".rstrip()
