"""predict: recordings without a store give what a store would; decisions, tables, annotations, pictures, privacy."""

import csv
import dataclasses
import json
import tracemalloc

import edfio
import mne
import numpy as np
import pyedflib
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.commands.predict import predict
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.datasets import make_recipe
from cerebro_eeg.data.filtering import filters, quality
from cerebro_eeg.data.reading.edf_writer import write_edf
from cerebro_eeg.data.storing.job import PrepareChoices
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import CheckpointError, ConfigError, RecordingError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.report.recording import Envelope
from cerebro_eeg.runs import predict as runs_predict
from cerebro_eeg.runs.decisions import Prediction, Span, find_spans, write_edf_annotations
from cerebro_eeg.runs.predict import cut_windows, find_inputs
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.signals import open_signal
from cerebro_eeg.runs.store_predictions import predict_windows
from cerebro_eeg.runs.windows import electrode_ids
from cerebro_eeg.train.distributed import ProcessGroup
from predict_files import ELECTRODES, edf, edf_with_gaps, make_model, noise, with_threshold


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def made(
    kind="classification", names=("rest", "seizure"), threshold=0.5, output=None, start=None, stretch=None, seconds=2.0
):
    """A prediction by hand."""
    output = np.array(output, np.float32)
    count = len(output)
    return Prediction(
        kind=kind,
        names=names,
        threshold=threshold,
        output=output,
        start=np.arange(count) * seconds if start is None else np.array(start, float),
        seconds=seconds,
        stretch=np.zeros(count, np.int64) if stretch is None else np.array(stretch),
        short=np.zeros(count, np.bool_),
        end=100.0,
        channels=("Cz",),
        faults=(),
        plan="",
    )


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# As a store would have it

SIGNAL = cerebro_eeg.SignalConfig()
CASES = [
    (None, {}),
    (0.7, {"normalization": "recording", "amplitude": True}),
    (3.1, {"signal": dataclasses.replace(SIGNAL, reference="average", sfreq=200.0, highpass=0.5)}),
    (1.3, {"signal": dataclasses.replace(SIGNAL, filter_phase="causal", reference="linked_ears")}),
]


def corpus(folder):
    """Another rate each, gaps, channels that no window trained, and values that half precision cannot hold."""
    labels = ("Fp1", "Cz", "O2", "A1", "A2")
    edf(folder / "a.edf", labels, 31, 250, 1)
    edf(folder / "b" / "c.edf", (*labels, "P4", "T7"), 24, 500, 2)
    edf_with_gaps(folder / "gaps.edf", [*range(7), *range(9, 12), *range(20, 21), *range(30, 41)], labels)
    data = noise(20, 5, 256, 4)
    data[2, 256 * 9 : 256 * 9 + 40] += 150_000.0
    edf(folder / "huge.edf", labels, rate=256, data=data)


@pytest.mark.parametrize(("stride", "config"), CASES)
def test_windows_and_outputs_are_those_of_a_store(tmp_path, stride, config):
    corpus(tmp_path / "files")
    model = Cerebro.from_pretrained(make_model(tmp_path / "model", trained=("Fp1", "Cz", "O2", "A1", "A2"), **config))
    rate = model.config.signal.sfreq
    recipe = dataclasses.replace(make_recipe("folder", tmp_path / "files", {}), signal=model.config.signal)
    prepare(recipe, tmp_path / "store", PrepareChoices(), workers=0)
    store = Store(tmp_path / "store")
    windows = find_windows(store, seconds=512 / rate, stride=stride)
    ids = electrode_ids(model.training_record.electrode_windows, "drop")
    output = predict_windows(model, store, windows, ProcessGroup(), electrodes=ids)
    expected = torch.softmax(torch.from_numpy(output), 1).numpy()
    found = find_inputs([tmp_path / "files"], None)
    handling, line = runs_predict.with_common_mains(Handling(untrained="drop"), found, model.config)
    assert line is not None
    assert line.startswith("mains 50 Hz: ")
    reader = runs_predict.make_reader(model, stride=stride, handling=handling)
    assert reader.samples == windows.samples
    assert sorted(one.id for one in found) == sorted(windows.facts.ids)  # the ids of prepare, by the same key
    for one in found:
        number = windows.facts.ids.index(one.id)
        mine = windows.recording == number
        assert mine.sum() >= 2
        signal = open_signal(one.path, model.config, reader.electrodes, reader.handling)
        cut = next(cut_windows(signal, reader.samples, reader.stride, 10_000))
        stored = [store.read(number, s, s + windows.samples)[:, list(signal.columns)] for s in windows.start[mine]]
        assert np.array_equal(cut.signal_BTC, np.stack(stored))  # bit by bit
        said = runs_predict.predict_recording(reader, one.path)
        segments = store.recordings[number].segments
        starts = [(s, next(g for g in segments if g.start <= s < g.stop)) for s in windows.start[mine].tolist()]
        np.testing.assert_allclose(said.start, [g.onset + (s - g.start) / rate for s, g in starts], atol=1e-9)
        np.testing.assert_allclose(said.output, expected[mine], atol=2e-6)
        assert np.array_equal(said.short, windows.short[mine])
        if signal.scale is not None:
            assert signal.scale == store.recordings[number].scale
    assert expected.std() > 0.001  # or it would prove nothing


