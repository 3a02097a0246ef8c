"""Engine: the choices of how to train that do not change what is learned, and what follows from them."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model import short_axis
from cerebro_eeg.model.encoder import Stack
from cerebro_eeg.schema import require, settle
from cerebro_eeg.train.distributed import World
from cerebro_eeg.train.loop import Precision

SPARE = 0.6
"""Share of the free memory of a GPU that kept activations may take; the rest is for gradients and what is in flight."""
CPU_BYTES = 2 << 30
"""Kept activations on a CPU, whose caches make larger pieces no faster."""


@dataclass(frozen=True)
class Engine:
    """How a run is carried out."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Across processes: whole copies, or shards of the weights."""
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto"
    """Of the arithmetic; auto: bf16 on a GPU that has it. fp64 is to compare runs with."""
    micro_batch: int | None = None
    """Windows that a process computes at once; none: what fits into its memory."""
    compile: bool | None = None
    """Compile each block; none: on a GPU."""
    kernels: Literal["ours", "stock"] = "ours"
    """On a GPU: ours for attention along a short axis and GELU, measured on an H200 only, or torch's alone."""
    recompute: bool = False
    """Gradient checkpointing: less memory, a third more time."""
    deterministic: bool = False
    """Bitwise equal repetitions on a GPU, too."""
    threads: int | None = None
    """Of a process on the CPU; none: torch's choice."""
    readers: int = 2
    """Threads that read windows."""
    save_minutes: float = 10.0
    """Between two saves of the state."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Beside metrics.jsonl."""

    def __post_init__(self) -> None:
        settle(self)
        require(self.micro_batch is None or self.micro_batch >= 1, f"micro_batch is {self.micro_batch}; at least 1")
        require(self.threads is None or self.threads >= 1, f"threads is {self.threads}; it must be at least 1")
        require(self.readers >= 0, f"readers is {self.readers}; it must be at least 0")
        require(self.save_minutes > 0, f"save_minutes is {self.save_minutes}; it must be positive")


def choose_precision(engine: Engine, device: torch.device) -> Precision:
    """bf16 where it was asked for, or where the GPU has it."""
    if engine.precision != "auto":
        return engine.precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def choose_pieces(engine: Engine, world: World, config: ModelConfig, channels: int, samples: int, batch: int) -> int:
    """Pieces that each process cuts its part of a step into; all have at least one window in each."""
    if batch < world.size:
        raise ConfigError(
            f"a batch of {batch} cannot be shared by {world.size} processes; use fewer, or a larger batch"
        )
    micro = engine.micro_batch
    if micro is None:
        free = CPU_BYTES
        if world.device.type == "cuda":
            free = int(SPARE * torch.cuda.mem_get_info(world.device)[0])
        kept = cost(config, channels, samples)
        needed = kept.forward_bytes if engine.recompute else kept.forward_bytes + kept.backward_bytes
        if choose_precision(engine, world.device) == "bf16":  # most of what is kept is then half as large
            needed = needed * 2 // 3
        micro = max(1, free // max(1, needed))
    most = -(-batch // world.size)
    return min(-(-most // micro), batch // world.size)


def prepare(engine: Engine, world: World, model: nn.Module) -> None:
    """Set kernels, determinism, checkpointing and compilation, which must be before the first step."""
    short_axis.choose("auto" if engine.kernels == "ours" else "stock")
    if engine.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = engine.recompute
            if engine.compile if engine.compile is not None else world.device.type == "cuda":
                part.compile_parts()


def describe(engine: Engine, world: World, pieces: int, precision: str) -> dict[str, Any]:
    """What ``run.json`` keeps of it: a bitwise repetition needs the same."""
    return {
        "processes": world.size,
        "strategy": world.strategy,
        "device": world.device.type,
        "pieces": pieces,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "deterministic": engine.deterministic,
        "kernels": engine.kernels,
    }


def usual_channels(windows: Sequence[Windows]) -> int:
    """Channels of a window, for how much memory a piece needs: the mean of 32 windows is hardly ever above it."""
    counts = np.concatenate([of_source.channels for of_source in windows]).astype(np.float64)
    return min(int(counts.max()), math.ceil(counts.mean() + 4 * counts.std() / math.sqrt(32)))
