"""The first run on real EEG: the commands of docs/first-run.md, called from Python where tyro is not installed.
Stages of their own, because the machine lends ten minutes a command.

    python benchmarks/first_run.py prepare PACK WORK
    python benchmarks/first_run.py pretrain WORK --steps 3000
    python benchmarks/first_run.py tasks WORK
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from cerebro_eeg.commands.evaluate import evaluate
from cerebro_eeg.commands.finetune import finetune
from cerebro_eeg.commands.prepare import prepare
from cerebro_eeg.commands.pretrain import pretrain
from cerebro_eeg.runs.settings import Engine

TASKS = ("eyes", "stress4")
SEEDS = 3


def prepare_pack(pack: Path, work: Path) -> None:
    """Prepare the store with as many workers as there are cores."""
    print(prepare("openeeg", pack, out=work / "store").text(), flush=True)


def pretrain_small(work: Path, steps: int, compiled: str) -> None:
    """Pre-train Small on the pack's rows for pre-training; then print its error beside three baselines, by dataset."""
    run = work / "small"
    if steps == 0:  # as many as fit into 330 s, by the pace of a short run
        began = time.monotonic()
        _pretrain(work / "store", work / "pace", 60, compiled)
        first = [json.loads(line) for line in (work / "pace" / "metrics.jsonl").read_text().splitlines()]
        pace = [line["seconds"] for line in first if "loss" in line][30:]
        steps = round(330 / (sum(pace) / len(pace)) / 100) * 100
        shutil.rmtree(work / "pace")
        print(f"pace {sum(pace) / len(pace):.4f} s a step, {time.monotonic() - began:.0f} s; {steps} steps", flush=True)
    began = time.monotonic()
    print(_pretrain(work / "store", run, steps, compiled).text(), flush=True)
    print(f"pretrain: {time.monotonic() - began:.0f} s", flush=True)
    measure(work)


def _pretrain(store: Path, out: Path, steps: int, compiled: str):  # type: ignore[no-untyped-def]
    engine = Engine(readers=8, compile=compiled, kernels="ours")  # type: ignore[arg-type]
    return pretrain((store,), out=out, preset="small", stride=1.0, steps=steps, engine=engine)


def measure(work: Path) -> None:
    """Measure the masked error by dataset, on all validation windows."""
    import torch

    from cerebro_eeg.data.storing.store import Store
    from cerebro_eeg.model.masked import MaskedCerebro
    from cerebro_eeg.runs.reconstruction import reconstruct
    from cerebro_eeg.runs.windows import pretrain_windows

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = Store(work / "store")
    train, validation = pretrain_windows(store, 5.0, 1.0)
    assert validation is not None
    model = MaskedCerebro.from_pretrained(work / "small").to(device)
    found = reconstruct(model, [(store, train)], [(store, validation)], device)
    print(
        json.dumps(
            {"total": vars(found.total), "by_dataset": {k: vars(v) for k, v in found.by_dataset().items()}}, default=str
        )
    )


def run_tasks(work: Path) -> None:
    """Compare a probe with random weights and fine-tuning with scratch: three seeds, the test split scored once."""
    kinds = {
        "probe": {"from_": str(work / "small"), "freeze": True, "untrained": "nearest"},
        "random": {"from_": "none", "freeze": True},
        "tuned": {"from_": str(work / "small")},
        "scratch": {"from_": "none"},
    }
    for task in TASKS:
        for kind, choices in kinds.items():
            out = work / f"{task}-{kind}"
            began = time.monotonic()
            trained = finetune(
                work / "store",
                task=task,
                out=out,
                preset="small",
                seeds=SEEDS,
                engine=Engine(readers=8, compile="no", kernels="ours"),
                **choices,  # type: ignore[arg-type]
            )
            print(trained.text(), flush=True)
            print(evaluate(out, work / "store").text(), flush=True)
            print(f"{task} {kind}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("prepare", "pretrain", "measure", "tasks"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--compile", default="auto")
    given = parser.parse_args()
    if given.stage == "prepare":
        prepare_pack(*given.folders)
    elif given.stage == "pretrain":
        pretrain_small(given.folders[0], given.steps, given.compile)
    elif given.stage == "measure":
        measure(given.folders[0])
    else:
        run_tasks(given.folders[0])


if __name__ == "__main__":
    main()
