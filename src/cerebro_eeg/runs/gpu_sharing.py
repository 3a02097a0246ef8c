"""One GPU for several processes at the same time, by NVIDIA's Multi-Process Service (MPS).

Without the service a GPU computes for one process at a time, in turns, even where each fills a tenth of it. The service
is a program that comes with the driver. It is started for the time of a command, for the processes of this command
alone, and where it cannot be started the processes take turns.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
USUAL = Path("/tmp/nvidia-mps/control")
"""Where a service of this machine listens."""
SERVE = f"{CONTROL} -d && echo started && read -r _; echo quit | {CONTROL}"
"""Starts the service, and ends it when the input ends: also when this process is killed."""
TRIAL = """
import ctypes
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
raise SystemExit(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
"""
"""Tries whether a process can use the GPU through the service."""
SECONDS = 30.0
"""Time for the trial, and for the end of the service."""


@contextlib.contextmanager
def shared_gpu(say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """Yield environment variables with which processes compute on a GPU at the same time; none if they take turns."""
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or USUAL.exists():  # somebody has started the service
        yield {}
        return
    if os.name != "posix" or shutil.which(CONTROL) is None:
        say(f"note: the trainings take turns on the GPU, because the driver's {CONTROL} is not here")
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder, _service(Path(folder)) as found:
        if not found:
            say("note: the trainings take turns on the GPU, because NVIDIA's Multi-Process Service does not work here")
        yield found


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[dict[str, str]]:
    """Run the service while the block lasts; yield nothing if it does not start or no process can use it."""
    found = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in found.values():
        Path(path).mkdir()
    service = subprocess.Popen(
        ["sh", "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **found},
        start_new_session=True,
    )
    assert service.stdout is not None
    try:
        started = service.stdout.readline() == b"started\n"
        yield found if started and _usable(found) else {}
    finally:
        assert service.stdin is not None
        service.stdin.close()
        try:
            service.wait(SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()
        service.stdout.close()


def _usable(environment: Mapping[str, str]) -> bool:
    """Return whether a process with these environment variables can use the GPU."""
    try:
        command = [sys.executable, "-I", "-S", "-c", TRIAL]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
