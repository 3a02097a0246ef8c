"""Checkpoints: weights in one ``.safetensors`` file that describes itself and can prove that it is complete.

The metadata of the file holds the version of the format, and the configs and the training record as JSON. It also holds
two SHA-256 sums, of the tensors and of that JSON. The file cannot run code. Loading checks everything and returns a
report; it fails when any part of the encoder is missing.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from cerebro_eeg.channels.electrodes import IDS, VOCABULARY
from cerebro_eeg.config import HeadConfig, ModelConfig, ObjectiveConfig, ReadoutConfig, Training
from cerebro_eeg.errors import CheckpointError, ConfigError
from cerebro_eeg.files import parse_json, replacing
from cerebro_eeg.model import tensor_list
from cerebro_eeg.model.weights import resize_positions
from cerebro_eeg.schema import from_dict, to_dict

FORMAT = "cerebro-eeg"
VERSION = 5
_MEAN: dict[str, Any] = {"readout": to_dict(ReadoutConfig()), "centred": False}
READS: dict[str, dict[str, Any]] = {
    "1": {**_MEAN, "threshold": None, "threshold_level": "unknown"},
    "2": {**_MEAN, "threshold_level": "unknown"},
    "3": _MEAN,
    "4": _MEAN,
    "5": {},
}
"""The versions that can be read, with values for the fields of the head that each version lacks."""
SOURCES: dict[str, Any] = {"subjects": [], "ids": "", "task": ""}
"""Values for the fields of a training's sources that versions before 4 lack."""


OBJECTIVE: dict[str, Any] = {
    "masking": "tokens",
    "block_mm": 80.0,
    "block_seconds": 1.5,
    "spectrum": 0.0,
    "spectrum_relative": False,
    "statistics": 0.0,
    "bands": [1.0, 4.0, 8.0, 13.0, 20.0, 30.0, 45.0],
    "keep_channels": 1.0,
    "rereference": 0.0,
    "hide_amplitude": 0.0,
}
"""Values for the fields of an objective that versions before 5, and the first files of version 5, lack."""


def early_fields(objective: ObjectiveConfig) -> dict[str, Any]:
    """Return an objective as JSON values without the fields that early files lack, where they are at these values.

    So the settings of a run that uses none of them are those of earlier releases, whose runs can be gone on with.
    """
    return {
        name: value for name, value in to_dict(objective).items() if name not in OBJECTIVE or value != OBJECTIVE[name]
    }


@dataclass(frozen=True)
class Header:
    """The content of a checkpoint besides its tensors."""

    model: ModelConfig
    objective: ObjectiveConfig | None = None
    head: HeadConfig | None = None
    training: Training = field(default_factory=Training)
    electrodes: tuple[str, ...] = VOCABULARY
    """Names of the rows of the electrode table, from row 1 on. Rows are matched by name, not by number."""

    def to_dict(self) -> dict[str, Any]:
        """Return the header as plain JSON values."""
        return {
            "model": to_dict(self.model),
            "objective": None if self.objective is None else to_dict(self.objective),
            "head": None if self.head is None else to_dict(self.head),
            "training": to_dict(self.training),
            "electrodes": list(self.electrodes),
        }

    @staticmethod
    def from_dict(values: Any) -> "Header":
        """Make a header from JSON values, and check every field."""
        known = ("model", "objective", "head", "training", "electrodes")
        if not isinstance(values, Mapping) or set(values) != set(known):
            found = _shorten([repr(name) for name in values]) if isinstance(values, Mapping) else type(values).__name__
            raise ConfigError(f"expected the parts {', '.join(known)}; found {found or 'none'}")
        electrodes = values["electrodes"]
        if not isinstance(electrodes, list) or not all(isinstance(name, str) for name in electrodes):
            raise ConfigError("electrodes is not a list of names")
        if len(set(electrodes)) != len(electrodes):
            raise ConfigError("electrodes names a row twice")
        objective, head = values["objective"], values["head"]
        return Header(
            from_dict(ModelConfig, values["model"]),
            None if objective is None else from_dict(ObjectiveConfig, objective),
            None if head is None else from_dict(HeadConfig, head),
            from_dict(Training, values["training"]),
            tuple(electrodes),
        )


PRETRAINING = ("reconstruct", "decoder", "further")
"""Parts of a model that reconstruct what is hidden; features and heads do without them."""


