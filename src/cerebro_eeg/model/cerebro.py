"""Cerebro: the encoder with a linear head, as a user meets it, in the words of the field (``n_chans``, ``sfreq``, ...).

This is the door: arrays come in with their channel names, rate and unit, and are checked before the model sees them.
Behind it everything speaks of batches and rows. Training code passes a :class:`~cerebro_eeg.batch.Batch`, unchecked.

Legend: **B** windows, **C** channels, **T** samples, **N** patches, **D** width.
"""

import dataclasses
import logging
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels import ChannelMatch, match
from cerebro_eeg.config import HeadConfig, ModelConfig, Training, preset
from cerebro_eeg.electrodes import IDS
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model import hub
from cerebro_eeg.model.checkpoint import Header, LoadReport, load_into, read
from cerebro_eeg.model.encoder import Encoder, Tokens, start_linear_layers

log = logging.getLogger("cerebro_eeg")

Rate = Literal["error", "resample", "as_is"]
Level = Literal["window", "channel", "token"]
Unit = Literal["uV", "mV", "V"]
MICROVOLTS: Mapping[str, float] = {"uV": 1.0, "mV": 1e3, "V": 1e6}
# Scalp EEG deviates from its median by some microvolts to some hundreds; beyond this range a unit is likely wrong.
PLAUSIBLE_UV = (0.1, 1000.0)


