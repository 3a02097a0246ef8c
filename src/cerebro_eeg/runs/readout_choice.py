"""Which read-out a frozen encoder gets: named by the user, or chosen by cross-validation over subjects.

The candidates of ``auto`` are the paper's mean, what the encoder gives beyond it, features without the encoder, and
both together. So the winner may be a model without an encoder: it is saved, and ``predict`` and ``embed`` run it
like any other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.config import FIXED_PARTS, ReadoutConfig, ReadoutPart
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.bands import FINE_EDGES, LearnedBands, symmetric
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.readouts import Readout, common_channels, layers_of, middle, tokens_after, widths
from cerebro_eeg.model.small_nets import learn_bands
from cerebro_eeg.runs.decisions import bias_of, centre
from cerebro_eeg.runs.linear_models import (
    LEAST_GROUPS,
    STRENGTHS,
    LinearModel,
    fit_chosen,
    groups_of,
    labelled,
    standardisation,
)
from cerebro_eeg.runs.store_predictions import BatchOutputs, predict_windows
from cerebro_eeg.runs.windows import Electrodes, Split, plain_electrodes
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.loop import Precision

if TYPE_CHECKING:
    from cerebro_eeg.runs.fold_features import FoldFeatures

Say = Callable[[str], None]
ReadoutName = Literal[
    "auto",
    "mean",
    "moments",
    "attention",
    "channels",
    "power",
    "tangent",
    "simple",
    "spectrum",
    "narrow",
    "fine",
    "signal",
    "bands",
    "encoder",
    "hybrid",
    "whole",
    "everything",
]
SIMPLE: tuple[ReadoutPart, ...] = ("power", "tangent")
FINE: tuple[ReadoutPart, ...] = ("narrow", "spectrum")
ENCODER: tuple[ReadoutPart, ...] = ("moments", "covariance", "amplitude")
STACKS = {
    "fine": ("narrow", "spectrum"),
    "signal": ("simple", "fine"),
    "hybrid": ("encoder", "simple"),
    "whole": ("encoder", "signal"),
    "everything": ("bands", "whole"),
}
"""Read-outs whose head is the weighted sum of two heads, which did better than one head fitted on all features."""
READOUTS: dict[str, tuple[ReadoutPart, ...]] = {
    "mean": ("mean",),
    "moments": ("moments",),
    "attention": ("attention",),
    "channels": ("channels",),
    "power": ("power",),
    "tangent": ("tangent",),
    "simple": SIMPLE,
    "spectrum": ("spectrum",),
    "narrow": ("narrow",),
    "fine": FINE,
    "signal": (*SIMPLE, *FINE),
    "bands": ("bands",),
    "encoder": ENCODER,
    "hybrid": (*ENCODER, *SIMPLE),
    "whole": (*ENCODER, *SIMPLE, *FINE),
    "everything": ("bands", *ENCODER, *SIMPLE, *FINE),
}
"""The read-outs that can be named, and the parts of each."""
AUTO = ("mean", "power", "tangent", "simple", "spectrum", "narrow", "fine", "signal", "encoder", "hybrid", "whole")
"""What ``auto`` chooses from. Learned bands are not among them: they take minutes, and add little to ``whole``."""
AUTO_WIDE = ("mean", "power", "tangent", "simple", "encoder", "hybrid")
"""What ``auto`` chooses from where so many channels are shared that covariances in narrow bands fill the memory."""
WIDE = 48
"""Channels from which this is so."""
AUTO_ANY = ("mean", "moments")
"""What ``auto`` chooses from where windows share no channels."""
MOST_WINDOWS = 20_000
"""More windows are thinned out evenly before a choice, which would take hours and more memory than it is worth."""
SAMPLE = 64
"""Windows whose tokens the principal components and queries are computed from."""
assert set(get_args(ReadoutName)) == {"auto", *READOUTS}


def shared_channels(split: Split, electrodes: Electrodes | None = None) -> tuple[str, ...]:
    """Return the channels that all windows of a split have, as the electrodes that they are read as."""
    parts = [part for part in (split.train, split.validation, split.test) if part is not None]
    montages = {part.facts.montages[n] for part in parts for n in np.unique(part.facts.montage[part.recording])}

    return common_channels(sorted(montages), electrodes or plain_electrodes)


def fitting_names(name: str, channels: Sequence[str], say: Say) -> tuple[str, ...]:
    """Return the read-outs to choose from; a line says so where windows share no channels, or too many for some."""
    named = AUTO if name == "auto" else (name,)
    if name == "auto" and len(channels) >= WIDE:
        say(f"note: the windows share {len(channels)} channels, so narrow bands are not tried; see --readout signal")
        return AUTO_WIDE
    if channels or not any(part in FIXED_PARTS for one in named for part in READOUTS[one]):
        return named
    say("note: the windows have no channel in common, so read-outs of fixed channels fall away; moments replace them")
    return AUTO_ANY if name == "auto" else ("moments",)


def members(names: Sequence[str]) -> tuple[dict[str, tuple[ReadoutPart, ...]], dict[str, tuple[str, str]]]:
    """Return the candidates and the stacks that some read-outs need, for ``fit_chosen``."""
    needed = set(names)
    for one, pair in reversed(STACKS.items()):  # a stack stands after those that it adds up
        if one in needed:
            needed |= set(pair)
    candidates = {one: parts for one, parts in READOUTS.items() if one in needed and one not in STACKS}
    return candidates, {one: pair for one, pair in STACKS.items() if one in needed}


def readout_config(parts: Sequence[ReadoutPart], channels: Sequence[str]) -> ReadoutConfig:
    """Return the configuration of a read-out, with channels only where a part needs them."""
    fixed = any(part in FIXED_PARTS for part in parts)
    return ReadoutConfig(tuple(parts), tuple(channels) if fixed else ())


@dataclasses.dataclass(frozen=True)
class FittedReadout:
    """A linear model on a read-out, and the outputs that choosing it gave for the windows of each split."""

    model: LinearModel
    config: ReadoutConfig
    held_out: dict[str, dict[str, NDArray[np.float32]]]
    """By split and candidate: outputs of models that had not seen the window's subject; empty if windows were thinned
    out or too few subjects are there."""

    def line(self) -> str:
        """Return one sentence on what was chosen and what else was tried."""
        found = self.model
        if not found.tried:
            return f"read-out: {found.name}; fewer than {LEAST_GROUPS} subjects allow no choice by cross-validation"
        best: dict[str, float] = {}
        for one in found.tried:
            best[one.name] = max(one.score, best.get(one.name, -np.inf))
        listed = ", ".join(f"{name} {value:.3f}" for name, value in best.items())
        metric = {"auroc": "AUROC", "r2": "R2"}[found.metric]
        how = ", features centred per subject" if found.centred else ""
        how += "" if layers_of(self.config, depth=1) else "; it needs no encoder"
        over = f"read-outs by cross-validation over {found.subjects} subjects ({metric})"
        return f"{over}: {listed}; chosen: {found.name}{how}"


@dataclasses.dataclass(frozen=True)
class AskedReadout:
    """What is computed before a head is fitted: the features of these windows, for all read-outs to choose from."""

    names: tuple[str, ...]
    readout: Readout
    """With the parts of all candidates."""
    used: dict[str, Windows]
    """The windows that the head is fitted on, by split."""

    def features(
        self,
        model: Cerebro,
        store: Store,
        split: Split,
        processes: ProcessGroup,
        electrodes: Electrodes | None,
        folds: "FoldFeatures | None",
        say: Say,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the features of the windows by split; those that folds can share are computed once for all."""
        readout = self.readout
        if folds is not None and readout.bands is None and "attention" not in readout.config.parts:
            return folds.features(readout, model, store, split.name, self.used, processes, electrodes, say)
        fit_token_components(readout, model, store, split.train, processes, electrodes)
        return {
            part: raw_features(model, readout, store, windows, processes, electrodes, say)
            for part, windows in self.used.items()
        }


