"""The help of a verb, made from its function: the signature, the docstring and the groups of its module.

A module groups the options of its verb in ``GROUPS``: the title of each group, and the names of its options. Where a
parameter is a dataclass, its fields are options. They stand under ``GROUPS[...]`` or, where it does not name them, in a
group of their own with the sentence on the parameter as its title. This module loads no torch and no tyro.
"""

import ast
import dataclasses
import inspect
import itertools
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

INDENT = 22
"""Where the texts of options begin."""
WIDEST = 100
"""Characters of a line, even on a wide terminal, where long lines are hard to read."""
METAVARS: Mapping[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Option:
    """An option or a positional argument, as the help shows it."""

    name: str
    """As in Python."""
    shown: str
    """As on the command line, with what comes behind it."""
    text: str
    positional: bool = False
    needed: bool = False
    group: str | None = None
    """The title of its own group, if it is a field of a dataclass."""


def can_help(function: Callable[..., Any]) -> bool:
    """Return whether the help of a verb can be made here: it has no words that choose among sets of options."""
    return not any(
        dataclasses.is_dataclass(kind)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        for kind in get_args(parameter.annotation)
    )


def help_text(verb: str, function: Callable[..., Any]) -> str:
    """Return the help of a verb."""
    width = max(60, min(WIDEST, shutil.get_terminal_size().columns))
    options = list(options_of(function))
    given = [option for option in options if option.positional]
    usage = f"usage: cerebro-eeg {verb} {' '.join(option.shown for option in given)} [options]".replace("  ", " ")
    about = inspect.getdoc(function) or ""
    lines = [usage, "", *_paragraphs(about.partition("\nArgs:")[0].strip(), width)]
    groups = {"arguments": given, **grouped(function, options)}
    every = [
        Option("", "--json", "Print the result as JSON."),
        Option("", "--debug", "Show the traceback of an error."),
        Option("", "--help", "Show this help."),
    ]
    for title, members in {**groups, "every verb": every}.items():
        if members:
            lines += ["", f"{title}:", *(line for option in members for line in _option_lines(option, width))]
    return "\n".join(lines) + "\n"


def grouped(function: Callable[..., Any], options: Sequence[Option]) -> dict[str, list[Option]]:
    """Return the options of a verb by the titles of their groups: what is needed, then the module's ``GROUPS``."""
    left = {option.name: option for option in options if not option.positional}
    found = {"needed": [left.pop(option.name) for option in options if option.needed]}
    for title, names in getattr(sys.modules[function.__module__], "GROUPS", {}).items():
        found[title] = [left.pop(name) for name in names]
    for option in left.values():
        found.setdefault(option.group or "options", []).append(option)
    return found


def options_of(function: Callable[..., Any]) -> Iterator[Option]:
    """Yield the arguments and options of a verb; a dataclass yields its fields."""
    texts = _argument_texts(inspect.getdoc(function) or "")
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind, text = parameter.annotation, texts.get(parameter.name, "")
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            hints, docs = get_type_hints(kind), _field_texts(kind)
            title = text.partition(";")[0].strip().removesuffix(".").lower()
            for field in dataclasses.fields(kind):
                default = getattr(parameter.default, field.name)
                yield _option(field.name, hints[field.name], default, docs[field.name], title)
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            many = " ..." if get_origin(kind) is tuple else ""
            shown = f"{parameter.name.upper()}{many}"
            optional = parameter.default not in (inspect.Parameter.empty, ())
            yield Option(parameter.name, f"[{shown}]" if optional else shown, text, positional=True)
        else:
            yield _option(parameter.name, kind, parameter.default, text)


def _option(name: str, kind: Any, default: Any, text: str, group: str | None = None) -> Option:
    flag = "--" + name.rstrip("_").replace("_", "-")
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    kinds = [member for member in members if member is not type(None)]
    notes = []
    if kinds == [bool]:
        shown = flag if default is False or default is None else f"--no-{flag[2:]}"
    else:
        (kind, *_), many = kinds, ""
        if get_origin(kind) is tuple:
            kind, many = get_args(kind)[0], " ..."
        if get_origin(kind) is Literal:
            choices = [str(choice) for choice in get_args(kind)]
            brief = "|".join(choices)
            behind = brief if len(brief) <= 30 else "NAME"
            notes += [f"One of {', '.join(choices)}."] if behind == "NAME" else []
        else:
            behind = METAVARS.get(kind, "TEXT")
        shown = f"{flag} {behind}{many}"
        if default not in (None, (), inspect.Parameter.empty):
            notes.append(f"[{' '.join(map(str, default)) if isinstance(default, tuple) else default}]")
    return Option(name, shown, " ".join([text, *notes]), needed=default is inspect.Parameter.empty, group=group)


def _option_lines(option: Option, width: int) -> list[str]:
    """Return an option with its text beside it, or below it where the option is long."""
    wrapped = textwrap.wrap(option.text, width - INDENT, break_on_hyphens=False, break_long_words=False)
    head = f"  {option.shown}"
    lines = [" " * INDENT + line for line in wrapped]
    if not lines:
        return [head]
    if len(head) <= INDENT - 2:
        return [f"{head:<{INDENT}}{wrapped[0]}", *lines[1:]]
    return [head, *lines]


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a docstring, filled to the width; indented lines, which are examples, stay as they are."""
    for number, part in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ""
        prose: list[str] = []
        for line in part.splitlines():
            if line.startswith(" "):
                yield from textwrap.wrap(" ".join(prose), width)
                prose = []
                yield line
            else:
                prose.append(line.strip())
        yield from textwrap.wrap(" ".join(prose), width, break_on_hyphens=False)


def _argument_texts(doc: str) -> dict[str, str]:
    """Return the texts under ``Args:`` of a docstring, by parameter."""
    found: dict[str, str] = {}
    name = ""
    for line in doc.partition("\nArgs:\n")[2].splitlines():
        start = re.match(r"    (\w+): (.*)", line)
        if start is not None:
            name, found[start[1]] = start[1], start[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def _field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, also of those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (body,) = (
            node.body
            for node in ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            if isinstance(node, ast.ClassDef)
        )
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = ""
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    found[field.target.id] = " ".join(str(text.value.value).split())
    return found
