"""Peak memory against LaBraM (arXiv:2501.10885, Appendix E, tab:cerebro_vs_labram).

    model    parameters  peak GPU memory, MB
    LaBraM   5.8 M       757.38
    LaBraM   46 M        1371.92
    LaBraM   369 M       2758.42
    CEReBrO  3.58 M      402.96
    CEReBrO  39.95 M     1016.31
    CEReBrO  85.15 M     1620.29

64 channels, 8 windows, forward without gradients in fp32. Windows are 5 s: 20 patches of 64 samples at 256 Hz here, 5
of 200 at 200 Hz for LaBraM (ours; the paper does not say). LaBraM is braindecode's, with the widths, depths and heads
of its authors' three sizes and without its tokenizer's codebook; where braindecode is not installed its rows say so.

    python recipes/labram_memory.py --out results
    python recipes/labram_memory.py --mini
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mini
import torch
from common import guarded, scratch
from tables import MISSING, in_columns, write_csv
from timing import BATCH, MIB, Model, measure

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.costs import parameters
from cerebro_eeg.train.distributed import choose_device

CHANNELS, SAMPLES = 64, 1280
LABRAM_SAMPLES = 1000


@dataclass(frozen=True)
class Labram:
    """A size of LaBraM: its width is 25 times the filters of its first layers."""

    name: str
    parameters: str
    layers: int
    filters: int
    heads: int
    paper: str


LABRAM = (
    Labram("LaBraM Base", "5.8 M", 12, 8, 10, "757.38"),
    Labram("LaBraM Large", "46 M", 24, 16, 16, "1371.92"),
    Labram("LaBraM Huge", "369 M", 48, 32, 16, "2758.42"),
)
CEREBRO = (
    (Model("CEReBrO Small", "small", "alternating"), "402.96"),
    (Model("CEReBrO Base", "base", "alternating"), "1016.31"),
    (Model("CEReBrO Large", "large", "alternating"), "1620.29"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the table from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the CSV goes to FOLDER/tables")
    parser.add_argument("--mini", action="store_true", help="reduced, on the CPU, in seconds")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1 (%(default)s)")
    args = parser.parse_args(arguments)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    if args.mini:
        print(f"mini: {mini.describe()}, on the CPU, where memory is counted, not measured; LaBraM is not run.")
        print(mini.WARNING)
    device = choose_device("cpu" if args.mini else args.device)
    head = ["model", "parameters", "peak MiB", "counted MiB"]
    rows = []
    for rival in LABRAM:
        size, peak = ("", "not run") if args.mini else measure_labram(rival, device)
        rows.append([rival.name, size, peak, MISSING, rival.paper])
    for model, paper in CEREBRO:
        config = model.config(SAMPLES, args.mini)
        point = measure(config, [CHANNELS], SAMPLES, BATCH, device)[0]
        shown = MISSING if point.mib is None else f"{point.mib:.2f}"
        rows.append([model.name, _millions(_encoder_size(config)), shown, f"{point.counted_mib:.2f}", paper])
    if args.mini:
        rows = [row[:-1] for row in rows]
    else:
        head.append("paper, MB")
    with scratch(args) as out:
        path = out / "tables" / f"labram_memory{'-mini' if args.mini else ''}.csv"
        write_csv(path, head, rows)
        print(in_columns(head, rows))
        if args.out is not None:
            print(f"also in {path}")


def measure_labram(rival: Labram, device: torch.device) -> tuple[str, str]:
    """Return parameters and peak memory of LaBraM, or the reason why there are none."""
    if importlib.util.find_spec("braindecode") is None:
        return MISSING, "braindecode is not installed"
    from braindecode.models import Labram as Network

    torch.manual_seed(0)
    network = Network(
        n_times=LABRAM_SAMPLES,
        n_chans=CHANNELS,
        n_outputs=2,
        sfreq=200,
        embed_dim=25 * rival.filters,
        conv_out_channels=rival.filters,
        num_layers=rival.layers,
        num_heads=rival.heads,
    )
    network = network.to(device).eval()
    size = _millions(sum(p.numel() for p in network.parameters()))
    x = torch.randn(BATCH, CHANNELS, LABRAM_SAMPLES, device=device)
    if device.type != "cuda":
        return size, MISSING
    return size, f"{_peak(network, x, device):.2f}"


def _peak(network: Callable[[torch.Tensor], Any], x: torch.Tensor, device: torch.device) -> float:
    with torch.no_grad():
        network(x)
        torch.cuda.reset_peak_memory_stats(device)
        network(x)
    return torch.cuda.max_memory_allocated(device) / MIB


def _encoder_size(config: ModelConfig) -> int:
    return sum(parameters(config).values())


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"


if __name__ == "__main__":
    sys.exit(main())
