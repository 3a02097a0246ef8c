"""Held: the tensors and parts of a module as they were at one moment, and whether they still are.

What is recorded once (a CUDA graph) reads weights where they lay then. Numbers that change in place are seen; a
parameter that was replaced, or that ``to`` moved, would silently not be. Their memory is kept, so that looking at old
weights is never looking at somebody else's memory.
"""

from collections.abc import Mapping

from torch import Tensor, nn


class Held:
    """Remembers a module. Asking costs some microseconds: there is no walk through the module."""

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
        """What happened to the module since, in words; None where nothing did.

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
