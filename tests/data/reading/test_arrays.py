"""Arrays as recordings: the same samples whatever the file and its axes, and one line where something is not said."""

import json
import re

import numpy as np
import pytest
from scipy.io import savemat

from cerebro_eeg.data.filtering.filters import finite_runs
from cerebro_eeg.data.reading import arrays
from cerebro_eeg.data.reading.arrays import ArrayFacts
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy, Segment
from cerebro_eeg.errors import ChannelError, ConfigError, InputError, RecordingError

NAMES = ("Fp1", "Fp2", "C3", "C4", "O1", "O2")
FACTS = ArrayFacts(128.0, NAMES)


def waves(count=700, channels=6, seed=0):
    """(time, channel) microvolts."""
    return np.random.default_rng(seed).normal(0, 20, (count, channels))


def write(path, x):
    if path.suffix == ".mat":
        savemat(path, {"data": x}, appendmat=False)
    elif path.suffix == ".csv":
        np.savetxt(path, x, delimiter=",", fmt="%.17g")
    else:
        np.save(path, x)
    return path


def everything(recording):
    return recording.read(0, recording.samples)


def refused(code, path, unit="uV", facts=FACTS):
    with pytest.raises(RecordingError) as caught:
        everything(open_recording(path, unit=unit, arrays=facts))
    assert caught.value.code == code, str(caught.value)
    assert str(path.parent) not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".npy", ".mat", ".csv"])
@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("kind", ["float64", "float32", "int16", ">f8", "uint8", "fortran"])
def test_the_same_samples_whatever_the_file(tmp_path, suffix, channels_first, kind):
    x = np.round(waves() + (100 if kind == "uint8" else 0))
    x = np.clip(x, 0, 255) if kind == "uint8" else x
    given = x.T if channels_first else x
    given = np.asfortranarray(given) if kind == "fortran" else given.astype(kind)
    recording = open_recording(write(tmp_path / f"a{suffix}", given), unit="mV", arrays=FACTS)
    np.testing.assert_array_equal(everything(recording), (x * 1000).astype(np.float32))
    np.testing.assert_array_equal(recording.read(13, 200), (x[13:200] * 1000).astype(np.float32))
    assert (recording.sfreq, recording.samples, recording.match.names) == (128, 700, list(NAMES))
    shape = "6 x 700, channels x times" if channels_first else "700 x 6, times x channels"
    assert recording.read.layout == shape


def test_blocks_join_without_a_seam(tmp_path, monkeypatch):
    x = waves(5000)
    monkeypatch.setattr(arrays, "_BLOCK", 1000)
    for name, given in (("a", x), ("b", x.T), ("c", np.asfortranarray(x))):
        recording = open_recording(write(tmp_path / f"{name}.npy", given), unit="uV", arrays=FACTS)
        np.testing.assert_array_equal(everything(recording), x.astype(np.float32))
    with pytest.raises(InputError, match="samples 0 to 5001 were asked for"):
        recording.read(0, 5001)


def test_only_a_part_of_a_large_file_is_read(tmp_path):
    """A file with holes: 40 GB of numbers that no machine here could hold."""
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        head = {"descr": "<f8", "fortran_order": False, "shape": (6, 800_000_000)}
        np.lib.format.write_array_header_1_0(file, head)
        file.truncate(file.tell() + 6 * 800_000_000 * 8)
    recording = open_recording(path, unit="uV", arrays=FACTS)
    assert recording.samples == 800_000_000
    assert recording.read(799_999_000, 799_999_100).shape == (100, 6)


def test_a_missing_value_is_a_gap(tmp_path):
    x = waves()
    x[300:310, 2] = np.nan
    x[500, 0] = np.inf
    for suffix in (".npy", ".mat", ".csv"):
        recording = open_recording(write(tmp_path / f"a{suffix}", x), unit="uV", arrays=FACTS)
        runs = [(run.start, run.stop) for run in finite_runs(recording)]
        assert runs == [(0, 300), (310, 500), (501, 700)], suffix


def test_what_is_not_said_is_named_in_one_line(tmp_path):
    path = write(tmp_path / "a.npy", waves())
    text = refused("rate", path, None, ArrayFacts())
    assert "its sampling rate, the names of its channels and its unit" in text
    assert "sfreq=256, channels_from='names.txt' and unit='uV'" in text
    assert "names" not in refused("rate", path, None, ArrayFacts(None, NAMES)).partition(";")[0]
    assert "does not tell the names of its channels; say channels_from" in refused("names", path, "uV", ArrayFacts(128))
    assert "does not tell its unit; say unit='uV'" in refused("unit", path, None)
    with pytest.raises(ConfigError, match="sfreq is -3; expected samples per second"):
        ArrayFacts(-3.0)
    assert "20000 Hz" in refused("rate", path, facts=ArrayFacts(1e6, NAMES))


