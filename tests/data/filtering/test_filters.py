"""Filters against MNE and SciPy in float64, their edges, their streams; references, mains and half precision."""

import subprocess
import sys
import tracemalloc

import mne
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal

from cerebro_eeg.channels.match import Channel, match
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.filtering import causal, zero_phase
from cerebro_eeg.data.filtering import plan as fir
from cerebro_eeg.data.filtering.filters import filter_recording, finite_runs
from cerebro_eeg.data.filtering.half import to_half
from cerebro_eeg.data.filtering.plan import FilterPlan, estimate_mains, plan_filters
from cerebro_eeg.data.filtering.references import MONTAGES, rereference
from cerebro_eeg.data.filtering.zero_phase import ZeroPhase
from cerebro_eeg.data.reading.recording import Recording, Segment
from cerebro_eeg.errors import ChannelError, ConfigError, RecordingError

RATES = (100.0, 128.0, 160.0, 173.61, 200.0, 250.0, 256.0, 400.0, 500.0, 512.0, 1000.0, 1024.0)
NAMES = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2 A1 A2".split()
CONFIG = SignalConfig()


def filtered(recording, config, mains, **options):
    return filter_recording(recording, plan_filters(recording.sfreq, config, mains), **options)


def recording_of(samples, sfreq, segments=None):
    segments = segments or (Segment(0, len(samples), 0.0),)
    labels = match(NAMES[: samples.shape[1]])
    return Recording(sfreq, labels, tuple(segments), lambda start, stop: samples[start:stop])


def hard_signal(sfreq, seconds, seed=0):
    """Noise on 5,000 uV with 50 Hz; a random walk with drift from -5,000 uV and 60 Hz; a weak alpha wave."""
    rng = np.random.default_rng(seed)
    n = round(seconds * sfreq)
    t = np.arange(n) / sfreq
    walk = np.cumsum(rng.standard_normal(n)) * 8 / np.sqrt(sfreq)
    columns = [
        20 * rng.standard_normal(n) + 5000 + 50 * np.sin(2 * np.pi * 50 * t),
        walk + 3 * t - 5000 + 100 * np.sin(2 * np.pi * 60 * t),
        10 * np.sin(2 * np.pi * 10 * t) + np.sin(2 * np.pi * 31 * t),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def mne_float64(samples, plan):
    """Band-pass and notch of a whole file by MNE, channel-major."""
    wide = samples.T.astype(np.float64)
    with mne.utils.use_log_level("error"):
        wide = mne.filter.filter_data(wide, plan.rate, plan.low, plan.high)
        if plan.notch is not None:
            wide = mne.filter.notch_filter(wide, plan.rate, plan.notch, notch_widths=plan.notch_width)
    return wide


def push_all(stream, samples, portions):
    out = []
    for portion in np.split(samples, np.cumsum(portions)):
        out += stream.push(portion)
    return np.concatenate([*out, *stream.finish()])


def joined(blocks):
    return np.concatenate([block.signal for block in blocks])


# Design


@pytest.mark.parametrize("sfreq", [*RATES, 37.0, 99.9, 333.3, 2048.0, 5000.0])
@pytest.mark.parametrize("low", [0.0, 0.1, 0.5, 3.0])
def test_band_pass_is_mnes(sfreq, low):
    high = min(75.0, 0.45 * sfreq)
    with mne.utils.use_log_level("error"):
        expected = mne.filter.create_filter(
            None, sfreq, low or None, high, phase="zero", fir_design="firwin", filter_length="auto"
        )
    found = fir.band_pass(sfreq, low, high)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("sfreq", "line", "width"), [(250, 50, 2), (250, 60, 2), (173.61, 60, 2), (1000, 50, 4)])
