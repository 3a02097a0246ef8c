"""Data sets of braindecode as a folder and as a store: known labels, times, units and subjects; nothing is downloaded.

Where braindecode is not installed these run on stand-ins with the attributes that it documents, which proves our side
only. Run it with braindecode: pytest tests/data/datasets/test_concat.py in an environment that has it.
"""

import csv
import importlib
from types import SimpleNamespace

import mne
import numpy as np
import pytest

from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets.concat import to_folder
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError

try:
    braindecode = importlib.import_module("braindecode.datasets")
    pandas = importlib.import_module("pandas")
except ImportError:
    braindecode = None

RATE = 128.0
SECONDS = 20
CHANNELS = ["Fp1", "Cz", "O2"]


def signal(seed, samples=int(RATE * SECONDS)):
    return np.random.default_rng(seed).normal(0, 2e-5, (len(CHANNELS), samples))


def info():
    return mne.create_info(CHANNELS, RATE, "eeg")


def raw_of(seed, factor=1.0):
    return mne.io.RawArray(factor * signal(seed), info(), verbose="error")


def table_of(rows):
    """The metadata of windows: (first sample, last sample, target)."""
    columns = {
        "i_window_in_trial": list(range(len(rows))),
        "i_start_in_trial": [row[0] for row in rows],
        "i_stop_in_trial": [row[1] for row in rows],
        "target": [row[2] for row in rows],
    }
    return columns if braindecode is None else pandas.DataFrame(columns)


class Series(dict):
    """A description, for a stand-in: as with those of pandas, one cannot ask whether there is one."""

    def __bool__(self):
        raise ValueError("ambiguous")


class Table(Series):
    """The metadata of windows, for a stand-in: as long as its columns."""

    def __len__(self):
        return len(self["target"])


def raw_part(seed, description, target=None, factor=1.0):
    if braindecode is None:
        return SimpleNamespace(raw=raw_of(seed, factor), description=Series(description), target_name=target)
    return braindecode.RawDataset(raw_of(seed, factor), description, target_name=target)


def window_part(seed, description, rows):
    if braindecode is None:
        return SimpleNamespace(raw=raw_of(seed), description=Series(description), metadata=Table(table_of(rows)))
    return braindecode.EEGWindowsDataset(raw_of(seed), table_of(rows), description=description)


def epoch_part(seed, description, targets, seconds=2.0):
    samples = int(seconds * RATE)
    values = signal(seed, samples * len(targets)).reshape(3, len(targets), samples).transpose(1, 0, 2)
    rows = [(i * samples, (i + 1) * samples, target) for i, target in enumerate(targets)]
    if braindecode is None:
        epochs = mne.EpochsArray(values, info(), verbose="error")
        return SimpleNamespace(windows=epochs, description=Series(description), metadata=Table(table_of(rows)))
    epochs = mne.EpochsArray(values, info(), metadata=table_of(rows), verbose="error")
    return braindecode.WindowsDataset(epochs, description)


def concat(*parts):
    return SimpleNamespace(datasets=list(parts)) if braindecode is None else braindecode.BaseConcatDataset(parts)


def rows_of(table):
    return list(csv.DictReader(table.read_text().splitlines()))


def stored(table, tmp_path, **options):
    done = prepare(folder(table.parent, labels=table, **options), tmp_path / "store", key_file=tmp_path / "key")
    assert done.skipped == {}
    return Store(tmp_path / "store")


def test_recordings_with_one_label_each(tmp_path):
    sets = concat(
        *(raw_part(n, {"subject": f"s{n // 2}", "sick": bool(n % 2), "age": 30 + n}, "sick") for n in range(4))
    )
    table = to_folder(sets, tmp_path / "data")
    assert table == tmp_path / "data" / "target.csv"
    assert [(row["file"], row["subject"], row["label"], row["start"]) for row in rows_of(table)] == [
        ("00000-raw.fif", "s0", "False", ""),
        ("00001-raw.fif", "s0", "True", ""),
        ("00002-raw.fif", "s1", "False", ""),
        ("00003-raw.fif", "s1", "True", ""),
    ]
    store = stored(table, tmp_path, split="subject")
    assert store.info.settings["tasks"]["target"]["names"] == ["False", "True"]
    assert {(record.channels, record.native_sfreq) for record in store.recordings} == {(tuple(CHANNELS), RATE)}
    assert len({record.subject for record in store.recordings}) == 2
    # microvolts of the very recording, away from its edges: the band-pass leaves the noise below 57 Hz
    assert all(5 < record.scale < 25 for record in store.recordings)
    again = to_folder(sets, tmp_path / "ages", label="age", subject=None, task="ages")
    assert [row["label"] for row in rows_of(again)] == ["30", "31", "32", "33"]


