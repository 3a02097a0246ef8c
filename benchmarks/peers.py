"""CEReBrO beside other EEG models of braindecode: same seconds and channels, each at its own rate, untrained.

    python benchmarks/peers.py [--channels 19 --seconds 5 --compiled CEReBrO CBraMod LUNA --without EEGPT]

The table has windows per second of inference and of training (cross-entropy of two classes, fused AdamW), and the
number of parameters. All models run under bf16 autocast on a GPU and in fp32 on a CPU; ours uses our kernels. A model
that does not import, build or run is listed with its error. A model that fails with many windows tries half as many,
then a quarter, because a limit of a library's attention is not the model's fault. braindecode is no dependency: without
it, its models are listed as failing. A peer is a line in ``PEERS``.

Models cut the same seconds into different numbers of tokens: a window is 380 tokens for ours and 95 for CBraMod. So the
table also has the FLOPs of a window's forward pass. A note gives the best rate that ours could reach, with all its
products at the rate of the machine's best GEMM and everything else free; on a GPU also by the roofline of ``bench
train``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.ceilings import best_gemm, copy_rate, in_flops, roofline
from cerebro_eeg.bench.clock import Call, failure, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import chosen, config_of, many_graphs, samples_of
from cerebro_eeg.bench.options import Benchmark, CpuBench, TrainBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, failing_notes
from cerebro_eeg.channels.match import match
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import compile_model
from cerebro_eeg.model.cerebro import Cerebro

OURS = "CEReBrO"
NAMES = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2".split()


@dataclass(frozen=True)
class Peers(Benchmark):
    """Small beside EEGNet, BIOT, LaBraM, CBraMod, EEGPT, LUNA and BENDR of braindecode: same seconds and channels."""

    channels: int = 19
    """The first of the 10-20 system's 19."""
    seconds: float = 5.0
    """Length of a window, each model at its own rate."""
    windows: int = 0
    """Windows at once; 0: 256 on a GPU, 4 on a CPU."""
    preset: str = "small"
    """Size of our model."""
    compiled: tuple[str, ...] = ()
    """Models that are also compiled, such as CEReBrO CBraMod LUNA."""
    without: tuple[str, ...] = ()
    """Models to leave out."""
    gemm: tuple[int, ...] = ()
    """Square products that the GEMM rate is the best of; by default those of train on a GPU, of cpu on a CPU."""
    device: str = "auto"
    """cuda, cpu or auto."""


@dataclass(frozen=True)
class Peer:
    """A class of braindecode and the sampling rate that its authors used."""

    name: str
    sfreq: int
    by_name: bool = False
    """Whether its forward pass must be told the channels' names."""


PEERS = {
    "EEGNet": Peer("EEGNet", 128),
    "BIOT": Peer("BIOT", 200),
    "LaBraM": Peer("Labram", 200, by_name=True),
    "CBraMod": Peer("CBraMod", 200),
    "EEGPT": Peer("EEGPT", 256),
    "LUNA": Peer("LUNA", 256),
    "BENDR": Peer("BENDR", 256),
}
COLUMNS: dict[str, str | None] = {
    "model": "",
    "compiled": "",
    "parameters": ",",
    "hz": "",
    "gflop": ".3f",
    "inference_windows": "",
    "inference_per_s": ",.1f",
    "inference_times": ".2fx",
    "training_windows": "",
    "training_per_s": ",.1f",
    "training_times": ".2fx",
    "spread": ".0%",
}


@dataclass(frozen=True)
class Candidate:
    """A model with windows for it."""

    module: nn.Module
    call: Callable[[int], Callable[[], Tensor]]
    """Returns a forward pass of this many windows."""
    hz: float
    parameters: int
    flops: int
    """FLOPs of one window's forward pass."""


Work = Callable[[Candidate, int, torch.device], Call]


