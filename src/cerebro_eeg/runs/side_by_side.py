"""Trainings side by side: seeds and folds at the same time, each in a process of its own.

A training of a small model fills neither a GPU nor a CPU with many cores. So ``finetune`` starts some processes and
gives each one training after the other. A process computes what the command itself would: with as many threads and
micro-batches its weights are the same bits.
"""

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cerebro_eeg import errors
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import CerebroError, TrainingError
from cerebro_eeg.progress import counted, in_bytes
from cerebro_eeg.runs.capacity import cores, free_bytes
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import Say, Tell, kept_bytes, room_for_activations, usual_channels
from cerebro_eeg.runs.training_processes import (
    MOST_ON_GPU,
    PROCESS_BYTES,
    THREADS,
    SeedAndFold,
    TrainingProcess,
    TrainingProcesses,
    gpu_threads,
    thread_variables,
)
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.loop import StepReport, patiently

PATIENCE = 600.0
"""Seconds that processes get to save and stop, before they are killed; a second Ctrl-C kills them at once."""
RECENT = 30.0
"""Seconds over which the pace is taken."""


@dataclass(frozen=True)
class ProcessPlan:
    """How many processes train at the same time, and with which settings."""

    processes: int
    engine: Engine
    threads: int | None
    """Threads of a process, unless its training has begun with others; None as the engine says, or as on any GPU."""
    room: int | None
    """Bytes for the activations of a step; None on a CPU."""

    def thread_variables(self, device: torch.device) -> dict[str, str]:
        """Return the environment variables that set the threads of a process; none where the engine sets them."""
        if device.type == "cuda":
            return gpu_threads(self.engine.threads)
        return {} if self.threads is None else thread_variables(self.threads)

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
    held: float,
    say: Say,
) -> ProcessPlan | None:
    """Return how many trainings run at the same time, as asked for or as suits the machine; None for one.

    ``trainings`` counts those that are finished, too: where a command goes on, the others keep their threads.
    ``windows`` are those of the trainings, and ``batch`` is how many of them a step has. ``held`` is the memory of
    processes that were started ahead.
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
        takes = {"memory": (free_bytes() + held, PROCESS_BYTES if cuda else each)}
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


def train_side_by_side(
    settings: Mapping[str, Any],
    trainings: Sequence[SeedAndFold],
    count: int,
    processes: TrainingProcesses,
    *,
    done: Callable[[SeedAndFold], str],
    environment: Mapping[str, str],
    descriptors: Sequence[int] = (),
    say: Say,
    tell: Tell,
) -> None:
    """Do the trainings in ``count`` of the processes, each of which gets the settings, as JSON values.

    ``done`` is called after each training, and returns a line about it. After an error, or when this process is asked
    to stop, all trainings save their state and stop. The first error is then raised. The processes get ``descriptors``,
    so they hold the lock of the run, too. Call :func:`end` later: processes need some time to let a GPU go.
    """
    waiting, overview = list(reversed(trainings)), _Overview(len(trainings), tell)
    heard: set[str] = set()
    error: Exception | None = None
    workers: list[TrainingProcess] = []
    try:
        for _ in range(min(count, len(trainings))):
            workers.append(processes.take(environment))
            workers[-1].start(settings, environment, descriptors, waiting.pop())
        processes.close()  # those that nothing is left for
        while overview.finished < len(trainings) and error is None:
            worker, kind, value = processes.messages.get()
            if worker not in workers:  # one that was started ahead and has nothing to do
                continue
            name = worker.training.name if worker.training else f"process {worker.number}"
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
            elif kind == "ended" and worker.training is not None:
                error, worker.failed = worker.vanished(name), True
        if error is not None:
            raise error
    except BaseException:
        try:
            _say_who_saves(workers, say)
        finally:
            stop(workers)
        raise


def stop(workers: Sequence[TrainingProcess]) -> None:
    """Ask all processes to save and stop, wait for them, and kill those that take too long.

    Only Ctrl-C ends the waiting: other signals, which a scheduler may repeat, change nothing.
    """
    try:
        with patiently():
            for one in workers:
                one.ask_to_stop()
            _wait(workers)
    finally:
        for one in workers:
            one.kill()


def end(processes: TrainingProcesses) -> None:
    """Wait for the end of the processes whose trainings are done, and kill those that take too long."""
    try:
        with patiently():
            for one in processes.taken:
                one.begin(None)
            _wait(processes.taken)
    finally:
        for one in processes.taken:
            one.kill()


def _wait(workers: Sequence[TrainingProcess]) -> None:
    until = time.monotonic() + PATIENCE
    for one in workers:
        one.wait(until - time.monotonic())


def _say_who_saves(workers: Sequence[TrainingProcess], say: Say) -> None:
    """Say which trainings save before they stop, which may take a while."""
    busy = [one.training.name for one in workers if one.training is not None and not one.failed]
    if busy:
        say(f"{', '.join(busy)}: saving; Ctrl-C ends at once")


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
