"""open_recording: files of many formats and objects of MNE, against truth that the tests compute themselves."""

import contextlib
import csv
import gzip
import io
import re
import sys
import types
import warnings
from pathlib import Path

import mne
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import eeg_files
from cerebro_eeg.channels.match import POSITIONS
from cerebro_eeg.data.reading.formats import FORMATS, open_recording, suffixes
from cerebro_eeg.data.reading.mat import check_mat5
from cerebro_eeg.data.reading.recording import ChannelPolicy, Segment
from cerebro_eeg.data.reading.tables import steps, timeline
from cerebro_eeg.errors import ChannelError, ConfigError, InputError, RecordingError
from edf_files import File, Notes, Wave, tal

LABELS = ["Fp1", "C3", "O2"]
MUSE = "timestamps,TP9,AF7,AF8,TP10,Right AUX"


def counts(n=1024, channels=3, seed=0):
    return np.random.default_rng(seed).integers(-1000, 1000, (n, channels))


def everything(recording):
    return recording.read(0, recording.samples)


def told(recording):
    """What it says of itself, without the place of its reader in memory: that may be any hexadecimal number."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(recording))


def codes(recording):
    return [fault.code for fault in recording.faults]


def raw_of(microvolts, sfreq=128.0, labels=LABELS, kinds="eeg"):
    info = mne.create_info(list(labels), sfreq, kinds)
    return mne.io.RawArray(microvolts.T * 1e-6, info, verbose="error")


def refused(code, source, policy=None, **how):
    with pytest.raises(RecordingError) as caught:
        everything(open_recording(source, policy or ChannelPolicy(), **how))
    assert caught.value.code == code, str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Real files


def test_edf_goes_to_our_own_reader(open_eeg):
    path = open_eeg / "formats" / "S001R02.edf"
    recording = open_recording(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = mne.io.read_raw_edf(path, verbose="error").get_data()[:64] * 1e6
    assert recording.sfreq == 160
    assert everything(recording).shape == (9600, 64)
    np.testing.assert_allclose(everything(recording), truth.T, atol=1e-3)


def test_real_fif_in_millivolts_is_not_rescaled_and_said(open_eeg):
    path = open_eeg / "formats" / "record-2012.07.06-19.02.16_raw.fif"
    recording = open_recording(path)
    assert (recording.sfreq, recording.samples, len(recording.segments)) == (256, 57024, 1)
    assert recording.match.names == ["Oz", "O1", "O2", "PO3", "POz", "PO7", "PO8", "PO4"]
    np.testing.assert_allclose(recording.read(0, 1)[0, :2], [6717.2721, -12012.1967], rtol=1e-6)
    truth = mne.io.read_raw_fif(path, verbose="error").get_data() * 1e6
    np.testing.assert_array_equal(everything(recording), truth.T.astype(np.float32))
    np.testing.assert_array_equal(recording.read(1000, 1500), truth.T[1000:1500].astype(np.float32))
    assert codes(recording) == ["amplitude"]
    assert "10^3" in recording.faults[0].note
    assert "'Oz'" in recording.faults[0].note
    for private in ("Kalunga", "S1", "2012"):
        assert private not in told(recording)


def test_events_beside_a_fif_file_are_no_recording(open_eeg):
    refused("mne", open_eeg / "formats" / "record-2012.07.06-19.02.16-eve.fif")


def test_real_muse_table(open_eeg):
    path = open_eeg / "formats" / "muse_recording.csv"
    recording = open_recording(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    truth = np.array([[float(row[name]) for name in ("TP9", "AF7", "AF8", "TP10")] for row in rows])
    assert recording.sfreq == 256
    assert recording.match.names == ["TP9", "AF7", "AF8", "TP10"]
    assert recording.segments == (Segment(0, 61296, 0.0),)
    np.testing.assert_array_equal(everything(recording), truth.astype(np.float32))
    marks = [(i / 256, f"{float(row['Marker0']):g}") for i, row in enumerate(rows) if float(row["Marker0"])]
    assert [(event.onset, event.name) for event in recording.events] == marks
    assert len(marks) == 14
    assert recording.faults == ()


def test_real_emotiv_table(open_eeg):
    path = open_eeg / "formats" / "emotiv_signal-2.csv.gz"
    recording = open_recording(path)
    rows = list(csv.reader(gzip.decompress(path.read_bytes()).decode().splitlines()))
    truth = np.array([row[1:15] for row in rows[1:]], float)
    assert (recording.sfreq, recording.samples, len(recording.segments)) == (128, 39552, 1)
    assert recording.match.names == rows[0][1:15]
    np.testing.assert_array_equal(everything(recording), truth.astype(np.float32))  # the level of 4200 uV stays
    assert codes(recording) == ["interpolated"]
    assert recording.faults[0].note.startswith("1 samples")


# Formats that the tests write, against what was written


def test_gdf(tmp_path):
    x = counts(512)
    recording = open_recording(
        eeg_files.gdf(tmp_path / "a.gdf", x, LABELS, events=[(128, 769), (256, 32766)], patient=b"JANE DOE")
    )
    np.testing.assert_allclose(everything(recording), x * 0.05, atol=1e-5)
    assert recording.sfreq == 128
    assert recording.segments == (Segment(0, 256, 0.0), Segment(256, 512, 2.0))  # 0x7ffe begins a segment
    assert [(event.onset, event.name) for event in recording.events] == [(1.0, "769"), (2.0, "32766")]
    assert recording.faults == ()


@pytest.mark.parametrize(
    ("unit", "scale"),
    [(4256, 1e6), (4274, 1e3), (4275, 1), (4276, 1e-3), ("uV", 1), ("mV", 1e3), ("nV", 1e-3), ("V", 1e6)],
)
def test_gdf_units_that_mne_takes_as_volts(tmp_path, unit, scale):
    x = counts(512)
    recording = open_recording(eeg_files.gdf(tmp_path / "a.gdf", x, LABELS, unit=unit))
    np.testing.assert_allclose(everything(recording), x * 0.05 * scale, rtol=1e-6, atol=1e-6 * scale)
    assert codes(recording) == ([] if scale == 1 else ["amplitude"])


@pytest.mark.parametrize("unit", [0, 512, 4288, "", "Ohm"])
def test_gdf_without_a_unit_is_refused_unless_said(tmp_path, unit):
    x = counts(512)
    path = eeg_files.gdf(tmp_path / "a.gdf", x, LABELS, unit=unit)
    refused("unit", path)
    recording = open_recording(path, unit="uV")
    np.testing.assert_allclose(everything(recording), x * 0.05, atol=1e-5)
    assert codes(recording) == ["unit"]


def test_gdf_that_cannot_be_true_is_refused(tmp_path):
    x = counts(512)
    refused("mixed_rates", eeg_files.gdf(tmp_path / "a.gdf", x, LABELS, per_record=[128, 128, 64]))
    refused("calibration", eeg_files.gdf(tmp_path / "b.gdf", x, LABELS, physical=(5.0, 5.0)))
    refused("calibration", eeg_files.gdf(tmp_path / "c.gdf", x, LABELS, digital=(7, 7)))
    data = (tmp_path / "a.gdf").read_bytes()
    (tmp_path / "d.gdf").write_bytes(data[:300])
    refused("header", tmp_path / "d.gdf")


@pytest.mark.parametrize("unit", [4275, "uV"])
def test_gdf_whose_numbers_would_shift_samples_is_refused(tmp_path, unit):
    """The samples of a channel that is not EEG are wrong in the header; the EEG lies behind it."""
    x, labels = counts(896), ["ECG", "C3", "O2"]
    path = eeg_files.gdf(tmp_path / "a.gdf", x, labels, unit=unit, events=[(10, 769)])
    data = path.read_bytes()
    np.testing.assert_allclose(everything(open_recording(path)), x[:, 1:] * 0.05, atol=1e-5)
    place = 256 + 216 * 3
    for stated in (0, 1, 64, 127, 129, 256):
        path.write_bytes(data[:place] + stated.to_bytes(4, "little") + data[place + 4 :])
        with pytest.raises(RecordingError):
            open_recording(path)
    for records in (1, 3, 6, 8):
        path.write_bytes(data[:236] + records.to_bytes(8, "little") + data[244:])
        with pytest.raises(RecordingError):
            open_recording(path)


def test_brainvision_whose_number_of_channels_would_shift_samples_is_refused(tmp_path):
    x = counts(1000)
    path = eeg_files.brainvision(tmp_path / "a.vhdr", x, LABELS)
    text = path.read_text()
    for stated in (1, 2, 4, 6):
        path.write_text(text.replace("NumberOfChannels=3", f"NumberOfChannels={stated}"))
        assert f"says {stated} channels and describes 3" in refused("header", path)
    path.write_text(text)
    data = path.with_suffix(".eeg")
    data.write_bytes(data.read_bytes()[:-3])
    recording = open_recording(path)
    assert codes(recording) == ["truncated"]
    np.testing.assert_allclose(everything(recording), x[:999] * 0.1, atol=1e-5)


def test_brainvision_pauses_cut(tmp_path):
    x = counts(1000)
    markers = [("New Segment", "", 0), ("Stimulus", "S  1", 100), ("New Segment", "", 400)]
    recording = open_recording(eeg_files.brainvision(tmp_path / "a.vhdr", x, LABELS, markers=markers))
    np.testing.assert_allclose(everything(recording), x * 0.1, atol=1e-4)
    assert recording.sfreq == 250
    assert [(s.start, s.stop) for s in recording.segments] == [(0, 400), (400, 1000)]
    assert (recording.events[0].onset, recording.events[0].name) == (0.4, "Stimulus/S  1")


def test_brainvision_units(tmp_path):
    x = counts(1000)
    path = eeg_files.brainvision(tmp_path / "a.vhdr", x, LABELS, units=["µV", "nV", "C"])
    recording = open_recording(path)
    assert recording.match.names == ["Fp1", "C3"]
    np.testing.assert_allclose(everything(recording), x[:, :2] * [0.1, 1e-4], rtol=1e-5, atol=1e-7)
    kind, amplitude = recording.faults
    assert (kind.code, amplitude.code) == ("kind", "amplitude")
    assert "'O2' (misc)" in kind.note
    assert "'C3'" in amplitude.note
    assert "'Fp1'" not in amplitude.note


def test_the_data_file_of_brainvision_is_not_taken_for_nihon_kohden(tmp_path):
    eeg_files.brainvision(tmp_path / "a.vhdr", counts(), LABELS)
    assert ".vhdr" in refused("format", tmp_path / "a.eeg")


@pytest.mark.parametrize("apart", [False, True])
def test_eeglab(tmp_path, apart):
    x = counts() * 0.1
    events = [(11.0, "go"), (300.5, "boundary")]
    recording = open_recording(eeg_files.eeglab(tmp_path / "a.set", x, LABELS, events=events, apart=apart))
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6, atol=1e-5)
    assert recording.sfreq == 128
    assert [(s.start, s.stop) for s in recording.segments] == [(0, 300), (300, 1024)]
    assert recording.events[0].onset == pytest.approx(10 / 128, abs=1e-6)  # MNE rounds to microseconds
    assert recording.events[0].name == "go"
    assert recording.faults == ()


def test_eeglab_epochs(tmp_path):
    x = counts(512) * 0.1
    events = [(1.0, "x"), (129.0, "y"), (257.0, "x"), (385.0, "x")]
    recording = open_recording(eeg_files.eeglab(tmp_path / "a.set", x, LABELS, events=events, trials=4))
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6, atol=1e-5)
    assert [s.start for s in recording.segments] == [0, 128, 256, 384]
    assert [event.name for event in recording.events] == ["x", "y", "x", "x"]


def test_eeglab_with_samples_missing(tmp_path):
    path = eeg_files.eeglab(tmp_path / "a.set", counts() * 0.1, LABELS, apart=True)
    data = path.with_suffix(".fdt")
    data.write_bytes(data.read_bytes()[:1000])
    refused("mne", path)
    data.unlink()
    assert "No such file or directory" in refused("unreadable", path)


def mutants(data, count, seed=0):
    """The bytes with a few of them changed, or cut."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        changed = bytearray(data)
        if rng.random() < 0.2:
            changed = changed[: rng.integers(0, len(data))]
        else:
            for place in rng.integers(0, min(len(data), 2000), rng.integers(1, 6)):
                changed[place] = rng.integers(0, 256)
        yield bytes(changed)


