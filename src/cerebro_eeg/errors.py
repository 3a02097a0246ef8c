"""Errors: one class per kind of mistake that a user can make, each with an exit code of the command line.

Every message says in one line what was given, what was expected and what to do. A class also derives from the built-in
exception that Python code would expect, so ``except ValueError`` works without importing this package.

A message names an option as Python does: ``unit='uV'``. While a verb of the command line runs, ``--unit uV`` is said
instead, also by the processes that it starts. While a verb runs as a function of Python, flags are said as arguments.
"""

import contextlib
import contextvars
import keyword
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

_OPTIONS = "CEREBRO_EEG_OPTIONS"  # in the environment, so that worker processes know it, too
_CHOICE = re.compile(r"\b([a-z][a-z0-9_]*)=(?:'([^']*)'|\"([^\"]*)\"|([0-9][0-9.]*[0-9]|[0-9]))")
_FIRST = re.compile(r"^([a-z][a-z0-9_]*)(?= (?:is|was) )")
_IN_PYTHON = contextvars.ContextVar("cerebro_eeg_in_python", default=False)
_FLAG = re.compile(
    r"(?<![\w-])--(no-)?([a-z][a-z-]*[a-z])(?:[ =]([0-9][0-9.]*|N|FILE|none|auto|cpu|as_is|nearest|drop|keep|fsdp|uV|"
    r"stock|subject|recording|majority|signal|splines|fif)(?![\w-]))?"
)
_VERB = re.compile(
    r"\bcerebro-eeg (?=(?:compare|embed|evaluate|finetune|info|predict|prepare|pretrain|repair|simulate|verify)\b)"
)
SWITCHES = frozenset(
    "again balanced capture causal deterministic dry-run everything explain few freeze legacy new-subjects paper "
    "quick random-weights recompute retry show-events show-paths".split()
)
"""Flags without a value that are off unless given, and that take none in any other verb."""


def called_in_python() -> bool:
    """Return whether a function of Python was called, and not a verb of the command line."""
    return _IN_PYTHON.get()


@contextlib.contextmanager
def on_command_line(options: Iterable[str]) -> Iterator[None]:
    """Let messages name options as flags for the time of a verb that has these options."""
    before = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = " ".join(options)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_OPTIONS]
        else:
            os.environ[_OPTIONS] = before


@contextlib.contextmanager
def without_options(options: Iterable[str]) -> Iterator[None]:
    """Let messages of the command line not advise these options, which the verb has for other cases than this one."""
    known = os.environ.get(_OPTIONS)
    if known is None:
        yield
    else:
        left_out = set(options)
        with on_command_line(name for name in known.split() if name not in left_out):
            yield


def offered(option: str) -> bool:
    """Return whether a message may advise this option: always in Python, and on the command line if the verb has it."""
    options = os.environ.get(_OPTIONS)
    return options is None or _flag(option) is not None


