"""Every window is found, at the right place, and has the label of its own seconds."""

import os
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_eeg.data.batching.splits import assert_disjoint, check_overlap, folds
from cerebro_eeg.data.batching.windows import find_event_windows, find_windows
from cerebro_eeg.data.reading.recording import Event
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import CerebroError, ConfigError, InputError

RATE = 10.0
NAMES = ["rest", "work", "sleep"]
TASKS = {
    "state": {"kind": "classification", "names": NAMES, "seconds": 1.0, "stride": 1.0},
    "angle": {"kind": "regression", "names": ["knee", "hip"], "seconds": 1.0, "stride": 1.0},
}


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def make(folder, recordings, *, unit="subject", key="abcd", tasks=TASKS):
    """A store; each recording is a dict of id, segments (onset, samples[, short]), and what ``commit`` takes."""
    create_store(folder, "test", {"tasks": tasks, "split_unit": unit}, key)
    with ShardWriter(folder, "w") as writer:
        for details in recordings:
            details = {"native_sfreq": RATE, "rate": RATE, "channels": ("Fp1", "Cz"), **details}
            channels, segments, rate = (details.pop(name) for name in ("channels", "segments", "rate"))
            with writer.recording(details.pop("id"), channels, rate) as draft:
                for onset, samples, *short in segments:
                    draft.segment(onset, short=bool(short))
                    draft.write(np.ones((samples, len(channels)), np.float32))
                draft.commit(**details)
    return Store(folder)


def one(folder, segments, intervals=(), task="state", **details):
    return make(folder, [{"id": "r", "subject": "s", "segments": segments, "labels": {task: intervals}, **details}])


def message(call, kind=CerebroError):
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert "/" not in text
    return text


def labelled(*parts, split="train"):
    """Intervals (start, stop, label)."""
    return [Interval(start, stop, split, label) for start, stop, label in parts]


# Where windows lie.


def test_windows_of_segments_counted_by_hand(tmp_path):
    store = one(tmp_path, [(0.0, 35), (100.0, 9), (200.0, 10, "short"), (300.0, 20)])
    found = find_windows(store, seconds=1.0)
    assert found.start.tolist() == [0, 10, 20, 44, 54, 64]  # 35 holds 3, 9 none, 10 one, 20 two; each from its start
    assert found.short.tolist() == [False, False, False, True, False, False]
    assert find_windows(store, seconds=1.0, flagged="drop").start.tolist() == [0, 10, 20, 54, 64]
    assert find_windows(store, seconds=1.0, stride=0.5).start.tolist() == [0, 5, 10, 15, 20, 25, 44, 54, 59, 64]
    assert find_windows(store, seconds=3.5).start.tolist() == [0]
    assert len(find_windows(store, seconds=3.6)) == 0
    assert (found.label == -1).all()
    assert found.target is None
    assert (found.samples, found.sfreq, found.task) == (10, 10.0, None)
    dtypes = found.recording, found.start, found.channels, found.label, found.subject, found.short
    assert [str(array.dtype) for array in dtypes] == ["int32", "int64", "int16", "int64", "int32", "bool"]
    assert found.channels.tolist() == [2] * 6
    with pytest.raises(ValueError, match="read-only"):
        found.start[0] = 1


def test_intervals_and_segments_cut_windows_by_hand(tmp_path):
    # Signal from 0 to 4 s and from 10 to 14 s; samples 0-39 and 40-79.
    intervals = labelled((0.5, 2.6, "rest"), (2.6, 11.2, "work"), (13.5, 20.0, "sleep"))
    store = one(tmp_path, [(0.0, 40), (10.0, 40)], intervals)
    found = find_windows(store, seconds=1.0, task="state", split="train")
    # rest: samples 5 to 25; work: 26 to 39, and 40 to 51; sleep: 75 to 79, too short.
    assert found.start.tolist() == [5, 15, 26, 40]
    assert found.label.tolist() == [0, 0, 1, 1]
    assert found.trial.tolist() == [0, 0, 1, 1]


