"""The set-up of all tests: the pack of open recordings, markers, their order, and the same numbers on every run.

A test that needs something that this machine may lack skips and says why. CEREBRO_NO_SKIP names what must be there
("pack", "gpu", "chromium", or several with commas): a skip for want of it becomes a failure, so that CI cannot quietly
lose a test.

``make test`` shares the tests between two processes (pytest-xdist, worksteal). So every test keeps to its own files and
ports, and does not rely on a test before it. Waits and limits are generous, because other programs may slow the machine
down: a limit ends a test that hangs, and never measures speed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from browser import NAMES, Browser, find_chromium

# Sums depend on how many threads share them. Set by environment, not by torch: tests that need no torch load none, and
# the processes that tests start inherit it. Threads that wait must not spin: two processes of tests share two cores.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "2"
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test touches the network
# A job in the background of a shell ignores interrupts, and the processes that it starts do, too: tests interrupt some.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a loaded machine is no bug. CI sees the same examples every time; elsewhere each run tries new ones.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


SLOW = (
    "train",
    "fast/test_kernels.py",
    "fast/test_turn_in_registers.py",
    "test_readme.py",
    "test_recipes.py",
    "commands/test_demo.py",
    "report/test_pages_in_browser.py",
    "runs",
)
"""Long tests and costly fixtures. They come first, in the first process; a process that is done steals from the end of
the other's list. So no fixture of these files is made twice, and no process waits for a long test at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    slow = {here / name for name in SLOW}
    items.sort(key=lambda item: not slow.intersection((item.path, *item.path.parents)))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: runs long; only `make soak` runs it")
    config.addinivalue_line("markers", "docs: runs the code of a page; `make docs` runs it")
    config.addinivalue_line("markers", "gpu: needs a CUDA device; skipped where there is none")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            _skip("gpu", "needs a CUDA device")


@pytest.fixture(autouse=True)
def few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test start trainings side by side, in other processes, because the machine happens to have many cores."""
    for name in ("side_by_side", "training_processes"):
        if (module := sys.modules.get(f"cerebro_eeg.runs.{name}")) is not None:
            monkeypatch.setattr(module, "cores", lambda: 1)


@pytest.fixture(scope="session")
def open_eeg() -> Path:
    """The folder of the open-EEG pack: real recordings with licences that allow it, too large for the repository."""
    folder = os.environ.get("CEREBRO_OPEN_EEG")
    if not folder:
        _skip("pack", "needs the open-EEG pack: set CEREBRO_OPEN_EEG to its folder")
    if not Path(folder, "index.csv").is_file():
        pytest.fail(f"CEREBRO_OPEN_EEG={folder} is not the open-EEG pack: it has no index.csv", pytrace=False)
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium for the pages of reports; CEREBRO_CHROMIUM names a program that is not on the path."""
    program = find_chromium()
    if program is None:
        _skip("chromium", f"needs a browser to open pages with: {', '.join(NAMES)}, or CEREBRO_CHROMIUM")
    found = Browser(program)
    yield found
    found.close()


def _skip(what: str, reason: str) -> NoReturn:
    if what in os.environ.get("CEREBRO_NO_SKIP", "").split(","):
        pytest.fail(f"{reason} (CEREBRO_NO_SKIP says that it is here)", pytrace=False)
    pytest.skip(reason)
