"""Arrays: windows in memory that are read like those of a store, so that arrays take the same way as recordings.

All windows of a subject form one recording, one behind the other, in the order given. Windows without subjects are one
recording together, or one each. Samples are rounded to float16 microvolts, as those of a store are.

Legend: **B** windows, **C** channels, **T** samples, **K** targets.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.batching.windows import Facts, WindowArrays, Windows
from cerebro_eeg.data.filtering.half import LARGEST, to_half
from cerebro_eeg.data.storing.records import StoredRecording, StoredSegment
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import StoreInfo
from cerebro_eeg.data.storing.writer import ScaleSample
from cerebro_eeg.errors import InputError

DATASET = "arrays"
"""The name of the data in the record of weights that learned from them."""


@dataclass(frozen=True, eq=False)
class ArrayTask:
    """What is asked about the windows of an array, and the answers."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    label_B: NDArray[np.int64] | None = None
    """Places in ``names``; None for a regression, or where nothing is known."""
    target_BK: NDArray[np.float32] | None = None
    name: str = "y"


class ArrayStore(Store):
    """Windows in memory, with the reading methods of a store. There is no folder, and nothing is on disk."""

    def __init__(
        self, half_BTC: NDArray[np.float16], info: StoreInfo, records: Sequence[StoredRecording], rows: Sequence[Any]
    ) -> None:
        """``rows`` are, for each of ``records``, the places of its windows in the array."""
        self._half_BTC, self._rows = half_BTC, rows
        self.info = info
        self.recordings: Sequence[StoredRecording] = tuple(records)  # type: ignore[assignment]
        self._numbers = {record.id: number for number, record in enumerate(records)}

    @property
    def files(self) -> list[Path]:
        """No file holds these samples."""
        return []

    def read(self, recording: StoredRecording | int, start: int, stop: int) -> NDArray[np.float16]:
        """Return samples ``start`` to ``stop`` (exclusive) of a recording as (time, channel)."""
        number = self._numbers[recording.id] if isinstance(recording, StoredRecording) else recording
        size = self._half_BTC.shape[1]
        first, last = start // size, -(-stop // size)
        whole = self._half_BTC[self._rows[number][first:last]].reshape(-1, self._half_BTC.shape[2])
        return whole[start - first * size : stop - first * size]

    def read_into(self, recording: StoredRecording | int, start: int, stop: int, buffer: NDArray[Any]) -> None:
        """Copy the same samples into contiguous memory of exactly their size."""
        found = self.read(recording, start, stop)
        buffer.view(np.float16).reshape(found.shape)[...] = found

    def hash(self) -> str:
        """Return the SHA-256 of samples and channels."""
        return str(self.info.settings["sha256"])

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def array_windows(
    x_BCT: NDArray[np.floating],
    channels: Sequence[str],
    sfreq: float,
    signal: SignalConfig,
    task: ArrayTask,
    *,
    group_B: NDArray[np.int64] | None = None,
    scale_B: NDArray[np.float32] | None = None,
    together: bool = False,
) -> tuple[ArrayStore, Windows]:
    """Return windows in microvolts as a store in memory, and as the windows of it, in the order given.

    Parameters
    ----------
    channels : canonical names, as in a store.
    signal : how the windows were filtered, as far as anybody knows.
    group_B : number of each window's subject; None where it is not known.
    scale_B : scale of each window's recording in microvolts; None computes it over all windows of the subject, or over
        all windows.
    together : whether windows without a subject are one recording; otherwise each is its own.
    """
    count, _, size = x_BCT.shape
    if float(np.abs(x_BCT).max()) > LARGEST:
        raise InputError(
            f"the array holds values above {LARGEST:,.0f} uV, which scalp EEG never has; check the unit, or repair them"
        )
    half_BTC = to_half(np.ascontiguousarray(x_BCT.transpose(0, 2, 1), np.float32))
    group = np.arange(count) if group_B is None and not together else group_B
    group = np.zeros(count, np.int64) if group is None else group
    scale = np.zeros(count, np.float32) if scale_B is None else scale_B
    # A recording has one scale. Known scales divide a subject's windows into recordings.
    _, place_B = np.unique(np.stack([group, scale.astype(np.float64)]), axis=1, return_inverse=True)
    recording_B = place_B.reshape(-1).astype(np.int32)
    rows = np.split(np.argsort(recording_B, kind="stable"), np.cumsum(np.bincount(recording_B))[:-1])
    if scale_B is None:
        per_group = rows if group_B is not None else [np.arange(count)]
        scale = np.empty(count, np.float32)
        for members in per_group:
            scale[members] = _scale(half_BTC, members)
    subjects = () if group_B is None else tuple(f"{number:06d}" for number in range(int(group.max()) + 1))
    records, start_B = [], np.empty(count, np.int64)
    for number, members in enumerate(rows):
        first = members[0]
        start_B[members] = np.arange(len(members)) * size
        subject = None if group_B is None else subjects[int(group[first])]
        records.append(_record(number, subject, channels, sfreq, len(members) * size, float(scale[first])))
    settings = _settings(half_BTC, channels, sfreq, signal, task, group_B is not None)
    store = ArrayStore(half_BTC, StoreInfo(DATASET, settings, settings["sha256"][:16]), records, rows)
    facts = Facts(
        tuple(record.id for record in records),
        np.array([-1 if group_B is None else int(group[members[0]]) for members in rows], np.int32),
        subjects,
        np.zeros(len(records), np.int32),
        (tuple(channels),),
        np.array([record.scale for record in records], np.float32),
    )
    label = np.full(count, -1, np.int64) if task.label_B is None else task.label_B
    target = None if task.kind == "classification" else task.target_BK
    if task.kind == "regression" and target is None:
        target = np.full((count, len(task.names)), np.nan, np.float32)
    trial = np.arange(count, dtype=np.int32)
    found = WindowArrays(recording_B, start_B, label.copy(), target, np.zeros(count, np.bool_), trial)
    return store, Windows(store.info, facts, task.name, task.names, sfreq, size, *found)


