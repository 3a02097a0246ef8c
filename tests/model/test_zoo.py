"""The names of braindecode's models: config, output shape, table of layers and card; and its training, where it is."""

import json
import re
import sys
import warnings
from pathlib import Path

import mne
import numpy as np
import pytest
import torch
from test_cerebro import NAMES, make, noise

from cerebro_eeg import Cerebro, errors
from cerebro_eeg.config import ReadoutConfig, preset
from cerebro_eeg.model.encoder import Encoder, Tokens
from tiny_models import small


def again(model):
    return Cerebro.from_config(json.loads(json.dumps(model.get_config(), allow_nan=False)))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n_outputs": 4, "n_times": 48, "task": "regression"},
        {"ch_names": ["EEG FP1-REF", "mystery", "C3-M2"], "unknown": "drop", "bipolar_ears": True, "pick": ("Fp1",)},
        {"ch_names": None, "n_chans": 5, "sfreq": 128.0, "rate": "resample"},
        {"config": preset("tiny"), "duplicates": "first", "max_channels": 3, "too_many": "nearest"},
    ],
)
def test_a_config_makes_the_same_model_again(arguments):
    model = make(**arguments)
    found = again(model)
    assert found.get_config() == model.get_config()
    assert found.config == model.config
    assert found.policies | {"pick": None} == model.policies | {"pick": None}
    assert found.header == model.header
    assert found.channels == model.channels
    assert found.input_shape == model.input_shape
    assert {n: t.shape for n, t in found.state_dict().items()} == {n: t.shape for n, t in model.state_dict().items()}


def test_a_config_keeps_mne_channels_and_the_head():
    info = mne.create_info(["Fp1", "Cz", "EOG"], 256.0, ["eeg", "eeg", "eog"])
    info.set_montage(
        mne.channels.make_dig_montage({"Fp1": (-0.03, 0.08, 0.0)}, coord_frame="head"), on_missing="ignore"
    )
    model = make(ch_names=None, chs_info=info["chs"], n_outputs=2)
    model.reset_head(
        3, ("left", "right", "rest"), ReadoutConfig(parts=("mean", "moments", "covariance"), channels=("Fp1", "Cz"))
    )
    found = again(model)
    assert found.channels == model.channels
    assert found.chs_info[0]["loc"] == [float(value) for value in info["chs"][0]["loc"][:3]]
    assert "loc" not in found.chs_info[1]
    assert found.header == model.header
    assert found.head.names == ("left", "right", "rest")
    assert found.get_output_shape() == (1, 3)


def test_a_wrong_entry_of_a_config_is_named():
    config = make().get_config()
    with pytest.raises(errors.ConfigError, match=r"a config has no entry 'n_output' \(did you mean 'n_outputs'\?\)"):
        Cerebro.from_config({**config, "n_output": 2})
    with pytest.raises(errors.ConfigError, match="ModelConfig lacks the field 'depth'"):
        Cerebro.from_config({**config, "config": {n: v for n, v in config["config"].items() if n != "depth"}})


