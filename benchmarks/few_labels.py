"""Where pre-training should pay: few labelled subjects, and electrodes that are missing when it counts.

``python benchmarks/few_labels.py STORE WORK [--tasks ...] [--draws 10]`` prints two tables, and writes them as
``few-labels.csv`` and ``missing-electrodes.csv`` into WORK. Only training and validation subjects take part: some of
them are the labelled ones, all others are asked. So no test split is looked at, and every draw asks many people.

Few labels: 4, 8 and 16 subjects are labelled. Each method chooses its setting among these
subjects alone, as ``compare`` does. Missing electrodes: every second electrode is gone for the subjects who are asked.
Read-outs for any montage go on as they were fitted; simple features are fitted anew on the electrodes that are left.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.progress import unheard
from cerebro_eeg.runs import compare
from cerebro_eeg.runs import compare_methods as methods
from cerebro_eeg.runs.compare_methods import Features, Question
from cerebro_eeg.runs.linear_models import LabelledFeatures, fit_chosen, groups_of, score
from cerebro_eeg.runs.readout_choice import members, shared_channels
from cerebro_eeg.runs.windows import Electrodes, Split, electrodes_of
from cerebro_eeg.train.distributed import process_group

TASKS = ("adhd", "epilepsy", "eyes", "stress4", "arithmetic", "ssvep4")
COUNTS = (4, 8, 16)
LABELLED = {
    "band power": "power",
    "filter-bank covariance": "tangent",
    "power and covariance": "simple",
    "with narrow bands": "signal",
    "mean, frozen": "mean",
    "encoder, frozen": "encoder",
    "hybrid, frozen": "hybrid",
    "whole, frozen": "whole",
    "hybrid, random weights": "hybrid",
    "whole, random weights": "whole",
}


def kept(path: Path, make: Callable[[], Features]) -> Features:
    """Return features of the known windows, from WORK where they are there already."""
    if not path.exists():
        print(f"  {path.stem} ...", flush=True)
        found = make()
        sizes = np.array(list(found.sizes.values()))
        np.savez(path, x=found.known_BP, parts=np.array(list(found.sizes)), sizes=sizes)
    with np.load(path, allow_pickle=False) as arrays:
        return Features(arrays["x"], None, dict(zip(arrays["parts"].tolist(), arrays["sizes"].tolist(), strict=True)))


def features_of(
    question: Question, model: Cerebro, electrodes: Electrodes | None, names: tuple[str, ...], work: Path, word: str
) -> Features:
    """Return features of the signal and of an encoder."""
    task, left = question.task.task, "half-" if word == "half" else ""
    channels = shared_channels(Split("", "", question.known, None, None), electrodes)
    simple = kept(work / f"signal-{left}{task}.npz", lambda: methods.simple_features(question, model, False, print))

    def encoded() -> Features:
        return methods.encoder_features(question, model, channels, electrodes, names, print)

    return simple.beside(kept(work / f"{word}-{task}.npz", encoded))


def some(data: LabelledFeatures, chosen: NDArray[np.intp]) -> LabelledFeatures:
    """Return some windows with their features."""
    return LabelledFeatures(
        data.raw_BP[chosen],
        data.sizes,
        data.label_B[chosen],
        None,
        data.outputs,
        data.group_B[chosen],
    )


def draws(
    data: LabelledFeatures, count: int | None, number: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield windows of labelled subjects and those of all others; classes that split subjects are drawn evenly."""
    subjects, first = np.unique(data.group_B, return_index=True)
    trait = all(len(np.unique(data.label_B[data.group_B == subject])) == 1 for subject in subjects)
    wanted = len(subjects) * 4 // 5 if count is None else count
    if wanted > len(subjects) - 2:
        return
    for seed in range(number):
        order = np.random.default_rng(seed).permutation(len(subjects))
        if trait:  # as many of each class as possible
            of_class = [order[data.label_B[first[order]] == k] for k in range(data.outputs)]
            order = np.array([one for pair in zip(*of_class, strict=False) for one in pair])
        labelled = np.isin(data.group_B, subjects[order[:wanted]])
        yield np.flatnonzero(labelled), np.flatnonzero(~labelled)


def answer(data: LabelledFeatures, asked: LabelledFeatures, readout: str) -> float:
    """Return the AUROC of a linear model that was chosen and fitted on ``data``, for other subjects."""
    fitted = fit_chosen(data, *members([readout]), only=[readout])
    return score(asked, fitted.outputs(asked.raw_BP[:, asked.columns(fitted.parts)], asked.group_B))


