"""Trainings side by side: the same weights as one after the other, whatever is killed, stopped or wrong."""

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train_stores
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import ConfigError, StoppedError, TrainingError
from cerebro_eeg.runs import capacity, finetune, gpu_sharing, side_by_side, training_processes
from cerebro_eeg.runs.finetune import FinetuneOptions
from cerebro_eeg.runs.fold_features import FoldFeatures
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.rivals import AskedOfRivals
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.side_by_side import ProcessPlan, plan_processes
from cerebro_eeg.runs.store_predictions import KeptFeatures
from cerebro_eeg.runs.training import fit_batch, memory_room, room_for_activations
from cerebro_eeg.runs.training_processes import SeedAndFold, TrainingProcess, TrainingProcesses, started_ahead
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.state import steps_done
from train_stores import MONTAGES, make_store
from train_worker import MODEL, preset

ENGINE = Engine(device="cpu", readers=0, threads=1)
OPTIONS = FinetuneOptions(task="alpha", seeds=(0, 1, 2), steps=4, seconds=1.0, paper=True)
FROZEN = replace(OPTIONS, seeds=(0,), folds=3, steps=None, freeze=True, seconds=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("side")
    make_store(folder / "store", 9, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stores, "MONTAGES", MONTAGES[:1])  # simple rivals need the same channels in all windows
        make_store(folder / "alike", 9, 8)
    return folder


@pytest.fixture(scope="module")
def weights(folder):
    """Weights to start from: those of a first training, with tokens so wide that read-outs use some axes of them."""
    wide = preset({"model": {"width": 48, "heads": 3}})
    finetune.finetune(folder / "store", folder / "first", wide, replace(OPTIONS, seeds=(7,)), ENGINE, rivals=False)
    return folder / "first" / "seed-7" / "model.safetensors"


def train(folder, name, options=OPTIONS, start=None, at_once=2, engine=ENGINE, chosen=None, rivals=False):
    """Train, and return the result, the lines, and the steps that were shown."""
    lines, steps = [], []
    result = finetune.finetune(
        folder / ("alike" if rivals else "store"),
        folder / name,
        chosen or preset({}),
        options,
        engine,
        start,
        rivals=rivals,
        random_weights=rivals,
        at_once=at_once,
        say=lines.append,
        tell=lambda report, total, batch: steps.append((report.step, total)),
    )
    return result, lines, steps


def files(run):
    """The SHA-256 of every file that does not say when or how long."""
    found = {path.relative_to(run): path for path in sorted(Path(run).rglob("*")) if path.is_file()}
    timed = {"metrics.jsonl", "run.json", "SHA256SUMS", "training-data.json"}
    return {str(n): hashlib.sha256(p.read_bytes()).hexdigest() for n, p in found.items() if p.name not in timed}


def test_trainings_side_by_side_are_those_one_after_the_other(folder):
    alone, _, _ = train(folder, "alone", at_once=1)
    both, lines, steps = train(folder, "both")
    assert len({one for name, one in files(alone.folder).items() if name.endswith("model.safetensors")}) == 3
    assert files(both.folder) == files(alone.folder)
    assert [replace(one, folder="") for one in both.trained] == [replace(one, folder="") for one in alone.trained]
    assert lines.count("3 trainings, 2 at the same time, each on 1 thread (--at-once 1: one after the other)") == 1
    assert sorted(line.rsplit("(", 1)[1] for line in lines if line.endswith("trained)")) == [
        "1 of 3 trained)",
        "2 of 3 trained)",
        "3 of 3 trained)",
    ]
    assert steps[-1] == (12, 12)
    assert all(before[0] < after[0] for before, after in itertools.pairwise(steps))
    shutil.rmtree(folder / "both" / "seed-1")
    again, lines, _ = train(folder, "both")  # one that is left is done as it would be beside the others
    assert lines.count("1 training, 1 at the same time, each on 1 thread (--at-once 1: one after the other)") == 1
    assert files(again.folder) == files(alone.folder)


def test_processes_that_were_started_ahead_do_the_same_trainings(folder, tmp_path, monkeypatch):
    """They get environment variables and the lock of the run later; one that is not needed is killed."""
    alone, _, _ = train(folder, "before-alone", replace(OPTIONS, seeds=(0, 1)), at_once=1)
    shutil.copytree(alone.folder, folder / "before")
    shutil.rmtree(folder / "before" / "seed-1")
    monkeypatch.setattr(training_processes, "DRIVERS", (tmp_path,))
    monkeypatch.setattr(training_processes, "cores", lambda: 8)
    held = []
    with started_ahead(2, None, "auto", 1) as others:
        first, second = list(others._waiting)
        begin = TrainingProcess.begin

        def noted(one, training):
            if training is None and not held:  # the process still waits for another line
                held.append(holds(one.pid, folder / "before" / ".lock"))
                assert others._waiting == []  # the other one was killed as the training began
                assert second._process.returncode == -signal.SIGKILL
            begin(one, training)

        monkeypatch.setattr(TrainingProcess, "begin", noted)
        options = replace(OPTIONS, seeds=(0, 1))
        both = finetune.finetune(
            folder / "store", folder / "before", preset({}), options, ENGINE, rivals=False, at_once=2, others=others
        )
        assert others.taken == [first]
    assert held == [True]
    assert first._process.returncode == 0
    assert files(both.folder) == files(alone.folder)


def holds(pid, path):
    """Whether a process has a file open."""
    found = [os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
    return os.path.realpath(path) in found


def test_processes_with_other_threads_are_not_taken(monkeypatch):
    monkeypatch.setattr(training_processes, "START", "input()")
    processes = TrainingProcesses()
    processes.start_ahead(2, {"OMP_NUM_THREADS": "2"})
    one, other = list(processes._waiting)
    try:
        new = processes.take({"OMP_NUM_THREADS": "4", "A": "b"})
        assert new not in (one, other)
        assert processes.take({"OMP_NUM_THREADS": "2", "A": "b"}) is one
        other._process.kill()
        other._process.wait()
        another = processes.take({"OMP_NUM_THREADS": "2"})
        assert another is not other  # which does not run any more
        assert processes.taken == [new, one, another]
    finally:
        processes.close()
        for taken in processes.taken:
            taken.kill()
    assert [p._process.poll() for p in (one, other, new)] == [-signal.SIGKILL] * 3


@pytest.mark.parametrize(
    ("trainings", "at_once", "device", "variables", "count"),
    [
        (3, None, "auto", {}, 3),
        (25, None, "cuda:1", {}, 4),
        (25, 6, "cuda", {}, 6),
        (25, None, "cpu", {}, 0),
        (25, 1, "auto", {}, 0),
        (1, None, "auto", {}, 0),
        (3, None, "auto", {"WORLD_SIZE": "2"}, 0),
        (3, None, "auto", {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (3, None, "auto", {"CUDA_VISIBLE_DEVICES": "-1"}, 0),
    ],
)
def test_as_many_processes_are_started_ahead_as_may_train(
    tmp_path, monkeypatch, trainings, at_once, device, variables, count
):
    for name in ("WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(training_processes, "cores", lambda: 8)
    monkeypatch.setattr(training_processes, "free_bytes", lambda: 64e9)
    monkeypatch.setattr(training_processes, "DRIVERS", (tmp_path / "none", tmp_path))
    asked = []
    monkeypatch.setattr(TrainingProcesses, "start_ahead", lambda one, *given: asked.append(given))
    with started_ahead(trainings, at_once, device, None):
        pass
    two = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert asked == ([(count, two)] if count else [])
    monkeypatch.setattr(training_processes, "DRIVERS", (tmp_path / "none",))
    monkeypatch.setattr(training_processes, "free_bytes", lambda: 2e9)
    with started_ahead(trainings, at_once, device, None):
        pass
    assert len(asked) == bool(count)  # no GPU, so nothing is started


def test_little_memory_starts_few_processes_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(training_processes, "cores", lambda: 32)
    monkeypatch.setattr(training_processes, "DRIVERS", (tmp_path,))
    asked = []
    monkeypatch.setattr(TrainingProcesses, "start_ahead", lambda one, count, given: asked.append(count))
    for free in (5e9, 3e9):
        monkeypatch.setattr(training_processes, "free_bytes", lambda free=free: free)
        with started_ahead(9, None, "auto", 1):
            pass
    assert asked == [3, 0]


@pytest.mark.parametrize("readout", [None, "auto"])
def test_frozen_probes_of_folds_share_their_features_between_processes(folder, weights, readout, monkeypatch):
    options = replace(FROZEN, readout=readout)
    alone, _, _ = train(folder, f"frozen-{readout}", options, weights, at_once=1)
    saved = []
    save = KeptFeatures.save
    monkeypatch.setattr(KeptFeatures, "save", lambda kept, to: (saved.append(len(kept._row)), save(kept, to))[1])
    both, _, _ = train(folder, f"frozen-both-{readout}", options, weights)
    assert saved == [9 * 8]  # every window once; the processes have no way to compute one
    assert files(both.folder) == files(alone.folder)
    assert not list(Path(both.folder).glob(".features-*"))


@pytest.mark.parametrize("options", [OPTIONS, pytest.param(FROZEN, marks=pytest.mark.soak)], ids=["steps", "frozen"])
def test_rivals_are_computed_meanwhile_with_the_same_answers(folder, weights, options, monkeypatch):
    start, name = (weights, "frozen") if options.freeze else (None, "steps")
    alone, _, _ = train(folder, f"rivals-{name}-alone", options, start, at_once=1, rivals=True)
    threads, main = {"simple": [], "random": []}, threading.main_thread()
    for part, seen in threads.items():
        original = getattr(AskedOfRivals, part)
        noted = lambda *given, original=original, seen=seen: (  # noqa: E731
            seen.append(threading.current_thread() is main),
            original(*given),
        )[1]
        monkeypatch.setattr(AskedOfRivals, part, noted)
    both, lines, _ = train(folder, f"rivals-{name}-both", options, start, rivals=True)
    assert threads == {"simple": [False], "random": [False]}  # once, and not by the thread that waits for trainings
    assert both.rivals == alone.rivals
    assert {row["name"] for row in both.rivals} >= {"band power", "chance", "random weights"}
    assert files(both.folder) == files(alone.folder)
    assert any(line.startswith("simple rivals on the same windows: ") for line in lines)


def test_an_error_of_the_rivals_comes_after_the_trainings(folder, monkeypatch):
    def broken(asked):
        raise ConfigError("no rival can be computed")

    monkeypatch.setattr(AskedOfRivals, "simple", broken)
    with pytest.raises(ConfigError, match="no rival can be computed"):
        train(folder, "broken", rivals=True)
    assert all((folder / "broken" / f"seed-{seed}" / "finished.json").exists() for seed in (0, 1, 2))


def test_features_that_cannot_be_written_leave_heads_one_after_the_other(folder, weights, monkeypatch):
    def full(kept, to):
        raise OSError(28, "No space left on device")

    fit, left = finetune._train, []

    def noted(*given):
        left.extend((folder / "full").glob(".features-*"))
        return fit(*given)

    monkeypatch.setattr(KeptFeatures, "save", full)
    monkeypatch.setattr(finetune, "_train", noted)
    found, lines, _ = train(folder, "full", FROZEN, weights)
    assert len(found.trained) == 3
    assert left == []  # the heads need the space
    assert sum("one after the other: features cannot be written (No space left" in line for line in lines) == 1


def test_what_a_package_prints_in_a_process_is_no_message(folder, monkeypatch):
    monkeypatch.setattr(
        training_processes, "START", "print('hello from a package'); print('{}[');" + training_processes.START
    )
    found, lines, _ = train(folder, "printing", replace(OPTIONS, seeds=(0, 1)))
    assert len(found.trained) == 2
    assert lines.count("hello from a package") == 1


@pytest.mark.parametrize(
    ("broken", "kind", "words"),
    [
        ("OSError(28, 'No space left on device')", TrainingError, "the run cannot be written"),
        ("PermissionError(13, 'Permission denied')", OSError, r"seed \d: Permission denied"),
        ("ZeroDivisionError('of /home/somebody')", RuntimeError, r"^seed \d: ZeroDivisionError"),
    ],
)
def test_an_unforeseen_error_keeps_its_kind_and_its_traceback_aside(folder, monkeypatch, broken, kind, words):
    patch = (
        "from cerebro_eeg.train.loop import StepComputer\n"
        f"def begin(*given): raise {broken}\n"
        "StepComputer.begin = begin\n"
    )
    start = training_processes.START.replace("from cerebro_eeg.runs", f"exec({patch!r}); from cerebro_eeg.runs")
    monkeypatch.setattr(training_processes, "START", start)
    with pytest.raises(kind, match=words) as caught:
        train(folder, f"broken-{kind.__name__}-{broken[:3]}")
    if kind is RuntimeError:
        assert "ZeroDivisionError: of /home/somebody" in "".join(caught.value.__notes__)


def test_at_once_is_checked_before_anything_is_written(folder):
    with pytest.raises(ConfigError, match="at_once is 0; expected at least 1"):
        train(folder, "none", at_once=0)
    assert not (folder / "none").exists()


def test_features_in_files_are_those_in_memory(tmp_path):
    kept = KeptFeatures(None)
    kept._row, kept._found = {5: 0, 3: 1}, np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    kept.save(tmp_path)
    found = FoldFeatures.load(tmp_path, [])._kept
    assert found._row == kept._row
    np.testing.assert_array_equal(found._found, kept._found)


def test_an_error_of_a_training_is_its_own_and_ends_all(folder):
    wild = preset({})
    wild = replace(wild, finetune=replace(wild.finetune, peak_lr=1e30, warmup_epochs=0))
    with pytest.raises(TrainingError, match=r"^seed \d: step \d is not a number: .*; nothing was updated"):
        train(folder, "wild", chosen=wild)


def test_a_process_that_is_killed_is_named_and_the_same_command_goes_on(folder, monkeypatch):
    alone, _, _ = train(folder, "long-alone", replace(OPTIONS, steps=60), at_once=1)
    made = []
    begin = TrainingProcess.begin
    monkeypatch.setattr(TrainingProcess, "begin", lambda one, training: (made.append(one), begin(one, training)))
    tell = side_by_side._Overview.step

    def step(overview, process, **about):
        if about["step"] < 40:
            made[0]._process.kill()
        tell(overview, process, **about)

    options = replace(OPTIONS, steps=60)
    with monkeypatch.context() as patch:
        patch.setattr(side_by_side._Overview, "step", step)
        with pytest.raises(TrainingError, match=r"^seed \d: its process was killed by signal 9; .* --at-once"):
            train(folder, "long", options)
    assert all(one._process.poll() is not None for one in made)
    both, _, _ = train(folder, "long", options)
    assert files(both.folder) == files(alone.folder)


SLOW = """
import sys
from pathlib import Path
from dataclasses import replace
from train_worker import preset
from cerebro_eeg.errors import CerebroError
from cerebro_eeg.runs.finetune import FinetuneOptions, finetune
from cerebro_eeg.runs.settings import Engine
options = FinetuneOptions(task="alpha", seeds=(0, 1), steps=100_000, seconds=1.0, paper=True, patience=10**6)
def tell(report, steps, batch):
    print(report.step, flush=True)
try:
    finetune(Path(sys.argv[1]), Path(sys.argv[2]), preset({}), options, Engine(device="cpu", readers=0, threads=1),
             rivals=False, at_once=2, say=lambda line: print(line, flush=True), tell=tell)
except CerebroError as error:
    print(type(error).__name__, error)
    raise SystemExit(error.exit_code)
"""


def start_slow(folder, run):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SLOW, str(folder / "store"), str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for_end(processes):
    until = time.monotonic() + 60
    while any(is_alive(pid) for pid in processes):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("blow", "times"),
    [pytest.param(signal.SIGTERM, 1, marks=pytest.mark.soak), (signal.SIGTERM, 3), (signal.SIGKILL, 1)],
    ids=["stopped", "stopped again and again", "killed"],
)
def test_processes_save_and_end_with_the_command_that_started_them(folder, blow, times):
    run = folder / f"{blow.name}-{times}"
    with start_slow(folder, run) as process:
        while not (line := process.stdout.readline().strip()).isdigit() or int(line) < 20:
            pass
        ours = workers_of(process.pid)
        assert len(ours) == 2
        for _ in range(times):
            process.send_signal(blow)
            time.sleep(0.1 if times > 1 else 0)
        rest = process.stdout.read()
        code = process.wait(60)
    assert code == (StoppedError.exit_code if blow == signal.SIGTERM else -blow)
    if blow == signal.SIGTERM:
        assert "StoppedError stopped" in rest
        assert "seed 0, seed 1: saving; Ctrl-C ends at once" in rest
    wait_for_end(ours)
    for seed in (0, 1):
        logged = (run / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        assert steps_done(run / f"seed-{seed}" / "state.safetensors") == json.loads(logged[-1])["step"] > 1


def test_processes_of_a_command_that_is_killed_at_its_start_train_nothing(folder):
    run = folder / "killed-early"
    with start_slow(folder, run) as process:
        while "at the same time" not in process.stdout.readline():
            pass
        until = time.monotonic() + 60
        while len(ours := workers_of(process.pid)) < 2:
            assert time.monotonic() < until
            time.sleep(0.005)
        process.kill()
        process.wait(60)
    wait_for_end(ours)
    assert not list(run.rglob("state.safetensors"))


HOLDS = """
import os, subprocess, sys
from pathlib import Path
from cerebro_eeg.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.locked():
    (Path(sys.argv[1]) / "run.json").write_text("{}")
    child = subprocess.Popen(["sleep", "60"], pass_fds=folder.lock_descriptors(), stdout=-3, stderr=-3)
    print(child.pid, flush=True)
    os._exit(0)
"""


def test_the_lock_of_a_killed_command_is_held_until_its_processes_have_ended(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", HOLDS, str(tmp_path)], capture_output=True, text=True, check=True, env=environment
    )
    with pytest.raises(ConfigError, match="another process is training"), RunFolder(tmp_path).locked():
        pass
    os.kill(int(done.stdout), signal.SIGKILL)
    until = time.monotonic() + 60
    while True:
        try:
            with RunFolder(tmp_path).locked():
                return
        except ConfigError:
            assert time.monotonic() < until
            time.sleep(0.05)


def workers_of(pid):
    """The processes that another one has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not (entry.name.isdigit() and is_alive(int(entry.name))):
            continue
        if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
            found.append(int(entry.name))
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def plan(asked=None, trainings=6, engine=ENGINE, processes=None, held=0.0, say=print):
    windows = [make_windows()]
    return plan_processes(asked, trainings, processes or ProcessGroup(), engine, MODEL, windows, 12, held, say)


def make_windows():
    class Channels:
        channels, samples = np.array([3, 5]), 256

    return Channels


def test_as_many_trainings_as_suit_the_machine(monkeypatch):
    monkeypatch.setattr(side_by_side, "cores", lambda: 16)
    monkeypatch.setattr(side_by_side, "free_bytes", lambda: 64e9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    free = replace(ENGINE, threads=None)
    found = plan(engine=free)
    assert (found.processes, found.threads, found.room) == (6, 2, None)
    assert plan(engine=free, trainings=100).processes == 8
    assert plan(engine=replace(free, threads=4), trainings=100).processes == 4
    assert plan(3, engine=free).threads == 5
    assert plan(1) is plan(trainings=1) is plan(4, processes=ProcessGroup(0, 2)) is None
    monkeypatch.setattr(side_by_side, "free_bytes", lambda: 5e9)
    assert plan(engine=free, trainings=100).processes == 3
    assert plan(50, engine=free, trainings=100).processes == 50
    lines = []
    monkeypatch.setattr(side_by_side, "free_bytes", lambda: 2e9)
    assert plan(engine=free, say=lines.append) is None
    (line,) = lines
    assert line.startswith("note: the trainings run one after the other, because 2 GB of memory are free and each")
    assert plan(2, engine=free, say=lines.append).processes == 2
    assert plan(engine=free, held=3e9, say=lines.append).processes == 3  # processes that wait have taken it
    monkeypatch.setattr(side_by_side, "cores", lambda: 2)
    assert plan(engine=free, say=lines.append) is None
    assert len(lines) == 1


def test_processes_beside_a_gpu_have_few_threads_unless_somebody_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    free = replace(ENGINE, threads=None)
    given, two = ProcessPlan(3, free, None, 5), {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert given.thread_variables(CUDA) == two
    assert replace(given, engine=replace(free, threads=7)).thread_variables(CUDA) == {}  # the engine says it
    assert ProcessPlan(3, free, 4, None).thread_variables(torch.device("cpu")) == dict.fromkeys(two, "4")
    assert ProcessPlan(3, replace(free, threads=4), None, None).thread_variables(torch.device("cpu")) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    assert given.thread_variables(CUDA) == {}


def test_ctrl_c_ends_at_once_what_still_saves_after_an_error(folder, tmp_path, monkeypatch):
    patch = (
        "import pathlib, signal, time\n"
        "from cerebro_eeg.runs import finetune\n"
        f"deaf = pathlib.Path({str(tmp_path / 'deaf')!r})\n"
        "def train(shared, split, seed, *given):\n"
        "    while seed:\n"
        "        if deaf.exists(): raise ZeroDivisionError\n"
        "        time.sleep(0.1)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    deaf.touch()\n"
        "    time.sleep(100)\n"
        "finetune._train = train\n"
    )
    start = training_processes.START.replace("from cerebro_eeg.runs", f"exec({patch!r}); from cerebro_eeg.runs")
    monkeypatch.setattr(training_processes, "START", start)
    lines = []

    def say(line):
        lines.append(line)
        if line == "seed 0: saving; Ctrl-C ends at once":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    began, options = time.monotonic(), replace(OPTIONS, seeds=(0, 1))
    with pytest.raises(KeyboardInterrupt):
        finetune.finetune(
            folder / "store", folder / "ends", preset({}), options, ENGINE, at_once=2, rivals=False, say=say
        )
    assert time.monotonic() - began < 60
    assert lines[-1] == "seed 0: saving; Ctrl-C ends at once"


def test_memory_is_planned_for_the_batches_that_steps_have(folder, monkeypatch):
    """A preset has batches of thousands, which are made smaller for few windows. 64 of them fit many times."""
    asked = []
    monkeypatch.setattr(finetune, "plan_processes", lambda *given: asked.append(given))
    chosen = preset({})
    chosen = replace(chosen, finetune=replace(chosen.finetune, batch_size=4096))
    options = replace(OPTIONS, steps=1, paper=False, seeds=(0, 1))
    _, lines, _ = train(folder, "planned", options, at_once=None, chosen=chosen)
    train(folder, "planned", options, at_once=2, chosen=chosen)  # all are finished, so nothing is planned
    ((_, count, *_, (windows,), batch, held, _),) = asked
    assert count == 2
    assert held == 0
    assert batch == fit_batch(4096, len(windows), False, print) < 100
    assert any(line.startswith(f"batch size {batch} instead of 4,096") for line in lines)


def test_the_memory_of_a_process_is_its_own():
    with subprocess.Popen([sys.executable, "-c", "x = b'x' * 200_000_000; input()"], stdin=subprocess.PIPE) as process:
        until = time.monotonic() + 60
        while capacity.memory_of(process.pid) < 200e6:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert capacity.memory_of(process.pid) < 400e6
        process.kill()
    assert capacity.memory_of(process.pid) == 0


def test_copies_of_files_count_as_free_memory_of_a_control_group(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 2500\nfile 4500\ninactive_file 3000\nactive_file 1000\nshmem 500\n")
    monkeypatch.setattr(capacity, "_control_groups", lambda: [tmp_path])
    assert capacity.free_bytes() == 5000
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.free_bytes() > 5000


def test_a_training_beside_others_takes_the_room_of_one_alone():
    cpu = torch.device("cpu")
    with memory_room(5):
        assert room_for_activations(cpu) == 5
    assert room_for_activations(cpu) > 5


def test_a_training_has_a_name():
    assert (SeedAndFold("", 3).name, SeedAndFold("fold-2", 0).name) == ("seed 3", "fold-2, seed 0")
    assert isinstance(MODEL, ModelConfig)


CUDA = torch.device("cuda")
CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then {start}; fi
read -r word; echo "$word" >> "{log}"
"""
TURNS = "the trainings take turns on the GPU, because "
ALONE = "the trainings run one after the other: "
TRIAL = """
import os
raise SystemExit(not ({with_service} if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else {without}))
"""


@pytest.mark.parametrize("start", ["echo begun >> {log}; exit 0", "exit 1"], ids=["begins", "fails"])
@pytest.mark.parametrize(("with_service", "without"), [(True, True), (False, True), (False, False)])
def test_the_service_that_shares_a_gpu_ends_with_the_command(tmp_path, monkeypatch, start, with_service, without):
    """The program of the driver is not here, so a script of its name stands for it; GPUs are never touched."""
    log = tmp_path / "log"
    control = tmp_path / gpu_sharing.CONTROL
    control.write_text(CONTROL.format(start=start.format(log=log), log=log))
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(gpu_sharing, "TRIAL", TRIAL.format(with_service=with_service, without=without))
    monkeypatch.setattr(gpu_sharing, "only", lambda device: {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    lines = []
    works = with_service and start != "exit 1"
    with gpu_sharing.shared_gpu(CUDA, lines.append) as found:
        if works:
            assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
            assert Path(found["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        else:
            assert found == ({"CUDA_VISIBLE_DEVICES": "GPU-1"} if without else None)
    expected = (
        [] if works else [f"note: {TURNS if without else ALONE}NVIDIA's Multi-Process Service does not work here"]
    )
    assert [line.split(", and only")[0] for line in lines] == expected
    assert log.read_text().split() == (["quit"] if start == "exit 1" else ["begun", "quit"])


def test_a_service_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    control = tmp_path / gpu_sharing.CONTROL
    control.write_text("#!/bin/sh\nsleep 60\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(gpu_sharing, "SECONDS", 0.5)
    monkeypatch.setattr(gpu_sharing, "_usable", lambda environment, number: True)
    began, lines = time.monotonic(), []
    with gpu_sharing.shared_gpu(CUDA, lines.append) as found:
        assert found == {}
    assert time.monotonic() - began < 30
    assert lines[0].startswith(f"note: {TURNS}")


def test_without_the_program_of_the_driver_processes_take_turns(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(gpu_sharing, "_usable", lambda environment, number: True)
    lines = []
    with gpu_sharing.shared_gpu(CUDA, lines.append) as found:
        assert found == {}
    assert lines[0].startswith(f"note: {TURNS}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))  # somebody's own service
    with gpu_sharing.shared_gpu(CUDA, lines.append) as found:
        assert found == {}
    assert len(lines) == 1