@pytest.mark.parametrize("arguments", [{}, {"ch_names": None}, {"n_times": 120}, {"rate": "resample", "sfreq": 300.0}])
def test_output_shape_is_computed_and_leaves_no_trace(arguments):
    model = make(n_outputs=5, **arguments).train()
    before = torch.get_rng_state(), model.training_record
    assert model.get_output_shape() == (1, 5)
    assert (model.training, model.training_record) == (True, before[1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert make(**arguments).get_output_shape() == (1, 12)
    model.final_layer = torch.nn.Unflatten(1, (3, 4))
    assert model.get_output_shape() == (1, 3, 4)


def test_the_card_is_the_one_that_is_saved(tmp_path):
    card = make().generate_model_card()
    make().save_pretrained(tmp_path)
    card.save(tmp_path / "card.md")
    saved = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.text.strip() == saved.split("---\n", 2)[2].strip()
    assert card.data.library_name == "cerebro-eeg"


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_tokens_survive_hooks_that_rebuild_outputs():
    """A backward hook of torch rebuilds the tuple that a module returns."""
    encoder, calls = Encoder(small()), []
    encoder.register_full_backward_hook(lambda *given: calls.append(len(given)))
    model = make()
    model.encoder = encoder
    tokens = model.encode(model._checked(torch.tensor(noise()), None))
    assert isinstance(tokens, Tokens)
    tokens.per_window().sum().backward()
    assert calls == [3]


def test_the_table_of_layers_says_that_torchinfo_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchinfo", None)
    with pytest.raises(errors.ConfigError, match="no table of layers: the package torchinfo is"):
        make().get_torchinfo_statistics()


@pytest.mark.parametrize("names", [None, NAMES])
def test_the_table_of_layers_has_every_layer(names):
    pytest.importorskip("torchinfo", reason="needs torchinfo")
    model = make(n_outputs=2, ch_names=names)
    found = model.get_torchinfo_statistics()
    assert found.total_params == sum(p.numel() for p in model.parameters())
    shapes = {info.var_name: info.output_size for info in found.summary_list}
    rows = 3 if names else 1
    assert shapes["Cerebro"] == [1, 2]
    assert shapes["encoder"] == shapes["norm"] == [rows, 5, 12]
    assert "final_layer" in str(found)


# ---- braindecode itself --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def braindecode():
    with warnings.catch_warnings():  # of the packages that it imports
        warnings.simplefilter("ignore")
        try:
            import braindecode
        except (ImportError, OSError) as error:  # torchaudio for another build of torch raises an OSError
            pytest.skip(f"needs braindecode: {type(error).__name__}")
    return braindecode


@pytest.fixture(scope="module")
def epochs():
    """Epochs of two classes, one of which has 20 Hz on top, so that a model can learn to tell them."""
    rng = np.random.default_rng(0)
    info = mne.create_info(["Fp1", "Cz", "O2", "EOG"], 256.0, ["eeg"] * 3 + ["eog"])
    x, y = rng.normal(size=(32, 4, 40)) * 20e-6, np.arange(32) % 2
    x[y == 1] += 60e-6 * np.sin(2 * np.pi * 20 / 256 * np.arange(40))
    events = np.c_[np.arange(32) * 40, 0 * y, y]
    return mne.EpochsArray(x, info, events, verbose=False).pick("eeg"), y


@pytest.mark.filterwarnings("ignore")
def test_braindecode_trains_on_epochs_without_a_word_about_channels(braindecode, epochs):
    found, y = epochs
    torch.manual_seed(0)
    net = braindecode.EEGClassifier(
        Cerebro, module__config=small(), max_epochs=30, batch_size=16, train_split=None, verbose=0, lr=0.02,
        optimizer=torch.optim.AdamW,
    ).fit(found, y)  # fmt: skip
    model = net.module_
    assert (model.n_outputs, model.n_chans, model.n_times, model.sfreq) == (2, 3, 40, 256.0)
    assert [channel.name for channel in model.channels.channels] == ["Fp1", "Cz", "O2"]
    assert (net.predict(found) == y).mean() > 0.9
    assert model.training_record.windows == 30 * 32
    assert model.training_record.electrode_windows == {"Fp1": 960, "Cz": 960, "O2": 960}


@pytest.mark.filterwarnings("ignore")
def test_our_names_mean_what_they_mean_in_braindecode(braindecode):
    from braindecode.models import EEGNet

    theirs, ours = EEGNet(n_chans=3, n_outputs=4, n_times=128, sfreq=256.0), make(n_outputs=4, n_times=128, sfreq=256.0)
    assert theirs.get_output_shape() == ours.get_output_shape()
    assert theirs.input_shape == ours.input_shape
    assert type(theirs.get_torchinfo_statistics()) is type(ours.get_torchinfo_statistics())
    shared = {"n_outputs", "n_chans", "chs_info", "n_times", "sfreq"}
    assert shared <= set(theirs.get_config()) & set(ours.get_config())
    for name in ("n_outputs", "n_chans", "n_times", "sfreq"):
        assert theirs.get_config()[name] == ours.get_config()[name]


# ---- the pages -----------------------------------------------------------------------------------------------------

PAGES = Path(__file__).parents[2] / "docs"


def run_page(page, section, folder, monkeypatch):
    """Run the first block of Python of a section, in a folder of its own; return the names that it makes."""
    monkeypatch.chdir(folder)
    text = f"\n{(PAGES / page).read_text(encoding='utf-8')}".partition(f"\n{section}\n")[2]
    names = {"__name__": "page"}
    exec(re.search("```python\n(.*?)```", text, re.DOTALL)[1], names)
    return names


@pytest.mark.filterwarnings("ignore")
def test_the_lines_for_braindecode_run(braindecode, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torchinfo", reason="needs torchinfo")
    found = run_page("benchmarks-of-others.md", "## braindecode", tmp_path, monkeypatch)
    assert found["net"].module_.training_record.windows == 16
    assert found["model"].training_record.electrode_windows["C3"] > found["net"].module_.training_record.windows
    assert "(1, 2) 3\n" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_the_lines_for_open_eeg_bench_make_a_model_for_its_data(tmp_path, monkeypatch):
    """What it passes: numbers of a data set at 160 Hz, channels of MNE, and a head of its own afterwards."""
    build = run_page("benchmarks-of-others.md", "## Open EEG Bench", tmp_path, monkeypatch)["small_open"]
    info = mne.create_info(["Fp1", "Cz", "T3", "T7", "mystery"], 160.0, "eeg")
    model = build(n_chans=5, n_times=640, n_outputs=4, sfreq=160.0, chs_info=info["chs"])
    assert model.channels.names == ["Fp1", "Cz", "T7"]
    model.final_layer = torch.nn.Sequential(torch.nn.Flatten(1), torch.nn.LazyLinear(4))
    assert model(torch.randn(2, 5, 640) * 20).shape == (2, 4)
    assert model.get_output_shape() == (1, 4)
    again = build(n_outputs=4).load_state_dict(build().state_dict(), strict=False)
    assert again.missing_keys == ["final_layer.weight", "final_layer.bias"]
    assert again.unexpected_keys == []


@pytest.mark.filterwarnings("ignore")
def test_the_lines_for_peft_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="needs peft")
    found = run_page("adapters.md", "# Adapters of peft", tmp_path, monkeypatch)
    assert found["whole"].training_record.electrode_windows["Cz"] > 16
    assert "torch.Size([8, 2])" in capsys.readouterr().out


def test_the_lines_on_channels_of_a_call_run(tmp_path, monkeypatch, capsys):
    run_page("python.md", "## Channels of each call", tmp_path, monkeypatch)
    assert capsys.readouterr().out.endswith("True\n")
