"""The verbs as functions. `python tests/test_api.py` writes this file."""

# ruff: noqa: E501

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

from cerebro_eeg.commands.embed import EmbedResult
from cerebro_eeg.commands.info_folder import FolderSurvey
from cerebro_eeg.commands.info_model import ModelInfo
from cerebro_eeg.commands.info_recording import RecordingSummary
from cerebro_eeg.commands.info_store import StoreSummary
from cerebro_eeg.commands.predict import PredictResult
from cerebro_eeg.commands.prepare import PrepareResult
from cerebro_eeg.commands.repair import RepairResult
from cerebro_eeg.commands.simulate import SimulateResult
from cerebro_eeg.runs.compare_result import CompareResult
from cerebro_eeg.runs.decisions import Prediction
from cerebro_eeg.runs.embed import Embedding
from cerebro_eeg.runs.features import FeatureTable
from cerebro_eeg.runs.repair_result import Repaired
from cerebro_eeg.runs.results import EvaluateResult, FinetuneResult, PretrainResult
from cerebro_eeg.runs.verify import VerifyResult

def compare(
    store: str | PathLike[str],
    *,
    out: str | PathLike[str],
    from_: str | PathLike[str] = "small-open",
    labels: str | PathLike[str] | None = None,
    tasks: str | Sequence[str] = (),
    methods: str | Sequence[str] = (),
    everything: bool = False,
    quick: bool = False,
    repeats: int = 3,
    seeds: int = 3,
    balanced: bool = False,
    test: bool = True,
    untrained: Literal["error", "nearest", "drop", "as_is"] = "nearest",
    resamples: int = 1000,
    device: str = "auto",
    threads: int | None = None,
) -> CompareResult:
    """Compare CEReBrO with simple features and small networks, on the same windows and splits; one command, one table.

    Every method has the same number of settings, chosen by cross-validation over training and validation subjects.
    Scores have 95 % intervals over subjects, and stand beside the difference from our default. The test split is scored
    once for each seed, and test-log.jsonl counts it. Interrupted or killed, start it again with the same call; tasks
    and methods can be added later. Writes compare.json, report.html and all predictions.

    Try, for example:
      cerebro_eeg.compare("my-store", out="my-comparison", quick=True)
      cerebro_eeg.compare("my-store", tasks=["eyes", "stress4"], from_="my-run", out="my-comparison")
      cerebro_eeg.compare("my-recordings", labels="table.csv", out="my-comparison", quick=True)

    Args:
        store: A folder that prepare made, with labels; or with labels a folder of recordings.
        out: The folder of the comparison; made where there is none, gone on with where it holds this comparison.
        from_: The weights to compare: small-open comes with the package; or a checkpoint or a run.
        labels: The table of labels of a folder of recordings, which is then prepared into OUT-store first, as prepare
            folder does.
        tasks: Which of the store's tasks; otherwise all that have labels.
        methods: Which rows; otherwise all on a GPU, and on a CPU those that train nothing by gradient steps. The names
            are those of the table, such as "band power" or "EEGNet"; braindecode:NAME is a model of that package.
        everything: All rows, also where they take hours.
        quick: In minutes on two cores: at most 600 windows of a task to learn from and 300 to test, one division of the
            subjects, and no training by gradient steps.
        repeats: Divisions of the subjects into five folds; scores are averaged over them.
        seeds: Of random weights, small networks and trainings; each is scored.
        balanced: Weigh classes so that all weigh the same.
        test: Score the test split, once. With test=False it stays untouched: cross-validation is all, as often as you
            like.
        untrained: What to do with electrodes that the weights never saw.
        resamples: Draws of subjects for the intervals.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """

