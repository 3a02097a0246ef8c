"""``python -m cerebro_eeg.bench WHAT``: the same benchmarks where tyro is not installed, as on a bare GPU machine."""

import argparse
import sys
import typing
from pathlib import Path

from cerebro_eeg.bench import options as module
from cerebro_eeg.bench.run import run
from cerebro_eeg.errors import CerebroError


def main(arguments: list[str] | None = None) -> int:
    """Read options, measure, print every table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cerebro_eeg.bench", description="see docs/bench.md")
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    kinds = {kind.__name__.lower(): kind for kind in typing.get_args(module.Options)}
    for name, kind in kinds.items():
        command = commands.add_parser(name, help=kind.__doc__, description=kind.__doc__)
        command.add_argument("--out", type=Path, default=Path("bench"))
        for field, hint in typing.get_type_hints(kind).items():
            add_option(command, field, hint, getattr(kind, field))
    given = vars(parser.parse_args(arguments))
    what, out = given.pop("what"), given.pop("out")
    try:
        chosen = kinds[what](**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})
        found = run(chosen, out, lambda line: print(line, file=sys.stderr, flush=True))
    except CerebroError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("\n\n".join(table.text(place) for table, place in found))
    return 0


def add_option(command: argparse.ArgumentParser, name: str, hint: typing.Any, default: object) -> None:
    """A field as a flag: a tuple takes several values, a bool none."""
    flag = f"--{name.replace('_', '-')}"
    if hint is bool:
        command.add_argument(flag, action="store_true")
    elif typing.get_origin(hint) is tuple:
        command.add_argument(flag, type=typing.get_args(hint)[0], nargs="*", default=default, metavar="X")
    else:
        kind = next(iter(a for a in typing.get_args(hint) if a is not type(None)), hint)
        command.add_argument(flag, type=kind, default=default, metavar="X", help=f"default: {default}")


if __name__ == "__main__":
    sys.exit(main())
