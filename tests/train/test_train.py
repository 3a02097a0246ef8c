"""One process, several processes and shards learn the same; a run that is stopped or killed ends as if it never was."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cerebro_eeg.train.log import read_lines
from train_stores import make_store

WORKER = Path(__file__).parents[1] / "train_worker.py"


def run_jobs(jobs, processes=1, dies=False, said=None):
    """Do the jobs with this many processes; return what the first one printed of each job.

    ``dies``: the processes are killed during a job. The text that each process writes to stderr is added to ``said``.
    A process that fails leaves the others waiting in a collective. torchrun ends them; here ``finally`` kills them.
    """
    ports = free_ports(len(jobs)) if processes > 1 else []
    jobs = [{**job, "ports": ports} for job in jobs]
    started = []
    for rank in range(processes):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if processes > 1:
            place = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": rank, "MASTER_PORT": 1}
            env |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
        started.append(
            subprocess.Popen(
                [sys.executable, str(WORKER)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in started[1:]:  # communicate waits, and they wait for each other
            process.stdin.write(json.dumps(jobs))
            process.stdin.close()
            process.stdin = None
        outputs = [
            (*process.communicate(None if rank else json.dumps(jobs), timeout=600), process.returncode)
            for rank, process in enumerate(started)
        ]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    for _, errors, code in outputs:
        assert code == (-signal.SIGKILL if dies else 0), errors[-3000:]
    if said is not None:
        said += [errors for _, errors, _ in outputs]
    return [json.loads(line) for line in outputs[0][0].splitlines()]


def free_ports(count):
    """Ports that nobody listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in sockets]


def losses(folder):
    return [line["loss"] for line in read_lines(Path(folder) / "metrics.jsonl") if "loss" in line]


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    first = tmp_path_factory.mktemp("stores") / "first"
    second = first.with_name("second")
    make_store(first, 6, 8)
    make_store(second, 5, 8, "other", pretrain=True)
    return [str(first), str(second)]


VARIANTS = {
    "simmim": {"choices": {"weights": [2, 1]}},
    "vitmae": {"objective": {"style": "vitmae", "decoder_depth": 1}, "model": {"attention": "standard"}},
    "squares": {"model": {"attention": "two_axis", "patches": {"kind": "squares"}}},
    "open": {
        "objective": {
            "masking": "blocks",
            "spectrum": 1.0,
            "statistics": 1.0,
            "keep_channels": 0.5,
            "rereference": 0.5,
            "hide_amplitude": 0.5,
        },
        "model": {"amplitude": True},
    },
    "tuned": {"verb": "finetune", "choices": {"task": "alpha", "balanced": True}},
}


IN_FP32 = ("simmim",)
"""Also compared in fp32, as most people train, and by processes that do not cut their part into micro-batches."""


def run_of(root):
    """The folder of the training itself: fine-tuning has one for each seed."""
    return root / "seed-0" if (root / "seed-0").exists() else root