def embed(
    recordings: Any,
    model: Any,
    *,
    out: str | PathLike[str] | None = None,
    task: str | None = None,
    split: str | Sequence[str] = (),
    level: Literal["window", "channel", "token"] = "window",
    layer: int | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    key: str | PathLike[str] | None = None,
    map: str | PathLike[str] | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
    untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
    too_many: Literal["error", "nearest"] = "error",
    quality: Literal["keep", "drop", "refuse"] = "keep",
    mains: float | None = None,
    unit: str | None = None,
    rename: str | PathLike[str] | None = None,
    sfreq: float | None = None,
    channels_from: str | PathLike[str] | None = None,
) -> Embedding | FeatureTable | EmbedResult:
    """Return the features of recordings, or of a store: what a model's encoder makes of every window of them.

    One recording (a file, or a Raw or Epochs object of MNE) gives an Embedding. A list, a folder or a store gives a
    FeatureTable: a row per window with its recording, and of a store with subject, split and label. With out=... the
    features are written to a file instead, which memory need not hold, and an EmbedResult says what it holds. A
    warning tells where recordings could not be used, and ``failures`` have the reasons. Recordings are filtered,
    referenced and resampled as the checkpoint says.

    Try, for example:
      cerebro_eeg.embed("night.edf", "small-open").features
      cerebro_eeg.embed("my-store", "small-open", task="eyes").to_frame()
      cerebro_eeg.embed("path/to/files", "small-open", out="features.parquet", level="channel", layer=6)

    Args:
        recordings: A file, a Raw or Epochs object of MNE, a folder that is searched for files, a list of paths, or a
            store.
        model: A checkpoint, the folder of a run, small-open (weights that come with the package), or a Cerebro.
        out: The file to write: .npz, .csv, or .parquet where the package pyarrow is installed.
        task: Of a store: embed the labelled windows of this task, as finetune cuts them; otherwise all time.
        split: Of a store: splits of the task to embed; otherwise all.
        level: One vector a window, one a channel, or one a patch of each channel.
        layer: Blocks of the encoder to run, from 0 (embedded patches); otherwise all.
        seconds: Length of a window; otherwise the task's or the model's.
        stride: Seconds from window to window; otherwise the task's, or side by side.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for; of a store, the one that prepare wrote.
        show_paths: Name recordings by their paths, too; they may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps; a Cerebro stays where it is.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
        unknown: Channels whose labels are not understood: refuse the recording, drop them, or take the nearest electrode where the file has positions.
        untrained: Channels of electrodes that no window trained: refuse the recording, use the nearest that was trained, drop them, or use them as they are.
        too_many: A recording with more channels than the model takes: refuse it, or keep some spread over the head.
        quality: Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording.
        mains: Mains frequency in Hz; otherwise estimated: several recordings vote, and one is asked itself.
        unit: uV, nV, mV or V, of channels whose own unit is blank or unknown.
        rename: A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out.
        sfreq: Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second.
        channels_from: Of arrays that do not say them: a text file with the names of the channels, one a line.
    """

