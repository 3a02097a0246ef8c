"""Further targets of pre-training: known answers, plain loops, the same sums however a step is shared, and off."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from cerebro_eeg import costs
from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.electrodes import VOCABULARY
from cerebro_eeg.config import ModelConfig, ObjectiveConfig, PatchConfig, SignalConfig, preset
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.further_targets import FurtherTargets, band_amplitudes, counts
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import token_counts
from tiny_models import make_windows, randomized, small, to_batch

BOTH = ObjectiveConfig(spectrum=1.0, statistics=0.5)
BANDS = BOTH.bands
PAPER = ModelConfig(depth=2, width=16, heads=2)
"""Windows of 5 s and patches of the paper, with few weights."""


def sine(hertz, amplitude, seconds=5.0):
    return amplitude * torch.sin(
        2 * math.pi * hertz * torch.arange(round(256 * seconds), dtype=torch.float64) / 256 + 1
    )


# ---- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hertz", "band"), [(2.0, 0), (6.0, 1), (10.0, 2), (16.0, 3), (25.0, 4), (37.0, 5)])
def test_the_amplitude_of_a_sine_is_in_its_band(hertz, band):
    """A sine of amplitude a has the variance a^2 / 2, around every patch, and next to nothing in other bands."""
    level_NK = band_amplitudes(sine(hertz, 3.0)[None], PAPER, BANDS)[0]
    assert level_NK.shape == (20, 6)
    torch.testing.assert_close(level_NK[:, band], torch.full((20,), math.log(4.5) / 2).double(), atol=0.02, rtol=0)
    others = torch.cat([level_NK[:, :band], level_NK[:, band + 1 :]], 1)
    assert others.max() < level_NK[:, band].min() - 2


def test_the_spectrum_follows_time_and_knows_the_mean_of_the_window():
    """Alpha in the second half alone; in the relative target a channel that never changes is zero."""
    changing = torch.cat([sine(10, 0.01, 2.5), sine(10, 1.0, 2.5)])
    signals = torch.stack([changing + sine(20, 1.0), sine(5, 2.0)])
    batch = Batch.dense(signals[None], torch.tensor([[1, 0], [2, 0]]))
    plain, relative = (
        FurtherTargets(PAPER, dataclasses.replace(BOTH, spectrum_relative=on), 16)
        .double()
        .raw_targets(batch)["spectrum"][0]
        for on in (False, True)
    )
    assert plain[0, 12:, 2].min() - plain[0, :8, 2].max() > 3
    assert plain[0, :, 3].std() < 0.3  # beta stays as it is, but for the z-score over the whole window
    torch.testing.assert_close(relative, plain - plain.mean(1, keepdim=True))
    assert relative[1].abs().max() < 0.05


def test_statistics_are_those_of_plain_loops():
    counted = [4, 2, 1]
    windows, ids = make_windows(counted, 1280)
    windows = [np.cumsum(w - w.mean(1, keepdims=True), 1) * 0.2 + w for w in windows]
    windows[0][1] = 0.7 * windows[0][0] + 0.3 * windows[0][1]
    batch = to_batch(windows, ids)
    found = FurtherTargets(PAPER, BOTH, 16).double().raw_targets(batch)
    power_RK, coupling_BCCK = found["power"][0], found["coupling"][0]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1280) / 1280)
    row = 0
    for number, window in enumerate(windows):
        z = (window - window.mean(1, keepdims=True)) / window.std(1, keepdims=True)
        spectra = np.fft.rfft(z * hann) / np.sqrt(1280 * (hann**2).sum() / 2)
        for k, (low, high) in enumerate(itertools.pairwise(BANDS)):
            bins = spectra[:, [f for f in range(641) if low <= f * 0.2 < high]]
            cross = (bins @ bins.conj().T).real
            for c in range(len(window)):
                assert power_RK[row + c, k].item() == pytest.approx(math.log(cross[c, c] + 1e-8), rel=1e-6, abs=1e-6)
                for d in range(len(window)):
                    if c != d:
                        r = min(0.99, cross[c, d] / math.sqrt(cross[c, c] * cross[d, d]))
                        assert coupling_BCCK[number, c, d, k].item() == pytest.approx(math.atanh(r), abs=1e-5)
        row += len(window)
    assert found["coupling"][1].sum((1, 2)).tolist() == [12, 2, 0]


def test_fitted_targets_have_mean_zero_and_deviation_one_in_every_band():
    """Slow waves are far larger than fast ones, and every band gets the same weight all the same."""
    windows, ids = make_windows([6, 5, 6], 1280)
    batch = to_batch([np.cumsum(w - w.mean(1, keepdims=True), 1) + w for w in windows], ids)
    further = FurtherTargets(PAPER, BOTH, 16).double()
    further.fit([batch])
    for name, (target, valid) in further.raw_targets(batch).items():
        standard_MK = further.targets[name].standardized(target)[valid]
        torch.testing.assert_close(standard_MK.mean(0), torch.zeros(6).double(), atol=0.02, rtol=0)
        torch.testing.assert_close(standard_MK.std(0, correction=0), torch.ones(6).double(), atol=0.05, rtol=0)
    flat = to_batch([np.zeros((2, 1280))], [[(1, 0), (2, 0)]])
    for name, (target, _) in further.raw_targets(flat).items():
        assert further.targets[name].standardized(target).abs().max() <= 5


# ---- the loss -------------------------------------------------------------------------------------------------------


def test_errors_are_sums_over_windows_and_their_number_is_known_beforehand():
    """Every window alone, all together and padded give the same sums; pads may hold NaN."""
    counted = [4, 1, 3]
    windows, ids = make_windows(counted, 40)
    noise = torch.rand(8, 5, dtype=torch.float64)
    model = randomized(MaskedCerebro(small(), BOTH))
    whole = model(to_batch(windows, ids), noise)
    assert counts(counted, token_counts(counted, 5, 0.5)[0]) == {"spectrum": 20, "power": 8, "coupling": 7}
    assert [term.name for term in whole.further] == ["spectrum", "power", "coupling"]
    assert [term.count.item() for term in whole.further] == pytest.approx([20, 8, 7])
    parts = [
        model(to_batch([window], [of]), part)
        for window, of, part in zip(windows, ids, noise.split(counted), strict=True)
    ]
    for number, term in enumerate(whole.further):
        torch.testing.assert_close(term.sum, sum(part.further[number].sum for part in parts))
        assert term.sum > 0
    padded = torch.full((3, 4, 40), torch.nan, dtype=torch.float64)
    channels = torch.zeros(3, 4, 2, dtype=torch.int64)
    padded_noise = torch.zeros(3, 4, 5, dtype=torch.float64)
    for number, count in enumerate(counted):
        padded[number, :count] = torch.tensor(windows[number])
        channels[number, :count] = torch.tensor(ids[number])
        padded_noise[number, :count] = noise.split(counted)[number]
    same = model(Batch.dense(padded, channels), padded_noise.flatten(0, 1))
    for term, other in zip(whole.further, same.further, strict=True):
        torch.testing.assert_close(other.sum, term.sum)
        torch.testing.assert_close(other.count, term.count)
    assert same.loss.isfinite()


def test_the_loss_is_that_of_the_paper_plus_the_weighted_errors():
    windows, ids = make_windows([4, 2], 40)
    batch, noise = to_batch(windows, ids), torch.rand(6, 5, dtype=torch.float64)
    model = randomized(MaskedCerebro(small(), BOTH))
    found = model(batch, noise)
    plain = MaskedCerebro(small())
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("further.")})
    errors = {term.name: term.sum / term.count for term in found.further}
    expected = plain.double()(batch, noise).loss + errors["spectrum"] + 0.5 * (errors["power"] + errors["coupling"])
    torch.testing.assert_close(found.loss, expected)


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_every_new_layer_learns_and_so_does_the_encoder(style):
    windows, ids = make_windows([4, 2], 40)
    model = randomized(MaskedCerebro(small(), dataclasses.replace(BOTH, style=style, decoder_width=8, decoder_heads=2)))
    found = model(to_batch(windows, ids), torch.rand(6, 5, dtype=torch.float64))
    for term in found.further:
        model.zero_grad()
        term.loss.backward(retain_graph=True)
        assert model.further.targets[term.name].layer.weight.grad.abs().max() > 0
        assert model.encoder.embed.weight.grad.abs().max() > 0


def test_a_perfect_prediction_has_no_error():
    """The layers are solved for the targets of one window, so the errors must vanish."""
    windows, ids = make_windows([1], 1280)
    batch = to_batch(windows, ids)
    further = FurtherTargets(PAPER, BOTH, 24).double()
    target_KN = further.raw_targets(batch)["spectrum"][0][0].T.clamp(-5, 5)
    x_RND = torch.randn(1, 20, 24, dtype=torch.float64)
    with torch.no_grad():
        layer = further.targets["spectrum"].layer
        layer.weight.copy_(target_KN @ torch.linalg.pinv(x_RND[0]).T)
        layer.bias.zero_()
        (spectrum, *_) = further(batch, x_RND, torch.ones(1, 20, dtype=torch.bool))
    assert spectrum.sum < 1e-20
    assert spectrum.count == 20


# ---- settings and checkpoints ---------------------------------------------------------------------------------------


def test_without_further_targets_the_model_is_as_before():
    model = MaskedCerebro(small())
    assert model.further is None
    assert not [name for name in model.state_dict() if name.startswith("further")]
    windows, ids = make_windows([3], 40)
    assert model.double()(to_batch(windows, ids)).further == ()


@pytest.mark.parametrize(
    ("model", "objective", "words"),
    [
        (
            small(patches=PatchConfig(kind="time_bins"), window=320),
            BOTH,
            "need waveform patches; those of the model are time_bins",
        ),
        (
            small(signal=SignalConfig(sfreq=80.0, lowpass=30.0)),
            BOTH,
            "the bands end at 45 Hz, and a rate of 80 Hz has 40 Hz at most",
        ),
        (small(), ObjectiveConfig(hide_amplitude=0.5), "hide_amplitude is 0.5, and the model has no amplitude to hide"),
        (small(amplitude=True, normalization="recording"), ObjectiveConfig(hide_amplitude=0.5), "set model.amplitude"),
    ],
)
def test_an_objective_that_the_model_cannot_have_is_refused(model, objective, words):
    with pytest.raises(ConfigError, match=words):
        MaskedCerebro(model, objective)


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_a_checkpoint_keeps_the_layers_and_fine_tuning_leaves_them_aside(tmp_path, style):
    model = randomized(
        MaskedCerebro(small(), dataclasses.replace(BOTH, style=style, decoder_width=8, decoder_heads=2))
    ).float()
    model.further.fit(
        [to_batch([w.astype(np.float32) for w in make_windows([4, 3], 40)[0]], make_windows([4, 3], 40)[1])]
    )
    model.save_pretrained(tmp_path)
    again = MaskedCerebro.from_pretrained(tmp_path)
    assert again.objective == model.objective
    assert again.load_report.exact
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.further.targets["power"].shift_K.abs().min() > 0
    tuned = Cerebro.from_pretrained(tmp_path, 2)
    aside = {name for name in tuned.load_report.unexpected if name.startswith("further.targets.")}
    assert len(aside) == 12
    assert torch.equal(tuned.encoder.embed.weight, model.encoder.embed.weight)
    parts = costs.parameters(model.config, model.objective, electrode_rows=len(VOCABULARY) + 1)
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())


def test_the_preset_open_has_the_size_of_small():
    found, small_one = preset("open"), preset("small")
    assert dataclasses.replace(found.model, amplitude=small_one.model.amplitude) == small_one.model
    assert found.objective != ObjectiveConfig()
    assert (found.pretrain, found.finetune) == (small_one.pretrain, small_one.finetune)
