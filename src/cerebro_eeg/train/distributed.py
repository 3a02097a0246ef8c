"""World: the processes that train together, and what they do together.

One process needs nothing. Started by ``torchrun``, each process finds its place in the variables that it sets, and
they meet: over gloo on CPUs, over NCCL on GPUs. The module is wrapped whole (DDP), or its blocks and then the rest are
sharded (FSDP2); parameters stay float32, and autocast chooses the precision of the arithmetic.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cerebro_eeg.errors import ConfigError

Strategy = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class ProcessGroup:
    """The place of this process among those that train together."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    strategy: Strategy = "ddp"

    @property
    def first(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(x)
        return x

    def gather(self, x: object) -> list[Any]:
        """What each process says, on all of them; for rare and small things."""
        if self.size == 1:
            return [x]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, x)
        return found

    def share(self, x: Tensor) -> Tensor:
        """The tensor of the first process, in place."""
        if self.size > 1:
            torch.distributed.broadcast(x, 0)
        return x

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            torch.distributed.barrier()


@contextlib.contextmanager
def process_group(device: str = "auto", strategy: Strategy = "ddp", minutes: float = 10.0) -> Iterator[ProcessGroup]:
    """The world of this process for as long as the block lasts; ``minutes`` without word from another is its end."""
    if strategy not in ("ddp", "fsdp"):
        raise ConfigError(f"strategy is {strategy!r}; choose ddp or fsdp")
    rank, size, local = (int(os.environ.get(name, default)) for name, default in _PLACE)
    chosen = choose_device(device, local)
    if size == 1 and strategy == "ddp":
        yield ProcessGroup(device=chosen)
        return
    if chosen.type == "mps":
        raise ConfigError("several processes need CPUs or CUDA GPUs; say --device cpu")
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    alone = "RANK" not in os.environ  # one process that shards: it still needs a group, but no network
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


_PLACE = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def choose_device(asked: str, local: int = 0) -> torch.device:
    """The device of this process: "auto" for a GPU where there is one."""
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
    """Threads of this process on the CPU; None leaves torch's choice. Several on a busy machine may be far slower."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"threads is {asked}; it must be at least 1")
        torch.set_num_threads(asked)


def wrap(module: nn.Module, blocks: list[nn.Module], world: ProcessGroup) -> nn.Module:
    """The module as the world trains it: itself, under DDP, or sharded. Its parameters keep their names."""
    if world.strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in (*blocks, module):
            fully_shard(part)  # blocks and the rest, no more: other parts use their parameters outside forward
        return module
    if world.size == 1:
        return module
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, gradient_as_bucket_view=True)


@contextlib.contextmanager
def syncing(wrapped: nn.Module, last: bool) -> Iterator[None]:
    """Gradients of all processes are brought together only in the last of a step's pieces."""
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(wrapped, DistributedDataParallel):
        with contextlib.nullcontext() if last else wrapped.no_sync():
            yield
        return
    with warnings.catch_warnings():
        set_sync: Any = getattr(wrapped, "set_requires_gradient_sync", None)
        if set_sync is not None:  # FSDP2
            set_sync(last)
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing writes into it
        yield


def at_rest(module: nn.Module) -> nn.Module:
    """The module with its own parameters in place: FSDP2 leaves gathered ones there after a forward pass alone."""
    for part in module.modules():
        reshard: Any = getattr(part, "reshard", None)
        if reshard is not None:
            reshard()
    return module


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded over the processes; all of them must ask."""
    gather: Any = getattr(tensor.detach(), "full_tensor", None)
    return tensor.detach() if gather is None else gather()


def _is_sharded(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def put(whole_tensor: Tensor, into: Any) -> None:
    """Copy a whole tensor, which every process has, into one that may be sharded."""
    with torch.no_grad():
        if _is_sharded(into):
            from torch.distributed.tensor import distribute_tensor

            whole_tensor = distribute_tensor(whole_tensor.to(into.device), into.device_mesh, into.placements)
        into.copy_(whole_tensor)
