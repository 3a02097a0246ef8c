"""Compile the kernel of a norm for Hopper on any machine, and see how it reads."""

import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cerebro_eeg.model import norm, norm_kernels


def copies_of_loads(width):
    """How many threads read one value of the tokens, for each load."""
    tile, kernel = norm.tile(width, backward=False), norm_kernels.forward
    first, second = tile.columns
    known = {"D": width, "BLOCK_A": first, "BLOCK_B": second, "BLOCK_T": tile.rows, "KEEP": False, "BIAS": True}
    types = dict.fromkeys(("x", "late", "total", "out"), "*bf16") | dict.fromkeys(known, "constexpr")
    types |= {"rows": "i32", "eps": "fp32"}
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
    pointers = [i for i, kind in enumerate(signature.values()) if kind.startswith("*")]
    source = ASTSource(kernel, signature, known, {(i,): [["tt.divisibility", 16]] for i in pointers})
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": tile.warps}).asm["ttgir"]
    layouts = dict(re.findall(r"(#blocked\d*) = #ttg\.blocked<(\{.*?\})>", text))
    loads = re.findall(r"tt\.load .*?tensor<(\d+)x(\d+)x!tt\.ptr<bf16>, (#blocked\d*)>", text)
    return [_copies((int(rows), int(columns)), layouts[layout]) for rows, columns, layout in loads]


def _copies(shape, layout):
    parts = re.findall(r"(?:sizePerThread|threadsPerWarp|warpsPerCTA) = \[(\d+), (\d+)\]", layout)
    copies = 1
    for axis, size in enumerate(shape):
        covered = 1
        for part in parts:
            covered *= int(part[axis])
        copies *= max(1, covered // size)
    return copies
