"""The recipe ``seed`` on a small copy of the corpus's layout: every label, split, id and sample; damaged pieces."""

from itertools import pairwise

import numpy as np
import pytest

from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets.seed import CHANNELS, PAUSE, open_seed, seed
from cerebro_eeg.data.reading.mat import mat_shapes
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError, RecordingError
from seed_files import DATES, LABELS, SAMPLES, signal, trials, write_labels, write_seed, write_session

NAMES = {1: "positive", 0: "neutral", -1: "negative"}
SPLITS = ["train"] * 9 + ["val"] * 3 + ["test"] * 3
STARTS = [sum(SAMPLES[:t]) for t in range(16)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_seed(tmp_path_factory.mktemp("seed") / "SEED", {2: "djc", 10: "ww_eeg"})


@pytest.fixture
def session(tmp_path):
    """A folder with three sessions of one subject, to be damaged; the first is small and real, the others are not."""
    for date in DATES:
        write_session(tmp_path / f"1_{date}.mat", {f"x_eeg{t}": np.ones((62, 3)) for t in range(1, 16)})
    write_labels(tmp_path)
    return tmp_path / f"1_{DATES[0]}.mat"


def test_recipe(corpus):
    recipe = seed(corpus)
    assert (recipe.split_unit, recipe.mains, recipe.signal.sfreq, recipe.own_ids) == ("trial", 50.0, 200.0, True)
    assert not recipe.tried_on_real_files
    assert dict(recipe.tasks) == {"emotion": Task("classification", ("negative", "neutral", "positive"), 1.0, 1.0)}
    assert len(CHANNELS) == len(set(CHANNELS)) == 62


def test_items_have_numbers_and_no_dates(corpus):
    items = list(seed(corpus).find())
    assert [item.name for item in items] == [f"seed_{s}_{n}" for s in ("02", "10") for n in (1, 2, 3)]
    assert [item.subject for item in items] == ["seed_02"] * 3 + ["seed_10"] * 3
    files = corpus / "Preprocessed_EEG"
    assert [item.size for item in items] == [(files / f"{s}_{d}.mat").stat().st_size for s in (2, 10) for d in DATES]
    assert [item.name for item in seed(files).find()] == [item.name for item in items]  # the inner folder does, too


@pytest.mark.parametrize("split", ["trials", "subject"])
def test_labels_one_by_one(corpus, split):
    for item in seed(corpus, split=split).find():
        intervals = item.labels["emotion"]
        assert [interval.label for interval in intervals] == [NAMES[label] for label in LABELS]
        fold = {"seed_02": "fold2", "seed_10": "fold10"}[item.subject]
        assert [interval.split for interval in intervals] == (SPLITS if split == "trials" else [fold] * 15)
        for t, interval in enumerate(intervals):
            assert interval.start == pytest.approx(STARTS[t] / 200 + PAUSE * t)
            assert interval.stop - interval.start == pytest.approx(SAMPLES[t] / 200)


@pytest.mark.parametrize(("subject", "session_number"), [(2, 1), (10, 3)])
def test_samples_and_segments(corpus, subject, session_number):
    path = corpus / "Preprocessed_EEG" / f"{subject}_{DATES[session_number - 1]}.mat"
    recording = open_seed(path, ChannelPolicy())
    assert recording.sfreq == 200
    assert [(s.start, s.stop) for s in recording.segments] == list(pairwise(STARTS))
    assert all(b.onset > a.onset + (a.stop - a.start) / 200 for a, b in pairwise(recording.segments))
    expected = np.concatenate([signal(subject, session_number, t, SAMPLES[t - 1]).T for t in range(1, 16)])
    np.testing.assert_array_equal(recording.read(0, recording.samples), expected.astype(np.float32))
    np.testing.assert_array_equal(recording.read(399, 1010), expected[399:1010].astype(np.float32))  # over two joins
    assert recording.match.names[:3] == ["Fp1", "Fpz", "Fp2"]
    assert recording.match.names[-5:] == ["Cb1", "O1", "Oz", "O2", "Cb2"]
    assert recording.faults == ()


def test_through_a_store(corpus, tmp_path):
    done = prepare(seed(corpus), tmp_path / "store")
    assert (done.recordings, done.skipped) == (6, {})
    store = Store(tmp_path / "store")
    windows = {s: find_windows(store, seconds=1, task="emotion", split=s) for s in ("train", "val", "test")}
    assert assert_disjoint(windows) == "trial"
    whole = [n // 200 for n in SAMPLES]  # a second each; the odd sample is left over, as in the corpus
    assert {s: len(w) for s, w in windows.items()} == {
        "train": 6 * sum(whole[:9]), "val": 6 * sum(whole[9:12]), "test": 6 * sum(whole[12:])
    }  # fmt: skip
    first = windows["val"].recording == 0
    expected = [NAMES[LABELS[t]] for t in (9, 10, 11) for _ in range(whole[t])]
    assert [windows["val"].names[n] for n in windows["val"].label[first]] == expected
    assert windows["val"].start[first].tolist() == [STARTS[t] + 200 * k for t in (9, 10, 11) for k in range(whole[t])]
    for everywhere in (find_windows(store, seconds=1, stride=0.5), windows["train"]):
        inside = [(STARTS[t], STARTS[t + 1]) for t in range(15)]
        assert all(any(a <= s and s + 200 <= b for a, b in inside) for s in everywhere.start.tolist())
    stored = b"".join(path.read_bytes() for path in (tmp_path / "store").iterdir() if path.suffix != ".bin")
    for secret in (*DATES, "djc", "ww_eeg"):
        assert secret.encode() not in stored


def test_folds_by_subject_are_disjoint(corpus, tmp_path):
    prepare(seed(corpus, split="subject"), tmp_path / "store")
    store = Store(tmp_path / "store")
    folds = {f: find_windows(store, seconds=1, task="emotion", split=f) for f in ("fold2", "fold10")}
    assert assert_disjoint(folds) == "subject"
    found = prepare(seed(corpus), tmp_path / "store")
    assert found.changed.again == {}
    assert found.hash == prepare(seed(corpus), tmp_path / "fresh").hash


# Damaged and missing pieces


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (LABELS[:14], "label.mat has 14 values; expected 15, each 1, 0 or -1"),
        ((2, *LABELS[1:]), "label.mat has 15 values; expected 15, each 1, 0 or -1"),
        ((0.5, *LABELS[1:]), "each 1, 0 or -1"),
    ],
)
def test_wrong_labels(session, labels, words):
    write_labels(session.parent, labels)
    with pytest.raises(InputError, match=words):
        seed(session.parent)


