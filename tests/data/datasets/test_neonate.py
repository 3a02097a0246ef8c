"""The recipe ``neonate`` on a small copy of the corpus's layout: every label, fold and window; damaged pieces."""

import pytest

from cerebro_eeg.data.batching.splits import assert_disjoint
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets.neonate import fold_of, neonate
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import Interval
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from neonate_files import ELECTRODES, write_edf, write_marks, write_neonate

# Newborn 1 is recorded for 22 s and marked for 22; 7 has marks behind its end; 10 has no second on which all agree.
SECONDS = {1: 22, 7: 13, 10: 10}
A = {1: "0000111111110000000000", 2: "01", 7: "11100000000000111", 10: "1111111111"}
B = {1: "0001111111111111000011", 2: "01", 7: "11110000000001111", 10: "0000000000"}
C = {1: "0111111111111110000011", 2: "01", 7: "111100000000011111", 10: "1111111111"}
TASK = Task("classification", ("background", "seizure"), 5.0, 5.0, labels="majority")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_neonate(tmp_path_factory.mktemp("neonate") / "helsinki", SECONDS, (A, B, C))


@pytest.fixture
def small(tmp_path):
    """One recording, to be damaged."""
    return write_neonate(tmp_path / "small", {3: 6}, ({3: "000111"},) * 3)


def test_recipe(corpus):
    recipe = neonate(corpus)
    assert (recipe.split_unit, recipe.mains, recipe.own_ids) == ("subject", 50.0, True)
    assert not recipe.tried_on_real_files
    assert dict(recipe.tasks) == {"seizure": TASK}
    assert dict(neonate(corpus, legacy=True).tasks) == {"seizure_legacy": TASK}


def test_items_in_the_order_of_their_numbers(corpus):
    items = list(neonate(corpus).find())
    assert [(item.name, item.subject) for item in items] == [
        ("neonate_eeg1", "neonate_1"), ("neonate_eeg7", "neonate_7"), ("neonate_eeg10", "neonate_10")
    ]  # fmt: skip
    assert [item.size for item in items] == [(corpus / f"eeg{n}.edf").stat().st_size for n in SECONDS]


def test_labels_one_by_one(corpus):
    assert {item.name: dict(item.labels) for item in neonate(corpus).find()} == {
        "neonate_eeg1": {
            "seizure": (
                Interval(0.0, 4.0, "fold1", "background"),
                Interval(4.0, 12.0, "fold1", "seizure"),
                Interval(12.0, 22.0, "fold1", "background"),
            )
        },
        "neonate_eeg7": {  # the third expert has a second more than the others, which does not count
            "seizure": (
                Interval(0.0, 3.0, "fold2", "seizure"),
                Interval(3.0, 14.0, "fold2", "background"),
                Interval(14.0, 17.0, "fold2", "seizure"),
            )
        },
        "neonate_eeg10": {"seizure": (Interval(0.0, 10.0, "fold5", "background"),)},
    }


def test_legacy_labels_one_by_one(corpus):
    """Window k is seconds 5k to 5k + 5 and gets the mark of second k."""
    assert {item.name: item.labels["seizure_legacy"] for item in neonate(corpus, legacy=True).find()} == {
        "neonate_eeg1": (Interval(0.0, 20.0, "fold1", "background"),),  # seconds 0 1 2 3
        "neonate_eeg7": (Interval(0.0, 15.0, "fold2", "seizure"),),  # seconds 0 1 2
        "neonate_eeg10": (Interval(0.0, 10.0, "fold5", "background"),),
    }


def test_folds():
    folds = [fold_of(number) for number in range(1, 80)]
    assert folds[:7] == ["fold1", "fold2", "fold3", "fold4", "fold5", "fold1", "fold2"]
    assert {fold: folds.count(fold) for fold in folds} == {
        "fold1": 16, "fold2": 16, "fold3": 16, "fold4": 16, "fold5": 15
    }  # fmt: skip


