"""Evaluate: score all trainings of a fine-tuning run. The test split is scored once.

``evaluate`` finds the trainings and keeps the record of the first score. ``predict_training`` and ``score_training``
are the work for one training: its predictions, their scores, and for seizures the events.

Another store than the one that the run was trained on is external data (``external.py``). It is scored once, too, and
has a record of its own.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError
from cerebro_eeg.files import begin_sums, forget_sums
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.external import ExternalChoices, ExternalData, find_external, head_electrodes, is_external
from cerebro_eeg.runs.external_record import (
    choices_differ,
    external_places,
    read_about,
    read_training_data,
    training_data,
    write_about,
)
from cerebro_eeg.runs.external_rivals import external_rivals
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.packages import no_events, require_packages
from cerebro_eeg.runs.probe import one_for_all, seeds_that_differ
from cerebro_eeg.runs.provenance import SeenBefore, data_before, seen_before
from cerebro_eeg.runs.readout_choice import head_outputs
from cerebro_eeg.runs.results import EvaluateResult
from cerebro_eeg.runs.rivals import AskedOfRivals, Ours, compare_with_rivals, kept_rivals
from cerebro_eeg.runs.score_record import ScoreRecord, of_seeds, read_record, summarise, write_record
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.runs.snapshot import is_unfinished, usable_weights
from cerebro_eeg.runs.store_predictions import to_predictions
from cerebro_eeg.runs.windows import LabelledTask, Split, find_splits, pick_targets
from cerebro_eeg.scores import seizures
from cerebro_eeg.scores.predictions import Predictions, score
from cerebro_eeg.scores.tables import positive_of
from cerebro_eeg.train.distributed import ProcessGroup, process_group

Say = Callable[[str], None]
DEFAULT_THRESHOLD = 0.5
"""Probability from which a second belongs to a detected event, if no validation windows could choose one."""


@dataclass(frozen=True)
class TrainedModel:
    """A training with weights, and the windows to score it on."""

    folder: RunFolder
    weights: Path
    """The checkpoint; of a training that was stopped, a temporary one of its last state."""
    fold: str
    """Empty for the task's own splits."""
    seed: int
    windows: Windows
    out: Path | None = None
    """The folder for predictions, record and events, where it is not that of the training."""

    @property
    def results(self) -> Path:
        """The folder of predictions, record and events."""
        return self.folder.path if self.out is None else self.out

    @property
    def place(self) -> str:
        """The folder of the training within the run."""
        return f"{self.fold}/seed-{self.seed}".lstrip("/")

    def hash(self) -> str:
        """Return the SHA-256 of the weights."""
        return checkpoint.hash_tensors(checkpoint.read(self.weights)[1])


@dataclass(frozen=True)
class Scorer:
    """The settings that all trainings are scored with."""

    store: Store
    processes: ProcessGroup
    events: bool
    """Score events also if no class is called a seizure."""
    untrained: Untrained
    as_is: bool
    """Whether the run was trained on a store of another sampling rate than the model's."""
    resamples: int
    say: Say


@dataclass(frozen=True)
class _Scored:
    """What is told of a scoring: all scores and their summary, and the first ones if these are later ones."""

    found: Mapping[str, Any]
    scorings: int
    fresh: bool
    first: Mapping[str, Any] | None = None


