"""Progress lines that verbs share: the steps of a training, and the recordings of ``predict`` and ``embed``."""

import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cerebro_eeg.errors import CerebroError, ChannelError, InputError, RecordingError
from cerebro_eeg.progress import Progress, counted, in_bytes, in_time, time_left
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from cerebro_eeg.train.loop import StepReport


class StepLine:
    """The changing line of a training: step, loss, windows per second, time left, memory of the GPU."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pace: float | None = None

    def tell(self, report: "StepReport", steps: int, batch: int) -> None:
        """Show a finished step, if the line is due."""
        # The pace is a moving average over 20 steps or 20 seconds: the first steps compile and warm up.
        keep = min(0.95, math.exp(-report.seconds / 20))
        self._pace = report.seconds if self._pace is None else keep * self._pace + (1 - keep) * report.seconds
        if not self._progress.due() and report.step < steps:
            return
        left = in_time((steps - report.step) * self._pace)
        line = (
            f"step {report.step:,}/{steps:,}  loss {report.loss:.4f}  {batch / self._pace:,.0f} windows/s  {left} left"
        )
        self._progress.show(line + _gpu_memory(), report.step / steps)


def _gpu_memory() -> str:
    import torch

    used = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0  # other processes are not counted
    return f"  {in_bytes(used)} of GPU memory" if used else ""


def no_report() -> str | None:
    """Return a line if no report can be written here, for the time before the work; None if one can."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return "note: there will be no report.html, for want of the package matplotlib; pip install matplotlib"


def say_first(progress: Progress, lines: Sequence[str | None]) -> None:
    """Print the lines that are there; of the processes that torchrun started, only the first prints."""
    for line in filter(None, lines if os.environ.get("RANK", "0") == "0" else ()):
        progress.say(line)


def write_page(write: Callable[[Callable[[str, int, int], None]], object], progress: Progress) -> None:
    """Write the report of a run. An error is printed and not raised, because the weights are written already.

    ``write`` gets a function that it calls with the part of the report that it makes next, and with how much of how
    many is done.
    """
    progress.say("writing report.html")
    began: dict[str, float] = {}

    def tell(part: str, done: int, total: int) -> None:
        now = time.monotonic()
        began.setdefault(part, now)
        if progress.due():
            left = time_left(done, total, now - began[part])
            line = f"report.html: {part}" + (f", {done:,} of {total:,}, {left} left" if total else "")
            progress.show(line, done / total if total else None)

    try:
        write(tell)
    except CerebroError as error:
        progress.say(f"no report.html: {error}")
    except Exception as error:
        progress.say(f"no report.html: {type(error).__name__}: {' '.join(str(error).split())}")


if TYPE_CHECKING:
    from cerebro_eeg.runs.predict import Input


@dataclass(frozen=True)
class Failure:
    """A recording that could not be used."""

    input: "Input"
    code: str
    """The reason in a word, as ``skipped.csv`` of prepare has it."""
    reason: str

    def text(self, show_paths: bool) -> str:
        name = one_line(self.input.name) if show_paths else self.input.id
        return f"file {self.input.number} ({name}): {self.code}: {self.reason}"

    def to_dict(self, show_paths: bool) -> dict[str, object]:
        path = {"path": self.input.name} if show_paths else {}
        return {
            "number": self.input.number,
            "recording": self.input.id,
            **path,
            "code": self.code,
            "reason": self.reason,
        }


def go_over(
    inputs: Sequence["Input"],
    work: Callable[["Input", Callable[[float, float], None]], None],
    progress: Progress,
    *,
    show_paths: bool,
) -> list[Failure]:
    """Do ``work`` for each recording, and return those that cannot be used; the others go on.

    ``work`` gets a function that it calls with the seconds that are done and the seconds of the whole recording.
    """
    total, done, began = max(1, sum(one.size for one in inputs)), 0.0, time.monotonic()
    failures: list[Failure] = []
    for place, one in enumerate(inputs):

        def tell(seconds: float, of: float, one: "Input" = one, place: int = place, done: float = done) -> None:
            if progress.due():
                size = done + one.size * min(1.0, seconds / max(of, 1e-9))
                left = time_left(size, total, time.monotonic() - began)
                progress.show(
                    f"{place:,}/{len(inputs):,} recordings, {in_bytes(size)} of {in_bytes(total)}, {left} left",
                    size / total,
                )

        tell(0.0, 1.0)
        try:
            work(one, tell)
        except InputError as error:
            code = "input"
            if isinstance(error, RecordingError):
                code = error.code
            elif isinstance(error, ChannelError):
                code = "channels"
            failures.append(Failure(one, code, str(error)))
            progress.say(f"not used: {failures[-1].text(show_paths)}")
        done += one.size
    return failures


def failed_text(failures: Sequence[Failure], inputs: int, show_paths: bool) -> list[str]:
    """Return the lines of a result on recordings that could not be used."""
    if not failures:
        return []
    lines = [f"  not used    {counted(len(failures), 'recording')} of {inputs:,}:"]
    return lines + [f"    {failure.text(show_paths)}" for failure in failures]


def failed_line(failures: Sequence[Failure], inputs: int, show_paths: bool) -> str | None:
    """Return one line on recordings that could not be used, with the reason of the first; None if all could."""
    if not failures:
        return None
    which = f"{counted(len(failures), 'recording')} of {inputs:,} could not be used (failures has the reasons)"
    return f"{which}: {failures[0].text(show_paths)}"
