"""``simulate`` as files: EDF+ that every reader reads alike, tables, truth, and the same bytes for the same seed."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.commands.simulate import simulate
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.reading.edf import late_faults, open_edf
from cerebro_eeg.data.reading.edf_writer import QUANTUM, write_edf
from cerebro_eeg.data.reading.recording import Event, Segment
from cerebro_eeg.data.simulation.corpus import split_of
from cerebro_eeg.data.simulation.head import MONTAGES
from cerebro_eeg.data.simulation.recording import simulate_recording
from cerebro_eeg.errors import ConfigError, InputError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "eeg"
    simulate(out, subjects=3, minutes=0.5, seed=3, montages=("10-20", "muse"), rates=(128, 200, 256))
    return out


def sums(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", MONTAGES)
def test_our_reader_reads_what_was_simulated(tmp_path, name):
    made = simulate_recording(1, 2, name, None, 20.0, "seizure")
    write_edf(tmp_path / "x.edf", made.signal_TC, made.montage.labels, made.sfreq, made.events)
    recording = open_edf(tmp_path / "x.edf")
    assert [channel.name for channel in recording.match.channels] == list(made.channels)
    assert recording.sfreq == made.sfreq
    assert recording.segments == (Segment(0, len(made.signal_TC), 0.0),)
    assert recording.events == made.events
    read = recording.read(0, recording.samples)
    assert np.abs(read - made.signal_TC).max() <= QUANTUM / 2 + 1e-3
    assert recording.faults == late_faults(recording) == ()


def test_edfio_and_pyedflib_agree(tmp_path):
    import edfio
    import pyedflib

    made = simulate_recording(1, 0, "epoc", 128, 20.0, "hands")
    write_edf(tmp_path / "x.edf", made.signal_TC, made.montage.labels, made.sfreq, made.events)
    opened = edfio.read_edf(tmp_path / "x.edf")
    for column, wave in enumerate(opened.signals):
        assert (wave.label, wave.sampling_frequency) == (made.channels[column], 128)
        assert (wave.physical_range, wave.digital_range) == ((-3276.7, 3276.7), (-32767, 32767))  # 0.1 exactly
        np.testing.assert_array_equal(wave.digital, np.rint(made.signal_TC[:, column] / QUANTUM))
        assert np.abs(wave.data - made.signal_TC[:, column]).max() <= QUANTUM / 2 + 1e-3
    assert [Event(note.onset, note.duration, note.text) for note in opened.annotations] == list(made.events)
    with pyedflib.EdfReader(str(tmp_path / "x.edf")) as second:
        onsets, lengths, texts = second.readAnnotations()
        assert list(texts) == [event.name for event in made.events]
        np.testing.assert_allclose(onsets, [event.onset for event in made.events], atol=1e-6)
        np.testing.assert_allclose(lengths, [event.duration for event in made.events], atol=1e-6)
        assert np.abs(second.readSignal(3) - made.signal_TC[:, 3]).max() <= QUANTUM / 2 + 1e-3


def test_the_writer_refuses_what_would_be_wrong(tmp_path):
    fine = np.zeros((256, 1), np.float32)
    for signal, labels, events, message in (
        (fine[:200], ["Cz"], (), "whole number of seconds"),
        (fine + 4000, ["Cz"], (), "beyond 3276.7"),
        (fine * np.nan, ["Cz"], (), "not a number"),
        (fine, ["a label too long for EDF"], (), "16 characters"),
        (fine, ["Cz"], (Event(2.0, 0.0, "late"),), "begins at 2 s"),
    ):
        with pytest.raises(InputError, match=message):
            write_edf(tmp_path / "x.edf", signal, labels, 128, events)
    assert os.listdir(tmp_path) == []


def test_the_folder_has_what_it_says(corpus):
    tasks = ("eyes", "gait", "hands", "seizure")
    files = {f"sub-0{subject}/sub-0{subject}_{task}.edf" for subject in (1, 2, 3) for task in tasks}
    assert set(sums(corpus)) == files | {f"labels/{task}.csv" for task in tasks} | {"truth.json"}
    truth = json.loads((corpus / "truth.json").read_text())
    assert [entry["sfreq"] for entry in truth["recordings"]] == [128] * 4 + [200] * 4 + [256] * 4
    assert [len(entry["channels"]) for entry in truth["recordings"]] == [19] * 4 + [4] * 4 + [19] * 4
    assert {name: entry["split"] for name, entry in truth["subjects"].items()} == {
        "sub-01": "train",
        "sub-02": "val",
        "sub-03": "test",
    }
    made = simulate_recording(3, 1, "muse", 200, 30.0, "eyes")
    assert truth["subjects"]["sub-02"]["alpha_hz"] == made.subject.alpha_hz
    assert [entry["name"] for entry in truth["recordings"][4]["sources"]] == [source.name for source in made.sources]
    read = open_edf(corpus / "sub-02" / "sub-02_eyes.edf").read(0, 6000)
    assert np.abs(read - made.signal_TC).max() <= QUANTUM / 2 + 1e-3


def test_tables_say_what_the_annotations_say(corpus):
    for task in ("eyes", "hands", "seizure"):
        table = rows(corpus / "labels" / f"{task}.csv")
        assert list(table[0]) == ["file", "subject", "split", "start", "stop", "label"]
        labels = {row["label"] for row in table}
        for subject in ("sub-01", "sub-02", "sub-03"):
            events = open_edf(corpus / subject / f"{subject}_{task}.edf").events
            told = [(float(r["start"]), float(r["stop"]), r["label"]) for r in table if r["subject"] == subject]
            assert told == [(e.onset, e.onset + e.duration, e.name) for e in events if e.name in labels]
    assert labels == {"background", "seizure"}
    table = rows(corpus / "labels" / "gait.csv")
    assert len(table) == 3 * 300
    made = simulate_recording(3, 0, "10-20", 128, 30.0, "gait")
    assert made.targets_TK is not None
    assert float(table[7]["start"]) == 0.7
    assert float(table[7]["target_knee_left"]) == pytest.approx(made.targets_TK[96, 1], abs=1e-3)  # at 0.75 s


@pytest.mark.parametrize("task", ["eyes", "gait"])
def test_the_recipe_folder_takes_it(corpus, task):
    recipe = folder(corpus, labels=corpus / "labels" / f"{task}.csv")
    labelled = [item for item in recipe.find() if item.labels.get(task)]
    assert len(labelled) == 3
    assert {interval.split for item in labelled for interval in item.labels[task]} == {"train", "val", "test"}
    if task == "eyes":
        assert recipe.tasks[task].names == ("eyes_closed", "eyes_open")
    else:
        assert len(recipe.tasks[task].names) == 6


def test_same_seed_same_bytes_whatever_else_is_simulated(corpus, tmp_path):
    simulate(
        tmp_path / "one", subjects=1, minutes=0.5, seed=3, montages=("10-20",), rates=(128,), tasks=("gait", "eyes")
    )
    again = sums(tmp_path / "one")
    for task in ("eyes", "gait"):
        name = f"sub-01/sub-01_{task}.edf"
        assert again[name] == sums(corpus)[name]
    simulate(tmp_path / "other", subjects=1, minutes=0.5, seed=4, montages=("10-20",), rates=(128,), tasks=("eyes",))
    assert sums(tmp_path / "other")["sub-01/sub-01_eyes.edf"] != again["sub-01/sub-01_eyes.edf"]


def test_another_process_with_other_threads_writes_the_same_bytes(tmp_path):
    code = "import sys, pathlib; from cerebro_eeg.commands.simulate import simulate; "
    code += "simulate(pathlib.Path(sys.argv[1]), subjects=1, minutes=0.2, montages=('64',), tasks=('seizure',))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], env=environment, check=True)
    simulate(tmp_path / "b", subjects=1, minutes=0.2, montages=("64",), tasks=("seizure",))
    assert sums(tmp_path / "a") == sums(tmp_path / "b")


def test_splits_are_by_subject():
    assert [split_of(i, 1) for i in range(1)] == ["train"]
    assert [split_of(i, 2) for i in range(2)] == ["train", "test"]
    assert [split_of(i, 4) for i in range(4)] == ["train", "train", "val", "test"]
    assert [split_of(i, 10) for i in range(10)] == ["train"] * 6 + ["val"] * 2 + ["test"] * 2


def test_the_result_as_text_and_as_data(tmp_path):
    done = simulate(tmp_path / "x", subjects=2, minutes=0.1, montages=("muse",), tasks=("gait",), mains=60)
    assert done.text().splitlines()[0] == "simulated 2 recordings of 2 subjects, 6 s each, seed 0"
    assert done.to_dict()["rates"] == {"256": 2}
    assert done.to_dict()["splits"] == {"test": 1, "train": 1}
    assert str(tmp_path) not in done.text()
    assert json.loads((tmp_path / "x" / "truth.json").read_text())["mains_hz"] == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subjects": 0}, "subjects is 0"),
        ({"minutes": 0.0}, "0 s was asked for"),
        ({"minutes": float("nan")}, "0 s was asked for"),
        ({"minutes": 61.0}, "3660 s"),
        ({"montages": ()}, "montages is empty"),
        ({"montages": ("muse", "muse")}, "twice"),
        ({"montages": ("10-21",)}, "did you mean '10-20'"),
        ({"rates": (256, 10)}, "10 Hz"),
        ({"seed": -1}, "seed is -1"),
        ({"tasks": ("sleep",)}, "no task 'sleep'"),
        ({"tasks": ("eyes", "sleep")}, "no task 'sleep'"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        simulate(tmp_path / "x", **change)
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(ConfigError, match="nothing is overwritten"):
            simulate(out, subjects=1, minutes=0.1)
    assert os.listdir(tmp_path) == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    simulate(tmp_path / "empty", subjects=1, minutes=0.1, montages=("muse",), tasks=("eyes",))