def test_a_trial_as_long_as_the_window_holds_it_whatever_its_phase(tmp_path):
    """4.13 s are 41.3 samples, wherever between two samples they begin; none of the trials may be lost."""
    starts = [0.0, 10.03, 20.05, 30.07, 40.09]
    intervals = labelled(*[(start, start + 4.13, "work") for start in starts])
    found = find_windows(one(tmp_path, [(0.0, 1000)], intervals), seconds=4.13, task="state")
    assert found.start.tolist() == [0, 100, 201, 301, 401]
    assert found.samples == 41


@st.composite
def timelines(draw):
    """Segments with gaps, and intervals at thirds of a second, which at 10 Hz are never half-way between samples."""
    segments, clock = [], Fraction(0)
    for _ in range(draw(st.integers(1, 4))):
        clock += Fraction(draw(st.integers(0, 9)), 3)
        count = draw(st.integers(1, 40))
        segments.append((clock, count))
        clock += Fraction(count, 10) + Fraction(1, 3)
    edges = draw(st.lists(st.integers(-3, 45), min_size=2, max_size=8, unique=True).map(sorted))
    spans = [(Fraction(a, 3), Fraction(b, 3)) for a, b in pairwise(edges)]
    labels = draw(st.lists(st.integers(0, 2), min_size=len(spans), max_size=len(spans)))
    splits = draw(st.lists(st.sampled_from(["train", "test"]), min_size=len(spans), max_size=len(spans)))
    size, stride = draw(st.integers(2, 15)), draw(st.integers(1, 15))
    return segments, [(*span, *rest) for span, *rest in zip(spans, labels, splits, strict=True)], size, stride


def stored(folder, segments, spans):
    intervals = [Interval(float(a), float(b), split, NAMES[label]) for a, b, label, split in spans]
    angles = [Interval(float(a), float(b), split, None, (label, -float(a))) for a, b, label, split in spans]
    return make(
        folder,
        [
            {
                "id": "r",
                "segments": [(float(onset), count) for onset, count in segments],
                "labels": {"state": intervals, "angle": angles},
            }
        ],
    )


def clocks(segments):
    """(segment, sample, time in samples) of every sample, by counting."""
    number = 0
    for place, (onset, count) in enumerate(segments):
        for k in range(count):
            yield place, number, onset * 10 + k
            number += 1


@given(timelines())
def test_every_window_of_one_interval_and_no_other(tmp_path_factory, timeline):
    segments, spans, size, stride = timeline
    store = stored(tmp_path_factory.mktemp("s"), segments, spans)
    expected = []
    for trial, (start, stop, label, split) in enumerate(spans):
        for place in range(len(segments)):
            mine = [k for p, k, t in clocks(segments) if p == place and start * 10 - Fraction(1, 2) <= t < stop * 10]
            expected += [(k, label, trial) for k in mine[::stride] if k + size - 1 <= mine[-1] and split == "train"]
    if not any(split == "train" for *_, split in spans):
        assert "no split train" in message(lambda: find_windows(store, seconds=1, task="state", split="train"))
        return
    found = find_windows(store, seconds=size / 10, stride=stride / 10, task="state", split="train")
    assert sorted(zip(found.start.tolist(), found.label.tolist(), found.trial.tolist(), strict=True)) == sorted(
        expected
    )


@given(timelines())
def test_windows_across_intervals_are_labelled_by_their_own_samples(tmp_path_factory, timeline):
    segments, spans, size, stride = timeline
    store = stored(tmp_path_factory.mktemp("s"), segments, spans)
    majority, last, mean = {}, {}, {}
    runs, before = [], None
    for span in spans:  # they all touch; a run ends where the split changes
        if span[3] != before:
            runs.append([])
        runs[-1].append(span)
        before = span[3]
    for run in (run for run in runs if run[0][3] == "train"):
        for place in range(len(segments)):
            start, stop = run[0][0] * 10, run[-1][1] * 10
            mine = [(k, t) for p, k, t in clocks(segments) if p == place and start - Fraction(1, 2) <= t < stop]
            spoken = [  # the interval of each sample, one by one
                next((s for s in run if s[0] * 10 - Fraction(1, 2) <= t < s[1] * 10 - Fraction(1, 2)), run[-1])
                for _, t in mine
            ]
            for first in range(0, len(mine) - size + 1, stride):
                own = [s[2] for s in spoken[first : first + size]]
                k = mine[first][0]
                most = max(own.count(label) for label in own)
                majority[k] = next(label for label in own if own.count(label) == most)
                last[k] = own[-1]
                mean[k] = float(np.mean(own))
    options = {"seconds": size / 10, "stride": stride / 10, "split": "train"}
    if not any(run[0][3] == "train" for run in runs):
        return
    found = find_windows(store, task="state", labels="majority", **options)
    assert dict(zip(found.start.tolist(), found.label.tolist(), strict=True)) == majority
    found = find_windows(store, task="state", labels="last", **options)
    assert dict(zip(found.start.tolist(), found.label.tolist(), strict=True)) == last
    found = find_windows(store, task="angle", labels="last", **options)
    assert found.target[:, 0].tolist() == [last[k] for k in sorted(last)]
    found = find_windows(store, task="angle", labels="mean", **options)
    assert found.start.tolist() == sorted(mean)
    np.testing.assert_allclose(found.target[:, 0], [mean[k] for k in sorted(mean)], rtol=1e-6, atol=1e-6)


