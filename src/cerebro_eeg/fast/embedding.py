"""The first layer with masked patches, and the lookup of electrodes: two operations with slow default gradients.

Legend: **R** rows, **N** tokens of a row, **L** values in a patch, **D** width, **V** electrodes of the vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.fast import eligible


def masked_linear(
    layer: nn.Linear, values_RNL: Tensor, masked_RN: Tensor | None, mask_token_D: Tensor
) -> tuple[Tensor, torch.dtype] | None:
    """Return ``where(masked, mask_token, layer(values))`` and the product's precision; None if that is not faster.

    It is faster for a model compiled in mixed precision. Masked patches enter the product as zeros, so the gradient of
    the product needs no masked copy. Bias and [MASK] are expanded to one row per position. One pass then sums their
    gradients and that of the positions.
    """
    if masked_RN is None or not torch.compiler.is_compiling() or not _is_mixed(layer, values_RNL):
        return None
    masked_RN1, tokens = masked_RN[..., None], masked_RN.shape[1]
    x_RND = functional.linear(values_RNL.masked_fill(masked_RN1, 0), layer.weight)
    bias_D = torch.zeros_like(mask_token_D) if layer.bias is None else layer.bias
    instead_RND = torch.where(masked_RN1, mask_token_D.expand(tokens, -1), bias_D.expand(tokens, -1))
    return x_RND + instead_RND, x_RND.dtype


def _is_mixed(layer: nn.Linear, values_RNL: Tensor) -> bool:
    """Return whether the layer multiplies in half precision and has float32 weights."""
    return layer.weight.dtype == torch.float32 and eligible.half_on_cuda(values_RNL, layer, nn.Linear)


def row_difference(table_VD: Tensor, channels_R2: Tensor) -> Tensor:
    """Return ``table[channels[:, 0]] - table[channels[:, 1]]`` for a table whose row 0 is zero and stays zero."""
    if not torch.are_deterministic_algorithms_enabled():
        one_R, other_R = channels_R2.unbind(1)
        alone_R = other_R == 0
        # A channel without a second electrode looks its first electrode up twice. If all such channels looked up row
        # 0, their gradients, though zero, would be added to one row, one after the other.
        one_RD = functional.embedding(one_R, table_VD, padding_idx=0)
        other_RD = functional.embedding(torch.where(alone_R, one_R, other_R), table_VD, padding_idx=0)
        return one_RD - other_RD.masked_fill(alone_R[:, None], 0)
    # Torch's deterministic gradient of an embedding adds equal ids one after the other. A product with a matrix of
    # zeros and ones gives the same rows and is fast (benchmarks/README.md).
    chosen_R2V = channels_R2[..., None] == torch.arange(1, len(table_VD), device=table_VD.device)
    weight_RV = chosen_R2V[:, 0].to(table_VD.dtype) - chosen_R2V[:, 1].to(table_VD.dtype)
    with torch.autocast(table_VD.device.type, enabled=False):
        return weight_RV @ table_VD[1:]
