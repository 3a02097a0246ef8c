"""``info STORE``: its numbers are those that plain counting gives, its picture is one, and damage is told in a line."""

import fcntl
import json
import struct
import xml.etree.ElementTree

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.commands.info import info
from cerebro_eeg.commands.info_store import Amount, info_store
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.skip_log import SkipLog, read_reasons, write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import ConfigError, StoreError
from cerebro_eeg.report.store import choose_stretches, sample_store

RATE = 64.0
SETTINGS = {
    "version": 1,
    "recipe": "made",
    "signal": {"highpass": 0.1, "lowpass": 75.0, "filter_phase": "zero", "reference": "as_recorded"},
    "quality": "keep",
    "split_unit": "subject",
    "tasks": {"eyes": {"kind": "classification", "names": ["open", "closed"], "seconds": 2.0, "stride": 1.0}},
}


def eyes(split, *parts):
    return {"eyes": tuple(Interval(start, stop, split, label) for start, stop, label in parts)}


def write(writer, id, channels, seconds, *, onsets=(0.0,), scale=20.0, short=False, tone=None, **details):
    """A recording of noise of this scale (or a tone of this frequency), its seconds shared by the segments."""
    size = round(seconds * RATE) // len(onsets)
    rng = np.random.default_rng(len(id) + len(channels))
    with writer.recording(id, channels, RATE) as draft:
        for onset in onsets:
            draft.segment(onset, short=short)
            x = rng.normal(0, scale, (size, len(channels)))
            if tone is not None:
                x = 0.01 * x + scale * np.sqrt(2) * np.sin(2 * np.pi * tone * np.arange(size) / RATE)[:, None]
            draft.write(x.astype(np.float32))
        draft.commit(**{"native_sfreq": 250.0, **details})


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    create_store(folder, "made", SETTINGS, "abcd")
    with ShardWriter(folder, "part1of3-0") as writer:
        write(
            writer,
            "a",
            ("Fp1", "Cz"),
            20,
            subject="s1",
            mains=50.0,
            labels=eyes("train", (0, 5, "open"), (5, 9, "closed")),
        )
        write(writer, "b", ("Cz", "Fp1"), 10, subject="s2", mains=60.0, labels=eyes("test", (0, 3, "closed")))
        write(
            writer,
            "c",
            ("Fp1", "Cz", "O2"),
            6,
            onsets=(0.0, 60.0),
            short=True,
            native_sfreq=500.0,
            subject="s1",
            faults=("truncated",),
            quality={"flat": 2, "clipped": 0},
            labels={"pretrain": (Interval(0, 100, "train"),)},
        )
        write(writer, "d", ("Fp1", "Cz"), 4, subject=None, faults=("truncated", "unit"), quality={"flat": 1})
    with SkipLog(folder, "part1of3-0") as log:
        log.add("x", "unit")
        log.add("y", "unit")
        log.add("z", "channels")
    write_skipped(folder, read_reasons(folder))
    return folder


def test_counts(store):
    found = info(str(store))
    assert found.total == Amount(4, pytest.approx(40 / 3600))
    assert (found.subjects, found.without_subject, found.own_ids, found.exit_code) == (2, 1, False, 0)
    assert found.channel_counts == {2: Amount(3, pytest.approx(34 / 3600)), 3: Amount(1, pytest.approx(6 / 3600))}
    assert [(set(names), amount.recordings) for names, amount in found.montages] == [
        ({"Fp1", "Cz"}, 3),  # another order of columns is the same set
        ({"Fp1", "Cz", "O2"}, 1),
    ]
    assert {rate: amount.recordings for rate, amount in found.native_rates.items()} == {250.0: 3, 500.0: 1}
    assert list(found.rates) == [RATE]
    assert found.notched == {"none": 2, "50": 1, "60": 1}
    assert (found.segments, found.short_segments, found.short_hours) == (5, 2, pytest.approx(6 / 3600))
    assert found.skipped == {"channels": 1, "unit": 2}
    assert found.faults == {"truncated": 2, "unit": 1}
    assert found.quality["flat"] == (3, 2)
    assert found.quality["clipped"] == (0, 0)
    assert found.hash == Store(store).hash()
    assert found.bytes == sum(path.stat().st_size for path in store.glob("*.bin"))
    assert found.parts == (3, (2, 3))


