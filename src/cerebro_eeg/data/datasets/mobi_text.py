"""The text files of a trial of MoBI: samples, joint angles and channel names, read strictly.

Where public code skips rows that it cannot read, a row that does not fit is refused here: one that was left out would
shift everything behind it. Errors say row, never what is there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.reading.clock import timeline
from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.data.reading.recording import Fault, Segment
from cerebro_eeg.errors import RecordingError

RATE = 100.0
CHANNELS = 64
JOINTS = tuple("GHR GKR GAR GHL GKL GAL PHR PKR PAR PHL PKL PAL".split())
"""G: measured by a goniometer, P: predicted by the decoder; hip, knee, ankle; right, left."""
_LINES = 1 << 14  # parsed at a time
_MOST_LINE = 1 << 14


@dataclass(frozen=True)
class Rows:
    """A table with one row a sample."""

    stamps: NDArray[np.float64]
    values: NDArray[np.float64]
    segments: tuple[Segment, ...]
    faults: tuple[Fault, ...]


def read_eeg(path: Path) -> Rows:
    """``eeg.txt``: a line ``64 channels``, then time in seconds and 64 microvolts a row."""
    head, table = _read(path, 1, CHANNELS + 1)
    if head[0].split() != [str(CHANNELS), "channels"]:
        raise RecordingError("columns", f"eeg.txt does not begin with the line '{CHANNELS} channels'; copy it anew")
    return _rows(table)


def read_joints(path: Path) -> Rows:
    """``joints.txt``: a line with the names in brackets, one with factors, then time in seconds and 12 angles a row."""
    head, table = _read(path, 2, len(JOINTS) + 1)
    names = re.search(r"\(([^)]*)\)", head[0])
    if names is None or tuple(names[1].split()) != JOINTS:
        raise RecordingError("columns", f"joints.txt does not name the angles ({' '.join(JOINTS)}); copy it anew")
    return _rows(table)


def read_channels(path: Path) -> list[str]:
    """The names of the 64 channels: the table of ``impedances-before.txt``, without reference and ground."""
    names, inside = [], False
    for line in _lines(path):
        fields = [field.strip() for field in line.split("\t") if field.strip()]
        if line.startswith("Phys. Chn."):
            inside = True
        elif inside and len(fields) > 1 and fields[0].startswith("#") and fields[1] not in ("Ref", "Gnd"):
            names.append(fields[1])
    if len(names) != CHANNELS:
        raise RecordingError(
            "columns", f"impedances-before.txt names {len(names)} channels; expected {CHANNELS}; copy it anew"
        )
    return names


def _rows(table: NDArray[np.float64]) -> Rows:
    stamps = table[:, 0]
    segments, faults = timeline(stamps, RATE, len(table))
    return Rows(stamps, table[:, 1:], segments, faults)


def _read(path: Path, heads: int, width: int) -> tuple[list[str], NDArray[np.float64]]:
    """The first lines of a file, and the numbers below them."""
    lines = _lines(path)
    head = list(islice(lines, heads))
    parts: list[NDArray[np.float64]] = []
    done = heads
    while block := [line.removesuffix("\t") for line in islice(lines, _LINES)]:  # many rows end with a tabulator
        for number, line in enumerate(block, done + 1):
            if line.count("\t") != width - 1:
                raise RecordingError(
                    "columns",
                    f"line {number} of {path.name} has {line.count(chr(9)) + 1} values; expected {width}; copy it anew",
                )
        try:
            parts.append(np.loadtxt(block, np.float64, comments=None, delimiter="\t", ndmin=2))
        except ValueError:
            raise RecordingError(
                "number", f"{path.name}: a value in lines {done + 1} to {done + len(block)} is not a number; mend it"
            ) from None
        done += len(block)
    if not parts:
        raise RecordingError("empty", f"{path.name} has no rows of numbers; copy it anew")
    return head, np.concatenate(parts)


def _lines(path: Path) -> Iterator[str]:
    with opened(path):  # a file that is missing, a folder or a pipe ends here
        pass
    with path.open("rb") as file:
        while data := file.readline(_MOST_LINE):
            if len(data) >= _MOST_LINE and not data.endswith(b"\n"):
                raise RecordingError("text", f"{path.name} has a line without an end; this is no table")
            yield data.decode("latin-1").rstrip("\r\n")
