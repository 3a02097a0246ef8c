"""Batches that stay on a GPU between two validations, which would otherwise read and copy the same windows again."""

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence

import torch
from torch import Tensor

LaidOut = tuple[Hashable, Sequence[Tensor | None]]
"""The form of a batch and its tensors, as ``data/batching/filling.py`` takes it apart."""
SHARE = 1 / 32
"""Of the free memory of a GPU, for the batches of one validation."""


class KeptBatches:
    """The batches of some windows, which are made once if they fit into a small share of the GPU's memory.

    On a CPU they are made anew each time, because they would take the memory that the system reads files with.
    Trainings at the same time, ``at_once``, share what one would take.
    """

    def __init__(self, device: torch.device, at_once: int = 1) -> None:
        self._device, self._share = device, SHARE / at_once
        self._room: int | None = None if device.type == "cuda" else 0
        self._of: tuple[object, int] = None, 0
        self._kept: list[LaidOut] | None = None

    def of(self, windows: object, size: int, make: Callable[[], Iterable[LaidOut]]) -> Generator[LaidOut, None, None]:
        """Yield the batches of so many ``windows`` each, as ``make`` always makes them. They must not be changed."""
        if self._kept is not None and self._of[0] is windows and self._of[1] == size:
            yield from self._kept
            return
        self._of, self._kept = (windows, size), None  # the old ones first make room
        kept: list[LaidOut] = []
        taken = 0
        for one in make():
            taken += sum(x.nbytes for x in one[1] if x is not None)
            if taken <= self._most():
                kept.append(one)
            else:
                kept.clear()
            yield one
        self._kept = kept if taken <= self._most() else None

    def _most(self) -> int:
        """Return the bytes that may be kept, as the first call finds the GPU."""
        if self._room is None:
            self._room = int(self._share * torch.cuda.mem_get_info(self._device)[0])
        return self._room
