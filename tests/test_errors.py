"""Packages that are missing, and packages that are there but broken inside: the message says which of the two it is."""

import ast
import sys
from pathlib import Path

import pytest

import cerebro_eeg
from cerebro_eeg.data.reading import formats
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing import dask
from cerebro_eeg.errors import CerebroError, import_trouble
from cerebro_eeg.report.figures import check_picture
from cerebro_eeg.runs.features import check_target
from cerebro_eeg.train import log


def xdf(folder):
    (folder / "x.xdf").write_bytes(b"XDF:....")
    formats.open_recording(folder / "x.xdf", ChannelPolicy())


def connect(folder):
    with dask._connected("tcp://127.0.0.1:1"):
        pass


CALLS = {
    "matplotlib": lambda folder: check_picture(folder / "x.png"),
    "pyarrow": lambda folder: check_target(folder / "x.parquet"),
    "tensorboard": lambda folder: log._tensorboard(folder, 0),
    "wandb": log._wandb,
    "mne": lambda folder: formats._call_mne("read_raw_fif", folder / "x_raw.fif"),
    "pyxdf": xdf,
    "distributed": connect,
}
"""What needs each package; the recipe ``moabb`` has tests of its own."""


@pytest.fixture
def forgotten(monkeypatch):
    """Let Python forget a package that another test has loaded."""

    def forget(package):
        for name in [*sys.modules]:
            if name.split(".")[0] == package or (package == "tensorboard" and name == "torch.utils.tensorboard"):
                monkeypatch.delitem(sys.modules, name)

    return forget


@pytest.mark.parametrize("package", CALLS)
def test_a_package_that_is_broken_inside_is_not_called_missing(package, forgotten, tmp_path, monkeypatch):
    forgotten(package)
    (tmp_path / "site" / package).mkdir(parents=True)
    (tmp_path / "site" / package / "__init__.py").write_text("import surely_not_there")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CerebroError) as caught:
        CALLS[package](tmp_path)
    assert f"{package} is installed, but an import inside it fails" in str(caught.value)
    assert "No module named 'surely_not_there'" in str(caught.value)
    assert "not installed" not in str(caught.value)


@pytest.mark.parametrize("package", CALLS)
def test_a_package_that_is_missing_is_called_missing(package, forgotten, tmp_path, monkeypatch):
    forgotten(package)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CerebroError) as caught:
        CALLS[package](tmp_path)
    assert f"the package {package} is not installed; pip install " in str(caught.value)


def test_no_folder_of_the_machine_is_named(tmp_path, monkeypatch):
    (tmp_path / "brokenpackage.py").write_text("from json import surely_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        import brokenpackage  # noqa: F401
    text = import_trouble(caught.value, "brokenpackage")
    assert "cannot import name 'surely_not_there' from 'json' (__init__.py)" in text
    assert str(Path(ast.__file__).parent) not in text


def test_every_place_that_expects_an_import_to_fail_says_why():
    """Others would call a broken package missing. Those without: Windows has neither of the two modules."""
    allowed = {"fcntl", "resource", "torch and safetensors"}
    for path in Path(cerebro_eeg.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Try):
                for handler in node.handlers:
                    if isinstance(handler.type, ast.Name) and handler.type.id in ("ImportError", "ModuleNotFoundError"):
                        text = ast.unparse(node)
                        assert "import_trouble" in text or any(word in text for word in allowed), (path.name, text)
