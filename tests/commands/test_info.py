"""``info``: what it counts is what the modules have, and what it prints can be read."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from cerebro_eeg import costs, errors
from cerebro_eeg.commands.info import info
from cerebro_eeg.config import PRESETS, ObjectiveConfig, PatchConfig, Source, Training, preset
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from tiny_models import KINDS, make_windows, small, to_batch


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name):
    found = info(name)
    with torch.device("meta"):
        module = Encoder(preset(name).model)
    assert found.stored == sum(p.numel() for p in module.parameters())
    assert found.parameters == found.stored - costs.whole_table(found.model) + costs.PAPER_ROWS * found.model.width
    assert sum(found.parts.values()) == found.parameters
    assert f"{found.parameters:,}" in found.text()
    assert json.loads(json.dumps(found.to_dict()))["parameters"] == found.parameters


def test_preset_needs_no_torch():
    code = (
        "from cerebro_eeg.commands.info import info; info('large').text(); import sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_window_of_the_callers_choice():
    found = info("small", channels=64, seconds=16)
    assert (found.samples, found.cost.tokens) == (4096, 64 * 64)
    assert found.to_dict()["window"]["scores"] == 12 * 64**3
    with pytest.raises(
        errors.InputError, match=r"0 channels x 5 s gives no patch; at 256 Hz it needs a channel and 0\.25 s"
    ):
        info("small", channels=0)
    with pytest.raises(errors.InputError, match=r"19 channels x 0\.1 s gives no patch"):
        info("small", seconds=0.1)


def test_checkpoint_says_what_it_was_trained_on(tmp_path):
    model = MaskedCerebro(small(patches=PatchConfig(kind="squares", phase="separated"), window=320, amplitude=True))
    source = Source("open-eeg", windows=120, hours=1.5, licence="CC BY 4.0, somebody")
    model.training_record = Training(7, 120, {"Fp1": 120, "Cz": 3}, (source,))
    model.save_pretrained(tmp_path)
    for target in (tmp_path, tmp_path / "model.safetensors"):
        found = info(str(target))
        assert found.stored == sum(p.numel() for p in model.parameters())
        text = found.text()
        for words in (
            "7 steps, 120 windows",
            "open-eeg: 120 windows, 1.5 h CC BY 4.0",
            "Fp1 120, Cz 3",
            "simmim",
            "sums verified",
        ):
            assert words in text
        assert found.to_dict()["training"]["electrode_windows"] == {"Fp1": 120, "Cz": 3}


def test_checkpoint_with_a_head_or_a_decoder(tmp_path):
    for i, model in enumerate([Cerebro(3, config=small()), MaskedCerebro(small(), ObjectiveConfig("vitmae"))]):
        folder = model.save_pretrained(tmp_path / str(i))
        assert info(str(folder)).stored == sum(p.numel() for p in model.parameters())
    assert "classification, 3 outputs" in info(str(tmp_path / "0")).text()
    decides = Cerebro(2, config=small())
    decides.head = replace(decides.head, names=("rest", "seizure"), threshold=0.61652, threshold_level="recording")
    text = info(str(decides.save_pretrained(tmp_path / "2"))).text()
    limit = "threshold 0.617 (positive: seizure; chosen on validation, over recordings)"
    assert f"classification, 2 outputs: rest, seizure; {limit}" in text


def test_neither_preset_nor_file():
    with pytest.raises(errors.ConfigError, match=r"'larg' is neither a preset nor a file \(did you mean 'large'\?\)"):
        info("larg")


@pytest.mark.parametrize("kind", KINDS)
def test_memory_kept_for_the_backward_pass(kind):
    """Counted from the config against what autograd really saves, each storage once; small things are left out."""
    config = small(attention=kind, width=48, heads=3, depth=4, mlp_ratio=4.0)
    encoder = Encoder(config)
    weights = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = (tensor, storage.nbytes())  # held, so that no address is used twice
        return tensor

    windows, ids = make_windows([8] * 4, 40)
    batch = to_batch([w.astype("float32") for w in windows], ids)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t))
        encoder(batch)
    found = sum(size for _, size in saved.values())
    assert found / (4 * costs.cost(config, 8, 40).backward_bytes) == pytest.approx(1, abs=0.15)
