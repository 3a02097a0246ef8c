"""CUDA graphs of whole computations: a training step, or a forward pass over the windows of a store.

A small model computes a step in 3 ms on a large GPU, while Python needs ten times as long to launch its kernels. A
CUDA graph launches them all at once. It repeats exactly the same kernels, so results are the same bits.

A graph holds for one form of the inputs, that is for one set of shapes. :class:`Capture` computes the first inputs of a
form plainly, which also compiles kernels and fills caches. The second time it computes plainly, records, replays, and
compares. Only a graph that gives what the plain computation gives is replayed from then on. What differs, or cannot be
recorded in three tries, is computed plainly, and ``Capture.refused`` says why.
"""

import contextlib
import contextvars
import functools
import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from cerebro_eeg.fast.graph import Snapshot, own_stream

Inputs = Sequence[Tensor | None]
"""Tensors on the device, in an order that the caller knows."""
T = TypeVar("T")
TRIES = 3
"""Failures to record after which nothing is recorded any more; another thread may have disturbed the first ones."""
MOST_FORMS = 12
"""Forms that are recorded; others are computed plainly. Each new one may need more memory."""
SAME = 1e-3
"""Relative difference up to which a replay gives what the plain computation gave: sums may have another order."""
_captures = contextvars.ContextVar("captures", default=True)


@contextlib.contextmanager
def capturing(on: bool) -> Iterator[None]:
    """Allow or forbid CUDA graphs for the duration of a ``with`` block. Results are the same bits."""
    token = _captures.set(on)
    try:
        yield
    finally:
        _captures.reset(token)


def has_graphs(device: torch.device) -> bool:
    """Return whether a device has CUDA graphs."""
    return device.type == "cuda" and torch.version.hip is None


def can_capture(device: torch.device) -> bool:
    """Return whether computations on a device may become CUDA graphs."""
    return _captures.get() and has_graphs(device)


def constant(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers as a tensor on a device. On a GPU it is made once.

    A copy from the host makes the CPU wait for the GPU, and a CUDA graph cannot repeat it.
    """
    if not has_graphs(device) or torch.compiler.is_compiling():
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _kept(numbers, device, dtype)


@functools.lru_cache(maxsize=256)
def _kept(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)


class Pending:
    """A result that the GPU still computes, on its way to the host."""

    def __init__(self, found: Tensor) -> None:
        self._host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        self._host.copy_(found, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def wait(self) -> Tensor:
        """Wait for the result, and return it on the host, in ordinary memory."""
        self._done.synchronize()
        return self._host.clone()


def on_its_way(found: Tensor) -> Callable[[], Tensor]:
    """Return a function that waits for a result and returns it on the CPU. Later work of a GPU is not waited for."""
    return Pending(found).wait if found.is_cuda else found.cpu


def one_behind(begun: Iterable[tuple[T, Callable[[], Tensor]]]) -> Iterator[tuple[T, Tensor]]:
    """Yield what was begun with its result, each once the next one has begun.

    So a GPU computes one result while the host reads what the next one is made of.
    """
    last: list[tuple[T, Callable[[], Tensor]]] = []
    for one in begun:
        if last:
            what, wait = last.pop()
            yield what, wait()
        last.append(one)
    for what, wait in last:
        yield what, wait()


class Recorder(Protocol):
    """Records computations of a device and replays them. :class:`CudaGraphs` is the one that the package has."""

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Work after all present work of the caller, and before its next work."""

    def record(self, compute: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Return a function that repeats a computation, and where its results will be. Nothing is computed here.

        A RuntimeError says why the computation cannot be recorded.
        """


class CudaGraphs:
    """Records computations of one GPU as CUDA graphs, and replays them on a stream of its own.

    All graphs share one pool of memory, because they never run at the same time. They must be given up together
    (``own_stream``).
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, own_stream(self, device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def record(self, compute: Callable[[], T]) -> tuple[Callable[[], None], T]:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # "thread_local": other threads may use the GPU during the capture without an error.
            with _without_collection(), torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                found = compute()
        except RuntimeError:
            leave_capture(self._device, before, self._pool)
            raise
        return graph.replay, found


def leave_capture(device: torch.device, stream: torch.cuda.Stream, pool: Any) -> None:
    """Restore what a failed capture leaves changed: the stream, the allocator, and a generator that no step can use."""
    torch.cuda.set_stream(stream)
    with contextlib.suppress(RuntimeError, AttributeError):  # torch has ended it already, or another torch
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with contextlib.suppress(RuntimeError):  # the error of the capture may be reported once more
        torch.cuda.synchronize(device)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())


@dataclass
class _Recorded:
    """What was recorded for one form, with the memory that the inputs are copied into."""

    inputs: list[Tensor | None]
    first: Callable[[], None]
    found: Tensor
    then: Callable[[], None] | None

    def __call__(self, given: Inputs) -> Tensor:
        """Repeat the computation for other inputs, and return the result; the next call overwrites it."""
        pairs = [(own, new) for own, new in zip(self.inputs, given, strict=True) if own is not None and new is not None]
        torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])
        self.first()
        return self.found


