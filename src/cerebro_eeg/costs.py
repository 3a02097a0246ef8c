"""Costs: parameters, FLOPs, attention scores and memory of a model, counted from its config alone. No torch.

A multiply-add counts as 2 FLOPs. Costs are those of one window and a forward pass unless stated otherwise. They leave
out normalisation, softmax, GELU and the STFT, as the paper does. Tests compare every count with the real modules.
"""

from dataclasses import dataclass

from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import HeadConfig, ModelConfig, ObjectiveConfig

PAPER_ROWS = 23
"""Rows of the channel table in the paper's parameter counts."""
FACTORS = 16
"""Length of the vectors per channel and band of the objective's statistics (``model/further_targets.py``)."""
FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Cost:
    """The cost of encoding one window."""

    tokens: int
    flops: int
    attention_flops: int
    scores: int
    """Attention weights of the layer that has the most of them."""
    forward_bytes: int
    """Peak of the activations in a forward pass without gradients, if scores are not materialised."""
    backward_bytes: int
    """Activations kept for the backward pass."""


def parameters(
    config: ModelConfig,
    objective: ObjectiveConfig | None = None,
    head: HeadConfig | None = None,
    electrode_rows: int = PAPER_ROWS,
) -> dict[str, int]:
    """Count parameters by part, with ``electrode_rows`` rows of the channel table."""
    width = config.width
    parts = {
        "patch embedding": _linear(config.patches.size, width, config.bias),
        "positions": config.positions * width,
        "electrodes": electrode_rows * width,
        "[MASK] and [PAD]": 2 * width,
    }
    if config.patches.phase != "none":
        parts["phase"] = width
    if config.amplitude:
        parts["amplitude"] = _linear(1, width, config.bias)
    parts |= _stack(config)
    if objective is not None:
        decoder = objective.decoder(config)
        out = width
        if objective.style == "vitmae":
            out = decoder.width
            parts["decoder"] = _linear(width, out, config.bias) + sum(_stack(decoder).values())
        parts["reconstruction"] = _linear(out, config.patches.size, config.bias)
        bands = len(objective.bands) - 1
        if objective.spectrum > 0:
            parts["spectrum"] = _linear(out, bands, config.bias)
        if objective.statistics > 0:
            parts["statistics"] = _linear(out, bands, config.bias) + _linear(out, bands * FACTORS, config.bias)
    if head is not None:
        parts["head"] = _linear(width, head.n_outputs, config.bias)
    return parts


def whole_table(config: ModelConfig) -> int:
    """Count the parameters of the channel table for the whole vocabulary and the pad."""
    return (len(VOCABULARY) + 1) * config.width


def cost(config: ModelConfig, channels: int, samples: int) -> Cost:
    """Return the cost of encoding one window."""
    rows, patches, width, hidden = (
        channels * config.patches.rows,
        config.patches.count(samples),
        config.width,
        config.hidden,
    )
    tokens = rows * patches
    attention = [attention_cost(config, layer, rows, patches) for layer in range(1, config.depth + 1)]
    mlp = 2 * 2 * tokens * width * hidden
    flops = 2 * tokens * config.patches.size * width + config.depth * mlp
    flops += sum(scores + projections for scores, projections, _ in attention)
    # Forward: the patches; the block's input, the residual stream and its norm; then either q, k, v (as projected and
    # as folded) and their result, or the hidden layer of the MLP before and after GELU.
    forward = tokens * (config.patches.size + 3 * width + max(7 * width, 2 * hidden)) * FLOAT
    # Kept per block for the backward pass: inputs and outputs of two norms, the input of the output projection, for
    # each QKV q, k, v and their result (one value in the bottleneck), and the hidden layer before and after GELU.
    attended = 1 if config.attention == "bottleneck" else 4 * (2 if config.attention == "two_axis" else 1)
    backward = config.depth * tokens * ((5 + attended) * width + 2 * hidden) * FLOAT
    return Cost(
        tokens,
        flops,
        sum(scores for scores, _, _ in attention),
        max(stored for _, _, stored in attention),
        forward,
        backward,
    )


def attention_cost(config: ModelConfig, layer: int, rows: int, patches: int) -> tuple[int, int, int]:
    """Return FLOPs of the scores and their use, FLOPs of projections, and the number of scores, for one layer."""
    tokens, width, heads = rows * patches, config.width, config.heads
    projections = 2 * tokens * 4 * width**2
    across, along = patches * rows**2, rows * patches**2  # pairs of tokens across channels, and along time
    if config.attention == "bottleneck":  # pooled queries and keys; the second value is as wide as all channels
        flops = 2 * 2 * rows**2 * width + 2 * patches**2 * width + 2 * along * width
        return flops, projections, heads * (rows**2 + patches**2)
    if config.attention == "two_axis":
        return 2 * 2 * (across + along) * width, projections + 2 * tokens * 3 * width**2, heads * (across + along)
    if config.attention == "standard":
        pairs = tokens**2
    else:
        pairs = across if (layer % 2 == 1) == (config.first_axis == "channels") else along
    return 2 * 2 * pairs * width, projections, heads * pairs


def _stack(config: ModelConfig) -> dict[str, int]:
    width, bias = config.width, config.bias
    qkv_sets = 2 if config.attention == "two_axis" else 1
    attention = qkv_sets * _linear(width, 3 * width, bias) + _linear(width, width, bias)
    mlp = _linear(width, config.hidden, bias) + _linear(config.hidden, width, bias)
    return {
        "attention": config.depth * attention,
        "MLP": config.depth * mlp,
        "norms": (config.depth * 2 + (config.norm == "pre")) * 2 * width,
    }


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + outputs * bias
