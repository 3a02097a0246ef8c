"""``cerebro-eeg bench``: measure the speed of this machine against the best rivals; docs/bench.md explains each one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro_eeg.bench.options import Options
from cerebro_eeg.progress import Progress

if TYPE_CHECKING:
    from cerebro_eeg.bench.run import Found


@dataclass(frozen=True)
class BenchResult:
    """The tables, which are also in the folder."""

    tables: "Found"

    def text(self) -> str:
        return "\n\n".join(table.text(place) for table, place in self.tables)

    def to_dict(self) -> dict[str, object]:
        return {
            table.name: {
                **place.to_dict(),
                "title": table.title,
                "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
                "notes": list(table.notes),
            }
            for table, place in self.tables
        }


def bench(what: Options, *, out: Path = Path("bench")) -> BenchResult:
    """Measure how fast this is on this machine: rivals take turns in one run, ceilings come first.

    Each benchmark prints a table and writes it as .txt and .csv, with a plot beside it. Those of a GPU refuse to run
    without one.

    Try, for example:
      cerebro-eeg bench cpu
      cerebro-eeg bench train --presets small --windows 1024 --out my-bench
      cerebro-eeg bench attention --help

    Args:
        what: The benchmark.
        out: The folder that tables and plots go to; files of the same benchmark are replaced.
    """
    from cerebro_eeg.bench.run import run

    progress = Progress()
    try:
        return BenchResult(run(what, out, progress.say))
    finally:
        progress.end()
