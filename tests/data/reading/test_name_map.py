"""The map of names (``--rename``) and the list of names (``--channels-from``)."""

import mne
import numpy as np
import pytest

from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.name_map import labels_of, read_channel_list, read_names, unmet, unmet_words
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.errors import ChannelError, InputError
from folder_files import edf

LABELS = ("X 1", "X2", "X3", "Cz")


def mapped(tmp_path, text):
    path = tmp_path / "map.csv"
    path.write_bytes(text.encode())
    return read_names(path)


@pytest.mark.parametrize("head", ["", "name,electrode\n", "name in the file,electrode name\n", "old,new\n", "\ufeff"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_map_with_and_without_a_header(tmp_path, head, separator):
    text = (head + "X 1,Fp1\nX2,c3-a2\n\nX3,\n").replace(",", separator)
    assert mapped(tmp_path, text) == {"X 1": "Fp1", "X2": "c3-a2", "X3": ""}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("X1,Fp1\nX2\n", r"line 2 .* has 1 value; expected 2"),
        ("X1,Fp1,JANE\n", r"line 1 .* has 3 values"),
        ("X1,Fp1\nX2,Fpp2\n", r"second column of line 2 .* is no electrode \(did you mean .*Fpp?2"),
        ("X1,JANE DOE\n", r"is no electrode; expected a name of the 10-05 system"),
        ("X1,Fp1\nX1,Fp2\n", "line 2 .* an earlier line has"),
        ("a,electrode\n,Fp1\n", "line 2 .* no name in its first column"),
        ("X1,Fp1\0\n", "no list of names"),
    ],
)
def test_slips_in_a_map_are_named_by_their_line(tmp_path, text, words):
    with pytest.raises(InputError, match=words) as caught:
        mapped(tmp_path, text)
    assert "JANE" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_map_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(InputError, match="the map of names cannot be read: No such file"):
        read_names(tmp_path / "gone.csv")
    (tmp_path / "a.csv").write_bytes(b"X1,\xff\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_names(tmp_path / "a.csv")


def test_a_list_of_names(tmp_path):
    path = tmp_path / "names.txt"
    for text in ("Fp1\r\nFp2\n\n Cz \n", "Fp1, Fp2,Cz"):
        path.write_text(text)
        assert read_channel_list(path) == ("Fp1", "Fp2", "Cz")
    path.write_text("\n")
    with pytest.raises(InputError, match="is empty"):
        read_channel_list(path)
    path.write_text("Fp1\n" + "x" * 90)
    with pytest.raises(InputError, match=r"line 2 .* more than 80 letters"):
        read_channel_list(path)


def test_names_are_used_and_reported(tmp_path):
    path = edf(tmp_path / "a.edf", (*LABELS, "Blob"), seed=1)
    plain = edf(tmp_path / "b.edf", ("Fp1", "C3-A2", "O2", "Cz", "Pz"), seed=1)
    names = {"X 1": "Fp1", "X2": "C3-A2", "X3": "EEG O2-REF", "Blob": ""}
    recording, same = open_recording(path, ChannelPolicy(names=names)), open_recording(plain)
    assert recording.match.names == ["Fp1", "C3", "O2", "Cz"]
    notes = {row.label: (row.outcome, row.note) for row in recording.match.rows}
    assert notes["X 1"] == ("matched", "named Fp1 by the caller")
    assert notes["Blob"] == ("not_eeg", "left out by the caller")
    np.testing.assert_array_equal(recording.read(0, 500), same.read(0, 500)[:, :4])


def test_a_known_name_can_be_replaced_or_left_out(tmp_path):
    path = edf(tmp_path / "a.edf", ("Fp1", "Cz", "O2"), seed=1)
    recording = open_recording(path, ChannelPolicy(names={"Cz": "Pz", "O2": ""}))
    assert recording.match.names == ["Fp1", "Pz"]


def test_two_channels_of_one_name_are_refused(tmp_path):
    path = edf(tmp_path / "a.edf", LABELS, seed=1)
    policy = ChannelPolicy(names={"X 1": "Cz", "X2": "Fp1", "X3": "Fp2"})
    with pytest.raises(ChannelError, match="Cz is the name of two channels after renaming: 'X 1', 'Cz'") as caught:
        open_recording(path, policy)
    assert caught.value.labels == (*LABELS, "EDF Annotations")
    with pytest.raises(ChannelError, match="O1 is the name of two channels after renaming: 'X 1', 'X2'"):
        open_recording(path, ChannelPolicy(names={"X 1": "O1", "X2": "O1", "X3": "O2"}))
    lenient = ChannelPolicy(names={"X 1": "Cz", "X2": "Fp1", "X3": "Fp2"}, duplicates="first")
    assert open_recording(path, lenient).match.names == ["Cz", "Fp1", "Fp2"]


def test_without_a_map_an_empty_label_is_still_not_understood():
    assert ChannelPolicy(unknown="drop", names={"a": "Fp1"}).match(["", "a"]).rows[0].outcome == "dropped"


def test_a_channel_that_mne_says_is_no_eeg_is_not_made_eeg_by_its_name():
    raw = mne.io.RawArray(
        np.ones((2, 300)) * 1e-6, mne.create_info(["X1", "Cz"], 128, ["misc", "eeg"]), verbose="error"
    )
    recording = open_recording(raw, ChannelPolicy(names={"X1": "Fp1"}))
    assert recording.match.names == ["Cz"]
    (fault,) = (fault for fault in recording.faults if fault.code == "kind")
    assert "'X1' (misc)" in fault.note


def test_names_that_no_file_has_are_found(tmp_path):
    one = edf(tmp_path / "a.edf", LABELS, seed=1)  # refused for its labels, which are known nevertheless
    (tmp_path / "b.edf").write_bytes(b"no recording")
    openers = [lambda policy, path=path: open_recording(path, policy) for path in (one, tmp_path / "b.edf")]
    names = {"X 1": "Fp1", "X-3": "Fp2", "Zz": "O1"}
    labels = labels_of(openers, ChannelPolicy(names=names))
    assert unmet(names, labels) == ["X-3", "Zz"]
    line = unmet_words(["X-3", "Zz"], labels)
    assert line == "2 names of the map are in no file: 'X-3' (did you mean X3?), 'Zz'"
