"""The recipe ``bids``: a tree written by hand after the specification, one written by mne-bids, and broken ones."""

import json
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from bids_files import CHANNELS, tree, tsv
from cerebro_eeg.data.batching.windows import find_event_windows, find_windows
from cerebro_eeg.data.datasets.bids import bids
from cerebro_eeg.data.datasets.bids_tree import find_bids, nearest, sidecar
from cerebro_eeg.data.datasets.folder_table import split_of
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Task
from cerebro_eeg.data.storing.records import WHOLE, Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, RecordingError
from eeg_files import brainvision, eeglab
from folder_files import edf, write

ODD = tuple(f"sub-01/ses-a/eeg/sub-01_ses-a_task-odd_run-{run}_eeg.edf" for run in (1, 2))
REST = ("sub-02/eeg/sub-02_task-rest_eeg.edf", "sub-03/eeg/sub-03_task-rest_eeg.vhdr")
EVENTS = ("target", "standard", "key")


@pytest.fixture
def top(tmp_path):
    return tree(tmp_path / "ds")


def items_of(recipe):
    return {item.name: item for item in recipe.find()}


def refused(error, top, **options):
    with pytest.raises(error) as caught:
        list(bids(top, **options).find())
    message = str(caught.value)
    assert "\n" not in message
    assert str(top) not in message
    assert "sub-0" not in message
    return message


def test_recordings_subjects_and_mains(top):
    recipe = bids(top)
    items = list(recipe.find())
    assert [item.name for item in items] == [*ODD, *REST]
    assert [item.subject for item in items] == ["sub-01", "sub-01", "sub-02", "sub-03"]
    assert [item.mains for item in items] == [None, None, 50.0, 60.0]  # the nearer JSON wins, n/a is nothing
    assert all(item.labels == {} and item.events == () for item in items)
    assert items[2].size == (top / REST[0]).stat().st_size
    assert items[3].size == sum((top / REST[1]).with_suffix(end).stat().st_size for end in (".vhdr", ".eeg"))
    assert "derivatives left out; sourcedata left out" in recipe.about
    assert not recipe.own_ids
    assert pickle.loads(pickle.dumps(items[0])).open(ChannelPolicy()).samples == 12 * 128


def test_events_and_groups_label_by_label(top):
    recipe = bids(top, events=EVENTS, label="group", split="none")
    items = items_of(recipe)
    for run, name in enumerate(ODD, 1):
        assert dict(items[name].labels) == {
            "group": (Interval(0, WHOLE, None, "patient"),),
            "events": (Interval(run + 0.5, run + 2.5, None, "target"), Interval(6.0, 7.5, None, "standard")),
        }
        assert items[name].open(ChannelPolicy()).events == (
            Event(0.5, 0, "key"), Event(run + 0.5, 2, "target"), Event(6, 1.5, "standard"), Event(9, 0, "key"),
        )  # fmt: skip
    assert dict(items[REST[0]].labels) == {"group": (Interval(0, WHOLE, None, "control"),)}
    assert dict(items[REST[1]].labels) == {}
    assert dict(recipe.tasks) == {
        "group": Task("classification", ("control", "patient"), 5.0, 5.0),
        "events": Task("classification", ("target", "standard"), 1.5, 1.5),  # in the order that was asked for
    }
    assert "1 of 3 subjects have no group" in recipe.about


def test_one_task_and_splits_by_subject(top):
    recipe = bids(top, task="rest", label="group", split="subject")
    assert list(items_of(recipe)) == list(REST)
    assert items_of(recipe)[REST[0]].labels["group"] == (Interval(0, WHOLE, split_of("sub-02"), "control"),)
    assert recipe.tasks["group"].names == ("control",)


