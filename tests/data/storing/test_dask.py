"""Preparation on a Dask cluster: the same store, also when workers die, and one line where it cannot be."""

import json
import os
import shutil
import signal
import sys
import threading
from functools import partial

import pytest
from test_prepare import CANARY, SKIPPED, STORED, committed, fake, listing, write_bad_pack, write_edf, write_edfs

from cerebro_eeg import __version__, cli
from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.storing import dask as dask_task
from cerebro_eeg.data.storing import dask as dask_workers
from cerebro_eeg.data.storing.job import Job, PrepareChoices, settings
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.errors import ConfigError, InputError, StoreError

distributed = pytest.importorskip("distributed", reason="needs Dask (extra: dask)")


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes; a task is given up when it has killed two of them."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            processes=True, n_workers=2, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
        ) as cluster,
    ):
        yield cluster


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_same_store(cluster, tmp_path):
    pack = write_bad_pack(tmp_path / "pack")
    expected = prepare(openeeg(pack), tmp_path / "whole")
    counts = []
    found = prepare(
        openeeg(pack), tmp_path / "store", dask=cluster.scheduler_address, progress=lambda *c: counts.append(c)
    )
    assert (found.hash, found.skipped, found.recordings) == (expected.hash, SKIPPED, len(STORED))
    assert [c[0] for c in counts] == list(range(1, len(STORED) + len(SKIPPED) + 1))
    assert counts[-1][2] == counts[-1][3]
    assert committed(tmp_path / "store") == len(STORED)
    before = listing(tmp_path / "store")
    again = prepare(openeeg(pack), tmp_path / "store", dask=cluster.scheduler_address)
    assert (again.hash, again.done_before) == (expected.hash, len(STORED) + len(SKIPPED))
    assert listing(tmp_path / "store") == before
    shutil.rmtree(tmp_path / "store")  # workers that live on remember nothing of it
    assert prepare(openeeg(pack), tmp_path / "store", dask=cluster.scheduler_address).hash == expected.hash


def test_the_command_goes_on_where_another_way_ended(cluster, tmp_path, monkeypatch, capsys):
    pack = write_bad_pack(tmp_path / "pack")
    expected = prepare(openeeg(pack), tmp_path / "whole")
    prepare(openeeg(pack), tmp_path / "store", part=(1, 3))
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(["prepare", "openeeg", "pack", "--out", "store", "--dask", cluster.scheduler_address, "--json"]) == 6
    )
    out = json.loads(capsys.readouterr().out)
    assert (out["hash"], out["recordings"]) == (expected.hash, len(STORED))
    assert out["done_before"] > 0


def test_workers_name_nobody(cluster, tmp_path, capfd):
    source = write_edfs(tmp_path / f"{CANARY}_source")
    found = prepare(fake(source), tmp_path / "store", dask=cluster.scheduler_address, key_file=tmp_path / "key")
    expected = prepare(fake(source), tmp_path / "other", key_file=tmp_path / "key")
    assert (found.hash, found.skipped) == (expected.hash, expected.skipped)
    assert len(found.skipped) == 2
    text = "".join(capfd.readouterr()) + str(listing(tmp_path / "store"))
    assert CANARY not in text
    assert (tmp_path / "key").read_text().strip() not in text


# Workers that die


def open_mean(path, folder, policy):
    """Dies by ``die``; by ``late`` once, after its recording is stored; refuses where the client's mark is missing."""
    if "die" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    if "late" in path.name and not (folder / "flag").exists():
        (folder / "flag").touch()
        os.environ["CEREBRO_FAULT"] = f"after-line-sync:{path.stem}"
    if "here" in path.name and "CEREBRO_TEST_HERE" not in os.environ:
        raise FileNotFoundError(2, "No such file", str(path))
    return open_edf(path, policy)


def find_mean(folder):
    for path in sorted(folder.glob("*.edf")):
        yield Item(path.stem, partial(open_mean, path, folder), "s", size=path.stat().st_size)


def mean(folder, names):
    for number, name in enumerate(names):
        write_edf(folder / f"{name}.edf", "X", number)
    return Recipe("mean", "EDF files that kill", partial(find_mean, folder), own_ids=True, mains=50.0)


