"""Maps of a model over the head: what its answers depend on, which electrodes attend to which, which are alike.

Three functions give results with arrays, names and ``plot()``: :func:`explain`, :func:`channel_attention` and
:func:`electrode_map`. The work is done in ``runs/explain.py`` and ``model/attention_weights.py``.

Legend: **W** windows, **C** channels, **F** bands, **K** outputs, **G** groups, **L** layers, **H** heads, **D** width.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import IDS, TEN_TWENTY
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import packed
from cerebro_eeg.model.attention_weights import channel_layers
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.report.figures import (
    DARK,
    GREY,
    KINDS,
    draw_head,
    place,
    save,
    sketching,
)
from cerebro_eeg.runs.decisions import choose_class
from cerebro_eeg.runs.embed import Embedding, row_names
from cerebro_eeg.runs.epochs import is_epochs
from cerebro_eeg.runs.explain import BANDS, Occluded, OnVariant, Replacement, attend, check_bands, occlude
from cerebro_eeg.runs.predict import Reader, check_head, load_model, make_reader, output_names, warn_random
from cerebro_eeg.runs.settings import Handling, Quality, TooMany, Unknown, Untrained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cerebro_eeg.runs.signals import Source

WINDOWS = 40
"""Windows of a recording that are looked at unless the caller says otherwise."""
_SHOWN = 12  # channels that have a bar
_PALE = 0.02  # a smaller change of a probability does not get the strongest colour
_DOTS = 40  # more groups than this are drawn as their middle half
_RED, _BLUE = "#B2182B", "#2166AC"  # the ends of the colours of the map
_SIGNED = "RdBu_r"  # colours of values around zero
Floats = NDArray[np.float64]
Part = tuple[tuple[str, ...], Occluded, NDArray[np.int64]]
"""The channels of a recording, what was found, and for each window the place of its group's name."""


