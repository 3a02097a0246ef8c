"""Compile attention's kernels for a GPU that is not here: print their registers and spills, and fill a cache for it.

    python tools/compile_kernels.py --dims 16 48 --axes 20 36

prints one line per kernel of the grid of ``bench attention``. The compiled kernels can be used on the GPU's machine:
``--wheel`` names an unpacked Triton wheel of that machine (the same version, maybe for another Python), and
``TRITON_CACHE_DIR`` the path that the cache will have there. Pack the folder, unpack it there, set the same variable.
Keys of Triton 3.6 depend on the kernel that a process asks for first; here, as in the benchmark, it is forward.
"""

import argparse
import hashlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import cache

from cerebro_eeg.bench.options import AXES
from cerebro_eeg.fast import attention as short_axis
from cerebro_eeg.fast.triton import attention as kernels

HEADS = 12
ENOUGH = 100_000  # rows, so that programs take their turns


class Absent:
    """A driver for a GPU that is not here: enough of one to compile for it."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """In the place of a kernel: compiles instead of launching."""

    def __init__(self, kernel: Any, found: list[Any]) -> None:
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **constants: self.found.append(self.kernel.warmup(*args, grid=grid, **constants))


def key_of(wheel: Path) -> str:
    """Return Triton's own part of its cache keys, computed from the files of another wheel of this version."""
    files = [wheel / "runtime/cache.py"]
    for part in ("compiler", "backends", "language"):
        if part == "language":
            files.append(wheel / "_C/libtriton.so")
        for found in pkgutil.walk_packages([str(wheel / part)], prefix=f"triton.{part}."):
            spec = found.module_finder.find_spec(found.name, None)
            files.append(Path(str(spec.origin if spec else "")))
    return triton.__version__ + "-".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


def grid(dims: list[int], axes: list[int]) -> Iterator[tuple[str, int, int, bool]]:
    for across in (False, True):
        for dim in dims:
            for length in axes:
                yield from ((kind, dim, length, across) for kind in ("forward", "backward"))


def run(kind: Any, dim: int, length: int, across: bool) -> None:
    """Launch one kernel on tensors without memory."""
    rows, tokens = (ENOUGH // length * length, 20) if across else (ENOUGH, length)
    qkv_RND = torch.empty(rows, tokens, 3 * HEADS * dim, dtype=torch.bfloat16, device="meta")
    out_RND = qkv_RND.new_empty(rows, tokens, HEADS * dim)
    logs = qkv_RND.new_empty(rows * tokens * HEADS, dtype=torch.float32)
    tensors = [qkv_RND, out_RND, logs] + ([torch.empty_like(qkv_RND)] if kind == "backward" else [])
    short_axis._launch(kind, tensors, HEADS, across, length if across else 32, None, None, None)
    if kind == "forward":  # and without gradients
        short_axis._launch(kind, [*tensors[:2], logs[:0]], HEADS, across, length if across else 32, None, None, None)


def resources(binary: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    return f"{found[1]} registers, {found[2]} bytes spilled" if found else said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 48, 64])
    parser.add_argument("--axes", type=int, nargs="+", default=list(AXES))
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--wheel", type=Path, help="the folder `triton` of an unpacked wheel")
    options = parser.parse_args()
    if options.wheel:
        key = key_of(options.wheel)
        cache.triton_key = lambda: key
    triton.runtime.driver.set_active(Absent(options.capability))  # type: ignore[arg-type]
    found: list[Any] = []
    kernels.forward, kernels.backward = Compiled(kernels.forward, found), Compiled(kernels.backward, found)
    for kind, dim, length, across in grid(options.dims, options.axes):
        run(kind, dim, length, across)
        where = "across channels" if across else "along time"
        shared = found[-1].metadata.shared
        print(f"{kind}, {length} tokens of {dim}, {where}: {resources(found[-1].asm['cubin'])}, {shared} shared")


if __name__ == "__main__":
    main()
