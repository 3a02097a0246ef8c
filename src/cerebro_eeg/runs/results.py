"""Results of ``pretrain``, ``finetune`` and ``evaluate``: one type per verb, as text for people and JSON for programs.

The command line resolves the types of a verb before it runs, so this module loads neither torch nor NumPy.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cerebro_eeg.notebook import InFolder, by_column
from cerebro_eeg.progress import counted, in_time


@dataclass(frozen=True, repr=False)
class PretrainResult(InFolder):
    """The result of a pre-training run."""

    folder: str
    steps: int
    epochs: float
    windows: int
    """Windows of an epoch."""
    batch_size: int
    loss: float
    """Loss of the last step."""
    validation: dict[str, float]
    """The last validation; empty without validation windows."""
    sha256: str
    """SHA-256 of the weights."""
    seconds: float = field(compare=False)
    first: bool = True
    """Whether this is the first process of the run, which writes and prints for all."""

    def to_dict(self) -> dict[str, object]:
        found = asdict(self)
        del found["first"]
        return found

    def text(self) -> str:
        lines = [
            f"pre-trained in {self.folder}",
            f"  steps       {self.steps:,} of {self.batch_size:,} windows: {self.epochs:.2f} epochs",
            f"  loss        {self.loss:.4f} in the last step",
        ]
        if self.validation:
            masked = self.validation["validation_masked"]
            lines.append(
                f"  validation  masked error {masked:.4f} of the variance, on windows that were not trained on"
            )
        lines += [
            f"  weights     model.safetensors, SHA-256 {self.sha256[:16]}...",
            "  to look at  report.html" if (Path(self.folder) / "report.html").exists() else "",
            f"  time        {in_time(self.seconds)}",
        ]
        return "\n".join(line for line in lines if line)

    def _headline(self) -> str:
        return f"{self.steps:,} steps in {self.folder}, loss {self.loss:.4f}"

    def _facts(self) -> Mapping[str, object]:
        return {
            "epochs": self.epochs,
            "windows of a step": self.batch_size,
            **{name.replace("_", " "): value for name, value in self.validation.items()},
            "weights": f"SHA-256 {self.sha256[:16]}...",
            "time": in_time(self.seconds),
            **report_fact(self.folder),
        }

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        from cerebro_eeg.train.log import read_lines

        return by_column(read_lines(Path(self.folder) / "metrics.jsonl"))


@dataclass(frozen=True)
class TrainedResult:
    """The result of one training: one seed and, with folds, one fold."""

    folder: str
    fold: str
    seed: int
    steps: int
    metric: str
    """Name of the score that selects on validation."""
    validation: float | None
    """The best score on validation; None without validation windows."""
    threshold: float | None
    chosen: int | None = None
    """The step whose weights were the best on validation; 0 is the probe that --few begins with."""


@dataclass(frozen=True, repr=False)
class FinetuneResult(InFolder):
    """The results of all trainings of one ``finetune``."""

    folder: str
    task: str
    unit: str
    trained: tuple[TrainedResult, ...]
    seconds: float = field(compare=False)
    positive: str | None = None
    """The class that the threshold refers to; None unless there are two classes."""
    one_for_all: str | None = None
    """A sentence that says that one training stands for several seeds; None if each seed was trained."""
    first: bool = True
    """Whether this is the first process of the run, which writes and prints for all."""
    seen: Mapping[str, Any] | None = None
    """Whether the weights that training began with had learned from the test subjects (``SeenBefore``)."""
    rivals: Sequence[Mapping[str, Any]] | None = None
    """How simple features with a linear model do on the validation windows; None if they were not asked for."""

    def to_dict(self) -> dict[str, object]:
        found = asdict(self)
        del found["first"]
        return found

    def text(self) -> str:
        lines = [f"{self.task}: {len(self.trained)} trained in {self.folder}; splits share no {self.unit}"]
        for one in self.trained:
            score = "no validation data" if one.validation is None else f"validation {one.metric} {one.validation:.4f}"
            steps = f", {one.steps:,} steps" if one.steps else ""
            steps += ", none better than the probe" if one.chosen == 0 else ""
            limit = "" if one.threshold is None else f", threshold {one.threshold:.3f}"
            lines.append(f"  {one.fold + ' ' if one.fold else ''}seed {one.seed}  {score}{limit}{steps}")
        scores = [one.validation for one in self.trained if one.validation is not None]
        if len(scores) > 1:
            mean, spread = statistics.fmean(scores), statistics.stdev(scores)
            lines.append(
                f"  validation {self.trained[0].metric}: {mean:.4f} ± {spread:.4f} (mean and deviation of all)"
            )
        if self.one_for_all is not None:
            lines.append(f"  {self.one_for_all}")
        if self.seen is not None:
            lines.append(f"  {self.seen['text']}")
        if self.positive is not None:
            lines.append(f"  positive: {self.positive} (the threshold speaks of it)")
        if not (Path(self.folder) / "test.json").exists():  # a finished run may have been scored before
            lines.append("  the test split was not looked at: cerebro-eeg evaluate scores it, once")
        lines.append(f"  time  {in_time(self.seconds)}")
        if self.rivals is not None:
            from cerebro_eeg.runs.rivals import rival_lines, saved_words

            lines += rival_lines(self.rivals, "validation")
            lines += [f"  {line}" for line in filter(None, [saved_words(Path(self.folder), self.rivals)])]
        return "\n".join(lines)

    def _headline(self) -> str:
        found = [one.validation for one in self.trained if one.validation is not None]
        score = f"; validation {self.trained[0].metric} {statistics.fmean(found):.4f}" if found else ""
        return f"{self.task}: {counted(len(self.trained), 'training')} in {self.folder}{score}"

    def _facts(self) -> Mapping[str, object]:
        positive = {} if self.positive is None else {"positive class": self.positive}
        unit = {"splits share no": self.unit}
        return {**unit, **positive, "time": in_time(self.seconds), **report_fact(self.folder)}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        return by_column(asdict(one) for one in self.trained)

    def _notes(self) -> Sequence[str]:
        found = [self.one_for_all, None if self.seen is None else self.seen["text"]]
        if not (Path(self.folder) / "test.json").exists():
            found.append("the test split was not looked at: evaluate scores it, once")
        if self.rivals is not None:
            from cerebro_eeg.runs.rivals import rival_notes, verdict

            found += [verdict(self.rivals), *rival_notes(self.rivals)]
        return [line for line in found if line]


@dataclass(frozen=True, repr=False)
class EvaluateResult(InFolder):
    """Scores of a run: the mean over its seeds, and the scores of each training."""

    folder: str
    split: str
    task: Mapping[str, Any]
    unit: str
    """The unit that no two splits share: subject or recording."""
    scorings: int
    """How often the test split was scored, with this time; 0 for validation."""
    fresh: bool
    """Whether the score was made now; otherwise it is the first score, unchanged."""
    summary: Mapping[str, Any]
    first: Mapping[str, Any] | None
    """The summary of the first scoring, if this is a later one."""
    trainings: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    seen: Mapping[str, Any] | None = None
    """Whether the weights had learned from the tested subjects before their fine-tuning (``SeenBefore``)."""
    rivals: Sequence[Mapping[str, Any]] | None = None
    """How simple features with a linear model do on the same test windows; None if they were not asked for."""
    external: Mapping[str, Any] | None = None
    """What was scored of another store than the run's own: data set, task, split, classes, differences, overlap."""

    @property
    def exit_code(self) -> int:
        """6 if external recordings were left out for want of channels."""
        return 6 if self.external is not None and self.external["unreadable"] else 0

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "trainings": list(self.trainings), "notes": list(self.notes)}

    def text(self) -> str:
        from cerebro_eeg.scores.tables import by_rule, event_words, positive_of

        seeds, folds = counted(len(self.summary["seeds"]), "seed"), len(self.summary["folds"])
        of_folds = f" of {folds} folds" if folds else ""
        lines = [
            f"{self.task['task']}: {self.task['kind']}, {', '.join(self.task['names'])}; {self._where()}",
            f"  trainings  {seeds}{of_folds} in {self.folder}",
            *self._apart(),
            *([] if self.seen is None else [f"  before     {self.seen['text']}"]),
            f"  scored     {self._times()}",
            f"  primary    {self._primary()}",
        ]
        if (positive := positive_of(self.task["kind"], self.task["names"])) is not None:
            lines.append(f"  positive:  {positive} (AUPR (positive class) and the threshold speak of it)")
        lines += _class_lines(self.trainings[0]["scores"])
        levels = self.summary["levels"]
        for rule, metrics in by_rule(self.task["kind"], self.task["names"], tuple(levels["window"]["values"])).items():
            lines += ["", rule] if rule else [""]
            for name, level in levels.items():
                values = {metric: level["values"][metric] for metric in metrics}
                lines += _score_lines(f"by {name} ({_count_range(level['count'])})", values)
        lines += self._at_threshold()
        if "events" in self.summary:
            lines += ["", event_words(self.trainings)]
            lines += _score_lines("over all recordings", self.summary["events"], chance=False)
        if self.rivals is not None:
            from cerebro_eeg.runs.rivals import rival_lines

            lines += rival_lines(self.rivals, "test" if self.external is None else "external")
        lines += [f"note: {note}" for note in (*self.summary["notes"], *self.notes)]
        if self.external is not None:
            lines.append(f"{self.external['folder']} has more: test.json with all scores, and predictions in test.npz")
        elif self.split == "test":
            lines.append("test.json has more: by subject, confusion, calibration, chance; beside each training, too")
        return "\n".join(lines)

    def _headline(self) -> str:
        return f"{self.task['task']}, {self.split} split of {self.folder}: {self._primary()}"

    def _facts(self) -> Mapping[str, object]:
        unit = {"splits share no": self.unit, "scored": self._times()}
        return {**unit, **(report_fact(self.folder) if self.split == "test" else {})}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per level and score; with a threshold, also the scores of deciding by it."""
        levels = [("", self.summary["levels"])]
        if (found := self.summary.get("at_threshold")) is not None:
            levels.append(("threshold", found["levels"]))
        rows = [
            {"level": name, "rule": rule, "score": metric, **_numbers(of), "count": max(level["count"])}
            for rule, by_level in levels
            for name, level in by_level.items()
            for metric, of in level["values"].items()
        ]
        events = self.summary.get("events", {})
        rows += [{"level": "event", "rule": "", "score": name, **_numbers(of)} for name, of in events.items()]
        return by_column(rows)

    def _notes(self) -> Sequence[str]:
        lines = [] if self.seen is None else [self.seen["text"]]
        if self.rivals is not None:
            from cerebro_eeg.runs.rivals import rival_notes, verdict

            lines += [verdict(self.rivals), *rival_notes(self.rivals)]
        return [line for line in (*lines, *self.summary["notes"], *self.notes) if line]

    def _primary(self) -> str:
        """Return the line of the one number to quote."""
        from cerebro_eeg.scores.tables import by_rule, primary, shown, title

        kind, names = self.task["kind"], self.task["names"]
        metric = primary(kind, names)
        of = self.summary["levels"]["window"]["values"][metric]
        spread = "" if of["std"] is None else f" ± {of['std']:.3f} over seeds"
        rule = "".join(f", {words}" for words, metrics in by_rule(kind, names, (metric,)).items() if words)
        return f"{title(metric)} by window: {shown(of['mean'])}{spread}{rule}"

    def _at_threshold(self) -> list[str]:
        """Return the lines of the scores at the threshold of ``predict``, if a threshold was chosen."""
        from cerebro_eeg.scores.tables import at_threshold_words

        if (found := self.summary.get("at_threshold")) is None:
            return []
        words = at_threshold_words(found["thresholds"], found["chosen_on"])
        lines = ["", f"as predict decides, {words}; positive: {found['positive']}"]
        for name, level in found["levels"].items():
            lines += _score_lines(f"by {name} ({_count_range(level['count'])})", level["values"], chance=False)
        return lines

    def _where(self) -> str:
        """Return words for the windows that were scored."""
        if self.external is None:
            return f"{self.split} split"
        of = f"{self.external['dataset']} ({self.external['sha256'][:8]}), task {self.external['task']}"
        return f"external data {of}, {split_words(self.split)}"

    def _apart(self) -> list[str]:
        """Return the lines on what keeps tested subjects from being those that were learned from."""
        if self.external is None:
            return [f"  splits     share no {self.unit}"]
        differences = [f"  differs    {line}" for line in self.external["differences"]]
        return [*differences, f"  overlap    {self.external['overlap']['text']}"]

    def _times(self) -> str:
        if not self.scorings:
            return f"{self.split} may be scored as often as you like"
        if not self.fresh:
            more = f"; {self.scorings} scorings so far" if self.scorings > 1 else ""
            return f"before: this is the first score, unchanged{more} (--again scores again, and is counted)"
        if self.scorings == 1:
            return "for the first time; asking again prints this score"
        return f"{self.scorings} times: this is not the first score, which test.json keeps"


def split_words(split: str) -> str:
    """Return words for a split of external data."""
    name, _, new = split.partition("-")
    words = "all labelled windows" if name == "all" else f"split {split if new != 'new' else name}"
    return words + (", without subjects that were learned from" if split.endswith("-new") else "")


def report_fact(folder: str) -> dict[str, object]:
    """Return where the report of a run lies, if it has one."""
    page = Path(folder) / "report.html"
    return {"report": str(page)} if page.exists() else {}


def _numbers(of: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean, deviation, interval and chance of a score."""
    return {name: of.get(name) for name in ("mean", "std", "low", "high", "chance")}


def _class_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return the counts of windows, recordings and subjects of each class. They are of one training; folds differ."""
    head = f"  windows    {scores['windows']:,} of {scores['recordings']:,} recordings, {scores['subjects']:,} subjects"
    rows = [
        f"  {'':9}  {row['name']}: {row['windows']:,} of {row['recordings']:,} recordings, {row['subjects']:,} subjects"
        for row in scores["classes"]
    ]
    return [head, *rows]


def _score_lines(head: str, values: Mapping[str, Mapping[str, float | None]], chance: bool = True) -> list[str]:
    """Return one line per metric: mean, deviation, interval and, on request, chance."""
    from cerebro_eeg.scores.tables import shown, title

    lines = [f"{head:<26} {'mean':>7} {'std':>7}   {'95 % over subjects':<18} {'chance' if chance else '':>7}".rstrip()]
    for metric, of in values.items():
        between = "n/a" if of["low"] is None else f"{shown(of['low'])} to {shown(of['high'])}"
        name = title(metric).replace("_", " ")
        last = shown(of["chance"]) if chance else ""
        lines.append(f"  {name:<24} {shown(of['mean']):>7} {shown(of['std']):>7}   {between:<18} {last:>7}".rstrip())
    return lines


def _count_range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
