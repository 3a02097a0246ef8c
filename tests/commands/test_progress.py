"""Progress: numbers as people read them; one line that changes on a terminal, few lines in a log."""

import io
import sys
from itertools import pairwise

import pytest

from cerebro_eeg import progress
from cerebro_eeg.progress import Progress, counted, in_bytes, in_time, time_left


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 kB"),
        (1000, "1 kB"),
        (2.5e9, "2.5 GB"),
        (999_900, "1 MB"),
        (9.3e11, "930 GB"),
        (1.2e13, "12 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_bytes(size, text):
    assert in_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (4000, "1 h 06 min"),
        (4e6, "1,111 h 06 min"),
    ],
)
def test_time(seconds, text):
    assert in_time(seconds) == text


def test_what_is_left():
    assert time_left(25, 100, 10.0) == "30 s"
    assert time_left(100, 100, 10.0) == "0 s"
    assert time_left(0, 100, 10.0) == "?"
    assert [counted(n, "file") for n in (0, 1, 1200)] == ["0 files", "1 file", "1,200 files"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line_that_changes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    line = Progress()
    line.say("first")
    line.show("1/2")
    line.show("2/2")
    line.say("then")
    line.show("3/3")
    line.end()
    line.end()
    assert sys.stderr.getvalue() == "first\n\r\x1b[K1/2\r\x1b[K2/2\nthen\n\r\x1b[K3/3\n"


@pytest.mark.parametrize(("stream", "every"), [(Terminal, 0.2), (io.StringIO, 5.0)])
def test_it_is_due_now_and_then(monkeypatch, stream, every):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", stream())
    line = Progress()
    seen = []
    for _ in range(700):
        now[0] += 1 / 64
        if line.due():
            seen.append(now[0])
            line.show("x")
    assert len(seen) > 1
    assert all(every <= b - a <= every + 1 / 64 for a, b in pairwise([100.0, *seen]))


def test_a_log_has_whole_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    line = Progress()
    line.show("1/2")
    line.show("2/2")
    line.end()
    assert sys.stderr.getvalue() == "1/2\n2/2\n"


def test_a_terminal_shows_a_bar_and_cuts_what_does_not_fit(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "50")
    line = Progress()
    line.show("step 5/20", 0.25)
    line.show("a line that is far too long for a terminal of fifty columns", 1.0)
    _, first, second = sys.stderr.getvalue().split("\r\x1b[K")
    assert first == "[#####...............]  25 %  step 5/20"
    assert second == "[####################] 100 %  a line that is f..."
    assert len(second) == 49


def test_a_log_shows_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Progress().show("step 5/20", 0.25)
    assert sys.stderr.getvalue() == "step 5/20\n"


def test_a_notebook_has_one_line_that_changes_without_escape_codes(monkeypatch):
    """ipykernel's stream is no terminal, and shows a line that begins with a carriage return over the last one."""
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stderr", stream)
    line = Progress()
    line.show("a longer line", 0.5)
    line.show("short", 0.6)
    line.end()
    shown = stream.getvalue().removesuffix("\n").split("\r")[1:]
    assert [len(text) for text in shown] == [100, 100]
    assert shown[1].rstrip() == "[############........]  60 %  short"