def evaluate(
    run: Path,
    store_folder: Path,
    *,
    split: str | None = None,
    task: str | None = None,
    classes: Sequence[str] = (),
    new_subjects: bool = False,
    trained_on: Path | None = None,
    again: bool = False,
    device: str = "auto",
    events: bool = False,
    untrained: Untrained | None = None,
    resamples: int = 1000,
    rivals: bool = True,
    random_weights: bool = False,
    say: Say = lambda line: None,
) -> EvaluateResult:
    """Score every training of a fine-tuning run; the test split only once, unless ``again``.

    Of the store that the run was trained on, ``split`` is test or validation. Another store, or another ``task``, is
    external data: ``split`` is one of its own or "all", and each is scored once. ``trained_on`` is then the store of
    the run, which simple rivals are fitted on.
    With ``rivals`` simple features with a linear model are scored on the same test windows, once as well. On a GPU, or
    with ``random_weights``, so is a head on random weights.
    """
    require_packages("sklearn", *(["timescoring"] if events else []), why="evaluate --events" if events else "evaluate")
    folder = RunFolder(run)
    settings = _read_settings(folder)
    store = Store(store_folder)
    hash = store.hash()
    choices = ExternalChoices(task, split, tuple(classes), new_subjects)
    external = is_external(store, hash, settings, choices)
    if trained_on is not None and not external:
        raise ConfigError("--trained-on is for another store than the one that the run was trained on; leave it out")
    learned_store = None if trained_on is None else _store_of_run(trained_on, settings["store"])
    part = split or "test"
    if seizures.seizure_class(settings["task"]["names"]) is not None and (line := no_events()) is not None:
        say(f"note: {line}")
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(process_group(device))
        if external or part == "test":  # validation writes nothing, so the run may still be training
            stack.enter_context(folder.locked())
            folder.remove_strays()
        if processes.size > 1:
            raise ConfigError(f"evaluate was started in {processes.size} processes; start it in one")
        options, notes = settings["choices"], [*filter(None, [one_for_all(settings)])]
        as_is = options["rate"] == "as_is"
        scorer = Scorer(store, processes, events, untrained or options["untrained"], as_is, resamples, say)
        if external:
            trainings, data = _find_external(run, scorer, hash, settings, choices, learned_store, stack, notes)
        else:
            trainings, data = list(_find_trainings(run, store, settings, part, stack, notes)), None
        heads = [checkpoint.read_header(training.weights).head for training in trainings]
        if any(head is not None and head.centred for head in heads):
            notes.append(
                "outputs are centred per subject, without labels: each score uses all windows of a subject at once; "
                "predict centres by the recording"
            )
        about: dict[str, Any] | None = None
        if data is not None:
            place = data.place(run)
            about = _begin_external(place, data, trainings, again, notes)
            scored = _score_once(place, scorer, trainings, seeds_that_differ(settings), again, notes)
            notes += _other_scores(run, place)
            beside, lines = (
                external_rivals(
                    run,
                    place,
                    data,
                    _answers(trainings),
                    processes,
                    settings,
                    learned_store,
                    random_weights=random_weights,
                    resamples=resamples,
                    say=say,
                )
                if rivals
                else (None, [])
            )
            notes += lines
            about = {"folder": str(place), **about}
        elif part == "validation":
            scores = [score_training(scorer, one, predict_training(scorer, one), write=False) for one in trainings]
            scored, beside = _Scored(_joined(scores), 0, True), None
        else:
            scored = _score_once(run, scorer, trainings, seeds_that_differ(settings), again, notes)
            beside = _beside_rivals(scorer, run, settings, trainings, random_weights) if rivals else None
        why = dict.fromkeys(why for one in scored.found["trainings"] if (why := one.get("events_left_out")))
        return EvaluateResult(
            str(run),
            part if data is None else data.split,
            settings["task"],
            settings["unit"],
            scored.scorings,
            scored.fresh,
            scored.found["summary"],
            None if scored.first is None else scored.first["summary"],
            tuple(scored.found["trainings"]),
            (*notes, *why),
            _seen(folder, trainings, settings, part if data is None else "external", hash).to_dict(),
            beside,
            about,
        )


def _score_once(
    place: Path, scorer: Scorer, trainings: Sequence[TrainedModel], seeds: Sequence[int], again: bool, notes: list[str]
) -> _Scored:
    """Score all trainings, unless their record in ``place`` says that it was done: then its first score is told."""
    before = _earlier_record(place, trainings)
    if before is not None and not again:
        before = _with_events(scorer, trainings, before)
        notes += [*_changed_weights(before, trainings), *_without_threshold(before, trainings)]
        write_record(place, before)
        return _Scored(of_seeds(before.first, seeds), before.scorings, False)
    if before is not None:  # counted before a score is seen, so that stopping halfway does not hide it
        before = ScoreRecord(before.scorings + 1, before.first, before.last)
        write_record(place, before)
    records = [_score_test(scorer, training, again, notes) for training in trainings]
    last = _joined([record.last for record in records])
    if before is None:
        first, scorings = _joined([record.first for record in records]), max(r.scorings for r in records)
    else:
        first, scorings = before.first, before.scorings
    write_record(place, ScoreRecord(scorings, first, last))
    of_first = of_seeds(first, seeds)
    return _Scored(last if again else of_first, scorings, True, of_first if scorings > 1 else None)


# External data


