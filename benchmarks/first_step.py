"""Time to the first step, and a step: trainings that are eager, with compiled blocks, or captured as CUDA graphs.

    python benchmarks/first_step.py [--cases small:64 base:256 --trainings finetune --rounds 3]

The question is where CUDA graphs alone, which compile no blocks, are as fast as compiled blocks. Each training is a run
of ``finetune`` or ``pretrain`` from a store of noise, in a process of its own. The caches of Triton, inductor and CUDA
lie in a temporary folder: a first process finds them empty, a second one full. Forms take turns.

*first_step_s* is the time from the call to the first report. *begin_s* is the time from the call to the middle of the
run, less as many steps as were done by then: all that the beginning costs, with compilation and capture. *ms* is a step
of the second half, without validations. *kernels_ms* is the sum of a step's kernels by torch's profiler, over the last
steps; captured steps repeat the kernels of eager ones, and have their sum. Imports are not timed. A case is a preset
with its windows per step, and a case of the study is a line in ``CASES``. It needs a GPU; ``--device cpu`` shows that
it runs, with a tiny model, eager and compiled.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import cerebro_eeg
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.clock import Timing
from cerebro_eeg.bench.finetune import check_captured, pace_of
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.noise_store import TASK, write_labelled_noise, write_noise
from cerebro_eeg.bench.options import Benchmark
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes
from cerebro_eeg.bench.train import kernel_times
from cerebro_eeg.config import Preset, preset
from cerebro_eeg.errors import CerebroError, ConfigError, TrainingError
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.schema import require
from cerebro_eeg.train.loop import StepReport

CASES = ("small:64", "small:256", "small:2048", "base:256")
TRAININGS = ("finetune", "pretrain")
FORMS = ("eager", "compiled", "captured")
CACHES = ("empty", "full")
CACHE_FOLDERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
CLOSE = 1.05
"""Captured steps that take at most so many times as long as compiled ones are as fast."""
PROFILED = 5
"""Steps at the end of a run on a GPU that the profiler sees, and no clock."""
SECONDS = 5.0
"""Length of a window of the labelled store; pre-training takes the preset's, which is the same."""
RECORDINGS, RECORDED_SECONDS = 68, 300
"""Of the store for pre-training, as in ``bench pretrain``."""
COLUMNS: dict[str, str | None] = {
    "training": "",
    "preset": "",
    "windows": "",
    "form": "",
    "caches": "",
    "first_step_s": ".2f",
    "begin_s": ".2f",
    "ms": ".2f",
    "spread": ".1%",
    "windows_per_s": ",.0f",
    "over_compiled": ".3fx",
    "kernels_ms": ".2f",
    "over_kernels": ".3fx",
}


@dataclass(frozen=True)
class FirstStep(Benchmark):
    """Time to the first step, and a step: eager, compiled and captured trainings, with empty and full caches (GPU)."""

    rounds: int = 3
    """Turns that each form takes, each with two processes: one with empty caches, one with full ones."""
    cases: tuple[str, ...] = ()
    """Presets with the windows of a step, such as small:64; by default those of the study, on a CPU tiny:4."""
    trainings: tuple[str, ...] = TRAININGS
    """finetune, pretrain, or both."""
    forms: tuple[str, ...] = ()
    """Of eager, compiled and captured; by default all on a GPU, and the first two on a CPU."""
    steps: int = 40
    """Steps of a training."""
    channels: int = 14
    """Channels of the windows of fine-tuning; those of pre-training have 20 to 36."""
    readers: int = 2
    """Threads that read windows, on a GPU by a process each."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 16, f"--steps is {self.steps}; expected at least 16: the last ones are profiled")
        for name, known in (("trainings", TRAININGS), ("forms", FORMS)):
            given = getattr(self, name)
            require(set(given) <= set(known), f"--{name} has {', '.join(given)}; choose of {', '.join(known)}")


@dataclass(frozen=True)
class TrainingCase:
    """One training that a process of its own runs."""

    training: str
    preset: str
    windows: int
    form: str
    store: str
    device: str
    steps: int
    readers: int

    def what(self) -> str:
        return f"{self.training}, {self.preset}, {self.windows:,} windows"


@dataclass(frozen=True)
class MeasuredTraining:
    """The result of such a process."""

    first_step: float
    """Seconds from the call to the first report."""
    begin: float
    """Seconds that the first half took beyond its steps."""
    step: float
    """Seconds of a step of the second half."""
    kernels: float | None
    """Summed seconds of a step's kernels; None on a CPU."""


Case = tuple[str, str, int]
Results = dict[tuple[Case, str, str], list[MeasuredTraining]]
"""By case, form and state of the caches."""