class Capture:
    """Computes a function of tensors, as a CUDA graph from the second time on that inputs have one form.

    Parameters
    ----------
    compute : returns one tensor from a form and the tensors of the inputs. It must not read anything else that changes,
        and must neither wait for the GPU nor copy from the host. It must not hold this object: graphs keep their memory
        until it is freed. For the second inputs of a form it is called more than once.
    then : a second half, such as the update of a training step. It may use what the first half has left behind, such as
        gradients, and is called by ``proceed``, so that the caller may look at the result before.
    module : the model whose weights are read. A graph reads them where they were when it was recorded. Where tensors or
        parts have been replaced since, what was recorded is thrown away.
    """

    def __init__(
        self,
        compute: Callable[[Hashable, Inputs], Tensor],
        device: torch.device,
        then: Callable[[], None] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self._compute, self._then, self._device = compute, then, device
        self._module, self._snapshot = module, None if module is None else Snapshot(module)
        self._recorder: Recorder | None = None
        self._seen: set[Hashable] = set()
        self._recorded: dict[Hashable, _Recorded] = {}
        self._now: _Recorded | None = None
        self._failures = 0
        self.refused: str | None = None
        """Why computations are not replayed; None where they are, or where that was not tried yet."""

    def __call__(self, form: Hashable, inputs: Inputs) -> Tensor:
        """Return the result; the next call overwrites it."""
        key = (form, *(None if x is None else (x.shape, x.dtype) for x in inputs))
        self._now = None
        if can_capture(self._device):
            self._forget_changed()
            if key in self._seen and key not in self._recorded and self.refused is None:
                self._try(key, form, inputs)
            self._now = self._recorded.get(key)
        self._seen.add(key)
        if self._now is None or self._recorder is None:
            return self._plain(form, inputs)
        with self._recorder.aside():
            return self._now(inputs)

    def pending(self, form: Hashable, inputs: Inputs) -> Callable[[], Tensor]:
        """Begin to compute, and return a function that waits for the result and returns it on the CPU."""
        return on_its_way(self(form, inputs).clone())  # the next call overwrites it

    def proceed(self) -> None:
        """Compute the second half of the last call."""
        assert self._then is not None
        if self._now is None or self._now.then is None or self._recorder is None:
            self._then()
            return
        with self._recorder.aside():
            self._now.then()

    def _plain(self, form: Hashable, inputs: Inputs) -> Tensor:
        """Compute without a graph. The memory of other graphs is given up if there is too little."""
        try:
            return self._compute(form, inputs)
        except torch.OutOfMemoryError:
            if not self._recorded:
                raise
        self._give_up("the GPU has too little memory for graphs of several shapes")
        return self._compute(form, inputs)

    def _try(self, key: Hashable, form: Hashable, inputs: Inputs) -> None:
        """Record the computation for a form, and keep it if it gives what the plain computation gives."""
        if len(self._recorded) >= MOST_FORMS:
            return
        reason = "a graph did not give what the plain computation gives"
        if self._recorder is None:
            self._recorder = recorder_of(self._device)
        with self._recorder.aside():
            try:
                # On the stream of the recording: libraries make their workspaces for each stream.
                plain = self._compute(form, inputs)
                own = [None if x is None else x.clone() for x in inputs]
                first, found = self._recorder.record(lambda: self._compute(form, own))
                then = None if self._then is None else self._recorder.record(self._then)[0]
                recorded = _Recorded(own, first, found, then)
                if is_same(recorded(inputs), plain):
                    self._recorded[key] = recorded
                    return
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                self._failures = TRIES if isinstance(error, torch.OutOfMemoryError) else self._failures + 1
                if self._failures < TRIES:
                    self._recorded, self._recorder = {}, None  # graphs are given up together
                    return
        self._give_up(reason)

    def _forget_changed(self) -> None:
        """Throw away what was recorded if it would read tensors that the model no longer has."""
        if self._module is None or self._snapshot is None or self._snapshot.change() is None:
            return
        self._recorded, self._recorder = {}, None
        self._snapshot = Snapshot(self._module)
        if (reason := self._snapshot.change()) is not None:  # a hook, which a graph would not call
            self.refused = reason

    def _give_up(self, reason: str) -> None:
        """Throw all graphs away, with their memory, and compute plainly from now on."""
        self._recorded, self._recorder, self._now, self.refused = {}, None, None, reason


def is_same(found: Tensor, plain: Tensor) -> bool:
    """Return whether two results differ by no more than the order of sums can make them differ."""
    found, plain = found.detach().double(), plain.detach().double()
    largest = float(plain.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if plain.numel() else 0.0
    return torch.allclose(found, plain, rtol=SAME, atol=SAME**2 * largest, equal_nan=True)


def recorder_of(device: torch.device) -> Recorder:
    """Return what records the computations of a device."""
    return CudaGraphs(device)


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
