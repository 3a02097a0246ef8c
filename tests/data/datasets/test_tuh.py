"""The recipes of the Temple corpora: trees in their layouts with known answers, label by label, whole and damaged."""

import pickle
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuh_files
from cerebro_eeg.data.batching.splits import assert_disjoint, check_overlap
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets.tuh import CHANNELS, TYPES, draw_split, tuab, tueg, tuep, tusl, tusz
from cerebro_eeg.data.datasets.tuh_files import Stretch, find_files, label_time, read_annotation
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.recipe import Task
from cerebro_eeg.data.storing.records import Interval, is_id
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CerebroError, ConfigError, InputError, RecordingError
from tuh_files import (
    CANARY,
    write_csv,
    write_edf,
    write_old_tuab,
    write_old_tueg,
    write_old_tuep,
    write_old_tusz,
    write_tse,
    write_tuab,
    write_tueg,
    write_tuep,
    write_tusl,
    write_tusz,
)

# As the corpus counts them; two of Temple's old names have new ones.
REFERENTIAL = "Fp1 Fp2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T7 T8 P7 P8 A1 A2 Fz Cz Pz T1 T2".split()
WRITERS = {
    "tuab": (tuab, write_tuab),
    "tusz": (tusz, write_tusz),
    "tuep": (tuep, write_tuep),
    "tusl": (tusl, write_tusl),
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """One tree of each corpus; tests that change one copy it."""
    top = tmp_path_factory.mktemp("temple")
    for name, (_, write) in WRITERS.items():
        write(top / name)
    write_tueg(top / "tueg")
    return top


@pytest.fixture
def copy(trees, tmp_path):
    return lambda name: Path(shutil.copytree(trees / name, tmp_path / name))


def labels_of(recipe):
    return {item.name: dict(item.labels) for item in recipe.find()}


def recording(folder, id):
    return next(folder.rglob(f"{id}.edf"))


# TUEG


def test_tueg_finds_all(trees):
    recipe = tueg(trees / "tueg", exclude="none")
    found = [(item.name, item.subject, dict(item.labels)) for item in recipe.find()]
    assert found == [
        ("aaaaaaaa_s001_t000", "aaaaaaaa", {}),
        ("aaaaaaaa_s002_t000", "aaaaaaaa", {}),
        ("aaaaaaab_s001_t000", "aaaaaaab", {}),
        ("aaaaaalr_s001_t000", "aaaaaalr", {}),
        ("aaaaaalr_s001_t001", "aaaaaalr", {}),
        ("aaaaamye_s004_t007", "aaaaamye", {}),
    ]
    assert recipe.mains == 60
    assert recipe.own_ids
    assert not recipe.tried_on_real_files
    assert "nobody is excluded, as asked for" in recipe.about


def test_tueg_of_version_1(tmp_path):
    found = [(item.name, item.subject) for item in tueg(write_old_tueg(tmp_path), exclude="none").find()]
    assert found == [("00000000_s001_t000", "00000000"), ("00014928_s004_t007", "00014928")]


def test_tueg_keeps_every_electrode_that_we_know(trees):
    recipe = tueg(trees / "tueg", exclude="none")
    names = {item.name: [c.name for c in item.open(recipe.policy).match.channels] for item in recipe.find()}
    assert names["aaaaaaaa_s001_t000"] == [*REFERENTIAL, "Sp1"]  # no heart, eye, light, numbers nor C3P
    assert names["aaaaaaaa_s002_t000"] == [*(n for n in REFERENTIAL if n not in ("A1", "A2")), "Sp1"]
    assert names["aaaaaaab_s001_t000"] == REFERENTIAL[:-2]
    assert names["aaaaamye_s004_t007"] == [n for n in REFERENTIAL if n not in ("A1", "A2", "T1", "T2")]


def test_tueg_excludes_all_of_tuab(trees):
    recipe = tueg(trees / "tueg", exclude=str(trees / "tuab"))
    assert [item.name for item in recipe.find()] == ["aaaaaalr_s001_t000", "aaaaaalr_s001_t001"]
    assert recipe.about.endswith("3 of 4 subjects to exclude are here, 4 recordings left out")


@pytest.mark.parametrize(
    "text", ["aaaaaalr\naaaaaaab\n", "\ufeffsubject,age\naaaaaalr,30\n\naaaaaaab,40", '"aaaaaalr"\r\n"aaaaaaab"\r\n']
)
def test_tueg_excludes_a_list(trees, tmp_path, text):
    (tmp_path / "list.csv").write_bytes(text.encode())
    recipe = tueg(trees / "tueg", exclude=str(tmp_path / "list.csv"))
    assert {item.subject for item in recipe.find()} == {"aaaaaaaa", "aaaaamye"}


def test_tueg_must_be_told_whom_to_exclude(trees):
    with pytest.raises(ConfigError, match="whom to exclude must be said; give exclude as the folder of TUAB, a file"):
        tueg(trees / "tueg")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("00000258\n00000355\n", "none of the 2 subjects to exclude is in the folder; ids are letters since TUEG v2"),
        ("aaaaaaaa\nJane Doe\n", "line 2 of the file to exclude is no subject id"),
        ("aaaaaaa\naaaaaaab\n", "line 1 of the file to exclude is no subject id"),  # a slip, not a heading
        ("aaaaaaaa_s001_t000\n", "line 1 of the file to exclude is no subject id"),
        ("subject\n\n", "the file to exclude has no subject id"),
        ("", "the file to exclude has no subject id"),
        ("\xff", "neither a folder nor a file that can be read (UnicodeDecodeError)"),
    ],
)
def test_a_wrong_list_to_exclude(trees, tmp_path, text, words):
    (tmp_path / "list.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        tueg(trees / "tueg", exclude=str(tmp_path / "list.txt"))
    assert words in str(caught.value)
    assert "Jane" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_wrong_folder_to_exclude(trees, copy, tmp_path):
    with pytest.raises(InputError, match="do not lie in one of the folders train, eval"):
        tueg(trees / "tueg", exclude=str(trees / "tueg"))
    with pytest.raises(InputError, match=r"neither a folder nor a file that can be read \(FileNotFoundError\)"):
        tueg(trees / "tueg", exclude=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="none of the 2 subjects to exclude is in the folder"):
        tueg(trees / "tueg", exclude=str(write_old_tuab(tmp_path / "old")))
    half = copy("tuab")
    shutil.rmtree(half / "edf" / "eval")
    with pytest.raises(InputError, match="has no folder eval, whose subjects are the test set"):
        tueg(trees / "tueg", exclude=str(half))


# TUAB


def test_tuab_label_by_label(trees):
    recipe = tuab(trees / "tuab")
    assert labels_of(recipe) == {
        "aaaaaaaa_s001_t000": {"abnormal": (Interval(0.0, 12.0, "val", "normal"),)},  # the hash draws it
        "aaaaaaab_s002_t001": {"abnormal": (Interval(0.0, 11.0, "train", "normal"),)},
        "aaaaaaab_s004_t000": {"abnormal": (Interval(0.0, 10.0, "train", "abnormal"),)},
        "aaaaaaju_s001_t000": {"abnormal": (Interval(0.0, 12.0, "test", "normal"),)},  # eval, whatever the hash says
        "aaaaamye_s001_t000": {"abnormal": (Interval(0.0, 12.0, "test", "abnormal"),)},
    }
    assert recipe.tasks == {"abnormal": Task("classification", ("normal", "abnormal"), 5.0, 5.0)}
    assert [item.subject for item in recipe.find()] == ["aaaaaaaa", "aaaaaaab", "aaaaaaab", "aaaaaaju", "aaaaamye"]


def test_tuab_of_version_2(tmp_path):
    assert labels_of(tuab(write_old_tuab(tmp_path))) == {
        "00000355_s003_t000": {"abnormal": (Interval(0.0, 12.0, "test", "abnormal"),)},
        "00010194_s001_t001": {"abnormal": (Interval(0.0, 12.0, "train", "normal"),)},
    }


@pytest.mark.parametrize("name", ["tuab", "tusz", "tusl", "tueg"])  # TUEP has no such folder
def test_the_folder_edf_may_be_given_itself(trees, name):
    make = WRITERS[name][0] if name in WRITERS else lambda folder: tueg(folder, exclude="none")
    assert labels_of(make(trees / name / "edf")) == labels_of(make(trees / name))


# TUSZ


def test_tusz_label_by_label(trees):
    recipe = tusz(trees / "tusz")
    assert labels_of(recipe) == {
        "aaaaaaac_s001_t000": {
            "seizure": (
                Interval(0.0, 3.2, "train", "background"),
                Interval(3.2, 9.5, "train", "seizure"),
                Interval(9.5, 12.0, "train", "background"),
            ),
            "seizure_type": (Interval(3.2, 9.5, "train", "cpsz"),),  # from the first channel to the last
        },
        "aaaaaaac_s001_t001": {"seizure": (Interval(0.0, 12.0, "train", "background"),), "seizure_type": ()},
        "aaaaaaju_s003_t002": {
            "seizure": (  # nothing is said of the time from 10 s on: no background
                Interval(0.0, 2.0, "val", "background"),
                Interval(2.0, 8.0, "val", "seizure"),
                Interval(8.0, 10.0, "val", "background"),
            ),
            "seizure_type": (Interval(2.0, 6.0, "val", "fnsz"),),  # two types at once are none
        },
        "aaaaaqvx_s003_t000": {
            "seizure": (Interval(0.0, 5.0, "test", "seizure"), Interval(5.0, 12.0, "test", "background")),
            "seizure_type": (Interval(0.0, 5.0, "test", "tcsz"),),
        },
    }
    assert recipe.tasks == {
        "seizure": Task("classification", ("background", "seizure"), 5.0, 5.0),
        "seizure_type": Task("classification", TYPES, 5.0, 5.0),
    }


def test_tusz_of_version_1_5(tmp_path):
    def expected(split):
        return {
            "seizure": (
                Interval(0.0, 4.0, split, "background"),
                Interval(4.0, 9.0, split, "seizure"),
                Interval(9.0, 12.0, split, "background"),
            ),
            "seizure_type": (Interval(4.0, 9.0, split, "fnsz"),),
        }

    assert labels_of(tusz(write_old_tusz(tmp_path))) == {
        "00000258_s002_t000": expected("test"),
        "00002991_s001_t000": expected("train"),
    }


def test_one_name_in_two_montages(copy):
    """TUSZ before v2.0.2 had two such sessions; both are kept, and each can be told from the other."""
    folder = copy("tusz")
    path = recording(folder, "aaaaaqvx_s003_t000")
    other = path.parent.parent / "03_tcp_ar_a" / path.name
    write_edf(other)
    for suffix in (".csv", ".csv_bi"):
        shutil.copy(path.with_suffix(suffix), other.with_suffix(suffix))
    found = {item.name: len(item.open(tusz(folder).policy).match.channels) for item in tusz(folder).find()}
    assert found["aaaaaqvx_s003_t000-01_tcp_ar"] == 23
    assert found["aaaaaqvx_s003_t000-03_tcp_ar_a"] == 21
    assert "aaaaaqvx_s003_t000" not in found


# TUEP and TUSL


def test_tuep_label_by_label(trees):
    recipe = tuep(trees / "tuep")
    assert labels_of(recipe) == {
        "aaaaaaba_s001_t000": {"epilepsy": (Interval(0.0, 12.0, "test", "no_epilepsy"),)},
        "aaaaaaju_s001_t000": {"epilepsy": (Interval(0.0, 12.0, "val", "epilepsy"),)},
        "aaaaaanr_s001_t001": {"epilepsy": (Interval(0.0, 12.0, "train", "epilepsy"),)},
    }
    assert recipe.tasks == {"epilepsy": Task("classification", ("no_epilepsy", "epilepsy"), 5.0, 5.0)}


def test_tuep_of_version_1(tmp_path):
    recipe = tuep(write_old_tuep(tmp_path))
    assert labels_of(recipe) == {
        "00000258_s001_t000": {"epilepsy": (Interval(0.0, 12.0, "train", "no_epilepsy"),)},
        "00000355_s003_t000": {"epilepsy": (Interval(0.0, 12.0, "test", "epilepsy"),)},
    }
    assert [item.subject for item in recipe.find()] == ["00000258", "00000355"]  # not the folder "epilepsy"


def test_tusl_label_by_label(trees):
    recipe = tusl(trees / "tusl")
    assert labels_of(recipe) == {
        "aaaaaaju_s005_t000": {"slowing": (Interval(1.0, 11.0, "val", "slowing"),)},
        "aaaaaanr_s001_t000": {
            "slowing": (Interval(0.0, 5.0, "train", "background"), Interval(6.0, 12.0, "train", "seizure"))
        },
        "aaaaamoa_s003_t010": {"slowing": (Interval(2.0, 12.0, "train", "background"),)},  # its EDF has an old number
    }
    assert [item.subject for item in recipe.find()] == ["aaaaaaju", "aaaaaanr", "aaaaamoa"]
    assert recipe.tasks == {"slowing": Task("classification", ("background", "seizure", "slowing"), 5.0, 5.0)}


# Splits


def test_the_draw_of_a_subject():
    # By sha256sum their hashes begin with 1f3ce404, 4e9bbaf1 and eb2f9e89: 0.12, 0.31 and 0.92 of the way.
    drawn = {id: (draw_split(id, test=False), draw_split(id, test=True)) for id in ("aaaaaaaa", "aaaaaaab", "aaaaaaba")}
    assert drawn == {"aaaaaaaa": ("val", "val"), "aaaaaaab": ("train", "train"), "aaaaaaba": ("train", "test")}


def test_a_fifth_validates_and_a_fifth_tests():
    subjects = [f"{number:08d}" for number in range(5000)]
    with_test = [draw_split(subject, test=True) for subject in subjects]
    without = [draw_split(subject, test=False) for subject in subjects]
    assert set(without) == {"train", "val"}
    for split in ("val", "test"):
        assert 0.17 < with_test.count(split) / 5000 < 0.23  # five standard deviations
    assert [split == "val" for split in with_test] == [split == "val" for split in without]


# Into a store


@pytest.fixture(scope="module")
def stores(trees, tmp_path_factory):
    """All corpora, prepared."""
    top = tmp_path_factory.mktemp("stores")
    for name, (make, _) in WRITERS.items():
        prepare(make(trees / name), top / name)
    prepare(tueg(trees / "tueg", exclude=str(trees / "tuab")), top / "tueg")
    return top


WINDOWS = {  # recording, first second, label; 5 s side by side within an interval
    ("tuab", "abnormal"): [
        *[("aaaaaaaa_s001_t000", 0, "normal"), ("aaaaaaaa_s001_t000", 5, "normal")],
        *[("aaaaaaab_s002_t001", 0, "normal"), ("aaaaaaab_s002_t001", 5, "normal")],
        *[("aaaaaaab_s004_t000", 0, "abnormal"), ("aaaaaaab_s004_t000", 5, "abnormal")],
        *[("aaaaaaju_s001_t000", 0, "normal"), ("aaaaaaju_s001_t000", 5, "normal")],
        *[("aaaaamye_s001_t000", 0, "abnormal"), ("aaaaamye_s001_t000", 5, "abnormal")],
    ],
    ("tusz", "seizure"): [
        ("aaaaaaac_s001_t000", 3.2, "seizure"),
        *[("aaaaaaac_s001_t001", 0, "background"), ("aaaaaaac_s001_t001", 5, "background")],
        ("aaaaaaju_s003_t002", 2, "seizure"),
        *[("aaaaaqvx_s003_t000", 0, "seizure"), ("aaaaaqvx_s003_t000", 5, "background")],
    ],
    ("tusz", "seizure_type"): [("aaaaaaac_s001_t000", 3.2, "cpsz"), ("aaaaaqvx_s003_t000", 0, "tcsz")],
    ("tuep", "epilepsy"): [
        *[("aaaaaaba_s001_t000", 0, "no_epilepsy"), ("aaaaaaba_s001_t000", 5, "no_epilepsy")],
        *[("aaaaaaju_s001_t000", 0, "epilepsy"), ("aaaaaaju_s001_t000", 5, "epilepsy")],
        *[("aaaaaanr_s001_t001", 0, "epilepsy"), ("aaaaaanr_s001_t001", 5, "epilepsy")],
    ],
    ("tusl", "slowing"): [
        *[("aaaaaaju_s005_t000", 1, "slowing"), ("aaaaaaju_s005_t000", 6, "slowing")],
        *[("aaaaaanr_s001_t000", 0, "background"), ("aaaaaanr_s001_t000", 6, "seizure")],
        *[("aaaaamoa_s003_t010", 2, "background"), ("aaaaamoa_s003_t010", 7, "background")],
    ],
}


@pytest.mark.parametrize(("name", "task"), WINDOWS, ids="-".join)
def test_windows_of_a_store(stores, name, task):
    store = Store(stores / name)
    assert store.skipped() == {}
    windows = find_windows(store, seconds=5, task=task)
    labels = [windows.names[label] for label in windows.label]
    found = [(id, start, label) for (id, start), label in zip(windows.ids(range(len(windows))), labels, strict=True)]
    assert sorted(found) == sorted((id, round(second * 256), label) for id, second, label in WINDOWS[name, task])


@pytest.mark.parametrize("name", [*WRITERS, "tueg"])
def test_what_a_store_holds(stores, name):
    for record in Store(stores / name).recordings:
        assert (record.mains, record.sfreq, record.native_sfreq) == (60, 256, 250)
        if name != "tueg":
            assert set(record.channels) <= set(REFERENTIAL)
            assert len(record.channels) in (23, 21)
    splits = ("train", "val", "test")
    by_split = {s: find_windows(Store(stores / "tuep"), seconds=5, task="epilepsy", split=s) for s in splits}
    assert assert_disjoint(by_split) == "subject"


def test_an_overlap_between_the_corpora_is_seen(stores):
    assert not check_overlap(Store(stores / "tueg"), Store(stores / "tuab"))
    shared = check_overlap(Store(stores / "tusz"), Store(stores / "tuab"))
    assert shared.subjects == ("aaaaaaju",)


@pytest.mark.parametrize("name", [*WRITERS, "tueg"])
def test_no_date_nor_header_reaches_a_store(stores, name):
    data = b"".join(
        path.read_bytes() for path in (stores / name).rglob("*") if path.suffix != ".bin" and path.is_file()
    )
    assert b"_s00" in data  # it is the right place to look
    # Digests, the eight digits of a line's checksum too, change with the times of the files and may well hold "edf".
    # Digests and keys contain any short word sooner or later: remove them before searching for words.
    data, digests = re.subn(rb'"(crc|source|sha256)":"[0-9a-f.]+"', b"", data)
    assert digests == 3 * data.count(b'"recording":{')
    for word in (CANARY, "_20", "01-JAN", "tcp_", "edf"):
        assert word.encode() not in data, word


def test_recipes_travel_to_other_processes(trees, copy):
    broken = copy("tusl")
    recording(broken, "aaaaaaju_s005_t000").with_suffix(".tse_agg").unlink()
    makers = [*((make, trees / name) for name, (make, _) in WRITERS.items()), (tusl, broken)]
    for recipe in [tueg(trees / "tueg", exclude="none"), *(make(folder) for make, folder in makers)]:
        again = pickle.loads(pickle.dumps(recipe))
        assert [(i.name, i.subject, i.labels, i.size) for i in again.find()] == [
            (i.name, i.subject, i.labels, i.size) for i in recipe.find()
        ]
        pickle.dumps(list(recipe.find()))


# What is damaged is refused, alone

GOOD = [("TERM", 0, 12, "bckg")]


def lines(path, change):
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


DAMAGES = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "no rows": lambda path: write_csv(path, []),
    "an unknown label": lambda path: write_csv(path, [*GOOD, ("TERM", 1, 2, CANARY)]),
    "cut in a row": lambda path: path.write_text(path.read_text()[:-14]),
    "no version": lambda path: lines(path, lambda all: all[1:]),
    "another version": lambda path: path.write_text(path.read_text().replace("csv_v1.0.0", "csv_v2.0.0")),
    "other columns": lambda path: path.write_text(
        path.read_text().replace("start_time,stop_time", "stop_time,start_time")
    ),
    "no columns": lambda path: lines(path, lambda all: all[:5] + all[6:]),
    "no number": lambda path: path.write_text(path.read_text().replace("12.0000", CANARY)),
    "NaN": lambda path: path.write_text(path.read_text().replace("12.0000", "nan")),
    "without end": lambda path: path.write_text(path.read_text().replace("12.0000", "inf")),
    "backwards": lambda path: write_csv(path, [("TERM", 5, 4, "bckg")]),
    "before the start": lambda path: write_csv(path, [("TERM", -1, 4, "bckg")]),
    "not text": lambda path: path.write_bytes(path.read_bytes() + b"\xff\xfe"),
}


