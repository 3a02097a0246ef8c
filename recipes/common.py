"""Common: from the corpora of a table to its numbers, by the same verbs that users have: pretrain, finetune, evaluate.

A recipe is a ``Table`` and a call of ``main``. It writes everything to ``--out``. A run that is already there is
continued, or used as it is when it is complete. So the same command goes on after a stop, and tables that share a model
train it once. The first score of each test set is the one that is shown.

    OUT/stores/tuab                                    prepared here, where a corpus was given instead of a store
    OUT/pretrain/tueg/large-waveform-alternating-simmim
    OUT/tuab/large-waveform-alternating-simmim         with one folder per seed or fold
    OUT/tables/tuab.csv
"""

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mini
from tables import Row, Table, in_columns, lay_out, read_scores, write_csv

from cerebro_eeg.errors import CerebroError, ConfigError
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import Progress, in_time

if TYPE_CHECKING:
    from cerebro_eeg.runs.training import Tell

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """The amounts of everything: those of the paper, or those of --mini."""

    mini: bool = False
    seeds: int = 5
    paper: bool = False
    """Follow the paper to the letter: batches of 4,096 for any number of windows, test subjects in the pre-training."""
    device: str = "auto"


def main(table: Table, doc: str, arguments: Sequence[str] | None = None) -> int:
    """Reproduce a table from the command line; return the exit code."""
    args = _parser(table, doc).parse_args(arguments)
    scale = Scale(args.mini, mini.SEEDS if args.mini else args.seeds, args.paper, "cpu" if args.mini else args.device)
    return guarded(lambda: _run(table, args, scale))


def guarded(run: Callable[[], None]) -> int:
    """Run, and print a user's mistake as one line; return its exit code, as ``cerebro-eeg`` does."""
    try:
        run()
    except CerebroError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def reproduce(table: Table, stores: Mapping[str, Path], out: Path, scale: Scale, say: Say) -> list[tuple[str, ...]]:
    """Train and score every row; return its numbers as text. Under torchrun only train: evaluate needs one process."""
    found = []
    for row in table.rows:
        say(f"{table.name}: {' / '.join(row.labels)}")
        run = _train(table, row, stores, out, scale, say)
        if _processes() == 1:
            found.append(_score(table, run, stores[table.corpus], scale, say))
    return found


def _train(table: Table, row: Row, stores: Mapping[str, Path], out: Path, scale: Scale, say: Say) -> Path:
    """Pre-train where the row asks for it, then fine-tune; return the folder of the fine-tuning."""
    from cerebro_eeg.commands.progress_lines import StepLine
    from cerebro_eeg.runs import finetune as tuning
    from cerebro_eeg.runs import pretrain as pretraining
    from cerebro_eeg.runs.settings import Engine, choose

    reduced = mini.flags(row.size) if scale.mini else {}
    steps = mini.STEPS if scale.mini else None
    preset = choose(row.size, None, row.flags() | reduced, ())
    engine = Engine(device=scale.device, threads=1 if scale.mini else None)
    progress = Progress()
    tell: Tell = _nothing if scale.mini else StepLine(progress).tell
    start = None
    if row.style is not None:
        start = out / "pretrain" / "-".join(table.pretrain) / row.name
        without = _to_leave_out(table, stores, scale)
        choices = pretraining.PretrainOptions(without=without, steps=steps, paper=scale.paper)
        folders = [stores[name] for name in table.pretrain]
        pretraining.pretrain(folders, start, preset, choices, engine, say=say, tell=tell)
    run = out / table.corpus / row.name
    tuned = tuning.FinetuneOptions(
        task=table.task,
        seeds=tuple(range(scale.seeds)),
        folds=table.folds,
        labels=table.labels,
        steps=steps,
        paper=scale.paper,
        rate=table.rate,
    )
    tuning.finetune(stores[table.corpus], run, preset, tuned, engine, start, say=say, tell=tell)
    progress.end()
    return run


def _score(table: Table, run: Path, store: Path, scale: Scale, say: Say) -> tuple[str, ...]:
    from cerebro_eeg.runs.evaluate import evaluate

    resamples = mini.RESAMPLES if scale.mini else 1000
    found = evaluate(run, store, device=scale.device, resamples=resamples, say=say)
    if found.scorings > 1:
        say(f"note: the test set of {run.name} was scored {found.scorings} times; the first score is shown")
    summary = found.summary if found.first is None else found.first
    return read_scores(table, summary)


def _to_leave_out(table: Table, stores: Mapping[str, Path], scale: Scale) -> tuple[str, ...]:
    """Return the split that pretrain leaves out, if its test subjects are also in the corpora of the pre-training."""
    if table.held_out is None or scale.paper:
        return ()
    shared = shared_subjects(stores[table.corpus], table.task, table.held_out, [stores[n] for n in table.pretrain])
    return (f"{stores[table.corpus]}:{table.task}:{table.held_out}",) if shared else ()