def matlab(path, compressed):
    cell = np.empty(3, object)
    cell[:] = ["text µ", np.zeros((0, 3)), np.arange(6.0).reshape(2, 3)]
    values = {"a": np.eye(3), "b": 1j * np.ones(4), "c": cell, "d": {"x": "", "y": {"z": np.int8(3)}}, "e": "abc"}
    values["f"] = scipy.sparse.csc_matrix(np.eye(4))
    scipy.io.savemat(path, values, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_matlab_files_do_not_reach_scipy(tmp_path, compressed):
    """SciPy's reader crashes on some of them; a crash here would end the tests."""
    path = matlab(tmp_path / "a.mat", compressed)
    check_mat5(path)
    sound = 0
    for data in mutants(path.read_bytes(), 300):
        path.write_bytes(data)
        with contextlib.suppress(RecordingError):
            check_mat5(path)
            sound += 1
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scipy.io.loadmat(path)
    assert 0 < sound < 200


def test_matlab_files_of_other_versions_are_refused(tmp_path):
    path = tmp_path / "a.set"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(200))
    assert "-v7" in refused("missing_package", path)
    scipy.io.savemat(path, {"EEG": np.eye(3)}, format="4", appendmat=False)
    refused("format", path)


def test_damaged_files_are_read_or_refused(tmp_path, capsys, caplog):
    x = counts(256)
    raw_of(x * 0.1).save(tmp_path / "a_raw.fif", verbose="error")
    paths = [
        tmp_path / "a_raw.fif",
        eeg_files.gdf(tmp_path / "a.gdf", x, LABELS, events=[(10, 769)]),
        eeg_files.brainvision(tmp_path / "a.vhdr", x, LABELS, markers=[("Stimulus", "S  1", 100)]),
        eeg_files.eeglab(tmp_path / "a.set", x * 0.1, LABELS, events=[(11.0, "go")]),
        eeg_files.persyst(tmp_path / "b.lay", x, LABELS, comments=[(1.0, "hello")]),
        muse(tmp_path / "a.csv", voltages(300)),
    ]
    for path in paths:
        for data in mutants(path.read_bytes(), 40):
            path.write_bytes(data)
            said = ""
            try:
                everything(open_recording(path))
            except (RecordingError, ChannelError) as error:
                said = str(error)
            assert str(tmp_path) not in said
            assert "\n" not in said
    assert caplog.text == ""
    assert capsys.readouterr() == ("", "")


