"""The attention between the channels of a window, as numbers: softmax(q k' / sqrt(E)), written out.

The kernels of ``fast`` never hold these weights. Here a layer's queries and keys are computed from the tokens that it
is given, and the softmax by its formula, in single precision or better. No hook is set and no kernel is replaced.

Legend: **B** windows, **C** and **D** channels (query and key), **N** patches, **H** heads, **E** head dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model.attention import AxisAttention, BottleneckAttention, TwoAxisAttention
from cerebro_eeg.model.encoder import Encoder, Tokens
from cerebro_eeg.model.readouts import tokens_after


def channel_layers(encoder: Encoder) -> tuple[int, ...]:
    """Return the layers that attend across channels, counted from 1."""
    attentions: list[Any] = [block.attention for block in encoder.blocks]
    return tuple(layer for layer, attention in enumerate(attentions, 1) if _across(attention))


def _across(attention: nn.Module) -> bool:
    if isinstance(attention, AxisAttention):
        return attention.axis in ("channels", "all")
    return isinstance(attention, TwoAxisAttention | BottleneckAttention)


def channel_attention(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """Return for each layer the attention of channel C to channel D, (B, H, C, D), as a mean over the patches.

    Each row over D sums to 1. Where a layer attends to all tokens, the weights of all patches of a channel are added.
    The windows must have equally many channels.
    """
    known = channel_layers(encoder)
    wrong = [layer for layer in layers if layer not in known]
    if wrong:
        raise ConfigError(
            f"layer {wrong[0]} does not attend across channels; choose from {', '.join(map(str, known)) or 'none'}"
        )
    if batch.layout.slot_R is not None or batch.layout.real_R is not None:
        raise InputError("the windows have different channels; ask for the attention of one montage at a time")
    before = tokens_after(encoder, batch, sorted({layer - 1 for layer in layers} - {0}))
    patches = encoder.cut(batch)
    before[0] = Tokens(encoder.tokens(patches), patches.layout)
    return [_weights(encoder.blocks[layer - 1], before[layer - 1]) for layer in layers]


def _weights(block: Any, tokens: Tokens) -> Tensor:
    x_RND, attention = tokens.x_RND, block.attention
    y_RND = block.norm1(x_RND) if block.pre else x_RND
    qkv = tokens.layout.grid(attention.qkv(y_RND)).unflatten(-1, (3, attention.heads, -1))
    qkv = qkv.to(torch.promote_types(qkv.dtype, torch.float32))
    q_BCNHE, k_BCNHE, _ = qkv.unbind(3)
    scale = q_BCNHE.shape[-1] ** -0.5
    if isinstance(attention, BottleneckAttention):
        scores_BHCD = torch.einsum("bche,bdhe->bhcd", q_BCNHE.mean(2), k_BCNHE.mean(2))
        return (scores_BHCD * scale).softmax(-1)
    if isinstance(attention, AxisAttention) and attention.axis == "all":
        scores = torch.einsum("bcnhe,bdmhe->bhcndm", q_BCNHE, k_BCNHE) * scale
        return scores.flatten(-2).softmax(-1).unflatten(-1, scores.shape[-2:]).sum(-1).mean(3)
    scores_BNHCD = torch.einsum("bcnhe,bdnhe->bnhcd", q_BCNHE, k_BCNHE) * scale
    return scores_BNHCD.softmax(-1).mean(1)
