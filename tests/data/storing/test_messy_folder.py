"""Untidy folders and failing disks: no recording is lost, stored twice or mistaken for another without a message."""

import errno
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cerebro_eeg import cli
from cerebro_eeg.data.datasets import make_recipe
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.storing import privacy
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import InputError, StoreError
from folder_files import edf, write

SECRET = "Jane"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(capsys, *args: object) -> tuple[int, str, str]:
    code = cli.main(["prepare", *map(str, args), "--workers", "0"])
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    assert os.getcwd() not in out + err
    return code, out, err


# Files


def test_a_blank_unit_is_skipped_until_it_is_said_and_the_store_follows(home, capsys):
    edf(home / "in" / "a.edf", unit="", seed=1)
    edf(home / "in" / "b.edf", seed=2)
    code, out, _ = command(capsys, "folder", "in", "--out", "without", "--json")
    assert (code, json.loads(out)["skipped"]) == (6, {"unit": 1})
    code, out, _ = command(capsys, "folder", "in", "--out", "with", "--unit", "uV", "--json")
    found = json.loads(out)
    assert (code, found["recordings"], found["faults"]["unit"]) == (0, 2, 1)
    found = json.loads(command(capsys, "folder", "in", "--out", "volts", "--unit", "V", "--json")[1])
    assert found["quality"]["scaled"] == {"count": 3, "recordings": 1}  # the blank one alone; b says what it is in
    whole = Store(home / "with").hash()
    code, out, err = command(capsys, "folder", "in", "--out", "with")
    assert code == 6
    assert "options.unit is 'uV' in the store, absent was asked for" in err
    assert "  changed   1 of 2 stored recordings keep their samples; 1 prepared again (unit 1)\n" in out
    assert f"  before    the hash was {whole}; runs of that store neither go on nor are scored with this one" in out
    code, out, _ = command(capsys, "folder", "in", "--out", "without", "--unit", "uV")
    assert (code, Store(home / "without").hash()) == (0, whole)
    assert "  changed   1 of 1 stored recording keep their samples\n" in out


def test_what_is_wrong_with_channels_is_said_at_the_end(home, capsys):
    edf(home / "in" / "a.edf", seed=1)
    code, out, _ = command(capsys, "folder", "in", "--out", "sound")
    assert (code, "quality" in out) == (0, False)
    edf(home / "in" / "b.edf", unit="V", seed=2)  # a thousand thousand times too large
    code, out, _ = command(capsys, "folder", "in", "--out", "odd")
    assert code == 0
    assert "quality   3 scaled channels in 1 recording; " in out
    found = json.loads(command(capsys, "folder", "in", "--out", "odd", "--json")[1])["quality"]
    assert found["scaled"] == {"count": 3, "recordings": 1}


def test_a_messy_folder_is_accounted_for_to_the_last_file(home, capsys):
    top = home / SECRET
    edf(top / "s1" / "with space.edf", seed=1)
    edf(top / "S1" / "\u00fcn\u00ef.EDF", seed=2)
    edf(top / "s1" / "deep" / "er" / "two channels.edf", labels=("C3", "C4"), seed=3)
    for name in (b"zero.edf", b"caf\xe9.edf"):
        Path(os.fsdecode(os.fsencode(top) + b"/s1/" + name)).write_bytes(b"")
    (top / "junk.edf").write_bytes(bytes(range(256)) * 20)
    (top / "line\nfeed.edf").write_text("x")
    (top / "gone.edf").symlink_to(top / "nowhere.edf")
    os.mkfifo(top / "pipe.edf")
    (top / "folder.edf").mkdir()
    (top / "around").symlink_to(top)
    for name in (".hidden.edf", "._s1.edf"):
        edf(top / name)
    for name in ("archive.edf.gz", "notes.txt", "old.edf.bak", "table.csv"):
        write(top / name, "a,b", "1,2")
    code, out, err = command(capsys, "folder", top, "--out", "store", "--map", "names.json", "--json")
    found = json.loads(out)
    assert (code, found["recordings"], found["montages"]) == (6, 3, {"2": 1, "3": 2})
    assert found["skipped"] == {"format": 4, "unreadable": 2}
    assert "4 files that are no EEG by their suffix or columns passed over, 1 of them packed" in err
    names = json.loads((home / "names.json").read_text())["recordings"]
    assert sorted(names.values()) == sorted(
        [
            *(
                "s1/with space.edf",
                "S1/\u00fcn\u00ef.EDF",
                "s1/deep/er/two channels.edf",
                "s1/zero.edf",
                "s1/caf\\xe9.edf",
            ),
            *("junk.edf", "line\nfeed.edf", "gone.edf", "pipe.edf"),
        ]
    )
    skipped = (home / "store" / "skipped.csv").read_text().splitlines()
    assert len(skipped) == 1 + 6
    assert {line.split(",")[0] for line in skipped[1:]} <= set(names)


