"""Known channels, known counts: flat, clipped, disconnected, scaled, missing; and what a policy makes of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_eeg.channels.match import Channel, match
from cerebro_eeg.data.filtering.quality import (
    FAULTS,
    ChannelQuality,
    QualityMeter,
    Thresholds,
    choose,
    count,
    faults,
    measure,
)
from cerebro_eeg.data.reading.recording import Recording, Segment
from cerebro_eeg.errors import ConfigError, RecordingError

SFREQ = 200.0
NAMES = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz".split()
DEFAULT = Thresholds()


def eeg(seconds, seed=0):
    rng = np.random.default_rng(seed)
    return 20 * rng.standard_normal(round(seconds * SFREQ))


def measured(*columns, sfreq=SFREQ, segments=None, chunk=1 << 20):
    samples = np.stack(columns, axis=1).astype(np.float32)
    segments = tuple(segments or (Segment(0, len(samples), 0.0),))
    recording = Recording(sfreq, match(NAMES[: len(columns)]), segments, lambda start, stop: samples[start:stop])
    return measure(recording, DEFAULT, chunk=chunk)


def test_good_eeg_has_no_fault():
    (found,) = measured(eeg(20) + 5000)
    assert faults(found, DEFAULT) == ()
    assert found == ChannelQuality(4000, 0, 0, 20, 0, 0, 0, 0, found.rms)
    assert found.rms == pytest.approx(20, rel=0.1)


def test_each_fault_by_itself():
    t = np.arange(4000) / SFREQ
    mains = 300 * np.sin(2 * np.pi * 50 * t) + eeg(20)
    american = 300 * np.sin(2 * np.pi * 60 * t + 1) + eeg(20)
    missing = eeg(20)
    missing[:100] = np.nan
    cases = {
        "constant": (np.full(4000, 12.0), ("flat",)),
        "dithered": (np.tile([0.0, 0.05], 2000), ("flat",)),
        "clipped": (np.clip(eeg(20) + 80 * np.sin(2 * np.pi * t), -50, 50), ("clipped",)),
        "mains": (mains, ("disconnected",)),
        "american": (american, ("disconnected",)),
        "quiet": (eeg(20) / 100, ("disconnected",)),
        "loud": (eeg(20) * 200, ("disconnected",)),
        "volts": (eeg(20) * 1e-6, ("scaled",)),
        "nanovolts": (eeg(20) * 1e3 * 5, ("scaled",)),
        "missing": (missing, ("missing",)),
    }
    found = measured(*(column for column, _ in cases.values()))
    assert {name: faults(one, DEFAULT) for name, one in zip(cases, found, strict=True)} == {
        name: expected for name, (_, expected) in cases.items()
    }
    assert count(found, DEFAULT) == {"flat": 2, "clipped": 1, "disconnected": 4, "scaled": 2, "missing": 1}
    assert tuple(count(found, DEFAULT)) == FAULTS


def test_seconds_are_counted():
    column = eeg(10)
    column[400:1000] = 3.0  # seconds 2, 3 and 4
    column[1000] = np.inf  # second 5
    t = np.arange(200) / SFREQ
    column[1200:1400] = 500 * np.sin(2 * np.pi * 50 * t)  # second 6
    column[1400:1600] *= 500  # second 7
    column[1600:1800] /= 200  # second 8
    (found,) = measured(column)
    assert (found.seconds, found.flat, found.mains, found.loud, found.quiet, found.missing) == (9, 3, 1, 1, 1, 1)


@pytest.mark.parametrize("chunk", [1, 3, 12, 1000])
def test_runs_at_the_extremes_are_counted(chunk):
    column = np.zeros(1000)
    column[1::2] = 1
    column[10:15] = 50  # five at the top
    column[30:34] = 50  # four are a crest
    column[40:47] = -40  # seven at the bottom
    column[60:70] = 20  # not an extreme
    (found,) = measured(column, chunk=chunk)
    assert found.clipped == 12


def test_a_higher_value_later_makes_the_first_runs_no_clipping():
    column = np.tile([0.0, 1.0], 500)
    column[10:30] = 50
    column[800] = 51
    (found,) = measured(column, chunk=7)
    assert found.clipped == 0


def test_a_run_does_not_span_a_gap():
    column = np.tile([0.0, 1.0], 500)
    column[496:504] = 50
    (whole,) = measured(column)
    (cut,) = measured(column, segments=(Segment(0, 500, 0.0), Segment(500, 1000, 99.0)))
    assert (whole.clipped, cut.clipped) == (8, 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 9)), min_size=1, max_size=20),
    st.lists(st.integers(1, 40), max_size=6),
)
def test_clipped_samples_by_brute_force_in_any_portions(runs, portions):
    values = [value for value, length in runs for _ in range(length)]
    samples = np.array(values, np.float32)[:, None]
    meter = QualityMeter(SFREQ, 1, DEFAULT)
    meter.begin()
    for portion in np.split(samples, np.cumsum(portions)):
        meter.add(portion)
    expected = 0
    for extreme in {max(values), min(values)} if max(values) > min(values) else ():
        text = "".join("x" if value == extreme else " " for value in values)
        expected += sum(len(run) for run in text.split() if len(run) >= DEFAULT.clip_run)
    assert meter.result()[0].clipped == expected


@settings(max_examples=20)
@given(st.integers(1, 4000))
def test_portions_do_not_matter(chunk):
    column = np.clip(eeg(7.3), -30, 30)
    column[600:900] = 0
    column[1000] = np.nan
    segments = (Segment(0, 700, 0.0), Segment(700, 1460, 10.0))
    whole = measured(column, eeg(7.3, 1), segments=segments)
    assert measured(column, eeg(7.3, 1), segments=segments, chunk=chunk) == whole
    assert whole[0].seconds == 5  # three of the first segment, three of the second, one of them with a NaN


def test_mains_need_no_whole_rate():
    t = np.arange(3000) / 173.61
    (found,) = measured(300 * np.sin(2 * np.pi * 60 * t), sfreq=173.61)
    assert found.mains == found.seconds == 17


def test_policies():
    channels = [Channel(name) for name in NAMES[:3]]
    good, flat, volts = measured(eeg(5), np.zeros(1000), eeg(5) * 1e-6)
    assert choose(channels, (good, flat, volts), DEFAULT, "keep") == (0, 1, 2)
    assert choose(channels, (good, flat, volts), DEFAULT, "drop") == (0,)
    assert choose(channels[:1], (good,), DEFAULT, "refuse") == (0,)
    with pytest.raises(RecordingError, match=r"2 of 3 channels are bad: Fp2 \(flat\), F7 \(scaled\)") as caught:
        choose(channels, (good, flat, volts), DEFAULT, "refuse")
    assert caught.value.code == "quality"
    with pytest.raises(RecordingError, match="at least one good channel"):
        choose(channels[:1], (flat,), DEFAULT, "drop")
    with pytest.raises(ConfigError, match="'ignore'"):
        choose(channels[:1], (good,), DEFAULT, "ignore")


def test_thresholds_are_explicit():
    (found,) = measured(np.concatenate([eeg(6), np.zeros(800)]))
    assert faults(found, DEFAULT) == ()
    assert faults(found, Thresholds(share=0.3)) == ("flat",)


def test_nothing_is_no_fault():
    (found,) = measured(np.empty(0))
    assert faults(found, DEFAULT) == ()
    (short,) = measured(np.full(50, 3.0))
    assert faults(short, DEFAULT) == ()