def test_channels_by_their_table(top):
    recording = items_of(bids(top))[ODD[0]].open(ChannelPolicy())
    assert [channel.name for channel in recording.match.channels] == ["Fp1", "O2"]
    assert [fault.code for fault in recording.faults] == ["bads"]
    assert recording.faults[0].note == "1 channel is marked as bad and was left out: 'Cz'"
    tsv(top / "sub-01" / "sub-01_channels.tsv", "name type units", "Fp1 EOG uV", "Cz EEG uV", "Belt~1 MISC n/a")
    recording = items_of(bids(top))[ODD[0]].open(ChannelPolicy())
    assert [channel.name for channel in recording.match.channels] == ["Cz", "O2"]
    assert [fault.code for fault in recording.faults] == ["channels_differ"]  # O2 is not in it
    # Without the table nobody says that the belt is none.
    (top / "sub-01" / "sub-01_channels.tsv").unlink()
    with pytest.raises(InputError, match="Belt 1"):
        items_of(bids(top))[ODD[0]].open(ChannelPolicy())


def test_units_and_rates_that_differ_are_faults_and_the_file_holds(top):
    before = items_of(bids(top))[REST[0]].open(ChannelPolicy()).read(0, 100)
    path = top / "sub-02" / "eeg" / "sub-02_task-rest_channels.tsv"
    tsv(path, "name type units", "Fp1 EEG V", "Cz EEG µV", "O2 EEG mV")
    write(top / "task-rest_eeg.json", json.dumps({"SamplingFrequency": 256}))
    recording = items_of(bids(top))[REST[0]].open(ChannelPolicy())
    assert {fault.code for fault in recording.faults} == {"units_differ", "rate_differs"}
    assert "'Fp1', 'O2'" in next(fault.note for fault in recording.faults if fault.code == "units_differ")
    np.testing.assert_array_equal(recording.read(0, 100), before)


def test_a_unit_that_the_file_lacks_comes_from_the_table(top):
    path = top / REST[0]
    edf(path, CHANNELS[:3], seed=3, unit="mV")
    expected = items_of(bids(top))[REST[0]].open(ChannelPolicy()).read(0, 100)
    edf(path, CHANNELS[:3], seed=3, unit="")
    tsv(
        top / "sub-02" / "eeg" / "sub-02_task-rest_channels.tsv",
        "name type units",
        *(f"{n} EEG mV" for n in CHANNELS[:3]),
    )
    recording = items_of(bids(top))[REST[0]].open(ChannelPolicy())
    np.testing.assert_array_equal(recording.read(0, 100), expected)
    assert "unit" in {fault.code for fault in recording.faults}


def test_inheritance(top):
    files = {file.name: file for file in find_bids(top)[0]}
    write(top / "eeg.json", json.dumps({"PowerLineFrequency": 16, "A": 1}))
    write(top / "sub-02" / "sub-02_eeg.json", json.dumps({"A": 2}))
    write(top / "sub-02" / "sub-02_task-odd_eeg.json", json.dumps({"A": 3}))  # of another task
    assert sidecar(files[ODD[0]], "eeg")["PowerLineFrequency"] == "n/a"  # more entities, of the same folder
    assert sidecar(files[REST[0]], "eeg") == {"PowerLineFrequency": 50, "SamplingFrequency": 128, "A": 2}
    assert nearest(files[ODD[1]], "events").name.endswith("run-2_events.tsv")
    assert nearest(files[REST[0]], "events") is None
    write(top / "task-rest_events.tsv", "onset\tduration\ttrial_type", "1\t2\tx")
    assert nearest(files[REST[0]], "events").name == "task-rest_events.tsv"
    tsv(top / "sub-02_events.tsv", "onset duration")
    with pytest.raises(InputError, match="keep one"):
        nearest(files[REST[0]], "events")


def test_what_is_labelled_is_split_by_subject_and_it_is_said(top):
    made, asked = bids(top, label="group"), bids(top, label="group", split="subject")
    assert [item.labels for item in made.find()] == [item.labels for item in asked.find()]
    assert [hint.partition(", subjects by hash: ")[0] for hint in made.hints] == [
        "no splits were given, so they were made"
    ]
    assert asked.hints == bids(top, label="group", split="none").hints == bids(top).hints == ()


def test_value_stands_in_for_trial_type(top):
    path = top / "sub-02" / "eeg" / "sub-02_task-rest_events.tsv"
    tsv(path, "onset duration trial_type value", "1 2 n/a 7", "4 1 open 7")
    assert items_of(bids(top, events=("7",), split="none"))[REST[0]].labels["events"] == (Interval(1, 3, None, "7"),)


