"""Stores that exist for the time of a run: noise, labelled noise, and an index of many recordings without samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from cerebro_eeg.channels.match import VOCABULARY
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.storing.records import Interval, StoredRecording, StoredSegment, to_line
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.schema import to_dict

SFREQ = 256
TASK = "noise"
TRAINED, VALIDATED = 8, 2
RECORDED_SECONDS = 120


def write_noise(folder: Path, recordings: int, seconds: int) -> None:
    """Write recordings of 20 to 36 channels in four shards."""
    create_store(folder, "benchmark", {"signal": to_dict(SignalConfig())})
    block = np.random.default_rng(0).normal(0, 30, (seconds * SFREQ, 36)).astype(np.float32)
    for number in range(recordings):
        with ShardWriter(folder, f"w{number % 4}") as writer:
            count = 20 + number % 17
            with writer.recording(f"r{number:05d}", VOCABULARY[:count], float(SFREQ)) as draft:
                draft.segment(0.0)
                draft.write(block[:, :count])
                draft.commit(native_sfreq=float(SFREQ))


def write_labelled_noise(folder: Path, channels: int, seconds: float, windows: int) -> None:
    """Write recordings of two classes, of a subject each, with about so many windows to train on.

    They overlap: a short store has many. A quarter as many are for validation.
    """
    samples = round(seconds * SFREQ)
    length = RECORDED_SECONDS * SFREQ + samples
    stride = max(1, min(samples, TRAINED * (length - samples) // windows))
    names = ("first", "second")
    task = {"kind": "classification", "names": list(names), "seconds": samples / SFREQ, "stride": stride / SFREQ}
    create_store(
        folder, "benchmark", {"signal": to_dict(SignalConfig()), "tasks": {TASK: task}, "split_unit": "subject"}
    )
    block = np.random.default_rng(0).normal(0, 30, (length, channels)).astype(np.float32)
    with ShardWriter(folder, "w") as writer:
        for number in range(TRAINED + VALIDATED):
            with writer.recording(f"r{number:05d}", VOCABULARY[:channels], float(SFREQ)) as draft:
                draft.segment(0.0)
                draft.write(block)
                split = "train" if number < TRAINED else "val"
                interval = Interval(0.0, length / SFREQ, split, names[number % 2])
                draft.commit(native_sfreq=float(SFREQ), subject=f"s{number}", labels={TASK: [interval]})


def write_index(folder: Path, count: int) -> int:
    """Write the index of ``count`` recordings of 23 channels and three intervals, in eight shards; return its bytes."""
    create_store(folder, "benchmark", {})
    record = StoredRecording(
        id="r",
        subject="s",
        channels=VOCABULARY[:23],
        sfreq=256.0,
        samples=1,
        segments=(StoredSegment(0, 1, 0.0, True),),
        events=(),
        labels={"task": tuple(Interval(20.0 * i, 20.0 * i + 20, "train", "bckg") for i in range(3))},
        native_sfreq=250.0,
        mains=60.0,
        faults=("last-record-cut",),
        quality={"flat": 0, "clipped": 3, "not_finite": 0, "too_large": 0},
        scale=12.5,
        source_bytes=1_000_000,
        sha256="0" * 64,
    )
    for shard in range(8):
        offset = 0
        with open(folder / f"w{shard}-0000.jsonl", "wb") as lines:
            for number in range(shard, count, 8):
                lines.write(to_line(replace(record, id=f"r{number:07d}", subject=f"s{number // 7}"), offset))
                offset += record.bytes
        with open(folder / f"w{shard}-0000.bin", "wb") as payload:
            payload.truncate(offset)
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))
