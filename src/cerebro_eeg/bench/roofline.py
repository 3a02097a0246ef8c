"""A roofline of the training step: products as fast as they run alone, one pass over memory for all between them.

What is not a product is bound by memory: norms with their additions, and attention along a short axis. GELU happens
within products and costs no more than what it keeps; sums for biases are taken to cost nothing. A kernel that does a
product with its norm at once could be faster than this.
"""

from dataclasses import dataclass

import torch

from cerebro_eeg.bench.clock import Call, kernel_clock, take_turns
from cerebro_eeg.config import ModelConfig

ROUNDS = 5


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step that nothing but faster products or fewer passes could shorten."""

    products: float
    passes: float

    @property
    def seconds(self) -> float:
        return self.products + self.passes


def roofline(config: ModelConfig, tokens: int, device: torch.device, copy: float) -> Roofline:
    """For a step over so many tokens in bf16, where a copy moves ``copy`` bytes a second."""
    width, hidden, patch = config.width, config.hidden, config.patches.size
    block = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    seconds = config.depth * sum(products(tokens, *layer, device) for layer in block)
    seconds += products(tokens, patch, width, device, wanted=("forward", "weight")) + products(
        tokens, width, patch, device
    )
    return Roofline(seconds, config.depth * 2 * tokens * passed(width, hidden) / copy)


def passed(width: int, hidden: int) -> int:
    """Values of a token that a block reads and writes between its products, forward and backward.

    Two norms: both summands in, their sum and its norm out; both gradients and the sum in, one gradient out. Attention:
    q, k, v in and its result out; these and the gradient in, three gradients out. GELU: its slope out, and in again.
    """
    return 2 * (4 + 4) * width + (4 + 7) * width + (1 + 1) * hidden


def products(
    tokens: int,
    inputs: int,
    outputs: int,
    device: torch.device,
    wanted: tuple[str, ...] = ("forward", "input", "weight"),
) -> float:
    """Seconds of a linear layer's product in bf16 and of those for the gradients of its input and weight."""
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
    turns = take_turns({name: calls[name] for name in wanted}, ROUNDS, kernel_clock(device))
    return sum(timing.seconds for timing in turns.timings.values())