def test_small_batches_change_nothing(tmp_path, monkeypatch):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model"))
    file = edf_with_gaps(tmp_path / "a.edf", [*range(15), *range(20, 29)])
    whole = runs_predict.predict(file, model, stride=0.5)
    monkeypatch.setattr(runs_predict, "BATCH", 3)
    pieces = runs_predict.predict(file, model, stride=0.5)
    assert np.array_equal(whole.start, pieces.start)
    np.testing.assert_allclose(whole.output, pieces.output, atol=1e-6)


def test_an_object_of_mne_gives_what_its_file_gives(tmp_path):
    model = make_model(tmp_path / "model")
    file = edf(tmp_path / "a.edf", ("EEG Fp1-REF", "EEG Cz-REF", "EEG O2-REF"))
    raw = mne.io.read_raw_edf(file, verbose="error")
    one, other = cerebro_eeg.predict(file, model), cerebro_eeg.predict(raw, model)
    assert one.channels == other.channels == ("Fp1", "Cz", "O2")
    np.testing.assert_allclose(one.output, other.output, atol=1e-4)


def test_a_model_in_training_mode_is_left_so_and_dropout_is_off(tmp_path):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model"))
    file = edf(tmp_path / "a.edf")
    before = runs_predict.predict(file, model).output
    model.encoder.set_drop_path(0.9)
    model.train()
    assert np.array_equal(runs_predict.predict(file, model).output, before)
    assert model.training


# Gaps, lengths, rates


def test_no_window_spans_a_gap(tmp_path):
    model = make_model(tmp_path / "model")
    file = edf_with_gaps(tmp_path / "a.edf", [0, 1, 2, 3, 4, 10, 20, 21, 22])
    said = cerebro_eeg.predict(file, model)
    assert said.start.tolist() == [0.0, 2.0, 20.0]  # the second at 10 s is too short for a window
    assert said.stretch.tolist() == [0, 0, 2]
    assert said.end == 23.0


def test_a_recording_shorter_than_a_window_says_so(tmp_path):
    model = make_model(tmp_path / "model")
    file = edf_with_gaps(tmp_path / "a.edf", [0, 5, 9])
    with pytest.raises(
        RecordingError, match=r"longest stretch without a gap is 1 s, and a window of this model is 2 s"
    ) as e:
        cerebro_eeg.predict(file, model)
    assert e.value.code == "too_short"


def test_recordings_of_other_rates_are_brought_to_the_models(tmp_path):
    model = make_model(tmp_path / "model")
    outputs = []
    for rate in (200, 256, 500):
        time = np.arange(30 * rate) / rate
        data = np.stack([30 * np.sin(2 * np.pi * f * time + f) for f in (6, 9, 11)])
        outputs.append(cerebro_eeg.predict(edf(tmp_path / f"{rate}.edf", rate=rate, data=data), model))
    assert all(said.start.tolist() == [2.0 * k for k in range(15)] for said in outputs)
    inner = [said.output[2:-2] for said in outputs]
    np.testing.assert_allclose(inner[0], inner[1], atol=2e-3)
    np.testing.assert_allclose(inner[2], inner[1], atol=2e-3)


