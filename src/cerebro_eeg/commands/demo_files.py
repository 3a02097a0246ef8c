"""DemoFiles: the tables that ``demo`` writes and reads between the steps."""

import csv
from collections import Counter
from pathlib import Path

from cerebro_eeg.commands.demo_result import Block
from cerebro_eeg.files import write_text


def write_table(labels: Path, table: Path) -> None:
    """The table of the pre-training store: every file, whose it is, and whether it trains or validates."""
    rows = {(row["file"], row["subject"], row["split"]) for path in labels.glob("*.csv") for row in _read(path)}
    lines = [f"{file},{subject},{'val' if split == 'val' else 'train'}" for file, subject, split in sorted(rows)]
    write_text(table, "\n".join(["file,subject,split", *lines]) + "\n")


def read_blocks(labels: Path, predictions: Path, names: list[str], threshold: float) -> tuple[Block, ...]:
    """What is said of the windows within each block: the last class from a mean probability of the threshold on."""
    windows = _read(predictions)
    found = []
    for row in _read(labels):
        start, stop = float(row["start"]), float(row["stop"])
        inside = [
            float(window[f"probability {names[-1]}"])
            for window in windows
            if start <= float(window["start"]) and float(window["stop"]) <= stop
        ]
        if inside:
            said = names[sum(inside) / len(inside) >= threshold]
            found.append(Block(start, row["label"], said, len(inside)))
    return tuple(found)


def count_task(out: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Windows and subjects of the task, by split."""
    from cerebro_eeg.runs.folder import RunFolder

    windows = RunFolder(out / "finetuned").read()["settings"]["windows"][0]
    people = Counter(
        split for _, split in {(row["subject"], row["split"]) for row in _read(out / "eyes" / "labels" / "eyes.csv")}
    )
    return dict(zip(("train", "val", "test"), windows, strict=True)), dict(people)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
