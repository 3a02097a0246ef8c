"""The encoder: patches become tokens with a position and an electrode, and a stack of blocks mixes them.

The name of a tensor ends with its axes: ``x_RND`` has the shape (R, N, D).

Legend: **R** rows (channels of all windows), **N** tokens of a row, **L** values in a patch, **D** width,
**B** windows, **K** blocks.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cerebro_eeg import fast
from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import ModelConfig, Preset, model_config
from cerebro_eeg.fast import BlockParts, Compilable, Residual
from cerebro_eeg.model.attention import ATTENTIONS, KINDS, AxisAttention, attend
from cerebro_eeg.model.patches import Patches, make_patches
from cerebro_eeg.model.weights import resize_positions, start_linear_layers, start_tables
from cerebro_eeg.schema import require


class Tokens(NamedTuple):
    """The output of the encoder, a token for every patch and the layout of its rows; torchinfo reads such tuples."""

    x_RND: Tensor
    layout: Layout

    def per_channel(self) -> Tensor:
        """Return the mean over time of every channel, (B, C, D); zeros for pads."""
        return self.layout.grid(self.x_RND.mean(1))

    def per_window(self) -> Tensor:
        """Return the mean over all real tokens of every window, (B, D)."""
        total_BD = self.per_channel().sum(1)
        return total_BD / self.layout.counts(total_BD.device).clamp_min(1)[:, None].to(total_BD.dtype)


class Mlp(nn.Module):
    """The feed-forward part of a block: ``down(gelu(up(x)))``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return fast.mlp(x, self.up, self.down)

    def unbiased(self, x: Tensor) -> Tensor:
        """Return the same without the bias of ``down``, which the following norm then adds."""
        return fast.mlp(x, self.up, self.down, bias=False)


class Block(nn.Module):
    """A Transformer block: attention and MLP, each with a residual connection and a LayerNorm.

    With pre-norm, the default::

        x = x + attention(norm1(x))
        x = x + mlp(norm2(x))

    With post-norm::

        x = norm1(x + attention(x))
        x = norm2(x + mlp(x))

    With pre-norm the following norm does each addition, and the first norm of the next block does the last one.
    ``fast.Residual`` adds and normalises in one pass over memory. A block therefore takes and returns a ``Residual``,
    whose ``total()`` is the textbook's ``x``.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm1 = nn.LayerNorm(config.width, config.norm_eps)
        self.attention = KINDS[config.attention](config, layer)
        self.norm2 = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self, stream: Residual, layout: Layout, keys_RN: Tensor | None = None, keep_2B: Tensor | None = None
    ) -> Residual:
        """Run the block. ``keys_RN`` marks tokens that may be attended to, ``keep_2B`` has drop path's two factors."""
        factors = (None, None) if keep_2B is None else (layout.per_row(keep_2B[0]), layout.per_row(keep_2B[1]))
        if not self.pre:
            x_RND = stream.total()
            x_RND = self.norm1(x_RND + self._attended(x_RND, layout, keys_RN, factors[0]))
            return Residual(self.norm2(x_RND + _scaled(self.mlp(x_RND), factors[1])))
        stream, y_RND = stream.norm(self.norm1)  # y = norm1(x)
        stream = self._plus_attention(stream, y_RND, layout, keys_RN, factors[0])  # x = x + attention(y)
        stream, y_RND = stream.norm(self.norm2)  # y = norm2(x)
        return self._plus_mlp(stream, y_RND, factors[1])  # x = x + mlp(y)

    def _plus_attention(
        self, stream: Residual, y_RND: Tensor, layout: Layout, keys_RN: Tensor | None, factor_R: Tensor | None
    ) -> Residual:
        """Return x + attention(y). ``norm2`` may add the last bias and apply drop path, unless pads come in between."""
        attention = self.attention
        if layout.real_R is None and stream.norm_adds_bias(self.norm2, attention, ATTENTIONS, attention.out):
            return stream.plus(attention.unbiased(y_RND, layout, keys_RN), attention.out.bias, factor_R)
        return stream.plus(self._attended(y_RND, layout, keys_RN, factor_R))

    def _plus_mlp(self, stream: Residual, y_RND: Tensor, factor_R: Tensor | None) -> Residual:
        """Return x + mlp(y). The first norm of the next block may add the last bias and apply drop path."""
        mlp = self.mlp
        if fast.next_block_adds_bias(y_RND, (self, Block), (mlp, Mlp), mlp.up, mlp.down):
            return stream.plus(mlp.unbiased(y_RND), mlp.down.bias, factor_R)
        return stream.plus(_scaled(mlp(y_RND), factor_R))

    def _attended(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None, factor_R: Tensor | None) -> Tensor:
        return _scaled(_without_pads(self.attention(x_RND, layout, keys_RN), layout), factor_R)

    def parts(self) -> BlockParts | None:
        """Return the layers for ``fast.run_blocks``; None for post-norm and other kinds of attention or MLP."""
        own = self._modules  # quicker than attributes, and every forward pass asks
        attention, mlp = own["attention"], own["mlp"]
        if not self.pre or not isinstance(attention, AxisAttention) or not isinstance(mlp, Mlp):
            return None
        owners, inner, its = ((self, Block), (attention, AxisAttention), (mlp, Mlp)), attention._modules, mlp._modules
        along = attend, attention.axis, attention.heads
        return BlockParts(
            owners, own["norm1"], inner["qkv"], *along, inner["out"], own["norm2"], its["up"], its["down"]
        )


