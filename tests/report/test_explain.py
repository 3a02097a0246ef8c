"""Explanations: a model that reads one channel or one band is found out; groups, maps and pictures."""

import itertools
import re
import tempfile
from pathlib import Path

import mne
import numpy as np
import pytest
import torch
from PIL import Image

import cerebro_eeg
from cerebro_eeg import Batch, errors
from cerebro_eeg.config import HeadConfig, ModelConfig, ReadoutConfig, Training
from cerebro_eeg.data.filtering.splines import from_the_others, spline_weights
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.report.explain import Explanation, channel_attention, electrode_map, explain
from cerebro_eeg.runs.explain import BANDS, choose_windows, without_band
from cerebro_eeg.runs.predict import cut_windows, make_reader

NAMES = ("Fp1", "Fz", "C3", "Cz", "C4", "O1")
EDGES = (1.0, 4.0, 8.0, 13.0, 30.0, 45.0)


def model_that_reads(channel, band, channels=NAMES, **head):
    """A model whose logit is the log power of one channel in one band, and which reads nothing else."""
    torch.manual_seed(0)
    config = ModelConfig(depth=2, width=12, heads=3, mlp_ratio=2.0, window=512)
    model = Cerebro(2, config=config, n_times=512)
    model.reset_head(2, ("rest", "task"), ReadoutConfig(parts=("power",), channels=channels, bands=EDGES))
    weight = torch.zeros(len(channels), len(EDGES) - 1)
    weight[channels.index(channel), list(BANDS).index(band)] = 0.4
    with torch.no_grad():
        model.final_layer.weight.copy_(torch.stack([0 * weight, weight]).flatten(1))
        model.final_layer.bias.zero_()
    model.head = HeadConfig(2, "classification", ("rest", "task"), 512, 0.5, readout=model.head.readout, **head)
    model.training_record = Training(1, 1, dict.fromkeys(channels, 10))
    said = cerebro_eeg.predict(raw_of(), model).output  # half of the windows of this recording get each class
    with torch.no_grad():
        model.final_layer.bias[1] = -float(np.median(np.log(said[:, 1] / said[:, 0])))
    return model.eval()


def raw_of(seconds=41, names=NAMES, seed=0, rate=256):
    """Pink-like noise with all bands in all channels, in volts."""
    rng = np.random.default_rng(seed)
    data = np.cumsum(rng.normal(0, 2.0, (len(names), seconds * rate)), 1)
    data = data - np.convolve(np.ones(rate) / rate, data.mean(0), "same") + rng.normal(0, 10, data.shape)
    return mne.io.RawArray(data * 1e-6, mne.create_info(list(names), rate, "eeg"), verbose="error")


# Known answers


@pytest.mark.parametrize("how", ["silence", "others"])
@pytest.mark.parametrize(("channel", "band"), [("Cz", "alpha"), ("O1", "beta")])
def test_a_model_that_reads_one_channel_and_one_band_is_found_out(channel, band, how):
    found = explain(raw_of(), model_that_reads(channel, band), of="task", replace=how)
    changes = {name: abs(value) for name, value in found.channel_mean.items()}
    assert changes[channel] > 0.02
    assert all(value == 0 for name, value in changes.items() if name != channel)  # exactly: nothing else is read
    bands = {name: abs(value) for name, value in found.band_mean.items()}
    assert bands[band] > 0.05
    assert all(value < 0.05 * bands[band] for name, value in bands.items() if name != band)
    assert found.by_channel.shape == (20, 6)
    assert found.silent == (NAMES if how == "silence" else ())


def test_a_change_is_the_answer_before_minus_the_answer_after():
    """Each is computed anew here, from the windows as arrays."""
    model, raw = model_that_reads("Cz", "alpha"), raw_of()
    found = explain(raw, model, windows=None)
    reader = make_reader(model)
    _, signal = reader.open(raw)
    windows = next(cut_windows(signal, 512, 512, 1000))
    x = torch.from_numpy(windows.signal_BTC.astype(np.float32)).transpose(1, 2)
    ids = torch.tensor(cerebro_eeg.match(NAMES).ids)

    def answer(x):
        with torch.no_grad():
            return model(Batch.dense(x, ids, torch.full((len(x),), signal.scale))).softmax(1).numpy()

    before = answer(x)
    chosen = (before[:, 1] >= 0.5).astype(int)
    assert np.array_equal(found.answer, chosen)
    assert len(set(chosen)) == 2
    np.testing.assert_allclose(found.output, before, atol=1e-6)
    rows = np.arange(len(x))
    for column in range(6):
        silent = x.clone()
        silent[:, column] = 0
        change = before[rows, chosen] - answer(silent)[rows, chosen]
        np.testing.assert_allclose(found.by_channel[:, column], change, atol=1e-6)
    for place, (low, high) in enumerate(found.bands.values()):
        left = x.numpy() - cosines(x.numpy(), low, high)
        change = before[rows, chosen] - answer(torch.from_numpy(left))[rows, chosen]
        np.testing.assert_allclose(found.by_band[:, place], change, atol=2e-5)


