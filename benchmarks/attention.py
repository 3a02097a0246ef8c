"""Short-axis attention against every stock backend that runs, and against the time that a bare copy needs.

    python benchmarks/attention.py                     # speed, on a CUDA device
    python benchmarks/attention.py --shapes 2000       # correctness on random shapes, in several processes

Speed: packed q, k, v (R, N, 3 D) in, (R, N, D) out, forward and forward + backward, bf16, 12 heads, the layout changes
that a stock kernel needs included; along time (a row is a sequence) and across channels. Rivals take turns; medians.
The floor is the time in which the measured copy bandwidth reads q, k, v once and writes the output once (forward), and
reads q, k, v and the output's gradient and writes three gradients (backward). With OUT set, a table goes to
$OUT/attention.csv.

Shapes: rows to 4 million, axes 1 to 256, ragged, padded and empty windows, hidden keys, very negative scores, three
types; outputs and gradients against float64, beside the best stock backend.
"""

import argparse
import csv
import math
import os
import random
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cerebro_eeg.batch import Layout
from cerebro_eeg.model import short_axis
from cerebro_eeg.model.attention import attend

HEADS = 12
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
Step = Callable[[], object]


def steps_of(qkv: Tensor, d_out: Tensor, layout: Layout, axis: str) -> dict[str, tuple[Step, Step]]:
    """Forward, and forward + backward, of ours and of every backend."""

    def pair(backend: SDPBackend | None) -> tuple[Step, Step]:
        def forward() -> Tensor:
            if backend is None:
                return attend(qkv, layout, axis, HEADS)
            with sdpa_kernel(backend), short_axis.use("stock"):
                return attend(qkv, layout, axis, HEADS)

        def inference() -> Tensor:
            with torch.no_grad():
                return forward()

        return inference, lambda: torch.autograd.grad(forward(), qkv, d_out)

    return {"ours": pair(None)} | {name: pair(backend) for name, backend in BACKENDS.items()}