def windows_of(store, task, labels):
    found = find_windows(store, seconds=5, stride=5, task=task, labels=labels)
    ids = found.ids(range(len(found)))
    return {
        id: [(s // 256, found.names[n]) for (i, s), n in zip(ids, found.label, strict=True) if i == id]
        for id in found.facts.ids
    }


def test_windows_take_the_label_of_most_of_their_seconds(corpus, tmp_path):
    done = prepare(neonate(corpus), tmp_path / "store")
    assert (done.recordings, done.skipped, done.montages) == (3, {}, {19: 3})
    store = Store(tmp_path / "store")
    assert windows_of(store, "seizure", "majority") == {
        # seconds 0-5: one of five; 5-10: all; 10-15: two; 15-20: none; 20-22 is too short
        "neonate_eeg1": [(0, "background"), (5, "seizure"), (10, "background"), (15, "background")],
        "neonate_eeg10": [(0, "background"), (5, "background")],
        "neonate_eeg7": [(0, "seizure"), (5, "background")],  # 13 s long: the marks behind it make no window
    }
    folds = {f: find_windows(store, seconds=5, task="seizure", split=f) for f in ("fold1", "fold2", "fold5")}
    assert assert_disjoint(folds) == "subject"
    names = [{"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}.get(name, name) for name in ELECTRODES]
    assert {record.channels for record in store.recordings} == {tuple(names)}
    assert {record.mains for record in store.recordings} == {50.0}
    found = prepare(neonate(corpus, legacy=True), tmp_path / "store")
    assert (found.changed.rewritten, found.changed.again) == (3, {})
    assert found.hash == prepare(neonate(corpus, legacy=True), tmp_path / "fresh").hash != done.hash


def test_legacy_windows(tmp_path):
    marks = {4: "0110100" + "0" * 18}
    folder = write_neonate(tmp_path / "corpus", {4: 25}, (marks, marks, marks))
    prepare(neonate(folder, legacy=True), tmp_path / "store")
    expected = [(0, "background"), (5, "seizure"), (10, "seizure"), (15, "background"), (20, "seizure")]
    for labels in ("interval", "majority"):  # its intervals begin on the grid of the windows: both read the same
        assert windows_of(Store(tmp_path / "store"), "seizure_legacy", labels) == {"neonate_eeg4": expected}


# The protocol of another public script

PROTOCOL = "seizure_biofoundation"


@pytest.fixture
def protocol(tmp_path):
    """Three newborns, one of each split; the script reads the numbers above the marks as if they were a second."""
    a = {1: "0111", 2: "0110", 7: "1.01"}
    b = {1: "0101", 2: "0100", 7: "1..0"}
    c = {1: "1001", 2: "1010", 7: "0..."}
    return write_neonate(tmp_path / "helsinki", {1: 14, 2: 27, 7: 25}, (a, b, c))


def test_the_protocol_label_by_label(protocol):
    """By hand. Window k is seconds 5k to 5k + 5 and gets what most experts say of second k - 1."""
    assert {item.name: item.labels[PROTOCOL] for item in neonate(protocol, protocol="biofoundation").find()} == {
        # 14 s are two windows: the first has the number of the newborn, 1; the second has second 0: 0 0 1
        "neonate_eeg1": (Interval(0.0, 5.0, "val", "seizure"), Interval(5.0, 10.0, "val", "background")),
        # seconds 0 to 3 are 0 0 1, 1 1 0, 1 0 1, 0 0 0; window 0 has the number 2, which is no mark
        "neonate_eeg2": (
            Interval(5.0, 10.0, "train", "background"),
            Interval(10.0, 20.0, "train", "seizure"),
            Interval(20.0, 25.0, "train", "background"),
        ),
        # seconds 0 to 3: 1 1 0; nobody; one expert, 0; two who disagree: the first draw of NumPy's seed 0 is 1
        "neonate_eeg7": (
            Interval(5.0, 10.0, "test", "seizure"),
            Interval(15.0, 20.0, "test", "background"),
            Interval(20.0, 25.0, "test", "seizure"),
        ),
    }


def test_the_protocol_splits_61_8_and_10_newborns(tmp_path):
    marks = dict.fromkeys(range(1, 82), "000000")
    folder = write_neonate(tmp_path / "all", dict.fromkeys(marks, 10), (marks,) * 3)
    items = list(neonate(folder, protocol="biofoundation").find())
    by_split = {}
    for item in items[:79]:
        by_split.setdefault(item.labels[PROTOCOL][0].split, []).append(int(item.name.removeprefix("neonate_eeg")))
    assert by_split["val"] == [1, 3, 24, 32, 34, 42, 46, 69]
    assert by_split["test"] == [7, 11, 27, 39, 47, 53, 57, 59, 68, 79]
    assert len(by_split["train"]) == 61
    assert [(item.name, dict(item.labels)) for item in items[79:]] == [("neonate_eeg80", {}), ("neonate_eeg81", {})]


def test_the_protocol_through_a_store(protocol, tmp_path):
    done = prepare(neonate(protocol, protocol="biofoundation"), tmp_path / "store")
    assert (done.recordings, done.skipped, done.montages, done.faults) == (3, {}, {18: 3}, {})
    store = Store(tmp_path / "store")
    assert store.recordings[0].channels == tuple(
        "Fp2-F4 F4-C4 C4-P4 P4-O2 Fp1-F3 F3-C3 C3-P3 P3-O1 Fp2-F8 F8-T8 T8-P8 P8-O2 Fp1-F7 F7-T7 T7-P7 P7-O1 "
        "Fz-Cz Cz-Pz".split()
    )
    found = windows_of(store, PROTOCOL, "interval")
    assert found["neonate_eeg1"] == [(0, "seizure"), (5, "background")]
    assert found["neonate_eeg2"] == [(5, "background"), (10, "seizure"), (15, "seizure"), (20, "background")]
    assert store.info.settings["options"] == {"protocol": "biofoundation"}
    parts = {s: find_windows(store, seconds=5, task=PROTOCOL, split=s) for s in ("train", "val", "test")}
    assert assert_disjoint(parts) == "subject"
    with pytest.raises(ConfigError, match="options"):
        prepare(neonate(protocol), tmp_path / "store")


def test_protocols_that_are_none(protocol):
    with pytest.raises(ConfigError, match="protocol is 'labram'; use 'biofoundation', or leave it out"):
        neonate(protocol, protocol="labram")
    with pytest.raises(ConfigError, match="--legacy and --protocol were both given"):
        neonate(protocol, protocol="biofoundation", legacy=True)


@pytest.mark.parametrize("blank", ["", "NaN", "nan"])
def test_a_second_that_one_expert_did_not_mark_has_no_label(small, blank):
    write_marks(small / "annotations_2017_B.csv", {3: "00.111"}, blank)
    (item,) = neonate(small).find()
    assert item.labels["seizure"] == (
        Interval(0.0, 2.0, "fold3", "background"),
        Interval(3.0, 6.0, "fold3", "seizure"),
    )


def test_a_blank_line_is_a_second_only_where_there_is_one_column(small):
    path = small / "annotations_2017_A.csv"
    path.write_text("3,4\n" + "0,0\n" * 3 + "1,0\n" * 3 + "\n\n")  # at the end it is nothing
    (item,) = neonate(small).find()
    assert [(i.start, i.stop) for i in item.labels["seizure"]] == [(0.0, 3.0), (3.0, 6.0)]
    path.write_text("3,4\n0,0\n\n0,0\n")
    with pytest.raises(InputError, match=r"row 3 of annotations_2017_A\.csv has 1 values, the first 2"):
        neonate(small)


def test_numbers_as_matlab_writes_them(small):
    path = small / "annotations_2017_C.csv"
    path.write_text("﻿3.0000000e+00\n" + "0.0000000e+00\n" * 3 + "1.0000000e+00\n" * 3)
    (item,) = neonate(small).find()
    assert [(i.start, i.stop) for i in item.labels["seizure"]] == [(0.0, 3.0), (3.0, 6.0)]


# Damaged and missing pieces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first row of annotations_2017_B.csv is not the numbers of the newborns"),
        ("three\n0\n", "first row of annotations_2017_B.csv is not the numbers"),
        ("3,3\n0,0\n", "first row of annotations_2017_B.csv is not the numbers of the newborns, each once"),
        ("3.5\n0\n", "first row of annotations_2017_B.csv is not the numbers"),
        ("3\n0\n2\n", "row 3 of annotations_2017_B.csv has a mark that is not 0, 1, blank or NaN"),
        ("3\n0\nCANARY\n", "row 3 of annotations_2017_B.csv has a mark that is not 0, 1, blank or NaN"),
        ("3,4\n0,0\n0\n", "row 3 of annotations_2017_B.csv has 1 values, the first 2"),
    ],
)
def test_broken_tables(small, text, words):
    (small / "annotations_2017_B.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        neonate(small)
    assert words in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_missing_pieces(small, tmp_path):
    (small / "annotations_2017_C.csv").unlink()
    with pytest.raises(InputError, match=r"annotations_2017_C\.csv is not beside the recordings"):
        neonate(small)
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match=r"no eeg1\.edf \.\.\. eeg79\.edf is there"):
            neonate(folder)


def test_a_newborn_without_a_column_is_skipped(small, tmp_path):
    write_edf(small / "eeg8.edf", 6, 8)
    done = prepare(neonate(small), tmp_path / "store")
    assert done.recordings == 1
    assert done.skipped == {"neonate_eeg8": "annotation"}


def test_a_damaged_recording_is_skipped(small, tmp_path):
    write_edf(small / "eeg8.edf", 6, 8)
    for expert in "ABC":
        write_marks(small / f"annotations_2017_{expert}.csv", {3: "000111", 8: "000111"})
    (small / "eeg3.edf").write_bytes(b"")
    done = prepare(neonate(small), tmp_path / "store")
    assert (done.recordings, list(done.skipped)) == (1, ["neonate_eeg3"])


def test_the_table_that_the_authors_mended_is_the_one_that_is_read(tmp_path):
    """Zenodo's record 4940267 has annotations_2017_A_fixed.csv and no annotations_2017_A.csv."""
    folder = write_neonate(tmp_path / "neo", {1: 10}, [{1: "1" * 10}] * 3)
    withdrawn = folder / "annotations_2017_A.csv"
    write_marks(folder / "annotations_2017_A_fixed.csv", {1: "0000011111"})
    expected = (Interval(0.0, 5.0, "fold1", "background"), Interval(5.0, 10.0, "fold1", "seizure"))
    assert next(iter(neonate(folder).find())).labels == {"seizure": expected}
    withdrawn.unlink()
    assert next(iter(neonate(folder).find())).labels == {"seizure": expected}