def test_persyst_gaps_that_mne_joins(tmp_path):
    x = counts(1000)
    path = eeg_files.persyst(
        tmp_path / "a.lay", x, LABELS, times=[(0, 3600.0), (200, 3601.0), (400, 3610.0)], comments=[(1.0, "eyes open")]
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        recording = open_recording(path)
    assert out.getvalue() == ""  # MNE prints on birth dates it cannot read
    np.testing.assert_array_equal(everything(recording), x * 0.5)
    assert recording.sfreq == 200
    assert [(s.start, s.stop) for s in recording.segments] == [(0, 400), (400, 1000)]
    assert [event.name for event in recording.events] == ["eyes open"]


def test_fif_with_a_pause(tmp_path):
    x = counts() * 0.1
    raw = raw_of(x)
    raw.set_annotations(mne.Annotations([2.0, 5.0], [1.0, 0.5], ["BAD_ACQ_SKIP", "blink"]))
    raw.save(tmp_path / "a_raw.fif", buffer_size_sec=0.5, verbose="error")
    recording = open_recording(tmp_path / "a_raw.fif")
    assert recording.segments == (Segment(0, 256, 0.0), Segment(256, 896, 3.0))
    truth = np.concatenate([x[:256], x[384:]])
    np.testing.assert_allclose(everything(recording), truth, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(recording.read(250, 300), truth[250:300], rtol=1e-6, atol=1e-5)  # across the pause
    assert ("blink", 5.0, 0.5) in [(event.name, event.onset, event.duration) for event in recording.events]


def test_fif_in_several_files(tmp_path):
    """Parts of one file go on where the one before ends: no gap."""
    x = np.random.default_rng(0).normal(0, 20, (40_000, 16))
    labels = ["Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2", "F7", "F8", "T7", "T8", "Fz", "Cz"]
    raw_of(x, labels=labels).save(tmp_path / "a_raw.fif", split_size="2MB", verbose="error")
    assert len(list(tmp_path.iterdir())) > 1
    recording = open_recording(tmp_path / "a_raw.fif")
    assert recording.segments == (Segment(0, 40_000, 0.0),)
    np.testing.assert_allclose(everything(recording), x, rtol=1e-5, atol=1e-4)
    (tmp_path / "a_raw-1.fif").unlink()
    refused("mne", tmp_path / "a_raw.fif")


def test_fif_of_epochs(tmp_path):
    x = counts(512) * 0.1
    epochs_of(x).save(tmp_path / "a-epo.fif", verbose="error")
    recording = open_recording(tmp_path / "a-epo.fif")
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6, atol=1e-5)
    assert len(recording.segments) == 4


# Objects of MNE


def epochs_of(x, n=128, sfreq=128.0):
    data = x.reshape(-1, n, x.shape[1]).transpose(0, 2, 1) * 1e-6
    events = np.array([[1000 * i, 0, 1 + i % 2] for i in range(len(data))])
    info = mne.create_info(LABELS, sfreq, "eeg")
    return mne.EpochsArray(data, info, events, event_id={"left": 1, "right": 2}, verbose="error")


def test_raw_is_volts_once():
    x = counts() * 0.1
    recording = open_recording(raw_of(x))
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6, atol=1e-5)
    assert everything(recording).dtype == np.float32
    assert recording.faults == ()
    with pytest.raises(InputError, match="1024"):
        recording.read(0, 1025)


