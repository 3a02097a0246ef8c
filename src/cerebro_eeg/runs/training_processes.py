"""Processes that do trainings of ``finetune``, seen from the command that starts them. Standard library only.

The protocol is lines of JSON. A process (``one_training.py``) reads a line with the settings and then one line for each
training. It answers with lines to print, steps, and in the end "done" or an error. If its input ends, it saves and
stops, so none goes on without the command that started it.

A process needs some seconds to import what it trains with. So the command starts processes before it knows what they
train: see :func:`started_ahead`.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cerebro_eeg.errors import TrainingError
from cerebro_eeg.files import parse_json
from cerebro_eeg.runs.capacity import cores, free_bytes, memory_of

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
REST = 2.0
"""Seconds in which what an ended process has printed is read to its end."""
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""One of these is there where an NVIDIA GPU can be used: on Linux, and on Linux in Windows."""
MOST_LOCKS = 16
"""Most descriptors of locks that a process is given."""

Message = tuple["TrainingProcess", str, Any]
"""The sender, the kind of message, and its content."""


@dataclass(frozen=True)
class SeedAndFold:
    """One of the trainings: a fold and a seed."""

    fold: str
    """Empty where there is one split."""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.fold + ', ' if self.fold else ''}seed {self.seed}"


class TrainingProcesses:
    """The processes of a command, and the queue of their messages. Some may be waiting for their first training."""

    def __init__(self) -> None:
        self.messages = queue.SimpleQueue[Message]()
        self.taken: list[TrainingProcess] = []
        """Those that were given a training."""
        self._waiting: list[TrainingProcess] = []
        self._number = 0

    def start_ahead(self, count: int, environment: Mapping[str, str]) -> None:
        """Start so many processes, which import what they need while they wait for settings."""
        for _ in range(count):
            self._waiting.append(self._new(environment))

    def take(self, environment: Mapping[str, str]) -> "TrainingProcess":
        """Return a process with these environment variables: one that waits and still runs, or a new one."""
        found = next((one for one in self._waiting if one.can_have(environment)), None)
        if found is None:
            found = self._new(environment)
        else:
            self._waiting.remove(found)
        self.taken.append(found)
        return found

    def held_bytes(self) -> float:
        """Return the memory that waiting processes have taken already."""
        return sum(memory_of(one.pid) for one in self._waiting)

    def close(self) -> None:
        """Kill the processes that still wait. They have done nothing yet."""
        while self._waiting:
            self._waiting.pop().kill()

    def _new(self, environment: Mapping[str, str]) -> "TrainingProcess":
        self._number += 1
        return TrainingProcess(self._number, self.messages, environment)


@contextlib.contextmanager
def started_ahead(trainings: int, at_once: int | None, device: str, threads: int | None) -> Iterator[TrainingProcesses]:
    """Yield the processes for a number of trainings; on a GPU they are started now, before torch is imported here.

    A command imports torch, opens its store and hashes it in about the time in which a process imports what it trains
    with. On a CPU nothing is started, because there processes would take each other's cores. Those that are not needed
    are killed once it is known how many are, and missing ones are started then.
    """
    processes = TrainingProcesses()
    try:
        if trainings > 1 and at_once != 1 and _may_have_gpu(device) and "WORLD_SIZE" not in os.environ:
            fitting = at_once or min(MOST_ON_GPU, cores() // 2, int(min(free_bytes() / PROCESS_BYTES, MOST_ON_GPU)))
            count = min(trainings, fitting)
            processes.start_ahead(count if count > 1 else 0, gpu_threads(threads))  # one alone trains in this process
        yield processes
    finally:
        processes.close()


def gpu_threads(asked: int | None) -> dict[str, str]:
    """Return environment variables for few CPU threads beside a GPU, where many would wait for each other.

    They are empty where a number was asked for, here or by ``OMP_NUM_THREADS``.
    """
    return thread_variables(THREADS) if asked is None and "OMP_NUM_THREADS" not in os.environ else {}


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that set the threads of a process."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))


def _may_have_gpu(device: str) -> bool:
    """Return whether trainings will probably run on an NVIDIA GPU; nothing is imported to find out."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    return device.startswith(("auto", "cuda")) and not hidden and any(path.exists() for path in DRIVERS)


class TrainingProcess:
    """One process, and what is known of its training."""

    def __init__(self, number: int, messages: "queue.SimpleQueue[Message]", environment: Mapping[str, str]) -> None:
        self.number, self.failed, self._asked = number, False, False
        self.training: SeedAndFold | None = None
        self._messages, self._last, self._environment = messages, "", dict(environment)
        self._locks, theirs = _pair()
        # A session of its own: an interrupt at the terminal reaches this process alone, which passes it on.
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, os.pathsep.join(sys.path), "" if theirs is None else str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            pass_fds=() if theirs is None else (theirs.fileno(),),
        )
        if theirs is not None:
            theirs.close()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        errors = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout, errors), daemon=True)
        errors.start()
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def can_have(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process runs and may still get these variables: its threads are set as it starts."""
        threads = thread_variables(0)
        return self._process.poll() is None and all(
            self._environment.get(name) == environment.get(name) for name in threads
        )

    def start(
        self,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        training: SeedAndFold,
    ) -> None:
        """Give the process settings, environment variables, the descriptors of locks to hold, and its first training.

        A process with the descriptor of the run's lock holds it, too.
        """
        self._send({**settings, "environment": dict(environment)})
        if self._locks is not None:
            with self._locks, contextlib.suppress(OSError):  # it has ended, which its output tells
                socket.send_fds(self._locks, [b"."], list(descriptors)[:MOST_LOCKS])
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
        self._close()
        if self._locks is not None:
            self._locks.close()
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


def _pair() -> tuple[socket.socket | None, socket.socket | None]:
    """Return two joined sockets, over which a running process gets descriptors; nothing where a system has no such."""
    return socket.socketpair() if os.name == "posix" else (None, None)


def received_locks(number: str) -> list[int]:
    """Wait for the descriptors that a process is sent over the socket of this number, and return them."""
    if not number:
        return []
    with socket.socket(fileno=int(number)) as locks:
        _, found, _, _ = socket.recv_fds(locks, 1, MOST_LOCKS)
    return found


def lines_of(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON that a process is sent."""
    for line in stream:
        yield parse_json(line)
