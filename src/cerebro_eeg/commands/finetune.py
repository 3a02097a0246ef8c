"""``cerebro-eeg finetune``: a classifier or regression from labelled windows; or a linear probe on frozen features."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cerebro_eeg.commands.progress_lines import StepLine, no_report, say_first, write_page
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.progress import Progress
from cerebro_eeg.runs.results import FinetuneResult
from cerebro_eeg.runs.settings import Engine, changed_fields, choose, preset_for
from cerebro_eeg.runs.training_processes import started_ahead

GROUPS = {
    "what learns": ("freeze", "lora", "few", "balanced", "centring", "solver"),
    "what the head reads": ("readout",),
    "how long": ("epochs", "steps", "minutes", "patience"),
    "how often": ("seeds", "seed", "folds", "at_once"),
    "windows and electrodes": ("seconds", "stride", "labels", "rate", "untrained"),
    "what it is compared with": ("rivals", "random_weights"),
    "hyper-parameters": ("preset", "config", "batch_size", "lr", "paper", "set"),
}
"""The groups of the help."""


def finetune(
    store: Path,
    /,
    *,
    task: str,
    from_: str,
    out: Path,
    preset: str | None = None,
    config: Path | None = None,
    freeze: bool = False,
    lora: int | None = None,
    few: bool = False,
    readout: Literal[
        "auto",
        "mean",
        "moments",
        "attention",
        "channels",
        "power",
        "tangent",
        "simple",
        "spectrum",
        "narrow",
        "fine",
        "signal",
        "bands",
        "encoder",
        "hybrid",
        "whole",
        "everything",
    ]
    | None = None,
    solver: Literal["exact", "adamw"] = "exact",
    seeds: int = 1,
    seed: int = 0,
    folds: int | None = None,
    at_once: int | None = None,
    balanced: bool = False,
    centring: bool = True,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    patience: int = 10,
    batch_size: int | None = None,
    lr: float | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    labels: Literal["interval", "majority", "last", "mean"] | None = None,
    rate: Literal["error", "as_is"] = "error",
    untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
    paper: bool = False,
    rivals: bool = True,
    random_weights: bool = False,
    set: tuple[str, ...] = (),
    engine: Engine = Engine(),
) -> FinetuneResult:
    """Train a task of a store: all of a pre-trained model, only a linear head on it, or a new model.

    Selection is on the validation split alone; the test split is not read. Seeds and folds are trained side by side
    where the machine has room. Interrupted or killed, start it again with the same command; other --steps or --epochs
    are taken until a training is finished.

    Try, for example:
      cerebro-eeg finetune my-store --task eyes --from my-run --out eyes --seeds 5
      cerebro-eeg finetune my-store --task eyes --from my-run --freeze --out eyes-probe
      cerebro-eeg finetune my-store --task eyes --from my-run --few --out eyes-few
      cerebro-eeg finetune my-store --task eyes --from none --preset tiny --out eyes-scratch

    Args:
        store: A folder that prepare made.
        task: Which of the store's tasks; info STORE lists them.
        from_: A checkpoint or run to start from, small-open for the weights that come with the package, or none for new
            weights (of the preset's size).
        out: The folder of the run; made where there is none, gone on with where it holds this run.
        preset: Whose hyper-parameters to use and, with --from none, whose size; otherwise the preset of the weights, or
            small.
        config: A JSON file that changes fields of the preset: {"model": {...}, "finetune": {...}}.
        freeze: Linear probing: the encoder stays as it is.
        lora: Train the head and low-rank adapters of this rank in all blocks, and keep all other weights; what is saved
            has them merged and is a checkpoint like any other.
        few: For few labelled subjects: the exact probe's head first, then adapters (of rank 8, or --lora) for 200 steps
            (or --steps) at a rate of 1e-4 (or --lr). Validation chooses among averaged weights and the probe itself.
        readout: What the head reads of a window: the mean of the last tokens, as in the paper; moments (mean and
            deviation over tokens of four layers); attention (four weighted means of the last tokens); channels (mean
            token of every channel); power (log band power); tangent (log covariances in frequency bands); simple (these
            two); spectrum and narrow (the same in bins of 1 Hz and bands of 3 Hz); fine (these two); signal (simple and
            fine); bands (log covariances in learned bands); encoder (moments, covariances of tokens between channels,
            amplitude); hybrid (encoder and simple); whole (encoder and signal); everything (whole and bands). From
            power to bands none needs the encoder. auto, the default with --freeze, chooses by cross-validation over
            training and validation subjects. Otherwise it is the mean.
        solver: Of the probe: scikit-learn's logistic or ridge regression, or gradient steps as in the paper.
        seeds: How many trainings, each with a seed of its own, from --seed on. The exact probe of given weights draws
            nothing at random and is trained once.
        seed: The first of them.
        folds: Divide by subject into so many folds (or use the corpus's own): each is tested once, the next validates.
        at_once: How many seeds and folds are trained at the same time, each in a process of its own; otherwise what
            fits, on a GPU up to 8, on a CPU one for every 2 cores. 1 trains one after the other.
        balanced: Weigh classes so that all weigh the same.
        centring: With --freeze: features may be centred per subject, which suits recordings with all classes; choose
            --no-centring if you will predict recordings of one class only.
        epochs: Epochs to train, if validation does not stop it before.
        steps: Steps to train, instead of epochs.
        minutes: Minutes to train, instead of steps or epochs: the pace of the first steps says how many fit. They are
            shared by all seeds and folds; rivals and the report come after.
        patience: Epochs without a better validation score after which training stops; with --few, periods of 20 steps.
        batch_size: Windows of a step, over all processes.
        lr: Learning rate after the warm-up.
        seconds: Length of a window; otherwise the task's.
        stride: Seconds from window to window; otherwise the task's.
        labels: How a window is labelled by the intervals that it lies in; otherwise the task's way.
        rate: What to do with a store of another rate than the model's.
        untrained: With --freeze, --lora or --few: what to do with electrodes that the weights never saw.
        paper: Keep the batch size, however few steps an epoch has.
        rivals: Compare with simple rivals on the same validation windows; --no-rivals leaves them out. They are band
            power, covariances in bands, both, and these with narrow bands, each with a linear model. One that wins is
            saved beside the trainings, in the folder simple.
        random_weights: Beside the rivals also a head on random weights, the control for pre-training; on a GPU it is
            always there.
        set: Any other field, as name=value: finetune.drop_path=0.2.
        engine: How it is carried out; its fields are flags of their own.
    """
    exact = freeze and solver == "exact"  # heads without steps take less time than the start of a process
    if patience < 1:
        raise ConfigError(f"patience is {patience}; expected at least 1 epoch")
    if untrained != "error" and not (freeze or few or lora is not None):
        raise ConfigError(
            "--untrained is for --freeze, --lora and --few; full fine-tuning trains the rows of new electrodes"
        )
    if minutes is not None and exact:
        raise ConfigError("--minutes is for training by steps, and --freeze fits a head without steps; leave it out")
    if few and epochs is not None:
        raise ConfigError("--few counts steps and not epochs; say --steps")
    if seeds < 1 or seed < 0:
        raise ConfigError(f"seeds is {seeds} and seed {seed}; expected at least 1 and at least 0")
    with started_ahead(0 if exact else seeds * (folds or 1), at_once, engine.device, engine.threads) as others:
        from cerebro_eeg.report import figures
        from cerebro_eeg.report.finetune import report_finetune
        from cerebro_eeg.runs import few_subjects
        from cerebro_eeg.runs import finetune as runs
        from cerebro_eeg.runs.snapshot import model_of

        start = None if from_ == "none" else Path(from_)
        preset, line = preset_for(preset, None if start is None else model_of(start))
        flags = {
            "finetune.epochs": epochs,
            "finetune.warmup_epochs": epochs
            and min(choose(preset, config, {}, ()).finetune.warmup_epochs, max(1, epochs // 2)),
            "finetune.batch_size": batch_size,
            "finetune.peak_lr": lr,
        }
        if few:
            taken = changed_fields(config, flags, set)
            flags |= {name: value for name, value in few_subjects.HYPERPARAMETERS.items() if name not in taken}
        chosen = choose(preset, config, flags, set)
        options = runs.FinetuneOptions(
            task=task,
            seeds=tuple(range(seed, seed + seeds)),
            folds=folds,
            freeze=freeze,
            solver=solver,
            balanced=balanced,
            centring=None if centring else False,
            seconds=seconds,
            stride=stride,
            labels=labels,
            patience=patience,
            steps=steps,
            minutes=minutes,
            paper=paper,
            rate=rate,
            untrained="as_is" if freeze and from_ == "none" else untrained,
            lora=lora,
            few=few or None,
            readout=readout or ("auto" if exact and not paper else None),
        )
        progress, began = Progress(), time.monotonic()
        say_first(progress, [line, no_report()])
        if freeze and start is None:
            progress.say("note: this probes random weights, which is a control and not a model")
        unused = [name for name in changed_fields(config, flags, set) if name.startswith(("model.", "objective."))]
        if start is not None and unused:  # a note and no error: one file may serve trained and new weights alike
            progress.say(f"note: {', '.join(unused)} is not used with --from: the model is the checkpoint's")
        steps_line = StepLine(progress)
        try:
            result = runs.finetune(
                store,
                out,
                chosen,
                options,
                engine,
                start,
                rivals=rivals,
                random_weights=random_weights,
                at_once=at_once,
                others=others,
                meanwhile=figures.import_ahead,
                say=progress.say,
                tell=steps_line.tell,
            )
            if result.first:
                write_page(lambda tell: report_finetune(out, tell=tell), progress)
        finally:
            progress.end()
        return replace(result, seconds=time.monotonic() - began)
