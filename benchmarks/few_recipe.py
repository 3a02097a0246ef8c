"""Is fine-tuning worse than its own frozen probe? Measured on subjects that neither training nor stopping has seen.

Subjects of the splits train and val are divided into five folds. One is asked, the next one is the validation that
stops training and chooses the weights, and three are learned from. Test splits are not read::

    python benchmarks/few_recipe.py run STORE WORK --arms few full --tasks ssvep4 arithmetic
    python benchmarks/few_recipe.py tables WORK

=============  =======================================================================================================
arm            what is trained
=============  =======================================================================================================
few            ``finetune --few``: the probe's head first, then adapters of rank 8, averaged weights
few encoder    ``finetune --few --readout encoder``
lora           ``finetune --lora 8``, with the preset's rates
full           ``finetune``: all weights, with the preset's rates
=============  =======================================================================================================

``few`` is compared with step 0 of the same run, which is the probe; ``lora`` and ``full`` with the same probe, from the
same folds. STORE is what ``prepare openeeg`` makes of the pack. What is in WORK is not computed again.
"""

import argparse
import csv
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.config import preset
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model import hub
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.progress import unheard
from cerebro_eeg.runs import compare, few_subjects, finetune
from cerebro_eeg.runs.compare_methods import Question
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.linear_models import score, subject_folds
from cerebro_eeg.runs.readout_choice import head_outputs, thinned
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.windows import Split, electrodes_of
from cerebro_eeg.train.distributed import process_group
from drawn_scores import drawn_auroc, drawn_mean, subject_draws

FEWEST = 6
"""Below so many subjects there is no interval."""
ARMS = ("few", "few encoder", "lora", "full")


