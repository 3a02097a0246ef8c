"""Benchmarks at sizes that take no time: what is measured, in which order, and what becomes of it. Nothing is timed."""

import ast
import csv
import dataclasses
import io
import math
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

from cerebro_eeg.bench import __main__ as bare
from cerebro_eeg.bench import clock, forward, goals, loader, mixed, options, peers, shapes, train
from cerebro_eeg.bench.attention import as_row, geometric_mean
from cerebro_eeg.bench.ceilings import best_gemm, in_flops, kept_up, passed, roofline
from cerebro_eeg.bench.ceilings import products as layer_products
from cerebro_eeg.bench.clock import Timing, Turns, take_turns
from cerebro_eeg.bench.cpu import products
from cerebro_eeg.bench.machine import Where, choose_device, command, cpu, where
from cerebro_eeg.bench.models import Rival, captured, chosen, noise
from cerebro_eeg.bench.run import run
from cerebro_eeg.bench.table import Panel, Series, Table, failing_notes
from cerebro_eeg.cli import main
from cerebro_eeg.commands.bench import bench
from cerebro_eeg.config import preset
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import attention as short_axis

ROOT = Path(__file__).parents[2]
WHERE = Where("a machine", "2.0", "2026-01-01", "cerebro-eeg bench x")
CPU = torch.device("cpu")
KINDS = typing.get_args(options.Options)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class FakeClock:
    """Says what each rival takes, and notes who was called."""

    def __init__(self, seconds):
        self.seconds = {name: iter(values) for name, values in seconds.items()}
        self.calls = []

    def __call__(self, call, repeats):
        name = call()
        self.calls.append((name, repeats))
        return next(self.seconds[name])


def test_a_busy_machine_is_told_over_every_table(monkeypatch):
    for load, said in ((0.0, ""), (1e9, ", BUSY: load 1000000000.0")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert where(options.Cpu()).machine == cpu() + said


# ---- clock ---------------------------------------------------------------------------------------------------------


def test_rivals_take_turns_from_either_end_and_medians_are_compared():
    fake = FakeClock({"a": [99, 1, 2, 9], "b": [99, 4, 4, 4]})
    turns = take_turns({"a": lambda: "a", "b": lambda: "b"}, 3, fake, repeats=5, warm=1)
    assert fake.calls == [("a", 1), ("b", 1), ("a", 5), ("b", 5), ("b", 5), ("a", 5), ("a", 5), ("b", 5)]
    assert turns.timings == {"a": Timing((1, 2, 9)), "b": Timing((4, 4, 4))}  # warm calls do not count
    assert turns.seconds("a") == 2
    assert turns.timings["a"].spread == 4
    assert turns.times("b", "a") == 2
    assert turns.best("a") == "b"
    assert turns.best() == "a"


def test_a_rival_that_fails_is_out_and_its_error_stays():
    def broken():
        raise ValueError("no such kernel\nand much more")

    calls = iter(range(100))

    def breaks_later():
        if next(calls) > 1:
            raise RuntimeError("out of memory")
        return "late"

    fake = FakeClock({"good": [1] * 4, "late": [1] * 4})
    turns = take_turns({"good": lambda: "good", "bad": broken, "late": breaks_later}, 3, fake, warm=1)
    assert turns.failing == {"bad": "ValueError: no such kernel", "late": "RuntimeError: out of memory"}
    assert list(turns.timings) == ["good"]
    assert turns.times("bad", "good") is None
    assert turns.seconds("bad") is None
    assert turns.best("good") is None


def test_an_error_that_leaves_the_gpu_unusable_is_raised():
    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        take_turns({"bad": broken}, 1, clock.on_host)


def test_every_error_of_cuda_speaks_of_assertions_and_few_are_final():
    def refused():
        raise RuntimeError(
            "CUDA error: invalid argument\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
        )

    turns = take_turns({"refused": refused}, 1, clock.on_host)
    assert turns.failing == {"refused": "RuntimeError: CUDA error: invalid argument"}
    with pytest.raises(RuntimeError, match="triggered"):
        clock.failure(RuntimeError("CUDA error: device-side assert triggered\nand more"))


@pytest.mark.parametrize("timer", [clock.on_host, clock.of_all_threads, clock.of_this_thread])
def test_clocks_divide_by_repeats_and_call_as_often(timer, monkeypatch):
    ticks = iter([10.0, 16.0])
    for name in ("perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(clock.time, name, lambda: next(ticks))
    called = []
    assert timer(lambda: called.append(1), 3) == 2
    assert len(called) == 3


# ---- tables --------------------------------------------------------------------------------------------------------


TABLE = Table(
    "speed",
    "A title",
    {"who": "", "ms": ".1f", "times": ".2fx", "hidden": None},
    [["ours", 1.25, 1.0, 7], ["rival, slow", 2.5, 2.0, 8], ["broken", None, None, None]],
    [Panel("ms", "", [Series("ms", ["ours", "rival"], [1.25, None]), Series("more", ["ours"], [2.0])], 1.0)],
    failing_notes([("broken", "ValueError: no"), ("broken", "ValueError: no"), ("other", "x")]),
)


def test_terminal_table():
    assert TABLE.text(WHERE).splitlines() == [
        "A title",
        "a machine, torch 2.0, 2026-01-01: cerebro-eeg bench x",
        "who           ms  times",
        "ours         1.2  1.00x",
        "rival, slow  2.5  2.00x",
        "broken         -      -",
        "fails: broken (2 times): ValueError: no",
        "fails: other: x",
    ]
    assert "rival" not in dataclasses.replace(TABLE, shown=[0]).text(WHERE)


def test_csv_has_every_figure_and_where_it_comes_from():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv(WHERE))))
    assert rows[1] == {
        "who": "rival, slow",
        "ms": "2.5",
        "times": "2.0",
        "hidden": "8",
        "machine": "a machine",
        "torch": "2.0",
        "date": "2026-01-01",
        "command": "cerebro-eeg bench x",
    }
    assert rows[2]["ms"] == ""


