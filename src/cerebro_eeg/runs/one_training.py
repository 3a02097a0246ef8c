"""A process of ``side_by_side.py``: it does trainings of ``finetune``, one after the other, as it is told.

It reads and writes lines of JSON (``training_processes.py``). What else would be written to standard output goes to
standard error. While it waits for the first line, it imports what every training needs.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cerebro_eeg import errors
from cerebro_eeg.errors import CerebroError
from cerebro_eeg.runs.training_processes import SeedAndFold, lines_of, received_locks

if TYPE_CHECKING:
    from cerebro_eeg.train.loop import StepReport

EVERY = 0.2
"""Seconds between two reports of steps."""
NEEDED = ("cerebro_eeg.runs.finetune", "sklearn.metrics")
"""Modules that take long to import, in the order in which a training needs them. None may look for a GPU."""


class Answers:
    """What the process tells the one that started it."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever prints must not disturb the protocol
        self._lock = threading.Lock()
        self._last = 0.0

    def send(self, kind: str, value: Any) -> None:
        """Send a line; nothing where the other process is gone."""
        try:
            with self._lock:
                self._stream.write(json.dumps({kind: value}) + "\n")
                self._stream.flush()
        except BrokenPipeError:
            return

    def say(self, line: str) -> None:
        """Have a line printed."""
        self.send("say", line)

    def tell(self, report: "StepReport", steps: int, batch: int) -> None:
        """Have a step shown, if the last one was shown some time ago."""
        now = time.monotonic()
        if now - self._last >= EVERY or report.step == steps:
            self._last = now
            about = {"step": report.step, "steps": steps, "loss": report.loss, "lr": report.lr, "batch": batch}
            self.send("step", about)


class AskedTrainings:
    """The lines that the process is sent. When they end, it is asked to save and stop, and begins no other training."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._busy = self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (line := self._lines.get()) is not None:
            yield line

    def are_here(self) -> bool:
        """Return whether there is a line to read, or will be none."""
        return not self._lines.empty()

    def begin(self) -> bool:
        """Note that a training begins, and return whether it still may."""
        with self._turn:
            self._busy = not self._ended
            return self._busy

    def end(self) -> None:
        """Note that a training has ended."""
        with self._turn:
            self._busy = False

    def _listen(self) -> None:
        for line in lines_of(sys.stdin):
            self._lines.put(line)
        with self._turn:
            self._ended = True
            if self._busy:
                os.kill(os.getpid(), signal.SIGTERM)
        self._lines.put(None)


def main() -> None:
    """Do the trainings that the process is asked for."""
    atexit.register(gc.freeze)  # an end without a last look for garbage
    answers, asked = Answers(), AskedTrainings()
    import_ahead(asked)
    lines = iter(asked)
    settings = next(lines, None)
    if settings is None:
        return
    received_locks(sys.argv[2])  # they are held until this process ends
    os.environ.update(settings["environment"])  # before the first look at a GPU
    try:
        from cerebro_eeg.runs.finetune import trainer

        with trainer(settings, answers.say, answers.tell) as train:
            for line in lines:
                if not asked.begin():
                    break
                train(SeedAndFold(line["fold"], line["seed"]))
                asked.end()
                answers.send("done", None)
    except CerebroError as error:
        answers.send("failed", {"kind": _kind(error), "text": str(error.args[-1]) if error.args else ""})
    except OSError as error:
        answers.send("failed", {"kind": "OSError", "text": error.strerror or str(error), "number": error.errno})
    except Exception as error:
        words = {"kind": "TrainingError", "text": type(error).__name__, "trace": traceback.format_exc()}
        answers.send("failed", words)


def import_ahead(asked: AskedTrainings) -> None:
    """Import what trainings need, until there is something to do."""
    for name in NEEDED:
        if asked.are_here():
            return
        with contextlib.suppress(Exception):  # the training will raise the error again, and report it
            importlib.import_module(name)


def _kind(error: CerebroError) -> str:
    """Return the name of the class that an error with nothing but a message has."""
    plain = (errors.ConfigError, errors.StoppedError, errors.TrainingError, errors.StoreError, errors.CheckpointError)
    for cls in (*plain, errors.ChannelError, errors.InputError):
        if isinstance(error, cls):
            return cls.__name__
    return CerebroError.__name__


if __name__ == "__main__":
    main()
