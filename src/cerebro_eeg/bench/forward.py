"""The paper's figures: runtime and peak memory of a forward pass against its number of tokens, every kind of attention.

Tokens grow with the channels. Standard attention comes twice: by the best of torch's kernels that keep no scores, and
materialised, as the paper's clearly was. Memory is the most that one pass allocates, with weights and input. The kinds
take turns at every length, on a GPU replayed as CUDA graphs, because short inputs would else wait for their launches;
only 64 patches a channel, which the plotted lengths show, lie beside the paper's curves.
"""

from collections.abc import Callable, Iterator

import torch

from cerebro_eeg.bench.clock import step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import Rival, best_stock, bytes_of, captured, config_of, dtype_of, noise, peak_bytes
from cerebro_eeg.bench.options import Forward
from cerebro_eeg.bench.paper import Point, read_curves
from cerebro_eeg.bench.square import compare, make_call
from cerebro_eeg.bench.table import Cell, Panel, Rows, Series, Table, failing_notes
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.encoder import Encoder

MIB = 2**20
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


def run(options: Forward, say: Callable[[str], None]) -> Iterator[Table]:
    """The compiled comparison, and a table for each number of patches, one after the other."""
    device = choose_device(options.device, "forward")
    unknown = set(options.only) - {"figures", "goal"}
    if unknown:
        raise ConfigError(f"--only has {', '.join(sorted(unknown))}; choose of figures, goal")
    if "goal" in options.only:
        yield compare(options, device, say)
    if "figures" in options.only:
        for patches in options.patches:
            yield figure(options, patches, device, say)


def figure(options: Forward, patches: int, device: torch.device, say: Callable[[str], None]) -> Table:
    """Every size, kind and number of channels with so many patches."""
    rows = Rows(COLUMNS, say)
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
    return Table(
        f"forward-{patches}",
        title,
        COLUMNS,
        rows,
        _panels(options, rows),
        [*notes, *failing_notes(failures)],
        [number for number, row in enumerate(rows) if row[2] in few],
    )


def _point(
    options: Forward, encoders: dict[str, Encoder], channels: int, patches: int, device: torch.device
) -> tuple[dict[str, tuple[float, float, float | None]], dict[str, str]]:
    """Seconds, spread and MiB of every kind that runs, and the errors of those that do not."""
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
    """The paper's standard attention kept its scores: it is the materialised one."""
    return {"materialised": "standard", "standard": ""}.get(name, name)


def _values(point: Point | None) -> tuple[float | None, float | None]:
    return (None, None) if point is None else (point.ms, point.mb)


def _over(value: float | None, ours: float | None) -> float | None:
    return None if value is None or not ours else value / ours


def _panels(options: Forward, rows: list[list[Cell]]) -> list[Panel]:
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
