"""A file is there whole or not at all: after an error, under a reader's eyes, and when the process is killed."""

import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from cerebro_eeg import files
from cerebro_eeg.files import begin_sums, file_sum, parse_json, read_sums, real, remove, replacing, write_text
from cerebro_eeg.model.cerebro import Cerebro
from tiny_models import small


def test_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "f.txt"
    for text in ("one", "two, longer", ""):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert os.listdir(tmp_path) == ["f.txt"]


def test_text_is_utf8_whatever_the_locale(tmp_path):
    write_text(tmp_path / "f", "µV → ✓")
    assert (tmp_path / "f").read_bytes() == "µV → ✓".encode()


def test_folders_on_the_way_are_made(tmp_path):
    write_text(tmp_path / "a" / "b" / "f.txt", "x")
    assert (tmp_path / "a" / "b" / "f.txt").read_text() == "x"


def test_nothing_is_seen_before_the_block_ends(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        assert temporary.parent == path.parent  # else the rename could not be atomic
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [None, "old"])
def test_error_leaves_the_old_file_and_nothing_beside_it(error, old, tmp_path):
    path = tmp_path / "f.txt"
    if old is not None:
        path.write_text(old)

    def write_half():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == ([] if old is None else ["f.txt"])
    assert old is None or path.read_text() == old


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_disk_that_fails_leaves_the_old_file_and_nothing_beside_it(call, tmp_path, monkeypatch):
    path = tmp_path / "f.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "new")
    assert os.listdir(tmp_path) == ["f.txt"]
    assert path.read_text() == "old"


def test_target_that_is_a_folder_is_an_error_and_stays(tmp_path):
    (tmp_path / "f" / "g").mkdir(parents=True)
    with pytest.raises(OSError, match="f"):
        write_text(tmp_path / "f", "x")
    assert os.listdir(tmp_path) == ["f"]
    assert os.listdir(tmp_path / "f") == ["g"]


def test_bytes_are_on_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    """First the file is flushed, then renamed, then the folder is flushed."""
    done, real_sync, real_replace = [], os.fsync, os.replace

    def sync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def replace(*paths):
        done.append("rename")
        real_replace(*paths)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", replace)
    write_text(tmp_path / "f", "x")
    assert done == ["file", "rename"] + (["folder"] if os.name != "nt" else [])


def test_file_system_that_cannot_flush_a_folder_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", sync)
    write_text(tmp_path / "f", "x")
    assert (tmp_path / "f").read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(mask, tmp_path):
    old = os.umask(mask)
    try:
        write_text(tmp_path / "text", "x")
        Cerebro(2, config=small()).save_pretrained(tmp_path / "model")
    finally:
        os.umask(old)
    for path in (tmp_path / "text", *(tmp_path / "model").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path.name


@pytest.mark.skipif(os.name == "nt", reason="Windows asks for rights to make a link")
def test_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    """A folder of the Hub's cache is made of links to files that other revisions share."""
    (tmp_path / "shared").write_text("old")
    (tmp_path / "link").symlink_to("shared")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").read_text() == "new"
    assert (tmp_path / "shared").read_text() == "old"


def test_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "f"
    texts = {letter * 50_000 for letter in "ab"}
    write_text(path, "a" * 50_000)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            for text in texts:
                with replacing(path) as temporary, temporary.open("w") as file:
                    for start in range(0, len(text), 5000):
                        file.write(text[start : start + 5000])
                        file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    end = time.monotonic() + 1
    try:
        while time.monotonic() < end or (len(seen) < 2 and time.monotonic() < end + 300):
            seen.add(path.read_text())
    finally:
        stop.set()
        writer.join()
    assert seen == texts
    assert os.listdir(tmp_path) == ["f"]


def test_writers_of_one_file_do_not_meet(tmp_path):
    texts = [str(i) * 20_000 for i in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "f", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "f").read_text() in texts
    assert os.listdir(tmp_path) == ["f"]


SAVE_FOREVER = """
import dataclasses, itertools, sys
import torch
from cerebro_eeg import Cerebro
from cerebro_eeg.config import Training
from tiny_models import small
model = Cerebro(2, config=small(width=96, heads=3))
for step in itertools.count(1):
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(step)
    model.training_record = Training(step)
    model.save_pretrained(sys.argv[1])
    print(step, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is POSIX")
def test_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    """Each kill comes at another moment; the folder loads, and weights and record are of the same save."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    folders = [tmp_path / str(i) for i in range(3)]
    processes = [
        subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, str(f)], stdout=subprocess.PIPE, env=environment)
        for f in folders
    ]
    chance = random.Random(0)
    try:
        for process, folder in zip(processes, folders, strict=True):
            assert process.stdout.readline() == b"1\n"
            # Stopped, the process is as if killed now: look at what it leaves, then let it go on to another moment.
            for _ in range(8):
                time.sleep(chance.uniform(0.002, 0.02))
                process.send_signal(signal.SIGSTOP)
                assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
                check(folder)
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            check(folder)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def check(folder):
    model = Cerebro.from_pretrained(folder)
    step = model.training_record.steps
    assert step >= 1
    assert all((p == step).all() for p in model.parameters())


# Sums


def test_the_list_of_sums_follows_every_write(tmp_path):
    (tmp_path / "old").write_text("before")
    begin_sums(tmp_path, ["old"])
    write_text(tmp_path / "a", "one")
    write_text(tmp_path / "b", "two", summed=False)
    assert read_sums(tmp_path) == {name: file_sum(tmp_path / name) for name in ("a", "old")}
    write_text(tmp_path / "a", "three")
    write_text(tmp_path / "old", "now", summed=False)  # no sum is better than a wrong one
    assert read_sums(tmp_path) == {"a": file_sum(tmp_path / "a")}
    remove(tmp_path / "a")
    assert read_sums(tmp_path) == {}
    assert not (tmp_path / "a").exists()
    assert sorted(os.listdir(tmp_path)) == ["SHA256SUMS", "b", "old"]


def test_many_writers_of_one_folder_leave_right_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    begin_sums(tmp_path)

    def write(number):
        for turn in range(15):
            write_text(tmp_path / f"f{(number + turn) % 3}", f"{number} {turn}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_sums(tmp_path) == {f"f{number}": file_sum(tmp_path / f"f{number}") for number in range(3)}


def test_a_name_as_long_as_the_system_allows_is_written(tmp_path):
    """The file that is written first beside it has a longer name, which must not be too long."""
    for name in ("n" * 255, "\u00e4" * 127):
        write_text(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 2


def test_json_that_cannot_be_read_is_a_value_error():
    assert parse_json('{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000, "nothing", b"\xff", ""):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)


def test_a_loop_of_links_is_a_path_like_any_other(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("file")
    assert real(tmp_path / "loop") == real(tmp_path) / "loop"
    assert real(tmp_path / "link") == real(tmp_path) / "file"


def test_files_of_a_temporary_folder_need_not_wait_for_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    with files.unflushed():
        files.write_text(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"
    assert flushed == []
    files.write_text(tmp_path / "b", "text")
    assert len(flushed) == 2  # the file, and the entry of its folder