def test_raws_that_were_joined_are_cut_with_or_without_annotations():
    x = counts() * 0.1
    joined = mne.concatenate_raws([raw_of(x[:300]), raw_of(x[300:])], verbose="error")
    for _ in range(2):
        recording = open_recording(joined)
        assert [(s.start, s.stop) for s in recording.segments] == [(0, 300), (300, 1024)]
        joined.set_annotations(None)


def test_a_cropped_raw_keeps_the_times_of_its_events():
    x = counts() * 0.1
    raw = raw_of(x)
    raw.set_annotations(mne.Annotations([3.0], [0.0], ["hit"]))
    recording = open_recording(raw.crop(2.0, None))
    assert [(event.onset, event.name) for event in recording.events] == [(1.0, "hit")]
    np.testing.assert_allclose(recording.read(0, 10), x[256:266], rtol=1e-6, atol=1e-5)


def test_epochs_are_segments_and_stay_as_they_are():
    x = counts(512) * 0.1
    recording = open_recording(epochs_of(x))
    assert recording.segments == tuple(Segment(128 * i, 128 * (i + 1), float(i)) for i in range(4))
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(recording.read(100, 300), x[100:300], rtol=1e-6, atol=1e-5)
    assert [(e.onset, e.duration, e.name) for e in recording.events] == [
        (0.0, 1.0, "left"), (1.0, 1.0, "right"), (2.0, 1.0, "left"), (3.0, 1.0, "right"),
    ]  # fmt: skip


def test_epochs_that_were_not_read_yet():
    x = counts() * 0.1
    x[300:310] = 500.0
    events = np.array([[0, 0, 1], [256, 0, 1], [512, 0, 1]])
    epochs = mne.Epochs(
        raw_of(x), events, {"a": 1}, 0.0, 127 / 128, None, reject={"eeg": 300e-6}, preload=False, verbose="error"
    )
    recording = open_recording(epochs)
    np.testing.assert_allclose(everything(recording), np.concatenate([x[:128], x[512:640]]), rtol=1e-6, atol=1e-5)
    assert not epochs._bad_dropped


def test_what_the_type_says_is_not_eeg_is_left_out():
    raw = raw_of(counts(channels=4) * 0.1, labels=["Fp1", "C3", "ECG", "A1"], kinds=["eog", "eeg", "eeg", "misc"])
    recording = open_recording(raw)
    assert recording.match.names == ["C3"]
    assert [row.note for row in recording.match.rows] == ["the file says eog", "", "heart", "the file says misc"]
    assert recording.faults[0].code == "kind"
    assert "'Fp1' (eog), 'A1' (misc)" in recording.faults[0].note
    with pytest.raises(ChannelError, match="no EEG channel"):
        open_recording(raw_of(counts() * 0.1, kinds="misc"))


