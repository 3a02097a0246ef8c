"""MNE both ways: Raw and Epochs into a model, features and answers back as annotations and metadata."""

import datetime
import importlib.util
import logging
import sys

import mne
import numpy as np
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import errors
from cerebro_eeg.data.storing.writer import robust_scale
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.decisions import Prediction
from predict_files import edf, make_model, noise

NAMES = ["Fp1", "Cz", "O2"]


@pytest.fixture
def model(tmp_path):
    return Cerebro.from_pretrained(make_model(tmp_path / "model", outputs=None))


def raw_of(seconds=21.0, rate=250, names=NAMES, seed=0, **changes):
    """A recording in volts; ``changes`` set fields of its info."""
    info = mne.create_info(list(names), rate, "eeg")
    raw = mne.io.RawArray(noise(seconds, len(names), rate, seed) * 1e-6, info, verbose="error")
    with raw.info._unlock():
        raw.info.update(changes)
    return raw


def clean(count, samples, rate=256, seed=0):
    """(epochs, channels, samples) of 3 to 40 Hz in volts, as after the filter of the weights."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / rate
    waves = rng.uniform(3, 40, (count, 3, 6, 1)) * 2 * np.pi * time + rng.uniform(0, 6, (count, 3, 6, 1))
    return 8e-6 * np.sin(waves).sum(2)


def epochs_of(count=6, samples=512, rate=256, band=(0.1, 75.0), seed=0, **arguments):
    info = mne.create_info(NAMES, rate, "eeg")
    with info._unlock():
        info.update(highpass=band[0], lowpass=band[1])
    events = np.stack([np.arange(count) * 1000 + 7, np.zeros(count, int), np.arange(count) % 2 + 1], 1)
    data = clean(count, samples, rate, seed)
    return mne.EpochsArray(data, info, events, event_id={"a": 1, "b": 2}, verbose="error", **arguments)


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


# Raw


@pytest.mark.parametrize("level", ["window", "channel", "token"])
def test_a_raw_is_filtered_on_the_way_of_all_recordings(tmp_path, model, level):
    file = edf(tmp_path / "a.edf")
    raw = mne.io.read_raw_edf(file, verbose="error")
    expected = cerebro_eeg.embed(file, model, level=level).features
    assert np.array_equal(model.embed(raw, level=level), cerebro_eeg.embed(raw, model, level=level).features)
    np.testing.assert_allclose(model.embed(raw, level=level), expected, atol=1e-3)
    model.set_channels(["C3"])  # the channels of arrays; a Raw has its own
    assert model.embed(raw, level=level, layer=1).shape == expected.shape


def test_rules_of_the_model_are_those_of_its_embed(model, tmp_path):
    raw = raw_of(names=["Fp1", "QQ7", "Cz"])
    with pytest.raises(errors.ChannelError, match="QQ7"):
        model.embed(raw)
    lax = Cerebro.from_pretrained(tmp_path / "model", unknown="drop")
    assert np.array_equal(lax.embed(raw), model.embed(raw.copy().drop_channels("QQ7")))
    picky = Cerebro.from_pretrained(tmp_path / "model", pick=["Cz"], unknown="drop")
    assert np.array_equal(picky.embed(raw), model.embed(raw.copy().pick(["Cz"])))
    assert cerebro_eeg.embed(raw, picky, unknown="drop").channels == ("Cz",)


def test_what_an_object_knows_is_not_given_again(model):
    for given in ({"ch_names": NAMES}, {"sfreq": 250}, {"scale": 10.0}):
        with pytest.raises(errors.InputError, match=f"{next(iter(given))} was given with a RawArray object.*leave"):
            model.embed(raw_of(), **given)
    evoked = mne.EvokedArray(np.zeros((3, 600)), raw_of().info)
    with pytest.raises(errors.InputError, match="an MNE Raw or Epochs object; got EvokedArray"):
        model.embed(evoked)


def test_bad_channels_are_left_out_and_told(model, caplog):
    raw = raw_of()
    raw.info["bads"] = ["Cz"]
    found = model.embed(raw, level="channel")
    assert found.shape[1] == 2
    assert lines(caplog) == ["1 channel is marked as bad and was left out: 'Cz'"]
    epochs = epochs_of()
    epochs.info["bads"] = ["O2"]
    assert model.embed(epochs, level="channel").shape[1] == 2
    assert "was left out: 'O2'" in lines(caplog)[-1]


@pytest.mark.parametrize(
    ("band", "words"),
    [
        ((0.1, 75.0), None),
        ((0.0, 125.0), None),  # as recorded: it will be filtered
        ((1.0, 75.0), "1 to 75 Hz by its info, and the weights expect 0.1 to 75 Hz; what an earlier filter removed"),
        ((0.016, 40.0), "0.016 to 40 Hz by its info"),
    ],
)
def test_a_recording_that_was_filtered_more_narrowly_is_told_of(model, caplog, band, words):
    model.embed(raw_of(highpass=band[0], lowpass=band[1]))
    assert len(lines(caplog)) == (words is not None)
    assert words is None or words in lines(caplog)[0]


# Epochs


def test_epochs_are_taken_as_they_are(model, caplog):
    caplog.set_level(logging.INFO)
    epochs = epochs_of()
    expected = model.embed(epochs.get_data(), ch_names=NAMES, unit="V")
    np.testing.assert_allclose(model.embed(epochs), expected, atol=2e-6)
    found = cerebro_eeg.embed(epochs, model)
    assert np.array_equal(found.features, model.embed(epochs))
    assert found.start.tolist() == [0, 2, 4, 6, 8, 10]
    assert found.epoch.tolist() == list(range(6))
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("band", "words"),
    [
        ((0.1, 75.0), None),
        ((0.1, 70.0), None),  # less than a tenth apart
        ((1.0, 40.0), "the epochs have 1 to 40 Hz by their info, and the weights expect 0.1 to 75 Hz; they are taken"),
        ((0.0, 128.0), "the epochs have 0 to 128 Hz by their info"),
        ((0.1, 128.0), "the epochs have 0.1 to 128 Hz by their info"),
    ],
)
def test_a_pass_band_that_is_not_the_weights_is_told_in_one_line(model, caplog, band, words):
    model.embed(epochs_of(band=band))
    assert len(lines(caplog)) == (words is not None)
    assert words is None or lines(caplog)[0].startswith(words)


def test_epochs_of_a_low_rate_need_no_band_that_they_cannot_have(model, caplog):
    model.embed(epochs_of(samples=200, rate=100, band=(0.1, 45.0)))
    assert lines(caplog) == []


def test_a_line_that_the_info_cannot_tell_of_is_warned_of(model):
    epochs = epochs_of()
    hum = epochs.get_data() + 20e-6 * np.sin(2 * np.pi * 50 * epochs.times)
    with pytest.warns(UserWarning, match="the epochs have a strong line at 50 Hz, and they are taken as they are"):
        model.embed(mne.EpochsArray(hum, epochs.info, verbose="error"))


def test_one_sample_too_many_is_left_out_and_told(model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    expected = model.embed(epochs_of().get_data(), ch_names=NAMES, unit="V")
    epochs = epochs_of(samples=513)  # from 0 to 2 s, as MNE cuts with tmax=2
    exact = epochs.get_data()[..., :512]
    expected = model.embed(exact, ch_names=NAMES, unit="V")
    np.testing.assert_allclose(model.embed(epochs), expected, atol=2e-6)
    (line,) = lines(caplog)
    assert line.startswith("the epochs have 513 samples, one more than a window, as MNE includes tmax")
    caplog.clear()
    for fixed in (model, Cerebro.from_pretrained(tmp_path / "model", n_times=512)):  # arrays of MNE, too
        assert np.array_equal(fixed.embed(epochs.get_data(), ch_names=NAMES, unit="V"), expected)
        assert "the last sample is left out" in lines(caplog)[-1]
    fixed.set_channels(NAMES)
    with pytest.raises(errors.InputError, match=r"513 samples; the model was made for n_times=512; leave out the last"):
        fixed(torch.tensor(epochs.get_data() * 1e6))
    model_of_500 = epochs_of(samples=1001, rate=500)
    assert model.embed(model_of_500).shape == (6, 12)
    assert "1001 samples" in lines(caplog)[-2] or "1001 samples" in lines(caplog)[-1]


def test_epochs_of_another_rate_are_resampled_one_by_one(model):
    time = np.arange(1000) / 500
    waves = np.sin(2 * np.pi * np.array([6, 11, 23])[None, :, None] * time) * 20e-6 * np.ones((4, 1, 1))
    info = mne.create_info(NAMES, 500, "eeg")
    with info._unlock():
        info.update(highpass=0.1, lowpass=75.0)
    found = model.embed(mne.EpochsArray(waves, info, verbose="error"))
    exact = np.sin(2 * np.pi * np.array([6, 11, 23])[None, :, None] * np.arange(512) / 256) * 20.0
    np.testing.assert_allclose(found[0], model.embed(exact, ch_names=NAMES)[0], atol=0.02)
    assert np.array_equal(found[0], found[3])


def test_epochs_of_another_length(model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    epochs = epochs_of(samples=300)  # 1.17 s: four patches and a rest
    expected = model.embed(epochs.get_data()[..., :256], ch_names=NAMES, unit="V")
    found = cerebro_eeg.embed(epochs, model)
    np.testing.assert_allclose(found.features, expected, atol=2e-6)
    assert found.seconds == 1.0
    assert lines(caplog) == [
        "the epochs have 1.172 s and the weights learned from 2 s; they are embedded whole without the last 44 of "
        "their 300 samples"
    ]
    whole = epochs_of(samples=1024)
    assert cerebro_eeg.embed(whole, model).features.shape == (6, 12)
    caplog.clear()
    parts = cerebro_eeg.embed(whole, model, seconds=2)
    assert lines(caplog) == ["each epoch of 4 s is cut into windows of 2 s"]
    cerebro_eeg.embed(epochs_of(samples=600), model, seconds=2)
    assert lines(caplog)[-1].endswith("windows of 2 s; what is left at its end is left out")
    assert parts.epoch.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    both = np.stack([whole.get_data()[..., :512], whole.get_data()[..., 512:]], 1).reshape(12, 3, 512)
    np.testing.assert_allclose(parts.features, model.embed(both, ch_names=NAMES, unit="V"), atol=2e-6)
    fixed = Cerebro.from_pretrained(tmp_path / "model", n_times=512)
    with pytest.raises(errors.InputError, match=r"have 1.172 s, and windows of this model have 2 s; cut epochs .*=1$"):
        fixed.embed(epochs)
    with pytest.raises(errors.InputError, match=r"less than a patch of 0.25 s"):
        model.embed(epochs_of(samples=50))
    with pytest.raises(errors.InputError, match="or give the Raw instead"):
        cerebro_eeg.predict(epochs, make_model(tmp_path / "head"))


@pytest.mark.parametrize("reference", ["as_recorded", "average"])
def test_epochs_get_the_reference_of_the_weights_and_the_scale_of_all(tmp_path, reference):
    signal = cerebro_eeg.SignalConfig(reference=reference)
    model = Cerebro.from_pretrained(make_model(tmp_path / "m", outputs=None, amplitude=True, signal=signal))
    epochs = epochs_of()
    data = (epochs.get_data() * 1e6).astype(np.float32)
    if reference == "average":
        data = data - data.mean(1, keepdims=True)
    scale = robust_scale(data.transpose(0, 2, 1).reshape(-1, 3))
    np.testing.assert_allclose(model.embed(epochs), model.embed(data, ch_names=NAMES, scale=scale), atol=1e-5)


def test_epochs_with_nan_are_refused_because_every_epoch_has_a_row(model):
    data = epochs_of().get_data()
    data[3, 1, 20] = np.nan
    with pytest.raises(errors.RecordingError, match="epoch 3 holds NaN or infinity in channel 'Cz'"):
        model.embed(mne.EpochsArray(data, epochs_of().info, verbose="error"))
    data[3, 1, 20] = 1.0  # a volt: more than half precision holds, and still a row
    assert len(model.embed(mne.EpochsArray(data, epochs_of().info, verbose="error"))) == 6


# Annotations


def made(**changes):
    output = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.7, 0.3]], np.float32)
    fields = {
        "kind": "classification",
        "names": ("rest", "seizure"),
        "threshold": 0.5,
        "output": output,
        "start": np.array([0.0, 2.0, 4.0, 10.0]),
        "seconds": 2.0,
        "stretch": np.array([0, 0, 0, 1]),
        "short": np.zeros(4, bool),
        "end": 12.0,
        "channels": ("Cz",),
        "faults": (),
        "plan": "",
    }
    return Prediction(**{**fields, **changes})


@pytest.mark.parametrize("meas_date", [None, datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)])
@pytest.mark.parametrize("crop", [0.0, 3.0])
def test_annotations_survive_being_set(meas_date, crop):
    raw = raw_of(20).set_meas_date(meas_date).crop(crop)
    found = made().annotations()
    assert found.onset.tolist() == [0.0, 2.0, 4.0, 10.0]
    assert found.duration.tolist() == [2.0] * 4
    assert found.description.tolist() == ["rest", "rest", "seizure", "rest"]
    assert [extra["probability"] for extra in found.extras] == pytest.approx([0.9, 0.8, 0.8, 0.7])
    raw.set_annotations(found)
    np.testing.assert_allclose(raw.annotations.onset - raw.first_time, [0, 2, 4, 10], atol=1e-9)
    events, codes = mne.events_from_annotations(raw, verbose="error")
    assert ((events[:, 0] - raw.first_samp) / 250).tolist() == [0, 2, 4, 10]
    assert events[:, 2].tolist() == [codes[name] for name in found.description]
    if meas_date:
        same = made().annotations(orig_time=raw.info["meas_date"], first_time=raw.first_time)
        np.testing.assert_allclose(same.onset, raw.annotations.onset)
        assert same.orig_time == raw.annotations.orig_time


def test_neighbouring_windows_are_merged_on_request():
    found = made().annotations(merge=True)
    assert found.onset.tolist() == [0, 4, 10]
    assert found.duration.tolist() == [4, 2, 2]
    assert found.description.tolist() == ["rest", "seizure", "rest"]
    assert [extra["probability"] for extra in found.extras] == pytest.approx([0.85, 0.8, 0.7])


def test_annotations_of_a_raw_lie_where_its_windows_are(tmp_path):
    raw = raw_of(21)
    raw.set_annotations(mne.Annotations([7.5], [0], ["boundary"]))  # a join: no window spans it
    found = cerebro_eeg.predict(raw, make_model(tmp_path / "model")).annotations()
    assert found.onset.tolist() == [0, 2, 4, 7.5, 9.5, 11.5, 13.5, 15.5, 17.5]


def test_answers_without_a_place_in_time_are_no_annotations(tmp_path):
    with pytest.raises(errors.InputError, match="predicts values and no classes"):
        made(kind="regression", threshold=None).annotations()
    with pytest.raises(errors.InputError, match="epochs have no time in a recording"):
        cerebro_eeg.predict(epochs_of(), make_model(tmp_path / "model")).annotations()


def test_annotations_without_mne_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mne", None)
    with pytest.raises(errors.ConfigError, match="the package mne is not installed; pip install mne"):
        made().annotations()


# Metadata

PANDAS = importlib.util.find_spec("pandas") is not None


def column(rows, name):
    return list(rows[name]) if PANDAS else [row[name] for row in rows]


def own_metadata(rows):
    if not PANDAS:
        return rows
    import pandas

    return pandas.DataFrame(rows)


def test_features_become_metadata_of_their_epochs(model):
    epochs = epochs_of()
    found = cerebro_eeg.embed(epochs, model)
    epochs.metadata = found.metadata()
    for name, values in zip([f"feature_{k:03d}" for k in range(12)], found.features.T, strict=True):
        np.testing.assert_allclose(column(epochs.metadata, name), values, atol=1e-6)
    half = epochs[[1, 4]]
    np.testing.assert_allclose(column(half.metadata, "feature_003"), found.features[[1, 4], 3], atol=1e-6)


def test_rows_find_their_epochs_after_some_were_dropped(model, tmp_path):
    epochs = epochs_of(metadata=own_metadata([{"trial": k} for k in range(6)]))
    answer = cerebro_eeg.predict(epochs, make_model(tmp_path / "head"))
    found = cerebro_eeg.embed(epochs, model)
    epochs.drop([0, 3], verbose="error")
    assert len(found.metadata()) == 6  # of the epochs that were given
    epochs.metadata = found.metadata(epochs)
    assert column(epochs.metadata, "trial") == [1, 2, 4, 5]
    np.testing.assert_allclose(column(epochs.metadata, "feature_000"), found.features[[1, 2, 4, 5], 0], atol=1e-6)
    epochs.metadata = answer.metadata(epochs)
    np.testing.assert_allclose(
        column(epochs.metadata, "probability_seizure"), answer.output[[1, 2, 4, 5], 1], atol=1e-6
    )
    assert column(epochs.metadata, "decision") == [answer.names[k] for k in answer.classes[[1, 2, 4, 5]]]
    assert column(epochs.metadata, "trial") == [1, 2, 4, 5]
    np.testing.assert_allclose(model.embed(epochs), found.features[[1, 2, 4, 5]], atol=1e-6)


def test_bad_epochs_that_mne_has_not_dropped_yet_have_no_features(model):
    raw = raw_of(20, 256, highpass=0.1, lowpass=75.0)
    raw._data = clean(1, 20 * 256)[0]
    raw.set_annotations(mne.Annotations([4.5], [0.5], ["BAD_move"]))
    events = mne.make_fixed_length_events(raw, duration=2.0)
    epochs = mne.Epochs(raw, events, tmin=0, tmax=2, baseline=None, verbose="error")
    found = cerebro_eeg.embed(epochs, model)
    assert not epochs._bad_dropped  # the user's object stays as it is
    assert found.epochs.selection.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    early = found.metadata(epochs)  # of all ten events; the last one is too short
    assert np.flatnonzero(np.isnan(column(early, "feature_000"))).tolist() == [2, 9]
    epochs.metadata = early
    epochs.drop_bad(verbose="error")
    np.testing.assert_allclose(column(epochs.metadata, "feature_000"), found.features[:, 0], atol=1e-6)


def test_windows_of_an_epoch_give_their_mean(model, tmp_path):
    epochs = epochs_of(samples=1024)
    found = cerebro_eeg.embed(epochs, model, seconds=2)
    rows = column(found.metadata(), "feature_001")
    np.testing.assert_allclose(rows, found.features[:, 1].reshape(6, 2).mean(1), atol=1e-6)
    said = cerebro_eeg.predict(epochs, make_model(tmp_path / "head"))
    mean = said.output[:, 1].reshape(6, 2).mean(1)
    np.testing.assert_allclose(column(said.metadata(), "probability_seizure"), mean, atol=1e-6)
    assert column(said.metadata(), "decision") == ["seizure" if p >= 0.5 else "rest" for p in mean]


def test_metadata_of_something_else_are_refused(model):
    found = cerebro_eeg.embed(epochs_of(), model)
    other = epochs_of()
    other.events[:, 0] += 1
    with pytest.raises(errors.InputError, match="none of these epochs is among those"):
        found.metadata(other)
    with pytest.raises(errors.InputError, match="of a recording, not of Epochs"):
        cerebro_eeg.embed(raw_of(), model).metadata()
    with pytest.raises(errors.InputError, match="embed with level='window'"):
        cerebro_eeg.embed(epochs_of(), model, level="channel").metadata()
