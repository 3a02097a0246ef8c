"""The state of a run: everything that an exact resume needs, in one safetensors file that is replaced as a whole.

The file holds the parameters, AdamW's moments, the number of finished steps, and notes of the task (plain JSON).
Tensors are stored whole and under the names of the parameters. Any number of processes and any strategy can therefore
resume from it. A SHA-256 sum over tensors and notes shows whether the file is intact.
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
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: RunProgress, processes: ProcessGroup
) -> None:
    """Write the state atomically. All processes must call this, because it gathers shards; the first one writes."""
    tensors: dict[str, Tensor] = {}
    for name, value in _tensors(module, optimizer).items():
        full = whole(value)
        if processes.first:
            tensors[name] = full.cpu().contiguous()
    if processes.first:
        text = json.dumps({"step": progress.step, "notes": progress.notes}, sort_keys=True)
        metadata = {"format": FORMAT, "version": VERSION, "progress": text, "sha256": _hash(tensors, text)}
        with replacing(path, summed=False) as temporary:  # it has a sum of its own and is replaced all the time
            save_file(tensors, temporary, metadata)
    processes.barrier()


def read(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors and the progress (as JSON) of a state, both checked against their SHA-256."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read or is damaged ({error}); {_WAY_OUT}") from error
    text = metadata.get("progress", "")
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise CheckpointError(f"{path} is not the state of a run of this release; {_WAY_OUT}")
    if metadata.get("sha256") != _hash(tensors, text):
        raise CheckpointError(f"{path} was altered: it does not match its SHA-256; {_WAY_OUT}")
    return tensors, text


def load(path: Path, module: nn.Module, optimizer: torch.optim.AdamW) -> RunProgress:
    """Load the state into a module and an optimizer like those that it was saved from, and return the progress."""
    tensors, text = read(path)
    fill_moments(optimizer)
    wanted = _tensors(module, optimizer)
    if set(wanted) != set(tensors) or any(wanted[name].shape != tensors[name].shape for name in wanted):
        raise CheckpointError(f"{path} is the state of another model; {_WAY_OUT}")
    for name, tensor in tensors.items():
        copy_into(tensor, wanted[name])
    found = parse_json(text)
    return RunProgress(found["step"], found["notes"])


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
    found: dict[str, Tensor] = {f"model.{name}": value for name, value in module.state_dict().items()}
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
