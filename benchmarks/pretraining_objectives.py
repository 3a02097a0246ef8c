"""Screen pre-training objectives on a CPU: twins of a tiny model that differ in one field, scored by frozen read-outs.

Every twin sees the same windows in the same order from the same first weights. Its encoder is then frozen, and linear
models on its features are compared by cross-validation over the subjects of each task's train and val splits. Test
splits are not read. It uses one thread, and adds a line per twin to the file of results as soon as it has it::

    python benchmarks/pretraining_objectives.py STORE RESULTS.jsonl --steps 300 --settings paper spectrum blocks

STORE is what ``prepare openeeg`` makes of the pack. ``benchmarks/notes`` has what was found.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import torch

from cerebro_eeg.config import ModelConfig, ObjectiveConfig, ReadoutPart
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.model.readouts import Readout, widths
from cerebro_eeg.runs.linear_models import fit_chosen, labelled
from cerebro_eeg.runs.pretrain import MaskedTask, fit_further_targets
from cerebro_eeg.runs.readout_choice import (
    ENCODER,
    READOUTS,
    SIMPLE,
    fit_token_components,
    raw_features,
    readout_config,
    shared_channels,
)
from cerebro_eeg.runs.windows import find_splits, pretrain_windows, read_task
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.optim import Schedule, adamw, group_parameters

MODEL = ModelConfig(depth=4, width=64, heads=4)
ALL = {"masking": "blocks", "spectrum": 1.0, "statistics": 1.0, "keep_channels": 0.5}
SETTINGS: dict[str, dict[str, object]] = {
    "paper": {},
    "spectrum": {"spectrum": 1.0},
    "spectrum_0.3": {"spectrum": 0.3},
    "spectrum_relative": {"spectrum": 1.0, "spectrum_relative": True},
    "statistics": {"statistics": 1.0},
    "statistics_0.3": {"statistics": 0.3},
    "blocks": {"masking": "blocks"},
    "blocks_55": {"masking": "blocks", "mask_ratio": 0.55},
    "channels": {"keep_channels": 0.5},
    "rereference": {"rereference": 0.5},
    "amplitude": {"amplitude": True},
    "amplitude_hidden": {"amplitude": True, "hide_amplitude": 0.5},
    "spectrum_statistics": {"spectrum": 1.0, "statistics": 1.0},
    "all": ALL,
    "all_relative": {**ALL, "spectrum_relative": True},
}
"""The twins by name: fields of the objective that differ from the paper's, and of the model (``amplitude``)."""
TASKS = {"arithmetic": 600, "ssvep4": 600, "stress4": 600, "eyes": 800}
"""The tasks, and the most windows of each, thinned evenly."""
ENCODED: tuple[ReadoutPart, ...] = ("mean", "moments", "covariance", "amplitude")


def twin(settings: dict[str, object], seed: int) -> MaskedCerebro:
    """Return a new model of these settings. First weights are the same for all objectives, but not with amplitude."""
    changes = dict(settings)
    model = dataclasses.replace(MODEL, amplitude=bool(changes.pop("amplitude", False)))
    torch.manual_seed(seed)
    return MaskedCerebro(model, ObjectiveConfig(**changes))  # type: ignore[arg-type]


def train(model: MaskedCerebro, store: Store, steps: int, batch: int, seed: int) -> float:
    """Train a twin, and return the mean masked error of its last twenty steps."""
    windows, _ = pretrain_windows(store, 5.0, None)
    order = Order(seed, [len(windows)], batch)
    schedule = Schedule(1.25e-3, 2.5e-7, steps // 10, steps)
    optimizer = adamw(model, group_parameters(model, 0.05), (0.9, 0.98), fused=False)
    errors = []
    with Loader([(store, windows)], threads=1) as loader:
        fit_further_targets(model, loader, [len(windows)])
        sources = [(store, windows)]
        task = MaskedTask(sources, order, loader, model.config, model.objective, seed, ProcessGroup(), 1)
        model.train()
        for step, (micro_batch,) in enumerate(task.micro_batches(0, steps)):
            loss, values = task.share(model, task.inputs(micro_batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = schedule(step) * group["factor"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            errors.append(values[0].item())
    return float(np.mean(errors[-20:]))


def scores(model: MaskedCerebro, store: Store, kept: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the cross-validated AUROC of each read-out on each task. ``kept`` holds features without an encoder."""
    found = {}
    for name, most in TASKS.items():
        (split,) = find_splits(store, read_task(store, name, None, None, None), None)
        split = dataclasses.replace(split, test=None)
        whole = [part for part in (split.train, split.validation) if part is not None]
        used = [thinned(part, most / sum(map(len, whole))) for part in whole]
        frozen = Cerebro(len(split.train.names), config=model.config, n_times=split.train.samples)
        frozen.encoder.load_state_dict(model.encoder.state_dict())
        channels = shared_channels(split)
        if name not in kept:
            kept[name] = features(frozen, store, used, SIMPLE, channels)
        raw = np.concatenate([features(frozen, store, used, ENCODED, channels), kept[name]], 1)
        parts = (*ENCODED, *SIMPLE)
        sizes = dict(zip(parts, widths(readout_config(parts, channels), frozen.config), strict=True))
        ends = np.cumsum([0, *map(len, used)])
        data = labelled([(part, raw[a:b]) for part, a, b in zip(used, ends[:-1], ends[1:], strict=True)], sizes)
        candidates = {one: READOUTS[one] for one in ("mean", "moments", "simple")} | {"encoder": ENCODER}
        chosen = fit_chosen(data, candidates, {"hybrid": ("encoder", "simple")}, repeats=2)
        found[name] = {one: max(t.score for t in chosen.tried if t.name == one) for one in [*candidates, "hybrid"]}
    return found


def thinned(windows: Windows, share: float) -> Windows:
    """Return a share of the windows, spread evenly."""
    count = min(len(windows), round(share * len(windows)))
    return windows.take(np.linspace(0, len(windows) - 1, count).astype(np.int64))


def features(
    frozen: Cerebro, store: Store, used: list[Windows], parts: tuple[ReadoutPart, ...], channels: tuple[str, ...]
) -> np.ndarray:
    """Return the features of some parts for all windows."""
    readout, alone = Readout(readout_config(parts, channels), frozen.config), ProcessGroup()
    fit_token_components(readout, frozen, store, used[0], alone, None)
    return np.concatenate([raw_features(frozen, readout, store, part, alone, None, None) for part in used])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=["random", *SETTINGS])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    store, kept = Store(asked.store), dict[str, np.ndarray]()
    for seed in asked.seeds:
        for name in asked.settings:
            began = time.process_time()
            model = twin(SETTINGS.get(name, {}), seed)
            error = None if name == "random" else train(model, store, asked.steps, asked.batch, seed)
            trained = time.process_time() - began
            line = {"setting": name, "seed": seed, "steps": asked.steps, "batch": asked.batch, "masked": error}
            line |= {
                "scores": scores(model.eval(), store, kept),
                "seconds": [trained, time.process_time() - began - trained],
            }
            with asked.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
