"""Tables: the tables of the paper as data, and the layout of the measured numbers. Standard library only."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cerebro_eeg.files import write_text
from cerebro_eeg.terminal import CsvWriter

MISSING = "n/a"


@dataclass(frozen=True)
class Metric:
    """A column of numbers."""

    key: str
    """Its name in the scores of evaluate."""
    title: str
    factor: float = 1.0
    """100 for percent."""
    digits: int = 4
    again: bool = False
    """Whether it is compared with the same column of the paper as the metric before it."""

    def show(self, mean: float | None, deviation: float | None) -> str:
        """Write a mean and its deviation: 0.7935 -> '79.35 ± 0.20'."""
        if mean is None:
            return MISSING
        text = f"{mean * self.factor:.{self.digits}f}"
        return text if deviation is None else f"{text} ± {deviation * self.factor:.{self.digits}f}"


BALANCED_ACCURACY = Metric("balanced_accuracy", "balanced accuracy %", 100, 2)
ACCURACY = Metric("accuracy", "accuracy %", 100, 2)
F1 = Metric("f1_weighted", "F1")
# The paper prints AUPR without a definition, so both stand beside its column.
AUPR_MACRO = Metric("aupr_macro", "AUPR (macro)")
AUPR_POSITIVE = Metric("aupr_positive", "AUPR (positive class)", again=True)
AUROC = Metric("auroc", "AUROC")
R2 = Metric("r2", "R2")
RMSE = Metric("rmse", "RMSE")


@dataclass(frozen=True)
class Row:
    """One model of a table, and the paper's numbers for it."""

    labels: tuple[str, ...]
    """The words of the first columns."""
    paper: tuple[str, ...]
    """The paper's numbers, as printed there."""
    size: Literal["small", "base", "large"] = "large"
    patches: Literal["waveform", "time_bins", "squares"] = "waveform"
    attention: Literal["alternating", "standard", "two_axis", "bottleneck"] = "alternating"
    style: Literal["simmim", "vitmae"] | None = "simmim"
    """Style of the pre-training; None: trained from scratch."""
    phase: Literal["none", "interleaved", "separated"] = "none"

    @property
    def name(self) -> str:
        """Folder of its runs; rows of the same model share it, also across tables."""
        phase = "" if self.phase == "none" else f"-{self.phase}"
        return f"{self.size}-{self.patches}{phase}-{self.attention}-{self.style or 'scratch'}"

    def flags(self) -> dict[str, Any]:
        """Return the settings that differ from the preset of its size."""
        flags: dict[str, Any] = {
            "model.patches.kind": self.patches,
            "model.patches.phase": self.phase,
            "model.attention": self.attention,
        }
        return flags if self.style is None else flags | {"objective.style": self.style}


@dataclass(frozen=True)
class Table:
    """A table of the paper: models that are pre-trained on some corpora and fine-tuned and tested on another."""

    name: str
    title: str
    columns: tuple[str, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    corpus: str
    """The corpus of the fine-tuning, by its name in ``cerebro-eeg prepare``."""
    task: str
    pretrain: tuple[str, ...] = ()
    labels: Literal["interval", "majority", "last"] = "interval"
    """How a window is labelled."""
    folds: int | None = None
    rate: Literal["error", "as_is"] = "error"
    """as_is: the corpus has another sampling rate than the weights, and is not resampled."""
    spread: Literal["std", "std_over_folds"] = "std"
    """The meaning of ±: the deviation over seeds or over folds."""
    held_out: str | None = None
    """The split whose subjects must not be pre-trained on, where the corpora share subjects."""


def in_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as text in columns."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def lay_out(
    table: Table, measured: Sequence[Sequence[str]], *, with_paper: bool
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return head and rows; the paper's numbers stand beside the measured ones only where they can be compared."""
    head = list(table.columns)
    for metric in table.metrics:
        head += [metric.title, "paper"] if with_paper else [metric.title]
    rows = []
    for row, values in zip(table.rows, measured, strict=True):
        cells = list(row.labels)
        column = -1
        for metric, value in zip(table.metrics, values, strict=True):
            column += not metric.again
            cells += [value, row.paper[column]] if with_paper else [value]
        rows.append(tuple(cells))
    return head, rows


def read_scores(table: Table, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the numbers of a row from the summary of evaluate, by window as in the paper."""
    values = summary["levels"]["window"]["values"]
    nothing = {"mean": None, table.spread: None}  # a number that an earlier release did not score
    return tuple(m.show(of["mean"], of[table.spread]) for m in table.metrics for of in [values.get(m.key, nothing)])


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write the same as the printed table."""
    text = io.StringIO()
    CsvWriter(text).writerows([head, *rows])
    write_text(path, text.getvalue())
