"""Outputs of a model for the windows of a store: features, logits or values, in the order of the windows.

``finetune`` and ``evaluate`` use this. ``predict`` and ``embed`` read recordings instead.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cerebro_eeg.batch import Batch
from cerebro_eeg.data.batching.filling import Filling, apart, together
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import in_order
from cerebro_eeg.data.batching.windows import Windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.fast import Capture, has_graphs, on_its_way, one_behind, packed
from cerebro_eeg.model.cerebro import Cerebro
from cerebro_eeg.progress import time_left
from cerebro_eeg.runs.decisions import softmax
from cerebro_eeg.runs.kept_batches import KeptBatches, LaidOut
from cerebro_eeg.runs.windows import Electrodes
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.loop import Precision, evaluating

SECONDS = 10.0
"""Time between two lines of progress."""
Read = Callable[[nn.Module, Batch], torch.Tensor]
"""Computes an output of a model for a batch."""


class BatchOutputs:
    """Outputs of a model for batches, in evaluation mode; on a GPU as CUDA graphs where batches have one form.

    The graphs are kept, so use one object for as long as the model is the same. Read-outs that wait for the GPU are
    computed plainly, and so are those of ``read``.
    """

    def __init__(
        self,
        model: nn.Module,
        processes: ProcessGroup,
        read: Read | None = None,
        precision: Precision = "fp32",
        at_once: int = 1,
    ) -> None:
        self.model, self.device = model, processes.device
        alone = processes.size == 1 and processes.strategy == "ddp"
        readout = model.readout if isinstance(model, Cerebro) else None
        waits = read not in (None, features) or (readout is not None and readout.waits)
        graphs = alone and not waits and has_graphs(self.device)
        self._compute = functools.partial(_outputs, model, read, self.device, precision)
        self._capture = Capture(self._compute, self.device, module=model) if graphs else None
        self.kept = KeptBatches(self.device, at_once)
        """Batches of the last windows, for those who ask for their outputs again."""

    def filling(self, windows: Windows, batch_size: int) -> Filling | None:
        """Return how batches are filled up to few shapes, for CUDA graphs; None where they are not or need not be."""
        return None if self._capture is None else Filling.choose(windows.channels, batch_size)

    @torch.no_grad()
    def begin(self, form: Hashable, tensors: Sequence[torch.Tensor | None]) -> Callable[[], torch.Tensor]:
        """Begin to compute the output of a batch, and return a function that waits for it; it comes on the CPU."""
        if self._capture is None:
            return on_its_way(self._compute(form, tensors))
        return self._capture.pending(form, tensors)


def _outputs(
    model: nn.Module,
    read: Read | None,
    device: torch.device,
    precision: Precision,
    form: Hashable,
    tensors: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Return the output of a batch without the windows that only fill it up."""
    batch = together(form, tensors)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        output = model(batch) if read is None else read(model, batch)
    return output[: batch.layout.windows - batch.layout.filled].float()


