"""How many CPU cores and how much memory this process may take, by the system and its control groups."""

import math
import os
from pathlib import Path


def free_bytes() -> float:
    """Return the memory that programs may still take; infinite where the system does not say it."""
    found = [_free_of_machine()]
    for folder in _control_groups():
        try:
            most, used = ((folder / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
            found.append(float(most) - float(used) + _cached(folder))
        except (OSError, ValueError):  # "max" is no limit
            continue
    return min(found)


def _cached(group: Path) -> float:
    """Return the bytes of a control group that hold copies of files, which the system gives up when programs ask."""
    lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(("active_file ", "inactive_file ")))


def _control_groups() -> list[Path]:
    """Return the folders of Linux's control groups that this process is in, from the innermost on."""
    root = Path("/sys/fs/cgroup")
    try:
        (own,) = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except (OSError, ValueError):
        return []
    inner = root / own.strip("/")
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]


def _free_of_machine() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return 1024 * float(found["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return math.inf


def memory_of(process: int) -> float:
    """Return the bytes that a process has for itself alone; 0 where the system does not say it."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as line:
            _, resident, shared, *_ = map(int, line.read().split())
        return float((resident - shared) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return 0.0


def cores() -> int:
    """Return how many CPU cores this process may use, by its affinity and its control groups."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _control_groups():
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            found = min(found, max(1, int(float(quota) / float(period))))
        except (OSError, ValueError):  # "max" is no limit
            continue
    return found