# What windows are called.


def test_majority_by_hand_label_by_label(tmp_path):
    seconds = ["rest", "rest", "rest", "work", "work", "work", "work", "rest", "sleep", "sleep"]
    intervals = labelled(*[(k, k + 1.0, label) for k, label in enumerate(seconds)])
    found = find_windows(one(tmp_path, [(0.0, 100)], intervals), seconds=5, stride=1, task="state", labels="majority")
    assert found.start.tolist() == [0, 10, 20, 30, 40, 50]
    #   rrrww  rrwww  rwwww  wwwwr  wwwrs  wwrss: two each of work and sleep, and work comes first
    assert [NAMES[label] for label in found.label] == ["rest", "work", "work", "work", "work", "work"]


def test_a_tie_goes_to_the_label_that_comes_first_in_the_window(tmp_path):
    intervals = labelled((0, 1, "sleep"), (1, 2, "rest"), (2, 3, "sleep"), (3, 4, "work"))
    found = find_windows(one(tmp_path, [(0.0, 40)], intervals), seconds=2, stride=1, task="state", labels="majority")
    assert [NAMES[label] for label in found.label] == ["sleep", "rest", "sleep"]


def test_what_two_experts_mark_alike_counts_once(tmp_path):
    intervals = labelled((0, 10, "rest"), (0, 4, "work"), (1, 4, "work"), (2, 4, "work"), (0, 0, "sleep"))
    store = one(tmp_path, [(0.0, 100)], intervals)
    found = find_windows(store, seconds=10, task="state", labels="majority")
    assert found.label.tolist() == [0]
    assert "two different labels" in message(lambda: find_windows(store, seconds=1, task="state"))


def test_intervals_inside_others(tmp_path):
    nested = labelled((0, 6, "work"), (1, 2, "work"), (6, 10, "rest"))
    store = one(tmp_path / "1", [(0.0, 100)], nested)
    assert find_windows(store, seconds=10, task="state", labels="majority").label.tolist() == [1]  # 6 s against 4
    inside = one(tmp_path / "2", [(0.0, 60)], labelled((0, 6, "rest"), (2, 4, "work")))
    found = find_windows(inside, seconds=1, task="state", labels="last")
    assert found.label.tolist() == [0, 0, 1, 1, 0, 0]  # the one that began last, until it ends


def test_what_is_marked_twice_alike_is_one_window(tmp_path):
    store = one(tmp_path, [(0.0, 40)], labelled((0, 4, "rest"), (0, 4, "rest"), (1, 3, "rest")))
    found = find_windows(store, seconds=1, task="state")
    assert found.start.tolist() == [0, 10, 20, 30]
    assert found.trial.tolist() == [0, 0, 0, 0]


def test_window_k_has_the_label_of_its_own_seconds_not_of_second_k(tmp_path):
    """The trap of published code: window k of 5 s was given the label of second k."""
    intervals = labelled(*[(k, k + 1.0, "work" if k >= 30 else "rest") for k in range(60)])
    store = one(tmp_path, [(0.0, 600)], intervals)
    found = find_windows(store, seconds=5, task="state", labels="majority")
    assert found.label.tolist() == [0] * 6 + [1] * 6
    shifted = [int(k >= 30) for k in range(12)]
    assert found.label.tolist() != shifted