def _scaled(branch_RND: Tensor, factor_R: Tensor | None) -> Tensor:
    """Multiply a branch with the factor that drop path has for each row."""
    return branch_RND if factor_R is None else branch_RND * factor_R.to(branch_RND.dtype)[:, None, None]


def _without_pads(x_RND: Tensor, layout: Layout) -> Tensor:
    """Set padded rows to zero. They may hold NaN, so they are filled, not multiplied with zero."""
    return x_RND if layout.real_R is None else x_RND.masked_fill(~layout.real_R[:, None, None], 0)


class Stack(Compilable):
    """A sequence of blocks and, with pre-norm, a last LayerNorm; the base of the encoder and of the ViTMAE decoder.

    Drop path is decided here for all blocks, so that a block is a function of tensors alone. One compilation then
    serves all blocks, and gradient checkpointing repeats exactly the same computation.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.depth + 1))
        self.norm = nn.LayerNorm(config.width, config.norm_eps) if config.norm == "pre" else nn.Identity()
        self.drop_path = (0.0,) * config.depth
        self.recompute = False
        """Gradient checkpointing: compute blocks again in the backward pass instead of keeping their activations."""
        self.float32_residual = False
        """Under autocast to bfloat16, pass tokens from block to block in float32, which moves twice the memory."""

    def run(
        self,
        x_RND: Tensor,
        layout: Layout,
        keys_RN: Tensor | None = None,
        noise_K2B: Tensor | None = None,
        layer: int | None = None,
        carried: bool = False,
        own: bool = False,
    ) -> Tensor:
        """Run all blocks, or only the first ``layer`` of them. The last norm runs only after the last block.

        ``noise_K2B`` are the uniform numbers that drop path compares with its rates; None draws them. With ``carried``
        the result has the precision that tokens have between blocks, else that of the weights. With ``own`` the caller
        gives the tokens away, and they may be overwritten.
        """
        keep_K2B = self._keep(layout.windows, x_RND.device, noise_K2B)
        x_RND = x_RND.to(self.dtype) if self.float32_residual else x_RND
        blocks = list(self.blocks)[:layer]
        last = len(blocks) == len(self.blocks)
        if keys_RN is None and keep_K2B is None:
            dtype = x_RND.dtype if carried else self.dtype
            norm, finish = self.norm if last else None, lambda stream, its: self.finish(stream, its, last, carried)
            done_RND = fast.run_blocks(blocks, norm, x_RND, layout, dtype, own, finish)
            if done_RND is not None:
                return done_RND
        stream = Residual(x_RND)
        del x_RND  # the first tokens are free after the first block, unless the caller keeps them
        for i, block in enumerate(blocks):
            keep_2B = None if keep_K2B is None else keep_K2B[i]
            if self.recompute and torch.is_grad_enabled():
                stream = checkpoint(block, stream, layout, keys_RN, keep_2B, use_reentrant=False)
            else:
                stream = block(stream, layout, keys_RN, keep_2B)
        return self.finish(stream, layout, last, carried)

    def finish(self, stream: Residual, layout: Layout, last: bool, carried: bool) -> Tensor:
        """Add the last branch, apply the last norm if all blocks have run, and set pads to zero."""
        dtype = stream.x_RND.dtype if carried else self.dtype
        x_RND = stream.norm(self.norm)[1] if last else stream.total()
        return _without_pads(x_RND, layout).to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the first parameter, which stands for all weights; single layers may differ."""
        return next(self.parameters()).dtype

    def set_drop_path(self, rate: float, schedule: Literal["linear", "constant"] = "linear") -> None:
        """Set the probability of skipping a branch: the same in all blocks, or rising linearly from 0 to ``rate``."""
        require(0 <= rate < 1, f"drop path is {rate}; it must lie between 0 and 1")
        require(schedule in ("linear", "constant"), f"schedule is {schedule!r}; choose linear or constant")
        last = max(1, len(self.blocks) - 1)
        self.drop_path = tuple(rate * i / last if schedule == "linear" else rate for i in range(len(self.blocks)))

    def _keep(self, windows: int, device: torch.device, noise_K2B: Tensor | None) -> Tensor | None:
        """Return 0 for branches to skip and 1 / (1 - rate) for the others, (K, 2, B); None without drop path."""
        if not self.training or not any(self.drop_path):
            return None
        noise_K2B = torch.rand(len(self.blocks), 2, windows, device=device) if noise_K2B is None else noise_K2B
        rate_K11 = fast.constant(self.drop_path, device)[:, None, None]
        return (noise_K2B >= rate_K11) / (1 - rate_K11)


