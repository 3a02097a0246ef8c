"""CEReBrO, a compact EEG foundation model with alternating attention.

The public names load at their first use, so ``import cerebro_eeg`` and ``cerebro-eeg --help`` do not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro_eeg.batch import Batch
    from cerebro_eeg.channels.match import match
    from cerebro_eeg.config import ModelConfig, ObjectiveConfig, PatchConfig, SignalConfig, preset
    from cerebro_eeg.errors import CerebroError
    from cerebro_eeg.model.cerebro import Cerebro
    from cerebro_eeg.model.encoder import Encoder
    from cerebro_eeg.model.masked import MaskedCerebro
    from cerebro_eeg.report.explain import channel_attention, electrode_map, explain
    from cerebro_eeg.runs.embed import embed
    from cerebro_eeg.runs.predict import predict

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Cerebro",
    "CerebroError",
    "Encoder",
    "MaskedCerebro",
    "ModelConfig",
    "ObjectiveConfig",
    "PatchConfig",
    "SignalConfig",
    "__version__",
    "channel_attention",
    "electrode_map",
    "embed",
    "explain",
    "match",
    "predict",
    "preset",
]

_HOMES = {
    "Batch": "cerebro_eeg.batch",
    "Cerebro": "cerebro_eeg.model.cerebro",
    "CerebroError": "cerebro_eeg.errors",
    "Encoder": "cerebro_eeg.model.encoder",
    "MaskedCerebro": "cerebro_eeg.model.masked",
    "ModelConfig": "cerebro_eeg.config",
    "ObjectiveConfig": "cerebro_eeg.config",
    "PatchConfig": "cerebro_eeg.config",
    "SignalConfig": "cerebro_eeg.config",
    "channel_attention": "cerebro_eeg.report.explain",
    "electrode_map": "cerebro_eeg.report.explain",
    "embed": "cerebro_eeg.runs.embed",
    "explain": "cerebro_eeg.report.explain",
    "match": "cerebro_eeg.channels.match",
    "predict": "cerebro_eeg.runs.predict",
    "preset": "cerebro_eeg.config",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