def shared_subjects(store: Path, task: str, split: str, others: Sequence[Path]) -> set[str]:
    """Return the subjects of a split that other stores have, too."""
    from cerebro_eeg.data.storing.store import Store

    held = {r.subject for r in Store(store).recordings if any(i.split == split for i in r.labels.get(task, ()))}
    return {r.subject for other in others for r in Store(other).recordings if r.subject in held and r.subject}


def _run(table: Table, args: argparse.Namespace, scale: Scale) -> None:
    began, progress = time.monotonic(), Progress()
    with scratch(args) as out:
        stores = _simulate(table, out) if scale.mini else _open(table, args, out, progress.say)
        measured = reproduce(table, stores, out, scale, _nothing if scale.mini else progress.say)
        if int(os.environ.get("RANK", "0")):
            return
        if not measured:
            print("all trained; start the same command without torchrun to score the test set")
            return
        head, rows = lay_out(table, measured, with_paper=not scale.mini)
        written = out / "tables" / f"{table.name}{'-mini' if scale.mini else ''}.csv"
        write_csv(written, head, rows)
        print(f"{table.title}; {scale.seeds} seeds, {in_time(time.monotonic() - began)}")
        print(in_columns(head, rows))
        if args.out is not None:
            print(f"also in {written}")


def _simulate(table: Table, out: Path) -> dict[str, Path]:
    """Make the stores of simulated corpora; print what is trained on them before and after, not meanwhile."""
    logging.getLogger("cerebro_eeg").addHandler(logging.NullHandler())
    print(f"mini: {mini.describe()}, {mini.STEPS} steps of {mini.BATCH} windows, simulated EEG.")
    print(mini.WARNING)
    stores = {name: out / "stores" / name for name in (*table.pretrain, table.corpus)}
    for place, (name, folder) in enumerate(stores.items()):
        print(f"  {mini.simulate_store(folder, name, table.task, place)}")
    return stores


def _open(table: Table, args: argparse.Namespace, out: Path, say: Say) -> dict[str, Path]:
    """Return a store for each corpus: the given one, or one that is prepared here first."""
    needed = (*table.pretrain, table.corpus)
    missing = [name for name in needed if getattr(args, name) is None]
    if missing:
        listed = ", ".join(f"--{name}" for name in missing)
        raise ConfigError(f"{listed} not given; name the folder of each corpus or its store, or say --mini")
    return {name: _prepared(name, getattr(args, name), args.tuab, out, say) for name in needed}


def _prepared(name: str, folder: Path, tuab: Path | None, out: Path, say: Say, workers: int = -1) -> Path:
    from cerebro_eeg.commands.prepare import prepare

    if (folder / "store.json").exists():
        return folder
    if _processes() > 1:
        raise ConfigError(f"--{name} is not a store; prepare it before torchrun: cerebro-eeg prepare {name} ...")
    store = out / "stores" / name
    say(f"preparing {name}")
    exclude = None
    if name == "tueg":
        if tuab is None:
            raise ConfigError("--tueg is to be prepared, and TUAB's subjects are to be left out; say --tuab, too")
        exclude = str(_subject_list(tuab, out) if (tuab / "store.json").exists() else tuab)
    say(prepare(name, folder, out=store, exclude=exclude, workers=workers).text())
    return store


def _subject_list(tuab: Path, out: Path) -> Path:
    """Write the subjects of a store of TUAB, one per line, which the preparation of TUEG leaves out."""
    from cerebro_eeg.data.storing.store import Store

    path = out / "stores" / "tuab-subjects.txt"
    subjects = sorted({record.subject for record in Store(tuab).recordings if record.subject})
    write_text(path, "\n".join(subjects) + "\n")
    return path


@contextlib.contextmanager
def scratch(args: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder --out; with --mini it may be a temporary folder."""
    if args.out is not None:
        yield args.out
    elif args.mini:
        with tempfile.TemporaryDirectory(prefix="cerebro-recipe-") as folder:
            yield Path(folder)
    else:
        raise ConfigError("--out not given; name the folder for runs and tables, which tables may share, or say --mini")


def _nothing(*_: object) -> None:
    """Say nothing."""


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _parser(table: Table, doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name in (*table.pretrain, table.corpus):
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=f"{name}: its store, or the corpus itself")
    if "tuab" not in (*table.pretrain, table.corpus):
        parser.add_argument("--tuab", type=Path, metavar="FOLDER", help="whom to leave out where --tueg is no store")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="runs and tables; give all recipes the same")
    parser.add_argument("--mini", action="store_true", help="the same grid, reduced, on simulated EEG, in seconds")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each row (%(default)s)")
    parser.add_argument("--paper", action="store_true", help="batches of 4,096 and test subjects in the pre-training")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    return parser