def evaluate(
    run: str | PathLike[str],
    store: str | PathLike[str],
    *,
    split: str | None = None,
    task: str | None = None,
    classes: str | Sequence[str] = (),
    new_subjects: bool = False,
    trained_on: str | PathLike[str] | None = None,
    again: bool = False,
    events: bool = False,
    untrained: Literal["error", "nearest", "drop", "as_is"] | None = None,
    resamples: int = 1000,
    rivals: bool = True,
    random_weights: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> EvaluateResult:
    """Score all trainings of a fine-tuning run on its test split, or on data from elsewhere: once.

    Asking again prints the first score. Numbers by window (as in the paper), recording and subject, with 95 %
    intervals over subjects, mean and standard deviation over seeds, and what chance would give. For two classes also
    what comes of deciding as predict does, by the threshold that was chosen on validation. For seizures also events and
    false alarms a day, as SzCORE defines them, and the detections as its TSV. Writes test.json into the run, test.json
    and test.npz beside each training.

    Another store than the one that the run was trained on is external data: differences between the two are printed
    first, and each store, task and split is scored once, in a folder external/ of the run.

    Try, for example:
      cerebro_eeg.evaluate("my-finetuning", "my-store")
      cerebro_eeg.evaluate("my-finetuning", "my-store", split="validation")
      cerebro_eeg.evaluate("my-finetuning", "other-store", trained_on="my-store")
      cerebro_eeg.evaluate("my-finetuning", "other-store", task="rest", classes=["awake=eyes_open", "asleep="])

    Args:
        run: The folder that finetune made.
        store: The store that the run was trained on, or another one with labels.
        split: What to score: test (the default) or validation, which is not counted and writes nothing. Of another
            store one of its splits, or all; by default all labelled windows but those of subjects that the run is known
            to have learned from.
        task: Of another store, the task to score; otherwise the one with the name of the run's.
        classes: THEIRS=OURS: what classes or targets of another store are called in the run. THEIRS= leaves them out.
        new_subjects: Of another store, leave out every subject whose id the run learned from, even if only the name is
            the same.
        trained_on: The store of the run, to fit simple rivals on where another store is scored.
        again: Score once more; the first score is kept and the number of scorings is told.
        events: Score events also where no class is called a seizure; the last of two classes is the event.
        untrained: What to do with channels of electrodes that no window trained; otherwise as in the run.
        resamples: Draws of subjects for the intervals.
        rivals: Compare with simple rivals on the same test windows; rivals=False leaves them out. They are band power,
            covariances in bands, both, and these with narrow bands, each with a linear model. The paired difference
            over subjects is shown, and a sentence says who wins.
        random_weights: Beside the rivals also a head on random weights, the control for pre-training; on a GPU it is
            always there.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """

def finetune(
    store: str | PathLike[str],
    *,
    task: str,
    from_: str | PathLike[str],
    out: str | PathLike[str],
    preset: str | None = None,
    config: str | PathLike[str] | None = None,
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
    set: str | Sequence[str] = (),
    device: str = "auto",
    strategy: Literal["ddp", "fsdp"] = "ddp",
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto",
    residual: Literal["bf16", "fp32"] = "bf16",
    micro_batch: int | None = None,
    compile: Literal["auto", "yes", "no"] = "auto",
    capture: bool = True,
    kernels: Literal["ours", "stock"] = "ours",
    recompute: bool = False,
    deterministic: bool = False,
    threads: int | None = None,
    readers: int = 2,
    save_minutes: float = 10.0,
    loggers: Literal["tensorboard", "wandb"] | Sequence[Literal["tensorboard", "wandb"]] = (),
) -> FinetuneResult:
    """Train a task of a store: all of a pre-trained model, only a linear head on it, or a new model.

    Selection is on the validation split alone; the test split is not read. Seeds and folds are trained side by side
    where the machine has room. Interrupted or killed, start it again with the same call; other steps or epochs
    are taken until a training is finished.

    Try, for example:
      cerebro_eeg.finetune("my-store", task="eyes", from_="my-run", out="eyes", seeds=5)
      cerebro_eeg.finetune("my-store", task="eyes", from_="my-run", freeze=True, out="eyes-probe")
      cerebro_eeg.finetune("my-store", task="eyes", from_="my-run", few=True, out="eyes-few")
      cerebro_eeg.finetune("my-store", task="eyes", from_="none", preset="tiny", out="eyes-scratch")

    Args:
        store: A folder that prepare made.
        task: Which of the store's tasks; info STORE lists them.
        from_: A checkpoint or run to start from, small-open for the weights that come with the package, or none for new
            weights (of the preset's size).
        out: The folder of the run; made where there is none, gone on with where it holds this run.
        preset: Whose hyper-parameters to use and, with from_='none', whose size; otherwise the preset of the weights, or
            small.
        config: A JSON file that changes fields of the preset: {"model": {...}, "finetune": {...}}.
        freeze: Linear probing: the encoder stays as it is.
        lora: Train the head and low-rank adapters of this rank in all blocks, and keep all other weights; what is saved
            has them merged and is a checkpoint like any other.
        few: For few labelled subjects: the exact probe's head first, then adapters (of rank 8, or lora) for 200 steps
            (or steps) at a rate of 1e-4 (or lr). Validation chooses among averaged weights and the probe itself.
        readout: What the head reads of a window: the mean of the last tokens, as in the paper; moments (mean and
            deviation over tokens of four layers); attention (four weighted means of the last tokens); channels (mean
            token of every channel); power (log band power); tangent (log covariances in frequency bands); simple (these
            two); spectrum and narrow (the same in bins of 1 Hz and bands of 3 Hz); fine (these two); signal (simple and
            fine); bands (log covariances in learned bands); encoder (moments, covariances of tokens between channels,
            amplitude); hybrid (encoder and simple); whole (encoder and signal); everything (whole and bands). From
            power to bands none needs the encoder. auto, the default with freeze=True, chooses by cross-validation over
            training and validation subjects. Otherwise it is the mean.
        solver: Of the probe: scikit-learn's logistic or ridge regression, or gradient steps as in the paper.
        seeds: How many trainings, each with a seed of its own, from seed on. The exact probe of given weights draws
            nothing at random and is trained once.
        seed: The first of them.
        folds: Divide by subject into so many folds (or use the corpus's own): each is tested once, the next validates.
        at_once: How many seeds and folds are trained at the same time, each in a process of its own; otherwise what
            fits, on a GPU up to 8, on a CPU one for every 2 cores. 1 trains one after the other.
        balanced: Weigh classes so that all weigh the same.
        centring: With freeze=True: features may be centred per subject, which suits recordings with all classes; choose
            centring=False if you will predict recordings of one class only.
        epochs: Epochs to train, if validation does not stop it before.
        steps: Steps to train, instead of epochs.
        minutes: Minutes to train, instead of steps or epochs: the pace of the first steps says how many fit. They are
            shared by all seeds and folds; rivals and the report come after.
        patience: Epochs without a better validation score after which training stops; with few=True, periods of 20 steps.
        batch_size: Windows of a step, over all processes.
        lr: Learning rate after the warm-up.
        seconds: Length of a window; otherwise the task's.
        stride: Seconds from window to window; otherwise the task's.
        labels: How a window is labelled by the intervals that it lies in; otherwise the task's way.
        rate: What to do with a store of another rate than the model's.
        untrained: With freeze=True, lora or few=True: what to do with electrodes that the weights never saw.
        paper: Keep the batch size, however few steps an epoch has.
        rivals: Compare with simple rivals on the same validation windows; rivals=False leaves them out. They are band
            power, covariances in bands, both, and these with narrow bands, each with a linear model. One that wins is
            saved beside the trainings, in the folder simple.
        random_weights: Beside the rivals also a head on random weights, the control for pre-training; on a GPU it is
            always there.
        set: Any other field, as name=value: finetune.drop_path=0.2.
        device: auto, cpu, cuda, cuda:1 or mps.
        strategy: Whole copies in every process, or shards of the weights.
        precision: Of the arithmetic; auto is bf16 on a GPU that has it.
        residual: Where the arithmetic is bf16, of what blocks add to: fp32 moves twice the memory.
        micro_batch: Windows that a process computes at once; otherwise what fits into memory.
        compile: Compile the blocks; auto does so on a GPU whose steps cannot be CUDA graphs.
        capture: Repeat steps as CUDA graphs on one NVIDIA GPU, with the same bits; capture=False computes them plainly.
        kernels: Ours for attention, norms and GELU, on GPUs tried on an H200 only, or torch's alone.
        recompute: Gradient checkpointing: less memory, more time.
        deterministic: Bitwise equal repetitions on a GPU, too.
        threads: Of a process on the CPU.
        readers: Threads that read windows; beside a GPU each has a process do it.
        save_minutes: Between two saves of the state.
        loggers: Beside metrics.jsonl.
    """

def info(
    target: str | PathLike[str],
    *,
    channels: int | None = None,
    seconds: float | None = None,
    plot: str | PathLike[str] | None = None,
    start: float | None = None,
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None = None,
    unit: Literal["uV", "nV", "mV", "V"] | None = None,
    rename: str | PathLike[str] | None = None,
    sfreq: float | None = None,
    channels_from: str | PathLike[str] | None = None,
    show_events: bool = False,
    table: str | PathLike[str] | None = None,
    model: str | PathLike[str] | None = None,
    show_paths: bool = False,
    key: str | PathLike[str] | None = None,
) -> ModelInfo | StoreSummary | RecordingSummary | FolderSurvey:
    """What a preset, a checkpoint, a store, an EEG file or a folder of EEG files is.

    Of a model: dimensions, parameters by part, tokens, FLOPs and memory. Of a store: hours, subjects, montages, rates,
    labels by split, what was skipped and why. Of an EEG file: what prepare would make of it. Of a folder: the same for
    each of its recordings, from their heads, with the option that would help. A warning tells where prepare would
    skip some.

    Try, for example:
      cerebro_eeg.info("large", channels=64, seconds=10)
      cerebro_eeg.info("my-model/model.safetensors")
      cerebro_eeg.info("my-store", plot="store.png")
      cerebro_eeg.info("night.edf", unknown="drop", plot="look.png", start=60)
      cerebro_eeg.info("path/to/files", table="files.csv")

    Args:
        target: A preset (tiny, small, base, large, open), the weights small-open that come with the package, or on this
            disk a checkpoint (a .safetensors file or its folder), the folder of a store, an EEG file, or a folder of
            EEG files.
        channels: Of a model: channels of the window whose cost is printed; 19 unless given.
        seconds: Of a model: seconds of that window, 5 unless given. Of an EEG file: seconds in the picture, 10 unless
            given.
        plot: A picture to write (.png or .svg) of a store (channel counts, subjects, amplitude, spectrum; with .html a
            page with its tables, too) or of an EEG file (signal and spectrum).
        start: Of an EEG file: where the picture begins, in seconds; the middle of its longest stretch unless given.
        unknown: Of EEG files: what becomes of channel labels that are not understood; an error unless given.
        unit: Of EEG files: the unit of channels whose own is blank or unknown; these are refused unless given.
        rename: Of EEG files: a table of two columns: a channel's name in the files, and its electrode, or nothing to
            leave it out.
        sfreq: Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second.
        channels_from: Of arrays that do not say them: a text file with the names of the channels, one a line.
        show_events: Of an EEG file: print the names of its events; they are free text and may say who was recorded.
        table: Of a folder: a CSV file to write, with a row for each recording.
        model: Of a folder: a checkpoint, the folder of a run, or small-open, to see what predict and embed would make
            of the recordings with it instead; electrodes that it never saw count then, too.
        show_paths: Of a folder: name recordings by their paths; they may say who was recorded.
        key: Of a folder: the file with the key that ids are made with; otherwise the one in your config folder.
    """

def predict(
    recordings: Any,
    model: Any,
    *,
    out: str | PathLike[str] | None = None,
    stride: float | None = None,
    annotations: Literal["edf", "bids"] | Sequence[Literal["edf", "bids"]] = (),
    plot: bool = False,
    explain: bool = False,
    key: str | PathLike[str] | None = None,
    map: str | PathLike[str] | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
    untrained: Literal["error", "nearest", "drop", "as_is"] = "error",
    too_many: Literal["error", "nearest"] = "error",
    quality: Literal["keep", "drop", "refuse"] = "keep",
    mains: float | None = None,
    unit: str | None = None,
    rename: str | PathLike[str] | None = None,
    sfreq: float | None = None,
    channels_from: str | PathLike[str] | None = None,
) -> Prediction | PredictResult:
    """Say what a fine-tuned model makes of recordings that it never saw. Research software, not a medical device.

    One recording (a file, or a Raw or Epochs object of MNE) gives a Prediction: the answers for its windows, and the
    decision for the whole. A list, a folder or out=... gives a PredictResult: the answers for all recordings. A warning
    tells where recordings could not be used, and its ``failures`` have the reasons. Recordings are filtered, referenced
    and resampled as the checkpoint says.

    Try, for example:
      cerebro_eeg.predict("night.edf", "my-finetuning/seed-0").decision
      cerebro_eeg.predict("path/to/files", "my-finetuning/seed-0", show_paths=True).to_frame()
      cerebro_eeg.predict(["a.edf", "b.edf"], "my-finetuning/seed-0", out="said", plot=True)

    Args:
        recordings: A file, a Raw or Epochs object of MNE, a folder that is searched for files, or a list of paths.
        model: A checkpoint, the folder of one training, a result of finetune with one training, or a Cerebro.
        out: A folder for predictions.csv, decisions.csv and decisions.json, annotations and pictures; otherwise no
            file is written.
        stride: Seconds from window to window; otherwise side by side.
        annotations: With out, also write the classes as EDF+ annotations (edf) or BIDS events (bids).
        plot: With out, also draw each recording with the prediction under it, as PNG.
        explain: With out, also say what the answers depend on, as a table and as PNG: how much they lose when a
            channel is made silent or a frequency band is taken out. cerebro_eeg.explain returns it as arrays.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for.
        show_paths: Name recordings by their paths, too; they may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps; a Cerebro stays where it is.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
        unknown: Channels whose labels are not understood: refuse the recording, drop them, or take the nearest electrode where the file has positions.
        untrained: Channels of electrodes that no window trained: refuse the recording, use the nearest that was trained, drop them, or use them as they are.
        too_many: A recording with more channels than the model takes: refuse it, or keep some spread over the head.
        quality: Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording.
        mains: Mains frequency in Hz; otherwise estimated: several recordings vote, and one is asked itself.
        unit: uV, nV, mV or V, of channels whose own unit is blank or unknown.
        rename: A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out.
        sfreq: Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second.
        channels_from: Of arrays that do not say them: a text file with the names of the channels, one a line.
    """

def prepare(
    dataset: str,
    source: str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    dry_run: bool = False,
    table: str | PathLike[str] | None = None,
    workers: int = -1,
    part: str = "1/1",
    dask: str | None = None,
    retry: bool = False,
    anew: bool = False,
    mains: float | None = None,
    reference: Literal["as_recorded", "average", "linked_ears", "tcp", "double_banana"] | None = None,
    causal: bool = False,
    quality: Literal["keep", "drop", "refuse"] = "keep",
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] | None = None,
    too_many: Literal["error", "nearest"] | None = None,
    max_channels: int | None = None,
    rename: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    map: str | PathLike[str] | None = None,
    show_paths: bool = False,
    exclude: str | PathLike[str] | None = None,
    labels: str | PathLike[str] | None = None,
    label: str | None = None,
    subject: str | None = None,
    split: str | None = None,
    events: str | Sequence[str] = (),
    unit: Literal["uV", "nV", "mV", "V"] | None = None,
    sfreq: float | None = None,
    channels_from: str | PathLike[str] | None = None,
    positive: str | None = None,
    task: str | None = None,
    legacy: bool = False,
    protocol: Literal["biofoundation"] | None = None,
) -> PrepareResult | FolderSurvey:
    """Filter, notch, resample and store every recording of a corpus; what cannot be used is listed with its reason.

    Interrupted or killed, start it again with the same arguments: it goes on, and ends with the same store. With other
    options it prepares again what they concern. A warning tells where recordings were skipped.

    Try, for example:
      cerebro_eeg.prepare("openeeg", "path/to/pack", out="my-store")
      cerebro_eeg.prepare("folder", "path/to/files", dry_run=True)
      cerebro_eeg.prepare("folder", "path/to/files", out="my-store", labels="table.csv", map="names.json")
      cerebro_eeg.prepare("tueg", "path/to/tueg", out="my-store", exclude="path/to/tuab", part="3/100")

    Args:
        dataset: What the source is: openeeg, folder, bids, moabb, tueg, tuab, tusz, tuep, tusl, seed, neonate or mobi.
        source: The folder that holds the corpus; nothing is written to it.
        out: The folder of the store; made where there is none, gone on with where there is one.
        dry_run: Only say what would be made of each recording, from file headers, and which option would help
            those that would be skipped; nothing is stored.
        table: With dry-run: a CSV file to write, with a row for each recording.
        workers: Processes to use; -1 for one a core, 0 for none but this one.
        part: k/n, to prepare the k-th of n parts, each by a job of its own, at any time and into one store.
        dask: The address of a Dask scheduler, such as tcp://host:8786, to do the work on its cluster instead.
        retry: Try again what was skipped before. Without it only what a disk or a network may be to blame for is.
        anew: Change the options of a store also where that concerns most of its samples, which are then deleted and
            prepared again. Options that concern fewer are changed without it.
        mains: Mains frequency in Hz; otherwise the corpus's own, or what a look at some recordings shows.
        reference: What the channels are measured against; otherwise as the recipe says, mostly as recorded.
        causal: Filters that never look ahead, for models that will run on streams; otherwise zero-phase ones.
        quality: Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording.
        unknown: Channels whose labels are not understood: refuse the recording, drop them, or take the nearest
            electrode where the file has positions; otherwise as the recipe says.
        too_many: A recording with more than max-channels: refuse it, or keep the channels nearest to as many electrodes
            spread over the head.
        max_channels: The most channels of a recording; otherwise as the recipe says, mostly 64.
        rename: A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out.
        key: The file with the key that ids are made with, where a corpus does not keep its own; made where there is
            none. Without it, the one in your config folder.
        map: A private file, outside of the store, that is told which path and subject each id stands for.
        show_paths: Name the skipped sources; their paths may say who was recorded.
        exclude: tueg: whom to leave out: the folder of TUAB, a file with a subject a line, or none.
        labels: folder: the table with labels and subjects.
        label: folder: where in a path the label is: parent, top, or an expression with a group; bids: the column of
            participants.tsv, or task, session, run or acquisition of the names.
        subject: folder: where in a path the subject is: parent, top, or an expression with a group; moabb: numbers of
            the subjects to take, with commas.
        split: What no two splits share. seed: trials or subject; folder: subject, recording or trial; bids: subject;
            moabb: subject or session. Without it, folder and bids make splits by subject where labels have none; none
            makes none.
        events: folder, bids: names of events that may go into the store; moabb: the classes to take.
        unit: folder: the unit of channels whose own is blank or unknown, which are refused otherwise, and of tables
            of headsets, which have none.
        sfreq: folder: samples per second of arrays (.npy, .mat, tables of numbers) that do not say it; without it they
            are passed over.
        channels_from: folder: a text file with the channel names of arrays that do not say them, one a line.
        positive: folder, bids: of two classes the one that is looked for, such as sick of sick and well: AUPR (positive
            class), threshold, decisions and events are about it. Otherwise the last by the alphabet, or the larger
            number.
        task: bids: the task of the recordings to take; mobi: joints or goniometers; moabb: the class of the dataset.
        legacy: neonate: label window k with second k, as published code does.
        protocol: neonate, mobi: labels, splits and channels as in the scripts of the paper's group, to compare with
            their numbers; otherwise ours.
    """

