"""Goals: every promised ratio beside the measured one, from the CSV files that the benchmarks wrote.

    python benchmarks/goals.py --out my-bench [--without peers shapes]
    python benchmarks/goals.py --out my-bench --found      # only compare the files that are there

The first form runs every benchmark that has a goal, one after the other, on a GPU; peers are CBraMod and LUNA, with
2,048 windows at once. Each part writes its files when it is done, so parts may also run one by one. goals.csv lists
what was asked and what was found. A goal is a line in ``GOALS``. A goal without a measurement stays empty and counts as
not met.
"""

import argparse
import csv
import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import first_step
import peers
import shapes
from cerebro_eeg.bench import finetune
from cerebro_eeg.bench.__main__ import add_options, finish, read_options
from cerebro_eeg.bench.attention import geometric_mean
from cerebro_eeg.bench.machine import command, where
from cerebro_eeg.bench.options import (
    AttentionBench,
    CpuBench,
    FinetuneBench,
    ForwardBench,
    LatencyBench,
    MixedBench,
    Options,
    TrainBench,
)
from cerebro_eeg.bench.run import Found, measure
from cerebro_eeg.bench.run import run as run_bench
from cerebro_eeg.bench.table import Cell, ResultTable
from cerebro_eeg.errors import ConfigError
from first_step import FirstStep
from peers import Peers
from shapes import MOST_ERROR, Shapes

Part = Options | Peers | Shapes | FirstStep
CsvRows = list[dict[str, str]]
COLUMNS: dict[str, str | None] = {
    "goal": "",
    "asked": "",
    "found": ".3g",
    "met": "",
    "measured_on": None,
    "measured": "",
}


