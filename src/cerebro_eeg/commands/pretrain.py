"""``cerebro-eeg pretrain``: learn from unlabelled EEG by reconstructing masked patches."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cerebro_eeg.commands.progress_lines import StepLine, no_report, say_first, write_page
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.progress import Progress
from cerebro_eeg.runs.results import PretrainResult
from cerebro_eeg.runs.settings import Engine, changed_fields, choose, preset_for

GROUPS = {
    "what learns": ("preset", "from_", "attention", "style", "patches"),
    "how long": ("epochs", "steps", "minutes"),
    "windows": ("seconds", "stride", "weights", "without", "rate"),
    "hyper-parameters": ("config", "batch_size", "lr", "seed", "paper", "set"),
}
"""The groups of the help."""


def pretrain(
    stores: tuple[Path, ...],
    /,
    *,
    out: Path,
    preset: str | None = None,
    config: Path | None = None,
    from_: Path | None = None,
    attention: Literal["alternating", "standard", "two_axis", "bottleneck"] | None = None,
    style: Literal["simmim", "vitmae"] | None = None,
    patches: Literal["waveform", "time_bins", "squares"] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    seconds: float | None = None,
    stride: float | None = None,
    weights: tuple[float, ...] = (),
    without: tuple[str, ...] = (),
    rate: Literal["error", "as_is"] = "error",
    paper: bool = False,
    set: tuple[str, ...] = (),
    engine: Engine = Engine(),
) -> PretrainResult:
    """Pre-train an encoder on the windows of one or several stores, from new weights or from a checkpoint's.

    Interrupted or killed, start it again with the same command: it goes on, and ends as if it had never stopped. With
    other --steps or --epochs it goes on, too: from there on, the learning rate is that of a run of the new length.
    On several GPUs or nodes: torchrun --nproc-per-node 8 -m cerebro_eeg pretrain ...
    The exit code is 7 where a signal (SIGTERM, SIGINT, SIGUSR1) stopped it with its state saved.

    Try, for example:
      cerebro-eeg pretrain my-store --out my-run --preset tiny
      cerebro-eeg pretrain store-a store-b --weights 2 1 --out my-run --from open-weights.safetensors

    Args:
        stores: Folders that prepare made. Where a store has a task called pretrain, its split train is learned from
            and its split val validates; otherwise all of it is learned from.
        out: The folder of the run; made where there is none, gone on with where it holds this run.
        preset: small, base or large: the paper's sizes with its hyper-parameters; tiny, for a laptop; open: small that
            also predicts spectra. Otherwise small, or with --from that of the weights.
        config: A JSON file that changes fields of the preset: {"model": {...}, "objective": {...}, "pretrain": {...}}.
        from_: Go on from the weights of this checkpoint or run, or from small-open, which comes with the package; its
            model config then holds.
        attention: Where a token may look.
        style: Masked tokens in the encoder, or visible tokens only and a light decoder.
        patches: Samples, or a spectrogram cut into frames or squares.
        epochs: Epochs to train; the cosine spans max_epochs of preset and file, or these if they are more.
        steps: Steps to train, instead of epochs; the cosine then ends there.
        minutes: Minutes to train, instead of steps or epochs: the pace of the first steps says how many fit.
        batch_size: Windows of a step, over all processes.
        lr: Learning rate after the warm-up.
        seed: Of weights, order and masks.
        seconds: Length of a window; otherwise the model's.
        stride: Seconds from window to window; otherwise side by side.
        weights: Share of each store; otherwise by its windows.
        without: What is not learned from: a data set of a store, such as muse; the subjects of a split, as task:split,
            such as eyes:test; or of a split of another store, as STORE:task:split.
        rate: What to do with a store of another rate than the model's.
        paper: Keep the batch size, however few steps an epoch has.
        set: Any other field, as name=value: model.depth=6 pretrain.weight_decay=0.1.
        engine: How it is carried out; its fields are flags of their own.
    """
    from cerebro_eeg.report.pretrain import report_pretrain
    from cerebro_eeg.runs import pretrain as runs
    from cerebro_eeg.runs.snapshot import model_of
    from cerebro_eeg.train.distributed import choose_device

    if not stores:
        raise ConfigError("no store was given; expected at least one folder that prepare made")
    preset, line = preset_for(preset, None if from_ is None else model_of(from_))
    flags: dict[str, Any] = {
        "model.attention": attention,
        "model.patches.kind": patches,
        "objective.style": style,
        "pretrain.stop_epoch": epochs,
        "pretrain.batch_size": batch_size,
        "pretrain.peak_lr": lr,
    }
    if epochs:
        table = choose(preset, config, {}, ()).pretrain
        flags["pretrain.max_epochs"] = max(epochs, table.max_epochs)
        flags["pretrain.warmup_epochs"] = min(table.warmup_epochs, max(1, epochs // 2))
    refused = [name for name in changed_fields(config, flags, set) if name.startswith(("model.", "objective."))]
    if from_ is not None and refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot be changed with --from: model and objective are the checkpoint's; leave it "
            "out"
        )
    chosen = choose(preset, config, flags, set)
    options = runs.PretrainOptions(seed, seconds, stride, weights or None, without, steps, paper, rate, minutes)
    progress, began = Progress(), time.monotonic()
    say_first(progress, [line, no_report()])
    steps_line = StepLine(progress)
    try:
        result = runs.pretrain(
            list(stores), out, chosen, options, engine, from_, say=progress.say, tell=steps_line.tell
        )
        if result.first:
            device = choose_device(engine.device)
            write_page(lambda tell: report_pretrain(out, list(stores), device, tell=tell), progress)
    finally:
        progress.end()
    return replace(result, seconds=time.monotonic() - began)
