"""Models of braindecode in the training loop that most people write, plain or as one CUDA graph captured by hand.

A step is forward, cross entropy, backward, clipping and AdamW, on windows that are already on the device. On a GPU it
runs under bf16 autocast with fused AdamW, as ours does. LaBraM and CBraMod cut windows into patches of 200 samples, so
they get the same seconds at 200 Hz. LaBraM looks its channels up in every call, which no CUDA graph can repeat. Here it
gets their places once, in both forms.
"""

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro_eeg.bench.clock import Call
from cerebro_eeg.fast.capture import leave_capture

CLIP = 1.0
LEARNING_RATE = 1e-4
WARM = 3
"""Plain steps before a capture: libraries choose their algorithms, and the optimizer makes its state."""


@dataclass(frozen=True)
class BraindecodeModel:
    """A class of ``braindecode.models``."""

    name: str
    sfreq: float | None = None
    """The rate that its patches need; None: any."""


MODELS = {
    "EEGNet": BraindecodeModel("EEGNet"),
    "EEGConformer": BraindecodeModel("EEGConformer"),
    "LaBraM": BraindecodeModel("Labram", 200.0),
    "CBraMod": BraindecodeModel("CBraMod", 200.0),
}


@dataclass(frozen=True)
class TrainableRival:
    """A model with a batch of windows of noise."""

    module: nn.Module
    forward: Callable[[], Tensor]
    target_B: Tensor
    samples: int

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())


def missing() -> str | None:
    """Return why braindecode cannot be imported; None where it can."""
    try:
        _models()
    except (ImportError, OSError) as error:  # torchaudio for another build of torch raises an OSError
        return " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return None


def make(
    label: str, names: Sequence[str], outputs: int, seconds: float, sfreq: float, windows: int, device: torch.device
) -> TrainableRival:
    """Make a rival for windows of these channels and seconds, at the rate ``sfreq`` unless its patches need another."""
    asked = MODELS[label]
    rate = asked.sfreq or sfreq
    samples = round(seconds * rate)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = getattr(_models(), asked.name)
        module: nn.Module = network(n_outputs=outputs, n_chans=len(names), n_times=samples, sfreq=rate)
    module = module.to(device).train()
    signal_BCT = torch.randn(windows, len(names), samples, device=device)
    target_B = torch.arange(windows, device=device) % outputs
    forward = (lambda: module(signal_BCT)) if label != "LaBraM" else _labram(module, signal_BCT, names)
    return TrainableRival(module, forward, target_B, samples)


def plain_step(rival: TrainableRival, half: bool, capturable: bool = False) -> Call:
    """Return a step of the loop; with ``capturable`` a CUDA graph can repeat its optimizer."""
    kind = rival.target_B.device.type
    optimizer = torch.optim.AdamW(
        rival.module.parameters(), lr=LEARNING_RATE, fused=kind == "cuda", capturable=capturable
    )

    def step() -> None:
        with torch.autocast(kind, torch.bfloat16, half):
            loss = functional.cross_entropy(rival.forward(), rival.target_B)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rival.module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def captured_step(rival: TrainableRival, half: bool) -> Call:
    """Return the same as the replay of a CUDA graph, which is captured here."""
    device = rival.target_B.device
    if device.type != "cuda":
        raise RuntimeError("CUDA graphs need a CUDA device")
    step = plain_step(rival, half, capturable=True)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    before, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(before)
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step()
    before.wait_stream(side)
    gc.collect()
    gc.disable()  # what is freed during a capture would break it
    try:
        with torch.cuda.graph(graph, pool, side):
            step()
    except Exception:
        leave_capture(device, before, pool)
        raise
    finally:
        gc.enable()
    held = graph, step  # the graph has only the addresses of what the step holds

    def replay() -> None:
        held[0].replay()

    return replay


def _models() -> object:
    with warnings.catch_warnings():  # of the packages that it imports
        warnings.simplefilter("ignore")
        return import_module("braindecode.models")


def _labram(module: nn.Module, signal_BCT: Tensor, names: Sequence[str]) -> Callable[[], Tensor]:
    """Return the forward pass of LaBraM, which gets its channels' places in the table of electrodes only once."""
    order = [name.upper() for name in import_module("braindecode.models.labram").LABRAM_CHANNEL_ORDER]
    places = torch.tensor([0, *(order.index(name.upper()) + 1 for name in names)], device=signal_BCT.device)
    features, head = module.forward_features, module.final_layer

    def forward() -> Tensor:
        output: Tensor = head(features(signal_BCT, input_chans=places))  # type: ignore[operator]
        return output

    return forward