@pytest.mark.filterwarnings("ignore:2 recordings have the content")
def test_copies_and_links_are_counted(home, capsys):
    edf(home / "eeg" / "a.edf", seed=1)
    edf(home / "eeg" / "b.edf", seed=2)
    shutil.copy(home / "eeg" / "a.edf", home / "eeg" / "a (1).edf")
    (home / "eeg" / "link.edf").symlink_to(home / "eeg" / "b.edf")
    code, out, _ = command(capsys, "folder", "eeg", "--out", "store")
    assert code == 0
    assert "copies    2 recordings with the samples of another: splits may share them" in out
    for name in ("a (1).edf", "link.edf"):
        (home / "eeg" / name).unlink()
    assert "copies" not in command(capsys, "folder", "eeg", "--out", "other")[1]


def test_a_source_that_vanishes_is_skipped_and_tried_again(home):
    path, other = edf(home / "eeg" / "a.edf", seed=1), edf(home / "eeg" / "b.edf", seed=2)
    recipe = folder(home / "eeg")
    kept = path.read_bytes()
    path.unlink()
    done = prepare(recipe, home / "store")
    assert (done.recordings, list(done.skipped.values())) == (1, ["unreadable"])
    path.write_bytes(kept)
    done = prepare(folder(home / "eeg"), home / "store")
    assert (done.recordings, done.skipped, done.copies) == (2, {}, 0)
    assert other.exists()


# Subjects


@pytest.mark.filterwarnings("always::UserWarning")
def test_subjects_that_differ_in_spelling_alone_are_counted_and_not_named(home, capsys):
    for number, name in enumerate(("Jane", "jane ", "JANE", "other")):
        edf(home / "eeg" / name / "a.edf", seed=number)
    code, _, err = command(capsys, "folder", "eeg", "--out", "store", "--subject", "parent")
    (line,) = (line for line in err.splitlines() if "warning" in line)
    assert code == 0
    assert "3 subjects are called like another but for case or blanks" in line
    assert len({record.subject for record in Store(home / "store").recordings}) == 4


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["s1", "s2", "s10"], 0),
        (["s1", "s1", "s1"], 0),
        (["s1", "S1", "s2"], 2),
        (["s1", " s1\t"], 2),
        (["a b", "A  B", "ab"], 2),
        (["caf\u00e9", "cafe\u0301"], 2),
        (["Stra\u00dfe", "STRASSE"], 2),
        ([], 0),
    ],
)
def test_names_that_are_alike(names, count):
    assert privacy.count_alike(names) == count


# Tables


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\na.edf,Rest\nb.edf,rest\n", "two labels differ in case or blanks alone"),
        ("file,label\na.edf,x\nb.edf,NaN\n", "the label of row 2 of the table of labels is NaN, which is no class"),
        ("file,label\na.edf,x\nb.edf,n/a\n", "is n/a, which is no class"),
        ("file,label\nA.EDF,x\n", "first row 1 (its case differs)"),
        ("file,label\na.edf,x\nb,y\n", "first row 2 (its suffix is missing)"),
        ("file,label\nc.edf,x\n", "first row 1 (its folders are missing)"),
        ("file,label\n/eeg/a.edf,x\n", "first row 1 (it begins at the root)"),
        ("file,label\nC:\\eeg\\a.edf,x\n", "first row 1 (it begins at the root)"),
        ("file,label\nzzz.edf,x\n", "first row 1; expected the path below"),
        ('file,label\n"a.edf,x\n', "a quote is not closed"),
    ],
)
def test_slips_of_the_pen_in_a_table_are_named(home, text, words):
    for name in ("a.edf", "b.edf", "in/c.edf"):
        edf(home / "eeg" / name)
    (home / "t.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        folder(home / "eeg", labels=home / "t.csv")
    assert words in str(caught.value)


def test_classes_and_splits_are_said_before_anything_is_done(home, capsys):
    for number, name in enumerate("abc"):
        edf(home / "eeg" / f"{name}.edf", seed=number)
    rows = ["file,subject,split,label", "a.edf,p,train,x", "b.edf,q,trian,x", "c.edf,r,,y"]
    for end in ("\n", "\r\n", "\r"):
        (home / "t.csv").write_bytes("\ufeff".encode() + end.join(rows).encode())
        _, _, err = command(capsys, "folder", "eeg", "--out", f"store{len(end)}{ord(end[0])}", "--labels", "t.csv")
        assert "task t: 2 classes (x 2, y 1); splits no split 1, train 1, trian 1" in err


def test_labels_in_milliseconds_show(home, capsys):
    for number, name in enumerate("abc"):
        edf(home / "eeg" / f"{name}.edf", seconds=12, seed=number)
    write(home / "t.csv", "file,label,start,stop", "a.edf,x,0,12000", "b.edf,y,1000,2000", "c.edf,x,0,13", "c.edf,x,,")
    code, out, _ = command(capsys, "folder", "eeg", "--out", "store", "--labels", "t.csv")
    assert code == 0
    assert "labels    of 2 recordings lie mostly in time that was not recorded; are they in seconds?" in out


# What the system refuses: one line that says what kind of thing it was, and no path


def refuse(*args: object, **_: object) -> None:
    raise OSError(errno.EACCES, "Permission denied", f"/home/{SECRET}")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("folder", "os.listdir"),
        ("bids", "pathlib.Path.iterdir"),
        ("tuab", "os.scandir"),
        ("neonate", "pathlib.Path.iterdir"),
        ("seed", "pathlib.Path.iterdir"),
        ("mobi", "pathlib.Path.iterdir"),
        ("openeeg", "pathlib.Path.iterdir"),
    ],
)
def test_a_folder_that_may_not_be_read(home, monkeypatch, capsys, name, call):
    write(home / "eeg" / "dataset_description.json", "{}")
    write(home / "eeg" / "index.csv", "record,file,subject")
    (home / "eeg" / "tasks").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(call, refuse)
        code, _, err = command(capsys, name, "eeg", "--out", "store")
    (line,) = err.splitlines()
    assert code == 3
    assert "source cannot be read: Permission denied" in line or "the folder, or one inside it, cannot be read" in line
    assert not (home / "store").exists()


