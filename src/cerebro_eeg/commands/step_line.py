"""What the training verbs share: the line that changes while a run trains, and the page at its end."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from cerebro_eeg.errors import CerebroError
from cerebro_eeg.progress import Progress, in_bytes, in_time

if TYPE_CHECKING:
    from cerebro_eeg.train.loop import Report


class StepLine:
    """Step, loss, windows a second, time left, memory of the GPU."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pace: float | None = None

    def tell(self, report: "Report", steps: int, batch: int) -> None:
        """A step is done."""
        # A pace that follows, over 20 steps or 20 seconds, whichever is less: the first ones compile and warm up.
        keep = min(0.95, math.exp(-report.seconds / 20))
        self._pace = report.seconds if self._pace is None else keep * self._pace + (1 - keep) * report.seconds
        if not self._progress.due() and report.step < steps:
            return
        left = in_time((steps - report.step) * self._pace)
        line = (
            f"step {report.step:,}/{steps:,}  loss {report.loss:.4f}  {batch / self._pace:,.0f} windows/s  {left} left"
        )
        self._progress.show(line + _gpu_memory())


def _gpu_memory() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    return f"  {in_bytes(torch.cuda.max_memory_allocated())} of GPU memory"


def write_page(write: Callable[[], object], progress: Progress) -> None:
    """Write the report of a run; the weights are there already, so what goes wrong here is said and no more."""
    progress.say("writing report.html")
    try:
        write()
    except CerebroError as error:
        progress.say(f"no report.html: {error}")
    except Exception as error:
        progress.say(f"no report.html: {type(error).__name__}: {' '.join(str(error).split())}")
