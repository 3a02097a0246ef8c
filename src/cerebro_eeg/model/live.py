"""Captured, a model prepared for windows of one shape that arrive one after the other, as from a live device.

On a GPU, launching the kernels of a small model takes longer than computing them. Here all launches are recorded once
as a CUDA graph. A call copies the window to the memory that the graph reads, and launches everything at once. On a CPU
the weights are stored once in the order that oneDNN reads (``fast.packed``). Other devices compute as usual. Inputs,
checks and outputs are the same on all devices. :meth:`cerebro_eeg.Cerebro.captured` makes a captured model.

Legend: **B** windows, **C** channels, **T** samples.
"""

import copy
import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.match import ChannelMatch
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import eligible
from cerebro_eeg.fast.graph import Direct, Replay, Snapshot, WindowMemory
from cerebro_eeg.model import inputs
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import Readout

if TYPE_CHECKING:
    from cerebro_eeg.model.cerebro import Cerebro

Precision = Literal["auto", "bf16", "fp32"]
Output = Literal["output", "window", "channel", "token"]
NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Compute:
    """Encoder and head as a function from a batch to the output of the chosen level."""

    encoder: Encoder
    readout: Readout | None
    """What the head reads; None for the mean of the last tokens."""
    final_layer: nn.Module
    level: Output
    autocast: bool
    """Whether to compute in bf16 by autocast."""

    @staticmethod
    def sharing(model: "Cerebro", level: Output, autocast: bool) -> "Compute":
        """Copy the modules, but not the tensors, of a model, so that the copy can be in eval mode and compiled."""
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        encoder, readout, final_layer = copy.deepcopy((model.encoder, model.readout, model.final_layer), shared)
        return Compute(encoder.eval(), readout, final_layer.eval(), level, autocast)

    def __call__(self, batch: Batch) -> Tensor:
        # A captured graph must cast its weights in every call, so autocast may not cache the casts.
        kind = batch.signal_RT.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, self.autocast, cache_enabled=False):
            if self.readout is not None and self.level in ("output", "window"):
                features_BP = self.readout(batch, self.encoder)
                found = self.final_layer(features_BP) if self.level == "output" else features_BP
            else:
                tokens = self.encoder(batch)
                found = {
                    "output": lambda: self.final_layer(tokens.per_window()),
                    "window": tokens.per_window,
                    "channel": tokens.per_channel,
                    "token": lambda: tokens.layout.grid(tokens.x_RND),
                }[self.level]()
            if not isinstance(found, Tensor):
                raise ConfigError(f"final_layer gives a {type(found).__name__}; only a tensor can be captured")
            return found.to(torch.promote_types(found.dtype, torch.float32))