def test_one_broken_table_skips_its_recording_and_no_other(top, tmp_path):
    path = top / "sub-01" / "ses-a" / "eeg" / "sub-01_ses-a_task-odd_run-2_events.tsv"
    tsv(path, "onset duration trial_type", "1,5 2 target")
    recipe = bids(top, events=("target",))
    assert "1 recordings will be skipped: onset of row 1 of an events.tsv is not a finite number" in recipe.about
    done = prepare(recipe, tmp_path / "store", workers=0, key_file=tmp_path / "key")
    assert done.recordings == 3
    assert list(done.skipped.values()) == ["sidecar"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sub-02/eeg/sub-02_task-rest_eeg.json", "{"),
        ("sub-02/eeg/sub-02_task-rest_eeg.json", "[]"),
        ("sub-02/eeg/sub-02_task-rest_channels.tsv", "label\ttype\nFp1\tEEG"),
        ("sub-02/eeg/sub-02_task-rest_channels.tsv", "name,type\nFp1,EEG"),
        ("sub-02/eeg/sub-02_task-rest_events.tsv", "onset\tduration\ttrial_type\n1\t-2\ttarget"),
        ("sub-02/eeg/sub-02_task-rest_events.tsv", "onset\tduration\ttrial_type\n1\t2"),
    ],
)
def test_broken_sidecars(top, name, text):
    write(top / name, text)
    with pytest.raises(RecordingError) as caught:
        items_of(bids(top, events=("target",)))[REST[0]].open(ChannelPolicy())
    assert caught.value.code == "sidecar"
    assert "\n" not in str(caught.value)


def test_mistakes(top, tmp_path):
    assert "not a folder" in refused(InputError, top / "gone")
    assert "dataset_description.json" in refused(InputError, top / "sub-01")
    assert "task-sleep" in refused(InputError, top, task="sleep")
    assert "'Target'" in refused(InputError, top, events=("Target", "key"))
    assert "expected columns participant_id, diagnosis" in refused(InputError, top, label="diagnosis")
    assert "nothing is labelled" in refused(ConfigError, top, split="subject")
    assert "use one of subject" in refused(ConfigError, top, split="run")
    tsv(top / "participants.tsv", "participant_id group", "01 a", "02 b")
    assert "are its ids sub-...?" in refused(InputError, top, label="group")
    tsv(top / "participants.tsv", "participant_id group", "sub-01 a", "sub-01 b")
    assert "row 2 of participants.tsv" in refused(InputError, top, label="group")
    (top / "participants.tsv").unlink()
    assert "no participants.tsv" in refused(InputError, top, label="group")
    write(tmp_path / "empty" / "dataset_description.json", "{}")
    assert "has no EEG" in refused(InputError, tmp_path / "empty")


def test_files_that_are_no_bids_are_counted(top):
    edf(top / "sub-02" / "eeg" / "sub-09_task-rest_eeg.edf")  # of another subject
    write(top / "sub-02" / "eeg" / "sub-02_task-rest_eeg.cnt", "x")
    recipe = bids(top)
    assert len(list(recipe.find())) == 4
    assert "2 files that are no EEG by BIDS left out" in recipe.about


def test_into_a_store(top, tmp_path):
    recipe = bids(top, label="group", events=EVENTS, split="subject")
    store = tmp_path / "store"
    assert prepare(recipe, store, workers=0, key_file=tmp_path / "key").skipped == {}
    records = Store(store).recordings
    assert sorted(record.mains for record in records if record.mains in (50.0, 60.0))[-1] == 60.0
    windows = find_windows(Store(store), seconds=1.5, task="events")
    assert sorted(windows.label.tolist()) == [0, 0, 1, 1]
    assert sorted(windows.start.tolist()) == [384, 640, 1536, 1536]
    assert len(find_windows(Store(store), seconds=4.0, task="group")) == 9  # 12 s of three recordings
    assert len(find_event_windows(Store(store), t0=-0.5, t1=1.0, names=["key"])) == 4
    everything = b"".join(path.read_bytes() for path in store.iterdir() if path.suffix != ".bin")
    for word in (b"sub-0", b"secret", b"own note", b"ses-a", b".edf"):
        assert word not in everything


