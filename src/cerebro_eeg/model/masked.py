"""Masked reconstruction: hide tokens, predict their patches (in the style of SimMIM or ViTMAE), compute the loss.

Legend: **R** rows, **N** tokens of a row, **L** values in a patch, **D** width, **B** windows, **V** visible tokens.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.config import ModelConfig, ObjectiveConfig, Preset, Training, model_config
from cerebro_eeg.errors import InputError
from cerebro_eeg.fast import Compilable
from cerebro_eeg.model import hub, inputs
from cerebro_eeg.model.checkpoint import Header, LoadReport, load_into
from cerebro_eeg.model.encoder import Encoder, Stack
from cerebro_eeg.model.further_targets import FurtherTargets, Term
from cerebro_eeg.model.masks import mask_tokens
from cerebro_eeg.model.patches import Patches
from cerebro_eeg.model.weights import start_linear_layers


@dataclass(frozen=True)
class Reconstruction:
    """The reconstruction of a masked batch, and the sums and counts of its loss.

    Training divides sums by counts itself, because its averages run over the tokens of *all* processes of a step.
    """

    target_RNL: Tensor
    raw_RNL: Tensor
    """The prediction in the precision of the last layer; ``predicted_RNL`` has it in that of the target."""
    masked_RN: Tensor
    layout: Layout
    masked_sum: Tensor
    masked_count: Tensor
    visible_sum: Tensor
    visible_count: Tensor
    alpha: float
    further: tuple[Term, ...] = ()
    """What else was predicted; nothing in the paper."""

    @property
    def predicted_RNL(self) -> Tensor:  # noqa: N802, named like the fields
        """The prediction for each patch, converted only on demand, because training does not need it."""
        return self.raw_RNL.to(self.target_RNL.dtype)

    @property
    def masked_loss(self) -> Tensor:
        """Mean error over masked tokens."""
        return self.masked_sum / self.masked_count.clamp_min(1)

    @property
    def visible_loss(self) -> Tensor:
        """Mean error over visible tokens."""
        return self.visible_sum / self.visible_count.clamp_min(1)

    @property
    def loss(self) -> Tensor:
        """Masked error plus alpha times visible error, averaged over the tokens of this batch."""
        return self.masked_loss + self.alpha * self.visible_loss + sum(term.loss for term in self.further)


class Decoder(Stack):
    """The light decoder of the ViTMAE style."""

    def __init__(self, config: ModelConfig, encoder_width: int) -> None:
        super().__init__(config)
        self.embed = nn.Linear(encoder_width, config.width, bias=config.bias)
        start_linear_layers(self)


class MaskedCerebro(hub.Shareable, Compilable):
    """An encoder with its pre-training objective. :class:`~cerebro_eeg.Cerebro` uses the encoder afterwards."""

    def __init__(self, config: ModelConfig | Preset | str, objective: ObjectiveConfig | None = None) -> None:
        super().__init__()
        self.config = config = model_config(config)
        self.objective = objective or ObjectiveConfig()
        self.objective.check(config)
        self.training_record = Training()
        self.load_report: LoadReport | None = None
        self.encoder = Encoder(config)
        self.decoder: Decoder | None = None
        width = config.width
        if self.objective.style == "vitmae":
            decoder = self.objective.decoder(config)
            self.decoder, width = Decoder(decoder, config.width), decoder.width
        self.reconstruct = nn.Linear(width, config.patches.size, bias=config.bias)
        start_linear_layers(self.reconstruct)
        self.further = FurtherTargets(config, self.objective, width) if self.objective.further else None

    def forward(self, batch: Batch, noise_RN: Tensor | None = None, noise_K2B: Tensor | None = None) -> Reconstruction:
        """Mask tokens, reconstruct their patches, and compare them with the signal.

        The tokens with the smallest ``noise_RN`` of their window are masked. The noise has one row per row of patches,
        in the order of the batch: one per channel, or two with phase. ``noise_K2B`` is for drop path.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"a {type(batch).__name__} was given; pass a Batch (Batch.dense, Batch.ragged)")
        patches = self.encoder.cut(batch)
        if noise_RN is None:
            noise_RN = torch.rand(patches.values_RNL.shape[:2], device=patches.values_RNL.device)
        if noise_RN.shape != patches.values_RNL.shape[:2]:
            expected = tuple(patches.values_RNL.shape[:2])
            raise InputError(f"noise_RN has the shape {tuple(noise_RN.shape)}; expected (rows, patches) = {expected}")
        masked_RN = mask_tokens(noise_RN, patches, self.config, self.objective)
        if self.decoder is None:
            tokens_RND = self.encoder.tokens(patches, masked_RN)
            x_RND = self.encoder.run(tokens_RND, patches.layout, noise_K2B=noise_K2B, carried=True)
        else:
            visible_RND = self._encode_visible(patches, masked_RN, noise_K2B)
            x_RND = self._decode(visible_RND, patches, masked_RN, self.decoder)
        found = compare(patches, self.reconstruct(x_RND), masked_RN, self.objective)
        return found if self.further is None else replace(found, further=self.further(batch, x_RND, masked_RN))

    @property
    def header(self) -> Header:
        """The description of this model in a checkpoint."""
        return Header(self.config, self.objective, training=self.training_record)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        objective: ObjectiveConfig | None = None,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Self:
        """Load a checkpoint (a file, a folder, the Hub, ``"small-open"``) with its own objective or another one."""
        header, tensors = hub.load(source, revision, token, cache_dir, force_download, local_files_only)
        model = cls(header.model, objective or header.objective)
        model.training_record = header.training
        model.load_report = load_into(model, header, tensors, str(source))
        inputs.say(logging.INFO if model.load_report.exact else logging.WARNING, model.load_report)
        return model

    def _encode_visible(self, patches: Patches, masked_RN: Tensor, noise_K2B: Tensor | None = None) -> Tensor:
        """Encode only the visible tokens. The result has meaningless values in the places of masked tokens."""
        x_RND = self.encoder.tokens(patches)
        if self.config.attention != "standard":  # attention along an axis needs the whole grid: hide masked tokens
            return self.encoder.run(x_RND, patches.layout, ~masked_RN, noise_K2B)
        # Standard attention needs no grid. Each visible token of a window becomes a row of one token.
        visible_RN = ~masked_RN if patches.layout.real_R is None else ~masked_RN & patches.layout.real_R[:, None]
        counts = patches.layout.grid(visible_RN.sum(1)).sum(1).tolist()
        layout = Layout.ragged(counts, x_RND.device)
        visible_V1D = self.encoder.run(x_RND[visible_RN][:, None], layout, noise_K2B=noise_K2B)
        return torch.zeros_like(x_RND, dtype=visible_V1D.dtype).masked_scatter(visible_RN[..., None], visible_V1D)

    def _decode(self, x_RND: Tensor, patches: Patches, masked_RN: Tensor, decoder: Decoder) -> Tensor:
        """Put [MASK] in place of masked tokens, add positions and electrodes again, and run the decoder."""
        x_RND = torch.where(masked_RN[..., None], self.encoder.mask_token.to(x_RND.dtype), x_RND)
        x_RND = self.encoder.with_pads(x_RND, patches.layout) + self.encoder.place(patches)
        return decoder.run(decoder.embed(x_RND), patches.layout, carried=True)


def compare(patches: Patches, raw_RNL: Tensor, masked_RN: Tensor, objective: ObjectiveConfig) -> Reconstruction:
    """Sum the squared errors of patches over masked and over visible tokens, without pads (filled: they may be NaN)."""
    target_RNL = patches.values_RNL
    predicted_RNL = raw_RNL.to(target_RNL.dtype)  # the loss is computed in the signal's precision
    error_RN = (predicted_RNL - target_RNL).square().sum(-1)
    if objective.patch_error == "mean":
        error_RN = error_RN / target_RNL.shape[-1]
    visible_RN = ~masked_RN
    if (counted_R := patches.layout.counted()) is not None:
        visible_RN = visible_RN & counted_R[:, None]
    masked_sum, visible_sum = (error_RN.masked_fill(~chosen_RN, 0).sum() for chosen_RN in (masked_RN, visible_RN))
    sums = masked_sum, masked_RN.sum(), visible_sum, visible_RN.sum()
    return Reconstruction(target_RNL, raw_RNL, masked_RN, patches.layout, *sums, objective.alpha)
