"""The encoder: patches become tokens with a position and an electrode, and a stack of blocks mixes them.

Legend: **R** rows (channels of all windows), **N** tokens of a row, **L** values in a patch, **D** width,
**B** windows, **K** blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import ModelConfig, Preset, model_config
from cerebro_eeg.fast import cpu, half, mlp
from cerebro_eeg.fast.compile import Parted
from cerebro_eeg.fast.inference_cpu import LeanBlock, Part, Step, lean
from cerebro_eeg.fast.inference_cuda import Grid, LeanHalf, finish, lean_half, make_grid
from cerebro_eeg.fast.norm import Late, Owed, add_norm, joined, suits
from cerebro_eeg.model.attention import KINDS, comes_apart
from cerebro_eeg.model.patches import Patches, make_patches
from cerebro_eeg.schema import require


@dataclass(frozen=True)
class Tokens:
    """What the encoder gives: a token for every patch, and which rows form a window."""

    x_RND: Tensor
    layout: Layout

    def per_channel(self) -> Tensor:
        """(B, C, D): mean over time, zeros for pads."""
        return self.layout.grid(self.x_RND.mean(1))

    def per_window(self) -> Tensor:
        """(B, D): mean over all real tokens of a window."""
        total_BD = self.per_channel().sum(1)
        return total_BD / self.layout.counts(total_BD.device).clamp_min(1)[:, None].to(total_BD.dtype)


class Mlp(nn.Module):
    """The feed-forward part of a block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return mlp.mlp(x, self.up, self.down)


class Block(nn.Module):
    """Attention and MLP, each with a residual connection and a LayerNorm.

    With pre-norm a block leaves its last addition to the one after it: there it is one pass over memory with the norm,
    also where every block is compiled on its own.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm1 = nn.LayerNorm(config.width, config.norm_eps)
        self.attention = KINDS[config.attention](config, layer)
        self.norm2 = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = Mlp(config)

    def forward(
        self,
        x_RND: Tensor,
        late: Late | None,
        layout: Layout,
        keys_RN: Tensor | None = None,
        keep_2B: Tensor | None = None,
    ) -> tuple[Tensor, Late | None]:
        """Tokens, and what has yet to be added to them, as they came in and as they go out.

        ``keys_RN``: tokens that may be looked at. ``keep_2B``: what drop path multiplies the two branches with.
        """
        if not self.pre:
            x_RND = self.norm1(x_RND + self._attended(x_RND, layout, keys_RN, keep_2B))
            return self.norm2(x_RND + _scaled(self.mlp(x_RND), layout, keep_2B, 1)), None
        x_RND, y_RND = add_norm(x_RND, late, self.norm1)
        x_RND, y_RND = self._between(x_RND, y_RND, layout, keys_RN, keep_2B)
        return x_RND, self._last(y_RND, layout, keep_2B)

    def _between(
        self, x_RND: Tensor, y_RND: Tensor, layout: Layout, keys_RN: Tensor | None, keep_2B: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x + attention of y, and the second norm of it; apart, so that nothing else of it lives as long as the MLP."""
        if keep_2B is not None or layout.real_R is not None or not self._leaves_bias(x_RND):
            return add_norm(x_RND, Late(self._attended(y_RND, layout, keys_RN, keep_2B)), self.norm2)
        out, mixed_RND = self.attention.out, self.attention.mixed(y_RND, layout, keys_RN)
        late_RND = functional.linear(mixed_RND.to(x_RND.dtype), out.weight.to(x_RND.dtype))
        return add_norm(x_RND, Late(late_RND, out.bias), self.norm2)

    def _last(self, y_RND: Tensor, layout: Layout, keep_2B: Tensor | None) -> Late:
        """What the MLP adds. The norm behind it is the next block's and takes the bias as the second norm does."""
        if keep_2B is not None or not self._lends_bias(y_RND):
            return Late(_scaled(self.mlp(y_RND), layout, keep_2B, 1))
        return Late(mlp.without_bias(y_RND, self.mlp.up, self.mlp.down), self.mlp.down.bias)

    def _attended(self, x_RND: Tensor, layout: Layout, keys_RN: Tensor | None, keep_2B: Tensor | None) -> Tensor:
        return _scaled(_without_pads(self.attention(x_RND, layout, keys_RN), layout), layout, keep_2B, 0)

    def _leaves_bias(self, x_RND: Tensor) -> bool:
        """Whether the norm behind attention takes its output without the bias: it sums up that gradient on the way."""
        as_product = half.dtype_of(x_RND) == x_RND.dtype  # what comes from attention is then like x
        return as_product and suits(x_RND, x_RND, self.norm2) and comes_apart(self.attention)

    def _lends_bias(self, y_RND: Tensor) -> bool:
        """Whether the MLP's bias may be used behind this block.

        Not where somebody may move weights to and fro: shards and offloaded ones live no longer than their block's
        call. They watch the block, are subclasses of it or put another forward in place.
        """
        if type(self) is not Block or "forward" in self.__dict__ or cpu.watched(self):
            return False
        whole = half.is_plain(self.mlp, Mlp) and half.dtype_of(y_RND) == y_RND.dtype
        return whole and mlp.suits(y_RND, self.mlp.up, self.mlp.down)