def test_bad_channels_are_left_out_and_said(tmp_path):
    x = counts(512) * 0.1
    raw, epochs = raw_of(x), epochs_of(x)
    for source in (raw, epochs):
        source.info["bads"] = ["C3"]
    raw.save(tmp_path / "a_raw.fif", verbose="error")
    epochs.save(tmp_path / "a-epo.fif", verbose="error")
    for source in (raw, epochs, tmp_path / "a_raw.fif", tmp_path / "a-epo.fif"):
        recording = open_recording(source)
        assert recording.match.names == ["Fp1", "O2"]
        np.testing.assert_allclose(everything(recording), x[:, [0, 2]], rtol=1e-5, atol=1e-4)
        assert codes(recording) == ["bads"]
        assert recording.faults[0].note == "1 channel is marked as bad and was left out: 'C3'"
        assert "1 marked as bad (C3)" in recording.match.summary()
        assert recording.match.rows[1].outcome == "bad"
    with pytest.raises(ChannelError, match="pick asks for 'c3', which is marked as bad"):
        open_recording(raw, ChannelPolicy(pick=["c3", "O2"]))
    assert open_recording(raw, ChannelPolicy(keep=["C3", "O2"])).match.names == ["O2"]
    with pytest.raises(ChannelError, match="all 1 channels to keep are marked as bad"):
        open_recording(raw, ChannelPolicy(keep=["C3"]))
    raw.info["bads"] = LABELS
    with pytest.raises(ChannelError, match="all 3 EEG channels are marked as bad"):
        open_recording(raw)


def test_a_bad_channel_is_not_asked_for_its_name_unit_or_twin():
    raw = raw_of(counts(channels=4) * 0.1, labels=["T3", "T7", "loose", "ECG"])
    raw.info["bads"] = ["T3", "loose", "ECG"]
    recording = open_recording(raw)
    assert recording.match.names == ["T7"]
    assert [row.outcome for row in recording.match.rows] == ["bad", "matched", "bad", "not_eeg"]
    assert "2 channels are marked as bad and were left out: 'T3', 'loose'" in recording.faults[0].note
    named = ChannelPolicy(names={"loose": "Cz"}, bads=["loose"])
    raw.info["bads"] = ["T3"]
    assert open_recording(raw, named).match.names == ["T7"]


@pytest.mark.parametrize(
    ("factor", "words"), [(1e6, "taken as volts"), (1e3, "taken as millivolts"), (1e-6, "volts were")]
)
def test_wrong_units_are_said_and_not_mended(factor, words):
    x = np.random.default_rng(0).normal(0, 20, (2000, 3)) * factor
    recording = open_recording(raw_of(x))
    assert codes(recording) == ["amplitude"]
    assert words in recording.faults[0].note
    np.testing.assert_allclose(everything(recording), x, rtol=1e-5)


def test_drift_offset_nan_and_flat_are_no_wrong_unit():
    x = np.random.default_rng(0).normal(0, 20, (4000, 3)) + np.linspace(0, 50_000, 4000)[:, None] + 1e5
    x[:1000, 0] = np.nan
    x[:, 1] = 7.0
    recording = open_recording(raw_of(x))
    assert recording.faults == ()
    assert np.isnan(everything(recording)[:1000, 0]).all()


def test_a_unit_that_is_no_voltage_is_refused_unless_said():
    raw = raw_of(counts() * 0.1)
    raw.info["chs"][1]["unit"] = mne._fiff.constants.FIFF.FIFF_UNIT_NONE
    assert "'C3'" in refused("unit", raw)
    recording = open_recording(raw, unit="V")
    np.testing.assert_allclose(everything(recording), counts() * 0.1, rtol=1e-6, atol=1e-5)
    assert codes(recording) == ["unit"]
    with pytest.raises(ConfigError, match="volt"):
        open_recording(raw, unit="furlong")


def test_positions_are_used_only_where_asked_for():
    names = ["Fz", "Cz", "Oz", "T7", "T8", "P4", "C3"]
    raw = raw_of(np.random.default_rng(0).normal(0, 20, (1000, 7)), labels=[*names[:6], "E5"])
    for channel, name in zip(raw.info["chs"], names, strict=True):
        channel["loc"][:3] = 0.095 * np.array(POSITIONS[name])
    with pytest.raises(ChannelError, match="E5"):
        open_recording(raw)
    assert open_recording(raw, ChannelPolicy(unknown="nearest")).match.names == names


def test_other_objects_are_refused():
    with pytest.raises(InputError, match="ndarray"):
        open_recording(np.zeros(3))


# Tables


def muse(path, x, stamps=None, head=MUSE, end="\n", form="{:.6f}", extra=",0.0"):
    stamps = 1_542_733_533.231 + np.arange(len(x)) / 256 if stamps is None else stamps
    lines = [head] + [
        f"{t:.6f}," + ",".join(form.format(v) for v in row) + extra for t, row in zip(stamps, x, strict=True)
    ]
    path.write_text("\n".join(lines) + end, "utf-8")
    return path


def voltages(n=2560, channels=4):
    return np.random.default_rng(1).normal(0, 20, (n, channels))


def test_muse_drop_of_two_seconds_is_a_gap(tmp_path):
    x = voltages()
    stamps = np.arange(2560) / 256 + np.where(np.arange(2560) >= 1000, 2.0, 0.0)
    recording = open_recording(muse(tmp_path / "a.csv", x, stamps))
    assert [(s.start, s.stop) for s in recording.segments] == [(0, 1000), (1000, 2560)]
    assert recording.segments[1].onset == pytest.approx(1000 / 256 + 2, abs=1e-5)
    assert codes(recording) == ["lost"]
    np.testing.assert_allclose(everything(recording), x, atol=1e-5)


def test_one_lost_sample_shows_and_rounded_stamps_do_not():
    number = np.delete(np.arange(5000), 3000)
    stamps = np.round(number / 256, 3)  # milliseconds: a quarter of a sample
    segments, _ = timeline(stamps, 256.0, len(stamps))
    assert [(s.start, s.stop) for s in segments] == [(0, 3000), (3000, 4999)]
    assert segments[1].onset == pytest.approx(3001 / 256, abs=1e-3)
    segments, faults = timeline(np.round(np.arange(5000) / 256, 3), 256.0, 5000)
    assert (segments, faults) == ((Segment(0, 5000, 0.0),), ())


