"""Cerebro, the encoder with a linear head for users, with braindecode's names of arguments (``n_chans``, ``sfreq``).

``inputs.py`` checks the names, rates and units of arrays. Training code passes a :class:`~cerebro_eeg.batch.Batch`,
which is not checked.

Legend: **B** windows, **C** channels, **T** samples, **N** patches, **D** width.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.electrodes import IDS
from cerebro_eeg.channels.match import ChannelMatch, check_policies, match
from cerebro_eeg.config import HeadConfig, ModelConfig, Preset, ReadoutConfig, Training, model_config
from cerebro_eeg.errors import ChannelError, ConfigError, InputError
from cerebro_eeg.model import hub, inputs, preparation, tensor_list
from cerebro_eeg.model.checkpoint import Header, LoadReport, load_into
from cerebro_eeg.model.encoder import Encoder, Tokens
from cerebro_eeg.model.live import Captured, Output, Precision
from cerebro_eeg.model.montages import Known, Montages, mixed
from cerebro_eeg.model.readouts import Readout, make_readout, width_of
from cerebro_eeg.model.weights import start_linear_layers
from cerebro_eeg.model.zoo import ZooModel

Level = Literal["window", "channel", "token"]
Task = Literal["classification", "regression"]
Unit = Literal["uV", "mV", "V"]


class Cerebro(hub.Shareable, ZooModel, nn.Module):
    """CEReBrO (Compact Encoder for Representations of Brain Oscillations) from Dimofte et al. (2025) [1]_.

    A Transformer encoder for EEG with any set of channels, and a linear head on the mean of its tokens. Without a head
    it is a feature extractor. Pre-training needs no labels; this class then fine-tunes or probes the encoder.

    **Patches as tokens.** Each channel is normalised by itself and cut into patches of a quarter of a second (64
    samples at 256 Hz). One linear layer turns a patch into a token. A learnable embedding of its position in time and
    one of its electrode are added. A window of C channels and N patches is thus a grid of C x N tokens. Electrodes are
    known by name, so that one model serves every montage, also bipolar ones.

    **Alternating attention.** Attention over all tokens of a window needs (C N)^2 scores. Here layers 1, 3, ... attend
    across the channels of one patch, and layers 2, 4, ... along the patches of one channel. Two layers connect every
    token with every other, with only C N (C + N) scores::

                  patch 0   1   2   3
        Fp1             o   x   o   o         layer 1 attends along x (all channels, one patch)
        C3              +   *   +   +         layer 2 attends along + (one channel, all patches)
        O1              o   x   o   o         * is the token in question

    **Masked reconstruction.** In pre-training (:class:`~cerebro_eeg.MaskedCerebro`) a learnable [MASK] token replaces
    half of the tokens, chosen at random. The encoder predicts their patches from the visible ones. The loss is the
    squared error of masked patches plus a tenth of that of visible patches.

    Shapes for B windows of C = 19 channels and 5 s at 256 Hz, with the preset ``"small"`` (8 blocks of width 192):

    ================  ===================  ===============  ====================================================
    stage             shape                example          code
    ================  ===================  ===============  ====================================================
    windows           (B, C, T)            (B, 19, 1280)    in microvolts, checked by ``model/inputs.py``
    rows              (R, T), R = B C      (19 B, 1280)     ``batch.py``: windows may differ in their channels
    patches           (R, N, L)            (19 B, 20, 64)   ``model/patches.py``: normalised, cut
    tokens            (R, N, D)            (19 B, 20, 192)  ``model/encoder.py``: embedding, position, electrode
    after all blocks  (R, N, D)            (19 B, 20, 192)  ``model/attention.py`` and an MLP in each block
    features          (B, D)               (B, 192)         the mean over all tokens of a window
    predictions       (B, n_outputs)       (B, 2)           ``final_layer``
    ================  ===================  ===============  ====================================================

    Parameters
    ----------
    n_outputs
        The number of classes or regression targets; with None the model returns features instead of predictions.
    n_chans, chs_info, ch_names
        The channels of the windows. The model knows a channel by the name of its electrode, so either ``chs_info``
        (``info["chs"]`` of MNE) or ``ch_names`` is needed before the first window.
    n_times, input_window_seconds
        Samples or seconds of a window; None accepts any length of at least one patch.
    sfreq
        The sampling rate of the windows in Hz; None for the rate of the config.
    config
        A preset or its name (``"small"``, ``"base"``, ``"large"``, ...), or a config.
    task
        The meaning of the outputs, ``"classification"`` or ``"regression"``.
    rate
        The policy when ``sfreq`` differs from the config: raise an error, resample, or use the samples as they are.
    unknown, untrained, duplicates, too_many, max_channels, pick, bipolar_ears
        The rules for matching channel names, see :func:`cerebro_eeg.match`; ``max_channels`` None for the config's.

    Examples
    --------
    >>> import torch
    >>> from cerebro_eeg import Cerebro
    >>> model = Cerebro(n_outputs=2, ch_names=["C3", "Cz", "C4"], sfreq=256)
    >>> windows = 20 * torch.randn(4, 3, 1280)  # 4 windows of 5 s in microvolts
    >>> model(windows).shape
    torch.Size([4, 2])
    >>> model.embed(windows).shape
    (4, 192)

    ``Cerebro.from_pretrained(folder, n_outputs=2, ...)`` starts from pre-trained weights, and :meth:`freeze` keeps them
    fixed for linear probing.

    References
    ----------
    .. [1] Dimofte, A., Bucagu, G. A., Ingolfsson, T. M., Wang, X., Cossettini, A., Benini, L., Li, Y. (2025). CEReBrO:
           Compact Encoder for Representations of Brain Oscillations Using Efficient Alternating Attention.
           arXiv:2501.10885. ``docs/paper.md`` lists every choice that the paper leaves open.
    """

    def __init__(
        self,
        n_outputs: int | None = None,
        n_chans: int | None = None,
        chs_info: Sequence[Mapping[str, Any]] | None = None,
        n_times: int | None = None,
        input_window_seconds: float | None = None,
        sfreq: float | None = None,
        *,
        ch_names: Sequence[str] | None = None,
        config: ModelConfig | Preset | str = "small",
        task: Task = "classification",
        rate: inputs.Rate = "error",
        unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
        untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
        duplicates: Literal["error", "first"] = "error",
        too_many: Literal["error", "nearest"] = "error",
        max_channels: int | None = None,
        pick: Sequence[str] | None = None,
        bipolar_ears: bool = False,
    ) -> None:
        super().__init__()
        self.config = model_config(config)
        described = HeadConfig(
            1 if n_outputs is None else n_outputs, task
        )  # raises for a wrong task, also where there are no outputs
        self.head = None if n_outputs is None else described
        self._record = Training()
        self._compiled_windows = torch.zeros((), dtype=torch.int64)
        self._named = Montages()
        self.load_report: LoadReport | None = None
        self.frozen = False
        self.rate: inputs.Rate = rate
        self.sfreq = inputs.read_rate(sfreq, self.config.signal.sfreq)
        inputs.check_rate(self.sfreq, self.config.signal.sfreq, rate)
        self.n_times = _agree_times(n_times, input_window_seconds, self.sfreq, self.config, rate)
        most = self.config.max_channels if max_channels is None else max_channels
        check_policies(unknown, untrained, duplicates, too_many, most)
        self.policies: dict[str, Any] = {
            "unknown": unknown,
            "untrained": untrained,
            "duplicates": duplicates,
            "too_many": too_many,
            "max_channels": most,
            "pick": pick,
            "bipolar_ears": bipolar_ears,
        }
        self.encoder = Encoder(self.config)
        self.encoder.mask_token.requires_grad_(False)  # nothing is masked here; DDP must not wait for its gradient
        self.readout: Readout | None = None
        self.final_layer: nn.Module = nn.Identity()
        if n_outputs is not None:
            self.reset_head(n_outputs)
        if n_chans is not None and n_chans < 1:
            raise ConfigError(f"n_chans is {n_chans}; it must be at least 1")
        self.n_chans = n_chans
        self.chs_info: Sequence[Mapping[str, Any]] | None = None
        self.channels: ChannelMatch | None = None
        if chs_info is not None or ch_names is not None:
            self.set_channels(ch_names, chs_info)

    # ---- predictions and features ----------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor | Batch,
        return_features: bool = False,
        scale: Tensor | float | None = None,
        noise_K2B: Tensor | None = None,
        ch_names: Sequence[str] | None = None,
        channel_positions: Any = None,
    ) -> Tensor | dict[str, Any]:
        """Return predictions (B, n_outputs) for windows (B, C, T) in microvolts, or features (B, D) without a head.

        ``ch_names`` names the channels of this call, in place of the model's own. They are matched by the rules of the
        model, once for each list of names. ``channel_positions`` are x, y and z in metres, (C, 3) or (B, C, 3), as MNE
        has them. Names decide: with ``unknown="nearest"`` positions place the labels that are not understood, and
        otherwise they have no effect. Without any names, they place the channels of a whole cap.

        ``return_features`` returns ``{"features": (B, D), "tokens": (B, C, N, D), "cls_token": None}`` instead; the
        features are what the head reads.
        ``scale`` is the scale of the recordings in microvolts, for configs that ask for it; a batch has its own.
        ``noise_K2B`` decides on drop path. In training, the model counts the windows of each electrode, so that a
        checkpoint knows which electrodes were trained.
        """
        if isinstance(x, Batch) and scale is not None:
            raise InputError("a Batch carries the scale of its recordings itself (scale_R); give it there")
        if isinstance(x, Batch) and not (ch_names is None and channel_positions is None):
            raise InputError("a Batch carries its channels itself (channels_R2); leave out ch_names, channel_positions")
        batch = x if isinstance(x, Batch) else self._checked(x, scale, ch_names, channel_positions)
        if return_features:
            tokens = self.encode(batch, noise_K2B=noise_K2B)
            features_BP = tokens.per_window() if self.readout is None else self.features(batch, noise_K2B)
            return {"features": features_BP, "tokens": tokens.layout.grid(tokens.x_RND), "cls_token": None}
        return self.final_layer(self.features(batch, noise_K2B))

    def features(self, batch: Batch, noise_K2B: Tensor | None = None) -> Tensor:
        """Return what the head reads of a batch, (B, P): the mean of the last tokens, or what its read-out computes."""
        if self.readout is None:
            return self.encode(batch, noise_K2B=noise_K2B).per_window()
        found_BP: Tensor = self.readout(batch, self.encoder, noise_K2B)
        return found_BP

    def encode(self, batch: Batch, layer: int | None = None, noise_K2B: Tensor | None = None) -> Tokens:
        """Return the tokens of a batch, after all blocks or after the first ``layer`` blocks."""
        tokens: Tokens = self.encoder(batch, noise_K2B=noise_K2B, layer=layer)
        return tokens

    @torch.no_grad()
    def embed(
        self,
        x: Any,
        *,
        ch_names: Sequence[str] | None = None,
        chs_info: Sequence[Mapping[str, Any]] | None = None,
        sfreq: float | None = None,
        unit: Unit = "uV",
        level: Level = "window",
        layer: int | None = None,
        scale: Any = None,
        batch_size: int = 64,
    ) -> NDArray[np.float32]:
        """Return features of windows (B, C, T), or of a recording (C, T), which is cut into windows.

        ``x`` may be a ``Raw`` or ``Epochs`` object of MNE, which knows its channels, rate and unit. A Raw is filtered
        as the weights expect, and Epochs are taken as they are, with a row for each: see :func:`cerebro_eeg.embed`.

        ``level`` is ``"window"`` (B, D), ``"channel"`` (B, C, D) or ``"token"`` (B, C, N, D). Channels keep their order
        without those that were dropped (``model.channels`` reports them). With phase each channel has two rows. Windows
        of a model whose head has a read-out of its own give the features of that read-out, unless ``layer`` is given.

        Arrays are not filtered, and a warning tells where they plainly should have been. ``batch_size`` counts for
        arrays.
        """
        if unit not in inputs.MICROVOLTS:
            raise InputError(f"unit is {unit!r}; choose one of {', '.join(inputs.MICROVOLTS)}")
        if level not in ("window", "channel", "token"):
            raise InputError(f"level is {level!r}; choose window, channel or token")
        if layer is not None and (not isinstance(layer, int) or not 0 <= layer <= self.config.depth):
            raise InputError(f"layer is {layer!r}; the encoder has layers 0 (embeddings) to {self.config.depth}")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size!r}; expected a whole number of at least 1")
        if inputs.is_mne(x):
            given = {"ch_names": ch_names, "chs_info": chs_info, "sfreq": sfreq, "scale": scale}
            return self._embed_mne(x, level, layer, [name for name, value in given.items() if value is not None])
        rate = inputs.read_rate(sfreq, self.sfreq)
        inputs.check_rate(rate, self.config.signal.sfreq, self.rate)
        windows = inputs.read_array(x) * inputs.MICROVOLTS[unit]
        montage = self._montage() if ch_names is None and chs_info is None else self._match(ch_names, chs_info)
        if windows.dim() == 2:
            windows, rate = self._cut(self._select(windows[None], montage, None)[0], rate)
        else:
            own = self.n_times or self.config.window
            windows = self._select(inputs.without_last(windows, own), montage, self.n_times)
        self._doubt(windows, rate)
        scale_B = inputs.read_scale(scale, len(windows))
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            found = [
                self.at_level(self._batch(part, montage, rate, part_scale), level, layer).float().cpu().numpy()
                for part, part_scale in inputs.pieces(windows, scale_B, batch_size)
            ]
        finally:
            for module, mode in modes:
                module.training = mode
        features = np.concatenate(found)
        tensor_list.check_results(features, self)
        return features

    def _embed_mne(self, x: Any, level: Level, layer: int | None, given: list[str]) -> NDArray[np.float32]:
        """Return features of an object of MNE by the way of all recordings, with the rules of this model."""
        if given:
            raise InputError(
                f"{given[0]} was given with a {type(x).__name__} object, which knows its channels, rate and unit; "
                f"leave {given[0]} out"
            )
        import cerebro_eeg  # its front door: the filters lie in a layer beside this one

        own = {name: self.policies[name] for name in ("unknown", "untrained", "too_many")}
        found: Any = cerebro_eeg.embed(x, self, level=level, layer=layer, **own)
        features: NDArray[np.float32] = found.features
        return features

    def _doubt(self, windows_BCT: Tensor, rate: float) -> None:
        """Warn of windows that plainly were not filtered as the weights expect."""
        if (line := preparation.doubt_line(windows_BCT, rate, self.config.signal)) is not None:
            inputs.warn(line)

    def at_level(self, batch: Batch, level: Level, layer: int | None = None) -> Tensor:
        """Return features of a batch by window, channel or token; windows of all layers give what the head reads."""
        if level == "window" and layer is None:
            return self.features(batch)
        tokens = self.encode(batch, layer)
        if level == "window":
            return tokens.per_window()
        return tokens.per_channel() if level == "channel" else tokens.layout.grid(tokens.x_RND)

    def captured(
        self,
        windows: int = 1,
        n_times: int | None = None,
        *,
        level: Output = "output",
        precision: Precision = "auto",
        compile: bool = False,
    ) -> Captured:
        """Prepare this model for many windows of one shape: ``fast = model.captured()``, then ``fast(x)``.

        On a CUDA GPU the model becomes a CUDA graph, which is many times as fast for a single window. On a CPU its
        weights are stored in the order that the CPU reads. Channels are those of the model; ``n_times`` is by default
        the model's or else the config's window. ``level`` is ``"output"`` for the result of ``model(x)``, or a level of
        :meth:`embed`. ``precision`` is ``"bf16"``, ``"fp32"`` or ``"auto"``: bf16 where a GPU has it, else the
        precision of the weights. ``compile`` has an effect on CUDA only.

        The captured model shares the weights: values that change in place count from the next call on. After a part of
        the model was replaced or moved, or got a hook, the next call raises an error that asks to capture again.
        """
        if type(windows) is not int or windows < 1:
            raise ConfigError(f"windows is {windows!r}; expected a whole number of at least 1")
        samples = n_times if n_times is not None else self.n_times or self.config.window
        if not isinstance(samples, int) or samples != (self.n_times or samples):
            raise ConfigError(f"n_times is {n_times!r}; the model was made for n_times={self.n_times}")
        if self.rate == "resample" and not inputs.same_rate(self.sfreq, self.config.signal.sfreq):
            raise ConfigError(
                f"a captured model does not resample; bring the stream from {self.sfreq:.10g} to "
                f"{self.config.signal.sfreq:.10g} Hz before it is cut into windows"
            )
        _agree_times(samples, None, self.sfreq, self.config, self.rate)
        return Captured(self, self._montage(), windows, samples, level, precision, compile)

    # ---- channels, head, freezing ----------------------------------------------------------------------------------

    def set_channels(
        self, ch_names: Sequence[str] | None = None, chs_info: Sequence[Mapping[str, Any]] | None = None
    ) -> ChannelMatch:
        """Set the channels of the windows, and return the match of each label with an electrode."""
        found = self._match(ch_names, chs_info)
        if self.n_chans is not None and self.n_chans != len(found.rows):
            raise InputError(f"n_chans is {self.n_chans}, but {len(found.rows)} channels are named; make them agree")
        self._count()
        self.channels, self.n_chans, self.chs_info = found, len(found.rows), chs_info
        return found

    def reset_head(self, n_outputs: int, names: Sequence[str] = (), readout: ReadoutConfig | None = None) -> None:
        """Replace the head by a new linear layer; ``names`` are the names of its outputs.

        It reads the mean of the last tokens, as in the paper, or what ``readout`` says.
        """
        task, reads = self.head.task if self.head is not None else "classification", readout or ReadoutConfig()
        self.head = HeadConfig(n_outputs, task, tuple(names), readout=reads)
        like = self.encoder.positions
        found = make_readout(reads, self.config)
        self.readout = None if found is None else found.to(like)
        self.final_layer = nn.Linear(width_of(reads, self.config), n_outputs, bias=self.config.bias).to(like)
        start_linear_layers(self.final_layer)

    @property
    def needs_scale(self) -> bool:
        """Whether windows need the scale of their recording."""
        encoder = self.config.normalization == "recording" or self.config.amplitude
        return encoder or (self.readout is not None and self.readout.needs_scale)

    @property
    def needs_encoder(self) -> bool:
        """Whether the head, or the features without one, read the encoder: simple features alone do not."""
        return self.readout is None or bool(self.readout.layers())

    def freeze(self) -> Self:
        """Freeze the encoder for linear probing: it gets no gradient, stays in eval mode, and nothing in it changes."""
        return self._set_frozen(True)

    def unfreeze(self) -> Self:
        """Make the encoder learn again, for full fine-tuning."""
        return self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> Self:
        self.frozen = frozen
        unused = (self.encoder.mask_token, self.encoder.pad_token)
        for parameter in self.encoder.parameters():
            parameter.requires_grad_(not frozen and not any(parameter is token for token in unused))
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen encoder stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        self._count()
        return self

    @property
    def training_record(self) -> Training:
        """The windows that trained this model, with those of compiled calls."""
        self._count()
        return self._record

    @training_record.setter
    def training_record(self, record: Training) -> None:
        self._count()
        self._record = record

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, with all windows counted."""
        self._count()
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return state

    @property
    def n_outputs(self) -> int | None:
        """The number of outputs of the head; None for a feature extractor."""
        return None if self.head is None else self.head.n_outputs

    @property
    def input_window_seconds(self) -> float | None:
        """The length of a window in seconds; None if it is not fixed."""
        return None if self.n_times is None else self.n_times / self.sfreq

    @property
    def input_shape(self) -> tuple[int, int | None, int | None]:
        """The shape of a window, (1, channels, samples), with None for a number that is not fixed."""
        return 1, self.n_chans, self.n_times

    # ---- files -----------------------------------------------------------------------------------------------------

    @property
    def header(self) -> Header:
        """The description of this model in a checkpoint."""
        config, head = self.config, self.head
        if head is not None:  # the head learned from windows of this rate and length; the encoder may have seen others
            head = dataclasses.replace(head, samples=self.n_times)
            if self.rate == "as_is":
                config = dataclasses.replace(config, signal=dataclasses.replace(config.signal, sfreq=self.sfreq))
            known = isinstance(self.final_layer, nn.Linear | nn.Identity)
            if not known and not tensor_list.adapted(self.final_layer.state_dict()):  # saving speaks of adapters
                kind = type(self.final_layer).__name__
                raise ConfigError(f"final_layer is a {kind}; a checkpoint holds one linear layer: use reset_head")
        return Header(config, head=head, training=self.training_record)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        n_outputs: int | None = None,
        n_chans: int | None = None,
        chs_info: Sequence[Mapping[str, Any]] | None = None,
        n_times: int | None = None,
        input_window_seconds: float | None = None,
        sfreq: float | None = None,
        *,
        ch_names: Sequence[str] | None = None,
        window: int | None = None,
        task: Task | None = None,
        rate: inputs.Rate = "error",
        unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
        untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
        duplicates: Literal["error", "first"] = "error",
        too_many: Literal["error", "nearest"] = "error",
        max_channels: int | None = None,
        pick: Sequence[str] | None = None,
        bipolar_ears: bool = False,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Self:
        """Load a checkpoint from a file, a folder or the Hub, or ``"small-open"``, which comes with the package.

        ``model.load_report`` says what was loaded. The file must hold the whole encoder. Another ``n_outputs`` than
        the file's makes a new head. Another ``window`` changes the length of the position table. The report mentions
        both. The other arguments are those of the class.
        """
        header, tensors = hub.load(source, revision, token, cache_dir, force_download, local_files_only)
        head = _choose_head(header.head, n_outputs, task)
        if header.head is not None and head is not None and head.task != header.head.task:
            tensors = {name: t for name, t in tensors.items() if not name.startswith("final_layer.")}
        if head is not None and n_times is None and input_window_seconds is None:
            n_times = head.samples
        model = cls(
            None if head is None else head.n_outputs,
            n_chans,
            n_times=n_times,
            input_window_seconds=input_window_seconds,
            sfreq=sfreq,
            config=header.model if window is None else dataclasses.replace(header.model, window=window),
            task="classification" if head is None else head.task,
            rate=rate,
            unknown=unknown,
            untrained=untrained,
            duplicates=duplicates,
            too_many=too_many,
            max_channels=max_channels,
            pick=pick,
            bipolar_ears=bipolar_ears,
        )
        if head is not None and head.readout != ReadoutConfig():
            model.reset_head(head.n_outputs, head.names, head.readout)
        model.head, model.training_record = head, header.training
        model.load_report = load_into(model, header, tensors, str(source))
        inputs.say(logging.INFO if model.load_report.exact else logging.WARNING, model.load_report)
        if chs_info is not None or ch_names is not None:
            model.set_channels(ch_names, chs_info)
        return model.eval()

    # ---- from arrays to batches ------------------------------------------------------------------------------------

    def _match(
        self, ch_names: Sequence[str] | None, chs_info: Sequence[Mapping[str, Any]] | None, places: Any = None
    ) -> ChannelMatch:
        labels, positions, kinds = inputs.read_names(ch_names, chs_info)
        positions = positions if places is None else places
        if not self.policies["unknown"].startswith("nearest"):
            positions = None  # without "nearest" they have no effect, so they need not be valid
        trained = None  # in a new model no electrode is trained, so none is refused for that
        if self.load_report is not None:
            trained = {name: n for name, n in self.training_record.electrode_windows.items() if n and name in IDS}
            if not trained and self.policies["untrained"] != "as_is":
                raise ChannelError(
                    "the checkpoint records no training, so the row of every electrode is random; train it first, or "
                    "ask for untrained='as_is' to use it all the same"
                )
        found = match(labels, positions=positions, kinds=kinds, trained=trained, **self.policies)
        left_out = len(found.channels) < len(found.rows) or any(row.outcome == "nearest" for row in found.rows)
        inputs.say(logging.WARNING if left_out else logging.DEBUG, found.summary())
        return found

    def _montage(self) -> ChannelMatch:
        if self.channels is None:
            raise InputError(
                "the channels are not named, and CEReBrO knows a channel by its electrode, never by its place in the "
                'array; pass ch_names=["Fp1", ...] or chs_info=raw.info["chs"]'
            )
        return self.channels

    def _checked(
        self, x: Tensor, scale: Tensor | float | None, ch_names: Sequence[str] | None = None, positions: Any = None
    ) -> Batch:
        """Check windows and return them as a batch; in training, count them for their electrodes."""
        if not isinstance(x, Tensor):
            raise InputError(f"a {type(x).__name__} was given; pass a torch tensor or a Batch, or give arrays to embed")
        scale_B = _scale(scale, x)
        if ch_names is None and (positions is None or self.channels is not None):
            montage = self._montage()
            batch = self._batch(self._select(x, montage, self.n_times), montage, self.sfreq, scale_B)
            self._count_call(x, montage, self._compiled_windows)
            return batch
        if (known := self._named.known(ch_names)) is not None:
            return self._of_montage(x, known, scale_B)
        given = x, ch_names, positions, self.policies, self._match_named
        if torch.compiler.is_compiling():
            from cerebro_eeg.model import outside

            found = outside.find(self._named, *given)
        else:
            found = self._named.find(*given)
        if found[0][1] is None:
            return self._of_montage(x, found[0][0], scale_B)
        parts = [(self._of_montage(x[which.to(x.device)], known, None), which) for known, which in found]
        return mixed(parts, scale_B)

    def _of_montage(self, x: Tensor, known: Known, scale_B: Tensor | None) -> Batch:
        """Check windows of a montage that the call has named, and return them as a batch."""
        batch = self._batch(self._select(x, known.match, self.n_times), known.match, self.sfreq, scale_B)
        self._count_call(x, known.match, known.windows)
        return batch

    def _match_named(self, labels: Sequence[str], positions: Any) -> ChannelMatch:
        return self._match(labels, None, positions)

    def _count_call(self, x: Tensor, montage: ChannelMatch, compiled: Tensor) -> None:
        """Count windows that the encoder learns from; inside of compiled code in a tensor of the montage."""
        if self.training and torch.is_grad_enabled() and not self.frozen and not _is_exporting():
            if torch.compiler.is_compiling():  # a number would be a constant of the graph, and compile at every call
                compiled.add_(len(x))
            else:
                self._record_windows(len(x), montage)

    def _record_windows(self, windows: int, montage: ChannelMatch) -> None:
        used = {e for c in montage.channels for e in (c.anode, c.cathode) if e is not None}
        self._record = self._record.plus(windows, used)

    def _count(self) -> None:
        """Add windows of compiled calls to the record, unless torch compiles this. All had the present channels."""
        if torch.compiler.is_compiling() or self._compiled_windows.is_meta:
            return
        counts = [(known.windows, known.match) for known in self._named.all()]
        for compiled, montage in [(self._compiled_windows, self.channels), *counts]:
            if montage is not None and (windows := int(compiled)):
                compiled.zero_()
                self._record_windows(windows, montage)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move the model, as all ways of torch to do so end here, with its counter of compiled windows."""
        self._count()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = self.encoder.positions.device
        self._compiled_windows = torch.zeros((), dtype=torch.int64, device=device)
        for known in self._named.all():
            known.windows = torch.zeros((), dtype=torch.int64, device=device)
        return self

    def _select(self, x_BCT: Tensor, montage: ChannelMatch, n_times: int | None) -> Tensor:
        """Check shape and values of windows, and return the channels that matched.

        While torch compiles or exports, there are no values to check: NaN gives NaN. Shapes are checked at every call.
        """
        inputs.check_shape(x_BCT, montage, n_times)
        kept_BCT = x_BCT[:, list(montage.index)] if len(montage.index) < x_BCT.shape[1] else x_BCT
        if not torch.compiler.is_compiling():
            inputs.check_values(kept_BCT, [montage.rows[i].label for i in montage.index])
        return kept_BCT

    def _cut(self, x_CT: Tensor, rate: float) -> tuple[Tensor, float]:
        """Resample a whole recording, cut it into windows of the model's length, and return them with their rate."""
        samples, wanted = self.n_times or self.config.window, self.config.signal.sfreq
        if self.rate == "resample" and not inputs.same_rate(rate, wanted):
            samples = self.config.window if self.n_times is None else round(self.n_times * wanted / self.sfreq)
            x_CT, rate = inputs.resample(x_CT, rate, wanted), wanted
        return inputs.cut(x_CT, samples), rate

    def _batch(self, x_BCT: Tensor, montage: ChannelMatch, rate: float, scale_B: Tensor | None) -> Batch:
        """Move windows to the model's device and rate, in at least float32, so that normalisation is exact enough."""
        like = self.encoder.positions
        x_BCT = x_BCT.to(like.device, torch.promote_types(like.dtype, torch.float32))
        if self.rate == "resample" and not inputs.same_rate(rate, self.config.signal.sfreq):
            x_BCT = inputs.resample(x_BCT, rate, self.config.signal.sfreq)
        return Batch.dense(x_BCT, torch.tensor(montage.ids, device=like.device), scale_B)


