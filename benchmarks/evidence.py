"""Prints the tables of docs/evidence.md from the files of ``cerebro-eeg compare``, as Markdown.

``python benchmarks/evidence.py FOLDER [FOLDER ...]``: folders of comparisons with the same settings, for other tasks.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_eeg.runs.compare import _plain
from cerebro_eeg.runs.compare_result import difference_words, estimate_words
from cerebro_eeg.scores.paired import draw_scores
from cerebro_eeg.scores.predictions import Predictions

STEERED = ("adhd", "epilepsy", "eyes", "stress4", "arithmetic", "ssvep4")
"""The tasks whose mean steers the work; the others are reported beside it."""


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}".replace("0.", ".", 1)


def row_of(table: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((row for row in table["rows"] if row["name"] == name), None)


def whole(tables: dict[str, dict[str, Any]], part: str) -> None:
    """Print every method against every task, cross-validated ("cv") or on the test split ("test")."""
    names = list(dict.fromkeys(row["name"] for table in tables.values() for row in table["rows"]))
    others = [task for task in tables if task not in STEERED]
    order = [task for task in (*STEERED, *others) if task in tables]
    print("\n| |", " | ".join(["mean of six", *order]), "|")
    print("| --- |", " | ".join(["---"] * (len(order) + 1)), "|")
    for name in names:
        rows = {task: row_of(tables[task], name) for task in order}
        values = {task: row[part]["value"] for task, row in rows.items() if row is not None and row[part] is not None}
        mean = sum(values[task] for task in STEERED) / len(STEERED) if set(STEERED) <= set(values) else None
        print(f"| {name} | {number(mean)} |", " | ".join(number(values.get(task)) for task in order), "|")


def differences(tables: dict[str, dict[str, Any]], name: str, part: str) -> None:
    """Print our default's difference from a method, for each task."""
    print(f"\n| | default | {name} | difference |\n| --- | --- | --- | --- |")
    for task, table in tables.items():
        ours, row = row_of(table, "default"), row_of(table, name)
        if ours is None or row is None:
            continue
        cells = [estimate_words(ours[part]), estimate_words(row[part]), difference_words(row["minus"][part])]
        print(f"| {task} |", " | ".join(cells), "|")


PAIRS = (
    ("default", "power and covariance"),
    ("default", "with narrow bands"),
    ("hybrid, frozen", "power and covariance"),
    ("whole, frozen", "with narrow bands"),
    ("hybrid, frozen", "hybrid, random weights"),
    ("whole, frozen", "whole, random weights"),
    ("encoder, frozen", "encoder, random weights"),
    ("mean, frozen", "mean, random weights"),
)
"""Rows whose difference is worth an interval over all six tasks."""


def over_tasks(folder_of: dict[str, Path], part: str) -> None:
    """Print the mean difference of pairs of rows over the six tasks, with an interval: subjects of each are drawn."""
    print("\n| | minus | difference of the means | 95 % | above 0 |\n| --- | --- | --- | --- | --- |")
    for ours, rival in PAIRS:
        values, draws = [], []
        for place, task in enumerate(STEERED):
            drawn = []
            for name in (ours, rival):
                folder = folder_of[task] / f"task-{_plain(task)}" / f"method-{_plain(name)}"
                files = [folder / "cv.npz"] if part == "cv" else sorted(folder.glob("test-*.npz"))
                drawn.append(draw_scores([Predictions.load(file) for file in files], "auroc", seed=place))
            values.append(drawn[0].value - drawn[1].value)
            draws.append(drawn[0].draws - drawn[1].draws)
        mean = np.mean(draws, axis=0)
        known = mean[np.isfinite(mean)]
        low, high = np.quantile(known, [0.025, 0.975])
        above = float((known > 0).mean())
        print(f"| {ours} | {rival} | {np.mean(values):+.3f} | {low:+.3f} to {high:+.3f} | {above:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    tables: dict[str, dict[str, Any]] = {}
    folder_of: dict[str, Path] = {}
    for folder in parser.parse_args().folders:
        for table in json.loads((folder / "compare.json").read_text(encoding="utf-8"))["tables"]:
            tables[table["task"]], folder_of[table["task"]] = table, folder
    if set(STEERED) <= set(tables):
        for part in ("cv", "test"):
            print(f"\n{part}")
            over_tasks(folder_of, part)
    for part in ("cv", "test"):
        print(f"\n{part}")
        whole(tables, part)
    for part in ("cv", "test"):
        for name in ("power and covariance", "with narrow bands", "whole, random weights", "hybrid, random weights"):
            print(f"\n{part}")
            differences(tables, name, part)
    for task, table in tables.items():
        chosen = row_of(table, "default")
        print(task, "" if chosen is None else chosen["chosen"], table["verdict"] and table["verdict"]["text"], sep="; ")


if __name__ == "__main__":
    main()
