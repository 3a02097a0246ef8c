"""Scores that a warp turns in its registers: the assembly, and the layouts of Triton that it relies on."""

import re

import numpy as np
import pytest

from cerebro_eeg.model import short_axis

triton = pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from cerebro_eeg.model import kernels  # noqa: E402

LANES = np.arange(32)
TYPES = {
    **dict.fromkeys(("qkv", "d_out", "d_qkv", "first", "real", "keys"), "*bf16"),
    "logs": "*fp32",
    "tokens": "i32",
    "width": "i32",
    "sequences": "i32",
    "scale": "fp32",
}


def rows_and_columns(side):
    """Of the two numbers in each register and lane, (registers, lanes, 2): how a warp holds a square product."""
    found = []
    for row_16 in range(0, side, 16):
        for column_16 in range(0, side, 16):
            for column_8 in (0, 8):
                for row_8 in (0, 8):
                    row = row_16 + row_8 + LANES // 4
                    column = column_16 + column_8 + 2 * (LANES % 4)
                    found.append(np.stack([np.stack([row, column + i], -1) for i in (0, 1)], 1))
    return np.array(found)


def movmatrix(register_32_2):
    """What PTX says of movmatrix.m8n8.trans: lane i holds two neighbours of row i / 4, before and after."""
    return register_32_2.reshape(8, 8).T.reshape(32, 2)


@pytest.mark.parametrize(("side", "turning"), [(16, kernels.TURN_16), (32, kernels.TURN_32)])
def test_the_assembly_turns_a_square(side, turning):
    """Register by register as the text says, against NumPy's transpose."""
    x = np.arange(side * side).reshape(side, side)
    at = rows_and_columns(side)
    registers = x[at[..., 0], at[..., 1]]
    text, operands = turning.value
    outputs = operands.split(",").count("=&r")
    assert outputs == len(registers) == operands.split(",").count("r")
    turned = np.full_like(registers, -1)
    for to, source in re.findall(r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 \$(\d+), \$(\d+);", text):
        turned[int(to)] = movmatrix(registers[int(source) - outputs])
    np.testing.assert_array_equal(turned, x.T[at[..., 0], at[..., 1]])


@pytest.mark.parametrize("capability", [80, 90, 100, 120])
@pytest.mark.parametrize(("length", "dim"), [(20, 16), (20, 48), (36, 16)])
def test_triton_holds_scores_as_the_assembly_expects(length, dim, capability):
    """In every GPU's code, what goes into the assembly is the product of one warp, 16 x 8 after 16 x 8."""
    assert short_axis.turns_in_registers()  # a new Triton: look at its layouts, then add it to LAYOUTS
    t = short_axis.tile(length, 12, dim, backward=True, exact=False)
    assert t.in_registers
    known = {
        "ACROSS": False,
        "RAGGED": False,
        "REAL": False,
        "KEYS": False,
        "KEEP": True,
        "HEADS": 12,
        "E": dim,
        "BLOCK_E": t.dim,
        "SLOTS": t.slots,
        "PACK": t.pack,
        "PART": t.part,
        "BLOCK_Q": t.queries,
        "GROUP": t.group,
        "TURNS": t.turns,
        "REST": t.rest,
        "KEYS_FIRST": t.keys_first,
        "IN_REGISTERS": t.in_registers,
        "STORED": t.stored,
        "TOKENS": 0,
        "PRECISION": "tf32",
    }
    kernel = kernels.backward
    signature = {name: TYPES.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, known, {})
    code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1}).asm
    lines = [line for line in code["ttgir"].splitlines() if "tt.elementwise_inline_asm" in line]
    assert lines
    for (
        line
    ) in lines:  # as a product leaves them, or as the next one takes them: the same numbers in the same registers
        taken = re.search(r": tensor<(\d+)x(\d+)xbf16, (?:#ttg.dot_op<\{opIdx = 0, parent = )?#(\w+)(.*?)> ->", line)
        assert taken is not None
        assert taken[1] == taken[2] == str(t.part) == str(t.queries)
        assert taken[4] in ("", ", kWidth = 2}>")
        mma = re.search(rf"#{taken[3]} = #ttg\.nvidia_mma<\{{(.*?)\}}>", code["ttgir"])
        assert mma is not None
        assert "versionMajor = 2" in mma[1]
        assert "warpsPerCTA = [1, 1]" in mma[1]
        assert "instrShape = [16, 8]" in mma[1]
    assert "movmatrix" in code["ptx"]
