"""Low-rank adapters (LoRA): few new weights learn beside the frozen weights of an encoder, and are merged at the end.

A linear layer with an adapter computes ``W x + b + s B (A x)``. A has few rows, B has as few columns, and B is zero at
the start, so a new adapter changes nothing. A merged layer has the weight ``W + s B A`` and no adapter. Checkpoints
hold merged weights only, so nothing that reads them knows of adapters (Hu et al., arXiv:2106.09685).

``fast`` computes layers that are exactly ``nn.Linear``. An adapted layer has a class of its own, so it runs itself.
"""

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.cerebro import Cerebro

ALPHA = 16.0
"""The factor s of an adapter is this number divided by the rank, so that other ranks need no other learning rate."""
_A, _B = ".lora_a", ".lora_b"


class LoraLinear(nn.Linear):
    """A linear layer whose own weight and bias are frozen, with a low-rank adapter that learns."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.requires_grad_(False)
        bound = 1 / math.sqrt(layer.in_features)
        a = torch.empty(rank, layer.in_features, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(a.to(layer.weight))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))

    def forward(self, input: Tensor) -> Tensor:
        low = functional.linear(functional.linear(input, self.lora_a), self.lora_b)
        return super().forward(input) + _factor(self.lora_a) * low

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={len(self.lora_a)}"


def adapted(model: Cerebro, rank: int, seed: int = 0) -> Cerebro:
    """Return a copy of a model in which only the head and new adapters learn.

    Every linear layer of the encoder's blocks has an adapter. The seed draws their first weights.
    """
    width = model.config.width
    if not 1 <= rank <= width:
        raise ConfigError(f"lora is {rank}; expected a rank from 1 to {width}, the width of these weights")
    found, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in found.encoder.parameters():
        parameter.requires_grad_(False)
    for block in found.encoder.blocks:
        owners = [(part, name, layer) for part in block.modules() for name, layer in part.named_children()]
        for part, name, layer in owners:
            if type(layer) is nn.Linear:
                setattr(part, name, LoraLinear(layer, rank, generator))
    return found


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model with every adapter added to its weight; without adapters, the same tensors."""
    found = {name: value for name, value in tensors.items() if not name.endswith((_A, _B))}
    for name, a in tensors.items():
        if name.endswith(_A):
            layer = name.removesuffix(_A)
            weight = f"{layer}.weight"
            found[weight] = found[weight] + _factor(a) * (tensors[layer + _B] @ a)
    return found


def _factor(a: Tensor) -> float:
    return ALPHA / len(a)