def test_gaps_between_intervals_are_not_windows(tmp_path):
    intervals = labelled((0, 2, "rest"), (2.3, 4, "rest"), (4.04, 6, "rest"))
    found = find_windows(
        one(tmp_path, [(0.0, 60)], intervals), seconds=1.5, stride=0.5, task="state", labels="majority"
    )
    assert found.start.tolist() == [0, 5, 23, 28, 33, 38, 43]  # 0.04 s is less than half a sample: no gap


def test_splits_never_join(tmp_path):
    intervals = labelled((0, 2, "rest")) + labelled((2, 4, "rest"), split="val") + labelled((4, 6, "rest"))
    store = one(tmp_path, [(0.0, 60)], intervals)
    starts = {
        split: find_windows(store, seconds=2, stride=1, task="state", split=split, labels="majority").start.tolist()
        for split in ("train", "val")
    }
    assert starts == {"train": [0, 40], "val": [20]}
    both = find_windows(store, seconds=2, stride=1, task="state", split=["train", "val"], labels="majority")
    assert both.start.tolist() == [0, 20, 40]


def test_targets_that_vary_in_time(tmp_path):
    intervals = [Interval(k / 10, (k + 1) / 10, "train", None, (k, 100.0 - k)) for k in range(40)]
    store = one(tmp_path, [(0.0, 40)], intervals, task="angle")
    last = find_windows(store, seconds=2, stride=0.5, task="angle", labels="last")
    assert last.target.tolist() == [[19, 81], [24, 76], [29, 71], [34, 66], [39, 61]]
    assert last.target.dtype == np.float32
    mean = find_windows(store, seconds=2, stride=0.5, task="angle", labels="mean")
    assert mean.target.tolist() == [[9.5, 90.5], [14.5, 85.5], [19.5, 80.5], [24.5, 75.5], [29.5, 70.5]]
    assert find_windows(store, seconds=0.1, task="angle").target[:, 0].tolist() == list(range(40))
    assert (last.label == -1).all()


def test_what_is_hidden_has_no_label_and_no_target(tmp_path):
    labels = {
        "state": [Interval(0, 2, "hidden"), Interval(2, 4, "train", "work")],
        "angle": [Interval(0, 2, "train", None, (1.0, 2.0)), Interval(2, 4, "train")],
        "pretrain": [Interval(0, 4, "train")],
    }
    store = make(tmp_path, [{"id": "r", "segments": [(0.0, 40)], "labels": labels}])
    assert find_windows(store, seconds=2, task="state").label.tolist() == [-1, 1]
    targets = find_windows(store, seconds=2, stride=1, task="angle", labels="mean").target
    assert targets[0].tolist() == [1, 2]
    assert np.isnan(targets[1:]).all()
    pretrain = find_windows(store, seconds=2, task="pretrain", split="train")
    assert pretrain.label.tolist() == [-1, -1]
    assert pretrain.names == ()


def test_windows_about_events(tmp_path):
    events = [
        Event(1.0, 0, "go"),
        Event(2.04, 0, "stop"),
        Event(3.8, 0, "go"),
        Event(3.0, 0, "cough"),
        Event(0.1, 0, "go"),
    ]
    labels = {"state": labelled((0, 2, "rest")) + labelled((2, 4, "rest"), split="test")}
    store = make(tmp_path, [{"id": "r", "segments": [(0.0, 40)], "events": events, "labels": labels}])
    found = find_event_windows(store, t0=-0.2, t1=0.5, names=["stop", "go"])
    assert found.start.tolist() == [8, 18]  # 0.1 begins before the signal, 3.8 ends behind it
    assert found.label.tolist() == [1, 0]
    assert found.samples == 7
    assert find_event_windows(store, t0=0, t1=0.5, names=["stop", "go"], task="state", split="test").start.tolist() == [
        20
    ]
    assert find_event_windows(store, t0=-0.2, t1=0.5, names=["stop"], task="state").start.tolist() == []  # spans 2.0