def pretrain(
    stores: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    out: str | PathLike[str],
    preset: str | None = None,
    config: str | PathLike[str] | None = None,
    from_: str | PathLike[str] | None = None,
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
    weights: float | Sequence[float] = (),
    without: str | Sequence[str] = (),
    rate: Literal["error", "as_is"] = "error",
    paper: bool = False,
    set: str | Sequence[str] = (),
    device: str = "auto",
    strategy: Literal["ddp", "fsdp"] = "ddp",
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto",
    residual: Literal["bf16", "fp32"] = "bf16",
    micro_batch: int | None = None,
    compile: Literal["auto", "yes", "no"] = "auto",
    capture: bool = True,
    kernels: Literal["ours", "stock"] = "ours",
    recompute: bool = False,
    deterministic: bool = False,
    threads: int | None = None,
    readers: int = 2,
    save_minutes: float = 10.0,
    loggers: Literal["tensorboard", "wandb"] | Sequence[Literal["tensorboard", "wandb"]] = (),
) -> PretrainResult:
    """Pre-train an encoder on the windows of one or several stores, from new weights or from a checkpoint's.

    Interrupted or killed, start it again with the same call: it goes on, and ends as if it had never stopped. With
    other steps or epochs it goes on, too: from there on, the learning rate is that of a run of the new length.
    An interrupt or a signal (SIGTERM, SIGINT, SIGUSR1) raises StoppedError once the state is saved.

    Try, for example:
      cerebro_eeg.pretrain("my-store", out="my-run", preset="tiny")
      cerebro_eeg.pretrain(["store-a", "store-b"], weights=[2, 1], out="my-run", from_="open-weights.safetensors")

    Args:
        stores: Folders that prepare made. Where a store has a task called pretrain, its split train is learned from
            and its split val validates; otherwise all of it is learned from.
        out: The folder of the run; made where there is none, gone on with where it holds this run.
        preset: small, base or large: the paper's sizes with its hyper-parameters; tiny, for a laptop; open: small that
            also predicts spectra. Otherwise small, or with from_ that of the weights.
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
        device: auto, cpu, cuda, cuda:1 or mps.
        strategy: Whole copies in every process, or shards of the weights.
        precision: Of the arithmetic; auto is bf16 on a GPU that has it.
        residual: Where the arithmetic is bf16, of what blocks add to: fp32 moves twice the memory.
        micro_batch: Windows that a process computes at once; otherwise what fits into memory.
        compile: Compile the blocks; auto does so on a GPU whose steps cannot be CUDA graphs.
        capture: Repeat steps as CUDA graphs on one NVIDIA GPU, with the same bits; capture=False computes them plainly.
        kernels: Ours for attention, norms and GELU, on GPUs tried on an H200 only, or torch's alone.
        recompute: Gradient checkpointing: less memory, more time.
        deterministic: Bitwise equal repetitions on a GPU, too.
        threads: Of a process on the CPU.
        readers: Threads that read windows; beside a GPU each has a process do it.
        save_minutes: Between two saves of the state.
        loggers: Beside metrics.jsonl.
    """

