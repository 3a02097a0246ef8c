"""Read-outs: what a head reads of a window. The paper's is the mean of the last tokens; the others keep more.

Mean pooling throws away what separates many brain states: which channel is loud, in which band, together with which
other channel. A read-out has one or several parts, each a function from a window to features:

=============  =======================================================================================================
part           features of a window
=============  =======================================================================================================
``mean``       mean of the last tokens: the paper's pooling
``moments``    mean and standard deviation over all tokens, after several blocks
``attention``  weighted means of the last tokens: four queries say how much each token counts
``channels``   mean over time of every channel's tokens, after the middle block
``covariance`` log covariance of the channels in groups of the tokens' principal components, after the middle block
``amplitude``  log standard deviation of every channel, relative to the recording
``power``      log power of every channel in frequency bands, relative to the recording; no encoder
``tangent``    log covariance of the channels in frequency bands, relative to the recording; no encoder
``spectrum``   log power of every channel in bins of 1 Hz from 1 to 45 Hz, relative to the recording; no encoder
``narrow``     log covariance of the channels in 15 bands of 3 Hz, relative to the recording; no encoder
``bands``      log covariance of the channels in 12 learned bands, relative to the recording; no encoder
=============  =======================================================================================================

All parts but the first three need the same channels in every window, in one order. They find them by their electrodes.
Features are brought to mean 0 and to equal variance per part before the head, by what ``fit`` saw in training.

Legend: **B** windows, **R** rows, **C** channels of the read-out, **T** samples, **F** frequency bins, **N** patches,
**D** width, **K** components, **Q** queries, **P** features.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from cerebro_eeg import fast
from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import ModelConfig, ReadoutConfig
from cerebro_eeg.errors import InputError
from cerebro_eeg.fast import Residual
from cerebro_eeg.model.bands import (
    FINE_EDGES,
    LEARNED_EDGES,
    NARROW,
    TINY,
    band_covariances,
    learned_bands,
    log_triangle,
    shrunk,
    upper,
)
from cerebro_eeg.model.encoder import Encoder, Tokens
from cerebro_eeg.model.patches import loudness

GROUPS = ((0, 2), (2, 4), (4, 8), (8, 16), (16, 32))
"""Principal components of tokens that share a covariance: each group holds as many as all before it."""
QUERIES = 4
"""Queries of ``attention``; each gives a weighted mean of its own."""
_COARSE = {"power", "tangent"}
"""Parts that read the covariances in the bands of the config."""
_FINE = {"spectrum", "narrow", "bands"}
"""Parts that read the covariances in bins of 1 Hz."""


class Readout(nn.Module):
    """The features that a head reads of each window, and their standardisation."""

    shift_P: Tensor
    scale_P: Tensor
    centre_D: Tensor
    components_DK: Tensor

    def __init__(self, config: ReadoutConfig, model: ModelConfig) -> None:
        super().__init__()
        self.config, self.model = config, model
        self.register_buffer("shift_P", torch.zeros(width_of(config, model)))
        self.register_buffer("scale_P", torch.ones(width_of(config, model)))
        if "covariance" in config.parts:
            self.register_buffer("centre_D", torch.zeros(model.width))
            self.register_buffer("components_DK", torch.eye(model.width)[:, : components(model)])
        if "attention" in config.parts:
            self.query_QD = nn.Parameter(torch.zeros(QUERIES, model.width))
        self.bands = learned_bands() if "bands" in config.parts else None
        self._ids = _pairs(config.channels)

    def forward(self, batch: Batch, encoder: Encoder, noise_K2B: Tensor | None = None) -> Tensor:
        """Return the standardised features (B, P) of a batch."""
        return (self.raw(batch, encoder, noise_K2B) - self.shift_P) * self.scale_P

    def raw(self, batch: Batch, encoder: Encoder, noise_K2B: Tensor | None = None) -> Tensor:
        """Return the features (B, P) as they are, part after part."""
        layers = tokens_after(encoder, batch, self.layers(), noise_K2B) if self.layers() else {}
        return self.read(batch, layers)

    def read(self, batch: Batch, layers: Mapping[int, Tokens]) -> Tensor:
        """Return the same features from the tokens of its layers, which several read-outs can share."""
        grid = _FixedGrid(batch, self._ids, self.config.channels) if self.config.channels else None
        kind = batch.signal_RT.device.type
        found: list[Tensor] = []
        with torch.autocast(kind, enabled=False):
            coarse = self._covariances(grid, self.config.bands) if _COARSE & set(self.config.parts) else None
            fine = self._covariances(grid, FINE_EDGES) if _FINE & set(self.config.parts) else None
            for part in self.config.parts:
                found.append(self._part(part, grid, layers, fine if part in _FINE else coarse))
        like = self.shift_P.dtype
        return torch.cat([features_BP.to(like) for features_BP in found], 1)

    @property
    def needs_scale(self) -> bool:
        """Whether it reads the scale of the recording."""
        return bool(({"amplitude"} | _COARSE | _FINE) & set(self.config.parts))

    @property
    def waits(self) -> bool:
        """Whether it makes the host wait for the device: it compares the channels of every batch with its own."""
        return bool(self.config.channels)

    def cross_spectra(self, batch: Batch) -> Tensor:
        """Return the covariances of the channels in bins of 1 Hz, which ``bands`` reads, as triangles (B, F, P)."""
        grid = _FixedGrid(batch, self._ids, self.config.channels)
        with torch.autocast(batch.signal_RT.device.type, enabled=False):
            return upper(self._covariances(grid, FINE_EDGES))

    def _covariances(self, grid: "_FixedGrid | None", edges: Sequence[float]) -> Tensor:
        assert grid is not None
        return band_covariances(grid.signal(), edges, self.model.signal.sfreq)

    def layers(self) -> tuple[int, ...]:
        """Return the blocks after which tokens are read, in order; none if no part needs the encoder."""
        return layers_of(self.config, self.model.depth)

    def _part(
        self, part: str, grid: "_FixedGrid | None", layers: Mapping[int, Tokens], cross_BKCC: Tensor | None
    ) -> Tensor:
        depth = self.model.depth
        if part == "mean":
            return layers[depth].per_window().float()
        if part == "moments":
            return torch.cat([moments(layers[layer]) for layer in moment_layers(depth)], 1)
        if part == "attention":
            return attended(layers[depth], self.query_QD)
        assert grid is not None
        if part == "channels":
            return grid.pick(layers[middle(depth)].x_RND.mean(1)).float().flatten(1)
        if part == "covariance":
            token_BCND = grid.pick(layers[middle(depth)].x_RND).float()
            return self._covariance((token_BCND - self.centre_D) @ self.components_DK)
        if part == "amplitude":
            return grid.loudness()
        assert cross_BKCC is not None
        if part in ("power", "spectrum"):
            power_BCK = cross_BKCC.diagonal(dim1=-2, dim2=-1).transpose(1, 2)
            return (power_BCK + TINY).log().flatten(1)
        if part == "bands":
            assert self.bands is not None
            return self.bands.log_covariances(cross_BKCC)
        if part == "narrow":  # a sum over bins is the covariance in the band that they form
            cross_BKCC = cross_BKCC.unflatten(1, (-1, NARROW)).sum(2)
        return log_triangle(shrunk(cross_BKCC, self.config.shrinkage))

    def _covariance(self, token_BCNK: Tensor) -> Tensor:
        """Return the log covariances of channels over patches and components, for each group of components."""
        most = token_BCNK.shape[-1]
        found = []
        for first, last in GROUPS:
            if first < most:
                x_BCM = token_BCNK[..., first : min(last, most)].flatten(2)
                found.append(x_BCM @ x_BCM.transpose(1, 2) / x_BCM.shape[-1])
        return log_triangle(shrunk(torch.stack(found, 1), self.config.shrinkage))

    @torch.no_grad()
    def fit_components(self, tokens_MD: Tensor) -> None:
        """Set the principal components of tokens from a sample of training tokens, (M, D)."""
        self.centre_D.copy_(tokens_MD.double().mean(0))
        self.components_DK.copy_(principal_components(tokens_MD, self.components_DK.shape[1])[0])

    @torch.no_grad()
    def fit_queries(self, tokens_MD: Tensor) -> None:
        """Set the queries from a sample of last tokens, (M, D): both directions of the first principal components.

        Along each of them tokens vary by 1, so a token at one end counts a few times as much as one in the middle.
        """
        direction_DK, spread_K = principal_components(tokens_MD, QUERIES // 2)
        query_KD = (direction_DK / spread_K.clamp_min(1e-6)).T
        self.query_QD.copy_(torch.stack([query_KD, -query_KD], 1).flatten(0, 1))

    @torch.no_grad()
    def fit_scale(self, raw_BP: Tensor) -> None:
        """Set the standardisation from raw features of training windows; all parts get the same total variance."""
        raw = raw_BP.double()
        std_P = raw.std(0, correction=0)
        usable_P = std_P > 1e-6 * raw.abs().amax(0).clamp_min(1e-12)  # a constant feature says nothing
        count_P = torch.cat([torch.full((n,), float(n)) for n in widths(self.config, self.model)])
        scale_P = torch.where(usable_P, 1 / std_P.where(usable_P, torch.ones_like(std_P)), 0.0) / count_P.sqrt()
        self.shift_P.copy_(raw.mean(0))
        self.scale_P.copy_(scale_P)


def make_readout(config: ReadoutConfig, model: ModelConfig) -> Readout | None:
    """Return the read-out of a head; None for the paper's, the mean of the last tokens, which needs no numbers."""
    return None if config == ReadoutConfig() else Readout(config, model)


