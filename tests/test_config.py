"""Configs check themselves, go through JSON unchanged, and say in one line what is wrong."""

import dataclasses
import json
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.config import (
    PRESETS,
    FinetuneConfig,
    HeadConfig,
    ModelConfig,
    ObjectiveConfig,
    PatchConfig,
    Preset,
    PretrainConfig,
    SignalConfig,
    Source,
    Training,
    preset,
)
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import did_you_mean, from_dict, to_dict

EXAMPLES = [
    SignalConfig(sfreq=200.0, reference="tcp", filter_phase="causal"),
    PatchConfig(kind="squares", phase="separated"),
    ModelConfig(depth=2, width=24, bias=False, patches=PatchConfig(kind="time_bins"), signal=SignalConfig(sfreq=128)),
    ObjectiveConfig(style="vitmae", decoder_width=16, decoder_heads=None),
    ObjectiveConfig(masking="blocks", spectrum=1, bands=(2.0, 5.0, 9.0)),
    HeadConfig(3, "regression", ("x", "y", "z")),
    Source("TUEG", 5, 1.5, "ab", "CC0"),
    Training(3, 12, {"Cz": 4, "Fp1": 12}, (Source("a"), Source("b", hours=2.0))),
    PretrainConfig(betas=(0.8, 0.9)),
    FinetuneConfig(drop_path_schedule="constant"),
    *PRESETS.values(),
]


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda c: type(c).__name__)
def test_json_round_trip(config):
    back = from_dict(type(config), json.loads(json.dumps(to_dict(config))))
    assert back == config
    for field in dataclasses.fields(config):
        assert type(getattr(back, field.name)) in (type(getattr(config, field.name)), float)  # an int becomes a float


def test_numbers_of_numpy_become_json():
    head = HeadConfig(np.int64(3), names=("a", "b", "c"))
    training = Training(np.int32(7), electrode_windows={"Cz": np.uint8(2)}, data=(Source("s", hours=np.float32(0.5)),))
    assert json.loads(json.dumps(to_dict(head))) == to_dict(HeadConfig(3, names=("a", "b", "c")))
    assert from_dict(Training, json.loads(json.dumps(to_dict(training)))) == training
    assert to_dict(ModelConfig(bias=True))["bias"] is True


DEFAULT_MODEL = {
    "depth": 8,
    "width": 192,
    "heads": 12,
    "mlp_ratio": 4.0,
    "attention": "alternating",
    "first_axis": "channels",
    "norm": "pre",
    "norm_eps": 1e-05,
    "bias": True,
    "init_std": 0.02,
    "window": 1280,
    "max_channels": 64,
    "normalization": "zscore",
    "fixed_scale": 100.0,
    "amplitude": False,
    "patches": {
        "kind": "waveform",
        "length": 64,
        "stride": 64,
        "n_fft": 128,
        "hop": 32,
        "reflect": 48,
        "bins": 64,
        "square": 8,
        "floor": 0.001,
        "phase": "none",
    },
    "signal": {
        "sfreq": 256.0,
        "highpass": 0.1,
        "lowpass": 75.0,
        "notch_width": 2.0,
        "filter_phase": "zero",
        "reference": "as_recorded",
    },
}


def test_schema_is_frozen():
    """Checkpoints hold these fields: to change one is to change the version of the format."""
    assert to_dict(ModelConfig()) == DEFAULT_MODEL
    assert to_dict(ObjectiveConfig()) == {
        "style": "simmim",
        "mask_ratio": 0.5,
        "alpha": 0.1,
        "patch_error": "mean",
        "decoder_depth": 2,
        "decoder_width": None,
        "decoder_heads": None,
        "masking": "tokens",
        "block_mm": 80.0,
        "block_seconds": 1.5,
        "spectrum": 0.0,
        "spectrum_relative": False,
        "statistics": 0.0,
        "bands": [1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0],
        "keep_channels": 1.0,
        "rereference": 0.0,
        "hide_amplitude": 0.0,
    }
    head = {"n_outputs": 2, "task": "classification", "names": [], "samples": None, "threshold": None}
    head["threshold_level"] = "unknown"
    bands = [1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0]
    head["readout"] = {"parts": ["mean"], "channels": [], "bands": bands, "shrinkage": 0.05}
    head["centred"] = False
    assert to_dict(HeadConfig(2)) == head
    assert to_dict(Training()) == {"steps": 0, "windows": 0, "electrode_windows": {}, "data": []}
    seen = {"subjects": [], "ids": "", "task": ""}
    assert to_dict(Source("s")) == {"name": "s", "windows": 0, "hours": 0.0, "sha256": "", "licence": "", **seen}