def _scaled(branch_RND: Tensor, layout: Layout, keep_2B: Tensor | None, part: int) -> Tensor:
    if keep_2B is None:
        return branch_RND
    return branch_RND * layout.per_row(keep_2B[part]).to(branch_RND.dtype)[:, None, None]


def _without_pads(x_RND: Tensor, layout: Layout) -> Tensor:
    """The outputs of padded queries are zero."""
    return x_RND if layout.real_R is None else x_RND.masked_fill(~layout.real_R[:, None, None], 0)


_compiled: WeakSet[object] = WeakSet()
"""What ``compile_parts`` has made of blocks."""


def _lean(block: nn.Module) -> LeanBlock | None:
    """The block without its modules, for the CPU; None where it is not simply what this file makes."""
    parts = _parts_of(block) if cpu.is_untouched(block, Block) else None
    return None if parts is None else lean(*parts)


def _lean_half(block: Step, grid: Grid) -> LeanHalf | None:
    """The same for CUDA, in half precision; nobody but :meth:`Stack.compile_parts` may have compiled the block."""
    if type(block) is not Block or "forward" in block.__dict__ or cpu.watched(block):
        return None
    if block._backward_hooks or block._backward_pre_hooks:
        return None
    compiled = block.__dict__.get("_compiled_call_impl")
    parts = _parts_of(block) if compiled is None or compiled in _compiled else None
    return None if parts is None else lean_half(grid, *parts)


def _parts_of(block: Block) -> tuple[Part, Part, Part, Part, Part] | None:
    """Norm, attention, norm and linear layers of a block with pre-norm whose MLP nobody has touched."""
    parts = block._modules
    last = parts["mlp"]
    if not block.pre or not half.is_bare(last, Mlp):
        return None
    return parts["norm1"], parts["attention"], parts["norm2"], last._modules["up"], last._modules["down"]


