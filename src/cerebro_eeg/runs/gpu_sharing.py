"""One GPU for several processes at the same time, by NVIDIA's Multi-Process Service (MPS).

Without the service a GPU computes for one process at a time, in turns, even where each fills a tenth of it. The service
is a program that comes with the driver. It is started for the time of a command, for the processes of this command
alone, and where it cannot be started the processes take turns. Service and processes know the GPU by its UUID, because
the service counts the GPUs that it may use from 0 again.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
USUAL = Path("/tmp/nvidia-mps/control")
"""Where a service of this machine listens."""
SERVE = f"{CONTROL} -d && echo started && read -r _; echo quit | {CONTROL}"
"""Starts the service, and ends it when the input ends: also when this process is killed."""
TRIAL = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1]))
raise SystemExit(failed or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
"""
"""Tries whether another process can use the GPU."""
SECONDS = 30.0
"""Time for the start of the service, for a trial, and for the end of the service."""


@contextlib.contextmanager
def shared_gpu(device: torch.device, say: Callable[[str], None]) -> Iterator[Mapping[str, str] | None]:
    """Yield environment variables with which other processes compute on a GPU, at the same time if that is possible.

    It is None where no other process can use the GPU, as in its exclusive mode.
    """
    own = only(device)
    number = 0 if own else device.index or 0
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or USUAL.exists():  # somebody has started the service
        yield own
        return
    reason = f"the driver's {CONTROL} is not here"
    if os.name == "posix" and shutil.which(CONTROL) is not None:
        reason = "NVIDIA's Multi-Process Service does not work here"
        # The service may still write to its log while it ends.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _service(Path(folder), own) as found:
            if found and _usable(found, number):
                yield found
                return
    if not _usable(own, number):
        say(f"note: the trainings run one after the other: {reason}, and only one process can use the GPU")
        yield None
        return
    say(f"note: the trainings take turns on the GPU, because {reason}")
    yield own


def only(device: torch.device) -> dict[str, str]:
    """Return the environment variable that shows a process this GPU alone; nothing where its UUID is not known."""
    if not torch.cuda.is_available() or "MIG" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
        return {}
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return {} if uuid is None else {"CUDA_VISIBLE_DEVICES": f"GPU-{str(uuid).removeprefix('GPU-')}"}


@contextlib.contextmanager
def _service(folder: Path, own: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Run the service while the block lasts; yield nothing if it does not start."""
    found = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"), **own}
    for name in ("pipe", "log"):
        (folder / name).mkdir()
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
        ready, _, _ = select.select([service.stdout], [], [], SECONDS)
        yield found if ready and service.stdout.readline() == b"started\n" else {}
    finally:
        assert service.stdin is not None
        service.stdin.close()
        try:
            service.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()
        service.stdout.close()


def _usable(environment: Mapping[str, str], number: int) -> bool:
    """Return whether a process with these environment variables can use the GPU of this number."""
    try:
        command = [sys.executable, "-I", "-S", "-c", TRIAL, str(number)]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