TASK_OF = {".csv_bi": "seizure", ".csv": "seizure_type"}


@pytest.mark.parametrize("suffix", TASK_OF)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_annotation_takes_away_its_own_task_alone(copy, damage, suffix):
    folder, id = copy("tusz"), "aaaaaaac_s001_t001"
    sound = labels_of(tusz(folder))
    DAMAGES[damage](recording(folder, id).with_suffix(suffix))
    recipe = tusz(folder)
    items = {item.name: item for item in recipe.find()}
    expected = {name: dict(tasks) for name, tasks in sound.items()}
    del expected[id][TASK_OF[suffix]]
    assert {name: dict(item.labels) for name, item in items.items()} == expected
    (fault,) = items[id].open(recipe.policy).faults
    assert fault.code == f"no_{TASK_OF[suffix]}_labels"
    assert "\n" not in fault.note
    assert CANARY not in fault.note
    assert str(folder) not in fault.note
    assert [name for name, item in items.items() if item.open(recipe.policy).faults] == [id]


@pytest.mark.parametrize("damage", ["gone", "cut in a row"])
def test_a_recording_without_any_sound_annotation_is_refused(copy, damage):
    folder = copy("tusz")
    for suffix in TASK_OF:
        DAMAGES[damage](recording(folder, "aaaaaaac_s001_t001").with_suffix(suffix))
    recipe = tusz(folder)
    items = {item.name: item for item in recipe.find()}
    with pytest.raises(RecordingError) as caught:
        items["aaaaaaac_s001_t001"].open(recipe.policy)
    assert caught.value.code == "annotation"
    assert [name for name, item in items.items() if not item.labels] == ["aaaaaaac_s001_t001"]