def _find_external(
    run: Path,
    scorer: Scorer,
    hash: str,
    settings: Mapping[str, Any],
    choices: ExternalChoices,
    learned_store: Store | None,
    stack: contextlib.ExitStack,
    notes: list[str],
) -> tuple[list[TrainedModel], ExternalData]:
    """Return the trainings with the windows of the external store, and what is scored."""
    learned = read_training_data(run)
    if learned is None and learned_store is not None:
        learned = training_data(learned_store, settings["store"]["sha256"], _splits_of_run(learned_store, settings))
    weights = list(_find_weights(run, settings, stack, notes))
    headers = [checkpoint.read_header(path) for _, path, _, _ in weights]
    data = find_external(scorer.store, hash, settings, learned, headers, choices, scorer.untrained, scorer.say)
    place = data.place(run)
    trainings = [
        TrainedModel(inside, path, fold, seed, data.windows, place / fold / f"seed-{seed}")
        for inside, path, fold, seed in weights
    ]
    return trainings, data


def _begin_external(
    place: Path, data: ExternalData, trainings: Sequence[TrainedModel], again: bool, notes: list[str]
) -> dict[str, Any]:
    """Write what is about to be scored, and return what the score that is told is of: the first one, or this one."""
    now, known = data.about(), read_about(place)
    if known is not None and any(known[name] != now[name] for name in ("sha256", "task", "split")):
        raise ConfigError(f"{place} holds scores of another store with the same short hash; evaluate a copy of the run")
    complete = _earlier_record(place, trainings) is not None
    looked_at = complete or any((one.results / "test.npz").exists() for one in trainings)
    changed = None if known is None else choices_differ(known, now)
    if changed is not None and complete and not again:
        notes.append(f"{changed}; this score is the first one, and --again scores with the new choice")
    if changed is not None and looked_at and not complete:
        raise ConfigError(f"a scoring of this store was begun and stopped: {changed}; give the same as then")
    if complete and not again:
        return now if known is None else known
    if place.exists():
        RunFolder(place).remove_strays()
    for folder in (place, *(one.results for one in trainings)):
        folder.mkdir(parents=True, exist_ok=True)
        begin_sums(folder)
    write_about(place, known if known is not None and looked_at else now, now)
    return now


def _other_scores(run: Path, place: Path) -> list[str]:
    """Return a note that counts the other external stores, tasks and splits that this run was scored on."""
    others = [one for one in external_places(run) if one != place]
    if not others:
        return []
    names = ", ".join(one.name for one in others[:4]) + (", ..." if len(others) > 4 else "")
    return [f"this run was scored on {counted(len(others), 'other external set')}, too ({names}); report all of them"]


def _answers(trainings: Sequence[TrainedModel]) -> dict[str, list[Ours]] | None:
    """Return the first predictions of the trainings of each fold; None if a training has none."""
    ours: dict[str, list[Ours]] = {}
    for training in trainings:
        path = training.results / "test.npz"
        if not path.exists():  # an earlier release, or the file was deleted
            return None
        found = Ours(Predictions.load(path), checkpoint.read_header(training.weights))
        ours.setdefault(training.fold, []).append(found)
    return ours


def _store_of_run(folder: Path, wanted: Mapping[str, str]) -> Store:
    """Open the store that the run was trained on; raise an error if it is another one."""
    store = Store(folder)
    found = store.hash()
    if found != wanted["sha256"]:
        raise InputError(
            f"--trained-on names a store ({store.info.dataset}, SHA-256 {found[:16]}...) that is not the one that the "
            f"run was trained on ({wanted['dataset']}, {wanted['sha256'][:16]}...); give that one, or leave it out"
        )
    return store


def _splits_of_run(store: Store, settings: Mapping[str, Any]) -> list[Split]:
    return list(find_splits(store, _task_of(settings), settings["choices"]["folds"]))


def _beside_rivals(
    scorer: Scorer, run: Path, settings: Mapping[str, Any], trainings: Sequence[TrainedModel], random_weights: bool
) -> list[dict[str, Any]] | None:
    """Return how the first predictions stand beside the rivals; None if a training has none."""
    random_weights = random_weights or scorer.processes.device.type == "cuda"
    if (kept := kept_rivals(run, "test", random_weights)) is not None:
        return kept
    if (ours := _answers(trainings)) is None:
        return None
    return compare_with_rivals(
        run,
        AskedOfRivals(
            scorer.store,
            _splits_of_run(scorer.store, settings),
            scorer.processes,
            "test",
            balanced=settings["choices"]["balanced"],
            centring=settings["choices"].get("centring") is not False,
        ),
        ours,
        resamples=scorer.resamples,
        say=scorer.say,
        random_weights=random_weights,
    )


