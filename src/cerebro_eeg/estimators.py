"""Estimators of scikit-learn: features, classifier and regressor for windows of EEG.

They take arrays (windows, channels, samples) or ``Epochs`` of MNE. A classifier is fitted by the code of ``finetune``,
with the windows in memory instead of a store. So it gives the answers that the command line gives for these windows,
and a saved one is a checkpoint that ``cerebro-eeg predict`` runs.

Everything that a subject's windows share needs ``groups``, the subject of each window: which windows are held out for
early stopping, how a read-out is chosen, and the mean that centring subtracts.

Legend: **B** windows, **C** channels, **T** samples, **K** outputs.
"""

import contextlib
import copy
import dataclasses
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state

from cerebro_eeg.channels.match import ChannelMatch, match
from cerebro_eeg.config import PRESETS, ModelConfig, Preset
from cerebro_eeg.data.batching.arrays import ArrayTask, array_windows
from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.errors import ConfigError, InputError, StoppedError
from cerebro_eeg.files import parse_json, unflushed
from cerebro_eeg.model import checkpoint, hub, inputs, preparation
from cerebro_eeg.model.cerebro import Cerebro, Level, Unit
from cerebro_eeg.model.readouts import width_of
from cerebro_eeg.runs import few_subjects
from cerebro_eeg.runs.decisions import softmax
from cerebro_eeg.runs.embed import row_names
from cerebro_eeg.runs.finetune import FinetuneOptions, train_split
from cerebro_eeg.runs.linear_models import LEAST_GROUPS
from cerebro_eeg.runs.predict import find_checkpoint, load_model, random_words
from cerebro_eeg.runs.readout_choice import READOUTS, STACKS, ReadoutName, head_outputs
from cerebro_eeg.runs.settings import Engine, TooMany, Unknown, Untrained, choose, preset_for
from cerebro_eeg.runs.signals import reader_errors
from cerebro_eeg.runs.snapshot import usable_weights
from cerebro_eeg.runs.windows import LabelledTask, Split, electrodes_of
from cerebro_eeg.schema import did_you_mean
from cerebro_eeg.train.distributed import ProcessGroup, choose_device

Model = Cerebro | Path | str
"""A checkpoint, the folder of a run, a name on the Hub, "small-open", a preset for random weights, or a Cerebro."""
Names = Sequence[str] | None
_REQUESTED = MappingProxyType(dict.fromkeys(("groups", "ch_names", "sfreq", "unit", "scale"), True))
"""What a method takes by metadata routing without being told to request it."""


# What the three estimators share


class _OnWindows(BaseEstimator):  # type: ignore[misc]
    """What all estimators of windows share: the model by reference, and how windows are read."""

    model: Model
    ch_names: Names
    sfreq: float | None
    unit: Unit
    rate: inputs.Rate
    unknown: Unknown
    untrained: Untrained
    too_many: TooMany

    def __sklearn_clone__(self) -> Self:
        """Clone the parameters, but keep a Cerebro as it is: nothing here trains it, and a copy costs its memory."""
        given = self.model
        if not isinstance(given, Cerebro):
            clone: Self = super().__sklearn_clone__()
            return clone
        stand_in = copy.copy(self)
        stand_in.model = _Kept()  # type: ignore[assignment]
        clone = super(_OnWindows, stand_in).__sklearn_clone__()
        clone.model = given
        return clone

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def _open(
        self,
        X: Any,
        config: ModelConfig,
        ch_names: Names,
        sfreq: float | None,
        unit: Unit | None,
        fitted: tuple[str, ...] | None = None,
    ) -> "_GivenWindows":
        """Return windows of an array or of Epochs with the names of their channels, neither matched nor scaled.

        ``fitted`` are the names that fit had, for arrays that come without any.
        """
        ch_names = self.ch_names if ch_names is None else ch_names
        sfreq = self.sfreq if sfreq is None else sfreq
        epochs = _epochs_of(X)
        if epochs is not None:
            found = _read_epochs(epochs, config, self.unknown, self.too_many)
            _agree_with_epochs(epochs, found, ch_names, sfreq)
            _report_band(epochs, config)
            return found
        ch_names = fitted if ch_names is None else ch_names
        shape = np.shape(X)
        if len(shape) != 3:
            raise InputError(
                f"X has the shape {shape}; expected windows (windows, channels, samples), or Epochs of MNE"
            )
        if ch_names is None:
            raise InputError(
                "the channels are not named, and CEReBrO knows a channel by its electrode, never by its place in the "
                'array; pass ch_names=["Fp1", ...] to the estimator or to fit, or give Epochs of MNE'
            )
        unit = self.unit if unit is None else unit
        if unit not in inputs.MICROVOLTS:
            raise ConfigError(f"unit is {unit!r}; choose one of {', '.join(inputs.MICROVOLTS)}")
        return _GivenWindows(X, tuple(ch_names), inputs.read_rate(sfreq, config.signal.sfreq), unit, shape[1])


