"""Pretraining: reconstruct masked patches of the windows of one or several stores.

Legend: **B** windows, **R** rows, **N** tokens of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.config import ModelConfig, ObjectiveConfig
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step, in_order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.masked import MaskedCerebro, Reconstruction
from cerebro_eeg.model.masks import token_counts
from cerebro_eeg.runs.seen import name_windows, note_seen, read_alone, read_steps
from cerebro_eeg.train import draws
from cerebro_eeg.train.distributed import World
from cerebro_eeg.train.loop import evaluating

Sources = Sequence[tuple[Store, Windows]]
Ready = tuple[Batch, Tensor]
"""Windows on the device, and the numbers that choose their masked tokens."""


@dataclass(frozen=True)
class Piece:
    """Windows of a step that are computed at once, and the tokens of the whole step."""

    raw: RawStep
    masked: int
    visible: int
    ready: Ready | None = None
    """Of a step's first piece: the others would fill the device."""


class MaskedTask:
    """Masked reconstruction, as the loop wants it."""

    names: tuple[str, ...] = ("masked", "visible")

    def __init__(
        self,
        sources: Sources,
        order: Order,
        loader: Loader,
        config: ModelConfig,
        objective: ObjectiveConfig,
        seed: int,
        world: World,
        pieces: int,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._windows = [windows for _, windows in sources]
        self._order, self._loader, self._seed = order, loader, seed
        self._config, self._objective = config, objective
        self._world, self._pieces, self._dtype = world, pieces, dtype
        self._tokens = config.patches.count(max(windows.samples for windows in self._windows))
        self._rows = [windows.channels.astype(np.int64) * config.patches.rows for windows in self._windows]

    def pieces(self, first: int, last: int) -> Iterator[Sequence[Piece]]:
        for step, raws in read_steps(self._order, self._loader, self._world, self._pieces, first, last):
            masked, visible = self._counts(step)
            yield [Piece(raw, masked, visible, None if place else self._prepare(raw)) for place, raw in enumerate(raws)]

    def share(self, module: nn.Module, piece: Piece) -> tuple[Tensor, Tensor]:
        found = self._reconstruct(module, piece.raw, piece.ready)
        masked = found.masked_sum / max(1, piece.masked)
        visible = found.visible_sum / max(1, piece.visible)
        return masked + self._objective.alpha * visible, torch.stack([masked, visible]).detach()

    def windows(self, piece: Piece) -> list[str]:
        return name_windows(self._windows, piece.raw.step)

    def alone(self, module: nn.Module, piece: Piece) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, self._windows, piece.raw.step):
            yield name, self._reconstruct(module, raw).loss

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, self._windows, self._order.step(step - 1))

    def _reconstruct(self, module: nn.Module, raw: RawStep, ready: Ready | None = None) -> Reconstruction:
        found: Reconstruction = module(*(ready or self._prepare(raw)))
        return found

    def _prepare(self, raw: RawStep) -> Ready:
        """What the model is called with. The loop asks for the next step while the device computes the one before."""
        device = self._world.device
        batch = lay_out(raw, device, self._dtype)
        noise_RN = mask_noise(self._config, batch.layout, raw.key_B, raw.epoch_B, self._seed, self._tokens, device)
        return batch, noise_RN

    def _counts(self, step: Step) -> tuple[int, int]:
        """Masked and visible tokens of all processes."""
        rows = np.empty(len(step), np.int64)
        for number, of_source in enumerate(self._rows):
            mine = step.source == number
            rows[mine] = of_source[step.window[mine]]
        return token_counts(rows.tolist(), self._tokens, self._objective.mask_ratio)


def mask_noise(
    config: ModelConfig, layout: Layout, key_B: Tensor, epoch_B: Tensor, seed: int, tokens: int, device: torch.device
) -> Tensor:
    """(R, N) uniform numbers that choose the masked tokens: of each window its own, wherever it is computed."""
    if config.patches.phase != "none":
        layout, _ = layout.doubled(config.patches.phase == "separated", device)
    key_B = onto(draws.window_keys(seed, key_B, epoch_B, draws.MASK), device)
    if layout.slot_R is None:
        row_R = torch.arange(layout.windows * layout.width, device=device) % max(1, layout.width)
    else:
        row_R = layout.slot_R % layout.width
    place_RN = row_R[:, None] * tokens + torch.arange(tokens, device=device)
    return draws.uniform(layout.per_row(key_B)[:, None], place_RN)


@torch.no_grad()
def validate(
    model: MaskedCerebro,
    module: nn.Module,
    sources: Sources,
    world: World,
    batch: int,
    dtype: torch.dtype = torch.float16,
) -> dict[str, float]:
    """Masked and visible error over all windows of the sources, with masks that never change."""
    counts = [len(windows) for _, windows in sources]
    if sum(counts) == 0:
        return {}
    config, objective = model.config, model.objective
    whole = next(in_order(counts, sum(counts)))
    # Every process computes the same number of pieces, because a sharded forward pass needs all of them.
    shared = len(whole) >= world.size
    mine = whole.part(world.rank, world.size) if shared else whole
    pieces = max(1, min(-(-len(whole) // (world.size * batch)), len(whole) // world.size if shared else len(whole)))
    totals = torch.zeros(4, dtype=torch.float64, device=world.device)
    with evaluating(module), Loader(sources, threads=2) as loader:
        for raw in loader.stream(mine.part(number, pieces) for number in range(pieces)):
            layout_batch = lay_out(raw, world.device, dtype)
            tokens = config.patches.count(raw.samples)
            noise_RN = mask_noise(config, layout_batch.layout, raw.key_B, raw.epoch_B, 0, tokens, world.device)
            found = module(layout_batch, noise_RN)
            totals += torch.stack([found.masked_sum, found.masked_count, found.visible_sum, found.visible_count])
    masked, masked_count, visible, visible_count = (world.sum(totals) if shared else totals).tolist()
    masked, visible = masked / max(1.0, masked_count), visible / max(1.0, visible_count)
    return {
        "validation_masked": masked,
        "validation_visible": visible,
        "validation_loss": masked + objective.alpha * visible,
    }
