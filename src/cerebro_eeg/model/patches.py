"""From a window of EEG to patches: normalisation, waveform patches, spectrogram patches.

Everything here is a plain function of tensors and the model's config. It runs in the precision of the signal, with
autocast off, because ``std``, ``median`` and FFTs are wrong or missing in float16.

Legend: **R** rows (channels of all windows), **T** samples, **N** patches, **L** values in a patch, **F** frames,
**K** frequency bins.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ModelConfig, PatchConfig
from cerebro_eeg.errors import InputError

# A channel is flat if its standard deviation is below this share of its largest value; the rest is rounding error.
FLAT = 1e-6
# Logarithms of standard deviations are clipped to this range, or a flat channel would give minus infinity.
LOUDEST = 5.0


@dataclass(frozen=True)
class Patches:
    """The patches of a batch. With phase, each channel has two rows, and ``layout`` counts both."""

    values_RNL: Tensor
    channels_R2: Tensor
    layout: Layout
    phase_R: Tensor | None = None
    """True for rows that hold phase; None without phase."""
    loudness_R: Tensor | None = None
    """The log standard deviation relative to the recording; None unless the config asks for it."""


def make_patches(batch: Batch, config: ModelConfig) -> Patches:
    """Normalise the windows of a batch and cut them into patches as the config says."""
    samples = batch.signal_RT.shape[-1]
    if config.patches.count(samples) < 1:
        raise InputError(
            f"a window of {samples} samples gives no patch; {config.patches.kind} patches need at least "
            f"{config.patches.shortest()} samples ({config.patches.shortest() / config.signal.sfreq:.3g} s)"
        )
    with torch.autocast(batch.signal_RT.device.type, enabled=False):
        raw_RT, scale_R = usable(batch)
        signal_RT = normalize(raw_RT, config, scale_R)
        loudness_R = loudness(raw_RT, scale_R) if config.amplitude else None
        if config.patches.kind == "waveform":
            values_RNL = signal_RT.unfold(-1, config.patches.length, config.patches.stride)
            return Patches(values_RNL, batch.channels_R2, batch.layout, None, loudness_R)
        magnitude_RFK, phase_RFK = spectrogram(signal_RT, config.patches)
        values_RNL = cut_spectrogram(magnitude_RFK, config.patches)
        if config.patches.phase == "none":
            return Patches(values_RNL, batch.channels_R2, batch.layout, None, loudness_R)
        return _with_phase(values_RNL, cut_spectrogram(phase_RFK, config.patches), batch, config, loudness_R)


def usable(batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return signal and scale in at least float32, because squares overflow in float16, and set pads to zero."""
    signal_RT = batch.signal_RT.to(torch.promote_types(batch.signal_RT.dtype, torch.float32))
    scale_R, real_R = batch.scale_R, batch.layout.real_R
    if real_R is not None:  # pads may hold anything, NaN too: fill them, never multiply them with zero
        signal_RT = signal_RT.masked_fill(~real_R[:, None], 0)
        scale_R = None if scale_R is None else scale_R.masked_fill(~real_R, 1)
    return signal_RT, scale_R


def normalize(signal_RT: Tensor, config: ModelConfig, scale_R: Tensor | None = None) -> Tensor:
    """Scale each channel of a window as ``config.normalization`` says; flat channels become zeros."""
    kind = config.normalization
    if kind == "none":
        return signal_RT
    if kind == "scale":
        return signal_RT / config.fixed_scale
    centred_RT = signal_RT - signal_RT.mean(-1, keepdim=True)
    centred_RT = centred_RT - centred_RT.mean(-1, keepdim=True)  # twice, because the mean of a large offset is rounded
    if kind == "recording":
        return centred_RT / _needed(scale_R, 'normalization="recording"')[:, None]
    if kind == "zscore":
        std_R1 = centred_RT.square().mean(-1, keepdim=True).sqrt()
        return _divided(centred_RT, std_R1, signal_RT)
    low_R1, high_R1 = signal_RT.amin(-1, keepdim=True), signal_RT.amax(-1, keepdim=True)
    half_R1 = (high_R1 - low_R1) / 2
    return _divided(signal_RT - (high_R1 + low_R1) / 2, half_R1, signal_RT)


def loudness(signal_RT: Tensor, scale_R: Tensor | None) -> Tensor:
    """Return the clipped logarithm of each channel's standard deviation, divided by the scale of its recording."""
    std_R = signal_RT.std(-1, correction=0)
    ratio_R = std_R / _needed(scale_R, "amplitude=True")
    return ratio_R.clamp(math.exp(-LOUDEST), math.exp(LOUDEST)).log()


