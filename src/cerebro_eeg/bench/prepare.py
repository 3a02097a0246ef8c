"""The speed of filter, notch and resampling against MNE with the same specification, and the memory that they need.

The specification is band-pass 0.1-75 Hz, notch 60 Hz, 256 Hz and float16, from float32 microvolts in memory. The time
is the CPU time of all threads: run it with OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1. At 256 Hz neither side resamples.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebro_eeg.bench.clock import Call, of_all_threads, take_turns
from cerebro_eeg.bench.options import PrepareBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes
from cerebro_eeg.channels.match import VOCABULARY, match
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering.quality import Thresholds
from cerebro_eeg.data.preprocess import CheckedRecording, plan_recording
from cerebro_eeg.data.reading.recording import Recording, Samples, Segment
from cerebro_eeg.errors import ConfigError

MAINS = 60.0
COLUMNS: dict[str, str | None] = {
    "case": "",
    "rival": "",
    "times_real_time": ",.0f",
    "spread": ".0%",
    "over_ours": ".2fx",
}
MEMORY: dict[str, str | None] = {"case": "", "hours": "g", "peak_mib": ".0f"}


def run(options: PrepareBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per case and rival; with ``hours``, only memory: the peak would include an earlier timing."""
    if options.hours:
        return [memory(options, say)]
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    for case in options.cases:
        channels, sfreq = read_case(case)
        recording = made(channels, sfreq, round(60 * options.minutes * sfreq))
        turns = take_turns(make_rivals(recording), options.rounds, of_all_threads, warm=1)
        failures += [(f"{name}, {case}", error) for name, error in turns.failing.items()]
        for name, timing in turns.timings.items():
            found: list[Cell] = [case, name, 60 * options.minutes / timing.seconds, timing.spread]
            rows.append([*found, turns.times(name, "ours")])
    title = f"Band-pass, notch and resampling of {options.minutes:g} minutes, CPU time"
    names = list(dict.fromkeys(str(row[1]) for row in rows))
    series = [
        Series(
            name,
            [str(row[0]) for row in rows if row[1] == name],
            [value if isinstance(value := row[2], float) else None for row in rows if row[1] == name],
        )
        for name in names
    ]
    panels = [Panel("times real time", "channels x Hz", series)]
    return [ResultTable("prepare", title, COLUMNS, rows, panels, failing_notes(failures))]


def read_case(case: str) -> tuple[int, float]:
    """Read a case: '36x256' -> 36 channels at 256 Hz."""
    found = re.fullmatch(r"(\d+)x(\d+(?:\.\d+)?)", case)
    if found is None or not 1 <= int(found[1]) <= len(VOCABULARY) or float(found[2]) < 1:
        raise ConfigError(f"--cases has {case!r}; expected channels x Hz, such as 36x256")
    return int(found[1]), float(found[2])


def make_rivals(recording: Recording) -> dict[str, Call]:
    rivals = {"ours": ours(recording), "MNE, default resampling": mne_rival(recording, "fft")}
    if recording.sfreq != 256.0:
        rivals["MNE, polyphase"] = mne_rival(recording, "polyphase")
    return rivals


def made(channels: int, sfreq: float, samples: int) -> Recording:
    """Make a recording without a file: noise with an offset and mains, the same minute again and again."""
    rng = np.random.default_rng(0)
    minute = round(60 * sfreq)
    time_s = np.arange(minute)[:, None] / sfreq
    noise = rng.standard_normal((minute, channels)) * 20 + 50 * np.sin(2 * np.pi * MAINS * time_s)
    pattern = (noise + rng.uniform(-5000, 5000, channels)).astype(np.float32)

    def read(start: int, stop: int) -> Samples:
        return np.take(pattern, np.arange(start, stop), axis=0, mode="wrap")

    return Recording(sfreq, match(VOCABULARY[:channels]), (Segment(0, samples, 0.0),), read)


def ours(recording: Recording) -> Call:
    whole = recording.read(0, recording.samples)
    held = Recording(recording.sfreq, recording.match, recording.segments, lambda start, stop: whole[start:stop])

    def call() -> None:
        stream(held)

    return call


def stream(recording: Recording) -> None:
    """Filter a recording to half precision in blocks, as prepare does after the quality check."""
    checked = CheckedRecording(recording, recording, Thresholds(), (), (), MAINS)
    for _ in plan_recording(checked, SignalConfig()).pieces():
        pass


def mne_rival(recording: Recording, method: str) -> Call:
    """Return MNE's filters on an array in volts; the first call, which does not count, makes it and imports MNE."""
    held: list[Any] = []

    def call() -> None:
        import mne

        if not held:
            held.append(recording.read(0, recording.samples).T.astype(np.float64) * 1e-6)
            held.append(mne.create_info(held[0].shape[0], recording.sfreq, "eeg", verbose="error"))
        raw = mne.io.RawArray(held[0], held[1], copy="both", verbose="error")
        raw.filter(0.1, 75.0, verbose="error")
        raw.notch_filter(MAINS, notch_widths=2.0, verbose="error")
        if recording.sfreq != 256.0:
            raw.resample(256.0, method=method, verbose="error")
        (raw.get_data() * 1e6).T.astype(np.float16)

    return call


def memory(options: PrepareBench, say: Callable[[str], None]) -> ResultTable:
    """Measure the peak of this process after each case; it never falls, so put the smallest case first."""
    rows = TableRows(MEMORY, say)
    for case in options.cases:
        channels, sfreq = read_case(case)
        rows.append([case, options.hours, streamed(channels, sfreq, options.hours)])
    series = [
        Series("peak", [str(row[0]) for row in rows], [row[2] if isinstance(row[2], float) else None for row in rows])
    ]
    title = f"Peak memory of filtering {options.hours:g} hours, made as they are read"
    return ResultTable("prepare-memory", title, MEMORY, rows, [Panel("MiB", "channels x Hz", series)])


def streamed(channels: int, sfreq: float, hours: float) -> float:
    """Filter this many hours, made as they are read, and return the peak of the process in MiB."""
    import resource  # not on Windows

    stream(made(channels, sfreq, round(hours * 3600 * sfreq)))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)