def test_plot_shows_bars_lines_and_marks(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))
    curves = [Series("ours", [1.0, 2.0, 3.0], [4.0, None, 6.0]), Series("paper", [1.0, 2.0], [5.0, 5.5], "--")]
    lines = Panel("ms", "tokens", curves, logarithmic=True)
    names = dataclasses.replace(TABLE, panels=[*TABLE.panels, lines]).write(tmp_path, WHERE)
    assert {path.name for path in tmp_path.iterdir()} == set(names) == {"speed.csv", "speed.txt", "speed.png"}
    bars, curves = kept[0].axes
    assert sorted(patch.get_height() for patch in bars.patches) == [1.25, 2.0]
    assert [label.get_text() for label in bars.get_xticklabels()] == ["ours", "rival"]
    assert bars.lines[0].get_ydata()[0] == 1.0  # the mark
    assert [list(line.get_xydata().flat) for line in curves.lines] == [[1, 4, 3, 6], [1, 5, 2, 5.5]]
    assert curves.lines[0].get_color() == curves.lines[1].get_color()  # a dashed curve belongs to the one before it
    assert curves.get_yscale() == "log"
    assert (tmp_path / "speed.png").read_bytes()[:4] == b"\x89PNG"


def test_command_names_what_is_not_the_default_and_no_path():
    given = options.Loader(store=Path("/home/somebody/store"), threads=(1, 2), seconds=2.0)
    assert command(given) == "cerebro-eeg bench loader --store STORE --seconds 2.0 --threads 1 2"
    assert command(options.Train(eager=True)) == "cerebro-eeg bench train --eager"


# ---- what is measured ----------------------------------------------------------------------------------------------


