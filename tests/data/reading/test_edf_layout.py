"""Headers that misplace the samples: whatever number is wrong, a file is read right or refused, never shifted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.errors import ChannelError, RecordingError
from edf_files import File, Notes, Wave, ramp, tal, timekeeping

NAMES = ("Fp1", "Fp2", "C3", "C4", "O1", "O2")
LENIENT = ChannelPolicy(unknown="drop", duplicates="first", too_many="nearest")


def file_of(kind: str, lengths: tuple[int, ...], records: int, notes_first: bool = False) -> File:
    names = [name if length == max(lengths) else "ECG" for name, length in zip(NAMES, lengths, strict=False)]
    signals: list[Wave | Notes] = [
        Wave(name, ramp(n * records, seed=i), n) for i, (name, n) in enumerate(zip(names, lengths, strict=True))
    ]
    if "+" in kind:
        onsets = [f"+{i + (50 if kind.endswith('D') and i > 2 else 0)}" for i in range(records)]
        notes = Notes(timekeeping(onsets, {1: tal("+1.5", "x")}), 12, f"{kind[:3]} Annotations")
        signals.insert(0 if notes_first else len(signals), notes)
    return File(signals, kind, records=records)


SOUND = {
    "EDF": file_of("EDF", (16, 16, 16, 16), 9),
    "EDF, 18 records": file_of("EDF", (8, 8, 8), 18),
    "EDF, one record": file_of("EDF", (16, 16), 1),
    "one channel": file_of("EDF", (16,), 8),
    "mixed rates": file_of("EDF", (16, 16, 16, 4), 12),
    "EDF+C": file_of("EDF+C", (16, 16, 16), 8),
    "EDF+D, annotations first": file_of("EDF+D", (16, 16, 16), 8, notes_first=True),
    "BDF": file_of("BDF", (16, 16, 16), 9),
    "BDF+C": file_of("BDF+C", (16, 16, 4), 8),
}


def mutants(file: File):
    for place, signal in enumerate(file.signals):
        others = {other.samples for other in file.signals}
        n = signal.samples
        for stated in sorted({0, 1, n // 2, n - 1, n + 1, 2 * n, 3 * n, 100 * n, *others} - {n}):
            signals = [replace(s, stated_samples=stated) if i == place else s for i, s in enumerate(file.signals)]
            yield f"signal {place} has {n} samples, said {stated}", replace(file, signals=signals)
    count = len(file.signals)
    for stated in (256, 256 * count, 256 * (count + 2), 255 + 256 * count, 257 + 256 * count, 0, -1, "x"):
        yield f"header bytes {stated}", replace(file, header_bytes=stated)
        yield f"header bytes {stated}, records unknown", replace(file, header_bytes=stated, stated_records=-1)
    for stated in (count - 1, count + 1, count + 2, 2 * count):
        yield f"{stated} signals", replace(file, stated_signals=stated)
        yield f"{stated} signals and header", replace(file, stated_signals=stated, header_bytes=256 * (1 + stated))
    for stated in (-1, file.records + 1, 2 * file.records, max(1, file.records - 1), max(1, file.records // 2)):
        yield f"{stated} records", replace(file, stated_records=stated)


def counts_of(path: Path, policy: ChannelPolicy) -> tuple[float, dict[str, np.ndarray]]:
    recording = open_edf(path, policy)
    samples = recording.read(0, recording.samples)
    # The labels are those of the file, so that a channel cannot hide behind another.
    labels = [recording.match.rows[index].label for index in recording.match.index]
    counts = np.round((samples.astype(np.float64) + 100) * 4095 / 200 - 2048).astype(int)
    return recording.sfreq, dict(zip(labels, counts.T, strict=True))


@pytest.mark.parametrize("name", SOUND)
def test_a_wrong_number_in_the_header_never_shifts_samples(name: str, tmp_path: Path) -> None:
    path, file = tmp_path / "a.edf", SOUND[name]
    truth = {signal.label: np.asarray(signal.counts) for signal in file.signals if isinstance(signal, Wave)}
    path.write_bytes(bytes(file))
    rate, found = counts_of(path, ChannelPolicy())
    assert found.keys() == {label for label in truth if label != "ECG"}
    assert all(np.array_equal(counts, truth[label]) for label, counts in found.items())
    read = 0
    for what, mutant in mutants(file):
        path.write_bytes(bytes(mutant))
        for policy in (ChannelPolicy(), LENIENT):
            try:
                sfreq, found = counts_of(path, policy)
            except (RecordingError, ChannelError):
                continue
            read += 1
            assert sfreq == rate, what
            for label, counts in found.items():
                assert 0 < len(counts) <= len(truth[label]), what
                np.testing.assert_array_equal(counts, truth[label][: len(counts)], what)
    assert read, "what the size proves is read"
