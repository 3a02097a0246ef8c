"""``tools/ship_weights.py`` makes weights for the package from a run: the same bytes twice, and only of train rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cerebro_eeg.cli import main
from cerebro_eeg.model import checkpoint
from openeeg_files import write_pack

TOOL = Path(__file__).parent.parent / "tools" / "ship_weights.py"
LICENCES = """| dataset | licence | read | who | title and link | changed here |
|---|---|---|---|---|---|
| a | CC BY 4.0 (example.org/by) | no | A. Author | Title A | left out some |
| b | CC BY 4.0 | yes (beside the data) | B. Author | Title B | nothing |
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ship")
    write_pack(folder / "pack")
    (folder / "pack" / "LICENCES.md").write_text(LICENCES)
    store, out = str(folder / "store"), str(folder / "run")
    assert main(["prepare", "openeeg", str(folder / "pack"), "--out", store, "--workers", "1"]) in (0, 6)
    words = ["--preset", "tiny", "--steps", "2", "--batch-size", "4", "--seconds", "1", "--paper", "--threads", "1"]
    threads = torch.get_num_threads()
    assert main(["pretrain", store, "--out", out, "--device", "cpu", *words]) == 0
    torch.set_num_threads(threads)
    return folder


def ship(folder, out, pack="pack"):
    words = [str(folder / "run"), "--name", "mine", "--pack", str(folder / pack), "--out", str(out)]
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, check=False)


def test_same_bytes_twice(run, tmp_path):
    for name in ("one", "two"):
        done = ship(run, tmp_path / name)
        assert done.returncode == 0, done.stderr
    names = ["NOTICE.md", "mine.md", "mine.safetensors", "mine.svg"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    header, tensors = checkpoint.read(tmp_path / "one" / "mine.safetensors")
    before, whole = checkpoint.read(run / "run" / "model.safetensors")
    assert header.training.data[0].licence == "a CC BY 4.0"
    assert header.training.data[0].subjects == before.training.data[0].subjects
    assert all(torch.equal(tensors[name], whole[name].half()) for name in whole)
    card = (tmp_path / "one" / "mine.md").read_text()
    assert "pretrain store --preset tiny --seconds 1 --steps 2 --batch-size 4 --paper --threads 1 --out run" in card
    notice = (tmp_path / "one" / "NOTICE.md").read_text()
    assert "## a\n" in notice
    assert "## b\n" not in notice  # it only validated


def test_weights_of_other_rows_are_refused(run, tmp_path):
    other = run / "other"
    write_pack(other)
    (other / "LICENCES.md").write_text(LICENCES)
    (other / "pretrain.csv").write_text("record,split,duration_s\na_02,train,9.0\nb_01,val,6.0\n")
    done = ship(run, tmp_path / "out", "other")
    assert done.returncode == 1
    assert "other subjects than those of the pack's train rows" in done.stderr
    (other / "pretrain.csv").write_text("record,split,duration_s\na_01,train,4.0\nb_01,val,6.0\n")
    assert "windows and the train rows give at most 4" in ship(run, tmp_path / "out", "other").stderr
    assert not (tmp_path / "out").exists()


def test_a_data_set_without_a_licence_is_refused(run, tmp_path):
    bare = run / "bare"
    write_pack(bare)
    (bare / "LICENCES.md").write_text(LICENCES.replace("| a |", "| c |"))
    assert "LICENCES.md has no row for a" in ship(run, tmp_path / "out", "bare").stderr
    assert json.loads((run / "run" / "run.json").read_text())["verb"] == "pretrain"
