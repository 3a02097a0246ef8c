"""Progress: how far a long piece of work is, said on stderr in words that people read. Standard library only."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator


class Progress:
    """Lines on stderr: those that stay, and one that changes in place; in a log, that one only now and then."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._every = 0.2 if self._live else 5.0
        self._last = time.monotonic()
        self._open = False

    def say(self, line: str) -> None:
        """A line that stays."""
        self.end()
        print(line, file=sys.stderr, flush=True)

    def due(self) -> bool:
        """Whether it is time to show the changing line again; asking is cheap, writing the line need not be."""
        return time.monotonic() - self._last >= self._every

    def show(self, line: str) -> None:
        """The line that changes; in a log it is one more line."""
        self._last = time.monotonic()
        if self._live:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            self.say(line)

    def end(self) -> None:
        """Leave the changing line as it is and go to the next."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Models print what they loaded where no logging is set up; within this they do not."""
    log, handler = logging.getLogger("cerebro_eeg"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def in_bytes(size: float) -> str:
    """2.5e9 -> '2.5 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 999.5 else f"{size:,.0f} TB"


def in_time(seconds: float) -> str:
    """4000 -> '1 h 06 min'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def time_left(done: float, total: float, seconds: float) -> str:
    """What is left of ``total`` at the pace so far: '3 min 20 s', or '?' before anything is done."""
    return in_time((total - done) * seconds / done) if done > 0 else "?"


def counted(count: int, what: str) -> str:
    """'1 recording', '2 recordings'."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
