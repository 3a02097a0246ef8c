"""A Recording: whatever its source, a rate that cannot be is refused before memory is asked for."""

import tracemalloc

import mne
import numpy as np
import pytest

import eeg_files
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.preprocess import preprocess
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.errors import RecordingError
from edf_files import File, Wave, ramp

LABELS = ["Fp1", "C3", "O2"]
COUNTS = np.random.default_rng(0).integers(-1000, 1000, (512, 3))


def source(folder, kind):
    if kind.startswith(("EDF", "BDF")):
        format, duration = kind.split()
        signals = [Wave(name, ramp(512, seed=i), 128) for i, name in enumerate(LABELS)]
        path = folder / "a.edf"
        path.write_bytes(bytes(File(signals, format, records=4, duration=duration)))
        return path
    if kind == "EEGLAB":
        return eeg_files.eeglab(folder / "a.set", COUNTS * 0.1, LABELS, sfreq=3e8)
    if kind == "BrainVision":
        path = eeg_files.brainvision(folder / "a.vhdr", COUNTS, LABELS)
        path.write_text(path.read_text().replace("SamplingInterval=4000", "SamplingInterval=0.001"))
        return path
    info = mne.create_info(LABELS, 4e8, "eeg")
    if kind == "Epochs":
        data = COUNTS.reshape(4, 128, 3).transpose(0, 2, 1) * 1e-7
        return mne.EpochsArray(data, info, verbose="error")
    raw = mne.io.RawArray(COUNTS.T * 1e-7, info, verbose="error")
    if kind == "Raw":
        return raw
    raw.save(folder / "a_raw.fif", verbose="error")
    return folder / "a_raw.fif"


KINDS = ["EDF 1e-6", "EDF 1e-9", "BDF 1e-14", "EDF 0.00639", "EEGLAB", "BrainVision", "Raw", "Epochs", "FIF"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_that_cannot_be_is_refused_before_memory_is_asked_for(tmp_path, kind):
    given = source(tmp_path, kind)
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="expected 1 to 20000 Hz") as caught:
            preprocess(open_recording(given), SignalConfig())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == "rate"
    assert "\n" not in str(caught.value)
    assert peak < 20e6
