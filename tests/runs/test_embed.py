"""embed: features of recordings equal those of the same windows as arrays; its files are complete and readable."""

import json
import logging
import re
from pathlib import Path

import mne
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.commands.embed import embed
from cerebro_eeg.config import ModelConfig, PatchConfig
from cerebro_eeg.errors import ConfigError, RecordingError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs import features, predict
from cerebro_eeg.runs.features import FeatureFile
from cerebro_eeg.runs.predict import cut_windows
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.signals import open_signal
from predict_files import edf, edf_with_gaps, make_model


@pytest.fixture(autouse=True)
def _own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def arrays(file, model, samples=512):
    """The windows of a recording as (windows, channels, samples), and the names of its channels."""
    reader = predict.make_reader(model)
    signal = open_signal(file, model.config, reader.electrodes, Handling())
    cut = next(cut_windows(signal, samples, samples, 10_000))
    return cut.signal_BTC.transpose(0, 2, 1).astype(np.float32), signal.names


@pytest.mark.parametrize("level", ["window", "channel", "token"])
@pytest.mark.parametrize("layer", [0, 1, None])
def test_features_are_those_of_the_windows_as_arrays(tmp_path, level, layer):
    model = Cerebro.from_pretrained(make_model(tmp_path / "model", outputs=None))
    file = edf(tmp_path / "a.edf")
    x, names = arrays(file, model)
    found = cerebro_eeg.embed(file, model, level=level, layer=layer)
    expected = model.embed(x, ch_names=names, level=level, layer=layer)
    assert found.features.shape == expected.shape
    np.testing.assert_allclose(found.features, expected, atol=1e-5)
    assert found.start.tolist() == [2.0 * k for k in range(10)]
    assert (found.seconds, found.channels) == (2.0, ("Fp1", "Cz", "O2"))


def test_one_line_for_a_file_or_an_object_and_a_model_or_its_folder(tmp_path):
    folder = make_model(tmp_path / "model")  # a head does not matter
    file = edf(tmp_path / "a.edf")
    raw = mne.io.read_raw_edf(file, verbose="error")
    one = cerebro_eeg.embed(file, folder).features
    np.testing.assert_allclose(cerebro_eeg.embed(raw, str(folder)).features, one, atol=1e-3)
    assert np.array_equal(cerebro_eeg.embed(str(file), Cerebro.from_pretrained(folder)).features, one)
    fresh = Cerebro(config=Cerebro.from_pretrained(folder).config)  # never trained, never saved: nothing to tell apart
    assert cerebro_eeg.embed(file, fresh).features.shape == one.shape


def said(capsys):
    """The lines about random weights since the last time."""
    return [line for line in capsys.readouterr().err.splitlines() if "baseline" in line]


def random_model(outputs=None):
    return Cerebro(outputs, config=ModelConfig(depth=2, width=12, heads=3, window=512), n_times=512)


@pytest.mark.parametrize("ask", [cerebro_eeg.embed, cerebro_eeg.predict])
def test_random_weights_are_told_of_in_one_line(tmp_path, ask, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("cerebro_eeg"), "propagate", False)  # pytest has handlers; a script has none
    file, outputs = edf(tmp_path / "a.edf"), 2 if ask is cerebro_eeg.predict else None
    model = random_model(outputs)
    ask(file, model)
    (line,) = said(capsys)
    assert line.startswith(
        "cerebro-eeg: the model was neither loaded nor trained, so the weights of its encoder are random"
    )
    model.save_pretrained(tmp_path / "random")
    ask(file, tmp_path / "random", untrained="as_is")
    (line,) = said(capsys)
    assert line.startswith("cerebro-eeg: the checkpoint records no training, so the weights of its encoder are random")
    x = torch.randn(1, 3, 512) * 20
    model.set_channels(["Fp1", "Cz", "O2"])
    model.train()(x).sum().backward()  # as any loop does: it counts what it is shown
    ask(file, model)
    ask(file, make_model(tmp_path / "trained", outputs=outputs))
    assert said(capsys) == []


def test_random_weights_are_told_of_by_the_verbs_and_kept(tmp_path, capsys):
    file = edf(tmp_path / "a.edf")
    random_model(2).save_pretrained(tmp_path / "random")
    handling = ["--untrained", "as_is", "--device", "cpu"]
    for verb, out in (("embed", "f.npz"), ("predict", "said")):
        command = [verb, str(tmp_path / "random"), str(file), "--out", str(tmp_path / out), *handling]
        assert cli.main(command) == 0
        assert capsys.readouterr().out.count("note: the checkpoint records no training") == 1
        assert cli.main([*command, "--json"]) == 0
        assert "records no training" in json.loads(capsys.readouterr().out)["notes"][0]
    assert "records no training" in json.loads((tmp_path / "said" / "decisions.json").read_text())["notes"][0]
    make_model(tmp_path / "trained")
    assert embed(str(tmp_path / "trained"), (file,), out=tmp_path / "g.npz").notes == ()


