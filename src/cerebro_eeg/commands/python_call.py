"""A verb as a function of Python: the words of the command line, with lists, texts and paths where a user has them.

``in_python`` derives all of it from the verb itself: its parameters with the fields of ``Engine`` and ``Handling``
among them, its docstring with the examples as calls. So nothing is written twice, and a new flag is there at once.

A call leaves the process as it was: threads, random numbers, GPU and environment. It prints nothing on stdout.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cerebro_eeg.commands.given_paths import PERHAPS, GivenPath, blame, check_paths, given_paths
from cerebro_eeg.errors import CerebroError, ConfigError, InputError, in_python, python_words, warn_caller

R = TypeVar("R")
AnyPath = str | os.PathLike[str]
"""A path as users give it; results that lie in a folder are paths, too."""


def python_verb(verb: Callable[..., R]) -> Callable[..., R]:
    """Return the function that ``cerebro_eeg`` offers for a verb of the command line."""
    parameters = _parameters(verb)
    signature = inspect.Signature(
        [one.shown for one in parameters], return_annotation=inspect.signature(verb).return_annotation
    )

    def call(*args: Any, **kwargs: Any) -> R:
        bound = signature.bind(*args, **kwargs)
        with in_python(), as_it_was(torch="device" in signature.parameters):
            given = {name: convert(name, value, hints[name]) for name, value in bound.arguments.items()}
            ready = _ready(verb, parameters, given)
            spelled = [GivenPath(one.option.lower(), one.path) for one in given_paths(ready)]
            check_paths(spelled, [])
            try:
                result = ready()
            except OSError as error:
                line, code = blame(error, spelled)
                line = line.replace("; run again with --debug to see which", "")  # the error below this one says it
                raise (InputError if code == InputError.exit_code else CerebroError)(line) from error
        if (trouble := getattr(result, "trouble", None)) is not None:
            warn_caller(python_words(trouble))
        return result

    hints = {one.name: one.hint for one in parameters}
    call.__name__ = call.__qualname__ = verb.__name__
    call.__module__ = "cerebro_eeg.api"
    call.__doc__ = python_doc(verb)
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.shown.annotation for one in parameters}
    return call


# Parameters


@dataclasses.dataclass(frozen=True)
class PythonParameter:
    """A parameter as Python has it, and what the verb calls it."""

    name: str
    hint: Any
    """The type that the verb wants."""
    shown: inspect.Parameter
    group: str | None
    """The parameter of the verb, such as ``engine``, of whose dataclass this is a field."""


def _parameters(verb: Callable[..., Any]) -> list[PythonParameter]:
    found = []
    for one in inspect.signature(verb).parameters.values():
        if dataclasses.is_dataclass(one.annotation):
            hints = get_type_hints(one.annotation)
            for field in dataclasses.fields(one.annotation):
                shown = inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=_shown_type(hints[field.name], field.name),
                )
                found.append(PythonParameter(field.name, hints[field.name], shown, one.name))
            continue
        kind = one.kind if one.kind is one.KEYWORD_ONLY else one.POSITIONAL_OR_KEYWORD
        shown = one.replace(kind=kind, annotation=_shown_type(one.annotation, one.name))
        found.append(PythonParameter(one.name, one.annotation, shown, None))
    return found


def _shown_type(hint: Any, name: str) -> Any:
    """Return the type that users may give where the verb wants ``hint``."""
    if hint is Path or (hint is str and name in PERHAPS):
        return AnyPath
    if get_origin(hint) is tuple:
        inside = _shown_type(get_args(hint)[0], name)
        return inside | Sequence[inside]  # type: ignore[valid-type]
    if get_origin(hint) in (Union, UnionType):
        return functools.reduce(operator.or_, (_shown_type(part, name) for part in get_args(hint)))
    return hint


def _ready(
    verb: Callable[..., R], parameters: Sequence[PythonParameter], given: Mapping[str, Any]
) -> "functools.partial[R]":
    """Return the call of the verb with these arguments, with sets of options made of their fields."""
    groups: dict[str, dict[str, Any]] = {}
    plain: dict[str, Any] = {}
    for one in parameters:
        if one.name in given:
            (plain if one.group is None else groups.setdefault(one.group, {}))[one.name] = given[one.name]
    signature = inspect.signature(verb)
    plain |= {group: signature.parameters[group].annotation(**fields) for group, fields in groups.items()}
    first = [name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_ONLY and name in plain]
    return functools.partial(verb, *(plain.pop(name) for name in first), **plain)


# Values


def convert(name: str, value: Any, hint: Any) -> Any:
    """Return a value as the verb wants it; a ConfigError says what was given and what is expected."""
    if hint is Any:
        return value
    if get_origin(hint) in (Union, UnionType):
        kinds = [part for part in get_args(hint) if part is not NoneType]
        if value is None and NoneType in get_args(hint):
            return None
        return convert(name, value, kinds[0]) if len(kinds) == 1 else value
    if get_origin(hint) is Literal:
        if not isinstance(value, str | int) or value not in get_args(hint):
            raise ConfigError(f"{name} is {value!r}; choose {_one_of(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        several = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Iterable) else list(value)
        if isinstance(value, Mapping):  # set={"model.depth": 6}
            several = [f"{field}={json.dumps(setting)}" for field, setting in value.items()]
        return tuple(convert(name, one, get_args(hint)[0]) for one in several)
    return _CONVERT[hint](name, value) if hint in _CONVERT else value


def _to_path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name} is {_kind_of(value)}; expected a path")
    if not isinstance(value, Path) and not os.fspath(value):
        raise ConfigError(f"{name} is empty; give a path, or '.' for the folder that you are in")
    return Path(value).expanduser()


def _to_text(name: str, value: Any) -> str:
    if isinstance(value, os.PathLike) and name in PERHAPS:
        return os.fspath(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {_kind_of(value)}; expected a text")
    return value


def _to_whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r}; expected a whole number") from None


def _to_number(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}; expected a number") from None


def _to_switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise ConfigError(f"{name} is {value!r}; expected True or False")
    return bool(value)


_CONVERT: dict[Any, Callable[[str, Any], Any]] = {
    Path: _to_path,
    str: _to_text,
    int: _to_whole,
    float: _to_number,
    bool: _to_switch,
}


def _one_of(choices: Sequence[Any]) -> str:
    *some, last = map(repr, choices)
    return f"{', '.join(some)} or {last}" if some else last


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


# The process


@contextlib.contextmanager
def as_it_was(*, torch: bool) -> Iterator[None]:
    """Give the process back as it was: what a verb sets for itself must not change the rest of a notebook.

    A verb without a model needs no ``torch``, and it is not loaded for it.
    """
    cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    with contextlib.ExitStack() as after:
        if torch:
            after.enter_context(_torch_as_it_was())
        try:
            yield
        finally:
            if cublas is None:
                os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@contextlib.contextmanager
def _torch_as_it_was() -> Iterator[None]:
    import torch

    threads, random = torch.get_num_threads(), torch.get_rng_state()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    gpu_random = torch.cuda.get_rng_state_all() if gpu is not None else []
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(random)
        if gpu is not None:
            torch.cuda.set_device(gpu)
            torch.cuda.set_rng_state_all(gpu_random)


# Documentation

_SENTENCES = (
    (
        r"The exit code is 7 where a signal \(([^)]*)\) stopped it with its state saved\.",
        r"An interrupt or a signal (\1) raises StoppedError once the state is saved.",
    ),
    (r"The exit code is 0 where nothing is damaged, and 9 where something is\.", "A warning tells of damage."),
    (r"The exit code is 6 where ([^.;]*)", r"A warning tells where \1"),
    (r"\n    [a-z]+: [^\n]*; its fields are flags of their own\.", ""),
    (r"The folder that finetune --out made", "The folder that finetune made"),
)


def python_doc(verb: Callable[..., Any]) -> str:
    """Return the docstring of a verb with its examples as calls, and flags as arguments."""
    text = inspect.cleandoc(verb.__doc__ or "")
    head, _, rest = text.partition("Try, for example:\n")
    examples, _, after = rest.partition("\n\n")
    calls = [f"  {call}" for line in _joined(examples) if (call := example(verb, line)) is not None]
    text = head + ("Try, for example:\n" + "\n".join(calls) + "\n\n" if calls else "") + after
    for pattern, words in _SENTENCES:
        text = re.sub(pattern, words, text)
    text = "\n".join(python_words(line) for line in text.splitlines() if "torchrun" not in line)
    return text + _group_docs(verb) + "\n"


def _joined(examples: str) -> list[str]:
    return [line.strip() for line in examples.replace("\\\n", " ").splitlines()]


def _group_docs(verb: Callable[..., Any]) -> str:
    """Return the lines on the fields of sets of options, from the texts below them in their source."""
    lines: list[str] = []
    for one in inspect.signature(verb).parameters.values():
        if dataclasses.is_dataclass(one.annotation):
            docs = _attribute_docs(one.annotation)
            lines += [f"    {name}: {python_words(words)}" for name, words in docs.items()]
    return "".join(f"\n{line}" for line in lines)


def _attribute_docs(cls: Any) -> dict[str, str]:
    import ast
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    found: dict[str, str] = {}
    name = None
    for node in getattr(body, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name is not None and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
            name = None
    return found


def example(verb: Callable[..., Any], line: str) -> str | None:
    """Return a command line of this verb as a call; None for a line that is none. A call stays as it is."""
    if line.startswith("cerebro_eeg."):
        return line
    words = shlex.split(line)
    if words[:2] != ["cerebro-eeg", verb.__name__]:
        return None
    parameters = {one.name: one for one in _parameters(verb)}
    places = [one for one in parameters.values() if one.shown.kind is not inspect.Parameter.KEYWORD_ONLY]
    free: list[str] = []
    named: dict[str, list[str]] = {}
    values = free
    for word in words[2:]:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            name = f"{name}_" if f"{name}_" in parameters else name
            values = named.setdefault(name, [])
            if name not in parameters and name != "json":
                named.pop(name)
                named[name.removeprefix("no_")] = ["False"]
                values = []
            elif name == "json" or parameters[name].hint is bool:
                values = free if name != "json" else []
        else:
            values.append(word)
    named.pop("json", None)
    parts = []
    for number, place in enumerate(places):
        several = get_origin(place.hint) is tuple
        mine = free[number:] if several else free[number : number + 1]
        parts += [_literal(mine, place.hint)] if mine else []
    parts += [f"{name}={_literal(mine, parameters[name].hint)}" for name, mine in named.items()]
    return f"cerebro_eeg.{verb.__name__}({', '.join(parts)})"


def _literal(words: Sequence[str], hint: Any) -> str:
    """Return the words of an option as Python writes them."""
    kinds = [part for part in get_args(hint) if part is not NoneType] if get_origin(hint) in (Union, UnionType) else []
    hint = kinds[0] if kinds else hint
    if hint is bool:
        return words[0] if words else "True"
    if get_origin(hint) is tuple:
        found = [_literal([word], get_args(hint)[0]) for word in words]
        return found[0] if len(found) == 1 else f"[{', '.join(found)}]"
    (word,) = words
    number = hint in (int, float) or (get_origin(hint) is Literal and int in map(type, get_args(hint)))
    return word if number else f'"{word}"'
