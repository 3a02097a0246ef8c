"""embed on a store: the features of the files, joined to subjects, splits and labels; read back from every format."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.commands.embed import embed
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.runs.settings import Handling
from predict_files import edf, edf_with_gaps, make_model
from train_stores import MONTAGES, make_store


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Files with a gap, at two rates; a store of them with labels; a model of windows of 2 s; a store with three."""
    folder = tmp_path_factory.mktemp("embed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        files = [
            edf(folder / "eeg" / "a.edf", seconds=21),
            edf(folder / "eeg" / "b.edf", ("Cz", "O2", "C3"), seconds=13, rate=512, seed=1),
            edf_with_gaps(folder / "eeg" / "c.edf", [*range(7), *range(10, 17)], seed=2),
        ]
        rows = ["file,subject,label,start,stop,split"]
        for name, split in (("a", "train"), ("b", "val"), ("c", "test")):
            spans = (("eyes open", 0, 4), ("closed", 4, 7), ("eyes open", 10, 13))
            rows += [f"{name}.edf,s-{name},{label},{start},{stop},{split}" for label, start, stop in spans]
        (folder / "eyes.csv").write_text("\n".join(rows))
        cerebro_eeg.prepare(
            "folder",
            folder / "eeg",
            out=folder / "store",
            labels=folder / "eyes.csv",
            map=folder / "map.json",
            workers=0,
            mains=50,
        )
        make_model(folder / "model", outputs=None)
        make_store(folder / "made", 4, 4)
        yield folder, files


@pytest.fixture(autouse=True)
def _own_key(place, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place[0] / "config"))


@pytest.mark.parametrize("level", ["window", "channel", "token"])
def test_a_store_gives_the_features_of_its_files(place, level):
    """Bit by bit, by the same ids, across gaps."""
    folder, files = place
    of_files = cerebro_eeg.embed(files, folder / "model", level=level, mains=50)
    of_store = cerebro_eeg.embed(folder / "store", folder / "model", level=level)
    order = np.concatenate([np.flatnonzero(of_files["recording"] == id) for id in np.unique(of_store["recording"])])
    assert np.array_equal(of_store.features, of_files.features[order])
    for name in ("recording", "start", *(["channel"] if level != "window" else [])):
        assert of_store[name].tolist() == of_files[name][order].tolist()
    assert set(of_store.context) == {*of_files.context, "subject"}
    assert (of_store.failures, of_store.trouble) == ((), None)


def test_a_task_gives_labels_splits_and_subjects(place):
    folder, files = place
    found = cerebro_eeg.embed(folder / "store", folder / "model", task="eyes", seconds=1.0)
    X, y, groups, info = cerebro_eeg.open_store(folder / "store").arrays("eyes", seconds=1.0, channels=["Cz"])
    assert (len(found), found.X.shape) == (len(X), (len(X), 12))
    assert found.y.tolist() == y.tolist()
    assert found.groups.tolist() == groups.tolist()
    assert found["split"].tolist() == info.split.tolist()
    assert np.array_equal(found["start"], info.start)
    assert set(found["label"]) == {"eyes open", "closed"}
    plain = cerebro_eeg.embed(files[0], folder / "model", seconds=1.0, mains=50)
    assert np.array_equal(found.X[found["split"] == "train"][:4], plain.features[:4])
    only = cerebro_eeg.embed(folder / "store", folder / "model", task="eyes", seconds=1.0, split=["val", "test"])
    assert set(only["split"]) == {"val", "test"}
    assert np.array_equal(only.X, found.X[found["split"] != "train"])


def test_values_of_a_regression_are_columns(place):
    folder, _ = place
    found = cerebro_eeg.embed(folder / "made", folder / "model", task="level", untrained="as_is")
    assert found.y.shape == (16, 2)
    assert found["target_x"].tolist() == [100.0, 105.0] * 8
    assert list(found.to_frame())[:6] == ["recording", "start", "subject", "split", "target_x", "target_y"]