class Stack(Parted):
    """Blocks one after the other and, with pre-norm, a last LayerNorm: the encoder, and the ViTMAE decoder.

    Drop path is decided here, for all blocks at once, so that a block is a function of tensors alone: it compiles once
    for all of them, and computing it again (gradient checkpointing) gives the same.
    """

    parts: tuple[str, ...] = ("finish",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.depth + 1))
        self.norm = nn.LayerNorm(config.width, config.norm_eps) if config.norm == "pre" else nn.Identity()
        self.drop_path = (0.0,) * config.depth
        self.recompute = False
        """Compute blocks again in the backward pass instead of keeping what they need for it."""
        self.wide = False
        """Under autocast to bfloat16, carry the tokens from block to block in float32: twice the memory to move."""

    def run(
        self,
        x_RND: Tensor,
        layout: Layout,
        keys_RN: Tensor | None = None,
        noise_K2B: Tensor | None = None,
        layer: int | None = None,
        carried: bool = False,
    ) -> Tensor:
        """Run the blocks, or only the first ``layer`` of them; the last norm belongs to the last block.

        ``noise_K2B`` are the uniform numbers that drop path compares with its rates; drawn here when it needs some.
        Where a linear layer comes next, tokens may be ``carried`` to it in the precision they have between blocks.
        """
        tokens = [x_RND]
        del x_RND
        return self._run(tokens, layout, keys_RN, noise_K2B, layer, carried)

    def _run(
        self,
        tokens: list[Tensor],
        layout: Layout,
        keys_RN: Tensor | None = None,
        noise_K2B: Tensor | None = None,
        layer: int | None = None,
        carried: bool = False,
    ) -> Tensor:
        """The same for tokens in a list, which is emptied: what a caller holds lives as long as all blocks run."""
        x_RND = tokens.pop()
        keep_K2B = self._keep(layout.windows, x_RND.device, noise_K2B)
        x_RND = x_RND.to(self.dtype) if self.wide else x_RND
        blocks = list(self.blocks)[:layer]
        whole = keys_RN is None and keep_K2B is None
        if whole and cpu.suits(x_RND) and not cpu.watched(self):
            steps = [_lean(block) or block for block in blocks]
            return cpu.by_pieces(lambda piece_RND, its: self._through(steps, [piece_RND], its), x_RND, layout)
        grid = make_grid(x_RND, layout) if whole else None
        tokens.append(x_RND)
        del x_RND
        return self._through(blocks, tokens, layout, keys_RN, keep_K2B, carried, grid)

    def _through(
        self,
        blocks: Sequence[Step],
        tokens: list[Tensor],
        layout: Layout,
        keys_RN: Tensor | None = None,
        keep_K2B: Tensor | None = None,
        carried: bool = False,
        grid: Grid | None = None,
    ) -> Tensor:
        """Takes the tokens out of the list, too.

        With a ``grid`` blocks that are simply what this file makes run without their modules. What one of them has made
        nobody else has seen, and the next one overwrites it; anything else may be held by somebody and stays.
        """
        x_RND = tokens.pop()
        late: Late | Owed | None = None
        for i, block in enumerate(blocks):
            bare = None
            if grid is not None and (isinstance(late, Owed) or grid.takes(x_RND, late)):
                bare = _lean_half(block, grid)
            if bare is not None:
                x_RND, late = bare(x_RND, late)
                continue
            if isinstance(late, Owed):
                x_RND, late = joined(x_RND, late), None
            keep_2B = None if keep_K2B is None else keep_K2B[i]
            if self.recompute and torch.is_grad_enabled():
                x_RND, late = checkpoint(block, x_RND, late, layout, keys_RN, keep_2B, use_reentrant=False)
            else:
                x_RND, late = block(x_RND, late, layout, keys_RN, keep_2B)
        last = len(blocks) == len(self.blocks)
        if isinstance(late, Owed):
            dtype = x_RND.dtype if carried else self.dtype
            done_RND = finish(grid, x_RND, late, self.norm, dtype) if grid is not None and last else None
            if done_RND is not None:
                return done_RND
            x_RND, late = joined(x_RND, late), None
        return self.finish(x_RND, late, layout, last, carried)

    def finish(self, x_RND: Tensor, late: Late | None, layout: Layout, last: bool, carried: bool) -> Tensor:
        """What comes after the blocks: their last addition, the last norm behind all of them, and no pads.

        Tokens come out in the precision of the weights, or as they were ``carried``.
        """
        dtype = x_RND.dtype if carried else self.dtype
        x_RND = add_norm(x_RND, late, self.norm)[1] if last else joined(x_RND, late)
        return _without_pads(x_RND, layout).to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, whatever became of single layers."""
        return next(self.parameters()).dtype

    def compile_parts(self, dynamic: bool | None = True) -> None:
        """The blocks, too."""
        super().compile_parts(dynamic)
        for block in self.blocks:
            block.compile(dynamic=dynamic)
            if "_compiled_call_impl" in block.__dict__:  # not in that of a wrapper
                _compiled.add(block._compiled_call_impl)

    def set_drop_path(self, rate: float, schedule: Literal["linear", "constant"] = "linear") -> None:
        """Set the chance of skipping a branch: rising linearly from 0 in the first block, or the same in all."""
        require(0 <= rate < 1, f"drop path is {rate}; it must lie between 0 and 1")
        require(schedule in ("linear", "constant"), f"schedule is {schedule!r}; choose linear or constant")
        last = max(1, len(self.blocks) - 1)
        self.drop_path = tuple(rate * i / last if schedule == "linear" else rate for i in range(len(self.blocks)))

    def _keep(self, windows: int, device: torch.device, noise_K2B: Tensor | None) -> Tensor | None:
        """Skip a branch for a random share of the windows, and raise the others to the same mean."""
        if not self.training or not any(self.drop_path):
            return None
        if noise_K2B is None:
            noise_K2B = torch.rand(len(self.blocks), 2, windows, device=device)
        rate_K11 = torch.tensor(self.drop_path, device=device)[:, None, None]
        return (noise_K2B >= rate_K11) / (1 - rate_K11)


class Encoder(Stack):
    """CEReBrO's encoder, without an objective and without a head."""

    parts: tuple[str, ...] = ("finish", "tokens")

    def __init__(self, config: ModelConfig | Preset | str) -> None:
        config = model_config(config)
        super().__init__(config)
        width = config.width
        self.embed = nn.Linear(config.patches.size, width, bias=config.bias)
        self.positions = nn.Parameter(torch.empty(config.positions, width))
        # Row 0 stays zero: it is the pad's row and the second electrode of a channel that has none.
        self.electrodes = nn.Parameter(torch.empty(len(VOCABULARY) + 1, width))
        self.mask_token = nn.Parameter(torch.empty(width))
        # Nothing ever looks at a pad, so its token has no gradient; it is kept out of what DDP waits for.
        self.pad_token = nn.Parameter(torch.empty(width), requires_grad=False)
        self.phase = nn.Parameter(torch.empty(width)) if config.patches.phase != "none" else None
        self.amplitude = nn.Linear(1, width, bias=config.bias) if config.amplitude else None
        if config.patches.kind == "waveform":  # torch does not compile complex numbers
            self.parts = (*self.parts, "cut")
        start_linear_layers(self)
        start_tables(self)

    def forward(
        self,
        batch: Batch,
        masked_RN: Tensor | None = None,
        noise_K2B: Tensor | None = None,
        layer: int | None = None,
    ) -> Tokens:
        """Tokens of a batch. Those in ``masked_RN`` are replaced by the [MASK] token."""
        patches = self.cut(batch)
        tokens, layout = [self.tokens(patches, masked_RN)], patches.layout
        del patches  # neither they nor the first tokens live as long as the blocks run
        return Tokens(self._run(tokens, layout, None, noise_K2B, layer), layout)

    def cut(self, batch: Batch) -> Patches:
        """Normalised patches of a batch."""
        self.settle(batch.signal_RT, 1)
        return make_patches(batch, self.config)

    def tokens(self, patches: Patches, masked_RN: Tensor | None = None) -> Tensor:
        """Embedded patches with position and electrode; [MASK] and [PAD] replace the patch, not its place."""
        self.settle(patches.values_RNL, 1, 2)
        x_RND, dtype = self._embedded(patches.values_RNL.to(self.dtype), masked_RN)
        x_RND = self.with_pads(x_RND, patches.layout) + self.place(patches)
        if self.amplitude is not None and patches.loudness_R is not None:
            x_RND = x_RND + self.amplitude(patches.loudness_R[:, None].to(self.dtype))[:, None]
        return x_RND.to(dtype) if dtype == torch.bfloat16 and not self.wide else x_RND

    def _embedded(self, values_RNL: Tensor, masked_RN: Tensor | None) -> tuple[Tensor, torch.dtype]:
        """The first layer's product, with [MASK] in place of what is hidden, and the precision of the product.

        Compiled in mixed precision, zeros go into the product for hidden patches: its gradient then needs no copy with
        zeros. Bias and [MASK] are there once for each position, so that one pass sums up both and the positions.
        """
        if masked_RN is not None and torch.compiler.is_compiling() and self._is_mixed(values_RNL):
            hidden_RN1, tokens = masked_RN[..., None], masked_RN.shape[1]
            x_RND = functional.linear(values_RNL.masked_fill(hidden_RN1, 0), self.embed.weight)
            bias_D = torch.zeros_like(self.mask_token) if self.embed.bias is None else self.embed.bias
            instead_RND = torch.where(hidden_RN1, self.mask_token.expand(tokens, -1), bias_D.expand(tokens, -1))
            return x_RND + instead_RND, x_RND.dtype
        x_RND = cpu.linear(self.embed, values_RNL)
        if masked_RN is not None:
            x_RND = torch.where(masked_RN[..., None], self.mask_token.to(x_RND.dtype), x_RND)
        return x_RND, x_RND.dtype

    def _is_mixed(self, values_RNL: Tensor) -> bool:
        """Whether the first layer computes in half precision what is added to it in float32."""
        return self.dtype == torch.float32 and half.suits(values_RNL, self.embed, nn.Linear)

    def with_pads(self, x_RND: Tensor, layout: Layout) -> Tensor:
        """The [PAD] token in every padded row."""
        if layout.real_R is None:
            return x_RND
        return torch.where(layout.real_R[:, None, None], x_RND, self.pad_token.to(x_RND.dtype))

    def place(self, patches: Patches) -> Tensor:
        """What is added to a token for where it is and from which electrode."""
        position_ND = resize_positions(self.positions, patches.values_RNL.shape[1], self.config.patches.bands)
        row_RD = electrode_rows(self.electrodes, patches.channels_R2)
        if self.phase is not None and patches.phase_R is not None:
            row_RD = row_RD + self.phase * patches.phase_R[:, None]
        return position_ND + row_RD[:, None]


