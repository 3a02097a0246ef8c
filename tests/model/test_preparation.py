"""Windows that plainly were not filtered as the weights expect raise one warning; filtered windows of any band none."""

import csv
import warnings

import mne
import numpy as np
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import Cerebro
from cerebro_eeg.config import ModelConfig, SignalConfig
from cerebro_eeg.data.datasets.openeeg import read_npz
from cerebro_eeg.data.preprocess import preprocess
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.model.preparation import doubts

SIGNAL = SignalConfig()
NAMES = ["Fp1", "Fz", "T7", "C4", "O2"]
BANDS = [(1, 40), (8, 30), (0.5, 70), (0.1, 75)]


def simulated(seconds=60, rate=256.0, channels=5):
    """(channels, time) microvolts: noise that falls with frequency, and alpha."""
    rng = np.random.default_rng(0)
    count = round(seconds * rate)
    frequencies = np.maximum(np.fft.rfftfreq(count, 1 / rate), 0.3)
    x = np.fft.irfft(np.fft.rfft(rng.normal(size=(channels, count))) / frequencies**0.8, count)
    alpha = np.sin(2 * np.pi * 10 * np.arange(count) / rate + rng.uniform(0, 6, (channels, 1)))
    return 15 * x / x.std(-1, keepdims=True) + 8 * alpha


def filtered(x, rate, low, high):
    """Filter as a user would with MNE; a notch where the mains is inside the band."""
    x = mne.filter.filter_data(x, rate, low, min(high, 0.45 * rate), verbose="error")
    if high > 50 and rate > 125:
        x = mne.filter.notch_filter(x, rate, [50.0, 60.0], notch_widths=2, verbose="error")
    return x


def windows(x, rate, seconds=5.0):
    size = round(seconds * rate)
    count = x.shape[1] // size
    return torch.tensor(x[:, : count * size].reshape(len(x), count, size).transpose(1, 0, 2).astype(np.float32))


def found(x, rate=256.0):
    """All doubts about windows of 5, 2 and 1 s, of the whole and of single ones."""
    result = set()
    for seconds in (5.0, 2.0, 1.0):
        cut = windows(x, rate, seconds)
        for part in (cut, cut[:1], cut[len(cut) // 2 :][:1], cut[-3:]):
            result.update(doubts(part, rate, SIGNAL) if len(part) else ())
    return result


def spoiled(x, rate=256.0, line=50.0):
    """The same with mains, and an offset that drifts, as an amplifier without a high-pass gives it."""
    time = np.arange(x.shape[1]) / rate
    return x + 25 * np.sin(2 * np.pi * line * time) + 800 + 300 * np.sin(2 * np.pi * 0.01 * time)


@pytest.mark.parametrize("line", [50.0, 60.0])
def test_raw_eeg_raises_doubts_and_filtered_eeg_none(line):
    raw = spoiled(simulated(), line=line)
    assert doubts(windows(raw, 256.0), 256.0, SIGNAL) == [
        f"a strong line at {line:g} Hz",
        "an offset or drift below 0.1 Hz",
    ]
    for low, high in BANDS:
        assert found(filtered(raw, 256.0, low, high)) == set()


def test_energy_above_the_low_pass():
    rng = np.random.default_rng(1)
    wide = filtered(simulated(), 256.0, 0.1, 75) + 6 * rng.normal(size=(5, 15360))
    assert doubts(windows(wide, 256.0), 256.0, SIGNAL) == ["energy above 75 Hz"]
    assert found(filtered(wide, 256.0, 0.1, 75)) == set()
    assert doubts(windows(wide, 256.0), 256.0, SignalConfig(lowpass=125.0)) == []


def test_only_what_the_weights_expect_counts():
    raw = windows(spoiled(simulated()), 256.0)
    assert doubts(raw, 256.0, SignalConfig(notch_width=0.0)) == ["an offset or drift below 0.1 Hz"]
    assert doubts(raw, 256.0, SignalConfig(highpass=0.0)) == ["a strong line at 50 Hz"]


def test_one_bad_electrode_and_flat_channels_raise_no_doubt():
    x = filtered(simulated(), 256.0, 0.1, 75)
    x[1] = spoiled(x)[1]
    x[2] = 0
    assert found(x) == set()
    assert found(np.zeros_like(x)) == set()
    assert found(np.full_like(x, 5.0)) == set()


def test_noise_of_examples_raises_no_doubt():
    assert found(20 * np.random.default_rng(0).normal(size=(5, 2560))) == set()


@pytest.fixture(scope="module")
def devices(open_eeg):
    """One recording of every device of the pack, up to a minute of it."""
    with (open_eeg / "index.csv").open() as file:
        rows = list(csv.DictReader(file))
    first = {row["dataset"]: row["file"] for row in reversed(rows)}
    return {name: read_npz(open_eeg / file, ChannelPolicy(bipolar_ears=True)) for name, file in sorted(first.items())}


def test_real_eeg_of_every_device_raises_no_false_alarm(devices):
    assert len(devices) == 8
    for name, recording in devices.items():
        rate = recording.sfreq
        prepared = np.concatenate([piece.rows for piece in preprocess(recording, SIGNAL).pieces()])
        assert (name, found(prepared.T[:, : 60 * 256])) == (name, set())
        x = recording.read(0, min(recording.samples, round(60 * rate))).T.astype(np.float64)
        for low, high in BANDS:
            assert (name, low, high, found(filtered(x, rate, low, high), rate)) == (name, low, high, set())


def test_real_raw_eeg_raises_an_alarm(devices):
    for name, word in (("adhd", "a strong line at 50 Hz"), ("ssvepexo", "energy above 75 Hz")):
        recording = devices[name]
        raw = recording.read(0, min(recording.samples, round(60 * recording.sfreq))).T
        assert word in doubts(windows(raw, recording.sfreq), recording.sfreq, SIGNAL)


def model():
    torch.manual_seed(0)
    return Cerebro(2, ch_names=NAMES, config=ModelConfig(depth=2, width=12, heads=3)).eval()


def test_embed_warns_once_and_forward_never():
    network, x = model(), spoiled(simulated(20))
    with pytest.warns(UserWarning, match="the weights expect 0.1 to 75 Hz with a notch") as caught:
        network.embed(x * 1e-6, unit="V")
    assert len(caught) == 1
    line = str(caught[0].message)
    assert line.startswith(
        "the windows have a strong line at 50 Hz and an offset or drift below 0.1 Hz, but the weights"
    )
    assert "cerebro_eeg.embed(raw, model)" in line
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(windows(x, 256.0))
        network.embed(filtered(x, 256.0, 0.1, 75))
        network.embed(filtered(x, 256.0, 8, 30))


def test_a_recording_is_filtered_and_a_line_that_stays_is_said():
    raw = mne.io.RawArray(spoiled(simulated(40)) * 1e-6, mne.create_info(NAMES, 256.0, "eeg"), verbose="error")
    network = model()
    for function in (cerebro_eeg.embed, cerebro_eeg.predict):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(raw, network)
        said = r"still has a strong line at 50 Hz \(the notch was at 60 Hz\); pass mains=50"
        with pytest.warns(UserWarning, match=said):
            function(raw, network, mains=60.0)
