"""Finetuning: classes or values of labelled windows, with the paper's augmentation, smoothing and drop path.

Legend: **B** windows, **R** rows, **T** samples, **K** outputs.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.batch import Batch, onto
from cerebro_eeg.config import FinetuneConfig
from cerebro_eeg.data.batching.loader import Loader, RawStep, lay_out
from cerebro_eeg.data.batching.order import Order, Step
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.runs.seen import name_windows, note_seen, read_alone, read_steps
from cerebro_eeg.train import draws
from cerebro_eeg.train.distributed import World

Ready = tuple[Batch, Tensor]
"""Windows on the device, with noise, and the numbers that decide drop path."""


@dataclass(frozen=True)
class Piece:
    """Windows of a step that are computed at once, and what the whole step's windows weigh together."""

    raw: RawStep
    weight: float
    ready: Ready | None = None
    """Of a step's first piece: the others would fill the device."""


@dataclass(frozen=True)
class Scaling:
    """Targets of a regression as the head learns them: zero mean and unit deviation over the training windows."""

    mean_K: NDArray[np.float64]
    std_K: NDArray[np.float64]


def scaling_of(windows: Windows) -> Scaling:
    """Of the training windows."""
    assert windows.target is not None
    target = windows.target.astype(np.float64)
    std = target.std(0)
    return Scaling(target.mean(0), np.where(std > 0, std, 1.0))


def class_weights(windows: Windows, balanced: bool) -> NDArray[np.float64]:
    """One for each class; balanced: so that all classes weigh the same over the training windows."""
    count = np.bincount(windows.label, minlength=len(windows.names)).astype(np.float64)
    if not balanced:
        return np.ones_like(count)
    present = count > 0
    weights = np.zeros_like(count)
    weights[present] = count.sum() / (present.sum() * count[present])
    return weights


class LabelTask:
    """Classification or regression, as the loop wants it."""

    def __init__(
        self,
        windows: Windows,
        order: Order,
        loader: Loader,
        config: FinetuneConfig,
        depth: int,
        balanced: bool,
        seed: int,
        world: World,
        pieces: int,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        self._windows, self._order, self._loader = windows, order, loader
        self._config, self._depth, self._seed = config, depth, seed
        self._world, self._pieces, self._dtype = world, pieces, dtype
        self._scaling = None if windows.target is None else scaling_of(windows)
        self._weights = np.ones(1) if windows.target is not None else class_weights(windows, balanced)
        self.names: tuple[str, ...] = ("accuracy",) if windows.target is None else ()

    def pieces(self, first: int, last: int) -> Iterator[Sequence[Piece]]:
        for step, raws in read_steps(self._order, self._loader, self._world, self._pieces, first, last):
            weight = self._weigh(step)
            yield [Piece(raw, weight, None if place else self._prepare(raw)) for place, raw in enumerate(raws)]

    def share(self, module: nn.Module, piece: Piece) -> tuple[Tensor, Tensor]:
        output_BK = self._forward(module, piece.ready or self._prepare(piece.raw))
        loss, right = self._errors(output_BK, piece.raw)
        values = torch.stack([right / self._order.batch_size]) if self.names else output_BK.new_zeros(0)
        return loss / piece.weight, values.detach()

    def windows(self, piece: Piece) -> list[str]:
        return name_windows([self._windows], piece.raw.step)

    def alone(self, module: nn.Module, piece: Piece) -> Iterator[tuple[str, Tensor]]:
        for name, raw in read_alone(self._loader, [self._windows], piece.raw.step):
            yield name, self._errors(self._forward(module, self._prepare(raw)), raw)[0]

    def note(self, step: int, notes: dict[str, Any]) -> None:
        note_seen(notes, [self._windows], self._order.step(step - 1))

    def _prepare(self, raw: RawStep) -> Ready:
        """What the model is called with. The loop asks for the next step while the device computes the one before."""
        device = self._world.device
        batch = self._noisy(lay_out(raw, device, self._dtype), raw)
        drop_B = self._keys(raw, draws.DROP_PATH)
        place_K2 = torch.arange(2 * self._depth, device=device).reshape(self._depth, 2, 1)
        return batch, draws.uniform(drop_B, place_K2)

    def _forward(self, module: nn.Module, ready: Ready) -> Tensor:
        batch, noise_K2B = ready
        output: Tensor = module(batch, noise_K2B=noise_K2B)
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output

    def _keys(self, raw: RawStep, purpose: int) -> Tensor:
        """Made on the CPU: dozens of operations on a few numbers, each of which would be a kernel."""
        return onto(draws.window_keys(self._seed, raw.key_B, raw.epoch_B, purpose), self._world.device)

    def _noisy(self, batch: Batch, raw: RawStep) -> Batch:
        """Gaussian noise, in proportion to each channel's deviation, on a share of the windows."""
        if self._config.noise_ratio == 0 or self._config.noise_probability == 0:
            return batch
        choice_B = self._keys(raw, draws.NOISE_CHOICE)
        noisy_B = draws.uniform(choice_B, torch.zeros_like(choice_B)) < self._config.noise_probability
        layout, signal_RT = batch.layout, batch.signal_RT
        noise_B = self._keys(raw, draws.NOISE)
        rows, samples = signal_RT.shape
        width = max(1, layout.width)
        slot_R = torch.arange(rows, device=noise_B.device) if layout.slot_R is None else layout.slot_R
        place_RT = (slot_R % width)[:, None] * samples + torch.arange(samples, device=noise_B.device)
        noise_RT = draws.normal(layout.per_row(noise_B)[:, None], place_RT)
        full_RT = signal_RT.to(torch.promote_types(signal_RT.dtype, torch.float32))
        size_R1 = (
            self._config.noise_ratio * full_RT.std(-1, correction=0, keepdim=True) * layout.per_row(noisy_B)[:, None]
        )
        return dataclasses.replace(batch, signal_RT=full_RT + size_R1 * noise_RT)

    def _errors(self, output_BK: Tensor, raw: RawStep) -> tuple[Tensor, Tensor]:
        """The sum of the windows' losses, each with its weight, and the number of right answers."""
        if self._scaling is None:
            label_B = raw.label_B.to(output_BK.device, non_blocking=True)
            weight_K = onto(torch.tensor(self._weights, dtype=output_BK.dtype), output_BK.device)
            loss = functional.cross_entropy(
                output_BK, label_B, weight_K, reduction="sum", label_smoothing=self._config.label_smoothing
            )
            return loss, (output_BK.argmax(1) == label_B).sum()
        assert raw.target_BK is not None
        mean_K, std_K = (torch.tensor(x, dtype=output_BK.dtype) for x in (self._scaling.mean_K, self._scaling.std_K))
        wanted_BK = onto((raw.target_BK - mean_K) / std_K, output_BK.device).to(output_BK.dtype)
        loss = (output_BK - wanted_BK).square().mean(1).sum()
        return loss, loss.new_zeros(())

    def _weigh(self, step: Step) -> float:
        if self._scaling is not None:
            return float(len(step))
        return float(max(self._weights[self._windows.label[step.window]].sum(), 1e-12))
