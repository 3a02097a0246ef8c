"""torch's own attention, called in a way that avoids known bugs of its CUDA kernels (docs/paper.md lists them)."""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

MOST_SEQUENCES = 16_384
"""The most sequences of one call on CUDA, where torch's kernels fail for many sequences.

They fail beyond 65,535 sequences, and flash attention's backward pass from about 21,800 on (docs/paper.md).
"""


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
    """Return the largest number of sequences for one call of torch's kernels."""
    return MOST_SEQUENCES if device.type == "cuda" else 2**31


def _masked_kernels(q: Tensor) -> contextlib.AbstractContextManager[object]:
    """Exclude cuDNN, the default on Hopper: its masked backward pass can return NaN silently (pytorch #196678)."""
    if not q.is_cuda:
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
