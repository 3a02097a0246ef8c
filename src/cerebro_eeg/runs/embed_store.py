"""Embed a store: features of its windows with subject, split and label, by the ids of the store.

Windows, labels and order are those of ``finetune``. Without a task they are those of ``embed`` on the files.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cerebro_eeg.batch import Batch, Layout, onto
from cerebro_eeg.costs import cost
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.privacy import read_map
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError, ConfigError, InputError
from cerebro_eeg.fast import on_its_way, one_behind
from cerebro_eeg.model.cerebro import Level
from cerebro_eeg.model.tensor_list import check_results
from cerebro_eeg.runs.embed import check_level
from cerebro_eeg.runs.features import NUMBER, TARGET, text_of
from cerebro_eeg.runs.predict import BATCH, BATCH_BYTES, Input, OnProgress, Reader
from cerebro_eeg.runs.stored import WindowFacts, describe_windows
from cerebro_eeg.runs.windows import check_signal
from cerebro_eeg.train.loop import evaluating


@dataclass(frozen=True, eq=False)
class StoredWindows:
    """The windows of a store that are to be embedded, with what their rows say of them."""

    store: Store
    windows: Windows
    about: WindowFacts
    inputs: tuple[Input, ...]
    """The recordings that have windows, as ``go_over`` takes them; names are empty unless paths are shown."""
    further: Mapping[str, NDArray[Any]]
    """Columns beside recording and start, an entry per window."""
    notes: tuple[str, ...]
    """Differences between the signals of store and model."""

    def types(self) -> dict[str, np.dtype[Any]]:
        """Return the types of the columns, ids first."""
        found: dict[str, np.dtype[Any]] = {"recording": text_of([one.id for one in self.inputs])}
        for name, values in self.further.items():
            found[name] = NUMBER if values.dtype.kind == "f" else text_of(np.unique(values).tolist())
        return found

    def of(self, input: Input) -> NDArray[np.intp]:
        """Return which windows are of this recording."""
        return np.flatnonzero(self.windows.recording == self.store.number(input.id))


def list_windows(
    folder: Path, store: Store, windows: Windows, reader: Reader, map_file: Path | None, show_paths: bool
) -> StoredWindows:
    """Return the windows of a store by recording; raise an error if the model expects another signal."""
    if not len(windows):
        raise InputError("no window was found: labelled time may be shorter than a window; see cerebro-eeg info STORE")
    notes = check_signal([store], reader.config)
    about = describe_windows(store, windows)
    paths = {}
    if show_paths:
        if map_file is None:
            raise ConfigError("a store holds no paths; give --map with the private file that prepare wrote, too")
        paths = read_map(map_file)["recordings"]
    numbers = np.unique(windows.recording).tolist()
    records = [store.recordings[number] for number in numbers]
    inputs = tuple(
        Input(place, folder, paths.get(record.id, ""), record.id, record.bytes)
        for place, record in enumerate(records, 1)
    )
    further: dict[str, NDArray[Any]] = {"subject": _texts(about.subject)}
    if windows.task is not None:
        further["split"] = _texts(about.split)
        if windows.target is None:
            further["label"] = np.asarray(about.answers)
        else:
            for place, name in enumerate(windows.names):
                further[TARGET + name] = windows.target[:, place].astype(np.float64)
    if show_paths:
        further["path"] = np.array([paths.get(id, "") for id in about.recording.tolist()], np.str_)
    return StoredWindows(store, windows, about, inputs, further, tuple(notes))


def embed_stored(
    reader: Reader,
    given: StoredWindows,
    input: Input,
    level: Level,
    layer: int | None,
    progress: OnProgress = lambda seconds, of: None,
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32], tuple[str, ...]]]:
    """Yield the numbers of some windows of one recording, their features, and the channels that the model was given."""
    check_level(reader.config, level, layer)
    store, windows, model = given.store, given.windows, reader.model
    number = store.number(input.id)
    record = store.recordings[number]
    ids = reader.electrodes(record.channels)
    kept = np.flatnonzero(ids[:, 0])
    if not len(kept):
        raise ChannelError(f"no window trained any of the {len(ids)} channels; use --untrained nearest or as_is")
    names = tuple(record.channels[place] for place in kept.tolist())
    device = model.encoder.positions.device
    ids_C2 = torch.from_numpy(ids[kept]).to(device)
    mine = given.of(input)
    needed = cost(reader.config, len(kept), windows.samples).forward_bytes
    size = min(BATCH, max(1, BATCH_BYTES // max(1, needed)))
    scaled = model.needs_scale or reader.config.normalization == "recording" or reader.config.amplitude

    def begun() -> Iterator[tuple[NDArray[np.intp], Callable[[], Tensor]]]:
        for first in range(0, len(mine), size):
            some = mine[first : first + size]
            starts = windows.start[some].tolist()
            read = [store.read(number, start, start + windows.samples)[:, kept] for start in starts]
            x_BTC = onto(torch.from_numpy(np.stack(read)), device)
            count, samples, width = x_BTC.shape
            scale_R = torch.full((count * width,), record.scale, device=device) if scaled else None
            signal_RT = x_BTC.transpose(1, 2).reshape(-1, samples)
            batch = Batch(signal_RT, ids_C2.repeat(count, 1), Layout.uniform(count, width), scale_R)
            with evaluating(model), torch.no_grad():
                output = model.at_level(batch, level, layer)
            yield some, on_its_way(output.float())

    done = 0
    for some, output in one_behind(begun()):
        results = np.asarray(output.numpy(), np.float32)
        check_results(results, model)
        yield some, results, names
        done += len(some)
        progress(float(done), float(len(mine)))


def _texts(values: NDArray[np.object_]) -> NDArray[np.str_]:
    """Return texts with "" for what is not known."""
    return np.array(["" if value is None else value for value in values.tolist()], np.str_)