class _Kept:
    """Stands for a parameter that a clone takes over as it is."""

    def __deepcopy__(self, memo: Any) -> "_Kept":
        return self


@dataclass(frozen=True, eq=False)
class _GivenWindows:
    """Windows as a user gave them."""

    x: Any
    """(windows, channels, samples)."""
    labels: tuple[str, ...]
    sfreq: float
    unit: Unit
    width: int
    """Channels."""


@dataclass(frozen=True, eq=False)
class _ReadWindows:
    """Windows as the model wants them: matched channels, microvolts, the model's rate."""

    x_BCT: NDArray[np.floating]
    channels: tuple[str, ...]
    sfreq: float
    width: int
    """Channels that were given, with those that were left out."""


def _epochs_of(X: Any) -> Any | None:
    """Return Epochs, also from a list of parts, which is what scikit-learn makes of them; None for an array."""
    if _is_epochs(X):
        return X
    if isinstance(X, list | tuple) and X and all(map(_is_epochs, X)):
        if len(X) == 1:
            return X[0]
        from mne import concatenate_epochs

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of annotations and times, which are not read
            try:
                return concatenate_epochs(list(X), add_offset=False, on_mismatch="ignore", verbose="error")
            except ValueError as error:
                raise InputError(
                    "the Epochs of the list differ in their channels, rate or length; give Epochs of one kind"
                ) from error
    if hasattr(X, "get_data") and hasattr(X, "info"):
        raise InputError(f"X is a {type(X).__name__}; cut it into Epochs, or call cerebro_eeg.embed(raw, model)")
    return None


def _is_epochs(X: Any) -> bool:
    return hasattr(X, "get_data") and hasattr(X, "event_id") and hasattr(X, "drop_log")


def _read_epochs(epochs: Any, config: ModelConfig, unknown: Unknown, too_many: TooMany) -> _GivenWindows:
    """Read Epochs as every verb does: channels that are no EEG or are marked as bad are left out."""
    policy = ChannelPolicy(unknown=unknown, too_many=too_many, max_channels=config.max_channels)
    with reader_errors():
        found = open_recording(epochs, policy)
        x_TC = found.read(0, found.samples)
    for fault in found.faults:
        if fault.code == "bads":
            inputs.say(logging.WARNING, fault.note)
    size = found.segments[0].stop
    x_BCT = x_TC.reshape(len(found.segments), size, -1).transpose(0, 2, 1)
    names = tuple(found.match.names)
    return _GivenWindows(x_BCT, names, found.sfreq, "uV", len(names))


def _agree_with_epochs(epochs: Any, found: _GivenWindows, ch_names: Names, sfreq: float | None) -> None:
    if sfreq is not None and not inputs.same_rate(float(sfreq), found.sfreq):
        raise ConfigError(f"sfreq is {sfreq:g}, and the Epochs have {found.sfreq:g} Hz; leave sfreq out")
    if ch_names is not None and list(ch_names) not in (list(epochs.ch_names), list(found.labels)):
        raise ConfigError("ch_names and the Epochs name different channels; leave ch_names out: Epochs know theirs")


def _report_band(epochs: Any, config: ModelConfig) -> None:
    """Say that Epochs were filtered to another band than the weights expect, where their info knows it."""
    low, high, signal = float(epochs.info["highpass"]), float(epochs.info["lowpass"]), config.signal
    unknown = low == 0 and high >= epochs.info["sfreq"] / 2
    if unknown or (math.isclose(low, signal.highpass) and math.isclose(high, signal.lowpass)):
        return
    inputs.say(
        logging.WARNING,
        f"the Epochs have a band of {low:g} to {high:g} Hz, and the weights learned from {signal.highpass:g} to "
        f"{signal.lowpass:g} Hz; they are taken as they are",
    )


def _match_labels(given: _GivenWindows, config: ModelConfig, unknown: Unknown, too_many: TooMany) -> ChannelMatch:
    found = match(given.labels, unknown=unknown, too_many=too_many, max_channels=config.max_channels)
    left_out = len(found.channels) < len(found.rows) or any(row.outcome == "nearest" for row in found.rows)
    if left_out:
        inputs.say(logging.WARNING, found.summary())
    return found


