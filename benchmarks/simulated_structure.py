"""The share of simulated EEG that can be predicted: linearly in time, from one instant, and from all visible values.

Patches of 250 ms are masked at random, half of them. The three guesses for what was masked: interpolation in time; the
best linear one from the visible channels of the same instant; the best linear one from all that is visible of 2.5 s.
The last two know the covariance of the first half of the recording and are scored on windows of the second.
"""

import argparse

import numpy as np
from scipy.signal import butter, sosfiltfilt

from cerebro_eeg.data.simulation.recording import simulate_recording

SAMPLES, PATCH = 160, 16  # at 64 Hz


def errors(seed: int, subject: int, montage: str, task: str, windows: int) -> np.ndarray:
    """Return the squared error over the power of the masked values: by interpolation, by one instant, by all."""
    made = simulate_recording(seed, subject, montage, 256, 600.0, task)  # type: ignore[arg-type]
    band = butter(4, [0.5, 28], "bandpass", fs=256, output="sos")
    x_TC = sosfiltfilt(band, made.signal_TC.astype(np.float64), axis=0)[::4]
    x_TC /= x_TC.std(axis=0)
    known, hidden = x_TC[: len(x_TC) // 2], x_TC[len(x_TC) // 2 :]
    channels = x_TC.shape[1]
    lagged = [known[k:].T @ known[: len(known) - k] / (len(known) - k) for k in range(SAMPLES)]
    rows = [[lagged[a - b] if a >= b else lagged[b - a].T for b in range(SAMPLES)] for a in range(SAMPLES)]
    everything = np.block(rows) + 1e-3 * np.eye(SAMPLES * channels)
    instant = lagged[0] + 1e-2 * np.eye(channels)
    rng = np.random.default_rng(0)
    sums = np.zeros(4)
    for _ in range(windows):
        start = rng.integers(len(hidden) - SAMPLES)
        y = hidden[start : start + SAMPLES]
        seen = np.repeat(rng.random((SAMPLES // PATCH, channels)) >= 0.5, PATCH, axis=0)
        guesses = [np.zeros_like(y) for _ in range(3)]
        for c in range(channels):
            if seen[:, c].any():
                guesses[0][:, c] = np.interp(np.arange(SAMPLES), np.flatnonzero(seen[:, c]), y[seen[:, c], c])
        for t, row in enumerate(seen):
            if row.any():
                weights = np.linalg.solve(instant[np.ix_(row, row)], y[t, row])
                guesses[1][t] = instant[:, row] @ weights
        flat = seen.ravel()
        guesses[2] = (everything[:, flat] @ np.linalg.solve(everything[np.ix_(flat, flat)], y[seen])).reshape(y.shape)
        masked = ~seen
        sums += [(y[masked] ** 2).sum(), *(((guess - y)[masked] ** 2).sum() for guess in guesses)]
    return sums[1:] / sums[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--windows", type=int, default=20)
    arguments = parser.parse_args()
    print("montage  task     subject  interpolation  instant  all")
    for montage, task in (("10-20", "eyes"), ("10-20", "hands"), ("10-20", "seizure"), ("muse", "eyes")):
        for subject in range(2):
            found = errors(arguments.seed, subject, montage, task, arguments.windows)
            print(f"{montage:7}  {task:7}  {subject:7}  {found[0]:13.2f}  {found[1]:7.2f}  {found[2]:4.2f}", flush=True)
