"""The public model: braindecode's arguments, features, a one-line error for each mistake, and a frozen encoder."""

import copy
import logging
import re
import subprocess
import sys
from pathlib import Path

import mne
import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro, Encoder, MaskedCerebro, errors
from cerebro_eeg.config import ModelConfig, SignalConfig, Training, preset
from cerebro_eeg.model import inputs
from tiny_models import small

NAMES = ["Fp1", "Cz", "EEG T3-REF"]


def make(n_outputs=None, **arguments):
    torch.manual_seed(0)
    config = arguments.pop("config", small())
    return Cerebro(n_outputs, **{"ch_names": NAMES, "config": config, **arguments}).eval()


def noise(windows=4, channels=3, samples=40, seed=0):
    return np.random.default_rng(seed).normal(size=(windows, channels, samples)).astype(np.float32) * 20


# ---- the words of the field ----------------------------------------------------------------------------------------


def test_braindecode_signature():
    info = mne.create_info(["Fp1", "Cz", "O2"], 256.0, "eeg")
    model = Cerebro(n_outputs=4, n_chans=3, chs_info=info["chs"], n_times=1280, sfreq=256.0, config="tiny")
    x = torch.tensor(noise(2, 3, 1280))
    assert model(x).shape == (2, 4)
    found = model(x, return_features=True)
    assert found["features"].shape == (2, 64)
    assert found["tokens"].shape == (2, 3, 20, 64)
    assert found["cls_token"] is None
    assert isinstance(model.final_layer, torch.nn.Linear)
    torch.testing.assert_close(model.final_layer(found["features"]), model(x))
    assert (model.n_outputs, model.n_chans, model.n_times, model.sfreq) == (4, 3, 1280, 256.0)
    assert (model.input_window_seconds, model.input_shape) == (5.0, (1, 3, 1280))
    assert model.chs_info is info["chs"]
    model.reset_head(7)
    assert model(x).shape == (2, 7)
    assert model.head.n_outputs == 7


def test_without_outputs_the_model_gives_features():
    x = torch.tensor(noise())
    model = make()
    torch.testing.assert_close(model(x), model(x, return_features=True)["features"])


def test_seconds_and_samples_must_agree():
    assert make(input_window_seconds=0.15625).n_times == 40
    with pytest.raises(
        errors.ConfigError, match=r"n_times is 41, but input_window_seconds=0\.15625 at 256 Hz gives 40"
    ):
        make(n_times=41, input_window_seconds=0.15625)


def test_names_and_numbers_of_channels_must_agree():
    with pytest.raises(errors.InputError, match="n_chans is 4, but 3 channels are named"):
        make(n_chans=4)
    info = mne.create_info(["Fp1", "Cz"], 256.0, "eeg")
    with pytest.raises(errors.ConfigError, match="ch_names and chs_info name different channels"):
        make(chs_info=info["chs"])


def test_positions_of_chs_info_are_used_for_nearest():
    montage = mne.channels.make_standard_montage("mgh60")
    info = mne.create_info(montage.ch_names, 256.0, "eeg")
    info.set_montage(montage)
    with pytest.raises(errors.ChannelError, match="nearest"):
        Cerebro(chs_info=info["chs"], config=small())
    model = Cerebro(chs_info=info["chs"], config=small(), unknown="nearest_or_drop")
    names = dict(zip([r.label for r in model.channels.rows], model.channels.rows, strict=True))
    assert [names[f"EEG00{i}"].channel.name for i in (1, 2, 3)] == ["Fp1", "Fpz", "Fp2"]  # as the maker's table has it
    assert len(model.channels.channels) > 55


def test_channels_without_a_kind_are_taken_by_their_labels():
    """MNE and braindecode write "misc" where nobody named a kind; beside channels of a kind, misc is believed."""
    unnamed = mne.create_info(["Fp1", "Cz", "ECG"], 256.0)
    assert make(ch_names=None, chs_info=unnamed["chs"]).channels.names == ["Fp1", "Cz"]
    mixed = mne.create_info(["Fp1", "Cz", "O2"], 256.0, ["eeg", "eeg", "misc"])
    assert make(ch_names=None, chs_info=mixed["chs"]).channels.names == ["Fp1", "Cz"]