def test_the_official_test_set_does_not_depend_on_the_annotations_of_another_task(copy, stores, tmp_path):
    folder = copy("tusz")
    recording(folder, "aaaaaqvx_s003_t000").with_suffix(".csv").unlink()
    done = prepare(tusz(folder), tmp_path / "store")
    assert (done.recordings, done.skipped, done.faults) == (4, {}, {"no_seizure_type_labels": 1})
    tops = (stores / "tusz", tmp_path / "store")
    both = [find_windows(Store(top), seconds=5, task="seizure", split="test") for top in tops]
    assert both[0].ids(range(2)) == both[1].ids(range(2)) == [("aaaaaqvx_s003_t000", 0), ("aaaaaqvx_s003_t000", 1280)]
    assert both[0].label.tolist() == both[1].label.tolist() == [1, 0]
    again = prepare(tusz(folder), tmp_path / "store")  # nothing changed, nothing to do
    assert again.done_before == 4


def test_a_disk_that_fails_is_no_missing_annotation(copy, tmp_path, monkeypatch):
    """Stored without labels, the recording would lack them for ever; skipped as unreadable it is tried again."""
    folder, read = copy("tusz"), Path.read_text

    def fail(path, *args, **kwargs):
        if path.name == "aaaaaqvx_s003_t000.csv":
            raise OSError(5, "Input/output error")
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", fail)
    done = prepare(tusz(folder), tmp_path / "store")
    assert (done.recordings, done.skipped) == (3, {"aaaaaqvx_s003_t000": "unreadable"})
    monkeypatch.undo()
    done = prepare(tusz(folder), tmp_path / "store")
    assert (done.recordings, done.skipped, done.faults) == (4, {}, {})


