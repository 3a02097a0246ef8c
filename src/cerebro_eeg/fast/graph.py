"""Two ways to compute the same for one window after the other: as a replayed CUDA graph, and call by call.

Both own the memory that windows are put into, and modules of their own around the tensors of the model. ``captured.py``
says what comes in and checks it.

Legend: **B** windows, **C** channels, **T** samples, **R** rows (channels of all windows).
"""

import contextlib
import contextvars
import copy
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import cpu
from cerebro_eeg.model.encoder import Encoder

if TYPE_CHECKING:
    from cerebro_eeg.model.cerebro import Cerebro

Output = Literal["output", "window", "channel", "token"]
Check = Callable[[Tensor], None]
"""Looks at a window; raises where something is wrong with it or with the model."""
WARM_UP = 3
MARKS = 8
"""Numbers of each weight that are compared before each call on a CPU."""

_turn = threading.Lock()
"""Nobody may put work on the stream of the graphs while one is captured on it."""


@dataclass(frozen=True)
class Parts:
    """Encoder and head, and what of them is asked for."""

    encoder: Encoder
    final_layer: nn.Module
    level: Output
    autocast: bool
    """To bf16."""

    @staticmethod
    def sharing(model: "Cerebro", level: Output, autocast: bool) -> "Parts":
        """Modules of our own around the model's tensors: their mode and their compilation are nobody else's."""
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        encoder, final_layer = copy.deepcopy((model.encoder, model.final_layer), shared)
        return Parts(encoder.eval(), final_layer.eval(), level, autocast)

    def __call__(self, batch: Batch) -> Tensor:
        # Weights that autocast has cast may not be kept from one call to the next inside of a captured graph.
        kind = batch.signal_RT.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, self.autocast, cache_enabled=False):
            tokens = self.encoder(batch)
            found = {
                "output": lambda: self.final_layer(tokens.per_window()),
                "window": tokens.per_window,
                "channel": tokens.per_channel,
                "token": lambda: tokens.layout.grid(tokens.x_RND),
            }[self.level]()
            if not isinstance(found, Tensor):
                raise ConfigError(f"final_layer gives a {type(found).__name__}; only a tensor can be captured")
            return found.to(torch.promote_types(found.dtype, torch.float32))


@dataclass(frozen=True)
class Place:
    """Where windows are put, the same for all of them."""

    host_BCT: Tensor
    """Pinned for a GPU; on a CPU, what the batch holds itself."""
    signal_BCT: Tensor
    batch: Batch

    @staticmethod
    def make(shape: tuple[int, int, int], ids: Any, scaled: bool, like: Tensor) -> "Place":
        dtype = torch.promote_types(like.dtype, torch.float32)
        with _aside(like.device):
            host_BCT = torch.zeros(shape, dtype=dtype, pin_memory=like.is_cuda)
            signal_BCT = host_BCT if like.is_cpu else torch.zeros(shape, dtype=dtype, device=like.device)
            ids_R2 = torch.tensor(ids, device=like.device).repeat(shape[0], 1)
            scale_R = torch.ones(len(ids_R2), dtype=dtype, device=like.device) if scaled else None
        layout = Layout.uniform(*shape[:2])
        return Place(host_BCT, signal_BCT, Batch(signal_BCT.flatten(0, 1), ids_R2, layout, scale_R))

    def write(self, x_BCT: NDArray[Any]) -> Tensor:
        """Any kind of number, order of bytes or strides becomes what the model reads."""
        np.copyto(self.host_BCT.numpy(), x_BCT, casting="same_kind")
        return self.host_BCT

    def write_scale(self, scale_B: Tensor | None) -> None:
        if scale_B is not None and self.batch.scale_R is not None:
            self.batch.scale_R.copy_(self.batch.layout.per_row(scale_B))


class Direct:
    """Computes in every call; on a CPU in float32, with weights in the order in which oneDNN reads them."""

    def __init__(self, parts: Parts, place: Place) -> None:
        self.place = place
        self._parts = parts
        self._weights = [part.weight.detach() for part in parts.encoder.modules() if cpu.is_plain(part, nn.Linear)]
        self.packs = bool(self._weights) and torch.backends.mkldnn.is_available() and not parts.autocast
        self._context = contextvars.Context()
        self._release: Callable[[], object] | None = None
        self._pack()
        self._compute()  # what is wrong shows here, not in the first call

    def __call__(self, x_BCT: Tensor | NDArray[Any], scale_B: Tensor | None, check: Check) -> Tensor:
        assert isinstance(x_BCT, np.ndarray)
        check(self.place.write(x_BCT))
        self.place.write_scale(scale_B)
        if self.place.signal_BCT is not self.place.host_BCT:
            self.place.signal_BCT.copy_(self.place.host_BCT)
        if self.packs and not torch.equal(self._marks(), self._marked):
            self._pack()
        return self._compute()

    def _compute(self) -> Tensor:
        return self._context.run(self._parts, self.place.batch)

    def _marks(self) -> Tensor:
        """Some numbers of every weight: an update behind torch's back (through ``.data``) changes them, too."""
        return torch.cat([weight.reshape(-1)[:: max(1, weight.numel() // MARKS)] for weight in self._weights])

    def _pack(self) -> None:
        """Packed weights live in a context of our own: nobody else's layers take them."""
        if not self.packs:
            return
        if self._release is not None:
            self._release()
        self._marked = self._marks()
        self._context = contextvars.Context()
        manager = cpu.packed(self._parts.encoder)
        self._context.run(manager.__enter__)
        self._release = weakref.finalize(self, self._context.run, manager.__exit__, None, None, None)


class Replay:
    """A CUDA graph with memory of its own, which goes with this object.

    All graphs of a device are captured and replayed on one stream, so they never run at the same time: they share the
    workspace that cuBLAS has for a stream.
    """

    def __init__(self, parts: Parts, place: Place) -> None:
        self.place = place
        self._device = place.signal_BCT.device
        self._sent = torch.cuda.Event()
        self._graph = torch.cuda.CUDAGraph()
        parts(place.batch)  # compiles, which takes long, while other objects go on
        with _aside(self._device) as stream:
            for _ in range(WARM_UP):
                parts(place.batch)
            # What other threads do on the GPU meanwhile is their own affair, and no mistake.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found = parts(place.batch)

    def __call__(self, x_BCT: Tensor | NDArray[Any], scale_B: Tensor | None, check: Check) -> Tensor:
        found = torch.empty_like(self._found)
        with _aside(self._device):
            if isinstance(x_BCT, Tensor):
                looked_at = x_BCT
                self.place.signal_BCT.copy_(x_BCT)
            else:
                self._sent.synchronize()  # the window before has left the host
                looked_at = self.place.write(x_BCT)
                self.place.signal_BCT.copy_(looked_at, non_blocking=True)
                self._sent.record()
            self.place.write_scale(scale_B)
            self._graph.replay()
            found.copy_(self._found)
        check(looked_at)
        return found


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _aside(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """On the stream of all graphs, after what the current stream has to do and before what it gets next."""
    if device.type != "cuda":
        yield None
        return
    stream, current = _stream(device), torch.cuda.current_stream(device)
    with _turn:
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield stream
        current.wait_stream(stream)
