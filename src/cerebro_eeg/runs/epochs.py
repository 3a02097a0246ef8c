"""MNE Epochs on the way into a model and back: how long they are, what their info says, and rows for their metadata.

Epochs are taken as they are: filters that reach over many seconds would mostly see the edges of an epoch. What was done
to them before is told instead. Nothing here imports MNE.
"""

import importlib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.config import ModelConfig, SignalConfig
from cerebro_eeg.errors import InputError

if TYPE_CHECKING:  # it loads torch, which the pictures of a recording do not need
    from cerebro_eeg.model.cerebro import Cerebro

SAME = 0.1
"""Two edges of a pass-band are the same if they differ by less than this share."""


@dataclass(frozen=True, eq=False)
class EpochKeys:
    """Which epochs the windows come from, so that rows find their epochs again after some were dropped."""

    selection: NDArray[np.int64]
    """``epochs.selection``: the place of each epoch among all events that were cut out."""
    events: NDArray[np.int64]
    """``epochs.events``: sample, previous value and code of each."""


@dataclass(frozen=True)
class EpochLength:
    """How long the windows of some epochs are."""

    kept: int
    """Samples of an epoch that are used, at its own rate."""
    samples: int
    """Length of a window at the model's rate."""
    told: str | None
    """What a user should know of it."""


def is_epochs(source: object) -> bool:
    """Return whether a source is an Epochs object of MNE."""
    return hasattr(source, "event_id") and hasattr(source, "drop_log")


def keys_of(epochs: Any) -> EpochKeys:
    """Return the keys of an Epochs object whose bad epochs are dropped."""
    return EpochKeys(np.array(epochs.selection, np.int64), np.array(epochs.events, np.int64))


def fit_length(epochs: Any, model: "Cerebro", samples: int, *, whole: bool) -> EpochLength:
    """Decide which samples of each epoch are used, for a model with windows of ``samples``.

    With ``whole`` a model that takes any length gets each epoch as one window, whatever its length. Otherwise windows
    are cut out of each epoch. Shorter epochs are then an InputError that says what to do.
    """
    config, sfreq, have = model.config, float(epochs.info["sfreq"]), len(epochs.times)
    rate = config.signal.sfreq
    wanted = samples * sfreq / rate  # at the rate of the epochs
    if have == round(wanted):
        return EpochLength(have, samples, None)
    if have == round(wanted) + 1:
        return EpochLength(have - 1, samples, _one_more(have))
    seconds, own = have / sfreq, samples / rate
    if whole and model.n_times is None:
        length = _whole_patches(math.floor(have * rate / sfreq + 1e-6), config)
        if length is None:
            least = config.patches.shortest() / rate
            raise InputError(f"the epochs have {seconds:.4g} s, less than a patch of {least:g} s; cut longer epochs")
        kept = min(have, math.ceil(length * sfreq / rate - 1e-6))
        rest = f" without the last {have - kept} of their {have} samples" if kept < have else ""
        told = f"the epochs have {seconds:.4g} s and the weights learned from {own:g} s; they are embedded whole{rest}"
        return EpochLength(kept, length, told)
    if seconds < own:
        raise InputError(
            f"the epochs have {seconds:.4g} s, and windows of this model have {own:g} s; cut epochs from tmin to "
            f"tmin + {own:g} - 1 / sfreq, or "
            + (
                f"embed them with seconds={math.floor(seconds * 4) / 4 or round(seconds, 3):g}"
                if whole
                else "give the Raw instead"
            )
        )
    rest = "" if have % wanted < 0.5 else "; what is left at its end is left out"
    told = f"each epoch of {seconds:.4g} s is cut into windows of {own:g} s{rest}"
    return EpochLength(have, samples, told)


def _one_more(have: int) -> str:
    return f"the epochs have {have} samples, one more than a window, as MNE includes tmax; the last sample is left out"


