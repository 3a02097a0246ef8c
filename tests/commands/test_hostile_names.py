r"""Names that attack who reads them: no control character reaches a terminal or a report, no formula a cell of a table.

Escape codes (``\x1b[2J`` clears the screen), line ends, turns of direction, formulas, HTML and mathematics come as
classes, targets, tasks, channel labels, events, file names and subjects.
"""

import csv
import io
import json
import shutil
import unicodedata
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from cerebro_eeg import cli
from cerebro_eeg.config import HeadConfig
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import to_text
from cerebro_eeg.errors import ConfigError, InputError, StoreError
from cerebro_eeg.report.page import escape
from cerebro_eeg.terminal import CsvWriter, cell, has_controls, one_line, visible
from predict_files import edf, make_model
from train_stores import make_store

CONTROLS = (
    "\x1b[2J\x1b]0;owned\x07",
    "a\ncerebro-eeg: all is well",
    "a\rb",
    "\u202egnorw",
    "\x9b31m",
    "a\u2028b",
    "\x7f",
)
SHOWN = (
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1+1",
    "-2-3",
    "<script>alert(1)</script>",
    "$\\frac{1}{$",
    "zero\u200bwidth",
)


def unseen(text: str) -> set[str]:
    """Characters that a reader does not see, less line ends."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


def formulas(text: str) -> list[str]:
    """Cells that a spreadsheet would compute."""
    cells = [one for row in csv.reader(io.StringIO(text)) for one in row]
    return [one for one in cells if one.startswith(("=", "@", "+", "-", "\t", "\r")) and not number(one)]


def number(text: str) -> bool:
    """Whether a cell is a number, or a mark alone."""
    try:
        float(text or "0")
    except ValueError:
        return text in ("-", "+", "@", "=")  # nothing to compute
    return True


@hypothesis.given(st.text(st.characters(), max_size=20))
@hypothesis.example("".join(CONTROLS))
def test_what_is_shown_has_nothing_unseen(text):
    assert unseen(visible(text)) == set()
    assert visible(text).count("\n") == text.count("\n")
    assert unseen(one_line(text)) == set()
    assert "\n" not in one_line(text)
    assert unseen(escape(text)) == set()
    assert not set(escape(text)) & set("<>\"'")
    assert visible(visible(text)) == visible(text)
    if text.isprintable():
        assert visible(text) == text


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.lists(st.text(max_size=8) | st.sampled_from(SHOWN + CONTROLS), min_size=1))
def test_a_cell_is_no_formula(texts):
    file = io.StringIO()
    CsvWriter(file).writerow(texts)
    assert formulas(file.getvalue()) == []
    assert unseen(file.getvalue()) == set()


def test_numbers_and_plain_names_stay_as_they_are():
    for value in ("-1", "+1", "-1.5e-3", "-", "rest", "a = b", "", -1, 0.5, None, "größer"):
        assert cell(value) == value
    assert [cell(value) for value in ("=1+1", "-x", "+a", "@x")] == ["'=1+1", "'-x", "'+a", "'@x"]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_class_with_a_control_character_is_refused(name, tmp_path):
    assert has_controls(name)
    with pytest.raises(InputError, match="control character") as caught:
        Task("classification", ("rest", name), 1.0, 1.0)
    assert unseen(str(caught.value)) == set()
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="control character"):
        HeadConfig(2, names=("rest", name))
    make_store(tmp_path, subjects=1, seconds=1)
    for change in ({"x": name}, {name: {}}):
        fields = json.loads((tmp_path / "store.json").read_text())
        del fields["sha256"]
        fields["settings"]["tasks"] |= change
        (tmp_path / "store.json").write_text(to_text(fields))
        with pytest.raises(StoreError, match="control character"):
            Store(tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store, a model and recordings whose names can be shown but attack a spreadsheet, a page or a picture."""
    folder = tmp_path_factory.mktemp("names")
    with pytest.MonkeyPatch.context() as patch:
        import train_stores

        task = {"kind": "classification", "names": [SHOWN[0], SHOWN[5]], "seconds": 1.0, "stride": 1.0}
        patch.setitem(train_stores.TASKS, SHOWN[4], task)
        labels = train_stores._labels

        def hostile(number, seconds, pretrain):
            found = labels(number, seconds, pretrain)
            found[SHOWN[4]] = [
                type(i)(i.start, i.stop, i.split, {"slow": SHOWN[0], "fast": SHOWN[5]}[i.label]) for i in found["alpha"]
            ]
            return found

        patch.setattr(train_stores, "_labels", hostile)
        make_store(folder / "store")
    make_model(folder / "model", names=SHOWN[:2])
    for number, name in enumerate((*SHOWN[:2], SHOWN[5], "a\x1b[31mb", "line\nbreak")):
        edf(folder / "eeg" / f"{name.replace('/', '')}.edf", seed=number, seconds=5)
    edf(folder / "odd.edf", labels=("Fp1", "\x1b[2J".replace("\x1b", "="), "$x^{$", "Cz"))
    return folder


