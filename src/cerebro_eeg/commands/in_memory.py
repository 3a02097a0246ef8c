"""``predict``, ``embed`` and ``repair`` as Python has them: one recording gives arrays, several what the verbs give.

The verbs of the command line write files. Here files are written where ``out`` names them. Otherwise everything is
returned.
"""

import tempfile
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro_eeg.commands.embed import EmbedResult
from cerebro_eeg.commands.predict import PredictResult
from cerebro_eeg.commands.python_call import convert
from cerebro_eeg.commands.repair import RepairResult
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.runs.settings import Handling, Unknown

if TYPE_CHECKING:
    from cerebro_eeg.runs.decisions import Prediction
    from cerebro_eeg.runs.embed import Embedding
    from cerebro_eeg.runs.features import FeatureTable
    from cerebro_eeg.runs.repair_result import Repaired


def predict(
    recordings: Any,
    model: Any,
    /,
    *,
    out: Path | None = None,
    stride: float | None = None,
    annotations: tuple[Literal["edf", "bids"], ...] = (),
    plot: bool = False,
    explain: bool = False,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    handling: Handling = Handling(),
) -> "Prediction | PredictResult":
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
    """
    from cerebro_eeg.commands.predict import predict_recordings
    from cerebro_eeg.runs.predict import load_model_on
    from cerebro_eeg.runs.predict import predict as predict_one
    from cerebro_eeg.train.distributed import choose_threads

    if _is_one(recordings) and out is None:
        _only_several(
            annotations=annotations or None,
            plot=plot or None,
            explain=explain or None,
            map=map,
            show_paths=show_paths or None,
        )
        choose_threads(threads)
        loaded = load_model_on(_model(model), device)
        return predict_one(_source(recordings), loaded, stride=stride, **asdict(handling))
    return predict_recordings(
        _model(model),
        _paths(recordings),
        out=out,
        stride=stride,
        annotations=annotations,
        plot=plot,
        explain=explain,
        key=key,
        map=map,
        show_paths=show_paths,
        device=device,
        threads=threads,
        handling=handling,
        keep=True,
    )


def embed(
    recordings: Any,
    model: Any,
    /,
    *,
    out: Path | None = None,
    task: str | None = None,
    split: tuple[str, ...] = (),
    level: Literal["window", "channel", "token"] = "window",
    layer: int | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    handling: Handling = Handling(),
) -> "Embedding | FeatureTable | EmbedResult":
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
    """
    from cerebro_eeg.commands.embed import embed_recordings
    from cerebro_eeg.runs.embed import embed as embed_one
    from cerebro_eeg.runs.features import read_features
    from cerebro_eeg.runs.predict import load_model_on
    from cerebro_eeg.train.distributed import choose_threads

    if _is_one(recordings) and out is None:
        _only_several(task=task, split=split or None, map=map, show_paths=show_paths or None)
        choose_threads(threads)
        loaded = load_model_on(_model(model), device)
        choices = {"level": level, "layer": layer, "seconds": seconds, "stride": stride, **asdict(handling)}
        return embed_one(_source(recordings), loaded, **choices)
    with tempfile.TemporaryDirectory(prefix="cerebro-eeg-") as folder:
        found = embed_recordings(
            _model(model),
            _paths(recordings),
            out=Path(folder) / "features.npz" if out is None else out,
            task=task,
            split=split,
            level=level,
            layer=layer,
            seconds=seconds,
            stride=stride,
            key=key,
            map=map,
            show_paths=show_paths,
            device=device,
            threads=threads,
            handling=handling,
        )
        if out is not None:
            return found
        if found.file is None:
            raise ConfigError(f"no recording could be used: {found.failures[0].text(show_paths)}")
        return replace(read_features(found), failures=found.failures, trouble=found.trouble, remarks=found.notes)


def repair(
    recordings: Any,
    model: Any,
    /,
    *,
    bad: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
    out: Path | None = None,
    method: Literal["auto", "both", "model", "splines"] = "auto",
    hidden: int = 8,
    format: Literal["edf", "fif"] = "edf",
    events: tuple[str, ...] = (),
    unknown: Unknown = "error",
    mains: float | None = None,
    unit: str | None = None,
    rename: Path | None = None,
    sfreq: float | None = None,
    channels_from: Path | None = None,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> "Repaired | RepairResult":
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
    from cerebro_eeg.commands.repair import repair_recordings
    from cerebro_eeg.runs.repair import repair as repair_one
    from cerebro_eeg.runs.signals import check_facts
    from cerebro_eeg.train.distributed import choose_threads

    handling = Handling(
        unknown=unknown, mains=mains, unit=unit, rename=rename, sfreq=sfreq, channels_from=channels_from
    )
    choices: dict[str, Any] = {"bad": bad, "missing": missing, "method": method, "hidden": hidden, "events": events}
    if _is_one(recordings) and out is None:
        _only_several(map=map, show_paths=show_paths or None)
        choose_threads(threads)
        source = _source(recordings)
        check_facts(source, handling)
        return repair_one(source, _model(model), device=device, handling=handling, **choices)
    return repair_recordings(
        _model(model),
        _paths(recordings),
        out=out,
        format=format,
        handling=handling,
        key=key,
        map=map,
        show_paths=show_paths,
        device=device,
        threads=threads,
        **choices,
    )


def _is_one(recordings: Any) -> bool:
    """Return whether a recording was given; otherwise it is a folder or several."""
    if isinstance(recordings, str | PathLike):
        path = Path(recordings).expanduser()
        return not path.is_dir() or path.suffix.casefold() == ".mff"
    return not isinstance(recordings, list | tuple | set | frozenset)


def _source(recordings: Any) -> Any:
    return Path(recordings).expanduser() if isinstance(recordings, str | PathLike) else recordings


def _paths(recordings: Any) -> list[Path]:
    several = [recordings] if isinstance(recordings, str | PathLike) or _is_one(recordings) else list(recordings)
    for one in several:
        if not isinstance(one, str | PathLike):
            raise ConfigError(
                f"recordings hold an object of type {type(one).__name__}; several recordings, or out, need paths: of "
                "objects in memory give one at a time, without out"
            )
    return [convert("recordings", one, Path) for one in several]


def _model(model: Any) -> Any:
    """Return a path as text, because a name without a folder may be that of shipped weights; a model as it is."""
    return str(Path(model).expanduser()) if isinstance(model, str | PathLike) else model


def _only_several(**given: Any) -> None:
    """Refuse options that have no effect on a single recording."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(
            f"{' and '.join(names)}: without effect on one recording and no out; give out=..., a list, or leave it out"
        )