def altered(path, value):
    """The default model's JSON with one value changed, or taken out for ``...``."""
    values = json.loads(json.dumps(DEFAULT_MODEL))
    *parents, name = path
    inner = values
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[name]
    else:
        inner[name] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["dept"], 3, "ModelConfig has no field 'dept' (did you mean 'depth'?)"),
        (["zzz"], 3, "ModelConfig has no field 'zzz'"),
        (["patches", "lenght"], 3, "ModelConfig.patches has no field 'lenght' (did you mean 'length'?)"),
        (["depth"], ..., "ModelConfig lacks the field 'depth'"),
        (["signal", "sfreq"], ..., "ModelConfig.signal lacks the field 'sfreq'"),
        (["signal"], ..., "ModelConfig lacks the field 'signal'"),
        (["signal"], None, "ModelConfig.signal is NoneType; expected an object with named fields"),
        (["signal"], [256.0], "ModelConfig.signal is list; expected an object with named fields"),
        (["depth"], True, "ModelConfig.depth is True; expected int"),
        (["depth"], 8.0, "ModelConfig.depth is 8.0; expected int"),
        (["depth"], "8", "ModelConfig.depth is '8'; expected int"),
        (["depth"], None, "ModelConfig.depth is None; expected int"),
        (["bias"], 1, "ModelConfig.bias is 1; expected bool"),
        (["bias"], "true", "ModelConfig.bias is 'true'; expected bool"),
        (["mlp_ratio"], "4", "ModelConfig.mlp_ratio is '4'; expected a finite number"),
        (["mlp_ratio"], True, "ModelConfig.mlp_ratio is True; expected a finite number"),
        (["mlp_ratio"], float("nan"), "ModelConfig.mlp_ratio is nan; expected a finite number"),
        (["mlp_ratio"], float("inf"), "ModelConfig.mlp_ratio is inf; expected a finite number"),
        pytest.param(["mlp_ratio"], 10**400, "ModelConfig.mlp_ratio is 1000000", id="more than a float holds"),
        (["attention"], "full", "ModelConfig.attention is 'full'; choose one of alternating, standard, two_axis, bott"),
        (["attention"], 1, "ModelConfig.attention is 1; choose one of alternating"),
        (["attention"], ["standard"], "ModelConfig.attention is ['standard']; choose one of alternating"),
        (["patches", "kind"], None, "ModelConfig.patches.kind is None; choose one of waveform, time_bins, squares"),
        (["heads"], 7, "width 192 does not divide into 7 heads; try 189"),
    ],
)
def test_wrong_json_gets_one_line(path, value, message):
    with pytest.raises(ConfigError) as error:
        from_dict(ModelConfig, altered(path, value))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (ModelConfig, [], "ModelConfig is list; expected an object"),
        (ModelConfig, None, "ModelConfig is NoneType; expected an object"),
        (HeadConfig, {"n_outputs": 2, "task": "classification", "names": "ab"}, "HeadConfig.names is 'ab'; expected a"),
        (HeadConfig, {"n_outputs": 2, "task": "classification", "names": ["a", 1]}, "HeadConfig.names[1] is 1; expect"),
        (HeadConfig, {"n_outputs": 2, "task": "guess", "names": []}, "HeadConfig.task is 'guess'; choose one of class"),
        (PretrainConfig, {"betas": [0.9]}, "PretrainConfig.betas is [0.9]; expected a list of 2"),
        (PretrainConfig, {"betas": [0.9, 0.9, 0.9]}, "PretrainConfig.betas is [0.9, 0.9, 0.9]; expected a list of 2"),
        (PretrainConfig, {"betas": [0.9, "x"]}, "PretrainConfig.betas[1] is 'x'; expected a finite number"),
        (Training, {"electrode_windows": {"Cz": 1.5}}, "Training.electrode_windows['Cz'] is 1.5; expected int"),
        (Training, {"electrode_windows": []}, "Training.electrode_windows is []; expected an object with named values"),
        (Training, {"electrode_windows": {1: 1}}, "Training.electrode_windows is {1: 1}; expected an object"),
        (Training, {"data": [{"name": "a", "hour": 1}]}, "Training.data[0] has no field 'hour' (did you mean 'hours'?"),
        (Training, {"data": {"name": "a"}}, "Training.data is {'name': 'a'}; expected a list"),
        (ObjectiveConfig, {"decoder_width": "8"}, "ObjectiveConfig.decoder_width is '8'; expected int"),
        (ObjectiveConfig, {"decoder_width": False}, "ObjectiveConfig.decoder_width is False; expected int"),
        pytest.param(ModelConfig, {"a\nb" * 1000: 1}, "ModelConfig has no field 'a\\nba", id="long name"),
        pytest.param(ModelConfig, {"depth": "x\n" * 100_000}, "ModelConfig.depth is 'x\\nx", id="long value"),
    ],
)
def test_wrong_json_of_other_configs(cls, values, message):
    base = {Training: Training(), HeadConfig: HeadConfig(2)}.get(cls) or cls()
    with pytest.raises(ConfigError) as error:
        from_dict(cls, values, base)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_part_of_a_config_goes_over_a_base():
    base = preset("large")
    merged = from_dict(Preset, {"model": {"depth": 4, "patches": {"stride": 32}}, "objective": {"alpha": 0}}, base)
    model = dataclasses.replace(base.model, depth=4, patches=dataclasses.replace(base.model.patches, stride=32))
    assert merged == dataclasses.replace(base, model=model, objective=ObjectiveConfig(alpha=0.0))
    assert merged.finetune.drop_path == 0.2  # untouched parts are the preset's, not the defaults
    assert from_dict(Preset, {}, base) == base
    assert base == PRESETS["large"]


