"""Judging: one training of a run on windows: its predictions, their scores, and for seizures the events.

Scoring: all trainings of a fine-tuning run on the windows of its test split, which is scored once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.probe import one_for_all, seeds_that_differ
from cerebro_eeg.runs.score_record import ScoreRecord, of_seeds, read_record, summarise, write_record
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.runs.store_predictions import predict_windows, to_predictions
from cerebro_eeg.runs.windows import LabelledTask, electrodes_of, find_splits, unknown_overlap
from cerebro_eeg.scores import seizures
from cerebro_eeg.scores.predictions import Predictions, score
from cerebro_eeg.scores.seizures import write_events
from cerebro_eeg.scores.tables import positive_of
from cerebro_eeg.train.distributed import ProcessGroup, process_group

DEFAULT_THRESHOLD = 0.5
"""From which probability on a second belongs to a detected event, where no validation chose it."""


@dataclass(frozen=True)
class TrainedModel:
    """A finished training and the windows to judge it by."""

    folder: RunFolder
    fold: str
    """Empty: the task's own splits."""
    seed: int
    windows: Windows

    @property
    def place(self) -> str:
        """Its folder within the run."""
        return f"{self.fold}/seed-{self.seed}".lstrip("/")

    def hash(self) -> str:
        """SHA-256 of its weights."""
        return checkpoint.hash_tensors(checkpoint.read(self.folder.model)[1])


@dataclass(frozen=True)
class Scorer:
    """What all trainings are judged with."""

    store: Store
    world: ProcessGroup
    events: bool
    """Also where no class is called a seizure."""
    untrained: Untrained
    as_is: bool
    """Another rate than the model's was asked for by name."""
    resamples: int
    say: Callable[[str], None] | None = None
    """Told how far it is."""


def predict_training(judge: Scorer, training: TrainedModel) -> Predictions:
    """What the training's weights say of its windows."""
    windows = training.windows
    model = Cerebro.from_pretrained(
        training.folder.model,
        sfreq=windows.sfreq if judge.as_is else None,
        rate="as_is" if judge.as_is else "error",
    )
    if model.head is None or model.head.names != windows.names:
        raise CheckpointError(
            f"the weights of {training.place} do not answer {', '.join(windows.names)}; the run was altered"
        )
    ids = electrodes_of([windows], model.training_record.electrode_windows, judge.untrained)
    output = predict_windows(
        model.to(judge.world.device), judge.store, windows, judge.world, electrodes=ids, say=judge.say
    )
    return to_predictions(judge.store, windows, output)


def score_training(judge: Scorer, training: TrainedModel, predictions: Predictions, *, write: bool) -> dict[str, Any]:
    """Scores as JSON values; ``write``: also the events of a seizure task, as TSV."""
    found: dict[str, Any] = {
        "fold": training.fold,
        "seed": training.seed,
        "weights": training.hash(),
        "scores": score_by(training.folder.model, predictions, judge.resamples),
        "events": None,
    }
    positive = seizures.seizure_class(predictions.names) if predictions.kind == "classification" else None
    if judge.events and positive is None:
        if predictions.kind != "classification" or len(predictions.names) != 2:
            raise ConfigError(f"--events needs a task with two classes; this one has {', '.join(predictions.names)}")
        positive = 1
    if positive is not None:
        threshold = _event_threshold(training, predictions.names, positive)
        lines, durations = _lines(judge.store, predictions, positive)
        name = predictions.names[positive]
        scored = seizures.score_events(lines, name, threshold=threshold, resamples=judge.resamples)
        found["events"] = scored.to_dict()
        for id, line in lines.items() if write else ():
            path = training.folder.path / "test-events" / f"{id}_events.tsv"
            write_events(path, line.probability, threshold, durations[id])
    return found


def score_by(weights: Path, predictions: Predictions, resamples: int) -> dict[str, Any]:
    """Scores as JSON values; also at the threshold that ``predict`` takes from these weights, where they have one."""
    head = checkpoint.read_header(weights).head
    if head is None or head.threshold is None or positive_of(predictions.kind, predictions.names) is None:
        return score(predictions, resamples=resamples).to_dict()
    return score(predictions, threshold=head.threshold, chosen_on=head.threshold_level, resamples=resamples).to_dict()


def _event_threshold(training: TrainedModel, names: Sequence[str], positive: int) -> float:
    """From which probability on a second is detected: what separates the validation windows best (Youden's index).

    The threshold of ``predict`` does so where it was chosen over windows, and is taken: one is enough.
    """
    from sklearn.metrics import roc_curve

    head = checkpoint.read_header(training.folder.model).head
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