def test_axes_that_fit_twice_or_never_are_refused(tmp_path):
    assert "which one is time" in refused("array", write(tmp_path / "a.npy", waves(6)))
    assert "6 names for an array of 700 x 5 values" in refused("names", write(tmp_path / "b.npy", waves(700, 5)))
    assert "3 axes" in refused("array", write(tmp_path / "c.npy", np.zeros((4, 6, 100))))
    assert "0 axes" in refused("array", write(tmp_path / "d.npy", np.array(3.0)))
    refused("empty", write(tmp_path / "e.npy", np.zeros((6, 0))))
    one = open_recording(write(tmp_path / "f.npy", waves()[:, 0]), unit="uV", arrays=ArrayFacts(128, ("Cz",)))
    np.testing.assert_array_equal(everything(one)[:, 0], waves()[:, 0].astype(np.float32))


@pytest.mark.parametrize("kind", ["complex64", "bool", "U3", "S2", "datetime64[s]"])
def test_only_numbers_are_read(tmp_path, kind):
    refused("array", write(tmp_path / "a.npy", np.zeros((6, 700), kind)))


def test_a_pickle_is_never_opened(tmp_path):
    """The file would run code if it was unpickled."""

    class Bomb:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'gone off')!r}, 'w')",)

    objects = np.empty((6, 700), object)
    objects[0, 0] = Bomb()
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    assert "objects (a pickle)" in refused("array", tmp_path / "a.npy")
    objects.dump(tmp_path / "b.npy")
    refused("format", tmp_path / "b.npy")
    assert not (tmp_path / "gone off").exists()


def test_damage_is_refused(tmp_path):
    path = write(tmp_path / "a.npy", waves())
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert "the array is cut" in refused("damaged", path)
    path.write_bytes(whole.replace(b"(700, 6)", b"(-70, 6)"))
    refused("damaged", path)
    path.write_bytes(whole.replace(b"(700, 6)", b"(9**9,6)"))
    refused("format", path)
    path.write_bytes(b"PK\x03\x04" + whole)
    refused("format", path)
    path.write_bytes(b"")
    refused("empty", path)
    rng = np.random.default_rng(0)
    for _ in range(300):  # whatever is changed: numbers, or a refusal
        data = bytearray(whole)
        for place in rng.integers(0, 128, 2):
            data[place] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            everything(open_recording(path, unit="uV", arrays=FACTS))
        except RecordingError:
            continue


def test_a_file_that_becomes_shorter_is_an_error_and_no_crash(tmp_path):
    path = write(tmp_path / "a.npy", waves())
    recording = open_recording(path, unit="uV", arrays=FACTS)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RecordingError) as caught:
        everything(recording)
    assert caught.value.code == "changed"


# What a file says itself


def test_the_file_beside_it_holds(tmp_path):
    path = write(tmp_path / "a.npy", waves())
    beside = tmp_path / "a.json"
    beside.write_text(json.dumps({"sfreq": 200, "unit": "mV", "channels": list(NAMES[::-1]), "else": 1}))
    recording = open_recording(path, unit="uV", arrays=FACTS)
    assert (recording.sfreq, recording.match.names) == (200, list(NAMES[::-1]))
    np.testing.assert_allclose(everything(recording), waves() * 1000, rtol=1e-6)
    before = arrays.told(path)
    beside.write_text(json.dumps({"SamplingFrequency": 100}))
    recording = open_recording(path, unit="uV", arrays=ArrayFacts(None, NAMES))
    assert recording.sfreq == 100
    assert arrays.told(path) != before
    for wrong in ("{", '{"sfreq": "fast"}', '{"sfreq": true}', '{"unit": "furlong"}', '{"channels": "Fp1"}'):
        beside.write_text(wrong)
        refused("sidecar", path)
    beside.write_text("[1]")
    assert open_recording(path, unit="uV", arrays=FACTS).sfreq == 128


@pytest.mark.parametrize("rate", ["fs", "srate", "SamplingRate", "sampling_frequency"])
def test_variables_of_a_matlab_file(tmp_path, rate):
    x = waves()
    labels = np.array(NAMES, object)
    savemat(tmp_path / "a.mat", {"eeg": x.T, rate: 200, "labels": labels, "note": "JANE", "trigger": np.zeros((1, 3))})
    recording = open_recording(tmp_path / "a.mat", unit="uV")
    assert (recording.sfreq, recording.match.names) == (200, list(NAMES))
    np.testing.assert_array_equal(everything(recording), x.astype(np.float32))


