"""The page of ``predict``: what a model says of new recordings, which answers are close, and what could not be used."""

import base64
import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.files import write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report.figures import BLUE, DARK, GREY, ORANGE
from cerebro_eeg.report.page import (
    Cell,
    Tell,
    escape,
    figure,
    folded,
    heading,
    page,
    paragraph,
    short_id,
    silent,
    table,
    telling,
    verdict_box,
)
from cerebro_eeg.report.verdicts import Verdict
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 300
"""Recordings in the table of the page; decisions.csv has all of them."""
MOST_PICTURES = 12
"""Pictures of recordings in the page; all of them lie beside it."""
CLOSE = 0.05
"""A mean probability this near to the threshold may as well be of the other class."""
_LEAST = 3  # recordings that a picture of the probabilities needs

Rows = Sequence[Mapping[str, Any]]


def report_predict(
    folder: Path,
    about: Mapping[str, Any],
    rows: Rows,
    show_paths: bool,
    pictures: Sequence[str] = (),
    *,
    tell: Tell = silent,
) -> Path:
    """Write the page of predictions from the rows of ``decisions.json``; ``pictures`` are names of files beside it."""
    path = folder / "report.html"
    with telling(tell):
        write_text(path, _page(folder, about, rows, show_paths, pictures))
    return path


def headline(about: Mapping[str, Any], rows: Rows) -> Verdict:
    """Return the sentence of the page, with warnings on answers that are close and recordings without an answer."""
    done = [row for row in rows if not row["problem"]]
    sentence = f"{counted(len(done), 'recording')} predicted."
    if about["kind"] == "classification":
        count = Counter(row["decision"] for row in done)
        answers = ", ".join(f"{name} {count[name]:,}" for name in about["names"])
        sentence = f"{counted(len(done), 'recording')}: {answers}."
    warnings, below = [], []
    if len(done) < len(rows):
        warnings.append(f"{len(rows) - len(done):,} of {len(rows):,} recordings could not be used: see below.")
    if about["threshold"] is not None and done:
        (other, last), limit = about["names"], about["threshold"]
        near = sum(abs(row["mean"][last] - limit) < CLOSE for row in done)
        if near:
            words = f"{near:,} of {len(done):,} mean probabilities lie within {CLOSE:g} of the threshold"
            warnings.append(f"{words}: these answers may as well be the other class.")
        below.append(f"{last} from a mean probability of {limit:.3f} on, otherwise {other}.")
    below.append("Research software, not a medical device: not for diagnosis or any decision about a patient.")
    return Verdict("open", sentence, tuple(below), tuple(warnings))


def _page(folder: Path, about: Mapping[str, Any], rows: Rows, show_paths: bool, pictures: Sequence[str]) -> str:
    done = [row for row in rows if not row["problem"]]
    numbers = {row["recording"]: f"recording {place + 1}" for place, row in enumerate(rows)}
    parts = [verdict_box(headline(about, rows)), *(paragraph(f"Note: {note}.", soft=True) for note in about["notes"])]
    drawn = about["threshold"] is not None and len(done) >= _LEAST
    if drawn and importlib.util.find_spec("matplotlib") is not None:
        last, limit = about["names"][-1], about["threshold"]
        values = sorted(row["mean"][last] for row in done)
        parts.append(
            figure(
                lambda canvas: draw_answers(canvas, values, last, limit),
                9,
                3,
                f"Mean probability of {last} of each recording, in order",
                "Each dot is a recording. Grey ones are close to the threshold, the dashed line.",
            )
        )
    parts += [heading("Recordings"), _table(about, rows, numbers, show_paths)]
    if len(done) > MOST_ROWS:
        parts.append(paragraph(f"The first {MOST_ROWS:,} of {len(done):,}; decisions.csv has all.", soft=True))
    failed = [row for row in rows if row["problem"]]
    if failed:
        parts.append(heading("Not used"))
    for row in failed[:MOST_ROWS]:
        id = short_id(row["recording"])
        name = f"{numbers[row['recording']]} ({id if isinstance(id, str) else id.text})"
        parts.append(paragraph(f"{name[0].upper()}{name[1:]}: {row['problem']}."))
    seen = [row["recording"] for row in done if f"{row['recording']}.png" in pictures]
    if seen:
        parts.append(heading("Signal and prediction"))
        parts += [_picture(folder / f"{id}.png", numbers[id]) for id in seen[:MOST_PICTURES]]
    if len(seen) > MOST_PICTURES:
        parts.append(paragraph(f"{len(seen) - MOST_PICTURES:,} more pictures lie beside this page.", soft=True))
    parts += [heading("How it was made"), paragraph(f"{about['preparation'][0].upper()}{about['preparation'][1:]}.")]
    words = f"Windows of {about['window_seconds']:g} s every {about['stride_seconds']:g} s."
    return page("Predictions", [*parts, paragraph(words)])


def _table(about: Mapping[str, Any], rows: Rows, numbers: Mapping[str, str], show_paths: bool) -> str:
    """Return a row per recording, with its id as decisions.csv has it."""
    classes = about["kind"] == "classification"
    names = list(about["names"])[-1:] if len(about["names"]) == 2 and classes else list(about["names"])
    titles = [f"mean {'probability of ' if classes else ''}{name}" for name in names]
    head = ["", "id", "path", "answer", *titles, "windows", "minutes", "faults"]
    lines: list[list[Cell]] = []
    for row in [row for row in rows if not row["problem"]][:MOST_ROWS]:
        mean = row["mean"] or {}
        values = [f"{mean[name]:.3f}" if name in mean else "" for name in names]
        path = one_line(row["path"]) if show_paths else ""
        size = f"{row['seconds'] / 60:.1f}"
        cells = [path, row["decision"] or "", *values, f"{row['windows']:,}", size, " ".join(row["faults"])]
        lines.append([numbers[row["recording"]], short_id(row["recording"]), *cells])
    return table(head, lines)


def _picture(path: Path, words: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = f'<img class="wide" alt="{escape(words)}: signal, and the prediction under it" src="data:image/png;base64,'
    return folded(f"{words[0].upper()}{words[1:]}", f'<figure>{image}{data}"></figure>')


def draw_answers(figure: "Figure", values: Sequence[float], name: str, limit: float) -> None:
    """Draw the mean probability of each recording, in order; those near the threshold are grey."""
    axes: Axes = figure.subplots()
    for place, value in enumerate(values):
        colour = GREY if abs(value - limit) < CLOSE else ORANGE if value >= limit else BLUE
        axes.plot(place, value, "o", color=colour, markersize=5)
    axes.axhline(limit, color=DARK, linewidth=0.8, linestyle="--")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xticks([])
    axes.set_xlabel("recordings, by probability")
    axes.set_ylabel(f"mean probability of {name}")
