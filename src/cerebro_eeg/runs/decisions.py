"""Decisions: what a model says of a recording, from what it says of its windows.

Two classes: the last one from a mean probability of ``threshold`` on, which was chosen on validation. More: the most
probable one in the mean. Regression: mean and standard deviation over the windows. No torch.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.scores.classification import decide

HALF = 0.5
"""The threshold where none was chosen."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of the windows of one recording. Arrays have one entry a window, by their starts."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    threshold: float | None
    """Of the last of two classes; None where none was chosen."""
    output: NDArray[np.float32]
    """(windows, names): probabilities, or values."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording."""
    seconds: float
    """Of a window."""
    stretch: NDArray[np.int64]
    """Number of the stretch without a gap that each lies in."""
    short: NDArray[np.bool_]
    """Of a stretch shorter than the filter: less trustworthy."""
    end: float
    """Seconds from the start of the recording to its last sample."""
    channels: tuple[str, ...]
    """That the model was given."""
    faults: tuple[str, ...]
    """What is wrong with the file or some of its channels."""
    plan: str
    """How it was filtered."""

    @property
    def stop(self) -> NDArray[np.float64]:
        """Seconds from the start of the recording to the end of each window."""
        return self.start + self.seconds

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of each window, by the rule that decides on recordings."""
        return _choose(self.output.astype(np.float64), self.threshold)

    @property
    def decision(self) -> "Decision":
        """What is said of the recording as a whole."""
        mean = self.output.mean(0, dtype=np.float64)
        spread = self.output.std(0, dtype=np.float64)
        answer = None
        if self.kind == "classification":
            answer = self.names[int(_choose(mean[None], self.threshold)[0])]
        return Decision(
            answer,
            dict(zip(self.names, mean.tolist(), strict=True)),
            dict(zip(self.names, spread.tolist(), strict=True)),
            len(self.start),
        )


@dataclass(frozen=True)
class Decision:
    """What is said of a recording."""

    answer: str | None
    """The class; None for a regression."""
    mean: dict[str, float]
    """Mean probability of each class, or mean value of each target."""
    spread: dict[str, float]
    """Standard deviation over the windows."""
    windows: int


@dataclass(frozen=True)
class Span:
    """Seconds of a recording that the model calls by one class."""

    onset: float
    duration: float
    name: str
    probability: float
    """Mean over its windows."""


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    result: NDArray[np.float32] = (shifted / shifted.sum(1, keepdims=True)).astype(np.float32)
    return result


def find_spans(prediction: Prediction) -> list[Span]:
    """Consecutive windows of one class as one span. Where windows overlap, each speaks until the next one begins."""
    start, stop, stretch = prediction.start, prediction.stop.copy(), prediction.stretch
    follows = stretch[1:] == stretch[:-1]
    stop[:-1] = np.where(follows, np.minimum(stop[:-1], start[1:]), stop[:-1])
    classes = prediction.classes
    touches = follows & (start[1:] - stop[:-1] < 1e-6) & (classes[1:] == classes[:-1])
    firsts = np.flatnonzero(np.append(True, ~touches)).tolist()
    found = []
    for first, last in zip(firsts, [*firsts[1:], len(start)], strict=True):
        name = int(classes[first])
        found.append(
            Span(
                float(start[first]),
                float(stop[last - 1] - start[first]),
                prediction.names[name],
                float(prediction.output[first:last, name].mean(dtype=np.float64)),
            )
        )
    return found


def limit_of(kind: str, names: tuple[str, ...], threshold: float | None) -> float | None:
    """The probability that decides; None where there are not two classes."""
    if kind != "classification" or len(names) != 2:
        return None
    return HALF if threshold is None else threshold


def _choose(probability: NDArray[np.float64], threshold: float | None) -> NDArray[np.int64]:
    if probability.shape[1] == 2:
        return decide(probability, HALF if threshold is None else threshold)
    return probability.argmax(1)