# What an answer depends on


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a model's answers depend on: the change of the answer when a channel or a frequency band is taken away.

    A change is the answer before minus the answer after. Where it is positive, the answer needs what was taken away;
    where it is negative, the answer would be stronger without it. Changes of channels do not add up to the answer.
    """

    kind: str
    """classification or regression."""
    names: tuple[str, ...]
    """Classes in order, or names of the targets."""
    channels: tuple[str, ...]
    bands: Mapping[str, tuple[float, float]]
    """The lower and the upper edge of each band in Hz."""
    output: NDArray[np.float32]
    """(W, K): probabilities or values of the windows as they are."""
    answer: NDArray[np.int64]
    """(W,): the class or target of each window that the changes are about."""
    of: str | None
    """The class or target that was asked for; None for the class that each window gets."""
    by_channel: NDArray[np.float32]
    """(W, C): the change without each channel; NaN where a recording lacks it."""
    by_band: NDArray[np.float32]
    """(W, F): the change without each band."""
    start: Floats
    """(W,): seconds from the start of the recording."""
    seconds: float
    """Length of a window."""
    recording: NDArray[np.int64]
    """(W,): the number of the recording, in the order given."""
    group: NDArray[np.int64] | None
    """(W,): the number of the group, such as the subject; None for a single recording."""
    groups: tuple[Any, ...]
    """The groups as the caller named them, or the numbers of the recordings."""
    replace: Replacement
    """What a channel was replaced by: silence, or what the others say about its place."""
    silent: tuple[str, ...]
    """Channels that were made silent: all, or those that the others could not replace."""

    @property
    def group_channels(self) -> Floats:
        """(G, C): the mean change over the windows of each group; of a single recording a window is a group."""
        return self._by_group(self.by_channel)

    @property
    def group_bands(self) -> Floats:
        """(G, F): the same for the bands."""
        return self._by_group(self.by_band)

    @property
    def channel_mean(self) -> dict[str, float]:
        """The mean over the groups for each channel: every group counts the same."""
        return dict(zip(self.channels, _mean(self.group_channels).tolist(), strict=True))

    @property
    def band_mean(self) -> dict[str, float]:
        """The mean over the groups for each band."""
        return dict(zip(self.bands, _mean(self.group_bands).tolist(), strict=True))

    @property
    def channel_spread(self) -> dict[str, float]:
        """The standard deviation over the groups for each channel; NaN for fewer than two."""
        return dict(zip(self.channels, _spread(self.group_channels).tolist(), strict=True))

    @property
    def band_spread(self) -> dict[str, float]:
        """The standard deviation over the groups for each band."""
        return dict(zip(self.bands, _spread(self.group_bands).tolist(), strict=True))

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw the changes on the head, by channel and by band; save the figure where a ``path`` is given."""
        with _picture(path, 12.5, 4.3) as figure:
            left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1, 0.8])
            least = _PALE if self.kind == "classification" else 1e-6
            _draw_map(figure, left, self.channel_mean, "Without each channel", self._unit(), least)
            order = sorted(range(len(self.channels)), key=lambda c: -abs(_mean(self.group_channels)[c]))[:_SHOWN]
            title = f"The {len(order)} channels that matter most" if len(order) < len(self.channels) else "Channels"
            _draw_bars(middle, [self.channels[c] for c in order], self.group_channels[:, order], title, self._unit())
            names = [f"{name}\n{low:g}-{high:g} Hz" for name, (low, high) in self.bands.items()]
            _draw_bars(right, names, self.group_bands, "Without each band", self._unit())
            figure.suptitle(self._title(), x=0.01, ha="left", fontsize=10)
        return figure

    def text(self) -> str:
        """Return the bands and channels that matter most, in a few words."""
        words = []
        for means, count in ((self.band_mean, 1), (self.channel_mean, 3)):
            most = sorted(means, key=lambda name: -abs(means[name]))[:count]
            words += [f"{name} {means[name]:+.3f}" for name in most]
        return ", ".join(words)

    def __repr__(self) -> str:
        return f"Explanation({len(self.start)} windows; most: {self.text()})"

    def _by_group(self, values: NDArray[np.float32]) -> Floats:
        if self.group is None:
            return values.astype(np.float64)
        return np.stack([_mean(values[self.group == number]) for number in range(len(self.groups))])

    def _unit(self) -> str:
        return "fall of the probability" if self.kind == "classification" else "fall of the value"

    def _title(self) -> str:
        whose = "the class that each window gets" if self.of is None else self.of
        counted = f"{len(self.start):,} windows"
        if self.group is not None:
            what = "recording" if self.groups == tuple(range(1, len(self.groups) + 1)) else "group"
            dots = (
                f"a dot is the mean of a {what}" if len(self.groups) <= _DOTS else "a line is the middle half of them"
            )
            counted += f" of {len(self.groups):,} {what}s; {dots}"
        else:
            counted += f"; {'a dot is a window' if len(self.start) <= _DOTS else 'a line is the middle half of them'}"
        kind = "probability" if self.kind == "classification" else "value"
        return f"What the {kind} of {whose} depends on ({counted})"


def explain(
    source: "Source | Sequence[Source]",
    model: Cerebro | Path | str,
    *,
    of: str | None = None,
    bands: Mapping[str, tuple[float, float]] = BANDS,
    replace: Replacement = "silence",
    groups: Sequence[Any] | None = None,
    windows: int | None = WINDOWS,
    stride: float | None = None,
    unknown: Unknown = "error",
    untrained: Untrained = "error",
    too_many: TooMany = "error",
    quality: Quality = "keep",
    mains: float | None = None,
    unit: str | None = None,
) -> Explanation:
    """Say what the answers of a fine-tuned model depend on, by channel and by frequency band.

    ``source`` is a recording or a list of them: files, or MNE ``Raw`` or ``Epochs`` objects. Each channel in turn is
    made silent, and each band in turn is taken out of all channels. The change is the answer before minus the answer
    after. The model runs once per channel and band: ``windows`` limits what that takes.

    Parameters
    ----------
    of
        The class or target whose change is asked for; None for the class that each window gets.
    bands
        Names of bands with their edges in Hz.
    replace
        ``"silence"``: a channel becomes zeros. ``"others"``: it becomes what the others say about its place (spherical
        splines), so the change is what it adds to its neighbours.
    groups
        A name for each recording, such as its subject, or for each epoch of a single Epochs object. Means are over
        groups, and so is the spread. Without names, each of several recordings is a group.
    windows
        The most windows of a recording that are looked at, spread evenly over it; None for all.
    stride, unknown, untrained, too_many, quality, mains, unit
        As in :func:`cerebro_eeg.predict`.
    """
    handling = Handling(unknown, untrained, too_many, quality, mains, unit)
    reader = make_reader(load_model(model), stride=stride, handling=handling)
    check_head(reader.model)
    warn_random(reader.model)
    return explain_with(reader, source, of=of, bands=bands, replace=replace, groups=groups, windows=windows)