def _task_of(settings: Mapping[str, Any]) -> LabelledTask:
    return LabelledTask(**{**settings["task"], "names": tuple(settings["task"]["names"])})


def _read_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of a fine-tuning run, or raise an error that says what else the folder is."""
    path = folder.path
    if path.is_file() or (folder.model.exists() and not (path / "run.json").exists()):
        raise ConfigError(f"{path} is a checkpoint; evaluate scores the folder of a run that finetune --out made")
    found = folder.read()
    settings: dict[str, Any] = found["settings"]
    if found["verb"] == "pretrain":
        raise ConfigError(f"{path} is a pre-training run, which answers nothing yet; finetune it, then evaluate that")
    if "choices" not in settings or "store" not in settings:
        raise ConfigError(f"{path} is one training of a run; give the folder of the run that it lies in")
    return settings


def _find_weights(
    run: Path, settings: Mapping[str, Any], stack: contextlib.ExitStack, notes: list[str]
) -> Iterator[tuple[RunFolder, Path, str, int]]:
    """Yield folder, weights, fold and seed of each training.

    The weights of a training that was stopped are those of its last state, and a note says so. The stack keeps their
    temporary file.
    """
    count, seeds = settings["choices"]["folds"], seeds_that_differ(settings)
    folds = [""] if count is None else [f"fold-{number + 1}" for number in range(count)]
    places = [(RunFolder(run / fold / f"seed-{seed}"), fold, seed) for fold in folds for seed in seeds]
    missing = [one.path.relative_to(run).as_posix() for one, _, _ in places if not one.model.exists()]
    missing = [name for name in missing if not is_unfinished(run / name)]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(places)} trainings have saved no weights ({', '.join(missing[:6])}"
            f"{', ...' if len(missing) > 6 else ''}); start the same finetune command again, then evaluate"
        )
    for inside, fold, seed in places:
        weights = inside.model
        if not weights.exists():
            weights = stack.enter_context(
                usable_weights(inside.path, lambda line: notes.append(line.removeprefix("note: ")))
            )
        yield inside, weights, fold, seed


def _find_trainings(
    run: Path,
    store: Store,
    settings: Mapping[str, Any],
    part: str,
    stack: contextlib.ExitStack,
    notes: list[str],
) -> Iterator[TrainedModel]:
    """Yield the trainings with their windows, cut as they were for training."""
    task, found = _task_of(settings), {}
    splits = _splits_of_run(store, settings)
    weights = list(_find_weights(run, settings, stack, notes))
    for split, counts in zip(splits, settings["windows"], strict=True):
        windows, before = (split.test, counts[2]) if part == "test" else (split.validation, counts[1])
        if windows is None or not len(windows):
            raise InputError(f"task {task.task!r} has no {part} windows; say --split, or finetune with --folds N")
        if len(windows) != before:
            raise InputError(
                f"the {part} split has {len(windows):,} windows and had {before:,} when the run was trained; use the "
                "release of cerebro-eeg that trained it"
            )
        found[split.name] = windows
    for inside, path, fold, seed in weights:
        yield TrainedModel(inside, path, fold, seed, found[fold])


def _seen(
    folder: RunFolder, trainings: Sequence[TrainedModel], settings: Mapping[str, Any], part: str, hash: str
) -> SeenBefore:
    """Return whether the weights had learned from the tested subjects before their fine-tuning began."""
    begun = folder.read().get("seen", {}).get("state")  # older releases did not write it
    learned = settings["from"] is not None and begun != "new"
    training = checkpoint.read_header(trainings[0].weights).training
    before = data_before(training, settings["choices"]["freeze"]) if learned else ()
    return seen_before(before, learned, hash, [one.windows for one in trainings], part)


def _with_events(scorer: Scorer, trainings: Sequence[TrainedModel], record: ScoreRecord) -> ScoreRecord:
    """Add to the first score the events that were left out for want of a package, from the kept predictions.

    The predictions are those of the first scoring, so this is no new one.
    """
    if no_events() is not None or not any(one.get("events_left_out") for one in record.first["trainings"]):
        return record
    found = {(one.fold, one.seed): one for one in trainings}
    first = [dict(one) for one in record.first["trainings"]]
    for one in first:
        training = found.get((one["fold"], one["seed"]))
        if not one.get("events_left_out") or training is None or one["weights"] != training.hash():
            continue
        predictions = Predictions.load(training.results / "test.npz")
        one.update(_score_events(scorer, training, predictions, write=True))
        old = read_record(training.results)
        if old is not None:
            last = one if old.scorings == 1 else old.last
            write_record(training.results, ScoreRecord(old.scorings, one, last))
    joined = _joined(first)
    return ScoreRecord(record.scorings, joined, joined if record.scorings == 1 else record.last)


def _earlier_record(run: Path, trainings: Sequence[TrainedModel]) -> ScoreRecord | None:
    """Return the run's record, or the joined records of its trainings; None if the first scoring has not ended."""
    whole = read_record(run)
    found = [read_record(training.results) for training in trainings]
    known = [record for record in found if record is not None]
    if whole is None and len(known) < len(trainings):
        return None
    if whole is None:
        whole = ScoreRecord(1, _joined([record.first for record in known]), _joined([record.last for record in known]))
    return ScoreRecord(max([whole.scorings, *(record.scorings for record in known)]), whole.first, whole.last)


