"""The paper's figures: runtime and memory of a forward pass over its number of tokens, for every kind of attention.

Tokens grow with the channels. Standard attention appears twice: by the fastest of torch's kernels that keep no scores,
and materialised, with its scores in memory, as the paper had it. Memory is the peak of one pass, with weights and
input. The kinds take turns at every length. On a GPU each pass is replayed as a CUDA graph, because a small model would
otherwise wait for its launches. Only tables with 64 patches per channel show the paper's curves.

``compare_square`` compares alternating with standard attention on a square grid, with as many channels as patches, in
bf16 and with compiled blocks.

The paper's curves (paper.csv) are the numbers in the plots of arXiv:2501.10885, measured on NVIDIA RTX 2080 Ti. "sizes"
is the figure of three sizes with standard and alternating attention (Section 3.4). "kinds" is the figure of the four
kinds for Large (Appendix B), where one curve stands for alternating and bottleneck. The two figures disagree where they
overlap, so they are never joined.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.clock import Call, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import (
    Rival,
    best_stock,
    bytes_of,
    captured,
    chosen,
    config_of,
    dtype_of,
    many_graphs,
    noise,
    peak_bytes,
)
from cerebro_eeg.bench.options import ForwardBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes, series_of
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.encoder import Encoder


@dataclass(frozen=True)
class Point:
    """A point of the paper's plots; None where the model ran out of memory."""

    ms: float | None
    mb: float | None


def read_curves() -> dict[tuple[str, str, str, int], Point]:
    """Read the paper's points by figure, preset, attention and tokens."""
    text = files("cerebro_eeg.bench").joinpath("paper.csv").read_text(encoding="utf-8")
    return {
        (row["figure"], row["preset"], row["attention"], int(row["tokens"])): Point(
            float(row["ms"]) if row["ms"] else None, float(row["mb"]) if row["mb"] else None
        )
        for row in csv.DictReader(text.splitlines())
    }


MIB = 2**20
SQUARE_COLUMNS: dict[str, str | None] = {
    "preset": "",
    "rival": "",
    "backend": "",
    "ms": ".3f",
    "spread": ".0%",
    "times": ".2fx",
    "mib": ".0f",
    "times_memory": ".2fx",
}


def compare_square(options: ForwardBench, device: torch.device, say: Callable[[str], None]) -> ResultTable:
    """Compare alternating with standard attention on a square grid: one row per size and rival."""
    many_graphs()
    rows = TableRows(SQUARE_COLUMNS, say)
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
    return ResultTable("forward-square", title, SQUARE_COLUMNS, rows, panels, failing_notes(failures))


def make_call(encoder: Encoder, batch: Batch, backend: str | None, dtype: torch.dtype) -> Call:
    """Return a forward pass in this precision, by one backend."""
    where = batch.signal_RT.device.type

    def call() -> None:
        autocast = torch.autocast(where, dtype, enabled=dtype != torch.float32, cache_enabled=False)
        with torch.no_grad(), chosen(backend), autocast:  # a captured graph may not keep weights that autocast cast
            encoder(batch)

    return call


PAPER_PATCHES = 64
RIVALS = {
    "alternating": Rival("alternating", "ours"),
    "standard": Rival("standard", None),
    "materialised": Rival("standard", "math"),
    "two_axis": Rival("two_axis", "ours"),
    "bottleneck": Rival("bottleneck", "ours"),
}
COLUMNS: dict[str, str | None] = {
    "preset": "",
    "attention": "",
    "channels": "",
    "tokens": "",
    "ms": ".2f",
    "spread": ".0%",
    "times": ".2fx",
    "mib": ".0f",
    "times_memory": ".2fx",
    "paper_sizes_ms": ".1f",
    "paper_sizes_mb": ".0f",
    "paper_kinds_ms": ".1f",
    "paper_kinds_mb": ".0f",
}


def run(options: ForwardBench, say: Callable[[str], None]) -> Iterator[ResultTable]:
    """Yield the comparison on a square grid, then one table per number of patches."""
    device = choose_device(options.device, "bench forward")
    unknown = set(options.only) - {"figures", "goal"}
    if unknown:
        raise ConfigError(f"--only has {', '.join(sorted(unknown))}; choose of figures, goal")
    if "goal" in options.only:
        yield compare_square(options, device, say)
    if "figures" in options.only:
        for patches in options.patches:
            yield figure(options, patches, device, say)