def principal_components(tokens_MD: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first principal components (D, K) of tokens and the deviation along each, both in float64."""
    values, vectors = torch.linalg.eigh(torch.cov(tokens_MD.double().T))
    chosen_DK = vectors.flip(1)[:, :count]
    largest = chosen_DK.abs().argmax(0)  # the sign of an eigenvector is arbitrary: its largest entry is positive
    sign_K = chosen_DK.gather(0, largest[None]).sign()
    return chosen_DK * sign_K, values.flip(0)[:count].clamp_min(0).sqrt()


# The sizes of parts


def middle(depth: int) -> int:
    """Return the block in the middle. Published probes find more in middle layers than in the last one."""
    return max(1, depth // 2)


def moment_layers(depth: int) -> tuple[int, ...]:
    """Return four blocks, evenly spaced, the last one among them; fewer for shallow encoders."""
    return tuple(sorted({max(1, round(depth * share / 4)) for share in (1, 2, 3, 4)}))


def components(model: ModelConfig) -> int:
    """Return the number of principal components of tokens that ``covariance`` uses."""
    return min(GROUPS[-1][1], model.width)


def layers_of(config: ReadoutConfig, depth: int) -> tuple[int, ...]:
    """Return the blocks after which a read-out needs tokens."""
    needed: set[int] = set()
    for part in config.parts:
        if part in ("mean", "attention"):
            needed.add(depth)
        elif part == "moments":
            needed |= set(moment_layers(depth))
        elif part in ("channels", "covariance"):
            needed.add(middle(depth))
    return tuple(sorted(needed))


def widths(config: ReadoutConfig, model: ModelConfig) -> list[int]:
    """Return the number of features of each part."""
    channels, bands, fine = len(config.channels), len(config.bands) - 1, len(FINE_EDGES) - 1
    triangle = channels * (channels + 1) // 2
    groups = sum(first < components(model) for first, _ in GROUPS)
    sizes: dict[str, int] = {
        "mean": model.width,
        "moments": 2 * model.width * len(moment_layers(model.depth)),
        "attention": QUERIES * model.width,
        "channels": channels * model.width,
        "covariance": groups * triangle,
        "amplitude": channels,
        "power": channels * bands,
        "tangent": bands * triangle,
        "spectrum": channels * fine,
        "narrow": fine // NARROW * triangle,
        "bands": (len(LEARNED_EDGES) - 1) * triangle,
    }
    return [sizes[part] for part in config.parts]


def width_of(config: ReadoutConfig, model: ModelConfig) -> int:
    """Return the number of features of a read-out."""
    return sum(widths(config, model))


# The encoder's tokens


def tokens_after(
    encoder: Encoder, batch: Batch, layers: Sequence[int], noise_K2B: Tensor | None = None
) -> dict[int, Tokens]:
    """Return the tokens after each of these blocks, in one pass. The last norm runs only after the last block."""
    patches = encoder.cut(batch)
    x_RND, layout = encoder.tokens(patches), patches.layout
    keep_K2B = encoder._keep(layout.windows, x_RND.device, noise_K2B)
    found: dict[int, Tokens] = {}
    for first, last in pairwise((0, *layers)):
        x_RND = _blocks(encoder, x_RND, layout, first, last, keep_K2B)
        whole = last == len(encoder.blocks)
        found[last] = Tokens(encoder.norm(x_RND) if whole else x_RND, layout)
    return found


def _blocks(encoder: Encoder, x_RND: Tensor, layout: Layout, first: int, last: int, keep_K2B: Tensor | None) -> Tensor:
    """Run some blocks, as ``Stack.run`` runs all."""
    blocks = list(encoder.blocks)[first:last]

    def finish(stream: Residual, its: Layout) -> Tensor:
        return encoder.finish(stream, its, False, False)

    if keep_K2B is None:
        done_RND = fast.run_blocks(blocks, None, x_RND, layout, encoder.dtype, False, finish)
        if done_RND is not None:
            return done_RND
    stream = Residual(x_RND)
    for number, block in enumerate(blocks, first):
        stream = block(stream, layout, None, None if keep_K2B is None else keep_K2B[number])
    return finish(stream, layout)


def moments(tokens: Tokens) -> Tensor:
    """Return mean and standard deviation over the tokens of every window, (B, 2 D)."""
    x_RND = tokens.x_RND.float()
    count_B1 = tokens.layout.counts(x_RND.device).clamp_min(1)[:, None].to(x_RND.dtype)
    mean_BD = tokens.layout.grid(x_RND.mean(1)).sum(1) / count_B1
    off_RND = x_RND - tokens.layout.per_row(mean_BD)[:, None]
    if tokens.layout.real_R is not None:
        off_RND = off_RND.masked_fill(~tokens.layout.real_R[:, None, None], 0)
    variance_BD = tokens.layout.grid(off_RND.square().mean(1)).sum(1) / count_B1
    return torch.cat([mean_BD, (variance_BD + 1e-12).sqrt()], 1)


def attended(tokens: Tokens, query_QD: Tensor) -> Tensor:
    """Return a mean over the tokens of every window for each query, (B, Q D).

    A token's weight is the softmax, over the window, of its product with the query. So queries of zeros give the mean.
    """
    token_BCND = tokens.layout.grid(tokens.x_RND).to(query_QD.dtype)
    score_BCNQ = token_BCND @ query_QD.T
    if (present_BC := tokens.layout.present_BC) is not None:
        score_BCNQ = score_BCNQ.masked_fill(~present_BC[..., None, None], torch.finfo(score_BCNQ.dtype).min)
    weight_BMQ = score_BCNQ.flatten(1, 2).softmax(1)
    return (weight_BMQ.transpose(1, 2) @ token_BCND.flatten(1, 2)).flatten(1)


# The channels of the read-out


class _FixedGrid:
    """The rows of a batch as (B, C), in the read-out's order of channels."""

    def __init__(self, batch: Batch, ids_C2: Tensor, names: Sequence[str]) -> None:
        layout, device = batch.layout, batch.signal_RT.device
        given_BW2 = layout.grid(batch.channels_R2)
        same_BCW = (given_BW2[:, None] == ids_C2.to(device)[None, :, None]).all(-1)
        if not torch.compiler.is_compiling() and not (
            device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        ):
            found_BC = same_BCW.any(-1)
            if not bool(found_BC.all()):
                absent = [name for name, known in zip(names, found_BC.all(0).tolist(), strict=True) if not known]
                raise InputError(
                    f"{len(absent)} of the {len(names)} channels that the head reads are missing ({_listed(absent)}); "
                    "give recordings that have them, or train a head that takes any channels"
                )
        place_BC = same_BCW.to(torch.uint8).argmax(-1)
        flat_BC = place_BC + torch.arange(layout.windows, device=device)[:, None] * layout.width
        if layout.slot_R is not None:  # from the place in the grid to the row
            row_of = torch.zeros(layout.windows * layout.width, dtype=torch.int64, device=device)
            row_of[layout.slot_R] = torch.arange(len(layout.slot_R), device=device)
            flat_BC = row_of[flat_BC]
        self._rows_BC, self._batch = flat_BC, batch

    def pick(self, x_R: Tensor) -> Tensor:
        """Return rows (R, ...) as (B, C, ...)."""
        return x_R[self._rows_BC]

    def _scale(self) -> Tensor:
        scale_R = self._batch.scale_R
        if scale_R is None:
            raise InputError(
                "this read-out needs the scale of the recording in microvolts; pass scale= (see robust_scale)"
            )
        return scale_R.float().clamp_min(1e-6)

    def signal(self) -> Tensor:
        """Return the signal in at least float32, divided by the scale of its recording, (B, C, T)."""
        signal_BCT = self.pick(self._batch.signal_RT)
        signal_BCT = signal_BCT.to(torch.promote_types(signal_BCT.dtype, torch.float32))
        return signal_BCT / self.pick(self._scale())[..., None]

    def loudness(self) -> Tensor:
        """Return the log standard deviation of every channel relative to its recording, (B, C)."""
        signal_RT = self._batch.signal_RT
        signal_RT = signal_RT.to(torch.promote_types(signal_RT.dtype, torch.float32))
        return self.pick(loudness(signal_RT, self._scale()))


def fixed_signal(batch: Batch, channels: Sequence[str]) -> Tensor:
    """Return the signal of named channels, divided by the scale of its recording, (B, C, T)."""
    return _FixedGrid(batch, _pairs(channels), channels).signal()


def _pairs(channels: Sequence[str]) -> Tensor:
    """Return the electrode ids of channels, (C, 2)."""
    return torch.tensor([Channel(*name.split("-")).ids for name in channels], dtype=torch.int64).reshape(-1, 2)


def common_channels(montages: Iterable[Sequence[str]], ids: Callable[[tuple[str, ...]], np.ndarray]) -> tuple[str, ...]:
    """Return the channels that all montages have, in the order of the first, by the electrodes that they are read as.

    ``ids`` returns the electrodes of a montage's channels; 0, 0 leaves one out. A name that stands for two channels of
    one montage is left out.
    """
    named = [_names(ids(tuple(montage))) for montage in montages]
    if not named:
        return ()
    once = [{name for name in names if name and names.count(name) == 1} for names in named]
    return tuple(name for name in named[0] if all(name in of for of in once))


def _names(ids: np.ndarray) -> list[str]:
    """Return the name of every pair of electrode ids; empty for 0, 0."""
    from cerebro_eeg.channels.electrodes import VOCABULARY

    return ["-".join(VOCABULARY[number - 1] for number in pair if number) for pair in ids.tolist()]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
