"""Channels of one name in an EDF file: T3 beside T7, or a repeated label."""

import numpy as np
import pytest

from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.errors import ChannelError, RecordingError
from edf_files import File, Wave, ramp

POLICY = ChannelPolicy(duplicates="equal", unknown="drop")
FLAT = np.full(12, 7)


def written(folder, *waves):
    path = folder / "a.edf"
    path.write_bytes(bytes(File([Wave("EEG CZ-REF", ramp(12, seed=9)), *waves])))
    return path


def read(path, policy=POLICY):
    recording = open_edf(path, policy)
    counts = np.round((recording.read(0, 12).astype(float) + 100) * 4095 / 200 - 2048).astype(int)
    return recording, dict(zip(recording.match.names, counts.T, strict=True))


@pytest.mark.parametrize(("first", "second"), [("EEG T3-REF", "EEG T7-REF"), ("T7", "EEG T3-LE"), ("T3", "T3")])
def test_copies_count_once(tmp_path, first, second):
    x = ramp(12, seed=1)
    recording, found = read(written(tmp_path, Wave(first, x), Wave(second, x)))
    assert recording.match.index == (0, 1)
    np.testing.assert_array_equal(found["T7"], x)
    assert [fault.code for fault in recording.faults] == ["duplicate"]
    assert f"are all T7; {first!r} was used" in recording.faults[0].note


@pytest.mark.parametrize("live", [1, 2])
def test_a_flat_twin_gives_way(tmp_path, live):
    x = ramp(12, seed=1)
    waves = [Wave("T3", x if live == 1 else FLAT), Wave("T7", x if live == 2 else FLAT)]
    recording, found = read(written(tmp_path, *waves))
    assert recording.match.index == (0, live)
    np.testing.assert_array_equal(found["T7"], x)
    np.testing.assert_array_equal(found["Cz"], ramp(12, seed=9))


@pytest.mark.parametrize("second", [Wave("T7", ramp(12, seed=2)), Wave("T7", ramp(12, seed=1), pmax=50)])
def test_twins_that_differ_are_both_left_out(tmp_path, second):
    path = written(tmp_path, Wave("T3", ramp(12, seed=1)), second, Wave("O1", ramp(12, seed=3)))
    recording, found = read(path)
    assert list(found) == ["Cz", "O1"]
    np.testing.assert_array_equal(found["O1"], ramp(12, seed=3))
    assert "'T3', 'T7' are all T7 and differ; none was used" in recording.faults[0].note
    with pytest.raises(ChannelError, match="both T7"):
        open_edf(path)
    with pytest.raises(RecordingError, match="no EEG channel is left"):
        open_edf(path, ChannelPolicy(duplicates="equal", keep=["T7"]))


def test_three_of_one_name(tmp_path):
    x = ramp(12, seed=1)
    assert read(written(tmp_path, Wave("T3", FLAT), Wave("T7", x), Wave("T3", x)))[0].match.index == (0, 2)
    assert read(written(tmp_path, Wave("T3", x), Wave("T7", x), Wave("T3", -x)))[0].match.index == (0,)
    assert read(written(tmp_path, Wave("T3", FLAT), Wave("T7", FLAT + 1)))[0].match.index == (0, 1)


def test_other_readers_refuse_twins():
    import mne

    info = mne.create_info(["T3", "T7"], 100.0, "eeg")
    raw = mne.io.RawArray(np.zeros((2, 200)), info, verbose="error")
    with pytest.raises(ChannelError, match="both T7"):
        open_recording(raw, POLICY)