def _lines(store: Store, predictions: Predictions, positive: int) -> tuple[dict[str, seizures.Line], dict[str, float]]:
    """Every recording's time line, and how long it lasts."""
    lines, durations = {}, {}
    for id in np.unique(predictions.recording).tolist():
        here = predictions.recording == id
        record = store.recordings[store.number(id)]
        end = record.segments[-1]
        duration = end.onset + (end.stop - end.start) / record.sfreq
        start, length = predictions.start[here], int(np.ceil(duration - 1e-6))
        truth = (predictions.truth[here] == positive).astype(np.float64)
        lines[id] = seizures.Line(
            record.subject or f"recording {id}",
            seizures.lay_out(start, predictions.seconds, truth, length),
            seizures.lay_out(start, predictions.seconds, predictions.output[here, positive], length),
        )
        durations[id] = duration
    return lines, durations


Part = Literal["test", "validation"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Evaluation:
    """What is said of a run."""

    folder: Path
    split: Part
    task: Mapping[str, Any]
    unit: str
    """What no two splits share."""
    summary: Mapping[str, Any]
    trainings: tuple[Mapping[str, Any], ...]
    scorings: int
    """Times that the test set was scored, this one included; 0 for validation."""
    fresh: bool
    """Made now; otherwise it is the first score, unchanged."""
    first: Mapping[str, Any] | None
    """The summary of the first scoring, where this is a later one."""
    notes: tuple[str, ...]


def evaluate(
    run: Path,
    store_folder: Path,
    *,
    split: Part = "test",
    again: bool = False,
    device: str = "auto",
    events: bool = False,
    untrained: Untrained | None = None,
    resamples: int = 1000,
    say: Say = lambda line: None,
) -> Evaluation:
    """Score every training of a fine-tuning run; the test set once, unless ``again``."""
    folder = RunFolder(run)
    settings = _read_settings(folder)
    store = Store(store_folder)
    _check_store(store, settings["store"])
    with process_group(device) as world, folder.held():
        if world.size > 1:
            raise ConfigError(f"evaluate was started in {world.size} processes; start it in one")
        trainings = list(_find_trainings(run, store, settings, split))
        choices, seeds = settings["choices"], seeds_that_differ(settings)
        as_is = choices["rate"] == "as_is"
        judge = Scorer(store, world, events, untrained or choices["untrained"], as_is, resamples, say)
        facts = (run, split, settings["task"], settings["unit"])
        told = [checkpoint.read_header(t.folder.model).training for t in trainings]
        unknown = {line for one in told if (line := unknown_overlap(one, settings["store"]["sha256"])) is not None}
        known = [*filter(None, [one_for_all(settings)]), *sorted(unknown)]
        if split == "validation":
            scored = [
                _tell(say, score_training(judge, t, predict_training(judge, t), write=False), t) for t in trainings
            ]
            return Evaluation(*facts, summarise(scored), tuple(scored), 0, True, None, tuple(known))
        before = _earlier_record(run, trainings)
        if before is not None and not again:
            notes = [*known, *_changed(before, trainings), *_without_threshold(before, trainings)]
            write_record(run, before)
            return _told(facts, of_seeds(before.first, seeds), before.scorings, False, None, notes)
        notes = known
        if before is not None:  # counted before anything is seen, so that stopping halfway does not hide it
            before = ScoreRecord(before.scorings + 1, before.first, before.last)
            write_record(run, before)
        records = [_score_once(judge, training, again, notes, say) for training in trainings]
        last = _joined([record.last for record in records])
        if before is None:
            first, scorings = _joined([record.first for record in records]), max(r.scorings for r in records)
        else:
            first, scorings = before.first, before.scorings
        write_record(run, ScoreRecord(scorings, first, last))
        told_first = of_seeds(first, seeds)
        return _told(facts, last if again else told_first, scorings, True, told_first if scorings > 1 else None, notes)


def _read_settings(folder: RunFolder) -> dict[str, Any]:
    """The settings of a fine-tuning run, or an error that says what else this is."""
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


def _check_store(store: Store, wanted: Mapping[str, str]) -> None:
    found = store.hash()
    if found != wanted["sha256"]:
        raise InputError(
            f"the store ({store.info.dataset}, SHA-256 {found[:16]}...) is not the one that the run was trained on "
            f"({wanted['dataset']}, {wanted['sha256'][:16]}...); give that one, so that no test subject was trained on"
        )


def _find_trainings(run: Path, store: Store, settings: Mapping[str, Any], part: Part) -> Iterator[TrainedModel]:
    """The trainings with their windows, cut as they were for training."""
    choices, task = settings["choices"], settings["task"]
    cut = LabelledTask(**{**task, "names": tuple(task["names"])})
    splits, seeds = list(find_splits(store, cut, choices["folds"])), seeds_that_differ(settings)
    folders = [(run / split.name / f"seed-{seed}") for split in splits for seed in seeds]
    unfinished = [path.relative_to(run).as_posix() for path in folders if not RunFolder(path).model.exists()]
    if unfinished:
        raise ConfigError(
            f"{len(unfinished)} of {len(folders)} trainings are not finished ({', '.join(unfinished[:6])}"
            f"{', ...' if len(unfinished) > 6 else ''}); start the same finetune command again, then evaluate"
        )
    for split, counts in zip(splits, settings["windows"], strict=True):
        windows, before = (split.test, counts[2]) if part == "test" else (split.validation, counts[1])
        if windows is None or not len(windows):
            raise InputError(f"task {cut.task!r} has no {part} windows; say --split, or finetune with --folds N")
        if len(windows) != before:
            raise InputError(
                f"the {part} split has {len(windows):,} windows and had {before:,} when the run was trained; use the "
                "release of cerebro-eeg that trained it"
            )
        for seed in seeds:
            yield TrainedModel(RunFolder(run / split.name / f"seed-{seed}"), split.name, seed, windows)


def _earlier_record(run: Path, trainings: Sequence[TrainedModel]) -> ScoreRecord | None:
    """The run's record, or what those of all its trainings say; None where the first scoring has not ended."""
    whole = read_record(run)
    found = [read_record(training.folder.path) for training in trainings]
    known = [record for record in found if record is not None]
    if whole is None and len(known) < len(trainings):
        return None
    if whole is None:
        whole = ScoreRecord(1, _joined([record.first for record in known]), _joined([record.last for record in known]))
    return ScoreRecord(max([whole.scorings, *(record.scorings for record in known)]), whole.first, whole.last)


def _score_once(judge: Scorer, training: TrainedModel, again: bool, notes: list[str], say: Say) -> ScoreRecord:
    """The record of a training, scored now where it was not yet, or once more."""
    folder = training.folder.path
    kept = folder / "test.npz"
    old = read_record(folder)
    if old is None and kept.exists():  # of a scoring that was stopped, or the record was deleted
        notes.append(f"{training.place} had test.npz but no test.json: the first score is of those predictions")
        found = score_training(judge, training, Predictions.load(kept), write=True)
        old = ScoreRecord(1, found, found)
        write_record(folder, old)
    if old is not None and not again:
        return old
    predictions = predict_training(judge, training)
    predictions.save(kept if old is None else folder / "test-again.npz")
    found = _tell(say, score_training(judge, training, predictions, write=True), training)
    record = ScoreRecord(1, found, found) if old is None else ScoreRecord(old.scorings + 1, old.first, found)
    write_record(folder, record)
    return record


def _changed(before: ScoreRecord, trainings: Sequence[TrainedModel]) -> list[str]:
    """Trainings whose weights are no longer those of the first score."""
    scored = {(score["fold"], score["seed"]): score["weights"] for score in before.first["trainings"]}
    return [
        f"the weights of {training.place} have changed since this score; --again scores the new ones"
        for training in trainings
        if scored.get((training.fold, training.seed)) != training.hash()
    ]


def _without_threshold(before: ScoreRecord, trainings: Sequence[TrainedModel]) -> list[str]:
    """A first score of a release that did not yet score the threshold of the weights."""
    known = all(score["scores"]["at_threshold"] for score in before.first["trainings"])
    heads = [checkpoint.read_header(training.folder.model).head for training in trainings]
    if known or not any(head is not None and head.threshold is not None for head in heads):
        return []
    return ["this score is older than scores at the threshold that predict decides by; --again has them"]


def _joined(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"summary": summarise(scores), "trainings": list(scores)}


def _told(
    facts: tuple[Path, Part, Mapping[str, Any], str],
    score: Mapping[str, Any],
    scorings: int,
    fresh: bool,
    first: Mapping[str, Any] | None,
    notes: Sequence[str],
) -> Evaluation:
    earlier = None if first is None else first["summary"]
    return Evaluation(*facts, score["summary"], tuple(score["trainings"]), scorings, fresh, earlier, tuple(notes))


def _tell(say: Say, found: dict[str, Any], training: TrainedModel) -> dict[str, Any]:
    say(f"scored {training.place}: {len(training.windows):,} windows")
    return found
