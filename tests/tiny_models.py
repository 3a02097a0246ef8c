"""Models, windows and batches small enough for loops and exact comparisons; shared by the tests."""

import numpy as np
import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ModelConfig, PatchConfig

KINDS = ["alternating", "standard", "two_axis", "bottleneck"]


def small(**changes):
    """A model small enough for loops, with another number for every dimension."""
    fields = {"depth": 2, "width": 12, "heads": 3, "mlp_ratio": 2.0, "window": 40}
    return ModelConfig(**{"patches": PatchConfig(length=8, stride=8), **fields, **changes})


def randomized(module, seed=0):
    """Every parameter at random, none at its special start (zero biases, unit norms); float64, the same every time."""
    rng = np.random.default_rng(seed)
    module.double()
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.tensor(rng.normal(size=p.shape) * 0.3 + ("norm" in name and name.endswith("weight"))))
            if name.endswith("electrodes"):
                p[0] = 0
    return module


def weights_of(module):
    return {name: t.detach().numpy() for name, t in module.state_dict().items()}


def make_windows(counts, samples, seed=0):
    """Ragged windows of noise with electrodes, some of them bipolar."""
    rng = np.random.default_rng(seed)
    windows = [rng.normal(size=(c, samples)) * 20 + 3 for c in counts]
    ids = [
        [(int(a), int(b)) for a, b in zip(rng.choice(300, c, False) + 1, rng.integers(0, 3, c), strict=True)]
        for c in counts
    ]
    return windows, ids


def to_batch(windows, ids, scale=None):
    channels = [torch.tensor(i).reshape(-1, 2) for i in ids]
    scale = None if scale is None else torch.tensor(scale, dtype=torch.float64)
    return Batch.ragged([torch.tensor(w) for w in windows], channels, scale)