def _whole_patches(samples: int, config: ModelConfig) -> int | None:
    """Return the smallest length with as many patches, so that no sample is normalised that no patch holds."""
    patches = config.patches.count(samples)
    if patches < 1:
        return None
    while config.patches.count(samples - 1) == patches:
        samples -= 1
    return samples


# What the info says


def pass_band(info: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the pass-band that an info of MNE tells of, in Hz; None if it tells of none."""
    low, high = info.get("highpass"), info.get("lowpass")
    if low is None or high is None:
        return None
    return float(low), float(high)


def band_words(info: Mapping[str, Any], signal: SignalConfig, *, epochs: bool) -> str | None:
    """Return a line if the pass-band of an info is not the one that the weights expect.

    Epochs are not filtered any more, so both sides count. A recording will be, so only a narrower band is told.
    """
    band = pass_band(info)
    if band is None:
        return None
    low, high = band
    top = min(signal.lowpass, 0.45 * float(info["sfreq"]))  # what filtering would leave at this rate
    narrow = low > signal.highpass * (1 + SAME) or high < top * (1 - SAME)
    wide = low < signal.highpass * (1 - SAME) or high > signal.lowpass * (1 + SAME)
    if not (narrow or (epochs and wide)):
        return None
    what = f"{low:g} to {high:g} Hz by their info" if epochs else f"{low:g} to {high:g} Hz by its info"
    expected = f"the weights expect {signal.highpass:g} to {signal.lowpass:g} Hz"
    if epochs:
        return (
            f"the epochs have {what}, and {expected}; they are taken as they are: filter the Raw so before you cut it, "
            "or give the Raw"
        )
    return f"the recording has {what}, and {expected}; what an earlier filter removed is missing"


# Rows for Epochs.metadata


def metadata(
    columns: Mapping[str, NDArray[Any]], epoch_B: NDArray[np.int64], keys: EpochKeys | None, epochs: Any = None
) -> Any:
    """Return one row per epoch: a pandas DataFrame or, without pandas, a list of dicts; MNE takes both.

    Several windows of an epoch give their mean. With ``epochs`` the rows are those of that object: of epochs dropped
    since then there is no row, and one that had no window gets NaN. Its own metadata stay, in front.
    """
    if keys is None:
        raise InputError("these windows are of a recording, not of Epochs; give mne.Epochs for rows of metadata")
    count = len(keys.selection)
    windows = np.bincount(epoch_B, minlength=count)
    with np.errstate(invalid="ignore"):
        means = {name: np.bincount(epoch_B, values, count) / windows for name, values in columns.items()}
    place = np.arange(count) if epochs is None else _places(keys, epochs)
    own = None if epochs is None else epochs.metadata
    found = {name: np.where(place < 0, np.nan, mean[place]) for name, mean in means.items()}
    if importlib.util.find_spec("pandas") is None:
        whole = [{} for _ in place] if own is None else own
        return [{**row, **{name: float(column[n]) for name, column in found.items()}} for n, row in enumerate(whole)]
    pandas = importlib.import_module("pandas")  # it may lack types
    added = pandas.DataFrame(found)
    if own is None:
        return added
    before = pandas.DataFrame(own).reset_index(drop=True)
    return pandas.concat([before.drop(columns=list(found), errors="ignore"), added], axis=1)


def _places(keys: EpochKeys, epochs: Any) -> NDArray[np.int64]:
    """Return for each of these epochs its place in ``keys``, and -1 for an epoch that had no window."""
    known = {
        (int(number), *event): place
        for place, (number, event) in enumerate(zip(keys.selection, keys.events.tolist(), strict=True))
    }
    asked = [(int(number), *map(int, event)) for number, event in zip(epochs.selection, epochs.events, strict=True)]
    found = np.array([known.get(key, -1) for key in asked], np.int64)
    if len(found) and (found < 0).all():
        raise InputError("none of these epochs is among those that were given to the model; give the same Epochs")
    return found
