"""A device that is not there, for a process of its own: does a computation wait for it, or copy from the host?

Tensors have shapes and no values (``FakeTensorMode``) and lie on a device called "faked". So a copy between it and the
CPU can be seen, as it cannot where all is on the CPU, and a value that the host asks for is an error. No CUDA graph can
repeat either. Kernels are torch's own ("stock").

Reads a list of jobs as JSON, and writes a list of what was found in each of them.
"""

import json
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from cerebro_eeg import Cerebro, MaskedCerebro
from cerebro_eeg.config import FinetuneConfig
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.fast import use
from cerebro_eeg.model import masks
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.store_predictions import _outputs
from cerebro_eeg.runs.windows import find_splits, pretrain_sources, read_task
from cerebro_eeg.train import loop, step
from cerebro_eeg.train.distributed import ProcessGroup
from train_stores import make_store
from train_worker import preset

COPIES = ("aten::_to_copy", "aten::copy_")


class Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend("faked", backend_module=Module())
DEVICE = torch.device("faked:0")


class Watch(TorchDispatchMode):
    """Notes every copy between the device and the CPU, with the lines of the package that ask for it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func._schema.name in COPIES and args[-1 if func._schema.name == "aten::copy_" else 0].device != found.device:
            lines = [
                f"{Path(x.filename).name}:{x.name}" for x in traceback.extract_stack() if "cerebro_eeg" in x.filename
            ]
            self.found.append(" < ".join(lines[:-3:-1]) or "a copy")
        return found


def faked(x):
    return None if x is None else torch.empty(x.shape, dtype=x.dtype, device=DEVICE)


def move(module):
    """Give a module tensors of the device that is not there."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = torch.nn.Parameter(faked(value), requires_grad=value.requires_grad)
        for name, value in part._buffers.items():
            part._buffers[name] = faked(value)


def made(job, store):
    """The model of a job, its task, and the inputs of a first step."""
    chosen = preset(job)
    seconds = job.get("seconds", 1.0)
    if job["verb"] == "pretrain":
        sources, _ = pretrain_sources([store], seconds, None, ())
        model = MaskedCerebro(chosen.model, chosen.objective)
        order = Order(0, [len(windows) for _, windows in sources], 8)
        with Loader(sources, threads=0) as loader:
            task = pretrain.MaskedTask(sources, order, loader, chosen.model, chosen.objective, 0, ProcessGroup(), 1)
            ((one,),) = task.micro_batches(0, 1)
            return model, task, task.inputs(one)
    windows = next(iter(find_splits(store, read_task(store, job["task"], seconds, None, None), None))).train
    kind = "classification" if windows.target is None else "regression"
    model = Cerebro(len(windows.names), config=chosen.model, task=kind, n_times=windows.samples)
    if job.get("readout"):
        model.reset_head(
            len(windows.names), windows.names, finetune.readout_config(finetune.READOUTS[job["readout"]], ())
        )
    model.encoder.set_drop_path(0.2)
    order, config = Order(0, [len(windows)], 8), replace(FinetuneConfig(), batch_size=8)
    with Loader([(store, windows)], threads=0) as loader:
        task = finetune.LabelTask(windows, order, loader, config, chosen.model.depth, True, 0, ProcessGroup(), 1)
        ((one,),) = task.micro_batches(0, 1)
        return model, task, task.inputs(one)


def run(job, store):
    """What a job's step copies, and the error of a step that asks for a value."""
    model, task, inputs = made(job, store)
    lines = []
    with FakeTensorMode(allow_non_fake_inputs=True), use("stock"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        move(model)
        kept = {}

        def constant(numbers, device, dtype=torch.float32):  # made once on a GPU, before any graph
            return kept.setdefault((numbers, dtype), torch.empty(len(numbers), dtype=dtype, device=device))

        finetune.constant = constant
        sys.modules["cerebro_eeg.fast"].constant = constant
        masks._directions = lambda device: kept.setdefault("directions", torch.empty(400, 3, device=device))
        given = loop.Inputs(inputs.form, tuple(faked(x) for x in inputs.tensors))
        processes = SimpleNamespace(device=DEVICE, size=1, sum=lambda x: x)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        what = SimpleNamespace(
            task=task, module=model, wrapped=model, processes=processes, clip=1.0, precision="fp32", optimizer=optimizer
        )
        computations = {
            "step": lambda: step.gradients(what, [given], 1),
            "validation": lambda: evaluated(job, model, given),
            "copy": lambda: faked(torch.ones(2)) + torch.ones(2).to(DEVICE),
            "value": lambda: faked(torch.ones(2)).sum().item(),
        }
        for name in job.get("computations", ("step", "validation")):
            with Watch() as watch:
                try:
                    computations[name]()
                except Exception as error:
                    lines.append(f"{name}: {type(error).__name__} {str(error).splitlines()[0][:160]}")
            lines += [f"{name}: {line}" for line in watch.found]
    return lines


@torch.no_grad()
def evaluated(job, model, given):
    """What validation computes of the same windows; the keys of their masks are the seventh of the inputs."""
    with loop.evaluating(model):
        if job["verb"] == "pretrain":
            return pretrain._sums(model, model.config, DEVICE, "fp32", given.form, given.tensors[:7])
        return _outputs(model, None, DEVICE, "fp32", given.form, given.tensors[:6])


def main():
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder) / "store", 6, 8)
        store = Store(Path(folder) / "store")
        print(json.dumps([run(job, store) for job in json.loads(sys.stdin.read())]))


if __name__ == "__main__":
    main()
