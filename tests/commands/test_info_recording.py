"""``info FILE``: what it says of files whose truth is known, what it keeps to itself, and what the picture shows."""

import json
import xml.etree.ElementTree
from dataclasses import replace

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.channels.match import match
from cerebro_eeg.commands.info import info
from cerebro_eeg.commands.info_recording import _two_digits, info_recording
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.preprocess import preprocess
from cerebro_eeg.data.reading.recording import Event, Recording, Segment
from cerebro_eeg.errors import CheckpointError, ConfigError, InputError, RecordingError, StoreError
from cerebro_eeg.report.recording import excerpt
from edf_files import File, Notes, Wave, tal, timekeeping

RATE, RECORDS = 200, 60
SECRET = "Canary Q. Patient"


def wave(label, kind="noise", **fields):
    """A minute at 200 Hz: noise of 20 µV with mains of 50 Hz, or flat, or clipped."""
    rng = np.random.default_rng(len(label))
    times = np.arange(RATE * RECORDS) / RATE
    x = rng.normal(0, 20, len(times)) + 15 * np.sin(2 * np.pi * 50 * times)
    x = {"noise": x, "flat": np.full(len(x), 3.0), "clipped": np.clip(3 * x, -20, 20)}[kind]
    counts = np.clip(np.round(x / 200 * 2048), -2048, 2047).astype(int)
    return Wave(label, counts, RATE, pmin=-200, pmax=200, **fields)


def edf(path, *waves, gap=0, texts=None, **fields):
    """Records of a second; ``gap`` seconds are missing after the 20th; ``texts`` are annotations by record."""
    onsets = [f"+{n if n < 20 else n + gap}" for n in range(RECORDS)]
    more = {n: tal(onsets[n], text) for n, text in (texts or {}).items()}
    signals = [*waves, Notes(timekeeping(onsets, more), 40)]
    path.write_bytes(bytes(File(signals, "EDF+D" if gap else "EDF+C", RECORDS, patient=SECRET, **fields)))
    return path


@pytest.fixture
def odd(tmp_path):
    """Three sound channels, a flat one, a clipped one, a label that nobody knows, a gap and two events."""
    waves = [
        wave("EEG FP1-REF"),
        wave("EEG T3-REF"),
        wave("Cz"),
        wave("F3", "flat"),
        wave("O1", "clipped"),
        wave("Blob"),
    ]
    return edf(tmp_path / "odd.edf", *waves, wave("ECG"), gap=7, texts={3: SECRET, 10: "spike"})


def test_what_it_says(odd):
    found = info(str(odd), unknown="drop")
    rows = {channel.label: channel for channel in found.channels}
    assert (found.sfreq, found.seconds, found.segments, found.gaps) == (200.0, 60.0, 2, ((20.0, 7.0),))
    assert (rows["EEG T3-REF"].channel, rows["EEG T3-REF"].outcome) == ("T7", "renamed")
    assert (rows["Blob"].outcome, rows["Blob"].quality) == ("dropped", None)
    assert rows["ECG"].outcome == "not_eeg"
    assert {label for label, row in rows.items() if row.faults} == {"F3", "O1"}
    assert (rows["F3"].faults, rows["O1"].faults) == (("flat",), ("clipped",))
    assert rows["F3"].quality["flat"] == 60
    assert rows["Cz"].quality["rms"] == pytest.approx(np.hypot(20, 15 / np.sqrt(2)), rel=0.1)
    assert found.unit == "from each channel's header: uV (5)"
    assert (found.events, found.event_names, found.events_by_name) == (2, 2, None)
    assert (found.refused, found.exit_code) == (None, 0)
    plan = found.plan
    assert (plan.low_hz, plan.high_hz, plan.notch_hz, plan.mains_hz) == (0.1, 75.0, 50.0, 50.0)
    assert (plan.rate_hz, plan.up, plan.down) == (256.0, 32, 25)
    assert (plan.stretches, plan.short_stretches) == (2, 1 + (plan.filter_seconds > 40))
    assert plan.bytes == 2 * 5 * 60 * 256


def test_labels_that_prepare_would_refuse_are_told_with_the_rest(odd, capsys):
    assert cli.main(["info", str(odd)]) == 3
    text, said = capsys.readouterr()
    assert said.startswith("cerebro-eeg: error: 1 of 8 channel labels were not understood: 'Blob'")
    assert said.count("\n") == 1
    assert text.startswith("REFUSED as it is: 1 of 8 channel labels were not understood: 'Blob'")
    assert "2 of 5 channels are bad: F3 (flat), O1 (clipped)" in text
    assert "7 s at 20 s" in text
    duplicate = edf(odd.parent / "twice.edf", wave("T3"), wave("T7"), wave("Cz"))
    assert "'T3' and 'T7' are both T7" in info_recording(duplicate).refused


