"""``cerebro-eeg embed``: features of recordings or of a store, as one file for any other tool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cerebro_eeg.commands.progress_lines import Failure, failed_line, failed_text, go_over
from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.notebook import Shown
from cerebro_eeg.progress import Progress, counted
from cerebro_eeg.runs.settings import Handling

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas

    from cerebro_eeg.model.cerebro import Cerebro, Level
    from cerebro_eeg.runs.embed_store import StoredWindows
    from cerebro_eeg.runs.features import FeatureFile, FeatureTable
    from cerebro_eeg.runs.predict import Input, Reader


@dataclass(frozen=True, repr=False)
class EmbedResult(Shown):
    """The file that ``embed`` wrote, and the recordings that it could not use."""

    file: str | None
    """None when no recording could be used; then nothing is written."""
    level: str
    layer: int
    recordings: int
    rows: int
    shape: tuple[int, ...]
    """Shape of the features of one row."""
    preparation: str
    failures: tuple[Failure, ...]
    show_paths: bool
    notes: tuple[str, ...] = ()
    """Warnings for readers of the features."""
    columns: tuple[str, ...] = ("recording", "start")
    """The columns of the file beside those of the features."""
    flat: bool = False
    """Whether the file is a table with a column f0, f1, ... per number."""

    def read(self) -> "FeatureTable":
        """Read the features from the file."""
        from cerebro_eeg.runs.features import read_features

        return read_features(self)

    def to_frame(self) -> "pandas.DataFrame":
        """Read the features as a DataFrame of pandas."""
        return self.read().to_frame()

    def __fspath__(self) -> str:
        if self.file is None:
            raise InputError("no recording could be used, so there is no file; failures has the reasons")
        return self.file

    @property
    def trouble(self) -> str | None:
        """A line on the recordings that could not be used; None if all could."""
        return failed_line(self.failures, self.recordings + len(self.failures), self.show_paths)

    def _headline(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"{self.rows:,} rows of {counted(self.recordings, 'recording')}, {shape} features each, in {self.file}"

    def _facts(self) -> Mapping[str, object]:
        return {"columns": ", ".join(self.columns), "prepared": self.preparation}

    def _notes(self) -> Sequence[str]:
        return [*filter(None, [self.trouble]), *self.notes]

    @property
    def exit_code(self) -> int:
        return 6 if self.failures else 0

    def to_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "level": self.level,
            "layer": self.layer,
            "recordings": self.recordings,
            "rows": self.rows,
            "shape": list(self.shape),
            "columns": list(self.columns),
            "preparation": self.preparation,
            "notes": list(self.notes),
            "not_used": [failure.to_dict(self.show_paths) for failure in self.failures],
        }

    def text(self) -> str:
        what = "window" if self.level == "window" else "channel of a window"
        lines = ["no recording could be used; nothing was written"]
        if self.file is not None:
            lines = [
                f"features of {counted(self.recordings, 'recording')} in {self.file}",
                f"  rows        {self.rows:,}, one a {what}: {' x '.join(map(str, self.shape))} numbers after layer "
                f"{self.layer}",
                f"  columns     {', '.join(self._column_words())}",
            ]
        lines += failed_text(self.failures, self.recordings + len(self.failures), self.show_paths)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _column_words(self) -> list[str]:
        numbers = f"f0 to f{self.shape[0] - 1}" if self.flat else "features"
        return [*("start (seconds)" if name == "start" else name for name in self.columns), numbers]


def embed(
    model: str,
    files: tuple[Path, ...],
    /,
    *,
    out: Path,
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
) -> EmbedResult:
    """Write the features of recordings, or of a store: what a model's encoder makes of every window of them.

    Recordings are filtered, referenced and resampled as the checkpoint says. The file has a row a window, or a row a
    channel of a window, with the id of its recording and its start in seconds. Of a store it also has subjects and,
    with --task, split and label. In Python: cerebro_eeg.embed(file, model). The exit code is 6 where recordings could
    not be used; the others are done all the same.

    Try, for example:
      cerebro-eeg embed small-open night.edf --out features.npz
      cerebro-eeg embed small-open my-store --task eyes --out features.parquet
      cerebro-eeg embed my-model path/to/files --out features.parquet --level channel --layer 6 --map names.json

    Args:
        model: A checkpoint, the folder of a run, or small-open: weights that come with the package.
        files: Recordings, or folders that are searched for them; or one store.
        out: The file to write: .npz, .csv, or .parquet where the package pyarrow is installed.
        task: Of a store: embed the labelled windows of this task, as finetune cuts them; otherwise all time.
        split: Of a store: splits of the task to embed; otherwise all.
        level: One vector a window, one a channel, or one a patch of each channel.
        layer: Blocks of the encoder to run, from 0 (embedded patches); otherwise all.
        seconds: Length of a window; otherwise the task's or the model's.
        stride: Seconds from window to window; otherwise the task's, or side by side.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for; of a store, the one that prepare wrote.
        show_paths: Also write the path of each recording, and name what cannot be used by it; it may say who was
            recorded.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
        handling: Of channels and recordings that are not as they should be; its fields are flags of their own.
    """
    return embed_recordings(
        model,
        files,
        out=out,
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


def embed_recordings(
    model: "str | Path | Cerebro",
    files: Sequence[Path],
    *,
    out: Path,
    task: str | None = None,
    split: Sequence[str] = (),
    level: "Level" = "window",
    layer: int | None = None,
    seconds: float | None = None,
    stride: float | None = None,
    key: Path | None = None,
    map: Path | None = None,
    show_paths: bool = False,
    device: str = "auto",
    threads: int | None = None,
    handling: Handling = Handling(),
) -> EmbedResult:
    """Do ``embed``, also with a model in memory."""
    import numpy as np

    from cerebro_eeg.fast import packed
    from cerebro_eeg.runs.embed import check_level, embed_windows, feature_shape, reads_tokens, row_names
    from cerebro_eeg.runs.features import FeatureFile, check_target, text_of
    from cerebro_eeg.runs.predict import (
        find_inputs,
        load_model_on,
        make_reader,
        random_words,
        unmet_names,
        with_common_mains,
        write_map,
    )
    from cerebro_eeg.runs.signals import open_signal
    from cerebro_eeg.train.distributed import choose_threads

    check_target(out, tokens=level == "token")
    choose_threads(threads)
    store = _the_store(files, task, split, key, handling)
    given = [] if store is not None else find_inputs(files, key, None, handling.arrays())
    loaded = load_model_on(model, device)
    tokens, stored, mains = reads_tokens(level, layer), None, None
    if store is None:
        handling, mains = with_common_mains(handling, given, loaded.config)
        reader = make_reader(loaded, seconds=seconds, stride=stride, handling=handling, tokens=tokens)
    else:
        reader, stored = _open_windows(loaded, store, task, split, seconds, stride, handling, tokens, map, show_paths)
        given = list(stored.inputs)
    check_level(reader.config, level, layer)
    shape = feature_shape(reader, level, layer)
    if stored is None:
        write_map(map, given)
        paths = {"path": text_of([one.name for one in given])} if show_paths else {}
    progress = Progress()
    progress.say(reader.text() if stored is None else _stored_words(reader, stored))
    if mains is not None:
        progress.say(mains)
    unmet = unmet_names(given, handling, loaded.config) if store is None else None
    if unmet is not None:
        progress.say(unmet)
    further = paths if stored is None else stored.types()
    with FeatureFile(out, shape, channels=level != "window", further=further) as file:

        def work(one: "Input", tell: "Callable[[float, float], None]") -> None:
            if stored is not None:
                _embed_one(file, reader, stored, one, level, layer, tell)
                return
            signal = open_signal(one.path, reader.config, reader.electrodes, handling, scaled=reader.model.needs_scale)
            names = None if level == "window" else row_names(reader.config, signal.names)
            with file.recording():
                for windows, features in embed_windows(reader, signal, level, layer, tell):
                    texts = {"path": np.full(len(features), one.name)} if show_paths else None
                    file.add(one.id, windows.start_B, features, names, texts)

        try:
            with packed(loaded):
                failures = go_over(given, work, progress, show_paths=show_paths)
        finally:
            progress.end()
        rows = file.rows
        if rows:
            file.finish()
    return EmbedResult(
        str(out) if rows else None,
        level,
        reader.config.depth if layer is None else layer,
        len(given) - len(failures),
        rows,
        shape,
        reader.text() if stored is None else _stored_words(reader, stored),
        tuple(failures),
        show_paths,
        tuple(filter(None, [*(stored.notes if stored is not None else ()), random_words(loaded, tokens), unmet])),
        file.names,
        len(shape) == 1 and out.suffix.casefold() != ".npz",
    )


def _the_store(
    files: Sequence[Path], task: str | None, split: Sequence[str], key: Path | None, handling: Handling
) -> Path | None:
    """Return the store that was given, or None for recordings; refuse options that are for the other of the two."""
    from cerebro_eeg.runs.stored import is_store

    stores = [path for path in files if is_store(path)]
    if not stores:
        if task is not None or split:
            raise ConfigError(
                "task and split are for a store, and recordings were given; prepare makes a store of them"
            )
        return None
    if len(files) > 1:
        raise ConfigError("a store was given among other paths; give one store alone, or recordings")
    changed = [one.name for one in fields(Handling) if getattr(handling, one.name) != one.default]
    wrong = [name for name in changed if name != "untrained"] + (["key"] if key is not None else [])
    if wrong:
        raise ConfigError(
            f"{' and '.join(wrong)} cannot be chosen for a store: prepare has decided it; leave it out, or prepare anew"
        )
    return stores[0]


def _open_windows(
    model: "Cerebro",
    folder: Path,
    task: str | None,
    split: Sequence[str],
    seconds: float | None,
    stride: float | None,
    handling: Handling,
    tokens: bool,
    map_file: Path | None,
    show_paths: bool,
) -> "tuple[Reader, StoredWindows]":
    """Return a reader with the windows of a store that it is to read."""
    from cerebro_eeg.data.storing.store import Store
    from cerebro_eeg.runs.embed_store import list_windows
    from cerebro_eeg.runs.predict import make_reader
    from cerebro_eeg.runs.stored import stored_windows

    store, own = Store(folder), make_reader(model, handling=handling, tokens=tokens).seconds
    windows, step = stored_windows(store, task, split=split or None, seconds=seconds, stride=stride, own=own)
    length = windows.samples / windows.sfreq if len(windows) else own
    reader = make_reader(model, seconds=length, stride=step, handling=handling, tokens=tokens)
    return reader, list_windows(folder, store, windows, reader, map_file, show_paths)


def _embed_one(
    file: "FeatureFile",
    reader: "Reader",
    stored: "StoredWindows",
    one: "Input",
    level: "Level",
    layer: int | None,
    tell: "Callable[[float, float], None]",
) -> None:
    """Add the rows of one recording of a store."""
    from cerebro_eeg.runs.embed import row_names
    from cerebro_eeg.runs.embed_store import embed_stored

    with file.recording():
        for some, features, channels in embed_stored(reader, stored, one, level, layer, tell):
            names = None if level == "window" else row_names(reader.config, channels)
            further = {name: values[some] for name, values in stored.further.items()}
            file.add(one.id, stored.about.start[some], features, names, further)


def _stored_words(reader: "Reader", stored: "StoredWindows") -> str:
    """Describe in one line what is read of a store."""
    of = "all time" if stored.windows.task is None else f"task {stored.windows.task}"
    return (
        f"{len(stored.windows):,} windows of {reader.seconds:g} s from {counted(len(stored.inputs), 'recording')} of "
        f"the store ({of}), as they were prepared"
    )
