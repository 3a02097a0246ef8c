"""Decisions: the answer for a whole recording, made of the answers for its windows, and the files that hold both.

Two classes: the recording gets the last class if its mean probability reaches ``threshold``, chosen on validation.
More classes: the recording gets the class with the highest mean probability. Regression: mean and standard deviation
over the windows.

EDF+ annotations lie in a file of their own, without signals, as the specification of EDF+ allows (Kemp and Olivan,
"European data format 'plus' (EDF+)", Clin. Neurophysiol. 114 (2003) 1755; https://www.edfplus.info/specs/edfplus.html).
The recording itself is not touched, and neither its date nor its names are copied. BIDS events have the columns onset,
duration and trial_type of https://bids-specification.readthedocs.io (Events), and the mean probability.
"""

import contextlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError, InputError, import_trouble
from cerebro_eeg.files import replacing, write_text
from cerebro_eeg.notebook import Shown, column_names
from cerebro_eeg.runs.epochs import EpochKeys, metadata
from cerebro_eeg.scores.classification import decide
from cerebro_eeg.terminal import CsvWriter, cell

if TYPE_CHECKING:
    import mne

    from cerebro_eeg.model.cerebro import Cerebro
    from cerebro_eeg.runs.predict import Input

HALF = 0.5
"""The threshold when none was chosen."""
_EVENT_COLUMNS = {
    "onset": {"Description": "Start of the span, from the start of the recording", "Units": "s"},
    "duration": {"Description": "Length of the span", "Units": "s"},
    "trial_type": {"Description": "Class that the model predicts for consecutive windows"},
    "probability": {"Description": "Mean probability of that class over the windows"},
}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Shown):
    """The answers of a model for the windows of one recording. Arrays have one entry per window, ordered by start."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    threshold: float | None
    """Probability from which the last of two classes is chosen; None when none was chosen on validation."""
    output: NDArray[np.float32]
    """(windows, names): probabilities, or values."""
    start: NDArray[np.float64]
    """Seconds from the start of the recording."""
    seconds: float
    """Length of a window."""
    stretch: NDArray[np.int64]
    """Number of the stretch (time without a gap) that each window lies in."""
    short: NDArray[np.bool_]
    """Whether that stretch is shorter than the filter, which makes the answer less trustworthy."""
    end: float
    """Seconds from the start of the recording to its last sample."""
    channels: tuple[str, ...]
    """Channels that the model was given."""
    faults: tuple[str, ...]
    """Faults of the file or of some of its channels."""
    plan: str
    """How the recording was filtered."""
    epochs: EpochKeys | None = None
    """Which epochs of MNE these are, by ``stretch``; None for a recording."""

    @property
    def stop(self) -> NDArray[np.float64]:
        """Seconds from the start of the recording to the end of each window."""
        return self.start + self.seconds

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of each window, by the rule that decides on recordings."""
        return choose_class(self.output.astype(np.float64), self.threshold)

    def annotations(self, *, merge: bool = False, orig_time: Any = None, first_time: float = 0.0) -> "mne.Annotations":
        """Return the class of each window as ``mne.Annotations``; ``raw.set_annotations`` takes them as they are.

        The description is the class. ``extras`` hold its probability, in MNE from 1.11 on. With ``merge``, neighbouring
        windows of one class become one span with their mean probability. Onsets count from the first sample of the
        recording, which is what MNE expects of annotations without ``orig_time``. To give ``raw.info["meas_date"]``
        as ``orig_time``, give ``raw.first_time``, too.
        """
        return make_annotations(self, merge, orig_time, first_time)

    def metadata(self, epochs: Any = None) -> Any:
        """Return a row for each epoch, for ``epochs.metadata = found.metadata(epochs)`` in MNE.

        The columns are ``probability_CLASS`` and ``decision``, or ``value_TARGET``. The rest is as in
        :meth:`Embedding.metadata <cerebro_eeg.runs.embed.Embedding.metadata>`.
        """
        kind = "probability" if self.kind == "classification" else "value"
        columns = dict(zip(column_names(self.names, kind), self.output.T, strict=True))
        rows = metadata(columns, self.stretch, self.epochs, epochs)
        return rows if self.kind == "regression" else self._with_decisions(rows, list(columns))

    def _with_decisions(self, rows: Any, columns: list[str]) -> Any:
        """Add the class of each row; None where there was no window."""
        table = isinstance(rows, list)
        values = [[row[name] for name in columns] for row in rows] if table else rows[columns]
        mean = np.array(values, np.float64).reshape(-1, len(columns))
        known = [bool(np.isfinite(row).all()) for row in mean]
        chosen = choose_class(np.nan_to_num(mean), self.threshold)
        words = [self.names[one] if there else None for one, there in zip(chosen.tolist(), known, strict=True)]
        if not table:
            return rows.assign(decision=words)
        return [{**row, "decision": word} for row, word in zip(rows, words, strict=True)]

    @property
    def decision(self) -> "Decision":
        """The answer for the recording as a whole."""
        mean = self.output.mean(0, dtype=np.float64)
        spread = self.output.std(0, dtype=np.float64)
        answer = None
        if self.kind == "classification":
            answer = self.names[int(choose_class(mean[None], self.threshold)[0])]
        return Decision(
            answer,
            dict(zip(self.names, mean.tolist(), strict=True)),
            dict(zip(self.names, spread.tolist(), strict=True)),
            len(self.start),
        )

    def _headline(self) -> str:
        return f"{self.decision.words()}; {len(self.start):,} windows of {self.seconds:g} s"

    def _facts(self) -> Mapping[str, object]:
        limit = limit_of(self.kind, self.names, self.threshold)
        rule = {} if limit is None else {"rule": f"{self.names[-1]} from a mean probability of {limit:.3f} on"}
        return {**rule, "channels": ", ".join(self.channels), "faults": ", ".join(self.faults) or "none"}

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per window: start, stop, the answer, and the probability of each class or each value."""
        prefix = "probability" if self.kind == "classification" else "value"
        answers = {}
        if self.kind == "classification":
            answers = {"decision": np.array(self.names, np.object_)[self.classes]}
        values = zip(column_names(self.names, prefix), self.output.T, strict=True)
        found: dict[str, Any] = {"start": self.start, "stop": self.stop, **answers, **dict(values)}
        return {**found, "stretch": self.stretch, "short": self.short}

    def _notes(self) -> Sequence[str]:
        short = int(self.short.sum())
        return [f"{short:,} windows lie in stretches shorter than the filter: trust them less"] if short else []


@dataclass(frozen=True)
class Decision:
    """The answer for a whole recording."""

    answer: str | None
    """The class; None for a regression."""
    mean: dict[str, float]
    """Mean probability of each class, or mean value of each target."""
    spread: dict[str, float]
    """Standard deviation over the windows."""
    windows: int

    def words(self) -> str:
        """Return the answer in a few words; of two classes, the probability is that of the last."""
        if self.answer is None:
            return ", ".join(f"{name} {mean:.4g} ± {self.spread[name]:.2g}" for name, mean in self.mean.items())
        about = list(self.mean)[-1] if len(self.mean) == 2 else self.answer
        return f"{self.answer} (mean probability of {about} {self.mean[about]:.3f})"


@dataclass(frozen=True)
class Span:
    """A part of a recording whose windows all get the same class."""

    onset: float
    """Seconds from the start of the recording."""
    duration: float
    name: str
    probability: float
    """Mean over its windows."""


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn logits into probabilities."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    result: NDArray[np.float32] = (shifted / shifted.sum(1, keepdims=True)).astype(np.float32)
    return result


def centre(
    output_BK: NDArray[np.float32], group_B: NDArray[np.int64], bias_K: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Subtract from linear outputs the mean of their group, apart from the bias; a group is a subject or a recording.

    It is what a linear head gives for features whose mean over the group was subtracted. It needs no labels, but all
    windows of the group.
    """
    _, place_B = np.unique(group_B, return_inverse=True)
    free_BK = output_BK.astype(np.float64) - bias_K
    sum_GK = np.zeros((place_B.max() + 1, output_BK.shape[1]))
    np.add.at(sum_GK, place_B, free_BK)
    mean_GK = sum_GK / np.bincount(place_B)[:, None]
    found: NDArray[np.float32] = (free_BK - mean_GK[place_B] + bias_K).astype(np.float32)
    return found