def test_tusl_with_csv_alone(copy, trees):
    """Public readers of v2.0.1 find the same events by channel in a .csv; both kinds give the same labels."""
    folder = copy("tusl")
    for path in sorted(folder.rglob("*.tse_agg")):
        rows = [line.split() for line in path.read_text().splitlines()[2:]]
        write_csv(
            path.with_suffix(".csv"),
            [(pair, float(row[0]), float(row[1]), row[2]) for row in rows for pair in ("FP1-F7", "F7-T3")],
        )
        path.unlink()
    assert labels_of(tusl(folder)) == labels_of(tusl(trees / "tusl"))


@pytest.mark.parametrize(
    "text",
    [
        "0.0000 12.0000 bckg 1.0000\n",
        "version = tse_v2.0.0\n\n0.0000 12.0000 bckg 1.0000\n",
        "version = tse_v1.0.0\n\n0.0000 12.0000 bckg\n",
        "version = tse_v1.0.0\n\n0.0000 12.0000 fast 1.0000\n",
        "version = tse_v1.0.0\n\n",
    ],
)
def test_a_damaged_tse_refuses_its_recording(copy, text):
    folder = copy("tusl")
    recording(folder, "aaaaaaju_s005_t000").with_suffix(".tse_agg").write_text(text)
    with pytest.raises(RecordingError) as caught:
        next(iter(tusl(folder).find())).open(tusl(folder).policy)
    assert caught.value.code == "annotation"