def explain_with(
    reader: Reader,
    source: "Source | Sequence[Source]",
    *,
    of: str | None = None,
    bands: Mapping[str, tuple[float, float]] = BANDS,
    replace: Replacement = "silence",
    groups: Sequence[Any] | None = None,
    windows: int | None = WINDOWS,
    on_variant: OnVariant = lambda done, of: None,
) -> Explanation:
    """Do :func:`explain` with a reader that was made before."""
    sources: list[Any] = list(source) if isinstance(source, list | tuple) else [source]
    if not sources:
        raise InputError("no recording was given; give one, or a list of them")
    if windows is not None and (not isinstance(windows, int) or windows < 1):
        raise ConfigError(f"windows is {windows!r}; expected a whole number of at least 1, or None for all")
    head = check_head(reader.model)
    names = output_names(head)
    if of is not None and of not in names:
        raise ConfigError(f"of is {of!r}; the model has {', '.join(names)}")
    if of is None and head.task == "regression" and len(names) > 1:
        raise ConfigError(f"the model predicts {', '.join(names)}; choose one of them with of=")
    if replace not in ("silence", "others"):
        raise ConfigError(f"replace is {replace!r}; choose silence or others")
    asked = check_bands(bands, reader.config.signal.sfreq, reader.config.signal.lowpass)
    by_epoch = len(sources) == 1 and is_epochs(sources[0])
    if groups is not None and not by_epoch and len(groups) != len(sources):
        raise InputError(f"groups has {len(groups)} names for {len(sources)} recordings; give one for each")
    parts = []
    for number, one in enumerate(sources):
        _, signal = reader.open(one)
        if groups is not None and by_epoch and len(groups) != len(signal.epochs.selection if signal.epochs else ()):
            kept = len(signal.epochs.selection) if signal.epochs else 0
            raise InputError(f"groups has {len(groups)} names for {kept} epochs; give one for each that is not bad")
        with packed(reader.model):
            found = occlude(reader, signal, asked, windows, replace, on_variant)
        key = found.windows.stretch_B if by_epoch and groups is not None else np.full(len(found.output_WK), number)
        parts.append((signal.names, found, key))
    return join(parts, reader, asked, of, groups, replace)


def join(
    parts: Sequence[Part],
    reader: Reader,
    bands: Mapping[str, tuple[float, float]],
    of: str | None = None,
    groups: Sequence[Any] | None = None,
    replace: Replacement = "silence",
) -> Explanation:
    """Make one explanation of recordings, which may differ in their channels."""
    head = check_head(reader.model)
    kind, names = head.task, output_names(head)
    threshold = head.threshold if len(names) == 2 else None
    channels = tuple(dict.fromkeys(name for own, _, _ in parts for name in own))
    output = np.concatenate([found.output_WK for _, found, _ in parts])
    if of is not None:
        answer = np.full(len(output), names.index(of))
    elif kind == "regression":
        answer = np.zeros(len(output), np.int64)
    else:
        answer = choose_class(output.astype(np.float64), threshold)
    by_channel = np.full((len(output), len(channels)), np.nan, np.float32)
    by_band = np.empty((len(output), len(bands)), np.float32)
    first = 0
    for own, found, _ in parts:
        rows = np.arange(first, first + len(found.output_WK))
        column = answer[rows]
        before = found.output_WK[np.arange(len(rows)), column]
        change = (before - found.without_VWK[:, np.arange(len(rows)), column]).T
        columns = np.array([channels.index(name) for name in own])
        by_channel[rows[:, None], columns] = change[:, : len(own)]
        by_band[rows] = change[:, len(own) :]
        first += len(rows)
    key = np.concatenate([keys for _, _, keys in parts])
    named: list[Any] = list(range(1, len(parts) + 1)) if groups is None else list(groups)
    distinct = list(dict.fromkeys(named[number] for number in np.unique(key)))
    single = groups is None and len(parts) == 1
    return Explanation(
        kind=kind,
        names=names,
        channels=channels,
        bands=dict(bands),
        output=output,
        answer=answer,
        of=of if of is not None or kind == "classification" else names[0],
        by_channel=by_channel,
        by_band=by_band,
        start=np.concatenate([found.windows.start_B for _, found, _ in parts]),
        seconds=reader.seconds,
        recording=np.repeat(np.arange(len(parts)), [len(found.output_WK) for _, found, _ in parts]),
        group=None if single else np.array([distinct.index(named[number]) for number in key], np.int64),
        groups=() if single else tuple(distinct),
        replace=replace,
        silent=tuple(dict.fromkeys(name for _, found, _ in parts for name in found.silent)),
    )


