"""Run: from options to tables in a folder; the one door for the command line, for Python and for ``goals``."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from cerebro_eeg.bench.machine import Where, where
from cerebro_eeg.bench.options import Goals, Options
from cerebro_eeg.bench.table import Table
from cerebro_eeg.errors import ConfigError

Found = list[tuple[Table, Where]]


def run(options: Options, out: Path, say: Callable[[str], None]) -> Found:
    """Measure, and write each table to ``out`` as it comes; the benchmark is the module named as the options are."""
    if out.exists() and not out.is_dir():
        raise ConfigError("--out names a file; name a folder, which may be new")
    if isinstance(options, Goals):
        from cerebro_eeg.bench import goals

        return goals.run(options, out, say, run)
    name = type(options).__name__.lower()
    place = where(options)  # before any work: it refuses a device that is not here
    tables: Iterable[Table] = import_module(f"cerebro_eeg.bench.{name}").run(options, say)
    found = []
    for table in tables:
        table.write(out, place)
        found.append((table, place))
    return found
