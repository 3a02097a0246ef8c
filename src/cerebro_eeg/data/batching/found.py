"""Found: the arrays of windows while they are being found: joined, put in order, each once. Facts: of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.errors import InputError


@dataclass(frozen=True)
class Facts:
    """What windows need to know of the recordings of a store; arrays by recording number."""

    ids: tuple[str, ...]
    subject: NDArray[np.int32]
    """Place in ``subjects``; -1 where the store does not know."""
    subjects: tuple[str, ...]
    montage: NDArray[np.int32]
    """Place in ``montages``."""
    montages: tuple[tuple[str, ...], ...]
    scale: NDArray[np.float32]
    """Microvolts."""


class Found(NamedTuple):
    """The arrays that ``windows.Windows`` has, and what they mean there."""

    recording: NDArray[np.int32]
    start: NDArray[np.int64]
    label: NDArray[np.int64]
    target: NDArray[np.float32] | None
    short: NDArray[np.bool_]
    trial: NDArray[np.int32]


def none(targets: int | None) -> Found:
    """No windows; None: of a task without targets."""
    return Found(
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        None if targets is None else np.empty((0, targets), np.float32),
        np.empty(0, np.bool_),
        np.empty(0, np.int32),
    )


def join(parts: Sequence[Found]) -> Found:
    """One behind the other; at least one, and all with targets or none."""
    targets = [part.target for part in parts if part.target is not None]
    return Found(
        np.concatenate([part.recording for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.label for part in parts]),
        np.concatenate(targets) if targets else None,
        np.concatenate([part.short for part in parts]),
        np.concatenate([part.trial for part in parts]),
    )


def take(found: Found, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> Found:
    """Some of them, by a mask or by numbers."""
    return Found(
        found.recording[chosen],
        found.start[chosen],
        found.label[chosen],
        None if found.target is None else found.target[chosen],
        found.short[chosen],
        found.trial[chosen],
    )


def tidy(id: str, parts: Sequence[Found]) -> Found:
    """The windows of one recording by their starts, each once; what overlaps must agree on a window that both have."""
    found = join(parts)
    found = take(found, np.argsort(found.start, kind="stable"))
    again = np.append(False, found.start[1:] == found.start[:-1])
    if again.any():
        other = np.flatnonzero(again)
        differs = found.label[other] != found.label[other - 1]
        if found.target is not None:
            a, b = found.target[other], found.target[other - 1]
            differs |= ~((a == b) | (np.isnan(a) & np.isnan(b))).all(1)
        if differs.any():
            raise InputError(
                f"recording {id!r} has {int(differs.sum())} windows with two different labels, because intervals or "
                "events overlap; choose fewer names, or labels='majority'"
            )
    return take(found, ~again)
