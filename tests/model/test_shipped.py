"""Weights that come with the package: found by name, offline, checked, attributed; and a card that describes them."""

import csv
import hashlib
import json
import re
from importlib.resources import files

import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro, MaskedCerebro, cli
from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.model import checkpoint, hub, shipped
from predict_files import edf
from tiny_models import randomized, small
from train_stores import make_store

NAME = "small-open"
CARD = (shipped.FOLDER / f"{NAME}.md").read_text(encoding="utf-8")
NOTICE = (shipped.FOLDER / "NOTICE.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def header():
    return checkpoint.read_header(shipped.shipped_weights(NAME))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def datasets(header):
    """The data sets of the training record; its licences name them."""
    (source,) = header.training.data
    return [part.partition(" ")[::2] for part in source.licence.split("; ")]


def test_files_are_part_of_the_package():
    folder = files("cerebro_eeg").joinpath("weights")
    for name in (f"{NAME}.safetensors", f"{NAME}.md", f"{NAME}.svg", "NOTICE.md"):
        assert 0 < len(folder.joinpath(name).read_bytes()) < 10_000_000


def test_file_has_the_pinned_sum():
    found = hashlib.sha256((shipped.FOLDER / f"{NAME}.safetensors").read_bytes()).hexdigest()
    assert {NAME: found} == shipped.SHIPPED


def test_weights_are_stored_in_half_precision_and_loaded_in_full(elsewhere):
    _, tensors = hub.load(NAME)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    model = MaskedCerebro.from_pretrained(NAME)
    assert model.load_report.exact
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name].float())


def test_name_works_without_a_network(elsewhere):
    """conftest.py says HF_HUB_OFFLINE; the Hub would not have been asked for a name without an owner anyway."""
    model = Cerebro.from_pretrained(NAME, ch_names=["Fp1", "Cz", "O2"])
    assert not model.load_report.missing
    x = np.random.default_rng(0).normal(size=(2, 3, 1280)) * 20
    assert model.embed(x).shape == (2, 192)
    random = Cerebro(config="small", ch_names=["Fp1", "Cz", "O2"], sfreq=256, n_times=1280)
    assert not np.allclose(model.embed(x), random.embed(x), atol=0.1)


def test_local_folder_or_file_of_that_name_comes_first(elsewhere):
    own = randomized(Cerebro(2, config=small())).float()
    own.save_pretrained(NAME)
    assert Cerebro.from_pretrained(NAME).config == own.config
    assert hub.find(NAME).parent.name == NAME
    assert not shipped.is_shipped(NAME)


def test_local_folder_of_that_name_without_weights_is_an_error(elsewhere):
    (elsewhere / NAME).mkdir()
    with pytest.raises(CheckpointError, match=r"the folder small-open holds no model.safetensors"):
        Cerebro.from_pretrained(NAME)