def test_montages_may_differ_and_what_was_never_trained_is_told(place):
    """Row by row by the channels of each recording; a montage that the model cannot take is not used, and said so."""
    folder, _ = place
    with pytest.warns(
        cerebro_eeg.CerebroWarning, match=r"1 recording of 4 could not be used .* \(s2\): channels: no EEG"
    ):
        found = cerebro_eeg.embed(folder / "made", folder / "model", level="channel", untrained="drop", seconds=2.0)
    recordings = dict.fromkeys(found["recording"].tolist())
    channels = {id: [*dict.fromkeys(found["channel"][found["recording"] == id].tolist())] for id in recordings}
    assert channels == {"s0": ["Fp1", "Cz"], "s1": ["Fp1", "C3"], "s3": ["Fp1", "Cz"]}


@pytest.mark.filterwarnings("ignore:.*could not be used")
@pytest.mark.parametrize("level", ["window", "channel"])
@pytest.mark.parametrize("task", ["alpha", "level"])
def test_every_format_is_read_back_alike(place, tmp_path, level, task):
    folder, _ = place
    tables = []
    for kind in ("npz", "parquet", "csv"):
        out = tmp_path / f"f.{kind}"
        result = cerebro_eeg.embed(
            folder / "made", folder / "model", task=task, level=level, untrained="as_is", out=out
        )
        tables.append(cerebro_eeg.read_features(out))
        assert list(result.columns) == list(tables[-1].context)
        assert result.flat == (kind != "npz")
        assert [path.name for path in tmp_path.glob(".*")] == []
    for table in tables[1:]:
        assert np.array_equal(table.features, tables[0].features)
        assert table.context.keys() == tables[0].context.keys()
        for name, values in table.context.items():
            assert values.dtype.kind == tables[0][name].dtype.kind
            assert values.tolist() == tables[0][name].tolist()
    frame = tables[0].to_frame()
    names = ["recording", *(["channel"] if level == "channel" else []), "start", "subject", "split"]
    names += ["label"] if task == "alpha" else ["target_x", "target_y"]
    assert list(frame) == [*names, *(f"f{number}" for number in range(12))]
    with (tmp_path / "f.csv").open(newline="") as file:
        assert next(csv.reader(file)) == list(frame)
    assert sorted(pq.read_schema(tmp_path / "f.parquet").names) == sorted(frame)
    assert cerebro_eeg.verify([tmp_path / f"f.{kind}" for kind in ("npz", "parquet", "csv")]).exit_code == 0


def test_damage_of_a_csv_file_is_found(place, tmp_path):
    folder, _ = place
    cerebro_eeg.embed(folder / "store", folder / "model", out=tmp_path / "f.csv")
    data = (tmp_path / "f.csv").read_text()
    (tmp_path / "f.csv").write_text(data.replace("0.", "1.", 1))
    with pytest.warns(cerebro_eeg.CerebroWarning, match="does not match the SHA-256 in the file beside it"):
        cerebro_eeg.verify(tmp_path / "f.csv")


def test_features_of_earlier_releases_are_read(tmp_path):
    """A parquet file with one column of lists, as tokens still have."""
    import pyarrow as pa

    values = np.arange(12, dtype=np.float32)
    columns = {"recording": ["a", "a", "b"], "start": [0.0, 1.0, 0.0]}
    table = pa.table({**columns, "features": pa.FixedSizeListArray.from_arrays(pa.array(values), 4)})
    pq.write_table(table.replace_schema_metadata({"features_shape": "4"}), tmp_path / "old.parquet")
    found = cerebro_eeg.read_features(tmp_path / "old.parquet")
    assert np.array_equal(found.features, values.reshape(3, 4))
    assert found["recording"].tolist() == ["a", "a", "b"]
    with pytest.raises(InputError, match="these features have no labels"):
        _ = found.y
    with pytest.raises(InputError, match="no column 'label'; the columns are recording, start and features"):
        found["label"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.npz", "there is no such file"),
        ("text.npz", "holds no features of cerebro-eeg, or is damaged"),
        ("text.parquet", "holds no features of cerebro-eeg, or is damaged"),
        ("text.csv", "holds no features of cerebro-eeg, or is damaged"),
        ("text.xls", "the file ends in '.xls'; expected features as .npz, .parquet or .csv"),
    ],
)
def test_other_files_are_no_features(tmp_path, name, words):
    for kind in ("npz", "parquet", "csv", "xls"):
        (tmp_path / f"text.{kind}").write_text("no features\n1\n")
    with pytest.raises(InputError, match=words):
        cerebro_eeg.read_features(tmp_path / name)