class Cerebro(nn.Module):
    """CEReBrO with a linear head on its pooled tokens, or without one as a feature extractor.

    Parameters
    ----------
    n_outputs
        Classes or regression targets; None gives features instead of predictions.
    n_chans, chs_info, ch_names
        The channels of the windows that will come. The model knows a channel by its electrode's name, so either
        ``chs_info`` (``info["chs"]`` of MNE) or ``ch_names`` is needed before the first window.
    n_times, input_window_seconds
        Samples or seconds of a window; None accepts any length that gives a patch.
    sfreq
        Rate of the windows that will come; None for the rate of the config.
    config
        A preset's name or a config.
    task
        What the outputs are.
    rate
        What to do when ``sfreq`` is not the config's: refuse, resample, or take the samples as they are.
    unknown, untrained, duplicates, too_many, max_channels, pick, bipolar_ears
        How channel names are matched, see :func:`cerebro_eeg.match`; ``max_channels`` None for the config's.
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
        config: ModelConfig | str = "small",
        task: Literal["classification", "regression"] = "classification",
        rate: Rate = "error",
        unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
        untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
        duplicates: Literal["error", "first"] = "error",
        too_many: Literal["error", "nearest"] = "error",
        max_channels: int | None = None,
        pick: Sequence[str] | None = None,
        bipolar_ears: bool = False,
    ) -> None:
        super().__init__()
        self.config = preset(config).model if isinstance(config, str) else config
        self.head = None if n_outputs is None else HeadConfig(n_outputs, task)
        self.training_record = Training()
        self.load_report: LoadReport | None = None
        self.frozen = False
        self.rate: Rate = rate
        self.sfreq = self.config.signal.sfreq if sfreq is None else float(sfreq)
        self._check_rate(self.sfreq)
        self.n_times = _agree_times(n_times, input_window_seconds, self.sfreq)
        self.policies: dict[str, Any] = {
            "unknown": unknown,
            "untrained": untrained,
            "duplicates": duplicates,
            "too_many": too_many,
            "max_channels": self.config.max_channels if max_channels is None else max_channels,
            "pick": pick,
            "bipolar_ears": bipolar_ears,
        }
        self.encoder = Encoder(self.config)
        self.encoder.mask_token.requires_grad_(False)  # nothing is masked here; DDP must not wait for its gradient
        self.final_layer: nn.Module = nn.Identity()
        if self.head is not None:
            self.reset_head(self.head.n_outputs)
        self.n_chans = n_chans
        self.channels: ChannelMatch | None = None
        if chs_info is not None or ch_names is not None:
            self.set_channels(ch_names, chs_info)

    # ---- what goes in and comes out --------------------------------------------------------------------------------

    def forward(
        self, x: Tensor | Batch, return_features: bool = False, scale: Tensor | float | None = None
    ) -> Tensor | dict[str, Any]:
        """Predictions (B, n_outputs) for windows (B, C, T) in microvolts, or features (B, D) without a head.

        ``return_features`` gives ``{"features": (B, D), "tokens": (B, C, N, D), "cls_token": None}`` instead.
        ``scale`` is the scale of the recordings in microvolts, for configs that ask for it.
        """
        batch = x if isinstance(x, Batch) else self._batch(x, self._montage(), self.sfreq, scale)
        tokens = self.encode(batch)
        features_BD = tokens.per_window()
        if return_features:
            grid_BCND = tokens.layout.grid(tokens.x_RND)
            return {"features": features_BD, "tokens": grid_BCND, "cls_token": None}
        return self.final_layer(features_BD)

    def encode(self, batch: Batch, layer: int | None = None) -> Tokens:
        """Tokens of a batch, after all blocks or after the first ``layer`` of them; no gradient when frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens: Tokens = self.encoder(batch, layer=layer)
        return tokens

    @torch.no_grad()
    def embed(
        self,
        x: ArrayLike,
        *,
        ch_names: Sequence[str] | None = None,
        chs_info: Sequence[Mapping[str, Any]] | None = None,
        sfreq: float | None = None,
        unit: Unit = "uV",
        level: Level = "window",
        layer: int | None = None,
        scale: ArrayLike | None = None,
        batch_size: int = 64,
    ) -> NDArray[np.float32]:
        """Features of windows (B, C, T), or of one recording (C, T), which is cut into windows of the config's length.

        ``level`` is ``"window"`` (B, D), ``"channel"`` (B, C, D) or ``"token"`` (B, C, N, D). Channels keep their
        order; those that the match report (``model.channels``) drops are left out.
        """
        if unit not in MICROVOLTS:
            raise InputError(f"unit is {unit!r}; choose one of {', '.join(MICROVOLTS)}")
        self._check_layer(layer)
        sfreq = self.sfreq if sfreq is None else float(sfreq)
        self._check_rate(sfreq)
        new = ch_names is not None or chs_info is not None
        montage = self._match(ch_names, chs_info) if new else self._montage()
        x_BCT = _windows(torch.as_tensor(np.asarray(x, dtype=np.float32)), self._samples(sfreq)) * MICROVOLTS[unit]
        scales = None if scale is None else torch.as_tensor(np.asarray(scale, np.float32)).reshape(-1)
        was_training = self.training
        self.eval()
        try:
            parts = [
                self._level(self.encode(batch, layer), level)
                for batch in self._batches(x_BCT, montage, sfreq, scales, batch_size)
            ]
        finally:
            self.train(was_training)
        return np.concatenate(parts)

    def _batches(
        self, x_BCT: Tensor, montage: ChannelMatch, sfreq: float, scale: Tensor | None, size: int
    ) -> "list[Batch]":
        self._check_signal(x_BCT, montage)
        scales = [None] * len(x_BCT) if scale is None else scale.expand(len(x_BCT)).split(size)
        parts = zip(x_BCT.split(size), scales, strict=False)
        return [self._batch(part, montage, sfreq, its_scale, checked=True) for part, its_scale in parts]

    def _level(self, tokens: Tokens, level: Level) -> NDArray[np.float32]:
        if level == "window":
            found = tokens.per_window()
        elif level == "channel":
            found = tokens.per_channel()
        elif level == "token":
            found = tokens.layout.grid(tokens.x_RND)
        else:
            raise InputError(f"level is {level!r}; choose window, channel or token")
        result: NDArray[np.float32] = found.float().cpu().numpy()
        return result

    # ---- channels, head, freezing ----------------------------------------------------------------------------------

    def set_channels(
        self, ch_names: Sequence[str] | None = None, chs_info: Sequence[Mapping[str, Any]] | None = None
    ) -> ChannelMatch:
        """Say which channels the windows have; returns what was made of each label."""
        found = self._match(ch_names, chs_info)
        if self.n_chans is not None and self.n_chans != len(found.rows):
            raise InputError(f"n_chans is {self.n_chans}, but {len(found.rows)} channels are named; make them agree")
        self.channels, self.n_chans = found, len(found.rows)
        return found

    def reset_head(self, n_outputs: int) -> None:
        """Put a new linear head for ``n_outputs`` outputs in place of the old one."""
        task = self.head.task if self.head is not None else "classification"
        self.head = HeadConfig(n_outputs, task)
        self.final_layer = nn.Linear(self.config.width, n_outputs, bias=self.config.bias).to(self.encoder.positions)
        start_linear_layers(self.final_layer)

    def freeze(self) -> Self:
        """Linear probing: the encoder keeps every parameter and buffer, stays in eval mode and gets no gradient."""
        self.frozen = True
        self.encoder.requires_grad_(False)
        self.train(self.training)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen encoder stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    # ---- files -----------------------------------------------------------------------------------------------------

    @property
    def header(self) -> Header:
        """What a checkpoint of this model says about it."""
        return Header(self.config, head=self.head, training=self.training_record)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write ``model.safetensors``, ``config.json`` and a model card into ``folder``."""
        return hub.write_folder(folder, self, self.header)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = hub.COMMIT,
    ) -> str:
        """Upload the model to the Hugging Face Hub; returns the commit's address."""
        return hub.push(repo_id, self, self.header, private, token, revision, commit_message)

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
        task: Literal["classification", "regression"] | None = None,
        rate: Rate = "error",
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
        """Load a checkpoint from a file, a folder or the Hub, and say what was loaded (``model.load_report``).

        The encoder must be whole. Another ``n_outputs`` than the file's gives a new head, ``window`` another length of
        position table; both are said. The rest is as in the constructor.
        """
        header, tensors = read(hub.find(source, revision, token, cache_dir, force_download, local_files_only))
        head = _choose_head(header.head, n_outputs, task)
        if header.head is not None and head is not None and head.task != header.head.task:
            tensors = {name: t for name, t in tensors.items() if not name.startswith("final_layer.")}
        config = header.model if window is None else _replace_window(header.model, window)
        model = cls(
            None if head is None else head.n_outputs,
            n_chans,
            n_times=n_times,
            input_window_seconds=input_window_seconds,
            sfreq=sfreq,
            config=config,
            task="classification" if head is None else head.task,
            rate=rate,
            unknown=unknown,
            untrained=untrained,
            too_many=too_many,
            duplicates=duplicates,
            max_channels=max_channels,
            pick=pick,
            bipolar_ears=bipolar_ears,
        )
        model.head = head
        model.training_record = header.training
        model.load_report = load_into(model, header, tensors, str(source))
        log.log(logging.INFO if model.load_report.exact else logging.WARNING, "%s", model.load_report)
        if chs_info is not None or ch_names is not None:
            model.set_channels(ch_names, chs_info)
        return model.eval()

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _match(self, ch_names: Sequence[str] | None, chs_info: Sequence[Mapping[str, Any]] | None) -> ChannelMatch:
        labels, positions = _labels(ch_names, chs_info)
        trained = None  # a new model has no trained rows to tell from others
        if self.load_report is not None:
            trained = {name: n for name, n in self.training_record.electrode_windows.items() if name in IDS}
        found = match(labels, positions=positions, trained=trained, **self.policies)
        left_out = len(found.channels) < len(found.rows) or any(row.outcome == "nearest" for row in found.rows)
        log.log(logging.WARNING if left_out else logging.INFO, "%s", found.summary())
        return found

    def _montage(self) -> ChannelMatch:
        if self.channels is None:
            raise InputError(
                "the channels are not named, and CEReBrO knows a channel by its electrode, never by its place in the "
                'array; pass ch_names=["Fp1", ...] or chs_info=raw.info["chs"]'
            )
        return self.channels

    def _batch(
        self, x_BCT: Tensor, montage: ChannelMatch, sfreq: float, scale: Tensor | float | None, checked: bool = False
    ) -> Batch:
        """Windows as they came, checked, at the model's rate and with the channels that matched."""
        if not checked and not torch.compiler.is_compiling():
            self._check_signal(x_BCT, montage)
        device = self.encoder.positions.device
        x_BCT = x_BCT.to(device, self.encoder.positions.dtype)
        if len(montage.index) != x_BCT.shape[1]:
            x_BCT = x_BCT[:, list(montage.index)]
        if sfreq != self.config.signal.sfreq and self.rate == "resample":
            x_BCT = _resample(x_BCT, sfreq, self.config.signal.sfreq)
        ids_C2 = torch.tensor(montage.ids, device=device)
        scale_B = None if scale is None else torch.as_tensor(scale, device=device).expand(len(x_BCT))
        return Batch.dense(x_BCT, ids_C2, scale_B)

    def _check_signal(self, x_BCT: Tensor, montage: ChannelMatch) -> None:
        if x_BCT.dim() != 3:
            raise InputError(f"the array has the shape {tuple(x_BCT.shape)}; expected (windows, channels, samples)")
        if x_BCT.shape[1] != len(montage.rows):
            raise InputError(
                f"the windows have {x_BCT.shape[1]} channels, but {len(montage.rows)} are named; the array is "
                "(windows, channels, samples), one name a channel"
            )
        if self.n_times is not None and x_BCT.shape[2] != self.n_times:
            raise InputError(
                f"the windows have {x_BCT.shape[2]} samples; the model was made for n_times={self.n_times}"
            )
        if x_BCT.numel() == 0:
            raise InputError(f"the array is empty: {tuple(x_BCT.shape)}")
        if not bool(torch.isfinite(x_BCT).all()):
            window, channel, sample = (int(i) for i in torch.nonzero(~torch.isfinite(x_BCT))[0])
            raise InputError(
                f"the array holds NaN or infinity, first in window {window}, channel {montage.rows[channel].label!r}, "
                f"sample {sample}; cut such windows out or repair them"
            )
        _warn_if_implausible(x_BCT)

    def _check_rate(self, sfreq: float) -> None:
        wanted = self.config.signal.sfreq
        if sfreq != wanted and self.rate == "error":
            raise InputError(
                f"the windows have {sfreq:g} Hz, the model was made for {wanted:g} Hz; resample them first, or ask for "
                'rate="resample" or rate="as_is"'
            )

    def _check_layer(self, layer: int | None) -> None:
        if layer is not None and not 0 <= layer <= self.config.depth:
            raise InputError(f"layer is {layer}; the encoder has layers 0 (embeddings) to {self.config.depth}")

    def _samples(self, sfreq: float) -> int:
        """Samples of a window at the rate of the array."""
        if self.n_times is not None:
            return self.n_times
        seconds = self.config.window / self.config.signal.sfreq
        return round(seconds * sfreq) if self.rate == "resample" else self.config.window


