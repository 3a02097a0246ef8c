"""The command line: verbs -> functions, flags -> arguments, results -> text, mistakes -> one line and an exit code.

A verb is a plain typed function in ``cerebro_eeg.commands``. It prints no result but RETURNS one: a frozen dataclass
with ``text() -> str`` for people and ``to_dict() -> dict`` for ``--json``. A result that can be bad without an error
also has ``exit_code``. A user's mistake is raised as a ``CerebroError``. To add a verb, write the function and add one
line to ``VERBS``. Its help is its docstring: the first lines, then one line per parameter under ``Args:``.

``--json`` and ``--debug`` belong to every verb and are handled here, so the functions do not know them. Only this
module uses tyro. It imports tyro and the module of a verb when that verb is called, so the plain ``--help`` is fast.
"""

import atexit
import contextlib
import dataclasses
import functools
import gc
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, Protocol, TextIO, Union, get_origin, get_type_hints

from cerebro_eeg import __version__
from cerebro_eeg.errors import CerebroError, on_command_line, spoken
from cerebro_eeg.terminal import visible

VERBS: dict[str, tuple[str, str]] = {
    "info": ("cerebro_eeg.commands.info:info", "what a preset, a checkpoint, a store or an EEG file is"),
    "doctor": ("cerebro_eeg.commands.doctor:doctor", "versions, devices and optional packages of this installation"),
    "demo": ("cerebro_eeg.commands.demo:demo", "from simulated EEG files to a prediction, in minutes on a CPU"),
    "prepare": ("cerebro_eeg.commands.prepare:prepare", "filter, resample and store the recordings of a corpus"),
    "simulate": ("cerebro_eeg.commands.simulate:simulate", "EEG with known truth as EDF+ files with labels"),
    "anonymize": ("cerebro_eeg.commands.anonymize:anonymize", "copy an EDF or BDF file without saying whose it is"),
    "pretrain": ("cerebro_eeg.commands.pretrain:pretrain", "learn from unlabelled EEG: reconstruct masked patches"),
    "finetune": ("cerebro_eeg.commands.finetune:finetune", "train a labelled task, or a linear probe"),
    "evaluate": (
        "cerebro_eeg.commands.evaluate:evaluate",
        "score a fine-tuned run on its test split or on other data, once",
    ),
    "compare": ("cerebro_eeg.commands.compare:compare", "one honest table: simple rivals and networks beside CEReBrO"),
    "predict": ("cerebro_eeg.commands.predict:predict", "what a fine-tuned model says of new recordings"),
    "embed": ("cerebro_eeg.commands.embed:embed", "features of recordings or of a store, as .npz, .csv or .parquet"),
    "repair": (
        "cerebro_eeg.commands.repair:repair",
        "bad or missing channels filled in, and how far off that is",
    ),
    "verify": ("cerebro_eeg.commands.verify:verify", "whether stores, runs, checkpoints and features are undamaged"),
    "bench": ("cerebro_eeg.commands.bench:bench", "how fast this is here, against the best rivals"),
}

HELP = """\
usage: cerebro-eeg VERB [arguments] [--json] [--debug]
       cerebro-eeg VERB --help

CEReBrO, a compact EEG foundation model with alternating attention. Research software, not a medical device.

verbs:
{verbs}

options of every verb:
  --json     print the result as JSON
  --debug    show the traceback of an error
  --help     show the help of the verb; without a verb, this text
  --version  print the version (without a verb)

exit codes:
  0    done
  1    internal error, a disk that is full or fails, no memory, or a check that failed (doctor)
  2    wrong usage: unknown verb or option, a setting that does not exist or does not fit
  3    input that cannot be used as given: channels, shape, rate, unit, NaN; a path that is not there or may not be used
  4    checkpoint missing, damaged, altered or of another kind
  5    store missing, damaged, unfinished, or in use by another writer
  6    done, but some recordings were skipped or could not be used; the output says why
  7    stopped by a signal, state saved; the same command goes on
  8    training cannot go on: not a number, out of memory, a process gone; the last state is intact
  9    damage was found (verify)
  130  interrupted
  141  the reader of the output went away
"""