def test_label_file_missing_or_broken(session):
    labels = session.parent / "label.mat"
    labels.write_bytes(labels.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"label.mat cannot be read"):
        seed(session.parent)
    labels.unlink()
    with pytest.raises(InputError, match=r"label.mat is not beside the session files"):
        seed(session.parent)


def test_wrong_folders(session, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"SUBJECT_DATE\.mat, such as 1_20131027\.mat; there is none"):
            seed(folder)
    session.rename(session.with_name("CANARY_20131027.mat"))  # an old release has names of people
    with pytest.raises(InputError, match=r"1 of 3 .mat files there are called otherwise") as caught:
        seed(session.parent)
    assert "CANARY" not in str(caught.value)


def test_sessions_are_three(session):
    session.rename(session.with_name("2_20131027.mat"))
    for item in seed(session.parent).find():  # numbered by date, so none of them can be trusted; others go on
        with pytest.raises(RecordingError, match=r"subject (1 has 2|2 has 1) sessions; expected 3"):
            item.open(ChannelPolicy())


def test_an_unknown_subject(session):
    for path in session.parent.glob("1_*.mat"):
        path.rename(path.with_name("16" + path.name[1:]))
    with pytest.raises(InputError, match="subject 16; SEED has subjects 1 to 15"):
        seed(session.parent)


def test_an_unknown_split(corpus):
    with pytest.raises(ConfigError, match="split is 'random'; use 'trials'"):
        seed(corpus, split="random")


def broken_arrays(kind):
    arrays = {f"x_eeg{t}": np.ones((62, 3)) for t in range(1, 16)}
    if kind == "a trial too few":
        del arrays["x_eeg7"]
    elif kind == "a trial too many":
        arrays["x_eeg16"] = np.ones((62, 3))
    elif kind == "a trial twice":
        arrays["y_eeg3"] = np.ones((62, 3))
    elif kind == "61 channels":
        arrays["x_eeg2"] = np.ones((61, 3))
    elif kind == "no samples":
        arrays["x_eeg2"] = np.ones((62, 0))
    else:
        arrays["x_eeg2"] = np.ones((3, 62))
    return arrays


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("a trial too few", "trials", "14 arrays are called ..._eegN; expected 15"),
        ("a trial too many", "trials", "16 arrays are called"),
        ("a trial twice", "trials", "trial 3 is there twice"),
        ("61 channels", "channels", "trial 2 is 61 x 3; expected 62 channels x samples"),
        ("no samples", "channels", "trial 2 is 62 x 0"),
        ("turned", "channels", "trial 2 is 3 x 62"),
    ],
)
def test_a_broken_session_is_skipped_and_says_why(session, tmp_path, kind, code, words):
    write_session(session, broken_arrays(kind))
    with pytest.raises(RecordingError, match=words) as caught:
        open_seed(session, ChannelPolicy())
    assert caught.value.code == code
    assert prepare(seed(tmp_path), tmp_path / "store").skipped == {"seed_01_1": code}


@pytest.mark.parametrize("compress", [True, False])
def test_a_cut_session_is_skipped(session, tmp_path, compress):
    write_session(session, {f"x_eeg{t}": np.ones((62, 50)) for t in range(1, 16)}, compress)
    data = session.read_bytes()
    session.write_bytes(data[: len(data) * 2 // 3])
    assert prepare(seed(tmp_path), tmp_path / "store").skipped == {"seed_01_1": "damaged"}


# Shapes from headers alone


@pytest.mark.parametrize("compress", [True, False])
def test_shapes_are_those_of_scipy(tmp_path, compress):
    from scipy.io import whosmat

    arrays = {"a": np.ones((2, 3)), "a_longer_name_eeg1": np.ones((62, 7), np.float32), "z4": np.ones((1, 2, 3))}
    path = write_session(tmp_path / "x.mat", arrays, compress)
    assert mat_shapes(path) == {name: shape for name, shape, _ in whosmat(path)}


def test_no_damage_makes_shapes_crash(tmp_path):
    path = write_session(tmp_path / "x.mat", {f"x_eeg{t}": np.ones((3, 4)) for t in range(1, 4)})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(120, len(data), 3):
            data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(data[: rng.integers(len(data) // 2, len(data) + 1)])
        try:
            mat_shapes(path)
        except RecordingError:
            refused += 1
    assert refused > 100


def test_initials_may_hold_anything(tmp_path):
    path = write_session(tmp_path / "1_x.mat", trials(1, 1, "a_eeg9"))
    assert open_seed(path, ChannelPolicy()).samples == sum(SAMPLES)
