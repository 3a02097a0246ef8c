"""Keys and the private map: readable by their owner only, outside of stores, complete; a wrong file is one line."""

import hashlib
import hmac
import json
import os
import subprocess
import sys

import pytest

from cerebro_eeg.data.storing import privacy
from cerebro_eeg.data.storing.privacy import add_to_map, read_map
from cerebro_eeg.errors import ConfigError, InputError

RACE = """
import os, sys
from pathlib import Path
from cerebro_eeg.data.storing import privacy

folder = Path(sys.argv[1])
for round in range(40):
    path = folder / str(round) / "key"
    reading, writing = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(writing)
                os.read(reading, 1)  # until the parent closes its end: all start at once
                key = privacy.read_key(path)
                with open(folder / f"seen{round}", "a") as file:
                    file.write(key.hex() + "\\n")
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(reading)
    os.close(writing)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4, round
"""


def test_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "folder" / "key"
    before = os.umask(0)
    try:
        key = privacy.read_key(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(key) == privacy.BYTES
    content = path.read_bytes()
    assert privacy.read_key(path) == key
    assert path.read_bytes() == content == key.hex().encode() + b"\n"
    assert os.listdir(path.parent) == ["key"]
    assert privacy.read_key(tmp_path / "other") != key


def test_default_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert privacy.default_key_file() == tmp_path / "cerebro-eeg" / "key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert privacy.default_key_file() == tmp_path / ".config" / "cerebro-eeg" / "key"


def test_processes_that_race_get_one_key(tmp_path):
    done = subprocess.run([sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number in range(40):
        seen = (tmp_path / f"seen{number}").read_text().split()
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert os.listdir(tmp_path / str(number)) == ["key"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    key = privacy.read_key(tmp_path / "key")
    assert privacy.read_key(tmp_path / "key") == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["key"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds 0 bytes; expected 32"),
        (b"00" * 31, "holds 31 bytes; expected 32"),
        (b"00" * 33, "holds 33 bytes; expected 32"),
        (b"CANARY is no hexadecimal number", "cannot be used (ValueError)"),
        (b"\xff" * 64, "cannot be used (UnicodeDecodeError)"),
    ],
)
def test_a_broken_file_is_one_line_and_stays(tmp_path, content, words):
    path = tmp_path / "CANARY"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        privacy.read_key(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_place_where_no_key_can_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "key"):
        with pytest.raises(InputError, match="cannot be used") as caught:
            privacy.read_key(path)
        assert str(tmp_path) not in str(caught.value)
        assert caught.value.__cause__ is None


def test_ids_are_keyed_hashes():
    key, other = bytes(32), bytes([1]) * 32
    expected = hmac.new(key, b"recording\0a/b.edf", hashlib.sha256).hexdigest()[:24]
    assert privacy.make_id(key, "recording", "a/b.edf") == expected
    found = {privacy.make_id(k, kind, name) for k in (key, other) for kind in ("recording", "subject") for name in "ab"}
    assert len(found) == 8
    assert privacy.key_check(key) != privacy.key_check(other)
    assert privacy.key_check(key) == privacy.key_check(bytes(32))


# The private map

FIRST = {"recordings": {"r1": "jane/one.edf"}, "subjects": {"s1": "jane"}}
SECOND = {"recordings": {"r2": "joe/two.edf", "r1": "jane/one.edf"}, "subjects": {"s2": "joe"}}
BOTH = {"recordings": {"r1": "jane/one.edf", "r2": "joe/two.edf"}, "subjects": {"s1": "jane", "s2": "joe"}}


def test_the_map_is_merged_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "map.json"
    before = os.umask(0)
    try:
        add_to_map(path, FIRST)
        assert path.stat().st_mode & 0o777 == 0o600
        add_to_map(path, SECOND)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == read_map(path) == BOTH
    assert os.listdir(path.parent) == ["map.json"]
    stamp = path.stat().st_mtime_ns, path.stat().st_ino
    add_to_map(path, FIRST)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == stamp


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_map_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "map.json"
    add_to_map(path, FIRST)
    path.chmod(mode)
    content = path.read_bytes()
    for call in (lambda: read_map(path), lambda: add_to_map(path, SECOND)):
        with pytest.raises(InputError, match=f"mode {mode:04o}: others can read it; chmod 600 it") as caught:
            call()
        assert str(tmp_path) not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"recordings": {}, "subjects": []}', b"\xff", b"jane,doe\n", b"7"]
)
def test_another_file_is_no_map_and_stays(tmp_path, content):
    path = tmp_path / "jane.csv"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match="the map file cannot be used") as caught:
        add_to_map(path, FIRST)
    assert "jane" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_map_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path))

    path = tmp_path / "map.json"
    add_to_map(path, FIRST)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device; name another") as caught:
        add_to_map(path, SECOND)
    assert str(tmp_path) not in str(caught.value)
    assert read_map(path) == FIRST
    assert os.listdir(tmp_path) == ["map.json"]


def test_private_files_lie_outside_of_the_store(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "link").symlink_to(store)
    for path in (
        store / "map.json",
        store / "deep" / "map.json",
        tmp_path / "link" / "m",
        store / "x" / ".." / "m",
        store,
    ):
        with pytest.raises(ConfigError, match="the key would lie inside the store"):
            privacy.check_outside(path, store, "key")
    for path in (tmp_path / "map.json", tmp_path / "store2" / "m", store / ".." / "m"):
        privacy.check_outside(path, store, "key")


def test_a_key_that_everybody_can_use_is_refused(tmp_path):
    path = tmp_path / "key"
    privacy.read_key(path)
    path.chmod(0o644)
    with pytest.raises(InputError, match="mode 0644"):
        privacy.read_key(path)
