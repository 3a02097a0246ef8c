"""Settings that several verbs share.

``choose`` takes a preset, then a JSON file, then flags; the later one wins, and every field is checked. ``Engine`` and
``Handling`` are dataclasses whose fields are flags and whose docstrings are their help. The command line reads them
before a verb runs, so this module loads neither torch nor NumPy.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cerebro_eeg.config import PRESETS, ModelConfig, Preset, preset
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import parse_json
from cerebro_eeg.schema import from_dict, require, settle

if TYPE_CHECKING:
    from cerebro_eeg.data.reading.arrays import ArrayFacts

Unknown = Literal["error", "drop", "nearest", "nearest_or_drop"]
Untrained = Literal["error", "nearest", "drop", "as_is"]
TooMany = Literal["error", "nearest"]
Quality = Literal["keep", "drop", "refuse"]


@dataclass(frozen=True)
class Engine:
    """How a training is carried out: choices that do not change what is learned."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Whole copies in every process, or shards of the weights."""
    precision: Literal["auto", "bf16", "fp32", "fp64"] = "auto"
    """Of the arithmetic; auto is bf16 on a GPU that has it."""
    residual: Literal["bf16", "fp32"] = "bf16"
    """Where the arithmetic is bf16, of what blocks add to: fp32 moves twice the memory."""
    micro_batch: int | None = None
    """Windows that a process computes at once; otherwise what fits into memory."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Compile the blocks; auto does so on a GPU whose steps cannot be CUDA graphs."""
    capture: bool = True
    """Repeat steps as CUDA graphs on one NVIDIA GPU, with the same bits; --no-capture computes them plainly."""
    kernels: Literal["ours", "stock"] = "ours"
    """Ours for attention, norms and GELU, on GPUs tried on an H200 only, or torch's alone."""
    recompute: bool = False
    """Gradient checkpointing: less memory, more time."""
    deterministic: bool = False
    """Bitwise equal repetitions on a GPU, too."""
    threads: int | None = None
    """Of a process on the CPU."""
    readers: int = 2
    """Threads that read windows; beside a GPU each has a process do it."""
    save_minutes: float = 10.0
    """Between two saves of the state."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Beside metrics.jsonl."""

    def __post_init__(self) -> None:
        settle(self)
        require(self.micro_batch is None or self.micro_batch >= 1, f"micro_batch is {self.micro_batch}; at least 1")
        require(self.threads is None or self.threads >= 1, f"threads is {self.threads}; it must be at least 1")
        require(self.readers >= 0, f"readers is {self.readers}; it must be at least 0")
        require(self.save_minutes > 0, f"save_minutes is {self.save_minutes}; it must be positive")


@dataclass(frozen=True)
class Handling:
    """What a user may choose about new recordings; everything else is the checkpoint's."""

    unknown: Unknown = "error"
    """Channels whose labels are not understood: refuse the recording, drop them, or take the nearest electrode where
    the file has positions."""
    untrained: Untrained = "error"
    """Channels of electrodes that no window trained: refuse the recording, use the nearest that was trained, drop them,
    or use them as they are."""
    too_many: TooMany = "error"
    """A recording with more channels than the model takes: refuse it, or keep some spread over the head."""
    quality: Quality = "keep"
    """Flat, clipped, disconnected or absurdly scaled channels: keep them, drop them, or refuse the recording."""
    mains: float | None = None
    """Mains frequency in Hz; otherwise estimated: several recordings vote, and one is asked itself."""
    unit: str | None = None
    """uV, nV, mV or V, of channels whose own unit is blank or unknown."""
    rename: Path | None = None
    """A table of two columns: a channel's name in the files, and its electrode, or nothing to leave it out."""
    sfreq: float | None = None
    """Of arrays (.npy, .mat, tables of numbers) that do not say it: samples per second."""
    channels_from: Path | None = None
    """Of arrays that do not say them: a text file with the names of the channels, one a line."""

    def __post_init__(self) -> None:
        if self.mains is not None and not 0 < self.mains < 1000:
            raise ConfigError(f"mains is {self.mains:g}; expected a frequency in Hz, such as 50 or 60")

    def names(self) -> Mapping[str, str] | None:
        """Read the map of names; None where none was given."""
        from cerebro_eeg.data.reading.name_map import read_names

        return None if self.rename is None else read_names(self.rename)

    def arrays(self) -> "ArrayFacts":
        """Return what was said about arrays."""
        from cerebro_eeg.data.reading.arrays import ArrayFacts
        from cerebro_eeg.data.reading.name_map import read_channel_list

        return ArrayFacts(self.sfreq, () if self.channels_from is None else read_channel_list(self.channels_from))


def preset_for(given: str | None, model: ModelConfig | None) -> tuple[str, str | None]:
    """Return the preset whose hyper-parameters to take, and a line on it; None where there is nothing to say.

    Without a choice of the user's it follows the weights that training begins with: ``model`` is theirs, or None for
    new weights.
    """
    if model is None:
        return given or "small", None
    sizes = {name: (one.model.depth, one.model.width) for name, one in PRESETS.items()}
    own = next((name for name, size in sizes.items() if size == (model.depth, model.width)), None)
    if given is not None:
        preset(given)  # an unknown name is refused first
        differs = own is not None and given != own
        line = f"note: the weights are of {own}; --preset {given} gives the hyper-parameters of training alone"
        return given, line if differs else None
    if own is not None:
        return own, f"hyper-parameters of {own}, the preset of these weights"
    weights = model.depth * model.width**2
    nearest = min(sizes, key=lambda name: abs(math.log(sizes[name][0] * sizes[name][1] ** 2 / weights)))
    size = f"{model.depth} blocks of width {model.width}"
    return nearest, f"hyper-parameters of {nearest}, the preset nearest to these weights ({size}); --preset chooses"


def choose(name: str, file: Path | None, flags: Mapping[str, Any], changes: Sequence[str]) -> Preset:
    """Return the preset ``name``, changed by a file, by flags ("model.depth": 4) and by "a.b=c" texts.

    A flag of None was not given.
    """
    chosen = preset(name)
    if file is not None:
        chosen = from_dict(Preset, _read(file), chosen)
    given = {path: value for path, value in flags.items() if value is not None}
    chosen = from_dict(Preset, _nested(given), chosen)
    return from_dict(Preset, _nested(dict(_parse(text) for text in changes)), chosen)


def changed_fields(file: Path | None, flags: Mapping[str, Any], changes: Sequence[str]) -> list[str]:
    """Return the fields that ``choose`` would change, such as model.depth."""
    in_file = [] if file is None else list(_paths("", _read(file)))
    given = [path for path, value in flags.items() if value is not None]
    return list(dict.fromkeys([*in_file, *given, *(text.partition("=")[0] for text in changes)]))


def _paths(where: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield where
        return
    for name, inside in value.items():
        yield from _paths(f"{where}.{name}" if where else name, inside)


def _read(file: Path) -> Any:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the config file {file} cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise ConfigError(f"the config file {file} is not JSON ({error})") from error


def _parse(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes name=value, such as model.depth=6; got {text!r}")
    try:
        return path, parse_json(value)
    except ValueError:
        return path, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        inside = found
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[last] = value
    return found