def test_every_file_is_stored_or_skipped_with_its_reason(copy, tmp_path):
    folder = copy("tuab")
    top = folder / "edf" / "train" / "normal" / "01_tcp_ar"
    (top / "aaaaaaad_s001_t000.edf").write_bytes(b"not an EDF file")
    (top / f"{CANARY} 1978.edf").write_bytes((top / "aaaaaaaa_s001_t000.edf").read_bytes())
    (top / "._aaaaaaaa_s001_t000.edf").write_bytes(b"what a Mac leaves behind")
    cut = top / "aaaaaaab_s002_t001.edf"
    cut.write_bytes(cut.read_bytes()[:5000])
    done = prepare(tuab(folder), tmp_path / "store")
    assert done.recordings == 4
    unnamed = next(id for id in done.skipped if id.startswith("unnamed-"))
    assert is_id(unnamed)
    assert done.skipped == {"aaaaaaab_s002_t001": "header", "aaaaaaad_s001_t000": "format", unnamed: "name"}
    assert all(CANARY.encode() not in p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file())


def test_a_file_in_the_folder_of_another_subject(copy, tmp_path):
    folder = copy("tueg")
    path = recording(folder, "aaaaaaab_s001_t000")
    path.rename(path.with_name("aaaaaaac_s001_t000.edf"))
    done = prepare(tueg(folder, exclude="none"), tmp_path / "store")
    assert done.skipped == {"aaaaaaac_s001_t000": "name"}