class Encoder(Stack):
    """CEReBrO's encoder, without an objective and without a head."""

    def __init__(self, config: ModelConfig | Preset | str) -> None:
        config = model_config(config)
        super().__init__(config)
        width = config.width
        self.embed = nn.Linear(config.patches.size, width, bias=config.bias)
        self.positions = nn.Parameter(torch.empty(config.positions, width))
        # Row 0 stays zero. Pads use it, and so does a channel without a second electrode.
        self.electrodes = nn.Parameter(torch.empty(len(VOCABULARY) + 1, width))
        self.mask_token = nn.Parameter(torch.empty(width))
        # No token attends to a pad, so the token of a pad gets no gradient, and DDP must not wait for one.
        self.pad_token = nn.Parameter(torch.empty(width), requires_grad=False)
        self.phase = nn.Parameter(torch.empty(width)) if config.patches.phase != "none" else None
        self.amplitude = nn.Linear(1, width, bias=config.bias) if config.amplitude else None
        start_linear_layers(self)
        start_tables(self, config.init_std)

    def forward(
        self,
        batch: Batch,
        masked_RN: Tensor | None = None,
        noise_K2B: Tensor | None = None,
        layer: int | None = None,
    ) -> Tokens:
        """Return the tokens of a batch. [MASK] replaces the patches that ``masked_RN`` marks."""
        x_RND, layout = self._start(batch, masked_RN)
        return Tokens(self.run(x_RND, layout, None, noise_K2B, layer, own=True), layout)

    def _start(self, batch: Batch, masked_RN: Tensor | None) -> tuple[Tensor, Layout]:
        """Return the first tokens and their layout. The memory of the patches is free afterwards."""
        patches = self.cut(batch)
        return self.tokens(patches, masked_RN), patches.layout

    def cut(self, batch: Batch) -> Patches:
        """Return the normalised patches of a batch."""
        return make_patches(batch, self.config)

    def tokens(self, patches: Patches, masked_RN: Tensor | None = None) -> Tensor:
        """Return patches, embedded, plus position and electrode. [MASK] and [PAD] replace only the embedded patch."""
        x_RND, dtype = self._embedded(patches.values_RNL.to(self.dtype), masked_RN)
        x_RND = self.with_pads(x_RND, patches.layout) + self.place(patches)
        if self.amplitude is not None and patches.loudness_R is not None:
            x_RND = x_RND + self.amplitude(patches.loudness_R[:, None].to(self.dtype))[:, None]
        return x_RND.to(dtype) if dtype == torch.bfloat16 and not self.float32_residual else x_RND

    def _embedded(self, values_RNL: Tensor, masked_RN: Tensor | None) -> tuple[Tensor, torch.dtype]:
        """Return the output of the first layer, with [MASK] for masked patches, and the precision of its product."""
        found = fast.masked_linear(self.embed, values_RNL, masked_RN, self.mask_token)
        if found is not None:
            return found
        x_RND = fast.linear(self.embed, values_RNL)
        if masked_RN is not None:
            x_RND = torch.where(masked_RN[..., None], self.mask_token.to(x_RND.dtype), x_RND)
        return x_RND, x_RND.dtype

    def with_pads(self, x_RND: Tensor, layout: Layout) -> Tensor:
        """Return the tokens with [PAD] in every padded row."""
        if layout.real_R is None:
            return x_RND
        return torch.where(layout.real_R[:, None, None], x_RND, self.pad_token.to(x_RND.dtype))

    def place(self, patches: Patches) -> Tensor:
        """Return the embeddings of position and electrode, which are added to every token."""
        position_ND = resize_positions(self.positions, patches.values_RNL.shape[1], self.config.patches.bands)
        # The embedding of a channel is its electrode minus the electrode subtracted from it (zeros if there is none).
        row_RD = fast.row_difference(self.electrodes, patches.channels_R2)
        if self.phase is not None and patches.phase_R is not None:
            row_RD = row_RD + self.phase * patches.phase_R[:, None]
        return position_ND + row_RD[:, None]