def few_labels(question: Question, model: Cerebro, work: Path, number: int) -> list[list[str]]:
    """Return rows (task, labelled subjects, draw, method, AUROC)."""
    name = question.task.task
    trained = model.training_record.electrode_windows
    electrodes = electrodes_of([question.known], trained, "nearest")
    whole = features_of(question, model, electrodes, ("mean", "encoder"), work, "open")
    (random,) = methods.random_encoders(model, 1)
    untaught = features_of(question, random, None, ("mean", "encoder"), work, "random")
    rows = []
    for count in COUNTS:
        for draw, (labelled, asked) in enumerate(draws(labelled_features(question, whole), count, number)):
            for method, readout in LABELLED.items():
                data = labelled_features(question, untaught if "random" in method else whole)
                found = answer(some(data, labelled), some(data, asked), readout)
                rows.append([name, str(count), str(draw), method, f"{found:.4f}"])
    return rows


def labelled_features(question: Question, features: Features) -> LabelledFeatures:
    known = question.known
    return LabelledFeatures(features.known_BP, features.sizes, known.label, None, len(known.names), groups_of(known))


def missing_electrodes(question: Question, model: Cerebro, work: Path, number: int) -> list[list[str]]:
    """Return rows (task, draw, method, AUROC with all electrodes, with half of them)."""
    name = question.task.task
    electrodes = electrodes_of([question.known], model.training_record.electrode_windows, "nearest")
    whole = labelled_features(question, features_of(question, model, electrodes, ("mean", "moments"), work, "any"))
    left = halved(electrodes)
    fewer = Question(**{**vars(question), "channels": question.channels[::2]})
    half = labelled_features(question, features_of(fewer, model, left, ("mean", "moments"), work, "half"))
    rows = []
    for draw, (labelled, asked) in enumerate(draws(whole, None, number)):
        for method in ("mean", "moments", "power", "tangent", "simple", "signal"):
            refit = method not in ("mean", "moments")
            before = answer(some(whole, labelled), some(whole, asked), method)
            after = answer(some(half if refit else whole, labelled), some(half, asked), method)
            rows.append([name, str(draw), f"{method}{', refitted' if refit else ''}", f"{before:.4f}", f"{after:.4f}"])
    return rows


def halved(electrodes: Electrodes | None) -> Electrodes:
    """Return how channels are read if every second one is missing."""
    from cerebro_eeg.channels.match import Channel

    def ids(names: tuple[str, ...]) -> NDArray[np.int64]:
        found = np.array([Channel(*name.split("-")).ids for name in names], np.int64)
        found = found if electrodes is None else electrodes(names).copy()
        found[1::2] = 0
        return found

    return ids


def table(rows: list[list[str]], keys: int, values: slice) -> None:
    """Print the mean over draws for each task and key, and over tasks."""
    found: dict[tuple[str, ...], list[list[float]]] = {}
    for row in rows:
        found.setdefault((row[0], *row[keys : values.start]), []).append([float(one) for one in row[values]])
    for key, numbers in found.items():
        mean, std = np.mean(numbers, 0), np.std(numbers, 0)
        print(*key, *(f"{m:.3f} +- {s:.3f}" for m, s in zip(mean, std, strict=True)), sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--from", dest="start", default="small-open")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.work.mkdir(parents=True, exist_ok=True)
    store = Store(given.store)
    files = {"few-labels.csv": few_labels, "missing-electrodes.csv": missing_electrodes}
    found: dict[str, list[list[str]]] = {name: [] for name in files}
    with process_group("cpu") as processes, unheard():
        model = Cerebro.from_pretrained(given.start)
        for name in given.tasks:
            options = compare.CompareOptions((name,), test=False)
            ((question,), _) = compare._questions(store, options, processes)
            for file, study in files.items():
                print(f"{name}: {file}", flush=True)
                found[file] += study(question, model, given.work, given.draws)
                with (given.work / file).open("w", encoding="utf-8", newline="") as out:
                    csv.writer(out).writerows(found[file])
    print("task\tlabelled\tmethod\tAUROC")
    table([[a, b, m, v] for a, b, _, m, v in found["few-labels.csv"]], 1, slice(3, None))
    print("task\tmethod\tall electrodes\thalf")
    table([[a, m, v, w] for a, _, m, v, w in found["missing-electrodes.csv"]], 1, slice(2, None))


if __name__ == "__main__":
    main()
