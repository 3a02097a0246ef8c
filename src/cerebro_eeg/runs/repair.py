"""Repair: channels that are bad or missing, filled in from the good ones, with the error that this makes.

Three methods fill a channel in. **Splines** are the spherical splines of MNE. The **model** sees the good channels and
nothing of the others: all their patches are hidden. **Both** is the mean of the two. The model's patches are z-scored,
unless its config says otherwise. So the splines give the offset of each window, and the neighbours its scale: splines
beyond the outermost electrodes may be far too large.

The error is measured on the recording itself. Some good channels are hidden one at a time, the bad ones stay out, and
each method fills in what is hidden. The error is a share of the variance of the hidden channel: 0 is perfect, and 1 is
as bad as a flat line. Windows for this come from the second half of the recording. Ridge regression stands beside: it
learned from the hidden channel in the first half, so it cannot repair a channel that was never good.

Legend: **T** samples of a stretch, **C** good channels, **F** channels to fill in, **B** windows.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from cerebro_eeg.batch import Batch, Layout
from cerebro_eeg.channels.electrodes import POSITIONS, VOCABULARY
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.channels.names import biosemi_blocks, clean, electrode, read_label
from cerebro_eeg.channels.report import listed, suggest
from cerebro_eeg.config import ModelConfig
from cerebro_eeg.data.filtering.quality import Thresholds, faults, measure
from cerebro_eeg.data.filtering.splines import spline_weights
from cerebro_eeg.data.preprocess import Preprocessed, preprocess
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import Recording
from cerebro_eeg.data.storing.writer import ScaleSample
from cerebro_eeg.errors import ChannelError, CheckpointError, ConfigError, InputError, RecordingError
from cerebro_eeg.model import inputs
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.filling import fill_in
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.tensor_list import check_results
from cerebro_eeg.progress import counted
from cerebro_eeg.runs.epochs import band_words, is_epochs
from cerebro_eeg.runs.predict import OnProgress, find_checkpoint
from cerebro_eeg.runs.repair_result import (
    AUTO,
    METHODS,
    FilledChannel,
    FilledStretch,
    HiddenChannel,
    Repaired,
    median_errors,
)
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.signals import policy_of, reader_errors
from cerebro_eeg.runs.snapshot import is_unfinished, usable_weights
from cerebro_eeg.train.distributed import choose_device
from cerebro_eeg.train.loop import evaluating

if TYPE_CHECKING:
    from cerebro_eeg.runs.signals import Source

Method: TypeAlias = Literal["auto", "both", "model", "splines"]
FEWEST = 4
"""Good electrodes that splines need."""
MOST_HIDDEN, MOST_WINDOWS = 8, 12
"""Good channels that are hidden, and windows that the error is measured on."""
FIT_WINDOWS = 60
"""Windows that ridge regression learns from; one in four of them chooses its term."""
TERMS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
"""Ridge terms to choose from, as shares of the mean variance of a channel."""
TOGETHER = 16
"""Windows that the model computes at once."""
Array: TypeAlias = NDArray[np.float32]


# The model


@dataclass(frozen=True)
class Filler:
    """A model that may fill channels in."""

    model: MaskedCerebro
    name: str
    """What the output calls it; a name of weights, never a path."""
    trained: frozenset[str]
    """Electrodes that windows of pre-training had."""
    unable: str | None
    """Why it cannot fill channels in; None if it can."""

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def samples(self) -> int:
        """Length of a window: a whole number of patches."""
        patches = self.config.patches
        return patches.count(self.config.window) * patches.length if self.unable is None else self.config.window


def make_filler(model: MaskedCerebro | Path | str, device: str = "auto") -> Filler:
    """Load a model with its head for reconstruction; without one it may still say how to filter for splines."""
    if isinstance(model, Cerebro):
        raise ConfigError(
            "a Cerebro has no reconstruction head; give the name or path of pre-trained weights, or a MaskedCerebro"
        )
    name = "a model in memory"
    if not isinstance(model, MaskedCerebro):
        found = find_checkpoint(model)
        name = "small-open" if str(found) == "small-open" else "a checkpoint"
        if is_unfinished(Path(found).expanduser()):
            with usable_weights(Path(found).expanduser(), lambda line: inputs.say(logging.WARNING, line)) as weights:
                model = MaskedCerebro.from_pretrained(weights)
        else:
            model = MaskedCerebro.from_pretrained(found)
        model = model.to(choose_device(device))
    elif device != "auto":
        raise ConfigError(f"device is {device!r}, and the model is in memory already; move it with model.to")
    trained = frozenset(name for name, count in model.training_record.electrode_windows.items() if count)
    return Filler(model, name, trained, _unable(model))


def _unable(model: MaskedCerebro) -> str | None:
    """Return why a model cannot fill in channels, in a line; None if it can."""
    report, patches = model.load_report, model.config.patches
    lost = () if report is None else (*report.missing, *report.replaced)
    if any(name.startswith(("reconstruct.", "decoder.")) for name in lost):
        return "the checkpoint has no reconstruction head; give the run or checkpoint of a pre-training"
    record = model.training_record
    if not (record.windows or record.steps):
        return "the checkpoint records no training, so what it fills in is random; give pre-trained weights"
    if patches.kind != "waveform" or patches.stride != patches.length:
        return "the model does not reconstruct waveforms side by side; give weights of waveform patches without gaps"
    return None


# The channels


@dataclass(frozen=True)
class _Wanted:
    """What is to be filled in."""

    labels: tuple[str, ...]
    """Labels of the file that are left out."""
    order: tuple[str, ...]
    """All electrodes of the output that are not pairs, in the order of the file, then those that are missing."""
    fill: tuple[tuple[str, str], ...]
    """Electrodes to fill in, each with the reason."""


def _place(name: str) -> str:
    """Return the electrode that the user names, which has a place on the head; a line for any other name."""
    found = electrode(clean(name))
    if found is None or found not in POSITIONS:
        hint = suggest([name], VOCABULARY).get(name)
        raise ChannelError(
            f"{name!r} is no electrode whose place is known; give names such as C3 or Fz"
            + (f": {hint}" if hint else "")
        )
    return found


def _find_wanted(
    source: "Source", handling: Handling, config: ModelConfig, bad: Sequence[str], missing: Sequence[str]
) -> _Wanted:
    """Find the channels to fill in among the labels of a recording: named, marked as bad, or bad by their samples."""
    policy = replace(policy_of(handling, config), max_channels=len(VOCABULARY))
    # What is not understood may be bad: it is refused, or not, when the recording is opened without the bad ones.
    loose = replace(policy, unknown="drop" if policy.unknown == "error" else policy.unknown, duplicates="first")
    opened = open_recording(source, loose, unit=handling.unit, arrays=handling.arrays())
    rows = opened.match.rows
    meant = policy.named([row.label for row in rows])
    blocks = biosemi_blocks(meant)
    read = [row.channel or read_label(name, blocks, False).channel for row, name in zip(rows, meant, strict=True)]
    single = [channel.anode if channel is not None and channel.cathode is None else None for channel in read]
    reasons = {row.label: "marked as bad" for row in rows if row.outcome == "bad"}
    auto = [name for name in bad if name == AUTO]
    if auto:
        found = [faults(one, Thresholds()) for one in measure(opened, Thresholds())]
        for index, words in zip(opened.match.index, found, strict=True):
            if words:
                reasons.setdefault(rows[index].label, ", ".join(words))
    named: dict[str, str] = {}
    for name in bad:
        if name == AUTO:
            continue
        fitting = [place for place, row in enumerate(rows) if clean(name) in (row.label, meant[place])]
        if not fitting:
            channel = electrode(clean(name))
            fitting = [place for place, own in enumerate(single) if channel is not None and own == channel]
        if not fitting:
            _place(name)
            raise ChannelError(
                f"{name!r} is not among the {len(rows)} channels of the recording; --missing fills in electrodes that "
                "were not recorded"
            )
        label = rows[fitting[0]].label
        if label in named:
            raise ChannelError(f"{named[label]!r} and {name!r} are one channel; give each channel once")
        named[label] = name
        reasons[label] = "named by the user"
    recorded = [name for name, row in zip(single, rows, strict=True) if name is not None and row.outcome != "not_eeg"]
    fill = {}
    for row in rows:
        own = single[row.index]
        if row.label in reasons and (own is not None or row.label in named or handling.unknown == "error"):
            fill[_place(own or row.label)] = reasons[row.label]
    for name in missing:
        place = _place(name)
        if fill.get(place) == "not recorded":
            raise ChannelError(f"{name!r} is given twice as missing; give each channel once")
        if place in recorded:
            raise ChannelError(f"{name!r} is in the recording; --bad fills it in if it is bad")
        fill[place] = "not recorded"
    order = (*dict.fromkeys(recorded), *(name for name, why in fill.items() if why == "not recorded"))
    return _Wanted(tuple(reasons), order, tuple(fill.items()))


# Filling in


class ChannelFilling:
    """Fills channels in from the good channels, by each method."""

    def __init__(self, filler: Filler, good: Sequence[str], fill: Sequence[str], scale: float | None) -> None:
        self.good, self.fill = tuple(good), tuple(fill)
        self._filler, self._scale = filler, scale
        placed = [place for place, name in enumerate(good) if name in POSITIONS]
        if len(placed) < FEWEST:
            raise ChannelError(
                f"{counted(len(placed), 'good electrode')} of a known place left to fill {', '.join(fill)} in from; "
                f"expected {FEWEST} or more"
            )
        where = np.array([POSITIONS[good[place]] for place in placed])
        self._weights = np.zeros((len(fill), len(good)))
        targets = np.array([POSITIONS[name] for name in fill])
        self._weights[:, placed] = spline_weights(targets, where)
        near = 1 / np.maximum(np.arccos(np.clip(targets @ where.T, -1, 1)), 0.01) ** 2
        self._placed, self._near = placed, near / near.sum(1, keepdims=True)
        self.seen = [place for place, name in enumerate(good) if set(name.split("-")) <= filler.trained]
        self.shown = [place for place, name in enumerate(fill) if name in filler.trained]
        """Channels to fill in that the model was trained on."""

    @property
    def unable(self) -> str | None:
        """Why the model cannot fill these channels in; None if it can."""
        if self._filler.unable is not None:
            return self._filler.unable
        strange = [name for name in self.fill if name not in self._filler.trained]
        if strange:
            return f"no window of its pre-training had {listed(strange)}"
        if not self.seen:
            return "no window of its pre-training had any of the good channels"
        if len(self.seen) + len(self.fill) > self._filler.config.max_channels:
            return f"it takes at most {self._filler.config.max_channels} channels"
        return None

    def splines(self, x_BTC: NDArray[Any]) -> Array:
        """Return (B, T, F) by spherical splines."""
        found: Array = (x_BTC @ self._weights.T).astype(np.float32)
        return found

    def model(self, x_BTC: NDArray[Any]) -> Array:
        """Return (B, T, F) by the model, for windows of its length."""
        device = self._filler.model.encoder.positions.device
        names = [self.good[place] for place in self.seen] + list(self.fill)
        ids_C2 = torch.tensor([Channel(*name.split("-")).ids for name in names])
        parts = []
        for first in range(0, len(x_BTC), TOGETHER):
            some = x_BTC[first : first + TOGETHER]
            guess = self._to_scale(self.splines(some), some)
            rows = np.concatenate([some[..., self.seen], guess], 2).astype(np.float32).transpose(0, 2, 1)
            count, width, size = rows.shape
            scale = None if self._scale is None else torch.full((count * width,), self._scale, device=device)
            batch = Batch(
                torch.from_numpy(rows.reshape(-1, size).copy()).to(device),
                ids_C2.repeat(count, 1).to(device),
                Layout.uniform(count, width),
                scale,
            )
            patches = size // self._filler.config.patches.length
            hidden_RN = torch.zeros(count, width, patches, dtype=torch.bool, device=device)
            hidden_RN[:, len(self.seen) :] = True
            with evaluating(self._filler.model):
                found_RNL = fill_in(self._filler.model, batch, hidden_RN.flatten(0, 1))
            check_results(found_RNL.float().cpu().numpy(), self._filler.model)
            found = found_RNL.float().cpu().numpy().reshape(count, width, size)[:, len(self.seen) :].transpose(0, 2, 1)
            parts.append(self._in_microvolts(found, guess))
        whole: Array = np.concatenate(parts).astype(np.float32)
        return whole

    def stretch(self, method: str, x_TC: NDArray[Any], tell: Callable[[int], None] = lambda samples: None) -> Array:
        """Return (T, F) of a whole stretch; windows of the model overlap by half, and their sum fades over.

        A stretch that is shorter than a window is filled in by splines. ``tell`` is called with the samples done.
        """
        samples, size = self._filler.samples, len(x_TC)
        if method == "splines" or size < samples:
            return self.splines(x_TC[None])[0]
        starts = sorted({*range(0, size - samples + 1, samples // 2), size - samples})
        fade = np.hanning(samples + 2)[1:-1][:, None]
        total, weight = np.zeros((size, len(self.fill))), np.zeros((size, 1))
        for first in range(0, len(starts), TOGETHER):
            some = starts[first : first + TOGETHER]
            filled = self.model(np.stack([x_TC[start : start + samples] for start in some]))
            for start, one in zip(some, filled, strict=True):
                total[start : start + samples] += fade * one
                weight[start : start + samples] += fade
            tell(some[-1] + samples)
        found: Array = (total / weight).astype(np.float32)
        return found if method == "model" else (found + self.splines(x_TC[None])[0]) / 2

    def _to_scale(self, guess: Array, x_BTC: NDArray[Any]) -> Array:
        """Return splines (B, T, F) with the standard deviation of the neighbours: a geometric mean by squared distance.

        The model sees none of these values. They only say how large its own patches are.
        """
        spread_BC = np.maximum(x_BTC[..., self._placed].std(1), 1e-6)
        wanted_B1F = np.exp(np.log(spread_BC) @ self._near.T)[:, None]
        mean_B1F = guess.mean(1, keepdims=True)
        own_B1F = np.maximum(guess.std(1, keepdims=True), 1e-6)
        found: Array = (mean_B1F + (guess - mean_B1F) * (wanted_B1F / own_B1F)).astype(np.float32)
        return found

    def _in_microvolts(self, found: Array, guess: Array) -> Array:
        """Undo the normalisation of the model, with scale and offset of the guess."""
        kind = self._filler.config.normalization
        if kind == "none":
            return found
        if kind == "scale":
            return found * np.float32(self._filler.config.fixed_scale)
        if kind == "minmax":
            low, high = guess.min(1, keepdims=True), guess.max(1, keepdims=True)
            return found * (high - low) / 2 + (high + low) / 2
        mean = guess.mean(1, keepdims=True)
        if kind == "recording":
            assert self._scale is not None
            return found * np.float32(self._scale) + mean
        return found * guess.std(1, keepdims=True) + mean


# The error


def hidden_errors(
    filler: Filler,
    good: Sequence[str],
    stretches: Sequence[FilledStretch],
    scale: float | None,
    most: int = MOST_HIDDEN,
) -> list[HiddenChannel]:
    """Hide good channels one at a time and return the error of each method, as shares of the channel's variance.

    The channels are evenly spread over the good electrodes whose place is known and that the model was trained on, in
    the order of the file. The windows are evenly spread over the second half of all windows.
    """
    placed = [place for place, name in enumerate(good) if name in POSITIONS]
    usable = [place for place in placed if good[place] in filler.trained] if filler.unable is None else placed
    if len(placed) <= FEWEST or not usable or most < 1:
        return []
    windows = _windows(stretches, filler.samples)
    if not len(windows):
        return []
    half = len(windows) // 2
    tested = windows[_spread(half, len(windows), MOST_WINDOWS)].astype(np.float64)
    learned = windows[_spread(0, half, FIT_WINDOWS)].astype(np.float64) if half >= 4 else None
    found = []
    for place in [usable[at] for at in _spread(0, len(usable), most).tolist()]:
        others = [other for other in range(len(good)) if other != place]
        truth = _centred(tested[..., place])
        power = float(np.square(truth).sum())
        if power <= 1e-12 * truth.size:
            continue  # flat: its error is no share of anything
        filling = ChannelFilling(filler, [good[other] for other in others], [good[place]], scale)
        guesses = {"splines": filling.splines(tested[..., others])[..., 0].astype(np.float64)}
        if filling.unable is None:
            guesses["model"] = filling.model(tested[..., others])[..., 0].astype(np.float64)
            guesses["both"] = (guesses["model"] + guesses["splines"]) / 2
        if learned is not None:
            guesses["ridge"] = _ridge(learned[..., others], learned[..., place], tested[..., others])
        errors = {name: float(np.square(_centred(one) - truth).sum()) / power for name, one in guesses.items()}
        model, splines, both, ridge = (errors.get(name) for name in ("model", "splines", "both", "ridge"))
        found.append(HiddenChannel(good[place], model, splines, both, ridge, len(tested)))
    return found


def _windows(stretches: Sequence[FilledStretch], samples: int) -> NDArray[np.float32]:
    """Return all windows (B, T, C) of a recording, side by side."""
    parts = [
        one.data_TC[: len(one.data_TC) // samples * samples].reshape(-1, samples, one.data_TC.shape[1])
        for one in stretches
    ]
    return np.concatenate(parts) if parts else np.empty((0, samples, 0), np.float32)


def _spread(first: int, stop: int, most: int) -> NDArray[np.int64]:
    count = min(most, stop - first)
    return first + np.arange(count, dtype=np.int64) * (stop - first) // max(count, 1)


def _centred(x_BT: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return windows without their means, which a high-pass leaves arbitrary."""
    found: NDArray[np.float64] = x_BT - x_BT.mean(1, keepdims=True)
    return found