def _read(given: _GivenWindows, config: ModelConfig, rate: inputs.Rate, montage: ChannelMatch) -> _ReadWindows:
    """Check windows, and bring them to the channels, unit and rate of the model."""
    wanted = config.signal.sfreq
    inputs.check_rate(given.sfreq, wanted, rate)
    x_BCT = inputs.read_array(given.x) * inputs.MICROVOLTS[given.unit]
    inputs.check_shape(x_BCT, montage, None)
    x_BCT = x_BCT[:, list(montage.index)]
    inputs.check_values(x_BCT, [montage.rows[place].label for place in montage.index])
    found_rate = given.sfreq
    if rate != "as_is":
        if not inputs.same_rate(given.sfreq, wanted):
            x_BCT = inputs.resample(x_BCT, given.sfreq, wanted)
        found_rate = wanted
    if (line := preparation.doubt_line(x_BCT, found_rate, config.signal)) is not None:
        inputs.warn(line)
    if not config.patches.count(x_BCT.shape[2]):
        raise InputError(
            f"the windows have {x_BCT.shape[2]} samples; a patch of this model needs {config.patches.shortest()}"
        )
    return _ReadWindows(x_BCT.numpy(), tuple(montage.names), found_rate, given.width)


def _read_groups(groups: Any, count: int) -> NDArray[np.int64] | None:
    """Return a number for each window's subject."""
    if groups is None:
        return None
    found = np.asarray(groups)
    if found.ndim != 1 or len(found) != count:
        raise InputError(f"groups has the shape {found.shape} for {count} windows; give the subject of each window")
    if (found.dtype.kind == "f" and np.isnan(found).any()) or any(one is None for one in found.tolist()):
        raise InputError("groups holds missing values; give the subject of each window, or leave such windows out")
    try:
        return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)
    except TypeError as error:
        raise InputError("groups mixes texts and numbers; give the subjects as one kind") from error


def _read_scale(scale: Any, count: int) -> NDArray[np.float32] | None:
    found = inputs.read_scale(scale, count)
    return None if found is None else np.asarray(found.numpy(), np.float32)


