"""The names that models of braindecode have beside PyTorch's, so that programs written for its zoo run with ours.

A config is a dictionary of JSON values: what ``Cerebro(...)`` was given, without weights. It names channels and rules,
which a checkpoint leaves to its user. Names of braindecode that would do nothing here, such as dense prediction, are
missing on purpose.
"""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.channels.match import ChannelMatch
from cerebro_eeg.config import HeadConfig, ModelConfig, ReadoutConfig
from cerebro_eeg.errors import ConfigError, import_trouble
from cerebro_eeg.model import hub
from cerebro_eeg.schema import did_you_mean, from_dict, to_dict

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

ARGUMENTS = ("n_outputs", "n_chans", "chs_info", "n_times", "sfreq", "ch_names", "config", "task", "rate")
POLICIES = ("unknown", "untrained", "duplicates", "too_many", "max_channels", "pick", "bipolar_ears")
COLUMNS = ("input_size", "output_size", "num_params", "kernel_size")


class ZooModel:
    """The part of braindecode's ``EEGModuleMixin`` that has a meaning for :class:`~cerebro_eeg.Cerebro`."""

    config: ModelConfig
    head: HeadConfig | None
    channels: ChannelMatch | None
    chs_info: Sequence[Mapping[str, Any]] | None
    n_chans: int | None
    n_times: int | None
    sfreq: float
    rate: str
    policies: dict[str, Any]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make this model again, without weights, as JSON values."""
        head = self.head or HeadConfig(1)
        named = self.channels is not None and self.chs_info is None
        return {
            "n_outputs": None if self.head is None else self.head.n_outputs,
            "n_chans": self.n_chans,
            "chs_info": None if self.chs_info is None else [_channel(channel) for channel in self.chs_info],
            "n_times": self.n_times,
            "sfreq": self.sfreq,
            "ch_names": [row.label for row in self.channels.rows] if named and self.channels is not None else None,
            "config": to_dict(self.config),
            "task": head.task,
            "rate": self.rate,
            **{name: self.policies[name] for name in POLICIES},
            "pick": None if self.policies["pick"] is None else list(self.policies["pick"]),
            "readout": to_dict(head.readout),
            "output_names": list(head.names),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make a model with random weights from what :meth:`get_config` returned."""
        known = (*ARGUMENTS, *POLICIES, "readout", "output_names")
        for name in config:
            if name not in known:
                raise ConfigError(f"a config has no entry {name!r}{did_you_mean(str(name), known)}; leave it out")
        given = dict(config)
        readout, names = given.pop("readout", None), given.pop("output_names", ())
        if isinstance(given.get("config"), Mapping):
            given["config"] = from_dict(ModelConfig, given["config"])
        model: Any = cls(**given)
        reads = ReadoutConfig() if readout is None else from_dict(ReadoutConfig, readout)
        if model.n_outputs is not None and (names or reads != ReadoutConfig()):
            model.reset_head(model.n_outputs, names, reads)
        made: Self = model
        return made

    def get_output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output for one window, such as (1, n_outputs), by computing it."""
        model: Any = self
        like = model.encoder.positions
        samples = self.n_times or self.config.window
        fed = samples if self.rate != "resample" else round(samples * self.config.signal.sfreq / self.sfreq)
        ids = [(1 + number, 0) for number in range(self.n_chans or 1)] if self.channels is None else self.channels.ids
        wave_T = 20 * torch.arange(fed, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32)).sin()
        channels_C2 = torch.tensor(ids, device=like.device)
        batch = Batch.dense(wave_T.expand(1, len(ids), fed), channels_C2, wave_T.new_ones(1))
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                return tuple(model(batch).shape)
        finally:
            for module, mode in modes:
                module.training = mode

    def get_torchinfo_statistics(
        self, col_names: Iterable[str] | None = COLUMNS, row_settings: Iterable[str] | None = ("var_names", "depth")
    ) -> Any:
        """Return torchinfo's table of all layers, for one window. It needs the package torchinfo."""
        try:
            summary = importlib.import_module("torchinfo").summary
        except ImportError as error:
            raise ConfigError(f"no table of layers: {import_trouble(error, 'torchinfo')}") from None
        assert isinstance(self, nn.Module)
        width, names = self.n_chans or 1, None
        if self.channels is None:  # the table is of any channels
            names = list(VOCABULARY[:width])
        size = (1, width, self.n_times or self.config.window)
        return summary(self, size, col_names=col_names, row_settings=row_settings, verbose=0, ch_names=names)

    def generate_model_card(self) -> "ModelCard":
        """Return the model card that :meth:`save_pretrained` writes, for ``card.save(path)`` or ``str(card)``."""
        from huggingface_hub import ModelCard

        assert isinstance(self, hub.Shareable)
        return ModelCard(hub.make_card(self.header))


def _channel(channel: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, kind and place of a channel of MNE as JSON values, which have no NaN for an unknown place."""
    found: dict[str, Any] = {"ch_name": str(channel["ch_name"])}
    kind, loc = channel.get("kind"), channel.get("loc")
    if kind is not None:
        found["kind"] = kind if isinstance(kind, str) else int(kind)
    if loc is not None and all(math.isfinite(value) for value in list(loc)[:3]):
        found["loc"] = [float(value) for value in list(loc)[:3]]
    return found
