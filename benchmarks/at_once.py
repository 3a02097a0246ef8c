"""How many fine-tuning steps per second do several processes do together on one GPU, with and without NVIDIA's service?

    python benchmarks/at_once.py [--processes 1 3 8 --preset small --windows 64 --channels 14]

Each process repeats the step of ``finetune`` on a batch of noise that is on the device, on a GPU as CUDA graphs. All
begin together and count their steps for ``--seconds``. *service* is the Multi-Process Service, with which kernels of
several processes run at the same time. Nothing is read, logged or validated.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

import cerebro_eeg
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.finetune import of_size, open_labelled, our_step
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.noise_store import TASK, write_labelled_noise
from cerebro_eeg.bench.table import Cell, ResultTable, TableRows
from cerebro_eeg.errors import TrainingError
from cerebro_eeg.runs.gpu_sharing import shared_gpu
from cerebro_eeg.runs.training_processes import THREADS
from cerebro_eeg.schema import require

WARM = 8
"""Steps before the clock: the first ones are plain, recorded and compared."""
WINDOW = 5.0
"""Seconds of a window."""
COLUMNS: dict[str, str | None] = {
    "processes": "",
    "service": "",
    "steps_per_s": ",.1f",
    "over_one": ".2fx",
    "slowest": ".1f",
    "fastest": ".1f",
}


@dataclass(frozen=True)
class AtOnce:
    """Fine-tuning steps of several processes at the same time."""

    processes: tuple[int, ...] = (1, 3, 8)
    """How many at the same time; ratios are to the first."""
    preset: str = "small"
    """Size of the model."""
    windows: int = 64
    """Windows a step."""
    channels: int = 14
    """Channels of a window."""
    seconds: float = 3.0
    """Time in which steps are counted."""
    device: str = "auto"
    """cuda, cpu or auto."""

    def __post_init__(self) -> None:
        require(bool(self.processes) and min(self.processes) >= 1, "--processes takes numbers of at least 1")
        require(self.seconds > 0, f"--seconds is {self.seconds:g}; expected more than 0")


def run(options: AtOnce, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure every number of processes, on a GPU without and with the service."""
    device = choose_device(options.device, "benchmarks/at_once.py")
    rows = TableRows(COLUMNS, say)
    notes = [f"{options.preset}, {options.windows} windows of {options.channels} channels on {device.type}"]
    for service in (False, True) if device.type == "cuda" else (False,):
        with contextlib.ExitStack() as stack:
            said: list[str] = []
            environment = stack.enter_context(shared_gpu(device, said.append)) if service else {}
            notes += said
            serves = "CUDA_MPS_PIPE_DIRECTORY" in {**os.environ, **(environment or {})}
            for count in options.processes:
                found = together(options, count, device, environment or {})
                total = sum(found)
                one = next((row[2] for row in rows), total)
                assert isinstance(one, float)
                row: list[Cell] = [count, "yes" if serves else "no", total, total / one, min(found), max(found)]
                rows.append(row)
    return [ResultTable("at_once", "Fine-tuning steps of several processes", COLUMNS, rows, (), tuple(notes))]


def together(options: AtOnce, count: int, device: torch.device, environment: Mapping[str, str]) -> list[float]:
    """Return the steps per second of each of so many processes."""
    paths = os.pathsep.join(filter(None, [str(Path(cerebro_eeg.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    given = {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(THREADS), **environment}
    asked = json.dumps({**dataclasses.asdict(options), "device": device.type})
    with contextlib.ExitStack() as stack:
        pipes: list[tuple[IO[str], IO[str]]] = []
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "one", asked],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **given},
                )
            )
            stack.callback(process.kill)
            assert process.stdin is not None
            assert process.stdout is not None
            pipes.append((process.stdin, process.stdout))
        if any(answers.readline() != "ready\n" for _, answers in pipes):
            raise TrainingError("a process ended before its first step; its error is above")
        for asks, _ in pipes:
            asks.write("\n")
            asks.flush()
        return [float(answers.readline()) for _, answers in pipes]


def count_steps(options: AtOnce) -> None:
    """Do steps once a line comes, and print how many there were per second."""
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device(options.device)
    form = "captured" if device.type == "cuda" else "plain"
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryDirectory() as folder:
        write_labelled_noise(Path(store), options.channels, WINDOW, options.windows * 2)
        labelled = open_labelled(Path(store), TASK, options.windows)
        step = our_step(of_size(options.preset, options.windows), labelled, form, Path(folder), device)
        for _ in range(WARM if device.type == "cuda" else 1):
            step.call()
        print("ready", flush=True)
        sys.stdin.readline()
        count, began = 0, time.monotonic()
        while time.monotonic() - began < options.seconds:  # each step waits for its loss
            step.call()
            count += 1
        print(count / (time.monotonic() - began), flush=True)


def main() -> int:
    if sys.argv[1:2] == ["one"]:
        given = json.loads(sys.argv[2])
        count_steps(AtOnce(**{**given, "processes": tuple(given["processes"])}))
        return 0
    return main_of(AtOnce, run)


if __name__ == "__main__":
    sys.exit(main())
