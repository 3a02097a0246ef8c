"""Worker processes that cannot begin: the command ends in seconds with one line that says why, and blames no file."""

import os
import subprocess
import sys
import time

import pytest

from cerebro_eeg.data.storing import workers
from cerebro_eeg.errors import StoreError
from folder_files import edf

UNGUARDED = """
import sys
from cerebro_eeg import cli

sys.exit(cli.main(["prepare", "folder", "eeg", "--out", "store", "--key", "key", "--workers", "2"]))
"""
NOT_IMPORTED = """
from pathlib import Path
from cerebro_eeg import cli
from cerebro_eeg.data import datasets
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.storing.recipe import Recipe

def find():
    return folder(Path("eeg")).find()

def mine(folder):
    return Recipe("mine", "", find, mains=50.0)

if __name__ == "__main__":
    import sys
    datasets.RECIPES["mine"] = ("__main__:mine", "of this script")
    sys.exit(cli.main(["prepare", "mine", "eeg", "--out", "store", "--key", "key", "--workers", "2"]))
"""


@pytest.mark.parametrize(
    ("text", "as_file", "words"),
    [
        (UNGUARDED, True, 'call prepare under `if __name__ == "__main__":`'),
        (NOT_IMPORTED, False, "worker processes die before they begin"),
    ],
    ids=["no guard", "a function that workers cannot import"],
)
def test_workers_that_die_at_their_start_end_the_command_in_seconds(tmp_path, text, as_file, words):
    """The fault: nine minutes on 16 cores without a word."""
    for number in range(30):
        edf(tmp_path / "eeg" / f"{number}.edf", seconds=2, seed=number)
    (tmp_path / "script.py").write_text(text)
    command = ["script.py"] if as_file else ["-c", text]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert time.monotonic() - began < 60
    assert done.returncode == 5, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("cerebro-eeg: error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert not (tmp_path / "store").exists()


def test_a_process_that_dies_of_its_work_is_told_from_one_that_cannot_start(monkeypatch):
    assert workers.in_own_process(os._exit, 3) is None
    monkeypatch.setattr(workers.multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(StoreError, match="just starting runs this script once more"):
        workers.check_start()
