"""Config: every setting with its default, and the presets, as frozen dataclasses that check themselves.

A field's default is the paper's value or, where the paper is silent, the decision that ``docs/paper.md`` explains. A
checkpoint carries the whole of :class:`ModelConfig`, because weights are useless without the rate, the filter, the
patches and the normalisation that they were trained with. Standard library only.
"""

import dataclasses
import itertools
import types
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import did_you_mean, require, settle
from cerebro_eeg.terminal import has_controls

AttentionKind = Literal["alternating", "standard", "two_axis", "bottleneck"]
Normalization = Literal["zscore", "recording", "minmax", "scale", "none"]


MOST_WEIGHTS = 10**10
"""The most weights of a model, a hundred times those of Large. A wrong number must not exhaust the memory."""
MOST_OUTPUTS = 100_000
"""The most outputs of a head."""


def _check_schedule(config: "PretrainConfig | FinetuneConfig", epochs: int) -> None:
    """Check the fields that both tables of hyper-parameters have."""
    require(config.batch_size >= 1, f"batch_size is {config.batch_size}; it must be at least 1")
    require(epochs >= 1, f"{epochs} epochs; there must be at least 1")
    require(
        0 <= config.warmup_epochs <= epochs,
        f"warmup_epochs is {config.warmup_epochs}; it must lie between 0 and the {epochs} epochs of the schedule",
    )
    require(
        0 <= config.min_lr <= config.peak_lr and config.peak_lr > 0,
        f"learning rates from {config.peak_lr} to {config.min_lr}; the peak must be positive and not below the minimum",
    )
    require(all(0 <= beta < 1 for beta in config.betas), f"betas are {config.betas}; each must lie in [0, 1)")
    require(config.weight_decay >= 0, f"weight_decay is {config.weight_decay}; it must not be negative")
    require(config.clip > 0, f"clip is {config.clip}; it must be positive")


def _check_bands(bands: tuple[float, ...]) -> None:
    """Check the edges of frequency bands."""
    rising = all(low < high for low, high in itertools.pairwise(bands))
    require(
        len(bands) >= 2 and bands[0] >= 0 and rising, f"bands are {bands}; expected at least two rising edges in Hz"
    )


@dataclass(frozen=True)
class SignalConfig:
    """The signal that the weights expect. Files are prepared this way; arrays must already be so."""

    sfreq: float = 256.0
    """Sampling rate in Hz."""
    highpass: float = 0.1
    """Lower edge of the pass-band in Hz."""
    lowpass: float = 75.0
    """Upper edge of the pass-band in Hz; for a file with a low rate, 0.45 of its rate."""
    notch_width: float = 2.0
    """Width in Hz of the notch at the mains frequency of each recording; 0 for no notch."""
    filter_phase: Literal["zero", "causal"] = "zero"
    """Zero-phase FIR filters, or causal second-order sections for streams."""
    reference: Literal["as_recorded", "average", "linked_ears", "tcp", "double_banana"] = "as_recorded"
    """The reference of the channels."""

    def __post_init__(self) -> None:
        settle(self)
        require(self.sfreq > 0, f"sfreq is {self.sfreq}; it must be a positive number of Hz")
        require(self.sfreq <= 1e5, f"sfreq is {self.sfreq:g}; it must not exceed 100000 Hz")
        require(0 <= self.highpass < self.lowpass, f"the pass-band {self.highpass} to {self.lowpass} Hz is empty")
        require(
            self.highpass == 0 or self.highpass >= 1e-3,
            f"highpass is {self.highpass:g}; it must be 0 (none) or at least 0.001 Hz, or its filter spans hours",
        )
        require(self.notch_width >= 0, f"notch_width is {self.notch_width}; it must not be negative")


