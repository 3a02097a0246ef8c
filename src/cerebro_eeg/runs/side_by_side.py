"""Trainings side by side: seeds and folds at the same time, each in a process of its own.

A training of a small model fills neither a GPU nor a CPU with many cores. So ``finetune`` starts some processes and
gives each one training after the other. A process computes what the command itself would: with as many threads and
micro-batches its weights are the same bits.

The protocol: lines of JSON. A process (``one_training.py``) reads a line with the settings and then one line for each
training. It answers with lines to print, steps, and in the end "done" or an error. If its input ends, it saves and
stops, so none goes on without the command that started it.
"""

import collections
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from cerebro_eeg import errors
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import CerebroError, TrainingError
from cerebro_eeg.files import parse_json
from cerebro_eeg.progress import counted, in_bytes
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import Say, Tell, kept_bytes, room_for_activations, usual_channels
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.loop import StepReport, patiently

START = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from cerebro_eeg.runs.one_training import main; main()"
)
"""What a process runs: it finds its packages where this process does."""
THREADS = 2
"""CPU threads of a training beside others: small steps gain little from more."""
MOST_ON_GPU = 8
"""Most trainings that share a GPU. Each also takes CPU cores, for reading and for launching its steps."""
PROCESS_BYTES = 3 << 29
"""Memory of a process beside the activations: its libraries, weights and windows."""
PATIENCE = 600.0
"""Seconds that processes get to save and stop, before they are killed; a second Ctrl-C kills them at once."""
REST = 2.0
"""Seconds in which what an ended process has printed is read to its end."""
RECENT = 30.0
"""Seconds over which the pace is taken."""


@dataclass(frozen=True)
class SeedAndFold:
    """One of the trainings: a fold and a seed."""

    fold: str
    """Empty where there is one split."""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.fold + ', ' if self.fold else ''}seed {self.seed}"


@dataclass(frozen=True)
class ProcessPlan:
    """How many processes train at the same time, and with which settings."""

    processes: int
    engine: Engine
    threads: int | None
    """Threads of a process, unless its training has begun with others; None as the engine says, or as on any GPU."""
    room: int | None
    """Bytes for the activations of a step; None on a CPU."""

    def own_threads(self, device: torch.device) -> int | None:
        """Return the threads of a process; beside a GPU few, because many would wait for each other; None for any."""
        if device.type == "cuda" and self.engine.threads is None and "OMP_NUM_THREADS" not in os.environ:
            return THREADS
        return self.threads

    def line(self, trainings: int) -> str:
        """Return a sentence about it."""
        threads = self.threads or self.engine.threads
        each = "" if threads is None else f", each on {counted(threads, 'thread')}"
        together = min(self.processes, trainings)
        return f"{counted(trainings, 'training')}, {together} at the same time{each} (--at-once 1: one after the other)"


