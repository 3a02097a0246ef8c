"""What follows from an ``Engine``: precision, pieces that fit into memory, kernels and compilation."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import compile_model, use
from cerebro_eeg.model.encoder import Stack
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train.distributed import World, choose_threads
from cerebro_eeg.train.loop import Precision, deterministic

SPARE = 0.6
"""Share of the free memory of a GPU that kept activations may take; the rest is for gradients and what is in flight."""
CPU_BYTES = 2 << 30
"""Kept activations on a CPU, whose caches make larger pieces no faster."""


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


@contextlib.contextmanager
def in_force(engine: Engine) -> Iterator[None]:
    """Kernels, determinism and threads, which hold for all of the process: afterwards they are what they were."""
    threads = torch.get_num_threads()
    with (
        use("auto" if engine.kernels == "ours" else "stock"),
        deterministic() if engine.deterministic else contextlib.nullcontext(),
    ):
        choose_threads(engine.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def prepare(engine: Engine, world: World, model: nn.Module) -> None:
    """Set a model's checkpointing, precision between blocks and compilation, which must be before the first step."""
    for part in model.modules():
        if isinstance(part, Stack):
            part.recompute = engine.recompute
            part.float32_residual = engine.residual == "fp32"
    if _compiles(engine, world):
        compile_model(model)


def _compiles(engine: Engine, world: World) -> bool:
    return engine.compile == "yes" or (engine.compile == "auto" and world.device.type == "cuda")


def describe(engine: Engine, world: World, pieces: int, precision: str) -> dict[str, Any]:
    """What ``run.json`` keeps of it: a bitwise repetition needs the same."""
    return {
        "processes": world.size,
        "strategy": world.strategy,
        "device": world.device.type,
        "pieces": pieces,
        "precision": precision,
        "residual": engine.residual if precision == "bf16" else precision,
        "threads": torch.get_num_threads(),
        "deterministic": engine.deterministic,
        "kernels": engine.kernels,
        "compiled": _compiles(engine, world),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What rounds otherwise than where a run was before, in words; with other processes everything does."""
    if before.get("processes") != now["processes"]:
        return []
    found = []
    if before.get("threads", now["threads"]) != now["threads"]:
        found.append(f"{counted(now['threads'], 'thread')} after {before['threads']}")
    # Before there was a choice, blocks added in the precision of the weights.
    old = {"residual": "fp64" if before.get("precision") == "fp64" else "fp32", **before}
    for name in ("device", "precision", "residual", "kernels", "compiled", "deterministic"):
        if name in old and old[name] != now[name]:
            found.append(f"{name} {_word(now[name])} after {_word(old[name])}")
    return found


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def usual_channels(windows: Sequence[Windows]) -> int:
    """Channels of a window, for how much memory a piece needs: the mean of 32 windows is hardly ever above it."""
    counts = np.concatenate([of_source.channels for of_source in windows]).astype(np.float64)
    return min(int(counts.max()), math.ceil(counts.mean() + 4 * counts.std() / math.sqrt(32)))