def bias_of(model: "Cerebro") -> NDArray[np.float32]:
    """Return the bias of a head, (K,); zeros if it has none."""
    layer = model.final_layer
    bias = getattr(layer, "bias", None)
    if bias is None:
        return np.zeros(model.n_outputs or 1, np.float32)
    found: NDArray[np.float32] = bias.detach().float().cpu().numpy()
    return found


def find_spans(prediction: Prediction) -> list[Span]:
    """Join consecutive windows of one class into spans; where windows overlap, each counts until the next begins."""
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


def make_annotations(prediction: Prediction, merge: bool, orig_time: Any, first_time: float) -> "mne.Annotations":
    """Do :meth:`Prediction.annotations`."""
    if prediction.kind != "classification":
        raise InputError("this model predicts values and no classes, so it marks nothing; use output and start")
    if prediction.epochs is not None:
        raise InputError("epochs have no time in a recording; use metadata(), or predict the Raw")
    try:
        import mne
    except ImportError as error:
        raise ConfigError(f"annotations cannot be made: {import_trouble(error, 'mne')}") from None
    if merge:
        spans = find_spans(prediction)
    else:
        own = zip(prediction.start.tolist(), prediction.classes.tolist(), prediction.output, strict=True)
        spans = [Span(start, prediction.seconds, prediction.names[k], float(row[k])) for start, k, row in own]
    more: dict[str, Any] = {}
    if "extras" in inspect.signature(mne.Annotations).parameters:
        more["extras"] = [{"probability": span.probability} for span in spans]
    return mne.Annotations(
        [first_time + span.onset for span in spans],
        [span.duration for span in spans],
        [span.name for span in spans],
        orig_time=orig_time,
        **more,
    )


