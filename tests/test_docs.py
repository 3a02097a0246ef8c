"""docs/paper.md names only fields and tests that exist, and every setting of the model is explained there."""

import dataclasses
import re
from pathlib import Path

import pytest

from cerebro_eeg import config

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
CONFIGS = {name: cls for name, cls in vars(config).items() if dataclasses.is_dataclass(cls)}
# Settings that need no explanation beyond the paper: dimensions, names.
PLAIN = {"ModelConfig.width", "ModelConfig.heads", "ModelConfig.norm_eps", "ModelConfig.patches", "ModelConfig.signal"}
PLAIN |= {"HeadConfig.names"}


def test_every_field_that_is_named_exists():
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE)
    assert len(named) > 30
    for cls, name in named:
        assert name in {f.name for f in dataclasses.fields(CONFIGS[cls])}, f"{cls}.{name}"


@pytest.mark.parametrize("cls", ["ModelConfig", "PatchConfig", "SignalConfig", "ObjectiveConfig", "HeadConfig"])
def test_every_setting_is_explained(cls):
    missing = (
        {f"{cls}.{f.name}" for f in dataclasses.fields(CONFIGS[cls])}
        - PLAIN
        - set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE))
    )
    assert missing == set()


def test_every_test_that_is_named_exists():
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE)
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in next((ROOT / "tests").rglob(file)).read_text(encoding="utf-8"), f"{file}::{name}"