@pytest.mark.parametrize(
    ("name", "folder", "words"),
    [
        ("tuab", "tusz", "1 of 4 recordings do not lie in one of the folders train, eval; give the folder"),
        ("tuab", "tuab/edf/train", "3 of 3 recordings do not lie in one of the folders train, eval; give the folder"),
        (
            "tusz",
            "tuab",
            "none of 5 recordings has an annotation (.csv_bi or .tse_bi or .csv or .tse) beside it; give the folder",
        ),
        ("tusz", "tueg", "6 of 6 recordings do not lie in one of the folders train, dev, eval, dev_test"),
        ("tuep", "tusl", "3 of 3 recordings do not lie in one of the folders 00_epilepsy, 01_no_epilepsy"),
        ("tusl", "tusz", "recordings lie in a folder dev, which TUSL does not have; give the folder that holds TUSL"),
        ("tusl", "tueg", "none of 6 recordings has an annotation (.tse_agg or .csv) beside it; give the folder"),
        ("tusl", "tuep/DOCS", "the folder, or one inside it, cannot be read (FileNotFoundError); give the folder"),
    ],
)
def test_a_wrong_folder_is_one_line(trees, name, folder, words):
    with pytest.raises(InputError) as caught:
        WRITERS[name][0](trees / folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(trees) not in str(caught.value)


def test_folders_that_contradict_each_other_are_refused(copy):
    path = recording(copy("tuab"), "aaaaamye_s001_t000")
    top = path.parents[3]
    (top / "train" / "eval" / "normal").mkdir(parents=True)
    path.rename(top / "train" / "eval" / "normal" / path.name)
    with pytest.raises(InputError, match="1 of 5 recordings do not lie in one of the folders train, eval"):
        tuab(top.parent)


@pytest.mark.parametrize("make", [tuab, tusz, tuep, tusl, lambda folder: tueg(folder, exclude="none")])
def test_an_empty_folder_is_one_line(make, tmp_path):
    for number in range(2):
        with pytest.raises(CerebroError, match=f"of {number} .edf files in the folder none has a name like aaaaaaaa_s"):
            make(tmp_path)
        (tmp_path / "other.edf").write_bytes(b"")


def test_names_and_their_subjects(tmp_path):
    for path in (
        "edf/000/aaaaaaaa/s001_2015/01_tcp_ar/aaaaaaaa_s001_t000.edf",
        "edf/01_tcp_ar/000/00000021/s004_2013_08_15/00000021_s004_t000.EDF",
        "edf/01_tcp_ar/027/00002729/s001_2006_04_12/00002729_s001.edf",
        "edf/eval/abnormal/s001_2015/aaaaamye_s001_t000.edf",  # eight letters above a session: it contradicts
        "edf/eval/abnormal/01_tcp_ar/aaaaamyf_s001_t000.edf",
        "edf/aaaaalmx/s002/01_tcp_ar/aaaaalmx_s002_t000_01.edf",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    assert [(file.id, file.subject) for file in find_files(tmp_path)] == [
        ("00000021_s004_t000", "00000021"),
        ("00002729_s001", "00002729"),
        ("aaaaaaaa_s001_t000", "aaaaaaaa"),
        ("aaaaalmx_s002_t000_01", "aaaaalmx"),
        ("aaaaamye_s001_t000", None),
        ("aaaaamyf_s001_t000", "aaaaamyf"),
    ]


def test_linked_folders_are_followed(trees, tmp_path):
    (tmp_path / "edf").mkdir()
    (tmp_path / "edf" / "train").symlink_to(trees / "tuab" / "edf" / "train")
    (tmp_path / "edf" / "eval").symlink_to(trees / "tuab" / "edf" / "eval")
    assert labels_of(tuab(tmp_path)) == labels_of(tuab(trees / "tuab"))


# Annotations


def test_the_rows_of_an_annotation(tmp_path):
    write_csv(
        tmp_path / "x.csv_bi", [("TERM", 0, 3.25, "bckg"), ("TERM", 3.25, 3.25, "seiz"), ("TERM", 3.25, 9, "seiz")]
    )
    write_tse(tmp_path / "x.tse_bi", [(0, 3.25, "bckg"), (3.25, 9, "SEIZ")])
    (tmp_path / "y.tse_bi").write_text("\ufeff# example\nversion=tse_v1.0.0\n# data starts here\n0.0 3.25\tbckg\t1.0\n")
    known = ("bckg", "seiz")
    both = [Stretch(0.0, 3.25, "bckg"), Stretch(3.25, 9.0, "seiz")]
    assert label_time(read_annotation(tmp_path / "x.csv_bi", known), lambda labels: min(labels)) == both
    assert read_annotation(tmp_path / "x.tse_bi", known) == both
    assert read_annotation(tmp_path / "y.tse_bi", known) == both[:1]


def test_overlapping_rows_are_a_seizure_while_one_says_so(copy):
    folder = copy("tusz")
    path = recording(folder, "aaaaaaac_s001_t001").with_suffix(".csv_bi")
    write_csv(path, [("TERM", 0, 8, "bckg"), ("TERM", 2, 4, "seiz"), ("TERM", 3, 5, "seiz")])
    assert labels_of(tusz(folder))["aaaaaaac_s001_t001"]["seizure"] == (
        Interval(0.0, 2.0, "train", "background"),
        Interval(2.0, 5.0, "train", "seizure"),
        Interval(5.0, 8.0, "train", "background"),
    )


def only(labels):
    return next(iter(labels)) if len(labels) == 1 else None


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from("abc")), max_size=12))
def test_label_time_against_every_moment(rows):
    rows = [Stretch(float(min(a, b)), float(max(a, b)), label) for a, b, label in rows]
    found = label_time(rows, only)
    for second in range(12):
        said = {row.label for row in rows if row.start <= second < row.stop}
        expected = [said.pop()] if len(said) == 1 else []
        assert [row.label for row in found if row.start <= second < row.stop] == expected
    for before, after in pairwise(found):
        assert before.stop < after.start or (before.stop == after.start and before.label != after.label)


