"""Random shapes of short-axis attention against float64: does any fail, and how exact is it beside the best backend?

    python benchmarks/shapes.py [--shapes 2000 --workers 12]

Shapes have up to 4 million rows and axes of 1 to 256 tokens. Windows may be ragged, padded or empty, keys hidden and
scores very negative. There are three types, and programs of one and of several turns. Outputs and gradients are
compared with float64 and with the best stock backend. The table counts the shapes whose error exceeds ``MOST_ERROR``
times that backend's, and names the worst ten. It needs a GPU and runs in several processes.
"""

import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cerebro_eeg import fast
from cerebro_eeg.batch import Layout
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.table import Cell, ResultTable
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import attention
from cerebro_eeg.fast.attention import FILLING
from cerebro_eeg.model.attention import Axis, attend
from cerebro_eeg.schema import require

MOST_ERROR = 1.5  # of short-axis attention, over the error of the best stock backend
QUERIES = 512
"""Half of the shapes have this many and get a row of their own: over few queries, the ratio of two errors is luck."""
MARKS = {"median": 0.5, "p99": 0.99, "p999": 0.999, "most": 1.0}


@dataclass(frozen=True)
class Shapes:
    """Random shapes of short-axis attention against float64, beside the best stock backend (GPU)."""

    shapes: int = 2000
    """Shapes to try."""
    workers: int = 12
    """Processes that try them."""
    device: str = "cuda"
    """A GPU; the tests check the kernels on the CPU."""

    def __post_init__(self) -> None:
        for name in ("shapes", "workers"):
            require(getattr(self, name) >= 1, f"--{name} is {getattr(self, name)}; expected at least 1")


def run(options: Shapes, say: Callable[[str], None]) -> list[ResultTable]:
    """Try all shapes."""
    if choose_device(options.device, "benchmarks/shapes.py").type != "cuda":
        raise ConfigError("shapes.py checks the kernels on a GPU; the tests check those of the CPU")
    return [check_all(options.shapes, options.workers)]


