"""Writes down every 50 ms where the main thread of this Python process is, for ``benchmarks/where_time_goes.py``.

Python imports a module of this name as it starts, if its folder is in PYTHONPATH. It samples only where ``SAMPLES``
names a folder. A sampler holds tensors for a moment, which may disturb the recording of CUDA graphs.
"""

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

EVERY = 0.05
OWN = "cerebro_eeg"


def sample(folder: Path) -> None:
    """Sample until the process ends."""
    main, began, found = threading.main_thread().ident, time.time(), []

    def write() -> None:
        about = {"began": began, "command": sys.orig_argv, "samples": found}
        (folder / f"{os.getpid()}.json").write_text(json.dumps(about), encoding="utf-8")

    def watch() -> None:
        while True:
            time.sleep(EVERY)
            found.append((time.time(), *frames(main)))
            if len(found) % 20 == 0:  # a process that is killed leaves what it had
                write()

    atexit.register(write)
    threading.Thread(target=watch, daemon=True).start()


def frames(thread: int | None) -> tuple[str, str]:
    """Return the innermost functions of the package, and the innermost function of all."""
    frame, own, inner = sys._current_frames().get(thread or 0), [], ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        here = f"{path.parent.name}/{path.stem}.{frame.f_code.co_name}:{frame.f_lineno}"
        inner = inner or here
        if OWN in path.parts:
            own.append(here)
        frame = frame.f_back
    return " < ".join(own[:4]), inner


if folder := os.environ.get("SAMPLES"):
    sample(Path(folder))
