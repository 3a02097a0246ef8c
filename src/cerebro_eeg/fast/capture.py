"""CUDA graphs of whole computations: a training step, or a forward pass over the windows of a store.

A small model computes a step in 3 ms on a large GPU, while Python needs ten times as long to launch its kernels. A
CUDA graph launches them all at once. It repeats exactly the same kernels, so results are the same bits.

A graph holds for one form of the inputs, that is for one set of shapes. :class:`Capture` computes the first inputs of a
form plainly, which also compiles kernels and fills caches. The second time it records, and from then on it replays.
All its graphs share one pool of memory, because they never run at the same time. What cannot be recorded is computed
plainly, and ``Capture.refused`` says why.
"""

import contextlib
import contextvars
import functools
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Inputs = Sequence[Tensor | None]
"""Tensors on the device, in an order that the caller knows."""
_captures = contextvars.ContextVar("captures", default=False)


@contextlib.contextmanager
def capturing(on: bool) -> Iterator[None]:
    """Allow or forbid CUDA graphs for the duration of a ``with`` block. Results are the same bits."""
    token = _captures.set(on)
    try:
        yield
    finally:
        _captures.reset(token)


def can_capture(device: torch.device) -> bool:
    """Return whether computations on a device may become CUDA graphs."""
    return _captures.get() and device.type == "cuda" and torch.version.hip is None


def constant(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor on a device. On a GPU it is made once.

    A copy from the host makes the CPU wait for the GPU, and a CUDA graph cannot repeat it.
    """
    if device.type != "cuda" or torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _kept(numbers, device, dtype)


@functools.lru_cache(maxsize=256)
def _kept(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)


@dataclass
class _Recorded:
    """The graphs for one form, with the memory that the inputs are copied into."""

    inputs: list[Tensor | None]
    first: torch.cuda.CUDAGraph
    found: Tensor
    then: torch.cuda.CUDAGraph | None

    def write(self, given: Inputs) -> None:
        for own, new in zip(self.inputs, given, strict=True):
            if own is not None and new is not None:
                own.copy_(new)


class Pending:
    """A result that the GPU still computes, on its way to the host."""

    def __init__(self, found: Tensor) -> None:
        self._host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        self._host.copy_(found, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def wait(self) -> Tensor:
        """Wait for the result, and return it on the host."""
        self._done.synchronize()
        return self._host


class Capture:
    """Computes a function of tensors, as a CUDA graph from the second time on that inputs have one form.

    Parameters
    ----------
    compute : returns one tensor from a form and the tensors of the inputs. It must not read anything else that changes,
        and must neither wait for the GPU nor copy from the host.
    then : a second half, such as the update of a training step. It may use what the first half has left behind, such as
        gradients, and is called by ``proceed``, so that the caller may look at the result before.
    """

    def __init__(
        self,
        compute: Callable[[Hashable, Inputs], Tensor],
        device: torch.device,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._compute, self._then, self._device = compute, then, device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.MemPool()
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._now: _Recorded | None = None
        self.refused: str | None = None
        """Why the computation cannot be recorded; None where it can, or was not tried yet."""

    def __call__(self, form: Hashable, inputs: Inputs) -> Tensor:
        """Return the result; the next call overwrites it. Work of the current stream comes before it."""
        key = (form, *(None if x is None else (x.shape, x.dtype) for x in inputs))
        with self._aside():
            again = key in self._seen and can_capture(self._device)
            if again and key not in self._recorded and self.refused is None:
                self._record(key, form, inputs)
            self._seen.add(key)
            self._now = self._recorded.get(key) if again else None
            if self._now is None:
                with torch.cuda.use_mem_pool(self._pool):
                    return self._compute(form, inputs)
            self._now.write(inputs)
            self._now.first.replay()
            return self._now.found

    def pending(self, form: Hashable, inputs: Inputs) -> Pending:
        """Begin to compute, and return the result on its way to the host."""
        found = self(form, inputs)
        with torch.cuda.stream(self._stream):
            return Pending(found)

    def proceed(self) -> None:
        """Compute the second half of the last call."""
        assert self._then is not None
        with self._aside():
            if self._now is None or self._now.then is None:
                with torch.cuda.use_mem_pool(self._pool):
                    self._then()
            else:
                self._now.then.replay()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Work on the stream of the graphs, after all present work of the current stream and before its next work."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def _record(self, key: Hashable, form: Hashable, inputs: Inputs) -> None:
        """Record the graphs for a form, or note why that is not possible. Nothing is computed here."""
        own = [None if x is None else torch.empty_like(x) for x in inputs]
        first, then = torch.cuda.CUDAGraph(), None if self._then is None else torch.cuda.CUDAGraph()
        try:
            with _without_collection():
                with self._graph(first):
                    found = self._compute(form, own)
                if then is not None and self._then is not None:
                    with self._graph(then):
                        self._then()
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.refused = " ".join(str(error).split())[:200]
            torch.cuda.synchronize(self._device)
            return
        self._recorded[key] = _Recorded(own, first, found, then)

    def _graph(self, graph: torch.cuda.CUDAGraph) -> contextlib.AbstractContextManager[None]:
        # "thread_local": other threads may use the GPU during the capture without an error.
        pool: Any = self._pool.id
        recording: contextlib.AbstractContextManager[None] = torch.cuda.graph(graph, pool, self._stream, "thread_local")
        return recording


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: a tensor or graph that is freed during a capture would break it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
