"""Compare two trees of this repository on a GPU, in turns in one job: steps, forward passes, latency, peak memory.

    python benchmarks/ab.py OLD NEW [--out FILE.json] [--pairs 14] [--budget 220] [--only WORD ...] [--more] [--cpu]

OLD and NEW are folders with src/cerebro_eeg in them (or src folders). Each tree lives in a process of its own that
keeps its models warm and waits for a line on stdin while the other one computes. Turns: old new, new old, old new, ...
A ratio is old/new of one pair: above 1, the new tree is faster. The interval is a bootstrap of the median over pairs.
"""

import argparse
import importlib
import inspect
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
MIB = 2**20
PRESETS = {"small": 1024, "base": 256}  # windows of a training step, as in bench train
TURN = 0.2  # seconds of a turn, about
MEASUREMENTS = [
    f"{what} {preset}"
    for preset in PRESETS
    for what in ("step-compiled", "step-eager", "forward-graph", "forward-eager", "latency-captured", "latency-eager")
]
MORE = ["step-mixed-compiled small", "step-vitmae-compiled small", "step-deterministic small", "forward-fp32 small"]


# Where the few internal names lie that a tree may have moved: the new place first, then older ones.
PLACES = {
    "compile_all": (
        "cerebro_eeg.fast:compile_model",
        "cerebro_eeg.fast.compile:compile_model",
        "cerebro_eeg.fast.compile:compile_all",
        "cerebro_eeg.fast.parts:compile_all",
        "cerebro_eeg.model.parts:compile_all",
    ),
    "use": (
        "cerebro_eeg.fast:use",
        "cerebro_eeg.fast.switch:use",
        "cerebro_eeg.fast.eligible:use",
        "cerebro_eeg.fast.attention:use",
        "cerebro_eeg.fast.short_axis:use",
        "cerebro_eeg.model.short_axis:use",
    ),
    "packed": (
        "cerebro_eeg.fast:packed",
        "cerebro_eeg.fast.linear:packed",
        "cerebro_eeg.fast.cpu:packed",
        "cerebro_eeg.fast.onednn:packed",
        "cerebro_eeg.model.cpu:packed",
    ),
    "deterministic": ("cerebro_eeg.train.loop:deterministic", "cerebro_eeg.fast:deterministic"),
    "VOCABULARY": (
        "cerebro_eeg.channels.electrodes:VOCABULARY",
        "cerebro_eeg.channels:VOCABULARY",
        "cerebro_eeg.electrodes:VOCABULARY",
    ),
}


def find(name):
    """Return the thing called ``name``, wherever this tree has it."""
    for place in PLACES[name]:
        module, _, attribute = place.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
        if not inspect.ismodule(found):
            return found
    raise LookupError(f"{name} is in none of {PLACES[name]}: add its new place to PLACES in {__file__}")


# in the process of a tree


