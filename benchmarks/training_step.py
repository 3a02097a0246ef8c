"""A training step with the kernels, with stock attention, and with standard attention over all tokens at once.

    python benchmarks/training_step.py [--presets small base large]

32 channels x 20 patches, 1024 / 256 / 256 windows: forward and backward of the masked objective under bf16 autocast
and a step of fused AdamW; blocks are compiled as the engine does it. The three take turns in every round; medians. The
share of the GEMM peak counts 3 times the forward FLOPs of `costs.py` over a large bf16 product measured first. With OUT
set, a table goes to $OUT/training_step.csv.
"""

import argparse
import csv
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import preset
from cerebro_eeg.costs import cost
from cerebro_eeg.model import short_axis
from cerebro_eeg.model.masked import MaskedCerebro

WINDOWS = {"tiny": 1024, "small": 1024, "base": 256, "large": 256}


def make_step(name: str, rival: str, batch: Batch, dynamic: bool) -> Callable[[], None]:
    config = preset(name).model
    if rival == "standard":
        config = dataclasses.replace(config, attention="standard")
    torch.manual_seed(0)
    model = MaskedCerebro(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for block in model.encoder.blocks:
        block.compile(dynamic=dynamic)

    def step() -> None:
        with short_axis.use("stock" if rival == "stock" else "auto"):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def gemm_peak() -> float:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    a @ b
    return 2 * 8192**3 / statistics.median(timed({"gemm": lambda: a @ b}, 20)["gemm"]) * 1e3


def main() -> None:
    short_axis.choose("auto")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="*", default=["small", "base", "large"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--static", action="store_true", help="compile for these shapes only")
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64  # three rivals of one block are no sign of a mistake
    peak = gemm_peak()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, GEMM {peak / 1e12:.0f} TFLOP/s", flush=True)
    rows = []
    for name in args.presets:
        windows, config = WINDOWS[name], preset(name).model
        ids = torch.tensor([(i + 1, 0) for i in range(32)])
        batch = Batch.dense(torch.randn(windows, 32, config.window, device="cuda") * 20, ids)
        steps = {}
        for rival in ("kernel", "stock", "standard"):
            start = time.perf_counter()
            steps[rival] = make_step(name, rival, batch, not args.static)
            steps[rival]()
            steps[rival]()
            torch.cuda.synchronize()
            print(f"  {name}, {rival}: ready after {time.perf_counter() - start:.0f} s", flush=True)
        times = timed(steps, args.rounds)
        ms = {rival: statistics.median(found) for rival, found in times.items()}
        spread = max((max(found) - min(found)) / ms[rival] for rival, found in times.items())
        share = 3 * windows * cost(config, 32, config.window).flops / (ms["kernel"] / 1e3) / peak
        rows.append([name, *ms.values(), ms["stock"] / ms["kernel"], ms["standard"] / ms["kernel"], share, spread])
        print(
            f"{name:6} kernel {ms['kernel']:.1f} ms, stock {ms['stock']:.1f} ({ms['stock'] / ms['kernel']:.2f}x), "
            f"standard {ms['standard']:.1f} ({ms['standard'] / ms['kernel']:.2f}x), {share:.0%} of the GEMM peak, "
            f"spread {spread:.1%}",
            flush=True,
        )
        del steps
        torch.cuda.empty_cache()
    if os.environ.get("OUT"):
        with Path(os.environ["OUT"], "training_step.csv").open("w", newline="") as file:
            names = "preset,kernel_ms,stock_ms,standard_ms,x_stock,x_standard,gemm_share,spread"
            csv.writer(file).writerows([names.split(","), *rows])


if __name__ == "__main__":
    main()