def test_packets_that_arrive_late_are_no_gap():
    """Twelve samples a packet, stamped when it arrives, one packet a second late; a second is lost at sample 6000."""
    number = np.delete(np.arange(12_000), np.arange(6000, 6256))
    rng = np.random.default_rng(0)
    stamps = (number // 12) * 12 / 256 + np.repeat(rng.uniform(0, 0.02, len(number) // 12 + 1), 12)[: len(number)]
    stamps = np.maximum.accumulate(stamps)
    segments, faults = timeline(stamps, 256.0, len(number))
    assert len(segments) == 2
    assert abs(segments[1].start - 6000) <= 12
    assert segments[1].onset - segments[1].start / 256 == pytest.approx(1.0, abs=0.1)
    assert [fault.code for fault in faults] == ["lost", "jitter"]


def test_counters():
    assert steps(np.array([126.0, 127, 128, 0, 1, 5]), 129).tolist() == [1, 1, 1, 1, 4]
    for wrong in ([0.0, 0.5], [1.0, np.nan], [4.0, 4.0]):
        with pytest.raises(RecordingError):
            steps(np.array(wrong), 129)
    segments, _ = timeline(None, 128.0, 6, steps(np.array([126.0, 127, 128, 0, 1, 5]), 129))
    assert segments == (Segment(0, 5, 0.0), Segment(5, 6, 8 / 128))


def test_time_that_cannot_be_true_is_refused(tmp_path):
    x, t = voltages(), np.arange(2560) / 256
    refused("rate", muse(tmp_path / "a.csv", x, t * 256 / 250))
    refused("rate", muse(tmp_path / "b.csv", x, np.zeros(2560)))
    back = t.copy()
    back[1000] -= 1
    refused("stamps", muse(tmp_path / "c.csv", x, back))
    back[1000] = np.nan
    refused("stamps", muse(tmp_path / "d.csv", x, back))


def test_tables_in_other_spellings(tmp_path):
    x = voltages(600)
    plain = everything(open_recording(muse(tmp_path / "a.csv", x)))
    text = (tmp_path / "a.csv").read_text()
    variants = {
        "bom.csv": "\ufeff" + text,
        "crlf.csv": text.replace("\n", "\r\n"),
        "semicolon.csv": text.replace(",", ";"),
        "comma.csv": text.replace(",", ";").replace(".", ","),
        "quoted.csv": text.replace("timestamps", '"timestamps"').replace("TP9", '"TP9"'),
        "tab.txt": text.replace(",", "\t"),
        "no end.csv": text[:-1],
        "blank end.csv": text + "\n\n",
    }
    for name, variant in variants.items():
        (tmp_path / name).write_bytes(variant.encode())
        recording = open_recording(tmp_path / name)
        np.testing.assert_array_equal(everything(recording), plain, err_msg=name)
        assert codes(recording) == (["decimal_comma"] if name == "comma.csv" else []), name
    with gzip.open(tmp_path / "z.csv.gz", "wb") as file:
        file.write(text.encode())
    np.testing.assert_array_equal(everything(open_recording(tmp_path / "z.csv.gz")), plain)


def test_missing_values_are_nan_and_a_cut_row_is_left_out(tmp_path):
    path = muse(tmp_path / "a.csv", voltages(600))
    lines = path.read_text().splitlines()
    fields = lines[11].split(",")
    lines[11] = ",".join([fields[0], "", "NaN", *fields[3:]])
    lines[-1] = lines[-1].rsplit(",", 3)[0]
    path.write_text("\n".join(lines))
    recording = open_recording(path)
    assert recording.samples == 599
    assert np.isnan(recording.read(10, 11)).tolist() == [[True, True, False, False]]
    assert np.isfinite(recording.read(11, 599)).all()
    assert codes(recording) == ["truncated"]


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("rate", lambda text: text.replace("AF7", "AF9", 1)),  # of nobody: numbers that do not tell their rate
        ("columns", lambda text: text.replace("Right AUX", "TP9", 1)),
        ("columns", lambda text: text.replace("TP9,", "", 1)),
        ("columns", lambda text: text.replace(".", ",")),
        ("columns", lambda text: text.replace("\n", "\n\n", 5)),
        ("number", lambda text: text[:5000] + "JANE" + text[5000:]),
        ("number", lambda text: text[:5000] + "1_0" + text[5003:]),
        ("empty", lambda text: text.splitlines()[0]),
        ("empty", lambda text: ""),
        ("text", lambda text: text[:2000] + "\0" + text[2000:]),
    ],
)
def test_tables_that_are_refused(tmp_path, code, change):
    path = muse(tmp_path / "a.csv", voltages(600))
    path.write_text(change(path.read_text()))
    assert "JANE" not in refused(code, path)


def test_a_table_in_another_encoding_is_refused(tmp_path):
    path = muse(tmp_path / "a.csv", voltages(10))
    path.write_bytes(path.read_text().encode("utf-16"))
    refused("text", path)
    path.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    refused("damaged", path)


def test_the_unit_of_a_table_can_be_said(tmp_path):
    x = voltages(600)
    recording = open_recording(muse(tmp_path / "a.csv", x / 1000, form="{:.9f}"), unit="mV")
    np.testing.assert_allclose(everything(recording), x, atol=1e-4)
    assert codes(recording) == ["unit"]


