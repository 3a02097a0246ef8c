"""Covariances of channels in frequency bands, fixed or learned, and their logarithms.

Legend: **B** windows, **C** channels, **T** samples, **F** frequency bins, **K** bands, **P** pairs of channels, each
channel with itself among them: the upper triangle of a covariance.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from cerebro_eeg.model.matrix_log import matrix_log

FINE_EDGES = tuple(number + 0.5 for number in range(46))
"""Edges, in Hz, of bins of 1 Hz around 1, 2, ... 45 Hz."""
NARROW = 3
"""Bins of 1 Hz that share a covariance of the part ``narrow``."""
LEARNED_EDGES = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 17.0, 21.0, 26.0, 34.0, 45.0)
"""Edges, in Hz, of the bands that the part ``bands`` starts with."""
TINY = 1e-8
"""Added to power before a logarithm, so that a flat channel stays finite. Signals are divided by their scale."""


def band_covariances(signal_BCT: Tensor, bands: Sequence[float], sfreq: float) -> Tensor:
    """Return the covariance of the channels in each frequency band, (B, K, C, C).

    By Parseval's theorem it is a sum over the bins of a Fourier transform, which needs no filter. A Hann window keeps
    slow waves out of the other bands. Covariances have the unit of the signal squared.
    """
    samples = signal_BCT.shape[-1]
    hann_T = torch.hann_window(samples, periodic=True, dtype=signal_BCT.dtype, device=signal_BCT.device)
    centred_BCT = signal_BCT - signal_BCT.mean(-1, keepdim=True)
    bins_BCF = torch.fft.rfft(centred_BCT * hann_T)
    bins_BCF = bins_BCF / (samples * hann_T.square().mean() / 2).sqrt() / math.sqrt(samples)
    found = []
    for first, last in band_bins(bands, samples, sfreq):
        part_BCF = torch.view_as_real(bins_BCF[..., first:last]).flatten(2)
        found.append(part_BCF @ part_BCF.transpose(1, 2))
    return torch.stack(found, 1)


def band_bins(bands: Sequence[float], samples: int, sfreq: float) -> list[tuple[int, int]]:
    """Return the first bin of each band and the one after its last; a narrow band has at least one."""
    most = samples // 2
    found = []
    for low, high in pairwise(bands):
        first = min(max(1, math.ceil(low * samples / sfreq - 1e-9)), most)
        last = min(max(first + 1, math.ceil(high * samples / sfreq - 1e-9)), most + 1)
        found.append((first, last))
    return found


def shrunk(covariance_BKCC: Tensor, share: float | Tensor) -> Tensor:
    """Return covariances that are shrunk by a share, or one per band (K, 1, 1), to a multiple of the identity."""
    mean_BK11 = covariance_BKCC.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye_CC = torch.eye(covariance_BKCC.shape[-1], dtype=covariance_BKCC.dtype, device=covariance_BKCC.device)
    return (1 - share) * covariance_BKCC + (share * mean_BK11 + TINY) * eye_CC


def log_triangle(covariance_BKCC: Tensor) -> Tensor:
    """Return the upper triangles of log covariances, (B, K P).

    Entries off the diagonal are multiplied with the square root of two, because each stands for two. So the length of
    the features is the norm of the matrix.
    """
    size = covariance_BKCC.shape[-1]
    log_BKCC = matrix_log(covariance_BKCC)
    row, column = torch.triu_indices(size, size, device=log_BKCC.device)
    weight_P = torch.where(row == column, 1.0, math.sqrt(2)).to(log_BKCC.dtype)
    return (log_BKCC[..., row, column] * weight_P).flatten(1)


def upper(matrix_CC: Tensor) -> Tensor:
    """Return the upper triangle of symmetric matrices (..., C, C) as (..., P)."""
    row, column = torch.triu_indices(*matrix_CC.shape[-2:], device=matrix_CC.device)
    return matrix_CC[..., row, column]


def symmetric(upper_P: Tensor) -> Tensor:
    """Return the symmetric matrices (..., C, C) of upper triangles (..., P)."""
    pairs = upper_P.shape[-1]
    size = (math.isqrt(8 * pairs + 1) - 1) // 2
    row, column = torch.triu_indices(size, size, device=upper_P.device)
    place_CC = torch.empty(size, size, dtype=torch.int64, device=upper_P.device)
    place_CC[row, column] = place_CC[column, row] = torch.arange(pairs, device=upper_P.device)
    return upper_P[..., place_CC]


class LearnedBands(nn.Module):
    """Frequency bands that are learned: each one weighs the bins of a spectrum, and shrinks a covariance.

    A band is a Gaussian over frequency with a learned centre and width. The share by which it shrinks its covariance
    towards a multiple of the identity is learned, too.
    """

    bins_F: Tensor

    def __init__(self, edges: Sequence[float], bins_F: Tensor) -> None:
        super().__init__()
        low_K, high_K = torch.tensor(edges[:-1]), torch.tensor(edges[1:])
        self.log_centre_K = nn.Parameter(((low_K + high_K) / 2).log())
        self.log_width_K = nn.Parameter(((high_K - low_K) / 2).log())
        self.shrinkage_K = nn.Parameter(torch.full((len(low_K),), math.log(0.05 / 0.95)))
        self.register_buffer("bins_F", bins_F, persistent=False)

    def band_weights(self) -> Tensor:
        """Return the weights (K, F) of the bins in each band; their sum is 1.

        A softmax of the exponent divides Gaussians by their sums, also where a band lies far above the last bin.
        """
        centre_K1, width_K1 = self.log_centre_K.exp()[:, None], self.log_width_K.exp()[:, None]
        return (-((self.bins_F - centre_K1) / width_K1).square() / 2).softmax(-1)

    def numbers(self) -> tuple[nn.Parameter, ...]:
        """Return what is learned: one number of each kind for every band."""
        return self.log_centre_K, self.log_width_K, self.shrinkage_K

    def shares(self) -> Tensor:
        """Return the share of the mean variance that replaces each band's covariance, (K, 1, 1)."""
        return self.shrinkage_K.sigmoid()[:, None, None]

    def log_covariances(self, cross_BFCC: Tensor) -> Tensor:
        """Return the log covariances (B, K P) in the bands, from those in fine bins."""
        weight_KF = self.band_weights().to(cross_BFCC.dtype)
        covariance_BKCC = (weight_KF @ cross_BFCC.flatten(2)).unflatten(2, cross_BFCC.shape[2:])
        return log_triangle(shrunk(covariance_BKCC, self.shares().to(cross_BFCC.dtype)))


def learned_bands() -> LearnedBands:
    """Return the bands of the part ``bands`` before they have learned, on bins of 1 Hz."""
    return LearnedBands(LEARNED_EDGES, torch.arange(1.0, len(FINE_EDGES)))
