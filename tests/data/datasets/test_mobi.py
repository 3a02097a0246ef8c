"""The recipe ``mobi`` on a small copy of the corpus's layout: every target, split and sample; damaged pieces."""

import pickle

import numpy as np
import pytest

from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets import mobi as mobi_module
from cerebro_eeg.data.datasets.mobi import ORDER, STRETCHES, Angles, mobi, open_mobi, open_mobi_as_named
from cerebro_eeg.data.reading.recording import ChannelPolicy, Segment
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, RecordingError
from mobi_files import CAP, CODES, angles, signal, write_impedances, write_table, write_trial

EOG = ("TP9", "TP10", "FT9", "FT10")
N = 653  # samples of a trial: no whole number of 50 ms


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two people; the second's angles go further in the second and third trial than in the first."""
    folder = tmp_path_factory.mktemp("mobi") / "RepositoryData"
    for subject in (1, 2):
        for trial in (1, 2, 3):
            reach = {} if subject == 1 or trial == 1 else {"low": -20.0, "high": 90.0}
            write_trial(folder / f"SL0{subject}-T0{trial}", signal(10 * subject + trial, N), angles(N, **reach))
    return folder


@pytest.fixture
def trial(tmp_path):
    """One trial, to be damaged."""
    return write_trial(tmp_path / "SL01-T01", signal(1, 60), angles(60))


def scaled(subject, trial):
    """By hand: 0 is low, 1 is high of the first trial, which are -10 + j and 40 + j for angle j."""
    reach = {} if subject == 1 or trial == 1 else {"low": -20.0, "high": 90.0}
    return np.round((angles(N, **reach) - (-10.0 + np.arange(12))) / 50.0, 4)


def test_recipe(corpus):
    recipe = mobi(corpus)
    assert (recipe.split_unit, recipe.mains, recipe.signal.sfreq, recipe.own_ids) == ("trial", 60.0, 100.0, True)
    assert not recipe.tried_on_real_files
    assert dict(recipe.tasks) == {"joints": Task("regression", tuple(CODES), 2.0, 0.05, labels="last")}
    assert dict(mobi(corpus, task="goniometers").tasks) == {
        "goniometers": Task("regression", ("GHR", "GKR", "GAR", "GHL", "GKL", "GAL"), 2.0, 0.05, labels="last")
    }


def test_items(corpus):
    items = list(mobi(corpus).find())
    assert [(item.name, item.subject) for item in items] == [
        (f"mobi_SL0{s}-T0{t}", f"mobi_SL0{s}") for s in (1, 2) for t in (1, 2, 3)
    ]
    assert all(item.size > 0 for item in items)
    assert all(len(pickle.dumps(item)) < 2000 for item in items)  # labels are read where the trial is, not sent there


@pytest.mark.parametrize(("task", "width"), [("joints", 12), ("goniometers", 6)])
def test_labels_one_by_one(corpus, task, width):
    for item in mobi(corpus, task=task).find():
        subject, number = int(item.name[8]), int(item.name[-1])
        values, split = scaled(subject, number), ["train", "val", "test"][number - 1]
        assert list(item.labels) == [task]
        assert "other" not in item.labels
        assert item.labels[task] == tuple(
            Interval(round(0.05 * k, 2), round(0.05 * k + 0.05, 2), split, None, tuple(values[5 * k + 4, :width]))
            for k in range(130)
        )
        least, most = values.min(), values.max()
        assert (least, most) == ((0.0, 1.0) if subject == 1 or number == 1 else (-0.2, 2.0))  # beyond stays beyond


def test_samples_and_channels(corpus):
    recording = open_mobi(corpus / "SL01-T02", ChannelPolicy())
    assert recording.segments == (Segment(0, N, 0.0),)
    assert recording.faults == ()
    columns = [c for c, name in enumerate(CAP) if name not in EOG]
    assert len(columns) == len(recording.match.names) == 60
    np.testing.assert_array_equal(recording.read(0, N), signal(12, N)[:, columns].astype(np.float32))
    moved = {"T7": "FCz", "T8": "AFz"}
    assert list(recording.match.names) == [moved.get(CAP[c], CAP[c]) for c in columns]