class Child:
    """Answers lines of JSON with lines of JSON; whatever else is printed goes to stderr."""

    def __init__(self, cpu):
        import torch

        self.torch, self.cpu = torch, cpu
        self.device = torch.device("cpu" if cpu else "cuda")
        self.call, self.own, self.keep = None, 0, None
        if cpu:
            torch.set_num_threads(1)

    # ---- what is measured

    def config(self, preset, samples):
        import dataclasses

        import cerebro_eeg as c

        return dataclasses.replace(c.preset("tiny" if self.cpu else preset).model, window=samples)

    def noise(self, windows, channels, samples):
        import cerebro_eeg as c

        torch = self.torch
        torch.manual_seed(0)
        ids = torch.tensor([(number + 1, 0) for number in range(channels)])
        return c.Batch.dense(torch.randn(windows, channels, samples, device=self.device) * 20, ids)

    def mixed(self, windows, samples):
        """Windows of 18 to 36 channels, as bench mixed has them."""
        import cerebro_eeg as c

        torch = self.torch
        torch.manual_seed(0)
        counts = [18 + number % 19 for number in range(windows)]
        random.Random(0).shuffle(counts)
        ids = torch.tensor([(number + 1, 0) for number in range(36)])
        signal = [torch.randn(n, samples, device=self.device) * 20 for n in counts]
        return c.Batch.ragged(signal, [ids[:n] for n in counts])

    def build(self, what):
        self.drop()
        kind, preset = what.split(" ")
        kind, *how = kind.split("-")
        make = {"step": self.step, "forward": self.forward, "latency": self.latency}[kind]
        self.call = make(preset, how)
        began = time.perf_counter()
        for _ in range(3):
            self.call()
        self.wait()
        return {"seconds": self.time("mean", 1), "first": time.perf_counter() - began}

    def step(self, preset, how):
        """Forward, backward, clipping, fused AdamW, under autocast to bf16; parts compiled as pretrain does it."""
        import contextlib

        import cerebro_eeg as c

        torch = self.torch
        windows = 4 if self.cpu else PRESETS[preset]
        batch = self.mixed(windows, 1280) if "mixed" in how else self.noise(windows, 6 if self.cpu else 32, 1280)
        style = "vitmae" if "vitmae" in how else "simmim"
        torch.manual_seed(0)
        model = c.MaskedCerebro(self.config(preset, 1280), c.ObjectiveConfig(style=style)).to(self.device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=not self.cpu or None)
        if "compiled" in how:
            find("compile_all")(model)
        self.own = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
        deterministic = find("deterministic") if "deterministic" in how else contextlib.nullcontext

        def call():
            with deterministic():
                with torch.autocast(self.device.type, torch.bfloat16):
                    loss = model(batch).loss
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return call

    def forward(self, preset, how):
        """8 windows of 64 channels x 64 patches, as in bench forward."""
        import cerebro_eeg as c

        torch = self.torch
        side = 8 if self.cpu else 64
        samples = side * 64
        batch = self.noise(2 if self.cpu else 8, side, samples)
        torch.manual_seed(0)
        encoder = c.Encoder(self.config(preset, samples)).to(self.device).eval()
        self.own = sum(p.numel() * p.element_size() for p in encoder.parameters()) + batch.signal_RT.nbytes

        def call():
            half = "fp32" not in how
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, half, cache_enabled=False):
                return encoder(batch)

        if "graph" not in how or self.cpu:
            return call
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        self.keep = call  # its peak is that of the call itself
        return graph.replay

    def latency(self, preset, how):
        """One window of 19 channels x 5 s, until its features are there."""
        import cerebro_eeg as c

        torch = self.torch

        torch.manual_seed(0)
        names = list(find("VOCABULARY")[:19])
        model = c.Cerebro(config=self.config(preset, 1280), ch_names=names, n_times=1280).to(self.device).eval()
        x = torch.randn(1, 19, 1280, device=self.device) * 20
        if "captured" in how:
            fast = model.captured(n_times=1280, level="window", precision="bf16")
            return lambda: fast(x)
        batch = self.noise(1, 19, 1280)

        def call():
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
                return model.encode(batch).per_window()

        return call

    # ---- how

    def wait(self):
        if not self.cpu:
            self.torch.cuda.synchronize()

    def time(self, how, repeats):
        """Seconds of a call: their mean where the host may run ahead, their median where each is waited for."""
        if how == "each":
            spent = []
            for _ in range(repeats):
                self.wait()
                start = time.perf_counter()
                self.call()
                self.wait()
                spent.append(time.perf_counter() - start)
            return statistics.median(spent)
        self.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            self.call()
        self.wait()
        return (time.perf_counter() - start) / repeats

    def peak(self):
        """Most memory of a call above what was there, with weights, gradients and moments."""
        if self.cpu:
            return None
        cuda, call = self.torch.cuda, self.keep or self.call
        call()
        self.wait()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        call()
        self.wait()
        return cuda.max_memory_allocated() - before + self.own

    def drop(self):
        import gc

        self.call = self.keep = None
        self.own = 0
        gc.collect()
        if not self.cpu:
            self.torch.cuda.empty_cache()
        return {}

    def answer(self, asked):
        what = asked["do"]
        if what == "build":
            return self.build(asked["what"])
        if what == "time":
            return {"seconds": self.time(asked["how"], asked["repeats"])}
        if what == "peak":
            return {"bytes": self.peak()}
        if what == "drop":
            return self.drop()
        return {"tree": str(Path(__import__("cerebro_eeg").__file__).parents[2]), "torch": self.torch.__version__}


def child(cpu):
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    me = Child(cpu)
    for line in sys.stdin:
        try:
            found = me.answer(json.loads(line))
        except Exception as error:
            import traceback

            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:400]}
        talk.write(json.dumps(found) + "\n")
        talk.flush()


# the front


