"""The studies in ``benchmarks/``: goals, peers and random shapes, at sizes that take no time. No test checks a time."""

import csv
import dataclasses
import re
import sys

import pytest
import torch
from test_bench import FILES, TINY, WHERE, tiny

import at_once
import embed_file
import first_step
import goals
import peers
import shapes
import stamped
import step_kernels
import where_time_goes
from cerebro_eeg.bench import options
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.run import measure, run
from cerebro_eeg.config import preset
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError, InputError, TrainingError

PEERS = tiny(peers.Peers, channels=2, seconds=1.0, windows=1, preset="tiny", gemm=(64,))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _peers(given, folder):
    return measure(peers.run, given, folder, print)


@pytest.mark.parametrize("array", [True, False], ids=["array", "edf"])
def test_embedding_a_file_beside_reading_it(tmp_path, array):
    given = embed_file.EmbedFile("cpu", "tiny", minutes=0.5, channels=3, sfreq=200.0, array=array, rounds=1)
    ((table, _),) = measure(embed_file.run, given, tmp_path, print)
    reading, embedding = _dicts(table)
    assert (reading["rival"], reading["over_reading"]) == ("reading and filtering", 1.0)
    assert embedding["over_reading"] == pytest.approx(embedding["seconds"] / reading["seconds"])
    assert f"200 Hz ({'npy' if array else 'edf'}), tiny on cpu" in table.title
    with pytest.raises(ConfigError, match="--channels is 65; expected 1 to 64"):
        embed_file.EmbedFile(channels=65)


def test_steps_of_several_processes(tmp_path):
    given = at_once.AtOnce((1, 2), "tiny", windows=4, channels=3, seconds=0.3, device="cpu")
    ((table, _),) = measure(at_once.run, given, tmp_path, print)
    rows = [dict(zip(at_once.COLUMNS, row, strict=True)) for row in table.rows]
    assert [(row["processes"], row["service"]) for row in rows] == [(1, "no"), (2, "no")]
    assert rows[0]["over_one"] == 1
    assert all(0 < row["slowest"] <= row["fastest"] <= row["steps_per_s"] for row in rows)
    with pytest.raises(ConfigError, match="at least 1"):
        at_once.AtOnce(processes=(0,))


def test_a_process_without_a_step_is_an_error(tmp_path, capfd):
    given = at_once.AtOnce((1,), "enormous", device="cpu")
    with pytest.raises(TrainingError, match="ended before its first step"):
        measure(at_once.run, given, tmp_path, print)
    assert "enormous" in capfd.readouterr().err


def test_lines_of_a_command_get_the_seconds(capsys):
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    assert stamped.main([sys.executable, "-c", code]) == 3
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert sorted(text for _, text in lines[:2]) == ["one", "two"]
    assert lines[2][1] == "ended with 3"
    assert all(float(seconds) >= 0 for seconds, _ in lines)


SLOW = """
import subprocess, sys, time
def wait():
    if sys.argv[1:]:
        subprocess.run([sys.executable, __file__], check=True)
    time.sleep(0.6)
wait()
raise SystemExit(3)
"""


def test_where_a_command_and_its_processes_spend_their_time(tmp_path, capsys):
    (tmp_path / "cerebro_eeg").mkdir()
    path = tmp_path / "cerebro_eeg" / "slow.py"
    path.write_text(SLOW.replace("check=True", "check=False"))
    assert where_time_goes.main([sys.executable, str(path), "twice"]) == 3
    lines = capsys.readouterr().out.splitlines()
    (first, second) = [place for place, line in enumerate(lines) if line.startswith("process at ")]
    assert lines[first].startswith("process at 0.00 s: ")
    for line in (lines[first + 1], lines[second + 1]):
        assert "cerebro_eeg/slow.wait:" in line
    seconds = [float(lines[place + 1].split("+")[1].split()[0]) for place in (first, second)]
    assert seconds[0] > seconds[1] > 0.4  # the first one waits for the second, and then as long again