def _seed(random_state: Any) -> int:
    """Return the seed of a fit; a whole number is itself, as ``--seeds`` takes it."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


# The weights to begin with


@dataclass(frozen=True)
class _Start:
    """The weights that a fit begins with."""

    path: Path | None
    """None for a preset, whose weights are drawn."""
    preset: str | None
    config: ModelConfig
    fresh: bool
    """Whether no electrode was ever trained, so that none is refused for that."""
    words: str | None
    """A line for weights that are random."""


@contextlib.contextmanager
def _starting_with(model: Model, folder: Path) -> Iterator[_Start]:
    """Yield the weights that are meant; those of a Cerebro are written to the folder, so that it stays as it is."""
    if isinstance(model, Cerebro):
        path = folder / "start.safetensors"
        checkpoint.save(path, model, model.header)
        yield _Start(path, None, model.config, model.load_report is None, random_words(model, tokens=True))
        return
    if (name := _preset_name(model)) is not None:
        yield _Start(None, name, PRESETS[name].model, True, _random_preset(name))
        return
    found = find_checkpoint(model)
    with usable_weights(Path(found).expanduser(), lambda line: inputs.say(logging.WARNING, line)) as weights:
        path = hub.find(found if weights == Path(found).expanduser() else weights)
        yield _Start(path, None, checkpoint.read_header(path).model, False, None)


def _random_preset(name: str) -> str:
    return f"{name} is a preset: the weights of its encoder are random, and what comes of them is a baseline"


def _preset_name(model: Any) -> str | None:
    """Return the preset that a text names; a file or folder of that name comes first."""
    if not isinstance(model, str | Path):
        raise ConfigError(
            f"model is a {type(model).__name__}; give a checkpoint, the folder of a run, small-open, a preset "
            f"({', '.join(PRESETS)}) or a Cerebro"
        )
    return model if isinstance(model, str) and model in PRESETS and not Path(model).exists() else None


# Features


class CerebroFeatures(TransformerMixin, _OnWindows):  # type: ignore[misc]
    """Features of a frozen encoder: windows (n, channels, samples) or MNE Epochs in, (n, features) out.

    They are those of :meth:`cerebro_eeg.Cerebro.embed`. ``fit`` learns nothing: it loads the weights and the names of
    the channels. Arrays are not filtered: give windows that were filtered as the weights expect.

    Parameters
    ----------
    model
        A checkpoint, the folder of a run, a name on the Hub, ``"small-open"``, a preset (random weights) or a
        :class:`cerebro_eeg.Cerebro`, which is shared by clones and never changed.
    level, layer
        ``"window"`` gives the mean over all tokens; ``"channel"`` and ``"token"`` stand side by side in one row. A
        layer is a number of blocks; None runs all of them.
    ch_names, sfreq, unit
        The channels, rate in Hz and unit of arrays; None is the model's rate. Epochs know all three. ``fit`` and
        ``transform`` take them as well, also as routed metadata.
    rate, unknown, untrained, too_many
        The policies for other rates, and for labels and electrodes; see :func:`cerebro_eeg.match`.
    batch_size, device
        The windows that are computed at once, and where.
    random_state
        Draws the weights of a preset.

    Attributes
    ----------
    model_ : the model; channels_ : the channels that it reads; n_features_in_ : the channels that were given.
    """

    __metadata_request__fit = {"ch_names": True, "sfreq": True, "unit": True}  # noqa: RUF012
    __metadata_request__transform = {"ch_names": True, "sfreq": True, "unit": True, "scale": True}  # noqa: RUF012

    def __init__(
        self,
        model: Model = "small-open",
        *,
        level: Level = "window",
        layer: int | None = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit = "uV",
        rate: inputs.Rate = "error",
        unknown: Unknown = "error",
        untrained: Untrained = "error",
        too_many: TooMany = "error",
        batch_size: int = 64,
        device: str = "auto",
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.level = level
        self.layer = layer
        self.ch_names = ch_names
        self.sfreq = sfreq
        self.unit = unit
        self.rate = rate
        self.unknown = unknown
        self.untrained = untrained
        self.too_many = too_many
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any = None, *, ch_names: Names = None, sfreq: float | None = None, unit: Unit | None = None
    ) -> Self:
        """Load the weights and read the names of the channels; labels are not looked at."""
        model = self._load()
        with inputs.hushed():  # transform speaks of the channels
            given = self._open(X, model.config, ch_names, sfreq, unit)
            inputs.check_rate(given.sfreq, model.config.signal.sfreq, self.rate)
            montage = model.set_channels(given.labels)
        if given.width != len(given.labels):
            raise InputError(
                f"the windows have {given.width} channels, but {len(given.labels)} are named; the array is (windows, "
                "channels, samples), one name a channel"
            )
        self.model_ = model
        self.labels_, self.channels_ = given.labels, tuple(montage.names)
        self.n_features_in_, self.n_times_ = given.width, int(np.shape(given.x)[2])
        ratio = model.config.signal.sfreq / given.sfreq if self.rate == "resample" else 1.0
        self.n_times_read_ = math.ceil(self.n_times_ * ratio - 1e-6)
        return self

    def transform(
        self,
        X: Any,
        *,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[np.float32]:
        """Return the features of windows, one row each; ``scale`` is for models that ask for that of the recording."""
        check_is_fitted(self)
        given = self._open(X, self.model_.config, ch_names, sfreq, unit, self.labels_)
        found = self.model_.embed(
            given.x,
            ch_names=given.labels,
            sfreq=given.sfreq,
            unit=given.unit,
            level=self.level,
            layer=self.layer,
            scale=scale,
            batch_size=self.batch_size,
        )
        found = np.ascontiguousarray(found.reshape(len(found), -1))
        if found.shape[1] != (wanted := len(self.get_feature_names_out())):
            raise InputError(
                f"these windows have {found.shape[1]} features, and those of fit had {wanted}; give the same channels "
                "and samples, or use level='window'"
            )
        return found

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        *,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[np.float32]:
        """Do ``fit``, then ``transform``; both get what describes the windows."""
        fitted = self.fit(X, y, ch_names=ch_names, sfreq=sfreq, unit=unit)
        return fitted.transform(X, ch_names=ch_names, sfreq=sfreq, unit=unit, scale=scale)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns: cerebro0, or Cz_cerebro0 by channel, or Cz_t3_cerebro0 by token."""
        check_is_fitted(self)
        config, readout = self.model_.config, self.model_.readout
        own = self.level == "window" and self.layer is None and readout is not None
        width = width_of(readout.config, config) if own and readout is not None else config.width
        columns = [f"cerebro{number}" for number in range(width)]
        if self.level == "window":
            return np.array(columns, object)
        rows = list(row_names(config, self.channels_))
        if self.level == "token":
            count = config.patches.count(self.n_times_read_)
            rows = [f"{row}_t{place}" for row in rows for place in range(count)]
        return np.array([f"{row}_{column}" for row in rows for column in columns], object)

    def _load(self) -> Cerebro:
        """Return the model with the policies of this estimator. A Cerebro shares its weights, and keeps its own."""
        if isinstance(self.model, Cerebro):
            found = self.model
            words = random_words(found, tokens=True)
        elif (name := _preset_name(self.model)) is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_seed(self.random_state))
                found = Cerebro(config=name).eval()
            words = _random_preset(name)
        else:
            with inputs.hushed():
                found = load_model(self.model)
            words = random_words(found, tokens=True)
        if words is not None:
            inputs.say(logging.WARNING, words)
        if not isinstance(self.model, Cerebro):
            found.to(choose_device(self.device))
        found = copy.copy(found)  # a view: the same modules, and policies of its own
        found.rate, found.sfreq, found.n_times, found.n_chans = self.rate, found.config.signal.sfreq, None, None
        given = {"unknown": self.unknown, "untrained": self.untrained, "too_many": self.too_many}
        found.policies = {**found.policies, **given}
        return found


# Classifier and regressor


