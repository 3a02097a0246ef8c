"""``cerebro-eeg embed``: features of recordings, as one file for any other tool."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cerebro_eeg.commands.progress_lines import Failure, failed_text, go_over
from cerebro_eeg.progress import Progress, counted
from cerebro_eeg.runs.settings import Handling

if TYPE_CHECKING:
    from collections.abc import Callable

    from cerebro_eeg.runs.predict import Input


@dataclass(frozen=True)
class EmbedResult:
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
                f"  columns     recording, {'' if self.level == 'window' else 'channel, '}start (seconds), features",
            ]
        lines += failed_text(self.failures, self.recordings + len(self.failures), self.show_paths)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def embed(
    model: str,
    files: tuple[Path, ...],
    /,
    *,
    out: Path,
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
    """Write the features of recordings: what a model's encoder makes of every window of them.

    Recordings are filtered, referenced and resampled as the checkpoint says. The file has a row a window, or a row a
    channel of a window, with the id of its recording and its start in seconds. In Python:
    cerebro_eeg.embed(file, model). The exit code is 6 where recordings could not be used; the others are done all
    the same.

    Try, for example:
      cerebro-eeg embed small-open night.edf --out features.npz
      cerebro-eeg embed my-model path/to/files --out features.parquet --level channel --layer 6 --map names.json

    Args:
        model: A checkpoint, the folder of a run, or small-open: weights that come with the package.
        files: Recordings, or folders that are searched for them.
        out: The file to write: .npz, or .parquet where the package pyarrow is installed.
        level: One vector a window, one a channel, or one a patch of each channel.
        layer: Blocks of the encoder to run, from 0 (embedded patches); otherwise all.
        seconds: Length of a window; otherwise the model's.
        stride: Seconds from window to window; otherwise side by side.
        key: The file with the key that ids are made with; otherwise the one in your config folder.
        map: A private file that is told which path each id stands for.
        show_paths: Name what cannot be used by its path; it may say who was recorded.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: Of the CPU; otherwise torch's choice. Fewer may be faster on a busy machine.
        handling: Of channels and recordings that are not as they should be; its fields are flags of their own.
    """
    from cerebro_eeg.fast import packed
    from cerebro_eeg.runs.embed import check_level, embed_windows, feature_shape, reads_tokens, row_names
    from cerebro_eeg.runs.features import FeatureFile, check_target
    from cerebro_eeg.runs.predict import (
        find_inputs,
        load_model,
        make_reader,
        random_words,
        unmet_names,
        with_common_mains,
        write_map,
    )
    from cerebro_eeg.runs.signals import open_signal
    from cerebro_eeg.train.distributed import choose_device, choose_threads

    check_target(out)
    choose_threads(threads)
    chosen = choose_device(device)
    given = find_inputs(files, key, None, handling.arrays())
    loaded = load_model(model).to(chosen)
    handling, mains = with_common_mains(handling, given, loaded.config)
    tokens = reads_tokens(level, layer)
    reader = make_reader(loaded, seconds=seconds, stride=stride, handling=handling, tokens=tokens)
    check_level(reader.config, level, layer)
    shape = feature_shape(reader, level, layer)
    write_map(map, given)
    progress = Progress()
    progress.say(reader.text())
    if mains is not None:
        progress.say(mains)
    if (unmet := unmet_names(given, handling, loaded.config)) is not None:
        progress.say(unmet)
    with FeatureFile(out, shape, channels=level != "window") as file:

        def work(one: "Input", tell: "Callable[[float, float], None]") -> None:
            signal = open_signal(one.path, reader.config, reader.electrodes, handling, scaled=reader.model.needs_scale)
            names = None if level == "window" else row_names(reader.config, signal.names)
            with file.recording():
                for windows, features in embed_windows(reader, signal, level, layer, tell):
                    file.add(one.id, windows.start_B, features, names)

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
        reader.text(),
        tuple(failures),
        show_paths,
        tuple(filter(None, [random_words(loaded, tokens), unmet])),
    )