def test_kernels_of_a_step(tmp_path):
    given = step_kernels.StepKernels(("tiny:4:3",), most=3, device="cpu")
    ((table, _),) = measure(step_kernels.run, given, tmp_path, print)
    assert [row[0] for row in table.rows] == ["tiny:4:3"] * 3
    taken = [row[2] for row in table.rows]
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] > 0
    assert table.notes[0].startswith("tiny:4:3: ")
    with pytest.raises(ConfigError, match=r"--sizes has 'tiny:4'; expected preset:windows:channels"):
        measure(step_kernels.run, step_kernels.StepKernels(("tiny:4",), device="cpu"), tmp_path, print)


def test_table_of_shapes():
    compared = [
        shapes.Compared(2.0, "worst", 4),
        shapes.Compared(0.5, "best", 600),
        shapes.Compared(1.6, "large", 512),
        shapes.Compared(1.0, "other", 511),
    ]
    table = shapes.table(10, ["a: not finite"], compared)
    every, large = _dicts(table)
    assert every == {
        "queries": "any",
        "tried": 10,
        "by_kernels": 4,
        "failures": 1,
        "over_allowed": 2,
        "error_median": 1.0,
        "error_p99": 1.6,
        "error_p999": 1.6,
        "error_most": 2.0,
    }
    assert [large[name] for name in ("by_kernels", "over_allowed", "error_median", "error_most")] == [2, 1, 0.5, 1.6]
    notes = ["fails: a: not finite", "2.00x: worst, 4 queries", "1.60x: large, 512 queries"]
    assert list(table.notes) == notes
    assert shapes.table(3, [], []).rows[0] == ["any", 3, 0, 0, 0, None, None, None, None]


def test_peers_without_braindecode_are_listed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "braindecode", None)
    monkeypatch.setitem(sys.modules, "braindecode.models", None)
    ((table, _),) = _peers(PEERS, tmp_path)
    assert [row[0] for row in table.rows] == ["CEReBrO"]
    assert sum("fails" in note for note in table.notes) == 7


def test_peers_have_flops_and_ours_a_ceiling(tmp_path):
    given = dataclasses.replace(PEERS, without=tuple(peers.PEERS))
    ((table, _),) = _peers(given, tmp_path)
    (row,) = table.rows
    flops = cost(preset("tiny").model, 2, 256).flops
    assert row[list(table.columns).index("gflop")] == flops / 1e9
    rates = re.fullmatch(r"ceiling: GEMM ([\d.e+]+) GFLOP/s; .* take ([\d,]+) .* and ([\d,]+) in .*", table.notes[1])
    peak, inference, training = (float(number.replace(",", "")) for number in rates.groups())
    assert inference == pytest.approx(peak * 1e9 / flops, rel=0.01)
    assert training == pytest.approx(inference / 3, rel=0.01)


def test_a_peer_that_fails_with_many_windows_takes_fewer():
    """Half of 8 is what this one's library takes; rates are still of windows, and the failure is told."""

    def small_only(windows):
        def forward():
            if windows > 4:
                raise RuntimeError("cuDNN: not supported")
            return torch.zeros(windows, 2, requires_grad=True)

        return forward

    module = torch.nn.Linear(1, 1)
    entries = {
        name: peers.Candidate(module, call, 256.0, 2, 1)
        for name, call in (("CEReBrO", lambda n: lambda: torch.zeros(n, 2, requires_grad=True)), ("LUNA", small_only))
    }
    found = peers.measure("training", peers.train, entries, 8, 3, torch.device("cpu"))
    assert found.windows == {"CEReBrO": 8, "LUNA": 4}
    assert found.failing == [("LUNA, training, 8 windows", "RuntimeError: cuDNN: not supported")]
    assert found.times("LUNA") == found.per_s["CEReBrO"] / found.per_s["LUNA"]
    one = peers.measure("inference", peers.infer, {"LUNA": entries["LUNA"]}, 1, 1, torch.device("cpu"))
    assert one.windows == {"LUNA": 1}
    assert one.times("LUNA") is None


