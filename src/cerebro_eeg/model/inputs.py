"""Checks of a user's arrays: names and kinds of channels, shapes, units, rates and NaN. Each error is one line.

Everything here is a plain function. After these checks, arrays are windows (B, C, T) of the channels that matched, in
microvolts, at a rate that the user has agreed to.
"""

import contextlib
import logging
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cerebro_eeg.channels.match import ChannelMatch
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.terminal import visible

log = logging.getLogger("cerebro_eeg")

Rate = Literal["error", "resample", "as_is"]
MICROVOLTS: Mapping[str, float] = {"uV": 1.0, "mV": 1e3, "V": 1e6}
# Scalp EEG deviates from its median by a few to a few hundred microvolts. Outside of this range the unit may be wrong.
PLAUSIBLE_UV = (0.1, 1000.0)
# MNE's codes for the kinds of channels. Messages show other codes as numbers.
KINDS = {
    1: "meg",
    2: "eeg",
    3: "stim",
    202: "eog",
    302: "emg",
    402: "ecg",
    502: "misc",
    602: "resp",
    802: "seeg",
    902: "ecog",
}


_hush: ContextVar[bool] = ContextVar("hush", default=False)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Log what is said as DEBUG, and print nothing, for work that is repeated very often, such as a grid search."""
    token = _hush.set(True)
    try:
        yield
    finally:
        _hush.reset(token)


def say(level: int, message: object) -> None:
    """Log a message, or print it where a script has set up no logging, so that users see it in any case."""
    level = logging.DEBUG if _hush.get() else level
    if log.hasHandlers() or level < logging.INFO:
        log.log(level, "%s", message)
    else:
        print(visible(f"cerebro-eeg: {message}"), file=sys.stderr)


def warn(message: str) -> None:
    """Issue a warning at the line of the first caller outside of this package and of torch."""
    ours = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(ours) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def read_names(
    ch_names: Sequence[str] | None, chs_info: Sequence[Mapping[str, Any]] | None
) -> tuple[Sequence[str], list[Sequence[float] | None] | None, list[str | None] | None]:
    """Return the labels of channels and, from ``chs_info``, their positions in metres and their kinds by MNE."""
    if chs_info is None:
        return ([] if ch_names is None else ch_names), None, None
    if isinstance(chs_info, Mapping) or not all(isinstance(c, Mapping) and "ch_name" in c for c in chs_info):
        raise InputError('chs_info is not a list of channels with a ch_name each; pass chs_info=raw.info["chs"]')
    labels = [str(channel["ch_name"]) for channel in chs_info]
    if ch_names is not None and list(ch_names) != labels:
        raise ConfigError("ch_names and chs_info name different channels; give one of them")
    given = [channel.get("kind") for channel in chs_info]
    kinds = [None if kind is None else _kind(kind) for kind in given]
    if set(kinds) == {"misc"}:  # what MNE and braindecode write where nobody named a kind: the labels decide
        kinds = [None] * len(kinds)
    return labels, [_position(c.get("loc")) for c in chs_info], kinds


def _position(loc: Any) -> Sequence[float] | None:
    try:
        return None if loc is None else [float(value) for value in list(loc)[:3]]
    except (TypeError, ValueError) as error:
        raise InputError(f"a channel's loc is {loc!r:.40}; expected at least three numbers in metres") from error


def _kind(kind: Any) -> str:
    return kind.lower() if isinstance(kind, str) else KINDS.get(int(kind), f"kind {int(kind)}")


def is_mne(x: Any) -> bool:
    """Return whether this is an object of MNE that holds a signal, without an import of MNE."""
    return hasattr(x, "get_data") and hasattr(x, "info")


def without_last(x: Tensor, samples: int) -> Tensor:
    """Return windows without their last sample if they are one too long: MNE's epochs include ``tmax``."""
    if x.dim() != 3 or x.shape[-1] != samples + 1:
        return x
    say(
        logging.INFO,
        f"the windows have {samples + 1} samples, one more than the model's, as epochs of MNE that include tmax; "
        "the last sample is left out",
    )
    return x[..., :samples]


def read_array(x: Any) -> Tensor:
    """Convert an array of any library to a float tensor on the CPU, or raise an error that names the problem."""
    if is_mne(x):
        kind = type(x).__name__
        raise InputError(
            f"a {kind} object was given; give it to embed, which filters it as the weights expect, or pass an array of "
            "data that you have filtered"
        )
    if isinstance(x, str | Path):
        raise InputError(
            "a file name was given; pass an array (windows, channels, samples), or call cerebro_eeg.embed(file, model)"
        )
    if isinstance(x, np.ma.MaskedArray):
        raise InputError("a masked array was given; cut out or repair what is masked, and pass a plain array")
    try:
        found = x.detach().cpu() if isinstance(x, Tensor) else np.asarray(x)
    except ValueError as error:
        raise InputError(
            "the windows have different shapes; embed windows of one montage and length at a time"
        ) from error
    if isinstance(found, np.ndarray):
        if found.dtype.kind not in "fiub":
            raise InputError(f"the array holds {found.dtype}; expected real numbers")
        found = torch.from_numpy(np.ascontiguousarray(found, np.float64 if found.dtype.itemsize > 4 else np.float32))
    if found.is_complex():
        raise InputError(f"the array holds {found.dtype}; expected real numbers")
    return found if found.dtype == torch.float64 else found.float()


def read_rate(sfreq: float | None, default: float) -> float:
    """Return a sampling rate in Hz as a positive number."""
    try:
        rate = default if sfreq is None else float(sfreq)
    except (TypeError, ValueError) as error:
        raise InputError(f"sfreq is {sfreq!r:.40}; expected a number of Hz") from error
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"sfreq is {rate}; expected a positive number of Hz")
    return rate


