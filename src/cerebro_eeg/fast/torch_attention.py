"""torch's own attention, steered around faults of its CUDA kernels (docs/paper.md has the list)."""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

MOST_SEQUENCES = 16_384
"""CUDA kernels of torch fail beyond 65,535 sequences, and the flash backward pass from about 21,800 on."""


def sdpa(q_PHSE: Tensor, k_PHSE: Tensor, v_PHSV: Tensor, mask_P11S: Tensor | None = None) -> Tensor:
    """Return ``softmax(q k' / sqrt(E)) v`` for each sequence and head."""
    most = most_sequences(q_PHSE.device)
    if q_PHSE.shape[0] > most:
        parts = [slice(start, start + most) for start in range(0, q_PHSE.shape[0], most)]
        masks = [None if mask_P11S is None else mask_P11S[p] for p in parts]
        return torch.cat([sdpa(q_PHSE[p], k_PHSE[p], v_PHSV[p], m) for p, m in zip(parts, masks, strict=True)])
    if mask_P11S is None:
        return functional.scaled_dot_product_attention(q_PHSE, k_PHSE, v_PHSV)
    with _masked_kernels(q_PHSE):
        return functional.scaled_dot_product_attention(q_PHSE, k_PHSE, v_PHSV, attn_mask=mask_P11S)


def most_sequences(device: torch.device) -> int:
    """Return how many sequences one call of torch's kernels may get."""
    return MOST_SEQUENCES if device.type == "cuda" else 2**31


def _masked_kernels(q: Tensor) -> contextlib.AbstractContextManager[object]:
    """Keep cuDNN out: its masked backward pass, the default on Hopper, returns NaN (pytorch #196678)."""
    if not q.is_cuda:
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