@dataclass(frozen=True)
class LoadReport:
    """A report on every tensor of a checkpoint and of the model that it was loaded into."""

    source: str
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Tensors of the model that the file lacks; they are new and random."""
    unexpected: tuple[str, ...] = ()
    """Tensors of the file that the model lacks; they are ignored."""
    reshaped: tuple[str, ...] = ()
    """Tensors loaded after slicing, interpolation or matching of rows by name."""
    replaced: tuple[str, ...] = ()
    """Tensors with different shapes in file and model; they are new and random."""
    forgotten: tuple[str, ...] = ()
    """Electrodes of the file that this release does not know; their rows are ignored."""

    @property
    def exact(self) -> bool:
        """Whether every tensor of the model was copied from the file without a change."""
        return not (self.missing or self.reshaped or self.replaced)

    def __str__(self) -> str:
        pretraining = [name for name in self.unexpected if name.partition(".")[0] in PRETRAINING]
        parts = [f"{'all ' * self.exact}{len(self.loaded)} tensors loaded"]
        for what, names in (
            ("reshaped", self.reshaped),
            ("missing (new, random)", self.missing),
            ("replaced by new, random ones", self.replaced),
            ("unexpected (left aside)", [name for name in self.unexpected if name not in pretraining]),
            ("electrodes unknown here (left aside)", self.forgotten),
        ):
            parts += [f"{len(names)} {what}: {_shorten(names)}"] if names else []
        parts += [f"{len(pretraining)} that only pre-training needs were left aside"] if pretraining else []
        return f"{self.source}: " + "; ".join(parts)


def save(path: Path, module: nn.Module, header: Header) -> None:
    """Write the tensors of ``module`` and the header, atomically."""
    save_tensors(path, module.state_dict(), header)


def save_tensors(path: Path, found: Mapping[str, Tensor], header: Header) -> None:
    """Write tensors, which may have been gathered from several processes, and the header, atomically."""
    check_savable(found, header)
    tensors = {name: t.detach().cpu().contiguous() for name, t in found.items()}
    text = json.dumps(header.to_dict(), sort_keys=True, allow_nan=False)
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": text,
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tensors_sha256": hash_tensors(tensors),
    }
    metadata["metadata_sha256"] = _sum(metadata)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata)
        _sort_metadata(temporary)


def check_savable(tensors: Mapping[str, Tensor], header: Header) -> None:
    """Raise an error for tensors that could not be loaded again, before any file is touched."""
    if reason := tensor_list.refusal(header, tensors):
        raise ConfigError(f"the model cannot be saved: {reason}")


def read_header(path: Path) -> Header:
    """Return the header of a checkpoint, with its JSON checked against its SHA-256, without reading the tensors."""
    with _opened(path) as file:
        return _header(path, _metadata(path, file))


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Return header and tensors of a checkpoint, both checked against their SHA-256 and against each other.

    Names and shapes come first, because a config that does not fit them could describe a model of any size.
    """
    with _opened(path) as file:
        metadata = _metadata(path, file)
        header = _header(path, metadata)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if misfit := tensor_list.misfit(header, shapes):
            raise CheckpointError(
                f"{path} does not hold the whole model that its config describes: {misfit}; get the file again"
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if hash_tensors(tensors) != metadata.get("tensors_sha256"):
        raise CheckpointError(f"{path} was altered: its tensors do not match their SHA-256; get the file again")
    if (broken := tensor_list.first_broken(tensors)) is not None:
        raise CheckpointError(
            f"{path} holds NaN or infinity, first in {broken}: its training went wrong; give a file of sound weights"
        )
    return header, tensors


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@torch.no_grad()
def load_into(module: nn.Module, header: Header, tensors: Mapping[str, Tensor], source: str) -> LoadReport:
    """Copy tensors into ``module`` and return a report on each; raise where a part of the encoder is missing.

    No weight is rounded: ``module`` keeps its floating type, but becomes float64 when the file is.
    """
    if any(tensors[name].dtype == torch.float64 for name in module.state_dict() if name in tensors):
        module.double()
    own = module.state_dict()
    copies: dict[str, Tensor] = {}
    missing, reshaped, replaced = [], [], []
    for name, target in own.items():
        if name not in tensors:
            missing.append(name)
            continue
        tensor = tensors[name].to(target)
        if name == "encoder.electrodes" and header.electrodes != VOCABULARY:
            tensor = _rows_by_name(tensor, header.electrodes, target)
            reshaped.append(name)
        elif name == "encoder.positions" and tensor.shape != target.shape and tensor.shape[1:] == target.shape[1:]:
            tensor = resize_positions(tensor, len(target), header.model.patches.bands)
            reshaped.append(name)
        if tensor.shape != target.shape or not tensors[name].is_floating_point():
            replaced.append(name)
        else:
            copies[name] = tensor
    unexpected = [name for name in tensors if name not in own]
    lost = [name for name in missing + replaced + unexpected if name.startswith("encoder.")]
    if lost:
        raise CheckpointError(
            f"{source} does not hold the whole encoder: {_shorten(lost)} missing, unexpected or of another shape or "
            "type; get the file again"
        )
    for name, tensor in copies.items():
        own[name].copy_(tensor)
    forgotten = [name for name in header.electrodes if name not in IDS]
    lists = (copies, missing, unexpected, reshaped, replaced, forgotten)
    return LoadReport(source, *(tuple(names) for names in lists))


def _sort_metadata(path: Path) -> None:
    """Sort the metadata. safetensors writes it in random order, and equal models should have equal files."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:  # always true while safetensors writes compact JSON
            file.seek(8)
            file.write(text.ljust(length))


def _rows_by_name(table: Tensor, names: tuple[str, ...], target: Tensor) -> Tensor:
    """Return the electrode table of another vocabulary in the order of ours; rows that it lacks keep their values."""
    result = target.clone()
    row_of = {name: row for row, name in enumerate(names, 1)}
    for row, name in enumerate(VOCABULARY, 1):
        if name in row_of:
            result[row] = table[row_of[name]]
    return result


def _metadata(path: Path, file: Any) -> dict[str, str]:
    """Return the metadata of a checkpoint; raise if another program or another version has written the file."""
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} holds tensors but no cerebro-eeg config: another program wrote it; give a file that "
            "cerebro-eeg saved"
        )
    if metadata.get("version") not in READS:
        raise CheckpointError(
            f"{path} is a checkpoint of version {metadata.get('version')!r:.20}; this cerebro-eeg reads versions "
            f"{', '.join(READS)}: install the release that wrote it, or convert it there"
        )
    known = {"format", "version", "config", "config_sha256", "tensors_sha256", "metadata_sha256"}
    if metadata.get("metadata_sha256", found := _sum(metadata)) != found or not metadata.keys() <= known:
        raise CheckpointError(f"{path} was altered: its metadata do not match their SHA-256; get the file again")
    return metadata


def _sum(metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the format, the version and the two other sums of a checkpoint."""
    names = ("format", "version", "config_sha256", "tensors_sha256")
    return hashlib.sha256("\n".join(metadata.get(name, "") for name in names).encode()).hexdigest()


def _header(path: Path, metadata: Mapping[str, str]) -> Header:
    text = metadata.get("config", "")
    if hashlib.sha256(text.encode()).hexdigest() != metadata.get("config_sha256"):
        raise CheckpointError(f"{path} was altered: its config does not match its SHA-256; get the file again")
    try:
        header = Header.from_dict(complete(parse_json(text), metadata["version"]))
        tensor_list.decoder_config(header)  # raises where the decoder's dimensions do not fit
        if header.objective is not None:
            header.objective.check(header.model)
        return header
    except (ValueError, RecursionError) as error:  # also for JSON that is broken or nested too deep
        raise CheckpointError(f"{path} has a config that does not fit: {error}; get the file again") from error


def complete(values: Any, version: str) -> Any:
    """Return the JSON of a header with the fields that its version lacks. Nothing is checked here."""
    if isinstance(values, dict) and isinstance(values.get("head"), dict):
        values = {**values, "head": {**READS[version], **values["head"]}}
    if isinstance(values, dict) and isinstance(values.get("objective"), dict):
        values = {**values, "objective": {**OBJECTIVE, **values["objective"]}}
    if version in ("1", "2", "3"):
        with contextlib.suppress(KeyError, TypeError):  # JSON of another form is refused later, with the reason
            data = [{**SOURCES, **source} for source in values["training"]["data"]]
            values = {**values, "training": {**values["training"], "data": data}}
    return values


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file for reading, and turn everything that is wrong with it into a CheckpointError."""
    try:
        _refuse_others(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut off or damaged ({error}); get the file again") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}); give a file you may read") from error


def _refuse_others(path: Path) -> None:
    """Check first bytes and size of a file, and raise a clear error unless it is a complete safetensors file."""
    if not os.path.isfile(path):  # unlike Path.is_file, never an error
        raise CheckpointError(f"there is no checkpoint {path}; give a .safetensors file or a folder that holds one")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(9)
    length = int.from_bytes(start[:8], "little")
    if start[8:] == b"{" and 8 + length <= size:
        return  # test this first: the length of a header may begin with the first byte of a pickle
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        raise CheckpointError(
            f"{path} is a pickle (torch.save), whatever its name; pickles can run code and are never read: "
            "ask for a .safetensors file"
        )
    raise CheckpointError(f"{path} is cut off or not a safetensors file ({size} bytes); get the file again")


def _shorten(names: list[str] | tuple[str, ...], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