def test_notch_is_mnes(sfreq, line, width, monkeypatch):
    seen = []
    inner = mne.filter._overlap_add_filter
    monkeypatch.setattr(mne.filter, "_overlap_add_filter", lambda x, h, *a, **k: seen.append(h) or inner(x, h, *a, **k))
    with mne.utils.use_log_level("error"):
        mne.filter.notch_filter(np.zeros((1, round(10 * sfreq))), sfreq, line, notch_widths=width)
    np.testing.assert_allclose(fir.notch(sfreq, line, width), seen[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("up", "down"), [(128, 125), (1, 2), (16, 25), (2, 1)])
def test_anti_alias_is_resample_poly(up, down):
    impulse = np.zeros(down * 101)
    impulse[down * 50] = 1.0
    taps = fir.anti_alias(up, down)
    response = signal.resample_poly(impulse, up, down)
    at = np.arange(len(response)) * down - down * 50 * up + len(taps) // 2
    inside = (at >= 0) & (at < len(taps))
    np.testing.assert_allclose(response[inside], taps[at[inside]], atol=1e-12)
    assert np.abs(response[~inside]).max() < 1e-12


# The plan


def test_plan_of_the_decisions():
    plan = plan_filters(250.0, CONFIG, 60.0)
    assert (plan.up, plan.down, plan.low, plan.high, plan.notch) == (128, 125, 0.1, 75.0, 60.0)
    assert plan.upsampled
    assert plan.text() == "0.1-75 Hz, notch 60 Hz (2 Hz wide), zero-phase FIR, 250 to 256 Hz (upsampled)"
    low = plan_filters(100.0, CONFIG, 50.0)
    assert (low.high, low.notch) == (45.0, None)  # the mains lie above the upper edge
    assert not plan_filters(512.0, CONFIG, None).upsampled
    assert plan_filters(128.0, CONFIG, 60.0).notch is None  # 57.6 Hz is the edge
    assert plan_filters(128.0, CONFIG, 50.0).notch == 50.0
    assert plan_filters(250.0, SignalConfig(notch_width=0.0), 50.0).notch is None


@pytest.mark.parametrize(
    ("sfreq", "ratio"), [(173.61, (25600, 17361)), (256 / 3, (3, 1)), (499.9, (2560, 4999)), (1e4, (16, 625))]
)
def test_rational_rates(sfreq, ratio):
    plan = plan_filters(sfreq, CONFIG, None)
    assert (plan.up, plan.down) == ratio


@given(st.floats(1.0, 20_000.0))
def test_any_rate_keeps_time_or_is_refused(sfreq):
    try:
        plan = plan_filters(sfreq, CONFIG, None)
    except RecordingError:
        return
    day = 24 * 3600
    assert abs(sfreq * plan.up / plan.down - 256.0) / 256.0 * day < 0.5 / 256  # less than half a sample in a day
    assert max(plan.up, plan.down) <= 100_000


@pytest.mark.parametrize("sfreq", [0.0, -1.0, 0.2, float("nan"), float("inf"), 1e6])
def test_absurd_rates_are_refused(sfreq):
    with pytest.raises(RecordingError, match="sampling rate") as caught:
        plan_filters(sfreq, CONFIG, None)
    assert caught.value.code == "rate"


def test_a_rate_without_a_pass_band_is_refused():
    with pytest.raises(RecordingError, match="no pass-band above 1 Hz"):
        plan_filters(2.0, SignalConfig(highpass=1.0), None)


# Accuracy


@pytest.mark.parametrize("sfreq", RATES)
@pytest.mark.parametrize("mains", [50.0, 60.0])
def test_within_a_tenth_of_a_microvolt_or_a_thousandth_of_the_rms(sfreq, mains):
    samples = hard_signal(sfreq, 150)
    plan = plan_filters(sfreq, CONFIG, mains)
    expected = signal.resample_poly(mne_float64(samples, plan), plan.up, plan.down, axis=1).T
    found = joined(filtered(recording_of(samples, sfreq), CONFIG, mains))
    assert found.dtype == np.float32
    assert found.shape == expected.shape == (plan.count(len(samples)), 3)
    edge = len(expected) // 20
    inner = slice(edge, -edge)
    limit = np.maximum(0.1, 0.001 * expected[inner].std(axis=0))
    assert (np.abs(found - expected)[inner].max(axis=0) < 0.5 * limit).all()


@pytest.mark.parametrize("sfreq", [250.0, 256.0, 512.0])
def test_edges_are_mnes_odd_reflection(sfreq):
    samples = hard_signal(sfreq, 70)
    plan = plan_filters(sfreq, CONFIG, 60.0)
    clean = mne_float64(samples, plan)
    pad = 40 * plan.down  # MNE's own continuation of what it filtered, so that resampling sees no end
    longer = np.pad(clean, ((0, 0), (pad, pad)), "reflect", reflect_type="odd")
    expected = signal.resample_poly(longer, plan.up, plan.down, axis=1).T
    expected = expected[40 * plan.up :][: plan.count(len(samples))]
    found = joined(filtered(recording_of(samples, sfreq), CONFIG, 60.0))
    limit = np.maximum(0.1, 0.001 * expected.std(axis=0))
    assert (np.abs(found - expected).max(axis=0) < 0.5 * limit).all()


def test_without_high_pass_an_offset_stays():
    config = SignalConfig(highpass=0.0)
    samples = hard_signal(250.0, 20)
    plan = plan_filters(250.0, config, None)
    wide = mne.filter.filter_data(samples.T.astype(np.float64), 250.0, None, 75.0, verbose="error")
    offset = np.round(
        wide[:, :1]
    )  # resample_poly makes a 6 Hz ripple of 3 uV out of 5,000 uV; ours takes the offset off
    expected = (signal.resample_poly(wide - offset, 128, 125, axis=1) + offset).T
    found = joined(filter_recording(recording_of(samples, 250.0), plan))
    np.testing.assert_allclose(found[300:-300], expected[300:-300], atol=0.1)


def test_offsets_of_200_millivolts_cost_nothing():
    quiet = hard_signal(512.0, 100)[:, [2]]
    loud = quiet + np.float32(200_000.0)  # float32 itself keeps 0.016 uV there
    one, two = (joined(filtered(recording_of(x, 512.0), CONFIG, 60.0)) for x in (quiet, loud))
    assert np.abs(one - two).max() < 0.02


def test_drifts_of_400_millivolts_cost_nothing():
    samples = hard_signal(256.0, 700)
    samples += np.minimum(np.arange(len(samples)) / 256.0, 300.0)[:, None].astype(np.float32) * 1333
    plan = plan_filters(256.0, CONFIG, 60.0)
    found = joined(filter_recording(recording_of(samples, 256.0), plan))
    late = slice(400 * 256, 650 * 256)
    np.testing.assert_allclose(found[late], mne_float64(samples, plan).T[late], rtol=0, atol=0.01)


def test_one_absurd_sample_does_not_spoil_what_is_far():
    samples = hard_signal(256.0, 700)
    bad = samples.copy()
    bad[100] = 1e30
    one, two = (joined(filtered(recording_of(x, 256.0), CONFIG, None)) for x in (samples, bad))
    np.testing.assert_allclose(one[-60_000:], two[-60_000:], atol=0.01)


# Streams


@pytest.mark.parametrize("sfreq", [128.0, 173.61, 250.0, 256.0, 512.0])
def test_block_size_does_not_matter(sfreq):
    samples = hard_signal(sfreq, 300)
    plan = plan_filters(sfreq, CONFIG, 50.0)
    found = [push_all(ZeroPhase(plan, 3, block), samples, [len(samples)]) for block in (1, 5, 64)]
    assert len({zero_phase.sizes(plan, block)[-1] for block in (1, 5, 64)}) > 1 or sfreq == 173.61
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=0.01)


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 9000), max_size=12), st.sampled_from(["zero", "causal"]), st.sampled_from([100.0, 512.0])
)
def test_portions_do_not_matter_at_all(portions, phase, sfreq):
    samples = hard_signal(sfreq, 40_000 / sfreq)
    plan = plan_filters(sfreq, SignalConfig(filter_phase=phase), 50.0)
    make = ZeroPhase if phase == "zero" else causal.Causal
    whole = push_all(make(plan, 3), samples, [len(samples)])
    portions = [size for i, size in enumerate(portions) if sum(portions[: i + 1]) < len(samples)]
    assert np.array_equal(push_all(make(plan, 3), samples, portions), whole)
    assert len(whole) == plan.count(len(samples))