def test_ceilings_and_rates():
    gemm, rate = best_gemm(CPU, torch.float32, (8, 256))
    assert (gemm.size, gemm.flops) == (256, 2 * 256**3)
    assert rate > 1e9
    assert kept_up(gemm, CPU) > 1e9
    assert in_flops(7.4e14) == "740 TFLOP/s"
    assert in_flops(6.5e10) == "65 GFLOP/s"


@pytest.mark.parametrize("name", ["tiny", "small", "large"])
def test_products_of_the_layers_are_the_flops_without_attention(name):
    config = preset(name).model
    found = cost(config, 19, 1280)
    assert sum(2 * m * k * n for m, k, n in products(config, 19, 1280)) == found.flops - found.attention_flops


def test_row_of_attention_has_ratios_against_the_best_and_shares_of_the_floor():
    forward = Turns({"ours": Timing((1e-3,)), "flash": Timing((5e-3,)), "math": Timing((4e-3,))}, {})
    both = Turns({"ours": Timing((2e-3,)), "flash": Timing((6e-3,))}, {"math": "no"})
    row = as_row("time", 16, 20, forward, both, 1e-4)
    assert row[:9] == ["time", 16, 20, 1.0, 2.0, "math", 4.0, "flash", 3.0]
    assert row[9:11] == pytest.approx([0.4, 0.55])
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)


def test_rivals_choose_their_kernels_and_leave_no_trace():
    before = short_axis._choice
    for backend, everything, choice in (
        ("ours", False, "auto"),
        ("math", False, "stock attention"),
        (None, True, "stock"),
    ):
        with chosen(backend, everything):
            assert short_axis._choice == choice
            assert torch.backends.cuda.flash_sdp_enabled() == (backend != "math")
    assert short_axis._choice == before
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("attention", ["alternating", "standard"])
def test_every_backend_computes_the_same(attention):
    batch = noise(2, 3, 256, CPU)
    found = []
    for backend in ("ours", "flash", "math", None):
        encoder = Rival(attention, backend).encoder("tiny", 256, CPU)
        with torch.no_grad(), chosen(backend):
            found.append(encoder(batch).x_RND)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-4)


def test_all_forms_of_a_mixture_have_the_same_real_rows():
    asked = options.Mixed(least=2, most=5, pad=7, device="cpu")
    forms, real = mixed.make_forms(asked, 6, 128, CPU)
    rows = real["packed"]
    assert forms["packed"].signal_RT.shape[0] == rows
    for form, width in (("padded", 7), ("padded to widest", forms["packed"].layout.width)):
        assert forms[form].signal_RT.shape[0] == 6 * width
        assert torch.equal(forms[form].packed().signal_RT, forms["packed"].signal_RT)
    assert abs(real["uniform"] - rows) <= 3
    assert forms["uniform"].signal_RT.shape[0] == real["uniform"]


def test_single_reads_come_to_all_windows():
    seen = []
    call = loader._parts(seen.append, place=2, windows=500)
    for _ in range(5):
        call()
    assert sorted(part.start for part in seen) == [0, 100, 200, 300, 400]


def test_curves_of_the_paper_are_those_of_the_recipes():
    found = forward.read_curves()
    count = 0
    for figure in ("sizes", "kinds"):
        text = (ROOT / "recipes" / f"figure_{figure}.py").read_text(encoding="utf-8")
        doc = ast.get_docstring(ast.parse(text))
        for heading, field in (("runtime, ms", "ms"), ("memory, MB", "mb")):
            lines = doc.split(f"{heading}\n", 1)[1].split("\n\n", 1)[0].splitlines()
            for line in lines[1:]:
                tokens, *values = line.split()
                for name, value in zip(lines[0].split()[1:], values, strict=True):
                    attention, _, size = name.partition("-")
                    point = found[figure, size or "large", attention, int(tokens)]
                    assert getattr(point, field) == (None if value == "-" else float(value))
                    count += 1
    assert count == 2 * len(found)


