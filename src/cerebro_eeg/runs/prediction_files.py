"""PredictionFiles: what ``predict`` writes: tables by window and by recording, and annotations as EDF+ or BIDS events.

EDF+ annotations lie in a file of their own, without signals, as the specification of EDF+ allows (Kemp and Olivan,
"European data format 'plus' (EDF+)", Clin. Neurophysiol. 114 (2003) 1755; https://www.edfplus.info/specs/edfplus.html):
the recording itself is not touched, and neither its date nor its names are copied. BIDS events are the columns onset,
duration and trial_type of https://bids-specification.readthedocs.io (Events), and the mean probability.
"""

import contextlib
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from cerebro_eeg.files import replacing, write_text
from cerebro_eeg.runs.decisions import Prediction, Span
from cerebro_eeg.runs.inputs import Input

Row = dict[str, Any]
COLUMNS = {
    "onset": {"Description": "Start of the span, from the start of the recording", "Units": "s"},
    "duration": {"Description": "Length of the span", "Units": "s"},
    "trial_type": {"Description": "Class that the model predicts for consecutive windows"},
    "probability": {"Description": "Mean probability of that class over the windows"},
}


class WindowTable:
    """``predictions.csv``: a row a window, written as the recordings come."""

    def __init__(self, file: TextIO, names: Sequence[str], kind: str, show_paths: bool) -> None:
        self._writer, self._show = csv.writer(file, lineterminator="\n"), show_paths
        paths = ["path"] if show_paths else []
        self._writer.writerow(["recording", *paths, "start", "stop", *(column(kind, name) for name in names)])

    def add(self, input: Input, prediction: Prediction) -> None:
        first = [input.id, input.name] if self._show else [input.id]
        for start, stop, values in zip(prediction.start, prediction.stop, prediction.output, strict=True):
            self._writer.writerow([*first, f"{start:.6f}", f"{stop:.6f}", *map(str, values)])


@contextlib.contextmanager
def window_table(path: Path, names: Sequence[str], kind: str, show_paths: bool) -> Iterator[WindowTable]:
    """The table at ``path``, there when the block ends well."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield WindowTable(file, names, kind, show_paths)


def column(kind: str, name: str) -> str:
    """What the column of a class or target is called."""
    return f"{'probability' if kind == 'classification' else 'value'} {name}"


def describe(given: Input, found: Prediction | None, show_paths: bool, code: str = "", problem: str = "") -> Row:
    """One recording as JSON: what was found, or the problem in a word and in a line."""
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


def write_decisions(folder: Path, rows: Sequence[Row], about: Mapping[str, Any], show_paths: bool) -> None:
    """``decisions.csv`` and ``decisions.json``: a row for every recording that was asked for, in that order."""
    write_text(folder / "decisions.json", json.dumps({**about, "recordings": rows}, indent=2, allow_nan=False) + "\n")
    names, paths = about["names"], ["path"] if show_paths else []
    titles = [column(about["kind"], name) for name in names]
    with replacing(folder / "decisions.csv") as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
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
    """``*_events.tsv``, and beside it the file that says what its columns are."""
    rows = ["\t".join(COLUMNS)]
    for span in spans:
        name = " ".join(span.name.split())  # a tab or a line feed would be another column or row
        rows.append(f"{span.onset:.6f}\t{span.duration:.6f}\t{name}\t{span.probability:.6f}")
    write_text(path, "\n".join(rows) + "\n")
    write_text(path.with_suffix(".json"), json.dumps(COLUMNS, indent=2) + "\n")


def write_edf_annotations(path: Path, spans: Sequence[Span]) -> None:
    """An EDF+ file with the spans as annotations and no signal."""
    from cerebro_eeg.data.reading.edf_writer import write_annotations
    from cerebro_eeg.data.reading.recording import Event

    words = ["".join(c if c.isprintable() else " " for c in span.name).split() for span in spans]
    write_annotations(
        path,
        [Event(span.onset, span.duration, " ".join(text)) for span, text in zip(spans, words, strict=True)],
    )
