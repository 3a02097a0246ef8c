"""``anonymize``: no byte of an identity is left, no byte of a sample is changed, and all readers open the copy."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.commands.anonymize import AnonymizeResult, anonymize
from cerebro_eeg.data.reading.edf import open_edf
from cerebro_eeg.data.reading.recording import ChannelPolicy, Event
from cerebro_eeg.errors import ConfigError, RecordingError
from edf_files import File, Notes, Wave, ramp, tal, timekeeping

CANARY = "JaneQDoe"  # no field of a right file has these letters
LONG = f"{CANARY} 03-MAR-1970 St Elsewhere"
DROP = ChannelPolicy(unknown="drop")
KINDS = ["EDF", "EDF+C", "EDF+D", "BDF", "BDF+C", "BDF+D"]


def waves(width: int, fields: dict[str, object] | None = None) -> list[Wave]:
    """Two EEG channels, a slower one that is no EEG, and one whose label says a name."""
    found = []
    for number, (label, samples) in enumerate([("EEG Fp1-REF", 4), ("O2", 4), ("ECG", 2), (CANARY, 4)]):
        counts = ramp(3 * samples, seed=number) * (1 if width == 2 else 200)
        limits = (-2048, 2047) if width == 2 else (-8388608, 8388607)
        wave = Wave(label, counts, samples, dmin=limits[0], dmax=limits[1])
        for name, value in (fields or {}).items():
            setattr(wave, name, value)
        found.append(wave)
    return found


def notes(kind: str, more: dict[int, bytes]) -> list[Notes]:
    onsets = ["+0", "+1", "+2"] if not kind.endswith("D") else ["+0.25", "+1.25", "+7.5"]
    low = -32768 if kind.startswith("EDF") else -8388608
    return [Notes(timekeeping(onsets, more), 90, f"{kind[:3]} Annotations", dmin=low, dmax=-low - 1)]


def with_canaries(kind: str, more: dict[int, bytes] | None = None) -> File:
    """A file that says who it is in every field that may hold text."""
    width = 2 if kind.startswith("EDF") else 3
    signals: list[Wave | Notes] = [
        *waves(width, {"transducer": LONG, "prefilter": LONG, "reserved": LONG[:32], "pmin": -3200, "pmax": 3200})
    ]
    if "+" in kind:
        texts = {
            0: tal("+0.5", "seizure", duration="1.25") + tal("+0.5", LONG),
            1: tal("+1.5", LONG, "eyes closed", LONG + "é") + tal("+1.75", "SEIZURE"),
            2: tal("+2.5", f"seizure {CANARY}") + tal("+2.5", CANARY.encode() + b"\xe9") + tal("+2.75", "eyes closed"),
        }
        signals[2:2] = notes(kind, texts if more is None else more)
    for signal in signals:
        if isinstance(signal, Notes):
            signal.transducer = signal.prefilter = LONG
            signal.reserved, signal.unit = LONG[:32], CANARY
    return File(
        signals,
        kind=kind,
        patient=f"MCH-0234567 F 03-MAR-1970 {CANARY}",
        recording=f"Startdate 02-MAR-2002 {LONG}",
        date="02.03.02",
        time="17.45.59",
        reserved=f"{kind if '+' in kind else ''} {LONG}"[:44] if kind != "BDF" else f"24BIT {LONG}"[:44],
    )


def run(tmp_path: Path, file: File | bytes, *events: str, suffix: str = ".edf") -> tuple[Path, Path, AnonymizeResult]:
    source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    source.write_bytes(bytes(file))
    return source, out, anonymize(source, out, events=events)


def suffix_of(kind: str) -> str:
    return f".{kind[:3].lower()}"


def samples_of(data: bytes, file: File) -> list[bytes]:
    """The bytes of every signal that is no annotation, by the builder's own layout."""
    width = 3 if file.kind.startswith("BDF") else 2
    place, found = 256 * (1 + len(file.signals)), [b""] * len(file.signals)
    for _ in range(file.records):
        for index, signal in enumerate(file.signals):
            found[index] += data[place : place + signal.samples * width]
            place += signal.samples * width
    assert place == len(data)
    return [part for part, signal in zip(found, file.signals, strict=True) if isinstance(signal, Wave)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_byte_of_a_canary_is_left_and_no_sample_is_changed(tmp_path, kind):
    file = with_canaries(kind)
    source, out, done = run(tmp_path, file, "seizure", "eyes closed", suffix=suffix_of(kind))
    data = out.read_bytes()
    assert bytes(file).lower().count(CANARY.lower().encode()) >= 12  # they were there
    for word in (CANARY, "1970", "MAR", "Elsewhere", "MCH", "02.03", "17.45", "SEIZURE", "2002"):
        assert word.lower().encode() not in data.lower().replace(b"seizure\x14", b""), word
    assert samples_of(data, file) == samples_of(source.read_bytes(), file)
    assert data[8:184] == b"X X X X".ljust(80) + b"Startdate X X X X".ljust(80) + b"01.01.8500.00.00"
    assert (done.kind, done.signals, done.renamed) == (kind, len(file.signals), 1)
    assert data[192:236].strip() == {"EDF": b"", "BDF": b"24BIT"}.get(kind, kind.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_our_reader_gives_the_same_recording_with_the_listed_events(tmp_path, kind):
    source, out, done = run(tmp_path, with_canaries(kind), "seizure", "eyes closed", suffix=suffix_of(kind))
    before, after = open_edf(source, DROP), open_edf(out, DROP)
    assert after.segments == before.segments
    assert after.sfreq == before.sfreq
    assert after.match.channels == before.match.channels
    np.testing.assert_array_equal(after.read(0, after.samples), before.read(0, before.samples))
    listed = tuple(event for event in before.events if event.name in ("seizure", "eyes closed"))
    assert after.events == listed
    if "+" in kind:
        origin = 0.25 if kind.endswith("D") else 0.0
        assert listed[0] == Event(0.5 - origin, 1.25, "seizure")
        assert (done.kept, done.blanked) == ({"seizure": 1, "eyes closed": 2}, 6)
        assert len(before.segments) == (2 if kind.endswith("D") else 1)


@pytest.mark.parametrize("kind", ["EDF", "EDF+C", "BDF", "BDF+C"])
def test_edfio_and_pyedflib_open_the_copy(tmp_path, kind):
    import edfio
    import pyedflib

    signals = waves(2 if kind[:3] == "EDF" else 3, {"prefilter": "HP:0.1Hz LP:75Hz"})
    if "+" in kind:
        signals += notes(kind, {0: tal("+0.5", "seizure", duration="1") + tal("+0.75", LONG)})  # type: ignore[arg-type]
    source, out, _ = run(
        tmp_path, File(signals, kind=kind, patient=LONG, recording=LONG), "seizure", suffix=suffix_of(kind)
    )
    read = edfio.read_edf if kind[:3] == "EDF" else edfio.read_bdf
    opened, original = read(out), read(source)
    assert [signal.label for signal in opened.signals] == ["EEG Fp1-REF", "O2", "ECG", "signal 4"]
    for new, old in zip(opened.signals, original.signals, strict=True):
        np.testing.assert_array_equal(new.data, old.data)
    assert {signal.prefiltering for signal in opened.signals} == {"HP:0.1Hz LP:75Hz"}
    assert {signal.transducer_type for signal in opened.signals} == {""}
    texts = [(note.onset, note.duration, note.text.strip()) for note in opened.annotations]
    assert texts == ([(0.5, 1.0, "seizure"), (0.75, None, "")] if "+" in kind else [])
    with pyedflib.EdfReader(str(out)) as second:
        assert second.signals_in_file == 4
        assert second.getPatientName() in ("", "X")
        assert second.getStartdatetime().year == 1985
        np.testing.assert_array_equal(second.readSignal(1, digital=True), signals[1].counts)


def test_without_a_list_every_text_is_blanked(tmp_path):
    _, out, done = run(tmp_path, with_canaries("EDF+C"))
    assert open_edf(out, DROP).events == ()
    assert (done.kept, done.blanked) == ({}, 9)
    assert b"seizure" not in out.read_bytes()


def test_a_listed_text_that_is_not_there_is_told(tmp_path):
    _, _, done = run(tmp_path, with_canaries("EDF+C"), "seizure", "Seizure")
    assert done.not_found == ("Seizure",)
    assert "no annotation is called Seizure" in done.text()


def test_a_text_in_front_of_the_time_does_not_become_the_time(tmp_path):
    """A blanked text must not look like the empty one that says when a record began."""
    more = {0: tal("+5", LONG) + tal("+0"), 1: tal("+1"), 2: tal("+2")}
    signals = [*waves(2), Notes([more[i] for i in range(3)], samples=60)]
    source, out, _ = run(tmp_path, File(signals, kind="EDF+C"))
    before, after = open_edf(source, DROP), open_edf(out, DROP)
    assert after.segments == before.segments
    assert [fault.code for fault in after.faults] == [fault.code for fault in before.faults] == ["onset"]


def test_broken_annotations_leave_nothing_behind(tmp_path):
    broken = {0: b"no time " + CANARY.encode() + b"\0" + tal("+0.5", "seizure"), 1: CANARY.encode()}
    source, out, done = run(tmp_path, File([*waves(2), *notes("EDF+C", broken)], kind="EDF+C"), "seizure")
    assert CANARY.encode() not in out.read_bytes()[256 * 6 :]
    assert done.broken == 2
    assert open_edf(out, DROP).events == open_edf(source, DROP).events == (Event(0.5, 0.0, "seizure"),)


@pytest.mark.parametrize(("kind", "reserved"), [("EDF+D", "  edf+d x"), ("BDF+D", "EDF+D"), ("EDF+D", b"\0EDF+D")])
def test_gaps_stay_however_the_header_says_that_there_are_some(tmp_path, kind, reserved):
    file = with_canaries(kind)
    file.reserved = reserved
    source, out, done = run(tmp_path, file, suffix=suffix_of(kind))
    assert done.kind == kind
    assert len(open_edf(source, DROP).segments) == 2
    assert open_edf(out, DROP).segments == open_edf(source, DROP).segments


def test_absurdly_many_annotation_bytes_are_refused(tmp_path):
    file = File([*waves(2)[:1], Notes([b""] * 3, 10_000_000)], kind="EDF+C", records=0, stated_records=1)
    (tmp_path / "in.edf").write_bytes(bytes(file) + bytes(2 * 10_000_004))
    with pytest.raises(RecordingError, match="bytes of annotations"):
        anonymize(tmp_path / "in.edf", tmp_path / "out.edf")


def test_bytes_around_the_records_are_left_behind(tmp_path):
    secret = LONG.encode() * 3
    file = File(waves(2)[:3], header_bytes=256 * 4 + len(secret), gap=secret)
    source, out, done = run(tmp_path, file)
    assert done.mended == ("header_bytes",)
    assert CANARY.encode() not in out.read_bytes()
    np.testing.assert_array_equal(open_edf(out).read(0, 12), open_edf(source).read(0, 12))
    source.write_bytes(bytes(File(waves(2)[:3])) + secret)
    assert anonymize(source, tmp_path / "second.edf").mended == ("trailing",)
    assert (tmp_path / "second.edf").read_bytes() == out.read_bytes()
    assert open_edf(out).faults == ()


def test_a_cut_file_keeps_its_whole_records(tmp_path):
    whole = bytes(File(waves(2)[:3]))
    _, out, done = run(tmp_path, whole[:-1])
    assert (done.records, done.mended) == (2, ("truncated",))
    recording = open_edf(out)
    assert (recording.samples, recording.faults) == (8, ())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("HP:0.1Hz LP:75Hz", True),
        ("HP:0,1 Hz LP:70 Hz N:50Hz", True),
        ("HP:DC; LP:104 Hz", True),
        (f"HP:0.1Hz {CANARY}", False),
        (CANARY, False),
    ],
)
def test_only_filters_in_the_form_of_edf_stay(tmp_path, given, kept):
    _, out, done = run(tmp_path, File(waves(2, {"prefilter": given, "transducer": ""})))
    assert (given.encode() in out.read_bytes()) is kept
    assert done.cleared == (0 if kept else 4)


