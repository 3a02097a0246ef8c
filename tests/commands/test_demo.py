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
    DemoTask,
    MethodScores,
    PredictedBlock,
    ScoreInterval,
    command_line,
    demo,
    read_blocks,
    write_table,
)
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.runs.rivals import CHANCE, RIVALS, verdict


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
    chosen, random, mean = "small-open, head chosen", "random weights, head chosen", "small-open, mean"
    assert [[row.name for row in task.rows] for task in found.tasks] == [
        [chosen, *RIVALS, CHANCE, random, mean, "random weights, mean", "from scratch"],
        [chosen, *RIVALS, CHANCE, mean],
    ]
    assert len(list((out / "predicted").glob("*.png"))) == 1
    assert (home / "opened").read_text() == (home / found.reports[0]).as_uri()
    for report in found.reports:
        assert "</html>" in (home / report).read_text(encoding="utf-8")
    assert json.loads(json.dumps(found.to_dict()))["tasks"][0]["rows"][0] == asdict(found.tasks[0].rows[0])


def test_the_new_recording_is_of_somebody_else(done: tuple[DemoResult, Path]) -> None:
    out = done[1] / "cerebro-demo"
    eyes, hands, new = (json.loads((out / part / "truth.json").read_text()) for part in ("eyes", "hands", "new"))
    assert eyes["subjects"] == hands["subjects"]
    alphas = {subject["alpha_hz"] for subject in eyes["subjects"].values()}
    assert len(alphas) == len(eyes["subjects"])
    assert not alphas & {subject["alpha_hz"] for subject in new["subjects"].values()}


def test_the_rows_are_what_the_runs_scored(done: tuple[DemoResult, Path]) -> None:
    found, home = done
    for task in found.tasks:
        scored = json.loads((home / "cerebro-demo" / f"{task.name}-default" / "test.json").read_text())
        rivals = json.loads((home / "cerebro-demo" / f"{task.name}-default" / "rivals.json").read_text())["rivals"]
        ours = scored["first"]["summary"]["levels"]["window"]["values"]["auroc"]
        assert (task.rows[0].auroc.value, task.rows[0].behind) == (ours["mean"], None)
        assert [row.auroc.value for row in task.rows[1 : 1 + len(rivals)]] == [rival["rival"] for rival in rivals]
        for row in task.rows[1:]:
            assert row.behind.value == pytest.approx(ours["mean"] - row.auroc.value)
        assert task.verdict == verdict(rivals)


def test_the_commands_shown_are_those_that_ran(
    done: tuple[DemoResult, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs refuse other settings, so a command that goes on with the demo's run says exactly what the demo did."""
    found, home = done
    monkeypatch.chdir(home)
    verbs = [line.split()[1] for line in found.commands]
    assert verbs == ["simulate", "simulate", "prepare", "prepare", *["finetune", "evaluate"] * 7, "simulate", "predict"]
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
    for task in found.tasks:
        with (home / "cerebro-demo" / f"{task.name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        counted = {split: {row["subject"] for row in rows if row["split"] == split} for split in task.windows}
        assert task.subjects == {split: len(people) for split, people in counted.items()}
        assert task.subjects == {"train": 2, "val": 1, "test": 1}
        lengths = {
            split: sum(int((float(r["stop"]) - float(r["start"])) // 2) for r in rows if r["split"] == split)
            for split in task.windows
        }
        assert task.windows == lengths


def test_few_subjects_are_labelled_and_labels_stay_theirs(tmp_path: Path) -> None:
    labels, table = tmp_path / "labels.csv", tmp_path / "table.csv"
    people = [f"sub-{number:02}" for number in range(12, 0, -1)]  # the order of the rows does not matter
    labels.write_text("file,subject,split,label\n" + "".join(f"{who}.edf,{who},train,{who[-1]}\n" for who in people))
    write_table(labels, table, 4)
    with table.open(newline="") as file:
        rows = {row["subject"]: row for row in csv.DictReader(file)}
    assert [rows[f"sub-{n:02}"]["split"] for n in range(1, 13)] == ["train"] * 3 + ["val"] + ["test"] * 8
    assert all((row["file"], row["label"]) == (f"{who}.edf", who[-1]) for who, row in rows.items())


def test_text_of_a_result() -> None:
    rows = (
        MethodScores("ours", ScoreInterval(0.8, 0.7, 0.9), None),
        MethodScores("band power", ScoreInterval(0.912, None, None), ScoreInterval(-0.112, -0.2, 0.05)),
        MethodScores("from scratch", ScoreInterval(None, None, None), ScoreInterval(0.0, None, None)),
    )
    counts, people = {"train": 1200, "val": 40, "test": 4000}, {"train": 12, "val": 1, "test": 4}
    task = DemoTask("eyes", counts, people, "hybrid", rows, "no winner")
    blocks = (PredictedBlock(0.0, "a", "a", 3), PredictedBlock(9.0, "b", "a", 2))
    found = DemoResult("d", 7, False, (task,), blocks, ("d/report.html",), (), 100.0)
    text = found.text()
    assert "Are the eyes open? Learned from 13 people, scored once on 4 others (1,240 and 4,000 windows)" in text
    assert "  ours                          0.800 (0.700 to 0.900)\n" in text
    assert "  band power                    0.912                   -0.112 (-0.200 to +0.050)\n" in text
    assert "  from scratch                  n/a                     +0.000\n" in text
    assert "  The head chosen is hybrid; no winner.\n" in text
    assert "1 of 2 blocks named rightly" in text
    assert "Seed 7" in text
    assert "Simulated EEG is simpler than anybody's" in text
    assert "Report: d/report.html" in text
    assert text.endswith("cerebro-eeg compare STORE --out COMPARISON --quick")
    assert "mean nothing" not in text


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
    line = command_line("finetune", (Path("store"), (Path("s1"), Path("s2"))), {**options, "random_weights": False})
    assert line == (
        "cerebro-eeg finetune store s1 s2 --from 'a b' --lr 0.002 --freeze --tasks x y --batch-size 32 "
        "--no-random-weights"
    )


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is a file or not empty; delete it, or name another folder with --out"):
            demo(out=out)
    with pytest.raises(ConfigError, match="seed is -1"):
        demo(out=tmp_path / "new", seed=-1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
