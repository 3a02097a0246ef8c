"""repair: known answers for splines and a trained model, nothing hidden is read, files, and one line per mistake."""

import json
import re
import shlex
from functools import cache
from pathlib import Path

import edfio
import mne
import numpy as np
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import Batch, MaskedCerebro, cli
from cerebro_eeg.channels.electrodes import IDS, POSITIONS, TEN_TWENTY
from cerebro_eeg.config import ModelConfig, Normalization, ObjectiveConfig, Training
from cerebro_eeg.data.filtering.splines import from_the_others
from cerebro_eeg.data.reading.edf_writer import write_recording
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.errors import ChannelError, CheckpointError, ConfigError, InputError, RecordingError
from cerebro_eeg.model.filling import fill_in
from cerebro_eeg.model.patches import normalize
from cerebro_eeg.runs.repair import ChannelFilling, make_filler, repair
from cerebro_eeg.runs.verify import verify
from predict_files import edf, make_model

NAMES = ("Fp1", "F3", "F4", "C3", "C4", "P3", "P4", "O2")


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def waves(seconds, channels=8, seed=0, rate=256):
    """(channels, time) microvolts: independent sums of slow waves."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    hertz = rng.uniform(1, 7, (channels, 12, 1))
    return (10 * np.sin(2 * np.pi * (hertz * time + rng.uniform(size=hertz.shape)))).sum(1)


def raw_of(data, names=NAMES, rate=256, bads=()):
    raw = mne.io.RawArray(data * 1e-6, mne.create_info(list(names), rate, "eeg"), verbose="error")
    raw.info["bads"] = list(bads)
    return raw


def masked(**config):
    """A small model with a head for reconstruction; its weights are random, and its record says that it was trained."""
    torch.manual_seed(0)
    fields = {"depth": 2, "width": 24, "heads": 3, "mlp_ratio": 2.0, "window": 512, **config}
    model = MaskedCerebro(ModelConfig(**fields)).eval()
    model.training_record = Training(1, 1, dict.fromkeys([*NAMES, "Fz"], 10))
    return model


def mixed(seconds=21, hidden="C3"):
    """Waves in which one channel is what splines make of the others."""
    data, place = waves(seconds), NAMES.index(hidden)
    data[place] = from_the_others(NAMES)[place] @ data
    return data


@cache
def trained():
    """A model that learned, with O2 or Fp1 hidden, that O2 is a copy of Fp1 at the other end of the head."""
    model = masked(width=48, heads=4).train()
    model.objective = ObjectiveConfig(mask_ratio=1 / len(NAMES))  # one whole channel
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = waves(400, seed=1)
    data[-1] = data[0]
    x = torch.tensor(data, dtype=torch.float32)
    ids = torch.tensor([(IDS[name], 0) for name in NAMES])
    rng = np.random.default_rng(0)
    for _ in range(150):
        starts = rng.integers(0, x.shape[1] - 512, 16)
        batch = Batch.dense(torch.stack([x[:, s : s + 512] for s in starts]), ids)
        noise = torch.ones(16, len(NAMES), 8)
        noise[np.arange(16), rng.choice([0, 7], 16)] = 0
        optimizer.zero_grad()
        model(batch, noise.flatten(0, 1)).loss.backward()
        optimizer.step()
    return model.eval()


# Known answers


def test_splines_find_a_channel_that_is_an_exact_mix_of_the_others():
    data = mixed()
    bad = data.copy()
    bad[NAMES.index("C3")] = 1e4
    found = repair(raw_of(bad), masked(), bad=["C3"], method="splines")
    truth = repair(raw_of(data), masked(), missing=["Fz"], method="splines")
    place = found.channels.index("C3")
    np.testing.assert_allclose(found.data[place], truth.data[place], atol=1e-3)
    assert found.method == "splines"
    assert found.channels == NAMES  # the order of the file


def test_splines_and_ridge_win_where_a_hidden_channel_is_an_exact_mix():
    found = repair(raw_of(mixed(41)), masked(), missing=["Fz"], hidden=8)
    errors = {one.name: one for one in found.hidden}
    assert errors["C3"].splines < 1e-6
    assert errors["C3"].ridge < 1e-3
    assert errors["F3"].splines > 0.1
    assert errors["C3"].model > 0.3  # random weights
    assert len(found.hidden) == 8
    assert found.errors["splines"] == pytest.approx(np.median([one.splines for one in found.hidden]))


def test_splines_are_those_of_mne_on_a_recording():
    found = repair(raw_of(waves(11)), masked(), bad=["P3"], method="splines", hidden=0)
    places = {name: np.array(POSITIONS[name]) / np.linalg.norm(POSITIONS[name]) * 0.095 for name in NAMES}
    raw = raw_of(found.data.astype(np.float64), found.channels, bads=["P3"])
    raw.set_montage(mne.channels.make_dig_montage(places, coord_frame="head"), verbose="error")
    raw.interpolate_bads(origin=(0.0, 0.0, 0.0), verbose="error")
    np.testing.assert_allclose(raw.get_data("P3")[0] * 1e6, found.data[found.channels.index("P3")], atol=1e-3)


def test_a_trained_model_wins_where_places_on_the_head_say_nothing():
    data = waves(41, seed=2)
    truth, data[-1] = data[0].copy(), 3000.0
    found = repair(raw_of(data), trained(), bad=["O2"], method="model", hidden=0)
    one, other = found.data[found.channels.index("O2")], found.data[0]
    assert np.corrcoef(one, other)[0, 1] > 0.9
    splines = repair(raw_of(data), trained(), bad=["O2"], method="splines", hidden=0).data[-1]
    assert np.corrcoef(splines, other)[0, 1] < 0.5
    data[-1] = truth
    hidden = repair(raw_of(data), trained(), missing=["Fz"], hidden=8).hidden
    last = next(one for one in hidden if one.name == "O2")
    assert last.model < 0.6 < last.splines
    assert last.ridge < 0.01


def test_what_wins_on_hidden_channels_fills_in():
    for data, model in ((mixed(41), masked()), (waves(41, seed=2), trained())):
        found = repair(raw_of(data), model, missing=["Fz"])
        totals = {name: found.errors[name] for name in ("model", "splines", "both")}
        assert found.method == min(totals, key=totals.get)
        assert f"the smallest median error is {min(totals.values()):.3f} of the variance, by" in found.verdict
        assert "Ridge regression learned from the hidden channel itself" in found.verdict


def test_both_is_the_mean_and_windows_cover_every_sample():
    found = {
        method: repair(raw_of(waves(11.3)), trained(), bad=["C4"], method=method, hidden=0).data
        for method in ("model", "splines", "both")
    }
    np.testing.assert_allclose(found["both"], (found["model"] + found["splines"]) / 2, atol=1e-4)
    assert found["model"].shape == (8, round(11.3 * 256))
    assert np.isfinite(found["model"]).all()


@pytest.mark.parametrize("garbage", [0.0, 1e5, np.nan, np.inf])
@pytest.mark.parametrize("method", ["model", "splines"])
def test_nothing_of_a_bad_channel_is_read(garbage, method):
    data = waves(7)
    clean = repair(raw_of(data), trained(), bad=["C4"], method=method, hidden=2)
    data[NAMES.index("C4")] = garbage
    found = repair(raw_of(data), trained(), bad=["C4"], method=method, hidden=2)
    assert np.array_equal(clean.data, found.data)
    assert clean.errors == found.errors


def test_the_other_channels_are_what_the_model_sees():
    data = waves(7)
    found = repair(raw_of(data), masked(), bad=["C4"], hidden=0).data
    plain = cerebro_eeg.repair(raw_of(data[:4], NAMES[:4]), masked(), missing=["C4"], hidden=0, method="splines")
    np.testing.assert_array_equal(found[:4], plain.data[:4])


@pytest.mark.parametrize("kind", Normalization.__args__)
def test_every_normalization_is_undone(kind):
    """With patches as they were before they were hidden, microvolts come back."""
    filler = make_filler(masked(normalization=kind))
    filling = ChannelFilling(filler, NAMES[:7], ["O2"], 7.0)
    guess = torch.tensor(waves(2, 3)[:, :, None] + 5, dtype=torch.float32)
    patches = normalize(guess[..., 0], filler.config, torch.full((3,), 7.0))
    back = filling._in_microvolts(patches.numpy()[..., None], guess.numpy())
    np.testing.assert_allclose(back, guess.numpy(), atol=1e-4)


@pytest.mark.parametrize("style", ["simmim", "vitmae"])
def test_filling_in_is_the_reconstruction_of_pre_training(style):
    torch.manual_seed(0)
    heads = {"decoder_width": 12, "decoder_heads": 3} if style == "vitmae" else {}
    model = MaskedCerebro(masked().config, ObjectiveConfig(style=style, **heads)).eval()
    ids = torch.tensor([(IDS[name], 0) for name in NAMES])
    batch = Batch.dense(torch.tensor(waves(2)[None], dtype=torch.float32), ids)
    with torch.no_grad():
        found = model(batch)
    torch.testing.assert_close(fill_in(model, batch, found.masked_RN), found.predicted_RNL)


def test_the_objective_of_the_page_hides_whole_channels():
    page = (Path(__file__).parents[2] / "docs" / "repair.md").read_text(encoding="utf-8")
    given = re.search(r"ObjectiveConfig\((.*?)\)", page)[1]
    objective = eval(f"dict({given})")
    torch.manual_seed(0)
    model = MaskedCerebro(masked(window=1280).config, ObjectiveConfig(**objective)).eval()
    batch = Batch.dense(torch.randn(4, 19, 1280), torch.tensor([(IDS[name], 0) for name in TEN_TWENTY]))
    hidden = model(batch).masked_RN.view(4, 19, 20).sum(-1)
    assert hidden.sum(1).tolist() == [38] * 4  # a tenth of 380 tokens: one channel and most of another
    assert hidden.sort(1).values[:, -2:].tolist() == [[18, 20]] * 4


# Which channels


def test_flat_channels_and_those_marked_as_bad_are_found():
    data = waves(11)
    data[2] = 0
    found = repair(raw_of(data, bads=["P4"]), masked(), bad=["auto"], method="splines", hidden=0)
    assert {one.name: one.reason for one in found.filled} == {"F4": "flat", "P4": "marked as bad"}
    assert found.channels == NAMES


def test_a_sound_recording_passes_through_with_auto(tmp_path):
    found = repair(raw_of(waves(11)), masked(), bad=["auto"])
    assert (found.filled, found.method, found.channels) == ((), "none", NAMES)
    assert found.notes == ("no channel is marked as bad or bad by its samples, so nothing was filled in",)
    truth = repair(raw_of(waves(11)), masked(), missing=["Fz"], method="splines", hidden=0)
    np.testing.assert_array_equal(found.data, truth.data[:8])
    assert {one.transducer_type for one in edfio.read_edf(found.save(tmp_path / "a.edf")).signals} == {""}
    assert "no channel was filled in" in found.raw().info["description"]


def test_old_names_and_labels_of_files_are_understood(tmp_path):
    labels = [f"EEG {name}-REF" for name in ("Fp1", "F3", "F4", "C3", "C4", "T3", "P4", "O2")]
    found = repair(edf(tmp_path / "a.edf", labels), masked(), bad=["T3", "EEG C3-REF"], method="splines", hidden=0)
    assert [one.name for one in found.filled] == ["C3", "T7"]


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        ({"bad": ["C33"]}, "'C33' is no electrode whose place is known.*did you mean C3"),
        ({"bad": ["Oz"]}, "'Oz' is not among the 8 channels of the recording; --missing fills in"),
        ({"missing": ["C3"]}, "'C3' is in the recording; --bad fills it in if it is bad"),
        ({"bad": ["C3", "c3"]}, "'C3' and 'c3' are one channel; give each channel once"),
        ({"missing": ["Fz", "FZ"]}, "'FZ' is given twice as missing"),
        ({}, "no channel is marked as bad; --bad names those to fill in, or --bad auto looks for them"),
        ({"bad": list(NAMES)}, "all 8 EEG channels are marked as bad"),
        ({"bad": list(NAMES[:5])}, "3 good electrodes of a known place left to fill .* expected 4 or more"),
    ],
)
def test_a_mistake_is_one_line(choices, line):
    with pytest.raises(ChannelError, match=line) as caught:
        repair(raw_of(waves(5)), masked(), **choices)
    assert "\n" not in str(caught.value)


def test_two_channels_of_one_electrode_are_told_apart():
    names = (*NAMES[:7], "EEG C3-REF")
    with pytest.raises(ChannelError, match="'C3' is also the electrode of another channel of the recording"):
        repair(raw_of(waves(5), names), masked(), bad=["C3"])
    found = repair(raw_of(waves(5), names), masked(), bad=["C3", "EEG C3-REF"], hidden=0)
    assert found.channels == NAMES[:7]


def test_other_mistakes_are_one_line():
    epochs = mne.make_fixed_length_epochs(raw_of(waves(5)), 1.0, verbose="error")
    with pytest.raises(InputError, match="Epochs were given, and repair reads recordings"):
        repair(epochs, masked(), bad=["C3"])
    with pytest.raises(ConfigError, match="hidden is -1"):
        repair(raw_of(waves(5)), masked(), bad=["C3"], hidden=-1)
    with pytest.raises(CheckpointError, match=r"no window of its pre-training had 'Cz'; or use --method splines"):
        repair(raw_of(waves(5)), masked(), missing=["Cz"], method="model")
    found = repair(raw_of(waves(5)), masked(), missing=["Cz"])
    assert found.method == "splines"
    assert "splines fill in, because the model cannot: no window of its pre-training had 'Cz'" in found.notes


def test_a_checkpoint_without_a_reconstruction_head_is_refused_or_leaves_it_to_splines(tmp_path):
    folder = make_model(tmp_path / "model", trained=NAMES)
    with pytest.raises(CheckpointError, match="the checkpoint has no reconstruction head; give the run or checkpoint"):
        cerebro_eeg.repair(raw_of(waves(5)), folder, bad=["C3"], method="model")
    found = cerebro_eeg.repair(raw_of(waves(5)), folder, bad=["C3"])
    assert found.method == "splines"
    assert found.hidden[0].model is None
    with pytest.raises(ConfigError, match="a Cerebro has no reconstruction head"):
        cerebro_eeg.repair(raw_of(waves(5)), cerebro_eeg.Cerebro.from_pretrained(folder), bad=["C3"])


def test_weights_without_a_training_are_not_taken_for_a_model():
    model = masked()
    model.training_record = Training()
    with pytest.raises(CheckpointError, match="the checkpoint records no training"):
        repair(raw_of(waves(5)), model, bad=["C3"], method="model")


def test_damaged_weights_are_named():
    model = masked()
    with torch.no_grad():
        model.reconstruct.weight[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match=r"gives NaN or infinity .* first in reconstruct\.weight"):
        repair(raw_of(waves(5)), model, bad=["C3"])


def test_progress_reaches_the_end():
    told = []
    repair(raw_of(waves(61)), masked(), bad=["C3"], method="model", hidden=0, progress=lambda *at: told.append(at))
    assert [seconds for seconds, _ in told] == sorted(seconds for seconds, _ in told)
    assert told[-1] == (61.0, 61.0)


def test_a_short_recording_measures_no_error_and_says_so():
    found = repair(raw_of(waves(1.5)), masked(), bad=["C3"])
    assert found.hidden == ()
    assert found.method == "splines"
    assert "no good channel could be hidden to measure an error" in found.notes[0]
    assert found.verdict == "no error was measured: no good channel was hidden"


# Files


def with_gap():
    """10 s, of which the seconds 4 to 6 were not recorded."""
    raw = raw_of(waves(10))
    raw.set_annotations(mne.Annotations([4.0], [2.0], ["BAD_ACQ_SKIP"]), verbose="error")
    return raw


def test_gaps_stay_gaps(tmp_path):
    found = repair(with_gap(), masked(), bad=["C3"], method="both", hidden=0)
    assert found.gaps == ((4.0, 2.0),)
    assert np.array_equal(np.isnan(found.data).all(0), np.isnan(found.data).any(0))
    assert np.flatnonzero(np.isnan(found.data[0]))[[0, -1]].tolist() == [4 * 256, 6 * 256 - 1]
    again = open_recording(found.save(tmp_path / "a_eeg.fif"))
    assert [(one.onset, one.stop - one.start) for one in again.segments] == [(0.0, 1024), (6.0, 1024)]
    with pytest.raises(RecordingError, match=r"the recording has 1 gap, which EDF\+C cannot hold; --format fif keeps"):
        found.save(tmp_path / "a.edf")
    assert not (tmp_path / "a.edf").exists()


def test_files_are_read_again_by_mne_and_edfio(tmp_path):
    raw = raw_of(waves(9), rate=256)
    raw.set_annotations(mne.Annotations([1.0, 2.0], [0.5, 0.0], ["eyes closed", "Anna was here"]), verbose="error")
    found = repair(raw, masked(), bad=["C3"], missing=["Fz"], method="splines", hidden=0, events=["eyes closed"])
    edf_file, fif_file = found.save(tmp_path / "a.edf"), found.save(tmp_path / "a_eeg.fif")
    for again in (
        mne.io.read_raw_edf(edf_file, verbose="error"),
        mne.io.read_raw_fif(fif_file, verbose="error"),
    ):
        assert tuple(again.ch_names) == (*NAMES, "Fz")
        assert again.info["sfreq"] == 256
        assert (round(again.info["highpass"], 6), again.info["lowpass"]) == (0.1, 75.0)
        np.testing.assert_allclose(again.get_data() * 1e6, found.data, atol=2e-3)
        assert list(again.annotations.description) == ["eyes closed"]
        assert list(again.annotations.onset) == [1.0]
    assert "filled in C3, Fz by spherical splines" in mne.io.read_raw_fif(fif_file, verbose="error").info["description"]
    plain = edfio.read_edf(edf_file)
    notes = {one.label: one.transducer_type for one in plain.signals}
    assert {name for name, note in notes.items() if note == "filled in: spherical splines"} == {"C3", "Fz"}
    assert {note for name, note in notes.items() if name not in ("C3", "Fz")} == {""}
    assert {one.physical_dimension for one in plain.signals} == {"uV"}
    assert (plain.patient.name, plain.patient.code) == ("X", "X")
    assert b"Anna" not in edf_file.read_bytes()
    assert b"Anna" not in fif_file.read_bytes()


def test_nothing_is_overwritten_and_the_ending_is_known(tmp_path):
    found = repair(raw_of(waves(5)), masked(), bad=["C3"], hidden=0, method="splines")
    mine = tmp_path / "mine.edf"
    mine.write_text("mine")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        found.save(mine)
    assert mine.read_text() == "mine"
    with pytest.raises(ConfigError, match=r"the name ends in \.txt; expected \.edf or \.fif"):
        found.save(tmp_path / "a.txt")


@pytest.mark.parametrize("rate", [256.0, 200.0, 128.5, 33.3])
def test_edf_of_any_rate_keeps_its_samples(tmp_path, rate):
    rng = np.random.default_rng(0)
    signal = rng.normal(0, 50, (2000, 2)).astype(np.float32)
    signal[7, 1] = 123_456
    write_recording(tmp_path / "a.edf", signal, ("C3", "C4"), rate, notes=("", ""), filters="HP:0.1Hz")
    again = edfio.read_edf(tmp_path / "a.edf")
    count = len(again.signals[0].data)
    assert again.signals[0].sampling_frequency == pytest.approx(rate)
    assert 2000 - rate * 10.1 < count <= 2000
    np.testing.assert_allclose(again.signals[0].data, signal[:count, 0], atol=0.005)
    np.testing.assert_allclose(again.signals[1].data, signal[:count, 1], atol=2.0)


def test_what_edf_cannot_hold_is_refused(tmp_path):
    for signal, line in (
        (np.full((512, 1), np.nan, np.float32), "not a number"),
        (np.full((512, 1), 2e6, np.float32), "more than an EDF header can say"),
        (np.zeros((5, 1), np.float32), "too few for a record"),
    ):
        with pytest.raises(InputError, match=line):
            write_recording(tmp_path / "a.edf", signal, ("C3",), 256, notes=("",), filters="")
    assert list(tmp_path.glob("*")) == []


# The verb


def test_the_verb_writes_a_folder_that_verify_finds_sound(tmp_path, capsys):
    masked().save_pretrained(tmp_path / "model")
    for number in range(2):
        edf(tmp_path / "files" / f"Anna{number}.edf", NAMES, seconds=11, seed=number)
    edf(tmp_path / "files" / "other.edf", ("Cz", "Pz"), seconds=11)
    before = {path: path.read_bytes() for path in (tmp_path / "files").iterdir()}
    args = ["repair", str(tmp_path / "model"), str(tmp_path / "files"), "--out", str(tmp_path / "out")]
    assert cli.main([*args, "--bad", "C3", "P4", "--hidden", "2", "--json"]) == 6
    out = capsys.readouterr().out
    result = json.loads(out)
    assert len(result["recordings"]) == 2
    assert "'C3' is not among the 2 channels" in result["failures"][0]["reason"]
    assert [one["name"] for one in result["recordings"][0]["filled"]] == ["C3", "P4"]
    assert "Anna" not in out
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == sorted(["SHA256SUMS", "repair.json", *(row["file"] for row in result["recordings"])])
    assert verify([tmp_path / "out"]).exit_code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "files").iterdir()} == before
    assert cli.main([*args, "--bad", "C3", "P4", "--hidden", "0"]) == 6  # once more into our own folder
    text = capsys.readouterr().out
    assert "filled in   C3 (named by the user), P4 (named by the user)" in text
    assert verify([tmp_path / "out"]).exit_code == 0


def test_no_input_is_overwritten(tmp_path, capsys):
    masked().save_pretrained(tmp_path / "model")
    mine = edf(tmp_path / "out" / "a.edf", NAMES, seconds=5)
    args = ["repair", str(tmp_path / "model"), str(mine), "--bad", "C3", "--out", str(tmp_path / "out")]
    assert cli.main(args) == 2
    assert "not empty and holds nothing of repair" in capsys.readouterr().err
    (tmp_path / "out" / "repair.json").write_text("{}")
    assert cli.main(args) == 2
    assert "no input is overwritten" in capsys.readouterr().err


def test_python_gives_one_recording_or_several(tmp_path):
    one = cerebro_eeg.repair(edf(tmp_path / "a.edf", NAMES, seconds=21), trained(), bad="C3", hidden=3)
    assert repr(one).startswith("<Repaired: 8 channels, of which 1 filled in by ")
    frame = one.to_frame()
    assert frame["hidden"].tolist() == [*(h.name for h in one.hidden), "median"]
    assert frame["splines"].iloc[-1] == pytest.approx(one.errors["splines"])
    assert "C3 (named by the user)" in one._repr_html_()
    assert one.raw().info["bads"] == []
    assert len(one.raw().get_montage().ch_names) == 8
    several = cerebro_eeg.repair([tmp_path / "a.edf"], trained(), bad="C3", hidden=0, method="splines")
    (found,) = several.repaired.values()
    assert np.array_equal(found.data[0], one.data[0])
    assert several.to_frame()["filled"].tolist() == ["C3"]
    written = cerebro_eeg.repair(tmp_path / "a.edf", trained(), bad="C3", hidden=0, out=tmp_path / "out", format="fif")
    assert (Path(written) / written.recordings[0]["file"]).name.endswith("_eeg.fif")
    with pytest.raises(ConfigError, match="a recording lies in the folder out"):
        cerebro_eeg.repair(Path(written) / written.recordings[0]["file"], trained(), bad="C3", out=tmp_path / "out")


# The page


@pytest.mark.docs
def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "repair.md").read_text(encoding="utf-8")
    for line in re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines():
        assert cli.main([*shlex.split(line)[1:], *(["--hidden", "2"] if " repair " in line else [])]) == 0
    found: dict[str, object] = {}
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    exec(compile(code, "docs/repair.md", "exec"), found)
    assert found["whole"].info["sfreq"] == 256
    assert [one.name for one in found["found"].filled] == ["C3", "T8"]
    assert (tmp_path / "repaired.edf").exists()