class Result(Protocol):
    """The result of a verb."""

    def text(self) -> str: ...
    def to_dict(self) -> dict[str, object]: ...


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; every error becomes a printed line."""
    if argv is None:
        # As it ends, Python would look for garbage among all objects of torch, which takes half a second. Nothing is
        # lost: no file of ours waits for that (files.replacing).
        atexit.register(gc.freeze)
    with contextlib.ExitStack() as ending:
        return _main(argv, ending)


def _main(argv: list[str] | None, ending: contextlib.ExitStack) -> int:
    args, flags = _take_flags(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in flags
    call: functools.partial[Result] | int = 0
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console that lacks a character shows "?" instead of failing
        sys.stdout.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            call = _understand(args, ending)
            code = call if isinstance(call, int) else _run(call, args, as_json="--json" in flags)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _silence_stdout()
        return 141
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except CerebroError as error:
        return _fail(f"error: {error}", error.exit_code, debug)
    except OSError as error:
        from cerebro_eeg.commands.given_paths import blame, given_paths

        _silence_stdout()  # stdout itself may have failed, for example on a full disk: do not fail again at exit
        line, code = blame(error, given_paths(call) if isinstance(call, functools.partial) else [])
        return _fail(f"error: {line}", code, debug)
    except MemoryError:
        return _fail("error: the memory does not suffice; give less at once, or use a machine with more", 1, debug)
    except RecursionError:
        return _fail("error: something that was given is nested too deeply; expected far fewer levels", 3, debug)
    except Exception as error:  # its message may quote a path or a header, so only --debug prints it
        hint = "run again with --debug for the traceback, and please report it"
        return _fail(f"internal error: {type(error).__name__} ({hint})", 1, debug)


def _take_flags(argv: list[str]) -> tuple[list[str], set[str]]:
    """Split off the flags that every verb has, anywhere before a ``--``."""
    end = argv.index("--") if "--" in argv else len(argv)
    own = {"--json", "--debug"}
    return [a for a in argv[:end] if a not in own] + argv[end:], own.intersection(argv[:end])


def _understand(args: list[str], ending: contextlib.ExitStack) -> "functools.partial[Result] | int":
    """Return the call that the arguments ask for; or an exit code, if help or an error was printed instead.

    Until the ``ending``, messages name options as flags of this verb.
    """
    if not args:
        print(_help(), end="", file=sys.stderr)
        return 2
    verb, *rest = args
    if verb in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    if verb == "--version":
        print(f"cerebro-eeg {__version__}")
        return 0
    if verb not in VERBS:
        return _fail(_unknown(verb), 2)
    asks = rest[: rest.index("--")] if "--" in rest else rest
    if ("-h" in asks or "--help" in asks) and (shown := _help_of(verb)) is not None:
        print(shown, end="")
        return 0
    said = io.StringIO()
    ending.enter_context(on_command_line(_options(_function(verb), verb)))
    try:
        with contextlib.redirect_stderr(said):
            return _read_arguments(verb, rest)
    except SystemExit as stop:  # tyro has printed its help, or a box with the error
        if stop.code in (0, None):
            print("\nEvery verb also takes --json (print the result as JSON) and --debug (show tracebacks).")
            return 0
        hint = getattr(import_module(VERBS[verb][0].partition(":")[0]), "usage_hint", lambda _: None)(rest)
        return _fail(f"error: {hint or _unboxed(said.getvalue())}; see cerebro-eeg {verb} --help", 2)


def _run(call: "functools.partial[Result]", args: list[str], *, as_json: bool) -> int:
    """Carry out a call and print its result."""
    from cerebro_eeg.commands.given_paths import check_paths, given_paths

    check_paths(given_paths(call), args)
    result = call()
    if os.environ.get("RANK", "0") != "0":  # of the processes that torchrun started, only the first prints
        return getattr(result, "exit_code", 0)
    if as_json:
        import json

        print(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        print(visible(result.text()))
    if (refused := getattr(result, "refused", None)) is not None:  # what was printed says why; this is the error line
        return _fail(f"error: {refused}", getattr(result, "exit_code", 0))
    return getattr(result, "exit_code", 0)


def _function(verb: str) -> Callable[..., Any]:
    """Import the function of a verb."""
    module, _, name = VERBS[verb][0].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


DESCRIBES = {"info": "prepare"}
"""Verbs that say what another verb would do: their messages may advise its options."""


def _options(function: Callable[..., Any], verb: str) -> list[str]:
    """Return the options of a verb by their names in Python; those of a set of options count as its own.

    Options of a verb that it describes follow, with the name of that verb behind an @.
    """
    found = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kinds = getattr(parameter.annotation, "__args__", (parameter.annotation,))
        sets = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
        names = [field.name for kind in sets for field in dataclasses.fields(kind)] if sets else [parameter.name]
        found += names if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY else []
    if verb not in DESCRIBES:
        return found
    others = _options(_function(DESCRIBES[verb]), DESCRIBES[verb])
    return found + [f"{other}@{DESCRIBES[verb]}" for other in others if other not in found]


def _read_arguments(verb: str, args: list[str]) -> "functools.partial[Result]":
    """Import the verb's function and read its arguments from the command line; return the call to make."""
    import tyro

    function = _function(verb)
    config: list[Any] = [tyro.conf.FlagCreatePairsOff]
    # If a verb takes one of several sets of options (bench), names and flags have no prefix.
    config += [tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs]
    if hasattr(tyro.conf, "PositionalMetavarFromFieldName"):  # tyro 1.0.16; before it, help says STR for TARGET
        config.append(tyro.conf.PositionalMetavarFromFieldName)

    # A Python keyword has an underscore behind it in the function, and none on the command line. A dataclass (settings
    # that verbs share) has no name there, so its fields stand among the other flags.
    signature = inspect.signature(function, eval_str=True)
    named = (
        (
            p.replace(annotation=_named_choices(p.annotation)),
            "" if dataclasses.is_dataclass(p.annotation) else p.name.removesuffix("_"),
        )
        for p in signature.parameters.values()
    )
    parameters = [
        p.replace(annotation=Annotated[p.annotation, tyro.conf.arg(name=name)]) if name != p.name else p
        for p, name in named
    ]

    @functools.wraps(function)
    def prepared(*args: object, **kwargs: object) -> "functools.partial[Result]":
        return functools.partial(function, *args, **kwargs)

    prepared.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    del prepared.__wrapped__
    prepared.__annotations__ = {p.name: p.annotation for p in parameters}
    return tyro.cli(prepared, prog=f"cerebro-eeg {verb}", args=_join_repeated(args, function), config=config)