def test_channels_of_different_rates_in_one_file_are_refused(tmp_path):
    signals = [
        edfio.EdfSignal(noise(20, 1, rate)[0], rate, label=label, physical_dimension="uV")
        for rate, label in ((256, "Fp1"), (128, "Cz"))
    ]
    edfio.Edf(signals).write(tmp_path / "a.edf")
    result = predict(str(make_model(tmp_path / "model")), (tmp_path / "a.edf",), out=tmp_path / "out")
    assert result.exit_code == 6
    assert [failure.code for failure in result.failures] == ["mixed_rates"]


# Decisions


@pytest.mark.parametrize(
    ("threshold", "answer"), [(0.25, "seizure"), (0.2500001, "rest"), (0.9, "rest"), (0.0, "seizure"), (None, "rest")]
)
def test_two_classes_are_decided_by_the_threshold(threshold, answer):
    said = made(threshold=threshold, output=[[0.5, 0.5], [1, 0]])
    assert said.decision.answer == answer
    assert said.decision.mean == {"rest": 0.75, "seizure": 0.25}


def test_more_classes_are_decided_by_the_most_probable_mean():
    said = made(names=("a", "b", "c"), threshold=None, output=[[0.6, 0.3, 0.1], [0.0, 0.4, 0.6], [0.3, 0.4, 0.3]])
    assert said.decision.answer == "b"
    assert said.classes.tolist() == [0, 2, 1]


def test_a_regression_has_mean_and_spread():
    said = made("regression", ("x", "y"), None, output=[[1, 10], [3, 10]])
    assert said.decision.answer is None
    assert said.decision.mean == {"x": 2.0, "y": 10.0}
    assert said.decision.spread == {"x": 1.0, "y": 0.0}


def test_the_threshold_of_the_checkpoint_decides(tmp_path):
    model = make_model(tmp_path / "model", bias=(0.0, -1.0))  # 1 / (1 + e) = .269 of every window
    file = edf(tmp_path / "a.edf")
    for threshold, answer in ((0.26, "seizure"), (0.28, "rest")):
        result = predict(str(with_threshold(model, threshold)), (file,), out=tmp_path / "out")
        assert result.recordings[0]["decision"] == answer
        assert result.recordings[0]["mean"]["seizure"] == pytest.approx(1 / (1 + np.e), abs=1e-6)
        rule = f"seizure from a mean probability of {threshold:.3f} on, else rest; positive: seizure"
        assert rule in result.text()
        assert f"{answer} (mean probability of seizure 0.269," in result.text()  # of what the rule is about
        assert not any("0.5 decides" in note for note in result.about["notes"])
    result = predict(str(with_threshold(model, None)), (file,), out=tmp_path / "out")
    assert result.recordings[0]["decision"] == "rest"
    assert "no threshold chosen on validation, so 0.5 decides" in result.text()


@pytest.mark.parametrize(
    ("level", "annotations", "words"),
    [
        ("recording", (), None),  # decided as it was chosen
        ("recording", ("bids",), "was chosen over recordings; annotations call single windows by it"),
        ("window", (), "was chosen over single windows and decides here on means over a recording's windows"),
        ("unknown", (), "does not say whether it was chosen over recordings (unknown level)"),
    ],
)
def test_a_threshold_chosen_over_something_else_is_told(tmp_path, level, annotations, words):
    model = with_threshold(make_model(tmp_path / "model", bias=(0.0, -1.0)), 0.26, level)
    result = predict(str(model), (edf(tmp_path / "a.edf"),), out=tmp_path / "out", annotations=annotations)
    told = [note for note in result.about["notes"] if "threshold" in note]
    assert len(told) == (words is not None)
    assert words is None or words in told[0]
    kept = json.loads((tmp_path / "out" / "decisions.json").read_text())
    assert (kept["positive"], kept["threshold_level"]) == ("seizure", level)


def test_a_centred_head_says_that_the_mean_over_a_recording_tells_little(tmp_path):
    folder, file = make_model(tmp_path / "model", bias=(0.0, -1.0)), edf(tmp_path / "a.edf")
    told = {}
    for centred in (False, True):
        model = Cerebro.from_pretrained(folder)
        torch.nn.init.normal_(model.final_layer.weight)
        model.head = dataclasses.replace(model.head, centred=centred)
        model.save_pretrained(folder)
        result = predict(str(folder), (file,), out=tmp_path / f"out-{centred}")
        told[centred] = [note for note in result.about["notes"] if "centred within each recording" in note]
        values = [float(row["probability seizure"]) for row in rows_of(tmp_path / f"out-{centred}" / "predictions.csv")]
        logits = np.log(np.array(values) / (1 - np.array(values)))
        assert len(values) > 1
        assert (abs(logits.mean() + 1) < 1e-3) == centred  # the mean output is the bias, whatever the recording
    assert not told[False]
    assert len(told[True]) == 1