def write_with_mne_bids(raw, root, **options):
    """Two subjects of one task; the path of the last one."""
    import mne_bids

    for subject in ("07", "08"):
        place = mne_bids.BIDSPath(subject=subject, session="1", task="hand", run="01", datatype="eeg", root=root)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mne_bids.write_raw_bids(raw, place, verbose="error", **options)
    return place


def test_what_mne_bids_writes(tmp_path):
    import mne
    import mne_bids

    rng = np.random.default_rng(0)
    info = mne.create_info(["Fp1", "Cz", "O2", "HEOG", "Belt 1"], 256.0, ["eeg"] * 3 + ["eog", "misc"], verbose="error")
    info["line_freq"] = 60.0
    info["bads"] = ["Cz"]
    raw = mne.io.RawArray(rng.normal(0, 2e-5, (5, 256 * 20)), info, verbose="error")
    raw.set_annotations(mne.Annotations([2.0, 8.5, 12.0], [1.5, 1.5, 0.0], ["left", "right", "blink"]))
    place = write_with_mne_bids(raw, tmp_path / "ds", allow_preload=True, format="EDF")
    recipe = bids(tmp_path / "ds", task="hand", events=("left", "right", "blink"), split="none")
    items = list(recipe.find())
    assert [(item.subject, item.mains) for item in items] == [("sub-07", 60.0), ("sub-08", 60.0)]
    assert items[0].labels["events"] == (Interval(2.0, 3.5, None, "left"), Interval(8.5, 10.0, None, "right"))
    recording = items[0].open(ChannelPolicy())
    assert [channel.name for channel in recording.match.channels] == ["Fp1", "O2"]
    assert [event.name for event in recording.events] == ["left", "right", "blink"]
    assert [fault.code for fault in recording.faults] == ["bads"]  # no unit, rate or label differs
    expected = raw.get_data(picks=[0, 2]).T[:1000] * 1e6
    np.testing.assert_allclose(recording.read(0, 1000), expected, atol=0.1)  # EDF has 16 bits
    again = mne_bids.read_raw_bids(place, verbose="error")  # an independent reader sees the same events
    assert [round(onset, 6) for onset in again.annotations.onset] == [event.onset for event in recording.events]


@pytest.mark.parametrize("kind", ["brainvision", "eeglab"])
def test_what_mne_bids_copies(tmp_path, kind):
    import mne

    counts = np.random.default_rng(1).integers(-300, 300, (2500, 2))
    if kind == "brainvision":
        path = brainvision(tmp_path / "x.vhdr", counts, ["Cz", "Pz"], sfreq=250)
        raw = mne.io.read_raw_brainvision(path, verbose="error")
    else:
        path = eeglab(tmp_path / "x.set", counts * 0.1, ["Cz", "Pz"], sfreq=250.0, apart=True)
        raw = mne.io.read_raw_eeglab(path, verbose="error")
    raw.info["line_freq"] = 50
    write_with_mne_bids(raw, tmp_path / "ds")
    items = list(bids(tmp_path / "ds").find())
    assert [item.subject for item in items] == ["sub-07", "sub-08"]
    assert [item.mains for item in items] == [50.0, 50.0]
    assert all(item.size > counts.size * 2 for item in items)  # with the file that holds the samples
    recording = items[1].open(ChannelPolicy())
    np.testing.assert_allclose(recording.read(0, 2500), counts * 0.1, atol=1e-4)
    assert recording.faults == ()


def test_names_that_are_no_utf8(top, tmp_path):
    name = os.fsdecode(b"sub-\xff")
    (top / name / "eeg").mkdir(parents=True)
    (top / REST[0]).rename(top / name / "eeg" / f"{name}_task-rest_eeg.edf")
    done = prepare(bids(top), tmp_path / "store", key_file=tmp_path / "key", map_file=tmp_path / "map")
    assert done.recordings == 4
    assert "sub-\\\\xff" in (tmp_path / "map").read_text()


