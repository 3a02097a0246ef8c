"""Options: one dataclass per benchmark, which says what is measured and has every size of it. Standard library only.

The name of a class without ``Bench`` is the word on the command line, and its fields are the flags. Defaults are the
sizes of the goals in ``benchmarks/goals.py``.
"""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.schema import require

GEMM = (4096, 8192, 16384)
AXES = (1, 2, 4, 8, 16, 19, 20, 24, 32, 36, 48, 64)


WINDOWS = {"tiny": 1024, "small": 1024, "base": 256, "large": 256}


def windows_of(presets: tuple[str, ...], windows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the windows of a step for each size: as given, one number for all, or the usual ones."""
    if not windows:
        return tuple(WINDOWS.get(name, 256) for name in presets)
    each = windows * len(presets) if len(windows) == 1 else windows
    require(
        len(each) == len(presets),
        f"--windows has {len(windows)} numbers, and there are {len(presets)} presets ({', '.join(presets)}); give one "
        "number for all of them, or one for each",
    )
    return each


@dataclass(frozen=True)
class Benchmark:
    """The options that every benchmark has."""

    rounds: int = 5
    """Turns that each rival takes."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool | str | Path) or value is None:
                continue
            name = field.name.replace("_", "-")
            counts = value if isinstance(value, tuple) else (value,)
            require(bool(counts or not field.default), f"--{name} has nothing behind it; expected one or more")
            least = 0 if field.name in ("index", "threads") or field.default == 0 else 1e-9
            numbers = [count for count in counts if not isinstance(count, str)]
            fit = all(least <= count < math.inf for count in numbers)
            require(fit, f"--{name} is {value}; expected positive numbers")
        require(self.rounds >= 1, f"--rounds is {self.rounds}; expected at least 1")


@dataclass(frozen=True)
class AttentionBench(Benchmark):
    """Short-axis attention against every stock backend that runs, and against a bare copy (GPU)."""

    dims: tuple[int, ...] = (16, 48, 64)
    """Head dimensions."""
    axes: tuple[int, ...] = AXES
    """Lengths of the attended axis."""
    directions: tuple[str, ...] = ("time", "channels")
    """Along time, across channels."""
    heads: int = 12
    """Attention heads."""
    tokens: int = 1024 * 640
    """Tokens at head dimension 16; fewer at larger ones."""
    copy: int = 2**30
    """Bytes of the copy that the floor comes from."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class ForwardBench(Benchmark):
    """The paper's figures: runtime and memory of a forward pass against its tokens; and 64 x 64 compiled (GPU)."""

    presets: tuple[str, ...] = ("small", "base", "large")
    """Sizes of the model."""
    patches: tuple[int, ...] = (64, 20)
    """Patches a channel; 64 is drawn over the paper's curves."""
    channels: tuple[int, ...] = tuple(range(1, 65, 4))
    """Numbers of channels."""
    windows: int = 8
    """Windows at once."""
    precision: str = "fp32"
    """Of the figures: fp32, as we read the paper, or bf16."""
    goal_channels: int = 64
    """Channels, and patches, of the compiled comparison in bf16."""
    only: tuple[str, ...] = ("figures", "goal")
    """Parts to run."""
    eager: bool = False
    """Do not compile the blocks in the comparison."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class LatencyBench(Benchmark):
    """One window through the encoder: eager, compiled, and as a replayed CUDA graph (GPU)."""

    rounds: int = 50
    """Turns that each rival takes."""
    presets: tuple[str, ...] = ("small", "base", "large")
    """Sizes of the model."""
    channels: int = 19
    """Channels of the window."""
    seconds: float = 5.0
    """Length of the window."""
    precision: str = "bf16"
    """bf16 or fp32."""
    eager: bool = False
    """Do not compile."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class TrainBench(Benchmark):
    """Training steps with our kernels, stock ones and standard attention: windows/s, GEMM share, memory (GPU)."""

    rounds: int = 9
    """Turns that each rival takes."""
    presets: tuple[str, ...] = ("small", "base", "large")
    """Sizes of the model."""
    windows: tuple[int, ...] = ()
    """Windows a step, for all sizes or for each one; otherwise 1,024 for small and tiny, 256 for base and large."""
    steps: int = 3
    """Steps of a turn, one right after the other, as a training runs them."""
    channels: int = 32
    """Channels of a window."""
    seconds: float = 5.0
    """Length of a window."""
    static: bool = False
    """Compile for these shapes alone; otherwise as the engine does."""
    eager: bool = False
    """Do not compile the blocks."""
    without: tuple[str, ...] = ()
    """Rivals to leave out: "stock attention", stock, standard, deterministic."""
    gemm: tuple[int, ...] = GEMM
    """Square products that the GEMM peak is the best of."""
    copy: int = 2**30
    """Bytes of the copy that the roofline comes from."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class MixedBench(Benchmark):
    """Training steps of windows with 18 to 36 channels: packed, padded to the widest and to 64, uniform (GPU)."""

    rounds: int = 9
    """Turns that each form takes."""
    presets: tuple[str, ...] = ("small", "base")
    """Sizes of the model."""
    windows: tuple[int, ...] = ()
    """Windows a step, for all sizes or for each one; otherwise 1,024 for small and tiny, 256 for base and large."""
    least: int = 18
    """Fewest channels of a window."""
    most: int = 36
    """Most channels of a window."""
    pad: int = 64
    """What the paper pads to."""
    seconds: float = 5.0
    """Length of a window."""
    eager: bool = False
    """Do not compile the blocks."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class PretrainBench(Benchmark):
    """A whole training from a store against its bare step: what reading, masks, logs and checks add."""

    rounds: int = 3
    """Turns that the training and its bare step take."""
    presets: tuple[str, ...] = ("small",)
    """Sizes of the model."""
    windows: int = 1024
    """Windows a step."""
    steps: int = 60
    """Steps of the training, of which the second half is timed."""
    readers: int = 2
    """Threads that read windows, on a GPU by a process each."""
    store: Path | None = None
    """A store that prepare made; none: one of noise is written for the time of the run."""
    recordings: int = 68
    """Of the store of noise."""
    minutes: float = 5.0
    """Of each recording of noise."""
    device: str = "auto"
    """cuda, cpu or auto."""


@dataclass(frozen=True)
class FinetuneBench(Benchmark):
    """A fine-tuning step, ours and of four braindecode models, plain and as CUDA graphs; a whole run from a store."""

    presets: tuple[str, ...] = ("small",)
    """Sizes of our model."""
    windows: tuple[int, ...] = (64,)
    """Windows a step."""
    channels: tuple[int, ...] = (14, 32)
    """Channels of a window of noise."""
    seconds: float = 5.0
    """Length of a window of noise."""
    steps: int = 60
    """Steps of a whole run, of which the second half is timed."""
    readers: int = 2
    """Threads that read windows, on a GPU by a process each."""
    store: Path | None = None
    """A store that prepare made, with labels; none: stores of noise are written for the time of the run."""
    task: str = ""
    """The task of that store."""
    forms: tuple[str, ...] = ()
    """Of plain, compiled, captured and whole; otherwise all on a GPU, and plain and whole on a CPU."""
    without: tuple[str, ...] = ()
    """Models of braindecode to leave out: EEGNet, EEGConformer, LaBraM, CBraMod."""
    device: str = "auto"
    """cuda, cpu or auto."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 4, f"--steps is {self.steps}; expected at least 4: their second half is timed")
        require(
            (self.store is None) == (not self.task),
            "--store and --task belong together; give both, or neither for a store of noise",
        )


@dataclass(frozen=True)
class LoaderBench(Benchmark):
    """Reading windows of a store: the loader and single reads against bare preads of the same bytes."""

    rounds: int = 9
    """Turns that each form takes."""
    store: Path | None = None
    """A store that prepare made; none: one of noise is written for the time of the run."""
    recordings: int = 68
    """Of the store of noise."""
    minutes: float = 5.0
    """Of each recording of noise."""
    seconds: float = 5.0
    """Length of a window."""
    batch: int = 256
    """Windows a step."""
    steps: int = 8
    """Steps a turn."""
    threads: tuple[int, ...] = (1, 2, 4)
    """Threads that read."""
    windows: int = 4000
    """Windows that are read one by one."""
    index: int = 100_000
    """Recordings of an index that is opened; 0 leaves it out."""


@dataclass(frozen=True)
class PrepareBench(Benchmark):
    """Filter, notch and resampling against MNE with the same specification, one core's CPU time."""

    minutes: float = 30.0
    """Of signal."""
    cases: tuple[str, ...] = ("31x250", "36x256", "36x512")
    """Channels x Hz."""
    hours: float = 0.0
    """Stream so many hours of each case and show the peak of memory, instead of timing."""


@dataclass(frozen=True)
class CpuBench(Benchmark):
    """Latency of one window on one thread of the CPU, fp32, and its share of the machine's sgemm rate."""

    rounds: int = 15
    """Turns that each rival takes."""
    preset: str = "small"
    """Size of the model."""
    channels: tuple[int, ...] = (19, 4, 8, 32, 64)
    """Numbers of channels; the first is the goal's."""
    seconds: float = 5.0
    """Length of the window."""
    windows: int = 1
    """Windows at once."""
    threads: int = 1
    """Of torch; 0: torch's choice."""
    gemm: tuple[int, ...] = (768, 1024, 1536, 2048)
    """Square products that the sgemm rate is the best of."""
    eager: bool = False
    """Leave torch.compile out."""


Options = (
    AttentionBench
    | ForwardBench
    | LatencyBench
    | TrainBench
    | MixedBench
    | PretrainBench
    | FinetuneBench
    | LoaderBench
    | PrepareBench
    | CpuBench
)


def name_of(kind: type) -> str:
    """Return the word that stands for a benchmark on the command line: TrainBench -> train, FirstStep -> first_step."""
    return re.sub(r"\B(?=[A-Z])", "_", kind.__name__.removesuffix("Bench")).lower()
