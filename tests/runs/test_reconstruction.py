"""Masked patches are filled in as plain loops would, and errors are what known signals must give."""

import os

import numpy as np
import pytest
import torch

from cerebro_eeg.config import ModelConfig, ObjectiveConfig, PatchConfig, SignalConfig
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import InputError
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs.baselines import (
    Covariances,
    band_energy,
    band_limits,
    hidden_series,
    interpolate,
    ridge,
    spread,
    taper,
    to_patches,
    to_series,
)
from cerebro_eeg.runs.pretrain import Validation
from cerebro_eeg.runs.reconstruction import RIVALS, Reconstructed, dataset_of, find_examples, reconstruct
from cerebro_eeg.schema import from_dict, to_dict
from cerebro_eeg.train.distributed import ProcessGroup

RATE, NAMES = 256.0, ("Fp1", "Fp2", "C3", "C4", "O1", "O2")
PATCHES = {
    "waveform": PatchConfig(),
    "overlapping": PatchConfig(length=64, stride=32),
    "gaps": PatchConfig(length=32, stride=48),
    "time_bins": PatchConfig("time_bins"),
    "squares": PatchConfig("squares"),
}


def model_of(patches=PATCHES["waveform"], **changes):
    torch.manual_seed(0)
    fields = {"depth": 2, "width": 16, "heads": 2, "window": 512, "patches": patches}
    return MaskedCerebro(ModelConfig(**fields), ObjectiveConfig(**changes))