def test_a_regression_is_told_in_its_unit(tmp_path):
    model = make_model(
        tmp_path / "model", names=("angle", "speed"), task="regression", threshold=None, bias=(12.5, -3.0)
    )
    result = predict(str(model), (edf(tmp_path / "a.edf"),), out=tmp_path / "out", plot=True)
    assert "angle 12.5 ± 0, speed -3 ± 0 (10 windows)" in result.text()
    (row,) = rows_of(tmp_path / "out" / "decisions.csv")
    assert (row["decision"], float(row["mean value angle"]), float(row["std value speed"])) == ("", 12.5, 0.0)
    with pytest.raises(ConfigError, match="--annotations needs classes"):
        predict(str(model), (tmp_path / "a.edf",), out=tmp_path / "out", annotations=("bids",))


# Spans and annotations


def test_consecutive_windows_of_a_class_are_one_span():
    said = made(
        output=[[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.9, 0.1], [0.7, 0.3]],
        start=[0, 2, 4, 6, 20],
        stretch=[0, 0, 0, 0, 1],
    )
    found = find_spans(said)
    assert [(s.onset, s.duration, s.name) for s in found] == [
        (0, 4, "rest"),
        (4, 2, "seizure"),
        (6, 2, "rest"),
        (20, 2, "rest"),
    ]
    assert found[0].probability == pytest.approx(0.85)


def test_overlapping_windows_speak_until_the_next_begins():
    said = made(output=[[0.9, 0.1], [0.1, 0.9], [0.1, 0.9], [0.9, 0.1]], start=[0, 0.5, 1, 1.5], stretch=[0] * 4)
    assert [(s.onset, s.duration, s.name) for s in find_spans(said)] == [
        (0, 0.5, "rest"),
        (0.5, 1.0, "seizure"),
        (1.5, 2.0, "rest"),
    ]


def test_windows_apart_are_not_joined():
    said = made(output=[[0.9, 0.1], [0.9, 0.1]], start=[0, 5])
    assert [(s.onset, s.duration) for s in find_spans(said)] == [(0, 2), (5, 2)]


def test_spans_of_any_prediction_cover_its_windows_once():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count, seconds, stride = rng.integers(1, 30), 2.0, rng.choice([0.25, 1.0, 2.0, 3.5])
        stretch = np.sort(rng.integers(0, 3, count))
        start = np.arange(count) * stride + stretch * 1000.0
        p = rng.random(count)
        said = made(output=np.stack([1 - p, p], 1), start=start, stretch=stretch, seconds=seconds)
        spans = find_spans(said)
        ends = np.array([s.onset + s.duration for s in spans])
        assert (ends[:-1] <= np.array([s.onset for s in spans])[1:] + 1e-9).all()
        times = np.arange(0, 3200, 0.125) + 0.01
        covered = sum(((times >= s.onset) & (times < s.onset + s.duration)).astype(int) for s in spans)
        wanted = ((times[:, None] >= start) & (times[:, None] < start + seconds)).any(1)
        assert np.array_equal(covered, wanted.astype(int))


def test_edf_annotations_are_read_by_three_other_readers(tmp_path):
    spans = [
        Span(1.5 * k, 1.25, "épilepsie" if k % 2 else "rest", 0.5) for k in range(4000)
    ]  # more than one record should hold
    write_edf_annotations(tmp_path / "a.edf", spans)
    wanted = [(s.onset, s.duration, s.name) for s in spans]
    assert [(a.onset, a.duration, a.text) for a in edfio.read_edf(tmp_path / "a.edf").annotations] == wanted
    read = mne.read_annotations(tmp_path / "a.edf")
    assert list(zip(read.onset, read.duration, read.description, strict=True)) == wanted
    with pyedflib.EdfReader(str(tmp_path / "a.edf")) as file:
        assert np.array_equal(file.readAnnotations()[0], [onset for onset, _, _ in wanted])