@pytest.fixture
def run(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))

    def run(*args, allowed=(0,)):
        code = cli.main(list(args))
        out, err = capsys.readouterr()
        assert code in allowed, err
        assert unseen(out) | unseen(err) == set()
        assert not [line for line in (out + err).splitlines() if line.startswith("break")]
        return out + err

    return run


def test_no_verb_prints_them_raw(run, place):
    """Names travel through a store, a training, a score, a prediction, a report and every table."""
    assert SHOWN[0] in run("info", "store", allowed=(0, 5))
    run("info", "store", "--json", allowed=(0, 5))
    assert SHOWN[0] in run("info", "model")
    assert "$x^{$" in run("info", "odd.edf", "--unknown", "drop")
    run("info", "odd.edf", allowed=(3,))
    text = run("predict", "model", "eeg", "--out", "said", "--show-paths", "--annotations", "edf", "bids")
    assert "a\\x1b[31mb" in text
    run("embed", "model", "eeg", "--out", "eeg.npz", "--show-paths", "--device", "cpu")
    run("prepare", "folder", "eeg", "--out", "other", "--workers", "0", "--show-paths")
    training = ("--task", SHOWN[4], "--from", "none", "--preset", "tiny", "--steps", "1", "--batch-size", "4")
    run("finetune", "store", *training, "--out", "run", "--device", "cpu")
    assert SHOWN[5] in run("evaluate", "run", "store", "--split", "validation", "--device", "cpu", "--resamples", "100")
    run("finetune", "store", "--task", "\x1b[2J", "--from", "none", "--out", "x", allowed=(2, 3))
    run("info", "\x1b[2J\u202e", allowed=(2, 3))
    run("\x1b[2J", allowed=(2,))
    run("predict", "model", "eeg", "--out", "x", "--device", "\x1b[2J", allowed=(2, 3))
    tables = [path for path in place.rglob("*") if path.suffix in (".csv", ".tsv")]
    assert len(tables) >= 4
    for path in tables:
        found = path.read_text()
        assert formulas(found.replace("\t", ",") if path.suffix == ".tsv" else found) == [], path
        assert unseen(found) - {"\t"} == set(), path
    page = (place / "run" / "report.html").read_text()
    assert "<script" not in page
    assert unseen(page) == set()


def test_a_table_of_labels_with_hostile_classes(run, place):
    shutil.copytree(place / "eeg", place / "tabled", dirs_exist_ok=True)
    name = next(path.name for path in Path("tabled").iterdir() if path.name.startswith("@"))
    for label in (*CONTROLS[:4], SHOWN[0]):
        with open("table.csv", "w", newline="") as file:
            csv.writer(file).writerows([["file", "label"], [name, label]])
        more = ("--labels", "table.csv", "--workers", "0")
        run("prepare", "folder", "tabled", "--out", f"new-{label == SHOWN[0]}", *more, allowed=(0, 2, 3))
    assert not Path("new-False").exists()
    assert SHOWN[0] in run("info", "new-True")
