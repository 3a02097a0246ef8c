"""Models: what several benchmarks share: windows of noise, encoders of every kind, one stock backend at a time."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
import torch._dynamo
import torch._functorch.config
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cerebro_eeg import fast
from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.bench.clock import Call, Turns, kernel_clock, take_turns
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import AttentionKind, ModelConfig, preset
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.attention import Axis, attend
from cerebro_eeg.model.encoder import Encoder

BACKENDS: Mapping[str, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def config_of(name: str, attention: AttentionKind = "alternating") -> ModelConfig:
    """Return a preset's model with this kind of attention."""
    return dataclasses.replace(preset(name).model, attention=attention)


def samples_of(config: ModelConfig, seconds: float) -> int:
    return round(seconds * config.signal.sfreq)


def ids_of(channels: int) -> Tensor:
    """Return the ids (C, 2) of the first electrodes of the vocabulary."""
    if channels > len(VOCABULARY):
        raise ConfigError(f"{channels} channels were asked for; there are {len(VOCABULARY)} electrodes")
    return torch.tensor([(number + 1, 0) for number in range(channels)])


def noise(windows: int, channels: int, samples: int, device: torch.device) -> Batch:
    """Make windows of noise with a standard deviation of 20 microvolts."""
    return Batch.dense(torch.randn(windows, channels, samples, device=device) * 20, ids_of(channels))


def dtype_of(precision: str) -> torch.dtype:
    if precision not in PRECISIONS:
        raise ConfigError(f"--precision is {precision!r}; choose one of {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]


def captured(call: Call, device: torch.device) -> Call:
    """Return a call that replays a CUDA graph, which its first call captures; on a CPU the call itself."""
    if device.type != "cuda":
        return call
    graphs: list[torch.cuda.CUDAGraph] = []

    def replay() -> None:
        if not graphs:
            graphs.append(_graph(call, device))
        graphs[0].replay()

    return replay


def _graph(call: Call, device: torch.device) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@contextlib.contextmanager
def chosen(backend: str | None, everything: bool = False) -> Iterator[None]:
    """Use our kernels for the backend "ours", otherwise stock attention by that backend or by torch's own choice.

    The rest of the model runs the same code, unless ``everything`` asks for torch's kernels. Stored scores of bf16 stay
    bf16: torch would make them float32, which would make standard attention look slower than it has to be.
    """
    if backend == "ours":
        with fast.use("auto"):
            yield
        return
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    only = contextlib.nullcontext() if backend is None else sdpa_kernel(BACKENDS[backend])
    try:
        with fast.use("stock" if everything else "stock attention"), only:
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@dataclasses.dataclass(frozen=True)
class Rival:
    """A kind of attention and the backend that computes it."""

    attention: AttentionKind
    backend: str | None
    """"ours", a stock backend, or None for torch's choice."""
    everything: bool = False
    """Whether the rest of the model uses torch's kernels, too; only with stock attention."""

    def config(self, name: str, samples: int) -> ModelConfig:
        """Return the config of a preset for windows of this many samples."""
        return dataclasses.replace(config_of(name, self.attention), window=samples)

    def encoder(self, name: str, samples: int, device: torch.device) -> Encoder:
        """Make an encoder with positions for windows of this many samples, so that none are interpolated."""
        torch.manual_seed(0)
        return Encoder(self.config(name, samples)).to(device).eval()


def attention_steps(
    qkv: Tensor, d_out: Tensor, layout: Layout, axis: Axis, heads: int, backend: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return attention alone as two calls: forward without gradients, and forward + backward."""

    def forward() -> Tensor:
        with chosen(backend):
            return attend(qkv, layout, axis, heads)

    def inference() -> Tensor:
        with torch.no_grad():
            return forward()

    return inference, lambda: torch.autograd.grad(forward(), qkv, d_out)


def best_stock(config: ModelConfig, batch: Batch, dtype: torch.dtype, training: bool, rounds: int = 3) -> Turns:
    """Time the stock backends on the attention of one model alone; only the best is worth compiling as a rival."""
    patches = config.patches.count(batch.signal_RT.shape[1])
    shape = (batch.signal_RT.shape[0], patches, 3 * config.width)
    device = batch.signal_RT.device
    qkv = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    d_out = torch.randn(*shape[:2], config.width, device=device, dtype=dtype)
    axes: tuple[Axis, ...] = ("all",) if config.attention == "standard" else ("channels", "time")

    def both(backend: str) -> Callable[[], object]:
        steps = [attention_steps(qkv, d_out, batch.layout, axis, config.heads, backend)[training] for axis in axes]
        return lambda: [step() for step in steps]

    return take_turns({name: both(name) for name in BACKENDS}, rounds, kernel_clock(device))


def bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def peak_bytes(call: Callable[[], object], own: int, device: torch.device) -> int | None:
    """Return the peak of a call's memory above the level before, plus its ``own`` bytes; None on a CPU.

    The call runs once before, because cuBLAS allocates its workspace on a stream's first product.
    """
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + own


def many_graphs() -> None:
    """Allow every rival graphs of its own: here, many graphs of one block are no sign of a mistake.

    The cache on disk ignores the backend of attention and would give one rival's graph to another, so it is off.
    """
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.enable_autograd_cache = False