def _ridge(x_BTC: NDArray[np.float64], y_BT: NDArray[np.float64], new_BTC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ridge regression of y on x for new windows; one window in four chooses the term."""
    own_BTC = x_BTC - x_BTC.mean(1, keepdims=True)
    y_BT = _centred(y_BT)
    aside = np.arange(len(own_BTC)) % 4 == 3

    def fit(chosen: NDArray[np.bool_], term: float) -> NDArray[np.float64]:
        x, y = own_BTC[chosen].reshape(-1, own_BTC.shape[2]), y_BT[chosen].reshape(-1)
        square = x.T @ x
        size = max(float(np.trace(square)) / len(square), 1e-30)
        found: NDArray[np.float64] = np.linalg.solve(square + term * size * np.eye(len(square)), x.T @ y)
        return found

    errors = [float(np.square(own_BTC[aside] @ fit(~aside, term) - y_BT[aside]).sum()) for term in TERMS]
    found: NDArray[np.float64] = new_BTC @ fit(np.ones_like(aside), TERMS[int(np.argmin(errors))])
    return found


# All of it


def repair(
    source: "Source",
    model: MaskedCerebro | Filler | Path | str,
    *,
    bad: Sequence[str] = (),
    missing: Sequence[str] = (),
    method: Method = "auto",
    hidden: int = MOST_HIDDEN,
    events: Collection[str] = (),
    device: str = "auto",
    handling: Handling = Handling(),
    progress: OnProgress = lambda seconds, of: None,
) -> Repaired:
    """Fill in the bad and the missing channels of one recording; a file, or a Raw object of MNE.

    Channels that the recording marks as bad are filled in, too. ``bad="auto"`` also takes those with a fault that
    ``info`` reports. ``method="auto"`` takes what had the smallest error on good channels that were hidden.
    """
    if is_epochs(source):
        raise InputError("Epochs were given, and repair reads recordings; repair the Raw before it is cut")
    filler = model if isinstance(model, Filler) else make_filler(model, device)
    if hidden < 0:
        raise ConfigError(f"hidden is {hidden}; expected a number of channels, or 0 to measure no error")
    with reader_errors():
        wanted = _find_wanted(source, handling, filler.config, bad, missing)
        if not wanted.fill and AUTO not in bad:  # a folder of recordings may have sound ones among them
            raise ChannelError(
                "no channel is marked as bad; --bad names those to fill in, or --bad auto looks for them"
            )
        prepared = _open(source, filler.config, handling, wanted)
        stretches = _stretches(prepared)
        scale = _scale(stretches, filler.config)
    if not stretches:
        raise RecordingError("empty", "no time has numbers in all good channels; name those without as bad")
    info = getattr(source, "info", None)
    if info is not None and (words := band_words(info, filler.config.signal, epochs=False)) is not None:
        inputs.say(logging.WARNING, words)
    good = tuple(channel.name for channel in prepared.channels)
    twins = [name for name, _ in wanted.fill if name in good]
    if twins:
        raise ChannelError(
            f"{listed(twins)} is also the electrode of another channel of the recording; name both with --bad, or "
            "leave one out with --rename"
        )
    if not wanted.fill:
        notes = ["no channel is marked as bad or bad by its samples, so nothing was filled in"]
        return _assemble(None, filler, prepared, wanted, stretches, (), "none", method, notes, events, progress)
    filling = ChannelFilling(filler, good, [name for name, _ in wanted.fill], scale)
    errors = hidden_errors(filler, good, stretches, scale, hidden)
    chosen, notes = _choose(method, filling, errors)
    return _assemble(filling, filler, prepared, wanted, stretches, errors, chosen, method, notes, events, progress)


def _open(source: "Source", config: ModelConfig, handling: Handling, wanted: _Wanted) -> Preprocessed:
    """Open a recording without the channels that are filled in, and plan its filters."""
    policy = replace(policy_of(handling, config), bads=wanted.labels, max_channels=len(VOCABULARY))
    opened = open_recording(source, policy, unit=handling.unit, arrays=handling.arrays())
    if not opened.samples:
        raise RecordingError("empty", "the recording has no samples; expected some")
    return preprocess(opened, config.signal, mains=handling.mains)


def _stretches(prepared: Preprocessed) -> tuple[FilledStretch, ...]:
    """Return the filtered good channels of each stretch without a gap."""
    found: dict[int, list[Any]] = {}
    onsets: dict[int, float] = {}
    for block in prepared.blocks():
        found.setdefault(block.stretch, []).append(block.signal)
        onsets.setdefault(block.stretch, float(block.onset))
    return tuple(
        FilledStretch(onsets[number], np.concatenate(parts).astype(np.float32))
        for number, parts in sorted(found.items())
    )


def _scale(stretches: Sequence[FilledStretch], config: ModelConfig) -> float | None:
    if config.normalization != "recording" and not config.amplitude:
        return None
    sample = ScaleSample()
    for one in stretches:
        sample.add(one.data_TC)
    return sample.scale()


def _choose(method: Method, filling: ChannelFilling, errors: Sequence[HiddenChannel]) -> tuple[str, list[str]]:
    """Return the method to use, and lines on the choice."""
    notes = []
    if method != "splines" and filling.unable is not None:
        if method != "auto":
            raise CheckpointError(f"the model cannot fill these channels in: {filling.unable}; or use --method splines")
        notes.append(f"splines fill in, because the model cannot: {filling.unable}")
        return "splines", notes
    if method != "auto":
        return method, notes
    totals = median_errors(errors)
    if not totals:
        notes.append("no good channel could be hidden to measure an error, so splines fill in; --method chooses")
        return "splines", notes
    return min(METHODS, key=lambda name: totals.get(name, np.inf)), notes


def _assemble(
    filling: ChannelFilling | None,
    filler: Filler,
    prepared: Preprocessed,
    wanted: _Wanted,
    stretches: Sequence[FilledStretch],
    errors: Sequence[HiddenChannel],
    method: str,
    asked: str,
    notes: list[str],
    events: Collection[str],
    progress: OnProgress,
) -> Repaired:
    """Put good and filled channels into the order of the file."""
    reasons = dict(wanted.fill)
    good, fill = tuple(channel.name for channel in prepared.channels), tuple(reasons)
    kept = {name: place for place, name in enumerate(good)}
    names = [name for name in wanted.order if name in kept or name in reasons]
    names += [name for name in good if name not in names]  # pairs, and what the reference made
    columns = [kept[name] if name in kept else len(kept) + fill.index(name) for name in names]

    rate = prepared.plan.new_rate

    def whole(one: FilledStretch) -> Array:
        if filling is None:
            return one.data_TC

        def tell(samples: int) -> None:
            progress(one.onset + samples / rate, prepared.recording.end)

        return np.concatenate([one.data_TC, filling.stretch(method, one.data_TC, tell)], 1)

    done = [FilledStretch(one.onset, whole(one)[:, columns]) for one in stretches]
    short = sum(len(one.data_TC) for one in stretches if len(one.data_TC) < filler.samples)
    if short and method in ("model", "both"):
        notes.append(
            f"{short / rate:.3g} s lie in stretches shorter than a window of the model: splines filled them in"
        )
    recording: Recording = prepared.recording
    own = filler.trained if filler.unable is None else frozenset[str]()
    aside = [name for name in good if not set(name.split("-")) <= own]
    if aside and method in ("model", "both"):
        notes.append(f"the model did not see {listed(aside)}, which no window of its pre-training had")
    return Repaired(
        channels=tuple(names),
        filled=tuple(FilledChannel(name, why) for name, why in wanted.fill),
        method=method,
        asked=asked,
        model=filler.name,
        sfreq=float(rate),
        stretches=tuple(done),
        hidden=tuple(errors),
        plan=prepared.plan.text(),
        band=(prepared.plan.low, prepared.plan.high, prepared.plan.notch),
        events=tuple(event for event in recording.events if event.name in set(events)),
        notes=tuple(notes),
    )
