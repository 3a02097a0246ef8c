"""Montages that a call names itself: ``model(x, ch_names=..., channel_positions=...)``.

A benchmark hands one model many data sets, and the channels with every batch. Each list of names is matched once and
kept. Names decide; positions place only the labels that are not understood, where the model's policy ``unknown`` asks
for the nearest electrode. So windows of one batch may have different positions, and even different channels.

Legend: **B** windows, **C** channels, **T** samples, **R** rows.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.match import ChannelMatch, positions_matter
from cerebro_eeg.errors import InputError

ABSENT = -0.1
"""NeuralBench marks a channel that a recording lacks by this number in place of x, y and z."""

Places = NDArray[np.float64]
Points = Sequence[Sequence[float]]
Matcher = Callable[[Sequence[str], Points | None], ChannelMatch]


@dataclass
class Known:
    """A montage that was matched, with a count of the windows of compiled calls that trained it."""

    match: ChannelMatch
    windows: Tensor


class Montages:
    """The montages that calls have named so far. The model's own montage is not among them."""

    def __init__(self) -> None:
        self.by_names: dict[tuple[str, ...], Known] = {}
        """Montages whose positions do not matter, by the labels. Compiled code looks them up."""
        self._by_places: dict[bytes, Known] = {}
        """Other montages, by a sum of labels and positions. Every head is another; equal matches share one entry."""

    def known(self, names: Sequence[str] | None) -> Known | None:
        """Return the montage of these names, if it was matched before without positions."""
        plain = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return self.by_names.get(tuple(names)) if plain and names is not None else None

    def all(self) -> list[Known]:
        """Return all montages, each once."""
        return list({id(known): known for known in (*self.by_names.values(), *self._by_places.values())}.values())

    def find(
        self,
        x_BCT: Tensor,
        names: Sequence[str] | None,
        positions: Any,
        policies: dict[str, Any],
        matcher: Matcher,
    ) -> list[tuple[Known, Tensor | None]]:
        """Return the montages of a batch, each with its windows; None for a single one, which all windows have."""
        if x_BCT.dim() != 3:
            raise InputError(f"the array has the shape {tuple(x_BCT.shape)}; expected (windows, channels, samples)")
        windows, channels = x_BCT.shape[:2]
        places = None if positions is None else read_positions(positions, windows, channels)
        labels = _labels(names, channels, policies["unknown"])
        if places is None or not positions_matter(labels, policies["unknown"], policies["bipolar_ears"]):
            if labels not in self.by_names:
                self.by_names[labels] = self._new(matcher(labels, None), x_BCT.device)
            return [(self.by_names[labels], None)]
        distinct, which = np.unique(places.reshape(len(places), -1), axis=0, return_inverse=True)
        found = [self._placed(matcher, labels, row.reshape(channels, 3), x_BCT.device) for row in distinct]
        if all(known is found[0] for known in found):
            return [(found[0], None)]
        number_B = torch.from_numpy(which.reshape(-1))
        return [(known, torch.nonzero(number_B == number).flatten()) for number, known in enumerate(found)]

    def _placed(
        self, matcher: Matcher, labels: tuple[str, ...], places_C3: NDArray[Any], device: torch.device
    ) -> Known:
        key = hashlib.sha256(repr(labels).encode() + places_C3.tobytes()).digest()
        if key not in self._by_places:
            match = matcher(labels, places_C3.tolist())
            equal = (known for known in self._by_places.values() if _same(known.match, match))
            self._by_places[key] = next(equal, None) or self._new(match, device)
        return self._by_places[key]

    def _new(self, match: ChannelMatch, device: torch.device) -> Known:
        return Known(match, torch.zeros((), dtype=torch.int64, device=device))


def _same(a: ChannelMatch, b: ChannelMatch) -> bool:
    return (a.ids, a.index, len(a.rows)) == (b.ids, b.index, len(b.rows))


def _labels(names: Sequence[str] | None, channels: int, unknown: str) -> tuple[str, ...]:
    """Return the labels of the channels of a call; numbers for channels that have only positions."""
    if names is None:
        if not unknown.startswith("nearest"):
            raise InputError(
                "channel_positions was given without ch_names, to a model that knows channels by name; give ch_names, "
                'too, or make the model with unknown="nearest"'
            )
        return tuple(f"channel {number}" for number in range(1, channels + 1))
    if isinstance(names, str) or not hasattr(names, "__len__") or not all(isinstance(name, str) for name in names):
        raise InputError(f"ch_names is {names!r:.60}; give a list of one name a channel")
    if len(names) != channels:
        raise InputError(f"ch_names has {len(names)} names for windows of {channels} channels; give one name a channel")
    return tuple(str(name) for name in names)


def read_positions(positions: Any, windows: int, channels: int) -> Places:
    """Return places in metres, (B, C, 3), or (1, C, 3) for all windows. A channel without one has NaN."""
    if isinstance(positions, Tensor) and (torch.compiler.is_exporting() or positions.is_meta):
        raise InputError("channel_positions cannot be read while a model is exported; give ch_names, or set_channels")
    try:
        found = np.asarray(positions.detach().cpu() if isinstance(positions, Tensor) else positions, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("channel_positions is not an array of numbers; give x, y and z in metres a channel") from error
    if found.shape not in ((channels, 3), (windows, channels, 3)):
        raise InputError(
            f"channel_positions has the shape {found.shape}; expected ({channels}, 3) or ({windows}, {channels}, 3): "
            "x, y and z in metres of each channel of the windows"
        )
    found = found.reshape(-1, channels, 3).copy()
    absent = (np.abs(found - ABSENT) < 1e-6).all(-1) | ~np.isfinite(found).all(-1) | (found == 0).all(-1)
    found[absent] = np.nan
    return found


def mixed(parts: Sequence[tuple[Batch, Tensor]], scale_B: Tensor | None) -> Batch:
    """Return one batch of windows of several montages, in the order of their numbers."""
    windows: dict[int, tuple[Tensor, Tensor]] = {}
    for batch, numbers in parts:
        width = batch.layout.width
        rows = zip(batch.signal_RT.split(width), batch.channels_R2.split(width), strict=True)
        windows.update(zip(numbers.tolist(), rows, strict=True))
    ordered = [windows[number] for number in sorted(windows)]
    return Batch.ragged([signal for signal, _ in ordered], [ids for _, ids in ordered], scale_B)
