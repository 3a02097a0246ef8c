"""The four kinds of attention on the token grid (channel x patch). They differ in the axis along which tokens attend.

Tokens come as (R, N, D): the rows of all windows, N tokens each. Along time each row is one sequence. Across channels,
the rows of a window at one patch are a sequence; over all tokens, the whole window is. The layout tells which rows form
a window. To add a kind, write its class and name it in ``KINDS``. ``fast`` takes over where it has faster code; the
formulas here are the reference.

Legend: **R** rows, **B** windows, **C** rows of a window, **N** tokens of a row, **D** width, **H** heads, **E**
head dimension, **S** length of the attended axis, **P** sequences attended at once.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg import fast
from cerebro_eeg.batch import Layout
from cerebro_eeg.config import AttentionKind, ModelConfig

Axis = Literal["channels", "time", "all"]


class Attention(nn.Module):
    """The base of all kinds: tokens attend to each other, and a linear layer projects the result."""

    out: nn.Linear

    def forward(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None = None) -> Tensor:
        """Return the attended tokens. ``keys_RN`` marks tokens that may be attended to; None for all but the pads."""
        return fast.linear(self.out, self.mixed(x_RND, layout, keys_RN))

    def unbiased(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None = None) -> Tensor:
        """Return the same without the bias of the projection, which the following norm then adds."""
        mixed_RND = self.mixed(x_RND, layout, keys_RN)
        return functional.linear(mixed_RND, self.out.weight.to(mixed_RND.dtype))

    def mixed(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None) -> Tensor:
        """Return the tokens before the projection, (R, N, D)."""
        raise NotImplementedError


class AxisAttention(Attention):
    """Multi-head self-attention along one axis of the grid, for alternating (Algorithm 1) and standard attention."""

    def __init__(self, config: ModelConfig, axis: Axis) -> None:
        super().__init__()
        self.axis = axis
        self.heads = config.heads
        # The true gradient of the key bias is zero, so Adam follows rounding noise there. Tests compare only its size.
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def mixed(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None) -> Tensor:
        return attend(fast.linear(self.qkv, x_RND, fused_gradient=True), layout, self.axis, self.heads, keys_RN)

    def extra_repr(self) -> str:
        return f"axis={self.axis}, heads={self.heads}"


class TwoAxisAttention(Attention):
    """Attention along both axes in every layer, each with its own q, k, v (Algorithm 2); their mean is projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.qkv_time = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def mixed(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None) -> Tensor:
        channels_RND = attend(
            fast.linear(self.qkv, x_RND, fused_gradient=True), layout, "channels", self.heads, keys_RN
        )
        time_RND = attend(fast.linear(self.qkv_time, x_RND, fused_gradient=True), layout, "time", self.heads, keys_RN)
        return (channels_RND + time_RND) / 2