def repair(
    recordings: Any,
    model: Any,
    *,
    bad: str | Sequence[str] = (),
    missing: str | Sequence[str] = (),
    out: str | PathLike[str] | None = None,
    method: Literal["auto", "both", "model", "splines"] = "auto",
    hidden: int = 8,
    format: Literal["edf", "fif"] = "edf",
    events: str | Sequence[str] = (),
    unknown: Literal["error", "drop", "nearest", "nearest_or_drop"] = "error",
    mains: float | None = None,
    unit: str | None = None,
    rename: str | PathLike[str] | None = None,
    sfreq: float | None = None,
    channels_from: str | PathLike[str] | None = None,
    key: str | PathLike[str] | None = None,
    map: str | PathLike[str] | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> Repaired | RepairResult:
    """Fill in bad or missing channels of recordings, and measure the error on good channels that are hidden on purpose.

    One recording (a file, or a Raw object of MNE) gives a Repaired: all channels in microvolts, filtered and at the
    model's rate, with raw() for MNE, save() for a file and errors. A list, a folder or out=... gives a RepairResult. A
    warning tells where recordings could not be used, and its ``failures`` have the reasons. Research software, not a
    medical device.

    Try, for example:
      cerebro_eeg.repair("night.edf", "small-open", bad=["C3", "T4"]).raw()
      cerebro_eeg.repair("night.edf", "small-open", bad="auto").verdict
      cerebro_eeg.repair("path/to/files", "small-open", bad="auto", out="repaired", format="fif")

    Args:
        recordings: A file, a Raw object of MNE, a folder that is searched for files, or a list of paths.
        model: Pre-trained weights: small-open, a checkpoint, the folder of a pre-training, or a MaskedCerebro.
        bad: Channels to fill in, by label or electrode; auto takes those that are flat, clipped, disconnected, absurdly
            scaled or without numbers. Those that a recording marks as bad are filled in, too.
        missing: Electrodes to fill in that were not recorded.
        out: A folder for the repaired recordings and repair.json; otherwise no file is written.
        method: What fills in: auto takes what has the smallest error on the hidden channels; both is the mean of model
            and splines.
        hidden: Good channels that are hidden, one at a time, to measure the error; 0 for none.
        format: Of the files in out. EDF cannot hold gaps; FIF needs the package mne.
        events: Annotation texts that may stay, each exactly as it is in the file; others may name a person.
        unknown: Channels whose labels are not understood: refuse the recording, drop them, or take the nearest
            electrode where the file has positions.
        mains: Mains frequency in Hz; otherwise estimated: several recordings vote, and one is asked itself.
        unit: uV, nV, mV or V, of channels whose own unit is blank or unknown.
        rename: A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out.
        sfreq: Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second.
        channels_from: Of arrays that do not say them: a text file with the names of the channels, one a line.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for.
        show_paths: Name recordings by their paths, too; they may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps; a model in memory stays where it is.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """

def simulate(
    out: str | PathLike[str],
    *,
    subjects: int = 4,
    minutes: float = 2.0,
    seed: int = 0,
    montages: str | Sequence[str] = ("10-20", "32", "64", "muse"),
    rates: int | Sequence[int] = (),
    tasks: Literal["eyes", "hands", "seizure", "gait"] | Sequence[Literal["eyes", "hands", "seizure", "gait"]] = (
        "eyes",
        "hands",
        "seizure",
        "gait",
    ),
    mains: Literal[50, 60] = 50,
) -> SimulateResult:
    """Simulate EEG with known truth: one EDF+ file a subject and task, with annotations, labels and what made it.

    Dipoles in a head of four shells give a 1/f background, alpha that blocks with eyes open, mu that falls over the
    hand area opposite to a moving hand, 3 Hz spike-and-wave seizures and potentials that follow the joints in walking;
    blinks, muscles and mains come on top. The same arguments give the same files.

    Try, for example:
      cerebro_eeg.simulate("my-eeg")
      cerebro_eeg.simulate("my-eeg", subjects=10, montages=["10-20", "bipolar"], rates=[256, 500], tasks="eyes")

    Args:
        out: The folder to write to; it must be new or empty.
        subjects: People to simulate; they differ in rhythms, amplitudes, skull and noise.
        minutes: Length of each recording.
        seed: Of everything random.
        montages: Of the subjects in turn: 10-20, 32, 64, muse, epoc, bipolar.
        rates: Hz, of the subjects in turn; without it, what each montage is usually recorded at.
        tasks: What a subject does, each in a recording of its own.
        mains: Mains frequency in Hz.
    """

def verify(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
) -> VerifyResult:
    """Check stores, runs, checkpoints, features and predictions for damage, by the sums that were written with them.

    Nothing is changed. For each path the output says what was checked, what is damaged, and what has no sum and could
    not be checked. A warning tells of damage.

    Try, for example:
      cerebro_eeg.verify(["my-store", "my-run"])
      cerebro_eeg.verify("my-features.npz")

    Args:
        paths: Folders or files that cerebro-eeg wrote.
    """
