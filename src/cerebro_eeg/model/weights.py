"""Initial weights, and the interpolation of the table of positions for longer windows.

Legend: **P** rows of the table, **N** tokens of a row, **D** width.
"""

import torch
from torch import Tensor, nn


def resize_positions(table_PD: Tensor, tokens: int, bands: int = 1) -> Tensor:
    """Return the first ``tokens`` rows of a table. For more rows, interpolate along time in each frequency band."""
    if tokens <= len(table_PD):
        return table_PD[:tokens]
    # Linear interpolation with half-pixel centres, written as a product, whose backward pass is deterministic.
    old, new, device = len(table_PD) // bands, tokens // bands, table_PD.device
    # MPS has no float64.
    exact = torch.float32 if device.type == "mps" else torch.float64
    place_N = ((torch.arange(new, dtype=exact, device=device) + 0.5) * (old / new) - 0.5).clamp(0, old - 1)
    weight_NP = (1 - (place_N[:, None] - torch.arange(old, device=device)).abs()).clamp_min(0).to(table_PD.dtype)
    return torch.einsum("np,pfd->nfd", weight_NP, table_PD.unflatten(0, (-1, bands))).flatten(0, 1)


@torch.no_grad()
def start_linear_layers(module: nn.Module) -> None:
    """Initialise all linear layers of a module with Xavier-uniform weights and zero biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def start_tables(encoder: nn.Module, std: float) -> None:
    """Initialise tables and tokens from a normal distribution, truncated at two standard deviations.

    Row 0 of the electrodes is zero: it belongs to pads and to channels without a second electrode.
    """
    if encoder.get_parameter("electrodes").is_meta:  # there are shapes alone; torch 2.11 imports its compiler for this
        return
    for parameter in encoder.parameters(recurse=False):
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(encoder.get_parameter("electrodes")[0])
