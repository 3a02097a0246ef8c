"""WeightAverage: a moving average of the weights that learn, which is steadier than the weights of any one step.

The average is a part of the module that it averages, so the state of a run keeps it and a resume is exact.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_PART = "average"


class WeightAverage(nn.Module):
    """The exponential moving average of all parameters of a module that learn."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self.register_buffer(_inside(name), parameter.detach().clone())

    @torch.no_grad()
    def update(self, module: nn.Module, decay: float | None = None) -> None:
        """Move the average toward the present weights; a decay of 0 makes it equal to them."""
        share = 1 - (self.decay if decay is None else decay)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self.get_buffer(_inside(name)).lerp_(parameter, share)


def add_average(module: nn.Module, decay: float) -> None:
    """Give a module an average of its weights, which begins with the present ones."""
    module.add_module(_PART, WeightAverage(module, decay))


def average_of(module: nn.Module) -> WeightAverage | None:
    """Return the average of a module, or None if it has none."""
    found = module._modules.get(_PART)
    return found if isinstance(found, WeightAverage) else None


def averaged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a module with averages in place of weights; without averages, the same tensors."""
    found = {name: value for name, value in tensors.items() if not name.startswith(f"{_PART}.")}
    return {name: tensors.get(f"{_PART}.{_inside(name)}", value) for name, value in found.items()}


def _inside(name: str) -> str:
    """Return the name of a parameter as torch allows it for a buffer: without dots."""
    return name.replace(".", "/")
