"""Errors: one class per kind of mistake that a user can make, each with an exit code of the command line.

Every message says in one line what was given, what was expected and what to do. A class also derives from the built-in
exception that Python code would expect, so ``except ValueError`` works without importing this package.
"""


class CerebroError(Exception):
    """Any mistake that a user can correct; the command line prints it as one line, without a traceback."""

    exit_code = 1


class ConfigError(CerebroError, ValueError):
    """A setting that does not exist, has the wrong type or does not fit the others."""

    exit_code = 2


class InputError(CerebroError, ValueError):
    """Data that cannot be used as given: shape, rate, unit, NaN, empty."""

    exit_code = 3


class ChannelError(InputError):
    """Channel labels that are unknown, duplicate, ambiguous, never trained or too many."""


class RecordingError(InputError):
    """A recording that cannot be read truthfully; ``code`` is the reason in one word, as in ``skipped.csv``."""

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
