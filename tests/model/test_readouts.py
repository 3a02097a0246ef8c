"""Read-outs: known answers of every part, the same features for any order of channels, and clear errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import logm
from scipy.signal import periodogram

from cerebro_eeg.batch import Batch
from cerebro_eeg.channels.match import Channel
from cerebro_eeg.config import ModelConfig, ReadoutConfig
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model.bands import (
    FINE_EDGES,
    LEARNED_EDGES,
    band_bins,
    band_covariances,
    learned_bands,
    log_triangle,
    shrunk,
    symmetric,
    upper,
)
from cerebro_eeg.model.encoder import Encoder
from cerebro_eeg.model.readouts import (
    Readout,
    attended,
    common_channels,
    moment_layers,
    moments,
    principal_components,
    tokens_after,
    width_of,
    widths,
)

NAMES = ("Fz", "C3", "C4", "O1")
MODEL = ModelConfig(depth=4, width=16, heads=2, window=512)
SIMPLE = ("amplitude", "power", "tangent", "spectrum", "narrow", "bands")
PARTS = ("mean", "moments", "attention", "channels", "covariance", *SIMPLE)
ALL = ReadoutConfig(PARTS, NAMES)
BANDS = ALL.bands


def ids(names: tuple[str, ...]) -> torch.Tensor:
    return torch.tensor([Channel(*name.split("-")).ids for name in names])


def windows(count: int = 3, names: tuple[str, ...] = NAMES, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 20 * torch.randn(count, len(names), 512, generator=generator)


@pytest.fixture
def encoder() -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Encoder(MODEL).eval()


def batch_of(x: torch.Tensor, names: tuple[str, ...] = NAMES) -> Batch:
    return Batch.dense(x, ids(names), torch.full((len(x),), 15.0))


def test_a_sine_has_its_power_in_its_band_alone() -> None:
    time = torch.arange(1280, dtype=torch.float64) / 256
    wave = 3 * torch.sin(2 * math.pi * 10 * time + 0.4)  # alpha; its variance is 4.5
    found = band_covariances(torch.stack([wave, -2 * wave])[None], BANDS, 256)[0]
    alpha = found[2]
    torch.testing.assert_close(alpha, torch.tensor([[4.5, -9.0], [-9.0, 18.0]], dtype=torch.float64), rtol=1e-6, atol=0)
    assert found[[0, 1, 3, 4, 5]].abs().max() < 1e-9


def test_white_noise_has_power_in_proportion_to_the_width_of_a_band() -> None:
    noise = torch.randn(400, 1, 1280, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    power = band_covariances(noise, BANDS, 256).mean(0).flatten()
    expected = torch.tensor(np.diff(BANDS) / 128)
    torch.testing.assert_close(power, expected, rtol=0.05, atol=0)


def test_every_bin_of_a_band_counts_once_and_a_narrow_band_has_one() -> None:
    assert band_bins((1, 4, 8), 1280, 256) == [(5, 20), (20, 40)]
    assert band_bins((1, 1.5, 1.6, 200), 64, 64)[:2] == [(1, 2), (2, 3)]
    assert band_bins((100, 200), 64, 64) == [(32, 33)]  # above the Nyquist frequency: the last bin


def test_log_triangle_is_the_matrix_logarithm_of_scipy() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 9))
    covariance = x @ x.swapaxes(-1, -2) / 9
    found = log_triangle(shrunk(torch.tensor(covariance), 0.1)).reshape(2, 3, -1)
    row, column = np.triu_indices(4)
    for b in range(2):
        for k in range(3):
            whole = 0.9 * covariance[b, k] + 0.1 * np.trace(covariance[b, k]) / 4 * np.eye(4)
            wanted = logm(whole)[row, column] * np.where(row == column, 1, math.sqrt(2))
            np.testing.assert_allclose(found[b, k].numpy(), wanted, atol=1e-6)


def test_the_length_of_a_triangle_is_that_of_the_matrix() -> None:
    x = torch.randn(1, 1, 5, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = x @ x.transpose(-1, -2)
    found = log_triangle(shrunk(covariance, 0.5))
    eye = torch.eye(5, dtype=torch.float64)
    whole = 0.5 * covariance + 0.5 * covariance.diagonal(dim1=-2, dim2=-1).mean() * eye
    wanted = torch.linalg.eigvalsh(whole).log().square().sum().sqrt()
    torch.testing.assert_close(found.norm(), wanted, rtol=1e-6, atol=0)


def test_an_upper_triangle_is_the_whole_matrix() -> None:
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    x = x + x.mT
    assert upper(x).shape == (2, 3, 15)
    assert torch.equal(symmetric(upper(x)), x)


def test_the_spectrum_is_that_of_a_periodogram(encoder: Encoder) -> None:
    x = windows()
    found = Readout(ReadoutConfig(("spectrum",), NAMES), MODEL)(batch_of(x), encoder).reshape(3, 4, 45)
    frequency, power = periodogram(x.double().numpy() / 15, 256, "hann", detrend="constant", scaling="density")
    for place in range(45):  # windows of 2 s have a bin every half Hz; an edge belongs to the bin above
        inside = (frequency >= place + 0.5) & (frequency < place + 1.5)
        np.testing.assert_allclose(found[..., place].exp().numpy(), power[..., inside].sum(-1) / 2, rtol=1e-3)


def test_narrow_bands_are_those_of_a_filter_bank_of_3_hz(encoder: Encoder) -> None:
    x = windows()
    found = Readout(ReadoutConfig(("narrow",), NAMES), MODEL)(batch_of(x), encoder)
    edges = [0.5 + 3 * number for number in range(16)]
    wanted = log_triangle(shrunk(band_covariances(x / 15, edges, 256), 0.05))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_learned_bands_weigh_bins_by_gaussians_and_start_side_by_side(encoder: Encoder) -> None:
    readout, x = Readout(ReadoutConfig(("bands",), NAMES), MODEL), windows(2)
    with torch.no_grad():
        readout.bands.log_centre_K[3] = math.log(20.0)
        readout.bands.log_width_K[3] = math.log(1.5)
        readout.bands.shrinkage_K[3] = math.log(0.2 / 0.8)
        found = readout(batch_of(x), encoder).reshape(2, 12, 10).numpy()
    bins = band_covariances(x.double() / 15, FINE_EDGES, 256).numpy()
    for band, (low, high) in enumerate(itertools.pairwise(LEARNED_EDGES)):
        centre, width, share = (20.0, 1.5, 0.2) if band == 3 else ((low + high) / 2, (high - low) / 2, 0.05)
        weight = np.exp(-(((np.arange(1, 46) - centre) / width) ** 2) / 2)
        covariance = np.einsum("f,bfcd->bcd", weight / weight.sum(), bins)
        row, column = np.triu_indices(4)
        for b in range(2):
            whole = (1 - share) * covariance[b] + (share * np.trace(covariance[b]) / 4 + 1e-8) * np.eye(4)
            wanted = logm(whole)[row, column] * np.where(row == column, 1, math.sqrt(2))
            np.testing.assert_allclose(found[b, band], wanted, atol=1e-3)


def test_the_gradient_of_learned_bands() -> None:
    bands = learned_bands().double()
    x = torch.randn(2, 45, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cross = x @ x.mT
    names = ("log_centre_K", "log_width_K", "shrinkage_K")

    def run(*values: torch.Tensor) -> torch.Tensor:
        for name, value in zip(names, values, strict=True):
            delattr(bands, name)
            setattr(bands, name, value)
        return bands.log_covariances(cross)

    assert torch.autograd.gradcheck(run, tuple(getattr(bands, name).detach().requires_grad_() for name in names))


def test_tokens_after_blocks_are_those_of_the_encoder(encoder: Encoder) -> None:
    batch = batch_of(windows())
    for grad in (False, True):  # without gradients the blocks run without their modules
        with torch.set_grad_enabled(grad):
            found = tokens_after(encoder, batch, (1, 2, 4))
            for layer, tokens in found.items():
                torch.testing.assert_close(tokens.x_RND, encoder(batch, layer=layer).x_RND, rtol=1e-5, atol=1e-5)


def test_moments_are_those_of_numpy_also_for_windows_with_other_channels(encoder: Encoder) -> None:
    some, other = windows(1)[0], windows(1, NAMES[:2], seed=5)[0]
    mixed = Batch.ragged([some, other], [ids(NAMES), ids(NAMES[:2])], torch.full((2,), 15.0))
    found = moments(encoder(mixed))
    for number, (x, names) in enumerate([(some, NAMES), (other, NAMES[:2])]):
        alone = encoder(batch_of(x[None], names)).x_RND.detach().flatten(0, 1).numpy()
        wanted = np.concatenate([alone.mean(0), alone.std(0)])
        np.testing.assert_allclose(found[number].detach().numpy(), wanted, atol=1e-5)


def test_attention_weighs_the_tokens_of_a_window_by_a_softmax_also_beside_windows_with_other_channels(
    encoder: Encoder,
) -> None:
    some, other = windows(1)[0], windows(1, NAMES[:2], seed=5)[0]
    mixed = Batch.ragged([some, other], [ids(NAMES), ids(NAMES[:2])], torch.full((2,), 15.0))
    query = 3 * torch.randn(4, 16, generator=torch.Generator().manual_seed(2))
    found = attended(encoder(mixed), query).reshape(2, 4, 16)
    for number, (x, names) in enumerate([(some, NAMES), (other, NAMES[:2])]):
        alone = encoder(batch_of(x[None], names)).x_RND.detach().flatten(0, 1).numpy()
        for place, one in enumerate(query.numpy()):
            weight = np.exp(alone @ one - (alone @ one).max())
            wanted = (weight[:, None] * alone).sum(0) / weight.sum()
            np.testing.assert_allclose(found[number, place].detach().numpy(), wanted, atol=1e-5)
    mean = encoder(mixed).per_window()
    torch.testing.assert_close(attended(encoder(mixed), torch.zeros(1, 16)), mean, rtol=1e-5, atol=1e-5)


def test_queries_begin_along_both_directions_of_the_first_components() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(4, 0.1, 16)
    turn, _ = torch.linalg.qr(torch.randn(16, 16, generator=generator))
    tokens = (torch.randn(5000, 16, generator=generator) * spread) @ turn.T + 3
    readout = Readout(ReadoutConfig(("attention",)), MODEL)
    readout.fit_queries(tokens)
    assert torch.equal(readout.query_QD[0::2], -readout.query_QD[1::2])
    torch.testing.assert_close((tokens @ readout.query_QD.T).std(0), torch.ones(4), rtol=1e-3, atol=0)
    directions, spreads = principal_components(tokens, 2)
    assert (directions.T.float() @ turn[:, :2]).diagonal().abs().min() > 0.95
    np.testing.assert_allclose(spreads, [4.0, 3.74], rtol=0.05)


def test_parts_stand_side_by_side_with_the_widths_that_are_told(encoder: Encoder) -> None:
    sizes = widths(ALL, MODEL)
    assert sizes == [
        16,
        2 * 16 * 4,
        4 * 16,
        4 * 16,
        4 * 10,
        4,
        4 * 6,
        6 * 10,
        4 * 45,
        15 * 10,
        12 * 10,
    ]  # 16 components: four groups
    assert moment_layers(4) == (1, 2, 3, 4)
    assert moment_layers(8) == (2, 4, 6, 8)
    readout, batch = Readout(ALL, MODEL), batch_of(windows())
    whole = readout(batch, encoder)
    assert whole.shape == (3, width_of(ALL, MODEL))
    for part, piece in zip(PARTS, whole.split(sizes, 1), strict=True):
        alone = Readout(ReadoutConfig((part,), NAMES), MODEL)(batch, encoder)
        torch.testing.assert_close(alone, piece)


def test_the_order_of_channels_and_further_channels_change_no_simple_feature(encoder: Encoder) -> None:
    readout = Readout(ReadoutConfig(SIMPLE, NAMES), MODEL)
    x = windows()
    wanted = readout(batch_of(x), encoder)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(readout(batch_of(x[:, order], tuple(NAMES[n] for n in order)), encoder), wanted)
    more = torch.cat([windows(3, ("Pz",), seed=9), x], 1)
    mixed = Batch.ragged([more[0], x[1], more[2]], [ids(("Pz", *NAMES)), ids(NAMES), ids(("Pz", *NAMES))])
    mixed = Batch(mixed.signal_RT, mixed.channels_R2, mixed.layout, torch.full((len(mixed.signal_RT),), 15.0))
    torch.testing.assert_close(readout(mixed, encoder), wanted)


def test_the_scale_of_the_recording_takes_its_unit_away(encoder: Encoder) -> None:
    readout, x = Readout(ReadoutConfig(SIMPLE, NAMES), MODEL), windows()
    louder = Batch.dense(7 * x, ids(NAMES), torch.full((3,), 7 * 15.0))
    torch.testing.assert_close(readout(louder, encoder), readout(batch_of(x), encoder), rtol=1e-4, atol=1e-4)


def test_flat_channels_and_half_precision_stay_finite(encoder: Encoder) -> None:
    x = windows().half()
    x[0, 1] = 0
    x[1] = 0
    assert torch.isfinite(Readout(ALL, MODEL)(batch_of(x), encoder)).all()


def test_a_missing_channel_is_named(encoder: Encoder) -> None:
    readout = Readout(ReadoutConfig(("power",), NAMES), MODEL)
    with pytest.raises(InputError, match=r"1 of the 4 channels that the head reads are missing \(C4\)"):
        readout(batch_of(windows(2, ("Fz", "C3", "O1")), ("Fz", "C3", "O1")), encoder)


def test_a_missing_scale_is_said(encoder: Encoder) -> None:
    with pytest.raises(InputError, match="needs the scale of the recording"):
        Readout(ReadoutConfig(("tangent",), NAMES), MODEL)(Batch.dense(windows(), ids(NAMES)), encoder)


def test_every_part_gets_the_same_variance_and_a_constant_feature_none(encoder: Encoder) -> None:
    readout, batch = Readout(ALL, MODEL), batch_of(windows(40))
    with torch.no_grad():
        raw = readout.raw(batch, encoder)
        raw[:, 0] = 5.0
        readout.fit_scale(raw)
        scaled = (raw - readout.shift_P) * readout.scale_P
    assert scaled[:, 0].abs().max() == 0
    for number, piece in enumerate(scaled.split(widths(ALL, MODEL), 1)):
        wanted = 1.0 if number else 15 / 16
        assert piece.var(0, correction=0).sum().item() == pytest.approx(wanted, rel=1e-3)
        assert piece.mean(0).abs().max() < 1e-5


def test_components_are_principal_components() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(4, 0.1, 16)
    turn, _ = torch.linalg.qr(torch.randn(16, 16, generator=generator))
    tokens = (torch.randn(5000, 16, generator=generator) * spread) @ turn.T + 3
    readout = Readout(ReadoutConfig(("covariance",), NAMES), MODEL)
    readout.fit_components(tokens)
    assert (readout.components_DK.T @ turn).diagonal().abs()[:4].min() > 0.95
    projected = (tokens - readout.centre_D) @ readout.components_DK
    assert (projected.var(0).diff() < 0).all()


def test_gradients_reach_the_encoder_through_every_part_that_reads_it(encoder: Encoder) -> None:
    for part in ("mean", "moments", "attention", "channels", "covariance"):
        encoder.zero_grad()
        Readout(ReadoutConfig((part,), NAMES), MODEL)(batch_of(windows()), encoder).square().sum().backward()
        gradient = encoder.embed.weight.grad
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


def test_common_channels_are_those_of_all_montages_each_once() -> None:
    def read(names: tuple[str, ...]) -> np.ndarray:
        return ids(names).numpy()

    assert common_channels([("Fz", "C3", "O1"), ("O1", "Pz", "Fz")], read) == ("Fz", "O1")
    assert common_channels([("Fp1-F7", "F7-T7")], read) == ("Fp1-F7", "F7-T7")
    assert common_channels([("Fz", "C3", "Fz")], read) == ("C3",)  # which of the two Fz is not known
    assert common_channels([], read) == ()


@pytest.mark.parametrize(
    ("parts", "channels", "more", "message"),
    [
        (("power",), (), {}, "needs the channels that every window has"),
        ((), NAMES, {}, "each once"),
        (("mean", "mean"), (), {}, "each once"),
        (("power",), ("Fz", "Fz"), {}, "a channel is given twice"),
        (("power",), NAMES, {"bands": (8.0, 4.0)}, "rising edges"),
        (("power",), NAMES, {"shrinkage": 0.0}, "shrinkage is 0"),
        (("loudness",), NAMES, {}, "choose one of"),
    ],
)
def test_a_wrong_config_is_refused(parts, channels, more, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        ReadoutConfig(parts, channels, **more)
