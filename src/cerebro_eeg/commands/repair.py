"""``cerebro-eeg repair``: bad or missing channels of recordings filled in, with the error that this makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro_eeg.commands.progress_lines import Failure, failed_line, failed_text, go_over
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import begin_sums, forget_sums, real
from cerebro_eeg.notebook import Shown, by_column
from cerebro_eeg.progress import Progress, counted
from cerebro_eeg.runs.settings import Handling, Unknown
from cerebro_eeg.terminal import one_line

if TYPE_CHECKING:
    from cerebro_eeg.runs.predict import Input
    from cerebro_eeg.runs.repair_result import Repaired

SUMMARY = "repair.json"
SHOWN = 10  # recordings that are printed; the file holds all of them


@dataclass(frozen=True, repr=False)
class RepairResult(Shown):
    """The recordings that were repaired, and the files that hold them."""

    folder: str | None
    """None where no files were asked for, which only Python allows."""
    recordings: tuple[dict[str, Any], ...]
    failures: tuple[Failure, ...]
    show_paths: bool
    repaired: "Mapping[str, Repaired]" = field(default_factory=dict, compare=False)
    """The repaired recordings by their id; kept in Python alone, where no folder was given."""

    @property
    def exit_code(self) -> int:
        return 6 if self.failures else 0

    @property
    def trouble(self) -> str | None:
        """A line on the recordings that could not be repaired; None if all could."""
        return failed_line(self.failures, len(self.recordings) + len(self.failures), self.show_paths)

    def __len__(self) -> int:
        return len(self.recordings)

    def __fspath__(self) -> str:
        if self.folder is None:
            raise ConfigError("nothing was written; give out='a-folder' for files")
        return self.folder

    def _headline(self) -> str:
        where = "" if self.folder is None else f" in {self.folder}"
        return f"{counted(len(self.recordings), 'recording')} repaired{where}"

    def _notes(self) -> Sequence[str]:
        return list(filter(None, [self.trouble]))

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        """Return one row per recording that was repaired."""
        names = ("model", "splines", "both", "ridge")
        return by_column(
            {
                "number": row["number"],
                "recording": row["recording"],
                **({"path": row["path"]} if self.show_paths else {}),
                "filled": " ".join(one["name"] for one in row["filled"]),
                "method": row["method"],
                **{f"error_{name}": row["errors"].get(name) for name in names},
                "hidden": len(row["hidden"]),
                "seconds": row["seconds"],
                "file": row["file"],
            }
            for row in self.recordings
        )

    def to_dict(self) -> dict[str, object]:
        failures = [failure.to_dict(self.show_paths) for failure in self.failures]
        return {"folder": self.folder, "recordings": list(self.recordings), "failures": failures}

    def text(self) -> str:
        lines = [self._headline()]
        for row in self.recordings[:SHOWN]:
            name = one_line(row["path"] if self.show_paths else row["recording"])
            filled = ", ".join(f"{one['name']} ({one['reason']})" for one in row["filled"])
            lines += [
                f"  {name}",
                f"    filled in   {filled}",
                f"    method      {row['method']}" + (", chosen on hidden channels" if row["asked"] == "auto" else ""),
            ]
            lines += [f"    signal      {row['filters']}", f"    error       {row['verdict']}"]
            lines += [f"    file        {row['file']}"] if row["file"] else []
            lines += [f"    note        {note}" for note in row["notes"]]
        if len(self.recordings) > SHOWN:
            lines.append(f"  ... and {len(self.recordings) - SHOWN:,} more")
        lines += failed_text(self.failures, len(self.recordings) + len(self.failures), self.show_paths)
        return "\n".join(lines)


GROUPS = {
    "what is filled in": ("bad", "missing", "method", "hidden"),
    "what is written": ("format", "events"),
    "how recordings are read": ("unknown", "mains", "unit", "rename", "sfreq", "channels_from"),
    "privacy": ("key", "map", "show_paths"),
    "how it is carried out": ("device", "threads"),
}
"""The groups of the help."""


def repair(
    model: str,
    files: tuple[Path, ...],
    /,
    *,
    out: Path,
    bad: tuple[str, ...] = (),
    missing: tuple[str, ...] = (),
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
) -> RepairResult:
    """Fill in bad or missing channels of recordings, and measure the error on good channels that are hidden on purpose.

    A pre-trained model, the spherical splines of MNE, or the mean of both fills them in. The one with the smallest
    error on the hidden channels of that recording is taken. Ridge regression stands beside as a yardstick. All channels
    are written as the model sees them: filtered, at its rate, EEG alone. A file names no person and says which channels
    were filled in. No input is overwritten. The exit code is 6 where recordings could not be used; the others are done
    all the same. Research software, not a medical device.

    Try, for example:
      cerebro-eeg repair small-open night.edf --bad C3 T4 --out repaired
      cerebro-eeg repair small-open path/to/files --bad auto --missing Fz --format fif --out repaired

    Args:
        model: Pre-trained weights: small-open, a checkpoint, or the folder of a pre-training.
        files: Recordings, or folders that are searched for them.
        out: The folder for the repaired recordings and repair.json.
        bad: Channels to fill in, by label or electrode; auto takes those that are flat, clipped, disconnected, absurdly
            scaled or without numbers. Those that a file marks as bad are filled in, too.
        missing: Electrodes to fill in that were not recorded.
        method: What fills in: auto takes what has the smallest error on the hidden channels; both is the mean of model
            and splines.
        hidden: Good channels that are hidden, one at a time, to measure the error; 0 for none.
        format: Of the files. EDF cannot hold gaps; FIF needs the package mne.
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
        show_paths: Name recordings by their paths in what is printed and in repair.json; they may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
    """
    return repair_recordings(
        model,
        files,
        out=out,
        bad=bad,
        missing=missing,
        method=method,
        hidden=hidden,
        format=format,
        events=events,
        handling=Handling(
            unknown=unknown, mains=mains, unit=unit, rename=rename, sfreq=sfreq, channels_from=channels_from
        ),
        key=key,
        map=map,
        show_paths=show_paths,
        device=device,
        threads=threads,
    )


def repair_recordings(
    model: Any,
    files: Sequence[Path],
    *,
    out: Path | None,
    bad: Sequence[str] = (),
    missing: Sequence[str] = (),
    method: Literal["auto", "both", "model", "splines"] = "auto",
    hidden: int = 8,
    format: Literal["edf", "fif"] = "edf",
    events: Sequence[str] = (),
    handling: Handling = Handling(),
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
) -> RepairResult:
    """Do ``repair``; without ``out`` no file is written, and the repaired recordings are returned."""
    from cerebro_eeg.runs import predict as runs_predict
    from cerebro_eeg.runs.repair import make_filler
    from cerebro_eeg.runs.repair import repair as repair_one
    from cerebro_eeg.runs.repair_result import write_summary
    from cerebro_eeg.runs.stored import is_store
    from cerebro_eeg.train.distributed import choose_threads

    if any(is_store(path) for path in files):
        raise ConfigError("a store was given, and repair reads recordings; give their files, and prepare what it wrote")
    if out is not None:
        _check_out(out, files)
        if format == "fif":
            _check_mne()
    choose_threads(threads)
    given = runs_predict.find_inputs(files, key, out, handling.arrays())
    filler = make_filler(model, device)
    handling, mains = runs_predict.with_common_mains(handling, given, filler.config)
    runs_predict.write_map(map, given)
    progress = Progress()
    if filler.unable is not None:
        progress.say(f"note: {filler.unable}")
    if mains is not None:
        progress.say(mains)
    rows: dict[str, dict[str, Any]] = {}
    kept: dict[str, Repaired] = {}

    def work(one: "Input", tell: "Callable[[float, float], None]") -> None:
        found = repair_one(
            one.path,
            filler,
            bad=bad,
            missing=missing,
            method=method,
            hidden=hidden,
            events=events,
            handling=handling,
            progress=tell,
        )
        name = None
        if out is None:
            kept[one.id] = found
        else:
            name = f"{one.id}.edf" if format == "edf" else f"{one.id}_eeg.fif"
            found.write(out / name)
        path = {"path": one.name} if show_paths else {}
        rows[one.id] = {"number": one.number, "recording": one.id, **path, "file": name, **found.to_dict()}

    if out is not None:
        forget_sums(out)  # until all is written
    try:
        failures = go_over(given, work, progress, show_paths=show_paths)
    finally:
        progress.end()
    ordered = tuple(rows[one.id] for one in given if one.id in rows)
    result = RepairResult(None if out is None else str(out), ordered, tuple(failures), show_paths, kept)
    if out is not None:
        about = {name: value for name, value in result.to_dict().items() if name != "folder"}
        write_summary(out / SUMMARY, about)
        begin_sums(out, [SUMMARY, *(row["file"] for row in ordered)])
    return result


def _check_out(out: Path, files: Sequence[Path]) -> None:
    """Refuse a folder that holds other files, and recordings that lie in it."""
    if out.exists() and not out.is_dir():
        raise ConfigError("--out names a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / SUMMARY).exists():
        raise ConfigError("the folder --out is not empty and holds nothing of repair; give an empty or new one")
    if any(real(path).is_relative_to(real(out)) for path in files):
        raise ConfigError("a recording lies in the folder --out, and no input is overwritten; give another folder")


def _check_mne() -> None:
    """Refuse FIF without MNE before any work."""
    from cerebro_eeg.errors import import_trouble

    try:
        import mne  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"FIF cannot be written: {import_trouble(error, 'mne')}; or leave out --format") from None