def run(options: FirstStep, say: Callable[[str], None]) -> list[ResultTable]:
    """Run every training in its own processes, and lay the results out with a verdict."""
    device = choose_device(options.device, "benchmarks/first_step.py")
    cuda = device.type == "cuda"
    forms = options.forms or (FORMS if cuda else FORMS[:2])
    rows = TableRows(COLUMNS, say)
    failing: list[tuple[str, str]] = []
    results: Results = {}
    cases = [read_case(text) for text in options.cases or (CASES if cuda else ("tiny:4",))]
    for training in options.trainings:
        for name, windows in cases:
            with tempfile.TemporaryDirectory() as folder:
                write_store(Path(folder), training, windows, options)
                chosen = [
                    TrainingCase(training, name, windows, form, folder, options.device, options.steps, options.readers)
                    for form in forms
                ]
                failing += in_turns(chosen, options.rounds, results)
            for row in rows_of((training, name, windows), forms, results):
                rows.append(row)
    return [table(rows, [*verdict(rows), *failing_notes(failing)])]


def read_case(text: str) -> tuple[str, int]:
    """Return preset and windows of a text such as small:64."""
    name, _, windows = text.partition(":")
    if not windows.isdecimal() or int(windows) < 1:
        raise ConfigError(f"--cases has {text!r}; expected a preset with its windows per step, such as small:64")
    preset(name)  # an unknown name is refused before any work
    return name, int(windows)


def write_store(folder: Path, training: str, windows: int, options: FirstStep) -> None:
    """Write the noise that a training reads; an epoch of the labelled store has all steps of the run."""
    if training == "pretrain":
        write_noise(folder, RECORDINGS, RECORDED_SECONDS)
    else:
        write_labelled_noise(folder, options.channels, SECONDS, windows * (options.steps + 1))


