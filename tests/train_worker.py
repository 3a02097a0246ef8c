"""One process of a training that tests start: reads a list of jobs as JSON, does each, and writes what came of it.

Started once for many jobs, because importing torch takes longer than most of them. Several processes find each other
as ``torchrun`` has it, by the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; a job that is for one process is
done by every process alone.
"""

import json
import os
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from cerebro_eeg.config import FinetuneConfig, ModelConfig, ObjectiveConfig, PatchConfig, Preset, PretrainConfig
from cerebro_eeg.errors import CerebroError
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train import loop

MODEL = ModelConfig(depth=2, width=16, heads=2, mlp_ratio=2.0, window=256, patches=PatchConfig(length=64, stride=64))


def preset(job):
    """A model small enough for twenty steps in a second, with schedules of a few steps."""
    pretraining = PretrainConfig(
        batch_size=job.get("batch", 12), peak_lr=3e-3, warmup_epochs=1, max_epochs=4, stop_epoch=4
    )
    tuning = FinetuneConfig(batch_size=job.get("batch", 12), peak_lr=3e-3, warmup_epochs=1, epochs=4, drop_path=0.2)
    changes = dict(job.get("model", {}))
    if "patches" in changes:
        changes["patches"] = PatchConfig(**changes["patches"])
    model = replace(MODEL, **changes)
    return Preset(model, ObjectiveConfig(**job.get("objective", {})), pretraining, tuning)


def do(job, grads):
    """One training; an error that a user would see comes back in words."""
    engine = Engine(device="cpu", threads=1, readers=job.get("readers", 0), **job.get("engine", {}))
    stores = [Path(store) for store in job["stores"]]
    start = None if job.get("start") is None else Path(job["start"])
    try:
        with Watched(grads if job.get("gradients") else None):
            if job["verb"] == "pretrain":
                choices = pretrain.PretrainOptions(
                    steps=job.get("steps", 20), seconds=1.0, paper=True, **job.get("choices", {})
                )
                pretrain.pretrain(stores, Path(job["out"]), preset(job), choices, engine, start)
            else:
                tuned = finetune.FinetuneOptions(steps=job.get("steps", 20), paper=True, **job["choices"])
                finetune.finetune(stores[0], Path(job["out"]), preset(job), tuned, engine, start)
    except CerebroError as error:
        return f"{type(error).__name__}: {error}"
    return None


def main():
    jobs = json.loads(sys.stdin.read())
    for number, job in enumerate(jobs):
        if "MASTER_PORT" in os.environ:  # a port of its own for each: the last one may still be closing
            os.environ["MASTER_PORT"] = job["ports"][number]
        grads: dict[str, torch.Tensor] = {}
        if "die" in job:
            die(job["die"])
        error = do(job, grads)
        if int(os.environ.get("RANK", "0")) == 0:
            if grads:
                save_file(grads, str(Path(job["out"]) / "gradients.safetensors"))
            print(json.dumps({"error": error} if error else {}), flush=True)


def die(at):
    """Have the process killed right after the ``at``-th time that it saved its state."""
    original, count = loop.save, 0

    def save(run):
        nonlocal count
        original(run)
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.save = save


class Watched:
    """The whole gradients of the first step, as they are before clipping, put into ``grads``."""

    def __init__(self, grads):
        self.grads = grads

    def __enter__(self):
        if self.grads is None:
            return
        from cerebro_eeg.train import step
        from cerebro_eeg.train.distributed import whole

        self.clip = torch.nn.utils.clip_grad_norm_
        gradients = step.gradients

        def first(run, *given):
            def clip(parameters, most):
                if not self.grads:
                    for name, parameter in run.module.named_parameters():
                        if parameter.grad is not None:
                            self.grads[name] = whole(parameter.grad).clone().contiguous()
                return self.clip(parameters, most)

            torch.nn.utils.clip_grad_norm_ = clip
            try:
                return gradients(run, *given)
            finally:
                torch.nn.utils.clip_grad_norm_ = self.clip

        self.gradients, step.gradients = gradients, first

    def __exit__(self, *_):
        if self.grads is not None:
            from cerebro_eeg.train import step

            step.gradients = self.gradients


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
