"""Every vectorised path equals the loop-written paper (tests/reference.py), in float64, window by window."""

import itertools

import numpy as np
import pytest
import torch

import reference as ref
from cerebro_eeg.batch import Batch
from cerebro_eeg.config import ObjectiveConfig, PatchConfig
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.masks import choose_masked
from cerebro_eeg.model.patches import cut_spectrogram, make_patches, normalize, robust_scale, spectrogram
from cerebro_eeg.model.weights import resize_positions
from tiny_models import KINDS, make_windows, randomized, small, to_batch, weights_of

TIGHT = {"rtol": 1e-10, "atol": 1e-11}


def settings(config, decoder_heads=None):
    return ref.Settings(
        attention=config.attention,
        heads=config.heads,
        norm=config.norm,
        first_axis=config.first_axis,
        eps=config.norm_eps,
        squares=config.patches.bands,
        decoder_heads=decoder_heads,
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
def test_encoder(kind, norm):
    config = small(attention=kind, norm=norm)
    encoder = randomized(Encoder(config))
    counts = [3, 1, 4]
    windows, ids = make_windows(counts, 40)
    found = encoder(to_batch(windows, ids))
    for window, id_, x_CND in zip(windows, ids, found.x_RND.detach().split(counts), strict=True):
        patches = ref.waveform_patches(ref.normalize(window), 8, 8)
        expected = ref.encoder(patches, id_, weights_of(encoder), settings(config))
        np.testing.assert_allclose(x_CND.numpy(), expected, **TIGHT)


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_with_pads(kind):
    """The padded form of the paper, with a window that is all pads."""
    config = small(attention=kind)
    encoder = randomized(Encoder(config))
    windows, ids = make_windows([4, 4, 4], 40)
    real = np.array([[1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    channels = torch.tensor(ids)
    channels[~torch.tensor(real)] = 0
    batch = Batch.dense(torch.tensor(np.stack(windows)), channels)
    found = encoder(batch)
    for b in range(3):
        patches = ref.waveform_patches(ref.normalize(windows[b]), 8, 8)
        expected = ref.encoder(patches, channels[b].tolist(), weights_of(encoder), settings(config), real=real[b])
        x_CND = found.layout.grid(found.x_RND)[b].detach().numpy()
        np.testing.assert_allclose(x_CND[real[b]], expected[real[b]], **TIGHT)
        assert (x_CND[~real[b]] == 0).all()


def test_first_axis_can_be_time():
    config = small(first_axis="time")
    encoder = randomized(Encoder(config))
    windows, ids = make_windows([3], 40)
    expected = ref.encoder(
        ref.waveform_patches(ref.normalize(windows[0]), 8, 8), ids[0], weights_of(encoder), settings(config)
    )
    np.testing.assert_allclose(encoder(to_batch(windows, ids)).x_RND.detach().numpy(), expected, **TIGHT)


def test_overlapping_patches_and_shorter_and_longer_windows():
    config = small(patches=PatchConfig(length=8, stride=5))
    encoder = randomized(Encoder(config))
    for samples in (8, 21, 40, 77):
        windows, ids = make_windows([2], samples)
        patches = ref.waveform_patches(ref.normalize(windows[0]), 8, 5)
        expected = ref.encoder(patches, ids[0], weights_of(encoder), settings(config))
        np.testing.assert_allclose(encoder(to_batch(windows, ids)).x_RND.detach().numpy(), expected, **TIGHT)


@pytest.mark.parametrize("kind", ["zscore", "recording", "minmax", "scale", "none"])
def test_normalization(kind):
    x = np.random.default_rng(1).normal(size=(4, 50)) * 30 + 7
    x[2] = 5.0
    config = small(normalization=kind)
    found = normalize(torch.tensor(x), config, torch.full((4,), 12.5, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), ref.normalize(x, kind, scale=12.5, fixed=config.fixed_scale), **TIGHT)


def test_robust_scale():
    """The median over channels of 1.4826 times the median absolute deviation: one loud channel does not move it."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(5, 20_001)) * np.array([[10.0], [10.0], [10.0], [10.0], [900.0]]) + 4000
    expected = np.median([1.4826 * np.median(np.abs(row - np.median(row))) for row in x])
    found = robust_scale(torch.tensor(x)).item()
    assert found == pytest.approx(expected, rel=1e-12)
    assert found == pytest.approx(10, rel=0.03)


def test_amplitude_embedding():
    config = small(amplitude=True)
    encoder = randomized(Encoder(config))
    windows, ids = make_windows([3, 2], 40)
    windows[0][1] = 4.0  # flat: clipped, not minus infinity
    found = encoder(to_batch(windows, ids, [11.0, 0.5])).x_RND.split([3, 2])
    for window, id_, scale, x in zip(windows, ids, [11.0, 0.5], found, strict=True):
        patches = ref.waveform_patches(ref.normalize(window), 8, 8)
        loudness = ref.log_ratio(window, scale)
        expected = ref.encoder(patches, id_, weights_of(encoder), settings(config), amplitude=loudness)
        np.testing.assert_allclose(x.detach().numpy(), expected, **TIGHT)


@pytest.mark.parametrize("samples", [129, 200, 320, 1280])
def test_spectrogram(samples):
    x = np.random.default_rng(2).normal(size=(3, samples)) * 10
    x[1] = 3.0
    magnitude, phase = spectrogram(torch.tensor(x), PatchConfig(kind="time_bins"))
    expected_magnitude, expected_phase = ref.spectrogram(x)
    assert magnitude.shape == expected_magnitude.shape == (3, samples // 32, 64)
    np.testing.assert_allclose(magnitude.numpy(), expected_magnitude, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(phase.numpy(), expected_phase, rtol=1e-9, atol=1e-9)
    if samples >= 256:
        squares = cut_spectrogram(magnitude, PatchConfig(kind="squares"))
        np.testing.assert_array_equal(squares.numpy(), ref.square_patches(magnitude.numpy()))


@pytest.mark.parametrize("phase", ["none", "interleaved", "separated"])
@pytest.mark.parametrize("kind", ["time_bins", "squares"])
def test_spectrogram_encoder(kind, phase):
    config = small(patches=PatchConfig(kind=kind, phase=phase), window=320)
    encoder = randomized(Encoder(config))
    counts = [2, 3]
    windows, ids = make_windows(counts, 320)
    rows = [c * config.patches.rows for c in counts]
    found = encoder(to_batch(windows, ids)).x_RND.split(rows)
    for window, id_, x in zip(windows, ids, found, strict=True):
        magnitude, angle = ref.spectrogram(ref.normalize(window))
        cut = ref.time_patches if kind == "time_bins" else ref.square_patches
        if phase == "none":
            patches, row_ids, phase_rows = cut(magnitude), id_, None
        else:
            order = ref.phase_layout(len(id_), phase)
            patches = ref.with_phase(cut(magnitude), cut(angle), phase)
            row_ids, phase_rows = [id_[c] for c, _ in order], [p for _, p in order]
        expected = ref.encoder(patches, row_ids, weights_of(encoder), settings(config), phase_rows=phase_rows)
        np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("tokens", "bands"), [(3, 1), (7, 1), (8, 2), (30, 1), (24, 2)])
def test_positions(tokens, bands):
    table = np.random.default_rng(3).normal(size=(8, 5))
    found = resize_positions(torch.tensor(table), tokens, bands)
    np.testing.assert_allclose(found.numpy(), ref.positions(table, tokens, bands), **TIGHT)


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_choice_of_masked_tokens(ratio):
    counts = [3, 1, 5, 2]
    noise = np.random.default_rng(4).uniform(size=(sum(counts), 5))
    layout = to_batch(*make_windows(counts, 40)).layout
    found = choose_masked(torch.tensor(noise), layout, ratio).split(counts)
    for part, noise_CN in zip(found, np.split(noise, np.cumsum(counts)[:-1]), strict=True):
        np.testing.assert_array_equal(part.numpy(), ref.mask_from_noise(noise_CN, ratio))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("style", "kind"), list(itertools.product(["simmim", "vitmae"], KINDS)))
def test_objectives(style, kind, padded):
    config = small(attention=kind)
    objective = ObjectiveConfig(style=style, decoder_width=8, decoder_heads=2)
    model = randomized(MaskedCerebro(config, objective))
    counts = [3, 3] if padded else [3, 2]
    windows, ids = make_windows(counts, 40)
    batch = to_batch(windows, ids)
    reals = [None, None]
    if padded:
        ids[1][1] = (0, 0)
        batch = Batch.dense(torch.tensor(np.stack(windows)), torch.tensor(ids))
        reals = [np.array([True] * 3), np.array([True, False, True])]
    noise = np.random.default_rng(5).uniform(size=(sum(counts), 5))
    found = model(batch, torch.tensor(noise))
    targets, predictions, masks = [], [], []
    run = ref.simmim if style == "simmim" else ref.vitmae
    for window, id_, noise_CN, real in zip(windows, ids, np.split(noise, [3]), reals, strict=True):
        patches = ref.waveform_patches(ref.normalize(window), 8, 8)
        mask = ref.mask_from_noise(noise_CN, 0.5, real)
        targets.append(patches)
        masks.append(mask)
        predictions.append(run(patches, id_, weights_of(model), settings(config, 2), mask, real))
    for real, expected, part in zip(reals, predictions, found.predicted_RNL.split(counts), strict=True):
        keep = slice(None) if real is None else real
        np.testing.assert_allclose(part.detach().numpy()[keep], expected[keep], **TIGHT)
    total, masked, visible = ref.loss_of_batch(targets, predictions, masks, reals if padded else None)
    np.testing.assert_allclose(found.loss.item(), total, **TIGHT)
    np.testing.assert_allclose(found.masked_loss.item(), masked, **TIGHT)
    np.testing.assert_allclose(found.visible_loss.item(), visible, **TIGHT)


def test_classifier():
    config = small()
    model = randomized(Cerebro(3, config=config))
    counts = [2, 4]
    windows, ids = make_windows(counts, 40)
    found = model(to_batch(windows, ids)).detach().numpy()
    for window, id_, row in zip(windows, ids, found, strict=True):
        patches = ref.waveform_patches(ref.normalize(window), 8, 8)
        weights = weights_of(model)
        features = ref.encoder(patches, id_, ref.under(weights, "encoder."), settings(config))
        np.testing.assert_allclose(row, ref.classify(features, None, weights), **TIGHT)


def test_patches_of_the_wave_are_the_target():
    config = small()
    windows, ids = make_windows([2], 43)
    patches = make_patches(to_batch(windows, ids), config)
    np.testing.assert_allclose(
        patches.values_RNL.numpy(), ref.waveform_patches(ref.normalize(windows[0]), 8, 8), **TIGHT
    )
