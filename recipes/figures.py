"""Figures: the paper's plots of runtime and memory over tokens: measured, printed, written as CSV and drawn.

Tokens grow with the channels. The paper's text and captions disagree on the patches of a channel; the lengths it plots
say 64, so only that is compared with it, and 20 is measured beside it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mini
import torch
from common import guarded, scratch
from tables import MISSING, in_columns, write_csv
from timing import BATCH, CHANNELS, Model, turns

from cerebro_eeg.files import replacing
from cerebro_eeg.train.distributed import choose_device

PATCHES = (64, 20)
Curves = Mapping[str, Mapping[int, str]]
"""The paper's values by model and tokens; "-" where it ran out of memory."""


@dataclass(frozen=True)
class Panel:
    """One of the two plots."""

    title: str
    values: Mapping[str, Sequence[float | None]]
    """Measured values by model, in the order of ``CHANNELS``."""
    paper: Curves
    """The paper's curves; empty where there is nothing to compare."""

    def cell(self, model: str, place: int, tokens: int) -> str:
        """Return the printed text: the measured value, or measured / the paper's."""
        value = self.values[model][place]
        shown = MISSING if value is None else f"{value:.1f}"
        return f"{shown} / {self.paper[model][tokens]}" if self.paper else shown


def main(name: str, doc: str, models: Sequence[Model], arguments: Sequence[str] | None = None) -> int:
    """Measure a figure from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="CSV and PNG go to FOLDER/figures")
    parser.add_argument("--mini", action="store_true", help="the same grid, reduced, on the CPU, in seconds")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each model takes (%(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    args = parser.parse_args(arguments)
    return guarded(lambda: _run(name, doc, models, args))


def read_curves(doc: str, heading: str) -> Curves:
    """Read a table of a figure's docstring: tokens and one column per model under ``heading``."""
    lines = doc.split(f"{heading}\n", 1)[1].split("\n\n", 1)[0].splitlines()
    names = lines[0].split()[1:]
    found: dict[str, dict[int, str]] = {name: {} for name in names}
    for line in lines[1:]:
        tokens, *values = line.split()
        for name, value in zip(names, values, strict=True):
            found[name][int(tokens)] = value
    return found


def _run(name: str, doc: str, models: Sequence[Model], args: argparse.Namespace) -> None:
    if args.mini:
        torch.set_num_threads(1)
        print(f"mini: {mini.describe()}, one window, one turn, on the CPU, where memory is counted, not measured.")
        print(mini.WARNING)
    device = choose_device("cpu" if args.mini else args.device)
    batch, rounds = (1, 1) if args.mini else (BATCH, args.rounds)
    with scratch(args) as out:
        for patches in PATCHES:
            found = turns(models, patches, rounds, batch, device, args.mini)
            compared = patches == PATCHES[0] and not args.mini
            runtime = Panel(
                "runtime, ms",
                {of: [point.ms for point in points] for of, points in found.items()},
                read_curves(doc, "runtime, ms") if compared else {},
            )
            measured = device.type == "cuda"
            memory = Panel(
                "memory, MiB" if measured else "memory, counted MiB",
                {of: [p.mib if measured else p.counted_mib for p in points] for of, points in found.items()},
                read_curves(doc, "memory, MB") if compared else {},
            )
            stem = f"{name}-{patches}{'-mini' if args.mini else ''}"
            for panel in (runtime, memory):
                head, rows = _rows(patches, models, panel)
                print(f"\n{patches} patches a channel, {batch} at once: {panel.title}{BESIDE if panel.paper else ''}")
                print(in_columns(head, rows))
                write_csv(out / "figures" / f"{stem}-{panel.title.split(',')[0]}.csv", head, rows)
            _draw(out / "figures" / f"{stem}.png", patches, models, (runtime, memory))
            if args.out is not None:
                print(f"also in {out / 'figures'}: {stem}-runtime.csv, {stem}-memory.csv, {stem}.png")


BESIDE = " / the paper's (MB for MiB), on other GPUs"


def _rows(patches: int, models: Sequence[Model], panel: Panel) -> tuple[list[str], list[list[str]]]:
    rows = []
    for place, channels in enumerate(CHANNELS):
        tokens = patches * channels
        rows.append([str(tokens), *(panel.cell(model.name, place, tokens) for model in models)])
    return ["tokens", *(model.name for model in models)], rows


def _draw(path: Path, patches: int, models: Sequence[Model], panels: Sequence[Panel]) -> None:
    """Draw the measured curves, and the paper's dashed where they have the same lengths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for number, model in enumerate(models):
            values = zip(CHANNELS, panel.values[model.name], strict=True)
            known = [(patches * channels, value) for channels, value in values if value is not None]
            axes.plot([x for x, _ in known], [y for _, y in known], color=f"C{number}", label=model.name)
            if panel.paper:
                curve = {x: float(text) for x, text in panel.paper[model.name].items() if text != "-"}
                axes.plot(list(curve), list(curve.values()), "--", color=f"C{number}", alpha=0.5)
        axes.set(xlabel="tokens", title=panel.title + (" (dashed: the paper, another GPU)" if panel.paper else ""))
    figure.axes[0].legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