def test_through_a_store(corpus, tmp_path):
    done = prepare(mobi(corpus), tmp_path / "store")
    assert (done.recordings, done.skipped, done.montages) == (6, {}, {60: 6})
    store = Store(tmp_path / "store")
    windows = {
        s: find_windows(store, seconds=2.0, stride=0.05, task="joints", split=s, labels="last")
        for s in ("train", "val", "test")
    }
    assert assert_disjoint(windows) == "trial"
    for number, (split, found) in enumerate(windows.items(), 1):
        assert len(found) == 2 * ((650 - 200) // 5 + 1), split
        for subject in (1, 2):
            mine = [
                n for n, (id, _) in enumerate(found.ids(range(len(found)))) if id == f"mobi_SL0{subject}-T0{number}"
            ]
            starts = found.start[mine]
            np.testing.assert_array_equal(starts, np.arange(0, 451, 5))
            # exactly the angles of the last sample of each window
            np.testing.assert_array_equal(found.target[mine], scaled(subject, number)[starts + 199].astype(np.float32))
    assert {record.mains for record in store.recordings} == {None}  # 60 Hz is above the pass-band of 100 Hz
    found = prepare(mobi(corpus, task="goniometers"), tmp_path / "store")
    assert (found.changed.rewritten, found.changed.again) == (6, {})
    assert found.hash == prepare(mobi(corpus, task="goniometers"), tmp_path / "fresh").hash != done.hash


def test_a_gap_in_the_times_is_a_gap_in_both(tmp_path):
    """A second is lost before sample 403: no interval or window goes over it, and angles stay with their samples."""
    times = np.arange(800) / 100 + (np.arange(800) >= 403)
    folder = write_trial(tmp_path / "SL03-T01", signal(1, 800), angles(800), times)
    assert [(s.start, s.stop) for s in open_mobi(folder, ChannelPolicy()).segments] == [(0, 403), (403, 800)]
    prepare(mobi(tmp_path), tmp_path / "store")
    found = find_windows(Store(tmp_path / "store"), seconds=2.0, stride=0.05, task="joints", labels="last")
    starts = found.start.tolist()
    assert starts == [*range(0, 201, 5), *range(403, 403 + 196, 5)]
    expected = np.round((angles(800) - (-10.0 + np.arange(12))) / 50.0, 4)[np.array(starts) + 199]
    np.testing.assert_array_equal(found.target, expected.astype(np.float32))


def test_angles_that_are_missing_or_do_not_move(trial):
    values = angles(60)
    values[9, 3] = np.nan  # the last sample of the second interval
    values[:, 8] = 7.0
    write_table(trial / "joints.txt", [f"12 joints ({' '.join(CODES)})", "x"], np.arange(60) / 100, values)
    (item,) = mobi(trial.parent).find()
    intervals = item.labels["joints"]
    assert intervals[1] == Interval(0.05, 0.1, "train")
    assert [len(interval.values) for interval in intervals] == [12, 0, *[12] * 10]
    assert {interval.values[8] for interval in intervals if interval.values} == {0.0}


def test_an_angle_without_any_value(trial):
    values = angles(60)
    values[:, 3] = np.nan
    write_table(trial / "joints.txt", [f"12 joints ({' '.join(CODES)})", "x"], np.arange(60) / 100, values)
    (item,) = mobi(trial.parent).find()
    with pytest.raises(RecordingError, match="an angle of the training trial has no values"):
        item.labels["joints"]


# The protocol of another public script

PROTOCOL = "joints_biofoundation"


def test_the_protocol_on_a_trial_of_full_length(tmp_path):
    """23 minutes of angles: 10, 5 and 5 minutes behind the first two, each cut into steps of 50 ms."""
    rows, folder = 23 * 6000, tmp_path / "SL01-T02"  # no first trial is needed: nothing is scaled by it
    folder.mkdir()
    lines = [f"12 joints ({' '.join(CODES)})", "x"]
    lines += [f"{row / 100:.2f}" + f"\t{row % 1000}" * 12 for row in range(rows)]
    (folder / "joints.txt").write_text("\n".join(lines) + "\n")
    for name in ("eeg.txt", "impedances-before.txt"):
        (folder / name).write_text("not read here")
    (item,) = mobi(tmp_path, protocol="biofoundation").find()
    intervals = item.labels[PROTOCOL]
    assert len(pickle.dumps(item)) < 2000
    assert [[i.split for i in intervals].count(split) for split in ("train", "val", "test")] == [12000, 6000, 6000]
    first = {split: next(i for i in intervals if i.split == split) for split in ("train", "val", "test")}
    last = {i.split: i for i in intervals}
    assert [(first[s].start, last[s].stop) for s in first] == [(120.0, 720.0), (720.0, 1020.0), (1020.0, 1320.0)]
    # rows 12000 to 12004 have 0, 1, 2, 3 and 4 degrees: 2 on average, 2 / 90 = 0.0222
    assert first["train"] == Interval(120.0, 120.05, "train", None, (0.0222,) * 12)
    assert last["test"] == Interval(1319.95, 1320.0, "test", None, (round(997 / 90, 4),) * 12)


def test_the_protocol_through_a_store(corpus, tmp_path, monkeypatch):
    """The same with seconds for minutes: windows lie in one split, and have the mean of their last five samples."""
    seconds = {split: (start / 60 / 4, stop / 60 / 4) for split, (start, stop) in STRETCHES.items()}
    monkeypatch.setattr(mobi_module, "STRETCHES", seconds)  # 0.5 to 3, 3 to 4.25 and 4.25 to 5.5 s
    store = tmp_path / "store"
    done = prepare(mobi(corpus, protocol="biofoundation"), store)
    assert (done.recordings, done.skipped, done.montages) == (6, {}, {60: 6})
    assert done.faults == {"other_columns": 6}  # the cap of these files is not in the order of the script
    assert {"T7", "T8"} <= set(Store(store).recordings[0].channels)
    parts = {
        split: find_windows(Store(store), seconds=1.0, stride=0.05, task=PROTOCOL, split=split, labels="last")
        for split in STRETCHES
    }
    assert assert_disjoint(parts) == "trial"
    limits = {"train": (50, 300), "val": (300, 425), "test": (425, 550)}
    for split, found in parts.items():
        low, high = limits[split]
        expected = np.arange(low, high - 100 + 1, 5)
        for subject, trial in [(1, 1), (2, 3)]:
            ids = found.ids(range(len(found)))
            mine = [n for n, (id, _) in enumerate(ids) if id == f"mobi_SL0{subject}-T0{trial}"]
            np.testing.assert_array_equal(found.start[mine], expected)
            reach = {} if subject == 1 else {"low": -20.0, "high": 90.0}
            means = [angles(N, **reach)[start + 95 : start + 100].mean(0) / 90 for start in expected]
            np.testing.assert_allclose(found.target[mine], np.array(means), atol=5.1e-5)  # four digits are kept


def test_the_protocol_on_a_short_trial_and_missing_angles(trial):
    values = angles(60)
    values[7, 3] = np.nan
    write_table(trial / "joints.txt", [f"12 joints ({' '.join(CODES)})", "x"], np.arange(60) / 100, values)
    (item,) = mobi(trial.parent, protocol="biofoundation").find()
    assert item.labels[PROTOCOL] == ()  # 0.6 s: nothing is left behind the first two minutes
    whole = Angles(trial / "joints.txt", None, {"train": (0.0, 1.0)}, PROTOCOL, 6)
    assert [len(interval.values) for interval in whole[PROTOCOL]] == [6, 0, *[6] * 10]


def test_the_protocol_knows_the_order_of_its_script(trial):
    write_impedances(trial / "impedances-before.txt", ORDER)
    recording = open_mobi_as_named(trial, ChannelPolicy())
    assert recording.faults == ()
    assert list(recording.match.names) == [name for name in ORDER if name not in EOG]
    assert sorted(ORDER) == sorted(CAP)
    with pytest.raises(ConfigError, match="protocol is 'labram'; use 'biofoundation'"):
        mobi(trial.parent, protocol="labram")


# Damaged and missing pieces


def changed(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "code", "words"),
    [
        ("eeg.txt", b"64 channels", b"32 channels", "columns", "does not begin with the line '64 channels'"),
        ("eeg.txt", b"\r\n0.100\t", b"\r\n", "columns", "line 12 of eeg.txt has 64 values; expected 65"),
        ("eeg.txt", b"\r\n0.100\t", b"\r\nCANARY\t", "number", "a value in lines 2 to 61 is not a number"),
        ("eeg.txt", b"\r\n0.100\t", b"\r\n\t", "number", "a value in lines 2 to 61 is not a number"),
        ("eeg.txt", b"\r\n0.100\t", b"\r\n0.101\t", "stamps", "or their times differ"),
        ("eeg.txt", b"\r\n0.100\t", b"\r\n0.050\t", "stamps", "time runs backwards"),
        ("joints.txt", b"GHR GKR", b"GKR GHR", "columns", "joints.txt does not name the angles"),
        ("joints.txt", b"(", b"", "columns", "joints.txt does not name the angles"),
        ("impedances-before.txt", b"#64", b"64", "columns", "names 63 channels; expected 64"),
        ("impedances-before.txt", b"Phys. Chn.", b"Channels", "columns", "names 0 channels; expected 64"),
    ],
)
def test_a_broken_trial_is_skipped_and_says_why(trial, tmp_path, file, old, new, code, words):
    changed(trial / file, old, new)
    with pytest.raises(RecordingError) as caught:
        open_mobi(trial, ChannelPolicy())
    assert caught.value.code == code
    assert words in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert prepare(mobi(tmp_path), tmp_path / "store").skipped == {"mobi_SL01-T01": code}


