"""Benchmarks at tiny sizes: they test what is measured, in which order, and what is written. No test checks a time."""

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
from cerebro_eeg.bench import clock, forward, loader, mixed, options, train
from cerebro_eeg.bench.attention import as_row, geometric_mean
from cerebro_eeg.bench.ceilings import best_gemm, in_flops, kept_up, passed, roofline
from cerebro_eeg.bench.ceilings import products as layer_products
from cerebro_eeg.bench.clock import Timing, Turns, take_turns
from cerebro_eeg.bench.cpu import products
from cerebro_eeg.bench.machine import Where, choose_device, command, cpu, where
from cerebro_eeg.bench.models import Rival, captured, chosen, noise
from cerebro_eeg.bench.run import run
from cerebro_eeg.bench.table import Panel, ResultTable, Series, failing_notes
from cerebro_eeg.cli import main
from cerebro_eeg.commands.bench import bench
from cerebro_eeg.config import preset
from cerebro_eeg.costs import cost
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.fast import eligible

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
        assert where(options.CpuBench()).machine == cpu() + said


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


TABLE = ResultTable(
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
    given = options.LoaderBench(store=Path("/home/somebody/store"), threads=(1, 2), seconds=2.0)
    assert command(given) == "cerebro-eeg bench loader --store STORE --seconds 2.0 --threads 1 2"
    assert command(options.TrainBench(eager=True)) == "cerebro-eeg bench train --eager"


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
    before = eligible._choice
    for backend, everything, choice in (
        ("ours", False, "auto"),
        ("math", False, "stock attention"),
        (None, True, "stock"),
    ):
        with chosen(backend, everything):
            assert eligible._choice == choice
            assert torch.backends.cuda.flash_sdp_enabled() == (backend != "math")
    assert eligible._choice == before
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
    asked = options.MixedBench(least=2, most=5, pad=7, device="cpu")
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
    monkeypatch.setattr(Rival, "encoder", lambda *given: None)  # of Large: seconds and gigabytes
    monkeypatch.setattr(forward, "_point", lambda *given: (times, {"standard": "OutOfMemoryError: no"}))
    asked = options.ForwardBench(presets=("large",), channels=(1, 61), device="cpu")
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


# ---- end to end ----------------------------------------------------------------------------------------------------


TINY = {
    options.AttentionBench: {"dims": (16,), "axes": (3,), "heads": 2, "tokens": 128, "copy": 2**12},
    options.ForwardBench: {
        "presets": ("tiny",),
        "patches": (64, 2),
        "channels": (1,),
        "windows": 1,
        "goal_channels": 2,
    },
    options.LatencyBench: {"presets": ("tiny",), "channels": 2, "seconds": 1.0},
    options.TrainBench: {
        "presets": ("tiny",),
        "windows": (2,),
        "channels": 2,
        "seconds": 1.0,
        "gemm": (16,),
        "copy": 99,
    },
    options.MixedBench: {"presets": ("tiny",), "windows": (2,), "least": 1, "most": 2, "pad": 3, "seconds": 1.0},
    options.PretrainBench: {"presets": ("tiny",), "windows": 2, "steps": 4, "recordings": 1, "minutes": 0.4},
    options.FinetuneBench: {
        "presets": ("tiny",),
        "windows": (2,),
        "channels": (2,),
        "seconds": 1.0,
        "steps": 4,
        "without": ("EEGNet", "EEGConformer", "LaBraM", "CBraMod"),
    },
    options.LoaderBench: {
        "recordings": 2,
        "minutes": 0.1,
        "seconds": 1.0,
        "batch": 2,
        "steps": 2,
        "windows": 100,
        "index": 9,
    },
    options.PrepareBench: {"minutes": 0.5, "cases": ("2x250",)},
    options.CpuBench: {"preset": "tiny", "channels": (19, 2), "seconds": 1.0, "gemm": (16,)},
}
FILES = {
    options.ForwardBench: ["forward-square", "forward-64", "forward-2"],
    options.LoaderBench: ["loader", "reads"],
}


def tiny(kind, **given):
    """Return options of a benchmark that take no time on a CPU."""
    more = {name: "cpu" for name in ("device",) if hasattr(kind, name)}
    more |= {name: True for name in ("eager",) if hasattr(kind, name)}
    return kind(rounds=1, **(given or TINY[kind]), **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("kind", TINY, ids=options.name_of)
def test_benchmark_end_to_end(kind, folder):
    said = []
    found = run(tiny(kind), folder, said.append)
    name = options.name_of(kind)
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
        run(tiny(options.ForwardBench), tmp_path, print)
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
    run(tiny(options.AttentionBench), folder, print)
    text = (folder / "attention.txt").read_text()
    assert "fails: cudnn (4 times)" in text
    assert "fails: efficient" in text
    run(tiny(options.LatencyBench), folder, print)
    assert "fails: eager, CUDA graph, tiny: RuntimeError: CUDA graphs need" in (folder / "latency.txt").read_text()


def test_prepare_without_mne_lists_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mne", None)
    ((table, _),) = run(tiny(options.PrepareBench), folder, print)
    assert [row[1] for row in table.rows] == ["ours"]
    assert sum(note.startswith("fails: MNE") for note in table.notes) == 2


def test_loader_takes_a_store(tmp_path):
    from cerebro_eeg.bench.noise_store import write_noise

    write_noise(tmp_path / "store", 1, 6)
    given = dataclasses.replace(tiny(options.LoaderBench), store=tmp_path / "store", index=0)
    found = run(given, tmp_path / "out", print)
    assert "--store STORE" in found[0][1].command
    assert not any("index" in note for note in found[0][0].notes)


def test_verb_returns_text_and_json(tmp_path, capsys):
    words = "bench cpu --rounds 1 --preset tiny --channels 2 --seconds 1 --gemm 16 --eager --json --out".split()
    assert main([*words, str(tmp_path)]) == 0
    assert '"sgemm_share"' in capsys.readouterr().out
    assert "CPU, 1 thread, tiny" in bench(tiny(options.CpuBench), out=tmp_path).text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["attention", "forward", "latency", "train", "mixed"])
def test_a_gpu_benchmark_refuses_in_one_line_without_one(name, capsys, tmp_path):
    for call in (main, lambda words: bare.main(words[1:])):
        assert call(["bench", name, "--out", str(tmp_path / "out")]) == InputError.exit_code
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert f"bench {name} measures a CUDA GPU" in line
    assert not (tmp_path / "out").exists()


def test_options_that_make_no_sense_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="--rounds is 0"):
        options.TrainBench(rounds=0)
    with pytest.raises(ConfigError, match="--axes"):
        options.AttentionBench(axes=(0, 4))
    for nothing in (
        lambda: options.CpuBench(gemm=()),
        lambda: options.ForwardBench(only=()),
        lambda: options.ForwardBench(channels=()),
    ):
        with pytest.raises(ConfigError, match="has nothing behind it"):
            nothing()
    for senseless in (
        lambda: options.CpuBench(windows=0),
        lambda: options.MixedBench(windows=(0, 2)),
        lambda: options.TrainBench(seconds=math.inf),
    ):
        with pytest.raises(ConfigError, match="expected positive numbers"):
            senseless()
    assert options.CpuBench(threads=0).threads == 0
    with pytest.raises(ConfigError, match="400 channels were asked for; there are 362 electrodes"):
        noise(1, 400, 64, CPU)
    for kind in (options.TrainBench, options.MixedBench):
        with pytest.raises(ConfigError, match=r"--windows has 2 numbers, and there are 1 presets \(tiny\)"):
            run(kind(presets=("tiny",), windows=(1, 2), device="cpu"), tmp_path, print)
    assert options.windows_of(("small", "base", "large"), options.TrainBench().windows) == (1024, 256, 256)
    assert options.windows_of(("base",), options.TrainBench().windows) == (256,)  # of one size no number is asked for
    assert options.windows_of(("small", "base"), (7,)) == (7, 7)
    assert options.windows_of(("small", "base"), (7, 8)) == (7, 8)
    with pytest.raises(ConfigError, match="expected channels x Hz"):
        run(options.PrepareBench(cases=("many",)), tmp_path, print)
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
        run(options.CpuBench(), tmp_path / "file", print)


# ---- the two command lines -----------------------------------------------------------------------------------------


def test_bare_command_line_has_the_same_options(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(bare, "run", lambda chosen, out, say: seen.append((chosen, out)) or [])
    assert bare.main(["train", "--presets", "tiny", "--windows", "3", "--static", "--out", "x"]) == 0
    assert bare.main(["loader", "--store", "y", "--seconds", "2"]) == 0
    assert seen == [
        (options.TrainBench(presets=("tiny",), windows=(3,), static=True), Path("x")),
        (options.LoaderBench(store=Path("y"), seconds=2.0), Path("bench")),
    ]
    for kind in KINDS:
        bare.main([options.name_of(kind)])
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
        section = re.search(rf"^## `{options.name_of(kind)}`.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
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
        run(options.TrainBench(device="cpu", without=("fast",)), Path("x"), print)
