"""Further targets of pre-training: band amplitudes around masked patches, and statistics of the whole window.

The squared error of a waveform is mostly that of its slow waves, because they are the largest. Two further targets give
every frequency band the same weight. None of them is the paper's, and each is off by default:

=============  =========================================================================================================
target         what is predicted, from what
=============  =========================================================================================================
``spectrum``   log amplitude in each band of the second around a masked patch, from its token
``power``      log power in each band of a channel over the whole window, from the mean of its tokens
``coupling``   correlation in each band of two channels over the window, as a product of vectors made from these means
=============  =========================================================================================================

Targets are those of the full window after its normalisation, nothing masked. They are standardised per band, by what
``fit`` saw of the training windows before the first step. The layers here are left aside after pre-training.

Legend: **B** windows, **C** rows of a window, **R** rows, **T** samples, **S** samples of a second, **N** patches,
**D** width, **K** bands, **F** factors.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.costs import FACTORS
from cerebro_eeg.model.bands import TINY, band_bins, band_covariances
from cerebro_eeg.model.patches import normalize, usable
from cerebro_eeg.model.weights import start_linear_layers

CONTEXT_SECONDS = 1.0
"""Length of the signal around a patch that ``spectrum`` describes; a patch alone has too few periods."""
LIMIT = 5.0
"""Standardised targets are clipped to this size: a flat channel has no logarithm."""


@dataclass(frozen=True)
class Term:
    """A further part of the loss: the sum of its errors, and their number. Training divides by the step's number."""

    name: str
    weight: float
    sum: Tensor
    count: Tensor

    @property
    def loss(self) -> Tensor:
        """The mean error times its weight."""
        return self.weight * self.sum / self.count.clamp_min(1)


class BandTarget(nn.Module):
    """The last layer of one target, and the standardisation of that target in each band."""

    shift_K: Tensor
    scale_K: Tensor

    def __init__(self, width: int, bands: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, outputs, bias=bias)
        self.register_buffer("shift_K", torch.zeros(bands))
        self.register_buffer("scale_K", torch.ones(bands))

    def standardized(self, target_K: Tensor) -> Tensor:
        """Return targets (..., K) with mean 0 and deviation 1 over what ``fit`` saw, clipped."""
        return ((target_K - self.shift_K) * self.scale_K).clamp(-LIMIT, LIMIT)

    @torch.no_grad()
    def fit(self, values: Sequence[Tensor]) -> None:
        """Set the standardisation from targets (M, K)."""
        value_MK = torch.cat(list(values)).double()
        if len(value_MK):
            std_K = value_MK.std(0, correction=0)
            self.shift_K.copy_(value_MK.mean(0))
            self.scale_K.copy_(torch.where(std_K > 1e-6, 1 / std_K, 0.0))