def test_other_lengths_and_strides(tmp_path):
    folder = make_model(tmp_path / "model", outputs=None)
    file = edf_with_gaps(tmp_path / "a.edf", [*range(6), *range(10, 13)])
    found = cerebro_eeg.embed(file, folder, seconds=3.0, stride=1.5, level="token")
    assert found.start.tolist() == [0.0, 1.5, 3.0, 10.0]
    assert found.features.shape == (4, 3, 12, 12)
    with pytest.raises(ConfigError, match="too short for a patch"):
        cerebro_eeg.embed(file, folder, seconds=0.01)
    with pytest.raises(ConfigError, match="layer is 9"):
        cerebro_eeg.embed(file, folder, layer=9)


@pytest.mark.parametrize(("phase", "names"), [("interleaved", ["Fp1", "Fp1 phase"]), ("separated", ["Fp1", "Cz"])])
def test_rows_of_phase_have_names(tmp_path, phase, names):
    patches = PatchConfig(kind="time_bins", phase=phase)
    folder = make_model(tmp_path / "model", outputs=None, patches=patches)
    found = cerebro_eeg.embed(edf(tmp_path / "a.edf"), folder, level="channel")
    assert found.features.shape[1] == len(found.channels) == 6
    assert list(found.channels[:2]) == names


# Files


@pytest.mark.parametrize("level", ["window", "channel", "token"])
def test_npz_and_parquet_hold_what_the_function_gives(tmp_path, level, monkeypatch):
    monkeypatch.setattr(features, "PIECE", 1000)
    monkeypatch.setattr(features, "GROUP", 1000)  # several row groups
    folder = make_model(tmp_path / "model", outputs=None)
    files = (edf(tmp_path / "a.edf"), edf(tmp_path / "b.edf", ("Cz", "C3"), seconds=30, rate=500, seed=1))
    result = embed(str(folder), files, out=tmp_path / "f.npz", level=level)
    assert embed(str(folder), files, out=tmp_path / "f.parquet", level=level).rows == result.rows
    with np.load(tmp_path / "f.npz", allow_pickle=False) as file:
        found = dict(file)
    table = pq.read_table(tmp_path / "f.parquet")
    assert set(found) == {"recording", "start", "features"} | ({"channel"} if level != "window" else set())
    first = found["recording"] == found["recording"][0]
    for path, mine in zip(files, (first, ~first), strict=True):
        said = cerebro_eeg.embed(path, folder, level=level)
        assert np.array_equal(found["features"][mine].reshape(said.features.shape), said.features)
        if level == "window":
            assert np.array_equal(found["start"][mine], said.start)
        else:
            count = len(said.channels)
            assert np.array_equal(found["start"][mine].reshape(-1, count), said.start[:, None].repeat(count, 1))
            assert found["channel"][mine].tolist() == [*said.channels] * len(said.start)
    assert table["recording"].to_pylist() == found["recording"].tolist()
    assert table["start"].to_pylist() == found["start"].tolist()
    if level == "token":  # thousands of numbers a row: one column of lists
        flat = np.array(table["features"].to_pylist(), np.float32)
    else:
        assert table.column_names[-12:] == [f"f{number}" for number in range(12)]
        flat = np.stack([table[f"f{number}"].to_numpy() for number in range(12)], 1)
    assert np.array_equal(flat.reshape(found["features"].shape), found["features"])
    shape = tuple(map(int, table.schema.metadata[b"features_shape"].split(b"x")))
    assert shape == found["features"].shape[1:] == result.shape
    assert not list(tmp_path.glob(".*"))


def test_features_are_joined_to_a_store_as_the_docs_say(tmp_path, monkeypatch):
    """The ids of `embed` are those of the store, though other folders were given."""
    from cerebro_eeg.data.datasets.folder import folder
    from cerebro_eeg.data.storing.prepare import prepare

    monkeypatch.chdir(tmp_path)
    rows = ["file,subject,label,start,stop,split"]
    for number, split in enumerate(("train", "test")):
        edf(tmp_path / "eeg" / f"sub-{number}" / "a.edf", seed=number)
        rows += [
            f"sub-{number}/a.edf,s{number},{label},{t},{t + 4},{split}" for t, label in ((0, "open"), (4, "closed"))
        ]
    (tmp_path / "eyes.csv").write_text("\n".join(rows))
    prepare(folder(tmp_path / "eeg", labels=tmp_path / "eyes.csv"), tmp_path / "my-store")
    model = str(make_model(tmp_path / "model"))
    embed(model, (tmp_path / "eeg" / "sub-1", tmp_path / "eeg" / "sub-0" / "a.edf"), out=tmp_path / "features.npz")
    page = (Path(__file__).parents[2] / "docs" / "predict.md").read_text(encoding="utf-8")
    section = page.partition("## Features joined to a store")[2]
    names: dict = {}
    exec(re.search("```python\n(.*?)```", section, re.DOTALL)[1], names)
    assert names["y"] == ("open", "open", "closed", "closed") * 2
    assert names["splits"] == ("test",) * 4 + ("train",) * 4
    assert len(set(names["subjects"])) == 2
    assert names["X"].shape == (8, 12)


