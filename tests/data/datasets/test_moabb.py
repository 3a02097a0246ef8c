"""The recipe ``moabb``: known trials, splits and ids; nothing is downloaded, and no folder but the given one is used.

Where MOABB is not installed these run on a stand-in for its base class (``moabb_files``), which proves our side only.
"""

import importlib
import os
import pickle
import socket
import sys
import types

import numpy as np
import pytest

from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import find_event_windows, find_windows
from cerebro_eeg.data.datasets import moabb as recipe_module
from cerebro_eeg.data.datasets.moabb import _load, _shut, moabb
from cerebro_eeg.data.reading.mne_warnings import quietly
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from moabb_files import RATE, TRIALS, datasets, raw_of

CLASSES = ("left_hand", "right_hand", "rest")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """The small datasets, as if they were some of MOABB's."""
    made, real = datasets()
    if real:
        module = importlib.import_module("moabb.datasets")
    else:
        module = types.ModuleType("moabb.datasets")
        monkeypatch.setitem(sys.modules, "moabb", types.ModuleType("moabb"))
        monkeypatch.setitem(sys.modules, "moabb.datasets", module)
    for name, cls in vars(made).items():
        monkeypatch.setattr(module, name, cls, raising=False)
    _load.cache_clear()
    yield made
    _load.cache_clear()


def trials(split=None, names=CLASSES):
    """From half a second behind the cue to two and a half."""
    return tuple(Interval(t + 0.5, t + 2.5, split, name) for t, name in TRIALS if name in names)


def test_runs_are_recordings_and_trials_labels(tmp_path):
    recipe = moabb(tmp_path, task="Tiny")
    items = list(recipe.find())
    assert [item.name for item in items] == [
        f"Tiny_{subject}_{run}" for subject in (1, 2, 3, 4, 10) for run in ("0train_0", "0train_1", "1test_0")
    ]
    assert [item.subject for item in items[:4]] == ["Tiny_1", "Tiny_1", "Tiny_1", "Tiny_2"]
    assert all(dict(item.labels) == {"Tiny": trials()} for item in items)
    assert {item.events for item in items} == {CLASSES}
    assert {item.mains for item in items} == {50.0}
    assert dict(recipe.tasks) == {"Tiny": Task("classification", CLASSES, 2.0, 2.0)}
    assert recipe.own_ids
    assert recipe.split_unit == "subject"
    assert "5 of 5 subjects" in recipe.about


@pytest.mark.parametrize("name", ["Tiny", "InMicrovolts"])
def test_samples_are_microvolts(tmp_path, name):
    item = list(moabb(tmp_path, task=name, subject="2").find())[1]
    recording = pickle.loads(pickle.dumps(item.open))(ChannelPolicy())
    assert [channel.name for channel in recording.match.channels] == ["C3", "Cz", "C4"]
    assert recording.sfreq == RATE
    expected = raw_of(201, 1.0).get_data()[:3].T  # subject 2, session 0, run 1
    np.testing.assert_allclose(recording.read(0, recording.samples), expected, rtol=1e-5, atol=1e-4)


def test_some_classes_and_some_subjects(tmp_path):
    recipe = moabb(tmp_path, task="Tiny", subject="10, 2", events=("rest", "left_hand"))
    assert [item.name for item in recipe.find()][::3] == ["Tiny_2_0train_0", "Tiny_10_0train_0"]
    assert next(recipe.find()).labels["Tiny"] == trials(names=("left_hand", "rest"))
    assert recipe.tasks["Tiny"].names == ("rest", "left_hand")


def test_splits_by_subject_have_all_three_and_do_not_depend_on_who_is_taken(tmp_path):
    whole = {
        item.subject: item.labels["Tiny"][0].split for item in moabb(tmp_path, task="Tiny", split="subject").find()
    }
    assert sorted(whole.values()) == ["test", "train", "train", "train", "val"]
    some = moabb(tmp_path, task="Tiny", split="subject", subject="3,4")
    assert {item.subject: item.labels["Tiny"][0].split for item in some.find()} == {
        name: whole[name] for name in ("Tiny_3", "Tiny_4")
    }


def test_splits_by_session(tmp_path):
    recipe = moabb(tmp_path, task="Tiny", split="session", subject="1")
    assert [item.labels["Tiny"] for item in recipe.find()] == [trials("train"), trials("train"), trials("test")]
    assert recipe.split_unit == "recording"
    with pytest.raises(InputError, match="subject 1 has 1 session; expected 2 or more"):
        list(moabb(tmp_path, task="OneSession", split="session").find())


def test_into_a_store(tmp_path):
    recipe = moabb(tmp_path, task="Tiny", split="session", subject="1,2")
    store = tmp_path / "store"
    assert prepare(recipe, store, workers=0).skipped == {}
    windows = {name: find_windows(Store(store), seconds=2.0, task="Tiny", split=name) for name in ("train", "test")}
    assert windows["train"].label.tolist() == [0, 1, 2] * 4
    assert windows["test"].start.tolist() == [round((t + 0.5) * 256) for t, _ in TRIALS] * 2
    assert assert_disjoint(windows) == "recording"
    assert {record.subject for record in Store(store).recordings} == {"Tiny_1", "Tiny_2"}
    assert len(find_event_windows(Store(store), t0=0.0, t1=2.0, names=["rest"])) == 6
    again = prepare(moabb(tmp_path, task="Tiny", split="session", subject="1,2"), store, workers=0)
    assert again.done_before == 6