class FurtherTargets(nn.Module):
    """The layers that predict the further targets of an objective."""

    def __init__(self, config: ModelConfig, objective: ObjectiveConfig, width: int) -> None:
        super().__init__()
        self.config, self.objective = config, objective
        bands = len(objective.bands) - 1
        outputs = {"spectrum": bands, "power": bands, "coupling": bands * FACTORS}
        self.targets = nn.ModuleDict(
            {name: BandTarget(width, bands, outputs[name], config.bias) for name in weights(objective)}
        )
        start_linear_layers(self)

    def forward(self, batch: Batch, x_RND: Tensor, masked_RN: Tensor) -> tuple[Term, ...]:
        """Predict the targets of a batch from the last tokens, and sum the squared errors."""
        layout, found = batch.layout, []
        for name, (target, valid) in self.raw_targets(batch).items():
            part = self.targets[name]
            assert isinstance(part, BandTarget)
            if name == "spectrum":
                predicted, share = part.layer(x_RND), masked_RN.to(target.dtype)
            elif name == "power":
                predicted, share = part.layer(x_RND.mean(1)), valid.to(target.dtype)
            else:
                vector_BCKF = layout.grid(part.layer(x_RND.mean(1)).unflatten(-1, (-1, FACTORS)))
                predicted = torch.einsum("bckf,bdkf->bcdk", vector_BCKF, vector_BCKF) / math.sqrt(FACTORS)
                others_B11 = (layout.counts(target.device) - 1).clamp_min(1)[:, None, None]
                share = valid.to(target.dtype) / others_B11  # the pairs of a channel count as one
            error = (predicted.to(target.dtype) - part.standardized(target)).square().mean(-1)
            weight = weights(self.objective)[name]
            # Pads may hold NaN: fill them, never multiply them with zero.
            found.append(Term(name, weight, (error.masked_fill(share == 0, 0) * share).sum(), share.sum()))
        return tuple(found)

    @torch.no_grad()
    def raw_targets(self, batch: Batch) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return each target before its standardisation, (..., K), and which of its places are no pads."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        objective, sfreq, layout = self.objective, self.config.signal.sfreq, batch.layout
        with torch.autocast(batch.signal_RT.device.type, enabled=False):
            signal_RT = normalize(*_signal(batch, self.config))
            real_R = _real(layout, signal_RT)
            if "spectrum" in self.targets:
                level_RNK = band_amplitudes(signal_RT, self.config, objective.bands)
                if objective.spectrum_relative:
                    level_RNK = level_RNK - level_RNK.mean(1, keepdim=True)
                found["spectrum"] = level_RNK, real_R[:, None].expand(level_RNK.shape[:2])
            if "power" in self.targets:
                cross_BCCK = band_covariances(layout.grid(signal_RT), objective.bands, sfreq).movedim(1, -1)
                power_BCK = cross_BCCK.diagonal(dim1=1, dim2=2).transpose(1, 2)
                found["power"] = layout.rows((power_BCK + TINY).log()), real_R
                size_BCCK = (power_BCK[:, None] * power_BCK[:, :, None]).sqrt() + TINY
                real_BC = layout.grid(real_R)
                pair_BCC = real_BC[:, None] & real_BC[:, :, None]
                other_CC = ~torch.eye(layout.width, dtype=torch.bool, device=pair_BCC.device)
                found["coupling"] = (cross_BCCK / size_BCCK).clamp(-0.99, 0.99).atanh(), pair_BCC & other_CC
        return found

    @torch.no_grad()
    def fit(self, batches: Iterable[Batch]) -> None:
        """Set the standardisation of every target from a sample of training windows."""
        found = [self.raw_targets(batch) for batch in batches]
        for name, part in self.targets.items():
            assert isinstance(part, BandTarget)
            part.fit([target[valid] for target, valid in (of_batch[name] for of_batch in found)])


def weights(objective: ObjectiveConfig) -> dict[str, float]:
    """Return the further targets of an objective, in order, with the weight of each."""
    found = {"spectrum": objective.spectrum, "power": objective.statistics, "coupling": objective.statistics}
    return {name: weight for name, weight in found.items() if weight > 0}


def counts(rows: Sequence[int], masked: int) -> dict[str, int]:
    """Return the number of errors of every target in windows with these numbers of rows and masked tokens."""
    return {"spectrum": masked, "power": sum(rows), "coupling": sum(count for count in rows if count > 1)}


def band_amplitudes(signal_RT: Tensor, config: ModelConfig, bands: Sequence[float]) -> Tensor:
    """Return the log amplitude in each band of the second around every waveform patch, (R, N, K).

    At both ends of the window, and in short windows, the second is the nearest one that lies inside. A Hann window
    keeps slow waves out of the other bands.
    """
    samples, patches = signal_RT.shape[-1], config.patches
    size = min(samples, round(CONTEXT_SECONDS * config.signal.sfreq))
    device = signal_RT.device
    centre_N = torch.arange(patches.count(samples), device=device) * patches.stride + patches.length // 2
    first_N = (centre_N - size // 2).clamp(0, samples - size)
    frame_RNS = signal_RT[:, first_N[:, None] + torch.arange(size, device=device)]
    hann_S = torch.hann_window(size, periodic=True, dtype=signal_RT.dtype, device=device)
    bins = torch.fft.rfft((frame_RNS - frame_RNS.mean(-1, keepdim=True)) * hann_S).abs().square()
    bins = bins / (size * hann_S.square().sum() / 2)  # power per bin: its sum is the variance
    power = [bins[..., first:last].sum(-1) for first, last in band_bins(bands, size, config.signal.sfreq)]
    return (torch.stack(power, -1) + TINY).log() / 2


def _signal(batch: Batch, config: ModelConfig) -> tuple[Tensor, ModelConfig, Tensor | None]:
    """Return the arguments of ``normalize`` for a batch."""
    signal_RT, scale_R = usable(batch)
    return signal_RT, config, scale_R


def _real(layout: Layout, signal_RT: Tensor) -> Tensor:
    """Return which rows count: no pads, and none that only fill up."""
    counted_R = layout.counted()
    if counted_R is not None:
        return counted_R
    return torch.ones(len(signal_RT), dtype=torch.bool, device=signal_RT.device)
