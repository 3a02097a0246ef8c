"""Recipe: a corpus as one value, and Item: one recording that it found. A new corpus is one new file.

A recipe looks at names, tables and annotations, never at samples. It lists the files, their subjects, splits and
labels. Reading, filtering and storing are the same for all recipes (``prepare.py``).
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
from cerebro_eeg.terminal import has_controls

SplitUnit = Literal["subject", "recording", "trial", "none"]


@dataclass(frozen=True)
class Item:
    """One recording of a corpus."""

    name: str
    """The corpus's own id, or its path relative to the corpus; ids that are hashed are made from its files."""
    open: Callable[[ChannelPolicy], Recording]
    subject: str | None = None
    labels: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    """Intervals by task; an interval carries its split."""
    events: tuple[str, ...] | None = ()
    """Event names of the file that may go into the store; None for all, where a public corpus has codes for events."""
    mains: float | None = None
    """Mains frequency in Hz where the corpus knows it better than the recipe."""
    size: int = 0
    """Bytes of the source, for the estimate of time and disk."""
    stated: tuple[Event, ...] | None = None
    """The events that will be stored, where a table beside the file has them; None where they are in the file."""
    files: tuple[Path, ...] = ()
    """The files (or folders of files) with the samples, the one that is opened first; an id that is hashed is made from
    them, and a store notices when they are replaced."""
    told: str = ""
    """Facts about the samples from tables beside the files, as any text; a store notices when they change."""
    as_unit: Callable[[ChannelPolicy, str], Recording] | None = None
    """Opens it with a unit for channels whose own is unknown, to see whether that would help; None where nobody may
    say a unit."""
    part_of: str = ""
    """The data set it belongs to, where the source holds several; the mains frequency is decided for each."""


@dataclass(frozen=True)
class Task:
    """The question of a labelled task, and how its windows are cut unless training says otherwise."""

    kind: Literal["classification", "regression"]
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    seconds: float
    stride: float
    split_unit: SplitUnit | None = None
    """The unit that no two splits of this task may share; None takes the recipe's."""
    labels: Literal["interval", "majority", "last", "mean"] = "interval"
    """How a window is labelled by its intervals, unless training says otherwise; see ``window_labels.py``."""

    def __post_init__(self) -> None:
        for name in self.names:
            if has_controls(name):
                raise InputError(
                    f"the class or target {name!r} holds a control character; rename it, and prepare again"
                )


@dataclass(frozen=True)
class Recipe:
    """A corpus: how to find its recordings, and the settings that they share."""

    name: str
    about: str
    """One line that describes the corpus."""
    find: Callable[[], Iterator[Item]]
    """Yields all recordings, in an order that does not depend on the file system."""
    signal: SignalConfig = field(default_factory=SignalConfig)
    policy: ChannelPolicy = field(default_factory=ChannelPolicy)
    others: Callable[[], Iterator[Item]] | None = None
    """Yields the recordings of the corpus that the options leave out; where it is None, nobody knows them."""
    mains: float | None = None
    """Mains frequency in Hz; None takes the item's, or lets recordings vote (``mains.py``)."""
    split_unit: SplitUnit = "subject"
    """The unit that no two splits may share."""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    own_ids: bool = False
    """The corpus is documented and pseudonymous, so recordings and subjects keep its ids; others are hashed."""
    one_corpus: bool = True
    """One corpus with a layout of its own; otherwise files that a user brings, without a real corpus to try."""
    tried_on_real_files: bool = False
    """Whether the recipe was run on the real corpus; otherwise its first line says so."""
    positive_by: str = ""
    """The option that chooses the positive of two classes, which is the last; empty where the corpus has chosen."""
    hints: tuple[str, ...] = ()
    """Lines that the user should read before the work begins."""
    waiting: tuple[str, ...] = ()
    """Names of arrays of numbers that are passed over, because nothing says their rate."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options beside the folder that change what is found; a store keeps to them."""


@contextlib.contextmanager
def source_errors() -> Iterator[None]:
    """Turn errors of the system while recordings are searched into one line; the original would name a path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"a file or folder of the source cannot be read: {error.strerror or type(error).__name__}; see that its "
            "disk is there and that you may read all of it, then start again"
        ) from None


def refuse(code: str, message: str, policy: ChannelPolicy) -> NoReturn:
    """Raise a RecordingError; bound to a code and a line it is the ``open`` of an unusable item, which is skipped."""
    raise RecordingError(code, message)