def _scale(half_BTC: NDArray[np.float16], members: NDArray[np.intp]) -> float:
    sample = ScaleSample()
    for place in members.tolist():
        sample.add(half_BTC[place])
    return sample.scale()


def _record(
    number: int, subject: str | None, channels: Sequence[str], sfreq: float, samples: int, scale: float
) -> StoredRecording:
    return StoredRecording(
        id=f"{number:08d}",
        subject=subject,
        channels=tuple(channels),
        sfreq=sfreq,
        samples=samples,
        segments=(StoredSegment(0, samples, 0.0, False),),
        events=(),
        labels={},
        native_sfreq=sfreq,
        mains=None,
        faults=(),
        quality={},
        scale=scale,
        source_bytes=0,
        sha256="0" * 64,
    )


def _settings(
    half_BTC: NDArray[np.float16],
    channels: Sequence[str],
    sfreq: float,
    signal: SignalConfig,
    task: ArrayTask,
    grouped: bool,
) -> dict[str, Any]:
    """Return what ``store.json`` would hold."""
    digest = hashlib.sha256("\0".join([*channels, repr(sfreq), str(half_BTC.shape)]).encode())
    if task.label_B is not None or task.target_BK is not None:  # nobody asks for the hash of windows without answers
        digest.update(half_BTC.data)
    seconds = half_BTC.shape[1] / sfreq
    asked = {"kind": task.kind, "names": list(task.names), "seconds": seconds, "stride": seconds}
    return {
        "signal": {**asdict(signal), "sfreq": sfreq},
        "tasks": {task.name: asked},
        "split_unit": "subject" if grouped else "recording",
        "sha256": digest.hexdigest(),
    }