def test_emotiv_counter_shows_lost_packets(tmp_path):
    names = "AF3 AF4 F3 F4 F7 F8 FC5 FC6 O1 O2 P7 P8 T7 T8".split()
    x = voltages(600, 14) + 4200
    number = np.arange(600) + np.where(np.arange(600) >= 400, 10, 0)
    lines = [",".join([*names, "COUNTER"])]
    lines += [",".join(f"{v:.5f}" for v in row) + f",{k % 129}" for row, k in zip(x, number, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    recording = open_recording(tmp_path / "a.csv")
    assert recording.segments == (Segment(0, 400, 0.0), Segment(400, 600, 410 / 128))
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6)
    (tmp_path / "a.csv").write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",200" for line in lines[1:])]))
    refused("counter", tmp_path / "a.csv")


def openbci(path, x, board="OpenBCI_GUI$BoardCytonSerial", rate="250 Hz", number=None, person=""):
    number = np.arange(len(x)) if number is None else number
    names = [f"EXG Channel {i}" for i in range(x.shape[1])]
    lines = [
        "%OpenBCI Raw EXG Data",
        f"%Number of channels = {x.shape[1]}",
        f"%Sample Rate = {rate}",
        f"%Board = {board}",
    ]
    lines += [f"%{person}"] if person else []
    lines.append(", ".join(["Sample Index", *names, "Timestamp", "Marker Channel", "Timestamp (Formatted)"]))
    for k, row in zip(number, x, strict=True):
        values = ", ".join(f"{v:.6f}" for v in row)
        lines.append(f"{k % 256}, {values}, {1.7e9 + k / 250:.6f}, {float(k == 50)}, 2024-01-01 10:00:00.000")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_openbci_channels_must_be_named(tmp_path):
    x = voltages(600, 2)
    path = openbci(tmp_path / "a.txt", x, number=np.arange(600) + np.where(np.arange(600) >= 300, 3, 0))
    with pytest.raises(ChannelError, match="EXG Channel 0"):
        open_recording(path)
    names = {"EXG Channel 0": "Fp1", "EXG Channel 1": "T3"}
    recording = open_recording(path, ChannelPolicy(names=names))
    assert recording.match.names == ["Fp1", "T7"]
    assert recording.match.rows[1].label == "EXG Channel 0"
    assert recording.match.rows[1].note == "named Fp1 by the caller"
    assert recording.sfreq == 250
    assert recording.segments == (Segment(0, 300, 0.0), Segment(300, 600, 303 / 250))
    assert [(event.onset, event.name) for event in recording.events] == [(50 / 250, "1")]
    np.testing.assert_allclose(everything(recording), x, atol=1e-5)


def test_openbci_heads_that_are_refused(tmp_path):
    x = voltages(300, 2)
    refused("columns", openbci(tmp_path / "a.txt", x, rate="JANE"))
    refused("rate", openbci(tmp_path / "b.txt", x, rate="0 Hz"))
    old = "%OpenBCI Raw EEG Data\n%Sample Rate = 250.0 Hz\n%First Column = SampleIndex\n0, 1.5, 2.5, 15:31:23.878\n"
    (tmp_path / "c.txt").write_text(old)
    refused("columns", tmp_path / "c.txt")


# XDF, with a stand-in for the package


def xdf_streams(unit="microvolts", n=2560):
    x = voltages(n, 3)
    channels = [{"label": [name], "type": ["EEG"], "unit": [unit]} for name in LABELS]
    info = {
        "type": ["EEG"],
        "nominal_srate": ["256"],
        "desc": [{"channels": [{"channel": channels}]}],
        "name": ["JANE"],
    }
    marks = {"info": {"type": ["Markers"], "nominal_srate": ["0"]}, "time_stamps": [101.0], "time_series": [["go"]]}
    return x, [{"info": info, "time_stamps": 100 + np.arange(n) / 256, "time_series": x}, marks]


def test_xdf(tmp_path, monkeypatch):
    path = tmp_path / "a.xdf"
    path.write_bytes(b"XDF:rest")
    monkeypatch.setitem(sys.modules, "pyxdf", None)
    assert "pyxdf" in refused("missing_package", path)
    x, streams = xdf_streams()
    monkeypatch.setitem(sys.modules, "pyxdf", types.SimpleNamespace(load_xdf=lambda path, verbose: (streams, {})))
    recording = open_recording(path)
    np.testing.assert_allclose(everything(recording), x, rtol=1e-6)
    assert (recording.sfreq, recording.match.names, len(recording.segments)) == (256, LABELS, 1)
    assert [(event.onset, event.name) for event in recording.events] == [(1.0, "go")]
    streams[:] = xdf_streams(unit="")[1]
    refused("unit", path)
    streams[:] = streams[1:]
    refused("streams", path)


# All formats


def test_the_table_of_formats_and_the_readers_agree():
    assert {suffix for row in FORMATS for suffix in row.suffixes} == set(suffixes())
    assert {row.tested for row in FORMATS} == {"real", "written", "untested"}
    assert {row.memory for row in FORMATS} == {"blocks", "whole"}