def test_merged_config_is_checked_as_a_whole():
    with pytest.raises(ConfigError, match="width 64 does not divide into 12 heads; try 60"):
        from_dict(ModelConfig, {"heads": 12}, preset("tiny").model)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignalConfig(sfreq=0.0), "sfreq is 0.0; it must be a positive"),
        (lambda: SignalConfig(highpass=-1.0), "the pass-band -1.0 to 75.0 Hz is empty"),
        (lambda: SignalConfig(highpass=75.0), "the pass-band 75.0 to 75.0 Hz is empty"),
        (lambda: SignalConfig(notch_width=-0.1), "notch_width is -0.1; it must not be negative"),
        *[
            (lambda name=name: PatchConfig(**{name: 0}), f"{name} is 0; it must be at least 1")
            for name in ("length", "stride", "n_fft", "hop", "bins", "square")
        ],
        (lambda: PatchConfig(reflect=-1), "reflect is -1; it must not be negative"),
        (lambda: PatchConfig(floor=0.0), "floor is 0.0; it must be positive"),
        (lambda: PatchConfig(n_fft=127), "64 bins from bin 1 need n_fft of 128 or more"),
        (lambda: PatchConfig(square=7), "64 bins cannot be cut into squares of 7"),
        (lambda: PatchConfig(phase="separated"), "a waveform has no phase rows; choose a spectrogram"),
        *[
            (lambda name=name: ModelConfig(**{name: 0}), f"{name} is 0; it must be at least 1")
            for name in ("depth", "width", "heads", "window", "max_channels")
        ],
        (lambda: ModelConfig(width=100), "width 100 does not divide into 12 heads; try 96"),
        (lambda: ModelConfig(mlp_ratio=0.0), "mlp_ratio is 0.0; it must be positive"),
        (lambda: ModelConfig(norm_eps=0.0), "norm_eps is 0.0; it must be positive"),
        (lambda: ModelConfig(mlp_ratio=1e9), "mlp_ratio is 1e+09; it must not exceed 1000"),
        (lambda: ModelConfig(depth=20_000_000), "depth is 20000000; it must not exceed 1000"),
        (lambda: ModelConfig(depth=10**30), "ModelConfig.depth is 1000000000000000000000000000000; expected int"),
        (lambda: ModelConfig(window=10**9), "window is 1000000000; it must not exceed 100000000 samples"),
        (lambda: ModelConfig(width=1_200_000), "8 blocks of width 1200000 and 20 positions are 1e+14 weights; a model"),
        (lambda: ObjectiveConfig(decoder_depth=1001), "decoder_depth is 1001; it must not exceed 1000"),
        (lambda: HeadConfig(10**11), "n_outputs is 100000000000; it must not exceed 100000"),
        (lambda: SignalConfig(sfreq=1e6), "sfreq is 1e+06; it must not exceed 100000 Hz"),
        (lambda: SignalConfig(highpass=1e-6), "highpass is 1e-06; it must be 0 (none) or at least 0.001 Hz"),
        (lambda: ModelConfig(init_std=-1.0), "init_std is -1.0; it must not be negative"),
        (lambda: ModelConfig(fixed_scale=0.0), "fixed_scale is 0.0; it must be positive"),
        (lambda: ModelConfig(window=63), "a window of 63 samples gives no patch; use 64"),
        (
            lambda: ModelConfig(window=255, patches=PatchConfig(kind="squares")),
            "a window of 255 samples gives no patch",
        ),
        (lambda: ObjectiveConfig(mask_ratio=0.0), "mask_ratio is 0.0; it must lie between 0 and 1"),
        (lambda: ObjectiveConfig(mask_ratio=1.0), "mask_ratio is 1.0; it must lie between 0 and 1"),
        (lambda: ObjectiveConfig(alpha=-0.1), "alpha is -0.1; it must not be negative"),
        (lambda: ObjectiveConfig(decoder_depth=0), "decoder_depth is 0; it must be at least 1"),
        (lambda: ObjectiveConfig(masking="block"), "ObjectiveConfig.masking is 'block'; choose one of tokens, blocks"),
        (lambda: ObjectiveConfig(block_mm=-1.0), "block_mm is -1.0; it must not be negative"),
        (lambda: ObjectiveConfig(block_seconds=0.0), "block_seconds is 0.0; it must be positive"),
        (lambda: ObjectiveConfig(spectrum=-0.1), "spectrum is -0.1; it must not be negative"),
        (lambda: ObjectiveConfig(statistics=-0.1), "statistics is -0.1; it must not be negative"),
        (lambda: ObjectiveConfig(bands=(4.0, 1.0)), "bands are (4.0, 1.0); expected at least two rising edges in Hz"),
        (lambda: ObjectiveConfig(keep_channels=0.0), "keep_channels is 0.0; it must lie above 0 and not above 1"),
        (lambda: ObjectiveConfig(rereference=1.5), "rereference is 1.5; it must lie between 0 and 1"),
        (lambda: ObjectiveConfig(hide_amplitude=-0.5), "hide_amplitude is -0.5; it must lie between 0 and 1"),
        (lambda: HeadConfig(2, threshold_level="subject"), "HeadConfig.threshold_level is 'subject'; choose"),
        (lambda: HeadConfig(0), "n_outputs is 0; it must be at least 1"),
        (lambda: HeadConfig(2, names=("a",)), "1 names for 2 outputs; give one each"),
        (lambda: preset("smal"), "there is no preset 'smal' (did you mean 'small'?); choose one of tiny, small, base"),
        (lambda: preset("zzz"), "there is no preset 'zzz'; choose one of tiny, small, base, large, open"),
    ],
)
def test_setting_that_cannot_be_gets_one_line(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_odd_depth_warns_where_axes_alternate():
    with pytest.warns(UserWarning, match="depth 3 is odd"):
        ModelConfig(depth=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModelConfig(depth=4)
        ModelConfig(depth=3, attention="standard")


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda c: type(c).__name__)
def test_configs_are_frozen(config):
    name = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, 1)