def ask_readout(
    model: Cerebro,
    split: Split,
    name: str,
    processes: ProcessGroup,
    *,
    electrodes: Electrodes | None = None,
    validate: bool = True,
    say: Say = lambda line: None,
) -> AskedReadout:
    """Return the read-outs that a name stands for, and the windows that their heads are fitted on."""
    channels = shared_channels(split, electrodes)
    names = fitting_names(name, channels, say)
    candidates, _ = members(names)
    parts = tuple(dict.fromkeys(part for of in candidates.values() for part in of))
    readout = Readout(readout_config(parts, channels), model.config).to(processes.device)
    return AskedReadout(names, readout, parts_to_fit(split, validate, say))


def fit_readout(
    model: Cerebro,
    store: Store,
    split: Split,
    name: str,
    processes: ProcessGroup,
    *,
    electrodes: Electrodes | None = None,
    balanced: bool = False,
    centring: bool = True,
    strength: float | None = None,
    validate: bool = True,
    folds: "FoldFeatures | None" = None,
    say: Say = lambda line: None,
) -> FittedReadout:
    """Choose a read-out and its linear head by cross-validation, fit them, and write them into the model.

    Training and validation subjects take part in the cross-validation and in the last fit. Without ``validate``, with
    fewer than three subjects, or with too many windows, only training subjects do. ``folds`` share the features of an
    encoder that is the same in all of them. ``strength`` is the inverse regularisation, or None to choose it as well.
    """
    asked = ask_readout(model, split, name, processes, electrodes=electrodes, validate=validate, say=say)
    readout, used, learner = asked.readout, asked.used, None
    if readout.bands is not None:
        learner = BandLearner(readout, store, list(used.values()), processes, electrodes, balanced)
        readout.bands.load_state_dict(learner.fitted().state_dict())
    raw = asked.features(model, store, split, processes, electrodes, folds, say)
    names, (candidates, stacks) = asked.names, members(asked.names)
    sizes = dict(zip(readout.config.parts, widths(readout.config, model.config), strict=True))
    data = labelled([(windows, raw[part]) for part, windows in used.items()], sizes)
    if learner is not None:
        data = dataclasses.replace(data, learners={"bands": learner})
    strengths = STRENGTHS if strength is None else (strength,)
    found = fit_chosen(data, candidates, stacks, only=names, balanced=balanced, centring=centring, strengths=strengths)
    held_out: dict[str, dict[str, NDArray[np.float32]]] = {}
    if len(used["train"]) == len(split.train):
        first = 0
        for part, windows in used.items():
            held_out[part] = {of: output[first : first + len(windows)] for of, output in found.held_out.items()}
            first += len(windows)
    install(model, found, readout, split)
    assert model.head is not None
    return FittedReadout(found, model.head.readout, held_out if found.held_out else {})