def test_a_channel_does_not_depend_on_the_others():
    rng = np.random.default_rng(1)
    samples = (rng.standard_normal((20_000, 9)) * 10.0 ** rng.integers(0, 6, 9)).astype(np.float32)
    plan = plan_filters(250.0, CONFIG, 50.0)
    together = joined(filter_recording(recording_of(samples, 250.0), plan))
    for column in range(9):
        alone = joined(filter_recording(recording_of(samples[:, [column]], 250.0), plan))
        assert np.array_equal(alone[:, 0], together[:, column])


@settings(max_examples=30)
@given(st.integers(1, 3000), st.sampled_from(RATES))
def test_count_and_flag_of_short_segments(samples, sfreq):
    plan = plan_filters(sfreq, CONFIG, 50.0)
    blocks = list(filter_recording(recording_of(np.full((samples, 2), 7000.25, np.float32), sfreq), plan))
    found = joined(blocks)
    assert len(found) == len(signal.resample_poly(np.zeros(samples), plan.up, plan.down))
    assert np.abs(found).max() < 1e-2  # an offset is no signal, however short the segment
    assert all(block.short for block in blocks)


def test_long_segments_are_not_flagged():
    plan = plan_filters(256.0, CONFIG, 50.0)
    for extra, short in ((-1, True), (0, False)):
        blocks = filter_recording(recording_of(np.zeros((plan.length + extra, 1), np.float32), 256.0), plan)
        assert {block.short for block in blocks} == {short}