def in_turns(
    cases: Sequence[TrainingCase],
    rounds: int,
    results: Results,
    measure: Callable[[TrainingCase, Path], MeasuredTraining] | None = None,
) -> Iterator[tuple[str, str]]:
    """Run each case with empty and then with full caches, every other round from last to first; yield what failed.

    A case that fails takes no further turn.
    """
    measure = measure or in_own_process
    running = list(cases)
    for number in range(rounds):
        for case in running[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory() as caches:
                try:
                    found = [measure(case, Path(caches)) for _ in CACHES]
                except CerebroError as error:
                    running.remove(case)
                    yield f"{case.what()}, {case.form}", str(error)
                    continue
            for state, one in zip(CACHES, found, strict=True):
                results.setdefault(((case.training, case.preset, case.windows), case.form, state), []).append(one)


def in_own_process(case: TrainingCase, caches: Path) -> MeasuredTraining:
    """Run a case in a fresh process, whose caches lie in this folder."""
    source = str(Path(cerebro_eeg.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    own = {name: str(caches / name.lower()) for name in CACHE_FOLDERS}
    done = subprocess.run(
        [sys.executable, __file__, "one", json.dumps(dataclasses.asdict(case))],
        env={**os.environ, "PYTHONPATH": paths, **own},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise TrainingError((done.stderr.strip().splitlines() or ["the process ended without a word"])[-1][:160])
    return MeasuredTraining(**json.loads(lines[-1]))


# In the process of a case


def measure_one(case: TrainingCase) -> MeasuredTraining:
    """Train, and time the reports."""
    reported: list[tuple[int, float]] = []
    said: list[str] = []
    profiles = torch.device(case.device).type == "cuda" and case.form != "captured"  # a graph repeats eager kernels
    seen = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) if profiles else None

    def tell(report: StepReport, steps: int, batch: int) -> None:
        if seen is None or report.step <= steps - PROFILED:
            reported.append((report.step, time.monotonic()))
        if seen is not None and report.step in (steps - PROFILED, steps):
            torch.cuda.synchronize()
            (seen.stop if report.step == steps else seen.start)()

    began = time.monotonic()
    train(case, said.append, tell)
    check_captured(said)
    kernels = None if seen is None else sum(time for _, time in kernel_times(seen)) / PROFILED / 1e3
    return measured(began, reported, kernels)


def measured(began: float, reported: Sequence[tuple[int, float]], kernels: float | None) -> MeasuredTraining:
    """Return the result from the times of the reports; no epoch ends before the last of them."""
    step = pace_of(reported, reported[-1][0] + 1)
    done, middle = reported[len(reported) // 2 - 1]
    return MeasuredTraining(reported[0][1] - began, middle - began - done * step, step, kernels)


def train(case: TrainingCase, say: Callable[[str], None], tell: Callable[[StepReport, int, int], None]) -> None:
    """Do the training of a case."""
    from cerebro_eeg.runs import finetune, pretrain

    engine = Engine(
        device=case.device,
        compile="yes" if case.form == "compiled" else "no",
        capture=case.form == "captured",
        readers=case.readers,
    )
    chosen, store = of_size(case.preset, case.windows), Path(case.store)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if case.training == "pretrain":
            choices = pretrain.PretrainOptions(steps=case.steps, paper=True)
            pretrain.pretrain([store], out, chosen, choices, engine, say=say, tell=tell)
        else:
            given = finetune.FinetuneOptions(TASK, steps=case.steps, paper=True, patience=case.steps)
            finetune.finetune(store, out, chosen, given, engine, rivals=False, say=say, tell=tell)


def of_size(name: str, windows: int) -> Preset:
    """Return a preset with this many windows per step, of both trainings."""
    found = preset(name)
    parts: Mapping[str, Any] = {
        part: dataclasses.replace(getattr(found, part), batch_size=windows) for part in TRAININGS
    }
    return dataclasses.replace(found, **parts)


# The table


def rows_of(case: Case, forms: Sequence[str], results: Results) -> Iterator[list[Cell]]:
    """Yield the rows of a case, as medians over its rounds."""
    steps = {key: Timing(tuple(one.step for one in found)) for key, found in results.items() if key[0] == case}
    for form in forms:
        for caches in CACHES:
            key = (case, form, caches)
            row: list[Cell] = [*case, form, caches]
            if key not in results:
                yield [*row, *[None] * (len(COLUMNS) - len(row))]
                continue
            timing, compiled = steps[key], steps.get((case, "compiled", caches))
            row += [statistics.median(one.first_step for one in results[key])]
            row += [statistics.median(one.begin for one in results[key])]
            row += [1e3 * timing.seconds, timing.spread, case[2] / timing.seconds]
            row.append(None if compiled is None else timing.seconds / compiled.seconds)
            same = (case, "eager", caches) if form == "captured" else key
            spent = [one.kernels for one in results.get(same, []) if one.kernels]
            kernels = statistics.median(spent) if spent else None
            yield [*row, *([None, None] if kernels is None else [1e3 * kernels, timing.seconds / kernels])]


def verdict(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Say where captured steps are as fast as compiled ones, and what the first step costs there."""
    listed = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    lines: list[str] = []
    close: list[str] = []
    other: list[str] = []
    for case in dict.fromkeys((row["training"], row["preset"], row["windows"]) for row in listed):
        found = {
            (row["form"], row["caches"]): row
            for row in listed
            if (row["training"], row["preset"], row["windows"]) == case and row["ms"] is not None
        }
        if not {("captured", "full"), ("compiled", "full")} <= set(found):
            continue
        captured, compiled = found["captured", "full"], found["compiled", "full"]
        times = _number(captured["ms"]) / _number(compiled["ms"])
        name = f"{case[0]} {case[1]} {case[2]:,}"
        (close if times <= CLOSE else other).append(name)
        first = "; ".join(
            f"first step {_number(found['captured', state]['first_step_s']):.1f} s against "
            f"{_number(found['compiled', state]['first_step_s']):.1f} s with {state} caches"
            for state in CACHES
            if ("captured", state) in found and ("compiled", state) in found
        )
        lines.append(f"{name}: a captured step takes {times:.3f} times as long as a compiled one; {first}")
    if not lines:
        return ["verdict: none; captured and compiled trainings were not both measured"]
    share = f"{len(close)} of {len(lines)} cases"
    names = f": {', '.join(close)}" if close else ""
    missed = f"; not in {', '.join(other)}" if other else ""
    return [*lines, f"verdict: capture alone is within {CLOSE - 1:.0%} of compiled in {share}{names}{missed}"]


def _number(cell: Cell) -> float:
    assert isinstance(cell, float)
    return cell


def table(rows: Sequence[Sequence[Cell]], notes: Sequence[str]) -> ResultTable:
    """Lay out the table, with steps and beginnings as bars."""
    panels = []
    for title, column, caches in (
        ("a step over a compiled one", "over_compiled", "full"),
        ("first step, empty caches, s", "first_step_s", "empty"),
        ("first step, full caches, s", "first_step_s", "full"),
    ):
        place = list(COLUMNS).index(column)
        chosen = [row for row in rows if row[4] == caches]
        series = [
            Series(
                form,
                [f"{row[0]} {row[1]} {row[2]}" for row in chosen if row[3] == form],
                [value if isinstance(value := row[place], float) else None for row in chosen if row[3] == form],
            )
            for form in dict.fromkeys(str(row[3]) for row in chosen)
        ]
        panels.append(Panel(title, "", series, 1.0 if column == "over_compiled" else None))
    title = "First step and later ones of trainings from a store, each in a process of its own"
    return ResultTable("first_step", title, COLUMNS, rows, panels, tuple(notes))


def main() -> int:
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(dataclasses.asdict(measure_one(TrainingCase(**json.loads(sys.argv[2]))))))
        return 0
    return main_of(FirstStep, run)


if __name__ == "__main__":
    sys.exit(main())