def same_rate(a: float, b: float) -> bool:
    """Return whether two rates are equal, apart from rounding in the header of a file."""
    return math.isclose(a, b, rel_tol=1e-6)


def check_rate(sfreq: float, wanted: float, policy: str) -> None:
    """Raise if the rate is not the model's, unless the user has chosen to resample or to ignore it."""
    if policy not in ("error", "resample", "as_is"):
        raise ConfigError(f"rate is {policy!r}; choose one of error, resample, as_is")
    if policy == "error" and not same_rate(sfreq, wanted):
        raise InputError(
            f"the windows have {sfreq:.10g} Hz, the model was made for {wanted:.10g} Hz; resample them first, or ask "
            'for rate="resample" or rate="as_is"'
        )


def check_shape(x_BCT: Tensor, montage: ChannelMatch, n_times: int | None) -> None:
    """Raise unless an array is (windows, channels, samples) with one name per channel."""
    if wrong := _wrong_shape(x_BCT, len(montage.rows), n_times):
        if torch.compiler.is_compiling():
            from cerebro_eeg.model import outside

            outside.refuse(wrong)
        raise InputError(wrong)


def _wrong_shape(x_BCT: Tensor, names: int, n_times: int | None) -> str | None:
    if x_BCT.dim() != 3:
        return f"the array has the shape {tuple(x_BCT.shape)}; expected (windows, channels, samples)"
    if x_BCT.shape[1] != names:
        turned = " (it looks transposed)" if x_BCT.shape[2] == names else ""
        return (
            f"the windows have {x_BCT.shape[1]} channels, but {names} are named{turned}; the array is "
            "(windows, channels, samples), one name a channel"
        )
    if n_times is not None and x_BCT.shape[2] != n_times:
        tmax = "; leave out the last sample, as MNE includes tmax" if x_BCT.shape[2] == n_times + 1 else ""
        return f"the windows have {x_BCT.shape[2]} samples; the model was made for n_times={n_times}{tmax}"
    return f"the array is empty: {tuple(x_BCT.shape)}" if x_BCT.numel() == 0 else None


def check_values(x_BCT: Tensor, labels: Sequence[str]) -> None:
    """Raise for NaN or infinity, and warn if amplitudes are not those of scalp EEG in microvolts."""
    if not bool(torch.isfinite(x_BCT).all()):
        window, channel, sample = (int(i) for i in torch.nonzero(~torch.isfinite(x_BCT))[0])
        raise InputError(
            f"the array holds NaN or infinity, first in window {window}, channel {labels[channel]!r}, "
            f"sample {sample}; cut such windows out or repair them"
        )
    few_BCT = x_BCT[:: max(1, len(x_BCT) // 64)]  # 64 windows suffice to recognise a unit
    spread_BC = (few_BCT - few_BCT.median(-1, keepdim=True).values).abs().median(-1).values
    spread_C = spread_BC.median(0).values.tolist()
    low, high = PLAUSIBLE_UV
    odd = [(label, spread) for label, spread in zip(labels, spread_C, strict=True) if not low <= spread <= high]
    if odd:
        shown = ", ".join(f"{label} {spread:.3g}" for label, spread in odd[:4]) + (", ..." if len(odd) > 4 else "")
        typical = sorted(spread for _, spread in odd)[len(odd) // 2]
        guess = next((u for u, f in MICROVOLTS.items() if f > 1 and 1 <= typical * f <= 300), None)
        advice = (
            f' (it looks like {guess}: multiply by {MICROVOLTS[guess]:g}, or embed with unit="{guess}")'
            if guess
            else ""
        )
        warn(
            f"{len(odd)} of {len(labels)} channels deviate from their median by other than {low:g} to {high:g} uV, as "
            f"scalp EEG does: {shown}; check the unit{advice}"
        )


def cut(x_CT: Tensor, samples: int) -> Tensor:
    """Cut a recording (C, T) into windows (B, C, T); report samples at the end that do not fill a window."""
    count, rest = divmod(x_CT.shape[1], samples)
    if count == 0:
        raise InputError(f"the recording has {x_CT.shape[1]} samples; a window of this model has {samples}")
    if rest:
        say(logging.INFO, f"the last {rest} of {x_CT.shape[1]} samples do not fill a window and are left out")
    return x_CT[:, : count * samples].unflatten(1, (count, samples)).transpose(0, 1)


def resample(x: Tensor, old: float, new: float) -> Tensor:
    """Resample along the last axis with a polyphase filter, without steps at the edges; a constant stays constant."""
    from scipy.signal import resample_poly

    ratio = Fraction(new / old).limit_denominator(10_000)
    mean = x.mean(-1, keepdim=True).double()  # the ripple of a filter scales with the offset
    centred = (x.detach().cpu().double() - mean.cpu()).numpy()
    found = resample_poly(centred, ratio.numerator, ratio.denominator, axis=-1, padtype="line")
    return (torch.as_tensor(found) + mean.cpu()).to(x)


def pieces(x_BCT: Tensor, scale_B: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield windows and their scales, ``size`` windows at a time."""
    for start in range(0, len(x_BCT), size):
        part = slice(start, start + size)
        yield x_BCT[part], None if scale_B is None else scale_B[part]


def read_scale(scale: Any, windows: int) -> Tensor | None:
    """Return the scale of each window in microvolts, from one number for all windows or one per window."""
    if scale is None:
        return None
    found = read_array(scale).reshape(-1)
    if len(found) not in (1, windows) or not bool((found > 0).all()):
        raise InputError(
            f"scale has {len(found)} values for {windows} windows; give one positive number, or one a window"
        )
    return found.expand(windows)