@pytest.fixture(scope="module")
def worlds(stores, tmp_path_factory):
    """Each variant in fp64, one in fp32, too: as one process, with accumulation, as DDP of two, and as FSDP2 of two."""
    root = tmp_path_factory.mktemp("worlds")

    def jobs(kind, engine):
        return [
            {
                "verb": "pretrain",
                "name": name,
                "stores": stores,
                "out": str(root / f"{kind}-{precision}-{name}"),
                "gradients": precision == "fp64",
                "engine": {"precision": precision, **engine},
                **variant,
            }
            for name, variant in VARIANTS.items()
            for precision in ("fp32", "fp64")
            if (precision == "fp64" or name in IN_FP32) and (kind != "ddp" or name in IN_FP32)
        ]

    single = [*jobs("one", {}), *jobs("pieces", {"micro_batch": 5})]
    double = [*jobs("ddp", {}), *jobs("ddp-pieces", {"micro_batch": 3}), *jobs("fsdp", {"strategy": "fsdp"})]
    for processes, todo in ((1, single), (2, double)):
        assert all("error" not in result for result in run_jobs(todo, processes))
    return root


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in VARIANTS for kind in ("pieces", "ddp-pieces", "fsdp")] + [(n, "ddp") for n in IN_FP32],
)
def test_every_way_of_sharing_the_work_learns_the_same(worlds, name, kind):
    for precision in ("fp32", "fp64") if name in IN_FP32 else ("fp64",):
        one, other = (losses(run_of(worlds / f"{k}-{precision}-{name}")) for k in ("one", kind))
        assert len(one) == 20
        assert one[-1] < (0.97 if name == "open" else 0.9) * one[0]  # views and five errors take longer to learn
        assert other == pytest.approx(one, rel=1e-6)
    for file in ("gradients.safetensors", "model.safetensors"):
        roots = [worlds / f"{k}-fp64-{name}" for k in (kind, "one")]
        found, wanted = (load_file((root if file.startswith("grad") else run_of(root)) / file) for root in roots)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert value.dtype == torch.float64
            error = (found[key] - value).norm()
            # The true gradient of a key bias is zero: what is there is rounding, and Adam follows it.
            keys = slice(value.shape[0] // 3, 2 * value.shape[0] // 3) if key.endswith("qkv.bias") else slice(0, 0)
            rest = torch.ones(len(value) if value.dim() else 1, dtype=torch.bool)
            rest[keys] = False
            error = (found[key] - value)[rest].norm() if key.endswith("qkv.bias") else error
            assert error <= 1e-9 * value.norm(), (file, key)
            if key.endswith("qkv.bias"):
                assert (found[key] - value)[keys].abs().max() < (1e-12 if file.startswith("grad") else 0.1)


def test_of_several_processes_the_first_says_what_was_loaded(stores, tmp_path):
    run_jobs([pretrain_job(stores, tmp_path / "start", steps=1)])
    jobs = [
        pretrain_job(stores, tmp_path / "more", steps=1, start=str(tmp_path / "start")),
        pretrain_job(
            stores,
            tmp_path / "tuned",
            verb="finetune",
            steps=1,
            start=str(tmp_path / "start"),
            choices={"task": "alpha"},
        ),
    ]
    said = []
    assert run_jobs(jobs, 2, said=said) == [{}, {}]
    assert [text.count("tensors loaded") for text in said] == [2, 0]


# ---- stopping and going on ------------------------------------------------------------------------------------------


def pretrain_job(stores, out, **more):
    return {"verb": "pretrain", "stores": stores, "out": str(out), "engine": {"precision": "fp32"}, **more}


def test_a_run_goes_on_with_other_processes_and_strategies(stores, tmp_path):
    """The state of one process is taken up by two that shard, and theirs by two that copy; the stream is the same."""
    cut = [{"die": 7}, {"die": 6}, {}]
    engines = [
        {"precision": "fp64"},
        {"precision": "fp64", "strategy": "fsdp"},
        {"precision": "fp64", "micro_batch": 2},
    ]
    whole = pretrain_job(stores, tmp_path / "whole", engine=engines[0])
    run_jobs([whole])
    for processes, engine, more in zip((1, 2, 2), engines, cut, strict=True):
        job = pretrain_job(stores, tmp_path / "cut", engine=engine | {"save_minutes": 1e-9}, **more)
        run_jobs([job], processes, dies="die" in more)
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), rel=1e-9)
    wanted, found = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    for key, value in wanted.items():
        if not key.endswith("qkv.bias"):
            assert (found[key] - value).norm() <= 1e-9 * value.norm(), key


def test_adapters_and_the_recipe_for_few_subjects_learn_the_same_in_two_processes(stores, tmp_path):
    """Each process has a plain copy for validation, and all must choose the same step."""
    start, precision = tmp_path / "start", {"precision": "fp64"}
    run_jobs([pretrain_job(stores[:1], start, engine=precision)])

    def jobs(kind):
        more = {"verb": "finetune", "start": str(start), "engine": precision}
        return [
            pretrain_job(stores[:1], tmp_path / f"{kind}-lora", choices={"task": "alpha", "lora": 4}, **more),
            pretrain_job(
                stores[:1], tmp_path / f"{kind}-few", steps=40, choices={"task": "level", "few": True}, **more
            ),
        ]

    assert run_jobs(jobs("one")) == run_jobs(jobs("two"), 2) == [{}, {}]
    for name in ("lora", "few"):
        one, two = (tmp_path / f"{kind}-{name}" / "seed-0" for kind in ("one", "two"))
        assert losses(two) == pytest.approx(losses(one), rel=1e-6)
        found, wanted = (json.loads((path / "finished.json").read_text()) for path in (two, one))
        assert (found["chosen"], found["validation"]) == (wanted["chosen"], pytest.approx(wanted["validation"]))
        assert all(torch.allclose(weights(two)[key], value, atol=1e-6) for key, value in weights(one).items())
