"""``cerebro-eeg compare``: one honest table for the tasks of a store, with simple rivals beside CEReBrO."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cerebro_eeg.commands.progress_lines import no_report, say_first, write_page
from cerebro_eeg.errors import ConfigError, StoreError
from cerebro_eeg.progress import Progress
from cerebro_eeg.runs.compare_result import CompareResult
from cerebro_eeg.runs.settings import Engine

GROUPS = {
    "what is compared": ("from_", "tasks", "methods", "everything", "labels", "untrained"),
    "how thoroughly": ("quick", "repeats", "seeds", "balanced", "test", "resamples"),
    "how it is carried out": ("device", "threads"),
}
"""The groups of the help."""


def compare(
    store: Path,
    /,
    *,
    out: Path,
    from_: str = "small-open",
    labels: Path | None = None,
    tasks: tuple[str, ...] = (),
    methods: tuple[str, ...] = (),
    everything: bool = False,
    quick: bool = False,
    repeats: int = 3,
    seeds: int = 3,
    balanced: bool = False,
    test: bool = True,
    untrained: Literal["error", "nearest", "drop", "as_is"] = "nearest",
    resamples: int = 1000,
    device: str = "auto",
    threads: int | None = None,
) -> CompareResult:
    """Compare CEReBrO with simple features and small networks, on the same windows and splits; one command, one table.

    Every method has the same number of settings, chosen by cross-validation over training and validation subjects.
    Scores have 95 % intervals over subjects, and stand beside the difference from our default. The test split is scored
    once for each seed, and test-log.jsonl counts it. Interrupted or killed, start it again with the same command; tasks
    and methods can be added later. Writes compare.json, report.html and all predictions.

    Try, for example:
      cerebro-eeg compare my-store --out my-comparison --quick
      cerebro-eeg compare my-store --tasks eyes stress4 --from my-run --out my-comparison
      cerebro-eeg compare my-recordings --labels table.csv --out my-comparison --quick

    Args:
        store: A folder that prepare made, with labels; or with --labels a folder of recordings.
        out: The folder of the comparison; made where there is none, gone on with where it holds this comparison.
        from_: The weights to compare: small-open comes with the package; or a checkpoint or a run.
        labels: The table of labels of a folder of recordings, which is then prepared into OUT-store first, as prepare
            folder does.
        tasks: Which of the store's tasks; otherwise all that have labels.
        methods: Which rows; otherwise all on a GPU, and on a CPU those that train nothing by gradient steps. The names
            are those of the table, such as "band power" or "EEGNet"; braindecode:NAME is a model of that package.
        everything: All rows, also where they take hours.
        quick: In minutes on two cores: at most 600 windows of a task to learn from and 300 to test, one division of the
            subjects, and no training by gradient steps.
        repeats: Divisions of the subjects into five folds; scores are averaged over them.
        seeds: Of random weights, small networks and trainings; each is scored.
        balanced: Weigh classes so that all weigh the same.
        test: Score the test split, once. With --no-test it stays untouched: cross-validation is all, as often as you
            like.
        untrained: What to do with electrodes that the weights never saw.
        resamples: Draws of subjects for the intervals.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """
    from cerebro_eeg.report.compare import report_compare
    from cerebro_eeg.runs import compare as runs

    if resamples < 100:
        raise ConfigError(f"resamples is {resamples}; intervals of 95 % need at least 100")
    progress, began = Progress(), time.monotonic()
    say_first(progress, [no_report()])
    if labels is None and store.is_dir() and not (store / "store.json").exists():
        raise StoreError(
            "this folder is not a store: it has no store.json; say labels='table.csv' if it holds recordings, or make "
            "a store of them with cerebro-eeg prepare"
        )
    if labels is not None:
        store = _prepared(store, labels, Path(f"{out}-store"), progress)
    options = runs.CompareOptions(
        tasks, methods, everything, repeats, seeds, balanced, quick, test, untrained, resamples
    )

    def show(line: str) -> None:
        if progress.due():
            progress.show(line)

    try:
        engine = Engine(device=device, threads=threads)
        found = runs.compare(store, out, options, engine, Path(from_), say=progress.say, show=show)
        write_page(lambda tell: report_compare(out, tell=tell), progress)
    finally:
        progress.end()
    return replace(found, seconds=time.monotonic() - began)


def _prepared(recordings: Path, labels: Path, store: Path, progress: Progress) -> Path:
    """Prepare a folder of recordings with its labels into a store, or go on with it, and return the store."""
    from cerebro_eeg.commands.prepare import PrepareResult, prepare

    if (recordings / "store.json").exists():
        raise ConfigError(
            "labels is for a folder of recordings, and a store was given, which has its own; leave it out"
        )
    progress.say(f"preparing the recordings into {store.name}")
    found = prepare("folder", recordings, out=store, labels=labels)
    if isinstance(found, PrepareResult) and found.exit_code:
        progress.say(f"note: {found.trouble}")
    return store
