"""The weights of a run that was stopped, or that is still training: its last saved state as a checkpoint.

A state holds the weights and the header of the checkpoint that they would make, so any verb that takes weights can take
those of an unfinished run. They are written to a temporary file and never into the run.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from cerebro_eeg.config import ModelConfig
from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.model import checkpoint, hub
from cerebro_eeg.model.checkpoint import Header
from cerebro_eeg.runs.few_subjects import plain_tensors
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.train.state import read_weights


def describe_weights(header: Header, steps: int, scaling: Mapping[str, list[float]] | None = None) -> dict[str, Any]:
    """Return what a state says about its weights: their header, the steps of the whole run, and how outputs scale."""
    return {"header": header.to_dict(), "steps": steps, "scaling": scaling}


def is_unfinished(path: Path) -> bool:
    """Return whether this is the folder of a training that has a saved state and no weights yet."""
    run = RunFolder(path)
    return (path / "run.json").is_file() and run.state.is_file() and not run.model.exists()


@contextlib.contextmanager
def usable_weights(source: Path, say: Callable[[str], None] = lambda line: None) -> Iterator[Path]:
    """Yield ``source`` or, if it is the folder of an unfinished run, a temporary checkpoint of its last state.

    What was stopped when is said in a line.
    """
    if not is_unfinished(source):
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        say(f"note: {_export(source, path)}")
        yield path


def model_of(source: Path) -> ModelConfig:
    """Return the config of the model whose weights these are: of a checkpoint, a run, or an unfinished run."""
    if is_unfinished(source):
        with usable_weights(source) as weights:
            return checkpoint.read_header(weights).model
    return checkpoint.read_header(hub.find(source)).model


def _export(run: Path, path: Path) -> str:
    """Write the weights of a state as a checkpoint, and return a line that says which they are."""
    progress, about, tensors = read_weights(RunFolder(run).state)
    if about is None:
        raise CheckpointError(
            f"the run in {run} was begun by a release whose unfinished runs cannot be used; start the same command "
            "again that began it, and wait for one save"
        )
    tensors = plain_tensors(tensors)
    if (scaling := about["scaling"]) is not None:
        weight, bias = tensors["final_layer.weight"], tensors["final_layer.bias"]
        mean_K, std_K = (torch.tensor(scaling[name], dtype=torch.float64) for name in ("mean", "std"))
        scaled = {"weight": weight * std_K.to(weight)[:, None], "bias": bias * std_K.to(bias) + mean_K.to(bias)}
        tensors |= {f"final_layer.{name}": value for name, value in scaled.items()}
    checkpoint.save_tensors(path, tensors, Header.from_dict(about["header"]))
    return (
        f"{run} is not finished: its weights are those of the last save, after step {progress.step:,} of "
        f"{about['steps']:,}"
    )