def limit_of(kind: str, names: tuple[str, ...], threshold: float | None) -> float | None:
    """Return the probability that decides between two classes; None for any other task."""
    if kind != "classification" or len(names) != 2:
        return None
    return HALF if threshold is None else threshold


def choose_class(probability: NDArray[np.float64], threshold: float | None) -> NDArray[np.int64]:
    """Return the class of each row: of two classes by the threshold, of more the most probable one."""
    if probability.shape[1] == 2:
        return decide(probability, HALF if threshold is None else threshold)
    return probability.argmax(1)


# The files that predict writes


class WindowTable:
    """``predictions.csv``: one row per window, written while the recordings are computed."""

    def __init__(self, file: TextIO, names: Sequence[str], kind: str, show_paths: bool) -> None:
        self._writer, self._show = CsvWriter(file), show_paths
        paths = ["path"] if show_paths else []
        self._writer.writerow(["recording", *paths, "start", "stop", *(_column(kind, name) for name in names)])

    def add(self, input: "Input", prediction: Prediction) -> None:
        """Write the windows of one recording."""
        first = [input.id, input.name] if self._show else [input.id]
        for start, stop, values in zip(prediction.start, prediction.stop, prediction.output, strict=True):
            self._writer.writerow([*first, f"{start:.6f}", f"{stop:.6f}", *map(str, values)])


@contextlib.contextmanager
def window_table(path: Path, names: Sequence[str], kind: str, show_paths: bool) -> Iterator[WindowTable]:
    """Yield a table that appears at ``path`` when the block ends without an error."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield WindowTable(file, names, kind, show_paths)


def describe(
    given: "Input", found: Prediction | None, show_paths: bool, code: str = "", problem: str = ""
) -> dict[str, Any]:
    """Return one recording as JSON: its decision, or why it has none (``code`` is one word, ``problem`` a line)."""
    decided = None if found is None else found.decision
    return {
        "number": given.number,
        "recording": given.id,
        **({"path": given.name} if show_paths else {}),
        "decision": None if decided is None else decided.answer,
        "mean": None if decided is None else decided.mean,
        "spread": None if decided is None else decided.spread,
        "windows": 0 if decided is None else decided.windows,
        "windows_short": 0 if found is None else int(found.short.sum()),
        "seconds": 0.0 if found is None else round(found.end, 6),
        "channels": [] if found is None else list(found.channels),
        "faults": [] if found is None else list(found.faults),
        "filters": None if found is None else found.plan,
        "code": code,
        "problem": problem,
    }


def write_decisions(folder: Path, rows: Sequence[dict[str, Any]], about: Mapping[str, Any], show_paths: bool) -> None:
    """Write ``decisions.csv`` and ``decisions.json``: one row per recording that was asked for, in that order."""
    write_text(folder / "decisions.json", json.dumps({**about, "recordings": rows}, indent=2, allow_nan=False) + "\n")
    names, paths = about["names"], ["path"] if show_paths else []
    titles = [_column(about["kind"], name) for name in names]
    with replacing(folder / "decisions.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = CsvWriter(file)
        head = ["recording", *paths, "decision", "windows", "seconds", *(f"mean {title}" for title in titles)]
        writer.writerow([*head, *(f"std {title}" for title in titles), "channels", "faults", "code", "problem"])
        for row in rows:
            mean, spread = row["mean"] or {}, row["spread"] or {}
            values = [row["recording"], *(row[name] for name in paths), row["decision"] or "", row["windows"]]
            values += [
                row["seconds"],
                *(mean.get(name, "") for name in names),
                *(spread.get(name, "") for name in names),
            ]
            writer.writerow([*values, len(row["channels"]), " ".join(row["faults"]), row["code"], row["problem"]])


def write_bids(path: Path, spans: Sequence[Span]) -> None:
    """Write ``*_events.tsv``, and beside it the JSON file that describes its columns."""
    rows = ["\t".join(_EVENT_COLUMNS)]
    for span in spans:
        name = cell(" ".join(span.name.split()))  # a tab or a line feed would start another column or row
        rows.append(f"{span.onset:.6f}\t{span.duration:.6f}\t{name}\t{span.probability:.6f}")
    write_text(path, "\n".join(rows) + "\n")
    write_text(path.with_suffix(".json"), json.dumps(_EVENT_COLUMNS, indent=2) + "\n")


def write_edf_annotations(path: Path, spans: Sequence[Span]) -> None:
    """Write an EDF+ file with the spans as annotations and no signal."""
    from cerebro_eeg.data.reading.edf_writer import write_annotations
    from cerebro_eeg.data.reading.recording import Event

    words = ["".join(c if c.isprintable() else " " for c in span.name).split() for span in spans]
    write_annotations(
        path,
        [Event(span.onset, span.duration, " ".join(text)) for span, text in zip(spans, words, strict=True)],
    )


def _column(kind: str, name: str) -> str:
    """Return the title of the column of a class or target."""
    return f"{'probability' if kind == 'classification' else 'value'} {name}"
