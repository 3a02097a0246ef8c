"""Subjects that differ, and the random numbers of everything: a pure function of seed, subject and purpose.

Every draw comes from a counter-based generator (Philox) whose key is made of the seed and of words that say what the
numbers are for. So nothing depends on the order in which things are computed, on the number of processes, or on what
else is simulated.
"""

import hashlib
from dataclasses import dataclass

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The random numbers for one purpose, say ``generator(0, 3, "blinks")``."""
    words = hashlib.sha256("\0".join(map(str, purpose)).encode()).digest()
    key = np.random.SeedSequence([seed, *np.frombuffer(words, "<u4").tolist()])
    return np.random.Generator(np.random.Philox(key))


@dataclass(frozen=True)
class Subject:
    """What is a person's own, in every recording of hers."""

    number: int
    alpha_hz: float
    alpha: float
    """Factor of the alpha rhythm's moment; likewise below."""
    mu_hz: float
    mu: float
    background: float
    slope: float
    """The background's power falls with this power of the frequency."""
    skull: float
    """Conductivity in S/m: the lower, the more the skull smears."""
    noise_uv: float
    """White noise of an electrode, root mean square from 0 to 128 Hz."""
    mains_uv: float
    muscle: float
    blinks_per_minute: float
    stride_hz: float
    seizure_hz: float


def make_subject(seed: int, number: int) -> Subject:
    """Subject ``number`` of the people of this seed."""
    rng = generator(seed, number, "subject")
    alpha_hz = float(rng.uniform(8.6, 11.8))
    return Subject(
        number=number,
        alpha_hz=alpha_hz,
        alpha=float(rng.lognormal(0, 0.25)),
        mu_hz=alpha_hz + float(rng.uniform(0.3, 1.3)),
        mu=float(rng.lognormal(0, 0.25)),
        background=float(rng.lognormal(0, 0.2)),
        slope=float(rng.uniform(1.3, 2.1)),
        skull=float(rng.uniform(0.004, 0.012)),
        noise_uv=float(rng.uniform(0.5, 1.2)),
        mains_uv=float(rng.lognormal(0.5, 0.5)),
        muscle=float(rng.lognormal(0, 0.4)),
        blinks_per_minute=float(rng.uniform(8, 20)),
        stride_hz=float(rng.uniform(0.75, 1.05)),
        seizure_hz=float(rng.uniform(2.8, 3.4)),
    )