def store_of(folder, recordings, dataset="made"):
    """Recordings are (id, names, samples in microvolts)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        create_store(folder, dataset, {"tasks": {}, "signal": to_dict(SignalConfig())}, None)
        with ShardWriter(folder, "w") as writer:
            for id, names, x in recordings:
                with writer.recording(id, names, RATE) as draft:
                    draft.segment(0.0)
                    draft.write(x.astype(np.float32))
                    draft.commit(native_sfreq=RATE, subject=id, labels={})
    store = Store(folder)
    return [(store, find_windows(store, seconds=2.0))]


def noise(seconds, channels=6, seed=0):
    return 20 * np.random.default_rng(seed).normal(size=(int(seconds * RATE), channels))


def random_masks(rows, patches, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((rows, patches)) < 0.5)


# Baselines against loops


@pytest.mark.parametrize("kind", ["waveform", "overlapping", "gaps"])
def test_a_series_is_the_signal_and_comes_back_as_its_patches(kind):
    config = PATCHES[kind]
    signal = torch.randn(3, 512, dtype=torch.float64)
    values = signal.unfold(-1, config.length, config.stride)
    series = to_series(values, config)[:, 0]
    covered = torch.zeros(series.shape[1], dtype=torch.bool)
    for n in range(values.shape[1]):
        covered[n * config.stride : n * config.stride + config.length] = True
    assert torch.equal(series[:, covered], signal[:, : series.shape[1]][:, covered])
    assert torch.equal(to_patches(to_series(values, config), config), values)


@pytest.mark.parametrize("kind", ["time_bins", "squares"])
def test_a_spectrogram_comes_back_as_its_patches(kind):
    config = PATCHES[kind]
    values = torch.randn(2, 2 * config.bands, config.size)
    series = to_series(values, config)
    assert series.shape[1] == config.bins
    assert torch.equal(to_patches(series, config), values)
    if kind == "squares":  # patch t * bands + f holds frame 8 t + s of bin 8 f + k at place 8 s + k
        assert series[1, 8 * 3 + 5, 8 * 1 + 2] == values[1, 1 * config.bands + 3, 8 * 2 + 5]


@pytest.mark.parametrize("kind", list(PATCHES))
def test_interpolation_equals_numpy(kind):
    config = PATCHES[kind]
    values = torch.randn(4, 12, config.length, dtype=torch.float64)
    if kind in ("overlapping", "gaps", "waveform"):
        values = torch.randn(4, 12 * 64, dtype=torch.float64).unfold(-1, config.length, config.stride)
    elif kind == "squares":
        values = torch.randn(4, 2 * config.bands, config.size, dtype=torch.float64)
    masked = random_masks(*values.shape[:2])
    masked[3] = True  # nothing to go by
    series, hidden = to_series(values, config).numpy(), hidden_series(masked, config).numpy()
    expected = np.zeros_like(series)
    for row, feature in np.ndindex(series.shape[:2]):
        seen = np.flatnonzero(~hidden[row, feature])
        if len(seen):
            expected[row, feature] = np.interp(np.arange(series.shape[2]), seen, series[row, feature, seen])
    found = interpolate(values, masked, config)
    np.testing.assert_allclose(found.numpy(), to_patches(torch.from_numpy(expected), config).numpy(), atol=1e-12)


def test_ridge_equals_one_system_at_a_time():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(5, 5))
    covariance, values = mixing @ mixing.T, rng.normal(size=(3, 5, 4, 7))
    masked = rng.random((3, 5, 4)) < 0.5
    masked[0, :, 0], masked[1, :, 1] = True, False
    found = ridge(torch.from_numpy(values), torch.from_numpy(masked), torch.from_numpy(covariance), 0.1).numpy()
    term = 0.1 * np.trace(covariance) / 5
    for b, n in np.ndindex(3, 4):
        seen = ~masked[b, :, n]
        weights = covariance[:, seen] @ np.linalg.inv(covariance[np.ix_(seen, seen)] + term * np.eye(seen.sum()))
        np.testing.assert_allclose(found[b, :, n], weights @ values[b, seen, n], atol=1e-10)
    assert not found[0, :, 0].any()


def test_a_montage_without_windows_is_pieced_together():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(3, 3))
    x = torch.from_numpy(np.einsum("cd,bdnl->bcnl", mixing, rng.normal(size=(50, 3, 4, 16))))
    found = Covariances()
    found.add(("A", "B", "C"), x)
    whole = found.of(("A", "B", "C"))
    np.testing.assert_allclose(whole, np.einsum("bcnl,bdnl->cd", x, x) / (50 * 4 * 16))
    np.testing.assert_allclose(found.of(("C", "A")), whole[[2, 0]][:, [2, 0]], atol=1e-12)
    strange = found.of(("A", "X"))  # never seen: on its own, as loud as the others
    np.testing.assert_allclose(strange, torch.diag(whole[0, 0].repeat(2)), atol=1e-12)
    two = Covariances()
    two.add(("A", "B", "C"), x[:20])
    rest = Covariances()
    rest.add(("A", "B", "C"), x[20:])
    two.merge(rest)
    np.testing.assert_allclose(two.of(("A", "B", "C")), whole)
    assert two.windows == {("A", "B", "C"): 50}


# Bands


def tone(hertz, rows=40, seconds=5, amplitude=1.0):
    time = torch.arange(int(seconds * RATE)) / RATE
    phase = torch.from_numpy(np.random.default_rng(1).uniform(0, 6, (rows, 1)))
    return amplitude * torch.sin(2 * torch.pi * hertz * time + phase).unfold(-1, 64, 64)


@pytest.mark.parametrize(("hertz", "band"), [(1.0, "delta"), (10.5, "alpha"), (20.0, "beta"), (50.0, "gamma")])
def test_a_tone_is_in_its_band(hertz, band):
    config = model_of().config
    masked = random_masks(40, 20)
    energy = band_energy([tone(hertz)], masked, config)[0]
    share = dict(zip(band_limits(config), (energy / energy.sum()).tolist(), strict=True))
    assert max(share, key=share.get) == band
    assert share[band] > 0.7


def test_slow_waves_do_not_leak_into_fast_bands():
    config = model_of().config
    masked = random_masks(40, 20)
    energy = band_energy([tone(1.0, amplitude=30.0) + tone(40.0)], masked, config)[0]
    alone = band_energy([tone(40.0)], masked, config)[0]
    assert energy[-1] == pytest.approx(alone[-1].item(), rel=0.01)  # without the taper it is nearly 6 times as much


def test_band_errors_are_shares_of_the_target():
    config = model_of().config
    target = torch.randn(30, 20, 64)
    masked = random_masks(30, 20)
    visible_only = torch.where(masked[..., None], 0.0, torch.randn(30, 20, 64))
    found = band_energy([target, 0.5 * target, visible_only], masked, config)
    np.testing.assert_allclose(found[1] / found[0], 0.25, rtol=1e-5)
    assert not found[2].any()


def test_bands_end_at_the_low_pass_and_bins_have_their_own_frequency():
    config = ModelConfig(depth=2, width=8, heads=1, patches=PATCHES["time_bins"], signal=SignalConfig(lowpass=25.0))
    assert band_limits(config)["beta"] == (13.0, 25.0)
    assert "gamma" not in band_limits(config)
    values = torch.zeros(1, 4, 64)
    values[..., 4] = 3.0  # bin 5 of 128 samples at 256 Hz: 10 Hz
    found = band_energy([values], torch.tensor([[True, False, True, False]]), config)[0]
    assert found.tolist() == [0, 0, 18, 0]


def test_the_taper_covers_neighbours_as_one():
    hidden = torch.zeros(1, 1, 40, dtype=torch.bool)
    hidden[..., 8:24] = hidden[..., 30:34] = True
    found = taper(hidden)[0, 0]
    np.testing.assert_allclose(found[8:24], np.sin(np.pi * (np.arange(16) + 0.5) / 16) ** 2, atol=1e-6)
    np.testing.assert_allclose(found[30:34], np.sin(np.pi * (np.arange(4) + 0.5) / 4) ** 2, atol=1e-6)
    assert not found[~hidden[0, 0]].any()


# The whole


def test_the_model_s_error_is_that_of_validation(tmp_path):
    sources = store_of(tmp_path, [("a", NAMES, noise(40)), ("b", NAMES[:3], noise(20, 3, 1))])
    model = model_of()
    expected = Validation(model, model, sources, ProcessGroup(), 16)()["validation_masked"]
    model.train()
    found = reconstruct(model, sources, sources, "cpu")
    assert found.total.model == pytest.approx(expected, rel=1e-6)
    assert all(part.training for part in model.modules())
    assert found.available == found.total.windows == 30
    assert [(g.dataset, g.montage, g.errors.windows, g.errors.patches) for g in found.groups] == [
        ("made", NAMES[:3], 10, 10 * 12),
        ("made", NAMES, 20, 20 * 24),
    ]
    # A mean over all patches, however they are divided.
    for name in RIVALS:
        for parts in (found.groups, found.channels):
            weighted = sum(getattr(p.errors, name) * p.errors.patches for p in parts)
            assert weighted / found.total.patches == pytest.approx(getattr(found.total, name), rel=1e-9)
    assert found.by_dataset()["made"] == found.total
    assert from_dict(Reconstructed, to_dict(found)) == found


def test_white_noise_cannot_be_told_from_anything(tmp_path):
    sources = store_of(tmp_path, [("a", NAMES, noise(120))])
    found = reconstruct(model_of(), sources, sources, "cpu").total
    assert found.mean == pytest.approx(1, abs=0.01)
    assert found.ridge == pytest.approx(1, abs=0.03)
    # A straight line between two samples of noise adds (1 - s)^2 + s^2 to the noise, 2/3 on average; an edge adds 1.
    assert 1.6 < found.interpolation < 1.9


def test_channels_that_are_one_are_told_from_each_other(tmp_path):
    one = noise(60, 1)
    x = one * [1, -2, 0.5, 3, 1, 1]
    sources = store_of(tmp_path, [("a", NAMES, x)])
    found = reconstruct(model_of(mask_ratio=0.3), sources, sources, "cpu")
    # Noise of half precision; and where a patch is masked in all six channels (0.3 ** 6) nothing can be said.
    assert found.total.ridge < 0.01
    assert found.total.mean == pytest.approx(1, abs=0.02)
    assert found.groups[0].ridge_term <= 1e-4
    assert found.groups[0].fitted_on == 30


def test_a_slow_wave_is_told_from_its_neighbours_in_time(tmp_path):
    time = np.arange(int(60 * RATE)) / RATE
    x = 30 * np.sin(2 * np.pi * 0.5 * time[:, None] + np.arange(6))
    sources = store_of(tmp_path, [("a", NAMES, x)])
    found = reconstruct(model_of(mask_ratio=0.2), sources, sources, "cpu")
    assert found.total.interpolation < 0.2  # what is left is at the edges, where the nearest value is held
    assert found.total.mean == pytest.approx(1, abs=0.02)
    delta = found.bands[0]
    assert delta.band == "delta"
    assert delta.energy > 0.9
    assert delta.interpolation < 0.2


def test_ridge_is_fitted_on_training_windows_only(tmp_path):
    """Channels that agree in training and differ in validation: a ridge that had seen validation would do better."""
    train = store_of(tmp_path / "train", [("a", NAMES, noise(60, 1) * np.ones(6))])
    validation = store_of(tmp_path / "val", [("b", NAMES, noise(60, 1, 1) * [1, -1, 1, -1, 1, -1])])
    assert reconstruct(model_of(), train, validation, "cpu").total.ridge > 1.2
    assert reconstruct(model_of(), validation, validation, "cpu").total.ridge < 0.1


def test_validation_montages_that_training_lacks(tmp_path):
    one = noise(60, 1)
    train = store_of(tmp_path / "train", [("a", NAMES, one * np.ones(6))])
    validation = store_of(tmp_path / "val", [("b", ("O1", "Fp1", "C4", "C3"), one * np.ones(4))])
    found = reconstruct(model_of(), train, validation, "cpu")
    assert found.groups[0].fitted_on == 0
    assert found.total.ridge < 0.15  # a patch that is masked everywhere cannot be known: 0.5 ** 4


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("overlapping", "none"), ("time_bins", "none"), ("time_bins", "interleaved"), ("squares", "separated")],
)
def test_every_kind_of_patch(tmp_path, kind, phase):
    patches = PATCHES[kind] if phase == "none" else PatchConfig(kind, phase=phase)
    one = noise(20, 1)
    sources = store_of(tmp_path, [("a", NAMES, one * np.arange(1, 7))])
    found = reconstruct(model_of(patches, mask_ratio=0.3), sources, sources, "cpu")
    assert {one.channel for one in found.channels} == set(NAMES)
    assert found.total.ridge < 0.2 * found.total.mean  # equal channels have equal spectra, too
    assert found.groups[0].errors.windows == 10
    assert all(np.isfinite([b.model, b.interpolation, b.ridge]).all() for b in found.bands)


def test_a_limit_takes_windows_evenly(tmp_path):
    assert spread(np.arange(10), 3).tolist() == [0, 3, 6]
    assert spread(np.arange(2), 3).tolist() == [0, 1]
    sources = store_of(tmp_path, [("a_1", NAMES, noise(40)), ("b_1", NAMES, noise(40))], "openeeg")
    found = reconstruct(model_of(), sources, sources, "cpu", limit_windows=10)
    assert found.available == 40
    assert {name: errors.windows for name, errors in found.by_dataset().items()} == {"a": 5, "b": 5}
    other = reconstruct(model_of(), sources, sources, "cpu", 10, group=lambda store, id: id[-1])
    assert list(other.by_dataset()) == ["1"]
    assert dataset_of(sources[0][0], "gb_042") == "gb"


def test_no_windows_are_refused(tmp_path):
    ((store, windows),) = store_of(tmp_path, [("a", NAMES, noise(10))])
    with pytest.raises(InputError, match="no window to reconstruct"):
        reconstruct(model_of(), [(store, windows)], [(store, windows.take(np.zeros(5, bool)))], "cpu")


def test_examples_are_the_middle_window_of_each_dataset(tmp_path):
    recordings = [("a_1", NAMES, noise(20)), ("b_1", NAMES[:2], noise(30, 2)), ("c_1", NAMES, noise(10))]
    sources = store_of(tmp_path, recordings, "openeeg")
    model = model_of()
    found = find_examples(model, sources, "cpu", count=3)
    assert [(e.dataset, e.recording, e.start, e.montage) for e in found] == [
        ("a", "a_1", 10.0, NAMES),
        ("b", "b_1", 14.0, NAMES[:2]),
        ("c", "c_1", 4.0, NAMES),
    ]
    whole = noise(20)[int(10 * RATE) : int(12 * RATE)].astype(np.float16).astype(np.float64)
    z = (whole - whole.mean(0)) / whole.std(0)
    np.testing.assert_allclose(found[0].target_CNL.reshape(6, -1), z.T, atol=1e-3)
    assert found[0].masked_CN.sum() == 24
    assert len(find_examples(model, sources, "cpu", count=2)) == 2


@pytest.mark.gpu
def test_a_gpu_finds_the_same(tmp_path):
    sources = store_of(tmp_path, [("a", NAMES, noise(40) @ np.random.default_rng(0).normal(size=(6, 6)))])
    here, there = (reconstruct(model_of(), sources, sources, device) for device in ("cpu", "cuda"))
    for name in RIVALS:
        assert getattr(there.total, name) == pytest.approx(getattr(here.total, name), rel=1e-3)
    for a, b in zip(here.bands, there.bands, strict=True):
        assert b.ridge == pytest.approx(a.ridge, rel=1e-2)
    assert len(find_examples(model_of(), sources, "cuda")) == 1
