"""A store as arrays: the windows, labels, splits and subjects of fine-tuning, in microvolts, or one line why not."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cerebro_eeg
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CerebroWarning, ConfigError, InputError
from cerebro_eeg.runs import stored
from cerebro_eeg.runs.windows import find_splits, read_task
from train_stores import MONTAGES, SPLITS, make_store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays") / "store"
    make_store(folder, 7, 4)  # montages in turn: 3 channels, 5 channels, 2 other ones
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return cerebro_eeg.open_store(folder)


def read_plainly(folder, task, channels):
    """Windows, labels, subjects, ids, starts and splits, recording by recording, without ``find_windows``."""
    plain = Store(folder)
    for record in plain.recordings:
        if not set(channels) <= set(record.channels):
            continue
        columns = [record.channels.index(name) for name in channels]
        for interval in record.labels[task]:
            first = round(interval.start * record.sfreq)
            x = plain.read(record, first, first + 256)[:, columns].T.astype(np.float32)
            yield x, interval, record.subject, record.id


def test_arrays_are_the_windows_of_the_store(folder, store):
    channels = ["O1", "Fp1"]
    with pytest.warns(CerebroWarning, match="2 recordings lacking one of the 2 channels asked for were left out"):
        X, y, groups, info = store.arrays("alpha", channels=channels)
    assert X.dtype == np.float32
    assert X.shape == (20, 2, 256)
    expected = list(read_plainly(folder, "alpha", channels))
    assert np.array_equal(X, np.stack([x for x, *_ in expected]))
    assert y.tolist() == [interval.label for _, interval, *_ in expected]
    assert groups.tolist() == [subject for *_, subject, _ in expected]
    frame = info.to_frame()
    assert list(frame) == ["recording", "start", "subject", "split", "label"]
    assert frame["label"].tolist() == y.tolist()
    assert frame["recording"].tolist() == [id for *_, id in expected]
    assert frame["start"].tolist() == [interval.start for _, interval, *_ in expected]
    assert frame["split"].tolist() == [interval.split for _, interval, *_ in expected]
    assert (info.channels, info.sfreq, info.seconds, info.names) == (("O1", "Fp1"), 256.0, 1.0, ("slow", "fast"))
    assert (info.task, len(info)) == ("alpha", 20)
    assert repr(info) == "<WindowInfo: 20 windows of alpha, 2 channels, 1 s at 256 Hz>"
    assert 5 < np.abs(X).mean() < 50  # microvolts: a wave of about 20


@pytest.mark.parametrize("split", ["train", ["val", "test"], None])
@pytest.mark.filterwarnings("ignore:2 recordings lacking")  # of the third montage; none of val and test has it
def test_splits_are_those_of_fine_tuning(store, split):
    _, y, groups, info = store.arrays("third", channels=["Fp1"], split=split)
    assert set(info.split) == {"train", "val", "test"} if split is None else set(info.split) == {*np.atleast_1d(split)}
    for subject, part in zip(groups, info.split, strict=True):
        assert SPLITS[int(subject[-1]) % len(SPLITS)] == part
    (own,) = find_splits(store, read_task(store, "third", None, None, None))
    parts = {"train": own.train, "val": own.validation, "test": own.test}
    for name in set(info.split):
        windows = parts[name]
        kept = np.isin(np.array(windows.facts.ids)[windows.recording], info.recording)
        assert y[info.split == name].tolist() == np.array(windows.names)[windows.label[kept]].tolist()


def test_values_of_a_regression(store):
    with pytest.warns(CerebroWarning):
        X, y, _, info = store.arrays("level", channels=["Fp1"])
    assert y.dtype == np.float32
    assert y.shape == (len(X), 2)
    assert y[:2].tolist() == [[100.0, 0.0], [105.0, 1.0]]
    assert info.names == ("x", "y")
    assert info.to_frame()[["target_x", "target_y"]].to_numpy().tolist() == y.tolist()


def test_without_a_task_all_time_is_cut(store, folder):
    with pytest.warns(CerebroWarning):
        X, y, _, info = store.arrays(seconds=1.5, stride=0.5, channels=["Pz"])
    assert y is None
    assert X.shape == (12, 1, 384)
    assert info.start.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] * 2
    assert set(info.split) == {None}
    found = find_windows(Store(folder), seconds=1.5, stride=0.5)
    assert len(found) == 42


def test_the_rule_for_mixed_montages(store, tmp_path):
    """The channels that all share, in one line; none is shared here, so a choice is asked for."""
    with pytest.raises(InputError, match="have 3 montages that share no channel; give channels="):
        store.arrays("alpha")
    make_store(tmp_path / "two", 2, 2)
    two = cerebro_eeg.open_store(tmp_path / "two")
    line = r"have 2 montages; X has the 2 channels that all share \(Fp1, O1\), and channels=\[...\] chooses others"
    with pytest.warns(CerebroWarning, match=line) as caught:
        X, *_, info = two.arrays("alpha")
    assert caught[0].filename == __file__
    assert info.channels == ("Fp1", "O1")
    alone = two.read(1, 0, 256)
    assert np.array_equal(X[2], alone[:, [MONTAGES[1].index(name) for name in ("Fp1", "O1")]].T.astype(np.float32))
    make_store(tmp_path / "one", 1, 2)
    assert cerebro_eeg.open_store(tmp_path / "one").arrays("alpha").info.channels == MONTAGES[0]  # no warning


@pytest.mark.parametrize(
    ("choices", "error", "line"),
    [
        ({"task": "nap"}, InputError, "the store has no task 'nap'; its tasks are: alpha"),
        ({"task": "alpha", "split": "dev"}, InputError, "task 'alpha' has no split dev; it has test, train, val"),
        ({"split": "train"}, ConfigError, "split and labels belong to a task"),
        ({"task": "alpha", "channels": "Cz"}, ConfigError, "channels is 'Cz'; expected a list of names"),
        ({"task": "alpha", "channels": []}, ConfigError, "channels is empty or names one twice"),
        ({"task": "alpha", "channels": ["T3", "T7"]}, ConfigError, "channels is empty or names one twice"),
        ({"task": "alpha", "channels": ["Fz"]}, InputError, "channels are Fz: no recording has Fz; the store has Fp1"),
        ({"task": "alpha", "channels": ["Cz", "Pz"]}, InputError, "channels are Cz, Pz: no recording has all of them"),
        ({"task": "alpha", "seconds": 9.0}, InputError, "no window was found"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(store, choices, error, line):
    with pytest.raises(error, match=re.escape(line)):
        store.arrays(**choices)


def test_names_of_channels_may_be_those_of_files(store):
    with pytest.warns(CerebroWarning):
        assert store.arrays("alpha", channels=["EEG FP1-REF"]).info.channels == ("Fp1",)


def test_arrays_that_do_not_fit_are_refused_before_they_are_made(store, monkeypatch):
    line = "20 windows of 1 channels and 256 samples take 20.5 kB, and 25 kB of memory are free; ask for one split"
    monkeypatch.setattr(stored, "free_memory", lambda: 25_000)
    made = np.empty
    monkeypatch.setattr(np, "empty", lambda shape, *rest: pytest.fail("X was made") if len(shape) == 3 else made(shape))
    with pytest.warns(CerebroWarning), pytest.raises(InputError, match=line):
        store.arrays("alpha", channels=["O1"])
    monkeypatch.undo()
    assert stored.free_memory() is None or stored.free_memory() > 1e6
    monkeypatch.setattr(stored, "free_memory", lambda: None)
    stored._check_memory(10**9, 1, 1)  # a system that does not say: no refusal


def test_a_recording_without_a_subject_is_its_own(store):
    windows, _ = stored.stored_windows(store, "alpha")
    facts = replace(windows.facts, subject=np.full_like(windows.facts.subject, -1))
    about = stored.describe_windows(store, replace(windows, facts=facts))
    assert set(about.subject) == {None}
    assert about.groups.tolist() == about.recording.tolist()


def test_an_open_store_shows_itself(store, folder):
    assert repr(store) == f"<OpenStore: {folder}: 7 recordings, 0.01 h>"
    assert store.tasks == ("alpha", "folded", "level", "third")
    assert store.splits("alpha") == ["test", "train", "val"]
    assert store.to_frame()["channels"].tolist() == [3, 5, 2, 3, 5, 2, 3]
    html = store._repr_html_()
    assert "alpha (test, train, val)" in html
    assert Path(store) == folder  # it can be given where a path is expected
