"""Operators of torch: they are opaque to torch's compiler, and do not import it."""

import subprocess
import sys

CODE = """
import sys
import torch
from cerebro_eeg.fast.operators import fake, operator

seen = []

@operator("cerebro_eeg::of_a_test")
def twice(x: torch.Tensor) -> torch.Tensor:
    seen.append(torch.compiler.is_compiling())
    return 2 * x

@fake(twice)
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

x = torch.arange(3.0)
print(twice(x).tolist(), "torch._dynamo" in sys.modules)

import torch._dynamo
from torch._dynamo.testing import CompileCounter

outside = CompileCounter()

@torch._dynamo.disable(recursive=False)  # the compiler does not look into this function, but into those that it calls
def skipped(x):
    return twice(x)

@torch.compile(backend=outside)
def broken(x):
    return skipped(x + 1) + 1

print(broken(x).tolist(), outside.frame_count, set(seen))
opaque = CompileCounter()
whole = torch.compile(lambda x: twice(x + 1) * 2, backend=opaque, fullgraph=True)
print(whole(x).tolist(), opaque.frame_count, opaque.op_count, set(seen))
torch.library.opcheck(twice, (x,))
"""


def test_operators_are_opaque_to_the_compiler_and_do_not_import_it():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    first, *lines = done.stdout.splitlines()
    assert first == "[0.0, 2.0, 4.0] False"
    assert lines == [
        "[3.0, 5.0, 7.0] 2 {False}",  # one graph before and one after the operator, and none of what is in it
        "[4.0, 8.0, 12.0] 1 3 {False}",  # three operations in one graph: the operator is one of them
    ]