@pytest.mark.parametrize("suffix", suffixes())
def test_what_is_no_recording_is_refused_without_its_name(tmp_path, suffix, capsys, caplog):
    """Nothing, garbage, garbage behind the right beginning, a folder, not there."""
    beginnings = {
        ".gdf": b"GDF 2.10", ".eeg": b"EEG-1100A V01.00", ".cnt": b"Version 3.0\0", ".xdf": b"XDF:", ".edf": b"0",
        ".vhdr": b"Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nSamplingInterval=CANARY\n",
        ".set": b"MATLAB 5.0 MAT-file", ".lay": b"[FileInfo]\nFile=CANARY.dat\n", ".txt": b"%OpenBCI\n",
    }  # fmt: skip
    garbage = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8).tobytes()
    path = tmp_path / ("CANARY" + suffix)
    for data in (b"", garbage, beginnings.get(suffix, b"") + b"CANARY\n" + garbage, b"CANARY " * 800):
        path.write_bytes(data)
        with pytest.raises((RecordingError, ChannelError)) as caught:
            everything(open_recording(path))
        assert "CANARY" not in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
        assert "\n" not in str(caught.value)
    path.unlink()
    for _ in range(2):
        with pytest.raises(RecordingError) as caught:
            open_recording(path)
        assert "CANARY" not in str(caught.value)
        path.mkdir(exist_ok=True)
    assert caplog.text == ""
    assert capsys.readouterr() == ("", "")


def test_without_mne_only_its_formats_are_refused(tmp_path, monkeypatch):
    path = eeg_files.brainvision(tmp_path / "a.vhdr", counts(), LABELS)
    monkeypatch.setitem(sys.modules, "mne", None)
    assert "mne" in refused("missing_package", path)
    assert open_recording(muse(tmp_path / "a.csv", voltages(600))).samples == 600


def test_a_suffix_of_nobody_is_refused(tmp_path):
    assert "CANARY" not in refused("suffix", tmp_path / "a.CANARY")


def test_canaries_appear_as_names_of_events_only(tmp_path, capsys, caplog):
    x = counts(1024)
    sources = [
        eeg_files.gdf(tmp_path / "CANARY1.gdf", x, LABELS, patient=b"CANARY CANARY"),
        eeg_files.brainvision(tmp_path / "CANARY.vhdr", x, LABELS, markers=[("Comment", "CANARY", 10)]),
        eeg_files.eeglab(tmp_path / "CANARY.set", x * 0.1, LABELS, events=[(10.0, "CANARY")], subject="CANARY"),
        eeg_files.persyst(tmp_path / "CANARY.lay", x, LABELS, name="CANARY", comments=[(1.0, "CANARY")]),
    ]
    raw = raw_of(x * 0.1)
    raw.info["subject_info"] = {"his_id": "CANARY", "last_name": "CANARY"}
    raw.info["description"] = raw.info["experimenter"] = "CANARY"
    raw.set_annotations(mne.Annotations([1.0], [0.0], ["CANARY"]))
    raw.save(tmp_path / "CANARY_raw.fif", verbose="error")
    notes = Notes([tal("+0") + tal("+0.1", "CANARY")])
    edf = File([Wave("Fp1", [1, 2, 3, 4]), notes], patient="CANARY", recording="CANARY", kind="EDF+C", records=1)
    (tmp_path / "CANARY.edf").write_bytes(bytes(edf))
    table = openbci(tmp_path / "CANARY.csv", voltages(300, 2), person="CANARY")
    named = ChannelPolicy(names={"EXG Channel 0": "Fp1", "EXG Channel 1": "C3"})
    recordings = [
        open_recording(source) for source in [*sources, raw, tmp_path / "CANARY_raw.fif", tmp_path / "CANARY.edf"]
    ]
    recordings.append(open_recording(table, named))
    for recording in recordings:
        everything(recording)
        without = told(recording).replace(repr(recording.events), "")
        assert "CANARY" not in without
        assert "2003" not in without
    assert sum("CANARY" in repr(recording.events) for recording in recordings) == 6
    assert caplog.text == ""
    assert capsys.readouterr() == ("", "")


def test_warnings_of_mne_become_faults_without_what_they_quote():
    from cerebro_eeg.data.reading.mne_warnings import quietly

    with quietly() as faults:
        mne.utils.warn("Omitted 3 annotation(s) that were outside data range.")
        mne.utils.warn("MarkerFile 'CANARY.vmrk' not found; no annotations.")
        mne.utils.warn("MarkerFile 'CANARY.vmrk' not found; no annotations.")
    assert [fault.code for fault in faults] == ["annotation", "mne"]
    assert "not found" in faults[1].note
    assert "CANARY" not in faults[1].note
    with pytest.raises(RecordingError) as caught, quietly():
        raise ValueError("CANARY")
    assert str(caught.value) == "MNE cannot read it: ValueError; is it whole, with all its files?"


def test_long_files_are_read_in_blocks(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(0, 20, (20_000, 3))
    raw_of(x).save(tmp_path / "a_raw.fif", verbose="error")
    recording = open_recording(Path(tmp_path / "a_raw.fif"))
    monkeypatch.setattr("cerebro_eeg.data.reading.mne_reader._BLOCK", 3 * 1000)
    asked = []
    raw = recording.read._raw
    get_data = raw.get_data
    monkeypatch.setattr(
        raw,
        "get_data",
        lambda picks, start, stop, **how: asked.append(stop - start) or get_data(picks, start, stop, **how),
    )
    np.testing.assert_allclose(recording.read(500, 19_500), x[500:19_500], rtol=1e-5, atol=1e-4)
    assert max(asked) == 1000
    assert not raw.preload
