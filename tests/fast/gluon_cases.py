"""Compile the Gluon kernels of an MLP for Hopper on any machine."""

import re
import subprocess
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from cerebro_eeg.fast import mlp_launch
from cerebro_eeg.fast.gluon import mlp


def descriptor(rows, columns):
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return f"tensordesc<bf16[{rows}, {columns}],{layout!r}>"


def compiled_for_hopper(width, form):
    """Yield both kernels, compiled for a form."""
    constants = mlp_launch.constants(form, width)
    options = {name: constants.pop(name) for name in ("num_warps", "maxnreg")}
    piece, counts = descriptor(64, 64), {"rows": "i32", "slabs": "i32"}
    up = {"x": piece, "weight": descriptor(form.columns, 64), "bias": "*bf16", "slope": piece, "out": piece, **counts}
    down = {"d_y": piece, "weight": descriptor(64, form.columns), "slope": piece, "d_before": piece}
    down |= {"sums": "*fp32", **counts}
    kernels = (mlp.up, up, {"BIAS": True, "KEEP": True}), (mlp.down_backward, down, {})
    for kernel, types, flags in kernels:
        known = {**constants, **flags}
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        source = GluonASTSource(kernel, signature, known, {})
        yield triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spilled(binary, folder):
    """Return the bytes of registers that a thread spills to memory."""
    path = folder / "kernel.cubin"
    path.write_bytes(binary)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    found = subprocess.run([tool, "-res-usage", path], capture_output=True, check=True)
    return int(re.search(rb"STACK:(\d+)", found.stdout)[1])
