"""ProcessGroup: the processes that train together, and the operations that they share.

A single process needs no group. Under ``torchrun`` each process reads its rank from the environment and joins the
others, over gloo on CPUs and over NCCL on GPUs. DDP wraps the whole module; FSDP2 shards its blocks and then the rest.
Parameters stay float32, and autocast chooses the precision of the arithmetic.
"""

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cerebro_eeg.errors import ConfigError

Strategy = Literal["ddp", "fsdp"]
TRIES = 3
"""How often each number of threads is timed."""
CLEARLY = 1.5
"""Fewer threads are taken where they are so many times as fast."""


@dataclass(frozen=True)
class ProcessGroup:
    """The rank of this process among those that train together, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    strategy: Strategy = "ddp"

    @property
    def first(self) -> bool:
        """Whether this process prints and writes for all."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes, computed in place."""
        if self.size > 1:
            torch.distributed.all_reduce(x)
        return x

    def gather(self, x: object) -> list[Any]:
        """Return the objects of all processes, in order of rank. It is slow, so it is for rare and small objects."""
        if self.size == 1:
            return [x]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, x)
        return found

    def broadcast(self, x: Tensor) -> Tensor:
        """Return the tensor of the first process, copied in place."""
        if self.size > 1:
            torch.distributed.broadcast(x, 0)
        return x

    def barrier(self) -> None:
        """Wait until all processes have come to this call."""
        if self.size > 1:
            torch.distributed.barrier()


@contextlib.contextmanager
def process_group(device: str = "auto", strategy: Strategy = "ddp", minutes: float = 10.0) -> Iterator[ProcessGroup]:
    """Join the process group while the block lasts.

    An operation fails when another process has not answered for ``minutes``.
    """
    if strategy not in ("ddp", "fsdp"):
        raise ConfigError(f"strategy is {strategy!r}; choose ddp or fsdp")
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _RANKS)
    chosen = choose_device(device, local)
    if size == 1 and strategy == "ddp":
        yield ProcessGroup(device=chosen)
        return
    if chosen.type == "mps":
        raise ConfigError("several processes need CPUs or CUDA GPUs; say --device cpu")
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    alone = "RANK" not in os.environ  # a single process that shards still needs a group, but no network
    store: Any = HashStore() if alone else None
    torch.distributed.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        store=store,
        rank=rank if alone else -1,
        world_size=size if alone else -1,
        timeout=timedelta(minutes=minutes),
    )
    try:
        yield ProcessGroup(rank, size, chosen, strategy)
    finally:
        torch.distributed.destroy_process_group()


_RANKS = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def choose_device(asked: str, local: int = 0) -> torch.device:
    """Return the device of this process; "auto" takes a GPU if there is one."""
    if asked == "auto":
        others = "mps" if torch.backends.mps.is_available() else "cpu"
        asked = "cuda" if torch.cuda.is_available() else others
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(f"device is {asked!r}; expected auto, cpu, cuda, cuda:1, ... or mps") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device is {asked!r}, and torch finds no GPU here; say --device cpu, or see doctor")
        device = torch.device("cuda", local if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def choose_threads(asked: int | None) -> None:
    """Set the CPU threads of this process; None takes torch's choice, or fewer on a busy machine.

    Threads that wait for each other are far slower than one where other programs use the same cores. OMP_NUM_THREADS
    is a user's choice and stays.
    """
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"threads is {asked}; it must be at least 1")
        torch.set_num_threads(asked)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(suitable_threads(torch.get_num_threads()))


def suitable_threads(most: int) -> int:
    """Return how many threads multiply matrices fastest right now: ``most``, unless fewer are clearly faster.

    Trying takes about a tenth of a second. ``most`` is preferred, because the last bits of results depend on threads.
    """
    counts = sorted({most, max(1, most // 2), 1}, reverse=True)
    if len(counts) == 1:
        return most
    before, seconds = torch.get_num_threads(), dict.fromkeys(counts, 0.0)
    try:
        for count in counts * TRIES:  # in turns
            torch.set_num_threads(count)
            seconds[count] += _seconds_of_products()
    finally:
        torch.set_num_threads(before)
    fastest = min(counts, key=lambda count: seconds[count])
    return fastest if seconds[most] > CLEARLY * seconds[fastest] else most


def _seconds_of_products() -> float:
    """Return the seconds of some products of matrices, each of which waits for its slowest thread."""
    a = torch.ones(384, 384)
    a @ a  # starts the threads
    began = time.perf_counter()
    for _ in range(10):
        a @ a
    return time.perf_counter() - began


def wrap(module: nn.Module, blocks: list[nn.Module], processes: ProcessGroup) -> nn.Module:
    """Return the module as the group trains it: itself, under DDP, or sharded. Its parameters keep their names."""
    if processes.strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        # Only the blocks and the root are sharded, never the encoder itself: MaskedCerebro calls `tokens`, `place` and
        # `run` of the encoder outside of its `forward`.
        for part in (*blocks, module):
            fully_shard(part)
        return module
    if processes.size == 1:
        return module
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, gradient_as_bucket_view=True)


@contextlib.contextmanager
def syncing(wrapped: nn.Module, last: bool) -> Iterator[None]:
    """Let the processes exchange gradients only in the ``last`` micro-batch of a step."""
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(wrapped, DistributedDataParallel):
        with contextlib.nullcontext() if last else wrapped.no_sync():
            yield
        return
    with warnings.catch_warnings():
        set_sync: Any = getattr(wrapped, "set_requires_gradient_sync", None)
        if set_sync is not None:  # FSDP2
            set_sync(last)
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # no code writes into it
        yield


def resharded(module: nn.Module) -> nn.Module:
    """Return the module with its own, sharded parameters in place.

    After a forward pass without a backward pass, FSDP2 leaves gathered parameters in the module. Call this before you
    look at parameters.
    """
    for part in module.modules():
        reshard: Any = getattr(part, "reshard", None)
        if reshard is not None:
            reshard()
    return module


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded. All processes must call this together."""
    gather: Any = getattr(tensor.detach(), "full_tensor", None)
    return tensor.detach() if gather is None else gather()


def _is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded. Only FSDP2 imports the class of such tensors, which takes seconds."""
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def copy_into(whole_tensor: Tensor, target: Any) -> None:
    """Copy a whole tensor, which every process has, into one that may be sharded."""
    with torch.no_grad():
        if _is_sharded(target):
            from torch.distributed.tensor import distribute_tensor

            whole_tensor = distribute_tensor(whole_tensor.to(target.device), target.device_mesh, target.placements)
        target.copy_(whole_tensor)