def test_units_and_limits_that_are_no_such_thing_are_cleared(tmp_path):
    wave = Wave("ECG", ramp(12), unit=CANARY, pmin=CANARY, pmax="12,5", dmin=CANARY, dmax="+2047", transducer="")
    _, out, done = run(tmp_path, File([*waves(2)[:1], wave, Wave("SpO2", ramp(12), unit="%", transducer="")]))
    data = out.read_bytes()
    assert CANARY.encode() not in data
    assert b"12,5" in data
    assert b"+2047" in data
    assert b"%       " in data
    assert done.cleared == 4  # with the transducer of the first


def test_nothing_is_overwritten_and_nothing_is_left_when_it_fails(tmp_path):
    source, out, _ = run(tmp_path, File(waves(2)))
    before = out.read_bytes()
    for target in (out, source):
        with pytest.raises(ConfigError, match="taken"):
            anonymize(source, target)
    assert out.read_bytes() == before
    source.write_bytes(b"no EDF" * 100)
    with pytest.raises(RecordingError) as error:
        anonymize(source, tmp_path / "third.edf")
    assert error.value.code == "format"
    assert str(tmp_path) not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == ["in.edf", "out.edf"]


@pytest.mark.parametrize("name", ["out", "out.bdf", "out.fif"])
def test_the_copy_has_the_suffix_of_the_source(tmp_path, name):
    (tmp_path / "in.edf").write_bytes(bytes(File(waves(2))))
    with pytest.raises(ConfigError, match="suffix"):
        anonymize(tmp_path / "in.edf", tmp_path / name)