def test_mistakes_are_named(tmp_path):
    rows = [
        {"id": "a", "segments": [(0.0, 40)], "labels": {"state": labelled((0, 4, "rest"))}},
        {"id": "b", "segments": [(0.0, 40)], "rate": 12.5, "labels": {"odd": labelled((0, 4, "rest"))}},
        {"id": "c", "segments": [(0.0, 40)], "labels": {"angle": [Interval(0, 4, "train", None, (1.0,))]}},
    ]
    store = make(tmp_path, rows)
    assert "10, 12.5 Hz" in message(lambda: find_windows(store, seconds=1))
    assert len(find_windows(store, seconds=1, task="state")) == 4  # the other rate has no part in it
    assert "'rest' in task 'odd'" in message(lambda: find_windows(store, seconds=1, task="odd"))
    assert "1 values" in message(lambda: find_windows(store, seconds=1, task="angle"))
    assert "angle, odd, state" in message(lambda: find_windows(store, seconds=1, task="stat"))
    assert "it has train" in message(lambda: find_windows(store, seconds=1, task="state", split="valid"))
    assert "task" in message(lambda: find_windows(store, seconds=1, split="train"), ConfigError)
    for wrong in ({"seconds": 0}, {"seconds": float("nan")}, {"seconds": 0.01}, {"seconds": 1, "stride": -1}):
        message(lambda wrong=wrong: find_windows(store, task="state", **wrong), ConfigError)
    for wrong in ({"labels": "mean"}, {"labels": "most"}, {"flagged": "maybe"}):
        message(lambda wrong=wrong: find_windows(store, seconds=1, task="state", **wrong), ConfigError)
    message(lambda: find_windows(store, seconds=1, task="angle", labels="majority"), ConfigError)
    message(lambda: find_event_windows(store, t0=1, t1=1, names=["go"]), ConfigError)
    message(lambda: find_event_windows(store, t0=0, t1=1, names=[]), ConfigError)
    unknown = make(tmp_path / "u", [{"id": "a", "segments": [(0.0, 40)], "labels": {"state": labelled((0, 4, "run"))}}])
    assert "'run'" in message(lambda: find_windows(unknown, seconds=1, task="state"), InputError)


def test_keys_and_ids_name_a_window_wherever_it_lies(tmp_path):
    rows = [{"id": id, "segments": [(0.0, 1000)], "subject": f"s{id}"} for id in "abc"]
    found = find_windows(make(tmp_path / "1", rows), seconds=1, stride=0.1)
    other = find_windows(make(tmp_path / "2", rows[1:]), seconds=2)
    keys, ids = found.keys().tolist(), found.ids(range(len(found)))
    assert len(set(keys)) == len(keys) == 3 * 991
    assert ids[991 + 20] == ("b", 20)
    assert other.ids([1]) == [("b", 20)]
    assert other.keys()[1] == keys[991 + 20]
    assert found.keys(np.array([5, 3])).tolist() == [keys[5], keys[3]]
    assert found.keys()[:2].tolist() == [-4146183889068066942, 4917199001715927179]  # everywhere, always
    part = found.take(found.recording == 1)
    assert part.ids([20]) == [("b", 20)]
    assert {part.facts.subjects[number] for number in part.subject} == {"sb"}


# Splits.


def two_splits(folder, rows, **options):
    store = make(folder, rows, **options)
    return {split: find_windows(store, seconds=1, task="state", split=split) for split in ("train", "test")}


def row(id, subject, split, **details):
    return {
        "id": id,
        "subject": subject,
        "segments": [(0.0, 40)],
        "labels": {"state": labelled((0, 4, "rest"), split=split)},
        **details,
    }


def test_splits_are_disjoint_in_the_declared_unit(tmp_path):
    rows = [row("a", "s1", "train"), row("b", "s2", "test"), row("c", "s1", "test"), row("d", "s3", "train")]
    text = message(lambda: assert_disjoint(two_splits(tmp_path / "1", rows)), InputError)
    assert "share 1 subjects (s1)" in text
    assert "'subject'" in text
    assert assert_disjoint(two_splits(tmp_path / "2", rows, unit="recording")) == "recording"
    assert assert_disjoint(two_splits(tmp_path / "3", rows[:2])) == "subject"
    shared = two_splits(tmp_path / "5", rows)
    assert assert_disjoint(shared, "recording") == "recording"
    assert "unit" in message(lambda: assert_disjoint(shared, "person"), ConfigError)
    nobody = [row("a", None, "train"), row("b", "s2", "test")]
    assert "1 recordings have no subject (a)" in message(lambda: assert_disjoint(two_splits(tmp_path / "4", nobody)))


