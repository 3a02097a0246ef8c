"""Writes small files of formats that MNE reads, byte by byte: GDF, BrainVision, EEGLAB, Persyst. Knows no reader.

After the specifications: GDF (arXiv:cs/0608052), BrainVision Core Data Format 1.0, EEGLAB's data structures, and for
Persyst the layout that MNE's reader documents. ``counts`` are (time, channel) whole numbers.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def gdf(
    path: Path,
    counts: np.ndarray,
    labels: Sequence[str],
    *,
    sfreq: int = 128,
    unit: int | str = 4275,
    physical: tuple[float, float] = (-1000.0, 1000.0),
    digital: tuple[int, int] = (-20000, 20000),
    per_record: Sequence[int] | None = None,
    events: Sequence[tuple[int, int]] = (),
    patient: bytes = b"X X",
) -> Path:
    """GDF 2.10, or 1.25 where ``unit`` is a text. Records of one second; events are (sample, code)."""
    old = isinstance(unit, str)
    n, count = counts.shape
    each = list(per_record or [sfreq] * count)
    records = n // sfreq
    head = b"GDF 1.25" if old else b"GDF 2.10"
    head += patient.ljust(80 if old else 66, b"\0")
    if old:
        head += b"X".ljust(80) + b"2000010100000000" + (256 * (count + 1)).to_bytes(8, "little") + bytes(24 + 20)
        head += np.array([records], "<i8").tobytes() + np.array([1, 1], "<u4").tobytes()
        head += count.to_bytes(4, "little")
    else:
        head += bytes(10) + bytes(4) + b"X".ljust(64, b"\0") + bytes(16) + bytes(8) + bytes(8)
        head += (count + 1).to_bytes(2, "little") + bytes(6) + bytes(8) + bytes(6) + bytes(6) + bytes(24)
        head += np.array([records], "<i8").tobytes() + np.array([1, 1], "<u4").tobytes()
        head += count.to_bytes(2, "little") + bytes(2)
    assert len(head) == 256, len(head)
    one = np.ones(count)
    channels = b"".join(label.encode().ljust(16, b"\0") for label in labels) + bytes(80 * count)
    if old:
        channels += str(unit).encode().ljust(8, b"\0") * count
    else:
        channels += bytes(6 * count) + (one * int(unit)).astype("<u2").tobytes()
    channels += (one * physical[0]).astype("<f8").tobytes() + (one * physical[1]).astype("<f8").tobytes()
    kind = "<i8" if old else "<f8"
    channels += (one * digital[0]).astype(kind).tobytes() + (one * digital[1]).astype(kind).tobytes()
    channels += bytes(80 * count) + np.array(each, "<u4").tobytes() + (one * 3).astype("<u4").tobytes()
    channels += bytes(32 * count)
    data = b""
    for record in range(records):
        for column, wanted in enumerate(each):
            second = counts[record * sfreq : (record + 1) * sfreq : sfreq // wanted, column]
            data += second.astype("<i2").tobytes()
    if old:
        table = b"\1" + sfreq.to_bytes(3, "little") + len(events).to_bytes(4, "little")
    else:
        table = b"\1" + len(events).to_bytes(3, "little") + np.array([sfreq], "<f4").tobytes()
    table += np.array([sample + 1 for sample, _ in events], "<u4").tobytes()
    table += np.array([code for _, code in events], "<u2").tobytes()
    path.write_bytes(head + channels + data + table)
    return path


def brainvision(
    path: Path,
    counts: np.ndarray,
    labels: Sequence[str],
    *,
    sfreq: int = 250,
    units: Sequence[str] | None = None,
    markers: Sequence[tuple[str, str, int]] = (),
) -> Path:
    """int16 with a resolution of 0.1 units; markers are (type, description, sample)."""
    stem = path.with_suffix("")
    header = [
        "Brain Vision Data Exchange Header File Version 1.0",
        "[Common Infos]",
        "Codepage=UTF-8",
        f"DataFile={stem.name}.eeg",
        f"MarkerFile={stem.name}.vmrk",
        "DataFormat=BINARY",
        "DataOrientation=MULTIPLEXED",
        f"NumberOfChannels={len(labels)}",
        f"SamplingInterval={1_000_000 // sfreq}",
        "[Binary Infos]",
        "BinaryFormat=INT_16",
        "[Channel Infos]",
    ]
    units = units or ["µV"] * len(labels)
    header += [f"Ch{i + 1}={label},,0.1,{unit}" for i, (label, unit) in enumerate(zip(labels, units, strict=True))]
    marks = ["Brain Vision Data Exchange Marker File, Version 1.0", "[Common Infos]", "Codepage=UTF-8"]
    marks += [f"DataFile={stem.name}.eeg", "[Marker Infos]"]
    for i, (kind, text, sample) in enumerate(markers):
        date = ",20131113161403794232" if kind == "New Segment" else ""
        marks.append(f"Mk{i + 1}={kind},{text},{sample + 1},1,0{date}")
    path.write_text("\n".join(header) + "\n", "utf-8")
    stem.with_suffix(".vmrk").write_text("\n".join(marks) + "\n", "utf-8")
    stem.with_suffix(".eeg").write_bytes(counts.astype("<i2").tobytes())
    return path


def eeglab(
    path: Path,
    microvolts: np.ndarray,
    labels: Sequence[str],
    *,
    sfreq: float = 128.0,
    events: Sequence[tuple[float, str]] = (),
    apart: bool = False,
    trials: int = 1,
    subject: str = "",
) -> Path:
    """(time, channel), or (trial * time, channel). Events are (latency counted from 1, type)."""
    from scipy.io import savemat

    n, count = microvolts.shape
    data = microvolts.T.astype(np.float32)
    if trials > 1:
        data = microvolts.reshape(trials, n // trials, count).transpose(2, 1, 0).astype(np.float32)
    chanlocs = np.zeros(count, dtype=[("labels", "O"), ("type", "O")])
    for i, label in enumerate(labels):
        chanlocs[i] = (label, "EEG")
    event = np.zeros(len(events), dtype=[("type", "O"), ("latency", "O"), ("duration", "O"), ("epoch", "O")])
    for i, (latency, kind) in enumerate(events):
        event[i] = (kind, latency, 0.0, int((latency - 1) // (n // trials)) + 1)
    epoch = np.zeros(trials if trials > 1 else 0, dtype=[("event", "O"), ("eventtype", "O"), ("eventlatency", "O")])
    for i in range(len(epoch)):
        epoch[i] = (i + 1, events[i][1], 0.0)
    fields = {
        "setname": subject, "subject": subject, "nbchan": count, "trials": trials, "pnts": n // trials, "srate": sfreq,
        "xmin": 0.0, "xmax": (n // trials - 1) / sfreq, "chanlocs": chanlocs, "event": event, "epoch": epoch,
        "ref": "common", "data": path.with_suffix(".fdt").name if apart else data,
    }  # fmt: skip
    if apart:
        path.with_suffix(".fdt").write_bytes(microvolts.astype("<f4").tobytes())
    savemat(path, {"EEG": fields}, appendmat=False, oned_as="row")
    return path


def persyst(
    path: Path,
    counts: np.ndarray,
    labels: Sequence[str],
    *,
    sfreq: int = 200,
    times: Sequence[tuple[int, float]] = ((0, 3600.0),),
    name: str = "X",
    comments: Sequence[tuple[float, str]] = (),
) -> Path:
    """int16 with a calibration of 0.5 microvolts; times are (sample, second of the day)."""
    data = path.with_suffix(".dat")
    lines = [
        "[FileInfo]", f"File={data.name}", "FileType=Interleaved", f"SamplingRate={sfreq}", "HeaderLength=0",
        "Calibration=0.5", f"WaveformCount={len(labels)}", "DataType=0", "[ChannelMap]",
    ]  # fmt: skip
    lines += [f"{label}-Ref={i + 1}" for i, label in enumerate(labels)]
    lines += ["[Patient]", f"First={name}", "Last=X", "Sex=f", "Hand=r", "ID=1", "BirthDate=99/99/99"]
    lines += ["TestDate=01/02/2003", "TestTime=04:05:06", "[SampleTimes]"]
    lines += [f"{sample}={second}" for sample, second in times]
    lines += ["[Comments]", *(f"{onset},0,0,100,{text}" for onset, text in comments)]
    path.write_text("\n".join(lines) + "\n", "latin-1")
    data.write_bytes(counts.astype("<i2").tobytes())
    return path
