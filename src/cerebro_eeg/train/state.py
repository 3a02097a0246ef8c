"""The state of a run: everything that an exact resume needs, in one safetensors file that is replaced as a whole.

The file holds the parameters, AdamW's moments, the number of finished steps, and notes of the task (plain JSON).
Tensors are stored whole and under the names of the parameters. Any number of processes and any strategy can therefore
resume from it. A SHA-256 sum over tensors and notes shows whether the file is intact. The file also holds what the
caller says about the weights, so that they can be used before the run has ended.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.files import parse_json, replacing
from cerebro_eeg.train.distributed import ProcessGroup, copy_into, resharded, whole

FORMAT, VERSION = "cerebro-eeg-state", "1"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class RunProgress:
    """The number of finished steps, and the notes that the task needs again after a stop."""

    step: int = 0
    """Finished steps."""
    notes: dict[str, Any] = field(default_factory=dict)


def save(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: RunProgress,
    processes: ProcessGroup,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the state atomically. All processes must call this, because it gathers shards; the first one writes.

    ``about`` is kept as JSON for ``read_weights``.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in _tensors(module, optimizer).items():
        full = whole(value)
        if processes.first:
            tensors[name] = full.cpu().contiguous()
    if processes.first:
        text = json.dumps({"step": progress.step, "notes": progress.notes}, sort_keys=True)
        metadata = {"format": FORMAT, "version": VERSION, "progress": text, "sha256": _hash(tensors, text)}
        if about is not None:
            metadata["about"] = json.dumps(about, sort_keys=True, allow_nan=False)
            metadata["about_sha256"] = hashlib.sha256(metadata["about"].encode()).hexdigest()
        with replacing(path, summed=False) as temporary:  # it has a sum of its own and is replaced all the time
            save_file(tensors, temporary, metadata)
    processes.barrier()


def load(path: Path, module: nn.Module, optimizer: torch.optim.AdamW) -> RunProgress:
    """Load the state into a module and an optimizer like those that it was saved from, and return the progress."""
    metadata, tensors = read(path)
    fill_moments(optimizer)
    wanted = _tensors(module, optimizer)
    if set(wanted) != set(tensors) or any(wanted[name].shape != tensors[name].shape for name in wanted):
        raise CheckpointError(f"{path} is the state of another model; {_WAY_OUT}")
    for name, tensor in tensors.items():
        copy_into(tensor, wanted[name])
    return _progress(metadata)


def read_weights(path: Path) -> tuple[RunProgress, dict[str, Any] | None, dict[str, Tensor]]:
    """Return the progress, what was said about the weights (None in an older release), and the weights."""
    metadata, tensors = read(path)
    about = metadata.get("about")
    weights = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name.startswith(_MODEL)}
    return _progress(metadata), None if about is None else parse_json(about), weights


def steps_done(path: Path) -> int | None:
    """Return the finished steps of a state, without reading its tensors; None if there is no file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return _progress(_checked(path, file.metadata() or {})).step
    except CheckpointError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read or is damaged ({error}); {_WAY_OUT}") from error


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return metadata and tensors of a state, checked against their sums."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = _checked(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read or is damaged ({error}); {_WAY_OUT}") from error
    about = metadata.get("about_sha256", hashlib.sha256(b"").hexdigest())
    sound = hashlib.sha256(metadata.get("about", "").encode()).hexdigest() == about
    if not sound or metadata.get("sha256") != _hash(tensors, metadata.get("progress", "")):
        raise CheckpointError(f"{path} was altered: it does not match its SHA-256; {_WAY_OUT}")
    return metadata, tensors


def _checked(path: Path, metadata: dict[str, str]) -> dict[str, str]:
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise CheckpointError(f"{path} is not the state of a run of this release; {_WAY_OUT}")
    return metadata


def _progress(metadata: Mapping[str, str]) -> RunProgress:
    found = parse_json(metadata["progress"])
    return RunProgress(found["step"], found["notes"])


_MODEL = "model."
_WAY_OUT = "start a new run in another folder, or delete this one"


def fill_moments(optimizer: torch.optim.AdamW) -> None:
    """Give every parameter the moments that AdamW makes at its first step, so that a state is complete before it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                where = parameter.device if group["fused"] else "cpu"
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=where),
                    **{name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in MOMENTS},
                }


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    resharded(module)
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    found: dict[str, Tensor] = {f"{_MODEL}{name}": value for name, value in module.state_dict().items()}
    for parameter, values in optimizer.state.items():
        for kind, value in values.items():
            found[f"{kind}.{names[parameter]}"] = value
    return dict(sorted(found.items()))


def _hash(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
