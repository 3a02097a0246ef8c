"""Writes a small MoBI: its folders, text files and channel names, with seconds instead of minutes. Knows no reader.

From He et al. (Scientific Data 5, 180074) and public code that reads the real files: folders ``SL01-T01`` ...;
``eeg.txt`` begins with ``64 channels``, ``joints.txt`` with two lines of which the first names 12 angles in brackets;
both then have rows of a time in seconds and values, with tabulators between and one behind, and the same times;
``impedances-before.txt`` has a table under ``Phys. Chn.`` with reference and ground at its end. The words of the head
lines beyond that are not known, and not needed.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

CODES = "GHR GKR GAR GHL GKL GAL PHR PKR PAR PHL PKL PAL".split()
CAP = (
    "Fp1 Fz F3 F7 FT9 FC5 FC1 C3 T7 TP9 CP5 CP1 Pz P3 P7 O1 Oz O2 P4 P8 TP10 CP6 CP2 Cz C4 T8 FT10 FC6 FC2 F4 F8 Fp2 "
    "AF7 AF3 PO9 F1 F5 FT7 FC3 C1 C5 TP7 CP3 P1 P5 PO7 PO3 POz PO4 PO8 P6 P2 CPz CP4 TP8 C6 C2 FC4 FT8 F6 PO10 F2 AF4 "
    "AF8"
).split()


def write_table(path: Path, head: Sequence[str], times: np.ndarray, values: np.ndarray) -> None:
    rows = ["\t".join([f"{t:.3f}", *(f"{v:.6g}" for v in row)]) + "\t" for t, row in zip(times, values, strict=True)]
    path.write_bytes("".join(f"{line}\r\n" for line in [*head, *rows]).encode())


def write_impedances(path: Path, names: Sequence[str] = CAP) -> None:
    head = ["Impedance measurement", *["a line"] * 18, "", "Phys. Chn.\tName\tLabel Set\tImpedance"]
    rows = [f"#{n}\t {name}\tset\t{n % 20}" for n, name in enumerate(names, 1)]
    path.write_text("\n".join([*head, *rows, "#65\tRef\tset\t3", "#66\tGnd\tset\t---"]) + "\n")


def signal(seed: int, samples: int) -> np.ndarray:
    """Tenths of a microvolt, as the amplifier has them; channel c has the mean c."""
    return np.round(np.random.default_rng(seed).normal(0, 20, (samples, 64)) + np.arange(64), 1)


def angles(samples: int, low: float = -10.0, high: float = 40.0) -> np.ndarray:
    """Angle j goes up and down between ``low + j`` and ``high + j``, both of which it meets."""
    turn = np.abs((np.arange(samples) % 100) - 50) / 50  # 1 at 0, 0 at 50, 1 at 100
    return low + np.arange(12) + turn[:, None] * (high - low)


def write_trial(folder: Path, eeg: np.ndarray, joints: np.ndarray, times: np.ndarray | None = None) -> Path:
    folder.mkdir(parents=True)
    times = np.arange(len(eeg)) / 100 if times is None else times
    write_table(folder / "eeg.txt", ["64 channels"], times, eeg)
    write_table(folder / "joints.txt", [f"12 joints ({' '.join(CODES)})", "Joint Factor 1 1 1"], times, joints)
    write_impedances(folder / "impedances-before.txt")
    write_impedances(folder / "impedances-after.txt")
    (folder / "conductor.txt").write_text("events\ntime event\n0.000\tstart\n")
    (folder / "digitizer.bvct").write_text("<xml/>")
    return folder