def cosines(x_BCT, low, high, rate=256):
    """The part of windows in a band, as a sum of cosines that are written out."""
    T = x_BCT.shape[-1]
    time = np.arange(T) + 0.5
    found = np.zeros(x_BCT.shape)
    for k in range(T):
        if low <= k * rate / (2 * T) < high:
            wave = np.cos(np.pi * k * time / T)
            found += (x_BCT @ wave / (wave @ wave))[..., None] * wave
    return found.astype(np.float32)


def test_bands_add_up_to_the_window_and_a_wave_lies_in_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 512, 3)).astype(np.float32) * 20
    edges = [0, 0.5, 4, 8, 13, 30, 75, 129]
    parts = [x - without_band(x, low, high, 256) for low, high in itertools.pairwise(edges)]
    np.testing.assert_allclose(sum(parts), x, atol=1e-4)
    wave = np.sin(2 * np.pi * 10.3 * np.arange(512) / 256 + 1)[None, :, None].astype(np.float32)
    left = {name: without_band(wave, *band, 256).std() / wave.std() for name, band in BANDS.items()}
    assert left["alpha"] < 0.12
    assert all(value > 0.99 for name, value in left.items() if name != "alpha")


def test_an_encoder_is_explained_and_left_as_it_was():
    torch.manual_seed(0)
    model = Cerebro(3, config=ModelConfig(depth=2, width=12, heads=3, mlp_ratio=2.0, window=512), n_times=512)
    with torch.no_grad():
        model.final_layer.weight.mul_(5)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = explain(raw_of(), model)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert np.array_equal(found.answer, found.output.argmax(1))
    assert (np.abs(found.by_channel).max(0) > 1e-5).all()
    with pytest.raises(errors.ConfigError, match="of is 'sleep'; the model has output 0, output 1, output 2"):
        explain(raw_of(), model, of="sleep")


def test_a_centred_head_is_centred_anew_each_time():
    """All windows say the same about each other, so a shift of all of them changes nothing."""
    model = model_that_reads("Cz", "alpha", centred=True)
    found = explain(raw_of(), model, of="task", windows=None)
    assert found.output[:, 1].mean() == pytest.approx(0.5, abs=0.05)
    assert np.abs(found.by_channel[:, 3]).max() > 0.02  # the differences between windows are gone
    assert abs(found.channel_mean["Cz"]) < 0.02  # and their mean was none


def test_regressions_have_a_fall_of_the_value():
    torch.manual_seed(0)
    config = ModelConfig(depth=2, width=12, heads=3, mlp_ratio=2.0, window=512)
    model = Cerebro(2, config=config, n_times=512, task="regression")
    model.head = HeadConfig(2, "regression", ("age", "score"), 512)
    with pytest.raises(errors.ConfigError, match="predicts age, score; choose one of them with of="):
        explain(raw_of(), model)
    found = explain(raw_of(), model, of="score")
    assert set(found.answer.tolist()) == {1}
    assert "fall of the value" in text_of(found.plot)


# Windows, recordings and groups


def test_windows_are_spread_over_the_recording():
    model = model_that_reads("Cz", "alpha")
    reader = make_reader(model, stride=0.1)
    _, signal = reader.open(raw_of())
    every = choose_windows(reader, signal, None)
    assert len(every.start_B) == 385  # every 26 samples
    for most in (1, 7, 40, 500):
        some = choose_windows(reader, signal, most)
        assert len(some.start_B) == min(most, 385)
        assert set(some.start_B) <= set(every.start_B)
        if most > 1:
            steps = np.diff(some.start_B)
            assert steps.max() <= 2 * steps.min() + 0.2
            assert some.start_B[-1] > 38 - 2 * steps.max()
    with pytest.raises(errors.RecordingError, match="longest stretch without a gap is 1 s"):
        explain(raw_of(1), model)