def test_figure_has_ratios_over_ours_and_the_papers_numbers(monkeypatch):
    times = {"alternating": (0.002, 0.1, 10.0), "materialised": (0.005, 0.2, 60.0), "two_axis": (0.003, 0.1, None)}
    monkeypatch.setattr(forward, "_point", lambda *given: (times, {"standard": "OutOfMemoryError: no"}))
    asked = options.Forward(presets=("large",), channels=(1, 61), device="cpu")
    table = forward.figure(asked, 64, CPU, print)
    rows = {(row[1], row[3]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert len(rows) == 10
    slow = rows["materialised", 3904]
    assert [slow[name] for name in ("ms", "times", "mib", "times_memory")] == [5.0, 2.5, 60.0, 6.0]
    assert (slow["paper_sizes_ms"], slow["paper_kinds_ms"]) == (782.6, None)  # there it ran out of memory
    assert rows["two_axis", 64]["paper_kinds_ms"] == 17.1
    assert rows["two_axis", 64]["times_memory"] is None
    assert rows["standard", 64]["ms"] is None
    assert rows["standard", 64]["paper_sizes_ms"] is None  # the paper's kept its scores
    assert "fails: standard, large, 3,904 tokens: OutOfMemoryError: no" in table.notes
    assert not any(row["paper_sizes_ms"] for row in _dicts(forward.figure(asked, 20, CPU, print)))


def _dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


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


# ---- end to end ----------------------------------------------------------------------------------------------------


TINY = {
    options.Attention: {"dims": (16,), "axes": (3,), "heads": 2, "tokens": 128, "copy": 2**12},
    options.Forward: {"presets": ("tiny",), "patches": (64, 2), "channels": (1,), "windows": 1, "goal_channels": 2},
    options.Latency: {"presets": ("tiny",), "channels": 2, "seconds": 1.0},
    options.Train: {"presets": ("tiny",), "windows": (2,), "channels": 2, "seconds": 1.0, "gemm": (16,), "copy": 99},
    options.Mixed: {"presets": ("tiny",), "windows": (2,), "least": 1, "most": 2, "pad": 3, "seconds": 1.0},
    options.Pretrain: {"presets": ("tiny",), "windows": 2, "steps": 4, "recordings": 1, "minutes": 0.4},
    options.Loader: {
        "recordings": 2,
        "minutes": 0.1,
        "seconds": 1.0,
        "batch": 2,
        "steps": 2,
        "windows": 100,
        "index": 9,
    },
    options.Prepare: {"minutes": 0.5, "cases": ("2x250",)},
    options.Cpu: {"preset": "tiny", "channels": (19, 2), "seconds": 1.0, "gemm": (16,)},
    options.Peers: {"channels": 2, "seconds": 1.0, "windows": 1, "preset": "tiny", "gemm": (64,)},
}
FILES = {
    options.Forward: ["forward-square", "forward-64", "forward-2"],
    options.Loader: ["loader", "reads"],
}


def tiny(kind):
    more = {name: "cpu" for name in ("device",) if hasattr(kind, name)}
    more |= {name: True for name in ("eager",) if hasattr(kind, name)}
    return kind(rounds=1, **TINY[kind], **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("kind", TINY)
def test_benchmark_end_to_end(kind, folder):
    said = []
    found = run(tiny(kind), folder, said.append)
    name = kind.__name__.lower()
    assert [table.name for table, _ in found] == FILES.get(kind, [name])
    assert said
    for table, place in found:
        rows = list(csv.DictReader((folder / f"{table.name}.csv").read_text().splitlines()))
        assert len(rows) == len(table.rows) > 0
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert rows[0]["torch"] == torch.__version__
        assert rows[0]["command"].startswith(f"cerebro-eeg bench {name} --rounds 1")
        assert table.title in table.text(place)
        assert (folder / f"{table.name}.png").stat().st_size > 1000


def test_a_table_is_written_before_the_next_is_measured(tmp_path, monkeypatch):
    """A run that is cut off in between has left it."""

    def cut_off(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(forward, "figure", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(options.Forward), tmp_path, print)
    assert {path.name for path in tmp_path.iterdir()} == {f"forward-square.{kind}" for kind in ("csv", "txt", "png")}


def test_kernels_by_group():
    names = {
        "nvjet_sm90_tst_192x192_64x4_1x2_h_bz_coopB_TNN": 3.0,
        "cutlass_80_wmma_tensorop_bf16": 0.5,
        "cerebro_mlp_down_backward": 2.0,
        "cerebro_norm_forward": 1.0,
        "void at::native::vectorized_layer_norm_kernel<float>": 0.25,
        "cerebro_attention_backward": 4.0,
        "Memset (Device)": 0.125,
    }
    found = train.grouped(names.items())
    sums = {"attention": 4.0, "products": 3.5, "products with GELU": 2.0, "norms": 1.25, "rest": 0.125}
    assert list(found.items()) == list(sums.items())
    assert train.describe_kernels("ours", "base", found) == (
        "kernels of a step of ours, base: 10.9 ms (attention 4.0, products 3.5, products with GELU 2.0, norms 1.2, "
        "rest 0.1)"
    )
    assert train.profiled(lambda: None, torch.device("cpu")) is None


@pytest.mark.gpu
def test_cuda_kernels_of_a_call():
    """A product and a copy; the host's events are not counted twice."""
    a = torch.randn(4096, 4096, device="cuda")
    found = train.profiled(lambda: (a @ a).add_(1), torch.device("cuda"))
    assert found["products"] > found["rest"] > 0
    assert found["attention"] == found["norms"] == 0


def test_rivals_that_cannot_run_here_are_listed(folder):
    run(tiny(options.Attention), folder, print)
    text = (folder / "attention.txt").read_text()
    assert "fails: cudnn (4 times)" in text
    assert "fails: efficient" in text
    run(tiny(options.Latency), folder, print)
    assert "fails: eager, CUDA graph, tiny: RuntimeError: CUDA graphs need" in (folder / "latency.txt").read_text()


def test_peers_without_braindecode_are_listed(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "braindecode", None)
    monkeypatch.setitem(sys.modules, "braindecode.models", None)
    ((table, _),) = run(tiny(options.Peers), folder, print)
    assert [row[0] for row in table.rows] == ["CEReBrO"]
    assert sum("fails" in note for note in table.notes) == 7


def test_peers_have_flops_and_ours_a_ceiling(folder):
    given = dataclasses.replace(tiny(options.Peers), without=tuple(peers.PEERS))
    ((table, _),) = run(given, folder, print)
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
        name: peers.Entry(module, call, 256.0, 2, 1)
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

    entry = peers.Entry(torch.nn.Linear(1, 1), broken, 256.0, 2, 1)
    found = peers.measure("inference", peers.infer, {"LUNA": entry}, 2, 1, torch.device("cpu"))
    assert found.per_s == {}
    assert found.times("LUNA") is None
    assert [label for label, _ in found.failing] == ["LUNA, inference, 2 windows", "LUNA, inference, 1 windows"]


def test_flops_of_layers_that_torch_fuses_are_counted():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        found = peers.count_flops(lambda: layer(torch.zeros(1, 5, 16)))
    assert found == 2 * 5 * 16 * (3 * 16 + 16 + 2 * 32) + 2 * 2 * 5 * 5 * 16


def test_prepare_without_mne_lists_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mne", None)
    ((table, _),) = run(tiny(options.Prepare), folder, print)
    assert [row[1] for row in table.rows] == ["ours"]
    assert sum(note.startswith("fails: MNE") for note in table.notes) == 2


def test_loader_takes_a_store(tmp_path):
    from cerebro_eeg.bench.noise_store import write_noise

    write_noise(tmp_path / "store", 1, 6)
    given = dataclasses.replace(tiny(options.Loader), store=tmp_path / "store", index=0)
    found = run(given, tmp_path / "out", print)
    assert "--store STORE" in found[0][1].command
    assert not any("index" in note for note in found[0][0].notes)


def test_verb_returns_text_and_json(tmp_path, capsys):
    words = "bench cpu --rounds 1 --preset tiny --channels 2 --seconds 1 --gemm 16 --eager --json --out".split()
    assert main([*words, str(tmp_path)]) == 0
    assert '"sgemm_share"' in capsys.readouterr().out
    assert "CPU, 1 thread, tiny" in bench(tiny(options.Cpu), out=tmp_path).text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["attention", "forward", "latency", "train", "mixed", "goals"])
def test_a_gpu_benchmark_refuses_in_one_line_without_one(name, capsys, tmp_path):
    for call in (main, lambda words: bare.main(words[1:])):
        assert call(["bench", name, "--out", str(tmp_path / "out")]) == InputError.exit_code
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert f"bench {name} measures a CUDA GPU" in line
    assert not (tmp_path / "out").exists()


def test_options_that_make_no_sense_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="--rounds is 0"):
        options.Train(rounds=0)
    with pytest.raises(ConfigError, match="--axes"):
        options.Attention(axes=(0, 4))
    for nothing in (
        lambda: options.Cpu(gemm=()),
        lambda: options.Forward(only=()),
        lambda: options.Forward(channels=()),
    ):
        with pytest.raises(ConfigError, match="has nothing behind it"):
            nothing()
    for senseless in (
        lambda: options.Cpu(windows=0),
        lambda: options.Mixed(windows=(0, 2)),
        lambda: options.Train(seconds=math.inf),
    ):
        with pytest.raises(ConfigError, match="expected positive numbers"):
            senseless()
    assert (options.Peers().windows, options.Peers().compiled, options.Cpu(threads=0).threads) == (0, (), 0)
    with pytest.raises(ConfigError, match="400 channels were asked for; there are 362 electrodes"):
        noise(1, 400, 64, CPU)
    with pytest.raises(ConfigError, match="2 numbers for 1 presets"):
        run(options.Train(presets=("tiny",), windows=(1, 2), device="cpu"), tmp_path, print)
    with pytest.raises(ConfigError, match="there is no model Nobody"):
        run(options.Peers(without=("Nobody",), device="cpu"), tmp_path, print)
    with pytest.raises(ConfigError, match="expected channels x Hz"):
        run(options.Prepare(cases=("many",)), tmp_path, print)
    with pytest.raises(ConfigError, match="kernels on a GPU"):
        run(options.Attention(shapes=5, device="cpu"), tmp_path, print)
    with pytest.raises(InputError, match="expected cuda"):
        choose_device("mps", "train")
    with pytest.raises(InputError, match="expected cuda"):
        choose_device("cpu:one", "train")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="device is 'cuda:2'; torch sees 2 GPUs here"):
        choose_device("cuda:2", "train")
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="names a file"):
        run(options.Cpu(), tmp_path / "file", print)


