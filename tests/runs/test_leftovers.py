"""A command that fails before it has done anything leaves nothing behind, and leaves existing files as they are."""

import contextlib
import errno
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from cerebro_eeg import Cerebro, cli
from cerebro_eeg.commands.predict import predict
from cerebro_eeg.data.storing import dask
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.shards import claim
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CerebroError, ConfigError, InputError, StoreError
from cerebro_eeg.runs.folder import RunFolder
from folder_files import edf
from predict_files import make_model
from train_stores import make_store


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
        if not held:  # a recording is also opened to look for mains
            held.append(claim(tmp_path / "store" / "part1of1-7.lock"))
        raise StoreError("the disk is full")

    fail(tmp_path / "store", busy)
    assert (tmp_path / "store" / "store.json").exists()
    os.close(held[0])


def test_an_unreachable_cluster_leaves_nothing(tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask, "WAIT", 0.2)
    edf(tmp_path / "eeg" / "a.edf")
    command = ["prepare", "folder", str(tmp_path / "eeg"), "--out", str(tmp_path / "store")]
    assert cli.main([*command, "--dask", "tcp://127.0.0.1:9"]) != 0
    assert "no Dask scheduler answers" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


# Runs


def test_a_run_that_never_began_leaves_no_lock(tmp_path):
    def fail(path):
        with RunFolder(path).locked():
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
    with run.locked():
        run.begin("pretrain", {}, {})
    begin(run.path)
    assert sorted(os.listdir(run.path)) == [".lock", "SHA256SUMS", "run.json"]


def test_who_is_refused_takes_no_lock_away(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked():
        for _ in range(2):
            with pytest.raises(ConfigError, match="another process is training"), run.locked():
                pass
        assert (run.path / ".lock").exists()


def failing(run):
    with contextlib.suppress(InputError), run.locked():
        raise InputError("no such task")


def test_a_killed_process_leaves_no_lock_that_holds(tmp_path):
    run = RunFolder(tmp_path / "a" / "b")
    run.path.mkdir(parents=True)
    (run.path / ".lock").write_text("")  # left by a process that was killed
    failing(run)
    assert os.listdir(run.path) == []  # the folder was there before


def test_a_folder_that_was_there_before_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    failing(RunFolder(tmp_path / "mine"))
    assert os.listdir(tmp_path / "mine") == []


def test_a_link_to_nowhere_is_refused(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="link to a folder that does not exist"), RunFolder(tmp_path / "run").locked():
        pass
    assert not (tmp_path / "gone").exists()


BAD_PLACES = {
    "a link to nowhere": (3, "--out cannot be used: it is a link to something that does not exist; give"),
    "a link to itself": (3, "--out cannot be used: it is a link that leads back to itself; give"),
    "a file": (2, "is a file; give a folder for --out"),
    "a link to a file": (2, "is a file; give a folder for --out"),
    "below a file": (3, "--out cannot be used: a file stands where a folder should be; give"),
    "below a link to nowhere": (3, "cannot be made (File exists); give a folder for --out"),
    "too long a name": (3, "cannot be made (File name too long); give a folder for --out"),
    "below too long a name": (3, "--out cannot be used: its name is longer than this file system allows; give"),
    "not permitted": (3, "cannot be written (Permission denied); make it writable, or give another"),
}


def bad_place(folder, kind, monkeypatch):
    """A path at which no run can be."""
    (folder / "file").write_text("mine")
    (folder / "nowhere").symlink_to(folder / "gone")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "to-file").symlink_to(folder / "file")
    if kind == "not permitted":  # tests may run as root, who may write everywhere

        def refuse(lock):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr("filelock.FileLock._acquire", refuse)
    return {
        "a link to nowhere": folder / "nowhere",
        "a link to itself": folder / "loop",
        "a file": folder / "file",
        "a link to a file": folder / "to-file",
        "below a file": folder / "file" / "run",
        "below a link to nowhere": folder / "nowhere" / "run",
        "too long a name": folder / "made" / ("x" * 300),
        "below too long a name": folder / ("x" * 300) / "run",
        "not permitted": folder / "run",
    }[kind]