class Tree:
    """The process of a tree, seen from the front."""

    def __init__(self, name, folder, cpu):
        folder = folder.resolve()
        source = folder / "src" if (folder / "src").is_dir() else folder
        env = os.environ | {"PYTHONPATH": str(source), "TORCHINDUCTOR_AUTOGRAD_CACHE": "0", "HF_HUB_OFFLINE": "1"}
        env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "6")
        env.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/ab-inductor-{name}")
        self.name, self.log = (
            name,
            tempfile.NamedTemporaryFile(  # noqa: SIM115, open as long as the process
                "w+", prefix=f"ab-{name}-", suffix=".log"
            ),
        )
        command = [sys.executable, str(HERE / "ab.py"), "--child", *(["--cpu"] if cpu else [])]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        told = self.ask(do="hello")
        assert Path(told["tree"]).resolve() == source.parent or Path(told["tree"]) == source.parent, (told, source)
        print(f"{name}: {told['tree']}, torch {told['torch']}", flush=True)

    def send(self, **asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            self.log.flush()
            raise SystemExit(f"{self.name} ended:\n{Path(self.log.name).read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, **asked):
        self.send(**asked)
        return self.hear()

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)


def interval(ratios, draws=4000):
    """The median, and where 95 % of the medians of drawn pairs lie."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(draws))
    return statistics.median(ratios), medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def measure(what, trees, pairs, left):
    """One row; both trees build at once, then take turns."""
    began = time.monotonic()
    for tree in trees:
        tree.send(do="build", what=what)
    built = [tree.hear() for tree in trees]
    errors = {tree.name: found["error"] for tree, found in zip(trees, built, strict=True) if "error" in found}
    if errors:
        for tree in trees:
            tree.ask(do="drop")
        return {"what": what, "errors": errors}
    how = "each" if what.startswith("latency") else "mean"
    slowest = max(found["seconds"] for found in built)
    repeats = max(2, min(300, round(TURN / slowest)))
    turns = {tree.name: [] for tree in trees}
    for tree in trees:  # a turn that does not count
        tree.ask(do="time", how=how, repeats=repeats)
    for number in range(pairs):
        if number >= 6 and left() < 0:
            break
        for tree in trees[:: -1 if number % 2 else 1]:
            turns[tree.name].append(tree.ask(do="time", how=how, repeats=repeats)["seconds"])
    peaks = {tree.name: tree.ask(do="peak")["bytes"] for tree in trees}
    for tree in trees:
        tree.ask(do="drop")
    ratios = [a / b for a, b in zip(turns["old"], turns["new"], strict=True)]
    ratio, low, high = interval(ratios)
    return {
        "what": what, "pairs": len(ratios), "repeats": repeats, "old_ms": 1e3 * statistics.median(turns["old"]),
        "new_ms": 1e3 * statistics.median(turns["new"]), "ratio": ratio, "low": low, "high": high,
        "old_mib": peaks["old"] and peaks["old"] / MIB, "new_mib": peaks["new"] and peaks["new"] / MIB,
        "seconds": time.monotonic() - began, "turns": turns,
    }  # fmt: skip


def show(row):
    if "errors" in row:
        return f"{row['what']:28} FAILED {row['errors']}"
    memory = "" if row["old_mib"] is None else f"  {row['old_mib']:9,.1f} {row['new_mib']:9,.1f} MiB"
    if row["old_mib"]:
        memory += f" ({row['new_mib'] / row['old_mib']:.4f})"
    mark = "  << below 0.98" if row["ratio"] < 0.98 else ""
    return (
        f"{row['what']:28} {row['old_ms']:9.3f} {row['new_ms']:9.3f} ms  {row['ratio']:.4f} "
        f"[{row['low']:.4f}, {row['high']:.4f}] of {row['pairs']}{memory}  {row['seconds']:.0f} s{mark}"
    )


def main():
    if "--child" in sys.argv:
        return child("--cpu" in sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--budget", type=float, default=220, help="seconds, after which no new measurement is begun")
    parser.add_argument("--only", nargs="+", metavar="WORD", help=f"those with one of the words: {MEASUREMENTS + MORE}")
    parser.add_argument("--more", action="store_true", help=f"also {MORE}")
    parser.add_argument("--cpu", action="store_true", help="try the script out with tiny models; times mean nothing")
    given = parser.parse_args()
    began = time.monotonic()
    chosen = MEASUREMENTS + (MORE if given.more or given.only else [])
    chosen = [m for m in chosen if not given.only or any(word in m for word in given.only)]
    trees, threads = [None, None], []

    def start(place, name, folder):
        trees[place] = Tree(name, folder, given.cpu)

    for place, (name, folder) in enumerate((("old", given.old), ("new", given.new))):
        threads.append(threading.Thread(target=start, args=(place, name, folder)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if None in trees:
        return "a tree could not be started"
    head = "old/new, 95 % interval (above 1: new is faster); peak old, new"
    print(f"{'':28} {'old':>9} {'new':>9}     {head}", flush=True)
    rows = []
    for what in chosen:
        if time.monotonic() - began > given.budget:
            print(f"{what:28} not measured: {given.budget:g} s are over", flush=True)
            continue
        rows.append(measure(what, trees, given.pairs, lambda: given.budget + 15 - (time.monotonic() - began)))
        print(show(rows[-1]), flush=True)
    for tree in trees:
        tree.close()
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    slow = [row["what"] for row in rows if "errors" in row or row["ratio"] < 0.98]
    verdict = f"below 0.98 or failed: {', '.join(slow)}" if slow else "all at 0.98 or above"
    print(f"{time.monotonic() - began:.0f} s; {verdict}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
