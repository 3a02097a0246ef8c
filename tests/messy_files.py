"""A folder as people have them: many formats, some right, some wrong in one way each. Knows no reader.

``messy`` returns, by the name of each file, the reason for which it must be skipped; "" where it must be stored.
"""

from collections.abc import Sequence
from pathlib import Path

import mne
import numpy as np
from scipy.io import savemat

import eeg_files
from cerebro_eeg.channels.electrodes import GRID, OFF_SCALP
from edf_files import File, Wave
from folder_files import edf

NAMES = ("Fp1", "Fp2", "C3", "C4", "O1", "O2")
RATE = 128


def waves(seconds: float = 12, channels: int = 6, seed: int = 0) -> np.ndarray:
    """(time, channel) microvolts of noise, some 20 of them."""
    return np.random.default_rng(seed).normal(0, 20, (round(RATE * seconds), channels))


def raw_of(x: np.ndarray, names: Sequence[str]) -> mne.io.RawArray:
    """A Raw of (time, channel) microvolts."""
    return mne.io.RawArray(x.T * 1e-6, mne.create_info(list(names), RATE, "eeg"), verbose="error")


def numbered(x: np.ndarray) -> mne.io.RawArray:
    """A Raw whose labels say nothing, with the positions of a cap."""
    montage = mne.channels.make_standard_montage("biosemi32")
    places = list(montage.get_positions()["ch_pos"].values())
    raw = raw_of(x, [f"EEG{n:03d}" for n in range(1, 33)])
    chosen = dict(zip(raw.ch_names, places, strict=True))
    raw.set_montage(mne.channels.make_dig_montage(chosen, coord_frame="head"), verbose="error")
    return raw


def messy(top: Path) -> dict[str, str]:
    """Write the folder."""
    top.mkdir(parents=True)
    edf(top / "a clean.edf", NAMES, seed=1)
    edf(top / "b with heart and eyes.edf", (*NAMES, "ECG", "EOG left", "A2-A1"), seed=2)
    edf(top / "c blank unit.edf", NAMES, unit="", seed=3)
    edf(top / "d odd label.edf", (*NAMES, "Blob"), seed=4)
    edf(top / "e numbers alone.edf", [f"E{n}" for n in range(3, 9)], seed=5)
    edf(top / "f blank and odd.edf", (*NAMES, "Blob"), unit="", seed=6)
    edf(top / "g twice.edf", ("T3", "T7", "Cz"), seed=7)
    cut = edf(top / "h cut.edf", NAMES, seed=8)
    cut.write_bytes(cut.read_bytes()[:-1500])
    (top / "i empty.edf").write_bytes(b"")
    (top / "j junk.edf").write_bytes(bytes(range(256)) * 20)
    many = [name for name in GRID if name not in OFF_SCALP][:80]
    edf(top / "k eighty.edf", many, seconds=6, seed=9)
    edf(top / "l heart alone.edf", ("ECG", "EMG chin"), seed=10)
    mixed = [
        Wave(name, np.arange(rate * 4) % 100, rate) for name, rate in (("Fp1", 128), ("C3", 64))
    ]  # two rates in one file
    (top / "m two rates.edf").write_bytes(bytes(File(mixed, records=4)))
    bdf = [Wave(name, np.arange(RATE * 6) * 50 % 9000, RATE, dmin=-8388608, dmax=8388607, pmin=-262144, pmax=262143)
           for name in NAMES]  # fmt: skip
    (top / "n.bdf").write_bytes(bytes(File(bdf, kind="BDF", records=6)))
    counts = np.round(waves(seed=11) * 10).astype(int)
    eeg_files.brainvision(top / "o.vhdr", counts, NAMES, sfreq=250)
    eeg_files.eeglab(top / "p.set", waves(seed=12), NAMES)
    raw_of(waves(seed=13), list(NAMES)).save(top / "q_raw.fif", verbose="error")
    numbered(waves(channels=32, seed=14)).save(top / "r_raw.fif", verbose="error")
    epochs = mne.make_fixed_length_epochs(raw_of(waves(seed=15), list(NAMES)), 2.0, verbose="error")
    epochs.save(top / "s-epo.fif", verbose="error")
    muse = [",".join(("timestamps", "TP9", "AF7", "AF8", "TP10", "Right AUX"))]
    muse += [f"{1.6e9 + k / 256:.6f}," + ",".join(f"{v:.3f}" for v in row) for k, row in enumerate(waves(8, 5, 16))]
    (top / "t.csv").write_text("\n".join(muse) + "\n")
    slow = [Wave(name, np.arange(20) % 50, 1) for name in NAMES]
    (top / "u slow.edf").write_bytes(bytes(File(slow, records=20, duration=4)))
    (top / "notes.txt").write_text("first visit\nsecond visit\n")
    return {
        "a clean.edf": "",
        "b with heart and eyes.edf": "",
        "c blank unit.edf": "unit",
        "d odd label.edf": "channels",
        "e numbers alone.edf": "channels",
        "f blank and odd.edf": "channels",
        "g twice.edf": "channels",
        "h cut.edf": "",
        "i empty.edf": "format",
        "j junk.edf": "format",
        "k eighty.edf": "channels",
        "l heart alone.edf": "channels",
        "m two rates.edf": "mixed_rates",
        "n.bdf": "",
        "o.vhdr": "",
        "p.set": "",
        "q_raw.fif": "",
        "r_raw.fif": "channels",
        "s-epo.fif": "",
        "t.csv": "",
        "u slow.edf": "rate",
    }


def array(path: Path, x: np.ndarray) -> Path:
    """A .npy or .mat file of (time, channel) or (channel, time) numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mat":
        savemat(path, {"data": x}, appendmat=False)
    else:
        np.save(path, x, allow_pickle=False)
    return path
