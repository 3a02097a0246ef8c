"""The package as a stranger meets it: what is installed, what an import costs, which names there are."""

import subprocess
import sys
from importlib.metadata import entry_points, metadata, version
from importlib.resources import files

import pytest

import cerebro_eeg


def test_import_loads_nothing_heavy() -> None:
    code = "import cerebro_eeg, sys; print(*sorted({'torch', 'numpy', 'scipy', 'tyro', 'mne'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_module_imports_without_what_only_posix_has() -> None:
    """Windows has none of these modules; one that needs them must import them where it uses them."""
    code = """
import importlib, pkgutil, sys
absent = ("fcntl", "resource", "pwd", "grp", "termios")
sys.modules.update(dict.fromkeys(absent))
import cerebro_eeg
for module in pkgutil.walk_packages(cerebro_eeg.__path__, "cerebro_eeg."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ImportError as error:
        if error.name in absent:  # others are optional packages that are not installed here
            print(module.name, "needs", error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []


@pytest.mark.parametrize("name", cerebro_eeg.__all__)
def test_public_name_resolves(name: str) -> None:
    value = getattr(cerebro_eeg, name)
    assert value is getattr(cerebro_eeg, name)
    assert name in dir(cerebro_eeg)
    if isinstance(value, type):
        assert value.__name__ == name


def test_every_lazy_name_is_public() -> None:
    assert sorted([*cerebro_eeg._HOMES, "__version__"]) == sorted(cerebro_eeg.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cerebra'"):
        _ = cerebro_eeg.Cerebra


def test_version_has_one_source() -> None:
    assert version("cerebro-eeg") == cerebro_eeg.__version__


def test_metadata() -> None:
    found = metadata("cerebro-eeg")
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == ">=3.11"
    (script,) = entry_points(group="console_scripts", name="cerebro-eeg")
    assert script.value == "cerebro_eeg.cli:main"


def test_types_are_shipped() -> None:
    assert files("cerebro_eeg").joinpath("py.typed").is_file()


TRAINING = """
import sys
import numpy as np
import torch
import cerebro_eeg.cli, cerebro_eeg.runs.predict, cerebro_eeg.runs.finetune
from cerebro_eeg import Cerebro
from cerebro_eeg.train.optim import adamw, group_parameters

model = Cerebro.from_pretrained("small-open")
model.embed(np.random.randn(2, 1280) * 20, ch_names=["Fp1", "O1"], sfreq=256.0)
optimizer = adamw(model, group_parameters(model, 0.05), (0.9, 0.98))
model.encoder.embed.weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def test_features_and_trainings_need_no_compiler():
    """The import of torch's compiler takes as long as that of torch, or longer. Only compilation asks for it."""
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
