"""Progress: lines on stderr that say how far a long computation is. Standard library only."""

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Iterator

from cerebro_eeg.errors import said_in_python
from cerebro_eeg.terminal import visible

BAR = 20
"""Characters of a bar."""


class Progress:
    """Prints lines that stay, and one that changes in place on a terminal or in a notebook.

    A log gets a new line every few seconds instead.
    """

    def __init__(self) -> None:
        self._notebook = type(sys.stderr).__module__.startswith("ipykernel")
        self._live = self._notebook or sys.stderr.isatty()
        self._every = 0.2 if self._live else 5.0
        self._last = time.monotonic()
        self._open = False

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.end()
        print(visible(said_in_python(line)), file=sys.stderr, flush=True)

    def due(self) -> bool:
        """Return whether it is time to show the changing line again; ask before composing an expensive line."""
        return time.monotonic() - self._last >= self._every

    def show(self, line: str, share: float | None = None) -> None:
        """Show the changing line; in a log, print it as one more line.

        ``share`` is how much of the work is done, from 0 to 1. On a terminal it becomes a bar. A line that is wider
        than the terminal is cut there, because a broken line cannot change in place.
        """
        self._last = time.monotonic()
        if not self._live:
            self.say(line)
            return
        text = visible(line) if share is None else f"{bar(share)}  {visible(line)}"
        width = 100 if self._notebook else shutil.get_terminal_size().columns - 1
        text = text if len(text) <= width else f"{text[: max(0, width - 3)]}..."
        # A notebook knows no escape codes: blanks cover what a longer line has left.
        print(f"\r{text:<{width}}" if self._notebook else f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._open = True

    def end(self) -> None:
        """Leave the changing line as it is and start a new one."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False


def bar(share: float) -> str:
    """Return a bar, such as '[#####...............]  25 %'."""
    share = min(1.0, max(0.0, share))
    done = int(share * BAR)
    return f"[{'#' * done}{'.' * (BAR - done)}] {int(share * 100):3d} %"


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Silence the lines that models print when they load and no logging is configured."""
    log, handler = logging.getLogger("cerebro_eeg"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def in_bytes(size: float) -> str:
    """Format 2.5e9 as '2.5 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def in_time(seconds: float) -> str:
    """Format 4000 as '1 h 06 min'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def time_left(done: float, total: float, seconds: float) -> str:
    """Return the time left at the pace so far, such as '3 min 20 s'; '?' before anything is done."""
    return in_time((total - done) * seconds / done) if done > 0 else "?"


def counted(count: int, what: str) -> str:
    """Return '1 recording' or '2 recordings'."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
