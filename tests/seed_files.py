"""Writes a small SEED: its layout, file names and arrays, with seconds instead of minutes of signal. Knows no reader.

From bcmi.sjtu.edu.cn/~seed/seed.html and from public code that reads the real files: ``Preprocessed_EEG`` has
``1_20131027.mat`` and the like, three for each of 15 subjects, and ``label.mat``, an array ``label`` of 1 x 15. A
session has the arrays ``<initials>_eeg1`` to ``_eeg15``, 62 x samples in float64 at 200 Hz. A real trial has samples
that are no whole number of seconds (47,001 the first).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

LABELS = (1, 0, -1, -1, 0, 1, -1, 0, 1, 1, 0, -1, 0, 1, -1)
SAMPLES = tuple(200 * (2 + trial % 3) + 1 for trial in range(15))  # 401, 601, 801, 401, ...
DATES = ("20131027", "20131030", "20131107")


def signal(subject: int, session: int, trial: int, samples: int) -> np.ndarray:
    """Microvolts, different for each trial; row c has the mean c."""
    rng = np.random.default_rng([subject, session, trial])
    return rng.normal(0.0, 20.0, (62, samples)) + np.arange(62)[:, None]


def trials(subject: int, session: int, initials: str = "djc") -> dict[str, np.ndarray]:
    return {f"{initials}_eeg{t}": signal(subject, session, t, SAMPLES[t - 1]) for t in range(1, 16)}


def write_session(path: Path, arrays: Mapping[str, Any], compress: bool = True) -> Path:
    savemat(path, dict(arrays), appendmat=False, do_compression=compress)
    return path


def write_labels(folder: Path, labels: Any = LABELS) -> None:
    savemat(folder / "label.mat", {"label": np.array(labels)[None]}, appendmat=False)


def write_seed(folder: Path, subjects: Mapping[int, str]) -> Path:
    """The corpus with these subjects, and the initials of each."""
    files = folder / "Preprocessed_EEG"
    files.mkdir(parents=True)
    for subject, initials in subjects.items():
        for session, date in enumerate(DATES, 1):
            write_session(files / f"{subject}_{date}.mat", trials(subject, session, initials), compress=session != 3)
    write_labels(files)
    (files / "readme.txt").write_text("notes")
    (folder / "channel-order.xlsx").write_bytes(b"")
    return folder