@torch.no_grad()
def predict_windows(
    model: nn.Module,
    store: Store,
    windows: Windows,
    processes: ProcessGroup,
    *,
    batch_size: int = 64,
    electrodes: Electrodes | None = None,
    read: Read | None = None,
    precision: Precision = "fp32",
    say: Callable[[str], None] | None = None,
    outputs: BatchOutputs | None = None,
) -> NDArray[np.float32]:
    """Return the outputs (n, K) of all windows, the same on every process.

    ``read`` computes the output of a batch; without it that is the model's own. ``say`` prints the progress now and
    then. ``outputs`` are those of an earlier call for the same model, output, electrodes and precision.
    """
    again, outputs = outputs is not None, outputs or BatchOutputs(model, processes, read, precision)
    total = len(windows)
    if total == 0:
        return np.empty((0, 0), np.float32)
    mine = next(in_order([total], total))
    # Every process computes the same number of parts, because a sharded forward pass needs all processes.
    shared = processes.size > 1 and total >= processes.size
    if shared:
        mine = mine.part(processes.rank, processes.size)
    parts = -(-total // (processes.size * batch_size)) if shared else -(-total // batch_size)
    parts = min(parts, total // processes.size if shared else total)
    filling = outputs.filling(windows, batch_size)
    pin = processes.device.type == "cuda"
    with evaluating(model), packed(model):

        def batches() -> Generator[LaidOut, None, None]:
            with Loader([(store, windows)], threads=2, pin=pin, electrodes=electrodes) as loader:
                for raw in loader.stream(mine.part(number, parts) for number in range(parts)):
                    batch = lay_out(raw, processes.device, torch.float64 if precision == "fp64" else torch.float16)
                    yield apart(batch if filling is None else filling.fill(batch, raw.kept_counts()))

        def begun() -> Iterator[tuple[int, Callable[[], torch.Tensor]]]:
            began = last = time.monotonic()
            made = outputs.kept.of(windows, batch_size, batches) if again else batches()
            with contextlib.closing(made) as laid_out:
                for number, one in enumerate(laid_out):
                    if say is not None and time.monotonic() - last > SECONDS:
                        last = time.monotonic()
                        left = time_left(number, parts, last - began)
                        say(f"{total * number // parts:,} of {total:,} windows, {left} left")
                    yield number, outputs.begin(*one)

        own = torch.cat([output for _, output in one_behind(begun())])
    if not shared:
        return np.asarray(own.numpy(), np.float32)
    whole = torch.zeros(total, own.shape[1], device=processes.device)
    first = total * processes.rank // processes.size
    whole[first : first + len(own)] = own.to(processes.device)
    return np.asarray(processes.sum(whole).cpu().numpy(), np.float32)


def features(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Return what the head reads of a batch; an argument for ``predict_windows``."""
    assert isinstance(model, Cerebro)
    return model.features(batch)


class KeptFeatures:
    """Features of windows in memory. Folds share most of their windows, and each window is computed once."""

    def __init__(self, compute: Callable[[Windows], NDArray[np.float32]] | None) -> None:
        self._compute = compute
        self._row: dict[int, int] = {}
        self._found: NDArray[np.float32] | None = None

    def save(self, folder: Path) -> None:
        """Write all features so far to a folder, for other processes of this machine."""
        assert self._found is not None
        np.save(folder / "windows.npy", np.array(list(self._row), np.int64), allow_pickle=False)
        np.save(folder / "features.npy", self._found, allow_pickle=False)

    @staticmethod
    def load(folder: Path) -> "KeptFeatures":
        """Return features that another process has saved. They stay in the file, which all processes share."""
        found = KeptFeatures(None)
        found._row = {key: row for row, key in enumerate(np.load(folder / "windows.npy").tolist())}
        found._found = np.load(folder / "features.npy", mmap_mode="r")
        return found

    def of(self, windows: Windows) -> NDArray[np.float32]:
        """Return the features (n, P) of the windows, in their order."""
        keys = windows.keys().tolist()
        new = [place for place, key in enumerate(keys) if key not in self._row]
        if new:
            assert self._compute is not None
            found = self._compute(windows.take(np.array(new, np.int64)))
            for place in new:
                self._row[keys[place]] = len(self._row)
            self._found = found if self._found is None else np.concatenate([self._found, found])
        assert self._found is not None
        return self._found[[self._row[key] for key in keys]]


def start_times(store: Store, windows: Windows) -> NDArray[np.float64]:
    """Return the seconds from the start of its recording to each window.

    Gaps count, although a store has no samples there.
    """
    found = np.empty(len(windows))
    for number in np.unique(windows.recording).tolist():
        record, of_recording = store.recordings[number], windows.recording == number
        first = np.array([segment.start for segment in record.segments])
        onset = np.array([segment.onset for segment in record.segments])
        start = windows.start[of_recording]
        segment = np.searchsorted(first, start, side="right") - 1
        found[of_recording] = onset[segment] + (start - first[segment]) / record.sfreq
    return found


def to_predictions(store: Store, windows: Windows, output: NDArray[np.float32]) -> Predictions:
    """Return the outputs with the truth; logits become probabilities."""
    ids = np.array(windows.facts.ids, dtype=np.str_)[windows.recording]
    names = np.array([*windows.facts.subjects, ""], dtype=np.str_)
    if windows.target is None:
        output = softmax(output)
    return Predictions(
        kind="classification" if windows.target is None else "regression",
        names=windows.names,
        output=output,
        truth=windows.label if windows.target is None else windows.target,
        recording=ids,
        subject=names[windows.subject],
        start=start_times(store, windows),
        seconds=windows.samples / windows.sfreq,
    )