def test_a_matlab_file_with_two_matrices_is_refused(tmp_path):
    savemat(tmp_path / "a.mat", {"one": waves(), "two": waves()})
    assert "has 2 matrices that may be the recording" in refused("array", tmp_path / "a.mat")
    savemat(tmp_path / "b.mat", {"text": "JANE"})
    assert "no matrix" in refused("array", tmp_path / "b.mat")
    savemat(tmp_path / "c.mat", {"data": waves() + 1j})
    assert "complex" in refused("array", tmp_path / "c.mat")
    whole = (write(tmp_path / "d.mat", waves())).read_bytes()
    (tmp_path / "d.mat").write_bytes(whole[:3000])
    refused("damaged", tmp_path / "d.mat")


# Tables


def test_a_table_with_a_line_of_names(tmp_path):
    x = waves()
    path = tmp_path / "a.csv"
    for head, separator in (("Fp1,Fp2,C3,C4,O1,O2", ","), ("# EEG Fp1-REF;Fp2;C3;C4;O1;O2", ";")):
        np.savetxt(path, x, delimiter=separator, header=head, comments="", fmt="%.9g")
        recording = open_recording(path, unit="uV", arrays=ArrayFacts(128))
        assert recording.match.names == list(NAMES)
        np.testing.assert_allclose(everything(recording), x, rtol=1e-6)
    path.write_text(path.read_text().replace(".", ","))  # decimal commas
    np.testing.assert_allclose(everything(open_recording(path, unit="uV", arrays=ArrayFacts(128))), x, rtol=1e-6)


def test_columns_that_are_no_channels(tmp_path):
    """An index as pandas writes it and an electrocardiogram are left out; an unknown name is refused until renamed."""
    x = waves(700, 3)
    rows = [",Fp1,ECG,Blob"] + [f"{k}," + ",".join(f"{v:.6f}" for v in row) for k, row in enumerate(x)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(ChannelError, match="'Blob'"):
        open_recording(path, unit="uV", arrays=ArrayFacts(128))
    recording = open_recording(path, ChannelPolicy(names={"Blob": "Cz"}), unit="uV", arrays=ArrayFacts(128))
    assert recording.match.names == ["Fp1", "Cz"]
    np.testing.assert_allclose(everything(recording), x[:, [0, 2]], atol=1e-5)


def timed(path, stamps, x):
    rows = ["time,Fp1,Cz"] + [f"{t!r},{a!r},{b!r}" for t, (a, b) in zip(stamps.tolist(), x.tolist(), strict=True)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("factor", [1.0, 1e3, 1e6])
def test_a_column_of_times_shows_gaps_and_checks_the_rate(tmp_path, factor):
    x = waves(600, 2)
    stamps = np.arange(600) / 128
    stamps[300:] += 0.5
    path = timed(tmp_path / "a.csv", stamps * factor, x)
    recording = open_recording(path, unit="uV", arrays=ArrayFacts(128))
    assert recording.match.names == ["Fp1", "Cz"]
    assert [(s.start, s.stop) for s in recording.segments] == [(0, 300), (300, 600)]
    assert recording.segments[1].onset == pytest.approx(300 / 128 + 0.5, abs=1e-6)
    assert "128 Hz if it is in seconds" in refused("rate", timed(path, np.arange(600) / 128, x), facts=ArrayFacts(250))
    refused("stamps", timed(path, np.zeros(600), x), facts=ArrayFacts(128))


def test_a_table_of_another_kind_is_no_recording(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("file,label\na.edf,1\n")
    refused("columns", path)
    path.write_text("age,score\n1,2\n")
    refused("columns", path, facts=ArrayFacts())
    path.write_text("Fp1,Cz\n1,2\n3\n")
    assert re.search("row 2 has 1 columns", refused("columns", path, facts=ArrayFacts(128)))
    path.write_text("Fp1,Cz\n1,2\n3,JANE\n")
    assert "JANE" not in refused("number", path, facts=ArrayFacts(128))


def test_a_headset_is_still_known(tmp_path):
    path = tmp_path / "a.csv"
    rows = ["timestamps,TP9,AF7,AF8,TP10"] + [f"{1.6e9 + k / 256:.6f},1,2,3,{k % 7}" for k in range(600)]
    path.write_text("\n".join(rows) + "\n")
    recording = open_recording(path, arrays=ArrayFacts(100))
    assert (recording.sfreq, recording.match.names) == (256, ["TP9", "AF7", "AF8", "TP10"])
    assert recording.segments == (Segment(0, 600, 0.0),)
    assert not arrays.is_plain(path)
