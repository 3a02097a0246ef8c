"""Run a benchmark and write its tables; the command line, Python and the studies in ``benchmarks/`` call this file."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from cerebro_eeg.bench.machine import Where, where
from cerebro_eeg.bench.options import Options, name_of
from cerebro_eeg.bench.table import ResultTable
from cerebro_eeg.errors import ConfigError

Found = list[tuple[ResultTable, Where]]
Given = TypeVar("Given")


def run(options: Options, out: Path, say: Callable[[str], None]) -> Found:
    """Run the benchmark of these options; its module has the name of the options."""
    benchmark = import_module(f"cerebro_eeg.bench.{name_of(type(options))}").run
    return measure(benchmark, options, out, say)


def measure(
    benchmark: Callable[[Given, Callable[[str], None]], Iterable[ResultTable]],
    options: Given,
    out: Path,
    say: Callable[[str], None],
) -> Found:
    """Measure, and write each table to ``out`` as soon as it is complete."""
    if out.exists() and not out.is_dir():
        raise ConfigError("--out names a file; name a folder, which may be new")
    place = where(options)  # before any work: it refuses a device that is not here
    found = []
    for table in benchmark(options, say):
        table.write(out, place)
        found.append((table, place))
    return found