def test_a_short_segment_with_an_offset_has_no_step():
    t = np.arange(513) / 256.0  # the wave is 0 at both ends: what the reflection takes off is the trend alone
    wave = 10 * np.sin(2 * np.pi * 10 * t)
    found = joined(filtered(recording_of((wave + 5000 + 20 * t)[:, None].astype(np.float32), 256.0), CONFIG, None))
    np.testing.assert_allclose(found[:, 0], wave, atol=0.1)


def test_gaps_and_onsets():
    samples = hard_signal(250.0, 60)
    segments = (Segment(0, 5000, 0.0), Segment(5000, 9001, 100.004), Segment(9001, 15_000, 500.0))
    plan = plan_filters(250.0, CONFIG, 50.0)
    blocks = list(filter_recording(recording_of(samples, 250.0, segments), plan, chunk=999))
    for number, segment in enumerate(segments):
        mine = [block for block in blocks if block.stretch == number]
        assert {block.onset for block in mine} == {segment.onset}
        assert [block.start for block in mine] == np.cumsum([0, *[len(b.signal) for b in mine]])[:-1].tolist()
        alone = joined(filter_recording(recording_of(samples[segment.start : segment.stop], 250.0), plan))
        assert np.array_equal(joined(mine), alone)
    assert [block.stretch for block in blocks] == sorted(block.stretch for block in blocks)