def test_presets_cannot_be_replaced():
    with pytest.raises(TypeError):
        PRESETS["small"] = PRESETS["tiny"]


def test_decoder_takes_the_encoder_where_nothing_is_said():
    model = ModelConfig()
    assert ObjectiveConfig().decoder(model) == dataclasses.replace(model, depth=2)
    small = ObjectiveConfig(decoder_depth=4, decoder_width=32, decoder_heads=4).decoder(model)
    assert (small.depth, small.width, small.heads, small.attention) == (4, 32, 4, "alternating")


def count_by_walking(patches, samples):
    """Patches of a window, found by putting one after the other until the next does not fit."""
    if patches.kind == "waveform":
        length, stride, padded = patches.length, patches.stride, samples
    else:
        if samples <= patches.reflect:
            return 0
        length, stride, padded = patches.n_fft, patches.hop, samples + 2 * patches.reflect
    frames, start = 0, 0
    while start + length <= padded:
        frames, start = frames + 1, start + stride
    if patches.kind != "squares":
        return frames
    squares = 0
    while (squares + 1) * patches.square <= frames:
        squares += 1
    return squares * len(range(0, patches.bins, patches.square))


@st.composite
def patch_configs(draw):
    square = draw(st.integers(1, 9))
    bins = square * draw(st.integers(1, 6))
    return PatchConfig(
        kind=draw(st.sampled_from(["waveform", "time_bins", "squares"])),
        length=draw(st.integers(1, 80)),
        stride=draw(st.integers(1, 80)),
        n_fft=draw(st.integers(2 * bins, 2 * bins + 40)),
        hop=draw(st.integers(1, 64)),
        reflect=draw(st.integers(0, 70)),
        bins=bins,
        square=square,
    )


@given(patches=patch_configs(), samples=st.integers(0, 1500))
def test_count_is_what_walking_finds(patches, samples):
    assert patches.count(samples) == count_by_walking(patches, samples)


@given(patches=patch_configs())
def test_shortest_is_the_first_length_that_gives_a_patch(patches):
    shortest = patches.shortest()
    assert shortest >= 1
    assert count_by_walking(patches, shortest) >= 1
    assert all(patches.count(samples) == 0 for samples in range(shortest))


@pytest.mark.parametrize("kind", ["waveform", "time_bins", "squares"])
def test_count_of_the_default_cuts_for_every_length(kind):
    patches = PatchConfig(kind=kind)
    for samples in range(1500):
        assert patches.count(samples) == count_by_walking(patches, samples)
        if kind == "time_bins" and samples > 48:
            assert patches.count(samples) == samples // 32


def test_did_you_mean_is_silent_when_nothing_is_close():
    assert did_you_mean("depht", ["depth", "width"]) == " (did you mean 'depth'?)"
    assert did_you_mean("q", ["depth", "width"]) == ""
