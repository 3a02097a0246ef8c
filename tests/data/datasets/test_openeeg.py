"""The recipe ``openeeg``: tiny folders in the pack's format with known answers, broken files, and the real pack."""

import csv
import importlib.util
import io
import json
import os
import zipfile

import numpy as np
import pytest

from cerebro_eeg.data.batching.splits import assert_disjoint, check_overlap
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets import make_recipe
from cerebro_eeg.data.datasets.openeeg import openeeg, read_npz
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Segment
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError, InputError, PassingFault, RecordingError
from openeeg_files import CODES, RECORDS, TASKS, counts_of, fields_of, scales_of, write_lines, write_pack, write_record

POLICY = ChannelPolicy(bipolar_ears=True)


@pytest.fixture
def pack(tmp_path):
    return write_pack(tmp_path / "pack")


# Known answers


def test_items(pack):
    recipe = make_recipe("openeeg", pack, {})
    assert recipe.own_ids
    items = list(recipe.find())
    assert [item.name for item in items] == sorted(row[0] for row in RECORDS)
    assert [item.subject for item in items] == ["a_01", "a_02", "b_01", "neo_x1", "neo_x2"]
    assert [item.size for item in items] == [os.path.getsize(p) for p in sorted(pack.glob("data/*/*.npz"))]
    assert all(item.events is None for item in items)  # public: all of them


def test_labels_one_by_one(pack):
    assert {item.name: dict(item.labels) for item in openeeg(pack).find()} == {
        "a_01": {
            "eyes": (Interval(0.0, 6.0, "train", "closed"), Interval(6.5, 12.0, "train", "open")),
            "pretrain": (Interval(0.0, 12.0, "train"),),
        },
        "a_02": {"eyes": (Interval(1.25, 8.0, "test", "closed"),)},
        "b_01": {
            "motion_reg": (
                Interval(0.0, 2.0, "train", None, (0.5, 1.5, -7.0)),
                Interval(2.0, 4.0, "train", None, (-1.25, 2.5, -8.0)),
                Interval(4.0, 6.0, "val", None, (0.75, 3.5, -9.0)),
            ),
            "pretrain": (Interval(0.0, 6.0, "val"),),
        },
        "neo_1": {"seizure": tuple(Interval(t, t + 1.0, "train", "seizure") for t in (0.0, 1.0, 2.0, 3.0))},
        "neo_2": {"seizure": tuple(Interval(t, t + 1.0, "hidden", "none") for t in (0.0, 1.0, 2.0))},
    }


def test_tasks(pack):
    assert dict(openeeg(pack).tasks) == {
        "eyes": Task("classification", ("open", "closed"), 5.0, 5.0),
        "motion_reg": Task("regression", ("label", "label2", "label10"), 2.0, 2.0, "trial"),  # one recording
        "seizure": Task("classification", ("none", "seizure"), 1.0, 1.0),
    }


@pytest.mark.parametrize(
    ("rows", "unit"),
    [
        (["a_01,train,0,5,0,x", "a_02,test,0,5,1,y"], None),
        (["a_01,train,0,5,0,x", "b_01,test,0,5,1,y"], None),  # subject 01 of two datasets is two people
        (["a_01,train,0,5,0,x", "a_03,test,0,5,1,y"], "recording"),  # two recordings of one subject
        (["a_01,train,0,5,0,x", "a_01,test,5,9,1,y", "a_02,val,0,5,1,y"], "trial"),
        (["a_01,train,0,5,0,x", "a_01,train,5,9,1,y"], None),
    ],
)
def test_the_split_unit_is_the_strictest_that_holds(pack, rows, unit):
    with (pack / "index.csv").open("a") as file:
        file.write("a_03,data/a/a_01.npz,a,01,train\n")
    write_lines(pack / "tasks" / "more.csv", ["record,split,t0,t1,label,label_name", *rows])
    recipe = openeeg(pack)
    assert recipe.split_unit == "subject"
    assert recipe.tasks["more"].split_unit == unit
    assert recipe.tasks["eyes"].split_unit is None


def test_splits_of_a_store_are_checked_in_the_unit_of_their_task(pack, tmp_path):
    prepare(openeeg(pack), tmp_path / "store")
    store = Store(tmp_path / "store")

    def splits(task, *names):
        return {name: find_windows(store, seconds=1, task=task, split=name) for name in names}

    assert assert_disjoint(splits("eyes", "train", "test")) == "subject"
    assert assert_disjoint(splits("motion_reg", "train", "val")) == "trial"
    with pytest.raises(InputError, match="share 1 subjects"):
        assert_disjoint(splits("motion_reg", "train", "val"), "subject")
    assert check_overlap(splits("pretrain", "train")["train"], splits("eyes", "test")["test"]).subjects == ()
    assert check_overlap(splits("pretrain", "train")["train"], store).subjects == ("a_01",)