class _Trained(_OnWindows):
    """What classifier and regressor share: how a head or the whole model is fitted, and its outputs."""

    __metadata_request__fit = _REQUESTED
    __metadata_request__predict = _REQUESTED
    __metadata_request__score = _REQUESTED

    def __init__(
        self,
        model: Model = "small-open",
        *,
        freeze: bool = True,
        readout: ReadoutName = "auto",
        C: float | None = None,
        centring: bool = True,
        lora: int | None = None,
        few: bool = False,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        patience: int = 10,
        validation_fraction: float | None = 0.2,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit = "uV",
        rate: inputs.Rate = "error",
        unknown: Unknown = "error",
        untrained: Untrained = "error",
        too_many: TooMany = "error",
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.freeze = freeze
        self.readout = readout
        self.C = C
        self.centring = centring
        self.lora = lora
        self.few = few
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.ch_names = ch_names
        self.sfreq = sfreq
        self.unit = unit
        self.rate = rate
        self.unknown = unknown
        self.untrained = untrained
        self.too_many = too_many
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def save(self, folder: str | Path) -> Path:
        """Write the fitted model as a checkpoint folder, which ``cerebro-eeg predict`` and ``Cerebro`` read."""
        check_is_fitted(self)
        found: Path = self.model_.save_pretrained(folder)
        return found

    # ---- fitting ---------------------------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        task: ArrayTask,
        groups: Any,
        ch_names: Names,
        sfreq: float | None,
        unit: Unit | None,
        scale: Any,
        balanced: bool = False,
    ) -> None:
        """Fit the model by the code of ``finetune``, in a temporary folder."""
        self._check_settings()
        seed = _seed(self.random_state)
        with tempfile.TemporaryDirectory() as folder, unflushed(), _starting_with(self.model, Path(folder)) as start:
            given = self._open(X, start.config, ch_names, sfreq, unit)
            montage = _match_labels(given, start.config, self.unknown, self.too_many)
            read = _read(given, start.config, self.rate, montage)
            count = len(read.x_BCT)
            wanted = len(task.label_B) if task.label_B is not None else _length(task.target_BK)
            if wanted != count:
                raise InputError(f"there are {count} windows and {wanted} values of y; give one for each window")
            if start.path is None and (self.few or self.lora is not None):
                raise ConfigError(
                    f"few and lora adapt pre-trained weights, and {start.preset} is a preset, which has none; give a "
                    'checkpoint, such as "small-open"'
                )
            if start.words is not None and self.freeze:
                inputs.say(logging.WARNING, start.words)
            group_B = _read_groups(groups, count)
            store, windows = array_windows(
                read.x_BCT,
                read.channels,
                read.sfreq,
                start.config.signal,
                task,
                group_B=group_B,
                scale_B=_read_scale(scale, count),
            )
            split = self._split(windows, group_B, seed)
            self._warn_of_groups(group_B, split)
            options, seconds = self._options(seed, start, balanced), windows.samples / windows.sfreq
            out = Path(folder, "run")
            with _interruptible(), contextlib.nullcontext() if self.verbose else inputs.hushed():
                result = train_split(
                    store,
                    LabelledTask(task.name, task.kind, task.names, seconds, seconds, "interval"),
                    split,
                    out,
                    self._preset(start),
                    options,
                    Engine(device=self.device, readers=0),
                    start.path,
                    say=lambda line: inputs.say(logging.WARNING if self.verbose else logging.DEBUG, line),
                )
                model = Cerebro.from_pretrained(out / "model.safetensors")
            # One rule for all ways to ask: the class with the largest probability. predict_proba must agree with it.
            assert model.head is not None
            model.head = dataclasses.replace(model.head, threshold=None, threshold_level="unknown")
            self.model_ = model
            self.labels_, self.channels_ = given.labels, read.channels
            self.n_features_in_, self.n_times_ = given.width, int(read.x_BCT.shape[2])
            self.n_iter_, self.best_step_ = result.steps, result.chosen
            self.validation_score_, self.history_ = result.validation, _read_lines(out / "metrics.jsonl")
            self.choice_ = _read_json(out / "probe.json")
            self.electrode_policy_ = "as_is" if start.fresh else self.untrained

    def _check_settings(self) -> None:
        """Refuse parameters that do not go together, in the words of Python."""
        if self.readout != "auto" and self.readout not in READOUTS:
            raise ConfigError(
                f"readout is {self.readout!r}{did_you_mean(str(self.readout), READOUTS)}; choose auto or one of "
                f"{', '.join(READOUTS)}"
            )
        adapts = "few=True" if self.few else f"lora={self.lora}" if self.lora is not None else ""
        if adapts and self.freeze:
            raise ConfigError(
                f"{adapts} trains adapters in the encoder, and freeze=True keeps it as it is; say freeze=False"
            )
        if self.C is not None and not (math.isfinite(self.C) and self.C > 0):
            raise ConfigError(f"C is {self.C}; expected an inverse regularisation above 0, or None to choose it")
        share = self.validation_fraction
        if share is not None and not 0 < share < 1:
            raise ConfigError(f"validation_fraction is {share}; expected a share between 0 and 1, or None for none")
        if self.few and share is None:
            raise ConfigError("few=True needs held-out windows, which decide whether training has helped; give a share")

    def _split(self, windows: Windows, group_B: NDArray[np.int64] | None, seed: int) -> Split:
        """Return the windows to learn from and, for gradient steps, those that early stopping asks."""
        unit = "recording" if group_B is None else "subject"
        held = None
        if not self.freeze and self.validation_fraction is not None:
            place_B = np.arange(len(windows)) if group_B is None else group_B
            held = hold_out(windows, place_B, self.validation_fraction, seed)
        if held is None and self.few:
            raise InputError(
                "few=True needs subjects to hold out, and none can be without losing a class; give groups= with more "
                "subjects, or say few=False"
            )
        if held is None:
            return Split("", unit, windows, None, None)
        train, validation = windows.take(~held), windows.take(held)
        assert_disjoint({"train": train, "validation": validation})
        return Split("", unit, train, validation, None)

    def _warn_of_groups(self, group_B: NDArray[np.int64] | None, split: Split) -> None:
        """Warn where something is chosen on windows whose subjects are not known, or on too few subjects."""
        chooses = self.readout == "auto" or self.readout in STACKS or self.C is None
        asks = chooses if self.freeze else self.validation_fraction is not None
        if asks and group_B is None:
            what = "the read-out and its strength are" if self.freeze else "the end of training is"
            inputs.warn(
                f"no groups were given, so {what} chosen on windows whose subjects were learned from; pass groups="
                " with the subject of each window"
            )
        elif asks and self.freeze and group_B is not None and len(np.unique(group_B)) < LEAST_GROUPS:
            inputs.warn(
                f"groups has {len(np.unique(group_B))} subjects, and cross-validation needs {LEAST_GROUPS}: the usual "
                "strength is taken, and nothing is chosen"
            )
        elif asks and not self.freeze and split.validation is None:
            inputs.warn(
                "no subjects can be held out for early stopping without losing a class, or the only subject: all steps "
                "are made, and the last weights are taken"
            )

    def _options(self, seed: int, start: _Start, balanced: bool) -> FinetuneOptions:
        by_steps = not self.freeze
        readout: ReadoutName | None = None if by_steps and self.readout in ("auto", "mean") else self.readout
        return FinetuneOptions(
            task="y",
            seeds=(seed,),
            freeze=self.freeze,
            balanced=balanced,
            patience=self.patience,
            steps=self.steps,
            rate="as_is" if self.rate == "as_is" else "error",
            untrained="as_is" if start.fresh else self.untrained,
            lora=self.lora,
            few=self.few or None,
            readout=readout,
            centring=None if self.centring else False,
            strength=self.C,
        )

    def _preset(self, start: _Start) -> Preset:
        """Return the hyper-parameters that fit the weights, with those that the user gave."""
        name = start.preset or preset_for(None, start.config)[0]
        flags: dict[str, Any] = dict(few_subjects.HYPERPARAMETERS) if self.few else {}
        if self.epochs is not None:
            usual = PRESETS[name].finetune.warmup_epochs
            flags["finetune.epochs"] = self.epochs
            flags["finetune.warmup_epochs"] = min(usual, max(1, self.epochs // 2))
        if self.batch_size is not None:
            flags["finetune.batch_size"] = self.batch_size
        if self.learning_rate is not None:
            flags["finetune.peak_lr"] = self.learning_rate
        return choose(name, None, flags, ())

    # ---- outputs ---------------------------------------------------------------------------------------------------

    def _outputs(
        self, X: Any, groups: Any, ch_names: Names, sfreq: float | None, unit: Unit | None, scale: Any
    ) -> NDArray[np.float32]:
        """Return logits or values (B, K) by the code of ``evaluate``."""
        check_is_fitted(self)
        model, config = self.model_, self.model_.config
        given = self._open(X, config, ch_names, sfreq, unit, self.labels_)
        read = _read(given, config, self.rate, _match_labels(given, config, self.unknown, self.too_many))
        count, size = len(read.x_BCT), read.x_BCT.shape[2]
        if size != self.n_times_:
            raise InputError(f"the windows have {size} samples, and those of fit had {self.n_times_}; cut them alike")
        assert model.head is not None
        group_B = _read_groups(groups, count)
        task = ArrayTask(model.head.task, model.head.names)
        store, windows = array_windows(
            read.x_BCT,
            read.channels,
            read.sfreq,
            config.signal,
            task,
            group_B=group_B,
            scale_B=_read_scale(scale, count),
            together=True,
        )
        if model.head.centred:
            _warn_of_lone_windows(group_B, count)
        processes = ProcessGroup(device=choose_device(self.device))
        with inputs.hushed():
            trained = model.training_record.electrode_windows
            electrodes = electrodes_of([windows], trained, self.electrode_policy_)
        return head_outputs(model.to(processes.device), store, windows, processes, electrodes=electrodes)


def hold_out(windows: Windows, group_B: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_] | None:
    """Return which windows to hold out: about a share of the groups, each whole; None where that is not possible.

    Classes are spread evenly. A division that leaves a class without a window to learn from is not taken.
    """
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    groups = len(np.unique(group_B))
    if groups < 2:
        return None
    parts = min(groups, max(2, round(1 / share)))
    truth_B = np.zeros(len(windows), np.int64) if windows.target is not None else windows.label
    spread = windows.target is None and np.bincount(truth_B).max() >= parts
    kind = StratifiedGroupKFold if spread else GroupKFold
    classes = np.unique(truth_B)
    best: tuple[int, NDArray[np.bool_]] | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer subjects than folds is missing in some
        for fitted, held in kind(parts, shuffle=True, random_state=seed % 2**32).split(truth_B, truth_B, group_B):
            found = len(np.unique(truth_B[held]))
            if not len(held) or len(np.unique(truth_B[fitted])) < len(classes):
                continue
            if best is None or found > best[0]:
                chosen = np.zeros(len(windows), np.bool_)
                chosen[held] = True
                best = found, chosen
    return None if best is None else best[1]


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt be one: a grid search takes any other error for that of one fit, and goes on."""
    try:
        yield
    except StoppedError:
        raise KeyboardInterrupt from None


def _warn_of_lone_windows(group_B: NDArray[np.int64] | None, count: int) -> None:
    """Warn of subjects with a single window, from which a centred head can tell nothing."""
    sizes = np.array([count]) if group_B is None else np.bincount(group_B)
    if lone := int((sizes == 1).sum()):
        inputs.warn(
            f"{lone} of {len(sizes)} subjects have a single window, and this head compares a window with the others of "
            "its subject: give them together, or fit with centring=False"
        )


def _length(array: NDArray[Any] | None) -> int:
    return 0 if array is None else len(array)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _read_json(path: Path) -> dict[str, Any] | None:
    return parse_json(path.read_text(encoding="utf-8")) if path.exists() else None


class CerebroClassifier(ClassifierMixin, _Trained):  # type: ignore[misc]
    """A classifier of windows (n, channels, samples) or of MNE Epochs: a head on a frozen encoder, or fine-tuning.

    ``fit`` runs the code of ``cerebro-eeg finetune`` with the windows in memory, so it gives the same answers. The
    given model is never changed; :meth:`save` writes the fitted one as a checkpoint for ``cerebro-eeg predict``.

    Parameters
    ----------
    model
        A checkpoint, the folder of a run, a name on the Hub, ``"small-open"``, a preset (random weights) or a
        :class:`cerebro_eeg.Cerebro`, which is shared by clones and never changed.
    freeze
        True fits a linear head on what ``readout`` reads of the frozen encoder. False trains by gradient steps.
    readout
        What the head reads, as ``finetune --readout``: ``"mean"``, ``"simple"``, ``"hybrid"`` and others.
        ``"auto"`` chooses by cross-validation over ``groups``; with ``freeze=False`` it is the paper's mean.
    C
        The inverse regularisation of a head with ``freeze=True``; None chooses it by cross-validation over ``groups``.
        Features have a total variance of 1, so useful values lie between 0.1 and 60.
    centring
        Whether a head with ``freeze=True`` may subtract the mean over a subject's windows, if cross-validation prefers
        it. ``predict`` then subtracts the mean over each of its ``groups``, or over all windows that are given
        together. Say False where windows to predict come alone, or where those of a subject are all of one class.
    lora, few
        With ``freeze=False``: train adapters of this rank, or follow the recipe for few subjects (``finetune --few``).
    class_weight
        None, or "balanced" for classes that weigh the same.
    epochs, steps, batch_size, learning_rate
        The length and pace of gradient steps; None is that of the preset. ``steps`` comes before ``epochs``.
    patience, validation_fraction
        Training ends when so many epochs (with ``few``, periods of 20 steps) have not improved the score on this share
        of the groups, which is held out. None makes all steps, without early stopping.
    ch_names, sfreq, unit
        The channels, rate in Hz and unit of arrays; None is the model's rate. Epochs know all three. ``fit`` and
        ``predict`` take them as well, also as routed metadata.
    rate, unknown, untrained, too_many
        The policies for other rates, and for labels and electrodes; see :func:`cerebro_eeg.match`.
    device, random_state, verbose
        Where to compute; the seed of all draws; whether progress is printed.

    Attributes
    ----------
    classes_ : the classes, sorted; model_ : the fitted :class:`cerebro_eeg.Cerebro`; n_iter_ : gradient steps.
    choice_ : what cross-validation tried and chose; history_ : losses and scores of gradient steps.
    """

    __metadata_request__predict_proba = _REQUESTED
    __metadata_request__decision_function = _REQUESTED

    def __init__(
        self,
        model: Model = "small-open",
        *,
        freeze: bool = True,
        readout: ReadoutName = "auto",
        C: float | None = None,
        centring: bool = True,
        lora: int | None = None,
        few: bool = False,
        class_weight: Literal["balanced"] | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        patience: int = 10,
        validation_fraction: float | None = 0.2,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit = "uV",
        rate: inputs.Rate = "error",
        unknown: Unknown = "error",
        untrained: Untrained = "error",
        too_many: TooMany = "error",
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            freeze=freeze,
            readout=readout,
            C=C,
            centring=centring,
            lora=lora,
            few=few,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            patience=patience,
            validation_fraction=validation_fraction,
            ch_names=ch_names,
            sfreq=sfreq,
            unit=unit,
            rate=rate,
            unknown=unknown,
            untrained=untrained,
            too_many=too_many,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> Self:
        """Fit the model to windows and their classes; ``groups`` names the subject of each window."""
        if self.class_weight not in (None, "balanced"):
            raise ConfigError(f"class_weight is {self.class_weight!r}; choose None or 'balanced'")
        truth = _column(y)
        check_classification_targets(truth)
        classes, label_B = np.unique(truth, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"y has {len(classes)} class; expected two or more to tell apart")
        names = tuple(str(name) for name in classes.tolist())
        task = ArrayTask("classification", names, label_B.reshape(-1).astype(np.int64))
        self._fit(X, task, groups, ch_names, sfreq, unit, scale, self.class_weight == "balanced")
        self.classes_ = classes
        return self

    def decision_function(
        self,
        X: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[np.float32]:
        """Return logits (n, classes); of two classes, the second one's over the first one's, (n,)."""
        output_BK = self._outputs(X, groups, ch_names, sfreq, unit, scale)
        return output_BK[:, 1] - output_BK[:, 0] if len(self.classes_) == 2 else output_BK

    def predict_proba(
        self,
        X: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[np.float32]:
        """Return probabilities (n, classes), in the order of ``classes_``."""
        return softmax(self._outputs(X, groups, ch_names, sfreq, unit, scale))

    def predict(
        self,
        X: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[Any]:
        """Return the class of each window with the largest probability."""
        output_BK = self._outputs(X, groups, ch_names, sfreq, unit, scale)
        found: NDArray[Any] = self.classes_[output_BK.argmax(1)]
        return found

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> float:
        """Return the share of windows whose class is right."""
        found = self.predict(X, groups=groups, ch_names=ch_names, sfreq=sfreq, unit=unit, scale=scale)
        return float(accuracy_score(_column(y), found, sample_weight=sample_weight))


class CerebroRegressor(RegressorMixin, _Trained):  # type: ignore[misc]
    """A regressor of windows (n, channels, samples) or of MNE Epochs, of one value or several.

    Parameters and attributes are those of :class:`CerebroClassifier`, without classes. A head on a frozen encoder is
    ridge regression.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> Self:
        """Fit the model to windows and their values (n,) or (n, targets); ``groups`` names each window's subject."""
        try:
            target = np.asarray(y, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError("y holds something else than numbers; a regression needs numbers") from error
        if target.ndim not in (1, 2) or not target.size:
            raise InputError(f"y has the shape {target.shape}; expected a value, or a row of values, for each window")
        if not np.isfinite(target).all():
            raise InputError("y holds NaN or infinity; leave such windows out")
        self.one_target_ = target.ndim == 1
        target_BK = target.reshape(len(target), -1).astype(np.float32)
        names = ("y",) if target_BK.shape[1] == 1 else tuple(f"y{place}" for place in range(target_BK.shape[1]))
        task = ArrayTask("regression", names, None, target_BK)
        self._fit(X, task, groups, ch_names, sfreq, unit, scale)
        return self

    def predict(
        self,
        X: Any,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> NDArray[np.float32]:
        """Return a value for each window, (n,), or (n, targets) if ``y`` had two axes."""
        output_BK = self._outputs(X, groups, ch_names, sfreq, unit, scale)
        return output_BK[:, 0] if self.one_target_ else output_BK

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        ch_names: Names = None,
        sfreq: float | None = None,
        unit: Unit | None = None,
        scale: Any = None,
    ) -> float:
        """Return R2, averaged over targets."""
        found = self.predict(X, groups=groups, ch_names=ch_names, sfreq=sfreq, unit=unit, scale=scale)
        return float(r2_score(y, found, sample_weight=sample_weight))


def _column(y: Any) -> NDArray[Any]:
    """Return labels as one axis."""
    found = np.asarray(y)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise InputError(f"y has the shape {found.shape}; expected one class for each window")
    return found
