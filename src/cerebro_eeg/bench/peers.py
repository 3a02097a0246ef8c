"""Ours beside other EEG models of braindecode: same seconds and channels, each at its own rate, untrained.

Inference and training (cross-entropy of two classes, fused AdamW) in windows a second, with the parameters beside.
bf16 autocast on a GPU, fp32 on a CPU, for all alike; ours with our kernels. A model that does not import, build or run
is listed with its error; one that fails with many windows takes half as many, and a quarter: what a library's attention
cannot do is not the model's fault. A peer is a line in ``PEERS``.

Models cut the same seconds into more or fewer tokens. So beside the rates are the FLOPs of a window's forward pass, and
what ours could do at best: all its products at the rate of the machine's best GEMM, the rest for nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.ceilings import best_gemm, copy_rate, in_flops, roofline
from cerebro_eeg.bench.clock import Call, failure, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import chosen, config_of, many_graphs, samples_of
from cerebro_eeg.bench.options import Cpu, Peers, Train
from cerebro_eeg.bench.table import Cell, Panel, Series, Table, failing_notes
from cerebro_eeg.channels.match import match
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast.compile import compile_all
from cerebro_eeg.model.cerebro import Cerebro

OURS = "CEReBrO"
NAMES = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2".split()


@dataclass(frozen=True)
class Peer:
    """A class of braindecode and the rate that its authors trained it at."""

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
class Entry:
    """A model with windows for it."""

    module: nn.Module
    call: Callable[[int], Callable[[], Tensor]]
    """For so many windows."""
    hz: float
    parameters: int
    flops: int
    """Of one window's forward pass."""


Work = Callable[[Entry, int, torch.device], Call]


@dataclass(frozen=True)
class Rates:
    """One kind of work of all models that run."""

    per_s: dict[str, float]
    windows: dict[str, int]
    """At once."""
    spread: dict[str, float]
    failing: list[tuple[str, str]]

    def times(self, label: str) -> float | None:
        """How many times as long as the better of ours, eager or compiled, a window takes."""
        ours = [rate for name, rate in self.per_s.items() if name.startswith(OURS)]
        return max(ours) / self.per_s[label] if ours and label in self.per_s else None


def run(options: Peers, say: Callable[[str], None]) -> list[Table]:
    """One row for each model, and one more for each that is compiled as well."""
    device = choose_device(options.device, "peers")
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
    entries: dict[str, Entry] = {}
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


def measure(what: str, work: Work, entries: dict[str, Entry], windows: int, rounds: int, device: torch.device) -> Rates:
    """Windows a second of all models, in turns."""
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
    """What our model could do at best; on a GPU also with products as fast as they are for its width."""
    config = config_of(options.preset)
    spent = cost(config, options.channels, samples_of(config, options.seconds))
    cuda = device.type == "cuda"
    _, peak = best_gemm(
        device, torch.bfloat16 if cuda else torch.float32, options.gemm or (Train() if cuda else Cpu()).gemm
    )
    text = (
        f"ceiling: GEMM {in_flops(peak)}; with it ours would take {peak / spent.flops:,.0f} windows/s in inference and "
        f"{peak / spent.flops / 3:,.0f} in training, 3 times the FLOPs"
    )
    if cuda:
        floor = roofline(config, windows * spent.tokens, device, copy_rate(device, Train().copy))
        text += f"; roofline of a training step, as in bench train: {windows / floor.seconds:,.0f}"
    return text


def make(options: Peers, name: str, windows: int, compiled: bool, device: torch.device) -> Entry:
    """A model and what it is called with."""
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
            compile_all(module)
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
    return Entry(module, call, hz, parameters, flops)


def count_flops(call: Callable[[], Tensor]) -> int:
    """Of products and convolutions. Torch does not count its fused layers for inference, nor all kinds of attention."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def infer(entry: Entry, windows: int, device: torch.device) -> Call:
    forward = entry.call(windows)

    def call() -> None:
        entry.module.eval()
        with torch.no_grad(), chosen("ours"), _autocast(device):
            forward()

    return call


def train(entry: Entry, windows: int, device: torch.device) -> Call:
    """Forward, backward and a step of the optimizer."""
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
    entries: dict[str, Entry],
    windows: int,
    device: torch.device,
    ceiling: str,
    rates: dict[str, Rates],
    failing: list[tuple[str, str]],
) -> Table:
    """Times are over the best of ours, eager or compiled."""
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
    return Table("peers", title, COLUMNS, rows, [Panel("windows/s", "", series)], notes)
