"""The paths that a command was given: looked at before the verb starts, and named by their option if a file fails.

A message names the option or argument, not the path: a path may say who was recorded.
"""

import dataclasses
import errno
import functools
import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cerebro_eeg.errors import ConfigError, InputError

PERHAPS = ("target", "model", "from_", "exclude")  # parameters of type str that may be a path
# Reasons that lie with what was given, not with us, and what to do.
_REASONS = {
    errno.ELOOP: "it is a link that leads back to itself; give what it should lead to",
    errno.ENAMETOOLONG: "its name is longer than this file system allows; give a shorter one",
    errno.ENOTDIR: "a file stands where a folder should be; give another path",
    errno.EEXIST: "a file stands where a folder should be; give another path",
    errno.EISDIR: "a folder stands where a file should be; give another path",
    errno.ENOTEMPTY: "a folder stands there that is not empty; give another path",
    errno.EACCES: "you lack the permission for it; ask who owns it, or give another path",
    errno.EPERM: "you lack the permission for it; ask who owns it, or give another path",
    errno.EROFS: "it is on a disk that is read-only; give another path",
    errno.ENOENT: "it is not there; see that the path is right and its disk is there",
}
_AT_ONCE = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EACCES, errno.EPERM)


@dataclasses.dataclass(frozen=True)
class GivenPath:
    """A path of the command line, and its option (``--out``) or argument (``SOURCE``)."""

    option: str
    path: Path


def given_paths(call: "functools.partial[Any]") -> list[GivenPath]:
    """Return every path among the arguments of a verb, also in the sets of options that it takes."""
    signature = inspect.signature(call.func)
    found: list[GivenPath] = []
    for name, value in signature.bind(*call.args, **call.keywords).arguments.items():
        positional = signature.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY
        found += _paths(name, value, positional)
    return found


def _paths(name: str, value: Any, positional: bool) -> Iterator[GivenPath]:
    if isinstance(value, Path) or (isinstance(value, str) and name in PERHAPS):
        word = name.rstrip("_")
        yield GivenPath(word.upper() if positional else f"--{word.replace('_', '-')}", Path(value))
    elif isinstance(value, tuple):
        for one in value:
            yield from _paths(name, one, positional)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _paths(field.name, getattr(value, field.name), False)


def check_paths(given: Sequence[GivenPath], args: Sequence[str]) -> None:
    """Raise an error for a path that no verb could use: empty, impossible, a loop of links, behind a closed door."""
    for one in given:
        if one.path == Path() and "" in args and "." not in args:
            raise ConfigError(f"{one.option} is empty; give a path, or . for the folder that you are in")
        if "\0" in str(one.path):
            raise ConfigError(f"{one.option} holds a null character, which no path may; give another path")
        try:
            os.stat(one.path)
        except OSError as error:
            if error.errno in _AT_ONCE:
                raise InputError(f"{one.option} cannot be used: {_REASONS[error.errno]}") from None
            if error.errno == errno.ENOENT and one.path.is_symlink():
                line = "it is a link to something that does not exist; give what it should lead to"
                raise InputError(f"{one.option} cannot be used: {line}") from None


def blame(error: OSError, given: Sequence[GivenPath]) -> tuple[str, int]:
    """Return the line and the exit code for an error of the system, with the option whose path it is about."""
    reason = _REASONS.get(error.errno or 0)
    option = next((found for name in (error.filename, error.filename2) if (found := _option(name, given))), None)
    what = "a file" if option is None else f"a file of {option}"
    hint = "; run again with --debug to see which" if option is None else ""
    if reason is None:
        plain = error.strerror or type(error).__name__
        return f"{what} could not be read or written: {plain}{hint or '; see that its disk is there and not full'}", 1
    return f"{what} could not be read or written: {reason}{hint}", InputError.exit_code


def _option(name: object, given: Sequence[GivenPath]) -> str | None:
    """Return the option whose path holds the file; of several the one with the longest path."""
    if not isinstance(name, str | bytes):
        return None
    file = Path(os.path.abspath(os.fsdecode(name)))
    places = [(Path(os.path.abspath(one.path)), one.option) for one in given]
    holding = [(len(place.parts), option) for place, option in places if file == place or place in file.parents]
    # A file is first written beside its place, and a folder that is missing is made above it.
    beside = [(0, option) for place, option in places if file == place.parent or file.parent == place.parent]
    return max(holding or beside, default=(0, None))[1]