def parts_to_fit(split: Split, validate: bool, say: Say) -> dict[str, Windows]:
    """Return the windows that a head is fitted on: training and, on request, validation.

    Validation takes part only where cross-validation can answer for all of its windows. A head that has seen a subject
    must not be asked about it.
    """
    known = {"train": split.train}
    if validate and split.validation is not None:
        known["validation"] = split.validation
        subjects = len(np.unique(np.concatenate([groups_of(windows) for windows in known.values()])))
        if subjects >= LEAST_GROUPS and sum(map(len, known.values())) <= MOST_WINDOWS:
            return known
    return {"train": thinned(split.train, MOST_WINDOWS, say)}


def install(model: Cerebro, found: LinearModel, fitted: Readout, split: Split) -> None:
    """Write a linear model on some parts of a fitted read-out into the model's head."""
    names = split.train.names
    config = readout_config(found.parts, fitted.config.channels)
    model.reset_head(len(names), names, config)
    weight_KP, bias_K = found.weight_KP, found.bias_K
    if model.readout is None:  # the paper's mean has no standardisation: it goes into the weights
        weight_KP = weight_KP * found.scale_P
        if not found.centred:  # centring takes the shift away; as part of the bias it would come back
            bias_K = bias_K - weight_KP @ found.shift_P
    else:
        if "covariance" in found.parts:
            model.readout.centre_D.copy_(fitted.centre_D)
            model.readout.components_DK.copy_(fitted.components_DK)
        if "attention" in found.parts:
            with torch.no_grad():
                model.readout.query_QD.copy_(fitted.query_QD)
        if model.readout.bands is not None and fitted.bands is not None:
            model.readout.bands.load_state_dict(fitted.bands.state_dict())
        model.readout.shift_P.copy_(torch.from_numpy(found.shift_P))
        model.readout.scale_P.copy_(torch.from_numpy(found.scale_P))
    layer = model.final_layer
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight_KP))
        layer.bias.copy_(torch.from_numpy(bias_K))
    assert model.head is not None
    model.head = dataclasses.replace(model.head, centred=found.centred)


