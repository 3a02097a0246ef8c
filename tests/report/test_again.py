"""The command under "To do it again" is run as it stands on the page, and makes the same settings and weights."""

import json
import os
import shlex
from html import unescape
from pathlib import Path

import pytest

from cerebro_eeg.cli import main
from cerebro_eeg.config import preset
from cerebro_eeg.report.again import again, again_compare
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.folder import given_names
from cerebro_eeg.schema import to_dict
from train_stores import make_store

HOSTILE = "my; store's $(touch owned)"
SMALL = ["--set", "model.depth=2", "model.width=32", "model.heads=4", "model.window=256"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a store whose name a shell would take apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    make_store(Path(HOSTILE), 6, 6, pretrain=True)
    return tmp_path


def commands(path):
    """Return the lines of the page, as a reader copies them."""
    _, _, rest = Path(path).read_text("utf-8").partition('<pre class="command">')
    return [shlex.split(line) for line in unescape(rest.partition("</pre>")[0]).splitlines()]


def start(words):
    assert words[0] == "cerebro-eeg"
    assert main([*words[1:], "--threads", "1"]) == 0


def settings(run):
    return json.loads(Path(run, "run.json").read_text())["settings"]


def weights(run):
    return Path(run, "model.safetensors").read_bytes()


def test_a_chain_of_commands_is_done_again(place, capsys):
    words = ["pretrain", HOSTILE, "--preset", "tiny", *SMALL, "--seconds", "1", "--steps", "3", "--out", "pre"]
    start(["cerebro-eeg", *words, "--device", "cpu"])
    (again_pre,) = commands("pre/report.html")
    assert "--paper" not in again_pre
    assert again_pre[2] == HOSTILE
    start(again_pre)
    assert settings("pretrain-again") == settings("pre")
    assert weights("pretrain-again") == weights("pre")
    words = ["finetune", HOSTILE, "--task", "alpha", "--from", "pre", "--steps", "2", "--lr", "0.002", "--seed", "3"]
    start(["cerebro-eeg", *words, "--preset", "tiny", "--balanced", "--no-rivals", "--device", "cpu", "--out", "run"])
    start(["cerebro-eeg", "evaluate", "run", HOSTILE, "--no-rivals", "--device", "cpu"])
    train, score = commands("run/report.html")
    start([*train, "--no-rivals"])
    assert settings("alpha-again") == settings("run")
    assert weights("alpha-again/seed-3") == weights("run/seed-3")
    start([*score, "--no-rivals"])
    first, second = (json.loads(Path(run, "test.json").read_text())["first"] for run in ("run", "alpha-again"))
    assert first == second
    assert not Path("owned").exists()
    capsys.readouterr()


def test_the_command_of_a_comparison_is_done_again(place, capsys):
    make_store(Path("many"), 36, 4)
    words = ["compare", "many", "--tasks", "alpha", "--methods", "chance", "mean, frozen", "--untrained", "as_is"]
    words += ["--repeats", "1", "--seeds", "1", "--no-test", "--resamples", "100", "--out", "out", "--device", "cpu"]
    start(["cerebro-eeg", *words])
    (line,) = commands("out/report.html")
    start(line)
    assert settings("comparison-again") == settings("out")
    kept = [json.loads(Path(run, "compare.json").read_text())["tables"] for run in ("out", "comparison-again")]
    assert [row["name"] for row in kept[0][0]["rows"]] == [row["name"] for row in kept[1][0]["rows"]]
    capsys.readouterr()


# Words, without running them


def described(verb="finetune", given=None, start=None, **changes):
    """Return what ``run.json`` says of a run with these options."""
    options = finetune.FinetuneOptions("eyes", **changes) if verb == "finetune" else pretrain.PretrainOptions(**changes)
    chosen = preset("small")
    tables = {"finetune": ("model", "finetune"), "pretrain": ("model", "objective", "pretrain")}[verb]
    found = {name: to_dict(getattr(chosen, name)) for name in tables}
    store = {"dataset": "made", "sha256": "0"}
    found |= {"choices": to_dict(options), "from": start, "windows": [1000, 200, 200]}
    found |= {"store": store} if verb == "finetune" else {"stores": [store]}
    return {"verb": verb, "settings": found, **({"given": given} if given else {})}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"freeze": True, "readout": "auto"}, "--freeze"),
        ({"freeze": True}, "--readout mean --freeze"),
        ({"freeze": True, "paper": True}, "--freeze --paper"),
        ({"freeze": True, "readout": "hybrid", "centring": False}, "--no-centring --readout hybrid --freeze"),
        ({"few": True, "lora": 8, "steps": 200}, "--set finetune.peak_lr=0.0005 finetune.layer_decay=0.75 --few"),
        ({"seeds": (4, 5, 6)}, "--seeds 3 --seed 4"),
        ({"folds": 5, "seconds": 2.0, "labels": "majority"}, "--folds 5 --seconds 2.0 --labels majority"),
    ],
)
def test_only_what_is_no_default_is_said(changes, words):
    given = {"stores": ["s"], "from": "small-open", "whole": []}
    (line,) = again(described(given=given, start="0" * 64, **changes)).lines
    head = "cerebro-eeg finetune s --task eyes --from small-open --preset small "
    assert line.startswith(head)
    found = line.removeprefix(head).removesuffix(" --out eyes-again")
    assert sorted(shlex.split(found)) == sorted(shlex.split(words))


def test_new_weights_name_their_size_and_old_runs_are_told():
    old = again(described())
    assert old.lines == ("cerebro-eeg finetune made-store --task eyes --from none --preset small --out eyes-again",)
    assert "put in your own names" in old.note
    run = described(given={"stores": ["a", "b"], "from": None, "whole": []}, verb="pretrain", seed=2)
    run["settings"]["model"]["patches"]["kind"] = "time_bins"
    run["settings"]["pretrain"]["batch_size"] = 64
    (line,) = again(run).lines
    assert 'model.patches.kind="time_bins"' in shlex.split(line)
    assert "pretrain.batch_size" not in line  # it was fitted to 1,400 windows, and will be again


def test_a_whole_path_shows_its_last_part_only(tmp_path):
    found = given_names([tmp_path / "store", Path("../x/store"), Path("-rf")], tmp_path / "run")
    assert found == {"stores": ["store", "../x/store", "-rf"], "from": "run", "whole": ["store", "run"]}
    assert given_names([Path("bad\x1bname")], None)["stores"] == ["my-folder"]
    shown = again(described(given=found, start="0" * 64))
    assert str(tmp_path) not in shown.lines[0] + shown.note
    run = described(given={"stores": ["-rf"], "from": None, "whole": []}, verb="pretrain")
    assert again(run).lines[0].startswith("cerebro-eeg pretrain ./-rf ")


def test_a_comparison_names_its_tasks_and_rows():
    run = {
        "settings": {
            "store": {"dataset": "made"}, "from": "0", "repeats": 3, "seeds": 2, "balanced": True, "quick": False,
            "test": False, "untrained": "nearest",
        },
        "given": {"stores": ["s"], "from": "small-open", "whole": []},
    }  # fmt: skip
    tables = [{"task": "eyes", "rows": [{"name": "chance"}, {"name": "band power"}]}]
    assert again_compare(run, tables).lines == (
        "cerebro-eeg compare s --from small-open --tasks eyes --methods chance 'band power' --repeats 3 --seeds 2 "
        "--balanced --no-test --untrained nearest --out comparison-again",
    )
    run["settings"]["quick"] = True
    assert "--quick" in again_compare(run, tables).lines[0]
    assert "--methods" not in again_compare(run, tables).lines[0]
