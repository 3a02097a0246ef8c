"""Steps and validations never wait for the device or copy from the host: a CUDA graph cannot repeat that.

A process of its own has a device without memory (``fake_device.py``), on which any copy from the CPU can be seen.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebro_eeg

FURTHER = {"spectrum": 1.0, "statistics": 0.5}
JOBS = {
    "simmim": {"verb": "pretrain"},
    "vitmae": {"verb": "pretrain", "objective": {"style": "vitmae"}},
    "blocks": {"verb": "pretrain", "objective": {"masking": "blocks"}},
    "further": {"verb": "pretrain", "objective": FURTHER},
    "standard": {"verb": "pretrain", "model": {"attention": "standard"}},
    "two axes": {"verb": "pretrain", "model": {"attention": "two_axis"}},
    "bottleneck": {"verb": "pretrain", "model": {"attention": "bottleneck"}},
    "squares": {"verb": "pretrain", "model": {"patches": {"kind": "squares"}}},
    "phase": {"verb": "pretrain", "model": {"patches": {"kind": "time_bins", "phase": "interleaved"}}},
    "separated phase": {"verb": "pretrain", "model": {"patches": {"kind": "time_bins", "phase": "separated"}}},
    "amplitude": {"verb": "pretrain", "model": {"amplitude": True, "normalization": "recording"}},
    "windows longer than the table": {"verb": "pretrain", "seconds": 2.0, "model": {"window": 256}},
    "classes": {"verb": "finetune", "task": "alpha"},
    "three classes": {"verb": "finetune", "task": "third"},
    "regression": {"verb": "finetune", "task": "level"},
    "moments": {"verb": "finetune", "task": "alpha", "readout": "moments"},
    "attention": {"verb": "finetune", "task": "alpha", "readout": "attention"},
}
FAULTS = {
    "a copy": {"verb": "pretrain", "computations": ["copy"]},
    "a value": {"verb": "pretrain", "computations": ["value"]},
    "visible patches of standard attention": {
        "verb": "pretrain",
        "objective": {"style": "vitmae"},
        "model": {"attention": "standard"},
        "computations": ["step"],
    },
}


@pytest.fixture(scope="module")
def found():
    source = Path(cerebro_eeg.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "fake_device.py")],
        input=json.dumps([*JOBS.values(), *FAULTS.values()]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parents[1], source)))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip([*JOBS, *FAULTS], json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("job", JOBS)
def test_nothing_is_copied_or_asked_for(found, job):
    assert found[job] == []


def test_what_waits_is_found(found):
    assert found["a copy"] == ["copy: a copy"]
    assert [line.split()[:2] for line in found["a value"]] == [["value:", "DataDependentOutputException"]]
    assert found["visible patches of standard attention"] != []
