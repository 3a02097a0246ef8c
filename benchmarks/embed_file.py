"""How much longer than reading and filtering does ``embed`` take for a recording in a file?

    python benchmarks/embed_file.py [--device cuda]

A recording of noise with mains is written as an array of float32 microvolts, or as EDF where edfio is installed. Each
rival reads the file anew: *reading and filtering* cuts all windows and computes nothing, *embed* is
``cerebro_eeg.embed`` with a model that is loaded. Rivals take turns. The import of the package is not part of it.
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.clock import on_device, on_host, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.table import Cell, ResultTable, failing_notes
from cerebro_eeg.channels.match import VOCABULARY
from cerebro_eeg.config import preset
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.embed import embed
from cerebro_eeg.runs.packages import is_installed
from cerebro_eeg.runs.predict import cut_windows, make_reader
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.schema import require

READING, EMBEDDING = "reading and filtering", "embed"


@dataclass(frozen=True)
class EmbedFile:
    """Embed a recording from a file, beside reading and filtering it."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    preset: str = "small"
    """Size of the model, whose weights are new."""
    minutes: float = 60.0
    """Length of the recording."""
    channels: int = 32
    """Channels of the recording."""
    sfreq: float = 500.0
    """Samples per second of the recording."""
    array: bool = False
    """Write an array; otherwise EDF where edfio is installed."""
    rounds: int = 5
    """Turns of each rival."""

    def __post_init__(self) -> None:
        require(1 <= self.channels <= 64, f"--channels is {self.channels}; expected 1 to 64")
        require(self.minutes > 0, f"--minutes is {self.minutes:g}; expected more than 0")
        require(self.rounds >= 1, f"--rounds is {self.rounds}; expected at least 1")


def run(options: EmbedFile, say: Callable[[str], None]) -> list[ResultTable]:
    """Write the recording, and let the rivals take turns."""
    device = choose_device(options.device, "benchmarks/embed_file.py")
    torch.manual_seed(0)
    model = Cerebro(2, config=preset(options.preset).model).to(device).eval()
    with tempfile.TemporaryDirectory() as folder:
        path, handling = write(options, Path(folder))
        reader = make_reader(model, handling=handling)

        def read() -> int:
            _, signal = reader.open(path)
            return sum(len(windows.start_B) for windows in cut_windows(signal, reader.samples, reader.stride, 64))

        def compute() -> int:
            found = embed(
                path,
                model,
                sfreq=handling.sfreq,
                channels_from=handling.channels_from,
                unit=handling.unit,
                untrained="as_is",
                mains=50.0,
            )
            return len(found.features)

        assert read() == compute()
        clock = on_device if device.type == "cuda" else on_host
        turns = take_turns({READING: read, EMBEDDING: compute}, options.rounds, clock, warm=1)
    columns: dict[str, str | None] = {"rival": "", "seconds": ".2f", "spread": ".0%", "over_reading": ".2fx"}
    rows: list[list[Cell]] = [
        [name, timing.seconds, timing.spread, turns.times(name, READING)] for name, timing in turns.timings.items()
    ]
    title = (
        f"{options.minutes:g} minutes, {options.channels} channels at {options.sfreq:g} Hz ({path.suffix[1:]}), "
        f"{options.preset} on {device.type}"
    )
    return [ResultTable("embed_file", title, columns, rows, (), failing_notes(list(turns.failing.items())))]


def write(options: EmbedFile, folder: Path) -> tuple[Path, Handling]:
    """Write the recording, and return its path and how it is to be read."""
    rng, samples = np.random.default_rng(0), round(60 * options.minutes * options.sfreq)
    names, time = VOCABULARY[: options.channels], np.arange(samples) / options.sfreq
    signal_CT = rng.standard_normal((options.channels, samples), np.float32) * 20
    signal_CT += (5 * np.sin(2 * np.pi * 50 * time)).astype(np.float32)
    if not options.array and is_installed("edfio"):
        from edfio import Edf, EdfSignal

        seconds = int(samples / options.sfreq)
        signals = [
            EdfSignal(one[: int(seconds * options.sfreq)], options.sfreq, label=f"EEG {name}", physical_dimension="uV")
            for name, one in zip(names, signal_CT, strict=True)
        ]
        path = folder / "recording.edf"
        Edf(signals).write(path)
        return path, Handling(untrained="as_is", mains=50.0)
    path, channels = folder / "recording.npy", folder / "channels.txt"
    np.save(path, signal_CT, allow_pickle=False)
    channels.write_text("\n".join(names) + "\n")
    return path, Handling(untrained="as_is", mains=50.0, unit="uV", sfreq=options.sfreq, channels_from=channels)


if __name__ == "__main__":
    logging.getLogger("cerebro_eeg").setLevel(logging.ERROR)  # random weights are meant here
    sys.exit(main_of(EmbedFile, run))