def plan_processes(
    asked: int | None,
    trainings: int,
    processes: ProcessGroup,
    engine: Engine,
    config: ModelConfig,
    windows: Sequence[Windows],
    batch: int,
    say: Say,
) -> ProcessPlan | None:
    """Return how many trainings run at the same time, as asked for or as suits the machine; None for one.

    ``trainings`` counts those that are finished, too: where a command goes on, the others keep their threads.
    ``windows`` are those of the trainings, and ``batch`` is how many of them a step has.
    """
    device = processes.device
    if trainings < 2 or asked == 1 or not can_train_side_by_side(processes):
        return None
    cuda = device.type == "cuda"
    room = room_for_activations(device)
    samples = max(of_split.samples for of_split in windows)
    needed = kept_bytes(engine, device, config, usual_channels(windows), samples)
    kept = (2 if cuda else 1) * batch * needed  # a GPU also holds what the graphs of a step keep
    each = PROCESS_BYTES + min(room, kept)
    threads = torch.get_num_threads()
    if asked is None:
        most = min(MOST_ON_GPU, cores() // 2) if cuda else cores() // (engine.threads or THREADS)
        takes = {"memory": (free_bytes(), PROCESS_BYTES if cuda else each)}
        if cuda:
            takes["memory of the GPU"] = torch.cuda.mem_get_info(device)[0], each
        for what, (free, taken) in takes.items():
            if most > 1 and free < 2 * taken:
                say(
                    f"note: the trainings run one after the other, because {in_bytes(free)} of {what} are free and "
                    f"each takes about {in_bytes(taken)}; --at-once 2 tries it"
                )
            most = int(min(most, free / taken))
        asked = max(1, most)
    count = min(asked, trainings)
    if count == 1:
        return None
    own = None if cuda or engine.threads is not None else max(1, threads // count)
    return ProcessPlan(count, engine, own, room if cuda else None)


def can_train_side_by_side(processes: ProcessGroup) -> bool:
    """Return whether this process may start others that train: it is alone, holds all weights, and is not on MPS."""
    return processes.size == 1 and processes.strategy == "ddp" and processes.device.type != "mps"


def free_bytes() -> float:
    """Return the memory that programs may still take; infinite where the system does not say it."""
    found = [_free_of_machine()]
    for folder in _control_groups():
        try:
            most, used = ((folder / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
            found.append(float(most) - float(used) + _cached(folder))
        except (OSError, ValueError):  # "max" is no limit
            continue
    return min(found)


def _cached(group: Path) -> float:
    """Return the bytes of a control group that hold copies of files, which the system gives up when programs ask."""
    lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))


def _control_groups() -> list[Path]:
    """Return the folders of Linux's control groups that this process is in, from the innermost on."""
    root = Path("/sys/fs/cgroup")
    try:
        (own,) = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except (OSError, ValueError):
        return []
    inner = root / own.strip("/")
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]


def _free_of_machine() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return 1024 * float(found["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def cores() -> int:
    """Return how many CPU cores this process may use, by its affinity and its control groups."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _control_groups():
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            found = min(found, max(1, int(float(quota) / float(period))))
        except (OSError, ValueError):  # "max" is no limit
            continue
    return found


def train_side_by_side(
    settings: Mapping[str, Any],
    trainings: Sequence[SeedAndFold],
    processes: int,
    *,
    done: Callable[[SeedAndFold], str],
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    say: Say,
    tell: Tell,
) -> None:
    """Do the trainings in so many processes at a time, each of which gets the settings, as JSON values.

    ``done`` is called after each training, and returns a line about it. After an error, or when this process is asked
    to stop, all trainings save their state and stop. The first error is then raised. The processes inherit
    ``descriptors``, so they hold the lock of the run, too.
    """
    waiting, messages = list(reversed(trainings)), queue.SimpleQueue[_Message]()
    overview = _Overview(len(trainings), tell)
    heard: set[str] = set()
    error: Exception | None = None
    workers: list[_Worker] = []
    try:
        for number in range(min(processes, len(trainings))):
            workers.append(_Worker(number, messages, environment, descriptors))
            workers[-1].start(settings, waiting.pop())
        left = len(workers)
        while left and error is None:
            worker, kind, value = messages.get()
            name = worker.training.name if worker.training else f"process {worker.number + 1}"
            if kind == "say":
                if value.startswith(("going on", "note: going on")):  # of this training alone
                    say(f"{name}: {value}")
                elif value not in heard:  # notes on data and weights are the same in all trainings
                    heard.add(value)
                    say(value)
            elif kind == "step":
                overview.step(worker.number, **value)
            elif kind == "done" and worker.training is not None:
                overview.ended(worker.number)
                say(f"{name}: {done(worker.training)} ({overview.finished} of {len(trainings)} trained)")
                worker.begin(waiting.pop() if waiting else None)
            elif kind == "failed":
                error = _made_again(name, **value)
                worker.failed = True
            elif kind == "ended":
                left -= 1
                if worker.training is not None:
                    error, worker.failed = worker.vanished(name), True
        if error is not None:
            raise error
    except BaseException:
        try:
            _say_who_saves(workers, say)
        finally:
            stop(workers)
        raise
    stop(workers)


def _say_who_saves(workers: "Sequence[_Worker]", say: Say) -> None:
    """Say which trainings save before they stop, which may take a while."""
    busy = [one.training.name for one in workers if one.training is not None and not one.failed]
    if busy:
        say(f"{', '.join(busy)}: saving; Ctrl-C ends at once")


def stop(workers: "Sequence[_Worker]") -> None:
    """Ask all processes to save and stop, wait for them, and kill those that take too long.

    Only Ctrl-C ends the waiting: other signals, which a scheduler may repeat, change nothing.
    """
    try:
        with patiently():
            for one in workers:
                one.ask_to_stop()
            until = time.monotonic() + PATIENCE
            for one in workers:
                one.wait(until - time.monotonic())
    finally:
        for one in workers:
            one.kill()


_Message = tuple["_Worker", str, Any]


class _Worker:
    """One process, and what is known of its training."""

    def __init__(
        self,
        number: int,
        messages: "queue.SimpleQueue[_Message]",
        environment: Mapping[str, str] | None,
        descriptors: Sequence[int],
    ) -> None:
        self.number, self.failed, self._asked = number, False, False
        self.training: SeedAndFold | None = None
        self._messages, self._last = messages, ""
        command = [sys.executable, "-c", START, os.pathsep.join(sys.path)]
        # A session of its own: an interrupt at the terminal reaches this process alone, which passes it on.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=tuple(descriptors),
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout, errors), daemon=True)
        errors.start()
        self._listener.start()

    def start(self, settings: Mapping[str, Any], training: SeedAndFold) -> None:
        """Give the process the settings, and its first training."""
        self._send(settings)
        self.begin(training)

    def begin(self, training: SeedAndFold | None) -> None:
        """Let the process do a training; without one it ends."""
        self.training = training
        if training is None:
            self._close()
        else:
            self._send({"fold": training.fold, "seed": training.seed})

    def ask_to_stop(self) -> None:
        """Ask the process to save and stop, once."""
        asked, self._asked = self._asked, True
        self._close()
        if not asked and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, or the time is over."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join(REST)

    def vanished(self, name: str) -> TrainingError:
        """Return the error of a process that ended in the middle of its training."""
        code = self._process.wait()
        said = f" after {self._last!r}" if self._last else ""
        if code >= 0:
            return TrainingError(f"{name}: its process ended with code {code}{said}; the last state is intact")
        return TrainingError(
            f"{name}: its process was killed by signal {-code}{said}; the last state is intact, and the same command "
            "goes on: say --at-once with fewer trainings if memory was short"
        )

    def _send(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended, which its output tells
            return

    def _close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def _listen(self, output: IO[str], errors: threading.Thread) -> None:
        try:
            with output:
                for line in output:
                    self._hear(line)
            self._process.wait()
            errors.join(REST)  # a process that this one has started may keep the other end open
        finally:
            self._messages.put((self, "ended", None))

    def _hear(self, line: str) -> None:
        """Put the messages of a line into the queue. What is no message was printed by some package."""
        try:
            found = parse_json(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            for kind, value in found.items():
                self._messages.put((self, kind, value))
        elif text := line.rstrip():
            self._messages.put((self, "say", text))

    def _pass_on(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                if text := line.rstrip():
                    self._last = text
                    self._messages.put((self, "say", text))


@dataclass
class _Overview:
    """Makes one line of progress of the steps of all trainings."""

    trainings: int
    tell: Tell
    finished: int = 0
    _before: int = 0
    """Steps of finished trainings."""
    _running: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    """Steps, all steps and loss of the training of each process."""
    _before_given: int = 0
    """Steps that trainings had done before, where they go on; they say nothing of the pace."""
    _shown: int = 0
    _paces: collections.deque[tuple[float, int]] = field(default_factory=collections.deque)
    """Times, and the steps that were done here by then."""

    def step(self, process: int, step: int, steps: int, loss: float, lr: float, batch: int) -> None:
        """Note the last step of a process, and show the sum of all steps."""
        if process not in self._running:
            self._before_given += step - 1
        self._running[process] = step, steps, loss
        done = self._before + sum(step for step, _, _ in self._running.values())
        known = self._before + sum(steps for _, steps, _ in self._running.values())
        # Trainings that have not begun are taken to be as long as the others.
        all_steps = round(known * self.trainings / (self.finished + len(self._running)))
        now, here = time.monotonic(), done - self._before_given
        while len(self._paces) > 1 and now - self._paces[0][0] > RECENT:
            self._paces.popleft()
        if self._paces and here > self._paces[0][1] and done > self._shown:
            began, then = self._paces[0]
            mean = sum(loss for _, _, loss in self._running.values()) / len(self._running)
            self.tell(StepReport(done, mean, {}, 0.0, lr, (now - began) / (here - then)), max(all_steps, done), batch)
        self._paces.append((now, here))
        self._shown = max(done, self._shown)

    def ended(self, process: int) -> None:
        """Note that the training of a process is finished."""
        step, _, _ = self._running.pop(process, (0, 0, 0.0))
        self._before += step
        self.finished += 1


def _made_again(name: str, kind: str, text: str, number: int | None = None, trace: str | None = None) -> Exception:
    """Return the error of a process as it would be raised here; of an unforeseen one, its traceback is a note."""
    if kind == "OSError":
        return OSError(number, f"{name}: {text}")
    if trace is not None:
        found = RuntimeError(f"{name}: {text}")
        found.add_note(trace)
        return found
    cls: type[CerebroError] = getattr(errors, kind, TrainingError)
    return cls(f"{name}: {text}")


def lines_of(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON that a process of this module is sent."""
    for line in stream:
        yield parse_json(line)