def check_all(shapes: int, workers: int) -> ResultTable:
    """Try ``shapes`` random shapes, shared among processes."""
    with ProcessPoolExecutor(workers, get_context("spawn"), fast.choose, ("auto",)) as pool:
        share = -(-shapes // workers)
        parts = list(pool.map(check_shapes, range(workers), [share] * workers))
    failures = [failure for part in parts for failure in part[1]]
    compared = [found for part in parts for found in part[2]]
    return table(sum(part[0] for part in parts), failures, compared)


@dataclass(frozen=True, order=True)
class Compared:
    """Our error over the best stock backend's, for a shape of so many queries."""

    error: float
    case: str
    queries: int


def table(tried: int, failures: list[str], compared: list[Compared]) -> ResultTable:
    """Count shapes and failures, and show our error over the best stock backend's, with the worst cases."""
    columns: dict[str, str | None] = {"queries": "", "tried": "", "by_kernels": "", "failures": "", "over_allowed": ""}
    columns |= {f"error_{name}": ".2fx" for name in MARKS}
    compared = sorted(compared)
    enough = [found for found in compared if found.queries >= QUERIES]
    rows: list[list[Cell]] = [
        ["any", tried, len(compared), len(failures), *_errors(compared)],
        [f"{QUERIES} and more", None, len(enough), None, *_errors(enough)],
    ]
    title = "Random shapes against float64: failures, and our error over the best stock backend's"
    notes = [f"fails: {failure}" for failure in failures[:10]]
    worst = [found for found in compared[:-11:-1] if found.error > MOST_ERROR]
    notes += [f"{found.error:.2f}x: {found.case}, {found.queries} queries" for found in worst]
    return ResultTable("shapes", title, columns, rows, (), notes)


def _errors(compared: list[Compared]) -> list[Cell]:
    """Count the errors above ``MOST_ERROR``, and return the quantiles of a sorted list."""
    marks = [compared[int(q * (len(compared) - 1))].error if compared else None for q in MARKS.values()]
    return [sum(found.error > MOST_ERROR for found in compared), *marks]


def check_shapes(seed: int, shapes: int) -> tuple[int, list[str], list[Compared]]:
    """Try random shapes of a few compiled variants; return their number, the failures, and our errors over the best's.

    It needs a process of its own, because it changes which programs take several turns.
    """
    rng = random.Random(seed)
    tried, failures = 0, []
    compared: list[Compared] = []
    while tried < shapes:
        dtype = rng.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
        dim = rng.choice([16, 48, 64, 32, 128])
        size = 2 ** rng.randint(0, 8)
        across, mask = rng.random() < 0.5, rng.choice(["none", "none", "ragged", "padded", "hidden"])
        for _ in range(24):
            length = rng.randint(size // 2 + 1, size)
            case = (dtype, rng.choice([1, 2, 3]) if dim > 16 else 2, dim, length, across, mask)
            attention.FILLING = rng.choice([0, FILLING])  # else only many sequences take several turns
            many = seed == 0 and tried % 10 == 0  # in one process: several at once do not fit
            if many:
                case = (torch.bfloat16, 1, 16, rng.choice([1, 2, 4, 20]), False, "none")
            found = check_shape(rng, *case, rows=4_000_000 if many else None)
            if many:
                torch.cuda.empty_cache()
            tried += 1
            if isinstance(found, str):
                failures.append(f"{case}: {found}")
            elif found is not None:
                compared.append(Compared(found[0], str(case), found[1]))
            if tried == shapes:
                break
    return tried, failures, compared


def check_shape(
    rng: random.Random, dtype: torch.dtype, heads: int, dim: int, length: int, across: bool, mask: str, rows: int | None
) -> str | tuple[float, int] | None:
    """Return what is wrong, or our error over the best backend's and the queries; None where the stock path runs."""
    torch.manual_seed(rng.randrange(2**31))
    other = rng.randint(1, 9)
    windows = rng.randint(1, 6)
    if rng.random() < 0.5:
        windows += -(-QUERIES // (heads * length * (other if across else 1)))
    counts = [length] * windows
    if mask == "ragged":
        counts = [length] + [rng.randint(0, length) for _ in range(windows - 1)]
    if not across:
        counts, other = [rng.randint(1, 4)] * windows, length
    if rows is not None:
        counts = [1] * rows
    layout = Layout.ragged(counts, torch.device("cuda"))
    total = sum(counts)
    if mask == "padded":
        layout = Layout.padded(torch.rand(windows, counts[0], device="cuda") < 0.6)
    keys = torch.rand(total, other, device="cuda") < 0.4 if mask == "hidden" else None
    scale = rng.choice([1.0, 1.0, 8.0])
    qkv = torch.randn(total, other, 3 * heads * dim, device="cuda").mul_(scale)
    if rng.random() < 0.2:  # scores of about -300 and less: a log-sum-exp that cuDNN's backward does not survive
        qkv[..., : heads * dim], qkv[..., heads * dim : 2 * heads * dim] = 9, -9
    qkv = qkv.to(dtype).requires_grad_()
    if not attention.can_attend(qkv, heads, length):
        return None
    axis: Axis = "channels" if across else "time"
    d_out = torch.randn(total, other, heads * dim, device="cuda").to(dtype)
    if layout.real_R is not None:
        d_out = d_out.masked_fill(~layout.real_R[:, None, None], 0)

    def run(x: Tensor, backend: SDPBackend | None) -> tuple[Tensor, Tensor]:
        if backend is None:
            out = attend(x, layout, axis, heads, keys)
        else:
            with sdpa_kernel(backend), fast.use("stock"):
                out = attend(x, layout, axis, heads, keys)
        if layout.real_R is not None:
            out = out.masked_fill(~layout.real_R[:, None, None], 0)
        return out, torch.autograd.grad(out, x, d_out.to(x.dtype))[0]

    found = run(qkv, None)
    if not all(torch.isfinite(x).all() for x in found):
        return "not finite"
    if rows is not None:  # float64 of all that does not fit; its first and last rows
        ends = torch.cat([qkv[:50], qkv[-50:]]).detach()
        qkv, layout, d_out = ends.requires_grad_(), Layout.ragged([1] * 100), torch.cat([d_out[:50], d_out[-50:]])
        found = torch.cat([found[0][:50], found[0][-50:]]), torch.cat([found[1][:50], found[1][-50:]])
    exact = run(qkv.detach().double().requires_grad_(), SDPBackend.MATH)
    ours = [_error(a, b) for a, b in zip(found, exact, strict=True)]
    bound = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}[dtype]
    if max(ours) > bound * max(1.0, scale / 4):
        return f"error {max(ours):.1e}"
    stock = []
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        try:
            stock.append([_error(a, b) for a, b in zip(run(qkv, backend), exact, strict=True)])
        except RuntimeError:
            continue
    best = [min(errors) for errors in zip(*stock, strict=True)]
    error = max((a / b for a, b in zip(ours, best, strict=True) if b > 1e-7 and a > 1e-7), default=1.0)
    return error, qkv.shape[0] * qkv.shape[1] * heads


def _error(found: Tensor, exact: Tensor) -> float:
    size = exact.norm().item()
    return (found.double() - exact).norm().item() / size if size else found.double().norm().item()


if __name__ == "__main__":
    sys.exit(main_of(Shapes, run))
