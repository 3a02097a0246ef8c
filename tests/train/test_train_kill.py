"""Trainings that are killed, at random moments and at named points, any number of times: they end bitwise equal.

The processes die by SIGKILL. One process (``main`` below) forks them all, because importing torch anew for each would
take most of the time, and the process of the tests has threads.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from cerebro_eeg.runs import finetune
from cerebro_eeg.runs.verify import verify
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
        before(loop.StepComputer, "begin")
    elif point == "saved":
        save = loop.save

        def wrapper(run):
            save(run)
            reached()

        loop.save = wrapper
    train_worker.do(spec, {})


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")


@contextlib.contextmanager
def watched(out, reached):
    """Call ``reached`` with name and file before every operation that changes a file in ``out``, or flushes one.

    Python can remove no audit hook, so this one falls silent when the block ends.
    """
    out, silent = os.path.realpath(out), False

    def look(what, path):
        nonlocal silent
        path = os.path.realpath(os.fsdecode(path))
        if not silent and (path == out or path.startswith(out + os.sep)):
            silent = True
            reached(what, plain(os.path.relpath(path, out)))
            silent = False

    def audit(event, args):
        if event in EVENTS or (event == "open" and isinstance(args[0], str | bytes) and (args[2] & WRITES)):
            look(event, args[0])

    fsync = os.fsync

    def flush(descriptor):
        look("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    sys.addaudithook(audit)
    os.fsync = flush
    try:
        yield
    finally:
        silent, os.fsync = True, fsync


def plain(name):
    """The name of a file without what is random in it."""
    return re.sub(r"[0-9a-f]{16}|(?<=best-)[0-9]+|(?<=\.tmp)[A-Za-z0-9]{6}", "*", name)


def die_at_a_new_operation(known, tell):
    """Return what has a process killed before the first operation that is not ``known`` yet.

    An operation is known by what is done, by the file, and by whether the process has done it before. So the first save
    of a state and a later one are two operations.
    """
    counts = Counter()

    def reached(what, name):
        counts[what, name] += 1
        operation = f"{what} {name} {'first' if counts[what, name] == 1 else 'later'}"
        if operation not in known:
            tell(operation)
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def whole_life(spec):
    """A command from its start to its report; a fine-tuning is evaluated, too."""
    import train_worker
    from cerebro_eeg.report.finetune import report_finetune
    from cerebro_eeg.report.pretrain import report_pretrain
    from cerebro_eeg.runs.evaluate import evaluate

    error, out = train_worker.do(spec, {}), Path(spec["out"])
    if error is not None:
        raise AssertionError(error)
    if spec.get("report") and spec["verb"] == "pretrain":
        report_pretrain(out, [Path(store) for store in spec["stores"]])
    elif spec["verb"] == "finetune":
        evaluate(out, Path(spec["stores"][0]), device="cpu", resamples=100)
        if spec.get("report"):
            report_finetune(out)


def main_of_operations():
    """Run each job to its end in children that die at every operation once; prints the operations."""
    import filelock  # noqa: F401 - all imported once, for all children
    import sklearn.calibration
    import sklearn.metrics  # noqa: F401
    import torch

    import train_worker  # noqa: F401
    from cerebro_eeg.report import finetune, pretrain  # noqa: F401
    from cerebro_eeg.runs import evaluate  # noqa: F401

    torch.set_num_threads(1)
    for spec, mortal in json.loads(sys.stdin.read()):
        died: list[str] = []
        while True:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.dup2(2, 1)
                try:
                    reached = die_at_a_new_operation({*died}, lambda name, pipe=write: os.write(pipe, name.encode()))
                    with watched(spec["out"], reached) if mortal else contextlib.nullcontext():
                        whole_life(spec)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            os.close(write)
            with open(read) as pipe:
                name = pipe.read()
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == 0:
                break
            if code != -signal.SIGKILL:
                print(f"after the kills at {died}", file=sys.stderr)
                sys.exit(1)
            died.append(name)
        print(json.dumps(died), flush=True)


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


@pytest.mark.soak
def test_kills_change_nothing(tmp_path):
    """Each of the six ways once in a pre-training and once in a fine-tuning, and one more."""
    check(tmp_path, 14)


@pytest.mark.soak
def test_five_hundred_kills_change_nothing(tmp_path):
    check(tmp_path, 500)


def lives(tmp_path, name, **more):
    """A pre-training and two fine-tunings of a few steps, of all weights and of adapters that begin with the probe."""
    stores, start = [str(tmp_path / "store")], str(tmp_path / "whole" / "model.safetensors")
    few = {"choices": {"task": "alpha", "few": True, "untrained": "as_is"}}
    return [
        job("pretrain", stores, tmp_path / name) | {"steps": 3, **more},
        job("finetune", stores, tmp_path / f"{name}-tuned", start) | {"steps": 3, **more},
        job("finetune", stores, tmp_path / f"{name}-few", start) | {"steps": 3, **few, **more},
    ]


@pytest.mark.parametrize(
    ("life", "seconds"),
    [(0, 0.0), (1, 0.0), *(pytest.param(*given, marks=pytest.mark.soak) for given in ((1, 20.0), (2, 0.0)))],
    ids=["pre-training", "fine-tuning", "fine-tuning, saved later", "few"],
)
def test_what_a_kill_leaves_is_gone_on_with(tmp_path, monkeypatch, life, seconds):
    """From the first folder to the last score, what lies on the disk before each operation on a file of the run.

    A process that is killed there leaves just that, and the same command must go on from it. A kill in the first write
    of run.json left a file that made the folder look like somebody else's.
    """
    make_store(tmp_path / "store", 6, 12)
    monkeypatch.setattr(finetune, "SAVE_SECONDS", seconds)
    first, spec = lives(tmp_path, "whole")[0], lives(tmp_path, "whole")[life]
    if life:
        whole_life(first)  # the weights that fine-tuning starts from
    left: dict[object, Path] = {}
    out = Path(spec["out"])

    def keep(what, name):
        """Keep a copy of the folder, unless one with these files was kept before. It is never called damaged."""
        if (out / "run.json").exists():
            assert verify([out]).exit_code == 0, (what, name, verify([out]).text())
        key = frozenset(plain(str(path.relative_to(out))) for path in out.rglob("*")), out.exists()
        if key not in left:
            left[key] = tmp_path / f"{out.name}-{len(left)}"
            if out.exists():
                shutil.copytree(out, left[key])

    with watched(out, keep):
        whole_life(spec)
    assert len(left) > (8 if spec["verb"] == "pretrain" else 15)
    wanted = outcome(out)
    for copy in left.values():
        whole_life(spec | {"out": str(copy)})
        assert outcome(copy) == wanted


@pytest.mark.soak
def test_a_kill_at_any_file_operation_changes_nothing(tmp_path):
    """The same with real kills, until the report: every operation is the last one of a process once."""
    make_store(tmp_path / "store", 6, 12)
    wholes, cuts = lives(tmp_path, "whole", report=True), lives(tmp_path, "cut", report=True)
    done = subprocess.run(
        [sys.executable, __file__, "operations"],
        input=json.dumps([*((spec, False) for spec in wholes), *((spec, True) for spec in cuts)]),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *none, pretrained, tuned, few = [json.loads(line) for line in done.stdout.splitlines()]
    assert none == [[], [], []]
    for whole, cut in zip(wholes, cuts, strict=True):
        assert outcome(whole["out"]) == outcome(cut["out"])
    for died, files in (
        (pretrained, ["run.json", "metrics.jsonl", "state.safetensors", "model.safetensors", "report.html"]),
        (tuned, ["run.json", "seed-0/run.json", "seed-0/best-*.safetensors", "seed-0/finished.json", "test.json"]),
        (few, ["seed-0/probe.json", "seed-0/best-*.safetensors", "seed-0/state.safetensors", "seed-0/finished.json"]),
    ):
        for file in files:
            folder, _, name = file.rpartition("/")
            wanted = f"os.rename {os.path.join(folder, '.' + name)}"
            assert any(one.startswith(wanted) for one in died), (wanted, died)


if __name__ == "__main__":
    main_of_operations() if sys.argv[1:] == ["operations"] else main()