def _mean(values_GN: NDArray[Any]) -> Floats:
    """Return the mean over groups that have a value; NaN where none has one."""
    known = np.isfinite(values_GN)
    total = np.where(known, values_GN, 0).sum(0, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        found: Floats = total / np.where(known.any(0), known.sum(0), np.nan)
    return found


def _spread(values_GN: Floats) -> Floats:
    known = np.isfinite(values_GN)
    count = known.sum(0)
    square = np.where(known, values_GN - _mean(values_GN), 0) ** 2
    found: Floats = np.sqrt(square.sum(0) / np.where(count > 1, count - 1, np.nan))
    return found


# Attention between electrodes


@dataclass(frozen=True, eq=False)
class ChannelAttention:
    """The attention between the channels of windows, as the layers compute it. A row over the last axis sums to 1.

    It shows where information is mixed, and not what an answer depends on: :func:`explain` says that.
    """

    channels: tuple[str, ...]
    layers: tuple[int, ...]
    """The layers that attend across channels, counted from 1."""
    weights: NDArray[np.float32]
    """(W, L, H, C, C): the mean over the patches of a window; from the channel that asks to the one that is read."""
    start: Floats
    """(W,): seconds from the start of the recording."""

    def mean(self, layer: int | None = None) -> Floats:
        """Return the attention (C, C) of a layer, or of all layers, as a mean over windows and heads."""
        chosen = self.weights if layer is None else self.weights[:, [self._place(layer)]]
        return chosen.mean((0, 1, 2), dtype=np.float64)

    def received(self, layer: int | None = None) -> dict[str, float]:
        """Return how much attention each channel gets from all, as a multiple of an even share."""
        return self._named(self.mean(layer).mean(0))

    def given(self, channel: str, layer: int | None = None) -> dict[str, float]:
        """Return how much attention a channel gives to each, as a multiple of an even share."""
        if channel not in self.channels:
            raise InputError(f"there is no channel {channel!r}; choose one of {', '.join(self.channels)}")
        return self._named(self.mean(layer)[self.channels.index(channel)])

    def plot(self, channel: str | None = None, path: str | Path | None = None) -> "Figure":
        """Draw for each layer the attention that each channel gets, from all channels or from one of them."""
        maps = {
            f"layer {layer}": self.received(layer) if channel is None else self.given(channel, layer)
            for layer in self.layers
        }
        title = "Attention that each channel gets" + ("" if channel is None else f" from {channel}")
        return _plot_maps(maps, f"{title}, as a multiple of an even share", "times an even share", 1.0, path)

    def __repr__(self) -> str:
        layers = ", ".join(map(str, self.layers))
        return f"ChannelAttention({len(self.start)} windows, {len(self.channels)} channels, layers {layers})"

    def _place(self, layer: int) -> int:
        if layer not in self.layers:
            raise ConfigError(f"layer is {layer}; choose one of {', '.join(map(str, self.layers))}")
        return self.layers.index(layer)

    def _named(self, share_C: Floats) -> dict[str, float]:
        return dict(zip(self.channels, (share_C * len(self.channels)).tolist(), strict=True))


def channel_attention(
    source: "Source",
    model: Cerebro | Path | str,
    *,
    layers: Sequence[int] | None = None,
    windows: int | None = WINDOWS,
    seconds: float | None = None,
    stride: float | None = None,
    unknown: Unknown = "error",
    untrained: Untrained = "error",
    too_many: TooMany = "error",
    quality: Quality = "keep",
    mains: float | None = None,
    unit: str | None = None,
) -> ChannelAttention:
    """Return the attention between the channels of a recording: a file, or an MNE ``Raw`` or ``Epochs`` object.

    ``layers`` are counted from 1; None for all that attend across channels. ``windows`` is the most windows that are
    looked at, spread evenly over the recording; None for all. The rest is as in :func:`cerebro_eeg.embed`.
    """
    handling = Handling(unknown, untrained, too_many, quality, mains, unit)
    reader = make_reader(load_model(model), seconds=seconds, stride=stride, handling=handling, tokens=True)
    warn_random(reader.model, True)
    chosen = tuple(channel_layers(reader.model.encoder) if layers is None else layers)
    if not chosen:
        raise ConfigError("no layer was asked for; leave layers out for all that attend across channels")
    reader, signal = reader.open(source, whole=seconds is None and stride is None)
    start, weights = attend(reader, signal, chosen, windows)
    return ChannelAttention(row_names(reader.config, signal.names), chosen, weights, start)


# Electrodes that are alike


@dataclass(frozen=True, eq=False)
class ElectrodeMap:
    """Numbers for each electrode: how alike it is to one of them, or its place along principal components."""

    channels: tuple[str, ...]
    maps: Mapping[str, Floats]
    """For each title a value per channel."""
    what: str
    """What the numbers were computed from."""

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw a head for each map."""
        maps = {name: dict(zip(self.channels, values.tolist(), strict=True)) for name, values in self.maps.items()}
        return _plot_maps(maps, self.what, "cosine" if "component" not in next(iter(maps)) else "score", 0.0, path)

    def __repr__(self) -> str:
        return f"ElectrodeMap({len(self.channels)} channels; {', '.join(self.maps)})"


def electrode_map(
    of: "Embedding | Cerebro | Path | str",
    *,
    like: str | Sequence[str] | None = None,
    components: int = 3,
    names: Sequence[str] | None = None,
) -> ElectrodeMap:
    """Return what a model knows of its electrodes, or what it makes of the channels of a recording.

    ``of`` is a model or a checkpoint: its learned vector of each electrode. Or it is the result of
    ``cerebro_eeg.embed(raw, model, level="channel")``: the mean feature of each channel. The mean over the electrodes
    is subtracted.

    Parameters
    ----------
    like
        An electrode, or some: the cosine of every vector with theirs.
    components
        Without ``like``, the number of principal components.
    names
        Electrodes of a model to show; by default those that it was trained on, or the 10-20 system.
    """
    if isinstance(of, Embedding):
        if of.features.ndim != 3:
            raise InputError("these features have no channels; embed with level='channel'")
        channels, vectors = of.channels, of.features.mean(0, dtype=np.float64)
        what = "Mean features of the channels"
        if names is not None:
            vectors, channels = vectors[[_find(channels, name) for name in names]], tuple(names)
    else:
        model = load_model(of)
        channels = _electrodes_of(model) if names is None else tuple(names)
        strange = [name for name in channels if name not in IDS]
        if strange:
            raise InputError(f"{strange[0]!r} is no electrode that the model knows; give names such as Cz")
        table = model.encoder.electrodes.detach().double().cpu().numpy()
        vectors, what = table[[IDS[name] for name in channels]], "Learned vectors of the electrodes"
    if len(channels) < 3:
        raise InputError(f"{len(channels)} electrodes make no map; expected 3 or more")
    centred = vectors - vectors.mean(0)
    if like is not None:
        seeds = [like] if isinstance(like, str) else list(like)
        norm = np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        cosine = (centred / norm) @ (centred / norm).T
        maps = {f"like {seed}": cosine[_find(channels, seed)] for seed in seeds}
        return ElectrodeMap(channels, maps, f"{what}: how alike they are")
    if not 1 <= components < len(channels):
        raise ConfigError(f"components is {components}; expected 1 to {len(channels) - 1}")
    u, size, _ = np.linalg.svd(centred, full_matrices=False)
    scores = u[:, :components] * size[:components]
    scores = scores * np.sign(scores[np.abs(scores).argmax(0), np.arange(components)])  # a sign is arbitrary
    share = size**2 / max(float((size**2).sum()), 1e-300)
    titles = [f"component {number + 1} ({share[number]:.0%})" for number in range(components)]
    return ElectrodeMap(channels, dict(zip(titles, scores.T, strict=True)), f"{what}: principal components")


def _electrodes_of(model: Cerebro) -> tuple[str, ...]:
    trained = model.training_record.electrode_windows
    known = tuple(name for name in IDS if trained.get(name))
    return known if len(known) >= 3 else TEN_TWENTY


def _find(channels: Sequence[str], name: str) -> int:
    if name not in channels:
        raise InputError(f"there is no electrode {name!r}; choose one of {', '.join(channels)}")
    return list(channels).index(name)


# Pictures


@contextlib.contextmanager
def _picture(path: str | Path | None, width: float, height: float) -> Iterator["Figure"]:
    """Yield a figure in our style, which shows itself in a notebook; save it at the end where there is a path."""
    target = None if path is None else Path(path)
    if target is not None and target.suffix.casefold() not in KINDS:
        raise ConfigError(f"path ends in {target.suffix or 'nothing'!r}; expected a name with {' or '.join(KINDS)}")
    with sketching(width, height) as figure:
        yield figure
        if target is not None:
            save(figure, target)
    setattr(figure, "_repr_png_", lambda: _png(figure))  # noqa: B010 - for IPython; pyplot does not know the figure


def _png(figure: "Figure") -> bytes:
    """Return what a notebook shows of a figure that pyplot does not know."""
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def _draw_map(figure: "Figure", axes: "Axes", values: Mapping[str, float], title: str, unit: str, least: float) -> None:
    """Draw signed values on a head, with zero in the middle of the colours; values below ``least`` stay pale."""
    known = {name: value for name, value in values.items() if np.isfinite(value)}
    most = max((abs(value) for name, value in known.items() if place(name) is not None), default=0.0)
    most = max(most, least)
    points = draw_head(axes, known, title, -most, most, _SIGNED)
    if points is not None:
        bar = figure.colorbar(points, ax=axes, shrink=0.75)
        bar.set_label(unit)
        bar.outline.set_edgecolor(GREY)


def _draw_bars(axes: "Axes", names: Sequence[str], values_GN: Floats, title: str, unit: str) -> None:
    """Draw a bar for each mean; over it a dot for each group or, for many, the middle half of them."""
    from matplotlib.ticker import MaxNLocator

    mean_N, rows = _mean(values_GN), np.arange(len(names))
    axes.barh(rows, np.nan_to_num(mean_N), color=[_RED if value >= 0 else _BLUE for value in mean_N], alpha=0.75)
    if len(values_GN) <= _DOTS:
        for values in values_GN:
            axes.plot(values, rows, "o", color=DARK, markersize=3, alpha=0.55, linewidth=0)
    else:
        low, high = np.nanpercentile(values_GN, [25, 75], axis=0)
        axes.hlines(rows, low, high, color=DARK, linewidth=1.2)
    axes.axvline(0, color=DARK, linewidth=0.8)
    axes.set_yticks(rows, list(names), fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(True, axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _plot_maps(
    maps: Mapping[str, Mapping[str, float]], title: str, unit: str, middle: float, path: str | Path | None
) -> "Figure":
    """Draw several heads on one scale of colours around ``middle``."""
    across = min(4, len(maps))
    down = -(-len(maps) // across)
    values = [value for one in maps.values() for name, value in one.items() if place(name) is not None]
    most = max((abs(value - middle) for value in values), default=0.0) or 1e-6
    with _picture(path, 2.9 * across + 1.2, 3.1 * down + 0.4) as figure:
        axes = figure.subplots(down, across, squeeze=False).ravel()
        shown = [
            draw_head(one, known, name, middle - most, middle + most, _SIGNED)
            for one, (name, known) in zip(axes, maps.items(), strict=False)
        ]
        for one in axes[len(maps) :]:
            one.set_axis_off()
        points = next((found for found in shown if found is not None), None)
        if points is not None:
            bar = figure.colorbar(points, ax=list(axes), shrink=0.7)
            bar.set_label(unit)
            bar.outline.set_edgecolor(GREY)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure
