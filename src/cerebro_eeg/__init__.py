"""CEReBrO, a compact EEG foundation model with alternating attention.

The verbs of the command line are functions with the same words: ``prepare``, ``pretrain``, ``finetune``, ``evaluate``,
``compare``, ``predict``, ``embed``, ``repair``, ``simulate``, ``verify``, ``info``. ``open_store`` gives windows as
arrays.

The public names load at their first use, so ``import cerebro_eeg`` and ``cerebro-eeg --help`` do not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro_eeg.api import (
        compare,
        embed,
        evaluate,
        finetune,
        info,
        predict,
        prepare,
        pretrain,
        repair,
        simulate,
        verify,
    )
    from cerebro_eeg.batch import Batch
    from cerebro_eeg.channels.match import match
    from cerebro_eeg.config import ModelConfig, ObjectiveConfig, PatchConfig, SignalConfig, preset
    from cerebro_eeg.errors import CerebroError, CerebroWarning
    from cerebro_eeg.estimators import CerebroClassifier, CerebroFeatures, CerebroRegressor
    from cerebro_eeg.model.cerebro import Cerebro
    from cerebro_eeg.model.encoder import Encoder
    from cerebro_eeg.model.masked import MaskedCerebro
    from cerebro_eeg.report.explain import channel_attention, electrode_map, explain
    from cerebro_eeg.runs.features import read_features
    from cerebro_eeg.runs.stored import open_store

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Cerebro",
    "CerebroClassifier",
    "CerebroError",
    "CerebroFeatures",
    "CerebroRegressor",
    "CerebroWarning",
    "Encoder",
    "MaskedCerebro",
    "ModelConfig",
    "ObjectiveConfig",
    "PatchConfig",
    "SignalConfig",
    "__version__",
    "channel_attention",
    "compare",
    "electrode_map",
    "embed",
    "evaluate",
    "explain",
    "finetune",
    "info",
    "match",
    "open_store",
    "predict",
    "prepare",
    "preset",
    "pretrain",
    "read_features",
    "repair",
    "simulate",
    "verify",
]

_HOMES = {
    "Batch": "cerebro_eeg.batch",
    "Cerebro": "cerebro_eeg.model.cerebro",
    "CerebroClassifier": "cerebro_eeg.estimators",
    "CerebroError": "cerebro_eeg.errors",
    "CerebroWarning": "cerebro_eeg.errors",
    "CerebroFeatures": "cerebro_eeg.estimators",
    "CerebroRegressor": "cerebro_eeg.estimators",
    "Encoder": "cerebro_eeg.model.encoder",
    "MaskedCerebro": "cerebro_eeg.model.masked",
    "ModelConfig": "cerebro_eeg.config",
    "ObjectiveConfig": "cerebro_eeg.config",
    "PatchConfig": "cerebro_eeg.config",
    "SignalConfig": "cerebro_eeg.config",
    "compare": "cerebro_eeg.api",
    "embed": "cerebro_eeg.api",
    "evaluate": "cerebro_eeg.api",
    "finetune": "cerebro_eeg.api",
    "info": "cerebro_eeg.api",
    "channel_attention": "cerebro_eeg.report.explain",
    "electrode_map": "cerebro_eeg.report.explain",
    "explain": "cerebro_eeg.report.explain",
    "match": "cerebro_eeg.channels.match",
    "open_store": "cerebro_eeg.runs.stored",
    "predict": "cerebro_eeg.api",
    "prepare": "cerebro_eeg.api",
    "preset": "cerebro_eeg.config",
    "pretrain": "cerebro_eeg.api",
    "read_features": "cerebro_eeg.runs.features",
    "repair": "cerebro_eeg.api",
    "simulate": "cerebro_eeg.api",
    "verify": "cerebro_eeg.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
