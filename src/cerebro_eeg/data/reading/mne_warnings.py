"""Passes on errors and warnings of MNE without paths, names and dates.

Messages of MNE quote file names and header fields. Only words that stand as text in the source of the module that
raised the message are kept. Everything else came from the file and becomes "...".
"""

import ast
import contextlib
import functools
import io
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from cerebro_eeg.data.reading.passing_faults import passing_fault
from cerebro_eeg.data.reading.recording import Fault
from cerebro_eeg.errors import CerebroError, RecordingError

_LOCK = threading.RLock()  # the list of warnings and standard output belong to the whole process
_WORD = re.compile(r"[A-Za-z][A-Za-z_\-]+")
# Warnings that we know: what they mean for us, or None where nothing is wrong.
_KNOWN: tuple[tuple[str, Fault | None], ...] = (
    (r"does not conform to MNE naming", None),
    (r"contains 'boundary' events", None),  # we cut there
    (r"Unsupported physical dimension", None),  # header_checks reads the unit
    (r"cutoff frequency|different (?:high|low)pass filters|Estimating.*filter", None),
    (r"(?:measurement|meas\w*|birth|record\w*).? ?date|No PNT file|patient information", None),  # never used
    (
        r"Omitted \d+ annotation",
        Fault("annotation", "annotations that lie outside of the samples were left out"),
    ),
    (r"Limited \d+ annotation", Fault("annotation", "annotations that reach beyond the samples were shortened")),
    (
        r"Number of records from the header does not match",
        Fault("record_count", "the header's number of records does not fit the file's size, which was taken"),
    ),
    (r"not unique|duplicate", Fault("duplicate", "labels occur more than once; MNE numbered them")),
)


@contextlib.contextmanager
def quietly(what: str = "read") -> Iterator[list[Fault]]:
    """Silence prints and logs; warnings become faults of the yielded list, an exception a RecordingError ``mne``.

    A fault of the disk, the network or memory is a PassingFault instead: the file may be sound.
    """
    faults: list[Fault] = []
    logger = logging.getLogger("mne")
    with _LOCK, warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        logger.addFilter(_drop)  # a log file that the user gave to MNE would get paths and header fields
        try:
            yield faults
        except CerebroError:
            raise
        except Exception as error:
            passing = passing_fault(error)
            if passing is not None:
                raise passing from None
            words = _said(error)
            raise RecordingError("mne", f"MNE cannot {what} it: {words}; is it whole, with all its files?") from None
        finally:
            logger.removeFilter(_drop)
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning | UserWarning):
            fault = _as_fault(str(warning.message))
            if fault is not None and fault not in faults:
                faults.append(fault)


def _drop(_: logging.LogRecord) -> bool:
    return False


def _as_fault(message: str) -> Fault | None:
    for pattern, fault in _KNOWN:
        if re.search(pattern, message, re.IGNORECASE):
            return fault
    return Fault("mne", f"MNE warns: {_cleaned(message, _all_words(_root()))}")


def _said(error: BaseException) -> str:
    """Return the type of an exception, the module of MNE that raised it, and the safe words of its first line."""
    place = _last_of_mne(error.__traceback__)
    if place is None:
        return type(error).__name__
    words = _cleaned(str(error), _words(place))
    parts = place.with_suffix("").parts
    module = ".".join(parts[len(parts) - parts[::-1].index("mne") - 1 :])
    return f"{type(error).__name__} in {module}" + (f": {words}" if _WORD.search(words) else "")


def _last_of_mne(trace: TracebackType | None) -> Path | None:
    root, found = _root(), None
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if root in path.parents and "utils" not in path.parts:
            found = path
        trace = trace.tb_next
    return found


def _root() -> Path | None:
    """Return the folder of MNE if it is loaded; pyxdf works without it."""
    file = getattr(sys.modules.get("mne"), "__file__", None)
    return Path(file).parent if file else None


def _cleaned(message: str, known: frozenset[str]) -> str:
    line = message.strip().splitlines()[0] if message.strip() else ""
    kept = []
    for token in line.split()[:60]:
        word = token.strip(".,:;()[]{}'\"`")
        kept.append(token if word in known and "/" not in token else "...")
    text = " ".join(kept)
    return re.sub(r"\.\.\.(?:\s\.\.\.)+", "...", text)[:160].rstrip(" .,:;")


@functools.cache
def _words(file: Path) -> frozenset[str]:
    """Return the words of the texts in a source file, without its documentation."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare
    )
    return frozenset(word for text in texts for word in _WORD.findall(text))


@functools.cache
def _all_words(root: Path | None) -> frozenset[str]:
    """Return the words of all readers, because a warning does not say which of them it came from."""
    files = [*root.glob("io/*/*.py"), *root.glob("_fiff/*.py")] if root is not None else []
    return frozenset().union(*(_words(file) for file in files if file.parent.name != "tests"))
