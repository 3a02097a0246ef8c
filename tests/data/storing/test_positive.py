"""The last of two classes is the positive one: users choose it, prepare prints it, and the corpora have it right."""

import pytest

from bids_files import tree
from cerebro_eeg import cli
from cerebro_eeg.commands.prepare import PrepareProgress
from cerebro_eeg.data.datasets.bids import bids
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.datasets.neonate import neonate
from cerebro_eeg.data.datasets.tuh import tuab, tuep, tusz
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Recipe, Task
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from folder_files import edf, write
from neonate_files import write_neonate
from tuh_files import write_tuab, write_tuep, write_tusz

CHOOSE = " (choose another with --positive)"


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def files(tmp_path):
    """Two recordings, and a function that labels them."""
    for number in range(2):
        edf(tmp_path / "eeg" / f"{number}.edf", seed=number)

    def label(*labels):
        rows = [f"{number}.edf,{text},{4 * k},{4 * k + 4}" for k, text in enumerate(labels) for number in range(2)]
        return write(tmp_path / "state.csv", "file,label,start,stop", *rows)

    return tmp_path / "eeg", label


def said(recipe, capsys):
    """What prepare says before it begins."""
    PrepareProgress(recipe, 0).before([], 0)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("labels", "positive", "names"),
    [
        (("sick", "well"), None, ("sick", "well")),
        (("sick", "well"), "sick", ("well", "sick")),
        (("sick", "well"), "well", ("sick", "well")),
        (("normal", "abnormal"), "abnormal", ("normal", "abnormal")),
        (("10", "9"), None, ("9", "10")),
        (("1", "0"), "0", ("1", "0")),  # asked for, so it is done with numbers, too
    ],
)
def test_the_named_class_comes_last(files, capsys, labels, positive, names):
    source, label = files
    recipe = folder(source, labels=label(*labels), positive=positive)
    assert recipe.tasks["state"].names == names
    lines = said(recipe, capsys)
    assert f"classes of state: {names[0]}, {names[1]}; positive: {names[1]}{CHOOSE}" in lines
    assert not any("real corpus" in line for line in lines)  # there is none


def test_classes_from_the_path_are_chosen_alike(tmp_path):
    for name in ("sick/a.edf", "well/b.edf"):
        edf(tmp_path / "eeg" / name)
    assert folder(tmp_path / "eeg", label="parent", positive="sick").tasks["label"].names == ("well", "sick")


@pytest.mark.parametrize(
    ("labels", "positive", "words"),
    [
        (("sick", "well"), "Sick", "positive='Sick' is no class (did you mean 'sick'?); the classes are sick, well"),
        (("a", "b", "c"), "a", "the number of classes of state is 3"),
        (("a",), "a", "the number of classes of state is 1"),
        (None, "a", "there are no classes"),
    ],
)
def test_what_cannot_be_positive_is_refused(files, labels, positive, words):
    source, label = files
    with pytest.raises(ConfigError) as caught:
        folder(source, labels=None if labels is None else label(*labels), positive=positive)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_or_fewer_classes_and_targets_have_no_positive(capsys):
    tasks = {
        "three": Task("classification", ("a", "b", "c"), 5.0, 5.0),
        "one": Task("classification", ("a",), 5.0, 5.0),
        "angles": Task("regression", ("x", "y"), 5.0, 5.0),
    }
    assert not any("positive" in line for line in said(Recipe("x", "", lambda: iter([]), tasks=tasks), capsys))


def test_the_store_follows_it(files, tmp_path, capsys):
    source, label = files
    command = ["prepare", "folder", str(source), "--labels", str(label("sick", "well")), "--out", str(tmp_path / "s")]
    command += ["--workers", "0"]
    assert cli.main([*command, "--positive", "sick"]) == 0
    assert f"classes of state: well, sick; positive: sick{CHOOSE}" in capsys.readouterr().err.splitlines()
    assert Store(tmp_path / "s").info.settings["tasks"]["state"]["names"] == ["well", "sick"]
    assert cli.main(command) == 0
    assert "tasks.state.names is ['well', 'sick'] in the store, ['sick', 'well'] was asked" in capsys.readouterr().err
    assert Store(tmp_path / "s").info.settings["tasks"]["state"]["names"] == ["sick", "well"]
    assert cli.main(["prepare", "tuab", str(source), "--out", str(tmp_path / "t"), "--positive", "normal"]) == 2
    assert "recipe 'tuab' has no option --positive" in capsys.readouterr().err


def test_bids_has_the_same_rule(tmp_path, capsys):
    top = tree(tmp_path / "ds")
    options = {"label": "group", "events": ("target", "standard")}
    recipe = bids(top, **options)
    assert {name: task.names for name, task in recipe.tasks.items()} == {
        "group": ("control", "patient"),
        "events": ("target", "standard"),
    }
    lines = said(recipe, capsys)
    assert f"classes of group: control, patient; positive: patient{CHOOSE}" in lines
    assert f"classes of events: target, standard; positive: standard{CHOOSE}" in lines
    assert not any("real corpus" in line for line in lines)
    chosen = bids(top, **options, positive="control").tasks
    assert chosen["group"] == Task("classification", ("patient", "control"), 5.0, 5.0)
    assert chosen["events"] == recipe.tasks["events"]
    assert bids(top, **options, positive="target").tasks["events"].names == ("standard", "target")


def write_newborn(folder):
    write_neonate(folder, {3: 6}, ({3: "000111"},) * 3)


@pytest.mark.parametrize(
    ("make", "write_tree", "task", "names"),
    [
        (tuab, write_tuab, "abnormal", ("normal", "abnormal")),
        (tusz, write_tusz, "seizure", ("background", "seizure")),
        (tuep, write_tuep, "epilepsy", ("no_epilepsy", "epilepsy")),
        (neonate, write_newborn, "seizure", ("background", "seizure")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_corpora_look_for_what_is_ill(tmp_path, capsys, make, write_tree, task, names):
    write_tree(tmp_path / "corpus")
    recipe = make(tmp_path / "corpus")
    assert recipe.tasks[task].names == names
    lines = said(recipe, capsys)
    assert lines[0] == f"{recipe.name} was never run on the real corpus, only on files made after its description"
    assert f"classes of {task}: {names[0]}, {names[1]}; positive: {names[1]}" in lines  # and nothing to choose
    prepare(recipe, tmp_path / "store")
    assert Store(tmp_path / "store").info.settings["tasks"][task]["names"] == list(names)
