"""A folder of simulated subjects: EDF+ files, one CSV of labels per task, and the truth behind them.

It holds ``sub-01/sub-01_eyes.edf``, ``labels/eyes.csv``, ``truth.json``. The tables have the columns that the recipe
``folder`` reads: file, subject, split, start, stop, label; for joint angles target_hip_left, ... instead of the label.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cerebro_eeg.data.reading.edf_writer import write_edf
from cerebro_eeg.data.simulation.head import montage_of
from cerebro_eeg.data.simulation.recording import LABELS, Simulated, SimulatedTask, simulate_recording
from cerebro_eeg.data.simulation.waves import ANGLES
from cerebro_eeg.files import write_text
from cerebro_eeg.terminal import CsvWriter

TARGETS = tuple(f"target_{name}" for name in ANGLES)
ANGLE_SECONDS = 0.1  # a row of joint angles
CsvRow = tuple[object, ...]


@dataclass(frozen=True)
class SimulationPlan:
    """One file to be simulated."""

    subject: int
    id: str
    split: str
    task: SimulatedTask
    montage: str
    sfreq: int

    @property
    def file(self) -> str:
        return f"{self.id}/{self.id}_{self.task}.edf"


def plan(
    subjects: int, tasks: Sequence[SimulatedTask], montages: Sequence[str], rates: Sequence[int]
) -> tuple[SimulationPlan, ...]:
    """List all files; montages and rates rotate over the subjects. Without rates, a montage has its own."""
    found = []
    for number in range(subjects):
        montage = montages[number % len(montages)]
        sfreq = rates[number % len(rates)] if rates else montage_of(montage).sfreq
        name = f"sub-{number + 1:0{max(2, len(str(subjects)))}d}"
        found += [SimulationPlan(number, name, split_of(number, subjects), task, montage, sfreq) for task in tasks]
    return tuple(found)


def split_of(number: int, subjects: int) -> str:
    """Return the split of a subject: a fifth tests, a fifth validates, at least one each among three or more."""
    fifth = max(1, round(subjects / 5))
    if subjects >= 2 and number >= subjects - fifth:
        return "test"
    return "val" if subjects >= 3 and number >= subjects - 2 * fifth else "train"


def write_corpus(
    out: Path,
    plans: Sequence[SimulationPlan],
    seed: int,
    seconds: int,
    mains: float,
    progress: Callable[[int, int], None],
) -> None:
    """Simulate and write every file of the plan, then the tables."""
    tables: dict[SimulatedTask, list[CsvRow]] = {}
    truth: list[dict[str, object]] = []
    people: dict[str, dict[str, object]] = {}
    for done, item in enumerate(plans):
        progress(done, len(plans))
        made = simulate_recording(seed, item.subject, item.montage, item.sfreq, seconds, item.task, mains)
        write_edf(out / item.file, made.signal_TC, made.montage.labels, made.sfreq, made.events)
        tables.setdefault(item.task, []).extend(_rows(item, made))
        people[item.id] = {**asdict(made.subject), "split": item.split}
        truth.append(_truth(item, made, seconds))
    for task, rows in tables.items():
        header = ("file", "subject", "split", "start", "stop", *(("label",) if LABELS[task] else TARGETS))
        text = io.StringIO()
        CsvWriter(text).writerows([header, *rows])
        write_text(out / "labels" / f"{task}.csv", text.getvalue())
    about = {"seed": seed, "mains_hz": mains, "subjects": people, "recordings": truth}
    write_text(out / "truth.json", json.dumps(about, indent=1) + "\n")
    progress(len(plans), len(plans))


def _rows(item: SimulationPlan, made: Simulated) -> Iterator[CsvRow]:
    start = (item.file, item.id, item.split)
    for event in made.events:
        if event.name in LABELS[item.task]:
            yield (*start, event.onset, event.onset + event.duration, event.name)
    if made.targets_TK is not None:
        for number in range(int(len(made.targets_TK) / made.sfreq / ANGLE_SECONDS)):
            middle = made.targets_TK[int((number + 0.5) * ANGLE_SECONDS * made.sfreq)]
            edges = (round(number * ANGLE_SECONDS, 3), round((number + 1) * ANGLE_SECONDS, 3))
            yield (*start, *edges, *(round(float(value), 3) for value in middle))


def _truth(item: SimulationPlan, made: Simulated, seconds: int) -> dict[str, object]:
    return {
        "file": item.file,
        "subject": item.id,
        "task": item.task,
        "montage": item.montage,
        "channels": made.channels,
        "reference": made.montage.reference,
        "sfreq": made.sfreq,
        "seconds": seconds,
        "sources": [
            {
                "name": source.name,
                "position": [round(float(value), 5) for value in source.position],
                "moment_nam": [round(float(value), 4) for value in source.moment],
            }
            for source in made.sources
        ],
    }
