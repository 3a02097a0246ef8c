"""Small EEG files for trees that people bring: EDF written byte by byte, and tables as text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edf_files import File, Notes, Wave, tal, timekeeping

RATE = 128


def edf(
    path: Path,
    labels: Sequence[str] = ("Fp1", "Cz", "O2"),
    seconds: int = 12,
    *,
    unit: str = "uV",
    notes: Sequence[tuple[str, str, str]] = (),
    seed: int = 0,
) -> Path:
    """An EDF+ file of whole seconds with noise of some 20 microvolts; notes are (onset, duration, text)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    waves: list[Wave | Notes] = [
        Wave(label, np.clip(rng.normal(0, 400, RATE * seconds), -2000, 2000).astype(int), RATE, unit)
        for label in labels
    ]
    more = b"".join(tal(onset, text, duration=duration) for onset, duration, text in notes)
    waves.append(Notes(timekeeping([f"+{s}" for s in range(seconds)], {0: more}), samples=120))
    path.write_bytes(bytes(File(waves, kind="EDF+C", records=seconds)))
    return path


def write(path: Path, *lines: str) -> Path:
    """A text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