def test_no_name_is_told_unless_asked_for(odd, capsys):
    secret = odd.rename(odd.parent / "Canary.edf")
    for extra in ([], ["--json"], ["--plot", str(odd.parent / "p.svg")]):
        cli.main(["info", str(secret), "--unknown", "drop", *extra])
        said = capsys.readouterr()
        assert "Canary" not in said.out + said.err
    assert "Canary" not in (odd.parent / "p.svg").read_text()
    assert cli.main(["info", str(secret), "--unknown", "drop", "--show-events", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events_by_name"] == {SECRET: 1, "spike": 1}


def test_rms_has_the_digits_that_are_known():
    assert [_two_digits(value) for value in (37583.7, 118.9, 16.8, 9.44, 0.0)] == ["38,000", "120", "17", "9.4", "0"]


def test_json_is_complete(odd, capsys):
    cli.main(["info", str(odd), "--unknown", "drop", "--json"])
    values = json.loads(capsys.readouterr().out)
    assert (values["kind"], values["gaps"]) == ("recording", [{"at": 20.0, "seconds": 7.0}])
    assert [channel["channel"] for channel in values["channels"]] == ["Fp1", "T7", "Cz", "F3", "O1", None, None, None]
    assert values["plan"]["text"].startswith("0.1-75 Hz, notch 50 Hz")


def test_unit_and_faults(tmp_path):
    blank = edf(tmp_path / "blank.edf", wave("Fp1", unit=""), wave("Cz"))
    with pytest.raises(RecordingError, match="prepare would skip this recording as 'unit'") as caught:
        info(str(blank))
    assert caught.value.code == "unit"
    found = info(str(blank), unit="mV")
    assert found.unit == "from each channel's header: none that we know (1), uV (1), where taken as mV"
    assert [code for code, _ in found.faults] == ["unit", "amplitude"]  # 20 mV is no EEG, and it says so
    cut = edf(tmp_path / "cut.edf", wave("Fp1"), wave("Cz"), stated_records=RECORDS + 5)
    assert [code for code, _ in info(str(cut)).faults] == ["truncated"]


def test_faults_that_only_reading_shows(tmp_path):
    path = edf(tmp_path / "a.edf", wave("Fp1"), replace(wave("Cz"), dmin=-100, dmax=100))
    assert "out_of_range" in [code for code, _ in info_recording(path).faults]


# Objects of Python.


def made(seconds=120.0, sfreq=200.0, names=("Fp1", "Cz"), segments=None, nan=()):
    rng = np.random.default_rng(1)
    x = rng.normal(0, 20, (round(seconds * sfreq), len(names))).astype(np.float32)
    for first, last in nan:
        x[first:last] = np.nan
    segments = segments or (Segment(0, len(x), 0.0),)
    return Recording(sfreq, match(names), segments, lambda start, stop: x[start:stop], (Event(1.0, 0.0, "go"),))


def test_a_recording_and_an_object_of_mne():
    mne = pytest.importorskip("mne")
    found = info_recording(made(nan=[(2000, 2100)]))
    assert (found.format, found.plan.stretches, found.segments) == ("an object, Recording", 2, 1)
    assert found.plan.bytes == 2 * 2 * (2560 + 256 * 219 // 2)
    x = np.random.default_rng(0).normal(0, 20e-6, (2, 4000))
    raw = mne.io.RawArray(x, mne.create_info(["Fp1", "T3"], 200.0, "eeg"), verbose="error")
    found = info_recording(raw)
    assert [channel.channel for channel in found.channels] == ["Fp1", "T7"]
    assert found.seconds == 20.0


def test_a_rate_that_cannot_be_filtered():
    found = info_recording(made(seconds=600, sfreq=0.5))
    assert found.plan is None
    assert "0.5 Hz" in found.refused
    assert found.exit_code == 3
    assert "cannot filter it" in found.text()


def test_no_more_than_a_block_is_read_at_a_time():
    asked = []

    def read(start, stop):
        asked.append(stop - start)
        return np.random.default_rng(start).normal(0, 20, (stop - start, 2)).astype(np.float32)

    day = Recording(200.0, match(["Fp1", "Cz"]), (Segment(0, 200 * 3600 * 6, 0.0),), read)
    assert info_recording(day).seconds == 6 * 3600
    assert max(asked) <= 1 << 19


# The picture.


@pytest.mark.parametrize(("begin", "gap"), [(0.0, 0.0), (47.3, 0.0), (55.0, 4.0), (118.0, 0.0)])
def test_the_excerpt_is_what_prepare_would_store(begin, gap):
    """Against filtering all of it; a second segment begins at 60 s, behind a gap or without one."""
    segments = (Segment(0, 12_000, 0.0), Segment(12_000, 24_000, 60.0 + gap)) if gap else None
    recording = made(segments=segments)
    prepared = preprocess(recording, SignalConfig(), mains=50.0)
    whole = {}
    for block in prepared.blocks():
        for place, row in enumerate(block.signal):
            whole[round((block.onset + (block.start + place) / 256) * 256)] = row
    pieces = excerpt(prepared, begin, 10.0)
    times = np.concatenate([times for times, _ in pieces])
    expected = [k for k in sorted(whole) if begin * 256 - 1e-6 <= k <= (begin + 10) * 256 + 1e-6]
    assert [round(t * 256) for t in times] == expected
    assert len(pieces) == (2 if gap else 1)
    signal = np.concatenate([signal for _, signal in pieces])
    assert np.abs(signal - np.array([whole[k] for k in expected])).max() < 1e-3


def test_picture(odd):
    path = odd.parent / "p.svg"
    info(str(odd), unknown="drop", plot=path, start=15.0, seconds=20.0)
    words = " ".join(xml.etree.ElementTree.parse(path).getroot().itertext())
    for shown in ("Fp1", "F3 (flat)", "O1 (clipped)", "gap", "mains 50 Hz, taken out", "µV²/Hz", "events green (2)"):
        assert shown in words
    info(str(odd), unknown="drop", plot=path, start=0.0, seconds=5.0)
    assert "gap " not in " ".join(xml.etree.ElementTree.parse(path).getroot().itertext())


def test_pictures_of_odd_recordings(tmp_path):
    flat = Recording(200.0, match(["Fp1"]), (Segment(0, 400, 0.0),), lambda a, b: np.zeros((b - a, 1), np.float32))
    short = made(seconds=0.2)
    for number, recording in enumerate([flat, short, made(nan=[(0, 23_000)]), made(names=("Fp1", "Cz", "Fp1-F7"))]):
        info_recording(recording, plot=tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 10_000


def test_picture_where_nothing_is(odd):
    for start in (900.0, -50.0):
        with pytest.raises(InputError, match="there is no signal from"):
            info(str(odd), unknown="drop", plot=odd.parent / "p.png", start=start)
    with pytest.raises(InputError, match="there is no signal from 21 to 26 s"):
        info(str(odd), unknown="drop", plot=odd.parent / "p.png", start=21.0, seconds=5.0)
    with pytest.raises(ConfigError, match="--seconds is 0"):
        info(str(odd), unknown="drop", plot=odd.parent / "p.png", seconds=0.0)
    assert not (odd.parent / "p.png").exists()


# Everything else that can be given.


def test_targets_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "w-0000.jsonl").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for seed in ("seed-0", "seed-1"):
        (tmp_path / "run" / seed).mkdir(parents=True)
        (tmp_path / "run" / seed / "model.safetensors").touch()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "numbers.csv").write_text("a,b\n1,2\n")
    (tmp_path / "photo.jpg").touch()
    for name, kind, words in (
        ("empty", InputError, "neither a store .* nor a checkpoint"),
        ("shards", StoreError, r"no store\.json"),
        ("run", InputError, r"a run of 2 trainings \(seed-0, seed-1\); give the folder of one"),
        ("model", CheckpointError, r"holds no model\.safetensors"),
        ("numbers.csv", RecordingError, "as 'columns': the 2 columns of this table"),
        ("photo.jpg", InputError, "neither a checkpoint"),
        ("Canary/night.edf", InputError, "there is no such file or folder"),
        ("none.safetensors", CheckpointError, "there is no checkpoint"),
    ):
        with pytest.raises(kind, match=words) as caught:
            info(str(tmp_path / name))
        assert "\n" not in str(caught.value)
        assert "Canary" not in str(caught.value)


def test_an_option_that_does_not_fit_is_refused(odd):
    with pytest.raises(ConfigError, match="--plot was given with a preset; it is for a store or a recording"):
        info("small", plot=odd.parent / "p.png")
    with pytest.raises(ConfigError, match="--channels was given with a recording"):
        info(str(odd), channels=4)
    with pytest.raises(ConfigError, match="--show-events was given with a preset"):
        info("small", show_events=True)