def test_an_empty_event_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="empty"):
        anonymize(tmp_path / "in.edf", tmp_path / "out.edf", events=("",))


def test_memory_does_not_grow_with_the_file(tmp_path):
    """20 MB of samples, in small records and in one."""
    samples = 2500
    header = bytes(File([Wave("Cz", [], samples), Notes([], 20)], kind="EDF+C", records=0, stated_records=4_000))
    record = np.arange(samples, dtype="<i2").tobytes() + tal("+0").ljust(40, b"\0")
    one = bytes(File([Wave("Cz", [], 12_000_000)], records=0, stated_records=1, duration=40_000))
    for name, data in (("small", header + record * 4_000), ("one", one + bytes(24_000_000))):
        source = tmp_path / f"{name}.edf"
        source.write_bytes(data)
        del data
        tracemalloc.start()
        anonymize(source, tmp_path / f"{name}-copy.edf")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10e6
        assert (tmp_path / f"{name}-copy.edf").stat().st_size == source.stat().st_size


PARTS = st.sampled_from([b"+1", b"-2", b"0.5", b"\x14", b"\x14", b"\x15", b"\0", b"name", b" ", b"\xff\n", b","])


@given(
    st.lists(st.lists(PARTS, max_size=12).map(b"".join), min_size=3, max_size=3), st.sampled_from(["EDF+C", "BDF+C"])
)
def test_whatever_the_annotations_hold_no_text_stays_and_times_do(tmp_path_factory, junk, kind):
    """Anything behind the time of each record: only digits, marks of the format and blanks may be left."""
    file = File(
        [*waves(2 if kind[:3] == "EDF" else 3)[:2], *notes(kind, {i: part + b"\0" for i, part in enumerate(junk)})],
        kind=kind,
    )
    source, out, _ = run(tmp_path_factory.mktemp("any"), file, suffix=suffix_of(kind))
    data, width = out.read_bytes(), 2 if kind[:3] == "EDF" else 3
    length = (8 + 90) * width
    for record in range(3):
        left = data[256 * 4 + record * length + 8 * width : 256 * 4 + (record + 1) * length]
        assert set(left) <= set(b"\0\x14\x15 ?+-.,0123456789")
    assert samples_of(data, file) == samples_of(source.read_bytes(), file)
    assert timeline(out) == timeline(source)


