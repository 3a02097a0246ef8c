"""The paper's claims at the size that one CPU core allows: a tiny model, a short pre-training, several seeds.

Every arm of a seed sees the same windows in the same order, and all but ``quarter`` have the same number of steps::

    python benchmarks/claims.py run STORE WORK --seeds 0 1 2 3 4
    python benchmarks/claims.py tables WORK

=============================  =========================================================================================
arm                            encoder
=============================  =========================================================================================
none                           alternating attention, random weights
simmim                         alternating attention, pre-trained in the style of SimMIM
quarter                        as ``simmim``, in a quarter of the steps
standard                       standard attention, SimMIM
standard none                  standard attention, random weights
vitmae                         alternating attention, ViTMAE
full                           ``simmim``, then all weights trained on the labels
scratch                        ``none``, then all weights trained on the labels
=============================  =========================================================================================

The first six stay frozen, and linear models read them by two read-outs: the paper's mean of the last tokens, and ours
(``encoder``). All answers come from five-fold cross-validation over the subjects of the splits train and val; test
splits are not read. STORE is what ``prepare openeeg`` makes of the pack. A finished arm is never computed again.
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
from scipy import stats

from cerebro_eeg.config import ObjectiveConfig, ReadoutPart, preset
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.readouts import widths
from cerebro_eeg.runs import compare, finetune
from cerebro_eeg.runs.compare_methods import Question
from cerebro_eeg.runs.linear_models import fit_chosen, score, subject_folds
from cerebro_eeg.runs.readout_choice import ENCODER, READOUTS, head_outputs, readout_config
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train.distributed import process_group
from drawn_scores import drawn_auroc, drawn_mean, subject_draws
from pretraining_objectives import MODEL, features, thinned, train

TASKS = {"arithmetic": 368, "eyes": 354, "stress4": 312, "ssvep4": 280}
"""The tasks, and the most windows of each, thinned evenly: 6 to 40 for each subject."""
TUNED_TASKS = ("arithmetic", "eyes", "ssvep4")
"""The tasks of the arms that train all weights; those of ``stress4`` have 32 channels and take longest."""
PARTS: tuple[ReadoutPart, ...] = ("mean", *ENCODER)
ARMS: dict[str, tuple[str, str | None, int]] = {
    "none": ("alternating", None, 1),
    "simmim": ("alternating", "simmim", 1),
    "vitmae": ("alternating", "vitmae", 1),
    "standard none": ("standard", None, 1),
    "standard": ("standard", "simmim", 1),
    "quarter": ("alternating", "simmim", 4),
}
"""The frozen arms: attention, style of pre-training, and what divides the steps."""
TUNED = {"full": "simmim", "scratch": "none"}
"""The arms that train all weights, and where they start."""
RATE, EPOCHS, BATCH = 5e-4, 5, 16
"""Learning rate, epochs and windows of a step of these arms. No other setting was tried."""
CLAIMS = (
    ("pre-training against none", "mean", ("simmim", "none"), "mean"),
    ("pre-training against none", "encoder", ("simmim", "none"), "encoder"),
    ("pre-training against none, all weights trained", "full", ("full", "scratch"), "full"),
    ("four times the pre-training", "mean", ("simmim", "quarter"), "mean"),
    ("four times the pre-training", "encoder", ("simmim", "quarter"), "encoder"),
    ("alternating against standard attention", "mean", ("simmim", "standard"), "mean"),
    ("alternating against standard attention", "encoder", ("simmim", "standard"), "encoder"),
    ("SimMIM against ViTMAE", "mean", ("simmim", "vitmae"), "mean"),
    ("SimMIM against ViTMAE", "encoder", ("simmim", "vitmae"), "encoder"),
    ("full fine-tuning against the paper's frozen probe", "full", ("full", "simmim"), "mean"),
    ("full fine-tuning against our frozen read-out", "full", ("full", "simmim"), "encoder"),
)
"""What is compared: words, the read-out of ours, both arms, and the read-out of the other arm."""


def new_model(attention: str, style: str | None, seed: int) -> MaskedCerebro:
    """Return a model with first weights; those of the encoder are the same for both styles."""
    config = dataclasses.replace(MODEL, attention=attention)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    return MaskedCerebro(config, ObjectiveConfig(style=style or "simmim"))  # type: ignore[arg-type]


def frozen_outputs(model: MaskedCerebro, question: Question) -> dict[str, NDArray[np.float32]]:
    """Return the cross-validated outputs of each read-out of a frozen encoder for all windows."""
    names, known = question.known.names, question.known
    frozen = Cerebro(len(names), config=model.config, n_times=known.samples).eval()
    frozen.encoder.load_state_dict(model.encoder.state_dict())
    raw = features(frozen, question.store, [known], PARTS, question.channels)
    sizes = dict(zip(PARTS, widths(readout_config(PARTS, question.channels), frozen.config), strict=True))
    data = dataclasses.replace(question.truth, raw_BP=raw, sizes=sizes)
    candidates = {name: READOUTS[name] for name in ("mean", "encoder")}
    return dict(fit_chosen(data, candidates, repeats=2).held_out)


def tuned_outputs(start: Path | None, question: Question, seed: int, work: Path) -> dict[str, NDArray[np.float32]]:
    """Return the cross-validated outputs of models whose weights were all trained on the labels."""
    sized = preset("small")
    table = dataclasses.replace(sized.finetune, batch_size=BATCH, peak_lr=RATE, epochs=EPOCHS, warmup_epochs=1)
    sized = dataclasses.replace(sized, model=MODEL, finetune=table)
    truth, known = question.truth, question.known
    found = np.zeros((len(known), len(known.names)), np.float32)
    for number, (fitted, held) in enumerate(subject_folds(truth)):
        windows = known.take(np.sort(fitted))
        steps = EPOCHS * -(-len(windows) // BATCH)
        options = finetune.FinetuneOptions(question.task.task, (seed,), steps=steps, paper=True)
        store, task = question.store, question.task
        out = work / f"fold-{number}"
        engine, processes = Engine(device="cpu", threads=1), question.processes
        model = finetune.train_on(store, task, windows, out, sized, options, engine, processes, start)
        found[held] = head_outputs(model, store, known.take(held), processes)
    return {"full": found}


def run(store: Store, work: Path, seeds: list[int], arms: list[str], steps: int, batch: int) -> None:
    """Compute the arms that are not there yet, and keep weights and outputs in WORK."""
    with process_group("cpu") as processes:
        asked = compare._questions(store, compare.CompareOptions(tuple(TASKS), test=False), processes)[0]
        questions = [
            dataclasses.replace(one, known=thinned(one.known, TASKS[one.task.task] / len(one.known))) for one in asked
        ]
        for seed in seeds:
            for arm in arms:
                one_arm(store, work, questions, seed, arm, steps, batch)


def one_arm(store: Store, work: Path, questions: list[Question], seed: int, arm: str, steps: int, batch: int) -> None:
    """Pre-train an arm, unless its weights are there, and write its answers for every task."""
    began, folder = time.process_time(), work / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    weights, error, model = folder / f"{arm}.safetensors", None, None
    if arm in ARMS:
        attention, style, share = ARMS[arm]
        model = new_model(attention, style, seed)
        if weights.exists():
            held = Cerebro.from_pretrained(weights)
            model.encoder.load_state_dict(held.encoder.state_dict())
        else:
            error = None if style is None else train(model, store, steps // share, batch, seed)
            held = Cerebro(2, config=model.config, n_times=model.config.window)
            held.encoder.load_state_dict(model.encoder.state_dict())
            checkpoint.save(weights, held, held.header)
        model.eval()
    trained = time.process_time() - began
    for question in questions:
        target = folder / f"{arm}-{question.task.task}.npz"
        if target.exists() or (arm in TUNED and question.task.task not in TUNED_TASKS):
            continue
        if model is not None:
            found = frozen_outputs(model, question)
        else:
            start = folder / f"{TUNED[arm]}.safetensors"
            found = tuned_outputs(start, question, seed, folder / f"{arm}-{question.task.task}")
        truth = question.truth
        scores = {name: round(score(truth, output), 4) for name, output in found.items()}
        np.savez(target, label=truth.label_B, group=truth.group_B, **found)
        line = {
            "seed": seed,
            "arm": arm,
            "task": question.task.task,
            "steps": steps,
            "batch": batch,
            "masked": error,
            **scores,
        }
        line["seconds"] = [round(trained, 1), round(time.process_time() - began - trained, 1)]
        print(json.dumps(line), flush=True)
        with (work / "lines.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def drawn(work: Path, seed: int, arm: str, task: str, readout: str, draws: int) -> NDArray[np.float64]:
    """Return the AUROC of an arm for all subjects, and for draws of them."""
    with np.load(work / f"seed-{seed}" / f"{arm}-{task}.npz", allow_pickle=False) as kept:
        weights = subject_draws(kept["group"], draws, list(TASKS).index(task))
        return drawn_auroc(kept["label"], kept[readout], weights)


def tables(work: Path, draws: int) -> None:
    """Print the scores of all arms, and the claims with two intervals: over seeds, and over subjects as well."""
    kept = {(*tuple(path.stem.rsplit("-", 1)), int(path.parent.name[5:])) for path in work.glob("seed-*/*.npz")}
    rows: list[tuple[str, ...]] = [("arm", "read-out", "seeds", "mean", *TASKS)]
    for arm in (*ARMS, *TUNED):
        for readout in ("mean", "encoder") if arm in ARMS else ("full",):
            of = {
                task: [
                    drawn(work, seed, arm, task, readout, 0)[0] for a, t, seed in sorted(kept) if (a, t) == (arm, task)
                ]
                for task in TASKS
            }
            means = {task: float(np.mean(values)) for task, values in of.items() if values}
            if means:
                counts = sorted({len(values) for values in of.values() if values})
                whole = f"{np.mean(list(means.values())):.3f}" if len(means) == len(TASKS) else ""
                cells = [f"{means[task]:.3f}" if task in means else "" for task in TASKS]
                rows.append((arm, readout, " to ".join(map(str, counts)), whole, *cells))
    print_table(rows)
    rows = [("claim", "read-out", "seeds", "difference", "seeds, low", "seeds, high", "low", "high", "above 0", *TASKS)]
    for words, ours, (first, second), theirs in CLAIMS:
        tasks = [task for task in TASKS if {(first, task), (second, task)} <= {key[:2] for key in kept}]
        seeds = [s for s in range(100) if all((arm, task, s) in kept for task in tasks for arm in (first, second))]
        if len(seeds) < 2 or not tasks:
            continue
        gaps = [
            np.array([drawn(work, s, first, t, ours, draws) - drawn(work, s, second, t, theirs, draws) for s in seeds])
            for t in tasks
        ]
        of_seed = np.mean([gap[:, 0] for gap in gaps], axis=0)
        half = stats.t.ppf(0.975, len(seeds) - 1) * of_seed.std(ddof=1) / np.sqrt(len(seeds))
        middle, low, high, above = drawn_mean(gaps)
        limits = [f"{value:+.3f}" for value in (middle, middle - half, middle + half, low, high)]
        each = dict(zip(tasks, [f"{gap[:, 0].mean():+.3f}" for gap in gaps], strict=True))
        cells = [each.get(task, "") for task in TASKS]
        rows.append((words, f"{ours} against {theirs}", str(len(seeds)), *limits, f"{above:.0%}", *cells))
    print_table(rows)
    with (work / "claims.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows as Markdown."""
    for number, cells in enumerate(rows):
        print("|", " | ".join(cells), "|")
        if number == 0:
            print("| --- " * len(cells) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    does = verbs.add_parser("run")
    does.add_argument("store", type=Path)
    does.add_argument("work", type=Path)
    does.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    does.add_argument("--arms", nargs="+", default=[*ARMS, *TUNED], choices=[*ARMS, *TUNED])
    does.add_argument("--steps", type=int, default=300)
    does.add_argument("--batch", type=int, default=32)
    shows = verbs.add_parser("tables")
    shows.add_argument("work", type=Path, help="WORK of a run")
    shows.add_argument("--draws", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.verb == "run":
        run(Store(asked.store), asked.work, asked.seeds, asked.arms, asked.steps, asked.batch)
    else:
        tables(asked.work, asked.draws)


if __name__ == "__main__":
    main()
