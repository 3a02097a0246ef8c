"""The package as a stranger meets it: what is installed, what an import costs, which names there are."""

import os
import subprocess
import sys
from importlib.metadata import entry_points, metadata, version
from importlib.resources import files
from pathlib import Path

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
from pathlib import Path
import numpy as np
import cerebro_eeg.cli, cerebro_eeg.runs.predict
from cerebro_eeg import Cerebro
from cerebro_eeg.runs.finetune import FinetuneOptions, finetune
from cerebro_eeg.runs.settings import Engine
from train_stores import make_store
from train_worker import preset

model = Cerebro.from_pretrained("small-open")
model.embed(np.random.randn(2, 1280) * 20, ch_names=["Fp1", "O1"], sfreq=256.0)
folder = Path(sys.argv[1])
make_store(folder / "store", 9, 8)
options = FinetuneOptions(task="alpha", steps=4, seconds=1.0, paper=True)
engine = Engine(device="cpu", readers=0, threads=1)
finetune(folder / "store", folder / "run", preset({}), options, engine, rivals=False)
print([name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules])
"""


def test_features_and_trainings_import_neither_compiler_nor_sharding(tmp_path):
    """Each takes as long as the import of torch, or longer. Only compilation and FSDP2 need them."""
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[]"
