"""Judging: one training of a run on windows: its predictions, their scores, and for seizures the events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CheckpointError, ConfigError
from cerebro_eeg.model import checkpoint
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.electrodes import electrodes_of
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.predicting import predict_windows, to_predictions
from cerebro_eeg.runs.settings import Untrained
from cerebro_eeg.scores import seizures
from cerebro_eeg.scores.predictions import Predictions, score
from cerebro_eeg.scores.seizures import write_events
from cerebro_eeg.scores.tables import positive_of
from cerebro_eeg.train.distributed import World

WITHOUT_VALIDATION = 0.5
"""From which probability on a second belongs to a detected event, where no validation chose it."""


@dataclass(frozen=True)
class Training:
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
class Judge:
    """What all trainings are judged with."""

    store: Store
    world: World
    events: bool
    """Also where no class is called a seizure."""
    untrained: Untrained
    as_is: bool
    """Another rate than the model's was asked for by name."""
    resamples: int
    say: Callable[[str], None] | None = None
    """Told how far it is."""


def predict(judge: Judge, training: Training) -> Predictions:
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


def assess(judge: Judge, training: Training, predictions: Predictions, *, write: bool) -> dict[str, Any]:
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


def _event_threshold(training: Training, names: Sequence[str], positive: int) -> float:
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
        return WITHOUT_VALIDATION
    found = Predictions.load(path)
    truth = found.truth == positive
    if truth.all() or not truth.any():
        return WITHOUT_VALIDATION
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
