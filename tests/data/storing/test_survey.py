"""``info FOLDER`` and ``prepare --dry-run``: what they say of each file is what ``prepare`` then does with it."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.commands.info_folder import FolderSurvey, survey_folder
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.reading.recording import ChannelPolicy, Recording
from cerebro_eeg.data.storing.job import PrepareChoices
from cerebro_eeg.data.storing.prepare import prepare, survey
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.survey import Looked
from folder_files import edf, write
from messy_files import NAMES, array, messy, waves

SECRET = "Jane"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A messy folder in a folder of its own, and what must be skipped of it."""
    top = tmp_path_factory.mktemp("messy")
    return top / "rec", messy(top / "rec")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(capsys, *args: object) -> tuple[int, str, str]:
    code = cli.main(list(map(str, args)))
    out, err = capsys.readouterr()
    return code, out, err


def skipped_of(store: Path) -> dict[str, tuple[str, str]]:
    """Reason in a word and in a sentence by id, as the store has them."""
    with (store / "skipped.csv").open(newline="") as file:
        return {row["id"]: (row["reason"], row["why"]) for row in csv.DictReader(file)}


CHOICES = [
    PrepareChoices(),
    PrepareChoices(unknown="drop", too_many="nearest"),
    PrepareChoices(unknown="nearest"),
    PrepareChoices(quality="refuse"),
    PrepareChoices(reference="linked_ears", unknown="nearest_or_drop"),
    PrepareChoices(mains=50, max_channels=4, names={"Blob": "Cz", "E3": "Fz", "T3": ""}),
]


@pytest.mark.parametrize(("choices", "unit"), list(zip(CHOICES, (None, "uV", None, "uV", "uV", "uV"), strict=True)))
def test_the_verdict_on_each_file_is_what_prepare_does(tree, home, choices, unit):
    top, _ = tree
    found = survey(folder(top, unit=unit), choices)
    done = prepare(folder(top, unit=unit), home / "store", choices)
    assert {one.id: (one.code, one.why) for one in found if not one.usable} == skipped_of(home / "store")
    stored = {record.id: record for record in Store(home / "store").recordings}
    assert {one.id for one in found if one.usable} == set(stored)
    assert len(found) == len(stored) + len(done.skipped)
    if choices.quality == "keep":
        for one in found:
            if one.usable:
                record = stored[one.id]
                assert (one.channels, one.values) == (len(record.channels), len(record.channels) * record.samples)
                assert one.seconds == pytest.approx(record.samples / record.sfreq, abs=0.01)


def test_the_messy_folder_is_what_it_was_made_to_be(tree, home):
    top, expected = tree
    assert {one.name: one.code for one in survey(folder(top))} == expected


def test_the_options_that_are_named_help(tree, home):
    """Each tried set of options, and all of them together, makes prepare store what the survey promises."""
    top, expected = tree
    found = {one.name: one for one in survey(folder(top))}
    ways = {name: [remedy.text() for remedy in one.remedies] for name, one in found.items() if not one.usable}
    assert ways == {
        "c blank unit.edf": ["--unit uV"],
        "d odd label.edf": ["--unknown drop", "--rename map.csv"],
        "e numbers alone.edf": ["--rename map.csv"],
        "f blank and odd.edf": ["--unit uV --unknown drop", "--rename map.csv"],
        "g twice.edf": ["--rename map.csv"],
        "i empty.edf": [],
        "j junk.edf": [],
        "k eighty.edf": ["--too-many nearest"],
        "l heart alone.edf": [],
        "m two rates.edf": [],
        "r_raw.fif": ["--unknown nearest"],
        "u slow.edf": [],
    }
    assert found["r_raw.fif"].remedies[0].channels == 32
    assert found["k eighty.edf"].remedies[0].channels == 64
    result = survey_folder(folder(top), PrepareChoices(), workers=0)
    assert result._together() == "--unit uV --unknown nearest_or_drop --too-many nearest"
    tried = {name for name, one in found.items() if one.remedies and one.remedies[0].tried}
    usable = {name for name, code in expected.items() if not code}
    choices = PrepareChoices(unknown="nearest_or_drop", too_many="nearest")
    done = prepare(folder(top, unit="uV"), home / "store", choices)
    assert done.recordings == len(usable | tried) == 14
    assert f"with {result._together()}: 14 of 21" in result.text()


