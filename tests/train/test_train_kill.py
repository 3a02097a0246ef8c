"""Trainings that are killed, at random moments and at named points, any number of times: they end bitwise equal.

The processes die by SIGKILL. One process (``main`` below) forks them all, because importing torch anew for each would
take most of the time, and the process of the tests has threads.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cerebro_eeg.train.log import read_lines
from train_stores import make_store

POINTS = ("fsync", "replace", "saved", "start", "log")
"""Before a flush, before a file takes its place, right after a save, right after a resume, before a line is logged."""
WAYS = (*POINTS, "random")


def job(verb, stores, out, start=None):
    """A run of 30 steps over some epochs that saves its state after every step."""
    engine = {"save_minutes": 1e-9, "precision": "fp32"}
    found = {"verb": verb, "stores": stores, "out": str(out), "steps": 30, "batch": 12, "engine": engine}
    if verb == "finetune":
        found |= {"choices": {"task": "alpha", "patience": 2}, "start": start}
    return found


def train(spec, point, at):
    """What a child does: train, and die where it was told to."""
    import train_worker
    from cerebro_eeg.train import loop
    from cerebro_eeg.train.log import Log

    seen = 0

    def reached():
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(place, name):
        inner = getattr(place, name)

        def wrapper(*args, **kwargs):
            reached()
            return inner(*args, **kwargs)

        setattr(place, name, wrapper)

    if point in ("fsync", "replace"):
        before(os, point)
    elif point == "log":
        before(Log, "write")
    elif point == "start":
        before(loop, "_step")
    elif point == "saved":
        save = loop.save

        def wrapper(run):
            save(run)
            reached()

        loop.save = wrapper
    train_worker.do(spec, {})


def main():
    """Run the job to its end in children that are killed ``kills`` times; prints how they died."""
    import torch

    import train_worker  # noqa: F401 - imported once, for all children
    from cerebro_eeg.runs import finetune  # noqa: F401

    torch.set_num_threads(1)
    given = json.loads(sys.stdin.read())
    for spec, kills, seed in given:
        rng = random.Random(seed)
        died = []
        for number in range(10_000):
            point = WAYS[number % len(WAYS)]
            mortal = len(died) < kills
            at = 1 if point == "start" else rng.randint(1, 3)
            child = os.fork()
            if child == 0:
                os.dup2(2, 1)
                try:
                    train(spec, point if mortal else "", at)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            if mortal and point == "random":
                time.sleep(rng.uniform(0.02, 0.3))
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == -signal.SIGKILL:
                died.append(point)
                continue
            if code != 0:
                sys.exit(1)
            if not mortal:
                break
            shutil.rmtree(spec["out"])  # it was done before the blow: begin again, so that all kills are dealt
        print(json.dumps(died), flush=True)


def outcome(out):
    """Losses as they are to the last bit, weights as bytes, and the names of all files."""
    folders = sorted({path.parent for path in Path(out).rglob("run.json")})
    lines = [line for folder in folders for line in read_lines(folder / "metrics.jsonl")]
    values = [{k: float(v).hex() for k, v in line.items() if k != "seconds"} for line in lines]
    weights = [
        (folder / "model.safetensors").read_bytes() for folder in folders if (folder / "model.safetensors").exists()
    ]
    return values, weights, sorted(str(path.relative_to(out)) for path in Path(out).rglob("*"))


def check(tmp_path, kills):
    stores = [str(tmp_path / "store")]
    make_store(tmp_path / "store", 6, 12)
    first = job("pretrain", stores, tmp_path / "whole")
    start = str(tmp_path / "whole" / "model.safetensors")
    wholes = [first, job("finetune", stores, tmp_path / "whole-tuned", start)]
    broken = [job("pretrain", stores, tmp_path / "cut"), job("finetune", stores, tmp_path / "cut-tuned", start)]
    todo = [*((spec, 0, 0) for spec in wholes), *((spec, kills // 2, n) for n, spec in enumerate(broken))]
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(todo),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=None if kills > 40 else 600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    died = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(how) for how in died] == [0, 0, kills // 2, kills // 2]
    assert {*died[2]} == {*died[3]} == {*WAYS}
    for whole, cut in zip(wholes, broken, strict=True):
        assert outcome(whole["out"]) == outcome(cut["out"])


def test_kills_change_nothing(tmp_path):
    """Each of the six ways once in a pre-training and once in a fine-tuning, and one more."""
    check(tmp_path, 14)


@pytest.mark.soak
def test_five_hundred_kills_change_nothing(tmp_path):
    check(tmp_path, 500)


if __name__ == "__main__":
    main()