def test_windows_by_split_and_label(store):
    tasks = info_store(store).tasks
    train, test = tasks["eyes"].splits.values()
    assert list(tasks["eyes"].splits) == ["train", "test"]
    assert train.labels == {"open": 4, "closed": 3}  # 2 s every 1 s in 5 s, and in 4 s
    assert test.labels == {"open": 0, "closed": 2}
    assert (train.windows, train.seconds, train.subjects, train.recordings) == (7, 9.0, 1, 1)
    assert tasks["eyes"].problem is None
    assert (tasks["pretrain"].kind, tasks["pretrain"].splits["train"].labels) == ("none", {})


def test_a_subject_in_two_splits_is_told(store):
    with ShardWriter(store, "part1of3-0") as writer:
        write(writer, "e", ("Fp1", "Cz"), 10, subject="s1", labels=eyes("test", (0, 9, "open")))
    found = info_store(store)
    assert "share 1 subjects (s1)" in found.tasks["eyes"].problem
    assert "PROBLEM: splits 'train' and 'test' share" in found.text()


def test_text_and_json(store, capsys):
    assert cli.main(["info", str(store)]) == 0
    text = capsys.readouterr().out
    for words in (
        "store of made (ids are keyed hashes)",
        "2; 1 recordings without one",
        "3 sources (skipped.csv has a sentence for each)",
        "2 unit      say the unit with --unit uV",
        "mended or lived with, in recordings: truncated 2, unit 1",
        "3 flat channels in 2 recordings",
        "1 of 3 have written; not 2, 3",
        "reference as recorded; recipe made, version 1",
        "open 4, closed 3",
        "no subject may be in two splits",
        "2 (0.00 h) shorter than the filter",
    ):
        assert words in text
    assert cli.main(["info", str(store), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["kind"] == "store"
    assert values["tasks"]["eyes"]["splits"]["train"]["labels"] == {"open": 4, "closed": 3}
    assert values["montages"][0] == {"channels": ["Fp1", "Cz"], "recordings": 3, "hours": pytest.approx(34 / 3600)}
    assert values["settings"] == SETTINGS


def test_an_unfinished_store_says_so(store, capsys):
    (store / "skipped.csv").unlink()
    assert cli.main(["info", str(store)]) == 5
    assert capsys.readouterr().out.startswith("UNFINISHED: prepare has not ended on this store")
    write_skipped(store, {})
    with (store / "part1of3-0.lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.main(["info", str(store)]) == 5
        assert capsys.readouterr().out.startswith("UNFINISHED: 1 writer is at work")
    assert cli.main(["info", str(store)]) == 0


def test_an_empty_store(tmp_path):
    create_store(tmp_path, "made", SETTINGS, None)
    found = info_store(tmp_path, tmp_path / "p.png")
    assert (found.total, found.own_ids, found.tasks["eyes"].splits) == (Amount(0, 0), True, {})
    assert "no recording has it" in found.text()


@pytest.mark.parametrize("damage", ["line", "samples", "store.json"])
def test_damage_is_one_line_and_code_5(store, damage, capsys):
    lines, samples = next(store.glob("*.jsonl")), next(store.glob("*.bin"))
    if damage == "line":
        lines.write_bytes(lines.read_bytes().replace(b'"s1"', b'"s9"', 1))
    elif damage == "samples":
        samples.write_bytes(samples.read_bytes()[:-2])
    else:
        (store / "store.json").unlink()
    assert cli.main(["info", str(store)]) == 5
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    with pytest.raises(StoreError):
        info(str(store))


# The picture.


def test_picture(store):
    first, again = store.parent / "a.png", store.parent / "b.png"
    found = info_store(store, first)
    info_store(store, again)
    data = first.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1650, 1125)
    assert data == again.read_bytes()  # the same sample, the same picture
    assert b"Software" not in data
    assert found.plot == str(first)
    drawing = store.parent / "c.svg"
    info_store(store, drawing)
    words = " ".join(xml.etree.ElementTree.parse(drawing).getroot().itertext())
    for shown in (
        "channels of a recording",
        "(µV²/Hz)",
        "minutes of signal",
        "mains 50 Hz taken out of 1",
        "2 subjects",
    ):
        assert shown in words


def test_picture_needs_a_name_that_says_png_or_svg(store):
    with pytest.raises(ConfigError, match=r"ends in \.png or \.svg"):
        info_store(store, store.parent / "a.jpg")
    (store.parent / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="names a folder"):
        info_store(store, store.parent / "folder.png")


def test_sample_measures_what_was_stored(tmp_path):
    """White noise of 10 µV: deviation 10, density 10² / 32 Hz in every bin. A tone: its power in its bin."""
    create_store(tmp_path, "made", {}, None)
    with ShardWriter(tmp_path, "w") as writer:
        write(writer, "noise", ("Fp1", "Cz"), 2000, scale=10.0)
    found = sample_store(Store(tmp_path))
    assert found.stretches == 500  # all of it, 4 s each
    assert np.median(found.deviations) == pytest.approx(10, rel=0.02)
    middle = found.spectrum[1, 8:-1]
    assert middle == pytest.approx(np.log(2) * 100 / 32, rel=0.25)  # the median of an exponential law
    with ShardWriter(tmp_path, "w2") as writer:
        write(writer, "tone", ("Fp1", "Cz"), 40_000, scale=50.0, tone=8.0)
    loud = sample_store(Store(tmp_path))
    assert np.argmax(np.nan_to_num(loud.spectrum[1])) == 8 * 4
    assert loud.spectrum[1, 31:34].sum() / 4 == pytest.approx(50**2, rel=0.02)


def test_sample_is_spread_by_time_and_never_crosses_a_gap(tmp_path):
    create_store(tmp_path, "made", {}, None)
    with ShardWriter(tmp_path, "w") as writer:
        write(writer, "a", ("Fp1",), 900)
        write(writer, "b", ("Fp1",), 300, onsets=(0.0, 400.0, 900.0))
        write(writer, "c", ("Fp1",), 1.5, onsets=(0.0, 10.0, 20.0))  # 0.5 s each: too short to say anything
        write(writer, "d", ("Fp1",), 2.0)
    store = Store(tmp_path)
    chosen = choose_stretches(store, 120)
    names = [store.recordings[number].id for number, _, _ in chosen]
    assert names.count("a") == pytest.approx(90, abs=1)
    assert names.count("b") == pytest.approx(30, abs=1)
    assert "c" not in names
    for number, start, stop in chosen:
        assert any(s.start <= start < stop <= s.stop for s in store.recordings[number].segments)
        assert stop - start in (256, 128)
    assert len(set(chosen)) == len(chosen)
    assert "d" in [store.recordings[number].id for number, _, _ in choose_stretches(store, 5000)]


def test_windows_are_labelled_as_the_task_says_and_hours_are_of_what_was_recorded(tmp_path):
    """Of neonate, mobi and folder: runs of seconds, targets every 50 ms, and labels that hold for a whole recording."""
    how = {"kind": "classification", "names": ["no", "yes"], "seconds": 5.0, "stride": 5.0}
    tasks = {"most": {**how, "labels": "majority"}, "whole": how}
    create_store(tmp_path / "s", "made", {**SETTINGS, "tasks": tasks}, "abcd")
    with ShardWriter(tmp_path / "s", "w-0") as writer:
        seconds = tuple(Interval(t, t + 1, "train", ("no", "yes")[t % 5 < 3]) for t in range(20))
        labels = {"most": seconds, "whole": (Interval(0, 1e9, None, "yes"), Interval(500, 600, None, "no"))}
        write(writer, "a", ("Fp1",), 20, onsets=(0.0, 60.0), subject="s", labels=labels)
    write_skipped(tmp_path / "s", {})
    found = info_store(tmp_path / "s").tasks
    most, whole = found["most"].splits["train"], found["whole"].splits["no split"]
    assert (most.windows, most.labels, most.seconds) == (2, {"no": 0, "yes": 2}, 10.0)  # a gap from 10 s on
    assert (whole.windows, whole.labels, whole.seconds) == (4, {"no": 0, "yes": 4}, 20.0)
