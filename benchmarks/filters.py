"""How fast are filter, notch and resampling, against MNE with the same specification? And how much memory do they need?

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/filters.py [--minutes 30 --rounds 5]
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/filters.py --memory [--hours 24]

Band-pass 0.1-75 Hz, notch 60 Hz, 256 Hz, float16, from float32 microvolts in memory. The rivals take turns in every
round; CPU seconds of all threads, median of the rounds. At 256 Hz there is nothing to resample, for MNE neither.
``--memory`` streams a day of 36 channels that is made as it is read, and prints the peak of the process.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from cerebro_eeg.channels import VOCABULARY, match
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering.filters import filtered
from cerebro_eeg.data.filtering.half import to_half
from cerebro_eeg.data.reading.recording import Recording, Samples, Segment

CASES = ((31, 250.0), (36, 256.0), (36, 512.0))


def made(channels: int, sfreq: float, samples: int) -> Recording:
    """A recording without a file: noise with an offset and mains, the same minute again and again."""
    rng = np.random.default_rng(0)
    minute = round(60 * sfreq)
    time_s = np.arange(minute)[:, None] / sfreq
    noise = rng.standard_normal((minute, channels)) * 20 + 50 * np.sin(2 * np.pi * 60 * time_s)
    pattern = (noise + rng.uniform(-5000, 5000, channels)).astype(np.float32)

    def read(start: int, stop: int) -> Samples:
        return np.take(pattern, np.arange(start, stop), axis=0, mode="wrap")

    return Recording(sfreq, match(VOCABULARY[:channels]), (Segment(0, samples, 0.0),), read)


def ours(recording: Recording) -> Callable[[], None]:
    whole = recording.read(0, recording.samples)
    held = Recording(recording.sfreq, recording.match, recording.segments, lambda start, stop: whole[start:stop])

    def run() -> None:
        for block in filtered(held, SignalConfig(), 60.0):
            to_half(block.signal)

    return run


def mne_rival(recording: Recording, method: str) -> Callable[[], None]:
    import mne

    mne.set_log_level("error")
    signal = recording.read(0, recording.samples).T.astype(np.float64) * 1e-6
    info = mne.create_info(signal.shape[0], recording.sfreq, "eeg")

    def run() -> None:
        raw = mne.io.RawArray(signal, info, copy="both")
        raw.filter(0.1, 75.0)
        raw.notch_filter(60.0, notch_widths=2.0)
        if recording.sfreq != 256.0:
            raw.resample(256.0, method=method)
        (raw.get_data() * 1e6).T.astype(np.float16)

    return run


def speed(minutes: float, rounds: int) -> None:
    print(f"{'channels':>8}{'Hz':>6}{'':4}{'who':24}{'x real time':>12}{'spread':>8}{'ours is':>10}")
    for channels, sfreq in CASES:
        recording = made(channels, sfreq, round(60 * minutes * sfreq))
        rivals = {"ours": ours(recording), "MNE, default resample": mne_rival(recording, "fft")}
        if sfreq != 256.0:
            rivals["MNE, polyphase"] = mne_rival(recording, "polyphase")
        spent: dict[str, list[float]] = {name: [] for name in rivals}
        for turn in range(rounds + 1):
            for name, run in rivals.items():
                before = time.process_time()
                run()
                if turn:  # the first designs the filters
                    spent[name].append(time.process_time() - before)
        for name, seconds in spent.items():
            middle = statistics.median(seconds)
            spread = (max(seconds) - min(seconds)) / middle
            ratio = middle / statistics.median(spent["ours"])
            print(
                f"{channels:>8}{sfreq:>6g}{'':4}{name:24}{60 * minutes / middle:>12.0f}{spread:>8.0%}"
                f"{'' if name == 'ours' else f'{ratio:>9.1f}x'}",
                flush=True,
            )


def memory(hours: float) -> None:
    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)

    for channels, sfreq in ((36, 256.0), (36, 512.0), (36, 1024.0)):
        recording = made(channels, sfreq, round(hours * 3600 * sfreq))
        before, start, count = peak(), time.process_time(), 0
        for block in filtered(recording, SignalConfig(), 60.0):
            count += len(to_half(block.signal))
        took = time.process_time() - start
        print(
            f"{channels} channels, {sfreq:g} Hz, {hours:g} h: {count} samples out, {took:.0f} s, "
            f"peak {peak():.0f} MiB (before: {before:.0f})",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--hours", type=float, default=24)
    args = parser.parse_args()
    if args.memory:
        memory(args.hours)
    else:
        speed(args.minutes, args.rounds)
