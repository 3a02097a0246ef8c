"""A disk, a network or memory that fails while a recording is read is no fault of the file, in every format."""

import errno
import os
import sys

import mne
import numpy as np
import pytest

import eeg_files
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.passing_faults import passing_fault
from cerebro_eeg.errors import PassingFault, RecordingError
from edf_files import File, Wave
from failing_files import FailingFiles

LABELS = ["Fp1", "C3", "O2"]
FAULTS = [
    OSError(errno.EIO, os.strerror(errno.EIO)),
    OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
    OSError(errno.EACCES, os.strerror(errno.EACCES)),
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)),
    MemoryError(),
]


def written(folder, format):
    counts = np.random.default_rng(0).integers(-1000, 1000, (512, 3))
    if format == "edf":
        signals = [Wave(name, counts[:, i], samples=128) for i, name in enumerate(LABELS)]
        path = folder / "a.edf"
        path.write_bytes(bytes(File(signals, records=4)))
        return path
    if format == "vhdr":
        return eeg_files.brainvision(folder / "a.vhdr", counts, LABELS)
    if format == "lay":
        return eeg_files.persyst(folder / "a.lay", counts, LABELS)
    if format in ("set", "fdt"):
        return eeg_files.eeglab(folder / "a.set", counts * 0.1, LABELS, apart=format == "fdt")
    if format == "gdf":
        return eeg_files.gdf(folder / "a.gdf", counts, LABELS)
    if format == "csv":
        lines = [f"{1e9 + t / 256:.6f}," + ",".join(map(str, counts[t])) + ",3,0" for t in range(512)]
        path = folder / "a.csv"
        path.write_text("timestamps,TP9,AF7,AF8,TP10,Right AUX\n" + "\n".join(lines) + "\n")
        return path
    info = mne.create_info(LABELS, 128.0, "eeg")
    if format == "epochs":
        data = counts[:384].reshape(3, 128, 3).transpose(0, 2, 1) * 1e-7
        path = folder / "a-epo.fif"
        mne.EpochsArray(data, info, verbose="error").save(path, verbose="error")
        return path
    path = folder / ("a_raw.fif.gz" if format == "fif.gz" else "a_raw.fif")
    mne.io.RawArray(counts.T * 1e-7, info, verbose="error").save(path, verbose="error")
    return path


@pytest.mark.parametrize("format", ["edf", "fif", "fif.gz", "epochs", "vhdr", "set", "fdt", "gdf", "lay", "csv"])
def test_a_passing_fault_at_any_place_is_never_a_fault_of_the_file(tmp_path, monkeypatch, format):
    path = written(tmp_path, format)
    files = FailingFiles(monkeypatch, tmp_path)
    recording = open_recording(path)
    recording.read(0, recording.samples)
    total = files.opened
    assert total
    for good in range(total):
        error = FAULTS[good % len(FAULTS)]
        files.opened, files.places, files.error = 0, range(good, sys.maxsize), error
        with pytest.raises(RecordingError) as caught:
            open_recording(path).read(0, recording.samples)
        assert isinstance(caught.value, PassingFault), (good, str(caught.value))
        assert caught.value.code == "unreadable"
        assert "then try again" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
    for error in FAULTS:
        files.opened, files.places, files.error = 0, range(total - 1, sys.maxsize), error
        with pytest.raises(PassingFault):
            open_recording(path).read(0, 1)


@pytest.mark.parametrize("format", ["fif", "vhdr", "fdt", "gdf", "lay"])
def test_samples_that_are_moved_away_while_they_are_read_may_come_back(tmp_path, format):
    path = written(tmp_path, format)
    recording = open_recording(path)
    samples = recording.read(0, recording.samples)
    away = [(file, file.with_name("away" + file.name)) for file in tmp_path.iterdir()]
    for file, other in away:
        file.rename(other)
    with pytest.raises(PassingFault, match="No such file or directory"):
        recording.read(0, recording.samples)
    for file, other in away:
        other.rename(file)
    np.testing.assert_array_equal(recording.read(0, recording.samples), samples)


def test_damage_does_not_pass():
    for error in (ValueError("x"), OSError("not this format"), OSError(errno.EINVAL, "seek"), EOFError()):
        assert passing_fault(error) is None
    chained = RuntimeError("reader gave up")
    chained.__cause__ = OSError(errno.EIO, "Input/output error", "/patients/jane.edf")
    found = passing_fault(chained)
    assert found is not None
    assert "jane" not in str(found)
    assert "Input/output error" in str(found)
