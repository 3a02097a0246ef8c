"""``cerebro-eeg info PRESET`` and ``info CHECKPOINT``: the dimensions of a model, and its costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_eeg import costs
from cerebro_eeg.config import PRESETS, HeadConfig, ModelConfig, ObjectiveConfig, Training, preset
from cerebro_eeg.errors import CheckpointError, InputError
from cerebro_eeg.model.shipped import card_facts, is_shipped
from cerebro_eeg.notebook import Shown
from cerebro_eeg.schema import to_dict


@dataclass(frozen=True, repr=False)
class ModelInfo(Shown):
    """Dimensions, parameters by part, and the cost of one window."""

    name: str
    kind: str
    model: ModelConfig
    objective: ObjectiveConfig | None
    head: HeadConfig | None
    training: Training | None
    channels: int
    seconds: float
    samples: int
    parts: dict[str, int]
    cost: costs.Cost
    card: tuple[str, ...] = ()
    """The facts of the card of weights that come with the package."""

    @property
    def parameters(self) -> int:
        """Parameters of the encoder as the paper counts them: 23 channel rows, no objective, no head."""
        return sum(costs.parameters(self.model).values())

    @property
    def stored(self) -> int:
        """Parameters with the channel table of the whole vocabulary, the objective and the head."""
        return sum(self.parts.values()) - self.parts["electrodes"] + costs.whole_table(self.model)

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "model": to_dict(self.model),
            "objective": None if self.objective is None else to_dict(self.objective),
            "head": None if self.head is None else to_dict(self.head),
            "training": None if self.training is None else to_dict(self.training),
            "card": list(self.card),
            "parameters": self.parameters,
            "parameters_by_part": self.parts,
            "parameters_whole_vocabulary": self.stored,
            "window": {
                "channels": self.channels,
                "seconds": self.seconds,
                "samples": self.samples,
                "tokens": self.cost.tokens,
                "flops": self.cost.flops,
                "attention_flops": self.cost.attention_flops,
                "scores": self.cost.scores,
            },
            "memory_bytes": {
                "weights": self.stored * costs.FLOAT,
                "training_state": 4 * self.stored * costs.FLOAT,
                "forward": self.cost.forward_bytes,
                "backward": self.cost.backward_bytes,
            },
        }

    def _headline(self) -> str:
        return (
            f"{self.name} ({self.kind}), {self.parameters:,} parameters, {self.model.depth} blocks of width "
            f"{self.model.width}"
        )

    def _facts(self) -> Mapping[str, object]:
        return {
            "window": f"{self.channels} channels, {self.seconds:g} s, {self.cost.tokens:,} tokens",
            "FLOPs of a window": self.cost.flops,
        }

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return the parameters of each part."""
        return {"part": list(self.parts), "parameters": list(self.parts.values())}

    def _notes(self) -> Sequence[str]:
        return self.card

    def text(self) -> str:
        model, patches, signal, cost = self.model, self.model.patches, self.model.signal, self.cost
        lines = [
            f"{self.name} ({self.kind})",
            "",
            f"encoder     {model.depth} blocks, width {model.width}, {model.heads} heads of {model.head_dim}, "
            f"MLP {model.hidden}, {model.attention} attention, {model.norm}-norm",
            f"input       {_patching(model)}; {model.normalization} normalisation"
            + (", amplitude embedding" if model.amplitude else ""),
            f"signal      uV at {signal.sfreq:g} Hz, {signal.highpass:g} to {signal.lowpass:g} Hz "
            f"({signal.filter_phase} phase), reference {signal.reference.replace('_', ' ')}",
            f"positions   {model.positions} (windows of {model.window} samples; shorter sliced, longer interpolated)",
        ]
        if self.objective is not None:
            lines.append(f"objective   {_objective(self.objective)}")
        if self.head is not None:
            names = f": {', '.join(self.head.names)}" if self.head.names else ""
            lines.append(f"head        {self.head.task}, {self.head.n_outputs} outputs{names}{_limit(self.head)}")
        lines += ["", f"parameters  {self.parameters:,} (as the paper counts: 23 channel rows, no head)"]
        lines += [f"  {part:18}{count:>14,}" for part, count in self.parts.items()]
        lines += [
            f"  {'whole vocabulary':18}{costs.whole_table(model):>14,} for electrodes in place of {costs.PAPER_ROWS} "
            f"rows: {self.stored:,} in all",
            "",
            f"one window of {self.channels} channels x {self.seconds:g} s ({self.samples} samples)",
            f"  tokens    {cost.tokens:,}: {self.channels * patches.rows} rows x {patches.count(self.samples)} patches",
            f"  FLOPs     {_short(cost.flops)} forward, {_short(cost.attention_flops)} of them in attention scores",
            f"  scores    {cost.scores:,} in the largest layer, were they materialised",
            "",
            "memory in fp32 (counted from the shapes; a program adds its own)",
            f"  weights   {_mib(self.stored * costs.FLOAT)}; training state (weights, gradients, AdamW) "
            f"{_mib(4 * self.stored * costs.FLOAT)}",
            f"  window    {_mib(cost.forward_bytes)} at the peak of a forward pass; {_mib(cost.backward_bytes)} kept "
            "for a backward pass",
        ]
        if self.training is not None:
            lines += ["", *_trained(self.training)]
        if self.card:
            lines += ["", "card", *(f"  {fact}" for fact in self.card)]
        return "\n".join(lines)


