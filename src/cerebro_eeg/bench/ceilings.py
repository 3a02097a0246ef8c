"""Ceilings: what this machine does at best, measured before anything is compared with it."""

from collections.abc import Sequence

import torch

from cerebro_eeg.bench.clock import kernel_clock, take_turns

ROUNDS = 7


def gemm_rate(device: torch.device, dtype: torch.dtype, sizes: Sequence[int]) -> float:
    """FLOP/s of the best of these square products."""
    rates = []
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        found = take_turns({"gemm": lambda a=a, b=b: a @ b}, ROUNDS, kernel_clock(device))  # type: ignore[misc]
        rates.append(2 * size**3 / found.timings["gemm"].seconds)
    return max(rates)


def products_rate(device: torch.device, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int]]) -> float:
    """FLOP/s of these products (rows, inputs, outputs) one after the other, as layers with a bias compute them."""
    layers = [
        (torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype), torch.zeros(n))
        for m, k, n in shapes
    ]
    layers = [(x, w, b.to(device, dtype)) for x, w, b in layers]

    def run() -> None:
        for x, w, b in layers:
            torch.nn.functional.linear(x, w, b)

    with torch.no_grad():
        found = take_turns({"products": run}, 3 * ROUNDS, kernel_clock(device))
    return sum(2 * m * k * n for m, k, n in shapes) / found.timings["products"].seconds


def copy_rate(device: torch.device, size: int) -> float:
    """Bytes read and written in a second by a copy of ``size`` bytes."""
    a = torch.ones(size // 2, device=device, dtype=torch.bfloat16)
    b = torch.empty_like(a)
    found = take_turns({"copy": lambda: b.copy_(a)}, ROUNDS, kernel_clock(device), repeats=3)
    return 2 * a.nbytes / found.timings["copy"].seconds


def in_flops(rate: float) -> str:
    """7.4e14 -> '740 TFLOP/s'."""
    return f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOP/s"
