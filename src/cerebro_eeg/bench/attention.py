"""Short-axis attention against every stock backend that runs, and against the time of a bare copy.

Packed q, k, v (R, N, 3 D) go in and (R, N, D) comes out, in bf16, forward and forward + backward, along time (a row is
a sequence) and across channels. The time of a stock kernel includes the changes of layout that it needs. The floor is
the time of a copy, at its measured rate: it reads q, k, v once and writes the output once (4 units). The backward pass
reads q, k, v and the output's gradient and writes three gradients (7 more units).
"""

import math
import statistics
from collections.abc import Callable

import torch

from cerebro_eeg.batch import Layout
from cerebro_eeg.bench.ceilings import copy_rate
from cerebro_eeg.bench.clock import Turns, kernel_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import BACKENDS, attention_steps
from cerebro_eeg.bench.options import AttentionBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, Series, TableRows, failing_notes
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.attention import Axis

AXES: dict[str, Axis] = {"time": "time", "channels": "channels"}
RIVALS = ("ours", *BACKENDS)
COLUMNS: dict[str, str | None] = {
    "axis": "",
    "head_dim": "",
    "length": "",
    "ours_forward_ms": ".3f",
    "ours_both_ms": ".3f",
    "best_forward": "",
    "times_forward": ".2fx",
    "best_both": "",
    "times_both": ".2fx",
    "floor_forward": ".0%",
    "floor_both": ".0%",
    "spread": ".0%",
    **{f"{name}_{part}_ms": None for name in BACKENDS for part in ("forward", "both")},
}


def run(options: AttentionBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure every point of the grid."""
    device = choose_device(options.device, "bench attention")
    unknown = set(options.directions) - set(AXES)
    if unknown:
        raise ConfigError(f"--directions has {', '.join(sorted(unknown))}; choose of time, channels")
    rate = copy_rate(device, options.copy)
    say(f"copy {rate / 1e12:.3g} TB/s")
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    for direction in options.directions:
        for dim in options.dims:
            for length in options.axes:
                forward, both, unit = measure(options, AXES[direction], dim, length, device)
                failures += [found for turns in (forward, both) for found in turns.failing.items()]
                rows.append(as_row(direction, dim, length, forward, both, unit / rate))
    return [table(options, rows, rate, failures)]


def measure(
    options: AttentionBench, axis: Axis, dim: int, length: int, device: torch.device
) -> tuple[Turns, Turns, int]:
    """Measure forward and forward + backward of one point; also return the bytes of one output."""
    torch.manual_seed(length)
    other = 20 if axis == "channels" else 32
    windows = max(1, options.tokens * 16 // dim // length // other)
    rows, tokens = (windows * length, other) if axis == "channels" else (windows * other, length)
    layout = Layout.uniform(windows, rows // windows)
    width = options.heads * dim
    qkv = torch.randn(rows, tokens, 3 * width, device=device, dtype=torch.bfloat16, requires_grad=True)
    d_out = torch.randn(rows, tokens, width, device=device, dtype=torch.bfloat16)
    steps = {name: attention_steps(qkv, d_out, layout, axis, options.heads, name) for name in RIVALS}
    clock = kernel_clock(device)
    forward, both = (
        take_turns({name: pair[part] for name, pair in steps.items()}, options.rounds, clock, repeats=3)
        for part in (0, 1)
    )
    return forward, both, d_out.nbytes


def as_row(direction: str, dim: int, length: int, forward: Turns, both: Turns, unit: float) -> list[Cell]:
    """Lay out one point of the grid; ``unit`` is the time in which a copy reads or writes one output."""
    best = [turns.best("ours") for turns in (forward, both)]
    ours = [turns.seconds("ours") for turns in (forward, both)]
    floors = [None if spent is None else units * unit / spent for units, spent in zip((4, 11), ours, strict=True)]
    spreads = [timing.spread for turns in (forward, both) for timing in turns.timings.values()]
    return [
        direction,
        dim,
        length,
        *(None if spent is None else 1e3 * spent for spent in ours),
        best[0],
        forward.times(best[0], "ours"),
        best[1],
        both.times(best[1], "ours"),
        *floors,
        max(spreads, default=None),
        *(_ms(turns, name) for name in BACKENDS for turns in (forward, both)),
    ]


def table(options: AttentionBench, rows: list[list[Cell]], rate: float, failures: list[tuple[str, str]]) -> ResultTable:
    place = list(COLUMNS).index
    ratios = {part: [float(r) for row in rows if (r := row[place(f"times_{part}")])] for part in ("forward", "both")}
    words = {"forward": "forward", "both": "forward + backward"}
    means = [
        f"{words[part]} over the best stock backend: geometric mean {geometric_mean(found):.2f}x, "
        f"least {min(found):.2f}x, {sum(ratio < 1 for ratio in found)} of {len(found)} points under 1x"
        for part, found in ratios.items()
        if found
    ]
    panels = []
    for title, column, mark in (
        ("forward, times the best stock backend", "times_forward", 1.0),
        ("forward + backward, times the best stock backend", "times_both", 1.0),
        ("share of the copy floor, forward + backward", "floor_both", None),
    ):
        series = [
            Series(
                f"{dim}, {direction}",
                [float(row[2] or 0) for row in chosen],
                [None if isinstance(value := row[place(column)], str) else value for row in chosen],
            )
            for direction in options.directions
            for dim in options.dims
            if (chosen := [row for row in rows if row[:2] == [direction, dim]])
        ]
        panels.append(Panel(title, "tokens of the axis", series, mark, logarithmic=mark is not None))
    notes = (f"ceiling: copy {rate / 1e12:.3g} TB/s", *means, *failing_notes(failures))
    title = f"Attention along a short axis, bf16, {options.heads} heads, about {options.tokens:,} tokens of 16"
    return ResultTable("attention", title, COLUMNS, rows, panels, notes)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.mean(map(math.log, values)))


def _ms(turns: Turns, name: str) -> float | None:
    seconds = turns.seconds(name)
    return None if seconds is None else 1e3 * seconds