@dataclass(frozen=True)
class PatchConfig:
    """How a channel is cut into patches, each of which becomes one token."""

    kind: Literal["waveform", "time_bins", "squares"] = "waveform"
    """Samples, or a spectrogram cut into single frames or into squares."""
    length: int = 64
    """Samples in a waveform patch."""
    stride: int = 64
    """Samples from one waveform patch to the next."""
    n_fft: int = 128
    """Samples in a spectrogram frame (periodic Hann window)."""
    hop: int = 32
    """Samples from one frame to the next."""
    reflect: int = 48
    """Samples that are reflected at both ends, so that T samples give floor(T / 32) frames."""
    bins: int = 64
    """Frequency bins kept, from bin 1 on (bin 0 is the constant)."""
    square: int = 8
    """Frames and bins in a square patch."""
    floor: float = 1e-3
    """Magnitudes are clipped from below at this share of the channel's median before the logarithm."""
    phase: Literal["none", "interleaved", "separated"] = "none"
    """Where rows of phase stand: nowhere, after the magnitude of each channel, or after all magnitudes."""

    def __post_init__(self) -> None:
        settle(self)
        for name in ("length", "stride", "n_fft", "hop", "bins", "square"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be at least 1")
        require(self.reflect >= 0, f"reflect is {self.reflect}; it must not be negative")
        require(self.floor > 0, f"floor is {self.floor}; it must be positive, or a silent bin gives log 0")
        require(self.bins <= self.n_fft // 2, f"{self.bins} bins from bin 1 need n_fft of {2 * self.bins} or more")
        require(self.bins % self.square == 0, f"{self.bins} bins cannot be cut into squares of {self.square}")
        require(self.kind != "waveform" or self.phase == "none", "a waveform has no phase rows; choose a spectrogram")

    @property
    def size(self) -> int:
        """Values in a patch."""
        return {"waveform": self.length, "time_bins": self.bins, "squares": self.square**2}[self.kind]

    @property
    def bands(self) -> int:
        """Patches that lie at the same time; tokens are numbered time first, ``t * bands + f``."""
        return self.bins // self.square if self.kind == "squares" else 1

    @property
    def step(self) -> int:
        """Samples from one instant with patches to the next."""
        return {"waveform": self.stride, "time_bins": self.hop, "squares": self.square * self.hop}[self.kind]

    @property
    def rows(self) -> int:
        """Rows of tokens per channel."""
        return 1 if self.phase == "none" else 2

    def frames(self, samples: int) -> int:
        """Return the number of spectrogram frames of ``samples`` samples."""
        if samples <= self.reflect:  # a reflection needs one sample more than it reflects
            return 0
        return max(0, (samples + 2 * self.reflect - self.n_fft) // self.hop + 1)

    def count(self, samples: int) -> int:
        """Return the number of patches of ``samples`` samples; 0 if the window is too short for one."""
        if self.kind == "waveform":
            return max(0, (samples - self.length) // self.stride + 1)
        frames = self.frames(samples)
        return frames if self.kind == "time_bins" else frames // self.square * self.bands

    def shortest(self) -> int:
        """Return the samples of the shortest window that has a patch."""
        if self.kind == "waveform":
            return self.length
        frames = 1 if self.kind == "time_bins" else self.square
        return max(self.reflect + 1, (frames - 1) * self.hop + self.n_fft - 2 * self.reflect)


@dataclass(frozen=True)
class ModelConfig:
    """The encoder, and everything that its weights depend on."""

    depth: int = 8
    """Blocks."""
    width: int = 192
    """Dimension of a token."""
    heads: int = 12
    """Attention heads in each block."""
    mlp_ratio: float = 4.0
    """Width of the hidden layer of the MLP, as a multiple of the token's width."""
    attention: AttentionKind = "alternating"
    """Which tokens a token may attend to."""
    first_axis: Literal["channels", "time"] = "channels"
    """Axis of the first layer of alternating attention."""
    norm: Literal["pre", "post"] = "pre"
    """LayerNorm before each part of a block and once at the end, or after each part."""
    norm_eps: float = 1e-5
    """Added to the variance in every LayerNorm."""
    bias: bool = True
    """Biases in every linear layer."""
    init_std: float = 0.02
    """Standard deviation of the truncated normal distribution that tables and tokens start from."""
    window: int = 1280
    """Samples in a training window; the position table has one row per patch of it."""
    max_channels: int = 64
    """The most channels of a window; a recording with more needs a policy (``too_many``)."""
    normalization: Normalization = "zscore"
    """How a window is scaled before it is cut into patches."""
    fixed_scale: float = 100.0
    """Microvolts that become 1 with ``normalization="scale"``."""
    amplitude: bool = False
    """Whether tokens also carry the log standard deviation of their channel relative to the recording."""
    patches: PatchConfig = field(default_factory=PatchConfig)
    """How a channel is cut into patches."""
    signal: SignalConfig = field(default_factory=SignalConfig)
    """How recordings are filtered, referenced and resampled before."""

    def __post_init__(self) -> None:
        settle(self)
        for name in ("depth", "width", "heads", "window", "max_channels"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be at least 1")
        require(
            self.width % self.heads == 0,
            f"width {self.width} does not divide into {self.heads} heads; try {self.width // self.heads * self.heads}",
        )
        require(self.mlp_ratio > 0, f"mlp_ratio is {self.mlp_ratio}; it must be positive")
        require(self.mlp_ratio <= 1000, f"mlp_ratio is {self.mlp_ratio:g}; it must not exceed 1000")
        require(self.depth <= 1000, f"depth is {self.depth}; it must not exceed 1000")
        require(self.norm_eps > 0, f"norm_eps is {self.norm_eps}; it must be positive")
        require(self.init_std >= 0, f"init_std is {self.init_std}; it must not be negative")
        require(self.fixed_scale > 0, f"fixed_scale is {self.fixed_scale}; it must be positive")
        require(self.positions >= 1, f"a window of {self.window} samples gives no patch; use {self.patches.shortest()}")
        require(self.window <= 10**8, f"window is {self.window}; it must not exceed 100000000 samples")
        blocks = self.depth * self.width * (4 * self.width + 2 * self.hidden)
        weights = blocks + self.width * (self.positions + self.patches.size)
        require(
            weights <= MOST_WEIGHTS,
            f"{self.depth} blocks of width {self.width} and {self.positions} positions are {float(weights):.0e} "
            f"weights; a model has at most {float(MOST_WEIGHTS):.0e}",
        )
        if self.attention == "alternating" and self.depth % 2:
            warnings.warn(
                f"depth {self.depth} is odd: one axis gets a layer more than the other; the paper uses even depths",
                stacklevel=3,
            )

    @property
    def positions(self) -> int:
        """Rows of the position table."""
        return self.patches.count(self.window)

    @property
    def hidden(self) -> int:
        """Width of the MLP's hidden layer."""
        return round(self.width * self.mlp_ratio)

    @property
    def head_dim(self) -> int:
        """Dimension of one attention head."""
        return self.width // self.heads


@dataclass(frozen=True)
class ObjectiveConfig:
    """The pre-training objective: reconstruct masked patches."""

    style: Literal["simmim", "vitmae"] = "simmim"
    """SimMIM: the encoder sees masked tokens. ViTMAE: it sees visible tokens only, and a light decoder fills in."""
    mask_ratio: float = 0.5
    """Share of a window's tokens that are masked; the count is rounded half to even."""
    alpha: float = 0.1
    """Weight of the error on visible patches."""
    patch_error: Literal["mean", "sum"] = "mean"
    """Squared error over a patch: its mean, or its sum as in the paper's formula (64 times larger)."""
    decoder_depth: int = 2
    """Blocks of the ViTMAE decoder."""
    decoder_width: int | None = None
    """Width of the decoder; None for the encoder's."""
    decoder_heads: int | None = None
    """Heads of the decoder; None for the encoder's."""
    masking: Literal["tokens", "blocks"] = "tokens"
    """Masked tokens lie anywhere, or in blocks of neighbouring electrodes and successive patches."""
    block_mm: float = 80.0
    """Distance along the scalp that a block reaches from its centre, in millimetres."""
    block_seconds: float = 1.5
    """Length of a block."""
    spectrum: float = 0.0
    """Weight of the error on the log amplitude in bands of the second around every masked patch."""
    spectrum_relative: bool = False
    """Whether the mean over the window is subtracted from these amplitudes, for each channel and band."""
    statistics: float = 0.0
    """Weight of the errors on the log band power of every channel and the band-wise correlation of all pairs."""
    bands: tuple[float, ...] = (1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0)
    """Edges in Hz of the bands of ``spectrum`` and ``statistics``."""
    keep_channels: float = 1.0
    """Least share of its channels that a training window keeps; the share is drawn anew in every epoch."""
    rereference: float = 0.0
    """Share of training windows that are referenced to the average of the channels that they keep."""
    hide_amplitude: float = 0.0
    """Share of training windows whose amplitude the encoder does not see, if the model has that input."""

    def __post_init__(self) -> None:
        settle(self)
        require(0 < self.mask_ratio < 1, f"mask_ratio is {self.mask_ratio}; it must lie between 0 and 1")
        require(self.block_mm >= 0, f"block_mm is {self.block_mm}; it must not be negative")
        require(self.block_seconds > 0, f"block_seconds is {self.block_seconds}; it must be positive")
        for name in ("spectrum", "statistics"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("rereference", "hide_amplitude"):
            require(0 <= getattr(self, name) <= 1, f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        require(
            0 < self.keep_channels <= 1,
            f"keep_channels is {self.keep_channels}; it must lie above 0 and not above 1",
        )
        _check_bands(self.bands)
        require(self.alpha >= 0, f"alpha is {self.alpha}; it must not be negative")
        for name in ("decoder_depth", "decoder_width", "decoder_heads"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}; it must be at least 1")
        require(self.decoder_depth <= 1000, f"decoder_depth is {self.decoder_depth}; it must not exceed 1000")

    @property
    def further(self) -> bool:
        """Whether anything is predicted beside the patches."""
        return self.spectrum > 0 or self.statistics > 0

    def check(self, model: ModelConfig) -> None:
        """Raise an error if this objective cannot be that of a model."""
        if self.further:
            require(
                model.patches.kind == "waveform",
                f"spectrum and statistics need waveform patches; those of the model are {model.patches.kind}",
            )
            require(
                self.bands[-1] <= model.signal.sfreq / 2,
                f"the bands end at {self.bands[-1]:g} Hz, and a rate of {model.signal.sfreq:g} Hz has "
                f"{model.signal.sfreq / 2:g} Hz at most; set bands",
            )
        require(
            self.hide_amplitude == 0 or (model.amplitude and model.normalization != "recording"),
            f"hide_amplitude is {self.hide_amplitude:g}, and the model has no amplitude to hide; set model.amplitude, "
            "and any normalization but recording",
        )

    def decoder(self, model: ModelConfig) -> ModelConfig:
        """Return the dimensions of the decoder; it has the same kind of attention as the encoder."""
        return dataclasses.replace(
            model,
            depth=self.decoder_depth,
            width=model.width if self.decoder_width is None else self.decoder_width,
            heads=model.heads if self.decoder_heads is None else self.decoder_heads,
        )


ReadoutPart = Literal[
    "mean",
    "moments",
    "attention",
    "channels",
    "covariance",
    "amplitude",
    "power",
    "tangent",
    "spectrum",
    "narrow",
    "bands",
]
FIXED_PARTS = ("channels", "covariance", "amplitude", "power", "tangent", "spectrum", "narrow", "bands")
"""Parts of a read-out that need the same channels in every window."""


@dataclass(frozen=True)
class ReadoutConfig:
    """What a head reads of a window; ``model/readouts.py`` explains the parts."""

    parts: tuple[ReadoutPart, ...] = ("mean",)
    """Parts whose features stand side by side."""
    channels: tuple[str, ...] = ()
    """Channels, in order, of the parts that need the same ones in every window."""
    bands: tuple[float, ...] = (1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0)
    """Edges of the frequency bands in Hz."""
    shrinkage: float = 0.05
    """Share of the mean variance that replaces a covariance before its logarithm."""

    def __post_init__(self) -> None:
        settle(self)
        require(bool(self.parts) and len(set(self.parts)) == len(self.parts), "parts must be given, each once")
        fixed = [part for part in self.parts if part in FIXED_PARTS]
        require(
            not fixed or bool(self.channels),
            f"the part {', '.join(fixed)} needs the channels that every window has; give channels",
        )
        require(len(set(self.channels)) == len(self.channels), "a channel is given twice; give each once")
        _check_bands(self.bands)
        require(0 < self.shrinkage < 1, f"shrinkage is {self.shrinkage}; it must lie between 0 and 1")


@dataclass(frozen=True)
class HeadConfig:
    """The linear layer on the features of a window: what it reads, its outputs and what they mean."""

    n_outputs: int
    """Classes, or regression targets."""
    task: Literal["classification", "regression"] = "classification"
    """Logits or values."""
    names: tuple[str, ...] = ()
    """Names of the outputs, in order; empty if unknown."""
    samples: int | None = None
    """Samples of the windows that it was trained with; None for any length."""
    threshold: float | None = None
    """Mean probability from which a recording gets the last of two classes; chosen on validation."""
    threshold_level: Literal["window", "recording", "unknown"] = "unknown"
    """Level that the threshold was chosen on: windows if recordings hold both classes; unknown in old checkpoints."""
    readout: ReadoutConfig = field(default_factory=ReadoutConfig)
    """What the linear layer reads of a window."""
    centred: bool = False
    """Whether the mean output over the windows of a subject, or of a recording, is subtracted; it needs no labels."""

    def __post_init__(self) -> None:
        settle(self)
        require(
            self.threshold is None or 0 <= self.threshold <= 1,
            f"threshold is {self.threshold}; it must be a probability",
        )
        require(self.n_outputs >= 1, f"n_outputs is {self.n_outputs}; it must be at least 1")
        require(self.n_outputs <= MOST_OUTPUTS, f"n_outputs is {self.n_outputs}; it must not exceed {MOST_OUTPUTS}")
        require(self.samples is None or self.samples >= 1, f"samples is {self.samples}; it must be at least 1")
        require(
            len(self.names) in (0, self.n_outputs),
            f"{len(self.names)} names for {self.n_outputs} outputs; give one each",
        )
        for name in self.names:
            require(not has_controls(name), f"the name {name!r} of an output holds a control character; rename it")


@dataclass(frozen=True)
class Source:
    """A data set that weights were trained on."""

    name: str
    """Corpus or store."""
    windows: int = 0
    """Windows in it."""
    hours: float = 0.0
    """Hours of recording in it."""
    sha256: str = ""
    """Hash of the store."""
    licence: str = ""
    """Licence and attribution."""
    subjects: tuple[str, ...] = ()
    """Marks of the subjects in it, hashes that name nobody (``runs/provenance.py``)."""
    ids: str = ""
    """What made the ids that the marks are of: the check of a key, or "own"; empty if there are no marks."""
    task: str = ""
    """The task whose labels were learned; empty if the signals alone were."""

    def __post_init__(self) -> None:
        settle(self)
        for name in ("windows", "hours"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must not be negative")


@dataclass(frozen=True)
class Training:
    """A record of what the weights of a checkpoint were trained on."""

    steps: int = 0
    """Optimizer steps."""
    windows: int = 0
    """Windows seen, repetitions counted."""
    electrode_windows: dict[str, int] = field(default_factory=dict)
    """Windows that trained the row of each electrode; an electrode that is missing here has a random row."""
    data: tuple[Source, ...] = ()
    """The data sets that the windows came from."""

    def __post_init__(self) -> None:
        settle(self)
        counts = {"steps": self.steps, "windows": self.windows, **self.electrode_windows}
        for name, count in counts.items():
            require(count >= 0, f"{name} is counted {count}; it must not be negative")

    def plus(self, windows: int, electrodes: Iterable[str]) -> "Training":
        """Return the record after ``windows`` more windows, each with all of these electrodes."""
        counts = dict(self.electrode_windows)
        for name in electrodes:
            counts[name] = counts.get(name, 0) + windows
        return dataclasses.replace(self, windows=self.windows + windows, electrode_windows=counts)


@dataclass(frozen=True)
class PretrainConfig:
    """The paper's table of pre-training hyper-parameters."""

    batch_size: int = 4096
    """Windows in a step, over all processes."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's moment decays."""
    peak_lr: float = 1.25e-3
    """Learning rate after the warm-up."""
    min_lr: float = 2.5e-7
    """Learning rate at the end of the cosine."""
    max_epochs: int = 100
    """Epochs that the cosine spans."""
    stop_epoch: int = 30
    """Epoch after which training stops."""
    warmup_epochs: int = 3
    """Epochs of linear warm-up."""
    weight_decay: float = 0.05
    """AdamW's decay; none on biases, norms, tables and tokens."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        settle(self)
        _check_schedule(self, self.max_epochs)
        require(
            1 <= self.stop_epoch <= self.max_epochs,
            f"stop_epoch is {self.stop_epoch}; it must lie between 1 and max_epochs={self.max_epochs}",
        )


@dataclass(frozen=True)
class FinetuneConfig:
    """The paper's table of fine-tuning hyper-parameters."""

    batch_size: int = 4096
    """Windows in a step, over all processes."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's moment decays."""
    peak_lr: float = 5e-4
    """Learning rate after the warm-up."""
    min_lr: float = 2.5e-7
    """Learning rate at the end of the cosine."""
    epochs: int = 50
    """Epochs of training."""
    warmup_epochs: int = 5
    """Epochs of linear warm-up."""
    layer_decay: float = 0.75
    """Factor on the learning rate from each layer to the one below; the embeddings are the lowest."""
    weight_decay: float = 0.05
    """AdamW's decay; none on biases, norms, tables and tokens."""
    noise_ratio: float = 0.2
    """Standard deviation of added Gaussian noise, as a multiple of the channel's."""
    noise_probability: float = 0.5
    """Share of the windows that get noise."""
    drop_path: float = 0.1
    """Largest probability of skipping a residual branch."""
    drop_path_schedule: Literal["linear", "constant"] = "linear"
    """Whether that probability rises with depth or is constant."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all classes."""
    clip: float = 1.0
    """Largest norm of the gradient."""

    def __post_init__(self) -> None:
        settle(self)
        _check_schedule(self, self.epochs)
        require(0 < self.layer_decay <= 1, f"layer_decay is {self.layer_decay}; it must lie above 0 and not above 1")
        require(self.noise_ratio >= 0, f"noise_ratio is {self.noise_ratio}; it must not be negative")
        for name in ("noise_probability", "drop_path", "label_smoothing"):
            require(0 <= getattr(self, name) <= 1, f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        require(self.drop_path < 1, f"drop_path is {self.drop_path}; it must lie below 1")


@dataclass(frozen=True)
class Preset:
    """A size of the model, with the paper's hyper-parameters for it."""

    model: ModelConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)


PRESETS: Mapping[str, Preset] = types.MappingProxyType(
    {
        # `tiny` is not in the paper: it learns on a laptop in minutes. The others are the paper's.
        "tiny": Preset(
            ModelConfig(depth=4, width=64, heads=4),
            pretrain=PretrainConfig(batch_size=64),
            finetune=FinetuneConfig(batch_size=64),
        ),
        "small": Preset(ModelConfig(depth=8, width=192)),
        "base": Preset(ModelConfig(depth=10, width=576), finetune=FinetuneConfig(drop_path=0.2)),
        "large": Preset(ModelConfig(depth=12, width=768), finetune=FinetuneConfig(drop_path=0.2)),
        # Not in the paper either: Small with the target that a screening weakly supports (``docs/training.md``).
        "open": Preset(ModelConfig(depth=8, width=192), ObjectiveConfig(spectrum=1.0)),
    }
)


def preset(name: str) -> Preset:
    """Return the preset called ``name``."""
    if name not in PRESETS:
        raise ConfigError(
            f"there is no preset {name!r}{did_you_mean(name, PRESETS)}; choose one of {', '.join(PRESETS)}"
        )
    return PRESETS[name]


def model_config(given: ModelConfig | Preset | str) -> ModelConfig:
    """Return the model's config, given as itself, as a preset or as the name of a preset."""
    if isinstance(given, ModelConfig):
        return given
    if isinstance(given, Preset):
        return given.model
    if isinstance(given, str):
        return preset(given).model
    raise ConfigError(f"config is {type(given).__name__}; expected a ModelConfig, a preset or the name of one")