def _score_test(scorer: Scorer, training: TrainedModel, again: bool, notes: list[str]) -> ScoreRecord:
    """Return the record of a training, which is scored now if it was not yet, or if ``again``."""
    folder = training.results
    kept = folder / "test.npz"
    old = read_record(folder)
    if old is None and kept.exists():  # the scoring was stopped, or its record was deleted
        notes.append(f"{training.place} had test.npz but no test.json: the first score is of those predictions")
        found = _score_predictions(scorer, training, Predictions.load(kept), write=True)
        old = ScoreRecord(1, found, found)
        write_record(folder, old)
    if old is not None and not again:
        return old
    predictions = predict_training(scorer, training)
    predictions.save(kept if old is None else folder / "test-again.npz")
    found = score_training(scorer, training, predictions, write=True)
    record = ScoreRecord(1, found, found) if old is None else ScoreRecord(old.scorings + 1, old.first, found)
    write_record(folder, record)
    return record


def _changed_weights(before: ScoreRecord, trainings: Sequence[TrainedModel]) -> list[str]:
    """Return a note for each training whose weights are no longer those of the first score."""
    scored = {(score["fold"], score["seed"]): score["weights"] for score in before.first["trainings"]}
    return [
        f"the weights of {training.place} have changed since this score; --again scores the new ones"
        for training in trainings
        if scored.get((training.fold, training.seed)) != training.hash()
    ]


def _without_threshold(before: ScoreRecord, trainings: Sequence[TrainedModel]) -> list[str]:
    """Return a note if the first score is of a release that did not yet score the threshold of the weights."""
    known = all(score["scores"]["at_threshold"] for score in before.first["trainings"])
    heads = [checkpoint.read_header(training.weights).head for training in trainings]
    if known or not any(head is not None and head.threshold is not None for head in heads):
        return []
    return ["this score is older than scores at the threshold that predict decides by; --again has them"]