@dataclass(frozen=True)
class Goal:
    """A number from one file that should be at least ``least`` and at most ``most``."""

    what: str
    file: str
    value: Callable[[CsvRows], float | None]
    least: float | None = None
    most: float | None = None

    def met(self, value: float | None) -> bool:
        return value is not None and (
            (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        )


@dataclass(frozen=True)
class Goals:
    """Everything that has a goal on the GPU, one after the other, and a table of goals and what was found."""

    found: bool = False
    """Do not measure: take the CSV files that already lie in the folder."""
    without: tuple[str, ...] = ()
    """Benchmarks to leave out: attention shapes forward latency train mixed finetune first_step peers cpu."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


def measure_part(options: Part, out: Path, say: Callable[[str], None]) -> Found:
    """Run one part: a benchmark of the package or a study of this folder."""
    if isinstance(options, Peers):
        return measure(peers.run, options, out, say)
    if isinstance(options, Shapes):
        return measure(shapes.run, options, out, say)
    if isinstance(options, FirstStep):
        return measure(first_step.run, options, out, say)
    return run_bench(options, out, say)


def run(
    options: Goals,
    out: Path,
    say: Callable[[str], None],
    measure: Callable[[Part, Path, Callable[[str], None]], Found] = measure_part,
) -> Found:
    """Run every part that is not left out, then lay its figures beside the goals."""
    unknown = set(options.without) - set(PARTS)
    if unknown:
        raise ConfigError(f"--without has {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}")
    if options.found:  # figures of another machine may be compared on any
        place = dataclasses.replace(where(dataclasses.replace(options, device="cpu")), command=command(options))
    else:
        place = where(options)  # before any work: it refuses a device that is not here
    found: Found = []
    for name, make in {} if options.found else PARTS.items():
        if name not in options.without:
            say(f"{name}:")
            found += measure(make(options.device), out, say)
    table = compare(out)
    table.write(out, place)
    return [*found, (table, place)]


# The parts that the goals need, the most important first, in case time runs out.
PARTS: dict[str, Callable[[str], Part]] = {
    "train": lambda device: TrainBench(device=device),
    "attention": lambda device: AttentionBench(device=device),
    "forward": lambda device: ForwardBench(device=device),
    "latency": lambda device: LatencyBench(device=device),
    "mixed": lambda device: MixedBench(device=device),
    "finetune": lambda device: FinetuneBench(device=device),
    "first_step": lambda device: FirstStep(
        device=device, cases=("small:256", "small:2048") if device != "cpu" else (), trainings=("pretrain",)
    ),
    "peers": lambda device: Peers(
        device=device,
        windows=0 if device == "cpu" else 2048,
        compiled=("CEReBrO", "CBraMod", "LUNA"),
        without=("EEGNet", "BIOT", "LaBraM", "EEGPT", "BENDR"),
    ),
    "shapes": lambda device: Shapes(device=device),
    "cpu": lambda device: CpuBench(),
}


def compare(folder: Path) -> ResultTable:
    """Make the table of all goals from the files of a folder."""
    rows: list[list[Cell]] = []
    for goal in GOALS:
        path = folder / f"{goal.file}.csv"
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []
        value = goal.value(lines) if lines else None
        asked = f"at least {goal.least:g}" if goal.least is not None else f"at most {goal.most:g}"
        when = ["", "not measured"] if value is None else [lines[0]["machine"], lines[0]["date"]]
        rows.append([goal.what, asked, value, "yes" if goal.met(value) else "no", *when])
    met = sum(row[3] == "yes" for row in rows)
    return ResultTable("goals", f"Goals: {met} of {len(rows)} met", COLUMNS, rows, ())


def pick(column: str, **where: str) -> Callable[[CsvRows], float | None]:
    """Return a function that finds a column's number in the row where other columns have these values."""

    def value(rows: CsvRows) -> float | None:
        return next(iter(_numbers(rows, column, lambda row: all(row[key] == of for key, of in where.items()))), None)

    return value


def extreme(
    of: Callable[[list[float]], float], column: str, **ranges: tuple[int, int]
) -> Callable[[CsvRows], float | None]:
    """Return a function that finds the least, the most or the mean of a column where others lie in these ranges."""

    def value(rows: CsvRows) -> float | None:
        inside = _numbers(
            rows, column, lambda row: all(low <= int(row[key]) <= high for key, (low, high) in ranges.items())
        )
        return of(inside) if inside else None

    return value


def best_peer(name: str, part: str) -> Callable[[CsvRows], float | None]:
    """Return a function that finds how many times as long as ours a peer takes at its best, eager or compiled."""

    def value(rows: CsvRows) -> float | None:
        return min(_numbers(rows, f"{part}_times", lambda row: row["model"] == name), default=None)

    return value


def deterministic(preset: str) -> Callable[[CsvRows], float | None]:
    return pick("times", preset=preset, rival="deterministic")


def latency(preset: str) -> Callable[[CsvRows], float | None]:
    """Return a function that finds eager over the fastest rival that is not eager."""

    def value(rows: CsvRows) -> float | None:
        others = _numbers(rows, "eager_over", lambda row: row["preset"] == preset and row["rival"] != "eager")
        return max(others, default=None)

    return value


def fastest(column: str, forms: Sequence[str], **where: str) -> Callable[[CsvRows], float | None]:
    """Return a function that finds a column's number in the fastest of these forms, where others have these values."""

    def value(rows: CsvRows) -> float | None:
        case = [
            row for row in rows if row["ms"] and row["form"] in forms and all(row[k] == v for k, v in where.items())
        ]
        best = min(case, key=lambda row: float(row["ms"]), default=None)
        return None if best is None or not best[column] else float(best[column])

    return value


def fine_tuning(channels: int, column: str = "ms") -> Callable[[CsvRows], float | None]:
    """Return a function that finds a number of our fastest step of Small on 64 windows."""
    return fastest(column, finetune.STEPS, rival="CEReBrO", preset="small", windows="64", channels=str(channels))


def time_or_kernels(channels: int, most_ms: float, most_over: float) -> Callable[[CsvRows], float | None]:
    """Return a function that finds the better of two: the fastest step over so many ms, or over its kernels."""

    def value(rows: CsvRows) -> float | None:
        found = fine_tuning(channels)(rows), fine_tuning(channels, "over_kernels")(rows)
        shares = [number / most for number, most in zip(found, (most_ms, most_over), strict=True) if number is not None]
        return min(shares, default=None)

    return value


def cpu_share(rows: CsvRows) -> float | None:
    """Find the best share of ours with 19 channels."""
    found = _numbers(rows, "sgemm_share", lambda row: row["channels"] == "19" and row["rival"].startswith("ours"))
    return max(found, default=None)


def _numbers(rows: CsvRows, column: str, chosen: Callable[[dict[str, str]], bool]) -> list[float]:
    return [float(row[column]) for row in rows if row[column] and chosen(row)]


def _sized(
    what: str, file: str, values: Callable[[str], Callable[[CsvRows], float | None]], **least: float
) -> list[Goal]:
    return [Goal(f"{what}, {name}", file, values(name), least=number) for name, number in least.items()]


GOALS: tuple[Goal, ...] = (
    Goal(
        "attention, forward + backward, head dim 16, axes 19-32, over the best stock backend: least",
        "attention",
        extreme(min, "times_both", head_dim=(16, 16), length=(19, 32)),
        least=9,
    ),
    Goal(
        "the same, all head dims and axes 1-64: geometric mean",
        "attention",
        extreme(geometric_mean, "times_both"),
        least=4,
    ),
    Goal("the same: least", "attention", extreme(min, "times_both"), least=1),
    Goal(
        "share of the copy floor, forward, axes 16-64: least",
        "attention",
        extreme(min, "floor_forward", length=(16, 64)),
        least=0.75,
    ),
    Goal(
        "share of the copy floor, forward + backward, axes 16-64: least",
        "attention",
        extreme(min, "floor_both", length=(16, 64)),
        least=0.65,
    ),
    *_sized(
        "training step over stock attention",
        "train",
        lambda name: pick("times", preset=name, rival="stock attention"),
        small=2.8,
        base=1.4,
        large=1.25,
    ),
    *_sized(
        "training share of the GEMM peak",
        "train",
        lambda name: pick("gemm_share", preset=name, rival="ours"),
        small=0.32,
        base=0.55,
        large=0.62,
    ),
    *_sized(
        "forward, 64 x 64, over flash standard attention",
        "forward-square",
        lambda name: pick("times", preset=name, rival="standard"),
        small=5,
        base=2.2,
        large=1.9,
    ),
    *_sized(
        "training step over flash standard attention",
        "train",
        lambda name: pick("times", preset=name, rival="standard"),
        small=2.4,
        base=1.35,
        large=1.2,
    ),
    *_sized(
        "peak memory, 64 x 64, materialised over ours",
        "forward-square",
        lambda name: pick("times_memory", preset=name, rival="materialised"),
        small=6,
        base=6,
        large=6,
    ),
    *_sized(
        "peak memory, 64 x 64, flash standard over ours",
        "forward-square",
        lambda name: pick("times_memory", preset=name, rival="standard"),
        small=1,
        base=1,
        large=1,
    ),
    *_sized(
        "mix of 18-36 channels, padded to 64 over packed",
        "mixed",
        lambda name: pick("padded_over", preset=name, form="packed"),
        small=2.2,
        base=2.2,
    ),
    *(
        Goal(
            f"mix, per real token over uniform, {name}",
            "mixed",
            pick("per_token", preset=name, form="packed"),
            most=1.05,
        )
        for name in ("small", "base")
    ),
    Goal(
        "fine-tuning step, Small, 64 windows x 14 channels: ms",
        "finetune",
        fine_tuning(14),
        most=3.6,
    ),
    Goal(
        "fine-tuning step, Small, 64 windows x 32 channels: over 5.8 ms or over 1.15 times its kernels",
        "finetune",
        time_or_kernels(32, 5.8, 1.15),
        most=1,
    ),
    *(
        Goal(
            f"pre-training step, Small, {windows:,} windows: over its kernels",
            "first_step",
            fastest(
                "over_kernels",
                first_step.FORMS,
                training="pretrain",
                preset="small",
                windows=str(windows),
                caches="full",
            ),
            most=most,
        )
        for windows, most in ((2048, 1.08), (256, 1.15))
    ),
    Goal("random shapes that fail", "shapes", pick("failures"), most=0),
    Goal("random shapes: most error over the best backend's", "shapes", pick("error_most"), most=MOST_ERROR),
    *(
        Goal(f"{name} over ours, {part}", "peers", best_peer(name, part), least=least)
        for name, least in (("CBraMod", 4), ("LUNA", 3.5))
        for part in ("inference", "training")
    ),
    *(
        Goal(f"deterministic mode over ours, {name}", "train", deterministic(name), most=1.05)
        for name in ("small", "base", "large")
    ),
    *_sized("batch-1 latency, eager over the best", "latency", latency, small=4, base=4, large=4),
    Goal(
        "CPU, one thread, Small, 19 channels x 5 s: share of the sgemm rate",
        "cpu",
        cpu_share,
        least=0.8,
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Read the options, measure or only compare, and print every table."""
    parser = argparse.ArgumentParser(prog="python benchmarks/goals.py", description=Goals.__doc__)
    add_options(parser, Goals)
    given = vars(parser.parse_args(arguments))

    def call() -> Found:
        return run(*read_options(Goals, given), lambda line: print(line, file=sys.stderr, flush=True))

    return finish(call)


if __name__ == "__main__":
    sys.exit(main())