@settings(max_examples=50)
@given(st.sets(st.tuples(st.integers(0, 199), st.integers(0, 2)), max_size=12), st.integers(1, 700), st.booleans())
def test_stretches_are_the_finite_runs(bad, chunk, infinite):
    samples = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
    for row, column in bad:
        samples[row, column] = np.inf if infinite else np.nan
    segments = (Segment(0, 80, 0.0), Segment(80, 200, 10.0))
    rows = {row for row, _ in bad}
    expected = []
    for segment in segments:
        new = True
        for row in range(segment.start, segment.stop):
            if row in rows:
                new = True
                continue
            if new:
                expected.append([row, row, segment.onset + (row - segment.start) / 100.0])
            expected[-1][1], new = row + 1, False
    recording = recording_of(samples, 100.0, segments)
    assert finite_runs(recording, chunk) == tuple(Segment(*one) for one in expected)
    causal_plan = plan_filters(100.0, SignalConfig(filter_phase="causal"), None)
    blocks = list(filter_recording(recording, causal_plan, chunk=chunk))
    assert all(np.isfinite(block.signal).all() for block in blocks)
    for number, (start, stop, onset) in enumerate(expected):
        mine = [block for block in blocks if block.stretch == number]
        assert sum(len(block.signal) for block in mine) == causal_plan.count(stop - start)
        assert {block.onset for block in mine} == {onset}


def test_nothing_to_filter():
    assert list(filtered(recording_of(np.empty((0, 2), np.float32), 250.0), CONFIG, 50.0)) == []
    assert list(filtered(recording_of(np.full((50, 2), np.nan, np.float32), 250.0), CONFIG, 50.0)) == []


def test_memory_does_not_grow_with_the_recording():
    pattern = hard_signal(256.0, 60)

    def peak(minutes):
        size = round(minutes * 60 * 256)

        def read(start, stop):
            return np.take(pattern, np.arange(start, stop), axis=0, mode="wrap")

        source = Recording(256.0, match(NAMES[:3]), (Segment(0, size, 0.0),), read)
        tracemalloc.start()
        count = sum(len(block.signal) for block in filtered(source, CONFIG, 50.0, chunk=1 << 16))
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == size
        return highest

    peak(10)  # kernels are made once
    assert peak(240) < 1.1 * peak(20) < 50e6


def test_filters_load_neither_mne_nor_torch():
    code = "import sys, cerebro_eeg.data.filtering.filters; print([m for m in ('mne', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Causal


def causal_plan(sfreq, mains=50.0):
    return plan_filters(sfreq, SignalConfig(filter_phase="causal"), mains)


@pytest.mark.parametrize("sfreq", [100.0, 250.0, 256.0, 512.0])
def test_causal_is_butterworth_then_late_polyphase(sfreq):
    plan = causal_plan(sfreq)
    samples = hard_signal(sfreq, 30)
    sos = signal.butter(4, (0.1, plan.high), "bandpass", fs=sfreq, output="sos")
    if plan.notch:
        sos = np.concatenate([sos, signal.butter(4, (49, 51), "bandstop", fs=sfreq, output="sos")])
    state = signal.sosfilt_zi(sos)[:, :, None] * samples[0].astype(np.float64)
    expected, _ = signal.sosfilt(sos, samples.astype(np.float64), axis=0, zi=state)
    if plan.up != plan.down:
        expected = signal.upfirdn(fir.anti_alias(plan.up, plan.down), expected, plan.up, plan.down, axis=0)
    found = joined(filter_recording(recording_of(samples, sfreq), plan))
    assert len(found) == plan.count(len(samples))
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-5, atol=1e-3)


def test_causal_never_looks_ahead():
    plan = causal_plan(250.0)
    samples = hard_signal(250.0, 8)
    changed = samples.copy()
    changed[1000:] += 1000
    one, two = (joined(filter_recording(recording_of(x, 250.0), plan)) for x in (samples, changed))
    first = int(np.flatnonzero((one != two).any(axis=1))[0])
    assert first * plan.down / plan.up >= 1000
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("frequency", [2.0, 10.0, 30.0])
def test_causal_delay_is_as_documented(frequency):
    plan = causal_plan(250.0, None)
    t = np.arange(250 * 40) / 250.0
    envelope = np.exp(-(((t - 20) / 2) ** 2))  # a slow envelope travels at the group delay
    burst = (100 * envelope * np.sin(2 * np.pi * frequency * t))[:, None].astype(np.float32)
    found = joined(filter_recording(recording_of(burst, 250.0), plan))[:, 0].astype(np.float64)
    power = np.abs(signal.hilbert(found)) ** 2
    centre = (power * np.arange(len(power)) / 256.0).sum() / power.sum()
    assert centre - 20.0 == pytest.approx(causal.delay(plan, frequency), abs=0.01)


