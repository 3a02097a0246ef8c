"""Every block of docs/mne.md runs, one after the other, on a simulated recording."""

import re
from pathlib import Path

import mne
import numpy as np
import pytest
import torch

from cerebro_eeg.cli import main
from cerebro_eeg.config import HeadConfig
from cerebro_eeg.model.cerebro import Cerebro

PAGE = (Path(__file__).parent.parent / "docs" / "mne.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with my-recordings and my-eyes, whose head is drawn and not trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    simulate = ["--subjects", "1", "--minutes", "0.4", "--tasks", "eyes", "--montages", "10-20"]
    assert main(["simulate", "my-recordings", *simulate]) == 0
    torch.manual_seed(0)
    model = Cerebro.from_pretrained("small-open", n_outputs=2, n_times=1280)
    model.head = HeadConfig(2, "classification", ("eyes_closed", "eyes_open"), 1280, 0.5)
    model.save_pretrained("my-eyes")
    return tmp_path


@pytest.mark.docs
def test_the_page_runs(folder, capsys):
    names: dict = {}
    with mne.use_log_level("error"):
        for block in blocks("python"):
            exec(block, names)
    said = capsys.readouterr().out
    assert "(4, 192)" in said
    assert "2 rows for 2 epochs" in said
    assert "(4, 4, 12, 19, 19)" in said
    assert (folder / "explanation.png").stat().st_size > 50_000
    assert (folder / "electrodes.png").stat().st_size > 50_000
    raw, prediction = names["raw"], names["said"]
    spans = len(prediction.annotations(merge=True))
    assert len(raw.annotations) == spans + 4  # those that were set, and one for each window beside them
    onsets = sorted(raw.annotations.onset - raw.first_time)
    assert sorted({*onsets}) == prediction.start.tolist()
    epochs = names["epochs"]
    assert len(epochs.metadata) == 2
    rows = np.asarray(names["attention"].weights.sum(-1))
    np.testing.assert_allclose(rows, 1, atol=1e-5)
    assert names["found"].by_channel.shape == (4, 19)


def test_the_commands_of_the_page_run(folder, capsys):
    (line,) = [line for block in blocks("sh") for line in block.splitlines()]
    assert main(line.split()[1:]) == 0
    said = capsys.readouterr().out
    assert re.search(r"depends on  \w+ [+-]0\.\d+, ", said)
    table = (folder / "said" / "explanations.csv").read_text(encoding="utf-8").splitlines()
    assert table[0] == "recording,kind,name,change,std,windows"
    assert len(table) == 1 + 19 + 5
    assert len(list((folder / "said").glob("*_explanation.png"))) == 1