class BottleneckAttention(Attention):
    """Algorithm 3 to the letter: attention of the channels' means over time, then of the patches' means over channels.

    The second attention averages copies of one value. Its output therefore does not depend on time, and its queries and
    keys get no gradient. The algorithm says so; docs/paper.md has the argument.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def mixed(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None) -> Tensor:
        q_RNHE, k_RNHE, v_RNHE = (
            fast.linear(self.qkv, x_RND, fused_gradient=True).unflatten(-1, (3, self.heads, -1)).unbind(2)
        )
        keep_RN = torch.ones(x_RND.shape[:2], dtype=torch.bool, device=x_RND.device) if keys_RN is None else keys_RN
        if layout.real_R is not None:
            keep_RN = keep_RN & layout.real_R[:, None]
        # Lines 3-4: mean over time, attention across channels.
        pooled = (_mean(t, 1, keep_RN) for t in (q_RNHE, k_RNHE, v_RNHE))
        q_BHCE, k_BHCE, v_BHCE = (layout.grid(t).transpose(1, 2) for t in pooled)
        keep_BCN = layout.grid(keep_RN)
        a_BHCE = scaled_dot_product(q_BHCE, k_BHCE, v_BHCE, keep_BCN.any(2))
        # Line 5: mean over channels. Lines 6-7: attention along time, with the same value at every time.
        q_BHNE, k_BHNE = (_mean(layout.grid(t), 1, keep_BCN).transpose(1, 2) for t in (q_RNHE, k_RNHE))
        tokens = x_RND.shape[1]
        v_BHNV = a_BHCE.flatten(2)[:, :, None].expand(-1, -1, tokens, -1)
        out_BHNV = scaled_dot_product(q_BHNE, k_BHNE, v_BHNV, keep_BCN.any(1))
        out_BCNHE = out_BHNV.unflatten(-1, (layout.width, a_BHCE.shape[-1])).permute(0, 3, 2, 1, 4)
        return layout.rows(out_BCNHE).flatten(2)


def make_alternating(config: ModelConfig, layer: int) -> Attention:
    """Make a layer of Algorithm 1: odd layers attend across channels, even ones along time (``first_axis`` swaps)."""
    odd = layer % 2 == 1
    return AxisAttention(config, "channels" if odd == (config.first_axis == "channels") else "time")


ATTENTIONS: tuple[type[Attention], ...] = AxisAttention, TwoAxisAttention, BottleneckAttention

# A kind of attention is a function of the config and of the number of the layer, counted from 1.
KINDS: Mapping[AttentionKind, Callable[[ModelConfig, int], Attention]] = {
    "alternating": make_alternating,
    "standard": lambda config, layer: AxisAttention(config, "all"),
    "two_axis": lambda config, layer: TwoAxisAttention(config),
    "bottleneck": lambda config, layer: BottleneckAttention(config),
}


def attend(qkv_RND: Tensor, layout: Layout, axis: Axis, heads: int, keys_RN: Tensor | None = None) -> Tensor:
    """Return multi-head attention along ``axis`` with packed q, k, v of width 3 D, as (R, N, D)."""
    found_RND = fast.attend(qkv_RND, layout, axis, heads, keys_RN)
    if found_RND is not None:
        return found_RND
    tokens = qkv_RND.shape[1]
    qkv_RN3HE = qkv_RND.unflatten(-1, (3, heads, -1))
    if axis == "time":  # a row is a sequence; a padded row attends only to itself, and the block sets it to zero
        q, k, v = qkv_RN3HE.permute(2, 0, 3, 1, 4)
        return scaled_dot_product(q, k, v, keys_RN).transpose(1, 2).flatten(2)
    keep_BCN = _keys(layout, keys_RN, tokens)
    qkv = layout.grid(qkv_RN3HE)  # (B, C, N, 3, H, E)
    if axis == "channels":
        q, k, v = qkv.permute(3, 0, 2, 4, 1, 5).flatten(1, 2)  # (B N, H, C, E)
        keep_PS = None if keep_BCN is None else keep_BCN.transpose(1, 2).flatten(0, 1)
        out = scaled_dot_product(q, k, v, keep_PS)
        return layout.rows(out.unflatten(0, (layout.windows, tokens)).permute(0, 3, 1, 2, 4)).flatten(2)
    q, k, v = qkv.flatten(1, 2).permute(2, 0, 3, 1, 4)  # (B, H, C N, E)
    keep_PS = None if keep_BCN is None else keep_BCN.flatten(1)
    out = scaled_dot_product(q, k, v, keep_PS)
    return layout.rows(out.transpose(1, 2).unflatten(1, (layout.width, tokens))).flatten(2)


def scaled_dot_product(q_PHSE: Tensor, k_PHSE: Tensor, v_PHSV: Tensor, keep_PS: Tensor | None) -> Tensor:
    """Return softmax(q k' / sqrt(E)) v for each sequence and head; zeros for a sequence without any key."""
    if keep_PS is None:
        return fast.sdpa(q_PHSE, k_PHSE, v_PHSV)
    # A token that may attend to nothing must return zeros with zero gradient; a plain softmax would compute 0/0. Such
    # a sequence attends to all of its tokens instead, and the result is replaced by zeros.
    some_P1 = keep_PS.any(1, keepdim=True)
    out = fast.sdpa(q_PHSE, k_PHSE, v_PHSV, (keep_PS | ~some_P1)[:, None, None])
    return out.masked_fill(~some_P1[:, :, None, None], 0)


def _keys(layout: Layout, keys_RN: Tensor | None, tokens: int) -> Tensor | None:
    """Return (B, C, N), true for tokens that exist, are not pads and may be attended to; None if all of them are."""
    present_BC = layout.present_BC
    if keys_RN is None:
        return None if present_BC is None else present_BC[..., None].expand(-1, -1, tokens)
    keys_BCN = layout.grid(keys_RN)  # false where a ragged window has no row
    return keys_BCN if layout.real_R is None or present_BC is None else keys_BCN & present_BC[..., None]


def _mean(x: Tensor, axis: int, keep: Tensor) -> Tensor:
    """Return the mean along ``axis`` where ``keep`` (the leading axes of x) is true, and zero where it never is."""
    weight = keep.to(x.dtype).reshape(*keep.shape, *([1] * (x.dim() - keep.dim())))
    return (x * weight).sum(axis) / weight.sum(axis).clamp_min(1)