def test_a_killed_worker_loses_nothing_and_stores_nothing_twice(cluster, tmp_path):
    recipe = mean(tmp_path / "files", ["a", "late", "b", "c"])
    found = prepare(recipe, tmp_path / "store", dask=cluster.scheduler_address)
    assert (tmp_path / "files" / "flag").exists()
    assert (found.recordings, found.skipped) == (4, {})
    assert committed(tmp_path / "store") == 4
    Store(tmp_path / "store").verify(full=True)
    assert found.hash == prepare(recipe, tmp_path / "whole").hash


@pytest.mark.soak
def test_a_file_that_kills_its_workers_is_skipped(cluster, tmp_path):
    cluster.scheduler.allowed_failures = 0  # one at a time and one alone: two deaths are enough for a test
    try:
        recipe = mean(tmp_path / "files", ["a", "die", "b", "c"])
        found = prepare(recipe, tmp_path / "store", dask=cluster.scheduler_address)
    finally:
        cluster.scheduler.allowed_failures = 1
    assert found.skipped == {"die": "crash"}
    assert {record.id for record in Store(tmp_path / "store").recordings} == {"a", "b", "c"}
    assert committed(tmp_path / "store") == 3


# What cannot be


def test_workers_without_the_source_stop_the_run(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("CEREBRO_TEST_HERE", "1")  # the workers were started without it
    recipe = mean(tmp_path / "files", ["here1", "here2"])
    text = message(lambda: prepare(recipe, tmp_path / "store", dask=cluster.scheduler_address), StoreError)
    assert "a Dask worker cannot read a recording that can be read here (FileNotFoundError)" in text
    assert str(tmp_path) not in text
    # Nothing is skipped; unless a worker was still busy, not even the store is there.
    assert not any(path.read_text() for path in (tmp_path / "store").glob("*.skipped.csv"))


def test_workers_without_the_store_or_of_another_version(tmp_path):
    recipe = mean(tmp_path / "files", ["a"])
    (item,) = recipe.find()
    job = Job(tmp_path / "store", recipe, PrepareChoices())
    answer = dask_task.do_task(dask_task.DaskTask(job, "w", "run", __version__, None), "a", item)
    assert "a Dask worker does not see the store" in answer.refusal
    answer = dask_task.do_task(dask_task.DaskTask(job, "w", "run", "0.0.0", None), "a", item)
    assert f"a Dask worker has cerebro-eeg {__version__}, this is 0.0.0" in answer.refusal
    assert not (tmp_path / "store").exists()


def test_threads_of_a_worker_take_turns(tmp_path):
    recipe = mean(tmp_path / "files", [f"r{number}" for number in range(6)])
    job = Job(tmp_path / "store", recipe, PrepareChoices())
    create_store(job.folder, "mean", settings(job, recipe.find()))
    task, answers = dask_task.DaskTask(job, "w", "another run", __version__, None), []
    work = [(item.name, item) for item in recipe.find()] * 2
    threads = [
        threading.Thread(target=lambda pair=pair: answers.append(dask_task.do_task(task, *pair))) for pair in work
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.refusal for answer in answers] == [None] * len(work)
    assert committed(job.folder) == 6
    assert len(list(job.folder.glob("*.jsonl"))) == 1


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense", "", "http://127.0.0.1:1"])
def test_an_address_where_nobody_answers(tmp_path, monkeypatch, address):
    monkeypatch.setattr(dask_workers, "WAIT", 0.3)
    recipe = mean(tmp_path / "files", ["a"])
    text = message(lambda: prepare(recipe, tmp_path / "store", dask=address), InputError)
    assert f"no Dask scheduler answers at {address!r}" in text


def test_a_cluster_without_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_workers, "WAIT", 2.0)  # the scheduler answers, and may be slow where the machine is busy
    recipe = mean(tmp_path / "files", ["a"])
    with distributed.LocalCluster(processes=True, n_workers=0, dashboard_address=":0", host="127.0.0.1") as empty:
        text = message(lambda: prepare(recipe, tmp_path / "store", dask=empty.scheduler_address), InputError)
    assert "the Dask cluster has no workers; start some" in text


def test_without_dask(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    recipe = mean(tmp_path / "files", ["a"])
    text = message(lambda: prepare(recipe, tmp_path / "store", dask="tcp://127.0.0.1:8786"), ConfigError)
    assert text == "--dask: the package distributed is not installed; pip install 'cerebro-eeg[dask]'"
