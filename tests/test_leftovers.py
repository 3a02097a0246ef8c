"""A command that fails before it has done anything leaves nothing behind; what is there already stays as it is."""

import fcntl
import functools
import os

import pytest

from cerebro_eeg import cli
from cerebro_eeg.commands.predict import predict
from cerebro_eeg.data.storing import dask_workers
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.shards import claim
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, StoreError
from cerebro_eeg.runs.folder import RunFolder
from folder_files import edf
from predict_files import make_model


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def full(_):
    raise StoreError("the disk is full")


def bad(_):
    raise InputError("no EEG")


def find(opens):
    return iter([Item(f"r{number}", open) for number, open in enumerate(opens)])


def recipe(*opens):
    return Recipe("x", "", functools.partial(find, opens), own_ids=True)


# prepare


def fail(folder, *opens, **options):
    with pytest.raises(StoreError, match="the disk is full"):
        prepare(recipe(*opens), folder, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_holds_nothing_goes_again(tmp_path, workers):
    fail(tmp_path / "new" / "store", full, workers=workers)
    assert not (tmp_path / "new").exists()


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    fail(tmp_path / "mine", full)
    assert os.listdir(tmp_path / "mine") == []
    (tmp_path / "mine" / "thesis.txt").write_text("")
    (tmp_path / "mine" / "other.lock").write_text("")
    fail(tmp_path / "mine", full)
    assert sorted(os.listdir(tmp_path / "mine")) == ["other.lock", "thesis.txt"]


def test_a_store_that_holds_something_stays(tmp_path):
    fail(tmp_path / "skipped", bad, full)
    assert Store(tmp_path / "skipped").skipped() == {"r0": "input"}
    prepare(recipe(bad), tmp_path / "before")
    before = sorted(os.listdir(tmp_path / "before"))
    fail(tmp_path / "before", bad, full)
    assert sorted(os.listdir(tmp_path / "before")) == before


def test_a_store_that_was_empty_before_stays(tmp_path):
    """It may be another process that is about to fill it."""
    made = tmp_path / "made"

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(recipe(full), made, before=stop)
    assert os.listdir(made) == ["store.json"]
    fail(made, full)
    assert (made / "store.json").exists()


def test_parts_take_nothing_from_each_other(tmp_path):
    failed = 0
    for number in (1, 2):  # one of them has the recording
        try:
            prepare(recipe(full), tmp_path / str(number), part=(number, 2))
        except StoreError:
            failed += 1
        assert Store(tmp_path / str(number)).skipped() == {}
    assert failed == 1


def test_a_store_in_which_somebody_writes_stays(tmp_path):
    held = []

    def busy(_):
        held.append(claim(tmp_path / "store" / "part1of1-7.lock"))
        raise StoreError("the disk is full")

    fail(tmp_path / "store", busy)
    assert (tmp_path / "store" / "store.json").exists()
    os.close(held[0])


def test_an_unreachable_cluster_leaves_nothing(tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_workers, "WAIT", 0.2)
    edf(tmp_path / "eeg" / "a.edf")
    command = ["prepare", "folder", str(tmp_path / "eeg"), "--out", str(tmp_path / "store")]
    assert cli.main([*command, "--dask", "tcp://127.0.0.1:9"]) != 0
    assert "no Dask scheduler answers" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


# Runs


def test_a_run_that_never_began_leaves_no_lock(tmp_path):
    def fail(path):
        with RunFolder(path).held():
            assert (path / ".lock").exists()
            raise InputError("no such task")

    def begin(path):
        with pytest.raises(InputError, match="no such task"):
            fail(path)

    begin(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    begin(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]
    run = RunFolder(tmp_path / "run")
    with run.held():
        run.begin("pretrain", {}, {})
    begin(run.path)
    assert sorted(os.listdir(run.path)) == [".lock", "run.json"]


def test_who_is_refused_takes_no_lock_away(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.held():
        for _ in range(2):
            with pytest.raises(ConfigError, match="another process is training"), run.held():
                pass
        assert (run.path / ".lock").exists()


def test_a_lock_that_goes_while_another_comes_for_it_is_made_anew(tmp_path, monkeypatch):
    """Who locks the file that was just removed holds nothing: the next one would hold a new file as well."""
    run, flock = RunFolder(tmp_path / "run"), fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        (run.path / ".lock").unlink()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with run.held(), pytest.raises(ConfigError, match="another process is training"), run.held():
        pass


def test_a_misspelt_store_leaves_no_run(tmp_path, capsys):
    for verb in (["pretrain"], ["finetune", "--task", "eyes", "--from", "none"]):
        assert cli.main([verb[0], str(tmp_path / "stoer"), *verb[1:], "--out", str(tmp_path / "run")]) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert "the store does not exist" in line
        assert not (tmp_path / "run").exists()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", edf(tmp_path / "a.edf")):
        with pytest.raises(StoreError, match="is not a store"):
            Store(path)


# predict


def test_recordings_that_do_not_exist_are_refused_before_anything_is_made(tmp_path):
    model = str(make_model(tmp_path / "model"))
    for names, words in ((("nothere.edf",), "given does not exist"), (("a.edf", "b"), "all 2 files and folders")):
        with pytest.raises(InputError, match=words) as caught:
            predict(model, tuple(tmp_path / name for name in names), out=tmp_path / "out")
        assert "nothere" not in str(caught.value)
        assert sorted(os.listdir(tmp_path)) == ["model"]  # not even a key