def test_heads_alone_are_read(home, monkeypatch):
    """Samples of a sound EDF file are not touched: its data may be anything."""
    path = edf(home / "eeg" / "a.edf", NAMES, seconds=600, seed=1)
    read = []
    inner = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: read.append(args[1]) or inner(*args))
    (one,) = survey(folder(home / "eeg"))
    assert one.usable
    assert sum(read) < path.stat().st_size / 4


def test_the_command_says_it_without_a_name(tree, home, capsys):
    top, expected = tree
    code, out, err = command(capsys, "info", top, "--json", "--table", "files.csv")
    found = json.loads(out)
    assert code == 6
    assert (found["files"], found["usable"]) == (21, sum(not code for code in expected.values()))
    assert found["skipped"] == {"channels": 7, "format": 2, "mixed_rates": 1, "rate": 1, "unit": 1}
    assert sum(found["by_options"].values()) == 12
    assert found["bytes"] > 100_000
    assert not found["samples_read"]
    assert "samples" in found["not_checked"]
    for name in expected:
        assert name not in out + err + Path("files.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(Path("files.csv").read_text())))
    assert [row["reason"] for row in rows] == list(expected.values())
    assert [row["options"] for row in rows if row["reason"] == "unit"] == ["use --unit uV"]
    assert [row["recording"] for row in rows] == [row["recording"] for row in found["recordings"]]
    code, out, _ = command(capsys, "prepare", "folder", top, "--dry-run", "--workers", "0", "--show-paths")
    assert code == 6
    lines = out.splitlines()
    assert lines[0].split() == ["#", "path", "format", "channels", "Hz", "length", "verdict"]
    for number, name in enumerate(expected, 1):
        assert lines[number].split()[0] == str(number)
        assert name in lines[number]
    assert "9 of 21 recordings usable as they are; 2 more with --rename map.csv; 1 more with --too-many nearest" in out
    assert "(no window of 5 s)" in out
    assert "labels that are not understood: 'Blob'" in out
    assert not Path("store").exists()


def test_a_sound_folder_ends_with_zero(home, capsys):
    edf(home / "eeg" / SECRET / "a.edf", seed=1)
    code, out, err = command(capsys, "prepare", "folder", "eeg", "--dry-run", "--workers", "0")
    assert (code, err) == (0, "")
    assert "1 of 1 recording usable as they are" in out
    assert SECRET not in out
    assert command(capsys, "info", "eeg", "--show-paths")[1].count(SECRET) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["prepare", "folder", "eeg"], "--out is missing; name the folder of the store, or say --dry-run"),
        (["prepare", "folder", "eeg", "--out", "s", "--table", "t.csv"], "--table was given without --dry-run"),
        (["info", "eeg", "--table", "t.xlsx"], "--table names no CSV file"),
        (["info", "eeg/a.edf", "--table", "t.csv"], "--table was given with a recording; it is for a folder"),
        (["info", "eeg", "--plot", "x.png"], "--plot was given with a folder of recordings"),
        (["info", "eeg", "--sfreq", "256"], "--sfreq was given, and there is no array of numbers"),
        (["info", "eeg/a.edf", "--sfreq", "256"], "--sfreq was given, and there is no array of numbers"),
        (["info", "eeg", "--rename", "gone.csv"], "the map of names cannot be read: No such file"),
        (["prepare", "folder", "eeg", "--dry-run", "--rename", "bad.csv"], "line 1 of the map of names has 1 value"),
    ],
)
def test_options_that_do_not_fit(home, capsys, args, words):
    edf(home / "eeg" / "a.edf", seed=1)
    write(home / "bad.csv", "X1")
    code, out, err = command(capsys, *args)
    assert (code in (2, 3), out) == (True, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_part_and_a_bids_folder(home, capsys):
    write(home / "bids" / "dataset_description.json", "{}")
    for number in range(1, 5):
        name = f"sub-{number}"
        edf(home / "bids" / name / "eeg" / f"{name}_task-x_eeg.edf", unit="" if number == 3 else "uV", seed=number)
    code, out, _ = command(capsys, "info", "bids", "--json")
    found = json.loads(out)
    assert (code, found["dataset"], found["usable"], found["skipped"]) == (6, "bids", 3, {"unit": 1})
    assert found["by_options"] == {"": 1}  # bids takes no unit: channels.tsv has it
    parts = []
    for part in ("1/2", "2/2"):
        out = command(capsys, "prepare", "bids", "bids", "--dry-run", "--part", part, "--workers", "0", "--json")[1]
        parts += [row["recording"] for row in json.loads(out)["recordings"]]
    assert sorted(parts) == sorted(row["recording"] for row in found["recordings"])


def test_a_long_table_shows_what_is_to_be_looked_at(home):
    looked = [Looked(f"{n:024x}", f"{n}.edf", "EDF", channels=3, sfreq=128.0, seconds=9.0) for n in range(80)]
    looked[40] = replace(looked[40], notes=("truncated",))
    looked[70] = replace(looked[70], code="unit", why="its unit is blank", channels=None)
    found = FolderSurvey("folder", tuple(looked), (), (), None, False, True, 256.0)
    lines = found.text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["#", "41", "71"]
    assert lines[3] == "... and 78 recordings more (--table files.csv and --json have all)"
    assert len(list(csv.reader(io.StringIO(found.csv())))) == 81
    assert "79 of 80 recordings usable as they are; 1 that no option helps (unit 1)" in lines


# Processes


def die_or_open(path: Path, policy: ChannelPolicy) -> Recording:
    """Open a file; one that is called so ends the process, as a fault in a library does."""
    from cerebro_eeg.data.reading.formats import open_recording

    if path.name == "killer.edf":
        os.kill(os.getpid(), signal.SIGKILL)
    return open_recording(path, policy)


def find(paths):
    for path in paths:
        yield Item(path.name, partial(die_or_open, path), files=(path,), size=1)


def test_a_file_that_ends_its_process_is_a_crash_and_the_others_go_on(home):
    paths = [edf(home / "eeg" / f"{name}.edf", seed=n) for n, name in enumerate(("a", "killer", "z"))]
    told = []
    recipe = Recipe("test", "", partial(find, paths), one_corpus=False)
    found = survey(recipe, workers=1, progress=lambda *done: told.append(done))
    assert {one.name: one.code for one in found} == {"a.edf": "", "killer.edf": "crash", "z.edf": ""}
    assert told == [(1, 3), (2, 3), (3, 3)]


# Names and arrays, all the way into a store


def test_names_of_a_map_go_into_the_store_and_its_settings(home, capsys):
    edf(home / "eeg" / "a.edf", ("X1", "X2", "Blob", "Cz"), seed=1)
    edf(home / "plain" / "a.edf", ("Fp1", "C3", "Blob", "Cz"), seed=1)
    write(home / "map.csv", "name,electrode", "X1,Fp1", "X2,C3", "Blob,", "Y9,O1")
    code, out, err = command(
        capsys, "prepare", "folder", "eeg", "--out", "store", "--rename", "map.csv", "--workers", "0"
    )
    assert code == 0
    assert "1 name of the map is in no file: 'Y9'" in err
    (record,) = Store(home / "store").recordings
    assert record.channels == ("Fp1", "C3", "Cz")
    settings = Store(home / "store").info.settings
    assert settings["channels"]["names"] == {"X1": "Fp1", "X2": "C3", "Blob": "", "Y9": "O1"}
    other = prepare(folder(home / "plain"), home / "other", PrepareChoices(unknown="drop"))
    (same,) = Store(home / "other").recordings
    assert (same.sha256, same.channels) == (record.sha256, record.channels)
    assert other.recordings == 1
    code, _, err = command(capsys, "prepare", "folder", "eeg", "--out", "store", "--workers", "0")
    assert code == 2
    assert "channels.names" in err
    look = ("prepare", "folder", "eeg", "--dry-run", "--workers", "0", "--rename", "map.csv")
    code, out, _ = command(capsys, *look)
    assert code == 0
    assert "note: 1 name of the map is in no file: 'Y9'" in out
    code, out, _ = command(capsys, "info", "eeg/a.edf", "--rename", "map.csv")
    assert code == 0
    assert "1 name of the map is in no file: 'Y9'" in out
    assert "left out by the caller" in out


def test_arrays_are_passed_over_until_their_rate_is_said(home, capsys):
    x, look = waves(12), ("prepare", "folder", "eeg", "--dry-run", "--workers", "0", "--json")
    for name, given in (("a.npy", x), ("b.npy", x.T), ("c.mat", x.T.astype(np.float32))):
        array(home / "eeg" / name, given)
    array(home / "eeg" / "labels.npy", np.arange(9))
    np.savetxt(home / "eeg" / "d.csv", x, delimiter=",", header=",".join(NAMES), comments="", fmt="%.17g")
    write(home / "eeg" / "people.csv", "file,age", "a.npy,30")
    edf(home / "eeg" / "e.edf", NAMES, seed=1)
    code, out, err = command(capsys, "prepare", "folder", "eeg", "--out", "s", "--workers", "0", "--json")
    assert (code, json.loads(out)["recordings"]) == (0, 1)
    assert "4 arrays of numbers are passed over, since nothing says the rate: --sfreq makes recordings of them" in err
    code, out, _ = command(capsys, *look)
    assert (code, json.loads(out)["arrays_without_rate"], json.loads(out)["usable"]) == (0, 4, 1)
    write(home / "names.txt", *NAMES)
    args = ("--sfreq", "128", "--channels-from", "names.txt")
    found = json.loads(command(capsys, *look, "--sfreq", "128")[1])
    assert found["skipped"] == {"names": 3, "unit": 1}
    assert found["by_options"] == {"--channels-from names.txt --unit uV": 3, "--unit uV": 1}
    found = json.loads(command(capsys, *look, *args)[1])
    assert found["skipped"] == {"unit": 4}
    code, out, err = command(
        capsys, "prepare", "folder", "eeg", "--out", "t", *args, "--unit", "uV", "--workers", "0", "--json"
    )
    assert (code, json.loads(out)["recordings"]) == (0, 5)
    sums = {record.sha256 for record in Store(home / "t").recordings}
    assert len(sums) == 2  # all four arrays hold the same numbers
    options = Store(home / "t").info.settings["options"]
    assert options == {"unit": "uV", "sfreq": "128", "channels_from": ",".join(NAMES)}
    code, _, err = command(capsys, "prepare", "folder", "eeg", "--out", "t", *args, "--workers", "0")
    assert code == 2
    assert "options.unit" in err
    for path in (home / "eeg").glob("*.edf"):
        path.unlink()
    code, _, err = command(capsys, "prepare", "folder", "eeg", "--out", "u")
    assert code == 3
    assert "the 4 arrays of numbers there do not tell the rate; say the real one, such as --sfreq 256" in err


def test_a_store_notices_that_the_file_beside_an_array_changed(home):
    array(home / "eeg" / "a.npy", waves(12))
    beside = home / "eeg" / "a.json"
    beside.write_text(json.dumps({"sfreq": 128, "unit": "uV", "channels": NAMES}))
    assert prepare(folder(home / "eeg"), home / "store").recordings == 1
    beside.write_text(json.dumps({"sfreq": 128, "unit": "mV", "channels": NAMES}))
    with pytest.raises(Exception, match="another source in the place of the one that was stored"):
        prepare(folder(home / "eeg"), home / "store")


def test_a_script_without_a_guard_looks_in_one_process(tmp_path):
    """Worker processes run the script again. A look changes nothing, so it needs no guard in the user's script."""
    script = tmp_path / "look.py"
    script.write_text(
        "import cerebro_eeg\n"
        "cerebro_eeg.simulate('eeg', subjects=1, minutes=0.2, tasks='eyes', montages='10-20')\n"
        "print(repr(cerebro_eeg.info('eeg')))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<FolderSurvey: 1 of 1 recording usable>\n"
    assert "Traceback" not in done.stderr
