"""Latency: one window through the encoder, from the call to the answer: eager, compiled, and as a replayed CUDA graph.

A small model on a GPU waits for its launches, so the clock is the host's. Every rival has a warm device and the same
window. A rival is a line in ``make_rivals``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.clock import Call, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import Rival, chosen, dtype_of, many_graphs, noise, samples_of
from cerebro_eeg.bench.options import LatencyBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, TableRows, failing_notes, series_of
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import preset
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.live import Precision

COLUMNS: dict[str, str | None] = {"preset": "", "rival": "", "ms": ".3f", "spread": ".0%", "eager_over": ".2fx"}


def run(options: LatencyBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per size and rival."""
    device = choose_device(options.device, "bench latency")
    many_graphs()
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    for name in options.presets:
        rivals, failing = make_rivals(options, name, device)
        turns = take_turns(rivals, options.rounds, step_clock(device), warm=5)
        failing |= turns.failing
        failures += [(f"{rival}, {name}", error) for rival, error in failing.items()]
        for rival in [*rivals, *(found for found in failing if found not in rivals)]:
            timing = turns.timings.get(rival)
            found: list[Cell] = [None, None] if timing is None else [1e3 * timing.seconds, timing.spread]
            rows.append([name, rival, *found, turns.times("eager", rival)])
    title = f"One window, {options.channels} channels x {options.seconds:g} s, {options.precision}: latency"
    panels = [Panel("ms", "", series_of(rows, 2))]
    return [ResultTable("latency", title, COLUMNS, rows, panels, failing_notes(failures))]


def make_rivals(options: LatencyBench, name: str, device: torch.device) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the rivals that take turns, and the errors of those that could not be made."""
    samples = samples_of(preset(name).model, options.seconds)
    batch = noise(1, options.channels, samples, device)
    dtype = dtype_of(options.precision)
    rival = Rival("alternating", "ours")

    def one(compiled: bool) -> Call:
        encoder = rival.encoder(name, samples, device)
        if compiled:
            encoder.compile_parts(dynamic=False)
        return lambda: features(encoder, batch, dtype)

    rivals = {"eager": one(compiled=False)}
    if not options.eager:
        rivals["compiled"] = one(compiled=True)
    failing = {}
    for word in list(rivals):
        graph = f"{word}, CUDA graph"
        try:
            names = VOCABULARY[: options.channels]
            model = Cerebro(config=rival.config(name, samples), ch_names=names, max_channels=len(names)).to(device)
            rivals[graph] = captured(model, batch, options, compiled=word == "compiled")
        except Exception as error:
            failing[graph] = f"{type(error).__name__}: {error}".splitlines()[0]
    return rivals, failing


def features(encoder: Encoder, batch: Batch, dtype: torch.dtype) -> Tensor:
    """Compute the features that ``Cerebro.embed`` returns for a window."""
    autocast = torch.autocast(batch.signal_RT.device.type, dtype, dtype != torch.float32, cache_enabled=False)
    with torch.no_grad(), chosen("ours"), autocast:
        return encoder(batch).per_window()


def captured(model: Cerebro, batch: Batch, options: LatencyBench, compiled: bool) -> Call:
    """Return the same as a user gets it, with its checks and its copies of window and features on the device."""
    if not batch.signal_RT.is_cuda:
        raise RuntimeError("CUDA graphs need a CUDA device")
    windows_BCT = batch.layout.grid(batch.signal_RT)
    precision: Precision = "bf16" if options.precision == "bf16" else "fp32"
    with chosen("ours"):
        fast = model.captured(n_times=windows_BCT.shape[-1], precision=precision, compile=compiled)
    return lambda: fast(windows_BCT)