def test_trials_and_windows_are_disjoint(tmp_path):
    both = labelled((0, 2, "rest"), split="train") + labelled((2, 4, "rest"), split="test")
    rows = [{**row("a", "s1", "train"), "labels": {"state": both}}]
    splits = two_splits(tmp_path / "1", rows, unit="trial")
    assert assert_disjoint(splits) == "trial"
    assert "share 1 recordings (a)" in message(lambda: assert_disjoint(splits, "recording"))
    whole = two_splits(tmp_path / "2", [row("a", "s1", "train"), row("b", "s", "test")], unit="trial")["train"]
    halves = {"train": whole.take(np.array([0, 1])), "test": whole.take(np.array([2, 3]))}
    assert "1 trials (a:0)" in message(lambda: assert_disjoint(halves))
    assert assert_disjoint(halves, "none") == "none"
    assert "1 windows (a:10)" in message(lambda: assert_disjoint({"x": whole, "y": whole.take(np.array([1]))}, "none"))
    overlapping = labelled((0, 2, "rest"), split="train") + labelled((1.5, 4, "rest"), split="test")
    rows = [{**row("a", "s1", "train"), "labels": {"state": overlapping}}]
    assert "1 trials (a:10)" in message(lambda: assert_disjoint(two_splits(tmp_path / "3", rows, unit="trial")))


def test_overlap_of_pretraining_and_test(tmp_path):
    pretrain = make(tmp_path / "1", [row("a", "s1", "train"), row("b", "s2", "test"), row("c", "s3", "train")])
    test = make(tmp_path / "2", [row("x", "s1", "train"), row("c", "s3", "test"), row("y", "s4", "test")])
    found = check_overlap(pretrain, test)
    assert (found.subjects, found.recordings) == (("s1", "s3"), ("c",))
    windows = find_windows(test, seconds=1, task="state", split="test")
    assert check_overlap(pretrain, windows).subjects == ("s3",)
    part = find_windows(pretrain, seconds=1, task="state", split="test")
    assert not check_overlap(part, windows)
    other = make(tmp_path / "3", [row("a", "s1", "train")], key="other")
    own = make(tmp_path / "4", [row("a", "s1", "train")], key=None)
    for stranger in (other, own):
        assert "different keys" in message(lambda stranger=stranger: check_overlap(pretrain, stranger), InputError)
    assert check_overlap(own, own).subjects == ("s1",)


def test_no_overlap_is_not_said_of_recordings_without_a_subject(tmp_path):
    known = make(tmp_path / "1", [row("a", "s1", "train")])
    nobody = make(tmp_path / "2", [row("x", None, "test"), row("a", "s1", "train")])
    test = find_windows(nobody, seconds=1, task="state", split="test")
    for pair in ((known, test), (test, known)):
        assert "1 recordings have no subject (x)" in message(lambda pair=pair: check_overlap(*pair), InputError)
    assert check_overlap(known, nobody).subjects == ("s1",)  # what shows is told


def test_folds_by_subject(tmp_path):
    rows = [row(f"r{k}", f"s{k % 7}", "train") for k in range(20)]
    windows = find_windows(make(tmp_path / "1", rows), seconds=1)
    found = folds(windows, 3, seed=0)
    by_subject = {}
    for subject, fold in zip(windows.subject.tolist(), found.tolist(), strict=True):
        by_subject.setdefault(subject, set()).add(fold)
    assert all(len(of) == 1 for of in by_subject.values())
    sizes = np.bincount([next(iter(of)) for of in by_subject.values()])
    assert sorted(sizes.tolist()) == [2, 2, 3]
    assert (found == folds(windows, 3, seed=0)).all()
    assert any((found != folds(windows, 3, seed=seed)).any() for seed in range(1, 4))
    shorter = find_windows(make(tmp_path / "2", rows[::-1]), seconds=2)  # the same subjects, other windows
    names = dict(zip([windows.facts.subjects[n] for n in windows.subject], found.tolist(), strict=True))
    again = dict(zip([shorter.facts.subjects[n] for n in shorter.subject], folds(shorter, 3, 0).tolist(), strict=True))
    assert names == again
    for n in (1, 8):
        message(lambda n=n: folds(windows, n, 0), ConfigError)
