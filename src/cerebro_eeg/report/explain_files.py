"""The files of ``predict --explain``: a picture for each recording, a table, and a picture of all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import replacing
from cerebro_eeg.report.explain import WINDOWS, Explanation, Part, join
from cerebro_eeg.runs.explain import BANDS, check_bands, occlude
from cerebro_eeg.runs.predict import Reader, check_head, output_names
from cerebro_eeg.terminal import CsvWriter

if TYPE_CHECKING:
    from cerebro_eeg.runs.predict import Input

TABLE, PICTURE = "explanations.csv", "explanation.png"


class ExplanationFiles:
    """Explains one recording after the other, and keeps what the table and the last picture need."""

    def __init__(self, folder: Path, reader: Reader, show_paths: bool) -> None:
        head = check_head(reader.model)
        if head.task == "regression" and len(output_names(head)) > 1:
            raise ConfigError(
                "--explain needs classes or a single value, and this model predicts several; leave it out"
            )
        signal = reader.config.signal
        self._folder, self._reader, self._show = folder, reader, show_paths
        self._bands = check_bands(BANDS, signal.sfreq, signal.lowpass)
        self._parts: list[Part] = []
        self._rows: list[list[object]] = []

    def add(self, given: "Input", tell: Callable[[float, float], None]) -> str:
        """Explain a recording, draw it, and return the name of its picture."""
        _, signal = self._reader.open(given.path)
        found = occlude(self._reader, signal, self._bands, WINDOWS, on_variant=tell)
        own = (signal.names, found, np.zeros(len(found.output_WK), np.int64))
        explained = join([own], self._reader, self._bands)
        name = f"{given.id}_explanation.png"
        explained.plot(self._folder / name)
        first: list[object] = [given.id, given.name] if self._show else [given.id]
        for kind, means, spreads in (
            ("channel", explained.channel_mean, explained.channel_spread),
            ("band", explained.band_mean, explained.band_spread),
        ):
            for what, mean in means.items():
                spread = "" if np.isnan(spreads[what]) else f"{spreads[what]:.6g}"
                self._rows.append([*first, kind, what, f"{mean:.6g}", spread, len(explained.start)])
        self._parts.append((signal.names, found, np.full(len(found.output_WK), len(self._parts))))
        return name

    def finish(self) -> tuple[list[str], Explanation | None]:
        """Write the table and, of several recordings, the picture of all; return their names and the whole."""
        written = [TABLE]
        paths = ["path"] if self._show else []
        with replacing(self._folder / TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = CsvWriter(file)
            writer.writerow(["recording", *paths, "kind", "name", "change", "std", "windows"])
            writer.writerows(self._rows)
        if not self._parts:
            return written, None
        whole = join(self._parts, self._reader, self._bands)
        if len(self._parts) > 1:
            whole.plot(self._folder / PICTURE)
            written.append(PICTURE)
        return written, whole