@pytest.mark.parametrize(
    ("place", "words"),
    [(100_000, "are damaged: their SHA-256 is"), (7_000_000, "are damaged"), (None, "cannot be read")],
)
def test_damaged_copy_is_refused_in_one_line(place, words, elsewhere, monkeypatch, capsys):
    data = bytearray((shipped.FOLDER / f"{NAME}.safetensors").read_bytes())
    monkeypatch.setattr(shipped, "FOLDER", elsewhere)
    if place is not None:
        data[place] ^= 1
        (elsewhere / f"{NAME}.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=words) as refused:
        Cerebro.from_pretrained(NAME)
    assert "\n" not in str(refused.value)
    assert "install cerebro-eeg again" in str(refused.value)
    assert cli.main(["doctor"]) == 1
    assert f"{NAME}  " in (said := capsys.readouterr().out)
    assert "DAMAGED" in said
    assert str(elsewhere) not in said


def test_doctor_finds_it_sound(capsys):
    cli.main(["doctor"])
    assert re.search(rf"^  {NAME} +sound$", capsys.readouterr().out, re.M)


def test_unknown_name_says_which_are_shipped(elsewhere, capsys):
    for model in (Cerebro, MaskedCerebro):
        with pytest.raises(
            CheckpointError, match=r"no checkpoint small-opn \(did you mean 'small-open'\?\); .*: small-open"
        ):
            model.from_pretrained("small-opn")
    edf(elsewhere / "a.edf", ["Cz"])
    assert cli.main(["embed", "medium-open", "a.edf", "--out", "f.npz"]) == 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("or a name of weights that come with the package: small-open")
    assert cli.main(["info", "medium-open"]) == 2
    assert "weights come with the package under small-open" in capsys.readouterr().err


def test_verbs_take_the_name(elsewhere, capsys):
    edf(elsewhere / "a.edf", ["Cz", "O1"])
    assert cli.main(["embed", NAME, "a.edf", "--out", "f.npz", "--device", "cpu"]) == 0
    assert np.load("f.npz")["features"].shape == (4, 192)
    capsys.readouterr()
    assert cli.main(["predict", NAME, "a.edf", "--out", "p"]) == 4
    assert "the checkpoint has no head" in capsys.readouterr().err
    assert cli.main(["info", NAME]) == 0
    said = capsys.readouterr().out
    assert "small-open (checkpoint, sums verified)" in said
    for fact in shipped.card_facts(NAME):
        assert f"  {fact}\n" in said


@pytest.mark.parametrize("verb", ["finetune", "pretrain"])
def test_training_starts_from_the_name(verb, elsewhere, capsys):
    make_store(elsewhere / "store", 6, 4, pretrain=True)
    threads = torch.get_num_threads()
    own = (
        ["--task", "alpha", "--freeze"]
        if verb == "finetune"
        else ["--steps", "1", "--batch-size", "2", "--seconds", "1"]
    )
    words = [verb, "store", "--from", NAME, "--out", "run", "--device", "cpu", "--threads", "1", *own]
    assert cli.main(words) == 0, capsys.readouterr().err
    torch.set_num_threads(threads)
    settings = json.loads((elsewhere / "run" / "run.json").read_text())["settings"]
    expected = hub.load(NAME)[1] if verb == "finetune" else MaskedCerebro.from_pretrained(NAME).state_dict()
    assert settings["from"] == checkpoint.hash_tensors(expected)


def test_card_says_what_the_header_says(header):
    training, facts = header.training, "\n".join(shipped.card_facts(NAME))
    (source,) = training.data
    assert f"{training.steps:,} steps, {training.windows:,} windows" in facts
    assert f"of {len(source.subjects)} subjects from {len(datasets(header))} data sets" in facts
    assert f"{len(training.electrode_windows)} electrodes have trained rows" in facts
    signal = header.model.signal
    assert f"{signal.sfreq:g} Hz, {signal.highpass:g} to {signal.lowpass:g} Hz" in facts
    assert f"{source.windows:,} windows are {source.hours:.1f} h" in CARD
    assert source.sha256 in CARD
    assert "Apache-2.0" in facts
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([^|]+) \| (yes|no) \|$", CARD, re.M)
    assert [(row[0], row[4]) for row in rows] == datasets(header)
    assert sum(int(row[2]) for row in rows) == len(source.subjects)
    assert sum(float(row[3]) for row in rows) == pytest.approx(17.09, abs=0.03)


def test_notice_lists_every_data_set(header):
    blocks = dict(block.split("\n", 1) for block in NOTICE.split("\n## ")[1:])
    rows = datasets(header)
    assert len(rows) == 7
    assert [name for name in blocks if not name.startswith("Licence of")] == [name for name, _ in rows]
    for name, licence in rows:
        for words in ("- Authors: ", "- Title and link: ", f"- Licence: {licence}", "- Licence read at its source: "):
            assert words in blocks[name]
        assert f"| {licence} | {'yes' if 'source: yes' in blocks[name] else 'no'} |" in CARD
    assert "Copyright (c) 2017, alexandre barachant" in blocks["Licence of muse"]
    assert "not a medical device" in CARD.casefold()


def test_only_train_rows_of_the_pack_were_learned_from(open_eeg, header):
    """The marks of the subjects are hashes of their ids, so they can be made again from the table."""
    with (open_eeg / "pretrain.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    marks = {"train": set(), "val": set()}
    for row in rows:
        name = f"own\0subject\0{row['dataset']}_{row['subject']}"
        marks[row["split"]].add("s" + hashlib.sha256(name.encode()).hexdigest()[:11])
    (source,) = header.training.data
    assert set(source.subjects) == marks["train"]
    assert not set(source.subjects) & marks["val"]
    windows = sum(int(float(row["duration_s"]) - 5) + 1 for row in rows if row["split"] == "train")
    assert source.windows == windows
    assert {row["dataset"] for row in rows if row["split"] == "train"} == {name for name, _ in datasets(header)}