def test_groups_count_the_same_and_have_a_spread():
    model = model_that_reads("Cz", "alpha")
    raws = [raw_of(41, seed=1), raw_of(21, seed=2), raw_of(21, seed=3)]
    found = explain(raws, model, of="task", groups=["zoe", "bob", "zoe"])
    assert found.groups == ("zoe", "bob")
    alone = [explain(raw, model, of="task") for raw in raws]
    ann = np.concatenate([alone[0].by_channel, alone[2].by_channel]).mean(0)
    bob = alone[1].by_channel.mean(0)
    np.testing.assert_allclose(found.group_channels, [ann, bob], atol=1e-6)
    np.testing.assert_allclose(list(found.channel_mean.values()), (ann + bob) / 2, atol=1e-6)
    np.testing.assert_allclose(list(found.channel_spread.values()), np.std([ann, bob], 0, ddof=1), atol=1e-6)
    assert found.recording.tolist() == [0] * 20 + [1] * 10 + [2] * 10
    assert explain(raws, model).groups == (1, 2, 3)
    assert "zoe" not in text_of(found.plot)  # the picture names nobody
    with pytest.raises(errors.InputError, match="groups has 1 names for 3 recordings"):
        explain(raws, model, groups=["zoe"])


def test_recordings_may_differ_in_their_channels():
    torch.manual_seed(0)
    model = Cerebro(2, config=ModelConfig(depth=2, width=12, heads=3, window=512), n_times=512)
    found = explain([raw_of(), raw_of(names=("Cz", "Pz"))], model)
    assert found.channels == (*NAMES, "Pz")
    assert np.isnan(found.by_channel[:20, 6]).all()
    assert np.isfinite(found.by_channel[20:, [3, 6]]).all()
    assert np.isnan(found.channel_spread["Pz"])
    assert np.isfinite(found.channel_mean["Pz"])
    found.plot()


def test_epochs_have_groups_of_their_own():
    model, raw = model_that_reads("Cz", "alpha"), raw_of()
    raw.filter(0.5, 70, verbose="error")
    with raw.info._unlock():
        raw.info.update(highpass=0.1, lowpass=75.0)
    epochs = mne.make_fixed_length_epochs(raw, 2.0, preload=True, verbose="error")
    found = explain(epochs, model, groups=["a", "b"] * 10)
    assert found.groups == ("a", "b")
    np.testing.assert_allclose(found.group_bands[1], found.by_band[1::2].mean(0), atol=1e-6)
    with pytest.raises(errors.InputError, match="groups has 3 names for 20 epochs"):
        explain(epochs, model, groups=["a"] * 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"windows": 0}, "windows is 0"),
        ({"replace": "noise"}, "replace is 'noise'; choose silence or others"),
        ({"bands": {"x": (8, 4)}}, "the band 'x' goes from 8 to 4 Hz"),
        ({"bands": {"x": (90, 99)}}, "no band lies below 75 Hz"),
    ],
)
def test_wrong_questions_are_refused(change, words):
    with pytest.raises(errors.ConfigError, match=words):
        explain(raw_of(), model_that_reads("Cz", "alpha"), **change)


# Splines


def test_splines_are_those_of_mne():
    from mne.channels.interpolation import _make_interpolation_matrix

    rng = np.random.default_rng(0)
    where = rng.normal(size=(12, 3))
    where /= np.linalg.norm(where, axis=1, keepdims=True)
    np.testing.assert_allclose(
        spline_weights(where[:2], where[2:]), _make_interpolation_matrix(where[2:], where[:2]), atol=1e-9
    )


def test_a_channel_comes_from_the_others_alone():
    names = (*NAMES, "Fp1-F7")
    found = from_the_others(names)
    assert sorted(found) == list(range(6))
    for column, weights in found.items():
        assert weights[column] == weights[6] == 0
        assert weights.sum() == pytest.approx(1)  # a potential that is the same everywhere stays the same
    assert from_the_others(NAMES[:4]) == {}


# Attention and electrodes


def encoder_of(**fields):
    torch.manual_seed(0)
    model = Cerebro(config=ModelConfig(**{"depth": 4, "width": 12, "heads": 3, "window": 512, **fields}))
    model.training_record = Training(1, 1, dict.fromkeys(NAMES, 10))
    return model.eval()


