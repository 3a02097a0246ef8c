"""What a model costs, counted from its config alone: parameters, FLOPs, attention scores, memory. No torch.

A FLOP is a multiplication or an addition: 2 per multiply-add. Costs are of one window and the forward pass unless said
otherwise; normalisation, softmax, GELU and the STFT are left out, as the paper does. Every count here is compared with
the real modules in the tests.
"""

from dataclasses import dataclass

from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import HeadConfig, ModelConfig, ObjectiveConfig

PAPER_ROWS = 23
"""Rows of the channel table in the paper's parameter counts."""
FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Cost:
    """Multiply-adds are counted double; ``scores`` are the attention weights of one layer that a softmax produces."""

    tokens: int
    flops: int
    attention_flops: int
    scores: int
    """Most scores of any one layer."""
    forward_bytes: int
    """Activations alive at the worst moment of a forward pass without gradients, scores not materialised."""
    backward_bytes: int
    """Activations kept for the backward pass."""


def parameters(
    config: ModelConfig,
    objective: ObjectiveConfig | None = None,
    head: HeadConfig | None = None,
    electrode_rows: int = PAPER_ROWS,
) -> dict[str, int]:
    """Parameters by part, with ``electrode_rows`` rows of the channel table."""
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
    if head is not None:
        parts["head"] = _linear(width, head.n_outputs, config.bias)
    return parts


def whole_table(config: ModelConfig) -> int:
    """Parameters of the channel table for the whole vocabulary, the pad's row included."""
    return (len(VOCABULARY) + 1) * config.width


def cost(config: ModelConfig, channels: int, samples: int) -> Cost:
    """Cost of encoding one window."""
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
    # Forward: the patches; the block's input, the residual stream and its norm; and either q, k, v (as projected and as
    # folded) and their result, or the MLP's hidden layer before and after GELU.
    forward = tokens * (config.patches.size + 3 * width + max(7 * width, 2 * hidden)) * FLOAT
    # Kept for the backward pass, in each block: inputs and outputs of two norms, what the output projection sees, for
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
    """FLOPs of scores and their use, FLOPs of projections, and scores, of attention in one layer of one window."""
    tokens, width, heads = rows * patches, config.width, config.heads
    projections = 2 * tokens * 4 * width**2
    across, along = patches * rows**2, rows * patches**2  # pairs of tokens that meet across channels, along time
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
