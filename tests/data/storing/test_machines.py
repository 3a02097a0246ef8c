"""Another processor gives the same store: NumPy and OpenBLAS run here without the features of this processor.

Both choose code by the processor, and that code rounds sines and sums differently. Their own switches make one
machine stand for several. (Other versions of SciPy may round transforms differently; this cannot show that.)
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from cerebro_eeg.data.storing.store import Store


def dispatched():
    """What NumPy found here beyond what it was built for."""
    from numpy._core import _multiarray_umath as core

    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]


def prepared(source, out, **switches):
    command = [sys.executable, "-m", "cerebro_eeg", "prepare", "folder", str(source), "--out", str(out), "--key"]
    done = subprocess.run(
        [*command, str(source.parent / "key")], env=os.environ | switches, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Store(out)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Recordings at rates whose change to 256 Hz folds many copies of the spectrum."""
    folder = tmp_path_factory.mktemp("machines") / "source"
    options = "--subjects 3 --minutes 1 --montages 10-20 --tasks eyes --rates 160 250 512".split()
    command = [sys.executable, "-m", "cerebro_eeg", "simulate", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.soak
def test_an_older_processor_gives_the_same_hash(source, tmp_path):
    here = prepared(source, tmp_path / "here")
    assert len(here.recordings) == 3
    older = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched()), "OPENBLAS_CORETYPE": "Nehalem"}
    assert prepared(source, tmp_path / "older", **older).hash() == here.hash()


WEIGHTS = """
import hashlib
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering.zero_phase import kernel, sizes
from cerebro_eeg.data.filtering.plan import plan_filters

for rate in (128.0, 160.0, 250.0, 500.0, 512.0):
    plan = plan_filters(rate, SignalConfig(), 50.0)
    for piece in kernel(plan, sizes(plan, 16)[-1]).pieces:
        print(hashlib.sha256(piece.weights.tobytes()).hexdigest())
"""
# Not exp in float64, which has code of its own for AVX-512 alone.
CURVES = "import hashlib, numpy; print(hashlib.sha256(numpy.tanh(numpy.linspace(0, 9, 1000)).tobytes()).hexdigest())"


@pytest.mark.parametrize(("code", "answers"), [(WEIGHTS, 1), (CURVES, 2)])
def test_weights_are_the_same_bits_though_functions_are_not(code, answers):
    """The second shows that the switches do switch: without it a machine might be compared with itself."""
    assert dispatched(), f"NumPy {np.__version__} chooses nothing by the processor here"
    found = set()
    for off in ("", " ".join(dispatched())):
        switches = os.environ | {"NPY_DISABLE_CPU_FEATURES": off}
        found.add(subprocess.run([sys.executable, "-c", code], env=switches, capture_output=True, check=True).stdout)
    assert len(found) == answers
