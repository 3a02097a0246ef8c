"""Where pre-training should pay: few labelled subjects, electrodes that are missing, another montage, noise, a device.

Only training and validation subjects of the pack take part: some of them are labelled, and all others are asked. So no
test split is looked at::

    python benchmarks/few_labels.py run STORE WORK --tasks arithmetic eyes --draws 10
    python benchmarks/few_labels.py tables WORK

STORE is what ``prepare openeeg`` makes of the pack. WORK keeps features and scores, and what is there is not computed
again. ``tables`` prints and writes ``curves.csv``, with one row per study, condition and method.

=============  =======================================================================================================
study          what is measured
=============  =======================================================================================================
labels         4, 8, 16 subjects are labelled, or four fifths of all
electrodes     every second electrode is missing for the subjects who are asked: heads for any montage go on as they
               are, others are fitted anew on what is left, or read spherical splines in place of what is missing
montage        every second electrode is there for the labelled subjects, and the other half for those who are asked
noise          mains hum or muscle noise for the subjects who are asked, which nothing was fitted on
device         rest or mental arithmetic, labelled on one device (``arithmetic``) and asked on another (``stress4``)
=============  =======================================================================================================

Every method chooses its strength, centring and weights by cross-validation among the labelled subjects, as ``compare``
does. ``any power`` is the simple rival that needs no fixed montage: mean and deviation of log power over the channels.
Windows are thinned evenly to at most ``--windows`` of each task.
"""

import argparse
import csv
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import ReadoutPart
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.bands import FINE_EDGES
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import Readout, widths
from cerebro_eeg.progress import unheard
from cerebro_eeg.runs import compare
from cerebro_eeg.runs import compare_methods as methods
from cerebro_eeg.runs.compare_methods import Question
from cerebro_eeg.runs.linear_models import CrossValidation, LabelledFeatures, LinearModel
from cerebro_eeg.runs.readout_choice import (
    READOUTS,
    fit_token_components,
    members,
    readout_config,
    shared_channels,
    thinned,
)
from cerebro_eeg.runs.store_predictions import predict_windows
from cerebro_eeg.runs.windows import Electrodes, Split, electrodes_of
from cerebro_eeg.train.distributed import process_group
from drawn_scores import drawn_auroc, drawn_mean, subject_draws

TASKS = ("adhd", "epilepsy", "eyes", "stress4", "arithmetic", "ssvep4")
COUNTS = (4, 8, 16)
SUBJECT_DRAWS = 500
ENCODED: tuple[ReadoutPart, ...] = ("mean", "moments", "covariance", "amplitude")
SIGNAL: tuple[ReadoutPart, ...] = ("power", "tangent", "narrow", "spectrum")
ANY_POWER = cast(ReadoutPart, "any power")
ANY = ("mean", "moments", "any power")
"""Methods that read any montage."""
SIMPLE = ("power", "tangent", "simple", "signal")
OURS = ("encoder", "hybrid", "whole")
CONDITIONS = ("whole", "even", "odd", "even spline", "odd spline", "mains", "muscle")
MAINS_HZ, MAINS_SIZE, MUSCLE_HZ, MUSCLE_SIZE = 50.0, 1.0, (20.0, 75.0), 0.5
"""The noise: its frequencies, and its effective value relative to the scale of the recording."""

Arrays = dict[str, NDArray[np.float32]]
Change = Callable[[Batch], Batch]


# Features of the windows in each condition


def same(batch: Batch) -> Batch:
    """Return the batch as it is."""
    return batch


def places() -> Any:
    """Return MNE's places of all 10-05 electrodes, whose name has changed."""
    import mne

    names = mne.channels.get_builtin_montages()
    return mne.channels.make_standard_montage("colin27_1005" if "colin27_1005" in names else "standard_1005")


def spline_matrix(names: Sequence[str], missing: Sequence[int]) -> NDArray[np.float64]:
    """Return the matrix that fills in missing channels by spherical splines of the others, as MNE-Python does."""
    import mne

    info = mne.create_info(list(names), 256.0, "eeg")
    raw = mne.io.RawArray(np.eye(len(names)), info, verbose="error")
    raw.set_montage(places(), verbose="error")
    raw.info["bads"] = [names[place] for place in missing]
    raw.interpolate_bads(verbose="error")
    return np.asarray(raw.get_data())