def test_equal_features_are_equal_bytes(tmp_path):
    folder, file = make_model(tmp_path / "model", outputs=None), edf(tmp_path / "a.edf")
    for name in ("one.npz", "two.npz"):
        embed(str(folder), (file,), out=tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_recording_that_fails_halfway_leaves_nothing(tmp_path, monkeypatch):
    folder = make_model(tmp_path / "model", outputs=None)
    for name in "abc":
        edf(tmp_path / "in" / f"{name}.edf", seed=ord(name))
    whole, calls = predict.cut_windows, []

    def failing(signal, samples, stride, size, watch=None):
        calls.append(signal)
        for number, cut in enumerate(whole(signal, samples, stride, 3, watch)):
            if len(calls) == 2 and number == 2:
                raise RecordingError("changed", "the file became shorter while it was read; open it again")
            yield cut

    monkeypatch.setattr(predict, "cut_windows", failing)
    result = embed(str(folder), (tmp_path / "in",), out=tmp_path / "f.npz", level="channel")
    assert (result.exit_code, result.recordings, [f.code for f in result.failures]) == (6, 2, ["changed"])
    with np.load(tmp_path / "f.npz") as file:
        ids, features = file["recording"], file["features"]
        assert len(file["start"]) == len(file["channel"]) == len(features) == 60
    assert result.failures[0].input.id not in ids
    monkeypatch.undo()
    for name, id in zip("ac", dict.fromkeys(ids.tolist()), strict=True):
        said = cerebro_eeg.embed(tmp_path / "in" / f"{name}.edf", folder, level="channel")
        np.testing.assert_allclose(features[ids == id], said.features.reshape(30, -1), atol=1e-6)


def test_where_nothing_can_be_used_nothing_is_written(tmp_path):
    (tmp_path / "a.edf").write_bytes(b"bad")
    folder = make_model(tmp_path / "model", outputs=None)
    result = embed(str(folder), (tmp_path / "a.edf",), out=tmp_path / "f.npz")
    assert (result.exit_code, result.file) == (6, None)
    assert "nothing was written" in result.text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.edf", "config", "model"]


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path):
    with FeatureFile(tmp_path / "f.npz", (4,), channels=False) as file:
        file.add("a", np.zeros(3), np.zeros((3, 4), np.float32))
        assert len(list(tmp_path.iterdir())) == 3  # hidden, one a column
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("features", r"expected a file name with .npz or .parquet"),
        ("f.xls", "'.xls'"),
        ("folder.npz", "names a folder"),
    ],
)
def test_targets_that_are_no_file_of_features_are_refused(tmp_path, out, words):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ConfigError, match=words):
        embed(str(tmp_path / "model"), (tmp_path / "a.edf",), out=tmp_path / out)


def test_nothing_names_a_file_unless_asked_to(tmp_path, capsys):
    folder, word = make_model(tmp_path / "model", outputs=None), "Zqanary"
    edf(tmp_path / "in" / f"{word}1.edf")
    (tmp_path / "in" / f"{word}2.edf").write_bytes(b"bad")
    result = embed(str(folder), (tmp_path / "in",), out=tmp_path / "f.npz", map=tmp_path / "map")
    told = [result.text(), json.dumps(result.to_dict()), *capsys.readouterr()]
    with np.load(tmp_path / "f.npz") as file:
        told += file["recording"].tolist()
        assert json.loads((tmp_path / "map").read_text())["recordings"][str(file["recording"][0])] == f"{word}1.edf"
    assert not [text for text in told if word in text]
    assert f"{word}2.edf" in embed(str(folder), (tmp_path / "in",), out=tmp_path / "f.npz", show_paths=True).text()


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "embed", ("cerebro_eeg.commands.embed:embed", ""))
    folder, file = str(make_model(tmp_path / "model", outputs=None)), str(edf(tmp_path / "a.edf"))
    assert cli.main(["embed", folder, file, "--out", str(tmp_path / "f.npz"), "--level", "token", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == [8, 12]
    assert cli.main(["embed", folder, file, "--out", str(tmp_path / "f.npz"), "--layer", "9"]) == 2
    assert cli.main(["embed", "--help"]) == 0


def test_threads_are_taken_or_refused(tmp_path):
    model, file = str(make_model(tmp_path / "model")), edf(tmp_path / "a.edf")
    before = torch.get_num_threads()
    try:
        embed(model, (file,), out=tmp_path / "a.npz", threads=before + 1)
        assert torch.get_num_threads() == before + 1
        with pytest.raises(ConfigError, match="threads is 0; it must be at least 1"):
            embed(model, (file,), out=tmp_path / "b.npz", threads=0)
    finally:
        torch.set_num_threads(before)
