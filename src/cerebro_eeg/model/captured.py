"""Captured: a model made ready for windows of one shape that come one after the other, as a live device gives them.

What a small model waits for on a GPU is the launch of each kernel. Here all of them are recorded once as a CUDA graph:
a call copies the window to where the graph reads it, and launches everything at once. On a CPU weights are laid out
once for this number of tokens (``cpu.packed``); any other device computes as ever. What the object takes, checks and
gives is the same on all of them. :meth:`cerebro_eeg.Cerebro.captured` makes one.

Legend: **B** windows, **C** channels, **T** samples, **R** rows (channels of all windows), **N** patches, **D** width.
"""

import contextlib
import contextvars
import copy
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels import ChannelMatch
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model import cpu, door
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.held import Held

if TYPE_CHECKING:
    from cerebro_eeg.model.cerebro import Cerebro

Output = Literal["output", "window", "channel", "token"]
Precision = Literal["auto", "bf16", "fp32"]
NAMES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
WARM_UP = 3
MARKS = 8
"""Numbers of each weight that are compared before each call on a CPU."""

_turn = threading.Lock()
"""Nobody may put work on the stream of the graphs while one is captured on it."""


class Captured:
    """``fast(x)``: what the model computes in eval mode, without gradients, for windows (B, C, T) in microvolts.

    The output is a tensor of its own on the model's device, in float32 at least; later calls leave it alone. Threads
    may share the object: their calls take turns.
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
        if cpu.watched(model):
            raise ConfigError("the model has hooks, which a captured model would not call; remove them first")
        tokens, most = model.config.patches.count(n_times), len(like)
        if self.device.type == "cuda" and tokens > most:  # interpolation computes on the host, which no graph can
            raise ConfigError(
                f"n_times is {n_times}, {tokens} patches, and the model has positions for {most}; load it with "
                f"from_pretrained(..., window={n_times}) to capture it"
            )
        self._model, self._montage, self._held = model, montage, Held(model)
        self._kept = list(montage.index) if len(montage.index) < len(montage.rows) else None
        self._seen = False
        self._lock = threading.Lock()
        with torch.inference_mode(False), torch.no_grad():  # what is made here is written to in every later call
            self._run = self._ready(compile)

    def _ready(self, compile: bool) -> "_Replay | _Direct":
        model, like = self._model, self._model.encoder.positions
        scaled = model.config.normalization == "recording" or model.config.amplitude
        shape = self.windows, len(self._montage.index), self.n_times
        place = _Place.make(shape, self._montage.ids, scaled, like)
        parts = _Parts.sharing(model, self.level, self.precision == "bf16" and like.dtype == torch.float32)
        if self.device.type == "cuda":
            if compile:
                parts.encoder.compile_parts(dynamic=False)
            self.how = "CUDA graph, compiled" if compile else "CUDA graph"
            return _Replay(parts, place)
        rows = len(place.batch.channels_R2) * model.config.patches.rows
        direct = _Direct(parts, place, rows * model.config.patches.count(self.n_times))
        self.how = "CPU, packed weights" if direct.packs else f"{self.device.type}, eager"
        return direct

    def __call__(self, x: Any, scale: Any = None) -> Tensor:
        """Outputs or features of windows (B, C, T), or of one window (C, T) where ``windows`` is 1.

        ``x`` is a NumPy array or a tensor, of any kind of real number. Shape, weights and, of what lies on the host,
        NaN are looked at in every call, on a GPU while it computes; the unit in the first. NaN that lies on the GPU
        comes out as NaN. ``scale`` as in the model's call.
        """
        x_BCT = self._read(x)
        with self._lock, torch.no_grad():
            return self._run(x_BCT, self._read_scale(scale), self._check)

    def __repr__(self) -> str:
        windows, channels, samples = self.input_shape
        shape = f"windows={windows}, channels={channels}, n_times={samples}"
        return f"Captured({shape}, level={self.level!r}, precision={self.precision!r}: {self.how})"

    def _read(self, x: Any) -> Tensor | NDArray[Any]:
        """The channels that matched: on the GPU where they lie there, else on the host."""
        if isinstance(x, Tensor):
            if x.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    "x asks for gradients, which a captured model has not; pass x.detach(), or use model(x)"
                )
            if x.device.type != "cuda" or x.device != self.device or x.is_complex():
                x = door.read_array(x).numpy()
        elif type(x) is not np.ndarray or x.dtype.kind not in "fiub":
            x = door.read_array(x).numpy()
        if x.ndim == 2 and self.windows == 1:
            x = x[None]
        if tuple(x.shape) != self.input_shape:
            door.check_shape(torch.empty(x.shape, device="meta"), self._montage, self.n_times)
            raise InputError(f"{len(x)} windows were given; captured(windows={self.windows}) takes exactly so many")
        found: Tensor | NDArray[Any] = x if self._kept is None else x[:, self._kept]
        return found

    def _read_scale(self, scale: Any) -> Tensor | None:
        if self._run.place.batch.scale_R is None:  # the model has no use for one
            return None
        if scale is None:
            raise InputError("this model needs the scale of the recording in microvolts; pass scale=")
        return door.read_scale(scale, self.windows)

    def _check(self, x_BCT: Tensor) -> None:
        change = self._held.change()
        if change is None and self._model.channels is not self._montage:
            change = "its channels were set anew"
        if change is not None:
            raise ConfigError(f"the model is not what was captured: {change}; call model.captured() again")
        if not self._seen or (x_BCT.is_cpu and not np.isfinite(x_BCT.numpy()).all()):
            door.check_values(x_BCT, [self._montage.rows[i].label for i in self._montage.index])
            self._seen = True


def choose_precision(asked: str, device: torch.device, weights: torch.dtype) -> str:
    """bf16 where it was asked for, or where weights of float32 lie on a GPU that has it; else that of the weights."""
    if asked not in ("auto", "bf16", "fp32"):
        raise ConfigError(f"precision is {asked!r}; choose one of auto, bf16, fp32")
    if (asked == "fp32" and weights != torch.float32) or (asked == "bf16" and weights == torch.float64):
        raise ConfigError(f"precision is {asked!r}, but the weights are {weights}; call model.float() first")
    if asked == "auto" and weights == torch.float32 and device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return asked if asked == "bf16" else NAMES[weights]


@dataclass(frozen=True)
class _Parts:
    """Encoder and head, and what of them is asked for."""

    encoder: Encoder
    final_layer: nn.Module
    level: Output
    autocast: bool
    """To bf16."""

    @staticmethod
    def sharing(model: "Cerebro", level: Output, autocast: bool) -> "_Parts":
        """Modules of our own around the model's tensors: their mode and their compilation are nobody else's."""
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        encoder, final_layer = copy.deepcopy((model.encoder, model.final_layer), shared)
        return _Parts(encoder.eval(), final_layer.eval(), level, autocast)

    def __call__(self, batch: Batch) -> Tensor:
        # Weights that autocast has cast may not be kept from one call to the next inside of a captured graph.
        kind = batch.signal_RT.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, self.autocast, cache_enabled=False):
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


@dataclass(frozen=True)
class _Place:
    """Where windows are put, the same for all of them."""

    host_BCT: Tensor
    """Pinned for a GPU; on a CPU, what the batch holds itself."""
    signal_BCT: Tensor
    batch: Batch

    @staticmethod
    def make(shape: tuple[int, int, int], ids: Any, scaled: bool, like: Tensor) -> "_Place":
        dtype = torch.promote_types(like.dtype, torch.float32)
        with _aside(like.device):
            host_BCT = torch.zeros(shape, dtype=dtype, pin_memory=like.is_cuda)
            signal_BCT = host_BCT if like.is_cpu else torch.zeros(shape, dtype=dtype, device=like.device)
            ids_R2 = torch.tensor(ids, device=like.device).repeat(shape[0], 1)
            scale_R = torch.ones(len(ids_R2), dtype=dtype, device=like.device) if scaled else None
        layout = Layout.uniform(*shape[:2])
        return _Place(host_BCT, signal_BCT, Batch(signal_BCT.flatten(0, 1), ids_R2, layout, scale_R))

    def write(self, x_BCT: NDArray[Any]) -> Tensor:
        """Any kind of number, order of bytes or strides becomes what the model reads."""
        np.copyto(self.host_BCT.numpy(), x_BCT, casting="same_kind")
        return self.host_BCT

    def write_scale(self, scale_B: Tensor | None) -> None:
        if scale_B is not None and self.batch.scale_R is not None:
            self.batch.scale_R.copy_(self.batch.layout.per_row(scale_B))


Check = Callable[[Tensor], None]


class _Direct:
    """Computes in every call; on a CPU in float32, with weights in the order in which oneDNN reads them."""

    def __init__(self, parts: _Parts, place: _Place, tokens: int) -> None:
        self.place = place
        self._parts, self._tokens = parts, tokens
        weights = [part.weight for part in parts.encoder.modules() if isinstance(part, nn.Linear)]
        like = weights[0]
        available = torch.backends.mkldnn.is_available() and not parts.autocast
        self.packs = available and like.is_cpu and like.dtype == torch.float32
        self._weights = [weight.detach() for weight in weights]
        self._context = contextvars.Context()
        self._release: Callable[[], object] | None = None
        self._pack()
        self._compute()  # what is wrong shows here, not in the first call

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
        return self._context.run(self._parts, self.place.batch)

    def _marks(self) -> Tensor:
        """Some numbers of every weight: an update behind torch's back (through ``.data``) changes them, too."""
        return torch.cat([weight.reshape(-1)[:: max(1, weight.numel() // MARKS)] for weight in self._weights])

    def _pack(self) -> None:
        """Packed weights live in a context of our own: nobody else's layers take them."""
        if not self.packs:
            return
        if self._release is not None:
            self._release()
        self._marked = self._marks()
        self._context = contextvars.Context()
        manager = cpu.packed(self._parts.encoder, self._tokens)
        self._context.run(manager.__enter__)
        self._release = weakref.finalize(self, self._context.run, manager.__exit__, None, None, None)


class _Replay:
    """A CUDA graph with memory of its own, which goes with this object.

    All graphs of a device are captured and replayed on one stream, so they never run at the same time: they share the
    workspace that cuBLAS has for a stream.
    """

    def __init__(self, parts: _Parts, place: _Place) -> None:
        self.place = place
        self._device = place.signal_BCT.device
        self._sent = torch.cuda.Event()
        self._graph = torch.cuda.CUDAGraph()
        parts(place.batch)  # compiles, which takes long, while other objects go on
        with _aside(self._device) as stream:
            for _ in range(WARM_UP):
                parts(place.batch)
            # What other threads do on the GPU meanwhile is their own affair, and no mistake.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found = parts(place.batch)

    def __call__(self, x_BCT: Tensor | NDArray[Any], scale_B: Tensor | None, check: Check) -> Tensor:
        found = torch.empty_like(self._found)
        with _aside(self._device):
            if isinstance(x_BCT, Tensor):
                looked_at = x_BCT
                self.place.signal_BCT.copy_(x_BCT)
            else:
                self._sent.synchronize()  # the window before has left the host
                looked_at = self.place.write(x_BCT)
                self.place.signal_BCT.copy_(looked_at, non_blocking=True)
                self._sent.record()
            self.place.write_scale(scale_B)
            self._graph.replay()
            found.copy_(self._found)
        check(looked_at)
        return found


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _aside(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    """On the stream of all graphs, after what the current stream has to do and before what it gets next."""
    if device.type != "cuda":
        yield None
        return
    stream, current = _stream(device), torch.cuda.current_stream(device)
    with _turn:
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield stream
        current.wait_stream(stream)