def test_a_peer_that_never_runs_is_listed_with_each_try():
    def broken(windows):
        return lambda: torch.zeros(windows, 2).view(-1, 3)

    entry = peers.Candidate(torch.nn.Linear(1, 1), broken, 256.0, 2, 1)
    found = peers.measure("inference", peers.infer, {"LUNA": entry}, 2, 1, torch.device("cpu"))
    assert found.per_s == {}
    assert found.times("LUNA") is None
    assert [label for label, _ in found.failing] == ["LUNA, inference, 2 windows", "LUNA, inference, 1 windows"]


def test_flops_of_layers_that_torch_fuses_are_counted():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        found = peers.count_flops(lambda: layer(torch.zeros(1, 5, 16)))
    assert found == 2 * 5 * 16 * (3 * 16 + 16 + 2 * 32) + 2 * 2 * 5 * 5 * 16


def write(folder, name, lines):
    rows = [{"machine": "m", "date": "d", **line} for line in lines]
    with open(folder / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_goals_read_what_was_measured(tmp_path):
    grid = [
        {"head_dim": dim, "length": length, "times_both": ratio, "floor_forward": 0.5 + length / 100, "floor_both": 0.7}
        for dim, length, ratio in ((16, 19, 9.5), (16, 32, 9.0), (48, 8, 0.9), (64, 64, ""))
    ]
    write(tmp_path, "attention", grid)
    write(tmp_path, "peers", [{"model": "LUNA", "inference_times": x, "training_times": ""} for x in (5, 3)])
    write(tmp_path, "latency", [{"preset": "small", "rival": r, "eager_over": x} for r, x in (("eager", 9), ("g", 4))])
    write(tmp_path, "mixed", [{"preset": "small", "form": "packed", "per_token": 1.04, "padded_over": 2.1}])
    steps = [
        {"rival": rival, "preset": preset, "form": form, "windows": 64, "channels": n, "ms": ms, "over_kernels": over}
        for rival, preset, form, n, ms, over in (
            ("CEReBrO", "small", "plain", 14, 9.0, 1.0),
            ("CEReBrO", "small", "captured", 14, 3.5, 1.3),
            ("CEReBrO", "small", "whole", 14, 3.4, ""),
            ("EEGNet", "small", "plain", 14, 1.0, 1.0),
            ("CEReBrO", "base", "captured", 14, 2.0, 1.0),
            ("CEReBrO", "small", "plain", 32, 9.0, 1.0),
            ("CEReBrO", "small", "captured", 32, 6.0, 1.38),
        )
    ]
    write(tmp_path, "finetune", steps)
    whole = [
        {
            "training": training,
            "preset": "small",
            "windows": n,
            "form": form,
            "caches": caches,
            "ms": ms,
            "over_kernels": x,
        }
        for training, n, form, caches, ms, x in (
            ("pretrain", 2048, "eager", "full", 90.0, 1.01),
            ("pretrain", 2048, "compiled", "full", 80.0, 1.07),
            ("pretrain", 2048, "captured", "empty", 10.0, 1.0),
            ("finetune", 2048, "captured", "full", 10.0, 1.0),
            ("pretrain", 256, "captured", "full", 10.0, ""),
        )
    ]
    write(tmp_path, "first_step", whole)
    table = goals.compare(tmp_path)
    rows = {row[0]: row[2:4] for row in table.rows}
    assert rows["fine-tuning step, Small, 64 windows x 14 channels: ms"] == [3.5, "yes"]  # the fastest of our steps
    either = "fine-tuning step, Small, 64 windows x 32 channels: over 5.8 ms or over 1.15 times its kernels"
    assert rows[either] == [pytest.approx(6.0 / 5.8), "no"]  # over its kernels 1.2 times as long as asked
    assert rows["pre-training step, Small, 2,048 windows: over its kernels"] == [1.07, "yes"]  # of the fastest form
    assert rows["pre-training step, Small, 256 windows: over its kernels"] == [None, "no"]
    assert len(rows) == len(goals.GOALS)
    first = "attention, forward + backward, head dim 16, axes 19-32, over the best stock backend: least"
    assert rows[first] == [9.0, "yes"]
    assert rows["the same: least"] == [0.9, "no"]
    assert rows["share of the copy floor, forward, axes 16-64: least"] == [pytest.approx(0.69), "no"]
    assert rows["LUNA over ours, inference"] == [3.0, "no"]  # the peer at its best
    assert rows["LUNA over ours, training"] == [None, "no"]
    assert rows["batch-1 latency, eager over the best, small"] == [4.0, "yes"]
    assert rows["mix, per real token over uniform, small"] == [1.04, "yes"]
    assert rows["mix of 18-36 channels, padded to 64 over packed, small"] == [2.1, "no"]
    assert rows["random shapes that fail"] == [None, "no"]
    when = {row[0]: row[-1] for row in table.rows}
    assert when["random shapes that fail"] == when["LUNA over ours, training"] == "not measured"
    assert when["LUNA over ours, inference"] != "not measured"


def test_goals_name_columns_that_the_benchmarks_write(tmp_path):
    """Every goal reads its column from a file of a real run; with other presets it finds no row, never no column."""
    folder, needed = tmp_path, {goal.file for goal in goals.GOALS}
    for kind in TINY:
        if needed.intersection(FILES.get(kind, [options.name_of(kind)])):
            run(tiny(kind), folder, print)
    _peers(PEERS, folder)
    few, many = shapes.Compared(1.7, "few", 2), shapes.Compared(1.0, "many", 600)
    shapes.table(2, [], [few, many]).write(folder, WHERE)
    first_step.table(first_step.rows_of(("pretrain", "tiny", 4), ("eager",), {}), []).write(folder, WHERE)
    assert {goal.file for goal in goals.GOALS} <= {path.stem for path in folder.glob("*.csv")}
    rows = {row[0]: row[2] for row in goals.compare(folder).rows}
    assert rows["CPU, one thread, Small, 19 channels x 5 s: share of the sgemm rate"] is not None
    assert rows["random shapes that fail"] == 0
    assert rows["random shapes: most error over the best backend's"] == 1.7  # of all, not only of large ones


def test_goals_from_files_need_no_gpu(tmp_path):
    ((table, place),) = goals.run(goals.Goals(found=True), tmp_path, print)
    assert table.title.startswith("Goals: 0 of")
    assert place.command == "python benchmarks/goals.py --found"


def test_goals_run_every_part_that_is_not_left_out(tmp_path):
    asked = []

    def measure(given, out, say):
        asked.append(given)
        return []

    goals.run(goals.Goals(device="cpu", without=("train", "cpu")), tmp_path, print, measure)
    assert [options.name_of(type(given)) for given in asked] == (
        "attention forward latency mixed finetune first_step peers shapes".split()
    )
    assert asked[-1].shapes == 2000
    with pytest.raises(ConfigError, match="choose of train"):
        goals.run(goals.Goals(device="cpu", without=("nothing",)), tmp_path, print, measure)


def test_a_study_has_a_command_line_of_its_own(tmp_path, capsys):
    """The record names the script that measured, and a wrong option is one line."""
    words = "--rounds 1 --channels 2 --seconds 1 --windows 1 --preset tiny --gemm 64 --device cpu --out".split()
    assert main_of(peers.Peers, peers.run, [*words, str(tmp_path), "--without", *peers.PEERS]) == 0
    assert ": python benchmarks/peers.py --rounds 1 --channels 2" in capsys.readouterr().out
    assert (peers.Peers().windows, peers.Peers().compiled) == (0, ())
    assert main_of(peers.Peers, peers.run, ["--without", "Nobody", "--device", "cpu"]) == ConfigError.exit_code
    assert "there is no model Nobody" in capsys.readouterr().err
    assert goals.main(["--found", "--out", str(tmp_path / "none")]) == 0
    with pytest.raises(ConfigError, match="kernels on a GPU"):
        shapes.run(shapes.Shapes(shapes=5, device="cpu"), print)
    with pytest.raises(ConfigError, match="--workers is 0"):
        shapes.Shapes(workers=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_goals_refuse_in_one_line_without_a_gpu(tmp_path, capsys):
    assert goals.main(["--out", str(tmp_path / "out")]) == InputError.exit_code
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "benchmarks/goals.py measures a CUDA GPU" in line
    assert not (tmp_path / "out").exists()
