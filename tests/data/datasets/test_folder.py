"""The recipe ``folder``: trees with known answers, every file once, tables right or refused in one line, hashed ids."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets.column_names import meanings
from cerebro_eeg.data.datasets.file_tree import find_sources, plain_name
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.datasets.folder_table import split_of
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import WHOLE, Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from eeg_files import brainvision, eeglab
from folder_files import edf, write

NAMES = ("s1/rest/a.edf", "s1/task/a.edf", "s2/rest/b.edf", "s3/rest/c.edf")


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    for seed, name in enumerate(NAMES):
        edf(top / name, seed=seed)
    return top


def labels_of(recipe):
    return {item.name: dict(item.labels) for item in recipe.find()}


def refused(error, tree, *lines, **options):
    """The message with which a table with these lines is refused: one line, and no word of what is private."""
    with pytest.raises(error) as caught:
        folder(tree, labels=write(tree.parent / "sleep.csv", *lines) if lines else None, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "edf" not in message.replace(".edf, ", "")
    assert str(tree) not in message
    return message


# What a recording is


def test_every_file_once_in_the_order_of_names(tree):
    items = list(folder(tree).find())
    assert [item.name for item in items] == list(NAMES)
    assert [item.size for item in items] == [(tree / name).stat().st_size for name in NAMES]
    assert all(item.subject is None and item.labels == {} and item.mains is None for item in items)
    assert not folder(tree).own_ids
    assert pickle.loads(pickle.dumps(items[0])).open(ChannelPolicy()).samples == 12 * 128


def test_recordings_of_several_files_count_once(tmp_path):
    counts = np.arange(500)[:, None] % 90
    brainvision(tmp_path / "one.vhdr", counts, ["Cz"])
    eeglab(tmp_path / "two.SET", counts.astype(float), ["Cz"], apart=True)
    write(tmp_path / "readme.txt", "not a recording")
    write(tmp_path / "ages.csv", "who,age", "x,3")
    write(tmp_path / "notes.pdf", "x")
    write(tmp_path / ".hidden" / "x.edf", "x")
    write(tmp_path / "._one.edf", "x")
    write(tmp_path / "muse" / "m.csv", "timestamps,TP9,AF7,AF8,TP10,Right AUX", "0,1,2,3,4,5")
    write(tmp_path / "egi.mff" / "signal1.bin", "12345")
    write(tmp_path / "nihon" / "n.EEG", "EEG-1100A")
    os.symlink(tmp_path / "nowhere.edf", tmp_path / "lost.edf")  # what was not fetched is skipped later, not forgotten
    sources = find_sources(tmp_path)
    assert [source.name for source in sources] == [
        "egi.mff", "lost.edf", "muse/m.csv", "nihon/n.EEG", "one.vhdr", "two.SET",
    ]  # fmt: skip
    sizes = {source.name: source.size for source in sources}
    assert sizes["one.vhdr"] == sum(path.stat().st_size for path in tmp_path.glob("one.*"))
    assert sizes["two.SET"] == sum(path.stat().st_size for path in tmp_path.glob("two.*"))
    assert sizes["egi.mff"] == 6
    assert sizes["lost.edf"] == 0


def test_parts_of_a_split_fif_count_once_and_look_alikes_do_not(tmp_path):
    import mne

    info = mne.create_info(["Cz", "Pz"], 250.0, "eeg", verbose="error")
    raw = mne.io.RawArray(np.random.default_rng(0).normal(0, 2e-5, (2, 250 * 1500)), info, verbose="error")
    raw.save(tmp_path / "long_raw.fif", split_size="2MB", verbose="error")
    raw.crop(0, 3).save(tmp_path / "x_raw.fif", verbose="error")
    raw.save(tmp_path / "x_raw-1.fif", verbose="error")  # a recording of its own with the name of a part
    assert (tmp_path / "long_raw-1.fif").is_file()
    sources = find_sources(tmp_path)
    assert [source.name for source in sources] == ["long_raw.fif", "x_raw-1.fif", "x_raw.fif"]
    assert sources[0].size == sum(path.stat().st_size for path in tmp_path.glob("long*"))


def test_circles_of_links_end_and_a_folder_counts_once(tree):
    os.symlink(tree, tree / "s1" / "again")
    os.symlink(tree / "s2", tree / "s9")
    assert [source.name for source in find_sources(tree)] == list(NAMES)


def test_names_are_equal_on_every_machine(tmp_path):
    edf(tmp_path / "u" / "Zu\u0308rich.edf")  # as macOS has it
    assert find_sources(tmp_path)[0].name == "u/Z\u00fcrich.edf"
    assert plain_name(".\\u\\Z\u00fcrich.edf") == "u/Z\u00fcrich.edf"
    (tmp_path / os.fsdecode(b"caf\xe9.edf")).write_bytes(b"0")
    assert find_sources(tmp_path)[0].name == "caf\\xe9.edf"


def test_a_folder_without_eeg(tmp_path):
    write(tmp_path / "readme.txt", "x")
    assert "no EEG file" in refused(InputError, tmp_path)
    assert "not a folder" in refused(InputError, tmp_path / "gone")


# Tables


def test_labels_one_by_one(tree):
    table = write(
        tree.parent / "sleep.csv",
        "\ufefffile,subject,split,label,start,stop,age",
        "s1/rest/a.edf,anna,train,N2,0,6,40",
        "./s1/rest/a.edf,anna,train,REM,6,12,40",
        "s2\\rest\\b.edf,bert,val,N2,,,40",
        "s3/rest/c.edf,carl,test,,,,40",
    )
    recipe = folder(tree, labels=table, events=("spike",))
    assert labels_of(recipe) == {
        "s1/rest/a.edf": {"sleep": (Interval(0, 6, "train", "N2"), Interval(6, 12, "train", "REM"))},
        "s1/task/a.edf": {},
        "s2/rest/b.edf": {"sleep": (Interval(0, WHOLE, "val", "N2"),)},
        "s3/rest/c.edf": {},
    }
    assert [item.subject for item in recipe.find()] == ["anna", None, "bert", "carl"]
    assert {item.events for item in recipe.find()} == {("spike",)}
    assert dict(recipe.tasks) == {"sleep": Task("classification", ("N2", "REM"), 5.0, 5.0)}
    assert "2 of 4 recordings are not labelled" in recipe.about
    assert "1 columns of the table are not used" in recipe.about
    assert recipe.split_unit == "subject"


def test_targets_are_a_regression(tree):
    table = write(
        tree.parent / "motion.csv",
        "file,start,stop,target,target_age",
        "s1/rest/a.edf,0,2.5,0.5,-1",
        "s1/rest/a.edf,2.5,5,1e-3,2",
        "s2/rest/b.edf,0,4,,",
    )
    recipe = folder(tree, labels=table)
    assert dict(recipe.tasks) == {"motion": Task("regression", ("target", "target_age"), 2.5, 2.5)}
    assert labels_of(recipe)["s1/rest/a.edf"]["motion"] == (
        Interval(0, 2.5, None, None, (0.5, -1.0)),
        Interval(2.5, 5, None, None, (0.001, 2.0)),
    )
    assert labels_of(recipe)["s2/rest/b.edf"] == {}


def test_a_table_of_subjects_or_of_splits_alone(tree):
    table = write(tree.parent / "who.csv", "file,subject", *(f"{name},{name[:2]}" for name in NAMES))
    recipe = folder(tree, labels=table)
    assert [item.subject for item in recipe.find()] == ["s1", "s1", "s2", "s3"]
    assert recipe.tasks == {}
    assert all(item.labels == {} for item in recipe.find())
    table = write(tree.parent / "pretrain.csv", "file,subject,split", *(f"{name},{name[:2]},train" for name in NAMES))
    recipe = folder(tree, labels=table)
    assert labels_of(recipe)[NAMES[0]] == {"pretrain": (Interval(0, WHOLE, "train"),)}
    assert recipe.tasks == {}


def test_classes_are_ordered_by_value_where_they_are_numbers(tree):
    rows = [f"{name},{label}" for name, label in zip(NAMES, ("10", "9", "2", "2"), strict=True)]
    table = write(tree.parent / "t.csv", "file,label", *rows)
    assert folder(tree, labels=table).tasks["t"].names == ("2", "9", "10")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["file;label", "@1;x"], "separated by semicolons; expected columns file, separated by commas"),
        (["recording,label", "@1,x"], "it has the columns recording, label and no file (did you mean 'recording'?"),
        ([""], "expected columns file"),
        (["file,label,label", "@1,x,y"], "two columns with one name"),
        (["file,lable", "@1,x"], "almost called label"),
        (["file,label,target", "@1,x,1"], "label and target"),
        (["file,label,start", "@1,x,1"], "only one of start and stop"),
        (["file,label", "@1,x,y"], "row 1 of TABLE has 3 values"),
        (["file,start,stop,label", '@1,0,"1,5",x'], "row 1 of TABLE is not a finite number; write a decimal point"),
        (["file,start,stop,label", "@1,0,1_5,x"], "stop of row 1"),
        (["file,start,stop,label", "@1,0,nan,x"], "stop of row 1"),
        (["file,start,stop,label", "@1,3,,x"], "stop of row 1"),
        (["file,start,stop,label", "@1,5,5,x"], "5 and 5 s; expected 0 <= start < stop"),
        (["file,start,stop,label", "@1,-1,5,x"], "-1 and 5 s"),
        (["file,target", "@1,fast"], "target of row 1"),
        (["file,target,target2", "@1,1,"], "target2 of row 1"),
        (["file,label", "@1,1.5", "@2,2"], "not whole; for a regression name the column target"),
        (["file,label", "gone.edf,x", "@1,y"], "1 rows of TABLE name no EEG file of the folder, first row 1"),
        (["file,label", "@1,x", "@2,x", "@1,x"], "row 3 of TABLE says the same as row 1"),
        (["file,label,start,stop", "@1,x,0,6", "@1,y,5,8"], "rows 1 and 2 of TABLE overlap"),
        (["file,label,start,stop", "@1,x,0,9", "@1,x,1,2", "@1,y,8,9"], "rows 1 and 3 of"),
        (["file,label", "@1,x", "@1,y"], "rows 1 and 2 of TABLE overlap"),
        (["file,subject,label,start,stop", "@1,p,x,0,6", "@1,q,x,6,7"], "row 2 of TABLE has another subject"),
        (["file,subject,split,label", "@1,p,validation,x"], "called train, val and test"),
        (["file,split,label", "@1,train,x"], "of 1 recordings the subject is not known"),
        (["file,subject,split,label", "@1,p,train,x", "@3,p,test,y"], "1 subject is in the splits test and train"),
        (["file,subject,split,label", "@1,p,train,x", "@3,p,,y"], "1 subject is in the splits none and train"),
        (["file,label", "@1," + "x" * 65], "no short text"),
    ],
)  # fmt: skip
def test_bad_tables_get_one_clear_line(tree, lines, expected):
    places = {"@1": NAMES[0], "@2": NAMES[2], "@3": NAMES[1]}
    text = "\n".join(lines)
    for mark, name in places.items():
        text = text.replace(mark, name)
    assert expected.replace("TABLE", "the table of labels") in refused(InputError, tree, text)


def test_tables_that_are_no_text(tree):
    table = tree.parent / "sleep.csv"
    table.write_bytes("file,label\ns1/rest/a.edf,tr\u00e4ge\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        folder(tree, labels=table)
    with pytest.raises(InputError, match="cannot be read"):
        folder(tree, labels=tree.parent / "gone.csv")
    with pytest.raises(InputError, match="rename it"):
        folder(tree, labels=write(tree.parent / "my labels.csv", "file,label"))


def test_equal_labels_may_overlap_and_touching_ones_may_differ(tree):
    rows = [f"{NAMES[0]},{row}" for row in ("x,0,5", "x,4,6", "y,6,7")]
    table = write(tree.parent / "t.csv", "file,label,start,stop", *rows)
    assert len(labels_of(folder(tree, labels=table))["s1/rest/a.edf"]["t"]) == 3


def test_the_table_may_lie_in_the_tree(tree):
    table = write(tree / "muse.csv", "file,timestamps,TP9,AF7,AF8,TP10,label", f"{NAMES[0]},1,2,3,4,5,x")
    assert [item.name for item in folder(tree, labels=table).find()] == list(NAMES)


# From the path


def test_subjects_and_labels_from_the_path(tree):
    recipe = folder(tree, subject="top", label="parent", split="none")
    assert [item.subject for item in recipe.find()] == ["s1", "s1", "s2", "s3"]
    assert [item.labels["label"] for item in recipe.find()] == [
        (Interval(0, WHOLE, None, name),) for name in ("rest", "task", "rest", "rest")
    ]
    assert dict(recipe.tasks) == {"label": Task("classification", ("rest", "task"), 5.0, 5.0)}
    recipe = folder(tree, subject=r"s(?P<subject>\d+)/", label=r"/(?P<label>[ab])\.edf$")
    assert [item.subject for item in recipe.find()] == ["1", "1", "2", "3"]
    assert [list(item.labels) for item in recipe.find()] == [["label"], ["label"], ["label"], []]
    assert "1 of 4 recordings are not labelled" in recipe.about


def test_rules_that_find_nothing(tree):
    edf(tree / "loose.edf")
    assert "in 1 of 5 paths" in refused(InputError, tree, subject="top")
    assert "in 1 of 5 paths" in refused(InputError, tree, subject="parent")
    assert "in any of 5 paths" in refused(InputError, tree, label="(?P<label>nowhere)")
    assert "no regular expression" in refused(ConfigError, tree, subject="(")
    assert "(?P<subject>...)" in refused(ConfigError, tree, subject="s.")
    assert "use one of them" in refused(ConfigError, tree, "file,subject", subject="s(?P<subject>.)|loose")
    assert "use one of them" in refused(ConfigError, tree, "file,label", label="parent")


# Splits


def test_splits_by_hash_are_those_of_the_subject(tree):
    recipe = folder(tree, subject="top", label="parent", split="subject")
    for item in recipe.find():
        assert item.labels["label"][0].split == split_of(item.subject)
    names = [split_of(f"subject {n}") for n in range(5000)]
    counts = [names.count(name) for name in ("train", "val", "test")]
    assert sum(counts) == 5000
    assert np.allclose(counts, [3000, 1000, 1000], atol=130)  # four standard deviations
    assert [split_of(name) for name in ("s1", "s2", "s3")] == ["train", "test", "train"]  # it must never move
    assert "subjects by hash: 2 train, 0 val, 1 test" in recipe.about


@pytest.mark.parametrize("from_table", [True, False])
def test_labels_without_splits_are_split_by_subject_and_it_is_said(tree, tmp_path, capsys, monkeypatch, from_table):
    """The fault: no split, not a word, and an error a verb later."""
    rows = [f"{name},{name.split('/')[0]},{'ab'[place % 2]}" for place, name in enumerate(NAMES)]
    table = write(tmp_path / "state.csv", "file,subject,label", *rows)
    options = {"labels": table} if from_table else {"subject": "top", "label": "parent"}
    recipe = folder(tree, **options)
    (task,) = recipe.tasks
    assert {item.subject: item.labels[task][0].split for item in recipe.find()} == {
        name: split_of(name) for name in ("s1", "s2", "s3")
    }
    said = (
        "no splits were given, so they were made, subjects by hash: 2 train, 0 val, 1 test; val got none: give splits "
        "of your own, or train with --folds (--split none makes none)"
    )
    assert recipe.hints == (said,)
    none = folder(tree, **options, split="none")
    assert {item.labels[task][0].split for item in none.find()} == {None}
    assert none.hints == ()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert cli.main(["prepare", "folder", str(tree), "--out", str(tmp_path / "store"), "--workers", "0", *flags]) == 0
    assert said in capsys.readouterr().err.splitlines()


def test_labels_without_subjects_get_no_splits_and_it_is_said(tree, tmp_path):
    recipe = folder(tree, label="parent")
    assert {item.labels["label"][0].split for item in recipe.find()} == {None}
    assert len(recipe.hints) == 1
    assert (
        "no splits were made: of 4 of 4 labelled recordings the subject is not known; give subjects" in recipe.hints[0]
    )
    assert folder(tree).hints == folder(tree, subject="top").hints == ()  # nothing is labelled: there is nothing to say
    lines = ["file,subject,split,label", f"{NAMES[0]},p,train,x", f"{NAMES[1]},q,test,y"]
    assert folder(tree, labels=write(tmp_path / "t.csv", *lines)).hints == ()
    assert "--split none was given, and the table of labels has splits" in refused(
        ConfigError, tree, *lines, split="none"
    )


def test_another_unit_is_asked_for_by_name(tree):
    lines = ["file,subject,split,label", f"{NAMES[0]},p,train,x", f"{NAMES[1]},p,test,y"]
    table = write(tree.parent / "t.csv", *lines)
    assert folder(tree, labels=table, split="recording").split_unit == "recording"
    recipe = folder(tree, label="parent", split="recording")
    assert [item.labels["label"][0].split for item in recipe.find()] == [split_of(name) for name in NAMES]
    assert "use one of subject, recording, trial" in refused(ConfigError, tree, label="parent", split="random")
    assert "needs subjects" in refused(InputError, tree, label="parent", split="subject")
    assert "without labels" in refused(ConfigError, tree, subject="top", split="subject")
    assert "column split" in refused(ConfigError, tree, label="parent", split="trial")


# Into a store


def test_into_a_store_and_out_as_windows(tree, tmp_path):
    edf(tree / "s1" / "rest" / "a.edf", seconds=12, notes=[("+3", "1", "spike"), ("+4", "", "patient says hello")])
    (tree / "s3" / "rest" / "broken.edf").write_bytes(b"0       " + bytes(300))
    table = write(
        tree.parent / "state.csv",
        "file,subject,split,label,start,stop",
        f"{NAMES[0]},anna,train,up,0,5",
        f"{NAMES[0]},anna,train,down,5,10",
        f"{NAMES[2]},bert,test,up,,",
    )
    recipe = folder(tree, labels=table, events=("spike",))
    store = tmp_path / "store"
    done = prepare(recipe, store, workers=0, key_file=tmp_path / "key")
    assert done.recordings == 4
    assert list(done.skipped.values()) == ["header"]
    windows = {name: find_windows(Store(store), seconds=2.0, task="state", split=name) for name in ("train", "test")}
    assert windows["train"].label.tolist() == [1, 1, 0, 0]  # down, up by the alphabet
    assert windows["train"].start.tolist() == [0, 512, 1280, 1792]
    assert windows["test"].label.tolist() == [1] * 6  # all 12 s, although the table does not say how long
    assert assert_disjoint(windows) == "subject"
    assert [event.name for record in Store(store).recordings for event in record.events] == ["spike"]
    everything = b"".join(path.read_bytes() for path in store.iterdir() if path.suffix != ".bin")
    for word in (b"anna", b"bert", b"rest", b".edf", b"hello", str(tree).encode()):
        assert word not in everything
    again = folder(tree, labels=table, events=("spike",))
    assert prepare(again, store, workers=0, key_file=tmp_path / "key").done_before == 5


def test_recordings_without_a_subject_cannot_be_split_by_it(tree, tmp_path):
    prepare(folder(tree, label="parent"), tmp_path / "store", workers=0, key_file=tmp_path / "key")
    windows = find_windows(Store(tmp_path / "store"), seconds=5.0, task="label")
    with pytest.raises(InputError, match="4 recordings have no subject"):
        assert_disjoint({"a": windows, "b": windows})


def test_the_order_of_the_file_system_does_not_matter(tree, monkeypatch):
    expected = list(folder(tree).find())
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda where: sorted(real(where), reverse=True))
    assert [item.name for item in folder(tree).find()] == [item.name for item in expected]


def test_the_recipe_loads_neither_torch_nor_mne():
    code = "import sys, cerebro_eeg.data.datasets.folder; sys.exit(bool({'torch', 'mne'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_label_beyond_the_end_of_its_recording_is_noted(tmp_path):
    """Milliseconds taken for seconds must not look like a recording that nobody labelled."""
    edf(tmp_path / "eeg" / "a.edf")
    edf(tmp_path / "eeg" / "b.edf", seed=1)
    table = tmp_path / "t.csv"
    table.write_text("file,label,start,stop\na.edf,x,0,2\nb.edf,x,0,2\nb.edf,y,2000,4000\n")
    recipe = folder(tmp_path / "eeg", labels=table)
    prepare(recipe, tmp_path / "store", key_file=tmp_path / "key", map_file=tmp_path / "map")
    ids = {name: id for id, name in json.loads((tmp_path / "map").read_text())["recordings"].items()}
    store = Store(tmp_path / "store")
    faults = {name: store.recordings[store.number(id)].faults for name, id in ids.items()}
    assert ("labels_outside" in faults["a.edf"], "labels_outside" in faults["b.edf"]) == (False, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\n", "no row with a label"),
        ("file,label,start,stop\na.edf,x,1,1.0004\n", "a millisecond apart"),
        ("file,label,split\na.edf,x,Train\n", "called train, val and test"),
        ("file,label\na.edf,1\nb.edf,1.0\n", "one number written differently"),
    ],
)
def test_tables_that_would_label_something_else_than_was_meant(tmp_path, text, words):
    edf(tmp_path / "eeg" / "a.edf")
    edf(tmp_path / "eeg" / "b.edf")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        folder(tmp_path / "eeg", labels=tmp_path / "t.csv")


# Columns by their meaning


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        ("File,Label", {"File": "file", "Label": "label"}),
        ("filename,condition", {"filename": "file", "condition": "label"}),
        ("path,Patient_ID,diagnosis", {"path": "file", "Patient_ID": "subject", "diagnosis": "label"}),
        ("files,category,partition", {"files": "file", "category": "label", "partition": "split"}),
        ("file,class,onset,end", {"class": "label", "onset": "start", "end": "stop"}),
        ("file,label,condition", {}),  # ours is there
        ("file,class,condition,subject", {}),  # two may be meant
        ("file,condition,target", {}),  # a regression
        ("file,label,onset", {}),  # a start without a stop
        ("file,label,onset,duration", {}),
        ("file,age,group,fold,y", {}),  # may mean anything
    ],
)  # fmt: skip
def test_columns_with_another_name_are_taken_only_where_they_have_one_meaning(columns, taken):
    assert meanings(columns.split(",")) == taken


def test_a_table_with_other_names_gives_the_same_recipe_and_says_so(tmp_path):
    for name in "abc":
        edf(tmp_path / "eeg" / f"{name}.edf", seed=ord(name))
    rows = ["a.edf,p,x", "b.edf,q,y", "c.edf,r,x"]
    write(tmp_path / "one" / "t.csv", "file,subject,label", *rows)
    write(tmp_path / "two" / "t.csv", "Filename,patient,condition", *rows)
    ours, theirs = (folder(tmp_path / "eeg", labels=tmp_path / where / "t.csv") for where in ("one", "two"))
    said = (
        "columns of the table are taken by their meaning: Filename for file, patient for subject, condition for label"
    )
    assert said in theirs.about
    assert "by their meaning" not in ours.about
    assert [(i.subject, i.labels) for i in ours.find()] == [(i.subject, i.labels) for i in theirs.find()]


def test_a_table_without_a_column_that_is_understood_is_refused(tmp_path):
    """It would make a store without a task, and the user would find out much later."""
    edf(tmp_path / "eeg" / "a.edf")
    table = write(tmp_path / "table.csv", "file,foo", "a.edf,1")
    with pytest.raises(InputError, match="no column whose meaning is known"):
        folder(tmp_path / "eeg", labels=table)
