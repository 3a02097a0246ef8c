"""``predict`` and ``embed`` with names and facts that the user brings: the same as a file that says them itself."""

import json

import numpy as np
import pytest

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.errors import ChannelError, ConfigError, RecordingError
from predict_files import edf, make_model, noise

NAMES = ("Fp1", "Cz", "O2")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    return tmp_path


def test_renamed_channels_give_what_plain_names_give(home):
    x = noise(21, 3, 250)
    plain, odd = edf(home / "a.edf", NAMES, data=x), edf(home / "b.edf", ("X1", "X2", "X3"), data=x)
    (home / "map.csv").write_text("X1,Fp1\nX2,Cz\nX3,O2\n")
    for ask, what in ((cerebro_eeg.embed, "features"), (cerebro_eeg.predict, "output")):
        with pytest.raises(ChannelError, match="'X1', 'X2', 'X3'"):
            ask(odd, home / "model")
        found = ask(odd, home / "model", rename="map.csv")
        np.testing.assert_array_equal(getattr(found, what), getattr(ask(plain, home / "model"), what))


def test_arrays_give_what_their_file_gives(home):
    x = np.round(noise(21, 3, 256) * 10) / 10
    plain = edf(home / "a.edf", NAMES, data=x, rate=256)
    from cerebro_eeg.data.reading.formats import open_recording

    exact = open_recording(plain)
    np.save(home / "a.npy", exact.read(0, exact.samples).T)
    (home / "names.txt").write_text("\n".join(NAMES))
    said = {"sfreq": 256.0, "channels_from": home / "names.txt", "unit": "uV"}
    for ask, what in ((cerebro_eeg.embed, "features"), (cerebro_eeg.predict, "output")):
        with pytest.raises(RecordingError, match="does not tell its sampling rate, the names of"):
            ask(home / "a.npy", home / "model")
        found = ask(home / "a.npy", home / "model", **said)
        np.testing.assert_array_equal(getattr(found, what), getattr(ask(plain, home / "model"), what))


@pytest.mark.parametrize("verb", ["embed", "predict"])
def test_the_verbs_take_them_and_report_names_that_no_file_has(home, verb, capsys):
    edf(home / "in" / "a.edf", ("X1", "Cz", "O2"))
    np.save(home / "in" / "b.npy", noise(12, 3, 250, seed=1))
    (home / "map.csv").write_text("X1,Fp1\nX-1,Fp2\n")
    (home / "names.txt").write_text("\n".join(NAMES))
    out = ["--out", "f.npz" if verb == "embed" else "said", "--device", "cpu"]
    given = ["--rename", "map.csv", "--sfreq", "250", "--channels-from", "names.txt", "--unit", "uV"]
    code = cli.main([verb, "model", "in", *out, *given, "--json"])
    text, err = capsys.readouterr()
    found = json.loads(text)
    assert (code, len(found["recordings"]) if verb == "predict" else found["recordings"]) == (0, 2)
    line = "1 name of the map is in no file: 'X-1' (did you mean X1?)"
    assert line in err
    assert line in found["notes"]
    code = cli.main(
        [verb, "model", "in", *out, "--rename", "map.csv", "--json"]
    )  # without a rate the array is no input
    text, err = capsys.readouterr()
    found = json.loads(text)
    assert (code, len(found["recordings"]) if verb == "predict" else found["recordings"]) == (0, 1)
    (home / "in" / "b.npy").unlink()
    assert cli.main([verb, "model", "in", *out, *given]) == 2
    assert "--sfreq was given, and there is no array of numbers" in capsys.readouterr().err


def test_wrong_facts_are_refused_before_the_work(home):
    file = edf(home / "a.edf")
    with pytest.raises(ConfigError, match="sfreq is 0"):
        cerebro_eeg.embed(file, home / "model", sfreq=0.0)
    for ask in (cerebro_eeg.embed, cerebro_eeg.predict):
        with pytest.raises(ConfigError, match="sfreq was given, and there is no array of numbers"):
            ask(file, home / "model", sfreq=256.0)


@pytest.mark.parametrize("way", ["nearest", "drop"])
def test_what_info_says_of_a_folder_and_a_model_is_what_embed_does(home, way, capsys):
    """The model knows Fp1, Cz, O2, C3 and the ears. Too far from a free one is F7; near to one each are Fpz and Oz."""
    files = {"a": NAMES, "b": ("Fp1", "F7"), "c": ("Fpz", "Oz"), "d": ("Blob", "Cz"), "e": ("ECG",)}
    for name, labels in files.items():
        edf(home / "in" / f"{name}.edf", labels, seed=ord(name))
    edf(home / "in" / "f.edf", NAMES, seconds=1)
    edf(home / "in" / "g.edf", NAMES, seconds=2)
    cli.main(["info", "in", "--model", "model", "--json"])
    rows = json.loads(capsys.readouterr().out)["recordings"]
    cli.main(["embed", "model", "in", "--out", "f.npz", "--device", "cpu", "--untrained", way, "--json"])
    failed = {row["recording"]: row["code"] for row in json.loads(capsys.readouterr().out)["not_used"]}
    foreseen = {
        row["recording"]: row["reason"]
        for row in rows
        if row["reason"] is not None and f"--untrained {way}" not in (row["options"], *row["other_options"])
    }
    assert failed == foreseen
    assert [row["reason"] for row in rows[5:]] == ["too_short", None]
    options = [row["options"] for row in rows]
    assert options == [None, "--untrained drop", "--untrained nearest", "--unknown drop", None, None, None]
    assert [row["channels_then"] for row in rows[1:3]] == [1, 2]
