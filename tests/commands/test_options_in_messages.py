"""A message names an option as its reader gives it: ``unit='uV'`` in Python, ``--unit uV`` on the command line."""

import ast
import re
from pathlib import Path

import pytest

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.data.datasets import RECIPES
from cerebro_eeg.errors import ChannelError, ConfigError, RecordingError, offered, on_command_line, without_options
from predict_files import edf, make_model
from train_stores import make_store

SPEAKS_PYTHON = re.compile(r"\b[a-z_]+=['\"\[0-9]")
# Choices of Python alone; no verb gets far enough to name them.
PYTHON_ONLY = {
    "chs_info": "an object of MNE was given",
    "normalization": "a setting of the model, without a scale of the recording",
    "flagged": "an argument of find_windows",
    "duplicates": "asked for with offered()",
    "pick": "asked for with offered()",
    "task": "Cerebro(...) without outputs",
    "n_times": "windows of another length than Cerebro(...) was made for",
    "input_window_seconds": "two lengths were given to Cerebro(...)",
    "window": "an argument of from_pretrained",
}


def options() -> dict[str, list[str]]:
    """The options of every verb."""
    found = {}
    for verb, (place, _) in cli.VERBS.items():
        module, _, name = place.partition(":")
        found[verb] = cli._options(getattr(__import__(module, fromlist=[name]), name), verb)
    return found