class BandLearner:
    """Learns frequency bands on some windows, from the covariances of all windows in bins of 1 Hz."""

    def __init__(
        self,
        readout: Readout,
        store: Store,
        parts: Sequence[Windows],
        processes: ProcessGroup,
        electrodes: Electrodes | None,
        balanced: bool,
    ) -> None:
        def read(module: nn.Module, batch: Batch) -> torch.Tensor:
            return readout.cross_spectra(batch).flatten(1)

        kept = [predict_windows(readout, store, part, processes, electrodes=electrodes, read=read) for part in parts]
        first = parts[0]
        self._cross_NFP = np.concatenate(kept).reshape(sum(map(len, parts)), len(FINE_EDGES) - 1, -1)
        self._y = np.concatenate([part.label if part.target is None else part.target for part in parts])
        self._outputs, self._balanced = len(first.names), balanced

    def fitted(self, row_N: NDArray[np.intp] | None = None) -> LearnedBands:
        """Return bands that have learned on some windows, or on all."""
        row_N = np.arange(len(self._y)) if row_N is None else row_N
        return learn_bands(self._cross_NFP, self._y, row_N, outputs=self._outputs, balanced=self._balanced)

    def __call__(self, row_N: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the features of all windows, by bands that have learned on some."""
        bands = self.fitted(row_N)
        parts = np.array_split(self._cross_NFP, max(1, len(self._cross_NFP) // 256))
        with torch.no_grad():
            found = [bands.log_covariances(symmetric(torch.from_numpy(part))).numpy() for part in parts]
        return np.concatenate(found)


def start_readout(
    model: Cerebro, store: Store, windows: Windows, processes: ProcessGroup, electrodes: Electrodes | None
) -> None:
    """Set the numbers of a model's read-out from training windows, before gradient steps train its head."""
    assert model.readout is not None
    few = thinned(windows, 2048, lambda line: None)
    fit_token_components(model.readout, model, store, few, processes, electrodes)
    raw_BP = raw_features(model, model.readout, store, few, processes, electrodes, None)
    shift_P, scale_P = standardisation(raw_BP, widths(model.readout.config, model.config))
    # Gradient steps begin best with features of variance 1, as those of a norm.
    model.readout.shift_P.copy_(torch.from_numpy(shift_P))
    model.readout.scale_P.copy_(torch.from_numpy(scale_P * np.sqrt(len(scale_P))))


def fit_token_components(
    readout: Readout,
    model: Cerebro,
    store: Store,
    windows: Windows,
    processes: ProcessGroup,
    electrodes: Electrodes | None,
) -> None:
    """Set what a read-out needs of the distribution of tokens, from a sample of training windows.

    These are the principal components of ``covariance`` and the queries of ``attention``.
    """
    if "covariance" in readout.config.parts:
        layer = middle(model.config.depth)
        readout.fit_components(_sampled_tokens(model, layer, store, windows, processes, electrodes))
    if "attention" in readout.config.parts:
        layer = model.config.depth
        readout.fit_queries(_sampled_tokens(model, layer, store, windows, processes, electrodes))


def _sampled_tokens(
    model: Cerebro,
    layer: int,
    store: Store,
    windows: Windows,
    processes: ProcessGroup,
    electrodes: Electrodes | None,
) -> torch.Tensor:
    """Return the tokens (M, D) after a block, of some windows that are spread evenly."""

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Cerebro)
        tokens = tokens_after(module.encoder, batch, (layer,))[layer]
        return tokens.layout.grid(tokens.x_RND.float()).flatten(1)

    sample = windows.take(np.unique(np.linspace(0, len(windows) - 1, SAMPLE).astype(np.int64)))
    with torch.no_grad():
        tokens = [
            predict_windows(model, store, sample.take(np.array([k])), processes, electrodes=electrodes, read=read)
            for k in range(len(sample))
        ]
    return torch.from_numpy(np.concatenate([one.reshape(-1, model.config.width) for one in tokens]))


def raw_features(
    model: Cerebro,
    readout: Readout,
    store: Store,
    windows: Windows,
    processes: ProcessGroup,
    electrodes: Electrodes | None,
    say: Say | None,
) -> NDArray[np.float32]:
    """Return the features of a read-out as they are, for all windows."""

    def read(module: nn.Module, batch: Batch) -> torch.Tensor:
        assert isinstance(module, Cerebro)
        return readout.raw(batch, module.encoder)

    return predict_windows(model, store, windows, processes, electrodes=electrodes, read=read, say=say)


def head_outputs(
    model: nn.Module,
    store: Store,
    windows: Windows,
    processes: ProcessGroup,
    *,
    electrodes: Electrodes | None = None,
    precision: Precision = "fp32",
    say: Say | None = None,
    outputs: BatchOutputs | None = None,
) -> NDArray[np.float32]:
    """Return the outputs of a model for all windows; a centred head subtracts the mean of each subject's windows."""
    output = predict_windows(
        model, store, windows, processes, electrodes=electrodes, precision=precision, say=say, outputs=outputs
    )
    if isinstance(model, Cerebro) and model.head is not None and model.head.centred:
        return centre(output, groups_of(windows), bias_of(model))
    return output


def thinned(windows: Windows, most: int, say: Say) -> Windows:
    """Return at most so many windows, evenly spread over all."""
    if len(windows) <= most:
        return windows
    say(f"note: {most:,} of {len(windows):,} windows, evenly spread, are used to fit the head")
    return windows.take(np.linspace(0, len(windows) - 1, most).astype(np.int64))
