"""``cerebro-eeg demo``: embed a generated recording. The training commands will give the demo its main job."""

import time
from dataclasses import asdict, dataclass

CHANNELS = "Fp1 Fp2 F7 F3 Fz F4 F8 T3 C3 Cz C4 T4 T5 P3 Pz P4 T6 O1 O2".split()
POSTERIOR = ("T5", "P3", "Pz", "P4", "T6", "O1", "O2")


@dataclass(frozen=True)
class Row:
    """One window of the generated recording."""

    window: int
    start_s: float
    eyes: str
    alpha_uv: float
    feature_norm: float
    similarity: float


@dataclass(frozen=True)
class DemoResult:
    """Features of a generated recording, window by window."""

    preset: str
    channels: str
    features: tuple[int, int]
    seconds: float
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def text(self) -> str:
        lines = [
            f"A generated recording of {len(self.rows)} windows, eyes open and closed in turn.",
            f"Channels: {self.channels}",
            f"Features: {self.features[0]} windows x {self.features[1]} dimensions from preset {self.preset} in "
            f"{self.seconds:.2f} s. The weights are random: this shows the way, not a result.",
            "",
            "window  start  eyes    posterior alpha  |features|  cosine with window 0",
        ]
        for row in self.rows:
            lines.append(
                f"{row.window:>6}  {row.start_s:>3.0f} s  {row.eyes:6}  {row.alpha_uv:>12.1f} uV"
                f"  {row.feature_norm:>10.3f}  {row.similarity:>20.4f}"
            )
        lines += ["", "Next: cerebro-eeg info small; cerebro-eeg doctor; the README embeds an array in ten lines."]
        return "\n".join(lines)


def demo(*, preset: str = "small", windows: int = 12, seed: int = 0) -> DemoResult:
    """Embed a generated recording and print what came out, in a few seconds on a CPU.

    Try, for example:
      cerebro-eeg demo --preset tiny --windows 4

    Args:
        preset: Size of the model (tiny, small, base, large); its weights are random.
        windows: Windows of 5 seconds to generate.
        seed: Of the recording and of the weights.
    """
    import numpy as np
    import torch

    from cerebro_eeg.errors import InputError
    from cerebro_eeg.model.cerebro import Cerebro

    if not 1 <= windows <= 10_000:
        raise InputError(f"windows is {windows}; generate 1 to 10,000")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed}; expected a whole number from 0 to 2**63 - 1")
    torch.manual_seed(seed)
    model = Cerebro(config=preset, ch_names=CHANNELS).eval()
    rate, samples = model.config.signal.sfreq, model.config.window
    x_CT = generate(windows, samples, rate, seed)
    start = time.perf_counter()
    features = model.embed(x_CT)
    seconds = time.perf_counter() - start
    alpha = _band_amplitude(x_CT.reshape(len(CHANNELS), windows, samples), rate)
    norms = np.linalg.norm(features, axis=1)
    similarity = features @ features[0] / (norms * norms[0])
    rows = tuple(
        Row(i, i * samples / rate, _eyes(i), float(alpha[i]), float(norms[i]), float(similarity[i]))
        for i in range(windows)
    )
    assert model.channels is not None
    return DemoResult(preset, model.channels.summary(), (features.shape[0], features.shape[1]), seconds, rows)


def generate(windows: int, samples: int, rate: float, seed: int):  # type: ignore[no-untyped-def]  # numpy comes late
    """EEG-like microvolts (channels, windows * samples): 1/f noise, and posterior alpha while the eyes are closed."""
    import numpy as np

    rng = np.random.default_rng(seed)
    total = windows * samples
    frequency = np.fft.rfftfreq(total, 1 / rate)
    weight = np.zeros_like(frequency)
    weight[1:] = 1 / np.maximum(frequency[1:], 0.5)
    noise = np.fft.irfft(np.fft.rfft(rng.normal(size=(len(CHANNELS) + 1, total))) * weight, total)
    mixed = noise[1:] + 0.7 * noise[:1]  # neighbours share a part
    signal = 12.0 * mixed / mixed.std(axis=1, keepdims=True)
    closed = np.repeat([_eyes(i) == "closed" for i in range(windows)], samples)
    wave = 18.0 * np.sin(2 * np.pi * 10.2 * np.arange(total) / rate) * closed
    for i, name in enumerate(CHANNELS):
        signal[i] += wave * (1.0 if name in POSTERIOR else 0.2)
    return signal


def _band_amplitude(x_CWT, rate: float):  # type: ignore[no-untyped-def]
    """Root mean square between 8 and 12 Hz over the posterior channels of each window."""
    import numpy as np

    posterior = x_CWT[[CHANNELS.index(name) for name in POSTERIOR]]
    spectrum = np.abs(np.fft.rfft(posterior)) ** 2 / posterior.shape[-1] ** 2 * 2
    frequency = np.fft.rfftfreq(posterior.shape[-1], 1 / rate)
    return np.sqrt(spectrum[..., (frequency >= 8) & (frequency <= 12)].sum(-1).mean(0))


def _eyes(window: int) -> str:
    return "closed" if window % 4 >= 2 else "open"
