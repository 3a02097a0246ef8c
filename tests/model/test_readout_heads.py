"""Heads with a read-out: saved and loaded whole, the same live and by batch, and centring without labels."""

import dataclasses

import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro
from cerebro_eeg.config import ReadoutConfig, Training
from cerebro_eeg.errors import InputError
from cerebro_eeg.runs.decisions import bias_of, centre
from tiny_models import small

NAMES = ("C3", "Cz", "C4")
PARTS = ("moments", "attention", "covariance", "amplitude", "power", "tangent", "spectrum", "narrow", "bands")


def make(parts=PARTS, **changes):
    torch.manual_seed(0)
    model = Cerebro(2, config=small(**changes), ch_names=NAMES, n_times=40)
    model.reset_head(2, ("rest", "task"), ReadoutConfig(parts, NAMES))
    with torch.no_grad():
        model.readout.shift_P.normal_()
        model.readout.scale_P.uniform_(0.5, 1.5)
        if "attention" in parts:
            model.readout.query_QD.normal_()
        if model.readout.bands is not None:
            model.readout.bands.log_centre_K.add_(0.1 * torch.randn(12))
    model.training_record = Training(1, 1, dict.fromkeys(NAMES, 1))
    return model.eval()


def windows(count=4):
    return 20 * torch.randn(count, 3, 40, generator=torch.Generator().manual_seed(1))


def test_a_head_with_a_read_out_is_saved_and_loaded_whole(tmp_path):
    model = make()
    model.head = dataclasses.replace(model.head, centred=True)
    model.save_pretrained(tmp_path / "run")
    again = Cerebro.from_pretrained(tmp_path / "run", ch_names=NAMES)
    assert again.load_report.exact
    assert again.head.readout == model.head.readout
    assert again.head.centred
    with torch.no_grad():
        assert torch.equal(again(windows(), scale=20.0), model(windows(), scale=20.0))


def test_another_number_of_outputs_reads_the_mean_again(tmp_path):
    make().save_pretrained(tmp_path / "run")
    again = Cerebro.from_pretrained(tmp_path / "run", 3, ch_names=NAMES)
    assert again.readout is None
    assert again.final_layer.in_features == again.config.width


def test_live_and_embed_give_what_the_head_reads():
    model, x = make(), windows(1)
    with torch.no_grad():
        expected, read = model(x, scale=20.0), model(x, return_features=True, scale=20.0)["features"]
    assert torch.allclose(model.captured()(x, scale=20.0), expected, atol=1e-5)
    assert torch.allclose(model.captured(level="window")(x, scale=20.0), read, atol=1e-5)
    np.testing.assert_allclose(model.embed(x, scale=20.0), read.numpy(), atol=1e-6)
    assert model.embed(x, scale=20.0, layer=2).shape == (1, model.config.width)


def test_a_window_without_its_channels_or_its_scale_is_refused():
    model = make()
    with pytest.raises(InputError, match="scale of the recording"):
        model(windows())
    with pytest.raises(InputError, match="1 of the 3 channels that the head reads are missing"):
        model.embed(windows()[:, :2], ch_names=NAMES[:2], scale=20.0)


def test_the_order_of_channels_does_not_matter():
    model, x, order = make(), windows(), [2, 0, 1]
    shuffled = model.embed(x[:, order], ch_names=[NAMES[place] for place in order], scale=20.0)
    np.testing.assert_allclose(shuffled, model.embed(x, scale=20.0), atol=2e-5)


def test_centred_outputs_are_those_of_centred_features():
    model, group_B = make(("mean",)), np.array([3, 3, 1, 1])
    model.reset_head(2)
    with torch.no_grad():
        features_BD = torch.from_numpy(model.embed(windows()))
        output_BK = model.final_layer(features_BD).numpy()
        for group in (3, 1):
            inside = torch.from_numpy(group_B == group)
            features_BD[inside] -= features_BD[inside].mean(0)
        expected = model.final_layer(features_BD).numpy()
    np.testing.assert_allclose(centre(output_BK, group_B, bias_of(model)), expected, atol=1e-5)