@pytest.mark.parametrize("kind", BAD_PLACES)
def test_where_no_run_can_be_there_is_one_clear_line(tmp_path, kind, monkeypatch, capsys):
    out = bad_place(tmp_path, kind, monkeypatch)
    before = sorted(tmp_path.rglob("*"))
    for verb in (["pretrain", "store"], ["finetune", "store", "--task", "eyes", "--from", "none"]):
        code, words = BAD_PLACES[kind]
        assert cli.main([*verb, "--out", str(out), "--device", "cpu"]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    with pytest.raises(CerebroError, match="; "), RunFolder(out).locked():  # without the command line, too
        pass
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_process_gets_one_clear_line(tmp_path):
    """The lock of this process holds for another one, and is free again when the block ends."""
    code = (
        "import sys, pathlib\nfrom cerebro_eeg.errors import ConfigError\n"
        "from cerebro_eeg.runs.folder import RunFolder\n"
        "try:\n    with RunFolder(pathlib.Path(sys.argv[1])).locked(): print('free')\n"
        "except ConfigError as error: print(error)"
    )

    def other():
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with RunFolder(tmp_path / "run").locked():
        assert other() == f"another process is training in {tmp_path / 'run'}; wait for it, or stop it"
    assert other() == "free"


def test_of_many_who_come_at_once_one_has_the_folder_and_no_lock_stays(tmp_path):
    """Threads of one process stand for processes: each has an open file of its own, which the kernel's lock goes by."""
    run, held = RunFolder(tmp_path / "a" / "b"), []

    def come(_):
        for _ in range(60):
            with contextlib.suppress(ConfigError, InputError), run.locked():
                held.append(1)
                assert len(held) == 1
                held.pop()
                raise InputError("no such task")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(come, range(4)))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []  # an empty folder may stay


def test_a_file_is_no_folder_for_a_run(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; give a folder"), RunFolder(tmp_path / "run").locked():
        pass
    assert (tmp_path / "run").read_text() == "mine"


def begun(path, settings, *files):
    """A run that began and failed, with what it left; ``name=text`` or ``name``."""
    run = RunFolder(path)
    with run.locked():
        run.begin("finetune", settings, {})
    for file in files:
        name, _, text = file.partition("=")
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return run


@pytest.mark.parametrize(
    "files",
    [
        (),
        ("metrics.jsonl",),
        ("seed-0/run.json={}", "seed-0/metrics.jsonl", "fold-1/seed-3/run.json={}", ".run.json.0a.tmp=half"),
        ("seed-0/run.json={}", "seed-0/metrics.jsonl", "seed-0/tensorboard/events=no step yet"),
    ],
    ids=["settings", "an empty log", "seeds and folds", "a logger"],
)
def test_a_run_without_a_step_makes_room_for_a_corrected_command(tmp_path, files):
    run = begun(tmp_path / "run", {"untrained": "error"}, *files)
    with run.locked():
        line = run.begin("finetune", {"untrained": "nearest"}, {})
    assert "never completed a step" in line
    assert 'untrained was "error" and is now "nearest"' in line
    assert run.read()["settings"] == {"untrained": "nearest"}
    kept = sorted(path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file())
    logs = ["metrics.jsonl"] if "metrics.jsonl" in files else []
    logged = ["seed-0/metrics.jsonl", "seed-0/run.json", "seed-0/tensorboard/events"] if len(files) == 3 else []
    assert kept == [".lock", "SHA256SUMS", *logs, "run.json", *logged]
    with run.locked():
        assert run.begin("finetune", {"untrained": "nearest"}, {}) is None  # going on is nothing to speak of


@pytest.mark.parametrize(
    ("file", "delete"),
    [
        ('metrics.jsonl={"step": 1}\n', True),
        ('seed-0/metrics.jsonl={"step": 1}\n', True),
        ("state.safetensors", False),
        ("seed-0/probe.json", False),
        ("fold-1/seed-0/model.safetensors", False),
        ("seed-0/.lock", False),
        ("thesis.txt", False),
        ("seed-0", False),
    ],
)
def test_a_run_with_anything_to_lose_does_not(tmp_path, file, delete):
    run = begun(tmp_path / "run", {"lr": 1}, file)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds another run: lr was 1 and is now 2; use another --out") as error:
        run.begin("finetune", {"lr": 2}, {})
    assert ("delete that folder: it logged steps and saved none" in str(error.value)) == delete
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_corrected_command_takes_its_folder(tmp_path, capsys):
    """Electrodes that nobody trained are found out after run.json is written."""
    out = tmp_path / "probe"
    make_store(tmp_path / "store", 6, 4)
    Cerebro(config="tiny").save_pretrained(tmp_path / "weights")
    command = ["finetune", str(tmp_path / "store"), "--task", "alpha", "--from", str(tmp_path / "weights"), "--freeze"]
    command += ["--device", "cpu", "--out", str(out)]
    assert cli.main(command) == 3
    assert (out / "run.json").exists()
    capsys.readouterr()
    assert cli.main([*command, "--untrained", "as_is"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "makes room" in line]
    assert 'choices.untrained was "error" and is now "as_is"' in line
    assert (out / "seed-0" / "finished.json").exists()
    assert cli.main(command) == 2  # now there is something to lose
    assert "holds another run" in capsys.readouterr().err


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
