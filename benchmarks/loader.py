"""What the loader costs: windows a second with 1, 2 and 4 threads, beside bare preads of the same bytes.

    python benchmarks/loader.py STORE [--seconds 5 --batch 256 --steps 8 --rounds 9 --threads 1 2 4]

Windows of a store, whatever its montages, in the order of training. For each number of threads the same steps are read
by as many threads that do nothing but `os.preadv` into one buffer a step, from a list of places that was made before,
and by `Loader.stream`. They take turns, `--steps` steps at a time, and medians of wall-clock time are compared; all
steps are read once before, so a store that fits lies in the page cache. Also: finding the windows, the order of a step,
and laying a step out on this CPU, which is the device's work in training.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.sampler import Order, Step
from cerebro_eeg.data.batching.windows import Windows, find_windows
from cerebro_eeg.data.storing.store import Store

Place = tuple[int, int, int, int]  # file, bytes, offset in the file, offset in the buffer


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def places(folder: Path, store: Store, windows: Windows, step: Step, files: dict[str, int]) -> list[Place]:
    """Where the bytes of a step lie."""
    found, end = [], 0
    for window in step.window.tolist():
        shard, offset, channels, _ = store._places[int(windows.recording[window])]
        name = store._shards[shard]
        if name not in files:
            files[name] = os.open(folder / f"{name}.bin", os.O_RDONLY)
        size = 2 * channels * windows.samples
        found.append((files[name], size, offset + 2 * channels * int(windows.start[window]), end))
        end += size
    return found


def bare(pool: ThreadPoolExecutor, threads: int, steps: list[list[Place]]) -> None:
    """The same bytes, by threads that do nothing else."""

    def fill(view: memoryview, part: list[Place]) -> None:
        for file, size, offset, place in part:
            os.preadv(file, [view[place : place + size]], offset)

    for step in steps:
        view = memoryview(np.empty(step[-1][3] + step[-1][1], np.uint8))
        cuts = [len(step) * part // threads for part in range(threads + 1)]
        for done in [pool.submit(fill, view, step[cuts[k] : cuts[k + 1]]) for k in range(threads)]:
            done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, torch {torch.__version__}, {os.cpu_count()} CPUs")
    store = Store(args.store)
    begun = time.perf_counter()
    windows = find_windows(store, seconds=args.seconds)
    spent = time.perf_counter() - begun
    count = len(store.recordings)
    print(f"{len(windows)} windows of {windows.samples} samples in {count} recordings, found in {spent:.2f} s")
    order = Order(0, [len(windows)], args.batch)
    steps = [order.step(number) for number in range(args.steps)]
    files: dict[str, int] = {}
    listed = [places(args.store, store, windows, step, files) for step in steps]
    size = sum(entry[1] for step in listed for entry in step)
    print(f"{args.steps} steps of {args.batch} windows, {size / len(listed) / args.batch / 1024:.0f} KiB a window")

    print(f"{'threads':>7}{'form':>10}{'windows/s':>12}{'quartiles':>20}{'GB/s':>7}{'time / bare':>13}")
    for threads in args.threads:
        with ThreadPoolExecutor(threads) as pool, Loader([(store, windows)], threads=threads) as loader:

            def stream(loader: Loader = loader) -> None:
                for _ in loader.stream(steps):
                    pass

            forms: dict[str, Callable[[], None]] = {
                "preadv": lambda pool=pool, threads=threads: bare(pool, threads, listed),  # type: ignore[misc]
                "Loader": stream,
            }
            times: dict[str, list[float]] = {name: [] for name in forms}
            for turn in range(args.rounds + 1):
                for name in list(forms)[:: 1 if turn % 2 else -1]:
                    seconds = timed(forms[name])
                    if turn:  # the first brings everything into the cache
                        times[name].append(seconds)
        for name, found in times.items():
            low, median, high = statistics.quantiles(found, n=4)
            count = args.steps * args.batch
            quartiles = f"{count / high:.0f} to {count / low:.0f}"
            ratio = median / statistics.median(times["preadv"])
            print(
                f"{threads:>7}{name:>10}{count / median:>12.0f}{quartiles:>20}{size / median / 1e9:>7.1f}{ratio:>13.2f}"
            )

    with Loader([(store, windows)], threads=0) as loader:
        raw = loader.read(steps[0])
        planned = statistics.median(timed(lambda: loader._plan(steps[0])) for _ in range(20))
        laid = statistics.median(timed(lambda: lay_out(raw, "cpu")) for _ in range(5))
    print(f"beside the reading, a step: plan {1e3 * planned:.2f} ms; laid out on this CPU {1e3 * laid:.1f} ms")
    large = Order(0, [15_800_000], 4096)
    found = [timed(lambda number=number: large.step(number)) for number in range(50)]  # type: ignore[misc]
    print(f"order of a step of 4,096 out of 15.8 million windows: {1e3 * statistics.median(found):.2f} ms, no memory")


if __name__ == "__main__":
    main()
