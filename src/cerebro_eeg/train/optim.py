"""Optimizer and schedule: AdamW with the paper's decay groups, layer-wise decay, and a cosine after a warm-up."""

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a cosine, which a run may leave before its end."""

    peak: float
    floor: float
    warmup: int
    """Steps of the warm-up."""
    span: int
    """Steps until the cosine reaches the floor, with the warm-up."""

    def __call__(self, step: int) -> float:
        """Return the learning rate of step ``step``, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        share = min(1.0, (step - self.warmup) / max(1, self.span - self.warmup))
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class ParameterGroup:
    """Names of parameters that share a weight decay and a factor on the learning rate."""

    names: tuple[str, ...]
    decay: float
    factor: float = 1.0


def group_parameters(
    module: nn.Module, decay: float, layer_decay: float = 1.0, depth: int = 0
) -> tuple[ParameterGroup, ...]:
    """Return the trainable parameters of a module in groups.

    Weight matrices decay; biases, norms, tables and tokens do not. With ``layer_decay`` a parameter learns more slowly
    the lower its layer is. The embeddings are layer 0, block k is layer k, and all above the blocks learns at full
    rate.
    """
    matrices = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    found: dict[tuple[float, float], list[str]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            factor = layer_decay ** (depth + 1 - layer_of(name, depth))
            found.setdefault((decay if name in matrices else 0.0, factor), []).append(name)
    return tuple(ParameterGroup(tuple(names), *key) for key, names in found.items())


def layer_of(name: str, depth: int) -> int:
    """Return the layer of a parameter: 0 for embeddings, k for block k, depth + 1 for all above."""
    parts = name.split(".")
    if parts[0] != "encoder":
        return depth + 1
    if parts[1] == "blocks":
        return int(parts[2]) + 1
    return depth + 1 if parts[1] == "norm" else 0


class UncompiledAdamW(torch.optim.AdamW):
    """AdamW without a wrapper of torch's methods that imports torch's compiler, which takes a second or more.

    The wrapper hides optimizers from ``torch.compile``. Steps of ours are never compiled as a whole.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def adamw(
    module: nn.Module,
    groups: Iterable[ParameterGroup],
    betas: tuple[float, float],
    *,
    fused: bool | None = None,
    capturable: bool = False,
) -> torch.optim.AdamW:
    """Return AdamW over the groups; the loop sets their learning rates at every step. A CUDA graph asks for both."""
    parameters = dict(module.named_parameters())
    listed = [
        {"params": [parameters[name] for name in g.names], "weight_decay": g.decay, "factor": g.factor} for g in groups
    ]
    return UncompiledAdamW(listed, lr=0.0, betas=betas, fused=fused, capturable=capturable)