def timeline(path: Path) -> object:
    """Segments, or the code of the refusal."""
    try:
        return open_edf(path).segments
    except RecordingError as error:
        return error.code


def test_the_result_as_text_and_as_data(tmp_path):
    _, _, done = run(tmp_path, with_canaries("EDF+C"), "seizure")
    assert done.text().splitlines()[0] == "EDF+C: 5 signals, 3 records, 3 s; samples as they were"
    assert "seizure (1); 8 texts blanked, 0 broken" in done.text()
    assert done.to_dict()["events_kept"] == {"seizure": 1}
    assert CANARY not in done.text() + str(done.to_dict())


@pytest.mark.parametrize("label", ["EDF  Annotations", "EDF Annotation", "EDF Annotations1", "Annotations", "STATUS"])
def test_annotations_under_another_label_are_refused(tmp_path, label):
    source = tmp_path / "a.edf"
    hidden = Notes([tal("+0") + tal("+0.5", LONG)] * 3, 60, label)
    source.write_bytes(bytes(File([*waves(2), *notes("EDF+C", {}), hidden], reserved="EDF+C", records=3)))
    with pytest.raises(RecordingError, match="signal 6 looks like annotations"):
        anonymize(source, tmp_path / "b.edf")
    assert not (tmp_path / "b.edf").exists()


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("ECG JaneQDoe", "ECG"),
        ("EventJaneQDoe", "Event"),
        ("12 JaneQDoe", "12"),
        ("EEG 26-REF", "EEG 26-REF"),
        ("EEG Fp1-LE", "EEG Fp1-LE"),
        ("JaneQDoe ECG", "ECG"),
        ("Ref JaneQDoe", "Ref"),
        ("EMG-L2", "EMG-L2"),
        ("EOG left", "EOG left"),
        ("EKG1", "EKG1"),
        ("JaneQDoe", "signal 1"),
    ],
)
def test_of_a_label_only_what_is_understood_stays(tmp_path, label, kept):
    source = tmp_path / "a.edf"
    source.write_bytes(bytes(File([Wave(label, ramp(4)), Wave("Cz", ramp(4))], records=1)))
    done = anonymize(source, tmp_path / "b.edf")
    assert (tmp_path / "b.edf").read_bytes()[256:272].decode().rstrip() == kept
    assert done.renamed == (kept != label)


def test_a_filter_with_the_digits_of_a_date_is_cleared(tmp_path):
    source = tmp_path / "a.edf"
    source.write_bytes(bytes(File([Wave("Cz", ramp(4), prefilter="HP:19700303 LP:0234567")], records=1)))
    anonymize(source, tmp_path / "b.edf")
    assert b"19700303" not in (tmp_path / "b.edf").read_bytes()
