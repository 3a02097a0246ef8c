"""``python -m cerebro_eeg.bench NAME``: the same benchmarks where tyro is not installed, as on a bare GPU machine.

``main_of`` gives the scripts in ``benchmarks/`` the same command line.
"""

import argparse
import sys
import typing
from collections.abc import Callable, Iterable
from pathlib import Path

from cerebro_eeg.bench import options as module
from cerebro_eeg.bench.run import Found, measure, run
from cerebro_eeg.bench.table import ResultTable
from cerebro_eeg.errors import CerebroError
from cerebro_eeg.terminal import visible

Given = typing.TypeVar("Given")


def main(arguments: list[str] | None = None) -> int:
    """Read the options, measure and print every table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cerebro_eeg.bench", description="see docs/bench.md")
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    kinds = {module.name_of(kind): kind for kind in typing.get_args(module.Options)}
    for name, kind in kinds.items():
        add_options(commands.add_parser(name, help=kind.__doc__, description=kind.__doc__), kind)
    given = vars(parser.parse_args(arguments))
    kind = kinds[given.pop("what")]
    return finish(lambda: run(*read_options(kind, given), _say))


def main_of(
    kind: type[Given],
    benchmark: Callable[[Given, Callable[[str], None]], Iterable[ResultTable]],
    arguments: list[str] | None = None,
) -> int:
    """Do the same for the one benchmark of a script."""
    parser = argparse.ArgumentParser(prog=f"python benchmarks/{module.name_of(kind)}.py", description=kind.__doc__)
    add_options(parser, kind)
    given = vars(parser.parse_args(arguments))
    return finish(lambda: measure(benchmark, *read_options(kind, given), _say))


def add_options(command: argparse.ArgumentParser, kind: type) -> None:
    """Add a flag for every field of a benchmark's options, and ``--out``."""
    command.add_argument("--out", type=Path, default=Path("bench"))
    for field, hint in typing.get_type_hints(kind).items():
        add_option(command, field, hint, getattr(kind, field))


def add_option(command: argparse.ArgumentParser, name: str, hint: typing.Any, default: object) -> None:
    """Add a field as a flag: a tuple takes several values, a bool none."""
    flag = f"--{name.replace('_', '-')}"
    if hint is bool:
        command.add_argument(flag, action="store_true")
    elif typing.get_origin(hint) is tuple:
        command.add_argument(flag, type=typing.get_args(hint)[0], nargs="*", default=default, metavar="X")
    else:
        kind = next(iter(a for a in typing.get_args(hint) if a is not type(None)), hint)
        command.add_argument(flag, type=kind, default=default, metavar="X", help=f"default: {default}")


def read_options(kind: type[Given], given: dict[str, typing.Any]) -> tuple[Given, Path]:
    """Return the options and the folder that the parsed flags stand for."""
    out = given.pop("out")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}), out


def finish(call: Callable[[], Found]) -> int:
    """Call, print the tables and return the exit code; an error is one line."""
    try:
        found = call()
    except CerebroError as error:
        print(visible(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    print(visible("\n\n".join(table.text(place) for table, place in found)))
    return 0


def _say(line: str) -> None:
    print(visible(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
