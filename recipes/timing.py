"""Timing: runtime and memory of the encoder's forward pass, for models that take turns.

Passes run without gradients, in fp32, with 8 windows at once. Both are our choice; the paper names neither.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import mini
import torch

from cerebro_eeg import costs
from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.runs.settings import choose

CHANNELS = tuple(range(1, 65, 4))
"""1, 5, ... 61 channels: with 64 patches per channel, the paper's 64, 320, ... 3,904 tokens."""
BATCH = 8
MIB = 2**20


@dataclass(frozen=True)
class Model:
    """The model of one curve."""

    name: str
    size: str
    attention: str

    def config(self, samples: int, reduced: bool) -> ModelConfig:
        flags = {"model.attention": self.attention, "model.window": samples}
        return choose(self.size, None, flags | (mini.flags(self.size) if reduced else {}), ()).model


@dataclass(frozen=True)
class Point:
    """One forward pass; memory is None on a CPU, and everything is None where memory ran out."""

    ms: float | None
    mib: float | None
    counted_mib: float
    """Weights and activations by the config alone; without attention scores, which these kernels do not store."""


def measure(
    config: ModelConfig, channels: Sequence[int], samples: int, batch: int, device: torch.device
) -> list[Point]:
    """Measure one pass per number of channels, after a warm-up; the model is alone on the device."""
    torch.manual_seed(0)
    encoder = Encoder(config).to(device).eval()
    weights = sum(p.numel() * p.element_size() for p in encoder.parameters())
    found = []
    for count in channels:
        ids = torch.tensor([(number + 1, 0) for number in range(count)])
        made = Batch.dense(torch.randn(batch, count, samples, device=device), ids)
        counted = (weights + batch * costs.cost(config, count, samples).forward_bytes) / MIB
        try:
            seconds, mib = _pass(encoder, made, device)
            found.append(Point(1000 * seconds, mib, counted))
        except torch.OutOfMemoryError:
            found.append(Point(None, None, counted))
    return found


def _pass(encoder: Encoder, made: Batch, device: torch.device) -> tuple[float, float | None]:
    cuda = device.type == "cuda"
    with torch.no_grad():
        if cuda:
            encoder(made)
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        encoder(made)
        if cuda:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    return seconds, torch.cuda.max_memory_allocated(device) / MIB if cuda else None


def turns(
    models: Sequence[Model], patches: int, rounds: int, batch: int, device: torch.device, reduced: bool
) -> dict[str, list[Point]]:
    """Measure every model in turn, ``rounds`` times; return the median of the times and the largest memory."""
    samples = 64 * patches
    found: dict[str, list[list[Point]]] = {model.name: [] for model in models}
    for _ in range(rounds):
        for model in models:
            found[model.name].append(measure(model.config(samples, reduced), CHANNELS, samples, batch, device))
    return {name: [_join(points) for points in zip(*of, strict=True)] for name, of in found.items()}


def _join(points: Sequence[Point]) -> Point:
    ms = [point.ms for point in points if point.ms is not None]
    mib = [point.mib for point in points if point.mib is not None]
    return Point(statistics.median(ms) if ms else None, max(mib) if mib else None, points[0].counted_mib)