@pytest.mark.parametrize(("file", "lines", "words"), [("eeg.txt", 1, "no rows"), ("joints.txt", 40, "joints.txt 38")])
def test_a_cut_table(trial, file, lines, words):
    path = trial / file
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    with pytest.raises(RecordingError, match=words):
        open_mobi(trial, ChannelPolicy())


def test_another_rate_is_refused(tmp_path):
    folder = write_trial(tmp_path / "SL01-T01", signal(1, 1000), angles(1000), np.arange(1000) * 0.003)
    with pytest.raises(RecordingError, match="the time stamps say 333") as caught:
        open_mobi(folder, ChannelPolicy())
    assert caught.value.code == "rate"


def test_an_electrode_that_is_none(trial):
    write_impedances(trial / "impedances-before.txt", ["Nose", *CAP[1:]])
    with pytest.raises(InputError, match="Nose"):
        open_mobi(trial, ChannelPolicy())


def test_missing_pieces(trial, tmp_path):
    with pytest.raises(InputError, match="no folder SL01-T01 "):
        mobi(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="task is 'legs'; use one of 'joints', 'goniometers'"):
        mobi(tmp_path, task="legs")
    second = write_trial(tmp_path / "SL02-T02", signal(1, 10), angles(10))
    lonely = {item.name: item for item in mobi(tmp_path).find()}["mobi_SL02-T02"]
    with pytest.raises(RecordingError, match="SL02-T01 is missing, which the angles of SL02-T02 are scaled by"):
        lonely.open(ChannelPolicy())
    second.rename(tmp_path / "SL01-T04")
    with pytest.raises(InputError, match="there is a trial SL01-T04; expected T01, T02, T03"):
        mobi(tmp_path)
    (tmp_path / "SL01-T04").rename(tmp_path / "SL01-T02")
    (tmp_path / "SL01-T02" / "joints.txt").unlink()
    done = prepare(mobi(tmp_path), tmp_path / "store")
    assert done.recordings == 1
    assert done.skipped == {"mobi_SL01-T02": "missing"}