def test_causal_offset_makes_no_step():
    found = joined(filter_recording(recording_of(np.full((2000, 1), 5000.0, np.float32), 250.0), causal_plan(250.0)))
    assert np.abs(found).max() < 1e-3


def test_causal_without_high_pass_keeps_an_offset():
    plan = plan_filters(250.0, SignalConfig(filter_phase="causal", highpass=0.0), 50.0)
    found = joined(filter_recording(recording_of(np.full((2000, 1), 5000.0, np.float32), 250.0), plan))
    np.testing.assert_allclose(found, 5000.0, rtol=1e-3)


# Mains


@pytest.mark.parametrize("sfreq", [160.0, 250.0, 512.0])
@pytest.mark.parametrize("line", [50.0, 60.0, None])
def test_mains_of_simulated_signals(sfreq, line):
    rng = np.random.default_rng(3)
    n = round(90 * sfreq)
    t = np.arange(n)[:, None] / sfreq
    samples = np.cumsum(rng.standard_normal((n, 4)), axis=0) + 10 * rng.standard_normal((n, 4))
    if line:
        samples[:, :3] += 5 * np.sin(2 * np.pi * (line + 0.05) * t)
    samples[1000, 2] = np.nan
    assert estimate_mains(recording_of(samples.astype(np.float32), sfreq)) == line


def test_mains_of_silence_low_rates_and_nothing():
    assert estimate_mains(recording_of(np.zeros((5000, 2), np.float32), 250.0)) is None
    t = np.arange(9000)[:, None] / 90.0
    assert estimate_mains(recording_of(np.sin(2 * np.pi * 40 * t).astype(np.float32), 90.0)) is None
    assert estimate_mains(recording_of(np.empty((0, 2), np.float32), 250.0)) is None


# References


def channels_of(names):
    return tuple(Channel(name) for name in names)


def test_references_by_hand():
    samples = np.array([[1, 2, 3, 10, 20], [0, 0, 6, 2, 4]], np.float32)
    channels = channels_of(["Fp1", "F7", "Cz", "A1", "A2"])
    same, names = rereference(samples, channels, "as_recorded")
    assert same is samples
    assert names == channels
    average, names = rereference(samples, channels, "average")
    np.testing.assert_allclose(average[0], np.array([1, 2, 3, 10, 20]) - 7.2, rtol=1e-6)
    ears, names = rereference(samples, channels, "linked_ears")
    assert ears.tolist() == [[-14, -13, -12, -5, 5], [-3, -3, 3, -1, 1]]
    assert names == channels
    tcp, names = rereference(samples, channels, "tcp")
    assert [channel.name for channel in names] == ["Fp1-F7"]
    assert tcp.tolist() == [[-1], [0]]
    assert tcp.dtype == average.dtype == ears.dtype == np.float32


TCP = MONTAGES["tcp"]


def test_tcp_is_the_montage_of_the_temple_corpora():
    old = "T3 T7 T4 T8 T5 P7 T6 P8".split()
    names = dict(zip(old[1::2], old[::2], strict=True))
    written = [f"{names.get(c.anode, c.anode)}-{names.get(c.cathode, c.cathode)}".upper() for c in TCP]
    assert (
        written
        == (
            "FP1-F7 F7-T3 T3-T5 T5-O1 FP2-F8 F8-T4 T4-T6 T6-O2 A1-T3 T3-C3 C3-CZ CZ-C4 C4-T4 T4-A2 "
            "FP1-F3 F3-C3 C3-P3 P3-O1 FP2-F4 F4-C4 C4-P4 P4-O2"
        ).split()
    )
    samples = np.random.default_rng(0).standard_normal((50, len(NAMES))).astype(np.float32)
    found, channels = rereference(samples, channels_of(NAMES), "tcp")
    assert channels == TCP
    chain = [channel.name for channel in channels].index("Fp1-F7")
    total = found[:, chain : chain + 4].sum(axis=1)  # a chain of differences is the difference of its ends
    np.testing.assert_allclose(total, samples[:, NAMES.index("Fp1")] - samples[:, NAMES.index("O1")], atol=1e-5)
    again, channels = rereference(found, channels, "tcp")
    assert channels == TCP
    assert np.array_equal(again, found)