def spoken(text: str) -> str:
    """Return a message with its options as the user gives them: ``unit='uV'``, or ``--unit uV`` on the command line."""
    if _OPTIONS not in os.environ:
        return said_in_python(text)

    def with_value(found: re.Match[str]) -> str:
        value = next(group for group in found.groups()[1:] if group is not None)
        return f"{flag} {shlex.quote(value)}" if (flag := _flag(found[1])) else found[0]

    return _CHOICE.sub(with_value, _FIRST.sub(lambda found: _flag(found[1]) or found[0], text))


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Let messages name flags as arguments for the time of a verb that was called as a function of Python."""
    before = _IN_PYTHON.set(True)
    try:
        yield
    except CerebroError as error:
        error.args = tuple(python_words(part) if isinstance(part, str) else part for part in error.args)
        raise
    finally:
        _IN_PYTHON.reset(before)


def said_in_python(text: str) -> str:
    """Return a line with flags as arguments while a verb runs as a function of Python, and otherwise as it is."""
    return python_words(text) if _IN_PYTHON.get() else text


def python_words(text: str) -> str:
    """Return a message of the command line for a user of Python: ``--rate as_is`` becomes ``rate='as_is'``."""

    def argument(found: re.Match[str]) -> str:
        name, value = found[2].replace("-", "_"), found[3]
        name += "_" if keyword.iskeyword(name) else ""
        if found[1]:
            return f"{name}=False"
        if value is None:
            return f"{name}=True" if found[2] in SWITCHES else name
        return f"{name}={value if value[0].isdigit() or value.isupper() else repr(value)}"

    said = _VERB.sub("cerebro_eeg.", _FLAG.sub(argument, text))
    return said.replace("the same command", "the same call")


def _flag(option: str) -> str | None:
    """Return an option as a flag of the verb that runs; of another verb, whose work it describes, with its name."""
    for known in os.environ.get(_OPTIONS, "").split():
        name, _, verb = known.partition("@")
        if name == option:
            return f"{verb} --{name.rstrip('_').replace('_', '-')}".lstrip()
    return None


class CerebroError(Exception):
    """Any mistake that a user can correct; the command line prints it as one line, without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return spoken(super().__str__())


class CerebroWarning(UserWarning):
    """Something that a user of Python should know: a verb did its work, but not for all that it was given."""


class ConfigError(CerebroError, ValueError):
    """A setting that does not exist, has the wrong type or does not fit the others."""

    exit_code = 2


class InputError(CerebroError, ValueError):
    """Data that cannot be used as given: shape, rate, unit, NaN, empty."""

    exit_code = 3


class ChannelError(InputError):
    """Channel labels that are unknown, duplicate, ambiguous, never trained or too many."""

    labels: tuple[str, ...] = ()
    """All labels of the file, where the error is about a file."""


class RecordingError(InputError):
    """A recording that cannot be read truthfully; ``code`` is the reason in one word, as in ``skipped.csv``."""

    options: tuple[str, ...] = ()
    """Options that would say what the file does not."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PassingFault(RecordingError):  # noqa: N818
    """A recording that cannot be read now, perhaps later: the file is away, or a disk, a network or memory failed."""

    def __init__(self, message: str) -> None:
        super().__init__("unreadable", message)


class CheckpointError(CerebroError, ValueError):
    """A file of weights that is missing, damaged, altered, incomplete or of another kind."""

    exit_code = 4


class StoreError(CerebroError, ValueError):
    """A store that is missing, damaged, in use by another writer or on a disk that is full."""

    exit_code = 5


class StoreBusyError(StoreError):
    """A part of a store that another living process writes to."""


class TrainingError(CerebroError, RuntimeError):
    """A training that cannot continue (NaN, out of memory, a process that died); its last state is intact."""

    exit_code = 8


class StoppedError(CerebroError):
    """A training that was asked to stop and did, with its state saved; the same command continues it."""

    exit_code = 7


def warn_caller(message: str) -> None:
    """Issue a CerebroWarning at the line of the first caller outside of this package."""
    ours = str(Path(__file__).parent) + os.sep
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(ours) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CerebroWarning, stacklevel=level)


def import_trouble(error: ImportError, package: str, install: str = "") -> str:
    """Return why a package cannot be imported, and what to do: it is not installed, or an import inside it fails.

    ``install`` is what pip installs, where it is not the package itself. Installing a package that is there would not
    help, so only the error of its own name counts as missing.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        return f"the package {package} is not installed; pip install {install or package}"
    said = without_folders(f"{type(error).__name__}: {error}")
    return f"the package {package} is installed, but an import inside it fails ({said}); mend that, or install it anew"


def without_folders(text: str) -> str:
    """Return the text on one line without folders; the last part of each path stays."""
    for folder in (sys.prefix, str(Path.home())):  # these first, because a folder's name may contain spaces
        text = text.replace(folder, "")
    return " ".join(re.sub(r"(?:[A-Za-z]:)?(?:[\\/][^\\/\s:'\",;]+)*[\\/](?=[^\\/\s])", "", text).split())