class Captured:
    """A model in eval mode, without gradients, as a function of windows (B, C, T) in microvolts.

    Each call returns a new tensor on the model's device, in at least float32. Threads may share the object: their calls
    take turns.
    """

    def __init__(
        self,
        model: "Cerebro",
        montage: ChannelMatch,
        windows: int,
        n_times: int,
        level: Output,
        precision: Precision,
        compile: bool,
    ) -> None:
        like = model.encoder.positions
        self.device = like.device
        self.windows, self.n_times, self.level = windows, n_times, level
        self.input_shape = windows, len(montage.rows), n_times
        if level not in get_args(Output):
            raise ConfigError(f"level is {level!r}; choose one of {', '.join(get_args(Output))}")
        self.precision = choose_precision(precision, self.device, like.dtype)
        if eligible.watched(model):
            raise ConfigError("the model has hooks, which a captured model would not call; remove them first")
        tokens, most = model.config.patches.count(n_times), len(like)
        if self.device.type == "cuda" and tokens > most:  # a graph cannot interpolate: that runs on the host
            raise ConfigError(
                f"n_times is {n_times}, {tokens} patches, and the model has positions for {most}; load it with "
                f"from_pretrained(..., window={n_times}) to capture it"
            )
        self._model, self._montage, self._snapshot = model, montage, Snapshot(model)
        self._kept = list(montage.index) if len(montage.index) < len(montage.rows) else None
        self._seen = False
        self._lock = threading.Lock()
        with torch.inference_mode(False), torch.no_grad():  # later calls write to these tensors
            self._run = self._ready(compile)

    def _ready(self, compile: bool) -> "Replay | Direct":
        model, like = self._model, self._model.encoder.positions
        shape = self.windows, len(self._montage.index), self.n_times
        place = WindowMemory.make(shape, self._montage.ids, model.needs_scale, like)
        compute = Compute.sharing(model, self.level, self.precision == "bf16" and like.dtype == torch.float32)
        if self.device.type == "cuda":
            if compile:
                compute.encoder.compile_parts(dynamic=False)
            self.how = "CUDA graph, compiled" if compile else "CUDA graph"
            return Replay(compute, place)
        direct = Direct(compute, place, None if compute.autocast else compute.encoder)
        self.how = "CPU, packed weights" if direct.packs else f"{self.device.type}, eager"
        return direct

    def __call__(self, x: Any, scale: Any = None) -> Tensor:
        """Return outputs or features of windows (B, C, T), or of one window (C, T) if ``windows`` is 1.

        ``x`` is a NumPy array or a tensor of real numbers. Every call checks its shape and whether the model was
        changed, and checks arrays on the host for NaN. A GPU computes meanwhile. The first call also checks the unit.
        NaN in a tensor on the GPU gives NaN. ``scale`` is that of the model's call.
        """
        x_BCT = self._read(x)
        with self._lock, torch.no_grad():
            return self._run(x_BCT, self._read_scale(scale), self._check)

    def __repr__(self) -> str:
        windows, channels, samples = self.input_shape
        shape = f"windows={windows}, channels={channels}, n_times={samples}"
        return f"Captured({shape}, level={self.level!r}, precision={self.precision!r}: {self.how})"

    def _read(self, x: Any) -> Tensor | NDArray[Any]:
        """Return the channels that matched, as a tensor if they are on the model's GPU and else as a NumPy array."""
        if isinstance(x, Tensor):
            if x.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    "x asks for gradients, which a captured model has not; pass x.detach(), or use model(x)"
                )
            if x.device.type != "cuda" or x.device != self.device or x.is_complex():
                x = inputs.read_array(x).numpy()
        elif type(x) is not np.ndarray or x.dtype.kind not in "fiub":
            x = inputs.read_array(x).numpy()
        if x.ndim == 2 and self.windows == 1:
            x = x[None]
        if tuple(x.shape) != self.input_shape:
            inputs.check_shape(torch.empty(x.shape, device="meta"), self._montage, self.n_times)
            raise InputError(f"{len(x)} windows were given; captured(windows={self.windows}) takes exactly so many")
        found: Tensor | NDArray[Any] = x if self._kept is None else x[:, self._kept]
        return found

    def _read_scale(self, scale: Any) -> Tensor | None:
        if self._run.place.batch.scale_R is None:  # the model uses no scale
            return None
        if scale is None:
            raise InputError("this model needs the scale of the recording in microvolts; pass scale=")
        return inputs.read_scale(scale, self.windows)

    def _check(self, x_BCT: Tensor) -> None:
        change = self._snapshot.change()
        if change is None and self._model.channels is not self._montage:
            change = "its channels were set anew"
        if change is not None:
            raise ConfigError(f"the model is not what was captured: {change}; call model.captured() again")
        if not self._seen or (x_BCT.is_cpu and not np.isfinite(x_BCT.numpy()).all()):
            inputs.check_values(x_BCT, [self._montage.rows[i].label for i in self._montage.index])
            self._seen = True


def choose_precision(asked: str, device: torch.device, weights: torch.dtype) -> str:
    """Return bf16 if it is asked for, or by "auto" for float32 weights on a GPU that has it; else the weights' own."""
    if asked not in ("auto", "bf16", "fp32"):
        raise ConfigError(f"precision is {asked!r}; choose one of auto, bf16, fp32")
    if asked != "auto" and weights != torch.float32 and NAMES[weights] != asked:
        raise ConfigError(f"precision is {asked!r}, but the weights are {weights}; call model.float() first")
    if asked == "auto" and weights == torch.float32 and device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return asked if asked == "bf16" else NAMES[weights]