def info_model(target: str, channels: int = 19, seconds: float = 5.0) -> ModelInfo:
    """Describe a preset by its name, or a checkpoint on this disk, with the cost of a window of this size."""
    model, objective, head, training, kind = _read(target)
    if not 0 < seconds <= 1e6 or not channels <= 1e6:
        raise InputError(f"a window of {channels} channels x {seconds:g} s was asked for; give up to a million of each")
    samples = round(seconds * model.signal.sfreq)
    if channels < 1 or model.patches.count(samples) < 1:
        raise InputError(
            f"a window of {channels} channels x {seconds:g} s gives no patch; at {model.signal.sfreq:g} Hz it needs a "
            f"channel and {model.patches.shortest() / model.signal.sfreq:.3g} s"
        )
    parts = costs.parameters(model, None if kind == "preset" else objective, head)
    cost = costs.cost(model, channels, samples)
    card = tuple(card_facts(target)) if is_shipped(target) else ()
    return ModelInfo(target, kind, model, objective, head, training, channels, seconds, samples, parts, cost, card)


def _read(target: str) -> tuple[ModelConfig, ObjectiveConfig | None, HeadConfig | None, Training | None, str]:
    if target in PRESETS:
        objective = preset(target).objective
        return preset(target).model, None if objective == ObjectiveConfig() else objective, None, None, "preset"
    try:
        from cerebro_eeg.model import checkpoint, hub
    except ImportError as error:
        raise CheckpointError(f"reading a checkpoint needs torch and safetensors, which failed: {error}") from error
    path = hub.find(target)
    header, _ = checkpoint.read(path)  # this also checks the SHA-256 of all tensors
    return header.model, header.objective, header.head, header.training, "checkpoint, sums verified"


def _limit(head: HeadConfig) -> str:
    """Describe the threshold: its class, and the level (windows or recordings) that it was chosen on."""
    from cerebro_eeg.scores.tables import level_words, positive_of

    if head.threshold is None:
        return ""
    positive = positive_of(head.task, head.names)
    of = "" if positive is None else f"positive: {positive}; "
    return f"; threshold {head.threshold:.3g} ({of}chosen on validation, {level_words([head.threshold_level])})"


def _objective(objective: ObjectiveConfig) -> str:
    """Describe the objective, with what the paper's does not have."""
    where = ""
    if objective.masking == "blocks":
        where = f" in blocks of {objective.block_mm:g} mm and {objective.block_seconds:g} s"
    words = [objective.style, f"{objective.mask_ratio:.0%} masked{where}", f"alpha {objective.alpha:g}"]
    relative = " relative to the window" if objective.spectrum_relative else ""
    further = (
        (objective.spectrum > 0, f"spectrum{relative} {objective.spectrum:g}"),
        (objective.statistics > 0, f"statistics {objective.statistics:g}"),
        (objective.keep_channels < 1, f"views of at least {objective.keep_channels:.0%} of the channels"),
        (objective.rereference > 0, f"{objective.rereference:.0%} referenced to their average"),
        (objective.hide_amplitude > 0, f"amplitude hidden in {objective.hide_amplitude:.0%}"),
    )
    return ", ".join([*words, *(text for on, text in further if on)])


def _patching(model: ModelConfig) -> str:
    patches = model.patches
    if patches.kind == "waveform":
        return f"waveform patches of {patches.length} samples, stride {patches.stride}"
    what = "1 frame" if patches.kind == "time_bins" else f"{patches.square} frames x {patches.square} bins"
    phase = "" if patches.phase == "none" else f", {patches.phase} phase"
    return f"spectrogram patches of {what} (window {patches.n_fft}, hop {patches.hop}, {patches.bins} bins{phase})"


def _trained(training: Training) -> list[str]:
    lines = [f"trained     {training.steps:,} steps, {training.windows:,} windows"]
    for source in training.data:
        lines.append(
            f"  {source.name}: {source.windows:,} windows, {round(source.hours, 2):,g} h {source.licence}".rstrip()
        )
    rows = sorted(training.electrode_windows.items(), key=lambda item: -item[1])
    if not rows:
        return [*lines, "  no electrode's row has been trained: the weights are random or the record is empty"]
    shown = ", ".join(f"{name} {count:,}" for name, count in rows[:8])
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return [*lines, f"  electrodes (windows): {shown}{more}"]


def _short(count: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    raise AssertionError("unreachable")


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"