def named_in_errors() -> set[str]:
    """Every name that stands before ``='`` in a text of an error."""
    found = set()
    for path in Path(cerebro_eeg.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            for text in ast.walk(node.exc):
                if isinstance(text, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "'x'" for part in text.values]
                    found |= set(re.findall(r"\b([a-z_]+)=['\"]", "".join(map(str, parts))))
                elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found |= set(re.findall(r"\b([a-z_]+)=['\"]", text.value))
    return found


def test_every_option_in_an_error_is_one_of_some_verb():
    names = named_in_errors()
    assert {"unit", "unknown", "untrained", "split", "reference"} <= names
    every = {option.partition("@")[0] for found in options().values() for option in found}
    assert names - every - set(PYTHON_ONLY) == set()


def test_the_same_message_in_both_worlds():
    error = ChannelError("3 are unknown; use unknown='drop' or too_many=\"nearest\", max_channels=70 or from_='a b'")
    python = "3 are unknown; use unknown='drop' or too_many=\"nearest\", max_channels=70 or from_='a b'"
    assert str(error) == python
    with on_command_line(["unknown", "too_many", "max_channels", "from_"]):
        flags = "3 are unknown; use --unknown drop or --too-many nearest, --max-channels 70 or --from 'a b'"
        assert str(error) == flags
        assert str(RecordingError("channels", python)) == flags
        assert str(ConfigError("max_channels is 0; expected 1")) == "--max-channels is 0; expected 1"
        assert offered("unknown")
        assert not offered("duplicates")
        with without_options(["unknown"]):
            assert not offered("unknown")
            assert "unknown='drop' or --too-many" in str(error)
    assert str(error) == python
    assert offered("duplicates")
    with without_options(["duplicates"]):
        assert offered("duplicates")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages")
    make_store(folder / "store")
    make_model(folder / "model")
    for name, labels in {
        "odd": ("Fp1", "Blob"),
        "twice": ("T3", "T7"),
        "untrained": ("Fp1", "F7"),
        "many": [f"{a}{b}" for a in ("AF", "F", "FC", "C", "CP", "P", "PO", "FT", "TP", "O") for b in range(1, 9)],
    }.items():
        known = [label for label in labels if label not in ("FT1",)]
        edf(folder / "eeg" / name / "a.edf", labels=known, seconds=3)
    import edfio

    from predict_files import noise

    signals = [
        edfio.EdfSignal(x, 250, label=c, physical_dimension="")
        for x, c in zip(noise(3, 2, 250), ("Fp1", "Cz"), strict=True)
    ]
    (folder / "eeg" / "blank").mkdir()
    edfio.Edf(signals).write(folder / "eeg" / "blank" / "a.edf")
    return folder


@pytest.mark.parametrize("kind", ["odd", "twice", "untrained", "many", "blank"])
def test_what_verbs_say_of_a_recording_that_they_refuse(kind, place, monkeypatch, capsys):
    """Each option that is advised is one of the verb, or of the verb that it describes."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    commands = {
        "info": ["info", f"eeg/{kind}/a.edf"],
        "predict": ["predict", "model", f"eeg/{kind}", "--out", f"said-{kind}", "--device", "cpu"],
        "embed": ["embed", "model", f"eeg/{kind}", "--out", "x.npz", "--device", "cpu"],
    }
    for verb, command in commands.items():
        cli.main(command)
        text = "".join(capsys.readouterr())
        assert not SPEAKS_PYTHON.search(text), text
        every = options()
        for before, flag in re.findall(r"(\w+) --([a-z][a-z-]*)", text):
            where = before if before in cli.VERBS else verb
            assert flag.replace("-", "_") in every[where], (verb, flag)
    for path in Path(f"said-{kind}").glob("decisions.*"):
        assert not SPEAKS_PYTHON.search(path.read_text())


def test_what_prepare_and_training_say_of_choices_that_do_not_fit(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))
    Path("bids").mkdir()
    Path("bids", "dataset_description.json").write_text("{}")
    wrong = {
        ("prepare", "folder", "eeg", "--out", "new", "--split", "planet"): "--split planet is not a way to split here",
        ("prepare", "folder", "eeg", "--out", "new", "--split", "trial", "--label", "parent"): "use --split subject",
        ("prepare", "folder", "eeg", "--out", "new", "--positive", "x"): "--positive x was given",
        ("prepare", "folder", "eeg", "--out", "new", "--label", "(?P<label>zz)"): "zz)' finds no label in any of 5",
        ("prepare", "folder", "eeg", "--out", "new", "--part", "x"): "--part is 'x'",
        ("evaluate", "model", "store", "--resamples", "3"): "--resamples is 3",
        ("pretrain", "store", "--out", "new", "--readers", "-1"): "--readers is -1",
        ("prepare", "eeg", "--out", "new store"): "say: cerebro-eeg prepare folder eeg --out 'new store'; see",
        ("prepare", "bids"): "say: cerebro-eeg prepare bids bids; see",
        ("prepare", "store"): "a store was given, which prepare has made",
        ("prepare", "nothing", "--out", "new"): "SOURCE",
    }
    for command, words in wrong.items():
        assert cli.main(list(command)) in (2, 3), command
        text = capsys.readouterr().err
        assert words in text, text
        assert not SPEAKS_PYTHON.search(text), text
    assert "folder" in RECIPES


def test_a_store_does_not_advise_what_no_verb_has(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    cli.main(["info", "store"])
    assert not SPEAKS_PYTHON.search(capsys.readouterr().out)


TABLES = {
    "recording,condition\na.edf,x\n": (
        "it has the columns recording, condition",
        "no file (did you mean 'recording'?",
        "label or target",
    ),
    "path,filename,label\n.,a.edf,x\n": ("it has the columns path, filename, label", "no file (did you mean"),
    "recording;label\na.edf;x\n": ("separated by semicolons",),
    "Jane Doe,sick\nJohn Roe,well\n": ("its first line has 2 values and no usual name of a column",),
    "\n": ("it is empty",),
    "file,lable\na.edf,x\n": ("has a column 'lable', which is almost called label",),
}


@pytest.mark.parametrize("text", TABLES)
def test_a_table_error_says_what_was_found_and_nobodys_name(text, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    Path("table.csv").write_text(text)
    assert cli.main(["prepare", "folder", "eeg", "--out", "new", "--labels", "table.csv"]) == 3
    line = capsys.readouterr().err
    for words in TABLES[text]:
        assert words in line
    assert "Jane" not in line
    assert line.count("\n") == 1
