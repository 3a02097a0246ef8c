"""``cerebro-eeg predict``: a fine-tuned model on new recordings: a decision for each, tables, annotations, pictures."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro_eeg.commands.progress_lines import Failure, failed_line, failed_text, go_over, write_page
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import begin_sums, forget_sums
from cerebro_eeg.notebook import Shown, by_column, column_names, frame_of
from cerebro_eeg.progress import Progress, counted
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas

    from cerebro_eeg.config import HeadConfig
    from cerebro_eeg.model.cerebro import Cerebro
    from cerebro_eeg.runs.decisions import Prediction
    from cerebro_eeg.runs.predict import Input

SHOWN = 20  # decisions that are printed; the files hold all of them


@dataclass(frozen=True, repr=False)
class PredictResult(Shown):
    """The answers of a model for all recordings, and the files that hold them."""

    folder: str | None
    """None where no files were asked for, which only Python allows."""
    about: dict[str, Any]
    """The rule that decides (kind, names, positive class, threshold), how windows were made, and notes."""
    recordings: tuple[dict[str, Any], ...]
    failures: tuple[Failure, ...]
    files: tuple[str, ...]
    show_paths: bool
    predictions: "Mapping[str, Prediction]" = field(default_factory=dict, compare=False)
    """The answers for the windows of each recording, by its id; kept in Python alone."""
    explained: str | None = None
    """What the answers depend on most, where it was asked for."""

    @property
    def exit_code(self) -> int:
        return 6 if self.failures else 0

    @property
    def trouble(self) -> str | None:
        """A line on the recordings that could not be used; None if all could."""
        return failed_line(self.failures, len(self.recordings), self.show_paths)

    def __len__(self) -> int:
        return len(self.recordings)

    def to_frame(self, level: Literal["recording", "window"] = "recording") -> "pandas.DataFrame":
        """Return the answers as a DataFrame of pandas, one row per recording or per window."""
        if level == "recording":
            return frame_of(self._columns())
        if level != "window":
            raise ConfigError(f"level is {level!r}; choose recording or window")
        paths = {row["recording"]: row["path"] for row in self.recordings} if self.show_paths else {}
        rows: list[dict[str, Any]] = []
        for id, found in self.predictions.items():
            named = {"recording": id, **({"path": paths[id]} if paths else {})}
            columns = found._columns()
            rows += [named | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return frame_of(by_column(rows))

    def __fspath__(self) -> str:
        if self.folder is None:
            raise ConfigError("nothing was written; give out='a-folder' for files")
        return self.folder

    def _headline(self) -> str:
        done = [row for row in self.recordings if not row["problem"]]
        where = "" if self.folder is None else f" in {self.folder}"
        text = f"{counted(len(done), 'recording')}{where}"
        if self.about["kind"] == "classification":
            counts = Counter(row["decision"] for row in done)
            text += ": " + ", ".join(f"{name} {counts[name]:,}" for name in self.about["names"])
        return text

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per recording that was asked for."""
        names = self.about["names"]
        prefix = "probability" if self.about["kind"] == "classification" else "value"
        titles = dict(zip(names, column_names(names, prefix), strict=True))
        return by_column(
            {
                "number": row["number"],
                "recording": row["recording"],
                **({"path": row["path"]} if self.show_paths else {}),
                "decision": row["decision"],
                **{f"mean_{title}": (row["mean"] or {}).get(name) for name, title in titles.items()},
                **{f"std_{title}": (row["spread"] or {}).get(name) for name, title in titles.items()},
                "windows": row["windows"],
                "seconds": row["seconds"],
                "channels": len(row["channels"]),
                "faults": " ".join(row["faults"]),
                "code": row["code"],
                "problem": row["problem"],
            }
            for row in self.recordings
        )

    def _notes(self) -> Sequence[str]:
        return [*filter(None, [self.trouble]), *self.about["notes"]]

    def to_dict(self) -> dict[str, object]:
        return {"folder": self.folder, **self.about, "recordings": list(self.recordings)}

    def text(self) -> str:
        done = [row for row in self.recordings if not row["problem"]]
        lines = [f"{counted(len(done), 'recording')} in {self.folder}"]
        if self.about["threshold"] is not None:
            (other, last), limit = self.about["names"], self.about["threshold"]
            lines.append(
                f"  rule        {last} from a mean probability of {limit:.3f} on, else {other}; positive: {last}"
            )
        if self.about["kind"] == "classification":
            counts = Counter(row["decision"] for row in done)
            lines.append("  decisions   " + ", ".join(f"{name} {counts[name]:,}" for name in self.about["names"]))
        for row in done[:SHOWN]:
            lines.append(f"    {one_line(row['path'] if self.show_paths else row['recording'])}  {_answer(row)}")
        if len(done) > SHOWN:
            lines.append(f"    ... and {len(done) - SHOWN:,} more")
        lines += failed_text(self.failures, len(self.recordings), self.show_paths)
        if self.explained is not None:
            lines.append(f"  depends on  {self.explained} (what the answers lose without it, mean over recordings)")
        lines.append(f"  files       {', '.join(self.files)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.about["notes"])])


GROUPS = {
    "what is written": ("annotations", "plot", "explain", "stride"),
    "privacy": ("key", "map", "show_paths"),
    "how it is carried out": ("device", "threads"),
}
"""The groups of the help."""


def predict(
    model: str,
    files: tuple[Path, ...],
    /,
    *,
    out: Path,
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
) -> PredictResult:
    """Say what a fine-tuned model makes of recordings that it never saw. Research software, not a medical device.

    Recordings are filtered, referenced and resampled as the checkpoint says. A recording of two classes is decided by
    the threshold that was chosen on validation; of more, by the most probable class; a regression gives mean and
    spread. Outputs name a recording by its id, unless --show-paths. The exit code is 6 where recordings could not be
    used; the others are done all the same.

    Try, for example:
      cerebro-eeg predict my-finetuning/seed-0 night.edf --out said --plot --explain
      cerebro-eeg predict my-finetuning/seed-0 path/to/files --out said --annotations edf bids --map names.json

    Args:
        model: A checkpoint, the folder of one training, or of a run that has only one.
        files: Recordings, or folders that are searched for them.
        out: The folder for report.html, predictions.csv (by window), decisions.csv and decisions.json (by recording),
            annotations and pictures.
        stride: Seconds from window to window; otherwise side by side.
        annotations: Also write the classes as EDF+ annotations (edf) or BIDS events (bids), one file a recording.
        plot: Also draw each recording with the prediction under it, as PNG.
        explain: Also say what the answers depend on, as a table and as PNG: how much they lose when a channel is made
            silent or a frequency band is taken out. The model runs once more per channel and band, on 40 windows of
            each recording.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for.
        show_paths: Name recordings by their paths, too; they may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
        handling: Of channels and recordings that are not as they should be; its fields are flags of their own.
    """
    return predict_recordings(
        model,
        files,
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
    )


def predict_recordings(
    model: "str | Path | Cerebro",
    files: Sequence[Path],
    *,
    out: Path | None,
    stride: float | None = None,
    annotations: Sequence[str] = (),
    plot: bool = False,
    explain: bool = False,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    handling: Handling = Handling(),
    keep: bool = False,
) -> PredictResult:
    """Do ``predict``; without ``out`` no file is written, and with ``keep`` the answers for windows are returned."""
    from cerebro_eeg.fast import packed
    from cerebro_eeg.report.predictions import report_predict
    from cerebro_eeg.runs import decisions
    from cerebro_eeg.runs import predict as runs_predict
    from cerebro_eeg.runs.stored import is_store
    from cerebro_eeg.scores.tables import positive_of
    from cerebro_eeg.train.distributed import choose_threads

    if any(is_store(path) for path in files):
        raise ConfigError("a store was given, and predict reads recordings; give their files, or let evaluate score it")
    if out is not None:
        _check_out(out)
    elif annotations or plot or explain:
        raise ConfigError("annotations, plot and explain write files; give out='a-folder' for them")
    if plot and out is not None:
        from cerebro_eeg.report.figures import check_picture
        from cerebro_eeg.report.recording import Envelope, plot_prediction

        check_picture(out / "picture.png")
    choose_threads(threads)
    given = runs_predict.find_inputs(files, key, out, handling.arrays())
    loaded = runs_predict.load_model_on(model, device)
    head = runs_predict.check_head(loaded)
    if annotations and head.task == "regression":
        raise ConfigError("--annotations needs classes, and this model predicts values; leave it out")
    handling, mains = runs_predict.with_common_mains(handling, given, loaded.config)
    reader = runs_predict.make_reader(loaded, stride=stride, handling=handling)
    names = runs_predict.output_names(head)
    explaining = None
    if explain and out is not None:
        from cerebro_eeg.report.explain_files import ExplanationFiles

        explaining = ExplanationFiles(out, reader, show_paths)
    runs_predict.write_map(map, given)
    progress = Progress()
    progress.say(reader.text())
    if mains is not None:
        progress.say(mains)
    if (unmet := runs_predict.unmet_names(given, handling, loaded.config)) is not None:
        progress.say(unmet)
    rows: dict[str, dict[str, Any]] = {}
    kept: dict[str, Prediction] = {}

    def work(one: "Input", tell: "Callable[[float, float], None]") -> None:
        envelope = Envelope() if plot else None
        watch = None if envelope is None else envelope.watch
        found = runs_predict.predict_recording(reader, one.path, progress=tell, watch=watch)
        row = decisions.describe(one, found, show_paths)
        if keep:
            kept[one.id] = found
        rows[one.id] = row
        if out is None or table is None:
            return
        spans = decisions.find_spans(found) if annotations else []
        if "bids" in annotations:
            decisions.write_bids(out / f"{one.id}_events.tsv", spans)
            written.extend([f"{one.id}_events.tsv", f"{one.id}_events.json"])
        if "edf" in annotations:
            decisions.write_edf_annotations(out / f"{one.id}_annotations.edf", spans)
            written.append(f"{one.id}_annotations.edf")
        if envelope is not None:
            title = f"{one_line(one.name) if show_paths else one.id}: {_answer(row)}"
            plot_prediction(envelope, found, title, out / f"{one.id}.png")
            written.append(f"{one.id}.png")
        if explaining is not None:
            written.append(explaining.add(one, tell))
        table.add(one, found)

    written = ["predictions.csv", "decisions.csv", "decisions.json"]
    opening: contextlib.AbstractContextManager[decisions.WindowTable | None] = contextlib.nullcontext()
    if out is not None:
        forget_sums(out)  # until all is written
        opening = decisions.window_table(out / "predictions.csv", names, head.task, show_paths)
    try:
        with packed(loaded), opening as table:
            failures = go_over(given, work, progress, show_paths=show_paths)
    finally:
        progress.end()
    for failure in failures:
        rows[failure.input.id] = decisions.describe(failure.input, None, show_paths, failure.code, failure.reason)
    ordered = [rows[one.id] for one in given]
    about: dict[str, Any] = {
        "kind": head.task,
        "names": list(names),
        "positive": positive_of(head.task, names),
        "threshold": decisions.limit_of(head.task, names, head.threshold),
        "threshold_level": head.threshold_level,
        "window_seconds": reader.seconds,
        "stride_seconds": reader.stride / reader.config.signal.sfreq,
        "preparation": reader.text(),
        "notes": [*filter(None, [runs_predict.random_words(loaded), unmet]), *_notes(head, ordered, bool(annotations))],
    }
    text = None
    if explaining is not None:
        more, whole = explaining.finish()
        written += more
        about["depends_on"] = None if whole is None else {"band": whole.band_mean, "channel": whole.channel_mean}
        text = None if whole is None else whole.text()
    files_written: tuple[str, ...] = ()
    if out is not None:
        decisions.write_decisions(out, ordered, about, show_paths)
        drawn = [f"{one.id}.png" for one in given if f"{one.id}.png" in written]
        page, kept_rows = out, ordered
        write_page(lambda tell: report_predict(page, about, kept_rows, show_paths, drawn, tell=tell), progress)
        begin_sums(out, [*written, *(["report.html"] if (out / "report.html").exists() else [])])
        files_written = _files(annotations, plot, explain)
    folder = None if out is None else str(out)
    return PredictResult(folder, about, tuple(ordered), tuple(failures), files_written, show_paths, kept, text)


def _check_out(out: Path) -> None:
    """Refuse a folder that holds other files, among which the results would be hard to find."""
    if out.exists() and not out.is_dir():
        raise ConfigError("--out names a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "decisions.json").exists():
        raise ConfigError("the folder --out is not empty and holds no predictions; give an empty or new one")


def _answer(row: dict[str, Any]) -> str:
    """Return the answer for one recording in a few words; of two classes, the probability is that of the last."""
    windows = counted(row["windows"], "window")
    if row["decision"] is not None:
        about = list(row["mean"])[-1] if len(row["mean"]) == 2 else row["decision"]
        return f"{row['decision']} (mean probability of {about} {row['mean'][about]:.3f}, {windows})"
    values = (f"{name} {mean:.4g} ± {row['spread'][name]:.2g}" for name, mean in row["mean"].items())
    return f"{', '.join(values)} ({windows})"


def _notes(head: "HeadConfig", rows: list[dict[str, Any]], annotated: bool) -> list[str]:
    notes = []
    if head.task == "classification" and head.n_outputs == 2:
        notes += _threshold_notes(head, annotated)
    if head.centred:
        notes.append(
            "outputs are centred within each recording, so windows are compared with each other; the mean over a "
            "recording, and its decision, say little: where a recording has one class, finetune with --no-centring"
        )
    if not head.names:
        notes.append("the checkpoint does not say what its outputs stand for; they are numbered")
    short = sum(row["windows_short"] for row in rows)
    if short:
        notes.append(f"{counted(short, 'window')} lie in stretches shorter than the filter: trust them less")
    faulty = sum(bool(row["faults"]) for row in rows)
    if faulty:
        notes.append(f"{counted(faulty, 'recording')} with faults of the file or its channels: see decisions.csv")
    return notes


def _threshold_notes(head: "HeadConfig", annotated: bool) -> list[str]:
    """Return a note where the threshold decides on another level than it was chosen on, so its scores do not hold."""
    if head.threshold is None:
        return ["the checkpoint has no threshold chosen on validation, so 0.5 decides"]
    if head.threshold_level == "window":
        return [
            "the threshold was chosen over single windows and decides here on means over a recording's windows: "
            "sensitivity and specificity are not those that evaluate gives"
        ]
    if head.threshold_level == "unknown":
        return [
            "the threshold decides here on means over a recording's windows; the checkpoint does not say whether it "
            "was chosen over recordings (unknown level)"
        ]
    if annotated:
        return ["the threshold was chosen over recordings; annotations call single windows by it"]
    return []


def _files(annotations: Sequence[str], plot: bool, explain: bool) -> tuple[str, ...]:
    files = ["report.html", "predictions.csv", "decisions.csv", "decisions.json"]
    files += ["*_annotations.edf"] if "edf" in annotations else []
    files += ["*_events.tsv"] if "bids" in annotations else []
    files += ["explanations.csv"] if explain else []
    return (*files, *(["*.png"] if plot or explain else []))
