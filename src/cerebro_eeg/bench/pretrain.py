"""A whole training against its bare step: the cost of reading windows, masks, logs and checks.

``pretrain`` runs on a store, timed from one report to the next. The bare step is the same model, precision and
compilation on one batch of that store that is already on the device: forward, backward, clipping and update, without
reading the loss. Both take turns. The first training, which compiles, does not count.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from cerebro_eeg.bench.clock import Call, Timing, step_clock, take_turns
from cerebro_eeg.bench.loader import stored
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.options import PretrainBench
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, TableRows, series_of
from cerebro_eeg.config import Preset, preset
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import TrainingError
from cerebro_eeg.fast import compile_model
from cerebro_eeg.model.masked import MaskedCerebro
from cerebro_eeg.runs import pretrain
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.training import choose_precision
from cerebro_eeg.runs.windows import pretrain_windows
from cerebro_eeg.train.loop import StepReport

COLUMNS: dict[str, str | None] = {
    "preset": "",
    "form": "",
    "windows": "",
    "rows": ",",
    "ms": ".2f",
    "spread": ".1%",
    "windows_per_s": ",.0f",
    "over_bare": ".2fx",
}


def run(options: PretrainBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure the bare step and the training of each size."""
    device = choose_device(options.device, "bench pretrain")
    rows = TableRows(COLUMNS, say)
    with stored(options) as folder:
        for name in options.presets:
            chosen = of_size(name, options.windows)
            step, real = bare_step(options, chosen, folder, device)
            turns: list[tuple[float, float]] = []
            for _ in range(options.rounds + 1):
                turns.append((seconds_of(step, device), training_seconds(options, chosen, folder, device)))
            bare, trained = (Timing(seconds) for seconds in zip(*turns[1:], strict=True))
            for form, timing in (("bare step", bare), ("pretrain", trained)):
                found: list[Cell] = [name, form, options.windows, real, 1e3 * timing.seconds, timing.spread]
                rows.append([*found, options.windows / timing.seconds, timing.seconds / bare.seconds])
    title = f"Training from a store, {options.windows} windows a step, {options.readers} readers"
    return [
        ResultTable("pretrain", title, COLUMNS, rows, [Panel("time over the bare step", "", series_of(rows, 7), 1.0)])
    ]


def of_size(name: str, windows: int) -> Preset:
    """Return a preset with this many windows per step."""
    found = preset(name)
    return dataclasses.replace(found, pretrain=dataclasses.replace(found.pretrain, batch_size=windows))


def training_seconds(options: PretrainBench, chosen: Preset, folder: Path, device: torch.device) -> float:
    """Return the mean step of a training's second half: in the first half it compiles and fills its buffers."""
    reported: list[float] = []

    def tell(report: StepReport, steps: int, batch: int) -> None:
        reported.append(time.monotonic())

    choices = pretrain.PretrainOptions(steps=options.steps, paper=True)
    engine = Engine(device=str(device), readers=options.readers)
    with tempfile.TemporaryDirectory() as out:
        pretrain.pretrain([folder], Path(out) / "run", chosen, choices, engine, tell=tell)
    late = reported[len(reported) // 2 :]
    return (late[-1] - late[0]) / (len(late) - 1)


def bare_step(options: PretrainBench, chosen: Preset, folder: Path, device: torch.device) -> tuple[Call, int]:
    """Return an update on one batch that stays on the device, and the batch's number of rows."""
    store = Store(folder)
    windows, _ = pretrain_windows(store, chosen.model.window / chosen.model.signal.sfreq, None)
    with Loader([(store, windows)]) as loader:
        batch = lay_out(loader.read(Order(0, [len(windows)], options.windows).step(0)), device)
    torch.manual_seed(0)
    model = MaskedCerebro(chosen.model, chosen.objective).to(device)
    half = choose_precision(Engine(device=str(device)), device) == "bf16"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    if device.type == "cuda":
        compile_model(model)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, half):
            loss = model(batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, len(batch.signal_RT)


def seconds_of(step: Call, device: torch.device) -> float:
    turns = take_turns({"bare": step}, 3, step_clock(device), repeats=5, warm=3)
    if "bare" in turns.failing:
        raise TrainingError(f"the bare step fails ({turns.failing['bare']}); try fewer --windows")
    return turns.timings["bare"].seconds
