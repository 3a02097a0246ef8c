"""Two ways to compute one window after the other: as a replayed CUDA graph, and call by call with packed weights.

Both own the memory that windows are copied into. ``model/live.py`` reads and checks the windows. A :class:`Snapshot`
says whether a module still has the tensors and parts that it had when its graph was recorded.

Legend: **B** windows, **C** channels, **T** samples, **R** rows (channels of all windows).
"""

import contextlib
import contextvars
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.fast import eligible
from cerebro_eeg.fast.linear_layer import packed

Compute = Callable[[Batch], Tensor]
"""The model as a function of a batch."""
Check = Callable[[Tensor], None]
"""Looks at a window; raises where something is wrong with it or with the model."""
WARM_UP = 3
MARKS = 8
"""Numbers of each weight that are compared before each call on a CPU."""

_turn = threading.Lock()
"""Nobody may put work on the stream of the graphs while one is captured on it."""


@dataclass(frozen=True)
class WindowMemory:
    """Where windows are put, the same for all of them."""

    host_BCT: Tensor
    """Pinned for a GPU; on a CPU, what the batch holds itself."""
    signal_BCT: Tensor
    batch: Batch

    @staticmethod
    def make(shape: tuple[int, int, int], ids: Any, scaled: bool, like: Tensor) -> "WindowMemory":
        dtype = torch.promote_types(like.dtype, torch.float32)
        with _aside(like.device):
            host_BCT = torch.zeros(shape, dtype=dtype, pin_memory=like.is_cuda)
            signal_BCT = host_BCT if like.is_cpu else torch.zeros(shape, dtype=dtype, device=like.device)
            ids_R2 = torch.tensor(ids, device=like.device).repeat(shape[0], 1)
            scale_R = torch.ones(len(ids_R2), dtype=dtype, device=like.device) if scaled else None
        layout = Layout.uniform(*shape[:2])
        return WindowMemory(host_BCT, signal_BCT, Batch(signal_BCT.flatten(0, 1), ids_R2, layout, scale_R))

    def write(self, x_BCT: NDArray[Any]) -> Tensor:
        """Any kind of number, order of bytes or strides becomes what the model reads."""
        np.copyto(self.host_BCT.numpy(), x_BCT, casting="same_kind")
        return self.host_BCT

    def write_scale(self, scale_B: Tensor | None) -> None:
        if scale_B is not None and self.batch.scale_R is not None:
            self.batch.scale_R.copy_(self.batch.layout.per_row(scale_B))


class Direct:
    """Computes in every call; on a CPU in float32, with weights in the order in which oneDNN reads them."""

    def __init__(self, compute: Compute, place: WindowMemory, module: nn.Module | None) -> None:
        """Compute with the weights of ``module`` packed, or, for None, as they are."""
        self.place = place
        self._given = compute
        self._module = module
        layers = [] if module is None else list(module.modules())
        self._weights = [layer.weight.detach() for layer in layers if eligible.plain_on_cpu(layer, nn.Linear)]
        self.packs = bool(self._weights) and torch.backends.mkldnn.is_available()
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
        return self._context.run(self._given, self.place.batch)

    def _marks(self) -> Tensor:
        """Some numbers of every weight: an update behind torch's back (through ``.data``) changes them, too."""
        return torch.cat([weight.reshape(-1)[:: max(1, weight.numel() // MARKS)] for weight in self._weights])

    def _pack(self) -> None:
        """Packed weights live in a context of our own: nobody else's layers take them."""
        if not self.packs or self._module is None:
            return
        if self._release is not None:
            self._release()
        self._marked = self._marks()
        self._context = contextvars.Context()
        manager = packed(self._module)
        self._context.run(manager.__enter__)
        self._release = weakref.finalize(self, self._context.run, manager.__exit__, None, None, None)


class Replay:
    """A CUDA graph with memory of its own, which goes with this object.

    All graphs of a device are captured and replayed on one stream, so they never run at the same time: they share the
    workspace that cuBLAS has for a stream.
    """

    def __init__(self, compute: Compute, place: WindowMemory) -> None:
        self.place = place
        self._device = place.signal_BCT.device
        self._sent = torch.cuda.Event()
        self._graph = torch.cuda.CUDAGraph()
        compute(place.batch)  # compiles, which takes long, while other objects go on
        with _aside(self._device) as stream:
            for _ in range(WARM_UP):
                compute(place.batch)
            # What other threads do on the GPU meanwhile is their own affair, and no mistake.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found = compute(place.batch)

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


class Snapshot:
    """The tensors and parts of a module as they were at one moment.

    A recorded CUDA graph reads weights where they lay then. Numbers that change in place are seen; a parameter that was
    replaced or moved would silently not be. The old tensors are kept, so that a replay never reads memory that now
    holds something else. Asking costs some microseconds: there is no walk through the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[Mapping[str, object], str, object, str]] = []
        self._tables: list[tuple[Mapping[str, object], int, str]] = []
        self._tensors: list[tuple[Tensor, int, str, Tensor]] = []
        self._hooks: list[tuple[Mapping[int, object], str]] = []
        for path, part in module.named_modules():
            for table in (part._modules, part._parameters, part._buffers):
                self._tables.append((table, len(table), path or "the model"))
                for name, held in table.items():
                    full = f"{path}.{name}" if path else name
                    self._places.append((table, name, held, full))
                    if isinstance(held, Tensor):
                        self._tensors.append((held, held.data_ptr(), full, held.detach()))
            self._hooks += [(hooks, path or "the model") for hooks in (part._forward_hooks, part._forward_pre_hooks)]

    def change(self) -> str | None:
        """Return what happened to the module since, in words; None where nothing did.

        Noticed are parameters, buffers and parts that were replaced, removed or added, tensors that moved (another
        device or precision, ``.data`` set) and hooks. A ``forward`` that was exchanged is not.
        """
        for table, name, held, full in self._places:
            if table.get(name) is not held:
                return f"{full} was replaced"
        for table, size, path in self._tables:
            if len(table) != size:
                return f"{path} has got another part"
        for tensor, address, full, _ in self._tensors:
            if tensor.data_ptr() != address:
                return f"{full} was moved, to another device or precision or by setting .data"
        for hooks, path in self._hooks:
            if hooks:
                return f"{path} has got a hook, which would not be called"
        return None