def test_the_double_banana():
    """Two chains of four on each side, from Fp to O, and two in the middle."""
    samples = np.random.default_rng(0).standard_normal((50, len(NAMES))).astype(np.float32)
    found, channels = rereference(samples, channels_of(NAMES), "double_banana")
    assert [channel.name for channel in channels] == (
        "Fp2-F4 F4-C4 C4-P4 P4-O2 Fp1-F3 F3-C3 C3-P3 P3-O1 Fp2-F8 F8-T8 T8-P8 P8-O2 Fp1-F7 F7-T7 T7-P7 P7-O1 "
        "Fz-Cz Cz-Pz"
    ).split()
    for first, (start, end) in {0: ("Fp2", "O2"), 4: ("Fp1", "O1"), 8: ("Fp2", "O2"), 12: ("Fp1", "O1")}.items():
        chain = found[:, first : first + 4].sum(axis=1)
        np.testing.assert_allclose(chain, samples[:, NAMES.index(start)] - samples[:, NAMES.index(end)], atol=1e-5)
    np.testing.assert_allclose(
        found[:, 16:].sum(axis=1), samples[:, NAMES.index("Fz")] - samples[:, NAMES.index("Pz")], atol=1e-5
    )


def test_references_that_cannot_be_made():
    samples = np.zeros((4, 2), np.float32)
    with pytest.raises(ChannelError, match="missing: A1, A2"):
        rereference(samples, channels_of(["Cz", "Pz"]), "linked_ears")
    with pytest.raises(ChannelError, match="none of the 22 pairs of 'tcp'"):
        rereference(samples, channels_of(["Fz", "Pz"]), "tcp")
    with pytest.raises(ChannelError, match="are pairs"):
        rereference(samples, (Channel("Fz"), Channel("Cz", "Pz")), "average")
    with pytest.raises(ChannelError, match="silence"):
        rereference(samples[:, :1], channels_of(["Fz"]), "average")
    with pytest.raises(ChannelError, match="each channel once"):
        rereference(samples, channels_of(["Fz"]), "average")
    with pytest.raises(ConfigError, match="'rest'"):
        rereference(samples, channels_of(["Fz", "Pz"]), "rest")


# Half precision


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_half_has_numpys_bits(values):
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        assert to_half(array).tobytes() == array.astype(np.float16).tobytes()


def test_half_rounds_ties_to_even_over_its_whole_range():
    bits = np.arange(0x38800000, 0x477FEFFF, 1 << 11, dtype=np.uint32)  # every quarter of a step, so every tie
    near = np.concatenate([bits, bits + 1, bits - 1])[: 3 * len(bits)]
    values = near[(near >= 0x38800000) & (near <= 0x477FEFFF)].view(np.float32)
    values = np.concatenate([values, -values]).reshape(-1, 2)
    assert to_half(values).shape == values.shape
    assert np.array_equal(to_half(values).view(np.uint16), values.astype(np.float16).view(np.uint16))
    assert to_half(values.T).tobytes() == values.T.astype(np.float16).tobytes()


def test_a_plan_is_a_value():
    assert plan_filters(250.0, CONFIG, 60.0) == plan_filters(250.0, CONFIG, 60.0)
    assert isinstance(hash(plan_filters(250.0, CONFIG, 60.0)), int)
    assert isinstance(plan_filters(250.0, CONFIG, 60.0), FilterPlan)