def test_windows_of_recordings_keep_their_times(tmp_path):
    rows = [(0, 256, 0), (256, 512, 1), (640, 896, 1), (768, 1024, 1), (768, 1024, 1)]
    table = to_folder(concat(window_part(1, {"subject": 7}, rows)), tmp_path / "data", task="move")
    assert [(row["label"], float(row["start"]), float(row["stop"])) for row in rows_of(table)] == [
        ("0", 0.0, 2.0),
        ("1", 2.0, 4.0),
        ("1", 5.0, 7.0),
        ("1", 6.0, 8.0),  # overlapping windows with one label are fine, and the same one counts once
    ]
    windows = find_windows(stored(table, tmp_path), seconds=2, task="move")
    assert [(start / 256, label) for start, label in zip(windows.start, windows.label, strict=True)] == [
        (0.0, 0),
        (2.0, 1),
        (5.0, 1),
        (6.0, 1),
    ]


def test_windows_that_were_cut_before_are_read_one_by_one(tmp_path):
    sets = concat(epoch_part(3, {"subject": "a"}, [2, 5, 2]), epoch_part(4, {"subject": "b"}, [5]))
    store = stored(to_folder(sets, tmp_path / "data"), tmp_path)
    windows = find_windows(store, seconds=2, task="target")
    assert store.info.settings["tasks"]["target"]["names"] == ["2", "5"]
    assert sorted(len(record.segments) for record in store.recordings) == [1, 3]
    assert sorted(windows.label.tolist()) == [0, 0, 1, 1]


def test_numbers_that_are_not_whole_are_targets(tmp_path):
    sets = concat(raw_part(1, {"subject": "a", "age": 31.5}, "age"), raw_part(2, {"subject": "b", "age": 40.0}, "age"))
    table = to_folder(sets, tmp_path / "data")
    assert [row["target"] for row in rows_of(table)] == ["31.5", "40"]
    assert stored(table, tmp_path).info.settings["tasks"]["target"]["kind"] == "regression"


def test_missing_labels_and_splits(tmp_path):
    sets = concat(
        raw_part(1, {"subject": "a", "state": "ill", "part": "train"}),
        raw_part(2, {"subject": "b", "state": float("nan"), "part": "test"}),
        raw_part(3, {"subject": "c", "state": "well", "part": "test"}),
    )
    table = to_folder(sets, tmp_path / "data", label="state", split="part")
    assert [(row["label"], row["split"]) for row in rows_of(table)] == [
        ("ill", "train"),
        ("", "test"),
        ("well", "test"),
    ]
    windows = find_windows(stored(table, tmp_path), seconds=5, task="target", split="test")
    assert windows.label.tolist() == [1] * 4


def test_microvolts_that_are_called_volts_are_noticed(tmp_path):
    sets = concat(raw_part(1, {"subject": "a"}, factor=1e6))
    with pytest.raises(InputError, match=r"a spread of .* V, which no EEG has.*unit='uV'"):
        to_folder(sets, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []  # nothing is left of it
    said = to_folder(sets, tmp_path / "said", unit="uV").parent / "00000-raw.fif"
    right = to_folder(concat(raw_part(1, {"subject": "a"})), tmp_path / "right").parent / "00000-raw.fif"
    one, other = (mne.io.read_raw_fif(path, verbose="error").get_data() for path in (said, right))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_data_set_itself_stays_as_it_is(tmp_path):
    part = raw_part(1, {"subject": "a"}, factor=1e6)
    before = part.raw.get_data()
    to_folder(concat(part), tmp_path / "data", unit="uV")
    np.testing.assert_array_equal(part.raw.get_data(), before)


def test_mistakes(tmp_path):
    sets = concat(raw_part(1, {"subject": "a", "state": "ill"}))
    with pytest.raises(
        ConfigError, match=r"no part has 'stat' in its description \(did you mean 'state'\?\); its columns"
    ):
        to_folder(sets, tmp_path / "data", label="stat")
    with pytest.raises(ConfigError, match="cannot name a table"):
        to_folder(sets, tmp_path / "data", task="a/b")
    with pytest.raises(ConfigError, match="is not a unit of voltage"):
        to_folder(sets, tmp_path / "data", unit="furlong")
    with pytest.raises(InputError, match="the data set has no parts"):
        to_folder(SimpleNamespace(datasets=[]), tmp_path / "data")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        to_folder(sets, tmp_path / "full")
    assert not (tmp_path / "data").exists()
