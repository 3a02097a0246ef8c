"""Latency of a window on the CPU, and its share of the machine's sgemm rate.

A pass goes from microvolts to features: normalisation, patches, encoder and the mean over all tokens, in fp32, on one
thread by default. FLOPs are those of ``costs.py``. There are two ceilings: the best of large square products, which
takes turns with the rivals, and the products of the model's own layers, one after the other, which are thin. A rival is
a line in ``RIVALS``.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.ceilings import best_gemm, in_flops, products_rate
from cerebro_eeg.bench.clock import Call, on_host, take_turns
from cerebro_eeg.bench.models import Rival, chosen, noise, samples_of
from cerebro_eeg.bench.options import CpuBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes
from cerebro_eeg.config import ModelConfig, preset
from cerebro_eeg.costs import cost
from cerebro_eeg.fast import packed
from cerebro_eeg.model.encoder import Encoder

COLUMNS: dict[str, str | None] = {
    "channels": "",
    "rival": "",
    "ms": ".2f",
    "spread": ".0%",
    "over_ours": ".2fx",
    "sgemm_share": ".1%",
    "layers_share": ".1%",
    "layers_gflops": ".1f",
}
CPU = torch.device("cpu")
SGEMM = "sgemm"
STREAM = 8
"""The least number of windows per turn: only the first call of a turn finds another rival's data in the caches."""


def plain(backend: str) -> Callable[[Encoder, Batch, ExitStack], Call]:
    """Return a rival that calls the encoder: our path for the CPU, or torch's with one backend of attention."""

    def make(encoder: Encoder, batch: Batch, stack: ExitStack) -> Call:
        def call() -> None:
            with torch.inference_mode(), chosen(backend, everything=True):
                encoder(batch).per_window()

        return call

    return make


def with_packed_weights(encoder: Encoder, batch: Batch, stack: ExitStack) -> Call:
    """Return ours with weights laid out before, as in the commands and for a stream of single windows."""
    context = contextvars.copy_context()  # so that the other rivals do not see these weights
    manager = packed(encoder)
    context.run(manager.__enter__)
    stack.callback(context.run, manager.__exit__, None, None, None)
    call = plain("ours")(encoder, batch, stack)
    return lambda: context.run(call)


def compiled(encoder: Encoder, batch: Batch, stack: ExitStack) -> Call:
    """Return torch.compile of the whole encoder with torch's own operators."""
    graph = torch.compile(encoder)

    def call() -> None:
        with torch.no_grad(), chosen("flash", everything=True):
            graph(batch).per_window()

    return call


RIVALS: dict[str, Callable[[Encoder, Batch, ExitStack], Call]] = {
    "ours": plain("ours"),
    "ours, packed weights": with_packed_weights,
    "eager, stock": plain("flash"),
    "eager, stock math": plain("math"),
    "torch.compile": compiled,
}


def run(options: CpuBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per number of channels and rival."""
    config = preset(options.preset).model
    samples = samples_of(config, options.seconds)
    encoder = Rival("alternating", "ours").encoder(options.preset, samples, CPU)
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    with threads(options.threads) as count:
        gemm, alone = best_gemm(CPU, torch.float32, options.gemm)
        say(f"sgemm {in_flops(alone)}, {gemm.library}, {gemm.size} x {gemm.size}")
        repeats = max(1, STREAM // options.windows)
        for channels in options.channels:
            batch = noise(options.windows, channels, samples, CPU)
            flops = options.windows * cost(config, channels, samples).flops
            squares = max(1, repeats * flops // gemm.flops)  # a turn about as long as the rivals'
            own = products_rate(CPU, torch.float32, products(config, options.windows * channels, samples))
            names = [name for name in RIVALS if not (options.eager and name == "torch.compile")]
            with ExitStack() as stack:
                calls = {name: RIVALS[name](encoder, batch, stack) for name in names}
                streams = {name: in_a_row(call, repeats) for name, call in calls.items()}
                turns = take_turns({SGEMM: in_a_row(gemm.call, squares), **streams}, options.rounds, on_host)
            best = squares * gemm.flops / turns.timings[SGEMM].seconds
            failures += [(f"{name}, {channels} channels", error) for name, error in turns.failing.items()]
            for name in names:
                timing = turns.timings.get(name)
                if timing is None:
                    rows.append([channels, name, *[None] * 5, own / 1e9])
                    continue
                seconds = timing.seconds / repeats
                rate = flops / seconds
                found: list[Cell] = [channels, name, 1e3 * seconds, timing.spread, turns.times(name, "ours")]
                rows.append([*found, rate / best, rate / own, own / 1e9])
    return [table(options, rows, f"{in_flops(alone)}, {gemm.library}, {gemm.size} x {gemm.size}", count, failures)]


def in_a_row(call: Call, repeats: int) -> Call:
    """Return a call that makes this many calls."""

    def calls() -> None:
        for _ in range(repeats):
            call()

    return calls


def products(config: ModelConfig, rows: int, samples: int) -> list[tuple[int, int, int]]:
    """Return (tokens, inputs, outputs) of every linear layer of a pass, in order."""
    tokens, width = rows * config.patches.count(samples), config.width
    block = [(width, 3 * width), (width, width), (width, config.hidden), (config.hidden, width)]
    layers = [(config.patches.size, width), *block * config.depth]
    return [(tokens, inputs, outputs) for inputs, outputs in layers]


@contextlib.contextmanager
def threads(count: int) -> Iterator[int]:
    """Give torch this many threads for as long as the block lasts; 0 keeps its own number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


def table(
    options: CpuBench, rows: list[list[Cell]], ceiling: str, count: int, failures: list[tuple[str, str]]
) -> ResultTable:
    names = list(dict.fromkeys(str(row[1]) for row in rows))
    panels = []
    for what, place in (("ms", 2), ("share of the sgemm rate", 5)):
        series = []
        for name in names:
            chosen_rows = sorted((row for row in rows if row[1] == name), key=lambda row: row[0])  # type: ignore[arg-type,return-value]
            values = [value if isinstance(value := row[place], float) else None for row in chosen_rows]
            series.append(Series(name, [float(row[0] or 0) for row in chosen_rows], values))
        panels.append(Panel(what, "channels", series))
    title = f"CPU, {count} thread{'s' if count > 1 else ''}, {options.preset}, {options.seconds:g} s, fp32"
    notes = (
        f"sgemm: {ceiling}, in turns with the rivals; layers: the model's own products by torch, each after the other",
        *failing_notes(failures),
    )
    return ResultTable("cpu", title, COLUMNS, rows, panels, notes)
