"""Alternating attention against standard attention where the grid is square: as many channels as patches.

bf16 autocast, blocks compiled for the shape, forward without gradients; on a GPU every rival is replayed as a CUDA
graph, because a small model would else wait for its launches. Standard attention is computed by the backend that is
fastest on this shape, and once with its scores in memory.
"""

from collections.abc import Callable

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.clock import Call, step_clock, take_turns
from cerebro_eeg.bench.models import (
    Rival,
    best_stock,
    bytes_of,
    captured,
    chosen,
    config_of,
    many_graphs,
    noise,
    peak_bytes,
)
from cerebro_eeg.bench.options import Forward
from cerebro_eeg.bench.table import Cell, Panel, Rows, Table, failing_notes, series_of
from cerebro_eeg.model.encoder import Encoder

MIB = 2**20
COLUMNS: dict[str, str | None] = {
    "preset": "",
    "rival": "",
    "backend": "",
    "ms": ".3f",
    "spread": ".0%",
    "times": ".2fx",
    "mib": ".0f",
    "times_memory": ".2fx",
}


def compare(options: Forward, device: torch.device, say: Callable[[str], None]) -> Table:
    """One row for each size and rival."""
    many_graphs()
    rows = Rows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    side = options.goal_channels
    for preset in options.presets:
        samples = side * config_of(preset).patches.size
        batch = noise(options.windows, side, samples, device)
        ranked = best_stock(Rival("standard", None).config(preset, samples), batch, torch.bfloat16, training=False)
        rivals = {
            "alternating": Rival("alternating", "ours"),
            "standard": Rival("standard", ranked.best("math")),
            "materialised": Rival("standard", "math"),
        }
        calls, own = {}, {}
        for name, rival in rivals.items():
            encoder = rival.encoder(preset, samples, device)
            own[name] = bytes_of(encoder) + batch.signal_RT.nbytes
            if not options.eager:
                # torch.compile looks graphs up by code, guards and the arguments of the compilation, and no guard asks
                # for the backend of attention: models that differ in it alone would share the graph of the first. For
                # one shape, None compiles the same as False.
                encoder.compile_parts(dynamic=None if name == "materialised" else False)
            calls[name] = make_call(encoder, batch, rival.backend, torch.bfloat16)
        replays = {name: captured(call, device) for name, call in calls.items()}
        turns = take_turns(replays, options.rounds, step_clock(device), repeats=3, warm=3)
        failures += [(f"{name}, {preset}", error) for name, error in turns.failing.items()]
        del replays  # and the memory of the graphs
        peaks = {name: peak_bytes(calls[name], own[name], device) for name in turns.timings}
        for name, rival in rivals.items():
            timing, peak, ours = turns.timings.get(name), peaks.get(name), peaks.get("alternating")
            found: list[Cell] = [None, None] if timing is None else [1e3 * timing.seconds, timing.spread]
            used: list[Cell] = [None, None] if peak is None or not ours else [peak / MIB, peak / ours]
            backend = rival.backend or "torch's choice"
            rows.append([preset, name, backend, *found, turns.times(name, "alternating"), *used])
        del calls
    how = ("eager" if options.eager else "compiled") + (", CUDA graphs" if device.type == "cuda" else "")
    title = f"Forward pass, {side} x {side} tokens, {options.windows} windows, bf16, {how}"
    panels = [
        Panel(what, "", series_of(rows, place), 1.0)
        for what, place in (("time over alternating", 5), ("memory over alternating", 7))
    ]
    return Table("forward-square", title, COLUMNS, rows, panels, failing_notes(failures))


def make_call(encoder: Encoder, batch: Batch, backend: str | None, dtype: torch.dtype) -> Call:
    """A forward pass in this precision, by one backend."""
    where = batch.signal_RT.device.type

    def call() -> None:
        autocast = torch.autocast(where, dtype, enabled=dtype != torch.float32, cache_enabled=False)
        with torch.no_grad(), chosen(backend), autocast:  # a captured graph may not keep weights that autocast cast
            encoder(batch)

    return call