def test_annotations_say_what_the_table_says(tmp_path):
    model = make_model(tmp_path / "model", threshold=0.5)
    said = cerebro_eeg.predict(edf(tmp_path / "a.edf", seconds=60), model, stride=1.0)
    model = with_threshold(model, float(np.median(said.output[:, 1])))  # so that both classes occur
    result = predict(str(model), (tmp_path / "a.edf",), out=tmp_path / "out", stride=1.0, annotations=("edf", "bids"))
    id = result.recordings[0]["recording"]
    events = [line.split("\t") for line in (tmp_path / "out" / f"{id}_events.tsv").read_text().splitlines()]
    assert events[0] == ["onset", "duration", "trial_type", "probability"]
    assert set(json.loads((tmp_path / "out" / f"{id}_events.json").read_text())) == set(events[0])
    spans = find_spans(cerebro_eeg.predict(tmp_path / "a.edf", model, stride=1.0))
    assert {s.name for s in spans} == {"rest", "seizure"}
    assert [(float(a), float(b), c) for a, b, c, _ in events[1:]] == [(s.onset, s.duration, s.name) for s in spans]
    annotations = edfio.read_edf(tmp_path / "out" / f"{id}_annotations.edf").annotations
    assert [(a.onset, a.duration, a.text) for a in annotations] == [(s.onset, s.duration, s.name) for s in spans]


# Files and failures


def test_tables_hold_what_was_predicted_and_bad_files_stop_nobody(tmp_path):
    files = tmp_path / "files"
    for name in ("a", "c"):
        edf(files / f"{name}.edf", seed=ord(name))
    (files / "b.edf").write_bytes(b"this is no EEG")
    edf(files / "d.edf", ("Fp1", "QQ7"))
    edf(files / "e.edf", ("Fp1", "P4"))
    model = make_model(tmp_path / "model")
    asked = (files, tmp_path / "gone.edf", files / "a.edf")
    result = predict(str(model), asked, out=files / "out")
    assert result.exit_code == 6
    assert [(f.input.number, f.code) for f in result.failures] == [
        (2, "format"),
        (4, "channels"),
        (5, "channels"),
        (6, "unreadable"),
    ]
    decisions = rows_of(files / "out" / "decisions.csv")
    assert [row["code"] for row in decisions] == ["", "format", "", "channels", "channels", "unreadable"]
    assert decisions[1]["problem"] == result.failures[0].reason
    table = rows_of(files / "out" / "predictions.csv")
    assert list(table[0]) == ["recording", "start", "stop", "probability rest", "probability seizure"]
    for name, row in (("a", decisions[0]), ("c", decisions[2])):
        said = cerebro_eeg.predict(files / f"{name}.edf", model)
        mine = [r for r in table if r["recording"] == row["recording"]]
        read = np.array([[r["probability rest"], r["probability seizure"]] for r in mine], np.float32)
        assert np.array_equal(read, said.output)  # written so that nothing is lost
        assert [float(r["start"]) for r in mine] == said.start.tolist()
        assert [float(r["stop"]) for r in mine] == said.stop.tolist()
        assert float(row["mean probability seizure"]) == said.decision.mean["seizure"]
    again = predict(str(model), asked, out=files / "out", annotations=("edf",))
    assert predict(str(model), asked, out=files / "out").recordings == again.recordings  # its own files are no input
    assert json.loads((files / "out" / "decisions.json").read_text())["recordings"] == list(again.recordings)
    assert not list((files / "out").glob(".*"))


def test_policies_let_recordings_in(tmp_path):
    model = str(make_model(tmp_path / "model"))
    file = edf(tmp_path / "a.edf", ("Fp1", "QQ7", "P4"))
    result = predict(model, (file,), out=tmp_path / "out", handling=Handling("drop", "drop"))
    assert result.recordings[0]["channels"] == ["Fp1"]
    result = predict(model, (file,), out=tmp_path / "out", handling=Handling("drop", "as_is"))
    assert result.recordings[0]["channels"] == ["Fp1", "P4"]
    only = edf(tmp_path / "b.edf", ("P4", "T7"))
    result = predict(model, (only,), out=tmp_path / "out", handling=Handling(untrained="drop"))
    assert [failure.code for failure in result.failures] == ["channels"]