def _labels(
    ch_names: Sequence[str] | None, chs_info: Sequence[Mapping[str, Any]] | None
) -> tuple[list[str], list[tuple[float, float, float] | None] | None]:
    """Labels, and positions in metres where ``chs_info`` carries them."""
    if chs_info is None:
        return list(ch_names or ()), None
    labels = [str(channel["ch_name"]) for channel in chs_info]
    if ch_names is not None and list(ch_names) != labels:
        raise ConfigError("ch_names and chs_info name different channels; give one of them")
    places = [channel.get("loc") for channel in chs_info]
    return labels, [None if p is None else (float(p[0]), float(p[1]), float(p[2])) for p in places]


def _agree_times(n_times: int | None, seconds: float | None, sfreq: float) -> int | None:
    if seconds is None:
        return n_times
    from_seconds = round(seconds * sfreq)
    if n_times is not None and n_times != from_seconds:
        raise ConfigError(
            f"n_times is {n_times}, but input_window_seconds={seconds:g} at {sfreq:g} Hz gives {from_seconds}; give one"
        )
    return from_seconds


def _windows(x: Tensor, samples: int) -> Tensor:
    """Windows (B, C, T) as they are; a recording (C, T) cut into windows, its last partial one left out."""
    if x.dim() != 2:
        return x
    count = x.shape[1] // samples
    if count == 0:
        raise InputError(f"the recording has {x.shape[1]} samples; a window of this model has {samples}")
    if x.shape[1] % samples:
        log.info("the last %d of %d samples do not fill a window and are left out", x.shape[1] % samples, x.shape[1])
    return x[:, : count * samples].unflatten(1, (count, samples)).transpose(0, 1)