def splined(names: Sequence[str], missing: Sequence[int]) -> Change:
    """Return what fills in missing channels of a batch."""
    matrix = torch.from_numpy(spline_matrix(names, missing).astype(np.float32))

    def change(batch: Batch) -> Batch:
        signal = batch.layout.grid(batch.signal_RT.float())
        assert signal.shape[1] == len(matrix)
        return dataclasses.replace(batch, signal_RT=batch.layout.rows(torch.einsum("dc,bct->bdt", matrix, signal)))

    return change


def noisy(names: Sequence[str], kind: str, sfreq: float) -> Change:
    """Return what adds mains hum, equal on all channels up to a factor, or muscle bursts, strongest at the temples."""
    rng = torch.Generator().manual_seed(0)
    place = places().get_positions()["ch_pos"]
    lateral = np.array([abs(place[name][0]) for name in names])
    weight_C1 = torch.from_numpy((0.2 + 0.8 * lateral / lateral.max()).astype(np.float32))[:, None]

    def change(batch: Batch) -> Batch:
        signal = batch.layout.grid(batch.signal_RT.float())
        assert batch.scale_R is not None
        scale = batch.layout.grid(batch.scale_R.float())[..., None]
        windows, channels, samples = signal.shape
        if kind == "mains":
            phase = torch.rand(windows, 1, 1, generator=rng) * 2 * np.pi
            factor = 0.5 + torch.rand(windows, channels, 1, generator=rng)
            wave = torch.sin(2 * np.pi * MAINS_HZ * torch.arange(samples) / sfreq + phase) * 2**0.5
            noise = MAINS_SIZE * factor * wave
        else:
            white = torch.fft.rfft(torch.randn(windows, channels, samples, generator=rng))
            hertz = torch.fft.rfftfreq(samples, 1 / sfreq)
            white[..., (hertz < MUSCLE_HZ[0]) | (hertz > MUSCLE_HZ[1])] = 0
            band = torch.fft.irfft(white, samples)
            band = band / band.std(-1, keepdim=True)
            on = (torch.rand(windows, 1, -(-samples // 128), generator=rng) < 0.5).float()  # bursts of half a second
            noise = MUSCLE_SIZE * weight_C1 * on.repeat_interleave(128, -1)[..., :samples] * band
        return dataclasses.replace(batch, signal_RT=batch.layout.rows(signal + scale * noise))

    return change


def half(electrodes: Electrodes | None, odd: bool) -> Electrodes:
    """Return how channels are read if every second one is missing."""

    def ids(names: tuple[str, ...]) -> NDArray[np.int64]:
        found = np.array([Channel(*name.split("-")).ids for name in names], np.int64)
        found = found if electrodes is None else electrodes(names).copy()
        found[(0 if odd else 1) :: 2] = 0
        return found

    return ids


def features(question: Question, model: Cerebro, encoder: str, condition: str, work: Path) -> Arrays:
    """Return the features of all windows by part, from WORK where they are there already."""
    path = work / f"features-{question.task.task}-{encoder}-{condition.replace(' ', '-')}.npz"
    if not path.exists():
        print(f"  {path.stem} ...", flush=True)
        np.savez(path, **computed(question, model, condition, ENCODED if encoder == "random" else (*ENCODED, *SIGNAL)))  # type: ignore[arg-type]
    with np.load(path, allow_pickle=False) as kept:
        found = {part: kept[part] for part in kept.files}
    if "spectrum" in found:
        found["any power"] = any_power(found)
    return found


def computed(question: Question, model: Cerebro, condition: str, parts: tuple[ReadoutPart, ...]) -> Arrays:
    known, names = question.known, question.channels
    trained = model.training_record.electrode_windows
    electrodes = None if not trained else electrodes_of([known], trained, "nearest")
    channels, change = names, same
    if condition in ("even", "odd"):
        electrodes = half(electrodes, condition == "odd")
        channels = shared_channels(Split("", "", known, None, None), electrodes)
    elif condition != "whole":
        (montage,) = {known.facts.montages[n] for n in np.unique(known.facts.montage[known.recording])}
        assert montage == names
        assert electrodes is None
        if condition.endswith("spline"):
            change = splined(names, range(len(names))[1 if condition.startswith("even") else 0 :: 2])
        else:
            change = noisy(names, condition, known.sfreq)
    readout = Readout(readout_config(parts, channels), model.config)
    fit_token_components(readout, model, question.store, question.train, question.processes, electrodes)

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Cerebro)
        return readout.raw(change(batch), module.encoder)

    raw = predict_windows(model, question.store, known, question.processes, electrodes=electrodes, read=read)
    ends = np.cumsum(widths(readout.config, model.config))
    return dict(zip(parts, np.split(raw, ends[:-1], 1), strict=True))


def any_power(found: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return mean and deviation over the channels of log power, in six bands and in bins of 1 Hz."""
    kept = []
    for part, bins in (("power", 6), ("spectrum", len(FINE_EDGES) - 1)):
        value_BCK = found[part].reshape(len(found[part]), -1, bins)
        kept += [value_BCK.mean(1), value_BCK.std(1)]
    return np.concatenate(kept, 1)


# Models


def data_of(question: Question, found: Mapping[str, NDArray[np.float32]]) -> LabelledFeatures:
    sizes = {cast(ReadoutPart, part): array.shape[1] for part, array in found.items()}
    return dataclasses.replace(question.truth, raw_BP=np.concatenate(list(found.values()), 1), sizes=sizes)


def some(data: LabelledFeatures, chosen: NDArray[np.intp]) -> LabelledFeatures:
    """Return some windows with their features."""
    return LabelledFeatures(
        data.raw_BP[chosen], data.sizes, data.label_B[chosen], None, data.outputs, data.group_B[chosen]
    )


def fitted(
    data: LabelledFeatures, names: Sequence[str], before: CrossValidation | None = None
) -> tuple[dict[str, LinearModel], CrossValidation]:
    """Return a model of each method, chosen and fitted on all windows of ``data``."""
    candidates, stacks = members([name for name in names if name in READOUTS])
    if "any power" in names:
        candidates["any power"] = (ANY_POWER,)
    crossed = CrossValidation(data, candidates, stacks, before=before)
    return {name: crossed.fitted([name]) for name in names}, crossed


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


# Studies

Scores = dict[tuple[str, ...], NDArray[np.float64]]
"""AUROC for all subjects and for draws of them, by (study, condition, repetition, method)."""


class Asked:
    """Scores models on the windows that a repetition asks, with the same draws of subjects for all of them."""

    def __init__(self, weight_DB: NDArray[np.float64], scores: Scores) -> None:
        self._weight_DB, self._scores = weight_DB, scores

    def __call__(
        self, key: tuple[str, ...], model: LinearModel, data: LabelledFeatures, asked: NDArray[np.intp]
    ) -> None:
        raw = data.raw_BP[asked][:, data.columns(model.parts)]
        output = model.outputs(raw, data.group_B[asked])
        self._scores[key] = drawn_auroc(data.label_B[asked], output, self._weight_DB[:, asked])


def few_labels(question: Question, model: Cerebro, random: Cerebro, work: Path, number: int) -> Scores:
    """Study ``labels``."""
    whole = data_of(question, features(question, model, "open", "whole", work))
    simple = {part: whole.features([part]) for part in SIGNAL}
    untaught = data_of(question, {**features(question, random, "random", "whole", work), **simple})
    scores: Scores = {}
    ask = Asked(subject_draws(whole.group_B, SUBJECT_DRAWS, 0), scores)
    for count in (*COUNTS, None):
        for draw, (labelled, asked) in enumerate(draws(whole, count, number if count else max(3, number // 3))):
            found, crossed = fitted(some(whole, labelled), (*SIMPLE, *OURS, *ANY))
            others, _ = fitted(some(untaught, labelled), ("mean", *OURS), before=crossed.keeping(list(SIMPLE)))
            key = ("labels", "all" if count is None else str(count), str(draw))
            for method, one in found.items():
                ask((*key, method), one, whole, asked)
            for method, one in others.items():
                ask((*key, f"{method}, random weights"), one, untaught, asked)
            print(f"{question.task.task}: {' '.join(key)}", flush=True)
    return scores


def robust(question: Question, model: Cerebro, random: Cerebro, work: Path, number: int) -> Scores:
    """Studies ``electrodes``, ``montage`` and ``noise``: four fifths of the subjects are labelled."""
    of = {name: data_of(question, features(question, model, "open", name, work)) for name in CONDITIONS}
    scores: Scores = {}
    whole, every = of["whole"], (*SIMPLE, *OURS, *ANY)
    ask = Asked(subject_draws(whole.group_B, SUBJECT_DRAWS, 0), scores)
    for draw, (labelled, asked) in enumerate(draws(whole, None, max(3, number // 3))):
        clean, _ = fitted(some(whole, labelled), every)
        left, _ = fitted(some(of["even"], labelled), every)
        filled, _ = fitted(some(of["even spline"], labelled), (*SIMPLE, *OURS))
        place = str(draw)
        for method, one in clean.items():
            for study in ("electrodes", "noise"):
                ask((study, "as it was", place, method), one, whole, asked)
            ask(("noise", "mains", place, method), one, of["mains"], asked)
            ask(("noise", "muscle", place, method), one, of["muscle"], asked)
            if method in ANY:
                ask(("electrodes", "half, not fitted anew", place, method), one, of["even"], asked)
                continue
            ask(("electrodes", "half, splines", place, method), one, of["even spline"], asked)
        for method, one in left.items():
            ask(("electrodes", "half, fitted anew", place, method), one, of["even"], asked)
            ask(("montage", "the same half", place, method), one, of["even"], asked)
            if method in ANY:
                ask(("montage", "the other half", place, method), one, of["odd"], asked)
        for method, one in filled.items():
            ask(("montage", "the other half, splines", place, method), one, of["odd spline"], asked)
        print(f"{question.task.task}: electrodes, montage and noise, {place}", flush=True)
    return scores


def device(asked: Sequence[Question], model: Cerebro, work: Path) -> Scores:
    """Study ``device``: the classes that ``arithmetic`` and ``stress4`` share."""
    shared = [name for name in asked[0].channels if name in asked[1].channels]
    two = []
    for question in asked:
        wanted = [question.known.names.index(name) for name in ("rest", "relax") if name in question.known.names]
        wanted += [question.known.names.index("arithmetic")]
        kept = question.known.take(np.isin(question.known.label, wanted))
        label = (kept.label == wanted[1]).astype(np.int64)
        kept = dataclasses.replace(kept, label=label, names=("rest", "arithmetic"))
        two.append(dataclasses.replace(question, known=kept, channels=tuple(shared)))
    scores: Scores = {}
    data = []
    for question in two:
        name = f"{question.task.task}-pair"
        pair = dataclasses.replace(question, task=dataclasses.replace(question.task, task=name))
        data.append(data_of(pair, features(pair, model, "open", "whole", work)))
    every = (*SIMPLE, *OURS, *ANY)
    for first, second in ((0, 1), (1, 0)):
        weights = subject_draws(data[second].group_B, SUBJECT_DRAWS, 0)
        ask, found = Asked(weights, scores), fitted(data[first], every)[0]
        names = [question.task.task for question in two]
        for method, one in found.items():
            key = ("device", f"{names[first]} to {names[second]}", "0", method)
            ask(key, one, data[second], np.arange(len(data[second].label_B)))
        print(f"device: {names[first]} to {names[second]}", flush=True)
    return scores


# Tables

PAIRS = {
    "labels": (
        ("hybrid", "simple"),
        ("hybrid", "signal"),
        ("whole", "signal"),
        ("encoder", "simple"),
        ("hybrid", "hybrid, random weights"),
        ("whole", "whole, random weights"),
        ("encoder", "encoder, random weights"),
        ("mean", "mean, random weights"),
        ("moments", "any power"),
    )
}
"""Methods whose difference is worth an interval."""


def read_scores(work: Path) -> dict[str, Scores]:
    found: dict[str, Scores] = {}
    for path in sorted(work.glob("scores-*.npz")):
        with np.load(path, allow_pickle=False) as kept:
            task = path.stem.split("-")[1]
            found.setdefault(task, {}).update({tuple(key.split("|")): kept[key] for key in kept.files})
    return found


def of_repetitions(scores: Scores, study: str, condition: str, method: str) -> NDArray[np.float64]:
    """Return the scores of all repetitions, (repetitions, draws + 1)."""
    kept = [value for key, value in scores.items() if (key[0], key[1], key[3]) == (study, condition, method)]
    return np.array(kept)


def tables(work: Path) -> None:
    """Print every study, and write its rows: the mean of each method, and differences with intervals over subjects."""
    of_task = read_scores(work)
    rows = [("study", "condition", "tasks", "method", "minus", "value", "low", "high", "above 0", *TASKS)]
    studies = {(key[0], key[1]): None for scores in of_task.values() for key in scores}
    for study, condition in studies:
        tasks = [t for t in (*TASKS, "device") if any(key[:2] == (study, condition) for key in of_task.get(t, {}))]
        here = [key[3] for key in of_task[tasks[0]] if key[:2] == (study, condition)]
        for method in dict.fromkeys(here):
            gaps = {task: of_repetitions(of_task[task], study, condition, method) for task in tasks}
            rows.append(row_of(study, condition, method, "", gaps))
        pairs = list(PAIRS.get(study, ()))
        if study != "labels":
            pairs = [("hybrid", "simple"), ("whole", "signal"), ("encoder", "simple"), ("moments", "any power")]
        for first, second in pairs:
            if first in here and second in here:
                gaps = {
                    task: of_repetitions(of_task[task], study, condition, first)
                    - of_repetitions(of_task[task], study, condition, second)
                    for task in tasks
                }
                rows.append(row_of(study, condition, first, second, gaps))
        before = {"electrodes": "as it was", "noise": "as it was", "montage": "the same half"}.get(study, condition)
        if condition != before:
            for method in dict.fromkeys(here):
                gaps = {
                    task: of_repetitions(of_task[task], study, condition, method)
                    - of_repetitions(of_task[task], study, before, method)
                    for task in tasks
                }
                rows.append(row_of(study, condition, method, before, gaps))
    for cells in rows:
        print(*cells, sep="\t")
    with (work / "curves.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def row_of(
    study: str, condition: str, method: str, minus: str, gaps: Mapping[str, NDArray[np.float64]]
) -> tuple[str, ...]:
    value, low, high, above = drawn_mean(list(gaps.values()))
    sign = "+" if minus else ""
    each = [f"{np.nanmean(gaps[task][:, 0]):{sign}.3f}" if task in gaps else "" for task in TASKS]
    limits = [f"{one:{sign}.3f}" for one in (value, low, high)]
    return (study, condition, str(len(gaps)), method, minus, *limits, f"{above:.2f}" if minus else "", *each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    does = verbs.add_parser("run")
    does.add_argument("store", type=Path)
    does.add_argument("work", type=Path)
    does.add_argument("--tasks", nargs="+", default=list(TASKS))
    does.add_argument("--studies", nargs="+", default=["labels", "robust", "device"])
    does.add_argument("--draws", type=int, default=10)
    does.add_argument("--windows", type=int, default=1200)
    does.add_argument("--from", dest="start", default="small-open")
    does.add_argument("--threads", type=int, default=1)
    shows = verbs.add_parser("tables")
    shows.add_argument("work", type=Path)
    given = parser.parse_args()
    if given.verb == "tables":
        tables(given.work)
        return
    torch.set_num_threads(given.threads)
    given.work.mkdir(parents=True, exist_ok=True)
    store = Store(given.store)
    with process_group("cpu") as processes, unheard():
        model = Cerebro.from_pretrained(given.start)
        (random,) = methods.random_encoders(model, 1)
        questions = {}
        for name in given.tasks:
            options = compare.CompareOptions((name,), test=False)
            ((question,), _) = compare._questions(store, options, processes)
            known: Windows = thinned(question.known, given.windows, lambda line: None)
            questions[name] = dataclasses.replace(question, known=known)
        for study, does_it in (("labels", few_labels), ("robust", robust)):
            for name, question in questions.items() if study in given.studies else ():
                path = given.work / f"scores-{name}-{study}.npz"
                if not path.exists():
                    keep(path, does_it(question, model, random, given.work, given.draws))
        if "device" in given.studies and {"arithmetic", "stress4"} <= set(questions):
            pair = [questions["arithmetic"], questions["stress4"]]
            keep(given.work / "scores-device-device.npz", device(pair, model, given.work))


def keep(path: Path, scores: Scores) -> None:
    np.savez(path, **{"|".join(key): value for key, value in scores.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
