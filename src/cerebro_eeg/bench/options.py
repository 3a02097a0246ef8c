"""Options: one dataclass a benchmark, with what it measures and every size of it. Standard library only.

The names of the classes are the words on the command line, their fields the flags. Defaults are those of the goals.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.schema import require

GEMM = (4096, 8192, 16384)
MOST_ERROR = 1.5  # of short-axis attention, over that of the best stock backend
AXES = (1, 2, 4, 8, 16, 19, 20, 24, 32, 36, 48, 64)


@dataclass(frozen=True)
class Timed:
    """What every benchmark has."""

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
class Attention(Timed):
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
    shapes: int = 0
    """Check so many random shapes against float64 instead of timing."""
    workers: int = 12
    """Processes that check."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


@dataclass(frozen=True)
class Forward(Timed):
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
class Latency(Timed):
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
class Train(Timed):
    """Training steps with our kernels, stock ones and standard attention: windows/s, GEMM share, memory (GPU)."""

    rounds: int = 9
    """Turns that each rival takes."""
    presets: tuple[str, ...] = ("small", "base", "large")
    """Sizes of the model."""
    windows: tuple[int, ...] = (1024, 256, 256)
    """Windows a step, for each size."""
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
class Mixed(Timed):
    """Training steps of windows with 18 to 36 channels: packed, padded to the widest and to 64, uniform (GPU)."""

    rounds: int = 9
    """Turns that each form takes."""
    presets: tuple[str, ...] = ("small", "base")
    """Sizes of the model."""
    windows: tuple[int, ...] = (1024, 256)
    """Windows a step, for each size."""
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
class Pretrain(Timed):
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
class Loader(Timed):
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
class Prepare(Timed):
    """Filter, notch and resampling against MNE with the same specification, one core's CPU time."""

    minutes: float = 30.0
    """Of signal."""
    cases: tuple[str, ...] = ("31x250", "36x256", "36x512")
    """Channels x Hz."""
    hours: float = 0.0
    """Stream so many hours of each case and show the peak of memory, instead of timing."""


@dataclass(frozen=True)
class Cpu(Timed):
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


@dataclass(frozen=True)
class Peers(Timed):
    """Small beside EEGNet, BIOT, LaBraM, CBraMod, EEGPT, LUNA and BENDR of braindecode: same seconds and channels."""

    channels: int = 19
    """The first of the 10-20 system's 19."""
    seconds: float = 5.0
    """Length of a window, each model at its own rate."""
    windows: int = 0
    """Windows at once; 0: 256 on a GPU, 4 on a CPU."""
    preset: str = "small"
    """Of ours."""
    compiled: tuple[str, ...] = ()
    """Models that are also compiled, such as CEReBrO CBraMod LUNA."""
    without: tuple[str, ...] = ()
    """Models to leave out."""
    gemm: tuple[int, ...] = ()
    """Square products that the GEMM rate is the best of; by default those of train on a GPU, of cpu on a CPU."""
    device: str = "auto"
    """cuda, cpu or auto."""


@dataclass(frozen=True)
class Goals:
    """Everything that has a goal on the GPU, one after the other, and a table of goals and what was found."""

    found: bool = False
    """Do not measure: take the CSV files that already lie in the folder."""
    without: tuple[str, ...] = ()
    """Benchmarks to leave out: attention shapes forward latency train mixed peers cpu."""
    device: str = "cuda"
    """Where; cpu only shows that it runs."""


Options = Attention | Forward | Latency | Train | Mixed | Pretrain | Loader | Prepare | Cpu | Peers | Goals