def test_odd_labels_cost_channels_and_not_the_recording(tmp_path, monkeypatch):
    """T7 beside T3 with other samples, a label that is repeated, and a number that looks like one of Biosemi's."""
    odd = ["EEG T7-REF", "EEG O1-REF", "EEG A3-REF"]
    monkeypatch.setitem(tuh_files.MONTAGES, "01_tcp_ar", [*tuh_files.MONTAGES["01_tcp_ar"], *odd])
    tuh_files.write_edf(tmp_path / "edf/000/aaaaaaaa/s001_2015/01_tcp_ar/aaaaaaaa_s001_t000.edf")
    done = prepare(tueg(tmp_path, exclude="none"), tmp_path / "store")
    assert (done.recordings, done.skipped) == (1, {})
    record = Store(tmp_path / "store").recordings[0]
    assert record.faults == ("duplicate",)
    assert {"A1", "A2", "O2", "T8", "Cz"} <= set(record.channels)
    assert not {"T7", "O1"} & set(record.channels)
    assert len(record.channels) == len(CHANNELS) - 2 + 1  # Sp1 is an electrode, too


def test_the_channels_are_those_of_the_decision():
    assert len(CHANNELS) == len(set(CHANNELS)) == 23
    assert set(CHANNELS) == set("FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2".split())


def test_a_link_to_a_folder_above_does_not_lead_around(copy):
    top = copy("tuab")
    before = [file.id for file in find_files(top)]
    (top / "edf" / "again").symlink_to(top)
    assert [file.id for file in find_files(top)] == before