def test_a_blank_name_is_the_label(pack):
    lines = ["record,split,t0,t1,label,label_name", "a_01,train,0,5,10,", "a_02,train,0,5,9,"]
    write_lines(pack / "tasks" / "plain.csv", lines)
    assert openeeg(pack).tasks["plain"] == Task("classification", ("9", "10"), 5.0, 5.0)


def test_a_folder_without_pretrain_and_tasks(pack):
    for path in [pack / "pretrain.csv", *pack.glob("tasks/*.csv")]:
        path.unlink()
    recipe = openeeg(pack)
    assert recipe.tasks == {}
    assert [item.labels for item in recipe.find()] == [{}] * len(RECORDS)


def test_tables_with_a_byte_order_mark(pack):
    for path in [pack / "index.csv", pack / "tasks" / "eyes.csv"]:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(list(openeeg(pack).find())) == len(RECORDS)


@pytest.mark.parametrize("row", RECORDS, ids=[row[0] for row in RECORDS])
def test_samples_are_counts_times_scale(pack, row):
    record, dataset, _, names, rate, seconds, events = row
    recording = read_npz(pack / "data" / dataset / f"{record}.npz", POLICY)
    expected = counts_of(record, len(names), round(rate * seconds)).T.astype(np.float32) * scales_of(len(names))
    found = recording.read(0, recording.samples)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(recording.read(17, 40), expected[17:40])
    assert recording.sfreq == rate
    assert [channel.name for channel in recording.match.channels] == list(names)
    assert recording.events == tuple(Event(a / rate, n / rate, CODES.get(str(c), str(c))) for a, n, c in events)
    if dataset == "neo":  # each second is a segment of its own
        assert recording.segments == tuple(Segment(64 * i, 64 * i + 64, float(i)) for i in range(seconds))
    else:
        assert recording.segments == (Segment(0, round(rate * seconds), 0.0),)


@pytest.mark.parametrize(
    "events",
    [
        [[0, 1000, 0], [1000, 1000, 1]],  # they end before the signal does
        [[0, 1000, 0], [1000, 2000, 1]],  # of two lengths
        [[0, 1000, 0], [2000, 1000, 1]],  # with a hole
        [[0, 3000, 0]],  # one event over all of it
        [[500, 1250, 0], [1750, 1250, 0]],  # from the middle on
    ],
)
def test_events_that_are_not_glued_windows(tmp_path, events):
    path = write_record(tmp_path / "x.npz", events=np.array(events, np.int32))
    assert read_npz(path, POLICY).segments == (Segment(0, 3000, 0.0),)


def test_events_whose_codes_are_a_text(tmp_path):
    meta = np.array(json.dumps({"unit": "uV", "event_codes": "as in the source"}))
    path = write_record(tmp_path / "x.npz", meta=meta)
    assert [event.name for event in read_npz(path, POLICY).events] == ["0", "1", "7"]


# Broken files

META = json.loads(str(fields_of("a_01")["meta"]))
LO = fields_of("a_01")["lo"]


def meta(**changes):
    return np.array(json.dumps({**META, **changes}))


