"""Recipe: what a corpus is, as one value, and Item: one recording that it found. A new corpus is one new file.

A recipe looks at names, tables and annotations, never at samples: it says which files there are, whose they are, how
they are split and what is labelled. Reading, filtering and storing are the same for all of them (``prepare.py``).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event, Recording
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.errors import InputError, RecordingError

SplitUnit = Literal["subject", "recording", "trial", "none"]


@dataclass(frozen=True)
class Item:
    """One recording of a corpus."""

    name: str
    """Its path relative to the corpus, or the corpus's own id: what the recording's id is made from."""
    open: Callable[[ChannelPolicy], Recording]
    subject: str | None = None
    labels: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    """By task; an interval carries its split."""
    events: tuple[str, ...] | None = ()
    """Event names of the file that may go into the store; None: all, where a public corpus has codes for events."""
    mains: float | None = None
    """Mains frequency in Hz where the corpus knows it better than the recipe."""
    size: int = 0
    """Bytes of the source, for the estimate of time and disk."""
    stated: tuple[Event, ...] | None = None
    """The events that will be stored, where a table beside the file has them; None: they are in the file."""
    files: tuple[Path, ...] = ()
    """The files (or folders of them) that the samples are in: a store notices when they are replaced by others."""
    told: str = ""
    """What tables beside the files tell of the samples and a store must notice the change of, in any form."""


@dataclass(frozen=True)
class Task:
    """What a task asks, and how its windows are cut unless training says otherwise."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    seconds: float
    stride: float
    split_unit: SplitUnit | None = None
    """What no two splits of this task may share; None: the recipe's."""
    labels: Literal["interval", "majority", "last", "mean"] = "interval"
    """How a window is labelled by its intervals, unless training says otherwise; see ``window_labels.py``."""


@dataclass(frozen=True)
class Recipe:
    """A corpus: how to find its recordings and what holds for all of them."""

    name: str
    about: str
    """One line: what it is."""
    find: Callable[[], Iterator[Item]]
    """All recordings, in an order that does not depend on the file system."""
    signal: SignalConfig = field(default_factory=SignalConfig)
    policy: ChannelPolicy = field(default_factory=ChannelPolicy)
    mains: float | None = None
    """Mains frequency in Hz; None: of the item, or estimated and printed."""
    split_unit: SplitUnit = "subject"
    """What no two splits may share."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    own_ids: bool = False
    """The corpus is documented and pseudonymous: recordings and subjects keep its ids; all others are hashed."""
    one_corpus: bool = True
    """One corpus with a layout of its own; otherwise whatever a user brings, and there is no real one to try it on."""
    tried_on_real_files: bool = False
    """Whether anyone has run it on the real corpus; otherwise it says so in its first line."""
    positive_by: str = ""
    """What lets a user choose the positive of two classes, which is the last; empty: the corpus has chosen."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What was asked for beside the folder and changes what is found; a store keeps to it."""


@contextlib.contextmanager
def source_errors() -> Iterator[None]:
    """What the system refuses while recordings are looked for, as one line; its own error would name a path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"a file or folder of the source cannot be read: {error.strerror or type(error).__name__}; see that its "
            "disk is there and that you may read all of it, then start again"
        ) from None


def refuse(code: str, message: str, policy: ChannelPolicy) -> NoReturn:
    """``open`` of an item that cannot be used, with a code and a line bound to it: it is skipped, and stops nothing."""
    raise RecordingError(code, message)
