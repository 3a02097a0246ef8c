"""``cerebro-eeg evaluate``: the honest numbers of a fine-tuning run, on a test split that is scored once."""

from pathlib import Path
from typing import Literal

from cerebro_eeg.commands.progress_lines import no_report, say_first, write_page
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.progress import Progress
from cerebro_eeg.runs.results import EvaluateResult

GROUPS = {
    "what is scored": ("split", "again", "events", "untrained"),
    "data from elsewhere": ("task", "classes", "new_subjects", "trained_on"),
    "what it is compared with": ("rivals", "random_weights", "resamples"),
    "how it is carried out": ("device", "threads"),
}
"""The groups of the help."""


def evaluate(
    run: Path,
    store: Path,
    /,
    *,
    split: str | None = None,
    task: str | None = None,
    classes: tuple[str, ...] = (),
    new_subjects: bool = False,
    trained_on: Path | None = None,
    again: bool = False,
    events: bool = False,
    untrained: Literal["error", "nearest", "drop", "as_is"] | None = None,
    resamples: int = 1000,
    rivals: bool = True,
    random_weights: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> EvaluateResult:
    """Score all trainings of a fine-tuning run on its test split, or on data from elsewhere: once.

    Asking again prints the first score. Numbers by window (as in the paper), recording and subject, with 95 %
    intervals over subjects, mean and standard deviation over seeds, and what chance would give. For two classes also
    what comes of deciding as predict does, by the threshold that was chosen on validation. For seizures also events and
    false alarms a day, as SzCORE defines them, and the detections as its TSV. Writes test.json into the run, test.json
    and test.npz beside each training.

    Another store than the one that the run was trained on is external data: differences between the two are printed
    first, and each store, task and split is scored once, in a folder external/ of the run.

    Try, for example:
      cerebro-eeg evaluate my-finetuning my-store
      cerebro-eeg evaluate my-finetuning my-store --split validation --json
      cerebro-eeg evaluate my-finetuning other-store --trained-on my-store
      cerebro-eeg evaluate my-finetuning other-store --task rest --classes awake=eyes_open asleep=

    Args:
        run: The folder that finetune --out made.
        store: The store that the run was trained on, or another one with labels.
        split: What to score: test (the default) or validation, which is not counted and writes nothing. Of another
            store one of its splits, or all; by default all labelled windows but those of subjects that the run is known
            to have learned from.
        task: Of another store, the task to score; otherwise the one with the name of the run's.
        classes: THEIRS=OURS: what classes or targets of another store are called in the run. THEIRS= leaves them out.
        new_subjects: Of another store, leave out every subject whose id the run learned from, even if only the name is
            the same.
        trained_on: The store of the run, to fit simple rivals on where another store is scored.
        again: Score once more; the first score is kept and the number of scorings is told.
        events: Score events also where no class is called a seizure; the last of two classes is the event.
        untrained: What to do with channels of electrodes that no window trained; otherwise as in the run.
        resamples: Draws of subjects for the intervals.
        rivals: Compare with simple rivals on the same test windows; --no-rivals leaves them out. They are band power,
            covariances in bands, both, and these with narrow bands, each with a linear model. The paired difference
            over subjects is shown, and a sentence says who wins.
        random_weights: Beside the rivals also a head on random weights, the control for pre-training; on a GPU it is
            always there.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """
    from cerebro_eeg.report.finetune import report_finetune
    from cerebro_eeg.runs import evaluate as runs
    from cerebro_eeg.train.distributed import choose_threads

    choose_threads(threads)
    if resamples < 100:
        raise ConfigError(f"resamples is {resamples}; intervals of 95 % need at least 100")
    progress = Progress()
    if split != "validation":
        say_first(progress, [no_report()])
    result = runs.evaluate(
        run,
        store,
        split=split,
        task=task,
        classes=classes,
        new_subjects=new_subjects,
        trained_on=trained_on,
        again=again,
        device=device,
        events=events,
        untrained=untrained,
        resamples=resamples,
        rivals=rivals,
        random_weights=random_weights,
        say=progress.say,
    )
    if result.scorings:
        write_page(lambda tell: report_finetune(run, tell=tell), progress)
    return result