def _joined(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of all trainings with their summary."""
    return {"summary": summarise(scores), "trainings": list(scores)}


# One training


def predict_training(scorer: Scorer, training: TrainedModel) -> Predictions:
    """Return the predictions of a training's weights for its windows."""
    windows = training.windows
    model = Cerebro.from_pretrained(
        training.weights,
        sfreq=windows.sfreq if scorer.as_is else None,
        rate="as_is" if scorer.as_is else "error",
    )
    if model.head is None or not _answers_all(model.head.names, windows):
        raise CheckpointError(
            f"the weights of {training.place} do not answer {', '.join(windows.names)}; the run was altered"
        )
    ids, ours = head_electrodes(model.header, windows, scorer.untrained), model.head.names
    output = head_outputs(
        model.to(scorer.processes.device), scorer.store, windows, scorer.processes, electrodes=ids, say=scorer.say
    )
    return to_predictions(scorer.store, windows, pick_targets(output, ours, windows))


def _answers_all(ours: Sequence[str], windows: Windows) -> bool:
    """Return whether a head with these outputs answers the windows; an external store may lack some targets."""
    return windows.names == tuple(ours) or (windows.target is not None and set(windows.names) <= set(ours))


def score_training(scorer: Scorer, training: TrainedModel, predictions: Predictions, *, write: bool) -> dict[str, Any]:
    """Return the scores as JSON values, and print that they were made; ``write`` also writes the events as TSV."""
    found = _score_predictions(scorer, training, predictions, write=write)
    scorer.say(f"scored {training.place}: {len(training.windows):,} windows")
    return found


def _score_predictions(
    scorer: Scorer, training: TrainedModel, predictions: Predictions, *, write: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "fold": training.fold,
        "seed": training.seed,
        "weights": training.hash(),
        "scores": score_by(training.weights, predictions, scorer.resamples),
        **_score_events(scorer, training, predictions, write=write),
    }
    return found


def _score_events(scorer: Scorer, training: TrainedModel, predictions: Predictions, *, write: bool) -> dict[str, Any]:
    """Return the scores of seizure events, or why they were left out; both are None for other tasks."""
    found: dict[str, Any] = {"events": None, "events_left_out": None}
    positive = seizures.seizure_class(predictions.names) if predictions.kind == "classification" else None
    if scorer.events and positive is None:
        if predictions.kind != "classification" or len(predictions.names) != 2:
            raise ConfigError(f"--events needs a task with two classes; this one has {', '.join(predictions.names)}")
        positive = 1
    if positive is None:
        return found
    threshold = _event_threshold(training, predictions.names, positive)
    lines, durations = _time_lines(scorer.store, predictions, positive)
    found["events_left_out"] = no_events()
    if found["events_left_out"] is None:
        name = predictions.names[positive]
        scored = seizures.score_events(lines, name, threshold=threshold, resamples=scorer.resamples)
        found["events"] = scored.to_dict()
    if write and lines:
        events = training.results / "test-events"
        forget_sums(events)
        for id, line in lines.items():
            seizures.write_events(events / f"{id}_events.tsv", line.probability, threshold, durations[id])
        begin_sums(events, [f"{id}_events.tsv" for id in lines])
    return found


def score_by(weights: Path, predictions: Predictions, resamples: int) -> dict[str, Any]:
    """Return the scores as JSON values, also at the threshold that ``predict`` takes from these weights."""
    head = checkpoint.read_header(weights).head
    if head is None or head.threshold is None or positive_of(predictions.kind, predictions.names) is None:
        return score(predictions, resamples=resamples).to_dict()
    return score(predictions, threshold=head.threshold, chosen_on=head.threshold_level, resamples=resamples).to_dict()


def _event_threshold(training: TrainedModel, names: Sequence[str], positive: int) -> float:
    """Return the probability from which a second is detected: it separates the validation windows best (Youden).

    The threshold of ``predict`` does so if it was chosen over windows, and is then taken.
    """
    from sklearn.metrics import roc_curve

    head = checkpoint.read_header(training.weights).head
    over_windows = head is not None and head.threshold_level == "window" and positive == len(names) - 1
    if head is not None and head.threshold is not None and over_windows:
        return head.threshold
    path = training.folder.path / "validation.npz"
    if not path.exists():
        return DEFAULT_THRESHOLD
    found = Predictions.load(path)
    truth = found.truth == positive
    if truth.all() or not truth.any():
        return DEFAULT_THRESHOLD
    false, true, thresholds = roc_curve(truth, found.output[:, positive], drop_intermediate=False)
    return float(min(1.0, thresholds[int(np.argmax(true - false))]))


def _time_lines(
    store: Store, predictions: Predictions, positive: int
) -> tuple[dict[str, seizures.TimeLine], dict[str, float]]:
    """Return the time line of every recording, and its duration."""
    lines, durations = {}, {}
    for id in np.unique(predictions.recording).tolist():
        here = predictions.recording == id
        record = store.recordings[store.number(id)]
        end = record.segments[-1]
        duration = end.onset + (end.stop - end.start) / record.sfreq
        start, length = predictions.start[here], int(np.ceil(duration - 1e-6))
        truth = (predictions.truth[here] == positive).astype(np.float64)
        lines[id] = seizures.TimeLine(
            record.subject or f"recording {id}",
            seizures.lay_out(start, predictions.seconds, truth, length),
            seizures.lay_out(start, predictions.seconds, predictions.output[here, positive], length),
        )
        durations[id] = duration
    return lines, durations