def _resample(x_BCT: Tensor, old: float, new: float) -> Tensor:
    """Polyphase resampling of each window."""
    from scipy.signal import resample_poly

    ratio = Fraction(new / old).limit_denominator(10_000)
    resampled = resample_poly(x_BCT.detach().cpu().double().numpy(), ratio.numerator, ratio.denominator, axis=-1)
    return torch.as_tensor(resampled).to(x_BCT)


def _warn_if_implausible(x_BCT: Tensor) -> None:
    """Say so when the amplitude is not one of scalp EEG in microvolts: a unit is then most likely wrong."""
    few = x_BCT[:: max(1, len(x_BCT) // 64)].float()
    spread = (few - few.median(-1, keepdim=True).values).abs().median().item()
    low, high = PLAUSIBLE_UV
    if not low <= spread <= high:
        guess = ' (it looks like volts: pass unit="V")' if 1e-7 <= spread <= 1e-3 else ""
        warnings.warn(
            f"the windows deviate from their median by {spread:.3g} uV, scalp EEG by {low:g} to {high:g} uV; "
            f"check the unit{guess}",
            stacklevel=3,
        )


def _choose_head(
    stored: HeadConfig | None, n_outputs: int | None, task: Literal["classification", "regression"] | None
) -> HeadConfig | None:
    """The head that was asked for; the checkpoint's own when nothing else was."""
    if stored is None:
        if n_outputs is None and task is not None:
            raise ConfigError(f"task={task!r} needs n_outputs: the checkpoint has no head")
        return None if n_outputs is None else HeadConfig(n_outputs, task or "classification")
    asked = (stored.n_outputs if n_outputs is None else n_outputs, task or stored.task)
    return stored if asked == (stored.n_outputs, stored.task) else HeadConfig(*asked)


def _replace_window(config: ModelConfig, window: int) -> ModelConfig:
    return dataclasses.replace(config, window=window)
