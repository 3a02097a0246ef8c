"""What a CUDA graph is, on a CPU: the calls of torch's operators in a computation, repeated on the same memory.

Like a graph, a recording knows no Python: numbers that were on the host are repeated as they were, a tensor that was
replaced is read where it used to be, and a wait for the device or a copy from the host cannot be recorded. Nothing is
computed by recording: what it wrote to memory from before is put back. Memory is never shared, and there are no
streams; only a GPU can test these.
"""

import contextlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cerebro_eeg.fast import capture

ON_HOST = {  # operators whose result, or its shape, the host has to know, or that copy from the host
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "lift_fresh",
    "_linalg_eigh",
    "_unique2",
    "unique_consecutive",
}


class CallRecorder:
    """Records and replays computations, in place of ``CudaGraphs``. It counts what it did."""

    places = 0
    """Recorders that were made: each has a stream and memory of its own."""
    recorded = 0
    replays = 0

    def __init__(self, device):
        type(self).places += 1

    def aside(self):
        return contextlib.nullcontext()

    def record(self, compute):
        with _Recording() as calls:
            found = compute()
        calls.undo()
        type(self).recorded += 1

        def replay():
            type(self).replays += 1
            calls.repeat()

        return replay, found


class _Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self._calls, self._own, self._before = [], set(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name in ON_HOST or (name == "index" and any(_is_mask(x) for x in args[1])):
            raise RuntimeError(f"{name} waits for the device or copies from the host")
        given = _tensors((args, kwargs))
        if func._schema.is_mutable:
            self._keep(func, args, kwargs)
        found = func(*args, **kwargs)
        storages = {_storage(x) for x in given}
        new = [x for x in _tensors(found) if _storage(x) not in storages]
        self._own.update(_storage(x) for x in new)
        if new or func._schema.is_mutable:  # a view computes nothing
            self._calls.append((func, args, kwargs, found, {id(x) for x in new}))
        return found

    def _keep(self, func, args, kwargs):
        """Keep what a call will overwrite of memory from before the recording."""
        named = dict(zip((x.name for x in func._schema.arguments), args, strict=False), **kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for x in _tensors(named.get(argument.name)):
                if _storage(x) not in self._own and _storage(x) not in self._before:
                    self._before[_storage(x)] = x.untyped_storage(), x.untyped_storage().clone()

    def undo(self):
        for storage, content in self._before.values():
            storage.copy_(content)

    @torch.no_grad()
    def repeat(self):
        for func, args, kwargs, found, new in self._calls:
            again = func(*args, **kwargs)
            for old, fresh in zip(_tensors(found), _tensors(again), strict=True):
                if id(old) in new:
                    old.detach().copy_(fresh)


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for part in tree for x in _tensors(part)] if isinstance(tree, list | tuple) else []


def _storage(x):
    return x.untyped_storage()._cdata


def _is_mask(x):
    return isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8)


@contextlib.contextmanager
def recorded_calls():
    """Let the CPU have graphs: steps are laid out for them, recorded and replayed. Yields what counts."""
    from cerebro_eeg.runs import store_predictions, training
    from cerebro_eeg.train.optim import adamw

    class Counting(CallRecorder):
        """Counts of its own."""

    def fused(module, groups, betas, fused, capturable):  # its learning rates may be tensors, as on a GPU
        return adamw(module, groups, betas, fused=True)

    with contextlib.ExitStack() as stack:
        for module in (capture, training, store_predictions):
            stack.enter_context(mock.patch.object(module, "has_graphs", return_value=True))
        stack.enter_context(mock.patch.object(capture, "recorder_of", Counting))
        stack.enter_context(mock.patch.object(training, "adamw", fused))
        yield Counting
