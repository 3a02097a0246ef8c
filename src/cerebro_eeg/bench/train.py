"""A training step with our kernels, with torch's kernels, and with standard attention over all tokens at once.

A step is forward and backward of the masked objective under bf16 autocast and an update by fused AdamW. Blocks are
compiled as in training. "stock attention" replaces only attention by torch's, "stock" replaces all our kernels. Stock
and standard attention use the backend that is fastest on their shapes. "deterministic" is ours in deterministic mode.

The share of the GEMM peak is 3 times the forward FLOPs of ``costs.py`` over the rate of the best large bf16 product,
measured first; standard attention counts its own FLOPs. A second share uses the rate that this product sustains for a
second. ``ceilings.roofline`` gives the time that a step of alternating attention could take at best.

Torch's profiler shows where the GPU's time goes. In a step the chip is warm and its clock is lower than in a product
that runs alone: our kernels cannot change the time that the library's products take there.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.ceilings import Roofline, best_gemm, copy_rate, in_flops, kept_up, roofline
from cerebro_eeg.bench.clock import Call, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import (
    Rival,
    best_stock,
    bytes_of,
    chosen,
    config_of,
    many_graphs,
    noise,
    peak_bytes,
    samples_of,
)
from cerebro_eeg.bench.options import TrainBench, windows_of
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, TableRows, failing_notes, series_of
from cerebro_eeg.config import AttentionKind, ModelConfig
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import compile_model
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.train.loop import deterministic

GROUPS = {
    "products with GELU": re.compile("cerebro_mlp"),
    "attention": re.compile("cerebro_attention|flash|fmha|sdpa|softmax", re.IGNORECASE),
    "norms": re.compile("cerebro_norm|layer_norm", re.IGNORECASE),
    "products": re.compile("nvjet|gemm|cutlass|cublas|splitk|cerebro_narrow", re.IGNORECASE),
}
"""Groups of kernels by their names; the first pattern that fits decides."""
REST = "rest"


def profiled(call: Call, device: torch.device, steps: int = 2) -> dict[str, float] | None:
    """Measure the milliseconds of a call by :data:`GROUPS`; return None where there is no GPU."""
    if device.type != "cuda":
        return None
    call()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(steps):
            call()
        torch.cuda.synchronize(device)
    return grouped((name, milliseconds / steps) for name, milliseconds in kernel_times(seen))


def kernel_times(seen: profile) -> Iterator[tuple[str, float]]:
    """Yield the name of each kernel that torch's profiler saw, with its milliseconds in all."""
    for event in seen.key_averages():
        if event.device_type.name == "CUDA":
            yield event.key, event.self_device_time_total / 1e3


