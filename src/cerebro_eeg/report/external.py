"""The part of a fine-tuning report on external data: a table for each store that the run was scored on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro_eeg.report.page import folded, heading, paragraph, subheading, table
from cerebro_eeg.runs.external_record import external_places, read_about
from cerebro_eeg.runs.external_rivals import read_external_rivals
from cerebro_eeg.runs.results import split_words
from cerebro_eeg.runs.rivals import verdict
from cerebro_eeg.runs.score_record import read_record
from cerebro_eeg.scores.tables import primary, shown, title

_HEAD = ("mean", "\u00b1 over seeds", "95 % over subjects", "chance")


def external_section(run: Path) -> list[str]:
    """Return the part of the page on external data; nothing where none was scored."""
    parts: list[str] = []
    for place in external_places(run):
        about, record = read_about(place), read_record(place)
        if about is None or record is None:
            continue
        summary, scores = record.first["summary"], record.first["trainings"][0]["scores"]
        metric = primary(scores["kind"], scores["names"])
        values = summary["levels"]["window"]["values"]
        times = "once" if record.scorings == 1 else f"{record.scorings} times; the numbers are of the first time"
        words = [
            f"{title(metric)} by window {shown(values[metric]['mean'])}. Scored {times}, on {scores['windows']:,} "
            f"windows of {scores['subjects']:,} subjects: {split_words(about['split'])}.",
            f"{_sentence(about['overlap']['text'])}.",
            *([f"{_sentence(verdict(rows))}."] if (rows := read_external_rivals(place)) else []),
        ]
        parts += [
            subheading(f"{about['dataset']} ({about['sha256'][:8]}), task {about['task']}"),
            *map(paragraph, words),
            table(["by window", *_HEAD], [_row(name, of) for name, of in values.items()]),
            folded("How these data differ from those of training", _lines(about["differences"])),
        ]
    return [heading("External data"), *parts] if parts else []


def _row(metric: str, of: Mapping[str, Any]) -> list[str]:
    between = "n/a" if of["low"] is None else f"{shown(of['low'])} to {shown(of['high'])}"
    return [title(metric).replace("_", " "), shown(of["mean"]), shown(of["std"]), between, shown(of["chance"])]


def _lines(lines: list[str]) -> str:
    return "".join(paragraph(f"{_sentence(line)}.") for line in lines) or paragraph("No difference was found.")


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}"