def test_paths_are_a_column_where_they_are_asked_for(place, tmp_path):
    folder, files = place
    store, model = folder / "store", folder / "model"
    found = cerebro_eeg.embed(files, model, show_paths=True)
    assert set(found["path"]) == {str(file) for file in files}
    private = {"show_paths": True, "map": folder / "map.json"}
    stored = cerebro_eeg.embed(store, model, task="eyes", **private, out=tmp_path / "f.csv").read()
    assert stored["path"].tolist() == [f"{name}.edf" for name in letters(folder, stored["recording"])]
    assert set(stored["path"]) == {"a.edf", "b.edf", "c.edf"}
    for recordings in (store, files):
        assert "path" not in cerebro_eeg.embed(recordings, model).context
    with pytest.raises(ConfigError, match="a store holds no paths; give map with the private file that prepare wrote"):
        cerebro_eeg.embed(store, model, show_paths=True)


def letters(folder, ids):
    """The letter of the file behind each id, by the content of the store alone: the files differ in channels."""
    records = {record.id: record for record in Store(folder / "store").recordings}
    by = {("Cz", "O2", "C3"): "b"}
    return [by.get(records[id].channels, "c" if len(records[id].segments) > 1 else "a") for id in ids.tolist()]


def test_options_of_the_other_kind_are_refused(place, tmp_path):
    folder, files = place
    out = tmp_path / "f.npz"
    model = str(folder / "model")
    with pytest.raises(ConfigError, match="task and split are for a store, and recordings were given"):
        embed(model, (files[0],), out=out, task="eyes")
    with pytest.raises(ConfigError, match="a store was given among other paths"):
        embed(model, (folder / "store", files[0]), out=out)
    with pytest.raises(ConfigError, match="quality and mains and key cannot be chosen for a store"):
        embed(model, (folder / "store",), out=out, key=folder / "k", handling=Handling(quality="drop", mains=60))
    with pytest.raises(InputError, match="the store has no task 'nap'; its tasks are: eyes"):
        embed(model, (folder / "store",), out=out, task="nap")
    with pytest.raises(ConfigError, match=r"tokens are too many numbers for a \.csv file"):
        embed(model, (folder / "store",), out=tmp_path / "f.csv", level="token")
    model = Cerebro.from_pretrained(folder / "model")
    with pytest.raises(ConfigError, match="device is 'cpu', and the model is in memory already"):
        cerebro_eeg.embed(files[0], model, device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_takes_a_store(place, tmp_path, capsys):
    folder, _ = place
    command = ["embed", str(folder / "model"), str(folder / "store"), "--task", "eyes", "--seconds", "1"]
    assert cli.main([*command, "--split", "train", "--out", str(tmp_path / "f.parquet")]) == 0
    said = capsys.readouterr().out
    assert "columns     recording, start (seconds), subject, split, label, f0 to f11" in said
    assert cli.main([*command, "--out", str(tmp_path / "f.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"] == ["recording", "start", "subject", "split", "label"]
    words = (tmp_path / "f.csv").read_text()
    assert ".edf" not in words
    assert "s-a" not in words  # ids alone
    assert MONTAGES[0][0] not in words
