"""Tells faults that may pass (a disk, a network, memory) from damage of a file.

A damaged file stays damaged, so ``prepare`` does not read it again. A file that was moved away, or that a disk could
not deliver, may be readable at the next try. Every reader raises a PassingFault for it.
"""

import contextlib
import errno
import os
from collections.abc import Iterator

from cerebro_eeg.errors import CerebroError, PassingFault

# A damaged file makes a reader seek to a place that cannot be, or ask for more bytes than a number can count.
_OF_THE_FILE = frozenset((errno.EINVAL, errno.EOVERFLOW, errno.EFBIG))

# Libraries raise these without a number.
_NAMED: dict[type, int] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}


def passing_fault(error: BaseException) -> PassingFault | None:
    """Return the PassingFault that an exception, or one that caused it, stands for; None for any other.

    Libraries raise a plain OSError without a number for a format that they do not know; that does not pass.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, PassingFault):
            return found
        if isinstance(found, MemoryError):
            return PassingFault("cannot be read: there is not enough memory; free some, then try again")
        number = _number(found)
        if number is not None and number not in _OF_THE_FILE:
            why = os.strerror(number)  # the error's own text has the path
            return PassingFault(f"cannot be read: {why}; see that all its files are there, then try again")
        found = found.__cause__ or found.__context__
    return None


def _number(error: BaseException) -> int | None:
    """Return the number of the system's error, or None."""
    if not isinstance(error, OSError):
        return None
    return error.errno if error.errno is not None else _NAMED.get(type(error))


@contextlib.contextmanager
def passing_faults() -> Iterator[None]:
    """Raise a PassingFault in the place of an exception that stands for one; let any other through."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        passing = passing_fault(error)
        if passing is None:
            raise
        raise passing from None