def _is_exporting() -> bool:
    """Return whether ``torch.export`` runs this. Torch 2.11 says that it exports while it compiles, too."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def _scale(scale: Tensor | float | None, x_BCT: Tensor) -> Tensor | None:
    return None if scale is None else torch.as_tensor(scale, device=x_BCT.device).expand(len(x_BCT))


def _agree_times(
    n_times: int | None, seconds: float | None, sfreq: float, config: ModelConfig, rate: str
) -> int | None:
    """Return the samples of a window, given samples or seconds; raise where not even one patch fits."""
    if seconds is not None:
        if not 0 < seconds < 1e6:
            raise ConfigError(f"input_window_seconds is {seconds}; expected a positive number of seconds")
        from_seconds = round(seconds * sfreq)
        if n_times is not None and n_times != from_seconds:
            raise ConfigError(
                f"n_times is {n_times}, but input_window_seconds={seconds:g} at {sfreq:g} Hz gives {from_seconds}; "
                "give one"
            )
        n_times = from_seconds
    if n_times is None:
        return None
    fed = round(n_times * config.signal.sfreq / sfreq) if rate == "resample" else n_times
    if config.patches.count(fed) < 1:
        raise ConfigError(
            f"n_times is {n_times}; a window needs at least {config.patches.shortest()} samples for a patch"
        )
    return n_times


def _choose_head(stored: HeadConfig | None, n_outputs: int | None, task: Task | None) -> HeadConfig | None:
    """Return the head that the caller asks for, or else the checkpoint's own."""
    if stored is None:
        if n_outputs is None and task is not None:
            raise ConfigError(f"task={task!r} needs n_outputs: the checkpoint has no head")
        return None if n_outputs is None else HeadConfig(n_outputs, task or "classification")
    asked = (stored.n_outputs if n_outputs is None else n_outputs, task or stored.task)
    return stored if asked == (stored.n_outputs, stored.task) else HeadConfig(*asked, samples=stored.samples)