def test_attention_of_a_recording():
    model = encoder_of()
    found = channel_attention(raw_of(), model, windows=5)
    assert found.weights.shape == (5, 2, 3, 6, 6)
    assert found.layers == (1, 3)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-5)
    assert np.mean(list(found.received(3).values())) == pytest.approx(1)
    mean = found.weights[:, 1].mean((0, 1))
    np.testing.assert_allclose(list(found.given("Cz", 3).values()), 6 * mean[3], atol=1e-6)
    np.testing.assert_allclose(found.mean(), found.weights.mean((0, 1, 2)), atol=1e-6)
    assert len(text_of(found.plot, "Cz").split("layer")) == 3
    with pytest.raises(errors.InputError, match="there is no channel 'Oz'"):
        found.given("Oz")
    with pytest.raises(errors.ConfigError, match="layer 2 does not attend"):
        channel_attention(raw_of(), model, layers=[2])
    with pytest.raises(errors.ConfigError, match="layer is 2; choose one of 1, 3"):
        found.mean(2)


def test_electrodes_that_are_alike_are_found():
    model = encoder_of()
    with torch.no_grad():
        table = model.encoder.electrodes
        ids = [cerebro_eeg.match([name]).ids[0][0] for name in ("C3", "C4", "O1")]
        table[ids[1]] = table[ids[0]] * 2
        table[ids[2]] = -table[ids[0]]
    found = electrode_map(model, like="C3", names=["C3", "C4", "O1", "Fp1", "Fz"])
    (values,) = found.maps.values()
    assert values[0] == pytest.approx(1)
    assert values[1] > 0.9
    assert values[2] < -0.5
    assert electrode_map(model).channels == ("Fp1", "Fz", "C3", "Cz", "C4", "O1")  # those that were trained


def test_components_are_those_of_the_centred_vectors():
    model = encoder_of()
    embedding = cerebro_eeg.embed(raw_of(), model, level="channel")
    found = electrode_map(embedding, components=5)
    vectors = embedding.features.mean(0).astype(np.float64)
    distance = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    scores = np.stack(list(found.maps.values()), 1)
    np.testing.assert_allclose(np.linalg.norm(scores[:, None] - scores[None], axis=-1), distance, atol=1e-5)
    assert (np.diff(scores.std(0)) <= 1e-9).all()
    shares = [int(title.partition("(")[2].rstrip("%)")) for title in found.maps]
    assert sum(shares) == pytest.approx(100, abs=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"like": "Oz"}, "there is no electrode 'Oz'; choose one of Fp1, "),
        ({"components": 6}, "components is 6; expected 1 to 5"),
        ({"names": ["Cz", "QQ7", "Pz"]}, "'QQ7' is no electrode that the model knows"),
        ({"names": ["Cz", "Pz"]}, "2 electrodes make no map"),
    ],
)
def test_maps_that_cannot_be_are_refused(arguments, words):
    with pytest.raises(errors.CerebroError, match=words):
        electrode_map(encoder_of(), **arguments)
    with pytest.raises(errors.InputError, match="embed with level='channel'"):
        electrode_map(cerebro_eeg.embed(raw_of(), encoder_of()))


# Pictures


def text_of(plot, *arguments):
    """The words of a picture, which an SVG file holds as text."""
    with tempfile.TemporaryDirectory() as folder:
        plot(*arguments, path=Path(folder) / "a.svg")
        return " ".join(re.findall(r"<text[^>]*>([^<]*)", (Path(folder) / "a.svg").read_text(encoding="utf-8")))


def test_pictures_are_written_and_show_themselves(tmp_path):
    found = explain(raw_of(), model_that_reads("Cz", "alpha"))
    assert isinstance(found, Explanation)
    figure = found.plot(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 1500
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 100
    assert figure._repr_png_().startswith(b"\x89PNG")
    words = text_of(found.plot)
    for word in ("Cz", "alpha", "8-13 Hz", "Without each channel", "20 windows"):
        assert word in words
    assert repr(found).startswith("Explanation(20 windows; most: alpha ")
    found.plot(tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]
    with pytest.raises(errors.ConfigError, match=r"path ends in '.jpeg'; expected a name with .png or .svg"):
        found.plot(tmp_path / "a.jpeg")