def test_nothing_is_downloaded(tmp_path, monkeypatch):
    reached = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: reached.append(1))
    with pytest.raises(
        InputError, match="subject 1 of NotThere are not all there, and nothing is downloaded"
    ) as caught:
        list(moabb(tmp_path, task="NotThere").find())
    assert str(tmp_path) not in str(caught.value)
    assert reached == []


def test_the_network_is_shut_while_moabb_loads_and_open_again_afterwards(tmp_path):
    before = socket.getaddrinfo, socket.socket.connect
    with _shut(tmp_path) as tried:
        with pytest.raises(OSError, match="no network"):
            socket.create_connection(("localhost", 9), timeout=1)
        with socket.socket() as opened, pytest.raises(OSError, match="no network"):
            opened.connect(("127.0.0.1", 9))
    assert len(tried) == 2
    assert (socket.getaddrinfo, socket.socket.connect) == before


def test_moabb_looks_into_the_given_folder_alone(tmp_path, monkeypatch):
    import mne

    monkeypatch.setenv("MNE_DATA", "/elsewhere")
    monkeypatch.setenv("MNE_DATASETS_BNCI_PATH", "/elsewhere")
    with _shut(tmp_path):
        assert mne.get_config("MNE_DATA") == str(tmp_path)
        assert mne.get_config("MNE_DATASETS_BNCI_PATH") == str(tmp_path)
    assert os.environ["MNE_DATA"] == "/elsewhere"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "no dataset was named"),
        ({"task": "Tinny"}, "did you mean 'Tiny'?"),
        ({"task": "Tiny", "subject": "1,7"}, "5 subjects 1 to 10"),
        ({"task": "Tiny", "subject": "1,1"}, "each once"),
        ({"task": "Tiny", "events": ("left",)}, "its events are left_hand, right_hand, rest"),
        ({"task": "Tiny", "events": ("rest", "rest")}, "named twice"),
        ({"task": "Tiny", "split": "run"}, "use one of subject, session"),
    ],
)
def test_mistakes(tmp_path, options, expected):
    with pytest.raises(ConfigError) as caught:
        moabb(tmp_path, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_moabb_or_a_folder(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="not a folder"):
        moabb(tmp_path / "gone", task="Tiny")
    monkeypatch.delitem(sys.modules, "moabb.datasets")
    monkeypatch.setitem(sys.modules, "moabb", None)
    with pytest.raises(ConfigError, match=r"moabb is not installed; pip install 'cerebro-eeg\[moabb\]'"):
        recipe_module.moabb(tmp_path, task="Tiny")


@pytest.mark.parametrize("when", ["making", "loading"])
def test_an_import_that_fails_inside_moabb_is_named(tiny, tmp_path, monkeypatch, when):
    """Some of MOABB's loaders import their reader when they are used."""

    def reader(*_):
        importlib.import_module("surely_not_there")

    monkeypatch.setattr(tiny.Tiny, "__init__" if when == "making" else "_get_single_subject_data", reader)
    with pytest.raises(ConfigError) as caught:
        list(moabb(tmp_path, task="Tiny").find())
    assert str(caught.value) == (
        "the package moabb is installed, but an import inside it fails (ModuleNotFoundError: No module named "
        "'surely_not_there'); mend that, or install it anew"
    )


def test_only_classes_are_datasets(tmp_path):
    """The loader of a module has a method get_data, too."""
    with pytest.raises(ConfigError, match="MOABB has no dataset '__loader__'"):
        moabb(tmp_path, task="__loader__")


def test_the_fake_dataset_of_moabb_itself(tmp_path):
    """MOABB's own dataset for tests, without a stand-in: what is stored is what MOABB gives, trial by trial."""
    pytest.importorskip("moabb.datasets.fake", reason="needs MOABB (extra: moabb), as `make soak` installs it")
    data = tmp_path / "data"
    data.mkdir()
    done = prepare(moabb(data, task="FakeDataset", split="session", subject="1,2"), tmp_path / "store")
    assert (done.recordings, done.skipped, done.montages) == (8, {}, {3: 8})  # 2 subjects, 2 sessions, 2 runs
    store = Store(tmp_path / "store")
    fake = importlib.import_module("moabb.datasets").FakeDataset()
    with quietly():
        raw = fake.get_data([1])[1]["0"]["0"]  # its signal is drawn anew each time, its trials are not
    first = next(record for record in store.recordings if record.id.endswith("_1_0_0"))
    assert first.channels == ("C3", "Cz", "C4")
    assert [(i.start, i.label) for i in first.labels["FakeDataset"]] == [
        (pytest.approx(float(a["onset"])), str(a["description"])) for a in raw.annotations
    ]
    assert {round(i.stop - i.start, 9) for i in first.labels["FakeDataset"]} == {3.0}
    windows = {name: find_windows(store, seconds=3.0, task="FakeDataset", split=name) for name in ("train", "test")}
    assert [np.bincount(found.label).tolist() for found in windows.values()] == [[80, 80, 80]] * 2
    assert assert_disjoint(windows) == "recording"