def timed(rivals: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median milliseconds of each rival that runs; they take turns."""
    running = {}
    for name, step in rivals.items():
        try:
            step()
            torch.cuda.synchronize()
            step()
            running[name] = step
        except RuntimeError as error:
            print(f"    {name} fails: {str(error).splitlines()[0][:90]}", flush=True)
            if "illegal" in str(error):  # the context is gone
                raise
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, step in running.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(20_000_000)  # about 10 ms in which the host gets ahead: launches are not what is timed
            start.record()
            for _ in range(3):
                step()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 3)
    return {name: statistics.median(found) for name, found in times.items()}


def copy_bandwidth() -> float:
    """Bytes read and written in a second by a large copy."""
    a = torch.randn(2**29, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    return 2 * a.nbytes / timed({"copy": lambda: b.copy_(a)}, 9)["copy"] * 1e3


def speed(dims: list[int], axes: list[int], directions: list[str], tokens: int, rounds: int) -> None:
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s")
    print(
        f"{'axis':9}{'dim':>4}{'len':>5}{'fwd ms':>8}{'+bwd':>8}  {'best stock':22}{'x fwd':>6}{'x +bwd':>7}   of floor"
    )
    rows = []
    for direction in directions:
        for dim in dims:
            for length in axes:
                torch.manual_seed(length)
                other = 20 if direction == "channels" else 32
                sequences = max(1, tokens * 16 // dim // length // other) * other
                shape = (sequences, length) if direction == "time" else (sequences // other * length, other)
                layout = Layout.uniform(sequences // other, shape[0] * other // sequences)
                qkv = torch.randn(*shape, 3 * HEADS * dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                d_out = torch.randn(*shape, HEADS * dim, device="cuda", dtype=torch.bfloat16)
                steps = steps_of(qkv, d_out, layout, direction)
                forward = timed({name: s[0] for name, s in steps.items()}, rounds)
                both = timed({name: s[1] for name, s in steps.items()}, rounds)
                best = [min((v, k) for k, v in t.items() if k != "ours") for t in (forward, both)]
                unit = d_out.nbytes / bandwidth * 1e3
                share = 4 * unit / forward["ours"], 11 * unit / both["ours"]
                ratio = best[0][0] / forward["ours"], best[1][0] / both["ours"]
                rows.append([direction, dim, length, forward["ours"], both["ours"], best[1][1], *ratio, *share])
                print(
                    f"{direction:9}{dim:>4}{length:>5}{forward['ours']:>8.3f}{both['ours']:>8.3f}  "
                    f"{best[0][1] + ' / ' + best[1][1]:22}{ratio[0]:>6.1f}{ratio[1]:>7.1f}   "
                    f"{share[0]:.0%} / {share[1]:.0%}",
                    flush=True,
                )
                del qkv, d_out, steps
    ratios = [row[7] for row in rows]
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"forward + backward over the best stock backend: geometric mean {mean:.1f}x, least {min(ratios):.1f}x")
    if os.environ.get("OUT"):
        with Path(os.environ["OUT"], "attention.csv").open("w", newline="") as file:
            names = "axis,dim,length,forward_ms,both_ms,best,x_forward,x_both,floor_forward,floor_both"
            csv.writer(file).writerows([names.split(","), *rows])


def check_shapes(seed: int, shapes: int) -> tuple[int, list[str], list[float]]:
    """Try random shapes of a few compiled variants; shapes tried, failures, and our error over the best backend's."""
    rng = random.Random(seed)
    tried, failures, worse = 0, [], []
    while tried < shapes:
        dtype = rng.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
        dim = rng.choice([16, 48, 64, 32, 128])
        size = 2 ** rng.randint(0, 8)
        across, mask = rng.random() < 0.5, rng.choice(["none", "none", "ragged", "padded", "hidden"])
        for _ in range(24):
            length = rng.randint(size // 2 + 1, size)
            case = (dtype, rng.choice([1, 2, 3]) if dim > 16 else 2, dim, length, across, mask)
            if tried % 50 == 0:
                case = (torch.bfloat16, 1, 16, rng.choice([1, 2, 4, 20]), False, "none")
            error = check_shape(rng, *case, rows=4_000_000 if tried % 50 == 0 else None)
            tried += 1
            if isinstance(error, str):
                failures.append(f"{case}: {error}")
            elif error is not None:
                worse.append(error)
            if tried == shapes:
                break
    return tried, failures, worse


def check_shape(
    rng: random.Random, dtype: torch.dtype, heads: int, dim: int, length: int, across: bool, mask: str, rows: int | None
) -> str | float | None:
    """What is wrong, or our error over the best backend's; None where a rule sends the shape to the stock path."""
    torch.manual_seed(rng.randrange(2**31))
    windows, other = rng.randint(1, 6), rng.randint(1, 9)
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
    if not short_axis.suits(qkv, heads, length):
        return None
    axis = "channels" if across else "time"
    d_out = torch.randn(total, other, heads * dim, device="cuda").to(dtype)
    if layout.real_R is not None:
        d_out = d_out.masked_fill(~layout.real_R[:, None, None], 0)

    def run(x: Tensor, backend: SDPBackend | None) -> tuple[Tensor, Tensor]:
        if backend is None:
            out = attend(x, layout, axis, heads, keys)
        else:
            with sdpa_kernel(backend), short_axis.use("stock"):
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
        found = tuple(torch.cat([x[:50], x[-50:]]) for x in found)
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
    return max((a / b for a, b in zip(ours, best, strict=True) if b > 1e-7 and a > 1e-7), default=1.0)


def _error(found: Tensor, exact: Tensor) -> float:
    size = exact.norm().item()
    return (found.double() - exact).norm().item() / size if size else found.double().norm().item()


def correctness(shapes: int, workers: int) -> None:
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        share = -(-shapes // workers)
        parts = list(pool.map(check_shapes, range(workers), [share] * workers))
    failures = [failure for part in parts for failure in part[1]]
    worse = sorted(error for part in parts for error in part[2])
    print(f"{sum(part[0] for part in parts)} shapes, {len(worse)} by the kernels, {len(failures)} failures")
    for failure in failures[:10]:
        print(f"  {failure}")
    if worse:
        marks = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}
        text = ", ".join(f"{name} {worse[int(q * (len(worse) - 1))]:.2f}" for name, q in marks.items())
        print(f"  error over the best stock backend's: {text}, most {worse[-1]:.2f}")


def main() -> None:
    short_axis.choose("auto")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="*", default=[16, 48, 64])
    parser.add_argument("--axes", type=int, nargs="*", default=[1, 2, 4, 8, 16, 19, 20, 24, 32, 36, 48, 64])
    parser.add_argument("--directions", nargs="*", default=["time", "channels"])
    parser.add_argument("--tokens", type=int, default=1024 * 640, help="tokens at head dimension 16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", type=int, default=0, help="check so many random shapes instead")
    parser.add_argument("--workers", type=int, default=12)
    args = parser.parse_args()
    if args.shapes:
        correctness(args.shapes, args.workers)
    else:
        speed(args.dims, args.axes, args.directions, args.tokens, args.rounds)


if __name__ == "__main__":
    main()
