"""Ceilings: the best that this machine can do, measured before anything is compared with it.

The roofline of a training step adds up its products, each as fast as it runs alone, and one pass over memory for
everything between two products. Norms with their additions and attention along a short axis are bound by memory.
GELU runs inside the products and costs only what it stores; sums for biases count as free. A kernel that fuses a
product with its norm could be faster than this roofline.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cerebro_eeg.bench.clock import Call, kernel_clock, take_turns
from cerebro_eeg.config import ModelConfig

ROUNDS = 7
SECONDS = 1.0
"""The time for which a GPU has to sustain a rate: after a pause its clock may be higher than in hours of training."""


@dataclass(frozen=True)
class Gemm:
    """A square product, which takes turns with the work that is compared with it."""

    library: str
    size: int
    call: Call

    @property
    def flops(self) -> int:
        return 2 * self.size**3


def kept_up(gemm: Gemm, device: torch.device) -> float:
    """Return the FLOP/s of a product in the second half of ``SECONDS`` without a pause."""
    clock = kernel_clock(device)
    repeats = max(1, round(SECONDS / 2 / clock(gemm.call, 1)))
    clock(gemm.call, repeats)
    return gemm.flops / clock(gemm.call, repeats)


def best_gemm(device: torch.device, dtype: torch.dtype, sizes: Sequence[int]) -> tuple[Gemm, float]:
    """Return the fastest of these square products, on a CPU in float32 also by oneDNN, and its FLOP/s."""
    found: list[tuple[Gemm, float]] = []
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        calls: dict[str, Call] = {"torch's product": functools.partial(torch.mm, a, b)}
        if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
            calls["oneDNN"] = functools.partial(torch.ops.mkldnn._linear_pointwise, a, b, None, "none", [], "")
        turns = take_turns(calls, ROUNDS, kernel_clock(device))
        gemms = [Gemm(name, size, calls[name]) for name in turns.timings]
        found += [(gemm, gemm.flops / turns.timings[gemm.library].seconds) for gemm in gemms]
    return max(found, key=lambda pair: pair[1])


def products_rate(device: torch.device, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int]]) -> float:
    """Return the FLOP/s of these products (rows, inputs, outputs) in a row, as layers with a bias compute them."""
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
    """Return the bytes per second that a copy of ``size`` bytes reads and writes."""
    a = torch.ones(max(1, size // 2), device=device, dtype=torch.bfloat16)
    b = torch.empty_like(a)
    found = take_turns({"copy": lambda: b.copy_(a)}, ROUNDS, kernel_clock(device), repeats=3)
    return 2 * a.nbytes / found.timings["copy"].seconds


def in_flops(rate: float) -> str:
    """Write a rate in words: 7.4e14 -> '740 TFLOP/s'."""
    return f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOP/s"


PRODUCT_ROUNDS = 5


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step that only faster products or fewer passes over memory could shorten."""

    products: float
    passes: float

    @property
    def seconds(self) -> float:
        return self.products + self.passes


def roofline(config: ModelConfig, tokens: int, device: torch.device, copy: float) -> Roofline:
    """Return the roofline of a step over this many tokens in bf16, where a copy moves ``copy`` bytes per second."""
    width, hidden, patch = config.width, config.hidden, config.patches.size
    block = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    seconds = config.depth * sum(products(tokens, *layer, device) for layer in block)
    seconds += products(tokens, patch, width, device, wanted=("forward", "weight")) + products(
        tokens, width, patch, device
    )
    return Roofline(seconds, config.depth * 2 * tokens * passed(width, hidden) / copy)


def passed(width: int, hidden: int) -> int:
    """Count the values per token that a block reads and writes between its products, forward and backward.

    Each of two norms reads both summands and writes their sum and its norm; backward it reads both gradients and the
    sum and writes one gradient. Attention reads q, k, v and writes its result; backward it reads these and the gradient
    and writes three gradients. GELU writes its slope and reads it again.
    """
    return 2 * (4 + 4) * width + (4 + 7) * width + (1 + 1) * hidden


def products(
    tokens: int,
    inputs: int,
    outputs: int,
    device: torch.device,
    wanted: tuple[str, ...] = ("forward", "input", "weight"),
) -> float:
    """Measure the seconds of a linear layer's product in bf16 and of the products for its gradients."""
    x, weight, d_out = (
        torch.randn(*shape, device=device, dtype=torch.bfloat16)
        for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs))
    )
    bias = torch.zeros(outputs, device=device, dtype=torch.bfloat16)
    calls: dict[str, Call] = {
        "forward": lambda: torch.nn.functional.linear(x, weight, bias),
        "input": lambda: d_out @ weight,
        "weight": lambda: d_out.T @ x,
    }
    turns = take_turns({name: calls[name] for name in wanted}, PRODUCT_ROUNDS, kernel_clock(device))
    return sum(timing.seconds for timing in turns.timings.values())