# Parts of names as labels


def two_tasks(top: Path, sessions=("a", "b")) -> Path:
    """Four subjects with two tasks in two sessions each; the third has one session, without a name."""
    write(top / "dataset_description.json", "{}")
    tsv(top / "participants.tsv", "participant_id age", *(f"sub-{n} {20 + n}" for n in range(4)))
    for subject in range(4):
        for number, session in enumerate(sessions if subject != 2 else (None,)):
            for task in ("rest", "count"):
                where = "" if session is None else f"_ses-{session}"
                path = top / f"sub-{subject}" / (f"ses-{session}" if session else "") / "eeg"
                edf(
                    path / f"sub-{subject}{where}_task-{task}_eeg.edf",
                    seed=20 * subject + 2 * number + (task == "rest"),
                )
    return top


def label_of(item: Item, task: str) -> str | None:
    (interval,) = item.labels.get(task, (Interval(0, 0),))
    return interval.label


def test_the_task_is_a_label(tmp_path):
    recipe = bids(two_tasks(tmp_path / "ds"), label="task", split="subject")
    items = items_of(recipe)
    assert {name: label_of(item, "task") for name, item in items.items()} == {
        name: "rest" if "task-rest" in name else "count" for name in items
    }
    assert recipe.tasks == {"task": Task("classification", ("count", "rest"), 5.0, 5.0)}
    splits = {}
    for item in items.values():
        splits.setdefault(item.subject, set()).add(item.labels["task"][0].split)
    assert all(len(found) == 1 for found in splits.values())  # both tasks of a subject are in one split
    done = prepare(recipe, tmp_path / "store", key_file=tmp_path / "key")
    assert (done.recordings, done.skipped) == (14, {})
    windows = find_windows(Store(tmp_path / "store"), seconds=5, task="task")
    assert sorted(windows.label.tolist()) == [0] * 14 + [1] * 14  # 7 recordings of 12 s each: two windows of 5 s


@pytest.mark.parametrize("label", ["session", "ses"])
def test_the_session_is_a_label_where_a_recording_has_one(tmp_path, label):
    recipe = bids(two_tasks(tmp_path / "ds"), label=label, positive="a")
    assert {label_of(item, label) for name, item in items_of(recipe).items() if "ses-" in name} == {"a", "b"}
    assert all(item.labels == {} for name, item in items_of(recipe).items() if "ses-" not in name)
    assert recipe.tasks[label].names == ("b", "a")
    assert f"2 of 14 recordings have no {label}, stored without" in recipe.about


def test_runs_are_labels_in_the_order_of_their_numbers(top):
    recipe = bids(top, label="run", task="odd")
    assert [label_of(item, "run") for item in items_of(recipe).values()] == ["1", "2"]
    assert recipe.tasks["run"].names == ("1", "2")


def test_a_label_that_is_nowhere_is_told_what_there_is(tmp_path):
    top = two_tasks(tmp_path / "ds")
    line = refused(InputError, top, label="diagnosis")
    assert "it has the columns participant_id, age; expected columns participant_id, diagnosis" in line
    assert line.endswith("; or give label one of the parts of names: task (count, rest), session (2 values)")
    line = refused(InputError, top, label="run")
    assert "label='run' makes no two classes: no name of a recording has run-; what may be a label here: " in line
    line = refused(InputError, top, label="task", task="rest")
    assert "the 7 recordings that have it have task-rest; what may be a label here: " in line
    assert line.endswith("columns of participants.tsv: age; parts of names: session (2 values)")
    (top / "participants.tsv").unlink()
    line = refused(InputError, top, label="group")
    assert "has no participants.tsv with such a column; what may be a label here: parts of names: task (count" in line
    assert "there have 2 other tasks: count, rest" in refused(InputError, top, task="sleep")
    (top / "dataset_description.json").unlink()
    assert "sub- folders are there: copy that file to them" in refused(InputError, top)
    dated = two_tasks(tmp_path / "dated", ("20200131", "20200301"))
    assert "2020" not in refused(InputError, dated, label="diagnosis")  # it may be the date of a recording
    one = two_tasks(tmp_path / "one", ("20200131",))
    assert "2020" not in refused(InputError, one, label="session")


