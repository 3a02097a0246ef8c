"""Does pre-training learn the same where tokens travel between blocks in bf16? The same seeds both ways, side by side.

    python benchmarks/residual.py STORE WORK --steps 1000 --seeds 0 1

Small on a GPU with 256 windows a step; prints the masked and the visible error on validation windows at the end.
"""

import argparse
import json
import multiprocessing
from pathlib import Path

from cerebro_eeg.commands.pretrain import pretrain
from cerebro_eeg.runs.settings import Engine


def train(store: Path, out: Path, residual: str, seed: int, steps: int, windows: int) -> None:
    """One run."""
    engine = Engine(residual=residual, precision="bf16")  # type: ignore[arg-type]
    pretrain((store,), out=out, preset="small", stride=1.0, steps=steps, batch_size=windows, seed=seed, engine=engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args()
    runs = {(kind, seed): given.work / f"{kind}-{seed}" for seed in given.seeds for kind in ("bf16", "fp32")}
    processes = [
        multiprocessing.get_context("spawn").Process(
            target=train, args=(given.store, out, *key, given.steps, given.windows)
        )
        for key, out in runs.items()
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a run failed, as said above")
    for (kind, seed), out in runs.items():
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        last = next((line for line in reversed(lines) if "validation_masked" in line), None)
        if last is None:
            raise SystemExit("the store has no task called pretrain with a split val: there is nothing to compare")
        print(f"{kind}, seed {seed}: masked {last['validation_masked']:.4f}, visible {last['validation_visible']:.4f}")


if __name__ == "__main__":
    main()