def _join_repeated(args: list[str], function: Callable[..., Any]) -> list[str]:
    """Return the arguments with the values of a list that was given twice behind one flag; tyro takes the last alone.

    ``--without a --without b`` means ``--without a b``: nothing that was given is forgotten.
    """
    lists = {f"--{name.rstrip('_').replace('_', '-')}" for name in _lists(function)}
    end = args.index("--") if "--" in args else len(args)
    words = [word.partition("=")[0].replace("_", "-") for word in args[:end]]
    twice = {word for word in words if word in lists and words.count(word) > 1}
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    values = kept
    for word, name in zip(args[:end], words, strict=True):
        if name in twice:
            values = found.setdefault(name, [])
            if "=" in word:
                values.append(word.partition("=")[2])
                values = kept
        else:
            values = kept if word.startswith("--") else values
            values.append(word)
    return [*kept, *(word for name, given in found.items() for word in (name, *given)), *args[end:]]


def _lists(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of the options of a verb that take several values."""
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            hints = get_type_hints(parameter.annotation)
            yield from (name for name, hint in hints.items() if get_origin(hint) is tuple)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and get_origin(parameter.annotation) is tuple:
            yield parameter.name


def _named_choices(annotation: Any) -> Any:
    """Call each of several sets of options (bench) by its short name: TrainBench is ``train``."""
    import tyro

    kinds = annotation.__args__ if isinstance(annotation, UnionType) else ()
    if not kinds or not all(dataclasses.is_dataclass(kind) for kind in kinds):
        return annotation
    names = [kind.__name__.removesuffix("Bench").lower() for kind in kinds]
    return Union[tuple(Annotated[k, tyro.conf.subcommand(n)] for k, n in zip(kinds, names, strict=True))]  # noqa: UP007


# Patterns of words around a usage error of tyro or Python, and their replacements.
PHRASES = (
    (r"[\u2500-\u257f]+", " "),
    (r"^\s*(Parsing error|Required options|Unrecognized options|Value error)\s+(?!:)", ""),
    (r"( For full helptext| Argument helptext:).*", ""),
    (r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number"),
    (r"could not convert string to float: (.*)", r"\1 is not a number"),
    (r"Error parsing", "cannot read"),
)


def _unboxed(text: str) -> str:
    """Return the words inside the box that tyro draws, on one line."""
    for pattern, replacement in PHRASES:
        text = re.sub(pattern, replacement, " ".join(text.split()))
    return " ".join(text.split()).rstrip(".")


def _help() -> str:
    width = max(map(len, VERBS))
    return HELP.format(verbs="\n".join(f"  {verb:{width}}  {help}" for verb, (_, help) in VERBS.items()))


def _help_of(verb: str) -> str | None:
    """Return the help of a verb; None where tyro has to make it, because words choose among sets of options."""
    from cerebro_eeg.commands.help_text import can_help, help_text

    function = _function(verb)
    return help_text(verb, function) if can_help(function) else None


def _unknown(verb: str) -> str:
    from difflib import get_close_matches

    kind = "option" if verb.startswith("-") else "verb"
    near = get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"error: unknown {kind} {verb!r}; {hint}The verbs are: {', '.join(VERBS)} (see cerebro-eeg --help)"


def _fail(line: str, code: int, debug: bool = False) -> int:
    if debug:
        import traceback

        print(visible(traceback.format_exc()), end="", file=sys.stderr)
    else:
        print(visible(f"cerebro-eeg: {' '.join(line.split())}"), file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(visible(f"cerebro-eeg: warning: {' '.join(spoken(str(message)).split())}"), file=sys.stderr)


def _silence_stdout() -> None:
    """Redirect stdout to nothing, so that Python's own flush at exit cannot fail as well."""
    with suppress(OSError, ValueError):  # stdout may not be a real file, as under a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
