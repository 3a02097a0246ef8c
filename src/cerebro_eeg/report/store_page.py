"""The page of a store: what it holds for every task and split, what stands in the way, and its picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.files import write_text
from cerebro_eeg.progress import counted
from cerebro_eeg.report.page import figure, heading, page, preformatted, table, verdict_box
from cerebro_eeg.report.store import SIZE, draw_store, sample_store
from cerebro_eeg.report.verdicts import Verdict


def report_store(store: Store, summary: Mapping[str, Any], text: str, path: Path) -> None:
    """Write the page of a store from its summary in numbers and as text: what it holds, and what stands in the way."""
    total, tasks = summary["total"], summary["tasks"]
    size = f"{counted(total['recordings'], 'recording')} of {counted(summary['subjects'], 'subject')}"
    warnings = [] if summary["unfinished"] is None else [f"The store is unfinished: {summary['unfinished']}."]
    warnings += [f"{name}: {task['problem']}." for name, task in tasks.items() if task["problem"]]
    warnings += [f"{name} has no labelled recording." for name, task in tasks.items() if not task["splits"]]
    skipped = sum(summary["skipped"].values())
    if skipped:
        warnings.append(f"{counted(skipped, 'source')} could not be used; skipped.csv has a sentence for each.")
    labelled = [name for name, task in tasks.items() if task["splits"]]
    below = f"Tasks: {', '.join(labelled)}." if labelled else "Nothing is labelled: it can be pre-trained on."
    sentence = f"{summary['dataset']}: {size}, {total['hours']:,.2f} h."
    rows = [
        [f"{name}, {split or 'no split'}", *(f"{part[key]:,}" for key in ("subjects", "recordings", "windows")), labels]
        for name, task in tasks.items()
        for split, part in task["splits"].items()
        for labels in [", ".join(f"{label} {count:,}" for label, count in part["labels"].items())]
    ]
    head = ["task and split", "subjects", "recordings", "windows", "windows by class"]
    sample = sample_store(store)
    parts = [
        verdict_box(Verdict("open", sentence, (below,), tuple(warnings))),
        *([heading("Labels"), table(head, rows)] if rows else []),
        heading("Signal"),
        figure(
            lambda canvas: draw_store(canvas, store, sample),
            *SIZE,
            "Channel counts, signal of each subject, amplitudes and spectrum",
            "Amplitudes and spectrum are of a sample, spread evenly over the hours.",
        ),
        heading("All facts"),
        preformatted(text),
    ]
    write_text(path, page(f"Store: {summary['dataset']}", parts))