# ---- goals ---------------------------------------------------------------------------------------------------------


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
    table = goals.compare(tmp_path)
    rows = {row[0]: row[2:4] for row in table.rows}
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


def test_goals_name_columns_that_the_benchmarks_write(folder):
    """Every goal reads its column from a file of a real run; with other presets it finds no row, never no column."""
    for kind in TINY:
        if not (folder / f"{FILES.get(kind, [kind.__name__.lower()])[0]}.csv").exists():
            run(tiny(kind), folder, print)
    few, many = shapes.Compared(1.7, "few", 2), shapes.Compared(1.0, "many", 600)
    shapes.table(2, [], [few, many]).write(folder, WHERE)
    assert {goal.file for goal in goals.GOALS} <= {path.stem for path in folder.glob("*.csv")}
    rows = {row[0]: row[2] for row in goals.compare(folder).rows}
    assert rows["CPU, one thread, Small, 19 channels x 5 s: share of the sgemm rate"] is not None
    assert rows["random shapes that fail"] == 0
    assert rows["random shapes: most error over the best backend's"] == 1.7  # of all, not only of large ones


def test_goals_from_files_need_no_gpu(tmp_path):
    ((table, place),) = run(options.Goals(found=True), tmp_path, print)
    assert table.title.startswith("Goals: 0 of")
    assert place.command == "cerebro-eeg bench goals --found"