def one_fold(
    question: Question, arm: str, number: int, out: Path, start: Path, steps: int, batch: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32], dict[str, object]]:
    """Return the windows that are asked, the outputs of probe and trained model for them, and facts on the training."""
    known, store = question.known, question.store
    folds = [held for _, held in subject_folds(question.truth)]
    asked, deciding = np.sort(folds[number]), np.sort(folds[(number + 1) % len(folds)])
    fitted = np.setdiff1d(np.arange(len(known)), np.concatenate([asked, deciding]))
    split = Split("", "subject", known.take(fitted), known.take(deciding), None)
    few = arm.startswith("few")
    sized = preset("small")
    epoch = -(-len(fitted) // batch)
    changes = {name.removeprefix("finetune."): value for name, value in few_subjects.HYPERPARAMETERS.items()}
    table = dataclasses.replace(sized.finetune, batch_size=batch, epochs=max(5, -(-steps // epoch)), warmup_epochs=1)
    table = dataclasses.replace(table, **(changes if few else {}))  # type: ignore[arg-type]
    options = finetune.FinetuneOptions(
        question.task.task,
        steps=steps,
        paper=True,
        untrained="nearest",
        few=few or None,
        lora=8 if arm == "lora" else None,
        readout="encoder" if arm == "few encoder" else None,
    )
    engine = Engine(device="cpu", threads=1)
    options = finetune._settle_readout(few_subjects.settle(options, start, engine), engine)
    shared = finetune._Shared(
        question.processes,
        store,
        store.hash(),
        question.task,
        dataclasses.replace(sized, finetune=table),
        options,
        engine,
        start,
        [split],
        None,
    )
    kept: dict[str, Cerebro] = {}
    before = few_subjects.begin_with_head

    def begin(learner: Cerebro, plain: Cerebro) -> None:
        before(learner, plain)
        kept["output"] = head_outputs(plain, store, known.take(asked), question.processes, electrodes=electrodes)  # type: ignore[assignment]

    electrodes = electrodes_of([known], Cerebro.from_pretrained(start).training_record.electrode_windows, "nearest")
    few_subjects.begin_with_head = begin
    try:
        result = finetune._train(shared, split, 0, RunFolder(out / arm / "seed-0"), lambda line: None, nothing)
    finally:
        few_subjects.begin_with_head = before
    ids = electrodes if few or arm == "lora" else None

    def answers(folder: Path, its: object) -> NDArray[np.float32]:
        model = Cerebro.from_pretrained(folder / "model.safetensors")
        return head_outputs(model, store, known.take(asked), question.processes, electrodes=its)  # type: ignore[arg-type]

    trained = answers(out / arm / "seed-0", ids)
    if "output" in kept:
        probe = np.asarray(kept["output"])
    else:  # the same probe by itself
        frozen = dataclasses.replace(shared, options=dataclasses.replace(options, freeze=True, lora=None, steps=None))
        finetune._train(frozen, split, 0, RunFolder(out / arm / "probe"), lambda line: None, nothing)
        probe = answers(out / arm / "probe", electrodes)
    facts: dict[str, object] = {"steps": result.steps, "best": result.chosen, "validation": result.validation}
    return asked, probe, trained, facts


def nothing(*_: object) -> None:
    """Say nothing."""


def run(store: Store, work: Path, arms: list[str], tasks: list[str], folds: int, steps: int, batch: int) -> None:
    """Compute what is not there yet, fold by fold."""
    start = hub.find(Path("small-open"))
    with process_group("cpu") as processes, unheard():
        for number in range(folds):
            for name in tasks:
                options = compare.CompareOptions((name,), test=False)
                ((question,), _) = compare._questions(store, options, processes)
                question = dataclasses.replace(question, known=thinned(question.known, 600, nothing))
                for arm in arms:
                    target = work / f"{name}-{arm}-{number}.npz"
                    if target.exists():
                        continue
                    began = time.process_time()
                    out = work / "runs" / f"{name}-{number}"
                    asked, probe, trained, facts = one_fold(question, arm, number, out, start, steps, batch)
                    truth = question.truth
                    label, group = truth.label_B[asked], truth.group_B[asked]
                    np.savez(target, label=label, group=group, probe=probe, trained=trained)
                    empty = dataclasses.replace(truth, raw_BP=truth.raw_BP[asked], label_B=label, group_B=group)
                    line = {"task": name, "arm": arm, "fold": number, **facts}
                    line |= {"probe": round(score(empty, probe), 4), "trained": round(score(empty, trained), 4)}
                    print(json.dumps({**line, "seconds": round(time.process_time() - began)}), flush=True)


def tables(work: Path, draws: int) -> None:
    """Print for each arm and task: the probe, what was trained, and their difference with an interval over subjects."""
    kept: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(work.glob("*.npz")):
        task, arm, _ = path.stem.rsplit("-", 2)
        kept.setdefault((arm, task), []).append(path)
    rows = [("arm", "task", "folds", "subjects", "probe", "trained", "difference", "low", "high", "above 0", "below 0")]
    for arm in dict.fromkeys(arm for arm, _ in kept):
        gaps = []
        for (one, task), paths in kept.items():
            if one != arm:
                continue
            loaded = [dict(np.load(path, allow_pickle=False)) for path in paths]
            # Folds have models of their own: AUROC is computed within each, and then averaged.
            of_fold = []
            for number, fold in enumerate(loaded):
                weights = subject_draws(fold["group"], draws, number)
                of_fold.append([drawn_auroc(fold["label"], fold[name], weights) for name in ("probe", "trained")])
            both = np.nanmean(of_fold, axis=0)
            subjects = sum(len(np.unique(fold["group"])) for fold in loaded)
            gaps.append((both[1] - both[0])[None])
            cells = row_of(both, gaps[-1:])
            shown = cells if subjects >= FEWEST else (*cells[:3], "", "", "", "")
            rows.append((arm, task, str(len(paths)), str(subjects), *shown))
    for number, cells in enumerate(rows):
        print("|", " | ".join(cells), "|")
        if number == 0:
            print("| --- " * len(cells) + "|")
    with (work / "few-recipe.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def row_of(both: NDArray[np.float64], gaps: list[NDArray[np.float64]]) -> tuple[str, ...]:
    value, low, high, above = drawn_mean(gaps)
    below = drawn_mean([-gap for gap in gaps])[3]
    return (
        *(f"{one:.3f}" for one in both[:, 0]),
        f"{value:+.3f}",
        f"{low:+.3f}",
        f"{high:+.3f}",
        f"{above:.0%}",
        f"{below:.0%}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    does = verbs.add_parser("run")
    does.add_argument("store", type=Path)
    does.add_argument("work", type=Path)
    does.add_argument("--arms", nargs="+", default=["few"], choices=ARMS)
    does.add_argument("--tasks", nargs="+", default=["ssvep4", "arithmetic", "eyes"])
    does.add_argument("--folds", type=int, default=5)
    does.add_argument("--steps", type=int, default=200)
    does.add_argument("--batch", type=int, default=16)
    shows = verbs.add_parser("tables")
    shows.add_argument("work", type=Path)
    shows.add_argument("--draws", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.verb == "run":
        asked.work.mkdir(parents=True, exist_ok=True)
        run(Store(asked.store), asked.work, asked.arms, asked.tasks, asked.folds, asked.steps, asked.batch)
    else:
        tables(asked.work, asked.draws)


if __name__ == "__main__":
    main()
