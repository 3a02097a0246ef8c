"""Two ways to compute windows that arrive one after the other: a CUDA graph, and plain calls with packed weights.

Both own the memory that windows are copied into. ``model/live.py`` reads and checks the windows. A :class:`Snapshot`
tells whether a module still has the tensors and parts that it had when its graph was recorded.

Legend: **B** windows, **C** channels, **T** samples, **R** rows (channels of all windows).
"""

import contextlib
import contextvars
import threading
import weakref
from collections import Counter
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
"""Checks a window and the model, and raises if something is wrong."""
WARM_UP = 3
MARKS = 8
"""The number of values per weight that are compared before each call on a CPU, to notice a change."""

_turn = threading.Lock()
"""Keeps other threads from replaying a graph while another one is captured."""
STREAMS = 32


@dataclass(frozen=True)
class WindowMemory:
    """The memory that every window is copied into."""

    host_BCT: Tensor
    """Page-locked memory for a GPU; on a CPU, the memory of the batch itself."""
    signal_BCT: Tensor
    batch: Batch

    @staticmethod
    def make(shape: tuple[int, int, int], ids: Any, scaled: bool, like: Tensor) -> "WindowMemory":
        dtype = torch.promote_types(like.dtype, torch.float32)
        host_BCT = torch.zeros(shape, dtype=dtype, pin_memory=like.is_cuda)
        signal_BCT = host_BCT if like.is_cpu else torch.zeros(shape, dtype=dtype, device=like.device)
        ids_R2 = torch.tensor(ids, device=like.device).repeat(shape[0], 1)
        scale_R = torch.ones(len(ids_R2), dtype=dtype, device=like.device) if scaled else None
        layout = Layout.uniform(*shape[:2])
        return WindowMemory(host_BCT, signal_BCT, Batch(signal_BCT.flatten(0, 1), ids_R2, layout, scale_R))

    def write(self, x_BCT: NDArray[Any]) -> Tensor:
        """Copy a window of any type, byte order and strides into this memory, and return it."""
        np.copyto(self.host_BCT.numpy(), x_BCT, casting="same_kind")
        return self.host_BCT

    def write_scale(self, scale_B: Tensor | None) -> None:
        if scale_B is not None and self.batch.scale_R is not None:
            self.batch.scale_R.copy_(self.batch.layout.per_row(scale_B))


class Direct:
    """A model that computes every call anew; on a CPU in float32, with weights in the order that oneDNN reads."""

    def __init__(self, compute: Compute, place: WindowMemory, module: nn.Module | None) -> None:
        """Pack the weights of ``module``; None uses weights as they are."""
        self.place = place
        self._given = compute
        self._module = module
        layers = [] if module is None else list(module.modules())
        self._weights = [layer.weight.detach() for layer in layers if eligible.plain_on_cpu(layer, nn.Linear)]
        self.packs = bool(self._weights) and torch.backends.mkldnn.is_available()
        self._context = contextvars.Context()
        self._release: Callable[[], object] | None = None
        self._pack()
        self._compute()  # errors appear here, not in the first call

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
        """Return some values of every weight. They also show an update through ``.data``, which torch does not note."""
        return torch.cat([weight.reshape(-1)[:: max(1, weight.numel() // MARKS)] for weight in self._weights])

    def _pack(self) -> None:
        """Pack the weights in a context of this object, so that other calls of the model do not use them."""
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
    """A CUDA graph with its own memory and stream, which are given up with this object."""

    def __init__(self, compute: Compute, place: WindowMemory) -> None:
        self.place = place
        self._device = place.signal_BCT.device
        self._sent = torch.cuda.Event()
        self._graph = torch.cuda.CUDAGraph()
        self._stream = own_stream(self, self._device)
        compute(place.batch)  # may compile, which is slow: outside of the lock, so that other objects can go on
        with _aside(self._stream) as stream:
            for _ in range(WARM_UP):
                compute(place.batch)
            # "thread_local": other threads may use the GPU during the capture without an error.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found = compute(place.batch)

    def __call__(self, x_BCT: Tensor | NDArray[Any], scale_B: Tensor | None, check: Check) -> Tensor:
        found = torch.empty_like(self._found)
        with _aside(self._stream):
            if isinstance(x_BCT, Tensor):
                looked_at = x_BCT
                self.place.signal_BCT.copy_(x_BCT)
            else:
                self._sent.synchronize()  # until the previous window has left the host
                looked_at = self.place.write(x_BCT)
                self.place.signal_BCT.copy_(looked_at, non_blocking=True)
                self._sent.record()
            self.place.write_scale(scale_B)
            self._graph.replay()
            found.copy_(self._found)
        check(looked_at)
        return found


_owners: Counter[tuple[int | None, int]] = Counter()
"""How many living objects have each stream, by device and handle."""
_released: dict[int | None, list[torch.cuda.Stream]] = {}
"""Streams of objects that are gone. They come first, because cuBLAS keeps a workspace for every stream that it saw."""


def own_stream(owner: object, device: torch.device) -> torch.cuda.Stream:
    """Return a stream that no other living owner has, as long as there are such: torch hands 32 out in turns.

    From torch 2.12 on, a graph that is freed takes the workspace that cuBLAS has for its stream with it. Another graph
    of that stream would go on using this memory.
    """
    released = _released.setdefault(device.index, [])
    stream = released.pop() if released else _new_stream(device)
    _owners[device.index, stream.cuda_stream] += 1
    weakref.finalize(owner, _release, stream, device.index)
    return stream


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device)
        if not _owners[device.index, stream.cuda_stream]:
            break
    return stream


def _release(stream: torch.cuda.Stream, index: int | None) -> None:
    _owners[index, stream.cuda_stream] -= 1
    if not _owners[index, stream.cuda_stream]:
        _released[index].append(stream)


@contextlib.contextmanager
def _aside(stream: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """Run on a stream, after all present work of the current stream and before its next work."""
    current = torch.cuda.current_stream(stream.device)
    with _turn:
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                yield stream
        finally:
            current.wait_stream(stream)


class Snapshot:
    """The tensors and parts of a module as they were at one moment.

    A recorded CUDA graph reads weights at their addresses of that moment. It sees values that change in place, but
    would silently ignore a parameter that was replaced or moved. A snapshot keeps the old tensors, so that a replay
    never reads memory with other content. :meth:`change` takes some microseconds: it does not walk through the module.
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
        """Return a description of a change of the module; None if there is none.

        It notices hooks, parameters, buffers and parts that were replaced, removed or added, and tensors that moved
        (another device or precision, ``.data`` set). It does not notice a replaced ``forward``.
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