def electrode_rows(table_VD: Tensor, channels_R2: Tensor) -> Tensor:
    """The row of each channel's electrode, minus that of the electrode subtracted from it; row 0 is nobody's."""
    if not torch.are_deterministic_algorithms_enabled():
        one_R, other_R = channels_R2.unbind(1)
        alone_R = other_R == 0
        # Channels of one electrode look it up twice: if all looked up row 0, all their gradients, though zero, would be
        # added in one place, one after the other.
        one_RD = functional.embedding(one_R, table_VD, padding_idx=0)
        other_RD = functional.embedding(torch.where(alone_R, one_R, other_R), table_VD, padding_idx=0)
        return one_RD - other_RD.masked_fill(alone_R[:, None], 0)
    # The lookup's deterministic gradient on CUDA adds up the rows of an electrode one after the other; a product with
    # ones and zeros selects the same numbers (benchmarks/README.md has the times).
    chosen_R2V = channels_R2[..., None] == torch.arange(1, len(table_VD), device=table_VD.device)
    weight_RV = chosen_R2V[:, 0].to(table_VD.dtype) - chosen_R2V[:, 1].to(table_VD.dtype)
    with torch.autocast(table_VD.device.type, enabled=False):
        return weight_RV @ table_VD[1:]


def resize_positions(table_PD: Tensor, tokens: int, bands: int = 1) -> Tensor:
    """The first ``tokens`` rows, or more rows interpolated along time, for each frequency band apart."""
    if tokens <= len(table_PD):
        return table_PD[:tokens]
    # Two weights a row, as linear interpolation with half-pixel centres; a product, so deterministic backward, too.
    old, new = len(table_PD) // bands, tokens // bands
    place_N = ((torch.arange(new, dtype=torch.float64) + 0.5) * (old / new) - 0.5).clamp(0, old - 1)
    weight_NP = (1 - (place_N[:, None] - torch.arange(old)).abs()).clamp_min(0).to(table_PD.device, table_PD.dtype)
    return torch.einsum("np,pfd->nfd", weight_NP, table_PD.unflatten(0, (-1, bands))).flatten(0, 1)


@torch.no_grad()
def start_linear_layers(module: nn.Module) -> None:
    """Xavier-uniform weights and zero biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def start_tables(encoder: Encoder) -> None:
    """Truncated normal tables and tokens, cut off at two standard deviations; row 0 of the electrodes is zero."""
    std = encoder.config.init_std
    for parameter in encoder.parameters(recurse=False):
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
    encoder.electrodes[0] = 0