def test_goals_run_every_part_that_is_not_left_out(tmp_path):
    asked = []

    def measure(given, out, say):
        asked.append(given)
        return []

    goals.run(options.Goals(device="cpu", without=("train", "cpu")), tmp_path, print, measure)
    assert [type(given).__name__ for given in asked] == "Attention Forward Latency Mixed Peers Attention".split()
    assert [given.shapes for given in asked if isinstance(given, options.Attention)] == [0, 2000]
    with pytest.raises(ConfigError, match="choose of train"):
        goals.run(options.Goals(device="cpu", without=("nothing",)), tmp_path, print, measure)


# ---- the two command lines -----------------------------------------------------------------------------------------


def test_bare_command_line_has_the_same_options(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(bare, "run", lambda chosen, out, say: seen.append((chosen, out)) or [])
    assert bare.main(["train", "--presets", "tiny", "--windows", "3", "--static", "--out", "x"]) == 0
    assert bare.main(["loader", "--store", "y", "--seconds", "2"]) == 0
    assert seen == [
        (options.Train(presets=("tiny",), windows=(3,), static=True), Path("x")),
        (options.Loader(store=Path("y"), seconds=2.0), Path("bench")),
    ]
    for kind in KINDS:
        bare.main([kind.__name__.lower()])
        assert seen[-1] == (kind(), Path("bench"))


def test_bare_command_line_needs_neither_tyro_nor_mne():
    code = "import sys; sys.modules.update(dict.fromkeys(['tyro', 'mne', 'pydantic', 'sklearn'])); "
    code += "import cerebro_eeg.bench.__main__ as b; "
    code += "[__import__('cerebro_eeg.bench.' + n) for n in sys.argv[1:]]"
    names = [path.stem for path in (ROOT / "src" / "cerebro_eeg" / "bench").glob("*.py") if path.stem != "__main__"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_load_no_torch():
    code = "import sys, cerebro_eeg.commands.bench; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_every_benchmark_and_option_is_explained():
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    for kind in KINDS:
        section = re.search(rf"^## `{kind.__name__.lower()}`.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert section, kind
        named = set(re.findall(r"`--([a-z-]+)", section[0])) | {"rounds", "device"}
        assert named == {field.name.replace("_", "-") for field in dataclasses.fields(kind)} | {"rounds", "device"}, (
            kind
        )


def test_the_roofline_counts_products_and_passes(monkeypatch):
    """Of Small: 35 times a token's width between the products of a block, by hand; products as the clock says."""
    config = preset("small").model
    assert passed(config.width, config.hidden) == 35 * 192
    asked = []

    def timed(tokens, inputs, outputs, device, wanted=("forward", "input", "weight")):
        asked.append((tokens, inputs, outputs, wanted))
        return 1.0

    monkeypatch.setattr("cerebro_eeg.bench.ceilings.products", timed)
    found = roofline(config, 1000, CPU, copy=1e6)
    assert found.products == 8 * 4 + 2
    assert found.passes == pytest.approx(8 * 2 * 1000 * 35 * 192 / 1e6)
    assert (1000, 64, 192, ("forward", "weight")) in asked  # no gradient for the signal


def test_a_layer_has_three_products():
    seen = []
    real = torch.nn.functional.linear

    def linear(*given):
        seen.append(given[0].shape)
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", linear)
        assert layer_products(8, 4, 6, CPU) > 0
    assert set(seen) == {torch.Size([8, 4])}


def test_calls_are_captured_on_a_gpu_only():
    assert captured(print, CPU) is print


def test_rivals_of_a_training_step_can_be_left_out():
    with pytest.raises(ConfigError, match="--without has fast; choose of stock attention"):
        run(options.Train(device="cpu", without=("fast",)), Path("x"), print)