def test_bad_channels_are_told_and_dropped_on_request(tmp_path):
    model = str(make_model(tmp_path / "model"))
    data = noise(30, 3, 256)
    data[1] = 0
    file = edf(tmp_path / "a.edf", rate=256, data=data, labels=("Fp1", "Cz", "O2"))
    kept = predict(model, (file,), out=tmp_path / "out")
    assert kept.recordings[0]["faults"] == ["flat:1"]
    assert any("1 recording with faults" in note for note in kept.about["notes"])
    dropped = predict(model, (file,), out=tmp_path / "out", handling=Handling(quality="drop"))
    assert dropped.recordings[0]["channels"] == ["Fp1", "O2"]


def test_nothing_names_a_file_unless_asked_to(tmp_path, capsys):
    model, word = str(make_model(tmp_path / "model")), "Zqanary"
    edf(tmp_path / "in" / f"{word}1.edf", patient=edfio.Patient(name=word))
    (tmp_path / "in" / f"{word}2.edf").write_bytes(b"bad")
    (tmp_path / "in" / f"{word}3.xyz").write_bytes(b"no EEG")
    asked = (tmp_path / "in", tmp_path / "in" / f"{word}3.xyz")
    more = {"plot": True, "explain": True, "annotations": ("edf", "bids"), "map": tmp_path / "map"}
    result = predict(model, asked, out=tmp_path / "out", **more)
    told = [result.text(), json.dumps(result.to_dict()), *capsys.readouterr()]
    told += [path.name for path in (tmp_path / "out").iterdir()]
    told += [path.read_bytes().decode("latin-1") for path in (tmp_path / "out").iterdir()]
    assert not [text for text in told if word in text]
    mapped = json.loads((tmp_path / "map").read_text())["recordings"]
    assert mapped[result.recordings[0]["recording"]] == f"{word}1.edf"
    shown = predict(model, asked, out=tmp_path / "out", show_paths=True)
    assert f"{word}1.edf" in shown.text()
    assert rows_of(tmp_path / "out" / "decisions.csv")[1]["path"] == f"{word}2.edf"
    assert rows_of(tmp_path / "out" / "predictions.csv")[0]["path"] == f"{word}1.edf"


