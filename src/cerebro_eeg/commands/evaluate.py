"""``cerebro-eeg evaluate``: the honest numbers of a fine-tuning run, on a test split that is scored once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cerebro_eeg.commands.progress_lines import write_page
from cerebro_eeg.progress import Progress, counted


@dataclass(frozen=True)
class EvaluateResult:
    """Scores of a run: the mean over its seeds, and those of each training."""

    folder: str
    split: str
    task: Mapping[str, Any]
    unit: str
    scorings: int
    fresh: bool
    summary: Mapping[str, Any]
    first: Mapping[str, Any] | None
    trainings: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "trainings": list(self.trainings), "notes": list(self.notes)}

    def text(self) -> str:
        from cerebro_eeg.scores.tables import by_rule, event_words, positive_of

        seeds, folds = counted(len(self.summary["seeds"]), "seed"), len(self.summary["folds"])
        of_folds = f" of {folds} folds" if folds else ""
        lines = [
            f"{self.task['task']}: {self.task['kind']}, {', '.join(self.task['names'])}; {self.split} split",
            f"  trainings  {seeds}{of_folds} in {self.folder}",
            f"  splits     share no {self.unit}",
            f"  scored     {self._times()}",
            f"  primary    {self._primary()}",
        ]
        if (positive := positive_of(self.task["kind"], self.task["names"])) is not None:
            lines.append(f"  positive:  {positive} (AUROC, AUPR and the threshold speak of it)")
        lines += _classes(self.trainings)
        levels = self.summary["levels"]
        for rule, metrics in by_rule(self.task["kind"], self.task["names"], tuple(levels["window"]["values"])).items():
            lines += ["", rule] if rule else [""]
            for name, level in levels.items():
                values = {metric: level["values"][metric] for metric in metrics}
                lines += _table(f"by {name} ({_span(level['count'])})", values)
        lines += self._at_threshold()
        if "events" in self.summary:
            lines += ["", event_words(self.trainings)]
            lines += _table("over all recordings", self.summary["events"], chance=False)
        lines += [f"note: {note}" for note in (*self.summary["notes"], *self.notes)]
        if self.split == "test":
            lines.append("test.json has more: by subject, confusion, calibration, chance; beside each training, too")
        return "\n".join(lines)

    def _primary(self) -> str:
        """The number to quote where one is wanted."""
        from cerebro_eeg.scores.tables import by_rule, primary, shown, title

        kind, names = self.task["kind"], self.task["names"]
        metric = primary(kind, names)
        of = self.summary["levels"]["window"]["values"][metric]
        spread = "" if of["std"] is None else f" ± {of['std']:.3f} over seeds"
        rule = "".join(f", {words}" for words, metrics in by_rule(kind, names, (metric,)).items() if words)
        return f"{title(metric)} by window: {shown(of['mean'])}{spread}{rule}"

    def _at_threshold(self) -> list[str]:
        """What comes of deciding as predict does, where a threshold was chosen."""
        from cerebro_eeg.scores.tables import at_threshold_words

        if (found := self.summary.get("at_threshold")) is None:
            return []
        words = at_threshold_words(found["thresholds"], found["chosen_on"])
        lines = ["", f"as predict decides, {words}; positive: {found['positive']}"]
        for name, level in found["levels"].items():
            lines += _table(f"by {name} ({_span(level['count'])})", level["values"], chance=False)
        return lines

    def _times(self) -> str:
        if self.split != "test":
            return f"{self.split} may be scored as often as you like"
        if not self.fresh:
            more = f"; {self.scorings} scorings so far" if self.scorings > 1 else ""
            return f"before: this is the first score, unchanged{more} (--again scores again, and is counted)"
        if self.scorings == 1:
            return "for the first time; asking again prints this score"
        return f"{self.scorings} times: this is not the first score, which test.json keeps"


def evaluate(
    run: Path,
    store: Path,
    /,
    *,
    split: Literal["test", "validation"] = "test",
    again: bool = False,
    events: bool = False,
    untrained: Literal["error", "nearest", "drop", "as_is"] | None = None,
    resamples: int = 1000,
    device: str = "auto",
    threads: int | None = None,
) -> EvaluateResult:
    """Score all trainings of a fine-tuning run on its test split: once. Asking again prints the first score.

    Numbers by window (as in the paper), recording and subject, with 95 % intervals over subjects, mean and standard
    deviation over seeds, and what chance would give. For two classes also what comes of deciding as predict does, by
    the threshold that was chosen on validation. For seizures also events and false alarms a day, as SzCORE defines
    them, and the detections as its TSV. Writes test.json into the run, test.json and test.npz beside each training.

    Try, for example:
      cerebro-eeg evaluate my-finetuning my-store
      cerebro-eeg evaluate my-finetuning my-store --split validation --json

    Args:
        run: The folder that finetune --out made.
        store: The store that the run was trained on.
        split: What to score; validation is not counted and writes nothing.
        again: Score the test split once more; the first score is kept and the number of scorings is told.
        events: Score events also where no class is called a seizure; the last of two classes is the event.
        untrained: What to do with channels of electrodes that no window trained; otherwise as in the run.
        resamples: Draws of subjects for the intervals.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """
    from cerebro_eeg.errors import ConfigError
    from cerebro_eeg.report.run_report import report_finetune
    from cerebro_eeg.runs import evaluate as scoring
    from cerebro_eeg.train.distributed import choose_threads

    choose_threads(threads)
    if resamples < 100:
        raise ConfigError(f"resamples is {resamples}; intervals of 95 % need at least 100")
    progress = Progress()
    found = scoring.evaluate(
        run,
        store,
        split=split,
        again=again,
        device=device,
        events=events,
        untrained=untrained,
        resamples=resamples,
        say=progress.say,
    )
    if split == "test":
        write_page(lambda: report_finetune(run), progress)
    return EvaluateResult(
        str(found.folder),
        found.split,
        found.task,
        found.unit,
        found.scorings,
        found.fresh,
        found.summary,
        found.first,
        found.trainings,
        found.notes,
    )


def _classes(trainings: tuple[Mapping[str, Any], ...]) -> list[str]:
    """Where each class occurs, of the first training; folds differ."""
    scores = trainings[0]["scores"]
    head = f"  windows    {scores['windows']:,} of {scores['recordings']:,} recordings, {scores['subjects']:,} subjects"
    rows = [
        f"  {'':9}  {row['name']}: {row['windows']:,} of {row['recordings']:,} recordings, {row['subjects']:,} subjects"
        for row in scores["classes"]
    ]
    return [head, *rows]


def _table(head: str, values: Mapping[str, Mapping[str, float | None]], chance: bool = True) -> list[str]:
    from cerebro_eeg.scores.tables import shown, title

    lines = [f"{head:<26} {'mean':>7} {'std':>7}   {'95 % over subjects':<18} {'chance' if chance else '':>7}".rstrip()]
    for metric, of in values.items():
        between = "n/a" if of["low"] is None else f"{shown(of['low'])} to {shown(of['high'])}"
        name = title(metric).replace("_", " ")
        last = shown(of["chance"]) if chance else ""
        lines.append(f"  {name:<24} {shown(of['mean']):>7} {shown(of['std']):>7}   {between:<18} {last:>7}".rstrip())
    return lines


def _span(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