def test_a_folder_that_goes_while_it_is_looked_through(home, monkeypatch, capsys):
    """Items are found one by one, after the recipe was made."""
    edf(home / "eeg" / "eeg1.edf")
    for expert in "ABC":
        write(home / "eeg" / f"annotations_2017_{expert}.csv", "1", "0", "1")
    recipe = make_recipe("neonate", home / "eeg", {})
    (home / "eeg" / "eeg1.edf").unlink()
    with pytest.raises(InputError, match="a file or folder of the source cannot be read: No such file or directory"):
        prepare(recipe, home / "store")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--out", "store", "--labels", "gone.csv"], "the table of labels cannot be read: No such file or directory"),
        (["--out", "store", "--labels", "eeg"], "the table of labels cannot be read: Is a directory"),
        (["--out", "eeg/a.edf/store"], "--out cannot be used: a file stands where a folder should be"),
        (["--out", "eeg/a.edf"], "the store could not be written: File exists"),
        (["--out", "store", "--map", "eeg/a.edf/map"], "--map cannot be used: a file stands where a folder should be"),
        (["--out", "store", "--key", "eeg/a.edf/key"], "--key cannot be used: a file stands where a folder should be"),
    ],
)
def test_what_cannot_be_read_or_written_is_said_by_kind(home, capsys, args, words):
    edf(home / "eeg" / "a.edf")
    code, out, err = command(capsys, "folder", "eeg", *args)
    (line,) = err.splitlines()
    assert (code in (3, 5), out) == (True, "")
    assert words in line


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(home, capsys):
    for number in range(4):
        edf(home / "eeg" / f"{number}.edf", seconds=60, seed=number)
    args = ["prepare", "folder", "eeg", "--out", "store", "--workers", "0"]
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY)); "
        "from cerebro_eeg import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", limited, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "")
    *_, last = done.stderr.splitlines()
    assert last.startswith("cerebro-eeg: error: the store could not be written: File too large; see to the disk")
    assert str(home) not in done.stderr
    kept = len(Store(home / "store").recordings)
    assert 0 < kept < 4
    code, out, _ = command(capsys, "folder", "eeg", "--out", "store")
    assert (code, f"{4 - kept} recordings done now, {kept} before" in out or kept == 3) == (0, True)
    again = prepare(folder(home / "eeg"), home / "whole")
    assert again.hash == Store(home / "store").hash()


def test_processes_that_cannot_be_started_are_one_line(home, monkeypatch):
    edf(home / "eeg" / "a.edf")

    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", full)
    with pytest.raises(StoreError, match="worker processes cannot be started: Resource temporarily unavailable"):
        prepare(folder(home / "eeg"), home / "store", workers=2)


def test_bids_subjects_in_capital_letters_are_not_lost_without_a_word(home):
    write(home / "bids" / "dataset_description.json", "{}")
    for name in ("sub-1", "Sub-2", "SUB-3"):
        edf(home / "bids" / name / "eeg" / f"{name}_task-x_eeg.edf")
    recipe = make_recipe("bids", home / "bids", {})
    assert "2 folders called sub- with capital letters left out: rename them" in recipe.about
    assert len(list(recipe.find())) == 1