def figure(options: ForwardBench, patches: int, device: torch.device, say: Callable[[str], None]) -> ResultTable:
    """Measure every size, kind and number of channels with this many patches."""
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    paper = read_curves() if patches == PAPER_PATCHES else {}
    for preset in options.presets:
        samples = patches * config_of(preset).patches.size
        encoders = {name: rival.encoder(preset, samples, device) for name, rival in RIVALS.items()}
        for channels in options.channels:
            found, failing = _point(options, encoders, channels, patches, device)
            failures += [(f"{name}, {preset}, {channels * patches:,} tokens", error) for name, error in failing.items()]
            ours = found.get("alternating")
            for name in RIVALS:
                spent, spread, used = found.get(name, (None, None, None))
                beside = [paper.get((of, preset, _in_paper(name), channels * patches)) for of in ("sizes", "kinds")]
                rows.append(
                    [
                        preset,
                        name,
                        channels,
                        channels * patches,
                        None if spent is None else 1e3 * spent,
                        spread,
                        _over(spent, ours[0] if ours else None),
                        used,
                        _over(used, ours[2] if ours else None),
                        *(value for point in beside for value in _values(point)),
                    ]
                )
        del encoders
    lengths = sorted(set(options.channels))
    few = {lengths[0], lengths[len(lengths) // 2], lengths[-1]}
    how = ", CUDA graphs" if device.type == "cuda" else ""
    title = f"Forward pass, {patches} patches a channel, {options.windows} windows, {options.precision}, eager{how}"
    notes = ["times: over alternating attention; MiB with weights and input (none counted on a CPU)"]
    if paper:
        notes.append("the paper's curves (dashed: three sizes; dotted: Appendix B) are of RTX 2080 Ti: compare shapes")
    return ResultTable(
        f"forward-{patches}",
        title,
        COLUMNS,
        rows,
        _panels(options, rows),
        [*notes, *failing_notes(failures)],
        [number for number, row in enumerate(rows) if row[2] in few],
    )


def _point(
    options: ForwardBench, encoders: dict[str, Encoder], channels: int, patches: int, device: torch.device
) -> tuple[dict[str, tuple[float, float, float | None]], dict[str, str]]:
    """Measure seconds, spread and MiB of every kind that runs; also return the errors of the others."""
    dtype = dtype_of(options.precision)
    config = encoders["standard"].config
    batch = noise(options.windows, channels, patches * config.patches.size, device)
    standard = best_stock(config, batch, dtype, training=False, rounds=1).best("math")

    backends = {name: rival.backend for name, rival in RIVALS.items()} | {"standard": standard}
    calls = {name: make_call(encoder, batch, backends[name], dtype) for name, encoder in encoders.items()}
    replays = {name: captured(call, device) for name, call in calls.items()}
    turns = take_turns(replays, options.rounds, step_clock(device), warm=1)
    del replays  # and the memory of the graphs
    found = {}
    for name, timing in turns.timings.items():
        peak = peak_bytes(calls[name], bytes_of(encoders[name]) + batch.signal_RT.nbytes, device)
        found[name] = (timing.seconds, timing.spread, None if peak is None else peak / MIB)
    return found, dict(turns.failing)


def _in_paper(name: str) -> str:
    """Return the paper's name of a rival; its standard attention kept its scores, so it is our materialised one."""
    return {"materialised": "standard", "standard": ""}.get(name, name)


def _values(point: Point | None) -> tuple[float | None, float | None]:
    return (None, None) if point is None else (point.ms, point.mb)


def _over(value: float | None, ours: float | None) -> float | None:
    return None if value is None or not ours else value / ours


def _panels(options: ForwardBench, rows: list[list[Cell]]) -> list[Panel]:
    panels = []
    for what, column, beside in (("runtime, ms", "ms", "ms"), ("peak memory, MiB", "mib", "mb")):
        for preset in options.presets:
            series = []
            for name in RIVALS:
                chosen_rows = [row for row in rows if row[:2] == [preset, name]]
                tokens = [float(row[3] or 0) for row in chosen_rows]
                for of, style in ((column, "-"), (f"paper_sizes_{beside}", "--"), (f"paper_kinds_{beside}", ":")):
                    values = [row[list(COLUMNS).index(of)] for row in chosen_rows]
                    numbers = [None if isinstance(value, str) else value for value in values]
                    if style == "-" or any(number is not None for number in numbers):
                        label = name if style == "-" else f"{_in_paper(name)}, paper"
                        series.append(Series(label, tokens, numbers, style))
            panels.append(Panel(f"{preset}: {what}", "tokens", series, logarithmic=True))
    return panels
