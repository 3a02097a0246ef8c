"""The cost of windows with different numbers of channels in a training step, by the form of the batch.

One batch of windows with 18 to 36 channels, as in TUEG, takes four forms: padded to 64 channels as in the paper, padded
to the widest window, packed rows (ours), and, as the yardstick, a uniform batch with nearly as many tokens. A step is
forward and backward of the masked objective by our kernels, in bf16, with blocks compiled for any mixture. The table
compares the time per real token.
"""

import random
from collections.abc import Callable

import torch

from cerebro_eeg.batch import Batch
from cerebro_eeg.bench.clock import Call, step_clock, take_turns
from cerebro_eeg.bench.machine import choose_device
from cerebro_eeg.bench.models import chosen, config_of, ids_of, many_graphs, noise, samples_of
from cerebro_eeg.bench.options import MixedBench, windows_of
from cerebro_eeg.bench.table import Cell, Panel, ResultTable, TableRows, failing_notes, series_of
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.fast import compile_model
from cerebro_eeg.model.masked import MaskedCerebro

COLUMNS: dict[str, str | None] = {
    "preset": "",
    "form": "",
    "windows": "",
    "real_rows": "",
    "ms": ".2f",
    "spread": ".1%",
    "per_token": ".3fx",
    "padded_over": ".2fx",
}
FORMS = ("packed", "padded to widest", "padded", "uniform")


def run(options: MixedBench, say: Callable[[str], None]) -> list[ResultTable]:
    """Measure one row per size and form."""
    device = choose_device(options.device, "bench mixed")
    sizes = windows_of(options.presets, options.windows)
    if not options.least <= options.most <= options.pad:
        raise ConfigError(f"--least {options.least}, --most {options.most} and --pad {options.pad} must not fall")
    many_graphs()
    rows = TableRows(COLUMNS, say)
    failures: list[tuple[str, str]] = []
    for name, windows in zip(options.presets, sizes, strict=True):
        forms, real = make_forms(options, windows, samples_of(config_of(name), options.seconds), device)
        torch.manual_seed(0)
        model = MaskedCerebro(config_of(name)).to(device)
        if not options.eager:
            compile_model(model)
        calls = {form: make_step(model, batch) for form, batch in forms.items()}
        turns = take_turns(calls, options.rounds, step_clock(device), warm=3)
        failures += [(f"{form}, {name}", error) for form, error in turns.failing.items()]
        for form in FORMS:
            timing, yardstick = turns.timings.get(form), turns.timings.get("uniform")
            found: list[Cell] = [name, form, windows, real[form]]
            if timing is None:
                rows.append([*found, None, None, None, None])
                continue
            uniform = None if yardstick is None else yardstick.seconds / real["uniform"]
            per_token = None if uniform is None else timing.seconds / real[form] / uniform
            found += [1e3 * timing.seconds, timing.spread, per_token, turns.times("padded", form)]
            rows.append(found)
        del model, calls
    return [table(options, rows, failures)]


def make_forms(
    options: MixedBench, windows: int, samples: int, device: torch.device
) -> tuple[dict[str, Batch], dict[str, int]]:
    """Make the same mixture of windows in every form; also return the number of real rows of each."""
    rng = random.Random(0)
    counts = [rng.randint(options.least, options.most) for _ in range(windows)]
    signals = [torch.randn(count, samples, device=device) * 20 for count in counts]
    ids = [ids_of(count).to(device) for count in counts]

    def padded(width: int) -> Batch:
        signal = torch.zeros(windows, width, samples, device=device)
        channels = torch.zeros(windows, width, 2, dtype=torch.int64, device=device)
        for number, (x, i) in enumerate(zip(signals, ids, strict=True)):
            signal[number, : len(x)], channels[number, : len(x)] = x, i
        return Batch.dense(signal, channels)

    mean = round(sum(counts) / windows)
    forms = {  # padded ones first: torch 2.13 fails to compile them after the same block has met packed rows
        "padded": padded(options.pad),
        "padded to widest": padded(max(counts)),
        "packed": Batch.ragged(signals, ids),
        "uniform": noise(windows, mean, samples, device),
    }
    return forms, {form: mean * windows if form == "uniform" else sum(counts) for form in forms}


def make_step(model: MaskedCerebro, batch: Batch) -> Call:
    """Return a call that runs forward and backward."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with chosen("ours"):
            with torch.autocast(batch.signal_RT.device.type, torch.bfloat16):
                loss = model(batch).loss
            loss.backward()

    return step


def table(options: MixedBench, rows: list[list[Cell]], failures: list[tuple[str, str]]) -> ResultTable:
    title = f"Windows of {options.least} to {options.most} channels, training step, bf16"
    panels = []
    for what, place in (("time per real token, uniform = 1", 6), (f"padded to {options.pad} over each", 7)):
        panels.append(Panel(what, "", series_of(rows, place), 1.0))
    notes = (f"padded: to {options.pad} channels, as in the paper", *failing_notes(failures))
    return ResultTable("mixed", title, COLUMNS, rows, panels, notes)