@dataclass(frozen=True)
class Rates:
    """The rates of one kind of work, of all models that run."""

    per_s: dict[str, float]
    windows: dict[str, int]
    """Windows at once."""
    spread: dict[str, float]
    failing: list[tuple[str, str]]

    def times(self, label: str) -> float | None:
        """Return how many times as long a window takes as with the better of ours, eager or compiled."""
        ours = [rate for name, rate in self.per_s.items() if name.startswith(OURS)]
        return max(ours) / self.per_s[label] if ours and label in self.per_s else None


def run(options: Peers, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per model, and one more per model that is compiled as well."""
    device = choose_device(options.device, "benchmarks/peers.py")
    known = {OURS, *PEERS}
    unknown = {*options.compiled, *options.without} - known
    if unknown:
        raise ConfigError(f"there is no model {', '.join(sorted(unknown))}; choose of {', '.join(sorted(known))}")
    if options.channels > len(NAMES):
        raise ConfigError(f"--channels is {options.channels}; expected at most {len(NAMES)}")
    windows = options.windows or (256 if device.type == "cuda" else 4)
    many_graphs()
    ceiling = describe_ceiling(options, windows, device)
    say(ceiling)
    entries: dict[str, Candidate] = {}
    failing: list[tuple[str, str]] = []
    for name in [OURS, *PEERS]:
        if name in options.without:
            continue
        for compiled in (False, True)[: 1 + (name in options.compiled)]:
            label = f"{name}, compiled" if compiled else name
            try:
                entries[label] = make(options, name, windows, compiled, device)
            except Exception as error:
                failing.append((label, failure(error)))
    found = {}
    for what, work in (("inference", infer), ("training", train)):  # the second may take minutes to compile
        found[what] = measure(what, work, entries, windows, options.rounds, device)
        failing += found[what].failing
        said = "; ".join(f"{label} {rate:,.1f}" for label, rate in found[what].per_s.items())
        say(f"{what}, windows/s: {said}")
    return [table(options, entries, windows, device, ceiling, found, failing)]


def measure(
    what: str, work: Work, entries: dict[str, Candidate], windows: int, rounds: int, device: torch.device
) -> Rates:
    """Measure windows per second of all models, in turns."""
    calls: dict[str, Call] = {}
    fitting: dict[str, int] = {}
    failing: list[tuple[str, str]] = []
    for label, entry in entries.items():
        for fewer in (windows, windows // 2, windows // 4):
            if fewer < 1:
                break
            call = work(entry, fewer, device)
            turns = take_turns({label: call}, 0, step_clock(device))
            if not turns.failing:
                calls[label], fitting[label] = call, fewer
                break
            failing.append((f"{label}, {what}, {fewer} windows", turns.failing[label]))
    turns = take_turns(calls, rounds, step_clock(device), warm=1)
    failing += [(f"{label}, {what}", error) for label, error in turns.failing.items()]
    per_s = {label: fitting[label] / timing.seconds for label, timing in turns.timings.items()}
    return Rates(per_s, fitting, {label: timing.spread for label, timing in turns.timings.items()}, failing)


def describe_ceiling(options: Peers, windows: int, device: torch.device) -> str:
    """Describe the best rate that our model could reach; on a GPU also with products as fast as for its width."""
    config = config_of(options.preset)
    spent = cost(config, options.channels, samples_of(config, options.seconds))
    cuda = device.type == "cuda"
    _, peak = best_gemm(
        device, torch.bfloat16 if cuda else torch.float32, options.gemm or (TrainBench() if cuda else CpuBench()).gemm
    )
    text = (
        f"ceiling: GEMM {in_flops(peak)}; with it ours would take {peak / spent.flops:,.0f} windows/s in inference and "
        f"{peak / spent.flops / 3:,.0f} in training, 3 times the FLOPs"
    )
    if cuda:
        floor = roofline(config, windows * spent.tokens, device, copy_rate(device, TrainBench().copy))
        text += f"; roofline of a training step, as in bench train: {windows / floor.seconds:,.0f}"
    return text


def make(options: Peers, name: str, windows: int, compiled: bool, device: torch.device) -> Candidate:
    """Make a model and the windows that it is called with."""
    torch.manual_seed(0)
    names = NAMES[: options.channels]
    module: nn.Module
    if name == OURS:
        module = Cerebro(2, config=options.preset, ch_names=names).to(device)
        hz = module.config.signal.sfreq
        signal = torch.randn(windows, len(names), round(options.seconds * hz), device=device)
        ids = torch.tensor(match(names).ids)

        def call(some: int) -> Callable[[], Tensor]:
            batch = Batch.dense(20 * signal[:some], ids)
            return lambda: module(batch)

        flops = cost(module.config, len(names), signal.shape[-1]).flops
        if compiled:
            compile_model(module)
    else:
        peer = PEERS[name]
        hz = float(peer.sfreq)
        samples = round(options.seconds * peer.sfreq)
        network = getattr(import_module("braindecode.models"), peer.name)
        module = network(n_outputs=2, n_chans=len(names), n_times=samples, sfreq=peer.sfreq).to(device)
        signal = torch.randn(windows, len(names), samples, device=device)
        more: dict[str, Any] = {"ch_names": names} if peer.by_name else {}

        def call(some: int) -> Callable[[], Tensor]:
            return lambda: module(signal[:some], **more)

        module.eval()
        flops = count_flops(call(1))
        if compiled:
            module.compile()
    parameters = sum(p.numel() for p in module.parameters())
    return Candidate(module, call, hz, parameters, flops)


def count_flops(call: Callable[[], Tensor]) -> int:
    """Count the FLOPs of products and convolutions.

    Torch does not count its fused layers for inference, nor all kinds of attention: so gradients are on, and attention
    is the plain formula.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def infer(entry: Candidate, windows: int, device: torch.device) -> Call:
    forward = entry.call(windows)

    def call() -> None:
        entry.module.eval()
        with torch.no_grad(), chosen("ours"), _autocast(device):
            forward()

    return call


def train(entry: Candidate, windows: int, device: torch.device) -> Call:
    """Return a call that runs forward, backward and a step of the optimizer."""
    forward = entry.call(windows)
    optimizer = torch.optim.AdamW([p for p in entry.module.parameters() if p.requires_grad], lr=1e-5, fused=True)

    def call() -> None:
        entry.module.train()
        with chosen("ours"):
            with _autocast(device):
                logits = forward()
                target = torch.zeros(len(logits), dtype=torch.int64, device=device)
                loss = nn.functional.cross_entropy(logits.float(), target)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def table(
    options: Peers,
    entries: dict[str, Candidate],
    windows: int,
    device: torch.device,
    ceiling: str,
    rates: dict[str, Rates],
    failing: list[tuple[str, str]],
) -> ResultTable:
    """Lay out the table; "times" are over the best of ours, eager or compiled."""
    rows: list[list[Cell]] = []
    for label, entry in entries.items():
        name, _, compiled = label.partition(", ")
        row: list[Cell] = [name, "yes" if compiled else "no", entry.parameters, entry.hz, entry.flops / 1e9]
        for found in rates.values():
            row += [found.windows.get(label), found.per_s.get(label), found.times(label)]
        spreads = [found.spread[label] for found in rates.values() if label in found.spread]
        rows.append([*row, max(spreads, default=None)])
    labels = list(entries)
    series = [
        Series(what, labels, [value if isinstance(value := row[place], float) else None for row in rows])
        for what, place in ((what, list(COLUMNS).index(f"{what}_per_s")) for what in rates)
    ]
    kind = "bf16" if device.type == "cuda" else "fp32"
    title = f"Peers, {options.channels} channels x {options.seconds:g} s, {windows} windows at once, {kind}"
    what = "times: how many times as long as ours; Hz: each model's own rate; GFLOP: a window's forward pass"
    notes = (what, ceiling, *failing_notes(failing))
    return ResultTable("peers", title, COLUMNS, rows, [Panel("windows/s", "", series)], notes)


if __name__ == "__main__":
    sys.exit(main_of(Peers, run))
