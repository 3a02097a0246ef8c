"""``compare`` of a folder of recordings: it is prepared as ``prepare folder`` would, beside the comparison."""

import pytest

from cerebro_eeg.cli import main
from cerebro_eeg.commands.compare import _prepared
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.progress import Progress


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "rec"
    words = ["simulate", str(folder), "--subjects", "5", "--minutes", "0.2", "--tasks", "eyes", "--montages", "10-20"]
    assert main(words) == 0
    return folder


def test_the_store_is_that_of_prepare(recordings, tmp_path):
    labels = recordings / "labels" / "eyes.csv"
    words = ["prepare", "folder", str(recordings), "--labels", str(labels), "--out", str(tmp_path / "plain")]
    assert main([*words, "--workers", "0"]) == 0
    found = _prepared(recordings, labels, tmp_path / "cmp-store", Progress())
    assert Store(found).hash() == Store(tmp_path / "plain").hash()
    assert _prepared(recordings, labels, found, Progress()) == found  # the same command goes on with it
    with pytest.raises(ConfigError, match="labels is for a folder of recordings, and a store was given"):
        _prepared(found, labels, tmp_path / "other", Progress())


def test_a_folder_without_labels_says_what_to_do(recordings, tmp_path, capsys):
    assert main(["compare", str(recordings), "--out", str(tmp_path / "cmp")]) == 5
    assert "--labels" in capsys.readouterr().err