def robust_scale(signal: Tensor) -> Tensor:
    """Return the scale of a recording (channels, samples): the median over channels of 1.4826 times the MAD."""
    centred = signal - _lower_median(signal)[..., None]
    return 1.4826 * _lower_median(_lower_median(centred.abs()))


def spectrogram(signal_RT: Tensor, config: PatchConfig) -> tuple[Tensor, Tensor]:
    """Return log magnitude, z-scored per channel, and phase / pi, each (R, F, K); a flat channel gives zeros."""
    if not len(signal_RT):  # torch cannot reflect an empty signal
        empty = signal_RT.new_zeros(0, config.frames(signal_RT.shape[-1]), config.bins)
        return empty, empty
    padded_RT = functional.pad(signal_RT, (config.reflect, config.reflect), mode="reflect")
    frames_RFT = padded_RT.unfold(-1, config.n_fft, config.hop)
    hann_T = torch.hann_window(config.n_fft, periodic=True, dtype=signal_RT.dtype, device=signal_RT.device)
    bins_RFK = torch.fft.rfft(frames_RFT * hann_T)[..., 1 : config.bins + 1]
    size_RFK = bins_RFK.abs()
    floor_R11 = config.floor * _lower_median(size_RFK.flatten(1))[:, None, None]
    log_RFK = torch.maximum(size_RFK, floor_R11).clamp_min(torch.finfo(signal_RT.dtype).tiny).log()
    centred_RFK = log_RFK - log_RFK.mean((-2, -1), keepdim=True)
    std_R11 = centred_RFK.square().mean((-2, -1), keepdim=True).sqrt()
    std_R1 = signal_RT.std(-1, correction=0, keepdim=True)
    flat_R11 = _flat(std_R1, signal_RT)[:, :, None] | (floor_R11 <= 0) | (std_R11 <= 0)
    magnitude_RFK = (centred_RFK / std_R11.masked_fill(flat_R11, 1)).masked_fill(flat_R11, 0)
    phase_RFK = bins_RFK.angle() / math.pi
    # The Nyquist bin is real, so the sign of a zero decides between the phases 1 and -1. We always return 1.
    return magnitude_RFK, phase_RFK.masked_fill(phase_RFK <= -1, 1).masked_fill(flat_R11, 0)


def cut_spectrogram(values_RFK: Tensor, config: PatchConfig) -> Tensor:
    """Return patches (R, N, L): single frames, or squares numbered ``t * bands + f`` (time t, frequency band f)."""
    if config.kind == "time_bins":
        return values_RFK
    side = config.square
    squares = values_RFK.unfold(1, side, side).unfold(2, side, side)  # (R, t, f, side, side)
    return squares.flatten(3).flatten(1, 2)


def _with_phase(
    magnitude_RNL: Tensor, phase_RNL: Tensor, batch: Batch, config: ModelConfig, loudness_R: Tensor | None
) -> Patches:
    """Give each channel a second row for its phase, beside the first row or after all first rows of the window."""
    layout, source_R = batch.layout.doubled(config.patches.phase == "separated", magnitude_RNL.device)
    channel_R = source_R // 2
    return Patches(
        torch.stack([magnitude_RNL, phase_RNL], 1).flatten(0, 1)[source_R],
        batch.channels_R2[channel_R],
        layout,
        source_R % 2 == 1,
        None if loudness_R is None else loudness_R[channel_R],
    )


def _lower_median(x: Tensor) -> Tensor:
    """Return the lower median along the last axis. Sorting is deterministic on every device."""
    return x.sort(-1).values[..., (x.shape[-1] - 1) // 2]


def _divided(centred_RT: Tensor, spread_R1: Tensor, signal_RT: Tensor) -> Tensor:
    """Divide ``centred_RT`` by its spread; a flat channel becomes zeros."""
    flat_R1 = _flat(spread_R1, signal_RT)
    return (centred_RT / spread_R1.masked_fill(flat_R1, 1)).masked_fill(flat_R1, 0)


def _flat(spread_R1: Tensor, signal_RT: Tensor) -> Tensor:
    return spread_R1 <= FLAT * signal_RT.abs().amax(-1, keepdim=True)


def _needed(scale_R: Tensor | None, what: str) -> Tensor:
    if scale_R is None:
        raise InputError(f"{what} needs the scale of the recording in microvolts; pass scale= (see robust_scale)")
    return scale_R