def grouped(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum up the times of kernels by group, the largest first."""
    sums = dict.fromkeys((*GROUPS, REST), 0.0)
    for name, time in times:
        sums[next((group for group, fits in GROUPS.items() if fits.search(name)), REST)] += time
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def describe_kernels(rival: str, name: str, sums: dict[str, float]) -> str:
    """Describe the times of a rival's kernels."""
    parts = ", ".join(f"{group} {time:.1f}" for group, time in sums.items())
    return f"kernels of a step of {rival}, {name}: {sum(sums.values()):.1f} ms ({parts})"


MIB = 2**20
COLUMNS: dict[str, str | None] = {
    "preset": "",
    "rival": "",
    "backend": "",
    "windows": "",
    "ms": ".2f",
    "spread": ".1%",
    "windows_per_s": ",.0f",
    "times": ".2fx",
    "gemm_share": ".1%",
    "kept_share": ".1%",
    "roofline_ms": ".2f",
    "mib": ",.0f",
}

RIVALS = ("ours", "stock attention", "stock", "standard", "deterministic")


@dataclass(frozen=True)
class RivalStep:
    """A rival's training step, and the bytes of its weights, gradients and moments."""

    call: Call
    own: int


def run(options: TrainBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per size and rival."""
    device = choose_device(options.device, "bench train")
    sizes = windows_of(options.presets, options.windows)
    if not set(options.without) <= set(RIVALS[1:]):
        raise ConfigError(f"--without has {', '.join(options.without)}; choose of {', '.join(RIVALS[1:])}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic mode asks for, and for all alike
    many_graphs()
    gemm, peak = best_gemm(device, torch.bfloat16, options.gemm)
    kept = kept_up(gemm, device)
    copy = copy_rate(device, options.copy)
    ceilings = f"bf16 GEMM {in_flops(peak)}, {in_flops(kept)} kept up; copy {copy / 1e12:.3g} TB/s"
    del gemm  # and its matrices
    say(ceilings)
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    notes: list[str] = []
    for name, windows in zip(options.presets, sizes, strict=True):
        samples = samples_of(config_of(name), options.seconds)
        tokens = windows * options.channels * config_of(name).patches.count(samples)
        floor = roofline(config_of(name), tokens, device, copy)
        notes.append(describe(name, floor, windows * cost(config_of(name), options.channels, samples).flops, peak))
        say(notes[-1])
        batch = noise(windows, options.channels, samples, device)
        rivals = choose_rivals(name, batch, samples, options.without)
        steps = {
            label: make_step(options, rival, rival.config(name, samples), batch, label == "deterministic")
            for label, rival in rivals.items()
        }
        calls = {label: step.call for label, step in steps.items()}
        turns = take_turns(calls, options.rounds, step_clock(device), repeats=options.steps)
        failures += [(f"{label}, {name}", error) for label, error in turns.failing.items()]
        for label in turns.timings:
            spent = profiled(calls[label], device)
            if spent is not None:
                notes.append(describe_kernels(label, name, spent))
                say(notes[-1])
        for label, rival in rivals.items():
            found: list[Cell] = [name, label, rival.backend or "torch's choice", windows]
            timing = turns.timings.get(label)
            if timing is None:
                rows.append([*found, *[None] * (len(COLUMNS) - len(found))])
                continue
            flops = 3 * windows * cost(rival.config(name, samples), options.channels, samples).flops
            used = peak_bytes(steps[label].call, steps[label].own, device)
            found += [1e3 * timing.seconds, timing.spread, windows / timing.seconds, turns.times(label, "ours")]
            found += [flops / timing.seconds / rate for rate in (peak, kept)]
            found.append(1e3 * floor.seconds if rival.attention == "alternating" else None)
            rows.append([*found, None if used is None else used / MIB])
        del steps, calls, batch
    return [table(options, rows, [f"ceilings: {ceilings}; times: over ours", *notes, *failing_notes(failures)])]


def describe(name: str, floor: Roofline, flops: int, peak: float) -> str:
    """Describe the roofline of a size."""
    return (
        f"roofline, {name}: {1e3 * floor.seconds:.1f} ms ({1e3 * floor.products:.1f} products, "
        f"{1e3 * floor.passes:.1f} passes over memory), {3 * flops / floor.seconds / peak:.1%} of the GEMM peak"
    )


def choose_rivals(name: str, batch: Batch, samples: int, without: tuple[str, ...]) -> dict[str, Rival]:
    """Return ours, and stock and standard attention by their fastest backends; no two share a compiled graph."""

    def fastest(kind: AttentionKind) -> str | None:
        return best_stock(Rival(kind, None).config(name, samples), batch, torch.bfloat16, training=True).best()

    rivals = {"ours": Rival("alternating", "ours"), "deterministic": Rival("alternating", "ours")}
    if {"stock attention", "stock"} - set(without):
        backend = fastest("alternating")
        rivals["stock attention"] = Rival("alternating", backend)
        rivals["stock"] = Rival("alternating", backend, everything=True)
    if "standard" not in without:
        rivals["standard"] = Rival("standard", fastest("standard"))
    return {label: rivals[label] for label in RIVALS if label in rivals and label not in without}


def make_step(options: TrainBench, rival: Rival, config: ModelConfig, batch: Batch, exact: bool) -> RivalStep:
    """Return the training step of a new model with its own optimizer."""
    device = batch.signal_RT.device
    torch.manual_seed(0)
    model = MaskedCerebro(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if not options.eager:
        compile_model(model, dynamic=not options.static)

    def step() -> None:
        with chosen(rival.backend, rival.everything), deterministic(exact):
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return RivalStep(step, 3 * bytes_of(model))


def table(options: TrainBench, rows: list[list[Cell]], notes: list[str]) -> ResultTable:
    how = "eager" if options.eager else "compiled"
    title = f"Training step, {options.channels} channels x {options.seconds:g} s, bf16, {how}"
    panels = []
    for what, column, mark in (
        ("time over ours", "times", 1.0),
        ("share of the GEMM peak", "gemm_share", None),
        ("peak memory, MiB", "mib", None),
    ):
        panels.append(Panel(what, "", series_of(rows, list(COLUMNS).index(column)), mark))
    return ResultTable("train", title, COLUMNS, rows, panels, tuple(notes))