def test_a_reader_that_breaks_is_a_bad_file_but_a_model_that_breaks_is_a_bug(tmp_path, monkeypatch):
    model = str(make_model(tmp_path / "model"))
    file = edf(tmp_path / "a.edf")
    with monkeypatch.context() as patch:
        patch.setattr("cerebro_eeg.data.preprocess.filter_recording", lambda *_: broken())
        result = predict(model, (file,), out=tmp_path / "out")
    assert [failure.code for failure in result.failures] == ["reader_zerodivisionerror"]
    with monkeypatch.context() as patch:
        patch.setattr(Cerebro, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            predict(model, (file,), out=tmp_path / "out")


def broken():
    yield 1 / 0


# Explanations


def test_explanations_are_those_of_the_function_and_bad_files_stop_nobody(tmp_path):
    model = str(make_model(tmp_path / "model"))
    files = tuple(edf(tmp_path / f"{name}.edf", seed=ord(name)) for name in "ab")
    (tmp_path / "c.edf").write_bytes(b"bad")
    result = predict(model, (*files, tmp_path / "c.edf"), out=tmp_path / "out", explain=True)
    assert result.exit_code == 6
    both = cerebro_eeg.explain(files, model)
    assert f"  depends on  {both.text()} (" in result.text()
    assert result.about["depends_on"] == {"band": both.band_mean, "channel": both.channel_mean}
    table = rows_of(tmp_path / "out" / "explanations.csv")
    assert len(table) == 2 * (3 + 5)
    for file, row in zip(files, result.recordings[:2], strict=True):
        alone = cerebro_eeg.explain(file, model)
        mine = {r["name"]: r for r in table if r["recording"] == row["recording"]}
        assert (mine["Cz"]["kind"], mine["alpha"]["kind"], mine["Cz"]["windows"]) == ("channel", "band", "10")
        assert float(mine["Cz"]["change"]) == pytest.approx(alone.channel_mean["Cz"], rel=1e-4, abs=1e-7)
        assert float(mine["alpha"]["std"]) == pytest.approx(alone.band_spread["alpha"], rel=1e-4, abs=1e-7)
    pictures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert pictures == {"explanation.png", *(f"{row['recording']}_explanation.png" for row in result.recordings[:2])}
    sums = (tmp_path / "out" / "SHA256SUMS").read_text()
    assert all(name in sums for name in (*pictures, "explanations.csv"))
    shown = predict(model, files[:1], out=tmp_path / "out", explain=True, show_paths=True)
    assert shown.exit_code == 0
    assert rows_of(tmp_path / "out" / "explanations.csv")[0]["path"].endswith("a.edf")


def test_a_regression_of_several_values_is_not_explained(tmp_path):
    model = make_model(tmp_path / "model", names=("a", "b"), task="regression", threshold=None)
    with pytest.raises(ConfigError, match="--explain needs classes or a single value"):
        predict(str(model), (edf(tmp_path / "a.edf"),), out=tmp_path / "out", explain=True)
    assert not (tmp_path / "out").exists()


# What is refused before a recording is read


def test_models_that_cannot_answer_are_refused(tmp_path):
    file = edf(tmp_path / "a.edf")
    for outputs, words in ((None, "has no head"), (1, "has a single class")):
        model = make_model(tmp_path / f"model{outputs}", outputs=outputs, names=("a",), threshold=None)
        with pytest.raises(CheckpointError, match=words):
            predict(str(model), (file,), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_with_one_training_are_models_and_others_say_which_to_give(tmp_path):
    run = tmp_path / "run"
    make_model(run / "seed-0")
    (run / "run.json").write_text("{}")
    file = edf(tmp_path / "a.edf")
    whole = cerebro_eeg.predict(file, run)
    assert np.array_equal(whole.output, cerebro_eeg.predict(file, str(run / "seed-0")).output)
    make_model(run / "seed-1")
    with pytest.raises(ConfigError, match=r"holds 2 trainings \(seed-0, seed-1\)"):
        cerebro_eeg.predict(file, run)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no training of .* has saved weights"):
        cerebro_eeg.predict(file, tmp_path / "empty")
    with pytest.raises(ConfigError, match="there is no training run/seed-7"):  # and the Hub is not asked
        cerebro_eeg.predict(file, "run/seed-7")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stride": 0.0}, "stride is 0"),
        ({"stride": float("nan")}, "stride is nan"),
        ({"device": "tpu9"}, "device is 'tpu9'"),
    ],
)
def test_wrong_settings_are_refused_before_work(tmp_path, change, words):
    model, file = make_model(tmp_path / "model"), edf(tmp_path / "a.edf")
    with pytest.raises(ConfigError, match=words):
        predict(str(model), (file,), out=tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


def test_folders_and_ids_that_would_hide_something_are_refused(tmp_path):
    model = str(make_model(tmp_path / "model"))
    for name in ("one", "two"):
        edf(tmp_path / name / "a.edf")
    with pytest.raises(ConfigError, match="not empty and holds no predictions"):
        predict(model, (tmp_path / "one",), out=tmp_path / "two")
    with pytest.raises(ConfigError, match="no recording was given"):
        predict(model, (), out=tmp_path / "out")
    with pytest.warns(UserWarning, match="1 recording has the content of another"):
        result = predict(model, (tmp_path / "one", tmp_path / "two"), out=tmp_path / "out")
    assert len({row["recording"] for row in result.recordings}) == 2


def test_the_command_line_ends_with_its_codes(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "predict", ("cerebro_eeg.commands.predict:predict", ""))
    model = str(make_model(tmp_path / "model"))
    file, out = str(edf(tmp_path / "a.edf")), str(tmp_path / "out")
    assert cli.main(["predict", model, file, "--out", out, "--annotations", "edf", "bids", "--plot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recordings"][0]["windows"] == 10
    assert cli.main(["predict", model, file, str(tmp_path / "gone.edf"), "--out", out]) == 6
    assert cli.main(["predict", str(tmp_path / "none.safetensors"), file, "--out", out]) == 4
    assert cli.main(["predict", "--help"]) == 0


# Pictures and memory


def test_the_picture_shows_the_envelope_of_what_the_model_saw(tmp_path):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model"))
    file = edf_with_gaps(tmp_path / "a.edf", [*range(10), *range(30, 40)])
    envelope = Envelope()
    signal = open_signal(file, model.config, runs_predict.make_reader(model).electrodes, Handling())
    runs_predict.predict_recording(runs_predict.make_reader(model), file, watch=envelope.watch)
    rows = np.concatenate([piece.rows for piece in signal.pieces()]).astype(np.float32)
    assert envelope.names == ("Fp1", "Cz", "O2")
    seen = np.isfinite(envelope.low[:, 0])
    assert seen.mean() == pytest.approx(0.5, abs=0.01)  # 20 of 40 seconds
    np.testing.assert_array_equal(envelope.low[seen].min(0), rows.min(0))
    np.testing.assert_array_equal(envelope.high[seen].max(0), rows.max(0))
    assert (envelope.low[seen] <= envelope.high[seen]).all()


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_picture_a_recording(tmp_path, outputs):
    names = ("a", "b", "c")[:outputs]
    model = make_model(tmp_path / "model", outputs=outputs, names=names, threshold=None)
    edf(tmp_path / "in" / "a.edf", seconds=3)
    edf_with_gaps(tmp_path / "in" / "b.edf", [*range(10), *range(400, 410)])
    result = predict(str(model), (tmp_path / "in",), out=tmp_path / "out", plot=True)
    assert result.exit_code == 0
    pictures = [(tmp_path / "out" / f"{row['recording']}.png").read_bytes() for row in result.recordings]
    assert all(picture.startswith(b"\x89PNG") and len(picture) > 10_000 for picture in pictures)


def peak(file, reader):
    tracemalloc.start()
    try:
        said = runs_predict.predict_recording(reader, file, watch=Envelope().watch)
        return len(said.start), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(
        filters.filter_recording, "__kwdefaults__", {"chunk": 1 << 16}
    )  # so that short files have many pieces
    monkeypatch.setattr(quality.measure, "__kwdefaults__", {"chunk": 1 << 16})
    reader = runs_predict.make_reader(Cerebro.from_pretrained(make_model(tmp_path / "model")), stride=8.0)
    peaks = []
    for minutes in (1, 15, 45):  # the first fills the tables of filters, which stay
        file = tmp_path / f"{minutes}.edf"
        write_edf(file, noise(60 * minutes, 6, 256).T.astype(np.float32), ELECTRODES, 256, [])
        peaks.append(peak(file, reader)[1])
    assert peaks[2] < peaks[1] + 2e6  # the signal itself has 5.5 MB more, in half precision


@pytest.mark.soak
def test_memory_of_a_day(tmp_path):
    reader = runs_predict.make_reader(Cerebro.from_pretrained(make_model(tmp_path / "model")))
    hour = np.tile(noise(3600, 6, 256).T.astype(np.float32), (24, 1))
    write_edf(tmp_path / "a.edf", hour, ELECTRODES, 256, [])
    del hour
    windows, most = peak(tmp_path / "a.edf", reader)
    assert windows == 24 * 1800
    assert most < 100e6


# ---- weights that are not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_checkpoint_with_nan_answers_nothing(tmp_path, monkeypatch, capsys, verb):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model"))
    with torch.no_grad():
        model.encoder.blocks[0].mlp.up.weight[0, 0] = float("nan")
    with monkeypatch.context() as patched:  # a file of an older release, which saved this
        patched.setattr("cerebro_eeg.model.tensor_list.first_broken", lambda tensors: None)
        model.save_pretrained(tmp_path / "model")
    out = tmp_path / ("out" if verb == "predict" else "out.npz")
    assert cli.main([verb, str(tmp_path / "model"), str(edf(tmp_path / "a.edf")), "--out", str(out)]) == 4
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "holds NaN or infinity, first in encoder.blocks.0.mlp.up.weight" in line
    assert not out.exists()


def test_a_model_with_nan_answers_nothing(tmp_path):
    model, file = Cerebro.from_pretrained(make_model(tmp_path / "model")), edf(tmp_path / "a.edf")
    with torch.no_grad():
        model.final_layer.bias[0] = float("inf")
    with pytest.raises(CheckpointError, match=r"first in final_layer\.bias; load sound weights"):
        cerebro_eeg.predict(file, model)
    cerebro_eeg.embed(file, model)  # the head has no part in features
    with torch.no_grad():
        model.encoder.positions[0] = float("nan")
    with pytest.raises(CheckpointError, match=r"first in encoder\.positions; load sound weights"):
        cerebro_eeg.embed(file, model)
    with pytest.raises(CheckpointError, match=r"first in encoder\.positions; load sound weights"):
        model.embed(np.random.default_rng(0).normal(0, 20, (2, 1, 512)), ch_names=["Cz"])
