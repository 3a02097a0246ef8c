"""Explain: what a model's answers depend on, and which electrodes attend to which, for windows of a recording.

**Occlusion.** The model answers each window once as it is, and once more for every channel and every frequency band
that is taken away. The change is the answer before minus the answer after.

* A *channel* is made silent (zeros): what the model makes of the recording without it. Or it is replaced by what the
  other channels say about its place (spherical splines): what it adds to its neighbours, which is often little. A pair
  of electrodes, an electrode without a known place and a recording of fewer than five electrodes are always silent.
* A *band* is taken out of all channels. A discrete cosine transform divides a window into bands that add up to it
  exactly, and one of them is left out.

Channel or band are taken away from all windows that are looked at. A head that is centred on its recording is centred
anew each time.

Legend: **W** windows that are looked at, **V** variants (channels, then bands), **K** outputs, **C** channels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.data.filtering.splines import from_the_others
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.attention_weights import channel_attention
from cerebro_eeg.model.tensor_list import check_results
from cerebro_eeg.runs.decisions import bias_of, centre, softmax
from cerebro_eeg.runs.predict import Reader, RecordingWindows, cut_windows, make_batch, nothing_fits
from cerebro_eeg.runs.signals import Signal
from cerebro_eeg.train.loop import evaluating

BANDS: Mapping[str, tuple[float, float]] = {
    "delta": (0.5, 4.0),
    "theta": (4.0, 8.0),
    "alpha": (8.0, 13.0),
    "beta": (13.0, 30.0),
    "gamma": (30.0, 75.0),
}
"""Names of frequency bands with their edges in Hz; the lower edge belongs to the band."""
TOGETHER = 16
"""Windows that are computed at once."""
Replacement = Literal["silence", "others"]
OnVariant = Callable[[int, int], None]
"""A function that is called with the variants that are done, and their number."""


@dataclass(frozen=True, eq=False)
class Occluded:
    """The outputs of a model for windows of one recording, as they are and with something taken away."""

    windows: RecordingWindows
    output_WK: NDArray[np.float32]
    """Probabilities or values of the windows as they are."""
    without_VWK: NDArray[np.float32]
    """The same without each channel in turn, and then without each band."""
    silent: tuple[str, ...]
    """Channels that were made silent."""


def choose_windows(reader: Reader, signal: Signal, most: int | None) -> RecordingWindows:
    """Return at most so many windows of a recording, evenly spread over it; None returns all."""
    kept: list[tuple[RecordingWindows, int]] = []
    number, step = 0, 1
    for some in cut_windows(signal, reader.samples, reader.stride, TOGETHER):
        for place in range(len(some.start_B)):
            if number % step == 0:
                kept.append((_take(some, [place]), number))
            number += 1
            if most is not None and len(kept) >= 2 * most:  # so that a long recording does not fill the memory
                kept, step = kept[::2], 2 * step
    if not kept:
        raise nothing_fits(reader, signal)
    count = len(kept) if most is None else min(most, len(kept))
    chosen = [kept[place][0] for place in np.linspace(0, len(kept) - 1, count).round().astype(int).tolist()]
    columns = ("signal_BTC", "start_B", "stretch_B", "short_B")
    return RecordingWindows(*(np.concatenate([getattr(one, name) for one in chosen]) for name in columns))


def _take(windows: RecordingWindows, places: Sequence[int]) -> RecordingWindows:
    chosen = list(places)
    return RecordingWindows(
        windows.signal_BTC[chosen], windows.start_B[chosen], windows.stretch_B[chosen], windows.short_B[chosen]
    )


def _parts(windows: RecordingWindows) -> Iterator[RecordingWindows]:
    for first in range(0, len(windows.start_B), TOGETHER):
        yield _take(windows, range(first, min(first + TOGETHER, len(windows.start_B))))


# Occlusion


def check_bands(bands: Mapping[str, tuple[float, float]], rate: float, top: float) -> dict[str, tuple[float, float]]:
    """Return the bands that the windows can have, cut at the edge of their pass-band; raise for those that are none."""
    found = {}
    for name, (low, high) in bands.items():
        if not 0 <= low < high:
            raise ConfigError(f"the band {name!r} goes from {low:g} to {high:g} Hz; its edges must rise from 0 Hz on")
        if low < min(top, rate / 2):
            found[str(name)] = (float(low), float(min(high, top, rate / 2)))
    if not found:
        raise ConfigError(f"no band lies below {min(top, rate / 2):g} Hz, where these windows end; give lower ones")
    return found


def without_band(x_BTC: NDArray[np.float32], low: float, high: float, rate: float) -> NDArray[np.float32]:
    """Return windows without the frequencies from ``low`` (included) to ``high`` Hz (not included).

    The cosines of the transform have k half periods in a window. Taking out one band after the other leaves nothing.
    """
    from scipy import fft

    found = fft.dct(x_BTC.astype(np.float64), axis=1, norm="ortho")
    hertz = np.arange(x_BTC.shape[1]) * rate / (2 * x_BTC.shape[1])
    found[:, (hertz >= low) & (hertz < high)] = 0
    result: NDArray[np.float32] = fft.idct(found, axis=1, norm="ortho").astype(np.float32)
    return result


def occlude(
    reader: Reader,
    signal: Signal,
    bands: Mapping[str, tuple[float, float]],
    most: int | None,
    replace_by: Replacement = "silence",
    on_variant: OnVariant = lambda done, of: None,
) -> Occluded:
    """Return the answers for windows of a recording with every channel and every band taken away in turn."""
    windows = choose_windows(reader, signal, most)
    names, rate = signal.names, reader.config.signal.sfreq
    weights = from_the_others(names) if replace_by == "others" else {}
    whole = [part.signal_BTC.astype(np.float32) for part in _parts(windows)]
    plain = _answers(reader, signal, windows, whole)
    without = []
    total = len(names) + len(bands)
    for column in range(len(names)):
        own = weights.get(column, np.zeros(len(names)))
        without.append(_answers(reader, signal, windows, [_replaced(x_BTC, column, own) for x_BTC in whole]))
        on_variant(len(without), total)
    for low, high in bands.values():
        parts = [without_band(x_BTC, low, high, rate) for x_BTC in whole]
        without.append(_answers(reader, signal, windows, parts))
        on_variant(len(without), total)
    silent = tuple(name for column, name in enumerate(names) if column not in weights)
    return Occluded(windows, plain, np.stack(without), silent)


def _replaced(x_BTC: NDArray[np.float32], column: int, weights_C: NDArray[np.float64]) -> NDArray[np.float32]:
    found = x_BTC.copy()
    found[..., column] = x_BTC @ weights_C.astype(np.float32)
    return found


def _answers(
    reader: Reader, signal: Signal, windows: RecordingWindows, parts: Sequence[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return the outputs (W, K) for the signals of the windows, ``TOGETHER`` of them in each part."""
    model, head = reader.model, reader.model.head
    assert head is not None
    found = []
    with evaluating(model), torch.no_grad():
        for x_BTC, some in zip(parts, _parts(windows), strict=True):
            batch = make_batch(replace(some, signal_BTC=x_BTC), signal, model.encoder.positions.device)
            output = model(batch)
            assert isinstance(output, torch.Tensor)
            found.append(output.float().cpu().numpy())
    output_WK = np.concatenate(found)
    check_results(output_WK, model)
    if head.centred:
        output_WK = centre(output_WK, np.zeros(len(output_WK), np.int64), bias_of(model))
    return softmax(output_WK) if head.task == "classification" else output_WK


# Attention


def attend(
    reader: Reader, signal: Signal, layers: Sequence[int], most: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return the starts of windows and their attention between channels, (W, layers, heads, C, C)."""
    windows, model = choose_windows(reader, signal, most), reader.model
    found = []
    with evaluating(model), torch.no_grad():
        for some in _parts(windows):
            batch = make_batch(some, signal, model.encoder.positions.device)
            weights = channel_attention(model.encoder, batch, layers)
            found.append(torch.stack(weights, 1).float().cpu().numpy())
    return windows.start_B, np.concatenate(found)