# ---- features ------------------------------------------------------------------------------------------------------


def test_embed_gives_windows_channels_or_tokens():
    model, x = make(), noise()
    tokens = model.embed(x, level="token")
    assert tokens.shape == (4, 3, 5, 12)
    np.testing.assert_allclose(model.embed(x, level="channel"), tokens.mean(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.embed(x), tokens.mean((1, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.embed(x), model(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_embed_does_not_depend_on_the_batch_size_and_leaves_no_trace():
    model, x = make().train(), noise(7)
    before = copy.deepcopy(model.state_dict())
    np.testing.assert_allclose(model.embed(x, batch_size=2), model.embed(x, batch_size=64), rtol=1e-5, atol=1e-6)
    assert model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_embed_of_an_inner_layer():
    model, x = make(), noise()
    assert not np.allclose(model.embed(x, layer=0), model.embed(x, layer=1))
    unnormed = model.embed(x, layer=2, level="token")
    np.testing.assert_allclose(unnormed, model.embed(x, level="token"), rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InputError, match=r"layer is 3; the encoder has layers 0 \(embeddings\) to 2"):
        model.embed(x, layer=3)


def test_embed_cuts_a_recording_and_says_what_is_left_over(caplog):
    model = make()
    recording = noise(1, 3, 95)[0]
    with caplog.at_level(logging.INFO, "cerebro_eeg"):
        features = model.embed(recording)
    assert features.shape == (2, 12)
    assert "the last 15 of 95 samples do not fill a window" in caplog.text
    np.testing.assert_allclose(features[1], model.embed(recording[None, :, 40:80])[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InputError, match="the recording has 39 samples; a window of this model has 40"):
        model.embed(recording[:, :39])


def test_embed_with_names_of_its_own_ignores_order():
    model, x = make(), noise()
    other = model.embed(x[:, [2, 0, 1]], ch_names=["T7", "FP1", "CZ"])
    np.testing.assert_allclose(other, model.embed(x), rtol=1e-5, atol=1e-6)
    assert model.channels.names == ["Fp1", "Cz", "T7"]


def test_channels_that_are_not_eeg_are_left_out_aloud(caplog):
    model, x = make(), noise(channels=4)
    with caplog.at_level(logging.WARNING, "cerebro_eeg"):
        found = model.embed(x, ch_names=[*NAMES, "EKG1"])
    assert "EKG1" in caplog.text
    np.testing.assert_allclose(found, model.embed(x[:, :3]), rtol=1e-5, atol=1e-6)


def test_units_are_one_signal():
    model, x = make(), noise()
    for unit, factor in (("mV", 1e-3), ("V", 1e-6)):
        np.testing.assert_allclose(model.embed(x * factor, unit=unit), model.embed(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.InputError, match="unit is 'nV'; choose one of uV, mV, V"):
        model.embed(x, unit="nV")


def test_scale_of_the_recording_is_needed_where_the_config_says_so():
    x = noise()
    for config in (small(normalization="recording"), small(amplitude=True)):
        model = make(config=config)
        with pytest.raises(errors.InputError, match="needs the scale of the recording in microvolts; pass scale="):
            model.embed(x)
        louder = model.embed(2 * x, scale=20.0)
        assert not np.allclose(louder, model.embed(x, scale=20.0), rtol=1e-3)
        np.testing.assert_allclose(louder, model.embed(x, scale=[10.0] * 4), rtol=1e-4, atol=1e-5)


# ---- one clear line ------------------------------------------------------------------------------------------------

BAD = [
    ({"x": noise()[0, 0]}, errors.InputError, r"shape \(40,\); expected \(windows, channels, samples\)"),
    ({"x": noise(channels=4)}, errors.InputError, "windows have 4 channels, but 3 are named"),
    ({"x": noise(windows=0)}, errors.InputError, r"the array is empty: \(0, 3, 40\)"),
    ({"x": noise(samples=0)}, errors.InputError, r"the array is empty: \(4, 3, 0\)"),
    (
        {"x": noise(samples=7)},
        errors.InputError,
        "a window of 7 samples gives no patch; waveform patches need at least 8",
    ),
    ({"ch_names": ["Fp1", "Cz", "Qx9"]}, errors.ChannelError, "Qx9"),
    ({"ch_names": ["Fp1", "T3", "T7"]}, errors.ChannelError, "T3.*T7"),
    ({"sfreq": float("nan")}, errors.InputError, "sfreq is nan; expected a positive number of Hz"),
    ({"sfreq": "fast"}, errors.InputError, "sfreq is 'fast'; expected a number of Hz"),
    ({"layer": 1.5}, errors.InputError, "layer is 1.5; the encoder has layers 0"),
    ({"batch_size": 0}, errors.InputError, "batch_size is 0; expected a whole number of at least 1"),
    ({"scale": [1.0, 2.0]}, errors.InputError, "scale has 2 values for 4 windows"),
    ({"x": noise()[0].T}, errors.InputError, r"have 40 channels, but 3 are named \(it looks transposed\)"),
    ({"x": noise() + 1j}, errors.InputError, "holds complex64; expected real numbers"),
    ({"x": np.ma.array(noise())}, errors.InputError, "a masked array was given"),
    ({"x": [[[1.0, 2.0], [3.0]]]}, errors.InputError, "the windows have different shapes"),
    ({"x": "recording.edf"}, errors.InputError, "a file name was given; pass an array"),
    ({"x": np.array(["a"])}, errors.InputError, "the array holds <U1; expected real numbers"),
    ({"ch_names": "Fp1"}, errors.ChannelError, r"must be a list of names, got the single text 'Fp1'; write \['Fp1'\]"),
    ({"chs_info": {"chs": []}}, errors.InputError, r'pass chs_info=raw.info\["chs"\]'),
    ({"chs_info": [{"ch_name": n, "loc": "x"} for n in NAMES]}, errors.InputError, "a channel's loc is 'x'"),
    (
        {"sfreq": 128.0},
        errors.InputError,
        'have 128 Hz, the model was made for 256 Hz; .*rate="resample" or rate="as_is"',
    ),
    ({"level": "electrode"}, errors.InputError, "level is 'electrode'; choose window, channel or token"),
]


@pytest.mark.parametrize(("change", "kind", "message"), BAD)
def test_bad_input_gets_one_clear_line(change, kind, message):
    arguments = {"x": noise(), **change}
    with pytest.raises(kind, match=message) as caught:
        make().embed(arguments.pop("x"), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_is_found_and_named(value):
    x = noise()
    x[2, 1, 17] = value
    message = "NaN or infinity, first in window 2, channel 'Cz', sample 17"
    with pytest.raises(errors.InputError, match=message):
        make().embed(x)
    with pytest.raises(errors.InputError, match=message):
        make()(torch.tensor(x))


def test_volts_where_microvolts_are_expected_are_reported():
    with pytest.warns(
        UserWarning, match=r"3 of 3 channels deviate .* other than 0\.1 to 1000 uV.*Fp1 1\.\d+e-05"
    ) as caught:
        make().embed(noise() * 1e-6)
    assert 'it looks like V: multiply by 1e+06, or embed with unit="V"' in str(caught[0].message)
    assert caught[0].filename == __file__  # the warning points at the user's line
    with pytest.warns(UserWarning, match="it looks like mV: multiply by 1000"):
        make()(torch.tensor(noise() * 1e-3))
    with pytest.warns(UserWarning, match="check the unit$"):
        make().embed(noise() * 1e4)


def test_one_channel_in_volts_is_found_among_others_and_dropped_channels_are_not_looked_at():
    x = noise(channels=4)
    x[:, 1] *= 1e-6
    x[:, 3] = np.nan
    with pytest.warns(UserWarning, match=r"1 of 3 channels deviate.*: Cz 1\.\d+e-05; check the unit \(it looks like V"):
        make().embed(x, ch_names=[*NAMES, "ECG"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": "Resample"}, "rate is 'Resample'; choose one of error, resample, as_is"),
        ({"task": "clf"}, "HeadConfig.task is 'clf'; choose one of classification, regression"),
        ({"unknown": "ignore"}, "unknown='ignore' is not a policy"),
        ({"max_channels": 0}, "max_channels must be a whole number of at least 1, got 0"),
        ({"n_times": 7}, "n_times is 7; a window needs at least 8 samples for a patch"),
        ({"n_times": -5}, "n_times is -5; a window needs"),
        ({"input_window_seconds": -2.0}, "input_window_seconds is -2.0; expected a positive number"),
        ({"n_chans": 0}, "n_chans is 0; it must be at least 1"),
        ({"config": {"depth": 2}}, "config is dict; expected a ModelConfig, a preset or the name of one"),
        ({"sfreq": -1.0, "rate": "as_is"}, "sfreq is -1.0; expected a positive number of Hz"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_model_is_made(arguments, message):
    with pytest.raises(errors.CerebroError, match=message):
        make(**{"ch_names": None, **arguments})


def test_any_kind_of_array_gives_the_same_features():
    model, x = make(), noise()
    expected = model.embed(x)
    for other in (
        x.tolist(),
        x.astype(np.float64),
        torch.tensor(x),
        torch.tensor(x, requires_grad=True),
        x[:, :, ::-1][:, :, ::-1],
    ):
        np.testing.assert_allclose(model.embed(other), expected, rtol=1e-5, atol=1e-6)
    integers = np.round(x).astype(np.int16)
    np.testing.assert_allclose(model.embed(integers), model.embed(integers.astype(np.float32)), rtol=1e-6)
    names = np.array(NAMES)
    np.testing.assert_allclose(model.embed(x, ch_names=names), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_offset_does_not_hurt_a_model_in_half_precision(dtype):
    """The signal is normalised before it is rounded: 4 mV of offset and 20 uV of EEG do not fit into 16 bits."""
    model, x = make().to(dtype), noise()
    np.testing.assert_allclose(model.embed(x + 4200), model.embed(x), atol=0.05)
    assert np.abs(model.embed(x) - make().embed(x)).max() < 0.1


def test_a_constant_added_changes_no_feature_also_when_resampled():
    config = small(signal=SignalConfig(sfreq=100.0, lowpass=45.0))
    model = make(config=config, sfreq=128.0, rate="resample")
    x = noise(samples=128)
    np.testing.assert_allclose(model.embed(x + 4200), model.embed(x), rtol=1e-2, atol=1e-3)
    flat = inputs.resample(torch.full((1, 1, 128), 4200.0), 128.0, 100.0)
    torch.testing.assert_close(flat, torch.full((1, 1, 100), 4200.0))


def test_a_recording_is_resampled_as_a_whole_before_it_is_cut():
    config = small(signal=SignalConfig(sfreq=100.0, lowpass=45.0))
    model = make(config=config, sfreq=200.0, rate="resample")
    time = np.arange(800) / 200
    slow = np.stack([20 * np.sin(2 * np.pi * f * time[::2]) for f in (3.0, 7.0, 11.0)]).astype(np.float32)
    fast = np.stack([20 * np.sin(2 * np.pi * f * time) for f in (3.0, 7.0, 11.0)]).astype(np.float32)
    found, expected = model.embed(fast, level="token"), make(config=config).embed(slow, level="token")
    assert found.shape == expected.shape == (10, 3, 5, 12)
    np.testing.assert_allclose(found[1:-1], expected[1:-1], atol=0.05)


def test_rates_that_differ_by_rounding_are_one_rate():
    np.testing.assert_array_equal(make(sfreq=255.99999).embed(noise()), make().embed(noise()))


def test_kinds_of_mne_channels_are_believed():
    info = mne.create_info(["Fp1", "Fp2", "Cz", "odd"], 256.0, ["eeg", "eog", "eeg", "misc"])
    model = make(ch_names=None, chs_info=info["chs"])
    assert model.channels.names == ["Fp1", "Cz"]
    assert [row.note for row in model.channels.rows if row.channel is None] == [
        "the file says eog",
        "the file says misc",
    ]


def test_positions_in_another_unit_do_not_matter_where_names_suffice():
    info = mne.create_info(["Fp1", "Cz"], 256.0, "eeg")
    for channel in info["chs"]:
        channel["loc"][:3] = [30.0, 100.0, 10.0]
    assert make(ch_names=None, chs_info=info["chs"]).channels.names == ["Fp1", "Cz"]


def test_objects_of_mne_are_pointed_to_their_arrays():
    raw = mne.io.RawArray(noise()[0] * 1e-6, mne.create_info(["Fp1", "Cz", "T7"], 256.0, "eeg"), verbose=False)
    with pytest.raises(errors.InputError, match="a RawArray object was given; give it to embed, which filters it"):
        make(n_outputs=2).embed(noise(), scale=raw)
    with pytest.raises(errors.InputError, match="a RawArray was given; pass a torch tensor or a Batch"):
        make(n_outputs=2)(raw)
    found = make(ch_names=None).embed(raw.get_data(), chs_info=raw.info["chs"], unit="V")
    np.testing.assert_allclose(found, make().embed(noise()[:1]), rtol=1e-4, atol=1e-5)


def test_only_tensors_and_batches_go_through_the_model():
    with pytest.raises(errors.InputError, match="a ndarray was given; pass a torch tensor or a Batch"):
        make()(noise())
    with pytest.raises(errors.InputError, match="a Tensor was given; pass a Batch"):
        MaskedCerebro(small())(torch.tensor(noise()))


def test_a_script_without_logging_hears_what_was_loaded_and_left_out(tmp_path):
    make(2).save_pretrained(tmp_path)
    code = (
        "from cerebro_eeg import Cerebro\n"
        f"Cerebro.from_pretrained({str(tmp_path)!r}, ch_names=['Fp1', 'EKG1'], untrained='as_is')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(r"cerebro-eeg: .*: all \d+ tensors loaded\n", done.stderr)
    assert "1 not EEG (EKG1)" in done.stderr


def test_unnamed_channels_are_refused():
    with pytest.raises(errors.InputError, match=r'pass ch_names=\["Fp1", ...\] or chs_info=raw.info\["chs"\]'):
        make(ch_names=None)(torch.tensor(noise()))


def test_another_length_than_n_times_is_refused():
    with pytest.raises(errors.InputError, match="windows have 48 samples; the model was made for n_times=40"):
        make(n_times=40)(torch.tensor(noise(samples=48)))


def test_another_rate_on_request():
    config = small(signal=SignalConfig(sfreq=100.0, lowpass=45.0))
    with pytest.raises(errors.InputError, match="have 200 Hz, the model was made for 100 Hz"):
        make(config=config, sfreq=200.0)
    time = np.arange(400) / 200
    x = np.stack([np.sin(2 * np.pi * f * time) * 20 for f in (3.0, 7.0, 11.0)])[None].astype(np.float32)
    slow = np.stack([np.sin(2 * np.pi * f * time[::2]) * 20 for f in (3.0, 7.0, 11.0)])[None].astype(np.float32)
    resampled = make(config=config, sfreq=200.0, rate="resample").embed(x, level="token")
    expected = make(config=config).embed(slow, level="token")
    np.testing.assert_allclose(resampled[:, :, 4:20], expected[:, :, 4:20], atol=0.15)
    as_is = make(config=config, sfreq=200.0, rate="as_is").embed(x, level="token")
    assert as_is.shape[2] == 50
    assert resampled.shape[2] == expected.shape[2] == 25


def test_too_many_channels_names_the_ways_out():
    names = [f"{row}{n}" for row in ("AF", "F", "FC", "C", "CP", "P", "PO") for n in (*range(1, 7), "z", 7, 8)]
    names = [n for n in names if n not in {"FC7", "FC8", "C7", "C8", "CP7", "CP8"}] + [
        "Fp1",
        "Fp2",
        "O1",
        "O2",
        "Oz",
        "T7",
        "T8",
    ]
    assert len(names) == 64
    assert len(make(ch_names=names).channels.channels) == 64
    with pytest.raises(errors.ChannelError, match=r"max_channels=65.*pick=\[\.\.\.\].*nearest"):
        make(ch_names=[*names, "Iz"])
    assert len(make(ch_names=[*names, "Iz"], max_channels=65).channels.channels) == 65
    assert make(ch_names=[*names, "Iz"], pick=["Iz", "cz"]).channels.names == ["Cz", "Iz"]
    assert len(make(ch_names=[*names, "Iz"], too_many="nearest").channels.channels) == 64


# ---- never-trained electrodes --------------------------------------------------------------------------------------


@pytest.fixture
def pretrained(tmp_path):
    """Return a folder with weights whose training record names Fp1, Cz and T7."""
    model = MaskedCerebro(small())
    model.training_record = Training(steps=1, windows=9, electrode_windows={"Fp1": 9, "Cz": 9, "T7": 3, "O1": 0})
    return model.save_pretrained(tmp_path / "weights")


def test_never_trained_electrodes_need_a_policy(pretrained):
    assert Cerebro.from_pretrained(pretrained, ch_names=NAMES).channels.names == ["Fp1", "Cz", "T7"]
    with pytest.raises(errors.ChannelError, match="O1"):
        Cerebro.from_pretrained(pretrained, ch_names=["Fp1", "O1"])
    load = Cerebro.from_pretrained
    assert load(pretrained, ch_names=["Fp1", "O1"], untrained="drop").channels.names == ["Fp1"]
    assert load(pretrained, ch_names=["Fp1", "O1"], untrained="as_is").channels.names == ["Fp1", "O1"]
    assert load(pretrained, ch_names=["Fp1", "FCz"], untrained="nearest").channels.names == ["Fp1", "Cz"]
    with pytest.raises(errors.ChannelError, match="O1"):  # a pair is trained when both electrodes are
        load(pretrained, ch_names=["Fp1-O1"])


def test_training_is_recorded_so_that_what_was_fine_tuned_can_be_loaded(tmp_path):
    model = make(2).train()
    for _ in range(3):
        model(torch.tensor(noise())).sum().backward()
    model.eval()(torch.tensor(noise()))  # does not count
    assert model.training_record.electrode_windows == {"Fp1": 12, "Cz": 12, "T7": 12}
    again = Cerebro.from_pretrained(model.save_pretrained(tmp_path), ch_names=NAMES)
    assert again.training_record.windows == 12
    pairs = make(2, ch_names=["Fp1-F7", "F7-T7", "Cz"]).train()
    pairs(torch.tensor(noise()))
    assert pairs.training_record.electrode_windows == {"Fp1": 4, "F7": 4, "T7": 4, "Cz": 4}
    frozen = make(2).freeze().train()
    frozen(torch.tensor(noise())).sum().backward()
    assert frozen.training_record.electrode_windows == {}


def test_weights_without_a_record_of_training_say_so(tmp_path):
    folder = make(2).save_pretrained(tmp_path)
    with pytest.raises(
        errors.ChannelError, match=r"records no training.*; train it first, or ask for untrained='as_is'"
    ):
        Cerebro.from_pretrained(folder, ch_names=NAMES)
    assert Cerebro.from_pretrained(folder, ch_names=NAMES, untrained="as_is").channels.names == ["Fp1", "Cz", "T7"]


def test_rate_and_window_that_a_head_learned_from_come_back(tmp_path):
    folder = make(3, sfreq=200.0, rate="as_is", n_times=48).save_pretrained(tmp_path)
    again = Cerebro.from_pretrained(folder, ch_names=NAMES, untrained="as_is")
    assert (again.sfreq, again.n_times, again.config.signal.sfreq) == (200.0, 48, 200.0)
    assert again.embed(noise(1, 3, 100)[0]).shape == (2, 12)
    with pytest.raises(errors.InputError, match="have 256 Hz, the model was made for 200 Hz"):
        Cerebro.from_pretrained(folder, sfreq=256.0)
    features = make(sfreq=200.0, rate="as_is").save_pretrained(tmp_path / "features")  # no head learned at 200 Hz
    assert Cerebro.from_pretrained(features).config.signal.sfreq == 256.0


def test_another_task_gives_a_new_head(tmp_path):
    folder = make(3).save_pretrained(tmp_path)
    again = Cerebro.from_pretrained(folder, task="regression")
    assert (again.head.task, again.n_outputs) == ("regression", 3)
    assert "final_layer.weight" in again.load_report.missing
    with pytest.raises(errors.ConfigError, match="task='regression' needs n_outputs: the checkpoint has no head"):
        Cerebro.from_pretrained(make().save_pretrained(tmp_path / "none"), task="regression")


def test_a_head_of_another_kind_is_not_saved(tmp_path):
    model = make(3)
    model.final_layer = torch.nn.Sequential(torch.nn.Linear(12, 3))
    with pytest.raises(errors.ConfigError, match="final_layer is a Sequential; a checkpoint holds one linear layer"):
        model.save_pretrained(tmp_path)
    with pytest.raises(errors.CheckpointError, match="cannot be written"):
        make(3).save_pretrained(Path(__file__) / "below-a-file")


def test_a_new_model_has_nothing_trained_and_asks_nothing():
    assert make(ch_names=["O1", "Iz"]).channels.names == ["O1", "Iz"]


# ---- frozen --------------------------------------------------------------------------------------------------------


def test_frozen_means_frozen():
    """In linear probing with decay and momentum only the head changes, and the encoder stays in eval mode."""
    model = make(3).freeze().train()
    model.encoder.set_drop_path(0.5, "constant")
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    x, y = torch.tensor(noise(8)), torch.arange(8) % 3
    for _ in range(5):
        model.train()
        assert model.training
        assert not any(module.training for module in model.encoder.modules())
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == {"final_layer.weight", "final_layer.bias"}
    assert {n for n, _ in model.named_buffers()} == set()
    assert all(p.grad is None for p in model.encoder.parameters())


def test_part_of_a_frozen_encoder_can_be_set_free():
    model = make(3).freeze().train()
    model.encoder.blocks[-1].requires_grad_(True)
    model(torch.tensor(noise())).sum().backward()
    assert model.encoder.blocks[-1].mlp.up.weight.grad is not None
    assert model.encoder.blocks[0].mlp.up.weight.grad is None


def test_embed_leaves_every_module_in_its_mode():
    model = make(3).train()
    model.encoder.eval()
    model.embed(noise())
    assert model.training
    assert not model.encoder.training


def test_unfrozen_learns_again():
    model = make(3).freeze().unfreeze()
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == {
        "encoder.mask_token",
        "encoder.pad_token",
    }
    assert model.train().encoder.training


def test_full_fine_tuning_moves_the_encoder_but_not_the_unused_tokens():
    model = make(2).train()
    torch.nn.functional.cross_entropy(model(torch.tensor(noise())), torch.tensor([0, 1, 0, 1])).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {"encoder.mask_token", "encoder.pad_token"}
    assert all(not p.requires_grad for name, p in model.named_parameters() if name in without)


# ---- numbers that stay ---------------------------------------------------------------------------------------------


def test_presets_by_name_and_config_by_value():
    assert Cerebro(config="tiny").config.width == 64
    assert Cerebro(config=ModelConfig(depth=2, width=32, heads=4)).config.depth == 2
    assert Cerebro(config=preset("tiny")).config == MaskedCerebro("tiny").config == Encoder(preset("tiny")).config
    with pytest.raises(errors.ConfigError, match=r"no preset 'smal' \(did you mean 'small'\?\); choose one of tiny"):
        Cerebro(config="smal")
