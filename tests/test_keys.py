"""Keys: private, the same every time, whole whoever makes them, and one line where a file is none."""

import hashlib
import hmac
import os
import subprocess
import sys

import pytest

from cerebro_eeg.data.storing import keys
from cerebro_eeg.errors import InputError

RACE = """
import os, sys
from pathlib import Path
from cerebro_eeg.data.storing import keys

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
                key = keys.read_key(path)
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
        key = keys.read_key(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(key) == keys.BYTES
    content = path.read_bytes()
    assert keys.read_key(path) == key
    assert path.read_bytes() == content == key.hex().encode() + b"\n"
    assert os.listdir(path.parent) == ["key"]
    assert keys.read_key(tmp_path / "other") != key


def test_default_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.default_key_file() == tmp_path / "cerebro-eeg" / "key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys.default_key_file() == tmp_path / ".config" / "cerebro-eeg" / "key"


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
    key = keys.read_key(tmp_path / "key")
    assert keys.read_key(tmp_path / "key") == key
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
        keys.read_key(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_place_where_no_key_can_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "key"):
        with pytest.raises(InputError, match="cannot be used") as caught:
            keys.read_key(path)
        assert str(tmp_path) not in str(caught.value)
        assert caught.value.__cause__ is None


def test_ids_are_keyed_hashes():
    key, other = bytes(32), bytes([1]) * 32
    expected = hmac.new(key, b"recording\0a/b.edf", hashlib.sha256).hexdigest()[:24]
    assert keys.make_id(key, "recording", "a/b.edf") == expected
    found = {keys.make_id(k, kind, name) for k in (key, other) for kind in ("recording", "subject") for name in "ab"}
    assert len(found) == 8
    assert keys.key_check(key) != keys.key_check(other)
    assert keys.key_check(key) == keys.key_check(bytes(32))