BROKEN = {
    **{
        f"without {name}": ({name: None}, "format")
        for name in ("lo", "hi", "scale", "ch_std", "sfreq", "events", "meta")
    },
    "in mV": ({"meta": meta(unit="mV")}, "unit"),
    "in uv": ({"meta": meta(unit="uv")}, "unit"),
    "without a unit": ({"meta": np.array("{}")}, "unit"),
    "meta is a list": ({"meta": np.array("[1]")}, "format"),
    "meta is no JSON": ({"meta": np.array("{'unit'")}, "format"),
    "lo of one channel": ({"lo": LO[:1]}, "format"),  # would broadcast
    "lo too short": ({"lo": LO[:, :-1]}, "format"),
    "lo of one axis": ({"lo": LO[0], "hi": LO[0]}, "format"),
    "lo of words": ({"lo": LO.astype(np.uint16)}, "format"),
    "lo of floats": ({"lo": LO.astype(np.float32)}, "format"),
    "no samples": ({"lo": LO[:, :0], "hi": LO[:, :0]}, "format"),
    "no channels": ({"lo": LO[:0], "hi": LO[:0], "scale": np.zeros(0), "ch_std": np.zeros(0, "U3")}, "format"),
    "a scale too few": ({"scale": np.ones(2, np.float32)}, "format"),
    "one scale": ({"scale": np.float32(1)}, "format"),
    "scales of two axes": ({"scale": np.ones((3, 1), np.float32)}, "format"),
    "a scale of NaN": ({"scale": np.array([1, np.nan, 1], np.float32)}, "format"),
    "an infinite scale": ({"scale": np.array([1, np.inf, 1], np.float32)}, "format"),
    "a scale of words": ({"scale": np.array(["a", "b", "c"])}, "format"),
    "a name too few": ({"ch_std": np.array(["Fp1", "Fp2"])}, "format"),
    "names that are one": ({"ch_std": np.array("Fp1")}, "format"),
    "rate 0": ({"sfreq": np.float64(0)}, "format"),
    "rate NaN": ({"sfreq": np.float64("nan")}, "format"),
    "two rates": ({"sfreq": np.array([250.0, 250.0])}, "format"),
    "events of two columns": ({"events": np.zeros((3, 2), np.int32)}, "format"),  # six numbers: would reshape
    "events of words": ({"events": np.array([["a", "b", "c"]])}, "format"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_recording_is_refused(tmp_path, kind):
    changes, code = BROKEN[kind]
    path = write_record(tmp_path / "CANARY.npz", **changes)
    with pytest.raises(RecordingError) as caught:
        read_npz(path, POLICY)
    assert caught.value.code == code
    assert "CANARY" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **fields_of("a_01"))
    whole = path.read_bytes()
    plain = io.BytesIO()
    np.save(plain, LO)
    middle = len(whole) // 3
    kinds = [whole[: len(whole) * k // 8] for k in range(8)]
    kinds += [b"not a zip", plain.getvalue(), whole[:middle] + bytes(200) + whole[middle + 200 :]]
    for content in kinds:
        path.write_bytes(content)
        with pytest.raises(RecordingError) as caught:
            read_npz(path, POLICY)
        assert caught.value.code == "format"
    path.unlink()
    with pytest.raises(PassingFault) as caught:  # it may come back, so it is no damage
        read_npz(path, POLICY)
    assert caught.value.code == "unreadable"


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_byte_is_refused_or_harmless(tmp_path, seed):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **fields_of("neo_1"))
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for place in rng.integers(0, len(data), 3):
        data[place] ^= int(rng.integers(1, 256))
    path.write_bytes(data)
    try:
        recording = read_npz(path, POLICY)
    except (RecordingError, ChannelError):
        return
    counts = counts_of("neo_1", 2, 256).T.astype(np.float32)  # zip's own sums let no changed sample through
    np.testing.assert_array_equal(recording.read(0, 256), counts * scales_of(2))


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["lo", "meta", "events", "ch_std"])
def test_a_pickle_is_never_opened(tmp_path, name):
    canary = tmp_path / "canary"
    path = write_record(tmp_path / "x.npz", **{name: np.array([Bomb(canary)], object)})
    with pytest.raises(RecordingError) as caught:
        read_npz(path, POLICY)
    assert caught.value.code == "format"
    assert not canary.exists()
    with np.load(path, allow_pickle=True) as file:  # the bomb is live
        file[name][0].close()
    assert canary.exists()


def test_a_bare_pickle_in_the_zip_is_never_opened(tmp_path):
    import pickle

    canary = tmp_path / "canary"
    path = write_record(tmp_path / "x.npz", lo=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("lo.npy", pickle.dumps(Bomb(canary)))
    with pytest.raises(RecordingError):
        read_npz(path, POLICY)
    assert not canary.exists()


def test_unknown_channels_are_refused_by_name(tmp_path):
    path = write_record(tmp_path / "x.npz", ch_std=np.array(["Fp1", "Fp2", "Nose"]))
    with pytest.raises(ChannelError, match="Nose"):
        read_npz(path, POLICY)


# Broken tables


def replaced(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("table", "old", "new", "words"),
    [
        ("index.csv", "record,file", "record,fiel", "index.csv has no rows or lacks one of the columns record, file"),
        ("index.csv", "neo_2,data", "neo_3,data", "1 records of the tasks are not in index.csv, such as 'neo_2'"),
        ("index.csv", ",neo,x2,train", "", "row 1 of index.csv has more or fewer fields"),
        ("index.csv", ",neo,x2,train", ",neo,x2,train,more", "row 1 of index.csv has more or fewer fields"),
        ("tasks/eyes.csv", "a_02", "a_99", "1 records of the tasks are not in index.csv, such as 'a_99'"),
        ("tasks/eyes.csv", ",t1,", ",t2,", "eyes.csv has no rows or lacks one of the columns"),
        ("tasks/eyes.csv", "label_name", "name", "eyes.csv has no rows or lacks one of the columns"),
        ("tasks/eyes.csv", "1.25,", "soon,", "t0 is 'soon'; expected a number"),
        ("tasks/eyes.csv", "1.25,", "nan,", "t0 is 'nan'; expected a finite number"),
        ("tasks/eyes.csv", "1.25,8.0", "8.0,1.25", "from 8 to 1.25 s; expected t0 before t1"),
        ("tasks/eyes.csv", "8.0,1,closed", "8.0,2,closed", "each label needs one name, and a name of its own"),
        ("tasks/eyes.csv", "8.0,1,closed", "8.0,1,shut", "each label needs one name, and a name of its own"),
        ("tasks/eyes.csv", "8.0,1,closed", "8.0,one,closed", "label is 'one'; expected a number"),
        ("tasks/motion_reg.csv", "3.5", "", "label2 is ''; expected a number"),
        ("pretrain.csv", "12.0", "long", "duration_s is 'long'; expected a number"),
        ("pretrain.csv", "a_01", "a_77", "such as 'a_77'"),
    ],
)
def test_a_broken_table_is_one_line(pack, table, old, new, words):
    replaced(pack / table, old, new)
    with pytest.raises(InputError) as caught:
        list(openeeg(pack).find())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(pack) not in str(caught.value)


def test_other_folders_are_refused(tmp_path, pack):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"has no index\.csv; give a folder in the format"):
            openeeg(folder)
    write_lines(pack / "tasks" / "pretrain.csv", TASKS["eyes"])
    with pytest.raises(InputError, match="give the task another name"):
        list(openeeg(pack).find())
    (pack / "tasks" / "pretrain.csv").write_bytes(b"record,\xff\n")
    with pytest.raises(InputError, match=r"pretrain\.csv cannot be read"):
        openeeg(pack)


# The real pack


def test_the_pack_opens_and_equals_its_own_reader(open_eeg):
    spec = importlib.util.spec_from_file_location("the_packs_own_reader", open_eeg / "openeeg.py")
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    with (open_eeg / "index.csv").open(newline="") as file:
        index = {row["record"]: row for row in csv.DictReader(file)}
    items = list(openeeg(open_eeg).find())
    assert [item.name for item in items] == sorted(index)
    taken = {}
    for item in items:
        row = index[item.name]
        recording = item.open(POLICY)  # every one opens
        assert recording.sfreq == float(row["sfreq"])
        assert len(recording.match.channels) == int(row["n_ch"])
        assert recording.seconds == pytest.approx(float(row["duration_s"]), abs=0.01)
        taken[row["dataset"]] = taken.get(row["dataset"], 0) + 1
        if taken[row["dataset"]] > 3:
            continue
        x_CT, info = own.load(open_eeg / row["file"])
        np.testing.assert_array_equal(recording.read(0, recording.samples).T, x_CT)
        assert [channel.name for channel in recording.match.channels] == info["ch_std"]
        assert len(recording.events) == len(info["events"])
        glued = row["dataset"] == "neonate"
        assert len(recording.segments) == (round(float(row["duration_s"])) if glued else 1)
    assert len(taken) == 8


def test_splits_of_the_pack_are_by_subject(open_eeg):
    recipe = openeeg(open_eeg)
    splits, by_task = {}, {}
    for item in recipe.find():
        for task, intervals in item.labels.items():
            for interval in intervals:
                by_task.setdefault(task, {}).setdefault(interval.split, set()).add(item.subject)
                if task != "pretrain":
                    splits.setdefault(item.subject, set()).add(interval.split)
    assert set(recipe.tasks) == set(by_task) - {"pretrain"}
    shared = {subject for subject, found in splits.items() if len(found) > 1}
    assert shared == {"eegmmidb_S001"}  # its README: one subject, split by run
    units = {name: task.split_unit for name, task in recipe.tasks.items()}
    assert {name: unit for name, unit in units.items() if unit is not None} == {"mi_s001": "recording"}
    pretrain = by_task["pretrain"]
    assert set(pretrain) == {"train", "val"}
    assert not pretrain["train"] & pretrain["val"]
    tested = {subject for task, found in by_task.items() if task != "pretrain" for subject in found.get("test", ())}
    assert not (tested - shared) & (pretrain["train"] | pretrain["val"])
    kinds = {name: task.kind for name, task in recipe.tasks.items()}
    assert {name for name, kind in kinds.items() if kind == "regression"} == {
        "head_motion_reg",
        "n_subtractions_reg",
        "stress_rating_reg",
    }
    assert recipe.tasks["stress4"].names[0] == "relax"
    assert recipe.tasks["head_motion_reg"].names == ("label", "label2")