def test_a_column_with_the_name_of_a_part_of_names_is_not_guessed(tmp_path):
    top = two_tasks(tmp_path / "ds")
    tsv(top / "participants.tsv", "participant_id session run", *(f"sub-{n} s{n % 2} r{n % 2}" for n in range(4)))
    line = refused(ConfigError, top, label="session")
    assert "is a column of participants.tsv and a part of the names (ses-...); rename the column" in line
    assert {label_of(item, "ses") for item in items_of(bids(top, label="ses")).values()} == {"a", "b", None}
    assert {label_of(item, "run") for item in items_of(bids(top, label="run")).values()} == {"r0", "r1"}


# Other options into the same store


@pytest.mark.parametrize(
    ("before", "after", "left", "rewritten"),
    [
        ({"label": "task"}, {"label": "session"}, 0, 14),
        ({"label": "task"}, {"label": "task", "split": "none"}, 0, 14),
        ({}, {"task": "rest"}, 7, 0),
        ({"task": "rest"}, {"task": "count"}, 7, 0),
        ({"task": "rest", "label": "session"}, {"label": "task"}, 0, 7),
    ],
    ids=str,
)
def test_other_options_give_the_store_of_a_fresh_preparation(tmp_path, before, after, left, rewritten):
    top, key = two_tasks(tmp_path / "ds"), tmp_path / "key"
    prepare(bids(top, **before), tmp_path / "store", key_file=key)
    found = prepare(bids(top, **after), tmp_path / "store", key_file=key, anew=True)
    assert found.hash == prepare(bids(top, **after), tmp_path / "fresh", key_file=key).hash
    assert (found.changed.left, found.changed.rewritten, found.changed.again) == (left, rewritten, {})
    Store(tmp_path / "store").verify(full=True)


def test_recordings_whose_files_are_gone_do_not_leave_by_the_way(tmp_path):
    """A subject whose disk is not there is no option."""
    top, key = two_tasks(tmp_path / "ds"), tmp_path / "key"
    first = prepare(bids(top), tmp_path / "store", key_file=key)
    (top / "sub-1").rename(tmp_path / "away")
    for options in ({}, {"label": "task"}, {"task": "rest"}):
        with pytest.raises(ConfigError, match="the source is not there any more"):
            prepare(bids(top, **options), tmp_path / "store", key_file=key, anew=True)
    assert Store(tmp_path / "store").hash() == first.hash


def test_events_that_were_edited_since_are_followed(top, tmp_path):
    """Also those that last no time, which are no labels."""
    table = top / ODD[0].replace("_eeg.edf", "_events.tsv")
    tsv(table, "onset duration trial_type", "1.0 0 target", "4.0 0 standard")
    prepare(bids(top, events=("target", "standard")), tmp_path / "store", key_file=tmp_path / "key")
    prepare(bids(top, events=("target", "standard")), tmp_path / "store", key_file=tmp_path / "key")
    tsv(table, "onset duration trial_type", "2.0 0 target", "4.0 0 standard")
    found = prepare(bids(top, events=("target", "standard")), tmp_path / "store", key_file=tmp_path / "key")
    assert (found.changed.rewritten, found.changed.again) == (1, {})
    assert [event.onset for record in Store(tmp_path / "store").recordings for event in record.events].count(2.0) == 1


def test_events_that_overlap_and_differ_are_told(top):
    table = top / ODD[0].replace("_eeg.edf", "_events.tsv")
    for rows, told in (
        (("1.0 5 target", "3.3 5 standard"), True),
        (("1.0 2 target", "3.0 5 standard"), False),
        (("1.0 5 target", "2.0 1 target"), False),
    ):
        tsv(table, "onset duration trial_type", *rows)
        about = bids(top, events=("target", "standard"), task="odd").about
        assert ("of 1 recordings events overlap and differ" in about) == told
