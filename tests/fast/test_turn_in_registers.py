"""The transposition of scores in the registers of a warp: its assembly, and the layouts of Triton that it relies on."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.fast import attention as short_axis

triton = pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from cerebro_eeg.fast.triton import attention as kernels  # noqa: E402

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
    """Return row and column of the two values in each register and lane of a square product, (registers, lanes, 2)."""
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
    """Do movmatrix.m8n8.trans of PTX: lane i has two adjacent values of row i / 4, before and after."""
    return register_32_2.reshape(8, 8).T.reshape(32, 2)


@pytest.mark.parametrize(("side", "turning"), [(16, kernels.TURN_16), (32, kernels.TURN_32)])
def test_the_assembly_turns_a_square(side, turning):
    """Carry out the text of the assembly register by register, and compare with NumPy's transpose."""
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


def compiled(length, dim, capability=90, **flags):
    """Compile the backward kernel for a GPU, without having one."""
    t = short_axis.tile(length, 12, dim, backward=True, exact=False)
    known = {
        **dict.fromkeys(("ACROSS", "RAGGED", "REAL", "KEYS"), False),
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
        **short_axis._more_of(t, 0),
        "PRECISION": "tf32",
        **flags,
    }
    given = {"first": "*i64"} if known["RAGGED"] else {}
    given |= {name: "*i1" for name in ("real", "keys") if known[name.upper()]}
    signature = {name: (TYPES | given).get(name, "constexpr") for name in kernels.backward.arg_names}
    source = ASTSource(kernels.backward, signature, known, {})
    return t, triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": t.warps}).asm


@pytest.mark.parametrize(
    ("length", "dim", "capability", "flags"),
    [
        *((20, 16, capability, {}) for capability in (80, 90, 100, 120)),
        (20, 48, 90, {"TURNS": 1}),
        (36, 16, 90, {"ACROSS": True, "REAL": True, "TURNS": 1}),
        (24, 64, 90, {"ACROSS": True, "KEYS": True, "TOKENS": 20}),
    ],
)
def test_triton_holds_scores_as_the_assembly_expects(length, dim, capability, flags):
    """The input of the assembly is a product of one warp in blocks of 16 x 8, for every kind of GPU."""
    assert short_axis.turns_in_registers()  # if a new Triton fails here, check its layouts, then add it to LAYOUTS
    t, code = compiled(length, dim, capability, **flags)
    assert t.in_registers
    lines = [line for line in code["ttgir"].splitlines() if "tt.elementwise_inline_asm" in line]
    assert len(lines) == 2 * (t.slots // t.part) ** 2 * (2 if t.rest else 1)
    for line in lines:
        taken = re.search(r": tensor<(\d+)x(\d+)xbf16, #(\w+)> ->", line)
        assert taken is not None, line
        assert taken[1] == taken[2] == str(t.part) == str(t.queries)
        mma = re.search(rf"#{taken[3]} = #ttg\.nvidia_mma<\{{(.*?)\}}>", code["ttgir"])
        assert mma is not None
        assert "versionMajor = 2" in mma[1]
        assert "warpsPerCTA = [1, 1]" in mma[1]
        assert "instrShape = [16, 8]" in mma[1]
    assert "movmatrix" in code["ptx"]


@pytest.mark.parametrize(
    ("length", "dim", "flags"),
    [
        (16, 16, {}),
        pytest.param(32, 48, {"ACROSS": True, "RAGGED": True}, marks=pytest.mark.soak),
        (40, 40, {"ACROSS": True, "RAGGED": True, "TOKENS": 20}),
        pytest.param(64, 16, {}, marks=pytest.mark.soak),
        pytest.param(100, 128, {"ACROSS": True, "RAGGED": True}, marks=pytest.mark.soak),
        (256, 64, {"ACROSS": True, "RAGGED": True}),
    ],
)
def test_every_kind_of_tile_compiles(length, dim, flags):
    """The interpreter accepts code that the compiler refuses, such as a function with results of two types."""
    assert compiled(length, dim, **flags)[1]["cubin"]


def test_the_tool_tells_registers():
    """A new version of Triton, or a new tile, may spill registers; 20 and 64 tokens with heads of 16 do not."""
    tool = Path(__file__).parents[2] / "tools/compile_kernels.py"
    command = [sys.executable, tool, "--dims", "16", "--axes", "20", "64"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        f"{kind}, {length} tokens of 16, {where}"
        for where in ("along time", "across channels")
        for length in (20, 64)
        for kind in ("forward", "backward")
    ]
    found = [re.search(r": (\d+) registers, 0 bytes spilled, \d+ shared$", line) for line in said]
    assert all(found)
    limit = short_axis.tile(64, 12, 16, backward=False, exact=False).registers
    assert int(found[6][1]) <= limit  # across channels: six programs of 64 threads to a multiprocessor
    assert 6 * 64 * limit <= 65536
