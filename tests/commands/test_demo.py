"""``demo``: every step runs, the commands that it shows are the ones that it ran, and it says what it found."""

import csv
import json
import os
import shlex
import webbrowser
from dataclasses import asdict
from pathlib import Path

import pytest

from cerebro_eeg import cli
from cerebro_eeg.commands.demo import (
    DemoResult,
    MethodScores,
    PredictedBlock,
    ScoreInterval,
    command_line,
    demo,
    read_blocks,
)
from cerebro_eeg.errors import ConfigError


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, Path]:
    """A quick demo, in a folder that is named as a user would: relative to where the shell is."""
    home = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr(os, "fsync", lambda _: None)
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setattr(webbrowser, "open", lambda address: (home / "opened").write_text(address))
        return demo(quick=True, open=True), home


def test_every_step_leaves_what_it_says(done: tuple[DemoResult, Path]) -> None:
    found, home = done
    out = home / "cerebro-demo"
    assert found.folder == "cerebro-demo"
    assert not list((home / "config").glob("*cerebro*"))  # the key of its ids is its own, and in its folder
    assert (out / "key").read_text() == 64 * "0" + "\n"  # ... and not random, or no two demos would agree
    assert [row.name for row in found.rows] == ["linear probe", "full fine-tuning", "from scratch"]
    assert len(list((out / "predicted").glob("*.png"))) == 1
    assert (home / "opened").read_text() == (home / found.reports[0]).as_uri()
    for report in found.reports:
        assert "</html>" in (home / report).read_text(encoding="utf-8")
    assert json.loads(json.dumps(found.to_dict()))["rows"][0] == asdict(found.rows[0])


def test_pretraining_saw_nobody_and_no_label_of_the_task(done: tuple[DemoResult, Path]) -> None:
    out = done[1] / "cerebro-demo"
    people = [json.loads((out / part / "truth.json").read_text()) for part in ("unlabelled", "eyes", "new")]
    assert len({truth["seed"] for truth in people}) == 3  # another seed is other people
    alphas = [subject["alpha_hz"] for truth in people for subject in truth["subjects"].values()]
    assert len(set(alphas)) == len(alphas)
    assert "eyes" not in {recording["task"] for recording in people[0]["recordings"]}
    assert (out / "pretrain.csv").read_text().startswith("file,subject,split\n")


def test_the_commands_shown_are_those_that_ran(
    done: tuple[DemoResult, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs refuse other settings, so a command that goes on with the demo's run says exactly what the demo did."""
    found, home = done
    monkeypatch.chdir(home)
    verbs = [line.split()[1] for line in found.commands]
    three = ["finetune", "evaluate"] * 3
    assert verbs == ["simulate", "simulate", "prepare", "prepare", "pretrain", *three, "simulate", "predict"]
    for line, verb in zip(found.commands, verbs, strict=True):
        words = shlex.split(line)[1:]
        if verb == "simulate":
            again = str(home / "again" / Path(words[1]).name)
            words[1] = again
        assert cli.main([*words, "--json"]) == 0, line
        said = json.loads(capsys.readouterr().out)
        if verb == "prepare":
            assert said["done"] == 0
        elif verb == "evaluate":
            assert (said["fresh"], said["scorings"]) == (False, 1)
        elif verb == "simulate":
            before = (home / "cerebro-demo" / Path(words[1]).name / "truth.json").read_bytes()
            assert Path(again, "truth.json").read_bytes() == before


def test_counts_are_of_the_tables(done: tuple[DemoResult, Path]) -> None:
    found, home = done
    with (home / "cerebro-demo" / "eyes" / "labels" / "eyes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert found.subjects == {
        split: len({r["subject"] for r in rows if r["split"] == split}) for split in found.windows
    }
    lengths = {
        split: sum(int((float(r["stop"]) - float(r["start"])) // 3) for r in rows if r["split"] == split)
        for split in found.windows
    }
    assert found.windows == lengths


def test_text_of_a_result() -> None:
    rows = (
        MethodScores("linear probe", ScoreInterval(0.8, 0.7, 0.9, 0.5), ScoreInterval(0.9, 0.85, 0.95, 0.5)),
        MethodScores("from scratch", ScoreInterval(0.6, None, None, 0.5), ScoreInterval(None, None, None, 0.5)),
    )
    blocks = (PredictedBlock(0.0, "a", "a", 3), PredictedBlock(9.0, "b", "a", 2))
    counts = {"train": 1200, "val": 40, "test": 40}
    people = {"train": 12, "val": 1, "test": 4}
    found = DemoResult("d", 7, False, 0.5, counts, people, rows, blocks, ("d/report.html",), (), 100.0)
    text = found.text()
    assert "linear probe      0.80 (0.70 to 0.90)     0.90 (0.85 to 0.95)" in text
    assert "from scratch      0.60                    n/a" in text
    assert "chance            0.50                    0.50" in text
    assert "train 1,200 of 12 subjects, val 40 of 1 subject, test 40 of 4 subjects; seed 7" in text
    assert "1 of 2 blocks named rightly" in text
    assert "Report: d/report.html" in text
    assert "nothing is learned" not in text


def test_only_windows_within_a_block_speak_for_it(tmp_path: Path) -> None:
    labels, predictions = tmp_path / "eyes.csv", tmp_path / "predictions.csv"
    labels.write_text("file,start,stop,label\nx,0.0,4.0,a\nx,4.0,8.0,b\nx,8.0,9.0,a\n")
    windows = [(0, 3, 0.1), (1, 4, 0.5), (2, 5, 1.0), (4, 7, 0.2), (5, 8, 0.4), (6, 9, 0.0)]
    rows = [f"r,{start}.0,{stop}.0,{1 - p},{p}" for start, stop, p in windows]
    predictions.write_text("\n".join(["recording,start,stop,probability a,probability b", *rows]) + "\n")
    # Means 0.3 and 0.3: neither the window across the border nor the block without a window counts.
    assert read_blocks(labels, predictions, ["a", "b"], 0.29) == (
        PredictedBlock(0.0, "a", "b", 2),
        PredictedBlock(4.0, "b", "b", 2),
    )
    assert [block.said for block in read_blocks(labels, predictions, ["a", "b"], 0.31)] == ["a", "a"]


def test_command_line() -> None:
    options: dict[str, object] = {"from_": "a b", "lr": 2e-3, "freeze": True, "tasks": ("x", "y"), "batch_size": 32}
    line = command_line("finetune", (Path("store"), (Path("s1"), Path("s2"))), options)
    assert line == "cerebro-eeg finetune store s1 s2 --from 'a b' --lr 0.002 --freeze --tasks x y --batch-size 32"


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is a file or not empty; delete it, or name another folder with --out"):
            demo(out=out)
    with pytest.raises(ConfigError, match="seed is -1"):
        demo(out=tmp_path / "new", seed=-1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
